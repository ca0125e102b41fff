"""Mend a segment whose bytes have changed on disk, with good copies of its data from the other side.

If data have no checksums, nobody knows which of them have changed. So good copies of all are written into a copy of the
file, where the index says that the data are. If that has the checksum which the index has recorded, all of it is what
was stored, also the data without a copy. Otherwise bytes between the data have changed, too, or the data without a copy
may have: then it counts only if each datum has a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from ondisk.dataset.access import Access
from ondisk.datum import INTEGER_MAX, INTEGER_MIN
from ondisk.errors import AuthenticationFailed, KeyMissing
from ondisk.filesystem import WritableFile
from ondisk.formats import Format
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.successor import Successor, complete
from ondisk.replication.records import Records
from ondisk.replication.source import Entry, rows_in
from ondisk.segments import quarantine
from ondisk.segments.facts import checksum_of, facts_of, tail_of

_PIECE = 4 * 1024 * 1024  # bytes of data that are requested together
_WHY = "its bytes had changed on disk; a replica or its source had good copies of its data"


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
    successor = Successor(access, transaction, name)
    new = segment._replace(id=successor.id)
    with successor.create() as staged:
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
    successor.displace(segment)
    transaction.renew(segment, new)
    successor.appear(new)
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
