"""Generations: where the bytes of each stand, what a crash leaves of a switch, and what is made of that."""

from __future__ import annotations

import errno
import os

import pytest
from worlds import fail

from ondisk.filesystem import Directory
from ondisk.segment import Facts
from ondisk.segments import generations, quarantine
from ondisk.segments.file_facts import Committed, checksum_of, facts_of, tail_of
from ondisk.segments.generations import recover

NAME = "2026/11-20.vm2"


def write(directory: Directory, name: str, content: bytes) -> None:
    with directory.create_file(name) as file:
        file.write(0, content)


def files(directory: Directory) -> dict[str, bytes]:
    """Return name → content of everything beside the segment, and of itself."""
    names = sorted(set(directory.names("2026")) - {quarantine.FOLDER})
    return {name: directory.read(f"2026/{name}", 100) for name in names}


def kept(directory: Directory) -> list[tuple[str, bytes, str]]:
    """Return (file, content, verb) of what is in quarantine."""
    return [(each.file, directory.read(each.name, 100), each.verb) for each in quarantine.items(directory)]


def committed(directory: Directory, name: str, size: int | None = None) -> Committed:
    """Return what the index records of a file as it is."""
    file = directory.open_to_read(name)
    size = file.size() if size is None else size
    facts = facts_of(file.stat(), tail_of(file, size, range(0)), checksum_of(file, size, range(0)))
    return Committed(size, facts, range(0))


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
        generations.link_old(directory, NAME, 1, None)
        assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.1": b"one"}
    assert inode(directory, NAME) == inode(directory, "2026/.11-20.vm2.1")


def test_both_generations_have_their_hidden_names_when_a_repack_syncs_the_folder(directory, monkeypatch):
    write(directory, NAME, b"one")
    generations.stage(directory, NAME, 2).close()
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: synced.append((path, {*files(directory)})))
    generations.link_old(directory, NAME, 1, None)
    assert synced == [(str(directory.path / "2026"), {"11-20.vm2", ".11-20.vm2.1", ".11-20.vm2.2"})]


def test_a_file_of_another_process_becomes_a_generation(directory):
    write(directory, "2026/.staged", b"two")
    directory.rename("2026/.staged", "2026/.11-20.vm2.2")
    assert files(directory) == {".11-20.vm2.2": b"two"}


def test_a_generation_that_is_dropped_has_its_hidden_name_only(directory):
    write(directory, NAME, b"one")
    generations.move_old(directory, NAME, 1, committed(directory, NAME))
    assert files(directory) == {".11-20.vm2.1": b"one"}
    generations.complete(directory, NAME, 1, committed(directory, "2026/.11-20.vm2.1"))
    assert files(directory) == {"11-20.vm2": b"one"}, "after a rollback it is back"
    generations.link_old(directory, NAME, 1, None)
    generations.move_old(directory, NAME, 1, committed(directory, NAME))
    assert files(directory) == {".11-20.vm2.1": b"one"}, "rename does nothing between two names of one file"


def test_a_generation_that_is_in_another_folder_now_is_left_with_a_mark(directory):
    write(directory, NAME, b"one")
    generations.leave(directory, NAME, 1, committed(directory, NAME))
    assert files(directory) == {".11-20.vm2.1": b"one", ".11-20.vm2.1.moved": b""}


def test_a_copy_that_is_where_a_generation_was_moved_from_stays(directory):
    write(directory, NAME, b"one")
    moved = committed(directory, NAME)
    write(directory, "2026/copy", b"one")
    directory.rename("2026/copy", NAME)
    generations.leave(directory, NAME, 1, moved)
    assert files(directory) == {"11-20.vm2": b"one"}


