"""What each command imports. Nobody can test seconds, but a command starts at once if it imports only what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ondisk

from .conftest import LINES, PATIENCE

BEFORE = "import sys; before = {*sys.modules}"
AFTER = "print(*{*sys.modules} - before, file=sys.stderr)"
COMMAND = f"""if True:
    {BEFORE}
    import contextlib
    from ondisk.cli import main
    with contextlib.suppress(SystemExit):  # after --version
        assert main(sys.argv[1:]) == 0
    {AFTER}
"""
PROGRAM = f"{BEFORE}; import ondisk; d = ondisk.open(sys.argv[1]); next(d.query(), None); {AFTER}"
# `inspect`, with `ast`, `dis` and `tokenize`, and each class that `dataclasses` makes take as long as several modules.
# `shutil` imports all that compresses, and `textwrap` compiles long expressions; argparse takes them for help only.
SLOW = {"dataclasses", "inspect", "shutil", "textwrap"}

# What few commands need: maintenance, archives' summaries, queues, encryption, several processes, tables, networks.
RARE = (
    *("backends", "backup", "dataset.commit_staged", "dataset.exchanged", "dataset.groups"),
    *("dataset.merged", "dataset.summaries", "files", "formats.diskqueue", "index.field_values", "index.groups"),
    *("index.convert", "index.recover", "keys", "maintenance.states", "pipeline", "queue"),
    *("replication", "server", "spark", "staging", "workers"),
)
OF_WRITERS = (
    *("dataset.append", "dataset.archived", "dataset.batch_writer", "dataset.delete", "dataset.input_file"),
    *("index.atomic_change", "index.transaction", "segments.concat_writer"),
)
OF_DIR_SEGMENTS = ("frame", "segments.dir", "segments.dir_writer")
OF_READERS = (*RARE, *OF_WRITERS, *OF_DIR_SEGMENTS, "maintenance", "matcher.sort", "tables")


def loaded(program: str, *arguments: object) -> set[str]:
    """Return the modules that a process has imported between its begin and its end."""
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return set(done.stderr.split())


@pytest.fixture
def dataset(folder):
    config = {"format": "vm2", "step": "daily", "unique": ["reftime", "area"], "fields": {"area": "text"}}
    (folder / "some.vm2").write_bytes(LINES)
    (folder / "more.vm2").write_bytes(LINES.replace(b",5,", b",6,"))
    with ondisk.create(folder / "weather", config) as weather:
        weather.append_file(folder / "some.vm2")
    return folder / "weather"


def unneeded(modules: set[str], names: tuple[str, ...]) -> list[str]:
    """Return those modules that are, or are in, one of these packages and modules of ondisk."""
    return [each for each in sorted(modules) if f"{each}.".startswith(tuple(f"ondisk.{name}." for name in names))]


def own(modules: set[str]) -> set[str]:
    return {each for each in modules if each.partition(".")[0] == "ondisk"}


def test_the_version_needs_the_parser_only():
    modules = loaded(COMMAND, "--version")
    assert len(own(modules)) <= 12
    assert {each for each in own(modules) if not each.startswith("ondisk.cli")} == {"ondisk", "ondisk.errors"}
    assert not modules & SLOW


def test_a_script_of_completion_needs_the_parsers_only():
    """It has every command's options, and imports none of the modules that do the work."""
    library = {each for each in own(loaded(COMMAND, "completion", "bash")) if not each.startswith("ondisk.cli")}
    assert library == {"ondisk", "ondisk.datum", "ondisk.errors", "ondisk.named_tuple"}


@pytest.mark.parametrize("argv", [["query", "reftime: =2026-11-20"], ["query", "", "--json"]])
def test_a_query_imports_no_writers(dataset, argv):
    command, *rest = argv
    modules = loaded(COMMAND, command, dataset, *rest)
    assert "ondisk.dataset.query" in modules
    assert not unneeded(modules, OF_READERS)
    assert not modules & SLOW


def test_info_imports_no_writers(dataset):
    modules = loaded(COMMAND, "info", dataset)
    assert not unneeded(modules, ("formats.foreign", *({*OF_READERS} - {"maintenance"})))
    assert not modules & SLOW


def test_a_summary_imports_no_writers_and_not_what_merges_datasets(dataset):
    modules = loaded(COMMAND, "summary", dataset)
    assert not unneeded(modules, tuple({*OF_READERS} - {"dataset.summaries", "index.field_values"}))
    assert not modules & SLOW


def test_an_append_imports_no_queues_no_dir_segments_no_csv_and_no_maintenance(dataset):
    modules = loaded(COMMAND, "append", dataset, dataset.parent / "more.vm2")
    assert "ondisk.dataset.append" in modules
    assert "shutil" not in modules
    assert not unneeded(modules, (*RARE, *OF_DIR_SEGMENTS, "items", "tables.csv_reader"))
    assert "sqlalchemy" not in modules


def test_a_program_that_reads_one_datum_imports_no_writers_and_no_parser(dataset):
    modules = loaded(PROGRAM, dataset)
    assert not unneeded(modules, (*OF_READERS, "cli", "formats.foreign", "items", "matcher.parser", "matcher.fields"))
    assert not modules & SLOW
