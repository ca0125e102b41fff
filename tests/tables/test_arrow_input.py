"""Tables in: columns become reftime, metadata and content; what cannot be stored is refused with row, column, value."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st

import ondisk
from ondisk.datum import EPOCH, FieldType
from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.tables import arrow_input
from ondisk.tables.index_to_arrow import TYPES

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
STATIONS = {"format": "jsonl", "step": "daily", "fields": {"station": "integer", "level": "real", "name": "text"}}


@pytest.fixture
def stations(create):
    return create(**STATIONS)


def contents(dataset):
    return [(datum.reftime, dict(datum.metadata), datum.data) for datum in dataset.query()]


def times(*values, kind=TIME):
    return pa.array(values, kind)


def test_columns_become_reftime_metadata_and_content(stations):
    table = pa.table(
        {
            "when": times(T, T + timedelta(hours=1)),
            "Station": pa.array([5, None], pa.int32()),
            "level": pa.array([1, 2], pa.uint8()),
            "name": pa.array(["a", "b"], pa.large_string()).dictionary_encode(),
            "wind": pa.array([3.5, None], pa.float32()),
            "data.note": pa.array([None, "gusty"]),
            "many": pa.array([[1, None], None], pa.large_list(pa.int16())),
            "pairs": pa.array([None, [("k", 5), ("n", None)]], pa.map_(pa.string(), pa.int16())),
        }
    )
    result = stations.append_arrow(table, time="when")
    assert (result.imported, result.refused) == (2, 0)
    assert contents(stations) == [
        (T, {"station": 5, "level": 1.0, "name": "a"}, {"wind": 3.5, "many": [1, None]}),
        (T + timedelta(hours=1), {"level": 2.0, "name": "b"}, {"note": "gusty", "pairs": {"k": 5}}),
    ]


@pytest.mark.parametrize(
    ("array", "options", "expected"),
    [
        (pa.array([1_795_154_400], pa.timestamp("s", "Europe/Rome")), {}, T),
        (pa.array([1_795_154_400_123_456_789], pa.timestamp("ns", "UTC")), {}, T.replace(microsecond=123456)),
        (pa.array([datetime(2026, 11, 20, 7)], pa.timestamp("ms")), {"tz": "Europe/Rome"}, T),
        (pa.array([date(2026, 11, 20)]), {"tz": "-06:00"}, T),
        (pa.array(["2026-11-20T06:00:00Z"]), {}, T),
        (pa.array(["2026-11-20 07:00"]).dictionary_encode(), {"tz": "Europe/Rome"}, T),
        (pa.array(["20.11.2026 06h"]), {"time_format": "%d.%m.%Y %Hh", "tz": "UTC"}, T),
    ],
)
def test_times_are_of_any_type_of_time(stations, array, options, expected):
    assert stations.append_arrow(pa.table({"reftime": array}), **options).imported == 1
    assert stations.first().reftime == expected


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"when": times(T)}, {}, "there is no column 'reftime'; the columns are 'when'"),
        ({"reftime": pa.array([datetime(2026, 11, 20)])}, {}, "the times of the column 'reftime' have no zone"),
        ({"reftime": pa.array([5])}, {}, "the column 'reftime' is int64, not a time"),
        ({"reftime": times(T), "station": pa.array(["5"])}, {}, "'station' is string, the field is declared integer"),
        ({"reftime": times(T), "name": pa.array([5])}, {}, "'name' is int64, the field is declared text"),
        (
            {"reftime": times(T), "station": pa.array([5]), "STATION": pa.array([5])},
            {},
            "'station' and 'STATION' are both station",
        ),
        (
            {"reftime": times(T), "x": pa.array([5]), "data.x": pa.array([5])},
            {},
            "'x' and 'data.x' are both x",
        ),
        ({"reftime": times(T), "data": pa.array(["{}"]), "x": pa.array([5])}, {}, "data is the whole content, and x"),
        ({"reftime": times(T), "x": pa.array([timedelta(1)])}, {}, r"x cannot be duration\[us\]"),
        ({"reftime": times(T)}, {"tz": "Nowhere"}, "'Nowhere'"),
        ({"when": times(T), "reftime": times(T)}, {"time": "when"}, "a column of the content cannot be called reftime"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_before_anything_is(stations, table, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        stations.append_arrow(pa.table(table), **options)
    assert caught.value.hint
    assert stations.count() == 0


def test_rows_that_cannot_be_stored_are_refused_with_row_column_and_value(stations):
    table = pa.table(
        {
            "reftime": pa.array([T, None, 2**62, T, T, T], TIME),
            "station": pa.array([2**63, 1, 1, 2**63, 5, 6], pa.uint64()),
            "level": pa.array([1.5, 1.5, 1.5, 1.5, float("nan"), 2.5]),
        }
    )
    result = stations.append_arrow(table)
    assert (result.imported, result.refused) == (1, 5)
    assert result.refusals == [
        (0, "row 1: column 'station': 9223372036854775808 is not integer"),
        (1, "row 2: reftime is NULL"),
        (2, f"row 3: reftime is {2**62} µs from 1970, which is outside the years 1 to 9999"),
        (3, "row 4: column 'station': 9223372036854775808 is not integer"),
        (4, "row 5: level: nan is not a number that a declared real can contain"),
    ]
    local = pa.table({"reftime": pa.array([datetime(2026, 10, 25, 2, 30), datetime(2026, 3, 29, 2, 30), datetime.max])})
    result = stations.append_arrow(local, tz="Europe/Rome")
    assert [reason.partition(": 2026")[0] for _, reason in result.refusals][:2] == [
        "row 1: column 'reftime': '2026-10-25T02:30:00'",
        "row 2: column 'reftime': '2026-03-29T02:30:00'",
    ]
    result = stations.append_arrow(pa.table({"reftime": pa.array(["soon", "2026-11-20T06:00:00Z"])}))
    assert result.imported == 1
    assert result.refusals[0][1].startswith("row 1: column 'reftime': 'soon'")


def test_rows_are_counted_over_batches_and_batches_are_as_small_as_wanted(stations, monkeypatch):
    monkeypatch.setattr(arrow_input, "_TOGETHER", 7)
    values = [T + timedelta(seconds=number) if number % 10 else None for number in range(100)]
    reader = pa.table({"reftime": times(*values)}).to_reader(max_chunksize=9)
    result = stations.append_arrow(reader, batch_size=20, outcomes=True)
    assert (result.imported, result.refused) == (90, 10)
    assert [position for position, _ in result.refusals] == [*range(0, 100, 10)]
    assert [reason for _, reason in result.refusals][1] == "row 11: reftime is NULL"
    assert [each.status for each in result.outcomes[9:12]] == ["imported", "refused", "imported"]


def test_lines_of_vm2_and_bytes_are_the_column_data(create):
    weather = create(format="vm2", fields={"area": "text"})
    lines = pa.array([b"202611200600,5,227,1.2,,,000000000", b"nonsense"], pa.large_binary())
    result = weather.append_arrow(pa.table({"reftime": times(T, T), "data": lines, "area": ["VM2,5", "VM2,5"]}))
    assert (result.imported, result.refused) == (1, 1)
    assert result.refusals[0][1].startswith("row 2: 'nonsense'")
    with pytest.raises(InvalidInput, match="the column data is missing, the bytes of vm2; 'x' cannot be stored"):
        weather.append_arrow(pa.table({"reftime": times(T), "x": [1]}))
    photos = create("photos", format="blob", fields={"site": "text"})
    image = pa.array([b"\xff\xd8"], pa.binary(2))
    assert photos.append_arrow(pa.table({"reftime": times(T), "data": image, "site": ["n"], "metadata.by": ["me"]}))
    assert contents(photos) == [(T, {"site": "n", "by": "me"}, b"\xff\xd8")]


def test_dates_and_times_of_a_content_are_text(stations):
    table = pa.table(
        {
            "reftime": times(T),
            "day": [date(2026, 11, 20)],
            "clock": [time(6, 30)],
            "local": [datetime(2026, 11, 20, 6)],
            "moment": times(T),
        }
    )
    stations.append_arrow(table)
    assert stations.first().data == {
        "day": "2026-11-20",
        "clock": "06:30:00",
        "local": "2026-11-20T06:00:00",
        "moment": "2026-11-20T06:00:00Z",
    }


def test_what_is_no_table_is_refused(stations):
    for source in (5, "x.parquet", [1, 2]):
        with pytest.raises(InvalidInput, match="append_arrow takes an object with __arrow_c_stream__"):
            stations.append_arrow(source)
    with pytest.raises(InvalidInput, match="cannot be read"):
        stations.append_arrow(pa.chunked_array([[1]]))


def test_a_table_that_fails_keeps_what_was_stored_before(stations):
    schema = pa.schema([("reftime", TIME)])

    def batches():
        yield pa.record_batch([times(T)], schema=schema)
        raise OSError("the disk is gone")

    with pytest.raises(InvalidInput, match=r"the table cannot be read: .*the disk is gone") as caught:
        stations.append_arrow(pa.RecordBatchReader.from_batches(schema, batches()), batch_size=1)
    assert caught.value.context["result"].imported == stations.count() == 1


def test_texts_that_many_rows_share_do_not_fill_memory(create):
    dataset = create(format="jsonl", max_datum_size=1000)
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), pa.array(["x" * 2000]))
    table = pa.table({"reftime": times(*[T] * 1000), "text": shared})
    with pytest.raises(LimitExceeded, match="column 'text' has a value of 2000 bytes, more than max_datum_size, 1000"):
        dataset.append_arrow(table)


SHARED = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), pa.array(["x" * 2000]))


@pytest.mark.parametrize(
    "column",
    [
        pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), SHARED),
        pa.StructArray.from_arrays([SHARED], ["a"]),
        pa.MapArray.from_arrays(pa.array(range(1001), pa.int32()), pa.array(["a"] * 1000), SHARED),
        pa.FixedSizeListArray.from_arrays(pa.nulls(1_000_000), 1000),
    ],
    ids=["lists of shared texts", "structs of shared texts", "maps to shared texts", "lists of nothing"],
)
def test_a_small_table_does_not_become_a_large_one_in_memory(stations, monkeypatch, column):
    monkeypatch.setattr(arrow_input, "_DECODED", 100_000)
    table = pa.table({"reftime": times(*[T] * 1000), "x": column})
    with pytest.raises(LimitExceeded, match=r"column 'x' has .* bytes in the table, and would need .* when it is read"):
        stations.append_arrow(table)
    assert stations.count() == 0


@pytest.mark.parametrize(
    "columns",
    [{"x" * 1000: range(100)}, {"x": pa.DictionaryArray.from_arrays(pa.array([0] * 100), pa.array([[1] * 125]))}],
    ids=["long name", "shared list"],
)
def test_rows_that_become_large_are_read_a_few_at_a_time(stations, monkeypatch, columns):
    monkeypatch.setattr(arrow_input, "_DECODED", 10_000)
    read, encoded = arrow_input.TableToData.read, []

    def spy(self, rows, *rest):
        encoded.append(rows.num_rows)
        return read(self, rows, *rest)

    monkeypatch.setattr(arrow_input.TableToData, "read", spy)
    stations.append_arrow(pa.table({"reftime": times(*[T] * 100), **columns}))
    assert (sum(encoded), max(encoded) < 11) == (100, True)


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_tables_of_other_libraries_are_stored(stations, library):
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    rows = {"reftime": [T, T], "station": [5, 6], "wind": [3.5, None]}
    if library == "duckdb":
        with module.connect() as connection:
            connection.register("rows", pa.table(rows))
            assert stations.append_arrow(connection.sql("SELECT * FROM rows")).imported == 2
    else:
        assert stations.append_arrow(module.DataFrame(rows)).imported == 2
    assert contents(stations) == [(T, {"station": 5}, {"wind": 3.5}), (T, {"station": 6}, {})]


def categories(views, indices):
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.uint32()), views)


def test_categories_of_polars_are_texts(stations):
    views = pa.array(["x", "a", "bc"], pa.string_view())[1:]
    assert stations.append_arrow(pa.table({"reftime": times(T, T), "note": categories(views, [1, None])})).imported == 2
    assert contents(stations) == [(T, {}, {"note": "bc"}), (T, {}, {})]


def test_categories_that_share_a_text_are_refused_before_each_gets_a_copy(stations):
    view = (10_000).to_bytes(4, "little") + b"xxxx" + bytes(8)
    views = pa.Array.from_buffers(
        pa.string_view(), 1 << 16, [None, pa.py_buffer(view * (1 << 16)), pa.py_buffer(b"x" * 10_000)]
    )
    with pytest.raises(LimitExceeded, match="categories of"):
        stations.append_arrow(pa.table({"reftime": times(T), "note": categories(views, [1])}))


def test_a_dataset_is_a_table_for_another_one(stations, create):
    stations.append_arrow(pa.table({"reftime": times(T), "station": [5], "note": ["x"]}))
    other = create("other", **STATIONS)
    assert other.append_arrow(stations).imported == 1
    assert contents(other) == contents(stations)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
VALUES = {
    "integer": st.integers(-(2**63), 2**63 - 1),
    "real": st.floats(allow_nan=False),
    "text": TEXTS,
    "boolean": st.booleans(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "bytes": st.binary(max_size=4),
}
LISTS = pa.list_(pa.struct([("x", pa.float64()), ("y", pa.string())]))
CONTENT = {
    **{f"data.{kind}": (TYPES[FieldType(kind)], values) for kind, values in VALUES.items()},
    "data.list": (
        LISTS,
        st.lists(st.fixed_dictionaries({"x": st.floats(allow_nan=False), "y": st.none() | TEXTS}), max_size=2),
    ),
}


@st.composite
def tables(draw, format):
    """Draw a table, and the configuration of a dataset for it."""
    fields = {f"f{number}": kind for number, kind in enumerate(draw(st.lists(st.sampled_from([*VALUES]), max_size=3)))}
    columns = {name: (TYPES[FieldType(kind)], st.none() | VALUES[kind]) for name, kind in fields.items()}
    for name in draw(st.lists(st.sampled_from([*CONTENT]), unique=True, max_size=4)):
        columns[name] = (CONTENT[name][0], st.none() | CONTENT[name][1])
    count = draw(st.integers(0, 5))
    moments = st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1), timezones=st.just(UTC))  # as seg holds them
    reftimes = sorted(draw(st.lists(moments, min_size=count, max_size=count)))
    arrays = {"reftime": times(*reftimes)}
    for name, (kind, values) in columns.items():
        arrays[name] = pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind)
    return pa.table(arrays), {"format": format, "step": "yearly", "fields": fields}


@pytest.mark.check
@pytest.mark.parametrize("format", ["jsonl", "seg"])
@given(data=st.data())
@settings(max_examples=up_to(30))
def test_any_table_comes_back(format, data, tmp_path_factory):
    table, config = data.draw(tables(format))
    with ondisk.create(tmp_path_factory.mktemp("any") / "it", config) as dataset:
        result = dataset.append_arrow(table)
        assert (result.imported, result.refused) == (table.num_rows, 0)
        assert dataset.to_arrow(columns=table.schema).read_all().equals(table)


def test_times_of_int96_are_those_of_the_file(create, tmp_path):
    moments = [datetime(1, 1, 1), datetime(2026, 11, 20, 6), datetime(9999, 12, 31, 23, 59, 59, 999999)]
    column = times(*moments, kind=pa.timestamp("us"))
    pq.write_table(
        pa.table({"reftime": column, "t": column}), tmp_path / "t.parquet", use_deprecated_int96_timestamps=True
    )
    dataset = create(format="jsonl", step="yearly")
    assert dataset.append_file(tmp_path / "t.parquet", tz="UTC").imported == 3
    assert [datum.reftime.replace(tzinfo=None) for datum in dataset.query()] == moments
    assert [datum.data["t"][:4] for datum in dataset.query()] == ["0001", "2026", "9999"]


@pytest.mark.parametrize("kind", [pa.list_(pa.timestamp("ms", "UTC")), pa.struct([("a", pa.timestamp("s", "UTC"))])])
def test_a_nested_time_that_is_out_of_range_is_refused(create, kind):
    value = [2**63 - 1] if pa.types.is_list(kind) else {"a": 2**62 + 1000}
    with pytest.raises(InvalidInput, match="out of bounds timestamp"):
        create().append_arrow(pa.table({"reftime": times(T), "s": pa.array([value], kind)}))


@pytest.mark.parametrize("column", [
    pa.array(['{"a": 1, "a": 2}']),
    pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
])  # fmt: skip
def test_data_with_a_key_twice_are_refused(create, column):
    result = create().append_arrow(pa.table({"reftime": times(T), "data": column}))
    assert "the key 'a' occurs twice" in result.refusals[0][1]


def test_a_struct_with_two_fields_of_one_name_is_refused(create):
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(InvalidInput, match="data has two fields of one name: a, a"):
        create().append_arrow(pa.table({"reftime": times(T), "data": column}))


def test_nanoseconds_before_1970_are_cut_off_as_those_after_it(create):
    dataset = create(format="seg", step="yearly")
    moments = [-1, -1_000_000_001_500, 1_999, -1_000]
    table = pa.table({"reftime": pa.array(moments, pa.timestamp("ns", "UTC")), "n": range(4)})
    dataset.append_arrow(table)
    expected = sorted(EPOCH + timedelta(microseconds=each // 1000) for each in moments)
    assert [each.reftime for each in dataset.query()] == expected
