"""Local times that occur twice: what the order of the rows decides is true, and what it does not tell is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ondisk
from ondisk.formats import Batch
from ondisk.table_options import TableOptions
from ondisk.tables import csv_reader, propose_config
from ondisk.tables import table_input as ambiguous
from ondisk.tables.propose_config import proposed
from ondisk.tables.table_input import Rows, decide, decided, switches
from ondisk.tables.times import Times, Twice, Zone

ROME = ZoneInfo("Europe/Rome")
ZONES = {
    "Europe/Rome": datetime(2026, 10, 25, 0),
    "America/New_York": datetime(2026, 11, 1, 5),
    "Australia/Lord_Howe": datetime(2026, 4, 4, 14, 30),
}
"""When the hour, or half an hour, that occurs twice begins, UTC."""
SUMMER, WINTER = datetime(2026, 10, 25, 0, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)
INFER = TableOptions(ambiguous="infer")


class Row(NamedTuple):
    moment: datetime
    station: int = 0


class Read:
    """Reads pieces that are lists of rows, whose clock is in a zone."""

    def __init__(self, zone: str, fields: Sequence[str] = ("station",)) -> None:
        self.zone, self._fields, self._times = ZoneInfo(zone), fields, Times(None, Zone(zone))

    def times(self, piece: Sequence[Row | None]) -> list[int | str]:
        return ["" if row is None else self._times[local(row.moment, self.zone)] for row in piece]

    def rows(self, piece: Sequence[Row | None]) -> Rows:
        series = [row and row.station for row in piece] if self._fields else [()] * len(piece)
        return Rows(range(len(piece)), self.times(piece), Batch, lambda: [series], lambda: len(piece))

    def decided(self, *pieces: Sequence[Row | None]) -> tuple[list[Row], list[int | str]]:
        """Return the rows whose time occurs twice, and what is decided about them."""
        rows, answers = list[Row](), list[int | str]()
        for piece, found in zip(pieces, decided(map(self.rows, pieces), INFER), strict=True):
            for row, before, after in zip(piece, self.times(piece), found.times, strict=True):
                is_twice = isinstance(before, Twice)
                assert is_twice or before == after
                assert not isinstance(after, Twice)
                if row is not None and is_twice:
                    rows.append(row)
                    answers.append(after)
        return rows, answers


def local(moment: datetime, zone: ZoneInfo = ROME) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def minutes(*values: int, station: int = 0) -> list[Row]:
    """Return rows of a station, so many minutes after the first hour began."""
    return [Row(SUMMER + timedelta(minutes=value), station) for value in values]


@pytest.mark.parametrize(
    ("times", "places"),
    [
        ([], []),
        ([0], []),
        ([0, 10, 50], []),
        ([0, 10, 50, 0, 10], [3]),
        ([30, 20], [1]),
        ([0, 0], [1]),
        ([0, 0, 0, 0], []),
        ([0, 10, 10, 20, 30], []),
        ([0, 0, 50, 50, 0, 0], [4]),
        ([0, 50, 0, 50, 0, 50], [2, 4]),
    ],
)
def test_the_second_hour_begins_where_time_goes_back_or_is_the_second_of_two_rows(times, places):
    assert switches(times) == places


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[list[Row]], bool]:
    """Draw a zone, rows of a night in pieces, and whether all series have all rows."""
    name = draw(st.sampled_from([*ZONES]))
    begin = ZONES[name].replace(tzinfo=UTC) - timedelta(hours=3)
    step = draw(st.sampled_from([10, 30] + [60] * (name != "Australia/Lord_Howe")))
    stations = range(draw(st.integers(1, 3)))
    rows = [Row(begin + timedelta(minutes=at), each) for at in range(0, 480, step) for each in stations]
    has_gaps = draw(st.booleans())
    if has_gaps:
        kept = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        rows = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
    if draw(st.booleans()):
        rows.sort(key=lambda row: (row.station, row.moment))
    ends = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return name, [rows[a:b] for a, b in zip([0, *ends], [*ends, len(rows)], strict=True)], not has_gaps


@given(tables())
def test_what_is_decided_is_true_and_no_row_of_a_whole_night_is_refused(table):
    name, pieces, is_whole = table
    rows, answers = Read(name).decided(*pieces)
    for row, answer in zip(rows, answers, strict=True):
        assert isinstance(answer, str) or answer == micros(row.moment)
    assert not is_whole or all(isinstance(answer, int) for answer in answers)
    assert not is_whole or rows


@given(tables())
def test_rows_of_a_whole_night_that_are_ordered_from_late_to_early_are_refused(table):
    name, pieces, is_whole = table
    if is_whole:
        _, answers = Read(name).decided(*(piece[::-1] for piece in pieces[::-1]))
        assert all(isinstance(answer, str) for answer in answers)


def test_without_fields_interleaved_stations_are_decided_where_the_time_goes_back():
    rows = [row for at in range(-60, 180, 10) for station in (1, 2) for row in minutes(at, station=station)]
    found, answers = Read("Europe/Rome", ()).decided(rows)
    assert answers == [micros(row.moment) for row in found]
    assert len(answers) == 24


def test_a_row_without_a_time_does_not_divide_a_run():
    rows = [*minutes(-10, 0, 30), None, *minutes(60, 90), None]
    assert Read("Europe/Rome").decided(rows)[1] == [micros(row.moment) for row in minutes(0, 30, 60, 90)]


@pytest.mark.parametrize(
    ("rows", "fields", "why"),
    [
        (minutes(-10, 0, 10, 20, 130), ("station",), "begin at none of the rows of this series"),
        (minutes(-10, 0, 10, 0, 10, 0, 130), (), "begin at 2 of the rows of this series"),
        (minutes(-10, 0, 0, 0, 130), (), "begin at none of the rows of this series"),
        # One station's row is not the other one's, an hour later.
        ([*minutes(0, station=1), *minutes(0, station=2)], ("station",), "none of the rows of this series"),
        ([*minutes(30, station=1), *minutes(10, station=2)], ("station",), "none of the rows of this series"),
        (minutes(180, 120, 60, 0, -60), (), "the rows before or after this hour are not in the order of time"),
        (minutes(180, 60, 0), (), "the rows before or after this hour are not in the order of time"),
        (minutes(60, 0, -60), (), "the rows before or after this hour are not in the order of time"),
    ],
)
def test_what_the_order_does_not_tell_is_refused_with_the_number_of_switches(rows, fields, why):
    answers = Read("Europe/Rome", fields).decided(rows)[1]
    assert len(answers) >= 2
    assert all(isinstance(answer, str) and answer.endswith(why) for answer in answers)
    assert all("happens twice in Europe/Rome" in str(answer) for answer in answers)
    assert all("; the order of the rows does not tell which one is meant: " in str(answer) for answer in answers)


def test_the_hours_of_two_years_are_two_runs():
    rows = [*minutes(0, 60), *(Row(datetime(2027, 10, 31, hour, tzinfo=UTC)) for hour in (0, 1))]
    assert Read("Europe/Rome").decided(rows)[1] == [micros(row.moment) for row in rows]
    *_, answers = Read("Europe/Rome").decided(rows[2:] + rows[:2])
    assert all("not in the order of time" in str(answer) for answer in answers)


@pytest.mark.parametrize("limit", ["_MOST_ROWS", "BATCH_BYTES"])
def test_a_run_that_is_too_long_is_refused_and_not_held_and_the_next_one_is_decided(limit, monkeypatch):
    monkeypatch.setattr(ambiguous, limit, 5)
    night = minutes(-10, *range(0, 120, 10), 180)
    next_year = [Row(datetime(2027, 10, 31, hour, tzinfo=UTC)) for hour in (0, 1)]
    given = [night[:3], night[3:6], night[6:8], night[8:10], night[10:], [], next_year]
    reader, read, found = Read("Europe/Rome"), list[list[Row]](), list[list[int | str]]()
    for rows in decided((reader.rows(read.append(piece) or piece) for piece in given), INFER):
        found.append([after for before, after in zip(reader.times(given[len(found)]), rows.times, strict=True)
                      if isinstance(before, Twice)])  # fmt: skip
        assert len(read) - len(found) <= 2
    assert [len(each) for each in found] == [2, 3, 2, 2, 3, 0, 2]
    assert all("follow each other in this hour" in str(answer) for each in found[:-1] for answer in each)
    assert found[-1] == [micros(row.moment) for row in next_year]


def test_a_table_of_one_series_is_decided_at_once():
    times = Times(None, Zone("Europe/Rome"))
    read = [times[local(row.moment)] for row in minutes(-60, 0, 60, 120)]
    decide(read)
    assert read[1:3] == [micros(SUMMER), micros(WINTER)]


NIGHT = [Row(SUMMER + timedelta(minutes=at), station) for at in range(-60, 180, 10) for station in (1, 2)]
"""Ten minutes of two stations."""
SHAPES = {"interleaved": NIGHT, "by station": sorted(NIGHT, key=lambda row: (row.station, row.moment))}


@pytest.fixture(params=SHAPES)
def rows(request) -> list[Row]:
    return SHAPES[request.param]


@pytest.fixture(params=["seg", "jsonl"])
def dataset(request, create) -> ondisk.Dataset:
    return create(format=request.param, fields={"station": "integer"}, unique=["reftime", "station"])


def check_all_are_there(dataset: ondisk.Dataset, result: ondisk.AppendResult) -> None:
    """Check that each row was stored at its moment: its content says which one that was."""
    assert (result.imported, result.refused, result.duplicates) == (len(NIGHT), 0, 0)
    found = [*dataset.query()]
    assert all(f"{each.reftime:%H:%M}" == each.data["utc"] for each in found)
    assert {(each.reftime, each.metadata["station"]) for each in found} == {*NIGHT}


def csv_of(rows: Sequence[Row]) -> str:
    lines = [f"{local(row.moment)},{row.station},{row.moment:%H:%M}" for row in rows]
    return "\n".join(["when,Station,utc", *lines]) + "\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("chunk", [40, 100_000])
def test_rows_of_csv_are_decided_also_across_batches_and_reads(dataset, rows, size, chunk, monkeypatch):
    monkeypatch.setattr(csv_reader, "_CHUNK", chunk)
    text = io.BytesIO(csv_of(rows).encode())
    result = dataset.append_file(text, "csv", time="when", tz="Europe/Rome", ambiguous="infer", batch_size=size)
    check_all_are_there(dataset, result)


def test_bad_rows_of_csv_are_refused_at_their_lines_beside_those_that_are_decided(dataset):
    lines = csv_of(NIGHT).splitlines()
    lines.insert(20, "2026-10-25 02:10,x5,bad")
    lines.insert(22, "2026-10-25 02:10,1")
    lines.insert(24, '"2026-10-25 02:10"x,1,2')
    lines += ["2026-03-29 02:30,1,never", "2027-10-31 02:30,1,?"]
    text = io.BytesIO("\n".join(lines).encode())
    result = dataset.append_file(text, "csv", time="when", tz="Europe/Rome", ambiguous="infer")
    assert [reason.split(": ")[0] for _, reason in result.refusals] == [
        *("line 21", "line 23", "line 25"),
        *(f"line {number}" for number in (len(lines) - 1, len(lines))),
    ]
    assert "does not exist in Europe/Rome" in result.refusals[-2][1]
    assert "the second hour can begin at none of the rows" in result.refusals[-1][1]
    assert result.imported == len(NIGHT)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_of_json_are_decided_also_across_batches(dataset, rows, size):
    lines = [{"when": local(row.moment), "station": row.station, "utc": f"{row.moment:%H:%M}"} for row in rows]
    text = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    result = dataset.append_file(text, "jsonl", time="when", tz="Europe/Rome", ambiguous="infer", batch_size=size)
    check_all_are_there(dataset, result)


@pytest.mark.parametrize("form", ["csv", "jsonl", "arrow"])
def test_without_fields_all_rows_of_a_table_are_one_series(create, form):
    dataset, rows = create(format="jsonl"), minutes(-60, 0, 30, 60, 90, 120)
    times = [local(row.moment) for row in rows]
    options = {"time": "when", "tz": "Europe/Rome", "ambiguous": "infer"}
    if form == "arrow":
        result = dataset.append_arrow(pa.table({"when": times}), **options)
    else:
        text = csv_of(rows) if form == "csv" else "\n".join(json.dumps({"when": time}) for time in times)
        result = dataset.append_file(io.BytesIO(text.encode()), form, **options)
    assert (result.imported, result.refused) == (6, 0)
    assert [each.reftime for each in dataset.query()] == [row.moment for row in rows]


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_rows_of_arrow_are_decided_also_across_batches(dataset, rows, size, is_text):
    naive = [row.moment.astimezone(ROME).replace(tzinfo=None) for row in rows]
    table = pa.table({
        "when": pa.array([*map(str, naive)]) if is_text else pa.array(naive, pa.timestamp("ms")),
        "station": [row.station for row in rows],
        "utc": [f"{row.moment:%H:%M}" for row in rows],
    })  # fmt: skip
    stream = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=5))
    result = dataset.append_arrow(stream, time="when", tz="Europe/Rome", ambiguous="infer", batch_size=size)
    check_all_are_there(dataset, result)


def test_rows_of_arrow_that_are_not_decided_are_refused_with_their_row(dataset):
    when = [datetime(2026, 10, 25, 1), None, datetime(2026, 10, 25, 2), datetime(2026, 10, 25, 3)]
    table = pa.table({"when": pa.array(when, pa.timestamp("us")), "station": [1, 1, 1, 1]})
    result = dataset.append_arrow(table, time="when", tz="Europe/Rome", ambiguous="infer")
    assert result.imported == 2
    assert result.refusals[0] == (1, "row 2: when is NULL")
    assert result.refusals[1][1].startswith("row 3: column 'when': '2026-10-25T02:00:00': 2026-10-25 02:00:00 happens")
    assert result.refusals[1][1].endswith("the second hour can begin at none of the rows of this series")


@pytest.mark.parametrize("text", ["2026-10-25 02:30", "yesterday"])
def test_the_reason_for_a_text_of_arrow_names_it_once(dataset, text):
    ((_, reason),) = dataset.append_arrow(pa.table({"reftime": [text], "station": [1]}), tz="Europe/Rome").refusals
    assert reason.count(f"{text!r}: ") == 1


@pytest.mark.parametrize("options", [{}, {"ambiguous": "raise"}])
def test_the_rows_are_refused_unless_the_option_says_otherwise(create, options):
    dataset = create(format="seg", csv={"tz": "Europe/Rome", "time": "when", "ambiguous": "infer"} if options else {})
    result = dataset.append_file(
        io.BytesIO(csv_of(NIGHT).encode()), "csv", **{"tz": "Europe/Rome", "time": "when", **options}
    )
    assert (result.imported, result.refused) == (len(NIGHT) - 24, 24)
    assert all(
        reason.endswith("pass ambiguous (--ambiguous infer) if the rows are in the order of time")
        for _, reason in result.refusals
    )


def test_the_configuration_has_the_option_for_csv_and_json_lines(create):
    dataset = create(format="jsonl", csv={"tz": "Europe/Rome", "time": "when", "ambiguous": "infer"})
    assert dataset.append_file(io.BytesIO(csv_of(NIGHT[::2]).encode()), "csv").imported == 24
    lines = "\n".join(json.dumps({"when": local(row.moment)}) for row in NIGHT[::2])
    assert dataset.append_file(io.BytesIO(lines.encode()), "jsonl").imported == 24


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_proposal_has_the_option_and_counts_as_the_append_does(rows, form, is_whole, tmp_path):
    lost = [] if is_whole else [row for row in rows if row.station == 2 and row.moment.hour == WINTER.hour]
    kept = [row for row in rows if row not in lost]
    text = csv_of(kept)
    if form == "jsonl":
        names, *lines = [line.split(",") for line in text.splitlines()]
        text = "\n".join(json.dumps(dict(zip(names, line, strict=True))) for line in lines).replace(
            "Station", "station"
        )
    toml = proposed(io.BytesIO(text.encode()), time="when", tz="Europe/Rome", ambiguous="infer")
    config = ondisk.DatasetConfig.from_toml(toml)
    assert config.csv["ambiguous"] == "infer"
    assert config.unique == ("reftime", "station")
    with ondisk.create(tmp_path / "made", config) as dataset:
        result = dataset.append_file(io.BytesIO(text.encode()), form)
    assert result.duplicates == 0
    assert f"# Proposed from {result.imported} rows of - that can be read, " in toml
    assert result.refused == (0 if is_whole else 6)
    assert is_whole or "# 6 rows cannot be read: " in toml


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("chunk", [40, 100_000])
def test_a_proposal_reads_on_if_the_first_rows_end_in_the_hour(form, chunk, monkeypatch):
    monkeypatch.setattr(csv_reader, "_CHUNK", chunk)
    monkeypatch.setattr(propose_config, "SAMPLE", 20)
    lines = [{"when": local(row.moment), "station": row.station} for row in NIGHT]
    text = csv_of(NIGHT) if form == "csv" else "\n".join(map(json.dumps, lines))
    toml = proposed(io.BytesIO(text.encode()), time="when", tz="Europe/Rome", ambiguous="infer")
    assert "# Proposed from the first 20 rows of - that can be read, " in toml
    assert "cannot be read:" not in toml
