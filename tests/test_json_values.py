from __future__ import annotations

import json
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from kit import same

from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.json_values import dump, format_time, from_json, parse_time, to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        (True, b"true"),
        (2**70, b"1180591620717411303424"),
        (-0.0, b"-0.0"),
        (1.5, b"1.5"),
        (float("nan"), b'{"$float":"NaN"}'),
        (float("inf"), b'{"$float":"+Inf"}'),
        (float("-inf"), b'{"$float":"-Inf"}'),
        (b"\x00\xff", b'{"$bytes":"AP8="}'),
        (b"", b'{"$bytes":""}'),
        ("a\xff".encode("latin-1").decode(errors="surrogateescape"), b'{"$text_bytes":"Yf8="}'),
        ("caf\u00e9\n\0", '"caf\u00e9\\n\\u0000"'.encode()),
        ([1, [b"a"]], b'[1,[{"$bytes":"YQ=="}]]'),
        ({"a": {"b": float("nan")}}, b'{"a":{"b":{"$float":"NaN"}}}'),
        ({"$bytes": "YQ==", "b": 1}, b'{"$bytes":"YQ==","b":1}'),
        ({"$bytes": 5}, b'{"$bytes":5}'),
    ],
)
def test_values_have_the_shapes_that_are_promised_to_scripts(value, text):
    assert dump(to_json(value, 64)) == text
    assert same(from_json(json.loads(text)), value)


def test_any_mapping_and_a_tuple_are_written_as_json_objects_and_arrays():
    assert to_json(MappingProxyType({"a": (1, 2)}), 64) == {"a": [1, 2]}


@pytest.mark.parametrize(
    "value",
    [
        {1},
        1j,
        object(),
        {1: 2},
        {None: 1},
        {"\udcff": 1},
        {"a": [{2: 3}]},
        "\ud800",
        "\udcc3\udca9",
        {"$bytes": "YQ=="},
        {"$float": "NaN"},
        {"$text_bytes": "YQ=="},
        bytearray(b"a"),
    ],
)
def test_a_value_that_would_not_be_restored_is_refused(value):
    with pytest.raises(InvalidInput):
        to_json(value, 64)


@pytest.mark.parametrize(
    "value",
    [
        {"$float": "nan"},
        {"$bytes": "no base64!"},
        {"$bytes": "YQ"},
        {"$bytes": ["YQ=="]},
        {"$text_bytes": None},
        {"$other": "x"},
    ],
)
def test_a_mapping_that_is_not_a_valid_shape_stays_a_mapping(value):
    assert from_json(value) == value


def test_a_number_of_more_digits_than_python_writes_is_refused():
    with pytest.raises(InvalidInput, match="too many digits"):
        dump(10**5000)


@pytest.mark.parametrize("value", [[], {}, b"a", float("nan"), "\udcff"])
def test_depth_counts_mappings_lists_and_shapes(value):
    assert to_json([[value]], 3)
    with pytest.raises(LimitExceeded, match="max_depth"):
        to_json([[value]], 2)


def test_depth_is_refused_before_python_reaches_its_recursion_limit():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(LimitExceeded):
        to_json(value, 64)
    while value:  # free it level by level: freeing it at once would recurse
        value = value.pop()


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-20T06:00:00Z", datetime(2026, 11, 20, 6, tzinfo=UTC)),
        ("2026-11-20 06:00:00z", datetime(2026, 11, 20, 6, tzinfo=UTC)),
        ("2026-11-20t06:00:00.5Z", datetime(2026, 11, 20, 6, 0, 0, 500_000, UTC)),
        ("2026-11-20T06:00:00.123456789Z", datetime(2026, 11, 20, 6, 0, 0, 123_456, UTC)),
        ("2026-11-20T06:00:00+05:30", datetime(2026, 11, 20, 0, 30, tzinfo=UTC)),
        ("2026-11-20T06:00:00-00:01", datetime(2026, 11, 20, 6, 1, tzinfo=UTC)),
        ("1969-12-31T23:59:59.999999Z", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
    ],
)
def test_times_are_read_as_rfc_3339_says(text, time):
    assert parse_time(text) == (time - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-20",
        "2026-11-20T06:00:00",
        "2026-11-20T06:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-20T24:00:00Z",
        "2026-11-20T06:00:60Z",
        "2026-11-20T06:00:00.Z",
        "2026-11-20T06:00:00+25:00",
        "2026-11-20T06:00:00Z ",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "2026-11-20T06:00:00.1234567890Z",
        "\u0662026-11-20T06:00:00Z",
    ],
)
def test_a_text_that_is_not_a_time_with_a_zone_is_refused(text):
    with pytest.raises(InvalidInput, match=r"not a time|impossible"):
        parse_time(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "1970-01-01T00:00:00Z"), (-1, "1969-12-31T23:59:59.999999Z"), (1, "1970-01-01T00:00:00.000001Z")],
)
def test_a_fraction_is_written_only_if_it_is_not_zero(count, text):
    assert format_time(count) == text
    assert parse_time(text) == count
