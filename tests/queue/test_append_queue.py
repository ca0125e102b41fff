"""A queue of Beats is imported piece by piece, while Beats writes to it, sends from it and starts again."""

from __future__ import annotations

import os
import random
import shutil
import struct

import beats
import pytest
from beats import LZ4, Beats, event
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st

import ondisk
from ondisk.errors import InvalidInput, NotFound, StateError
from ondisk.queue.append_queue import _Source

CONFIG = {"format": "seg", "step": "monthly", "fields": {"number": "integer"}}
KINDS = pytest.mark.parametrize(("version", "options"), [(1, 0), (2, 0), (2, LZ4)])


@pytest.fixture
def dataset(create):
    return create(**CONFIG)


@pytest.fixture
def queue(tmp_path):
    return Beats(tmp_path / "queue")


def numbers(dataset):
    return [each.metadata["number"] for each in dataset.query(with_data=False)]


def run(dataset, path, **options):
    """Import, and return what was read of each segment, its damage, and all remarks."""
    counts, damage, notes = {}, {}, []
    for name, result in dataset.append_queue(path, **options):
        place = name.rpartition("/")[2]
        if result.count:
            counts[place] = result.imported
        if result.damage:
            damage[place] = [each.reason for each in result.damage]
        notes += [note if place == path.name else f"{place}: {note}" for note in result.notes]
    return counts, damage, notes


def publish(queue, *which):
    queue.publish(*map(event, which))


@KINDS
def test_each_event_is_imported_once_while_beats_writes(dataset, tmp_path, version, options):
    queue = Beats(tmp_path / "queue", 1000, version, options)
    for begin in range(0, 100, 10):
        publish(queue, *range(begin, begin + 10))
        assert run(dataset, queue.path)[1:] == ({}, [])
        assert numbers(dataset) == [*range(begin + 10)]
        assert run(dataset, queue.path) == ({}, {}, [])
    queue.finish()
    assert run(dataset, queue.path) == ({}, {}, [])
    assert len(beats.segments(queue.path)) > 3


def test_an_incomplete_last_frame_is_read_when_it_is_complete(dataset, queue):
    publish(queue, 0, 1)
    whole = queue.last.read_bytes()
    for size in range(len(beats.frame(event(2)))):
        queue.last.write_bytes(whole + beats.frame(event(2))[:size])
        assert run(dataset, queue.path)[1:] == ({}, [])
    queue.last.write_bytes(whole + beats.frame(event(2)))
    assert run(dataset, queue.path) == ({"0.seg": 1}, {}, [])
    assert numbers(dataset) == [0, 1, 2]


@pytest.mark.parametrize("size", range(13))
def test_a_last_segment_of_which_only_the_header_is_written_is_no_error(dataset, queue, size):
    publish(queue, 0)
    (queue.path / "1.seg").write_bytes(struct.pack("<III", 2, 0, 0)[:size])
    assert run(dataset, queue.path) == ({"0.seg": 1}, {}, [])


def test_an_incomplete_frame_before_the_last_segment_is_damage_and_reported_once(dataset, queue):
    publish(queue, 0, 1)
    queue.crash(beats.frame(event(2))[:20])
    assert run(dataset, queue.path)[1] == {}
    again = Beats(queue.path)
    publish(again, 3)
    counts, damage, _ = run(dataset, queue.path)
    assert (counts, [*damage]) == ({"1.seg": 1}, ["0.seg"])
    assert "it ends after 20 of a frame" in damage["0.seg"][0]
    assert run(dataset, queue.path) == ({}, {}, [])
    assert numbers(dataset) == [0, 1, 3]


def test_damage_is_reported_and_what_follows_it_is_imported(dataset, queue):
    publish(queue, *range(30))
    queue.finish()
    path = queue.path / "1.seg"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    counts, damage, notes = run(dataset, queue.path)
    assert (sum(counts.values()), [*damage]) == (29, ["1.seg"])
    assert [note for note in notes if "header counts" in note]
    assert run(dataset, queue.path) == ({}, {}, [])


