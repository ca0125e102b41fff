"""Payloads: Beats reads what ondisk writes, ondisk reads what Beats writes, and hostile bytes are refused."""

from __future__ import annotations

import struct
import sys
import time
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import same

from ondisk.errors import FrameCorrupt, InvalidInput, LimitExceeded
from ondisk.formats.diskqueue import cbor, cbor_payload, payload
from ondisk.formats.diskqueue.payload import Event

from . import beats_reader, segments

# Everything that could be misread as another number, and bytes that only look like it.
TRAPS = {
    "integers": [-129, -256, -32769, -65536, -(2**31) - 1, -(2**32), -(2**63), 2**64 - 1],
    "floats": [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1e308],
    "texts": ["8é", ":ÿ", "ÂI", "\udc80", "x" * 24, "é" * 200, ""],
    "bytes": [b"\xf9\x7e\x00", b"\xc2\x49", b"\x39\xff\xff", b""],
}


def event(fields, meta=None):
    return Event(1_600_000_000_000_000_000, 0, meta or {}, fields)


def decoded(payloads):
    return payload.decode(payloads).one_by_one()


def one(payload_bytes, **limits):
    (event,) = payload.decode([payload_bytes], **limits).one_by_one()
    return event


def nested(depth, leaf=0):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@given(st.lists(segments.events, max_size=5))
@example([event(TRAPS, {"traps": list(TRAPS.values())})])
@example([event({"n": -129}), event({}), event({"n": float("nan")}), Event(-129, 0, {}, {}), Event(-256, 0, {}, {})])
def test_beats_and_ondisk_read_equal_values(events):
    payloads = segments.encode(events)
    for given_event, written, again in zip(events, payloads, decoded(payloads), strict=True):
        assert same(list(beats_reader.event(written)), list(given_event))
        assert same(list(again), list(given_event))


@given(segments.events)
@example(event(TRAPS))
def test_both_ways_write_the_same_bytes_and_read_the_same_values(given_event):
    (written,) = segments.encode([given_event])
    assert cbor.encode(given_event._asdict(), max_depth=100, max_items=1000) == written
    assert same(list(cbor.decode(written, max_depth=100, max_items=1000).values()), list(given_event))


