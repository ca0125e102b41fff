"""What all commands share: start-up, exit codes, pipes, locale, signals; in real processes where necessary."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import NoReturn

import pytest
from worlds import fail, lose_index

import ondisk
from ondisk.cli import COMMANDS, main, parser_of
from ondisk.errors import EXIT_OUT_OF_MEMORY

from .conftest import COMMAND, LINES, PATIENCE

HEAVY = {"sqlalchemy", "alembic", "rich", "pyarrow", "pyspark"}
# Neither UTF-8 mode nor a coerced locale: standard output is ASCII.
C_LOCALE = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
BATCH = 100_000


@pytest.fixture
def large(folder):
    """Return a dataset whose output is larger than the buffer of a pipe."""
    ondisk.create("large", {"format": "vm2", "step": "yearly"}).close()
    Path("large.vm2").write_bytes(b"202611200600,5,227,1.2,,,000000000\n" * 20_000)
    with ondisk.open("large") as dataset:
        dataset.append_file("large.vm2")
    return Path("large")


def imports_of(environment, *argv):
    """Return the heavy packages that a command imports."""
    code = (
        "import sys, ondisk.cli\n"
        "try: ondisk.cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *argv]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return HEAVY & set(done.stderr.split())


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["append", "--help"], ["query", "--help"]])
def test_help_imports_nothing_heavy(environment, argv):
    assert imports_of(environment, *argv) == set()


@pytest.mark.parametrize("argv", [[each, "weather"] for each in ("query", "summary", "info", "check", "fix", "repack")])
def test_commands_that_read_import_nothing_heavy(environment, weather, argv):
    assert imports_of(environment, *argv) == set()


@pytest.mark.parametrize(
    ("argv", "states", "count"),
    [
        (["append", "weather", "more.vm2"], set(), 4),
        (["append", "weather", "obs.vm2"], set(), 3),
        (["delete", "weather", "reftime:=2026-11-21", "--yes"], {"DELETED"}, 2),
        (["fix", "weather", "--yes"], set(), 3),
        (["repack", "weather", "--yes"], set(), 2),
        (["maintain", "weather"], set(), 2),
    ],
)
def test_commands_that_write_import_nothing_heavy(environment, weather, argv, states, count):
    Path("more.vm2").write_bytes(b"202611220600,5,227,1.2,,,000000000\n")
    if argv[0] in ("repack", "maintain"):
        with ondisk.open("weather") as dataset:
            dataset.delete("reftime:=2026-11-20; area:VM2,7")
    if argv[0] == "fix":
        (weather / "2026/11-22.vm2").write_bytes(Path("more.vm2").read_bytes())
        (weather / "2026/11-21.vm2").unlink()
    assert imports_of(environment, *argv) == set()
    with ondisk.open("weather") as dataset:
        found = {name for each in dataset.check() for name in each.state.names}
        assert (found - {"OK"}, dataset.summary().count) == (states, count)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert f"\n  ondisk {command}" in shown
    assert shown.isascii()  # it is printed in any locale


@pytest.mark.parametrize(("argv", "same"), [(["help"], ["--help"]), (["help", "query"], ["query", "--help"])])
def test_help_is_a_command_too(capsys, argv, same):
    shown = []
    for each in (argv, same):
        with pytest.raises(SystemExit) as caught:
            main(each)
        assert caught.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_that_of_the_library(start, option):
    assert start(option).text == f"ondisk {ondisk.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["qery"], "there is no command 'qery'; did you mean query?"),
        (["help", "repak"], "there is no command 'repak'; did you mean repack?"),
        (["QUERY"], "there is no command 'QUERY'; did you mean query?"),
        (["select"], "there is no command 'select'\n"),
        (["xyzzy"], "there is no command 'xyzzy'\n"),
        (["query", "weather", "--limt=3"], "unrecognized arguments: --limt=3; did you mean --limit?"),
        (["query", "weather", "--xyzzy"], "unrecognized arguments: --xyzzy\n"),
    ],
)
def test_a_mistyped_command_or_option_is_reported_what_is_similar(run, argv, said):
    done = run(*argv)
    assert (done.code, done.out) == (2, b"")
    assert said in done.err


@pytest.mark.parametrize("argv", [[], ["quer"], ["--frobnicate"], ["query"], ["info", "a", "b"]])
def test_usage_errors_end_with_2_and_name_the_help(run, argv):
    done = run(*argv)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("ondisk: error: ")
    assert "--help` for its arguments." in done.err


@pytest.mark.parametrize(
    "argv",
    [
        ["check", "--accurate", "--spark", "weather"],
        ["check", "weather", "--accurate", "--spark", "/data/weather"],
        ["fix", "--yes", "--spark", "weather"],
        ["repack", "--spark=weather", "weather"],
        ["append", "weather", "--spark", "obs.vm2"],
    ],
)
def test_spark_does_not_take_a_path_as_its_master(run, weather, argv):
    done = run(*argv)
    assert (done.code, done.out) == (2, b"")
    assert "is not a Spark master such as spark://host:7077 or local[4]; write --spark without MASTER" in done.err


@pytest.mark.parametrize(
    ("argv", "master"),
    [
        (["weather", "--spark"], ""),
        (["--spark=", "weather"], ""),
        (["--spark", "--yes", "weather"], ""),
        *(
            (["--spark", master, "weather"], master)
            for master in ("local", "local[*]", "local[4,2]", "local-cluster[2,1,1024]", "yarn")
        ),
        *((["weather", "--spark", url], url) for url in ("spark://a:7077,b:7077", "k8s://https://host:6443")),
    ],
)
def test_spark_takes_each_kind_of_master(argv, master):
    arguments = parser_of("fix").parse_intermixed_args(argv)
    assert (arguments.dataset, arguments.spark) == ("weather", master)


@pytest.mark.parametrize(
    "argv",
    [
        ["init", "", "--format", "vm2", "--step", "daily"],
        ["init", "new", "--config", ""],
        ["append", "", "obs.vm2"],
        ["append", ".", ""],
        *(["query", ""], ["summary", ""], ["delete", "", ""], ["info", ""]),
        *(["check", ""], ["fix", ""], ["repack", ""], ["maintain", ""], ["maintain", ".", "--metrics", ""]),
    ],
)
def test_an_empty_path_is_refused_and_does_not_mean_the_current_folder(run, weather, monkeypatch, argv):
    monkeypatch.chdir(weather)
    done = run(*argv)
    assert (done.code, done.out) == (2, b"")
    assert "the path is empty\n" in done.err


def test_exit_codes_are_those_of_the_process(start, weather):
    assert start("info", "nowhere").code == 11
    assert start("delete", "weather", "").code == 9


def test_a_bug_ends_with_1_and_a_traceback(environment, weather):
    code = "import sys, ondisk.cli; del ondisk.open; sys.exit(ondisk.cli.main(['info', 'weather']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "AttributeError" in done.stderr


def test_a_directory_in_the_place_of_the_index_is_an_error_that_says_what_to_do(run, weather):
    lose_index(weather)
    (weather / "index.sqlite").mkdir()
    for command in (["query", weather], ["info", weather], ["fix", weather, "--yes"]):
        done = run(*command)
        assert done.code == 50
        assert "index.sqlite is not a regular file" in done.err
        assert "Move anything else out of it." in done.err
    (weather / "index.sqlite").rmdir()
    assert run("fix", weather, "--yes").code == 0
    assert len(run("query", weather, "--json").lines) == 3


@pytest.mark.parametrize("form", ["--json", "--data"])
def test_a_reader_that_stops_early_is_not_an_error(environment, large, form):
    with subprocess.Popen(
        [*COMMAND, "query", large, form], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("argv", [["--help"], ["info", "weather"]])
def test_a_pipe_without_a_reader_is_not_an_error(environment, weather, argv):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [*COMMAND, *argv], env=environment, stdout=closed, stderr=subprocess.PIPE, timeout=PATIENCE, check=True
        )
    assert done.stderr == b""


@pytest.mark.check
def test_output_that_a_closed_stream_would_lose_is_an_error(environment, weather):
    shell = f'exec {sys.executable} -m ondisk "$@" <&- >&- 2>&-'
    cases = (["query", "weather", "reftime: =1999"], 0), (["query", "weather"], 50), (["info", "nowhere"], 11)
    for argv, code in cases:
        assert subprocess.run(["sh", "-c", shell, "sh", *argv], env=environment, timeout=PATIENCE).returncode == code
    shell = shell.removesuffix("2>&-")
    done = subprocess.run(["sh", "-c", shell, "sh", "--help"], env=environment, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 50
    assert done.stderr.startswith(b"ondisk: error: standard output: Bad file descriptor\nIt is closed.")
    with ondisk.open(weather, read_only=True) as dataset:
        assert dataset.summary().count == 3


@pytest.mark.check
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("argv", [["query", "large"], ["--help"]])
def test_results_that_cannot_be_written_are_an_error(environment, large, argv):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *argv], env=environment, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert done.returncode == 51
    assert done.stderr.startswith(b"ondisk: error: standard output: No space left on device\n")
    assert b"Exception ignored" not in done.stderr


@pytest.mark.check
def test_results_are_utf_8_in_any_locale(start, environment, jsonl):
    line = '{"reftime":"2026-11-20T06:00:00Z","text":"é","v":{"$text_bytes":"/w=="}}'.encode()
    with ondisk.open(jsonl) as dataset:
        dataset.append_file(BytesIO(line))
    assert '"text":"é"' in start("query", jsonl, "--json", env=C_LOCALE).text
    assert "text=é" in start("query", jsonl, env=C_LOCALE).text
    assert "é" in start("query", jsonl, "--table", env=C_LOCALE).text
    environment.update({"PYTHONUTF8": "", "PYTHONCOERCECLOCALE": "1"})  # the C locale as it usually is
    assert start("query", jsonl, 'text: "é"', "--data").out == line + b"\n"


@pytest.mark.check
def test_arguments_are_read_as_utf_8_in_any_locale(start, jsonl):
    lines = '{"reftime":"2026-11-20T06:00:00Z","text":"Zürich"}\n{"reftime":"2026-11-20T07:00:00Z","text":"Bern"}\n'
    path = "observations-Zürich".encode()
    posix = {**C_LOCALE, "LC_ALL": "POSIX"}
    Path(os.fsdecode(path)).write_text(lines, encoding="utf-8")
    assert start("append", jsonl, path, "--format", "jsonl", env=posix).code == 0
    done = start("query", jsonl, 'text: "Zürich" or Genève', "--data", env=posix)
    assert (done.code, done.text) == (0, lines.splitlines(keepends=True)[0])
    Path(os.fsdecode(path)).unlink()
    assert start("init", path, "--config", "lines/dataset.toml", env=posix).code == 0
    assert start("info", path, env=posix).code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_an_append_leaves_whole_batches_and_no_lock(environment, vm2, number, code):
    ondisk.create("stream", {"format": "vm2", "step": "yearly", "lock_timeout": 0}).close()
    with subprocess.Popen(
        [*COMMAND, "append", "stream", "-", "--format", "vm2", "--json"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        # A pipe buffers far less than a batch: after this write, the first of three batches is stored.
        process.stdin.write(b"202611200600,5,227,1.2,,,000000000\n" * (2 * BATCH + BATCH // 2))
        process.stdin.flush()
        process.send_signal(number)
        assert process.wait(PATIENCE) == code
        assert process.stdout.read() == b""
        error, stored, *others = process.stderr.read().decode().splitlines()
        assert error.startswith("ondisk: error: ")
        assert re.match(rf"before this, ({BATCH}|{2 * BATCH}) data were stored", stored)
        assert others == []  # nothing is unique here: a second append would store all data twice
        with Path(os.devnull).open("wb") as nowhere:  # Popen would still write to the ended process
            os.dup2(nowhere.fileno(), process.stdin.fileno())
    with ondisk.open("stream") as dataset:
        assert dataset.summary().count in (BATCH, 2 * BATCH)
        assert not dataset.needs_check
        Path("more.vm2").write_bytes(LINES)
        assert dataset.append_file("more.vm2").imported == 3


def test_an_interrupt_reports_what_was_stored_and_that_the_file_can_be_appended_again(environment, vm2):
    Path("first.vm2").write_bytes(LINES)
    with subprocess.Popen(
        [*COMMAND, "append", "weather", "first.vm2", "-", "--format", "vm2"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        # More than the pipe buffers: after this write, the first file is stored.
        process.stdin.write(b"202611200600,5,227,1.2,,,000000000\n" * (BATCH // 2))
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        error, this, others, again = process.stderr.read().decode().splitlines()
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), process.stdin.fileno())
    assert error == "ondisk: error: interrupted"
    assert this.startswith("before this, 0 data were stored")
    assert others == "of the files before -, 3 data were stored, 0 replaced; they are durable"
    assert again == "append the file again: a datum that is already stored is skipped"


@pytest.mark.check
def test_a_reader_that_does_not_read_does_not_delay_an_interrupt(environment, large):
    with subprocess.Popen(
        [*COMMAND, "query", large], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.read(1)  # it is writing, and soon the pipe is full
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_also_if_it_arrives_while_an_object_is_freed(number, code):
    """Python ignores what the handler raises then, so the signal is sent again."""
    freed = """
