"""For all formats: a scan of a segment's file finds the same as parsing it, and columns are encoded as data are."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import pytest
from drawn import up_to
from formats.diskqueue.test_golden import FILES, GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY_TYPE, strategies

from ondisk.config import DatasetConfig
from ondisk.datum import EPOCH, Datum, microseconds
from ondisk.errors import InvalidInput, KeyMissing
from ondisk.formats import Batch, Format, find, lines
from ondisk.formats.base import JoinsParts
from ondisk.segment import Block, End, ScanResult

CONFIGS = [
    DatasetConfig.from_mapping(each)
    for each in (
        {"format": "vm2", "step": "daily", "fields": {"area": "text", "product": "text"}},
        {"format": "jsonl", "step": "daily", "fields": EVERY_TYPE},
        {"format": "seg", "step": "daily", "fields": EVERY_TYPE},
        {"format": "seg", "step": "daily", "compression": "none", "fields": EVERY_TYPE},
    )
]

WITH_COLUMNS = [
    DatasetConfig.from_mapping({"step": "daily", **each})
    for each in (
        {"format": "vm2", "fields": {"area": "text", "product": "text"}},
        {"format": "jsonl", "fields": EVERY_TYPE},
        {"format": "seg", "fields": EVERY_TYPE},
        {"format": "blob", "fields": EVERY_TYPE},
    )
]


@dataclass(frozen=True)
class File:
    """A segment's file in memory."""

    content: bytes

    def size(self) -> int:
        return len(self.content)

    def read(self, position: int, size: int, /) -> bytes:
        return self.content[position : position + size]

    def read_into(self, position: int, buffer: memoryview, /) -> int:
        content = self.read(position, len(buffer))
        buffer[: len(content)] = content
        return len(content)


@dataclass(frozen=True)
class Scanned:
    """The results of a scan, and the scanned bytes, decompressed."""

    found: ScanResult
    foreign: bool

    @classmethod
    def of(cls, format: Format, content: bytes) -> Scanned:
        whole, foreign = ScanResult(), False
        for each in format.scan(File(content)):
            for name in ("offsets", "sizes", "reftimes", "metadata", "blocks", "damage"):
                getattr(whole, name).extend(getattr(each, name))
            whole.end, foreign = each.end, foreign or each.foreign
        return cls(whole, foreign)

    def payloads(self, format: Format, content: bytes) -> list[bytes]:
        if not self.found.end.compressed:
            return self._cut(content)
        data = bytearray(12)
        for offset, position, stored in self.found.blocks:
            assert offset == len(data)
            data += format.unpack(memoryview(content)[position : position + stored])
        return self._cut(bytes(data))

    def _cut(self, content: bytes) -> list[bytes]:
        places = zip(self.found.offsets, self.found.sizes, strict=True)
        return [content[offset : offset + size] for offset, size in places]


def parsed(format: Format, content: bytes) -> Batch:
    whole = Batch()
    for batch in format.parse(io.BytesIO(content), 1000):
        whole.extend(batch)
    return whole


def laid(format: Format, pieces: Sequence[Sequence[bytes]]) -> tuple[bytes, End, list[Block]]:
    """Write a segment in several appends."""
    begin = format.begin()
    content, end, blocks = begin.content, begin.end, list(begin.blocks)
    for piece in pieces:
        more = format.lay(piece, end)
        content, end, blocks = content + more.content, more.end, blocks + list(more.blocks)
    return content, end, blocks


def cut(payloads: list[bytes], at: list[int]) -> list[list[bytes]]:
    edges = [0, *sorted(at), len(payloads)]
    return [payloads[begin:end] for begin, end in pairwise(edges)]


@pytest.mark.check
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.format}-{config.compression}")
@given(data=st.data())
@settings(max_examples=up_to(40))
def test_a_scan_finds_what_parse_returns_where_it_is(config: DatasetConfig, data: st.DataObject) -> None:
    format = find(config.format)(config)
    given_data: list[Datum] = data.draw(st.lists(strategies.data(config), max_size=12))
    payloads = format.encode(given_data).payloads
    at = data.draw(st.lists(st.integers(0, len(payloads)), max_size=3))
    content, end, blocks = laid(format, cut(payloads, at))
    sealed = content + (format.seal(end) if data.draw(st.booleans()) else b"")
    scanned, expected = Scanned.of(format, sealed), parsed(format, sealed)
    assert scanned.payloads(format, sealed) == expected.payloads == payloads
    assert scanned.found.reftimes == expected.reftimes
    assert [dict(each) for each in scanned.found.metadata] == [dict(each) for each in expected.metadata]
    assert (scanned.found.damage, scanned.foreign) == ([], False)
    assert scanned.found.end == end
    assert scanned.found.blocks == blocks


