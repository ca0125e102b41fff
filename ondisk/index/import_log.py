"""Marks: what of which source was stored, so that it is not stored again.

A mark is written in the commit of the data that it stands for: both are there, or neither is. A part that is a text,
such as the name of a file, is told from others, and stays. One that is a number counts up: what is not above the last
of its source was stored before, and only the last stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from ondisk.index.snapshot import Snapshot
from ondisk.index.transaction import Transaction

Part: TypeAlias = str | int


class Mark(NamedTuple):
    """A part of a source.

    Attributes:
        source: what data come from, such as a query that runs for months, or a folder of files.
        part: which of its data.
    """

    source: str
    part: Part


_THERE = {
    str: "SELECT 1 FROM done WHERE source = ? AND part = ?",
    int: "SELECT 1 FROM done WHERE source = ? AND part >= ? AND typeof(part) = 'integer'",  # texts are above numbers
}


def known(state: Transaction | Snapshot, marks: Iterable[Mark]) -> set[Mark]:
    """Find the marks of what a state of the index holds.

    Cost: a look-up of each; how many others were ever stored is no matter.
    """
    execute = state.connection.execute
    return {mark for mark in marks if execute(_THERE[type(mark.part)], mark).fetchone() is not None}


def save(transaction: Transaction, marks: Collection[Mark]) -> None:
    """Note that what the marks stand for is stored by this transaction."""
    transaction.connection.executemany("INSERT INTO done VALUES (?, ?)", marks)
    numbers = [mark for mark in marks if isinstance(mark.part, int)]
    transaction.connection.executemany("DELETE FROM done WHERE source = ? AND part < ?", numbers)


def parts(snapshot: Snapshot, source: str) -> set[Part]:
    """Give the parts of a source that were stored; of those that are numbers the last."""
    return {part for (part,) in snapshot.connection.execute("SELECT part FROM done WHERE source = ?", (source,))}
