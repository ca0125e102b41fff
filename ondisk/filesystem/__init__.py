"""The only code of ondisk that opens, writes, syncs, renames, links, unlinks or locks files of a dataset.

Every name is relative to the dataset. It is resolved from an open directory, component by component, without following
symbolic links: neither a name in a damaged index nor a planted link can lead out of the dataset.
(SQLite opens `index.sqlite` itself; `regular_file` first refuses a link there.)
"""

from ondisk.filesystem.directory import Directory as Directory
from ondisk.filesystem.directory import Entry as Entry
from ondisk.filesystem.directory import components as components
from ondisk.filesystem.files import Closing as Closing
from ondisk.filesystem.files import ReadableFile as ReadableFile
from ondisk.filesystem.files import WritableFile as WritableFile
from ondisk.filesystem.lock import LOCK as LOCK
from ondisk.filesystem.lock import MaintainLock as MaintainLock
from ondisk.filesystem.lock import PipelineLock as PipelineLock
from ondisk.filesystem.lock import SharedLock as SharedLock
from ondisk.filesystem.lock import WritersLock as WritersLock
from ondisk.filesystem.lock import is_locked as is_locked
from ondisk.filesystem.os_errors import denied as denied
from ondisk.filesystem.os_errors import is_denied as is_denied
from ondisk.filesystem.os_errors import removed as removed
from ondisk.filesystem.os_errors import space_hint as space_hint