@pytest.mark.check
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.format}-{config.compression}")
@given(data=st.data())
@settings(max_examples=up_to(40))
def test_a_scan_of_a_cut_file_finds_all_whole_data_and_ends_behind_them(
    config: DatasetConfig, data: st.DataObject
) -> None:
    format = find(config.format)(config)
    payloads = format.encode(data.draw(st.lists(strategies.data(config), min_size=1, max_size=8))).payloads
    content, end, _ = laid(format, [[payload] for payload in payloads])
    size = data.draw(st.integers(format.begin().end.size, len(content)))
    whole, whole_end = 0, format.begin().end
    for count in range(len(payloads) + 1):
        before = laid(format, [[payload] for payload in payloads[:count]])[1]
        if before.size <= size:
            whole, whole_end = count, before
    scanned = Scanned.of(format, content[:size])
    assert scanned.payloads(format, content[:size]) == payloads[:whole]
    assert scanned.found.damage == []
    assert (scanned.found.end.length, scanned.found.end.size) == (whole_end.length, whole_end.size)
    assert end.size == len(content)


@pytest.mark.check
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.format}-{config.compression}")
@given(data=st.data())
@settings(max_examples=up_to(40))
def test_a_scan_of_damaged_bytes_returns_whole_data_only_and_ends(config: DatasetConfig, data: st.DataObject) -> None:
    """After any flip, data that are found can be read at their places, are in order, and do not overlap."""
    format = find(config.format)(config)
    payloads = format.encode(data.draw(st.lists(strategies.data(config), min_size=1, max_size=6))).payloads
    content = bytearray(laid(format, [[payload] for payload in payloads])[0])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        scanned = Scanned.of(format, bytes(content))
    except KeyMissing:  # a flip in the header makes it look encrypted
        return
    found = scanned.found
    ends = [offset + size for offset, size in zip(found.offsets, found.sizes, strict=True)]
    assert all(end <= offset for end, offset in zip(ends, found.offsets[1:], strict=False))
    assert found.end.size <= len(content)
    if not scanned.foreign:
        for payload, reftime, metadata in zip(
            scanned.payloads(format, bytes(content)), found.reftimes, found.metadata, strict=True
        ):
            described, said = format.describe(payload)
            assert (described, dict(said)) == (reftime, dict(metadata))