@KINDS
def test_the_first_import_begins_where_beats_will(create, tmp_path, version, options):
    queue = Beats(tmp_path / "queue", 1000, version, options)
    publish(queue, *range(40))
    queue.finish()
    shutil.copytree(queue.path, tmp_path / "copy")
    for count in (3, 14, 1, 21):
        queue.acknowledge(count)
        (tmp_path / "copy" / "state.dat").write_bytes((queue.path / "state.dat").read_bytes())
        left = [each[2]["number"] for each in map(event, range(40))][40 - len(queue._unsent) :]
        dataset = create(f"after {len(left)}", **CONFIG)
        run(dataset, queue.path)
        assert numbers(dataset) == left
        with_old = create(f"with old ones {len(left)}", **CONFIG)
        notes = run(with_old, tmp_path / "copy")[2]
        assert numbers(with_old) == left
        assert any("were acknowledged and are not imported" in note for note in notes) == (len(left) < 35)
        assert run(with_old, tmp_path / "copy") == ({}, {}, [])
        everything = create(f"all, {len(left)} not sent", **CONFIG)
        run(everything, tmp_path / "copy", from_start=True)
        assert numbers(everything) == [*range(40)]


def test_a_position_of_version_0_counts_no_header(dataset, queue):
    publish(queue, *range(5))
    offset = sum(len(beats.frame(event(number))) for number in range(3))
    (queue.path / "state.dat").write_bytes(struct.pack("<IQQ", 0, 0, offset))
    assert run(dataset, queue.path) == ({"0.seg": 2}, {}, [])
    assert numbers(dataset) == [3, 4]


@pytest.mark.each
@pytest.mark.parametrize(
    ("state", "remark"),
    [
        (struct.pack("<IQQQ", 1, 0, 13, 1), "byte 13 of 0.seg, is not the beginning of event 1"),
        (struct.pack("<IQQQ", 1, 0, 10**9, 1), "byte 1000000000 of 0.seg"),
        (struct.pack("<IQQQ", 1, 0, 2**64 - 1, 2**64 - 1), "is not the beginning"),
        (struct.pack("<IQQQ", 1, 0, 12 + len(beats.frame(event(0))), 2), "of event 2"),
        (struct.pack("<IQQQ", 1, 0, 12 + len(beats.frame(event(0))) + 5, 1), "is not the beginning of event 1"),
        (struct.pack("<IQQ", 0, 0, 5), "byte 17 of 0.seg"),
        (struct.pack("<IQQQ", 1, 0, 99, 0), None),  # the first event, whatever the byte index is
        (struct.pack("<IQQQ", 7, 0, 0, 0), "it is of version 7"),
        (b"\1\0", "it has 2 bytes"),
        (b"", None),
    ],
)
def test_a_position_that_cannot_be_right_skips_nothing(dataset, queue, state, remark):
    publish(queue, 0, 1, 2)
    (queue.path / "state.dat").write_bytes(state)
    notes = run(dataset, queue.path)[2]
    assert numbers(dataset) == [0, 1, 2]
    assert len(notes) == (remark is not None)
    assert remark is None or remark in notes[0]


def test_what_beats_has_sent_since_the_last_import_is_still_imported(dataset, queue):
    publish(queue, *range(20))
    run(dataset, queue.path)
    publish(queue, *range(20, 25))
    queue.acknowledge(22)
    publish(queue, 25)
    assert run(dataset, queue.path)[1:] == ({}, [])
    assert numbers(dataset) == [*range(26)]


def test_segments_that_beats_removed_before_they_were_imported_are_named(dataset, queue):
    publish(queue, *range(5))
    run(dataset, queue.path)
    publish(queue, *range(5, 60))
    queue.acknowledge(50)
    assert beats.segments(queue.path)[0] == 3
    assert run(dataset, queue.path)[2] == [
        "0.seg was removed; what Beats wrote to it after the last import was not imported",
        "segments 1 to 2 were removed before the import",
    ]
    assert run(dataset, queue.path) == ({}, {}, [])


