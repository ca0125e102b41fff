"""The first bytes of a segment: its version, its count of frames, and how they are stored.

    version 1 (8 bytes)     u32 version = 1 | u32 frame count
    version 2 (12 bytes)    u32 version = 2 | u32 frame count | u32 options

All integers are little-endian. Options: 0x1 encryption, 0x2 LZ4, 0x4 protobuf. Beats ignores any other bit; ondisk
refuses it. The frame count is a hint: it is zero after a crash and too low after some shutdowns, so readers do not stop
at it. A count that is too high proves that frames are lost, or that an append was interrupted. When Beats restarts, it
drops compressed segments with a count of zero. So ondisk updates the count with every append.

Source: elastic/beats, libbeat/publisher/queue/diskqueue: segments.go of 7.14 (version 1) and of pull requests 31961,
32024 and 32258 (version 2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ondisk.errors import InvalidInput, SegmentCorrupt
from ondisk.formats.base import compression_of

VERSION = 2
"""The version that ondisk writes."""

LZ4 = 0x2
SIZE = 12
"""Bytes of the header that ondisk writes; also the logical offset of the first frame after it."""

COUNT_OFFSET = 4
"""Position of the frame count in both versions; `COUNT` packs it."""

COUNT = struct.Struct("<I")

_V2 = struct.Struct("<III")
_SIZES = {1: 8, 2: SIZE}
_NOT_YET = {0x1: "encryption (option 0x1)", 0x4: "protobuf (option 0x4)"}


@dataclass(frozen=True, slots=True)
class Header:
    """A segment's header.

    Attributes:
        version: 1 or 2.
        frame_count: number of frames written, a hint.
        options: bits; 0, or `LZ4`.
    """

    version: int = VERSION
    frame_count: int = 0
    options: int = 0

    @property
    def size(self) -> int:
        """Bytes of the header in the file; also the logical offset of the first frame."""
        return _SIZES[self.version]

    @property
    def compressed(self) -> bool:
        return bool(self.options & LZ4)

    @classmethod
    def parse(cls, head: bytes) -> Header:
        """Return the header in a segment's first bytes; 12 bytes are always enough.

        Raises:
            InvalidInput: ondisk does not support its version or one of its options.
            SegmentCorrupt: the bytes end inside the header.
        """
        if len(head) < 4:
            raise _cut(head, 4)
        version = int.from_bytes(head[:4], "little")
        if version not in _SIZES:
            raise _not_a_segment(head) or _unsupported(_name(version), version=version)
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
        """Return the bytes of a header of version 2.

        Raises:
            InvalidInput: the header is of version 1.
        """
        if self.version != VERSION:
            raise InvalidInput(f"ondisk cannot write a segment of version {self.version}", version=self.version)
        return _V2.pack(self.version, self.frame_count, self.options)


def count_in(head: bytes) -> int:
    """Return the frame count in a segment's first bytes; 0 if they end before it."""
    return int.from_bytes(head[COUNT_OFFSET : COUNT_OFFSET + COUNT.size], "little")


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


def _not_a_segment(head: bytes) -> InvalidInput | None:
    """Return the error for a file that is text, or compressed; None if it may be a segment of another version."""
    if compression := compression_of(head):
        problem = f"it is compressed with {compression}, and no segment of a disk queue"
        return InvalidInput(problem, hint="Decompress it first.")
    if min(head) >= ord("\t") and head.isascii():
        hint = "ondisk does not read CSV yet. JSON lines have the extension .jsonl, or need `--format jsonl`."
        return InvalidInput("it is text, and no segment of a disk queue", hint=hint)
    return None


def _unsupported(what: str, **context: int) -> InvalidInput:
    hint = "ondisk reads versions 1 and 2 with CBOR, plain or with LZ4. Is it a segment of a Beats disk queue?"
    return InvalidInput(f"not supported yet: {what} of the disk queue's segments", hint=hint, **context)


def _cut(head: bytes, size: int) -> SegmentCorrupt:
    reason = f"the file ends after {len(head)} of the {size} bytes of its header"
    return SegmentCorrupt(f"not a disk queue segment: {reason}", offset=len(head), reason=reason)
