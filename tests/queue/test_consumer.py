"""A consumer delivers a queue in its order, at least once; what it leaves on disk is what Beats would leave."""

from __future__ import annotations

import os
import shutil
import struct
from datetime import UTC, datetime, timedelta

import beats
import pytest
from beats import Beats, event
from worlds import access_to, lose_index

import ondisk
from ondisk import Datum
from ondisk.errors import DatumNotFound, FrameCorrupt, InvalidInput, NeedsCheck, ReadOnly, StateError
from ondisk.formats.diskqueue.state import State
from ondisk.queue import Acknowledged, Consumer, acknowledge, consumer
from ondisk.queue.adopt import adopt

CONFIG = {"format": "seg", "step": "sequence", "segment_size": 2000, "fields": {"number": "integer"}}
START = datetime(2026, 11, 20, tzinfo=UTC)


def data(numbers, size=10):
    """Return data whose times are in another order than their numbers."""
    return [Datum(START + timedelta(minutes=37 * n % 1000), {"number": n}, {"text": "x" * size}) for n in numbers]


@pytest.fixture
def queue(create):
    return lambda *count, **values: filled(create("queue", **CONFIG | values), *count)


def filled(dataset, count=0):
    for begin in range(0, count, 7):
        dataset.append(data(range(begin, min(count, begin + 7))))
    return dataset


def numbers(batch):
    return [datum.metadata["number"] for datum in batch]


def everything(dataset, **options):
    """Return what a new consumer delivers."""
    return [number for batch in Consumer(dataset, **options) for number in numbers(batch)]


def consume(consumer, seen):
    """Acknowledge each batch, and add it to what was seen."""
    for batch in consumer:
        seen += numbers(batch)
        batch.ack()


def left_for_beats(dataset):
    """Return what a Beat that starts now would send."""
    return [each.event[2]["number"] for each in beats.restarted(dataset.path)]


def same_as_beats(dataset):
    """Check that the position is one that Beats would have written: the end of a frame, with the count before it."""
    segment, at, frames = beats.position(dataset.path)
    if frames:
        content = (dataset.path / f"{segment}.seg").read_bytes()
        ends = [each.end for each in beats.of_segment(segment, content, 0, 0)]
        assert ends[frames - 1] == at


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("batch_size", [1, 10, 2**64])
def test_everything_is_delivered_in_the_order_of_the_queue_and_removed(queue, compression, batch_size):
    dataset = queue(100, compression=compression)
    seen = []
    for batch in Consumer(dataset, batch_size):
        assert 0 < len(batch) <= batch_size
        assert [datum.data for datum in batch] == [{"text": "x" * 10}] * len(batch)
        seen += numbers(batch)
        batch.ack()
        if compression == "none":
            same_as_beats(dataset)
            assert left_for_beats(dataset) == [*range(seen[-1] + 1, 100)]
        assert beats.segments(dataset.path)[0] == beats.position(dataset.path)[0]
        assert dataset.check().is_clean
    assert seen == [*range(100)]
    assert len(beats.segments(dataset.path)) == 1
    assert everything(dataset) == []


def test_data_that_were_not_acknowledged_come_again(queue):
    dataset = queue(60)
    first, second = (batch for batch, _ in zip(Consumer(dataset, 10), range(2), strict=False))
    assert everything(dataset) == [*range(60)]
    first.ack()
    assert everything(dataset) == [*range(10, 60)]
    second.ack()
    first.ack()  # moves nothing back
    assert everything(dataset) == [*range(20, 60)]


def test_an_acknowledgement_covers_all_batches_before_it(queue):
    dataset = queue(60)
    batches = [*Consumer(dataset, 7)]
    batches[4].ack()
    assert everything(dataset) == [number for batch in batches[5:] for number in numbers(batch)]
    assert left_for_beats(dataset) == everything(dataset)


def test_a_consumer_continues_with_what_is_appended_meanwhile(queue):
    dataset = queue(5)
    consumer = Consumer(dataset, 3)
    seen = []
    for begin in range(5, 65, 10):
        seen += [number for batch in consumer for number in numbers(batch)]
        assert seen == [*range(begin)]
        with ondisk.open(dataset.path) as other:
            other.append(data(range(begin, begin + 10)))
    for batch in consumer:
        batch.ack()
    assert left_for_beats(dataset) == []
    dataset.append(data([99]))
    assert everything(dataset) == left_for_beats(dataset) == [99]


def test_what_is_appended_after_everything_was_acknowledged_comes_next(queue):
    dataset = queue(10)
    for begin in range(10, 200, 30):
        for batch in Consumer(dataset):
            batch.ack()
        dataset.append(data(range(begin, begin + 30)))
        assert everything(dataset) == left_for_beats(dataset) == [*range(begin, begin + 30)]


