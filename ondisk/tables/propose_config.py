"""Propose the configuration of a dataset for a file: format, step, fields, unique and index, from its first rows.

A column that identifies a row becomes a field, and so do texts and booleans that repeat; numbers that were measured
stay in the content. It is a proposal: a file says neither what its user will query by, nor what the next file is like.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, pairwise, tee
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple, Unpack

from ondisk.config import RESERVED_FIELDS, DatasetConfig, toml
from ondisk.dataset.decompress import EXTENSIONS
from ondisk.dataset.input_file import CSV, Begun, Peeked, is_csv, open_source, table_of
from ondisk.datum import INTEGER_MAX, FieldType, from_microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.formats import Batch, find, is_built_in, recognised
from ondisk.formats.base import Readable
from ondisk.formats.jsonl import JsonLines
from ondisk.formats.lines import read_lines
from ondisk.table_options import BLANKS, INFER, POINT, REFTIME, TableArguments, TableOptions
from ondisk.tables import csv_input, json_input
from ondisk.tables.columns import field_name, no_column
from ondisk.tables.csv_reader import CsvRecords, InUtf8
from ondisk.tables.table_input import Rows, decide, decided, numbered
from ondisk.tables.times import Times, Zone
from ondisk.tables.values import SIGNS, Cells, Signs, are_numbers, doubt, number_or_text

SAMPLE = 10_000  # how many rows are looked at
_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_TIME_NAMES = (REFTIME, "time", "timestamp", "datetime", "date_time", "date", "when", "ts", "t")
_IDENTIFIER = re.compile(
    r"(?:^|_)(?:id|uuid|key|code|name|station|site|sensor|device|host|source|area|product|location|place|series|serial"
    r"|channel|variable|parameter|type|kind|symbol|topic)(?:_|$)"
)
_FORMATS = (
    *("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M"),
    *("%m/%d/%Y %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y%m%dT%H%M%S%z"),
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"),
)
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: ?[AaPp][Mm])?")
_CLOCK_NAMES = {"time": re.compile(r"[0-9]{1,6}"), "hour": re.compile(r"[0-9]{1,2}")}
"""Columns in which these numbers are times of day, such as 600 or 6."""

_DIGITS = {14: "%Y%m%d%H%M%S", 12: "%Y%m%d%H%M", 10: "%Y%m%d%H", 8: "%Y%m%d"}
_UNIX = {"unix": range(5 * 10**8, 5 * 10**9), "unix-ms": range(5 * 10**11, 5 * 10**12)}  # the years 1985 to 2128
_DELIMITERS = ",;\t|"
_CHUNK = 1024 * 1024
_BEGIN = 20  # lines in which the names are looked for
_ZONE = "ZONE"  # printed in place of a zone that the file does not contain
_DAY = 24 * 3600 * 1_000_000
_STEPS = (("yearly", 366, 64 * 2**20), ("monthly", 31, 2**30), ("daily", 1, 2**30))
"""Steps, their days, and the most bytes that a segment should have; hourly is for what has more."""

_MOST_REFUSED = 0.1  # how many rows may be unreadable, for each that is not
_SENTINEL = re.compile(r"-99+(?:[.,][09]+)?")
"""A number that loggers write where there is no value, if all others are far above it."""

_MANY = 50  # values of a field, from which on an index of its own may help
_ENOUGH = 10  # rows in which one value may not be a coincidence
_MOST_FIELDS, _MOST_KEYS, _LONGEST = 12, 4, 64
_TYPES = {bool: FieldType.BOOLEAN, int: FieldType.INTEGER, str: FieldType.TEXT}
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class _Column:
    name: str  # in the file
    values: Sequence[Any]  # one for each row; None where it has none
    kind: FieldType | None  # its type as a field; None if it cannot be one

    @property
    def field(self) -> str:
        return field_name(self.name)

    @property
    def distinct(self) -> int:
        return len({*self.values} - {None})


@dataclass(frozen=True, slots=True)
class _Sample:
    format: str  # the one that is proposed
    options: TableOptions  # those that were given, and what the file shows besides the times
    names: Sequence[str]  # of the columns
    # a mapping for each row, without the keys that have no value; None if it cannot be read
    rows: list[dict[str, Any] | None]
    size: int  # bytes of the rows
    is_whole: bool  # the file has no more
    # what an append to a dataset of a configuration, with some options, refuses: place of a row → reason
    refused: Callable[[DatasetConfig, TableOptions], Mapping[int, str]]


class _Proposal(NamedTuple):
    options: TableOptions  # those that were given, and those of the times
    shape: dict[str, Any]  # the configuration, as `DatasetConfig.from_mapping` takes it
    times: list[int]  # of all rows that have one, microseconds since 1970
    columns: list[_Column]  # all but the times
    keys: list[_Column]  # those that identify a row together with its time
    fields: list[_Column]  # those to declare
    each_day: float  # the number of rows a day


def proposed(source: str | os.PathLike[str] | BinaryIO, **table: Unpack[TableArguments]) -> str:
    """Return the text of a `dataset.toml` for a file of CSV, JSON lines or another package's format, with comments.

    Args:
        source: a path, or a stream of bytes, perhaps compressed.
        table: as in `Dataset.append_file`; what is not given is proposed.

    Raises:
        InvalidInput: it has no rows, or no column with times; or an option is not valid.
        NotFound: the file does not exist.

    Cost: reads some megabytes, whatever the size of the file.
    """
    options = TableOptions(**table)
    with open_source(source) as opened:
        begun = Begun.of(opened)
        if kind := table_of(begun.head):
            hint = "Create the dataset with `ondisk init --step monthly --field NAME=TYPE`, then append the file."
            raise InvalidInput(f"it is a table of {kind.title()}, and not CSV or JSON lines", hint=hint)
        format = recognised(begun.path.name, begun.head, "jsonl")
        name = PurePath(str(getattr(opened, "name", "-"))).name
        if format is not None and not is_built_in(format):
            return _proposed(_read_own(begun, options, format), name)
        if format not in (None, "jsonl"):
            hint = f"Run `ondisk init --format {format} --step monthly --field NAME=TYPE`, then append the file."
            raise InvalidInput(f"it is a file of the format {format}, and not CSV or JSON lines", hint=hint)
        return _proposed((_read_json if format else _read_csv)(begun.plain(), options), name)


def _read_csv(stream: Readable, options: TableOptions) -> _Sample:
    peeked = Peeked(stream if options.encoding is None else InUtf8(stream, options.encoding), _CHUNK)
    options = _begin(peeked.head, options)
    found, following, is_whole = _first(csv_input.records_of(peeked, replace(options, encoding=None)))
    first = min([*found.lines[:1], *found.refused], default=0)
    if first in found.refused:
        problem = f"it is not CSV: line {first}: {found.refused[first]}"
        raise InvalidInput(problem, hint="--from reads CSV and JSON lines.")
    if not found.rows:
        raise InvalidInput("the file has no rows to look at")
    header, found = csv_input.header_of(found, options)
    is_ended = len(header) > 1 and header[-1] == ""
    names = header[:-1] if is_ended else header
    if not options.header and found.rows and _is_data(names, found.rows[0]):
        raise InvalidInput(csv_input.IS_DATA, hint=csv_input.NAME_THEM)
    csv_input.check_header(names, options)
    if not options.header and (units := csv_input.line_of_units(found, _has_values)) is not None:
        options = replace(options, header=names, skip_lines=units)
        later = {line: reason for line, reason in found.refused.items() if line > units}
        found = CsvRecords(found.rows[1:], found.lines[1:], later)

    (records,) = tee(chain([found], following), 1)

    def refused(config: DatasetConfig, options: TableOptions) -> dict[int, str]:
        columns = csv_input.Columns(header, config, find(config.format)(config), options)
        return _refused(map(columns.read, copy(records)), options)

    unread, table = dict(found.refused), dict[int, Sequence[str]]()
    for line, row in zip(found.lines, found.rows, strict=True):
        if len(row) != len(header) or (is_ended and row[-1]):
            unread[line] = csv_input.misfit(row, names, is_ended)
        else:
            table[line] = row
    _check_readable(unread, len(table))
    columns = dict(zip(names, zip(*table.values(), strict=True), strict=False))
    # A comma in a time is no decimal comma. Of several columns with names of times, the others may have temperatures.
    named = {name.lower(): name for name in reversed(names)}
    time = options.time or next((named[name] for name in _TIME_NAMES if name in named), None)
    others = {name: texts for name, texts in columns.items() if name != time}
    signs = _signs(others.values(), options)
    cells = Cells(options.null, *signs)
    nulls = {*options.null}.union(*(_nulls(texts, cells) for texts in others.values()))
    readers = {name: Cells(nulls, *(signs if name in others else ())) for name in names}

    def read(row: Sequence[str]) -> dict[str, Any]:
        values = ((name, text, readers[name].value(text)) for name, text in zip(names, row, strict=False))
        return {name: _BOOLEANS.get(text.lower(), value) for name, text, value in values if value is not None}

    rows = [read(table[line]) if line in table else None for line in sorted([*table, *unread])]
    size = sum(sum(map(len, row)) + len(row) for row in table.values())
    decimal = None if options.decimal is None and signs.decimal == POINT else signs.decimal
    options = replace(options, null=sorted(nulls), decimal=decimal, thousands=signs.thousands)
    return _Sample("seg", options, names, rows, size, is_whole, refused)


def _first(records: Iterator[CsvRecords]) -> tuple[CsvRecords, Iterator[CsvRecords], bool]:
    """Return the header and the first rows, the following ones, and whether there are no more."""
    rows, lines, refused = list[Sequence[str]](), list[int](), dict[int, str]()
    for each in records:
        rows += each.rows
        lines += each.lines
        refused |= each.refused
        if len(rows) > SAMPLE + 1:
            last = lines[SAMPLE]
            before = {line: reason for line, reason in refused.items() if line < last}
            following = CsvRecords(rows[SAMPLE + 1 :], lines[SAMPLE + 1 :], {})
            return CsvRecords(rows[: SAMPLE + 1], lines[: SAMPLE + 1], before), chain([following], records), False
    return CsvRecords(rows, lines, refused), records, True


def _is_data(names: Sequence[str], row: Sequence[str]) -> bool:
    return any(map(all, zip(_are_times(names), _are_times(row), strict=False))) or all(_are_numbers(names))


def _has_values(row: Sequence[str]) -> bool:
    return any(_are_times(row)) or any(_are_numbers(row))


def _are_times(row: Sequence[str]) -> list[bool]:
    readers = [Times(format, Zone("UTC")) for format in (None, *_FORMATS)]
    return [any(isinstance(times[text], int) for times in readers) for text in row]


def _are_numbers(row: Sequence[str]) -> list[bool]:
    return [not isinstance(number_or_text(text), str | None) for text in row]


def _check_readable(refused: Mapping[int, str], count: int) -> None:
    if len(refused) > count * _MOST_REFUSED:
        line = min(refused)
        of = f"{len(refused):,} of the first {len(refused) + count:,} rows"
        hint = "Correct the file first: without these rows, the proposal would be wrong."
        raise InvalidInput(f"{of} cannot be read, as line {line}: {refused[line]}", hint=hint)


def _read_json(stream: Readable, options: TableOptions) -> _Sample:
    options.refuse_those_of_csv("JSON lines")
    config = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily"})
    following = read_lines(stream, SAMPLE + 1, config.max_datum_size)
    found = [*filter(bytes.strip, next(following, []))]
    lines, format = found[:SAMPLE], JsonLines(config)
    (pieces,) = tee(chain([lines, found[SAMPLE:]], following), 1)

    def refused(config: DatasetConfig, options: TableOptions) -> dict[int, str]:
        objects = json_input.Objects(config, JsonLines(config), options)
        return _refused((objects.read(each, 1) for each in copy(pieces)), options)

    rows: list[dict[str, Any] | None] = []
    reason = ""
    for line in lines:
        try:
            rows.append({key: value for key, value in format.read_object(line).items() if value is not None})
        except InvalidInput as error:
            rows.append(None)
            reason = reason or f": {error.message}"
    if not any(row is not None for row in rows):
        raise InvalidInput(f"the file has no rows to look at{reason}")
    return _Sample("jsonl", options, _names(rows), rows, sum(map(len, lines)), len(found) <= SAMPLE, refused)


def _refused(tables: Iterator[Rows], options: TableOptions) -> dict[int, str]:
    """Return which of the first rows of a table an append refuses; those that follow them decide about the last."""
    first = next(decided(tables, options))
    return dict(numbered(first.encode(), first, "line").refused)


def _names(rows: Iterable[Mapping[str, Any] | None]) -> list[str]:
    return [*dict.fromkeys(key for row in rows if row is not None for key in row)]


def _read_own(begun: Begun, options: TableOptions, format: str) -> _Sample:
    """Return data of a format of another package: their metadata may be fields."""
    if options.given:
        problem = f"a file of the format {format} is not a table, and has no {', '.join(options.given)}"
        raise InvalidInput(problem, hint="Omit it.")
    own = find(format)
    stream = begun.plain() if own.is_text else begun.stream
    batches = own(DatasetConfig.from_mapping({"format": format, "step": "daily"})).parse(stream, SAMPLE)
    batch = next(batches, Batch())
    refused = dict(batch.refused)
    rows: list[dict[str, Any] | None] = [None] * len(batch)
    for place, reftime, metadata in zip(batch.positions(), batch.reftimes, batch.metadata, strict=True):
        rows[place] = {REFTIME: from_microseconds(reftime).isoformat(), **metadata}
    is_whole = next(batches, None) is None
    size, options = sum(map(len, batch.payloads)), TableOptions(time=REFTIME)
    return _Sample(format, options, _names(rows), rows, size, is_whole, lambda *_: refused)


def _proposed(sample: _Sample, name: str) -> str:
    """Return the text of a `dataset.toml` for the rows of a file with this name.

    What an append to the dataset would refuse is found out with the code of the append. Then it is proposed again
    without these rows.
    """
    if not any(row is not None for row in sample.rows):
        raise InvalidInput("the file has no rows to look at")
    refused: Mapping[int, str] = {}
    for _ in range(2):
        used = {at: row for at, row in enumerate(sample.rows) if row is not None and at not in refused}
        if not used:
            raise InvalidInput(f"no row can be read: {next(iter(refused.values()))}")
        found = _decided(sample, [*used.values()], name)
        config, options = DatasetConfig.from_mapping(found.shape), found.options
        refused = sample.refused(config, replace(options, tz="UTC") if options.tz == _ZONE else options)
        if not refused.keys() & used.keys():
            break
    if len(refused) == len(sample.rows):
        raise InvalidInput(f"no row can be read: {next(iter(refused.values()))}")
    text = "\n".join(_lines(found, sample, refused, name)) + "\n"
    assert DatasetConfig.from_toml(text) == config
    return text


def _decided(sample: _Sample, rows: list[dict[str, Any]], name: str) -> _Proposal:
    names, format = sample.names, sample.format
    options, found = _times(rows, names, sample.options)
    if sample.options.time is None:
        _check_clock(rows, names, name, options, format)
    rows = [row for row, time in zip(rows, found, strict=True) if time is not None]
    times = [time for time in found if time is not None]
    columns = [_column(key, [row.get(key) for row in rows], format) for key in names if key != options.time]
    keys, is_unique = _keys(times, columns, rows)
    repeated = [each for each in columns if each not in keys and _repeats(each, len(rows))]
    fields = [*keys, *repeated][:_MOST_FIELDS]  # those that identify a row first
    step, each_day = _step(times, sample.size)
    shape = {
        "format": format,
        "step": step,
        "unique": [REFTIME, *dict.fromkeys(each.field for each in keys)] if is_unique and step != "hourly" else [],
        "fields": {each.field: str(each.kind) for each in fields},
        "csv": _kept(name, options),
    }
    return _Proposal(options, shape, times, columns, keys, fields, each_day)


def _lines(proposal: _Proposal, sample: _Sample, refused: Mapping[int, str], name: str) -> Iterator[str]:
    options, shape, times, columns, keys, fields, each_day = proposal
    count = len(sample.rows) - len(refused)
    form = "%Y-%m-%dT%H:%M" + "Z" * (options.tz != _ZONE)
    span = " to ".join(from_microseconds(each).strftime(form) for each in (min(times), max(times)))
    whole = "" if sample.is_whole else "the first "
    yield f"# Proposed from {whole}{count:,} rows of {_comment(name)} that can be read, {span}."
    if refused:
        reason = _comment(next(iter(refused.values())))
        yield f"# {len(refused):,} row{'s' * (len(refused) != 1)} cannot be read: {reason}. An append refuses them."
    yield "# Change what you know better."
    yield f"# Then store them: ondisk append DATASET {_comment(_append(name, options, shape['format']))}"
    if options.tz == _ZONE:
        yield "# ZONE is the zone of the file's clock, such as Europe/Rome, UTC or +01:00: its times have no offset."
    yield ""
    stored = "rows become events: compressed, with checksums"
    if shape["format"] != "seg":
        stored = "lines are stored as they are" if find(shape["format"]).is_text else "data are stored as they are"
    yield _commented(f'format = "{shape["format"]}"', stored)
    rate = f"about {each_day:,.0f} rows a day" if each_day >= 1 else "less than one row a day"
    yield _commented(f'step = "{shape["step"]}"', f"a file for each: {rate}, as in the sample")
    if shape["unique"]:
        listed = ", ".join(f'"{each}"' for each in shape["unique"])
        yield _commented(f"unique = [{listed}]", "no two rows of the sample are equal in these")
    elif shape["step"] == "hourly":
        yield "# unique: at this rate its index may be larger than the data. Without it, nothing is a duplicate, and a"
        yield "# file that is appended twice is stored twice."
    else:
        yield "# unique: some rows of the sample are equal in time and in everything that may identify them, so nothing"
        yield "# is a duplicate, and a file that is appended twice is stored twice."
        if options.tz == _ZONE:
            yield "# If that is only the hour when clocks are put back, propose again with a zone: --tz Europe/Rome"
    if many := [each.field for each in keys if each.distinct >= _MANY]:
        listed = ", ".join(f'"{each}"' for each in many)
        yield _commented(f"# index = [{listed}]", "if you query one of many values over a long time")
    if fields:
        yield ""
        yield "[fields]"
        for each in fields:
            yield _commented(f'{each.field} = "{each.kind}"', _values_of(each))
    csv = shape["csv"]
    if csv or options.tz == _ZONE:
        yield ""
        yield _commented("[csv]", "how the files are written; an append can have others")
        for key, value in csv.items():
            line = f"{key} = {toml(value)}"
            is_whole = key == "skip_lines" and "header" in csv
            yield _commented(line, "all lines before the first row") if is_whole else line
        if options.tz == _ZONE:
            yield _commented('# tz = "ZONE"', "with it, no append needs --tz")
    rest = [each.name for each in columns if each not in fields]
    if rest and is_built_in(shape["format"]):
        yield ""
        yield f"# The content of each datum: {_comment(', '.join(rest[:20]))}{', …' if len(rest) > 20 else ''}"


def _comment(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _commented(line: str, comment: str) -> str:
    return f"{line:<35} # {_comment(comment)}"


def _values_of(column: _Column) -> str:
    values = [*dict.fromkeys(value for value in column.values if value is not None)]
    shown_values = ", ".join(str(value)[:20] for value in values[:3])
    label = "" if column.name == column.field else f"{column.name}: "
    return f"{label}{shown_values}{f', … ({len(values):,} values)' if len(values) > 3 else ''}"


def _append(name: str, options: TableOptions, format: str) -> str:
    """Return the arguments of the append of a file: what neither its name nor the dataset's configuration says."""
    words, wanted = [name], CSV if format == "seg" else format
    if (wanted == CSV) != is_csv(PurePath(name)):
        words += ["--format", wanted]
    if options.tz == _ZONE:
        words += ["--tz", _ZONE]
    return shlex.join(words)


