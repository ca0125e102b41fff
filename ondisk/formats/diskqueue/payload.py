"""Payloads: an event as the CBOR map that stands in a frame.

    {"timestamp": nanoseconds since 1970, "flags": bits, "meta": {…}, "fields": {…}}

The keys stand in this order. Flags: 0x01 is Beats' GuaranteedSend; 0x80 is ondisk's own: the data are bytes, and stand
as `{"data": <byte string>}` in `fields`. Beats keeps both and looks at neither. Metadata is `meta`, data is `fields`.
What `cbor` says of values holds; a timestamp in the metadata is written as RFC 3339 text.

When reading, a missing key counts as zero or empty, as in Beats; so does `meta` or `fields` that is null. Other keys
than the four are left out; one that stands twice is damage, whatever Beats makes of it.

Plain values, nearly all there are, take the way through cbor2, many payloads at a time; where the keys stand in another
order it is one at a time. `cbor` does the others.

Source: elastic/beats, libbeat/publisher/queue/diskqueue/serialize.go (7.14 and later).
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from math import isfinite
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, TypeAlias

import cbor2

from ondisk.errors import FrameCorrupt, InvalidInput
from ondisk.formats.diskqueue import cbor
from ondisk.formats.metadata import times_to_text

BYTES_FLAG = 0x80
"""The flag that tells that `fields` stands for bytes."""

MAX_DEPTH = 64
"""How deep `meta` and `fields` may nest unless told otherwise; each of them is the first level."""

MAX_ITEMS = 4 * 1024 * 1024
"""Values and keys in a payload. An empty map takes one byte there and 70 in memory, so the size alone is no limit."""

_CHUNK = 512  # payloads that go through cbor2 together, and one by one where one of them is not plain
_LARGE = 8 * 1024  # bytes of a payload
_CHECKED_SIZE = MAX_ITEMS // 4  # cbor2 counts nothing, so larger payloads go through `cbor`
_TIMESTAMP_MIN, _TIMESTAMP_MAX = -(2**63), 2**63 - 1

_FLAGS = frozenset(range(0x100)).issuperset
_INTEGERS = frozenset({int}).issuperset
_TEXTS = frozenset({str}).issuperset
_DICTS = frozenset({dict}).issuperset
_LEAVES = frozenset({str, int, float, bool, bytes, type(None)}).issuperset
_VALUES = frozenset({str, int, float, bool, bytes, type(None), dict, list}).issuperset

# What cbor2 writes and Beats misreads; bytes are sorted into kinds, since a search that begins with one byte is fast.
# A negative integer (N) with the top bit of its argument set (T or L); an integer beyond 64 bits, as tag (L) and byte
# string (B). NaN and the infinities in 16 bits are rare enough to be searched for as they are.
_KINDS = bytes(
    ord("N" if byte in range(0x38, 0x3C)
        else "B" if byte in range(0x49, 0x5C)
        else "L" if byte in (0xC2, 0xC3)
        else "T" if byte >= 0x80
        else ".")
    for byte in range(256)
)  # fmt: skip
_INTEGER_TRAPS = re.compile(rb"N[TL]"), re.compile(rb"LB")
_WIDTHS = frozenset({8, 16, 32, 64})
_FLOAT_TRAP = re.compile(rb"\xf9[\x7c\x7e\xfc]\x00")

_FIRST_KEY, _BEFORE_FIELDS = b"\xa4\x69timestamp", b"\x66fields"
_BYTES, _NO_BYTES = re.compile(_BEFORE_FIELDS + rb"\xa1\x64data(?:\x59(..)|\x5a(....))", re.DOTALL), b"\x40"
_BEFORE_BYTES = 4096  # bytes of a payload in which the data are looked for that it ends with
_BEGIN = struct.Struct(">11sBQ")
_BEFORE_META = [b"\x65flags" + cbor.integer(flag_bits) + b"\x64meta" for flag_bits in range(0x100)]

# Many payloads are one array to cbor2, with this number, which no file can foresee, between them. Its last byte is the
# one that an event begins with; where that byte ends the mark, the event's keys and values are the array's own.
_ARRAY = struct.Struct(">BI")
_PAIR = b"\x82"
_MARK_VALUE = 1 << 63 | int.from_bytes(os.urandom(7)) << 8 | _FIRST_KEY[0]
_MARK = b"\x1b" + _MARK_VALUE.to_bytes(8)


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag")


# cbor2 decodes the tags it knows without asking `tag_hook`; these are all it has ever known.
_KNOWN_TAGS = dict.fromkeys((*range(300), 1004, 43000, 55799), _refuse_tag)
_loads = partial(
    cbor2.loads,
    tag_hook=_refuse_tag,
    semantic_decoders=_KNOWN_TAGS,
    allow_indefinite=False,
    allow_duplicate_keys=False,
)


Buffer: TypeAlias = bytes | memoryview


class Event(NamedTuple):
    """What a frame holds.

    Attributes:
        timestamp: nanoseconds since 1970, 64 bits.
        flags: 8 bits.
        meta: the metadata.
        fields: the data, as they stand in the payload; see `data`.
    """

    timestamp: int
    flags: int
    meta: Mapping[str, Any]
    fields: Mapping[str, Any]

    @property
    def data(self) -> Any:
        """The data: `fields`, or the bytes that it stands for."""
        if self.flags & BYTES_FLAG and len(self.fields) == 1 and type(self.fields.get("data")) is bytes:
            return self.fields["data"]
        return self.fields


class Columns(NamedTuple):
    """Events in columns: entry i of each belongs to one event; see `Event`."""

    timestamps: Sequence[int]
    flags: Sequence[int]
    metas: Sequence[Mapping[str, Any]]
    fields: Sequence[Mapping[str, Any]]

    def data(self) -> Sequence[Any]:
        """Give what `Event.data` is of each."""
        return [event.data for event in self.events()] if any(self.flags) else self.fields

    def events(self) -> list[Event]:
        return list(map(_event, zip(*self, strict=True)))


_event: Callable[[tuple[Any, ...]], Event] = partial(tuple.__new__, Event)
_row = itemgetter(*Event._fields)
_STRIDE = 1 + 2 * len(Event._fields)  # a mark, then keys and values in turns; see `_load`
_PLACES = dict(zip(Event._fields, range(1, _STRIDE, 2), strict=True))


def encode(
    timestamps: Sequence[int], metas: Sequence[Mapping[str, Any]], data: Sequence[Any], *, max_depth: int = MAX_DEPTH
) -> list[bytes]:
    """Write data as payloads that Beats reads to equal values.

    Args:
        timestamps: nanoseconds since 1970, 64 bits.
        metas: the metadata; a `datetime` in it is written as text.
        data: mappings, bytes, or None for the empty mapping.
        max_depth: how deep a metadata or data mapping may nest.

    Raises:
        InvalidInput: something has no form that Beats can read; the context names its `position`.
        LimitExceeded: something nests too deep, or has more than `MAX_ITEMS` values and keys.

    Cost: 3 µs for a small event, 20 µs for one that cbor2 would write as something else.
    """
    payloads: list[bytes] = []
    for begin in range(0, len(data), _CHUNK):
        end = begin + _CHUNK
        flags, fields = _to_fields(data[begin:end], begin)
        columns = Columns(timestamps[begin:end], flags, metas[begin:end], fields)
        payloads += _dump(columns, begin, max_depth) or _dump_with_care(columns, begin, max_depth)
    return payloads


def decode(payloads: Sequence[Buffer], *, max_depth: int = MAX_DEPTH) -> list[Event]:
    """Read payloads.

    Raises:
        FrameCorrupt: one is no event; its context names the `position`, with the `reason` and `byte` where known.
        LimitExceeded: one is nested deeper than `max_depth`, or has more than `MAX_ITEMS` values and keys.

    Cost: 2 µs for a small event, 20 µs for one that needs care. Memory: the events; up to 70 bytes for each byte of a
        hostile payload, so give it about a megabyte at a time.
    """
    return decode_columns(payloads, max_depth=max_depth).events()


def decode_columns(payloads: Sequence[Buffer], *, max_depth: int = MAX_DEPTH, data: bool = True) -> Columns:
    """Read payloads as `decode` does, without an object for each.

    Args:
        data: False: bytes that a payload ends with need not come out; they may be none.
    """
    whole = Columns([], [], [], [])
    for begin in range(0, len(payloads), _CHUNK):
        chunk = payloads[begin : begin + _CHUNK]
        loaded = None if data else _load_without_bytes(chunk, max_depth)
        loaded = loaded or _load(chunk, max_depth) or _load_one_by_one(chunk, begin, max_depth)
        for column, part in zip(whole, loaded, strict=True):
            column.extend(part)  # type: ignore[attr-defined]  # the lists made above
    return whole


def _to_fields(data: Sequence[Any], begin: int) -> tuple[Sequence[int], Sequence[Any]]:
    """Give flags and fields for data."""
    if _DICTS(map(type, data)):
        return [0] * len(data), data
    flags = [BYTES_FLAG if type(item) is bytes else 0 for item in data]
    fields = [{} if item is None else {"data": item} if type(item) is bytes else item for item in data]
    for position, item in enumerate(fields, begin):
        if not isinstance(item, Mapping):
            what = type(item).__name__
            raise InvalidInput(f"the data of seg are a mapping, bytes or None, not {what}", position=position)
    return flags, fields


def _dump(columns: Columns, begin: int, max_depth: int) -> list[bytes] | None:
    """Write events with cbor2, and again with `cbor` where that is not what Beats would read; None: not plain."""
    timestamps, flags, metas, fields = columns
    if not _are_plain(timestamps, metas, fields, max_depth):
        return None
    # The maps alone go through cbor2: what stands around them is the same in every event, but for two numbers.
    values: list[Any] = [_MARK_VALUE] * (4 * len(fields))
    values[1::4] = metas
    values[3::4] = fields
    try:
        written = cbor2.dumps(values).split(_MARK)
    except Exception:  # text that is no Unicode, most likely; `cbor` decides, and says what is wrong
        return None
    payloads = [
        b"".join((_timestamp(timestamp), _BEFORE_META[flag_bits], meta, _BEFORE_FIELDS, content))
        for timestamp, flag_bits, meta, content in zip(timestamps, flags, written[1::2], written[2::2], strict=True)
    ]
    if max(map(len, payloads)) > _CHECKED_SIZE:
        return None
    for index in {part // 2 for part in _suspects(written[1:])}:
        if _holds_trap([metas[index], fields[index]]):
            event = Event(timestamps[index], flags[index], metas[index], fields[index])
            payloads[index] = _dump_one(event._asdict(), begin + index, max_depth)
    return payloads


def _dump_with_care(columns: Columns, begin: int, max_depth: int) -> list[bytes]:
    """Write events whose metadata may hold timestamps, and events that are not plain at all."""
    for position, timestamp in enumerate(columns.timestamps, begin):
        if not (type(timestamp) is int and _TIMESTAMP_MIN <= timestamp <= _TIMESTAMP_MAX):
            reason = "the timestamp is no number of nanoseconds in 64 bits (1677-09-21 to 2262-04-11)"
            raise InvalidInput(reason, position=position)
    metas = [_with_texts(meta, position) for position, meta in enumerate(columns.metas, begin)]
    columns = columns._replace(metas=metas)
    return _dump(columns, begin, max_depth) or [
        _dump_one(Event(*row)._asdict(), position, max_depth)
        for position, row in enumerate(zip(*columns, strict=True), begin)
    ]


def _with_texts(meta: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Turn the timestamps in metadata into text."""
    try:
        return times_to_text(meta)
    except InvalidInput as error:
        error.context["position"] = position
        raise


