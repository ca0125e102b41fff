"""`ondisk append`."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import subprocess
from pathlib import Path

import pytest
from beats import Beats, event
from worlds import lose_index, sql

import ondisk
from ondisk.cli import main

from .conftest import COMMAND, LINES, PATIENCE, ROOT

BAD = b"garbage\n" + LINES.replace(b",5,", b",9,") + b"rubbish\n"
TOTALS = ("imported", "duplicates", "replaced", "refused", "segments", "bytes")


def totals(*counts: int) -> dict[str, object]:
    return {**dict(zip(TOTALS, counts, strict=True)), "damage": [], "warnings": [], "notes": [], "kept": []}


def test_files_are_stored_and_counted_together(run, vm2):
    Path("a.vm2").write_bytes(LINES)
    Path("b.vm2").write_bytes(LINES.replace(b",7,", b",8,"))
    done = run("append", vm2, "a.vm2", "b.vm2", "--json")
    # Both files went to the same two segments.
    assert (done.code, done.json) == (0, totals(4, 2, 0, 0, 2, len(LINES) - 3 + 34))


def test_text_is_for_people(run, vm2):
    Path("a.vm2").write_bytes(LINES)
    assert run("append", vm2, "a.vm2").text == "3 imported, 0 duplicates, 0 refused; 99 bytes in 2 segments\n"
    assert run("append", vm2, "a.vm2").text == "0 imported, 3 duplicates, 0 refused; 0 bytes in 0 segments\n"


def test_standard_input_is_a_file(run, vm2):
    done = run("append", "--json", vm2, "-", stdin=LINES)
    assert (done.code, done.json["imported"]) == (0, 3)


def test_options_may_be_anywhere(run, vm2):
    Path("a").write_bytes(LINES)
    assert run("append", "--json", vm2, "--format", "vm2", "a").json["imported"] == 3


def test_the_option_then_the_extension_then_the_content_select_the_format(run, jsonl):
    for name, content in {"a.vm2": LINES, "b": LINES, "c.vm2": b'{"reftime":"2026-11-20T06:00:00Z"}\n'}.items():
        Path(name).write_bytes(content)
    assert run("append", jsonl, "a.vm2", "b").code == 0
    assert run("append", jsonl, "c.vm2").code == 8
    assert run("append", jsonl, "c.vm2", "--format", "jsonl").code == 0
    assert run("append", jsonl, "c.vm2", "--format", "grib3").code == 3


def test_refused_data_are_named_and_the_rest_is_stored(run, vm2):
    Path("bad.vm2").write_bytes(BAD)
    done = run("append", vm2, "bad.vm2", "--json")
    assert (done.code, done.json["imported"], done.json["refused"]) == (8, 3, 2)
    first, second = done.err.splitlines()
    assert first.startswith("ondisk: refused: bad.vm2: line 1: 'garbage'")
    assert second.startswith("ondisk: refused: bad.vm2: line 5: 'rubbish'")


def test_the_first_hundred_refusals_of_all_files_are_named(run, vm2):
    for name in (names := ["a.vm2", "b.vm2", "c.vm2"]):
        Path(name).write_bytes(b"x\n" * 70 + LINES)
    done = run("append", vm2, *names)
    assert done.code == 8
    assert len(done.err.splitlines()) == 101
    assert done.err.endswith("ondisk: refused: and 110 more\n")


def test_an_error_in_the_middle_reports_what_was_stored_before(run, vm2):
    Path("a.vm2").write_bytes(LINES + b"garbage\n")
    done = run("append", vm2, "a.vm2", "nowhere.vm2", "a.vm2", "--json")
    assert (done.code, done.json) == (10, totals(3, 0, 0, 1, 2, 99))
    assert "refused: a.vm2: line 4" in done.err
    assert "error: nowhere.vm2: no such file\nCheck the path.\n" in done.err


def test_an_error_inside_a_file_reports_the_batches_before(run, folder):
    ondisk.create("small", {"format": "vm2", "step": "yearly", "max_datum_size": 50}).close()
    # The first batch is complete before the line that is too long.
    Path("a.vm2").write_bytes(b"202611200600,5,227,1.2,,,000000000\n" * 100_000 + b"x" * 3_000_000)
    done = run("append", "small", "a.vm2", "--json")
    assert (done.code, done.json["imported"]) == (5, 100_000)
    assert "line 100001 is longer than 50 bytes" in done.err


def test_three_refusals_are_named_of_a_file_without_valid_data(run, vm2):
    Path("a.vm2").write_bytes(b"x\n" * 70)
    Path("b.vm2").write_bytes(b"y\n" * 3)
    Path("c.vm2").write_bytes(b"z\n" * 4 + LINES)
    done = run("append", vm2, "a.vm2", "b.vm2", "c.vm2", "--json")
    assert (done.code, done.json["refused"]) == (8, 77)
    lines = [line.removeprefix("ondisk: refused: ") for line in done.err.splitlines()]
    assert lines.pop(3) == "a.vm2: and 67 more: nothing of this file could be stored"
    named = [f"{name}.vm2: line {at}" for name, count in (("a", 3), ("b", 3), ("c", 4)) for at in range(1, count + 1)]
    assert [": ".join(line.split(": ")[:2]) for line in lines] == named


def test_the_limit_of_a_hundred_includes_files_without_valid_data(run, vm2):
    for name in (names := [f"{number}.vm2" for number in range(40)]):
        Path(name).write_bytes(b"x\n" * 4)
    done = run("append", vm2, *names)
    assert sum(": line " in line for line in done.err.splitlines()) == 100
    assert done.err.endswith("ondisk: refused: and 24 more\n")


@pytest.mark.parametrize(
    ("name", "code", "remedy"), [("nowhere", 10, "Check the path."), (".", 50, "such as a photo, write --format blob;")]
)
def test_a_file_that_cannot_be_opened_is_an_error_with_a_remedy(run, vm2, name, code, remedy):
    done = run("append", vm2, name)
    assert (done.code, done.text) == (code, "0 imported, 0 duplicates, 0 refused; 0 bytes in 0 segments\n")
    assert remedy in done.err.splitlines()[1]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no /proc")
def test_a_file_that_cannot_be_read_is_an_error(run, vm2):
    done = run("append", vm2, "/proc/self/mem")  # no memory is at address 0
    assert done.code == 50
    assert "error: /proc/self/mem: Input/output error" in done.err


@pytest.mark.parametrize(
    ("format", "meant"), [("cvs", " Did you mean csv?"), ("Parquet", " Did you mean parquet?"), ("x", "")]
)
def test_a_mistyped_format_is_an_error_that_names_all_formats_of_files(run, vm2, format, meant):
    done = run("append", vm2, "-", "--format", format, stdin=b"")
    assert done.code == 3
    assert (
        f"The formats of files are arrow, blob, bufr, csv, grib, jsonl, netcdf, odimh5, parquet, seg, vm2.{meant}\n"
        in done.err
    )


def test_a_missing_dataset_is_an_error_before_anything_is_read(run):
    done = run("append", "nowhere", "-", stdin=LINES)
    assert (done.code, done.out) == (11, b"")


def test_appending_after_the_index_was_lost_warns(run, weather):
    lose_index(weather)
    done = run("append", weather, "obs.vm2")
    assert done.code == 0
    warning, remedy = done.err.splitlines()
    assert warning.startswith("ondisk: warning: weather: ")
    assert remedy == "Run `ondisk fix weather --yes`: it rebuilds the index from the segments."


@pytest.mark.parametrize("source", ["obs.vm2", "-"])
def test_progress_is_shown_on_a_terminal_only_and_never_on_standard_output(watch, vm2, source):
    Path("obs.vm2").write_bytes(LINES)
    with Path("obs.vm2").open("rb") as stdin:
        done, shown = watch("stderr", "append", "weather", source, "--json", stdin=stdin)
    assert b"\x1b[" in shown
    assert f"{len(LINES)}".encode() in shown
    assert (done.returncode, done.stdout[:14]) == (0, b'{"imported":3,')


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_append_whose_output_nobody_reads_still_reports_refused_data(environment, vm2, unbuffered):
    environment["PYTHONUNBUFFERED"] = unbuffered
    Path("bad.vm2").write_bytes(BAD)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [*COMMAND, "append", "weather", "bad.vm2"],
            env=environment,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
        )
    assert done.returncode == 8
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


def test_main_may_be_called_from_another_thread(vm2):
    from threading import Thread

    Path("obs.vm2").write_bytes(LINES)
    codes: list[int] = []
    thread = Thread(target=lambda: codes.append(main(["append", "weather", "obs.vm2"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_damage_of_a_file_is_reported_with_place_and_bytes_and_the_rest_is_stored(run, vm2):
    cut = (ROOT / "sample_datasets/beats-queue/2.seg").read_bytes()[:1500]
    Path("cut.seg").write_bytes(cut)
    done = run("append", vm2, "cut.seg", "--json")
    (printed,) = done.lines
    assert (done.code, printed["imported"], printed["refused"]) == (8, 7, 0)
    (damage,) = printed["damage"]
    assert (damage["file"], damage["offset"], damage["size"]) == ("cut.seg", 2640, 231)
    assert damage["reason"] in done.err
    assert "ondisk: damaged: cut.seg: at byte 2640: " in done.err
    assert "; 231 bytes skipped" in done.err


def test_a_frame_count_that_is_too_high_is_a_note_and_not_an_error(run, vm2):
    source = bytearray((ROOT / "sample_datasets/beats-queue/1.seg").read_bytes())
    source[4] = 5
    Path("high.seg").write_bytes(source)
    done = run("append", vm2, "high.seg", "--format", "seg", "--json")
    assert (done.code, done.lines[0]["imported"], done.lines[0]["damage"]) == (0, 1, [])
    assert done.lines[0]["notes"] == [{"file": "high.seg", "note": "its header counts 5 frames, 1 are whole"}]
    assert "ondisk: note: high.seg: its header counts 5 frames, 1 are whole" in done.err


def test_duplicates_that_lack_what_unique_names_are_warned_about_also_when_quiet(run):
    ondisk.create(
        "typo", {"format": "jsonl", "step": "daily", "fields": {"sensor": "text"}, "unique": ["sensor"]}
    ).close()
    Path("a.jsonl").write_text("".join(f'{{"reftime":"2026-11-20T0{hour}:00:00Z"}}\n' for hour in range(4)))
    warning = "none of the 4 data has sensor, which `unique` names: only one datum without it is stored"
    assert run("append", "typo", "a.jsonl", "--quiet").err == f"ondisk: warning: a.jsonl: {warning}\n"
    done = run("append", "typo", "a.jsonl", "--json")
    assert done.json["warnings"] == [{"file": "a.jsonl", "warning": warning}]


def test_a_mistyped_field_of_files_is_warned_about(run):
    run("init", "photos", "--format", "blob", "--step", "daily", "--field", "site=text", "--unique", "reftime,site")
    Path("cam/north").mkdir(parents=True)
    for hour in range(3):
        Path(f"cam/north/20261120_0{hour}00.jpg").write_text(f"{hour}")
    done = run("append", "photos", "cam", "--format", "blob", "--time", "name:%Y%m%d_%H%M", "--field", "sit=path:1")
    assert (done.code, done.text.split(",")[0]) == (0, "3 imported")
    assert "ondisk: warning: none of the 3 data has site, which `unique` names" in done.err


def test_a_segment_of_an_unknown_version_is_named(run, vm2):
    Path("5.seg").write_bytes(struct.pack("<III", 5, 0, 0))
    done = run("append", vm2, "5.seg")
    assert done.code == 2
    assert "5.seg: unknown version 5" in done.err
    assert list(Path("weather").glob("2*")) == []


def test_an_encrypted_segment_needs_its_key(run, vm2):
    done = run("append", vm2, ROOT / "tests/golden/diskqueue/v2-enc/1.seg")
    assert done.code == 35
    assert "1.seg: there is no key of 16 bytes" in done.err
    assert list(Path("weather").glob("2*")) == []


@pytest.mark.parametrize("tool", [bz2.compress, lzma.compress, gzip.compress])
def test_a_compressed_file_of_bytes_is_refused_as_a_whole(run, jsonl, tool):
    lines = b"".join(b"20261120%02d00,9,227,1.4,,,%09d\n" % (number % 24, number) for number in range(2000))
    Path("lines.packed").write_bytes(tool(lines))
    done = run("append", jsonl, "lines.packed", "--format", "seg")
    assert done.code == 2
    assert done.err.startswith("ondisk: error: lines.packed: it is compressed with ")
    assert len(done.err) < 200


def test_batches_may_be_smaller(run, vm2):
    Path("obs.vm2").write_bytes(LINES)
    assert run("append", vm2, "obs.vm2", "--batch-size", "1", "--json").lines[0]["imported"] == 3
    for option, why in (("0", "not a whole number of 1 or more"), ("x", "not a whole number of 1 or more")):
        done = run("append", vm2, "obs.vm2", "--batch-size", option)
        assert (done.code, why in done.err) == (2, True)
    done = run("append", vm2, "obs.vm2", "--batch-size", "5", "--spark")
    assert (done.code, "--spark cannot be combined with --batch-size" in done.err) == (2, True)


def test_csv_is_no_segment_of_a_disk_queue(run, weather):
    Path("values.csv").write_text("time,station\n2026-11-20,5\n")
    done = run("append", "weather", "values.csv", "--format", "seg")
    assert (done.code, "values.csv: it is text, and no segment of a disk queue" in done.err) == (2, True)


def test_what_was_in_the_way_is_named_and_the_exit_code_is_9(run, weather, tmp_path):
    added = b"202611201200,9,227,1.4,,,000000000\n"
    with (weather / "2026/11-20.vm2").open("ab") as file:
        file.write(added)
    new = tmp_path / "new.vm2"
    new.write_bytes(b"202611201300,9,227,1.4,,,000000000\n")
    done = run("append", weather, new)
    assert done.code == 9
    (item,) = (weather / "2026/.quarantine").glob("*Z-11-20.vm2@*[0-9]")
    assert item.read_bytes() == added
    name = item.relative_to(weather)
    assert f"ondisk: warning: data were in the way, and are kept in quarantine: {name}\n" in done.err
    assert f"`ondisk quarantine {weather} export {name} FILE` copies them\n" in done.err
    done = run("append", weather, new, "--json")
    assert (done.code, done.json["duplicates"], done.json["kept"]) == (0, 1, [])
    assert run("maintain", weather).code == 0


@pytest.mark.parametrize("verb", ["append", "delete", "fix", "repack", "maintain", "archive"])
def test_what_an_opening_moves_to_quarantine_is_reported_by_each_command(run, weather, tmp_path, verb):
    """A repack was killed before its last rename, and then somebody replaced the segment."""
    segment = weather / "2026/11-20.vm2"
    ((generation,),) = sql(weather, "SELECT id FROM segment WHERE name = '2026/11-20.vm2'")
    segment.rename(segment.with_name(f".11-20.vm2.{generation}"))
    segment.write_bytes(b"202611201200,9,227,1.4,,,000000000\n")
    new = tmp_path / "new.vm2"
    new.write_bytes(b"202611211300,9,227,1.4,,,000000000\n")
    arguments = {
        "append": [new],
        "delete": ["area: VM2,9", "--yes"],
        "maintain": [],
        "archive": ["2026/11-21.vm2", "--yes"],
    }
    done = run(verb, weather, *arguments.get(verb, ["--yes"]))
    assert done.code == 9
    assert "quarantine" in done.text + done.err
    assert len([*(weather / "2026/.quarantine").glob("*Z-11-20.vm2")]) == 1
    assert b"VM2,7" in run("query", weather).out
    assert run("maintain", weather).code == 0


def test_a_queue_is_imported_and_then_only_what_is_new(run, tmp_path):
    run("init", "events", "--format", "seg", "--step", "monthly")
    queue = Beats(tmp_path / "queue")
    queue.publish(*map(event, range(30)))
    queue.acknowledge(20)
    assert run("append", "events", "--format", "diskqueue", queue.path).text.startswith("10 imported, ")
    queue.publish(event(30))
    done = run("append", "events", "--format", "diskqueue", queue.path, "--json")
    assert (done.code, done.json["imported"], done.json["notes"]) == (0, 1, [])
    assert run("append", "events", "--format", "diskqueue", queue.path).text.startswith("0 imported, ")


def test_what_beats_has_removed_is_printed_before_the_import_forgets_it(run, tmp_path, monkeypatch, capfdbinary):
    """A command that is killed after that has reported it."""
    run("init", "events", "--format", "seg", "--step", "monthly")
    queue = Beats(tmp_path / "queue")
    queue.publish(*map(event, range(5)))
    run("append", "events", "--format", "diskqueue", queue.path)
    queue.publish(*map(event, range(5, 60)))
    queue.acknowledge(50)
    append_queue, printed = ondisk.Dataset.append_queue, b""

    def watched(*arguments, **options):
        nonlocal printed
        items = append_queue(*arguments, **options)
        yield next(items)
        printed = capfdbinary.readouterr().err
        yield from items

    monkeypatch.setattr(ondisk.Dataset, "append_queue", watched)
    done = run("append", "events", "--format", "diskqueue", queue.path, "--json")
    assert (b"segments 1 to 2 were removed" in printed, "were removed" in done.err) == (True, False)
    assert "segments 1 to 2 were removed" in str(done.json["notes"])


def test_a_queue_is_imported_from_its_oldest_event_with_all(run, tmp_path):
    run("init", "events", "--format", "seg", "--step", "monthly")
    queue = Beats(tmp_path / "queue")
    queue.publish(*map(event, range(5)))
    queue.acknowledge(3)
    assert run("append", "events", "--format", "diskqueue", "--all", queue.path).text.startswith("5 imported, ")


def test_damage_in_a_queue_names_its_segment(run, tmp_path):
    run("init", "events", "--format", "seg", "--step", "monthly")
    queue = Beats(tmp_path / "queue")
    queue.publish(*map(event, range(30)))
    content = bytearray((queue.path / "1.seg").read_bytes())
    content[100] ^= 1
    (queue.path / "1.seg").write_bytes(content)
    done = run("append", "events", "--format", "diskqueue", queue.path)
    assert (done.code, f"{queue.path}/1.seg" in done.err) == (8, True)
    assert run("append", "events", "--format", "diskqueue", queue.path).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--all", "."], "--all needs --format=diskqueue"),
        (["--format", "diskqueue", "--spark", "local", "."], "--spark cannot be combined with --format=diskqueue"),
        (["--format", "diskqueue", "nothing"], "nothing: no such directory"),
        (["--format", "diskqueue", "."], ". contains no queue: it has no segments, and no state.dat"),
        (["."], "a Beats disk queue, --format diskqueue"),
    ],
)
def test_what_is_no_queue_says_so(run, vm2, arguments, message):
    done = run("append", vm2, *arguments)
    assert (done.code != 0, message in done.err) == (True, True)


TABLE = """\
when;Integer;temp
20.11.2026 06:00;5;1.5
20.11.2026 07:00;NA;-999
29.03.2026 02:30;5;1
20.11.2026 08:00;x5;1
20.11.2026 09:00;5
"""
HOW = ["--time", "when", "--time-format", "%d.%m.%Y %H:%M", "--tz", "Europe/Rome", "--null", "NA", "--null", "-999"]


@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress])
def test_rows_of_csv_are_stored_and_bad_ones_named_by_line_column_and_value(run, jsonl, pack):
    Path("table").write_bytes(pack(TABLE.encode()))
    done = run("append", jsonl, "table", "--format", "csv", "--delimiter", ";", *HOW, "--json")
    assert (done.code, done.json["imported"], done.json["refused"]) == (8, 2, 3)
    why = "2026-03-29 02:30:00 does not exist in Europe/Rome, since clocks are put forward then"
    assert [line.removeprefix("ondisk: refused: table: ") for line in done.err.splitlines()] == [
        f"line 4: column 'when': '29.03.2026 02:30': {why}",
        "line 5: column 'Integer': 'x5' is not an integer",
        "line 6: 2 cells instead of 3: 'temp' has no cell",
    ]
    assert run("query", jsonl).text.splitlines() == [
        '2026-11-20T05:00:00Z  integer=5  {"temp":1.5}',
        "2026-11-20T06:00:00Z  {}",
    ]


@pytest.mark.parametrize(
    "how",
    [
        ("--tz", "-05:00", "--null", "-999,n/a,--"),
        ("--tz=-05:00", "--null", ",--", "--null", "-999", "--null", "n/a"),
    ],
)
def test_a_zone_and_texts_without_a_value_may_begin_with_a_dash(run, jsonl, how):
    Path("table.csv").write_bytes(b"reftime,a,b,c,d\n2026-11-20 06:00,-999,n/a,--,-9\n")
    assert run("append", jsonl, "table.csv", *how).code == 0
    assert run("query", jsonl).text == '2026-11-20T11:00:00Z  {"d":-9}\n'


def test_an_option_without_its_value_takes_no_other_option_for_it(run, jsonl):
    done = run("append", jsonl, "table.csv", "--null", "--time", "when")
    assert (done.code, "argument --null: expected one argument" in done.err) == (2, True)


def test_a_table_may_come_from_standard_input_and_may_be_delimited_by_tabs(run, jsonl):
    table = b"reftime\ttemp\n2026-11-20T06:00:00Z\t1\n"
    assert run("append", jsonl, "-", "--format", "csv", "--delimiter", "tab", stdin=table).code == 0
    Path("table.tsv").write_bytes(table.replace(b"06", b"07"))
    assert run("append", jsonl, "table.tsv").text.startswith("1 imported")


def test_lines_of_json_may_have_their_time_elsewhere(run, vm2):
    lines = b'{"at":"2026-11-20 06:00","x":1}\n{"x":2}\n'
    done = run("append", vm2, "-", "--time", "at", "--tz", "UTC", stdin=lines)
    assert (done.code, "refused: -: line 2: it has no 'at'" in done.err) == (8, True)
    assert run("query", vm2).text == '2026-11-20T06:00:00Z  {"x":1}\n'


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["table.csv"], 2, "table.csv: there is no column 'reftime'; the columns are 'when;Integer;temp'"),
        (["table.csv", "--delimiter", ";;"], 2, "the delimiter must be one character"),
        (["table.csv", "--delimiter", ";", "--time", "when", "--tz", "Mars"], 2, "'Mars' is not a time zone"),
        (["table.csv", "--format", "vm2", "--tz", "UTC"], 2, "a file of the format vm2 is not a table, and has no tz"),
        (["table.csv", "--format", "diskqueue", "--tz", "UTC"], 2, "--format=diskqueue cannot be combined with --tz"),
        (["table.csv", "--time", "when", "--spark", "local"], 2, "--spark cannot be combined with --time"),
    ],
)
def test_options_of_tables_that_do_not_fit_are_refused(run, jsonl, options, code, message):
    Path("table.csv").write_text(TABLE)
    done = run("append", jsonl, *options)
    assert (done.code, message in done.err) == (code, True), done.err


def test_a_cell_may_be_longer_than_python_reads_by_default(run, jsonl):
    Path("table.csv").write_text(f"reftime,note\n2026-11-20T06:00:00Z,{'x' * 200_000}\n")
    assert run("append", jsonl, "table.csv").code == 0


def test_a_file_that_was_cut_off_is_damaged_and_what_precedes_is_stored(run, vm2):
    lines = b"".join(b"20261120%02d00,5,227,%d,,,\n" % (number % 24, number) for number in range(1000))
    Path("obs.vm2.gz").write_bytes(gzip.compress(lines)[:-1000])
    done = run("append", vm2, "obs.vm2.gz", "--json")
    assert (done.code, done.json["imported"] > 0, len(done.json["damage"])) == (8, True, 1)
    assert "ondisk: damaged: obs.vm2.gz: at byte " in done.err
    assert "the file ends before its gzip does: it was cut off" in done.err


def test_the_lines_of_query_json_are_refused_with_the_remedy_which_works(run, jsonl, folder):
    run("append", jsonl, "-", stdin=b'{"reftime":"2026-11-20T06:00:00Z","integer":5,"temp":1.5}\n')
    run("init", "copy", "--format", "jsonl", "--step", "daily", "--field", "integer=integer")
    printed = run("query", jsonl, "--json").out
    done = run("append", "copy", "-", stdin=printed)
    assert (done.code, "append what `query --data` prints" in done.err) == (8, True)
    assert run("append", "copy", "-", stdin=run("query", jsonl, "--data").out).code == 0
    assert run("query", "copy").text == run("query", jsonl).text


def test_equal_reasons_are_printed_once_with_their_number(run):
    run("init", "new", "--format", "jsonl", "--step", "daily", "--delete-age", "30")
    lines = [b'{"reftime": "2020-01-01T00:00:00Z", "n": %d}' % number for number in range(130)]
    done = run("append", "new", "-", stdin=b"\n".join([*lines, b'{"reftime": "2100-01-01T00:00:00Z"}', b""]))
    assert done.err.splitlines()[:2] == [
        "ondisk: refused: -: 100 data: it is older than delete_age, 30 days",
        "ondisk: refused: and 30 more",
    ]
