from __future__ import annotations

import errno
import os
from zlib import crc32

import pytest
from worlds import fail

from ondisk import DatasetConfig, Datum
from ondisk.datum import from_microseconds
from ondisk.errors import DiskFull, DurabilityLost, FrameCorrupt, SegmentCorrupt, SegmentMissing, StorageError
from ondisk.filesystem import Directory
from ondisk.formats.blob import Blob
from ondisk.segment import End, Facts, Laid, Start
from ondisk.segments import quarantine
from ondisk.segments.dir import (
    METADATA,
    NEW_METADATA,
    SEQUENCE,
    DirReader,
    MetadataFile,
    facts_in,
    number_of,
    read_sequence,
    scan,
    seen_in,
)
from ondisk.segments.dir_writer import DirWriter
from ondisk.segments.file_facts import Committed, Seen
from ondisk.segments.generations import complete, move_old, recover

NAME = "2026/11-20.h5"


def unknown():
    """Return the facts of a segment about which an index of an older revision recorded nothing."""
    return Committed(0, Facts(), range(0))


FORMAT = Blob(DatasetConfig.from_mapping({"format": "blob", "step": "daily", "extension": "h5"}))


@pytest.fixture
def path(tmp_path):
    return tmp_path / NAME


@pytest.fixture
def new(tmp_path):
    """Return the hidden name of a new segment."""
    return tmp_path / "2026/.11-20.h5.1"


def beside(*numbers):
    return FORMAT.encode([Datum(from_microseconds(number), {"n": number}, b"") for number in numbers]).beside


def write(writer, name, start, payloads, beside, *, known, generation=1):
    with writer.writing(name, generation, start, known=known) as segment:
        segment.add(payloads, beside)


def append(directory, *payloads, end=None, start=None, known=False, commit=True):
    """Append as a batch does; gives the end."""
    writer = DirWriter(directory)
    start = start or writer.start(NAME, end, trusted=known)
    write(writer, NAME, start, payloads, beside(*range(len(payloads))), known=known)
    if commit:
        writer.sync()
        writer.reveal()
        return writer.appended(NAME)[0]
    return writer


def files(path):
    return {each.name: each.read_bytes() for each in path.iterdir() if not each.name.startswith(".")}


def test_each_datum_is_a_file_and_its_metadata_are_in_one_file_of_all(directory, path):
    end = append(directory, b"one", b"", b"three")
    assert files(path) == {"000000.h5": b"one", "000001.h5": b"", "000002.h5": b"three"}
    assert (path / SEQUENCE).read_bytes() == (2).to_bytes(8, "little")
    assert end == End((path / METADATA).stat().st_size, 3)
    reader = DirReader(directory)
    assert reader.read(1, NAME, unknown, 2, 5) == b"three"
    assert reader.beside(1, NAME, unknown, 2) == beside(2)[0]
    entry = MetadataFile(directory.open_to_read(f"{NAME}/{METADATA}")).get(2)
    assert (entry.size, entry.checksum) == (5, crc32(b"three"))


def test_a_batch_goes_on_behind_the_last_number(directory, path):
    end = append(directory, b"one")
    end = append(directory, b"two", b"three", end=end, known=True)
    assert end.length == 3
    assert files(path)["000002.h5"] == b"three"
    assert len([*MetadataFile(directory.open_to_read(f"{NAME}/{METADATA}"))]) == 3


def test_a_new_segment_has_a_hidden_name_until_its_commit(directory, path, new):
    writer = append(directory, b"one", commit=False)
    writer.sync()
    assert [each.name for each in path.parent.iterdir()] == [new.name]
    reader = DirReader(directory)
    assert (reader.read(1, NAME, unknown, 0, 3), reader.beside(1, NAME, unknown, 0)) == (b"one", beside(0)[0]), (
        "another's snapshot has it"
    )
    end, _, facts = writer.appended(NAME)
    writer.reveal()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    sequence = (path / SEQUENCE).stat()
    assert (facts.mtime, facts.inode) == (sequence.st_mtime_ns, sequence.st_ino)
    folder = directory.inside(NAME)
    assert seen_in(folder, facts, end.size) is Seen.UNTOUCHED
    os.utime(path / SEQUENCE, (1, 1))
    assert seen_in(folder, facts, end.size) is Seen.SAME_TAIL
    assert seen_in(folder, facts._replace(tail=None), end.size) is Seen.UNKNOWN
    (path / METADATA).write_bytes(bytes(end.size))
    assert seen_in(folder, facts, end.size) is Seen.OTHER


