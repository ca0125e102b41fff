"""What a dataset is: its configuration, how many data it has, and how they are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ondisk.dataset.access import Access
from ondisk.dataset.place_checks import maintained
from ondisk.dataset.query import span
from ondisk.dataset.segment_layout import layout_of
from ondisk.datum import from_microseconds
from ondisk.errors import ConfigError
from ondisk.formats import find
from ondisk.index import INDEX, Snapshot, segment_rows
from ondisk.index.sums import totals
from ondisk.matcher import Everything
from ondisk.segments.places import places
from ondisk.step import DAY

_STORED = ("version", "payload", "compression", "encryption")


def info(dataset: Access) -> dict[str, Any]:
    opened = dataset.current()
    with opened.index.snapshot() as snapshot:
        known = snapshot.dataset()
        found = totals(snapshot, Everything())
        begin, end = span(found)
        stored = _stored(snapshot)
        source = _source(snapshot) if opened.index.config.replica else None
        pending = layout_of(opened.index.config.step).pending(dataset, snapshot)
    config = opened.index.config
    found_places = {each.name.split("/")[1]: each for each in places(dataset.directory).values()}
    index = dataset.directory.stat(INDEX)
    return {
        "path": str(dataset.path),
        "uuid": known["uuid"],
        "format": config.format,
        "step": config.step.value,
        "unique": list(config.unique),
        "index": list(config.index),
        "replace": dataset.config.replace,
        "fields": {name: kind.value for name, kind in config.fields.items()},
        "archive_age": config.archive_age,
        "delete_age": config.delete_age,
        "to_archive": _next(dataset, dataset.config.archive_age, [""]),
        "to_delete": _next(dataset, dataset.config.delete_age, maintained(dataset.config)),
        **_new(dataset),
        "count": found.count,
        "size": found.size,
        "begin": begin,
        "end": end,
        "segments": sum(each["segments"] for each in stored),
        "stored": stored,
        "index_size": 0 if index is None else index.st_size,
        "pending": pending,
        "source": source,
        "lost": known["lost"],
        "archives": [name for name, each in found_places.items() if each.why_away is None],
        "offline": [name for name, each in found_places.items() if each.is_offline],
        "missing": [name for name, each in found_places.items() if each.why_away is not None and not each.is_offline],
    }


def _next(dataset: Access, age: int | None, places: Sequence[str]) -> dict[str, Any] | None:
    """Return which segments are the first to reach an age, of days, and when; the next repack after that moves them."""
    if age is None:
        return None
    with dataset.current().index.snapshot() as snapshot:
        first = segment_rows.first_to_end(snapshot, places)
    if first is not None:
        with contextlib.suppress(OverflowError):  # after the year 9999
            return {"at": from_microseconds((first[0] + age) * DAY), "segments": first[1]}
    return None


def _source(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return which dataset this one follows, and how far; `host` is None if its source is at a path."""
    from ondisk.replication.source_rows import followed

    if (source := followed(snapshot)) is None:
        return None
    return {
        "uuid": source.uuid,
        "host": f"{source.host}:{source.port}" if source.host else None,
        "offset": source.offset,
        "changed_at": from_microseconds(source.committed_at),
    }


def _new(dataset: Access) -> dict[str, int | str | None]:
    found: dict[str, int | str] = {}
    with contextlib.suppress(ConfigError):  # a package is not installed
        format = dataset.format(dataset.config.format)
        found = format.stored(format.begin().end)
    return {key: found.get(key) for key in _STORED}


def _stored(snapshot: Snapshot) -> list[dict[str, int | str]]:
    counts: dict[tuple[tuple[str, int | str], ...], int] = {}
    for name, end, count in segment_rows.ways(snapshot):
        found: dict[str, int | str] = {}
        with contextlib.suppress(ConfigError):
            found = find(name).stored(end)
        way = (("format", name), *found.items())
        counts[way] = counts.get(way, 0) + count
    return [{**dict(way), "segments": count} for way, count in counts.items()]
