"""Kept generations: what is counted, what is removed, and what stays."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from ondisk.filesystem import Directory
from ondisk.segments.generations import kept, retire
from ondisk.segments.replaced import Kept, folders, remove, replaced, staged, total

NAME = "2026/11-20.vm2"
NOW = 1_800_000_000


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "2026").mkdir()
    with closing(Directory.open(tmp_path)) as opened:
        yield opened


def put(directory, generation, at=NOW, content=b"bytes"):
    path = directory.path / kept(NAME, generation)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    rows = path.with_name(f"{path.name}.rows")
    rows.write_bytes(b"rows")
    os.utime(rows, (at, at))
    return path


def names(directory):
    return sorted(each.name for each in (directory.path / "2026").rglob("*") if each.is_file())


def test_the_names_of_kept_generations():
    assert kept(NAME, 17) == "2026/.replaced/11-20.vm2.17"
    assert staged(kept(NAME, 17) + ".rows") == "2026/.replaced/.11-20.vm2.17.rows.new"


def test_only_a_generation_with_rows_is_kept(directory):
    for generation in (1, 2):
        (directory.path / f"2026/.11-20.vm2.{generation}").write_bytes(b"old")
    put(directory, 2).unlink()
    assert [retire(directory, NAME, generation) for generation in (1, 2)] == [False, True]
    assert names(directory) == [".11-20.vm2.1", "11-20.vm2.2", "11-20.vm2.2.rows"]


def test_a_file_of_somebody_else_at_its_name_stays(directory):
    (directory.path / "2026/.11-20.vm2.1").write_bytes(b"old")
    other = put(directory, 1, content=b"mine")
    assert not retire(directory, NAME, 1)
    assert other.read_bytes() == b"mine"


def test_the_total_is_of_bytes_and_rows(directory):
    assert total(directory, 60) == Kept()
    put(directory, 1, at=NOW)
    put(directory, 2, at=NOW + 10).unlink()  # a query needs it still, or somebody has removed it
    assert total(directory, 60) == Kept(2, 13, NOW + 70)


def test_a_time_beyond_all_years_is_counted_as_their_last(directory):
    path = put(directory, 1, at=2**40)
    if path.stat().st_mtime < 2**40:
        pytest.skip("this filesystem stores no such time")
    assert total(directory, 60).until == 253_402_300_799


def test_other_names_are_nothing_that_is_kept(directory):
    path = put(directory, 1)
    for other in ("11-20.vm2.2", "note.rows", "11-20.vm2.x.rows", "11-20.vm2.1.rows~"):
        path.with_name(other).write_bytes(b"")
    path.with_name("11-20.vm2.3.rows").mkdir()
    path.with_name("11-20.vm2.4.rows").symlink_to(path)
    assert [(each.segment, each.generation) for each in replaced(directory)] == [(NAME, 1)]
    assert remove(directory, NOW, 0) == 1
    assert len(names(directory)) == 4
    assert folders(directory) == ["2026/.replaced"]


@pytest.mark.parametrize(("age", "goes"), [(59, False), (60, True), (-59, False), (-60, True)])
def test_what_is_too_old_goes_and_so_does_what_is_from_a_time_to_come(directory, age, goes):
    """The clock was set back: then it would be kept for longer than asked."""
    put(directory, 1, at=NOW - age)
    assert remove(directory, NOW, 60) == goes
    assert folders(directory) == ([] if goes else ["2026/.replaced"])


def test_rows_that_a_killed_process_has_not_finished_go(directory):
    put(directory, 1)
    (directory.path / staged(kept(NAME, 2) + ".rows")).write_bytes(b"half")
    assert remove(directory, NOW, 60) == 0
    assert names(directory) == ["11-20.vm2.1", "11-20.vm2.1.rows"]


def test_a_folder_of_segments_that_is_none_keeps_nothing(directory):
    (directory.path / "2027").symlink_to("2026")
    (directory.path / "2028").touch()
    put(directory, 1)
    assert folders(directory) == ["2026/.replaced"]


def test_a_link_in_the_place_of_the_folder_is_not_followed(directory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "11-20.vm2.1.rows").write_bytes(b"mine")
    (directory.path / "2026/.replaced").symlink_to(elsewhere)
    assert not [*replaced(directory)]
    assert remove(directory, NOW, 0) == 0
    assert (elsewhere / "11-20.vm2.1.rows").exists()
