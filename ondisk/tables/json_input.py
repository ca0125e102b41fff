"""JSON lines whose time has another key than `reftime`, another form, or no offset.

The lines are written again, with `reftime` in UTC in place of that key, and stored as `jsonl`. Declared timestamps are
read as the time is. All other keys stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
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
from ondisk.tables.ambiguous import Answers, decided, fields_of_series
from ondisk.tables.batches import joined, with_refused
from ondisk.tables.times import Times, Zone, of_reftime

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
    pieces = decided(_pieces(stream, config, objects, batch_size), objects, options)
    return joined(starmap(objects.encode, pieces), batch_size)


def _pieces(stream: Readable, config: DatasetConfig, objects: _Objects, batch_size: int) -> Iterator[_Read]:
    number = 1
    for lines in read_lines(stream, min(batch_size, _TOGETHER), config.max_datum_size):
        if number == 1 and (error := foreign(b"\n".join(lines[:2])[:_HEAD])):
            raise error
        yield objects.read(lines, number)
        number += len(lines)


@dataclass(frozen=True, slots=True)
class _Read:
    """The objects in some lines.

    Attributes:
        numbers: those of their lines.
        times: the time of each, or why it has none.
        contents: all other keys.
        refused: number of a line → why it is no object with a time.
        size: of the lines, bytes.
    """

    numbers: list[int]
    times: list[int | str]
    contents: list[dict[str, Any]]
    refused: dict[int, str]
    size: int


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
        self._series = fields_of_series(config)
        self._format = format

    def read(self, lines: list[bytes], number: int) -> _Read:
        """Return the objects in lines, and skip blank lines.

        Args:
            number: of the first line in its file.
        """
        read = _Read([], [], [], {}, sum(map(len, lines)))
        for at, line in enumerate(lines, number):
            if not line.strip():
                continue
            try:
                content = self._format.read_object(line.removeprefix(_BOM))
                read.times.append(self._time(self._key, content.pop(self._key, None), self._times))
            except InvalidInput as error:
                read.refused[at] = error.message
                continue
            read.numbers.append(at)
            read.contents.append(content)
        return read

    def times(self, read: _Read) -> list[int | str]:
        """Return the time of each object, or why it has none."""
        return read.times

    def series(self, read: _Read) -> Iterator[str]:
        """Yield what distinguishes the series of each object."""
        return (repr([content.get(name) for name in self._series]) for content in read.contents)

    def size(self, read: _Read) -> int:
        """Return the bytes of the lines."""
        return read.size

    def encode(self, read: _Read, answers: Answers) -> Batch:
        """Return objects as data; refuse those that are not.

        Args:
            answers: what is decided about their times that occur twice.
        """
        reftimes, metadata, data, kept = [], [], [], []
        refused = dict(read.refused)
        for place, (at, time, whole) in enumerate(zip(read.numbers, read.times, read.contents, strict=True)):
            try:
                reftime = self._known(self._key, of_reftime(answers.get(place, time)))
                declared, content = self._divided(whole)
            except InvalidInput as error:
                refused[at] = error.message
                continue
            reftimes.append(reftime)
            metadata.append(declared)
            data.append(content)
            kept.append(at)
        return with_refused(self._format.encode_columns(reftimes, metadata, data), kept, refused)

    def _divided(self, content: dict[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the metadata and the content of a datum."""
        declared: dict[str, Any] = {}
        for name in self._fields.keys() & content.keys():
            value = content.pop(name)
            if value is not None and self._fields[name] is FieldType.TIMESTAMP:
                declared[name] = from_microseconds(self._timestamp(name, value))
            elif value is not None:
                declared[name] = from_json(value)
        return declared, {key: from_json(value) for key, value in content.items()}

    def _timestamp(self, name: str, value: object) -> int:
        try:
            return self._known(name, self._time(name, value, self._times))
        except InvalidInput as error:
            try:
                return self._known(name, self._time(name, value, self._iso))
            except InvalidInput:
                raise error from None

    @staticmethod
    def _time(key: str, value: object, times: Times) -> int | str:
        """Return the time that a key has, or why it is none."""
        if value is None:
            raise InvalidInput(f"it has no {shown(key)}")
        if type(value) not in (str, int, float):
            raise InvalidInput(f"{shown(key)} must be a time, not {shown(value)}")
        return times[value if isinstance(value, str) else repr(value)]

    @staticmethod
    def _known(key: str, time: int | str) -> int:
        if isinstance(time, str):
            raise InvalidInput(f"{shown(key)}: {time}")
        return time
