"""Data and summaries as JSON, as commands print them and the server sends them: docs/cli-json.md defines the keys."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ondisk import json_values
from ondisk.datum import METADATA, Datum
from ondisk.errors import InvalidInput
from ondisk.formats import find, of_segments

if TYPE_CHECKING:
    from ondisk.dataset.summaries import Summary
    from ondisk.index.field_values import FieldSummary
    from ondisk.index.groups import Group
    from ondisk.matcher.fields import Fields

_ANY_DEPTH = sys.maxsize  # data were checked when they were decoded
_DATUM = b'{%b"reftime":"%b","metadata":%b,"data":%b,"location":{"segment":%b,"offset":%d,"size":%d}}\n'
_GROUP = ("key", "count", "size", "begin", "end", "min", "mean", "max")
_MOST, _LONGEST = 50_000, 500  # metadata whose JSON is kept, and bytes of it


def as_json(value: Any) -> Any:
    return time_text(value) if isinstance(value, datetime) else json_values.to_json(value, _ANY_DEPTH)


def time_text(time: datetime) -> str:
    """Return a time as RFC 3339 text."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def json_data(data: Any) -> Any:
    """Return a datum's data in a form that JSON can hold."""
    # Of a mapping only the values are converted: with a single key it may look like a shape, as {"$bytes": …} does.
    return {key: as_json(value) for key, value in data.items()} if isinstance(data, Mapping) else as_json(data)


def names_of(fields: Sequence[str] | None, known: Fields) -> list[str] | None:
    """Return the names of the metadata to print; None for all; raise MatchError if there is no such field."""
    return None if fields is None else [known[name].name.removeprefix(METADATA) for name in fields]


def metadata_of(datum: Datum, fields: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a datum's metadata: those of `fields`, or all if it is None."""
    if fields is None:
        return iter(datum.metadata.items())
    return ((name, datum.metadata[name]) for name in fields if name in datum.metadata)


def lines_of_data(data: Iterable[Datum], fields: Sequence[str] | None) -> Iterator[bytes]:
    """Yield a line for each datum of a query.

    The loop may run a million times, so it makes no calls that it can avoid, and keeps the JSON of what data share:
    neighbours have one object as their reftime and one as the name of their segment, and all data of a series have one
    object as their metadata, if these are read-only. That object is kept, too: no other gets its id. The line names the
    dataset if several were read as one.
    """
    reftime, segment, dataset = None, None, None
    is_one = False  # whether no datum says which dataset it is from: all do, or none
    time = name = source = b""
    known: dict[int, tuple[Mapping[str, Any], bytes]] = {}
    for datum in data:
        if datum.reftime is not reftime:
            reftime = datum.reftime
            time = time_text(reftime).encode()
        if datum._segment is not segment:
            segment = datum._segment
            name = json_values.dump(segment)
        if not is_one and datum.dataset is not dataset:
            dataset = datum.dataset
            source = b'"dataset":%b,' % json_values.dump(as_json(dataset))
        is_one = dataset is None
        found = known.get(id(datum.metadata))
        if found is None:
            found = (
                datum.metadata,
                json_values.dump({key: as_json(value) for key, value in metadata_of(datum, fields)}),
            )
            if type(found[0]) is MappingProxyType and len(found[1]) <= _LONGEST:
                if len(known) >= _MOST:
                    known.clear()
                known[id(found[0])] = found
        content = datum.data
        yield _DATUM % (
            source,
            time,
            found[1],
            json_values.dump_bytes(content) if type(content) is bytes else json_values.dump(json_data(content)),
            name,
            datum._place[2],
            datum._place[3],
        )


def lines_of_groups(groups: Iterable[Group]) -> Iterator[bytes]:
    for group in groups:
        yield json_values.dump({key: _key(getattr(group, key)) for key in _GROUP}) + b"\n"


def _key(value: Any) -> Any:
    """Return a value of a group for JSON: the begin of a period in another zone than UTC keeps its offset."""
    if isinstance(value, tuple):
        return [*map(_key, value)]
    is_local = isinstance(value, datetime) and value.tzinfo is not UTC
    return value.isoformat() if is_local else as_json(value)


def json_summary(summary: Summary) -> dict[str, Any]:
    span = {"begin": as_json(summary.begin), "end": as_json(summary.end)}
    fields = {name: _field(each) for name, each in summary.fields.items()}
    totals = {"count": summary.count, "size": summary.size, **span, "last_change": summary.last_change}
    return {**totals, "fields": fields}


def _field(summary: FieldSummary) -> dict[str, Any]:
    values = [{"value": as_json(value), "count": count} for value, count in summary.values]
    bounds = {"min": as_json(summary.min), "max": as_json(summary.max)}
    return {"values": values, "distinct": summary.distinct, "missing": summary.missing, **bounds}


def index_lines(data: Iterable[Datum], dataset: str) -> Iterator[bytes]:
    """Yield a line for each datum, which says where its bytes are in a file; raise InvalidInput if they are in none."""
    from ondisk.segments.dir import file_name  # here, as few commands need it

    for datum in data:
        location = datum.location
        assert location is not None, "a query knows where its data are"
        path, offset = f"{datum.dataset or dataset}/{location.segment}", location.offset
        format = find(_format_of(location.segment))
        if not format.raw:
            problem = f"data of {format.name} are not in files as they were appended, so --index cannot say where"
            raise InvalidInput(problem, hint="Write --json.")
        if format.is_dir:
            path, offset = f"{path}/{file_name(location.segment, offset)}", 0
        items = {key: as_json(value) for key, value in datum.metadata.items()}
        place = {"path": path, "offset": offset, "length": location.size, "reftime": time_text(datum.reftime)}
        yield json_values.dump(place | {"items": items}) + b"\n"


@cache
def _format_of(segment: str) -> str:
    extension = segment.rpartition(".")[2]
    return of_segments(extension) or "blob"
