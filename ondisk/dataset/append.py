"""Append: divide data into batches; store a batch as bytes at the ends of segments and as rows of the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.batch_writer import BatchWriter, ByTime, DataWriter, Destination, Destinations, InSequence
from ondisk.dataset.segment_layout import layout_of
from ondisk.datum import Datum
from ondisk.errors import InvalidInput, shown
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Batch, Format
from ondisk.formats.base import BATCH_BYTES
from ondisk.index import Segment
from ondisk.index.changes import present
from ondisk.index.import_log import Mark
from ondisk.index.precedence import FIRST, Precedence
from ondisk.index.transaction import Transaction
from ondisk.segment import Damage, NotedDamage
from ondisk.segments.file_facts import add_to_checksum, checksum_of, facts_of
from ondisk.segments.generations import hidden
from ondisk.step import days_ago

_T = TypeVar("_T")
OnCommit: TypeAlias = Callable[[Transaction], None]
"""Called before the commit of a batch, to add something to its transaction."""

_ENCODED_BYTES = 4 * 1024 * 1024  # bytes of data that are encoded together
_ENCODED_DATA = 10_000  # data that are encoded together
_LARGEST = 2**31  # data in a batch
_TAKEN = 16  # data that are taken from the caller at a time
_REFUSALS = 100


class Outcome(NamedTuple):
    """What an append did with one datum; `reason` says why a datum was refused."""

    status: Literal["imported", "duplicate", "replaced", "refused"]
    reason: str | None = None


IMPORTED, DUPLICATE, REPLACED = Outcome("imported"), Outcome("duplicate"), Outcome("replaced")


@dataclass(slots=True)
class AppendResult:
    """What an append did.

    Attributes:
        imported: data stored as new.
        duplicates: data skipped because the dataset has data with the same unique fields.
        replaced: data stored in place of others with the same unique fields.
        refused: data skipped because they cannot be stored; `refusals` says why.
        bytes: bytes of the stored data, without padding.
        refusals: position in the input, counted from 0, and reason, of the first 100 data that were refused.
        damage: the first 100 places in the input that are not data and were skipped.
        warnings: texts about duplicates that may be different data.
        notes: texts with other remarks about the input; nothing was lost.
        kept: names of quarantine items: bytes of another program or of an interrupted append, found where this append
            had to write.
        outcomes: one for each datum, in the order of the input; None unless requested.
        overwritten: data that were deleted because they matched what the append overwrites.
        skipped: marks of stages that were skipped because they were stored before; their data are not counted here.
    """

    imported: int = 0
    duplicates: int = 0
    replaced: int = 0
    refused: int = 0
    bytes: int = 0
    refusals: list[tuple[int, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    outcomes: list[Outcome] | None = None
    overwritten: int = 0
    skipped: list[Mark] = field(default_factory=list)
    _segments: set[str] = field(default_factory=set, repr=False)

    @property
    def segments(self) -> int:
        """How many segments were written to."""
        return len(self._segments)

    @property
    def count(self) -> int:
        """The number of data that were imported, skipped as duplicates, stored in place of others, or refused."""
        return self.imported + self.duplicates + self.replaced + self.refused

    def add(self, batch: Batch, stored: Stored) -> None:
        counts = stored.imported, len(stored.duplicates), len(stored.replaced), len(batch.refused), stored.bytes
        said = AppendResult(*counts, refusals=batch.refused, damage=batch.damage, notes=batch.notes, kept=stored.kept)
        self.extend(said)
        self._segments |= stored.segments
        if self.outcomes is not None:
            self.outcomes += _outcomes(batch, stored)

    def extend(self, other: AppendResult) -> None:
        """Add the result of the next append, except `outcomes`, `overwritten` and `skipped`."""
        room, before = _REFUSALS - len(self.refusals), self.count
        self.refusals += [(before + position, reason) for position, reason in other.refusals[:room]]
        self.damage += other.damage[: _REFUSALS - len(self.damage)]
        self.warnings += other.warnings
        self.notes += other.notes
        self.kept += other.kept
        self.imported += other.imported
        self.duplicates += other.duplicates
        self.replaced += other.replaced
        self.refused += other.refused
        self.bytes += other.bytes
        self._segments |= other._segments


class Stored:
    """The result of a batch; `replaced` and `duplicates` are positions in `Batch.payloads`."""

    def __init__(self, imported: int = 0) -> None:
        self.imported = imported
        self.replaced: set[int] = set()
        self.duplicates: set[int] = set()
        self.bytes = 0
        self.segments: set[str] = set()
        self.kept: list[str] = []
        self.displaced: dict[int, int] = {}


def iterated(values: Iterable[_T], what: str) -> Iterator[_T]:
    """Return an iterator over an argument of a caller; raise InvalidInput if it is not iterable."""
    try:
        return iter(values)
    except TypeError:
        raise InvalidInput(f"{what}, not {values!r:.80}", hint="Put a single one in a list.") from None


def checked_batch_size(value: int) -> int:
    """Return how many data a batch has, `_LARGEST` at most; raise InvalidInput unless it is a number of 1 or more."""
    if type(value) is not int or value < 1:
        raise InvalidInput(f"batch_size must be a whole number of 1 or more, not {shown(value)}")
    return min(value, _LARGEST)


def batches(data: Iterable[Datum], format: Format, batch_size: int) -> Iterator[Batch]:
    """Yield the data, encoded in batches, which end at `batch_size` data or at `BATCH_BYTES`; raise InvalidInput."""
    iterator = iter(data)
    batch, weight, count = Batch(), 0, 1
    while taken := _take(iterator, min(count, batch_size - len(batch))):
        encoded = format.encode(taken)
        batch.extend(encoded)
        size = sum(map(len, encoded.payloads))
        weight += size
        # Take a few MiB at a time, but at most twice as many data as before, since the next ones may be larger.
        count = max(1, min(2 * len(taken), _ENCODED_DATA, _ENCODED_BYTES * len(taken) // (size + 1)))
        if len(batch) >= batch_size or weight >= BATCH_BYTES:
            yield batch
            batch, weight = Batch(), 0
    if len(batch):
        yield batch


class Unidentified:
    """Counts the data of an append that have none of the fields of `unique` except reftime: probably a mistake."""

    def __init__(self, unique: Sequence[str]) -> None:
        self._unique = unique
        self._names = [name for name in unique if name != "reftime"]
        self._collided = 0  # data without any of these fields that were duplicates or replaced others
        self._count = 0  # all data
        self._is_any = False  # whether one of them has one of these fields

    def add(self, batch: Batch, stored: Stored) -> None:
        if not self._names:
            return
        lacks = {*self._names}.isdisjoint
        self._collided += sum(lacks(batch.metadata[place]) for place in (*stored.duplicates, *stored.replaced))
        self._count += len(batch.metadata)
        self._is_any = self._is_any or not all(map(lacks, batch.metadata))

    @property
    def warnings(self) -> list[str]:
        """A warning if all data lack the fields, or some of the duplicates do."""
        if self._count and not self._is_any:
            who, joined = "the datum has no" if self._count == 1 else f"none of the {self._count} data has", " or "
        elif self._collided:
            who, joined = "1 duplicate lacks" if self._collided == 1 else f"{self._collided} duplicates lack", " and "
        else:
            return []
        without = "it" if len(self._names) == 1 else "them"
        each = " for each reftime" if "reftime" in self._unique else ""
        listed = joined.join(self._names)
        return [f"{who} {listed}, which `unique` names: only one datum without {without} is stored{each}"]


def refuse_old(batch: Batch, config: DatasetConfig) -> None:
    age = config.delete_age
    if age is not None:
        batch.refuse_before(days_ago(age), f"it is older than delete_age, {age} days")


def _take(iterator: Iterator[Datum], count: int) -> list[Datum]:
    """Return the next data: at most `count`, or a few MiB."""
    taken: list[Datum] = []
    weight = 0
    while len(taken) < count and weight < _ENCODED_BYTES:
        some = list(islice(iterator, min(_TAKEN, count - len(taken))))
        if not some:
            break
        _check_data(some)
        taken += some
        weight += sum(len(datum.data) for datum in some if type(datum.data) is bytes)
    return taken


def insert(
    batch: Batch,
    format: Format,
    config: DatasetConfig,
    directory: Directory,
    transaction: Transaction,
    *,
    trusted: bool,
    away: Mapping[int, str] = MappingProxyType({}),
    seqs: Sequence[int] | None = None,
    precedence: Precedence | None = None,
) -> Stored:
    """Insert the rows of a batch, except those of duplicates; write the bytes of the new data. The caller commits.

    Args:
        trusted: the sentinel does not exist, so bytes after a segment's committed size may be cut off.
        away: id → why it is away, of segments that are away: a duplicate of a datum there is refused, since whoever is
            told that the dataset has a datum may remove his own.
        seqs: the numbers of the data, ascending; None assigns new ones.
        precedence: which of data with the same unique values counts; None: as the dataset is configured.

    Raises InvalidInput of an encrypted dataset and such data, MustRewrite, and all errors of reading and writing.

    Durability: inserts rows (uncommitted) → writes bytes at the ends of concat segments, then the counts in headers,
        and a file for each datum of a dir segment → syncs the segments, and the directories of new ones. The caller
        calls `check_space`, then commits; that gives new segments their names. A crash before the commit leaves bytes
        or files without rows, which no query reads; docs/architecture.md lists what removes them. A crash between the
        last two steps leaves new segments at their hidden names, where queries find them. If an error occurs before the
        commit, the writes are undone.
    Locks: the caller must hold the writers' lock.
    Cost: a fixed number of system calls for each segment; in a dir segment, some for each datum, too.
    """
    if not batch.payloads:
        return Stored()
    format.check_encrypts()
    writer = BatchWriter(directory, transaction, trusted=trusted)
    roll = layout_of(config.step).roll(writer, config, format)
    destinations: Destinations = (
        ByTime(batch, format, config, writer) if roll is None else InSequence(batch, format, roll)
    )
    if not batch.payloads:  # the segments of all are missing
        return Stored()
    payloads, beside, sizes = batch.payloads, batch.beside, [*map(len, batch.payloads)]
    seqs = transaction.take_seqs(len(payloads)) if seqs is None else [seqs[place] for place in batch.positions()]
    places = seqs, batch.reftimes, destinations.ids(), destinations.offsets(sizes), sizes
    columns = *places, *transaction.columns(batch.metadata)
    stored, refused = Stored(imported=transaction.insert(columns)), dict[int, str]()
    if stored.imported < len(payloads):
        rows = [*zip(*columns, strict=True)]
        if precedence is None:
            precedence = Precedence.of(config)
            stored.replaced = _mend(rows, payloads, format, directory, transaction, destinations)
        kept = _settle(rows, precedence, transaction, stored)
        refused = _refusals(rows, stored.duplicates, transaction, away) if away else {}
        payloads, seqs = [payloads[place] for place in kept], [seqs[place] for place in kept]
        beside = [beside[place] for place in kept if beside]
        if kept:
            destinations.keep(kept, rows, transaction)
    if payloads:
        _write(destinations, payloads, beside, seqs, transaction, writer)
        stored.bytes = sum(map(len, payloads))
        stored.kept = writer.kept
        stored.segments = {destination.segment.name for destination, _ in destinations.runs}
    _refuse(batch, stored, refused)
    return stored


def _refusals(
    rows: list[tuple[Any, ...]], duplicates: set[int], transaction: Transaction, away: Mapping[int, str]
) -> dict[int, str]:
    """Return the positions of duplicates whose data are away, and why."""
    found = {place: transaction.duplicate_of(rows[place]) for place in duplicates}
    return {place: away[other[2]] for place, other in found.items() if other is not None and other[2] in away}


def _refuse(batch: Batch, stored: Stored, reasons: dict[int, str]) -> None:
    """Count some duplicates, position → reason, as refused."""
    if reasons:
        kept = [place for place in range(len(batch.payloads)) if place not in reasons]
        now = {place: at for at, place in enumerate(kept)}
        stored.duplicates = {now[place] for place in stored.duplicates.difference(reasons)}
        stored.replaced = {now[place] for place in stored.replaced}
        batch.refuse(reasons)


def _mend(
    rows: list[tuple[Any, ...]],
    payloads: list[bytes],
    format: Format,
    directory: Directory,
    transaction: Transaction,
    destinations: Destinations,
) -> set[int]:
    """Write data back that are damaged in the segments of a batch; return their positions."""
    segments = {each.segment.id: each.segment for each, _ in destinations.runs}
    damaged = transaction.damaged(segments)
    into = format, directory, transaction
    return {
        place for id, damage in damaged.items() for place in _write_back(segments[id], damage, rows, payloads, *into)
    }


def _write_back(
    segment: Segment,
    damage: NotedDamage,
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
    transaction.note_check(segment, damage if damage.hides_data else None, found)
    return {place for place, _ in damaged.values()}


def _checksum_with(pieces: list[tuple[int, bytes]], file: ReadableFile, size: int, mutable: range) -> int:
    checksum = position = 0
    for offset, content in pieces:
        checksum = checksum_of(file, offset, mutable, position, checksum)
        checksum, position = add_to_checksum(content, offset, mutable, checksum), offset + len(content)
    return checksum_of(file, size, mutable, position, checksum)


def _settle(rows: list[tuple[Any, ...]], precedence: Precedence, transaction: Transaction, stored: Stored) -> list[int]:
    """Let rows that were not inserted replace those that they duplicate, or be skipped; add them to `stored`.

    Data in `stored.replaced` were written back before. Return the positions of the rows that are now in the index.
    """
    seqs = [row[0] for row in rows]
    batch = {*seqs}
    inserted = present(transaction, seqs)
    for place, row in enumerate(rows):
        if row[0] in inserted or place in stored.replaced:
            continue
        if precedence == FIRST or precedence.keeps(held := transaction.held_by(row), row):
            stored.duplicates.add(place)
            continue
        transaction.replace(held, row, batch)
        stored.replaced.add(place)
        if held[0] not in batch:
            stored.displaced[held[0]] = held[2]
    if precedence != FIRST:
        inserted = present(transaction, seqs)
    return [place for place, seq in enumerate(seqs) if seq in inserted]


def _write(
    destinations: Destinations,
    payloads: list[bytes],
    beside: list[bytes],
    seqs: Sequence[int],
    transaction: Transaction,
    writer: BatchWriter,
) -> None:
    contents: dict[Destination, tuple[list[bytes], list[bytes]]] = {}
    at = 0
    for destination, count in destinations.runs:
        mine = contents.setdefault(destination, ([], []))
        mine[0].extend(payloads[at : at + count])
        mine[1].extend(beside[at : at + count])
        at += count
    for each in contents:
        each.payloads = contents[each][0]

    def fill(destination: Destination, segment: DataWriter) -> None:
        segment.add(*contents[destination])

    def renumber() -> None:
        transaction.set_offsets(zip(destinations.offsets(list(map(len, payloads))), seqs, strict=True))

    writer.write(contents, fill, renumber)


def _check_data(data: Sequence[object]) -> None:
    if set(map(type, data)) != {Datum}:
        for each in data:
            if not isinstance(each, Datum):
                raise InvalidInput(f"append takes Datum objects, not {type(each).__name__}: {each!r:.80}")


def _outcomes(batch: Batch, stored: Stored) -> list[Outcome]:
    outcomes = [IMPORTED] * len(batch)
    for position, reason in batch.refused:
        outcomes[position] = Outcome("refused", reason)
    positions = batch.positions()
    for place in stored.duplicates:
        outcomes[positions[place]] = DUPLICATE
    for place in stored.replaced:
        outcomes[positions[place]] = REPLACED
    return outcomes
