"""`ondisk backup` and `ondisk restore`: a night's work, and the morning after the disk has failed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ondisk


def test_a_dataset_is_backed_up_and_restored(run, weather):
    done = run("backup", weather, "saved", "--create")
    assert (done.code, done.err) == (0, "")
    assert done.text.endswith(": 3 data in 2 segments of 102 bytes; 2 copied, 102 bytes\n")
    assert run("backup", weather, "saved", "--json").json["copied"] == 0
    expected = run("query", weather).text
    shutil.rmtree(weather)
    done = run("restore", "saved", weather)
    assert (done.code, done.err) == (0, "")
    assert done.text.endswith(": 3 data in 2 segments of 102 bytes\n")
    assert run("query", weather).text == expected
    assert run("check", weather, "--accurate").code == 0


def test_points_are_listed_and_restored_by_their_times(run, weather):
    first = run("backup", weather, "saved", "--create", "--json").json["point"]
    with ondisk.open(weather) as dataset:
        dataset.delete("area: VM2,5")
    second = run("backup", weather, "saved", "--json").json["point"]
    assert [line["point"] for line in run("restore", "saved", "--json").lines] == [first, second]
    assert run("restore", "saved").text.splitlines()[0].startswith(first)
    done = run("restore", "saved", "old", "--at", first, "--json").json
    assert (done["point"], done["segments"], done["problems"]) == (first, 2, [])
    assert run("summary", "old", "--json").json["count"] == 3
    assert run("restore", "saved", "new", "--at", "2999-01-01T00:00:00Z", "--json").json["point"] == second
    done = run("backup", weather, "saved", "--keep", "1", "--json").json
    assert done["removed"] == [first, second]
    done = run("backup", weather, "saved", "--keep", "1")
    assert done.text.endswith("; 1 older point removed\n")


def test_a_whole_second_means_its_end(run, weather):
    point = run("backup", weather, "saved", "--create", "--json").json["point"]
    assert run("restore", "saved", "again", "--at", point.partition(".")[0] + "Z", "--json").json["point"] == point


def test_times_are_written_as_in_match_expressions_too(run, weather):
    """A date is its end, a time without a zone is UTC."""
    point = run("backup", weather, "saved", "--create", "--json").json["point"]
    second, _, _ = point.partition(".")
    for number, at in enumerate([second[:4], second[:7], second[:10], second[:16], second, second.replace("T", " "),
                                 "today + 1 day", second + "+00:00", point]):  # fmt: skip
        assert run("restore", "saved", f"again-{number}", "--at", at, "--json").json["point"] == point


def test_a_damaged_segment_ends_with_8_and_is_named(run, weather):
    Path(weather, "2026/11-20.vm2").unlink()
    done = run("backup", weather, "saved", "--create")
    assert done.code == 8
    assert "ondisk: damaged: 2026/11-20.vm2: " in done.err
    assert done.err.endswith("is in the index but not on disk; nothing of it was kept\n")
    listed, verified = run("restore", "saved"), run("restore", "saved", "--verify")
    assert (listed.code, verified.code) == (0, 9)
    assert listed.text.splitlines()[0].endswith("Z  1 datum in 2 segments of 32 bytes, 1 not whole")
    assert verified.text == listed.text
    done = run("restore", "saved", "again")
    assert done.code == 8
    assert done.text.endswith(": 1 datum in 2 segments of 32 bytes, 1 not whole\n")
    assert "nothing of it was restored" in done.err
    assert f"`ondisk restore {Path('saved').absolute()} --verify` shows whether another point is whole" in done.err
    assert "fix" in done.err


@pytest.mark.parametrize("offline", [False, True])
def test_an_archive_that_is_away_ends_with_8_and_is_named_unless_that_is_on_purpose(run, weather, offline):
    """The point has the copies of earlier points."""
    run("archive", weather, "2026/11-20.vm2", "--yes")
    run("archive", weather, "--rename", "last", "2025", "--yes")
    assert run("backup", weather, "saved", "--create").code == 0
    if offline:
        run("archive", weather, "--offline", "2025", "--yes")
    shutil.move(weather / ".archive/2025", "away")
    done = run("backup", weather, "saved")
    warning = "ondisk: warning: the folder '2025' is away: the backup has at most what earlier points have of it\n"
    assert (done.code, done.err) == ((0, "") if offline else (8, warning))
    assert run("restore", "saved").text.splitlines()[1].endswith(" bytes, 1 folder away")
    done = run("restore", "saved", "again")
    warning = "ondisk: warning: the folder '2025' was away: the point has at most what earlier points have of it\n"
    assert (done.code, done.err) == (0, warning)
    shutil.move("away", weather / ".archive/2025")
    run("archive", weather, "--online", "2025", "--yes")
    assert run("query", "again", "--data").out == run("query", weather, "--data").out


def test_what_no_point_has_of_an_archive_that_is_away_is_missing(run, weather):
    run("archive", weather, "2026/11-20.vm2", "--yes")
    shutil.move(weather / ".archive/last", "away")
    done = run("backup", weather, "saved", "--create")
    assert done.code == 8
    assert "nothing of it was kept" in done.err.splitlines()[0]
    assert run("restore", "saved", "again").code == 8
    assert run("query", "again").code == 13


def test_verify_ends_with_9_and_names_what_is_damaged(run, weather):
    run("backup", weather, "saved", "--create")
    done = run("restore", "saved", "--verify")
    assert (done.code, done.text.splitlines()[0].endswith("102 bytes, verified")) == (0, True)
    (copy,) = Path("saved/segments/dataset/2026").glob("11-20.*")
    copy.write_bytes(bytes(copy.stat().st_size))
    done = run("restore", "saved", "--verify")
    damaged, note = done.err.splitlines()
    assert (done.code, damaged) == (9, "ondisk: damaged: 2026/11-20.vm2: its copy is damaged")
    assert "the next `ondisk backup` copies again" in note
    assert run("restore", "saved").code == 0
    assert run("restore", "saved", "again").code == 8
    assert run("backup", weather, "saved").code == 0
    assert run("restore", "saved", "--verify").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("restore", "saved", "--at", "2026-11-20T00:00:00Z"), 2),
        (("restore", "saved", "again", "--verify"), 2),
        (("restore", "saved", "again", "--at", "last week"), 2),
        (("restore", "saved", "again", "--at", "12:00"), 2),
        (("restore", "saved", "again", "--at", "2026-11-20 or 2026-11-21"), 2),
        (("restore", "saved", "again", "--at", "2026-02-30T00:00:00Z"), 2),
        (("restore", "saved", "again", "--at", "yesterday"), 10),
        (("restore", "saved", "again", "--at", "2000-01-01T00:00:00Z"), 10),
        (("restore", "nowhere", "again"), 11),
        (("restore", "saved", "weather"), 21),
        (("backup", "weather", "weather/saved"), 2),
        (("backup", "weather", "saved", "--keep", "0"), 2),
        (("backup", "nowhere", "saved"), 11),
        (("backup", "weather", "unmounted"), 11),
        (("backup", "weather", "saved", "--create"), 20),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(arguments, code, run, weather):
    run("backup", weather, "saved", "--create")
    done = run(*arguments)
    assert (done.code, done.out) == (code, b"")


def test_a_backup_without_points_is_a_finding_of_verify(run, weather):
    run("backup", weather, "saved", "--create")
    shutil.rmtree("saved/points")
    assert [run("restore", "saved", *more).code for more in ((), ("--verify",))] == [0, 9]


@pytest.mark.check
def test_progress_is_shown_on_a_terminal(watch, weather):
    for arguments in (("backup", weather, "saved", "--create"), ("restore", "saved", "again")):
        done, screen = watch("stderr", *arguments)
        assert done.returncode == 0
        assert b"2026/11-21.vm2" in screen
