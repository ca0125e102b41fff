"""Every code block of README.md, docs/dataset.md and docs/maintenance.md is run, and prints what the page says.

`python` blocks are doctests, `console` blocks are commands with their output. `sh` blocks are for a checkout: their
commands must be targets of the Makefile, or activate the environment that it makes. Commands in `crontab` blocks are
run as cron runs them; `ini` blocks are units, which systemd verifies; `yaml` blocks are rules for metrics that exist.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ondisk.config import DatasetConfig
from ondisk.maintenance.metrics import HELP as METRICS
from ondisk.maintenance.states import Report, State

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
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m ondisk "$@"\n')
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


def localized(text: str) -> str:
    """Put the places of this test where a page names those of a machine."""
    here = str(Path.cwd())
    for place, ours in {"/opt/ondisk/bin": "/bin", "/data": "", "/var/lib/node_exporter": ""}.items():
        text = text.replace(f"{place}/", f"{here}{ours}/")
    return text


def check_crontab(text: str) -> None:
    """Run commands as cron does: by a shell, with next to no environment."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        *when, command = line.split(" ", 5)
        assert all(re.fullmatch(r"\*|[0-9]+", each) for each in when)
        assert "%" not in command, "cron would end the command there"
        done = subprocess.run(
            ["env", "-i", "sh", "-c", localized(command)], cwd="/", capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert set(METRICS) == set(re.findall(r"^# TYPE (\w+) ", Path("ondisk.prom").read_text(encoding="utf-8"), re.M))


def check_unit(text: str) -> None:
    name = re.match(r"# /etc/systemd/system/(\S+)\n", text)[1]
    Path(name).write_text(localized(text), encoding="utf-8")
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", Path(name).absolute()], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", ["README.md", "docs/dataset.md", "docs/maintenance.md"])
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
            case "crontab":
                check_crontab(text)
            case "ini":
                check_unit(text)
            case "yaml":
                assert set(re.findall(r"ondisk_\w+", text)) <= set(METRICS)
            case _:
                assert text.startswith("weather/"), "only the picture of a dataset is no code"


def test_the_page_on_maintenance_has_every_metric_and_every_state():
    text = (ROOT / "docs/maintenance.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.M) == list(METRICS)
    (labels,) = re.findall(r"^\| `ondisk_segments` \| .*: (.*) \|$", text, re.M)
    assert re.findall(r"`(\w+)`", labels) == list(Report("").counts)
    assert all(str(state.name) in text for state in State)
    states = re.findall(r"^\| ([A-Z_]+) \|", (ROOT / "docs/dataset.md").read_text(encoding="utf-8"), re.M)
    assert set(states) == {"OK", *(state.name for state in State)}


def test_the_page_on_datasets_has_every_key_of_the_configuration():
    keys = re.findall(r"^\| `\[?(\w+)\]?` \|.*\|.*\|$", (ROOT / "docs/dataset.md").read_text(encoding="utf-8"), re.M)
    known = {field.name for field in fields(DatasetConfig)} | {"durability", "segments"}
    assert known <= set(keys)


def test_the_table_of_modules_has_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = {path.name + "/" * path.is_dir() for path in (ROOT / "ondisk").iterdir() if not path.name.startswith("_")}
    assert modules - {"py.typed"} <= set(re.findall(r"`([\w.]+/?)`", text))
