"""Compare: what a segment contains now, against the rows of the index, in the transaction that makes both agree.

A datum that is found again keeps its `seq`. One that the index did not know gets a new one. One that is not found is
forgotten and counts as lost. If several data have the same unique values, one counts: see `Duplicates`. A second copy
gets no rows. What is found here says how many there are of each; what follows from that for the file, the index and the
report is decided in `ondisk.maintenance.rescan`. An `Outcome` has the sentences of the report.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import compress
from typing import Any, NamedTuple

from ondisk.dataset.access import Access
from ondisk.errors import REMEDY, IndexCorrupt, StateError, command, counted
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Batch, Format
from ondisk.index import Copies, Segment, Snapshot
from ondisk.index.changes import present
from ondisk.index.rows_set_aside import Aside
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.duplicates import Duplicates, Settled
from ondisk.maintenance.inspect import interval_of
from ondisk.maintenance.observe import scan
from ondisk.maintenance.rescanned_bytes import have_old_bytes
from ondisk.maintenance.second_copy import missing_twin
from ondisk.maintenance.states import Action, Diagnosis, Done, Tally
from ondisk.segment import End, ScanResult
from ondisk.staging.jobs import Changed
from ondisk.staging.rows import StagedFile
from ondisk.staging.scan_file import read_results, write_results
from ondisk.step import ALWAYS, NOTHING, Interval

_DELETE_AGAIN = "delete them again"
_DELETE_EXTRA = "run `ondisk replicate SOURCE REPLICA --reconcile --delete-extra`"
_ENCRYPTED_AGAIN = "its data are encrypted differently from the stored data, so the two cannot be compared"


class Refused(Enum):
    """Why a segment was not read in place. Nothing may be committed then."""

    FOREIGN = auto()
    """It must be rewritten; see `ScanResult.foreign`."""
    MISNAMED = auto()
    """It has data of other times than its name says. Where another segment has them, too, that one counts."""
    LINKED = auto()
    """All its files are also in another folder, with more: it was merged into that one, which counts."""


class Subject(NamedTuple):
    """The segment that is read again."""

    access: Access
    transaction: Transaction
    name: str
    known: Known | None
    format: Format
    interval: Interval

    @classmethod
    def of(cls, access: Access, transaction: Transaction, name: str, known: Known | None) -> Subject:
        """Return a segment as the subject of a fix.

        Raises:
            IndexCorrupt: its name is not that of a segment.
        """
        interval = interval_of(access, name)
        if interval is None:
            hint = f"Run {command('fix', access.path, '--rebuild', '--yes')}."
            raise IndexCorrupt(f"{name} is not the name of a segment of this dataset", hint=hint, segment=name)
        format = access.format(known.segment.format) if known is not None else access.format_of(name)
        return cls(access, transaction, name, known, format, interval)

    @property
    def directory(self) -> Directory:
        """The directory of the dataset."""
        return self.access.directory

    @property
    def is_shared(self) -> bool:
        """Whether another program may make a segment of this name, and append to it."""
        return self.access.layout.is_shared(self.name)

    @property
    def may_lack(self) -> bool:
        """Whether the index may not know all data of the segment."""
        return self.access.may_lack(self.name)

    @property
    def span(self) -> Interval:
        """The interval to save, which grows with the data: that of the name; in a sequence, it is empty at first."""
        return NOTHING if self.interval == ALWAYS else self.interval

    def segment(self) -> Segment:
        """Return the segment in the index, or a new one, with a generation of its own."""
        if self.known is not None:
            return self.known.segment
        generation = self.transaction.take_generation()
        return Segment(generation, self.name, self.format.name, self.format.begin().end, shared=self.is_shared)


@dataclass(slots=True)
class Compared:
    """What was found in a segment."""

    found: int = 0  # data in it, also those that do not count
    new: int = 0  # changes that the index did not know: data, except deleted ones, and data that they replaced
    returned: int = 0  # data in a changed file that the index did not know: perhaps deleted ones
    gone: int = 0  # data that the index knew, and that are nowhere
    without_row: int = 0  # data that the index had only counted, and that are gone
    missing: int = 0  # data that the file should have, by its own count
    changed: int = 0  # 1 if data were found again, and some do not have their bytes
    damage: Tally = field(default_factory=Tally)
    settled: Settled = field(default_factory=Settled)
    copied: str | None = None  # the segment that has all of its data, too; then this is a second copy

    @property
    def lost(self) -> int:
        """How many data are lost: a datum that is gone is most likely what was at a damaged place."""
        return max(self.gone + self.without_row + self.changed, self.damage.count + self.missing)

    @property
    def uncounted(self) -> int:
        """How many of the lost data are not counted yet: those that are gone were, when they were forgotten."""
        damaged = self.damage.count + self.missing - self.gone - self.without_row
        return max(0, damaged) + self.changed + self.without_row

    @property
    def copies(self) -> Copies:
        """Which of its data are second copies."""
        if self.copied is not None:
            return Copies.ALL
        return Copies.SOME if self.settled.has_copies else Copies.NONE


class Comparison:
    """Compares a segment with its rows: `add` what is found in it, then `forget` the others.

    Args:
        is_matched: its rows are not to be believed; they are set aside, and what is found again gets its `seq` back.
        may_move: a datum may have another offset than before, see `Aside`.
        puts_off: refuse a segment without rows that is `MISNAMED`.
    """

    def __init__(
        self,
        subject: Subject,
        segment: Segment,
        copied: str | None,
        *,
        is_matched: bool,
        may_move: bool = True,
        puts_off: bool = False,
    ) -> None:
        known = subject.known
        has_copies = known is not None and known.segment.copies is Copies.SOME
        self.compared = Compared(settled=Settled(has_copies=has_copies), copied=copied)
        self.span = subject.span
        self.replaced_from: int | None = None
        """The first datum in a changed file that the index did not know."""
        self.sums: tuple[int, int] | None = (0, 0) if known is None else None
        """Count and bytes of all rows, if they are new; None if they must be asked of the index."""
        self.subject = subject
        self._segment = segment
        self._first = subject.transaction.take_seqs(0).start
        self._first_new = 0  # data that begin before this offset and have no row were deleted: they get none
        self._puts_off = puts_off and (known is None or not known.rows.count)
        self._aside: Aside | None = None
        if is_matched and known is not None:
            self._aside = Aside(subject.transaction, known.segment, may_move=may_move)
        self._duplicates = Duplicates(subject.access, subject.transaction, subject.format, self.compared.settled)

    def may_compare(self) -> None:
        """Prepare to compare data with the same unique values: their bytes are where the rows will say they are."""
        known, segment = self.subject.known, self._segment
        # Below this offset, what has no row was deleted through ondisk.
        is_described = known is not None and known.deleted is not None and segment.copies is not Copies.ALL
        is_described = is_described and self._aside is None and not segment.has_unknown
        self._duplicates.may_compare(segment, segment.end.length if is_described else 0)
        # What has no row may also be what was damaged before, or a second copy.
        is_grown = known is not None and known.segment.copies is Copies.NONE and not known.damage
        if is_grown and self.subject.is_shared and not self.subject.may_lack:
            self._first_new = self._duplicates.explained
        # An index that was lost does not know what it had of either.
        may_be_copy = known is None or known.segment.copies is not Copies.NONE or segment.has_unknown
        if may_be_copy and not self.subject.access.config.unique and not self.subject.may_lack:
            is_known = segment.copies is Copies.ALL and self._aside is None
            if segment.has_unknown:  # somebody may have moved a file here, and data were appended before a fix
                is_known |= missing_twin(self.subject.access, self.subject.name) is not None
            self._duplicates.expect_copies(self.subject.name, are_known=is_known)

    def add_all(self, results: Iterable[ScanResult]) -> End | Refused:
        """Give all that a scan finds its rows, and return where the segment ends."""
        transaction, end = self.subject.transaction, self._segment.end
        no_offsets = contextlib.nullcontext(lambda _begin, _end: set[int]())
        with no_offsets if self.subject.known is None else transaction.known_offsets(self._segment) as known_offsets:
            for found in results:
                if found.foreign and not (found.in_place and self.subject.access.layout.keeps_foreign):
                    return Refused.FOREIGN
                if self._puts_off and found.offsets and self.compared.copied is None and self._is_outside(found):
                    return Refused.MISNAMED
                end = found.end
                self.compared.found += len(found.offsets)
                transaction.save_blocks(self._segment, found.blocks)
                self.add(found, known_offsets)
                self.note(found)
        return end

    def add(
        self, found: ScanResult, known_offsets: Callable[[int, int], set[int]] = lambda _begin, _end: set()
    ) -> None:
        """Give data their rows. Of those in one segment with the same unique values, the last one counts."""
        if not found.offsets:
            return
        transaction = self.subject.transaction
        reftimes, offsets, sizes, metadata = found.reftimes, found.offsets, found.sizes, found.metadata
        self.span |= Interval.around(reftimes)  # also of other times than its name says
        if self.compared.copied is not None:
            return
        here = known_offsets(offsets[0], offsets[-1] + 1)
        if here or offsets[0] < self._first_new:
            is_new = [offset not in here and offset >= self._first_new for offset in offsets]
            reftimes, offsets, sizes = ([*compress(each, is_new)] for each in (reftimes, offsets, sizes))
            metadata = [*compress(metadata, is_new)]
            if not offsets:
                return
        fields = transaction.columns(metadata)
        if self._aside is not None:
            self._aside.find(offsets, reftimes, sizes, *fields)
        else:
            self._insert(transaction.take_seqs(len(offsets)), offsets, reftimes, sizes, *fields)

    def _is_outside(self, found: ScanResult) -> bool:
        """Return whether data are of other times than the name of the segment says."""
        interval = self.subject.interval
        return min(found.reftimes) not in interval or max(found.reftimes) not in interval

    def _insert(
        self, seqs: Sequence[int], offsets: Sequence[int], reftimes: Sequence[int], *rest: Sequence[Any]
    ) -> None:
        """Insert rows, without those of copies; of those with the same unique values, let one count."""
        columns = (seqs, reftimes, [self._segment.id] * len(offsets), offsets, *rest)
        if self._duplicates.expects_copies:
            rows = [row for row in zip(*columns, strict=True) if not self._duplicates.settle_copy(row)]
            if not rows:
                return
            columns = tuple(zip(*rows, strict=True))
            seqs, offsets, rest = columns[0], columns[3], columns[4:]
        inserted = self.subject.transaction.insert(columns)
        if self._aside is None:  # deleted data that are back are no changes that the index did not know
            late = seqs[bisect_left(offsets, self._duplicates.explained) :]
            self.compared.new += len(late) if inserted == len(offsets) else len(present(self.subject.transaction, late))
        if inserted < len(offsets):
            self.sums = None
            for row in zip(*columns, strict=True):
                self.compared.new += self._duplicates.settle(row, self._segment, self._first, self._aside)
        elif self.sums is not None:
            self.sums = self.sums[0] + inserted, self.sums[1] + sum(rest[0])

    def note(self, found: ScanResult | Batch) -> None:
        """Note what is damaged or missing."""
        known = self.subject.known
        # A trusted index with rows of the segment knows all its data: a header that counts more is of a killed append.
        # A second copy, which may be the begin of a move, has none.
        if self.compared.copied is None and (known is None or not known.rows.count or self.subject.may_lack):
            self.compared.missing += found.missing
        unit = self.subject.format.unit
        for damage in found.damage:
            self.compared.damage.add(f"at {unit} {damage.offset}: {damage.reason}", damage.size)

    def forget(self) -> bool:
        """Forget the data that were not found, if the rows were set aside. Return whether all of them are gone.

        They are not lost if another program has read them, and uses the name of their segment again.
        """
        known, compared = self.subject.known, self.compared
        if self._aside is None or known is None:
            return False
        new = self._aside.match()
        compared.new = compared.returned = len(new)
        self.replaced_from = self._aside.first_of(new)
        for columns in self._aside.rows():
            self._insert(*columns)
        if self.subject.is_shared and compared.returned and self._aside.is_untouched:
            usage = self.subject.access.layout.usage(self.subject.directory)
            if usage.is_consumed(self.subject.name, known.segment.end.length):
                self._aside.forget(lost=False)
                self.subject = self.subject._replace(known=None)  # what the index knew was of another segment
                return False
        compared.gone = self._aside.forget()
        compared.without_row = max(0, known.without_row - compared.returned)
        return 0 < known.rows.count == compared.gone and not compared.returned

    def compare_bytes(self, end: End, file: ReadableFile) -> bool:
        """Note if data have other bytes than those that were committed, although all of them were found.

        Bytes that were damaged before cannot be compared, nor those of an older revision, which has no checksum.

        Returns:
            Whether they are encrypted.
        """
        known, compared, subject = self.subject.known, self.compared, self.subject
        if self._aside is None or known is None or known.segment.facts.checksum is None:
            return False
        if not known.rows.count or known.damage is not None or compared.gone or compared.without_row:
            return False
        is_encrypted = subject.format.sealer(file, subject.name) is not None
        # What a repack encrypts has other bytes, so only the file that it was before can be compared.
        is_same = not (is_encrypted and end.compressed) and have_old_bytes(
            self._aside, subject.transaction, subject.format, known.segment, self._segment._replace(end=end), file
        )
        compared.changed = int(not is_same)
        return is_encrypted


def damaged(compared: Compared, format: Format, remedy: str) -> str | None:
    """Return a sentence about what is damaged; None if nothing is."""
    damage = compared.damage
    if not damage.count:
        return None
    found = counted(damage.size, format.unit, "is") if damage.size else counted(damage.count, "datum", "is")
    return f"{found} damaged, {damage.text('; ')}; {remedy}"


class Outcome(NamedTuple):
    """What was found in a segment, and what was done with it."""

    subject: Subject
    compared: Compared
    returned: int  # data that the index did not have, and that may have been deleted
    is_emptied: bool = False  # it has no data, and the index may have lost some of it: it goes to quarantine
    moved: str | None = None  # the item in quarantine that it is now
    original: str | None = None  # the item in quarantine that has the original, if only what is whole of it was kept
    read_again: str | None = None  # why another program must read it from its beginning; None if not
    is_encrypted: bool = False  # it is encrypted, and was compared with the stored bytes
    is_exposed: bool = False  # it is not encrypted, although new segments are

    @property
    def remedy(self) -> str:
        """What helps against lost data."""
        if self.original is None:
            return REMEDY
        return f"the original {'directory' if self.subject.format.is_dir else 'file'} is now {self.original}"


def explained(outcome: Outcome, diagnosis: Diagnosis) -> Done:
    """Return the result for a report, with what the segment contains that is not in the index now."""
    lost, reasons = outcome.compared.lost, (*diagnosis.reasons, *_sentences(outcome))
    return Done(outcome.subject.name, diagnosis.state, reasons, Action.RESCAN, 0, lost, returned=outcome.returned)


def _sentences(outcome: Outcome) -> Iterator[str]:
    subject, compared, settled = outcome.subject, outcome.compared, outcome.compared.settled
    if compared.copied is not None:
        yield f"{compared.copied} has the same bytes, so `ondisk repack --second-copies` removes this copy"
    if outcome.moved is not None:
        yield f"it is now {outcome.moved}"
    if outcome.read_again is not None:
        yield outcome.read_again
    if outcome.is_exposed:
        yield "it is not encrypted: whoever wrote it needed no key"
    if (damage := damaged(compared, subject.format, outcome.remedy)) is not None:
        yield damage
    if outcome.returned:
        how = _DELETE_EXTRA if subject.access.config.replica else _DELETE_AGAIN
        read = counted(outcome.returned, "datum", "was")
        yield f"{read} read that the index did not have; if you had deleted any, {how}"
    if compared.gone:
        yield f"{counted(compared.gone, 'datum', 'is')} gone from the segment"
    if compared.without_row:
        yield f"{counted(compared.without_row, 'datum', 'is')} gone that the index had counted: {REMEDY}"
    if compared.changed and outcome.is_encrypted:
        reset = command("fix", subject.access.path, "--acknowledge", "--yes")
        yield f"{_ENCRYPTED_AGAIN}: one counts as lost; if the file is right, {reset} resets that"
    elif compared.changed:
        yield f"some of its data have other bytes than the stored ones: {REMEDY}"
    if settled.replacing:
        unreadable = counted(settled.replacing, "datum", "is")
        yield f"{unreadable} unreadable in another segment, so the copy here is used now"
    if settled.different:
        have = counted(settled.different, "datum", "has")
        different = f"{have} the same unique values as other data but different contents"
        yield f"{different}: its file was linked into quarantine"
    if settled.skipped.count:
        were = counted(settled.skipped.count, "datum", "was")
        yield f"{were} skipped, because other segments have them: {settled.skipped.text()}"
    if compared.missing:
        gone = f"up to {counted(compared.missing, 'datum', 'is')} lost"
        yield f"{gone}: {subject.format.shortage}; {outcome.remedy}"
    if outcome.original is not None and not compared.damage.count and not compared.missing:
        yield outcome.remedy


@dataclass(frozen=True, slots=True)
class Scanned:
    """All that a scan of a segment found."""

    source: tuple[int, int, int]  # the identity of the segment's file when it was scanned
    rows: StagedFile

    @classmethod
    def write(cls, access: Access, name: str, file: str) -> Scanned:
        """Scan a segment's file.

        Args:
            file: name of the file for the results, in the dataset's directory.

        Raises:
            StateError: the segment is not one file, or it must be rewritten; or the directory for `file` was removed.
            StorageError: the segment cannot be read.

        Locks: none; the process that updates the index sees whether the segment has changed meanwhile.
        """
        known = access.ask(Snapshot.segment_named, name)
        format = access.format_of(name) if known is None else access.format(known.format)
        source = None if format.is_dir else _opened(access.directory, name)
        if source is None:
            raise StateError(f"the segment {name} is not a file")
        identity = source.identity()

        def whole() -> Iterator[ScanResult]:
            for found in scan(name, format, source):
                if found.foreign and not (access.layout.keeps_foreign and found.in_place):
                    raise StateError(f"the segment {name} must be rewritten")
                yield found

        write_results(access.directory, file, whole())
        return cls(identity, StagedFile.of(access.directory, file))

    def results(self, access: Access, source: ReadableFile) -> Iterator[ScanResult]:
        """Yield what the scan found.

        Raises:
            Changed: the segment's file was replaced or written to, or the file with the results is missing or damaged.
        """
        if source.identity() != self.source:
            raise Changed
        self.rows.verify(access.directory)
        yield from read_results(access.directory, self.rows.name)


def _opened(directory: Directory, name: str) -> ReadableFile | None:
    try:
        return directory.open_to_read(name)
    except FileNotFoundError:
        return None
