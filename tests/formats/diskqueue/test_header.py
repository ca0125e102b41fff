"""The header: what is read, what is refused by name, what is written."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import InvalidInput, OndiskError, SegmentCorrupt
from ondisk.formats.diskqueue.header import COUNT, COUNT_OFFSET, ENCRYPTION, LZ4, ONDISK, PROTOBUF, Header

IV, DIGEST = bytes(range(16)), bytes(range(16, 32))


@pytest.mark.parametrize(
    ("header", "packed", "sizes"),
    [
        (Header(0), struct.pack("<I", 0), (4, 4)),
        (Header(1, 5), struct.pack("<II", 1, 5), (8, 8)),
        (Header(2, 7), struct.pack("<III", 2, 7, 0), (12, 12)),
        (Header(2, 7, LZ4 | PROTOBUF), struct.pack("<III", 2, 7, 6), (12, 12)),
        (Header(2, 7, ENCRYPTION | LZ4, iv=IV), struct.pack("<III", 2, 7, 3) + IV, (28, 12)),
        (Header(2, draft=True, iv=IV), struct.pack("<I", 2) + IV, (20, 4)),
        (Header(3, draft=True, iv=IV), struct.pack("<I", 3) + IV, (20, 4)),
        (Header(ONDISK, 9, ENCRYPTION, iv=IV, digest=DIGEST), struct.pack("<III", 256, 9, 1) + IV + DIGEST, (44, 44)),
    ],
)
def test_a_header_of_each_version_comes_back_as_it_was_written(header, packed, sizes):
    assert header.pack() == packed
    assert (header.size, header.logical_size) == sizes
    assert Header.parse(packed + b"more", draft=header.draft) == header
    assert header.compressed == bool(header.options & LZ4)
    assert header.encrypted == bool(header.iv)
    alike = Header.of_kind(header.kind)
    assert (alike.kind, alike.size, alike.compressed) == (header.kind, header.size, False)
    assert alike == replace(header, frame_count=0, options=header.options & ~LZ4, iv=b"", digest=b"")
    assert header.counted == (header.version > 0 and not header.draft)
    for size in range(len(packed)):
        with pytest.raises(SegmentCorrupt, match=f"after {size} of"):
            Header.parse(packed[:size], draft=header.draft)


def test_the_frame_count_can_be_overwritten_in_place():
    packed = bytearray(Header(frame_count=1).pack())
    COUNT.pack_into(packed, COUNT_OFFSET, 99)
    assert Header.parse(bytes(packed)).frame_count == 99


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((4, 0, 0), "version 4"),
        ((255, 0, 0), "version 255"),
        ((2, 1, 8), "options 0x8 of version 2"),
        ((2, 1, 0x80000002), "options 0x80000000 of version 2"),
        ((256, 1, 3), "options 0x2 of version 256"),
    ],
)
def test_unknown_versions_and_options_are_refused_by_name(words, name):
    with pytest.raises(InvalidInput, match=f"unknown {name}") as caught:
        Header.parse(struct.pack(f"<{len(words)}I", *words))
    assert caught.value.hint


@given(
    st.binary(max_size=50)
    | st.tuples(st.sampled_from([0, 1, 2, 3, 256]), st.binary(max_size=46)).map(
        lambda parts: struct.pack("<I", parts[0]) + parts[1]
    ),
    st.booleans(),
)
def test_arbitrary_bytes_are_a_header_or_refused(data, draft):
    try:
        header = Header.parse(data, draft=draft)
    except OndiskError:
        return
    assert data.startswith(header.pack())
    assert len(header.pack()) == header.size
