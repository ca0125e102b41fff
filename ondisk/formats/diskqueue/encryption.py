"""Encryption of segments: AES-128 in counter mode, as Beats writes it; AES-256-GCM for each datum, as only ondisk does.

Both keep the length of what they encrypt, so that positions and offsets are the same with and without a key.

    counter mode (CTR)    after the header, the file's bytes XOR the keystream of its IV; any piece can be opened alone
    GCM                   a frame's payload is  0x01 | u32 key id | 12 bytes nonce | event | 16 bytes tag

Before a frame is sealed with GCM, key id, nonce and tag are zero: it is *sealable*. Its length is final. Sealing fills
them in, and computes the frame's checksum again, so frames can be checked without a key. A segment has a random file
id; its key is HKDF-SHA256 of the key and that id, so that random nonces are safe for any number of data. The additional
data are a digest of the segment's name and the frame's offset: no datum can be moved, and no segment renamed.

Segments of Beats do not name their key: each key of 16 bytes is tried until something in the file is valid. Frames of
version 256 name theirs.

Counter mode does not authenticate. Two texts that are encrypted with the same keystream reveal each other, so nothing
may be written twice to a place in a file of one IV.

Source: counter mode is that of elastic/beats, pull request 31961; docs/seg.md describes GCM.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from zlib_ng.zlib_ng import crc32

from ondisk import frame, keys
from ondisk.errors import RESTORE, AuthenticationFailed, ConfigError, FrameCorrupt, InvalidInput, StateError
from ondisk.formats.base import Chained, Readable, read_fully
from ondisk.formats.diskqueue.blocks import BEGIN_SIZE, begins_frame
from ondisk.formats.diskqueue.header import ONDISK, Header
from ondisk.keys import AES_128, AES_256, KeyRing
from ondisk.segment import DecryptedFile, SegmentFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALABLE = 0x01
"""First byte of the payload of a frame that is sealable or sealed."""

IV_SIZE = DIGEST_SIZE = 16
UNKNOWN = bytes(DIGEST_SIZE)
"""In place of the digest of a segment's name, until sealing its header fills it in."""

_BLOCK = 16  # bytes that a counter stands for
_TAG, _NONCE = 16, 12
_BEGIN = struct.Struct("<IBI12s")  # of a frame: length, kind, key id, nonce
_PLACE = struct.Struct("<Q")
_FOOTER = struct.Struct("<II")
_PREFIX = struct.pack("<BI12s", SEALABLE, 0, b"")
_SUFFIX = bytes(_TAG)
OVERHEAD = len(_PREFIX) + len(_SUFFIX)
"""Bytes by which a sealable payload is longer than its event."""

_STAGED = struct.Struct("<IB16s")
STAGED_SIZE = _STAGED.size
"""Bytes before the data in a file of staged data."""

_NOT_AUTHENTIC = _PREFIX
_NONCES = 512  # taken from the system at once
_CHECKED = 10_000  # segments whose key a process has checked and remembers
_INFO = b"ondisk segment"
_KNOWN = (b"\x69timestamp", b'"timestamp"')  # begin an event of CBOR, and of JSON
_PIECE = 64 * 1024  # bytes that show whether a key fits
_OTHER_PLACE = "the key is not the right one of this number, or its bytes, its place or its segment's name were changed"

_Payload = TypeVar("_Payload", bytes, bytes | memoryview)


