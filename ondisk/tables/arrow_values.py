"""Data as a column of Arrow: bytes, JSON, or values of a type; and back, also as JSON without an object for each."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from struct import pack, unpack
from typing import Any, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.config import MAX_DEPTH
from ondisk.datum import is_unicode, microseconds
from ondisk.errors import InvalidInput
from ondisk.json_values import dump, format_time, from_json, parse_time, to_json, unique_keys
from ondisk.tables.columns import DATA

Convert: TypeAlias = Callable[[Any], Any]
_DEPTH = MAX_DEPTH + 2
_MARK = os.urandom(16).hex()  # unpredictable, so no datum contains it
_BETWEEN = f',"{_MARK}",'.encode()
_TIME = pa.timestamp("us", "UTC")
EXACT = 2**53  # up to this, reals can be all integers

# The types of Python whose values become values of a type of Arrow as they are.
_SAME: dict[pa.DataType, set[type]] = {
    pa.int64(): {int, type(None)},
    pa.float64(): {float, type(None)},
    pa.bool_(): {bool, type(None)},
    pa.string(): {str, type(None)},
    pa.binary(): {bytes, type(None)},
}
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode
types = pa.types
_NEWLINE = pa.scalar("\n")
_NOTHING = pa.scalar("")
_UNCHANGED = (types.is_integer, types.is_floating, types.is_string, types.is_boolean, types.is_binary, types.is_null)


class ValuesToArrow:
    """Turns values into a column of Arrow: a key of data that are mappings, or metadata that are not declared.

    None becomes NULL. A string holds any value: text as it is, the rest as JSON. A value of another type is an error.
    """

    def __init__(self, kind: pa.DataType, name: str) -> None:
        self._kind = kind
        self._convert = _converter(kind, name)
        self._same = _SAME.get(kind, set())

    def make(self, values: Sequence[Any]) -> pa.Array:
        """Return the column; raise InvalidInput, with the `position` in its context, if a value has another type."""
        if {*map(type, values)} <= self._same:
            with contextlib.suppress(OverflowError, UnicodeEncodeError):  # not 64 bits, or not Unicode
                return pa.array(values, self._kind)
        found = []
        for position, each in enumerate(values):
            try:
                found.append(self._convert(each))
            except InvalidInput as error:
                error.context["position"] = position
                raise
        return pa.array(found, self._kind)


class DataToArrow(ValuesToArrow):
    """Turns data of a dataset into a column of Arrow.

    The type binary holds the data if they are bytes, else their JSON; string holds their JSON; a struct or a map holds
    values of data that are mappings. A key that a datum lacks is NULL; a value of another type is an error.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.is_binary = types.is_binary(kind)
        self._is_json = self.is_binary or types.is_string(kind)
        if not (self._is_json or types.is_struct(kind) or types.is_map(kind)):
            hint = "Use binary, string, or a struct such as struct<wind: double, note: string>."
            raise InvalidInput(f"the column data cannot be {kind}", hint=hint)
        super().__init__(kind, DATA)
        if self._is_json:  # of a text, too, and of None
            self._convert = lambda data: data if self.is_binary and type(data) is bytes else _json(data)
            self._same = {bytes} if self.is_binary else set()

    def make(self, values: Sequence[Any]) -> pa.Array:
        if self._is_json and (texts := _plain_json(values)) is not None:
            return pa.array(texts, self._kind)
        return super().make(values)


def sampled(values: Sequence[Any]) -> pa.DataType:
    """Return the type of Arrow that holds some values; string, which holds any value, if they have none in common."""
    found = {*map(type, values)} - {type(None)}
    for kind, same in _SAME.items():
        if found and found <= same:
            is_small = kind != pa.int64() or all(-(2**63) <= each < 2**63 for each in values if each is not None)
            return kind if is_small else pa.string()
    if found == {int, float}:
        return pa.float64() if all(type(each) is not int or _is_real(each) for each in values) else pa.string()
    return _TIME if found == {datetime} else pa.string()


def _plain_json(data: Sequence[Any]) -> list[bytes] | None:
    """Return the JSON of mappings, encoded in one call; None if one contains a shape, or something like one.

    Cost: 1 µs for a small mapping; `_json` takes 5 µs.
    """
    texts = _written(data) if set(map(type, data)) == {dict} else None
    return None if texts is None or any(b'"$' in text for text in texts) else texts


def _written(data: Sequence[Any]) -> list[bytes] | None:
    """Return the JSON of values, encoded in one call; None if JSON lacks one of them."""
    parts: list[Any] = [_MARK] * max(2 * len(data) - 1, 0)
    parts[::2] = data
    try:
        written = _encode(parts).encode()
    except (TypeError, ValueError):
        return None
    texts = written[1:-1].split(_BETWEEN) if data else []
    return None if len(texts) != len(data) else texts


def _json(value: Any) -> bytes:
    if isinstance(value, Mapping):  # a datum with one key may look like a shape, such as {"$bytes": …}
        return dump({key: to_json(each, _DEPTH) for key, each in value.items()})
    return dump(to_json(value, _DEPTH))


