"""Rows of the index that somebody removed or edited: the bytes of their data stay, and come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from worlds import START, content, datum, lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import FrameCorrupt, SegmentCorrupt
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.states import State

FIRST = "seq = (SELECT min(seq) FROM datum)"


@pytest.fixture(params=["jsonl", "vm2", "seg", "blob"])
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, format: str) -> Path:
    """Make a dataset of one segment with four data."""
    station = "area" if format == "vm2" else "station"
    config = {"format": format, "step": "daily", "fields": {station: "text"}, "unique": [station], "replace": "yes"}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(made(number, format) for number in range(4))
    return tmp_path / "dataset"


def made(number: int, format: str) -> Datum:
    if format == "vm2":
        return Datum(START.replace(hour=number), data=b"20261120%02d00,%d,227,%d,,,0" % (number, number, number))
    return datum(number, f"VM2,{number}", number, format=format)


def numbers(dataset: ondisk.Dataset) -> list[int]:
    return [each.reftime.hour for each in dataset.query()]


def states(dataset: ondisk.Dataset) -> State:
    (found,) = dataset.check()
    return found.state


@pytest.mark.parametrize("row", ["min", "max"])
def test_a_datum_whose_row_was_removed_is_reported_kept_by_a_repack_and_read_by_a_fix(path: Path, row: str) -> None:
    sql(path, f"DELETE FROM datum WHERE seq = (SELECT {row}(seq) FROM datum)")
    with ondisk.open(path) as dataset:
        (found,) = dataset.check()
        assert found.state == State.UNALIGNED
        assert "belong to no datum, and were not deleted" in "; ".join(found.reasons)
        dataset.repack()
        assert len(numbers(dataset)) == 3
        dataset.fix()
        assert numbers(dataset) == [0, 1, 2, 3]
        assert dataset.check().is_clean


def test_data_that_ondisk_deletes_or_replaces_are_no_finding_of_that_kind(path: Path, format: str) -> None:
    with ondisk.open(path) as dataset:
        dataset.delete(_of(1, format))
        dataset.append([made(2, format)])
        dataset.fix()
        assert numbers(dataset) == [0, 2, 3]
        assert states(dataset) == State.DIRTY
        dataset.repack()
        assert dataset.check().is_clean
        assert numbers(dataset) == [0, 2, 3]


def test_data_before_those_that_were_appended_to_a_lost_index_are_not_called_removed(path: Path, format: str) -> None:
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.append([made(4, format)])
        (found,) = dataset.check()
        assert found.state & State.UNALIGNED
        assert "were changed" not in "; ".join(found.reasons)
        dataset.fix()
        assert numbers(dataset) == [0, 1, 2, 3, 4]


def test_a_removed_row_is_noticed_beside_data_that_were_deleted(path: Path, format: str) -> None:
    with ondisk.open(path) as dataset:
        dataset.delete(_of(1, format))
    sql(path, f"DELETE FROM datum WHERE {FIRST}")
    with ondisk.open(path) as dataset:
        assert State.UNALIGNED in states(dataset)
        dataset.fix()
        dataset.repack()
        assert {0, 2, 3} <= {*numbers(dataset)}
        assert dataset.check().is_clean


def test_a_removed_row_is_noticed_in_the_archive(path: Path) -> None:
    with ondisk.open(path) as dataset:
        dataset.archive(*(each.segment for each in dataset.check().segments))
    sql(path, f"DELETE FROM datum WHERE {FIRST}")
    with ondisk.open(path) as dataset:
        assert states(dataset) == State.UNALIGNED
        dataset.fix()
        assert numbers(dataset) == [0, 1, 2, 3]


@pytest.mark.parametrize("format", ["jsonl", "vm2"], indirect=True)
def test_an_append_cuts_nothing_off_behind_a_lowered_end(path: Path, format: str) -> None:
    sql(path, "UPDATE segment SET size = size - 5, length = length - 5")
    (before,) = [each.read_bytes() for each in path.glob("2026/*.*")]
    with ondisk.open(path) as dataset:
        with pytest.raises(SegmentCorrupt, match="is not the file"):
            dataset.append([made(4, format)])
        assert [each.read_bytes() for each in path.glob("2026/*.*")] == [before]
        dataset.fix()
        dataset.append([made(4, format)])
        assert numbers(dataset) == [0, 1, 2, 3, 4]


EDITS = {
    "reftime": "UPDATE datum SET reftime = reftime + 60000000 WHERE",
    "field": "UPDATE datum SET f_{} = (SELECT max(id) FROM value) WHERE",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_row_is_noticed_by_an_accurate_check_and_read_again_by_the_next_fix(
    path: Path, format: str, edit: str
) -> None:
    with ondisk.open(path) as dataset:
        stored = content(dataset)
    sql(path, "INSERT INTO value SELECT max(id) + 1, 'VM2,99' FROM value")
    sql(path, f"{EDITS[edit].format('area' if format == 'vm2' else 'station')} {FIRST}")
    with ondisk.open(path) as dataset:
        dataset.repack()
        assert not dataset.check(accurate=True).is_clean
        dataset.check(max_duration=60)
        dataset.fix()
        assert content(dataset) == stored
        assert dataset.check(accurate=True).is_clean


@pytest.mark.each
@pytest.mark.parametrize("format", ["jsonl", "seg", "blob"], indirect=True)
def test_a_query_raises_where_the_decoded_datum_has_another_reftime(path: Path) -> None:
    sql(path, f"{EDITS['reftime']} {FIRST}")
    with ondisk.open(path) as dataset, pytest.raises(FrameCorrupt, match="the index says"):
        [*dataset.query()]


@pytest.mark.parametrize("format", ["jsonl", "vm2"], indirect=True)
@pytest.mark.parametrize("match", [None, "one"])
def test_a_query_raises_where_a_line_does_not_end(path: Path, format: str, match: str | None) -> None:
    sql(path, f"UPDATE datum SET size = size - 1 WHERE {FIRST}")
    with ondisk.open(path) as dataset:
        with pytest.raises(SegmentCorrupt, match="although the index says so") as caught:
            [*dataset.query(match and _of(0, format))]
        assert f"ondisk fix {path} --rebuild --yes" in str(caught.value.hint)
        with pytest.raises(SegmentCorrupt, match="although the index says so"):
            [*dataset.payloads(match and _of(0, format))]


def _of(number: int, format: str) -> str:
    return f'{"area" if format == "vm2" else "station"}:"VM2,{number}"'


IMPOSSIBLE = {
    "another step": "UPDATE segment SET name = '2026/11' || substr(name, 11) WHERE {}",
    "no step": "UPDATE segment SET name = '2026/47' || substr(name, 11) WHERE {}",
    "outside": "UPDATE segment SET name = '../' || name WHERE {}",
    "kind": "UPDATE segment SET kind = 77 WHERE {}",
    "negative kind": "UPDATE segment SET kind = -5 WHERE {}",
    "unknown version": "UPDATE segment SET kind = 77 << 8 WHERE {}",
}


@pytest.mark.parametrize("is_trusted", [True, False])
@pytest.mark.parametrize("edit", IMPOSSIBLE)
@pytest.mark.parametrize("format", ["jsonl", "seg", "blob"], indirect=True)
def test_a_row_that_cannot_be_is_damage_of_the_index_and_the_other_segments_are_fixed(
    path: Path, format: str, edit: str, is_trusted: bool
) -> None:
    with ondisk.open(path) as dataset:
        dataset.append(datum(24 * day, f"VM2,{day + 10}", day, format=format) for day in (3, 4))
        (last,) = [each.segment for each in dataset.check() if "11-24" in each.segment]
    sql(path, IMPOSSIBLE[edit].format("id = (SELECT min(id) FROM segment)"))
    sql(path, f"UPDATE segment SET has_unknown = 1 WHERE name = '{last}'")
    if not is_trusted:
        (path / SENTINEL).touch()
    with ondisk.open(path) as dataset:
        found = [each for each in dataset.check() if each.segment.partition(".")[0] != last.partition(".")[0]]
        if format == "seg" or "step" in edit or edit == "outside":
            assert any(each.state for each in found)
        done = dataset.fix()
        assert [each.action for each in done if each.segment == last] == ["rescan"]
        assert not (path / SENTINEL).exists()
    ondisk.rebuild(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert dataset.count() == 6


@pytest.mark.parametrize("which", ["all", "some"])
@pytest.mark.parametrize("verb", ["fix", "repack", "maintain"])
def test_data_whose_rows_were_removed_and_whose_file_is_gone_count_as_lost(path: Path, verb: str, which: str) -> None:
    sql(path, "DELETE FROM datum" if which == "all" else f"DELETE FROM datum WHERE {FIRST}")
    (file,) = path.glob("2026/11-20.*")
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    with ondisk.open(path) as dataset:
        (found,) = dataset.check()
        assert "the index has 4 data of it" in "; ".join(found.reasons)
        if verb == "maintain":
            assert maintain(path).exit_code == 8
        else:
            (done,) = dataset.fix() if verb == "fix" else dataset.repack()
            assert done.lost == 4
        assert dataset.info()["lost"] == 4
        assert dataset.check().is_clean


def test_data_whose_rows_were_removed_are_lost_if_their_bytes_are_gone(path: Path, format: str) -> None:
    with ondisk.open(path) as dataset:
        sql(path, f"DELETE FROM datum WHERE {FIRST}")
        (file,) = path.glob("2026/11-20.*")
        if format == "blob":
            (file / "000000.blob").unlink()
        elif format == "seg":
            pytest.skip("its frames are in one compressed block")
        else:
            first, *rest = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join([b"x" * (len(first) - 1) + b"\n", *rest]))
        (found,) = dataset.check()
        assert found.state
        dataset.fix()
        assert dataset.info()["lost"] == 1
        assert numbers(dataset) == [1, 2, 3]
        dataset.fix()
        assert dataset.info()["lost"] == 1, "it is counted once"


@pytest.mark.parametrize("edit", ["UPDATE segment SET summed = 9", "UPDATE day_sum SET count = 9"])
def test_sums_that_were_edited_are_made_again_and_no_datum_counts_as_lost(path: Path, edit: str) -> None:
    sql(path, edit)
    with ondisk.open(path) as dataset:
        assert not dataset.fix().lost
        assert dataset.info()["lost"] == 0
        assert dataset.summary().count == 4
