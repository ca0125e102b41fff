"""Match expressions → syntax tree: `reftime:>=2007-07; product:VM2,227 or VM2,228`. For users: `docs/match.md`.

    expression = group {(";" | newline) group}     all must hold; empty groups are ignored
    group      = field ":" value {"or" value}      one must hold
    field      = name | "metadata." (name | quoted text)

The field's declared type decides how a value is read; `reftime.py` reads times. After `metadata.`
comes the name of metadata that are not declared: the type of each datum's value decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isinf
from typing import NamedTuple

from ondisk import items
from ondisk.config import seconds_of
from ondisk.datum import INTEGER_MAX, INTEGER_MIN, METADATA, FieldType
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.matcher import Compare, Components, Expression, Item, Kind, Operator, Scalar, Undeclared
from ondisk.matcher.aliases import NO_ALIASES, Aliases
from ondisk.matcher.fragments import NOT_DECLARED, Fragment, all_of, any_of, known_fields
from ondisk.matcher.reftime import parse_times

MAX_LENGTH = 100_000
_QUOTES = r'"[^"]*(?:"|(?P<open>\Z))'  # a doubled quote sign is the end of one match and the beginning of the next
_GROUPS = re.compile(rf"{_QUOTES}|(?P<separator>[;\n])")
_ALTERNATIVES = re.compile(rf"{_QUOTES}|(?P<separator>(?<!\S)or(?!\S))", re.IGNORECASE)
# In a field of type text this would be read as one more component or text, and match nothing.
_GROUP_INSIDE = re.compile(
    rf"{_QUOTES}|(?:,|(?<!\S)or(?=\s))\s*(?P<group>(?P<field>(?:metadata\.)?[a-z_][a-z0-9_]*+)\s*+:)",
    re.IGNORECASE | re.ASCII,
)
_UNDECLARED = re.compile(r'metadata\.(?:(?P<plain>[^\s:;,"]+)|"(?P<quoted>(?:[^"]|"")+)")\s*:', re.IGNORECASE)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

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


def parse(
    text: str,
    fields: Mapping[str, FieldType],
    *,
    now: datetime | None = None,
    durations: Collection[str] = (),
    aliases: Aliases = NO_ALIASES,
) -> Expression:
    """Return the syntax tree of a match expression, with values in stored form: microseconds, and booleans 0 or 1.

    Args:
        text: the expression; empty matches everything. If a field occurs in two groups, both must match.
        fields: the declared fields, name → type. `reftime`, a timestamp, is always known.
        now: timezone-aware time for `now`, `today` and `ago`; by default the system's time.
        durations: fields of type integer that are seconds, so that their values may be written as `6h`.
        aliases: names for alternatives of items and of `reftime`.

    Raises MatchError of a syntax error, an unknown field or more than MAX_LENGTH; InvalidInput of `now` without zone.
    Cost: linear in the length of the text; the parser does not recurse.
    """
    if len(text) > MAX_LENGTH:
        raise MatchError(
            f"the match expression has {len(text)} characters, {MAX_LENGTH} are allowed",
            hint="Split it into several queries, or build the condition from dataset.fields.",
        )
    known = _Known({**fields, "reftime": FieldType.TIMESTAMP}, durations, aliases, _utc(now))
    whole = Fragment(text, 0)
    if surrogate := _LONE_SURROGATE.search(text):
        raise whole.part(surrogate.start(), surrogate.end()).error("a lone surrogate is not a character", "Remove it.")
    return all_of(_group(group, known) for group in _cut(whole, _GROUPS) if group.text)


class _Known(NamedTuple):
    """What the words of an expression mean; see `parse`."""

    fields: Mapping[str, FieldType]
    durations: Collection[str]
    aliases: Aliases
    now: datetime


def groups_of(text: str) -> list[str]:
    """Return the groups of a match expression, as they are written; raise MatchError if a quote has no end."""
    return [group.text for group in _cut(Fragment(text, 0), _GROUPS) if group.text]


def _cut(fragment: Fragment, separators: re.Pattern[str]) -> Iterator[Fragment]:
    begin = 0
    for found in separators.finditer(fragment.text):
        if found["open"] is not None:
            rest = fragment.part(found.start())
            raise rest.error(f"the quote {rest} has no end", 'Close it with ", and write a quote sign inside as "".')
        if found["separator"] is not None:
            yield fragment.part(begin, found.start())
            begin = found.end()
    yield fragment.part(begin)


def _group(group: Fragment, all_known: _Known) -> Expression:
    known, now = all_known.fields, all_known.now
    undeclared = _UNDECLARED.match(group.text)
    colon = group.text.find(":") if undeclared is None else undeclared.end() - 1
    if colon < 0:
        raise group.error(
            f"{group} has no colon", "Write `field: value`, as in `reftime:>=2007-07`, and `;` between groups."
        )
    field, value = group.part(0, colon), group.part(colon + 1)
    name = field.text.lower()
    if undeclared is not None:
        said = undeclared["plain"] or undeclared["quoted"].replace('""', '"')
        if said not in known or said == "reftime":
            _refuse_group_inside(METADATA + said, value, known)
            return _undeclared(said, value, now)
        name = said  # it was declared since somebody wrote the expression
    kind = known.get(name)
    if kind is None:
        if name.startswith(METADATA):
            hint = 'Write `metadata.NAME: value`, or `metadata."NAME": value` if it contains blanks or signs.'
            raise field.error(f"{field} is not a name of metadata", hint)
        raise field.error(f"there is no field {field}", known_fields(name, sorted(known)) + NOT_DECLARED)
    _refuse_group_inside(name, value, known)
    is_duration = kind is FieldType.INTEGER and name in all_known.durations
    conditions: list[Expression] = []
    for each in _cut(value, _ALTERNATIVES):
        is_aliased = kind is FieldType.ITEM or name == "reftime"
        meant = all_known.aliases.find(name, each.text) if is_aliased else None
        if meant is None:
            conditions.append(parse_value(name, kind, each, now, is_duration=is_duration))
        else:
            conditions += _meant(name, kind, each, meant, all_known)
    return any_of(name, conditions)


def _meant(name: str, kind: FieldType, alias: Fragment, meant: Iterable[str], known: _Known) -> Iterator[Expression]:
    for text in meant:
        try:
            yield parse_value(name, kind, Fragment(text, alias.start), known.now)
        except MatchError as error:
            problem = f"the alias {alias} of {name}, in {known.aliases.source}: {error.message}"
            raise MatchError(problem, hint=error.hint) from None


def _refuse_group_inside(name: str, value: Fragment, known: Mapping[str, FieldType]) -> None:
    """Raise if a group begins inside the value of the field `name`, after a comma or `or`."""
    for found in _GROUP_INSIDE.finditer(value.text):
        if found["group"] is None:
            continue
        field = found["field"]
        if field.lower() not in known and not field.lower().startswith(METADATA):
            continue
        inner = value.part(found.start("group"), found.end("group"))
        hint = (
            f"Write the field once: `{name}: 2 or 3`. If both fields must match, write `;` between the groups;"
            " if one of them, make two queries, or use `|` in Python."
        )
        if known.get(name, FieldType.TEXT).is_text:
            hint += " If it belongs to the text, quote the whole value."
        raise inner.error(f"{inner} begins a group inside the value of {name}", hint)


def _undeclared(name: str, value: Fragment, now: datetime) -> Expression:
    found: dict[Kind, list[Expression]] = {}
    for alternative in _cut(value, _ALTERNATIVES):
        for kind, condition in parse_untyped(METADATA + name, alternative, now).items():
            found.setdefault(kind, []).append(condition)
    return Undeclared(name, tuple((kind, any_of(METADATA + name, each)) for kind, each in found.items()))


def _utc(now: datetime | None) -> datetime:
    if now is None:
        return datetime.now(UTC)
    if now.utcoffset() is None:
        raise InvalidInput(f"now={shown(now)} has no time zone", hint="Use for example datetime.now(timezone.utc).")
    return now.astimezone(UTC)


def parse_value(
    field: str, kind: FieldType, fragment: Fragment, now: datetime, *, is_duration: bool = False
) -> Expression:
    """Return the condition of one alternative of a group; raise MatchError. `is_duration`: `6h` stands for seconds."""
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
