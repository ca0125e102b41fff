from __future__ import annotations

import errno
import os

import pytest
from worlds import fail

from ondisk.errors import DiskFull, DurabilityLost, SegmentCorrupt, SegmentMissing, StorageError
from ondisk.filesystem import Directory
from ondisk.segment import End, Laid, Patch
from ondisk.segments import ConcatReader, ConcatWriter

NAME = "2026/11-20.vm2"


class Lines:
    """A layout of lines."""

    def begin(self):
        return Laid(b"", End())

    def lay(self, payloads, end):
        content = b"".join(payload + b"\n" for payload in payloads)
        size = end.size + len(content)
        return Laid(content, End(size, size, end.count + len(payloads)))

    def patch(self, end):
        return None

    def seal(self, end):
        return b""


class CountedLines(Lines):
    """A layout of lines after their number, of four digits."""

    def begin(self):
        return Laid(b"0000", End(4, 4))

    def patch(self, end):
        return Patch(2, b"%02d" % end.count)


LINES, COUNTED = Lines(), CountedLines()


def append(writer, name, position, *lines, layout=LINES, count=0, known=False):
    """Append lines at a position of a segment, at 0 of a new one."""
    start = Laid(b"", End(position, position, count)) if position else layout.begin()
    with writer.writing(name, start, layout, known=known) as segment:
        segment.add(lines)


@pytest.fixture
def writer(directory):
    writer = ConcatWriter(directory)
    yield writer
    writer.close()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "2026").mkdir()
    return tmp_path / NAME


def test_a_new_segment_is_made_with_its_directory(writer, tmp_path):
    append(writer, NAME, 0, b"one")
    writer.sync()
    assert (tmp_path / NAME).read_bytes() == b"one\n"
    assert writer.appended(NAME)[2] == (tmp_path / NAME).stat().st_mtime_ns


def test_bytes_go_to_the_end_of_what_is_known(writer, path):
    path.write_bytes(b"one\n")
    append(writer, NAME, 4, b"two")
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("lines", [[], [b"x"], [b"longer than the tail"]])
def test_what_follows_the_position_is_cut_off_and_what_is_before_it_stays(writer, path, lines):
    path.write_bytes(b"one\ntail")
    append(writer, NAME, 4, *lines)
    assert path.read_bytes() == b"one\n" + b"".join(line + b"\n" for line in lines)


def test_bytes_of_other_files_are_copied_between_others(writer, directory, path, tmp_path):
    path.write_bytes(b"one\ntail of an append")
    (tmp_path / "other").write_bytes(b"two\nthree\n")
    other = directory.open_to_read("other")
    with writer.writing(NAME, Laid(b"", End(4, 4, 1)), LINES, known=True) as segment:
        segment.add([b"1.5"])
        segment.copy(other, [(4, 6), (0, 4)], count=2)
        segment.add([b"4"])
    assert path.read_bytes() == b"one\n1.5\nthree\ntwo\n4\n"
    assert writer.appended(NAME)[0].size == 20
    new = writer.writing("2026/11-21.vm2", LINES.begin(), LINES, known=False)
    with pytest.raises(EOFError, match="other ends at byte 10"), new as segment:
        segment.copy(other, [(4, 7)], count=1)


def test_data_that_are_copied_are_counted_where_the_layout_counts(writer, directory, tmp_path):
    (tmp_path / "other").write_bytes(b"two\nthree\n")
    for name, layout, expected in [("2026/1.vm2", LINES, 0), ("2026/2.vm2", COUNTED, 2)]:
        with writer.writing(name, layout.begin(), layout, known=False) as segment:
            segment.copy(directory.open_to_read("other"), [(0, 10)], count=2)
        assert writer.appended(name)[0].count == expected
    assert (tmp_path / "2026/2.vm2").read_bytes() == b"0002two\nthree\n"


def test_a_tail_is_cut_off_before_anything_is_written(writer, path, monkeypatch):
    """Else a crash between the two would leave the tail's end behind new bytes."""
    path.write_bytes(b"one\n" + b"tail" * 10)
    whole, sizes = os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *call: (sizes.append(path.stat().st_size), whole(*call))[1])
    append(writer, NAME, 4, b"two")
    assert sizes == [4]


