"""Dir segments in maintenance: diagnose their directories, remove files without a datum, move them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ondisk.dataset.access import Access
from ondisk.errors import DiskFull, OndiskError, StorageError, counted
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.formats.base import DescribesFiles
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import (
    OTHER_BYTES,
    Circumstances,
    Known,
    OnDisk,
    diagnose,
    differences,
    judge,
    misnamed,
    touched,
)
from ondisk.maintenance.replaced import discard_merged, keep
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.states import Diagnosis, Done, State, Tally
from ondisk.maintenance.successor import appear, complete, withdraw
from ondisk.segment import End, Laid, ScanResult, Start
from ondisk.segments import dir, quarantine
from ondisk.segments.dir import (
    METADATA,
    NEW_METADATA,
    MetadataFile,
    checksum_of_stats,
    facts_in,
    is_refused,
    open_directory,
    seen_in,
    seen_with_files,
)
from ondisk.segments.dir_writer import DirWriter
from ondisk.segments.facts import Seen, changed
from ondisk.segments.generations import hidden

_OWN = {METADATA, dir.SEQUENCE, NEW_METADATA}
_CHUNK = 1024 * 1024  # bytes of entries that are written together
_MOVED = 4 * 1024 * 1024  # bytes of files whose rows are read together
_READ = "an older query may still read its old files; the next writer after that query frees the space"
_OTHERS = "the segment does not have this file: of an interrupted append, or somebody else has added it"


class Observed(NamedTuple):
    """What the index knows of a dir segment, and what is on disk; see `diagnose_files`."""

    name: str
    known: Known | None
    entry: Entry | None
    files: Files | None

    def diagnosed(self, at: Circumstances) -> Diagnosis:
        return diagnose_files(*self, at)


class DirSegments:
    """What maintenance does with one dir segment; the methods are those of `ConcatSegments`."""

    def is_readable(self, directory: Directory, name: str, format: Format) -> bool:
        """Return whether `.metadata` has an entry, or there are no files: a killed move leaves files without any."""
        with contextlib.suppress(FileNotFoundError, StorageError), directory.inside(name) as folder:
            entries = MetadataFile.of(folder)
            is_empty = all(each.name.startswith(".") for each in folder.entries())
            has_entries = entries is not None and (is_empty or any(True for _ in entries))
            return has_entries or (isinstance(format, DescribesFiles) and not is_empty)
        return False

    def observe(
        self,
        directory: Directory,
        snapshot: Snapshot,
        name: str,
        known: Known | None,
        entry: Entry | None,
        format: Format,
    ) -> Observed:
        files, path = None, name
        if entry is None and known is not None:  # it may not have its name yet
            alias = hidden(name, known.segment.id)
            if (found := directory.stat(alias)) is not None:
                entry, path = Entry.of(alias.rpartition("/")[2], found), alias
        if entry is not None and entry.kind == "directory":
            with contextlib.suppress(FileNotFoundError), directory.inside(path) as folder:
                files = _compare(folder, name, known, _rows(snapshot, known))
                files.has_metadata |= isinstance(format, DescribesFiles)
                if known is not None and known.deleted is not None:
                    known = replace(known, unexplained=max(0, files.removed.count - known.deleted))
        return Observed(name, known, entry, files)

    def scan(self, name: str, format: Format, source: ReadableFile | Directory) -> Iterator[ScanResult]:
        assert isinstance(source, Directory)
        return dir.scan(source, name, format.describe)

    def has_datum(self, access: Access, segment: Segment, offset: int) -> bool:
        with contextlib.suppress(FileNotFoundError, StorageError), access.directory.inside(segment.name) as folder:
            if seen_in(folder, segment.facts, segment.end.size) is not Seen.OTHER:
                return folder.stat(dir.file_name(segment.name, offset)) is not None
        return False

    def rewriting(self, access: Access, transaction: Transaction, known: Known) -> _Renumbering:
        return _Renumbering(access, transaction, known)

    def drop(self, access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
        name, state, freed = diagnosis.segment, diagnosis.state, 0
        if known is None:
            transaction.commit()
            return Done(
                name, state, diagnosis.reasons, diagnosis.action, remove(access.directory, name, set(), whole=True)
            )
        is_kept = State.MISSING not in state and keep(access, transaction, known.segment)
        if State.MISSING not in state:
            freed = self._move_old(access, transaction, known.segment)
        lost = transaction.remove(known.segment, diagnosis.removal(is_kept=is_kept))
        transaction.commit()
        freed = 0 if is_kept else freed
        lost = lost if State.MISSING in state else 0
        return Done(name, state, diagnosis.reasons, diagnosis.action, freed, lost)

    def _move_old(self, access: Access, transaction: Transaction, segment: Segment) -> int:
        """Move the directory of a segment to its hidden name, and return the bytes of its files.

        A rollback moves it back. The files go when no query reads them.
        """
        directory, name = access.directory, segment.name
        complete(access, segment)
        access.clean_up_later(name)
        if directory.stat(name) is None:
            return 0
        size = _keep_others(directory, segment, set())
        withdraw(access, transaction, segment)
        return size

    def move(
        self, access: Access, transaction: Transaction, segment: Segment, name: str, there: Segment | None
    ) -> bool:
        """Link the files under numbers above those that a segment of the new name has used."""
        writer = DirWriter(access.directory)
        transaction.on_rollback(writer.undo)
        if there is None:
            keep(access, transaction, segment)
        else:
            discard_merged(access, segment)
        with access.current().index.snapshot() as snapshot:
            interval = segment_rows.interval_of(snapshot, segment)
        new = there or Segment(transaction.take_generation(), name, segment.format, End())
        end, committed = (None, None) if there is None else (new.end, access.committed(new))
        if there is None:
            writer.clear(name, new.id)  # what a killed move has left
        start = writer.start(name, end, committed, trusted=False)
        first = start.laid.end.length
        numbers: list[tuple[int, int]] = []
        for piece in transaction.pieces_of([segment], interval, _MOVED):
            free = range(first + len(numbers), first + len(numbers) + len(piece))
            numbers += ((offset, to) for (_, _, _, offset, _), to in zip(piece, free, strict=True))
            transaction.set_places((new.id, to, seq) for (seq, *_), to in zip(piece, free, strict=True))
        with open_directory(access.directory, segment.name) as folder:
            is_linked = writer.adopt(name, new.id, start, folder, numbers, known=there is not None)
            if seen_in(folder, segment.facts, segment.end.size) is Seen.OTHER:
                raise changed(access.directory, segment.name)
        writer.sync()
        end, _, facts = writer.appended(name)
        transaction.supersede(segment)
        unproven = new.unproven or segment.unproven
        transaction.save_segment(new._replace(end=end, facts=facts, unproven=unproven), interval)
        if there is not None:  # files that a killed move has left have no datum, and nobody has removed their rows
            transaction.add_deleted(new.id, first - there.end.length, 0)
        transaction.after_commit(writer.reveal)
        return is_linked


class _Renumbering:
    """Rewrites one segment to its next generation: links its files, in query order, to numbers without gaps.

    Durability: writes the new directory under its hidden name, and renames the old one to its hidden name, before it
        commits; then renames the new one. See `ondisk.segments.generations`.
    """

    def __init__(self, access: Access, transaction: Transaction, known: Known) -> None:
        self._access = access
        self._transaction = transaction
        self._old = known.segment
        self._new = Segment(transaction.take_generation(), self._old.name, self._old.format, End())
        self._freed = 0
        self._is_kept = False

    def write(self, snapshot: Snapshot, written: Written | None) -> ReadableFile | None:
        directory, transaction, name = self._access.directory, self._transaction, self._old.name
        writer = DirWriter(directory)
        transaction.on_rollback(writer.undo)
        self._access.clean_up_later(name)
        interval = segment_rows.interval_of(snapshot, self._old)
        numbers: list[tuple[int, int]] = []
        for piece in transaction.pieces_of([self._old], interval, _MOVED):
            first = len(numbers)
            numbers += ((offset, new) for new, (_, _, _, offset, _) in enumerate(piece, first))
            places = ((seq, offset, new) for new, (seq, _, _, offset, _) in enumerate(piece, first))
            transaction.relocate(self._old, self._new, places)
        writer.clear(name, self._new.id)
        with open_directory(directory, name) as folder:
            start = Start(Laid(b"", End()), is_new=True, checksum=0)
            writer.adopt(name, self._new.id, start, folder, numbers, known=False)
            stats = facts_in(folder, name, self._old.end).checksum  # who changes a file later changes the linked one
            seen = seen_with_files(folder, self._old.facts, self._old.end.size, stats)
        if seen is Seen.OTHER:
            raise changed(directory, name)
        self._freed = _keep_others(
            directory, self._old, {number for number, _ in numbers}, is_touched=seen is not Seen.UNTOUCHED
        )
        writer.sync()
        end, _, facts = writer.appended(name)
        if seen is not Seen.UNTOUCHED:  # a fix has not read the files yet
            facts = facts._replace(mtime=0, checksum=None)
        self._new = self._new._replace(end=end, facts=facts, unproven=self._old.unproven)
        self._is_kept = keep(self._access, transaction, self._old)
        transaction.supersede(self._old)
        transaction.save_segment(self._new, interval)
        withdraw(self._access, transaction, self._old)
        return None

    def commit(self, diagnosis: Diagnosis) -> Done:
        name = self._old.name
        appear(self._access, self._transaction, self._new)
        self._transaction.commit()
        if not self._transaction.has_no_older_readers:
            return Done(name, diagnosis.state, (*diagnosis.reasons, _READ), "repack")
        return Done(name, diagnosis.state, diagnosis.reasons, "repack", 0 if self._is_kept else self._freed)


def _keep_others(directory: Directory, segment: Segment, kept: set[int], *, is_touched: bool = False) -> int:
    """Move those files of a segment to quarantine that it has never had. Return the bytes of the other ones.

    Args:
        is_touched: somebody has touched files, so their checksums are compared.
    """
    name, freed = segment.name, 0
    with directory.inside(name) as folder:
        entries = MetadataFile.of(folder)
        for number, size in dir.files_of(folder, name).items():
            if number in kept:
                continue
            file = dir.file_name(name, number)
            is_known = number < segment.end.length and entries is not None and entries.has_size(number, size)
            if is_known and is_touched:
                assert entries is not None
                is_known = dir.is_whole(folder, file, entries.get(number))
            if is_known:
                freed += size
            else:
                quarantine.keep(directory, f"{name}/{file}", verb="repack", why=_OTHERS, of=name)
    return freed


@dataclass(slots=True)
class Files:
    """The files in the directory of a segment, and how they differ from the index.

    Attributes:
        size: bytes of the data's files.
        seen: how the directory agrees with the facts in the index; None if the index does not know the segment.
        is_refused: a fix has read the directory with this `.metadata`, and found none of the segment's data in it.
        highest: the highest number of a file; -1 without one.
        sequence: the last number used; None if `.sequence` does not exist or is damaged.
        has_metadata: `.metadata` exists, or a fix can make it again.
        has_new_metadata: `.metadata.new` exists: a removal of files was interrupted.
        missing: data in the index without a file.
        resized: files with another size than in the index.
        repeated: data in the index that have the same file as another datum.
        removed: files of data that are no longer in the index.
        unknown: files that the index has never known.
        unused: numbers below the segment's next one that have neither a file nor a datum.
        misplaced: files whose datum a query returns before one with a lower number.
        strangers: names that do not belong to the segment.
    """

    size: int = 0
    seen: Seen | None = None
    is_refused: bool = False
    highest: int = -1
    sequence: int | None = None
    has_metadata: bool = False
    has_entries: bool = False
    has_new_metadata: bool = False
    missing: Tally = field(default_factory=Tally)
    resized: Tally = field(default_factory=Tally)
    repeated: Tally = field(default_factory=Tally)
    removed: Tally = field(default_factory=Tally)
    unknown: Tally = field(default_factory=Tally)
    unused: int = 0
    misplaced: Tally = field(default_factory=Tally)
    strangers: Tally = field(default_factory=Tally)


def _rows(snapshot: Snapshot, known: Known | None) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, size, reftime and seq of a segment's data, in the order of their numbers."""
    if known is not None and known.rows.count:
        yield from segment_rows.in_order_of_offset(snapshot, known.segment, known.rows.begin, known.rows.end)


