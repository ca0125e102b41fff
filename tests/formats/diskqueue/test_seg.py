"""The format `seg`: data are stored as frames and read back; only the data that it cannot store are refused."""

from __future__ import annotations

import contextlib
import io
import signal
import struct
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from zlib import crc32

import lz4.frame
import pytest
from drawn import up_to
from formats.test_base import Scanned
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY_TYPE, same, strategies

from ondisk import Datum
from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, canonical, from_microseconds
from ondisk.errors import FrameCorrupt, InvalidInput, SegmentCorrupt, StateError
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.payload import Event
from ondisk.formats.diskqueue.seg import Seg
from ondisk.segment import End

from . import beats_reader, segments

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
NS = 1_795_154_400_000_000_000
KINDS = {name: FieldType(kind) for name, kind in EVERY_TYPE.items()}
COMPRESSIONS = ["none", "lz4"]
HEADERS = {"none": bytes.fromhex("02000000 00000000 00000000"),
           "lz4": bytes.fromhex("02000000 00000000 02000000 04224d18 60 40 82")}  # fmt: skip


def make(**values):
    return Seg(DatasetConfig.from_mapping({"format": "seg", "step": "daily", "fields": EVERY_TYPE} | values))


SEG = make()


def load(frames, format=SEG):
    """Return the undeclared metadata and the data of frames."""
    found = format.load(frames)
    return list(zip([{}] * len(frames) if found.undeclared is None else found.undeclared, found.data, strict=True))


FIRST, LAST = -9_223_372_036_854_775, 9_223_372_036_854_775  # microseconds whose nanoseconds fit into 64 bits
reftimes = st.sampled_from([FIRST, LAST, -1, 0, 1]) | st.integers(FIRST, LAST)
undeclared = st.dictionaries(segments.keys.filter(lambda key: key not in EVERY_TYPE), segments.values, max_size=3)
contents = st.none() | st.binary(max_size=60) | segments.mappings
metadatas = st.builds(lambda one, other: {**one, **other}, undeclared, strategies.metadata(KINDS))
data = st.builds(Datum, reftimes.map(from_microseconds), metadatas, contents)


