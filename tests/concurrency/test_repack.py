"""Readers and writers beside a repack: never an error, never wrong bytes, and the space comes back behind them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crash.recovery import check_whole
from crash.workload import CONFIGS, REPLACING, datum_of, left_behind, line, lines_of, segment_of

import ondisk
from ondisk.errors import StorageError
from ondisk.index import Index

from . import workers
from .conftest import Start
from .side_by_side import beside, check_tidy

ROUNDS = 25


@pytest.mark.parametrize("name", CONFIGS)
def test_readers_beside_a_writer_that_replaces_deletes_and_repacks_see_whole_states_and_no_error(
    name: str, tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "dataset"
    ondisk.create(path, {**CONFIGS[name], "replace": "yes"}).close()
    repacked, counts = beside(start, path, workers.change_and_repack, workers.read_in_all_ways, ROUNDS)
    assert repacked > ROUNDS // 3
    # Of the ways to read by what an earlier query said, each must have met what had gone, and what had not.
    assert all(counts[each] for each in ("found by key", "gone by key", "found by location")), counts
    check_tidy(path)
    if name == "seg plain":
        check_whole(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_query_that_began_before_a_repack_answers_from_what_was_there_and_its_space_comes_back(
    name: str, tmp_path: Path
) -> None:
    path, config = tmp_path / "dataset", CONFIGS[name]
    format = config["format"]
    with ondisk.create(path, config) as dataset, ondisk.open(path, read_only=True) as reader:
        for number in range(20):
            dataset.append(workers.batch(number, format))
        before = lines_of(dataset)
        with closing(reader.query()) as query, closing(reader.payloads()) as payloads:
            first, head = next(query), next(payloads)
            for area in range(3):
                dataset.delete(f'area:"VM2,{area}"')
                assert {each.action for each in dataset.repack()} == {"repack"}
            dataset.append([datum_of(line(0, 0, 7777, 7777), format)])
            # What was linked or staged for a generation that nobody began to read goes, too, but later.
            assert len(left_behind(path)) >= 2
            assert sorted(workers.line_of(each, format) for each in (first, *query)) == before
            rest = b"".join((head, *payloads))
            assert sorted(workers.lines_in(reader, rest)) == before
        after = lines_of(dataset)
        dataset.append([datum_of(line(0, 0, 7778, 7777), format)])
        assert left_behind(path) == []
        assert len(lines_of(dataset)) == len(after) + 1
        assert lines_of(reader) == lines_of(dataset)


@pytest.mark.parametrize("name", CONFIGS)
def test_dropped_segments_stay_for_a_query_that_began_before_and_go_with_the_next_commit(
    name: str, tmp_path: Path
) -> None:
    path, config = tmp_path / "dataset", CONFIGS[name]
    format = config["format"]
    with ondisk.create(path, config) as dataset:
        for number in range(10):
            dataset.append(workers.batch(number, format))
        before = lines_of(dataset)
        query = dataset.query()
        first = next(query)
        assert dataset.delete("") == len(before)
        assert {each.action for each in dataset.repack()} == {"delete"}
        assert [each.name for each in path.glob("2026/1*")] == []
        dataset.append([datum_of(line(0, 0, 7777, 7777), format)])  # in the place of one of them
        assert sorted(workers.line_of(each, format) for each in (first, *query)) == before
        dataset.append([datum_of(line(0, 0, 7778, 7777), format)])
        assert left_behind(path) == []


@pytest.mark.parametrize("name", ["vm2", "seg plain"])
def test_a_look_up_that_meets_a_repack_between_index_and_file_answers_all_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = tmp_path / "dataset", CONFIGS[name]
    format = config["format"]
    lines = [line(0, 0, station, station, "x" * station) for station in range(8)]
    with ondisk.create(path, config) as dataset, ondisk.open(path, read_only=True) as reader:
        dataset.append(datum_of(each, format) for each in lines)
        known = list(reader.query(with_data=False))  # segment and metadata are known, its file is not open
        look_up, met = Index.look_up, []

        def interrupted(index: Index, key: Any) -> Any:
            found = look_up(index, key)
            dataset.delete(f'area:"VM2,{len(met)}"')
            assert [each.action for each in dataset.repack()] == ["repack"]
            assert left_behind(path) == []
            met.append(found)
            return found

        monkeypatch.setattr(Index, "look_up", interrupted)
        for each, written in zip(known[-3:], lines[-3:], strict=True):
            assert [
                workers.line_of(found, format) for found in reader.query(reftime=each.reftime, **each.metadata)
            ] == [written]
        assert len(met) == 3
        assert met[0]  # it was told where the datum stood before the repack


@pytest.mark.parametrize("then", ["append", "replace", "delete", "repack", "check and fix"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_writer_goes_on_with_the_right_file_after_another_one_was_killed_in_the_middle_of_a_repack(
    name: str, then: str, tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "dataset"
    config = {**CONFIGS[name], "replace": "yes"}
    format = config["format"]
    lines = {station: line(0, 0, station, station, "x" * station) for station in range(8)}
    with ondisk.create(path, config) as dataset, ondisk.open(path, read_only=True) as reader:
        dataset.append(datum_of(each, format) for each in lines.values())
        dataset.delete('area:"VM2,0"')
        lines.pop(0)
        start(workers.die_before_the_rename, path).process.join(60)
        assert len(left_behind(path)) == 2  # both generations, the new one committed
        assert lines_of(reader) == sorted(lines.values())
        match then:
            case "append":
                dataset.append([datum_of(line(0, 0, 9, 9), format)])
                lines[9] = line(0, 0, 9, 9)
            case "replace":
                dataset.append([datum_of(line(0, 0, 3, 4), format)])
                lines[3] = line(0, 0, 3, 4)
            case "delete":
                dataset.delete('area:"VM2,5"')
                lines.pop(5)
            case "repack":
                dataset.repack()
            case _:
                assert not any(each.state for each in dataset.check(accurate=True))
                dataset.fix()
        assert lines_of(dataset) == lines_of(reader) == sorted(lines.values())
        assert dataset.repack().counts["corrupted"] == 0
        assert lines_of(dataset) == lines_of(reader) == sorted(lines.values())
        assert not any(each.state for each in dataset.check(accurate=True))
    with ondisk.open(path) as dataset:
        assert lines_of(dataset) == sorted(lines.values())
        assert left_behind(path) == []


def failing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a function of os fail as it does on a broken disk."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, name, fail)


def test_a_repack_that_cannot_end_what_a_killed_one_began_keeps_its_bytes(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dataset"
    lines = [line(0, 0, station, 1) for station in range(4)]
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        dataset.append(map(datum_of, lines))
        dataset.delete('area:"VM2,0"')
        start(workers.die_before_the_rename, path).process.join(60)
        dataset.delete('area:"VM2,1"')
        with monkeypatch.context() as patch:
            failing(patch, "rename")
            with pytest.raises(StorageError):
                dataset.repack()
        assert lines_of(dataset) == lines[2:]
        dataset.repack()
        assert lines_of(dataset) == lines[2:]
        assert left_behind(path) == []


@pytest.mark.parametrize("call", ["unlink", "listdir"])
def test_what_cannot_be_tidied_up_behind_a_commit_is_no_error_of_it_and_goes_later(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dataset"
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        dataset.append(datum_of(line(0, 0, station, 1)) for station in range(4))
        with closing(dataset.query()) as query:
            next(query)
            dataset.delete('area:"VM2,0"')
            dataset.repack()
        assert left_behind(path) != []
        with monkeypatch.context() as patch:
            failing(patch, call)
            assert dataset.append([datum_of(line(0, 0, 9, 1))]).imported == 1
        assert left_behind(path) != []
        assert dataset.append([datum_of(line(0, 0, 9, 2)), datum_of(line(0, 0, 8, 2))]).imported == 1
        assert left_behind(path) == []


def test_what_another_writer_kept_from_being_tidied_up_when_a_dataset_was_opened_goes_later(
    tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "dataset"
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        dataset.append(datum_of(line(0, 0, station, 1)) for station in range(4))
        dataset.delete('area:"VM2,0"')
    start(workers.die_before_the_rename, path).process.join(60)
    holder = start(workers.hold_lock, path)
    holder.hear()
    (path / "2026" / ".11-20.vm2.99").touch()
    with ondisk.open(path) as dataset:
        assert left_behind(path) != []
        holder.go()
        holder.end()
        dataset.append([datum_of(line(7, 0, 9, 1))])
        assert left_behind(path) == []
        assert len(lines_of(dataset)) == 4


def test_an_index_from_a_backup_costs_no_segment_that_it_does_not_know_yet(tmp_path: Path) -> None:
    path, backup = tmp_path / "dataset", tmp_path / "backup.sqlite"
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        dataset.append([datum_of(line(0, 0, 1, 1))])
    with closing(sqlite3.connect(path / "index.sqlite")) as index, closing(sqlite3.connect(backup)) as copy:
        index.backup(copy)
    with ondisk.open(path) as dataset:
        dataset.append([datum_of(line(1, 0, 1, 1))])
        unknown = segment_of(dataset, 1)
    os.link(unknown, unknown.with_name(f".{unknown.name}.2"))  # as of a repack that was killed
    for suffix in ("-wal", "-shm"):
        (path / f"index.sqlite{suffix}").unlink()
    backup.replace(path / "index.sqlite")
    with ondisk.open(path) as dataset:
        dataset.append([datum_of(line(2, 0, 1, 1))])
        assert unknown.read_bytes() == line(1, 0, 1, 1) + b"\n"


def test_replaced_data_are_gone_behind_a_repack(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", REPLACING) as dataset:
        dataset.append([datum_of(line(0, 0, 1, 1)), datum_of(line(0, 0, 2, 1))])
        dataset.append([datum_of(line(0, 0, 1, 2))])
        dataset.repack()
        assert lines_of(dataset) == sorted([line(0, 0, 1, 2), line(0, 0, 2, 1)])
        assert segment_of(dataset, 0).read_bytes().count(b"\n") == 2


def test_what_is_appended_to_a_segment_whose_archiving_was_killed_half_way_stays(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "dataset"
    lines = [line(0, hour, 1, 1) for hour in range(4)]
    name = "2026/11-20.vm2"
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        dataset.append(map(datum_of, lines[:2]))
        start(workers.die_before_the_drop, path, name).process.join(60)
        dataset.append([datum_of(lines[2])])
        assert lines_of(dataset) == lines[:3]
        dataset.archive(name)
        assert lines_of(dataset) == lines[:3]
        assert [*path.glob("2026/*")] == []
        dataset.append([datum_of(lines[3])])
        start(workers.die_before_the_drop, path, name).process.join(60)
        dataset.append([datum_of(line(0, 5, 1, 1))])
    with ondisk.open(path) as dataset:
        assert lines_of(dataset) == [*lines, line(0, 5, 1, 1)]
        assert not any(each.state for each in dataset.repack() if not each.action)
        assert lines_of(dataset) == [*lines, line(0, 5, 1, 1)]
        assert not any(each.state for each in dataset.check(accurate=True))


@pytest.mark.parametrize("verb", ["check", "fix", "repack"])
def test_a_segment_that_was_archived_and_not_yet_renamed_is_not_missing(
    verb: str, tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "dataset"
    lines = [line(0, hour, 1, 1) for hour in range(4)]
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        dataset.append(map(datum_of, lines))
        start(workers.die_before_the_rename, path, "2026/11-20.vm2").process.join(60)
        assert [each.name for each in path.glob(".archive/last/2026/*")] == [".11-20.vm2.2"]
        assert not any(each.state for each in getattr(dataset, verb)())
        assert lines_of(dataset) == lines
    with ondisk.open(path) as dataset:
        assert lines_of(dataset) == lines
        assert [each.name for each in path.glob("**/2026/*")] == ["11-20.vm2"]
