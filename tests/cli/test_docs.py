"""docs/cli.md has every command and option, and its examples are run; docs/cli-json.md has every key, and no other."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ondisk
from ondisk.cli import COMMANDS, parser_of
from ondisk.json_values import parse_time
from ondisk.replication import Replica, token
from ondisk.replication.token import Entry, Token

from .conftest import PATIENCE, ROOT

PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
SHAPES = (ROOT / "docs/cli-json.md").read_text(encoding="utf-8")
BEGIN = "rm -rf demo/cli && mkdir -p demo/cli && cd demo/cli && ln -s ../../sample_datasets ."
CUT = (ROOT / "sample_datasets/beats-queue/2.seg").read_bytes()[:1500]
ITEM = "2026/.quarantine/20261122T141307.123456Z-11-22.vm2"
COMMAND_LINES = {
    "query": "query weather",
    "query --also": "query weather --also pulled",
    "append": "append typo cut.seg cut.seg",
    "summary": "summary weather",
    "summary --by": "summary weather --by day --min-max reftime",
    "summary --plot": "summary weather --by day --plot days.svg",
    "scan": "scan weather/2026/11-20.vm2",
    "formats": "formats",
    "query --to": "query weather --to out --name {reftime}_{area}",
    "delete": "delete weather area:VM2,5",
    "delete --yes": "delete weather area:VM2,5 --yes",
    "ack": "ack queue --count 2",
    "ack --yes": "ack queue --count 2 --yes",
    "info": "info pulled",
    "check": "check damaged",
    "fix": "fix damaged",
    "repack": "repack damaged",
    "adopt": "adopt spool",
    "adopt --yes": "adopt spool --yes",
    "fix --yes": "fix damaged --yes",
    "repack --yes": "repack damaged --yes",
    "archive": "archive weather 2026/11-20.vm2",
    "unarchive": "unarchive archived 2026/11-20.vm2",
    "maintain": "maintain damaged",
    "quarantine": "quarantine kept",
    "quarantine export": f"quarantine kept export {ITEM} item.vm2",
    "quarantine restore": f"quarantine kept restore {ITEM}",
    "quarantine drop": f"quarantine kept drop {ITEM}",
    "quarantine drop --yes": f"quarantine kept drop {ITEM} --yes",
    "backup": "backup damaged saved --create",
    "restore PATH": "restore broken again",
    "restore": "restore broken --verify",
    "replicate": "replicate torn copy --create",
    "replicate --verify": "replicate torn pulled --verify",
    "replicate --reconcile": "replicate weather replica --reconcile",
    "replicate --heal": "replicate torn pulled --heal --yes",
    "promote": "promote replica",
    "token show": "token show replica.tokens",
    "token show --layout ambry": "token show replicaTokens --layout ambry",
    "token verify": "token verify replica.tokens",
    "migrate": "migrate changed",
}
LISTS = (
    "warnings",
    "damage",
    "problems",
    "notes",
    "done",
    "findings",
    "remaining",
    "offenders",
    "differences",
    "stored",
)
OBJECTS = ("summary", "quarantine", "replaced", "lag", "source", "to_archive", "to_delete")
TYPES = {
    "integer": int,
    "number": float,
    "text": str,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def section(text: str, title: str) -> str:
    """Return the text below a heading, which may name several commands."""
    sections = re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", text, re.MULTILINE)
    (found,) = [below for heading, below in sections if title in heading.split(", ")]
    return found


SHARED = {"-h", "--help", "-q", "--quiet"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_exactly_the_options_of_a_command(command):
    text = section(PAGE, f"ondisk {command}")
    options = {option for action in parser_of(command)._actions for option in action.option_strings}
    arguments = {action.metavar for action in parser_of(command)._actions if not action.option_strings}
    usage = "\n".join(re.findall(r"^    .*", text, re.MULTILINE))
    assert options - SHARED == set(re.findall(r"--[a-z-]+", usage))
    assert all(argument in usage for argument in arguments)
    described = set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE))
    assert not described or described == options - SHARED
    assert f"[ondisk {command}](#ondisk-{command})" in PAGE


def steps() -> Iterator[tuple[str, str]]:
    """Yield the commands of the page, and what they print."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = step.splitlines(keepends=True)
            length = next(at for at, line in enumerate(lines, 1) if not line.endswith("\\\n"))
            yield "".join(lines[:length]), "".join(lines[length:])