def _kept(name: str, options: TableOptions) -> dict[str, Any]:
    """Return the options that an append needs which the name of the file does not say, without an unknown zone."""
    kept = replace(
        options,
        time=None if options.time == REFTIME else options.time,
        tz=None if options.tz == _ZONE else options.tz,
        delimiter=None if options.delimiter == "\t" and ".tsv" in name else options.delimiter,
    )
    return {key: getattr(kept, key) for key in kept.given}


def _begin(head: bytes, options: TableOptions) -> TableOptions:
    """Return the options with what the first lines show: comments, lines before the names, and the delimiter."""
    lines = head.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").splitlines()[:_BEGIN]
    if options.comment is None and lines and lines[0].startswith("#"):
        options = replace(options, comment="#")
    skipped = options.skip_lines or 0
    numbered = [
        (number, line)
        for number, line in enumerate(lines)
        if number >= skipped and line.strip() and not (options.comment and line.lstrip().startswith(options.comment))
    ]
    texts = [line for _, line in numbered] or [""]
    last = texts[-1] if len(texts) < 3 else texts[-2]  # the last one may be cut off, and a title has no delimiter
    counts = {each: last.count(each) for each in _DELIMITERS}
    same = {each: sum(line.count(each) == count for line in texts) for each, count in counts.items() if count}
    delimiter = options.delimiter or max(_DELIMITERS, key=lambda each: (same.get(each, 0), counts[each]))
    if options.delimiter is None and not last.count(delimiter):
        widths = {len(line.split()) for line in texts}
        delimiter = BLANKS if len(texts) > 1 and len(widths) == 1 and widths != {1} else ","
    if options.skip_lines is None and not options.header and delimiter != BLANKS and last.count(delimiter):
        skipped = next(number for number, line in numbered if line.count(delimiter))
        if skipped > numbered[0][0]:
            options = replace(options, skip_lines=skipped)
    return replace(options, delimiter=None if delimiter == "," else delimiter)


