"""Whatever somebody writes into rows of the index, or does to files: each verb ends, with a result or an own error.

The other tests here say what must be reported. This one looks for what nobody has thought of.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import OndiskError
from ondisk.index import INDEX
from ondisk.maintenance.maintain import maintain

KINDS: dict[str, dict[str, Any]] = {
    "jsonl": {"format": "jsonl"},
    "seg": {"format": "seg"},
    "lz4": {"format": "seg", "compression": "lz4"},
    "blob": {"format": "blob", "unique": ["reftime", "name"]},
    "sequence": {"format": "seg", "step": "sequence", "segment_size": 200},
}
START = datetime(2026, 11, 20, tzinfo=UTC)
VALUES = (
    "-1", "0", "1", "2", "7", "77", str(2**40), str(2**63 - 1), str(-(2**63)), "NULL", "''", "'text'", "x'00ff'", "1.5",
    "'2026/11.jsonl'", "'2026/47.seg'", "'2026/11-21.jsonl'", "'2026/11-21.seg'", "'2026/11-21.blob'", "'2026/11.blob'",
    "'2026.seg'", "'3.seg'", "'../out.jsonl'", "'/etc/passwd.jsonl'", "'a/../b.seg'", "'jsonl'", "'seg'", "'blob'",
    "'vm2'", "'seg-draft'", "'{}'", "'[]'",
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset with deleted data, data that are out of order, and an archive."""
    kind = request.param
    path = tmp_path_factory.mktemp("template") / kind
    config = {"step": "daily", "fields": {"name": "text", "n": "integer"}, "index": ["name"], **KINDS[kind]}
    with ondisk.create(path, config) as dataset:
        for hours in ((6, 18), (0, 12)):
            dataset.append(made(day, hour, kind) for day in range(4) for hour in hours)
        dataset.delete("n: 1")
        if kind != "sequence":
            dataset.archive(dataset.check().segments[0].segment)
    return path


def made(day: int, hour: int, kind: str) -> Datum:
    content: Any = f"{day} {hour}".encode() if kind == "blob" else {"at": hour}
    return Datum(START + timedelta(days=day, hours=hour), {"name": f"n{hour}", "n": day}, content)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of archives and queues that are not used
@given(seed=st.integers(0, 2**32))
def test_every_verb_ends_with_a_result_or_an_error_of_ondisk(seed: int, template: Path) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="ondisk-") as room:
        path = Path(shutil.copytree(template, Path(room) / "dataset"))
        done = [chance.choice(ACTS)(path, chance) for _ in range(chance.randint(1, 3))]
        verbs = chance.sample([*VERBS], len(VERBS))
        for name in verbs:
            try:
                with contextlib.suppress(OndiskError):
                    VERBS[name](path, template.name)
            except Exception as error:
                error.add_note(f"{template.name}, seed {seed}: {done}, then {name} of {verbs}")
                raise
        with contextlib.suppress(OndiskError):  # dataset.toml may be what was cut
            ondisk.rebuild(path)
            VERBS["fix"](path, template.name)


def edit(path: Path, chance: random.Random) -> str:
    """Write a value into one row, or remove the row."""
    with closing(sqlite3.connect(path / INDEX, isolation_level=None)) as index:
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        full = [name for (name,) in index.execute(tables) if index.execute(f"SELECT count(*) FROM {name}") != (0,)]
        table = chance.choice(full)
        columns = [name for _, name, *_ in index.execute(f"PRAGMA table_info({table})")]
        rows = index.execute(f"SELECT * FROM {table}").fetchall()
        if not rows:
            return "nothing"
        row = chance.choice(rows)
        where = " AND ".join(f'"{each}" IS ?' for each in columns)
        change = f"DELETE FROM {table}"
        if chance.random() < 0.9:
            change = f'UPDATE {table} SET "{chance.choice(columns)}" = {chance.choice(VALUES)}'
        with contextlib.suppress(sqlite3.Error):  # the column is strict
            index.execute(f"{change} WHERE {where}", row)
    return f"{change} WHERE {row}"


def files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file() and not each.name.startswith(INDEX))


def cut(path: Path, chance: random.Random) -> str:
    file = chance.choice(files(path))
    os.truncate(file, size := chance.randint(0, file.stat().st_size))
    return f"{file.relative_to(path)} cut to {size}"


def flip(path: Path, chance: random.Random) -> str:
    file = chance.choice(files(path))
    content = bytearray(file.read_bytes())
    if content:
        content[at := chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        return f"{file.relative_to(path)} flipped at {at}"
    return "nothing"


def remove(path: Path, chance: random.Random) -> str:
    file = chance.choice([each for each in files(path) if each.name != "dataset.toml"])
    file.unlink()
    return f"{file.relative_to(path)} removed"


def rename(path: Path, chance: random.Random) -> str:
    file, other = chance.sample([each for each in files(path) if each.name != "dataset.toml"], 2)
    name = chance.choice([other.name, f".{file.name}.9", f"{file.name}.old", "12-31" + file.suffix, "9.seg"])
    file.rename(other.with_name(name))
    return f"{file.relative_to(path)} renamed to {other.with_name(name).relative_to(path)}"


def doubt(path: Path, chance: random.Random) -> str:
    (path / SENTINEL).touch()
    return "sentinel"


ACTS = (edit, edit, edit, edit, cut, flip, remove, rename, doubt)


def opened(ask: Callable[[ondisk.Dataset, str], object]) -> Callable[[Path, str], None]:
    def verb(path: Path, kind: str) -> None:
        with ondisk.open(path) as dataset:
            ask(dataset, kind)

    return verb


def everything(dataset: ondisk.Dataset, kind: str) -> Iterator[object]:
    yield [each.data for each in dataset.query(sort="-name")]
    yield [*dataset.query("name: n6")]
    yield [*dataset.summary_by("day")]


VERBS: dict[str, Callable[[Path, str], None]] = {
    "check": opened(lambda dataset, _: [str(each) for each in dataset.check()]),
    "check accurate": opened(lambda dataset, _: dataset.check(accurate=True)),
    "check slice": opened(lambda dataset, _: dataset.check(max_duration=10)),
    "query": opened(lambda dataset, kind: [*everything(dataset, kind)]),
    "summary": opened(lambda dataset, _: dataset.summary()),
    "info": opened(lambda dataset, _: dataset.info()),
    "changes": opened(lambda dataset, _: dataset.changes()),
    "append": opened(lambda dataset, kind: dataset.append(made(day, 3, kind) for day in range(6))),
    "delete": opened(lambda dataset, _: dataset.delete("n: 2")),
    "archive": opened(lambda dataset, _: dataset.archive(dataset.check().segments[-1].segment)),
    "repack": opened(lambda dataset, _: dataset.repack()),
    "fix": opened(lambda dataset, _: dataset.fix()),
    "maintain": lambda path, _: maintain(path) and None,
    "backup": opened(lambda dataset, _: dataset.backup(f"{dataset.path}.backup", create=True)),
}
