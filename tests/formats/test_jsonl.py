from __future__ import annotations

import io
import json
import time
from datetime import UTC, datetime

import pytest
from kit import EVERY_TYPE, same

import ondisk
from ondisk import DatasetConfig, Datum
from ondisk.datum import microseconds
from ondisk.errors import FrameCorrupt, LimitExceeded
from ondisk.formats.jsonl import JsonLines

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
REFTIME = b'{"reftime":"2026-11-20T06:00:00Z"'
PRINTED = REFTIME + b',"metadata":{},"data":{"x":1},"location":{"segment":"2026/11-20.jsonl","offset":0,"size":5}}'
"""As `query --json` prints a datum."""


def format_of(**values):
    return JsonLines(DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": EVERY_TYPE} | values))


def encoded(datum, **values):
    batch = format_of(**values).encode([datum])
    assert batch.refused == []
    return batch.payloads[0]


def refusal(datum, **values):
    batch = format_of(**values).encode([datum])
    assert batch.payloads == []
    return batch.refused[0][1]


def test_a_datum_is_one_line_of_reftime_fields_and_data():
    metadata = {
        "key": b"\0",
        "station": 5,
        "valid": True,
        "made": T.replace(microsecond=5),
        "product": "caf\u00e9",
        "level": 2,
    }
    line = encoded(Datum(T, metadata, {"wind": 3.4, "note": None}))
    assert line.decode() == (
        '{"reftime":"2026-11-20T06:00:00Z","station":5,"level":2.0,"product":"caf\u00e9","valid":true,'
        '"made":"2026-11-20T06:00:00.000005Z","key":{"$bytes":"AA=="},"wind":3.4,"note":null}'
    )
    reftime, read = format_of().describe(line)
    assert reftime == microseconds(T)
    assert read == {
        "key": b"\0",
        "station": 5,
        "valid": 1,
        "made": microseconds(T) + 5,
        "product": "caf\u00e9",
        "level": 2.0,
    }
    assert format_of().decode(line) == {"wind": 3.4, "note": None}


def test_a_datum_without_data_is_a_line_without_other_keys():
    assert encoded(Datum(T)) == REFTIME + b"}"
    assert format_of().decode(REFTIME + b"}") == {}


def test_null_and_none_are_the_same_as_missing():
    assert format_of().describe(REFTIME + b',"station":null}')[1] == {}
    assert encoded(Datum(T, {"station": None})) == REFTIME + b"}"


@pytest.mark.each
@pytest.mark.parametrize(
    ("datum", "reason"),
    [
        (Datum(T, {"colour": "red"}), "cannot store the metadata 'colour'"),
        (Datum(T, {"station": "5"}), "station: '5' is a text, the field is declared integer"),
        (Datum(T, {"station": True}), "station: True is a boolean"),
        (Datum(T, {"station": 2**63}), "does not fit into 64 bits"),
        (Datum(T, {"level": float("nan")}), "level: nan is not a number"),
        (Datum(T, {"product": "\ud800"}), "lone surrogate"),
        (Datum(T, {"made": datetime(2026, 11, 20)}), "made: timestamp"),
        (Datum(T, {}, b"line"), "a mapping, not bytes"),
        (Datum(T, {}, [1]), "a mapping, not list"),
        (Datum(T, {}, {"reftime": 1}), "contain the key 'reftime'"),
        (Datum(T, {}, {"station": 1}), "contain the key 'station'"),
        (Datum(T, {}, {1: 1}), "the key 1 is not a text"),
        (Datum(T, {}, {"x": {1, 2}}), "type set cannot be written as JSON"),
        (Datum(T, {}, {"x": {"$bytes": "YQ=="}}), "is ambiguous: JSON writes other values in this shape"),
        (Datum(T, {}, {"x": 10**5000}), "an integer has too many digits"),
    ],
)
def test_what_a_line_cannot_carry_is_refused_with_the_reason(datum, reason):
    assert reason in refusal(datum)
    batch = format_of().encode([Datum(T), datum, Datum(T)])
    assert [position for position, _ in batch.refused] == [1]
    assert len(batch.payloads) == 2


@pytest.mark.parametrize(
    "data",
    [
        {"$bytes": "YQ=="},
        {"$float": "NaN"},
        {"a": float("nan"), "b": [float("-inf"), b"\xff"]},
        {"x": "\udcff"},
        {"": {"": []}},
    ],
)
def test_data_come_back_as_they_were_also_where_they_look_like_shapes(data):
    assert same(format_of().decode(encoded(Datum(T, {}, data))), data)


@pytest.mark.each
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not valid JSON"),
        (b"no json", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", 'no "reftime"'),
        (b'{"reftime":5}', "reftime must be text"),
        (b'{"reftime":null}', 'no "reftime"'),
        (b'{"reftime":"2026-11-20"}', "reftime: '2026-11-20' is not a time such as"),
        (
            b'{"reftime":"2026-11-20T06:00:00"}',
            "reftime: '2026-11-20T06:00:00' is not a time such as 2026-11-20T06:00:00Z: append Z",
        ),
        (
            REFTIME + b',"made":"2026-11-20T06:00:00"}',
            "made: '2026-11-20T06:00:00' is not a time such as 2026-11-20T06:00:00Z: append Z",
        ),
        ((REFTIME + b"}").decode().encode("utf-16-be"), "not text; decompress it first, or save it as UTF-8"),
        (b'{"reftime":"2026-02-30T00:00:00Z"}', "impossible time"),
        (REFTIME + b"} x", "not valid JSON"),
        (REFTIME + b',"x":NaN}', "NaN is not valid JSON"),
        (REFTIME + b',"x":-Infinity}', "-Infinity is not valid JSON"),
        (REFTIME + b',"x":"\xff"}', "byte 40 is not valid UTF-8"),
        (REFTIME + b',"x":"\\ud800"}', "surrogate"),
        (REFTIME + b',"station":"5"}', "station: '5' is a text"),
        (REFTIME + b',"station":5.0}', "station: 5.0 is a real"),
        (REFTIME + b',"station":9223372036854775808}', "does not fit into 64 bits"),
        (REFTIME + b',"level":{"$float":"NaN"}}', "level: nan"),
        (REFTIME + b',"made":"yesterday"}', "made: 'yesterday' is not a time"),
        (REFTIME + b',"key":"YQ=="}', "key: 'YQ==' is a text"),
        (REFTIME + b',"x":' + b"9" * 5000 + b"}", "an integer has too many digits"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_the_reason(line, reason):
    batch = format_of().parse_lines([REFTIME + b"}", line or b"x", REFTIME + b"}"], 7)
    assert len(batch.payloads) == 2
    ((position, told),) = batch.refused
    assert position == 1
    assert told.startswith("line 8: ")
    assert reason in told
    with pytest.raises(FrameCorrupt, match="not a line of JSON"):
        format_of().describe(line)


def test_lines_from_outside_are_stored_as_they_came():
    lines = [
        b'  { "wind" : 1.50, "reftime":"2026-11-20T07:00:00+01:00" }  ',
        REFTIME + b',"$bytes":"\\u0041"}',
    ]
    (batch,) = format_of().parse(io.BytesIO(b"\n".join(lines)), 100)
    assert batch.payloads == lines
    assert batch.reftimes == [microseconds(T)] * 2
    assert format_of().decode(lines[0]) == {"wind": 1.5}


AMBIGUOUS = {
    REFTIME + b',"x":1,"x":2}': "the key 'x' occurs twice",
    REFTIME + b',"x":{"a":[{"b":1,"b":1}]}}': "the key 'b' occurs twice",
    REFTIME + b',"level":1e999}': 'level: the number is too large for a real; write {"$float": "+Inf"}',
    REFTIME + b',"level":-1e999}': "level: the number is too large for a real",
    PRINTED: "append what `query --data` prints",
    PRINTED.replace(b'{"ref', b'{"dataset":"a","ref'): "append what `query --data` prints",
}


@pytest.mark.parametrize("line", AMBIGUOUS)
def test_ambiguous_lines_are_refused_but_read_where_they_were_stored_before(tmp_path, line):
    batch = format_of().parse_lines([line], 1)
    assert batch.payloads == []
    assert AMBIGUOUS[line] in batch.refused[0][1]
    with ondisk.create(tmp_path / "d", {"format": "jsonl", "step": "daily", "fields": EVERY_TYPE}) as dataset:
        dataset.append([Datum(T)])
        (tmp_path / "d/2026/11-20.jsonl").write_bytes(line + b"\n")
        report = dataset.fix()
        assert (report.lost, len([*dataset.query()])) == (1, 1)  # the datum that was overwritten


@pytest.mark.check
def test_a_line_of_many_keys_is_refused_in_linear_time():
    keys = b"".join(b',"%d":0' % number for number in range(200_000))
    began = time.monotonic()
    assert "occurs twice" in format_of().parse_lines([REFTIME + keys + b',"7":1}'], 1).refused[0][1]
    assert time.monotonic() - began < 5


def test_fields_may_be_written_with_escapes_and_shapes():
    line = (
        REFTIME
        + b',"st\\u0061tion":5,"key":{"\\u0024bytes":"YQ=="},"level":{"$float":"+Inf"},"other":{"\\u0024bytes":"YQ=="}}'
    )
    assert format_of().describe(line)[1] == {"station": 5, "key": b"a", "level": float("inf")}
    assert format_of().decode(line) == {"other": b"a"}


@pytest.mark.parametrize(("depth", "fits"), [(2, True), (3, False)])
def test_nesting_is_counted_with_the_line_itself(depth, fits):
    value = json.loads("[" * depth + "]" * depth)
    line = REFTIME + b',"x":' + b"[" * depth + b"]" * depth + b"}"
    batch = format_of(max_depth=3).parse_lines([line], 1)
    assert (batch.payloads == [line]) is fits
    assert (format_of(max_depth=3).encode([Datum(T, {}, {"x": value})]).refused == []) is fits
    assert fits or "nested deeper than max_depth" in batch.refused[0][1]


def test_brackets_in_strings_do_not_nest():
    line = REFTIME + b',"x":"' + b"[{" * 100 + b'\\"[[[[[\\\\","y":[]}'
    assert format_of(max_depth=2).parse_lines([line], 1).payloads == [line]


@pytest.mark.parametrize("opening", [b"[", b"[]", b"[{}]", b'{"a":', b'"[', b'"\\', b'"', b'"["['])
def test_endless_nesting_and_endless_strings_are_refused_in_linear_time(opening):
    line = REFTIME + b',"x":' + opening * (4_000_000 // len(opening))
    began = time.process_time()
    batch = format_of(max_datum_size=len(line)).parse_lines([line], 1)
    assert len(batch.refused) == 1
    assert time.process_time() - began < 4  # 0.2 on a machine without other work


def test_a_line_longer_than_allowed_is_refused_whichever_way_it_comes():
    longest = len(REFTIME) + 10
    assert "more than max_datum_size" in refusal(Datum(T, {}, {"x": "a" * 10}), max_datum_size=longest)
    with pytest.raises(LimitExceeded, match="line 1"):
        list(format_of(max_datum_size=longest).parse(io.BytesIO(REFTIME + b',"x":"aaaaaaaaaa"}'), 10))


def test_blank_lines_are_no_data():
    (batch,) = format_of().parse(io.BytesIO(b"\n  \n" + REFTIME + b"}\n\t\n"), 10)
    assert len(batch) == 1


@pytest.mark.parametrize("line", [PRINTED.replace(b"{}", b'{},"x":1'), PRINTED.replace(b'"size":5', b'"height":5')])
def test_a_line_that_only_looks_like_one_of_query_json_is_data(line):
    assert format_of().parse_lines([line], 1).payloads == [line]


def test_every_key_is_metadata_or_data():
    assert not format_of().undeclared


def test_stored_lines_may_be_nested_deeper_than_lines_from_outside():
    line = b'{"reftime": "2026-11-20T06:00:00Z", "x": [[[[1]]]]}'
    assert format_of(max_depth=3).parse_lines([line], 1).payloads == []
    assert format_of(max_depth=3).parse_lines([line], 1, stored=True).payloads == [line]


def test_a_line_may_begin_with_any_number_of_byte_order_marks():
    line = b'{"reftime": "2026-11-20T06:00:00Z"}'
    assert format_of().parse_lines([b"\xef\xbb\xbf" * 5000 + line], 1).payloads == [line]
