"""Segments that an index was lost of while they stood in the dataset and in its archive: every datum is there once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.crashes import killed_in
from worlds import content, lose_index, same

import ondisk
from ondisk import Datum
from ondisk.index import INDEX
from ondisk.maintenance import archive as archiving
from ondisk.maintenance.states import State

T = datetime(2026, 11, 20, tzinfo=UTC)
BASE = {"step": "daily", "unique": ["reftime", "n"], "fields": {"n": "integer"}}
KINDS = {
    "dir": {"format": "blob", "extension": "h5"},
    "seg lz4": {"format": "seg"},
    "jsonl": {"format": "jsonl"},
}
LAST = ".archive/last"


def some(count: int = 4, value: int = 0, form: str = "seg") -> list[Datum]:
    data: Any = b"%d" % value if form == "blob" else {"value": value}
    return [Datum(T + timedelta(hours=n), {"n": n}, data) for n in range(count)]


def lost(path: Path, *parts: str) -> ondisk.Dataset:
    """Lose the indices of the dataset (""), or of its archive, and open it."""
    for part in parts:
        lose_index(path / part)
    return ondisk.open(path)


def check_mended(path: Path, parts: tuple[str, ...], before: list[Any]) -> None:
    """With these indices lost, a fix and a repack leave the data that were there, each once."""
    with lost(path, *parts) as again:
        again.fix()
        assert same(content(again), before)
        again.repack()
        assert same(content(again), before)
        assert not [each for each in again.check(accurate=True) if each.state]


def wait_for_a_tick(folder: Path) -> None:
    """Wait until what is changed now is newer than the last commit: the clock of files ticks each 1 to 10 ms."""
    begin, probe = time.time_ns(), folder / "probe"
    probe.touch()
    while probe.stat().st_mtime_ns <= begin:
        probe.touch()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**BASE, **KINDS[request.param]}


@pytest.fixture
def dataset(kind: dict[str, Any], tmp_path: Path) -> ondisk.Dataset:
    dataset = ondisk.create(tmp_path / "dataset", kind)
    dataset.append(some(form=kind["format"]))
    return dataset


def name_of(dataset: ondisk.Dataset) -> str:
    return f"2026/11-20.{'h5' if dataset.config.format == 'blob' else dataset.config.format}"


@pytest.mark.parametrize("parts", [("",), (LAST,), ("", LAST)], ids=["its index", "the archive's", "both"])
@pytest.mark.parametrize("is_read", [False, True], ids=["killed", "read"])
def test_what_was_archived_and_is_still_in_the_dataset_is_there_once(
    is_read: bool, parts: tuple[str, ...], dataset: ondisk.Dataset
) -> None:
    before = content(dataset)
    if is_read:
        reader = dataset.query()
        next(reader)
        dataset.archive(name_of(dataset))
    else:
        with killed_in(archiving, "_drop"):
            dataset.archive(name_of(dataset))
    dataset.close()
    check_mended(dataset.path, parts, before)


@pytest.mark.parametrize("parts", [("",), (LAST,), ("", LAST)], ids=["its index", "the archive's", "both"])
def test_what_was_taken_back_and_is_still_in_the_archive_is_there_once(
    parts: tuple[str, ...], dataset: ondisk.Dataset
) -> None:
    before = content(dataset)
    dataset.archive(name_of(dataset))
    with killed_in(archiving, "_drop"):
        dataset.unarchive(name_of(dataset))
    dataset.close()
    check_mended(dataset.path, parts, before)


def test_what_was_replaced_in_the_archive_does_not_come_back_with_its_index(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    dataset = ondisk.create(tmp_path / "dataset", {**kind, "replace": "yes"})
    dataset.append(some(form=kind["format"]))
    dataset.archive(name_of(dataset))
    dataset.append(some(2, 1, kind["format"]))
    before = content(dataset)
    dataset.close()
    with lost(dataset.path, LAST) as again:
        report = again.fix()
        assert report.lost == 0, "what others took the place of is no loss"
        assert "2 data have the same unique values as other data" in report.segments[0].reasons[-1]
        assert same(content(again), before)


def test_a_segment_that_people_moved_back_by_hand_is_read_there(dataset: ondisk.Dataset) -> None:
    before = content(dataset)
    dataset.archive(name_of(dataset))
    dataset.close()
    name = name_of(dataset)
    wait_for_a_tick(dataset.path.parent)
    (dataset.path / LAST / name).rename(dataset.path / name)
    if dataset.config.format == "blob":
        (dataset.path / name / ".sequence").touch()  # its age is that of a dir segment
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert same(content(again), before)
        assert not [each for each in again.check() if each.state]


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_segment_that_people_moved_to_another_archive_is_left_until_that_archive_knows_it(
    dataset: ondisk.Dataset, is_archived: bool
) -> None:
    """It comes from the dataset, or from the archive that repack fills."""
    form, name, path = dataset.config.format, name_of(dataset), dataset.path
    early = [Datum(T - timedelta(days=2), {"n": 9}, some(1, form=form)[0].data)]
    dataset.append(early)
    before = content(dataset)
    dataset.archive(name.replace("20.", "18."))
    dataset.close()
    other = (path / LAST).rename(path / ".archive/other")
    if is_archived:
        with ondisk.open(path) as again:
            again.archive(name)
    (path / (LAST if is_archived else "") / name).rename(other / name)
    with ondisk.open(path) as again:
        for verb in (again.fix, again.repack, lambda: again.fix(forget=True)):
            assert verb().lost == 0
            (found,) = [each for each in again.check() if each.state]
            assert found.state == State.MISSING
            assert found.held
            assert f"run `ondisk fix {other} --yes` first" in found.reasons[-1]
    with ondisk.open(other) as archive:
        archive.fix()
    with ondisk.open(path) as again:
        assert again.fix().lost == 0
        assert same(content(again), before)
        assert not [each for each in again.check() if each.state]


def test_without_a_key_nothing_is_asked_of_the_archive(kind: dict[str, Any], tmp_path: Path) -> None:
    dataset = ondisk.create(tmp_path / "dataset", {**kind, "unique": []})
    for _ in range(2):
        dataset.append(some(form=kind["format"]))
    dataset.archive(name_of(dataset))
    dataset.append(some(form=kind["format"]))
    before = content(dataset)
    dataset.close()
    with lost(dataset.path, "", LAST) as again:
        again.fix()
        assert same(content(again), before)


def numbers(path: Path) -> list[int]:
    with closing(sqlite3.connect(path / INDEX)) as index:
        return [row[0] for table in ("datum", "deletion") for row in index.execute(f"SELECT seq FROM {table}")]


@pytest.mark.parametrize("verb", ["append", "delete"])
def test_no_number_is_used_twice_where_a_fix_of_the_archive_is_killed_beside_a_writer(
    verb: str, dataset: ondisk.Dataset
) -> None:
    later = [Datum(each.reftime + timedelta(days=9), each.metadata, each.data) for each in dataset.query()]
    dataset.append(later)
    dataset.archive(name_of(dataset))
    dataset.close()
    lost(dataset.path, "", LAST).close()
    with ondisk.open(dataset.path) as writer, ondisk.open(dataset.path) as fixing:
        with killed_in(Archives, "catch_up"):
            fixing.fix()
        if verb == "append":
            writer.append([Datum(each.reftime + timedelta(days=1), each.metadata, each.data) for each in later])
        else:
            writer.delete("reftime: >=2026-11-25")
    taken = [*numbers(dataset.path), *numbers(dataset.path / LAST)]
    assert len(taken) == len(set(taken))


def test_a_repack_forgets_a_missing_segment_without_data_whatever_has_its_bytes_elsewhere(dataset):
    """Its data were deleted and stored again, in the same order."""
    dataset.archive(name_of(dataset))
    dataset.delete("")
    dataset.append(some(form=dataset.config.format))
    before = content(dataset)
    archived = dataset.path / LAST / name_of(dataset)
    archived.rename(dataset.path.with_name("aside"))
    dataset.repack()
    assert dataset.check(accurate=True).is_clean
    assert same(content(dataset), before)
