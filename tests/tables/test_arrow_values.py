"""Data as a column: bytes, JSON, or what a schema says; what does not fit is refused, and nothing is changed."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

import pyarrow as pa
import pytest

from ondisk.errors import InvalidInput
from ondisk.tables.arrow_values import DataToArrow, ValuesToArrow, converted, sampled, to_data

TIME = pa.timestamp("us", "UTC")


def struct(**types):
    return pa.struct([*types.items()])


def made(kind, *data):
    return DataToArrow(kind).make(data).to_pylist()


def test_bytes_stay_bytes_and_the_rest_is_json():
    assert DataToArrow(pa.binary()).make([b"\xff", {"a": 1}, None]).to_pylist() == [b"\xff", b'{"a":1}', b"null"]


def test_json_has_the_shapes_of_the_command_line():
    column = DataToArrow(pa.string())
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
    for kind in (pa.string(), pa.binary()):
        column = DataToArrow(kind)
        alone = [column.make([each, None]).to_pylist()[0] for each in data]
        assert column.make(data).to_pylist() == alone


def test_a_struct_takes_its_keys_and_null_for_what_lacks():
    data = {"wind": 3, "note": "gusty", "other": 1}, {"note": None}, None
    assert made(struct(wind=pa.float64(), note=pa.string()), *data) == [
        {"wind": 3.0, "note": "gusty"},
        {"wind": None, "note": None},
        None,
    ]


def test_a_string_takes_all_as_json():
    assert made(struct(a=pa.string()), {"a": [1, {"b": True}]}, {"a": 5}, {"a": "\udcff"}) == [
        {"a": '[1,{"b":true}]'},
        {"a": "5"},
        {"a": '{"$text_bytes":"/w=="}'},
    ]


def test_nested_types_are_taken_apart():
    kind = struct(
        at=struct(x=pa.int32()),
        many=pa.list_(pa.float64()),
        named=pa.map_(pa.string(), pa.bool_()),
        when=TIME,
        raw=pa.binary(),
    )
    data = {"at": {"x": 1}, "many": [1, 2.5, None], "named": {"a": True}, "when": "2026-11-20T06:00:00Z", "raw": b"r"}
    [row] = made(kind, data)
    assert (row["at"], row["many"], row["raw"]) == ({"x": 1}, [1.0, 2.5, None], b"r")
    assert row["named"] == [("a", True)]
    assert row["when"].isoformat() == "2026-11-20T06:00:00+00:00"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 2**31),
        (pa.int64(), 2**63),
        (pa.int8(), 128),
        (pa.int32(), True),
        (pa.int32(), 1.0),
        (pa.float64(), "1"),
        (pa.float64(), 2**53 + 1),
        (pa.float32(), -(2**53) - 1),
        (pa.float64(), 10**400),
        (pa.bool_(), 1),
        (pa.binary(), "text"),
        (TIME, "yesterday"),
        (TIME, 5),
        (struct(b=pa.int32()), 5),
        (struct(b=pa.int32()), {"b": "x"}),
        (pa.list_(pa.int32()), {"b": 1}),
        (pa.map_(pa.string(), pa.int32()), [1]),
    ],
)
def test_a_value_of_another_type_is_refused(kind, value):
    with pytest.raises(InvalidInput) as caught:
        made(struct(a=kind), {}, {"a": value})
    assert caught.value.context["position"] == 1


def test_an_integer_that_a_real_would_round_is_named():
    with pytest.raises(InvalidInput, match=r"data\.x is 9007199254740993, which a double would round"):
        ValuesToArrow(pa.float64(), "data.x").make([1.5, 2**53 + 1])


@pytest.mark.parametrize("value", [2**24 + 1, 1e300, -1e39])
def test_a_number_that_a_float_cannot_be_is_named(value):
    with pytest.raises(InvalidInput, match=r"which a float would round"):
        ValuesToArrow(pa.float32(), "data.x").make([1.5, value])
    assert ValuesToArrow(pa.float32(), "data.x").make([2**24, 0.1, inf]).to_pylist()[0] == 2**24


def test_data_that_are_no_mapping_are_no_struct():
    with pytest.raises(InvalidInput, match=r"data is b'abc', not struct<a: int32>"):
        made(struct(a=pa.int32()), b"abc")


@pytest.mark.parametrize("kind", [pa.int64(), struct(a=pa.map_(pa.int32(), pa.int32()))])
def test_other_types_are_refused(kind):
    with pytest.raises(InvalidInput):
        DataToArrow(kind)


def test_what_was_read_is_written_back():
    values = [{"a": b"\xff", "b": [1.5, {"c": None}]}, b"bytes", {}]
    column = DataToArrow(pa.string()).make(values)
    assert converted(column, to_data(pa.string(), is_raw=False)) == (values, {})
    assert converted(pa.array(["é", None]), to_data(pa.string(), is_raw=True)) == (["é".encode(), None], {})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -5], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([-(2**53), 2.5, 2**60], pa.float64()),
        ([1, 2.5, 2**53 + 1], pa.string()),
        ([10**400, 2.5], pa.string()),
        ([0.5, None], pa.float64()),
        ([True, None], pa.bool_()),
        (["a", None], pa.string()),
        ([b"a"], pa.binary()),
        ([datetime(2026, 11, 20, tzinfo=UTC)], TIME),
        ([None], pa.string()),
        ([2**63], pa.string()),
        ([1, True], pa.string()),
        ([[1], "a", {"b": 1}], pa.string()),
    ],
)
def test_the_type_of_a_sample_holds_all_of_its_values(values, kind):
    assert sampled(values) == kind
    column = ValuesToArrow(kind, "x").make(values)
    assert column.type == kind
    assert column.null_count == values.count(None)
    if kind != pa.string():
        assert column.to_pylist() == values


def test_a_value_that_does_not_fit_is_named_with_its_position():
    with pytest.raises(InvalidInput, match=r"data\.x is 1.5, not int64") as caught:
        ValuesToArrow(pa.int64(), "data.x").make([1, None, 1.5])
    assert caught.value.context["position"] == 2
    assert "string takes any value" in caught.value.hint
    with pytest.raises(InvalidInput, match=r"data\.x is 9223372036854775808, not int64"):
        ValuesToArrow(pa.int64(), "data.x").make([2**63])
    assert ValuesToArrow(pa.string(), "x").make(["\udcff", "a"]).to_pylist() == ['{"$text_bytes":"/w=="}', "a"]
    with pytest.raises(InvalidInput, match=r"x cannot be decimal128\(2, 1\)"):
        ValuesToArrow(pa.decimal128(2, 1), "x")