def test_new_generations_get_their_names(directory, monkeypatch):
    write(directory, "2026/.11-20.vm2.1", b"one")
    write(directory, "2026/.11-21.vm2.2", b"two")
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: synced.append((path, {*files(directory)})))
    generations.reveal(directory, [(NAME, 1), ("2026/11-21.vm2", 2)])
    assert files(directory) == {"11-20.vm2": b"one", "11-21.vm2": b"two"}
    both = {"11-20.vm2", "11-21.vm2", ".11-20.vm2.1", ".11-21.vm2.2"}
    assert synced == [(str(directory.path / "2026"), both)], "once, while the hidden names are still there"


def test_no_file_is_replaced_by_a_new_generation(directory):
    write(directory, NAME, b"theirs")
    write(directory, "2026/.11-20.vm2.1", b"one")
    generations.reveal(directory, [(NAME, 1)])
    assert files(directory) == {"11-20.vm2": b"theirs", ".11-20.vm2.1": b"one"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def test_new_generations_get_their_names_where_the_filesystem_has_no_links(directory, monkeypatch, code):
    monkeypatch.setattr(os, "link", fail(code))
    write(directory, "2026/.11-20.vm2.1", b"one")
    write(directory, "2026/.11-21.vm2.2", b"two")
    write(directory, "2026/11-21.vm2", b"theirs")
    generations.reveal(directory, [(NAME, 1), ("2026/11-21.vm2", 2)])
    assert files(directory) == {"11-20.vm2": b"one", "11-21.vm2": b"theirs", ".11-21.vm2.2": b"two"}


@pytest.mark.parametrize("there", [True, False])
def test_a_switch_that_was_committed_is_completed(directory, there):
    if there:
        write(directory, NAME, b"one")
        generations.link_old(directory, NAME, 1, None)
    write(directory, "2026/.11-20.vm2.2", b"two")
    generations.complete(directory, NAME, 2, committed(directory, "2026/.11-20.vm2.2"))
    assert files(directory) == {"11-20.vm2": b"two"} | ({".11-20.vm2.1": b"one"} if there else {})
    assert kept(directory) == []


def test_a_file_that_is_no_generation_goes_to_quarantine_where_a_switch_is_completed(directory):
    write(directory, NAME, b"theirs")
    write(directory, "2026/.11-20.vm2.2", b"two")
    generations.complete(directory, NAME, 2, committed(directory, "2026/.11-20.vm2.2"))
    assert files(directory) == {"11-20.vm2": b"two"}
    assert kept(directory) == [("11-20.vm2", b"theirs", "open")]


def test_nothing_is_completed_where_the_generation_is_in_its_place(directory):
    write(directory, NAME, b"one")
    write(directory, "2026/.11-20.vm2.9", b"staged")
    one = committed(directory, NAME)
    generations.complete(directory, NAME, 1, one)
    assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.9": b"staged"}
    generations.link_old(directory, NAME, 1, None)
    generations.complete(directory, NAME, 1, one)
    assert files(directory) == {"11-20.vm2": b"one", ".11-20.vm2.1": b"one", ".11-20.vm2.9": b"staged"}


def test_a_hidden_name_is_taken_from_what_is_not_the_generation(directory):
    write(directory, NAME, b"one")
    generations.set_aside(directory, NAME, 1, verb="fix")
    generations.link_old(directory, NAME, 1, None)
    generations.set_aside(directory, NAME, 1, verb="fix")
    assert files(directory) == {"11-20.vm2": b"one"}
    assert kept(directory) == []
    write(directory, "2026/.11-20.vm2.1", b"theirs")
    generations.set_aside(directory, NAME, 1, verb="fix")
    assert files(directory) == {"11-20.vm2": b"one"}
    assert kept(directory) == [(".11-20.vm2.1", b"theirs", "fix")]
    assert [each.segment for each in quarantine.items(directory)] == [NAME]


def test_a_file_that_replaces_a_segment_during_a_repack_gets_no_name_of_a_generation(directory):
    write(directory, NAME, b"one")
    one = committed(directory, NAME)
    directory.unlink(NAME)
    write(directory, NAME, b"theirs")
    generations.link_old(directory, NAME, 1, one)
    assert files(directory) == {"11-20.vm2": b"theirs"}
    write(directory, "2026/.11-20.vm2.2", b"two")
    generations.complete(directory, NAME, 2, committed(directory, "2026/.11-20.vm2.2"))
    assert files(directory) == {"11-20.vm2": b"two"}
    assert kept(directory) == [("11-20.vm2", b"theirs", "open")]


def test_a_file_that_replaces_a_segment_that_is_dropped_goes_to_quarantine(directory):
    write(directory, NAME, b"one")
    one = committed(directory, NAME)
    directory.unlink(NAME)
    write(directory, NAME, b"theirs")
    generations.move_old(directory, NAME, 1, one)
    assert files(directory) == {}
    assert kept(directory) == [(".11-20.vm2.1", b"theirs", "repack")]


def test_a_second_name_goes_only_after_the_other_is_durable(directory, monkeypatch):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1, None)
    calls = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: calls.append(path))
    discard = Directory.discard
    monkeypatch.setattr(Directory, "discard", lambda *names: (calls.append("discard"), discard(*names)))
    generations.set_aside(directory, NAME, 1, verb="fix")
    assert calls == [str(directory.path / "2026"), "discard"]


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
    current = (3, Committed(3, Facts(), range(0)))
    assert recover(directory, "1999/01-01.vm2", [], current, has_no_older_readers=True, trusted=True) == []


