"""The records of a CSV file, in bounded memory, whatever the file contains.

A line that is skipped becomes a blank one, so that the numbers of lines in messages are those of the file.

Source: RFC 4180, as Python's `csv` reads it with `strict`. Lines end with LF or CR LF, also mixed; a byte order mark is
skipped, and so are blank lines. A record that is not CSV is refused, and the next line is read. What has
no end within `MAX_RECORD` ends the reading, since nobody knows where the next record begins.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from ondisk.errors import InvalidInput, LimitExceeded, shown
from ondisk.formats.base import Readable
from ondisk.formats.file_kinds import foreign
from ondisk.table_options import BLANKS, MAX_RECORD, TableOptions

_CHUNK = 256 * 1024
_BOM, _MARK = b"\xef\xbb\xbf", "\ufeff"
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONVERT = "iconv -f windows-1252 -t utf-8 FILE"  # it has all of Latin-1 that is text
_SHOWN = 200  # characters of a line
_HEAD = 4096  # bytes by which a file is recognised
_QUOTED_OR_BLANKS = re.compile(rb'("[^"\n]*")|[ \t]+')
_AROUND = re.compile(rb"^[ \t]+|[ \t]+(?=\r?$)", re.MULTILINE)
# Parts of the messages of the module csv, which has one error for all.
_FIELD_LIMIT, _OPEN_QUOTE, _LONE_CR = "field limit", "unexpected end", "new-line"


@dataclass(frozen=True, slots=True)
class CsvRecords:
    rows: Sequence[Sequence[str]]  # the cells of each record; empty if there are `columns`
    lines: Sequence[int]  # the number of its first line, from 1 on
    refused: dict[int, str]  # line → reason
    # the cells of each column, if all records have as many as the first one of the file; else None
    columns: Sequence[Sequence[str]] | None = None


def read(
    stream: Readable, delimiter: str, *, in_columns: bool = False, clean: Callable[[bytes], bytes] = lambda lines: lines
) -> Iterator[CsvRecords]:
    """Yield the records of a stream, some thousands at a time.

    Args:
        clean: returns whole lines as they are to be read: others in the same number.
        in_columns: where it is possible, return their columns, which takes a third of the time.

    Raises:
        InvalidInput: it is not text in UTF-8.
        LimitExceeded: a line or a record is longer than `MAX_RECORD`, or a cell than `csv.field_size_limit`.

    Memory: some times `MAX_RECORD` in the worst case, some megabytes in all others.
    """
    held, line, size, width = "", 1, 0, 0
    is_first, is_odd = True, False
    for chunk, is_last in _whole_lines(stream):
        if is_first:
            chunk, is_first = chunk.removeprefix(_BOM), False
            if error := foreign(chunk[:_HEAD]):
                raise error
        text, has_other_bytes = _decoded(clean(chunk))
        is_odd |= has_other_bytes or "\0" in text
        if _MARK in text:  # files were joined
            text = text.replace(f"\n{_MARK}", "\n").removeprefix(_MARK)
        held += text
        if len(held) < size and not is_last:  # to read a long record again with each piece would take too long
            continue
        if width and not is_odd and (columns := _columns(held, delimiter, width)):
            yield CsvRecords((), range(line, line + len(columns[0])), {}, columns)
            line, held, size = line + len(columns[0]), "", 0
            continue
        found, held, following = _parsed(held, line, delimiter, is_last=is_last)
        if in_columns and found.rows:
            width = width or len(found.rows[0])
        if len(held) > MAX_RECORD:
            raise _too_long(following, f"a quote opens there and does not close within {MAX_RECORD} bytes")
        if is_odd:
            found = _without_odd(found)
        is_odd &= held != ""
        line, size = following, min(2 * len(held), MAX_RECORD + 1)
        if found.rows or found.refused:
            yield found


def _whole_lines(stream: Readable) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces of whole lines, and whether each is the last one; at least one."""
    pieces: list[bytes] = []  # a line whose end was not read yet, and what follows it
    length, line = 0, 1
    while chunk := stream.read(_CHUNK):
        pieces.append(chunk)
        length += len(chunk)
        if length < _CHUNK:  # a pipe may return little at a time
            continue
        joined = b"".join(pieces)
        end = joined.rfind(b"\n") + 1
        if end:
            line += joined.count(b"\n")
            yield joined[:end], False
        elif length > MAX_RECORD:
            raise _too_long(line, f"it is longer than {MAX_RECORD} bytes")
        pieces, length = [joined[end:]], len(joined) - end
    yield b"".join(pieces), True


