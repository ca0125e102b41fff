"""`ondisk archive` and `ondisk unarchive`."""

from __future__ import annotations

import pytest

import ondisk
from ondisk.formats.diskqueue.state import State

from .conftest import ROOT
from .test_check import FIRST, SECOND


def test_without_yes_they_only_print_what_they_would_move(run, weather):
    done = run("archive", weather, FIRST)
    assert (done.code, done.text.splitlines()[0]) == (9, f"{FIRST}: OK -> archive")
    assert not (weather / ".archive").exists()
    assert run("archive", weather, FIRST, "--yes").code == 0
    done = run("unarchive", weather, FIRST)
    assert (done.code, done.text.splitlines()[0]) == (9, f".archive/last/{FIRST}: OK -> unarchive")
    assert not (weather / FIRST).exists()


def test_a_segment_is_moved_there_and_back_and_always_queried(run, weather):
    before = run("query", weather).out
    assert run("archive", weather, FIRST, "--yes").code == 0
    assert (weather / ".archive/last" / FIRST).exists()
    assert run("query", weather).out == before
    *_, segment, last = run("unarchive", weather, f".archive/last/{FIRST}", "--yes", "--json").lines
    assert (segment["action"], last["summary"]["ok"]) == ("unarchive", 2)
    assert run("query", weather).out == before
    assert (weather / FIRST).exists()


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_a_dry_run_ends_with_the_error_that_the_real_run_ends_with(run, weather, verb):
    if verb == "unarchive":
        assert run("archive", weather, FIRST, SECOND, "--yes").code == 0
    (weather / (".archive/last" if verb == "unarchive" else "") / SECOND).unlink()
    done = run(verb, weather, FIRST, SECOND)
    assert done.text.splitlines()[0].endswith(f"{FIRST}: OK -> {verb}")
    assert done.text.splitlines()[-1] == f"1 segment to {verb}; --yes does it"
    real = run(verb, weather, FIRST, SECOND, "--yes")
    assert (done.code, done.err) == (real.code, real.err)
    assert done.code == 30
    assert run(verb, weather, SECOND).out == b""


def test_a_dry_run_refuses_a_copy_that_somebody_made_as_the_real_run_does(run, weather):
    assert run("archive", weather, FIRST, "--yes").code == 0
    (weather / FIRST).hardlink_to(weather / ".archive/last" / FIRST)
    done, real = run("archive", weather, FIRST), run("archive", weather, FIRST, "--yes")
    assert (done.code, done.out, done.err) == (30, b"", real.err)
    assert real.code == 30


@pytest.mark.parametrize(
    ("options", "action"),
    [
        (("--rename", "2025", "2026"), "rename"),
        (("--offline", "2025"), "set offline"),
        (("--online", "off"), "set online"),
    ],
)
def test_a_dry_run_of_an_option_changes_nothing_and_says_what_it_would_do(run, weather, options, action):
    for segment, name in ((FIRST, "2025"), (SECOND, "off")):
        assert run("archive", weather, segment, "--yes").code == 0
        assert run("archive", weather, "--rename", "last", name, "--yes").code == 0
    assert run("archive", weather, "--offline", "off", "--yes").code == 0
    before = run("info", weather, "--json").json
    assert (before["archives"], before["offline"]) == (["2025"], ["off"])
    done = run("archive", weather, *options)
    assert (done.code, done.text.splitlines()[-1]) == (9, f"1 folder to {action}; --yes does it")
    assert run("info", weather, "--json").json == before
    found, _ = run("archive", weather, *options, "--yes", "--json").lines
    assert (found["segment"], found["action"]) == (f".archive/{options[1]}", action)
    assert run("info", weather, "--json").json != before


def test_it_takes_segments_or_an_option(run, weather):
    for arguments in ((), (FIRST, "--online", "2025")):
        done = run("archive", weather, *arguments)
        assert (done.code, "archive takes either segments or an option" in done.err) == (2, True)