def _signs(columns: Iterable[Sequence[str]], options: TableOptions) -> Signs:
    """Return the signs of the numbers of all columns: those that were given, or that explain texts among them."""
    given = Signs(options.decimal or POINT, options.thousands)
    cells, found, plain = Cells(options.null, *given), list[set[Signs]](), list[list[str]]()
    for texts in columns:
        known = [text for text in {*texts} if cells.value(text) is not None]
        if (odd := doubt(Counter(texts), cells)) is not None and odd.signs:
            found.append({*odd.signs})
        elif known and not any(isinstance(cells.value(text), str) for text in known):
            plain.append(known)
    if not found:
        return given
    fitting = [
        signs
        for signs in SIGNS
        if all(signs in each for each in found) and all(are_numbers(texts, signs) for texts in plain)
    ]
    # 1,234 may have a decimal comma or a thousand.
    is_clear = fitting and (
        fitting[0].thousands is not None or {each.decimal for each in fitting} == {fitting[0].decimal}
    )
    return fitting[0] if is_clear else given


def _nulls(texts: Sequence[str], cells: Cells) -> set[str]:
    """Return which texts of a column of numbers mean that there is no value."""
    found = doubt(Counter(texts), cells)
    marks = {*found.marks} if found is not None else set[str]()
    values = {
        text: value for text in {*texts} if text.strip() not in marks and (value := cells.value(text)) is not None
    }
    numbers = {text: value for text, value in values.items() if not isinstance(value, str)}
    others = [value for text, value in numbers.items() if not _SENTINEL.fullmatch(text.strip())]
    if len(numbers) < len(values) or not others:
        return marks
    return marks | {
        text.strip() for text, value in numbers.items() if _SENTINEL.fullmatch(text.strip()) and min(others) > value / 3
    }


