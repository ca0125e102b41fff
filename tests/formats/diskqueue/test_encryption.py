"""Sealed bytes are those of the standards; what was changed, moved or sealed with another key is not opened."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from pathlib import Path
from zlib import crc32

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import example, given
from hypothesis import strategies as st

from ondisk import frame, keys
from ondisk.config import DatasetConfig
from ondisk.errors import AuthenticationFailed, FrameCorrupt, InvalidInput, KeyMissing, OndiskError
from ondisk.formats import find
from ondisk.formats.diskqueue import encryption
from ondisk.formats.diskqueue.encryption import Frames, Stream, digest_of, file_key, sealable, stream_of
from ondisk.formats.diskqueue.header import Header
from ondisk.keys import Key, KeyRing
from ondisk.segment import End
from ondisk.step import Step

from .test_golden import GOLDEN, expectations

BEATS_KEY = b"keykeykeykeykeyk"
SHORT, LONG, OTHER = bytes(range(16)), bytes(range(32)), bytes(range(1, 33))
RING = KeyRing([Key(1, SHORT), Key(2, LONG)], "a test")
HEADER = Header(256, 0, 1, iv=b"f" * 16, digest=bytes(16))
BEGIN = HEADER.size
EVENTS = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8)
ENCRYPTED = [
    path
    for variant in ("v2-enc", "v2-enc-pb", "v2-enc-lz4", "v2draft-enc", "v3draft-lz4block", "v3draft-lz4stream")
    for path in sorted((GOLDEN / variant).glob("*.seg"))
]


def frames_of(ring=RING, file_id=b"f" * 16, stem="2026/11-20"):
    return Frames(ring, file_id, digest_of(stem), BEGIN)


def sealed(events, sealer=None):
    content = b"".join(frame.encode(sealable(events)))
    return content, (sealer or frames_of()).seal(BEGIN, content)


def parsed(path: Path):
    content = path.read_bytes()
    return content, Header.parse(content[:44], draft="draft" in path.parent.name)


def keyed(path, *secrets):
    content, head = parsed(path)
    ring = KeyRing([Key(n, secret) for n, secret in enumerate(secrets, 1)], "a test")
    stream_lz4 = head.compressed or "lz4stream" in path.parent.name
    return content, head, stream_of(
        ring, head.iv, head.size, lambda at, size: content[at : at + size], compressed=stream_lz4, max_size=2**20
    )  # fmt: skip


# Counter mode


def test_the_keystream_is_that_of_the_standard():
    """NIST SP 800-38A, F.5.1."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    stored = bytes.fromhex("874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff")
    assert Stream(key, counter, 0).seal(0, plain) == stored


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 60), st.binary(min_size=16, max_size=16))
def test_any_piece_is_opened_like_the_whole(plain, cut, begin, iv):
    stream = Stream(SHORT, iv, begin)
    stored = stream.seal(0, plain)
    assert stored[:begin] == plain[:begin]
    assert stream.unseal(0, stored) == plain
    assert stream.unseal(cut, stored[cut:]) == plain[cut:]
    assert stream.seal(0, plain[:cut]) + stream.seal(cut, plain[cut:]) == stored


def test_the_counter_wraps_around():
    stream = Stream(SHORT, b"\xff" * 16, 0)
    assert stream.seal(16, bytes(16)) == Stream(SHORT, bytes(16), 0).seal(0, bytes(16))


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_beats_are_opened_with_the_right_one_of_several_keys(path):
    content, head, stream = keyed(path, SHORT, BEATS_KEY, OTHER[:16])
    if len(content) == head.size:
        return  # it has no data
    plain = stream.unseal(head.size, content[head.size :])
    assert plain == Stream(BEATS_KEY, head.iv, head.size).unseal(head.size, content[head.size :])
    if "lz4" not in path.parent.name:
        count = expectations(path.parent.name)[path.name]["frames_mode"]["n"]
        assert len(frame.scan(plain, max_size=2**20).payloads) == (8 if path.name == "15.seg" else count)


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_beats_are_not_opened_with_a_wrong_key(path):
    if path.stat().st_size == parsed(path)[1].size:
        return  # it has no data
    with pytest.raises(AuthenticationFailed, match="none of the 2 keys"):
        keyed(path, SHORT, OTHER[:16])


