"""The log of imports: the parts of each source that were stored, so that nothing is stored twice.

A mark is one line of the log. It is committed together with the data of that part: both are stored, or neither.
A part is a text or a number. A text, such as the name of a file, stays in the log. Numbers count up: the log keeps only
the last one of a source, and all numbers up to it count as stored.

A source may also have a note in place of parts: a text about the last commit, which the next one replaces. Or it has
several names, each with a text that commits replace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from ondisk.errors import StateError
from ondisk.index.snapshot import Snapshot
from ondisk.index.transaction import Transaction
from ondisk.named_tuple import NamedTuple

Part: TypeAlias = str | int


class Mark(NamedTuple):
    """A part of a source, such as one file of a folder, or one batch of a query that runs for months."""

    source: str
    part: Part


_THERE = {
    str: "SELECT 1 FROM done WHERE source = ? AND part = ?",
    int: "SELECT 1 FROM done WHERE source = ? AND part >= ? AND typeof(part) = 'integer'",  # texts sort above numbers
}


def known(state: Transaction | Snapshot, marks: Iterable[Mark]) -> set[Mark]:
    """Return those of the marks that are in the log.

    Cost: one look-up for each, whatever the size of the log.
    """
    execute = state.connection.execute
    return {mark for mark in marks if execute(_THERE[type(mark.part)], mark).fetchone() is not None}


def save(transaction: Transaction, marks: Collection[Mark]) -> None:
    """Add marks to the log, in the transaction that stores their data."""
    transaction.connection.executemany("INSERT INTO done VALUES (?, ?)", marks)
    numbers = [mark for mark in marks if isinstance(mark.part, int)]
    transaction.connection.executemany("DELETE FROM done WHERE source = ? AND part < ?", numbers)


def note(transaction: Transaction, source: str, text: str) -> None:
    """Replace the note of a source; it is what `parts` returns."""
    transaction.connection.execute("DELETE FROM done WHERE source = ?", (source,))
    transaction.connection.execute("INSERT INTO done VALUES (?, ?)", (source, text))


def exchange(transaction: Transaction, source: str, name: str, old: str | None, new: str | None) -> None:
    """Replace the text of one of a source's names, such as a file that is imported piece by piece.

    A part of such a source is the name, a space and the text.

    Args:
        old: the text now; None if the name is not in the log.
        new: the text from the commit on; None to remove the name.

    Raises:
        StateError: the text is not `old`: somebody else has imported from the source meanwhile.
    """
    execute = transaction.connection.execute
    there = execute(
        "SELECT part FROM done WHERE source = ? AND part >= ? AND part < ?", (source, f"{name} ", f"{name}!")
    )
    if {part for (part,) in there} != ({f"{name} {old}"} if old is not None else set()):
        hint = "Run the command again: it continues where the other one stopped."
        raise StateError(f"another process has imported from the {source} at the same time", hint=hint)
    execute("DELETE FROM done WHERE source = ? AND part = ?", (source, f"{name} {old}"))
    if new is not None:
        execute("INSERT INTO done VALUES (?, ?)", (source, f"{name} {new}"))


def texts(snapshot: Snapshot, source: str) -> dict[str, str]:
    """Return the names of a source that were given a text, see `exchange`, with their texts."""
    named = (str(part).partition(" ") for part in parts(snapshot, source))
    return {name: text for name, _, text in named}


def parts(snapshot: Snapshot, source: str) -> set[Part]:
    """Return the parts of a source that are in the log; of numbers only the last."""
    return {part for (part,) in snapshot.fetch("SELECT part FROM done WHERE source = ?", (source,))}


def count(snapshot: Snapshot, source: str) -> int:
    """Return how many parts of a source are in the log.

    Cost: reads a row for each.
    """
    ((number,),) = snapshot.fetch("SELECT count(*) FROM done WHERE source = ?", (source,))
    return int(number)
