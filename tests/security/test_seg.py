"""Segments of the format `seg` and indexes made by an attacker, or damaged by the disk."""

from __future__ import annotations

import contextlib
import io
import shutil
import sqlite3
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import lz4.block
import pytest

import ondisk
from ondisk import Datum
from ondisk.errors import IndexCorrupt, IntegrityError, OndiskError, SegmentCorrupt, StorageError
from ondisk.formats.diskqueue import blocks, frame_reader

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.seg"
MIB = 1024 * 1024
COMPRESSIONS = ["lz4", "none"]
DATA = [Datum(T + timedelta(seconds=n), {"station": n, "note": f"n{n}"}, {"n": n, "x": "ab" * n}) for n in range(4)]

EVENT = b"\xa4\x69timestamp\x1b\x18\xe9\xab\x6a\x68\xfa\xc0\x00\x65flags\x00\x64meta\xa0\x66fields"
GOOD = EVENT + b"\xa1\x61n\x01"


def config(compression: str = "lz4") -> dict[str, object]:
    return {"format": "seg", "step": "daily", "fields": {"station": "integer"}, "compression": compression}


@pytest.fixture(scope="module", params=COMPRESSIONS)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a closed dataset of two data in two flushes."""
    path = tmp_path_factory.mktemp("seg") / "dataset"
    with ondisk.create(path, config(request.param)) as dataset:
        dataset.append(DATA[1:2])
        dataset.append(DATA[2:3])
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "copy"))


@pytest.fixture(scope="module")
def lz4_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a closed dataset with a block for each of four data."""
    path = tmp_path_factory.mktemp("lz4") / "dataset"
    with ondisk.create(path, config()) as dataset:
        for each in DATA:
            dataset.append([each])
    return path


@pytest.fixture
def lz4_path(lz4_template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lz4_template, tmp_path / "lz4"))


@contextlib.contextmanager
def bounded(memory: int = 64 * MIB, seconds: float = 10) -> Iterator[None]:
    """Fail the block if it takes more."""
    tracemalloc.start()
    begin = time.process_time()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < seconds
    assert peak < memory, f"{peak / MIB:.0f} MiB"


def framed(payload: bytes) -> bytes:
    length = struct.pack("<I", len(payload) + 12)
    return length + payload + struct.pack("<I", crc32(length + payload)) + length


def plain(*payloads: bytes) -> bytes:
    return struct.pack("<III", 2, 0, 0) + b"".join(map(framed, payloads))


def compressed(*pieces: bytes, begin: str = "04224d18 60 40 82") -> bytes:
    return struct.pack("<III", 2, 0, 2) + bytes.fromhex(begin) + b"".join(pieces)


def block(content: bytes) -> bytes:
    packed: bytes = lz4.block.compress(content, store_size=False)
    return struct.pack("<I", len(packed)) + packed


def stored(content: bytes) -> bytes:
    return struct.pack("<I", len(content) | 1 << 31) + content


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as index, index:
        for statement in statements:
            index.execute(statement)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ondisk.Dataset]:
    """Make an empty dataset."""
    with ondisk.create(tmp_path / "target", config()) as dataset:
        yield dataset


def append(target: ondisk.Dataset, content: bytes) -> tuple[ondisk.AppendResult, list[Datum]]:
    return target.append_file(io.BytesIO(content), "seg"), list(target.query())


# Files from outside

