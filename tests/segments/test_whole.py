"""Whole files: a file is compared with its checksum, and what was compared is not read again for a while."""

from __future__ import annotations

import pytest

from ondisk.segment import Facts
from ondisk.segments.facts import Committed, checksum_of
from ondisk.segments.whole import WholeFiles

CONTENT = bytes(range(256)) * 40


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


def committed(content: bytes, size: int) -> Committed:
    return Committed(size, Facts(checksum=checksum_of(Counted(content), size, range(4, 8))), range(4, 8))


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def files(clock: list[float]) -> WholeFiles:
    return WholeFiles(lambda: clock[0])


def test_only_what_was_appended_is_read_again(files):
    file = Counted(CONTENT)
    assert files.has_checksum(1, file, committed(CONTENT, 10_000)) is True
    assert files.has_checksum(1, file, committed(CONTENT, 10_000)) is True
    assert files.has_checksum(1, file, committed(CONTENT, 10_100)) is True
    assert file.count == 10_100
    assert files.has_checksum(1, file, committed(CONTENT, 10_000)) is True, "of an older snapshot"
    assert files.has_checksum(2, file, committed(CONTENT, 100)) is True
    assert file.count == 20_200


def test_a_changed_byte_is_found_at_first_and_again_after_a_while(files, clock):
    changed = b"\xff" + CONTENT[1:]
    file = Counted(changed)
    assert files.has_checksum(1, file, committed(CONTENT, 10_000)) is False
    assert files.has_checksum(1, file, committed(CONTENT, 10_100)) is False
    file.content = CONTENT
    clock[0] += 700
    assert files.has_checksum(1, file, committed(CONTENT, 10_000)) is True
    file.content = changed
    clock[0] += 700
    assert files.has_checksum(1, file, committed(CONTENT, 10_000)) is False


def test_without_a_recorded_checksum_nothing_is_read(files):
    file = Counted(CONTENT)
    assert files.has_checksum(1, file, Committed(10_000, Facts(), range(0))) is None
    assert file.count == 0
