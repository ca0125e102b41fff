"""`ondisk init`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import ondisk
from ondisk.datum import FieldType


def test_every_option_reaches_the_configuration(run):
    done = run(
        *("init", "new", "--format", "jsonl", "--step", "monthly", "--field", "station=integer"),
        *("--field", "update=integer", "--unique", "reftime, station", "--index", "station"),
        *("--replace", "newer", "--version-field", "update"),
    )
    assert (done.code, done.text) == (0, f"made the dataset {Path('new').absolute()}\n")
    with ondisk.open("new", read_only=True) as dataset:
        config = dataset.config
    assert (config.format, config.step) == ("jsonl", "monthly")
    assert dict(config.fields) == {"station": FieldType.INTEGER, "update": FieldType.INTEGER}
    assert (config.unique, config.index) == (("reftime", "station"), ("station",))
    assert (config.replace, config.version_field) == ("newer", "update")


def test_a_missing_option_has_its_default(run):
    assert run("init", "new", "--format", "vm2", "--step", "daily").code == 0
    with ondisk.open("new", read_only=True) as dataset:
        assert dataset.config == ondisk.DatasetConfig("vm2", ondisk.Step.DAILY)


def test_json_is_what_info_prints(run):
    made = run("init", "new", "--format", "vm2", "--step", "daily", "--json")
    assert made.json == run("info", "new", "--json").json


@pytest.mark.parametrize("name", ["weather.toml", "-"])
def test_a_configuration_can_come_from_a_file_or_standard_input(run, name):
    text = b'format = "vm2"\nstep = "daily"\nmax_depth = 5\n'
    Path("weather.toml").write_bytes(text)
    assert run("init", "new", "--config", name, stdin=text).code == 0
    with ondisk.open("new", read_only=True) as dataset:
        assert dataset.config.max_depth == 5


def test_a_configuration_that_does_not_end_is_refused_before_it_is_read(run):
    ended = run("init", "new", "--config", "/dev/zero")
    assert (ended.code, "/dev/zero is larger than 1048576 bytes" in ended.err) == (2, True)
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--format vm2", 2, "init needs --step"),
        ("--from table.csv --step daily", 2, "--from cannot be combined with --step"),
        ("--from table.csv --config weather.toml", 2, "cannot be combined"),
        ("--from weather.toml", 2, "weather.toml: no column of"),
        ("--step daily --tz UTC", 2, "--tz needs --from"),
        ("--step daily --yes", 2, "--yes needs --from"),
        ("--config weather.toml --step daily", 2, "--config cannot be combined with --step"),
        ("--config nowhere.toml", 10, "nowhere.toml: no such file"),
        (f"--from {'a' * 300}", 50, "File name too long\nCheck the path."),
        ("--config weather.toml", 3, "weather.toml, line 2: stepp"),
        ("--config latin.toml", 3, "latin.toml is not UTF-8"),
        ("--format vm2 --step minutely", 3, "must be one of daily, weekly"),
        ("--format grib3 --step daily", 3, "unknown format 'grib3'"),
        ("--format vm2 --step daily --field area", 2, "'area' is not NAME=TYPE"),
        ("--format vm2 --step daily --field area=blob", 3, "'blob' is not a type"),
        ("--format vm2 --step daily --field a=text --field a=real", 3, "declared twice"),
        ("--format vm2 --step daily --replace newer", 3, "version_field"),
        ("--format vm2 --step daily --replace maybe", 2, "invalid choice"),
    ],
)
def test_invalid_options_are_refused_and_create_nothing(run, options, code, message):
    Path("weather.toml").write_text('format = "vm2"\nstepp = "daily"\n', encoding="utf-8")
    Path("latin.toml").write_bytes(b'format = "\xff"\n')
    Path("table.csv").write_text("time,x\n2026-11-20,1\n", encoding="utf-8")
    done = run("init", "new", *options.split())
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith("ondisk: error: ")
    assert message in done.err
    assert not Path("new").exists()


def test_an_existing_dataset_is_left_alone(run, weather):
    assert run("init", weather, "--format", "vm2", "--step", "daily").code == 21


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("file", 20, "/file is not a directory"),
        ("file/new", 20, "/file is not a directory"),
        ("file/a/b/new", 20, "/file is not a directory"),
        ("link/new", 20, "/link is not a directory"),
        ("loop", 20, "/loop is not a directory"),
        ("loop/new", 20, "/loop is not a directory"),
        ("x" * 300, 2, f"nor a name in it: {'x' * 60}…, 300 bytes"),
        (f"a/{'x' * 256}/new", 2, f"nor a name in it: {'x' * 60}…, 256 bytes"),
        ("ä" * 128, 2, f"nor a name in it: {'ä' * 60}…, 256 bytes"),
        ("a/" * 2100, 2, "a path may not be so long"),
        (
            "/proc/new",
            50,
            "/proc/new cannot be created: No such file or directory\nChoose a path on another filesystem",
        ),
    ],
)
def test_a_path_where_no_directory_can_be_is_refused_and_creates_nothing(run, path, code, message):
    Path("file").write_bytes(b"something")
    Path("link").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    before = sorted(Path.cwd().iterdir())
    done = run("init", path, "--format", "vm2", "--step", "daily")
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith("ondisk: error: ")
    assert message in done.err
    assert len(done.err) < 1000
    assert sorted(each for each in Path.cwd().iterdir() if each.name != "stdin") == [
        each for each in before if each.name != "stdin"
    ]


COMMENTED = b"""\
# What the stations measure.\r
step = "daily"          # a day is delivered at once
format = 'jsonl'

