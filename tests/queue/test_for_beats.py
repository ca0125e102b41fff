"""What a Beat of today reads of a queue that ondisk has written; docs/queue.md has the same table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import beats
import pytest

import ondisk
from ondisk import Datum
from ondisk.queue import Consumer, acknowledge

CONFIG = {"format": "seg", "step": "sequence", "segment_size": 4000, "fields": {"number": "integer"}}
START = datetime(2026, 11, 20, tzinfo=UTC)
COUNT = 90
ALL = [*range(COUNT)]


@pytest.fixture
def queue(create):
    def make(**values):
        dataset = create("queue", **CONFIG | values)
        for begin in range(0, COUNT, 30):
            dataset.append(
                Datum(START + timedelta(hours=n), {"number": n}, {"text": "x" * 40}) for n in range(begin, begin + 30)
            )
        return dataset

    return make


def read_by_beats(dataset):
    return [each.event[2]["number"] for each in beats.restarted(dataset.path)]


@pytest.mark.parametrize("values", [{}, {"version": 0}, {"compression": "none"}, {"segment_size": 100_000}])
def test_beats_reads_all_of_a_plain_queue(queue, values):
    assert read_by_beats(queue(**values)) == ALL


@pytest.mark.parametrize("values", [{"version": 1}, {"payload": "protobuf"}])
def test_beats_reads_nothing_of_what_it_does_not_know_any_more(queue, values):
    assert read_by_beats(queue(**values)) == []


def test_beats_skips_the_end_of_each_compressed_segment(queue):
    dataset = queue(compression="lz4")
    found = read_by_beats(dataset)
    assert found
    assert set(found) < set(ALL)
    assert [n for batch in Consumer(dataset) for n in (each.metadata["number"] for each in batch)] == ALL


@pytest.mark.parametrize(
    "values", [{}, {"version": 0}, {"version": 1}, {"compression": "lz4"}, {"payload": "protobuf"}]
)
def test_each_configuration_is_consumed_in_order_by_ondisk(queue, values):
    dataset = queue(**values)
    acknowledge(dataset, count=10)
    seen = []
    for batch in Consumer(dataset, 7):
        seen += [each.metadata["number"] for each in batch]
        batch.ack()
        if batch[0].metadata["number"] > 50:
            break
    assert seen == [*range(10, seen[-1] + 1)]
    rest = [each.metadata["number"] for batch in Consumer(dataset) for each in batch]
    assert rest == [*range(seen[-1] + 1, COUNT)]
    if values == {}:
        assert read_by_beats(dataset) == rest
    if values == {"version": 0}:  # Beats reads a segment from its beginning, since state.dat of version 0 has no index
        assert {*rest} <= {*read_by_beats(dataset)}
        assert (dataset.path / "state.dat").read_bytes()[:4] == bytes(4)
    assert dataset.check(accurate=True).is_clean


def test_beats_continues_where_ondisk_has_stopped_and_ondisk_where_beats_has(queue):
    dataset = queue()
    acknowledge(dataset, count=10)
    dataset.close()
    beat = beats.Beats(dataset.path)
    beat.acknowledge(30)
    beat.publish(*map(beats.event, range(COUNT, COUNT + 5)))
    beat.stop()
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert [each.metadata["number"] for batch in Consumer(again) for each in batch] == [*range(40, COUNT + 5)]
        assert acknowledge(again, count=45).count == 45
        assert read_by_beats(again) == [*range(85, COUNT + 5)]
        assert again.check().is_clean