def _compare(folder: Directory, name: str, known: Known | None, rows: Iterable[tuple[int, int, int, int]]) -> Files:
    """Compare the files of a segment with the index.

    Args:
        rows: number, size, reftime and seq of each datum, in the order of their numbers.

    Memory: a few numbers for each file.
    """
    files = Files(sequence=dir.read_sequence(folder))
    found_files: dict[int, Entry] = {}
    for entry in folder.entries():
        number = dir.number_of(name, entry.name)
        if entry.kind == "file" and not entry.looks_readable:
            folder.check_readable(entry.name)
        if number is not None and entry.kind == "file":
            found_files[number] = entry
        elif entry.name not in _OWN or entry.kind != "file":
            files.strangers.add(entry.name)
        elif entry.name == METADATA:
            files.has_metadata, files.has_entries = True, entry.size > 0
        elif entry.name == NEW_METADATA:
            files.has_new_metadata = True
    if known is not None:
        segment = known.segment
        stats = checksum_of_stats(found_files, segment.end.length)
        files.seen = seen_with_files(folder, segment.facts, segment.end.size, stats)
        files.is_refused = is_refused(folder, segment.facts)
    sizes = {number: each.size for number, each in found_files.items()}
    files.size, files.highest = sum(sizes.values()), max(sizes, default=-1)
    before, last, used = None, None, 0
    for number, size, *place in rows:
        file = dir.file_name(name, number)
        if number == before:
            files.repeated.add(file)
            continue
        if last is not None and place < last:
            files.misplaced.add(file)
        else:
            last = place
        used += 1
        before, found = number, sizes.pop(number, None)
        if found is None:
            files.missing.add(file)
        elif found != size:
            files.resized.add(f"{file}, which has {found} bytes instead of {size}")
    for number in sorted(sizes):
        is_known = known is not None and number < known.segment.end.length
        (files.removed if is_known else files.unknown).add(dir.file_name(name, number), sizes[number])
    if known is not None:
        files.unused = max(0, known.segment.end.length - used - files.removed.count)
    return files