def test_a_folder_of_somebody_else_in_the_place_of_a_new_segment_goes_to_quarantine(directory, path):
    writer = append(directory, b"one", commit=False)
    writer.sync()
    path.mkdir()
    (path / "000000.h5").write_bytes(b"theirs")
    writer.reveal()
    assert files(path) == {"000000.h5": b"one"}
    (item,) = quarantine.items(directory)
    assert directory.read(f"{item.name}/000000.h5", 9) == b"theirs"


def test_a_folder_of_somebody_else_at_a_hidden_name_takes_the_place_of_nothing(directory, path, new):
    end = append(directory, b"one")
    facts = facts_in(directory.inside(NAME), NAME, end)
    new.mkdir()
    (new / "000000.h5").write_bytes(b"theirs")
    complete(directory, NAME, 1, Committed(end.size, facts, range(0)))
    assert files(path) == {"000000.h5": b"one"}
    assert (new / "000000.h5").read_bytes() == b"theirs"
    reader = DirReader(directory)
    assert reader.read(1, NAME, lambda: Committed(end.size, facts, range(0)), 0, 3) == b"one"


def test_a_folder_of_somebody_else_at_a_hidden_name_does_not_become_the_segment(directory, path, new):
    end = append(directory, b"one")
    facts = facts_in(directory.inside(NAME), NAME, end)
    path.rename(path.with_name("away"))
    new.mkdir()
    (new / "000000.h5").write_bytes(b"theirs")
    complete(directory, NAME, 1, Committed(end.size, facts, range(0)))
    assert not path.exists()
    assert files(new) == {"000000.h5": b"theirs"}


def test_a_folder_of_somebody_else_is_not_hidden_like_a_generation(directory, path, new):
    end = append(directory, b"one")
    committed = Committed(end.size, facts_in(directory.inside(NAME), NAME, end), range(0))
    path.rename(path.with_name("away"))
    path.mkdir()
    (path / "000000.h5").write_bytes(b"theirs")
    move_old(directory, NAME, 1, committed)
    assert not path.exists()
    assert not new.exists()
    (item,) = quarantine.items(directory)
    assert directory.read(f"{item.name}/000000.h5", 9) == b"theirs"


def test_nothing_is_appended_to_a_folder_that_was_exchanged(directory, path):
    end = append(directory, b"one", b"two")
    committed = Committed(end.size, facts_in(directory.inside(NAME), NAME, end), range(0))
    assert DirWriter(directory).start(NAME, end, committed, trusted=True).laid.end.length == 2
    content = (path / METADATA).read_bytes()
    (path / METADATA).write_bytes(content[:20] + b"?" + content[21:])
    with pytest.raises(SegmentCorrupt, match="is not the file that the index describes"):
        DirWriter(directory).start(NAME, end, committed, trusted=True)


def test_a_new_segment_that_a_crash_kept_from_its_name_gets_it_at_the_next_append(directory, path):
    writer = append(directory, b"one", commit=False)
    writer.sync()
    end, _, facts = writer.appended(NAME)
    complete(directory, NAME, 1, Committed(end.size, facts, range(0)))
    append(directory, b"two", end=end, known=True)
    assert files(path) == {"000000.h5": b"one", "000001.h5": b"two"}