def _dump_one(event: dict[str, Any], position: int, max_depth: int) -> bytes:
    try:
        return cbor.encode(event, max_depth=max_depth + 1, max_items=MAX_ITEMS)
    except InvalidInput as error:
        error.context["position"] = position
        raise


def _timestamp(timestamp: int) -> bytes:
    """Write the begin of a payload, up to the timestamp."""
    return _BEGIN.pack(_FIRST_KEY, 0x1B, timestamp) if timestamp >> 32 > 0 else _FIRST_KEY + cbor.integer(timestamp)


def _suspects(maps: list[bytes]) -> set[int]:
    """Find the maps that may hold a number which cbor2 does not write as Beats reads it.

    Such a number is some bytes in a row, which may as well be part of another value: `_holds_trap` tells.
    """
    joined = b"".join(maps)
    kinds = joined.translate(_KINDS)
    found = chain(*(trap.finditer(kinds) for trap in _INTEGER_TRAPS), _FLOAT_TRAP.finditer(joined))
    hits = [hit.start() for hit in found]
    ends = list(accumulate(map(len, maps))) if hits else []
    return {bisect_right(ends, hit) for hit in hits}


def _holds_trap(values: list[Any]) -> bool:
    """Tell whether plain values hold a number which cbor2 does not write as Beats reads it."""
    waiting = values
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is dict:
            waiting.extend(value.values())
        elif kind is list:
            waiting.extend(value)
        elif kind is int:
            # Of a negative integer, the argument -1 - value has the top bit of its 8, 16, 32 or 64 set.
            if (value < 0 and (~value).bit_length() in _WIDTHS) or value.bit_length() > 64:
                return True
        elif kind is float and not isfinite(value):
            return True
    return False


