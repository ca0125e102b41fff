"""Second copies: data that are in the files of the dataset and in those of an archive. Also files moved by hand.

A crash leaves them while a segment is moved, and people make them when they copy segments by hand. Only a copy whose
other copy was just read and found equal may be removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.archived import of_same_key
from ondisk.dataset.archives import Archives
from ondisk.dataset.layout import LAST
from ondisk.datum import Datum
from ondisk.errors import IntegrityError, SegmentMissing, StorageError
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.index import Row, Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.segment import ScanResult
from ondisk.segments import dir
from ondisk.segments.dir import METADATA, NEW_METADATA, MetadataFile, seen_in
from ondisk.segments.facts import SAME_BYTES
from ondisk.segments.generations import hidden
from ondisk.step import ALWAYS, NOTHING

_ROWS = 1024  # rows whose data are compared together
_CHUNK = 1024 * 1024  # bytes that are compared together
_OWN = {METADATA, NEW_METADATA, dir.SEQUENCE}


class OtherIndex:
    """The indices of the archives, while a fix works on the dataset; or the others, while it works on the archive.

    After a move, the files may still be in both places: a query still reads them, or a crash came before their removal.
    People copy segments by hand, too. A fix must not read these data a second time.

    Args:
        archives: of the dataset.
        access: what the fix works on.
    """

    def __init__(self, archives: Archives, access: Access) -> None:
        self._archives = archives
        self._fixed = access
        self._access = archives.counterpart(access)
        self._moved: dict[int, bool] = {}

    def copy_of(self, name: str) -> str | None:
        """Return where all data of a segment are, too, with the same bytes; None if they are nowhere else."""
        for access in self._archives.all():
            if access is not self._fixed and is_second_copy(self._fixed, name, access):
                return access.prefix + name
        return None

    def places(self, found: ScanResult) -> Iterator[tuple[int, int, tuple[Datum, bytes] | None]]:
        """Yield the positions in a scan result of data that the other index has.

        Skip data whose segment was moved here by hand; the fix of that segment handles them.

        Yields:
            The position of a datum; its seq in the other index; the datum and its bytes there, or None if it cannot be
            read there.
        """
        if self._access is None:
            return
        opened = self._access.current()
        with opened.index.snapshot() as snapshot:
            for place, (seq, *row) in of_same_key(snapshot, found.reftimes, found.metadata):
                read = self._read(opened, snapshot, tuple(row))
                if read is not None or not self._is_moved(snapshot.segment(row[1])):
                    yield place, seq, read

    def _is_moved(self, segment: Segment) -> bool:
        """Return whether a segment of the other index was moved to another place by hand."""
        if segment.id not in self._moved:
            assert self._access is not None
            is_missing = not _is_on_disk(self._access.directory, segment)
            self._moved[segment.id] = is_missing and moved_to(self._access, segment) is not None
        return self._moved[segment.id]

    def doubles(self) -> Iterator[list[int]]:
        """Yield the seqs of data whose unique values another datum of the other index has, some at a time.

        A datum with the same seq there is the same one: its move was interrupted.

        Cost: reads all rows, and looks up each in the other index. If `unique` has the reftime, only those in the time
            span of the other index.
        """
        if self._access is None:
            return
        with self._fixed.current().index.snapshot() as mine, self._access.current().index.snapshot() as theirs:
            span = segment_rows.span(theirs) or NOTHING
            for rows in segment_rows.rows_in(mine, span if "reftime" in mine.columns.unique_names else ALWAYS):
                reftimes, metadata = [row[0] for _, row in rows], [mine.canonical(row[4:]) for _, row in rows]
                found = [(rows[place][0], row[0]) for place, row in of_same_key(theirs, reftimes, metadata)]
                yield [seq for seq, other in found if seq != other]

    def give_up(self, seqs: Sequence[int], transaction: Transaction) -> None:
        """Remove data from the other index that cannot be read there, and that a fix is about to insert here.

        Without that, both indices have them as soon as somebody puts the other file back. A fix then reads that file
        again, and compares its data with those that count now.

        Args:
            transaction: inserts them here, and commits after this.

        Durability: one commit. A crash after it leaves data that no index has, in a file that the next fix reads.
        Locks: the other's writers' lock; the caller must hold the dataset's.
        """
        if self._access is None or not seqs or transaction.is_replica:
            return
        self._archives.complete_deletes()
        with self._access.transaction("fix") as other:
            other.advance_seq(transaction.seq)
            other.give_up(seqs)
            other.commit()
        transaction.advance_seq(other.seq)

    def _read(self, opened: Opened, snapshot: Snapshot, row: Row) -> tuple[Datum, bytes] | None:
        """Read a datum; return None if somebody has moved or damaged its file, and copied it back here."""
        with contextlib.suppress(IntegrityError, SegmentMissing, StorageError):
            ((datum,),) = opened.reader.with_data(snapshot, [row])
            return datum, next(opened.reader.contents(snapshot, [row]))
        return None


def is_second_copy(access: Access, name: str, other: Access) -> bool:
    """Return whether the files of a segment have only bytes that the segment of this name in another place has, too.

    Args:
        access: where the files are; its index has no rows of their data.
        other: the other dataset or archive, whose index has data of that segment.

    If the index of `access` may have lost data, equal data may have been stored one after the other, unless there is a
    `unique`; and after a delete in the other place, even then. In these cases only hard links count.

    Cost: reads both, unless they are hard links of each other.
    """
    if other.needs_check():
        return False
    with other.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(name)
        if segment is None or not segment_rows.count_of(snapshot, segment):
            return False
        is_read = not access.needs_check() or (bool(access.config.unique) and _has_no_holes(other, snapshot, segment))
    with contextlib.suppress(FileNotFoundError, StorageError):
        if is_dir(segment.format):
            return _has_files(access.directory, other.directory, name, is_read=is_read)
        theirs = _place(other.directory, segment)
        size = other.directory.stat(theirs)
        if size is None or size.st_size < segment.end.size:
            return False
        return _is_same(access.directory, name, other.directory, theirs, is_read=is_read)
    return False


def _has_no_holes(access: Access, snapshot: Snapshot, segment: Segment) -> bool:
    """Return whether each byte, or file, of a segment belongs to a datum."""
    format = access.format(segment.format)
    return format.holes(segment.end, *segment_rows.sums_of(snapshot, segment)) == 0


def lacks_other_copy(access: Access, segment: Segment) -> bool:
    """Return whether the other copy of a second copy has gone: an index has its data, and its file is missing or cut.

    If no index has them, they may have been deleted, or be in a place that is away.
    """
    for other in access.elsewhere():
        with other.current().index.snapshot() as snapshot:
            found = snapshot.segment_named(segment.name)
            if found is None or not segment_rows.count_of(snapshot, found):
                continue
        there = other.directory.stat(segment.name if is_dir(found.format) else _place(other.directory, found))
        if there is None or (stat.S_ISREG(there.st_mode) and there.st_size < found.end.size):
            return True
    return False


def moved_to(access: Access, segment: Segment, *, is_read: bool = False) -> Access | None:
    """Return where the files of a missing segment are now: somebody moved them to an archive, or from it.

    Args:
        is_read: read the files to prove that; else compare them with the facts.
    """
    for other in access.elsewhere():
        with contextlib.suppress(FileNotFoundError, StorageError):
            is_there = _is_moved_folder if is_dir(segment.format) else _is_moved_file
            if is_there(access, segment, other.directory, is_read) and (
                _is_fixed_too(other) or not lacks_rows(access, segment, other)
            ):
                return other
            if has_same_data(access, segment, other):
                return other
    return None


def has_same_data(access: Access, segment: Segment, other: Access) -> bool:
    """Return whether another index has all data of a segment under the numbers that they have here.

    An older index that was put back still has the rows of segments that were archived, and perhaps rewritten, since.
    """
    if other.needs_check():
        return False
    with access.current().index.snapshot() as mine, other.current().index.snapshot() as theirs:
        found = theirs.segment_named(segment.name)
        if found is None:
            return False
        count = segment_rows.count_of(mine, segment)
        if count > segment_rows.count_of(theirs, found):
            return False
        same: int = sum(one[3] == two[3] for one, two in _pairs(_rows(mine, segment), _rows(theirs, found)))
        return same == count > 0


def lacks_rows(access: Access, segment: Segment, other: Access) -> bool:
    """Return whether another index knows a segment of this name with fewer data: they were deleted from its file.

    A file that is equal to that of a missing segment may be all that is left of its data.
    """
    with access.current().index.snapshot() as mine, other.current().index.snapshot() as theirs:
        found = theirs.segment_named(segment.name)
        return found is not None and segment_rows.count_of(theirs, found) < segment_rows.count_of(mine, segment)


def is_all_that_is_left(access: Access, segment: Segment) -> bool:
    """Return whether the files of a segment have data of one that is missing elsewhere, and that were deleted here."""
    for other in access.elsewhere():
        with other.current().index.snapshot() as snapshot:
            missing = snapshot.segment_named(segment.name)
        if missing is None or _is_on_disk(other.directory, missing) or not lacks_rows(other, missing, access):
            continue
        with contextlib.suppress(FileNotFoundError, StorageError):
            is_there = _is_moved_folder if is_dir(segment.format) else _is_moved_file
            if is_there(other, missing, access.directory, False):
                return True
    return False


def unknown_copy(access: Access, name: str) -> str | None:
    """Return where there is perhaps a second copy of a segment: a file with its name that the index there lacks."""
    for other in access.elsewhere():
        if other.directory.stat(name) is None:  # most often, and cheaper than a snapshot
            continue
        with other.current().index.snapshot() as snapshot:
            if snapshot.segment_named(name) is None:
                return str(other.path / name)
    return None


def is_known_there(access: Access, segment: Segment, other: Access) -> bool:
    """Return whether the index of the place that a segment was moved to describes it, or the same fix reads it."""
    if _is_fixed_too(other):
        return True
    with other.current().index.snapshot() as there:
        found = there.segment_named(segment.name)
    if found is not None and (found.end.size, found.facts.tail) == (segment.end.size, segment.facts.tail):
        return True
    return has_same_data(access, segment, other)


def _is_fixed_too(other: Access) -> bool:
    """Return whether a fix of the dataset fixes this archive, too, or it is the dataset."""
    return other.path.name == LAST or not other.prefix


def _is_on_disk(directory: Directory, segment: Segment) -> bool:
    return any(directory.stat(each) is not None for each in (segment.name, hidden(segment.name, segment.id)))


def _is_moved_file(access: Access, segment: Segment, directory: Directory, is_read: bool) -> bool:
    file, committed = directory.open_to_read(segment.name), access.committed(segment)
    if committed.seen_in(file, file.stat()) not in SAME_BYTES:
        return False
    return not is_read or committed.is_whole_in(file) is not False


def _is_moved_folder(access: Access, segment: Segment, directory: Directory, is_read: bool) -> bool:
    with directory.inside(segment.name) as folder:
        if seen_in(folder, segment.facts, segment.end.size) not in SAME_BYTES:
            return False
        if not is_read:
            return True
        numbers = {dir.number_of(segment.name, entry.name) for entry in folder.entries() if entry.kind == "file"}
    with access.current().index.snapshot() as snapshot:
        rows = segment_rows.rows_by_offset(snapshot, segment)
        return all(row[0] in numbers for some in rows for row in some)


def remove_copy(access: Access, name: str) -> None:
    """Remove a second copy. Its index does not know the segment, so no query reads it."""
    from ondisk.maintenance.dir_segments import remove

    found = access.directory.stat(name)
    if found is not None and stat.S_ISDIR(found.st_mode):
        remove(access.directory, name, set(), whole=True)
    else:
        access.directory.discard(name)
    access.directory.sync(name.rpartition("/")[0])


def is_verified(
    main: Opened, mine: Snapshot, segment: Segment, archive: Opened, theirs: Snapshot, other: Segment
) -> bool:
    """Return whether the data that two indices have of a segment can be read from both, with the same bytes.

    Args:
        segment, other: the segment in the index of the dataset, and in that of the archive.

    Cost: reads these data from both files, unless the files are hard links of each other.
    """
    with contextlib.suppress(IntegrityError, SegmentMissing, StorageError):
        if not is_dir(segment.format) and segment.end == other.end:
            one, two = (opened.reader.file_of(each) for opened, each in ((main, segment), (archive, other)))
            if os.path.samestat(os.fstat(one.fileno()), os.fstat(two.fileno())):
                return two.size() >= other.end.size
        pairs = _pairs(_rows(mine, segment), _rows(theirs, other))
        while some := [*islice(pairs, _ROWS)]:
            ours = main.reader.contents(mine, [row for row, _ in some])
            others = archive.reader.contents(theirs, [row for _, row in some])
            if any(one != two for one, two in zip(ours, others, strict=True)):
                return False
        return True
    return False


def _rows(snapshot: Snapshot, segment: Segment) -> Iterator[tuple[int, Row]]:
    """Yield seq and row of one segment's data, in the order of seq."""
    for some in segment_rows.in_order_of_seq(snapshot, segment):
        yield from some