def test_deleted_data_are_not_delivered_and_beats_does_not_get_them_after_that(queue):
    dataset = queue(60)
    dataset.delete("number: 3 or 4 or 20 or 21 or 58 or 59")
    expected = [n for n in range(60) if n not in (3, 4, 20, 21, 58, 59)]
    assert everything(dataset, batch_size=2) == expected
    seen = []
    for batch in Consumer(dataset, 2):
        batch.ack()
        same_as_beats(dataset)
        seen += numbers(batch)
        assert set(expected) <= {*seen, *left_for_beats(dataset)}
    assert left_for_beats(dataset) == []


def test_the_first_consumer_makes_the_data_its_own(queue):
    dataset = queue(30)
    assert not (dataset.path / "state.dat").exists()
    Consumer(dataset)
    assert State.read(dataset._access.directory) == State()


@pytest.mark.parametrize("version", [0, 1])
def test_the_file_of_the_position_keeps_its_version(queue, version):
    dataset = queue(60)
    first = next(iter(Consumer(dataset, 5)))
    first.ack()
    segment, at, frames = beats.position(dataset.path)
    content = struct.pack("<IQQ", 0, segment, at - 12) if version == 0 else struct.pack("<IQQQ", 1, segment, at, frames)
    (dataset.path / "state.dat").write_bytes(content)
    assert everything(dataset) == [*range(5, 60)]
    next(iter(Consumer(dataset, 5))).ack()
    assert (dataset.path / "state.dat").read_bytes()[:4] == struct.pack("<I", version)
    assert everything(dataset) == [*range(10, 60)]


@pytest.mark.parametrize("byte_index", [77, 1_000_000, 2**64 - 1], ids=["inside", "after the end", "hostile"])
def test_a_position_that_nobody_had_delivers_its_segment_from_the_beginning(queue, byte_index):
    dataset = queue(60)
    (dataset.path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, 1, byte_index, 1))
    assert everything(dataset) == [n for n in range(60) if n >= numbers_of(dataset, "1.seg")[0]]


def numbers_of(dataset, segment):
    return sorted(each.metadata["number"] for each in dataset.query() if each.location.segment == segment)


def test_a_position_of_an_unknown_version_is_not_overwritten(queue):
    dataset = queue(20)
    content = struct.pack("<IQQQ", 7, 0, 0, 0)
    batch = next(iter(Consumer(dataset)))
    (dataset.path / "state.dat").write_bytes(content)
    with pytest.raises(StateError, match="it is of version 7"):
        batch.ack()
    assert (dataset.path / "state.dat").read_bytes() == content


def test_a_killed_acknowledgement_is_finished_by_the_next_consumer(queue):
    dataset = queue(100)
    copy = dataset.path.with_name("copy")
    shutil.copytree(dataset.path, copy)
    acknowledge(dataset, count=50)
    (copy / "state.dat").write_bytes((dataset.path / "state.dat").read_bytes())
    with ondisk.open(copy) as killed:
        Consumer(killed)
        assert beats.segments(copy) == beats.segments(dataset.path)
        assert everything(killed) == [*range(50, 100)]
        assert killed.check().is_clean


def test_damage_is_reported_after_the_data_before_it_and_can_be_acknowledged(queue):
    dataset = queue(30, segment_size=100_000)
    place = next(each.location for each in dataset.query("number: 12"))
    path = dataset.path / place.segment
    content = bytearray(path.read_bytes())
    content[place.offset + place.size - 15] ^= 1
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    consumer, seen = Consumer(dataset, 5), []
    for _ in range(2):
        with pytest.raises(FrameCorrupt):
            consume(consumer, seen)
        assert seen == [*range(12)]
    assert acknowledge(dataset, count=1).count == 1
    assert everything(dataset) == [*range(13, 30)]


def test_data_of_a_segment_that_the_index_does_not_know_are_never_passed(queue):
    dataset = queue(60)
    other = Beats(dataset.path)
    other.publish(*map(event, range(60, 70)))
    other.finish()
    dataset.append(data([70]))
    consumer, seen = Consumer(dataset), []
    for _ in range(2):
        with pytest.raises(StateError, match="has data that the index does not know") as caught:
            consume(consumer, seen)
        assert seen == [*range(60)]
        assert "ondisk fix" in caught.value.hint
    with pytest.raises(StateError):
        acknowledge(dataset, count=5)
    dataset.fix()
    assert [number for batch in consumer for number in numbers(batch)] == [*range(60, 71)]


@pytest.mark.parametrize("is_fixed", [False, True], ids=["unknown", "fixed"])
def test_data_are_not_acknowledged_when_another_file_has_the_place_of_theirs(create, is_fixed):
    """Beats ran while the consumer had a batch: it sent everything, and began again with 0.seg."""
    dataset = create("queue", **CONFIG)
    before = Beats(dataset.path, 10_000)
    before.publish(*map(event, range(5)))
    dataset.fix()
    (batch,) = Consumer(dataset)
    before.acknowledge(5)
    before.stop()
    Beats(dataset.path, 10_000).publish(*map(event, range(10, 20)))
    if is_fixed:
        dataset.fix()
    position = beats.position(dataset.path)
    with pytest.raises(StateError):
        batch.ack()
    assert beats.position(dataset.path) == position
    dataset.fix()
    assert everything(dataset) == [*range(10, 20)]


