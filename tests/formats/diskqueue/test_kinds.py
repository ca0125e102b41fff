"""Events in JSON and protobuf: what is written, Beats and ondisk read with equal values; the rest is refused."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from datetime import UTC, datetime

import pytest
from drawn import up_to
from formats.test_base import File, Scanned, parsed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit import same

from ondisk import frame
from ondisk.config import DatasetConfig
from ondisk.errors import FrameCorrupt, InvalidInput, LimitExceeded, OndiskError
from ondisk.formats import find
from ondisk.formats.diskqueue import blocks, payload, protobuf
from ondisk.formats.diskqueue.header import LZ4, PROTOBUF, Header
from ondisk.formats.diskqueue.payload import Event, Kind
from ondisk.segment import End

from . import beats_payloads, beats_reader, segments
from .beats_payloads import BeatsError

T = 1_600_000_000_069_283_427
SEG = find("seg")(DatasetConfig.from_mapping({"step": "daily"}))
READ = {Kind.JSON: beats_payloads.json_event, Kind.PROTOBUF: beats_payloads.protobuf_event}
OTHERS = [Kind.JSON, Kind.PROTOBUF]

texts = st.text(max_size=30)
keys = texts.filter(bool)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
mappings = st.dictionaries(keys, values, max_size=4)
events = st.builds(Event, segments.timestamps, st.just(0), mappings, mappings)


def encode(kind, *events, **limits):
    return payload.encode(
        [event.timestamp for event in events],
        [event.meta for event in events],
        [event.fields for event in events],
        kind=kind,
        **limits,
    )


def event(fields, meta=None, timestamp=T):
    return Event(timestamp, 0, meta or {}, fields)


@pytest.mark.check
@pytest.mark.parametrize("kind", OTHERS)
@given(given_events=st.lists(events, max_size=4))
@example(
    given_events=[
        event({"t": 'é"é\\\n\u2028😀\x00\x7f', "f": [-0.0, 1e300, 5e-324, 100.0], "n": [2**63 - 1, -(2**63)]})
    ]
)
@example(given_events=[event({}, {"source": {"input_id": "a"}, "data_stream": {"type": "logs", "dataset": "x"}})])
@example(given_events=[event({}, {"source": {"input_id": ""}, "data_stream": {"type": 1}}), event({}, {}, -1)])
def test_beats_and_ondisk_read_equal_values(kind, given_events):
    payloads = encode(kind, *given_events)
    for given_event, written, again in zip(given_events, payloads, payload.decode(payloads).one_by_one(), strict=True):
        assert payload.kind_of(written) is kind
        assert same(list(READ[kind](written)), list(given_event))
        assert same(list(again), list(given_event))
        assert same(list(payload.decode_one(written)), list(given_event))


@pytest.mark.check
@pytest.mark.parametrize("kind", [*OTHERS, Kind.CBOR])
@pytest.mark.parametrize("before", [*OTHERS, Kind.CBOR])
@given(given_events=st.lists(events, min_size=1, max_size=4))
@settings(max_examples=up_to(20))
def test_events_are_converted_to_another_kind_and_stay_equal(before, kind, given_events):
    payloads = encode(before, *given_events)
    converted = payload.convert(payloads, kind)
    assert same([*map(list, payload.decode(converted).one_by_one())], [*map(list, given_events)])
    if before is kind:
        assert converted == payloads
    assert payload.kinds_in(converted) == {kind}
    assert (
        payload.decode([*payloads, *converted]).one_by_one()[: len(payloads)] == payload.decode(payloads).one_by_one()
    )


REFUSED = {
    Kind.JSON: [b"bytes", float("nan"), float("inf"), 2**63, 2**64 - 1, -(2**63) - 1, "\udc80", "\ud800"],
    Kind.PROTOBUF: [b"bytes", 2**64, -(2**63) - 1, "\udc80", {"\ud800": 1}, {1: 2}, {1, 2}],
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, those in REFUSED.items() for value in those])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [1, {"a": value}]])
def test_what_a_kind_cannot_hold_is_refused_with_a_reason(kind, value, wrap):
    for refused in (event({"v": wrap(value)}), event({}, {"v": wrap(value)})):
        with pytest.raises(InvalidInput) as caught:
            encode(kind, event({}), refused)
        assert caught.value.message


def test_bytes_as_data_are_refused_by_kinds_without_bytes():
    for kind in OTHERS:
        with pytest.raises(InvalidInput, match="bytes"):
            payload.encode([T], [{}], [b"abc"], kind=kind)


def test_protobuf_has_infinities_and_unsigned_integers():
    (written,) = encode(Kind.PROTOBUF, event({"v": [float("inf"), float("nan"), 2**64 - 1]}))
    assert same(beats_payloads.protobuf_event(written)[3], {"v": [float("inf"), float("nan"), 2**64 - 1]})


def test_a_timestamp_in_metadata_is_text():
    for kind in OTHERS:
        (written,) = encode(kind, event({}, {"at": datetime(2026, 11, 20, 6, tzinfo=UTC)}))
        assert READ[kind](written)[2] == {"at": "2026-11-20T06:00:00Z"}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_depth_is_limited(kind):
    nested = {}
    for _ in range(100):
        nested = {"a": nested}
    with pytest.raises(LimitExceeded, match="nested deeper"):
        encode(kind, event(nested))
    (written,) = encode(kind, event({"a": {"b": [1]}}))
    with pytest.raises(LimitExceeded, match="nested deeper"):
        payload.decode_one(written, max_depth=2)
    assert payload.decode_one(written, max_depth=3).fields == {"a": {"b": [1]}}


def test_what_protobuf_nests_most_is_read_again():
    nested: dict = {"a": 1}
    for _ in range(protobuf.MAX_LEVELS - 1):
        nested = {"a": nested}
    (written,) = encode(Kind.PROTOBUF, event(nested))
    assert payload.decode_one(written).fields == nested


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b'{"timestamp":1}x', "follow"),
        (b'{"timestamp":"1"}', "timestamp is not a number"),
        (b'{"timestamp":1,"meta":[]}', "meta is not a map"),
        (b'{"timestamp":NaN}', "not JSON"),
        (b'{"timestamp":9223372036854775808}', "64 bits"),
        (b'{"n":%s}' % (b"1" * 5000), "not JSON"),
        (b"\x0a\xff", "not protobuf"),
        (b"\x0a\x06\x08\xff\xff\xff\xff\x7f", "64 bits"),
        (b"\x05", "not a map"),
        (b"\x01abc", "encrypted"),
    ],
)
def test_what_is_not_an_event_is_damage(content, reason):
    for read in (payload.decode_one, lambda content: payload.decode([content] * 2)):
        with pytest.raises(FrameCorrupt, match=reason) as caught:
            read(content)
        assert caught.value.context["position"] == 0


def test_missing_keys_of_json_count_as_zero_or_empty():
    assert payload.decode_one(b"{}") == Event(0, 0, {}, {})
    assert payload.decode_one(b'{"flags":257,"meta":null,"other":1}') == Event(0, 1, {}, {})


def test_json_text_that_is_not_utf_8_keeps_its_bytes():
    assert payload.decode_one(b'{"fields":{"t":"\xff"}}').fields == {"t": "\udcff"}


def test_both_layouts_of_protobuf_are_reported_apart_by_their_fields():
    """Structs alone, without the fields that only one layout has, in each of the two numberings."""

    def entry(key, value):
        return b"\x0a" + bytes((len(key) + len(value) + 4,)) + b"\x0a%c%b\x12%c%b" % (len(key), key, len(value), value)

    early = entry(b"n", b"\x11" + struct.pack("<d", 2.5)) + entry(b"t", b"\x1a\x02hi")
    later = entry(b"n", b"\x28\x07") + entry(b"t", b"\x42\x02hi") + entry(b"b", b"\x48\x01")
    expected_early, expected_later = {"n": 2.5, "t": "hi"}, {"n": 7, "t": "hi", "b": True}

    def part(number, content):
        return bytes((number << 3 | 2, len(content))) + content

    stream = part(1, b"logs")
    time = part(1, b"\x08\x05")
    cases = [
        (time + part(6, early), {}, expected_early),
        (time + part(5, early) + part(6, early), expected_early, expected_early),
        (time + part(4, stream) + part(5, early), {"data_stream": {"type": "logs"}, **expected_early}, {}),
        (time + part(5, later), {}, expected_later),
        (time + part(4, later) + part(5, later), expected_later, expected_later),
        (time + part(3, stream) + part(5, later), {"data_stream": {"type": "logs"}}, expected_later),
    ]
    for content, meta, fields in cases:
        assert payload.decode_one(content) == Event(5 * 10**9, 0, meta, fields)


def test_an_address_does_not_replace_metadata_of_the_same_name():
    message = b"\x12\x03\x0a\x01a" + b"\x22\x0f\x0a\x0d\x0a\x06source\x12\x03\x42\x01x"
    assert payload.decode_one(message).meta == {"source": "x", "source_": {"input_id": "a"}}


beginnings = st.sampled_from(
    [b"{", b'{"timestamp":1,"fields":', b"\x0a", b"\x22", b"\x2a", b"\x32", b"\xa4\x69timestamp", b"\x01"]
)


@given(st.tuples(beginnings, st.binary(max_size=80)).map(b"".join))
def test_any_bytes_are_an_event_or_refused(content):
    try:
        found = payload.decode_one(content)
        assert payload.decode([content]).one_by_one() == [found] or found != found
    except OndiskError:
        return


@pytest.mark.check
@pytest.mark.parametrize("kind", OTHERS)
@given(given_event=events, data=st.data())
def test_mutated_events_are_events_or_refused(kind, given_event, data):
    (written,) = encode(kind, given_event)
    content = bytearray(written)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = payload.decode_one(bytes(content))
    except OndiskError:
        with pytest.raises(OndiskError):
            payload.decode([bytes(content)])
        return
    assert same(payload.decode([bytes(content)]).one_by_one(), [found])


@pytest.mark.check
@pytest.mark.parametrize(
    "content",
    [
        b'{"timestamp":1,"fields":{"a":[' + b"[]," * 4_200_000 + b"1]}}",
        b"\x2a" + b"\xb0\xea\x98\x02" + b"\x0a\xac\xea\x98\x02" + bytes(10),
    ],
    ids=["JSON", "protobuf"],
)
def test_hostile_events_take_bounded_memory(content):
    with pytest.raises(OndiskError):
        payload.decode_one(content[:30])  # imports what it needs
    tracemalloc.start()
    with pytest.raises(OndiskError):
        payload.decode_one(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * len(content) + 2**20


@pytest.mark.parametrize("kind", [*OTHERS, Kind.CBOR])
def test_a_segment_of_each_kind_is_read_by_the_strict_reader(kind):
    header = {Kind.JSON: Header(0), Kind.CBOR: Header(1, 3), Kind.PROTOBUF: Header(2, 3, PROTOBUF)}[kind]
    given_events = [event({"n": n, "é": "a\nb"}, {"station": 7}) for n in range(3)]
    segment = header.pack() + b"".join(frame.encode(encode(kind, *given_events)))
    assert same([*map(list, beats_reader.read(segment))], [*map(list, given_events)])
    assert segments.read(segment).events == given_events


def test_the_strict_reader_refuses_what_beats_garbles():
    for content in (
        '{"timestamp":1,"flags":0,"meta":{},"fields":{"t":"\\né"}}',
        '{"timestamp":1}',
        '{"timestamp": 1}',
    ):
        with pytest.raises(BeatsError):
            beats_payloads.json_event(content.encode())


HEADERS = [Header(0), Header(1, 3), Header(2), Header(2, 0, LZ4), Header(2, 0, PROTOBUF), Header(2, 0, LZ4 | PROTOBUF)]


def fuzzed(content):
    """Let every parser of a whole file loose on its bytes: only documented errors may come out."""
    for read in (parsed, Scanned.of, lambda seg, content: seg.resume(File(content), End())):
        with contextlib.suppress(OndiskError):
            read(SEG, content)


@pytest.mark.check
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: f"{header.version}-{header.options}")
@given(rest=st.binary(max_size=120), payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=3))
@settings(max_examples=up_to(40))
def test_any_bytes_and_any_payloads_in_a_segment_of_any_variant_are_read_or_refused(header, rest, payloads):
    beginning = header.pack() + blocks.FRAME_HEADER * header.compressed
    frames = frame.encode(payloads)
    if header.compressed:
        frames = [block.stored for block in blocks.pack(frames, header.size)]
    for content in (header.pack() + rest, beginning + rest, beginning + b"".join(frames) + rest):
        fuzzed(content)
    batch = parsed(SEG, beginning + b"".join(frames))
    if header.compressed and batch.damage:  # no event is so small: they look like the beginning of another block
        return
    assert len(batch.payloads) + len(batch.refused) == len(payloads)
    assert not batch.damage


@pytest.mark.check
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: f"{header.version}-{header.options}")
@given(data=st.data())
@settings(max_examples=up_to(40))
def test_a_mutated_segment_of_any_variant_returns_whole_events_only(header, data):
    given_events = [event({"n": n, "text": "wind " * 5}, {"station": 7}, T + n * 1000) for n in range(4)]
    frames = frame.encode(encode(Kind.of(header), *given_events))
    if header.compressed:
        frames = [blocks.FRAME_HEADER, *(block.stored for each in frames for block in blocks.pack([each], 0))]
    content = bytearray(header.pack() + b"".join(frames))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(header.size, len(content) - 1))] = data.draw(st.integers(0, 255))
    fuzzed(bytes(content))
    batch = parsed(SEG, bytes(content))
    found = payload.decode(frame.decode_many(batch.payloads)).one_by_one()
    assert all(each in given_events for each in found)
    assert len(found) == 4 or batch.damage or batch.refused
