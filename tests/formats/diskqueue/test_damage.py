"""Damage in a segment takes only the frames or the blocks that it touches, and nothing else is read as a datum."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise

import lz4.frame
import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st

from ondisk import Datum, frame
from ondisk.errors import InvalidInput
from ondisk.formats.diskqueue import blocks, frame_reader
from ondisk.formats.diskqueue.cbor_payload import FIRST_KEY
from ondisk.segment import End

from .test_seg import HEADERS, Stored, framed, make, parsed, whole

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
FORMATS = {"none": make(compression="none", fields={}), "lz4": make(compression="lz4", fields={})}
SIZES = [10, 200, 30, 0, 400, 64, 64, 64, 5, 90]


def written(compression, data, together=1):
    """Return a segment, its frames, and where each block (in a plain one, each frame) is in the file."""
    format = FORMATS[compression]
    file, frames = Stored(), format.encode(data).payloads
    laid = format.begin()
    file.begin(laid)
    end, places = laid.end, []
    for at in range(0, len(frames), together):
        laid = file.append(format, frames[at : at + together], end)
        places += laid.blocks
        end = laid.end
    if compression == "none":
        bounds = accumulate(map(len, frames), initial=12)
        return file.content, frames, [(begin, stop, 1) for begin, stop in pairwise(bounds)]
    counts = [len(frame.scan(format.unpack(file.read(each.position, each.stored)), max_size=10**9).payloads)
              for each in places]  # fmt: skip
    return (
        file.content,
        frames,
        [(each.position, each.position + each.stored, count) for each, count in zip(places, counts, strict=True)],
    )


def some(sizes=SIZES):
    return [Datum(T + timedelta(seconds=n), {"n": n}, {"x": bytes(range(256)) * 2 * (size > 0) + os.urandom(size)})
            for n, size in enumerate(sizes)]  # fmt: skip


def bytes_of(damage):
    return {place for each in damage for place in range(each.offset, each.offset + each.size)}


def once(compression, frames):
    """Return frames without those that damage has repeated: LZ4 copies bytes, and may copy a frame once more.

    The index knows the size of each block, so a query returns none of them. Without it, nothing shows them.
    """
    return [*dict.fromkeys(frames)] if compression == "lz4" else frames


def read(compression, content):
    """Return the frames that a scan finds at their places, and its damage; a parse finds the same."""
    format = FORMATS[compression]
    found = [*format.scan(Stored(content))]
    assert not any(each.foreign for each in found)
    data = content
    if compression == "lz4":
        data = bytearray(12)
        for block in (block for each in found for block in each.blocks):
            assert block.offset >= len(data)
            data += bytes(block.offset - len(data))  # what was read in part before damage
            data += format.unpack(content[block.position : block.position + block.stored])
    frames = [bytes(data[offset : offset + size]) for each in found
              for offset, size in zip(each.offsets, each.sizes, strict=True)]  # fmt: skip
    damage = [each for result in found for each in result.damage]
    batch = whole(parsed(format, content))
    assert batch.payloads == frames
    assert bytes_of(damage) <= bytes_of(batch.damage)  # where blocks and frames are damaged, they may overlap
    return once(compression, frames), damage, found[-1].missing


def lost(frames, kept):
    """Return the numbers of the frames that are not kept; what is kept is in order, and nothing else."""
    assert set(kept) <= set(frames)
    numbers = [frames.index(each) for each in kept]
    assert numbers == sorted(set(numbers))
    return sorted({*range(len(frames))}.difference(numbers))


def flipped(content, byte, mask):
    return content[:byte] + bytes((content[byte] ^ mask,)) + content[byte + 1 :]


def numbers_of(places, byte):
    """Return the numbers of the frames that are in the same block as a byte."""
    first = 0
    for begin, end, count in places:
        if begin <= byte < end:
            return {*range(first, first + count)}
        first += count
    return set()


@pytest.mark.parametrize("name", ["plain", "lz4", "lz4, compressible"])
@given(st.data())
@settings(max_examples=up_to(60))
def test_whatever_bytes_are_in_a_hole_nothing_wrong_is_read(name, drawn):
    compression, (content, frames, _) = CASES[name]
    begin = drawn.draw(st.integers(0, len(content) - 1))
    noise = drawn.draw(st.binary(min_size=1, max_size=300))
    damaged = (content[:begin] + noise + content[begin + len(noise) :])[: len(content)]
    found = [*whole_frames(compression, damaged)]
    assert len(lost(frames, found)) == len(frames) - len(found)


def whole_frames(compression, content):
    with contextlib.suppress(InvalidInput):  # another version
        return once(compression, map(bytes, whole(parsed(FORMATS[compression], content)).payloads))
    return []


PLAIN = written("none", some())
BLOCKS = written("lz4", some(), together=2)
COMPRESSIBLE = written("lz4", [Datum(T, {"n": n}, {"x": "wind " * 40}) for n in range(9)], together=3)
CASES = {"plain": ("none", PLAIN), "lz4": ("lz4", BLOCKS), "lz4, compressible": ("lz4", COMPRESSIBLE)}


@pytest.mark.check
@pytest.mark.parametrize("name", CASES)
@given(st.data())
@settings(max_examples=up_to(100))
def test_a_flip_of_any_byte_takes_only_the_frame_or_the_block_it_is_in(name, drawn):
    compression, (content, frames, places) = CASES[name]
    byte, mask = drawn.draw(st.integers(12, len(content) - 1)), drawn.draw(st.integers(1, 255))
    kept, damage, missing = read(compression, flipped(content, byte, mask))
    gone = lost(frames, kept)
    assert set(gone) <= numbers_of(places, byte)
    assert len(damage) + missing >= bool(gone)
    assert len(damage) <= len(numbers_of(places, byte)) + (byte < 19)
    if compression == "none" and gone and gone != [len(frames) - 1]:
        ((offset, end),) = [(each.offset, each.offset + each.size) for each in damage]
        assert (offset, end) == places[gone[0]][:2]


@pytest.mark.parametrize("name", CASES)
def test_a_flip_of_any_bit_of_a_length_or_of_the_lz4_header(name):
    compression, (content, frames, places) = CASES[name]
    at = [*range(12, len(HEADERS[compression]))]
    for begin, end, _ in places:
        at += [*range(begin, begin + 4), *(range(end - 4, end) if compression == "none" else ())]
    for byte in at:
        for bit in range(8):
            kept, *_ = read(compression, flipped(content, byte, 1 << bit))
            assert set(lost(frames, kept)) <= numbers_of(places, byte), (byte, bit)


@pytest.mark.parametrize("name", CASES)
@given(st.data())
@settings(max_examples=up_to(60))
def test_several_holes_take_only_what_they_touch(name, drawn):
    """Of a plain segment; the blocks of a hole may take more, because zeros look like the end of an LZ4 frame."""
    compression, (content, frames, places) = CASES[name]
    damaged, touched = bytearray(content), set()
    for _ in range(drawn.draw(st.integers(1, 3))):
        begin = drawn.draw(st.integers(len(HEADERS[compression]), len(content) - 1))
        end = drawn.draw(st.integers(begin + 1, min(begin + 700, len(content))))
        # Other bytes could be the length of a torn frame that ends after the file: then its data are not searched.
        damaged[begin:end] = drawn.draw(st.sampled_from([b"\0", b"\xff", b"\xa5"])) * (end - begin)
        for place in places:
            if place[0] < end and begin < place[1]:
                touched |= numbers_of(places, place[0])
    kept, damage, missing = read(compression, bytes(damaged))
    gone = set(lost(frames, kept))
    assert gone <= touched
    assert not gone or damage or missing


@pytest.mark.check
def test_a_stored_block_whose_size_takes_in_others_leaves_them_their_frames():
    data = [Datum(T + timedelta(seconds=n), {}, os.urandom(100)) for n in range(40)]
    content, frames, places = written("lz4", data)
    for number, (begin, _, _) in enumerate(places):
        for bit in range(16):
            kept, damage, missing = read("lz4", flipped(content, begin + bit // 8, 1 << bit % 8))
            gone = lost(frames, kept)
            assert len(gone) <= 1, (number, bit)
            assert set(gone) <= {number}
            assert damage or missing


def embedded(sizes):
    """Data that contain whole segments, plain ones and ones with blocks, as bytes."""
    inner = [written(each, some([30, 40, 50]))[0] for each in ("none", "lz4")]
    contents = [inner[n % 2] * 3 if size else b"x" for n, size in enumerate(sizes)]
    return [Datum(T + timedelta(seconds=n), {"n": n}, each) for n, each in enumerate(contents)]


@pytest.mark.check
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_frames_in_the_data_of_a_damaged_frame_are_no_data(compression):
    content, frames, places = written(compression, embedded([1, 1, 0, 1, 1, 0]))
    for begin, end, _ in places:
        for byte in (*range(begin, begin + 20), *range(end - 8, end)):
            for mask in (1, 0x80, 0xFF):
                kept, *_ = read(compression, flipped(content, byte, mask))
                assert set(lost(frames, kept)) <= numbers_of(places, byte)
        for size in (4, 30):  # its first length and more are lost
            damaged = content[:begin] + bytes(size) + content[begin + size :]
            lost(frames, read(compression, damaged)[0])


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_frames_in_the_data_of_a_torn_frame_are_no_data(compression):
    content, frames, places = written(compression, embedded([1, 0, 1, 1]))
    for size in range(places[-1][0], len(content), 7):
        assert lost(frames, read(compression, content[:size])[0]) == [3]


@pytest.mark.check
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("size", [40_000, 150_000, 1_500_000])
def test_large_frames_around_damage_are_found(compression, size):
    data = [Datum(T + timedelta(seconds=n), {}, os.urandom(size if n % 2 else 50)) for n in range(8)]
    content, frames, _ = written(compression, data)
    for number in range(6):
        at = content.index(frames[number][:40])
        for byte in (at, at + 2, at + len(frames[number]) // 2):
            kept, damage, _ = read(compression, flipped(content, byte, 0x41))
            assert lost(frames, kept) == [number], (number, byte - at)
            assert damage


@pytest.mark.check
def test_frames_of_beats_that_cross_blocks_are_found_after_a_damaged_block():
    noise = random.Random(1)
    frames = FORMATS["none"].encode([Datum(T, {"n": n}, {"x": noise.randbytes(5_000)}) for n in range(400)]).payloads
    body = lz4.frame.compress(b"".join(frames), block_size=5, block_linked=False, content_checksum=True,
                              store_size=False)  # fmt: skip
    content = struct.pack("<III", 2, 400, 2) + body
    second = 19 + 4 + (struct.unpack_from("<I", content, 19)[0] & 0x7FFFFFFF)
    for byte, mask in ((second + 2, 1), (second + 3, 0x80), (second, 0xFF)):
        found = whole(parsed(FORMATS["lz4"], flipped(content, byte, mask)))
        gone = lost(frames, found.payloads)
        assert len(gone) > 0
        assert len(gone) < 100  # about as many as in a block
        assert found.damage


@pytest.mark.check
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_many_damaged_frames_of_one_file_are_all_passed_over(compression):
    content, frames, places = written(compression, some([0] * 2000))
    damaged = bytearray(content)
    for begin, _, _ in places[::2]:
        damaged[begin + 1] ^= 0x10
    kept, damage, _ = read(compression, bytes(damaged))
    gone = lost(frames, kept)
    assert len(damage) >= 500
    if compression == "none":
        assert gone == [*range(0, 2000, 2)]
    else:  # a size that takes the next damaged one with it hides where that was
        assert len(gone) < 1200


def hostile(kind, size):
    """Bytes that look like the beginnings of many frames or blocks."""
    match kind:
        case "keys":
            return FIRST_KEY * (size // len(FIRST_KEY))
        case "lengths":  # each frame seems to end at one of the lengths at the end
            count = size // 40
            begins, ends = bytearray(), bytearray()
            for n in range(count):
                length = 20 * count - 20 * n + 4 * (n + 1)
                begins += struct.pack("<I", length) + b"\xa4" + FIRST_KEY + bytes(5)
                ends += struct.pack("<I", length)
            return bytes(begins + ends)
        case "blocks":
            packed = blocks.pack([framed(b"\xa4" + FIRST_KEY + bytes(30_000))], 12)[0].stored
            return (packed[:30] + b"\xff" * 2) * (size // 32)
        case _:
            return random.Random(1).randbytes(size)


@pytest.mark.check
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("kind", ["keys", "lengths", "blocks", "noise"])
def test_hostile_bytes_take_time_and_memory_as_their_size(compression, kind, monkeypatch):
    monkeypatch.setattr(frame_reader, "_MUCH", 1024 * 1024)
    content, frames, _ = written(compression, some())
    took = []
    for size in (300_000, 3_000_000):
        damaged = content + hostile(kind, size) + content[len(HEADERS[compression]) :]
        began = time.process_time()
        for _ in FORMATS[compression].scan(Stored(damaged)):
            pass
        took.append(time.process_time() - began)
    assert took[1] < 30 * max(took[0], 0.1)
    damaged = content + hostile(kind, 300_000) + content[len(HEADERS[compression]) :]
    tracemalloc.start()
    found = [each for result in FORMATS[compression].scan(Stored(damaged)) for each in result.sizes]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[: len(frames)] == [*map(len, frames)]
    assert peak < 20_000_000


def test_a_hole_larger_than_all_that_is_held_is_passed_over(monkeypatch):
    monkeypatch.setattr(frame_reader, "_BELIEVED", 100_000)
    content, frames, places = PLAIN
    begin, end = places[3][0] + 7, places[4][0] + 9
    damaged = content[:begin] + bytes(3_000_000) + content[end:]
    kept, damage, _ = read("none", damaged)
    assert lost(frames, kept) == [3, 4]
    assert [(each.offset, each.size) for each in damage] == [
        (places[3][0], 3_000_000 - (end - begin) + places[4][1] - places[3][0])
    ]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_where_damage_is_skipped_the_end_is_that_of_the_file(compression):
    content, _, places = CASES["plain" if compression == "none" else "lz4"][1]
    damaged = flipped(content, places[1][0] + 1, 0x10)
    *_, last = FORMATS[compression].scan(Stored(damaged))
    assert last.end.size == len(content)
    assert last.end != End()


@pytest.mark.check
def test_what_is_left_after_too_much_damage_is_counted_without_memory_for_each_block(monkeypatch):
    monkeypatch.setattr(frame_reader, "_PASSED", 0)
    content, frames, places = written("lz4", some(), together=2)
    (tiny,) = blocks.pack([b"\xa4"], 12)
    count = 90_000
    damaged = Stored(content[: places[2][0]] + tiny.stored * count)
    tracemalloc.start()
    results = [*FORMATS["lz4"].scan(damaged)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25_000_000
    kept = [size for result in results for size in result.sizes]
    assert kept == [len(each) for each in frames[: len(kept)]]
    (damage,) = (each for result in results for each in result.damage)
    assert damage.size == count
    assert [block.position for result in results for block in result.blocks] == [begin for begin, *_ in places[:2]]
