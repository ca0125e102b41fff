"""Reads one alternative of a match expression as a condition, by the field's declared type."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from math import isinf

from ondisk import items
from ondisk.config import seconds_of
from ondisk.datum import INTEGER_MAX, INTEGER_MIN, FieldType
from ondisk.errors import InvalidInput, MatchError
from ondisk.matcher.parsing import Fragment, all_of
from ondisk.matcher.reftime import parse_times
from ondisk.matcher.tree import Compare, Components, Expression, Item, Kind, Operator, Scalar

_LITERAL = re.compile(r'"((?:[^"]|"")*)"')
# Of two signs that begin alike, the longer comes first.
_OPERATORS: dict[str, Operator] = {">=": ">=", ">": ">", "<=": "<=", "<": "<", "==": "=", "=": "="}
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DURATION = re.compile(r"([+-]?)((?=.)(?:\d+[dhms])+)", re.ASCII)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_HEXADECIMAL = re.compile(r"(?:0x)?((?:[0-9a-f]{2})*)", re.ASCII | re.IGNORECASE)
# A 64-bit integer has 19 digits; int() refuses thousands of digits with its own error.
_LONGEST_INTEGER = 100


def parse_value(
    field: str, kind: FieldType, fragment: Fragment, now: datetime, *, is_duration: bool = False
) -> Expression:
    """Return the condition of one alternative of a group, without blanks around it; raise MatchError.

    `is_duration`: integers of the field are seconds, and may be written as `6h`.
    """
    if not fragment.text:
        raise fragment.error(f"{field} is compared with nothing", 'Remove the group, or write `""` for the empty text.')
    match kind:
        case FieldType.TEXT:
            return _text(field, fragment)
        case FieldType.ITEM:
            return _item(field, fragment)
        case FieldType.INTEGER:
            return _numbers(field, _seconds if is_duration else _integer, fragment)
        case FieldType.REAL:
            return _numbers(field, _real, fragment)
        case FieldType.BOOLEAN:
            return Compare(field, "=", _boolean(fragment))
        case FieldType.BYTES:
            return Compare(field, "=", _bytes(fragment))
        case FieldType.TIMESTAMP:
            return parse_times(field, fragment, now)


def _text(field: str, fragment: Fragment) -> Expression:
    if literal := _LITERAL.fullmatch(fragment.text):
        return Compare(field, "=", literal[1].replace('""', '"'))
    if '"' in fragment.text:
        hint = 'Quote the whole value, and write a quote sign inside as "": `"5"" pipe"`.'
        raise fragment.error(f"{fragment} is quoted in part", hint)
    parts = [part.text or None for part in fragment.split(",")]
    while parts and parts[-1] is None:
        parts.pop()
    if not parts:
        hint = 'Remove the group to match any; write `","` in quotes for the text itself.'
        raise fragment.error(f"{fragment} names no component of {field}", hint)
    return Components(field, tuple(parts))


def _item(field: str, fragment: Fragment) -> Expression:
    if literal := _LITERAL.fullmatch(fragment.text):
        return Compare(field, "=", literal[1].replace('""', '"'))
    try:
        items.pattern(field, fragment.text)
    except InvalidInput as error:
        raise fragment.error(error.message, error.hint) from None
    return Item(field, fragment.text)


def parse_untyped(field: str, fragment: Fragment, now: datetime) -> dict[Kind, Expression]:
    """Return the conditions for a value of unknown type: type → condition; raise MatchError if none fits."""
    readings: dict[Kind, Expression] = {}
    wrong: MatchError | None = None
    for kind, read in _UNTYPED.items():
        try:
            readings[kind] = read(field, fragment, now)
        except MatchError as error:
            wrong = wrong or error
    if wrong is not None and not readings:
        raise wrong
    return readings


def _number(fragment: Fragment) -> Scalar:
    """Return an integer of any size, else a real."""
    if _INTEGER.fullmatch(fragment.text) and len(fragment.text) <= _LONGEST_INTEGER:
        return int(fragment.text)
    return _real(fragment)


_UNTYPED: dict[Kind, Callable[[str, Fragment, datetime], Expression]] = {
    "text": lambda field, fragment, now: parse_value(field, FieldType.TEXT, fragment, now),
    "number": lambda field, fragment, _: _numbers(field, _number, fragment),
    "boolean": lambda field, fragment, now: parse_value(field, FieldType.BOOLEAN, fragment, now),
    "bytes": lambda field, fragment, now: parse_value(field, FieldType.BYTES, fragment, now),
    "time": lambda field, fragment, now: parse_value(field, FieldType.TIMESTAMP, fragment, now),
}


def _numbers(field: str, read: Callable[[Fragment], Scalar], fragment: Fragment) -> Expression:
    terms = list(fragment.split(","))
    return all_of(_comparison(field, read, term, alone=len(terms) == 1) for term in terms)


def _comparison(field: str, read: Callable[[Fragment], Scalar], term: Fragment, *, alone: bool) -> Expression:
    sign = next((sign for sign in _OPERATORS if term.text.startswith(sign)), "")
    if not sign and not alone:
        # `5,10` would require a number that is both, and silently match nothing.
        hint = "Commas join comparisons that must all hold, as in `>=3,<10`; for alternatives write `5 or 10`."
        raise term.error(f"{term} has no operator", hint)
    return Compare(field, _OPERATORS.get(sign, "="), read(term.part(len(sign))))


def _integer(fragment: Fragment) -> Scalar:
    if not _INTEGER.fullmatch(fragment.text):
        raise fragment.error(f"{fragment} is not an integer", "Write digits only, as in `5`, `>=3` or `>=3,<10`.")
    number = int(fragment.text) if len(fragment.text) <= _LONGEST_INTEGER else INTEGER_MAX + 1
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise _too_large(fragment, "The range is -2⁶³ to 2⁶³ - 1.")
    return number


def _seconds(fragment: Fragment) -> Scalar:
    if not (found := _DURATION.fullmatch(fragment.text)):
        if _INTEGER.fullmatch(fragment.text):
            return _integer(fragment)
        raise fragment.error(f"{fragment} is not a duration", "Write seconds, or for example `6h`, `>=2d` or `<1h30m`.")
    seconds = seconds_of(found[2]) or 0
    return -seconds if found[1] == "-" else seconds


def _real(fragment: Fragment) -> Scalar:
    infinite = _INFINITE.fullmatch(fragment.text)
    if not infinite and not _REAL.fullmatch(fragment.text):
        raise fragment.error(f"{fragment} is not a number", "Write for example `1.5`, `-2`, `>=1e-3` or `<inf`.")
    number = float(fragment.text)
    if isinf(number) and not infinite:
        raise _too_large(fragment, "The range is about ±1.8e308; write `inf` for infinity.")
    return number


def _too_large(fragment: Fragment, hint: str) -> MatchError:
    return fragment.error(f"{fragment} is too large for the field", hint)


def _boolean(fragment: Fragment) -> int:
    values = {"true": 1, "false": 0}
    if fragment.text.lower() not in values:
        raise fragment.error(f"{fragment} is not a boolean", "Write `true` or `false`.")
    return values[fragment.text.lower()]


def _bytes(fragment: Fragment) -> bytes:
    found = _HEXADECIMAL.fullmatch(fragment.text)
    if found is None:
        raise fragment.error(
            f"{fragment} is not hexadecimal", "Write two digits for each byte, as in `00ff` or `0x00FF`."
        )
    return bytes.fromhex(found[1])
