"""What fix and repack leave because too much would go at once: disks that are not mounted, wrong clocks."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from worlds import change_config, clock, lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.maintenance.ages import counted_from, doubt, kept, too_many
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.metrics import metrics
from ondisk.maintenance.states import State
from ondisk.step import DAY

X = [f"2025/01-0{day}.vm2" for day in range(1, 6)]
Y = [f"2026/01-0{day}.vm2" for day in range(1, 6)]
FOLDER, HALF, ABSENT = "3 of 3 segments in 2025 are missing", "of 4 segments are missing", "does not exist"

KEPT = {
    "nothing is missing": (set(), {*X}, set(), set(), ""),
    "one of many": ({X[0]}, {*X}, set(), set(), ""),
    "the only one": ({X[0]}, {X[0]}, set(), set(), ""),
    "two of two": ({*X[:2]}, {*X[:2]}, set(), set(), ""),
    "all three of a folder": ({*X[:3]}, {*X[:3], *Y}, set(), {*X[:3]}, FOLDER),
    "more than half of a folder": ({*X[:3]}, {*X, *Y}, set(), {*X[:3]}, "3 of 5 segments in 2025 are missing"),
    "a folder, and one of another": ({*X[:3], Y[0]}, {*X[:3], *Y}, set(), {*X[:3]}, FOLDER),
    "half of the dataset": ({X[0], X[1], Y[0]}, {*X[:3], *Y[:3]}, set(), set(), ""),
    "more than half, of two folders": ({X[0], X[1], Y[0]}, {*X[:2], *Y[:2]}, set(), {X[0], X[1], Y[0]}, HALF),
    "one whose folder does not exist": ({X[0], Y[0]}, {X[0], *Y}, {"2025"}, {X[0]}, ABSENT),
}


@pytest.mark.each
@pytest.mark.parametrize("case", KEPT)
def test_missing_segments_are_kept_if_many_are_missing_at_once(case: str) -> None:
    missing, known, absent, names, reason = KEPT[case]
    reasons = kept(missing, known, absent)
    assert reasons.keys() == names
    assert all(reason in each for each in reasons.values())


NOW = 20_000 * DAY
COUNTED = {
    "committed a moment ago": (NOW, NOW - 1, None, NOW - 1),
    "a day ahead": (NOW + DAY, NOW, NOW - DAY, NOW),
    "ten days ahead": (NOW + 10 * DAY, NOW, None, NOW),
    "a month ahead": (NOW + 30 * DAY, NOW, NOW, None),
    "a year ahead, without data": (NOW + 365 * DAY, NOW, None, None),
    "behind": (NOW - 30 * DAY, NOW, NOW, NOW - 30 * DAY),
    "behind at the last commit, then right": (NOW, NOW - 365 * DAY, NOW - DAY, NOW - DAY),
    "a month ahead, and a datum of the far future": (NOW + 30 * DAY, NOW, NOW + 9999 * DAY, None),
}


@pytest.mark.parametrize("case", COUNTED)
def test_ages_count_from_the_last_commit_or_not_at_all_if_the_clock_is_ahead(case: str) -> None:
    now, committed_at, newest, expected = COUNTED[case]
    assert counted_from(now, committed_at, newest) == expected


def test_a_doubt_names_the_dates() -> None:
    assert "says 2024-11-03, but the last change of the index was on 2024-10-04" in doubt(NOW + 30 * DAY, NOW, None)
    assert "the newest datum is of 2024-10-03" in doubt(NOW + 30 * DAY, NOW, NOW - DAY)
    assert "9223372036854775807 µs" in doubt(NOW, 2**63 - 1, None)


@pytest.mark.parametrize(
    ("expired", "total", "expected"),
    [(0, 0, False), (1, 1, False), (2, 2, False), (3, 3, True), (3, 6, True), (3, 7, False), (1, 300, False)],
)
def test_half_of_all_segments_are_too_many(expired: int, total: int, expected: bool) -> None:
    assert too_many(expired, total) is expected


def day(ago: int, n: int = 0) -> Datum:
    """Return a datum of noon some days ago, counted from now: the tests may begin before midnight."""
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    return Datum(noon - timedelta(days=ago), {"n": n}, {})


@pytest.fixture
def dataset(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Return a dataset of eight segments: four of 2024 and four of 2025."""
    dataset = create(fields={"n": "integer"}, unique=["reftime", "n"])
    dataset.append(
        Datum(datetime(year, 3, number, 12, tzinfo=UTC), {"n": number}, {}) for year in (2024, 2025)
        for number in (1, 2, 3, 4)
    )  # fmt: skip
    return dataset


