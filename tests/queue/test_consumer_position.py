"""A position in `state.dat` that is of another segment, or of another queue, skips nothing and removes nothing."""

from __future__ import annotations

import os
import shutil
import struct
from datetime import UTC, datetime, timedelta

import beats
import pytest
from beats import event

import ondisk
from ondisk import Datum, keys
from ondisk.errors import StateError
from ondisk.formats.diskqueue.state import State
from ondisk.keys import Key, KeyRing
from ondisk.maintenance.states import State as Is
from ondisk.queue import Consumer, acknowledge

T = datetime(2026, 11, 20, tzinfo=UTC)
FIELDS = {"fields": {"number": "integer"}}


def write(path, *numbers, name="0.seg"):
    """Write a segment, as Beats does; all events with numbers of two digits from 24 on have the same size."""
    content = struct.pack("<III", 2, len(numbers), 0) + b"".join(beats.frame(event(number)) for number in numbers)
    (path / name).write_bytes(content)
    return len(content)


def position(path, *numbers, version=1):
    """Write the position."""
    (path / "state.dat").write_bytes(State(*numbers, version=version).pack())


def state_file_of(path):
    return State.parse((path / "state.dat").read_bytes())


def by_beats(path):
    """Return what a Beat that starts now sends."""
    return [each.event[2]["number"] for each in beats.restarted(path)]


def consumed(dataset):
    return [each.metadata["number"] for batch in Consumer(dataset) for each in batch]


@pytest.fixture
def queue(tmp_path):
    """Adopt a queue of five events, all of which Beats then sends, so that it removes the segment."""
    path = tmp_path / "queue"
    path.mkdir()
    size = write(path, *range(30, 35))
    ondisk.adopt(path, FIELDS)

    def send_all(version=1):
        (path / "0.seg").unlink()
        position(path, 0, size if version else size - 12, 5 * version, version=version)
        return path

    return send_all


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("between", ["nothing", "check", "fix", "repack", "consume"])
def test_a_position_in_an_earlier_segment_of_the_same_name_skips_nothing(queue, between, version):
    path = queue(version)
    with ondisk.open(path) as dataset:
        if between == "consume":
            assert consumed(dataset) == []
        elif between != "nothing":
            getattr(dataset, between)()
    write(path, *range(40, 52))
    with ondisk.open(path) as dataset:
        report = dataset.fix()
        assert report.lost == 0
        assert by_beats(path) == consumed(dataset) == [*range(40, 52)]
        is_noted = any("and begins again at its beginning" in reason for reason in report.segments[0].reasons)
        assert is_noted == (between in ("nothing", "check"))
        assert acknowledge(dataset, count=4).count == 4
        assert consumed(dataset) == [*range(44, 52)]
        assert dataset.check().is_clean