def _load(payloads: Sequence[Buffer], max_depth: int) -> Columns | None:
    """Read payloads with cbor2; None where one of them is not plain, or worse."""
    if max(map(len, payloads)) > _CHECKED_SIZE:
        return None
    load = _load_together if len(payloads[0]) < _LARGE else _load_each
    try:
        columns = load(payloads, max_depth)
    except Exception:  # whatever it is, `cbor` decides, and says what is wrong and where
        return None
    if columns is None:
        return None
    timestamps, flags, metas, fields = columns
    are_flags = _INTEGERS(map(type, flags)) and _FLAGS(flags)
    return columns if are_flags and _are_plain(timestamps, metas, fields, max_depth) else None


def _load_without_bytes(payloads: Sequence[Buffer], max_depth: int) -> Columns | None:
    """Read large payloads but for the bytes that they end with; None where one of them is small, or another kind.

    In place of the bytes stand none, as one byte of CBOR. Where that byte comes out as the last value, the payload's
    own head of the bytes is a value, too, and its bytes go up to the end: all else would be decoded as it was here.
    """
    if min(map(len, payloads)) < _LARGE:
        return None
    heads = []
    for payload in payloads:
        found = _BYTES.search(payload, 0, _BEFORE_BYTES)
        if found is None:
            return None
        size = found[1] or found[2]
        if len(payload) - found.end() != int.from_bytes(size):
            return None
        heads.append(bytes(payload[: found.end() - len(size) - 1]) + _NO_BYTES)
    columns = _load(heads, max_depth)
    return columns if columns is not None and columns.fields.count({"data": b""}) == len(payloads) else None


