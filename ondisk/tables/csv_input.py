"""CSV in: the rows of a file become data of a dataset, in columns, some thousands at a time.

The first row names the columns. `columns.roles_of` says what they become, `values` what a cell means; one without a
value is skipped.
"""

from __future__ import annotations

import contextlib
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.errors import InvalidInput, shown
from ondisk.formats.base import BATCH_BYTES, Batch, Format, JoinsParts, Readable
from ondisk.table_options import BLANKS, COMMA, POINT, REFTIME, TableOptions
from ondisk.tables import csv_reader
from ondisk.tables.columns import check_names, no_column, roles_of
from ondisk.tables.csv_reader import CsvRecords, InUtf8, Lines
from ondisk.tables.table_input import Rows, batches_of, encoded
from ondisk.tables.times import Times, Zone, of_value, readers
from ondisk.tables.values import Cells, ContentColumn, Doubt, Metadata, Refused, number_or_text, signs_of, use_signs

_DELETE_FIRST = "after you have deleted the data that were stored without it"
_NAMED = 20  # columns in a message
IS_DATA = "the first line is data, not names"
NAME_THEM = "Pass the names of the columns as header (--header NAME,NAME)."


def parse(
    stream: Readable, config: DatasetConfig, format: Format, options: TableOptions, batch_size: int
) -> Iterator[Batch]:
    """Yield the rows of a CSV file as data, in batches of at most `batch_size` data or `BATCH_BYTES`.

    Raises InvalidInput if the file has no header, or one that does not fit; and the errors of `csv_reader.read`.
    """
    if format.raw:
        problem = f"rows of tables cannot be stored as {format.name}, whose data are bytes"
        raise InvalidInput(problem, hint='Use a dataset with format = "seg" or "jsonl".')
    pieces = records_of(stream, options, in_columns=True)
    if (begin := next(pieces, None)) is None:
        return
    names, begin = header_of(begin, options)
    columns = Columns(names, config, format, options, begin)
    count = min(batch_size, columns.together)
    some = (part for each in chain([begin], pieces) for part in _cut(each, count))
    yield from batches_of(map(columns.read, some), options, "line", batch_size)
    if notes := [*columns.notes()]:
        yield Batch(notes=notes)


def records_of(stream: Readable, options: TableOptions, *, in_columns: bool = False) -> Iterator[CsvRecords]:
    stream = stream if options.encoding is None else InUtf8(stream, options.encoding)
    delimiter = " " if options.delimiter == BLANKS else options.delimiter or ","
    records = csv_reader.read(stream, delimiter, in_columns=in_columns, clean=Lines(options))
    return records if options.comment is None and options.delimiter != BLANKS else map(_in_one_line, records)


def _in_one_line(records: CsvRecords) -> CsvRecords:
    """Refuse records with cells of several lines: comments and blanks were removed from their lines as from others."""
    several = {line for line, row in zip(records.lines, records.rows, strict=False) if "\n" in "".join(row)}
    if not several:
        return records
    kept = [place for place, line in enumerate(records.lines) if line not in several]
    reason = "a cell has several lines; omit --comment, or --delimiter blanks, to read it"
    refused = records.refused | dict.fromkeys(several, reason)
    return CsvRecords([records.rows[place] for place in kept], [records.lines[place] for place in kept], refused)


def header_of(records: CsvRecords, options: TableOptions) -> tuple[list[str], CsvRecords]:
    """Return the names of the columns, the last one empty if each line ends with a delimiter, and the other records."""
    if options.header:
        is_ended = bool(records.rows) and len(records.rows[0]) == len(options.header) + 1 and records.rows[0][-1] == ""
        return [*options.header] + [""] * is_ended, records
    first = min([*records.lines[:1], *records.refused])
    if first in records.refused:
        raise InvalidInput(f"line {first}: {records.refused[first]}")
    return [name.strip() for name in records.rows[0]], CsvRecords(records.rows[1:], records.lines[1:], records.refused)


def _cut(records: CsvRecords, count: int) -> Iterator[CsvRecords]:
    numbers = sorted([*records.lines, *records.refused]) if records.refused else records.lines
    if len(numbers) <= count:
        yield records
        return
    for at in range(0, len(numbers), count):
        first, last = numbers[at], numbers[min(at + count, len(numbers)) - 1]
        part = slice(bisect_left(records.lines, first), bisect_right(records.lines, last))
        refused = {line: reason for line, reason in records.refused.items() if first <= line <= last}
        columns = None if records.columns is None else [column[part] for column in records.columns]
        yield CsvRecords(records.rows[part], records.lines[part], refused, columns)


