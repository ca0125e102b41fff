"""What a query leaves out because it cannot be read, if the caller wants the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, TypeAlias

from ondisk.datum import Location
from ondisk.errors import DataSkipped, InvalidInput, OndiskError, shown
from ondisk.named_tuple import NamedTuple

_LISTED = 100

OnDamage: TypeAlias = Callable[..., None] | None
"""Called as `Skipped.add` with each datum that cannot be read; None raises the error."""


class SkippedDatum(NamedTuple):
    """A datum that was left out."""

    location: Location  # in its dataset
    reason: str  # the message of the error
    hint: str  # what to do about it
    dataset: str | None = None  # its path, if several are read as one

    def __str__(self) -> str:
        place = str(self.location)
        dataset = "" if self.dataset is None else f"{self.dataset}: "
        return dataset + (self.reason if place in self.reason else f"{place}: {self.reason}")


class Skipped:
    """The data that a query has left out so far, each once, in some 200 bytes of memory."""

    def __init__(self) -> None:
        self.listed: list[SkippedDatum] = []  # the first 100 of them
        self._places: set[tuple[str | None, Location]] = set()

    @property
    def count(self) -> int:
        return len(self._places)

    def add(self, location: Location, error: OndiskError, dataset: str | None = None) -> None:
        """Add a datum; a query that reads some data twice leaves them out once."""
        self._places.add((dataset, location))
        if len(self._places) > len(self.listed) < _LISTED:
            self.listed.append(SkippedDatum(location, error.message, error.hint, dataset))


def warn_of(skipped: Skipped) -> None:
    """Warn of the data that were left out of an answer that has no place to list them."""
    first = skipped.listed[0]
    message = f"data that cannot be read were left out: {skipped.count}; the first one: {first}"
    warnings.warn(message, DataSkipped, stacklevel=2)


Damaged: TypeAlias = Literal["raise", "skip"] | Skipped
"""What a query does about a datum that cannot be read: raise the error, or leave it out and list it."""


def skipped_of(damaged: Damaged) -> Skipped | None:
    """Return what takes the data that are left out; None to raise; raise InvalidInput if `damaged` is neither."""
    if isinstance(damaged, Skipped):
        return damaged
    if damaged not in ("raise", "skip"):
        hint = "To select by a field of this name, write a match expression."
        raise InvalidInput(f"damaged must be 'raise', 'skip' or a Skipped, not {shown(damaged)}", hint=hint)
    return Skipped() if damaged == "skip" else None
