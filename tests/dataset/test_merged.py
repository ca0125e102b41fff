"""Several datasets as one: the union of their data in one order, each read when it is needed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.dataset import merged as merged_module
from ondisk.errors import (
    DataOffline,
    DatasetNotFound,
    InvalidInput,
    LimitExceeded,
    MatchError,
    SegmentCorrupt,
    SegmentMissing,
    StateError,
    StorageError,
)
from ondisk.files import export
from ondisk.matcher import parse_sort

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"format": "jsonl", "step": "daily", "fields": {"station": "integer", "name": "text"}}
KINDS = {"station": "integer", "name": "text"}


def datum(hours: int, station: int | None = None, name: str | None = None, **data: Any) -> Datum:
    given = {"station": station, "name": name}
    metadata = {key: value for key, value in given.items() if value is not None}
    return Datum(BEGIN + timedelta(hours=hours), metadata, data)


@pytest.fixture
def three(create: Callable[..., ondisk.Dataset], tmp_path: Path) -> list[str]:
    """Make datasets of three days that follow each other; return their paths."""
    for day in range(3):
        with create(f"archive/{2024 + day}", fields=KINDS) as dataset:
            dataset.append([datum(24 * day + hour, hour % 3, "abc"[day]) for hour in range(12)])
    return [str(tmp_path / f"archive/{year}") for year in (2024, 2025, 2026)]


def few_open(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let at most so many datasets be open at once."""
    monkeypatch.setattr(merged_module, "_MOST", most)


ROWS = st.lists(
    st.tuples(st.integers(0, 60), st.none() | st.integers(0, 2), st.none() | st.sampled_from(["a", "b,c", "é"])),
    max_size=12,
)
SORTS = [None, "reftime", "-reftime", "-reftime,station", "station,-name", "-name", "day:station", "hour:-reftime"]


@pytest.mark.check
@settings(max_examples=up_to(40))
@given(
    worlds=st.lists(ROWS, min_size=1, max_size=4),
    sort=st.sampled_from(SORTS),
    limit=st.none() | st.integers(0, 20),
    match=st.sampled_from([None, "reftime: >=2026-11-21", "station: 1", "name: b; reftime: <2026-11-21 06:00"]),
    most=st.sampled_from([1, 2, 256]),
)
def test_a_query_returns_the_sorted_union(worlds, sort, limit, match, most):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        paths = [f"{folder}/{number}" for number in range(len(worlds))]
        union = []
        for path, rows in zip(paths, worlds, strict=True):
            with ondisk.create(path, CONFIG) as dataset:
                dataset.append([datum(*row, number=number) for number, row in enumerate(rows)])
                union += [(path, each) for each in dataset.query(match, sort=sort)]
        order = parse_sort(sort or "reftime", KINDS)
        expected = sorted(union, key=lambda pair: order.key_of(pair[1]))[:limit]
        with ondisk.merged(paths) as merged:
            few_open(patch, most)
            try:
                found = [*merged.query(match, sort=sort, limit=limit)]
            except LimitExceeded:
                assert most < len(paths)
                return
            assert [(each.dataset, each) for each in found] == expected
            assert [each.location for each in found] == [each.location for _, each in expected]
            assert merged.first(match, sort=sort) == next((each for _, each in expected), None) or limit == 0
            assert merged.count(match) == len(union)
            assert merged.exists(match) == bool(union)
            payloads = [*merged.payloads(match, sort=sort, limit=limit)]
            assert [json.loads(line)["number"] for line in payloads] == [each.data["number"] for each in found]


def test_data_of_one_reftime_are_in_the_given_order_of_the_datasets(create):
    for name in ("one", "two"):
        with create(name) as dataset:
            dataset.append([datum(1, n=name), datum(1, n=name + "+")])
    parent = dataset.path.parent
    with ondisk.merged([parent / "two", parent / "one"]) as merged:
        assert [each.data["n"] for each in merged.query()] == ["two", "two+", "one", "one+"]


def test_a_datum_says_which_dataset_it_is_from_and_where_it_is_there(three):
    with ondisk.merged(three) as merged:
        found = [*merged.query("station: 2")]
    assert {each.dataset for each in found} == {*three}
    for each in found:
        with ondisk.open(each.dataset, read_only=True) as dataset:
            assert dataset.read(each.location) == each
    assert pickle.loads(pickle.dumps(found[0])).dataset == three[0]
    with ondisk.open(three[0], read_only=True) as dataset:
        assert dataset.first().dataset is None


