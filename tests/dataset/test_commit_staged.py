"""Data that many stage and one commits: the same as if they had been appended, all of them or none."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import time
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import clock, connections, content, datum, lose_index

import ondisk
from ondisk import Datum
from ondisk.errors import DiskFull, DuplicateDatum, DurabilityLost, InvalidInput, NeedsCheck, StateError
from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.index import Transaction
from ondisk.index.import_log import Mark
from ondisk.maintenance.states import State
from ondisk.staging import jobs
from ondisk.staging import rows as rows_of
from ondisk.staging.jobs import STAGED
from ondisk.staging.stage import Stage
from ondisk.testing import EVERY_TYPE

T = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"step": "daily", "unique": ["reftime", "station"], "fields": {"station": "text", "version": "integer"}}
FORMATS = ["jsonl", "seg", "blob"]


def stage(dataset, data, name="0", job="job", format=None, mark=None, size=3):
    """Stage data as a worker does, in small batches."""
    format = find(format or dataset.config.format)(dataset.config)
    with Directory.open(dataset.path) as directory, Stage(directory, dataset.config, job, name) as stage:
        for begin in range(0, len(data), size):
            stage.add(format.encode(data[begin : begin + size]), format)
        return stage.finish(mark)


def commit(dataset, *parts, **options):
    """Stage parts, each by itself, and commit them."""
    return dataset.append_staged("job", [stage(dataset, part, str(at)) for at, part in enumerate(parts)], **options)


def counts(result):
    return result.imported, result.duplicates, result.replaced


class LeftOut:
    """Takes duplicates: the name of the stage, and the bytes."""

    def __init__(self):
        self.found = []

    def __call__(self, duplicates):
        for name, _, payloads in duplicates:
            self.found += [(name, payload) for payload in payloads]
        self.found.sort()


def encoded(given, dataset):
    """Give what `LeftOut` finds where data of stages are left out."""
    format = find(dataset.config.format)(dataset.config)
    return sorted((name, *format.encode([each]).payloads) for name, each in given)


def check_sound(dataset):
    """All rows are where they say, numbers are in order, and nothing is left of what was staged."""
    report = dataset.check(accurate=True)
    assert [each for each in report.findings if each.state & ~(State.DIRTY | State.DELETED)] == []
    assert [*dataset.path.glob(f"{STAGED}/*")] == []
    with closing(sqlite3.connect(f"file:{dataset.path}/index.sqlite?mode=ro", uri=True)) as index:
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [(last, highest)] = index.execute("SELECT seq, (SELECT max(seq) FROM datum) FROM dataset").fetchall()
        assert highest is None or highest <= last


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_staged_is_appended(create, format):
    dataset = create(**CONFIG, format=format)
    dataset.append([datum(0, "z", format=format)])
    parts = [datum(hour, station, format=format) for hour in range(0, 60, 7) for station in "ab"]
    result = commit(dataset, parts[:9], parts[9:])
    assert counts(result) == (18, 0, 0)
    assert (result.segments, result.refused) == (3, 0)
    other = create("other", **CONFIG, format=format)
    other.append([datum(0, "z", format=format), *parts])
    assert content(dataset) == content(other)
    assert result.bytes == other.summary().size - other.summary("station: z").size
    check_sound(dataset)


def test_the_index_has_the_same_tables_and_indices_whether_few_or_many_rows_come(create):
    dataset = create(**CONFIG, index=["version"], format="jsonl")

    def schema():
        with closing(sqlite3.connect(f"file:{dataset.path}/index.sqlite?mode=ro", uri=True)) as index:
            return sorted(index.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))

    before, expected = schema(), []
    for new, again in ((1, 0), (23, 0), (4, 0), (23, 2), (90, 3)):
        running = dataset.query()
        seen = [(each.reftime, each.data) for each in islice(running, 1)]
        data = [datum(len(expected) + hour) for hour in range(new)]
        staged = [stage(dataset, data + expected[:again], size=100)]
        assert counts(dataset.append_staged("job", staged)) == (new, again, 0)
        seen += [(each.reftime, each.data) for each in running]
        assert seen == [(each.reftime, each.data) for each in expected]
        expected += data
        assert schema() == before
        assert content(dataset) == [(each.reftime, each.metadata, each.data) for each in expected]
        check_sound(dataset)


def many(dataset):
    """Stage more than there is, for many segments."""
    return [stage(dataset, [datum(24 * day + hour) for day in range(5) for hour in range(3)], size=100)]


@pytest.mark.parametrize(
    ("call", "code", "error"), [("copy_file_range", errno.ENOSPC, DiskFull), ("fsync", errno.EIO, DurabilityLost)]
)
def test_what_fails_in_a_segment_keeps_all_from_being_stored(create, monkeypatch, call, code, error):
    dataset = create(**CONFIG, index=["version"], format="jsonl")
    staged = many(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, Mock(side_effect=OSError(code, os.strerror(code))))
        with pytest.raises(error):
            dataset.append_staged("job", staged)
    assert [*dataset.path.glob("2026/*.jsonl")] == []
    with ondisk.open(dataset.path) as again:
        assert content(again) == []
        assert again.append_staged("job", many(again)).imported == 15
        check_sound(again)


def test_what_fails_in_the_index_takes_back_what_was_written(create, monkeypatch):
    dataset = create(**CONFIG, index=["version"], format="jsonl")
    staged = many(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "save_segment", Mock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            dataset.append_staged("job", staged)
    assert [*dataset.path.glob("2026/*.jsonl")] == []
    assert content(dataset) == []
    assert dataset.append_staged("job", many(dataset)).imported == 15
    check_sound(dataset)


@given(st.data())
@settings(max_examples=25)
def test_a_commit_does_what_an_append_of_the_same_data_does(drawn):
    format = drawn.draw(st.sampled_from(FORMATS))
    replace = drawn.draw(st.sampled_from(["no", "yes", "newer"]))
    unique = drawn.draw(st.sampled_from([["reftime", "station"], ["station"], ["version", "station"], []]))
    if not unique:
        replace = "no"
    config = {**CONFIG, "format": format, "unique": unique, "replace": replace}
    if replace == "newer":
        config["version_field"] = "version"
    if format == "seg":
        config["compression"] = drawn.draw(st.sampled_from(["lz4", "none"]))
    numbers = st.integers(0, 2)
    rows = st.lists(
        st.tuples(st.integers(0, 3).map((8).__mul__), st.sampled_from("ab"), numbers | st.none()), max_size=9
    )
    before, late, *parts = drawn.draw(st.lists(rows, min_size=3, max_size=5))
    archived = drawn.draw(st.booleans())
    match = drawn.draw(st.sampled_from([None, "", "station: a", "version: 1", "reftime: =2026-11-20; station: b"]))

    def data(rows):
        return [
            datum(hour, station, at, version=version, format=format) for at, (hour, station, version) in enumerate(rows)
        ]

    with (
        tempfile.TemporaryDirectory() as folder,
        ondisk.create(Path(folder, "staged"), config) as dataset,
        ondisk.create(Path(folder, "appended"), config) as other,
    ):
        for each in (dataset, other):
            each.append(data(before))
            each.archive(*(name.removeprefix(f"{each.path}/") for name in segments_of(each) if archived))
            each.append(data(late))
        if match is not None:
            other.delete(match)
        given = [(str(at), each) for at, part in enumerate(parts) for each in data(part)]
        wanted = other.append([each for _, each in given], batch_size=1000, outcomes=True)
        left_out = LeftOut()
        result = commit(dataset, *map(data, parts), overwrite=match, duplicates=left_out)
        assert (counts(result), result.bytes) == (counts(wanted), wanted.bytes)
        statuses = zip(given, wanted.outcomes, strict=True)
        assert left_out.found == encoded([each for each, outcome in statuses if outcome.status == "duplicate"], dataset)
        assert sorted(map(repr, content(dataset))) == sorted(map(repr, content(other)))
        assert archived or content(dataset) == content(other)
        check_sound(dataset)
        assert dataset.append(data(before)).count == len(before)  # it can be gone on with
        check_sound(dataset)


def segments_of(dataset):
    return sorted(map(str, dataset.path.glob("2026/[0-9]*")))


@pytest.mark.parametrize("count", [9, 20])
def test_many_stages_are_brought_together(create, count, monkeypatch):
    monkeypatch.setattr(rows_of, "MERGED", 3)
    monkeypatch.setattr("ondisk.dataset.commit_staged.MERGED", 3)
    dataset = create(**CONFIG | {"fields": {"station": "text", "version": "integer", "key": "bytes", "note": "text"}})
    parts = [
        [
            Datum(
                T + timedelta(hours=at),
                {"station": f"s{at % 3}", "key": b"k" if at % 2 else None, "note": f"s{at}"},
                {},
            )
        ]
        for at in range(count)
    ]
    assert counts(commit(dataset, *parts, [], parts[0])) == (count, 1, 0)
    assert [each.metadata for each in dataset.query()] == [
        {name: value for name, value in part[0].metadata.items() if value is not None} for part in parts
    ]
    check_sound(dataset)


def test_metadata_of_every_type_arrive(create):
    config = {"format": "seg", "fields": EVERY_TYPE}
    dataset, other = create(**config), create("other", **config)
    data = [
        Datum(
            T, {"station": 2**63 - 1, "level": -0.0, "product": "é", "valid": True, "made": T, "key": b"\xff"}, {"a": 1}
        ),
        Datum(T, {"level": float("inf"), "product": "", "valid": False, "key": b""}, b"bytes"),
        Datum(T, {"undeclared": [1, {"a": None}]}, None),
    ]
    other.append(data)
    commit(dataset, data[:1], data[1:])
    assert [repr(each) for each in dataset.query()] == [repr(each) for each in other.query()]
    assert dataset.query("station: 9223372036854775807").__next__().data == {"a": 1}


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_are_those_of_data_that_go_in(create, format):
    dataset = create(**CONFIG, format=format)
    commit(dataset, [datum(0, format=format)])
    size = dataset.summary().size
    assert commit(dataset, [datum(hour, format=format) for hour in (0, 1, 1)]).bytes == size


def test_of_duplicates_the_first_stays_and_its_bytes_alone_are_written(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(1)])
    size = (dataset.path / "2026/11-20.jsonl").stat().st_size
    parts = [datum(0, value=1), datum(1, value=2), datum(2, value=3)], [datum(2, value=4), datum(3, value=5)]
    assert counts(commit(dataset, *parts)) == (3, 2, 0)
    assert [each.data["value"] for each in dataset.query()] == [1, 0, 3, 5]
    assert (dataset.path / "2026/11-20.jsonl").stat().st_size == 4 * size
    assert counts(commit(dataset, *parts)) == (0, 5, 0)
    assert (dataset.path / "2026/11-20.jsonl").stat().st_size == 4 * size
    check_sound(dataset)


def test_a_stage_can_go_on_with_a_segment_that_is_stored_in_another_way(create):
    dataset = create(**CONFIG, format="seg", compression="none")
    dataset.append([datum(0)])
    dataset.close()
    config = dataset.path / "dataset.toml"
    config.write_text(config.read_text().replace('compression = "none"\n', ""))
    with ondisk.open(dataset.path) as dataset:
        assert counts(commit(dataset, [datum(1), datum(25)], [datum(2)])) == (3, 0, 0)
        assert [each.reftime.hour for each in dataset.query()] == [0, 1, 2, 1]
        check_sound(dataset)


def test_duplicates_can_fail_the_commit_which_then_changes_nothing(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(1)])
    before = content(dataset), (dataset.path / "2026/11-20.jsonl").read_bytes()
    for parts in ([[datum(0), datum(1)]], [[datum(0)], [datum(0)]]):
        with pytest.raises(
            DuplicateDatum, match="1 of 2 data are duplicates, the first has reftime 2026-11-20 0"
        ) as caught:
            commit(dataset, *parts, on_duplicate="fail")
        assert "station a; nothing was stored" in caught.value.message
        assert (content(dataset), (dataset.path / "2026/11-20.jsonl").read_bytes()) == before
        check_sound(dataset)
    assert counts(commit(dataset, [datum(2)], on_duplicate="fail")) == (1, 0, 0)


def test_what_replaces_others_is_no_duplicate(create):
    dataset = create(**CONFIG, format="jsonl", replace="newer", version_field="version")
    dataset.append([datum(0, version=2)])
    assert counts(commit(dataset, [datum(0, version=2, value=7)], on_duplicate="fail")) == (0, 0, 1)
    with pytest.raises(DuplicateDatum, match="1 of 1 data are duplicates; nothing was stored"):
        commit(dataset, [datum(0, version=1)], on_duplicate="fail")
    assert [each.data["value"] for each in dataset.query()] == [7]


def test_overwriting_replaces_what_matches_in_one_commit(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(hour, station) for hour in (0, 1, 30) for station in "ab"])
    with closing(dataset.query()) as query:
        first = next(query)
        result = commit(dataset, [datum(1, "a", value=8), datum(2, "c", value=9)], overwrite="reftime: =2026-11-20")
        assert counts(result) == (2, 0, 0)
        assert [first, *query][-1].reftime == T + timedelta(hours=30)  # as it was when it began
    assert [(each.reftime.hour, each.data["value"]) for each in dataset.query()] == [(1, 8), (2, 9), (6, 0), (6, 0)]
    commit(dataset, overwrite=dataset.fields.station == "c")
    assert dataset.summary().count == 3
    commit(dataset, [datum(5)], overwrite="")
    assert content(dataset) == content_of([datum(5)])
    assert counts(commit(dataset, overwrite="station: z")) == (0, 0, 0)
    check_sound(dataset)


def commit_marked(dataset, parts, **options):
    """Stage parts, each of which has a mark, and commit them."""
    staged = [stage(dataset, part, str(at), mark=mark) for at, (mark, part) in enumerate(parts)]
    return dataset.append_staged("job", staged, **options)


def stations(dataset):
    return [each.metadata["station"] for each in dataset.query()]


@pytest.mark.parametrize("format", FORMATS)
def test_parts_of_a_source_are_stored_but_once(create, format):
    """Also of a dataset in which nothing is a duplicate."""
    dataset = create(**CONFIG | {"unique": []}, format=format)
    a, b, c, elsewhere = Mark("folder", "a"), Mark("folder", "b"), Mark("folder", "c"), Mark("other", "a")
    parts = {
        mark: [datum(at, station, format=format)]
        for at, (mark, station) in enumerate([(a, "a"), (b, "b"), (c, "c"), (elsewhere, "d")])
    }
    result = commit_marked(dataset, [(mark, parts[mark]) for mark in (a, b)])
    assert (counts(result), result.left_out) == ((2, 0, 0), [])
    result = commit_marked(dataset, [(mark, parts[mark]) for mark in (c, b, elsewhere, a)])
    assert (counts(result), result.left_out) == ((2, 0, 0), [b, a])
    result = commit_marked(dataset, [*parts.items()])
    assert (counts(result), result.left_out, result.bytes) == ((0, 0, 0), [*parts], 0)
    assert stations(dataset) == ["a", "b", "c", "d"]
    assert (dataset.parts_of("folder"), dataset.parts_of("other")) == ({"a", "b", "c"}, {"a"})
    assert dataset.parts_of("nothing") == set()
    check_sound(dataset)


def test_a_part_may_have_several_stages(create):
    dataset = create(**CONFIG, format="jsonl")
    for wanted in ((2, 0, 0), (0, 0, 0)):
        result = commit_marked(dataset, [(Mark("it", "a"), [datum(0)]), (Mark("it", "a"), [datum(1)])])
        assert counts(result) == wanted
    assert result.left_out == [Mark("it", "a")]


def test_of_numbers_only_those_above_the_last_are_new(create):
    dataset = create(**CONFIG | {"unique": []}, format="jsonl")
    steps = [(0, True), (0, False), (9, True), (9, False), (3, False), (10, True), (2**63 - 1, True)]
    for number, is_new in steps:
        result = commit_marked(dataset, [(Mark("query", number), [datum(0)])])
        assert (counts(result)[0], result.left_out) == ((1, []) if is_new else (0, [Mark("query", number)]))
    assert dataset.parts_of("query") == {2**63 - 1}
    commit_marked(dataset, [(Mark("other", number), [datum(0)]) for number in (7, 5)])
    assert dataset.parts_of("other") == {7}
    commit_marked(dataset, [(Mark("other", "7"), [datum(0)]), (Mark("other", ""), [])])
    assert commit_marked(dataset, [(Mark("other", 8), [datum(0)])]).imported == 1
    assert dataset.parts_of("other") == {8, "7", ""}


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_of_which_nothing_is_stored_was_seen_all_the_same(create, format):
    dataset = create(**CONFIG, format=format)
    dataset.append([datum(0, format=format)])
    result = commit_marked(dataset, [(Mark("it", "a"), [datum(0, format=format)]), (Mark("it", "b"), [])])
    assert (counts(result), result.left_out) == ((0, 1, 0), [])
    dataset.close()
    with ondisk.open(dataset.path) as dataset:
        assert dataset.parts_of("it") == {"a", "b"}
        assert dataset.append([datum(hour, format=format) for hour in range(2)]).imported == 1
        check_sound(dataset)


def test_a_commit_that_fails_leaves_no_mark(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0)])
    with pytest.raises(DuplicateDatum):
        commit_marked(dataset, [(Mark("it", "a"), [datum(1)]), (Mark("it", "b"), [datum(0)])], on_duplicate="fail")
    with pytest.raises(InvalidInput, match="stages that have marks cannot overwrite"):
        commit_marked(dataset, [(Mark("it", "a"), [datum(1)])], overwrite="")
    assert dataset.parts_of("it") == set()
    assert commit_marked(dataset, [(Mark("it", "a"), [datum(1)])], on_duplicate="fail").imported == 1
    check_sound(dataset)


def test_of_many_stages_those_are_left_out_that_another_stored_meanwhile(create, monkeypatch):
    monkeypatch.setattr("ondisk.dataset.commit_staged.MERGED", 3)
    dataset = create(**CONFIG | {"unique": []}, format="jsonl")
    parts = [(Mark("it", f"{at}"), [datum(at, f"s{at}")]) for at in range(12)]
    commit_marked(dataset, parts[2:6])
    assert counts(commit_marked(dataset, parts)) == (8, 0, 0)
    assert stations(dataset) == [f"s{at}" for at in range(12)]
    check_sound(dataset)


def test_marks_stay_when_segments_are_repacked_archived_or_deleted(create):
    dataset = create(**CONFIG, format="jsonl")
    commit_marked(dataset, [(Mark("it", "a"), [datum(0), datum(30)])])
    dataset.archive("2026/11-20.jsonl")
    dataset.delete("")
    dataset.repack()
    dataset.fix()
    assert dataset.parts_of("it") == {"a"}
    assert counts(commit_marked(dataset, [(Mark("it", "a"), [datum(0)])])) == (0, 0, 0)


def test_an_index_that_was_lost_knows_no_marks(create):
    dataset = create(**CONFIG, format="jsonl")
    commit_marked(dataset, [(Mark("it", "a"), [datum(0)])])
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path, read_only=True) as dataset:
        assert dataset.parts_of("it") == set()
    with ondisk.open(dataset.path) as dataset:
        dataset.fix()
        assert dataset.parts_of("it") == set()
        assert counts(commit_marked(dataset, [(Mark("it", "a"), [datum(0), datum(1)])])) == (1, 1, 0)
        assert dataset.parts_of("it") == {"a"}


def content_of(data):
    return [(each.reftime, dict(each.metadata), each.data) for each in data]


def test_data_of_the_archive_are_duplicates_and_can_be_replaced_and_overwritten(create):
    for replace, wanted in (("no", (1, 2, 0)), ("yes", (1, 0, 2))):
        dataset = create(replace, **CONFIG, format="jsonl", replace=replace)
        dataset.append([datum(0), datum(1), datum(30)])
        dataset.archive("2026/11-20.jsonl")
        assert counts(commit(dataset, [datum(0, value=7), datum(2, value=8)], [datum(30, value=9)])) == wanted
        kept = [0, 0, 8, 0] if replace == "no" else [0, 7, 8, 9]
        assert sorted(each.data["value"] for each in dataset.query()) == sorted(kept)
        commit(dataset, [datum(0, value=5)], overwrite="reftime: =2026-11-20")
        assert [each.data["value"] for each in dataset.query()] == [5, kept[-1]]
        check_sound(dataset)


def test_memory_does_not_grow_with_data_beside_those_that_replace_archived_ones(create):
    dataset = create(**CONFIG, format="jsonl", replace="yes")
    dataset.append([datum(0, "x"), datum(23, "x")])
    dataset.archive("2026/11-20.jsonl")
    staged = stage(dataset, [datum(1, f"{at}") for at in range(30_000)] + [datum(23, "x")], size=30_001)
    tracemalloc.start()
    try:
        assert counts(dataset.append_staged("job", [staged])) == (30_000, 0, 1)
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_who_takes_duplicates_is_given_those_of_the_archive_too(create, compression):
    dataset = create(**CONFIG, format="seg", compression=compression)
    dataset.append([datum(0, format="seg"), datum(30, format="seg")])
    dataset.archive("2026/11-20.seg")
    left_out = LeftOut()
    one, two = [datum(0, value=7), datum(2, value=8)], [datum(30, value=9), datum(2, value=10)]
    assert counts(commit(dataset, one, two, duplicates=left_out)) == (1, 3, 0)
    assert left_out.found == encoded([("0", one[0]), ("1", two[0]), ("1", two[1])], dataset)
    assert counts(commit(dataset, [datum(3)], duplicates=pytest.fail)) == (1, 0, 0)  # there is nothing to take


def test_what_keeps_duplicates_from_being_taken_keeps_the_rest_from_being_stored(create):
    def fail(found):
        next(found)
        raise ZeroDivisionError

    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0)])
    with pytest.raises(ZeroDivisionError):
        commit(dataset, [datum(0), datum(1)], duplicates=fail)
    assert dataset.summary().count == 1
    check_sound(dataset)
    assert counts(commit(dataset, [datum(1)])) == (1, 0, 0)


def test_archives_of_people_are_not_overwritten(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0), datum(30)])
    dataset.archive("2026/11-20.jsonl")
    dataset.close()
    (dataset.path / ".archive/last").rename(dataset.path / ".archive/old")
    with ondisk.open(dataset.path) as dataset:
        with pytest.raises(InvalidInput, match=r"1 data that match are in the archive .*old, and cannot be replaced"):
            commit(dataset, [datum(0, value=5)], overwrite="")
        assert dataset.summary().count == 2
        assert counts(commit(dataset, [datum(3)], overwrite="reftime: =2026-11-21")) == (1, 0, 0)
        assert dataset.summary().count == 2


def test_only_what_is_named_is_committed_and_the_rest_of_the_job_goes(create):
    """As when a task runs twice, or is killed and tried again."""
    dataset = create(**CONFIG, format="jsonl")
    first, _again = stage(dataset, [datum(0)], "0-1"), stage(dataset, [datum(0)], "0-2")
    with Directory.open(dataset.path) as directory:
        torn = Stage(directory, dataset.config, "job", "1-3")
        torn.__enter__()  # and killed
        assert counts(dataset.append_staged("job", [first])) == (1, 0, 0)
        torn.__exit__()
    assert [*dataset.path.glob(".staged/*")] == []


def test_a_stage_that_fails_leaves_nothing(create):
    dataset = create(**CONFIG, format="jsonl")
    with Directory.open(dataset.path) as directory:
        with pytest.raises(ZeroDivisionError), Stage(directory, dataset.config, "job", "0"):
            raise ZeroDivisionError
        assert [*dataset.path.glob(".staged/*")] == []
        with pytest.raises(FileExistsError), Stage(directory, dataset.config, "job", "0"):
            Stage(directory, dataset.config, "job", "0")


def test_what_has_gone_or_is_of_another_configuration_is_not_committed(create):
    dataset = create(**CONFIG, format="jsonl")
    for name in ("0.rows", "0.data"):
        one = stage(dataset, [datum(0), datum(0)])
        (dataset.path / STAGED / "job" / name).unlink()
        with pytest.raises(StateError, match=f"{name} is not there"):
            dataset.append_staged("job", [one])
    one = stage(dataset, [datum(0)])
    dataset.close()
    config = dataset.path / "dataset.toml"
    config.write_text(config.read_text().replace('"reftime", "station"', '"station"'))
    ondisk.migrate(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        with pytest.raises(StateError, match="was configured anew since the data were staged"):
            dataset.append_staged("job", [one])
        assert dataset.summary().count == 0
        check_sound(dataset)


@pytest.mark.parametrize("stages", [1, 10], ids=["few", "merged"])
@pytest.mark.parametrize("name", ["0.rows", "0.data"])
def test_what_was_staged_and_lost_a_part_is_told_from_a_damaged_index(create, name, stages):
    """As when the machine that staged it went down, or a network filesystem is behind."""
    writers = []
    with connections(writers.append, "rw"):
        dataset = create(**CONFIG, format="seg")
        dataset.append([datum(0, "z")])
    cache = writers[-1].execute("PRAGMA cache_size").fetchone()
    damages = [lambda whole: b"", lambda whole: whole[:5000]]
    if name == "0.rows":
        damages.append(lambda whole: bytes(len(whole)))
    for damage in damages:
        staged = [stage(dataset, [datum(0, f"{at} {each}") for each in range(200)], f"{at}") for at in range(stages)]
        file = dataset.path / STAGED / "job" / name
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(StateError, match=f"{name} is damaged: .*nothing was stored") as caught:
            dataset.append_staged("job", staged)
        assert caught.value.hint == "Stage the data again."
        assert writers[-1].execute("PRAGMA cache_size").fetchone() == cache
        assert dataset.summary().count == 1
        check_sound(dataset)


def test_what_a_lost_index_does_not_know_is_not_overwritten(create):
    dataset = create(**CONFIG, format="seg")
    dataset.append([datum(0)])
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        with pytest.raises(NeedsCheck, match="its index was lost"):
            commit(dataset, [datum(0, version=1)], overwrite="")
        assert dataset.summary().count == 0
        dataset.fix()
        assert counts(commit(dataset, [datum(0, version=1)], overwrite="")) == (1, 0, 0)
        assert [each.metadata["version"] for each in dataset.query()] == [1]
        check_sound(dataset)


@pytest.mark.parametrize("before", [0, 50])
@pytest.mark.parametrize("fields", [1, 60])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM value WHERE id = 1", "a row lacks its piece or a value"),
        ("DELETE FROM piece WHERE id = 1", "a row lacks its piece or a value"),
        ("DELETE FROM datum WHERE seq = 1", "rows are missing"),
    ],
)
def test_rows_that_lost_what_belongs_to_them_are_no_duplicates(create, before, fields, damage, problem):
    names = {f"t{number}": "text" for number in range(fields)}
    dataset = create(**CONFIG | {"fields": CONFIG["fields"] | names}, format="seg")
    dataset.append(datum(hour, "z") for hour in range(before))
    staged = stage(dataset, [datum(0), datum(30)], "0")
    path = dataset.path / STAGED / "job" / "0.rows"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(damage)
    with pytest.raises(StateError) as caught:
        dataset.append_staged("job", [staged])
    assert caught.value.message == f"{path} is damaged: {problem}; nothing was stored"
    assert dataset.summary().count == before
    check_sound(dataset)


def test_a_segment_that_an_append_left_a_tail_at_is_gone_on_with(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0)])
    with (dataset.path / "2026/11-20.jsonl").open("ab") as file:
        file.write(b"torn")
    commit(dataset, [datum(1)], [datum(2)])
    assert [each.reftime.hour for each in dataset.query()] == [0, 1, 2]
    check_sound(dataset)


def test_pieces_may_be_more_than_a_statement_can_name(create):
    dataset = create(**CONFIG, format="blob")
    with connections(lambda each: each.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2000), "rw"):  # of 1,000,000
        dataset.append([datum(0, format="blob")])
    part = [datum(at // 99, f"{at}", format="blob") for at in range(1500)]
    assert counts(commit(dataset, part, part[:9])) == (1500, 9, 0)
    check_sound(dataset)


@pytest.mark.parametrize("formats", [["blob"], ["jsonl", "blob"]], ids=" ".join)
def test_files_that_a_crash_left_in_several_segments_are_passed_over(create, formats):
    dataset = create(**CONFIG, format="jsonl")
    for offset in range(2):
        with Directory.open(dataset.path) as directory, Stage(directory, dataset.config, "job", "0") as staging:
            for format in (find(name)(dataset.config) for name in formats):
                hours = (hour + offset for hour in (0, 30, 60))
                data = [datum(hour, format.name, format=format.name) for hour in hours]
                staging.add(format.encode(data), format)
            left = [*dataset.path.glob("2026/11-2[12].blob")]
            for each in left:
                (each / "000001.blob").write_bytes(b"left by a crash")
            assert dataset.append_staged("job", [staging.finish()]).imported == 3 * len(formats)
            assert len(left) == 2 * offset
    assert [each.data for each in dataset.query("station: blob")] == [
        f"{hour} blob 0".encode() for hour in (0, 1, 30, 31, 60, 61)
    ]
    assert dataset.summary().count == len([*dataset.query()]) == 6 * len(formats)


def test_check_names_what_is_staged_and_repack_removes_it_when_it_is_old(create):
    dataset = create(**CONFIG, format="jsonl")
    stage(dataset, [datum(0)])
    [found] = dataset.check()
    assert (found.segment, found.state) == (".staged/job", State.OK)
    assert dataset.check().is_clean
    assert dataset.check().ok == 0  # it is no segment
    dataset.repack()
    assert (dataset.path / ".staged/job").exists()
    later = time.time() + jobs.ABANDONED + 60
    with clock(later):
        [found] = dataset.check().findings
        assert (found.segment, found.state, found.action) == (".staged/job", State.DELETED, "delete")
        assert found.freed == sum(each.stat().st_size for each in dataset.path.glob(".staged/job/*"))
        [done] = dataset.repack().findings
    assert (done.segment, done.action) == (".staged/job", "delete")
    assert [*dataset.check()] == []
    assert not (dataset.path / ".staged/job").exists()