def test_the_folder_of_an_archive_is_no_dataset(run, weather):
    assert run("archive", weather, FIRST, "--yes").code == 0
    assert run("backup", weather, "backup", "--create").code == 0
    last, new = weather / ".archive/last", weather / ".archive/new"
    verbs = ("query", "summary", "info", "check", "fix", "repack", "maintain", "migrate")
    for arguments in (
        *((verb, last) for verb in verbs),
        *(("query", weather, "--also", also) for also in (last, weather / ".archive/*")),
        ("restore", "backup", new),
        ("init", new, "--format", "vm2", "--step", "daily"),
        ("backup", last, "other"),
    ):
        done = run(*arguments)
        assert (done.code, f"Use the dataset: {weather.absolute()}" in done.err) == (30, True), arguments
    assert not new.exists()


def test_a_dry_run_refuses_what_a_consumer_still_has_to_read(run, folder):
    with ondisk.create("queue", {"step": "sequence", "segment_size": 2000}) as dataset:
        dataset.append_file(ROOT / "sample_datasets/beats-queue/2.seg")
    (folder / "queue/0.seg").unlink()
    (folder / "queue/state.dat").write_bytes(State(1).pack())
    for name, why in (("0.seg", "has read and removed it"), ("1.seg", "still has to read it")):
        done, real = run("archive", "queue", name), run("archive", "queue", name, "--yes")
        assert (done.code, done.out, done.err) == (30, b"", real.err)
        assert why in done.err
        assert real.code == 30
    (folder / "queue/state.dat").unlink()
    assert run("archive", "queue", "1.seg").text.splitlines()[-1].startswith("1 segment to archive")
    assert run("archive", "queue", "1.seg", "--yes").code == 0


@pytest.mark.parametrize("yes", [[], ["--yes"]])
@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_a_missing_segment_is_named(run, weather, verb, yes):
    done = run(verb, weather, "2020/01-01.vm2", *yes)
    assert done.code == 13
    assert "2020/01-01.vm2" in done.err or "no archive" in done.err


def test_the_terminal_does_not_execute_what_others_wrote_into_the_lock(run, weather):
    from ondisk.filesystem import LOCK, Directory, WritersLock

    (weather / "dataset.toml").write_text("lock_timeout = 0\n" + (weather / "dataset.toml").read_text(encoding="utf-8"))
    with Directory.open(weather) as directory, WritersLock(directory, 1).hold("test"):
        (weather / LOCK).write_text('{"pid": 1, "host": "\\u001b[2J\\u0007", "verb": "x", "since": "y"}')
        done = run("delete", weather, "", "--yes")
    assert done.code == 40
    assert "\x1b" not in done.err
    assert "\x07" not in done.err


def test_metrics_that_cannot_be_written_are_an_error_with_a_remedy(run, weather):
    done = run("maintain", weather, "--metrics", "/proc/ondisk.prom")
    assert done.code == 50
    assert "in which files can be created" in done.err


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_segments_moved_before_an_error_are_reported(run, weather, verb):
    if verb == "unarchive":
        assert run("archive", weather, FIRST, "--yes").code == 0
    done = run(verb, weather, FIRST, "2020/01-01.vm2", "--yes")
    assert done.code == 13
    assert done.text.splitlines()[0].endswith(f"{FIRST}: OK -> {verb}")


def test_no_segment_comes_back_to_a_queue_that_has_a_consumer(run, folder):
    """The consumer would remove it unread, or read a part of what it was merged with."""
    with ondisk.create("queue", {"step": "sequence", "segment_size": 2000}) as dataset:
        dataset.append_file(ROOT / "sample_datasets/beats-queue/2.seg")
        dataset.archive("0.seg")
    before = run("query", "queue").out
    for position in (State(), State(1), State(0, 500, 2)):
        (folder / "queue/state.dat").write_bytes(position.pack())
        for yes in ([], ["--yes"]):
            done = run("unarchive", "queue", "0.seg", *yes)
            assert (done.code, "the queue has a consumer" in done.err) == (30, True)
            assert "ANOTHER-QUEUE" in done.err
            assert run("query", "queue").out == before
    (folder / "queue/state.dat").unlink()
    assert run("unarchive", "queue", "0.seg", "--yes").code == 0
    assert len(run("query", "queue").out) == len(before)
    assert (folder / "queue/0.seg").exists()