def diagnose_files(
    name: str, known: Known | None, entry: Entry | None, files: Files | None, at: Circumstances
) -> Diagnosis:
    """Return the states of a dir segment, and the reasons; a pure function, like `diagnosis.diagnose`."""
    if files is None and entry is not None:
        return _not_a_directory(name, known, entry, at)
    if known is None and files is not None and files.highest < 0 and files.strangers.count:
        return Diagnosis(name, State.CORRUPTED, (*_strangers(files), "the index does not know it"))
    if known is None or files is None or not known.rows.count:
        on_disk = None if files is None else OnDisk(True, files.size, files.seen, is_empty=_is_empty(files, at))
        found = diagnose(name, known, on_disk, at, 0)
        return found if files is None else replace(found, reasons=(*found.reasons, *_strangers(files)))
    corrupted = [*_corrupted(known, files, at)]
    unaligned = [*differences(known, files.seen, "directory", "files")]
    dirty = [*_dirty(known, files)]
    found = judge(known, corrupted, unaligned, dirty, files.removed.size + files.unknown.size, files.size, at)
    state, reasons = found.state, found.reasons
    if files.sequence is None or files.sequence < files.highest:
        state |= State.UNALIGNED
        found_sequence = "is missing or damaged" if files.sequence is None else f"contains {files.sequence}"
        reason = f"{dir.SEQUENCE} {found_sequence}, but the highest file is {files.highest}: an append was interrupted"
        reasons = (reason, *reasons)
    found = replace(found, state=state, reasons=(*reasons, *_strangers(files)))
    return touched(found, known) if files.seen is Seen.SAME_TAIL else found


