"""Heal a source: data that it has lost, or cannot read, return from a replica that has good copies of them.

A segment whose bytes have changed on disk is mended as a whole if that is possible, see below. Other data return one
by one. A datum returns under its own number, because the source and its replicas know it by that. What somebody deleted
at the source stays deleted, and so does a datum in whose place another one with the same unique fields is.

A segment is mended with good copies of its data from the other side, also in a replica. If data have no checksums,
nobody knows which of them have changed. So good copies of all are written into a copy of the file, where the index says
that the data are. If that has the checksum which the index has recorded, all of it is what was stored, also the data
without a copy. Otherwise bytes between the data have changed, too, or the data without a copy may have: then it counts
only if each datum has a copy.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain

from ondisk.dataset.access import Access
from ondisk.dataset.append import insert
from ondisk.dataset.dataset import Dataset
from ondisk.datum import INTEGER_MAX, INTEGER_MIN
from ondisk.errors import (
    AuthenticationFailed,
    FrameCorrupt,
    IntegrityError,
    KeyMissing,
    SegmentCorrupt,
    SegmentMissing,
    StateError,
    StorageError,
    command,
)
from ondisk.filesystem import WritableFile
from ondisk.formats import Batch, Format
from ondisk.index import Segment, Snapshot, changes, segment_rows
from ondisk.index.precedence import FIRST
from ondisk.index.transaction import Transaction
from ondisk.maintenance.durable_steps import appear, complete, displace, successor
from ondisk.replication import source_rows
from ondisk.replication.compare import Differs, OnRange, compared, needs_reconcile, situation
from ondisk.replication.feed import Kind
from ondisk.replication.records import Group, Records
from ondisk.replication.replica import ANSWER_BYTES, Replica
from ondisk.replication.source import DatasetSource, Entry, PathSource, errors_at, rows_in
from ondisk.replication.source_rows import LOST, Mode
from ondisk.segments import quarantine
from ondisk.segments.file_facts import checksum_of, facts_of, tail_of
from ondisk.segments.generations import stage

_PIECE = 4 * 1024 * 1024  # bytes of data that are requested together
_WHY = "its bytes had changed on disk; a replica or its source had good copies of its data"
_SHOWN = 100
_NEITHER = "neither the source nor the replica can read it; restore the file of one of them from a backup"


class Unmended(Exception):
    """A segment cannot be mended. Nothing has changed."""


def damaged_segments(access: Access, entries: Iterable[Sequence[Entry]]) -> list[tuple[Segment, int]]:
    """Return the segments of some data, and how many of these data each has; data elsewhere are skipped.

    Dir segments are, too: each datum is a file, which is replaced alone.
    """
    counts = Counter[int]()
    for some in entries:
        counts.update(row[1] for _, row in rows_in(access, [each.seq for each in some]))
    with access.current().index.snapshot() as snapshot:
        found = [(snapshot.fresh(snapshot.segment(id_)), count) for id_, count in counts.items()]
    return [(segment, count) for segment, count in found if not access.format(segment.format).is_dir]


def mend(access: Access, transaction: Transaction, segment: Segment, fetch: Callable[[Sequence[int]], Records]) -> int:
    """Write the next generation of a damaged segment, with good copies of its data; return the bytes of changed ones.

    Numbers and places of its data stay. The damaged file goes to quarantine. The caller commits, and holds the lock.

    Raises Unmended if it cannot be mended so; SegmentMissing or SegmentCorrupt if the index describes another file.

    Durability: the new file is synced, and the old one has a name in quarantine, before the commit.
    Cost: reads and writes the segment, and requests all its data. Deleted data are written once more.
    """
    directory, name, format = access.directory, segment.name, access.format(segment.format)
    file = access.current().reader.file_of(segment)
    if segment.end.compressed or segment.shared or _is_encrypted(format, segment, access):
        raise Unmended("its data are compressed or encrypted, or another program writes it")
    new = successor(access, transaction, segment)
    with stage(directory, new.name, new.id) as staged:
        staged.copy(file, 0, segment.end.size, 0)
        patch = _Patch(format, staged)
        for rows in _pieces(access, transaction, segment):
            patch.write(rows, fetch)
        checksum = checksum_of(staged, segment.end.size, format.mutable)
        if checksum != segment.facts.checksum:
            if patch.left:
                raise Unmended(f"{patch.left} of its data have no good copy elsewhere, and may be damaged, too")
            if format.begin().end.size:
                raise Unmended("bytes between its data have changed, too")
            if format.is_text:
                _blank_deleted(access, transaction, segment, format.padding, staged)
            checksum = checksum_of(staged, segment.end.size, format.mutable)
        staged.sync()
        facts = facts_of(staged.stat(), tail_of(staged, segment.end.size, format.mutable), checksum)
    new = new._replace(facts=facts)
    complete(access, segment)
    quarantine.link(directory, name, verb="replicate", why=_WHY)
    displace(access, segment)
    transaction.renew(segment, new)
    appear(access, transaction, new)
    return patch.size


class _Patch:
    def __init__(self, format: Format, file: WritableFile) -> None:
        self._format = format
        self._file = file
        self.size = 0  # bytes of the data that were changed so far
        self.left = 0  # data that have no copy, or one that does not fit

    def write(self, rows: dict[int, tuple[int, int, int]], fetch: Callable[[Sequence[int]], Records]) -> None:
        left = {*rows}
        for group in chain.from_iterable(records.groups for records in in_answers(fetch, sorted(rows))):
            if group.format != self._format.name:
                continue
            batch = self._format.received(group.payloads, group.beside)
            for position, reftime, payload in zip(batch.positions(), batch.reftimes, batch.payloads, strict=True):
                seq = group.seqs[position]
                if seq in left and (reftime, len(payload)) == (rows[seq][0], rows[seq][2]):
                    left.discard(seq)
                    self._put(rows[seq][1], payload)
        self.left += len(left)

    def _put(self, offset: int, payload: bytes) -> None:
        end, padding = offset + len(payload), self._format.padding
        is_ended = not padding or self._format.ends(self._file.read(end, len(padding)), len(padding))
        if is_ended and self._file.read(offset, len(payload)) == payload:
            return
        self._file.write(offset, payload if is_ended else payload + padding)
        self.size += len(payload)


def in_answers(fetch: Callable[[Sequence[int]], Records], seqs: Sequence[int]) -> Iterator[Records]:
    """Fetch data by their numbers, which ascend, until all were answered; yield each answer."""
    while seqs:
        yield (records := fetch(seqs))
        seqs = [seq for seq in seqs if seq > records.token.offset]


def _pieces(access: Access, transaction: Transaction, segment: Segment) -> Iterator[dict[int, tuple[int, int, int]]]:
    interval = segment_rows.interval_of(Snapshot.inside(access.current().index, transaction.connection), segment)
    for piece in transaction.pieces_of([segment], interval, _PIECE):
        yield {seq: (reftime, offset, size) for seq, reftime, _, offset, size in piece}


def _blank_deleted(
    access: Access, transaction: Transaction, segment: Segment, padding: bytes, file: WritableFile
) -> None:
    """Overwrite what is between data, of which nobody has a good copy, with blank lines, which a scan skips."""
    snapshot = Snapshot.inside(access.current().index, transaction.connection)
    end = 0
    for offset, size, _, _ in segment_rows.in_order_of_offset(snapshot, segment, INTEGER_MIN, INTEGER_MAX):
        _blank(file, end, offset, padding)
        end = offset + size + len(padding)
    _blank(file, end, segment.end.size, padding)


def _blank(file: WritableFile, begin: int, end: int, padding: bytes) -> None:
    for offset in range(begin, end, _PIECE):
        file.write(offset, padding * (min(_PIECE, end - offset) // len(padding)))


def _is_encrypted(format: Format, segment: Segment, access: Access) -> bool:
    try:
        return format.sealer(access.current().reader.file_of(segment), segment.name) is not None
    except (KeyMissing, AuthenticationFailed):
        return True


@dataclass(slots=True)
class Healed:
    source: str  # the UUID of the source's index
    lost: int = 0  # data that it had lost
    unreadable: int = 0  # data that it could not read
    left: int = 0  # data that did not return
    bytes: int = 0  # of the data that returned
    # number of the datum and reason, of the first 100 that did not return
    reasons: list[tuple[int, str]] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return self.lost + self.unreadable > 0

    def leave(self, reasons: Sequence[tuple[int, str]]) -> None:
        self.left += len(reasons)
        self.reasons += reasons[: _SHOWN - len(self.reasons)]


def heal(replicated: Replica, *, yes: bool, on_range: OnRange = lambda _done, _left: None) -> Healed:
    """Return data to the source of a replica.

    Args:
        yes: do it; else only return what would be done.

    Raises:
        StateError: the source is on a server, or a replica itself.
        TokenForeign: the same numbers mean different data in source and replica; see `reconcile`.
        Also the errors of `Dataset.append`.

    Durability: as an append, for some data at a time; then one commit of the replica. Tokens of other replicas expire.
    Locks: the writers' lock of the source, for each commit; then that of the replica.
    Cost: reads all data of source and replica.
    """
    source = replicated.source
    if not isinstance(source, PathSource):
        raise StateError("a source on a server cannot be healed", hint="Run it where the source is, with its path.")
    now = situation(replicated)
    if now.mode is not Mode.VALID or now.is_begun:
        raise needs_reconcile(replicated, "its numbers may not be those of its source")
    healed, access = Healed(now.uuid), replicated.dataset._access
    why = cache(partial(_why_unproven, access))
    with compared(replicated, now.uuid, Mode.VALID, 1, now.offset, on_range) as found:
        for entries in found.of(Differs.NEITHER):
            healed.leave([(entry.seq, _NEITHER) for entry in entries])
        if not yes:
            healed.lost, healed.unreadable = found.count(Differs.LOST), found.count(Differs.UNREADABLE)
            for entries in found.of(Differs.LOST):
                refused = _unproven(access, [entry.seq for entry in entries], why)
                healed.lost -= len(refused)
                healed.leave(refused)
            return healed
        with Dataset.open(source.path) as dataset:
            if dataset.config.replica:
                raise StateError(f"{dataset.path} is a replica", hint="A pull fetches what it lacks from its source.")
            healing = _Healing(replicated, dataset, healed)
            healing.mend(found.of(Differs.UNREADABLE))
            for differs in (Differs.UNREADABLE, Differs.LOST):
                for entries in found.of(differs):
                    seqs = {entry.seq for entry in entries}
                    healed.leave(refused := _unproven(access, sorted(seqs), why))
                    healing.give_back(sorted(seqs - {seq for seq, _ in refused}), differs)
            healing.settle()
    return healed


def _unproven(access: Access, seqs: Sequence[int], why: Callable[[Segment], str]) -> list[tuple[int, str]]:
    """Return which data of a replica may not have the bytes that it has received, and so must not return; and why.

    The source has no checksum of a datum that it has lost. In `seg` and `blob`, each datum carries its own. A text
    format has none: there the checksum of the replica's segment must be right, and no fix of the replica may have taken
    bytes of the segment over from another program.

    Args:
        why: `_why_unproven` of the replica, cached: it reads each segment of a text format as a whole.
    """
    reasons = ((row[-1], why(snapshot.segment(row[1]))) for snapshot, row in rows_in(access, seqs))
    return [(seq, reason) for seq, reason in reasons if reason]


def _why_unproven(access: Access, segment: Segment) -> str:
    """Return why nobody knows whether a segment has the bytes that were received; nothing if it has."""
    where = f"{segment.name} of the replica"
    if segment.unproven:
        return f"{where} was changed by another program: compare the datum by hand, and append it if it is right"
    if access.format(segment.format).has_checksums:
        return ""
    try:
        is_whole = access.committed(segment).is_whole_in(access.current().reader.file_of(segment))
    except (IntegrityError, SegmentMissing, StorageError):
        return ""  # fetching its data says why
    return "" if is_whole else f"{where} does not have the bytes that it had: fix the replica"


class _Refused(Exception):
    """Data cannot be stored; nothing was committed. `reasons`: number of the datum and reason."""

    def __init__(self, reasons: list[tuple[int, str]]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class _Healing:
    """Returns data of a replica to its source. Those that were lost are appended; the others are put where they are."""

    def __init__(self, replicated: Replica, dataset: Dataset, healed: Healed) -> None:
        self._replica = replicated
        self._dataset = dataset
        self._access = dataset._access
        self._healed = healed
        self._unmended: dict[str, str] = {}  # why segments were not mended, by their names
        self._fetch = partial(DatasetSource(replicated.dataset._access).fetch, max_bytes=ANSWER_BYTES)

    def mend(self, unreadable: Iterable[Sequence[Entry]]) -> None:
        access = self._access
        for segment, count in damaged_segments(access, unreadable):
            with access.transaction("heal") as transaction:
                if transaction.segments([segment.name]).get(segment.name) != segment:
                    continue  # a repack, or an append, has changed it
                try:
                    size = mend(access, transaction, segment, self._fetch)
                except (Unmended, IntegrityError, SegmentMissing) as error:
                    if isinstance(error, Unmended):
                        self._unmended[segment.name] = str(error)
                    continue
                transaction.check_space()
                transaction.commit()
            self._healed.unreadable += count
            self._healed.bytes += size

    def give_back(self, seqs: Sequence[int], differs: Differs) -> None:
        asked = sorted(self._damaged(seqs) if differs is Differs.UNREADABLE else seqs)
        for records in in_answers(self._fetch, asked):
            self._healed.leave(records.unreadable)
            for group in records.groups:
                stored = self._store(group, differs)
                if differs is Differs.LOST:
                    self._healed.lost += stored
                else:
                    self._healed.unreadable += stored

    def _damaged(self, seqs: Sequence[int]) -> set[int]:
        """Return the data that are damaged; leave those whose segment is another file, or none: it may return."""
        errors = errors_at(self._access, seqs)
        damaged = {seq for seq, error in errors.items() if isinstance(error, FrameCorrupt)}
        damaged |= self._changed([seq for seq, error in errors.items() if isinstance(error, SegmentCorrupt)])
        hint = f"{command('fix', self._dataset.path)} finds out what is lost"
        for seq, error in errors.items():
            if seq not in damaged:
                reason = self._unmended.get(error.context.get("segment", ""))
                self._healed.leave([(seq, "; ".join(filter(None, (error.message, reason, hint))))])
        return damaged

    def _changed(self, seqs: Sequence[int]) -> set[int]:
        """Return the data, with checksums of their own, whose segment ondisk wrote, and whose bytes have changed."""

        known: dict[int, bool] = {}  # segment → whether it has changed
        found = set()
        for snapshot, row in rows_in(self._access, seqs):
            if row[1] not in known:
                known[row[1]] = self._has_changed(snapshot, row[1])
            if known[row[1]]:
                found.add(row[-1])
        return found

    def _has_changed(self, snapshot: Snapshot, id_: int) -> bool:
        format = self._access.format(snapshot.segment(id_).format)
        if format.has_checksums and not format.is_dir:
            with contextlib.suppress(SegmentMissing, SegmentCorrupt):
                return self._access.current().reader.has_changed(snapshot, id_)
        return False

    def _store(self, group: Group, differs: Differs) -> int:
        """Store data of one format in the source; return how many. What it refuses is left."""
        left: set[int] = set()
        while (some := group.without(left)).seqs:
            try:
                return self._dataset._renewing(partial(self._commit, some, differs))
            except _Refused as refused:
                self._healed.leave(refused.reasons)
                left.update(seq for seq, _ in refused.reasons)
            except SegmentCorrupt as error:  # nothing can be appended to a segment of these data
                if len(some.seqs) > 1:
                    half = len(some.seqs) // 2
                    parts = {*some.seqs[:half]}, {*some.seqs[half:]}
                    return sum(self._store(some.without(part), differs) for part in parts)
                self._healed.leave([(some.seqs[0], error.message)])
                break
        return 0

    def _commit(self, group: Group, differs: Differs) -> int:
        access = self._access
        with access.transaction("heal") as transaction:
            format = access.format(group.format)
            self._check_still(transaction, group.seqs, differs)
            batch = format.received(group.payloads, group.beside)
            _check_taken(group.seqs, batch)
            if differs is Differs.UNREADABLE:
                _check_same(transaction, group.seqs, batch)
                transaction.drop_rows(group.seqs)
            into, trusted = (format, access.config, access.directory, transaction), not access.has_sentinel()
            stored = insert(batch, *into, trusted=trusted, seqs=group.seqs, precedence=FIRST)
            _check_taken(group.seqs, batch)
            here = changes.present(transaction, group.seqs)
            if len(here) < len(group.seqs):
                reason = "the source has another datum with the same unique fields"
                raise _Refused([(seq, reason) for seq in group.seqs if seq not in here])
            if differs is Differs.LOST:
                source_rows.found_again(transaction, group.seqs)
                transaction.expire_tokens()
            transaction.check_space()
            transaction.commit()
        self._healed.bytes += stored.bytes
        return len(here)

    def _check_still(self, transaction: Transaction, seqs: Sequence[int], differs: Differs) -> None:
        """Raise if some data are not lost, or not there, any more: somebody has deleted, healed or moved them."""
        here = changes.present(transaction, seqs)
        if differs is Differs.LOST:
            kinds = {target: each for target, _, each in DatasetSource(self._access).removed(seqs).notes}
            still = {seq for seq in seqs if seq not in here and kinds.get(seq) is Kind.LOST}
            reason = "it was deleted or has returned meanwhile"
        else:
            still, reason = here, "it was deleted meanwhile"
        if len(still) < len(seqs):
            raise _Refused([(seq, reason) for seq in seqs if seq not in still])

    def settle(self) -> None:
        """Note that the source has its data again. If the replica has all its changes, its token goes on to hold."""
        with self._access.current().index.snapshot() as snapshot:
            last = snapshot.dataset()["seq"]
            session = changes.session_at(snapshot, last)
        with self._replica._snapshot() as snapshot:
            noted = [each.seq for each in source_rows.differences(snapshot, LOST)]
        lost = {target for target, _, kind in DatasetSource(self._access).removed(noted).notes if kind is Kind.LOST}
        with self._replica.dataset._access.transaction("replicate") as transaction:
            now = source_rows.followed(transaction)
            source_rows.settle(transaction, [seq for seq in noted if seq not in lost])
            if now is not None and now.offset == last:
                source_rows.follow(transaction, now._replace(session=session))
            transaction.commit()


def _check_taken(seqs: Sequence[int], batch: Batch) -> None:
    if batch.refused:
        raise _Refused([(seqs[place], reason) for place, reason in batch.refused])


def _check_same(transaction: Transaction, seqs: Sequence[int], batch: Batch) -> None:
    known = source_rows.reftimes(transaction, seqs)
    other = [seq for seq, reftime in zip(seqs, batch.reftimes, strict=True) if known.get(seq) != reftime]
    if other:
        raise _Refused([(seq, "the copy has another reftime") for seq in other])
