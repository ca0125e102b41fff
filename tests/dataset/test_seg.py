"""Datasets of the format `seg`: files of Beats come in, segments grow, data come back, and Beats accepts the result."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import struct
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from zlib import crc32

import lz4.block
import lz4.frame
import pytest
from drawn import up_to
from formats.diskqueue import beats_reader, segments
from formats.diskqueue.test_golden import COMPRESSED, FILES, GOLDEN, expectations, expected_events
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY_TYPE, same, strategies
from worlds import lose_index

import ondisk
from ondisk import Datum, Location
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.datum import FieldType, from_microseconds
from ondisk.errors import (
    DatumNotFound,
    DiskFull,
    FrameCorrupt,
    IndexCorrupt,
    IntegrityError,
    InvalidInput,
    KeyMissing,
    SegmentCorrupt,
    StateError,
)
from ondisk.formats.diskqueue import blocks
from ondisk.formats.diskqueue.cbor_payload import FIRST_KEY
from ondisk.formats.diskqueue.payload import Event
from ondisk.index import INDEX
from ondisk.index.transaction import Transaction
from ondisk.replication.feed import Kind

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
NS = 1_795_154_400_000_000_000
SEGMENT = "2026/11-20.seg"
KINDS = {name: FieldType(kind) for name, kind in EVERY_TYPE.items()}
COMPRESSIONS = ["lz4", "none"]
HEADER = {"none": 12, "lz4": 19}
UNTOUCHED = ["v2draft-enc", "v3draft-lz4stream"]


def golden(variant, name):
    return (GOLDEN / variant / name).read_bytes()


def config(**values):
    return {"format": "seg", "step": "daily", "fields": {"station": "integer"}} | values


@pytest.fixture
def make(create):
    return lambda name="dataset", **values: create(name, **config(**values))


def numbered(n, size=0, **metadata):
    return Datum(T + timedelta(seconds=n), {"station": n, **metadata}, {"n": n, "x": bytes(range(256))[:size]})


def numbers(dataset):
    return [each.data["n"] for each in dataset.query()]


def segment(dataset, name=SEGMENT):
    return (dataset.path / name).read_bytes()


def put(dataset, content, name=SEGMENT):
    """Put a file where a segment would be."""
    (dataset.path / name).parent.mkdir(exist_ok=True)
    (dataset.path / name).write_bytes(content)


def rot(dataset, content):
    """Change a segment's bytes as a bad disk does: nobody wrote the file."""
    path = dataset.path / SEGMENT
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))


def recounted(content, count):
    """Return a segment with another number of frames in its header."""
    return content[:4] + struct.pack("<I", count) + content[8:]


def count_of(content):
    """Return the number of frames in the header."""
    return struct.unpack_from("<I", content, 4)[0]


def frames_of(content):
    """Return the whole frames of an undamaged segment, without ondisk."""
    version, _, options = struct.unpack_from("<III", content + bytes(8))
    data = content[4 + 4 * version :]
    if version == 2 and options & 2:
        data = beats_reader.decompress(data) if data[:4] == b"\x04\x22\x4d\x18" else b""
    return [framed(payload) for payload in beats_reader.frames(data)]


def framed(payload):
    length = struct.pack("<I", len(payload) + 12)
    return length + payload + struct.pack("<I", crc32(length + payload)) + length


def reconfigure(path, **values):
    """Change dataset.toml, as a person with an editor does."""
    text = (path / "dataset.toml").read_text()
    lines = [line for line in text.split("\n") if line.split(" = ")[0] not in values]
    (path / "dataset.toml").write_text(
        "\n".join([f"{key} = {json.dumps(value)}" for key, value in values.items()] + lines)
    )


# What Beats wrote


SAME_KIND = {
    "v0": {"version": 0},
    "v1": {"version": 1},
    "v2-plain": {},
    "v2-lz4": {"compression": "none"},
    "v2-pb": {"payload": "protobuf"},
    "v2-lz4-pb-late": {"payload": "protobuf", "compression": "none"},
}


