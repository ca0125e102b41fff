"""Tables in the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import ondisk
from ondisk.cli.table import _wrapped


def test_a_table_fits_into_the_terminal(run, weather, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("query", weather, "--table").text.splitlines()
    assert lines[0].split() == ["reftime", "area", "product", "data"]
    assert max(map(len, lines)) <= 60
    assert "2026-11-21T07:00:00Z" in lines[-2] + lines[-1]


def unwrapped(text):
    """Return a table's header, and its rows with the lines of each cell joined."""
    header, _, *lines = text.splitlines()
    begins = [found.start() for found in re.finditer(r"\S+", header)]
    spans = list(zip(begins, [*(begin - 3 for begin in begins[1:]), None], strict=True))
    rows = []
    for line in lines:
        cells = [line[begin:end].rstrip() for begin, end in spans]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = list(map(str.__add__, rows[-1], cells))
    return header.split(), rows


NESTED = {"wind": {"speed": 3.4, "gusts": [5.1, 7.25]}, "note": "two_words", "ok": True, "list": [{"a": 1}, {"b": [2]}]}


@pytest.mark.parametrize("columns", [1, 20, 60, 80, 240])
@pytest.mark.parametrize(
    "metadata",
    [
        {"station": 104, "nr": 7, "qc": "good", "temp": -12.5},
        {f"field{at}": f"value_{at}" + "x" * at for at in range(8)},
    ],
    ids=["4 fields", "8 fields"],
)
def test_a_table_loses_nothing_however_narrow_the_terminal_is(run, monkeypatch, metadata, columns):
    kinds = {int: "integer", str: "text", float: "real"}
    fields = {name: kinds[type(value)] for name, value in metadata.items()}
    ondisk.create("wide", {"format": "jsonl", "step": "daily", "fields": fields}).close()
    line = json.dumps({"reftime": "2026-11-20T06:00:00.000001Z", **metadata, **NESTED}, separators=(",", ":"))
    run("append", "wide", "-", stdin=f"{line}\n{line}\n".encode())
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run("query", "wide", "--table")
    header, rows = unwrapped(done.text)
    assert header == ["reftime", *metadata, "data"]
    shown = json.dumps(NESTED, separators=(",", ":"))[:79] + "…"  # data are cut to 80 characters in every text
    assert rows == [["2026-11-20T06:00:00.000001Z", *map(str, metadata.values()), shown]] * 2
    if columns == 240:
        assert len(done.text.splitlines()) == 4


def test_a_table_keeps_blanks_and_wide_characters_where_it_wraps():
    text = "two words  and 気象台の観測 x"
    assert "".join(_wrapped(text, 8)) == text
    assert all(cell_len(part) <= 8 for part in _wrapped(text, 8))
    assert list(_wrapped("気象", 1)) == ["気", "象"]
    assert list(_wrapped("", 8)) == [""]


def test_tables_of_many_data_come_in_pages(run, vm2):
    lines = b"".join(b"2026112006%02d%02d,5,1,1,,,0\n" % divmod(at, 60) for at in range(1001))
    with ondisk.open(vm2) as dataset:
        Path("many.vm2").write_bytes(lines)
        dataset.append_file("many.vm2")
    assert run("query", vm2, "--table").text.count("reftime") == 2


@pytest.mark.parametrize("name", ["data.\udcff", "metadata.\udcff"])
def test_a_column_that_is_no_unicode_is_an_error(run, weather, name):
    assert run("query", "weather", "--csv", "--columns", name).code == 2
