"""JSON lines whose time has another key than `reftime`, another form, or no offset.

The lines are written again, with `reftime` in UTC in place of that key, and stored as `jsonl`. Declared timestamps are
read as the time is. All other keys stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.formats.base import Batch, Readable
from ondisk.formats.foreign import foreign
from ondisk.formats.jsonl import JsonLines
from ondisk.formats.lines import read_lines
from ondisk.json_shapes import from_json
from ondisk.table_options import REFTIME, TableOptions
from ondisk.tables.batches import joined, with_refused
from ondisk.tables.times import Times, Zone

_TOGETHER = 10_000  # lines
_BOM = b"\xef\xbb\xbf"  # of a file, or of files that were joined
_HEAD = 4096  # bytes by which a file is recognised


def parse(
    stream: Readable, config: DatasetConfig, format: JsonLines, options: TableOptions, batch_size: int
) -> Iterator[Batch]:
    """Return the objects in the lines of a stream as data, in batches of at most `batch_size` or `BATCH_BYTES`.

    Raises:
        InvalidInput: an option is not valid; or the stream is compressed.
        LimitExceeded: a line is longer than `max_datum_size`.
    """
    objects = _Objects(config, format, options)
    return joined(_parsed(stream, config, objects, batch_size), batch_size)


def _parsed(stream: Readable, config: DatasetConfig, objects: _Objects, batch_size: int) -> Iterator[Batch]:
    number = 1
    for lines in read_lines(stream, min(batch_size, _TOGETHER), config.max_datum_size):
        if number == 1 and (error := foreign(b"\n".join(lines[:2])[:_HEAD])):
            raise error
        yield objects.encode(lines, number)
        number += len(lines)


class _Objects:
    """How objects become data.

    Raises:
        InvalidInput: an option is not valid.
    """

    def __init__(self, config: DatasetConfig, format: JsonLines, options: TableOptions) -> None:
        options.refuse_those_of_csv("JSON lines")
        zone = None if options.tz is None else Zone(options.tz)
        self._key = REFTIME if options.time is None else options.time
        self._times = Times(options.time_format, zone)
        self._iso = self._times if options.time_format is None else Times(None, zone)
        self._fields = config.fields
        self._format = format

    def encode(self, lines: list[bytes], number: int) -> Batch:
        """Return the data in lines, and skip blank lines.

        Args:
            number: of the first line in its file.
        """
        reftimes, metadata, data, kept = [], [], [], []
        refused: dict[int, str] = {}
        for at, line in enumerate(lines, number):
            if not line.strip():
                continue
            try:
                reftime, declared, content = self._read(line.removeprefix(_BOM))
            except InvalidInput as error:
                refused[at] = error.message
                continue
            reftimes.append(reftime)
            metadata.append(declared)
            data.append(content)
            kept.append(at)
        return with_refused(self._format.encode_columns(reftimes, metadata, data), kept, refused)

    def _read(self, line: bytes) -> tuple[int, Mapping[str, Any], Mapping[str, Any]]:
        content = self._format.read_object(line)
        reftime = self._moment(self._key, content.pop(self._key, None), self._times)
        declared: dict[str, Any] = {}
        for name in self._fields.keys() & content.keys():
            value = content.pop(name)
            if value is not None and self._fields[name] is FieldType.TIMESTAMP:
                declared[name] = from_microseconds(self._timestamp(name, value))
            elif value is not None:
                declared[name] = from_json(value)
        return reftime, declared, {key: from_json(value) for key, value in content.items()}

    def _timestamp(self, name: str, value: object) -> int:
        try:
            return self._moment(name, value, self._times)
        except InvalidInput as error:
            try:
                return self._moment(name, value, self._iso)
            except InvalidInput:
                raise error from None

    def _moment(self, key: str, value: object, times: Times) -> int:
        """Return the time that a key has."""
        if value is None:
            raise InvalidInput(f"it has no {shown(key)}")
        if type(value) not in (str, int, float):
            raise InvalidInput(f"{shown(key)} must be a time, not {shown(value)}")
        found = times[value if isinstance(value, str) else repr(value)]
        if isinstance(found, str):
            raise InvalidInput(f"{shown(key)}: {found}")
        return found
