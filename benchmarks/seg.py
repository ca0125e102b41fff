"""Measurements of `seg` with LZ4 against its floor."""

from __future__ import annotations

import gc
import random
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import events
import seg_floor
from measure import Bench, Report, best, peak_memory
from seg_floor import Lookup, SegFloor

import ondisk
from ondisk.formats.diskqueue import blocks, payload
from ondisk.formats.diskqueue.frame_reader import FrameReader
from ondisk.formats.diskqueue.header import SIZE, Header
from ondisk.frame import MAX_SIZE

BATCH = 100_000
SMALL_BATCH = 1_000
READS = 2_000
BLOCK = blocks.BLOCK_SIZE
SMALL_IN_BLOCK = 10
SMALL = 200
POOL = 4 * 1024 * 1024


class SegBench(Bench):
    """All measurements of `seg`, in one directory.

    Args:
        count: number of events to scan. A fifth of them are appended and read; the large segment has a kilobyte for
            each.
    """

    def __init__(self, folder: Path, count: int, rounds: int, report: Report) -> None:
        super().__init__(folder, count, rounds, report)
        self.few = count // 5

    def run(self) -> None:
        self.append_and_read()
        self.random_reads()
        source = self.folder / "events.seg"
        events.write(source, self.count)
        self.scan(source)
        self.memory(source)

    def new_floor(self) -> SegFloor:
        return SegFloor(self.new_path("seg-floor"))

    def new_dataset(self, **config: Any) -> ondisk.Dataset:
        return ondisk.create(self.new_path("seg"), {**events.CONFIG, **config})

    def append_and_read(self) -> None:
        data = list(events.data(self.few))
        gc.freeze()  # the garbage collector need not visit the input data
        made = self.append(data, BATCH, "seg: append of Datum objects", 1.2)
        small = self.append(data, SMALL_BATCH, f"seg: append by {SMALL_BATCH:,}", 1.5)
        gc.unfreeze()
        del data
        drop(*small)
        self.query(*made)
        drop(*made)

    def append(self, data: list[ondisk.Datum], batch_size: int, name: str, goal: float) -> tuple[SegFloor, Any]:
        """Time the append to new datasets, and return the last of each; the others are removed."""
        floors: list[SegFloor] = []
        datasets: list[ondisk.Dataset] = []

        def floor_append() -> None:
            floors.append(self.new_floor())
            floors[-1].append(data, batch_size)

        def append() -> None:
            datasets.append(self.new_dataset())
            assert datasets[-1].append(data, batch_size=batch_size).imported == len(data)

        times = best(self.rounds, floor_append, append)
        self.report.ratio(name, *times, goal, len(data))
        drop(*floors[:-1], *datasets[:-1])
        return floors[-1], datasets[-1]

    def query(self, floor: SegFloor, dataset: ondisk.Dataset) -> None:
        """Time reading everything, after a check that both return the same."""
        ours = ((datum.reftime, dict(datum.metadata), datum.data) for datum in dataset.query())
        assert all(one == other for one, other in zip(floor.query(), ours, strict=True))
        times = best(self.rounds, lambda: list(floor.query()), lambda: list(dataset.query()))
        self.report.ratio("seg: query of everything", *times, 1.3, self.few)

    def random_reads(self) -> None:
        size = self.count * 1000
        free = shutil.disk_usage(self.folder).free
        if free < 2 * size:
            self.report.skipped("seg: one datum at random", f"{free / 1e9:.1f} GB free, {2 * size / 1e9:.1f} needed")
            return
        with self.new_dataset(step="yearly") as dataset:
            dataset.append(large_and_small(size // BLOCK))
            found = (datum.location for datum in dataset.query(with_data=False))
            locations = [location for location in found if location and location.size < SMALL]
            locations = random.Random(1).sample(locations, min(READS, len(locations)))

            floor = Lookup(dataset.path)
            for location in locations[:100]:
                datum = dataset.read(location)
                by_hand = floor.read(location.segment, location.offset, location.size)
                assert by_hand == (datum.reftime, dict(datum.metadata), datum.data)

            def by_hand_reads() -> None:
                for location in locations:
                    floor.read(location.segment, location.offset, location.size)

            def reads() -> None:
                for location in locations:
                    dataset.read(location)

            times = best(self.rounds * 5, by_hand_reads, reads)
        floor.close()
        self.report.ratio(f"seg: one datum at random of {size / 1e9:.2f} GB", *times, 3.0, len(locations))
        drop(dataset)

    def scan(self, source: Path) -> None:
        def scan() -> None:
            with source.open("rb") as stream:
                head = Header.parse(stream.read(SIZE))
                frames = FrameReader(stream, head, max_size=MAX_SIZE, position=SIZE, offset=SIZE)
                count = sum(len(payload.decode(scanned.payloads).timestamps) for scanned in frames)
                assert count == self.count

        times = best(self.rounds, lambda: deque(seg_floor.scan(source), maxlen=0), scan)
        self.report.ratio("seg: scan of frames", *times, 1.3, self.count)

    def memory(self, source: Path) -> None:
        small = self.folder / "few.seg"
        events.write(small, self.few)
        few, many = self.peak_of_append(small), self.peak_of_append(source)
        name = f"seg: memory, {self.count:,} : {self.few:,}"
        self.report.line(name, many / few, 1.15, "×", f"{few:.0f} MB, {many:.0f} MB")

    def peak_of_append(self, source: Path) -> float:
        dataset = self.new_dataset()
        dataset.close()
        program = f"import ondisk; ondisk.open({str(dataset.path)!r}).append_file({str(source)!r})"
        peak = peak_memory([sys.executable, "-c", program])
        drop(dataset)
        return peak


def large_and_small(blocks: int) -> Iterator[ondisk.Datum]:
    """Return data for this number of blocks: for each, some small data and one that compresses as well as those."""
    random_ = random.Random(1)
    pool = b"".join(events.frame(0, datum.metadata, datum.data) for datum in events.data(POOL // 100))
    small = events.data(blocks * SMALL_IN_BLOCK)
    for number in range(blocks):
        yield from islice(small, SMALL_IN_BLOCK)
        size = BLOCK - (SMALL_IN_BLOCK + 2) * SMALL
        begin = random_.randrange(len(pool) - size)
        time = events.BEGIN + timedelta(seconds=number)
        yield ondisk.Datum(time, {"station": 0, "product": "large"}, pool[begin : begin + size])


def drop(*datasets: SegFloor | ondisk.Dataset) -> None:
    """Close and delete."""
    for each in datasets:
        each.close()
        shutil.rmtree(each.path)
