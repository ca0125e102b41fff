"""The values of cells: what a text in a table means.

In the content of a datum, a text is a number if it is written as programs write numbers:

    0  -12  9223372036854775807         an integer of 64 bits, without zeros before it
    0.5  -12.0  .5  5.  1.5e3  1e-05    a real: a point, or an exponent with a sign

Everything else stays a text, as it is: `007`, `+39`, `1e5`, `12E4` are codes or telephone numbers more often than
numbers; longer integers would lose digits in other programs; `nan` and `inf` are not finite. Blanks around a number do
not matter. With a decimal comma, numbers are written with a comma instead of the point, and one with a point is a text.

A declared field has a type, and its texts are read by it: `007` is 7 in an integer, and `007` in a text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, TypeAlias

from ondisk.datum import INTEGER_MAX, INTEGER_MIN, FieldType, Value, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.tables.options import COMMA, POINT, USE_COMMA
from ondisk.tables.times import Times

_CACHED, _LONG = 50_000, 64
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_REAL = re.compile(
    r"-?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|(?:0|[1-9][0-9]*)[eE][+-][0-9]{1,4})"
)
_ANY_INTEGER = re.compile(r"[+-]?[0-9]{1,100}(?:\.0*)?")
_ANY_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2},[0-9]{3}")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


ValueOf: TypeAlias = Callable[[str], int | float | str]
"""Returns the value of a text: a number, or the text."""


class CellValues(dict[str, Any]):
    """Texts of cells → values of the content; None for those that mean that there is no value.

    Args:
        null: such texts, besides the empty one.
        value_of: returns the value of another text.
    """

    def __init__(self, null: Iterable[str], value_of: ValueOf) -> None:
        super().__init__()
        self._value_of = value_of
        self._null = dict.fromkeys(["", *null])
        self.update(self._null)

    def __missing__(self, text: str) -> Any:
        value = self._value_of(text)
        if len(text) <= _LONG:
            self[text] = value
        return value

    def trim(self) -> None:
        """Forget values if there are many; call it between batches."""
        if len(self) > _CACHED:
            self.clear()
            self.update(self._null)


class Parts(dict[str, bytes]):
    """Texts of the cells of one column → their parts of the content; no bytes for texts without a value.

    Args:
        part_of: returns the part of a value.
        null, value_of: as in `CellValues`.
    """

    def __init__(self, part_of: Callable[[Any], bytes], null: Iterable[str], value_of: ValueOf) -> None:
        super().__init__()
        self._value_of = value_of
        self._part_of = part_of
        self._null = dict.fromkeys(["", *null], b"")
        self.update(self._null)

    def __missing__(self, text: str) -> bytes:
        part = self._part_of(self._value_of(text))
        if len(text) <= _LONG:
            self[text] = part
        return part

    def trim(self) -> None:
        """Forget parts if there are many; call it between batches."""
        if len(self) > _CACHED:
            self.clear()
            self.update(self._null)


def number_or_text(text: str) -> int | float | str:
    """Return the number that a text is, or the text; see the module's docstring."""
    stripped = text.strip(" \t")
    if _INTEGER.fullmatch(stripped):
        number = int(stripped)
        return number if INTEGER_MIN <= number <= INTEGER_MAX else text
    if _REAL.fullmatch(stripped):
        real = float(stripped)
        return real if isfinite(real) else text
    return text


def number_with_comma_or_text(text: str) -> int | float | str:
    """Return the number that a text with a decimal comma is, or the text."""
    number = text if POINT in text else number_or_text(text.replace(COMMA, POINT))
    return text if isinstance(number, str) else number


def numbers_by(decimal: str | None) -> ValueOf:
    """Return the function that finds numbers in texts with a decimal mark."""
    return number_with_comma_or_text if decimal == COMMA else number_or_text


def with_decimal_comma(texts: Iterable[str]) -> str | None:
    """Return the first text that can only be a number with a decimal comma, if all are numbers.

    `1,234` may be a thousand and more.
    """
    found = None
    for text in texts:
        if isinstance(number_with_comma_or_text(text), str):
            return None
        if found is None and COMMA in text and _THOUSANDS.fullmatch(text.strip()) is None:
            found = text
    return found


