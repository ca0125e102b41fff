"""LZ4 blocks: ours can grow and are read back, every foreign kind is read, and damage is reported, never returned."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from itertools import accumulate, pairwise, product

import lz4.block
import lz4.frame
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ondisk.errors import SegmentCorrupt
from ondisk.formats.diskqueue import blocks
from ondisk.formats.diskqueue.blocks import BLOCK_SIZE, END_MARK, FRAME_HEADER, MAX_BLOCK_SIZE, BlockReader
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.payload import first_key

from . import beats_reader

START = 12


def reader(stored):
    return BlockReader(io.BytesIO(stored), START, START, first_key(Header()))


def read(stored):
    """Read all blocks: the reader, the bytes, and the context of the damage."""
    walk, data = reader(stored), []
    try:
        for block in walk:
            assert (block.position, block.offset) == (walk.position - block.stored_size, walk.offset - len(block.data))
            data.append(block.data)
    except SegmentCorrupt as error:
        return walk, b"".join(data), error.context
    return walk, b"".join(data), None


def stored(packed):
    return FRAME_HEADER + b"".join(block.stored for block in packed)


sizes = st.integers(1, 200) | st.sampled_from([BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE + 7])
frames = st.lists(sizes.map(lambda size: bytes((size % 251,)) * size), max_size=8)


def test_the_frame_header_is_what_the_library_makes_of_it():
    info = lz4.frame.get_frame_info(FRAME_HEADER)
    assert (info["block_size"], info["block_linked"], info["content_checksum"]) == (MAX_BLOCK_SIZE, False, False)


@given(st.lists(frames, max_size=3))
@example([[b"x" * BLOCK_SIZE, b"y"], [b"z"]])
def test_a_segment_grows_flush_by_flush_and_any_reader_reads_it(flushes):
    offset, packed = START, []
    for flush in flushes:
        packed += blocks.pack(flush, offset)
        offset += sum(map(len, flush))
    whole = b"".join(frame for flush in flushes for frame in flush)
    walk, data, damage = read(stored(packed))
    assert (data, damage, walk.offset, walk.continuable) == (whole, None, offset, True)
    assert walk.position == START + len(stored(packed))
    assert beats_reader.decompress(stored(packed)) == whole
    if packed:  # liblz4 calls an empty frame without end mark truncated
        assert lz4.frame.LZ4FrameDecompressor().decompress(stored(packed) + END_MARK, max_length=-1) == whole


@given(frames)
def test_blocks_know_their_place_and_each_can_be_read_alone(flush):
    packed = blocks.pack(flush, 1000)
    whole = b"".join(flush)
    assert [block.offset for block in packed] == list(accumulate((b.size for b in packed), initial=1000))[:-1]
    for block in packed:
        assert block.size <= BLOCK_SIZE
        assert blocks.unpack(block.stored) == whole[block.offset - 1000 : block.offset - 1000 + block.size]


@given(frames)
def test_a_frame_crosses_blocks_only_if_it_is_larger_and_then_has_them_for_itself(flush):
    begins = {block.offset for block in blocks.pack(flush, 0)}
    ends = list(accumulate(map(len, flush), initial=0))
    for begin, end in pairwise(ends):
        inside = [at for at in begins if begin < at < end]
        if end - begin <= BLOCK_SIZE:
            assert not inside
        else:
            assert begin in begins
            assert inside == [] or {begin + n * BLOCK_SIZE for n in range(1, len(inside) + 1)} == set(inside)
            assert end in begins or end == ends[-1]


def test_what_does_not_compress_is_stored_as_it_is():
    noise = random.Random(1).randbytes(5000)
    (block,) = blocks.pack([noise], 0)
    assert block.stored == struct.pack("<I", 5000 | 1 << 31) + noise
    assert blocks.unpack(block.stored) == noise


CONTENT = random.Random(2).randbytes(700) * 200 + bytes(500_000) + random.Random(3).randbytes(300_000)
KINDS = list(product([4, 5, 6, 7], [False, True], [False, True], [False, True], [False, True]))


@pytest.mark.parametrize(("size", "linked", "content_checksum", "block_checksum", "store_size"), KINDS)
def test_every_foreign_kind_is_read_and_not_continued(size, linked, content_checksum, block_checksum, store_size):
    foreign = lz4.frame.compress(CONTENT, block_size=size, block_linked=linked, content_checksum=content_checksum,
                                 block_checksum=block_checksum, store_size=store_size)  # fmt: skip
    walk, data, damage = read(foreign)
    assert (data == CONTENT, damage, walk.continuable) == (True, None, False)
    assert walk.position == START + len(foreign)


@pytest.mark.parametrize("linked", [False, True])
def test_a_foreign_frame_without_end_mark_is_no_damage_and_a_cut_checksum_neither(linked):
    foreign = lz4.frame.compress(CONTENT, content_checksum=True, block_linked=linked)
    for cut in (1, 2, 3, 4, 8):
        _, data, damage = read(foreign[:-cut])
        assert (data == CONTENT, damage) == (True, None)


@pytest.mark.parametrize("empty", [b"", lz4.frame.compress(b""), bytes.fromhex("00000000055dcc02"), bytes(4)])
def test_an_empty_segment_is_no_damage(empty):
    walk, data, damage = read(empty)
    assert (data, damage, walk.position, walk.continuable) == (b"", None, START + len(empty), False)


def test_a_sealed_frame_is_read_and_not_continued():
    walk, data, damage = read(stored(blocks.pack([b"frame"], START)) + END_MARK)
    assert (data, damage, walk.continuable) == (b"frame", None, False)


def test_skippable_frames_are_skipped_and_frames_in_a_row_read():
    skipped = struct.pack("<II", 0x184D2A5F, 3_000_000) + bytes(3_000_000)
    walk, data, damage = read(skipped + lz4.frame.compress(b"one") + skipped + lz4.frame.compress(b"two"))
    assert (data, damage, walk.continuable) == (b"onetwo", None, False)
    assert read(skipped[:-1])[2]["torn"]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_anywhere_returns_every_whole_block_and_is_torn(sealed):
    packed = blocks.pack([b"a" * 70_000, b"b" * 10], START) + blocks.pack([b"c" * 300], START + 70_010)
    whole = stored(packed) + END_MARK * sealed
    ends = list(accumulate((len(block.stored) for block in packed), initial=len(FRAME_HEADER)))
    for cut in range(len(whole)):
        walk, data, damage = read(whole[:cut])
        good = sum(end <= cut for end in ends[1:])
        assert len(data) == sum(block.size for block in packed[:good])
        at_edge = cut in (0, *ends)
        assert (damage is None) == at_edge
        if damage:
            assert damage["torn"]
            assert damage["offset"] == walk.position == START + max([0, *(end for end in ends if end <= cut)])
        assert walk.continuable == (cut >= len(FRAME_HEADER))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x05\x22\x4d\x18\x60\x40\x82", "no LZ4 frame begins with 05 22 4d 18"),
        (b"\x04\x22\x4d\x18\x60\x40\x83", "headerChecksum_invalid"),
        (b"\x04\x22\x4d\x18\x20\x40\x00", "headerVersion_wrong"),
        (b"\x04\x22\x4d\x18\x61\x40" + bytes(5), "dictionary"),
        (FRAME_HEADER + struct.pack("<I", MAX_BLOCK_SIZE + 1) + bytes(100), "65537, is more than the 65536"),
        (FRAME_HEADER + struct.pack("<I", MAX_BLOCK_SIZE + 1 | 1 << 31) + bytes(100), "65537, is more than"),
        (FRAME_HEADER + struct.pack("<I", 5) + b"\xff" * 5, "cannot be decompressed"),
        (FRAME_HEADER + END_MARK + b"more", "no LZ4 frame begins with 6d 6f 72 65"),
        (bytes.fromhex("00000000055dcc03"), "no LZ4 frame begins"),
    ],
)
def test_damage_says_what_is_wrong(data, reason):
    _, _, damage = read(data)
    assert reason in damage["reason"]
    assert not damage["torn"]


def test_a_block_that_grows_beyond_the_maximum_is_damage():
    bomb = lz4.block.compress(bytes(MAX_BLOCK_SIZE + 1), store_size=False)
    _, data, damage = read(FRAME_HEADER + struct.pack("<I", len(bomb)) + bomb)
    assert (data, "cannot be decompressed" in damage["reason"]) == (b"", True)


@pytest.mark.each
@pytest.mark.parametrize("data", [b"", b"\x01\x00\x00\x00", struct.pack("<I", 5) + b"1234", bytes(4) + b"x",
                                  struct.pack("<I", 4) + b"\xff" * 4])  # fmt: skip
def test_what_is_no_block_is_damage(data):
    with pytest.raises(SegmentCorrupt, match="not a block"):
        blocks.unpack(data)


@given(st.binary(max_size=100), st.sampled_from([b"", FRAME_HEADER, lz4.frame.compress(b"x" * 50)[:-8]]))
def test_arbitrary_bytes_end_in_documented_damage(data, begin):
    walk, _, damage = read(begin + data)
    assert START <= walk.position <= START + len(begin + data)
    assert (damage is None) == (walk.position == START + len(begin + data))


@pytest.mark.check
def test_a_bomb_of_256_mib_takes_the_memory_of_a_block():
    content = bytes(1 << 20)
    with lz4.frame.LZ4FrameCompressor(block_size=7, block_linked=True) as compressor:
        bomb = compressor.begin() + b"".join(compressor.compress(content) for _ in range(256)) + compressor.flush()
    tracemalloc.start()
    size = sum(len(block.data) for block in reader(bomb))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 256 << 20
    assert peak < 20 << 20
