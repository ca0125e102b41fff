"""CSV in: the rows of a file become data of a dataset, in columns, some thousands at a time.

The first row names the columns. One of them is the reftime. Columns with the names of declared fields are metadata; a
name is compared in lower case, with `_` for each run of other characters than letters and digits, so `Station ID` is
the field `station_id`. All others are the content, a mapping by the names in the file. `values` says what a cell means;
a cell without a value is skipped.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import CONTENT
from ondisk.errors import InvalidInput, shown
from ondisk.formats.base import BATCH_BYTES, Batch, Format, JoinsParts, Readable
from ondisk.table_options import BLANKS, COMMA, POINT, REFTIME, TableOptions
from ondisk.tables import csv_reader
from ondisk.tables.ambiguous import Answers, decided, fields_of_series
from ondisk.tables.batches import joined, with_refused
from ondisk.tables.csv_lines import InUtf8, Lines
from ondisk.tables.csv_reader import CsvRecords
from ondisk.tables.times import Times, Zone, of_reftime
from ondisk.tables.values import Cells, ContentColumn, Doubt, Metadata, Refused, number_or_text, signs_of, use_signs

_NOT_WORD = re.compile(r"[^a-z0-9_]+")
_DELETE_FIRST = "after you have deleted the data that were stored without it"
_NAMED = 20  # columns in a message
IS_DATA = "the first line is data, not names"
NAME_THEM = "Pass the names of the columns as header (--header NAME,NAME)."


def parse(
    stream: Readable, config: DatasetConfig, format: Format, options: TableOptions, batch_size: int
) -> Iterator[Batch]:
    """Return the rows of a CSV file as data, in batches of at most `batch_size` data or `BATCH_BYTES`.

    Args:
        format: encodes the data.

    Raises:
        InvalidInput: the file has no header, or one that does not fit; an option is not valid.
        LimitExceeded: as `csv_reader.read`.
    """
    check_takes_rows(format)
    return joined(_parsed(stream, config, format, options, batch_size), batch_size)


def _parsed(
    stream: Readable, config: DatasetConfig, format: Format, options: TableOptions, batch_size: int
) -> Iterator[Batch]:
    pieces = records_of(stream, options, in_columns=True)
    if (begin := next(pieces, None)) is None:
        return
    names, begin = header_of(begin, options)
    columns = Columns(names, config, format, options, begin)
    of_width = partial(_of_width, width=len(names))
    for records, answers in columns.decided(map(of_width, chain([begin], pieces)), options):
        lines = sorted([*records.lines, *records.refused]) if records.refused else records.lines
        count = min(batch_size, columns.together)
        for at in range(0, len(lines), count):
            yield columns.encode(_between(records, lines[at : at + count]), answers)
    yield Batch(notes=[*columns.notes()])


def check_takes_rows(format: Format) -> None:
    """Raise unless data of a format have a content by name, as rows of tables do.

    Raises:
        InvalidInput: its data are bytes.
    """
    if format.raw:
        problem = f"rows of tables cannot be stored as {format.name}, whose data are bytes"
        raise InvalidInput(problem, hint='Use a dataset with format = "seg" or "jsonl".')


def field_name(column: str) -> str:
    """Return the name of the field that a column can be."""
    return _NOT_WORD.sub("_", column.lower()).strip("_")


def records_of(stream: Readable, options: TableOptions, *, in_columns: bool = False) -> Iterator[CsvRecords]:
    """Yield the records of a stream that is read with some options, as `csv_reader.read` does."""
    stream = stream if options.encoding is None else InUtf8(stream, options.encoding)
    delimiter = " " if options.delimiter == BLANKS else options.delimiter or ","
    return csv_reader.read(stream, delimiter, in_columns=in_columns, clean=Lines(options))


def header_of(records: CsvRecords, options: TableOptions) -> tuple[list[str], CsvRecords]:
    """Return the names of the columns, and the records without the one that has them.

    The last name is empty if each line ends with a delimiter.

    Raises:
        InvalidInput: the first line is no record.
    """
    if options.header:
        is_ended = bool(records.rows) and len(records.rows[0]) == len(options.header) + 1 and records.rows[0][-1] == ""
        return [*options.header] + [""] * is_ended, records
    first = min([*records.lines[:1], *records.refused])
    if first in records.refused:
        raise InvalidInput(f"line {first}: {records.refused[first]}")
    names = [name.strip() for name in records.rows[0]]
    return names, CsvRecords(records.rows[1:], records.lines[1:], records.refused)


def _of_width(records: CsvRecords, width: int) -> CsvRecords:
    """Return records by row if they are by column and the names are not as many: then each one is refused."""
    if records.columns is None or len(records.columns) == width:
        return records
    return CsvRecords([*zip(*records.columns, strict=True)], records.lines, records.refused)


def _between(records: CsvRecords, lines: Sequence[int]) -> CsvRecords:
    """Return the records of consecutive lines."""
    if len(lines) == len(records.lines) + len(records.refused):
        return records
    if records.columns is not None:
        begin = lines[0] - records.lines[0]
        return CsvRecords((), lines, {}, [column[begin : begin + len(lines)] for column in records.columns])
    wanted = {*lines}
    kept = [place for place, line in enumerate(records.lines) if line in wanted]
    refused = {line: reason for line, reason in records.refused.items() if line in wanted}
    return CsvRecords([records.rows[place] for place in kept], [records.lines[place] for place in kept], refused)


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
        names = names[:-1] if self._is_ended else names
        if "" in names and options.delimiter == " ":
            hint = "If the columns are aligned with blanks, pass blanks as delimiter (--delimiter blanks)."
            raise InvalidInput(f"column {names.index('') + 1} has no name", hint=hint)
        check_names(names)
        wanted = REFTIME if options.time is None else options.time
        if wanted not in names:
            raise no_column(wanted, names, options, following)
        self._names = names
        self._time = names.index(wanted)
        fields: dict[str, int] = {}
        for place, column in enumerate(names):
            name = column if column in config.fields else field_name(column)
            if place == self._time or name not in config.fields:
                continue
            if name in fields:
                hint = "Rename or remove one of them."
                raise InvalidInput(
                    f"the columns {shown(names[fields[name]])} and {shown(column)} are both {name}", hint=hint
                )
            fields[name] = place
        zone = None if options.tz is None else Zone(options.tz)
        iso = Times(None, zone)
        self._times = iso if options.time_format is None else Times(options.time_format, zone)
        if not options.header and isinstance(self._times[wanted], int):
            raise InvalidInput(f"{IS_DATA}: {shown(wanted)} is a time", hint=NAME_THEM)
        self._fields = [*fields.values()]
        self._series = [fields[name] for name in fields_of_series(config) if name in fields]
        described = [(name, config.fields[name], shown(names[place])) for name, place in fields.items()]
        self._cells = Cells(options.null, options.decimal, options.thousands)
        self._metadata = Metadata(described, self._cells, self._times, iso)
        others = [place for place in range(len(names)) if place != self._time and place not in self._fields]
        self._keys = [names[place].removeprefix(CONTENT) or CONTENT for place in others]
        # Each datum has the names of its keys, which may be far longer than its cells.
        self.together = max(1, BATCH_BYTES // (1 + sum(map(len, self._keys))))
        check_names(self._keys)  # `data.wind` is the key `wind`, as in a table that a query printed
        if REFTIME in self._keys:
            hint = f"Rename it, or remove it; the reftime is {shown(wanted)}."
            raise InvalidInput(f"a column of the content cannot be called {REFTIME}", hint=hint)
        self._units = None if following is None or options.header else line_of_units(following, self._has_time)
        self._joining = joining = format if isinstance(format, JoinsParts) and format.joins_parts else None
        self._content = [
            ContentColumn(place, self._cells, None if joining is None else partial(joining.content_part, key))
            for key, place in zip(self._keys, others, strict=True)
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

    def times(self, records: CsvRecords) -> list[int | str | None]:
        """Return the time of each record, or why it has none; None if it has not all cells."""
        if records.columns is not None:
            return [*map(self._times.__getitem__, records.columns[self._time])]
        width = len(self._names) + self._is_ended
        return [self._times[row[self._time]] if len(row) == width else None for row in records.rows]

    def series(self, records: CsvRecords) -> Iterator[tuple[str, ...]]:
        """Yield the cells of each record that distinguish the series."""
        rows = records.rows if records.columns is None else zip(*records.columns, strict=True)
        return (tuple(row[place] for place in self._series if place < len(row)) for row in rows)

    def size(self, records: CsvRecords) -> int:
        """Return the number of characters of records."""
        return sum(sum(map(len, cells)) for cells in records.columns or records.rows)

    def decided(self, pieces: Iterable[CsvRecords], options: TableOptions) -> Iterator[tuple[CsvRecords, Answers]]:
        """Yield the records of a file, with what `ambiguous.decided` says about their times: line → answer."""
        for records, answers in decided(pieces, self, options):
            yield records, {records.lines[place]: answer for place, answer in answers.items()}

    def encode(self, records: CsvRecords, answers: Answers) -> Batch:
        """Return records as data; refuse those that are not.

        Args:
            answers: as `decided` yields them.
        """
        rows, lines, refused = records.rows, records.lines, dict(records.refused)
        width = len(self._names) + self._is_ended
        cells = records.columns
        if cells is None:
            if {*map(len, rows)} - {width}:
                refused |= {
                    line: misfit(row, self._names, self._is_ended)
                    for row, line in zip(rows, lines, strict=True)
                    if len(row) != width
                }
                rows, lines = _without(rows, lines, refused)
            cells = [*zip(*rows, strict=True)] if rows else [()] * width
        times = [*map(self._times.__getitem__, cells[self._time])]
        if answers:
            times = [answers.get(line, time) for line, time in zip(lines, times, strict=True)]
        metadata = self._metadata_of(cells, len(times))
        wrong: dict[int, str] = {}
        if self._is_ended and any(cells[-1]):
            rows = rows or [*zip(*cells, strict=True)]
            wrong = {
                line: misfit(row, self._names, self._is_ended) for row, line in zip(rows, lines, strict=True) if row[-1]
            }
        elif {*map(type, times)} - {int} or Refused in {*map(type, metadata)}:
            for line, time, found in zip(lines, times, metadata, strict=True):
                if isinstance(time, str):
                    wrong[line] = f"column {shown(self._names[self._time])}: {of_reftime(time)}"
                elif isinstance(found, Refused):
                    wrong[line] = found
        if wrong:
            rows = rows or [*zip(*cells, strict=True)]
            return self.encode(CsvRecords(*_without(rows, lines, wrong), refused | wrong), answers)
        batch = self._encoded(times, metadata, cells) if times else Batch()  # type: ignore[arg-type]
        for each in self._content:
            each.add(cells[each.place])
        return with_refused(batch, lines, refused)

    def _encoded(self, times: list[int], metadata: list[Mapping[str, Any]], cells: Sequence[Sequence[str]]) -> Batch:
        """Return rows that all have a time and metadata."""
        if self._joining is not None:
            columns = [[*map(each.parts.__getitem__, cells[each.place])] for each in self._content]
            with contextlib.suppress(InvalidInput):
                return self._joining.encode_parts(times, metadata, columns)
        return self._format.encode_columns(times, metadata, self._content_of(cells, len(times)))

    def _metadata_of(self, cells: Sequence[Sequence[str]], count: int) -> list[Mapping[str, Any] | Refused]:
        if not self._fields:
            return [self._metadata[()]] * count
        return [*map(self._metadata.__getitem__, zip(*(cells[place] for place in self._fields), strict=True))]

    def _content_of(self, cells: Sequence[Sequence[str]], count: int) -> list[dict[str, Any]]:
        if not self._content:
            return [{} for _ in range(count)]
        keys = self._keys
        values = [[*map(each.values.__getitem__, cells[each.place])] for each in self._content]
        data = [dict(zip(keys, row, strict=True)) for row in zip(*values, strict=True)]
        lacking = {
            place for column in values if None in column for place in compress(range(count), map(_is_none, column))
        }
        for place in lacking:
            data[place] = {key: value for key, value in data[place].items() if value is not None}
        return data


def _option(name: str, texts: Sequence[str]) -> str:
    """Return an option with a list of texts, as a shell takes it."""
    value = ",".join(texts)
    return f"--{name}{'=' if value.startswith('-') else ' '}{shlex.quote(value)}"  # else `--` would be an option


def line_of_units(records: CsvRecords, has_time: Callable[[Sequence[str]], bool]) -> int | None:
    """Return the line of the first row below the names if it may have units: no time, and no number with any signs.

    Args:
        records: the first ones below the names.
        has_time: returns whether a row has a time; the second row must have one.
    """
    rows = records.rows[:2]
    if len(rows) < 2 or any("\n" in text or signs_of([text]) for text in rows[0]):  # only whole lines can be skipped
        return None
    return records.lines[0] if [*map(has_time, rows)] == [False, True] else None


def misfit(row: Sequence[str], names: Sequence[str], is_ended: bool) -> str:
    """Return why a row with another number of cells than columns is refused.

    Args:
        is_ended: each line ends with a delimiter.
    """
    count, wanted = len(row), len(names)
    if count == wanted + 1 and not row[-1]:
        why = "it ends with a delimiter, and the first line does not; add one there"
    elif count > wanted:
        why = f"cell {wanted + 1} is {shown(row[wanted])}"
    else:
        why = f"{shown(names[count])} has no cell" if count < wanted else "no delimiter is at its end"
    return f"{count} cell{'s' * (count != 1)} instead of {wanted + is_ended * (count <= wanted)}: {why}"


def _is_none(value: object) -> bool:
    return value is None


def _without(
    rows: Sequence[Sequence[str]], lines: Sequence[int], refused: Mapping[int, str]
) -> tuple[Sequence[Sequence[str]], Sequence[int]]:
    """Return rows and their lines without those that are refused."""
    kept = [place for place, line in enumerate(lines) if line not in refused]
    return [rows[place] for place in kept], [lines[place] for place in kept]


def check_names(names: list[str]) -> None:
    """Raise unless each column has a name of its own."""
    if "" in names:
        hint = "Name it in the first line; pandas writes no unnamed column with index=False."
        raise InvalidInput(f"column {names.index('') + 1} has no name", hint=hint)
    places: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if name in places:
            problem = f"two columns have the name {shown(name)}: {places[name]} and {place}"
            raise InvalidInput(problem, hint="Rename one of them in the first line.")
        places[name] = place


def no_column(wanted: str, names: list[str], options: TableOptions, following: CsvRecords | None) -> InvalidInput:
    """Return the error for a file without the column of the reftime.

    Args:
        following: the first records after the names, to find the names there.
    """
    listed = ", ".join(map(shown, names[:_NAMED])) + ", …" * (len(names) > _NAMED)
    hint = _hint(wanted, names, options, following)
    return InvalidInput(f"there is no column {shown(wanted)}; the columns are {listed}", hint=hint)


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
