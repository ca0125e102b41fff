"""Check: reports what is wrong with a dataset. It only reads, but records which data are damaged."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.place_checks import maintained
from ondisk.datum import microseconds
from ondisk.errors import AuthenticationFailed, IntegrityError, KeyMissing, OndiskError, SegmentMissing, StorageError
from ondisk.filesystem import is_denied
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.maintenance.ages import Ages, aged_at, by_age_remedy
from ondisk.maintenance.inspect import Inspection, places_away
from ondisk.maintenance.moved_by_hand import moved_segments, renamed_places
from ondisk.maintenance.observe import scan
from ondisk.maintenance.states import Diagnosis, Report, State, Tally, readable
from ondisk.segment import NotedDamage, ScanResult
from ondisk.segments import quarantine
from ondisk.segments.replaced import total
from ondisk.staging.jobs import STAGED, jobs
from ondisk.step import days_ago, inner_of, place_of

_REMEMBERED = 50_000  # entries of `_Equal`
_Equal: TypeAlias = dict[tuple[int, tuple[int, ...]], Mapping[str, Any]]
"""Metadata of a scan that equal those in the index: (id of the metadata, fields of the row) → the metadata."""

_UNREADABLE = State.MISSING | State.CORRUPTED | State.UNALIGNED | State.DELETED

Undecrypted: TypeAlias = KeyMissing | AuthenticationFailed

Wrong: TypeAlias = str | Undecrypted | None
"""What is wrong with a segment; the error if its file has its checksum, and its data cannot be decrypted; or None."""

ReadAll: TypeAlias = Callable[[Access, list[str], Callable[[str], None]], Iterable[tuple[str, Wrong]]]
"""Reads the data of segments, in any order, and yields the name of each and what is wrong with it."""


def read_here(access: Access, names: list[str], progress: Callable[[str], None]) -> Iterator[tuple[str, Wrong]]:
    """Read the data of segments, one after the other; yield what is wrong with each."""
    for name in names:
        progress(name)
        yield name, wrong_as_far_as_known(access, name)


def wrong_as_far_as_known(access: Access, name: str) -> Wrong:
    """Do as `wrong_with`, but return the error if a key is missing or wrong."""
    try:
        return wrong_with(access, name)
    except (KeyMissing, AuthenticationFailed) as error:
        return error


def check(
    access: Access,
    *,
    accurate: bool = False,
    max_duration: float | None = None,
    now: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    read_all: ReadAll = read_here,
    rewrite: bool = False,
    second_copies: bool = False,
    by_age: bool = False,
) -> Report:
    """Diagnose every segment.

    Args:
        accurate: read the data, too: check checksums, decode, and compare with the index. If the dataset is open for
            writing, the index records the damage that was found.
        max_duration: seconds to read data for. Segments that were not read for the longest time are read first. The
            index records when each was read, and what is wrong with it.
        now: seconds since 1970; None for the present.
        rewrite: report segments that are not stored as configured as DIRTY.
        second_copies: report segments with second copies as DIRTY or DELETED.
        by_age: believe the clock about what is too old.

    Raises:
        StorageError: this user may not read a segment or a folder.
        KeyMissing, AuthenticationFailed: with `accurate` or `max_duration`, the data of a segment cannot be decrypted,
            although its bytes have their checksum.
            Each is raised after all others were examined: `error.context["report"]` reports their states.

    Locks: none; to record something the writers' lock, for a moment for each segment.
    """
    report = Report(str(access.path), needs_check=access.needs_check())
    errors: list[OndiskError] = []
    with report.attached(errors):
        deadline = None if max_duration is None else time.monotonic() + max_duration
        ages = Ages.of(access, now, by_age=by_age)
        inspection = Inspection(access, ages=ages, rewrites=rewrite, removes_copies=second_copies)
        found = [*readable(inspection.diagnoses(), errors)]
        if deadline is not None:
            found = _read_in_slices(inspection, found, deadline, progress, errors)
        elif accurate:
            whole = [each.segment for each in found if _may_be_read(each)]
            wrong = dict(read_all(access, whole, progress))
            errors += _unauthenticated(access, wrong.values())
            found = [with_result(each, wrong.get(each.segment)) for each in found]
        report.add(_followed(access, found, ages))
        report.segments += staged_by_jobs(access, now)
        try:
            report.quarantine = quarantine.total(access.directory)
            report.segments += old_items(access, ages)
        except StorageError as error:
            errors.append(error)
        try:
            report.replaced = total(access.directory, access.config.keep_seconds)
        except StorageError as error:
            errors.append(error)
        report.segments += places_away(access)
        report.segments += map(Diagnosis.of, access.layout.findings(access))
        if accurate and not access.read_only:
            record(access, report)
    return report


def _may_be_read(diagnosis: Diagnosis) -> bool:
    return not (diagnosis.state & _UNREADABLE or diagnosis.consumed)


def _followed(access: Access, found: list[Diagnosis], ages: Ages) -> list[Diagnosis]:
    """Return the diagnoses with what is done at new names: a fix follows segments and folders that people have moved.

    Then only their age counts there.
    """
    is_any_missing = any(State.MISSING in each.state for each in found)
    moved = {each.segment.name: each.name for each in moved_segments(access)} if is_any_missing else {}
    with access.current().index.snapshot() as snapshot:
        renamed = {
            new + inner_of(each.name)
            for old, new in renamed_places(access)
            for each in segment_rows.in_place(snapshot, old)
        }
    new_names = renamed.union(moved.values())
    aged = [each for name in sorted(new_names) if (each := aged_at(access, name, ages)) is not None]
    return aged + [
        replace(each, reasons=(f"it was moved to {moved[each.segment]}",), held=False, moved=moved[each.segment])
        if each.segment in moved
        else each
        for each in found
        if each.segment not in new_names
    ]


def record(access: Access, report: Report) -> None:
    """Record in the index the damage that an accurate check has found: a fix does not read all bytes, and repeats it.

    Each damaged segment is read again: since the check, it may have got a new generation.
    """
    for name in [each.segment for each in report if isinstance(each, Diagnosis) and each.noted]:
        with access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
            if segment is None or segment_rows.noted_of(snapshot, segment)[0] is not None:
                continue
            wrong = read_content(access, snapshot, segment).wrong
        if wrong is not None:
            with access.transaction("check") as transaction:
                transaction.note_damage(segment, wrong)
                transaction.commit()


def _unauthenticated(access: Access, results: Iterable[Wrong]) -> Iterator[Undecrypted]:
    """Yield an error if of some segments only the checksums could be compared.

    Their bytes are those that were stored, so a wrong key is more likely than changed data.
    """
    errors = [each for each in results if isinstance(each, KeyMissing | AuthenticationFailed)]
    if not errors:
        return
    worst = next((each for each in errors if isinstance(each, AuthenticationFailed)), errors[0])
    contents = f"the contents of {len(errors)} segment{'s' * (len(errors) > 1)} were not authenticated"
    yield type(worst)(f"{access.path}: {contents}: {worst.message}", hint=worst.hint, **worst.context)


def _read_in_slices(
    inspection: Inspection,
    found: list[Diagnosis],
    deadline: float,
    progress: Callable[[str], None],
    errors: list[OndiskError],
) -> list[Diagnosis]:
    """Read the data of as many segments as there is time for, at least one; return the diagnoses with the results.

    Recorded damage is cleared if the file of the segment is complete again, for example put back. Nothing
    is recorded of a segment that cannot be decrypted: perhaps only the keys are wrong.
    """
    access = inspection.access
    by_name = {each.segment: each for each in found}
    unknown: list[Undecrypted] = []
    with access.current().index.snapshot() as snapshot:
        names = [*segment_rows.longest_unchecked(snapshot)]
    for name in names:
        before = by_name.get(name)
        if before is None or not (before.noted or _may_be_read(before)):
            continue
        progress(name)
        try:
            segment, content = _read(access, name)
        except (KeyMissing, AuthenticationFailed) as error:
            unknown.append(error)
            by_name[name] = with_result(before, error)
            continue
        if segment is None or content is None:
            continue
        with access.transaction("check") as transaction:
            damage = transaction.damaged([segment.id]).get(segment.id)
            if damage is None or (before.noted and content == _WHOLE):  # else it stays, also if it was noted meanwhile
                damage = NotedDamage.of(content.wrong, hides_data=False)
            transaction.note_check(segment, damage)  # records nothing if the segment has another generation now
            transaction.commit()
        if not before.noted:
            by_name[name] = with_result(before, content.wrong)
        elif damage is None:
            by_name[name] = access.ask(inspection.examine, name)[0] or before
        if time.monotonic() >= deadline:
            break
    errors += _unauthenticated(access, unknown)
    return [*by_name.values()]


def wrong_with(access: Access, name: str, *, apart: bool = False) -> str | None:
    """Read the data of a segment, and return how they differ from the index, or None.

    Raises:
        KeyMissing, AuthenticationFailed: as `read_content`.
    """
    _, content = _read(access, name, apart=apart)
    return None if content is None else content.wrong


def _read(access: Access, name: str, *, apart: bool = False) -> tuple[Segment | None, FileContent | None]:
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(name)
        return segment, None if segment is None else read_content(access, snapshot, segment, apart=apart)


def with_result(diagnosis: Diagnosis, wrong: Wrong) -> Diagnosis:
    """Return the diagnosis of a segment whose data were read."""
    if wrong is None:
        return diagnosis
    if isinstance(wrong, str):
        state = diagnosis.state | State.CORRUPTED
        return replace(diagnosis, state=state, reasons=(*diagnosis.reasons, wrong), freed=0, noted=True)
    return replace(diagnosis, reasons=(*diagnosis.reasons, f"it was not authenticated: {wrong.message}"))


@dataclass(frozen=True, slots=True)
class FileContent:
    """The result of reading the file of a segment."""

    wrong: str | None  # how the data that the index knows differ from it; None if they do not
    is_whole: bool  # nothing in the file is damaged, and it has its checksum
    is_read: bool  # it was read to its end


_WHOLE = FileContent(None, is_whole=True, is_read=True)


def read_content(access: Access, snapshot: Snapshot, segment: Segment, *, apart: bool = False) -> FileContent:
    """Read the file of a segment that the index knows, and compare its data with the index.

    Args:
        apart: copy the rows of the segment, and release the snapshot. If many processes read all the time, writers
            could otherwise never finish a checkpoint. Has no effect on a dir segment: a checkpoint would let a writer
            remove its files.

    Raises:
        KeyMissing: the file has its checksum, and cannot be decrypted.
        AuthenticationFailed: a key is wrong, or the file is that of another segment.
    """
    format = access.format(segment.format)
    rows = _Rows(snapshot, segment)
    equal: _Equal = {}
    wrong = Tally()
    is_whole, is_changed, found, left = True, False, ScanResult(), 0
    displaced: list[int] = []
    try:
        reader = access.current().reader
        file = None if format.is_dir else reader.file_of(segment)
        source = reader.folder_of(segment) if file is None else file
        is_changed = file is not None and access.committed(segment).is_whole_in(file) is False
        if apart and file is not None:
            snapshot.set_apart(segment)
        blocks = {block.offset: block for block in segment_rows.blocks_of(snapshot, segment)}
        for found in scan(segment.name, format, source):
            is_whole &= not (found.damage or (found.foreign and not found.in_place))
            _compare(rows.up_to(found), found, snapshot, wrong, equal)
            known = [block for block in found.blocks if block.offset < segment.end.length]
            displaced += [block.offset for block in known if blocks.pop(block.offset, None) != block]
        if file is not None:
            left = file.size() - found.end.size
    except (KeyMissing, AuthenticationFailed):
        if is_changed:
            return FileContent(reader.wrong_checksum(segment).message, is_whole=False, is_read=False)
        raise
    except (IntegrityError, SegmentMissing, StorageError) as error:
        if is_denied(error):
            raise
        has_data = segment_rows.count_of(snapshot, segment) > 0  # else the index expects nothing in the file
        return FileContent(error.message if has_data else None, is_whole=False, is_read=False)
    for offset, *_ in rows.rest():
        wrong.add(f"{offset}: {reason_at(found, offset)}")
    if is_whole and not wrong.count:
        for offset in (*displaced, *blocks):
            wrong.add(f"{offset}: the position of its block is missing or wrong in the index")
    if is_changed and not wrong.count:
        return FileContent(reader.wrong_checksum(segment).message, is_whole=False, is_read=True)
    is_whole &= not is_changed  # nobody wrote what has rotted, even if it can be read
    differs = None
    if wrong.count:
        differs = f"{wrong.count} of its data are not as the index says, the first at {format.unit} {wrong.named[0]}"
    return FileContent(differs, is_whole, left in (0, len(format.seal(found.end))))


class _Rows:
    """The rows of a segment in the order of their offsets, read in step with a scan of its file."""

    def __init__(self, snapshot: Snapshot, segment: Segment) -> None:
        self._lists = segment_rows.rows_by_offset(snapshot, segment)
        self._buffer: list[tuple[int, ...]] = []
        self._taken = 0  # rows of the buffer that were returned

    def up_to(self, found: ScanResult) -> list[tuple[int, ...]]:
        """Return the next rows, up to the last datum of a scan result."""
        if not found.offsets:
            return []
        last = found.offsets[-1]
        while not self._buffer or self._buffer[-1][0] <= last:
            more = next(self._lists, None)
            if more is None:
                break
            self._buffer = self._buffer[self._taken :] + more
            self._taken = 0
        begin, self._taken = self._taken, bisect_right(self._buffer, last, self._taken, key=itemgetter(0))
        return self._buffer[begin : self._taken]

    def rest(self) -> Iterator[tuple[int, ...]]:
        yield from self._buffer[self._taken :]
        for rows in self._lists:
            yield from rows


def _compare(rows: list[tuple[int, ...]], found: ScanResult, snapshot: Snapshot, wrong: Tally, equal: _Equal) -> None:
    """Compare rows (offset, size, reftime, fields …) with the data that a scan found; add differences to `wrong`.

    Args:
        equal: pairs of metadata that were compared and are equal. Many data share their metadata, so this saves time.
    """
    if not rows:
        return
    offsets, sizes, reftimes = ([row[at] for row in rows] for at in range(3))
    metadata = found.metadata
    if offsets != found.offsets or sizes != found.sizes or reftimes != found.reftimes:
        at = {offset: place for place, offset in enumerate(found.offsets)}
        kept = []
        metadata = []
        for row in rows:
            place = at.get(row[0])
            if place is None or found.sizes[place] != row[1]:
                wrong.add(f"{row[0]}: {reason_at(found, row[0])}")
            elif found.reftimes[place] != row[2]:
                wrong.add(f"{row[0]}: it has another reftime")
            else:
                kept.append(row)
                metadata.append(found.metadata[place])
        rows = kept
    keys = [row[3:] for row in rows]
    pairs = [*zip(map(id, metadata), keys, strict=True)]
    if new := [pair for pair in set(pairs) if pair not in equal]:
        if len(equal) > _REMEMBERED:
            equal.clear()
        names = snapshot.columns.kinds.keys()
        by_id = dict(zip(map(id, metadata), metadata, strict=True))
        differing = {pair for pair in new if snapshot.canonical(pair[1]) != _declared(by_id[pair[0]], names)}
        equal.update((pair, by_id[pair[0]]) for pair in new if pair not in differing)
        if differing:
            for pair, row in zip(pairs, rows, strict=True):
                if pair in differing:
                    wrong.add(f"{row[0]}: it has other metadata")


def _declared(metadata: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: metadata[name] for name in names if name in metadata}


def reason_at(found: ScanResult, offset: int) -> str:
    """Return why no datum is at an offset."""
    for damage in found.damage:
        if damage.offset <= offset < damage.offset + damage.size:
            return damage.reason
    return "no complete datum is there"


def staged_by_jobs(access: Access, now: float | None = None) -> Iterator[Diagnosis]:
    """Diagnose the staged files of each job. They are OK while the job may still run."""
    for job in jobs(access.directory, now):
        name = f"{STAGED}/{job.name}"
        if job.runs:
            reason = "a job staged it that is running, or was killed less than a day ago"
            yield Diagnosis(name, State.OK, (reason,))
        else:
            yield Diagnosis(name, State.DELETED, ("a job staged it, and was interrupted",), job.size)


def old_items(access: Access, ages: Ages) -> Iterator[Diagnosis]:
    """Diagnose the items that are older than `quarantine_age`; none without that key.

    An item whose name does not say when it was kept has no age.
    """
    age = access.config.quarantine_age
    if age is None:
        return
    threshold = days_ago(age, ages.now)
    for item in quarantine.items(access.directory):
        is_old = item.time is not None and microseconds(item.time) < threshold
        if item.time is not None and is_old and place_of(item.name) in maintained(access.config):
            reason = f"it is in quarantine since {item.time:%Y-%m-%d}, longer than quarantine_age allows: {item.why}"
            found = Diagnosis(item.name, State.DELETE_AGE, (reason,), item.size)
            yield found if ages.doubt is None else found.hold(by_age_remedy(access, ages.doubt))