def _is_empty(files: Files, at: Circumstances) -> bool:
    """Return whether nothing is left of a segment.

    If the index may be lost, entries mean that files are lost, too.
    """
    return files.highest < 0 and not (at.needs_check and files.has_entries and not files.has_new_metadata)


def _not_a_directory(name: str, known: Known | None, entry: Entry, at: Circumstances) -> Diagnosis:
    """Return the diagnosis if the segment is not a directory."""
    if known is None:
        if entry.kind == "file" and not entry.size and at.interval(name) is not None:
            return Diagnosis(name, State.DELETED, ("it is empty, and the index does not know it",))
        return Diagnosis(name, State.CORRUPTED, ("it is not a directory, and the index does not know it",))
    reason = f"it is not a directory; left untouched; the index has {counted(known.rows.count, 'datum')} of it"
    return Diagnosis(name, State.UNALIGNED, (reason,))


def _corrupted(known: Known, files: Files, at: Circumstances) -> Iterator[str]:
    yield from misnamed(known, at.interval(known.segment.name), at, files.seen)
    if files.repeated.count:
        have = counted(files.repeated.count, "datum", "has")
        yield f"{have} the same file as another datum, the first {files.repeated.named[0]}"
    if files.missing.count:
        yield f"{counted(files.missing.count, 'file', 'is')} missing, the first {files.missing.named[0]}"
    if files.resized.count:
        yield f"{counted(files.resized.count, 'file', 'has')} another size, the first {files.resized.named[0]}"
    if not files.has_metadata:
        yield f"{METADATA} is missing"
    # Else it was noted about a directory that is not there any more.
    if known.damage is not None and (files.is_refused or files.seen not in OTHER_BYTES):
        yield known.damage


