from __future__ import annotations

import errno
import os

import pytest
from worlds import fail

from ondisk.errors import DiskFull, DurabilityLost, SegmentCorrupt, SegmentMissing, StorageError
from ondisk.filesystem import Directory
from ondisk.segment import End, Facts, Laid, Patch, Start
from ondisk.segments import quarantine
from ondisk.segments.concat_reader import ConcatReader
from ondisk.segments.concat_writer import ConcatWriter
from ondisk.segments.file_facts import Committed, checksum_of, facts_of, tail_of
from ondisk.segments.generations import complete
from ondisk.step import LAST

NAME = "2026/11-20.vm2"
OTHER = "2027/01-01.vm2"


class Lines:
    """A layout of lines: those with a "!" are damaged."""

    mutable = range(0)

    def begin(self):
        return Laid(b"", End())

    def resume(self, file, end):
        """Continue after the last whole line."""
        begin = end.size or self.begin().end.size
        content = file.read(begin, file.size() - begin)
        if b"!" in content:
            raise SegmentCorrupt("there is a damaged line")
        whole = content[: content.rfind(b"\n") + 1]
        size = begin + len(whole)
        return Laid(b"", End(size, size, end.count + whole.count(b"\n")))

    def lay(self, payloads, end):
        content = b"".join(payload + b"\n" for payload in payloads)
        size = end.size + len(content)
        return Laid(content, End(size, size, end.count + len(payloads)))

    def patch(self, end):
        return None

    def seal(self, end):
        return b""

    def sealer(self, file, name, end=None):
        return None

    def new_sealer(self, begun, name):
        return None

    def may_continue(self, opened, end, *, is_exact):
        return True


class CountedLines(Lines):
    """A layout of lines after their number, of four digits, and before an end mark."""

    mutable = range(2, 4)

    def begin(self):
        return Laid(b"0000", End(4, 4))

    def patch(self, end):
        return Patch(2, b"%02d" % end.count)

    def seal(self, end):
        return b"END %d" % end.count


LINES, COUNTED = Lines(), CountedLines()


def append(writer, name, position, *lines, layout=LINES, count=0, known=False, generation=1):
    """Append lines at a position of a segment, at 0 of a new one."""
    if position:
        start = Start(Laid(b"", End(position, position, count)))
    else:
        start = Start(layout.begin(), is_new=True, checksum=0)
    with writer.writing(name, generation, start, layout, known=known) as segment:
        segment.add(lines)


def committed(directory, name=NAME, *, size=None, layout=LINES):
    """Return what the index records of a segment as it is."""
    file = directory.open_to_read(name)
    size = file.size() if size is None else size
    facts = facts_of(file.stat(), tail_of(file, size, layout.mutable), checksum_of(file, size, layout.mutable))
    return Committed(size, facts, layout.mutable)


def continued(writer, recorded, *lines, layout=LINES, count=1, trusted=True):
    """Append lines as a batch does, to a segment that the index knows."""
    start = writer.start(NAME, End(recorded.size, recorded.size, count), recorded, layout, trusted=trusted)
    with writer.writing(NAME, 1, start, layout, lines, known=True) as segment:
        segment.add(lines)
    return start


def names(path):
    return sorted(each.name for each in path.iterdir())


def kept(directory):
    """Return (offset, content, verb) of what is in quarantine."""
    found = quarantine.items(directory)
    return [(each.offset, directory.read(each.name, 1000), each.verb) for each in found]


@pytest.fixture
def writer(directory):
    numbers = iter(range(90, 1000))
    writer = ConcatWriter(directory, lambda: next(numbers))
    yield writer
    writer.close()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "2026").mkdir()
    return tmp_path / NAME


def test_a_new_segment_is_made_with_its_directory_under_a_hidden_name(writer, directory, tmp_path):
    append(writer, NAME, 0, b"one", generation=17)
    writer.sync()
    assert names(tmp_path / "2026") == [".11-20.vm2.17"]
    facts = writer.appended(NAME)[2]
    writer.reveal()
    assert names(tmp_path / "2026") == ["11-20.vm2"]
    assert (tmp_path / NAME).read_bytes() == b"one\n"
    assert facts == committed(directory).facts
    assert facts.mtime == (tmp_path / NAME).stat().st_mtime_ns


