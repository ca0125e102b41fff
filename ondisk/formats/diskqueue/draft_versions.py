"""The drafts of versions 2 and 3 of the disk queue, which no Beats that was released writes or reads.

    u32 version = 2 or 3 | 16 bytes IV | AES-128 in counter mode of: frame | frame | …

A payload is an event as CBOR. It may be compressed as one LZ4 block without its size; always in version 3, unless there
all frames are in one LZ4 frame. Nothing in the file says which: the bytes do.

Nothing but the bytes distinguishes draft 2 from version 2 either: where that has its options, the draft has random
bytes. If these are no options that version 2 has, and a key decrypts the file as a draft, it is one. One file in
500 million looks like version 2 by chance.

Source: elastic/beats, pull request 31808, libbeat/publisher/queue/diskqueue: serialize.go, segments.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import lz4.block  # type: ignore[import-untyped]

from ondisk import frame
from ondisk.errors import AuthenticationFailed, ConfigError, InvalidInput, KeyMissing, SegmentCorrupt
from ondisk.formats.diskqueue import blocks, encryption
from ondisk.formats.diskqueue.cbor_payload import FIRST_KEY
from ondisk.formats.diskqueue.header import LZ4, Header

_RATIO = 10  # Beats allocates so many times the bytes of a compressed event
_HIGHEST_RATIO = 256  # of LZ4
_LITERALS, _MORE = 0xF0, 255  # a run of 15 literals or more, and a byte that says that its length goes on

Compression = Literal["none", "block", "stream"]


def header_of(head: bytes, read: Callable[[int, int], bytes], *, max_size: int) -> Header:
    """Return the header of a segment; that of the draft of version 2 if it cannot be version 2, and a key fits."""
    try:
        return Header.parse(head)
    except InvalidInput as error:
        if error.context.get("version") != 2:
            raise
        unknown = error
    try:
        draft = Header.parse(head, draft=True)
        encryption.sealer_of(draft, read, None, max_size=max_size)
    except SegmentCorrupt:
        raise unknown from None
    except (KeyMissing, AuthenticationFailed, ConfigError) as error:
        problem = f"{unknown.message}; as the draft of version 2 it cannot be decrypted: {error.message}"
        raise InvalidInput(problem, hint=error.hint, **unknown.context) from None
    return draft


def with_stream(header: Header, begin: bytes) -> Header:
    """Return the header of a draft, as compressed if its first decrypted bytes begin an LZ4 frame."""
    is_stream = header.draft and header.version == 3 and blocks.begins_frame(begin[: blocks.BEGIN_SIZE])
    return replace(header, options=LZ4) if is_stream else header


def events(payloads: Sequence[bytes | memoryview], max_size: int) -> list[bytes | memoryview]:
    """Return the events in payloads of a draft without an LZ4 frame; what is neither plain nor LZ4 stays."""
    return [_event(payload, max_size) for payload in payloads]


def _event(payload: bytes | memoryview, max_size: int) -> bytes | memoryview:
    if bytes(payload[1 : 1 + len(FIRST_KEY)]) == FIRST_KEY:
        return payload
    size = _RATIO * len(payload)
    while True:  # an event needs so many bytes only if it says so: each try shows more of it
        size = min(size, max_size)
        try:
            event: bytes = lz4.block.decompress(payload, uncompressed_size=size)
        except lz4.block.LZ4BlockError:
            if size >= min(max_size, _HIGHEST_RATIO * len(payload)):
                return payload
            size *= 4
        else:
            return event


def write(
    payloads: Sequence[bytes], key: bytes, *, version: Literal[2, 3] = 2, compression: Compression = "none"
) -> bytes:
    """Return a segment of a draft, as its Beats would read it: for tests, and for a Beat that was built from a draft.

    `compression` is of version 2 "none", or "block": each event alone; of version 3 "block", or "stream": all frames.
    """
    if compression not in {2: ("none", "block"), 3: ("block", "stream")}[version]:
        raise InvalidInput(f'the draft of version {version} has no compression "{compression}"')
    header = Header(version, draft=True, iv=encryption.new_iv())
    frames = frame.encode([*map(_block, payloads)] if compression == "block" else payloads)
    if compression == "stream":
        frames = [blocks.FRAME_HEADER, *(block.stored for block in blocks.pack(frames, 0)), blocks.END_MARK]
    return header.pack() + encryption.Stream(key, header.iv, header.size).seal(header.size, b"".join(frames))


def _block(event: bytes) -> bytes:
    """Return an event as an LZ4 block that Beats can decompress: at most to ten times its size."""
    compressed: bytes = lz4.block.compress(event, store_size=False)
    if _RATIO * len(compressed) >= len(event):
        return compressed
    more, rest = divmod(len(event) - 15, _MORE)  # such an event is long: all of it is one run of literals
    return bytes((_LITERALS, *(_MORE,) * more, rest)) + event
