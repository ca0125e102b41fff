"""Read a segment again: the index gets what its files say, in the transaction of a fix.

    in_place     its files stay as they are
    rewritten    its data go to a new generation, in the form that ondisk writes
    salvaged     what is whole in it stays; the original goes to quarantine
    renewed      its bytes are the same; only the facts of its files are recorded

Which of its data count is decided in `ondisk.maintenance.compare`. The rest of a fix decides which of these it takes,
`commit` does what must be done with the files before the commit, and `compare.explained` makes a report of the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from ondisk.errors import REMEDY, StorageError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Format
from ondisk.formats.base import DescribesFiles
from ondisk.index import Copies, Segment
from ondisk.index.transaction import Transaction
from ondisk.maintenance.check import read_content
from ondisk.maintenance.compare import Compared, Comparison, Outcome, Refused, Scanned, Subject, damaged
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.durable_steps import appear, complete, successor, sync_above, sync_found
from ondisk.maintenance.observe import scan as scan_file
from ondisk.maintenance.second_copy import copy_of, is_linked_elsewhere
from ondisk.segment import End, Facts, NotedDamage, ScanResult
from ondisk.segments import generations, quarantine
from ondisk.segments.concat_writer import SegmentWriter
from ondisk.segments.dir import (
    METADATA,
    add_entries,
    facts_in,
    files_of,
    keep_only,
    raise_sequence,
    scan,
    seen_with_files,
)
from ondisk.segments.file_facts import SAME_BYTES, Committed, Seen, checksum_of, facts_of, refused, tail_of
from ondisk.segments.generations import hidden

_PIECE = 1024 * 1024
_SALVAGED = "it is damaged; what is whole in it was written to a new file"
_DIFFERENT = "it has data with the same unique values as other data but different contents; the other data were kept"


class Unfound(NamedTuple):
    """The index knows data that a scan cannot find: after damage, or in a file of which nothing can be read.

    Nothing of what the scan has found may be committed.
    """

    segment: Segment
    reason: str
    # what to record so that this file is not read again, if it is not the one that the index describes
    facts: Facts | None = None


def in_place(
    subject: Subject,
    *,
    trusted: bool = False,
    is_believed: bool = True,
    scanned: Scanned | None = None,
    puts_off: bool = False,
) -> Outcome | Refused | Unfound:
    """Insert all data of a segment into the index, and leave its files as they are. The caller commits an outcome.

    If the file is not the one that the index describes, the index gets what the bytes say: a datum that is found again
    keeps its `seq`, and data that are not are forgotten.

    Args:
        trusted: the index has all data of every dir segment that it knows.
        is_believed: the index describes the bytes, as far as they agree with the facts.

    Raises:
        Changed: the file has changed since that scan.
        StorageError: it has changed while it was read.
    """
    if subject.format.is_dir:
        return _folder_in_place(subject, trusted=trusted, is_believed=is_believed, puts_off=puts_off)
    return _file_in_place(subject, is_believed=is_believed, scanned=scanned, puts_off=puts_off)


def renewed(subject: Subject) -> Outcome | None:
    """Record the facts of a segment that somebody has touched; None if its committed bytes are not the same."""
    directory, name, segment = subject.directory, subject.name, subject.segment()
    if subject.format.is_dir:
        complete(subject.access, segment)
        with directory.inside(name) as folder:
            before = _look(subject, folder, segment, is_believed=True)
            if not before.is_same or (segment.copies is Copies.ALL and copy_of(subject.access, name) is None):
                return None
            end, facts = segment.end, _facts_of_folder(name, folder, segment, segment.end, before.facts)
    else:
        file = directory.open_to_read(name)
        stat = file.stat()
        if subject.access.committed(segment).is_whole_in(file) is not True:
            return None
        end = subject.format.found(segment.end)
        facts = _facts_of_file(subject.format, file, end, stat)
    subject.transaction.save_segment(segment._replace(end=end, facts=facts), subject.span)
    return _outcome(subject, Compared())


def is_another_file(subject: Subject) -> bool:
    """Return whether the committed bytes of a concat segment have changed, although they end as before."""
    if subject.format.is_dir:
        return False
    file = subject.directory.open_to_read(subject.name)
    return subject.access.committed(subject.segment()).is_whole_in(file) is False


def salvaged(subject: Subject) -> Outcome:
    """Keep what is whole of a damaged segment, and commit. The original goes to quarantine."""
    directory, name = subject.directory, subject.name
    if not subject.format.is_dir:
        return rewritten(subject, is_damaged=True)
    original = quarantine.link(directory, name, verb="fix", why=_SALVAGED)
    with directory.inside(name) as folder:
        _add_entries(subject, folder)
        whole = {number for found in scan(folder, name, subject.format.describe) for number in found.offsets}
        keep_only(folder, name, whole)
    outcome = _folder_in_place(subject, trusted=False, is_believed=False, original=original)
    assert isinstance(outcome, Outcome), "a salvage takes all that it finds"
    return commit(subject.transaction, [outcome])[0]


def rewritten(subject: Subject, *, is_damaged: bool = False) -> Outcome:
    """Write the data of the file to a new generation, in the form that ondisk writes, and commit.

    Args:
        is_damaged: keep the original in quarantine, whatever is found in it.

    Raises:
        StateError: another program still has to read it.
    """
    directory, name, transaction = subject.directory, subject.name, subject.transaction
    subject.access.layout.check_rewritable(directory, name)
    segment = Segment(0, name, subject.format.name, subject.format.begin().end)
    segment = successor(subject.access, transaction, segment)
    if subject.known is None:
        old = transaction.take_generation()
    else:  # these are data of another file: ondisk never appends to a file that must be rewritten
        old = subject.known.segment.id
        complete(subject.access, subject.known.segment)
    comparison = Comparison(subject, segment, _copied(subject), is_matched=True)
    if subject.known is not None:
        transaction.supersede(subject.known.segment)
    segment = _write(comparison, segment)
    comparison.forget()
    is_encrypted = comparison.compare_bytes(segment.end, directory.open_to_read(hidden(name, segment.id)))
    compared, original = comparison.compared, None
    is_whole = not (is_damaged or compared.damage.count or compared.missing)
    if not is_whole or compared.settled.different:
        original = quarantine.link(directory, name, verb="fix", why=_DIFFERENT if is_whole else _SALVAGED)
    transaction.on_rollback(lambda: directory.discard(hidden(name, old)))
    generations.link_old(directory, name, old, None)
    sync_above(directory, [name])
    segment = segment._replace(copies=compared.copies, unproven=_is_unproven(comparison))
    transaction.save_segment(segment, comparison.span)
    _note_unowned(comparison, segment)
    if not is_damaged:  # else the fix that found the damage has counted it
        transaction.count_lost(compared.uncounted)
    _account_for(subject, compared)
    appear(subject.access, transaction, segment)
    transaction.check_space()
    transaction.commit()
    is_exposed = subject.format.is_exposed(segment.end)
    outcome = _outcome(subject, compared)
    return outcome._replace(original=original, is_encrypted=is_encrypted, is_exposed=is_exposed)


def commit(transaction: Transaction, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Commit segments that were read in place in one transaction, and return what became of them.

    Durability: syncs them and the directories that contain them, keeps in quarantine what differs, lets another
        program begin again if it has not read them, then commits.
    """
    directory, kept = transaction.directory, []
    sync_found(directory, [each.subject.name for each in outcomes])
    for each in outcomes:
        kept.append(_keep(each))
        if each.read_again is not None:
            begin_again = partial(each.subject.access.layout.begin_again, directory, each.subject.name)
            begin_again()
            transaction.after_commit(partial(begin_again, is_committed=True))
        _account_for(each.subject, each.compared)
    transaction.check_space()
    transaction.commit()
    return kept


