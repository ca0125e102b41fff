"""What is proposed for a file: of which columns a dataset consists, and how to append the file to it."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ondisk
from ondisk.config import DatasetConfig
from ondisk.errors import InvalidInput
from ondisk.tables.propose_config import SAMPLE, proposed


def propose(text: str, **options: Any) -> tuple[DatasetConfig, str]:
    toml = proposed(io.BytesIO(text.encode()), **options)
    return DatasetConfig.from_toml(toml), toml


def hours(count: int = 48) -> list[str]:
    return [f"2026-11-{1 + hour // 24:02} {hour % 24:02}:00" for hour in range(count)]


def fields(config: DatasetConfig) -> dict[str, str]:
    return {name: str(kind) for name, kind in config.fields.items()}


def test_what_identifies_a_row_is_a_field_and_unique_and_measurements_are_content():
    rows = [f"{time},{s},Lake {s},{10 + s},{s % 2 == 0}" for time in hours() for s in (1, 2, 3)]
    config, toml = propose("\n".join(["when,Station,name,temp,auto", *rows]))
    assert (config.format, config.step, config.unique) == ("seg", "yearly", ("reftime", "station"))
    assert fields(config) == {"station": "integer", "name": "text", "auto": "boolean"}
    assert "# The content of each datum: temp" in toml
    assert re.search(r'station = "integer" +# Station: 1, 2, 3\n', toml)
    assert "144 rows of - that can be read, 2026-11-01T00:00 to 2026-11-02T23:00." in toml
    assert "ondisk append DATASET - --format csv --tz ZONE" in toml
    assert config.csv == {"time": "when"}


def test_one_series_has_its_station_in_unique_because_the_next_file_may_be_of_another():
    config, _ = propose("\n".join(["reftime,station,rain", *(f"{time}Z,5,{n}" for n, time in enumerate(hours()))]))
    assert (config.unique, fields(config)) == (("reftime", "station"), {"station": "integer"})


@pytest.mark.parametrize(("value", "kind"), [("Milano", "text"), ("16239", "integer")])
@pytest.mark.parametrize("sensors", [1, 2])
def test_a_value_that_all_rows_have_is_in_unique_whatever_its_column_is_called(value, kind, sensors):
    rows = [f"{time}Z,{value},{s},{n / 7}" for n, time in enumerate(hours()) for s in range(sensors)]
    config, _ = propose("\n".join(["reftime,luogo,sensor,rain", *rows]))
    assert config.unique == ("reftime", "sensor", "luogo")
    assert fields(config) == {"sensor": "integer", "luogo": kind}


def test_rows_that_nothing_identifies_are_no_duplicates():
    rows = [f"{time},{n / 7}" for time in hours() for n in range(3)]
    config, toml = propose("\n".join(["time,value", *rows]))
    assert (config.unique, fields(config)) == ((), {})
    assert "# unique: some rows of the sample are equal in time" in toml
    assert "propose again with a zone" in toml


@pytest.mark.check
@pytest.mark.parametrize(
    ("seconds", "step"),
    [(17, "hourly"), (17 * 60, "daily"), (17 * 3600, "monthly"), (170 * 86_400, "yearly")],
)
def test_the_step_fits_the_rate_of_the_sample_however_short_that_is(seconds, step):
    begin = datetime(2026, 11, 20, tzinfo=UTC)
    times = [begin + timedelta(seconds=seconds * n / 9000) for n in range(9000)]
    rows = [f"{time.isoformat()},{n % 400},{'x' * 50}{n},{n * 7919 % 500}" for n, time in enumerate(times)]
    config, toml = propose("\n".join(["time,user_id,message,bytes", *rows]))
    assert config.step == step
    assert f"about {9000 / seconds * 86_400:,.0f}"[:8] in toml
    assert config.unique == (() if step == "hourly" else ("reftime", "user_id"))
    assert ("# unique: at this rate its index may be larger than the data." in toml) is (step == "hourly")


def test_events_are_not_identified_by_what_was_measured_or_written_nor_by_their_time_alone():
    random = Random(5)
    times = sorted(random.sample(range(10**9), 300))
    rows = [f"{1795161600000 + time // 1000},{random.random()},GET /{n},{n % 7},{n}" for n, time in enumerate(times)]
    assert propose("\n".join(["time,took,request,status,bytes", *rows]))[0].unique == ()
    assert propose("\n".join(["time,took,request,status,bytes", *rows, rows[-1].replace("GET", "PUT")]))[0].unique == ()


def test_one_delivery_of_many_stations_says_nothing_about_the_rate():
    config, toml = propose("\n".join(["time,station", *(f"2026-11-20T06:00Z,{n}" for n in range(300))]))
    assert (config.step, config.unique) == ("yearly", ("reftime", "station"))
    assert "about 300 rows a day" in toml


def test_a_row_that_is_there_twice_is_a_duplicate():
    rows = [f"{time},{n}" for n, time in enumerate(hours())] * 2
    assert propose("\n".join(["time,value", *rows]))[0].unique == ("reftime",)


@pytest.mark.parametrize(
    ("time", "form", "lacks_offset"),
    [
        ("2026-11-20T06:00:00Z", None, False),
        ("2026-11-20 06:00", None, True),
        ("20.11.2026 06:00", "%d.%m.%Y %H:%M", True),
        ("20/11/2026 06:00:00", "%d/%m/%Y %H:%M:%S", True),
        ("202611200600", "%Y%m%d%H%M", True),
        ("1795161600", "unix", False),
        ("1795161600000", "unix-ms", False),
    ],
)
def test_the_times_are_recognised(time, form, lacks_offset):
    config, toml = propose(f"id,time,x\n5,{time},1\n")
    assert (config.csv.get("time"), config.csv.get("time_format"), config.csv.get("tz")) == ("time", form, None)
    assert f"ondisk append DATASET - --format csv{' --tz ZONE' * lacks_offset}\n" in toml
    assert ('\n# tz = "ZONE"' in toml) is lacks_offset


def test_a_date_that_may_begin_with_day_or_month_is_not_guessed():
    with pytest.raises(InvalidInput, match="'05/06/2026' may have the day or the month first") as raised:
        propose("time,x\n05/06/2026,1\n")
    assert raised.value.hint == "Say it with --time-format '%d/%m/%Y' or --time-format '%m/%d/%Y'."
    assert propose("time,x\n05/06/2026,1\n", time_format="%m/%d/%Y")[0].csv.get("time_format") == "%m/%d/%Y"


def test_texts_for_no_value_and_the_delimiter_are_found():
    text = "time;temp;note\n2026-11-20;NA;x\n2026-11-21;1.5;NA\n"
    assert propose(text)[0].csv == {"time": "time", "null": ("NA",), "delimiter": ";"}
    assert propose(text.replace(";", "\t"))[0].csv.get("delimiter") == "\t"
    assert propose(text + "2026-11-22;null;x")[0].csv.get("null") == ("NA", "null")
    assert propose(text.replace("NA", "--"))[0].csv.get("null") == ("--",)


@pytest.mark.parametrize(
    ("cells", "is_comma"),
    [("1,5 2 -0,25", True), ("1,234 2,345", False), ("1,234 2,3", True), ("1,5 x", False), ("1,5 2.5", False)],
)
def test_a_decimal_comma_is_found(cells, is_comma):
    rows = [f"2026-11-2{day};{cell}" for day, cell in enumerate([*cells.split(), "NA"])]
    config, _ = propose("\n".join(["time;temp", *rows]))
    assert (config.csv.get("delimiter"), config.csv.get("decimal")) == (";", "," if is_comma else None)
    assert config.fields == {}


def test_signs_for_thousands_are_found():
    rows = "2026-11-20;5;998,50\n2026-11-21;5;1.013,25\n2026-11-22;5;n.d.\n"
    config, _ = propose(f"time;station;pressure\n{rows}")
    assert config.csv == {"time": "time", "null": ("n.d.",), "delimiter": ";", "decimal": ",", "thousands": "."}
    assert [*config.fields] == ["station"]
    assert propose("time;x\n2026-11-20;1 000\n2026-11-21;2\n")[0].csv.get("thousands") == " "
    assert propose("time;x;y\n2026-11-20;1.000,5;1.5\n2026-11-21;2,5;2.5\n")[0].csv.get("thousands") is None


@pytest.mark.parametrize(
    ("cells", "null"),
    [("1.5 -999 2", "-999"), ("15 -9999.0 -20", "-9999.0"), ("-80 -99 -70", None), ("-99 -999", None), ("-999", None)],
)
def test_a_number_that_means_no_value_is_found(cells, null):
    rows = [f"2026-11-2{day};{cell}" for day, cell in enumerate(cells.split())]
    for name in ("temp", "t"):
        config, _ = propose("\n".join([f"time;{name}", *rows]))
        assert config.csv.get("null") == ((null,) if null else None)


def test_texts_and_numbers_that_mean_no_value_are_found_in_one_column():
    rows = [f"2026-11-2{day};{cell}" for day, cell in enumerate(["5", "n.d.", "5", "-999", "5", "5"])]
    assert propose("\n".join(["time;t", *rows]))[0].csv.get("null") == ("-999", "n.d.")


def test_a_file_without_names_is_refused_and_read_with_names():
    rows = "2026-11-20 06:00,5,1.5\n2026-11-20 07:00,6,2.5\n"
    for text in (rows, "1795161600,5\n1795161601,6\n", "a,20.11.2026\nb,21.11.2026\n"):
        with pytest.raises(InvalidInput, match="the first line is data, not names") as caught:
            propose(text, tz="UTC")
        assert "--header" in caught.value.hint
    config, _ = propose(rows, tz="UTC", header=["time", "station", "t"])
    assert config.csv == {"time": "time", "tz": "UTC", "header": ("time", "station", "t")}


def test_a_line_of_units_below_the_names_is_skipped_with_them():
    rows = [f"{time};5;{n / 7:.3}" for n, time in enumerate(hours())]
    lines = ["# logger 7", "When;station;temp", "UTC;;degC", *rows]
    config, toml = propose("\n".join(lines), tz="UTC")
    assert config.csv == {
        "time": "When", "tz": "UTC", "delimiter": ";", "header": ("When", "station", "temp"), "skip_lines": 3,
        "comment": "#",
    }  # fmt: skip
    assert "# Proposed from 48 rows" in toml
    assert "cannot be read" not in toml
    assert propose("time,note\n2026-11-20,x\nUTC,y\n" + "2026-11-21,z\n" * 20)[0].csv.get("skip_lines") is None
    comma = "\n".join(["When;temp", "?;3,5", *(f"2026-11-20 {n:02}:00;{n},5" for n in range(20))])
    for options in ({}, {"decimal": ","}):
        assert propose(comma, tz="UTC", **options)[0].csv.get("skip_lines") is None


def test_columns_of_one_field_are_refused_as_an_append_does():
    with pytest.raises(InvalidInput, match="the columns 'Station' and 'STATION' are both station"):
        propose("time,Station,STATION,t\n2026-11-20 14:00,5,6,1\n2026-11-20 15:00,5,6,1\n")


def test_rows_with_more_cells_than_names_cannot_be_read():
    with pytest.raises(
        InvalidInput, match="line 2: 4 cells instead of 3: it ends with a delimiter, and the first line"
    ):
        propose("time,station,t\n2026-11-20 17:00,5,1,\n2026-11-20 18:00,5,2,\n", tz="UTC")
    toml = propose("time,station,t\n1582-10-15 00:00,5,1\n2026-11-20 20:00,5,2\n", tz="UTC")[1]
    assert "# Proposed from 1 rows of - that can be read, 2026-11-20T20:00Z to 2026-11-20T20:00Z.\n# 1 row" in toml


ODD_CELLS = st.sampled_from(
    [
        "5",
        "-999",
        " -999",
        "1.013,25",
        "998,5",
        "1,5",
        "2.5",
        "007",
        "NA",
        "n.d.",
        "",
        " ",
        "x",
        "true",
        "9" * 19,
        '"a"',
    ]
)
ODD_TIMES = st.sampled_from(
    ["2026-11-20 06:00", "2026-11-20 24:00", "1582-10-15 00:00", "2026-11-20T07:00Z", "", "UTC", "2026-13-01 00:00"]
) | st.integers(0, 23).map(lambda hour: f"2026-11-21 {hour:02}:00")
ODD_NAMES = st.lists(
    st.sampled_from(["Station", "STATION", "station", "t", "T", "reftime", "data.t", "", "code", "5"]),
    min_size=1,
    max_size=3,
)


@st.composite
def odd_files(draw: st.DrawFn) -> bytes:
    """A table in which one thing after the other is wrong."""
    names = draw(ODD_NAMES)
    lines = [";".join(["time", *names])] if draw(st.integers(0, 9)) else []
    for _ in range(draw(st.integers(1, 12))):
        width = len(names) if draw(st.integers(0, 14)) else draw(st.integers(0, 5))
        lines.append(";".join([draw(ODD_TIMES), *(draw(ODD_CELLS) for _ in range(width))]))
    if draw(st.booleans()):
        lines = [f"{line};" for line in lines[draw(st.integers(0, 1)) :]]
    return b"\xef\xbb\xbf" * draw(st.booleans()) + "\n".join([*lines, ""]).encode()


@given(odd_files())
def test_an_append_stores_as_many_rows_as_its_proposal_says_can_be_read(tmp_path_factory, content):
    try:
        toml = proposed(io.BytesIO(content), tz="UTC")
    except InvalidInput:
        return
    with ondisk.create(tmp_path_factory.mktemp("odd") / "d", DatasetConfig.from_toml(toml), text=toml) as dataset:
        result = dataset.append_file(io.BytesIO(content), "csv")
    (count,) = re.findall(r"# Proposed from ([0-9,]+) rows", toml)
    assert result.imported + result.duplicates == int(count)
    refused = re.findall(r"\n# ([0-9,]+) rows? cannot be read", toml)
    assert result.refused == int((refused or ["0"])[0])


def test_a_comma_in_a_time_is_no_decimal_comma():
    with pytest.raises(InvalidInput, match="has times that are recognised"):
        propose("time;temp\n1767225600,5;1,5\n")
    assert propose("time;temp\n1767225600.5;1,5\n")[0].csv.get("decimal") == ","


def test_nothing_is_proposed_from_the_few_rows_that_can_be_read():
    rows = [f"2026-11-{day:02};{'Forlì' if day > 9 else 'Como'}".encode("latin-1") for day in range(1, 21)]
    with pytest.raises(InvalidInput, match=r"11 of the first 20 rows cannot be read, as line 11: .*iconv"):
        proposed(io.BytesIO(b"time;place\n" + b"\n".join(rows)))
    with pytest.raises(InvalidInput, match="decimal is for CSV only"):
        proposed(io.BytesIO(b'{"reftime":"2026-11-20T06:00:00Z"}\n'), decimal=",")


@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress])
def test_json_lines_stay_json_lines(pack):
    lines = [json.dumps({"reftime": f"{time}:00Z".replace(" ", "T"), "id": s, "Name": "x", "deep": [s]})
             for time in hours() for s in (1, 2)]  # fmt: skip
    toml = proposed(io.BytesIO(pack("\n".join(lines).encode())))
    config = DatasetConfig.from_toml(toml)
    assert (config.format, config.unique, fields(config)) == ("jsonl", ("reftime", "id"), {"id": "integer"})
    assert "# The content of each datum: Name, deep" in toml


def test_only_the_beginning_of_a_large_file_is_read():
    class Counted(io.BytesIO):
        count = 0

        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size)
            self.count += len(content)
            return content

    source = Counted(b"time,x\n" + b"2026-11-20T06:00Z,1234567890\n" * 1_000_000)
    assert f"the first {SAMPLE:,} rows" in proposed(source)
    assert source.count < 4_000_000


def test_rows_that_cannot_be_read_do_not_make_the_sample_look_whole():
    rows = "".join(f"2026-11-20T{n // 60 % 24:02}:{n % 60:02}:00Z,1\n" for n in range(SAMPLE + 5))
    source = io.BytesIO(f"time,n\n2026-11-20\n{rows}".encode())
    toml = proposed(source)
    assert f"# Proposed from the first {SAMPLE - 1:,} rows of - that can be read, 2026-11-20T00:00Z to" in toml
    assert "\n# 1 row cannot be read: line 2: 1 cell instead of 2: 'n' has no cell. An append refuses them.\n" in toml
    latin = "time,n\n" + "".join(f"2026-11-20T00:{n:02}:00Z,1\n" for n in range(20)) + "2026-11-21T00:00:00Z,caf"
    toml = proposed(io.BytesIO(f"{latin}\u00e9\nx,1\n".encode("latin-1")))
    assert re.search(r"\n# 2 rows cannot be read: line 22: .*UTF-8.*\. An append refuses them\.", toml)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("a.csv", []),
        ("A.CSV.gz", []),
        ("a.txt", ["--format", "csv"]),
        ("a.txt.gz", ["--format", "csv"]),
        ("-", ["--format", "csv"]),
    ],
)
def test_the_append_that_is_proposed_says_what_the_name_of_the_file_does_not(name, option):
    source = io.BytesIO(b"time,n\n2026-11-20T00:00:00Z,1\n")
    source.name = name
    words = shlex.split(re.findall(r"ondisk append DATASET (.*)", proposed(source))[0])
    assert words == [name, *option]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file has no rows to look at"),
        ("time,x\n", "the file has no rows to look at"),
        ("a,a\n1,2\n", "two columns have the name 'a'"),
        ("a,b\n1,2\n", "no column of 'a', 'b' has times that are recognised"),
        ("{}\n", "no column"),
        ("PAR1\x15\x04\n", "it is a table of Parquet, and not CSV or JSON lines"),
        ("ARROW1\0\0", "it is a table of Arrow, and not CSV or JSON lines"),
        ("\x01\0,\n", "it is not CSV: line 1: it contains NUL bytes"),
        ('{"x":\n', "the file has no rows to look at: not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_a_dataset_is_refused(text, why):
    with pytest.raises(InvalidInput, match=why):
        propose(text)


def test_names_of_a_hostile_file_stay_in_their_comments():
    config, toml = propose('time,"x\n[fields]\ny = ""text""",\x1b[31m\n2026-11-20,1,2\n')
    assert fields(config) == {}
    assert "\x1b" not in toml


def test_the_file_can_be_appended_as_the_proposal_says(tmp_path):
    rows = [f"{time};{s};{'NA' if s == 2 else s / 4}" for time in hours() for s in (1, 2, 3)]
    source = tmp_path / "my data.csv"
    source.write_text("\n".join(["When;Site No;temp", *rows]))
    toml = proposed(source)
    words = shlex.split(re.findall(r"ondisk append DATASET (.*)", toml)[0])
    assert words == ["my data.csv", "--tz", "ZONE"]
    with ondisk.create(tmp_path / "dataset", DatasetConfig.from_toml(toml), text=toml) as dataset:
        result = dataset.append_file(source, tz="UTC")
        assert (result.imported, result.duplicates, result.refused) == (144, 0, 0)
        assert dataset.summary().fields["site_no"].values == [(1, 48), (2, 48), (3, 48)]
    assert (tmp_path / "dataset/dataset.toml").read_text() == toml


@pytest.mark.parametrize(
    ("head", "row", "hint"),
    [
        ("date,time,x", "2026-11-{day},06:10,1", "Join the columns first: sed 's/,/ /1' year.csv > joined.csv."),
        ("id;date;hour", "5;2026-11-{day};6", "Join the columns first: sed 's/;/ /2' year.csv > joined.csv."),
        ("at,date", "6:10:30,2026-11-{day}", "Write both into one column first, such as 2026-11-20 06:00."),
    ],
)
def test_a_date_whose_time_of_day_is_in_another_column_is_refused_with_what_joins_them(head, row, hint):
    source = io.BytesIO("\n".join([head, *(row.format(day=day) for day in (20, 21))]).encode())
    source.name = "year.csv"
    with pytest.raises(
        InvalidInput, match=r"the dates are in the column 'date', and the times of day in '(time|hour|at)'"
    ) as caught:
        proposed(source)
    assert caught.value.hint == f"{hint} Or pass --time date: then each row is at midnight."
    source.seek(0)
    assert '\ntime = "date"\n' in proposed(source, time="date")


def test_days_are_proposed_if_no_other_column_has_times_of_day():
    assert propose("date,length,time\n2026-11-20,06-10,1.5\n")[0].csv.get("time") == "date"
