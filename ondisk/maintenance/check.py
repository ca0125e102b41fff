"""Check: says what is wrong with a dataset. It reads only, but for a check in slices, which remembers what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.errors import IntegrityError, SegmentMissing
from ondisk.formats import Format, Found
from ondisk.index import Segment, Snapshot, places
from ondisk.maintenance.census import diagnoses
from ondisk.maintenance.states import Diagnosis, Report, State
from ondisk.segments.dir import scan

_UNREADABLE = State.MISSING | State.CORRUPTED | State.UNALIGNED | State.DELETED


def check(
    access: Access,
    archives: Archives,
    *,
    accurate: bool = False,
    max_duration: float | None = None,
    now: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Diagnose every segment.

    Args:
        accurate: read the data, too: frame checksums, decoding, and whether the index says the same as they do.
        max_duration: seconds to read data for; those that were not read for the longest time are read first, and what
            was found is remembered.
        now: seconds since 1970; None for the present.
        progress: is told the name of each segment before its data are read.

    Locks: none; with `max_duration` the writers' lock, for a moment after each segment.
    """
    report = Report(str(access.path))
    deadline = None if max_duration is None else time.monotonic() + max_duration
    for part in archives.maintained():
        report.needs_check |= part.needs_check()
        found = [*diagnoses(part, now)]
        if deadline is not None:
            found = _read_in_slices(part, found, deadline, progress)
        elif accurate:
            found = [_read(part, each, progress) for each in found]
        report.add(part.prefix, found)
    return report


def _read_in_slices(
    access: Access, found: list[Diagnosis], deadline: float, progress: Callable[[str], None]
) -> list[Diagnosis]:
    """Read the data of as many segments as there is time for; at least of one."""
    by_name = {each.segment: each for each in found}
    with access.current().index.snapshot() as snapshot:
        names = [*places.longest_unchecked(snapshot)]
    for name in names:
        if name not in by_name or by_name[name].state & _UNREADABLE:
            continue
        before = by_name[name]
        by_name[name] = after = _read(access, before, progress)
        with access.transaction("check") as transaction:
            with access.current().index.snapshot() as snapshot:
                segment = snapshot.segment_named(name)
                noted = None if segment is None else places.damage_of(snapshot, segment)
            if segment is not None:
                is_new = State.CORRUPTED in after.state and State.CORRUPTED not in before.state
                transaction.note_check(segment, after.reasons[-1] if is_new else noted)
                transaction.commit()
        if time.monotonic() >= deadline:
            break
    return [*by_name.values()]


def _read(access: Access, diagnosis: Diagnosis, progress: Callable[[str], None]) -> Diagnosis:
    """Read the data of a segment, and add what is wrong with them to its diagnosis."""
    if diagnosis.state & _UNREADABLE:
        return diagnosis
    progress(diagnosis.segment)
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(diagnosis.segment)
        damage = None if segment is None else content_damage(access, snapshot, segment)
    if damage is None:
        return diagnosis
    return replace(diagnosis, state=diagnosis.state | State.CORRUPTED, reasons=(*diagnosis.reasons, damage), freed=0)


def content_damage(access: Access, snapshot: Snapshot, segment: Segment) -> str | None:
    """Read the data of a segment that the index knows, and say what is wrong with them; None where nothing is."""
    format = access.format(segment.format)
    rows = _Rows(snapshot, segment)
    wrong = _Wrong(format.unit)
    try:
        for found in _scanned(access, segment, format):
            _compare(rows.up_to(found), found, snapshot, wrong)
    except (IntegrityError, SegmentMissing) as error:
        return error.message
    for offset, *_ in rows.rest():
        wrong.add(offset, "no whole datum stands there")
    return str(wrong) if wrong.count else None


def _scanned(access: Access, segment: Segment, format: Format) -> Iterator[Found]:
    if format.is_dir:
        return scan(access.directory, segment.name, format)
    return format.scan(access.current().reader.file_of(segment))


class _Wrong:
    """Data that are not as the index says: how many, and what of the first."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self.count = 0
        self._first = ""

    def add(self, offset: int, reason: str) -> None:
        self.count += 1
        if self.count == 1:
            self._first = f"at {self._unit} {offset}: {reason}"

    def __str__(self) -> str:
        return f"{self.count} of its data are not as the index says, the first {self._first}"


class _Rows:
    """The rows of a segment in the order of their offsets, taken as far as a scan has come."""

    def __init__(self, snapshot: Snapshot, segment: Segment) -> None:
        self._lists = places.rows_by_offset(snapshot, segment)
        self._held: list[tuple[int, ...]] = []

    def up_to(self, found: Found) -> list[tuple[int, ...]]:
        """Take the rows of data that begin before what was found ends."""
        if not found.offsets:
            return []
        last = found.offsets[-1]
        while not self._held or self._held[-1][0] <= last:
            more = next(self._lists, None)
            if more is None:
                break
            self._held += more
        at = len(self._held)
        while at and self._held[at - 1][0] > last:
            at -= 1
        taken, self._held = self._held[:at], self._held[at:]
        return taken

    def rest(self) -> Iterator[tuple[int, ...]]:
        """Take all other rows."""
        yield from self._held
        for rows in self._lists:
            yield from rows


def _compare(rows: list[tuple[int, ...]], found: Found, snapshot: Snapshot, wrong: _Wrong) -> None:
    """Compare rows (offset, size, reftime, fields …) with the data that stand there."""
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
                wrong.add(row[0], reason_at(found, row[0]))
            elif found.reftimes[place] != row[2]:
                wrong.add(row[0], "it has another reftime")
            else:
                kept.append(row)
                metadata.append(found.metadata[place])
        rows = kept
    # Data of one series share their metadata, so each is compared once.
    keys = [row[3:] for row in rows]
    pairs = {(id(each), key): (each, row) for each, key, row in zip(metadata, keys, rows, strict=True)}
    differing = {pair for pair, (each, row) in pairs.items() if snapshot.canonical(row[3:]) != each}
    if differing:
        for each, key, row in zip(metadata, keys, rows, strict=True):
            if (id(each), key) in differing:
                wrong.add(row[0], "it has other metadata")


def reason_at(found: Found, offset: int) -> str:
    """Say why no datum stands at an offset."""
    for damage in found.damage:
        if damage.offset <= offset < damage.offset + damage.size:
            return damage.reason
    return "no whole datum stands there"
