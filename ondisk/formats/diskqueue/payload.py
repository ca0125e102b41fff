"""Payloads: the content of a frame, an event. Its first byte says in which of three ways it is stored.

    0xa0 to 0xbf                     CBOR: `cbor_payload`
    {                                JSON: `json_payload`
    0x0a, 0x12, 0x1a, 0x22, 0x2a, 0x32    protobuf: `protobuf`
    0x01                             encrypted by ondisk, one of the others in it: `encryption`

So an event can be read without knowing its segment. A segment contains events of one kind; see `Kind.of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Any

from ondisk.errors import FrameCorrupt, InvalidInput
from ondisk.formats.diskqueue import cbor_payload, json_payload, protobuf
from ondisk.formats.diskqueue.encryption import SEALABLE, event_of
from ondisk.formats.diskqueue.event import MAX_DEPTH, MAX_ITEMS, Buffer, Event, Events, no_event, to_fields
from ondisk.formats.diskqueue.header import ONDISK, PROTOBUF, Header
from ondisk.frame import FirstKey

__all__ = [
    "FIRST_KEYS", "MAX_DEPTH", "MAX_ITEMS", "Buffer", "Event", "Events", "Kind",
    "convert", "decode", "decode_one", "encode", "first_key", "kind_of", "kinds_in",
]  # fmt: skip

_CHUNK = 512  # payloads that are encoded or decoded together


class Kind(Enum):
    CBOR = "CBOR"
    JSON = "JSON"
    PROTOBUF = "protobuf"

    @classmethod
    def of(cls, header: Header) -> Kind:
        """Return the kind of the payloads in segments with a header, as far as it says."""
        if header.options & PROTOBUF:
            return cls.PROTOBUF
        return cls.JSON if header.version == 0 else cls.CBOR


_KINDS: dict[int | None, Kind] = {
    **dict.fromkeys(range(0xA0, 0xC0), Kind.CBOR),
    **dict.fromkeys((0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32), Kind.PROTOBUF),
    ord("{"): Kind.JSON,
}
_KEYS = {
    Kind.CBOR: FirstKey(cbor_payload.FIRST_KEY),
    Kind.JSON: FirstKey(json_payload.FIRST_KEY),
    Kind.PROTOBUF: FirstKey(protobuf.FIRST_KEY),
}
FIRST_KEYS = tuple(_KEYS.values())
"""What follows the first byte of payloads that are not encrypted."""

_DRAFT_KEY = FirstKey(re.compile(b"%b|(?<=[\xf0-\xff]).\xa4%b" % ((cbor_payload.FIRST_KEY,) * 2), re.DOTALL))
_SEALED_KEY = FirstKey(re.compile(b"(?<=%c)." % SEALABLE, re.DOTALL))
_ENCODE = {Kind.CBOR: cbor_payload.encode, Kind.JSON: json_payload.encode, Kind.PROTOBUF: protobuf.encode}
_DECODE = {Kind.CBOR: cbor_payload.decode_one, Kind.JSON: json_payload.decode_one, Kind.PROTOBUF: protobuf.decode_one}


def kind_of(payload: Buffer) -> Kind | None:
    """Return how an event is stored; None if it is encrypted, or not an event."""
    return _KINDS.get(payload[0]) if payload else None


def first_key(header: Header) -> FirstKey:
    """Return what follows the first byte of every payload in segments with a header."""
    if header.draft and not header.compressed:  # an event may be an LZ4 block, which begins with two bytes of lengths
        return _DRAFT_KEY
    return _SEALED_KEY if header.version == ONDISK else _KEYS[Kind.of(header)]


def kinds_in(payloads: Sequence[Buffer]) -> set[Kind | None]:
    """Return how the events in payloads are stored, as `kind_of` does."""
    return {_KINDS.get(first) for first in {payload[0] if payload else None for payload in payloads}}


def encode(
    timestamps: Sequence[int],
    metas: Sequence[Mapping[str, Any]],
    data: Sequence[Any],
    *,
    kind: Kind = Kind.CBOR,
    max_depth: int = MAX_DEPTH,
) -> list[bytes]:
    """Return data (mappings, bytes, or None for the empty mapping) as payloads; Beats reads equal values from them.

    Timestamps are nanoseconds since 1970, 64 bits; a `datetime` in metadata is written as text.
    Raises InvalidInput of a value that a payload of this kind cannot have; or LimitExceeded.
    """
    payloads: list[bytes] = []
    for begin in range(0, len(data), _CHUNK):
        end = begin + _CHUNK
        flags, fields = to_fields(data[begin:end])
        payloads += _ENCODE[kind](Events(timestamps[begin:end], flags, metas[begin:end], fields), max_depth)
    return payloads


def convert(payloads: Sequence[Buffer], kind: Kind, *, max_depth: int = MAX_DEPTH) -> list[bytes]:
    """Return the events in payloads of any kinds as payloads of one kind; those that are of it stay as they are."""
    converted: list[bytes] = []
    for is_kind, run in groupby(payloads, lambda payload: kind_of(payload) is kind):
        some = [*run]
        if is_kind:
            converted += map(bytes, some)
            continue
        for begin in range(0, len(some), _CHUNK):
            events = _decoded(some[begin : begin + _CHUNK], len(converted), max_depth, data=True)
            converted += _ENCODE[kind](events, max_depth)
    return converted


def decode(payloads: Sequence[Buffer], *, max_depth: int = MAX_DEPTH, data: bool = True) -> Events:
    """Return the events in payloads; with `data=False`, data that are bytes may come back empty.

    Raises:
        FrameCorrupt: one is not an event; the context has its `position`, and `reason` and `byte` if known.
        LimitExceeded: one is nested deeper than `max_depth`, or has more than `MAX_ITEMS` values and keys.

    Cost: 2 µs for a small event, 20 µs for one that is not plain. Memory: the events; up to 70 bytes for each byte of a
        hostile payload, so pass about a megabyte at a time.
    """
    whole = Events([], [], [], [])
    for begin in range(0, len(payloads), _CHUNK):
        loaded = _decoded(payloads[begin : begin + _CHUNK], begin, max_depth, data=data)
        for column, part in zip(whole, loaded, strict=True):
            column.extend(part)  # type: ignore[attr-defined]  # the lists made above
    return whole


def _decoded(payloads: Sequence[Buffer], begin: int, max_depth: int, *, data: bool) -> Events:
    if (
        kinds_in(payloads) == {Kind.CBOR}
        and (events := cbor_payload.decode(payloads, max_depth, data=data)) is not None
    ):
        return events
    each = [decode_one(each, max_depth=max_depth, position=position) for position, each in enumerate(payloads, begin)]
    return Events(*map(list, zip(*each, strict=True)))


def decode_one(payload: Buffer, *, max_depth: int = MAX_DEPTH, position: int = 0) -> Event:
    """Return the event in one payload, as `decode` does; errors have this position."""
    try:
        if payload and payload[0] == SEALABLE:
            payload = event_of(payload)
            if kind_of(payload) is None:
                raise no_event("what was encrypted is neither CBOR, nor JSON, nor protobuf")
        return _DECODE[kind_of(payload) or Kind.CBOR](payload, max_depth)  # CBOR says what is wrong with others
    except (FrameCorrupt, InvalidInput) as error:
        error.context["position"] = position
        raise
