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
from ondisk.errors import InvalidInput, OndiskError
from ondisk.formats import find
from ondisk.formats.diskqueue import blocks, encryption, payload
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
    """Return a segment of a draft; in a `block` is each event alone, in a `stream` are all frames."""
    payloads = segments.encode(events)
    if compression == "block":
        payloads = [lz4.block.compress(each, store_size=False) for each in payloads]
    frames = frame.encode(payloads)
    if compression == "stream":
        frames = [blocks.FRAME_HEADER, *(block.stored for block in blocks.pack(frames, 0)), blocks.END_MARK]
    return sealed(version, encryption.new_iv(), b"".join(frames))


def sealed(version, iv, plain):
    header = Header(version, draft=True, iv=iv)
    return header.pack() + encryption.Stream(KEY, header.iv, header.size).seal(header.size, plain)


def read(content):
    """Return the events in a file, and whether something in it was damaged."""
    batch = parsed(SEG, content)
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


def test_a_block_that_compresses_better_than_beats_would_read_it_is_read():
    event = Event(5, 0, {}, {"zeros": "0" * 1_000_000})
    assert read(written(3, "block", [event])) == ([event], False)


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
def test_a_draft_that_looks_like_version_2_by_chance_is_not_misread(options):
    content = sealed(
        2, bytes(4) + bytes((options, 0, 0, 0)) + bytes(8), b"".join(frame.encode(segments.encode(EVENTS)))
    )
    with contextlib.suppress(OndiskError):
        assert not read(content)[0]


@pytest.mark.parametrize(("version", "compression"), KINDS)
def test_drafts_are_imported_and_adopted(tmp_path, version, compression):
    config = {"step": "daily", "fields": {"station": "integer"}}
    dataset = ondisk.create(tmp_path / "events", config)
    for format in (None, "seg"):
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
    content = sealed(version, b"\xff" * 16, b"".join(frame.encode([plain])) if framed and plain else plain)
    try:
        batch = parsed(SEG, content)
    except OndiskError:
        return
    assert len(batch) <= 1


def test_a_hostile_block_takes_bounded_memory():
    bomb = lz4.block.compress(bytes(200_000_000), store_size=False)
    limited = find("seg")(DatasetConfig.from_mapping({"step": "daily", "max_datum_size": 10_000_000}))
    content = sealed(3, bytes(16), b"".join(frame.encode([bomb])))
    tracemalloc.start()
    batch = parsed(limited, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(batch.refused) == 1
    assert peak < 40_000_000
