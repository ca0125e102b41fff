"""Quarantine: what is kept there, what its record says, and what a crash or other people leave of it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from kit.crashes import Killed, killed_at

from ondisk.errors import OndiskError, StorageError
from ondisk.filesystem import Directory
from ondisk.segments import quarantine
from ondisk.segments.quarantine import FOLDER, UNKNOWN, Item, items, keep, keep_piece, link, total

NAME = "2026/11-20.vm2"
WHY = {"verb": "fix", "why": "its checksum is another"}


def write(directory: Directory, name: str, content: bytes = b"data") -> None:
    with directory.create_file(name) as file:
        file.write(0, content)


def only(directory: Directory) -> Item:
    (item,) = items(directory)
    return item


def contents(path: Path) -> list[bytes]:
    """Return the contents of all files below a path that are no records, in order."""
    files = (each for each in path.rglob("*") if each.is_file() and not each.is_symlink() and each.suffix != ".json")
    return sorted(each.read_bytes() for each in files)


def test_a_kept_file_is_moved_and_its_record_says_why(directory):
    write(directory, NAME)
    stat = directory.stat(NAME)
    name = keep(directory, NAME, **WHY)
    assert directory.names("2026") == [FOLDER]
    assert directory.read(name, 100) == b"data"
    item = only(directory)
    assert (item.name, item.segment, item.file) == (name, NAME, "11-20.vm2")
    assert (item.size, item.verb, item.why, item.offset, item.length) == (4, *WHY.values(), None, None)
    record = directory.read(f"{name}.json", 1000)
    assert record.endswith(b"}\n")
    assert record.count(b"\n") == 1
    assert json.loads(record)["mtime"] == stat.st_mtime_ns
    assert name.startswith(f"2026/.quarantine/{item.time:%Y%m%dT%H%M%S.%f}Z-")


def test_what_is_kept_is_durable_before_anything_takes_its_place(directory, monkeypatch):
    write(directory, NAME)
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: synced.append(Path(path).name))
    piece = keep_piece(directory, NAME, directory.open_to_read(NAME), 1, 2, **WHY).rpartition("/")[2]
    assert synced[-3:] == [f"{piece}.json", f".{piece}", FOLDER]
    synced.clear()
    item = keep(directory, NAME, **WHY).rpartition("/")[2]
    assert synced == [f"{item}.json", FOLDER, "2026"]


def test_a_hidden_generation_and_a_file_of_a_dir_segment_are_items_of_their_segment(directory):
    write(directory, "2026/.11-20.vm2.17")
    write(directory, "2026/11-20.h5/000003.h5")
    keep(directory, "2026/.11-20.vm2.17", of=NAME, **WHY)
    keep(directory, "2026/11-20.h5/000003.h5", of="2026/11-20.h5", **WHY)
    one, two = items(directory)
    assert (one.segment, one.file, one.is_whole) == (NAME, ".11-20.vm2.17", True)
    assert (two.segment, two.file, two.is_whole) == ("2026/11-20.h5", "11-20.h5/000003.h5", False)
    assert directory.names("2026/11-20.h5") == []


def test_a_kept_folder_is_moved_whole(directory):
    write(directory, "2026/11-20.h5/000000.h5", b"12345")
    write(directory, "2026/11-20.h5/below/1", b"67")
    keep(directory, "2026/11-20.h5", **WHY)
    assert only(directory).size == 7
    assert directory.names("2026") == [FOLDER]


def test_a_linked_file_stays_and_survives_a_rename_over_it(directory):
    write(directory, NAME)
    name = link(directory, NAME, **WHY)
    write(directory, "2026/new", b"other")
    directory.rename("2026/new", NAME)
    assert directory.read(name, 100) == b"data"
    assert only(directory).size == 4


def test_a_linked_folder_is_a_folder_of_links(directory):
    write(directory, "2026/11-20.h5/000000.h5")
    write(directory, "2026/11-20.h5/below/1")
    (directory.path / "2026/11-20.h5/link").symlink_to("/etc")
    name = link(directory, "2026/11-20.h5", **WHY)
    for each in ("000000.h5", "below/1", "link"):
        assert directory.inode(f"{name}/{each}") == directory.inode(f"2026/11-20.h5/{each}")


def test_what_cannot_be_linked_is_copied(directory, monkeypatch):
    """As a filesystem without links answers, or Linux for a file of another user."""
    monkeypatch.setattr(os, "link", refused)
    write(directory, NAME, b"one")
    write(directory, "2026/11-20.h5/below/1", b"two")
    one, two = (link(directory, name, **WHY) for name in (NAME, "2026/11-20.h5"))
    assert directory.read(one, 100) == b"one"
    assert directory.read(NAME, 100) == b"one"
    assert directory.read(f"{two}/below/1", 100) == b"two"
    assert directory.read("2026/11-20.h5/below/1", 100) == b"two"


def refused(*arguments: object, **options: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_piece_is_a_copy_of_some_bytes(directory):
    write(directory, NAME, b"0123456789")
    name = keep_piece(directory, NAME, directory.open_to_read(NAME), 3, 4, **WHY)
    assert directory.read(name, 100) == b"3456"
    assert directory.read(NAME, 100) == b"0123456789"
    item = only(directory)
    assert (item.segment, item.offset, item.length, item.size, item.is_whole) == (NAME, 3, 4, 4, False)
    assert name.endswith("-11-20.vm2@3-4")


def test_a_piece_past_the_end_leaves_nothing(directory):
    write(directory, NAME, b"0123456789")
    with pytest.raises(EOFError):
        keep_piece(directory, NAME, directory.open_to_read(NAME), 8, 4, **WHY)
    assert directory.names(f"2026/{FOLDER}") == []


def test_what_does_not_exist_is_not_kept(directory):
    for function in (keep, link):
        with pytest.raises(FileNotFoundError):
            function(directory, NAME, **WHY)
    assert directory.names() == []


def test_no_item_is_overwritten(directory, monkeypatch):
    class Stopped(quarantine.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 22, 23, 59, 59, 999_998, tzinfo=tz)

    monkeypatch.setattr(quarantine, "datetime", Stopped)
    for content in (b"1", b"2", b"3"):
        write(directory, NAME, content)
        keep(directory, NAME, **WHY)
    found = [directory.read(item.name, 10) for item in items(directory)]
    assert found == [b"1", b"2", b"3"]
    assert [item.time.second for item in items(directory)] == [59, 59, 0]


@pytest.mark.parametrize("last", ["a\nb.vm2", "\udcff\udcfe.vm2", "x" * 255, "ä" * 127, "11-20.json", "@1-2", "-.vm2"])
def test_every_name_can_be_kept(directory, last):
    name = f"2026/{last}"
    write(directory, name)
    keep(directory, name, **WHY)
    item = only(directory)
    assert (item.segment, item.file, item.is_whole, item.why) == (name, last, True, WHY["why"])
    quarantine.restore(directory, item)
    assert directory.names("2026") == [last]


def test_a_link_that_leads_out_is_kept_as_a_link(directory, tmp_path):
    (tmp_path / "2026").mkdir()
    (tmp_path / NAME).symlink_to("/etc/passwd")
    name = keep(directory, NAME, **WHY)
    assert (tmp_path / name).readlink() == Path("/etc/passwd")


def test_a_link_in_place_of_the_quarantine_is_refused(directory, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    write(directory, NAME)
    (directory.path / "2026" / FOLDER).symlink_to(outside)
    for function in (keep, link):
        with pytest.raises(StorageError, match="symbolic link"):
            function(directory, NAME, **WHY)
    assert directory.read(NAME, 10) == b"data"
    assert list(outside.iterdir()) == []
    assert list(items(directory)) == []


HOSTILE = {
    "missing": None,
    "empty": b"",
    "no JSON": b"{",
    "not UTF-8": b"\xff\xfe{}",
    "no object": b"[]",
    "deep": b"[" * 60_000,
    "large": b" " * 70_000,
    "a number of many digits": b'{"offset": ' + b"9" * 5_000 + b"}",
    "wrong types": b'{"segment": 1, "file": "x", "verb": "fix", "why": null}',
    "half a piece": b'{"segment": "x", "file": "x", "verb": "fix", "why": "", "offset": 1}',
    "a negative piece": b'{"segment": "x", "file": "x", "verb": "fix", "why": "", "offset": -1, "length": true}',
    "a segment above": b'{"segment": "2026/..", "file": "x", "verb": "fix", "why": ""}',
    "a segment with NUL": b'{"segment": "2026/a\\u0000", "file": "x", "verb": "fix", "why": ""}',
    "no segment": b'{"segment": "2026/.", "file": "x", "verb": "fix", "why": ""}',
    "half a character": b'{"segment": "2026/x", "file": "x", "verb": "fix", "why": "\\ud800"}',
    "a file outside": b'{"segment": "2026/x", "file": "../../x", "verb": "fix", "why": ""}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_an_item_with_an_unusable_record_is_listed(directory, content):
    write(directory, NAME)
    name = keep(directory, NAME, **WHY)
    directory.unlink(f"{name}.json")
    if content is not None:
        write(directory, f"{name}.json", content)
    item = only(directory)
    assert (item.name, item.segment, item.size, item.why, item.is_whole) == (name, NAME, 4, UNKNOWN, True)
    assert item.time.year >= 2026


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_an_item_whose_record_is_no_file_is_listed(directory, make):
    write(directory, NAME)
    name = keep(directory, NAME, **WHY)
    directory.unlink(f"{name}.json")
    make(directory.path / f"{name}.json")
    assert only(directory).why == UNKNOWN


def test_a_record_names_no_segment_of_another_folder(directory):
    """Whoever renames a folder takes its quarantine along; whoever forges a record gets no file out of it."""
    write(directory, NAME)
    keep(directory, NAME, **WHY)
    (directory.path / "2026").rename(directory.path / "2025")
    assert only(directory).segment == "2025/11-20.vm2"


def test_a_file_that_somebody_put_into_the_quarantine_is_listed(directory):
    write(directory, f"2026/{FOLDER}/notes")
    write(directory, f"2026/{FOLDER}/99999999T999999.999999Z-x")
    assert [(item.segment, item.why, item.time) for item in items(directory)] == [
        ("2026/x", UNKNOWN, None),
        ("2026/notes", UNKNOWN, None),
    ]


def test_items_are_found_in_every_folder(directory):
    names = ["x.vm2", "2026/x.vm2", "20/2026/x.vm2", "my.folder/below/x.vm2"]
    for name in names:
        write(directory, name)
        keep(directory, name, **WHY)
    assert sorted(item.segment for item in items(directory)) == sorted(names)
    assert total(directory) == (4, 16)


def test_the_items_of_a_piece_without_a_record_are_still_pieces(directory):
    write(directory, NAME, b"0123456789")
    name = keep_piece(directory, NAME, directory.open_to_read(NAME), 3, 4, **WHY)
    directory.unlink(f"{name}.json")
    item = only(directory)
    assert (item.segment, item.offset, item.length) == (NAME, 3, 4)


def test_a_dropped_item_leaves_nothing(directory):
    write(directory, NAME)
    write(directory, "2026/11-20.h5/below/1")
    for name in (NAME, "2026/11-20.h5"):
        keep(directory, name, **WHY)
    for item in list(items(directory)):
        quarantine.drop(directory, item.name)
    assert directory.names("2026") == []


def test_dropping_a_folder_follows_no_links(directory, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "precious").touch()
    write(directory, "2026/11-20.h5/000000.h5")
    (directory.path / "2026/11-20.h5/link").symlink_to(outside)
    quarantine.drop(directory, keep(directory, "2026/11-20.h5", **WHY))
    assert (outside / "precious").exists()
    assert directory.names("2026") == []


@pytest.mark.parametrize("name", [NAME, "2026/11-20.h5"])
def test_restoring_never_overwrites(directory, name):
    write(directory, name if name == NAME else f"{name}/000000.h5", b"old")
    item_name = keep(directory, name, **WHY)
    write(directory, name if name == NAME else f"{name}/000000.h5", b"new")
    with pytest.raises(FileExistsError):
        quarantine.restore(directory, only(directory))
    assert contents(directory.path) == [b"new", b"old"]
    assert only(directory).name == item_name


@pytest.mark.parametrize("refuse_links", [False, True])
@pytest.mark.parametrize("name", [NAME, "2026/11-20.h5"])
def test_a_restored_item_is_back_at_the_name_of_its_segment(directory, monkeypatch, name, refuse_links):
    write(directory, name if name == NAME else f"{name}/000000.h5")
    keep(directory, name, **WHY)
    if refuse_links:
        monkeypatch.setattr(os, "link", refused)
    assert quarantine.restore(directory, only(directory)) == name
    assert directory.names("2026") == [name.rpartition("/")[2]]
    assert contents(directory.path) == [b"data"]


def piece(directory: Directory, name: str) -> None:
    keep_piece(directory, name, directory.open_to_read(name), 0, 4, **WHY)


STEPS = {
    "keep": lambda directory: keep(directory, NAME, **WHY),
    "keep a folder": lambda directory: keep(directory, "2026/11-20.h5", **WHY),
    "link": lambda directory: link(directory, NAME, **WHY),
    "link a folder": lambda directory: link(directory, "2026/11-20.h5", **WHY),
    "piece": lambda directory: piece(directory, NAME),
    "restore": lambda directory: quarantine.restore(directory, next(items(directory))),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_call_loses_nothing(tmp_path, step):
    for call in range(100):
        path = tmp_path / str(call)
        with Directory.create(path) as directory:
            write(directory, "2026/11-20.h5/000000.h5", b"folder")
            write(directory, NAME, b"data")
            if step == "restore":
                keep(directory, NAME, **WHY)
            before = {*contents(path)}
            is_killed = True
            with contextlib.suppress(Killed), killed_at(call):
                STEPS[step](directory)
                is_killed = False
            assert {*contents(path)} >= before
            quarantine.remove_leftovers(directory)
            assert {*contents(path)} >= before
            for item in items(directory):
                assert item.verb == "fix"
            hidden = [name for name in directory.names(f"2026/{FOLDER}") if name.startswith(".")]
            records = [name for name in directory.names(f"2026/{FOLDER}") if name.endswith(".json")]
            assert not hidden
            assert len(records) <= len(list(items(directory)))
        if not is_killed:
            return
    raise AssertionError("more calls than expected")


def test_a_crash_while_dropping_leaves_the_item_or_nothing(tmp_path):
    for call in range(100):
        with Directory.create(tmp_path / str(call)) as directory:
            write(directory, NAME)
            name = keep(directory, NAME, **WHY)
            is_killed = True
            with contextlib.suppress(Killed), killed_at(call):
                quarantine.drop(directory, name)
                is_killed = False
            quarantine.remove_leftovers(directory)
            assert [item.why for item in items(directory)] in ([], [WHY["why"]])
        if not is_killed:
            return
    raise AssertionError("more calls than expected")


def test_a_full_disk_leaves_the_file_and_no_record(directory, monkeypatch):
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    write(directory, NAME)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OndiskError):
        keep(directory, NAME, **WHY)
    assert directory.read(NAME, 10) == b"data"
    assert directory.names(f"2026/{FOLDER}") == []
