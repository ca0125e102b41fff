"""Measurements of check, fix and repack, each against the least work that a hand-written program needs."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
import zlib
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import events
import observations
import seg_floor
from measure import Bench, best, peak_memory

import ondisk

LARGE = 64 * 1024  # bytes of a datum in the benchmarks that copy files: the size of a small GRIB message
LARGE_TOTAL = 400_000_000
PHOTO = 1024 * 1024
PHOTOS = 200
READ = 1024 * 1024

_SUMS = """
    SELECT segment, count(*), sum(size), min(reftime), max(reftime), min(offset), max(offset + size)
    FROM datum GROUP BY segment
"""
_ROWS = """
    SELECT reftime, f_station, value.value FROM datum JOIN value ON value.id = f_product ORDER BY segment, offset
"""


class MaintenanceBench(Bench):
    """All measurements of maintenance, in one directory."""

    def run(self) -> None:
        source = self.folder / "observations.vm2"
        observations.write(source, self.count)
        self.check_and_rebuild(source)
        self.memory(source)
        with self.large() as dataset:
            self.accurate_check(dataset, "accurate check of 64 KiB data", read_and_sum)
            self.repack(dataset)
        shutil.rmtree(dataset.path)
        self.read_blobs()
        with self.new_dataset({**events.CONFIG, "compression": "none"}) as dataset:
            dataset.append(events.data(self.count // 5))
            self.accurate_check(dataset, "accurate check of 109 byte data", decode_and_compare)

    def new_dataset(self, config: dict[str, Any]) -> ondisk.Dataset:
        return ondisk.create(self.new_path("dataset"), config)

    def check_and_rebuild(self, source: Path) -> None:
        imported: list[Path] = []

        def import_() -> None:
            with self.new_dataset(observations.CONFIG) as dataset:
                dataset.append_file(source)
            imported.append(dataset.path)

        def rebuild() -> None:
            """Rebuild the index of the last imported dataset."""
            for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
                (imported[-1] / name).unlink(missing_ok=True)
            with ondisk.open(imported[-1]) as dataset:
                dataset.fix()

        times = best(self.rounds * 2, import_, rebuild)
        # Most of the time of both is SQLite's, for the same rows: the ratio is 1.0, and varies by some per cent.
        self.report.ratio("rebuild of a lost index", *times, 1.1, self.count)
        path = imported.pop()
        for other in imported:
            shutil.rmtree(other)
        with ondisk.open(path) as dataset:
            assert dataset.summary().count == self.count
            index = sqlite3.connect(f"file:{path}/index.sqlite?mode=ro", uri=True)
            segments = len(index.execute(_SUMS).fetchall())

            def check() -> None:
                assert dataset.check().ok == segments

            times = best(self.rounds * 2, lambda: index.execute(_SUMS).fetchall(), check)
            self.report.ratio(f"check of {segments} segments", *times, 1.5)
            index.close()
        self.half_deleted(path)
        shutil.rmtree(path)

    def half_deleted(self, path: Path) -> None:
        """Delete every second series; measure a check, which only reads rows, and a repack, which moves the data."""
        with ondisk.open(path) as dataset:
            dataset.delete(" or ".join(f"product: VM2,{variable}" for variable in observations.VARIABLES[::2]))
            segments = dataset.info()["segments"]
            index = sqlite3.connect(f"file:{path}/index.sqlite?mode=ro", uri=True)

            def check() -> None:
                assert len(dataset.check().segments) == segments

            times = best(self.rounds * 2, lambda: read_rows(index), check)
            self.report.ratio("check of half-deleted segments", *times, 2.5, self.count // 2)
            index.close()
        pairs = []
        for number in range(self.rounds):
            floor, place = self.folder / f"floor-{number}", self.folder / f"repacked-{number}"
            for copy in (floor, place):
                shutil.copytree(path, copy)
            os.sync()
            with ondisk.open(place) as copy:
                pairs.append(best(1, lambda floor=floor: keep_rows(floor), copy.repack))
            for copy in (floor, place):
                shutil.rmtree(copy)
        floor_time, ours = map(min, zip(*pairs, strict=True))
        self.report.ratio("repack of half-deleted small data", floor_time, ours, 3.0, self.count // 2)

    def memory(self, source: Path) -> None:
        """Compare the memory for maintenance of few data and of many data."""
        small = self.folder / "small.vm2"
        observations.write(small, self.count // 5)
        few, many = self.peak(small), self.peak(source)
        name = f"memory of maintenance, {self.count:,} : {self.count // 5:,}"
        self.report.line(name, many / few, 1.15, "×", f"{few:.0f} MB, {many:.0f} MB")

    def peak(self, source: Path) -> float:
        with self.new_dataset(observations.CONFIG) as dataset:
            dataset.append_file(source)
            dataset.delete("area: VM2,105")
        for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
            (dataset.path / name).unlink(missing_ok=True)
        verbs = "d.fix(); d.delete('area: VM2,105'); d.repack(); assert d.check(accurate=True).ok"
        program = f"import ondisk; d = ondisk.open({str(dataset.path)!r}); {verbs}"
        peak = peak_memory([sys.executable, "-c", program])
        shutil.rmtree(dataset.path)
        return peak

    def large(self) -> ondisk.Dataset:
        """Create a dataset of data that do not compress, in plain segments."""
        random_ = random.Random(1)
        dataset = self.new_dataset({**events.CONFIG, "compression": "none", "step": "weekly"})
        each = timedelta(days=28) / (LARGE_TOTAL // LARGE)
        dataset.append(
            ondisk.Datum(
                events.BEGIN + number * each, {"station": number % 2, "product": "p"}, random_.randbytes(LARGE)
            )
            for number in range(LARGE_TOTAL // LARGE)
        )
        return dataset

    def accurate_check(self, dataset: ondisk.Dataset, name: str, floor: Callable[[list[Path]], None]) -> None:
        """Measure a check of all data against a floor that reads the same files in the order of their segments."""
        files = sorted(dataset.path.glob("2026/*"))

        def check() -> None:
            assert dataset.check(accurate=True).ok == len(files)

        check()
        self.report.ratio(name, *best(self.rounds * 2, lambda: floor(files), check), 2.0)

    def read_blobs(self) -> None:
        """Measure reading files of 1 MiB against reading and summing them."""
        random_ = random.Random(2)
        with self.new_dataset({"format": "blob", "step": "monthly"}) as dataset:
            times = (events.BEGIN + timedelta(hours=hour) for hour in range(PHOTOS))
            dataset.append(ondisk.Datum(time, {}, random_.randbytes(PHOTO)) for time in times)
            files = sorted(dataset.path.glob("2026/*/*.blob"))

            def read() -> None:
                assert sum(len(datum.data) for datum in dataset.query()) == PHOTOS * PHOTO

            read()
            floor, found = best(self.rounds * 5, lambda: read_whole_and_sum(files), read)
            self.report.ratio("read of 1 MiB blobs", floor, found, 1.1)
        shutil.rmtree(dataset.path)

    def repack(self, dataset: ondisk.Dataset) -> None:
        """Delete every second datum and measure repack against reading and summing the files and writing their halves.

        Repack reads what it does not copy, too: bytes that somebody else has changed are found before they are dropped.
        """
        dataset.delete("station: 1")
        copies = self.folder / "copies"
        files = [*dataset.path.glob("2026/*")]
        pairs = []
        for number in range(self.rounds * 2):
            place = self.folder / f"repacked-{number}"
            shutil.copytree(dataset.path, place)
            os.sync()
            shutil.rmtree(copies, ignore_errors=True)
            copies.mkdir()
            with ondisk.open(place) as copy:
                works = [lambda: sum_and_copy_half(files, copies), copy.repack]
                # The first to run reuses memory that was just freed, which is faster in a virtual machine.
                turn = -1 if number % 2 else 1
                pairs.append(best(1, *works[::turn])[::turn])
            shutil.rmtree(place)
        self.report.ratio("repack of half-empty segments", *map(min, zip(*pairs, strict=True)), 1.2)


def read_rows(index: sqlite3.Connection) -> int:
    """Read the places of all data, in the order of their segments, and count the bytes between them."""
    sql = "SELECT segment, offset, size FROM datum ORDER BY segment, offset"
    gaps, before, end = 0, 0, 0
    for segment, offset, size in index.execute(sql):
        if segment != before:
            before, end = segment, 0
        gaps += offset - end
        end = offset + size + 1
    return gaps


def keep_rows(folder: Path) -> None:
    """Write each segment again with the data of the rows that are left, and store their new offsets in one commit."""
    index = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    index.execute("BEGIN IMMEDIATE")
    rows_of = "SELECT seq, offset, size FROM datum WHERE reftime >= ? AND reftime < ? AND segment = ? ORDER BY 2"
    for id_, name, begin, end in index.execute('SELECT id, name, "begin", "end" FROM segment').fetchall():
        content = (folder / name).read_bytes()
        zlib.crc32(content)
        rows = index.execute(rows_of, (begin, end, id_)).fetchall()
        with (folder / f"{name}.new").open("wb") as file:
            kept = b"".join([content[offset : offset + size + 1] for _, offset, size in rows])
            zlib.crc32(kept)
            file.write(kept)
            file.flush()
            os.fsync(file.fileno())
        (folder / f"{name}.new").rename(folder / name)
        offsets = accumulate((size + 1 for _, _, size in rows), initial=0)
        moved = ((offset, seq) for (seq, _, _), offset in zip(rows, offsets, strict=False))
        index.executemany("UPDATE datum SET offset = ? WHERE seq = ?", moved)
    index.execute("COMMIT")
    index.close()


def read_whole_and_sum(files: list[Path]) -> None:
    """Read each file at once, as a query does: the bytes of one are alive until those of the next are there."""
    for file in files:
        content = file.read_bytes()
        zlib.crc32(content)


def read_and_sum(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as stream:
            checksum = 0
            while piece := stream.read(READ):
                checksum = zlib.crc32(piece, checksum)


def decode_and_compare(files: list[Path]) -> None:
    """Check and decode each frame and compare it with its row: for small data, reading takes hardly any time."""
    index = sqlite3.connect(f"file:{files[0].parent.parent}/index.sqlite?mode=ro", uri=True)
    rows = index.execute(_ROWS)
    for event, (reftime, station, product) in zip(chain.from_iterable(map(seg_floor.scan, files)), rows, strict=True):
        assert event["timestamp"] == reftime * 1000
        assert event["meta"] == {"station": station, "product": product}
    index.close()


def sum_and_copy_half(files: list[Path], folder: Path) -> None:
    for file in files:
        with file.open("rb") as stream, (folder / file.name).open("wb") as copy:
            half, checksum = file.stat().st_size // 2, 0
            while piece := stream.read(READ):
                checksum = zlib.crc32(piece, checksum)
                if copy.tell() < half:
                    copy.write(piece)
            copy.flush()
            os.fsync(copy.fileno())
