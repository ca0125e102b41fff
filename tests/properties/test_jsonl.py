"""Properties of every line of JSON."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import EVERY_TYPE, same, strategies

from ondisk import DatasetConfig, Datum, json_values
from ondisk.datum import canonical, from_microseconds, microseconds
from ondisk.errors import FrameCorrupt, InvalidInput
from ondisk.formats.jsonl import JsonLines
from ondisk.segment import End

CONFIG = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": EVERY_TYPE, "max_depth": 20})
FORMAT = JsonLines(CONFIG)
contents = st.dictionaries(
    st.text(max_size=5).filter(lambda key: key not in {*EVERY_TYPE, "reftime"}), strategies.json_values()
)

nested = st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("k"), inner))
huge = st.builds(pow, st.just(10), st.just(5000))  # more digits than Python writes
odd = st.sampled_from(["\udc80\ud800", "\udcc3\udca9", {1: 2}, {"\ud800": 1}, {1, 2}, {"$float": "NaN"}, 1j])
foreign = st.text() | st.integers() | st.floats() | st.binary() | huge | odd


@given(strategies.json_values())
@example({"$bytes": {"$float": 1.5}})
@example([{"$float": None}])
def test_every_value_comes_back_from_json_as_it_was(value):
    assert same(json_values.from_json(json.loads(json_values.dump(json_values.to_json(value, 20)))), value)


@given(strategies.reftimes(), strategies.metadata(CONFIG.fields), contents)
def test_what_is_encoded_decodes_to_the_same(reftime, metadata, content):
    batch = FORMAT.encode([Datum(reftime, metadata, content)])
    assert batch.refused == []
    (payload,) = batch.payloads
    assert b"\n" not in payload
    assert same(FORMAT.decode(payload), content)
    stored = {name: canonical(value, CONFIG.fields[name]) for name, value in metadata.items()}
    assert (batch.reftimes, batch.metadata) == ([microseconds(reftime)], [stored])
    assert FORMAT.describe(payload) == (microseconds(reftime), stored)


@given(strategies.reftimes(), strategies.metadata(CONFIG.fields), contents)
def test_what_is_encoded_is_a_file_that_reads_back_byte_for_byte(reftime, metadata, content):
    batch = FORMAT.encode([Datum(reftime, metadata, content)] * 2)
    (again,) = FORMAT.parse(io.BytesIO(FORMAT.lay(batch.payloads, End()).content), 100)
    assert again == batch


@given(nested, st.integers(1, 6), st.sampled_from([None, b"x", float("nan"), "\udcff"]))
def test_what_is_too_deep_to_be_read_is_never_written(value, max_depth, leaf):
    config = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "max_depth": max_depth})
    format = JsonLines(config)
    batch = format.encode([Datum(from_microseconds(0), {}, {"value": value, "leaf": leaf})])
    if batch.payloads:
        assert same(format.decode(batch.payloads[0]), {"value": value, "leaf": leaf})
    else:
        assert batch.refused == [(0, "nested deeper than max_depth allows")]


signs = st.text(st.sampled_from('[]{}"\\,:x'), max_size=6)
bracketed = st.recursive(
    st.integers(0, 9) | signs, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(signs, inner, max_size=4)
)


def depth_of(value):
    if isinstance(value, dict):
        value = [*value.values()]
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(bracketed)
@example({'"\\': ["\\", '"', [{"[": "]"}]]})
def test_the_depth_of_a_line_is_that_of_its_value(value):
    line = b'{"reftime":"2026-11-20T06:00:00Z","v":%b}' % json.dumps(value).encode()
    depth = 1 + depth_of(value)
    for limit, refused in ((depth, 0), (depth - 1, 1)):
        if limit:
            config = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "max_depth": limit})
            assert len(JsonLines(config).parse_lines([line], 1).refused) == refused


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), max_size=5))
@example([b'{"reftime":"2026-11-20T06:00:00Z","station":' + b"9" * 5000 + b"}"])
@example([b'{"reftime":"2026-11-20T06:00:00Z","x":' + b"[" * 100_000])
@example([b'{"reftime":"2026-11-20T06:00:00Z","x":"\\ud800"}'])
@example([b'{"reftime":"2026-11-20T06:00:00Z","x":1e999}'])
@example([b'{"reftime":"2026-13-20T06:00:00Z"}', b"\xff", b"[]", b'"', b"{", b"null"])
@example([b'{"reftime":"2026-11-20T06:00:00+99:99"}', b'{"reftime":"0001-01-01T00:00:00+01:00"}'])
@example([b"\xef\xbb\xbf"])  # the mark that some editors begin a file with, and no line
def test_arbitrary_bytes_are_refused_line_by_line_and_never_raise(lines):
    batch = FORMAT.parse_lines(lines, 1)
    assert len(batch) == sum(1 for line in lines if line.removeprefix(b"\xef\xbb\xbf").strip())
    for payload in batch.payloads:
        FORMAT.decode(payload)
    for line in lines:
        if line not in batch.payloads:
            with pytest.raises(FrameCorrupt):
                FORMAT.describe(line)


@given(st.recursive(foreign, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_has_no_form_in_json_is_refused_and_never_written_as_something_else(value):
    try:
        line = json_values.dump(json_values.to_json(value, 20))
    except InvalidInput:
        return
    assert same(json_values.from_json(json.loads(line)), value)