class Stream:
    """AES-128 in counter mode over a segment's file; opens and seals any piece. Threads may share it.

    The IV is the counter of the first 16 bytes after the header, which ends at `begin`. A key of staged data has 32
    bytes.
    """

    is_framed: ClassVar[bool] = False

    def __init__(self, key: bytes, iv: bytes, begin: int) -> None:
        self._key = key
        self._first = int.from_bytes(iv, "big")
        self._begin = begin

    def seal(self, position: int, content: bytes) -> bytes:
        """Return bytes XOR the keystream at their position."""
        if position < self._begin:
            plain = self._begin - position
            return content[:plain] + self.seal(self._begin, content[plain:]) if content[plain:] else content
        return self.running(position)(content)

    unseal = seal

    def running(self, position: int | None = None) -> Callable[[bytes], bytes]:
        """Return a function that encrypts or decrypts what follows a position, or the header, piece after piece."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        blocks, skipped = divmod(0 if position is None else position - self._begin, _BLOCK)
        counter = (self._first + blocks) % (1 << 128)
        encryptor = Cipher(AES(self._key), CTR(counter.to_bytes(IV_SIZE, "big"))).encryptor()
        if skipped:
            encryptor.update(bytes(skipped))
        return encryptor.update


class Frames:
    """AES-256-GCM for each whole frame of a segment, by any key of a ring; the newest seals. Threads may share it."""

    is_framed: ClassVar[bool] = True

    def __init__(self, ring: KeyRing, file_id: bytes, digest: bytes, begin: int) -> None:
        self._ring = ring
        self._file_id = file_id
        self._digest = digest
        self._begin = begin
        self._ciphers: dict[int, AESGCM] = {}
        self._proven: set[int] = set()

    def seal(self, position: int, content: bytes) -> bytes:
        """Return sealable frames, sealed with the newest key; before the first frame, the header with its digest."""
        pieces: list[bytes] = []
        at, limit = 0, len(content)
        if position < self._begin:
            at = self._begin - position
            pieces += (content[: at - DIGEST_SIZE], self._digest)
        if at == limit:
            return b"".join(pieces)
        id_ = self._ring.newest(AES_256).id
        encrypt, digest, nonces = self._cipher(id_).encrypt, self._digest, b""
        while at < limit:
            size, kind, none, _ = _BEGIN.unpack_from(content, at)
            if kind != SEALABLE or none:
                raise InvalidInput(f"the frame at byte {position + at} cannot be encrypted: it has no room for a tag")
            if not nonces:
                nonces = os.urandom(_NONCE * _NONCES)
            nonce, nonces = nonces[:_NONCE], nonces[_NONCE:]
            event = content[at + _BEGIN.size : at + size - _TAG - _FOOTER.size]
            sealed = encrypt(nonce, event, digest + _PLACE.pack(position + at))
            checked = _BEGIN.pack(size, SEALABLE, id_, nonce) + sealed
            pieces += (checked, _FOOTER.pack(crc32(checked), size))
            at += size
        return b"".join(pieces)

    def unseal(self, position: int, content: bytes) -> bytes:
        """Return sealed frames as they were before; raise as `Sealer.unseal`."""
        found = frame.scan(content, max_size=len(content), base=position)
        if (damage := found.damage) is not None:
            hint = "Restore the segment from a copy, if there is one; the other data can be read."
            raise FrameCorrupt(f"no whole frame begins at byte {damage.offset}: {damage.reason}", hint=hint)
        opened = []
        for offset, payload in zip(found.offsets, found.payloads, strict=True):
            event = self.event(offset, payload)
            if isinstance(event, AuthenticationFailed):
                raise event
            opened.append(event)
        return b"".join(frame.encode(sealable(opened)))

    def check_key(self, read: Callable[[int, int], bytes], end: int, *, max_size: int) -> None:
        """Raise if the last frame shows that the newest key is not the one that had its number before.

        A frame that names another key, or is damaged, shows nothing. If the key is right, the segment is remembered,
        and not read again. Raises AuthenticationFailed, or KeyMissing without a key of 32 bytes.
        """
        newest = self._ring.newest(AES_256).id
        if self._file_id in self._ring.checked:
            return
        size = frame.length(read(end - 4, 4))
        begin = end - size
        if begin < self._begin or size > max_size:
            return
        whole = read(begin, size)
        if frame.length(whole) != size:  # its last length is damaged, and means several frames
            return
        if _key_of(whole[4:-8]) != newest or not frame.is_whole(whole, 0, size):
            return
        if isinstance(event := self.event(begin, whole[4:-8]), AuthenticationFailed):
            raise event
        if len(self._ring.checked) >= _CHECKED:
            self._ring.checked.clear()
        self._ring.checked.add(self._file_id)

    def event(self, offset: int, payload: bytes | memoryview) -> bytes | AuthenticationFailed:
        """Return the event in the payload of the frame at an offset, or why it is not authentic; raise KeyMissing."""
        id_ = _key_of(payload)
        if not id_:
            return self._failed(offset, "is not encrypted")
        cipher = self._ciphers.get(id_) or self._cipher(id_)
        nonce, sealed = bytes(payload[5:17]), payload[17:]
        from cryptography.exceptions import InvalidTag

        try:
            event = cipher.decrypt(nonce, sealed, self._digest + _PLACE.pack(offset))
        except InvalidTag:
            return self._failed(offset, f"does not authenticate with key {id_}")
        self._proven.add(id_)
        return event

    def events(self, offsets: Sequence[int], payloads: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Return the events in frames; in place of one that is not authentic what `events_of` refuses, or raise."""
        from cryptography.exceptions import InvalidTag

        if len({bytes(each[:5]) for each in payloads}) == 1 and (id_ := _key_of(min(payloads, key=len))):
            decrypt, digest, place = self._cipher(id_).decrypt, self._digest, _PLACE.pack
            try:
                both = zip(payloads, offsets, strict=True)
                opened = [decrypt(each[5:17], each[17:], digest + place(offset)) for each, offset in both]
            except InvalidTag:
                pass
            else:
                self._proven.add(id_)
                return [*opened]
        return self._one_by_one(offsets, payloads)

    def _one_by_one(self, offsets: Sequence[int], payloads: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Do as `events`, with frames that have different keys or are not all authentic."""
        opened = [*map(self.event, offsets, payloads)]
        events: list[bytes | memoryview] = []
        for event, payload in zip(opened, payloads, strict=True):
            if not isinstance(event, AuthenticationFailed):
                events.append(event)
            elif not _key_of(payload) or _key_of(payload) in self._proven:
                events.append(_NOT_AUTHENTIC)
            else:
                raise event
        return events

    def _failed(self, offset: int, how: str) -> AuthenticationFailed:
        hint = "If the keys are right, restore the segment from a backup; the other data can be read."
        return AuthenticationFailed(f"the datum at byte {offset} {how}: {_OTHER_PLACE}", hint=hint, offset=offset)

    def _cipher(self, id_: int) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if id_ not in self._ciphers:
            self._ciphers[id_] = AESGCM(file_key(self._ring.secret(id_, AES_256), self._file_id))
        return self._ciphers[id_]


def _key_of(payload: bytes | memoryview) -> int:
    """Return the number of the key in a sealed payload; 0 if it is not sealed."""
    return int.from_bytes(payload[1:5], "little") if len(payload) > OVERHEAD and payload[0] == SEALABLE else 0


def check_installed() -> None:
    """Raise ConfigError unless the package that encrypts is installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        hint = "Run `pip install 'ondisk[formats]'`."
        raise ConfigError("encrypted segments need the package cryptography", hint=hint) from None


def digest_of(stem: str) -> bytes:
    """Return the digest of a segment's name without its extension: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(stem.encode(), digest_size=DIGEST_SIZE).digest()


def begin_staged(*, gcm: bool) -> tuple[bytes, Stream]:
    """Return the first bytes of a file of staged data, key id and IV, and what encrypts those after them."""
    size = AES_256 if gcm else AES_128
    begin = _STAGED.pack(keys.current().newest(size).id, size, new_iv())
    return begin, staged_sealer(begin)


def staged_sealer(begin: bytes) -> Stream:
    """Return what decrypts a file of staged data; raise KeyMissing, or StateError if the file is too short."""
    if len(begin) < STAGED_SIZE:
        raise StateError("a file of staged data is damaged: nothing was stored", hint="Stage the data again.")
    id_, size, iv = _STAGED.unpack(begin)
    extracted = hmac.digest(iv, keys.current().secret(id_, size), "sha256")
    return Stream(hmac.digest(extracted, b"ondisk staged\x01", "sha256"), iv, STAGED_SIZE)


def new_iv() -> bytes:
    return os.urandom(IV_SIZE)


def file_key(secret: bytes, file_id: bytes) -> bytes:
    """Return the key of one segment: HKDF-SHA256 (RFC 5869) with the file id as salt."""
    extracted = hmac.digest(file_id, secret, "sha256")
    return hmac.digest(extracted, _INFO + b"\x01", "sha256")


def sealable(events: Sequence[bytes]) -> list[bytes]:
    return [_PREFIX + event + _SUFFIX for event in events]


def events_of(payloads: Sequence[_Payload]) -> Sequence[_Payload | bytes]:
    """Return the events in the payloads of one segment, all sealable or all plain; raise FrameCorrupt."""
    if not payloads or payloads[0][0] != SEALABLE:
        return payloads
    events: list[_Payload | bytes] = []
    for position, payload in enumerate(payloads):
        try:
            events.append(event_of(payload))
        except FrameCorrupt as error:
            error.context["position"] = position
            raise
    return events


def event_of(payload: bytes | memoryview) -> bytes:
    """Return the event in a sealable payload; raise FrameCorrupt if it is still sealed."""
    if payload[: len(_PREFIX)] != _PREFIX or payload[-_TAG:] != _SUFFIX or len(payload) <= OVERHEAD:
        hint = f"{RESTORE}."
        raise FrameCorrupt(f"its event is encrypted and does not authenticate: {_OTHER_PLACE}", hint=hint)
    return bytes(payload[len(_PREFIX) : -_TAG])


def sealer_of(
    head: Header, read: Callable[[int, int], bytes], name: str | None, *, max_size: int
) -> Stream | Frames | None:
    """Return what encrypts and decrypts a segment's file, with the keys of this process; None if it is plain.

    `read` returns bytes of the file by position and size; `name`, of the segment, is compared with the header if known.
    Raises AuthenticationFailed if no key fits, or it is another segment's file; ConfigError; or KeyMissing in counter
    mode. With GCM the first frame shows which key is needed.
    """
    if not head.encrypted:
        return None
    check_installed()
    ring = keys.current()
    if head.version != ONDISK:
        return stream_of(ring, head.iv, head.size, read, compressed=head.compressed, max_size=max_size)
    digest = head.digest if name is None else digest_of(name.rpartition(".")[0])
    if digest != head.digest != UNKNOWN:
        hint = "Give the file its name back, or restore the segment from a backup."
        raise AuthenticationFailed("it is the file of another segment, with another name", hint=hint)
    return Frames(ring, head.iv, digest, head.size)


def opened(file: SegmentFile, head: Header, *, max_size: int) -> tuple[SegmentFile, Frames | None]:
    """Return a segment's file as if it were not encrypted in counter mode; and what decrypts each frame, with GCM."""
    sealer = sealer_of(head, file.read, None, max_size=max_size)
    return (DecryptedFile(file, sealer), None) if isinstance(sealer, Stream) else (file, sealer)


def decrypted(stream: Readable, head: Header, *, max_size: int) -> tuple[Readable, Frames | None]:
    """Do the same as `opened` with a stream, which begins after the header. Memory: one frame, to find the key."""
    if not head.encrypted:
        return stream, None
    held = b""

    def read(position: int, size: int) -> bytes:
        nonlocal held
        end = position - head.size + size
        held += read_fully(stream, end - len(held))
        return held[position - head.size : end]

    sealer = sealer_of(head, read, None, max_size=max_size)
    stream = Chained(held, stream)
    return (_DecryptedStream(stream, sealer), None) if isinstance(sealer, Stream) else (stream, sealer)


class _DecryptedStream:
    """The bytes of a stream that is encrypted in counter mode, from after the header on."""

    def __init__(self, stream: Readable, key: Stream) -> None:
        self._stream = stream
        self._update = key.running()

    def read(self, size: int, /) -> bytes:
        return self._update(self._stream.read(size))


def stream_of(
    ring: KeyRing, iv: bytes, begin: int, read: Callable[[int, int], bytes], *, compressed: bool, max_size: int
) -> Stream:
    """Return the stream of a segment of Beats, which names no key: each is tried; or raise. Memory: one frame."""
    streams = [Stream(key.secret, iv, begin) for key in ring.of_size(AES_128)]
    size, stored = _PIECE, read(begin, _PIECE)
    if not stored:
        return streams[0]
    candidates = streams
    while candidates:
        undecided = []
        for stream in candidates:
            is_right = _fits(stream.unseal(begin, stored), compressed=compressed, max_size=max_size)
            if is_right:
                return stream
            if is_right is None:
                undecided.append(stream)
        if len(stored) < size or size > max_size + frame.OVERHEAD:
            break
        size *= 4
        candidates, stored = undecided, read(begin, size)
    for stream in () if compressed else streams:
        if _has_frame(stream.unseal(begin, stored[:_PIECE])):
            return stream
    number = f"none of the {len(streams)} keys" if len(streams) > 1 else "the only key"
    hint = "Add the right key. A file whose beginning is damaged fails in the same way: restore it from a backup."
    verb = "fits" if len(streams) > 1 else "does not fit"
    raise AuthenticationFailed(f"{number} of {AES_128} bytes in {ring.source} {verb}", hint=hint)


def _fits(plain: bytes, *, compressed: bool, max_size: int) -> bool | None:
    """Return whether bytes can be the beginning of a segment's data; None if more of them are needed."""
    if begins_frame(plain[:BEGIN_SIZE]):
        return True  # a draft does not say that it is compressed
    if compressed:
        return False
    if any(known in plain[:_PIECE] for known in _KNOWN):
        return True
    at = 0
    while frame.OVERHEAD < (size := frame.length(plain[at : at + 4])) <= max_size:
        if at + size > len(plain):
            return None
        if frame.is_whole(plain, at, max_size):
            return True
        if not frame.has_two_lengths(memoryview(plain)[at:], max_size):
            return False
        at += size  # of a damaged frame only the payload is wrong
    return False


def _has_frame(plain: bytes) -> bool:
    """Return whether a whole frame begins anywhere in bytes whose first length is damaged."""
    whole = memoryview(plain)
    places = range(len(plain) - frame.OVERHEAD)
    return any(frame.has_two_lengths(whole[at:], len(plain)) and frame.is_whole(plain, at, len(plain)) for at in places)
