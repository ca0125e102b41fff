"""The only code of ondisk that opens, writes, syncs, renames, links, unlinks or locks files of a dataset.

Every name is relative to the dataset and is walked from an open directory, component by component, without following
symbolic links: neither a name in a damaged index nor a link somebody planted leads out of the dataset.
(`index.sqlite` is opened by SQLite; `regular_file` refuses a link in its place first.)
"""

from ondisk.filesystem.directory import Directory, Entry, components
from ondisk.filesystem.files import ReadableFile, WritableFile
from ondisk.filesystem.lock import LOCK, MaintainLock, PipelineLock, SharedLock, WritersLock, is_locked

__all__ = [
    "LOCK",
    "Directory",
    "Entry",
    "MaintainLock",
    "PipelineLock",
    "ReadableFile",
    "SharedLock",
    "WritableFile",
    "WritersLock",
    "components",
    "is_locked",
]
