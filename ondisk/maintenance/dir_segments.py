"""Dir segments in maintenance: diagnose their directories, remove files without a datum, move them."""

from __future__ import annotations

import contextlib

from ondisk.dataset.access import Access
from ondisk.errors import DiskFull, OndiskError, StorageError
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.formats.base import DescribesFiles
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import (
    Known,
)
from ondisk.maintenance.replaced import discard_merged, keep
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.states import Diagnosis, Done, State
from ondisk.maintenance.successor import appear, complete, withdraw
from ondisk.segment import End, Laid, Start
from ondisk.segments import dir, quarantine
from ondisk.segments.dir import (
    METADATA,
    NEW_METADATA,
    MetadataFile,
    facts_in,
    open_directory,
    seen_in,
    seen_with_files,
)
from ondisk.segments.dir_writer import DirWriter
from ondisk.segments.facts import Seen, changed

_OWN = {METADATA, dir.SEQUENCE, NEW_METADATA}
_CHUNK = 1024 * 1024  # bytes of entries that are written together
_MOVED = 4 * 1024 * 1024  # bytes of files whose rows are read together
_READ = "an older query may still read its old files; the next writer after that query frees the space"
_OTHERS = "the segment does not have this file: of an interrupted append, or somebody else has added it"


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
