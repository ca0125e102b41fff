"""Decrypts a whole segment in memory, and shares no code with ondisk: written from docs/seg.md."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from zlib import crc32

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

IV = slice(12, 28)


def iv_of(segment: bytes) -> bytes:
    """Return the IV or the file id; nothing of a plain segment."""
    return segment[IV] if segment[8:9] and segment[8] & 1 else b""


def decrypted(segment: bytes, keys: dict[int, bytes], stem: str) -> bytes:
    """Return a segment of version 2 without encryption; a plain one as it is.

    Args:
        keys: by their numbers. In counter mode the only one of 16 bytes counts.
        stem: of its name.
    """
    version, count, options = struct.unpack_from("<III", segment)
    head = struct.pack("<III", 2, count, options & ~1)
    if not options & 1:
        return segment
    if version == 2:
        (key,) = (each for each in keys.values() if len(each) == 16)
        return head + Cipher(AES(key), CTR(segment[IV])).decryptor().update(segment[28:])
    assert (version, options) == (256, 1)
    digest = hashlib.blake2b(stem.encode(), digest_size=16).digest()
    assert segment[28:44] == digest
    return head + b"".join(_frames(segment, keys, digest))


def _frames(segment: bytes, keys: dict[int, bytes], digest: bytes) -> Iterable[bytes]:
    at = 44
    while at < len(segment):
        length, kind, id_, nonce = struct.unpack_from("<IBI12s", segment, at)
        stored = segment[at : at + length]
        assert struct.unpack("<II", stored[-8:]) == (crc32(stored[:-8]), length)
        assert kind == 1
        key = HKDF(hashes.SHA256(), 32, salt=segment[IV], info=b"ondisk segment").derive(keys[id_])
        event = AESGCM(key).decrypt(nonce, stored[21:-8], digest + struct.pack("<Q", at))
        plain = struct.pack("<I", len(event) + 12) + event
        yield plain + struct.pack("<II", crc32(plain), len(event) + 12)
        at += length


def repeats_keystream(one: bytes, other: bytes) -> bool:
    """Return whether two states of a segment in counter mode show different bytes at one place of one keystream."""
    if not iv_of(one) or iv_of(one) != iv_of(other) or one[:4] != b"\x02\0\0\0":
        return False
    size = min(len(one), len(other))
    return one[28:size] != other[28:size]
