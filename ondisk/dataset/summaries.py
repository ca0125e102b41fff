"""Summaries: of data that match, and of archives that are offline, which are read from files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ondisk.dataset.layout import ARCHIVE
from ondisk.datum import METADATA, FieldType, Value, canonical, from_microseconds
from ondisk.errors import ArchiveOffline, InvalidInput, MatchError, shown
from ondisk.filesystem import Directory
from ondisk.index.field_values import FieldSummary, frequent, in_order, summed
from ondisk.json_shapes import from_json, parse_time
from ondisk.matcher.fields import Fields

_SUMMARY = ".summary"
_LONGEST = 16 * 1024 * 1024  # bytes of a summary; in memory it takes about 25 times as much


class Summary(NamedTuple):
    """Counts of the data of a dataset, or of those that match.

    Attributes:
        count: number of data.
        size: bytes of data, without padding.
        begin: first reftime; None without data.
        end: last reftime; None without data.
        fields: field → its values.
        last_change: the number of the last change of the index, for a summary of everything in it; else None.
    """

    count: int  # type: ignore[assignment]  # not the method of tuples
    size: int
    begin: datetime | None
    end: datetime | None
    fields: dict[str, FieldSummary]
    last_change: int | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether the other counts the same; when the index last changed does not count."""
        return isinstance(other, Summary) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other


def counted_fields(chosen: Sequence[str] | None, known: Fields) -> list[str]:
    """Return the names of the fields to summarise: those that were chosen, each once, or all declared ones.

    Raises:
        MatchError: there is no such field.
    """
    if chosen is None:
        return [name for name in known if name != "reftime"]
    if isinstance(chosen, str):
        hint = f"Write {[name.strip() for name in chosen.split(',')]}."
        raise InvalidInput(f"fields is a list of names, not {shown(chosen)}", hint=hint)
    names = [*dict.fromkeys(known[name].name for name in chosen)]
    for name in names:
        if name.startswith(METADATA):
            hint = f"Declare {shown(name.removeprefix(METADATA))} in dataset.toml and run `ondisk migrate`."
            raise MatchError(f"{shown(name)} is not declared, and a summary counts declared fields only", hint=hint)
    return names


def offline(directory: Directory) -> list[str]:
    """Return the names of the archives that have only a summary, of a dataset with a folder for archives."""
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
        hint = f"Write it again: ondisk summary ARCHIVE --json --all-values > {full}"
        raise InvalidInput(f"{full} is not a summary: {error}", hint=hint) from None


def joined(summaries: Iterable[Summary], fields: dict[str, FieldSummary], last_change: int | None) -> Summary:
    """Return the summary of several parts, with the values of the fields in all of them."""
    parts = [*summaries]
    return Summary(
        sum(each.count for each in parts),
        sum(each.size for each in parts),
        min((each.begin for each in parts if each.begin is not None), default=None),
        max((each.end for each in parts if each.end is not None), default=None),
        fields,
        last_change,
    )


class FieldCounts:
    """The values of one field in several datasets."""

    def __init__(self) -> None:
        self.values: dict[Value, int] = {}
        self.parts: list[FieldSummary] = []

    def add(self, part: FieldSummary) -> None:
        """Add the values of a dataset, which lists all of them, except those of archives that are offline."""
        for value, count in part.values:
            self.values[value] = self.values.get(value, 0) + count
        self.parts.append(part._replace(values=[]))

    def summary(self, limit: int | None) -> FieldSummary:
        """Return the values of all, but at most so many of the most frequent ones."""
        lowest: list[Any] = [each.min for each in self.parts if each.min is not None]
        highest: list[Any] = [each.max for each in self.parts if each.max is not None]
        return FieldSummary(
            frequent(self.values.items(), limit),
            max(len(self.values), *(each.distinct for each in self.parts), 0),
            sum(each.missing for each in self.parts),
            min(lowest, default=None),
            max(highest, default=None),
        )


def with_offline(
    counted: list[Iterator[Any]], offline: Mapping[str, Summary], name: str, kind: FieldType, limit: int | None
) -> FieldSummary:
    """Return the values of a field in several indices, and in archives that are offline.

    Their summaries may have been written without all values; then a warning says that the counts are too low.
    """
    known = []
    for archive, summary in offline.items():
        each = summary.fields.get(name)
        if each is not None:
            known.append(each)
        if summary.count if each is None else each.distinct > len(each.values):
            listed = "no values" if each is None else f"{len(each.values)} of {each.distinct} values"
            message = f"the summary of the archive {archive!r}, which is offline, lists {listed} of {name}"
            hint = "counts of others are too low. `ondisk summary ARCHIVE --json --all-values` lists all"
            warnings.warn(f"{message}: {hint}", ArchiveOffline, stacklevel=5)
    found = summed([*counted, *map(in_order, known)], kind, limit)
    lowest = [each.min for each in (found, *known) if each.min is not None]
    highest = [each.max for each in (found, *known) if each.max is not None]
    distinct = max(found.distinct, *(each.distinct for each in known), 0)
    return found._replace(distinct=distinct, min=min(lowest, default=None), max=max(highest, default=None))


def _summary(text: bytes, fields: Any) -> Summary:
    """Read a summary as `ondisk summary --json` prints it."""
    read = json.loads(text)
    begin, end = (None if read[key] is None else _time(read[key]) for key in ("begin", "end"))
    known = {name: _values(each, fields[name]) for name, each in read["fields"].items() if name in fields}
    last = read.get("last_change")
    return Summary(int(read["count"]), int(read["size"]), begin, end, known, None if last is None else int(last))


def _values(read: Any, kind: FieldType) -> FieldSummary:
    if isinstance(read, list):  # before 0.1.0: all values, and null for data without the field
        missing = sum(int(each["count"]) for each in read if each["value"] is None)
        read = {"values": [each for each in read if each["value"] is not None], "missing": missing}
        read |= {"distinct": len(read["values"]), "min": None, "max": None}
    values = [(_value(each["value"], kind), int(each["count"])) for each in read["values"]]
    least, most = (None if read[key] is None else _value(read[key], kind) for key in ("min", "max"))
    return FieldSummary(frequent(values, None), int(read["distinct"]), int(read["missing"]), least, most)


def _time(text: str) -> Any:
    return from_microseconds(parse_time(text))


def _value(value: Any, kind: FieldType) -> Any:
    found = _time(value) if kind is FieldType.TIMESTAMP else from_json(value)
    canonical(found, kind)  # raises if it is not a value of the field
    return found
