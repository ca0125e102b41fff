"""The first bytes of a segment: which version it is, how many frames it says it holds, and how they are stored.

    version 1 (8 bytes)     u32 version = 1 | u32 frame count
    version 2 (12 bytes)    u32 version = 2 | u32 frame count | u32 options

All integers are little-endian. Options: 0x1 encryption, 0x2 LZ4, 0x4 protobuf; Beats ignores any other bit, ondisk does
not. The frame count is a hint, zero after a crash and too low after some shutdowns; it is never a reason to read less.
But Beats drops a compressed segment whose count is zero when it restarts, so what ondisk writes keeps it up.

Source: elastic/beats, libbeat/publisher/queue/diskqueue: segments.go of 7.14 (version 1) and of pull requests 31961,
32024 and 32258 (version 2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ondisk.errors import InvalidInput, SegmentCorrupt

VERSION = 2
"""The version that ondisk writes."""

LZ4 = 0x2
SIZE = 12
"""Bytes of the header that ondisk writes, and the first frame's logical offset behind it."""

COUNT_OFFSET = 4
"""Where the frame count stands, in either version, as `COUNT` packs it."""

COUNT = struct.Struct("<I")

_V2 = struct.Struct("<III")
_SIZES = {1: 8, 2: SIZE}
_NOT_YET = {0x1: "encryption (option 0x1)", 0x4: "protobuf (option 0x4)"}


@dataclass(frozen=True, slots=True)
class Header:
    """A segment's header.

    Attributes:
        version: 1 or 2.
        frame_count: frames that the writer says it wrote; a hint.
        options: bits; 0, or `LZ4`.
    """

    version: int = VERSION
    frame_count: int = 0
    options: int = 0

    @property
    def size(self) -> int:
        """Bytes of the header in the file, and the logical offset of the first frame."""
        return _SIZES[self.version]

    @property
    def compressed(self) -> bool:
        return bool(self.options & LZ4)

    @classmethod
    def parse(cls, head: bytes) -> Header:
        """Read the header from a segment's first bytes; 12 are always enough.

        Raises:
            InvalidInput: it is a version or has an option that ondisk does not read.
            SegmentCorrupt: the bytes end inside the header.
        """
        if len(head) < 4:
            raise _cut(head, 4)
        version = int.from_bytes(head[:4], "little")
        if version not in _SIZES:
            raise _unsupported(_name(version), version=version)
        if len(head) < _SIZES[version]:
            raise _cut(head, _SIZES[version])
        (frame_count,) = COUNT.unpack_from(head, COUNT_OFFSET)
        if version == 1:
            return cls(1, frame_count)
        options = int.from_bytes(head[8:12], "little")
        if options & ~LZ4:
            raise _unsupported(_name_options(options & ~LZ4), version=version, options=options)
        return cls(2, frame_count, options)

    def pack(self) -> bytes:
        """Write a header of version 2.

        Raises:
            InvalidInput: it is a header of version 1, which is only read.
        """
        if self.version != VERSION:
            raise InvalidInput(f"a segment of version {self.version} is only read, never written", version=self.version)
        return _V2.pack(self.version, self.frame_count, self.options)


def _name(version: int) -> str:
    match version:
        case 0:
            return "version 0 (JSON, Beats before 7.14)"
        case 3:
            return "version 3 (a draft with encryption and LZ4, never released)"
        case _:
            return f"version {version}"


def _name_options(options: int) -> str:
    names = [name for bit, name in _NOT_YET.items() if options & bit]
    unknown = options & ~sum(_NOT_YET)
    return ", ".join(names + [f"unknown options {unknown:#x}"] * bool(unknown))


def _unsupported(what: str, **context: int) -> InvalidInput:
    hint = "ondisk reads versions 1 and 2 with CBOR, plain or with LZ4. Is it a segment of a Beats disk queue?"
    return InvalidInput(f"not supported yet: {what} of the disk queue's segments", hint=hint, **context)


def _cut(head: bytes, size: int) -> SegmentCorrupt:
    reason = f"the file ends after {len(head)} of the {size} bytes of its header"
    return SegmentCorrupt(f"no disk queue segment: {reason}", offset=len(head), reason=reason)