def _column(name: str, values: list[Any], format: str) -> _Column:
    kinds = {type(value) for value in values if value is not None}
    field = field_name(name)
    is_name = bool(_WORD.fullmatch(field)) and field not in RESERVED_FIELDS and (format == "seg" or field == name)
    kind = _TYPES.get(kinds.pop()) if len(kinds) == 1 and is_name else None
    if kind is FieldType.INTEGER and max(abs(value) for value in values if value is not None) >= 2**63:
        kind = None
    if kind is FieldType.TEXT and max(len(value) for value in values if value is not None) > _LONGEST:
        kind = None
    if kind is None:  # its values need not be hashable
        values = []
    return _Column(name, values, kind)


def _times(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], options: TableOptions
) -> tuple[TableOptions, list[int | None]]:
    """Return the options with the column of the time and its format, and the time of each row, if it has one."""
    zone = Zone("UTC" if options.tz is None else options.tz)
    if options.time is not None and options.time not in names:
        raise no_column(options.time, names, "Pass the name of the column with the time as --time.")
    wanted = names if options.time is None else [options.time]
    by_name = sorted(wanted, key=lambda name: _TIME_NAMES.index(name.lower()) if name.lower() in _TIME_NAMES else 99)
    for name in by_name:
        values = [row.get(name) for row in rows]
        for format in _formats(values, options, is_named=name.lower() in _TIME_NAMES or options.time is not None):
            texts = ["" if value is None else str(value) for value in values]
            times = Times(format, zone)
            read = [times[text] for text in texts]
            if options.ambiguous == INFER:
                decide(read)
            found = [time if isinstance(time, int) else None for time in read]
            if 2 * sum(time is not None for time in found) <= len(found):
                continue
            tz = _ZONE if options.tz is None and _lacks_offset(texts, found, format) else options.tz
            return replace(options, time=name, time_format=format, tz=tz), found
    hint = "Name the column with --time, and how its times are written with --time-format."
    raise InvalidInput(f"no column of {', '.join(map(shown, wanted[:20]))} has times that are recognised", hint=hint)


