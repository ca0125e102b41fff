"""Counts of the data of a dataset and of its archives by period, or by the values of a field."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import groupby
from math import isnan
from typing import Any

from ondisk.dataset.access import Opened
from ondisk.dataset.archives import Archives
from ondisk.dataset.query import Query, Snapshots, data
from ondisk.datum import CONTENT, METADATA, Datum, FieldType, canonical, microseconds
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.index import groups
from ondisk.index.groups import NUMBERS, PERIODS, Group, Part
from ondisk.matcher.fields import Fields


def by_group(access: Opened, archives: Archives, query: Query, by: str, of: str | None) -> Generator[Group, None, None]:
    """Yield the groups of the data that match, in the order of their keys; data without the field come first.

    Args:
        by: a period, a declared field or reftime.
        of: a declared field of numbers or times, or `data.NAME`; None if there is no other field.

    Memory: one group; all of them for `data.NAME`.
    """
    kinds = kinds_of(access.index.config.fields, by, of)
    with contextlib.closing(parts_of(access, archives, query, by, of)) as parts:
        for part in parts:
            yield part.group(*kinds)


def kinds_of(fields: Mapping[str, FieldType], by: str, of: str | None) -> tuple[FieldType, FieldType | None]:
    """Return the types of the keys of groups, and of the values of the other field."""
    known = {**fields, "reftime": FieldType.TIMESTAMP}
    key = FieldType.TIMESTAMP if by in PERIODS else known[by]
    return key, FieldType.REAL if of is not None and of.startswith(CONTENT) else known[of] if of is not None else None


def parts_of(access: Opened, archives: Archives, query: Query, by: str, of: str | None) -> Generator[Part, None, None]:
    """Yield the groups of the data that match, in order, as parts, to which those of other datasets can be added."""
    if of is not None and of.startswith(CONTENT):
        key, _ = kinds_of(access.index.config.fields, by, of)
        yield from _of_content(data(access, archives, query, with_data=True), by, key, of.removeprefix(CONTENT))
        return
    with Snapshots(access, archives, query) as snapshots:
        archives.warn_of_offline("was not counted")
        yield from joined([groups.grouped(snapshot, tree, by, of) for _, snapshot, tree in snapshots.each()])


def check(by: str, of: str | None, known: Fields) -> tuple[str, str | None]:
    """Return what to group by, and the other field, by their names in the configuration.

    Raises:
        MatchError: there is no such field, or the other one has neither numbers nor times.
        InvalidInput: a name is not a text.
    """
    for what, given in {"by": by, **({} if of is None else {"min_max": of})}.items():
        if not isinstance(given, str):
            raise InvalidInput(f"{what} is a text, not {shown(given)}", hint='Write for example by="day".')
    by = by if by in PERIODS else _group(by, known)
    if of is None or of.startswith(CONTENT):
        return by, of
    try:
        of = _declared(of, known)
    except MatchError as error:
        error.hint += f" A number in the data themselves is written `{CONTENT}{of}`."
        raise
    kind = known[of].kind
    if kind not in (*NUMBERS, FieldType.TIMESTAMP):
        hint = "Name a field that is declared integer, real or timestamp."
        raise MatchError(f"{shown(of)} is declared {kind}, and has no lowest and highest value", hint=hint)
    return by, of


def _group(name: str, known: Fields) -> str:
    """Return the declared field to group by."""
    try:
        known[name]
    except MatchError:
        hint = f"The periods are {', '.join(PERIODS)}. The fields are {', '.join(known)}."
        raise MatchError(f"there is no period and no field {shown(name)}", hint=hint) from None
    return _declared(name, known)


def _declared(name: str, known: Fields) -> str:
    found = known[name].name
    if found.startswith(METADATA):
        hint = f"Declare {shown(name)} in dataset.toml and run `ondisk migrate`."
        raise MatchError(f"{shown(name)} is not declared, and a summary counts declared fields only", hint=hint)
    return found


def joined(parts: Iterable[Iterable[Part]]) -> Iterator[Part]:
    """Yield the groups of several datasets and archives together; each has its parts in order."""
    for _, same in groupby(heapq.merge(*parts, key=_sort_key), _sort_key):
        first, *others = same
        for other in others:
            first.add(other)
        yield first


def _sort_key(part: Part) -> tuple[bool, Any]:
    """Return the key that sorts parts as SQLite does: missing values first, texts by their bytes."""
    key = part.key
    return key is not None, 0 if key is None else key.encode() if isinstance(key, str) else key


def _number(value: Any) -> float | None:
    """Return a value as a number; None if it is not a number."""
    with contextlib.suppress(OverflowError):
        return float(value) if type(value) in (int, float) and not isnan(value) else None
    return None


def _of_content(found: Iterable[Datum], by: str, kind: FieldType, name: str) -> list[Part]:
    """Return the groups of data, in order, with the numbers that their content has under a name."""
    parts: dict[Any, Part] = {}
    for datum in found:
        reftime = microseconds(datum.reftime)
        number = _number(datum.data.get(name)) if isinstance(datum.data, Mapping) else None
        if by in PERIODS:
            key: Any = groups.begin_of(by, reftime)
        else:
            key = datum.reftime if by == "reftime" else datum.metadata.get(by)
            key = None if key is None else canonical(key, kind)
        part = Part(key, 1, 0 if datum.location is None else datum.location.size, reftime, reftime)
        if number is not None:
            part.min = part.max = part.total = number
            part.number = 1
        if key in parts:
            parts[key].add(part)
        else:
            parts[key] = part
    return sorted(parts.values(), key=_sort_key)