def _account_for(subject: Subject, compared: Compared) -> None:
    """Note how many changes were found that the index lacks since an older state of it was put back."""
    if compared.new:
        subject.transaction.account_for(compared.new)


def _keep(outcome: Outcome) -> Outcome:
    """Move a file that was emptied into quarantine; link it there if data in it differ from those that count."""
    subject = outcome.subject
    if outcome.is_emptied:
        item = quarantine.keep(subject.directory, subject.name, verb="fix", why=quarantine.EMPTIED)
        return outcome._replace(moved=item)
    if outcome.compared.settled.different and outcome.original is None:
        quarantine.link(subject.directory, subject.name, verb="fix", why=_DIFFERENT)
    return outcome


def _file_in_place(
    subject: Subject, *, is_believed: bool, scanned: Scanned | None, puts_off: bool
) -> Outcome | Refused | Unfound:
    transaction, directory, known, name = subject.transaction, subject.directory, subject.known, subject.name
    segment = subject.segment()
    committed = subject.access.committed(segment)
    if known is not None:
        complete(subject.access, segment)
    # The file at the segment's name counts, and readers would prefer the hidden name; `commit` makes that durable.
    generations.set_aside(directory, name, segment.id, verb="fix")
    file = directory.open_to_read(name)
    before = file.stat()
    is_matched = known is not None and not (is_believed and _is_same(known, committed, file))
    is_other = is_matched and committed.seen_in(file, before) not in SAME_BYTES
    copied = copy_of(subject.access, name) if is_other else _copied(subject)
    comparison = Comparison(subject, segment, copied, is_matched=is_matched, puts_off=puts_off)
    comparison.may_compare()
    if known is not None:
        transaction.forget_blocks(segment)
    results = scan_file(name, subject.format, file) if scanned is None else scanned.results(subject.access, file)
    end, compared = comparison.add_all(results), comparison.compared
    if isinstance(end, Refused):
        return end
    if comparison.forget() and copied is None:
        return _nothing_found(subject, segment, compared, before if is_other else None)
    is_encrypted = comparison.compare_bytes(end, file)
    outcome, damage = _outcome(subject, compared), damaged(compared, subject.format, REMEDY)
    if known is None and subject.may_lack and subject.format.is_empty(file):
        return outcome._replace(is_emptied=True)
    data_end = known.rows.data_end if known is not None and known.rows.count and not is_matched else None
    if data_end is not None and (end.length < data_end or (end.compressed and damage is not None)):
        reason = f"it can be read up to byte {end.length}, but has data up to byte {data_end}; {REMEDY}"
        return Unfound(segment, damage or reason)
    left = file.size() - end.size
    if not compared.found and damage is None and left not in (0, len(subject.format.seal(end))):
        # Else it would look like one whose data were all deleted, and a repack would remove it.
        damage = f"no datum can be read in its {file.size()} bytes; {REMEDY}"
    end = subject.format.found(end)
    found = segment._replace(
        end=end,
        facts=_facts_of_file(subject.format, file, end, before),
        has_unknown=False,
        copies=compared.copies,
        unproven=_is_unproven(comparison),
        shared=segment.shared or (is_other and subject.is_shared),
    )
    _save(comparison, found, NotedDamage.of(damage, hides_data=True))
    _note_unowned(comparison, found)
    at, layout = comparison.replaced_from, subject.access.layout
    read_again = None if at is None else layout.why_read_again(directory, found, at)
    is_exposed = subject.format.is_exposed(end)
    return outcome._replace(is_encrypted=is_encrypted, read_again=read_again, is_exposed=is_exposed)


