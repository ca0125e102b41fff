"""Write the original bytes of damaged data back into their segment, when somebody appends them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Format
from ondisk.index import Segment
from ondisk.index.transaction import Transaction
from ondisk.segment import is_loss
from ondisk.segments.facts import add_to_checksum, checksum_of, facts_of
from ondisk.segments.generations import hidden

_Pieces = list[tuple[int, bytes]]
"""Offsets and bytes, in the order of the offsets."""


def write_back(
    segment: Segment,
    damage: str,
    rows: Sequence[tuple[Any, ...]],
    payloads: Sequence[bytes],
    format: Format,
    directory: Directory,
    transaction: Transaction,
) -> set[int]:
    """Write original bytes over those of damaged data, if they make all of the segment what it was.

    The index has a checksum of all bytes of a segment, not one of each datum. So if several data are damaged, one
    append must bring them all. Return the positions of those that were damaged; none if nothing was written.

    Durability: writes and syncs the bytes; the caller's commit removes the note of the damage. A crash between the two
        leaves a touched file, which the next fix reads.
    Locks: the caller must hold the writers' lock.
    Cost: looks each row up, and reads the segment once.
    """
    facts = segment.facts
    if facts.checksum is None or format.is_dir or segment.end.compressed:
        return set()
    file = directory.open_to_read(segment.name)
    if format.sealer(file, segment.name) is not None:
        return set()
    damaged: dict[int, tuple[int, bytes]] = {}  # by offset
    for place, row in enumerate(rows):
        known = transaction.duplicate_of(row) if row[2] == segment.id else None
        # Equal but for number and offset.
        if known is not None and known[0] != row[0] and (*known[1:3], *known[4:]) == (*row[1:3], *row[4:]):
            end = segment.end._replace(size=known[3], length=known[3])
            original = format.lay([payloads[place]], end).content
            if file.read(known[3], len(original)) != original:
                damaged[known[3]] = place, original
    pieces = [(offset, original) for offset, (_, original) in sorted(damaged.items())]
    if not pieces or _checksum_with(pieces, file, segment.end.size, format.mutable) != facts.checksum:
        return set()
    directory.separate(segment.name, hidden(segment.name, transaction.take_generation()))
    with directory.open_to_write(segment.name) as writable:
        for offset, original in pieces:
            writable.write(offset, original)
        writable.sync()
        found = facts_of(writable.stat(), facts.tail, facts.checksum)
    transaction.note_check(segment, damage if is_loss(damage) else None, found)
    return {place for place, _ in damaged.values()}


def _checksum_with(pieces: _Pieces, file: ReadableFile, size: int, mutable: range) -> int:
    checksum = position = 0
    for offset, content in pieces:
        checksum = checksum_of(file, offset, mutable, position, checksum)
        checksum, position = add_to_checksum(content, offset, mutable, checksum), offset + len(content)
    return checksum_of(file, size, mutable, position, checksum)
