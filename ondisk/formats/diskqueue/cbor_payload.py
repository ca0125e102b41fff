"""Payloads in CBOR: an event as a map.

    {"timestamp": nanoseconds since 1970, "flags": bits, "meta": {…}, "fields": {…}}

The keys are written in this order. For values, see `cbor`. A timestamp in the metadata is written as RFC 3339 text.

When reading, a missing key counts as zero or empty, as in Beats; so does `meta` or `fields` that is null. Other keys
than these four are ignored. A duplicate key is damage, even if Beats accepts it.

Plain values, nearly all in practice, go through cbor2: many payloads at a time if their keys are in the usual order,
else one at a time. `cbor` handles the rest.

Source: elastic/beats, libbeat/publisher/queue/diskqueue/serialize.go (7.14 and later).
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from math import isfinite
from operator import itemgetter
from typing import Any, NoReturn

import cbor2

from ondisk.errors import InvalidInput
from ondisk.formats.diskqueue import cbor
from ondisk.formats.diskqueue.event import (
    BYTES_FLAG,
    MAX_ITEMS,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Buffer,
    Event,
    Events,
    check_timestamps,
    event_in,
)
from ondisk.formats.metadata import times_to_text

_LARGE = 8 * 1024  # bytes of a payload
_HUGE = 64 * 1024  # bytes of a payload, from which on a copy takes longer than the checks of one event in bulk
_CHECKED_SIZE = MAX_ITEMS  # cbor2 counts nothing, so payloads of more bytes go through `cbor`

_FLAGS = frozenset(range(0x100)).issuperset
_INTEGERS = frozenset({int}).issuperset
_TEXTS = frozenset({str}).issuperset
_DICTS = frozenset({dict}).issuperset
_LEAVES = frozenset({str, int, float, bool, bytes, type(None)}).issuperset
_VALUES = frozenset({str, int, float, bool, bytes, type(None), dict, list}).issuperset

# What cbor2 writes and Beats misreads: a negative integer (N) whose argument has its top bit set (T or L); an integer
# of more than 64 bits, written as tag (L) and byte string (B). Bytes are mapped to these kinds first, because a search
# for a pattern that begins with one fixed byte is fast. NaN and the infinities in 16 bits are rare, so they are
# searched for directly.
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

FIRST_KEY = b"\x69timestamp"
"""CBOR of the key that Beats and ondisk write first in every event, after one byte for the map."""

_BEGINNING, _BEFORE_FIELDS = b"\xa4" + FIRST_KEY, b"\x66fields"
_BYTES, _NO_BYTES = re.compile(_BEFORE_FIELDS + rb"\xa1\x64data(?:\x59(..)|\x5a(....))", re.DOTALL), b"\x40"
_SEARCHED = 4096  # the first bytes of a payload, in which `_load_large` searches for the head of the data
_BEGIN = struct.Struct(">11sBQ")
_BEFORE_META = [b"\x65flags" + cbor.integer(flag_bits) + b"\x64meta" for flag_bits in range(0x100)]

_EMPTY_MAP, _BEFORE_BYTES = cbor.head(cbor.MAP, 0), cbor.head(cbor.MAP, 1) + b"\x64data"
_EMPTY_FIELDS = _BEFORE_FIELDS + _EMPTY_MAP
_BEFORE_EMPTY_META = _BEGINNING + b"\x00" + _BEFORE_META[0]
_EMPTY = _BEFORE_EMPTY_META + b"\xa0" + _EMPTY_FIELDS
"""The payload of an event without anything, at 1970."""

# cbor2 decodes many payloads as one array, with this random number between them, so that no file can contain it. Its
# last byte equals the first byte of an event: that byte then completes the mark, and the keys and values of the event
# become items of the array.
_ARRAY = struct.Struct(">BI")
_PAIR = b"\x82"
_MARK_VALUE = 1 << 63 | int.from_bytes(os.urandom(7)) << 8 | _BEGINNING[0]
_MARK = b"\x1b" + _MARK_VALUE.to_bytes(8)


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag")


# cbor2 decodes known tags without calling `tag_hook`; these are all tags of its versions so far.
_KNOWN_TAGS = dict.fromkeys((*range(300), 1004, 43000, 55799), _refuse_tag)
_loads = partial(
    cbor2.loads, tag_hook=_refuse_tag, semantic_decoders=_KNOWN_TAGS, allow_indefinite=False, allow_duplicate_keys=False
)


_row = itemgetter(*Event._fields)
_STRIDE = 1 + 2 * len(Event._fields)  # a mark, then keys and values in turn; see `_load`
_PLACES = dict(zip(Event._fields, range(1, _STRIDE, 2), strict=True))


def encode(events: Events, max_depth: int) -> list[bytes]:
    """Return events as payloads for Beats. Cost: 3 µs for a small event, 20 µs if cbor2 would mislead Beats."""
    return _dump(events, max_depth) or _dump_with_care(events, max_depth)


def field_part(key: str, value: Any, max_depth: int) -> bytes:
    """Return a key and its value as they are in the `fields` of a payload."""
    (payload,) = encode(Events([0], [0], [{}], [{key: value}]), max_depth)
    return payload[len(_EMPTY) :]


def meta_part(meta: Mapping[str, Any], max_depth: int) -> bytes:
    """Return metadata as they are in a payload."""
    (payload,) = encode(Events([0], [0], [meta], [{}]), max_depth)
    return payload[len(_BEFORE_EMPTY_META) : -len(_EMPTY_FIELDS)]


def joined(timestamps: Sequence[int], metas: Sequence[bytes], fields: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the payloads that `encode` returns for events of parts, as `meta_part` and `field_part` return them.

    A part is empty where an event lacks the key. Timestamps are nanoseconds since 1970.
    Raises InvalidInput, which does not say of which event, if a timestamp has over 64 bits, or one is too large.
    """
    each_once = {*timestamps}
    if each_once:
        check_timestamps((min(each_once), max(each_once)))
    heads = {timestamp: _timestamp(timestamp) + _BEFORE_META[0] for timestamp in each_once}
    before = [_BEFORE_FIELDS + cbor.head(cbor.MAP, count) for count in range(len(fields) + 1)]
    counts: Iterable[int] = repeat(len(fields))
    if any(b"" in column for column in fields):
        counts = [len(fields) - parts.count(b"") for parts in zip(*fields, strict=True)]
    columns = (map(heads.__getitem__, timestamps), metas, map(before.__getitem__, counts))
    payloads = [*map(b"".join, zip(*columns, *fields))]  # noqa: B905  # the counts may have no end
    if max(map(len, payloads), default=0) > _CHECKED_SIZE:
        raise InvalidInput("an event is too large to be joined of parts")
    return payloads