def _dirty(known: Known, files: Files) -> Iterator[str]:
    removed = files.removed
    if removed.count:
        is_deleted = known.deleted is not None and not known.unexplained
        what = "of deleted data, not yet repacked" if is_deleted else "without a datum in the index"
        yield f"{counted(removed.count, 'file', 'is')} {what}, the first {removed.named[0]}"
    if files.unknown.count:
        yield f"{counted(files.unknown.count, 'file', 'has')} no datum in the index, the first {files.unknown.named[0]}"
    if files.unused:
        yield f"{files.unused} numbers before, between or after its data have no file"
    if files.misplaced.count:
        yield f"{counted(files.misplaced.count, 'datum', 'is')} out of time order, the first {files.misplaced.named[0]}"
    if files.has_new_metadata:
        yield f"{NEW_METADATA} exists: a repack was interrupted"


def _strangers(files: Files) -> Iterator[str]:
    others = files.strangers
    if others.count:
        yield f"{others.count} names do not belong to the segment: {others.text()}"


def remove(directory: Directory, name: str, kept: set[int], *, whole: bool) -> int:
    """Remove the files of a segment, and return their bytes. A file that is not the segment's goes to quarantine.

    Args:
        whole: remove `.metadata` and `.sequence`, too, and the directory, unless it contains other files.

    Durability: none; the next repack removes what a power cut brings back. First `.metadata.new` is written without the
        entries of these files, so that `scan` does not treat the files as lost. Then the files are removed, and
        `.metadata` last, or replaced, so that every remaining file can still be read back into an index.
    """
    found = Entry.of(name, stat) if (stat := directory.stat(name)) is not None else None
    if found is None:
        return 0
    if found.kind == "file":  # an empty file
        directory.unlink(name)
        return found.size
    freed = 0
    with directory.inside(name) as folder:
        entries = MetadataFile.of(folder)
        is_written = _write_new_metadata(folder, kept)
        for number, size in dir.files_of(folder, name).items():
            if number in kept:
                continue
            file = dir.file_name(name, number)
            if entries is not None and entries.has_size(number, size):
                folder.unlink(file)
                freed += size
            else:
                quarantine.keep(directory, f"{name}/{file}", verb="repack", why=_OTHERS, of=name)
        if not whole:
            if is_written or _write_new_metadata(folder, kept):
                folder.rename(NEW_METADATA, METADATA)
            return freed
        folder.discard(METADATA, NEW_METADATA, dir.SEQUENCE)
    directory.remove_directory(name)
    return freed


def _write_new_metadata(folder: Directory, kept: set[int]) -> bool:
    """Write `.metadata.new` with the entries of the files that stay, and sync it.

    Returns:
        Whether it was written: not if `.metadata` is missing or damaged, or the disk is full.
    """
    folder.discard(NEW_METADATA)
    entries = MetadataFile.of(folder)
    if entries is None or entries.damage is not None:
        return False
    try:
        with folder.create_file(NEW_METADATA) as file:
            at, chunk = 0, b""
            for number in sorted(kept):
                if number in entries:
                    chunk += entries.frame(number)
                if len(chunk) >= _CHUNK:
                    file.write(at, chunk)
                    at, chunk = at + len(chunk), b""
            file.write(at, chunk)
            file.sync()
    except OndiskError as error:
        with contextlib.suppress(OndiskError):
            folder.discard(NEW_METADATA)
        if isinstance(error, DiskFull):  # as long as the index exists, entries without a file do no harm
            return False
        raise
    return True