@pytest.mark.check
@pytest.mark.parametrize("config", CONFIGS[:2], ids=lambda config: config.format)
@given(data=st.data(), pieces=st.integers(1, 64))
@settings(max_examples=up_to(40))
def test_lines_are_found_however_the_file_is_read(config: DatasetConfig, data: st.DataObject, pieces: int) -> None:
    """Blank lines, CR LF, lines that are not data, and a last line without newline, at the edges of reads."""
    format = find(config.format)(config._replace(max_datum_size=100_000))
    payloads = format.encode(data.draw(st.lists(strategies.data(config), max_size=6))).payloads
    content, expected, wrong = b"", [], 0
    for payload in payloads:
        for noise in data.draw(st.lists(st.sampled_from([b"\n", b"\r\n", b"no datum\n"]), max_size=2)):
            content += noise
            wrong += noise == b"no datum\n"
        expected.append((len(content), len(payload)))
        content += payload + data.draw(st.sampled_from([b"\n", b"\r\n"]))
    whole = len(content)
    content += data.draw(st.sampled_from([b"", b"{", b"2026"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_SCANNED", pieces)
        scanned = Scanned.of(format, content)
    assert list(zip(scanned.found.offsets, scanned.found.sizes, strict=True)) == expected
    assert [damage.size for damage in scanned.found.damage] == [8] * wrong
    assert scanned.found.end == End(whole, whole)


def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_SCANNED", 64)
    format = find("vm2")(CONFIGS[0]._replace(max_datum_size=100))
    line = b"202611200000,1,2,3,,,\n"
    content = line + b"x" * 1000 + b"\n" + line
    scanned = Scanned.of(format, content)
    assert scanned.found.offsets == [0, len(line) + 1001]
    assert sum(damage.size for damage in scanned.found.damage) == 1001
    scanned = Scanned.of(format, line + b"x" * 1000)
    assert [(damage.offset, damage.size) for damage in scanned.found.damage] == [(len(line), 1000)]


GOLDEN_CONFIG = DatasetConfig.from_mapping({"format": "seg", "step": "daily"})


@pytest.mark.parametrize(("variant", "name"), FILES)
def test_a_scan_of_a_file_of_beats_finds_what_parse_returns(variant: str, name: str) -> None:
    own = {"v0": {"version": 0, "compression": "none"}, "v2-pb": {"payload": "protobuf"}}.get(variant, {})
    format = find("seg")(GOLDEN_CONFIG._replace(**(own or {"payload": "protobuf" if "pb" in variant else "cbor"})))
    content = (GOLDEN / variant / name).read_bytes()
    scanned, expected = Scanned.of(format, content), parsed(format, content)
    assert scanned.found.reftimes == expected.reftimes
    assert scanned.found.sizes == list(map(len, expected.payloads))
    torn = {"5.seg", "6.seg", "7.seg", "8.seg"}  # a torn end is damage in an input, but not in a segment
    if name not in torn:
        assert [(damage.size, damage.offset) for damage in scanned.found.damage] == [
            (damage.size, damage.offset) for damage in expected.damage
        ]
    if "lz4" not in variant:
        assert not scanned.foreign
        assert scanned.payloads(format, content) == expected.payloads
    else:
        assert scanned.foreign or not expected.payloads


@pytest.mark.parametrize("variant", ["v2draft-enc"])
def test_a_file_of_unknown_options_without_a_key_is_all_damage(variant: str) -> None:
    content = (GOLDEN / variant / "1.seg").read_bytes()
    (found,) = find("seg")(GOLDEN_CONFIG).scan(File(content))
    ((offset, size),) = [(each.offset, each.size) for each in found.damage]
    assert (offset, size, found.offsets) == (0, len(content), [])


@dataclass(frozen=True)
class SlowFile(File):
    """A file that reads only part of the request into a buffer."""

    def read_into(self, position: int, buffer: memoryview, /) -> int:
        return File.read_into(self, position, buffer[:100_000])


@pytest.mark.parametrize("kind", [File, SlowFile])
def test_large_and_small_data_of_one_segment_are_found_and_damage_between_them_is_passed_over(kind: type[File]) -> None:
    format = find("seg")(CONFIGS[-1])
    sizes = [10, 40_000, 70_000, 70_000, 5, 1_500_000, 300_000, 9_000, 7, 65_536, 65_536, 20]
    payloads = format.encode(
        [Datum(EPOCH + timedelta(seconds=at), {}, bytes([at]) * size) for at, size in enumerate(sizes)]
    ).payloads
    content, end, _ = laid(format, [payloads])
    found = [*format.scan(kind(content))]
    assert [size for each in found for size in each.sizes] == [len(each) for each in payloads]
    assert (found[-1].end, [damage for each in found for damage in each.damage]) == (end, [])
    damaged = bytearray(content)
    at = sum(map(len, payloads[:6])) + 150_000
    damaged[at] ^= 1
    found = [*format.scan(kind(bytes(damaged)))]
    assert [size for each in found for size in each.sizes] == [len(each) for each in payloads[:6] + payloads[7:]]
    assert [damage.size for each in found for damage in each.damage] == [len(payloads[6])]


@pytest.mark.parametrize("config", WITH_COLUMNS, ids=lambda config: config.format)
@given(st.data())
@settings(max_examples=up_to(40))
def test_columns_are_encoded_as_data_are(config, given_data):
    some = strategies.data(config)
    if given_data.draw(st.booleans(), "with refused ones"):
        some |= strategies.refused_data(config)
    data = given_data.draw(st.lists(some, max_size=8))
    format = find(config.format)(config)
    wanted = format.encode(data)
    columns = (
        [microseconds(each.reftime) for each in data],
        [each.metadata for each in data],
        [each.data for each in data],
    )
    encoded = format.encode_columns(*columns)
    for each in Batch.__slots__:  # as texts: 1 and 1.0 differ, and NaN is NaN
        assert repr(getattr(encoded, each)) == repr(getattr(wanted, each))


PARTS = [config for config in WITH_COLUMNS if issubclass(find(config.format), JoinsParts)]
CONTENT = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)


@pytest.mark.check
@pytest.mark.parametrize("config", PARTS, ids=lambda config: config.format)
@given(st.data())
@settings(max_examples=up_to(40))
def test_parts_are_encoded_as_columns_are(config, given_data):
    """Or refused together, for example because of a text that is not Unicode."""
    format = find(config.format)(config)
    data = given_data.draw(st.lists(strategies.data(config), max_size=8))
    keys = given_data.draw(st.lists(st.text(min_size=1, max_size=4), max_size=30, unique=True))
    keys = [key for key in keys if key not in (*config.fields, "reftime")]
    rows = given_data.draw(
        st.lists(st.tuples(*[st.none() | CONTENT] * len(keys)), min_size=len(data), max_size=len(data))
    )
    contents = [{key: value for key, value in zip(keys, row, strict=True) if value is not None} for row in rows]
    metadata = [{name: value for name, value in each.metadata.items() if name in config.fields} for each in data]
    columns = [microseconds(each.reftime) for each in data], metadata
    wanted = format.encode_columns(*columns, contents)
    try:
        parts = [
            [b"" if row[place] is None else format.content_part(key, row[place]) for row in rows]
            for place, key in enumerate(keys)
        ]
        found = format.encode_parts(*columns, parts)
    except InvalidInput:
        assert wanted.refused
    else:
        assert (found, repr(found.payloads)) == (wanted, repr(wanted.payloads))


def test_parts_of_more_than_23_keys_and_of_numbers_that_beats_misreads_are_joined():
    config = DatasetConfig.from_mapping({"step": "daily"})
    format = find("seg")(config)
    content = {f"key {number}": -(2**number) - 1 for number in range(60)}
    parts = [[format.content_part(key, value)] for key, value in content.items()]
    joined = format.encode_parts([5], [{}], parts)
    assert joined == format.encode_columns([5], [{}], [content])
    assert format.decode(joined.payloads[0]) == content
