"""Data as a column: bytes, JSON, or what a schema says; what does not fit is refused, and nothing is changed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from ondisk.errors import InvalidInput
from ondisk.spark.data import DataToArrow


def struct(**types):
    """Make a struct; types are Spark's, or their names in its JSON."""
    kind = StructType()
    for name, each in types.items():
        kind.add(name, each)
    return kind


def made(kind, *data):
    return DataToArrow(kind).make(data).to_pylist()


def test_bytes_stay_bytes_and_the_rest_is_json():
    assert DataToArrow(BinaryType()).make([b"\xff", {"a": 1}, None]).to_pylist() == [b"\xff", b'{"a":1}', b"null"]


def test_json_has_the_shapes_of_the_command_line():
    column = DataToArrow(StringType())
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
        column = DataToArrow(kind)
        alone = [column.make([each, None]).to_pylist()[0] for each in data]
        assert column.make(data).to_pylist() == alone


def test_a_struct_takes_its_keys_and_null_for_what_lacks():
    data = {"wind": 3, "note": "gusty", "other": 1}, {"note": None}, None
    assert made(struct(wind="double", note="string"), *data) == [
        {"wind": 3.0, "note": "gusty"},
        {"wind": None, "note": None},
        None,
    ]


def test_a_string_takes_all_as_json():
    assert made(struct(a="string"), {"a": [1, {"b": True}]}, {"a": 5}, {"a": "\udcff"}) == [
        {"a": '[1,{"b":true}]'},
        {"a": "5"},
        {"a": '{"$text_bytes":"/w=="}'},
    ]


def test_nested_types_are_taken_apart():
    kind = struct(
        at=struct(x="integer"),
        many=ArrayType(DoubleType()),
        named=MapType(StringType(), BooleanType()),
        when="timestamp",
        raw="binary",
    )
    data = {"at": {"x": 1}, "many": [1, 2.5, None], "named": {"a": True}, "when": "2026-11-20T06:00:00Z", "raw": b"r"}
    [row] = made(kind, data)
    assert (row["at"], row["many"], row["raw"]) == ({"x": 1}, [1.0, 2.5, None], b"r")
    assert row["named"] == [("a", True)]
    assert row["when"].isoformat() == "2026-11-20T06:00:00+00:00"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", 2**31),
        ("long", 2**63),
        ("byte", 128),
        ("integer", True),
        ("integer", 1.0),
        ("double", "1"),
        ("boolean", 1),
        ("binary", "text"),
        ("timestamp", "yesterday"),
        ("timestamp", 5),
        (struct(b="integer"), 5),
        (struct(b="integer"), {"b": "x"}),
        (ArrayType(IntegerType()), {"b": 1}),
        (MapType(StringType(), IntegerType()), [1]),
    ],
)
def test_a_value_of_another_type_is_refused(kind, value):
    with pytest.raises(InvalidInput) as caught:
        made(struct(a=kind), {}, {"a": value})
    assert caught.value.context["position"] == 1


def test_data_that_are_no_mapping_are_no_struct():
    with pytest.raises(InvalidInput, match=r"data is b'abc', not struct<a:int>"):
        made(struct(a="integer"), b"abc")


@pytest.mark.parametrize("kind", [LongType(), struct(a=MapType(IntegerType(), IntegerType()))])
def test_other_types_are_refused(kind):
    with pytest.raises(InvalidInput):
        DataToArrow(kind)
