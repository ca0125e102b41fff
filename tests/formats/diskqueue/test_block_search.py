"""The next block after damage is found by its frames, and a block in the data of a damaged one is not taken for it."""

from __future__ import annotations

import os
import struct
from datetime import UTC, datetime

import pytest

from ondisk import Datum
from ondisk.formats.diskqueue import blocks
from ondisk.formats.diskqueue.block_search import BlockSearch, has_other_bytes
from ondisk.formats.diskqueue.cbor_payload import FIRST_KEY
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.payload import first_key

from .test_seg import make

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
LIMIT = blocks.MAX_BLOCK_SIZE
FRAMES = make(fields={}).encode([Datum(T, {"n": n}, os.urandom(size)) for n, size in enumerate((50, 90, 20, 300))])
STORED = [blocks.pack([each], 12)[0].stored for each in FRAMES.payloads]


def find(raw, *, is_torn=False, header=0, is_first=True):
    search = BlockSearch(LIMIT, 0, 10_000, first_key(Header()), is_torn=is_torn)
    return search.find(raw, header=header, is_end=True, is_first=is_first)


@pytest.mark.parametrize("damage", [b"", b"\xff", b"\0" * 9000, os.urandom(70_000)], ids=len)
def test_the_next_block_is_found_after_any_bytes(damage):
    raw = b"\xff\xff\xff\xff" + damage + STORED[0] + STORED[1]
    assert find(raw) == 4 + len(damage)


def test_the_block_that_the_size_says_is_next_is_found_even_without_a_whole_frame():
    large = make(fields={}).encode([Datum(T, {}, os.urandom(100_000))]).payloads
    packed = [each.stored for each in blocks.pack(large, 12)]
    damaged = packed[0][:4] + bytes(len(packed[0]) - 4)
    assert find(damaged + packed[1] + packed[2]) == len(damaged)
    assert find(damaged) == len(damaged)
    assert find(damaged + blocks.END_MARK) == len(damaged)


def test_if_only_a_size_is_wrong_blocks_in_the_data_are_skipped():
    (outer,) = make(fields={}).encode([Datum(T, {}, STORED[0] + STORED[1] + os.urandom(99))]).payloads
    wrong = struct.pack("<I", 60_000) + outer
    assert find(wrong + STORED[2] + STORED[3]) == len(wrong)


def test_blocks_in_the_data_of_a_torn_block_are_not_found():
    (outer,) = make(fields={}).encode([Datum(T, {}, STORED[0] + STORED[1] + os.urandom(99))]).payloads
    torn = struct.pack("<I", len(outer) | 1 << 31) + outer[:-9]
    assert find(torn, is_torn=True) is None
    assert find(torn + STORED[2], is_torn=True) == len(torn)


def test_nothing_is_found_where_nothing_is_whole():
    assert find(b"\xff" * 1000) is None
    assert find(b"") is None
    assert find(STORED[0][:-1]) is None


def test_after_a_damaged_header_the_first_block_follows():
    assert find(b"\x04\x22\x4d\x19\x60\x40\x82" + STORED[0], header=7) == 7


@pytest.mark.parametrize("more", range(1, len(STORED[2])))
def test_a_stored_block_that_takes_bytes_of_the_next_has_other_bytes(more):
    assert has_other_bytes(FRAMES.payloads[0] + FRAMES.payloads[1] + STORED[2][:more], LIMIT, FIRST_KEY)


def test_a_whole_block_has_no_other_bytes_nor_has_a_part_of_a_large_frame():
    assert not has_other_bytes(b"".join(FRAMES.payloads), LIMIT, FIRST_KEY)
    assert not has_other_bytes(FRAMES.payloads[3][:200], LIMIT, FIRST_KEY)
    assert not has_other_bytes(b"", LIMIT, FIRST_KEY)