def settled(
    directory: Directory, current: tuple[int, Committed] | None, *, unread: bool, trusted: bool = True
) -> list[int]:
    here = generations.generations_of(directory, NAME)
    return recover(directory, NAME, here, current, has_no_older_readers=unread, trusted=trusted)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("unread", [True, False])
def test_killed_before_the_commit_the_second_name_goes_and_the_staged_file_if_the_index_has_lost_nothing(
    directory, unread, trusted
):
    write(directory, NAME, b"one")
    one = committed(directory, NAME)
    generations.link_old(directory, NAME, 1, None)
    write(directory, "2026/.11-20.vm2.2", b"two")
    stays = not (unread and trusted)
    assert settled(directory, (1, one), unread=unread, trusted=trusted) == ([2] if stays else [])
    assert files(directory) == {"11-20.vm2": b"one"} | ({".11-20.vm2.2": b"two"} if stays else {})


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("unread", [True, False])
def test_killed_behind_the_commit_the_new_bytes_come_and_the_old_ones_stay_while_they_are_read(
    directory, unread, trusted
):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1, None)
    write(directory, "2026/.11-20.vm2.2", b"two")
    two = committed(directory, "2026/.11-20.vm2.2")
    stays = not (unread and trusted)
    assert settled(directory, (2, two), unread=unread, trusted=trusted) == ([1] if stays else [])
    assert files(directory) == {"11-20.vm2": b"two"} | ({".11-20.vm2.1": b"one"} if stays else {})
    assert kept(directory) == []


def test_a_new_segment_killed_behind_its_commit_gets_its_name(directory):
    write(directory, "2026/.11-20.vm2.1", b"one")
    one = committed(directory, "2026/.11-20.vm2.1")
    assert settled(directory, (1, one), unread=False) == []
    assert files(directory) == {"11-20.vm2": b"one"}


@pytest.mark.parametrize("unread", [True, False])
def test_a_segment_dropped_from_the_index_goes_when_nobody_reads_it(directory, unread):
    write(directory, NAME, b"one")
    generations.move_old(directory, NAME, 1, committed(directory, NAME))
    assert settled(directory, None, unread=unread) == ([] if unread else [1])
    assert files(directory) == ({} if unread else {".11-20.vm2.1": b"one"})


def test_a_second_name_of_an_unknown_file_goes_and_the_file_stays(directory):
    """A power cut may bring the second name back; the file itself may be somebody's."""
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1, None)
    assert settled(directory, None, unread=True) == []
    assert files(directory) == {"11-20.vm2": b"one"}


