"""Payloads in protobuf: an event as the message `elastic.agent.shipper.v1.messages.Event`.

    number in layout    field
    early    later
        1        1      timestamp: google.protobuf.Timestamp
        2        2      source: input_id = 1, stream_id = 2
        4        3      data_stream: type = 1, dataset = 2, namespace = 3
        5        4      metadata: Struct
        6        5      fields: Struct

    Struct: map<string, Value> data = 1            ListValue: repeated Value values = 1
    Value, early: null = 1, number (double) = 2, string = 3, bool = 4, struct = 5, list = 6, timestamp = 7
    Value, later: null = 1, float64 = 2, float32 = 3, int32 = 4, int64 = 5, uint32 = 6, uint64 = 7, string = 8,
                  bool = 9, struct = 10, list = 11, timestamp = 12

Beats wrote the early layout from July 2022, the later one from May 2023 to May 2024. Nothing in a segment tells them
apart, so the fields of each event do. ondisk writes the later one: only that one has integers.

There are no flags, no bytes, and no order of keys. `source` and `data_stream` are read as metadata with these names,
and metadata of this kind are written there. A timestamp in a Struct is read as RFC 3339 text.

Source: elastic/elastic-agent-shipper-client 0.2.0 and f04347b666f3, api/messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ondisk.errors import ConfigError, InvalidInput, LimitExceeded, shown
from ondisk.formats.diskqueue.event import (
    BYTES_FLAG,
    MAX_ITEMS,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Buffer,
    Event,
    Events,
    check_timestamps,
    no_event,
)
from ondisk.formats.metadata import times_to_text

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

FIRST_KEY = re.compile(rb"(?<=\x0a)[\x00-\x18](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?[\x10\x12\x1a\x22\x2a\x32]")
"""What follows the first byte of events that begin with their timestamp, as all that Beats and ondisk write."""

MAX_LEVELS = 30
"""How deep a Struct that ondisk writes may nest: the package protobuf does not read much more."""

_SECOND = 1_000_000_000  # nanoseconds
_ADDRESS = {"source": ("input_id", "stream_id"), "data_stream": ("type", "dataset", "namespace")}
_EARLY = ("null", "number", "string", "bool", "struct", "list", "timestamp")
_LATER = ("null", "float64", "float32", "int32", "int64", "uint32", "uint64",
          "string", "bool", "struct", "list", "timestamp")  # fmt: skip
_SCALARS = {"number": 1, "float64": 1, "float32": 2, "int32": 5, "int64": 3, "uint32": 13, "uint64": 4,
            "string": 9, "bool": 8, "null": 5, "struct": 11, "list": 11, "timestamp": 11}  # fmt: skip
_PLAIN = frozenset(_EARLY + _LATER) - {"null", "struct", "list", "timestamp"}
_INT64 = 2**63
_CHECKED_SIZE = 2 * MAX_ITEMS  # a value has at least two bytes


class _Messages(NamedTuple):
    """Message classes of events in both layouts. Each has the fields that only the other one has, as bytes."""

    early: Any
    later: Any
    error: type[Exception]


@cache
def _messages() -> _Messages:
    """Describe the messages to the package protobuf; raise ConfigError if it is not installed."""
    try:
        from google.protobuf import descriptor_pool, message, message_factory
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
    except ImportError:
        hint = "Run `pip install 'ondisk[formats]'`."
        raise ConfigError("payloads in protobuf need the package protobuf", hint=hint) from None
    file = FileDescriptorProto(name="ondisk/diskqueue.proto", package="ondisk", syntax="proto3")
    _describe(file.message_type.add(name="Timestamp"), {"seconds": (1, 3), "nanos": (2, 5)})
    for name, texts in _ADDRESS.items():
        _describe(file.message_type.add(name=name), {text: (number, 9) for number, text in enumerate(texts, 1)})
    for layout, kinds, data_stream, other in (("Early", _EARLY, 4, 3), ("Later", _LATER, 3, 6)):
        _describe_struct(file.message_type.add(name=layout), kinds)
        fields: dict[str, tuple[int, int | str]] = {"timestamp": (1, "Timestamp"), "source": (2, "source")}
        fields |= {"data_stream": (data_stream, "data_stream"), "other": (other, 12)}
        fields |= {"metadata": (data_stream + 1, layout), "fields": (data_stream + 2, layout)}
        _describe(file.message_type.add(name=f"{layout}Event"), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"ondisk.{layout}Event") for layout in ("Early", "Later")]
    early, later = map(message_factory.GetMessageClass, found)
    return _Messages(early, later, message.DecodeError)


def _describe(described: DescriptorProto, fields: Mapping[str, tuple[int, int | str]]) -> None:
    for name, (number, kind) in fields.items():
        added = described.field.add(name=name, number=number, label="LABEL_OPTIONAL")
        if isinstance(kind, str):
            added.type, added.type_name = added.TYPE_MESSAGE, f".ondisk.{kind}"
        else:
            added.type = cast("FieldDescriptorProto.Type.ValueType", kind)


def _describe_struct(described: DescriptorProto, kinds: Sequence[str]) -> None:
    """Describe a Struct, and in it its Value, ListValue and the entries of its map."""
    name = described.name
    own = {"struct": name, "list": f"{name}.List", "timestamp": "Timestamp"}
    value = described.nested_type.add(name="Value")
    _describe(value, {kind: (number, own.get(kind, _SCALARS[kind])) for number, kind in enumerate(kinds, 1)})
    value.oneof_decl.add(name="kind")
    for each in value.field:
        each.oneof_index = 0
    entry = described.nested_type.add(name="DataEntry")
    _describe(entry, {"key": (1, 9), "value": (2, f"{name}.Value")})
    entry.options.map_entry = True
    _describe(described.nested_type.add(name="List"), {"values": (1, f"{name}.Value")})
    _repeat(described.nested_type[-1])
    _describe(described, {"data": (1, f"{name}.DataEntry")})
    _repeat(described)


def _repeat(described: DescriptorProto) -> None:
    described.field[0].label = described.field[0].LABEL_REPEATED


def encode(events: Events, max_depth: int) -> list[bytes]:
    """Return events as payloads of the later layout, as `cbor_payload.encode` does, nested at most `MAX_LEVELS`."""
    check_timestamps(events.timestamps)
    later, levels = _messages().later, min(max_depth, MAX_LEVELS)
    payloads = []
    for timestamp, flags, meta, fields in zip(*events, strict=True):
        message = later()
        time = message.timestamp
        time.SetInParent()  # so that every payload begins with it
        time.seconds, time.nanos = divmod(timestamp, _SECOND)
        if flags & BYTES_FLAG:
            raise InvalidInput("protobuf cannot hold data that are bytes")
        if meta:
            _fill(message.metadata.data, _addressed(message, times_to_text(meta)), levels)
        if fields:
            _fill(message.fields.data, fields, levels)
        payloads.append(message.SerializeToString())
        if len(payloads[-1]) > _CHECKED_SIZE:
            _check_count(message)
    return payloads


def _addressed(message: Any, meta: dict[str, Any]) -> dict[str, Any]:
    """Set source and data stream from the metadata, and return the other metadata."""
    for name, texts in _ADDRESS.items():
        value = meta.get(name)
        if type(value) is not dict or not value:
            continue
        if all(key in texts and type(text) is str and text for key, text in value.items()):
            part = getattr(message, name)
            for key, text in value.items():
                _set_text(part, key, text)
            meta = {key: each for key, each in meta.items() if key != name}
    return meta


def _fill(data: Any, content: Mapping[str, Any], levels: int) -> None:
    """Add the entries of a mapping to the map of a Struct; `levels` may be nested."""
    if levels <= 0:
        raise _too_deep()
    for key, value in content.items():
        try:
            message = data[key]
        except (UnicodeEncodeError, TypeError):
            raise InvalidInput(f"protobuf cannot hold the key {shown(key)}: it is not Unicode text") from None
        kind = type(value)
        if kind is float:
            message.float64 = value
        elif kind is int and -_INT64 <= value < _INT64:
            message.int64 = value
        else:
            _set(message, value, levels - 1)


def _set(message: Any, value: Any, levels: int) -> None:
    kind = type(value)
    if kind is str:
        _set_text(message, "string", value)
    elif kind is bool:
        message.bool = value
    elif kind is int:
        if not -_INT64 <= value < 2 * _INT64:
            raise InvalidInput(f"{shown(value)} does not fit into 64 bits")
        setattr(message, "int64" if value < _INT64 else "uint64", value)
    elif kind is float:
        message.float64 = value
    elif value is None:
        message.null = 0
    elif isinstance(value, Mapping):
        message.struct.SetInParent()
        _fill(message.struct.data, value, levels)
    elif kind is list or kind is tuple:
        if levels <= 0:
            raise _too_deep()
        message.list.SetInParent()
        for item in value:
            _set(message.list.values.add(), item, levels - 1)
    else:
        raise InvalidInput(f"protobuf cannot hold a value of type {kind.__name__}")


def _set_text(message: Any, name: str, value: str) -> None:
    try:
        setattr(message, name, value)
    except UnicodeEncodeError:
        raise InvalidInput(f"protobuf cannot hold the text {shown(value)}: it is not Unicode") from None


def decode_one(payload: Buffer, max_depth: int) -> Event:
    """Return the event in a payload, in the layout that fits."""
    payload = bytes(payload)
    messages, found, reason = _messages(), None, ""
    for layout in (messages.later, messages.early):
        try:
            message = layout.FromString(payload)
        except messages.error as error:
            reason = reason or str(error)
            continue
        if layout is messages.later and message.other:
            continue
        found = found or message
        try:
            return _event(message, len(payload), max_depth)
        except _UnknownKind:
            continue
    if found is None:
        raise no_event(f"it is not protobuf, or nested too deep: {reason}")
    return _event(found, len(payload), max_depth, is_lenient=True)  # a value without a kind is null


class _UnknownKind(Exception):
    """A value has no kind, so it may be of the other layout."""


def _event(message: Any, size: int, max_depth: int, *, is_lenient: bool = False) -> Event:
    if size > _CHECKED_SIZE:
        _check_count(message)
    time = message.timestamp
    timestamp = time.seconds * _SECOND + time.nanos
    if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        raise no_event(f"the timestamp {timestamp} does not fit into 64 bits")
    meta = _mapping(message.metadata.data, max_depth, is_lenient)
    for name in _ADDRESS:
        if message.HasField(name):
            address = {field.name: text for field, text in getattr(message, name).ListFields()}
            while name in meta:
                name += "_"
            if address:
                meta[name] = address
    return Event(timestamp, 0, meta, _mapping(message.fields.data, max_depth, is_lenient))


def _mapping(data: Any, levels: int, is_lenient: bool) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key in data:  # `items` takes twice the time
        message = data[key]
        kind = message.WhichOneof("kind")
        content[key] = getattr(message, kind) if kind in _PLAIN else _value(message, kind, levels - 1, is_lenient)
    if levels <= 0 and content:
        raise _too_deep()
    return content


def _value(message: Any, kind: str | None, levels: int, is_lenient: bool) -> Any:
    """Return a Value whose kind is not that of a Python object."""
    if kind == "struct":
        return _mapping(message.struct.data, levels, is_lenient)
    if kind == "list":
        values = message.list.values
        if levels <= 0 and values:
            raise _too_deep()
        items = []
        for each in values:
            inner = each.WhichOneof("kind")
            items.append(getattr(each, inner) if inner in _PLAIN else _value(each, inner, levels - 1, is_lenient))
        return items
    if kind == "timestamp":
        return _time(message.timestamp)
    if kind is None and not is_lenient:
        raise _UnknownKind
    return None


def _check_count(message: Any) -> None:
    left, waiting = MAX_ITEMS, [message]
    while waiting:
        for field, value in waiting.pop().ListFields():
            if field.message_type is None:
                continue
            inside: Any = value if field.name in ("data", "values") else [value]
            left -= len(inside)
            if left < 0:  # before there is an object for each
                raise LimitExceeded(f"more than {MAX_ITEMS} values", limit=MAX_ITEMS)
            waiting += inside.values() if field.name == "data" else inside


def _too_deep() -> LimitExceeded:
    hint = f"Raise max_depth in dataset.toml; ondisk writes at most {MAX_LEVELS} levels in protobuf."
    return LimitExceeded("nested deeper than max_depth allows", hint=hint)


def _time(timestamp: Any) -> str:
    try:
        whole = datetime.fromtimestamp(timestamp.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        raise no_event(f"{timestamp.seconds} seconds are not a time") from None
    fraction = f".{timestamp.nanos:09}".rstrip("0") if timestamp.nanos else ""
    return f"{whole}{fraction}Z"
