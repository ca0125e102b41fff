"""Encryption of segments: AES-128 in counter mode, as Beats writes it; AES-256-GCM for each datum, as only ondisk does.

Both keep the length of what they encrypt, so that positions and offsets are the same with and without a key.

    counter mode (CTR)    after the header, the file's bytes XOR the keystream of its IV; any piece can be opened alone
    GCM                   a frame's payload is  0x01 | u32 key id | 12 bytes nonce | event | 16 bytes tag

Before a frame is sealed with GCM, key id, nonce and tag are zero: it is *sealable*. Its length is final. Sealing fills
them in, and computes the frame's checksum again, so frames can be checked without a key. A segment has a random file
id; its key is HKDF-SHA256 of the key and that id, so that random nonces are safe for any number of data. The additional
data are a digest of the segment's name and the frame's offset: no datum can be moved, and no segment renamed.

Counter mode does not authenticate. Two texts that are encrypted with the same keystream reveal each other, so nothing
may be written twice to a place in a file of one IV.

Source: counter mode is that of elastic/beats, pull request 31961; docs/format.md describes GCM.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from ondisk import frame
from ondisk.errors import AuthenticationFailed, ConfigError, FrameCorrupt, InvalidInput
from ondisk.keys import AES_128, AES_256, KeyRing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALABLE = 0x01
"""First byte of the payload of a frame that is sealable or sealed."""

IV_SIZE = FILE_ID_SIZE = DIGEST_SIZE = 16
_BLOCK = 16  # bytes that a counter stands for
_TAG, _NONCE = 16, 12
_BEGIN = struct.Struct("<IBI12s")  # of a frame: length, kind, key id, nonce
_PLACE = struct.Struct("<Q")
_FOOTER = struct.Struct("<II")
_PREFIX = struct.pack("<BI12s", SEALABLE, 0, b"")
_SUFFIX = bytes(_TAG)
OVERHEAD = len(_PREFIX) + len(_SUFFIX)
"""Bytes by which a sealable payload is longer than its event."""

_NONCES = 512  # taken from the system at once
_INFO = b"ondisk segment"
_MAGICS = (b"\x04\x22\x4d\x18", b"\0\0\0\0\x05\x5d\xcc\x02")  # an LZ4 frame; what Beats wrote for an empty one
_SKIPPABLE = b"\x2a\x4d\x18"  # the end of the magic of a skippable LZ4 frame
_KNOWN = (b"\x69timestamp", b'"timestamp"')  # begin an event of CBOR, and of JSON
_PIECE = 64 * 1024  # bytes that show whether a key fits
_OTHER_PLACE = "it is of another segment, its segment was renamed, or its bytes were changed"


class Sealer(Protocol):
    """Encrypts and decrypts the bytes of one segment's file. The results have the same length."""

    def seal(self, position: int, content: bytes) -> bytes:
        """Return plain bytes as they are stored at a position of the file."""

    def unseal(self, position: int, content: bytes) -> bytes:
        """Return stored bytes as they were before sealing.

        Raises:
            AuthenticationFailed: GCM only: they are not what was sealed for this place with this key.
            KeyMissing: the key that they name is not known.
        """


class Stream:
    """AES-128 in counter mode over a segment's file; opens and seals any piece. Threads may share it.

    Args:
        key: 16 bytes.
        iv: the counter of the first 16 bytes after the header, big-endian.
        begin: position of the first encrypted byte; those before it are plain.
    """

    def __init__(self, key: bytes, iv: bytes, begin: int) -> None:
        self._key = key
        self._first = int.from_bytes(iv, "big")
        self._begin = begin

    def __repr__(self) -> str:
        return f"Stream(begin={self._begin})"

    def seal(self, position: int, content: bytes) -> bytes:
        """Return bytes XOR the keystream at their position."""
        if position < self._begin:
            plain = self._begin - position
            return content[:plain] + self.seal(self._begin, content[plain:]) if content[plain:] else content
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        blocks, skipped = divmod(position - self._begin, _BLOCK)
        counter = (self._first + blocks) % (1 << 128)
        encryptor = Cipher(AES(self._key), CTR(counter.to_bytes(IV_SIZE, "big"))).encryptor()
        if skipped:
            encryptor.update(bytes(skipped))
        return encryptor.update(content)

    unseal = seal


