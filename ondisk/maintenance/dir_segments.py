"""Dir segments in maintenance: what their directories hold, what that says of them, and what a repack removes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ondisk.dataset.access import Access
from ondisk.errors import DiskFull, OndiskError
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.index import Segment, Snapshot, Transaction, segment_rows
from ondisk.maintenance.diagnosis import Circumstances, Known, OnDisk, diagnose, judge, misnamed
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.segment_kind import Move, Rewriting, SegmentKind
from ondisk.maintenance.states import Diagnosis, Done, State
from ondisk.segment import End, ScanResult
from ondisk.segments import DirWriter, dir
from ondisk.segments.dir import open_directory

_OWN = {dir.METADATA, dir.SEQUENCE, dir.STAGED}
_NAMED = 3  # of what is no file of a segment, so many are told
_PIECE = 1024 * 1024
_MOVED = 4 * 1024 * 1024  # bytes of files whose rows are read together
_READ = "an older query may still read them; a repack after that query deletes them"


class DirSegments(SegmentKind):
    """See the module's docstring."""

    is_one_file: ClassVar[bool] = False

    def complete(self, directory: Directory, segment: Segment) -> None:
        """Do nothing: a dir segment has no generations; what looks like one was put there by others."""

    def diagnose(
        self,
        directory: Directory,
        snapshot: Snapshot,
        name: str,
        known: Known | None,
        entry: Entry | None,
        at: Circumstances,
        format: Format,
    ) -> Diagnosis:
        files = None
        if entry is not None and entry.kind == "directory":
            with contextlib.suppress(FileNotFoundError), directory.inside(name) as folder:
                files = look(folder, name, entry.mtime, _rows(snapshot, known))
        return diagnose_files(name, known, entry, files, at)

    def scan(self, directory: Directory, name: str, format: Format, file: ReadableFile | None) -> Iterator[ScanResult]:
        return dir.scan(directory, name, format.describe)

    def has_datum(self, directory: Directory, segment: Segment, offset: int) -> bool:
        return directory.stat(f"{segment.name}/{dir.file_name(segment.name, offset)}") is not None

    def rewriting(self, access: Access, transaction: Transaction, known: Known) -> Rewriting:
        return _Removing(access, transaction, known)

    def drop(self, access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
        lost = 0 if known is None else transaction.remove(known.segment)
        transaction.commit()
        if State.MISSING in diagnosis.state:
            return Done(diagnosis.segment, diagnosis.state, diagnosis.reasons, diagnosis.action, 0, lost)
        waiting = None if known is None else diagnosis.action
        return _removed(access.directory, transaction, diagnosis, set(), diagnosis.action, waiting, whole=True)

    def drop_moved(self, access: Access, transaction: Transaction, segment: Segment) -> int:
        transaction.remove(segment, moved=True)
        transaction.commit()
        return remove(access.directory, segment.name, set(), whole=True) if transaction.unread else 0

    def move(self, source: Access, target: Access, segment: Segment) -> Move:
        return _Move(source, target, segment)


class _Removing:
    """The removal of the files of one segment that have no datum. The others stay as they are.

    Durability: the index is committed first; the files go only when nobody reads an older state of it. Killed between,
        files without a datum are left: the next repack removes them.
    """

    def __init__(self, access: Access, transaction: Transaction, known: Known) -> None:
        self._directory = access.directory
        self._transaction = transaction
        self._known = known
        self._kept: set[int] = set()

    def write(self, snapshot: Snapshot, written: Written | None) -> ReadableFile | None:
        self._kept = {number for number, _ in _rows(snapshot, self._known)}
        return None

    def commit(self, diagnosis: Diagnosis) -> Done:
        self._transaction.commit()
        return _removed(self._directory, self._transaction, diagnosis, self._kept, "repack", None, whole=False)


def _removed(
    directory: Directory,
    transaction: Transaction,
    diagnosis: Diagnosis,
    kept: set[int],
    action: str | None,
    waiting: str | None,
    *,
    whole: bool,
) -> Done:
    """Remove files after a commit, if nobody reads them any more, and return what was done.

    Args:
        action: what was done if the files are removed; `waiting`: if they are still read.
    """
    name, state, reasons = diagnosis.segment, diagnosis.state, diagnosis.reasons
    if directory.stat(name) is None:
        return Done(name, state, reasons, action)
    if not transaction.unread:
        return Done(name, state, (*reasons, _READ), waiting)
    return Done(name, state, reasons, action, remove(directory, name, kept, whole=whole))


class _Move(Move):
    """The move of one segment: its files get second names, with numbers above those that the target has given out."""

    def copy(self, transaction: Transaction) -> None:
        there = transaction.segments([self._segment.name]).get(self._segment.name)
        name = self._segment.name
        writer = DirWriter(self._target.directory)
        transaction.on_rollback(writer.undo)
        if there is None:
            self._check_free(name)
        with self._source.current().index.snapshot() as snapshot:
            interval = segment_rows.interval_of(snapshot, self._segment)
            transaction.advance_seq(snapshot.dataset()["seq"])
            new = there or Segment(transaction.take_generation(), name, self._segment.format, End())
            start = writer.start(name, new.end, trusted=False)
            shift = start.end.length
            self._insert(snapshot, transaction, new, shift)
            placed = [
                offset for piece in transaction.pieces_of([new], interval, _MOVED) for _, _, _, offset, _ in piece
            ]
            numbers = sorted(offset - shift for offset in placed if offset >= shift)
            with open_directory(self._source.directory, name) as folder:
                self.is_linked = writer.adopt(name, start, folder, numbers, known=there is not None)
        writer.sync()
        transaction.save_segment(replace(new, end=writer.end(name)), interval, writer.mtime(name))


@dataclass(slots=True)
class Tally:
    """How many files are so, and the first of them."""

    count: int = 0
    first: str = ""

    def add(self, file: str) -> None:
        self.count += 1
        self.first = self.first or file


@dataclass(slots=True)
class Files:
    """What the directory of a segment holds, and how it differs from what the index says.

    Attributes:
        size: bytes of its data's files.
        mtime: of `.sequence`, else of the directory; nanoseconds since 1970.
        highest: the highest number of a file; -1 without one.
        sequence: the last number given out, as `.sequence` says; None where that says nothing.
        has_metadata: there is a `.metadata`; `has_entries`: something stands in it.
        is_removed: a removal of files has begun, and not ended.
        missing: data of the index without a file.
        resized: files with another size than the index says.
        repeated: data of the index that have a file which another has.
        unknown: files without a datum in the index; `unknown_size` their bytes.
        strangers: names of what is none of the segment's.
    """

    size: int = 0
    mtime: int = 0
    highest: int = -1
    sequence: int | None = None
    has_metadata: bool = False
    has_entries: bool = False
    is_removed: bool = False
    missing: Tally = field(default_factory=Tally)
    resized: Tally = field(default_factory=Tally)
    repeated: Tally = field(default_factory=Tally)
    unknown: Tally = field(default_factory=Tally)
    unknown_size: int = 0
    strangers: list[str] = field(default_factory=list)


def _rows(snapshot: Snapshot, known: Known | None) -> Iterator[tuple[int, int]]:
    """Give number and size of a segment's data, in the order of their numbers."""
    if known is not None and known.count:
        for number, size, *_ in segment_rows.in_order_of_offset(snapshot, known.segment, known.begin, known.end):
            yield number, size


def look(folder: Directory, name: str, mtime: int, rows: Iterable[tuple[int, int]]) -> Files:
    """Compare the files of a segment with what the index says.

    Args:
        mtime: of the directory.
        rows: number and size of each datum, in the order of their numbers.

    Memory: a few numbers for each file.
    """
    files = Files(mtime=mtime, sequence=dir.read_sequence(folder))
    sizes = {}
    for entry in folder.entries():
        number = dir.number_of(name, entry.name)
        if number is not None and entry.kind == "file":
            sizes[number] = entry.size
        elif entry.name not in _OWN or entry.kind != "file":
            files.strangers.append(entry.name)
        elif entry.name == dir.SEQUENCE:
            files.mtime = max(entry.mtime, entry.ctime)  # what is moved, or put back, keeps its mtime
        elif entry.name == dir.METADATA:
            files.has_metadata, files.has_entries = True, entry.size > 0
        else:
            files.is_removed = True
    files.size, files.highest = sum(sizes.values()), max(sizes, default=-1)
    before = None
    for number, size in rows:
        file = dir.file_name(name, number)
        if number == before:
            files.repeated.add(file)
            continue
        before, found = number, sizes.pop(number, None)
        if found is None:
            files.missing.add(file)
        elif found != size:
            files.resized.add(f"{file}, which has {found} bytes instead of {size}")
    for number in sorted(sizes):
        files.unknown.add(dir.file_name(name, number))
    files.unknown_size = sum(sizes.values())
    return files


def diagnose_files(
    name: str, known: Known | None, entry: Entry | None, files: Files | None, at: Circumstances
) -> Diagnosis:
    """Say in which states a dir segment is, and why; a pure function, as `diagnosis.diagnose`.

    Args:
        entry: what stands in its place; None where nothing does.
        files: what is in it; None where it is no directory.
    """
    if files is None and entry is not None:
        return _stray(name, known, entry, at)
    if known is None and files is not None and files.highest < 0 and files.strangers:
        return Diagnosis(name, State.CORRUPTED, (*_strangers(files), "the index does not know it"))
    if known is None or files is None or not known.count:
        on_disk = None if files is None else OnDisk(True, files.size, files.mtime, is_empty=_is_empty(files, at))
        found = diagnose(name, known, on_disk, at, 0)
        return found if files is None else replace(found, reasons=(*found.reasons, *_strangers(files)))
    corrupted = [*_corrupted(known, files, at)]
    dirty = [*_dirty(files)]
    found = judge(known, corrupted, dirty, files.unknown_size, files.size, at)
    state, reasons = found.state, found.reasons
    if files.sequence is None or files.sequence < files.highest:
        state |= State.UNALIGNED
        said = "is missing" if files.sequence is None else f"says {files.sequence}"
        reason = f"{dir.SEQUENCE} {said}, files go up to {files.highest}: an append did not come through"
        reasons = (reason, *reasons)
    return replace(found, state=state, reasons=(*reasons, *_strangers(files)))


def _is_empty(files: Files, at: Circumstances) -> bool:
    """Tell whether nothing is left of a segment; entries tell of files that are lost, where the index may be, too."""
    return files.highest < 0 and not (at.needs_check and files.has_entries and not files.is_removed)


def _stray(name: str, known: Known | None, entry: Entry, at: Circumstances) -> Diagnosis:
    """Judge what is no directory."""
    if known is None:
        if entry.kind == "file" and not entry.size and at.interval(name) is not None:
            return Diagnosis(name, State.DELETED, ("it is empty, and the index does not know it",))
        return Diagnosis(name, State.CORRUPTED, ("no directory stands there, and the index does not know it",))
    reason = f"no directory stands in its place; what does is left there; the index knows {known.count} data of it"
    return Diagnosis(name, State.UNALIGNED, (reason,))


def _corrupted(known: Known, files: Files, at: Circumstances) -> Iterator[str]:
    yield from misnamed(known, at.interval(known.segment.name), at)
    if files.repeated.count:
        yield f"{files.repeated.count} data have the file of another, the first {files.repeated.first}"
    if files.missing.count:
        yield f"{files.missing.count} files are missing, the first {files.missing.first}"
    if files.resized.count:
        yield f"{files.resized.count} files have another size, the first {files.resized.first}"
    if not files.has_metadata:
        yield f"{dir.METADATA} is missing"
    if known.damage is not None:
        yield known.damage


def _dirty(files: Files) -> Iterator[str]:
    if files.unknown.count:
        yield f"{files.unknown.count} files are of no data of the index, the first {files.unknown.first}"
    if files.is_removed:
        yield f"{dir.STAGED} is there: a repack did not come through"


def _strangers(files: Files) -> Iterator[str]:
    if files.strangers:
        named = ", ".join(files.strangers[:_NAMED]) + " …" * (len(files.strangers) > _NAMED)
        yield f"{len(files.strangers)} names in it are none of its files', and left there: {named}"


def remove(directory: Directory, name: str, kept: set[int], *, whole: bool) -> int:
    """Remove the files of a segment but for those of some numbers; gives their bytes.

    Args:
        whole: remove all else that is the segment's, too, and the directory, unless something else stands in it.

    Durability: none: what a power cut brings back is removed by the next repack. `.metadata` goes last, or is written
        anew then, so that every file that is left can be read back into an index; what is to go is told before, so that
        none of it is missed then.
    """
    found = Entry.of(name, stat) if (stat := directory.stat(name)) is not None else None
    if found is None:
        return 0
    if found.kind == "file":  # an empty one
        directory.unlink(name)
        return found.size
    freed = 0
    with directory.inside(name) as folder:
        is_staged = _stage_entries(folder, kept)
        for number, size in dir.files_of(folder, name).items():
            if number not in kept:
                folder.unlink(dir.file_name(name, number))
                freed += size
        if not whole:
            if is_staged or _stage_entries(folder, kept):
                folder.rename(dir.STAGED, dir.METADATA)
            return freed
        for own in (dir.METADATA, dir.STAGED, dir.SEQUENCE):
            with contextlib.suppress(FileNotFoundError):
                folder.unlink(own)
    directory.remove_directory(name)
    return freed


def _stage_entries(folder: Directory, kept: set[int]) -> bool:
    """Write what is to be `.metadata`, with the entries of some files only; tells whether that went through. Synced."""
    with contextlib.suppress(FileNotFoundError):
        folder.unlink(dir.STAGED)
    entries = dir.Entries.of(folder)
    if entries is None or entries.damage is not None:
        return False
    try:
        with folder.create_file(dir.STAGED) as file:
            at, piece = 0, b""
            for number in sorted(kept):
                if number in entries:
                    piece += entries.frame(number)
                if len(piece) >= _PIECE:
                    file.write(at, piece)
                    at, piece = at + len(piece), b""
            file.write(at, piece)
            file.sync()
    except OndiskError as error:
        with contextlib.suppress(FileNotFoundError, OndiskError):
            folder.unlink(dir.STAGED)
        if isinstance(error, DiskFull):  # entries of files that are gone harm nobody who has the index
            return False
        raise
    return True
