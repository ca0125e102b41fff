"""The header: what is read, what is refused by name, what is written."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import InvalidInput, OndiskError, SegmentCorrupt
from ondisk.formats.diskqueue.header import COUNT, COUNT_OFFSET, LZ4, Header


@pytest.mark.parametrize("options", [0, LZ4])
def test_version_2_comes_back_as_it_was_written(options):
    header = Header(frame_count=7, options=options)
    assert header.pack() == struct.pack("<III", 2, 7, options)
    assert Header.parse(header.pack() + b"more") == header
    assert (header.size, header.compressed) == (12, options == LZ4)


def test_version_1_is_read_and_not_written():
    header = Header.parse(struct.pack("<II", 1, 5))
    assert (header.version, header.frame_count, header.size, header.compressed) == (1, 5, 8, False)
    with pytest.raises(InvalidInput, match="cannot write a segment of version 1"):
        header.pack()


def test_the_frame_count_can_be_overwritten_in_place():
    packed = bytearray(Header(frame_count=1).pack())
    COUNT.pack_into(packed, COUNT_OFFSET, 99)
    assert Header.parse(bytes(packed)).frame_count == 99


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((0,), "version 0"),
        ((3, 0, 0), "version 3 .a draft"),
        ((4, 0, 0), "version 4"),
        ((2, 1, 1), "encryption"),
        ((2, 1, 4), "protobuf"),
        ((2, 1, 7), "encryption .*, protobuf"),
        ((2, 1, 0x80000002), "unknown options 0x80000000"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(words, name):
    with pytest.raises(InvalidInput, match=f"not supported yet: .*{name}") as caught:
        Header.parse(struct.pack(f"<{len(words)}I", *words))
    assert caught.value.hint


@pytest.mark.parametrize("size", range(12))
def test_a_cut_header_is_damage(size):
    with pytest.raises(SegmentCorrupt, match=f"after {size} of"):
        Header.parse(Header(frame_count=1).pack()[:size])


@given(st.binary(max_size=20))
def test_arbitrary_bytes_are_a_header_or_refused(data):
    try:
        header = Header.parse(data)
    except OndiskError:
        return
    assert header.version == 1 or header.pack() == data[:12]
