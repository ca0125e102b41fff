"""The only code of ondisk that opens, writes, syncs, renames, links, unlinks or locks files of a dataset.

Every name is relative to the dataset. It is resolved from an open directory, component by component, without following
symbolic links: neither a name in a damaged index nor a planted link can lead out of the dataset.
(SQLite opens `index.sqlite` itself; `regular_file` first refuses a link there.)
"""

from ondisk.filesystem.directory import Directory, Entry, components
from ondisk.filesystem.files import Closing, ReadableFile, WritableFile
from ondisk.filesystem.lock import LOCK, MaintainLock, PipelineLock, SharedLock, WritersLock, is_locked
from ondisk.filesystem.os_errors import denied, is_denied, removed, space_hint

__all__ = [
    "LOCK",
    "Closing",
    "Directory",
    "Entry",
    "MaintainLock",
    "PipelineLock",
    "ReadableFile",
    "SharedLock",
    "WritableFile",
    "WritersLock",
    "components",
    "denied",
    "is_denied",
    "is_locked",
    "removed",
    "space_hint",
]
