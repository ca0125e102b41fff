"""Frames become batches, from any place on; a file that still grows is not damaged."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from formats.diskqueue.segments import write
from hypothesis import given
from hypothesis import strategies as st

from ondisk.config import DatasetConfig
from ondisk.formats.diskqueue import header
from ondisk.formats.diskqueue.frame_reader import Place, batches, walk
from ondisk.formats.diskqueue.payload import Event
from ondisk.formats.diskqueue.seg import Seg

SEG = Seg(DatasetConfig.from_mapping({"step": "daily"}))
EVENTS = [Event(10**18 + at, 0, {"station": at}, {"text": "x" * (at * 7 % 50)}) for at in range(30)]
START = Place()
KINDS = pytest.mark.parametrize("options", [0, header.LZ4])


def segment(options: int, events: list[Event] = EVENTS, flush: int = 7) -> bytes:
    return write([events[at : at + flush] for at in range(0, len(events), flush)], options)


def open_at(content: bytes, place: Place = START):
    """Return a reader of what follows a place, which it has walked to from the beginning."""
    frames = SEG.frames(io.BytesIO(content))
    assert place == START or walk(frames, place.end)[1] == "exact"
    return frames


def read(content: bytes, batch_size: int = 1000, place: Place = START, *, growing: bool = False):
    """Read what follows a place; return the frames, the damage, and the place after them."""
    payloads, damage = [], []
    for batch, after in batches(open_at(content, place), SEG.add, batch_size, place, growing=growing):
        assert len(batch) <= batch_size
        payloads += batch.payloads
        damage += batch.damage
        place = after
    return payloads, damage, place


def same_frames(one: Place, other: Place) -> bool:
    """Return whether the first and the last frame are the same; whatever follows them."""
    return replace(one, offset=0, size=0) == replace(other, offset=0, size=0)


WHOLE = read(segment(0))[0]


@KINDS
@given(st.integers(1, 40), st.data())
def test_a_file_that_grows_is_read_in_pieces_and_nothing_twice(options, batch_size, data):
    content = segment(options)
    cuts = sorted(data.draw(st.sets(st.integers(header.SIZE, len(content)), max_size=6)))
    seen, place = [], START
    for cut in [*cuts, len(content)]:
        payloads, damage, place = read(content[:cut], batch_size, place, growing=True)
        assert damage == []
        seen += payloads
        assert place.frames == len(seen)
    assert seen == WHOLE


@KINDS
def test_every_batch_has_the_place_after_it(options):
    content = segment(options)
    for batch, place in batches(open_at(content), SEG.add, 4, START):
        rest, _, last = read(content, place=place)
        assert rest == WHOLE[place.frames :]
        assert same_frames(last, read(content)[2])
        assert batch.payloads[-1] == WHOLE[place.frames - 1]


@KINDS
def test_a_cut_frame_is_damage_of_a_finished_file_and_reported_once(options):
    content = segment(options)[:-3]
    payloads, damage, place = read(content)
    assert (len(payloads), len(damage)) == (place.frames, 1)
    assert place.offset > place.end
    assert read(content, place=place) == ([], [], place)


@KINDS
def test_damage_in_the_middle_of_a_growing_file_is_reported_once(options):
    content = bytearray(segment(options, flush=1))
    content[len(content) // 2] ^= 1
    payloads, damage, place = read(bytes(content), growing=True)
    assert (len(payloads), len(damage)) == (len(EVENTS) - 1, 1)
    assert payloads[-1] == WHOLE[-1]
    frames = SEG.frames(io.BytesIO(content))
    assert walk(frames, place.end) == (place, "exact")


def test_zeros_at_the_end_of_a_growing_file_may_still_be_written():
    payloads, damage, place = read(segment(0) + bytes(100), growing=True)
    assert (len(payloads), damage, place.offset) == (30, [], place.end)
    assert len(read(segment(0) + bytes(100))[1]) == 1


@KINDS
def test_a_walk_says_what_is_at_the_offset(options):
    content = segment(options, flush=1)
    ends = [place.end for _, place in batches(open_at(content), SEG.add, 1, START)]
    for count, end in enumerate(ends, 1):
        place, walked = walk(open_at(content), end)
        assert (place.frames, place.end, walked) == (count, end, "exact")
    assert walk(open_at(content), ends[5] + 1)[1] == "across"
    assert walk(open_at(content), ends[-1] + 1)[1] == "short"
    assert walk(open_at(content[:-3]), ends[-1])[1] == "short"
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    assert [walk(open_at(bytes(damaged)), end)[1] for end in ends].count("damaged") == 1


def test_another_file_has_other_frames():
    _, _, place = read(segment(0))
    others = [Event(each.timestamp + 1, 0, each.meta, each.data) for each in EVENTS]
    for content in (segment(0, others), segment(0, [*EVENTS[:-1], others[-1]]), segment(0, [others[0], *EVENTS[1:]])):
        found, walked = walk(open_at(content), place.end)
        assert (walked, same_frames(found, place)) == ("exact", False)
    assert same_frames(walk(open_at(segment(0)), place.end)[0], place)