def test_a_position_in_the_middle_of_a_segment_that_was_replaced_skips_nothing(queue):
    path = queue()
    size = write(path, *range(30, 35))
    position(path, 0, 12 + (size - 12) // 5 * 2, 2)
    with ondisk.open(path) as dataset:
        assert dataset.fix().lost == 0
        assert consumed(dataset) == [32, 33, 34]
    write(path, *range(40, 52))
    with ondisk.open(path) as dataset:
        assert dataset.fix().lost == 5, "nothing proves that all of it was read"
        assert by_beats(path) == consumed(dataset) == [*range(40, 52)]


def test_what_was_replaced_after_the_position_only_does_not_move_it(queue):
    path = queue()
    size = write(path, *range(30, 35))
    position(path, 0, 12 + (size - 12) // 5 * 2, 2)
    with ondisk.open(path) as dataset:
        dataset.fix()
    write(path, 30, 31, *range(40, 52))
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert by_beats(path) == consumed(dataset) == [*range(40, 52)]


def test_a_position_that_a_killed_fix_has_moved_still_proves_that_the_old_file_was_read(queue):
    path = queue()
    write(path, *range(40, 52))
    position(path, 0, state_file_of(path).byte_index, 0)  # as it is before the commit
    assert by_beats(path) == [*range(40, 52)]
    with ondisk.open(path) as dataset:
        assert dataset.check().lost == dataset.fix().lost == 0
        assert state_file_of(path) == State(), "and proves nothing about the new one"
        assert by_beats(path) == consumed(dataset) == [*range(40, 52)]


def test_when_nothing_is_left_the_position_is_where_beats_begins(queue):
    """It begins with 0.seg, and when it starts again, it removes the segments before its position."""
    path = queue()
    (path / "state.dat").unlink()
    size = write(path, *range(40, 52), name="7.seg")
    with ondisk.open(path) as dataset:
        dataset.fix()
        (path / "7.seg").unlink()
        position(path, 7, size, 12)
        assert dataset.fix().lost == 0
        assert state_file_of(path) == State()


@pytest.mark.parametrize("version", [0, 1])
def test_an_acknowledgement_after_beats_has_sent_everything_has_nothing_to_do(queue, version):
    path = queue(version)
    with ondisk.open(path) as dataset:
        for is_dry in (True, False):
            done = acknowledge(dataset, count=1, dry_run=is_dry)
            assert (done.count, done.removed) == (0, ["0.seg"])
        assert dataset.check().is_clean
        assert state_file_of(path) == State(version=version)


STRAY = [(2, 12, 0), (9, 12, 0), (9, 400, 3), (2**64 - 1, 12, 0), (2**64 - 1, 2**64 - 1, 2**64 - 1)]


@pytest.fixture
def two(tmp_path):
    """Adopt a queue of two segments."""
    path = tmp_path / "two"
    path.mkdir()
    write(path, *range(30, 35))
    write(path, *range(35, 40), name="1.seg")
    ondisk.adopt(path, FIELDS)
    return path


@pytest.mark.parametrize("numbers", STRAY, ids=str)
def test_a_position_after_all_segments_removes_nothing_and_a_fix_says_so(two, numbers):
    position(two, *numbers)
    with ondisk.open(two) as dataset:
        for refused in (
            lambda: Consumer(dataset),
            lambda: acknowledge(dataset, count=1),
            lambda: acknowledge(dataset, count=1, dry_run=True),
            lambda: dataset.append([next(dataset.query())]),
        ):
            with pytest.raises(StateError, match=r"but 1\.seg is the last segment") as caught:
                refused()
            assert "ondisk fix" in caught.value.hint
        dataset.repack()
        with pytest.raises(StateError, match="still has to read it"):
            dataset.archive("0.seg")
        (found,) = dataset.check().findings
        assert (found.segment, found.state, found.action) == ("state.dat", Is.UNALIGNED, "rescan")
        assert beats.segments(two) == [0, 1]
        (done,) = dataset.fix()
        assert (done.segment, done.lost) == ("state.dat", 0)
        assert "the consumer begins again with 0.seg" in done.reasons
        assert dataset.check().is_clean
        assert by_beats(two) == consumed(dataset) == [*range(30, 40)]


def test_a_queue_with_a_position_after_all_segments_is_adopted_from_its_beginning(two):
    for name in ("dataset.toml", "index.sqlite", "index.sqlite-wal", "index.sqlite-shm", ".tide"):
        (two / name).unlink()
    position(two, 9, 400, 3, version=1)
    assert "state.dat" in [each.segment for each in ondisk.adopt(two, FIELDS, dry_run=True).findings]
    assert by_beats(two) == []
    assert "state.dat" in [each.segment for each in ondisk.adopt(two, FIELDS)]
    with ondisk.open(two) as dataset:
        assert by_beats(two) == consumed(dataset) == [*range(30, 40)]


def test_a_position_after_the_last_segment_that_beats_has_removed_is_one_of_beats(two):
    """It has sent all, also what no fix has seen."""
    position(two, 4, 400, 3)
    for number in (0, 1):
        (two / f"{number}.seg").unlink()
    with ondisk.open(two) as dataset:
        assert dataset.check().consumed == 2
        assert dataset.fix().lost == 0
        assert state_file_of(two) == State()
        assert dataset.check().is_clean


@pytest.mark.parametrize("byte_index", [1_000_000, 2**64 - 1])
def test_a_position_after_the_end_of_its_segment_is_reported_and_passes_nothing(two, byte_index):
    position(two, 0, byte_index, 3)
    assert by_beats(two) == [*range(35, 40)]
    with ondisk.open(two) as dataset:
        (found,) = dataset.check().findings
        assert (found.segment, "which ends before that" in found.reasons[0]) == ("state.dat", True)
        (done,) = dataset.fix()
        assert (done.segment, done.lost) == ("state.dat", 0)
        assert by_beats(two) == consumed(dataset) == [*range(30, 40)]
        assert dataset.check().is_clean
        position(two, 0, byte_index, 3)
        assert acknowledge(dataset, count=2).count == 2
        assert by_beats(two) == consumed(dataset) == [*range(32, 40)]


def test_a_position_in_what_beats_has_written_since_is_right(two):
    with (two / "1.seg").open("ab") as file:
        file.write(beats.frame(event(40)) + beats.frame(event(41)))
        size = file.tell()
    position(two, 1, size, 7)
    with ondisk.open(two) as dataset:
        assert {each.segment for each in dataset.check().findings} == {"1.seg"}
        dataset.fix()
        assert consumed(dataset) == by_beats(two) == []


def age(path, *names):
    """Let files be a minute older, as if the others had been written now."""
    for name in names:
        found = (path / name).stat()
        os.utime(path / name, ns=(found.st_atime_ns, found.st_mtime_ns - 60 * 10**9))


@pytest.fixture
def again(tmp_path):
    """Adopt a queue of which the index knows as many segments; then Beats sends all, begins again, and sends nothing.

    Its last position is on the boundary of an event of the new segment with the same number.
    """
    path = tmp_path / "again"
    path.mkdir()

    def begin(known, last=3):
        position(path, 0)
        for number in range(known):
            write(path, *range(30 + 3 * number, 33 + 3 * number), name=f"{number}.seg")
        if known:
            ondisk.adopt(path, FIELDS)
        for number in range(known):
            (path / f"{number}.seg").unlink()
        position(path, last, 12 + (write(path, *range(30, 33)) - 12), 3)
        age(path, "state.dat")
        for number in range(4):
            write(path, *range(50 + 3 * number, 53 + 3 * number), name=f"{number}.seg")
        return path

    return begin


@pytest.mark.parametrize(("known", "last"), [(0, 1), (1, 1), (2, 1), (0, 3), (2, 3), (4, 3)])
def test_segments_that_beats_has_begun_again_with_are_not_passed(again, known, last):
    path = again(known, last)
    if not known:
        dry = ondisk.adopt(path, FIELDS, dry_run=True)
        (found,) = (each for each in dry.findings if each.segment == "state.dat")
        assert "another file than the one that was acknowledged" in found.reasons[0]
        report = ondisk.adopt(path, FIELDS)
    with ondisk.open(path) as dataset:
        if known:
            for refused in (lambda: Consumer(dataset), lambda: acknowledge(dataset, count=1, dry_run=True)):
                with pytest.raises(StateError, match=r"but 0\.seg is another file than the one that was acknowledged"):
                    refused()
            found = [each for each in dataset.check().findings if each.segment == "state.dat"]
            assert [each.state for each in found] == [Is.UNALIGNED]
            report = dataset.fix()
        assert report.lost == 0
        (moved,) = (each for each in report if each.segment == "state.dat")
        assert "the consumer begins again with 0.seg" in moved.reasons
        assert state_file_of(path) == State()
        assert dataset.check().is_clean
        assert by_beats(path) == [*range(50, 62)]
        delivered = []
        for batch in Consumer(dataset):
            delivered += [each.metadata["number"] for each in batch]
            batch.ack()
        assert delivered == [*range(50, 62)]


def test_only_what_beats_has_written_since_is_read_again(again):
    path = again(0)
    age(path, *["0.seg", "1.seg"] * 2)
    ondisk.adopt(path, FIELDS)
    with ondisk.open(path) as dataset:
        assert state_file_of(path) == State(2), "0.seg and 1.seg are older than state.dat"
        assert consumed(dataset) == [*range(56, 62)]


@pytest.mark.parametrize("preserving", [True, False])
def test_segments_that_a_killed_beat_has_left_before_its_position_alarm_nobody(again, tmp_path, preserving):
    path = again(0)
    age(path, *[f"{number}.seg" for number in range(4)] * 2)
    ondisk.adopt(path, FIELDS)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, copy_function=shutil.copy2 if preserving else shutil.copy)
    if not preserving:
        age(copy, "state.dat")
    with ondisk.open(copy) as dataset:
        assert dataset.check().is_clean
        assert dataset.fix().lost == 0
        assert dataset.check().is_clean
        assert state_file_of(copy).segment == 3


def test_repacked_segments_before_the_position_are_not_new(again):
    path = again(0)
    age(path, *[f"{number}.seg" for number in range(4)] * 2)
    ondisk.adopt(path, FIELDS)
    with ondisk.open(path) as dataset:
        dataset.delete("number:50")
        dataset.repack()
        assert (path / "0.seg").stat().st_mtime_ns > (path / "state.dat").stat().st_mtime_ns
        assert dataset.check().is_clean
        assert acknowledge(dataset, count=1).removed == ["0.seg", "1.seg", "2.seg"]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("add", "count"), [(1, 2), (-1, 2), (0, 1), (0, 3), (0, 2**64 - 1)])
