"""The drafts of versions 2 and 3: each is written and read back, told apart from version 2, and never misread."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
from datetime import UTC, datetime

import lz4.block
import pytest
from drawn import up_to
from formats.test_base import parsed
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import same

import ondisk
from ondisk import Datum, frame, keys
from ondisk.config import DatasetConfig
from ondisk.errors import ConfigError, InvalidInput, OndiskError
from ondisk.formats import find
from ondisk.formats.diskqueue import draft_versions, encryption, payload
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.payload import Event
from ondisk.keys import Key, KeyRing

from . import segments

KEY = b"keykeykeykeykeyk"
KINDS = [(2, "none"), (2, "block"), (3, "block"), (3, "stream")]
CONFIG = DatasetConfig.from_mapping({"step": "daily"})
SEG = find("seg")(CONFIG)
EVENTS = [Event(1_795_154_400_000_000_000 + n, 0, {"station": n}, {"n": n, "text": "wind " * 20}) for n in range(50)]


@pytest.fixture(autouse=True)
def _key():
    keys.use(KeyRing([Key(1, KEY)]))
    yield
    keys.use(None)


def written(version, compression, events=EVENTS):
    return draft_versions.write(segments.encode(events), KEY, version=version, compression=compression)


def read(content, format=SEG):
    """Return the events in a file, and whether something in it was damaged."""
    batch = parsed(format, content)
    assert not batch.refused
    return payload.decode(frame.decode_many(batch.payloads)).one_by_one(), bool(batch.damage)


def by_key_of_beats(content):
    """Return the decrypted bytes of a draft, without ondisk."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    return Cipher(AES(KEY), CTR(content[4:20])).decryptor().update(content[20:])


@pytest.mark.parametrize(("version", "compression"), KINDS)
@given(events=st.lists(segments.events, max_size=5))
@settings(max_examples=up_to(30))
def test_what_is_written_is_read(version, compression, events):
    found, damaged = read(written(version, compression, events))
    assert same([*map(list, found)], [*map(list, events)])
    assert not damaged


@pytest.mark.parametrize(("version", "compression"), KINDS[:3])
def test_the_bytes_are_those_of_the_draft(version, compression):
    content = written(version, compression)
    assert struct.unpack_from("<I", content) == (version,)
    plain = by_key_of_beats(content)
    at, found = 0, []
    while at < len(plain):
        (size,) = struct.unpack_from("<I", plain, at)
        each = frame.decode(plain[at : at + size])
        if compression == "block":
            each = lz4.block.decompress(each, uncompressed_size=10 * len(each))
        found.append(each)
        at += size
    assert found == segments.encode(EVENTS)


def test_an_event_that_beats_could_not_decompress_is_written_as_literals():
    event = Event(5, 0, {}, {"zeros": "0" * 100_000})
    plain = by_key_of_beats(written(3, "block", [event]))
    each = frame.decode(plain)
    assert lz4.block.decompress(each, uncompressed_size=10 * len(each)) == segments.encode([event])[0]
    assert read(written(3, "block", [event])) == ([event], False)


def test_a_block_that_compresses_better_is_read():
    (event,) = segments.encode([Event(5, 0, {}, {"zeros": "0" * 1_000_000})])
    header = Header(3, draft=True, iv=bytes(16))
    frames = b"".join(frame.encode([lz4.block.compress(event, store_size=False)]))
    content = header.pack() + encryption.Stream(KEY, header.iv, header.size).seal(header.size, frames)
    assert read(content)[0][0].fields["zeros"] == "0" * 1_000_000


def test_versions_without_a_compression_are_refused():
    for version, compression in ((2, "stream"), (3, "none")):
        with pytest.raises(InvalidInput, match="has no compression"):
            draft_versions.write([], KEY, version=version, compression=compression)


@pytest.mark.parametrize(("version", "compression"), KINDS[:3])
@pytest.mark.parametrize("place", [0, 1, 5, 40, -1])
def test_damage_takes_one_event(version, compression, place):
    content = bytearray(written(version, compression))
    offsets = [*parsed_offsets(content)]
    content[20 + offsets[25] + (place if place >= 0 else offsets[26] - offsets[25] - 1)] ^= 0x41
    found, damaged = read(bytes(content))
    assert damaged
    assert found == EVENTS[:25] + EVENTS[26:]