def test_without_a_key_a_file_of_beats_is_not_opened():
    with pytest.raises(KeyMissing):
        keyed(GOLDEN / "v2-enc" / "2.seg")


@given(st.binary(max_size=400))
def test_a_key_that_makes_nothing_whole_is_not_taken(noise):
    try:
        stream_of(RING, bytes(16), 0, lambda at, size: noise[at : at + size], compressed=False, max_size=2**20)
    except AuthenticationFailed:
        return
    assert not noise


# GCM


def test_a_sealed_frame_is_as_documented():
    """Made again from docs/seg.md with the package's own HKDF."""
    content, stored = sealed([b"event"])
    length, kind, id_ = struct.unpack_from("<IBI", stored)
    assert (length, kind, id_, len(stored)) == (len(content), 1, 2, 12 + 33 + 5)
    nonce = stored[9:21]
    key = HKDF(hashes.SHA256(), 32, salt=b"f" * 16, info=b"ondisk segment").derive(LONG)
    data = digest_of("2026/11-20") + struct.pack("<Q", BEGIN)
    assert AESGCM(key).decrypt(nonce, stored[21:-8], data) == b"event"
    assert struct.unpack("<II", stored[-8:]) == (crc32(stored[:-8]), length)
    assert file_key(LONG, b"f" * 16) == key


@given(EVENTS)
def test_frames_are_opened_as_they_were(events):
    content, stored = sealed(events)
    assert len(content) == len(stored)
    assert frames_of().unseal(BEGIN, stored) == content
    scanned = frame.scan(stored, max_size=2**20, base=BEGIN)
    assert scanned.damage is None  # without a key
    opener = frames_of()
    assert [opener.event(*each) for each in zip(scanned.offsets, scanned.payloads, strict=True)] == events
    assert [encryption.event_of(each) for each in frame.scan(content, max_size=2**20).payloads] == events


def test_the_same_event_is_never_stored_as_the_same_bytes():
    _, stored = sealed([b"event"] * 600)
    found = frame.scan(stored, max_size=2**20).payloads
    assert len({bytes(each[5:17]) for each in found}) == len({bytes(each[17:]) for each in found}) == 600


def test_sealing_the_header_fills_in_the_digest():
    content = HEADER.pack() + b"".join(frame.encode(sealable([b"event"])))
    stored = frames_of().seal(0, content)
    assert Header.parse(stored[:44]).digest == digest_of("2026/11-20")
    assert frames_of().unseal(BEGIN, stored[BEGIN:]) == content[BEGIN:]
    assert frames_of().seal(0, HEADER.pack()) == stored[:BEGIN]


