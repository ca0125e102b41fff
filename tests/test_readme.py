"""Every code block of README.md and docs/dataset.md is run, in order, and prints what the page says.

`python` blocks are doctests, `console` blocks are commands with their output. `sh` blocks are for a checkout: their
commands must be targets of the Makefile, or activate the environment that it makes.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ondisk.config import DatasetConfig

ROOT = Path(__file__).parents[1]


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Give language and text of each code block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with the sample datasets, where `ondisk` is the code under test."""
    (tmp_path / "sample_datasets").symlink_to(ROOT / "sample_datasets")
    command = tmp_path / "bin" / "ondisk"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ondisk "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_console(text: str) -> None:
    """Run commands and compare what they print; pages call the folder they run in /data."""
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed = done.stdout.replace(str(Path.cwd()), "/data")
        assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), f"$ {command}\n{printed}"


def check_python(text: str, page: str, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
    assert test.examples
    output: list[str] = []
    failed, _ = doctest.DocTestRunner().run(test, out=output.append, clear_globs=False)
    names |= test.globs
    assert not failed, "".join(output)


def check_make(text: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = {f"make {target}" for target in re.findall(r"^(\w+):", makefile, re.MULTILINE)}
    known.add(f". {re.search(r'^VENV := (.*)$', makefile, re.MULTILINE)[1]}/bin/activate")
    for line in text.splitlines():
        assert line.partition("#")[0].rstrip() in known


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", ["README.md", "docs/dataset.md"])
def test_the_examples_print_what_the_page_says(page):
    names: dict[str, object] = {}
    for language, text in blocks(page):
        match language:
            case "console":
                check_console(text)
            case "python":
                check_python(text, page, names)
            case "sh":
                check_make(text)
            case _:
                assert text.startswith("weather/"), "only the picture of a dataset is no code"


def test_the_page_on_datasets_has_every_key_of_the_configuration():
    keys = re.findall(r"^\| `\[?(\w+)\]?` \|.*\|.*\|$", (ROOT / "docs/dataset.md").read_text(encoding="utf-8"), re.M)
    known = {field.name for field in fields(DatasetConfig)} | {"durability", "segments"}
    assert known <= set(keys)


def test_the_table_of_modules_has_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = {path.name + "/" * path.is_dir() for path in (ROOT / "ondisk").iterdir() if not path.name.startswith("_")}
    assert modules - {"py.typed"} <= set(re.findall(r"`([\w.]+/?)`", text))