@pytest.mark.parametrize("unread", [True, False])
def test_a_segment_that_the_index_may_have_lost_stays_under_all_its_names(directory, unread):
    write(directory, NAME, b"one")
    generations.link_old(directory, NAME, 1, None)
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
    nine = committed(directory, "2026/.11-20.vm2.9")
    assert settled(directory, (9, nine), unread=False) == [1, 4, 12]
    assert files(directory)["11-20.vm2"] == b"9"
    assert settled(directory, (9, nine), unread=True) == []
    assert files(directory) == {"11-20.vm2": b"9"}
    assert kept(directory) == [("11-20.vm2", b"old", "open")]


def directory_there(directory: Directory, place: str) -> None:
    directory.create_file(f"{place}/file").close()


def link_there(directory: Directory, place: str) -> None:
    write(directory, "2026/elsewhere", b"a long, long time ago")
    (directory.path / place).symlink_to("elsewhere")


def short_there(directory: Directory, place: str) -> None:
    write(directory, place, b"tw")


def other_there(directory: Directory, place: str) -> None:
    write(directory, place, b"other")


STRAYS = [directory_there, link_there, short_there, other_there]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("put", STRAYS)
def test_what_is_not_the_committed_generation_takes_the_place_of_nothing_and_stays(directory, put, there):
    write(directory, NAME, b"three")
    three = committed(directory, NAME)
    if not there:
        directory.unlink(NAME)
    put(directory, "2026/.11-20.vm2.3")
    before = sorted(directory.names("2026"))
    generations.complete(directory, NAME, 3, three)
    assert recover(directory, NAME, [3], (3, three), has_no_older_readers=True, trusted=True) == []
    assert sorted(directory.names("2026")) == before
    assert not there or directory.read(NAME, 100) == b"three"
    assert generations.stray(directory, NAME, 3, three) == "2026/.11-20.vm2.3"


@pytest.mark.parametrize("put", [directory_there, link_there])
def test_what_is_no_file_is_no_other_generation(directory, put):
    write(directory, NAME, b"three")
    three = committed(directory, NAME)
    put(directory, "2026/.11-20.vm2.2")
    before = sorted(directory.names("2026"))
    assert recover(directory, NAME, [2], (3, three), has_no_older_readers=True, trusted=True) == []
    assert sorted(directory.names("2026")) == before


def test_the_two_names_of_a_retired_generation_are_no_stray(directory):
    write(directory, NAME, b"one")
    one = committed(directory, NAME)
    assert generations.stray(directory, NAME, 1, one) is None
    generations.link_old(directory, NAME, 1, None)
    assert generations.stray(directory, NAME, 1, one) is None


def test_a_generation_that_was_copied_or_touched_is_still_the_one(directory):
    write(directory, "2026/.11-20.vm2.2", b"two")
    two = committed(directory, "2026/.11-20.vm2.2")
    directory.unlink("2026/.11-20.vm2.2")
    write(directory, "2026/.11-20.vm2.2", b"two and a tail")
    found = generations.waiting(directory, NAME, 2, two)
    assert found is not None
    assert found.st_size == 14
    generations.complete(directory, NAME, 2, two)
    assert generations.waiting(directory, NAME, 2, two) is None
    assert files(directory) == {"11-20.vm2": b"two and a tail"}


def test_after_a_crash_no_name_is_removed_before_the_others_are_durable(directory, monkeypatch):
    write(directory, NAME, b"two")
    generations.link_old(directory, NAME, 2, None)
    write(directory, "2026/.11-20.vm2.1", b"one")
    calls, unlink = [], os.unlink
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda *_: calls.append("sync"))
    monkeypatch.setattr(os, "unlink", lambda *name, **options: calls.append("unlink") or unlink(*name, **options))
    current = 2, committed(directory, NAME)
    assert recover(directory, NAME, [1, 2], current, has_no_older_readers=True, trusted=True) == []
    assert calls == ["sync", "unlink", "unlink"]
    assert files(directory) == {"11-20.vm2": b"two"}
