"""Frames are read back as written; damage is found, reported and never read as data."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import accumulate

import pytest
from formats.diskqueue import beats_reader
from hypothesis import given
from hypothesis import strategies as st

from ondisk import frame
from ondisk.errors import FrameCorrupt, InvalidInput
from ondisk.formats.diskqueue.cbor_payload import FIRST_KEY

KEY = frame.FirstKey(FIRST_KEY)
MAX = 10_000
payloads = st.lists(st.binary(min_size=1, max_size=60), max_size=6)


def joined(*contents):
    return b"".join(frame.encode(contents))


@given(payloads, st.integers(0, 2**40))
def test_frames_come_back_with_their_offsets(contents, base):
    frames = frame.encode(contents)
    scanned = frame.scan(b"".join(frames), max_size=MAX, base=base)
    assert scanned.payloads == contents
    ends = list(accumulate(map(len, frames), initial=base))
    assert scanned.offsets == ends[:-1]
    assert (scanned.end, scanned.damage) == (ends[-1], None)
    assert beats_reader.frames(b"".join(frames)) == contents
    assert [frame.decode(one) for one in frames] == contents


def test_a_frame_of_exactly_the_largest_size_is_whole_and_one_byte_more_is_damage():
    content = b"\xa2" + FIRST_KEY + bytes(40)
    whole = joined(content)
    size = len(whole)
    for limit, is_allowed in ((size, True), (size - 1, False)):
        assert frame.scan(whole, max_size=limit).payloads == [content] * is_allowed
        assert frame.is_whole(whole, 0, limit) is is_allowed
        assert frame.has_two_lengths(whole, limit) is is_allowed
        assert frame.walk_back(whole, max_size=limit) == (0 if is_allowed else size)
        assert frame.find_whole(b"torn" + whole, KEY, max_size=limit) == (4 if is_allowed else None)


@pytest.mark.parametrize("contents", [[b""], [b"x", b""]])
def test_an_empty_payload_is_refused(contents):
    with pytest.raises(InvalidInput, match="0 bytes"):
        frame.encode(contents)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4), st.data())
def test_a_cut_anywhere_leaves_the_whole_frames_and_is_torn(contents, data):
    frames = frame.encode(contents)
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole) - 1))
    scanned = frame.scan(whole[:cut], max_size=MAX)
    good = sum(end <= cut for end in accumulate(map(len, frames)))
    assert scanned.payloads == contents[:good]
    if cut == scanned.end:
        assert scanned.damage is None
    else:
        assert scanned.damage.offset == scanned.end
        assert scanned.damage.torn


def test_a_flip_of_any_bit_is_found_and_nothing_wrong_is_read():
    contents = [b"first", b"second one", b"third"]
    whole = joined(*contents)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        scanned = frame.scan(bytes(flipped), max_size=MAX)
        assert scanned.damage is not None
        assert scanned.payloads == contents[: len(scanned.payloads)]
        assert scanned.damage.offset == scanned.end <= bit // 8


@pytest.mark.parametrize(
    ("data", "reason", "torn"),
    [
        (b"\x01\x02", "after 2 bytes of a frame's length", True),
        (struct.pack("<I", 12) + bytes(8), "cannot be 12", False),
        (struct.pack("<I", 0) + bytes(20), "cannot be 0", False),
        (struct.pack("<I", MAX + 1) + bytes(20), "more than the 10000 allowed", False),
        (struct.pack("<I", 100) + bytes(20), "after 24 of a frame's 100 bytes", True),
        (joined(b"abc")[:-1] + b"\x01", "15 at its beginning and", False),
        (joined(b"abc").replace(b"b", b"B"), "checksum is 0x", False),
    ],
)
def test_damage_says_what_is_wrong(data, reason, torn):
    scanned = frame.scan(joined(b"good") + data, max_size=MAX)
    assert scanned.payloads == [b"good"]
    assert reason in scanned.damage.reason
    assert (scanned.damage.offset, scanned.damage.torn) == (16, torn)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data):
    scanned = frame.scan(data, max_size=MAX)
    assert (scanned.damage is None) == (scanned.end == len(data))
    assert 0 <= frame.walk_back(data, max_size=MAX) <= len(data)
    frame.find_whole(data, KEY, max_size=MAX)


@pytest.mark.parametrize("data", [b"", b"short", joined(b"a") + joined(b"b"), joined(b"a")[:-1]])
def test_what_is_not_exactly_one_frame_is_corrupt(data):
    with pytest.raises(FrameCorrupt, match="fails its checks"):
        frame.decode(data)


def test_a_length_that_lies_takes_no_memory():
    data = struct.pack("<I", 2**32 - 1) + bytes(100)
    tracemalloc.start()
    frame.scan(data, max_size=2**32 - 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_the_way_back_stops_at_damage():
    good, tail = joined(b"one"), joined(b"two", b"three")
    assert frame.walk_back(good + b"damage" + tail, max_size=MAX) == len(good) + 6
    assert frame.walk_back(good + tail, max_size=MAX) == 0
    assert frame.walk_back((good + tail)[4:], max_size=MAX) == len(good) - 4
    assert frame.walk_back(good + tail[:-1], max_size=MAX) == len(good + tail) - 1


event = b"\xa4\x69timestamp\x00 and so on"


@pytest.mark.parametrize("cut", [1, 5, 20, len(joined(event)) - 1])
def test_a_torn_tail_holds_no_whole_frame(cut):
    data = joined(event) + joined(event)[:cut]
    assert frame.find_whole(data[len(joined(event)) :], KEY, max_size=MAX) is None


def test_whole_frames_behind_damage_are_found():
    damage = joined(event).replace(b"so", b"no")
    assert frame.find_whole(damage + joined(event, event), KEY, max_size=MAX) == len(damage)


def test_a_whole_frame_between_damage_and_a_torn_tail_is_found():
    damage, torn = joined(event).replace(b"so", b"no"), joined(event)[:-3]
    assert frame.find_whole(damage + joined(event) + torn, KEY, max_size=MAX) == len(damage)


def test_a_payload_that_is_too_large_for_a_frame_is_refused():
    class Large(bytes):
        def __len__(self):
            return 2**32 - frame.OVERHEAD

    with pytest.raises(InvalidInput, match="4294967284 bytes does not fit into a frame"):
        frame.encode([b"small", Large()])
