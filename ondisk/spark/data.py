"""Data as a column of Arrow: bytes, JSON, or values of a schema; and back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from ondisk.config import MAX_DEPTH
from ondisk.datum import is_unicode, microseconds
from ondisk.errors import InvalidInput
from ondisk.json_shapes import dump, format_time, from_json, parse_time, to_json

_Convert: TypeAlias = Callable[[Any], Any]
_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_DEPTH = MAX_DEPTH + 2
_MARK = os.urandom(16).hex()  # unpredictable, so no datum contains it
_BETWEEN = f',"{_MARK}",'.encode()
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode


class DataToArrow:
    """Turns data of a dataset into a column of Arrow.

    The type binary holds the data if they are bytes, else their JSON; string holds their JSON; a struct or a map holds
    values of data that are mappings. A key that a datum lacks is NULL; a value of another type is an error.

    Attributes:
        is_binary: the column holds bytes unchanged.

    Raises:
        InvalidInput: data cannot become this type.
    """

    def __init__(self, kind: DataType) -> None:
        self._convert = _top(kind)
        self.is_binary = isinstance(kind, BinaryType)
        self._is_json = isinstance(kind, BinaryType | StringType)
        self._kind = to_arrow_type(kind, timezone="UTC")

    def make(self, data: Sequence[Any]) -> pa.Array:
        """Return the column.

        Raises:
            InvalidInput: a datum has another type; the error's context contains its `position`.
        """
        if self.is_binary and set(map(type, data)) == {bytes}:
            return pa.array(data, self._kind)
        if self._is_json and (texts := _plain_json(data)) is not None:
            return pa.array(texts, self._kind)
        convert, converted = self._convert, []
        for position, each in enumerate(data):
            try:
                converted.append(convert(each))
            except InvalidInput as error:
                error.context["position"] = position
                raise
        return pa.array(converted, self._kind)


def _top(kind: DataType) -> _Convert:
    if isinstance(kind, BinaryType):
        return lambda data: data if type(data) is bytes else _json(data)
    if isinstance(kind, StringType):
        return lambda data: _json(data).decode()
    if isinstance(kind, StructType | MapType):
        return _converter(kind, "data")
    hint = "Use binary, string, or a struct such as struct<wind: double, note: string>."
    raise InvalidInput(f"the column data cannot be {kind.simpleString()}", hint=hint)


def _plain_json(data: Sequence[Any]) -> list[bytes] | None:
    """Return the JSON of mappings, encoded in one call; None if one contains a shape, or something like one.

    Cost: 1 µs for a small mapping; `_json` takes 5 µs.
    """
    if set(map(type, data)) != {dict}:
        return None
    parts: list[Any] = [_MARK] * (2 * len(data) - 1)
    parts[::2] = data
    try:
        written = _encode(parts).encode()
    except (TypeError, ValueError):
        return None
    texts = written[1:-1].split(_BETWEEN)
    return None if len(texts) != len(data) or b'"$' in written else texts


def _json(value: Any) -> bytes:
    if isinstance(value, Mapping):  # a datum with one key may look like a shape, such as {"$bytes": …}
        return dump({key: to_json(each, _DEPTH) for key, each in value.items()})
    return dump(to_json(value, _DEPTH))


def _converter(kind: DataType, name: str) -> _Convert:
    """Return a function that turns values of a datum into values of a type; None stays None."""
    convert = _of_mapping(kind, name) if isinstance(kind, StructType | MapType) else _of_value(kind, name)
    return lambda value: None if value is None else convert(value)


def _of_mapping(kind: StructType | MapType, name: str) -> _Convert:
    if isinstance(kind, StructType):
        inner = {each.name: _converter(each.dataType, f"{name}.{each.name}") for each in kind.fields}

        def struct(value: Any) -> Any:
            _check(isinstance(value, Mapping), value, kind, name)
            return {key: convert(value.get(key)) for key, convert in inner.items()}

        return struct
    if not isinstance(kind.keyType, StringType):
        raise InvalidInput(f"{name}: the keys of a map must be string, not {kind.keyType.simpleString()}")
    of_value = _converter(kind.valueType, f"{name}.value")

    def pairs(value: Any) -> Any:
        _check(isinstance(value, Mapping), value, kind, name)
        return [(key, of_value(each)) for key, each in value.items()]

    return pairs


def _of_value(kind: DataType, name: str) -> _Convert:
    if isinstance(kind, ArrayType):
        of_item = _converter(kind.elementType, f"{name}[]")

        def array(value: Any) -> Any:
            _check(isinstance(value, list), value, kind, name)
            return list(map(of_item, value))

        return array
    if type(kind) in _BITS:
        most = 2 ** (_BITS[type(kind)] - 1)
        return lambda value: _check(type(value) is int and -most <= value < most, value, kind, name)
    if isinstance(kind, DoubleType | FloatType):
        return lambda value: _float(_check(type(value) in (int, float), value, kind, name))
    if isinstance(kind, StringType):
        return lambda value: value if isinstance(value, str) and is_unicode(value) else _json(value).decode()
    if isinstance(kind, BooleanType):
        return lambda value: _check(type(value) is bool, value, kind, name)
    if isinstance(kind, BinaryType):
        return lambda value: _check(type(value) is bytes, value, kind, name)
    if isinstance(kind, TimestampType):
        return lambda value: parse_time(_check(isinstance(value, str), value, kind, name))
    raise InvalidInput(f"{name} cannot be {kind.simpleString()}", hint="Use string, which holds JSON.")


def _check(is_right: bool, value: Any, kind: DataType, name: str) -> Any:
    if not is_right:
        hint = f"Use another type for {name} in the schema; string takes any value, as JSON."
        raise InvalidInput(f"{name} is {value!r:.60}, not {kind.simpleString()}", hint=hint)
    return value


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


class ArrowToData:
    """Turns a column of Arrow into data of a dataset: the reverse of `DataToArrow`.

    The type binary holds the data; string holds JSON, or text if the data of the format are bytes; a struct or a map
    becomes a mapping without the keys that are NULL.

    Args:
        is_raw: the data of the dataset's format are bytes.

    Raises:
        InvalidInput: this type cannot become data.
    """

    def __init__(self, kind: DataType, *, is_raw: bool) -> None:
        self._convert: _Convert | None = None
        if isinstance(kind, StringType):
            self._convert = str.encode if is_raw else _from_json
        elif isinstance(kind, StructType | MapType) and not is_raw:
            self._convert = _plain(kind, "data")
        elif not isinstance(kind, BinaryType | NullType):
            hint = "Write it as binary, or as a string." if is_raw else "Write it as a struct, or as a string of JSON."
            raise InvalidInput(f"the column data cannot be {kind.simpleString()}", hint=hint)

    def read(self, column: pa.Array) -> list[Any]:
        """Return the data.

        Raises:
            InvalidInput: one of them is not JSON.
        """
        values: list[Any] = column.to_pylist()
        convert = self._convert
        return values if convert is None else [None if each is None else convert(each) for each in values]


def _from_json(text: str) -> Any:
    try:
        return from_json(json.loads(text, parse_constant=_refuse_constant))
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        hint = "Write JSON, or a struct; nothing was stored."
        raise InvalidInput(f"data {text!r:.60}: not JSON: {error}", hint=hint) from None


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidInput(f'data: {word} is not JSON; write {{"$float": …}}')


def _plain(kind: DataType, name: str) -> _Convert | None:
    """Return a function that turns values of Arrow into values of a datum; None if they need no change."""
    if isinstance(kind, StructType):
        inner = {each.name: _plain(each.dataType, f"{name}.{each.name}") or _same for each in kind.fields}
        return lambda value: {key: inner[key](each) for key, each in value.items() if each is not None}
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise InvalidInput(f"{name}: the keys of a map must be string, not {kind.keyType.simpleString()}")
        of_value = _plain(kind.valueType, f"{name}.value") or _same
        return lambda value: {key: of_value(each) for key, each in value if each is not None}
    if isinstance(kind, ArrayType):
        of_item = _plain(kind.elementType, f"{name}[]")
        return None if of_item is None else lambda value: [None if each is None else of_item(each) for each in value]
    if isinstance(kind, TimestampType):
        return lambda value: format_time(microseconds(value))
    if isinstance(kind, (*_BITS, DoubleType, FloatType, StringType, BooleanType, BinaryType, NullType)):
        return None
    raise InvalidInput(f"{name} cannot be {kind.simpleString()}", hint=f"Cast {name} to another type, such as string.")


def _same(value: Any) -> Any:
    return value