def test_no_file_of_somebody_else_is_replaced_by_a_new_segment(writer, tmp_path):
    append(writer, NAME, 0, b"one", generation=17)
    append(writer, OTHER, 0, b"two", generation=18)
    writer.sync()
    (tmp_path / NAME).write_bytes(b"theirs")
    writer.reveal()
    assert (tmp_path / NAME).read_bytes() == b"theirs"
    assert (tmp_path / "2026/.11-20.vm2.17").read_bytes() == b"one\n"
    assert (tmp_path / OTHER).read_bytes() == b"two\n"


def test_what_a_crash_left_at_the_hidden_name_of_a_new_segment_goes(writer, path):
    (path.parent / ".11-20.vm2.17").write_bytes(b"of a crash")
    writer.clear(NAME, 17)
    append(writer, NAME, 0, b"one", generation=17)
    assert (path.parent / ".11-20.vm2.17").read_bytes() == b"one\n"


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
    with writer.writing(NAME, 1, Start(Laid(b"", End(4, 4, 1))), LINES, known=True) as segment:
        segment.add([b"1.5"])
        segment.copy(other, 4, 6, count=1)
        segment.copy(other, 0, 4, count=1)
        segment.add([b"4"])
    assert path.read_bytes() == b"one\n1.5\nthree\ntwo\n4\n"
    assert writer.appended(NAME)[0].size == 20
    new = writer.writing("2026/11-21.vm2", 2, Start(LINES.begin(), is_new=True), LINES, known=False)
    with pytest.raises(EOFError, match="other ends at byte 10"), new as segment:
        segment.copy(other, 4, 7, count=1)


def test_data_that_are_copied_are_counted_where_the_layout_counts(writer, directory, tmp_path):
    (tmp_path / "other").write_bytes(b"two\nthree\n")
    for name, layout, expected in [("2026/1.vm2", LINES, 0), ("2026/2.vm2", COUNTED, 2)]:
        start = Start(layout.begin(), is_new=True, checksum=0)
        with writer.writing(name, 1, start, layout, known=False) as segment:
            segment.copy(directory.open_to_read("other"), 0, 10, count=2)
        assert writer.appended(name)[0].count == expected
    writer.sync()
    writer.reveal()
    assert writer.appended("2026/2.vm2")[2] == committed(directory, "2026/2.vm2", layout=COUNTED).facts
    assert (tmp_path / "2026/2.vm2").read_bytes() == b"0002two\nthree\n"


def test_a_tail_is_cut_off_before_anything_is_written(writer, path, monkeypatch):
    """Else a crash between the two would leave the end of the old bytes after new ones."""
    path.write_bytes(b"one\n" + b"tail" * 10)
    whole, sizes = os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *call: (sizes.append(path.stat().st_size), whole(*call))[1])
    append(writer, NAME, 4, b"two")
    assert sizes == [4]


def test_a_patch_is_written_after_the_content(writer, path, monkeypatch):
    """The header counts the content: a crash between the two leaves the old count."""
    path.write_bytes(b"0001one\n")
    whole, written = os.pwrite, []

    def spy(file, content, position):
        written.append((bytes(content), position))
        return whole(file, content, position)

    monkeypatch.setattr(os, "pwrite", spy)
    append(writer, NAME, 8, b"two", layout=COUNTED, count=1)
    assert written == [(b"two\n", 8), (b"02", 2)]
    assert path.read_bytes() == b"0002one\ntwo\n"


def test_a_new_segment_is_patched_too(writer, directory, tmp_path):
    append(writer, NAME, 0, b"one", b"two", layout=COUNTED)
    writer.sync()
    writer.reveal()
    assert (tmp_path / NAME).read_bytes() == b"0002one\ntwo\n"
    assert writer.appended(NAME)[2] == committed(directory, layout=COUNTED).facts


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
    append(writer, OTHER, 0, b"new")
    writer.sync()
    writer.undo()
    assert path.read_bytes() == b"one\n"
    assert names(path.parents[1] / "2027") == []