def lost(dataset: ondisk.Dataset) -> int:
    return int(dataset.info()["lost"])


def forgotten(path: Path) -> list[tuple[int, int]]:
    """Return how many deletions are noted, and how many of forgotten data."""
    return sql(path, "SELECT count(*), ifnull(sum(forgotten), 0) FROM deletion")


def test_a_folder_whose_disk_is_not_mounted_is_kept_until_it_is_back(dataset, tmp_path):
    folder, away = dataset.path / "2024", tmp_path / "away"
    folder.rename(away)
    folder.mkdir()  # where it was mounted
    for _ in range(2):
        result = maintain(dataset.path)
        assert (result.exit_code, result.done, len(result.findings), result.missing) == (9, [], 4, 4)
        assert "4 of 4 segments in 2024 are missing: is a disk not mounted?" in result.findings[0].reasons[-1]
        assert f"`ondisk fix {dataset.path} --yes --forget`" in result.findings[0].reasons[-1]
        assert {each.action for each in result.findings} == {None}
        assert {each.action for each in dataset.check().findings} == {None}
    folder.rmdir()
    away.rename(folder)
    assert maintain(dataset.path).exit_code == 0
    assert len([*dataset.query()]) == 8
    assert forgotten(dataset.path) == [(0, 0)]
    assert lost(dataset) == 0


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_more_than_half_of_the_dataset_is_kept(dataset, verb):
    for path in [*dataset.path.glob("202[45]/*[234].jsonl")][:5]:
        path.rename(path.with_suffix(".away"))
    report = getattr(dataset, verb)()
    assert [each.action for each in report.findings] == [None] * 5
    for path in dataset.path.glob("202[45]/*.away"):
        path.rename(path.with_suffix(".jsonl"))
    assert dataset.check().is_clean


def test_what_is_kept_is_forgotten_on_request_and_counted_as_lost_until_acknowledged(dataset):
    shutil.rmtree(dataset.path / "2024")
    report = dataset.fix(forget=True)
    assert [(each.action, each.lost) for each in report.findings] == [("remove from the index", 1)] * 4
    assert dataset.check().is_clean
    assert len([*dataset.query()]) == 4
    assert forgotten(dataset.path) == [(4, 4)]
    assert lost(dataset) == 4
    result = maintain(dataset.path)
    assert (result.exit_code, result.lost) == (0, 4)
    assert f'ondisk_lost_data{{dataset="{dataset.path}"}} 4\n' in metrics([result])
    dataset.fix(acknowledge=True)
    assert lost(dataset) == 0
    assert f'ondisk_lost_data{{dataset="{dataset.path}"}} 0\n' in metrics([maintain(dataset.path)])


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_a_single_missing_segment_is_forgotten_not_deleted(dataset, verb):
    dataset.delete("n: 4")
    (dataset.path / "2024/03-01.jsonl").unlink()
    (done,) = [each for each in getattr(dataset, verb)() if State.MISSING in each.state]
    assert (done.action, done.lost) == ("remove from the index", 1)
    assert forgotten(dataset.path) == [(3, 1)]
    assert lost(dataset) == 1


def test_damage_that_a_fix_finds_is_counted_as_lost_once(dataset):
    path = dataset.path / "2024/03-01.jsonl"
    path.write_bytes(b"no datum\n" + path.read_bytes())
    dataset.close()
    lose_index(dataset.path)
    for code in (8, 9):
        result = maintain(dataset.path)
        assert (result.exit_code, result.lost) == (code, 1)


