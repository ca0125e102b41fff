"""Places of the archive: whether the folder that is there is the one that the dataset's disk says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ondisk.filesystem import Directory
from ondisk.segments import places
from ondisk.step import LAST, Interval

TAPE = ".archive/2024/"


@pytest.fixture
def last(directory: Directory, tmp_path: Path) -> Path:
    """Make a place to which two segments were moved; beside the dataset is a copy of it after the first one."""
    places.note_move(directory, LAST, 1, 10, Interval(0, 5))
    shutil.copytree(tmp_path / LAST, tmp_path / "older")
    places.note_move(directory, LAST, 2, 10, Interval(5, 9))
    return tmp_path / LAST


def why_away(directory: Directory, name: str = LAST) -> str | None:
    return places.place(directory, name).why_away


def test_a_place_is_there_and_says_what_was_moved_to_it(directory, last):
    found = places.place(directory, LAST)
    assert (found.why_away, found.is_ours, found.is_offline) == (None, True, False)
    assert found.identity is not None
    assert found.identity[1:] == (2, 20, 0, 9, False, 0)
    assert [*places.roots(directory)] == [LAST.removesuffix("/")]


def test_without_an_identity_a_folder_is_there_and_nothing_in_it_is_cleaned_up(directory, tmp_path):
    (tmp_path / TAPE).mkdir(parents=True)
    assert places.place(directory, TAPE) == (TAPE, None, None, False, None)
    assert [*places.roots(directory)] == []


@pytest.mark.parametrize("accident", ["no folder", "an empty mount point", "the wrong disk", "an older tape", "a link"])
def test_what_is_in_the_place_of_a_folder_is_told_apart(directory, last, tmp_path, accident):
    shutil.rmtree(last)
    if accident == "an empty mount point":
        last.mkdir()
    elif accident == "a link":
        last.symlink_to(tmp_path / "older", target_is_directory=True)
    elif accident == "an older tape":
        shutil.copytree(tmp_path / "older", last)
    elif accident == "the wrong disk":
        places.write(directory, TAPE, places.new_identity()._replace(generation=7))
        (tmp_path / TAPE).rename(last)
    why = {"no folder": "its folder is not there", "an empty mount point": "its folder is empty",
           "the wrong disk": "another folder is in its place", "an older tape": "an older state of it",
           "a link": "a symbolic link is in its place"}  # fmt: skip
    assert (why_away(directory) or "").startswith(why[accident])
    assert [*places.roots(directory)] == []
    assert places.closed(directory).keys() >= {LAST}


def test_an_offline_place_is_away_whatever_is_there(directory, last):
    identity = places.place(directory, LAST).identity
    assert identity is not None
    places.write(directory, LAST, identity._replace(is_offline=True), only_outside=True)
    assert why_away(directory) == "it is offline"
    assert [*places.roots(directory)] == []


def test_only_the_file_on_the_disk_of_the_dataset_says_that_a_place_is_offline(directory, last, tmp_path):
    """Else nothing would bring a folder online whose file there was copied into it, and then went."""
    identity = places.place(directory, LAST).identity
    assert identity is not None
    outside = tmp_path / places.outside(LAST)
    places.write(directory, LAST, identity._replace(is_offline=True, known_since=places.UNREAD), only_outside=True)
    shutil.copy(outside, last / places.PLACE)
    outside.unlink()
    assert places.place(directory, LAST).identity == identity
    assert why_away(directory) is None


def test_a_folder_that_was_renamed_is_followed_unless_there_is_a_copy_of_it(directory, last, tmp_path):
    last.rename(tmp_path / TAPE)
    assert places.place(directory, LAST).renamed is None  # it has data, and here is no file
    (tmp_path / TAPE / "11-20.vm2").touch()
    assert places.place(directory, LAST).renamed == TAPE
    assert not places.place(directory, TAPE).is_ours  # before the index has followed
    assert [*places.elsewhere(directory, f"{LAST}2026/11-20.vm2")] == [f"{TAPE}2026/11-20.vm2"]
    shutil.copytree(tmp_path / TAPE, tmp_path / ".archive/2025")
    assert places.place(directory, LAST).renamed is None
    shutil.rmtree(tmp_path / ".archive/2025")
    places.rename(directory, {LAST: TAPE})
    assert places.place(directory, TAPE).is_ours
    assert places.named(directory) == {TAPE}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"id": 1}', b'{"id": "1", "count": "2"}', b"\xff"])
def test_a_file_that_nobody_wrote_is_no_identity(directory, last, content):
    (last / places.PLACE).write_bytes(content)
    assert why_away(directory) == "its folder is empty, or is another one; perhaps its disk is not mounted"


def test_the_file_in_the_folder_is_written_first(directory, last, monkeypatch):
    """So that after a crash the folder is no older state of itself."""
    replaced = []
    replace = Directory.replace

    def noted(self: Directory, name: str, content: bytes) -> None:
        replaced.append(name)
        replace(self, name, content)

    monkeypatch.setattr(Directory, "replace", noted)
    places.note_move(directory, LAST, 3, -10)
    assert replaced == [places.PLACE, "last.place"]
