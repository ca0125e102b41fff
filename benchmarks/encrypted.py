"""Measurements of encrypted segments against their floor."""

from __future__ import annotations

import gc
import random
from collections import deque
from typing import Any

import encrypted_floor
import events
from encrypted_floor import KEY_128, KEY_256, EncryptedFloor
from measure import Bench, best
from seg import drop

import ondisk
from ondisk import keys
from ondisk.formats import find
from ondisk.formats.diskqueue import encryption, payload
from ondisk.formats.diskqueue.header import MAX_SIZE, Header
from ondisk.keys import Key, KeyRing

READS = 2_000
KINDS = {"ctr": {"encryption": "aes-128-ctr", "compression": "none"}, "gcm": {"encryption": "aes-256-gcm"}}


class EncryptedBench(Bench):
    """All measurements of encrypted segments, in one directory.

    Args:
        count: number of events to scan and to append.
    """

    def run(self) -> None:
        keys.use(KeyRing([Key(1, KEY_128), Key(2, KEY_256)], "the benchmark"))
        for name, kind in KINDS.items():
            self.append(name, kind)
            with self.new_dataset({**kind, "step": "yearly"}) as dataset:
                dataset.append(events.data(self.count))
                self.random_reads(name, dataset)
                self.scan(name, dataset)
            drop(dataset)

    def new_dataset(self, kind: dict[str, Any]) -> ondisk.Dataset:
        return ondisk.create(self.new_path("encrypted"), {**events.CONFIG, **kind})

    def append(self, name: str, kind: dict[str, Any]) -> None:
        data = list(events.data(self.count))
        gc.freeze()  # the garbage collector need not visit the input data
        made: list[Any] = []

        def floor_append() -> None:
            made.append(EncryptedFloor(self.new_path("floor"), gcm=name == "gcm"))
            made[-1].append(data, 100_000)

        def append() -> None:
            made.append(self.new_dataset(kind))
            assert made[-1].append(data).imported == len(data)

        times = best(self.rounds, floor_append, append)
        self.report.ratio(f"{name}: append of Datum objects", *times, 1.3, self.count)
        gc.unfreeze()
        drop(*made)

    def random_reads(self, name: str, dataset: ondisk.Dataset) -> None:
        numbers = random.Random(1).sample(range(self.count), min(READS, self.count))
        wanted = {*numbers}
        found = {n: datum.location for n, datum in enumerate(dataset.query(with_data=False)) if n in wanted}
        locations = [found[number] for number in numbers]

        def reads() -> None:
            for each in locations:
                dataset.read(each)

        reads()
        (time,) = best(max(3, self.rounds), reads)
        self.report.line(f"{name}: one datum at random", time / len(locations) * 1e6, 100, "µs")

    def scan(self, name: str, dataset: ondisk.Dataset) -> None:
        path = next(dataset.path.glob("*/*.seg"))
        with path.open("rb") as stream:
            head = Header.parse(stream.read(MAX_SIZE))
        key = KEY_128 if name == "ctr" else encryption.file_key(KEY_256, head.iv)
        format = find("seg")(dataset.config)

        def scan() -> None:
            with path.open("rb") as stream:
                frames = format.frames(stream)  # type: ignore[attr-defined]
                count = sum(len(payload.decode(scanned.payloads).timestamps) for scanned in frames)
                assert count == self.count

        def floor_scan() -> None:
            deque(encrypted_floor.scan(path, head.size, key, head.iv, head.digest), maxlen=0)

        self.report.ratio(f"{name}: scan of frames", *best(self.rounds, floor_scan, scan), 1.3, self.count)
