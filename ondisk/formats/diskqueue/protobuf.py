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
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ondisk.errors import ConfigError, FrameCorrupt, InvalidInput, LimitExceeded, shown
from ondisk.formats.diskqueue.cbor_payload import with_texts
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
_INT64 = range(-(2**63), 2**63)


class _Messages(NamedTuple):
    """Message classes. `any` has the Structs, and the data stream, as bytes: their place depends on the layout."""

    any: Any
    later: Any
    data_stream: Any
    structs: Mapping[str, Any]
    error: type[Exception]


@cache
def _messages() -> _Messages:
    """Describe the messages to the package protobuf.

    Raises:
        ConfigError: it is not installed.
    """
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
    for layout, kinds in (("Early", _EARLY), ("Later", _LATER)):
        _describe_struct(file.message_type.add(name=layout), kinds)
    common = {"timestamp": (1, "Timestamp"), "source": (2, "source")}
    _describe(file.message_type.add(name="Any"), {**common, **{f"f{number}": (number, 12) for number in range(3, 7)}})
    rest = {"data_stream": (3, "data_stream"), "metadata": (4, "Later"), "fields": (5, "Later")}
    _describe(file.message_type.add(name="Event"), {**common, **rest})
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ondisk.{name}"))
        for name in ("Any", "Event", "data_stream", "Early", "Later")
    }
    structs = {"early": found["Early"], "later": found["Later"]}
    return _Messages(found["Any"], found["Event"], found["data_stream"], structs, message.DecodeError)


def _describe(described: DescriptorProto, fields: Mapping[str, tuple[int, int | str]]) -> None:
    """Add fields to a message: name → number, and type or name of a message."""
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
    """Let the first field of a message be repeated."""
    described.field[0].label = described.field[0].LABEL_REPEATED


def encode(events: Events, begin: int, max_depth: int) -> list[bytes]:
    """Return events as payloads of the later layout, as `cbor_payload.encode` does.

    Raises:
        InvalidInput: protobuf has no such value; the context has the event's `position`.
        LimitExceeded: an event nests deeper than `max_depth`, or `MAX_LEVELS`, or has more than `MAX_ITEMS` values.
        ConfigError: the package protobuf is not installed.
    """
    check_timestamps(events.timestamps, begin)
    later, levels = _messages().later, min(max_depth, MAX_LEVELS)
    payloads = []
    for position, (timestamp, flags, meta, fields) in enumerate(zip(*events, strict=True), begin):
        message = later()
        seconds, nanos = divmod(timestamp, _SECOND)
        message.timestamp.SetInParent()  # so that every payload begins with it
        message.timestamp.seconds, message.timestamp.nanos = seconds, nanos
        try:
            if flags & BYTES_FLAG:
                raise InvalidInput("protobuf cannot hold data that are bytes")
            filler = _Filler()
            filler.fill(message.metadata, _addressed(message, with_texts(meta, position)), levels)
            filler.fill(message.fields, fields, levels)
        except InvalidInput as error:
            error.context["position"] = position
            raise
        payloads.append(message.SerializeToString(deterministic=True))
    return payloads


def _addressed(message: Any, meta: dict[str, Any]) -> dict[str, Any]:
    """Set source and data stream from the metadata, and return the other metadata."""
    for name, texts in _ADDRESS.items():
        value = meta.get(name)
        if (
            type(value) is dict
            and value
            and all(key in texts and type(value[key]) is str and value[key] for key in value)
        ):
            part = getattr(message, name)
            for key, text in value.items():
                _set_text(part, key, text)
            meta = {key: each for key, each in meta.items() if key != name}
    return meta


class _Filler:
    """Fills Structs of the later layout, up to `MAX_ITEMS` values."""

    def __init__(self) -> None:
        self._left = MAX_ITEMS

    def fill(self, struct: Any, content: Mapping[str, Any], levels: int) -> None:
        """Add the entries of a mapping to a Struct; `levels` may be nested."""
        self._count(len(content), levels)
        data = struct.data
        for key, value in content.items():
            if type(key) is not str:
                raise InvalidInput(f"a key must be text, not {type(key).__name__}")
            try:
                self._set(data[key], value, levels - 1)
            except UnicodeEncodeError:
                raise InvalidInput(f"protobuf cannot hold the key {shown(key)}: it is not Unicode") from None

    def _set(self, message: Any, value: Any, levels: int) -> None:
        kind = type(value)
        if kind is str:
            _set_text(message, "string", value)
        elif kind is bool:
            message.bool = value
        elif kind is int:
            if value in _INT64:
                message.int64 = value
            elif 0 < value < 2**64:
                message.uint64 = value
            else:
                raise InvalidInput(f"{shown(value)} does not fit into 64 bits")
        elif kind is float:
            message.float64 = value
        elif value is None:
            message.null = 0
        elif isinstance(value, Mapping):
            message.struct.SetInParent()
            self.fill(message.struct, value, levels)
        elif kind is list or kind is tuple:
            message.list.SetInParent()
            self._count(len(value), levels)
            for item in value:
                self._set(message.list.values.add(), item, levels - 1)
        else:
            raise InvalidInput(f"protobuf cannot hold a value of type {kind.__name__}")

    def _count(self, count: int, levels: int) -> None:
        if levels <= 0:
            raise LimitExceeded(f"nested deeper than max_depth allows, or than the {MAX_LEVELS} levels of protobuf")
        self._left -= count
        if self._left < 0:
            raise LimitExceeded(f"more than {MAX_ITEMS} values", limit=MAX_ITEMS)


