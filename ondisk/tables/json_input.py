"""JSON lines whose time has another key than `reftime`, another form, or no offset.

The lines are written again, with `reftime` in UTC in place of that key, and stored as `jsonl`. Declared timestamps are
read as the time is. All other keys stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.formats.base import Batch, Readable
from ondisk.formats.file_kinds import foreign
from ondisk.formats.jsonl import JsonLines
from ondisk.formats.lines import read_lines
from ondisk.json_values import from_json
from ondisk.table_options import REFTIME, TableOptions
from ondisk.tables.columns import names_of_series
from ondisk.tables.table_input import Rows, batches_of, encoded
from ondisk.tables.times import of_value, readers, timestamp

_TOGETHER = 10_000  # lines
_BOM = b"\xef\xbb\xbf"  # of a file, or of files that were joined
_HEAD = 4096  # bytes by which a file is recognised


def parse(
    stream: Readable, config: DatasetConfig, format: JsonLines, options: TableOptions, batch_size: int
) -> Iterator[Batch]:
    """Return the objects in the lines of a stream as data, in batches of at most `batch_size` or `BATCH_BYTES`.

    Raises InvalidInput if the stream is compressed, LimitExceeded if a line is longer than `max_datum_size`.
    """
    objects = Objects(config, format, options)
    return batches_of(_rows(stream, config, objects, batch_size), options, "line", batch_size)


def _rows(stream: Readable, config: DatasetConfig, objects: Objects, batch_size: int) -> Iterator[Rows]:
    number = 1
    for lines in read_lines(stream, min(batch_size, _TOGETHER), config.max_datum_size):
        if number == 1 and (error := foreign(b"\n".join(lines[:2])[:_HEAD])):
            raise error
        yield objects.read(lines, number)
        number += len(lines)


class Objects:
    def __init__(self, config: DatasetConfig, format: JsonLines, options: TableOptions) -> None:
        options.refuse_those_of_csv("JSON lines")
        self._key = REFTIME if options.time is None else options.time
        self._times, self._iso = readers(options)
        self._fields = config.fields
        self._series = names_of_series(config)
        self._format = format

    def read(self, lines: list[bytes], number: int) -> Rows:
        """Return the objects in lines, and skip blank lines. `number`: of the first line in its file."""
        numbers, times, contents = list[int](), list[int | str](), list[dict[str, Any]]()
        for at, line in enumerate(lines, number):
            if not line.strip():
                continue
            content: dict[str, Any] = {}
            try:
                content = self._format.read_object(line.removeprefix(_BOM))
                time = _of_key(self._key, self._times[_text(self._key, content.pop(self._key, None))])
            except InvalidInput as error:
                time = error.message
            numbers.append(at)
            times.append(time)
            contents.append(content)

        def series() -> list[list[str]]:
            return [[repr(content.get(name)) for content in contents] for name in self._series]

        size = sum(map(len, lines))
        return Rows(numbers, times, partial(self._encoded, times, contents), series, lambda: size)

    def _encoded(self, times: list[int | str], contents: list[dict[str, Any]]) -> Batch:
        refused, rows = dict[int, str](), list[tuple[dict[str, Any], dict[str, Any]]]()
        for place, whole in enumerate(contents):
            try:
                rows.append(self._divided(whole))
            except InvalidInput as error:
                refused[place] = error.message
                rows.append(({}, {}))
        columns = times, [declared for declared, _ in rows], [content for _, content in rows]
        return encoded(columns, refused, self._format.encode_columns)

    def _divided(self, content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        declared: dict[str, Any] = {}
        for name in self._fields.keys() & content.keys():
            value = content.pop(name)
            if value is not None and self._fields[name] is FieldType.TIMESTAMP:
                time = _of_key(name, timestamp(_text(name, value), self._times, self._iso))
                if isinstance(time, str):
                    raise InvalidInput(time)
                declared[name] = from_microseconds(time)
            elif value is not None:
                declared[name] = from_json(value)
        return declared, {key: from_json(value) for key, value in content.items()}


def _text(key: str, value: object) -> str:
    if value is None:
        raise InvalidInput(f"it has no {shown(key)}")
    if type(value) not in (str, int, float):
        raise InvalidInput(f"{shown(key)} must be a time, not {shown(value)}")
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value)


def _of_key(key: str, time: int | str) -> int | str:
    return of_value(shown(key), time) if isinstance(time, str) else time
