"""The content of a frame: an event, in whatever way its payload stores it.

`meta` is the metadata, `fields` is the data. Flag 0x01 is Beats' GuaranteedSend. Flag 0x80 is ondisk's own: the data
are bytes, stored in `fields` as `{"data": <bytes>}`. Beats keeps both flags and does not interpret them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from ondisk.errors import FrameCorrupt, InvalidInput

BYTES_FLAG = 0x80
"""This flag marks data that are bytes, not a mapping."""

MAX_DEPTH = 64
"""Default limit for nesting in `meta` and `fields`; each of them is the first level."""

MAX_ITEMS = 4 * 1024 * 1024
"""Limit for values and keys in a payload. An empty map takes one byte there and 70 in memory: a size limit is not
enough."""

TIMESTAMP_MIN, TIMESTAMP_MAX = -(2**63), 2**63 - 1
"""Limits of an event's timestamp, in nanoseconds."""

Buffer: TypeAlias = bytes | memoryview


class Event(NamedTuple):
    timestamp: int  # nanoseconds since 1970, 64 bits
    flags: int  # 8 bits
    meta: Mapping[str, Any]  # the metadata
    fields: Mapping[str, Any]  # the data as in the payload; see `data`

    @property
    def data(self) -> Any:
        """The data: `fields`, or the bytes in it."""
        if self.flags & BYTES_FLAG and len(self.fields) == 1 and type(self.fields.get("data")) is bytes:
            return self.fields["data"]
        return self.fields


class Events(NamedTuple):
    """Events in columns: entry i of each belongs to one event; see `Event`."""

    timestamps: Sequence[int]
    flags: Sequence[int]
    metas: Sequence[Mapping[str, Any]]
    fields: Sequence[Mapping[str, Any]]

    def data(self) -> Sequence[Any]:
        return [event.data for event in self.one_by_one()] if any(self.flags) else self.fields

    def one_by_one(self) -> list[Event]:
        return list(map(_event, zip(*self, strict=True)))


_event: Callable[[tuple[Any, ...]], Event] = partial(tuple.__new__, Event)
_DICTS = frozenset({dict}).issuperset


def to_fields(data: Sequence[Any]) -> tuple[Sequence[int], Sequence[Any]]:
    """Return flags and fields for data; raise InvalidInput of other types."""
    if _DICTS(map(type, data)):
        return [0] * len(data), data
    flags = [BYTES_FLAG if type(item) is bytes else 0 for item in data]
    fields = [{} if item is None else {"data": item} if type(item) is bytes else item for item in data]
    for item in fields:
        if not isinstance(item, Mapping):
            raise InvalidInput(f"the data of seg must be a mapping, bytes or None, not {type(item).__name__}")
    return flags, fields


def check_timestamps(timestamps: Iterable[int]) -> None:
    """Raise InvalidInput unless all timestamps fit."""
    for timestamp in timestamps:
        if not (type(timestamp) is int and TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX):
            raise InvalidInput("the timestamp is not a number of nanoseconds in 64 bits (1677-09-21 to 2262-04-11)")


def event_in(content: Any) -> Event:
    """Return the event in the map of a payload, or raise FrameCorrupt; a missing key is zero or empty, as in Beats."""
    if type(content) is not dict:
        raise no_event("it is not a map")
    timestamp = _integer(content, "timestamp")
    if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        raise no_event(f"the timestamp {timestamp} does not fit into 64 bits")
    # Beats cuts the flags to 8 bits in the same way.
    return Event(timestamp, _integer(content, "flags") & 0xFF, _map(content, "meta"), _map(content, "fields"))


def no_event(reason: str) -> FrameCorrupt:
    return FrameCorrupt(f"a payload is not an event: {reason}", reason=reason)


def _integer(content: dict[str, Any], key: str) -> int:
    value = content.get(key, 0)
    if type(value) is int or (type(value) is float and isfinite(value)):
        return int(value)
    raise no_event(f"{key} is not a number")


def _map(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if value is None:
        return {}
    if type(value) is dict:
        return value
    raise no_event(f"{key} is not a map")
