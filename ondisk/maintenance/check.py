"""Check: says what is wrong with a dataset. It reads only, but for a check in slices, which remembers what it did."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess
from ondisk.errors import IntegrityError, SegmentMissing, StorageError
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.maintenance import abandoned
from ondisk.maintenance.inspect import Inspection
from ondisk.maintenance.states import Diagnosis, Report, State
from ondisk.segment import ScanResult
from ondisk.segments.dir import scan

_REMEMBERED = 50_000
_Equal: TypeAlias = dict[tuple[int, tuple[int, ...]], Mapping[str, Any]]
"""Metadata that were found beside what the index says, where both are equal: (id, fields of the row) → metadata."""

_UNREADABLE = State.MISSING | State.CORRUPTED | State.UNALIGNED | State.DELETED

ReadAll: TypeAlias = Callable[[Access, list[str], Callable[[str], None]], Iterable[tuple[str, str | None]]]
"""Reads the data of segments, in whatever order, and gives what is wrong with each."""


def read_here(access: Access, names: list[str], progress: Callable[[str], None]) -> Iterator[tuple[str, str | None]]:
    """Read the data of segments, one after the other; gives what is wrong with each."""
    for name in names:
        progress(name)
        yield name, wrong_with(access, name)


def check(
    access: DatasetAccess,
    *,
    accurate: bool = False,
    max_duration: float | None = None,
    now: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    read_all: ReadAll = read_here,
) -> Report:
    """Diagnose every segment.

    Args:
        accurate: read the data, too: frame checksums, decoding, and whether the index says the same as they do.
        max_duration: seconds to read data for; those that were not read for the longest time are read first, and what
            was found is remembered.
        now: seconds since 1970; None for the present.
        progress: is told the name of each segment before its data are read.
        read_all: who reads the data, where nothing limits how long.

    Locks: none; with `max_duration` the writers' lock, for a moment after each segment.
    """
    report = Report(str(access.path))
    deadline = None if max_duration is None else time.monotonic() + max_duration
    for part in access.archives.maintained():
        report.needs_check |= part.needs_check()
        inspection = Inspection(part, now)
        found = [*inspection.diagnoses()]
        if deadline is not None:
            found = _read_in_slices(inspection, found, deadline, progress)
        elif accurate:
            readable = [each.segment for each in found if not each.state & _UNREADABLE]
            damage = dict(read_all(part, readable, progress))
            found = [_with_damage(each, damage.get(each.segment)) for each in found]
        report.add(part.prefix, found)
        report.segments += abandoned.diagnosed(part, now)
    return report


def _read_in_slices(
    inspection: Inspection, found: list[Diagnosis], deadline: float, progress: Callable[[str], None]
) -> list[Diagnosis]:
    """Read the data of as many segments as there is time for; at least of one.

    What was noted of a segment is taken back where its file, put back from a backup, is whole again.
    """
    access = inspection.access
    by_name = {each.segment: each for each in found}
    with access.current().index.snapshot() as snapshot:
        names = [*segment_rows.longest_unchecked(snapshot)]
    for name in names:
        before = by_name.get(name)
        if before is None or (before.state & _UNREADABLE and not before.noted):
            continue
        progress(name)
        segment, content = _read(access, name)
        if segment is None or content is None:
            continue
        damage = before.reasons[0] if before.noted and content != _WHOLE else content.wrong
        with access.transaction("check") as transaction:
            transaction.note_check(segment, damage)  # of another generation, nothing is noted
            transaction.commit()
        if not before.noted:
            by_name[name] = _with_damage(before, damage)
        elif damage is None:
            with access.current().index.snapshot() as snapshot:
                by_name[name] = inspection.examine(snapshot, name)[0] or before
        if time.monotonic() >= deadline:
            break
    return [*by_name.values()]


def wrong_with(access: Access, name: str, *, apart: bool = False) -> str | None:
    """Read the data of a segment; gives what of it is not as the index says, None where all is.

    Args:
        apart: as `read_content` has it.
    """
    _, content = _read(access, name, apart=apart)
    return None if content is None else content.wrong


def _read(access: Access, name: str, *, apart: bool = False) -> tuple[Segment | None, Content | None]:
    """Read the data of a segment; gives the generation that was read, and what that told."""
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(name)
        return segment, None if segment is None else read_content(access, snapshot, segment, apart=apart)


def _with_damage(diagnosis: Diagnosis, damage: str | None) -> Diagnosis:
    if damage is None:
        return diagnosis
    return replace(diagnosis, state=diagnosis.state | State.CORRUPTED, reasons=(*diagnosis.reasons, damage), freed=0)


@dataclass(frozen=True, slots=True)
class Content:
    """What reading the file of a segment told.

    Attributes:
        wrong: what of the data that the index knows is not as it says; None where all is.
        is_whole: nothing in the file is damaged.
        is_read: it was read to its end.
    """

    wrong: str | None
    is_whole: bool
    is_read: bool


_WHOLE = Content(None, is_whole=True, is_read=True)


def read_content(access: Access, snapshot: Snapshot, segment: Segment, *, apart: bool = False) -> Content:
    """Read the file of a segment that the index knows, and compare the data there with what the index says.

    Args:
        apart: copy what the index says, and let go of the snapshot: where many read all the time, no writer's
            checkpoint would find a moment without any. Of a dir segment, whose files go with a checkpoint, not.
    """
    format = access.format(segment.format)
    rows = _Rows(snapshot, segment)
    equal: _Equal = {}
    wrong = _Wrong(format.unit)
    is_whole, found, left = True, ScanResult(), 0
    displaced: list[int] = []
    try:
        file = None if format.is_dir else access.current().reader.file_of(segment)
        if apart and file is not None:
            snapshot.set_apart(segment)
        blocks = {block.offset: block for block in segment_rows.blocks_of(snapshot, segment)}
        for found in scan(access.directory, segment.name, format.describe) if file is None else format.scan(file):
            is_whole &= not (found.damage or found.foreign)
            _compare(rows.up_to(found), found, snapshot, wrong, equal)
            known = [block for block in found.blocks if block.offset < segment.end.length]
            displaced += [block.offset for block in known if blocks.pop(block.offset, None) != block]
        if file is not None:
            left = file.size() - found.end.size
    except (IntegrityError, SegmentMissing, StorageError) as error:
        return Content(error.message, is_whole=False, is_read=False)
    for offset, *_ in rows.rest():
        wrong.add(offset, reason_at(found, offset))
    if is_whole and not wrong.count:
        for offset in (*displaced, *blocks):
            wrong.add(offset, "the index does not say where its block stands")
    return Content(str(wrong) if wrong.count else None, is_whole, left in (0, len(format.seal(found.end))))


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
        self._lists = segment_rows.rows_by_offset(snapshot, segment)
        self._held: list[tuple[int, ...]] = []
        self._taken = 0  # of those that are held

    def up_to(self, found: ScanResult) -> list[tuple[int, ...]]:
        """Take the rows of data that begin before what was found ends."""
        if not found.offsets:
            return []
        last = found.offsets[-1]
        while not self._held or self._held[-1][0] <= last:
            more = next(self._lists, None)
            if more is None:
                break
            self._held = self._held[self._taken :] + more
            self._taken = 0
        begin, self._taken = self._taken, bisect_right(self._held, last, self._taken, key=itemgetter(0))
        return self._held[begin : self._taken]

    def rest(self) -> Iterator[tuple[int, ...]]:
        """Take all other rows."""
        yield from self._held[self._taken :]
        for rows in self._lists:
            yield from rows


def _compare(rows: list[tuple[int, ...]], found: ScanResult, snapshot: Snapshot, wrong: _Wrong, equal: _Equal) -> None:
    """Compare rows (offset, size, reftime, fields …) with the data that stand there.

    Args:
        equal: data of one series share their metadata, so each is compared once, and remembered here.
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
                wrong.add(row[0], reason_at(found, row[0]))
            elif found.reftimes[place] != row[2]:
                wrong.add(row[0], "it has another reftime")
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
                    wrong.add(row[0], "it has other metadata")


def _declared(metadata: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Leave out of what a scan found the metadata that the index does not hold."""
    return {name: metadata[name] for name in names if name in metadata}


def reason_at(found: ScanResult, offset: int) -> str:
    """Say why no datum stands at an offset."""
    for damage in found.damage:
        if damage.offset <= offset < damage.offset + damage.size:
            return damage.reason
    return "no whole datum stands there"
