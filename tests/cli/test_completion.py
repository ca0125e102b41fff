"""`ondisk completion`."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ondisk.cli import COMMANDS, about
from ondisk.dataset.input_file import CSV, TABLES
from ondisk.index.groups import PERIODS
from ondisk.step import Step

from .conftest import PATIENCE


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_each_command_and_is_valid(run, folder, shell):
    done = run("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert all(name in done.text for name in COMMANDS)
    assert "-limit" in done.text
    if (program := shutil.which(shell)) is not None:
        (folder / "script").write_bytes(done.out)
        subprocess.run([program, "-n", "script"], check=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("ondisk qu", {"query", "quarantine"}),
        ("ondisk query --js", {"--json"}),
        ("ondisk info we", {"weather"}),
        ("ondisk init x --step w", {"weekly"}),
        ("ondisk append x --format p", {"parquet"}),
        ("ondisk summary x --by m", {"month"}),
    ],
)
def test_bash_completes_commands_options_and_datasets(run, folder, typed, completed):
    (folder / "weather").mkdir()
    (folder / "weather.vm2").touch()
    script = run("completion", "bash").text
    words = typed.split(" ")
    ask = f"COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1} COMP_LINE='{typed}' COMP_POINT={len(typed)}"
    ask = f"{script}\n{ask}\n_shtab_ondisk\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert {each.rstrip("/ ") for each in done.stdout.splitlines()} == completed


def test_another_shell_is_refused(run):
    done = run("completion", "cmd")
    assert done.code == 2
    assert "invalid choice: 'cmd'" in done.err


def test_the_values_that_are_completed_are_those_of_the_library():
    assert about._VALUES["init"]["step"] == tuple(Step)
    assert {CSV, *TABLES} < set(about._VALUES["append"]["format"])
    assert about._VALUES["summary"]["by"] == PERIODS