class Columns:
    """The columns of a file, and how their cells become data.

    Attributes:
        together: how many rows may be encoded at once.

    Raises:
        InvalidInput: a name is empty or occurs twice; there is no column for the reftime; or an option is not valid.
    """

    def __init__(
        self,
        names: list[str],
        config: DatasetConfig,
        format: Format,
        options: TableOptions,
        following: CsvRecords | None = None,
    ) -> None:
        self._format = format
        self._is_ended = len(names) > 1 and names[-1] == ""  # each line ends with a delimiter
        self._names = names = names[:-1] if self._is_ended else names
        self._blank = [""] * (len(names) + self._is_ended)
        check_header(names, options)
        wanted = REFTIME if options.time is None else options.time
        if wanted not in names:
            raise no_column(wanted, names, _hint(wanted, names, options, following))
        self._time, self._label = names.index(wanted), f"column {shown(wanted)}"
        self._times, iso = readers(options)
        if not options.header and isinstance(self._times[wanted], int):
            raise InvalidInput(f"{IS_DATA}: {shown(wanted)} is a time", hint=NAME_THEM)
        roles = roles_of(names, wanted, config)
        self._fields = [*map(names.index, roles.fields.values())]
        self._series = [*map(names.index, roles.series(config))]
        described = [(name, config.fields[name], shown(column)) for name, column in roles.fields.items()]
        self._cells = Cells(options.null, options.decimal, options.thousands)
        self._metadata = Metadata(described, self._cells, self._times, iso)
        self._keys = [*roles.content]
        # Each datum has the names of its keys, which may be far longer than its cells.
        self.together = max(1, BATCH_BYTES // (1 + sum(map(len, self._keys))))
        self._units = None if following is None or options.header else line_of_units(following, self._has_time)
        self._joining = joining = format if isinstance(format, JoinsParts) and format.joins_parts else None
        self._content = [
            ContentColumn(
                names.index(column), self._cells, None if joining is None else partial(joining.content_part, key)
            )
            for key, column in roles.content.items()
        ]

    def notes(self) -> Iterator[str]:
        """Yield what the rows that were encoded show that is perhaps not what the user wants, once for each column."""
        if self._units is not None:
            note = f"line {self._units} has neither a time nor a number; if it has units, pass header and skip_lines"
            if "," not in "".join(self._names):  # else the option cannot have them
                note += f" ({_option('header', self._names)} --skip-lines {self._units})"
            yield note
        for key, each in zip(self._keys, self._content, strict=True):
            found = each.doubt()
            if found is not None and (advice := self._advice(found)):
                cells = f"{found.cells:,} such cell{'s' * (found.cells != 1)}"
                yield f"{shown(found.text)} in column {shown(key)} is read as a text ({cells}){advice}"

    def _has_time(self, row: Sequence[str]) -> bool:
        return len(row) > self._time and isinstance(self._times[row[self._time]], int)

    def _advice(self, found: Doubt) -> str:
        """Return what to do about a text that was perhaps meant as a number or as no value; "" if nothing."""
        if found.marks:
            # --null takes a list with commas; dataset.toml takes any text.
            texts = [text for text in found.marks[:_NAMED] if "," not in text and text.isprintable()]
            null = f" ({_option('null', texts)})" if texts else " below [csv] in dataset.toml"
            return f"; if it means that there is no value, pass null{null}, {_DELETE_FIRST}"
        if not found.signs:
            return ", and others in the column are numbers"
        signs = [each for each in found.signs if self._cells.decimal != POINT or each.decimal == POINT]
        if not signs:
            return ""  # as the option says
        if self._cells.decimal == COMMA and signs[0].thousands is None and len(signs) == 1:
            return "; with decimal (--decimal) a comma, no number has a point"
        return f"; {use_signs(signs, self._cells)}, {_DELETE_FIRST}"

    def read(self, records: CsvRecords) -> Rows:
        cells, misfits = self._cells_of(records)
        times: list[Any] = [*map(self._times.__getitem__, cells[self._time])]
        if {*map(type, times)} - {int}:
            times = [time if isinstance(time, int) else of_value(self._label, time) for time in times]
        for place, why in misfits.items():
            times[place] = why

        def encode() -> Batch:
            metadata = self._metadata_of(cells, len(times))
            refused = dict[int, str]()
            if Refused in {*map(type, metadata)}:
                refused = {place: found for place, found in enumerate(metadata) if isinstance(found, Refused)}
            return encoded((times, metadata, *cells), refused, self._encoded)

        def size() -> int:
            return sum(sum(map(len, column)) for column in cells)

        series = [cells[place] for place in self._series]
        return Rows(records.lines, times, encode, lambda: series, size, records.refused)

    def _cells_of(self, records: CsvRecords) -> tuple[Sequence[Sequence[str]], dict[int, str]]:
        """Return the cells of each column, and place → reason of records with others; these have blank cells."""
        cells, rows = records.columns, records.rows
        if cells is not None and len(cells) == len(self._blank) and not (self._is_ended and any(cells[-1])):
            return cells, {}
        rows = rows if cells is None else [*zip(*cells, strict=True)]
        misfits = {
            place: misfit(row, self._names, self._is_ended)
            for place, row in enumerate(rows)
            if len(row) != len(self._blank) or (self._is_ended and row[-1])
        }
        rows = [self._blank if place in misfits else row for place, row in enumerate(rows)]
        return [*zip(*rows, strict=True)] if rows else [()] * len(self._blank), misfits

    def _encoded(self, times: list[int], metadata: list[Mapping[str, Any]], *cells: Sequence[str]) -> Batch:
        batch = None
        columns = [[*map(each.__getitem__, cells[each.place])] for each in self._content]
        if self._joining is not None:
            with contextlib.suppress(InvalidInput):
                batch = self._joining.encode_parts(times, metadata, columns)
            if batch is None:  # one of them cannot be stored
                columns = [[*map(self._cells.value, cells[each.place])] for each in self._content]
        if batch is None:
            batch = self._format.encode_columns(times, metadata, self._content_of(columns, len(times)))
        for each in self._content:
            each.add(cells[each.place])
        return batch

    def _metadata_of(self, cells: Sequence[Sequence[str]], count: int) -> list[Mapping[str, Any] | Refused]:
        if not self._fields:
            return [self._metadata[()]] * count
        return [*map(self._metadata.__getitem__, zip(*(cells[place] for place in self._fields), strict=True))]

    def _content_of(self, values: Sequence[Sequence[Any]], count: int) -> list[dict[str, Any]]:
        if not self._content:
            return [{} for _ in range(count)]
        keys = self._keys
        return [
            dict(zip(keys, row, strict=True))
            if None not in row
            else {key: value for key, value in zip(keys, row, strict=True) if value is not None}
            for row in zip(*values, strict=True)
        ]


def _option(name: str, texts: Sequence[str]) -> str:
    value = ",".join(texts)
    return f"--{name}{'=' if value.startswith('-') else ' '}{shlex.quote(value)}"  # else `--` would be an option


def line_of_units(records: CsvRecords, has_time: Callable[[Sequence[str]], bool]) -> int | None:
    """Return the line of the first row below the names if it may have units: it has no time and no number."""
    rows = records.rows[:2]
    if len(rows) < 2 or any("\n" in text or signs_of([text]) for text in rows[0]):  # only whole lines can be skipped
        return None
    return records.lines[0] if [*map(has_time, rows)] == [False, True] else None


def misfit(row: Sequence[str], names: Sequence[str], is_ended: bool) -> str:
    """Return why a row with another number of cells is refused. `is_ended`: each line ends with a delimiter."""
    count, wanted = len(row), len(names)
    if count == wanted + 1 and not row[-1]:
        why = "it ends with a delimiter, and the first line does not; add one there"
    elif count > wanted:
        why = f"cell {wanted + 1} is {shown(row[wanted])}"
    else:
        why = f"{shown(names[count])} has no cell" if count < wanted else "no delimiter is at its end"
    return f"{count} cell{'s' * (count != 1)} instead of {wanted + is_ended * (count <= wanted)}: {why}"


def check_header(names: Sequence[str], options: TableOptions) -> None:
    if "" in names:
        hint = "Name it in the first line; pandas writes no unnamed column with index=False."
        if options.delimiter == " ":
            hint = "If the columns are aligned with blanks, pass blanks as delimiter (--delimiter blanks)."
        raise InvalidInput(f"column {[*names].index('') + 1} has no name", hint=hint)
    check_names(names)


def _hint(wanted: str, names: list[str], options: TableOptions, following: CsvRecords | None) -> str:
    """Return what to do about a file without the column of the reftime, by what is in its first lines."""
    if first_is_data(names):
        return f"{IS_DATA[0].upper()}{IS_DATA[1:]}. {NAME_THEM}"
    sign = " " if options.delimiter == BLANKS else options.delimiter or ","
    lines = {0: names} if following is None else {0: names, **dict(zip(following.lines, following.rows, strict=False))}
    for number, row in [*lines.items()][:_NAMED]:
        line = sign.join(row)
        found = [each for each in (*";\t|,:", None) if wanted in [cell.strip('" ') for cell in line.split(each)]]
        if not found or (sign in found and number == 0):
            continue
        delimiter = sign if sign in found else found[0]
        says = "blanks" if delimiter is None else "a tab" if delimiter == "\t" else delimiter
        is_it = "" if delimiter == sign else f"Is the delimiter {says}? Pass it as delimiter (--delimiter)."
        if number == 0:
            return is_it
        skip = f"The names are in line {number}: pass skip_lines (--skip-lines {number - 1})."
        return f"{skip} {is_it}".strip()
    if len(names) == 1 and (other := next((each for each in ";\t|," if each != sign and each in names[0]), "")):
        return f"Is the delimiter {'a tab' if other == chr(9) else other}? Pass it as delimiter (--delimiter)."
    if names[0].startswith(("#", "%", "//")) and options.comment is None:
        return f"Line 1 is perhaps a comment: pass comment (--comment '{names[0][0]}')."
    if same := [name for name in names if name.lower() == wanted.lower()]:
        return f"Pass {shown(same[0])} as time (--time): case matters."
    if options.time is None:
        return "Pass the name of the column with the time as time (--time)."
    return "Pass one of these names as time (--time), or lines to skip before the names as skip_lines (--skip-lines)."


def first_is_data(names: Sequence[str]) -> bool:
    """Return whether the first line of a file consists of numbers, or has a time in ISO 8601."""
    times = Times(None, Zone("UTC"))
    return any(isinstance(times[name], int) for name in names) or not any(
        isinstance(number_or_text(name), str) for name in names
    )