@given(EVENTS, st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_of_an_event_is_opened(events, at, flip):
    _, stored = sealed(events)
    at %= len(stored)
    changed = bytearray(stored)
    changed[at] ^= flip
    with pytest.raises(FrameCorrupt):
        frames_of().unseal(BEGIN, bytes(changed))


def frame_at(stored, number):
    offsets = [*frame.scan(stored, max_size=2**20).offsets, len(stored)]
    return stored[offsets[number] : offsets[number + 1]]


def with_checksum(stored):
    """Return one frame with a right checksum, as an attacker would store it."""
    return stored[:-8] + struct.pack("<II", crc32(stored[:-8]), len(stored))


@pytest.mark.each
@pytest.mark.parametrize(
    "attack",
    ["another key", "another file id", "another name", "frames swapped", "nonces swapped", "plain", "another segment"],
)
def test_what_was_moved_or_exchanged_does_not_authenticate(attack):
    content, stored = sealed([b"event 1", b"event 2"])
    one, two, opener = frame_at(stored, 0), frame_at(stored, 1), frames_of()
    match attack:
        case "another key":
            opener = frames_of(KeyRing([Key(2, OTHER)]))
        case "another file id":
            opener = frames_of(file_id=b"g" * 16)
        case "another name":
            opener = frames_of(stem="2026/11-21")
        case "frames swapped":
            stored = two + one
        case "nonces swapped":
            stored = with_checksum(one[:9] + two[9:21] + one[21:]) + two
        case "plain":
            stored = content
        case "another segment":
            stored = sealed([b"event 1", b"event 2"], frames_of(file_id=b"g" * 16))[1]
    with pytest.raises(AuthenticationFailed):
        opener.unseal(BEGIN, stored)


def test_a_key_that_is_gone_is_missing_not_wrong():
    _, stored = sealed([b"event"])
    with pytest.raises(KeyMissing, match="key 2, of 32 bytes, is not in the rest"):
        frames_of(KeyRing([Key(3, OTHER)], "the rest")).unseal(BEGIN, stored)


def test_the_newest_key_seals_and_all_of_them_open():
    both = KeyRing([Key(2, LONG), Key(3, OTHER)])
    _, old = sealed([b"event 1"])
    content, new = sealed([b"event 1", b"event 2"], frames_of(both))
    assert new[5] == 3
    mixed = old + frame_at(new, 1)
    assert frames_of(both).unseal(BEGIN, mixed) == content


def check_key(stored, ring, max_size=2**20):
    content = HEADER.pack() + stored
    frames_of(ring).check_key(lambda at, size: content[at : at + size], len(content), max_size=max_size)


def test_the_last_frame_shows_whether_the_newest_key_is_another_one():
    _, stored = sealed([b"event 1", b"event 2"])
    wrong = KeyRing([Key(2, OTHER)])
    check_key(b"", wrong)
    check_key(stored, KeyRing([Key(2, LONG)]))
    with pytest.raises(AuthenticationFailed, match="does not authenticate with key 2"):
        check_key(stored, wrong)
    for newer in (KeyRing([Key(3, OTHER)]), KeyRing([Key(2, OTHER), Key(3, LONG)])):
        check_key(stored, newer)
    check_key(stored, wrong, max_size=20)


def test_each_segment_shows_only_once_that_a_key_is_right(monkeypatch):
    monkeypatch.setattr(encryption, "_CHECKED", 2)
    ring, read = KeyRing([Key(2, LONG)]), []
    for file_id in (b"a" * 16, b"b" * 16, b"a" * 16, b"b" * 16, b"c" * 16, b"a" * 16):
        frames = frames_of(ring, file_id)
        content = HEADER.pack() + sealed([b"event"], frames)[1]
        before = len(read)
        frames.check_key(lambda at, size, of=content: read.append(at) or of[at : at + size], len(content), max_size=99)
        read[before:] = [file_id[:1]] * (len(read) > before)
    assert read == [b"a", b"b", b"c", b"a"]


@given(st.integers(0, 46), st.integers(1, 255))
@example(3, 52 ^ 2 * 52)  # the length of both frames at the end of the last one
def test_a_last_frame_that_is_damaged_does_not_show_that_a_key_is_wrong(at, flip):
    _, stored = sealed([b"event 1", b"event 2"])
    changed = bytearray(stored)
    changed[-1 - at] ^= flip
    check_key(bytes(changed), KeyRing([Key(2, LONG)]))
    check_key(bytes(changed), KeyRing([Key(2, OTHER)]))


@given(st.binary(max_size=100))
def test_noise_in_place_of_the_last_frame_does_not_show_that_a_key_is_wrong(noise):
    check_key(noise, KeyRing([Key(2, LONG)]))
    check_key(noise[:8] + struct.pack("<I", len(noise)), KeyRing([Key(2, LONG)]))


def test_what_has_no_room_for_a_tag_is_not_sealed():
    with pytest.raises(InvalidInput):
        frames_of().seal(BEGIN, frame.encode([b"\xa4 an event"])[0] + bytes(30))


@given(st.binary(max_size=120))
def test_noise_is_refused(noise):
    with pytest.raises((AuthenticationFailed, FrameCorrupt, KeyMissing)):
        frames_of().unseal(BEGIN, noise + b"x")


def test_a_sealed_event_in_a_plain_segment_is_refused():
    _, stored = sealed([b"event"])
    with pytest.raises(FrameCorrupt):
        encryption.event_of(frame.decode(stored))


def test_no_representation_shows_a_secret():
    for each in (frames_of(), Stream(SHORT, bytes(16), 28)):
        assert re.fullmatch(r"<[\w.]+ object at 0x[0-9a-f]+>", repr(each))


def test_frames_that_are_not_authentic_are_reported_from_those_of_a_wrong_key():
    content, stored = sealed([b"event 1", b"event 2", b"event 3"])
    changed = frame_at(stored, 0) + with_checksum(frame_at(stored, 1)[:25] + b"?" + frame_at(stored, 1)[26:])
    scanned = frame.scan(changed + frame_at(content, 2), max_size=2**20, base=BEGIN)
    one, *others = frames_of().events(scanned.offsets, scanned.payloads)
    assert one == b"event 1"
    for each in others:
        with pytest.raises(FrameCorrupt, match="does not authenticate"):
            encryption.event_of(each)
    with pytest.raises(AuthenticationFailed):
        frames_of(KeyRing([Key(2, OTHER)])).events(scanned.offsets, scanned.payloads)


@pytest.mark.parametrize("size", [5, 6, 16, 17, 32, 33])
def test_a_frame_that_is_too_short_to_be_sealed_is_damage(size):
    """It names the key of the others, and its checksum is right: whoever can write to the file can store it."""
    _, stored = sealed([b"event 1", b"event 2"])
    (short,) = frame.encode([stored[4:9] + bytes(size - 5)])
    scanned = frame.scan(stored + short, max_size=2**20, base=BEGIN)
    *events, last = frames_of().events(scanned.offsets, scanned.payloads)
    assert events == [b"event 1", b"event 2"]
    with pytest.raises(FrameCorrupt, match="does not authenticate"):
        encryption.event_of(last)


# Any bytes

HEADS = [
    Header(2, 3, 1, iv=b"i" * 16),
    Header(2, 3, 3, iv=b"i" * 16),
    Header(2, 3, 5, iv=b"i" * 16),
    Header(2, draft=True, iv=b"i" * 16),
    Header(3, draft=True, iv=b"i" * 16),
    Header(256, 3, 1, iv=b"f" * 16, digest=digest_of("2026/11-20")),
    Header(256, 3, 5, iv=b"f" * 16, digest=bytes(16)),
]


class Bytes:
    """A segment's file in memory."""

    def __init__(self, content):
        self.content = content

    def size(self):
        return len(self.content)

    def read(self, position, size):
        return self.content[position : position + size]

    def read_into(self, position, buffer):
        content = self.read(position, len(buffer))
        buffer[: len(content)] = content
        return len(content)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 4], ids=["cut", "damaged, too"])