def test_segments_that_beats_removes_while_an_import_runs_are_named(dataset, queue, monkeypatch):
    publish(queue, *range(5))
    run(dataset, queue.path)
    publish(queue, *range(5, 60))
    append = _Source.append_segment

    def append_later(*arguments, **options):
        if queue._unsent:
            queue.acknowledge(60)
        return append(*arguments, **options)

    monkeypatch.setattr(_Source, "append_segment", append_later)
    counts, _, notes = run(dataset, queue.path)
    assert [*counts] == ["4.seg"]
    assert notes == [
        "0.seg: it was removed while the import ran; what Beats wrote to it after the last import was not imported",
        *(f"{number}.seg: it was removed while the import ran, and was not imported" for number in (1, 2, 3)),
    ]
    assert run(dataset, queue.path) == ({}, {}, [])


@pytest.mark.parametrize(("sent", "removed"), [(15, "0.seg was"), (30, "segments 0 to 1 were")])
def test_segments_that_beats_removed_after_it_has_begun_again_are_named(dataset, queue, sent, removed):
    publish(queue, *range(60))
    run(dataset, queue.path)
    queue.acknowledge(60)
    queue.stop()
    again = Beats(queue.path)
    publish(again, *range(60, 100))
    again.acknowledge(sent)
    notes = run(dataset, queue.path)[2]
    assert f"Beats has begun again; {removed} removed before the import" in notes
    assert run(dataset, queue.path) == ({}, {}, [])


def test_numbers_that_begin_again_are_other_segments(dataset, queue):
    """Beats has sent everything and removed its files; after a restart it begins with 0.seg again."""
    publish(queue, *range(14))
    queue.finish()
    assert run(dataset, queue.path)[0] == {"0.seg": 13, "1.seg": 1}
    shutil.rmtree(queue.path)
    again = Beats(queue.path)
    publish(again, *range(14, 40))
    counts, damage, notes = run(dataset, queue.path)
    assert (sum(counts.values()), damage) == (26, {})
    assert notes[1:3] == [f"{each}.seg: it was replaced after an import had read it, and is imported from its beginning"
                         for each in (0, 1)]  # fmt: skip
    assert numbers(dataset) == [*range(40)]
    assert run(dataset, queue.path) == ({}, {}, [])


def test_a_removed_segment_is_named_once(dataset, queue):
    for begin in range(0, 40, 20):
        publish(queue, *range(begin, begin + 20))
        run(dataset, queue.path)
    shutil.rmtree(queue.path)
    for number in range(3):
        publish(Beats(queue.path), 40 + number)
        notes = run(dataset, queue.path)[2]
        named = [note for note in notes if note.startswith("3.seg was removed; what Beats wrote to it")]
        assert len(named) == (number == 0)
    assert numbers(dataset) == [*range(43)]


@KINDS
def test_a_segment_that_is_written_again_with_the_same_first_event_is_imported_again(
    dataset, tmp_path, version, options
):
    queue = Beats(tmp_path / "queue", 10_000, version, options)
    publish(queue, 0, 1, 2, 3)
    run(dataset, queue.path)
    shutil.rmtree(queue.path)
    publish(Beats(tmp_path / "queue", 10_000, version, options), 0, 11, 12, 13, 14)
    assert run(dataset, queue.path)[0] == {"0.seg": 5}
    assert sorted(numbers(dataset)) == [0, 0, 1, 2, 3, 11, 12, 13, 14]


