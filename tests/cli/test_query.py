"""`ondisk query`."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import lose_index

import ondisk
from ondisk import json_values
from ondisk.cli import likely_mistakes
from ondisk.cli.output import _data_shown
from ondisk.cli.streams import printable
from ondisk.dataset.datum_as_json import json_data

from .conftest import LINES

HOSTILE = [
    r'{"reftime":"2026-11-20T06:00:00Z","$bytes":"QUJD"}',
    r'{"reftime":"2026-11-20T06:00:01Z","v":{"$bytes":5},"w":{"$float":"x"}}',
    r'{"reftime":"2026-11-20T06:00:02Z","v":{"$text_bytes":"/w=="},"w":{"$bytes":"AAE="}}',
    r'{"reftime":"2026-11-20T06:00:03Z","v":1e999,"w":{"$float":"NaN"}}',
    '{"reftime":"2026-11-20T06:00:04Z","é":"\\u001b[31m \u009b \u202e"}',
]


def test_text_is_a_line_for_each_datum_in_order(run, weather):
    done = run("query", weather)
    assert (done.code, done.err) == (0, "")
    assert done.text == (
        "2026-11-20T06:00:00Z  area=VM2,5  product=VM2,227  202611200600,5,227,1.2,,,000000000\n"
        "2026-11-20T06:00:00Z  area=VM2,7  product=VM2,227  202611200600,7,227,1.4,,,000000000\n"
        "2026-11-21T07:00:00Z  area=VM2,5  product=VM2,1  202611210700,5,1,85,,,000000000\n"
    )


def test_json_is_the_promised_shape(run, weather):
    (line,) = run("query", weather, "area: VM2,7", "--json").lines
    assert line == {
        "reftime": "2026-11-20T06:00:00Z",
        "metadata": {"area": "VM2,7", "product": "VM2,227"},
        "data": {"$bytes": base64.b64encode(LINES.splitlines()[1]).decode()},
        "location": {"segment": "2026/11-20.vm2", "offset": 35, "size": 34},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("area: VM2,5", "--sort", "-reftime", "--limit", "1"),
        ("--sort=-reftime", "--limit", "1", "area: VM2,5"),
        ("--limit", "1", "area: VM2,5", "--sort=-reftime"),
    ],
)
def test_match_sort_and_limit_may_be_in_any_order(run, weather, arguments):
    (line,) = run("query", weather, "--json", *arguments).lines
    assert line["reftime"] == "2026-11-21T07:00:00Z"


def test_fields_restrict_the_metadata_of_every_form(run, weather):
    assert run("query", weather, "--fields", "area", "--limit", "1").text.split()[1:] == [
        "area=VM2,5",
        "202611200600,5,227,1.2,,,000000000",
    ]
    assert run("query", weather, "--fields", "product,area", "--limit", "1", "--json").json["metadata"] == {
        "product": "VM2,227",
        "area": "VM2,5",
    }
    assert run("query", weather, "--fields", "", "--limit", "1", "--json").json["metadata"] == {}
    assert run("query", weather, "--fields", "area", "--table").text.split()[:3] == ["reftime", "area", "data"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fields", "station"], 4),
        (["--fields", "area", "--data"], 2),
        (["--sort", "station"], 4),
        (["station: 5"], 4),
        (["area"], 4),
        (["area: \udcff"], 4),
        (["--limit", "-1"], 2),
        (["--limit", "x"], 2),
        (["--json", "--table"], 2),
        (["--lim", "1"], 2),
    ],
)
def test_an_invalid_query_is_an_error_with_nothing_on_standard_output(run, weather, arguments, code):
    done = run("query", weather, *arguments)
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith("ondisk: error: ")


def test_a_negative_limit_is_refused(run, weather):
    assert "'-1' is not a whole number of 0 or more\n" in run("query", weather, "--limit", -1).err
    assert run("query", weather, "--limit", "0").out == b""


def test_an_error_has_its_hint_on_the_next_line(run, weather):
    message, hint = run("query", weather, "station: 5").err.splitlines()
    assert "station" in message
    assert hint == "The fields are area, product, reftime." or "area" in hint


def test_nothing_matching_prints_nothing(run, weather):
    for form in ([], ["--json"], ["--data"], ["--table"]):
        done = run("query", weather, "reftime: =1999", *form)
        assert (done.code, done.out) == (0, b"")


def test_data_are_the_bytes_of_the_segment_and_can_be_appended_again(run, weather):
    done = run("query", weather, "--data")
    assert (done.code, done.out) == (0, LINES)
    again = run("append", weather, "-", "--json", stdin=done.out)
    assert (again.code, again.json["duplicates"]) == (0, 3)


def test_deleted_data_are_not_printed(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    assert run("query", weather, "--data").out == LINES.replace(b"202611200600,7,227,1.4,,,000000000\n", b"")


def test_more_data_than_one_write_takes_are_complete(run, vm2):
    lines = b"".join(b"202611200600,%d,1,1,,%s,0\n" % (station, b"x" * 1000) for station in range(3000))
    assert run("append", vm2, "-", stdin=lines).code == 0
    assert run("query", vm2, "--data").out == lines


def test_json_lines_come_back_as_they_came(run, jsonl):
    lines = "\n".join(HOSTILE).encode() + b"\n"
    assert run("append", jsonl, "-", stdin=lines).code == 0
    assert run("query", jsonl, "--data").out == lines


def test_data_of_several_formats_come_in_order_with_the_bytes_and_padding_of_each(run, vm2):
    lines = [
        b"202611200600,5,227,1.2,,,0",
        b'{"reftime":"2026-11-20T06:30:00Z","area":"VM2,5"}',
        b"202611200700,5,1,1,,,0",
    ]
    for line, name in zip(lines, ("vm2", "jsonl", "vm2"), strict=True):
        assert run("append", vm2, "-", "--format", name, stdin=line).code == 0
    assert run("query", vm2, "--data").out == b"\n".join(lines) + b"\n"
    printed = run("query", vm2, "--json").lines
    assert [each["location"]["segment"][-5:] for each in printed] == ["0.vm2", "jsonl", "0.vm2"]
    assert [each["metadata"]["area"] for each in printed] == ["VM2,5"] * 3


@pytest.mark.parametrize("line", HOSTILE)
def test_whatever_data_can_be_stored_can_be_printed(run, jsonl, line):
    assert run("append", jsonl, "-", stdin=line.encode()).code == 0
    with ondisk.open(jsonl, read_only=True) as dataset:
        (datum,) = dataset.query()
    data = run("query", jsonl, "--json").json["data"]
    # Of the data of jsonl only the values have shapes.
    assert repr({key: json_values.from_json(value) for key, value in data.items()}) == repr(datum.data)
    for form in ([], ["--table"]):
        done = run("query", jsonl, *form)
        assert done.code == 0
        assert not {"\x1b", "\x9b", "\u202e"} & set(done.text)


@pytest.mark.parametrize("line", [r'{"reftime":"2026-11-20T06:00:00Z","v":"\ud800"}', r'{"\udfff":1}'])
def test_json_with_a_lone_surrogate_is_refused_since_it_could_not_be_printed(run, jsonl, line):
    done = run("append", jsonl, "-", stdin=line.encode())
    assert done.code == 8
    assert "lone surrogate" in done.err


def test_every_type_of_field_has_its_shape(run, jsonl):
    metadata = {
        "integer": -5,
        "real": {"$float": "-Inf"},
        "text": 'two words "é"',
        "boolean": True,
        "timestamp": "2026-11-20T06:00:00.500000Z",
        "bytes": {"$bytes": "AP8="},
    }
    line = json.dumps({"reftime": "2026-11-20T06:00:00.000001Z", **metadata})
    run("append", jsonl, "-", stdin=line.encode())
    printed = run("query", jsonl, "--json").json
    assert (printed["reftime"], printed["metadata"]) == ("2026-11-20T06:00:00.000001Z", metadata)
    assert run("query", jsonl).text == (
        '2026-11-20T06:00:00.000001Z  integer=-5  real=-inf  text="two words \\"é\\""  boolean=true'
        "  timestamp=2026-11-20T06:00:00.500000Z  bytes=00ff  {}\n"
    )


def test_long_data_are_cut_in_text_and_whole_in_json(run, jsonl):
    run("append", jsonl, "-", stdin=json.dumps({"reftime": "2026-11-20T06:00:00Z", "v": "x" * 500}).encode())
    assert run("query", jsonl).text.endswith("x…\n")
    assert run("query", jsonl, "--json").json["data"] == {"v": "x" * 500}


def test_a_query_after_the_index_was_lost_warns_and_changes_nothing(run, weather):
    lose_index(weather)
    for command in (["query"], ["query", "--data"], ["query", "--table"], ["summary"], ["info"], ["delete", ""]):
        done = run(command[0], weather, *command[1:])
        assert done.code == 9
        warning, remedy = done.err.splitlines()
        assert warning.startswith("ondisk: warning: weather: ")
        assert "incomplete" in warning
        assert remedy == "Run `ondisk fix weather --yes`: it rebuilds the index from the segments."
    assert not (weather / "index.sqlite").exists()
    assert not (weather / "needs-check-do-not-pack").exists()


def test_an_answer_while_the_sentinel_exists_ends_with_9(run, weather):
    (weather / "needs-check-do-not-pack").touch()
    for command in (["query"], ["summary"], ["info"], ["delete", "area: 0", "--yes"]):
        done = run(command[0], weather, *command[1:])
        assert (done.code, "answers may be incomplete" in done.err) == (9, True)
    run("fix", weather, "--yes")
    assert run("query", weather).code == 0


def test_data_of_an_archive_that_is_offline_are_left_out_or_refused_and_are_counted(run, weather):
    total = run("summary", weather, "--json").json["count"]
    run("archive", weather, "2026/11-20.vm2", "--yes")
    run("archive", weather, "--rename", "last", "2025", "--yes")
    run("archive", weather, "--offline", "2025", "--yes")
    done = run("query", weather, "--data")
    assert done.code == 0
    assert done.err.endswith("weather: .archive/2025/ is offline; its data were left out\n")
    assert done.out == b"".join(LINES.splitlines(keepends=True)[2:])
    done = run("query", weather, "--complete")
    assert (done.code, done.out) == (13, b"")
    assert "Mount its disk, then run `ondisk archive" in done.err
    assert run("query", weather, "reftime: =2026-11-21", "--complete").code == 0
    done = run("summary", weather, "--json")
    assert (done.code, done.json["count"], done.err) == (0, total, "")


def test_a_query_of_data_in_an_archive_that_is_away_prints_none(run, weather):
    run("archive", weather, "2026/11-20.vm2", "--yes")
    (weather / ".archive/last").rename("away")
    done = run("query", weather)
    assert (done.code, done.out) == (13, b"")
    assert f"`ondisk fix {weather.absolute()} --forget last --yes` counts its data as lost" in done.err
    assert run("query", weather, "reftime: =2026-11-21").code == 0
    assert run("summary", weather).code == 0


def test_a_lost_segment_is_an_error_after_the_data_that_could_be_read(run, weather):
    lines = run("query", weather, "--json").out.splitlines(keepends=True)
    (weather / "2026/11-21.vm2").unlink()
    done = run("query", weather, "--data")
    assert (done.code, done.out) == (13, b"".join(LINES.splitlines(keepends=True)[:2]))
    done = run("query", weather, "--json")
    assert (done.code, done.out) == (13, b"".join(lines[:2]))


@pytest.mark.check
def test_paths_need_not_be_text(start, folder):
    path = b"weather\xff"
    assert start("init", path, "--format", "vm2", "--step", "daily").code == 0
    assert start("append", path, "-", input=LINES).code == 0
    assert start("query", path, "--data").out == LINES
    absolute = start("info", path, "--json").json["path"]["$text_bytes"]
    assert base64.b64decode(absolute).endswith(b"/weather\xff")


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), any_json) | st.lists(any_json))
def test_the_text_of_a_datum_is_the_beginning_of_its_json(data):
    whole = printable(json_values.dump(json_data(data)).decode()[:81])
    assert _data_shown(data) == (whole if len(whole) <= 80 else whole[:79] + "…")


@pytest.mark.parametrize(
    "data", [{"a": "x" * 50_000_000}, {"a": b"x" * 50_000_000}, [1] * 5_000_000, [[[5] * 99] * 99] * 99]
)
def test_the_text_of_a_large_datum_needs_little_memory(data):
    tracemalloc.start()
    _data_shown(data)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(990), "JPEG, 1000 bytes"),
        (b"\x89PNG\r\n\x1a\n", "PNG, 8 bytes"),
        (b"GRIB\0\0\x20\x02" + bytes(8), "GRIB, 16 bytes"),
        (b"\x01\x02\x03", "binary, 3 bytes"),
        (bytes(range(128, 256)) * 1000, "binary, 128000 bytes"),
        (b"\0", "binary, 1 byte"),
        (b"GRIB,5\tx\n", "GRIB,5\\tx\\n"),
        ("Zürich".encode("latin-1"), "Z\\xfcrich"),
        ("é".encode() * 1000, "é" * 79 + "…"),
        (b"a" + "é".encode() * 1000, "a" + "é" * 78 + "…"),
        (b"", ""),
    ],
    ids=lambda value: repr(value[:9]),
)
def test_content_that_is_not_text_is_printed_as_its_type_and_size(data, shown):
    assert _data_shown(data) == shown


def test_photos_are_printed_as_their_type_and_size_in_lines_and_in_tables(run):
    Path("in").mkdir()
    Path("in/20261101_0600.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)))
    run("init", "photos", "--format", "blob", "--step", "daily")
    run("append", "photos", "in", "--format", "blob", "--time", "name:%Y%m%d_%H%M")
    for form in ([], ["--table"]):
        assert run("query", "photos", *form).text.rstrip().endswith("JPEG, 260 bytes")


def test_metadata_that_are_not_declared_are_selected_and_printed(run, tmp_path):
    config = {"format": "seg", "step": "daily", "fields": {"station": "integer"}}
    with ondisk.create(tmp_path / "events", config) as dataset:
        time = datetime(2026, 11, 20, tzinfo=UTC)
        dataset.append([ondisk.Datum(time, {"station": each, "sensor": each + 5}, b"x") for each in range(3)])
    events = tmp_path / "events"
    line = b"2026-11-20T00:00:00Z  sensor=7  x\n"
    assert run("query", events, "metadata.sensor: 7", "--fields", "metadata.sensor").out == line
    found = run("query", events, "metadata.sensor: 7", "--json", "--fields", "metadata.sensor,station").json
    assert found["metadata"] == {"sensor": 7, "station": 2}
    assert run("summary", events, "metadata.sensor: >5", "--json").json["count"] == 2
    refused = run("query", events, "sensor: 7")
    assert (refused.code, "`metadata.NAME`" in refused.err) == (4, True)
    assert run("delete", events, "metadata.sensor: >5", "--yes").text == "2 data deleted\n"


@pytest.fixture
def two(weather, folder):
    """Create a second dataset beside `weather`, with one datum."""
    with ondisk.create("more/old", ondisk.DatasetConfig.from_toml((weather / "dataset.toml").read_text(), "")) as old:
        old.append(
            [ondisk.Datum(datetime(2026, 11, 20, 6, 30, tzinfo=UTC), {"area": "VM2,5"}, b"202611200630,5,1,7,,,")]
        )
    return weather


def test_several_datasets_are_printed_in_one_order(run, two):
    done = run("query", two, "--also", "more/*", "--json")
    assert (done.code, done.err) == (0, "")
    expected = [("weather", "06:00"), ("weather", "06:00"), ("more/old", "06:30"), ("weather", "07:00")]
    assert [(line["dataset"], line["reftime"][11:16]) for line in done.lines] == [
        (str(two) if name == "weather" else name, time) for name, time in expected
    ]
    assert run("query", two, "reftime: =2026-11-20 06:30", "--also", "more/*").text.split()[1] == "more/old"
    assert run("query", two, "--table", "--also", "more/*").text.split()[:4] == [
        "reftime",
        "dataset",
        "area",
        "product",
    ]
    assert run("query", two, "--data", "--also", "more/*", "--limit", "3").out.endswith(b"202611200630,5,1,7,,,\n")
    assert run("query", two, "area: VM2,9", "--also", "more/*").text == ""
    assert "dataset" not in run("query", "more/old", "--json").json


def test_doubts_about_one_of_several_datasets_are_those_about_one(run, two):
    lose_index(Path("more/old"))
    alone, both = run("query", "more/old"), run("query", two, "--also", "more/old")
    assert alone.code == both.code == 9
    assert alone.err == both.err
    assert run("query", two, "--also", "more/none").code == 11
    assert run("query", two, "nothing: 1", "--also", "more/old").code == 4


def test_a_mistaken_match_of_several_datasets_gets_its_note(run, two):
    assert "case matters" in run("query", two, "area: vm2,5", "--also", "more/old").err


def test_csv_is_printed_with_a_header(run, weather):
    done = run("query", weather, "area: VM2,5", "--csv", "--limit", "1")
    assert (done.code, done.err) == (0, "")
    assert done.text == (
        'reftime,area,product,data\n2026-11-20T06:00:00Z,"VM2,5","VM2,227","202611200600,5,227,1.2,,,000000000"\n'
    )
    done = run("query", weather, "--csv", "--columns", "product, reftime", "--sort=-reftime", "--limit", "1")
    assert done.text == 'product,reftime\n"VM2,1",2026-11-21T07:00:00Z\n'


def test_a_real_rounds_no_integer_and_the_remedy_of_the_error_works(run, jsonl):
    lines = b"".join(
        b'{"reftime":"2026-11-20T06:00:0%dZ","x":%b}\n' % each for each in ((1, b"1.5"), (2, b"9007199254740993"))
    )
    run("append", jsonl, "-", stdin=lines)
    done = run("query", jsonl, "--parquet", "table", "--columns", "reftime,data.x=real")
    assert done.code == 2
    assert "data.x is 9007199254740993, which a double would round" in done.err
    columns = done.err.splitlines()[1].partition("(--columns)")[2].partition(": ")[2]
    assert columns == "reftime,data.x=text"
    assert run("query", jsonl, "--parquet", "table", "--columns", columns).code == 0
    assert pq.read_table("table")["data.x"].to_pylist() == ["1.5", "9007199254740993"]
    assert run("query", jsonl, "--parquet", "table", "--overwrite").code == 0
    assert pq.read_table("table")["data.x"].to_pylist() == ["1.5", "9007199254740993"]


def test_a_column_that_no_datum_has_is_noted_at_the_end(run, jsonl):
    lines = [
        {"reftime": f"2026-11-20T0{n}:00:00Z", "station": n, "temp": 1} | ({"rain": 2} if n == 2 else {})
        for n in range(3)
    ]
    Path("a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run("append", jsonl, "a.jsonl")
    none = run("query", jsonl, "--csv", "--columns", "reftime,data.Temp,data.rain,data.x")
    similar = "ondisk: note: none of the first 3 data that match has 'data.Temp': there is `data.temp`\n"
    assert (none.code, none.text.count("\n")) == (0, 4)
    assert none.err == similar + similar.replace("Temp", "x").replace(
        "`data.temp`", "`data.station`, `data.temp`, `data.rain`"
    )
    assert run("query", jsonl, "--csv", "--columns", "data.rain").err == ""
    assert (
        "none of the first 2 data that match has 'data.rain'"
        in run("query", jsonl, "--csv", "--limit", "2", "--columns", "data.rain").err
    )
    assert run("query", jsonl, "reftime: =2020", "--csv", "--columns", "data.x").err == ""


@pytest.mark.parametrize("option", [("--csv",), ("--parquet", "table"), ("--arrow", "table")])
def test_columns_that_no_datum_has_are_noted_in_every_form(run, option):
    run("init", "events", "--step", "daily", "--field", "sensors=text")
    with ondisk.open("events") as events:
        events.append(
            ondisk.Datum(
                datetime(2026, 11, 20, n, tzinfo=UTC), {"sensor": n, "sensors": "a"}, {"temp": n, "none": None}
            )
            for n in range(3)
        )
    done = run("query", "events", *option, "--columns", "data.Temp,metadata.Sensor,data.temp,data.none,metadata.sensor")
    assert (done.code, done.err.splitlines()) == (
        0,
        [
            "ondisk: note: none of the first 3 data that match has 'data.Temp': there is `data.temp`",
            "ondisk: note: none of the first 3 data that match has 'metadata.Sensor': there is `metadata.sensor`",
        ],
    )


@pytest.mark.parametrize("option", [("--csv",), ("--parquet", "table", "--overwrite")])
def test_a_note_on_columns_is_about_the_data_that_are_written_and_never_an_error(run, monkeypatch, option):
    monkeypatch.setattr(likely_mistakes, "_SAMPLE", 2)
    run("init", "events", "--step", "daily")
    with ondisk.open("events") as events:
        events.append(
            ondisk.Datum(datetime(2026, 11, 20 + n, tzinfo=UTC), {}, {"old": None, "temp": 1} if n < 4 else {"late": 1})
            for n in range(6)
        )
    few = *option, "--columns", "data.old,data.late", "--limit", "3"
    note = "ondisk: note: none of the first 2 data that match has 'data.late': there is `data.old`, `data.temp`\n"
    assert run("query", "events", *few).err == note
    Path("events/2026/11-25.seg").write_bytes(b"damaged")
    done = run("query", "events", *few)
    assert (done.code, done.err) == (0, note)


@pytest.mark.parametrize("also", [(), ("--also", "other")])
@pytest.mark.parametrize("option", [("--csv",), ("--parquet", "table")])
def test_a_column_that_is_not_the_field_of_its_name_is_noted(run, option, also):
    for name in ("named", "other"):
        run("init", name, "--format", "jsonl", "--step", "daily", "--field", "size=integer", "--field", "dataset=text")
    done = run("query", "named", *also, *option, "--columns", "size,reftime")
    assert done.err.startswith("ondisk: note: the column size is not the field size, which is the column f_size\n")
    done = run(
        "query", "named", *also, *option, "--columns", "f_size,reftime", "--overwrite" if len(option) > 1 else "-q"
    )
    assert "the field" not in done.err


@pytest.mark.parametrize(("option", "read"), [("--parquet", pq.read_table), ("--arrow", feather.read_table)])
def test_tables_are_written_to_files(run, weather, tmp_path, option, read):
    file = tmp_path / "table"
    done = run("query", weather, "area: VM2,5", option, file, "--columns", "reftime,area,data=text")
    assert (done.code, done.text, done.err) == (0, f"2 rows written to {file}\n", "")
    assert read(file).to_pydict()["area"] == ["VM2,5", "VM2,5"]
    done = run("query", weather, option, file)
    assert (done.code, done.text) == (20, "")
    assert "--overwrite" in done.err
    assert run("query", weather, "--limit", "1", option, file, "--overwrite").text == f"1 row written to {file}\n"
    assert read(file).num_rows == 1


def test_damage_ends_a_file_with_an_error_and_no_file(run, weather, tmp_path):
    (weather / "2026/11-21.vm2").unlink()
    assert run("query", weather, "--parquet", tmp_path / "new").code == 13
    assert not (tmp_path / "new").exists()
    done = run("query", weather, "--csv")
    assert (done.code, done.text.count("\n")) == (13, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "area"], "--columns needs --csv, --parquet or --arrow"),
        (["--csv", "--fields", "area"], "--fields cannot be combined with --csv"),
        (["--parquet", "x", "--fields", "area"], "--fields cannot be combined with --parquet"),
        (["--csv", "--overwrite"], "--overwrite needs --parquet or --arrow"),
        (["--csv", "--columns", "data=text"], "CSV has no types, so data cannot have one"),
        (["--csv", "--columns", "area,area"], "names a column twice"),
        (["--csv", "--columns", "nothing"], "there is no column 'nothing'"),
        (["--csv", "--columns", ""], "columns must name at least one column"),
        (["--arrow", "x", "--columns", "data=number"], "the column data cannot have the type 'number'"),
        (["--csv", "--json"], "not allowed with"),
    ],
)
def test_options_that_do_not_fit_are_refused(run, weather, arguments, message):
    done = run("query", weather, *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.text == ""


def test_without_pyarrow_csv_works_and_files_say_what_to_install(weather, start):
    program = "import sys; sys.modules['pyarrow'] = None; import ondisk.cli; sys.exit(ondisk.cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "query", str(weather)]
    assert subprocess.run([*command, "--csv"], capture_output=True, check=True).stdout.count(b"\n") == 4
    done = subprocess.run([*command, "--parquet", "x"], capture_output=True, text=True)
    assert done.returncode == 30
    assert "pip install 'ondisk[arrow]'" in done.stderr


def test_several_datasets_are_one_table(run, two):
    done = run("query", two, "--csv", "--columns", "dataset,area", "--also", "more/old")
    assert (done.code, done.text.splitlines()[3]) == (0, 'more/old,"VM2,5"')
    assert run("query", two, "--arrow", "all.arrow", "--also", "more/old").text == "4 rows written to all.arrow\n"
    assert run("query", "more/old", "--csv", "--columns", "dataset").code == 2


@pytest.fixture
def photos(run):
    """Six photos of one day, of which the third is damaged."""
    Path("in").mkdir()
    for hour in range(6):
        Path(f"in/20261101_0{hour}00.jpg").write_bytes(b"photo %d" % hour)
    run("init", "photos", "--format", "blob", "--step", "daily")
    run("append", "photos", "in", "--format", "blob", "--time", "name:%Y%m%d_%H%M")
    Path("photos/2026/11-01.blob/000002.blob").write_bytes(b"XXXXX")
    return "photos"


@pytest.mark.parametrize(
    "form",
    [[], ["--json"], ["--table"], ["--data"], ["--csv"], ["--to", "out"], ["--parquet", "a"], ["--arrow", "a"]],
)
def test_skip_damaged_returns_the_others_in_every_form_names_what_is_left_out_and_ends_with_8(run, photos, form):
    done = run("query", photos, *form)
    assert done.code == 62
    assert "`--skip-damaged` returns the data that can be read" in done.err
    done = run("query", photos, "--skip-damaged", *form)
    assert done.code == 8
    assert "ondisk: damaged: " in done.err
    assert "000002.blob has 5 bytes instead of 7" in done.err
    assert "ondisk: warning: 1 datum was left out" in done.err
    assert "--salvage" in done.err
    if form[:1] == ["--to"]:
        assert len([*Path("out").iterdir()]) == 5
    elif form[:1] in (["--parquet"], ["--arrow"]):
        assert done.text == "5 rows written to a\n"
    else:
        assert done.out.count(b"cGhvdG8g" if form == ["--json"] else b"photo ") == 5
    assert (
        run("query", photos, "reftime: <=2026-11-01T01:00Z", "--skip-damaged", *[*form[:1], "b"][: len(form)]).code == 0
    )


def test_skip_damaged_returns_the_other_data_of_a_file_that_is_smaller_than_what_is_compared_of_its_end(run, folder):
    with ondisk.create("small", {"format": "seg", "step": "daily", "compression": "none"}) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, hour, tzinfo=UTC), {}, {"n": hour}) for hour in range(6)])
        location = [*dataset.query()][2].location
    with Path("small", location.segment).open("r+b") as file:
        file.seek(location.offset + 20)
        file.write(b"XX")
    assert run("query", "small").code == 62
    done = run("query", "small", "--skip-damaged")
    assert (done.code, done.text.count('"n":')) == (8, 5)
    assert f"ondisk: damaged: {location}" in done.err
    assert run("query", "small").code == 62  # what is skipped is not forgotten


def test_skip_damaged_reads_several_datasets(run, photos):
    done = run("query", photos, "--also", photos, "--skip-damaged", "--csv")
    assert (done.code, done.out.count(b"photo ")) == (8, 5)
    assert "ondisk: damaged: photos: " in done.err
