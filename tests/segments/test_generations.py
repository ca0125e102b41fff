"""Generations: where the bytes of each stand, what a crash leaves of a switch, and what is made of that."""

from __future__ import annotations

import pytest

from ondisk.filesystem import Directory
from ondisk.segments import generations
from ondisk.segments.generations import recover

NAME = "2026/11-20.vm2"


def write(directory: Directory, name: str, content: bytes) -> None:
    with directory.create_file(name) as file:
        file.write(0, content)


def files(directory: Directory) -> dict[str, bytes]:
    """Give name → content of everything beside the segment, and of itself."""
    return {name: directory.read(f"2026/{name}", 100) for name in sorted(directory.names("2026"))}


def inode(directory: Directory, name: str) -> int:
    found = directory.stat(name)
    assert found is not None
    return found.st_ino


def test_a_generation_has_a_hidden_name_beside_its_segment():
    assert generations.hidden(NAME, 17) == "2026/.11-20.vm2.17"
    assert generations.hidden("0.seg", 3) == ".0.seg.3"


def test_a_staged_file_is_empty_and_new_whatever_stood_there(directory):
    write(directory, "2026/.11-20.vm2.2", b"of a crash")
    before = inode(directory, "2026/.11-20.vm2.2")
    kept = directory.open_to_read("2026/.11-20.vm2.2")
    with generations.stage(directory, NAME, 2) as staged:
        staged.write(0, b"new")
    assert files(directory) == {".11-20.vm2.2": b"new"}
    assert inode(directory, "2026/.11-20.vm2.2") != before
    assert kept.read(0, 100) == b"of a crash"


def test_a_retired_generation_has_two_names_and_retiring_it_again_changes_nothing(directory):
    write(directory, NAME, b"one")
    for _ in range(2):
        generations.link_old(directory, NAME, 1)
        assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.1": b"one"}
    assert inode(directory, NAME) == inode(directory, "2026/.11-20.vm2.1")


def test_a_taken_over_generation_stands_at_the_segments_name(directory):
    write(directory, NAME, b"one")
    write(directory, "2026/.11-20.vm2.2", b"two")
    generations.promote(directory, NAME, 2)
    assert files(directory) == {"11-20.vm2": b"two"}


@pytest.mark.parametrize("there", [True, False])
def test_a_switch_that_was_committed_is_completed(directory, there):
    if there:
        write(directory, NAME, b"one")
    write(directory, "2026/.11-20.vm2.2", b"two")
    generations.complete(directory, NAME, 2, 3)
    assert files(directory) == {"11-20.vm2": b"two"}


def test_nothing_is_completed_where_the_generation_stands_in_its_place(directory):
    write(directory, NAME, b"one")
    write(directory, "2026/.11-20.vm2.9", b"staged")
    generations.complete(directory, NAME, 1, 3)
    assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.9": b"staged"}
    generations.link_old(directory, NAME, 1)
    generations.complete(directory, NAME, 1, 3)
    assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.1": b"one", ".11-20.vm2.9": b"staged"}


def test_what_is_left_behind_is_found_in_years_and_centuries_and_nowhere_else(directory):
    names = ["2026/.11-20.vm2.17", "2026/.11-20.vm2.9", "20/.2007.seg.3", "2026/.11-21.vm2.100", "2026/11-20.vm2"]
    for name in [*names, ".index.sqlite.17", "other/.11-20.vm2.3", "2026/.hidden", "2026/.x.1a", "2026/.11-20.vm2.0x"]:
        write(directory, name, b"")
    assert generations.left_behind(directory) == {
        "2026/11-20.vm2": [9, 17],
        "20/2007.seg": [3],
        "2026/11-21.vm2": [100],
    }
    assert generations.generations_of(directory, NAME) == [9, 17]
    assert generations.generations_of(directory, "2026/11-20.seg") == []
    assert generations.generations_of(directory, "1999/01-01.vm2") == []
    assert sorted(generations.parents(directory)) == ["20", "2026"]


def test_settling_nothing_touches_nothing(directory):
    assert recover(directory, "1999/01-01.vm2", [], 3, unread=True, trusted=True) == []


def settled(directory: Directory, current: int | None, *, unread: bool, trusted: bool = True) -> list[int]:
    here = generations.generations_of(directory, NAME)
    return recover(directory, NAME, here, current, unread=unread, trusted=trusted)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("unread", [True, False])
