"""`ondisk repack`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import pytest
from worlds import lose_index, renew_index

import ondisk

from .conftest import LINES
from .test_check import FIRST, SECOND, delete_unknown


def test_without_yes_it_only_prints_what_it_would_do(run, weather):
    delete_unknown(weather)
    run("delete", weather, "area: VM2,7", "--yes")
    (weather / "2026/11-22.vm2").write_bytes(b"")
    before = (weather / FIRST).read_bytes()
    done = run("repack", weather)
    assert (done.code, done.err) == (9, "")
    assert done.text.splitlines() == [
        f"{FIRST}: DIRTY: 35 bytes after its last datum belong to no datum -> repack",
        "2026/11-22.vm2: DELETED: the index does not know it -> repack: delete",
        f"{weather.absolute()}: 1 segment OK, 1 DIRTY, 1 DELETED",
        "2 segments to repack; --yes does it",
        "the next repack DELETES 1 segment: 2026/11-22.vm2",
    ]
    *segments, last = run("repack", weather, "--json").lines
    assert [each["action"] for each in segments] == ["repack", "delete"]
    assert last["summary"]["freed"] == 35
    assert (weather / FIRST).read_bytes() == before


def test_with_yes_it_repacks_and_reports_the_bytes_freed(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    done = run("repack", weather, "--yes")
    assert done.code == 0
    assert done.text.splitlines() == [
        f"{FIRST}: DIRTY: 35 bytes after its last datum belong to no datum -> repack, 35 bytes freed",
        f"{weather.absolute()}: 2 segments OK; 35 bytes freed",
    ]
    assert (weather / FIRST).read_bytes() == LINES.splitlines(keepends=True)[0]
    done = run("repack", weather, "--yes", "--json")
    assert (done.code, done.json["summary"]["freed"]) == (0, 0)


def test_a_repack_that_needs_more_space_says_so(run, folder):
    run("init", "events", "--format", "seg", "--step", "daily")
    with ondisk.open("events") as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {"text": "again and again " * 100})])
    config = folder / "events/dataset.toml"
    config.write_text(f'compression = "none"\n{config.read_text()}')
    before = (folder / "events/2026/11-20.seg").stat().st_size
    lines = run("repack", "events", "--rewrite", "--yes").text.splitlines()
    more = (folder / "events/2026/11-20.seg").stat().st_size - before
    assert more > 1000
    assert lines[0].endswith(f"-> repack, {more} bytes more used")
    assert lines[1].endswith(f"1 segment OK; {more} bytes more used")


def test_findings_that_it_leaves_end_with_9(run, weather):
    (weather / SECOND).write_bytes(b"")
    done = run("repack", weather, "--yes")
    assert done.code == 9
    assert done.text.splitlines()[0].endswith("-> left alone")
    assert run("repack", weather).code == 9


@pytest.mark.parametrize("yes", [[], ["--yes"]])
@pytest.mark.parametrize("how", ["sentinel", "lost index"])
def test_it_refuses_while_the_index_may_not_know_all_data(run, weather, yes, how):
    if how == "sentinel":
        (weather / "needs-check-do-not-pack").touch()
    else:
        lose_index(weather)
    done = run("repack", weather, *yes)
    assert (done.code, done.out) == (31, b"")
    assert f"Run `ondisk fix {weather.absolute()} --yes` first" in done.err


def test_it_removes_a_second_copy_only_if_it_is_told_to(run, weather):
    with ondisk.open(weather) as dataset:
        dataset.archive(FIRST)
    copy = weather / FIRST
    shutil.copy(weather / ".archive/last" / FIRST, copy)
    assert run("fix", weather, "--yes").code == 0
    assert (run("repack", weather, "--yes").code, copy.exists()) == (0, True)
    how = f"`ondisk repack {weather.absolute()} --second-copies --yes` compares and removes them"
    note = f"second copies of data in other segments: 1 segment; {how}"
    assert (run("check", weather).code, run("check", weather).text.splitlines()[-1]) == (0, note)
    done = run("repack", weather, "--second-copies")
    assert (done.code, done.text.splitlines()[-1]) == (9, f"the next repack DELETES 1 segment: {FIRST}")
    assert (run("repack", weather, "--second-copies", "--yes").code, copy.exists()) == (0, False)
    assert run("query", weather, "--data").out == LINES


@pytest.mark.check
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_on_a_full_disk_it_does_what_frees_space_and_reports_that(run, folder):
    Path("small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", "small"], check=True)
    try:
        line = "202611{},{},227,1.2,,,000000000\n"
        times = [f"{minute // 60:02}{minute % 60:02}" for minute in range(1440)]
        lines = "".join(line.format(f"20{time}", 1) for time in times)
        lines += "".join(line.format(f"21{time}", area) for time in times for area in range(6))
        with ondisk.create("small/weather", {"format": "vm2", "step": "daily"}) as dataset:
            assert dataset.append_file(BytesIO(lines.encode())).imported == 7 * 1440
            dataset.delete("reftime: =2026-11-20 or =2026-11-21 00:00")
        free = os.statvfs("small").f_bavail * os.statvfs("small").f_frsize
        Path("small/filler").write_bytes(bytes(free))
        done = run("repack", "small/weather", "--yes")
        assert done.code == 51
        dropped, state = done.text.splitlines()
        assert re.match(rf"{FIRST}: DELETED: .* -> delete, \d+ bytes freed$", dropped)
        assert "0 segments OK, 1 DIRTY; " in state
        Path("small/filler").unlink()
        assert run("repack", "small/weather", "--yes").code == 0
    finally:
        subprocess.run(["umount", "--lazy", "small"], check=True)


def test_a_segment_that_the_index_never_knew_is_left(run, weather):
    (weather / "2026/11-22.vm2").write_bytes(LINES)
    renew_index(weather)
    done = run("repack", weather, "--yes")
    assert done.code == 9
    assert "2026/11-22.vm2: UNALIGNED: the index does not know it" in done.text
    assert (weather / "2026/11-22.vm2").read_bytes() == LINES


def test_where_unknown_segments_are_to_be_deleted_they_are_only_with_yes(run, weather):
    (weather / "2026/11-22.vm2").write_bytes(LINES)
    delete_unknown(weather)
    assert run("repack", weather).code == 9
    assert (weather / "2026/11-22.vm2").exists()
    assert run("repack", weather, "--yes").code == 0
    assert not (weather / "2026/11-22.vm2").exists()


def test_with_rewrite_it_converts_segments_that_are_not_stored_as_configured(run, tmp_path):
    path = tmp_path / "events"
    with ondisk.create(path, {"step": "daily"}) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, 6, tzinfo=UTC), {}, {"n": 1})])
    (path / "dataset.toml").write_text('step = "daily"\nversion = 1\n')
    segment = path / "2026/11-20.seg"
    assert run("repack", path).code == run("repack", path, "--yes").code == 0
    assert segment.read_bytes()[0] == 2
    done = run("repack", path, "--rewrite")
    assert done.code == 9
    assert "2026/11-20.seg: DIRTY: it is stored in another way than dataset.toml says -> repack" in done.text
    assert segment.read_bytes()[0] == 2
    done = run("repack", path, "--rewrite", "--yes")
    assert done.code == 0
    assert segment.read_bytes()[0] == 1
    assert run("repack", path, "--rewrite").code == 0