class _Look(NamedTuple):
    """A folder before its files are read: its facts, what they show, and whether the index describes it."""

    facts: Facts
    seen: Seen
    is_same: bool


def _folder_in_place(
    subject: Subject, *, trusted: bool, is_believed: bool, puts_off: bool = False, original: str | None = None
) -> Outcome | Refused | Unfound:
    """Insert the data of a dir segment into the index.

    Args:
        original: the item in quarantine that has the original of what a salvage has left.
    """
    directory, known, name = subject.directory, subject.known, subject.name
    if puts_off and known is None and is_linked_elsewhere(subject.access, name):
        return Refused.LINKED
    segment, copied = subject.segment(), _copied(subject)
    complete(subject.access, segment)
    with directory.inside(name) as folder:
        _add_entries(subject, folder)
        before = _look(subject, folder, segment, is_believed=is_believed)
        if before.is_same and trusted and (copied is not None or segment.copies is Copies.NONE):
            facts = _facts_of_folder(name, folder, segment, segment.end, before.facts)
            subject.transaction.save_segment(segment._replace(facts=facts), subject.span)
            return _outcome(subject, Compared())
        other = None
        if before.seen not in SAME_BYTES:
            other, copied = folder.stat(METADATA), copy_of(subject.access, name)
        # In the folder that the index describes, or that a salvage has copied, a number has had only one file.
        may_move = before.seen not in SAME_BYTES and original is None
        comparison = Comparison(
            subject, segment, copied, is_matched=not before.is_same, may_move=may_move, puts_off=puts_off
        )
        comparison.may_compare()
        end, compared = comparison.add_all(scan(folder, name, subject.format.describe)), comparison.compared
        if isinstance(end, Refused):
            return end
        if comparison.forget() and copied is None and original is None:
            return _nothing_found(subject, segment, compared, other)
        outcome, files = _outcome(subject, compared)._replace(original=original), files_of(folder, name)
        if known is None and subject.may_lack and not files and not compared.damage.count:
            return outcome._replace(is_emptied=True)
        facts = _facts_of_folder(name, folder, segment, end, before.facts)
        found = segment._replace(end=end, facts=facts, has_unknown=False, copies=compared.copies)
        damage = damaged(compared, subject.format, outcome.remedy)
        _save(comparison, found, NotedDamage.of(damage, hides_data=original is None))
        left = sum(number < end.length for number in files)
        subject.transaction.set_unowned(segment, left - subject.transaction.sums_of(segment)[0])
    return outcome


