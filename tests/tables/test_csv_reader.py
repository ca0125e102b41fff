"""The records of CSV: as Python's `csv` reads them, wherever the pieces of the file end; and hostile files."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.tables import csv_reader


def records(content: bytes, delimiter: str = ",") -> tuple[list[tuple[int, list[str]]], dict[int, str]]:
    """Return the records by line, and what was refused."""
    rows: list[tuple[int, list[str]]] = []
    refused: dict[int, str] = {}
    for found in csv_reader.read(io.BytesIO(content), delimiter):
        rows += zip(found.lines, found.rows, strict=True)
        refused |= found.refused
    return rows, refused


@pytest.fixture(params=[64, 1024 * 1024], ids=["small pieces", "large pieces"])
def piece(request, monkeypatch) -> int:
    """Read in pieces of this many bytes."""
    monkeypatch.setattr(csv_reader, "_CHUNK", request.param)
    return request.param


def test_lines_may_end_in_both_ways_and_be_blank(piece):
    content = b"a,b\r\n1,2\n\n3,4\r\n   \n" + b"5,6\r\n" * 100 + b"7,8"
    rows, refused = records(content)
    assert rows[:3] == [(1, ["a", "b"]), (2, ["1", "2"]), (4, ["3", "4"])]
    assert (rows[3], rows[-1], refused) == ((6, ["5", "6"]), (106, ["7", "8"]), {})


def test_a_cell_may_have_lines_quotes_and_delimiters(piece):
    cell = 'one,\ntwo "2"\r\nthree' + "\nmore" * 50
    content = "a,b\n1,2\n" + f'"{cell.replace(chr(34), 2 * chr(34))}",3\n' + "4,5\n"
    rows, refused = records(content.encode())
    assert rows == [(1, ["a", "b"]), (2, ["1", "2"]), (3, [cell, "3"]), (56, ["4", "5"])]
    assert refused == {}


def test_a_byte_order_mark_is_skipped_at_the_beginning_of_a_line_only(piece):
    """Files that were joined have one before each."""
    rows, _ = records("\ufeffa,b\n\ufeffa,b\na,\ufeffb\n".encode())
    assert rows == [(1, ["a", "b"]), (2, ["a", "b"]), (3, ["a", "\ufeffb"])]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'1,"a"b"', "has a quote inside of a cell that begins with one"),
        (b"1,a\rb", "has a carriage return (CR) in the middle"),
        (b"1,a\0", "it contains NUL bytes"),
        (b"1,\xff", "column 2: b'\\xff' is not UTF-8; if the file is Latin-1: iconv -f windows-1252 -t utf-8 FILE"),
    ],
)
def test_a_line_that_is_not_csv_is_refused_and_the_next_ones_are_read(piece, line, why):
    rows, refused = records(b"a,b\n" + line + b"\n3,4\n" + line + b"\n5,6\n")
    assert rows == [(1, ["a", "b"]), (3, ["3", "4"]), (5, ["5", "6"])]
    assert list(refused) == [2, 4]
    assert all(why in reason for reason in refused.values())


def test_a_quote_that_never_closes_is_refused_with_its_line(piece):
    rows, refused = records(b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 100)
    assert rows == [(1, ["a", "b"]), (2, ["1", "2"])]
    assert refused == {3: "'3,\"4' opens a quote that never closes"}


def test_a_file_of_one_byte_at_a_time_is_read_like_any_other():
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(1)

    (found,) = csv_reader.read(Slow(b'a,b\n"1\n",2\n'), ",")
    assert (found.rows, [*found.lines]) == ([["a", "b"], ["1\n", "2"]], [1, 2])


def test_an_empty_file_has_no_records():
    assert [*csv_reader.read(io.BytesIO(b""), ",")] == [*csv_reader.read(io.BytesIO(b"\n\r\n \n"), ",")] == []


@pytest.mark.parametrize(
    ("head", "why"), [("a,b".encode("utf-16"), "it is UTF-16"), (b"BZh91AY", "it is compressed with bzip2")]
)
def test_a_file_that_is_not_utf_8_is_refused(head, why):
    with pytest.raises(InvalidInput, match=why):
        records(head)


class Endless:
    """Ten gigabytes that repeat some bytes."""

    def __init__(self, begin: bytes, unit: bytes) -> None:
        self.begin, self.unit, self.left = begin, unit, 10 * 2**30

    def read(self, size: int, /) -> bytes:
        content, self.begin = self.begin or self.unit * (size // len(self.unit)), b""
        self.left -= len(content)
        return content if self.left > 0 else b""


@pytest.mark.parametrize(
    ("begin", "unit", "why"),
    [
        (b"a,b\n1,", b"x", "line 2: it is longer than"),
        (b"a,b\n1,", b"\0", "line 2: it is longer than"),
        (b"a,b\n", b",", "line 2: it is longer than"),
        (b"", b"\r", "line 1: it is longer than"),
        (b'a,b\n1,2\n1,"', b"x\n", "line 3: a cell is longer than"),
        (b'a,b\n1,2\n1,"', b"xxxxxx" * 100 + b"\n", "line 3: a cell is longer than"),
        (b'a,b\n1,2\n1,"x', b'","\n', "line 3: a quote opens there and does not close within"),
        (b'a,b\n1,2\n1,"', b"x" * 100, "line 3: it is longer than"),
    ],
)
def test_what_has_no_end_is_refused_with_little_memory(begin, unit, why, monkeypatch):
    monkeypatch.setattr(csv_reader, "MAX_RECORD", 512 * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match=why):
            for _ in csv_reader.read(Endless(begin, unit), ","):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30 * (csv_reader.MAX_RECORD + csv_reader._CHUNK)


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), max_size=20)
SPECIAL = st.text(st.sampled_from(list(',;"\n\r\t x5.')), max_size=6)


@given(
    st.lists(st.lists(CELLS | SPECIAL, min_size=2, max_size=4), max_size=20),
    st.sampled_from([",", ";", "\t", "|"]),
    # Before Python 3.13, QUOTE_MINIMAL quotes no CR if lines end with LF.
    st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_ALL)]),
    st.integers(1, 200),
)
def test_what_csv_writes_is_read_as_it_was(rows, delimiter, dialect, size):
    sink = io.StringIO(newline="")
    csv.writer(sink, delimiter=delimiter, lineterminator=dialect[0], quoting=dialect[1]).writerows(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_reader, "_CHUNK", size)
        found, refused = records(sink.getvalue().encode(), delimiter)
    assert ([row for _, row in found], refused) == (rows, {})


@pytest.fixture
def longest_cell() -> Iterator[int]:
    """Allow cells of at most this many characters."""
    before = csv.field_size_limit(8)
    yield 8
    csv.field_size_limit(before)


@pytest.mark.parametrize("place", ["a cell in between", "the last cell of a line", "the last cell of all"])
def test_a_longest_cell_is_read_in_columns_and_one_character_more_is_refused(place, longest_cell, monkeypatch):
    monkeypatch.setattr(csv_reader, "_CHUNK", 64)

    def read_in_columns(size: int) -> list[str]:
        cell = "x" * size
        line = f"1,{cell},3\n" if place == "a cell in between" else f"1,2,{cell}\n"
        content = "a,b,c\n" + "1,2,3\n" * 40 + (line.rstrip("\n") if place.endswith("all") else line + "1,2,3\n" * 40)
        found = csv_reader.read(io.BytesIO(content.encode()), ",", in_columns=True)
        return [*chain.from_iterable(chain.from_iterable(each.columns or ()) for each in found)]

    assert "x" * longest_cell in read_in_columns(longest_cell)
    with pytest.raises(LimitExceeded):
        read_in_columns(longest_cell + 1)