@KINDS
def test_a_segment_that_was_cut_goes_on_where_it_was_cut(dataset, tmp_path, version, options):
    queue = Beats(tmp_path / "queue", 10_000, version, options)
    for number in range(5):
        publish(queue, number)
    run(dataset, queue.path)
    place = queue.path / "0.seg"
    content = place.read_bytes()
    place.write_bytes(content[: len(content) * 3 // 5])
    (note,) = run(dataset, queue.path)[2]
    assert "after an import had read it up to byte" in note
    assert run(dataset, queue.path) == ({}, {}, [])
    place.write_bytes(content)
    run(dataset, queue.path)
    assert sorted(set(numbers(dataset))) == [0, 1, 2, 3, 4]


def test_a_segment_that_was_emptied_is_read_when_it_is_written_again(dataset, queue):
    publish(queue, 0, 1)
    run(dataset, queue.path)
    place = queue.path / "0.seg"
    for content in (b"", b"\2\0\0\0", struct.pack("<III", 2, 0, 0)):
        place.write_bytes(content)
        run(dataset, queue.path)
    place.write_bytes(struct.pack("<III", 2, 1, 0) + beats.frame(event(7)))
    run(dataset, queue.path)
    assert numbers(dataset) == [0, 1, 7]


def test_damage_in_what_was_imported_stores_nothing_twice(dataset, queue):
    publish(queue, 0, 1, 2, 3)
    run(dataset, queue.path)
    place = queue.path / "0.seg"
    content = bytearray(place.read_bytes())
    content[-20] ^= 1
    place.write_bytes(content + beats.frame(event(4)))
    counts, damage, notes = run(dataset, queue.path)
    assert (counts, damage, len(notes)) == ({"0.seg": 1}, {}, 1)
    assert "it was damaged before byte" in notes[0]
    assert numbers(dataset) == [0, 1, 2, 3, 4]


def test_a_queue_may_be_in_several_datasets_and_a_dataset_may_have_several_queues(create, tmp_path):
    one, other = create("one", **CONFIG), create("other", **CONFIG)
    queues = [Beats(tmp_path / name) for name in ("a", "b")]
    for begin in (0, 20):
        for at, queue in enumerate(queues):
            publish(queue, *range(begin + at, begin + 20, 2))
            run(one, queue.path)
        run(other, queues[0].path)
        assert sorted(numbers(one)) == [*range(begin + 20)]
        assert numbers(other) == [*range(0, begin + 20, 2)]


def test_a_link_to_a_queue_is_the_same_queue(dataset, queue, tmp_path):
    publish(queue, 0)
    run(dataset, queue.path)
    (tmp_path / "link").symlink_to(queue.path)
    assert run(dataset, tmp_path / "link") == ({}, {}, [])


def test_duplicates_are_not_read_again(create, queue):
    dataset = create(**CONFIG, unique=["number"])
    publish(queue, 0, 0, 0)
    ((_, result),) = dataset.append_queue(queue.path)
    assert (result.imported, result.duplicates) == (1, 2)
    publish(queue, 0, 0)
    ((_, result),) = dataset.append_queue(queue.path)
    assert (result.imported, result.duplicates) == (0, 2)
    assert [*dataset.append_queue(queue.path)] == []


def test_a_small_batch_continues_in_the_middle_of_a_segment(dataset, queue):
    publish(queue, *range(30))
    names = [name for name, _ in dataset.append_queue(queue.path, batch_size=1)]
    assert len(names) == len(beats.segments(queue.path))
    assert numbers(dataset) == [*range(30)]


def test_two_imports_at_once_store_nothing_twice(dataset, queue):
    publish(queue, *range(30))
    first = dataset.append_queue(queue.path)
    next(first)
    with ondisk.open(dataset.path) as other:
        run(other, queue.path)
    with pytest.raises(StateError, match="at the same time"):
        list(first)
    assert numbers(dataset) == [*range(30)]
    assert run(dataset, queue.path) == ({}, {}, [])


def test_the_log_forgets_segments_that_are_gone(dataset, queue):
    for begin in range(0, 300, 30):
        publish(queue, *range(begin, begin + 30))
        run(dataset, queue.path)
        queue.acknowledge(25)
    run(dataset, queue.path)
    kept = dataset.parts_of(f"queue {queue.path.resolve()}")
    assert {int(part.partition(" ")[0]) for part in kept} == {*beats.segments(queue.path)}


def test_other_names_are_ignored_and_names_that_beats_cannot_open_are_named(dataset, queue):
    publish(queue, 0)
    for name in ("007.seg", "1.SEG", "x.seg", "1.seg.tmp", "99999999999999999999.seg", "-1.seg"):
        shutil.copy(queue.path / "0.seg", queue.path / name)
    notes = run(dataset, queue.path)[2]
    assert sorted(note.partition(" ")[0] for note in notes) == ["007.seg", "1.SEG", "99999999999999999999.seg"]
    assert numbers(dataset) == [0]


def test_a_segment_of_an_unknown_version_blocks_those_after_it(dataset, queue):
    publish(queue, *range(30))
    place = queue.path / "1.seg"
    content = place.read_bytes()
    place.write_bytes(struct.pack("<III", 9, 0, 0) + content[12:])
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"queue/1.seg: unknown version 9") as caught:
            run(dataset, queue.path)
        assert "move it out of the queue" in caught.value.hint
    place.write_bytes(content)
    run(dataset, queue.path)
    assert numbers(dataset) == [*range(30)]


def test_what_is_no_queue_is_refused(dataset, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotFound):
        list(dataset.append_queue(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match="is not the directory of a queue"):
        list(dataset.append_queue(tmp_path / "file"))
    with pytest.raises(InvalidInput, match="is a dataset"):
        list(dataset.append_queue(dataset.path))
    (tmp_path / "above" / "diskqueue").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="above contains no queue"):
        list(dataset.append_queue(tmp_path / "above"))


def test_an_empty_queue_is_nothing_to_do(dataset, queue):
    assert [each.name for each in queue.path.iterdir()] == ["state.dat"]
    assert [*dataset.append_queue(queue.path)] == []


def test_the_first_import_of_an_empty_queue_is_remembered(dataset, queue):
    run(dataset, queue.path)
    publish(queue, *range(20))
    queue.acknowledge(16)
    assert run(dataset, queue.path) == ({"1.seg": 7}, {}, ["0.seg was removed before the import"])
    assert numbers(dataset) == [*range(13, 20)]
    assert run(dataset, queue.path) == ({}, {}, [])


@pytest.mark.parametrize("options", [{}, {"from_start": True}])
def test_segments_removed_since_the_first_import_of_an_empty_queue_are_named(dataset, queue, options):
    run(dataset, queue.path, **options)
    publish(queue, *range(30))
    queue.acknowledge(30)
    queue.stop()
    assert run(dataset, queue.path, **options)[2] == ["segments 0 to 2 were removed before the import"]
    assert run(dataset, queue.path, **options) == ({}, {}, [])


def test_a_first_import_that_finds_no_event_is_remembered(dataset, queue):
    (queue.path / "0.seg").write_bytes(struct.pack("<III", 2, 0, 0))
    run(dataset, queue.path)
    (queue.path / "0.seg").unlink()
    publish(queue, *range(5))
    queue.acknowledge(3)
    assert run(dataset, queue.path) == ({"0.seg": 5}, {}, [])


@pytest.mark.parametrize("begins", [0, 2])
def test_an_import_is_remembered_when_all_known_segments_are_gone_and_the_new_one_has_no_event(dataset, queue, begins):
    publish(queue, *range(14))
    run(dataset, queue.path)
    for path in queue.path.glob("*.seg"):
        path.unlink()
    place = queue.path / f"{begins}.seg"
    place.write_bytes(struct.pack("<III", 2, 0, 0))
    run(dataset, queue.path)
    place.write_bytes(struct.pack("<III", 2, 1, 0) + beats.frame(event(14)))
    (queue.path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, begins, place.stat().st_size, 1))
    assert run(dataset, queue.path)[0] == {place.name: 1}