def _converter(kind: pa.DataType, name: str) -> Convert:
    """Return a function that turns values of a datum into values of a type; None stays None."""
    is_right, convert = _rules(kind, name)

    def converted(value: Any) -> Any:
        if value is None:
            return None
        if not is_right(value):
            raise InvalidInput(f"{name} is {value!r:.60}, not {kind}", hint=_other_type(name))
        return convert(value)

    return converted


def _rules(kind: pa.DataType, name: str) -> tuple[Callable[[Any], bool], Convert]:
    """Return which values of a datum are of a type, and what turns these into values of Arrow."""
    if types.is_struct(kind):
        inner = {each.name: _converter(each.type, f"{name}.{each.name}") for each in kind}
        return _is_mapping, lambda value: {key: convert(value.get(key)) for key, convert in inner.items()}
    if types.is_map(kind):
        _check_keys(kind, name)
        of_value = _converter(kind.item_type, f"{name}.value")
        return _is_mapping, lambda value: [(key, of_value(each)) for key, each in value.items()]
    if types.is_list(kind) or types.is_large_list(kind):
        of_item = _converter(kind.value_type, f"{name}[]")
        return lambda value: isinstance(value, list), lambda value: [*map(of_item, value)]
    if types.is_integer(kind):
        bits = kind.bit_width
        least, most = (0, 2**bits) if types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return lambda value: type(value) is int and least <= value < most, _same
    if types.is_float32(kind) or types.is_float64(kind):
        return lambda value: type(value) in (int, float), lambda value: _real(value, kind, name)
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value: True, _text
    if types.is_boolean(kind):
        return lambda value: type(value) is bool, _same
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: type(value) is bytes, _same
    if kind == _TIME:
        return lambda value: isinstance(value, str | datetime), _time
    raise InvalidInput(f"{name} cannot be {kind}", hint="Use string, which holds JSON.")


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _check_keys(kind: pa.DataType, name: str) -> None:
    if not types.is_string(kind.key_type):
        raise InvalidInput(f"{name}: the keys of a map must be string, not {kind.key_type}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) and is_unicode(value) else _json(value).decode()


def _time(value: str | datetime) -> int:
    return parse_time(value) if isinstance(value, str) else microseconds(value)


def _real(number: float, kind: pa.DataType, name: str) -> float:
    if (type(number) is int and not _is_real(number)) or (types.is_float32(kind) and not _is_float(number)):
        raise InvalidInput(f"{name} is {number!r:.60}, which a {kind} would round", hint=_other_type(name))
    return float(number)


def _other_type(name: str) -> str:
    return f"Use another type for {name} in the schema; string takes any value, as JSON."


def _is_real(integer: int) -> bool:
    return -EXACT <= integer <= EXACT or (-(2**63) <= integer < 2**63 and int(float(integer)) == integer)


def _is_float(number: float) -> bool:
    """Return whether a number may be one of 32 bits: reals may be rounded, integers not, and none becomes infinite."""
    try:
        (short,) = unpack("<f", pack("<f", number))
    except OverflowError:
        return False
    return type(number) is not int or short == number


def to_data(kind: pa.DataType, *, is_raw: bool) -> Convert | None:
    """Return what turns values of a column of Arrow into data of a dataset, the reverse of `DataToArrow`.

    The type binary holds the data; string holds JSON, or text if the data of the format are bytes (`is_raw`); a struct
    or a map becomes a mapping without the keys that are NULL.
    """
    if types.is_string(kind):
        return str.encode if is_raw else _from_json
    if (types.is_struct(kind) or types.is_map(kind)) and not is_raw:
        return plain(kind, DATA)
    if not types.is_binary(kind) and not types.is_null(kind):
        hint = "Write it as binary, or as a string." if is_raw else "Write it as a struct, or as a string of JSON."
        raise InvalidInput(f"the column {DATA} cannot be {kind}", hint=hint)
    return None


def parts_of(column: pa.Array) -> list[tuple[str, Read]]:
    named = zip(column.type.names, column.flatten(), strict=True)
    return [(key, read(array, plain(array.type, f"{DATA}.{key}"))) for key, array in named]


def mappings(columns: Sequence[tuple[str, Read]]) -> tuple[list[Any], dict[int, str]]:
    keys, refused = [key for key, _ in columns], dict[int, str]()
    for _, found in columns:
        refused |= found.refused
    rows = zip(*(found.each() for _, found in columns), strict=True)
    data = [{key: value for key, value in zip(keys, row, strict=True) if value is not None} for row in rows]
    return data, refused


class Read(NamedTuple):
    values: list[Any]  # of a datum; distinct ones unless they are nested
    indices: pa.Array  # the position of each row's value; NULL for NULL
    refused: dict[int, str]  # row → why its value cannot be read
    is_nested: bool = False  # values are lists or mappings

    def each(self) -> list[Any]:
        values = [*self.values, None]
        return [*map(values.__getitem__, self.indices.fill_null(len(self.values)).to_pylist())]


def read(array: pa.Array, convert: Convert | None) -> Read:
    """Return a column as values of a datum. `convert` raises InvalidInput; None if values need no change."""
    if types.is_nested(array.type):
        values, refused = converted(array, convert)
        return Read(values, pa.array(range(len(array)), pa.int64()), refused, is_nested=True)
    dictionary, indices = distinct(array)
    return of_distinct(*converted(dictionary, convert), indices)


def of_distinct(values: list[Any], wrong: Mapping[int, str], indices: pa.Array) -> Read:
    """Return a column whose distinct values were read; some are wrong: position → reason."""
    places = enumerate(indices.to_pylist() if wrong else ())
    return Read(values, indices, {place: wrong[at] for place, at in places if at in wrong})


def distinct(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the distinct values of a column that is not nested, and the position of each row's value; NULL stays."""
    if types.is_floating(array.type):  # 0.0 and -0.0 are equal, but different values
        encoded = array.cast(pa.float64()).view(pa.int64()).dictionary_encode()
        return encoded.dictionary.view(pa.float64()), encoded.indices
    encoded = array.dictionary_encode()
    return encoded.dictionary, encoded.indices


def converted(array: pa.Array, convert: Convert | None) -> tuple[list[Any], dict[int, str]]:
    """Return the values of a column, None for those that cannot be converted, and position → reason of these."""
    try:
        values = array.to_pylist()
    except UnicodeDecodeError as error:  # a string of Spark may contain any bytes
        raise InvalidInput(f"a string is not UTF-8: {error}", hint="Remove or correct it.") from None
    except (OverflowError, ValueError):  # one of them is no value of Python, such as a time outside its years
        values, refused = _one_by_one(array)
    else:
        refused = {}
    if convert is None:
        return values, refused
    for position, value in enumerate(values):
        if value is not None:
            try:
                values[position] = convert(value)
            except InvalidInput as error:
                refused[position] = error.message
                values[position] = None
    return values, refused


def _one_by_one(array: pa.Array) -> tuple[list[Any], dict[int, str]]:
    values, refused = [], {}
    for position in range(len(array)):
        try:
            values.append(array[position].as_py())
        except (OverflowError, ValueError) as error:
            values.append(None)
            refused[position] = f"a value is out of range: {error}"
    return values, refused


def _from_json(text: str) -> Any:
    try:
        return from_json(json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=unique_keys))
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"data {text!r:.60}: not JSON: {error}") from None


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidInput(f'data: {word} is not JSON; write {{"$float": …}}')


