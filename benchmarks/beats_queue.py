"""Measurements of queues of Beats: how fast an import continues, and a consumer reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import events
from measure import Bench, best

import ondisk
from ondisk.queue import Consumer

SEGMENTS = 4
IMPORTED, CONSUMED = 10.0, 20.0  # µs


class QueueBench(Bench):
    """All measurements of queues, in one directory.

    Args:
        count: number of events in the queue. A half of them is imported before the measurement.
    """

    def run(self) -> None:
        self.continue_import()
        self.consume()

    def continue_import(self) -> None:
        """Import the second half of a queue, whose last segment has grown since the first."""
        queue = self.folder / "queue"
        queue.mkdir()
        whole = self.folder / "whole.seg"
        events.write(whole, self.count // SEGMENTS)
        for number in range(SEGMENTS // 2):
            shutil.copy(whole, queue / f"{number}.seg")
        config = {**events.CONFIG, "unique": []}  # all segments have the same events
        before = self.folder / "before"
        with ondisk.create(before, config) as dataset:
            assert stored(dataset, queue) == self.count // 2
        for number in range(SEGMENTS // 2, SEGMENTS):
            shutil.copy(whole, queue / f"{number}.seg")
        copies = [shutil.copytree(before, self.new_path("copy")) for _ in range(self.rounds)]

        def run() -> None:
            with ondisk.open(copies.pop()) as dataset:
                assert stored(dataset, queue) == self.count // 2

        (time,) = best(self.rounds, run)
        self.report.line("queue: import continues", time / (self.count // 2) * 1e6, IMPORTED, "µs", "for each event")

    def consume(self) -> None:
        """Consume everything, and acknowledge each batch."""
        with ondisk.create(self.folder / "consumed", {**events.CONFIG, "unique": [], "step": "sequence"}) as dataset:
            dataset.append(events.data(self.count // 4))

            def run() -> None:
                for batch in Consumer(dataset):
                    batch.ack()
                dataset.path.joinpath("state.dat").unlink()  # all is still there: the last segment stays

            (time,) = best(self.rounds, run)
        each = time / (self.count // 4) * 1e6
        self.report.line("queue: consumer, with acknowledgement", each, CONSUMED, "µs", "for each event")


def stored(dataset: ondisk.Dataset, queue: Path) -> int:
    return sum(result.imported for _, result in dataset.append_queue(queue))