def test_a_frame_that_is_cut_anywhere_is_damage_also_before_other_bytes(damage):
    """A search for the next frame never ended if the file ends with the byte that begins a sealed payload."""
    _, stored = sealed([b"event 1", b"event 2"])
    whole = len(frame_at(stored, 0))
    head = Header(256, 2, 1, iv=b"f" * 16, digest=digest_of("2026/11-20"))
    format = find("seg")(DatasetConfig("seg", Step.DAILY))
    keys.use(RING)
    try:
        for end in range(whole + 1, len(stored)):
            content = head.pack() + stored[:whole] + damage + stored[whole:end][len(damage) :]
            *_, last = format.scan(Bytes(content + b"\1"))
            assert last.end.count == 1
            assert [*format.parse(io.BytesIO(content + b"\1"), 10)][-1].damage
    finally:
        keys.use(None)


@given(st.sampled_from(HEADS), st.binary(max_size=300), st.integers(0, 400), st.booleans())
def test_any_bytes_after_an_encrypted_header_are_refused_or_damage(head, noise, cut, is_sealed):
    """With frames that are whole and not events, too."""
    content = head.pack() + noise
    if is_sealed and head.version == 256 and noise:
        stored = b"".join(frame.encode(sealable([noise[: len(noise) // 2] + b"x", noise])))
        content = head.pack() + frames_of().seal(BEGIN, stored)
    content = content[: max(cut, 4)]
    format = find("seg")(DatasetConfig("seg", Step.DAILY))
    keys.use(RING)
    try:
        with contextlib.suppress(OndiskError):
            assert not any(each.payloads for each in format.parse(io.BytesIO(content), 10))
        for read in (
            lambda: [*format.scan(Bytes(content))],
            lambda: format.resume(Bytes(content), End()),
            lambda: format.sealer(Bytes(content), "2026/11-20.seg"),
            lambda: format.is_empty(Bytes(content)),
            lambda: format.is_readable(Bytes(content)),
        ):
            with contextlib.suppress(OndiskError):
                read()
    finally:
        keys.use(None)
