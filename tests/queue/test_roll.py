"""Datasets with the step `sequence`: numbered segments, rolled by size; a consumer removes them."""

from __future__ import annotations

import shutil
import struct
from datetime import UTC, datetime, timedelta

import pytest
from formats.diskqueue import beats_reader
from formats.diskqueue.beats_queue import Beat
from formats.diskqueue.segments import Event
from worlds import delete_by_age, lose_index

import ondisk
from ondisk import Datum
from ondisk.datum import EPOCH, MICROSECOND
from ondisk.errors import ConfigError, InvalidInput, StateError
from ondisk.formats import find
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.maintenance.states import State as Is
from ondisk.segments.generations import left_behind
from ondisk.staging.stage import Stage

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEQUENCE = {"format": "seg", "step": "sequence", "fields": {"n": "integer"}, "compression": "none"}
HEADER = 12


def data(*numbers, size=10):
    """Return data whose times are in no order."""
    return [Datum(T + timedelta(minutes=37 * n % 1000), {"n": n}, {"text": "x" * size}) for n in numbers]


def events(*numbers):
    return [Event((each.reftime - EPOCH) // MICROSECOND * 1000, 0, {"n": n}, each.data)
            for n, each in zip(numbers, data(*numbers), strict=True)]  # fmt: skip


def names(dataset):
    """Return the names of the segments on disk, in their order."""
    return [f"{number}.seg" for number in sorted(int(file.stem) for file in dataset.path.glob("*.seg"))]


def numbers(dataset, match=None):
    return [datum.metadata["n"] for datum in dataset.query(match)]


def stored(dataset):
    return sorted(numbers(dataset))


def assert_sound(dataset):
    report = dataset.check(accurate=True)
    assert report.is_clean, report.findings
    assert left_behind(dataset._access.directory) == {}


@pytest.fixture
def queue(create):
    return lambda name="queue", **values: create(name, **SEQUENCE | values)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_segments_are_rolled_by_size_and_a_datum_is_in_one_of_them(queue, compression):
    dataset = queue(segment_size=1000, compression=compression)
    for begin in range(0, 60, 20):
        dataset.append(data(*range(begin, begin + 20)))
    assert names(dataset) == [f"{number}.seg" for number in range(len(names(dataset)))]
    assert len(names(dataset)) > 3
    locations = [(int(each.location.segment.partition(".")[0]), each.location.offset) for each in dataset.query()]
    by_number = sorted(zip(locations, numbers(dataset), strict=True))
    assert [n for _, n in by_number] == [*range(60)], "the order in the queue is that of the appends"
    ends = {}
    for each in dataset.query():
        assert each.location.offset + each.location.size <= 1000
        ends[each.location.segment] = max(ends.get(each.location.segment, 0), each.location.offset + each.location.size)
    size = next(dataset.query()).location.size
    assert all(ends[name] + size > 1000 for name in names(dataset)[:-1]), "each but the last is full"
    for name in names(dataset):
        beats_reader.read((dataset.path / name).read_bytes())
    assert_sound(dataset)


def test_a_datum_that_is_larger_than_a_segment_has_one_of_its_own(queue):
    dataset = queue(segment_size=500)
    dataset.append([*data(1), *data(2, size=900), *data(3)])
    assert [each.location.segment for each in sorted(dataset.query(), key=lambda each: each.metadata["n"])] == [
        "0.seg",
        "1.seg",
        "2.seg",
    ]
    dataset.append(data(4, size=900))
    assert names(dataset) == ["0.seg", "1.seg", "2.seg", "3.seg"]
    assert_sound(dataset)


def test_the_interval_of_a_segment_is_that_of_its_data(queue):
    dataset = queue(segment_size=1000)
    for n in range(30):
        dataset.append(data(n))
    for hour in range(24):
        found = numbers(dataset, f"reftime:>={T + timedelta(hours=hour):%Y-%m-%d %H:%M}")
        assert sorted(found) == [n for n in range(30) if 37 * n % 1000 >= 60 * hour]
    with dataset._access.current().index.snapshot() as snapshot:
        spans = snapshot.fetch('SELECT name, "begin", "end" FROM segment ORDER BY id')
        held = snapshot.fetch(
            "SELECT segment.name, min(reftime), max(reftime) + 1 FROM datum"
            " JOIN segment ON segment.id = datum.segment GROUP BY 1 ORDER BY segment.id"
        )
    assert spans == held
    assert len(held) > 1


def test_duplicates_leave_no_gaps_between_segments(queue):
    dataset = queue(segment_size=1000, unique=["n"])
    dataset.append(data(*range(0, 60, 3)))
    before = len(names(dataset))
    result = dataset.append(data(*range(60)))
    assert (result.imported, result.duplicates) == (40, 20)
    assert names(dataset) == [f"{number}.seg" for number in range(len(names(dataset)))]
    sizes = [(dataset.path / name).stat().st_size for name in names(dataset)]
    assert all(size > 800 for size in sizes[:-1])
    assert len(names(dataset)) > before
    assert stored(dataset) == [*range(60)]
    assert dataset.append(data(*range(60))).duplicates == 60
    assert_sound(dataset)


def test_a_replacement_is_stored_at_the_end(queue):
    dataset = queue(segment_size=1000, unique=["n"], replace="yes")
    dataset.append(data(*range(30)))
    assert dataset.append(data(3, size=20)).replaced == 1
    assert [len(each.data["text"]) for each in dataset.query("n: 3")] == [20]
    assert [each.state for each in dataset.check().findings] == [Is.DIRTY]
    dataset.repack()
    assert stored(dataset) == [*range(30)]
    assert_sound(dataset)


def test_a_repack_removes_holes_and_keeps_the_order_of_the_queue(queue):
    dataset = queue(segment_size=1000)
    dataset.append(data(*range(30)))
    before = len(names(dataset))
    dataset.delete("n: 2 or 5 or 9")
    dataset.repack()
    assert_sound(dataset)
    places = sorted((int(each.location.segment[:-4]), each.location.offset, each.metadata["n"])
                    for each in dataset.query())  # fmt: skip
    assert [n for *_, n in places] == [n for n in range(30) if n not in (2, 5, 9)]
    assert len(names(dataset)) == before
    dataset.append(data(30))
    assert_sound(dataset)


def test_a_lost_index_is_rebuilt_and_later_data_go_into_new_segments(queue):
    dataset = queue(segment_size=1000)
    dataset.append(data(*range(30)))
    before = names(dataset)
    path = dataset.path
    dataset.close()
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.append(data(30))
        assert names(dataset)[:-1] == before
        assert dataset.fix().lost == 0
        assert stored(dataset) == [*range(31)]
        assert_sound(dataset)
        dataset.append(data(31))
        assert_sound(dataset)
        assert stored(dataset) == [*range(32)]


@pytest.mark.parametrize("order", ["in order", "the later segment first"])
def test_with_a_lost_index_what_replaced_others_still_does(queue, order):
    dataset = queue(unique=["reftime", "n"], replace="yes", segment_size=400)
    dataset.append(data(*range(12)))
    newer = [Datum(each.reftime, each.metadata, {"text": "newer"}) for each in data(1, 3, 5)]
    assert dataset.append(newer).replaced == 3
    before = {(each.metadata["n"], each.data["text"]) for each in dataset.query()}
    first = dataset.path / "0.seg"
    lose_index(dataset.path)
    if order != "in order":  # somebody has put it elsewhere, and now back
        first.rename(dataset.path.parent / "0.seg")
        ondisk.open(dataset.path).fix()
        (dataset.path / "needs-check-do-not-pack").touch()
        (dataset.path.parent / "0.seg").rename(first)
    with ondisk.open(dataset.path) as rebuilt:
        assert rebuilt.fix().lost == 0
        assert {(each.metadata["n"], each.data["text"]) for each in rebuilt.query()} == before
        rebuilt.repack()
        assert {(each.metadata["n"], each.data["text"]) for each in rebuilt.query()} == before
        assert_sound(rebuilt)
        assert [*rebuilt.quarantine] == []


def test_data_are_read_back_in_the_order_of_the_queue(queue):
    dataset = queue(segment_size=250)
    same = [Datum(T, {"n": n}, {"text": "x" * 50}) for n in range(40)]
    dataset.append(same)
    assert len(names(dataset)) > 11
    path = dataset.path
    dataset.close()
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert numbers(dataset) == [*range(40)], "10.seg comes after 9.seg"


def test_a_new_segment_has_a_number_above_all_others(queue):
    dataset = queue(segment_size=1000)
    dataset.append(data(0))
    shutil.copy(dataset.path / "0.seg", dataset.path / "7.seg")
    (dataset.path / "0012.SEG").write_bytes(b"")
    dataset.append(data(1))
    assert (dataset.path / "13.seg").exists()
    for position, name in ((State(20, 12, 0), "20.seg"), (State(21, 80, 1), "22.seg")):
        other = queue(name)  # of which Beats has sent and removed all
        (other.path / NAME).write_bytes(position.pack())
        other.append(data(2))
        assert names(other) == [name], "the consumer would skip the beginning of the segment of its position"


def test_ondisk_never_appends_to_a_segment_of_beats_or_one_that_was_read(queue):
    dataset = queue(segment_size=100_000)
    with Beat(dataset.path) as beat:
        beat.publish(*events(*range(5)))
    before = (dataset.path / "0.seg").read_bytes()
    dataset.append(data(5))
    assert names(dataset) == ["0.seg", "1.seg"]
    dataset.fix()
    dataset.append(data(6))
    assert (dataset.path / "0.seg").read_bytes() == before
    assert names(dataset) == ["0.seg", "1.seg"], "1.seg is ondisk's own, and nobody has read it"
    with Beat(dataset.path) as beat:
        assert beat.ids == [0, 1]
        beat.acknowledge(7)
        beat.publish(*events(7))
        beat.acknowledge(1)
        beat.publish(*events(8))
    assert names(dataset) == ["2.seg"]
    dataset.fix()
    dataset.append(data(9))
    assert names(dataset) == ["2.seg", "3.seg"]
    assert stored(dataset) == [7, 8, 9]


def test_what_beats_does_meanwhile_is_read_by_fix(queue):
    dataset = queue(segment_size=1000)
    dataset.append(data(*range(20)))
    own = len(names(dataset))
    with Beat(dataset.path, segment_size=500) as beat:
        beat.publish(*events(*range(20, 30)))
        assert not any(each.returned for each in dataset.fix()), "what Beats appends was never deleted"
        assert stored(dataset) == [*range(30)]
        beat.publish(*events(30, 31))
        beat.tear(3)
        assert [each.state for each in dataset.check().findings] in ([Is.UNALIGNED], [Is.UNALIGNED] * 2)
        assert not any(each.returned for each in dataset.fix())
        assert stored(dataset) == [*range(31)]
        assert dataset.check().is_clean, "a last event that is cut short is no error"
    assert dataset.check().is_clean
    with Beat(dataset.path) as beat:
        beat.acknowledge(22)
    report = dataset.check()
    assert report.is_clean
    assert report.consumed >= own
    assert dataset.fix(dry_run=True).consumed == report.consumed
    done = dataset.fix()
    assert {each.action for each in done} == {"remove from the index"}
    assert done.lost == 0
    assert dataset.info()["lost"] == 0
    assert max(stored(dataset)) == 30
    assert min(stored(dataset)) > 0
    assert_sound(dataset)
    assert dataset.check().consumed == 0


def test_the_last_segment_that_beats_removes_when_it_ends_is_consumed(queue):
    dataset = queue()
    with Beat(dataset.path) as beat:
        beat.publish(*events(*range(5)))
        dataset.fix()
        beat.acknowledge(5)
    assert names(dataset) == []
    assert dataset.check().consumed == 1
    assert dataset.repack().lost == 0
    assert dataset.info()["count"] == dataset.info()["lost"] == 0
    dataset.append(data(5))
    assert names(dataset) == ["0.seg"], "as Beats, which begins again with it"
    assert_sound(dataset)


def test_a_number_that_beats_uses_again_is_another_segment(queue):
    dataset = queue(segment_size=250)
    dataset.append(data(*range(9)))
    with Beat(dataset.path) as beat:
        beat.acknowledge(9)
        beat.publish(*events(9))
        beat.acknowledge(1)
    assert names(dataset) == []
    at = (dataset.path / NAME).read_bytes()
    (dataset.path / NAME).unlink()
    with Beat(dataset.path) as beat:
        beat.publish(*events(20, 21))
    (dataset.path / NAME).write_bytes(at)
    assert names(dataset) == ["0.seg"]
    report = dataset.fix()
    assert report.lost == dataset.info()["lost"] == 0
    assert stored(dataset) == [20, 21]
    assert State.parse((dataset.path / NAME).read_bytes()) == State(), "else Beats would remove them when it starts"
    assert_sound(dataset)
    (dataset.path / NAME).unlink()
    shutil.copy(dataset.path / "0.seg", dataset.path / "1.seg")
    with Beat(dataset.path) as beat:
        beat.publish(*events(30, 31, 32))
    (dataset.path / "2.seg").rename(dataset.path / "0.seg")
    assert dataset.fix().lost == 2, "nothing proves that anybody has read what was in it"


@pytest.mark.parametrize("state", [None, b"", State(0, 12, 0), State(1, 70, 1), State(0, 100, 2, version=0)])
def test_without_proof_a_missing_segment_is_missing(queue, state):
    dataset = queue(segment_size=250)
    dataset.append(data(*range(12)))
    assert len(names(dataset)) == 4
    if state is not None:
        (dataset.path / NAME).write_bytes(state if isinstance(state, bytes) else state.pack())
    (dataset.path / "1.seg").unlink()
    (found,) = (each for each in dataset.check().findings if each.segment != NAME)
    assert (found.segment, found.state) == ("1.seg", Is.MISSING)
    assert dataset.fix().lost == 3


def test_nothing_that_the_consumer_has_to_read_is_changed(queue):
    dataset = queue(segment_size=250, archive_age=1, delete_age=100_000)
    dataset.append(data(*range(12)))
    with Beat(dataset.path) as beat:
        beat.acknowledge(4)
        kept = {name: (dataset.path / name).read_bytes() for name in names(dataset)}
    assert min(kept) == "1.seg"
    dataset.fix()
    dataset.delete("n: 5 or 7")
    report = dataset.repack()
    assert {name: (dataset.path / name).read_bytes() for name in names(dataset)} == kept
    assert all(each.action is None for each in report.findings)
    assert "state.dat" in dataset.check().findings[0].reasons[-1]
    with pytest.raises(ondisk.OndiskError, match="still has to read it"):
        dataset.archive("2.seg")
    (dataset.path / NAME).write_bytes(State(3).pack())
    dataset.repack()
    assert sorted(names(dataset)) == ["3.seg"]
    assert stored(dataset) == [n for n in range(3, 12) if n not in (5, 7)]
    (dataset.path / NAME).unlink()
    dataset.repack()
    assert names(dataset) == []
    assert stored(dataset) == [n for n in range(3, 12) if n not in (5, 7)]
    assert_sound(dataset)


def test_archived_numbers_are_not_used_again(queue):
    dataset = queue(segment_size=250)
    dataset.append(data(*range(12)))
    dataset.archive(*names(dataset))
    dataset.append(data(12))
    assert names(dataset) == ["4.seg"]
    dataset.unarchive("2.seg", "3.seg")
    assert names(dataset) == ["2.seg", "3.seg", "4.seg"]
    assert stored(dataset) == [*range(13)]
    assert_sound(dataset)
    path = dataset.path
    dataset.close()
    lose_index(path)
    with ondisk.open(path) as dataset:
        assert dataset.fix().lost == 0
        assert stored(dataset) == [*range(13)]
        assert_sound(dataset)


def test_segments_are_deleted_by_the_age_of_their_newest_datum(create):
    dataset = create("queue", **SEQUENCE | {"segment_size": 250})
    old = [Datum(datetime(2001, 1, 1 + n, tzinfo=UTC), {"n": n}, {"text": "x" * 50}) for n in range(8)]
    dataset.append(old)
    dataset.append(data(*range(8, 30)))
    assert len({each.location.segment for each in dataset.query("n: <= 7")}) == 4
    text = (dataset.path / "dataset.toml").read_text()
    path = dataset.path
    dataset.close()
    (path / "dataset.toml").write_text(text.replace("[fields]", "delete_age = 3000\n\n[fields]"))
    with ondisk.open(path) as dataset:
        dataset.repack()
        assert stored(dataset) == [*range(8, 30)]
        assert_sound(dataset)


@pytest.mark.parametrize("name", ["007.seg", "7.SEG", "007.SEG"])
def test_a_name_that_beats_cannot_open_is_reported_and_left(queue, name):
    dataset = queue()
    dataset.append(data(1))
    shutil.copy(dataset.path / "0.seg", dataset.path / name)
    (found,) = dataset.check().findings
    assert (found.segment, found.state) == (name, Is.CORRUPTED)
    assert "7.seg" in found.reasons[0]
    dataset.fix()
    dataset.repack()
    assert (dataset.path / name).exists()
    (dataset.path / name).rename(dataset.path / "7.seg")
    dataset.fix()
    assert numbers(dataset) == [1, 1]


def test_a_missing_segment_is_consumed_in_the_order_of_numbers_not_of_names(queue):
    dataset = queue(segment_size=100)
    dataset.append(data(*range(12)))
    assert len(names(dataset)) == 12
    (dataset.path / NAME).write_bytes(State(10).pack())
    (dataset.path / "9.seg").unlink()
    (dataset.path / "11.seg").unlink()
    report = dataset.check()
    assert report.consumed == 1
    assert [each.segment for each in report.findings] == ["11.seg"]


def test_only_seg_is_stored_in_a_sequence(queue, tmp_path):
    dataset = queue()
    (tmp_path / "data.jsonl").write_text('{"reftime": "2026-11-20T06:00:00Z", "n": 1}\n')
    with pytest.raises(InvalidInput, match="does not store data of the format jsonl"):
        dataset.append_file(tmp_path / "data.jsonl")
    assert names(dataset) == []


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"format": "jsonl"}, "format"),
        ({"segments": "dir"}, "segments"),
        ({"unknown_segments": "delete"}, "unknown_segments"),
        ({"step": "daily", "segment_size": 1000}, "segment_size"),
        ({"segment_size": 0}, "segment_size"),
    ],
)
def test_what_does_not_fit_a_sequence_is_refused(values, key):
    with pytest.raises(ConfigError) as caught:
        ondisk.DatasetConfig.from_mapping(SEQUENCE | values)
    assert caught.value.context["key"] == key


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("values", [{}, {"unique": ["n"]}, {"unique": ["n"], "replace": "yes"}], ids=str)
def test_what_was_staged_is_divided_among_segments(queue, values, compression):
    dataset = queue(segment_size=700, compression=compression, **values)
    dataset.append(data(*range(0, 40, 3)))
    staged = []
    for name, of_stage in {"one": range(30), "two": range(20, 60)}.items():
        with Stage(dataset._access.directory, dataset.config, "job", name) as stage:
            format = find("seg")(dataset.config)
            for begin in range(of_stage.start, of_stage.stop, 10):
                stage.add(format.encode(data(*range(begin, min(begin + 10, of_stage.stop)), size=20)), format)
            staged.append(stage.finish())
    result = dataset.append_staged("job", staged)
    if not values:
        assert (result.imported, stored(dataset)) == (70, sorted([*range(0, 40, 3), *range(30), *range(20, 60)]))
    else:
        assert stored(dataset) == [*range(60)]
        assert result.imported == 46
    for each in dataset.query():
        assert each.location.offset + each.location.size <= 700
    dataset.repack()
    assert_sound(dataset)
    with dataset._access.current().index.snapshot() as snapshot:
        spans = snapshot.fetch('SELECT name, "begin", "end" FROM segment')
        held = snapshot.fetch("SELECT segment.name, min(reftime), max(reftime) + 1 FROM datum"
                              " JOIN segment ON segment.id = datum.segment GROUP BY 1")  # fmt: skip
    for name, begin, end in held:
        assert [(first <= begin, last >= end) for each, first, last in spans if each == name] == [(True, True)]


