"""Data that many stage and one commits: the same as if they had been appended, all of them or none."""

from __future__ import annotations

import errno
import os
import tempfile
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from staging.stages import CONFIG, FORMATS, check_sound, commit, counts, stage
from worlds import content, datum, fail, lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.errors import DiskFull, DuplicateDatum, DurabilityLost, NeedsCheck, SegmentMissing
from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.index.import_log import Mark
from ondisk.index.transaction import Transaction
from ondisk.maintenance.states import State
from ondisk.staging.stage import Stage

T = datetime(2026, 11, 20, tzinfo=UTC)


class LeftOut:
    """Takes duplicates: the name of the stage, and the bytes."""

    def __init__(self):
        self.found = []

    def __call__(self, duplicates):
        for name, _, payloads in duplicates:
            self.found += [(name, payload) for payload in payloads]
        self.found.sort()


def encoded(given, dataset):
    """Return what `LeftOut` finds where data of stages are left out."""
    format = find(dataset.config.format)(dataset.config)
    return sorted((name, *format.encode([each]).payloads) for name, each in given)


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


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_new_segment_has_the_checksum_of_its_bytes_whatever_the_size_of_its_header(create, version):
    dataset = create(**CONFIG, format="seg", version=version)
    commit(dataset, [datum(hour, format="seg") for hour in range(3)])
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
        patch.setattr(os, call, fail(code))
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
        patch.setattr(Transaction, "save_segment", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            dataset.append_staged("job", staged)
    assert [*dataset.path.glob("2026/*.jsonl")] == []
    assert content(dataset) == []
    assert dataset.append_staged("job", many(dataset)).imported == 15
    check_sound(dataset)


@pytest.mark.check
@given(st.data())
@settings(max_examples=up_to(25))
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


@pytest.mark.each
@pytest.mark.parametrize("before", [None, 1, 3])
@pytest.mark.parametrize("versions", [*permutations(range(3))])
def test_of_three_versions_in_one_commit_the_newest_counts(create, versions, before):
    dataset = create(**CONFIG, replace="newer", version_field="version")
    if before is not None:
        dataset.append([datum(0, version=before)])
    commit(dataset, [datum(0, version=version) for version in versions])
    assert [each.metadata["version"] for each in dataset.query()] == [max(*versions, before or 0)]
    check_sound(dataset)


def test_what_a_staged_commit_replaces_is_deleted_as_by_an_append(create):
    dataset = create(**CONFIG, replace="yes")
    dataset.append([datum(0), datum(1)])
    assert commit(dataset, [datum(0, value=7)]).replaced == 1
    assert sql(dataset.path, "SELECT datum FROM deletion") == [(1,)]
    assert [each.state for each in dataset.check()] == [State.DIRTY]


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


def test_nothing_is_stored_if_the_archive_of_a_duplicate_is_away(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0), datum(30)])
    dataset.archive("2026/11-20.jsonl")
    (dataset.path / ".archive/last").rename(dataset.path.parent / "away")
    with pytest.raises(SegmentMissing, match=r"nothing was stored: .*\.archive/last.* is away: .*not mounted"):
        commit(dataset, [datum(0), datum(31)])
    assert [each.reftime for each in dataset.query("reftime: >=2026-11-21")] == [datum(30).reftime]
    assert counts(commit(dataset, [datum(31)])) == (1, 0, 0)


@pytest.mark.check
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


def test_data_of_every_archive_are_overwritten_in_the_same_commit_also_of_one_that_is_away(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0), datum(30)])
    dataset.archive("2026/11-20.jsonl")
    dataset.rename_archive("last", "old")
    assert counts(commit(dataset, [datum(0, value=5)], overwrite="")) == (1, 0, 0)
    assert [each.data["value"] for each in dataset.query()] == [5]
    dataset.repack()
    dataset.archive("2026/11-20.jsonl")
    (dataset.path / ".archive/last").rename(dataset.path.parent / "away")
    assert counts(commit(dataset, [datum(0, value=6)], overwrite="")) == (1, 0, 0)
    (dataset.path.parent / "away").rename(dataset.path / ".archive/last")
    assert [each.data["value"] for each in dataset.query()] == [6]
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


def test_what_is_away_since_the_index_was_lost_is_not_overwritten(create):
    """It would come back beside what replaces it."""
    dataset = create(**CONFIG, format="seg")
    dataset.append([datum(0), datum(30)])
    dataset.archive("2026/11-20.seg")
    dataset.close()
    (dataset.path / ".archive/last").rename(dataset.path.parent / "away")
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        dataset.fix()
        with pytest.raises(SegmentMissing, match="last is away"):
            commit(dataset, [datum(30, value=5)], overwrite="")
        assert dataset.summary().count == 1
        assert commit(dataset, [datum(30, value=5)], overwrite="reftime: >=2026-11-21").overwritten == 1
        (dataset.path.parent / "away").rename(dataset.path / ".archive/last")
        dataset.fix()
        assert [each.data["value"] for each in dataset.query()] == [0, 5]
        check_sound(dataset)


def test_a_segment_that_an_append_left_a_tail_at_is_continued(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0)])
    with (dataset.path / "2026/11-20.jsonl").open("ab") as file:
        file.write(b"torn")
    commit(dataset, [datum(1)], [datum(2)])
    assert [each.reftime.hour for each in dataset.query()] == [0, 1, 2]
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


@pytest.mark.check
def test_stages_without_one_that_was_stored_before_are_merged_again_after_a_segment_was_rewritten(create, monkeypatch):
    monkeypatch.setenv("ONDISK_KEYS", "1 " + "5a" * 32)
    dataset = create(format="seg", step="daily", compression="none")
    marks = [Mark("source", part) for part in "abc"]
    data = [Datum(T + timedelta(hours=hour), {}, {"hour": hour}) for hour in range(3)]
    dataset.append_staged("job", [stage(dataset, data[:1], mark=marks[0])])
    config = dataset.path / "dataset.toml"
    config.write_text('encryption = "aes-256-gcm"\n' + config.read_text())
    with ondisk.open(dataset.path) as dataset:
        parts = [stage(dataset, [each], str(at), mark=marks[at]) for at, each in enumerate(data)]
        result = dataset.append_staged("job", parts)
        assert (result.imported, result.skipped) == (2, marks[:1])
        assert [each.data for each in dataset.query()] == [each.data for each in data]
