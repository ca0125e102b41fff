"""How the data of a dataset are divided among segments, and what other programs do with these.

Most datasets have segments of a time, and only ondisk writes and removes them: that is `Layout` itself, whose answers
are "nothing special". With the step `sequence`, another program may fill the segments, read them one after the other,
and remove those that it has read. It keeps in a file of its own how far it is. `ondisk.queue.layout` knows it, and is
imported only if such a dataset needs an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ondisk.config import DatasetConfig
from ondisk.named_tuple import NamedTuple
from ondisk.step import Step

if TYPE_CHECKING:
    from ondisk.dataset.access import Access
    from ondisk.dataset.batch_writer import BatchWriter, Destination
    from ondisk.filesystem import Directory
    from ondisk.formats import Format
    from ondisk.index import Segment, Snapshot

_OTHERS = {Step.SEQUENCE: ("ondisk.queue.layout", "QueueLayout")}


class Roll(Protocol):
    """Divides data by their size among the segments that a batch is written to: the last one, and new ones."""

    all: list[Destination]

    def runs(self, sizes: Sequence[int]) -> list[tuple[Destination, int]]:
        """Return the segments in their order, and how many data, of some sizes, each gets."""


class Remark(NamedTuple):
    """What a report says about a file that is no segment."""

    name: str  # of the file
    reasons: tuple[str, ...]  # what is wrong with it, or why something is done
    is_wrong: bool = True  # something is wrong
    held: bool = False  # only a person can mend it
    action: str | None = None  # what was done, or would be; None if nothing


class Usage:
    """How far the other program has read the segments; here there is none.

    Attributes:
        consumed: why a segment is not on disk that this program has read and removed.
        stays: why a segment without data stays that it has not read.
    """

    consumed = stays = ""

    def is_consumed(self, name: str, length: int) -> bool:
        """Return whether it has read all of a segment, of `length` bytes, so that it removes the file."""
        return False

    def why_unread(self, name: str) -> str | None:
        """Return why nobody may change or remove a segment: the other program still has to read it; else None."""
        return None


class Layout:
    """The segments of a dataset whose times name them, and that no other program shares."""

    program = ""  # what messages call the program that shares the segments
    keeps_foreign = False  # a segment that another program has written may stay as it is, if it can be read in place

    def taken_for(self, name: str) -> str:
        """Return the name of the segment for which the other program takes a file."""
        return name

    def is_shared(self, name: str) -> bool:
        """Return whether another program may make a segment of this name, and append to it."""
        return False

    def roll(self, writer: BatchWriter, config: DatasetConfig, format: Format) -> Roll | None:
        """Return what divides a batch among segments by the size of its data; None if their times decide."""
        return None

    def usage(self, directory: Directory) -> Usage:
        """Return how far the other program is now."""
        return UNUSED

    def pending(self, access: Access, snapshot: Snapshot) -> dict[str, Any] | None:
        """Return how many data the other program still has to read, as `info` reports it; None if there is none."""
        return None

    def findings(self, access: Access) -> Iterator[Remark]:
        """Yield what a check reports besides segments."""
        yield from ()

    def planned(self, access: Access, read: Collection[str], consumed: Collection[str]) -> Iterator[Remark]:
        """Yield what a fix or a repack would do besides, or find when it has read segments and forgotten others."""
        yield from ()

    def follow(self, access: Access) -> Iterator[Remark]:
        """Let the other program go on where it can, before a fix reads segments; yield what was done."""
        yield from ()

    def mend(self, access: Access) -> Iterator[Remark]:
        """Set right what `findings` yields, after a fix has read the segments; yield what was done."""
        yield from ()

    def leave_removed(self, access: Access, verb: str) -> Iterator[Remark]:
        """Let the other program leave a segment that is gone from disk and index; yield what was done."""
        yield from ()

    def begin_again(self, directory: Directory, name: str, *, is_committed: bool = False) -> None:
        """Let the other program read a segment from its beginning: its file is gone, or is another one now."""

    def why_read_again(self, directory: Directory, segment: Segment, offset: int) -> str | None:
        """Return why `begin_again` must be called for a segment with new data from an offset on; None if not."""
        return None

    def check_rewritable(self, directory: Directory, name: str) -> None:
        """Raise `StateError` if a segment must not be rewritten: the other program still has to read it."""

    def check_returns(self, directory: Directory, name: str) -> None:
        """Raise `StateError` if a segment that was moved away must not return to those that the program reads."""


UNUSED = Usage()
BY_TIME = Layout()


@cache
def layout_of(step: Step) -> Layout:
    """Return the layout of datasets with this step."""
    if step not in _OTHERS:
        return BY_TIME
    module, name = _OTHERS[step]
    other: Layout = getattr(import_module(module), name)()
    return other