@pytest.mark.parametrize("sent", [0, 3, 5])
def test_a_queue_that_was_drained_before_the_first_import_begins_again(dataset, queue, sent):
    publish(queue, *range(4))
    queue.acknowledge(4)
    queue.stop()
    state = (queue.path / "state.dat").read_bytes()
    run(dataset, queue.path)
    again = Beats(queue.path)
    publish(again, *range(4, 9))
    (queue.path / "state.dat").write_bytes(state)
    if sent:
        again.acknowledge(sent)
    assert run(dataset, queue.path) == ({"0.seg": 5}, {}, [])
    assert numbers(dataset) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("again", [False, True])
def test_all_removed_segments_are_named_when_beats_has_sent_everything(dataset, queue, again):
    publish(queue, *range(5))
    run(dataset, queue.path)
    publish(queue, *range(5, 40))
    queue.acknowledge(40)
    queue.stop()
    state = (queue.path / "state.dat").read_bytes()
    if again:
        publish(Beats(queue.path), 40)
        (queue.path / "state.dat").write_bytes(state)
    notes = run(dataset, queue.path)[2]
    assert notes[:2] == [
        "0.seg was removed; what Beats wrote to it after the last import was not imported",
        "segments 1 to 3 were removed before the import",
    ]
    assert len(notes) == 2 + again
    assert run(dataset, queue.path) == ({}, {}, [])


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("again", [False, True])
def test_a_removed_segment_of_which_everything_was_imported_is_not_named(dataset, tmp_path, version, again):
    queue = Beats(tmp_path / "queue", version=version)
    publish(queue, *range(5))
    run(dataset, queue.path)
    queue.acknowledge(5)
    queue.stop()
    assert run(dataset, queue.path) == ({}, {}, [])
    if again:
        publish(Beats(queue.path), 5, 6)
        counts, _, (note,) = run(dataset, queue.path)
        assert (counts, "0.seg: it was replaced" in note) == ({"0.seg": 2}, True)


