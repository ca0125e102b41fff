"""Match expressions → syntax tree: `reftime:>=2007-07; product:VM2,227 or VM2,228`. For users: `docs/match.md`.

    expression = group {(";" | newline) group}     all must hold; empty groups are ignored
    group      = field ":" value {"or" value}      one must hold
    field      = name | "metadata." (name | quoted text)

The field's declared type decides how a value is read: see `values.py`, and `reftime.py` for times. After `metadata.`
comes the name of metadata that are not declared: the type of each datum's value decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from ondisk.datum import METADATA, FieldType
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.matcher.aliases import NO_ALIASES, Aliases
from ondisk.matcher.parsing import NOT_DECLARED, Fragment, all_of, any_of, known_fields
from ondisk.matcher.tree import Expression, Kind, Undeclared
from ondisk.matcher.values import parse_untyped, parse_value

MAX_LENGTH = 100_000
_QUOTES = r'"[^"]*(?:"|(?P<open>\Z))'  # a doubled quote sign is the end of one match and the beginning of the next
_GROUPS = re.compile(rf"{_QUOTES}|(?P<separator>[;\n])")
_ALTERNATIVES = re.compile(rf"{_QUOTES}|(?P<separator>(?<!\S)or(?!\S))", re.IGNORECASE)
# In a field of type text this would be read as one more component or text, and match nothing.
_GROUP_INSIDE = re.compile(
    rf"{_QUOTES}|(?P<sign>,|(?<!\S)or(?=\s))\s*(?P<group>(?P<field>(?:metadata\.)?[a-z_][a-z0-9_]*+)\s*+:)",
    re.IGNORECASE | re.ASCII,
)
_UNDECLARED = re.compile(r'metadata\.(?:(?P<plain>[^\s:;,"]+)|"(?P<quoted>(?:[^"]|"")+)")\s*:', re.IGNORECASE)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(
    text: str,
    fields: Mapping[str, FieldType],
    *,
    now: datetime | None = None,
    durations: Collection[str] = (),
    aliases: Aliases = NO_ALIASES,
) -> Expression:
    """Return the syntax tree of a match expression.

    Args:
        text: the expression; empty matches everything. If a field occurs in two groups, both must match.
        fields: the declared fields, name → type. `reftime`, a timestamp, is always known.
        now: timezone-aware time for `now`, `today` and `ago`; by default the system's time.
        durations: fields of type integer that are seconds, so that their values may be written as `6h`.
        aliases: names for alternatives of items and of `reftime`.

    Returns:
        The tree, with values in stored form: times are microseconds, booleans 0 or 1.

    Raises:
        MatchError: the text is longer than MAX_LENGTH, has a syntax error, or names an unknown field.
        InvalidInput: `now` has no time zone.

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
    """Yield the parts of a fragment between separators outside quotes."""
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
    """Yield the conditions that an alias stands for."""
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
        if found["sign"] == ",":
            hint = f"Write `;` between groups, not a comma: `; {field}: …`."
        elif field.lower() == name.lower():
            hint = f"Write the field once: `{name}: 2 or 3`."
        else:
            hint = "`or` joins values of one field: make two queries; in Python, `|` joins conditions."
        if known.get(name, FieldType.TEXT).is_text:
            hint += " If it belongs to the text, quote the whole value."
        raise inner.error(f"{inner} begins a group inside the value of {name}", hint)


def _undeclared(name: str, value: Fragment, now: datetime) -> Expression:
    """Return the condition of a group on metadata that are not declared."""
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
