"""`ondisk fix`."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from worlds import lose_index

from .conftest import LINES
from .test_check import FIRST, SECOND


def test_without_yes_it_only_prints_what_it_would_do(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    (weather / SECOND).unlink()
    done = run("fix", weather)
    assert (done.code, done.err) == (9, "")
    assert done.text.splitlines() == [
        f"{SECOND}: MISSING: it is not on disk; the index has 1 datum of it -> fix: remove from the index",
        f"{weather.absolute()}: 0 segments OK, 1 DIRTY, 1 MISSING",
        "1 segment to fix; --yes does it",
    ]
    segment, last = run("fix", weather, "--json").lines
    assert (segment["segment"], segment["action"]) == (SECOND, "remove from the index")
    assert last["summary"]["missing"] == 1
    assert "MISSING" in run("check", weather).text


def test_with_yes_it_fixes_and_reports_lost_data(run, weather):
    (weather / SECOND).unlink()
    done = run("fix", weather, "--yes", "--json")
    segment, last = done.lines
    assert done.code == 8
    assert (segment["action"], segment["lost"] > 0, last["summary"]["ok"]) == ("remove from the index", True, 1)
    assert run("check", weather).code == 0
    done = run("fix", weather, "--yes")
    assert (done.code, done.text) == (0, f"{weather.absolute()}: 1 segment OK; 0 bytes freed\n")


def test_a_lost_index_is_rebuilt(run, weather):
    lose_index(weather)
    done = run("fix", weather)
    assert done.code == 9
    assert "would come back" in done.err
    assert not (weather / "index.sqlite").exists()
    done = run("fix", weather, "--yes")
    assert done.code == 0
    assert "come back" in done.err
    assert done.text.count("-> rescan\n") == 2
    assert run("query", weather, "--data").out == LINES
    assert not (weather / "needs-check-do-not-pack").exists()


@pytest.mark.parametrize("verb", ["check", "fix", "repack", "maintain"])
def test_a_damaged_index_is_rebuilt_as_the_error_says(run, weather, verb):
    (weather / "index.sqlite").write_bytes(b"garbage" * 1000)
    done = run(verb, weather)
    assert done.code == 63
    assert f"`ondisk fix {weather.absolute()} --rebuild --yes`" in done.err
    done = run("fix", weather, "--rebuild")
    total = f"{weather.absolute()}: 1 index to rebuild; --yes does it, and reads the segments"
    assert (done.code, done.text.splitlines()[1]) == (9, total)
    assert "deleted data that no repack has removed yet would come back" in done.err
    (found, _) = run("fix", weather, "--rebuild", "--json").lines
    assert (found["segment"], found["states"], found["action"]) == ("index.sqlite", ["CORRUPTED"], "rebuild")
    done = run("fix", weather, "--rebuild", "--yes")
    assert done.code == 0
    assert "it is index.sqlite.damaged now -> rebuild\n" in done.text
    assert (weather / "index.sqlite.damaged").read_bytes() == b"garbage" * 1000
    assert run("query", weather, "--data").out == LINES
    assert "it would be renamed to index.sqlite.damaged.2 -> rebuild\n" in run("fix", weather, "--rebuild").text


def test_a_rebuilt_index_is_reported_also_if_the_fix_after_it_fails(run, weather):
    (weather / "index.sqlite").write_bytes(b"garbage" * 1000)
    done = run("fix", weather, "--rebuild", "--yes", "--forget", "2020")
    assert done.code == 10
    assert "it is index.sqlite.damaged now -> rebuild\n" in done.text


def test_a_log_that_belongs_to_another_index_is_mended_as_the_error_says(run, vm2):
    """Somebody copied a backup over a dataset, and the newer write-ahead log stayed there."""

    def append(*days: int) -> None:
        for day in days:
            lines = (f"202611{day:02}{at // 60:02}{at % 60:02},{at},227,1,,,0\n" for at in range(100 * day))
            run("append", vm2, "-", "--format", "vm2", stdin="".join(lines).encode())

    append(1, 2)
    with contextlib.closing(sqlite3.connect(vm2 / "index.sqlite")) as index, sqlite3.connect("backup") as backup:
        index.backup(backup)
    append(3, 4)
    run("delete", vm2, "reftime: <2026-11-03", "--yes")
    run("repack", vm2, "--yes")
    append(5, 6)
    (vm2 / "index.sqlite").write_bytes(Path("backup").read_bytes())
    done = run("query", vm2)
    assert done.code == 63
    fix = f"`ondisk fix {vm2.absolute()} --yes` mends that. If it fails, `ondisk fix {vm2.absolute()} --rebuild --yes`"
    assert fix in done.err
    run("fix", vm2, "--yes")
    assert run("check", vm2, "--accurate").code == 0
    assert run("summary", vm2, "--json").json["count"] == 1800
    assert not [*vm2.glob(".index*")]


def test_a_sentinel_on_a_clean_dataset_is_work_too(run, weather):
    (weather / "needs-check-do-not-pack").touch()
    done = run("fix", weather)
    assert (done.code, done.text.splitlines()[-1]) == (9, "0 segments to fix; --yes does it")
    done = run("fix", weather, "--yes")
    assert (done.code, done.err) == (0, "")  # no segment is read again, so no data come back
    assert not (weather / "needs-check-do-not-pack").exists()


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_findings_that_it_leaves_end_with_9(run, weather, yes):
    run("delete", weather, "area: VM2,7", "--yes")
    done = run("fix", weather, *yes)
    assert done.code == 9
    assert "1 DIRTY" in done.text
    (weather / SECOND).write_bytes(b"")
    done = run("fix", weather, *yes)
    assert done.code == 9
    assert "1 CORRUPTED" in done.text


def test_lost_data_end_with_8(run, weather):
    lose_index(weather)
    (weather / FIRST).write_bytes(b"no datum\n" + (weather / FIRST).read_bytes())
    done = run("fix", weather, "--yes")
    assert done.code == 8
    assert "are damaged" in done.text
    assert run("check", weather).code == 9
    assert run("fix", weather, "--yes").code == 9  # nothing else is lost, and the first loss is still reported


def test_data_that_come_back_are_announced_by_fix(run, weather):
    whole = (weather / FIRST).read_bytes()
    lose_index(weather)
    (weather / FIRST).write_bytes(whole.replace(b"2026112006", b"no datum..", 1))
    done = run("fix", weather, "--yes")
    assert "put the file back from a backup, and fix again" in done.text
    (weather / FIRST).write_bytes(whole)
    assert run("fix", weather, "--yes").code == 9  # the segment is out of order with the data that came back: DIRTY
    assert run("repack", weather, "--yes").code == 0
    assert sorted(run("query", weather, "--data").out.splitlines()) == sorted(LINES.splitlines())


def test_a_missing_dataset_is_an_error(run, folder):
    assert run("fix", "nowhere").code == 11
    assert run("fix", "nowhere", "--yes").code == 11


def test_a_damaged_segment_is_salvaged_only_with_yes(run, weather):
    content = (weather / FIRST).read_bytes()
    (weather / FIRST).write_bytes(b"x" + content[1:])
    assert run("fix", weather, "--yes").code == 8
    before = (weather / FIRST).read_bytes()
    done = run("fix", weather, "--salvage", FIRST)
    assert (done.code, done.err) == (9, "")
    first, *_, last = done.text.splitlines()
    assert (first.partition(": ")[0], first.rpartition(" ")[2]) == (FIRST, "salvage")
    assert last == "1 segment to fix; --yes does it"
    assert (weather / FIRST).read_bytes() == before
    assert run("fix", weather, "--salvage", SECOND).code == 2
    assert run("fix", weather, "--salvage", "2026/11-30.vm2").code == 13
    done = run("fix", weather, "--salvage", FIRST, "--yes")
    assert done.code == 8
    assert done.text.splitlines()[0].endswith("-> salvage")
    assert run("check", weather, "--accurate").code == 0
    assert run("query", weather, "--data").out == LINES.split(b"\n", 1)[1]
    assert run("fix", weather, "--salvage", FIRST, "--yes").code == 2


def test_a_salvage_in_the_archive_names_the_item_as_the_quarantine_lists_it(run, weather):
    run("archive", weather, FIRST, "--yes")
    path = weather / ".archive/last" / FIRST
    path.write_bytes(path.read_bytes()[:-2])
    done = run("query", weather)
    assert done.code == 62
    command = done.err.split("`")[1]
    done = run(*command.split()[1:])
    assert done.code == 8
    (item, _) = run("quarantine", weather, "--json").lines
    assert f"the original file is now {item['item']} -> salvage" in done.text


@pytest.mark.parametrize("place", ["", ".archive/last"])
def test_the_error_of_a_query_has_the_command_that_mends_it(run, weather, place):
    """Also for a segment of the archive, which a fix of the dataset mends."""
    if place:
        assert run("archive", weather, FIRST, SECOND, "--yes").code == 0
    mend = f"`ondisk fix {weather.absolute()} --yes`"
    content = (weather / place / FIRST).read_bytes()
    (weather / place / FIRST).write_bytes(content.replace(b",5,", b",9,"))
    assert mend in run("query", weather).err
    (weather / place / FIRST).unlink()
    assert mend in run("query", weather).err


def test_a_dry_run_of_maintain_has_the_command_for_a_lost_index(run, weather):
    lose_index(weather)
    done = run("maintain", weather, "--dry-run")
    assert done.code == 9
    assert f"the index was lost and may not know all data: run `ondisk fix {weather.absolute()} --yes`" in done.err


def test_a_dry_run_says_what_forgetting_an_archive_would_lose(run, weather):
    run("archive", weather, FIRST, "--yes")
    (weather / ".archive/last").rename("elsewhere")
    done = run("fix", weather, "--forget", "lost")
    assert (done.code, done.text) == (10, "")
    assert f"{weather.absolute()} has no archived data in .archive/lost" in done.err
    for option, code in (([], 9), (["--yes"], 8)):
        found, _ = run("fix", weather, "--forget", "last", "--json").lines
        assert (found["segment"], found["action"], found["lost"]) == (".archive/last", "forget", 2)
        done = run("fix", weather, "--forget", "last", *option)
        assert done.code == code
        forgotten = ".archive/last: MISSING: it is gone for good, and 2 data are lost -> forget"
        assert done.text.splitlines()[0] == forgotten
        assert (run("query", weather).code == 0) is bool(option)
    assert run("info", weather, "--json").json["lost"] == 2
    assert run("fix", weather, "--forget", "last").code == 10


def test_missing_segments_are_forgotten_without_their_archive_as_the_dry_run_says(run, weather):
    run("archive", weather, FIRST, "--yes")
    (weather / ".archive/last").rename("elsewhere")
    for option in ([], ["--yes"]):
        found, _ = run("fix", weather, "--forget", *option, "--json").lines
        assert (found["segment"], found["action"]) == (".archive/last", None)


def test_a_dry_run_says_what_would_be_acknowledged(run, weather):
    assert (run("fix", weather, "--acknowledge").code, run("fix", weather).code) == (0, 0)
    (weather / SECOND).unlink()
    assert run("fix", weather, "--yes").code == 8
    done = run("fix", weather, "--acknowledge")
    assert done.code == 9
    assert done.err == "ondisk: note: 1 datum is lost, and would not be counted any more; --yes does it\n"
    assert run("info", weather, "--json").json["lost"] == 1
    assert run("fix", weather, "--acknowledge", "--yes").code == 0
    assert run("info", weather, "--json").json["lost"] == 0