def _check_clock(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], name: str, options: TableOptions, format: str
) -> None:
    """Raise if the chosen times are dates, and another column has times of day: each row would be at midnight."""
    date = options.time or ""
    times = Times(options.time_format, Zone("UTC"))
    if any(isinstance(time := times[str(row.get(date, ""))], int) and time % _DAY for row in rows):
        return
    for clock in names:
        texts = {str(row[clock]) for row in rows if row.get(clock) is not None}
        forms = (_CLOCK, _CLOCK_NAMES.get(clock.lower(), _CLOCK))
        if clock == date or not texts or not any(all(map(form.fullmatch, texts)) for form in forms):
            continue
        place, delimiter = names.index(date), options.delimiter or ","
        hint = "Write both into one column first, such as 2026-11-20 06:00."
        is_plain = format == "seg" and PurePath(name).suffix.lower() not in EXTENSIONS
        is_plain &= delimiter != BLANKS
        if is_plain and names[place + 1 : place + 2] == [clock]:
            edit = shlex.quote(f"s/{delimiter}/ /{place + 1}")
            hint = f"Join the columns first: sed {edit} {shlex.quote(name)} > joined.csv."
        problem = f"the dates are in the column {shown(date)}, and the times of day in {shown(clock)}"
        raise InvalidInput(problem, hint=f"{hint} Or pass --time {shlex.quote(date)}: then each row is at midnight.")