def test_what_a_crash_left_at_a_hidden_name_goes_but_no_file_of_somebody_else(directory, path, new):
    append(directory, b"of a crash", commit=False).sync()
    writer = DirWriter(directory)
    writer.clear(NAME, 1)
    assert not new.exists()
    append(directory, b"of a crash", commit=False).sync()
    (new / "notes.txt").write_bytes(b"theirs")
    writer.clear(NAME, 1)
    assert [each.name for each in new.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("current", "unread", "trusted", "needed"),
    [
        (None, True, True, []),
        (None, False, True, [1, 2]),
        (None, True, False, [1, 2]),
        (1, True, True, []),
        (1, False, True, [2]),
        (1, True, False, [2]),
    ],
)
def test_a_crash_leaves_folders_that_are_finished_or_removed(directory, path, new, current, unread, trusted, needed):
    append(directory, b"one", commit=False).sync()
    write(
        DirWriter(directory), NAME, Start(Laid(b"", End()), is_new=True), [b"x"], beside(0), known=False, generation=2
    )
    known = None if current is None else (current, Committed(0, Facts(), range(0)))
    assert recover(directory, NAME, [1, 2], known, has_no_older_readers=unread, trusted=trusted) == needed
    assert path.exists() == (current == 1)
    assert new.exists() == (1 in needed)
    assert new.with_suffix(".2").exists() == (2 in needed)


def test_files_of_a_segment_with_other_names_are_copied_before_they_change(directory, path, tmp_path):
    """As in a backup made with `cp -al`."""
    end = append(directory, b"one")
    backup = tmp_path / "backup"
    backup.mkdir()
    for each in path.iterdir():
        (backup / each.name).hardlink_to(each)
    before = {each.name: each.read_bytes() for each in backup.iterdir()}
    append(directory, b"two", end=end, known=True)
    assert {each.name: each.read_bytes() for each in backup.iterdir()} == before
    assert {each.name for each in path.iterdir()} == {"000000.h5", "000001.h5", METADATA, SEQUENCE}
    assert DirReader(directory).read(1, NAME, unknown, 1, 3) == b"two"


@pytest.mark.parametrize("name", ["000000.h5", "999999.h5", "1000000.h5"])
def test_the_number_of_a_file_is_in_its_name(name):
    assert number_of(NAME, name) == int(name[:-3])


@pytest.mark.parametrize(
    "name", ["0.h5", "0000001.h5", "000000.nc", "000000.h5.tmp", ".sequence", "00000a.h5", "٠٠٠٠٠٠.h5"]
)
def test_other_names_are_no_files_of_a_segment(name):
    assert number_of(NAME, name) is None


def test_files_of_a_crashed_append_are_never_overwritten_nor_their_numbers_used_again(directory, path):
    """arkimet #315: the import met an existing file, and failed for ever."""
    end = append(directory, b"one")
    append(directory, b"lost", b"lost too", end=end, known=True, commit=False)
    assert (path / SEQUENCE).read_bytes() == bytes(8)
    writer = DirWriter(directory)
    assert writer.start(NAME, end, trusted=False).laid.end.length == 3
    start = writer.start(NAME, end, trusted=True)
    assert start.laid.end.length == 1  # without a look at all files
    with pytest.raises(FileExistsError):
        write(writer, NAME, start, [b"two"], beside(1), known=True)
    writer.undo()
    assert files(path) == {"000000.h5": b"one", "000001.h5": b"lost", "000002.h5": b"lost too"}
    end = append(directory, b"two", end=end, start=writer.restart(NAME, start), known=True)
    assert end.length == 4
    assert files(path)["000003.h5"] == b"two"


def test_undo_takes_back_files_and_entries_and_a_new_directory(directory, path):
    writer = append(directory, b"one", commit=False)
    writer.sync()
    writer.undo()
    assert [*path.parent.iterdir()] == []
    end = append(directory, b"one")
    before = (path / METADATA).read_bytes()
    writer = append(directory, b"two", b"three", end=end, known=True, commit=False)
    writer.sync()
    writer.undo()
    assert files(path) == {"000000.h5": b"one"}
    assert (path / METADATA).read_bytes() == before
    assert DirWriter(directory).start(NAME, end, trusted=True).laid.end.length == 3  # given out, and never again