[fields]
station = "integer"     # its number
"""


@pytest.mark.parametrize("name", ["weather.toml", "-"])
def test_the_comments_of_a_configuration_are_kept(run, name):
    Path("weather.toml").write_bytes(COMMENTED)
    assert run("init", "new", "--config", name, stdin=COMMENTED).code == 0
    assert Path("new/dataset.toml").read_bytes() == COMMENTED
    assert run("info", "new").code == 0


def test_a_text_of_another_configuration_is_refused_and_creates_nothing():
    with pytest.raises(ondisk.OndiskError, match="another configuration"):
        ondisk.create("new", {"step": "daily"}, text='step = "yearly"\n')
    with pytest.raises(ondisk.OndiskError, match="larger than"):
        ondisk.create("new", {"step": "daily"}, text='step = "daily"\n' + "#" * 2**20)
    assert not Path("new").exists()


def test_a_proposal_for_a_file_is_printed_and_created_with_yes(run):
    Path("table.csv").write_text("when,station,temp\n2026-11-20 06:00,5,1.5\n2026-11-20 06:00,6,1.5\n")
    done = run("init", "new", "--from", "table.csv", "--tz", "UTC")
    assert (done.code, Path("new").exists()) == (9, False)
    assert "note: new was not created; --yes creates it" in done.err
    assert "ondisk append DATASET table.csv\n" in done.text
    Path("printed.toml").write_text(done.text)
    assert run("init", "printed", "--config", "printed.toml").code == 0
    assert run("init", "new", "--from", "table.csv", "--tz", "UTC", "--json").json == {"path": "new", "toml": done.text}
    assert run("init", "new", "--from", "table.csv", "--tz", "UTC", "--yes").code == 0
    assert Path("new/dataset.toml").read_text() == Path("printed/dataset.toml").read_text() == done.text
    assert run("append", "new", "table.csv", "--time", "when", "--tz", "UTC").text.startswith("2 imported")


def test_ages_and_the_extension_of_files_are_options_and_info_prints_them(run):
    ages = ["--archive-age", "365", "--delete-age", "3650"]
    done = run("init", "photos", "--format", "blob", "--extension", "jpg", "--step", "daily", *ages)
    assert done.code == 0
    assert 'extension = "jpg"\narchive_age = 365\ndelete_age = 3650\n' in Path("photos/dataset.toml").read_text()
    with ondisk.open("photos") as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, 6, tzinfo=UTC), {}, b"x")])
    lines = run("info", "photos").text.splitlines()
    assert "archive age  365" in lines
    assert "to archive   at=2027-11-21T00:00:00Z  segments=2026/11-20.jpg" in lines
    assert run("info", "photos", "--json").json["to_delete"] == {
        "at": "2036-11-18T00:00:00Z",
        "segments": ["2026/11-20.jpg"],
    }
    assert run("init", "other", "--step", "daily", "--archive-age", "-1").code == 2
    assert run("init", "other", "--step", "daily", "--delete-age", "9999999").code == 3


def test_a_folder_is_no_file_to_propose_for(run):
    Path("photos").mkdir()
    done = run("init", "new", "--from", "photos")
    assert done.code == 2
    assert "photos is a folder" in done.err
    assert "ondisk init PATH --format blob --step daily" in done.err


@pytest.mark.parametrize(
    ("name", "text"), [("g.csv", "when,t\n2026-11-20 06:00,3\n"), ("g.jsonl", '{"when": 1, "t": 3}\n')]
)
def test_a_proposal_names_the_columns_if_that_of_the_time_does_not_exist(run, name, text):
    Path(name).write_text(text)
    done = run("init", "new", "--from", name, "--time", "whn")
    assert done.code == 2
    assert "there is no column 'whn'; the columns are 'when', 't'" in done.err


def test_a_proposal_for_a_dataset_that_exists_is_refused_as_the_real_run_is(run):
    Path("g.csv").write_text("when,t\n2026-11-20 06:00,3\n")
    assert run("init", "new", "--format", "vm2", "--step", "daily").code == 0
    one, other = (run("init", "new", "--from", "g.csv", "--tz", "UTC", *yes) for yes in ([], ["--yes"]))
    assert (one.code, one.err) == (other.code, other.err)
    assert one.code == 21
