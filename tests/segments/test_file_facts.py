"""Facts: what they show of a file, whatever somebody did to it."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.filesystem import Directory
from ondisk.segment import Facts
from ondisk.segments.file_facts import (
    TAIL,
    CheckedReading,
    Committed,
    Seen,
    add_to_checksum,
    checksum_of,
    facts_of,
    tail_of,
)

NAME = "2026/11-20.seg"
MUTABLE = range(4, 8)
CONTENT = bytes(range(256)) * 40  # more than a tail


class Bytes:
    """A segment's file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def size(self) -> int:
        return len(self.content)

    def read(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "2026").mkdir()
    path = tmp_path / NAME
    path.write_bytes(CONTENT)
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    return path


def recorded(directory: Directory, size: int | None = None, mutable: range = MUTABLE) -> Committed:
    """Return what the index records of the file as it is."""
    file = directory.open_to_read(NAME)
    size = file.size() if size is None else size
    return Committed(
        size, facts_of(file.stat(), tail_of(file, size, mutable), checksum_of(file, size, mutable)), mutable
    )


def seen(directory: Directory, committed: Committed) -> Seen:
    file = directory.open_to_read(NAME)
    return committed.seen_in(file, file.stat())


def change(path: Path, position: int, content: bytes = b"\xff\xff") -> None:
    """Change bytes, and with them the mtime."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)
    os.utime(path, ns=(10**18 + 2, 10**18 + 2))


@given(
    content=st.binary(max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    begin=st.integers(0, 60),
    count=st.integers(0, 8),
)
def test_a_checksum_in_pieces_is_that_of_the_whole_with_zeros_for_what_is_rewritten(content, cuts, begin, count):
    mutable = range(begin, begin + count)
    masked = bytes(0 if position in mutable else byte for position, byte in enumerate(content))
    assert add_to_checksum(content, 0, mutable) == google_crc32c.value(masked)
    checksum, places = 0, sorted({0, len(content), *(cut for cut in cuts if cut <= len(content))})
    for one, other in pairwise(places):
        checksum = add_to_checksum(content[one:other], one, mutable, checksum)
    assert checksum == google_crc32c.value(masked)
    assert checksum_of(Bytes(content), len(content), mutable) == google_crc32c.value(masked)


@given(
    content=st.binary(max_size=60),
    size=st.integers(0, 60),
    reads=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 30)), max_size=6),
    changed=st.integers(0, 59),
)
def test_a_file_is_compared_whatever_is_read_of_it_before(content, size, reads, changed):
    size, mutable = min(size, len(content)), range(2, 4)
    committed = Committed(size, Facts(1, 1, 0, checksum_of(Bytes(content), size, mutable)), mutable)
    other = bytearray(content)
    other[changed : changed + 1] = bytes([255 - byte for byte in content[changed : changed + 1]])
    for found in (content, bytes(other), content[: size - 1] if size else content):
        checked = CheckedReading(Bytes(found), committed)
        for begin, count in reads:
            checked.add(begin, found[begin : begin + count])
        assert checked.is_whole() is committed.is_whole_in(Bytes(found))


def test_a_checksum_continues_that_of_the_bytes_before():
    file = Bytes(CONTENT)
    before = checksum_of(file, 100, MUTABLE)
    assert checksum_of(file, len(CONTENT), MUTABLE, 100, before) == checksum_of(file, len(CONTENT), MUTABLE)
    assert checksum_of(file, 100, MUTABLE) != checksum_of(file, 101, MUTABLE)


def test_a_file_larger_than_a_piece_has_the_checksum_of_all_of_it(directory, tmp_path):
    content = os.urandom(1024 * 1024 + 7) * 2
    (tmp_path / "2026").mkdir()
    (tmp_path / NAME).write_bytes(content)
    file = directory.open_to_read(NAME)
    assert checksum_of(file, len(content), range(0)) == google_crc32c.value(content)


@pytest.mark.parametrize("size", [0, 1, 8, TAIL - 1, TAIL, TAIL + 1, len(CONTENT)])
def test_the_tail_is_that_of_the_last_bytes_or_of_all_if_they_are_fewer(size):
    last = CONTENT[max(0, size - TAIL) : size]
    assert tail_of(Bytes(CONTENT), size, range(0)) == google_crc32c.value(last)


def test_the_count_in_the_header_of_a_short_file_is_not_part_of_its_tail():
    one, other = (b"SEGM" + count.to_bytes(4, "little") + b"data" for count in (1, 2))
    assert tail_of(Bytes(one), 12, MUTABLE) == tail_of(Bytes(other), 12, MUTABLE)
    assert tail_of(Bytes(one), 12, range(0)) != tail_of(Bytes(other), 12, range(0))


def test_a_file_as_recorded_is_untouched_and_whole(directory, path):
    committed = recorded(directory)
    assert seen(directory, committed) is Seen.UNTOUCHED
    assert committed.is_whole_in(directory.open_to_read(NAME)) is True


def test_of_an_untouched_file_nothing_is_read(directory, path):
    committed = recorded(directory)
    assert committed.seen_in(None, path.stat()) is Seen.UNTOUCHED


@pytest.mark.parametrize("of", ["mtime", "inode"])
def test_a_file_that_was_touched_or_copied_is_compared_by_its_tail(directory, path, of):
    committed = recorded(directory)
    if of == "mtime":
        os.utime(path, ns=(10**18 + 2, 10**18 + 2))
    else:
        content, kept = path.read_bytes(), path.rename(path.with_name("before"))
        path.write_bytes(content)
        os.utime(path, ns=(10**18 + 1, 10**18 + 1))
        assert kept.stat().st_ino != path.stat().st_ino
    assert not committed.is_untouched(path.stat())
    assert seen(directory, committed) is Seen.SAME_TAIL
    change(path, len(CONTENT) - 2)
    assert seen(directory, committed) is Seen.OTHER
    assert committed.is_whole_in(directory.open_to_read(NAME)) is False


def test_a_change_before_the_tail_of_a_touched_file_is_shown_by_its_checksum_only(directory, path):
    committed = recorded(directory)
    change(path, 100)
    assert seen(directory, committed) is Seen.SAME_TAIL
    assert committed.is_whole_in(directory.open_to_read(NAME)) is False


def test_what_is_rewritten_in_place_changes_neither_tail_nor_checksum(directory, path):
    path.write_bytes(CONTENT[:100])
    committed = recorded(directory)
    change(path, 4, b"\xff\xff\xff\xff")
    assert seen(directory, committed) is Seen.SAME_TAIL
    assert committed.is_whole_in(directory.open_to_read(NAME)) is True


def test_bytes_after_the_committed_size_do_not_count(directory, path):
    committed = recorded(directory, 5000)
    assert seen(directory, committed) is Seen.UNTOUCHED
    change(path, 5000, b"an append beside it")
    assert seen(directory, committed) is Seen.SAME_TAIL
    assert committed.is_whole_in(directory.open_to_read(NAME)) is True


@pytest.mark.parametrize("size", [0, 1, 5000, len(CONTENT) - 1])
def test_a_file_that_was_cut_short_is_another_even_with_the_old_mtime(directory, path, size):
    committed = recorded(directory)
    os.truncate(path, size)
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    assert not committed.is_untouched(path.stat())
    assert seen(directory, committed) is Seen.OTHER
    assert committed.is_whole_in(directory.open_to_read(NAME)) is False


def test_an_mtime_of_whole_seconds_is_no_proof(directory, path):
    """Tar, CIFS and some NFS keep nothing finer: another file may have the same."""
    os.utime(path, (10**9, 10**9))
    committed = recorded(directory)
    assert not committed.is_untouched(path.stat())
    assert seen(directory, committed) is Seen.SAME_TAIL
    change(path, len(CONTENT) - 2)
    os.utime(path, (10**9, 10**9))
    assert seen(directory, committed) is Seen.OTHER


def test_an_index_of_revision_3_is_believed_while_the_mtime_agrees(directory, path):
    """It recorded nothing else, and whole seconds are all that a copy may have."""
    for mtime in (10**18 + 1, 10**18):
        os.utime(path, ns=(mtime, mtime))
        committed = Committed(len(CONTENT), Facts(mtime), MUTABLE)
        assert seen(directory, committed) is Seen.UNTOUCHED
        assert committed.is_whole_in(directory.open_to_read(NAME)) is None
    change(path, 100)
    assert seen(directory, committed) is Seen.UNKNOWN
    os.truncate(path, 100)
    assert seen(directory, committed) is Seen.OTHER


def test_what_somebody_had_touched_before_ondisk_did_is_never_untouched(directory, path):
    committed = recorded(directory)
    facts = facts_of(path.stat(), committed.facts.tail, committed.facts.checksum, is_touched=True)
    assert facts == Facts(0, path.stat().st_ino, committed.facts.tail, committed.facts.checksum)
    touched = Committed(len(CONTENT), facts, MUTABLE)
    assert seen(directory, touched) is Seen.SAME_TAIL
    os.utime(path, ns=(0, 0))
    assert not touched.is_untouched(path.stat())


def test_an_inode_that_no_integer_of_the_index_can_hold_is_still_compared():
    def found(inode: int) -> os.stat_result:
        return os.stat_result((0o100644, inode, 1, 1, 0, 0, 10, 0, 0, 0))

    committed = Committed(10, Facts(1, facts_of(found(2**64 - 1), 1, 1).inode, None, None), range(0))
    assert committed.facts.inode == 2**63 - 1
    one = os.stat_result((*found(2**64 - 1)[:7], 0, 0, 0), {"st_mtime_ns": 1})
    other = os.stat_result((*found(2**64 - 2)[:7], 0, 0, 0), {"st_mtime_ns": 1})
    assert committed.is_untouched(one)
    assert not committed.is_untouched(other)
