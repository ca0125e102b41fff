"""Records travel unchanged, and nothing hostile is believed or allocated."""

from __future__ import annotations

import struct
import tracemalloc

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import IntegrityError
from ondisk.replication import records
from ondisk.replication.feed import Kind, Lag
from ondisk.replication.records import HIGHEST, Group, Records
from ondisk.replication.token import Token

UUID = "5f1c0a11-2222-4333-8444-555555555555"
TOKEN = Token(UUID, 7, 100)
SOME = Records(
    TOKEN,
    Lag(3, 400),
    [Group("jsonl", [1, 4], [b"{}", b""]), Group("blob", [5], [b"x" * 3_000_000], [b"beside"])],
    [(6, 2, Kind.DELETED), (7, 1, Kind.LOST), (9, 3, Kind.AGED)],
    [(8, "it is damaged")],
    [(1, 2**63 - 1), (5, 7)],
)


def encoded(some: Records) -> bytes:
    size, pieces = records.encode(some)
    content = b"".join(pieces)
    assert len(content) == size
    return content


def sealed(content: bytes) -> bytes:
    return content[:-4] + struct.pack("<I", google_crc32c.value(content[:-4]))


def test_records_are_decoded_as_they_were_encoded():
    assert records.decode(encoded(SOME)) == SOME
    assert (SOME.count, SOME.size) == (7, 3_000_008)
    assert records.decode(encoded(Records(TOKEN))) == Records(
        TOKEN, groups=[], deletions=[], unreadable=[], sessions=[]
    )


def test_no_piece_is_empty():
    assert all(records.encode(Records(TOKEN))[1])
    assert all(records.encode(Records(TOKEN, groups=[Group("jsonl", [1], [b""])]))[1])


@given(st.data())
def test_any_changed_byte_and_any_missing_one_is_found(data):
    content = bytearray(encoded(Records(TOKEN, SOME.lag, [Group("jsonl", [1, 4], [b"{}", b"x"])], SOME.deletions)))
    at = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(IntegrityError):
        records.decode(bytes(content[:at]))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(IntegrityError):
        records.decode(bytes(content))


@pytest.mark.parametrize(
    ("some", "problem"),
    [
        (Records(TOKEN, groups=[Group("vm2", [4, 1], [b"", b""])]), "ascend"),
        (Records(TOKEN, groups=[Group("vm2", [0], [b""])]), "out of range"),
        (Records(Token(UUID, 1, HIGHEST - 1), groups=[Group("vm2", [HIGHEST], [b""])]), "out of range"),
        (Records(TOKEN, groups=[Group("vm2", [101], [b""])]), "token does not cover"),
        (Records(TOKEN, groups=[Group("vm2", [4], [b""]), Group("seg", [4], [b""])]), "same number"),
        (Records(TOKEN, deletions=[(4, -1, Kind.DELETED)]), "impossible number"),
        (Records(TOKEN, deletions=[(4, 1, Kind.DELETED)], unreadable=[(4, "x")]), "same number"),
        (Records(Token(UUID, 1, HIGHEST)), "token in their head is not valid"),
        (Records(Token(UUID, -1, 1)), "token in their head is not valid"),
        (Records(Token("x", 1, 1)), "token in their head is not valid"),
        (Records(Token(UUID + "\n", 1, 1)), "token in their head is not valid"),
        (Records(TOKEN, Lag(-1, 0)), "lag in their head"),
        (Records(TOKEN, groups=[Group("vm2", [1, 2], [b"ab"])]), "early"),
    ],
)
def test_what_no_source_sends_is_refused(some, problem):
    with pytest.raises(IntegrityError, match=problem):
        records.decode(encoded(some))


def test_sizes_that_are_not_those_of_the_bytes_are_refused():
    content = encoded(Records(TOKEN, groups=[Group("vm2", [1], [b"abcd"])]))
    at = content.index(struct.pack("<qq", 1, 4)) + 8
    for size in (-4, 3, 2**62):
        with pytest.raises(IntegrityError, match="sizes"):
            records.decode(sealed(content[:at] + struct.pack("<q", size) + content[at + 8 :]))


def test_a_length_that_lies_allocates_nothing():
    content = bytearray(encoded(Records(TOKEN, groups=[Group("vm2", [1], [b"abcd"])])))
    at = content.index(b"vm2") + 3
    huge = bytes(content[:at]) + b"\x1b" + struct.pack(">Q", 2**60) + bytes(content[at + 1 :])
    huge = huge[:4] + struct.pack("<I", struct.unpack("<I", huge[4:8])[0] + 8) + huge[8:]
    tracemalloc.start()
    for each in (huge, b"ODR1\xff\xff\xff\xff" + bytes(4)):
        with pytest.raises(IntegrityError, match="early"):
            records.decode(sealed(each))
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("head", [b"", b"\x80", b"\xa0", b"\xff", b"\xa1\x61a\x01", b"\x9f" * 100])
def test_a_head_of_another_shape_is_refused(head):
    with pytest.raises(IntegrityError, match="head"):
        records.decode(sealed(b"ODR1" + struct.pack("<I", len(head)) + head + b"\0" * 100))


def test_other_bytes_are_no_records():
    with pytest.raises(IntegrityError, match="another program"):
        records.decode(b"<!doctype html>")


def test_a_reason_cannot_write_to_the_terminal():
    assert records.decode(encoded(Records(TOKEN, unreadable=[(1, "a\x1b[31m\nb")]))).unreadable == [(1, "a?[31m b")]