def _add_entries(subject: Subject, folder: Directory) -> None:
    """Write the entries that are missing of files which say themselves what is in them."""
    if isinstance(subject.format, DescribesFiles):
        add_entries(folder, subject.name, subject.format.beside_of, subject.access.config.of_stored().max_datum_size)


def _look(subject: Subject, folder: Directory, segment: Segment, *, is_believed: bool) -> _Look:
    stats = facts_in(folder, subject.name, segment.end).checksum
    seen = seen_with_files(folder, segment.facts, segment.end.size, stats)
    raise_sequence(folder, subject.name)
    facts, known = facts_in(folder, subject.name, segment.end), subject.known
    if known is None or not is_believed or segment.has_unknown or seen not in SAME_BYTES:
        return _Look(facts, seen, is_same=False)
    is_explained = not (known.unexplained or known.without_row)
    return _Look(facts, seen, is_explained and (seen is Seen.UNTOUCHED or _has_whole_files(subject, segment)))


def _has_whole_files(subject: Subject, segment: Segment) -> bool:
    """Read the files of a dir segment, and return whether the data that the index knows are in them."""
    with subject.access.current().index.snapshot() as snapshot:
        return read_content(subject.access, snapshot, segment).wrong is None


def _is_same(known: Known, committed: Committed, file: ReadableFile) -> bool:
    """Return whether the index may be believed about a file."""
    if known.unexplained or known.without_row:
        return False
    is_whole = committed.is_whole_in(file)
    return committed.seen_in(file, file.stat()) in SAME_BYTES if is_whole is None else is_whole


def _facts_of_file(format: Format, file: ReadableFile, end: End, before: os.stat_result) -> Facts:
    mutable = format.mutable
    facts = facts_of(file.stat(), tail_of(file, end.size, mutable), checksum_of(file, end.size, mutable))
    if facts.mtime != before.st_mtime_ns or file.size() != before.st_size:
        raise StorageError(f"{file.path} was changed while it was read", hint="Fix it again.")
    return facts