def test_killed_before_the_commit_alias_and_staged_file_go(directory, unread, trusted):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1)
    write(directory, "2026/.11-20.vm2.2", b"two")
    assert settled(directory, 1, unread=unread, trusted=trusted) == ([] if unread else [2])
    assert files(directory) == {"11-20.vm2": b"one"} | ({} if unread else {".11-20.vm2.2": b"two"})


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("unread", [True, False])
def test_killed_behind_the_commit_the_new_bytes_come_and_the_old_ones_stay_while_they_are_read(
    directory, unread, trusted
):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1)
    write(directory, "2026/.11-20.vm2.2", b"two")
    assert settled(directory, 2, unread=unread, trusted=trusted) == ([] if unread else [1])
    assert files(directory) == {"11-20.vm2": b"two"} | ({} if unread else {".11-20.vm2.1": b"one"})


@pytest.mark.parametrize("unread", [True, False])
def test_a_segment_dropped_from_the_index_is_left_to_a_repack_and_its_second_name_goes_behind_it(directory, unread):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1)
    before = directory.stat(NAME).st_ctime_ns
    assert settled(directory, None, unread=unread) == [1]
    assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.1": b"one"}
    assert directory.stat(NAME).st_ctime_ns == before  # a fix would take it for newer than the index
    directory.unlink(NAME)
    assert settled(directory, None, unread=True) == []
    assert files(directory) == {}


@pytest.mark.parametrize("unread", [True, False])
def test_a_segment_that_the_index_may_have_lost_stays_under_all_its_names(directory, unread):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1)
    write(directory, "2026/.11-20.vm2.2", b"two")
    assert settled(directory, None, unread=unread, trusted=False) == [1, 2]
    assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.1": b"one", ".11-20.vm2.2": b"two"}


def test_another_file_in_the_place_of_a_dropped_segment_stays(directory):
    write(directory, "2026/.11-20.vm2.1", b"one")
    write(directory, NAME, b"new")
    assert settled(directory, None, unread=True) == []
    assert files(directory) == {"11-20.vm2": b"new"}


def test_of_several_generations_all_go_but_the_one_of_the_index(directory):
    write(directory, NAME, b"old")
    for generation in (1, 4, 9, 12):
        write(directory, f"2026/.11-20.vm2.{generation}", b"%d" % generation)
    assert settled(directory, 9, unread=False) == [1, 4, 12]
    assert files(directory)["11-20.vm2"] == b"9"
    assert settled(directory, 9, unread=True) == []
    assert files(directory) == {"11-20.vm2": b"9"}


def directory_there(directory: Directory, place: str) -> None:
    directory.create_file(f"{place}/file").close()


def link_there(directory: Directory, place: str) -> None:
    write(directory, "2026/elsewhere", b"a long, long time ago")
    (directory.path / place).symlink_to("elsewhere")


def short_there(directory: Directory, place: str) -> None:
    write(directory, place, b"tw")


STRAYS = [directory_there, link_there, short_there]


@pytest.mark.parametrize("put", STRAYS)
def test_what_is_not_the_committed_generation_takes_the_place_of_nothing_and_stays(directory, put):
    write(directory, NAME, b"three")
    put(directory, "2026/.11-20.vm2.3")
    before = sorted(directory.names("2026"))
    generations.complete(directory, NAME, 3, 5)
    assert recover(directory, NAME, [3], 3, 5, unread=True, trusted=True) == []
    assert sorted(directory.names("2026")) == before
    assert directory.read(NAME, 100) == b"three"
    assert generations.stray(directory, NAME, 3, 5) == "2026/.11-20.vm2.3"


def test_a_generation_that_was_cut_short_comes_back_where_nothing_else_stands(directory):
    write(directory, "2026/.11-20.vm2.3", b"thr")
    generations.complete(directory, NAME, 3, 5)
    assert files(directory) == {"11-20.vm2": b"thr"}


@pytest.mark.parametrize("put", [directory_there, link_there])
def test_what_is_no_file_is_no_other_generation(directory, put):
    write(directory, NAME, b"three")
    put(directory, "2026/.11-20.vm2.2")
    before = sorted(directory.names("2026"))
    assert recover(directory, NAME, [2], 3, 5, unread=True, trusted=True) == []
    assert sorted(directory.names("2026")) == before


def test_the_two_names_of_a_retired_generation_are_no_stray(directory):
    write(directory, NAME, b"one")
    assert generations.stray(directory, NAME, 1, 3) is None
    generations.link_old(directory, NAME, 1)
    assert generations.stray(directory, NAME, 1, 3) is None
