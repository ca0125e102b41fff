"""Every file written by Beats is read as its `expected.json` says, and no flipped bit is read as data."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from kit import same

from ondisk import json_values, keys
from ondisk.config import DatasetConfig
from ondisk.errors import AuthenticationFailed, InvalidInput, KeyMissing, OndiskError
from ondisk.formats.diskqueue import header, payload
from ondisk.formats.diskqueue.payload import Event
from ondisk.formats.diskqueue.seg import Seg
from ondisk.keys import Key, KeyRing

from . import beats_reader, segments

GOLDEN = Path(__file__).parents[2] / "golden" / "diskqueue"
VARIANTS = ["v0", "v1", "v2-plain", "v2-lz4", "v2-pb", "v2-lz4-pb-late"]
COMPRESSED = ("v2-lz4", "v2-lz4-pb-late")
ALL = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
ALL_FILES = [(variant, path.name) for variant in ALL for path in sorted((GOLDEN / variant).glob("*.seg"))]
SEG = Seg(DatasetConfig.from_mapping({"step": "daily"}))
FILES = [(variant, path.name) for variant in VARIANTS for path in sorted((GOLDEN / variant).glob("*.seg"))]

# What the bytes of 15.seg say: Beats misreads event 0 and stops at event 6 (see the README).
_NEGATIVE = {"a": -128, "b": -129, "c": -255, "d": -256, "e": -32769, "f": -65536, "g": -2147483649,
             "h": -4294967296, "i": -4294967297, "j": -200, "k": -70000, "q": "negative ints"}  # fmt: skip
_EMPTY_KEY = [{"q": "empty key", "": 1}, {"q": "after empty key"}]
_TORN = {"5.seg", "6.seg", "7.seg"}
_FLIPPED = {"10.seg", "11.seg", "13.seg"}


@pytest.fixture
def key_of_beats():
    keys.use(KeyRing([Key(7, b"x" * 16), Key(1, b"keykeykeykeykeyk")]))
    yield
    keys.use(None)


@cache
def expectations(variant):
    return json.loads((GOLDEN / variant / "expected.json").read_text(encoding="utf-8"))["files"]


def expected_events(variant, name):
    """Return the events of the undamaged file."""
    file = expectations(variant)[name]
    if "events" not in file:
        file = expectations(variant)["2.seg"]
    events = [*map(_event, file["events"])]
    if name == "15.seg":
        events[0] = events[0]._replace(fields=_NEGATIVE)
        events += [Event(events[0].timestamp + 6 + n, 0, {}, fields) for n, fields in enumerate(_EMPTY_KEY)]
    return events


def _event(event):
    fields = _with_times(json_values.from_json(event["fields"] or {}))
    if "timestamp_ns" in event:
        return Event(event["timestamp_ns"], event["flags"], json_values.from_json(event["meta"] or {}), fields)
    seconds, nanos = event["timestamp"]["$timestamp"]
    address = {name: event[name] for name in ("source", "data_stream") if event[name]}
    return Event(seconds * 10**9 + nanos, 0, {**json_values.from_json(event["metadata"] or {}), **address}, fields)


def _with_times(value):
    """Turn the timestamps in fields of protobuf into text."""
    if isinstance(value, list):
        return [*map(_with_times, value)]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"$timestamp"}:
        return {key: _with_times(each) for key, each in value.items()}
    seconds, nanos = value["$timestamp"]
    fraction = f".{nanos:09}".rstrip("0") if nanos else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def same_events(events, others):
    return same([list(event) for event in events], [list(event) for event in others])


def test_all_variants_are_here():
    assert len(FILES) == 69
    assert (len(ALL), len(ALL_FILES)) == (13, 152)


@pytest.mark.parametrize(("variant", "name"), FILES)
def test_a_file_of_beats_reads_to_what_it_holds(variant, name):
    result = segments.read((GOLDEN / variant / name).read_bytes())
    file, expected = expectations(variant)[name], expected_events(variant, name)
    count = len(result.events)
    assert (result.header.version, result.header.frame_count) == (file["version"], file.get("header_frame_count", 0))
    assert same_events(result.events, expected[:count])
    assert count >= file["frames_mode"]["n"]
    if "frame_offsets" in file:
        assert result.offsets[: len(file["frame_offsets"])] == [offset for offset, _ in file["frame_offsets"]]
    # In LZ4, 5.seg lacks only a part of the content checksum: no damage.
    damaged = name in _FLIPPED or (name in _TORN and (name != "5.seg" or variant not in COMPRESSED))
    assert (result.damage is not None) == damaged
    if not damaged and name != "8.seg":  # which ends before the last frame or block
        assert count == len(expected)


def test_every_whole_block_before_damage_is_read():
    """Compare with the result of Beats' own LZ4 reader; block 1 of 11.seg is damaged, block 1 of 10.seg reads wrong."""
    read = {
        name: len(segments.read((GOLDEN / "v2-lz4" / name).read_bytes()).events)
        for variant, name in FILES
        if variant == "v2-lz4"
    }
    assert {name: read[name] for name in ("6.seg", "7.seg", "8.seg", "10.seg", "11.seg", "13.seg")} == {
        "6.seg": 15, "7.seg": 15, "8.seg": 15, "10.seg": 3, "11.seg": 1, "13.seg": 0,
    }  # fmt: skip


