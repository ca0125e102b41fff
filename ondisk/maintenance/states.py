"""The states of a segment, and what check, fix and repack report about it.

Which states a segment has is decided in `diagnosis`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Flag, StrEnum, auto
from typing import ClassVar

from ondisk.dataset.segment_layout import Remark
from ondisk.errors import (
    DiskFull,
    DurabilityLost,
    KeyMissing,
    LockError,
    OndiskError,
    ReadOnly,
    StateError,
    StorageError,
)
from ondisk.filesystem import is_denied
from ondisk.index.changes import Removal
from ondisk.segments.quarantine import Total
from ondisk.segments.replaced import Kept
from ondisk.step import in_order, is_place

_LOG = logging.getLogger("ondisk.maintenance")


_NAMED = 3


@dataclass(slots=True)
class Tally:
    """Counts findings of one kind."""

    count: int = 0
    size: int = 0
    named: list[str] = field(default_factory=list)  # the first three, in words

    def add(self, text: str, size: int = 0) -> None:
        """Count one more."""
        self.count += 1
        self.size += size
        if len(self.named) < _NAMED:
            self.named.append(text)

    def text(self, separator: str = ", ") -> str:
        """Return the first three, and an ellipsis if there are more."""
        return separator.join(self.named) + " …" * (self.count > _NAMED)


class State(Flag):
    """The states of a segment; they combine. Source: arkimet's ondisk2 datasets."""

    OK = 0
    DIRTY = auto()
    UNALIGNED = auto()
    MISSING = auto()
    DELETED = auto()
    CORRUPTED = auto()
    ARCHIVE_AGE = auto()
    DELETE_AGE = auto()

    @property
    def names(self) -> list[str]:
        """The names of the combined states."""
        return [str(state.name) for state in self] or ["OK"]


FIXED = State.UNALIGNED | State.MISSING
"""The states that a fix mends."""


class Action(StrEnum):
    """What mends a segment, and how reports say it."""

    FOLLOW = "follow"  # somebody has moved it: the index gets its new name
    REMOVE = "remove from the index"
    RESCAN = "rescan"
    DELETE = "delete"
    REPACK = "repack"
    ARCHIVE = "archive"
    REPACK_AND_ARCHIVE = "repack and archive"

    __repr__ = str.__repr__  # in Python, too, it is shown as the text that JSON has


REWRITES = (Action.REPACK, Action.REPACK_AND_ARCHIVE)
"""The actions that write a segment again, without its holes."""


REPACKED = State.DIRTY | State.MISSING | State.DELETED | State.ARCHIVE_AGE | State.DELETE_AGE
"""The states that a repack mends, unless the segment is also CORRUPTED."""

