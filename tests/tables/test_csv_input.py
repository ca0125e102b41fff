"""CSV in: which column becomes what, what is refused, and random tables that come back as they were."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ondisk
from ondisk.errors import ConfigError, InvalidInput, LimitExceeded
from ondisk.table_options import TableArguments
from ondisk.tables import csv_input, csv_reader

HEAD = "reftime,station,temp\n"
FIELDS = {"station": "integer"}


@pytest.fixture(params=["seg", "jsonl"])
def dataset(request, create) -> ondisk.Dataset:
    return create(format=request.param, fields=FIELDS, unique=["reftime", "station"])


def append(dataset: ondisk.Dataset, text: str, **options: Any) -> ondisk.AppendResult:
    return dataset.append_file(io.BytesIO(text.encode()), "csv", **options)


def stored(dataset: ondisk.Dataset) -> list[tuple[str, dict[str, Any], Any]]:
    return [(f"{each.reftime:%Y-%m-%dT%H:%M}", dict(each.metadata), each.data) for each in dataset.query()]


def test_fields_are_metadata_by_their_types_and_the_rest_is_the_content(dataset):
    text = "when,Station ID,temp,code,note\n2026-11-20T06:00Z,007,1.50,007,\n2026-11-20T07:00Z,,,,gusty\n"
    with_id = dataset.config.fields
    assert "station_id" not in with_id
    result = append(dataset, text.replace("Station ID", " STATION "), time="when")
    assert (result.imported, result.refused) == (2, 0)
    assert stored(dataset) == [
        ("2026-11-20T06:00", {"station": 7}, {"temp": 1.5, "code": "007"}),
        ("2026-11-20T07:00", {}, {"note": "gusty"}),
    ]
    assert append(dataset, text.replace("Station ID", "station"), time="when").duplicates == 2


def test_numbers_with_a_decimal_comma_are_numbers_if_the_option_says_so(create):
    head, rest = "reftime;level;temp;code\n", "2026-11-20;1,25;-0,5;007\n2026-11-21;2;1,5e-3;1.5\n"
    for format in ("seg", "jsonl"):
        dataset = create(format, format=format, fields={"level": "real"})
        result = append(dataset, head + rest, delimiter=";", decimal=",", tz="UTC")
        assert (result.imported, result.notes) == (2, [])
        assert stored(dataset) == [
            ("2026-11-20T00:00", {"level": 1.25}, {"temp": -0.5, "code": "007"}),
            ("2026-11-21T00:00", {"level": 2.0}, {"temp": 0.0015, "code": "1.5"}),
        ]
        for cell, problem in {"1.25": "is not a number with a decimal comma", "1,2,3": "is not a number",
                              ",": "is not a number"}.items():  # fmt: skip
            text = f"{head}2026-11-22;{cell};1.234,5;12,\n"
            (refusal,) = append(dataset, text, delimiter=";", decimal=",", tz="UTC").refusals
            assert refusal[1] == f"line 2: column 'level': {cell!r} {problem}"


def test_decimal_commas_without_the_option_are_noted_once_for_each_column(create):
    dataset = create(format="seg", fields={"level": "real"})
    rows = ["2026-11-20;1;1,5;1,234;7,x;;a", "2026-11-21;1,5;2;2,345;1,5;13;b", "2026-11-22;2;-0,5;3;1;12,5;1,5"]
    text = "\n".join(["reftime;level;temp;thousands;code;rare;note", *rows])
    for size in (1, 100):
        result = append(dataset, text, delimiter=";", tz="UTC", batch_size=size)
        assert result.refusals == [
            (1, "line 3: column 'level': '1,5' is not a number; if that is a decimal comma, pass decimal (--decimal ,)")
        ]
        noted = [note.split(" is ")[0] for note in result.notes]
        names = ("'1,5' in column 'temp'", "'1,234' in column 'thousands'", "'12,5' in column 'rare'")
        assert noted == [*names] or size == 1
        assert noted.count("'1,5' in column 'temp'") == 1
    (note,) = append(dataset, text.replace("1,5;2;", "1;2;"), delimiter=";", decimal=".", tz="UTC").notes
    assert note.startswith(
        "'1,234' in column 'thousands' is read as a text (2 such cells); if , separates thousands, pass thousands"
    )


def test_points_in_spite_of_a_decimal_comma_are_noted(create):
    dataset = create(format="seg")
    text = "reftime;a;b\n2026-11-20;1,5;2\n2026-11-21;2;2.5\n"
    (note,) = append(dataset, text, delimiter=";", decimal=",", tz="UTC").notes
    assert note.startswith("'2.5' in column 'b' is read as a text (1 such cell); ")


@pytest.mark.parametrize(("cells", "options", "noted"), [
    (["1.5", "NA", "2"], {}, "'NA' 1; if it means that there is no value, pass null (--null NA), after"),
    (["1,5", "NA", "2"], {}, "'1,5' 1; if that is a decimal comma"),
    (["1,5", "NA", "2"], {"decimal": ","}, "'NA' 1; if it means"),
    (["1,5", "NA", "2.5"], {"decimal": ","}, "'2.5' 1, and others in the column are"),
    (["1.5", "NA", "2"], {"null": ["NA"]}, None),
    (["1.5", "NA", "2"], {"decimal": "."}, "'NA' 1; if it means"),
    (["1.5", "n.d.", "2", "3"], {}, "'n.d.' 1; if it means that there is no value"),
    ([*map(str, range(10)), "<0.5"], {}, "'<0.5' 1; if it means that there"),
    (["007", "12", "A5"], {}, None),
    (["998,50", "1.013,25"], {"decimal": ","}, "'1.013,25' 1; if . separates thousands"),
    (["998,50", "1.013,25"], {}, "'998,50' 2; if . separates thousands, pass decimal"),
    (["998.50", "1 013.25"], {}, "'1 013.25' 1; if a blank separates thousands"),
    (["998", "1'013"], {}, "\"1'013\" 1; if ' separates thousands, pass thousands"),
    (["998", "1,013"], {}, "'1,013' 1; if that is a decimal comma, pass decimal (--d"),
    (["998", "1,013"], {"decimal": "."}, "'1,013' 1; if , separates thousands, pass"),
    (["998,50", "1.013,25"], {"decimal": ",", "thousands": "."}, None),
    (["0", "0", "fehlt", "0"], {}, "'fehlt' 1; "),
    (["7", "-", "7", " n.d.", "7", "n.d.", "8", "9", "9"], {}, "'-' 3; if it means that there is no value, "),
    (["7", "k.A.", "n.d. ", "8", "n.d.", "9", "9"], {}, "'k.A.' 3; if it means that there is no value, pass null (--n"),
    (["1", "--", "2"], {}, "'--' 1; if it means that there is no value, pass null (--null=--), after"),
    (["NA", "-", ""], {}, None),
    (["0", "open", "closed", "0", "0"], {}, None),
    (["1.5", "NA", "low"], {}, None),
])  # fmt: skip
def test_a_text_among_numbers_that_often_means_no_value_is_noted(create, cells, options, noted):
    text = "\n".join(["reftime;x", *(f"2026-11-{20 + n};{cell}" for n, cell in enumerate(cells))])
    notes = append(create(format="seg"), text, delimiter=";", tz="UTC", **options).notes
    short = [re.sub(r" in column 'x' is read as a text \((\d) such cells?\)", r" \1", note) for note in notes]
    assert [note[: len(noted or "")] for note in short] == ([noted] if noted else [])


@pytest.mark.parametrize("format", ["seg", "jsonl"])
@pytest.mark.parametrize("size", [50, 700, 100_000])
def test_texts_among_numbers_are_counted_to_the_end_of_the_file(create, format, size):
    cells = [str(n / 7) if n % 500 else "" for n in range(3000)]
    columns = {
        "early": ["n.d.", *cells[1:2500], *["n.d."] * 7],
        "late": [*cells[:2400], "<0.1", "***", "<0.1"],
        "comma": ["5", *cells[1:2000], "1,5"],
        "text": ["1", *("abc"[n % 3] for n in range(3000))],
        "remark": ["", *["" if n % 100 else "gust" for n in range(2000)]],
    }
    lines = [f"2026-11-20T00:00:00Z;{';'.join(row)}" for row in zip_longest(*columns.values(), fillvalue="")]
    text = "\n".join([f"reftime;{';'.join(columns)}", *lines])
    notes = append(create(format=format, unique=[]), text, delimiter=";", batch_size=size).notes
    assert [note.split("(--null")[0] for note in notes[:2]] == [
        "'n.d.' in column 'early' is read as a text (8 such cells); if it means that there is no value, pass null ",
        "'<0.1' in column 'late' is read as a text (3 such cells); if it means that there is no value, pass null ",
    ]
    assert "(--null '<0.1,***')" in notes[1]
    assert [note.split(" is read")[0] for note in notes[2:]] == ["'1,5' in column 'comma'"]


def test_a_text_that_the_option_cannot_take_is_for_the_configuration(create):
    lines = [f"2026-11-20T00:00:00Z;{'n,d' if n % 9 == 0 else n}" for n in range(100)]
    (note,) = append(create(format="seg", unique=[]), "\n".join(["reftime;x", *lines]), delimiter=";").notes
    assert "pass null below [csv] in dataset.toml" in note


def test_a_column_of_many_texts_stays_one_however_long_the_file_is(create):
    codes = [*map("ST{}".format, range(2000)), "new", *map("ST{}".format, [*range(2000)] * 8)]
    text = "\n".join(["reftime,code", *(f"2026-11-20T00:00:00Z,{code}" for code in codes)])
    result = append(create(format="seg", unique=[]), text, batch_size=2000)
    assert (result.imported, result.notes) == (len(codes), [])


def test_a_line_of_units_is_noted_with_what_skips_it(create):
    dataset = create(format="seg", fields={"station": "integer"})
    rows = "2026-11-20 06:00;5;3.5\n2026-11-20 07:00;5;4\n"
    text = f"when;station;air temp\nUTC;;degC\n{rows}"
    result = append(dataset, text, time="when", delimiter=";", tz="UTC")
    assert (result.imported, result.refused) == (2, 1)
    (note,) = result.notes
    assert note.startswith("line 2 has neither a time nor a number; if it has units, pass header and skip_lines")
    assert note.endswith("(--header 'when,station,air temp' --skip-lines 2)")
    named = {"header": ["when", "station", "air temp"], "skip_lines": 2}
    again = append(dataset, text, time="when", delimiter=";", tz="UTC", **named)
    assert (again.duplicates + again.imported, again.refused, again.notes) == (2, 0, [])
    late = append(dataset, f"when;station;air temp\n{rows}UTC;;degC\n", time="when", delimiter=";", tz="UTC")
    assert (late.refused, late.notes) == (1, [])


@pytest.mark.parametrize(("names", "hint"), [
    ("-t;when;air temp", "(--header='-t,when,air temp' --skip-lines 2)"),
    ("when;temp, air", None),
])  # fmt: skip
def test_the_hint_about_units_is_an_option_that_is_read_as_the_names(create, names, hint):
    rows = [["2026-11-20 06:00" if name == "when" else "1" for name in names.split(";")]] * 2
    units = ["degC" for _ in names.split(";")]
    text = "\n".join([names, *map(";".join, [units, *rows])])
    (note,) = append(create(format="seg"), text, time="when", delimiter=";", tz="UTC").notes
    assert note.endswith(hint or "pass header and skip_lines")


@pytest.mark.parametrize("decimal", [None, ","])
@pytest.mark.parametrize("first", [["?", "3,5"], ["UTC", '"deg\nC"']])
def test_a_row_with_a_decimal_comma_or_with_two_lines_is_no_line_of_units(create, first, decimal):
    text = "\n".join(["when;temp", ";".join(first), "2026-11-20 06:00;3,5"])
    result = append(create(format="seg"), text, time="when", delimiter=";", tz="UTC", decimal=decimal)
    assert (result.imported, result.refused) == (1, 1)
    assert not [note for note in result.notes if "units" in note]


def test_columns_aligned_with_blanks_are_named_if_a_blank_is_passed(create):
    text = "time              station  temp\n2026-12-06T06:00Z 1          1.5\n"
    with pytest.raises(InvalidInput, match="column 2 has no name") as caught:
        append(create(format="seg"), text, time="time", delimiter=" ")
    assert "--delimiter blanks" in caught.value.hint


@pytest.mark.parametrize(("kind", "is_advised"), [("real", True), ("integer", False), ("boolean", False)])
def test_the_advice_about_a_decimal_comma_is_given_where_it_helps(create, kind, is_advised):
    dataset = create(fields={"level": kind}, format="jsonl")
    result = append(dataset, 'reftime,level\n2026-11-20,"1,5"\n', tz="UTC")
    assert ("decimal" in result.refusals[0][1]) is is_advised
    assert result.notes == []


def test_a_field_of_each_type_is_read(create):
    fields = {name: name for name in ("integer", "real", "text", "boolean", "timestamp", "bytes")}
    for format in ("seg", "jsonl"):
        dataset = create(format, format=format, fields=fields)
        head = f"time,{','.join(fields)}\n"
        text = head + "20.11.2026 06:00,-5,.5, x ,True,20.11.2026 07:00,/w==\n"
        result = append(dataset, text, time="time", time_format="%d.%m.%Y %H:%M", tz="+01:00")
        assert (result.imported, result.refusals) == (1, [])
        (found,) = dataset.query()
        assert found.reftime == datetime(2026, 11, 20, 5, tzinfo=UTC)
        times = {"timestamp": datetime(2026, 11, 20, 6, tzinfo=UTC)}
        assert found.metadata == {"integer": -5, "real": 0.5, "text": " x ", "boolean": True, "bytes": b"\xff", **times}
        assert found.data == {}


def test_the_column_reftime_is_the_time_by_default(dataset):
    assert append(dataset, HEAD + "2026-11-20T06:00:00Z,5,1\n").imported == 1


def test_a_text_for_no_value_is_one_everywhere(dataset):
    text = HEAD + "2026-11-20T06:00Z,NA,-999\n2026-11-20T07:00Z,5,NA\n"
    assert append(dataset, text, null=["NA", "-999"]).imported == 2
    assert stored(dataset) == [("2026-11-20T06:00", {}, {}), ("2026-11-20T07:00", {"station": 5}, {})]


BLANKS = [" -999", "-999 ", "-999.0", "-9.99e2", "-999"]


@pytest.mark.parametrize("field", [{}, {"temp": "integer"}, {"temp": "real"}])
def test_a_text_for_no_value_may_have_blanks_and_a_number_another_spelling(create, field):
    dataset = create(format="seg", fields=field)
    cells = [each for each in BLANKS if field != {"temp": "integer"} or "e" not in each]
    rows = [
        f"2026-11-{20 + n},{cell},{mark}"
        for n, (cell, mark) in enumerate(zip(cells, [" NA", "NA ", "NA"] * 2, strict=False))
    ]
    result = append(dataset, "\n".join(["reftime,temp,note", *rows]), tz="UTC", null=["-999", "NA"])
    assert (result.imported, result.notes) == (len(cells), [])
    assert {(str(metadata), str(data)) for _, metadata, data in stored(dataset)} == {("{}", "{}")}


def test_a_text_is_no_number_in_another_spelling(create):
    dataset = create(format="seg", fields={"code": "text"})
    append(dataset, "reftime,code\n2026-11-20,-999.0\n2026-11-21,-999\n", tz="UTC", null=["-999"])
    assert [metadata for _, metadata, _ in stored(dataset)] == [{"code": "-999.0"}, {}]


@pytest.mark.parametrize(
    ("options", "cells", "wanted"),
    [
        ({"decimal": ",", "thousands": "."}, ["998,5", "1.013,25", "-1.234.567", "1.5", "12.34,5"],
         [998.5, 1013.25, -1234567, "1.5", "12.34,5"]),
        ({"thousands": ","}, ["998.5", "1,013.25", "1,013"], [998.5, 1013.25, 1013]),
        ({"thousands": "blank"}, ["1 013.25", "1\u00a0013", "1\u202f013", "10 13"], [1013.25, 1013, 1013, "10 13"]),
        ({"thousands": "'"}, ["1'013", "1\u2019013.5", "0'013"], [1013, 1013.5, "0'013"]),
        ({"thousands": "_", "null": ["-1_000"]}, ["1_013", "-1000", "-1_000.0"], [1013, None, None]),
    ],
)  # fmt: skip
def test_numbers_may_have_a_sign_for_thousands_if_the_option_says_so(create, options, cells, wanted):
    rows = [f"2026-11-{20 + n};{cell}" for n, cell in enumerate(cells)]
    text = "\n".join(["reftime;x", *rows])
    content = create("content", format="seg")
    append(content, text, delimiter=";", tz="UTC", **options)
    assert [data.get("x") for _, _, data in stored(content)] == wanted
    field = create("field", format="seg", fields={"x": "real"})
    result = append(field, text, delimiter=";", tz="UTC", **options)
    assert [metadata.get("x") for _, metadata, _ in stored(field)] == [x for x in wanted if not isinstance(x, str)]
    assert result.refused == sum(isinstance(x, str) for x in wanted)


def test_the_names_of_the_columns_may_be_given(dataset):
    rows = "2026-11-20T06:00Z,5,1\n2026-11-20T07:00Z,5,2\n"
    assert append(dataset, rows, time="when", header=["when", "station", "temp"]).imported == 2
    assert append(dataset, rows.replace("\n", ",\n"), time="when", header=["when", "station", "temp"]).duplicates == 2
    assert stored(dataset)[0] == ("2026-11-20T06:00", {"station": 5}, {"temp": 1})
    for time, format, first in (("2026-11-20T06:00Z", None, "2026-11-20T06:00Z"), ("20261120", "%Y%m%d", "20261120")):
        with pytest.raises(InvalidInput, match="the first line is data, not names") as caught:
            append(dataset, f"{first},5,1\n", time=time, time_format=format, tz="UTC")
        assert "--header" in caught.value.hint


@pytest.mark.parametrize("header", [["reftime", "temp"], ["temp", "x", "y", "reftime"]])
def test_all_rows_with_other_columns_than_the_names_that_were_given_are_refused(dataset, monkeypatch, header):
    monkeypatch.setattr(csv_reader, "_CHUNK", 64)
    result = append(dataset, "2026-11-20T06:00Z,5,1\n" * 20, header=header, batch_size=4)
    assert (result.imported, result.refused) == (0, 20)
    assert {reason.split(": ")[1] for _, reason in result.refusals} == {f"3 cells instead of {len(header)}"}


def test_a_line_may_end_with_a_delimiter_if_the_first_one_does(dataset):
    text = "reftime;station;temp;\n2026-11-20;5;1;\n2026-11-21;5;1;x\n2026-11-22;5;1\n2026-11-23;5;1;\n"
    result = append(dataset, text, delimiter=";", tz="UTC")
    assert (result.imported, [reason for _, reason in result.refusals]) == (
        2,
        ["line 3: 4 cells instead of 3: cell 4 is 'x'", "line 4: 3 cells instead of 4: no delimiter is at its end"],
    )


def test_a_bad_row_is_refused_with_line_column_and_value(dataset):
    text = HEAD + (
        "2026-11-20T06:00Z,5,1\n"
        "yesterday,5,1\n"
        "2026-11-20T07:00Z,x5,1\n"
        "2026-11-20T08:00Z,5\n"
        "2026-11-20T09:00Z,5,1,2\n"
        '2026-11-20T10:00Z,5,"1"2\n'
        "2026-11-20T11:00Z,5,\0\n"
        "\n"
        "2026-11-20T12:00,5,1\n"
        "2026-11-20T13:00Z,5,1\n"
        '2026-11-20T14:00Z,5,"1\n'
    )
    result = append(dataset, text, outcomes=True)
    assert (result.imported, result.refused) == (2, 8)
    assert [position for position, _ in result.refusals] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert [reason.split(": ", 1)[0] for _, reason in result.refusals] == [
        f"line {n}" for n in (3, 4, 5, 6, 7, 8, 10, 12)
    ]
    wanted = ["column 'reftime': 'yesterday': it is not a time", "column 'station': 'x5' is not an integer"]
    wanted += ["2 cells instead of 3: 'temp' has no cell", "4 cells instead of 3: cell 4 is '2'", "has a quote"]
    wanted += ["NUL bytes", "'2026-11-20T12:00': the time has no offset; pass tz", "opens a quote that never closes"]
    for (_, reason), part in zip(result.refusals, wanted, strict=True):
        assert part in reason
    assert result.outcomes is not None
    assert [each.status for each in result.outcomes].count("imported") == 2
    assert result.outcomes[8].status == "imported"


def test_what_the_format_refuses_has_its_line_too(create):
    dataset = create(format="jsonl", max_datum_size=200)
    text = f"reftime,note\n2026-11-20T06:00Z,a\nx,b\n2026-11-20T07:00Z,{'x' * 200}\n2026-11-20T08:00Z,c\n"
    result = append(dataset, text)
    assert (result.imported, [position for position, _ in result.refusals]) == (2, [1, 2])
    assert result.refusals[1][1].startswith("line 4: ")


@pytest.mark.parametrize(
    ("head", "options", "why"),
    [
        ("a,b,a", {"time": "a"}, "two columns have the name 'a': 1 and 3"),
        ("a, b,b ", {"time": "a"}, "two columns have the name 'b': 2 and 3"),
        (",b", {"time": "b"}, "column 1 has no name"),
        ("a,,", {"time": "a"}, "column 2 has no name"),
        ("a,b", {}, "there is no column 'reftime'; the columns are 'a', 'b'"),
        ("a;b", {"time": "a"}, "there is no column 'a'; the columns are 'a;b'"),
        ("a,station,STATION", {"time": "a"}, "the columns 'station' and 'STATION' are both station"),
        ("a,reftime", {"time": "a"}, "a column of the content cannot be called reftime"),
        ('"a', {"time": "a"}, "line 1: '\"a' opens a quote that never closes"),
        ("a\rb\r", {"time": "a"}, "carriage return"),
        ("a,b", {"time": "a", "tz": "Europe/Roma"}, "'Europe/Roma' is not a time zone"),
        ("a,b", {"time": "a", "time_format": "%H:%M"}, "the time format '%H:%M' has no year"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_before_anything_is_stored(dataset, head, options, why):
    with pytest.raises(InvalidInput) as caught:
        append(dataset, f"{head}\n2026-11-20,5,1\n", **options)
    assert why in caught.value.message
    assert dataset.count() == 0


def test_the_hint_for_another_delimiter_names_it(dataset):
    for delimiter, name in {";": "Is the delimiter ;?", "\t": "Is the delimiter a tab?"}.items():
        with pytest.raises(InvalidInput) as caught:
            append(dataset, f"reftime{delimiter}b\n")
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [{"time": ""}, {"time": 5}, {"tz": ""}, {"ambiguous": "first"}, {"time_format": 5}, {"null": "NA"}, {"null": [5]}]
    + [{"delimiter": each} for each in ("", ",,", '"', "\n", "a", ".", "\0")]
    + [{"decimal": each} for each in ("", ";", ",,", "'", 1)]
    + [{"thousands": each} for each in ("", ";", ",,", ".", 1)]
    + [{"header": "a,b"}, {"header": [1]}],
)  # fmt: skip
def test_an_option_that_is_not_valid_is_refused(dataset, options):
    with pytest.raises(InvalidInput) as caught:
        append(dataset, HEAD, **options)
    assert next(iter(options)) in caught.value.message


def test_options_of_the_configuration_hold_where_an_append_has_none(create):
    csv: TableArguments = {"time": "when", "time_format": "%d.%m.%Y", "tz": "UTC", "delimiter": ";", "null": ["NA"]}
    dataset = create(format="jsonl", csv=csv)
    assert append(dataset, "when;x;y\n20.11.2026;1;NA\n").imported == 1
    others: TableArguments = {"time": "day", "time_format": "%d.%m.%Y", "delimiter": ","}
    assert append(dataset, "day,x,y\n21.11.2026,NA,-1\n", **others).imported == 1
    # A form belongs to its column: of another column it is ISO 8601 again.
    assert append(dataset, "reftime;x;y\n2026-11-22;2;-1\n", time="reftime", null=["-1"]).imported == 1
    assert stored(dataset) == [
        ("2026-11-20T00:00", {}, {"x": 1}),
        ("2026-11-21T00:00", {}, {"y": -1}),
        ("2026-11-22T00:00", {}, {"x": 2}),
    ]
    with pytest.raises(InvalidInput, match="decimal and thousands cannot both be '\\.'"):
        append(dataset, "when;x\n", thousands=".")


def test_times_of_json_lines_have_the_options_of_the_configuration_if_that_is_its_format(create):
    line = io.BytesIO(b'{"ts":1795161600,"x":"NA"}\n')
    plain = io.BytesIO(b'{"reftime":"2026-11-20T08:00:00Z"}\n')
    csv: TableArguments = {"time": "ts", "time_format": "unix", "null": ["NA"]}
    lines = create("lines", format="jsonl", csv=csv)
    assert lines.append_file(line, "jsonl").imported == 1
    assert stored(lines) == [("2026-11-20T08:00", {}, {"x": "NA"})]
    assert lines.append_file(plain, "jsonl", time="reftime").imported == 1
    plain.seek(0)
    assert create("table", format="seg", csv=csv).append_file(plain, "jsonl").imported == 1


@pytest.mark.parametrize("format", ["vm2", "blob"])
def test_data_that_are_bytes_have_no_rows(create, format):
    with pytest.raises(InvalidInput, match=f"rows of tables cannot be stored as {format}"):
        append(create(format=format), HEAD)


def test_options_of_tables_are_refused_for_other_formats(dataset):
    with pytest.raises(InvalidInput, match="a file of the format vm2 is not a table, and has no time, tz"):
        dataset.append_file(io.BytesIO(b"202611200600,5,227,1.2,,,\n"), time="a", tz="UTC")
    with pytest.raises(ConfigError):
        dataset.append_file(io.BytesIO(b""), "grib3", time="a")


def test_the_extension_says_that_a_file_is_csv_and_which_delimiter_it_has(dataset, tmp_path):
    (tmp_path / "a.CSV").write_text(HEAD + "2026-11-20,5,1\n")
    (tmp_path / "a.tsv").write_text((HEAD + "2026-11-21,5,1\n").replace(",", "\t"))
    for name in ("a.CSV", "a.tsv"):
        assert dataset.append_file(tmp_path / name, tz="UTC").imported == 1


@pytest.mark.each
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "odd",
    [
        "",
        "\n",
        "x,5,1,2\nx,5\n",
        "x,5\n,5,1,2\n",
        '"2026-11-20T06:00Z",5,"1"\n',
        "2026-11-20T06:00Z,5,1\r2\n",
        "x,y,z\n",
    ],
)
def test_pieces_that_are_read_by_column_mean_the_same_as_those_read_by_row(create, monkeypatch, end, odd):
    """Also where a line with a cell too many is beside one with a cell too few."""
    rows = [f"2026-11-20T{n % 24:02}:{n % 60:02}Z,{n % 7 or ''},{n % 5 or 'x'}\n" for n in range(500)]
    rows[250] += odd
    text = (HEAD + "".join(rows)).replace("\n", end)
    outcomes = []
    for size in (200, 10**6):  # the piece with the header is read by row
        monkeypatch.setattr(csv_reader, "_CHUNK", size)
        dataset = create(f"dataset {size}", format="seg", fields=FIELDS)
        outcomes.append((append(dataset, text, outcomes=True), stored(dataset)))
    (few, one), (many, other) = outcomes
    assert (few.outcomes, few.refusals, one) == (many.outcomes, many.refusals, other)
    assert few.imported >= 500


def test_a_cell_that_is_too_long_is_found_in_columns_too(dataset, monkeypatch):
    monkeypatch.setattr(csv_reader, "_CHUNK", 200)
    text = HEAD + "2026-11-20T06:00:00Z,5,1\n" * 10 + f"2026-11-20T06:00:00Z,5,{'x' * 140_000}\n"
    with pytest.raises(LimitExceeded, match="line 12: a cell is longer than 131072 characters"):
        append(dataset, text)


def test_an_empty_file_stores_nothing(dataset):
    for text in ("", "\n \n", HEAD):
        assert append(dataset, text).count == 0


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_batches_have_the_size_that_was_asked_for(dataset, size, monkeypatch):
    sizes: list[int] = []
    store = ondisk.Dataset._store

    def counted(self, batch, *rest, **options):
        sizes.append(len(batch))
        return store(self, batch, *rest, **options)

    monkeypatch.setattr(ondisk.Dataset, "_store", counted)
    text = HEAD + "".join(f"2026-11-20T06:{minute:02}Z,{minute % 7 or 'x'},1\n" for minute in range(60))
    result = append(dataset, text, batch_size=size)
    assert (result.imported, result.refused, sum(sizes)) == (51, 9, 60)
    assert max(sizes) == min(size, 60)
    assert [position for position, _ in result.refusals] == [*range(0, 60, 7)]


@pytest.mark.check
def test_a_year_of_hours_in_a_zone_lacks_only_what_nobody_can_know(create):
    """Written by a clock on the wall: it has no 02:00 in March, and 02:00 in October twice."""
    from zoneinfo import ZoneInfo

    rome, begin = ZoneInfo("Europe/Rome"), datetime(2025, 12, 31, 23, tzinfo=UTC)
    hours = [begin + timedelta(hours=hour) for hour in range(365 * 24)]
    text = "when,temp\n" + "".join(f"{hour.astimezone(rome):%Y-%m-%d %H:%M},{n}\n" for n, hour in enumerate(hours))
    dataset = create(format="seg", unique=["reftime"])
    result = append(dataset, text, time="when", tz="Europe/Rome")
    assert (result.imported, result.refused, result.duplicates) == (365 * 24 - 2, 2, 0)
    assert all("happens twice in Europe/Rome" in reason for _, reason in result.refusals)
    assert all(each.reftime == hours[each.data["temp"]] for each in dataset.query())


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
TEXTS = TEXTS.filter(str.strip)  # blanks alone are no value
REALS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | REALS | TEXTS.filter(lambda text: not looks_like_a_number(text))
DIALECTS = st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_NONNUMERIC)])


def looks_like_a_number(text: str) -> bool:
    """Return whether Python takes a text for a number; ondisk takes fewer."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[Any]]]:
    """Return names and rows; the first two columns are the time and a field."""
    names = draw(st.lists(NAMES.map(str.strip).filter(bool), max_size=4, unique=True))
    names = [name for name in names if name.lower().strip("_") not in ("reftime", "station")]
    times = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(lambda time: time.replace(fold=0))
    row = st.tuples(times, st.none() | st.integers(-(2**63), 2**63 - 1), *([VALUES] * len(names)))
    return ["reftime", "station", *names], [[*each] for each in draw(st.lists(row, max_size=8))]


