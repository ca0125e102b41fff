"""`ondisk repack`."""

from __future__ import annotations

import os

import pytest

import ondisk

from .conftest import LINES
from .test_check import FIRST, SECOND, lose_index


def test_without_yes_it_only_says_what_it_would_do(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    (weather / "2026/11-22.vm2").write_bytes(b"")
    before = (weather / FIRST).read_bytes()
    done = run("repack", weather)
    assert (done.code, done.err) == (9, "")
    assert done.text.splitlines() == [
        f"{FIRST}: DIRTY: 35 bytes behind its last datum are no data -> repack",
        "2026/11-22.vm2: DELETED: it is empty, and the index does not know it -> repack: delete",
        f"{weather.absolute()}: 1 segment OK, 1 DIRTY, 1 DELETED",
        "2 segments to repack; --yes does it",
        "the next repack DELETES 1 segment: 2026/11-22.vm2",
    ]
    *segments, last = run("repack", weather, "--json").lines
    assert [each["action"] for each in segments] == ["repack", "delete"]
    assert last["summary"]["freed"] == 35
    assert (weather / FIRST).read_bytes() == before


def test_with_yes_it_repacks_and_tells_the_bytes_freed(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    done = run("repack", weather, "--yes")
    assert done.code == 0
    assert done.text.splitlines() == [
        f"{FIRST}: DIRTY: 35 bytes behind its last datum are no data -> repack, 35 bytes freed",
        f"{weather.absolute()}: 2 segments OK; 35 bytes freed",
    ]
    assert (weather / FIRST).read_bytes() == LINES.splitlines(keepends=True)[0]
    done = run("repack", weather, "--yes", "--json")
    assert (done.code, done.json["summary"]["freed"]) == (0, 0)


def test_what_it_leaves_ends_with_9(run, weather):
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


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_it_refuses_too_while_the_index_of_the_archive_may_not_know_all_data(run, weather, yes):
    with ondisk.open(weather) as dataset:
        dataset.archive(FIRST)
    (weather / ".archive/last/needs-check-do-not-pack").touch()
    done = run("repack", weather, *yes)
    assert (done.code, done.out) == (31, b"")
    assert f"Run `ondisk fix {weather.absolute()} --yes` first" in done.err
    assert run("fix", weather, "--yes").code == 0
    assert run("repack", weather, *yes).code == 0


def test_a_segment_that_the_index_never_knew_is_deleted_only_with_yes(run, weather):
    (weather / "2026/11-22.vm2").write_bytes(LINES)
    os.utime(weather / "2026/11-22.vm2", (0, 0))
    assert run("repack", weather).code == 9
    assert (weather / "2026/11-22.vm2").exists()
    assert run("repack", weather, "--yes").code == 0
    assert not (weather / "2026/11-22.vm2").exists()
