"""Data as CSV: a line with the names of the columns, then a line for each datum.

    reftime,station,data.temperature,data.note
    2026-11-20T06:00:00Z,5,3.4,"a ""gusty"" wind, from the north"

As in RFC 4180, a value with a comma, a quote or a newline is quoted, and quotes in it are doubled; but lines end with
LF, and the text is UTF-8. A missing value is nothing, and an empty text is `""`. Times are RFC 3339 in UTC, booleans
`true` and `false`. Content that is bytes is written as text, or, if it is not UTF-8 or has NUL bytes, in the shape of
`ondisk.json_values`; fields of bytes are base64. Mappings and lists are JSON.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain, groupby, islice
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

from ondisk import json_values
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.datum_as_json import as_json, json_data, time_text
from ondisk.datum import Datum, is_unicode
from ondisk.errors import OndiskError
from ondisk.formats.base import Kept
from ondisk.formats.metadata import OncePerMapping
from ondisk.table_options import REFTIME
from ondisk.tables.columns import SAMPLE, Chosen, Complete, chosen, config_of, default_columns, ends, first_of

if TYPE_CHECKING:
    from ondisk.dataset.merged import Merged

_Column: TypeAlias = Callable[[Sequence[Datum]], Sequence[bytes]]
"""Returns the texts of a column, or of several with commas between them."""

_QUOTED = re.compile(rb'[",\r\n]')
_SHAPE = b'{"$bytes"'
_TOGETHER = 200  # data
_MOST = 50_000  # texts of times that are kept


def csv_of(dataset: Dataset | Merged, data: Iterable[Datum], columns: Sequence[str] | None) -> Iterator[bytes]:
    """Yield CSV of data that a dataset, or several, returned: the header first, then some lines at a time.

    `columns`: their names; None for all of the first 16,384 data and of those at both ends of the dataset. Then a later
    datum that has something else raises InvalidInput, after the lines before it. At the end, raises what `data` raises.
    """
    config, several = config_of(dataset), not isinstance(dataset, Dataset)
    errors: list[OndiskError] = []
    rows = _before_error(data, errors)
    complete = None
    if columns is not None:
        wanted = chosen(columns, config, several=several)
    else:
        sample = first_of(rows, SAMPLE)
        rows = chain(sample, rows)
        wanted = default_columns(config, sample, ends(dataset), several=several)
        complete = Complete(wanted, config, typed=False)
    yield b",".join(_quoted(each.name.encode()) for each in wanted) + b"\n"
    texts_of = [*_columns(wanted)]
    while some := [*islice(rows, _TOGETHER)]:
        if complete is not None:
            complete.check(some)
        lines = [*map(b",".join, zip(*[column(some) for column in texts_of], strict=True))]
        if len(wanted) == 1:
            lines = [line or b'""' for line in lines]  # an empty line would be no row
        yield b"\n".join([*lines, b""])
    for error in errors:
        raise error


def _before_error(data: Iterable[Datum], errors: list[OndiskError]) -> Iterator[Datum]:
    """Yield data; an error ends them, and is added to `errors`."""
    try:
        for datum in data:  # noqa: UP028 - `yield from` would close the data with this generator
            yield datum
    except OndiskError as error:
        errors.append(error)


def _columns(columns: Sequence[Chosen]) -> Iterator[_Column]:
    for is_field, some in groupby(columns, lambda each: each.source == "field"):
        if is_field:
            yield _of_fields([each.key for each in some])
        else:
            yield from map(_of_column, some)


def _of_column(column: Chosen) -> _Column:
    if column.source == "data":
        return _contents
    if column.source == "index" and column.key == REFTIME:
        times: Kept[datetime, bytes] = Kept(lambda time: time_text(time).encode(), _MOST)
        return lambda data: [times[datum.reftime] for datum in data]
    return lambda data: [*map(_text, column.values(data))]


def _of_fields(names: Sequence[str]) -> _Column:
    """Return the texts of several fields. All data of a series have one object as their metadata."""
    once = OncePerMapping(lambda metadata: b",".join([_field(metadata.get(name)) for name in names]))
    return lambda data: once.of([datum.metadata for datum in data])


def _contents(data: Sequence[Datum]) -> Sequence[bytes]:
    contents = [datum.data for datum in data]
    if {*map(type, contents)} == {bytes}:
        joined = b"".join(contents)
        if joined.isascii() and b'"' not in joined and b"\0" not in joined:
            return [b'"%b"' % content for content in contents]
    return [*map(_content, contents)]


def _field(value: Any) -> bytes:
    return binascii.b2a_base64(value, newline=False) or b'""' if type(value) is bytes else _text(value)


def _content(data: Any) -> bytes:
    if type(data) is bytes:
        return _bytes(data)
    return b"" if data is None else _quoted(json_values.dump(json_data(data)))


def _text(value: Any) -> bytes:
    kind = type(value)
    if value is None:
        return b""
    if kind is str:
        return (_quoted(value.encode()) or b'""') if is_unicode(value) else _quoted(json_values.dump(as_json(value)))
    if kind is bool:
        return b"true" if value else b"false"
    if kind is float:
        return (repr(value) if isfinite(value) else str(value)).encode()
    if kind is bytes:
        return _bytes(value)
    if isinstance(value, datetime):
        return time_text(value).encode()
    return _quoted(json_values.dump(as_json(value)))


def _bytes(content: bytes) -> bytes:
    if content.isascii() and b'"' not in content and b"\0" not in content:
        return b'"%b"' % content
    try:
        content.decode()
    except UnicodeDecodeError:
        is_text = False
    else:
        is_text = b"\0" not in content and not content.startswith(_SHAPE)
    return _quoted(content if is_text else json_values.dump_bytes(content))


def _quoted(text: bytes) -> bytes:
    return b'"%b"' % text.replace(b'"', b'""') if _QUOTED.search(text) else text