def _parsed(text: str, line: int, delimiter: str, *, is_last: bool) -> tuple[CsvRecords, str, int]:
    """Return the records in whole lines; the text of a last record that is not complete; and the number of its line."""
    rows, lines, refused = list[list[str]](), list[int](), dict[int, str]()
    reader = csv.reader(StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    begin = 0  # the number of lines before the record that is read
    whole: list[str] = []  # the lines of the text, if a message needs one
    while True:
        try:
            for row in reader:
                rows.append(row)
                lines.append(line + begin)
                begin = reader.line_num
            break
        except csv.Error as error:
            reason = str(error)
        whole = whole or text.split("\n")
        if _FIELD_LIMIT in reason:
            raise _too_long(line + begin, f"a cell is longer than {csv.field_size_limit()} characters")
        if _OPEN_QUOTE in reason:
            if not is_last:
                return _without_blank(rows, lines, refused), "\n".join(whole[begin:]), line + begin
            refused[line + begin] = f"{_excerpt(whole[begin])} opens a quote that never closes"
            break
        refused[line + begin] = _why(reason, _excerpt(whole[reader.line_num - 1]))
        begin = reader.line_num
    return _without_blank(rows, lines, refused), "", line + text.count("\n")


def _columns(text: str, delimiter: str, width: int) -> list[list[str]] | None:
    """Return the columns of lines without quotes that all have this number of cells; None if the lines are others."""
    text = text.replace("\r\n", "\n").removesuffix("\n")
    count = text.count("\n") + 1
    if width < 2 or text.count(delimiter) != (width - 1) * count or '"' in text or "\r" in text:
        return None
    if _has_long_cell(text, delimiter):
        return None
    cells = text.replace("\n", f"{delimiter}\n{delimiter}").split(delimiter)  # each end of a line becomes a cell
    if cells[width :: width + 1].count("\n") != count - 1:
        return None
    return [cells[place :: width + 1] for place in range(width)]


def _has_long_cell(text: str, delimiter: str) -> bool:
    """Return whether lines without quotes have a cell that is longer than the limit.

    Cost: two searches for each piece that is as long as the limit, not one for each cell.
    """
    limit, begin = csv.field_size_limit(), 0
    while len(text) - begin > limit:
        last = max(text.rfind(end, begin, begin + limit + 1) for end in (delimiter, "\n"))
        if last < 0:
            return True
        begin = last + 1
    return False


def _without_blank(rows: Sequence[Sequence[str]], lines: Sequence[int], refused: dict[int, str]) -> CsvRecords:
    if rows and min(map(len, rows)) < 2:
        kept = [place for place, row in enumerate(rows) if len(row) > 1 or (row and row[0].strip())]
        rows, lines = [rows[place] for place in kept], [lines[place] for place in kept]
    return CsvRecords(rows, lines, refused)


def _without_odd(found: CsvRecords) -> CsvRecords:
    """Refuse records with bytes that are not UTF-8, or with NUL bytes."""
    kept: list[int] = []
    refused = dict(found.refused)
    for place, row in enumerate(found.rows):
        joined = "".join(row)
        if "\0" in joined:
            refused[found.lines[place]] = "it contains NUL bytes: the file is damaged, or not text"
        elif _SURROGATE.search(joined):
            number = next(number for number, cell in enumerate(row, 1) if _SURROGATE.search(cell))
            raw = row[number - 1].encode(errors="surrogateescape")
            refused[found.lines[place]] = (
                f"column {number}: {shown(raw)} is not UTF-8; if the file is Latin-1: {_CONVERT}"
            )
        else:
            kept.append(place)
    return CsvRecords([found.rows[place] for place in kept], [found.lines[place] for place in kept], refused)


def _decoded(chunk: bytes) -> tuple[str, bool]:
    try:
        return chunk.decode(), False
    except UnicodeDecodeError:
        return chunk.decode(errors="surrogateescape"), True


def _excerpt(line: str) -> str:
    return shown(line[:_SHOWN].rstrip("\r"))


def _why(reason: str, line: str) -> str:
    if _LONE_CR in reason:
        return f"{line} has a carriage return (CR) in the middle: lines end with LF or CR LF"
    return f"{line} has a quote inside of a cell that begins with one: it must be doubled"


def _too_long(line: int, problem: str) -> LimitExceeded:
    return LimitExceeded(f"line {line}: {problem}", hint="Is it the right file, and is a quote missing?", line=line)


class InUtf8:
    """The text of a stream, encoded in UTF-8. `encoding`: of the stream."""

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream, self._encoding = stream, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def read(self, size: int, /) -> bytes:
        """Return some bytes; none only at the end; raise InvalidInput if the text is not in this encoding."""
        while True:
            content = self._stream.read(size)
            try:
                text = self._decoder.decode(content, final=not content).encode()
            except UnicodeError as error:
                hint = "Pass the encoding of the file (--encoding); without it, it is UTF-8."
                raise InvalidInput(f"it is not {self._encoding}: {error}", hint=hint) from None
            if text or not content:
                return text


class Lines:
    def __init__(self, options: TableOptions) -> None:
        self._left = options.skip_lines or 0
        self._is_aligned = options.delimiter == BLANKS
        comment = None if options.comment is None else re.escape(options.comment.encode())
        self._comment = None if comment is None else re.compile(rb"^[ \t]*%b[^\r\n]*" % comment, re.MULTILINE)

    def __call__(self, lines: bytes) -> bytes:
        if self._left:
            *skipped, lines = lines.split(b"\n", self._left)
            self._left -= len(skipped)
            lines = b"\n" * len(skipped) + (b"" if self._left else lines)
        if self._comment is not None:
            lines = self._comment.sub(b"", lines)
        if self._is_aligned:
            lines = _QUOTED_OR_BLANKS.sub(lambda found: found[1] or b" ", _AROUND.sub(b"", lines))
        return lines
