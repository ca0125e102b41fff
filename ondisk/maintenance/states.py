"""The states of a segment, and what a check says of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Flag, auto

from ondisk.errors import DiskFull, DurabilityLost, LockError, OndiskError, StateError, StorageError


class State(Flag):
    """What is to be said of a segment; states combine. Source: arkimet's ondisk2 datasets."""

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
        """The names of the states that are combined here."""
        return [str(state.name) for state in self] or ["OK"]


FIXED = State.UNALIGNED | State.MISSING
"""The states that a fix mends."""

REPACKED = State.DIRTY | State.MISSING | State.DELETED | State.ARCHIVE_AGE | State.DELETE_AGE
"""The states that a repack mends, where no CORRUPTED stands beside them."""

FATAL = (DiskFull, DurabilityLost, LockError, StateError)
"""Errors at one segment that the others would meet, too."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is to be said of one segment.

    Attributes:
        segment: its name; in a report `.archive/last/…` for one of the archive.
        state: all that is so.
        reasons: why, each for itself.
        freed: bytes that a repack would give back; of a compressed segment estimated.
        noted: it is CORRUPTED only by what was once found in its content; a fix looks whether that is still so.
        error: what kept it from being looked at; None where it was.
    """

    segment: str
    state: State
    reasons: tuple[str, ...] = ()
    freed: int = 0
    noted: bool = False
    error: OndiskError | None = None

    @property
    def action(self) -> str | None:
        """What mends it, or None: `rescan` and `remove from the index` by fix; the others by repack."""
        state = self.state
        if State.CORRUPTED in state:
            return None
        if State.MISSING in state:
            return "remove from the index"
        if State.UNALIGNED in state:
            return "rescan"
        if state & (State.DELETED | State.DELETE_AGE):
            return "delete"
        steps = ["repack"] * (State.DIRTY in state) + ["archive"] * (State.ARCHIVE_AGE in state)
        return " and ".join(steps) or None

    def failed(self, what: str, error: OndiskError | OSError, errors: list[OndiskError]) -> Done:
        """Say that it was left as it is, since something went wrong, which is added to `errors`."""
        errors.append(error if isinstance(error, OndiskError) else StorageError(f"{self.segment}: {error}"))
        reason = f"it could not be {what}: {'. '.join(str(error).splitlines())}"
        return Done(self.segment, self.state, (*self.reasons, reason))


@dataclass(frozen=True, slots=True)
class Done:
    """What fix or repack did, or would do, with one segment.

    Attributes:
        segment: its name.
        state: what it was in.
        reasons: why; behind a fix also what it met that is no datum, or was a duplicate.
        action: what was done, in the words of `Diagnosis.action`; None where it was left alone.
        freed: bytes given back.
        lost: how many data the index does not know any more: those of a segment that is missing, and one for each
            place where something stands that is no datum. What another segment holds as well is not lost.
    """

    segment: str
    state: State
    reasons: tuple[str, ...] = ()
    action: str | None = None
    freed: int = 0
    lost: int = 0


@dataclass(slots=True)
class Report:
    """What check, fix or repack found or did in a dataset.

    Attributes:
        dataset: its path.
        ok: segments that are OK.
        segments: the others, in the order of their names; of a check of everything also those that are OK.
        needs_check: the sentinel stands, or the index is missing.
    """

    dataset: str
    ok: int = 0
    segments: list[Diagnosis | Done] = field(default_factory=list)
    needs_check: bool = False

    def add(self, prefix: str, found: Iterable[Diagnosis | Done]) -> None:
        """Add segments, whose names begin with a prefix here; of what fix or repack did, what is OK is only counted."""
        for each in found:
            self.ok += not each.state
            if each.state or isinstance(each, Diagnosis):
                self.segments.append(replace(each, segment=prefix + each.segment))

    @contextlib.contextmanager
    def told(self, errors: list[OndiskError]) -> Iterator[None]:
        """Put the segments in order behind the block, and let an error tell of them: `error.context["report"]`.

        Args:
            errors: what went wrong at single segments; the first of them is raised where no other ends the block.
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
        """Put the segments in the order of their names, those of the archive last."""
        self.segments.sort(key=lambda each: (each.segment.startswith("."), each.segment))

    def __iter__(self) -> Iterator[Diagnosis | Done]:
        return iter(self.segments)

    @property
    def findings(self) -> list[Diagnosis | Done]:
        """The segments that are not OK."""
        return [each for each in self.segments if each.state]

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to be done or to be said."""
        return not self.needs_check and not self.findings

    @property
    def freed(self) -> int:
        """Bytes given back, or that a repack would give back."""
        return sum(each.freed for each in self.mended_by(REPACKED))

    @property
    def lost(self) -> int:
        """How many data are lost; see `Done.lost`."""
        return sum(each.lost for each in self.segments if isinstance(each, Done))

    def mended_by(self, states: State) -> list[Diagnosis | Done]:
        """Choose the segments with which a verb that mends these states has something to do."""
        return [each for each in self.segments if each.state & states and State.CORRUPTED not in each.state]

    @property
    def counts(self) -> dict[str, int]:
        """How many segments are in each state."""
        counts = {"ok": self.ok}
        for state in State:
            counts[str(state.name).lower()] = sum(state in each.state for each in self.segments)
        return counts