def test_a_migration_reads_new_fields_from_the_segments(queue):
    dataset = queue(segment_size=700)
    dataset.append(
        [Datum(each.reftime, {**each.metadata, "name": f"n{n}"}, {}) for n, each in enumerate(data(*range(30)))]
    )
    dataset.archive("0.seg")
    path = dataset.path
    dataset.close()
    text = (path / "dataset.toml").read_text()
    (path / "dataset.toml").write_text(text.replace("[fields]", '[fields]\nname = "text"'))
    assert ondisk.migrate(path).done
    with ondisk.open(path) as dataset:
        assert numbers(dataset, "name: n7") == [7]
        assert_sound(dataset)


def test_what_was_deleted_by_age_stays_readable_for_a_while(queue):
    dataset = queue(segment_size=700, keep_replaced="1h")
    dataset.append(Datum(each.reftime.replace(year=2015), each.metadata, each.data) for each in data(*range(30)))
    delete_by_age(dataset.path)
    assert [file.name for file in (dataset.path / ".replaced").iterdir() if not file.name.endswith(".rows")]
    assert_sound(dataset)
    assert len(stored(dataset)) == 0


def test_a_file_in_the_way_of_a_segment_is_kept_in_quarantine(queue):
    dataset = queue(segment_size=700)
    dataset.append(data(*range(30)))
    whole = (dataset.path / "1.seg").read_bytes()
    flipped = bytearray(whole)
    flipped[200] ^= 1
    (dataset.path / "1.seg").write_bytes(flipped)
    assert dataset.fix().lost > 0
    dataset.fix(salvage=["1.seg"])
    (item,) = dataset.quarantine
    assert (dataset.path / item.name).read_bytes() == bytes(flipped)
    assert len(stored(dataset)) == 29
    assert_sound(dataset)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_no_segment_gets_a_number_that_the_index_cannot_hold(queue, number):
    dataset = queue(segment_size=100)
    (dataset.path / NAME).write_bytes(State(number, 12, 0).pack())
    with pytest.raises(StateError, match="no number is left"):
        dataset.append(data(1, 2))
    (dataset.path / NAME).unlink()
    dataset.append(data(3))
    assert numbers(dataset) == [3]


def test_a_torn_state_file_proves_nothing(queue):
    dataset = queue(segment_size=100)
    dataset.append(data(*range(4)))
    (dataset.path / NAME).write_bytes(struct.pack("<IQ", 1, 4))
    (dataset.path / "0.seg").unlink()
    assert [each.state for each in dataset.check().findings] == [Is.MISSING]
