"""Results of commands as text, or as JSON, one object a line: docs/cli-json.md defines the keys, and is a promise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

from ondisk import json_values
from ondisk.batched import batched
from ondisk.cli.streams import printable, write_stdout
from ondisk.dataset.datum_as_json import (
    as_json,
    json_data,
    json_summary,
    lines_of_data,
    lines_of_groups,
    metadata_of,
    time_text,
)
from ondisk.datum import Datum, Value
from ondisk.errors import counted

if TYPE_CHECKING:
    from ondisk import FieldSummary, Group, Summary

_PAGE = 1000  # data in a table: a table is laid out in memory, so more data are printed as several tables
_LONGEST = 80  # characters of a datum's data
_PERIODS = {"hour": 16, "day": 10, "month": 7, "year": 4}  # and how much of the text of a time names it
_CONTROLS = frozenset(map(chr, {*range(32), 127} - {*b"\t\n\v\f\r\x1b"}))


class Output:
    """Prints results as text or as JSON. Of what both need, only one is made."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, values: Iterable[Mapping[str, Any]], lines: Iterable[str]) -> None:
        """Print lines; or the values, each as an object."""
        if self.as_json:
            _write(json_values.dump(_plain(each)) + b"\n" for each in values)
        else:
            write_stdout(printable(line).encode() + b"\n" for line in lines)

    def info(self, info: Mapping[str, Any]) -> None:
        rows = {key.replace("_", " "): _listed(value) for key, value in info.items()}
        self.show([info], in_columns((rows | {"path": printable(info["path"])}).items()))

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        def line(datum: Datum) -> bytes:
            pairs = [f"{printable(name)}={shown_value(value)}" for name, value in metadata_of(datum, fields)]
            texts = [time_text(datum.reftime), *_source(datum), *pairs, _data_shown(datum.data)]
            return "  ".join(texts).rstrip().encode() + b"\n"

        if self.as_json:
            _write(lines_of_data(data, fields))
        else:
            write_stdout(map(line, data))

    def summary(self, summary: Summary) -> None:
        rows = {"count": summary.count, "size": summary.size, "begin": summary.begin, "end": summary.end}
        counts = ((name, _counted(each)) for name, each in summary.fields.items())
        lines = in_columns(chain(((key, _listed(value)) for key, value in rows.items()), counts))
        self.show([json_summary(summary)], lines)

    def groups(self, groups: Iterable[Group], by: Sequence[str], of: str | None) -> None:
        if self.as_json:
            _write(lines_of_groups(groups))
            return
        is_span_known = not _PERIODS.keys().isdisjoint(by) or of is not None  # or there is no room for it

        def cells(group: Group) -> list[str]:
            span = [] if is_span_known else [time_text(group.begin), time_text(group.end)]
            values = [number_text(each) for each in (group.min, group.mean, group.max)] if of else []
            return [*key_texts(group, by), str(group.count), str(group.size), *span, *values]

        header = [*by, "count", "size", *(() if is_span_known else ("begin", "end"))]
        header += ("lowest", "mean", "highest") if of else ()
        _print_tables(header, map(cells, groups))


def print_table(data: Iterable[Datum], fields: Sequence[str], *, datasets: bool = False) -> None:
    """Print data as tables as wide as the terminal, or wider if a column needs it. `datasets`: name theirs."""

    def cells(datum: Datum) -> list[str]:
        values = (shown_value(datum.metadata.get(name)) for name in fields)
        return [time_text(datum.reftime), *_source(datum), *values, _data_shown(datum.data)]

    _print_tables(["reftime", *["dataset"] * datasets, *fields, "data"], map(cells, data))


def _print_tables(header: Sequence[str], rows: Iterable[list[str]]) -> None:
    from ondisk.cli.table import table  # here, since it waits for rich

    write_stdout(table(header, page).encode() for page in batched(rows, lambda _: 1, _PAGE))


def _source(datum: Datum) -> list[str]:
    return [] if datum.dataset is None else [shown_value(datum.dataset)]


