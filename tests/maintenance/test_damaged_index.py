"""Rows of the index with numbers that cannot be: answers are right, or refused, checks tell; nothing is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from worlds import datum

import ondisk
from ondisk import Datum
from ondisk.errors import IntegrityError, OndiskError, SegmentMissing
from ondisk.index import INDEX

FORMATS = ["jsonl", "seg", "blob"]

NUMBERS = ["datum.seq", "datum.reftime", "datum.segment", "datum.offset", "datum.size", "datum.f_name", "segment.id",
           "segment.size", "segment.begin", "segment.end", "segment.mtime", "segment.length", "segment.count",
           "segment.compressed", "dataset.seq", "dataset.generation", "dataset.committed_at", "deletion.datum",
           "block.offset", "block.position", "block.stored"]  # fmt: skip

VALUES = ["-1", "7", str(2**40), str(2**63 - 1), str(-(2**63)), "NULL", "'text'"]


def made(day: int, hour: int, format: str) -> Datum:
    number = 24 * day + hour
    return datum(number, hour, number, format=format, name=f"n{number}")


def numbers(dataset: ondisk.Dataset) -> Counter[str]:
    return Counter(str(each.data) for each in dataset.query())


@pytest.fixture(scope="module", params=FORMATS)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset with a hole, a segment that is OK, and one of a single datum."""
    format = request.param
    path = tmp_path_factory.mktemp("template") / format
    fields = {"station": "integer", "name": "text"}
    with ondisk.create(path, {"format": format, "step": "daily", "fields": fields, "unique": ["reftime"]}) as dataset:
        for hours in ((0, 6), (12, 18)):
            dataset.append(made(day, hour, format) for day in range(2) for hour in hours)
        dataset.append([made(5, 0, format)])
        dataset.delete("reftime:=2026-11-20 06:00:00")
    return path


def spoil(path: Path, column: str, value: str, which: str) -> bool:
    """Put a number into a row, past all that would refuse it; tells whether there was one."""
    table, name = column.split(".")
    key = "offset" if table == "block" else "rowid"
    with closing(sqlite3.connect(path / INDEX, isolation_level=None)) as index:
        (strict,) = index.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    lax = strict.replace(" NOT NULL", "").replace("STRICT", "").replace(f"{name} INTEGER", f"{name} ANY")
    for sql, statement in (
        (lax, f'UPDATE {table} SET "{name}" = {value} WHERE {key} = (SELECT {which}({key}) FROM {table})'),
        (strict, "SELECT changes()"),
    ):
        with closing(sqlite3.connect(path / INDEX, isolation_level=None)) as index:
            (version,) = index.execute("PRAGMA schema_version").fetchone()
            index.execute("PRAGMA writable_schema = ON")
            index.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, table))
            index.execute(f"PRAGMA schema_version = {version + 1}")
        with closing(sqlite3.connect(path / INDEX, isolation_level=None)) as index:
            try:
                changed = index.execute(statement).rowcount
            except sqlite3.Error:  # a key that there is, or that must be a number
                return False
            if not changed:
                return False
    return True


def gave(path: Path, ask: Callable[[ondisk.Dataset], object], *, read_only: bool = True) -> object:
    """Return an answer, or the error that says that index and disk do not agree; all others are raised."""
    try:
        with ondisk.open(path, read_only=read_only) as dataset:
            return ask(dataset)
    except (IntegrityError, SegmentMissing) as error:
        return error if error.hint else pytest.fail(f"no hint: {error}")


def whole_again(path: Path) -> Counter[str]:
    """Rebuild the index, and give what the segments hold."""
    ondisk.rebuild(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        return numbers(dataset)


@pytest.mark.parametrize(
    ("column", "which"),
    [(column, "min") for column in NUMBERS]
    + [pytest.param(column, "max", marks=pytest.mark.slow) for column in NUMBERS],
)
def test_a_number_that_cannot_be_is_reported_and_nothing_is_lost(
    column: str, which: str, template: Path, tmp_path: Path
) -> None:
    with ondisk.open(template, read_only=True) as dataset:
        stored = numbers(dataset)
    for value in VALUES:
        path = Path(shutil.copytree(template, tmp_path / value.strip("'")))
        if not spoil(path, column, value, which):
            continue
        checked = gave(path, lambda dataset: dataset.check(accurate=True))
        is_told = isinstance(checked, OndiskError) or not checked.is_clean  # type: ignore[attr-defined]
        answer = gave(path, numbers)
        if isinstance(answer, OndiskError):
            assert is_told, (value, answer)
        else:
            assert answer <= stored, value  # type: ignore[operator]
            assert answer == stored or is_told or column == "datum.f_name", value
        gave(path, lambda dataset: dataset.info())
        mended = Path(shutil.copytree(path, path.with_name("mended"), dirs_exist_ok=True))
        gave(mended, lambda dataset: dataset.fix(), read_only=False)
        gave(mended, lambda dataset: dataset.repack(), read_only=False)
        assert stored <= whole_again(mended), value
        shutil.rmtree(mended)
