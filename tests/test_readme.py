"""Every code block of README.md, twice, and of the guides in docs/ is run, and prints what the page says.

`python` blocks are doctests, `console` blocks are commands with their output. `sh` blocks are for a checkout: their
commands must be targets of the Makefile, or activate the environment that it makes. Commands in `crontab` blocks are
run as cron runs them; `ini` blocks are units, which systemd verifies.
`toml` blocks are configurations; blocks without a language are pictures.

Each guide begins with a command that makes an empty folder below demo/: nothing that another page left is there.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_architecture import FLOORS

from ondisk.config import DatasetConfig
from ondisk.maintenance.metrics import HELP as METRICS
from ondisk.maintenance.states import Report, State

ROOT = Path(__file__).parents[1]
GUIDES = [
    f"docs/{name}.md"
    for name in (
        "dataset",
        "backup",
        "choosing",
        "csv",
        "files",
        "formats",
        "maintenance",
        "python",
        "queue",
        "replication",
        "merged",
        "tables",
    )
]
LIBRARIES = {"docs/tables.md": ("pandas", "polars", "duckdb")}


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of each code block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the sample datasets, where `ondisk` is the code under test."""
    (tmp_path / "sample_datasets").symlink_to(ROOT / "sample_datasets")
    command = tmp_path / "bin" / "ondisk"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m ondisk "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(page: str) -> None:
    """Run the command that a guide begins with, in the folder of the project, and go where it leads."""
    text = (ROOT / page).read_text(encoding="utf-8")
    folder = f"demo/{Path(page).stem}"
    command = f"rm -rf {folder} && mkdir -p {folder} && cd {folder} && ln -s ../../sample_datasets ."
    assert f"\n    {command}\n" in text, f"{page} begins with another command than: {command}"
    subprocess.run(command, shell=True, check=True)
    os.chdir(folder)


def check_console(text: str) -> None:
    """Run commands and compare what they print; pages call the folder that they run in /data."""
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
    """Put the folders of this test where a page names those of a machine."""
    here, command = Path.cwd(), shutil.which("ondisk")
    assert command
    for place, ours in {"/opt/ondisk/bin": Path(command).parent, "/data": here, "/var/lib/node_exporter": here}.items():
        text = text.replace(f"{place}/", f"{ours}/")
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
        of_all = {name for name in METRICS if not name.startswith("ondisk_pending_")}  # these are of queues
        assert of_all == set(re.findall(r"^# TYPE (\w+) ", Path("ondisk.prom").read_text(encoding="utf-8"), re.M))


def check_unit(text: str) -> None:
    name = re.match(r"# /etc/systemd/system/(\S+)\n", text)[1]
    Path(name).write_text(localized(text), encoding="utf-8")
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", Path(name).absolute()], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def follow(page: str) -> None:
    """Do what a page says, from the first block to the last."""
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
            case "toml":
                DatasetConfig.from_toml(text)
            case _:
                assert text.startswith("weather/"), "only the picture of a dataset is no code"


@pytest.mark.check
def test_the_readme_can_be_followed_twice_and_leaves_nothing_outside_of_demo(place: Path) -> None:
    before = {path.name for path in place.iterdir()}
    for _ in range(2):
        follow("README.md")
    assert {path.name for path in place.iterdir()} - before == {"demo"}
    assert "demo/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.check
@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_prints_what_it_says_and_needs_no_other_page(page: str, place: Path) -> None:
    for library in LIBRARIES.get(page, ()):
        pytest.importorskip(library, reason=f"{library} is not installed: the extra `dev`")
    for _ in range(2):  # what it begins with removes what an earlier try left
        os.chdir(place)
        begin(page)
        assert [path.name for path in Path().iterdir()] == ["sample_datasets"]
        Path("left").touch()
    follow(page)
    assert {path.name for path in (place / "demo").iterdir()} == {Path(page).stem}


PAGES = [*sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")), "README.md", "CONTRIBUTING.md"]
PAGES += ["CHANGELOG.md", "SECURITY.md", "sample_datasets/README.md"]


def anchors(page: Path) -> set[str]:
    """Return what links can name in a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    here = ROOT / page
    for target, _, anchor in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", here.read_text(encoding="utf-8")):
        there = here.parent / target if target else here
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_the_readme_says_what_ondisk_is_before_it_uses_a_word_of_its_own() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    first = text[: text.index("make demo")]
    assert not re.findall(r"\b(?:VM2|Beats?|fix|segments?|repack)\b", first)
    assert all(name in first for name in ("Parquet", "Delta", "DuckDB", "SQLite", "arkimet", "borg"))
    for picture in re.findall(r'(?:srcset|src)="(\S+)"', first):
        assert ElementTree.parse(ROOT / picture).getroot().tag.endswith("svg")


def test_the_list_of_pages_has_every_page() -> None:
    text = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w-]+\.md)\]\(\1\) \|", text, re.MULTILINE)
    assert sorted([*listed, "README.md"]) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


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
    known = {*DatasetConfig._fields, "durability", "segments"}
    assert known <= set(keys)


def test_the_table_of_modules_has_every_module_in_the_order_of_the_floors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = {path.name + "/" * path.is_dir() for path in (ROOT / "ondisk").iterdir() if not path.name.startswith("_")}
    cells = re.findall(r"^\| (`.*?) \|", text[text.index("| module |") : text.index("| question |")], re.MULTILINE)
    listed = re.findall(r"`([\w.]+/?)`", " ".join(cells))
    assert modules - {"py.typed"} | {"migrations/"} == set(listed)
    names = [re.sub(r"\.py$|/$", "", name) for name in listed if name != "migrations/"]
    assert names == [floor for floor in FLOORS if not floor.startswith("_")]


def test_the_files_to_look_at_first_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text[text.index("| question |") : text.index("## Rules")]
    named = [each for cell in re.findall(r"^\| .*\? \| (.*) \|$", rows, re.MULTILINE) for each in cell.split(", ")]
    assert len(named) > 10
    assert all((ROOT / "ondisk" / name.strip("`")).is_file() for name in named)


def test_the_glossary_explains_each_word_once_in_two_lines() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\*\*.*(?:\n.+)*", text, re.MULTILINE)
    words = [re.findall(r"\*\*(.*?)\*\*", entry) for entry in entries]
    assert len(entries) > 40
    assert all(entry.count("\n") == 1 for entry in entries)
    assert len({word for some in words for word in some}) == sum(map(len, words))
    assert all(f"`{name}`" in text for name in ["OK", *(state.name for state in State)])