class Freed:
    def __del__(self):
        os.kill(os.getpid(), NUMBER)
        for _ in range(10_000):
            pass

def run(*_):
    Freed()
    time.sleep(60)

cli._run = run
sys.exit(cli.main(["info"]))
"""
    code_of = f"import os, signal, sys, time\nfrom ondisk import cli\nNUMBER = {int(number)}\n{freed}"
    done = subprocess.run([sys.executable, "-c", code_of], capture_output=True, timeout=50, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


def test_main_restores_the_handler_of_sigterm(weather):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["info", "weather"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_lack_of_memory_has_its_own_code_and_a_hint(run, weather, monkeypatch):
    def fail(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr("ondisk.cli.about.run_info", fail)
    done = run("info", weather)
    assert done.code == EXIT_OUT_OF_MEMORY
    assert done.err.startswith("ondisk: error: there is not enough memory\n")
    assert "--batch-size" in done.err


def test_a_lack_of_descriptors_for_a_module_is_an_error_of_the_system(run, weather, monkeypatch):
    """A module that is imported late cannot be opened, for example."""
    monkeypatch.setattr("ondisk.cli.about.run_info", fail(errno.EMFILE))
    done = run("info", weather)
    assert (done.code, done.err) == (
        50,
        "ondisk: error: Too many open files\nRaise the limit of open files (ulimit -n).\n",
    )
    monkeypatch.setattr("ondisk.cli.about.run_info", fail(errno.EXDEV))
    with pytest.raises(OSError, match="link"):
        run("info", weather)


def test_json_on_a_terminal_has_no_character_that_a_terminal_executes(watch, jsonl):
    evil = "a\x9b31m\u202eb\x7f\u2028é☃\U000e0001"
    with ondisk.open(jsonl) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"text": evil}, {evil: [evil]})])
    done, screen = watch("stdout", "query", jsonl, "--json")
    assert done.returncode == 0
    shown = screen.decode().removesuffix("\r\n")
    assert shown.isprintable()
    assert "é☃" in shown
    found = json.loads(shown)
    assert (found["metadata"]["text"], found["data"]) == (evil, {evil: [evil]})


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        (["query", "--json"], 3),
        (["query", "area: VM2,7", "--json"], 1),
        (["query", "weather", "area: VM2,7", "--json"], 1),
        (["summary", "--json", "area: VM2,5"], 1),
        (["check", "--json"], 1),
        (["maintain", "--json"], 1),
    ],
)
def test_a_variable_names_the_dataset_of_commands_without_one(run, weather, monkeypatch, argv, count):
    monkeypatch.setenv("ONDISK_DATASET", str(weather))
    done = run(*argv)
    assert (done.code, len(done.lines)) == (0, count)


def test_a_dataset_counts_more_than_the_variable(run, tmp_path, weather, monkeypatch):
    ondisk.create("empty", {"format": "vm2", "step": "daily"}).close()
    monkeypatch.setenv("ONDISK_DATASET", str(weather))
    assert run("query", "empty").text == ""
    assert run("append", "empty", "obs.vm2").code == 0
    assert run("append", "obs.vm2", "--json").json["duplicates"] == 3


def test_a_match_may_be_longer_than_the_name_of_a_file(run, weather, monkeypatch):
    monkeypatch.setenv("ONDISK_DATASET", str(weather))
    done = run("query", f"reftime: >=2000; {' ' * 300}", "--json")
    assert (done.code, len(done.lines)) == (0, 3)


def test_with_the_variable_a_mistyped_dataset_changes_nothing(run, weather, monkeypatch):
    monkeypatch.setenv("ONDISK_DATASET", str(weather))
    done = run("delete", "waether", "reftime: >=2000", "--yes")
    assert (done.code, done.err.split("\n")[0]) == (11, "ondisk: error: waether holds no dataset")
    assert run("append", "waether", "obs.vm2").code == 10
    for command in ("info", "query", "summary"):
        done = run(command, "waether")
        assert (done.code, done.err.split("\n")[0]) == (11, "ondisk: error: waether holds no dataset")
    assert len(run("query", "--json").lines) == 3


def test_quiet_prints_only_warnings_and_errors(run, weather):
    for argv in (["info"], ["query"], ["query", "--json"], ["append", "obs.vm2"], ["check"], ["query", "area: vm2"]):
        command, *rest = argv
        done = run(command, "--quiet", weather, *rest)
        assert (done.code, done.out, done.err) == (0, b"", "")
    done = run("query", weather, "-q", "area VM2")
    assert (done.code, done.out) == (4, b"")
    assert done.err.startswith("ondisk: error: ")
    (weather / "needs-check-do-not-pack").touch()
    done = run("query", weather, "-q")
    assert (done.code, done.out) == (9, b"")
    assert done.err.startswith("ondisk: warning: ")
    assert len(run("query", weather).text.splitlines()) == 3
