"""Files that Ambry's own code wrote are read as Ambry reads them."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import IntegrityError
from ondisk.replication import ambry
from ondisk.replication.ambry import Entry, FindToken, Kind
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


def test_the_golden_files_are_all_used():
    assert {path.name for path in GOLDEN.glob("*.bin")} == {*FILES, *(each["file"] for each in TOKENS.values())}


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_read_as_ambry_does(name):
    reader = Reader(content(TOKENS[name]["file"]), name)
    token = ambry.decode_token(reader)
    assert not reader
    check_token(token, TOKENS[name]["reparsed"])


@pytest.mark.parametrize("name", GOOD)
def test_a_file_is_read_as_ambry_does(name):
    for entry, expected in zip(ambry.decode(content(name), name), FILES[name]["entries"], strict=True):
        keys = ("partition", "host", "path", "port", "bytes_read")
        of_ambry = ("partition_id", "hostname", "replica_path", "port", "total_bytes_read_from_local_store")
        described = entry.described()
        assert [described[key] for key in keys] == [expected[key] for key in of_ambry]
        check_token(entry.token, expected["token"])


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
    first, second = ambry.decode(content("v1_duplicate_entries.bin"), "it")
    assert first.identity == second.identity


def test_the_case_of_a_host_name_means_nothing():
    first, second = (
        Entry(ONE, host, "/mnt/u001/42", 6667, size, FindToken(3)) for host, size in (("NODE1", 1), ("Node1", 2))
    )
    assert first.identity == second.identity


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


@given(st.sampled_from(GOOD), st.data())
def test_hostile_bytes_are_refused_or_read_and_take_little_memory(name, data):
    """Bytes are replaced, cut out and inserted, and the checksum made right again."""
    body = bytearray(content(name)[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    hostile = bytes(body) + zlib.crc32(body).to_bytes(8)
    tracemalloc.start()
    try:
        ambry.decode(hostile, "it")
    except IntegrityError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 256 * 1024