@pytest.mark.parametrize("size", [0, 1, 23, 24, 255, 256, 65_535, 65_536])
def test_bytes_are_written_as_cbor_whatever_is_beside_them(size):
    data = b"\xc2\x49" * (size // 2) + b"x" * (size % 2)
    maps = [event({"n": -200}), event({"data": b"x"}), event({"data": b"x", "more": 1})]
    given_events = [maps[0], Event(5, 0x80, {"n": -200}, {"data": data}), *maps[1:]]
    written = segments.encode(given_events)
    assert written == [cbor.encode(each._asdict(), max_depth=100, max_items=1000) for each in given_events]


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_an_odd_event_among_plain_ones_keeps_its_place(count):
    events = [event({"n": n}) for n in range(count)]
    events[count // 2] = event({"n": -200, "text": "\udcff", "nan": [float("inf")]})
    assert decoded(segments.encode(events)) == events


@pytest.mark.parametrize("data", [{}, {"a": [1, {"b": None}]}, {"data": b"x"}, b"", b"\x00\xff" * 500])
def test_data_come_back_as_the_same(data):
    (written,) = payload.encode([5], [{"m": 1}], [data])
    assert one(written).data == data
    assert one(written).flags == (0x80 if type(data) is bytes else 0)
    beats_reader.event(written)


def test_no_data_are_the_empty_mapping():
    assert payload.encode([5, 6], [{}, {}], [None, b"x"])[:1] == payload.encode([5], [{}], [{}])


@pytest.mark.parametrize("fields", [{}, {"data": "text"}, {"data": b"x", "more": 1}])
def test_a_foreign_flag_does_not_make_bytes_of_other_fields(fields):
    assert Event(0, 0x80, {}, fields).data == fields


@pytest.mark.parametrize("data", ["text", 5, [1], bytearray(b"x")])
def test_other_data_are_refused(data):
    with pytest.raises(InvalidInput, match="mapping, bytes or None"):
        payload.encode([0] * 200, [{}] * 200, [{}] * 199 + [data])


def test_other_mappings_and_tuples_are_written_as_maps_and_arrays():
    (written,) = segments.encode(
        [event(MappingProxyType({"a": (1, MappingProxyType({}))}), MappingProxyType({"b": 2}))]
    )
    assert one(written) == event({"a": [1, {}]}, {"b": 2})


def test_timestamps_in_the_metadata_are_text_with_all_digits():
    east = timezone(timedelta(hours=2))
    meta = {"at": datetime(2026, 11, 20, 6, 0, 0, 123456, UTC), "made": datetime(2026, 11, 20, 6, tzinfo=east), "n": 1}
    (written,) = segments.encode([event({}, meta)])
    assert one(written).meta == {"at": "2026-11-20T06:00:00.123456Z", "made": "2026-11-20T04:00:00Z", "n": 1}


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (event({"": 1}), "empty"),
        (event({"a": [{"": 1}]}), "empty"),
        (event({}, {"": 1}), "empty"),
        (event({1: 2}), "a key must be text, not int"),
        (event({"a": {b"k": 2}}), "a key must be text, not bytes"),
        (event({"a": 2**64}), "64 bits"),
        (event({"a": -(2**63) - 1}), "64 bits"),
        (event({"a": 2**100_000}), "100001 bits"),
        (event({"a": datetime(2026, 11, 20, tzinfo=UTC)}), "type datetime"),
        (event({}, {"a": datetime(2026, 11, 20)}), "no time zone"),
        (event({"a": {1, 2}}), "type set"),
        (event({"a": 1j}), "type complex"),
        (event({"a": cbor2.undefined}), "a segment cannot store"),
        (event({"a": cbor2.CBORTag(1, 2)}), "a segment cannot store"),
        (event({"a": "\ud800"}), "surrogate"),
        (event({"a": "\udcc3\udca9"}), "surrogate"),
        (event({"\ud800": 1}), "surrogate"),
        (Event(2**63, 0, {}, {}), "nanoseconds"),
        (Event(True, 0, {}, {}), "nanoseconds"),
        (event({"a": nested(64)}), "max_depth"),
    ],
)
def test_what_beats_could_not_read_is_refused(refused, reason):
    with pytest.raises(InvalidInput, match=reason):
        segments.encode([event({})] * 200 + [refused])


@pytest.mark.parametrize("max_depth", [1, 2, 64, 500])
@pytest.mark.parametrize("leaf", [0, -200, "\udcff"])
def test_nesting_is_written_and_read_up_to_the_limit(max_depth, leaf):
    fields = {"a": nested(max_depth - 1, leaf)}
    (written,) = segments.encode([event(fields)], max_depth=max_depth)
    assert one(written, max_depth=max_depth) == event(fields)
    with pytest.raises(LimitExceeded, match="max_depth"):
        segments.encode([event({"a": nested(max_depth, leaf)})], max_depth=max_depth)
    (deeper,) = segments.encode([event({"a": nested(max_depth, leaf)})], max_depth=max_depth + 1)
    with pytest.raises(LimitExceeded, match="max_depth"):
        one(deeper, max_depth=max_depth)


@pytest.mark.check
@pytest.mark.parametrize("depth", [3_000, 100_000])
def test_nesting_beyond_what_python_can_follow_is_refused(depth):
    limits = {"max_depth": 2 * depth, "max_items": 2 * depth}
    with pytest.raises(LimitExceeded, match="max_depth"):
        cbor.encode(nested(depth), **limits)
    with pytest.raises(LimitExceeded, match="max_depth"):
        cbor.decode(b"\x81" * depth + b"\x00", **limits)