def parsed_offsets(content):
    plain, at = by_key_of_beats(bytes(content)), 0
    while at < len(plain):
        yield at
        at += struct.unpack_from("<I", plain, at)[0]


def test_version_2_with_options_that_it_lacks_is_the_draft_only_if_a_key_decrypts_it():
    content = written(2, "none")
    assert int.from_bytes(content[8:12], "little") & ~7
    assert read(content)[0] == EVENTS
    for ring in (KeyRing(), KeyRing([Key(1, b"x" * 16)])):
        keys.use(ring)
        with pytest.raises(InvalidInput, match=r"unknown options .* as the draft of version 2 .*key"):
            read(content)
    keys.use(KeyRing([Key(1, KEY)]))
    with pytest.raises(InvalidInput, match="unknown options 0x8"):
        read(struct.pack("<III", 2, 1, 8) + b"".join(frame.encode(segments.encode(EVENTS))))


@pytest.mark.parametrize("options", range(8))
def test_a_draft_that_looks_like_version_2_by_chance_can_be_forced(options):
    header = Header(2, draft=True, iv=bytes(4) + bytes((options, 0, 0, 0)) + bytes(8))
    frames = b"".join(frame.encode(segments.encode(EVENTS)))
    content = header.pack() + encryption.Stream(KEY, header.iv, header.size).seal(header.size, frames)
    assert read(content, find("seg-draft")(CONFIG))[0] == EVENTS
    with contextlib.suppress(OndiskError):
        assert not read(content)[0]


def test_no_dataset_has_the_format_of_a_draft(tmp_path):
    with pytest.raises(ConfigError, match="seg-draft"):
        ondisk.create(tmp_path / "drafts", {"step": "daily", "format": "seg-draft"})


@pytest.mark.parametrize(("version", "compression"), KINDS)
def test_drafts_are_imported_and_adopted(tmp_path, version, compression):
    config = {"step": "daily", "fields": {"station": "integer"}}
    dataset = ondisk.create(tmp_path / "events", config)
    for format in (None, "seg") if version == 3 else (None, "seg", "seg-draft"):
        result = dataset.append_file(io.BytesIO(written(version, compression)), format)
        assert (result.imported, result.refused) == (50, 0)
    adopted = ondisk.create(tmp_path / "adopted", config)
    (adopted.path / "2026").mkdir()
    (adopted.path / "2026/11-20.seg").write_bytes(written(version, compression))
    assert not adopted.fix().lost
    assert [each.data["n"] for each in adopted.query()] == [*range(50)]
    adopted.append([Datum(datetime(2026, 11, 20, 23, tzinfo=UTC), {"station": 5}, {"n": 50})])
    assert [each.data["n"] for each in adopted.query()] == [*range(51)]
    dataset.close()
    adopted.close()


@given(st.sampled_from([2, 3]), st.binary(max_size=200), st.booleans())
def test_any_bytes_in_a_draft_are_read_or_refused(version, plain, framed):
    header = Header(version, draft=True, iv=b"\xff" * 16)
    plain = b"".join(frame.encode([plain])) if framed and plain else plain
    content = header.pack() + encryption.Stream(KEY, header.iv, header.size).seal(header.size, plain)
    try:
        batch = parsed(SEG, content)
    except OndiskError:
        return
    assert len(batch) <= 1


def test_a_hostile_block_takes_bounded_memory():
    bomb = lz4.block.compress(bytes(200_000_000), store_size=False)
    limited = find("seg")(DatasetConfig.from_mapping({"step": "daily", "max_datum_size": 10_000_000}))
    header = Header(3, draft=True, iv=bytes(16))
    content = header.pack() + encryption.Stream(KEY, header.iv, header.size).seal(
        header.size, b"".join(frame.encode([bomb]))
    )
    tracemalloc.start()
    batch = parsed(limited, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(batch.refused) == 1
    assert peak < 40_000_000