def test_a_patch_is_written_after_the_content(writer, path, monkeypatch):
    """It tells of the content: a crash between the two leaves what was true before."""
    path.write_bytes(b"0001one\n")
    whole, written = os.pwrite, []

    def spy(file, content, position):
        written.append((bytes(content), position))
        return whole(file, content, position)

    monkeypatch.setattr(os, "pwrite", spy)
    append(writer, NAME, 8, b"two", layout=COUNTED, count=1)
    assert written == [(b"two\n", 8), (b"02", 2)]
    assert path.read_bytes() == b"0002one\ntwo\n"


def test_a_new_segment_is_patched_too(writer, tmp_path):
    append(writer, NAME, 0, b"one", b"two", layout=COUNTED)
    writer.sync()
    assert (tmp_path / NAME).read_bytes() == b"0002one\ntwo\n"
    assert writer.appended(NAME)[2] == (tmp_path / NAME).stat().st_mtime_ns


def test_a_segment_that_is_missing_or_too_short_is_an_error_that_changes_nothing(writer, path):
    with pytest.raises(SegmentMissing, match="in the index but not on disk"):
        append(writer, NAME, 4, b"two")
    assert not path.exists()
    path.write_bytes(b"one")
    with pytest.raises(SegmentCorrupt, match="ends at byte 3, but the index has data up to byte 4") as caught:
        append(writer, NAME, 4, b"two")
    assert path.read_bytes() == b"one"
    assert caught.value.context == {"segment": NAME, "size": 3, "wanted": 4}


def test_undo_takes_back_new_segments_and_new_bytes(writer, path):
    path.write_bytes(b"one\n")
    append(writer, NAME, 4, b"two")
    append(writer, "2027/01-01.vm2", 0, b"new")
    writer.sync()
    writer.undo()
    assert path.read_bytes() == b"one\n"
    assert not (path.parents[1] / "2027/01-01.vm2").exists()


def test_undo_after_a_tail_was_cut_leaves_the_known_bytes(writer, path):
    path.write_bytes(b"one\ntail")
    append(writer, NAME, 4, b"two")
    writer.undo()
    assert path.read_bytes() == b"one\n"


def test_undo_behind_unknown_bytes_leaves_these(writer, path):
    path.write_bytes(b"unknown\n")
    append(writer, NAME, 8, b"two")
    assert path.read_bytes() == b"unknown\ntwo\n"
    writer.undo()
    assert path.read_bytes() == b"unknown\n"


@pytest.mark.parametrize("synced", [False, True])
def test_undo_restores_what_was_patched(writer, path, synced):
    path.write_bytes(b"0001one\ntail")
    append(writer, NAME, 8, b"two", layout=COUNTED, count=1)
    append(writer, "2027/01-01.vm2", 0, b"new", layout=COUNTED)
    if synced:
        writer.sync()
    writer.undo()
    assert path.read_bytes() == b"0001one\n"
    assert not (path.parents[1] / "2027/01-01.vm2").exists()


@pytest.mark.parametrize("fails", [0, 1], ids=["content", "patch"])
def test_undo_restores_what_was_patched_where_a_write_failed(writer, path, monkeypatch, fails):
    path.write_bytes(b"0001one\n")
    whole, calls = os.pwrite, []

    def full(file, content, position):
        calls.append(position)
        if len(calls) == fails + 1:
            whole(file, bytes(content[:1]), position)
            raise OSError(errno.ENOSPC, "full")
        return whole(file, content, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull):
            append(writer, NAME, 8, b"two", layout=COUNTED, count=1)
    writer.undo()
    assert path.read_bytes() == b"0001one\n"


def test_thousands_of_segments_are_written_with_a_hundred_open(writer, tmp_path, open_files):
    before = open_files()
    most = 0
    for number in range(500):
        append(writer, f"2026/{number}.vm2", 0, b"x")
        most = max(most, open_files() - before)
    writer.sync()
    assert 0 < most <= 130
    assert open_files() == before
    assert len(list(tmp_path.glob("2026/*.vm2"))) == 500


