"""`ondisk.maintenance.maintain`, and the metrics of what it did."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from worlds import fail, lose_index, rot

import ondisk
from ondisk.errors import DatasetNotFound, IndexCorrupt, LockError, StorageError
from ondisk.filesystem import Directory, MaintainLock
from ondisk.maintenance.maintain import maintain, worst
from ondisk.maintenance.states import State

NOW = datetime.now(UTC)

SENTINEL = "needs-check-do-not-pack"


@pytest.fixture
def dataset(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Return a dataset of a segment with two data."""
    dataset = create(fields={"n": "integer"})
    dataset.append([ondisk.Datum(NOW, {"n": n}, {}) for n in (1, 2)])
    return dataset


def test_a_clean_dataset_stays_as_it_is(dataset):
    result = maintain(dataset.path)
    assert (result.dataset, result.done, result.findings, result.error) == (str(dataset.path), [], [], None)
    assert (result.exit_code, result.freed, result.count) == (0, 0, 2)
    assert result.ended - result.duration <= result.ended


def test_it_fixes_and_repacks_and_says_what_it_did(dataset):
    dataset.delete("n: 1")
    lost = dataset.path / "2020/01-01.jsonl"
    dataset.append([ondisk.Datum(datetime(2020, 1, 1, tzinfo=UTC), {"n": 3}, {})])
    lost.unlink()
    seen: list[str] = []
    result = maintain(dataset.path, progress=seen.append)
    assert [(each.segment, each.action) for each in result.done] == [
        ("2020/01-01.jsonl", "remove from the index"),
        (f"{NOW:%Y/%m-%d}.jsonl", "repack"),
    ]
    assert result.freed > 0
    assert (result.exit_code, result.count) == (8, 1)  # a datum was forgotten with its segment
    assert seen == ["2020/01-01.jsonl", f"{NOW:%Y/%m-%d}.jsonl"]