def test_a_pattern_names_datasets_in_order_and_nothing_else(three, tmp_path, monkeypatch):
    (tmp_path / "archive/notes").mkdir()
    (tmp_path / "archive/list.txt").touch()
    assert ondisk.merged(f"{tmp_path}/archive/*").paths == (*three,)
    assert ondisk.merged([three[2], f"{tmp_path}/**"]).paths == (three[2], *three[:2])
    monkeypatch.chdir(tmp_path)
    assert ondisk.merged(Path("archive/20*")).paths == ("archive/2024", "archive/2025", "archive/2026")
    shutil.move(three[0], tmp_path / "archive/[2024]")
    assert ondisk.merged("archive/[2024]").paths == ("archive/[2024]",)


@pytest.mark.parametrize(
    ("paths", "kind", "message"),
    [
        ([], InvalidInput, "no datasets"),
        ([""], InvalidInput, "empty"),
        ("nowhere", DatasetNotFound, "nowhere"),
        (["archive/2024", "archive/x*"], DatasetNotFound, r"archive/x\*"),
        ([b"archive/2024"], InvalidInput, "text"),
    ],
)
def test_paths_without_datasets_are_errors(three, tmp_path, monkeypatch, paths, kind, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        ondisk.merged(paths)


def test_a_dataset_that_the_match_excludes_is_not_read(three):
    shutil.rmtree(f"{three[0]}/2026")
    with ondisk.merged(three) as merged:
        assert len([*merged.query("reftime: >=2026-11-21")]) == 24
        with pytest.raises(SegmentMissing):
            list(merged.query())


def test_a_dataset_is_opened_when_the_order_reaches_it_and_closed_at_its_end(three, open_files):
    with ondisk.merged(three[0]) as merged, merged.query() as found:
        next(found)
        one = open_files()
    with ondisk.merged(three) as merged:
        with merged.query() as found:
            assert open_files() == 0
            next(found)
            assert 0 < open_files() <= one
            for _ in range(20):
                next(found)
            assert open_files() <= one
        assert open_files() == 0
        with merged.query(sort="-reftime") as found:
            assert next(found).dataset == three[2]
            assert open_files() <= one
    assert open_files() == 0


@pytest.fixture
def twelve(create: Callable[..., ondisk.Dataset], tmp_path: Path) -> str:
    """Make datasets with the same times; return a pattern of their paths."""
    for number in range(12):
        with create(f"many/{number:02}", fields=KINDS) as dataset:
            dataset.append([datum(hour // 2, number, n=hour) for hour in range(20)])
    return str(tmp_path / "many/*")


def test_open_files_are_bounded_however_many_datasets_overlap(twelve, three, open_files, monkeypatch):
    few_open(monkeypatch, 11)
    with ondisk.merged(twelve) as merged:
        with pytest.raises(LimitExceeded, match="12 datasets have data of one time"):
            merged.query()
        few_open(monkeypatch, 12)
        found = [(each.reftime, each.dataset, each.data["n"]) for each in merged.query()]
    assert found == sorted(found)
    assert len(found) == 240
    few_open(monkeypatch, 1)
    with ondisk.merged(three) as merged:
        assert len([*merged.query()]) == 36


OVERLAPPING = """
import resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, int(sys.argv[2]))))
import ondisk
with ondisk.merged(sys.argv[1]) as merged:
    print(len([*merged.query()]))
"""


def test_a_process_that_may_open_few_files_raises_its_own_limit(twelve):
    def run(hard: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", OVERLAPPING, twelve, str(hard)]
        environment = os.environ | {"PYTHONPATH": str(Path(ondisk.__file__).parents[1])}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)

    assert run(12 * 32).stdout == "240\n"
    assert "at most 4 can be open" in run(4 * 32).stderr


@pytest.mark.check
def test_a_sort_by_fields_needs_all_datasets_open(twelve, monkeypatch):
    with ondisk.merged(twelve) as merged:
        few_open(monkeypatch, 11)
        with pytest.raises(LimitExceeded, match="12 datasets have data of one time, or must be sorted together"):
            merged.query(sort="station")
        few_open(monkeypatch, 12)
        assert merged.first(sort="-station").metadata["station"] == 11


def test_data_stored_before_the_span_of_a_query_that_runs_do_not_break_the_order(three):
    with ondisk.merged(three) as merged, merged.query() as found:
        next(found)
        with ondisk.open(three[2]) as dataset:
            dataset.append([datum(-100), datum(60)])
        reftimes = [each.reftime for each in found]
    assert reftimes == sorted(reftimes)
    assert reftimes[0] > BEGIN
    assert BEGIN + timedelta(hours=60) in reftimes


def test_data_of_archives_are_in_the_same_order(three):
    with ondisk.open(three[1]) as dataset:
        dataset.append([datum(48 + hour, 7) for hour in range(3)])
        dataset.archive("2026/11-22.jsonl")
    with ondisk.merged(three) as merged:
        found = [*merged.query()]
        assert [each.reftime for each in found] == sorted(each.reftime for each in found)
        assert sum(each.location.segment.startswith(".archive/last/") for each in found) == 3


def test_an_offline_archive_is_warned_of_and_its_dataset_is_not_excluded(three, tmp_path):
    with ondisk.open(three[1]) as dataset:
        dataset.archive("2026/11-21.jsonl")
        dataset.rename_archive("last", "tape")
        dataset.set_offline("tape")
    shutil.move(f"{three[1]}/.archive/tape", tmp_path / "tape")
    with ondisk.merged(three) as merged:
        with pytest.warns(DataOffline, match="2025: .archive/tape/ is offline; its data were left out"):
            assert len([*merged.query("reftime: <2026-11-22")]) == 12
        assert len([*merged.query("reftime: =2026-11-20")]) == 12
        assert merged.doubts() == [f"{three[1]}: .archive/tape/ is offline; its data were left out"]
        assert merged.doubts(offline=False) == []
        assert merged.count() == 36


def test_a_lost_index_is_a_doubt(three):
    with ondisk.merged(three) as merged:
        assert not merged.needs_check
        lose_index(Path(three[1]))
        assert merged.needs_check
        assert merged.doubts() == [f"{three[1]}: the index was lost and may not know all data"]
        assert merged.count() == 24


def recreate(path):
    shutil.rmtree(path)
    with ondisk.create(path, CONFIG) as dataset:
        dataset.append([datum(0)])


@pytest.mark.parametrize("exchange", [lose_index, recreate])
def test_a_dataset_that_is_exchanged_while_a_query_runs_is_an_error(three, exchange):
    with ondisk.merged(three) as merged:
        query = merged.query()
        next(query)
        exchange(Path(three[1]))
        with pytest.raises(StateError, match="2025: its index was lost or exchanged"):
            list(query)


@pytest.mark.parametrize(
    "read", [lambda m: m.count(), lambda m: m.summary(), lambda m: [*m.summary_by("day")], lambda m: m.count("")]
)
def test_a_dataset_that_is_exchanged_while_data_are_counted_is_an_error(three, monkeypatch, read):
    with ondisk.merged(three) as merged:
        found = merged._candidates
        monkeypatch.setattr(merged, "_candidates", lambda query: [found(query), recreate(three[1])][0])
        with pytest.raises(StateError, match="2025: its index was lost or exchanged"):
            read(merged)


def test_a_field_of_two_types_is_an_error_that_names_both(create, three):
    with create("text", fields={"station": "text", "height": "real"}) as dataset:
        dataset.append([Datum(BEGIN, {"station": "a", "height": 1.5}, {})])
    problem = f"integer in {three[0]} and text in {dataset.path}"
    with ondisk.merged([*three, dataset.path]) as merged:
        for read in (
            lambda: merged.summary(fields=["station"]),
            lambda: merged.summary_by("station"),
            lambda: merged.summary_by("height", min_max="station"),
            lambda: merged.query(sort="station"),
        ):
            with pytest.raises(MatchError) as error:
                read()
            assert problem in error.value.message
        assert [*merged.summary().fields] == ["name", "height"]


@pytest.mark.parametrize(
    "name", ["x" * 300, "x" * 300 + "/*", "x" * 5000, "a\0b"], ids=["name", "folder", "path", "nul"]
)
def test_a_path_that_no_dataset_can_have_is_an_error(name):
    with pytest.raises((StorageError, DatasetNotFound)):
        ondisk.merged([name])


@pytest.mark.parametrize(("by", "min_max"), [(None, None), (3, None), ("day", 3)])
def test_what_is_no_text_does_not_name_groups(three, by, min_max):
    with ondisk.merged(three) as merged, pytest.raises(InvalidInput, match="is a text, not"):
        merged.summary_by(by, min_max=min_max)
    with ondisk.open(three[0]) as dataset, pytest.raises(InvalidInput, match="is a text, not"):
        dataset.summary_by(by, min_max=min_max)


def test_an_error_names_the_dataset(three):
    with Path(f"{three[1]}/2026/11-21.jsonl").open("r+b") as file:
        file.write(b"\0" * 50)
    with ondisk.merged(three) as merged, pytest.raises(SegmentCorrupt, match="archive/2025"):
        list(merged.query())


@pytest.mark.parametrize("match", ["level: 1", {"level": 1}, None])
def test_a_field_that_one_dataset_does_not_declare_is_an_error_that_names_it(create, three, match):
    with create("other", fields={"level": "integer", "station": "text"}) as dataset:
        dataset.append([Datum(BEGIN, {"level": 1, "station": "5"})])
    with ondisk.merged([dataset.path, *three]) as merged:
        equal = match if isinstance(match, dict) else {}
        condition = None if equal else match or merged.fields.level == 1
        with pytest.raises(MatchError, match=r"archive/2024.*level"):
            merged.query(condition, **equal)
        with pytest.raises(MatchError, match=r"archive/2024.*level"):
            merged.query(sort="level")
        with pytest.raises(MatchError, match=r"station: it is text in .*other and integer in .*archive/2024"):
            merged.query(sort="station")
        assert [*merged.fields] == ["reftime", "level", "name"]


def test_a_summary_is_that_of_the_union(create, three):
    with create("other", fields={"level": "integer", "name": "text"}) as dataset:
        dataset.append([Datum(BEGIN - timedelta(days=1), {"level": level, "name": "c"}) for level in (1, 1, 4)])
    with ondisk.merged([*three, dataset.path]) as merged:
        found = merged.summary(values=2)
        assert (found.count, found.begin, found.end) == (39, BEGIN - timedelta(days=1), BEGIN + timedelta(hours=59))
        assert found.fields["name"].values == [("c", 15), ("a", 12)]
        assert found.fields["name"].distinct == 3
        station, level = found.fields["station"], found.fields["level"]
        assert (station.missing, station.min, station.max, station.distinct) == (3, 0, 2, 3)
        assert (level.missing, level.values, level.max) == (36, [(1, 2), (4, 1)], 4)
        assert [*merged.summary("name: c", fields=["name"]).fields] == ["name"]
        assert merged.summary("name: none").fields["name"].distinct == 0
        with pytest.raises(InvalidInput, match="values must be"):
            merged.summary(values=-1)


def test_groups_are_those_of_the_union(create, three):
    with create("all", fields=KINDS) as everything, ondisk.merged([three[2], *three[:2]]) as merged:
        everything.append(merged.query())
        for by, of in [
            ("day", "station"),
            ("month", None),
            ("name", "reftime"),
            ("station", "data.n"),
            ("reftime", None),
        ]:
            assert [*merged.summary_by(by, "station: >0", min_max=of)] == [
                *everything.summary_by(by, "station: >0", min_max=of)
            ]
        with pytest.raises(MatchError, match=r"archive/2026.*level"):
            merged.summary_by("level")


def test_data_of_several_datasets_are_exported(create, tmp_path):
    for name in ("one", "two"):
        with create(name, format="seg", fields={"site": "text"}) as dataset:
            dataset.append([Datum(BEGIN, {"site": name}, b"image")])
    with ondisk.merged([tmp_path / "one", tmp_path / "two"]) as merged:
        assert export(merged, None, tmp_path / "out", name="{site}").exported == 2
        with pytest.raises(InvalidInput):
            export(merged, None, tmp_path / "more", name="{reftime:%d}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one", "two"]


def test_after_close_a_query_ends_with_an_error(three):
    merged = ondisk.merged(three)
    found = merged.query()
    next(found)
    merged.close()
    with pytest.raises(StateError, match="closed"):
        list(found)
    with pytest.raises(InvalidInput, match="closed"):
        merged.count()


def test_payloads_are_one_file(create, tmp_path):
    for name in ("one", "two"):
        with create(name, format="seg") as dataset:
            dataset.append([datum(hour, of=name) for hour in range(3)])
    with ondisk.merged(f"{tmp_path}/*") as merged:
        content = b"".join(merged.payloads())
    (tmp_path / "all.seg").write_bytes(content)
    with create("all", format="seg") as dataset:
        assert dataset.append_file(tmp_path / "all.seg").imported == 6
        assert [each.data["of"] for each in dataset.query()] == ["one", "two"] * 3


def test_the_first_data_need_no_dataset_that_follows_them(three):
    Path(f"{three[2]}/2026/11-22.jsonl").unlink()
    with ondisk.merged(three) as merged, merged.query() as found:
        assert len([*islice(found, 24)]) == 24
        with pytest.raises(SegmentMissing, match="archive/2026"):
            next(found)


def test_it_can_be_pickled_and_shown(three):
    again = pickle.loads(pickle.dumps(ondisk.merged(three)))
    assert repr(again) == f"Merged({three!r})"
    assert again.count() == 36