def test_undo_leaves_what_was_not_the_batchs_own(directory, path):
    append(directory, b"one")
    (path / "000002.h5").write_bytes(b"other")
    writer = DirWriter(directory)
    with pytest.raises(FileExistsError):
        write(writer, NAME, Start(Laid(b"", End(0, 1))), [b"a", b"b"], beside(1, 2), known=False)
    writer.undo()
    assert files(path) == {"000000.h5": b"one", "000002.h5": b"other"}


@pytest.mark.parametrize("tail", [b"\x20", b"\x20\0\0\0torn", b"\0" * 5000, b"\xff\0\0\0" + b"x" * 100])
@pytest.mark.parametrize("known", [False, True])
def test_a_torn_entry_is_cut_off_by_the_next_append(directory, path, tail, known):
    end = append(directory, b"one")
    with (path / METADATA).open("ab") as file:
        file.write(tail)
    append(directory, b"two", end=end, known=known)
    entries = MetadataFile(directory.open_to_read(f"{NAME}/{METADATA}"))
    assert ([*entries], entries.damage) == ([0, 1], None)


def test_entries_that_the_index_does_not_know_stay_while_nobody_vouches_for_it(directory, path):
    end = append(directory, b"one")
    append(directory, b"two", end=end, known=True)
    append(directory, b"three", end=End())
    assert [*MetadataFile(directory.open_to_read(f"{NAME}/{METADATA}"))] == [0, 1, 2]


def test_nothing_is_appended_behind_damage(directory, path):
    end = append(directory, b"one", b"two")
    content = bytearray((path / METADATA).read_bytes())
    content[:4] = b"\0\0\0\0"
    content += b"torn"
    (path / METADATA).write_bytes(content)
    with pytest.raises(SegmentCorrupt, match=f".metadata is damaged at byte {end.size}"):
        append(directory, b"three", end=End())
    append(directory, b"three", end=end, known=True)  # what the index knows ends in a whole entry


def test_a_damaged_entry_is_passed_over(directory, path):
    end = append(directory, b"one", b"two", b"three")
    content = bytearray((path / METADATA).read_bytes())
    content[6] ^= 1
    (path / METADATA).write_bytes(content)
    entries = MetadataFile(directory.open_to_read(f"{NAME}/{METADATA}"))
    assert ([*entries], entries.end) == ([1, 2], end.size)
    with pytest.raises(SegmentCorrupt, match=r"cannot read the metadata of 000000.h5 .*no entry"):
        DirReader(directory).beside(1, NAME, unknown, 0)


def test_a_reader_refuses_files_of_another_size_and_says_what_is_missing(directory, path):
    append(directory, b"one", b"two")
    reader = DirReader(directory)
    (path / "000000.h5").write_bytes(b"longer")
    with pytest.raises(SegmentCorrupt, match="has 6 bytes instead of 3"):
        reader.read(1, NAME, unknown, 0, 3)
    (path / "000001.h5").unlink()
    with pytest.raises(SegmentMissing, match=r"000001.h5 is in the index but not on disk"):
        reader.read(1, NAME, unknown, 1, 3)
    with pytest.raises(SegmentMissing, match="not on disk"):
        reader.beside(2, "2026/11-21.h5", unknown, 0)


def test_a_damaged_byte_of_an_entry_takes_only_that_entry(directory, path):
    """One of its two lengths shows where the next begins."""
    append(directory, *[b"x" * size for size in range(5)])
    content = (path / METADATA).read_bytes()
    for at in range(len(content)):
        for mask in (0x01, 0xFF):
            (path / METADATA).write_bytes(content[:at] + bytes((content[at] ^ mask,)) + content[at + 1 :])
            results = [*scan(directory.inside(NAME), NAME, FORMAT.describe)]
            found = [number for each in results for number in each.offsets]
            assert len(found) == 4
            assert found == sorted(found)
            damaged = [damage.offset for each in results for damage in each.damage]
            assert sorted(found + damaged) == [*range(5)], "nothing is taken for a file of an interrupted append"


