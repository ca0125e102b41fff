"""NUL bytes are never part of a line: where pages of a file are lost is damage, and all around it is read."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from formats.test_base import File, Scanned, parsed
from hypothesis import given
from hypothesis import strategies as st

from ondisk import Datum
from ondisk.config import DatasetConfig
from ondisk.errors import FrameCorrupt
from ondisk.formats import Format, find, lines
from ondisk.segment import End

T = datetime(2026, 11, 20, tzinfo=UTC)
PAGE = 4096


def make(name: str, **values: object) -> Format:
    return find(name)(DatasetConfig.from_mapping({"format": name, "step": "daily", **values}))


VM2 = [b"202611200600,%d,227,1.2,,,000000000" % number for number in range(1000)]
SECONDS = [b"20261120%06d,%d,227,1.2,,,000000000" % (number, number) for number in range(60)]
JSONL = [b'{"reftime": "2026-11-20T06:00:00Z", "n": %d}' % number for number in range(1000)]
LINES = [("vm2", VM2), ("jsonl", JSONL)]


def found(format: Format, content: bytes) -> list[bytes]:
    scanned = Scanned.of(format, content)
    assert scanned.payloads(format, content) == parsed(format, content).payloads
    return scanned.payloads(format, content)


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
@pytest.mark.parametrize("first", [0, PAGE, 3 * PAGE])
@pytest.mark.parametrize("pieces", [100, 5000, 512 * 1024])
def test_pages_of_zeros_take_only_the_data_that_they_touch(name, data, first, pieces, monkeypatch):
    monkeypatch.setattr(lines, "_SCANNED", pieces)
    format, content = make(name), b"\n".join(data) + b"\n"
    last = first + 2 * PAGE
    damaged = content[:first] + bytes(last - first) + content[last:]
    begins = [content.index(each) for each in data]
    whole = [
        each
        for begin, each in zip(begins, data, strict=True)
        if begin + len(each) < first or begin >= last  # the newline must be there, too
    ]
    scanned = Scanned.of(format, damaged)
    assert scanned.payloads(format, damaged) == whole == parsed(format, damaged).payloads
    (damage,) = scanned.found.damage
    assert damage.offset <= first
    assert damage.offset + damage.size >= last
    assert damage.size < last - first + 2 * max(map(len, data))
    assert "8192 NUL bytes" in damage.reason
    assert scanned.found.end == End(len(content), len(content))
    assert len(parsed(format, damaged).refused) == 1


@pytest.mark.parametrize(("name", "data"), [("vm2", VM2), ("vm2", SECONDS), ("jsonl", JSONL)], ids=["", "s", "jsonl"])
def test_a_whole_line_right_after_zeros_is_read_and_a_torn_one_is_not(name, data):
    format = make(name)
    first, second, third = data[:3]
    for cut in range(len(second) + 1):
        content = first + b"\n" + data[9][:7] + b"\0" * 50 + second[cut:] + b"\n" + third + b"\n"
        expected = [first, second, third] if cut == 0 else [first, third]
        assert found(format, content) == expected, cut


def test_a_torn_time_with_seconds_is_not_read_as_one_without():
    """Without its first two digits, 2020-05-03 01:02:03 reads as 2005-03-01 02:03."""
    lines_of = [b"202005030102%02d,1,227,1.2,,,000000000" % second for second in range(3)]
    content = lines_of[0] + b"\n\0\0" + lines_of[1][2:] + b"\n" + lines_of[2] + b"\n"
    assert found(make("vm2"), content) == [lines_of[0], lines_of[2]]


def test_what_ends_at_zeros_is_torn_even_if_it_looks_whole():
    """The rest of its flags may be lost."""
    content = VM2[0] + b"\n" + VM2[1] + b"\0\0\0\n" + VM2[2] + b"\n"
    format = make("vm2")
    assert found(format, content) == [VM2[0], VM2[2]]
    (damage,) = Scanned.of(format, content).found.damage
    assert (damage.offset, damage.size) == (len(VM2[0]) + 1, len(VM2[1]) + 3)


@pytest.mark.parametrize("flags", [b"\0", b"0000\x00000", bytes(8192)])
def test_a_datum_with_nul_bytes_is_refused_and_not_described(flags):
    format, line = make("vm2"), b"202611200600,1,227,1.2,,," + flags
    assert "NUL" in format.encode([Datum(T.replace(hour=6), {}, line)]).refused[0][1]
    with pytest.raises(FrameCorrupt, match="NUL"):
        format.describe(line)
    with pytest.raises(FrameCorrupt):
        make("jsonl").describe(b'{"reftime": "2026-11-20T06:00:00Z"}\0')


def test_other_control_characters_belong_to_a_line_of_vm2():
    """VM2 says nothing about them, and nothing that happens to a disk leaves them."""
    line = b"202611200600,1,227,1.2,,\x01\t,\x7f00"
    assert found(make("vm2"), line + b"\n") == [line]


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
def test_a_hole_larger_than_the_largest_datum_is_passed_over_in_little_memory(name, data, monkeypatch):
    monkeypatch.setattr(lines, "_SCANNED", 1000)
    monkeypatch.setattr(lines, "_CHUNK", 1000)
    format = make(name, max_datum_size=5000)
    content = data[0] + b"\n" + data[1][:9] + bytes(200_000) + data[2] + b"\n" + data[3] + b"\n"
    assert found(format, content) == [data[0], data[2], data[3]]
    (damage,) = Scanned.of(format, content).found.damage
    assert (damage.offset, damage.size) == (len(data[0]) + 1, 200_009)


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
@pytest.mark.parametrize("torn", [b"", b"20261120"])
def test_zeros_at_the_end_may_be_of_an_interrupted_append(name, data, torn):
    """No line ends there: they are a tail, as after a power cut."""
    whole = data[0] + b"\n"
    scanned = Scanned.of(make(name), whole + torn + bytes(20_000))
    assert (scanned.found.damage, scanned.found.end) == ([], End(len(whole), len(whole)))


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
def test_an_append_after_zeros_begins_its_own_line(name, data):
    format, content = make(name), data[0] + b"\n" + bytes(100)
    laid = format.resume(File(content), End())
    content += laid.content + data[1] + b"\n"
    assert found(format, content) == data[:2]
    assert laid.end.size == len(content) - len(data[1]) - 1


def test_a_file_that_begins_with_a_long_line_is_readable():
    long = b"202611200000,1,1," + b"9" * 3_000_000 + b",,,"
    assert make("vm2").is_readable(File(long + b"\n202611200100,1,1,,,,\n"))
    assert not make("vm2").is_readable(File(long[1:]))


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
def test_a_file_that_begins_with_zeros_is_readable(name, data):
    format = make(name)
    assert format.is_readable(File(bytes(2_000_000) + b"\n" + data[0] + b"\n"))
    assert not format.is_readable(File(bytes(2_000_000)))


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
@given(st.data())
def test_every_datum_that_zeros_do_not_touch_is_found_and_no_other(name, data, drawn):
    format, content = make(name), bytearray(b"\n".join(data[:100]) + b"\n")
    touched = set()
    for _ in range(drawn.draw(st.integers(1, 4))):
        begin = drawn.draw(st.integers(0, len(content) - 1))
        end = drawn.draw(st.integers(begin + 1, min(len(content), begin + 300)))
        content[begin:end] = bytes(end - begin)
        touched |= {*range(begin, end)}
    at, whole = 0, []
    for each in data[:100]:
        if touched.isdisjoint(range(at, at + len(each) + 1)):
            whole.append(each)
        at += len(each) + 1
    payloads = Scanned.of(format, bytes(content)).payloads(format, bytes(content))
    assert set(payloads) <= set(data)
    assert set(whole) <= set(payloads) or name == "vm2"  # the next line may be needed to know that one is whole
    assert len(set(whole) - set(payloads)) <= 4
    batches = [*make(name).parse(io.BytesIO(bytes(content)), 7)]
    assert all(len(each.payloads) <= 7 for each in batches)


def test_damage_of_several_kinds_is_reported_in_order():
    content = b"no datum\n" + VM2[0] + b"\n\0\0\n" + VM2[1] + b"\nno datum\n"
    scanned = Scanned.of(make("vm2"), content)
    offsets = [each.offset for each in scanned.found.damage]
    assert offsets == sorted(offsets) == [0, 44, 82]


def test_reftimes_and_metadata_belong_to_their_lines_after_zeros():
    format = make("vm2", fields={"area": "text", "product": "text"})
    content = VM2[0] + b"\n" + VM2[1][:5] + b"\0" * 9 + VM2[2] + b"\n" + VM2[3] + b"\n"
    scanned = Scanned.of(format, content).found
    assert [each["area"] for each in scanned.metadata] == ["VM2,0", "VM2,2", "VM2,3"]
    assert len(scanned.reftimes) == len(scanned.offsets) == len(scanned.sizes) == 3
    assert End()._replace(size=len(content), length=len(content)) == scanned.end
    assert T + timedelta(hours=6) == datetime.fromtimestamp(scanned.reftimes[1] / 1e6, UTC)


@pytest.mark.parametrize("name", ["vm2", "jsonl", "seg"])
def test_only_what_a_new_segment_begins_with_is_empty(name):
    format = make(name)
    begun = format.begin().content
    assert format.is_empty(File(b""))
    assert format.is_empty(File(begun))
    for more in (begun + b"\n", begun + bytes(50), bytes(1), bytes(50_000)):
        assert not format.is_empty(File(more)), more[:20]


@pytest.mark.each
@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
@pytest.mark.parametrize("zeros", [1, PAGE])
@pytest.mark.parametrize("pieces", [100, 512 * 1024])
def test_zeros_at_the_end_are_left_to_the_next_append(name, data, zeros, pieces, monkeypatch):
    monkeypatch.setattr(lines, "_SCANNED", pieces)
    whole = data[0] + b"\n"
    assert [*make(name).scan(File(whole + bytes(zeros)))][-1].end == End(len(whole), len(whole))


@pytest.mark.parametrize(("name", "data"), LINES, ids=["vm2", "jsonl"])
@pytest.mark.parametrize(("end", "missing"), [(b"", 0), (b"\0\0", 0), (b" \r", 0), (b"20261120", 1), (b"\0{", 1)])
def test_a_last_line_without_its_end_may_be_a_datum_that_is_lost(name, data, end, missing):
    assert [*make(name).scan(File(data[0] + b"\n" + end))][-1].missing == missing
