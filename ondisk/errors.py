"""Every error that ondisk raises on purpose, with the exit code of a command that it ends.

    OndiskError                    exit 1
    ├── InvalidInput (ValueError)       2     ConfigError 3 · MatchError 4 · LimitExceeded 5
    ├── NotFound (LookupError)         10     DatasetNotFound 11 · DatumNotFound 12 · SegmentMissing 13
    ├── AlreadyExists                  20     DatasetExists 21 · DuplicateDatum 22
    ├── StateError                     30     NeedsCheck 31 · NeedsMigration 32 · VersionTooNew 33 · ReadOnly 34 · KeyMissing 35
    ├── LockError (TimeoutError)       40
    ├── StorageError (OSError)         50     DiskFull 51 · DurabilityLost 52 · UnsupportedFilesystem 53
    ├── IntegrityError                 60     FrameCorrupt 61 · SegmentCorrupt 62 · IndexCorrupt 63 · AuthenticationFailed 64
    └── ReplicationError               70     TokenExpired 71 · TokenForeign 72

A command that raises no error ends with one of the codes below.
The numbers are a promise to scripts: their meaning never changes.
"""

from __future__ import annotations

import reprlib
from itertools import islice
from typing import Any, ClassVar

EXIT_DONE = 0
EXIT_OUT_OF_MEMORY = 7
EXIT_DATA_SKIPPED = 8
EXIT_FINDINGS = 9
EXIT_INTERRUPTED = 130  # by SIGINT: 128 + 2
EXIT_TERMINATED = 143  # by SIGTERM: 128 + 15
RESTORE = "Restore the file from a backup"  # begins a hint
REMEDY = "to have them back, put the file back from a backup, and fix again"  # ends the report of lost data


def command(*words: object) -> str:
    """Return a command of ondisk for a hint, in backticks. Words are quoted as a shell needs it: it can be copied."""
    return f"`ondisk {shell_words(*words)}`"


def shell_words(*words: object) -> str:
    """Return words for a shell, quoted where it needs that."""
    import shlex  # here, because only messages need it

    return shlex.join(map(str, words))


def shown(value: object) -> str:
    """Return what `repr` returns, cut: at most 80 characters of a text, a few items of a collection, no huge integers.

    Use it for every value of a user in a message: `repr` raises ValueError for an integer of more than 4300 digits.
    """
    return _repr.repr(value)


def counted(count: int, noun: str, verb: str = "") -> str:
    """Return a count with its noun and verb in singular or plural: `1 datum was`, `2 data were`, `0 files`."""
    if count != 1:
        noun = "data" if noun == "datum" else f"{noun}s"
        verb = {"is": "are", "was": "were", "has": "have"}.get(verb, verb)
    return f"{count} {noun} {verb}".rstrip()


class _Repr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxother, self.fillvalue = 4, _LONGEST, "…"

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _MOST_BITS else f"<an integer of {x.bit_length()} bits>"

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[:_LONGEST]) + "…" * (len(x) > _LONGEST)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:_LONGEST]) + "…" * (len(x) > _LONGEST)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{…}"
        items = [f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}" for key in islice(x, _MOST_KEYS)]
        return "{" + ", ".join(items + ["…"] * (len(x) > _MOST_KEYS)) + "}"


_LONGEST, _MOST_KEYS, _MOST_BITS = 80, 20, 128
_repr = _Repr()


class DataOffline(UserWarning):
    """An answer lacks data, because the folder that has them is offline."""


class DataSkipped(UserWarning):
    """A table lacks data that cannot be read, as the caller wanted."""


class OndiskError(Exception):
    """Something that ondisk refuses or cannot do.

    Attributes:
        hint: what to do about it; empty if nothing helps.
        context: the facts of the message (path, line, key …), for programs. `append` adds `result`: what the
            batches before the error did.
        exit_code: the exit code of a command that ends with this error.
    """

    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, message: str, *, hint: str = "", **context: Any) -> None:
        super().__init__(message)
        self.hint = hint
        self.context = context

    @property
    def message(self) -> str:
        """The first line: what is wrong, and where."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.message, self.hint, self.context)


def _unpickle(kind: type[OndiskError], message: str, hint: str, context: dict[str, Any]) -> OndiskError:
    error = kind(message, hint=hint)
    error.context = context
    return error


class InvalidInput(OndiskError, ValueError, exit_code=2):
    """An argument or an input is not valid."""


class ConfigError(InvalidInput, exit_code=3):
    """`dataset.toml` or another configuration has an invalid key, type or value."""


class MatchError(InvalidInput, exit_code=4):
    """A match expression or a sort order is not valid."""


class LimitExceeded(InvalidInput, exit_code=5):
    """Input is larger, longer or deeper than the configuration allows."""


class NotFound(OndiskError, LookupError, exit_code=10):
    """Something requested does not exist."""


class DatasetNotFound(NotFound, exit_code=11):
    """The path contains no dataset, or no backup of one."""


class DatumNotFound(NotFound, exit_code=12):
    """The location contains no datum."""


class SegmentMissing(NotFound, exit_code=13):
    """A segment is not on disk, or the dataset has no segment of this name."""


class AlreadyExists(OndiskError, exit_code=20):
    """Something that should be created exists already."""


class DatasetExists(AlreadyExists, exit_code=21):
    """The path already contains a dataset."""


class DuplicateDatum(AlreadyExists, exit_code=22):
    """A datum with the same unique fields is stored already."""


class StateError(OndiskError, exit_code=30):
    """The dataset's state does not allow the operation."""


class NeedsCheck(StateError, exit_code=31):
    """The index was lost, and is not trusted until `fix` has rebuilt it."""


class NeedsMigration(StateError, exit_code=32):
    """The index was made by an older ondisk, or for another configuration."""


class VersionTooNew(StateError, exit_code=33):
    """The index was made by a newer ondisk."""


class ReadOnly(StateError, exit_code=34):
    """The dataset was opened for reading, or this user may not write it."""


class KeyMissing(StateError, exit_code=35):
    """The key of encrypted data is not known."""


class LockError(OndiskError, TimeoutError, exit_code=40):
    """The writers' lock was not free in time."""


class StorageError(OndiskError, OSError, exit_code=50):
    """The operating system failed to read or write."""

    # OSError.__str__ prints errno and filename, which this class does not set.
    __str__ = OndiskError.__str__


class DiskFull(StorageError, exit_code=51):
    """No space is left on the device, or the quota is used up."""


class DurabilityLost(StorageError, exit_code=52):
    """A sync failed: what was written last may be lost; it was not acknowledged."""


class UnsupportedFilesystem(StorageError, exit_code=53):
    """The filesystem lacks something that a safe dataset needs, for example locks."""


class IntegrityError(OndiskError, exit_code=60):
    """Stored bytes are damaged or do not match the index."""


class FrameCorrupt(IntegrityError, exit_code=61):
    """One frame fails its checks."""


class SegmentCorrupt(IntegrityError, exit_code=62):
    """A segment is shorter than the index says, or has other content."""


class IndexCorrupt(IntegrityError, exit_code=63):
    """`index.sqlite` is damaged, or not an index of ondisk."""


class AuthenticationFailed(IntegrityError, exit_code=64):
    """Encrypted data fail authentication: wrong key, or changed data."""


class ReplicationError(OndiskError, exit_code=70):
    """A replica cannot continue from its token."""


class TokenExpired(ReplicationError, exit_code=71):
    """The token is older than the oldest change that is still known."""


class TokenForeign(ReplicationError, exit_code=72):
    """The token belongs to another dataset."""