def _formats(values: Sequence[Any], options: TableOptions, *, is_named: bool) -> list[str | None]:
    if options.time_format is not None:
        return [options.time_format]
    present = [value for value in values if value is not None]
    texts = [each for each in present if isinstance(each, str)]
    if present and not texts:
        if not is_named:
            return []
        is_number = type(present[0]) in (int, float) and abs(present[0]) < INTEGER_MAX  # not infinite
        seconds = [name for name, span in _UNIX.items() if is_number and int(present[0]) in span]
        texts = [*map(str, present)]
        return [*seconds, *_that_fit([_DIGITS[size] for size in {*map(len, texts)} & {*_DIGITS}], texts)]
    formats = [None, *_that_fit(_FORMATS, texts)]
    days_first = [format for format in formats if format and format.startswith("%d/%m")]
    months_first = [format for format in formats if format and format.startswith("%m/%d")]
    if texts and days_first and months_first:
        hint = f"Say it with --time-format '{days_first[0]}' or --time-format '{months_first[0]}'."
        raise InvalidInput(f"{shown(texts[0])} may have the day or the month first", hint=hint)
    return formats


def _that_fit(formats: Sequence[str], texts: Sequence[str]) -> list[str]:
    readers = {format: Times(format, Zone("UTC")) for format in formats}
    return [format for format, times in readers.items() if not any(isinstance(times[text], str) for text in texts)]


