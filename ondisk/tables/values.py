"""The values of cells: what a text in a table means.

In the content of a datum, a text is a number if it is written as programs write numbers:

    0  -12  9223372036854775807         an integer of 64 bits, without zeros before it
    0.5  -12.0  .5  5.  1.5e3  1e-05    a real: a point, or an exponent with a sign

Everything else stays a text, as it is: `007`, `+39`, `1e5`, `12E4` are codes or telephone numbers more often than
numbers; longer integers would lose digits in other programs; `nan` and `inf` are not finite. Blanks around a number do
not matter.

A declared field has a type, and its texts are read by it: `007` is 7 in an integer, and `007` in a text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from ondisk.datum import INTEGER_MAX, INTEGER_MIN, FieldType, Value, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.tables.times import Times

_CACHED, _LONG = 50_000, 64
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_REAL = re.compile(
    r"-?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|(?:0|[1-9][0-9]*)[eE][+-][0-9]{1,4})"
)
_ANY_INTEGER = re.compile(r"[+-]?[0-9]{1,100}(?:\.0*)?")
_ANY_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class CellValues(dict[str, Any]):
    """Texts of cells → values of the content; None for those that mean that there is no value.

    Args:
        null: such texts, besides the empty one.
    """

    def __init__(self, null: Iterable[str]) -> None:
        super().__init__()
        self._null = dict.fromkeys(["", *null])
        self.update(self._null)

    def __missing__(self, text: str) -> Any:
        value = number_or_text(text)
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
        null: such texts, besides the empty one.
    """

    def __init__(self, part_of: Callable[[Any], bytes], null: Iterable[str]) -> None:
        super().__init__()
        self._part_of = part_of
        self._null = dict.fromkeys(["", *null], b"")
        self.update(self._null)

    def __missing__(self, text: str) -> bytes:
        part = self._part_of(number_or_text(text))
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
    """

    def __init__(
        self, fields: Sequence[tuple[str, FieldType, str]], null: Iterable[str], times: Times, iso: Times
    ) -> None:
        super().__init__()
        self._null = frozenset(["", *null])
        self._readers = [(name, column, reader(kind, times, iso)) for name, kind, column in fields]

    def __missing__(self, texts: tuple[str, ...]) -> Mapping[str, Any] | Refused:
        metadata: dict[str, Any] = {}
        for (name, column, read), text in zip(self._readers, texts, strict=True):
            if text in self._null:
                continue
            try:
                metadata[name] = read(text)
            except InvalidInput as error:
                return Refused(f"column {column}: {error.message}")
        if len(self) >= _CACHED:
            self.clear()
        if sum(map(len, texts)) <= _LONG * len(texts):
            self[texts] = metadata
        return metadata


def reader(kind: FieldType, times: Times, iso: Times) -> Callable[[str], Value]:
    """Return a function that reads the text of a cell as a value of a type; it raises InvalidInput.

    Args:
        times, iso: as in `Metadata`.
    """
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
