"""Extents that are overlaid, compared with plain bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ondisk.backends.elliptics.extents import Extent, Extents
from ondisk.backends.elliptics.packets import APPEND

WRITES = st.lists(st.tuples(st.sampled_from([0, APPEND]), st.integers(0, 40), st.integers(0, 12)), max_size=30)


def extent(time, offset, size, flags=0):
    return Extent(time, b"", flags, offset, size, 0)


@given(WRITES)
def test_pieces_are_what_plain_bytes_contain(writes):
    """Each write fills its bytes with its own number."""
    extents, plain, alive = Extents(), bytearray(), {}
    covered = []
    for time, (flags, offset, size) in enumerate(writes, 1):
        offset = len(plain) if flags & APPEND else offset
        new = extent(time, offset, size, flags)
        extents.add(new)
        covered += extents.take_covered()
        if new.replaces:
            plain.clear()
            alive.clear()
        alive[time] = new
        if size:
            plain.extend(bytes(max(0, offset - len(plain))))
            plain[offset : offset + size] = bytes([time]) * size
        alive = {at: each for at, each in alive.items() if not each.size or at in plain}
        assert extents.size == len(plain)
        assert [*extents] == [*alive.values()]
        assert len(extents) == len(alive)
    assert not extents.take_covered()
    assert len(covered) + len(extents) == len(writes)
    for begin in range(0, len(plain), 3):
        for end in range(begin + 1, len(plain) + 1, 4):
            found = bytearray(end - begin)
            for piece in extents.pieces(begin, end):
                assert piece.extent.offset <= piece.begin < piece.end <= piece.extent.offset + piece.extent.size
                found[piece.begin - begin : piece.end - begin] = bytes([piece.extent.time]) * (piece.end - piece.begin)
            assert found == plain[begin:end]
            (first, *others) = extents.pieces(begin, end) or [None]
            is_only = first is not None and not others and (first.begin, first.end) == (begin, end)
            assert extents.only(begin, end) == (first.extent if is_only else None)


def test_an_extent_in_the_middle_leaves_two_pieces_of_the_older_one():
    extents = Extents([extent(1, 0, 10), extent(2, 3, 4)])
    assert [(piece.begin, piece.end, piece.extent.time) for piece in extents.pieces(0, 10)] == [
        (0, 3, 1),
        (3, 7, 2),
        (7, 10, 1),
    ]
    assert [(piece.begin, piece.end) for piece in extents.pieces(5, 8)] == [(5, 7), (7, 8)]


def test_an_extent_is_covered_when_several_later_ones_cover_it_together():
    extents = Extents([extent(1, 5, 10), extent(2, 2, 8)])
    assert extents.take_covered() == []
    extents.add(extent(3, 10, 5))
    assert extents.take_covered() == [extent(1, 5, 10)]


def test_a_write_of_nothing_replaces_an_object_and_covers_no_byte():
    extents = Extents([extent(1, 0, 5)])
    extents.add(extent(2, 3, 0))
    assert extents.size == 5
    extents.add(extent(3, 0, 0))
    assert extents.size == 0
    assert [*extents] == [extent(3, 0, 0)]
    assert not extents.pieces(0, 5)


def test_many_appends_cost_little_each():
    extents = Extents()
    for time in range(1, 50_001):
        extents.add(extent(time, extents.size, 10, APPEND))
    assert extents.size == 500_000
    assert [piece.extent.time for piece in extents.pieces(100, 120)] == [11, 12]
