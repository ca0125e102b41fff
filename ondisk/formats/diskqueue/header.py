"""The first bytes of a segment: its version, its count of frames, and how they are stored.

    version 0 (4 bytes)     u32 version = 0
    version 1 (8 bytes)     u32 version = 1 | u32 frame count
    version 2 (12 bytes)    u32 version = 2 | u32 frame count | u32 options (| 16 bytes IV, if encrypted)
    drafts 2, 3 (20 bytes)  u32 version = 2 or 3 | 16 bytes IV
    version 256 (44 bytes)  u32 version = 256 | u32 frame count | u32 options | 16 bytes file id | 16 bytes digest

All integers are little-endian. Options: 0x1 encryption, 0x2 LZ4, 0x4 protobuf. Beats ignores any other bit; ondisk
refuses it. The frame count is a hint: it is zero after a crash and too low after some shutdowns, so readers do not stop
at it. A count that is too high proves that frames are lost, or that an append was interrupted. When Beats restarts, it
drops compressed segments with a count of zero. So ondisk updates the count with every append.

The drafts were never released; both are encrypted, and version 3 is compressed, too. Nothing but their bytes tells
draft 2 from version 2. Version 256 is ondisk's own, which every Beats refuses: each datum is encrypted by itself. The
digest is that of the segment's name, so that segments cannot be exchanged.

Source: elastic/beats, libbeat/publisher/queue/diskqueue: segments.go of 7.9 (version 0), 7.14 (version 1) and of pull
requests 31808 (drafts), 31961, 32024 and 32258 (version 2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ondisk.errors import IndexCorrupt, InvalidInput, SegmentCorrupt, command
from ondisk.formats.base import MOVE, compression_of

VERSION = 2
"""The version that ondisk writes unless the configuration says otherwise."""

ONDISK = 256
"""The version whose data are encrypted one by one."""

ENCRYPTION, LZ4, PROTOBUF = 0x1, 0x2, 0x4
SIZE = 12
"""Bytes of the header of version 2 without encryption."""

MAX_SIZE = 44
"""Bytes of the longest header."""

COUNT_OFFSET = 4
"""Position of the frame count in all versions that have one; `COUNT` packs it."""

COUNT = struct.Struct("<I")

_U32 = struct.Struct("<I")
_IV = 16
_DRAFT = 0x80  # a bit of `Header.kind`
FOUND = 0x40
"""A bit of `End.kind`: the segment was found on disk. Nobody knows whether its file was once continued in another way,
so in counter mode it must not be continued."""

_DIGEST = 16
_DRAFTS = (2, 3)
_LOGICAL_SIZES = {0: 4, 1: 8, 2: SIZE, ONDISK: MAX_SIZE}
_OPTIONS = {2: ENCRYPTION | LZ4 | PROTOBUF, ONDISK: ENCRYPTION | PROTOBUF}


@dataclass(frozen=True, slots=True)
class Header:
    version: int = VERSION  # 0, 1, 2, 3 or 256
    frame_count: int = 0  # number of frames written, a hint; 0 in versions without it
    options: int = 0  # bits; 0 in versions without them
    draft: bool = False  # it is one of the drafts of versions 2 and 3
    iv: bytes = b""  # 16 random bytes if the segment is encrypted, else empty; in version 256 the file id
    digest: bytes = b""  # in version 256, of the segment's name; else empty

    @property
    def size(self) -> int:
        """Bytes of the file before the first frame or block, including the IV."""
        return self.logical_size + _IV * (self.encrypted and self.version != ONDISK)

    @property
    def logical_size(self) -> int:
        """Bytes before the first frame as Beats counts them in `state.dat`: without the IV."""
        return _U32.size if self.draft else _LOGICAL_SIZES[self.version]

    @property
    def kind(self) -> int:
        """All of it but the frame count, the random bytes and LZ4, as `ondisk.segment.End` has it; 0 for version 2."""
        return (self.version ^ VERSION) << 8 | _DRAFT * self.draft | self.options & ~LZ4

    @classmethod
    def of_kind(cls, kind: int) -> Header:
        """Return the header of a `kind`, without what is not in it; raise IndexCorrupt if no header has this kind."""
        found = cls((kind >> 8) ^ VERSION, options=kind & ~(_DRAFT | FOUND) & 0xFF, draft=bool(kind & _DRAFT))
        known = 0 if found.draft else _OPTIONS.get(found.version, 0) & ~LZ4
        if found.version not in (_DRAFTS if found.draft else _LOGICAL_SIZES) or found.options & ~known:
            hint = f"Run {command('fix', 'DATASET', '--rebuild', '--yes')}: it reads the segments into a new index."
            raise IndexCorrupt(f"the index is damaged: no segment is of the kind {kind}", hint=hint, kind=kind)
        return found

    @property
    def stored(self) -> dict[str, int | str]:
        """How the data of a segment are stored, in the words of `dataset.toml`; of a draft, as far as it says that."""
        encryption = "none" if not self.encrypted else "aes-256-gcm" if self.version == ONDISK else "aes-128-ctr"
        payload = "json" if self.version == 0 else "protobuf" if self.options & PROTOBUF else "cbor"
        compression = "lz4" if self.compressed else "none"
        return {"version": self.version, "payload": payload, "compression": compression, "encryption": encryption}

    @property
    def counted(self) -> bool:
        return self.version != 0 and not self.draft

    @property
    def compressed(self) -> bool:
        """Whether all frames are in one LZ4 frame."""
        return bool(self.options & LZ4)

    @property
    def encrypted(self) -> bool:
        return self.draft or bool(self.options & ENCRYPTION)

    @classmethod
    def parse(cls, head: bytes, *, draft: bool = False) -> Header:
        """Return the header in a segment's first `MAX_SIZE` bytes; raise InvalidInput, or SegmentCorrupt of fewer."""
        version = int.from_bytes(_take(head, 0, _U32.size), "little")
        if version == 3 or (version == 2 and draft):
            return cls(version, draft=True, iv=_take(head, 4, _IV))
        if version not in _LOGICAL_SIZES:
            raise _not_a_segment(head) or _unknown(f"version {version}", version=version)
        if version == 0:
            if len(head) > _U32.size and not any(head):
                raise InvalidInput("it begins with zeros, and no segment of a disk queue", hint=MOVE)
            return cls(0)
        (frame_count,) = COUNT.unpack(_take(head, COUNT_OFFSET, COUNT.size))
        if version == 1:
            return cls(1, frame_count)
        (options,) = _U32.unpack(_take(head, 8, _U32.size))
        if unknown := options & ~_OPTIONS[version]:
            raise _unknown(f"options {unknown:#x} of version {version}", version=version, options=options)
        if version == ONDISK:
            return cls(
                version, frame_count, options, iv=_take(head, SIZE, _IV), digest=_take(head, SIZE + _IV, _DIGEST)
            )
        return cls(version, frame_count, options, iv=_take(head, SIZE, _IV) if options & ENCRYPTION else b"")

    def pack(self) -> bytes:
        if self.draft:
            return _U32.pack(self.version) + self.iv
        words = (self.version, self.frame_count, self.options)[: min(self.logical_size, SIZE) // _U32.size]
        return struct.pack(f"<{len(words)}I", *words) + self.iv + self.digest


def _take(head: bytes, at: int, size: int) -> bytes:
    taken = head[at : at + size]
    if len(taken) < size:
        reason = f"the file ends after {len(head)} of the {at + size} bytes of its header"
        raise SegmentCorrupt(f"not a disk queue segment: {reason}", offset=len(head), reason=reason)
    return taken


def _not_a_segment(head: bytes) -> InvalidInput | None:
    """Return the error for a file that is text, or compressed; None if it may be a segment of another version."""
    if compression := compression_of(head):
        problem = f"it is compressed with {compression}, and no segment of a disk queue"
        return InvalidInput(problem, hint="Decompress it first.")
    if min(head) >= ord("\t") and head.isascii():
        hint = (
            "CSV has the extension .csv, or needs `--format csv`; JSON lines have .jsonl, or need `--format jsonl`."
            " `ondisk init DATASET --from FILE` proposes a dataset for a file of either."
        )
        return InvalidInput("it is text, and no segment of a disk queue", hint=hint)
    return None


def _unknown(what: str, **context: int) -> InvalidInput:
    hint = (
        "ondisk reads versions 0 to 3 and 256. Is it a segment of a Beats disk queue? Photos and other files that are"
        " data as a whole belong in a dataset of the format blob."
    )
    return InvalidInput(f"unknown {what} of the disk queue's segments", hint=hint, **context)
