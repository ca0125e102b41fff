"""The manual page docs/ondisk.1, which `make man` writes from the parser of the command."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ondisk.cli import COMMANDS, parser_of

from .conftest import PATIENCE, ROOT

PAGE = (ROOT / "docs/ondisk.1").read_text(encoding="utf-8").replace("\\-", "-")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_each_command_and_option(command):
    below = PAGE.partition(f".SS \\fBondisk {command}\\fR")[2].partition(".SS ")[0]
    assert COMMANDS[command] in below
    options = {option for action in parser_of(command)._actions for option in action.option_strings if option[1] == "-"}
    assert [option for option in options - {"--help"} if f"\\fB{option}\\fR" not in below] == [], "run `make man`"


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man")
def test_the_page_can_be_read():
    command = ["man", "--warnings", "-E", "UTF-8", "-l", ROOT / "docs/ondisk.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ondisk query" in done.stdout
