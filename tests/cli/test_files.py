"""`ondisk append --format blob` and `ondisk query --to`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ondisk

TIME = ("--format", "blob", "--time", "name:%Y%m%d_%H%M")
IN = ("append", "photos", "camera", *TIME, "--field", "site=path:1")
NAME = ("--name", "{reftime:%Y%m%d_%H%M}_{site}.jpg")


@pytest.fixture(autouse=True)
def photos(folder):
    """Create a dataset for photos, and a folder with two."""
    config = {"format": "blob", "step": "daily", "unique": ["reftime", "site"], "fields": {"site": "text"}}
    ondisk.create("photos", config).close()
    for site in ("north", "south"):
        Path("camera", site).mkdir(parents=True)
        Path(f"camera/{site}/20261120_1200.jpg").write_text(site)


def test_a_folder_goes_in_and_comes_out(run):
    assert run(*IN).text == "2 imported, 0 duplicates, 0 refused; 10 bytes in 1 segment\n"
    assert run(*IN).text == "0 imported, 2 duplicates, 0 refused; 0 bytes in 0 segments\n"
    done = run("query", "photos", "--to", "out", *NAME)
    assert (done.code, done.text) == (0, "out: 2 files written, 0 already there, 0 refused; 10 bytes\n")
    assert Path("out/20261120_1200_north.jpg").read_text() == "north"
    assert run("query", "photos", "site: south", "--to", "again").code == 0
    assert Path("again/south/20261120_1200.jpg").read_text() == "south"
    assert not Path("again/north").exists()


def test_times_in_names_may_be_local(run):
    run(*IN, "--tz", "Europe/Rome")
    assert [each["reftime"] for each in run("query", "photos", "--json").lines] == ["2026-11-20T11:00:00Z"] * 2


def test_what_is_refused_is_named_and_ends_with_8(run):
    os.mkfifo("camera/fifo")
    Path("camera/.hidden").touch()
    Path("camera/north/photo\x1b.jpg").touch()
    done = run(*IN, "--json")
    assert (done.code, done.json["imported"], done.json["refused"]) == (8, 2, 2)
    assert done.json["notes"] == [{"file": "camera", "note": "skipped: 1 hidden, 0 unfinished"}]
    assert done.err.splitlines() == [
        "ondisk: refused: camera/fifo: it is not a regular file; links are not followed",
        "ondisk: refused: camera/north/photo\\x1b.jpg: its name has no time of the form %Y%m%d_%H%M",
        "ondisk: note: camera: skipped: 1 hidden, 0 unfinished",
    ]


def test_a_name_with_a_newline_is_no_message_of_its_own(run):
    Path("camera/north/20261120_9999\nondisk: error: forged.jpg").touch()
    run(*IN)
    refused = (
        "camera/north/20261120_9999\\nondisk: error: forged.jpg: '20261120_9999' in its name is an impossible time"
    )
    assert run(*IN).err.splitlines() == [f"ondisk: refused: {refused}"]


def test_an_error_reports_the_files_before_it(run):
    done = run("append", "photos", "camera", "nowhere", *TIME, "--field", "site=path:1")
    assert (done.code, done.text) == (10, "2 imported, 0 duplicates, 0 refused; 10 bytes in 1 segment\n")
    assert done.err == "ondisk: error: nowhere: no such file or folder\nCheck the path.\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--format blob", "does not contain its time\nWrite --time name:"),
        ("--field site=path:1", "--field needs --format=blob"),
        ("--format blob --time mtime --delimiter ;", "--format=blob cannot be combined with --delimiter"),
        ("--format blob --time mtime --field site", "'site' is not NAME=PART"),
        ("--format blob --time mtime --field site=name --field site=path", "a field is given twice"),
        ("--format blob --time mtime --tz UTC", "mtime is in UTC"),
        ("--format blob --time mtime -", "standard input is no file"),
        ("--format blob --time now", "'now' does not say where the time of a file is"),
    ],
)
def test_options_that_do_not_fit_are_an_error(run, options, problem):
    done = run("append", "photos", "camera", *options.split())
    assert done.code == 2
    assert problem in done.err


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        ("--name {site}", 2, "--name needs --to\nWrite --to, too"),
        ("--to out --data", 2, "--to cannot be combined with --data"),
        ("--to out --table", 2, "--to cannot be combined with --table"),
        ("--to out --fields site", 2, "--to cannot be combined with --fields"),
        ("--to out --name {sit", 2, "is not a template for names"),
        ("--to out --name {reftime:%Y}", 2, "two data would be '2026'"),
        ("--to out --name {sitename}.jpg", 2, "no datum has 'sitename'\nThe data have path, reftime, site."),
        ("--to photos/out", 2, "is in the dataset"),
        ("--to photos/dataset.toml", 2, "is in the dataset"),
        ("--to camera/north/20261120_1200.jpg", 20, "is not a folder"),
    ],
)
def test_an_export_that_is_not_possible_is_an_error(run, options, code, problem):
    run(*IN)
    done = run("query", "photos", *options.split())
    assert (done.code, done.out) == (code, b"")
    assert problem in done.err


def test_an_export_that_refuses_a_datum_ends_with_8(run):
    run(*IN)
    Path("out").mkdir()
    Path("out/20261120_1200_north.jpg").write_text("mine")
    done = run("query", "photos", "--to", "out", *NAME, "--json")
    assert (done.code, done.json) == (8, {"to": "out", "exported": 1, "present": 0, "refused": 1, "bytes": 5})
    assert "ondisk: refused: the datum of 2026-11-20T12:00:00Z (2026/11-20.blob, 0): " in done.err
    assert Path("out/20261120_1200_north.jpg").read_text() == "mine"


@pytest.mark.check
def test_an_export_of_a_mistaken_match_gets_a_note(run):
    run(*IN)
    done = run("query", "photos", "site: North", "--to", "out")
    assert (done.code, done.text) == (0, "out: 0 files written, 0 already there, 0 refused; 0 bytes\n")
    assert "case matters; there is `north`" in done.err


def test_a_damaged_datum_ends_an_export_after_the_files_before_it(run):
    run(*IN)
    Path("photos/2026/11-20.blob/000001.blob").write_text("SOUTH")
    done = run("query", "photos", "--to", "out", *NAME)
    assert (done.code, done.text) == (61, "out: 1 file written, 0 already there, 0 refused; 5 bytes\n")