def _load_together(payloads: Sequence[Buffer], max_depth: int) -> Columns | None:
    # A mark lacks its last byte, which the next payload begins with: what would be a map of four for each is keys and
    # values in one array, which takes less time than to make the maps and to look into them. Only if each payload is
    # exactly one such map is there a whole mark at each place; cbor2 takes no notice of trailing bytes.
    count = len(payloads)
    array = _ARRAY.pack(0x9A, _STRIDE * count + 1) + _MARK[:-1].join((b"", *payloads, _MARK[-1:]))
    values = _loads(array, max_depth=max_depth + 1)
    if values[::_STRIDE].count(_MARK_VALUE) != count + 1:
        return None
    if any(values[place::_STRIDE].count(key) != count for key, place in _PLACES.items()):
        return None
    return Columns(*(values[place + 1 :: _STRIDE] for place in _PLACES.values()))


def _load_each(payloads: Sequence[Buffer], max_depth: int) -> Columns | None:
    """Read large payloads, which would be copied once more to be read together."""
    pairs = [_loads(b"".join((_PAIR, payload, _MARK)), max_depth=max_depth + 2) for payload in payloads]
    if any(mark != _MARK_VALUE for _, mark in pairs):
        return None
    return Columns(*zip(*(_row(content) for content, _ in pairs), strict=True))


def _load_one_by_one(payloads: Sequence[Buffer], begin: int, max_depth: int) -> Columns:
    return _columns([_load_one(payload, max_depth, position) for position, payload in enumerate(payloads, begin)])


