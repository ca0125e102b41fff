"""Reads and writes a whole segment in memory with the codec, and generates events."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from hypothesis import strategies as st

from ondisk import frame
from ondisk.errors import SegmentCorrupt
from ondisk.formats.diskqueue import blocks, header, payload
from ondisk.formats.diskqueue.payload import Event

MAX_SIZE = 128 * 1024 * 1024


@dataclass
class Read:
    """The events before the first damage, and its reason."""

    header: header.Header
    events: list[Event] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    damage: str | None = None


def read(segment: bytes) -> Read:
    result = Read(header.Header.parse(segment[: header.MAX_SIZE]))
    start = result.header.size
    data = segment[start:]
    if result.header.compressed:
        data = b""
        try:
            for block in blocks.BlockReader(
                io.BytesIO(segment[start:]), start, start, payload.first_key(result.header)
            ):
                data += block.data
        except SegmentCorrupt as error:
            result.damage = error.context["reason"]
    scanned = frame.scan(data, max_size=MAX_SIZE, base=start)
    result.events = payload.decode(scanned.payloads).one_by_one()
    result.offsets = scanned.offsets
    if scanned.damage:
        result.damage = result.damage or scanned.damage.reason
    return result


def encode(events: list[Event], **limits: int) -> list[bytes]:
    return payload.encode(
        [event.timestamp for event in events],
        [event.meta for event in events],
        [event.data for event in events],
        **limits,
    )


def write(batches: list[list[Event]], options: int = header.LZ4) -> bytes:
    """Write a segment, one flush for each batch."""
    segment = header.Header(frame_count=sum(map(len, batches)), options=options).pack()
    offset = len(segment)
    if options == header.LZ4:
        segment += blocks.FRAME_HEADER
    for batch in batches:
        frames = frame.encode(encode(batch))
        if options == header.LZ4:
            segment += b"".join(block.stored for block in blocks.pack(frames, offset))
        else:
            segment += b"".join(frames)
        offset += sum(map(len, frames))
    return segment


_POWERS = [sign * 2**power for power in (0, 5, 7, 8, 15, 16, 31, 32, 63) for sign in (-1, 1)]
_EDGES = [power + step for power in [*_POWERS, 2**64 - 2] for step in (-1, 0, 1)]
integers = st.sampled_from([edge for edge in _EDGES if edge >= -(2**63)]) | st.integers(-(2**63), 2**64 - 1)
# Bytes decoded as in a segment are text in any case: other lone surrogates are not.
texts = st.text(max_size=30) | st.binary(max_size=30).map(lambda raw: raw.decode(errors="surrogateescape"))
keys = texts.filter(bool)
leaves = st.none() | st.booleans() | integers | st.floats() | texts | st.binary(max_size=30)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
mappings = st.dictionaries(keys, values, max_size=4)
timestamps = st.sampled_from([0, -1, -129, -256, -(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
_bytes = st.binary(max_size=30).map(lambda data: {"data": data})
events = st.builds(Event, timestamps, st.just(0), mappings, mappings) | st.builds(
    Event, timestamps, st.just(0x80), mappings, _bytes
)
