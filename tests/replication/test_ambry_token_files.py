"""Files that Ambry's own code wrote are read as Ambry reads them, and written again byte for byte."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import IntegrityError, InvalidInput
from ondisk.replication import ambry_token_files as ambry
from ondisk.replication.ambry_token_files import Entry, FindToken, Kind, ResetKey, ResetKind, TokenFile
from ondisk.replication.token import Reader, sealed

GOLDEN = Path(__file__).parents[1] / "golden/ambry"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
FILES = {each["file"]: each for each in EXPECTED["files"] if each["file"].endswith(".bin")}
TOKENS = {each["name"]: each for each in EXPECTED["tokens"]}
GOOD = [name for name, each in FILES.items() if each["result"] == "ok"]
BAD = [name for name, each in FILES.items() if each["result"] == "error"]
KINDS = {"Uninitialized": Kind.UNINITIALIZED, "JournalBased": Kind.JOURNAL, "IndexBased": Kind.INDEX}
ONE = b"\0\1\0\0\0\0\0\0\0\x2a"


def content(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def check_token(token: FindToken, expected: dict[str, Any]) -> None:
    """Compare a token with what Ambry's own class says about it."""
    assert token.version == expected["version"]
    assert token.kind is KINDS[expected["type"]]
    assert token.incarnation == (expected["incarnation_id"] or "")
    assert token.session == (expected["session_id"] or "")
    assert token.inclusive == expected["inclusive"]
    assert token.key.hex() == (expected["store_key_hex"] or "")
    if token.kind is not Kind.UNINITIALIZED:
        assert (token.log_segment, token.offset) == (expected["log_segment"], expected["offset"])
    if token.reset is None:
        assert expected["reset_key_hex"] is None
    else:
        reset = token.reset.key.hex(), token.reset.kind.name, token.reset.life_version
        assert reset == (expected["reset_key_hex"], expected["reset_key_type"], expected["reset_key_version"])
    assert ambry.encode_token(token).hex() == expected["bytes_hex"]


def test_the_golden_files_are_all_used():
    assert {path.name for path in GOLDEN.glob("*.bin")} == {*FILES, *(each["file"] for each in TOKENS.values())}


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_read_and_written_as_ambry_does(name):
    stored = content(TOKENS[name]["file"])
    reader = Reader(stored, name)
    token = ambry.decode_token(reader)
    assert not reader
    check_token(token, TOKENS[name]["reparsed"])
    assert ambry.encode_token(token) == stored


@pytest.mark.parametrize("name", GOOD)
def test_a_file_is_read_and_written_as_ambry_does(name):
    file = ambry.decode(content(name), name)
    for entry, expected in zip(file.entries, FILES[name]["entries"], strict=True):
        keys = ("partition", "host", "path", "port", "bytes_read")
        of_ambry = ("partition_id", "hostname", "replica_path", "port", "total_bytes_read_from_local_store")
        described = entry.described()
        assert [described[key] for key in keys] == [expected[key] for key in of_ambry]
        check_token(entry.token, expected["token"])
    assert ambry.encode(file) == content(name)


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_ambry_refuses_is_refused_with_its_name(name):
    with pytest.raises(IntegrityError, match=f"^{name} is damaged: "):
        ambry.decode(content(name), name)


@pytest.mark.parametrize("cut", range(75))
def test_a_file_that_is_cut_is_refused(cut):
    with pytest.raises(IntegrityError):
        ambry.decode(content("v1_one_uninit.bin")[:cut], "it")


def test_every_changed_bit_is_noticed():
    whole = content("v1_one_uninit.bin")
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError):
            ambry.decode(bytes(changed), "it")


def test_of_two_entries_for_one_replica_the_later_counts():
    file = ambry.decode(content("v1_duplicate_entries.bin"), "it")
    assert len(file.entries) == 2
    assert file.latest() == [file.entries[1]]


def test_the_case_of_a_host_name_means_nothing():
    first, second = (
        Entry(ONE, host, "/mnt/u001/42", 6667, size, FindToken(3)) for host, size in (("NODE1", 1), ("Node1", 2))
    )
    assert TokenFile(1, [first, second]).latest() == [second]