def read_by_the_format(variant, name, format=SEG):
    """Return all events of a file, their logical offsets, and whether anything is damaged."""
    frames = format.frames(io.BytesIO((GOLDEN / variant / name).read_bytes()))
    events, offsets, damaged = [], [], False
    while True:
        for scanned in frames:
            events += payload.decode(scanned.payloads).one_by_one()
            offsets += scanned.offsets
        if frames.damage is None:
            return events, offsets, damaged
        damaged = True
        if not frames.skip():
            return events, offsets, damaged


@pytest.mark.parametrize(("variant", "name"), ALL_FILES)
def test_a_file_of_every_variant_is_read_by_the_format_and_past_damage(variant, name, key_of_beats):
    events, offsets, damaged = read_by_the_format(variant, name)
    file, expected = expectations(variant)[name], expected_events(variant, name)
    left = iter(expected)
    assert all(any(same_events([event], [other]) for other in left) for event in events), "in order, none is wrong"
    assert len(events) >= file["frames_mode"]["n"]
    if "frame_offsets" in file and name != "15.seg":
        assert offsets == [offset for offset, _ in file["frame_offsets"]]
    compressed = variant.endswith(("lz4", "stream", "late"))
    assert damaged == (name in _FLIPPED or (name in _TORN and not (name == "5.seg" and compressed)))
    if name in _FLIPPED and not compressed:
        assert len(events) == len(expected) - 1
    if not damaged and name != "8.seg":
        assert len(events) == len(expected)


@pytest.mark.parametrize("variant", [variant for variant in ALL if "draft" in variant or "-enc" in variant])
def test_an_encrypted_file_of_beats_is_not_read_without_its_key(variant):
    for ring in (KeyRing(), KeyRing([Key(1, b"x" * 16)])):
        keys.use(ring)
        try:
            with pytest.raises((KeyMissing, AuthenticationFailed, InvalidInput), match="key"):
                read_by_the_format(variant, "1.seg")
        finally:
            keys.use(None)


@pytest.mark.parametrize("variant", ["v2-plain", "v2-lz4"])
def test_the_strict_reader_of_these_tests_reads_them_as_beats_does(variant):
    segment = (GOLDEN / variant / "2.seg").read_bytes()
    assert same_events(beats_reader.read(segment), expected_events(variant, "2.seg"))
    payloads = beats_reader.frames((GOLDEN / "v2-plain" / "15.seg").read_bytes()[12:])
    misread = expectations("v2-plain")["15.seg"]["events"][0]["fields"]
    assert beats_reader.event(payloads[0])[3] == misread
    with pytest.raises(beats_reader.BeatsError, match="empty"):
        beats_reader.event(payloads[6])


SMALL = [
    [Event(1_600_000_000_000_000_000, 0, {"station": 5}, {"wind": 3.4, "n": -129, "note": "gusty"})],
    [Event(2, 0, {}, {"a": [1, 2, {"b": None}]}), Event(3, 0x80, {"k": "v" * 40}, {"data": b"\x00\xff" * 30})],
]


@pytest.mark.check
@pytest.mark.parametrize("options", [0, header.LZ4])
def test_a_flip_of_any_bit_returns_the_right_data_or_a_documented_error(options):
    events = [event for batch in SMALL for event in batch]
    segment = segments.write(SMALL, options)
    assert segments.read(segment).events == events
    assert same_events(beats_reader.read(segment), events)
    for bit in range(8 * len(segment)):
        flipped = bytearray(segment)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            result = segments.read(bytes(flipped))
        except OndiskError:
            continue
        assert same_events(result.events, events[: len(result.events)])
        assert result.damage is not None or len(result.events) == len(events)


@pytest.mark.check
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_flip_in_a_file_of_beats_returns_the_right_data_or_a_documented_error(variant):
    segment, expected = (GOLDEN / variant / "1.seg").read_bytes(), expected_events(variant, "1.seg")
    for bit in range(8 * len(segment)):
        flipped = bytearray(segment)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            result = segments.read(bytes(flipped))
        except OndiskError:
            continue
        assert same_events(result.events, expected[: len(result.events)])
        assert result.damage is not None or len(result.events) == len(expected)
