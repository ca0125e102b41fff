"""Queries that leave out damaged data."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from worlds import rot, sql

import ondisk
from ondisk import Datum, keys
from ondisk.dataset.unreadable_data import Skipped
from ondisk.datum import Location
from ondisk.errors import (
    DataSkipped,
    FrameCorrupt,
    IndexCorrupt,
    IntegrityError,
    InvalidInput,
    SegmentCorrupt,
    SegmentMissing,
    StorageError,
)
from ondisk.formats.diskqueue import blocks
from ondisk.keys import Key, KeyRing

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


KINDS = {
    "jsonl": {},
    "seg": {"format": "seg", "compression": "none"},
    "vm2": {"format": "vm2"},
    "blob": {"format": "blob"},
    "lz4": {"format": "seg", "compression": "lz4"},
    "gcm": {"format": "seg", "encryption": "aes-256-gcm"},
    "ctr": {"format": "seg", "encryption": "aes-128-ctr", "compression": "none"},
    "ctr-lz4": {"format": "seg", "encryption": "aes-128-ctr"},
}
RING = KeyRing([Key(1, bytes(range(16))), Key(2, bytes(range(32)))], "a test")


@pytest.fixture(autouse=True)
def ring():
    keys.use(RING)
    yield
    keys.use(None)


def bad_sector(monkeypatch: pytest.MonkeyPatch, path: Path, begin: int = 0, size: int = 2**40) -> None:
    """Let each read of these bytes of a file fail as the kernel lets it, if a disk cannot read a sector."""
    inode = path.stat().st_ino

    def checked(read: Callable[..., Any], descriptor: int, wanted: Any, offset: int) -> Any:
        last = offset + (wanted if isinstance(wanted, int) else sum(map(len, wanted)))
        if os.fstat(descriptor).st_ino == inode and offset < begin + size and last > begin:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, wanted, offset)

    for call in (os.pread, os.preadv):
        monkeypatch.setattr(os, call.__name__, partial(checked, call))


@pytest.fixture(
    params=[
        *("jsonl", "seg", "vm2", "blob", "missing"),
        *(f"{kind} {place}" for kind in ("lz4", "gcm", "ctr", "ctr-lz4") for place in ("0", "1", "9")),
        *(f"{kind} sector" for kind in KINDS),
        *("lz4 cut", "ctr-lz4 cut"),
    ]
)
def partly_damaged(create, request, monkeypatch):
    """Twenty data in two segments, of which some are damaged: the dataset, how many can be read, and how many not."""
    kind, _, how = request.param.partition(" ")
    options = {"fields": {"station": "integer"}, "unique": [], **KINDS.get(kind, {})}
    if kind == "vm2":
        options["fields"] = {"area": "text", "product": "text"}
    dataset = create("damaged", **options)
    for day in (20, 21):
        times = [datetime(2026, 11, day, tzinfo=UTC) + timedelta(minutes=n) for n in range(10)]
        if kind == "vm2":
            lines = [b"%b,1,%d,1,,,a\n" % (f"{t:%Y%m%d%H%M}".encode(), t.minute + 1) for t in times]
            dataset.append_file(io.BytesIO(b"".join(lines)), "vm2")
        else:
            content = (
                (lambda n: b"photo %d" % n)
                if kind == "blob"
                else (lambda n: {"n": n, "text": Random(n).randbytes(9000).hex()})
            )
            dataset.append([Datum(time, {"station": time.minute}, content(time.minute)) for time in times])
    first = next(path for path in sorted((dataset.path / "2026").glob("11-20*")))
    if kind == "missing":
        first.unlink()
        return dataset, 10, 10
    if how == "cut":
        with first.open("r+b") as file:
            file.truncate(40)
        return dataset, None, None
    if kind == "blob":
        (first / "000007.blob").unlink()
        if how == "sector":
            bad_sector(monkeypatch, first / "000003.blob")
        else:
            (first / "000003.blob").write_bytes(b"XX")
        return dataset, 18, 2
    begin, size = place_of(dataset, int(how or 1) if how != "sector" else 4)
    if how == "sector":
        bad_sector(monkeypatch, first, begin + size // 2, 1)
    else:
        with first.open("r+b") as file:
            file.seek(begin + size // 2)
            file.write(b"\xff" * (size // 3))
    if "lz4" in kind:
        return dataset, None, None
    # Nothing shows which lines of a file without checksums are as they were, if its last bytes have changed.
    return dataset, *((10, 10) if kind == "vm2" and not how else (19, 1))


def place_of(dataset: ondisk.Dataset, number: int) -> tuple[int, int]:
    """Return position and size, in the file, of a datum of the first segment, or of the block that has it."""
    location = [datum.location for datum in dataset.query(limit=10)][number]
    blocks = sql(dataset.path, 'SELECT position, stored, "offset" FROM block ORDER BY segment, "offset"')
    holding = [(position, stored) for position, stored, offset in blocks if offset <= location.offset]
    return holding[-1] if holding else (location.offset, location.size)


def block_of(dataset: ondisk.Dataset, number: int) -> tuple[int, int]:
    """Return position and size, in the file, of a block of a dataset with one segment."""
    return sql(dataset.path, 'SELECT position, stored FROM block ORDER BY "offset"')[number]


def test_a_query_that_skips_damage_returns_all_other_data_and_lists_those(partly_damaged):
    dataset, readable, damaged = partly_damaged
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as dataset:
        whole = {(datum.reftime, datum.location) for datum in dataset.query(with_data=False)}
        found = dataset.query(damaged="skip")
        returned = [(datum.reftime, datum.location) for datum in found]
        assert returned == sorted(returned, key=lambda each: each[0])
        assert found.skipped.count + len(returned) == len(whole) == 20
        assert {location for _, location in returned}.isdisjoint(each.location for each in found.skipped.listed)
        assert found.skipped.count == (damaged or found.skipped.count) > 0
        assert len(returned) == (readable or len(returned)) >= 10
        assert all(each.reason for each in found.skipped.listed)
        limited = dataset.query(limit=10, damaged="skip")
        assert [(datum.reftime, datum.location) for datum in limited] == returned[:10]
        newest = dataset.query(sort="-reftime", damaged="skip")
        assert sorted(returned) == sorted((datum.reftime, datum.location) for datum in newest)
        payloads = dataset.payloads(damaged="skip")
        count = sum(1 for _ in payloads)
        assert count - len(returned) == (dataset.config.format == "seg")  # its header
        assert payloads.skipped.count == found.skipped.count
        with pytest.warns(DataSkipped, match=f"left out: {found.skipped.count}; the first"):
            table = dataset.to_arrow(damaged="skip", columns=["reftime", "data"]).read_all()
        assert [*table["reftime"].to_pylist()] == [time for time, _ in returned]
        with ondisk.merged([dataset.path]) as merged:
            several = merged.query(damaged="skip")
            assert [(datum.reftime, datum.location) for datum in several] == returned
            assert several.skipped.count == found.skipped.count
            assert several.skipped.listed[0].dataset == str(dataset.path)
        with pytest.raises((IntegrityError, SegmentMissing, StorageError)):
            list(dataset.query())


@pytest.mark.parametrize("number", [0, 1], ids=["a block that others follow", "the last block"])
def test_a_block_that_a_changed_byte_made_longer_is_damage_although_its_frames_are_whole(create, number):
    """LZ4 copies bytes: if it copies more, a frame stands whole at the place of another, perhaps of the same time."""
    dataset = create(fields={"n": "integer"}, format="seg", compression="lz4")
    for hour in range(2):
        dataset.append([Datum(T + timedelta(hours=hour), {"n": n}, {"text": "x" * 40}) for n in range(20)])
    (position, size), (path,) = block_of(dataset, number), (dataset.path / "2026").iterdir()
    locations = [datum.location for datum in dataset.query()][20 * number :][:20]
    content = path.read_bytes()
    whole = blocks.unpack(content[position : position + size])
    frames = [whole[at.offset - locations[0].offset :][: at.size] for at in locations]
    found = 0
    for byte, mask in product(range(position + 4, position + size), range(1, 256)):
        changed = content[:byte] + bytes((content[byte] ^ mask,)) + content[byte + 1 :]
        try:
            again = blocks.unpack(changed[position : position + size])
        except SegmentCorrupt:
            continue
        wrong = [
            n
            for n, (at, frame) in enumerate(zip(locations, frames, strict=True))
            if (there := again[at.offset - locations[0].offset :][: at.size]) != frame and there in frames
        ]
        if wrong:
            rot(path, changed)
            with pytest.raises(SegmentCorrupt, match="does not have the size that the index says"):
                list(dataset.query(f"reftime:={T + timedelta(hours=number):%FT%H:%M}; n:{wrong[0]}"))
            with pytest.raises(SegmentCorrupt, match="does not have the size that the index says"):
                dataset.read(locations[wrong[0]])
            if (found := found + 1) == 3:
                break
    assert found


def test_data_before_damage_in_the_last_block_are_read_into_a_new_index_and_from_it(create):
    dataset = create(fields={"n": "integer"}, format="seg", compression="lz4")
    dataset.append([Datum(T, {"n": n}, Random(n).randbytes(300)) for n in range(6)])
    dataset.close()
    (path,) = (dataset.path / "2026").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-60] + bytes((content[-60] ^ 1,)) + content[-59:])
    (dataset.path / "index.sqlite").unlink()
    with ondisk.open(dataset.path) as dataset:
        dataset.fix()
        assert [datum.metadata["n"] for datum in dataset.query()] == [0, 1, 2, 3, 4]
        dataset.append([Datum(T, {"n": 6}, b"after the damage")])
        assert [datum.metadata["n"] for datum in dataset.query()] == [0, 1, 2, 3, 4, 6]


def test_damage_in_an_archive_is_skipped_and_an_index_that_cannot_be_right_is_not(create):
    dataset = create(archive_age=1, fields={"station": "integer"})
    old = datetime(2024, 7, 8, tzinfo=UTC)
    dataset.append([Datum(old + timedelta(minutes=n), {"station": n}, {"n": n}) for n in range(3)])
    dataset.append([Datum(datetime.now(UTC), {"station": 9}, {"n": 9})])
    dataset.repack()
    (segment,) = (dataset.path / ".archive/last").rglob("07-08.jsonl")
    segment.write_bytes(segment.read_bytes()[:-10])
    found = dataset.query(damaged="skip", sort="-reftime", limit=3)
    assert len([*found]) + found.skipped.count <= 4
    assert found.skipped.listed[0].location.segment.startswith(".archive/last/")
    dataset.close()
    sql(dataset.path, "UPDATE datum SET size = -5")
    with ondisk.open(dataset.path, read_only=True) as dataset, pytest.raises(IndexCorrupt):
        list(dataset.query(damaged="skip"))


def test_metadata_of_a_damaged_datum_that_no_field_declares_match_nothing_and_the_datum_is_listed(create):
    dataset = create(format="seg", compression="none")
    dataset.append([Datum(T + timedelta(minutes=n), {"sensor": n % 2}, {"n": n, "text": "x" * 2000}) for n in range(6)])
    bad = [*dataset.query()][1].location
    with (dataset.path / bad.segment).open("r+b") as file:
        file.seek(bad.offset + 8)
        file.write(b"\xff\xff")
    found = dataset.query("metadata.sensor: 1", damaged="skip")
    assert [datum.data["n"] for datum in found] == [3, 5]
    assert [each.location for each in found.skipped.listed] == [bad]


@pytest.mark.parametrize("kind", ["seg", "blob"])
def test_a_query_that_skips_damage_lets_no_other_query_believe_a_changed_file(create, kind):
    dataset = create(**KINDS[kind])
    dataset.append([Datum(T + timedelta(minutes=n), {}, b"%d" % n if kind == "blob" else {"n": n}) for n in range(6)])
    last = [*dataset.query()][5].location
    path, at = dataset.path / last.segment, last.offset + 10
    if kind == "blob":
        path, at = path / ".metadata", -10
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at > 0 else os.SEEK_END)
        file.write(b"XX")
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as dataset:
        assert len([*dataset.query(damaged="skip")]) == 5
        with pytest.raises(SegmentCorrupt, match="changed"):
            dataset.first()
        with dataset.query(damaged="skip") as running:
            next(running)
            with pytest.raises(SegmentCorrupt, match="changed"):
                dataset.first()


def test_what_to_do_about_damage_is_one_of_two_words(create):
    with pytest.raises(InvalidInput, match="damaged must be 'raise', 'skip' or a Skipped, not True"):
        create().query(damaged=True)


def test_a_datum_that_was_left_out_twice_counts_once_and_a_hundred_are_listed():
    skipped = Skipped()
    for n in [*range(150), *range(150)]:
        skipped.add(Location("a", n, 1), FrameCorrupt("damaged"))
    assert (skipped.count, len(skipped.listed)) == (150, 100)
    skipped.add(Location("a", 0, 1), FrameCorrupt("damaged"), dataset="other")
    assert skipped.count == 151


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_a_segment_whose_header_looks_encrypted_is_left_out(create, compression):
    keys.use(None)
    dataset = create(format="seg", compression=compression)
    dataset.append([Datum(T + timedelta(days=day), {}, {"n": day}) for day in range(2)])
    first = dataset.path / dataset.first().location.segment
    content = bytearray(first.read_bytes())
    content[8] ^= 1  # the option that says so
    first.write_bytes(content)
    with ondisk.open(dataset.path) as again, again.query(damaged="skip") as found:
        assert [datum.data["n"] for datum in found] == [1]
        assert found.skipped.count == 1
