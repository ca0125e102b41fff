"""`ondisk quarantine`, and what other commands print about items in quarantine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import ondisk
from ondisk.segments import quarantine

from .conftest import COMMAND, PATIENCE

FIRST = "2026/11-20.vm2"
OTHER = "2026/11-30.vm2"


@pytest.fixture
def item(weather) -> str:
    """Put a file of 35 bytes into the quarantine of the dataset; return the name of the item."""
    with ondisk.open(weather) as dataset:
        (weather / OTHER).write_bytes(b"x" * 35)
        return quarantine.keep(dataset._access.directory, OTHER, verb="repack", why="an unknown file")


@pytest.fixture
def piece(weather, item) -> str:
    with ondisk.open(weather) as dataset:
        directory = dataset._access.directory
        file = directory.open_to_read(FIRST)
        return quarantine.keep_piece(directory, FIRST, file, 35, 5, verb="append", why="bytes after the end")


def test_items_are_listed_with_the_reason(run, weather, item, piece):
    done = run("quarantine", weather)
    assert (done.code, done.err) == (0, "")
    assert done.text.splitlines() == [
        f"{item}: 35 bytes of {OTHER}: repack: an unknown file",
        f"{piece}: 5 bytes of {FIRST}, from byte 35: append: bytes after the end",
        f"{weather.absolute()}: 2 items in quarantine, 40 bytes",
    ]
    whole, part, last = run("quarantine", weather, "--json").lines
    assert (whole["item"], whole["segment"], whole["offset"], whole["size"]) == (item, OTHER, None, 35)
    assert (part["item"], part["offset"], part["length"], part["verb"]) == (piece, 35, 5, "append")
    assert last == {"dataset": str(weather.absolute()), "items": 2, "size": 40}


def test_an_empty_quarantine_says_so(run, weather):
    done = run("quarantine", weather)
    assert (done.code, done.text) == (0, f"{weather.absolute()}: 0 items in quarantine, 0 bytes\n")


def test_nothing_that_others_wrote_reaches_the_terminal(run, weather):
    folder = weather / "2026/.quarantine"
    folder.mkdir()
    (folder / "a\nb\x1b[31m").write_bytes(b"x")
    (folder / "a\nb\x1b[31m.json").write_text(
        json.dumps({"segment": "2026/\x1b[2J", "file": "x", "verb": "\x07", "why": "\x1b]0;title\x07\n"})
    )
    done = run("quarantine", weather)
    assert (done.code, done.err, len(done.text.splitlines())) == (0, "", 2)
    assert all(line.isprintable() for line in done.text.splitlines())
    assert run("quarantine", weather, "--json").lines[0]["item"] == "2026/.quarantine/a\nb\x1b[31m"


def test_other_commands_count_items_and_end_with_0(run, weather, item):
    note = f"1 item in quarantine, 35 bytes: `ondisk quarantine {weather.absolute()}` lists what was in the way"
    for command in ("check", "fix --yes", "repack --yes"):
        done = run(*command.split()[:1], weather, *command.split()[1:])
        assert (done.code, done.text.splitlines()[-1]) == (0, note)
    done = run("maintain", weather, "--metrics", "m.prom")
    assert (done.code, done.err) == (0, "")
    assert "; 1 item in quarantine;" in done.text
    assert f'ondisk_quarantine_bytes{{dataset="{weather.absolute()}"}} 35\n' in Path("m.prom").read_text()
    info = run("info", weather, "--json").json
    assert info["quarantine"] == {"items": 1, "bytes": 35}


def test_an_item_is_exported_once(run, weather, item):
    done = run("quarantine", weather, "export", item, "kept.vm2")
    assert (done.code, done.text) == (0, f"{item}: 35 bytes copied to kept.vm2\n")
    assert Path("kept.vm2").read_bytes() == b"x" * 35
    done = run("quarantine", weather, "export", item, "kept.vm2")
    assert done.code == 20
    assert "kept.vm2 exists already" in done.err
    assert run("quarantine", weather, "export", item, "more.vm2", "--json").json == {
        "exported": item,
        "file": "more.vm2",
        "size": 35,
    }


def test_a_segment_is_restored_and_a_piece_is_not(run, weather, item, piece):
    done = run("quarantine", weather, "restore", item)
    assert (done.code, done.text) == (0, f"{OTHER} is back; run `ondisk fix {weather.absolute()} --yes` to read it\n")
    assert (weather / OTHER).read_bytes() == b"x" * 35
    done = run("quarantine", weather, "restore", piece)
    assert done.code == 2
    assert f"`ondisk quarantine {weather.absolute()} export {piece} FILE`" in done.err


def test_without_yes_nothing_is_dropped(run, weather, item, piece):
    done = run("quarantine", weather, "drop", item, piece)
    assert done.code == 9
    assert done.text.splitlines()[-1] == "2 items would be dropped, 40 bytes; --yes drops them"
    assert run("quarantine", weather, "drop", item, "--json").json == {"would_drop": 1, "size": 35}
    assert run("quarantine", weather, "--json").lines[-1]["items"] == 2
    done = run("quarantine", weather, "drop", "--yes", item, piece)
    assert (done.code, done.text) == (0, "2 items dropped, 40 bytes freed\n")
    assert not (weather / "2026/.quarantine").exists()


def test_an_unknown_item_is_an_error_with_a_hint(run, weather, item):
    for arguments in (["drop", FIRST], ["drop", item, FIRST, "--yes"], ["restore", FIRST], ["export", FIRST, "x"]):
        done = run("quarantine", weather, *arguments)
        assert (done.code, done.out) == (10, b"")
        assert done.err == (
            f"ondisk: error: {weather.absolute()} has no item '{FIRST}' in quarantine\n"
            f"`ondisk quarantine {weather.absolute()}` lists all items.\n"
        )
    assert (weather / item).exists()


@pytest.mark.parametrize(
    "arguments", [["export"], ["export", "x"], ["restore"], ["restore", "x", "y"], ["drop"], ["destroy", "x"]]
)
def test_wrong_arguments_are_refused(run, weather, arguments):
    assert run("quarantine", weather, *arguments).code == 2


@pytest.mark.check
def test_of_concurrent_drops_one_succeeds(weather, item, environment):
    command = [*COMMAND, "quarantine", weather, "drop", item, "--yes"]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert sorted(each.wait(PATIENCE) for each in running) == [0, 10, 10]