def test_a_reader_compares_the_checksum_of_each_file(directory, path):
    append(directory, b"one", b"two", b"six")
    reader = DirReader(directory)
    (path / "000001.h5").write_bytes(b"tWo")
    assert reader.read(1, NAME, unknown, 0, 3) == b"one"
    for _ in range(2):
        with pytest.raises(FrameCorrupt, match="its checksum is 0x"):
            reader.read(1, NAME, unknown, 1, 3)
    assert reader.read(1, NAME, unknown, 2, 3) == b"six"


def test_a_file_without_an_entry_is_not_returned(directory, path):
    """Nothing says whether its bytes are those that were stored."""
    append(directory, b"one")
    (path / METADATA).write_bytes(b"")
    with pytest.raises(SegmentCorrupt, match=r"cannot read the metadata of 000000.h5"):
        DirReader(directory).read(1, NAME, unknown, 0, 3)


def test_no_link_is_followed(directory, path, tmp_path):
    append(directory, b"one")
    (tmp_path / "secret").write_bytes(b"two")
    (path / "000000.h5").unlink()
    (path / "000000.h5").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="symbolic link"):
        DirReader(directory).read(1, NAME, unknown, 0, 3)
    (tmp_path / "2026/11-21.h5").symlink_to(path)
    with pytest.raises(StorageError, match="symbolic link"):
        DirReader(directory).beside(1, "2026/11-21.h5", unknown, 0)


def test_a_reader_sees_entries_that_were_appended_or_written_anew_since(directory, path):
    end = append(directory, b"one")
    reader = DirReader(directory)
    assert reader.beside(1, NAME, unknown, 0) == beside(0)[0]
    end = append(directory, b"two", end=end, known=True)
    assert reader.beside(1, NAME, unknown, 1) == beside(0)[0]
    content = (path / METADATA).read_bytes()
    (path / "new").write_bytes(content[content.rfind(content[:4], 0, -4) :])
    append(directory, b"three", end=end, known=True)
    (path / METADATA).replace(path / "old")
    (path / "old").rename(path / METADATA)
    assert reader.beside(1, NAME, unknown, 2) == beside(0)[0]
    assert reader.beside(1, NAME, unknown, 0) == beside(0)[0]


def test_reading_keeps_few_files_open(directory, open_files):
    for day in range(10, 30):
        writer = DirWriter(directory)
        start = Start(Laid(b"", End()), is_new=True)
        write(writer, f"2026/11-{day}.h5", start, [b"x"] * 20, beside(*range(20)), known=False)
        writer.sync()
        writer.reveal()
    before = open_files()
    reader = DirReader(directory)
    for day in range(10, 30):
        for number in range(20):
            assert reader.read(day, f"2026/11-{day}.h5", unknown, number, 1) == b"x"
            reader.beside(day, f"2026/11-{day}.h5", unknown, number)
    assert open_files() - before <= 4 + 16  # entries, directories
    reader.close()
    assert open_files() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_can_be_taken_back(directory, path, monkeypatch, code):
    end = append(directory, b"one")
    writer = DirWriter(directory)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail(code))
        with pytest.raises(DiskFull):
            write(writer, NAME, Start(Laid(b"", end)), [b"two"], beside(1), known=True)
    writer.undo()
    assert files(path) == {"000000.h5": b"one"}


def test_a_folder_whose_first_file_cannot_be_created_does_not_stay(directory, new, monkeypatch):
    def open_only(path, flags, *arguments, **options):
        return (fail(errno.EIO) if flags & os.O_CREAT else opened)(path, flags, *arguments, **options)

    writer, opened = DirWriter(directory), os.open
    start = writer.start(NAME, None, trusted=False)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_only)
        with pytest.raises(StorageError):
            write(writer, NAME, start, [b"one"], beside(0), known=False)
    writer.undo()
    assert not new.exists()