@pytest.mark.check
def test_the_examples_print_what_the_page_says(folder, environment):
    assert f"\n    {BEGIN}\n" in PAGE
    (folder / "sample_datasets").symlink_to(ROOT / "sample_datasets")
    # One shell for the whole page, so that `echo $?` prints the code of the command before.
    script = [f'ondisk() {{ {sys.executable} -m ondisk "$@"; }}', BEGIN]
    for command, _ in steps():
        script.append(f"{command.rstrip()}\ncode=$?; printf '\\0'; (exit $code)")
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)],
        env={**environment, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    printed = done.stdout.replace(str(folder / "demo/cli"), "/data").split("\0")[:-1]
    assert len(printed) == len(list(steps())) > 20
    checker = doctest.OutputChecker()
    for (command, expected), got in zip(steps(), printed, strict=True):
        shown = re.sub(r" +$", "", got, flags=re.MULTILINE)
        assert checker.check_output(expected, shown, doctest.ELLIPSIS), f"$ {command}{got}"


def keys(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a printed object as the page names them, with their values."""
    for key, each in value.items():
        yield prefix + key, each
        if key == "location":
            yield from keys(each, "location.")
        if key in LISTS and isinstance(each, list):
            yield from keys(each[0], f"{key}[].")
        if key in OBJECTS and isinstance(each, dict):
            yield from keys(each, f"{key}.")
        if prefix == "" and key == "fields" and isinstance(each, dict) and "distinct" in next(iter(each.values())):
            for field in each.values():
                yield from keys(field, "fields.*.")
        if key == "values" and prefix == "fields.*.":
            yield from keys(each[0], f"{prefix}values[].")


def is_of_type(value: Any, kind: str) -> bool:
    if kind == "time":
        return isinstance(value, str) and isinstance(parse_time(value), int)
    return kind == "any" or type(value) is TYPES[kind]


@pytest.fixture
def changed(weather):
    """Create a dataset whose configuration was changed, so that data violate it."""
    shutil.copytree(weather, "changed")
    text = 'format = "vm2"\nstep = "daily"\nunique = ["product"]\n[fields]\nproduct = "text"'
    Path("changed/dataset.toml").write_text(text, encoding="utf-8")


@pytest.fixture
def archived(weather):
    """Create a dataset with a segment in its archive."""
    shutil.copytree(weather, "archived")
    with ondisk.open("archived") as dataset:
        dataset.archive("2026/11-20.vm2")


@pytest.fixture
def kept(weather):
    """Create a dataset with an item in quarantine, which lacks its record."""
    shutil.copytree(weather, "kept")
    Path("kept", ITEM).parent.mkdir()
    Path("kept", ITEM).write_bytes(b"x")


@pytest.fixture
def damaged(weather):
    """Create a second dataset, with a segment that fix and repack mend, and another that they don't."""
    shutil.copytree(weather, "damaged")
    Path("damaged/2026/11-20.vm2").write_bytes(b"")
    Path("damaged/2026/11-21.vm2").unlink()


@pytest.fixture
def broken(damaged):
    """Create a backup with a damaged copy."""
    with ondisk.open("weather", read_only=True) as dataset:
        dataset.backup("broken", create=True)
    for copy in Path("broken/segments/dataset/2026").glob("11-20.*"):
        copy.write_bytes(b"x")


@pytest.fixture
def spool(folder):
    """Copy a queue of Beats."""
    shutil.copytree(ROOT / "sample_datasets/beats-queue", "spool")


@pytest.fixture
def tokens(folder):
    """Create token files of both layouts."""
    token.update("replica.tokens", [Entry(Token("source", 1, 2, 3, b"key"), "replica")])
    shutil.copy(ROOT / "tests/golden/ambry/v1_multi_v3_tokens.bin", "replicaTokens")


@pytest.fixture
def replica(weather):
    """Create two replicas, and a source with a segment that is missing."""
    Replica.create("replica", "weather").close()
    with Replica.create("pulled", "weather") as pulled:
        pulled.pull()
    toml = Path("pulled/dataset.toml")
    toml.write_text(f"archive_age = 9999\ndelete_age = 99999\n{toml.read_text()}")
    shutil.copytree(weather, "torn")
    Path("torn/2026/11-20.vm2").unlink()


@pytest.fixture
def queue(folder):
    """Create a queue."""
    with ondisk.create("queue", {"step": "sequence"}) as dataset:
        dataset.append_file(ROOT / "sample_datasets/beats-queue/2.seg")


@pytest.fixture
def typo(folder):
    """Create a dataset whose data lack what `unique` names."""
    ondisk.create(
        "typo", {"format": "seg", "step": "daily", "fields": {"sensor": "text"}, "unique": ["sensor"]}
    ).close()


@pytest.mark.parametrize("title", COMMAND_LINES)
@pytest.mark.usefixtures(
    "queue", "typo", "spool", "damaged", "broken", "archived", "changed", "kept", "tokens", "replica"
)
def test_the_shapes_are_what_the_command_prints(run, title):
    Path("cut.seg").write_bytes(CUT[:4] + b"\x15" + CUT[5:])  # and its frame count is too high
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", section(SHAPES, title), re.MULTILINE)
    printed = [pair for line in run(*COMMAND_LINES[title].split(), "--json").lines for pair in keys(line)]
    assert {field for field, _ in printed} == dict(rows).keys()
    for field, value in printed:
        assert any(is_of_type(value, kind) for kind in dict(rows)[field].split(" or ")), field


def test_every_command_with_json_has_its_shape():
    with_json = {name for name in COMMANDS if "--json" in parser_of(name)._option_string_actions}
    elsewhere = {"init", "pipeline", "serve"}  # tests/spark/test_pipeline.py, tests/cli/test_serve.py
    assert with_json == {title.partition(" ")[0] for title in COMMAND_LINES} | elsewhere


def test_the_exit_codes_of_all_errors_are_on_the_page():
    from ondisk import errors

    text = section(PAGE, "What all commands share")
    first = {int(code) for row in re.findall(r"^\| ([0-9 …]+) \|", text, re.MULTILINE) for code in row.split()[:1]}
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.OndiskError)]
    tens = {kind.exit_code // 10 * 10 for kind in kinds} - {0}
    assert tens <= first
    assert {value for name, value in vars(errors).items() if name.startswith("EXIT_")} - {143} <= first