def test_undo_after_a_tail_was_cut_leaves_the_known_bytes(writer, path):
    path.write_bytes(b"one\ntail")
    append(writer, NAME, 4, b"two")
    writer.undo()
    assert path.read_bytes() == b"one\n"


def test_undo_after_unknown_bytes_leaves_them(writer, path):
    path.write_bytes(b"unknown\n")
    append(writer, NAME, 8, b"two")
    assert path.read_bytes() == b"unknown\ntwo\n"
    writer.undo()
    assert path.read_bytes() == b"unknown\n"


@pytest.mark.parametrize("synced", [False, True])
def test_undo_restores_what_was_patched(writer, path, synced):
    path.write_bytes(b"0001one\ntail")
    append(writer, NAME, 8, b"two", layout=COUNTED, count=1)
    append(writer, OTHER, 0, b"new", layout=COUNTED)
    if synced:
        writer.sync()
    writer.undo()
    assert path.read_bytes() == b"0001one\n"
    assert names(path.parents[1] / "2027") == []


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


@pytest.mark.check
def test_thousands_of_segments_are_written_with_a_hundred_open(writer, tmp_path, open_files):
    before = open_files()
    most = 0
    for number in range(500):
        append(writer, f"2026/{number}.vm2", 0, b"x")
        most = max(most, open_files() - before)
    writer.sync()
    assert 0 < most <= 130
    assert open_files() == before
    writer.reveal()
    assert len(list(tmp_path.glob("2026/*.vm2"))) == len(names(tmp_path / "2026")) == 500


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
    assert sorted(synced) == sorted(str(top / name) for name in ("", "2026", "2026/.11-21.vm2.1", "2026/.11-22.vm2.1"))
    synced.clear()
    writer.reveal()
    assert synced == [str(top / "2026")]


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


def test_short_writes_are_continued(writer, tmp_path, monkeypatch):
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: whole(file, bytes(content[:3]), offset))
    append(writer, NAME, 0, b"0123456789")
    assert (tmp_path / "2026/.11-20.vm2.1").read_bytes() == b"0123456789\n"


@pytest.mark.parametrize("size", [4, 5000])
def test_an_append_records_the_facts_of_all_bytes(writer, directory, path, size):
    path.write_bytes(b"0001" + b"x" * (size - 1) + b"\n")
    start = continued(writer, committed(directory, layout=COUNTED), b"two", b"three", layout=COUNTED)
    assert not start.is_touched
    writer.sync()
    assert writer.appended(NAME)[2] == committed(directory, layout=COUNTED).facts


def test_an_append_to_a_segment_of_an_older_revision_records_its_tail(writer, directory, path):
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    recorded = recorded._replace(facts=Facts(recorded.facts.mtime))
    assert not continued(writer, recorded, b"two").is_touched
    writer.sync()
    assert writer.appended(NAME)[2] == committed(directory).facts._replace(checksum=None)


def test_a_touched_file_with_the_same_tail_is_appended_to_and_recorded_as_touched(writer, directory, path):
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    os.utime(path, ns=(1, 1))
    assert continued(writer, recorded, b"two").is_touched
    writer.sync()
    assert path.read_bytes() == b"one\ntwo\n"
    facts = writer.appended(NAME)[2]
    assert facts == committed(directory).facts._replace(mtime=0)
    assert not Committed(8, facts, range(0)).is_untouched(path.stat()), "until a fix has read it"


def test_nothing_is_appended_to_a_file_that_grew_and_was_changed_in_the_same_instant(writer, directory, path):
    path.write_bytes(b"two\n")
    recorded, before = committed(directory), path.stat()
    path.write_bytes(b"tWo\nthree\n")
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    with pytest.raises(SegmentCorrupt, match="is not the file that the index describes"):
        continued(writer, recorded, b"two", trusted=True)
    assert path.read_bytes() == b"tWo\nthree\n"


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"tWo\n", "is not the file that the index describes"),
        (b"tWo\nthree\n", "is not the file that the index describes"),
        (b"tw\n", "ends at byte 3, but the index has data up to byte 4"),
    ],
)
def test_nothing_is_appended_to_a_file_that_was_changed(writer, directory, path, content, says, trusted):
    path.write_bytes(b"two\n")
    recorded = committed(directory)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SegmentCorrupt, match=says):
        continued(writer, recorded, b"two", trusted=trusted)
    assert path.read_bytes() == content
    assert kept(directory) == []