def test_a_sync_that_fails_loses_durability(directory, monkeypatch):
    writer = append(directory, b"one", commit=False)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(DurabilityLost):
        writer.sync()


def test_files_are_durable_before_what_says_of_them_and_the_directory_last(directory, new, monkeypatch):
    writer = append(directory, b"one", b"two", commit=False)
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, place: synced.append(os.path.relpath(place, new)))
    writer.sync()
    assert synced[:5] == ["000000.h5", "000001.h5", METADATA, SEQUENCE, "."]
    assert sorted(synced[5:]) == ["..", "../.."]


def test_a_scan_returns_what_is_as_its_entry_says_and_names_the_rest(directory, path):
    append(directory, b"one", b"two", b"three", b"four", b"five")
    append(directory, b"six", end=End(), commit=False)  # above .sequence, without an entry: nobody misses it
    (path / "000001.h5").write_bytes(b"twos")
    (path / "000002.h5").write_bytes(b"threE")
    (path / "000003.h5").unlink()
    (path / SEQUENCE).write_bytes((6).to_bytes(8, "little"))
    (path / "000006.h5").write_bytes(b"no entry")
    found = [*scan(directory.inside(NAME), NAME, FORMAT.describe)]
    assert [number for each in found for number in each.offsets] == [0, 4]
    assert found[-1].end.length == 7
    said = {damage.offset: damage.reason for each in found for damage in each.damage}
    assert said.keys() == {1, 2, 3}
    assert said[3] == "its file is missing, but .metadata has an entry for it"
    assert said[1] == "it has 4 bytes instead of 3"
    assert "its checksum is" in said[2]
    with (path / METADATA).open("ab") as file:
        file.write(b"torn")  # then there may have been entries of them
    said = {
        damage.offset: damage.reason
        for each in scan(directory.inside(NAME), NAME, FORMAT.describe)
        for damage in each.damage
    }
    assert said.keys() == {1, 2, 3, 5, 6}
    assert said[6] == f"{METADATA} has no entry for it"


@pytest.mark.parametrize(("kept", "damaged"), [(None, [0]), (False, []), (True, [0])])
def test_a_missing_file_is_lost_unless_a_repack_has_removed_it(directory, path, kept, damaged):
    append(directory, b"one", b"two")
    (path / "000000.h5").unlink()
    if kept is not None:  # a killed repack has written which entries remain
        (path / NEW_METADATA).write_bytes((path / METADATA).read_bytes() if kept else b"")
    results = [*scan(directory.inside(NAME), NAME, FORMAT.describe)]
    assert [damage.offset for each in results for damage in each.damage] == damaged


def test_what_says_the_last_number_may_be_missing_empty_or_nonsense(directory, path):
    append(directory, b"one")
    with directory.inside(NAME) as folder:
        for content, expected in [(b"", -1), (b"\1", -1), (b"\xff" * 8, None), ((7).to_bytes(8, "little"), 7)]:
            (path / SEQUENCE).write_bytes(content)
            assert read_sequence(folder) == expected
        (path / SEQUENCE).unlink()
        assert read_sequence(folder) is None
    assert DirWriter(directory).start(NAME, End(0, 1), trusted=True).laid.end.length == 1


@pytest.mark.parametrize("together", [False, True])
def test_many_files_are_synced_at_once_where_the_filesystem_allows_it(directory, new, monkeypatch, together):
    writer = append(directory, *[b"x"] * 40, commit=False)
    synced, at_once = [], []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, place: synced.append(os.path.relpath(place, new)))
    monkeypatch.setattr(Directory, "_filesystem", lambda _: "ext4")
    monkeypatch.setattr(
        "ondisk.filesystem.files.sync_filesystem", lambda *_: at_once.append(len(files(new))) or together
    )
    writer.sync()
    assert at_once == [40]
    assert sum(each.endswith(".h5") for each in synced) == (0 if together else 40)
    assert synced[-5:-2] == [METADATA, SEQUENCE, "."]
