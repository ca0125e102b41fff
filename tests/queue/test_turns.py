"""ondisk and Beats take turns with a queue: whoever consumes it, each event comes once in order, and none is lost."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import beats
import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st

import ondisk
from ondisk import Datum
from ondisk.maintenance.states import State
from ondisk.queue import Consumer, acknowledge

CONFIG = {"format": "seg", "step": "sequence", "segment_size": 600, "fields": {"number": "integer"}}
START = datetime(2026, 11, 20, tzinfo=UTC)
STEPS = 14


class Turns:
    """A queue, and what its consumers must still get, in order."""

    def __init__(self, path, seed):
        self.path = path
        self.chance = random.Random(seed)
        self.dataset = ondisk.create(path, CONFIG)
        self.pending = []
        self.deleted = set()
        self.made = 0

    def new(self):
        numbers = [*range(self.made, self.made + self.chance.randrange(1, 12))]
        self.made += len(numbers)
        self.pending += numbers
        return numbers

    def append(self):
        times = (START + timedelta(hours=self.chance.randrange(50)) for _ in range(100))
        self.dataset.append(Datum(time, {"number": n}, {"x": n}) for n, time in zip(self.new(), times, strict=False))

    def consume(self):
        seen = []
        for batch in Consumer(self.dataset, self.chance.randrange(1, 9)):
            seen += [each.metadata["number"] for each in batch]
            assert seen == self.left()[: len(seen)]
            if self.chance.random() < 0.5:
                batch.ack()
                self.acknowledged(seen[-1])
                seen = []
            if self.chance.random() < 0.2:
                break

    def acknowledge(self):
        left = self.left()
        count = self.chance.randrange(1, 20)
        assert acknowledge(self.dataset, count=count).count == min(count, len(left))
        if left:
            self.acknowledged(left[:count][-1])

    def acknowledged(self, number):
        self.pending = self.pending[self.pending.index(number) + 1 :]

    def delete(self):
        if self.pending:
            number = self.chance.choice(self.pending)
            self.dataset.delete(f"number: {number}")
            self.deleted.add(number)

    def maintain(self):
        self.dataset.fix()
        self.dataset.repack()

    def beat(self):
        """Let Beats send some, and write some; it does not know what was deleted."""
        self.dataset.close()
        state = self.path / "state.dat"
        before = state.read_bytes() if state.exists() else b""
        beat = beats.Beats(self.path, 500)
        state.write_bytes(before)  # of a queue without segments, too: Beats begins with 0.seg, and keeps the position
        unsent = [each.event[2]["number"] for each in beats.restarted(self.path)]
        assert [n for n in unsent if n not in self.deleted] == self.left()
        if unsent and self.chance.random() < 0.7:
            count = self.chance.randrange(1, len(unsent) + 1)
            beat.acknowledge(count)
            self.pending = [n for n in self.pending if n in unsent[count:]]
        if self.chance.random() < 0.7:
            beat.publish(*map(beats.event, self.new()))
        if self.chance.random() < 0.3:
            beat.stop()  # removes what it has sent, and the next one begins with 0.seg
        if self.chance.random() < 0.5:
            beat.finish()
        beat.crash()
        self.dataset = ondisk.open(self.path)
        self.dataset.fix()

    def left(self):
        return [number for number in self.pending if number not in self.deleted]

    def check(self):
        assert [
            n for batch in Consumer(self.dataset) for n in (each.metadata["number"] for each in batch)
        ] == self.left()
        by_beats = [each.event[2]["number"] for each in beats.restarted(self.path)]
        assert [n for n in by_beats if n not in self.deleted] == self.left()
        report = self.dataset.check()
        findings = [each for each in report.findings if each.state is not State.DIRTY or not self.deleted]
        assert not findings, findings  # what was deleted stays in the segments that Beats has to read
        assert report.lost == 0


@pytest.mark.check
@settings(max_examples=up_to(10))
@given(st.integers(0, 2**32))
def test_each_event_comes_once_and_in_order(tmp_path_factory, seed):
    turns = Turns(tmp_path_factory.mktemp("room") / "queue", seed)
    for _ in range(STEPS):
        turns.chance.choice(
            [turns.append, turns.consume, turns.acknowledge, turns.delete, turns.maintain, turns.beat]
        )()
        turns.check()
    turns.dataset.close()