def test_every_file_and_the_directories_of_those_the_index_does_not_know_are_synced_once(writer, path, monkeypatch):
    path.write_bytes(b"one\n")
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: synced.append(path))
    append(writer, NAME, 4, b"two", known=True)
    writer.sync()
    assert synced == [str(path)]
    synced.clear()
    append(writer, "2026/11-21.vm2", 0, b"x")
    append(writer, "2026/11-22.vm2", 0, b"x")
    writer.sync()
    top = path.parents[1]
    assert sorted(synced) == sorted(str(top / name) for name in ("", "2026", "2026/11-21.vm2", "2026/11-22.vm2"))


@pytest.mark.parametrize(
    ("call", "code", "error"),
    [("pwrite", errno.ENOSPC, DiskFull), ("pwrite", errno.EDQUOT, DiskFull), ("pwrite", errno.EIO, StorageError)],
)
def test_a_write_that_fails_can_be_taken_back(writer, path, monkeypatch, call, code, error):
    path.write_bytes(b"one\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail(code))
        with pytest.raises(error):
            append(writer, NAME, 4, b"two")
    writer.undo()
    assert path.read_bytes() == b"one\n"


def test_a_sync_that_fails_loses_durability(writer, path, monkeypatch):
    append(writer, NAME, 0, b"one")
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(DurabilityLost, match="fsync failed"):
        writer.sync()


def test_short_writes_are_gone_on_with(writer, tmp_path, monkeypatch):
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: whole(file, bytes(content[:3]), offset))
    append(writer, NAME, 0, b"0123456789")
    assert (tmp_path / NAME).read_bytes() == b"0123456789\n"


def test_a_reader_reads_spans_and_keeps_files_open(directory, path):
    path.write_bytes(b"0123456789")
    reader = ConcatReader(directory)
    asked = []
    name_of = lambda generation: asked.append(generation) or NAME  # noqa: E731
    assert reader.read(1, name_of, 2, 3) == b"234"
    path.unlink()
    assert reader.read(1, name_of, 0, 10) == b"0123456789"
    assert asked == [1]
    reader.close()
    with pytest.raises(SegmentMissing):
        reader.read(1, name_of, 2, 3)


def test_a_reader_refuses_to_give_fewer_bytes_than_the_index_knows(directory, path):
    path.write_bytes(b"0123")
    with pytest.raises(SegmentCorrupt, match="ends at byte 4, but the index has data up to byte 8"):
        ConcatReader(directory).read(1, lambda _: NAME, 2, 6)


def test_a_reader_keeps_a_bounded_number_of_files_open(directory, path, open_files):
    reader = ConcatReader(directory)
    for number in range(300):
        (path.parent / f"{number}.vm2").write_bytes(b"%03d" % number)
    before = open_files()
    for number in range(300):
        assert reader.read(number, lambda each: f"2026/{each}.vm2", 0, 3) == b"%03d" % number
    assert open_files() - before <= 256
    reader.close()
    assert open_files() == before


def test_the_bytes_of_a_generation_are_at_its_alias_if_that_exists(directory, path):
    """The rule of concurrency.md, by which readers find old bytes during a repack."""
    path.write_bytes(b"new")
    (path.parent / ".11-20.vm2.17").write_bytes(b"old")
    reader = ConcatReader(directory)
    assert reader.read(17, lambda _: NAME, 0, 3) == b"old"
    assert reader.read(18, lambda _: NAME, 0, 3) == b"new"


def test_an_alias_that_appears_between_two_looks_is_taken(directory, path, monkeypatch):
    """A repack links the old bytes to the alias, then renames the new ones to the name."""
    path.write_bytes(b"old")
    alias = path.parent / ".11-20.vm2.17"
    look = Directory.open_to_read

    def repack_meanwhile(self, name):
        if name == NAME and not alias.exists():
            alias.hardlink_to(path)
            (path.parent / "staged").write_bytes(b"new")
            (path.parent / "staged").rename(path)
        return look(self, name)

    monkeypatch.setattr(Directory, "open_to_read", repack_meanwhile)
    assert ConcatReader(directory).read(17, lambda _: NAME, 0, 3) == b"old"
