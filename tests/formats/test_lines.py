from __future__ import annotations

import io
import time
import tracemalloc
from itertools import product

import pytest

from ondisk import DatasetConfig
from ondisk.errors import LimitExceeded
from ondisk.formats import find
from ondisk.formats import lines as module
from ondisk.formats.lines import read_lines


def read(content, batch_size=100, max_line=100):
    return list(read_lines(io.BytesIO(content), batch_size, max_line))


class Endless(io.RawIOBase):
    """An endless stream without newline; counts the bytes that were read."""

    taken = 0

    def read(self, size=-1):
        self.taken += size
        return b"x" * size


class Dripping(io.BytesIO):
    """A stream that returns few bytes at a time, as a pipe may."""

    def read(self, size=-1):
        return super().read(min(size, 3))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\r\nb\r", [b"a", b"b"]),
        (b"a\r\r\nb", [b"a", b"b"]),  # else each scan would take another one away
        (b"a\rb\n", [b"a\rb"]),
        (b"\n\na\n\n", [b"", b"", b"a", b""]),
        (b"a\x0b\x0c\x85b\n", [b"a\x0b\x0c\x85b"]),
        (b"\n", [b""]),
    ],
)
def test_lines_end_with_lf_or_cr_lf_and_with_nothing_else(content, lines):
    assert [line for batch in read(content) for line in batch] == lines
    assert [line for batch in read_lines(Dripping(content), 100, 100) for line in batch] == lines


def test_an_empty_stream_has_no_lines():
    assert read(b"") == []


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 10])
def test_batches_have_the_size_that_was_asked_for(count):
    batches = read(b"".join(b"%d\n" % number for number in range(9)), batch_size=count)
    assert [line for batch in batches for line in batch] == [b"%d" % number for number in range(9)]
    assert {len(batch) for batch in batches[:-1]} <= {count}
    assert 0 < len(batches[-1]) <= count


def test_lines_cut_by_the_end_of_a_chunk_are_whole(monkeypatch):
    content = b"".join(b"%d\r\n" % number for number in range(2000))
    expected = [b"%d" % number for number in range(2000)]
    for chunk in (1, 2, 3, 5, 7, 64):
        monkeypatch.setattr(module, "_CHUNK", chunk)
        assert [line for batch in read(content) for line in batch] == expected


def test_the_longest_line_allowed_is_read_and_a_longer_one_refused(monkeypatch):
    for ending, chunk in product((b"", b"\n", b"\r\n", b"\nb\n"), (1, 10, 101, 1000)):
        monkeypatch.setattr(module, "_CHUNK", chunk)
        assert read(b"a" * 100 + ending)[0][0] == b"a" * 100
        with pytest.raises(LimitExceeded, match="line 3 is longer than 100 bytes") as caught:
            read(b"a\n\n" + b"a" * 101 + ending)
        assert caught.value.context == {"line": 3, "limit": 100}
        assert "max_datum_size" in caught.value.hint


def test_a_line_without_end_is_refused_before_memory_is_taken():
    stream = Endless()
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="line 1 is longer"):
            next(read_lines(stream, 100_000, 10_000_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stream.taken < 20_000_000
    assert peak < 40_000_000


def test_batches_before_a_line_that_is_too_long_are_returned():
    batches = read_lines(Dripping(b"a\nb\n" + b"c" * 200), 1, 100)
    assert [next(batches), next(batches)] == [[b"a"], [b"b"]]
    with pytest.raises(LimitExceeded, match="line 3"):
        next(batches)


def test_a_batch_ends_at_its_bytes_too(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    monkeypatch.setattr(module, "_CHUNK", 64)
    batches = read(b"".join(b"%099d\n" % number for number in range(50)), batch_size=1_000_000)
    assert sum(map(len, batches)) == 50
    assert all(sum(map(len, batch)) <= 1100 for batch in batches)


def dataset_format(name):
    return find(name)(DatasetConfig.from_mapping({"format": name, "step": "daily"}))


GOOD = {"vm2": b"202611200600,104,1,7.5,,,000000000", "jsonl": b'{"reftime":"2026-11-20T06:00:00Z","x":1}'}
BAD = {
    "vm2": [b"x", b"202611200600,104,1,7.5x,,,", b"202613200600,104,1,7.5,,,", b"\0\0"],
    "jsonl": [b"x", b'{"reftime":"2026-11-20T06:00:00Z","x":1,}', b'{"reftime":"2026"}', b"\0\0"],
}


@pytest.mark.parametrize("name", GOOD)
def test_after_many_refused_lines_the_same_lines_are_refused(name):
    """What is refused without a reason of its own is what is refused with one."""
    good = GOOD[name]
    some = [good, *BAD[name], b"", b" ", good + b" " * (name == "jsonl"), b"\0" + good, good + b"\0" + good, b"\0x"]
    whole = dataset_format(name).parse_lines([*some, good], 1)
    many = [BAD[name][0]] * module._EXPLAINED
    later = dataset_format(name).parse_lines([*many, *some, good], 1)
    assert later.payloads == whole.payloads
    assert later.metadata == whole.metadata
    before = len(many)
    assert [at for at, _ in later.refused[before:]] == [before + at for at, _ in whole.refused]
    assert [reason.startswith("line ") for _, reason in later.refused[:before]] == [True] * before


@pytest.mark.check
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("place", [0, 2])
def test_a_refused_line_costs_no_more_than_one_in_a_small_file(name, place):
    """Each costs less than with a reason of its own; nothing grows with their number."""
    took = []
    for count in (5_000, 20_000):
        content = (BAD[name][place] + b"\n") * count
        tries = []
        for _ in range(3):  # a collection of garbage that other tests have left may take longer than this
            began = time.process_time()
            refused = sum(len(batch.refused) for batch in dataset_format(name).parse(io.BytesIO(content), 100_000))
            tries.append(time.process_time() - began)
            assert refused == count
        took.append(min(tries))
    assert took[1] < 12 * max(took[0], 0.01)