def entries(*pairs, flags=b"\x00"):
    """Return a payload with these pairs of bytes as `fields`."""
    head = b"\xa4\x69timestamp\x05\x65flags" + flags + b"\x64meta\xa0\x66fields"
    return head + bytes((0xA0 + len(pairs),)) + b"".join(key + value for key, value in pairs)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xa0", Event(0, 0, {}, {})),
        (b"\xa1\x66fields\xf6", Event(0, 0, {}, {})),
        (b"\xa2\x64meta\xf6\x69timestamp\x07", Event(7, 0, {}, {})),
        (b"\xbf\x69timestamp\xfb\x40\x24\x00\x00\x00\x00\x00\x00\xff", Event(10, 0, {}, {})),
        (b"\xa2\x64more\xa1\x61a\x01\x65flags\x19\x01\x02", Event(0, 2, {}, {})),
        (entries((b"\x61a", b"\x9f\x01\xbf\x61b\x02\xff\xff")), Event(5, 0, {}, {"a": [1, {"b": 2}]})),
        (entries((b"\x61a", b"\xf7")), Event(5, 0, {}, {"a": None})),
        (entries((b"\x60", b"\x01")), Event(5, 0, {}, {"": 1})),
        (entries((b"\x61a", b"\xf9\x7c\x00"), (b"\x61b", b"\xfa\x3f\x00\x00\x00")),
         Event(5, 0, {}, {"a": float("inf"), "b": 0.5})),
        (entries((b"\x61\xff", b"\x42a\xff")), Event(5, 0, {}, {"\udcff": b"a\xff"})),
        (entries((b"\x61a", b"\x38\xff"), (b"\x61b", b"\x3b" + b"\xff" * 8)),
         Event(5, 0, {}, {"a": -256, "b": -(2**64)})),
        (b"\xa4\x66fields\xa0\x65flags\x02\x64meta\xa1\x61a\x01\x69timestamp\x07", Event(7, 2, {"a": 1}, {})),
        (b"\xa4\x69timestamp\x07\x65flags\x02\x64meta\xa0\x64more\x01", Event(7, 2, {}, {})),
        (entries((b"\x78\x01a", b"\x1b" + bytes(7) + b"\x01"), flags=b"\x18\x01"), Event(5, 1, {}, {"a": 1})),
    ],
)  # fmt: skip
def test_what_beats_or_others_may_have_written_is_read(data, expected):
    assert one(data) == expected
    assert decoded([entries(), data, entries()]) == [Event(5, 0, {}, {}), expected, Event(5, 0, {}, {})]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "should follow"),
        (b"\x05", "not a map"),
        (b"\xa1\x69timestamp\x61a", "timestamp is not a number"),
        (b"\xa1\x69timestamp\xf6", "timestamp is not a number"),
        (b"\xa1\x69timestamp\xf5", "timestamp is not a number"),
        (b"\xa1\x69timestamp\x1b\xff" + bytes(7), "64 bits"),
        (b"\xa1\x69timestamp\xf9\x7e\x00", "timestamp is not a number"),
        (b"\xa1\x65flags\xf6", "flags is not a number"),
        (b"\xa1\x64meta\x05", "meta is not a map"),
        (b"\xa1\x66fields\x80", "fields is not a map"),
        (b"\xa2\x65flags\x00\x65flags\x01", "'flags' occurs twice"),
        (entries((b"\x61a", b"\x01"), (b"\x61a", b"\x02")), "'a' occurs twice"),
        (entries((b"\x61a", b"\xa2\x61b\x01\x61b\x02")), "'b' occurs twice"),
        (entries((b"\x61a", b"\xbf\x61b\x01\x61b\x02\xff")), "'b' occurs twice"),
        (b"\xa4\x69timestamp\x05\x69timestamp\x05\x64meta\xa0\x66fields\xa0", "'timestamp' occurs twice"),
        (b"\xa3" + entries()[1:], "bytes follow"),
        (b"\xa5" + entries()[1:], "should follow"),
        (b"\x88" + entries()[1:], "it is not a map"),
        (entries()[1:], "bytes follow"),
        (entries() + b"\x00", "1 bytes follow"),
        (entries() + entries(), "bytes follow"),
        (entries() + b"\xff", "bytes follow"),
        (entries()[:-1], "should follow"),
        (entries((b"\x01", b"\x01")), "not text"),
        (entries((b"\x41a", b"\x01")), "not text"),
        (entries((b"\x61a", b"\xa1\xf6\x01")), "not text"),
        (entries((b"\x61a", b"\x5f\x41a\xff")), "indefinite"),
        (entries((b"\x61a", b"\x7f\x61a\xff")), "indefinite"),
        (entries((b"\x61a", b"\x9f\x01")), "should follow"),
        (entries((b"\x61a", b"\xbf\x61b\xff")), "simple value 0xff"),
        (entries((b"\x61a", b"\xff")), "simple value 0xff"),
        (entries((b"\x61a", b"\xe0")), "simple value 0xe0"),
        (entries((b"\x61a", b"\xf8\x20")), "simple value 0xf8"),
        (entries((b"\x61a", b"\x1c")), "unknown"),
        (entries((b"\x61a", b"\xc2\x41\x01")), "a tag"),
        (entries((b"\x61a", b"\x7b" + struct.pack(">Q", 2**40))), "should follow"),
        (entries((b"\x61a", b"\x5b" + struct.pack(">Q", 2**64 - 1))), "should follow"),
        (entries((b"\x61a", b"\x9b" + struct.pack(">Q", 2**40))), "entries should follow"),
        (entries((b"\x61a", b"\xbb" + struct.pack(">Q", 2**40))), "entries should follow"),
    ],
)
def test_what_is_no_event_is_refused_with_its_position_and_reason(data, reason):
    with pytest.raises(FrameCorrupt, match=reason) as caught:
        decoded([entries()] * 130 + [data, entries()])
    assert caught.value.context["position"] == 130
    assert reason in caught.value.context["reason"]


