"""`ondisk.files.export`, by exports that link files."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import fail

import ondisk
from ondisk import files
from ondisk.errors import FrameCorrupt, InvalidInput, ReadOnly, StorageError
from ondisk.files.export import Links
from ondisk.filesystem import Directory

from .conftest import photo
from .test_export import NAME, counts, files_in


def linked(dataset, folder, match=None, name=NAME):
    return files.export(dataset, match, folder, name=name, link=True)


def inodes(folder):
    return {each.stat().st_ino for each in Path(folder).rglob("*.jpg") if each.is_file()}


def test_links_are_the_files_of_the_dataset(photos, tmp_path):
    result = linked(photos, tmp_path / "new/out", "site: north")
    assert (counts(result), result.bytes) == ((3, 0, 0), 30)
    assert files_in(tmp_path / "new/out") == {f"{12 + hour}_north.jpg": b"north at %d" % hour for hour in range(3)}
    assert len(inodes(tmp_path / "new/out") & inodes(photos.path)) == 3


def test_links_keep_their_bytes_whatever_the_dataset_does(photos, tmp_path):
    linked(photos, tmp_path / "out")
    before = files_in(tmp_path / "out")
    assert not photos.check(accurate=True).findings
    photos.delete("site: north")
    photos.repack()
    photos.append([photo(0, "north", b"other")])
    photos.delete("")
    photos.repack()
    assert files_in(tmp_path / "out") == before
    assert not photos.check(accurate=True).findings


def test_a_removed_link_leaves_the_dataset_alone(photos, tmp_path):
    linked(photos, tmp_path / "out")
    for each in (tmp_path / "out").iterdir():
        each.unlink()
    assert [datum.data for datum in photos.query()][:2] == [b"north at 0", b"south at 0"]
    assert not photos.check(accurate=True).findings


def test_a_link_that_is_edited_in_place_is_found_by_a_check(photos, tmp_path):
    linked(photos, tmp_path / "out", "site: north", name="{reftime:%H}.jpg")
    (tmp_path / "out/13.jpg").write_bytes(b"NORTH at 1")
    (found,) = photos.check(accurate=True).findings
    assert "2026/11-20.jpg" in str(found)
    with pytest.raises(FrameCorrupt):
        [datum.data for datum in photos.query("site: north")]


def test_an_export_with_links_is_repeated_as_any_other(photos, tmp_path):
    files.export(photos, "site: north", tmp_path / "out", name=NAME)
    (tmp_path / "out/12_south.jpg").write_bytes(b"mine")
    result = linked(photos, tmp_path / "out")
    assert counts(result) == (2, 3, 1)
    assert (tmp_path / "out/12_south.jpg").read_bytes() == b"mine"
    assert counts(linked(photos, tmp_path / "out")) == (0, 5, 1)


def test_what_is_archived_is_linked_too(photos, tmp_path):
    photos.archive("2026/11-20.jpg")
    photos.append([photo(24, "north")])
    assert linked(photos, tmp_path / "out", name="{reftime}{site}.jpg").exported == 7
    assert len(inodes(tmp_path / "out") & inodes(photos.path)) == 7


def test_data_of_several_datasets_are_linked(photos, create, tmp_path):
    other = create("other", format="blob", extension="jpg", fields={"site": "text"})
    other.append([photo(5, "east")])
    with ondisk.merged([photos.path, other.path]) as both:
        assert linked(both, tmp_path / "out").exported == 7
    assert inodes(tmp_path / "out") == inodes(photos.path) | inodes(other.path)


def test_data_without_files_of_their_own_are_refused_before_anything_is_written(photos, create, tmp_path):
    lines = create("lines", format="jsonl", fields={"site": "text"})
    with pytest.raises(InvalidInput, match="jsonl stores many of them in one file"):
        linked(lines, tmp_path / "out")
    with ondisk.merged([photos.path, lines.path]) as both, pytest.raises(InvalidInput, match="lines cannot be linked"):
        linked(both, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_a_folder_that_cannot_have_links_is_an_error(photos, tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "link", fail(code))
    with pytest.raises(StorageError) as error:
        linked(photos, tmp_path / "out")
    assert counts(error.value.context["result"]) == (0, 0, 0)
    assert error.value.hint.endswith("Omit --link (in Python link=False): then the files are copies.")
    assert error.value.exit_code == StorageError.exit_code
    assert files_in(tmp_path / "out") == {}


def test_a_folder_that_may_not_be_written_is_an_error(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", fail(errno.EACCES))
    with pytest.raises(ReadOnly, match="Permission denied"):
        linked(photos, tmp_path / "out")


def test_data_of_another_format_than_the_present_one_are_refused(create, tmp_path):
    events = create("events", format="seg", fields={"site": "text"})
    events.append([photo(0, "north")])
    config = (events.path / "dataset.toml").read_text()
    events.close()
    (events.path / "dataset.toml").write_text(config.replace('format = "seg"', 'format = "blob"'))
    with ondisk.open(events.path) as mixed:
        mixed.append([photo(24, "north")])
        result = linked(mixed, tmp_path / "out", name="{reftime:%d}")
    assert counts(result) == (1, 0, 1)
    assert result.refusals[0][1].endswith("it is in one file with other data, so it cannot be linked")


def test_a_segment_whose_append_was_killed_before_it_got_its_name_is_linked_too(photos, tmp_path):
    [[generation]] = sqlite3.connect(photos.path / "index.sqlite").execute("SELECT id FROM segment")
    photos.close()
    (photos.path / "2026/11-20.jpg").rename(photos.path / f"2026/.11-20.jpg.{generation}")
    with ondisk.open(photos.path, read_only=True) as reader:
        assert counts(linked(reader, tmp_path / "out")) == (6, 0, 0)


@pytest.mark.parametrize(("deleted", "left"), [("site: north", 3), ("site: south", 3), ("", 0)])
def test_a_repack_during_the_export_changes_nothing_in_it(photos, tmp_path, monkeypatch, deleted, left):
    """The files have other numbers then. The dataset keeps the old ones while the export reads."""
    add, done = Links.add, []

    def repack_first(*given):
        if not done:
            done.append(photos.delete(deleted))
            photos.repack()
        return add(*given)

    with ondisk.open(photos.path, read_only=True) as reader:
        monkeypatch.setattr(Links, "add", repack_first)
        assert counts(linked(reader, tmp_path / "out")) == (6, 0, 0)
    names = files_in(tmp_path / "out")
    assert names == {name: b"%b at %d" % (name[3:8].encode(), int(name[:2]) - 12) for name in names}
    with ondisk.open(photos.path, read_only=True) as reader:
        assert counts(linked(reader, tmp_path / "out")) == (0, left, 0)


@pytest.mark.parametrize(
    "change", [lambda file: file.rename(file.with_suffix(".old")), lambda file: os.truncate(file, 3)]
)
def test_a_file_that_is_moved_or_changed_after_it_was_read_is_refused(photos, tmp_path, monkeypatch, change):
    add, done = Links.add, []

    def change_first(links, datum, *given):
        if not done:
            done.append(photos.path / datum.location.segment / f"{datum.location.offset:06}.jpg")
            change(*done)
        return add(links, datum, *given)

    with ondisk.open(photos.path, read_only=True) as reader:
        monkeypatch.setattr(Links, "add", change_first)
        result = linked(reader, tmp_path / "out")
    assert counts(result) == (5, 0, 1)
    assert "its file was moved or changed after it was read; export again" in result.refusals[0][1]


@pytest.mark.check
@pytest.mark.parametrize("number", range(4))
def test_an_export_that_is_killed_leaves_links_that_are_complete(photos, tmp_path, number):
    script = (
        "import os, signal, sys\nimport ondisk\nfrom ondisk import files\n"
        f"link, calls = os.link, iter(range({number}))\n"
        "def killed(*given, **options):\n"
        "    if next(calls, None) is None:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return link(*given, **options)\n"
        "os.link = killed\n"
        "files.export(ondisk.open(sys.argv[1], read_only=True), None, sys.argv[2], name=sys.argv[3], link=True)\n"
    )
    command = [sys.executable, "-c", script, str(photos.path), str(tmp_path / "out"), NAME]
    assert subprocess.run(command, check=False).returncode == -9
    found = files_in(tmp_path / "out")
    shown = [name for name in found if not name.startswith(".")]
    assert len(shown) <= number
    assert all(found[name] == b"%b at %d" % (name[3:8].encode(), int(name[:2]) - 12) for name in shown)
    assert not photos.check(accurate=True).findings
    assert counts(linked(photos, tmp_path / "out")) == (6 - len(shown), len(shown), 0)


@pytest.mark.parametrize("together", [True, False])
def test_links_are_durable_when_the_export_returns(photos, tmp_path, monkeypatch, together):
    steps = []
    link = os.link

    def noted(old, new, **options):
        link(old, new, **options)
        steps.append(new)

    monkeypatch.setattr(os, "link", noted)
    monkeypatch.setattr(Directory, "can_sync_together", together)
    monkeypatch.setattr(Directory, "sync_together", lambda *given: steps.append("all") or True)
    monkeypatch.setattr(os, "fsync", lambda number: steps.append(str(Path(f"/proc/self/fd/{number}").readlink())))
    linked(photos, tmp_path / "out", "site: north", name="{site}/{reftime:%H}.jpg")
    if together:
        assert steps[-1] == "all"
    else:
        for name in ("12.jpg", "13.jpg", "14.jpg"):
            assert steps[steps.index(name) + 1] == str(tmp_path / "out/north")