def test_a_segment_that_beats_has_finished_is_not_named_when_it_was_removed(dataset, queue):
    publish(queue, *range(5))
    queue.stop()
    run(dataset, queue.path)
    again = Beats(queue.path)
    publish(again, *range(5, 9))
    again.acknowledge(7)
    assert run(dataset, queue.path) == ({"1.seg": 4}, {}, [])


def test_a_whole_queue_that_was_written_and_sent_between_two_imports_is_named(dataset, queue):
    publish(queue, *range(60))
    run(dataset, queue.path)
    queue.acknowledge(60)
    queue.stop()
    run(dataset, queue.path)
    again = Beats(queue.path)
    publish(again, *range(60, 80))
    again.acknowledge(20)
    again.stop()
    assert run(dataset, queue.path)[2] == [
        "Beats has begun again; segments 0 to 1 were removed before the import",
    ]
    assert run(dataset, queue.path) == ({}, {}, [])
    publish(Beats(queue.path), 80)
    assert run(dataset, queue.path) == ({"0.seg": 1}, {}, [])


def test_when_beats_has_begun_again_and_sent_events_segments_that_nothing_proves_may_have_been_removed(dataset, queue):
    publish(queue, *range(5))
    queue.finish()
    run(dataset, queue.path)
    publish(queue, *range(5, 40))
    queue.acknowledge(40)
    queue.stop()
    again = Beats(queue.path)
    publish(again, 40, 41)
    again.acknowledge(1)
    notes = run(dataset, queue.path)[2]
    assert notes[0] == "Beats has begun again; what it wrote after 0.seg until then, if anything, was not imported"
    assert numbers(dataset) == [*range(5), 40, 41]
    assert run(dataset, queue.path) == ({}, {}, [])


def test_what_may_have_been_removed_since_a_queue_was_empty_is_named(dataset, queue):
    """Numbers that go on are those of a Beat that still runs, or of one that has begun again long ago."""
    publish(queue, *range(5))
    run(dataset, queue.path)
    queue.acknowledge(5)
    queue.stop()
    run(dataset, queue.path)
    again = Beats(queue.path)
    publish(again, *range(5, 25))
    again.acknowledge(15)
    note = "if Beats has begun again since the last import, 0.seg was removed before this one"
    assert run(dataset, queue.path)[2] == [note]
    assert run(dataset, queue.path) == ({}, {}, [])


