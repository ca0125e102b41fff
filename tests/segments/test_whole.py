"""Whole files: bytes are compared with the checksum of their segment, and few others are read for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.segment import Facts
from ondisk.segments.file_facts import Committed, WholeFiles, checksum_of

PIECE = 128 * 1024
CONTENT = bytes(range(256)) * (5 * PIECE // 256)


class Counted:
    """A file in memory that counts the bytes that are read from it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.count = 0

    def size(self) -> int:
        return len(self.content)

    def read(self, position: int, size: int) -> bytes:
        self.count += size
        return self.content[position : position + size]


def committed(size: int, content: bytes = CONTENT) -> Committed:
    return Committed(size, Facts(checksum=checksum_of(Counted(content), size, range(4, 8))), range(4, 8))


def changed(at: int) -> bytes:
    return CONTENT[:at] + bytes([CONTENT[at] ^ 1]) + CONTENT[at + 1 :]


@pytest.fixture
def files() -> WholeFiles:
    return WholeFiles()


def test_the_first_time_all_is_read_and_then_the_pieces_with_the_wanted_bytes(files):
    file = Counted(CONTENT)
    assert files.holds(1, file, committed(3 * PIECE + 10), [(0, 10)]) is True
    assert file.count == 3 * PIECE + 10
    file.count = 0
    assert files.holds(1, file, committed(3 * PIECE + 10), [(5, 9), (9, 30), (2 * PIECE - 1, 2 * PIECE)]) is True
    assert file.count == 2 * PIECE
    file.count = 0
    assert files.holds(1, file, committed(3 * PIECE + 500), [(3 * PIECE + 10, 3 * PIECE + 500)]) is True
    assert file.count <= 1000, "what was appended"
    assert files.holds(1, file, committed(PIECE), [(0, 10)]) is True, "of an older snapshot"


@pytest.mark.parametrize("at", [0, PIECE - 1, PIECE, 2 * PIECE + 7])
def test_a_byte_that_changes_later_is_found_at_once_and_so_is_its_return(files, at):
    file = Counted(CONTENT)
    wanted = [(at, at + 1)]
    assert files.holds(1, file, committed(4 * PIECE), wanted) is True
    file.content = changed(at)
    for _ in range(2):
        assert files.holds(1, file, committed(4 * PIECE), wanted) is False
        assert files.holds(1, file, committed(5 * PIECE), wanted) is False
    file.content = CONTENT
    assert files.holds(1, file, committed(4 * PIECE), wanted) is True


def test_damage_elsewhere_is_found_at_first(files):
    assert files.holds(1, Counted(changed(3 * PIECE)), committed(4 * PIECE), [(0, 1)]) is False


def test_a_file_that_ends_early_is_not_whole(files):
    file = Counted(CONTENT)
    assert files.holds(1, file, committed(4 * PIECE), [(0, 1)]) is True
    file.content = CONTENT[: 2 * PIECE]
    assert files.holds(1, file, committed(4 * PIECE), [(3 * PIECE, 3 * PIECE + 5)]) is False


def test_another_file_under_the_same_number_is_read_as_a_whole(files):
    assert files.holds(1, Counted(CONTENT), committed(4 * PIECE), [(0, 1)]) is True
    other = changed(0)
    assert files.holds(1, Counted(other), committed(2 * PIECE, other), [(0, 1)]) is True


def test_without_a_recorded_checksum_nothing_is_read(files):
    file = Counted(CONTENT)
    assert files.holds(1, file, Committed(10_000, Facts(), range(0)), [(0, 1)]) is None
    assert file.count == 0


@given(st.lists(st.tuples(st.integers(1, 5 * PIECE), st.integers(0, 5 * PIECE - 1), st.booleans()), max_size=8))
def test_the_answer_is_that_of_the_whole_file_for_bytes_that_are_wanted(steps):
    files, file = WholeFiles(), Counted(CONTENT)
    for size, at, is_changed in sorted(steps):
        file.content = changed(at) if is_changed and at < size and at not in range(4, 8) else CONTENT
        assert files.holds(1, file, committed(size), [(at, at + 1)] if at < size else []) is (file.content is CONTENT)