def test_a_position_that_is_no_boundary_or_counts_other_events_is_mended(two, add, count, version):
    size = ((two / "1.seg").stat().st_size - 12) // 5
    position(two, 1, 12 * version + 2 * size + add, count * version, version=version)
    with ondisk.open(two) as dataset:
        if not version and not add:
            assert dataset.check().is_clean, "version 0 has no count"
            return
        (found,) = dataset.check().findings
        assert (found.segment, found.state) == ("state.dat", Is.UNALIGNED)
        before = consumed(dataset)
        assert before[-3:] == [37, 38, 39]
        (done,) = dataset.fix()
        assert (done.segment, done.lost) == ("state.dat", 0)
        assert state_file_of(two) == State(1, version=version)
        assert by_beats(two) == consumed(dataset) == [*range(35, 40)]
        assert dataset.check().is_clean


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_position_that_ondisk_writes_is_right(two, is_deleted):
    with ondisk.open(two) as dataset:
        if is_deleted:
            dataset.delete("number:36")
        for left in range(10 - is_deleted, -1, -1):
            assert len(consumed(dataset)) == left == dataset.info()["pending"]["count"]
            assert "state.dat" not in [each.segment for each in dataset.check().findings]
            acknowledge(dataset, count=1)


@pytest.mark.parametrize("content", [bytes([2, *[0] * 27]), bytes(range(28)), None])
def test_a_position_that_nobody_can_read_is_refused_before_anything_is_delivered(two, content):
    state = two / "state.dat"
    if state.exists():
        state.unlink()
    state.mkdir() if content is None else state.write_bytes(content)
    with ondisk.open(two) as dataset:
        for refused in (lambda: Consumer(dataset), lambda: acknowledge(dataset, count=1, dry_run=True)):
            with pytest.raises(StateError) as caught:
                refused()
            assert "move state.dat to another folder" in caught.value.hint
        for report in (dataset.check(), dataset.fix()):
            (found,) = [each for each in report if each.segment == "state.dat"]
            assert (found.state, found.action) == (Is.UNALIGNED, None)
        state.rename(two.parent / "elsewhere")
        assert consumed(dataset) == [*range(30, 40)]
        assert dataset.check().is_clean