def _facts_of_folder(name: str, folder: Directory, segment: Segment, end: End, before: Facts) -> Facts:
    if facts_in(folder, name, segment.end) != before:
        raise StorageError(f"{folder.path} was changed while it was read", hint="Fix it again.")
    return facts_in(folder, name, end)


def _copied(subject: Subject) -> str | None:
    """Return the segment that has all data of this one, too, if this may be a second copy."""
    is_candidate = subject.known is None or subject.known.segment.copies is Copies.ALL
    return copy_of(subject.access, subject.name) if is_candidate else None


def _is_unproven(comparison: Comparison) -> bool:
    """Return whether bytes in the file may not be those that were stored: no checksum vouches for them."""
    known, compared = comparison.subject.known, comparison.compared
    if known is not None and known.segment.unproven:
        return True
    is_new = known is None or compared.gone or compared.returned or compared.without_row
    return bool(compared.changed or (is_new and not comparison.subject.format.has_checksums))


def _nothing_found(subject: Subject, segment: Segment, compared: Compared, other: os.stat_result | None) -> Unfound:
    """Return that none of the data that the index has were found: it keeps them."""
    reason = damaged(compared, subject.format, REMEDY) or f"no datum in it can be read; {REMEDY}"
    return Unfound(segment, reason, None if other is None else refused(segment.facts, other))


def _save(comparison: Comparison, segment: Segment, damage: NotedDamage | None) -> None:
    transaction = comparison.subject.transaction
    transaction.save_segment(segment, comparison.span)
    transaction.note_check(segment, damage)
    transaction.count_lost(comparison.compared.uncounted)


def _note_unowned(comparison: Comparison, segment: Segment) -> None:
    """Note that all bytes of the segment were read: those that belong to no datum are no data to lose."""
    transaction = comparison.subject.transaction
    sums = comparison.sums or transaction.sums_of(segment)
    transaction.set_unowned(segment, comparison.subject.format.holes(segment.end, *sums))


def _outcome(subject: Subject, compared: Compared) -> Outcome:
    # What was taken over from a segment that cannot be read is no news.
    returned, known = max(0, compared.returned - compared.settled.replacing), subject.known
    # In what another program makes, nothing was ever deleted. The index has no rows of a second copy.
    is_unknown = known is None and not subject.is_shared and not subject.may_lack
    if is_unknown or (known is not None and known.segment.copies is Copies.ALL):
        returned = compared.new
    return Outcome(subject, compared, returned)


def _write(comparison: Comparison, segment: Segment) -> Segment:
    """Write the data of the file to a new generation, and return it with its end and its facts."""
    subject, transaction = comparison.subject, comparison.subject.transaction
    source = subject.directory.open_to_read(subject.name)
    subject.format.sealer(source, subject.name)  # raises if the file is that of another segment
    with generations.stage(subject.directory, segment.name, segment.id) as staged:
        writer = SegmentWriter(
            subject.format, staged, subject.name, save_blocks=partial(transaction.save_blocks, segment)
        )
        stream = _Stream(source, _end_of_data(source, subject.format.padding))
        for batch in subject.format.parse(stream, 100_000):
            sizes = list(map(len, batch.payloads))
            *offsets, _ = accumulate(subject.format.extents(sizes), initial=writer.end.length)
            writer.add(batch.payloads)
            comparison.add(ScanResult(offsets, sizes, batch.reftimes, batch.metadata, damage=batch.damage))
            comparison.note(batch)
            for _, reason in batch.refused:
                comparison.compared.damage.add(reason)
        end, facts = writer.seal(), writer.facts()
    return segment._replace(end=end, facts=facts)


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
    def __init__(self, file: ReadableFile, end: int) -> None:
        self._file = file
        self._end = end
        self._position = 0

    def read(self, size: int, /) -> bytes:
        content = self._file.read(self._position, min(size, self._end - self._position))
        self._position += len(content)
        return content