_FATAL = (DiskFull, DurabilityLost, LockError, StateError)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of one segment, and the reasons for it."""

    segment: str  # its name
    state: State  # all states that apply
    reasons: tuple[str, ...] = ()  # one for each thing that is wrong
    freed: int = 0  # bytes that a repack would free; estimated if the segment is compressed
    is_touched: bool = False  # its mtime or inode changed, but the bytes read so far did not
    is_rewritten: bool = False  # it is touched, and its time shows that another program may have written to it
    # it is CORRUPTED only because a check found damage of its content; a fix checks recorded damage again
    noted: bool = False
    error: OndiskError | None = None  # why it could not be examined; None if it was
    # fix and repack leave it, although they would mend it, because too much would go at once; the last reason says why.
    # See `ondisk.maintenance.ages`.
    held: bool = False
    moved: str | None = None  # it is MISSING because somebody has moved it to this name, as far as its facts show
    # another program has read and removed it; a fix removes it from the index, and nothing is lost
    consumed: bool = False
    awaited: str | None = None  # why nobody may change, move or remove it: another program still has to read it

    @classmethod
    def of(cls, remark: Remark) -> Diagnosis:
        """Return a remark as a part of the report of a check."""
        return cls(remark.name, _state_of(remark), remark.reasons, held=remark.held)

    @property
    def is_denied(self) -> bool:
        """Whether this user may not read it; then its state says nothing, and nothing is done with it."""
        return self.error is not None and is_denied(self.error)

    def removal(self, *, is_kept: bool = False) -> Removal:
        """Return why its data are removed from the index; `is_kept` says whether readers still find them."""
        if State.MISSING in self.state:
            return Removal.LOST
        return Removal.AGED_AND_KEPT if is_kept else Removal.AGED

    @property
    def action(self) -> Action | None:
        """What mends it, or None. A fix does `rescan`, a repack what is below that; both do the others."""
        state = self.state
        if self.moved is not None:
            return Action.FOLLOW
        if State.CORRUPTED in state or self.held:
            return None
        if State.MISSING in state or self.consumed:
            return Action.REMOVE
        if State.UNALIGNED in state:
            return Action.RESCAN
        if state & (State.DELETED | State.DELETE_AGE):
            return Action.DELETE
        if State.DIRTY in state:
            return Action.REPACK_AND_ARCHIVE if State.ARCHIVE_AGE in state else Action.REPACK
        return Action.ARCHIVE if State.ARCHIVE_AGE in state else None

    def hold(self, reason: str) -> Diagnosis:
        """Return this diagnosis of a segment that fix and repack must leave."""
        return replace(self, reasons=(*self.reasons, reason), freed=0, held=True)

    def rewritten(self, reason: str) -> Diagnosis:
        """Return this diagnosis of a segment that a repack rewrites for a reason."""
        return replace(self, state=self.state | State.DIRTY, reasons=(*self.reasons, reason))

    def failed(self, what: str, error: OndiskError | OSError, errors: list[OndiskError]) -> Done:
        """Return the result for a segment that an error left unchanged, and add the error to `errors`.

        Raises:
            OndiskError: the error, if it would also occur at the other segments.
        """
        raise_fatal(error)
        errors.append(error if isinstance(error, OndiskError) else StorageError(f"{self.segment}: {error}"))
        reason = f"it could not be {what}: {'. '.join(str(error).splitlines())}"
        return Done(self.segment, self.state, (*self.reasons, reason), failed=True)


def _state_of(remark: Remark) -> State:
    return State.UNALIGNED if remark.is_wrong else State.OK


def raise_fatal(error: OndiskError | OSError) -> None:
    """Raise an error at one segment again, if it would also occur at the others.

    Other segments may have other keys, or be in folders to which this user may write.
    """
    if isinstance(error, _FATAL) and not isinstance(error, KeyMissing | ReadOnly):
        raise error


def readable(found: Iterable[Diagnosis], errors: list[OndiskError]) -> Iterator[Diagnosis]:
    """Yield the segments that this user may read; at the end add an error for the others, if there are any."""
    others: dict[str, OndiskError] = {}  # by message: it names the folder if that is in the way of many segments
    for each in found:
        if each.error is not None and each.is_denied:
            others.setdefault(each.error.message, each.error)
        else:
            yield each
    for first in [*others.values()][:1]:
        more = f"; {len(others) - 1} more files or folders cannot be read" if len(others) > 1 else ""
        errors.append(StorageError(first.message + more, hint=first.hint, **first.context))


@dataclass(frozen=True, slots=True)
class Done:
    """What fix or repack did with one segment."""

    segment: str  # its name
    state: State  # its states before
    reasons: tuple[str, ...] = ()  # why; after a fix also what it found that is not a datum, or was a duplicate
    action: str | None = None  # an `Action`, or the word for what was asked for; None if it was left alone
    freed: int = 0  # bytes that were freed; negative if more are used than before, for example without compression
    # how many data the index does not know any more: all data of a missing segment, and one for each place whose
    # content is not a datum. Data that are also in another segment are not lost.
    lost: int = 0
    failed: bool = False  # an error left it unchanged; the last reason has the message
    returned: int = 0  # how many data a fix has read that the index did not know; deleted ones are back
    held: ClassVar[bool] = False
    consumed: ClassVar[bool] = False

    @classmethod
    def of(cls, remark: Remark) -> Done:
        """Return a remark as a part of the report of a fix or repack."""
        return cls(remark.name, _state_of(remark), remark.reasons, remark.action)

    def __str__(self) -> str:
        """Return one line about it, for the log."""
        reasons = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        freed = f", {self.freed} bytes freed" if self.freed else ""
        return f"{self.segment}: {' '.join(self.state.names)}{reasons}: {self.action or 'left alone'}{freed}"


@dataclass(slots=True)
class Report:
    """What check, fix or repack found or did in a dataset.

    Attributes:
        dataset: its path.
        ok: number of segments that are OK.
        segments: the others, in the order of their names; after a check also those that are OK.
        needs_check: the sentinel exists, or the index is missing.
        quarantine: after a check, what is in quarantine; that is no finding.
        replaced: after a check, what `keep_replaced` keeps; that is no finding.
    """

    dataset: str
    ok: int = 0
    segments: list[Diagnosis | Done] = field(default_factory=list)
    needs_check: bool = False
    quarantine: Total = field(default_factory=lambda: Total(0, 0))
    replaced: Kept = field(default_factory=Kept)

    def add(self, found: Iterable[Diagnosis | Done]) -> None:
        """Add segments. Those of a fix or repack that were OK are only counted.

        What a fix or repack did is logged at INFO, segment by segment.
        """
        for each in found:
            self.ok += not each.state and each.action is None
            if each.state or each.action is not None or isinstance(each, Diagnosis):
                self.segments.append(each)
                if isinstance(each, Done) and (each.action is not None or each.failed):
                    _LOG.info("%s: %s", self.dataset, self.segments[-1])

    @contextlib.contextmanager
    def attached(self, errors: list[OndiskError]) -> Iterator[None]:
        """Sort the segments after the block, and attach this report to an error: `error.context["report"]`.

        Args:
            errors: what went wrong at single segments. The first is raised if no other error ends the block.
        """
        try:
            yield
            if errors:
                raise errors[0]
        except OndiskError as error:
            error.context["report"] = self
            raise
        finally:
            self.sort()

    def sort(self) -> None:
        """Sort the segments by name, those of the archive last."""
        self.segments.sort(key=lambda each: in_order(each.segment))

    def __iter__(self) -> Iterator[Diagnosis | Done]:
        return iter(self.segments)

    @property
    def touched(self) -> list[str]:
        """The segments, after a check, that are OK as far as it looks, and touched by another program.

        A fix compares all of their bytes.
        """
        found = (each for each in self.segments if isinstance(each, Diagnosis))
        return [each.segment for each in found if each.is_rewritten and not each.state]

    @property
    def consumed(self) -> int:
        """How many segments another program has read and removed, and a fix removes from the index."""
        return sum(each.consumed for each in self.segments)

    @property
    def findings(self) -> list[Diagnosis | Done]:
        """The segments that are not OK."""
        return [each for each in self.segments if each.state]

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to do or to report."""
        return not self.needs_check and not self.findings

    @property
    def freed(self) -> int:
        """Bytes that were freed, or that a repack would free; negative if more are used than before."""
        return sum(each.freed for each in self.mended_by(REPACKED))

    @property
    def lost(self) -> int:
        """How many data are lost; `Done.lost` says which."""
        return sum(each.lost for each in self.segments if isinstance(each, Done))

    def mended_by(self, states: State) -> list[Diagnosis | Done]:
        """Return the segments in one of these states, without those that fix and repack leave alone."""
        return [
            each
            for each in self.segments
            if (each.state & states or each.consumed) and State.CORRUPTED not in each.state and not each.held
        ]

    @property
    def held(self) -> list[Diagnosis | Done]:
        """The segments that fix and repack leave because too much would go at once."""
        return [each for each in self.segments if each.held]

    def release(self, states: State) -> None:
        """Take the hold off the segments in one of these states, but not off folders of the archive."""
        for at, each in enumerate(self.segments):
            if isinstance(each, Diagnosis) and each.state & states and not is_place(each.segment):
                self.segments[at] = replace(each, held=False)

    def after(self, done: Report) -> Report:
        """Return this report of a check after a fix or repack: what that failed at is still in its states.

        The check itself may not look for them: `repack(rewrite=True)` also rewrites segments that are OK.
        """
        failed = {each.segment: each.state for each in done if isinstance(each, Done) and each.failed}
        ok = sum(not each.state and bool(failed.get(each.segment)) for each in self.segments)
        segments = [replace(each, state=each.state | failed.get(each.segment, State.OK)) for each in self.segments]
        return replace(self, ok=self.ok - ok, segments=segments)

    @property
    def counts(self) -> dict[str, int]:
        """How many segments are in each state."""
        counts = {"ok": self.ok}
        for state in State:
            counts[str(state.name).lower()] = sum(state in each.state for each in self.segments)
        return counts