def _set_text(message: Any, name: str, value: str) -> None:
    try:
        setattr(message, name, value)
    except UnicodeEncodeError:
        raise InvalidInput(f"protobuf cannot hold the text {shown(value)}: it is not Unicode") from None


def decode(payloads: Sequence[Buffer], begin: int, max_depth: int) -> Events:
    """Return the events in payloads of either layout, as `cbor_payload.decode` does."""
    events = [decode_one(payload, max_depth, position) for position, payload in enumerate(payloads, begin)]
    return Events(*map(list, zip(*events, strict=True)))


def decode_one(payload: Buffer, max_depth: int, position: int) -> Event:
    """Return the event in one payload."""
    messages = _messages()
    try:
        found = messages.any.FromString(bytes(payload))
        parts = _parts(found, messages)
        timestamp = found.timestamp.seconds * _SECOND + found.timestamp.nanos
        if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
            raise no_event(f"the timestamp {timestamp} does not fit into 64 bits")
        reader = _Reader()
        meta, fields = (reader.mapping(struct, max_depth) for struct in (parts.metadata, parts.fields))
        for name, part in (("source", found.source), ("data_stream", parts.data_stream)):
            if address := {each.name: value for each, value in part.ListFields()}:
                while name in meta:
                    name += "_"
                meta[name] = address
    except messages.error as error:
        corrupt = no_event(f"it is not protobuf, or nested too deep: {error}")
        corrupt.context["position"] = position
        raise corrupt from None
    except (FrameCorrupt, InvalidInput) as error:
        error.context["position"] = position
        raise
    return Event(timestamp, 0, meta, fields)


class _Parts(NamedTuple):
    data_stream: Any
    metadata: Any
    fields: Any


def _parts(found: Any, messages: _Messages) -> _Parts:
    """Return the parts whose place depends on the layout, of the layout that fits."""
    likely = ("early", "later") if found.f6 else ("later", "early")
    first = None
    for layout in likely:
        data_stream, metadata, fields = (found.f4, found.f5, found.f6) if layout == "early" else (
            found.f3, found.f4, found.f5)  # fmt: skip
        struct = messages.structs[layout]
        try:
            parts = _Parts(
                messages.data_stream.FromString(data_stream), struct.FromString(metadata), struct.FromString(fields)
            )
        except messages.error as error:
            first = first or error
            continue
        if found.f3 or found.f6 or not any(map(_has_unknown, parts)):
            return parts
        first = first or ValueError("it has fields that no layout has")
    raise no_event(f"it is not protobuf: {first}")


def _has_unknown(message: Any) -> bool:
    """Return whether a data stream or a Struct contains what its layout does not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    waiting: list[Any] = [message]
    while waiting:
        each = waiting.pop()
        if len(UnknownFieldSet(each)):
            return True
        waiting += _inside(each)
    return False


def _inside(message: Any) -> Iterator[Any]:
    """Yield the messages directly in a Struct or a Value."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.name == "data":
            yield from value.values()
        elif field.name == "values":
            yield from value
        else:
            yield value


class _Reader:
    """Turns Structs of either layout into mappings, up to `MAX_ITEMS` values."""

    def __init__(self) -> None:
        self._left = MAX_ITEMS

    def mapping(self, struct: Any, levels: int) -> dict[str, Any]:
        """Return the entries of a Struct; `levels` may be nested."""
        data = struct.data
        self._count(len(data), levels)
        return {key: self._value(value, levels - 1) for key, value in data.items()}

    def _value(self, message: Any, levels: int) -> Any:
        kind = message.WhichOneof("kind")
        if kind is None or kind == "null":
            return None
        value = getattr(message, kind)
        if kind == "struct":
            return self.mapping(value, levels)
        if kind == "list":
            self._count(len(value.values), levels)
            return [self._value(each, levels - 1) for each in value.values]
        return _time(value) if kind == "timestamp" else value

    def _count(self, count: int, levels: int) -> None:
        if levels <= 0 and count:
            raise LimitExceeded(
                "nested deeper than max_depth allows", hint="Raise max_depth in dataset.toml; 500 is the most."
            )
        self._left -= count
        if self._left < 0:
            raise LimitExceeded(f"more than {MAX_ITEMS} values", limit=MAX_ITEMS)


def _time(timestamp: Any) -> str:
    """Return a timestamp as RFC 3339 text."""
    try:
        whole = datetime.fromtimestamp(timestamp.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        raise no_event(f"{timestamp.seconds} seconds are not a time") from None
    fraction = f".{timestamp.nanos:09}".rstrip("0") if timestamp.nanos else ""
    return f"{whole}{fraction}Z"
