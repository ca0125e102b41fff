"""Counts of the data of a dataset by period, or by the values of a field."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import UTC
from itertools import groupby
from math import isnan
from typing import Any

from ondisk.dataset.access import Opened
from ondisk.dataset.query import Query, data
from ondisk.dataset.summaries import declared
from ondisk.datum import CONTENT, Datum, FieldType, canonical, microseconds
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.index import groups
from ondisk.index.groups import NUMBERS, PERIODS, Begins, By, Group, Part
from ondisk.local_time import zone_of
from ondisk.matcher.fields import Fields


def by_group(access: Opened, query: Query, by: By) -> Generator[Group, None, None]:
    """Yield the groups of data, in order; without the field first. Memory: one group; for `data.NAME`, all."""
    with contextlib.closing(parts_of(access, query, by)) as parts:
        for part in parts:
            yield part.group(by)


def parts_of(access: Opened, query: Query, by: By) -> Generator[Part, None, None]:
    """Yield the groups of the data that match, in order, as parts, to which those of other datasets can be added."""
    if by.of is not None and by.of.startswith(CONTENT):
        yield from _of_content(data(access, query, with_data=True), by, by.of.removeprefix(CONTENT))
        return
    with access.index.snapshot() as snapshot:
        yield from groups.grouped(snapshot, query.tree(access.index), by)


def check(by: str, of: str | None, tz: str | None, known: Fields) -> By:
    """Return what to group by, and the other field; raise MatchError or InvalidInput if one is not valid."""
    texts: dict[str, Any] = {"by": by, "min_max": of, "tz": tz}
    for what, given in texts.items():
        if given is None and what != "by":
            continue
        if not isinstance(given, str):
            example = {"by": "day", "tz": "Europe/Rome"}.get(what, "temperature")
            raise InvalidInput(f"{what} is a text, not {shown(given)}", hint=f'Write for example {what}="{example}".')
    names = [name.strip() for name in by.split(",")]
    keys = tuple(name if name in PERIODS else _group(name, known) for name in names)
    if len({*keys}) < len(keys):
        raise InvalidInput(f"{shown(by)} names a key twice", hint="Name each period and each field once.")
    if tz is not None and not {*PERIODS} & {*keys}:
        raise InvalidInput(
            "tz (--tz) is the zone of periods, and the groups are by values", hint="Omit it, or add a period."
        )
    zone = UTC if tz is None else zone_of(tz)
    kinds = tuple(FieldType.TIMESTAMP if key in PERIODS else known[key].kind for key in keys)
    if of is None or of.startswith(CONTENT):
        return By(keys, of, zone, kinds, None if of is None else FieldType.REAL)
    try:
        of = declared(of, known)
    except MatchError as error:
        error.hint += f" A number in the data themselves is written `{CONTENT}{of}`."
        raise
    kind = known[of].kind
    if kind not in (*NUMBERS, FieldType.TIMESTAMP):
        hint = "Name a field that is declared integer, real or timestamp."
        raise MatchError(f"{shown(of)} is declared {kind}, and has no lowest and highest value", hint=hint)
    return By(keys, of, zone, kinds, kind)


def _group(name: str, known: Fields) -> str:
    try:
        known[name]
    except MatchError:
        hint = f"The periods are {', '.join(PERIODS)}. The fields are {', '.join(known)}."
        raise MatchError(f"there is no period and no field {shown(name)}", hint=hint) from None
    return declared(name, known)


def joined(parts: Iterable[Iterable[Part]]) -> Iterator[Part]:
    """Yield the groups of several datasets together; each has its parts in order."""
    for _, same in groupby(heapq.merge(*parts, key=_sort_key), _sort_key):
        first, *others = same
        for other in others:
            first.add(other)
        yield first


def _sort_key(part: Part) -> list[tuple[bool, Any]]:
    """Return the key that sorts parts as SQLite does: missing values first, texts by their bytes."""
    return [(key is not None, 0 if key is None else key.encode() if isinstance(key, str) else key) for key in part.key]


def _number(value: Any) -> float | None:
    with contextlib.suppress(OverflowError):
        return float(value) if type(value) in (int, float) and not isnan(value) else None
    return None


def _of_content(found: Iterable[Datum], by: By, name: str) -> list[Part]:
    parts: dict[tuple[Any, ...], Part] = {}
    begins = {each: Begins(each, by.zone) for each in PERIODS}

    def key_of(datum: Datum, reftime: int, by: str, kind: FieldType) -> Any:
        if by in PERIODS:
            return begins[by].of(reftime)
        key = datum.reftime if by == "reftime" else datum.metadata.get(by)
        return None if key is None else canonical(key, kind)

    for datum in found:
        reftime = microseconds(datum.reftime)
        number = _number(datum.data.get(name)) if isinstance(datum.data, Mapping) else None
        key = tuple(key_of(datum, reftime, each, kind) for each, kind in zip(by.keys, by.kinds, strict=True))
        part = Part(key, 1, 0 if datum.location is None else datum.location.size, reftime, reftime)
        if number is not None:
            part.min = part.max = part.total = number
            part.number = 1
        if key in parts:
            parts[key].add(part)
        else:
            parts[key] = part
    return sorted(parts.values(), key=_sort_key)