def with_decimal_point(texts: Iterable[str]) -> str | None:
    """Return the first text that has a decimal point, if all are numbers."""
    found = None
    for text in texts:
        number = number_or_text(text)
        if isinstance(number, str):
            return None
        if found is None and isinstance(number, float) and POINT in text:
            found = text
    return found


class Refused(str):
    """Why a cell has no value of its field; names column and text."""

    __slots__ = ()


class Metadata(dict[tuple[str, ...], Mapping[str, Any] | Refused]):
    """Texts of the cells of declared fields → metadata; or why one of them has none. Equal texts share one mapping.

    Args:
        fields: name, type and column of each, in the order of the texts.
        null: texts that mean that there is no value, besides the empty one.
        times: reads timestamps that are written as the reftime.
        iso: reads timestamps in ISO 8601.
        decimal: the mark before the decimals of numbers.
    """

    def __init__(
        self,
        fields: Sequence[tuple[str, FieldType, str]],
        null: Iterable[str],
        times: Times,
        iso: Times,
        decimal: str | None,
    ) -> None:
        super().__init__()
        self._null, self._decimal = frozenset(["", *null]), decimal
        self._readers = [(name, column, reader(kind, times, iso, decimal)) for name, kind, column in fields]
        self._real = {name for name, kind, _ in fields if kind is FieldType.REAL}

    def __missing__(self, texts: tuple[str, ...]) -> Mapping[str, Any] | Refused:
        metadata: dict[str, Any] = {}
        for (name, column, read), text in zip(self._readers, texts, strict=True):
            if text in self._null:
                continue
            try:
                metadata[name] = read(text)
            except InvalidInput as error:
                is_comma = self._decimal is None and name in self._real and with_decimal_comma([text]) is not None
                return Refused(f"column {column}: {error.message}{f'; {USE_COMMA}' * is_comma}")
        if len(self) >= _CACHED:
            self.clear()
        if sum(map(len, texts)) <= _LONG * len(texts):
            self[texts] = metadata
        return metadata


def reader(kind: FieldType, times: Times, iso: Times, decimal: str | None = None) -> Callable[[str], Value]:
    """Return a function that reads the text of a cell as a value of a type; it raises InvalidInput.

    Args:
        times, iso, decimal: as in `Metadata`.
    """
    if decimal == COMMA and kind in (FieldType.INTEGER, FieldType.REAL):
        return partial(_with_comma, _READERS[kind])
    if kind is FieldType.TIMESTAMP:
        return lambda text: _timestamp(text, times, iso)
    return _READERS[kind]


def _integer(text: str) -> int:
    stripped = text.strip()
    if _ANY_INTEGER.fullmatch(stripped) is None:
        raise InvalidInput(f"{shown(text)} is not an integer")
    number = int(stripped.partition(".")[0])
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise InvalidInput(f"{shown(text)} does not fit into 64 bits")
    return number


def _real(text: str) -> float:
    stripped = text.strip()
    if matched := _INFINITE.fullmatch(stripped):
        return float(f"{matched[1]}inf")
    if _ANY_REAL.fullmatch(stripped) is None:
        raise InvalidInput(f"{shown(text)} is not a number")
    real = float(stripped)
    if not isfinite(real):
        raise InvalidInput(f"{shown(text)} is too large for a real")
    return real


def _with_comma(read: Callable[[str], Value], text: str) -> Value:
    """Read a number with a decimal comma, with the function that reads one with a point."""
    if POINT in text:
        raise InvalidInput(f"{shown(text)} is not a number with a decimal comma")
    pointed = text.replace(COMMA, POINT)
    try:
        return read(pointed)
    except InvalidInput as error:
        raise InvalidInput(error.message.replace(shown(pointed), shown(text))) from None


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise InvalidInput(f"{shown(text)} is not true or false")
    return value


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"{shown(text)} is not base64, as a field of bytes needs it") from None


def _timestamp(text: str, times: Times, iso: Times) -> Value:
    found = times[text]
    if isinstance(found, str):
        if isinstance(also := iso[text], str):
            raise InvalidInput(found)
        found = also
    return from_microseconds(found)


_READERS: dict[FieldType, Callable[[str], Value]] = {
    FieldType.INTEGER: _integer,
    FieldType.REAL: _real,
    FieldType.TEXT: lambda text: text,
    FieldType.BOOLEAN: _boolean,
    FieldType.BYTES: _bytes,
}