def test_a_segment_that_grew_while_the_index_is_not_trusted_is_unread(writer, directory, path):
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    with path.open("ab") as file:
        file.write(b"lost\ntorn")
    start = continued(writer, recorded, b"two", trusted=False)
    assert (start.has_unknown, start.checksum, start.laid.end.size) == (True, None, 9)
    assert path.read_bytes() == b"one\nlost\ntwo\n"


def test_an_unknown_file_is_appended_to_after_its_last_whole_datum_and_unread(writer, directory, path):
    path.write_bytes(b"theirs\ntorn")
    start = writer.start(NAME, None, None, LINES, trusted=True)
    assert (start.is_new, start.has_unknown, start.is_touched, start.checksum) == (False, True, True, None)
    with writer.writing(NAME, 1, start, LINES, known=False) as segment:
        segment.add([b"two"])
    assert path.read_bytes() == b"theirs\ntwo\n"
    path.write_bytes(b"damage!\n")
    with pytest.raises(SegmentCorrupt, match=r"cannot append to .*11-20.vm2: there is a damaged line"):
        writer.start(NAME, None, None, LINES, trusted=True)


def test_an_append_to_a_hard_linked_file_copies_it_and_leaves_the_others_alone(writer, directory, path, tmp_path):
    path.write_bytes(b"0001one\nlost\n")
    backup = tmp_path / "backup"
    backup.hardlink_to(path)
    before = backup.stat()
    recorded = committed(directory, size=8, layout=COUNTED)
    continued(writer, recorded, b"two", layout=COUNTED)
    writer.sync()
    assert path.read_bytes() == b"0002one\ntwo\n"
    assert backup.read_bytes() == b"0001one\nlost\n"
    assert (backup.stat().st_mtime_ns, backup.stat().st_nlink) == (before.st_mtime_ns, 1)
    assert path.stat().st_ino != before.st_ino
    assert writer.appended(NAME)[2] == committed(directory, layout=COUNTED).facts
    assert names(path.parent) == [".quarantine", "11-20.vm2"]
    writer.undo()
    assert path.read_bytes() == b"0001one\n"
    assert backup.read_bytes() == b"0001one\nlost\n"


def test_an_append_after_a_killed_repack_leaves_no_second_file_at_the_hidden_name(writer, directory, path):
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    inode = path.stat().st_ino
    (path.parent / ".11-20.vm2.1").hardlink_to(path)
    continued(writer, recorded, b"two")
    writer.sync()
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.stat().st_ino == inode
    assert names(path.parent) == ["11-20.vm2"]


def test_whole_data_after_the_committed_size_go_to_quarantine_before_they_are_cut(writer, directory, path, monkeypatch):
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    with path.open("ab") as file:
        file.write(b"theirs\ntorn")
    cut, seen = os.ftruncate, []
    monkeypatch.setattr(os, "ftruncate", lambda *call: (seen.append(kept(directory)), cut(*call))[1])
    continued(writer, recorded, b"two")
    assert path.read_bytes() == b"one\ntwo\n"
    assert seen[-1] == kept(directory) == [(4, b"theirs\ntorn", "append")]


@pytest.mark.parametrize("layout", [LINES, COUNTED])
@pytest.mark.parametrize("tail", [b"two\nthree\n", b"two\nthr", b"two\n", b"t"])
def test_an_interrupted_append_that_is_repeated_puts_nothing_into_quarantine(writer, directory, path, tail, layout):
    begun = b"0001one\n" if layout is COUNTED else b"one\n"
    path.write_bytes(begun)
    recorded = committed(directory, layout=layout)
    path.write_bytes(begun.replace(b"1", b"3") + tail)
    continued(writer, recorded, b"two", b"three", layout=layout)
    assert path.read_bytes() == begun.replace(b"1", b"3") + b"two\nthree\n"
    assert kept(directory) == []
    writer.undo()
    assert path.read_bytes() == begun


