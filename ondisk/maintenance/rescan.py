"""Read a segment's data back from its files into the index: the part of a fix that works on one segment."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate, compress

from ondisk.dataset.access import Access
from ondisk.dataset.position import begin_again, believed, is_consumed, is_passed, is_unread, position
from ondisk.errors import IndexCorrupt, StorageError, command, counted
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Batch, Format
from ondisk.index import Copies, Segment
from ondisk.index.aside import Aside
from ondisk.index.transaction import Transaction
from ondisk.maintenance.check import read_content
from ondisk.maintenance.concat_segments import scan as scan_file
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.dir_segments import remove
from ondisk.maintenance.duplicates import Duplicates
from ondisk.maintenance.inspect import interval_of, not_rewritten
from ondisk.maintenance.relaid import have_old_bytes
from ondisk.maintenance.scanned import Scanned
from ondisk.maintenance.second_copy import copy_of
from ondisk.maintenance.states import Diagnosis, Done
from ondisk.maintenance.tally import Tally
from ondisk.segment import REMEDY, End, Facts, ScanResult
from ondisk.segments import generations, quarantine
from ondisk.segments.concat_writer import SegmentWriter
from ondisk.segments.dir import METADATA, complete_folder, facts_in, files_of, raise_sequence, scan, seen_with_files
from ondisk.segments.facts import SAME_BYTES, Seen, checksum_of, facts_of, refused, tail_of
from ondisk.step import ALWAYS, NOTHING, Interval, place_of

_PIECE = 1024 * 1024
_SALVAGED = "it is damaged; what is whole in it was written to a new file"
_DELETE_AGAIN = "delete them again"
_DELETE_EXTRA = "run `ondisk replicate SOURCE REPLICA --reconcile --delete-extra`"
_ENCRYPTED_AGAIN = "its data are encrypted differently from the stored data, so the two cannot be compared"
_DIFFERENT = "it has data with the same unique values as other data but different contents; the other data were kept"


class NeedsRewrite(Exception):
    """A segment cannot be read in place, and must be rewritten; see `ScanResult.foreign`."""


class DataAfterDamage(Exception):
    """The index knows data that a scan cannot find: after damage, or in a file of which nothing can be read."""

    def __init__(self, segment: Segment, reason: str, facts: Facts | None = None) -> None:
        super().__init__(reason)
        self.segment = segment
        self.facts = facts
        """What to record so that this file is not read again, if it is not the one that the index describes."""


class Misnamed(Exception):
    """Data of a segment are of other times than its name says. Where another segment has them, too, that one counts."""


class Rescan:
    """Reads a segment's data back from its file into the index, in one transaction.

    If several data have the same unique values, fix keeps one: the last one in a segment, or the one in the segment it
    read first. The others are second copies if they are equal; a repack removes them, and data that were deleted or
    replaced. If one of them differs, the file gets a second name in quarantine.

    Args:
        puts_off: raise `Misnamed` if data of a segment without rows are of other times than its name says.
    """

    def __init__(
        self,
        access: Access,
        transaction: Transaction,
        name: str,
        known: Known | None,
        *,
        puts_off: bool = False,
    ) -> None:
        self._puts_off = puts_off and (known is None or not known.count)
        self._access = access
        self._directory = access.directory
        self._transaction = transaction
        self._name = name
        self._format: Format = access.format(known.segment.format) if known is not None else access.format_of(name)
        interval = interval_of(access, name)
        if interval is None:
            hint = f"Run {command('fix', access.path, '--rebuild', '--yes')}."
            raise IndexCorrupt(f"{name} is not the name of a segment of this dataset", hint=hint, segment=name)
        self._interval: Interval = interval
        # The interval to save: that of the name; in a sequence, that of the data.
        self._span = NOTHING if interval == ALWAYS else interval
        self._known = known
        copies = Copies.NONE if known is None else known.segment.copies
        # Where all data of a second copy are, too.
        self._copied = copy_of(access, name) if known is None or copies is Copies.ALL else None
        self._duplicates = Duplicates(access, transaction, self._format, has_copies=copies is Copies.SOME)
        self._damage = Tally()
        self._file: ReadableFile | None = None
        self._foreign: os.stat_result | None = None  # of a file that is not the one that the index describes
        self._is_directory = False
        # Another segment has its name, and the consumer of the queue has read all of the old one.
        self._is_renewed = False
        self._is_queue = access.config.is_sequence and not place_of(name)
        self._replaced_from: int | None = None  # the first datum in a changed file that the index did not know
        self._is_read_again = False  # the consumer of the queue has the position of another file
        self._aside: Aside | None = None  # the rows of the index, which are replaced by what the bytes say
        self._forgotten = 0  # data that are gone
        self._without_row = 0  # data that were only counted, and are gone
        self._changed = 0  # data that were found again, and do not have their bytes
        self._missing = 0
        self._found = 0  # data in the file, also those that do not count
        self._sums: tuple[int, int] | None = 0, 0  # of all rows inserted, count and bytes; None if some replace others
        self._new = 0  # changes that the index did not know: data, except deleted ones, and data that they replaced
        self._returned = 0  # data in a changed file that the index did not know: perhaps deleted ones
        self._remedy = REMEDY
        self._unread: str | None = None  # why its file is kept, although it has no data
        self._is_emptied = False  # it has no data, and the lost index may have known some
        self._moved: str | None = None  # the item in quarantine that the segment is now
        self._is_salvaged = False  # the original is in quarantine
        self._is_encrypted = False
        self._is_exposed = False  # it is not encrypted, although new segments are

    @property
    def folder(self) -> str:
        """The directory that contains the segment."""
        return self._name.rpartition("/")[0]

    def done(self, diagnosis: Diagnosis, *reasons: str) -> Done:
        """Return the result, with what the segment contains that is not in the index now."""
        all_reasons = [*diagnosis.reasons, *reasons]
        if self._copied is not None:
            all_reasons.append(
                f"{self._copied} has the same bytes, so `ondisk repack --second-copies` removes this copy"
            )
        if self._moved is not None:
            all_reasons.append(f"it is now {self._moved}")
        if self._is_read_again:
            all_reasons.append("its consumer has read another file of this name, and begins again at its beginning")
        if self._is_exposed:
            all_reasons.append("it is not encrypted: whoever wrote it needed no key")
        if self._damage.count:
            all_reasons.append(self._damaged())
        returned = self._returned
        # In a queue, Beats makes new segments: nothing in them was ever deleted.
        if self._known is None and not self._is_queue and not self._access.needs_check():
            returned = self._new
        if returned:
            how = _DELETE_EXTRA if self._access.config.replica else _DELETE_AGAIN
            read = counted(returned, "datum", "was")
            all_reasons.append(f"{read} read that the index did not have; if you had deleted any, {how}")
        if self._forgotten:
            all_reasons.append(f"{counted(self._forgotten, 'datum', 'is')} gone from the segment")
        if self._without_row:
            all_reasons.append(f"{counted(self._without_row, 'datum', 'is')} gone that the index had counted: {REMEDY}")
        if self._changed and self._is_encrypted:
            reset = command("fix", self._access.path, "--acknowledge", "--yes")
            all_reasons.append(f"{_ENCRYPTED_AGAIN}: one counts as lost; if the file is right, {reset} resets that")
        elif self._changed:
            all_reasons.append(f"some of its data have other bytes than the stored ones: {REMEDY}")
        if self._duplicates.replacing:
            unreadable = counted(self._duplicates.replacing, "datum", "is")
            all_reasons.append(f"{unreadable} unreadable in another segment, so the copy here is used now")
        if self._duplicates.different:
            have = counted(self._duplicates.different, "datum", "has")
            different = f"{have} the same unique values as other data but different contents"
            all_reasons.append(f"{different}: its file was linked into quarantine")
        if (skipped := self._duplicates.skipped).count:
            were = counted(skipped.count, "datum", "was")
            all_reasons.append(f"{were} skipped, because other segments have them: {skipped.text()}")
        if self._missing:
            gone = f"up to {counted(self._missing, 'datum', 'is')} lost"
            all_reasons.append(f"{gone}: {self._format.shortage}; {self._remedy}")
        if self._is_salvaged and not self._damage.count and not self._missing:
            all_reasons.append(self._remedy)
        # A datum that is gone is most likely what was at a damaged place.
        lost = max(self._forgotten + self._without_row + self._changed, self._damage.count + self._missing)
        return Done(self._name, diagnosis.state, tuple(all_reasons), "rescan", 0, lost, returned=returned)

    def in_place(self, *, trusted: bool = False, is_believed: bool = True, scanned: Scanned | None = None) -> bool:
        """Insert all data of the segment into the index, and leave its files as they are. The caller commits.

        If the file is not the one that the index describes, the index gets what the bytes say: a datum that is found
        again keeps its `seq`, and data that are not are forgotten.

        Args:
            trusted: the index has all data of every dir segment that it knows.
            is_believed: the index describes the bytes, as far as they agree with the facts.
            scanned: the result of an earlier scan of the file.

        Returns:
            Whether there is anything to commit.

        Raises:
            Changed: the file has changed since that scan.
            StorageError: it has changed while it was read.
            NeedsRewrite: it must be rewritten.
            DataAfterDamage: the index knows data that were not found: after damage, after the end, or all of them.
            Misnamed: see `puts_off`.
        """
        if self._format.is_dir:
            return self._in_directory(trusted=trusted, is_believed=is_believed)
        transaction, known = self._transaction, self._known
        segment = self._segment()
        if known is not None:
            generations.complete(self._directory, self._name, segment.id, self._access.committed(segment))
        # The file at the segment's name counts, and readers would prefer the hidden name; `commit` makes that durable.
        generations.set_aside(self._directory, self._name, segment.id, verb="fix")
        file = self._file = self._directory.open_to_read(self._name)
        before = file.stat()
        is_matched = known is not None and not (is_believed and self._is_same(segment, file))
        if is_matched and self._access.committed(segment).seen_in(file, before) not in SAME_BYTES:
            self._foreign = before
            self._copied = copy_of(self._access, self._name)
        self._may_compare(segment, is_same=known is not None and not is_matched)
        with self._matching(is_matched):
            if known is not None:
                transaction.forget_blocks(segment)
            results = (
                scan_file(self._name, self._format, file) if scanned is None else scanned.results(self._access, file)
            )
            end = self._add_all(segment, results)
            self._compare(segment._replace(end=end), file)
        if known is None and self._access.needs_check() and self._format.is_empty(file):
            self._is_emptied = True
            return True
        if (
            known is not None
            and known.count
            and not is_matched
            and (end.length < known.data_end or (end.compressed and self._damage.count))
        ):
            reason = f"it can be read up to byte {end.length}, but has data up to byte {known.data_end}; {REMEDY}"
            raise DataAfterDamage(segment, self._damaged() if self._damage.count else reason)
        left = file.size() - end.size
        if not self._found and not self._damage.count and left not in (0, len(self._format.seal(end))):
            # Else it would look like one whose data were all deleted, and a repack would remove it.
            self._unread = f"no datum can be read in its {file.size()} bytes; {REMEDY}"
        end, facts = self._format.found(end), self._facts(file, end, before)
        found = segment._replace(
            end=end, facts=facts, unread=False, copies=self._copies(), unproven=self._is_unproven()
        )
        self._save(found._replace(shared=segment.shared or (self._foreign is not None and self._is_queue)))
        if self._is_queue and self._replaced_from is not None:
            self._is_read_again = is_passed(found, self._replaced_from, position(self._directory))
        self._explain(segment, end)
        return True

    def _may_compare(self, segment: Segment, *, is_same: bool) -> None:
        """Prepare to compare the data that are found.

        Args:
            is_same: the index describes the bytes.
        """
        is_counted = self._known is not None and self._known.deleted is not None
        explained = segment.end.length if is_same and is_counted and not segment.unread else 0
        self._duplicates.may_compare(segment, explained)

    def _is_unproven(self) -> bool:
        """Return whether bytes in the file may not be those that were stored: no checksum vouches for them."""
        if self._known is not None and self._known.segment.unproven:
            return True
        is_new = self._known is None or self._forgotten or self._returned or self._without_row
        return bool(self._changed or (is_new and not self._format.has_checksums))

    def _copies(self) -> Copies:
        """Return which data in the file are second copies."""
        if self._copied is not None:
            return Copies.ALL
        return Copies.SOME if self._duplicates.has_copies else Copies.NONE

    def keep(self) -> None:
        """Link the file into quarantine if data in it differ from those that count; move it there if it was emptied.

        Call it before the commit.
        """
        if self._is_emptied:
            self._moved = self._item(quarantine.keep(self._directory, self._name, verb="fix", why=quarantine.EMPTIED))
        if self._duplicates.different and not self._is_salvaged:
            quarantine.link(self._directory, self._name, verb="fix", why=_DIFFERENT)

    def renew_facts(self) -> bool:
        """Record the facts of a file that somebody has touched, if its committed bytes are still the same.

        Returns:
            Whether they are.
        """
        segment = self._segment()
        if self._format.is_dir:
            return self._in_directory(trusted=True, is_believed=True, renews_only=True)
        file = self._file = self._directory.open_to_read(self._name)
        before = file.stat()
        if self._access.committed(segment).is_whole_in(file) is not True:
            return False
        end = self._format.found(segment.end)
        self._save(segment._replace(end=end, facts=self._facts(file, end, before)), keep_damage=True)
        return True

    def is_another_file(self) -> bool:
        """Return whether the committed bytes of a concat segment have changed, although they end as before."""
        if self._format.is_dir:
            return False
        file = self._directory.open_to_read(self._name)
        return self._access.committed(self._segment()).is_whole_in(file) is False

    def _is_same(self, segment: Segment, file: ReadableFile) -> bool:
        """Return whether the index may be believed about a file."""
        assert self._known is not None
        if self._known.unexplained or self._known.without_row:
            return False
        committed = self._access.committed(segment)
        is_whole = committed.is_whole_in(file)
        return committed.seen_in(file, file.stat()) in SAME_BYTES if is_whole is None else is_whole

    def _facts(self, file: ReadableFile, end: End, before: os.stat_result) -> Facts:
        """Return the facts of a file that was read.

        Args:
            before: its stat before it was read.
        """
        mutable = self._format.mutable
        facts = facts_of(file.stat(), tail_of(file, end.size, mutable), checksum_of(file, end.size, mutable))
        if facts.mtime != before.st_mtime_ns or file.size() != before.st_size:
            raise StorageError(f"{file.path} was changed while it was read", hint="Fix it again.")
        return facts

    def _item(self, kept: str) -> str:
        """Return the name of an item as the dataset's quarantine lists it, also if its segment is in the archive."""
        return kept

    def _explain(self, segment: Segment, end: End) -> None:
        """Note that all bytes of the segment were read: those that belong to no datum are no data to lose."""
        sums = (self._sums if self._known is None else None) or self._transaction.sums_of(segment)
        self._transaction.set_unowned(segment, self._format.holes(end, *sums))

    def begin_again(self) -> None:
        """Let the consumer of the queue read what it has not read, if it has the position of another file."""
        if self._is_read_again:
            begin_again(self._directory, self._name)
            again = partial(begin_again, self._directory, self._name, is_committed=True)
            self._transaction.after_commit(again)

    def account_for(self) -> None:
        """Note how many changes were found that the index did not know."""
        if self._new:
            self._transaction.account_for(self._new)

    def sync(self) -> None:
        """Make the files durable: the process that wrote them may not have synced them."""
        if self._file is not None:
            self._file.sync()
        elif self._is_directory and not self._directory.sync_together([self._name]):
            with self._directory.inside(self._name) as folder:
                for entry in folder.entries():
                    if entry.kind == "file":
                        folder.open_to_read(entry.name).sync()
                folder.sync()

    def _in_directory(self, *, trusted: bool, is_believed: bool, renews_only: bool = False) -> bool:
        """Insert the data of a dir segment into the index; if it is not a directory, remove its data from the index.

        Args:
            trusted, is_believed: as in `in_place`.
            renews_only: only record the facts, if its files are what the index says.
        """
        known = self._known
        try:
            self._directory.inside(self._name).close()
        except StorageError:
            assert known is not None, "an unknown segment that is not a directory is CORRUPTED"
            self._forgotten = self._transaction.remove(known.segment, lost=True)
            return True
        self._is_directory = True
        segment = self._segment()
        complete_folder(self._directory, self._name, segment.id, self._access.committed(segment))
        with self._directory.inside(self._name) as folder:
            stats = facts_in(folder, self._name, segment.end).checksum
            seen = seen_with_files(folder, segment.facts, segment.end.size, stats)
            raise_sequence(folder, self._name)
            before = facts_in(folder, self._name, segment.end)
            is_same = known is not None and is_believed and not segment.unread and seen in SAME_BYTES
            is_same = is_same and (known is None or not (known.unexplained or known.without_row))
            is_same = is_same and (seen is Seen.UNTOUCHED or self._has_whole_files(segment))
            is_single = self._copied is None and segment.copies is Copies.ALL
            end, is_read = segment.end, not (is_same and trusted) or is_single
            if is_read:
                if renews_only:
                    return False
                if seen not in SAME_BYTES:
                    self._foreign = folder.stat(METADATA)
                    self._copied = copy_of(self._access, self._name)
                self._may_compare(segment, is_same=is_same)
                # In the folder that the index describes, or that a salvage has copied, a number has had only one file.
                may_move = seen not in SAME_BYTES and not self._is_salvaged
                with self._matching(known is not None and not is_same, may_move=may_move):
                    end = self._add_all(segment, scan(folder, self._name, self._format.describe))
            is_unknown = known is None and self._access.needs_check()
            self._is_emptied = is_unknown and not files_of(folder, self._name) and not self._damage.count
            if self._is_emptied:
                return True
            if facts_in(folder, self._name, segment.end) != before:
                raise StorageError(f"{folder.path} was changed while it was read", hint="Fix it again.")
            facts, unread = facts_in(folder, self._name, end), segment.unread and not is_read
            found = segment._replace(end=end, facts=facts, unread=unread, copies=self._copies())
            self._save(found, keep_damage=not is_read)
            if is_read:
                left = sum(number < end.length for number in files_of(folder, self._name))
                self._transaction.set_unowned(segment, left - self._transaction.sums_of(segment)[0])
        return True

    def _has_whole_files(self, segment: Segment) -> bool:
        """Read the files of a dir segment, and return whether the data that the index knows are in them."""
        with self._access.current().index.snapshot() as snapshot:
            return read_content(self._access, snapshot, segment).wrong is None

    def _segment(self) -> Segment:
        """Return the segment in the index, or a new one."""
        if self._known is not None:
            return self._known.segment
        generation = self._transaction.take_generation()
        return Segment(generation, self._name, self._format.name, self._format.begin().end, shared=self._is_queue)

    def _add_all(self, segment: Segment, results: Iterable[ScanResult]) -> End:
        """Insert the data of all scan results, and return where the segment ends."""
        end = segment.end
        with self._known_offsets(segment) as known_offsets:
            first = self._transaction.take_seqs(0).start
            for found in results:
                if found.foreign and not (found.in_place and self._access.config.is_sequence):
                    raise NeedsRewrite
                end = found.end
                self._found += len(found.offsets)
                self._transaction.save_blocks(segment, found.blocks)
                self._add(found, segment, first, known_offsets)
                self._note(found)
        if self._aside is not None:
            self._forgotten = self._forget(self._aside)
            is_all = self._known is not None and 0 < self._known.count == self._forgotten and not self._returned
            if is_all and not self._is_salvaged and self._copied is None:
                reason = self._damaged() if self._damage.count else f"no datum in it can be read; {REMEDY}"
                facts = None if self._foreign is None else refused(segment.facts, self._foreign)
                raise DataAfterDamage(segment, reason, facts)  # then the index keeps its data
            if self._known is not None and not self._is_renewed:
                self._without_row = max(0, self._known.without_row - self._returned)
        return end

    def _forget(self, aside: Aside) -> int:
        """Forget the data that were not found, and return how many."""
        if self._is_queue and self._returned and aside.is_untouched and self._known is not None:
            length = self._known.segment.end.length
            if is_consumed(self._name, length, position(self._directory)):  # Beats uses its number again
                self._is_renewed = True
                aside.forget(lost=False)
                return 0
        return aside.forget()

    @contextlib.contextmanager
    def _matching(self, is_matched: bool, *, may_move: bool = True) -> Iterator[None]:
        """For the block, replace the rows of the segment by what is found, if `is_matched`.

        Args:
            may_move: as in `Aside`.
        """
        if not is_matched or self._known is None:
            yield
            return
        with Aside(self._transaction, self._known.segment, may_move=may_move) as self._aside:
            yield
        self._aside = None

    def _compare(self, segment: Segment, file: ReadableFile) -> None:
        """Note if data have other bytes than those that were committed, although all of them were found.

        Bytes that were damaged before cannot be compared, nor those of an older revision, which has no checksum.

        Args:
            segment: what was read.
            file: its file.
        """
        known = self._known
        if (
            self._aside is None
            or known is None
            or not known.count
            or self._forgotten
            or self._without_row
            or known.damage is not None
        ):
            return
        if self._is_renewed:
            return
        if known.segment.facts.checksum is not None:
            self._is_encrypted = self._format.sealer(file, self._name) is not None
            # What a repack encrypts has other bytes, so only the file that it was before can be compared.
            is_same = not (self._is_encrypted and segment.end.compressed) and have_old_bytes(
                self._aside, self._transaction, self._format, known.segment, segment, file
            )
            self._changed = int(not is_same)

    def salvage(self) -> None:
        """Keep what is whole of a damaged segment, and commit. The original goes to quarantine."""
        if self._format.is_dir:
            kept = quarantine.link(self._directory, self._name, verb="fix", why=_SALVAGED)
            self._remedy, self._is_salvaged = f"the original directory is now {self._item(kept)}", True
            with self._directory.inside(self._name) as folder:
                results = scan(folder, self._name, self._format.describe)
                whole = {number for found in results for number in found.offsets}
            remove(self._directory, self._name, whole, whole=False)
            self.in_place(is_believed=False)
            commit(self._transaction, self._directory, [self])
        else:
            self.rewrite(is_damaged=True)

    def rewrite(self, *, is_damaged: bool = False) -> None:
        """Write the data of the file to a new generation, in the form that ondisk writes, and commit.

        Args:
            is_damaged: keep the original in quarantine, whatever is found in it.

        Raises:
            StateError: it is in a queue whose consumer still has to read it.
        """
        if self._is_queue and is_unread(self._name, believed(self._directory)):
            raise not_rewritten(self._directory, self._name)
        transaction, known = self._transaction, self._known
        segment = Segment(transaction.take_generation(), self._name, self._format.name, self._format.begin().end)
        if known is None:
            old = transaction.take_generation()
        else:  # these are data of another file: ondisk never appends to a file that must be rewritten
            old = known.segment.id
            generations.complete(self._directory, self._name, old, self._access.committed(known.segment))
        aliases = [generations.hidden(self._name, each) for each in (segment.id, old)]
        transaction.on_rollback(lambda: self._directory.discard(*aliases))
        with self._matching(known is not None):
            if known is not None:
                transaction.supersede(known.segment)
            segment = self._write(segment)
            if self._aside is not None:
                self._forgotten = self._forget(self._aside)
                self._compare(segment, self._directory.open_to_read(aliases[0]))
        if is_damaged or self._damage.count or self._missing or self._duplicates.different:
            is_whole = not (is_damaged or self._damage.count or self._missing)
            why = _DIFFERENT if is_whole else _SALVAGED
            kept = quarantine.link(self._directory, self._name, verb="fix", why=why)
            self._remedy, self._is_salvaged = f"the original file is now {self._item(kept)}", True
        generations.link_old(self._directory, self._name, old, None)
        self._save(segment._replace(copies=self._copies(), unproven=self._is_unproven()), keep_damage=True)
        self._explain(segment, segment.end)
        if not is_damaged:  # else the fix that found the damage has counted it
            self._count_lost()
        self.account_for()
        self._access.clean_up_later(self._name)
        committed = self._access.committed(segment)
        transaction.after_commit(lambda: generations.complete(self._directory, self._name, segment.id, committed))
        transaction.check_space()
        transaction.commit()

    def _write(self, segment: Segment) -> Segment:
        """Write the data of the file to a new generation, and return it with its end and its facts."""
        transaction, source = self._transaction, self._directory.open_to_read(self._name)
        first = transaction.take_seqs(0).start
        self._format.sealer(source, self._name)  # raises if the file is that of another segment
        with generations.stage(self._directory, self._name, segment.id) as staged:
            writer = SegmentWriter(
                self._format, staged, self._name, save_blocks=partial(transaction.save_blocks, segment)
            )
            for batch in self._format.parse(_Stream(source, _end_of_data(source, self._format.padding)), 100_000):
                sizes = list(map(len, batch.payloads))
                *offsets, _ = accumulate(self._format.extents(sizes), initial=writer.end.length)
                writer.add(batch.payloads)
                found = ScanResult(offsets, sizes, batch.reftimes, batch.metadata, damage=batch.damage)
                self._add(found, segment, first, lambda _begin, _end: set())
                self._note(batch)
                for _, reason in batch.refused:
                    self._damage.add(reason)
            end, facts = writer.seal(), writer.facts()
        return segment._replace(end=end, facts=facts)

    def _add(
        self, found: ScanResult, segment: Segment, first: int, known_offsets: Callable[[int, int], set[int]]
    ) -> None:
        """Insert the data that are new. If data in one segment have the same unique fields, the last one counts."""
        if not found.offsets:
            return
        reftimes, offsets, sizes, metadata = found.reftimes, found.offsets, found.sizes, found.metadata
        if self._interval == ALWAYS:
            self._span |= Interval.around(reftimes)
        if self._copied is not None:
            return
        is_outside = min(reftimes) not in self._interval or max(reftimes) not in self._interval
        if is_outside and self._puts_off:
            raise Misnamed
        here = known_offsets(offsets[0], offsets[-1] + 1)
        if here:
            is_new = [offset not in here for offset in offsets]
            reftimes, offsets, sizes = ([*compress(each, is_new)] for each in (reftimes, offsets, sizes))
            metadata = [*compress(metadata, is_new)]
            if not offsets:
                return
        transaction = self._transaction
        if is_outside:
            self._access.current().index.outside = None  # a search by time does not find these data
        fields = transaction.columns(metadata)
        seqs: Sequence[int]
        if self._aside is not None:
            first_new = transaction.take_seqs(0).start
            seqs = self._aside.seqs(zip(offsets, reftimes, sizes, *fields, strict=True))
            new = transaction.take_seqs(0).start - first_new
            if self._replaced_from is None and new:
                self._replaced_from = next(each for each, seq in zip(offsets, seqs, strict=True) if seq >= first_new)
            self._returned += new
            self._new += new
        else:
            seqs = transaction.take_seqs(len(offsets))
        columns = (seqs, reftimes, [segment.id] * len(offsets), offsets, sizes, *fields)
        inserted = transaction.insert(columns)
        if self._aside is None:  # deleted data that are back are no changes that the index did not know
            late = seqs[bisect_left(offsets, self._duplicates.explained) :]
            self._new += len(late) if inserted == len(offsets) else transaction.count_of(late)
        if inserted == len(offsets):
            self._sums = self._sums and (self._sums[0] + inserted, self._sums[1] + sum(sizes))
        else:
            self._sums = None
            for row in zip(*columns, strict=True):
                self._new += self._duplicates.settle(row, segment, first, self._aside)

    def _known_offsets(self, segment: Segment) -> AbstractContextManager[Callable[[int, int], set[int]]]:
        """Return what `Transaction.known_offsets` returns; for a new segment, a function that returns no offsets."""
        if self._known is None:
            return contextlib.nullcontext(lambda _begin, _end: set())
        return self._transaction.known_offsets(segment)

    def _note(self, found: ScanResult | Batch) -> None:
        # A trusted index with rows of the segment knows all its data: a header that counts more is of a killed append.
        # A second copy, which may be the begin of a move, has none.
        if self._copied is None and (self._known is None or not self._known.count or self._access.needs_check()):
            self._missing += found.missing
        for damage in found.damage:
            self._damage.add(f"at {self._format.unit} {damage.offset}: {damage.reason}", damage.size)

    def _save(self, segment: Segment, *, keep_damage: bool = False) -> None:
        """Save the segment, and what is damaged in it.

        Args:
            keep_damage: record no check, and count nothing as lost: its data were not read, or the caller counts.
        """
        self._is_exposed = self._format.is_exposed(segment.end)
        self._transaction.save_segment(segment, self._span)
        if not keep_damage:
            self._transaction.note_check(segment, self._damaged() if self._damage.count else self._unread)
            self._count_lost()

    def _count_lost(self) -> None:
        """Count what is damaged or changed as lost, unless it was counted with the data that are gone."""
        damaged = max(0, self._damage.count + self._missing - self._forgotten - self._without_row)
        self._transaction.count_lost(damaged + self._changed + self._without_row)

    def _damaged(self) -> str:
        damage = self._damage
        damaged = counted(damage.size, self._format.unit, "is") if damage.size else counted(damage.count, "datum", "is")
        return f"{damaged} damaged, {damage.text('; ')}; {self._remedy}"


def commit(transaction: Transaction, directory: Directory, rescans: Sequence[Rescan]) -> None:
    """Commit segments that `Rescan.in_place` has read.

    Durability: syncs them and the directories that contain them, keeps in quarantine what differs, moves the position
        of the consumer back if that has not read them, then commits.
    """
    for each in rescans:
        each.sync()
        each.keep()
        each.begin_again()
        each.account_for()
    for folder in {each.folder for each in rescans}:
        directory.sync(folder)
    transaction.check_space()
    transaction.commit()


def _end_of_data(file: ReadableFile, padding: bytes) -> int:
    """Return the size of a file without a datum at its end that has lost its last bytes: only padding shows an end."""
    end = file.size()
    while padding and end > 0:
        begin = max(0, end - _PIECE)
        found = file.read(begin, end - begin).rfind(padding)
        if found >= 0:
            return begin + found + len(padding)
        end = begin
    return end


class _Stream:
    """A segment's file as a stream, from its begin to a position."""

    def __init__(self, file: ReadableFile, end: int) -> None:
        self._file = file
        self._end = end
        self._position = 0

    def read(self, size: int, /) -> bytes:
        content = self._file.read(self._position, min(size, self._end - self._position))
        self._position += len(content)
        return content
