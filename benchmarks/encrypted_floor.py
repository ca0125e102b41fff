"""The floor of encrypted segments: the same frames, ciphers, columns, indexes and syncs, written by hand.

A segment of a batch is encrypted with one call in counter mode, and frame by frame with GCM.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import cbor2
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from events import EPOCH, FOOTER, LENGTH, MICROSECOND, OVERHEAD
from seg_floor import SegFloor

import ondisk

KEY_128, KEY_256 = bytes(range(16)), bytes(range(32))
_SEALED = Struct("<IBI12s")
_PLACE = Struct("<Q")
_DIGEST = bytes(16)
_ROOM = 33


class EncryptedFloor(SegFloor):
    """A dataset of encrypted segments that is only fast.

    Args:
        gcm: each datum is encrypted by itself; otherwise the segments are in counter mode.
    """

    def __init__(self, path: Path, *, gcm: bool) -> None:
        super().__init__(path)
        self._gcm = gcm
        self._seal = AESGCM(KEY_256).encrypt
        self._update = Cipher(AES(KEY_128), CTR(bytes(16))).encryptor().update

    def _append_batch(self, data: list[ondisk.Datum]) -> None:
        rows = []
        contents: dict[str, list[bytes]] = defaultdict(list)
        values, segments = self.values, self.segments
        dumps, frame = cbor2.dumps, self._sealed if self._gcm else _framed
        time = None
        self.db.execute("BEGIN IMMEDIATE")
        for number, datum in enumerate(data, self.next):
            if datum.reftime != time:
                time = datum.reftime
                reftime = (time - EPOCH) // MICROSECOND
                name = time.strftime("%Y/%m-%d.seg")
                segment = segments.setdefault(name, [len(segments) + 1, 44])
                frames = contents[name]
            metadata = datum.metadata
            product = metadata["product"]
            if product not in values:
                self._intern(product)
            payload = dumps({"timestamp": reftime * 1000, "flags": 0, "meta": metadata, "fields": datum.data})
            frames.append(framed := frame(payload, segment[1]))
            rows.append((number, reftime, *segment, len(framed), metadata["station"], values[product]))
            segment[1] += len(framed)
        self.next += len(data)
        self.db.executemany("INSERT INTO datum VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        for name, frames in contents.items():
            path = self.path / name
            path.parent.mkdir(exist_ok=True)
            content = b"".join(frames)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, content if self._gcm else self._update(content))
            os.fsync(descriptor)
            os.close(descriptor)
            self.db.execute(
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?)", (segments[name][0], name, segments[name][1])
            )
        self.db.execute("COMMIT")

    def _sealed(self, payload: bytes, offset: int) -> bytes:
        size, nonce = len(payload) + OVERHEAD + _ROOM, os.urandom(12)
        sealed = self._seal(nonce, payload, _DIGEST + _PLACE.pack(offset))
        begin = _SEALED.pack(size, 1, 1, nonce) + sealed
        return begin + FOOTER.pack(crc32(begin), size)


def _framed(payload: bytes, _: int) -> bytes:
    size = len(payload) + OVERHEAD
    begin = LENGTH.pack(size) + payload
    return begin + FOOTER.pack(crc32(begin), size)


def scan(path: Path, begin: int, key: bytes, iv: bytes, digest: bytes) -> Iterator[Any]:
    """Yield the events of an encrypted segment.

    Args:
        begin: of the first frame.
        key: of 16 bytes for counter mode, or that of the segment, of 32 bytes.
        iv: of counter mode.
        digest: of the segment's name.
    """
    loads, unpack, unpack_footer = cbor2.loads, LENGTH.unpack_from, FOOTER.unpack_from
    content = path.read_bytes()
    decrypt: Callable[..., bytes] | None = None
    if len(key) == len(KEY_128):
        content = content[:begin] + Cipher(AES(key), CTR(iv)).decryptor().update(content[begin:])
    else:
        decrypt = AESGCM(key).decrypt
    at = begin
    while at < len(content):
        (size,) = unpack(content, at)
        checked = content[at : at + size - FOOTER.size]
        if unpack_footer(content, at + size - FOOTER.size) != (crc32(checked), size):
            raise ValueError(f"frame at {at}")
        if decrypt is None:
            yield loads(checked[LENGTH.size :])
        else:
            yield loads(decrypt(checked[9:21], checked[21:], digest + _PLACE.pack(at)))
        at += size
