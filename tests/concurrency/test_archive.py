"""Readers and writers beside archive and unarchive: every datum is given once, whatever moves meanwhile."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from crash.workload import CONFIGS, datum_of, left_behind, line, lines_of, segment_of

import ondisk

from . import workers
from .conftest import Start
from .side_by_side import beside, check_tidy

ROUNDS, DAYS = 24, 12


@pytest.mark.check
@pytest.mark.parametrize("name", CONFIGS)
def test_readers_beside_a_writer_that_archives_and_unarchives_see_whole_states_and_no_error(
    name: str, tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "dataset"
    ondisk.create(path, {**CONFIGS[name], "replace": "yes", "lock_timeout": 30}).close()
    moved, counts = beside(start, path, workers.change_and_archive, workers.read_archives_in_all_ways, ROUNDS)
    assert moved == ROUNDS // 4 * 5
    assert all(counts[each] for each in ("rounds", "archived", "found by key")), counts
    check_tidy(path)


@pytest.mark.check
@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_that_archive_at_once_move_everything_once(name: str, tmp_path: Path, start: Start) -> None:
    path = tmp_path / "dataset"
    with ondisk.create(path, {**CONFIGS[name], "lock_timeout": 30}) as dataset:
        dataset.append(datum_of(line(day, 0, 1, day), dataset.config.format) for day in range(DAYS))
        before = lines_of(dataset)
    both = [start(workers.archive_all, path, DAYS) for _ in range(2)]
    for each in both:
        assert each.hear() == "ready"
    for each in both:
        each.go()
    assert [each.hear() for each in both] == ["done", "done"]
    with ondisk.open(path) as dataset:
        assert lines_of(dataset) == before
        assert [*path.glob("2*/*")] == []
        assert not any(each.state for each in dataset.check(accurate=True))


@pytest.mark.parametrize("verb", ["archive", "repack behind it"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_query_that_began_before_an_archive_ends_with_what_was_there(name: str, verb: str, tmp_path: Path) -> None:
    path, format = tmp_path / "dataset", CONFIGS[name]["format"]
    with ondisk.create(path, CONFIGS[name]) as dataset, ondisk.open(path, read_only=True) as reader:
        for number in range(10):
            dataset.append(workers.batch(number, format))
        before = lines_of(dataset)
        with closing(reader.query()) as query, closing(reader.payloads()) as payloads:
            first, head = next(query), next(payloads)
            dataset.archive(*(str(segment_of(dataset, day).relative_to(path)) for day in (0, 1)))
            if verb != "archive":
                dataset.delete('area:"VM2,1"')
                dataset.repack()
            dataset.append([datum_of(line(0, 0, 7777, 7777), format)])
            assert sorted(workers.line_of(each, format) for each in (first, *query)) == before
            assert sorted(workers.lines_in(reader, b"".join((head, *payloads)))) == before
        dataset.append([datum_of(line(0, 0, 7778, 7777), format)])
        assert left_behind(path) == []
        assert lines_of(reader) == lines_of(dataset)


@pytest.mark.check
def test_a_folder_that_a_person_renames_is_read_by_its_new_name_and_the_next_archive_begins_another(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dataset"
    lines = [line(day, 0, 1, day) for day in range(4)]
    with ondisk.create(path, CONFIGS["vm2"]) as dataset, ondisk.open(path, read_only=True) as reader:
        dataset.append(map(datum_of, lines))
        names = [str(segment_of(dataset, day).relative_to(path)) for day in range(4)]
        dataset.archive(names[0])
        assert lines_of(reader) == lines
        with closing(reader.query()) as query:
            first = next(query)
            (path / ".archive/last").rename(path / ".archive/old")
            assert [first.data, *(each.data for each in query)] == lines
        assert lines_of(reader) == lines_of(dataset) == lines
        dataset.archive(names[1])
        assert lines_of(reader) == lines_of(dataset) == lines
        assert reader.info()["archives"] == dataset.info()["archives"] == ["last", "old"]
        (path / ".archive/old").rename(path / ".archive/older")
        (path / ".archive/last").rename(path / ".archive/old")  # another one by a name that was in use
        assert dataset.fix().lost == 0
        assert lines_of(reader) == lines_of(dataset) == lines
        dataset.archive(names[2])
        assert {*reader.info()["archives"]} == {"old", "older", "last"}
        assert lines_of(reader) == lines_of(dataset) == lines
        assert dataset.delete("") == 4
        assert lines_of(reader) == []