def test_metrics_say_what_was_missing_before_the_fix_and_that_the_index_was_rebuilt(dataset):
    (dataset.path / "2024/03-01.jsonl").unlink()
    label = f'{{dataset="{dataset.path}"}}'
    text = metrics([maintain(dataset.path)])
    assert f"ondisk_segments_missing{label} 1\n" in text
    assert f"ondisk_index_rebuilt{label} 0\n" in text
    dataset.close()
    lose_index(dataset.path)
    text = metrics([maintain(dataset.path)])
    assert f"ondisk_segments_missing{label} 0\n" in text
    assert f"ondisk_index_rebuilt{label} 1\n" in text


@pytest.fixture
def aging(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Return a dataset of the last ten days, whose data are deleted after ten days."""
    dataset = create(fields={"n": "integer"}, delete_age=10)
    dataset.append(map(day, range(10)))
    return dataset


def ahead(days: float) -> float:
    return time.time_ns() / 1_000_000_000 + days * 86_400


@pytest.mark.parametrize("days", [1, 5, 9])
def test_a_clock_that_is_days_ahead_makes_nothing_old(aging, days):
    with clock(ahead(days)):
        result = maintain(aging.path)
    assert (result.exit_code, result.done) == (0, [])
    assert len([*aging.query()]) == 10


@pytest.mark.parametrize("days", [11, 31, 400])
def test_a_clock_that_is_weeks_ahead_is_not_believed_until_somebody_says_so(aging, days):
    with clock(ahead(days)):
        for _ in range(2):
            result = maintain(aging.path)
            assert result.exit_code == 9
            assert "is the clock wrong?" in result.findings[0].reasons[-1]
            assert f"`ondisk repack {aging.path} --yes --by-age`" in result.findings[0].reasons[-1]
    assert len([*aging.query()]) == 10
    with clock(ahead(days)):
        assert {each.action for each in aging.repack(by_age=True).findings} == {"delete"}
    assert len([*aging.query()]) == max(0, 10 - days)


def test_half_of_all_segments_are_not_deleted_at_once(aging):
    aging.close()
    change_config(aging.path, "delete_age = 10", "delete_age = 4")
    result = maintain(aging.path)
    assert result.exit_code == 9
    assert {each.reasons[-1].partition(";")[0] for each in result.findings} == {"5 of 10 segments are that old at once"}
    with ondisk.open(aging.path) as dataset:
        assert len([*dataset.query()]) == 10
        assert [each.action for each in dataset.repack(by_age=True).findings] == ["delete"] * 5
        assert len([*dataset.query()]) == 5


def test_a_dry_run_by_age_lists_what_the_run_deletes(aging):
    with clock(ahead(9)):
        planned = {each.segment for each in aging.repack(by_age=True, dry_run=True) if each.action == "delete"}
        done = {each.segment for each in aging.repack(by_age=True) if each.action == "delete"}
    assert planned == done != set()


@pytest.mark.parametrize("is_found", [True, False], ids=["changed", "touched"])
def test_a_segment_that_changed_is_read_by_a_fix_although_it_may_not_be_deleted_yet(aging, is_found):
    """Only who reads it finds a change before its last bytes."""
    aging.append([Datum(day(9).reftime, {"n": 9}, {"x": "y" * 10_000})])
    aging.close()
    change_config(aging.path, "delete_age = 10", "delete_age = 4")
    (changed, *_) = sorted(aging.path.glob("2*/*"))
    text = changed.read_text()
    changed.write_text(text.replace('"n":9', '"n":90' if is_found else '"n":8', 1))
    with ondisk.open(aging.path) as dataset:
        (found,) = [each for each in dataset.check() if each.is_touched or State.UNALIGNED in each.state]
        assert (State.UNALIGNED in found.state, found.held) == (is_found, not is_found)
        done = {each.segment: each for each in dataset.fix()}[found.segment]
        assert done.action == "rescan"
        assert len([*dataset.query("n: 8 or 90")]) == 1
        dataset.repack()
        assert len([*dataset.query()]) == 11


def test_segments_whose_data_were_deleted_do_not_hold_others(create):
    dataset = create(fields={"n": "integer"})
    dataset.append(map(day, (0, 1, 2, 5, 6, 7)))
    dataset.delete(f"reftime: ={day(7).reftime:%Y-%m-%d}")
    dataset.close()
    toml = dataset.path / "dataset.toml"
    toml.write_text("delete_age = 3\n" + toml.read_text())
    result = maintain(dataset.path)
    assert (result.exit_code, [each.action for each in result.done]) == (0, ["delete"] * 3)


def test_a_dataset_that_is_maintained_every_night_deletes_a_day_a_night_and_stays_quiet(create):
    dataset = create(fields={"n": "integer"}, delete_age=10)
    dataset.append(map(day, range(8)))
    left = []
    for night in range(1, 12):
        now = ahead(night)
        with clock(now), pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", partial(int, now * 1_000_000_000))
            result = maintain(dataset.path)
        assert (result.exit_code, result.findings) == (0, [])
        left.append(len([*dataset.query()]))
    assert left[0] == 8
    assert sorted(left, reverse=True) == left
    assert max(before - after for before, after in pairwise(left)) <= 2
    assert left[-1] <= 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of its own at a folder of the dataset."""
    folder = tmp_path / "dataset/2024"
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_disk_that_is_mounted_again_has_all_its_data(dataset, disk, tmp_path):
    away = tmp_path / "disk"
    disk.rename(away)
    disk.mkdir()
    assert maintain(dataset.path).exit_code == 9
    late = [
        Datum(datetime(2024, 3, 2, 13, tzinfo=UTC), {"n": 9}, {}),
        Datum(datetime(2025, 3, 2, 13, tzinfo=UTC), {"n": 9}, {}),
    ]
    result = dataset.append(late)
    assert (result.imported, result.refused) == (1, 1)
    subprocess.run(["mount", "--bind", away, disk], check=True)
    assert maintain(dataset.path).exit_code == 0
    assert len([*dataset.query()]) == 9
    assert dataset.append(late).imported == 1
    assert maintain(dataset.path).exit_code == 0
    assert len([*dataset.query()]) == 10


ADDED = b'{"reftime":"2020-01-01T10:00:00Z","n":9}\n'


def aged(path: Path) -> Path:
    """Make a dataset with one segment that is old enough to be deleted, and return the path of its file."""
    old, new = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC)
    with ondisk.create(
        path, {"format": "jsonl", "step": "daily", "delete_age": 100, "fields": {"n": "integer"}}
    ) as dataset:
        dataset.append([Datum(new, {"n": 0}, {})])
    toml = path / "dataset.toml"
    text = toml.read_text()
    toml.write_text(text.replace("delete_age = 100\n", ""))
    with ondisk.open(path) as dataset:
        dataset.append([Datum(old, {"n": n}, {}) for n in range(3)])
    toml.write_text(text)
    return path / "2020/01-01.jsonl"


def test_a_segment_that_is_old_enough_is_not_deleted_before_its_changed_bytes_were_read(tmp_path: Path) -> None:
    file = aged(tmp_path / "dataset")
    file.write_bytes(ADDED + file.read_bytes())
    with ondisk.open(tmp_path / "dataset") as dataset:
        (found,) = dataset.check().findings
        assert found.state == State.UNALIGNED | State.DELETE_AGE
        assert [each.action for each in dataset.repack().findings] == [None]
        assert file.exists()
        dataset.fix()
        assert len([*dataset.query()]) == 5
        assert [each.action for each in dataset.repack().findings] == ["delete"]
        assert len([*dataset.query()]) == 1


def test_data_after_the_committed_end_of_a_segment_that_is_deleted_are_kept(tmp_path: Path) -> None:
    file = aged(tmp_path / "dataset")
    with file.open("ab") as end:
        end.write(ADDED)
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert [each.action for each in dataset.repack().findings] == ["delete"]
        assert not file.exists()
        (item,) = dataset.quarantine
        assert (tmp_path / "dataset" / item.name).read_bytes() == ADDED
