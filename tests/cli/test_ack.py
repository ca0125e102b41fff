"""`ondisk ack`."""

from __future__ import annotations

from pathlib import Path

import beats
import pytest

import ondisk
from ondisk.formats.diskqueue.state import State

from .conftest import ROOT


@pytest.fixture
def queue(folder):
    """Create a queue of some segments, with 20 data."""
    with ondisk.create("queue", {"step": "sequence", "segment_size": 2000}) as dataset:
        dataset.append_file(ROOT / "sample_datasets/beats-queue/2.seg")
    return "queue"


def test_a_dry_run_changes_nothing_and_ends_with_9(run, queue):
    done = run("ack", queue, "--count", "12", "--json")
    assert (done.code, done.json["would_acknowledge"]) == (9, 12)
    assert not Path(queue, "state.dat").exists()
    assert done.json["removed"] == ["0.seg", "1.seg"]
    assert run("ack", queue, "--count", "12", "--yes", "--json").json == {
        ("acknowledged" if key == "would_acknowledge" else key): value for key, value in done.json.items()
    }
    assert beats.segments(Path(queue))[0] == done.json["segment"]
    assert [*beats.position(Path(queue))] == [done.json[key] for key in ("segment", "byte_index", "frame_index")]
    assert len([*beats.restarted(Path(queue))]) == 8


def test_text_is_for_people(run, queue):
    text = run("ack", queue, "--count", "12").text
    assert text.startswith("12 data would be acknowledged: the consumer continues at byte ")
    assert text.endswith(" of 2.seg; 2 segments to remove; --yes does it\n")
    assert run("ack", queue, "--count", "12", "--yes").text.endswith(" of 2.seg; 2 segments removed\n")
    run("ack", queue, "--count", "99", "--yes")
    done = run("ack", queue, "--count", "1")
    assert (done.code, done.text.startswith("0 data would be acknowledged: ")) == (0, True)


def test_segments_to_remove_are_something_to_do(run, queue):
    places = [each["location"] for each in run("query", queue, "--json").lines]
    (first,) = [each["offset"] for each in places if each["segment"] == "0.seg"][:1]
    Path(queue, "state.dat").write_bytes(State(2).pack())  # as after a crash before 0.seg and 1.seg were removed
    through = ["ack", queue, "--through", f"0.seg:{first}"]
    done = run(*through)
    assert (done.code, done.text.startswith("0 data would be")) == (9, True)
    assert done.text.endswith("; 2 segments to remove; --yes does it\n")
    assert run(*through, "--yes").text.endswith("; 2 segments removed\n")
    assert run("ack", queue, "--count", "99", "--yes").code == 0
    assert run("ack", queue, "--count", "1").code == 0


@pytest.mark.parametrize("options", [0, beats.LZ4], ids=["plain", "lz4"])
def test_an_event_that_beats_has_not_written_completely_is_no_finding(run, folder, options):
    beat = beats.Beats(folder / "queue", options=options)
    beat.publish(beats.event(0))
    beat.crash(beats.frame(beats.event(1))[:-3])
    beats.Beats(folder / "queue").publish(beats.event(2))
    run("adopt", "queue", "--yes")
    done = run("ack", "queue", "--count", "2", "--yes")
    assert (done.code, done.err) == (0, "")
    assert beats.segments(folder / "queue") == [1]
    assert not (folder / "queue/.quarantine").exists()


def test_a_dry_run_ends_with_the_error_of_a_position_of_another_version(run, queue):
    Path(queue, "state.dat").write_bytes(b"\2" + State(1).pack()[1:])
    before = Path(queue, "state.dat").read_bytes()
    done, real = run("ack", queue, "--count", "1"), run("ack", queue, "--count", "1", "--yes")
    assert (done.code, done.out, done.err) == (real.code, b"", real.err)
    assert done.code not in (0, 9)
    assert Path(queue, "state.dat").read_bytes() == before


def test_a_location_is_a_segment_and_an_offset(run, queue):
    places = [each["location"] for each in run("query", queue, "--json").lines]
    place = sorted((int(each["segment"][:-4]), each["offset"]) for each in places)[6]
    done = run("ack", queue, "--through", f"{place[0]}.seg:{place[1]}", "--yes", "--json")
    assert (done.code, done.json["acknowledged"]) == (0, 7)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--through", "0.seg"], 2, "is not a segment and an offset"),
        (["--through", "0.seg:13"], 12, "no datum is at byte 13 of 0.seg"),
        (["--through", "7.seg:12"], 12, "no datum is at byte 12 of 7.seg"),
        (["--count", "0"], 2, "is not a whole number of 1 or more"),
        ([], 2, "one of the arguments --through --count is required"),
        (["--count", "1", "--through", "0.seg:12"], 2, "not allowed with argument"),
    ],
)
def test_wrong_arguments_say_what_is_right(run, queue, arguments, code, message):
    done = run("ack", queue, *arguments)
    assert (done.code, message in done.err) == (code, True)


def test_a_dataset_that_is_no_queue_is_refused(run, vm2):
    done = run("ack", vm2, "--count", "1")
    assert (done.code, "is not a queue" in done.err) == (2, True)