HOSTILE = {
    "a map that says it is huge": EVENT + b"\xbb" + b"\xff" * 8,
    "an array that says it is huge": EVENT + b"\xa1\x61n\x9b" + b"\x7f" * 8,
    "text that says it is huge": EVENT + b"\xa1\x61n\x7b" + b"\x7f" * 8,
    "bytes that say they are huge": EVENT + b"\xa1\x61n\x5b\x00\x00\x00\x01\x00\x00\x00\x00",
    "arrays nested 100,000 deep": EVENT + b"\xa1\x61n" + b"\x81" * 100_000,
    "maps nested 100,000 deep": EVENT + b"\xa1\x61n" + b"\xa1\x61a" * 100_000 + b"\x01",
    "indefinite arrays nested deep": EVENT + b"\xa1\x61n" + b"\x9f" * 100_000,
    "one level too deep": EVENT + b"\xa1\x61n" + b"\x81" * 64 + b"\x01",
    "bytes behind the event": GOOD + b"\x00",
    "a second event behind": GOOD * 2,
    "a bignum": EVENT + b"\xa1\x61n\xc2\x49\x01" + bytes(8),
    "a tag of a date": EVENT + b"\xa1\x61n\xc1\x01",
    "a shared reference": EVENT + b"\xd8\x1c\xa1\x61n\xd8\x1d\x00",
    "a regular expression": EVENT + b"\xa1\x61n\xd8\x23\x61(",
    "a key twice": EVENT + b"\xa2\x61n\x01\x61n\x02",
    "the fields twice": b"\xa5" + GOOD[1:] + b"\x66fields\xa0",
    "a key that is a number": EVENT + b"\xa1\x01\x01",
    "a key that is an array": EVENT + b"\xa1\x81\x01\x01",
    "a break alone": EVENT + b"\xff",
    "nothing but a length": b"\xbb",
    "a simple value": EVENT + b"\xa1\x61n\xf8\xff",
    "a timestamp of infinity": b"\xa1\x69timestamp\xfb\x7f\xf0" + bytes(6),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("pack", [plain, lambda *payloads: compressed(block(plain(*payloads)[12:][:65536]))])
def test_a_hostile_event_is_refused_alone(name: str, pack: Callable[..., bytes], target: ondisk.Dataset) -> None:
    payloads = (GOOD, HOSTILE[name], GOOD)
    whole = len(plain(*payloads)) < 65536
    with bounded():
        result, found = append(target, pack(*payloads))
    if whole or pack is plain:
        assert (result.imported, result.refused) == (2, 1)
        assert result.refusals[0][0] == 1
        assert not result.damage
    assert [each.data for each in found] == [{"n": 1}] * result.imported


@pytest.mark.check
def test_many_small_values_take_bounded_memory(target: ondisk.Dataset) -> None:
    """An empty map takes one byte there, and 70 in memory."""
    payload = EVENT + b"\xa1\x61n\x9a" + struct.pack(">I", 60_000) + b"\xa0" * 60_000
    content = plain(payload, payload, payload)
    with bounded(seconds=20):
        result = target.append_file(io.BytesIO(content))
        assert result.imported == 3
        assert [len(each.data["n"]) for each in target.query()] == [60_000] * 3


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 200, 128 * MIB, 128 * MIB + 1, 2**31, 2**32 - 1])
def test_a_frame_that_lies_about_its_length_takes_no_memory(length: int, target: ondisk.Dataset) -> None:
    content = plain(GOOD) + struct.pack("<I", length) + b"x" * 100
    with bounded():
        result, found = append(target, content)
    assert (result.imported, len(found)) == (1, 1)
    assert [(each.offset, each.size) for each in result.damage] == [(12 + 12 + len(GOOD), 104)]


@pytest.mark.parametrize("begin", ["04224d18 60 40 82", "04224d18 60 70 73"])
def test_a_bomb_of_lz4_takes_bounded_memory(begin: str, target: ondisk.Dataset) -> None:
    """A thousand blocks of zeros, each of 4 MiB or of 64 KiB, without any frame."""
    size = 64 * 1024 if begin.endswith("82") else 4 * MIB
    bomb = block(bytes(size))
    with bounded():
        result, _ = append(target, compressed(block(framed(GOOD)), *[bomb] * 200, begin=begin))
    assert result.imported == 1
    assert len(result.damage) == 1
    assert result.damage[0].size >= size


def test_a_block_that_decompresses_to_more_than_its_lz4_frame_allows_is_damage(target: ondisk.Dataset) -> None:
    """It is passed over: the block after it is whole."""
    bomb = block(bytes(100 * MIB))
    content = compressed(block(framed(GOOD)), bomb, block(framed(GOOD)))
    with bounded():
        result, found = append(target, content)
    assert result.imported == 2
    assert [each.data for each in found] == [{"n": 1}] * 2
    assert [each.size for each in result.damage] == [len(bomb)]


@pytest.mark.parametrize("word", [1, 65_537, 2**31 - 1, 1 << 31, 1 << 31 | 65_537, 2**32 - 1])
def test_a_block_that_lies_about_its_size_takes_no_memory(word: int, target: ondisk.Dataset) -> None:
    with bounded():
        result, found = append(target, compressed(block(framed(GOOD)), struct.pack("<I", word) + b"x" * 20))
    assert (result.imported, len(found)) == (1, 1)
    assert result.damage


@pytest.mark.check
def test_very_many_empty_blocks_take_little_time(target: ondisk.Dataset) -> None:
    with bounded(seconds=30):
        result, _ = append(target, compressed(stored(b"") * 30_000, block(framed(GOOD))))
    assert result.imported == 1