@pytest.mark.parametrize("tail", [b"two\nthree\nfour\n", b"two\nThree\n", b"three\n"])
def test_bytes_that_are_more_or_others_than_those_that_are_appended_go_to_quarantine(writer, directory, path, tail):
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    path.write_bytes(b"one\n" + tail)
    continued(writer, recorded, b"two", b"three")
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert kept(directory) == [(4, tail, "append")]


def test_the_same_bytes_stay_if_the_index_is_not_trusted_or_does_not_know_the_segment(writer, directory, path):
    path.write_bytes(b"0002one\ntwo\nth")
    start = writer.start(NAME, None, None, COUNTED, trusted=False)
    with writer.writing(NAME, 1, start, COUNTED, [b"three"], known=False) as segment:
        segment.add([b"three"])
    assert path.read_bytes()[4:] == b"one\ntwo\nthree\n"
    assert kept(directory) == [(12, b"th", "append")]


@pytest.mark.parametrize("tail", [b"to", b"END 1"], ids=["torn", "end mark"])
def test_bytes_without_data_are_cut_off_and_not_kept(writer, directory, path, tail):
    path.write_bytes(b"0001one\n")
    recorded = committed(directory, layout=COUNTED)
    with path.open("ab") as file:
        file.write(tail)
    continued(writer, recorded, b"two", layout=COUNTED)
    assert path.read_bytes() == b"0002one\ntwo\n"
    assert kept(directory) == []


@pytest.mark.parametrize("trusted", [True, False])
def test_a_torn_tail_is_kept_if_the_header_or_a_lost_index_may_have_counted_it(writer, directory, path, trusted):
    path.write_bytes(b"0001one\n")
    recorded = committed(directory, layout=COUNTED)
    path.write_bytes((b"0002" if trusted else b"0001") + b"one\ntorn")
    continued(writer, recorded, b"two", layout=COUNTED, trusted=trusted)
    assert path.read_bytes() == b"0002one\ntwo\n"
    assert kept(directory) == [(8, b"torn", "append")]


def test_a_torn_tail_of_a_segment_that_no_index_knows_is_kept(writer, directory, path):
    path.write_bytes(b"0002one\ntorn")
    start = writer.start(NAME, None, None, COUNTED, trusted=False)
    with writer.writing(NAME, 1, start, COUNTED, known=False) as segment:
        segment.add([b"two"])
    assert path.read_bytes()[4:] == b"one\ntwo\n"
    assert kept(directory) == [(8, b"torn", "append")]


@pytest.mark.parametrize("synced", [False, True])
def test_undo_restores_size_header_and_mtime(writer, directory, path, synced):
    path.write_bytes(b"0001one\n")
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    recorded = committed(directory, layout=COUNTED)
    continued(writer, recorded, b"two", layout=COUNTED)
    if synced:
        writer.sync()
    writer.undo()
    assert path.read_bytes() == b"0001one\n"
    assert recorded.is_untouched(path.stat())
    assert recorded.is_whole_in(directory.open_to_read(NAME))


def test_undo_does_not_hide_that_a_tail_was_cut(writer, directory, path):
    """The mtime of the file before it was cut is not the one that the index recorded: it says nothing."""
    path.write_bytes(b"one\n")
    recorded = committed(directory)
    with path.open("ab") as file:
        file.write(b"torn")
    continued(writer, recorded, b"two")
    writer.undo()
    assert path.read_bytes() == b"one\n"
    assert not recorded.is_untouched(path.stat())


def test_a_segment_whose_new_generation_waits_is_completed_before_an_append(directory, path):
    path.write_bytes(b"two\n")
    recorded = committed(directory)
    path.rename(path.parent / ".11-20.vm2.17")
    complete(directory, NAME, 17, recorded)
    assert path.read_bytes() == b"two\n"