def decode(payloads: Sequence[Buffer], max_depth: int, *, data: bool) -> Events | None:
    """Return the events in some hundreds of payloads, as `payload.decode`; None if they must be read one by one."""
    loaded = _load_large(payloads, max_depth, data=data)
    return _load(payloads, max_depth) if loaded is None and len(payloads) > 1 else loaded


def _dump(events: Events, max_depth: int) -> list[bytes] | None:
    """Write events with cbor2, and with `cbor` if Beats would misread the result; None if they are not plain."""
    timestamps, flags, metas, fields = events
    if not _are_plain(timestamps, metas, fields, max_depth):
        return None
    # Only the maps go through cbor2: the rest is the same in every event, except for two numbers. Data that are bytes
    # do not: it would copy them, and nearly every megabyte of them contains what looks like a number.
    values: list[Any] = [_MARK_VALUE] * (4 * len(fields))
    values[1::4] = metas
    values[3::4] = fields
    contents = _bytes_of(flags, fields)
    for index in contents:
        values[4 * index + 3] = {}
    try:
        written = cbor2.dumps(values).split(_MARK)[1:]
    except Exception:  # probably text that is not Unicode; `cbor` decides and reports what is wrong
        return None
    payloads = [
        b"".join((_timestamp(timestamp), _BEFORE_META[flag_bits], meta, _BEFORE_FIELDS, content))
        for timestamp, flag_bits, meta, content in zip(timestamps, flags, written[::2], written[1::2], strict=True)
    ]
    for index, content in contents.items():
        before = payloads[index][: -len(_EMPTY_MAP)]
        payloads[index] = b"".join((before, _BEFORE_BYTES, cbor.head(cbor.BYTES, len(content)), content))
    if max(map(len, payloads)) > _CHECKED_SIZE:
        return None
    for index in {part // 2 for part in _suspects(written)}:
        if _holds_trap([metas[index], fields[index]]):
            event = Event(timestamps[index], flags[index], metas[index], fields[index])
            payloads[index] = _dump_one(event, max_depth)
    return payloads


def _bytes_of(flags: Sequence[int], fields: Sequence[Mapping[str, Any]]) -> dict[int, bytes]:
    if not any(flags):
        return {}
    return {
        position: each["data"]
        for position, (flag_bits, each) in enumerate(zip(flags, fields, strict=True))
        if flag_bits & BYTES_FLAG and len(each) == 1 and type(each.get("data")) is bytes
    }


def _dump_with_care(events: Events, max_depth: int) -> list[bytes]:
    """Write events whose metadata may contain timestamps, and events that are not plain."""
    check_timestamps(events.timestamps)
    events = events._replace(metas=[*map(times_to_text, events.metas)])
    return _dump(events, max_depth) or [_dump_one(event, max_depth) for event in events.one_by_one()]


def _dump_one(event: Event, max_depth: int) -> bytes:
    return cbor.encode(event._asdict(), max_depth=max_depth + 1, max_items=MAX_ITEMS)


def _timestamp(timestamp: int) -> bytes:
    """Return the beginning of a payload, including the timestamp."""
    return _BEGIN.pack(_BEGINNING, 0x1B, timestamp) if timestamp >> 32 > 0 else _BEGINNING + cbor.integer(timestamp)


def _suspects(maps: list[bytes]) -> set[int]:
    """Return the indexes of maps with bytes that may be a number which Beats misreads; see `_holds_trap`."""
    joined = b"".join(maps)
    kinds = joined.translate(_KINDS)
    found = chain(*(trap.finditer(kinds) for trap in _INTEGER_TRAPS), _FLOAT_TRAP.finditer(joined))
    hits = [hit.start() for hit in found]
    ends = list(accumulate(map(len, maps))) if hits else []
    return {bisect_right(ends, hit) for hit in hits}


def _holds_trap(values: Iterable[Any]) -> bool:
    """Return whether plain values contain a number which Beats misreads as cbor2 writes it."""
    for value in each_value(values):
        # A negative integer is misread if its argument, -1 - value, has the top bit of 8, 16, 32 or 64 bits set.
        if type(value) is int and ((value < 0 and (~value).bit_length() in _WIDTHS) or value.bit_length() > 64):
            return True
        if type(value) is float and not isfinite(value):
            return True
    return False


def each_value(values: Iterable[Any]) -> Iterator[Any]:
    """Yield plain values, and those in them."""
    waiting = [*values]
    while waiting:
        value = waiting.pop()
        yield value
        if type(value) is dict:
            waiting.extend(value.values())
        elif type(value) is list:
            waiting.extend(value)


def _load(payloads: Sequence[Buffer], max_depth: int) -> Events | None:
    """Return the events in payloads, read with cbor2; None if one of them is not plain or is damaged."""
    if max(map(len, payloads)) > _CHECKED_SIZE:
        return None
    load = _load_together if len(payloads[0]) < _LARGE else _load_each
    try:
        events = load(payloads, max_depth)
    except Exception:  # of any kind: `cbor` decides, and reports what is wrong and where
        return None
    if events is None:
        return None
    timestamps, flags, metas, fields = events
    are_flags = _INTEGERS(map(type, flags)) and _FLAGS(flags)
    return events if are_flags and _are_plain(timestamps, metas, fields, max_depth) else None


def _load_large(payloads: Sequence[Buffer], max_depth: int, *, data: bool) -> Events | None:
    """Return the events in large payloads; None if one is small, or its data are not bytes.

    The bytes at the end of each payload are replaced by an empty byte string, one byte of CBOR. If that byte is decoded
    as the last value, then the original bytes are the last value of the payload, and the rest decodes in the same way.
    So cbor2 copies none of them.
    """
    if min(map(len, payloads)) < _LARGE:
        return None
    heads, begins = [], []
    for payload in payloads:
        found = _BYTES.search(payload, 0, _SEARCHED)
        if found is None:
            return None
        size = found[1] or found[2]
        if len(payload) - found.end() != int.from_bytes(size):
            return None
        heads.append(bytes(payload[: found.end() - len(size) - 1]) + _NO_BYTES)
        begins.append(found.end())
    events = _load(heads, max_depth)
    if events is None or events.fields.count({"data": b""}) < len(payloads):
        return None
    if not data:
        return events
    fields = [{"data": bytes(payload[begin:])} for payload, begin in zip(payloads, begins, strict=True)]
    return events._replace(fields=fields)


def _load_together(payloads: Sequence[Buffer], max_depth: int) -> Events | None:
    # Each mark lacks its last byte, because the next payload begins with it. So the keys and values of all events are
    # items of one array, which is faster than a map for each. There is a whole mark at each place only if each payload
    # is exactly one map of four entries; cbor2 ignores trailing bytes.
    count = len(payloads)
    array = _ARRAY.pack(0x9A, _STRIDE * count + 1) + _MARK[:-1].join((b"", *payloads, _MARK[-1:]))
    values = _loads(array, max_depth=max_depth + 1)
    if values[::_STRIDE].count(_MARK_VALUE) != count + 1:
        return None
    if any(values[place::_STRIDE].count(key) != count for key, place in _PLACES.items()):
        return None
    return Events(*(values[place + 1 :: _STRIDE] for place in _PLACES.values()))


def _load_each(payloads: Sequence[Buffer], max_depth: int) -> Events | None:
    """Return the events in large payloads, one by one: reading them together would copy them once more."""
    pairs = [_loads(b"".join((_PAIR, payload, _MARK)), max_depth=max_depth + 2) for payload in payloads]
    if any(mark != _MARK_VALUE for _, mark in pairs):
        return None
    return Events(*zip(*(_row(content) for content, _ in pairs), strict=True))


def decode_one(payload: Buffer, max_depth: int) -> Event:
    """Return the event in one payload, as `decode` does."""
    if len(payload) >= _HUGE and (events := _load_large([payload], max_depth, data=True)) is not None:
        return events.one_by_one()[0]
    return _load_plain(payload, max_depth) or event_in(
        cbor.decode(bytes(payload), max_depth=max_depth + 1, max_items=MAX_ITEMS)
    )


def _load_plain(payload: Buffer, max_depth: int) -> Event | None:
    """Return the event in one payload, as `_load` does for many: for one, its checks in bulk would cost too much."""
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
        and TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX
        and 0 <= flags <= 0xFF
        and hold_plain_values([meta, fields], max_depth)
    ):
        return Event(timestamp, flags, meta, fields)
    return None


def _are_plain(timestamps: Sequence[Any], metas: Sequence[Any], fields: Sequence[Any], max_depth: int) -> bool:
    """Return whether cbor2 and Beats agree on events, except for some numbers (see `_suspects`)."""
    return (
        _INTEGERS(map(type, timestamps))
        and min(timestamps) >= TIMESTAMP_MIN
        and max(timestamps) <= TIMESTAMP_MAX
        and _DICTS(map(type, metas))
        and _DICTS(map(type, fields))
        and hold_plain_values([*metas, *fields], max_depth)
    )


def hold_plain_values(maps: list[dict[Any, Any]], max_depth: int) -> bool:
    """Return whether maps contain only plain values; looks at all maps together, one level of nesting after another."""
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
        if len(nested) > MAX_ITEMS:  # references to one and the same list multiply with every level
            return False
    return False


def _values(maps: list[dict[Any, Any]], lists: list[list[Any]]) -> Iterator[Any]:
    return chain(chain.from_iterable(map(dict.values, maps)), chain.from_iterable(lists))
