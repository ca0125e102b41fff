"""Summaries: of archives that are offline, read from files; and merged into one."""

from __future__ import annotations

import json
from typing import Any

from ondisk.dataset.layout import ARCHIVE
from ondisk.dataset.read import Summary
from ondisk.datum import FieldType, canonical, from_microseconds
from ondisk.errors import InvalidInput
from ondisk.filesystem import Directory
from ondisk.json_shapes import from_json, parse_time

_SUMMARY = ".summary"
_LONGEST = 16 * 1024 * 1024  # bytes of a summary; in memory it takes about 25 times as much


def offline(directory: Directory) -> list[str]:
    """Return the names of the archives of a dataset that have only a summary."""
    if directory.inode(ARCHIVE) is None:
        return []
    entries = {entry.name: entry.kind for entry in directory.entries(ARCHIVE)}
    names = [name.removesuffix(_SUMMARY) for name, kind in entries.items() if name.endswith(_SUMMARY)]
    return [name for name in names if entries.get(name) != "directory"]


def read(directory: Directory, name: str, fields: Any) -> Summary:
    """Read the summary of an archive that is offline.

    Args:
        directory: of the dataset.
        name: of the archive.
        fields: those of the dataset, with their types.

    Raises:
        InvalidInput: it cannot be read as a summary.
    """
    path = f"{ARCHIVE}/{name}{_SUMMARY}"
    try:
        return _summary(directory.read(path, _LONGEST), fields)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        full = directory.path / path
        hint = f"Write it again: ondisk summary ARCHIVE --json > {full}"
        raise InvalidInput(f"{full} is not a summary: {error}", hint=hint) from None


def merged(summaries: list[Summary]) -> Summary:
    """Merge summaries into one."""
    fields: dict[str, dict[Any, int]] = {}
    for each in summaries:
        for name, counts in each.fields.items():
            total = fields.setdefault(name, {})
            for value, count in counts:
                total[value] = total.get(value, 0) + count
    begins = [each.begin for each in summaries if each.begin is not None]
    ends = [each.end for each in summaries if each.end is not None]
    ordered = {
        name: sorted(counts.items(), key=lambda item: (item[0] is not None, _comparable(item[0])))
        for name, counts in fields.items()
    }
    return Summary(
        sum(each.count for each in summaries),
        sum(each.size for each in summaries),
        min(begins, default=None),
        max(ends, default=None),
        ordered,
    )


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else 0 if value is None else value


def _summary(text: bytes, fields: Any) -> Summary:
    """Read a summary as `ondisk summary --json` prints it."""
    read = json.loads(text)
    begin, end = (None if read[key] is None else _time(read[key]) for key in ("begin", "end"))
    counts = {
        name: [(_value(each["value"], fields[name]), int(each["count"])) for each in values]
        for name, values in read["fields"].items()
        if name in fields
    }
    return Summary(int(read["count"]), int(read["size"]), begin, end, counts)


def _time(text: str) -> Any:
    return from_microseconds(parse_time(text))


def _value(value: Any, kind: FieldType) -> Any:
    if value is None:
        return None
    found = _time(value) if kind is FieldType.TIMESTAMP else from_json(value)
    canonical(found, kind)  # raises if it is not a value of the field
    return found
