"""Data as a column: bytes, JSON, or what a schema says; what does not fit is refused, and nothing is changed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType

from ondisk.errors import InvalidInput
from ondisk.spark.data import DataColumn
from ondisk.spark.ddl import parse_struct


def made(schema, *data):
    return DataColumn(parse_struct(schema)).make(data).to_pylist()


def test_bytes_stay_bytes_and_the_rest_is_json():
    assert DataColumn(BinaryType()).make([b"\xff", {"a": 1}, None]).to_pylist() == [b"\xff", b'{"a":1}', b"null"]


def test_json_has_the_shapes_of_the_command_line():
    column = DataColumn(StringType())
    assert column.make([{"a": b"\xff", "é": None}, b"\xff"]).to_pylist() == [
        '{"a":{"$bytes":"/w=="},"é":null}',
        '{"$bytes":"/w=="}',
    ]
    assert column.make([{"$bytes": "YQ=="}]).to_pylist() == ['{"$bytes":"YQ=="}']


@pytest.mark.parametrize(
    "odd",
    [
        {"a": 1},
        {"a": b"\xff"},
        {"a": [{"b": float("nan")}]},
        {"a": "\udcff"},
        {"$bytes": "YQ=="},
        {"a": {"$float": 5}},
        {"é": '","'},
        {},
        None,
        b"raw",
    ],
)
def test_data_together_are_written_as_each_alone(odd):
    """Those that JSON holds as they are, are written at once."""
    data = [{"x": [1, 2.5, None, True, "a\n"]}, odd, {"x": {"y": -0.0}}]
    for kind in (StringType(), BinaryType()):
        column = DataColumn(kind)
        alone = [column.make([each, None]).to_pylist()[0] for each in data]
        assert column.make(data).to_pylist() == alone


def test_a_struct_takes_its_keys_and_null_for_what_lacks():
    data = {"wind": 3, "note": "gusty", "other": 1}, {"note": None}, None
    assert made("wind double, note string", *data) == [
        {"wind": 3.0, "note": "gusty"},
        {"wind": None, "note": None},
        None,
    ]


def test_a_string_takes_all_as_json():
    assert made("a string", {"a": [1, {"b": True}]}, {"a": 5}, {"a": "\udcff"}) == [
        {"a": '[1,{"b":true}]'},
        {"a": "5"},
        {"a": '{"$text_bytes":"/w=="}'},
    ]


def test_nested_types_are_taken_apart():
    schema = "at struct<x: int>, many array<double>, named map<string, boolean>, when timestamp, raw binary"
    data = {"at": {"x": 1}, "many": [1, 2.5, None], "named": {"a": True}, "when": "2026-11-20T06:00:00Z", "raw": b"r"}
    [row] = made(schema, data)
    assert (row["at"], row["many"], row["raw"]) == ({"x": 1}, [1.0, 2.5, None], b"r")
    assert row["named"] == [("a", True)]
    assert row["when"].isoformat() == "2026-11-20T06:00:00+00:00"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("a int", 2**31),
        ("a bigint", 2**63),
        ("a tinyint", 128),
        ("a int", True),
        ("a int", 1.0),
        ("a double", "1"),
        ("a boolean", 1),
        ("a binary", "text"),
        ("a timestamp", "yesterday"),
        ("a timestamp", 5),
        ("a struct<b: int>", 5),
        ("a struct<b: int>", {"b": "x"}),
        ("a array<int>", {"b": 1}),
        ("a map<string, int>", [1]),
    ],
)
def test_a_value_of_another_type_is_refused(schema, value):
    with pytest.raises(InvalidInput) as caught:
        made(schema, {}, {"a": value})
    assert caught.value.context["position"] == 1


def test_data_that_are_no_mapping_are_no_struct():
    with pytest.raises(InvalidInput, match=r"data is b'abc', which is no struct<a:int>"):
        made("a int", b"abc")


@pytest.mark.parametrize("kind", [LongType(), parse_struct("a map<int, int>")])
def test_other_types_are_refused(kind):
    with pytest.raises(InvalidInput):
        DataColumn(kind)