WAYS = [
    {"compression": "lz4"},
    {"compression": "none"},
    {"version": 1},
    {"version": 0},
    {"encryption": "aes-128-ctr"},
    {"encryption": "aes-256-gcm"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_info_counts_what_a_consumer_would_deliver_and_names_its_first_reftime(create, way):
    keys.use(KeyRing([Key(1, b"keykeykeykeykeyk"), Key(2, bytes(32))], "a test"))
    try:
        dataset = create("spool", **FIELDS, format="seg", step="sequence", segment_size=600, **way)
        dataset.append(Datum(T - timedelta(minutes=n), {"number": n}, {"n": n}) for n in range(20))
        dataset.delete("number: 7")
        for _ in range(8):
            waiting = [each for batch in Consumer(dataset) for each in batch]
            assert dataset.info()["pending"] == {
                "count": len(waiting),
                "size": sum(each.location.size for each in waiting),
                "oldest": min((each.reftime for each in waiting), default=None),
            }
            acknowledge(dataset, count=3)
        assert not waiting
    finally:
        keys.use(None)


def test_info_counts_from_the_beginning_what_a_position_that_cannot_be_right_would_skip(two):
    for at in ((7, 100, 1), (1, 5000, 3), (1, 13, 1), (0, 0, 0)):
        position(two, *at)
        with ondisk.open(two, read_only=True) as dataset:
            before = dataset.info()["pending"]["count"]
        with ondisk.open(two) as dataset:
            dataset.fix()
            assert before == len(consumed(dataset)), at
