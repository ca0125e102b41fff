"""The values of cells: what a text in a table means.

In the content of a datum, a text is a number if it is written as programs write numbers:

    0  -12  9223372036854775807         an integer of 64 bits, without zeros before it
    0.5  -12.0  .5  5.  1.5e3  1e-05    a real: a point, or an exponent with a sign

Everything else stays a text, as it is: `007`, `+39`, `1e5`, `12E4` are codes or telephone numbers more often than
numbers; longer integers would lose digits in other programs; `nan` and `inf` are not finite. Blanks around a number do
not matter. With a decimal comma, numbers are written with a comma instead of the point, and one with a point is a text.
With a sign for thousands, it may be between each three digits before the decimal mark: all of them, or none.

A declared field has a type, and its texts are read by it: `007` is 7 in an integer, and `007` in a text.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import isfinite
from typing import Any, NamedTuple

from ondisk.datum import INTEGER_MAX, INTEGER_MIN, FieldType, Value, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.table_options import COMMA, DECIMALS, NULLS, POINT, THOUSANDS
from ondisk.tables.times import Times, timestamp

_CACHED, _LONG = 50_000, 64
_FIRST = 1000  # cells of a column of which all texts are looked at
_MANY = 10  # a column is one of numbers if so many texts or so many cells are numbers for each other one
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_REAL = re.compile(
    r"-?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|(?:0|[1-9][0-9]*)[eE][+-][0-9]{1,4})"
)
_ANY_INTEGER = re.compile(r"[+-]?[0-9]{1,100}(?:\.0*)?")
_ANY_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_ALIKE = {" ": " \u00a0\u2009\u202f", "'": "'\u2019"}  # signs for thousands that mean the same
_SIGNED = re.compile(r"\s*-?[0-9.,][-+0-9.,eE_' \u00a0\u2009\u202f\u2019]*")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class Cells:
    """How cells are written: which texts mean that there is no value, and which signs numbers have.

    Args:
        null: texts without a value, besides the empty one. Blanks around them do not matter; one that is a number means
            this number in any spelling.
        decimal: the mark before the decimals of numbers; None for a point.
        thousands: the sign between each three digits; None for none.
    """

    def __init__(self, null: Iterable[str] = (), decimal: str | None = None, thousands: str | None = None) -> None:
        self.decimal, self.thousands = decimal, thousands
        self._is_plain = decimal != COMMA and thousands is None
        self._signs = ""
        if thousands is not None:
            self._signs = _ALIKE.get(thousands, thousands)
            decimals = rf"(?:{re.escape(decimal or POINT)}[0-9]*)?"
            self._grouped = re.compile(
                rf"\s*[+-]?[1-9][0-9]{{0,2}}(?:[{re.escape(self._signs)}][0-9]{{3}})+{decimals}\s*"
            )
        self._null_texts = frozenset(["", *(text.strip() for text in null)])
        self._null_numbers = frozenset(self._numbers(self._null_texts))

    def value(self, text: str) -> int | float | str | None:
        if text.strip() in self._null_texts:
            return None
        value = self.number_or_text(text)
        return None if value in self._null_numbers else value

    def number_or_text(self, text: str) -> int | float | str:
        pointed = self.pointed(text)
        number = text if pointed is None else number_or_text(pointed)
        return text if isinstance(number, str) else number

    def pointed(self, text: str) -> str | None:
        """Return the text of a number with a point and without a sign for thousands; None if it has other signs."""
        if self._is_plain:
            return text
        if any(sign in text for sign in self._signs):
            if self._grouped.fullmatch(text) is None:
                return None
            text = "".join(sign for sign in text if sign not in self._signs)
        if self.decimal == COMMA:
            return None if POINT in text else text.replace(COMMA, POINT)
        return text

    def is_null(self, value: Value | None, text: str) -> bool:
        """Return whether a cell of a declared field has no value, if it was read as this one."""
        return text.strip() in self._null_texts or (type(value) in (int, float) and value in self._null_numbers)

    def _numbers(self, texts: Iterable[str]) -> Iterator[int | float]:
        for text in texts:
            if not isinstance(number := self.number_or_text(text), str):
                yield number
            elif (pointed := self.pointed(text)) is not None and _ANY_REAL.fullmatch(pointed):
                yield float(pointed)  # a field of numbers reads it, such as 0999


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


class Signs(NamedTuple):
    decimal: str
    thousands: str | None


class Doubt(NamedTuple):
    """Texts in a column of numbers that are not read as numbers."""

    text: str  # the first one
    cells: int  # how many have one of them
    signs: list[Signs]  # those with which all of the column are numbers, the simplest first; empty if no signs do that
    marks: list[str]  # the texts that may mean that there is no value. If there are some, all others are numbers


SIGNS = [Signs(decimal, None) for decimal in DECIMALS] + [
    Signs(decimal, thousands) for thousands, decimal in product(THOUSANDS, DECIMALS) if decimal != thousands
]
_READ_BY = {signs: Cells((), *signs).number_or_text for signs in SIGNS}


def doubt(counts: Mapping[str, int], cells: Cells, numbers: int = 0) -> Doubt | None:
    """Return the texts of a column that look like numbers, or are among numbers, and are read as texts.

    Return None if all are numbers, or if it is a column of texts. `counts`: text → how many cells have it;
    `numbers`: how many other cells have numbers.
    """
    read, odd, rest = list[str](), list[str](), list[str]()
    for text in counts:
        if (value := cells.value(text)) is None:
            continue
        if not isinstance(value, str):
            read.append(text)
        elif text not in NULLS and signs_of([text]):
            odd.append(text)
        else:
            rest.append(text)
    alike = [*read, *odd]
    few, many = sum(map(counts.__getitem__, rest)), numbers + sum(map(counts.__getitem__, alike))
    is_mark = all(text in NULLS for text in rest) or (
        len(rest) <= len(alike) and few < many and not any(map(str.isdigit, "".join(rest)))
    )
    if not many or not (odd or rest) or not (is_mark or _MANY * few <= many or _MANY * len(rest) <= len(alike)):
        return None
    if odd:
        return Doubt(odd[0], sum(map(counts.__getitem__, odd)), signs_of(alike), [])
    return Doubt(rest[0], few, [], [*dict.fromkeys(map(str.strip, rest))])


class ContentColumn(dict[str, Any]):
    """A column of the content: what its cells mean, and whether some of them are perhaps read as what they are not.

    Texts of cells → values, None if a cell has none; with `part_of` → parts of the content, no bytes without a value.

    Cost: counts the cells after the first ones only as long as there are texts among numbers.
    """

    def __init__(self, place: int, cells: Cells, part_of: Callable[[Any], bytes] | None) -> None:
        super().__init__()
        self.place = place
        self._cells, self._part_of = cells, part_of
        self._texts = dict[str, None]()  # those of all cells that are no numbers
        self._counts = Counter[str]()
        self._left = _FIRST
        self._numbers = self._others = 0
        self._is_of_texts = False

    def __missing__(self, text: str) -> Any:
        value: Any = self._cells.value(text)
        if type(value) is str:
            self._texts[text] = None
        if self._part_of is not None:
            value = b"" if value is None else self._part_of(value)
        if len(text) <= _LONG:
            self[text] = value
        return value

    def add(self, column: Sequence[str]) -> None:
        """Count the cells of a batch after they were looked up; forget what they mean if there are many."""
        if len(self) > _CACHED:
            self.clear()
        if self._left:
            first, column = column[: self._left], column[self._left :]
            self._counts.update(first)
            self._left -= len(first)
        self._is_of_texts |= self._others > self._numbers + _FIRST or len(self._texts) > _FIRST
        if self._is_of_texts:
            self._texts.clear()
        if self._texts and column:
            found = Counter(column)
            texts = {text: found[text] for text in self._texts}
            self._counts.update(texts)
            self._others += (others := sum(texts.values()))
            self._numbers += len(column) - found[""] - others

    def doubt(self) -> Doubt | None:
        return doubt(self._counts, self._cells, self._numbers)


def signs_of(texts: Sequence[str]) -> list[Signs]:
    if not all(map(_SIGNED.fullmatch, texts)):
        return []
    joined = "".join(texts)
    return [
        signs
        for signs in SIGNS
        if (signs.thousands is None or any(sign in joined for sign in _ALIKE.get(signs.thousands, signs.thousands)))
        and are_numbers(texts, signs)
    ]


def are_numbers(texts: Iterable[str], signs: Signs) -> bool:
    return not any(isinstance(_READ_BY[signs](text), str) for text in texts)


class Refused(str):
    """Why a cell has no value of its field; names column and text."""

    __slots__ = ()


class Metadata(dict[tuple[str, ...], Mapping[str, Any] | Refused]):
    """Texts of the cells of declared fields → metadata; or why one of them has none. Equal texts share one mapping.

    `times` reads timestamps that are written as the reftime, `iso` those in ISO 8601.
    """

    def __init__(self, fields: Sequence[tuple[str, FieldType, str]], cells: Cells, times: Times, iso: Times) -> None:
        super().__init__()
        self._cells = cells
        self._readers = [(name, column, kind, reader(kind, times, iso, cells)) for name, kind, column in fields]

    def __missing__(self, texts: tuple[str, ...]) -> Mapping[str, Any] | Refused:
        metadata: dict[str, Any] = {}
        for (name, column, kind, read), text in zip(self._readers, texts, strict=True):
            if self._cells.is_null(None, text):
                continue
            try:
                value = read(text)
            except InvalidInput as error:
                return Refused(f"column {column}: {error.message}{self._advice(kind, text)}")
            if not self._cells.is_null(value, text):
                metadata[name] = value
        if len(self) >= _CACHED:
            self.clear()
        if sum(map(len, texts)) <= _LONG * len(texts):
            self[texts] = metadata
        return metadata

    def _advice(self, kind: FieldType, text: str) -> str:
        """Return what else to do about a cell that is not a number, if other signs explain it."""
        if kind not in (FieldType.INTEGER, FieldType.REAL):
            return ""
        signs = [
            each
            for each in signs_of([text])
            if self._cells.decimal in (None, each.decimal) and (kind is FieldType.REAL or each.thousands is not None)
        ]
        return f"; {use_signs(signs, self._cells)}" if signs else ""


def use_signs(signs: Sequence[Signs], cells: Cells) -> str:
    """Return what to pass so that numbers with other signs are read."""
    first, *rest = signs
    # 1,234 may have a decimal comma or a thousand.
    others = [each for each in rest if first.thousands is None and each.decimal != first.decimal]
    return ", ".join(_use(each, cells) for each in [first, *others[:1]])


def _use(signs: Signs, cells: Cells) -> str:
    decimal, thousands = signs
    options = [f"decimal (--decimal {decimal})"] * (decimal != (cells.decimal or POINT))
    if thousands is None:
        mark = "comma" if decimal == COMMA else "point"
        return f"if that is a decimal {mark}, pass {options[0]}" if options else "omit thousands (--thousands)"
    sign = "blank" if thousands == " " else shlex.quote(thousands)
    options += [f"thousands (--thousands {sign})"]
    return f"if {'a blank' if thousands == ' ' else thousands} separates thousands, pass {' and '.join(options)}"


def reader(kind: FieldType, times: Times, iso: Times, cells: Cells | None = None) -> Callable[[str], Value]:
    """Return a function that reads the text of a cell as a value of a type, see `Metadata`; it raises InvalidInput."""
    if cells is not None and kind in (FieldType.INTEGER, FieldType.REAL):
        return partial(_with_signs, _READERS[kind], cells)
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


def _with_signs(read: Callable[[str], Value], cells: Cells, text: str) -> Value:
    """Read a number with the signs of cells, with the function that reads one with a point."""
    pointed = cells.pointed(text)
    if pointed is None:
        raise InvalidInput(
            f"{shown(text)} is not a number with {'a decimal comma' if cells.decimal == COMMA else 'these signs'}"
        )
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
    found = timestamp(text, times, iso)
    if isinstance(found, str):
        raise InvalidInput(found)
    return from_microseconds(found)


_READERS: dict[FieldType, Callable[[str], Value]] = {
    FieldType.INTEGER: _integer,
    FieldType.REAL: _real,
    FieldType.TEXT: lambda text: text,
    FieldType.ITEM: lambda text: text,
    FieldType.BOOLEAN: _boolean,
    FieldType.BYTES: _bytes,
}