@pytest.mark.parametrize(("variant", "name"), FILES)
def test_a_file_of_beats_comes_in_as_it_is(make, variant, name):
    dataset = make(fields={}, **SAME_KIND[variant])
    result = dataset.append_file(GOLDEN / variant / name)
    expected = expected_events(variant, name)
    found = list(dataset.query())
    assert result.imported == len(found) >= expectations(variant)[name]["frames_mode"]["n"]
    assert not result.refused
    # In order, each is one of those that were written: nothing wrong ever comes out.
    left = iter(sorted(expected, key=lambda event: event.timestamp // 1000))
    taken = []
    for each in found:
        event = next(
            event for event in left if from_microseconds(event.timestamp // 1000) == each.reftime
            and same(event.fields, each.data) and same(event.meta, dict(each.metadata))
        )  # fmt: skip
        taken.append(event)
    originals = frames_of(golden(variant, name if name in ("0.seg", "1.seg", "15.seg") else "2.seg"))
    stored = list(dataset.payloads())
    preambles = {"v0": "00000000", "v1": "0100000000000000", "v2-pb": "020000000000000004000000"}
    preambles["v2-lz4-pb-late"] = preambles["v2-pb"]
    assert stored[:1] in ([], [bytes.fromhex(preambles.get(variant, "020000000000000000000000"))])
    assert stored[1:] == [originals[expected.index(event)] if name != "15.seg" else stored[1 + at]
                          for at, event in enumerate(taken)]  # fmt: skip
    assert sorted(stored[1:]) == sorted(set(stored[1:]) & set(originals))
    damaged = name in ("10.seg", "11.seg", "13.seg") or (
        name in ("5.seg", "6.seg", "7.seg") and (name != "5.seg" or variant not in COMPRESSED)
    )
    assert bool(result.damage) == damaged
    count = expectations(variant)[name].get("header_frame_count", 0)
    assert bool(result.notes) == (count > len(found))
    if not damaged and name != "8.seg":
        assert len(found) == len(expected)


@pytest.mark.check
@pytest.mark.parametrize("variant", SAME_KIND)
def test_a_file_of_beats_is_converted_to_what_the_dataset_writes(make, variant):
    expected = sorted(expected_events(variant, "2.seg"), key=lambda event: event.timestamp // 1000)
    for other, chosen in SAME_KIND.items():
        dataset = make(other, fields={}, **chosen)
        result = dataset.append_file(GOLDEN / variant / "2.seg")
        loses = other == "v0" and variant != "v0" and not variant.endswith("pb")  # 2**64 - 1
        assert (result.imported, result.refused) == (20 - len(result.refusals), len(result.refusals))
        assert all("63 bits" in reason for _, reason in result.refusals)
        assert bool(result.refused) == loses
        found = {each.reftime: each for each in dataset.query()}
        for event in expected:
            each = found.pop(from_microseconds(event.timestamp // 1000), None)
            if each is None:
                assert loses
            else:
                assert same([event.meta, event.fields], [dict(each.metadata), each.data])
        assert not found
        assert not any(each.state for each in dataset.check(accurate=True).segments)
        if not {variant, other} <= {"v2-pb", "v2-lz4-pb-late"} and (variant, other) != ("v0", "v0"):  # they stay
            segments_of = sorted(dataset.path.glob("*/*.seg"))
            read = [event for path in segments_of for event in beats_reader.read(path.read_bytes())]
            assert len(read) == result.imported


@pytest.mark.parametrize(("variant", "name"), FILES)
def test_a_file_of_beats_in_the_place_of_a_segment_is_read_where_it_is(make, variant, name):
    dataset = make(fields={}, step="yearly")
    put(dataset, golden(variant, name), "20/2020.seg")
    fixed = dataset.fix()
    found = list(dataset.query())
    expected = expected_events(variant, name)
    assert len(found) >= expectations(variant)[name]["frames_mode"]["n"]
    left = iter(sorted(expected, key=lambda event: event.timestamp // 1000))
    for each in found:
        event = next(one for one in left if from_microseconds(one.timestamp // 1000) == each.reftime)
        assert same([event.meta, event.fields], [dict(each.metadata), each.data])
    if fixed.lost == 0 and found:
        more = [Datum(datetime(2020, 12, 1, tzinfo=UTC), {}, {"more": n}) for n in range(3)]
        assert dataset.append(more).imported == 3
        again = [each for each in dataset.query() if "more" not in each.data]
        assert same([[each.reftime, each.data] for each in again], [[each.reftime, each.data] for each in found])
        dataset.repack()
        assert len([*dataset.query()]) == len(found) + 3


@pytest.mark.parametrize("variant", ["v1", "v2-plain"])
def test_of_a_damaged_plain_file_all_but_the_damaged_frame_comes_in(make, variant):
    sizes = [len(each) for each in frames_of(golden(variant, "2.seg"))]
    begin = 8 if variant == "v1" else 12
    for name in ("10.seg", "11.seg", "13.seg"):  # the checksum, the first or the last length of a frame is wrong
        result = make(name).append_file(GOLDEN / variant / name)
        assert result.imported == 19
        assert [(each.offset, each.size) for each in result.damage] == [(begin + sum(sizes[:10]), sizes[10])]
    for name, left in (("5.seg", sizes[-1] - 3), ("7.seg", 2)):
        result = make(name).append_file(GOLDEN / variant / name)
        assert result.imported == 19
        assert [(each.offset, each.size) for each in result.damage] == [(begin + sum(sizes[:-1]), left)]
        assert all(each.reason for each in result.damage)


@pytest.mark.parametrize(
    ("name", "imported", "before"), [("6.seg", 15, 15), ("7.seg", 15, 15), ("11.seg", 14, 1), ("13.seg", 20, 0)]
)
def test_damage_in_lz4_takes_the_data_of_one_block(make, name, imported, before):
    """6.seg and 7.seg end in their last block; 11.seg has a damaged block, 13.seg a damaged header of its LZ4 frame."""
    result = make().append_file(GOLDEN / "v2-lz4" / name)
    assert result.imported == imported
    (damage,) = result.damage
    frames = frames_of(golden("v2-lz4", "2.seg"))
    assert damage.offset == 12 + sum(map(len, frames[:before]))
    assert damage.reason
    assert damage.size > 0


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_flipped_byte_is_an_error_however_the_data_are_read(make, compression):
    """The bytes of each datum are compared with its checksum, those of `payloads`, too."""
    dataset = make(compression=compression)
    for n in range(4):
        dataset.append([numbered(n, size=100)])
    content, whole = segment(dataset), [*dataset.query()]
    at = content.index(bytes(range(40, 60)), len(content) // 2)
    put(dataset, content[:at] + b"!" + content[at + 1 :])
    for read in (lambda: [*dataset.payloads()], lambda: [*dataset.query()], lambda: dataset.read(whole[0].location)):
        with pytest.raises(SegmentCorrupt, match="is not the file that the index describes"):
            read()
    put(dataset, content)
    dataset.fix()  # records the facts of what was restored
    rot(dataset, content[:at] + b"!" + content[at + 1 :])
    raw = []
    with pytest.raises(FrameCorrupt, match="checksum is 0x") as caught:
        raw.extend(dataset.payloads())
    damaged = [each.location for each in whole].index(caught.value.context["location"])
    assert len(raw) == 1 + damaged  # the header of the file is the first
    with pytest.raises(FrameCorrupt, match="checksum is 0x"):
        [*dataset.query()]
    with pytest.raises(IntegrityError):
        dataset.read(whole[damaged].location)


@pytest.mark.check
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_changed_byte_is_damage_of_the_segment_and_not_of_the_index(make, compression):
    """LZ4 decompresses some damaged blocks, to fewer or more bytes."""
    dataset = make(compression=compression)
    for n in range(3):
        dataset.append([Datum(T + timedelta(hours=n), {}, b"x" * 50 + bytes([n]))])
    content, whole = segment(dataset), [*dataset.query()]
    for at in range(len(content)):
        rot(dataset, content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        for change, datum in zip(dataset.changes().changes, whole, strict=True):
            assert change.datum == datum or (change.kind is Kind.UNREADABLE and type(change.error) is not IndexCorrupt)
        with contextlib.suppress(FrameCorrupt, SegmentCorrupt):
            assert [*dataset.query()] == whole


@pytest.mark.parametrize("variant", UNTOUCHED)
def test_drafts_without_a_key_are_refused_by_name_and_left(make, variant):
    content = golden(variant, "1.seg")
    dataset = make()
    for source in (GOLDEN / variant / "1.seg", io.BytesIO(content)):
        with pytest.raises((InvalidInput, KeyMissing), match="key"):
            dataset.append_file(source, "seg")
    put(dataset, content)
    with pytest.raises(StateError, match=r"draft|unknown options"):
        dataset.append([numbered(1)])
    assert segment(dataset) == content
    assert dataset.summary().count == 0


# Growing


contents = st.none() | st.binary(max_size=60) | segments.mappings
undeclared = st.dictionaries(segments.keys.filter(lambda key: key not in EVERY_TYPE), segments.values, max_size=2)
metadatas = st.builds(lambda one, other: {**one, **other}, undeclared, strategies.metadata(KINDS))
days = st.builds(lambda day, part: T + timedelta(days=day, microseconds=part), st.integers(0, 1), st.integers(0, 10**9))
data = st.builds(Datum, days, metadatas, contents)


@pytest.mark.check
@settings(max_examples=up_to(15))
@given(st.lists(st.tuples(st.lists(data, max_size=3), st.booleans()), min_size=1, max_size=3),
       st.sampled_from(COMPRESSIONS))  # fmt: skip
def test_what_ondisk_writes_beats_accepts_and_both_read_what_was_given(appends, compression):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "dataset"
        dataset = ondisk.create(path, config(fields=EVERY_TYPE, compression=compression))
        given_data = []
        for more, reopened in appends:
            if reopened:
                dataset.close()
                dataset = ondisk.open(path)
            assert dataset.append(more).imported == len(more)
            given_data += more
            counts = {}
            for each in given_data:
                counts.setdefault(f"{each.reftime:%Y/%m-%d}.seg", []).append(each)
            for name, those in counts.items():
                content = (path / name).read_bytes()
                read = beats_reader.read(content)
                assert struct.unpack_from("<I", content, 4) == (len(those),)
                for (timestamp, _, _, fields), each in zip(read, those, strict=True):
                    assert from_microseconds(timestamp // 1000) == each.reftime
                    assert same(fields, {"data": each.data} if type(each.data) is bytes else each.data or {})
        expected = sorted(given_data, key=lambda each: each.reftime)
        for each, found in zip(expected, dataset.query(), strict=True):
            assert found.reftime == each.reftime
            assert same(found.data, {} if each.data is None else each.data)
            assert same(dict(found.metadata), dict(each.metadata))
            assert same(dataset.read(found.location).data, found.data)
        dataset.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_header_counts_the_frames_after_every_append(make, compression):
    dataset = make(compression=compression)
    count = 0
    for more in (1, 3, 0, 200, 1):
        dataset.append([numbered(count + n) for n in range(more)])
        count += more
        assert struct.unpack_from("<I", segment(dataset), 4) == (count,)
        with pytest.raises(RuntimeError):
            dataset.append(failing())
        assert struct.unpack_from("<I", segment(dataset), 4) == (count,)


def failing():
    yield numbered(1000)
    raise RuntimeError


def test_an_append_that_fails_takes_back_the_count(make, monkeypatch):
    for compression in COMPRESSIONS:
        dataset = make(compression, compression=compression)
        dataset.append([numbered(1)])
        before = segment(dataset)
        fail_at_commit(monkeypatch, dataset, [numbered(2)])
        assert segment(dataset) == before
        dataset.append([numbered(3)])
        assert len(beats_reader.read(segment(dataset))) == 2


def fail_at_commit(monkeypatch, dataset, given_data):
    def fail(_):
        raise DiskFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", fail)
        with pytest.raises(DiskFull):
            dataset.append(given_data)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_append_that_fails_in_an_empty_file_leaves_one_that_can_be_appended_to(make, monkeypatch, compression):
    """A crash leaves an empty file, then the disk is full: later there is room again."""
    dataset = make(compression=compression)
    put(dataset, b"")
    fail_at_commit(monkeypatch, dataset, [numbered(1)])
    dataset.append([numbered(2)])
    assert numbers(dataset) == [2]


def test_after_reopening_the_same_lz4_frame_goes_on(make):
    dataset = make()
    dataset.append([numbered(1)])
    first = segment(dataset)
    dataset.close()
    with ondisk.open(dataset.path) as again:
        again.append([numbered(2)])
        assert segment(again)[8 : len(first)] == first[8:]
        assert segment(again).count(b"\x04\x22\x4d\x18") == 1
        assert lz4.frame.get_frame_info(segment(again)[12:])["block_size"] == 64 * 1024
        assert numbers(again) == [1, 2]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [65_400, 65_536, 65_600, 131_072, 1_500_000])
def test_frames_around_and_above_the_size_of_a_block_come_back(make, compression, size):
    dataset = make(compression=compression)
    values = [bytes(n % 251 for n in range(256)) * (size // 256 + 1), b"small", b"\0" * size]
    for value in values:
        dataset.append([Datum(T, {}, value[:size]), Datum(T, {}, b"between")])
    expected = [each for value in values for each in (value[:size], b"between")]
    found = list(dataset.query())
    assert [each.data for each in found] == expected
    assert [dataset.read(each.location).data for each in found] == expected
    assert len(beats_reader.read(segment(dataset))) == 6


def test_reading_one_datum_decodes_its_own_blocks_only(make, monkeypatch):
    dataset = make()
    for n in range(20):
        dataset.append([numbered(n, 100)])
    large = Datum(T + timedelta(hours=1), {"station": 99}, bytes(range(256)) * 1000)
    dataset.append([large])
    dataset.append([numbered(21, 100)])
    calls = []
    unpack = blocks.unpack
    monkeypatch.setattr(blocks, "unpack", lambda *given, **limits: calls.append(1) or unpack(*given, **limits))
    assert [each.data["n"] for each in dataset.query(station=7)] == [7]
    assert len(calls) == 1
    (found,) = dataset.query(station=99)
    assert found == large
    assert len(calls) == 1 + 8
    assert dataset.read(found.location) == large
    assert len(calls) == 1 + 2 * 8


def test_damage_in_one_block_leaves_the_data_of_the_others(make):
    dataset = make()
    dataset.append([numbered(1, 100)])
    size = len(segment(dataset))
    dataset.append([numbered(2, 100)])
    content = bytearray(segment(dataset))
    content[19:size] = bytes(size - 19)
    rot(dataset, content)
    assert [each.data["n"] for each in dataset.query(station=2)] == [2]
    with pytest.raises(SegmentCorrupt):
        list(dataset.query(station=1))


@pytest.mark.parametrize("first", COMPRESSIONS)
def test_a_changed_compression_holds_for_new_segments(make, first):
    second = "none" if first == "lz4" else "lz4"
    dataset = make(compression=first)
    dataset.append([numbered(1)])
    dataset.close()
    reconfigure(dataset.path, compression=second)
    with ondisk.open(dataset.path) as again:
        tomorrow = Datum(T + timedelta(days=1), {"station": 3}, {"n": 3})
        again.append([numbered(2), tomorrow])
        options = {name: segment(again, name)[8] for name in (SEGMENT, "2026/11-21.seg")}
        assert options == {SEGMENT: 2 * (first == "lz4"), "2026/11-21.seg": 2 * (second == "lz4")}
        assert numbers(again) == [1, 2, 3]
        assert len(beats_reader.read(segment(again))) == 2
        assert len(beats_reader.read(segment(again, "2026/11-21.seg"))) == 1


# Ends of segments


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("tail", [b"x", bytes(4), bytes(100), b"\xff" * 1000, "whole"])
def test_behind_the_committed_end_of_a_known_segment_anything_is_cut_off(make, compression, tail):
    dataset = make(compression=compression)
    dataset.append([numbered(1)])
    before = segment(dataset)
    tail = before[HEADER[compression] :] * 2 if tail == "whole" else tail
    put(dataset, before + tail)
    dataset.append([numbered(2)])
    assert segment(dataset)[8 : len(before)] == before[8:]
    assert len(beats_reader.read(segment(dataset))) == 2
    assert numbers(dataset) == [1, 2]


def test_a_known_segment_that_is_gone_or_too_short_is_reported(make):
    for compression in COMPRESSIONS:
        dataset = make(compression, compression=compression)
        dataset.append([numbered(1)])
        content = segment(dataset)
        put(dataset, content[:-1])
        with pytest.raises(SegmentCorrupt):
            dataset.append([numbered(2)])
        assert segment(dataset) == content[:-1]
        (dataset.path / SEGMENT).unlink()
        refused = dataset.append([numbered(2)])
        assert (refused.imported, refused.refused) == (0, 1)
        assert "is in the index, but not on disk" in refused.refusals[0][1]
        assert not (dataset.path / SEGMENT).exists()


@pytest.mark.check
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_where_the_index_is_lost_data_stay_and_a_torn_end_is_cut(make, compression):
    dataset = make(compression=compression)
    ends = []
    for n in range(3):
        dataset.append([numbered(n)])
        ends.append(len(segment(dataset)))
    whole = segment(dataset)
    dataset.close()
    lose_index(path := dataset.path)
    steps = (0, 1, 3, 4, 5, 20, ends[2] - ends[1] - 1)  # test_seg of the format cuts at every byte
    for size in [*(ends[1] + step for step in steps), ends[2], ends[1] - 1, ends[0]]:
        again = ondisk.open(path)
        assert again.needs_check
        put(again, whole[:size])
        kept = sum(end <= size for end in ends)
        again.append([numbered(7)])
        content = segment(again)
        counted = max(kept, 3 if size > HEADER[compression] else 0) + 1  # the header goes on saying that some are lost
        assert struct.unpack_from("<I", content, 4) == (counted,)
        assert len(beats_reader.read(content[:4] + struct.pack("<I", kept + 1) + content[8:])) == kept + 1
        assert numbers(again) == [7]
        again.append([numbered(8)])
        assert numbers(again) == [7, 8]
        again.close()
        lose_index(path)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_appends_go_behind_data_that_an_older_index_does_not_know(make, compression):
    """The index was restored from a backup: data behind what it knows stay, and the rest can be read together."""
    dataset = make(compression=compression)
    dataset.append([numbered(1)])
    dataset.close()
    backup = (dataset.path / INDEX).read_bytes()
    with ondisk.open(dataset.path) as between:
        between.append([numbered(2)])
    lose_index(dataset.path)
    (dataset.path / INDEX).write_bytes(backup)
    (dataset.path / SENTINEL).touch()
    with ondisk.open(dataset.path) as again:
        again.append([numbered(3)])
        assert len(beats_reader.read(segment(again))) == 3
        assert [each.data["n"] for each in again.query(station=3)] == [3]
        assert [each.data["n"] for each in again.query(station=1)] == [1]
        assert numbers(again) == [1, 3]


@pytest.mark.parametrize("known", [False, True])
def test_whole_frames_behind_damage_are_left_alone(make, known):
    dataset = make(compression="none")
    for n in range(3):
        dataset.append([numbered(n)])
    content = bytearray(segment(dataset))
    content[40] ^= 1
    if known:
        content = bytearray(segment(dataset))
        content += content[12:]
        content[len(segment(dataset)) + 30] ^= 1
        (dataset.path / SENTINEL).touch()
    dataset.close()
    path = dataset.path
    if not known:
        lose_index(path)
    with ondisk.open(path) as again:
        put(again, bytes(content))
        with pytest.raises(SegmentCorrupt) as caught:
            again.append([numbered(9)])
        assert SEGMENT in caught.value.message
        assert caught.value.hint
        assert segment(again) == content


def test_blocks_behind_a_damaged_block_are_left_alone(make):
    dataset = make()
    ends = []
    for n in range(4):
        dataset.append([numbered(n, 50)])
        ends.append(len(segment(dataset)))
    whole = segment(dataset)
    dataset.close()
    lose_index(path := dataset.path)
    for bit in (0, 4, 9, 15, 31):  # of the size of the second block
        content = bytearray(whole)
        content[ends[0] + bit // 8] ^= 1 << bit % 8
        with ondisk.open(path) as again:
            put(again, bytes(content))
            with pytest.raises((SegmentCorrupt, StateError)):
                again.append([numbered(9)])
            assert segment(again) == content, bit


@pytest.mark.parametrize("name", ["2.seg", "4.seg", "0.seg", "1.seg"])
def test_an_lz4_frame_of_beats_is_not_continued(make, name):
    content = golden("v2-lz4", name)
    dataset = make()
    put(dataset, content)
    with pytest.raises(StateError) as caught:
        dataset.append([numbered(1)])
    assert "epack" in str(caught.value)
    assert segment(dataset) == content
    assert dataset.summary().count == 0


@pytest.mark.parametrize("variant", ["v1", "v2-plain"])
def test_a_plain_segment_of_beats_is_continued(make, variant):
    for name in ("2.seg", "4.seg", "5.seg"):
        dataset = make(name)
        content = golden(variant, name)
        put(dataset, content)
        dataset.append([numbered(1)])
        frames = frames_of(golden(variant, "2.seg"))[: 19 if name == "5.seg" else 20]
        assert segment(dataset)[8:].startswith(content[8 : 12 if variant == "v2-plain" else 8] + b"".join(frames))
        assert numbers(dataset) == [1]
        # If the count says that frames are lost, it still does after the append.
        (count,) = struct.unpack_from("<I", content, 4)
        assert struct.unpack_from("<I", segment(dataset), 4) == (max(count, len(frames)) + 1,)


def test_a_damaged_frame_in_which_whole_ones_may_be_is_not_cut_off_after_a_fix(make):
    dataset = make(compression="none")
    dataset.append([numbered(0), Datum(T, {"station": 1}, framed(b"\xa2" + FIRST_KEY))])
    content = bytearray(segment(dataset))
    content[-7] ^= 1  # of the checksum of the second frame, whose data are a whole frame
    dataset.append([numbered(2)])
    dataset.close()
    lose_index(path := dataset.path)
    (path / SEGMENT).write_bytes(content)
    with ondisk.open(path) as again:
        again.fix()
        assert numbers(again) == [0]
        again.append([numbered(3)])
        assert segment(again)[8:].startswith(content[8:])
        assert numbers(again) == [0, 3]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_datum_of_exactly_the_largest_size_is_stored_and_read_again(make, compression, tmp_path):
    one = numbered(1, 100)
    size = make("other").append([one]).bytes
    dataset = make(compression=compression, max_datum_size=size)
    assert dataset.append([one, numbered(2, 101)], outcomes=True).outcomes[1].status == "refused"
    assert dataset.append([one]).imported == 1
    assert numbers(dataset) == [1, 1]
    (tmp_path / "file.seg").write_bytes(segment(dataset))
    dataset.close()
    lose_index(path := dataset.path)
    with ondisk.open(path) as again:
        assert again.fix().lost == 0
        assert numbers(again) == [1, 1]
        assert again.append_file(tmp_path / "file.seg").imported == 2
        assert again.check(accurate=True).is_clean


def test_data_larger_than_the_configuration_allows_now_are_not_cut_off(make):
    dataset = make(compression="none")
    dataset.append([Datum(T, {"station": 1}, b"x" * 5000)])
    content = segment(dataset)
    dataset.close()
    lose_index(path := dataset.path)
    reconfigure(path, max_datum_size=1000)
    with ondisk.open(path) as again:
        try:
            again.append([numbered(2)])
        except (SegmentCorrupt, StateError):
            assert segment(again) == content
        assert segment(again)[12:].startswith(content[12:])


@pytest.mark.each
@pytest.mark.parametrize(("after", "states"), [(blocks.END_MARK, ["OK"]), (b"\1\0\0\0", ["DIRTY"])])
def test_only_an_end_mark_may_follow_the_last_block(make, after, states):
    dataset = make()
    dataset.append([numbered(1)])
    put(dataset, segment(dataset) + after)
    assert [name for each in dataset.check() for name in each.state.names] == states


# What comes out


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_query_data_writes_can_be_appended_again(make, compression):
    source = make("source", compression=compression)
    source.append_file(GOLDEN / "v2-lz4" / "15.seg")
    source.append([numbered(n, n) for n in range(50)])
    for format in ("seg", "jsonl"):
        copy = make(format, format=format)
        result = copy.append_file(io.BytesIO(b"".join(source.payloads())))
        assert (result.imported, result.refused, result.damage) == (58, 0, [])
        assert ["stored as seg" in note for note in result.notes] == [True] * (format != "seg")
        for each, other in zip(source.query(), copy.query(), strict=True):
            assert each.reftime == other.reftime
            assert same(dict(each.metadata), dict(other.metadata))
            assert same(each.data, other.data)
        assert list(copy.payloads()) == list(source.payloads())


def test_what_query_data_writes_of_no_data_can_be_appended_again(make):
    dataset = make()
    result = dataset.append_file(io.BytesIO(b"".join(dataset.payloads())))
    assert (result.count, result.damage, result.notes) == (0, [], [])


def test_undeclared_metadata_comes_with_the_data(make):
    dataset = make(fields={"station": "integer", "made": "timestamp"})
    metadata = {"station": 5, "made": T, "note": "gusty", "seen": T, "more": {"a": [1, None]}, "none": None}
    dataset.append([Datum(T, MappingProxyType(metadata), None), Datum(T, {"station": None, "x": b"\0"}, b"bytes")])
    first, second = dataset.query()
    assert first == Datum(T, metadata | {"seen": "2026-11-20T06:00:00Z"}, {})
    assert second == Datum(T, {"x": b"\0"}, b"bytes")
    assert [dict(each.metadata) for each in dataset.query(with_data=False)] == [{"station": 5, "made": T}, {}]
    assert [each.data for each in dataset.query(with_data=False)] == [None, None]
    assert dataset.read(first.location) == first


def test_a_whole_unique_key_finds_the_datum_in_every_block(make):
    for compression in COMPRESSIONS:
        dataset = make(compression, unique=["reftime", "station"], compression=compression)
        for n in range(5):
            dataset.append([numbered(n, note="x")])
        for n in range(5):
            (found,) = dataset.query(reftime=T + timedelta(seconds=n), station=n)
            assert found == numbered(n, note="x")
        assert dataset.append([numbered(3)]).duplicates == 1
        assert not list(dataset.query(reftime=T, station=5))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_replaced_and_duplicate_data_leave_the_others_readable(make, compression):
    dataset = make(unique=["station"], replace="yes", compression=compression)
    dataset.append([numbered(n) for n in range(5)])
    result = dataset.append([numbered(2, 9), numbered(2, 11), numbered(7)])
    assert (result.imported, result.replaced) == (1, 2)
    assert list(dataset.query()) == [numbered(0), numbered(1), numbered(2, 11), numbered(3), numbered(4), numbered(7)]
    assert len(beats_reader.read(segment(dataset))) == struct.unpack_from("<I", segment(dataset), 4)[0]


def test_data_of_one_dataset_can_be_appended_to_another(make):
    fields = {"station": "integer", "made": "timestamp"}
    one, other = make("one", fields=fields), make("other", fields=fields, compression="none")
    one.append(
        [Datum(T, {"station": n, "made": T, "x": {"y": [n]}}, b"x" * n if n % 2 else {"n": n}) for n in range(9)]
    )
    assert other.append(one.query()).imported == 9
    assert list(other.query()) == list(one.query())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_datum_is_found_where_none_is(make, compression):
    dataset = make(compression=compression)
    dataset.append([numbered(1), numbered(2)])
    one, two = (each.location for each in dataset.query())
    places = [(0, 12), (0, one.size), (one.offset, 0), (one.offset, one.size - 1), (one.offset, one.size + two.size),
              (one.offset + 1, one.size), (two.offset + two.size, 0), (5, 2), (12, 10**9), (-1, 5)]  # fmt: skip
    for offset, size in places:
        with pytest.raises(DatumNotFound):
            dataset.read(Location(SEGMENT, offset, size))


def test_a_datum_that_is_refused_is_reported_with_its_reason(make):
    result = make().append([numbered(1), Datum(T, {}, {"": 1}), numbered(2)], outcomes=True)
    assert [each.status for each in result.outcomes] == ["imported", "refused", "imported"]
    assert result.refusals == [(1, result.outcomes[1].reason)]
    assert "empty" in result.refusals[0][1]


def test_nanoseconds_and_flags_stay_in_the_frame(make):
    (batch,) = [[Event(NS + 1_999, 1, {}, {"n": 1})]]
    content = segments.write([batch], 0)
    payload = beats_reader.frames(content[12:])[0].replace(b"\x65flags\x00", b"\x65flags\x01")
    content = struct.pack("<III", 2, 1, 0) + framed(payload)
    dataset = make()
    dataset.append_file(io.BytesIO(content))
    assert [each.reftime for each in dataset.query()] == [T + timedelta(microseconds=1)]
    assert b"".join(dataset.payloads())[12:] == content[12:]


def test_deleting_all_and_the_file_begins_a_segment_anew(make):
    dataset = make()
    dataset.append([numbered(1), numbered(2)])
    dataset.delete("")
    (dataset.path / SEGMENT).unlink()
    dataset.append([numbered(3)])
    assert numbers(dataset) == [3]
    with closing(sqlite3.connect(dataset.path / INDEX)) as index:
        assert index.execute("SELECT count(*) FROM block").fetchone() == (1,)


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_data_that_a_restored_index_does_not_know_stay_and_disturb_nobody(make, tmp_path, compression):
    dataset = make(compression=compression)
    path = dataset.path
    dataset.append([numbered(1)])
    dataset.close()
    backup = (path / "index.sqlite").read_bytes()
    with ondisk.open(path) as later:
        later.append([numbered(2)])
    (path / "needs-check-do-not-pack").touch()
    for suffix in ("-wal", "-shm"):
        (path / f"index.sqlite{suffix}").unlink(missing_ok=True)
    (path / "index.sqlite").write_bytes(backup)
    with ondisk.open(path) as restored:
        assert restored.append([numbered(3)]).imported == 1
        assert [each.data for each in restored.query()] == [numbered(1).data, numbered(3).data]
        assert restored.append([numbered(2)]).imported == 1
        assert len(b"".join(restored.payloads())) == 12 + sum(each.location.size for each in restored.query())
    assert len(beats_reader.read((path / SEGMENT).read_bytes())) == 4


def test_a_block_that_cannot_be_decompressed_is_passed_over_and_hides_no_other(make):
    dataset = make()
    for n in range(5):
        dataset.append([Datum(T + timedelta(seconds=n), {}, {"n": n, "text": "abc" * 100})])
    content = bytearray(segment(dataset))
    with closing(sqlite3.connect(dataset.path / INDEX)) as connection:
        places = connection.execute("SELECT position, stored FROM block ORDER BY offset").fetchall()
    position, stored = places[2]
    content[position + 4 : position + stored] = b"\xff" * (stored - 4)
    rot(dataset, content)
    got = []
    with pytest.raises(SegmentCorrupt):
        got.extend(each.data["n"] for each in dataset.query())
    assert got == [0, 1]
    copied = make("copy")
    result = copied.append_file(dataset.path / SEGMENT)
    assert numbers(copied) == [0, 1, 3, 4]
    assert [each.size for each in result.damage] == [stored]
    assert result.notes == ["its header counts 5 frames, 4 are whole"]