def _columns(events: list[Event]) -> Columns:
    return Columns(*zip(*events, strict=True))


def decode_one(payload: Buffer, *, max_depth: int = MAX_DEPTH) -> Event:
    """Read one payload as `decode` does; its errors name the position 0."""
    return _load_one(payload, max_depth, 0)


def _load_one(payload: Buffer, max_depth: int, position: int) -> Event:
    try:
        return _load_plain(payload, max_depth) or _load_with_care(payload, max_depth)
    except (FrameCorrupt, InvalidInput) as error:
        error.context["position"] = position
        raise


def _load_plain(payload: Buffer, max_depth: int) -> Event | None:
    """Read one payload as `_load` reads many: what is done for all at once there would cost more than the reading."""
    if len(payload) > _CHECKED_SIZE:
        return None
    try:
        content, mark = _loads(b"".join((_PAIR, payload, _MARK)), max_depth=max_depth + 2)
        timestamp, flags, meta, fields = _row(content)
    except Exception:  # as in `_load`
        return None
    if (
        mark == _MARK_VALUE
        and type(content) is type(meta) is type(fields) is dict
        and type(timestamp) is type(flags) is int
        and _TIMESTAMP_MIN <= timestamp <= _TIMESTAMP_MAX
        and 0 <= flags <= 0xFF
        and _hold_plain_values([meta, fields], max_depth)
    ):
        return Event(timestamp, flags, meta, fields)
    return None


def _load_with_care(payload: Buffer, max_depth: int) -> Event:
    content = cbor.decode(bytes(payload), max_depth=max_depth + 1, max_items=MAX_ITEMS)
    if type(content) is not dict:
        raise _no_event("it is no map")
    timestamp = _integer(content, "timestamp")
    if not _TIMESTAMP_MIN <= timestamp <= _TIMESTAMP_MAX:
        raise _no_event(f"the timestamp {timestamp} does not fit into 64 bits")
    # Beats cuts the flags to 8 bits in the same way.
    return Event(timestamp, _integer(content, "flags") & 0xFF, _map(content, "meta"), _map(content, "fields"))


def _integer(content: dict[str, Any], key: str) -> int:
    value = content.get(key, 0)
    if type(value) is int or (type(value) is float and isfinite(value)):
        return int(value)
    raise _no_event(f"{key} is no number")


def _map(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if value is None:
        return {}
    if type(value) is dict:
        return value
    raise _no_event(f"{key} is no map")


def _no_event(reason: str) -> FrameCorrupt:
    return FrameCorrupt(f"a payload is no event: {reason}", reason=reason)


def _are_plain(timestamps: Sequence[Any], metas: Sequence[Any], fields: Sequence[Any], max_depth: int) -> bool:
    """Tell whether events are such that cbor2 and Beats agree on them, but for numbers (see `_suspects`)."""
    return (
        _INTEGERS(map(type, timestamps))
        and min(timestamps) >= _TIMESTAMP_MIN
        and max(timestamps) <= _TIMESTAMP_MAX
        and _DICTS(map(type, metas))
        and _DICTS(map(type, fields))
        and _hold_plain_values([*metas, *fields], max_depth)
    )


def _hold_plain_values(maps: list[dict[Any, Any]], max_depth: int) -> bool:
    """Look through the maps of many events at once, one level of nesting after the other."""
    lists: list[list[Any]] = []
    for _ in range(max_depth):
        keys: set[Any] = set().union(*maps)
        if "" in keys or not _TEXTS(map(type, keys)):
            return False
        kinds = set(map(type, _values(maps, lists)))
        if _LEAVES(kinds):
            return True
        if not _VALUES(kinds):
            return False
        nested = [value for value in _values(maps, lists) if type(value) is dict or type(value) is list]
        maps = [value for value in nested if type(value) is dict]
        lists = [value for value in nested if type(value) is list]
        if len(nested) > MAX_ITEMS:  # what is the same list many times over grows with every level
            return False
    return False


def _values(maps: list[dict[Any, Any]], lists: list[list[Any]]) -> Iterator[Any]:
    return chain(chain.from_iterable(map(dict.values, maps)), chain.from_iterable(lists))