def _lacks_offset(texts: Sequence[str], found: Sequence[int | None], format: str | None) -> bool:
    times = Times(format)
    return any(isinstance(times[text], str) for text, time in zip(texts, found, strict=True) if time is not None)


def _keys(times: list[int], columns: list[_Column], rows: list[dict[str, Any]]) -> tuple[list[_Column], bool]:
    """Return the columns that together with the time identify a row, and whether they do.

    A column with one value in all rows is one of them: the next file may be of another station, and would else seem to
    have duplicates.
    """
    whole = [each for each in columns if each.kind is not None and None not in each.values]
    keys, is_unique = _identifying(times, whole, rows)
    if len(rows) >= _ENOUGH:
        keys += [
            each for each in whole if each.distinct == 1 and each.kind is not FieldType.BOOLEAN and each not in keys
        ]
    return keys[:_MOST_KEYS], is_unique


def _identifying(times: list[int], whole: list[_Column], rows: list[dict[str, Any]]) -> tuple[list[_Column], bool]:
    """Return columns that together with the time differ between any two rows, and whether that is so."""
    named = [each for each in whole if _IDENTIFIER.search(each.field)]
    # A row that is there twice is a duplicate, whatever identifies it.
    different = [
        *{
            repr((time, sorted(row.items()))): at for at, (time, row) in enumerate(zip(times, rows, strict=True))
        }.values()
    ]

    def count(keys: Sequence[_Column]) -> int:
        return len({(times[at], *(key.values[at] for key in keys)) for at in different})

    if count([]) == len(different):
        return named[:_MOST_KEYS], bool(named) or _are_regular(times)
    # Other numbers are measured, and texts that hardly repeat are messages.
    texts = [each for each in whole if each not in named and _repeats(each, len(rows))]
    for some in (named, named + texts):
        keys: list[_Column] = []
        while len(keys) < _MOST_KEYS and (left := [each for each in some if each not in keys]):
            keys.append(max(left, key=lambda each: count([*keys, each])))
            if count(keys) == len(different):
                return keys, True
    return named, False


def _repeats(column: _Column, count: int) -> bool:
    """Return whether a column has few texts or booleans, each in many of `count` rows."""
    return column.kind in (FieldType.TEXT, FieldType.BOOLEAN) and 0 < 10 * column.distinct <= max(count, 20)


def _are_regular(times: list[int]) -> bool:
    """Return whether most times follow each other after the same while, as those of a logger do, and not of events."""
    gaps = Counter(after - before for before, after in pairwise(sorted({*times})))
    return not gaps or 2 * max(gaps.values()) >= gaps.total()


def _step(times: list[int], size: int) -> tuple[str, float]:
    """Return a step, and the number of rows a day, both at the rate of the sample."""
    days = (max(times) - min(times)) / _DAY
    if len({*times}) < _ENOUGH:  # such as one delivery: nobody knows when the next one comes
        days = max(days, 1 / 24)
    step = next((step for step, length, most in _STEPS if size / days * length <= most), "hourly")
    return step, len(times) / (days if len({*times}) >= _ENOUGH else max(days, 1))