class Frames:
    """AES-256-GCM for each frame of a segment; opens and seals whole frames. Threads may share it.

    Args:
        keys: those that frames may name; the newest seals.
        file_id: of the segment.
        digest: of the segment's name, see `digest_of`.
        begin: position of the first frame; the bytes before it end with the digest.
    """

    def __init__(self, keys: KeyRing, file_id: bytes, digest: bytes, begin: int) -> None:
        self._keys = keys
        self._file_id = file_id
        self._digest = digest
        self._begin = begin
        self._ciphers: dict[int, AESGCM] = {}
        self._proven: set[int] = set()

    def __repr__(self) -> str:
        return f"Frames(begin={self._begin})"

    def seal(self, position: int, content: bytes) -> bytes:
        """Return sealable frames, sealed with the newest key; before the first frame, the header with its digest.

        Raises:
            KeyMissing: there is no key of 32 bytes.
        """
        pieces: list[bytes] = []
        at, limit = 0, len(content)
        if position < self._begin:
            at = self._begin - position
            pieces += (content[: at - DIGEST_SIZE], self._digest)
        if at == limit:
            return b"".join(pieces)
        id_ = self._keys.newest(AES_256).id
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
        """Return sealed frames as they were before; see `Sealer.unseal`.

        Raises:
            FrameCorrupt: the bytes are not whole frames, or a frame's checksum is wrong.
        """
        pieces: list[bytes] = []
        at, limit = 0, len(content)
        while at < limit:
            size = frame.length(content[at : at + 4])
            if not frame.OVERHEAD < size <= limit - at:
                raise FrameCorrupt(f"no whole frame begins at byte {position + at}")
            checked = content[at : at + size - _FOOTER.size]
            event = self.event(position + at, checked[4:])
            if isinstance(event, AuthenticationFailed):
                frame.decode(content[at : at + size])  # damage of the disk has a wrong checksum, too
                raise event
            opened = b"".join((checked[:4], _PREFIX, event, _SUFFIX))
            pieces += (opened, _FOOTER.pack(crc32(opened), size))
            at += size
        return b"".join(pieces)

    def event(self, offset: int, payload: bytes | memoryview) -> bytes | AuthenticationFailed:
        """Return the event in the payload of the frame at an offset, or why it is not authentic.

        Raises:
            KeyMissing: the key that it names is not known.
        """
        if len(payload) < OVERHEAD or payload[0] != SEALABLE:
            return self._failed(offset, "is not encrypted")
        id_ = int.from_bytes(payload[1:5], "little")
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

    def has_opened(self, payload: bytes | memoryview) -> bool:
        """Return whether the key that a payload names has opened another frame of this segment, so it is right."""
        return int.from_bytes(payload[1:5], "little") in self._proven

    def _failed(self, offset: int, how: str) -> AuthenticationFailed:
        hint = "If the keys are right, restore the segment from a backup; the other data can be read."
        return AuthenticationFailed(f"the datum at byte {offset} {how}: {_OTHER_PLACE}", hint=hint, offset=offset)

    def _cipher(self, id_: int) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if id_ not in self._ciphers:
            self._ciphers[id_] = AESGCM(file_key(self._keys.secret(id_, AES_256), self._file_id))
        return self._ciphers[id_]


def check_installed() -> None:
    """Raise unless the package that encrypts is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError:
        hint = "Run `pip install 'ondisk[formats]'`."
        raise ConfigError("encrypted segments need the package cryptography", hint=hint) from None


def digest_of(stem: str) -> bytes:
    """Return the digest of a segment's name without its extension: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(stem.encode(), digest_size=DIGEST_SIZE).digest()


def file_key(secret: bytes, file_id: bytes) -> bytes:
    """Return the key of one segment: HKDF-SHA256 (RFC 5869) with the file id as salt."""
    extracted = hmac.digest(file_id, secret, "sha256")
    return hmac.digest(extracted, _INFO + b"\x01", "sha256")


def sealable(events: Sequence[bytes]) -> list[bytes]:
    """Return payloads with room for what sealing adds."""
    begins = map(bytes.__add__, repeat(_PREFIX), events)
    return list(map(bytes.__add__, begins, repeat(_SUFFIX)))


def event_of(payload: bytes | memoryview) -> bytes:
    """Return the event in a sealable payload.

    Raises:
        FrameCorrupt: it is still sealed.
    """
    if payload[: len(_PREFIX)] != _PREFIX or payload[-_TAG:] != _SUFFIX or len(payload) <= OVERHEAD:
        hint = "It is in a file of another version than 256; restore the segment from a backup."
        raise FrameCorrupt("the event is encrypted, and its segment does not say so", hint=hint)
    return bytes(payload[len(_PREFIX) : -_TAG])


def stream_of(
    keys: KeyRing, iv: bytes, begin: int, read: Callable[[int, int], bytes], *, compressed: bool, max_size: int
) -> Stream:
    """Return the stream of a segment of Beats, which does not name its key: each is tried until something is valid.

    Args:
        read: returns stored bytes by position and size, fewer at the end.
        compressed: an LZ4 frame begins at `begin`, otherwise frames do.
        max_size: of a frame.

    Raises:
        KeyMissing: there is no key of 16 bytes.
        AuthenticationFailed: none of them fits.

    Memory: one frame.
    """
    streams = [Stream(secret, iv, begin) for secret in keys.of_size(AES_128)]
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
    raise AuthenticationFailed(f"{number} of {AES_128} bytes in {keys.source} {verb}", hint=hint)


def _fits(plain: bytes, *, compressed: bool, max_size: int) -> bool | None:
    """Return whether bytes can be the beginning of a segment's data; None if more of them are needed."""
    if compressed:
        return plain.startswith(_MAGICS) or plain[1:4] == _SKIPPABLE
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