def key_texts(group: Group, by: Sequence[str]) -> list[str]:
    keys = group.key if isinstance(group.key, tuple) else (group.key,)
    return [key_text(*each) for each in zip(keys, by, strict=True)]


def key_text(key: Any, by: str) -> str:
    """Return the key of a group as text: a period as `2026-11-20`, a missing value as `missing`."""
    if key is None:
        return "missing"
    if by in _PERIODS and isinstance(key, datetime):
        # Of the two hours of a clock that is put back, only the offset says which one is meant.
        offset = key.isoformat()[19:] if by == "hour" and key.tzinfo is not UTC else ""
        return key.isoformat(" ")[: _PERIODS[by]] + offset
    return shown_value(key)


def number_text(value: Value | None) -> str:
    """Return a value with six digits, enough for a glance; nothing if it is missing."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else shown_value(value)


def in_columns(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    known = [(printable(name), value) for name, value in rows]
    width = max(len(name) for name, _ in known)
    yield from (f"{name:<{width}}  {value}".rstrip() for name, value in known)


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{key}={shown_value(each)}" for key, each in value.items() if each is not None)
    if isinstance(value, list):
        return ", ".join(_listed(each) if isinstance(each, Mapping) else shown_value(each) for each in value)
    return shown_value(value)


def _counted(field: FieldSummary) -> str:
    parts = [f"missing ({field.missing})"] if field.missing else []
    parts += [f"{shown_value(value)} ({count})" for value, count in field.values]
    if (more := field.distinct - len(field.values)) > 0:
        parts.append(f"and {more} more")
    span = f"; min {shown_value(field.min)}, max {shown_value(field.max)}" if field.min != field.max else ""
    return "  ".join(parts) + span


def shown_value(value: Any) -> str:
    """Return the text of one value on one line, in quotes if it contains a blank, a quote or an equals sign."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return ",".join(map(shown_value, value))
    text = str(value)
    plain = text and text.isprintable() and not set(' "=') & set(text)
    return text if plain else printable(json.dumps(text, ensure_ascii=False))


def _data_shown(data: Any) -> str:
    if data is None:
        return ""
    if isinstance(data, bytes):
        head = data[: 4 * _LONGEST]
        if (kind := _kind_of(head)) is not None:
            return f"{kind}, {counted(len(data), 'byte')}"
        text = head.decode(errors="backslashreplace")
    else:
        text = json_values.dump(json_data(_beginning(data, [_LONGEST]))).decode()
    text = printable(text[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _kind_of(head: bytes) -> str | None:
    """Return what data are that begin with these bytes; None for text.

    Text has few control characters. It may be in another encoding than UTF-8, but most of it is still readable then.
    """
    from ondisk.formats.file_kinds import kind_of  # here, because most commands print no data

    text = head.decode(errors="replace")
    is_text = _CONTROLS.isdisjoint(text) and 4 * text.count("\ufffd") <= len(head)
    return kind_of(head) or (None if is_text else "binary")


def _beginning(value: Any, room: list[int]) -> Any:
    """Return the beginning of data, which may be megabytes, enough for a line. `room`: how many values fit."""
    room[0] -= 1
    if isinstance(value, str | bytes):
        return value[: _LONGEST + 1]
    if isinstance(value, Mapping):
        items = takewhile(lambda _: room[0] > 0, value.items())
        return {_beginning(key, room): _beginning(each, room) for key, each in items}
    if isinstance(value, list | tuple):
        return [_beginning(each, room) for each in takewhile(lambda _: room[0] > 0, value)]
    return value


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold. Of a mapping only the values are converted."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return as_json(value.value if isinstance(value, Enum) else value)


def _write(lines: Iterable[bytes]) -> None:
    """Write lines; on a terminal with escapes for characters that JSON does not escape and a terminal may execute."""
    write_stdout(map(_harmless, lines) if sys.stdout.isatty() else lines)


def _harmless(line: bytes) -> bytes:
    text = line.decode().removesuffix("\n")
    if text.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text).encode() + b"\n"
