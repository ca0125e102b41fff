"""Appending: data become batches, a batch becomes bytes at the ends of segments and rows of the index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice, repeat
from typing import Any, Literal, TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.archives import Archived
from ondisk.dataset.batch_writer import BatchWriter, DataWriter, Target
from ondisk.datum import Datum
from ondisk.errors import InvalidInput
from ondisk.filesystem import Directory
from ondisk.formats import Batch, Format
from ondisk.formats.base import BATCH_BYTES
from ondisk.index import Transaction
from ondisk.index.import_log import Mark
from ondisk.segment import Damage
from ondisk.step import DAY, Step, days_ago

_T = TypeVar("_T")
BATCH_SIZE = 100_000
"""Data in a batch, unless told otherwise."""

_PIECE_BYTES = 4 * 1024 * 1024
_PIECE_DATA = 10_000
_PULLED = 16
_REFUSALS = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one datum; `reason` says why one was refused."""

    status: Literal["imported", "duplicate", "replaced", "refused"]
    reason: str | None = None


IMPORTED, DUPLICATE, REPLACED = Outcome("imported"), Outcome("duplicate"), Outcome("replaced")


@dataclass(slots=True)
class AppendResult:
    """What an append did.

    Attributes:
        imported: data stored as new.
        duplicates: data left out, since the dataset holds others with the same unique fields.
        replaced: data stored in the place of others with the same unique fields.
        refused: data left out, since they cannot be stored; `refusals` says why.
        bytes: what was written of data, without padding.
        refusals: position in the input, counted from 0, and reason of the first 100 that were refused.
        damage: what of the input was no data and was left out, the first 100 places.
        notes: what else is to be said of the input, though nothing was lost.
        outcomes: one a datum, in the order of the input; None unless it was asked for.
        left_out: marks of what was staged and stored before: nothing of it was looked at, or is counted here.
    """

    imported: int = 0
    duplicates: int = 0
    replaced: int = 0
    refused: int = 0
    bytes: int = 0
    refusals: list[tuple[int, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] | None = None
    left_out: list[Mark] = field(default_factory=list)
    _segments: set[str] = field(default_factory=set, repr=False)

    @property
    def segments(self) -> int:
        """How many segments were written to."""
        return len(self._segments)

    @property
    def count(self) -> int:
        """How many data came in."""
        return self.imported + self.duplicates + self.replaced + self.refused

    def add(self, batch: Batch, stored: Stored) -> None:
        """Add what became of a batch."""
        before = self.count
        self.imported += stored.imported
        self.replaced += len(stored.replaced)
        self.duplicates += len(stored.duplicates)
        self.refused += len(batch.refused)
        self.bytes += stored.bytes
        self._segments |= stored.segments
        room = _REFUSALS - len(self.refusals)
        self.refusals += [(before + position, reason) for position, reason in batch.refused[:room]]
        self.damage += batch.damage[: _REFUSALS - len(self.damage)]
        self.notes += batch.notes
        if self.outcomes is not None:
            self.outcomes += _outcomes(batch, stored)

    def extend(self, other: AppendResult) -> None:
        """Add what another append did, as if its data had come behind this one's; `outcomes` are left alone."""
        room, before = _REFUSALS - len(self.refusals), self.count
        self.refusals += [(before + position, reason) for position, reason in other.refusals[:room]]
        self.damage += other.damage[: _REFUSALS - len(self.damage)]
        self.notes += other.notes
        self.imported += other.imported
        self.duplicates += other.duplicates
        self.replaced += other.replaced
        self.refused += other.refused
        self.bytes += other.bytes
        self._segments |= other._segments


@dataclass(slots=True)
class Stored:
    """What became of a batch's data; `replaced` and `duplicates` hold their places among those not refused."""

    imported: int = 0
    replaced: set[int] = field(default_factory=set)
    duplicates: set[int] = field(default_factory=set)
    bytes: int = 0
    segments: set[str] = field(default_factory=set)


def iterated(values: Iterable[_T], what: str) -> Iterator[_T]:
    """Begin to go through what a caller gave."""
    try:
        return iter(values)
    except TypeError:
        raise InvalidInput(f"{what}, not {values!r:.80}", hint="Put a single one into a list.") from None


def batches(data: Iterable[Datum], format: Format, batch_size: int) -> Iterator[Batch]:
    """Encode data in batches of at most `batch_size` data or `BATCH_BYTES`.

    Raises:
        InvalidInput: something among the data is no `Datum`.
    """
    iterator = iter(data)
    batch, weight, count = Batch(), 0, 1
    while piece := _piece(iterator, min(count, batch_size - len(batch))):
        encoded = format.encode(piece)
        batch.extend(encoded)
        size = sum(map(len, encoded.payloads))
        weight += size
        # So many data at a time that they are a few MiB; never many more than before, since the next may be larger.
        count = max(1, min(2 * len(piece), _PIECE_DATA, _PIECE_BYTES * len(piece) // (size + 1)))
        if len(batch) >= batch_size or weight >= BATCH_BYTES:
            yield batch
            batch, weight = Batch(), 0
    if len(batch):
        yield batch


def refuse_old(batch: Batch, config: DatasetConfig) -> None:
    """Refuse data that the dataset would delete at once."""
    age = config.delete_age
    if age is not None:
        batch.refuse_before(days_ago(age), f"it is older than delete_age, {age} days")


def _piece(iterator: Iterator[Datum], count: int) -> list[Datum]:
    """Take the next data, up to `count` or some MiB of bytes."""
    piece: list[Datum] = []
    weight = 0
    while len(piece) < count and weight < _PIECE_BYTES:
        some = list(islice(iterator, min(_PULLED, count - len(piece))))
        if not some:
            break
        _check_data(some)
        piece += some
        weight += sum(len(datum.data) for datum in some if type(datum.data) is bytes)
    return piece


def store(
    batch: Batch,
    format: Format,
    config: DatasetConfig,
    directory: Directory,
    transaction: Transaction,
    *,
    trusted: bool,
    archived: Archived | None = None,
) -> Stored:
    """Store a batch: rows first, which tells the duplicates; then the bytes of what is new; then the commit.

    Args:
        trusted: no sentinel stands, so the tail behind a segment's committed size may be cut off.
        archived: knows which of the data the archive has.

    Durability: rows inserted (uncommitted) → bytes at the ends of segments, then a header's count → each segment
        synced, directories of new ones too → commit. Killed before the commit: tails that nobody reads, cut off by the
        next append. On an error before the commit the bytes are taken back.

    Cost: a fixed number of system calls a touched segment, one commit; nothing is done per datum on disk.
    """
    if not batch.payloads:
        return Stored()
    with BatchWriter(directory, transaction, trusted=trusted) as writer:
        targets = _Targets(batch.reftimes, format, config.step, transaction, writer)
        seqs: Sequence[int] = transaction.take_seqs(len(batch.payloads))
        sizes = list(map(len, batch.payloads))
        offsets = targets.offsets(sizes)
        columns = (seqs, batch.reftimes, targets.ids(), offsets, sizes, *transaction.columns(batch.metadata))
        stored = Stored(imported=transaction.insert(zip(*columns, strict=True)))
        payloads, beside = batch.payloads, batch.beside
        kept_out, replacing = (set(), set()) if archived is None else archived.find(batch.reftimes, batch.metadata)
        if kept_out:
            stored.imported -= transaction.take_back(seqs[place] for place in kept_out)
        if stored.imported < len(payloads):
            rows = list(zip(*columns, strict=True))
            kept = _settle_duplicates(rows, config, transaction, stored, kept_out)
            if not kept:
                return stored
            payloads = [payloads[place] for place in kept]
            beside = [beside[place] for place in kept if beside]
            targets.keep(kept)
            moved = targets.offsets(list(map(len, payloads)))
            transaction.move(
                (offset, seqs[place]) for place, offset in zip(kept, moved, strict=True) if offset != offsets[place]
            )
            seqs = [seqs[place] for place in kept]
        _write(targets, payloads, beside, seqs, transaction, writer)
        stored.bytes = sum(map(len, payloads))
        stored.segments = {target.segment.name for target, _ in targets.runs}
        if archived is not None:
            stored.imported -= len(replacing - stored.replaced)
            stored.replaced |= replacing
            archived.replace_with(transaction)
        transaction.commit()
    return stored


class _Targets:
    """The segments that a batch appends to.

    Attributes:
        runs: the segments in the order of the data, each with the number of data that follow one another in it.
    """

    def __init__(
        self,
        reftimes: list[int],
        format: Format,
        step: Step,
        transaction: Transaction,
        writer: BatchWriter,
    ) -> None:
        self._format = format
        self._days = [reftime // DAY for reftime in reftimes]
        stems = {day: step.stem_of_day(day) for day in sorted(set(self._days))}
        names = {stem: f"{stem}.{format.extension}" for stem in stems.values()}
        known = transaction.segments(names.values())
        by_stem = {}
        for stem, name in names.items():
            interval = step.interval(stem)
            assert interval is not None
            by_stem[stem] = writer.target(known.get(name), name, interval, format)
        self._by_day = {day: by_stem[stem] for day, stem in stems.items()}
        self.runs = self._found_runs()

    def keep(self, places: list[int]) -> None:
        """Leave out all data but those at these places."""
        self._days = [self._days[place] for place in places]
        self.runs = self._found_runs()

    def _found_runs(self) -> list[tuple[Target, int]]:
        return [(self._by_day[day], len(list(run))) for day, run in groupby(self._days)]

    def ids(self) -> list[int]:
        """Give the segment id of each datum."""
        return [id_ for target, count in self.runs for id_ in repeat(target.segment.id, count)]

    def offsets(self, sizes: list[int]) -> list[int]:
        """Return the offset of each datum, laid one after the other at the ends of their segments."""
        ends = {target: target.start.end.length for target in self._by_day.values()}
        extents = iter(self._format.extents(sizes))
        offsets: list[int] = []
        for target, count in self.runs:
            offsets += accumulate(islice(extents, count), initial=ends[target])
            ends[target] = offsets.pop()
        return offsets


def _settle_duplicates(
    rows: list[tuple[Any, ...]],
    config: DatasetConfig,
    transaction: Transaction,
    stored: Stored,
    kept_out: set[int],
) -> list[int]:
    """Replace what is to be replaced, note what is left out; give the places of the rows that are in the index now.

    Args:
        kept_out: places of what is a duplicate of archived data.
    """
    first = rows[0][0]
    inserted = transaction.seqs_from(first)
    left_out = [place for place, row in enumerate(rows) if row[0] not in inserted]
    if config.replace == "no":
        stored.duplicates.update(left_out)
        return [place for place, row in enumerate(rows) if row[0] in inserted]
    version = None
    if config.replace == "newer":
        assert config.version_field is not None
        version = 5 + list(config.fields).index(config.version_field)
    stored.duplicates |= kept_out
    for place in left_out:
        if place in kept_out:
            continue
        replaced = transaction.replace(rows[place], first, version)
        (stored.replaced if replaced else stored.duplicates).add(place)
    remaining = transaction.seqs_from(first)
    return [place for place, row in enumerate(rows) if row[0] in remaining]


def _write(
    targets: _Targets,
    payloads: list[bytes],
    beside: list[bytes],
    seqs: Sequence[int],
    transaction: Transaction,
    writer: BatchWriter,
) -> None:
    """Write the data to their segments, make them durable, and save in the index how far the segments go now."""
    contents: dict[Target, tuple[list[bytes], list[bytes]]] = {}
    at = 0
    for target, count in targets.runs:
        mine = contents.setdefault(target, ([], []))
        mine[0].extend(payloads[at : at + count])
        mine[1].extend(beside[at : at + count])
        at += count

    def fill(target: Target, segment: DataWriter) -> None:
        segment.add(*contents[target])

    def renumber() -> None:
        transaction.move(zip(targets.offsets(list(map(len, payloads))), seqs, strict=True))

    writer.write(contents, fill, renumber)


def _check_data(piece: Sequence[object]) -> None:
    if set(map(type, piece)) != {Datum}:
        for each in piece:
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