def test_what_was_removed_is_named_again_until_the_caller_has_got_it(dataset, queue):
    publish(queue, *range(5))
    run(dataset, queue.path)
    publish(queue, *range(5, 60))
    queue.acknowledge(50)
    expected = run_killed(dataset, queue.path)
    assert [note.partition(" ")[0] for note in expected] == ["0.seg", "segments"]
    assert run(dataset, queue.path)[2] == expected
    assert run(dataset, queue.path)[2] == []


def test_what_the_first_import_passes_is_named_again_until_the_caller_has_got_it(dataset, queue):
    publish(queue, *range(30))
    (queue.path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, 2, 0, 0))
    expected = run_killed(dataset, queue.path)
    assert [note.partition(" ")[0] for note in expected] == ["2"]
    assert run(dataset, queue.path)[2] == expected


def run_killed(dataset, path):
    """Import until the remarks about the whole queue come; return them."""
    _, result = next(dataset.append_queue(path))
    return result.notes


def test_a_queue_of_which_nothing_is_there_any_more_is_an_error(dataset, queue):
    """Perhaps its disk is not mounted; Beats leaves at least state.dat."""
    publish(queue, *range(5))
    run(dataset, queue.path)
    for path in queue.path.iterdir():
        path.unlink()
    with pytest.raises(InvalidInput, match="contains no queue"):
        run(dataset, queue.path)


@pytest.mark.check
@settings(max_examples=up_to(30))
@given(st.integers(0, 2**32))
def test_whatever_beats_does_each_event_that_it_did_not_send_before_is_imported_once(tmp_path_factory, seed):
    """Beats publishes, sends, crashes, ends and starts again, between imports of any batch size.

    After the first import, what is on disk is imported, whatever Beats has sent.
    """
    chance, room = random.Random(seed), tmp_path_factory.mktemp("room")
    queue, published, sent, found, passed = Beats(room / "queue", 600), 0, set(), [], None
    with ondisk.create(room / "dataset", CONFIG) as dataset:
        for step in range(26):
            match chance.randrange(7) if step < 25 else 6:
                case 0 | 1:
                    count = chance.randrange(1, 12)
                    publish(queue, *range(published, published + count))
                    published += count
                case 2 | 3 if queue._unsent:
                    unsent = [each.event[2]["number"] for each in beats.restarted(queue.path)]
                    count = chance.choice([len(unsent), chance.randrange(1, len(unsent) + 1)])
                    queue.acknowledge(count)
                    sent |= {*unsent[:count]} - {*found}
                case 4:
                    queue.stop()
                    queue = Beats(room / "queue", 600)
                case 5:
                    queue.crash()
                    queue = Beats(room / "queue", 600)
                case 6:
                    run(dataset, queue.path, batch_size=chance.randrange(1, 9))
                    found = numbers(dataset)
                    there = {each.event[2]["number"] for each in beats.stored(queue.path)}
                    passed = there - {*found} if passed is None else passed
                    assert there - {*found} <= passed
    assert found == sorted(set(found))
    assert {*range(published)} - {*found} <= sent


@pytest.mark.parametrize("segment", [5, 2**64 - 1])
def test_a_position_after_all_segments_skips_nothing(dataset, queue, segment):
    publish(queue, *range(20))
    (queue.path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, segment, 300, 2))
    (note,) = run(dataset, queue.path)[2]
    assert f"continues in {segment}.seg, but 1.seg is the last segment" in note
    assert numbers(dataset) == [*range(20)]


def test_a_position_that_is_older_than_the_segments_before_it_is_not_believed(dataset, queue):
    """It is of the queue before Beats had sent everything and began again with 0.seg."""
    (queue.path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, 5, 0, 0))
    os.utime(queue.path / "state.dat", (10**9, 10**9))
    publish(queue, *range(20))
    (note,) = run(dataset, queue.path)[2]
    assert "state.dat is older than 0.seg" in note
    assert numbers(dataset) == [*range(20)]