def plain(kind: pa.DataType, name: str) -> Convert | None:
    """Return what turns values of Arrow into those of a datum; None for no change; raise InvalidInput of others."""
    if types.is_struct(kind):
        inner = {each.name: plain(each.type, f"{name}.{each.name}") or _same for each in kind}
        if len(inner) < kind.num_fields:
            raise InvalidInput(
                f"{name} has two fields of one name: {', '.join(kind.names)}", hint="Rename one of them."
            )
        return lambda value: {key: inner[key](each) for key, each in value.items() if each is not None}
    if types.is_map(kind):
        _check_keys(kind, name)
        of_value = plain(kind.item_type, f"{name}.value") or _same
        return lambda value: {key: of_value(each) for key, each in unique_keys(value).items() if each is not None}
    if types.is_list(kind):
        of_item = plain(kind.value_type, f"{name}[]")
        return None if of_item is None else lambda value: [None if each is None else of_item(each) for each in value]
    if types.is_timestamp(kind) and kind.tz is not None:
        return lambda value: format_time(microseconds(value))
    if any(is_kind(kind) for is_kind in _UNCHANGED):
        return None
    raise InvalidInput(f"{name} cannot be {kind}", hint=f"Cast {name} to another type, such as string.")


def _same(value: Any) -> Any:
    return value


def members(columns: Sequence[tuple[str, Read]], count: int, depth: int) -> tuple[list[bytes], dict[int, str]]:
    """Return rows as the members of JSON objects, each with a comma before it: `,"wind":3.4,"note":"gusty"`.

    What is NULL is omitted. Equal values are written once. Rows that cannot be written are returned with the reason.
    """
    refused: dict[int, str] = {}
    pieces = []
    for key, found in columns:
        refused |= found.refused
        texts = pa.array(_texts(key, found, depth, refused), pa.string()).take(found.indices)
        pieces.append(pc.binary_join_element_wise(pa.scalar(f",{dump(key).decode()}:"), texts, _NOTHING))
    lines = pc.binary_join_element_wise(*pieces, _NEWLINE, _NOTHING, null_handling="replace", null_replacement="")
    return lines.buffers()[2].to_pybytes().split(b"\n")[:count], refused


def _texts(key: str, found: Read, depth: int, refused: dict[int, str]) -> Sequence[bytes | None]:
    """Return the values of a column as JSON; add the rows of those that nest too deep to `refused`."""
    if not found.is_nested:
        texts = _written(found.values)
        return [dump(to_json(each, _DEPTH)) for each in found.values] if texts is None else texts
    nested: list[bytes | None] = [None] * len(found.values)
    for place, value in enumerate(found.values):
        try:
            nested[place] = None if value is None else dump(to_json(value, depth))
        except InvalidInput as error:
            refused[place] = f"{DATA}.{key}: {error.message}"
    return nested
