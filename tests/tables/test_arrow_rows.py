"""Rows of Arrow as data: what is stored is what the same data as objects are, whichever way they take."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk import Datum
from ondisk.config import DatasetConfig
from ondisk.formats import find
from ondisk.table_options import TableOptions
from ondisk.tables.arrow_input import TableToData

TIME = pa.timestamp("us", "UTC")
FIELDS = {"station": "integer", "level": "real", "name": "text", "made": "timestamp", "key": "bytes", "on": "boolean"}
CONTENT = pa.struct(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ('a "key"\n', pa.string()),
        ("on", pa.bool_()),
        ("raw", pa.binary()),
        ("at", TIME),
        ("many", pa.list_(pa.struct([("y", pa.float64()), ("z", pa.string())]))),
    ]
)
TIMES = st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(['"', "\\", "\n", "{}", '{"$bytes":""}'])
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.0, 1e16, 1e-5])


def optional(values):
    return st.none() | values


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "reftime": TIMES,
            "station": optional(st.integers(-(2**63), 2**63 - 1)),
            "level": optional(st.floats(allow_nan=False)),
            "name": optional(TEXTS),
            "made": optional(TIMES),
            "key": optional(st.binary(max_size=3)),
            "on": optional(st.booleans()),
            "data": optional(
                st.fixed_dictionaries(
                    {
                        "n": optional(st.integers(-(2**63), 2**63 - 1)),
                        "x": optional(FLOATS),
                        'a "key"\n': optional(TEXTS),
                        "on": optional(st.booleans()),
                        "raw": optional(st.binary(max_size=3)),
                        "at": optional(TIMES),
                        "many": optional(
                            st.lists(st.fixed_dictionaries({"y": optional(FLOATS), "z": optional(TEXTS)}), max_size=2)
                        ),
                    }
                )
            ),
        }
    ),
    max_size=6,
)
KINDS = {"station": pa.int64(), "level": pa.float64(), "name": pa.string(), "made": TIME, "key": pa.binary()}
SCHEMA = pa.schema([("reftime", TIME), *KINDS.items(), ("on", pa.bool_()), ("data", CONTENT)])


def encoded(rows, format):
    return TableToData(rows.schema, format.config, format, TableOptions()).read(rows, format).encode()


def as_data(row):
    metadata = {name: row[name] for name in FIELDS if row[name] is not None}

    def text(time):
        return time.isoformat().replace("+00:00", "Z")

    data = None
    if row["data"] is not None:
        data = {key: row["data"][key] for key in CONTENT.names if row["data"].get(key) is not None}
        if "at" in data:
            data["at"] = text(data["at"])
        if "many" in data:
            data["many"] = [{key: each[key] for key in ("y", "z") if each[key] is not None} for each in data["many"]]
    return Datum(row["reftime"], metadata, data)


@pytest.mark.parametrize("format", ["jsonl", "seg"])
@given(rows=ROWS)
def test_rows_are_stored_as_the_same_data_are(format, rows):
    made = find(format)(DatasetConfig.from_mapping({"format": format, "step": "daily", "fields": FIELDS}))
    keys = [key for key in CONTENT.names if key != "on"]  # a declared field of this name
    kind = pa.struct([CONTENT.field(key) for key in keys])
    for row in rows:
        if row["data"] is not None:
            row["data"].pop("on")
    schema = SCHEMA.set(SCHEMA.get_field_index("data"), pa.field("data", kind))
    found = encoded(pa.RecordBatch.from_pylist(rows, schema), made)
    wanted = made.encode([as_data(row) for row in rows])
    assert found.payloads == wanted.payloads
    assert found.reftimes == wanted.reftimes
    assert [*map(dict, found.metadata)] == [*map(dict, wanted.metadata)]
    assert found.refused == wanted.refused


def test_rows_that_cannot_be_data_are_refused_alone():
    made = find("jsonl")(DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": {"level": "real"}}))
    time = datetime(2026, 11, 20, tzinfo=UTC)
    rows = pa.record_batch(
        {
            "reftime": pa.array([time, None, 2**62, time, time], TIME),
            "level": pa.array([1.5, 1.5, 1.5, float("nan"), 2.5]),
            "data": pa.array([{"a": 1}, None, None, {"a": 2}, {"a": 3}], pa.struct([("a", pa.int64())])),
        }
    )
    batch = encoded(rows, made)
    assert batch.payloads == [
        b'{"reftime":"2026-11-20T00:00:00Z","level":1.5,"a":1}',
        b'{"reftime":"2026-11-20T00:00:00Z","level":2.5,"a":3}',
    ]
    assert batch.refused == [
        (1, "reftime is NULL"),
        (2, f"reftime is {2**62} µs from 1970, which is outside the years 1 to 9999"),
        (3, "level: nan is not a number that a declared real can contain"),
    ]


def test_rows_longer_than_a_datum_may_be_and_texts_that_are_no_json_are_refused():
    config = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "max_datum_size": 100})
    made = find("jsonl")(config)
    time = datetime(2026, 11, 20, tzinfo=UTC)
    rows = pa.record_batch({"reftime": pa.array([time] * 2, TIME), "data": pa.array([{"a": "x" * 90}, {"a": "x"}])})
    batch = encoded(rows, made)
    assert (len(batch.payloads), batch.refused) == (1, [(0, "131 bytes are more than max_datum_size, 100")])
    rows = pa.record_batch({"reftime": pa.array([time] * 2, TIME), "data": pa.array(["[1", '{"a":1}'])})
    batch = encoded(rows, made)
    assert len(batch.payloads) == 1
    assert batch.refused[0][1].startswith("data '[1': not JSON")