def test_what_a_rebuild_that_was_killed_has_moved_to_quarantine_is_reported_by_the_next(dataset, monkeypatch):
    dataset.append([ondisk.Datum(datetime(2020, 1, 1, tzinfo=UTC), {"n": 3}, {})])
    path, segment = dataset.path, dataset.path / "2020/01-01.jsonl"
    dataset.close()
    lose_index(path)
    (path / f"{NOW:%Y}/.{NOW:%m-%d}.jsonl.99").write_bytes(segment.read_bytes())
    segment.unlink()
    with monkeypatch.context() as patch, ondisk.open(path) as dataset:
        patch.setattr("ondisk.maintenance.fix._restore_sums", fail(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            dataset.fix()
    result = maintain(path)
    assert len(result.kept) == 1
    assert (result.rebuilt, result.exit_code, maintain(path).exit_code) == (False, 9, 0)


def test_it_tells_the_log_what_it_does(dataset, caplog):
    dataset.delete("n: 1")
    segment, path = f"{NOW:%Y/%m-%d}.jsonl", dataset.path
    with caplog.at_level("INFO", logger="ondisk"):
        maintain(path)
        failed = maintain(path.parent / "nowhere")
    *_, last = caplog.messages
    assert last.endswith(f"with 11; {failed.error}")
    begins, repacked, ended = (f"{each.name}: {each.getMessage()}" for each in caplog.records[:3])
    assert begins == f"ondisk.maintenance: {path}: maintain begins"
    assert re.fullmatch(rf"ondisk.maintenance: {path}: {segment}: DIRTY \(.*\): repack, \d+ bytes freed", repacked)
    assert re.fullmatch(rf"ondisk.maintenance: {path}: maintain ended after \d+\.\d s with 0", ended)


def test_a_lost_index_is_built_anew_and_that_is_said(dataset):
    lose_index(dataset.path)
    result = maintain(dataset.path)
    assert (result.exit_code, result.count, result.rebuilt) == (0, 2, True)
    assert not (dataset.path / SENTINEL).exists()
    result = maintain(dataset.path)
    assert not result.rebuilt


def test_what_is_left_is_reported(dataset):
    (segment,) = dataset.path.glob("2*/*.jsonl")
    segment.write_bytes(b"")
    for _ in range(2):
        result = maintain(dataset.path)
        assert result.exit_code == 9
        assert [each.state for each in result.findings] == [State.CORRUPTED]


def test_what_somebody_appends_out_of_order_after_the_repack_of_a_segment_is_no_finding(create):
    dataset = create(fields={"n": "integer"})
    days = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in (1, 2)]
    for n, day in enumerate((*days, *days)):
        dataset.append([ondisk.Datum(day.replace(hour=12 - n), {"n": n}, {})])
    seen: list[str] = []

    def append_meanwhile(segment: str) -> None:
        seen.append(segment)
        if len(seen) == 2:
            dataset.append([ondisk.Datum(days[0].replace(hour=1), {"n": 9}, {})])

    result = maintain(dataset.path, progress=append_meanwhile)
    assert seen == ["2026/01-01.jsonl", "2026/01-02.jsonl"]
    assert (result.exit_code, result.findings) == (0, [])
    assert [each.state for each in dataset.check() if each.state] == [State.DIRTY]
    assert maintain(dataset.path, dry_run=True).exit_code == 9


def test_a_dry_run_changes_nothing(dataset):
    dataset.delete("n: 1")
    dataset.close()
    lose_index(dataset.path)
    before = sorted(dataset.path.rglob("*"))
    result = maintain(dataset.path, dry_run=True, max_duration=60)
    assert (result.exit_code, result.done, len(result.findings)) == (9, [], 1)
    assert sorted(dataset.path.rglob("*")) == before


@pytest.mark.parametrize("touch", [False, True], ids=["changed", "touched"])
def test_a_dry_run_reads_files_that_other_programs_have_touched_as_a_fix_does(create, touch):
    dataset = create(fields={"n": "integer"})
    dataset.append([ondisk.Datum(NOW, {"n": n}, {"text": "x" * 1000}) for n in range(9)])
    (segment,) = dataset.path.glob("2*/*.jsonl")
    content = segment.read_bytes()
    segment.write_bytes(content if touch else content.replace(b'"n":2', b'"n":7'))
    assert [each.state for each in dataset.check() if each.state] == []
    result = maintain(dataset.path, dry_run=True)
    planned = [(each.state, each.action) for each in dataset.fix(dry_run=True) if each.state]
    if touch:
        assert (result.exit_code, planned) == (0, [])
    else:
        assert (result.exit_code, planned) == (9, [(State.UNALIGNED, "rescan")])
        assert "another program has changed them" in result.findings[0].reasons[-1]
    assert maintain(dataset.path).exit_code == (0 if touch else 8)


def test_with_a_duration_it_reads_data_too_and_repacks_nothing_that_is_damaged(dataset):
    (segment,) = dataset.path.glob("2*/*.jsonl")
    content = segment.read_bytes().replace(b'"n":2', b'"n":5')
    dataset.delete("n: 1")
    rot(segment, content)
    result = maintain(dataset.path, max_duration=60)
    assert result.exit_code == 9
    assert [State.CORRUPTED in each.state for each in result.findings] == [True]
    assert segment.read_bytes() == content


def test_data_left_out_are_worse_than_findings(dataset):
    dataset.close()
    lose_index(dataset.path)
    (segment,) = dataset.path.glob("2*/*.jsonl")
    segment.write_bytes(b"no datum\n" + segment.read_bytes())
    result = maintain(dataset.path)
    assert (result.exit_code, result.count) == (8, 2)


def test_a_second_run_leaves_at_once(dataset):
    with Directory.open(dataset.path) as directory, MaintainLock(directory).hold("maintain"):
        result = maintain(dataset.path)
        assert isinstance(result.error, LockError)
        assert re.search(r"waited 0 s for the lock of maintain, held by process \d+", str(result.error))
        assert result.exit_code == 40
        assert maintain(dataset.path, dry_run=True).exit_code == 0
        assert dataset.append([ondisk.Datum(NOW, {"n": 3}, {})]).imported == 1
    result = maintain(dataset.path)
    assert result.exit_code == 0


def test_its_lock_does_not_keep_a_dataset_from_being_made(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/.maintain.lock").touch()
    with ondisk.create(tmp_path / "new", {"step": "daily"}) as dataset:
        assert dataset.summary().count == 0


def test_a_dataset_that_fails_does_not_keep_the_others_from_it(dataset, tmp_path, create):
    broken = create("broken")
    broken.close()
    lose_index(broken.path)
    (broken.path / "index.sqlite").write_bytes(b"garbage" * 1000)
    dataset.delete("n: 1")
    nowhere, corrupt, good = map(maintain, [tmp_path / "nowhere", broken.path, dataset.path])
    assert isinstance(nowhere.error, DatasetNotFound)
    assert isinstance(corrupt.error, IndexCorrupt)
    assert (nowhere.left, corrupt.count) == (None, None)
    assert good.exit_code == 0
    assert [each.action for each in good.done] == ["repack"]


def test_where_the_fix_fails_its_error_is_reported_and_the_state_too(dataset):
    (dataset.path / SENTINEL).mkdir()  # it cannot be removed as a file, so that the repack refuses, too
    result = maintain(dataset.path)
    assert isinstance(result.error, StorageError)
    assert SENTINEL in str(result.error)
    assert result.exit_code == 50
    assert result.left.needs_check


@pytest.mark.parametrize(
    ("codes", "chosen"), [([], 0), ([0, 9], 9), ([9, 8, 0], 8), ([8, 40, 9], 40), ([40, 51], 51), ([1, 8], 1)]
)
def test_errors_are_worse_than_data_left_out_and_these_than_findings(codes, chosen):
    assert worst(codes) == chosen


def test_data_with_the_unique_values_of_others_are_kept_and_are_no_loss(tmp_path):
    config = {"format": "jsonl", "step": "daily", "unique": ["n"], "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "twins", config) as other:
        for day in (1, 2):
            other.append([ondisk.Datum(datetime(2026, 1, day, tzinfo=UTC), {"n": day}, {})])
        copied = (other.path / "2026/01-01.jsonl").read_bytes()
        lose_index(other.path)
    (other.path / "2026/01-02.jsonl").write_bytes(copied.replace(b"2026-01-01", b"2026-01-02"))
    result = maintain(other.path)
    assert any("the same unique values as other data" in each.reasons[-1] for each in result.done)
    assert (result.error, result.exit_code) == (None, 9)
    assert result.kept
    assert not any(each.lost for each in result.done)


def test_a_segment_that_cannot_be_fixed_is_an_error_behind_which_the_others_are_fixed(tmp_path):
    config = {"format": "blob", "step": "daily", "fields": {}}
    with ondisk.create(tmp_path / "blobs", config) as dataset:
        dataset.append(ondisk.Datum(datetime(2026, 1, day, tzinfo=UTC), {}, b"bytes") for day in (1, 2, 3))
    lose_index(dataset.path)
    (dataset.path / "2026/01-01.blob/.sequence").unlink()
    (dataset.path / "2026/01-01.blob/.sequence").symlink_to(".metadata")
    result = maintain(dataset.path)
    assert (result.exit_code, result.count) == (50, 2)
    assert ".sequence" in str(result.error)
    assert [each.action for each in result.done] == ["rescan", "rescan"]