def test_an_empty_segment_of_beats_does_not_stop_a_consumer(queue):
    dataset = queue(60)
    last = beats.segments(dataset.path)[-1]
    (dataset.path / f"{last + 1}.seg").write_bytes(struct.pack("<III", 2, 0, 0))
    assert everything(dataset) == [*range(60)]


def test_what_beats_appended_to_its_own_segment_stops_a_consumer_until_a_fix(create):
    dataset = create("queue", **CONFIG)
    Beats(dataset.path, 10_000).publish(*map(event, range(5)))
    dataset.fix()
    assert everything(dataset) == [*range(5)]
    with (dataset.path / "0.seg").open("ab") as file:
        file.write(beats.frame(event(5)))
    seen = []
    with pytest.raises(StateError, match=r"0\.seg has data that the index does not know"):
        consume(Consumer(dataset), seen)
    assert seen == [*range(5)]
    dataset.fix()
    assert everything(dataset) == [*range(5, 6)]


def test_a_lost_index_stops_a_consumer(queue):
    dataset = queue(10)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again, pytest.raises(NeedsCheck):
        Consumer(again)


def test_only_a_queue_has_a_consumer(create, queue):
    with pytest.raises(InvalidInput, match="is not a queue"):
        Consumer(create("other", format="seg"))
    dataset = queue(3)
    with ondisk.open(dataset.path, read_only=True) as read_only, pytest.raises(ReadOnly):
        Consumer(read_only)
    with pytest.raises(InvalidInput, match="batch_size must be"):
        Consumer(dataset, 0)


def test_a_number_of_data_is_acknowledged(queue):
    dataset = queue(60)
    assert acknowledge(dataset, count=25, dry_run=True).count == 25
    assert left_for_beats(dataset) == [*range(60)]
    done = acknowledge(dataset, count=25)
    assert (done.count, done.removed) == (25, [f"{number}.seg" for number in range(done.position.segment)])
    assert left_for_beats(dataset) == everything(dataset) == [*range(25, 60)]
    assert acknowledge(dataset, count=1000).count == 35
    assert acknowledge(dataset, count=10).count == 0
    assert left_for_beats(dataset) == []


def test_data_are_acknowledged_up_to_a_location(queue):
    dataset = queue(60)
    places = {each.metadata["number"]: each.location for each in dataset.query()}
    expected = acknowledge(dataset, through=places[41], dry_run=True)
    assert acknowledge(dataset, through=places[41]) == expected
    assert expected.count == 42
    assert everything(dataset) == left_for_beats(dataset) == [*range(42, 60)]
    assert dataset.summary().count == 60 - places_before(places, expected)
    for earlier in (places[0], places[41]):
        assert acknowledge(dataset, through=earlier) == Acknowledged(0, expected.position, [])
    for wrong in (
        places[50].__class__(places[50].segment, places[50].offset + 1, 1),
        places[50].__class__("99.seg", 12, 1),
    ):
        with pytest.raises(DatumNotFound):
            acknowledge(dataset, through=wrong)
    with pytest.raises(InvalidInput, match="either"):
        acknowledge(dataset)


def places_before(places, done):
    return sum(each.segment in done.removed for each in places.values())


def test_acknowledged_data_leave_the_index_with_their_segment(queue):
    dataset = queue(100)
    done = acknowledge(dataset, count=70)
    assert done.removed
    assert {each.location.segment for each in dataset.query()}.isdisjoint(done.removed)
    assert dataset.check().is_clean
    with access_to(dataset.path) as access, access.current().index.snapshot() as snapshot:
        assert snapshot.dataset()["lost"] == 0


@pytest.mark.parametrize("is_fixed", [True, False])
def test_segments_with_which_beats_begins_again_meanwhile_are_not_removed(tmp_path, monkeypatch, is_fixed):
    queue = Beats(tmp_path / "queue", 120, 1, 0)
    queue.publish(*map(event, range(4)))
    adopt(queue.path, {"fields": {"number": "integer"}})
    queue.acknowledge(3)
    real = consumer._done_with

    def done_with(*arguments):
        names = real(*arguments)
        queue.acknowledge(1)
        queue.stop()
        Beats(queue.path, 120, 1, 0).publish(*map(event, range(100, 103)))
        if is_fixed:
            with ondisk.open(queue.path) as dataset:
                dataset.fix()
        return names

    monkeypatch.setattr(consumer, "_done_with", done_with)
    with access_to(queue.path) as access:
        assert consumer.remove_acknowledged(access) == []
    with ondisk.open(queue.path) as dataset:
        dataset.fix()
        assert sorted(each.metadata["number"] for each in dataset.query()) == [100, 101, 102]