class Stored:
    """A segment's file in memory."""

    def __init__(self, content=b""):
        self.content = content

    def size(self):
        return len(self.content)

    def read(self, position, size, /):
        return self.content[position : position + size]

    def read_into(self, position, buffer, /):
        content = self.read(position, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def append(self, format, payloads, end):
        """Lay data at `end`, as a dataset does."""
        laid = format.lay(payloads, end)
        self.write(end.size, laid.content)
        patch = format.patch(laid.end)
        content = bytearray(self.content)
        content[patch.position : patch.position + len(patch.content)] = patch.content
        self.content = bytes(content)
        return laid

    def write(self, position, content):
        assert position <= len(self.content)
        self.content = self.content[:position] + content

    def begin(self, laid):
        """Write the content that must precede the first new datum, and cut off the rest of the file."""
        self.write(laid.end.size - len(laid.content), laid.content)


class Trickle:
    """A stream that returns few bytes at a time."""

    def __init__(self, content, most):
        self._stream = io.BytesIO(content)
        self._most = most

    def read(self, size, /):
        return self._stream.read(min(size, self._most))


@contextlib.contextmanager
def at_most(seconds):
    """Fail the block if it takes longer, even in an endless loop."""

    def stop(*_):
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def framed(payload):
    length = struct.pack("<I", len(payload) + 12)
    return length + payload + struct.pack("<I", crc32(length + payload)) + length


def event(n=0, meta=None, **fields):
    return Event(NS + n, 0, meta or {}, fields)


def parsed(format, content, batch_size=1000, most=1 << 30):
    return list(format.parse(Trickle(content, most), batch_size))


def whole(batches):
    """Join batches."""
    joined = batches[0]
    for each in batches[1:]:
        joined.extend(each)
    return joined


# Encoding


@pytest.mark.check
@given(st.lists(data, max_size=4))
@settings(max_examples=up_to(40))
def test_data_come_back_as_they_were_given(given_data):
    batch = SEG.encode(given_data)
    assert not batch.refused
    assert len(batch) == len(given_data)
    assert batch.reftimes == [
        (datum.reftime - from_microseconds(0)) // timedelta(microseconds=1) for datum in given_data
    ]
    loaded = load(batch.payloads)
    for datum, metadata, payload, (others, content) in zip(
        given_data, batch.metadata, batch.payloads, loaded, strict=True
    ):
        stored = {name: canonical(value, KINDS[name]) for name, value in datum.metadata.items() if name in EVERY_TYPE}
        assert {name: metadata[name] for name in EVERY_TYPE if metadata.get(name) is not None} == stored
        reftime, described = SEG.describe(payload)
        assert from_microseconds(reftime) == datum.reftime
        assert described == stored
        assert same(dict(others), {key: value for key, value in datum.metadata.items() if key not in EVERY_TYPE})
        assert same(content, {} if datum.data is None else datum.data)
        assert same(SEG.decode(payload), content)


@given(st.lists(data, min_size=1, max_size=3))
def test_beats_reads_every_frame_to_the_same_values(given_data):
    for datum, payload in zip(given_data, SEG.encode(given_data).payloads, strict=True):
        (inner,) = beats_reader.frames(payload)
        timestamp, flags, meta, fields = beats_reader.event(inner)
        assert timestamp // 1000 * 1000 == timestamp
        assert from_microseconds(timestamp // 1000) == datum.reftime
        expected = {"data": datum.data} if type(datum.data) is bytes else datum.data or {}
        assert same(fields, expected)
        assert flags == (0x80 if type(datum.data) is bytes else 0)
        meta_given = {key: value for key, value in datum.metadata.items() if key != "made"}
        assert same({key: value for key, value in meta.items() if key != "made"}, meta_given)


def test_each_declared_type_comes_back():
    metadata = {"station": -129, "level": 5, "product": "é", "valid": True, "made": T, "key": b"\xff"}
    (payload,) = SEG.encode([Datum(T, metadata, {"wind": 3.5})]).payloads
    stored = {"station": -129, "level": 5.0, "product": "é", "valid": 1, "made": NS // 1000, "key": b"\xff"}
    assert SEG.describe(payload) == (NS // 1000, stored)
    assert load([payload]) == [({}, {"wind": 3.5})]


def test_an_undeclared_timestamp_is_kept_as_text():
    made = datetime(2026, 11, 20, 8, 0, 0, 120_000, timezone(timedelta(hours=2)))
    (payload,) = SEG.encode([Datum(T, {"seen": made, "made": made})]).payloads
    assert load([payload]) == [({"seen": "2026-11-20T06:00:00.120000Z"}, {})]
    assert SEG.describe(payload)[1] == {"made": NS // 1000 + 120_000}


def test_none_of_a_declared_field_is_a_missing_value_and_of_another_one_it_is_kept():
    batch = SEG.encode([Datum(T, {"station": None, "level": 1.0, "other": None})])
    assert SEG.describe(batch.payloads[0]) == (NS // 1000, {"level": 1.0})
    assert load(batch.payloads) == [({"other": None}, {})]
    assert batch.metadata[0].get("station") is None


@pytest.mark.parametrize("wrap", [dict, MappingProxyType])
def test_any_mapping_is_metadata_and_data(wrap):
    datum = Datum(T, wrap({"station": 5, "more": wrap({"a": [1]})}), wrap({"x": wrap({"y": 2})}))
    batch = SEG.encode([datum])
    assert not batch.refused
    assert load(batch.payloads) == [({"more": {"a": [1]}}, {"x": {"y": 2}})]


def test_bytes_that_no_text_can_be_are_kept_in_text():
    datum = Datum(T, {"note": "caf\udce9"}, {"k\udcff": ["\udc80"]})
    assert load(SEG.encode([datum]).payloads) == [({"note": "caf\udce9"}, {"k\udcff": ["\udc80"]})]


def test_a_mapping_of_the_only_key_data_is_not_taken_for_bytes():
    payloads = SEG.encode([Datum(T, {}, {"data": b"\0"}), Datum(T, {}, b"\0"), Datum(T, {}, b"")]).payloads
    assert [content for _, content in load(payloads)] == [{"data": b"\0"}, b"\0", b""]


def deep(levels, content=1):
    for _ in range(levels):
        content = {"a": content}
    return content


GOOD = Datum(T, {"station": 1}, {"n": 1})
REFUSED = {
    "empty key": Datum(T, {}, {"": 1}),
    "empty key, nested": Datum(T, {}, {"a": [{"": 1}]}),
    "empty key in metadata": Datum(T, {"": 1}),
    "key that is no text": Datum(T, {}, {5: 1}),
    "key that is bytes": Datum(T, {}, {"a": {b"k": 1}}),
    "key of metadata that is no text": Datum(T, {5: 1}),
    "too large an integer": Datum(T, {}, {"n": 2**64}),
    "too small an integer": Datum(T, {}, {"n": [-(2**63) - 1]}),
    "an enormous integer": Datum(T, {}, {"n": 10**5000}),
    "too large an integer in metadata": Datum(T, {"x": 2**64}),
    "too large a declared integer": Datum(T, {"station": 2**63}),
    "too small a declared integer": Datum(T, {"station": -(2**63) - 1}),
    "NaN in a declared real": Datum(T, {"level": float("nan")}),
    "an integer that is no real": Datum(T, {"level": 2**53 + 1}),
    "text for an integer": Datum(T, {"station": "5"}),
    "a boolean for an integer": Datum(T, {"station": True}),
    "an integer for a boolean": Datum(T, {"valid": 1}),
    "bytes for text": Datum(T, {"product": b"x"}),
    "text for bytes": Datum(T, {"key": "x"}),
    "text for a timestamp": Datum(T, {"made": "2026-11-20T06:00:00Z"}),
    "a naive timestamp": Datum(T, {"made": datetime(2026, 11, 20)}),
    "a naive undeclared timestamp": Datum(T, {"seen": datetime(2026, 11, 20)}),
    "a list for a declared field": Datum(T, {"product": ["x"]}),
    "before 1677": Datum(datetime(1677, 9, 21, 0, 12, 43, 145_223, UTC)),
    "year 1": Datum(datetime(1, 1, 1, tzinfo=UTC)),
    "after 2262": Datum(datetime(2262, 4, 11, 23, 47, 16, 854_776, UTC)),
    "year 9999": Datum(datetime(9999, 12, 31, tzinfo=UTC)),
    "too large": Datum(T, {}, b"x" * 1000),
    "too large metadata": Datum(T, {"note": "x" * 1000}),
    "too deep": Datum(T, {}, deep(9)),
    "too deep metadata": Datum(T, {"a": deep(8)}),
    "a lone surrogate": Datum(T, {}, {"a": "\ud800"}),
    "a lone surrogate in a key": Datum(T, {}, {"\udfff": 1}),
    "escaped bytes that are a character": Datum(T, {}, {"a": "\udcc3\udca9"}),
    "a lone surrogate in declared text": Datum(T, {"product": "\ud800"}),
    "bytes in declared text": Datum(T, {"product": "\udcff"}),
    "a list": Datum(T, {}, [1, 2]),
    "text": Datum(T, {}, "text"),
    "a number": Datum(T, {}, 5),
    "a bytearray": Datum(T, {}, bytearray(b"x")),
    "a set in the data": Datum(T, {}, {"a": {1}}),
    "a time in the data": Datum(T, {}, {"a": T}),
    "a nested time in the metadata": Datum(T, {"a": [T]}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_only_the_datum_that_cannot_be_held_is_refused(name):
    format = make(max_datum_size=500, max_depth=8)
    batch = format.encode([GOOD, REFUSED[name], GOOD])
    ((position, reason),) = batch.refused
    assert position == 1
    assert reason
    assert "\n" not in reason
    assert len(reason) < 300
    assert list(batch.positions()) == [0, 2]
    assert len(batch.payloads) == len(batch.reftimes) == len(batch.metadata) == 2
    assert load(batch.payloads) == [({}, {"n": 1})] * 2


def test_the_limits_themselves_are_held():
    format = make(max_datum_size=500, max_depth=8)
    room = 500 - len(format.encode([Datum(T, {}, b"x" * 300)]).payloads[0])
    held = [
        Datum(T, {}, b"x" * (300 + room)),
        Datum(T, {}, deep(8)),
        Datum(T, {"a": deep(7)}),
        Datum(T, {"station": -(2**63), "x": 2**64 - 1}, {"n": -(2**63)}),
        Datum(from_microseconds(FIRST)),
        Datum(from_microseconds(LAST)),
    ]
    assert not format.encode(held).refused
    assert format.encode([Datum(T, {}, b"x" * (301 + room))]).refused


def test_refusals_among_many_keep_their_positions():
    bad = {0, 127, 128, 129, 300, 499}
    given_data = [Datum(T, {"station": n}, [n] if n in bad else {"n": n}) for n in range(500)]
    batch = SEG.encode(given_data)
    assert [position for position, _ in batch.refused] == sorted(bad)
    assert [content["n"] for _, content in load(batch.payloads)] == list(batch.positions())
    assert [each["station"] for each in batch.metadata] == list(batch.positions())


@pytest.mark.check
@given(st.lists(data | st.sampled_from(list(REFUSED.values())), max_size=5))
@settings(max_examples=up_to(40))
def test_refusals_do_not_touch_the_others(given_data):
    format = make(max_datum_size=500, max_depth=8)
    alone = [format.encode([datum]) for datum in given_data]
    batch = format.encode(given_data)
    assert batch.payloads == [payload for each in alone for payload in each.payloads]
    assert batch.refused == [(at, each.refused[0][1]) for at, each in enumerate(alone) if each.refused]


# Decoding


@pytest.mark.parametrize("payload", [b"", b"x", framed(b"\xa0")[:-1], framed(b"\xa0") * 2, framed(b"\xa0") + b"\0"])
def test_bytes_that_are_not_one_frame_are_reported(payload):
    good = framed(segments.encode([event(n=1)])[0])
    for way in (SEG.describe, SEG.decode):
        with pytest.raises(FrameCorrupt):
            way(payload)
    with pytest.raises(FrameCorrupt) as caught:
        load([good, good, payload, good])
    assert caught.value.context["position"] == 2


def test_the_position_of_an_event_that_is_none_is_reported_among_many():
    payloads = [framed(segments.encode([event(n=n, x=n)])[0]) for n in range(400)]
    for place in (0, 1, 127, 128, 399):
        broken = [*payloads]
        broken[place] = framed(b"\xa1\x65flags\x61x")
        with pytest.raises(FrameCorrupt) as caught:
            load(broken)
        assert caught.value.context["position"] == place


def test_frames_of_megabytes_are_loaded_with_their_positions():
    given_data = [Datum(T, {"n": n}, {"x": "x" * 700_000}) for n in range(4)]
    payloads = SEG.encode(given_data).payloads
    assert [each["n"] for each, _ in load(payloads)] == [0, 1, 2, 3]
    payloads[3] = payloads[3][:-9] + b"\0" + payloads[3][-8:]
    with pytest.raises(FrameCorrupt) as caught:
        load(payloads)
    assert caught.value.context["position"] == 3


def test_a_flip_of_any_bit_of_a_frame_is_reported():
    (payload,) = SEG.encode([Datum(T, {"station": 5}, {"wind": 3.4})]).payloads
    for bit in range(8 * len(payload)):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        for way in (SEG.describe, SEG.decode):
            with pytest.raises(FrameCorrupt):
                way(bytes(flipped))


def test_times_below_a_microsecond_are_cut_off_downwards():
    for timestamp in (NS + 999, NS, -1, -1000, -1001):
        (payload,) = segments.encode([Event(timestamp, 0, {}, {})])
        assert SEG.describe(framed(payload))[0] == timestamp // 1000


def test_a_frame_whose_declared_metadata_is_of_another_type_is_reported_by_name():
    (payload,) = segments.encode([event(meta={"station": "x"})])
    with pytest.raises(FrameCorrupt, match="station"):
        SEG.describe(framed(payload))


def test_declared_timestamps_are_read_from_text_of_any_zone():
    texts = ["2026-11-20T06:00:00Z", "2026-11-20T08:00:00+02:00", "2026-11-20T06:00:00.000000999Z"]
    for text in texts:
        (payload,) = segments.encode([event(meta={"made": text})])
        assert SEG.describe(framed(payload))[1] == {"made": NS // 1000}


# Parsing


def written(count, compression, **meta):
    options = 2 if compression == "lz4" else 0
    return segments.write([[event(n=n, meta={"station": n, **meta}, x=n)] * 1 for n in range(count)], options)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("batch_size", [1, 2, 7, 23, 1000])
def test_batches_are_of_the_size_that_was_asked_for(compression, batch_size):
    batches = parsed(SEG, written(23, compression), batch_size)
    sizes = [len(each) for each in batches]
    assert all(size == batch_size for size in sizes[:-1])
    assert sum(sizes) == 23
    assert [each["station"] for each in whole(batches).metadata] == list(range(23))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("most", [1, 2, 3, 11, 13, 100])
def test_a_stream_may_give_few_bytes_at_a_time(compression, most):
    content = written(30, compression)
    assert parsed(SEG, content, 4, most) == parsed(SEG, content, 4)


@pytest.mark.check
@given(st.lists(st.lists(segments.events, max_size=4), max_size=3), st.sampled_from([0, 2]), st.integers(1, 5))
@settings(max_examples=up_to(30))
def test_events_are_parsed_as_they_came(batches, options, batch_size):
    format = make(fields={})
    events = [each for batch in batches for each in batch]
    found = whole([*parsed(format, segments.write(batches, options), batch_size), format.encode([])])
    assert (found.refused, found.damage, found.notes) == ([], [], [])
    assert found.payloads == [framed(payload) for payload in segments.encode(events)]
    assert found.reftimes == [each.timestamp // 1000 for each in events]
    for each, (metadata, content) in zip(events, load(found.payloads, format), strict=True):
        assert same(dict(metadata), each.meta)
        assert same(content, each.data)


def plain(*payloads):
    return struct.pack("<III", 2, len(payloads), 0) + b"".join(map(framed, payloads))


GOOD_PAYLOADS = segments.encode([event(n=1, x=1), event(n=2, x=2)])
NO_EVENTS = {
    "not CBOR": b"\xff\xff",
    "no map": b"\x83\x01\x02\x03",
    "bytes behind": GOOD_PAYLOADS[0] + b"\0",
    "ends early": GOOD_PAYLOADS[0][:-1],
    "a key twice": b"\xa2\x65flags\x00\x65flags\x00",
    "a tag": b"\xa1\x66fields\xa1\x61a\xc1\x01",
    "meta is text": b"\xa1\x64meta\x61x",
    "timestamp beyond 64 bits": b"\xa1\x69timestamp\x1b" + b"\xff" * 8,
    "timestamp is text": b"\xa1\x69timestamp\x61x",
    "too deep": segments.encode([event(x=deep(20))])[0],
    "another type than declared": segments.encode([event(meta={"station": "x"})])[0],
    "a time that is none": segments.encode([event(meta={"made": "2026-13-20T06:00:00Z"})])[0],
    "undecodable declared text": segments.encode([event(meta={"product": "\udcff"})])[0],
    "a declared integer beyond 63 bits": segments.encode([event(meta={"station": 2**63})])[0],
}


@pytest.mark.parametrize("name", NO_EVENTS)
def test_a_whole_frame_that_is_no_event_is_refused_and_the_rest_goes_on(name):
    format = make(max_depth=16)
    found = whole(parsed(format, plain(GOOD_PAYLOADS[0], NO_EVENTS[name], GOOD_PAYLOADS[1])))
    ((position, reason),) = found.refused
    assert position == 1
    assert str(12 + 12 + len(GOOD_PAYLOADS[0])) in reason
    assert found.payloads == [framed(payload) for payload in GOOD_PAYLOADS]
    assert not found.damage
    assert not found.notes


def test_refused_frames_count_in_batches():
    content = plain(*[GOOD_PAYLOADS[0], b"\xff"] * 10)
    batches = parsed(SEG, content, 4)
    assert [len(each) for each in batches] == [4] * 5
    assert [position for position, _ in whole(batches).refused] == list(range(1, 20, 2))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_damaged_frame_is_passed_over(compression):
    frames = [framed(payload) for payload in segments.encode([event(n=n, x=n) for n in range(5)])]
    damaged = [*frames]
    damaged[2] = frames[2][:20] + bytes((frames[2][20] ^ 1,)) + frames[2][21:]
    format = make(compression=compression)
    file = Stored()
    begun = format.begin()
    file.begin(begun)
    file.append(format, damaged, begun.end)
    found = whole(parsed(format, file.content))
    assert found.payloads == [*frames[:2], *frames[3:]]
    ((offset, size, reason),) = [(each.offset, each.size, each.reason) for each in found.damage]
    assert (offset, size) == (12 + len(frames[0] + frames[1]), len(frames[2]))
    assert "checksum" in reason


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 11])
def test_a_header_that_is_cut_is_damage(size):
    content = written(1, "none")[:size]
    (batch,) = parsed(SEG, content)
    assert not batch.payloads
    ((offset, left, reason),) = [(each.offset, each.size, each.reason) for each in batch.damage]
    assert (offset, left) == (0, size)
    assert "header" in reason


def test_an_empty_file_has_no_data_and_no_damage():
    """This is what `payloads` returns without data."""
    assert not [each for each in parsed(SEG, b"") if len(each) or each.damage]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_empty_segment_has_no_data_and_no_damage(compression):
    for content in {HEADERS[compression][:12], HEADERS[compression]}:
        assert not [each for each in parsed(SEG, content) if len(each) or each.damage or each.notes]


def test_a_frame_count_is_no_reason_to_read_less_and_one_too_high_is_reported():
    content = bytearray(written(3, "none"))
    for count, told in [(0, False), (1, False), (3, False), (4, True), (2**32 - 1, True)]:
        content[4:8] = struct.pack("<I", count)
        found = whole(parsed(SEG, bytes(content)))
        assert len(found.payloads) == 3
        assert not found.damage
        assert bool(found.notes) == told
        assert all(str(count) in note for note in found.notes)


@pytest.mark.parametrize(("head", "name"), [(struct.pack("<I", 4), "version 4"),
                                            (struct.pack("<III", 2, 1, 8), "options 0x8")])  # fmt: skip
def test_unknown_versions_and_options_are_refused_by_name(head, name):
    with pytest.raises(InvalidInput, match=name):
        parsed(SEG, head + bytes(20))


# Recognising


def test_segments_are_recognised_by_their_first_bytes():
    for compression in COMPRESSIONS:
        assert Seg.recognises(HEADERS[compression])
        assert Seg.recognises(written(2, compression))
    assert Seg.recognises(SEG.preamble)
    assert Seg.recognises(struct.pack("<II", 1, 1) + framed(GOOD_PAYLOADS[0]))


@pytest.mark.parametrize("head", [b"", b"\x02", b"\x02\0\0\0", b'{"reftime": "2026-11-20T06:00:00Z"}\n', bytes(12),
                                  b"202611200600,1,227,1,,,000000000\n", struct.pack("<II", 1, 1), b"GRIB" + bytes(20),
                                  struct.pack("<III", 2, 1, 1), struct.pack("<III", 2, 1, 8)])  # fmt: skip
def test_other_files_are_not_recognised(head):
    assert not Seg.recognises(head)


# Laying


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_segment_begins_as_the_documents_say(compression):
    laid = make(compression=compression).begin()
    assert laid.content == HEADERS[compression]
    assert laid.end == End(len(laid.content), 12, 0, compression == "lz4")
    assert not laid.blocks


def test_nothing_laid_changes_nothing():
    for compression in COMPRESSIONS:
        format = make(compression=compression)
        end = format.begin().end
        laid = format.lay([], end)
        assert (laid.content, laid.end, list(laid.blocks)) == (b"", end, [])


@given(
    st.lists(st.lists(data, max_size=3), min_size=1, max_size=4),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from([0, 100, 70_000]),
)
@settings(max_examples=up_to(40))
def test_a_segment_grows_and_beats_accepts_it_after_every_append(batches, compression, extra):
    format = make(compression=compression)
    file = Stored()
    laid = format.resume(file, End())
    assert laid == format.begin()
    file.begin(laid)
    end, payloads, table = laid.end, [], []
    for batch in batches:
        more = format.encode([*batch, Datum(T, {}, b"\0" * extra)]).payloads
        laid = file.append(format, more, end)
        payloads += more
        table += laid.blocks
        end = laid.end
        assert end == End(len(file.content), 12 + sum(map(len, payloads)), len(payloads), compression == "lz4")
        assert len(beats_reader.read(file.content)) == len(payloads)
        assert format.resume(file, End()).end == end
        assert format.resume(file, end).end == end
        assert file.content[4:8] == struct.pack("<I", len(payloads))
    if compression == "none":
        assert not table
        assert file.content[12:] == b"".join(payloads)
        return
    unpacked = [format.unpack(file.read(each.position, each.stored)) for each in table]
    assert b"".join(unpacked) == b"".join(payloads)
    offset, position = 12, 19
    for each, content in zip(table, unpacked, strict=True):
        assert (each.offset, each.position) == (offset, position)
        offset, position = offset + len(content), position + each.stored


def test_a_frame_count_beyond_32_bits_stays_at_the_most():
    format = make()
    begun = format.begin().end
    laid = format.lay([b"x"], End(begun.size, begun.length, 2**32 + 5, begun.compressed))
    assert laid.end.count == 2**32 + 6
    assert format.patch(laid.end).content == b"\xff" * 4


# Appending to an existing file


def built(compression, sizes=(10, 200, 30), flush=1):
    """Return a segment, its frames, and where each flush ends in the file."""
    format = make(compression=compression)
    file = Stored()
    laid = format.begin()
    file.begin(laid)
    ends, frames = [laid.end], []
    payloads = format.encode([Datum(T, {}, {"n": n, "x": bytes(range(256))[:size]}) for n, size in enumerate(sizes)])
    for at in range(0, len(sizes), flush):
        more = payloads.payloads[at : at + flush]
        frames += more
        ends.append(file.append(format, more, ends[-1]).end)
    return format, file, frames, ends


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("other", COMPRESSIONS)
def test_a_file_that_holds_no_more_than_a_beginning_begins_anew(compression, other):
    format = make(compression=compression)
    for size in range(len(HEADERS[other]) + 1):
        if (other, size) in (("lz4", 12), ("lz4", 19)) and compression == "lz4":
            assert format.resume(Stored(HEADERS[other][:size]), End()).end == format.begin().end
        file = Stored(HEADERS[other][:size])
        laid = format.resume(file, End())
        file.begin(laid)
        file.append(format, [framed(GOOD_PAYLOADS[0])], laid.end)
        assert len(beats_reader.read(file.content)) == 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_torn_end_is_cut_off_at_every_byte(compression):
    """The whole frames, in LZ4 the whole blocks, are kept, with any count in the header; one too high stays."""
    format, file, frames, ends = built(compression)
    for size in range(len(file.content)):
        for count in (0, 1, 3, 7):
            torn = Stored((file.content[:4] + struct.pack("<I", count) + file.content[8:])[:size])
            laid = format.resume(torn, End())
            kept = sum(end.size <= size for end in ends[1:])
            highest = max(count, kept) if size > len(HEADERS[compression]) else 0
            assert laid.end == ends[kept]._replace(count=highest), size
            torn.begin(laid)
            after = torn.append(format, [framed(GOOD_PAYLOADS[0])], laid.end).end
            assert after.count == highest + 1
        counted = torn.content[:4] + struct.pack("<I", kept + 1) + torn.content[8:]
        assert len(beats_reader.read(counted)) == kept + 1
        assert b"".join(whole(parsed(format, torn.content)).payloads).startswith(b"".join(frames[:kept]))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_torn_frame_of_several_blocks_is_cut_off(compression):
    format, file, _, ends = built(compression, sizes=(5,))
    large = format.encode([Datum(T, {}, {"x": bytes(range(256)) * 1000})]).payloads
    file.append(format, large, ends[-1])
    for size in range(ends[-1].size, file.size(), 97 if compression == "lz4" else 9973):
        assert format.resume(Stored(file.content[:size]), End()).end == ends[-1]._replace(count=2), size


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_behind_a_known_end_whole_frames_stay_and_a_torn_one_is_cut(compression):
    format, file, _, ends = built(compression)
    for known in ends:
        for size in range(known.size, file.size() + 1):
            kept = [end for end in ends if end.size <= size][-1]
            assert format.resume(Stored(file.content[:size]), known).end == kept._replace(count=3)


@pytest.mark.parametrize("flush", [1, 2, 4])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_whole_frame_behind_damage_is_ever_cut_off(compression, flush):
    """After a flip of any bit in the first half, the second half is kept, or nothing is appended."""
    format, file, _, ends = built(compression, sizes=(5, 40, 20, 30), flush=flush)
    behind = ends[len(ends) // 2].size if flush < 4 else 40
    for bit in range(8 * behind):
        flipped = bytearray(file.content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged = Stored(bytes(flipped))
        try:
            with at_most(1):
                laid = format.resume(damaged, End())
        except (SegmentCorrupt, StateError):
            continue
        assert laid.content == b"", bit
        assert laid.end.size == file.size(), (bit, "was cut")


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13])
def test_a_whole_frame_behind_a_damaged_trailing_length_is_found_in_time(length):
    """Walking back over frames always makes progress."""
    format, file, frames, ends = built("none")
    content = file.content[: ends[2].size - 4] + struct.pack("<I", length) + frames[2]
    with at_most(1), pytest.raises(SegmentCorrupt):
        format.resume(Stored(content), End())


def test_a_frame_in_a_block_whose_length_is_damaged_does_not_take_the_blocks_behind_it():
    """The blocks are whole; by its length, the first frame of the second ends far after the last block."""
    format, _, frames, _ = built("lz4")
    file = Stored(HEADERS["lz4"])
    end = format.begin().end
    damaged = struct.pack("<I", 60_000) + frames[1][4:]
    for each in (frames[0], damaged, frames[2]):
        end = file.append(format, [each], end).end
    with pytest.raises(SegmentCorrupt):
        format.resume(file, End())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_frames_larger_than_max_datum_size_allows_now_are_not_cut_off(compression):
    _, file, _, ends = built(compression, sizes=(10, 200))
    format = make(compression=compression, max_datum_size=150)
    try:
        laid = format.resume(file, End())
    except (SegmentCorrupt, StateError):
        return
    assert laid.end == ends[-1]


def test_an_lz4_frame_with_something_behind_its_end_mark_is_not_continued():
    """The mark alone may be zeros that a power cut left behind the data."""
    format, file, _, _ = built("lz4")
    with pytest.raises(SegmentCorrupt, match="no LZ4 frame"):
        format.resume(Stored(file.content + bytes(4) + b"\x12\x34\x56\x78"), End())
    with pytest.raises(StateError, match="sealed") as caught:
        format.resume(Stored(file.content + bytes(4) + lz4.frame.compress(framed(GOOD_PAYLOADS[0]))), End())
    assert "epack" in caught.value.hint


def test_drafts_are_not_continued():
    with pytest.raises(StateError, match="draft of version 3"):
        SEG.resume(Stored(struct.pack("<I", 3) + b"x" * 50), End())


def test_what_only_looks_like_version_0_is_neither_cut_nor_empty():
    for content in (bytes(4) + b"x" * 50, bytes(4) + framed(GOOD_PAYLOADS[0])):
        with pytest.raises(SegmentCorrupt, match="no event in JSON"):
            SEG.resume(Stored(content), End())
        scanned = Scanned.of(SEG, content)
        assert [each.size for each in scanned.found.damage] == [len(content)]


@pytest.mark.parametrize("zeros", [1, 3, 4, 5, 8, 12, 4096])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_zeros_that_a_power_cut_left_behind_the_data_are_cut_off(compression, zeros):
    format, file, _, ends = built(compression)
    laid = format.resume(Stored(file.content + bytes(zeros)), End())
    assert (laid.content, laid.end) == (b"", ends[-1])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [1, 12, 19, 4096, 3_000_000])
def test_a_file_of_zeros_is_not_empty_and_not_overwritten(compression, size):
    """They may be what is left of data."""
    format, zeros = make(compression=compression), Stored(bytes(size))
    assert not format.is_empty(zeros)
    assert not format.is_readable(zeros)
    with pytest.raises(SegmentCorrupt, match="only zeros"):
        format.resume(zeros, End())


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_header_that_counts_more_frames_than_the_file_has_says_how_many_are_lost(compression, kept):
    format, file, _, ends = built(compression)
    for torn in (b"", file.content[ends[kept].size :][:10]):
        content = file.content[: ends[kept].size] + torn * (kept < 3)
        found = [*format.scan(Stored(content))]
        assert [each.missing for each in found] == [0] * (len(found) - 1) + [3 - kept]
        assert not any(each.damage for each in found)
        batch = whole(parsed(format, content))
        assert len(batch.damage) + batch.missing == 3 - kept
        for count in (0, kept):
            other = content[:4] + struct.pack("<I", count) + content[8:]
            assert not sum(each.missing for each in format.scan(Stored(other)))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_frame_that_is_reported_as_damage_is_not_missing_as_well(compression):
    format, file, _, ends = built(compression, sizes=(10, 200, 30, 40))
    content = bytearray(file.content[: ends[3].size])
    content[ends[2].size - 20] ^= 1
    found = [*format.scan(Stored(bytes(content)))]
    assert sum(len(each.offsets) for each in found) == 2
    assert sum(len(each.damage) for each in found) == 1
    assert found[-1].missing == 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_append_before_the_fix_does_not_hide_how_many_frames_are_lost(compression):
    format, file, _, ends = built(compression)
    cut = Stored(file.content[: ends[1].size])
    laid = format.resume(cut, End())
    cut.begin(laid)
    cut.append(format, [framed(GOOD_PAYLOADS[0])], laid.end)
    found = [*format.scan(cut)]
    assert (sum(len(each.offsets) for each in found), found[-1].missing) == (2, 2)


def test_a_segment_of_version_1_is_continued():
    file = Stored(struct.pack("<II", 1, 1) + framed(GOOD_PAYLOADS[0]))
    laid = SEG.resume(file, End())
    assert laid.end == End(file.size(), file.size(), 1, False, Header(1).kind)
    file.append(SEG, [framed(GOOD_PAYLOADS[1])], laid.end)
    found = whole(parsed(SEG, file.content))
    assert found.payloads == [framed(payload) for payload in GOOD_PAYLOADS]
    assert not found.notes
    assert file.content[:8] == struct.pack("<II", 1, 2)


@given(st.binary(max_size=80), st.sampled_from(COMPRESSIONS), st.booleans())
def test_any_bytes_in_place_of_a_segment_are_refused_or_continued(content, compression, headed):
    format = make(compression=compression)
    file = Stored(HEADERS[compression] + content if headed else content)
    try:
        laid = format.resume(file, End())
    except (SegmentCorrupt, StateError):
        return
    file.begin(laid)
    file.append(format, [framed(GOOD_PAYLOADS[0])], laid.end)
    assert len(whole(parsed(format, file.content)).payloads) == laid.end.count + 1