@pytest.mark.parametrize("unit", [struct.pack("<II", 0x184D2A50, 0), bytes.fromhex("04224d18 604082") + bytes(4)])
def test_frames_and_blocks_of_lz4_without_data_are_read_up_to_a_limit(
    unit: bytes, target: ondisk.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_MANY", 1000)
    for count, imported in ((300, 2), (2000, 1)):
        begin = compressed(block(framed(GOOD)), bytes(4), unit * count)
        result, _ = append(target, begin + bytes.fromhex("04224d18 604082") + block(framed(GOOD)))
        assert result.imported == imported
        assert len(result.damage) == 2 - imported
        assert all("LZ4 frames and blocks have fewer than 32 bytes each" in each.reason for each in result.damage)


@pytest.mark.check
def test_damage_between_frames_is_passed_in_time_as_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each damaged frame looks like one that contains the frames after it."""
    monkeypatch.setattr(frame_reader, "_MUCH", MIB)
    unit = framed(EVENT + b"\xa0") + struct.pack("<I", 1000) + EVENT
    took = []
    for count in (1_000, 4_000):
        with ondisk.create(tmp_path / str(count), config()) as dataset:
            begin = time.process_time()
            result = dataset.append_file(io.BytesIO(plain() + unit * count), "seg")
            took.append(time.process_time() - begin)
        assert result.imported > 0.9 * count
    assert took[1] < 12 * took[0]


def test_a_skippable_frame_that_lies_about_its_size_takes_no_memory(target: ondisk.Dataset) -> None:
    begin = (struct.pack("<I", 0x184D2A50) + b"\xff" * 4).hex()
    with bounded():
        result, _ = append(target, compressed(bytes(1000), begin=begin))
    assert result.imported == 0
    assert result.damage


def test_every_cut_of_a_file_returns_what_is_whole(tmp_path: Path) -> None:
    for at, content in enumerate((plain(GOOD, GOOD), compressed(block(framed(GOOD)), block(framed(GOOD))))):
        with ondisk.create(tmp_path / str(at), config()) as dataset:
            frame = framed(GOOD)
            begin, size = (19, len(block(frame))) if at else (12, len(frame))
            for cut in range(1, len(content), 2):
                result = dataset.append_file(io.BytesIO(content[:cut]), "seg")
                assert result.imported == max(0, cut - begin) // size
                assert not result.refused
                assert bool(result.damage) == (cut != 12 and (cut < begin or (cut - begin) % size > 0))


@pytest.mark.check
def test_every_flip_of_a_file_returns_the_right_data_or_a_documented_error(tmp_path: Path) -> None:
    """Only in the header's count may a flip stay unnoticed."""
    frame = framed(GOOD)
    for at, content in enumerate((plain(GOOD, GOOD), compressed(block(frame), block(frame)))):
        with ondisk.create(tmp_path / str(at), config()) as dataset:
            for bit in range(at, 8 * len(content), 13):
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                try:
                    result = dataset.append_file(io.BytesIO(bytes(flipped)), "seg")
                except OndiskError:
                    continue
                assert result.imported == 2 or result.damage or result.refused or result.notes
            assert all(each.data == {"n": 1} and each.reftime == T for each in dataset.query())


# Segments on a disk with silent damage


def right_or_documented(dataset: ondisk.Dataset, locations: list[ondisk.Location]) -> int:
    """Read each datum alone and all together, and return the number of errors."""
    failed = 0
    for each, location in zip(DATA[1:3], locations, strict=True):
        try:
            found = dataset.read(location)
        except IntegrityError:
            failed += 1
        else:
            assert found == each
    try:
        together = list(dataset.query())
    except IntegrityError:
        return failed + 1
    assert together == DATA[1:3]
    return failed


@pytest.mark.check
def test_every_flip_of_a_stored_segment_returns_the_right_data_or_a_documented_error(path: Path) -> None:
    whole = (path / SEGMENT).read_bytes()
    begin = 19 if whole[8] else 12
    with ondisk.open(path, read_only=True) as dataset, (path / SEGMENT).open("rb+", buffering=0) as file:
        locations = [each.location for each in dataset.query()]
        assert right_or_documented(dataset, locations) == 0
        for bit in range(8 * begin, 8 * len(whole)):
            file.seek(bit // 8)
            file.write(bytes((whole[bit // 8] ^ 1 << bit % 8,)))
            failed = right_or_documented(dataset, locations)
            assert failed or begin == 19, bit  # in LZ4, some flips decompress to the same
            file.seek(bit // 8)
            file.write(whole[bit // 8 : bit // 8 + 1])
        assert right_or_documented(dataset, locations) == 0


def test_every_cut_of_a_stored_segment_returns_the_right_data_or_a_documented_error(path: Path) -> None:
    whole = (path / SEGMENT).read_bytes()
    with ondisk.open(path, read_only=True) as dataset:
        locations = [each.location for each in dataset.query()]
        for size in range(len(whole) - 1, -1, -3):
            with (path / SEGMENT).open("rb+") as file:
                file.truncate(size)
            assert right_or_documented(dataset, locations) > 0


# An index with wrong content

HUGE = [-1, 2**40, 2**63 - 1]
LIES = [
    *(f"UPDATE block SET {column} = {number} WHERE offset = (SELECT {which}(offset) FROM block)"
      for column in ("position", "stored", "offset") for number in HUGE for which in ("min", "max")),
    *(f"UPDATE block SET {column} = {column} + {step}" for column in ("position", "stored", "offset")
      for step in (-1, 1, 4, 100)),
    *(f"DELETE FROM block WHERE offset = (SELECT {which}(offset) FROM block)" for which in ("min", "max")),
    "DELETE FROM block",
    "UPDATE block SET segment = segment + 1",
    "INSERT INTO block SELECT segment, offset + 1, position + 1, stored FROM block",
    "UPDATE segment SET compressed = 0",
    "UPDATE segment SET compressed = -7",
    *(f"UPDATE segment SET {column} = {number}" for column in ("length", "count", "size") for number in HUGE),
    *(f"UPDATE datum SET {column} = {number} WHERE seq = 2" for column in ("offset", "size") for number in HUGE),
    *(f"UPDATE datum SET {column} = {column} + {step}" for column in ("offset", "size") for step in (-1, 1, 50)),
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_returns_no_wrong_data_and_takes_no_memory(lie: str, lz4_path: Path) -> None:
    try:
        execute(lz4_path, lie)
    except sqlite3.IntegrityError:
        pytest.skip("SQLite itself refuses it")
    with bounded():
        for read_only in (True, False):
            with ondisk.open(lz4_path, read_only=read_only) as dataset:
                for at, each in enumerate(DATA):
                    with contextlib.suppress(IntegrityError, StorageError):
                        assert list(dataset.query(station=at)) == [each]
                with contextlib.suppress(IntegrityError, StorageError):
                    assert list(dataset.query()) == DATA
        before = (lz4_path / SEGMENT).read_bytes()
        with ondisk.open(lz4_path) as dataset:
            try:
                dataset.append([Datum(T, {"station": 9}, {"n": 9})])
            except OndiskError:
                assert (lz4_path / SEGMENT).read_bytes()[8:] == before[8:]


def test_blocks_that_changed_places_return_no_wrong_data(tmp_path: Path) -> None:
    """Other frames of the same length in blocks of the same length, with correct checksums."""
    path = tmp_path / "dataset"
    data = [Datum(T + timedelta(seconds=n), {"station": n}, bytes((n,)) * 100) for n in range(2)]
    with ondisk.create(path, config()) as dataset:
        for each in data:
            dataset.append([each])
    execute(path, "UPDATE block SET position = (SELECT sum(position) FROM block) - position")
    with ondisk.open(path) as dataset:
        for at, each in enumerate(data):
            with pytest.raises(IntegrityError):
                assert list(dataset.query(station=at)) == [each]


@pytest.mark.parametrize("change", ["position = position + 1000000", "position = 9223372036854775807 - offset",
                                    "stored = 1000000"])  # fmt: skip
def test_a_block_that_reaches_past_the_end_is_damage_of_the_index(lz4_path: Path, change: str) -> None:
    """Nothing is wrong with the file: restoring or salvaging it would not help."""
    execute(lz4_path, f"UPDATE block SET {change} WHERE offset = (SELECT max(offset) FROM block)")
    with ondisk.open(lz4_path) as dataset:
        with pytest.raises(IndexCorrupt) as error:
            list(dataset.query(station=3))
        assert "--rebuild" in error.value.hint
        assert list(dataset.query(station=0)) == DATA[:1]


def test_a_missing_block_does_not_shorten_what_payloads_returns(lz4_path: Path) -> None:
    execute(lz4_path, "DELETE FROM block WHERE offset = (SELECT max(offset) FROM block)")
    with ondisk.open(lz4_path) as dataset, pytest.raises(IntegrityError):
        list(dataset.payloads(station=3))


def test_a_datum_that_says_it_is_huge_takes_no_memory_in_a_segment_that_compresses_well(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    with ondisk.create(path, config()) as dataset:
        dataset.append(Datum(T + timedelta(seconds=n), {"station": n}, bytes(MIB)) for n in range(40))
    execute(path, f"UPDATE datum SET size = {2**40} WHERE seq = 1")
    with ondisk.open(path) as dataset, bounded(32 * MIB), pytest.raises(IntegrityError):
        list(dataset.query(station=0))


def test_a_stored_bomb_takes_bounded_memory(lz4_path: Path) -> None:
    """A block on disk was replaced by one that decompresses to far more than 64 KiB."""
    content = (lz4_path / SEGMENT).read_bytes()
    (lz4_path / SEGMENT).write_bytes(content[:19] + block(bytes(200 * MIB)))
    execute(lz4_path, "UPDATE block SET stored = 1000000 WHERE offset = 12", "UPDATE segment SET size = 2000000")
    with ondisk.open(lz4_path) as dataset, bounded(), pytest.raises(SegmentCorrupt):
        list(dataset.query(station=0))