def test_pieces_of_an_event_are_no_events():
    whole = entries((b"\x61a", b"\x01"))
    for cut in range(1, len(whole)):
        for pieces in ([whole[:cut], whole[cut:]], [whole[:cut], whole[:1] + whole[cut:]]):
            with pytest.raises(FrameCorrupt) as caught:
                decoded([whole, *pieces, whole])
            assert caught.value.context["position"] == 1


BODIES = [b"\x00", b"\x41\x01", b"\x61a", b"\x80", b"\xa0", b"\x82\x01\x02", b"\x742013-03-21T20:04:00Z", b"\xf6"]


def tag(number):
    if number < 24:
        return bytes((0xC0 | number,))
    width = 1 if number < 2**8 else 2 if number < 2**16 else 4 if number < 2**32 else 8
    return bytes((0xD8 + width.bit_length() - 1,)) + number.to_bytes(width)


@pytest.mark.parametrize(
    "numbers",
    [[*range(300), 1004, 43000, 55799, 2**16, 2**63], pytest.param(range(2**16), marks=pytest.mark.slow)],
    ids=["known", "all"],
)
def test_every_tag_is_refused(numbers):
    for number in numbers:
        for body in BODIES:
            for data in (entries((b"\x61a", tag(number) + body)), tag(number) + entries()):
                with pytest.raises(FrameCorrupt):
                    decoded([data])


hostile = st.binary(max_size=60) | st.builds(
    lambda written, at, put, cut: written[: at % len(written)] + put + written[at % len(written) + cut :],
    segments.events.map(lambda given_event: segments.encode([given_event])[0]),
    st.integers(0, 10_000),
    st.binary(max_size=3),
    st.integers(0, 3),
)


@given(st.lists(hostile, min_size=1, max_size=3))
def test_arbitrary_bytes_are_refused_or_read_the_same_in_any_company(payloads):
    alone = []
    for data in payloads:
        try:
            alone.append(one(data))
        except (FrameCorrupt, LimitExceeded):
            alone.append(None)
            continue
        if payload.kind_of(data) is payload.Kind.CBOR:  # a short one may be JSON
            content = cbor.decode(data, max_depth=65, max_items=1000)
            assert same(alone[-1].fields, content.get("fields") or {})
            assert same(alone[-1].meta, content.get("meta") or {})
    if None in alone:
        with pytest.raises((FrameCorrupt, LimitExceeded)) as caught:
            decoded(payloads)
        assert caught.value.context["position"] == alone.index(None)
    else:
        assert same([list(event) for event in decoded(payloads)], [list(event) for event in alone])


@given(st.binary(max_size=40))
def test_arbitrary_bytes_as_a_value_end_in_a_value_or_a_documented_error(data):
    try:
        value = cbor.decode(data, max_depth=8, max_items=100)
    except (FrameCorrupt, LimitExceeded):
        return
    try:
        written = cbor.encode(value, max_depth=8, max_items=100)
    except InvalidInput:  # empty keys, and integers below 64 bits, are read but never written
        return
    assert same(cbor.decode(written, max_depth=8, max_items=100), value)


