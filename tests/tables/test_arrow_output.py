"""A dataset as Arrow: the rows of a query, in its order, from one snapshot, with columns by name."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import strategies

import ondisk
from ondisk import Datum
from ondisk.cli.arguments import column_types
from ondisk.errors import InvalidInput, MatchError, SegmentMissing
from ondisk.tables import arrow_output, columns, index_to_arrow

T = datetime(2026, 11, 20, tzinfo=UTC)
VM2 = {"format": "vm2", "step": "daily", "fields": {"area": "text", "product": "text"}}
HOUR = timedelta(hours=1)


def line(time, station, value="1.2"):
    return Datum(time, {}, f"{time:%Y%m%d%H%M},{station},227,{value},,,000000000".encode())


def rows_of(dataset, *arguments, **options):
    """Return what a query says that the table of everything must have: of data that are bytes."""
    return [
        {"reftime": datum.reftime, **{name: datum.metadata.get(name) for name in dataset.config.fields}}
        | {"data": datum.data}
        for datum in dataset.query(*arguments, **options)
    ]


@pytest.fixture
def weather(create):
    """Two days of lines that were appended in no order of time; some are deleted."""
    made = create(**VM2)
    times = [T + timedelta(hours=number * 7 % 48) for number in range(48)]
    made.append([line(time, station) for time in times for station in (5, 70, 900)])
    made.delete("area: VM2,70; reftime: %6h")
    return made


@pytest.fixture
def stations(create):
    made = create(format="jsonl", step="monthly", fields={"station": "integer", "name": "text"})
    made.append(
        [
            Datum(T, {"station": 1, "name": "Ärö"}, {"temperature": 5.7, "note": "gusty", "n": 1}),
            Datum(T + HOUR, {"station": 2}, {"temperature": 6, "n": 2, "when": {"at": [1, "x"]}}),
            Datum(T + 2 * HOUR, {}, {"n": None}),
        ]
    )
    return made


def test_a_table_has_the_rows_of_a_query_in_its_order(weather):
    table = weather.to_arrow().read_all()
    assert table.schema == pa.schema(
        [("reftime", pa.timestamp("us", "UTC")), ("area", pa.string()), ("product", pa.string()), ("data", pa.binary())]
    )
    assert table.to_pylist() == rows_of(weather)


@pytest.mark.parametrize(
    "options",
    [
        {"match": "area: VM2,900; reftime: =2026-11-20"},
        {"sort": "-area,reftime"},
        {"sort": "-reftime", "limit": 7},
        {"limit": 0},
        {"area": "VM2,5"},
        {"match": "reftime: <2000"},
    ],
)
def test_match_sort_and_limit_are_those_of_a_query(weather, options):
    assert weather.to_arrow(**options).read_all().to_pylist() == rows_of(weather, **options)


def test_a_table_of_several_batches_keeps_the_order(weather, monkeypatch):
    monkeypatch.setattr(arrow_output, "ROWS", 10)
    monkeypatch.setattr(arrow_output, "LIST", 5)
    monkeypatch.setattr(index_to_arrow, "_BYTES", 100)
    for options in ({}, {"sort": "area"}, {"limit": 25}):
        assert weather.to_arrow(**options).read_all().to_pylist() == rows_of(weather, **options)


def test_columns_are_chosen_by_name(weather):
    table = weather.to_arrow(columns=["data", "segment", "offset", "reftime", "size"], limit=2).read_all()
    first, _ = [*weather.query(limit=2)]
    assert table.schema.names == ["data", "segment", "offset", "reftime", "size"]
    assert table.to_pylist()[0] == {
        "data": first.data,
        "segment": first.location.segment,
        "offset": first.location.offset,
        "reftime": first.reftime,
        "size": first.location.size,
    }
    assert weather.to_arrow(columns=["area"]).read_all().to_pydict() == {
        "area": [datum.metadata["area"] for datum in weather.query()]
    }


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("area, data", r"columns is a list of names, not 'area, data'"),
        (["area", "nothing"], "there is no column 'nothing'"),
        (["area", "area"], "each only once"),
        ([], "at least one column"),
        (["metadata.area"], "'area' is declared"),
        (["data."], "there is no column 'data.'"),
        ([5], "there is no column 5"),
        (["data.value"], "there is no column data.value: data of vm2 are bytes"),
        ({"reftime": "text"}, r"the column reftime is timestamp\[us, tz=UTC\], not string"),
        ({"data": "number"}, "the column data cannot have the type 'number'"),
        ({"data": pa.float64()}, "the column data cannot be double"),
    ],
)
def test_columns_that_do_not_exist_are_refused(weather, chosen, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        weather.to_arrow(columns=chosen)
    assert caught.value.hint


def test_arguments_of_the_query_are_checked(weather):
    with pytest.raises(MatchError):
        weather.to_arrow("nothing: 5")
    with pytest.raises(InvalidInput):
        weather.to_arrow(limit=-1)


def test_the_keys_of_a_content_are_columns_with_the_types_of_the_first_data(stations):
    table = stations.to_arrow().read_all()
    assert table.schema == pa.schema(
        [
            ("reftime", pa.timestamp("us", "UTC")),
            ("station", pa.int64()),
            ("name", pa.string()),
            ("data.temperature", pa.float64()),
            ("data.note", pa.string()),
            ("data.n", pa.int64()),
            ("data.when", pa.string()),
        ]
    )
    assert table["data.temperature"].to_pylist() == [5.7, 6.0, None]
    assert table["data.n"].to_pylist() == [1, 2, None]
    assert table["data.when"].to_pylist() == [None, '{"at":[1,"x"]}', None]
    assert table["name"].to_pylist() == ["Ärö", None, None]


def test_types_may_be_given(stations):
    asked = {"station": None, "data.temperature": "real", "data.n": pa.int8(), "data.none": "timestamp"}
    table = stations.to_arrow(columns=asked).read_all()
    assert table.schema.types == [pa.int64(), pa.float64(), pa.int8(), pa.timestamp("us", "UTC")]
    assert table["data.none"].null_count == 3
    schema = pa.schema([("data", pa.struct([("n", pa.int32()), ("note", pa.string())]))])
    assert stations.to_arrow(columns=schema).read_all()["data"].to_pylist() == [
        {"n": 1, "note": "gusty"},
        {"n": 2, "note": None},
        {"n": None, "note": None},
    ]


def test_the_whole_content_is_one_column_of_json(stations):
    assert stations.to_arrow(columns=["data"]).read_all()["data"].to_pylist() == [
        '{"temperature":5.7,"note":"gusty","n":1}',
        '{"temperature":6,"n":2,"when":{"at":[1,"x"]}}',
        '{"n":null}',
    ]


def test_what_the_first_data_do_not_have_is_an_error_and_never_left_out(stations, monkeypatch):
    for module in (arrow_output, columns):
        monkeypatch.setattr(module, "SAMPLE", 1)
        monkeypatch.setattr(columns, "_EACH_END", 0)
    with pytest.raises(
        InvalidInput, match=r"^2026/11\.jsonl, offset .* has data\.temp.* no column; nor for data\.when, data\.note\n"
    ) as caught:
        stations.to_arrow(sort="-reftime").read_all()
    said = re.findall(
        r"^Name all columns with columns \(--columns\); data.temperature as integer: (.*)$", caught.value.hint
    )[0]
    columns_of_all = column_types(said)
    assert columns_of_all == {
        **dict.fromkeys(
            ["reftime", "station", "name", *(f"data.{key}" for key in ("n", "temperature", "when", "note"))]
        ),
        "data.temperature": "integer",
    }
    for name, problem, kind in [
        (
            "data.n",
            "data.n is 2, and the type of its column is not known: the first data have no value there",
            "integer",
        ),
        ("data.temperature", "data.temperature is 5.7, not int64", "real"),
    ]:
        with pytest.raises(InvalidInput, match=re.escape(problem)) as caught:
            stations.to_arrow(sort="-reftime", columns=columns_of_all).read_all()
        assert f"; {name} as {kind}" in caught.value.hint
        columns_of_all = column_types(caught.value.hint.partition(": ")[2])
    table = stations.to_arrow(sort="-reftime", columns=columns_of_all).read_all()
    assert table["data.n"].to_pylist() == [None, 2, 1]
    assert table["data.temperature"].to_pylist() == [None, 6.0, 5.7]
    with pytest.raises(InvalidInput, match=r"data\.temperature is 5.7, not int64") as caught:
        stations.to_arrow(columns={"reftime": None, "data.temperature": "integer"}).read_all()
    assert caught.value.hint.endswith("data.temperature as real: reftime,data.temperature=real")
    assert stations.to_arrow(columns=["data.n"]).read_all()["data.n"].to_pylist() == [1, 2, None]


def test_undeclared_metadata_and_mixed_content_of_seg(create):
    dataset = create(format="seg", fields={"site": "text"})
    dataset.append(
        [
            Datum(T, {"site": "north", "sensor": 7}, {"a": 1}),
            Datum(T + HOUR, {"sensor": 8, "by": [1]}, b"\xff"),
        ]
    )
    table = dataset.to_arrow().read_all()
    assert table.schema.names == ["reftime", "site", "metadata.sensor", "metadata.by", "data"]
    assert table.to_pylist()[1] == {
        "reftime": T + HOUR,
        "site": None,
        "metadata.sensor": 8,
        "metadata.by": "[1]",
        "data": b"\xff",
    }
    assert table["data"].to_pylist()[0] == b'{"a":1}'
    assert dataset.to_arrow(columns=["metadata.sensor", "data.a"]).read_all().to_pydict() == {
        "metadata.sensor": [7, 8],
        "data.a": [1, None],
    }


def test_blobs_are_bytes(create):
    dataset = create(format="blob", fields={"site": "text"})
    dataset.append([Datum(T, {"site": "a", "camera": "x"}, b"\xff\xd8"), Datum(T + HOUR, {"site": "b"}, b"")])
    table = dataset.to_arrow().read_all()
    assert table["data"].type == pa.binary()
    assert table["data"].to_pylist() == [b"\xff\xd8", b""]
    assert table["metadata.camera"].to_pylist() == ["x", None]


def test_fields_with_names_of_other_columns_have_another_name(create):
    dataset = create(fields={"data": "text", "size": "integer"})
    dataset.append([Datum(T, {"data": "x", "size": 5}, {"a": 1})])
    assert dataset.to_arrow().read_all().to_pylist() == [{"reftime": T, "f_data": "x", "f_size": 5, "data.a": 1}]


@pytest.mark.parametrize("format", ["vm2", "jsonl", "seg", "blob"])
def test_a_table_of_nothing_has_columns(create, format):
    table = create(format=format, fields={"area": "text"}).to_arrow().read_all()
    assert table.num_rows == 0
    assert table.schema.names[:2] == ["reftime", "area"]


def test_the_columns_of_content_do_not_depend_on_the_answer(stations):
    full, empty, one = (stations.to_arrow(f"reftime: {when}").schema for when in ("=2026", "=2025", "=2026-11-20T01"))
    assert full == empty == one
    assert "data.temperature" in full.names
    readable = stations.to_arrow("reftime: =2025", damaged="skip").schema
    assert readable == full
    assert stations.to_arrow("reftime: =2025", columns=["data.temperature"]).schema.types == [pa.float64()]


def test_an_empty_table_has_the_columns_of_archived_data(stations):
    schema = stations.to_arrow().schema
    stations.archive(stations.first().location.segment)
    assert stations.count() == 3
    assert stations.to_arrow("reftime: =2025").schema == schema
    assert stations.to_arrow("reftime: =2025", damaged="skip").schema == schema


def test_a_table_needs_no_data_that_the_query_excludes(stations):
    stations.append([Datum(T + timedelta(days=40), {"station": 3}, {"wind": 2.5})])
    (stations.path / stations.first().location.segment).unlink()
    assert stations.to_arrow("reftime: >=2026-12").read_all().column("data.wind").to_pylist() == [2.5]


def test_archived_data_are_in_the_order_of_all_data(create, weather):
    weather.archive("2026/11-21.vm2")
    assert weather.info()["archives"] == ["last"]
    for options in ({}, {"sort": "reftime"}, {"sort": "-area,reftime", "limit": 60}, {"limit": 100}):
        assert weather.to_arrow(**options).read_all().to_pylist() == rows_of(weather, **options)
    table = weather.to_arrow(columns=["reftime", "segment"], sort="-reftime").read_all()
    assert table["segment"].to_pylist() == [datum.location.segment for datum in weather.query(sort="-reftime")]


def test_archived_data_are_merged_when_they_are_decoded(stations):
    stations.append([Datum(T + timedelta(days=40), {"station": 9}, {"n": 9})])
    stations.archive("2026/11.jsonl")
    found = stations.to_arrow(sort="-station", columns=["station", "data.n"]).read_all()
    assert found.to_pydict() == {"station": [9, 2, 1, None], "data.n": [9, 2, 1, None]}


@pytest.mark.check
def test_a_table_is_of_one_snapshot_and_frees_it_at_its_end(weather, open_files):
    wanted = rows_of(weather)
    reader = weather.to_arrow()
    weather.append([line(T - HOUR, 5)])
    weather.delete("area: VM2,900")
    weather.repack()
    assert reader.read_all().to_pylist() == wanted
    reader = weather.to_arrow()
    index = weather._access.current().index
    assert len(index.connections._borrowed) == 1
    del reader
    gc.collect()
    assert not index.connections._borrowed


def test_damage_is_an_error_and_never_a_shorter_table(weather):
    (weather.path / "2026/11-21.vm2").unlink()
    with pytest.raises(SegmentMissing):
        weather.to_arrow().read_all()
    with pytest.raises(Exception, match=r"11-21\.vm2 is in the index but not on disk"):
        pa.table(weather)


def test_other_libraries_read_a_dataset_itself(weather):
    assert pa.table(weather).to_pylist() == rows_of(weather)
    with ondisk.open(weather.path, read_only=True) as other:
        assert pa.RecordBatchReader.from_stream(other).read_all().num_rows == weather.count()


def test_polars_reads_a_dataset(weather):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert polars.DataFrame(weather).rows(named=True) == rows_of(weather)


def test_duckdb_reads_a_dataset_from_threads_of_its_own(weather):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect() as connection:
        connection.register("weather", weather.to_arrow())
        found = connection.sql("SELECT area, count(*) FROM weather GROUP BY area ORDER BY area").fetchall()
    assert found == [(value, count) for value, count in sorted(weather.summary().fields["area"].values)]


def test_without_pyarrow_it_is_said_what_to_install(weather):
    code = "import sys; sys.modules['pyarrow'] = None; import ondisk; ondisk.open(sys.argv[1]).to_arrow()"
    done = subprocess.run([sys.executable, "-c", code, str(weather.path)], capture_output=True, text=True)
    assert "StateError: pyarrow is not installed" in done.stderr
    assert "pip install 'ondisk[arrow]'" in done.stderr


def test_importing_ondisk_does_not_import_pyarrow():
    code = "import sys, ondisk, ondisk.cli.matching; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.check
@given(given_data=st.data())
@settings(max_examples=up_to(25))
def test_any_dataset_and_condition(given_data, tmp_path_factory):
    format = given_data.draw(st.sampled_from(["jsonl", "seg", "vm2"]))
    config = given_data.draw(strategies.configs(format))
    data = given_data.draw(st.lists(strategies.data(config), max_size=12))
    tree = given_data.draw(strategies.expressions(config.fields))
    with ondisk.create(tmp_path_factory.mktemp("any") / "it", config) as dataset:
        dataset.append(data)
        labels = {name: label for label, (name, _) in columns.index_columns(config).items() if name is not None}
        wanted = [
            {label: datum.reftime if name == "reftime" else datum.metadata.get(name) for name, label in labels.items()}
            for datum in dataset.query(tree)
        ]
        assert dataset.to_arrow(tree, columns=[*labels.values()]).read_all().to_pylist() == wanted