def test_the_checksum_is_compared_before_a_length_is_believed():
    huge = content("bad_hostname_len_huge.bin")
    with pytest.raises(IntegrityError, match="checksum"):
        ambry.decode(huge, "it")
    with pytest.raises(IntegrityError, match="a field of 2130706449 bytes, and 1297 are left"):
        ambry.decode(sealed(huge[:-8]), "it")


def test_a_token_of_a_cloud_is_refused():
    body = bytearray(content("v1_one_uninit.bin")[:-8])
    body[-5] = 1
    with pytest.raises(IntegrityError, match="a replica has type 1"):
        ambry.decode(sealed(bytes(body)), "it")


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"short", "", "", 0, 0, FindToken(3)),
        Entry(ONE, "", "", 2**31, 0, FindToken(3)),
        Entry(ONE, "\ud800", "", 0, 0, FindToken(3)),
        Entry(ONE, "", "", 0, 0, FindToken(4)),
        Entry(ONE, "", "", 0, 0, FindToken(3, Kind.JOURNAL)),
        Entry(ONE, "", "", 0, 0, FindToken(0, Kind.JOURNAL, log_segment="0_0", offset=1)),
        Entry(ONE, "", "", 0, 0, FindToken(2, reset=ResetKey(b"", ResetKind.PUT, 1))),
    ],
)
def test_what_does_not_fit_is_refused(entry):
    with pytest.raises(InvalidInput):
        ambry.encode(TokenFile(1, [entry]))


def test_a_version_that_ambry_does_not_write_is_refused():
    with pytest.raises(InvalidInput):
        ambry.encode(TokenFile(2))


numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.binary(max_size=40).map(lambda raw: raw.decode(errors="surrogateescape"))
partitions = st.integers(-(2**63), 2**63 - 1).map(lambda number: b"\0\1" + number.to_bytes(8, signed=True))
uuids = st.uuids().map(str)


@st.composite
def keys(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(1, 7))
    body = b"" if version == 1 else draw(st.binary(min_size=6, max_size=6))
    uuid = draw(st.binary(min_size=16, max_size=16))
    last = uuid if version > 5 else len(uuid).to_bytes(4) + uuid
    return version.to_bytes(2) + body + draw(partitions) + last


@st.composite
def tokens(draw: st.DrawFn) -> FindToken:
    version, kind = draw(st.integers(0, 3)), draw(st.sampled_from(Kind))
    session = draw(uuids) if version < 2 or kind is not Kind.UNINITIALIZED else ""
    if kind is Kind.UNINITIALIZED:
        return FindToken(version, kind, session=session, inclusive=True)
    return FindToken(
        version,
        kind,
        draw(uuids) if version > 1 else "",
        session,
        draw(texts) if version else "",
        draw(numbers.filter(lambda number: number != -1)),
        draw(keys()) if kind is Kind.INDEX else b"",
        draw(st.booleans()) if version > 1 and kind is Kind.JOURNAL else False,
        draw(st.none() | st.builds(ResetKey, keys(), st.sampled_from(ResetKind), st.integers(-(2**15), 2**15 - 1)))
        if version == 3
        else None,
    )


entries = st.builds(Entry, partitions, texts, texts, st.integers(0, 2**31 - 1), numbers, tokens())


@given(st.builds(TokenFile, st.sampled_from([0, 1]), st.lists(entries, max_size=5)))
def test_what_is_written_is_read_again(file):
    assert ambry.decode(ambry.encode(file), "it") == file


@given(st.sampled_from(GOOD), st.data())
def test_hostile_bytes_are_refused_or_mean_what_they_say_and_take_little_memory(name, data):
    """Bytes are replaced, cut out and inserted, and the checksum made right again."""
    body = bytearray(content(name)[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    hostile = bytes(body) + zlib.crc32(body).to_bytes(8)
    tracemalloc.start()
    try:
        assert ambry.encode(ambry.decode(hostile, "it")) == hostile
    except IntegrityError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 256 * 1024