def known_as(*pieces, asked=None):
    """Return what `ConcatReader.read` asks about a segment when it must compare the file."""

    def known():
        if asked is not None:
            asked.append(pieces[0])
        return pieces

    return known


def test_a_reader_reads_spans_and_keeps_files_open(directory, path):
    path.write_bytes(b"0123456789")
    reader, asked = ConcatReader(directory), []
    known = known_as(NAME, committed(directory), asked=asked)
    assert reader.read_open(1, 2, 3) is None
    assert reader.read(1, known, 2, 3) == b"234"
    path.unlink()
    assert reader.read(1, known, 0, 10) == reader.read_open(1, 0, 10) == b"0123456789"
    assert asked == [NAME]
    reader.close()
    with pytest.raises(SegmentMissing):
        reader.read(1, known, 2, 3)


def test_a_reader_returns_no_fewer_bytes_than_the_index_knows(directory, path):
    path.write_bytes(b"01234567")
    known = known_as(NAME, committed(directory))
    path.write_bytes(b"0123")
    reader = ConcatReader(directory)
    for place in [(2, 6), (0, 4)]:
        with pytest.raises(SegmentCorrupt, match="ends at byte 4, but the index has data up to byte 8") as caught:
            reader.read(1, known, *place)
        assert caught.value.context == {"segment": NAME, "size": 4, "wanted": 8}


def test_a_reader_returns_all_bytes_or_an_error(directory, path):
    path.write_bytes(b"01234567")
    reader, known = ConcatReader(directory), known_as(NAME, committed(directory))
    for _ in range(2):  # the file is open the second time
        with pytest.raises(SegmentCorrupt, match="ends at byte 8, but the index has data up to byte 12"):
            reader.read(1, known, 4, 8)
        assert reader.read_open(1, 4, 8) is None


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_reader_refuses_a_file_that_was_changed(directory, path, is_open, replaced):
    path.write_bytes(b"01234567")
    known, reader = known_as(NAME, committed(directory)), ConcatReader(directory)
    if is_open:
        assert reader.read(1, known, 0, 4) == b"0123"
    if replaced:
        path.rename(path.with_name("before"))
    path.write_bytes(b"0123456x")
    os.utime(path, ns=(1, 1))
    if is_open and replaced:  # the open file is still the one that the index describes
        assert reader.read(1, known, 0, 4) == b"0123"
    else:
        with pytest.raises(SegmentCorrupt, match="is not the file that the index describes"):
            reader.read(1, known, 0, 4)
        assert reader.read_open(1, 0, 4) is None


def test_a_reader_reads_a_file_that_was_only_touched_or_grew(directory, path):
    path.write_bytes(b"01234567")
    known, reader = known_as(NAME, committed(directory)), ConcatReader(directory)
    assert reader.read(1, known, 0, 4) == b"0123"
    os.utime(path, ns=(1, 1))
    assert reader.read_open(1, 0, 4) is None
    assert reader.read(1, known, 0, 4) == reader.read_open(1, 0, 4) == b"0123"
    with path.open("ab") as file:
        file.write(b"of an append beside the query")
    assert reader.read(1, known, 0, 8) == b"01234567"
    assert ConcatReader(directory).read(1, known, 0, 8) == b"01234567"


def test_bytes_that_were_appended_since_are_compared_with_the_newer_facts(directory, path):
    path.write_bytes(b"0123")
    reader, asked = ConcatReader(directory), []
    assert reader.read(1, known_as(NAME, committed(directory)), 0, 4) == b"0123"
    with path.open("ab") as file:
        file.write(b"4567")
    known = known_as(NAME, committed(directory), asked=asked)
    assert [reader.read(1, known, 4, 4) for _ in range(2)] == [b"4567"] * 2
    assert asked == [NAME]