def _pairs(mine: Iterator[tuple[int, Row]], theirs: Iterator[tuple[int, Row]]) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of the data that are in both: they have the same seq and reftime."""
    other = next(theirs, None)
    for seq, row in mine:
        while other is not None and other[0] < seq:
            other = next(theirs, None)
        if other is None:
            return
        if other[0] == seq and other[1][0] == row[0]:
            yield row, other[1]


def _place(directory: Directory, segment: Segment) -> str:
    """Return where the file of a concat segment is; see "Generations" in docs/architecture.md."""
    alias = hidden(segment.name, segment.id)
    return segment.name if directory.stat(alias) is None else alias


def _is_same(one: Directory, name: str, two: Directory, other: str, *, is_read: bool) -> bool:
    """Return whether two files are one, or if `is_read` the second begins with the bytes of the first."""
    mine, theirs = one.open_to_read(name), two.open_to_read(other)
    if os.path.samestat(os.fstat(mine.fileno()), os.fstat(theirs.fileno())):
        return True
    if not is_read or mine.size() > theirs.size():
        return False
    at, size = 0, mine.size()
    while at < size:
        chunk = mine.read(at, _CHUNK)
        if not chunk or chunk != theirs.read(at, len(chunk)):
            return False
        at += len(chunk)
    return True


def _has_files(one: Directory, two: Directory, name: str, *, is_read: bool) -> bool:
    """Return whether a directory has only files that the other one has, with the same metadata.

    Files with the same number are compared, or hard links.
    """
    with one.inside(name) as mine, two.inside(name) as theirs:
        files = {entry.name: entry for entry in theirs.entries() if dir.number_of(name, entry.name) is not None}
        here, there = mine.stat("."), theirs.stat(".")
        assert here is not None
        assert there is not None
        links = {entry.inode: entry for entry in files.values()} if here.st_dev == there.st_dev else {}
        entries = MetadataFile.of(mine), MetadataFile.of(theirs)
        for entry in mine.entries():
            if entry.kind != "file":
                return False
            if entry.name in _OWN:
                continue
            other = links.get(entry.inode) or files.get(entry.name)
            if other is None or other.size != entry.size:
                return False
            if entry.inode not in links and not _is_same(mine, entry.name, theirs, other.name, is_read=is_read):
                return False
            if _beside(entries[0], name, entry.name) not in (None, _beside(entries[1], name, other.name)):
                return False
    return True


def _beside(entries: MetadataFile | None, name: str, file: str) -> bytes | None:
    """Return reftime and metadata of a file as they are stored; None if it has none."""
    number = dir.number_of(name, file)
    return entries.get(number).beside if entries is not None and number is not None and number in entries else None