@given(tables(), st.sampled_from([",", ";", "\t"]), DIALECTS, st.sampled_from(["seg", "jsonl"]))
def test_a_random_table_comes_back_as_it_was(tmp_path_factory, table, delimiter, dialect, format):
    names, rows = table
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter, lineterminator=dialect[0], quoting=dialect[1])
    writer.writerow(names)
    writer.writerows([time.isoformat(" "), *rest] for time, *rest in rows)
    path = tmp_path_factory.mktemp("table") / "dataset"
    with ondisk.create(path, {"format": format, "step": "yearly", "fields": FIELDS}) as dataset:
        result = append(dataset, sink.getvalue(), delimiter=delimiter, tz="UTC")
        assert (result.imported, result.refusals) == (len(rows), [])
        found = [(each.reftime, dict(each.metadata), each.data) for each in dataset.query()]
    wanted = [
        (
            time.replace(tzinfo=UTC),
            {} if station is None else {"station": station},
            {name: value for name, value in zip(names[2:], rest, strict=True) if value is not None},
        )
        for time, station, *rest in sorted(rows, key=lambda row: row[0])
    ]
    assert repr(found) == repr(wanted)


_HOSTILE = """
import resource, sys
import ondisk
from ondisk.errors import LimitExceeded

class Endless:
    left, begin = 10 * 2**30, sys.argv[2].encode("latin-1")
    def read(self, size):
        content, self.begin = self.begin or sys.argv[3].encode("latin-1") * (size // len(sys.argv[3])), b""
        self.left -= len(content)
        return content if self.left > 0 else b""

with ondisk.open(sys.argv[1]) as dataset:
    dataset.append([])
    list(dataset.query())
    resource.setrlimit(resource.RLIMIT_AS, (700 * 2**20,) * 2)
    try:
        dataset.append_file(Endless(), "csv")
    except LimitExceeded as error:
        assert error.exit_code == 5 and error.context["line"] == 3, error
        print("refused", error.context["result"].imported if "result" in error.context else 0)
"""


def test_rows_whose_names_are_long_are_read_a_few_at_a_time(create, monkeypatch):
    monkeypatch.setattr(csv_input, "BATCH_BYTES", 10_000)
    encoded = []
    read = csv_input.Columns.read

    def spy(self, records):
        encoded.append(len(records.lines))
        return read(self, records)

    monkeypatch.setattr(csv_input.Columns, "read", spy)
    rows = "2026-11-20T00:00:00Z,1\n" * 100
    assert append(create(), f"reftime,{'x' * 1000}\n{rows}").imported == 100
    assert (sum(encoded), max(encoded) < 11) == (100, True)


@pytest.mark.parametrize(("begin", "unit"), [("x", "x"), ('"', "x\n"), ("x", ",")])
def test_a_hostile_file_of_ten_gigabytes_is_refused_with_little_memory(create, begin, unit):
    """In an address space of 700 MiB."""
    dataset = create(fields=FIELDS)
    program = [sys.executable, "-c", _HOSTILE, dataset.path, f"{HEAD}2026-11-20T06:00:00Z,5,1\n{begin}", unit]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert (done.stdout[:7], done.returncode) == ("refused", 0), done.stderr
