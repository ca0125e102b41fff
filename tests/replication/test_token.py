"""A token file has the layout of its docstring, and only what was written is read."""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import IntegrityError, InvalidInput, VersionTooNew
from ondisk.replication import ambry
from ondisk.replication.fields import sealed
from ondisk.replication.token import Entry, Token, TokenFile, decode, encode

SOURCE, REPLICA = "11111111-2222-4333-8444-555555555555", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
TOKEN = Token(SOURCE, 0x0102030405060708, 1234)
ENTRY = Entry(TOKEN, REPLICA, "Node1.example.com", 8080, bytes_read=5678)

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.binary(max_size=40).map(lambda raw: raw.decode(errors="surrogateescape"))
tokens = st.builds(Token, texts, numbers, numbers, numbers, st.binary(max_size=40))
entries = st.builds(Entry, tokens, texts, texts, st.integers(-(2**31), 2**31 - 1), bytes_read=numbers)


def test_the_layout_is_that_of_the_docstring():
    expected = b"".join(
        (
            b"O\x01",
            b"\0\0\0\x24" + SOURCE.encode(),
            b"\0\0\0\x11Node1.example.com",
            b"\0\0\0\x24" + REPLICA.encode(),
            (8080).to_bytes(4),
            (5678).to_bytes(8),
            (2 + 8 + 8 + 8 + 4 + 3).to_bytes(8),  # the size of the token, without this field
            b"\0\x01",
            bytes(range(1, 9)),
            (1234).to_bytes(8),
            (99).to_bytes(8),
            b"\0\0\0\x03key",
        )
    )
    stored = encode(TokenFile([replace(ENTRY, token=replace(TOKEN, index_start=99, key=b"key"))]))
    assert stored == expected + zlib.crc32(expected).to_bytes(8)


def test_a_file_without_entries_has_ten_bytes():
    assert len(encode(TokenFile([]))) == 10
    assert decode(encode(TokenFile([])), "it").entries == []


@given(st.builds(TokenFile, st.lists(entries, max_size=5)))
def test_what_is_written_is_read_again(file):
    assert decode(encode(file), "it") == file


def test_of_two_entries_for_one_source_and_replica_the_later_counts_whatever_the_case_of_the_host():
    later = replace(ENTRY, host="NODE1.EXAMPLE.COM", bytes_read=1)
    others = [replace(ENTRY, port=1), replace(ENTRY, replica=SOURCE), replace(ENTRY, token=Token(REPLICA))]
    file = decode(encode(TokenFile([ENTRY, *others, later])), "it")
    assert len(file.entries) == 5
    assert file.latest() == [later, *others]


def test_every_changed_bit_and_every_cut_is_noticed():
    whole = encode(TokenFile([ENTRY]))
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError, match=r"^it is damaged: its checksum"):
            decode(bytes(changed), "it")
    for size in range(len(whole)):
        with pytest.raises(IntegrityError, match=r"^it is damaged: "):
            decode(whole[:size], "it")


def test_a_newer_version_is_not_damage():
    with pytest.raises(VersionTooNew):
        decode(sealed(b"O\x02"), "it")


def test_a_file_of_ambry_is_recognised():
    with pytest.raises(IntegrityError, match=r"version 1\n.*--layout ambry"):
        decode(ambry.encode(ambry.TokenFile()), "it")
    with pytest.raises(IntegrityError, match="version 20225"):
        ambry.decode(encode(TokenFile([])), "it")


def test_a_token_whose_size_is_not_that_of_its_fields_is_refused():
    body = bytearray(encode(TokenFile([ENTRY]))[:-8])
    body[-31] += 1  # the size of the token
    with pytest.raises(IntegrityError, match="a token has 31 bytes, and its fields end after 30"):
        decode(sealed(bytes(body)), "it")
    with pytest.raises(IntegrityError, match="a token has 31 bytes, and its fields end after 30"):
        decode(sealed(bytes(body) + b"x"), "it")


@pytest.mark.parametrize("field", ["session", "offset", "index_start"])
def test_a_number_that_does_not_fit_is_refused(field):
    with pytest.raises(InvalidInput, match="does not fit into 8 bytes"):
        encode(TokenFile([replace(ENTRY, token=replace(TOKEN, **{field: 2**63}))]))


@given(st.data())
def test_hostile_bytes_are_refused_or_mean_what_they_say_and_take_little_memory(data):
    """Bytes are replaced, cut out and inserted, and the checksum made right again."""
    body = bytearray(encode(TokenFile([ENTRY, ENTRY]))[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    hostile = sealed(bytes(body))
    tracemalloc.start()
    try:
        assert encode(decode(hostile, "it")) == hostile
    except (IntegrityError, VersionTooNew):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.check
def test_memory_grows_with_the_size_of_the_file():
    stored = encode(TokenFile([Entry(Token(""), "")] * 5000))  # the smallest entries: the most objects for a byte
    tracemalloc.start()
    try:
        assert len(decode(stored, "it").entries) == 5000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * len(stored)