BOMBS = {
    "arrays in arrays": entries((b"\x61a", b"\x81" * 100_000 + b"\x00")),
    "maps in maps": entries((b"\x61a", b"\xa1\x61a" * 100_000 + b"\x00")),
    "indefinite arrays in arrays": entries((b"\x61a", b"\x9f" * 100_000)),
    "tags in tags": entries((b"\x61a", b"\xc1" * 100_000 + b"\x00")),
    "an array of 2^40": entries((b"\x61a", b"\x9b" + struct.pack(">Q", 2**40) + bytes(1000))),
    "a text of 2^40": entries((b"\x61a", b"\x7b" + struct.pack(">Q", 2**40) + bytes(1000))),
    "a large integer": entries((b"\x61a", b"\xc2\x5a" + struct.pack(">I", 100_000) + b"\xff" * 100_000)),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_in_little_time_and_memory(bomb):
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises((FrameCorrupt, LimitExceeded)):
        decoded([bomb])
    spent = time.process_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spent < 0.5
    assert peak < 4_000_000


def test_a_payload_of_too_many_values_is_neither_read_nor_written(monkeypatch):
    monkeypatch.setattr(cbor_payload, "MAX_ITEMS", 1000)
    monkeypatch.setattr(cbor_payload, "_CHECKED_SIZE", 250)
    most = event({"a": [{}] * (1000 - 11)})  # the payload, its four keys and four values, "a" and the list
    (written,) = segments.encode([most])
    assert one(written) == most
    more = event({"a": [{}] * (1000 - 10)})
    with pytest.raises(LimitExceeded, match="1000 values"):
        segments.encode([more])
    with pytest.raises(LimitExceeded, match="1000 values"):
        one(cbor2.dumps(more._asdict()))


def test_large_bytes_take_the_careful_way_in_little_time():
    data = b"\x38\xff" * 8_000_000
    begin = time.process_time()
    (written,) = payload.encode([5], [{}], [data])
    assert one(written).data == data
    assert time.process_time() - begin < 2


LARGE = bytes(range(256)) * 40
PATTERN = "fields\xa1"  # the beginning of the head of a payload's bytes, as text


def outcome(payloads, **how):
    """Return the columns of payloads, or the error."""
    try:
        return payload.decode(payloads, **how)
    except (FrameCorrupt, InvalidInput) as error:
        return type(error), error.message


def check_like_small_ones(payloads):
    """Assert that large payloads are decoded as small ones are, with and without their bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cbor_payload, "_LARGE", sys.maxsize)
        expected = outcome(payloads)
    assert outcome(payloads) == expected
    assert outcome(payloads, data=False)[:3] == expected[:3]


def is_read_without_its_bytes(written):
    events = payload.decode([written, written], data=False)
    return all(fields == {"data": b""} for fields in events.fields)


@pytest.mark.parametrize("size", [len(LARGE), 65535, 65536, 2_000_000])
def test_bytes_that_nobody_wants_are_not_read(size):
    (written,) = payload.encode([5], [{"station": 3, "name": PATTERN}], [b"\x40" * size])
    assert is_read_without_its_bytes(written)
    check_like_small_ones([written] * 3)
    assert payload.decode_one(written) == one(written)
    assert one(written).data == b"\x40" * size


def test_what_only_looks_like_the_bytes_at_the_end_is_read_as_it_is():
    """The metadata contain a head of bytes with exactly the number of bytes after it."""
    (plain,) = payload.encode([5], [{"a": b""}], [LARGE])
    before = b"\x66fields\xa1\x64data\x59"
    for left in range(len(plain) - 40, len(plain) + 40):
        (written,) = payload.encode([5], [{"a": before + left.to_bytes(2)}], [LARGE])
        check_like_small_ones([written])
        assert payload.decode([written], data=False).metas[0]["a"] == before + left.to_bytes(2)


@given(
    meta=st.dictionaries(st.sampled_from(["a", "b", "fields", PATTERN]), st.integers() | st.text() | st.binary()),
    at=st.integers(0, 90),
    cut=st.integers(0, 3),
    put=st.binary(max_size=3),
    others=st.integers(0, 2),
)
def test_a_large_payload_is_checked_as_any_other(meta, at, cut, put, others):
    try:
        (written,) = payload.encode([5], [meta], [LARGE])
    except InvalidInput:
        return
    payloads = [written] * others + [written[:at] + put + written[at + cut :]]
    check_like_small_ones(payloads)