def test_a_reader_keeps_a_bounded_number_of_files_open(directory, path, open_files):
    reader = ConcatReader(directory)
    for number in range(300):
        (path.parent / f"{number}.vm2").write_bytes(b"%03d" % number)
    before = open_files()
    for number in range(300):
        name = f"2026/{number}.vm2"
        assert reader.read(number, known_as(name, committed(directory, name)), 0, 3) == b"%03d" % number
    assert open_files() - before <= 256
    reader.close()
    assert open_files() == before


def test_a_reader_closes_the_file_of_an_older_generation(directory, path, open_files):
    path.write_bytes(b"one")
    reader = ConcatReader(directory)
    assert reader.read(1, known_as(NAME, committed(directory)), 0, 3) == b"one"
    before = open_files()
    for generation in range(2, 5):
        path.unlink()
        path.write_bytes(b"new")
        assert reader.read(generation, known_as(NAME, committed(directory)), 0, 3) == b"new"
    assert open_files() == before


def test_the_bytes_of_a_generation_are_at_its_alias_if_that_exists(directory, path):
    """See `ondisk.segments.generations`."""
    path.write_bytes(b"new")
    (path.parent / ".11-20.vm2.17").write_bytes(b"old")
    old, new = committed(directory, "2026/.11-20.vm2.17"), committed(directory)
    reader = ConcatReader(directory)
    assert reader.read(17, known_as(NAME, old), 0, 3) == b"old"
    assert reader.read(18, known_as(NAME, new), 0, 3) == b"new"


@pytest.mark.parametrize("put", ["file", "folder", "link"])
def test_what_is_not_the_generation_is_not_read_at_its_alias(directory, path, put):
    path.write_bytes(b"mine")
    alias = path.parent / ".11-20.vm2.17"
    if put == "file":
        alias.write_bytes(b"theirs")
    elif put == "folder":
        alias.mkdir()
    else:
        alias.symlink_to("11-20.vm2")
    reader, known = ConcatReader(directory), known_as(NAME, committed(directory))
    assert reader.read(17, known, 0, 4) == b"mine"
    assert reader.file_of(17, *known()).read(0, 4) == b"mine"


def test_a_generation_is_found_while_a_drop_begins_and_is_undone(directory, path, monkeypatch):
    path.write_bytes(b"one")
    alias = path.parent / ".11-20.vm2.17"
    known = known_as(NAME, committed(directory))
    look, looks = Directory.open_to_read, []

    def drop_meanwhile(self, name):
        looks.append(name)
        if len(looks) == 2:
            path.rename(alias)
        elif len(looks) == 3:
            alias.rename(path)
        return look(self, name)

    monkeypatch.setattr(Directory, "open_to_read", drop_meanwhile)
    assert ConcatReader(directory).read(17, known, 0, 3) == b"one"
    assert len(looks) == 5


def test_an_alias_that_appears_between_two_looks_is_taken(directory, path, monkeypatch):
    """A repack links the old bytes to the alias, then renames the new ones to the name."""
    path.write_bytes(b"old")
    alias = path.parent / ".11-20.vm2.17"
    known = known_as(NAME, committed(directory))
    look = Directory.open_to_read

    def repack_meanwhile(self, name):
        if name == NAME and not alias.exists():
            alias.hardlink_to(path)
            (path.parent / "staged").write_bytes(b"new")
            (path.parent / "staged").rename(path)
        return look(self, name)

    monkeypatch.setattr(Directory, "open_to_read", repack_meanwhile)
    assert ConcatReader(directory).read(17, known, 0, 3) == b"old"


def test_a_generation_that_is_moved_out_of_a_renamed_place_between_two_looks_is_found(directory, tmp_path, monkeypatch):
    """A reader of an older snapshot knows the place by its former name."""
    renamed = f".archive/2024/{NAME}"
    path = tmp_path / renamed
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one")
    known = known_as(LAST + NAME, committed(directory, renamed))
    look = Directory.open_to_read

    def unarchive_meanwhile(self, name):
        if name == renamed and path.exists():
            path.rename(path.parent / ".11-20.vm2.17")
        return look(self, name)

    monkeypatch.setattr(Directory, "open_to_read", unarchive_meanwhile)
    assert ConcatReader(directory).read(17, known, 0, 3) == b"one"
