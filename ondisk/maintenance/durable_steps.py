"""The order of durable steps in which the files of a segment get a successor, or go.

Repack, move, salvage and heal decide what the successor contains; what they do with the files is here:

    1. create   the successor at its hidden name; write and sync it
    2. yield    give the present file its hidden name, too; sync the folder, and with it the name of the successor
    3. commit   the rows; a rollback undoes 1 and 2
    4. rename   the successor to the name of the segment; sync
    5. delete   the old file, when nobody reads an older snapshot

`ondisk.segments.generations` contains the steps themselves, and says what readers find after each of them. The
successor of a dir segment is a directory of links to its files, under new numbers; it yields its name instead of 2.

What others have written is synced before a commit that relies on it, too: `sync_found`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from stat import S_ISDIR, S_ISREG

from ondisk.dataset.access import Access
from ondisk.datum import INTEGER_MAX
from ondisk.errors import StorageError
from ondisk.filesystem import Directory, ReadableFile, is_denied
from ondisk.index import Copies, Row, Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.new_file import IndexPlaces, MergedPlaces, Written, lay, pieces_to_write
from ondisk.maintenance.observe import has_more
from ondisk.maintenance.replaced import keep
from ondisk.maintenance.states import Action, Diagnosis, Done, State
from ondisk.segment import End, Facts, Laid, Start
from ondisk.segments import dir, generations, quarantine
from ondisk.segments.concat_writer import keep_data_after
from ondisk.segments.dir import (
    MetadataFile,
    drop_folder,
    facts_in,
    open_directory,
    seen_with_files,
)
from ondisk.segments.dir_writer import DirWriter
from ondisk.segments.file_facts import Seen, changed, facts_of
from ondisk.segments.generations import hidden
from ondisk.step import Interval

_READ = "an older query may still read its old files; the next writer after that query frees the space"
_OTHERS = "the segment does not have this file: of an interrupted append, or somebody else has added it"
COPIES = "data in it were equal to data of other segments, and a rewrite keeps only those that have rows"
_MERGED = 4 * 1024 * 1024  # bytes of data that are merged together, or of files whose rows are read together


def successor(access: Access, transaction: Transaction, segment: Segment) -> Segment:
    """Return a segment with a new generation; its file, at its hidden name, goes with a rollback."""
    new = segment._replace(id=transaction.take_generation())
    transaction.on_rollback(lambda: access.directory.discard(hidden(new.name, new.id)))
    access.clean_up_later(new.name)
    return new


def appear(access: Access, transaction: Transaction, segment: Segment) -> None:
    """Rename a generation to the name of its segment, after the commit."""
    transaction.after_commit(lambda: complete(access, segment))


def complete(access: Access, segment: Segment) -> None:
    """Rename the present generation of a segment to its name, if a crash or a rollback has left that to do."""
    generations.complete(access.directory, segment.name, segment.id, access.committed(segment))


def displace(access: Access, old: Segment) -> None:
    """Give the present generation of a concat segment its hidden name, too."""
    complete(access, old)
    generations.link_old(access.directory, old.name, old.id, access.committed(old))


def withdraw(access: Access, transaction: Transaction, segment: Segment) -> None:
    """Move a segment that is dropped to its hidden name; a rollback moves it back.

    If that fails, the next opening for writing does it.
    """
    generations.move_old(access.directory, segment.name, segment.id, access.committed(segment))
    transaction.on_rollback(lambda: complete(access, segment))


class Rewriting:
    """Rewrites one segment to its next generation, in query order, in two steps around the end of a snapshot."""

    def __init__(self, access: Access, transaction: Transaction, known: Known) -> None:
        self._access = access
        self._transaction = transaction
        self._known = known
        self._old = known.segment
        self._freed = 0

    def write(self, snapshot: Snapshot, written: Written | None) -> ReadableFile | None:
        """Write the segment's new files, and save them in the index; the caller then ends the snapshot.

        Returns:
            The segment's old file, if it is a file; its space is freed when it is closed.

        Raises:
            Changed: the segment has changed since the other process read it.
            IntegrityError, SegmentMissing: the data cannot be read.
        """
        access, transaction, old = self._access, self._transaction, self._old
        interval = segment_rows.interval_of(snapshot, old)
        if access.config.is_sequence:
            interval = Interval.around((self._known.rows.begin, self._known.rows.end))
        is_dir = access.format(old.format).is_dir
        new = self._link_files(interval) if is_dir else self._write_file(snapshot, written)
        transaction.supersede(old)
        transaction.save_segment(new._replace(unproven=old.unproven), interval)
        if is_dir:
            withdraw(access, transaction, old)
        else:
            displace(access, old)
        before = access.directory.stat(old.name)
        if before is not None:  # its other name is that of the old generation
            self._freed += before.st_size if before.st_nlink <= 2 else 0
        appear(access, transaction, new)
        return None if is_dir else access.current().reader.file_of(old)

    def commit(self, diagnosis: Diagnosis) -> Done:
        """Commit, and put the new files in the place of the old ones.

        An error after the commit leaves them at their hidden name, where readers and the next opening find them.
        """
        self._transaction.commit()
        if not self._transaction.has_no_older_readers:
            return Done(self._old.name, diagnosis.state, (*diagnosis.reasons, _READ), Action.REPACK)
        return Done(self._old.name, diagnosis.state, diagnosis.reasons, Action.REPACK, self._freed)

    def _write_file(self, snapshot: Snapshot, written: Written | None) -> Segment:
        access, transaction, old = self._access, self._transaction, self._old
        format, new = access.format(old.format), Segment(0, old.name, old.format, End())
        new = successor(access, transaction, new)
        path = hidden(new.name, new.id)
        kept = len(access.directory.kept)
        keep_data_after(access.directory, old.name, old.end, format, verb="repack")
        for item in access.directory.kept[kept:]:  # else a full disk would get another copy each night
            transaction.on_rollback(partial(quarantine.drop, access.directory, item))
        if written is None:
            places = IndexPlaces(transaction, old, new)
            with generations.stage(access.directory, new.name, new.id) as staged:
                pieces, reader = partial(pieces_to_write, snapshot, self._known), access.current().reader
                end, facts = lay(format, snapshot, reader, [old], pieces, staged, places)
        else:
            end, facts = written.end, written.facts
            written.save(access.directory, transaction, old, new, self._known.rows.count)
            access.directory.rename(written.file, path)
        found = access.directory.stat(path)
        assert found is not None
        self._freed = -found.st_size
        return new._replace(end=end, facts=facts)

    def _link_files(self, interval: Interval) -> Segment:
        access, old, directory = self._access, self._old, self._access.directory
        access.clean_up_later(old.name)
        new = Segment(self._transaction.take_generation(), old.name, old.format, End())
        writer, numbers, _ = _link(access, self._transaction, old, new, None, interval)
        self._freed, is_touched = _keep_others_of(directory, old, numbers, verb="repack")
        writer.sync()
        end, _, facts = writer.appended(old.name)
        return new._replace(end=end, facts=_as_unread(facts) if is_touched else facts)


def drop(access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
    """Commit the removal of a segment from the index, then remove it from the disk."""
    directory, name, reasons, freed, lost = access.directory, diagnosis.segment, diagnosis.reasons, 0, 0
    is_missing = State.MISSING in diagnosis.state
    access.clean_up_later(name)
    if known is not None:
        complete(access, known.segment)
    found = None if is_missing else directory.stat(name)
    if known is None:  # no query reads it
        freed = 0 if found is None else _discard(directory, name, found)
    else:
        segment, format, is_kept = known.segment, access.format(known.segment.format), False
        if found is None:
            generations.set_aside(directory, name, segment.id, verb="repack")
        else:
            if format.is_dir:
                freed = _keep_others(directory, name, segment.end.length, set(), verb="repack")
            else:
                freed = _freed_by(found)
                # An event that Beats has not written completely is no data, as for Beats.
                if not segment.shared or has_more(directory.open_to_read(name), segment.end, format):
                    keep_data_after(directory, name, segment.end, format, verb="repack")
            is_kept = State.DELETE_AGE in diagnosis.state and keep(access, transaction, segment)
            withdraw(access, transaction, segment)
        lost = transaction.remove(segment, diagnosis.removal(is_kept=is_kept))
        transaction.commit()
        if found is not None and not transaction.has_no_older_readers:
            reasons, freed = (*reasons, _READ), 0
        freed = 0 if is_kept else freed
    return Done(name, diagnosis.state, reasons, diagnosis.action, freed, lost if is_missing else 0)


def _discard(directory: Directory, name: str, found: os.stat_result) -> int:
    """Remove an unknown segment, and return the bytes that this frees."""
    if S_ISREG(found.st_mode):
        freed = _freed_by(found)
        directory.discard(name)
    else:
        freed = _keep_others(directory, name, INTEGER_MAX, set(), verb="repack")
        drop_folder(directory, name, name)
    directory.sync(name.rpartition("/")[0])
    return freed


def sync_found(directory: Directory, names: Sequence[str]) -> None:
    """Make files and folders durable, and their names: whoever has made or moved them may not have synced.

    What somebody removes meanwhile, or this user may not read, is left out.
    """
    for name in names:
        _sync_all(directory, name)
    sync_above(directory, names)


def sync_above(directory: Directory, names: Sequence[str]) -> None:
    """Make the names of files durable, and those of the folders above, which somebody may have made."""
    for folder in {folder for name in names for folder in accumulate(name.split("/")[:-1], "{}/{}".format)}:
        with contextlib.suppress(FileNotFoundError):
            directory.sync(folder)
    directory.sync()


def _sync_all(directory: Directory, name: str) -> None:
    found = directory.stat(name)
    try:
        if found is not None and S_ISREG(found.st_mode):
            directory.open_to_read(name).sync()
        elif found is not None and S_ISDIR(found.st_mode) and not directory.sync_together([name]):
            with directory.inside(name) as folder:
                for entry in folder.entries():
                    _sync_all(folder, entry.name)
                folder.sync()
    except FileNotFoundError:
        return
    except StorageError as error:
        if not is_denied(error):
            raise


def _freed_by(unlinked: os.stat_result) -> int:
    """Return the bytes that unlinking a file frees: none while somebody else has a link to it."""
    return unlinked.st_size if unlinked.st_nlink == 1 else 0


def move(
    access: Access, transaction: Transaction, segment: Segment, name: str, there: Segment | None, interval: Interval
) -> bool:
    """Link or copy a segment to a name in another folder, or merge it with the segment there; change its rows.

    The caller commits. The new file is at a hidden name until then, and the old one keeps its own.

    Returns:
        Whether the files were linked, not copied.
    """
    if access.format(segment.format).is_dir:
        return _move_files(access, transaction, segment, name, there, interval)
    complete(access, segment)
    if there is not None:
        complete(access, there)
        interval |= access.ask(segment_rows.interval_of, there)
    new = successor(access, transaction, segment._replace(name=name))
    is_linked = False
    if there is None:
        is_linked = access.directory.link(segment.name, hidden(name, new.id))
        new = new._replace(facts=segment.facts if is_linked else _copy(access, segment, new))
        access.directory.sync(name.rpartition("/")[0])
        if generations.waiting(access.directory, name, new.id, access.committed(segment)) is None:
            raise changed(access.directory, segment.name)  # it was exchanged before
        transaction.move(segment, new, interval)
    else:
        end, facts = _merge(access, transaction, segment, there, new, interval)
        unproven = segment.unproven or there.unproven
        new = new._replace(end=end, facts=facts, copies=Copies.NONE, unproven=unproven)
        transaction.supersede(segment)
        transaction.supersede(there)
        transaction.save_segment(new, interval)
        transaction.set_unowned(new, access.format(new.format).holes(new.end, *transaction.sums_of(new)))
    appear(access, transaction, new)
    return is_linked


def _copy(access: Access, segment: Segment, new: Segment) -> Facts:
    """Copy the file to the hidden name of its new generation, on another filesystem; return its facts there.

    Durability: the caller syncs the folder.
    """
    file = access.directory.open_to_read(segment.name)
    generations.mark_moved(access.directory, new.name, new.id)  # until it is whole, it is no data for a lost index
    with generations.stage(access.directory, new.name, new.id) as copy:
        copy.copy(file, 0, file.size(), 0)
        copy.sync()
    access.directory.discard(hidden(new.name, new.id) + generations.MOVED)
    found = access.directory.stat(hidden(new.name, new.id))
    assert found is not None
    return facts_of(found, segment.facts.tail, segment.facts.checksum)


def _merge(
    access: Access, transaction: Transaction, segment: Segment, there: Segment, new: Segment, interval: Interval
) -> tuple[End, Facts]:
    """Write the data of both segments, in query order, to a new generation."""
    directory, format, both = access.directory, access.format(there.format), (there, segment)
    _keep_copies(directory, *both)
    for each in both:
        keep_data_after(directory, each.name, each.end, format, verb="move")

    def pieces() -> Iterator[list[Row]]:
        for piece in transaction.pieces_of(both, interval, _MERGED):
            yield [(*row, seq) for seq, *row in piece]

    places = MergedPlaces(transaction, segment, new)
    stage = generations.stage(directory, new.name, new.id)
    with access.current().index.snapshot() as snapshot, stage as staged:
        end, facts = lay(format, snapshot, access.current().reader, both, pieces, staged, places)
    displace(access, there)
    return end, facts


def _keep_copies(directory: Directory, *segments: Segment) -> None:
    """Link segments with second copies into quarantine: only data with rows are written or, of a folder, stay."""
    for each in segments:
        if each.copies is not Copies.NONE:
            quarantine.link(directory, each.name, verb="move", why=COPIES)


def _move_files(
    access: Access, transaction: Transaction, segment: Segment, name: str, there: Segment | None, interval: Interval
) -> bool:
    """Link the files under numbers above those that a segment of the new name has used."""
    _keep_copies(access.directory, segment, *([] if there is None else [there]))
    if there is not None:
        there = there._replace(copies=Copies.NONE)
    generation = transaction.take_generation()  # for a merge, too: else an index from before it would be believed
    new = there or Segment(generation, name, segment.format, End())
    writer, numbers, is_linked = _link(access, transaction, segment, new, there, interval)
    _, is_touched = _keep_others_of(access.directory, segment, numbers, verb="move")
    writer.sync()
    end, _, facts = writer.appended(name)
    facts = _as_unread(facts) if is_touched else facts
    transaction.supersede(segment)
    unproven = new.unproven or segment.unproven
    transaction.save_segment(new._replace(end=end, facts=facts, unproven=unproven), interval)
    transaction.after_commit(writer.reveal)
    return is_linked


def _link(
    access: Access, transaction: Transaction, old: Segment, new: Segment, there: Segment | None, interval: Interval
) -> tuple[DirWriter, set[int], bool]:
    """Link the files of a dir segment into the directory of another one, in query order; change their rows.

    Returns:
        What has written them, and is not synced yet; the numbers of the files; whether they were linked, not copied.
    """
    writer = DirWriter(access.directory)
    transaction.on_rollback(writer.undo)
    if there is None:
        writer.clear(new.name, new.id)  # what a killed move has left
        start = Start(Laid(b"", End()), is_new=True, checksum=0)
    else:
        _keep_newer(access.directory, old.name, there)
        start = writer.start(new.name, there.end, access.committed(there), trusted=False)
        # Files that a killed move has left have no datum, and nobody has removed their rows.
        transaction.add_deleted(there.id, start.laid.end.length - there.end.length, 0)
    numbers: list[tuple[int, int]] = []
    for piece in transaction.pieces_of([old], interval, _MERGED):
        first = start.laid.end.length + len(numbers)
        numbers += ((offset, to) for to, (*_, offset, _) in enumerate(piece, first))
        transaction.set_places((new.id, to, seq) for to, (seq, *_) in enumerate(piece, first))
    with open_directory(access.directory, old.name) as folder:
        is_linked = writer.adopt(new.name, new.id, start, folder, numbers, known=there is not None)
    return writer, {number for number, _ in numbers}, is_linked


def _keep_others_of(directory: Directory, segment: Segment, numbers: set[int], *, verb: str) -> tuple[int, bool]:
    """Move the files that a segment has never had to quarantine.

    Args:
        numbers: of the files that were linked elsewhere.

    Returns:
        The bytes of the others that are not linked; whether somebody has touched its files since they were read.
    """
    with open_directory(directory, segment.name) as folder:
        stats = facts_in(folder, segment.name, segment.end).checksum  # who changes a file later changes the linked one
        seen = seen_with_files(folder, segment.facts, segment.end.size, stats)
    if seen is Seen.OTHER:
        raise changed(directory, segment.name)
    is_touched = seen is not Seen.UNTOUCHED
    end = segment.end.length
    return _keep_others(directory, segment.name, end, numbers, verb=verb, is_touched=is_touched), is_touched


def _as_unread(facts: Facts) -> Facts:
    """Return the facts of files that a fix has not read yet."""
    return facts._replace(mtime=0, checksum=None)


def _keep_newer(directory: Directory, source: str, there: Segment) -> None:
    """Move the files above those of a segment to quarantine, but for those that are also in the segment `source`.

    A killed move has linked or copied them.
    """
    with open_directory(directory, source) as folder:
        entries = MetadataFile.of(folder)
        mine = {(entry.size, entry.checksum) for entry in map(entries.get, entries)} if entries is not None else set()
    with open_directory(directory, there.name) as folder:
        kept = {
            number
            for number, size in dir.files_of(folder, there.name).items()
            if number < there.end.length or (size, dir.checksum_of(folder, dir.file_name(there.name, number))) in mine
        }
    _keep_others(directory, there.name, there.end.length, kept, verb="move")


def _keep_others(
    directory: Directory, name: str, end: int, kept: set[int], *, verb: str, is_touched: bool = False
) -> int:
    """Move those files of a segment to quarantine that it has never had. Return the bytes of the other ones.

    Args:
        end: above the numbers of its files.
        is_touched: somebody has touched files, so their checksums are compared.
    """
    freed = 0
    with directory.inside(name) as folder:
        entries = MetadataFile.of(folder)
        for number, size in dir.files_of(folder, name).items():
            if number in kept:
                continue
            file = dir.file_name(name, number)
            is_known = number < end and entries is not None and entries.has_size(number, size)
            if is_known and is_touched:
                assert entries is not None
                is_known = dir.is_whole(folder, file, entries.get(number))
            if is_known:
                freed += size
            else:
                quarantine.keep(directory, f"{name}/{file}", verb=verb, why=_OTHERS, of=name)
    return freed
