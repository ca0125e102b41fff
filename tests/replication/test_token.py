"""A token file has the layout of its docstring, is replaced as a whole, and is set aside if it is damaged."""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import IntegrityError, InvalidInput, NotFound, ReadOnly, StorageError, VersionTooNew
from ondisk.filesystem import Directory
from ondisk.replication import ambry_token_files as ambry
from ondisk.replication import token
from ondisk.replication.token import LARGEST, Entry, Token, decode, encode, latest, sealed

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
    stored = encode([replace(ENTRY, token=replace(TOKEN, index_start=99, key=b"key"))])
    assert stored == expected + zlib.crc32(expected).to_bytes(8)


def test_a_file_without_entries_has_ten_bytes():
    assert len(encode([])) == 10
    assert decode(encode([]), "it") == []


@given(st.lists(entries, max_size=5))
def test_what_is_written_is_read_again(written):
    assert decode(encode(written), "it") == written


def test_of_two_entries_for_one_source_and_replica_the_later_counts_whatever_the_case_of_the_host():
    later = replace(ENTRY, host="NODE1.EXAMPLE.COM", bytes_read=1)
    others = [replace(ENTRY, port=1), replace(ENTRY, replica=SOURCE), replace(ENTRY, token=Token(REPLICA))]
    read = decode(encode([ENTRY, *others, later]), "it")
    assert len(read) == 5
    assert latest(read) == [later, *others]


def test_every_changed_bit_and_every_cut_is_noticed():
    whole = encode([ENTRY])
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
        decode(sealed(b"\0\1"), "it")
    with pytest.raises(IntegrityError, match="version 20225"):
        ambry.decode(encode([]), "it")


def test_a_token_whose_size_is_not_that_of_its_fields_is_refused():
    body = bytearray(encode([ENTRY])[:-8])
    body[-31] += 1  # the size of the token
    with pytest.raises(IntegrityError, match="a token has 31 bytes, and its fields end after 30"):
        decode(sealed(bytes(body)), "it")
    with pytest.raises(IntegrityError, match="a token has 31 bytes, and its fields end after 30"):
        decode(sealed(bytes(body) + b"x"), "it")


@pytest.mark.parametrize("field", ["session", "offset", "index_start"])
def test_a_number_that_does_not_fit_is_refused(field):
    with pytest.raises(InvalidInput, match="does not fit into 8 bytes"):
        encode([replace(ENTRY, token=replace(TOKEN, **{field: 2**63}))])


@given(st.data())
def test_hostile_bytes_are_refused_or_mean_what_they_say_and_take_little_memory(data):
    """Bytes are replaced, cut out and inserted, and the checksum made right again."""
    body = bytearray(encode([ENTRY, ENTRY])[:-8])
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
    stored = encode([Entry(Token(""), "")] * 5000)  # the smallest entries: the most objects for a byte
    tracemalloc.start()
    try:
        assert len(decode(stored, "it")) == 5000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * len(stored)


def test_a_text_that_is_no_unicode_is_refused():
    with pytest.raises(InvalidInput, match="not valid Unicode"):
        encode([replace(ENTRY, host="\ud800")])


PLACED = Entry(Token("source", 7, 12), "replica")
OTHER = Entry(Token("another source", 8, 13), "replica", "host", 1)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "replica.tokens"


def test_a_file_is_created_and_then_updated(file):
    assert token.update(file, [PLACED]) is None
    assert token.update(file, [OTHER]) is None
    later = replace(PLACED, token=replace(PLACED.token, offset=20))
    assert token.update(file, [later]) is None
    assert token.read(file) == [later, OTHER]
    assert file.read_bytes() == encode([later, OTHER])
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_damaged_file_is_set_aside_and_nothing_set_aside_is_lost(file):
    for number, name in enumerate(("replica.tokens.bad", "replica.tokens.bad.2"), 1):
        file.write_bytes(b"damaged\0%d" % number)
        said = token.update(file, [PLACED])
        assert said is not None
        assert said.startswith(f"{file} is damaged: ")
        assert said.endswith(f"; it is {file.parent / name} now")
        assert (file.parent / name).read_bytes() == b"damaged\0%d" % number
        assert token.read(file) == [PLACED]


def test_a_text_is_no_token_file_and_is_left(file):
    file.write_bytes(b"0123456789abcdef\n")
    with pytest.raises(InvalidInput, match="is a text and no token file") as caught:
        token.update(file, [PLACED])
    assert "--server-token" in caught.value.hint
    assert file.read_bytes() == b"0123456789abcdef\n"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_is_too_large_is_set_aside(file):
    with file.open("wb") as large:
        large.truncate(LARGEST + 1)
    with pytest.raises(InvalidInput, match=f"larger than {LARGEST} bytes"):
        token.read(file)
    assert "larger" in (token.update(file, [PLACED]) or "")
    assert token.read(file) == [PLACED]


def test_a_file_of_a_newer_ondisk_is_left(file):
    newer = sealed(b"O\x02something else")
    file.write_bytes(newer)
    with pytest.raises(VersionTooNew):
        token.update(file, [PLACED])
    assert file.read_bytes() == newer


def test_what_does_not_fit_leaves_the_old_file(file):
    token.update(file, [PLACED])
    with pytest.raises(InvalidInput):
        token.update(file, [replace(PLACED, port=2**40)])
    assert token.read(file) == [PLACED]


def test_a_link_is_not_followed(file, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"mine")
    file.symlink_to("elsewhere")
    with pytest.raises(StorageError):
        token.update(file, [PLACED])
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"


def test_errors_name_the_file(file):
    with pytest.raises(NotFound, match=str(file)):
        token.read(file)
    file.write_bytes(b"")
    with pytest.raises(IntegrityError, match=f"{file} is damaged: it has 0 bytes"):
        token.read(file)


def test_a_folder_that_may_not_be_written_to_is_named_with_a_remedy_about_the_file(file, monkeypatch):
    def denied(*_: object, **__: object) -> None:
        raise ReadOnly("no permission", hint="Open the dataset read_only.")

    monkeypatch.setattr(Directory, "replace", denied)
    with pytest.raises(ReadOnly) as error:
        token.update(file, [PLACED])
    assert str(file) in error.value.message
    assert error.value.hint.startswith("Choose a file in a folder that this user may write to.")
