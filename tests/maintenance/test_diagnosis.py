"""The diagnosis is a pure function: what the index says and what the disk says give states and every reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ondisk.index import Segment
from ondisk.maintenance.ages import AgeLimits
from ondisk.maintenance.diagnosis import Circumstances, Known, OnDisk, Rows, diagnose
from ondisk.maintenance.states import Diagnosis, State
from ondisk.segment import End, NotedDamage
from ondisk.segments.file_facts import Seen
from ondisk.step import DAY, Step

NAME = "1970/01-11.seg"
BEGIN, END = 10 * DAY, 11 * DAY
START = 12  # of the first datum
NOTED = NotedDamage("noted")
TRUSTED = Circumstances(Step.DAILY, needs_check=False)
DELETING = replace(TRUSTED, deletes_unknown=True)
LOST = replace(TRUSTED, needs_check=True)
GONE, CLEAN, DIRECTORY = None, OnDisk(True, 112), OnDisk(False, 4096)
TOUCHED, CHANGED, UNPROVEN = (replace(CLEAN, seen=seen) for seen in (Seen.SAME_TAIL, Seen.OTHER, Seen.UNKNOWN))


def known(
    *, size: int = 112, length: int | None = None, compressed: bool = False, data: int = 100, **values: Any
) -> Known:
    """Say what the index says of `data` bytes of data, one after the other."""
    end, has_unknown = End(size, size if length is None else length, 10, compressed), values.pop("has_unknown", False)
    usual = {"count": 10, "size": data, "begin": BEGIN, "end": END - 1, "first": START, "data_end": 112, **values}
    rows = Rows(**{name: value for name, value in usual.items() if name in Rows.__slots__})
    others = {name: value for name, value in usual.items() if name not in Rows.__slots__}
    return Known(Segment(7, NAME, "seg", end, has_unknown=has_unknown), rows, **{"needed": 112, **others})


def aged(*, archive: int | None = None, delete: int | None = None) -> Circumstances:
    """Return circumstances in which segments that end at these times or before are old enough."""
    return replace(TRUSTED, limits=AgeLimits(archive, delete))


KNOWN: list[tuple[Known, OnDisk | None, Circumstances, State, list[str], int]] = [
    (known(), CLEAN, TRUSTED, State.OK, [], 0),
    (known(), CLEAN, LOST, State.OK, [], 0),
    (known(), TOUCHED, TRUSTED, State.OK, [], 0),
    (known(), CHANGED, TRUSTED, State.UNALIGNED, ["is not the file that the index describes"], 0),
    (known(), UNPROVEN, TRUSTED, State.UNALIGNED, ["is not the file that the index describes"], 0),
    (known(has_unknown=True), CLEAN, TRUSTED, State.UNALIGNED, ["after data of another program"], 0),
    (known(first=22, data=90), CHANGED, TRUSTED, State.UNALIGNED, ["is not the file", "10 bytes before"], 0),
    (known(damage=NOTED), CHANGED, TRUSTED, State.UNALIGNED, ["is not the file"], 0),
    (known(), GONE, TRUSTED, State.MISSING, ["not on disk"], 0),
    (known(), GONE, LOST, State.MISSING, ["not on disk"], 0),
    (known(), DIRECTORY, TRUSTED, State.MISSING, ["not a regular file"], 0),
    (known(count=0), GONE, TRUSTED, State.MISSING, ["the index has 0 data of it"], 0),
    (known(count=0), CLEAN, TRUSTED, State.DELETED, ["were deleted"], 112),
    (known(count=0), TOUCHED, TRUSTED, State.DELETED, ["were deleted"], 112),
    (known(count=0), CHANGED, TRUSTED, State.UNALIGNED, ["is not the file that the index describes"], 0),
    (known(count=0), replace(CLEAN, has_grown=True), TRUSTED, State.UNALIGNED, ["has appended data to it"], 0),
    (known(count=0), CLEAN, LOST, State.UNALIGNED, ["may have lost them"], 0),
    (known(count=0), replace(CLEAN, is_empty=True), LOST, State.DELETED, ["were deleted"], 112),
    (known(count=0), replace(CLEAN, is_readable=False), LOST, State.CORRUPTED, ["of its format"], 0),
    (known(count=0), replace(CLEAN, is_readable=False, is_zeros=True), LOST, State.CORRUPTED, ["only zeros"], 0),
    (known(count=0, damage=NOTED), CLEAN, LOST, State.CORRUPTED, ["noted"], 0),
    (known(first=22, data=90), CLEAN, TRUSTED, State.DIRTY, ["10 bytes before"], 10),
    (known(gaps=10, gap_at=32, data=90), CLEAN, TRUSTED, State.DIRTY,
     ["10 bytes between its data belong to no datum, the first at byte 32"], 10),
    (known(data_end=102, needed=102, data=90), CLEAN, TRUSTED, State.DIRTY, ["10 bytes after"], 10),
    (known(first=22, data=90), CLEAN, LOST, State.UNALIGNED, ["10 bytes before"], 0),
    (known(), OnDisk(True, 130), TRUSTED, State.DIRTY, ["18 bytes at its end"], 18),
    (known(), OnDisk(True, 130), LOST, State.UNALIGNED, ["18 bytes at its end"], 0),
    (known(), OnDisk(True, 116, sealed=4), TRUSTED, State.OK, [], 0),
    (known(), OnDisk(True, 117, sealed=4), TRUSTED, State.DIRTY, ["5 bytes at its end"], 5),
    (known(data_end=102, needed=102, data=90), OnDisk(True, 105), TRUSTED,
     State.CORRUPTED | State.DIRTY, ["shrank from 112 to 105 bytes; no data are missing", "10 bytes after"], 0),
    (known(misplaced=1, misplaced_at=50), CLEAN, TRUSTED, State.DIRTY, ["1 datum is out of time order"], 0),
    (known(misplaced=2, misplaced_at=50), CLEAN, TRUSTED, State.DIRTY, ["2 data are out of time order"], 0),
    (known(misplaced=2, misplaced_at=50, gaps=10, gap_at=40, data=90), CLEAN, TRUSTED, State.DIRTY,
     ["10 bytes between", "2 data are out of time order"], 10),
    (known(), OnDisk(True, 111), TRUSTED, State.CORRUPTED,
     ["shrank from 112 to 111 bytes; its data end at byte 112"], 0),
    (known(overlaps=1, overlap_at=20), CLEAN, TRUSTED, State.CORRUPTED, ["byte 20"], 0),
    (known(begin=BEGIN - 1), CLEAN, TRUSTED, State.CORRUPTED, ["other times"], 0),
    (known(end=END), CLEAN, TRUSTED, State.CORRUPTED, ["other times"], 0),
    (known(damage=NOTED), CLEAN, TRUSTED, State.CORRUPTED, ["noted"], 0),
    (known(), CLEAN, replace(TRUSTED, step=Step.MONTHLY), State.CORRUPTED, ["does not fit the step monthly"], 0),
    (known(), CLEAN, TRUSTED, State.OK, [], 0),
    (known(first=22, overlaps=1, overlap_at=20, damage=NOTED), OnDisk(True, 100), LOST,
     State.CORRUPTED | State.DIRTY, ["1 overlap", "shrank from 112 to 100 bytes", "noted", "10 bytes before"], 0),
    (known(), CLEAN, aged(archive=END), State.ARCHIVE_AGE, ["archived"], 0),
    (known(), CLEAN, aged(archive=END - 1), State.OK, [], 0),
    (known(), CLEAN, aged(archive=END, delete=END), State.DELETE_AGE, ["deleted"], 112),
    (known(), CLEAN, aged(archive=END, delete=END - 1), State.ARCHIVE_AGE, ["archived"], 0),
    (known(first=22, data=90), CLEAN, aged(archive=END), State.DIRTY | State.ARCHIVE_AGE,
     ["10 bytes before", "archived"], 10),
    (known(first=22, data=90), CLEAN, aged(delete=END), State.DIRTY | State.DELETE_AGE,
     ["10 bytes before", "deleted"], 112),
    (known(damage=NOTED), CLEAN, aged(delete=END), State.CORRUPTED | State.DELETE_AGE,
     ["noted", "deleted"], 0),
    (known(size=60, length=112, compressed=True, needed=60), OnDisk(True, 60), TRUSTED, State.OK, [], 0),
    (known(size=60, length=112, compressed=True, needed=60, gaps=50, gap_at=30, data=50), OnDisk(True, 60),
     TRUSTED, State.DIRTY, ["50 bytes between"], 27),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(KNOWN)))
def test_a_segment_of_the_index_is_diagnosed(row: int) -> None:
    said, found, at, state, reasons, freed = KNOWN[row]
    diagnosis = diagnose(NAME, said, found, at, START)
    assert (diagnosis.segment, diagnosis.state, diagnosis.freed) == (NAME, state, freed)
    for told, reason in zip(diagnosis.reasons, reasons, strict=True):
        assert reason in told
    assert diagnosis.noted == (reasons[:1] == ["noted"])


EMPTY, UNREADABLE = OnDisk(True, 12, is_empty=True), OnDisk(True, 12, is_readable=False)
UNKNOWN: list[tuple[str, OnDisk, Circumstances, State, int]] = [
    (NAME, CLEAN, DELETING, State.DELETED, 112),
    (NAME, CLEAN, TRUSTED, State.UNALIGNED, 0),
    (NAME, CLEAN, LOST, State.UNALIGNED, 0),
    (NAME, CLEAN, replace(DELETING, needs_check=True), State.UNALIGNED, 0),
    (f".archive/last/{NAME}", CLEAN, TRUSTED, State.UNALIGNED, 0),
    (NAME, EMPTY, TRUSTED, State.OK, 0),
    (NAME, EMPTY, DELETING, State.DELETED, 12),
    (NAME, EMPTY, LOST, State.UNALIGNED, 0),
    (NAME, UNREADABLE, TRUSTED, State.CORRUPTED, 0),
    (NAME, UNREADABLE, LOST, State.CORRUPTED, 0),
    (NAME, replace(UNREADABLE, is_zeros=True), LOST, State.CORRUPTED, 0),
    (NAME, DIRECTORY, TRUSTED, State.CORRUPTED, 0),
    ("1970/01.seg", CLEAN, TRUSTED, State.CORRUPTED, 0),
    ("1970/01.seg", CLEAN, LOST, State.CORRUPTED, 0),
    ("1970/01.seg", EMPTY, TRUSTED, State.CORRUPTED, 0),
    (".archive/last/1970/01.seg", CLEAN, TRUSTED, State.UNALIGNED, 0),
    (".archive/last/a/b.seg", CLEAN, TRUSTED, State.CORRUPTED, 0),
]


@pytest.mark.parametrize("row", range(len(UNKNOWN)))
def test_a_segment_that_the_index_does_not_know_is_diagnosed(row: int) -> None:
    name, found, at, state, freed = UNKNOWN[row]
    diagnosis = diagnose(name, None, found, at, START)
    assert (diagnosis.segment, diagnosis.state, diagnosis.freed) == (name, state, freed)
    assert len(diagnosis.reasons) == 1


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (State.OK, None),
        (State.DIRTY, "repack"),
        (State.UNALIGNED, "rescan"),
        (State.MISSING, "remove from the index"),
        (State.DELETED, "delete"),
        (State.DELETE_AGE | State.DIRTY, "delete"),
        (State.ARCHIVE_AGE, "archive"),
        (State.ARCHIVE_AGE | State.DIRTY, "repack and archive"),
        (State.CORRUPTED, None),
        (State.CORRUPTED | State.DIRTY, None),
        (State.CORRUPTED | State.DELETE_AGE, None),
    ],
)
def test_what_mends_a_state_is_reported(state: State, action: str | None) -> None:
    assert Diagnosis(NAME, state).action == action
