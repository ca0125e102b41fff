"""What a Beat of today reads of a queue that ondisk has written; docs/queue.md has the same table."""

from __future__ import annotations

import shutil
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import beats
import pytest

import ondisk
from ondisk import Datum, keys
from ondisk.queue import Consumer, acknowledge

CONFIG = {"format": "seg", "step": "sequence", "segment_size": 4000, "fields": {"number": "integer"}}
START = datetime(2026, 11, 20, tzinfo=UTC)
COUNT = 90
GOLDEN = Path(__file__).parents[1] / "golden" / "diskqueue"
VARIANTS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
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


@pytest.fixture
def key_ring():
    keys.use(keys.KeyRing([keys.Key(1, b"k" * 16), keys.Key(2, b"k" * 32)]))
    yield
    keys.use(None)


@pytest.mark.usefixtures("key_ring")
@pytest.mark.parametrize(
    "values",
    [{"encryption": "aes-128-ctr"}, {"encryption": "aes-128-ctr", "compression": "lz4"}, {"encryption": "aes-256-gcm"}],
)
def test_an_encrypted_queue_is_consumed_and_its_position_counts_no_iv(queue, values):
    dataset = queue(**values)
    sizes = {each.metadata["number"]: each.location.size for each in dataset.query()}
    begin = 44 if "gcm" in values["encryption"] else 12
    done = acknowledge(dataset, count=5)
    assert done.position.byte_index == begin + sum(sizes[number] for number in range(5))
    assert done.position.frame_index == 5
    dataset.delete("number: 7")
    seen = []
    for batch in Consumer(dataset, 7):
        seen += [each.metadata["number"] for each in batch]
        batch.ack()
    assert seen == [5, 6, *range(8, COUNT)]
    assert dataset.check(accurate=True).is_clean


@pytest.mark.usefixtures("golden_key")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_queue_of_beats_of_any_version_is_consumed_where_it_is(tmp_path, variant):
    queue = tmp_path / "queue"
    queue.mkdir()
    for number, name in enumerate(("1.seg", "2.seg", "4.seg")):
        shutil.copy(GOLDEN / variant / name, queue / f"{number}.seg")
    ondisk.adopt(queue)
    with ondisk.open(queue) as dataset:
        expected = [each.location for each in dataset.query()]
        assert len(expected) == 41
        seen = []
        for batch in Consumer(dataset, 6):
            seen += [each.location for each in batch]
            batch.ack()
            assert batch[-1].location == seen[-1]
            frames = sum(each.segment == seen[-1].segment for each in seen)
            state = (queue / "state.dat").read_bytes()
            if variant == "v0":  # its Beat knows no frame index, and refuses a newer version of the file
                assert struct.unpack("<IQQ", state)[0] == 0
            else:
                assert struct.unpack("<IQQQ", state)[3] == frames
        assert seen == sorted(expected, key=lambda each: (each.segment, each.offset))
        assert beats.segments(queue) == [2]


@pytest.fixture
def golden_key():
    keys.use(keys.KeyRing([keys.Key(1, b"keykeykeykeykeyk")]))
    yield
    keys.use(None)
