"""Whatever is asked of a dataset whose index is damaged, the error names the index and the command that repairs it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from worlds import datum

import ondisk
from ondisk.errors import IndexCorrupt, OndiskError
from ondisk.index import INDEX

PAGE = 4096
DAYS, ARCHIVED, LOT = 6, 3, 200
FIELDS = {"station": "integer", "name": "text"}
WHOLE = {"reftime": datum(1).reftime, "station": 1}, {"reftime": datum(24 * ARCHIVED + 1).reftime, "station": 1}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset with an archive, and an index of many pages."""
    path = tmp_path_factory.mktemp("template") / "weather"
    config = {"format": "jsonl", "step": "daily", "fields": FIELDS, "unique": ["reftime", "station"]}
    with ondisk.create(path, config) as dataset:
        for day in range(DAYS):
            dataset.append(
                datum(24 * day + number % 24, number, number, name=f"{day} {number}" * 8) for number in range(LOT)
            )
        dataset.archive(*(each.segment for each in list(dataset.check())[:ARCHIVED]))
        dataset.append([datum(1, LOT), datum(24 * ARCHIVED, LOT)])  # one into a segment that is archived
        dataset.delete("station: 5")
    return path


def pages(path: Path) -> int:
    return (path / INDEX).stat().st_size // PAGE


def zero(path: Path, first: int, last: int) -> None:
    """Overwrite some pages of an index."""
    for suffix in ("-wal", "-shm"):
        (path / f"{INDEX}{suffix}").unlink(missing_ok=True)
    with (path / INDEX).open("rb+") as file:
        file.seek(first * PAGE)
        file.write(bytes((last - first) * PAGE))


def more() -> Iterator[ondisk.Datum]:
    return (datum(24 * day, LOT + 1 + day, name="more") for day in range(DAYS))


VERBS: dict[str, Callable[[ondisk.Dataset], object]] = {
    "query": lambda dataset: list(dataset.query()),
    "sorted query": lambda dataset: list(dataset.query(sort="day:name")),
    "query by a field": lambda dataset: list(dataset.query("name: 4 7 or 1 7")),
    "query without data": lambda dataset: list(dataset.query(with_data=False)),
    "payloads": lambda dataset: list(dataset.payloads()),
    "look-up": lambda dataset: [list(dataset.query(**key)) for key in WHOLE],
    "summary": lambda dataset: dataset.summary(),
    "info": lambda dataset: dataset.info(),
    "append": lambda dataset: dataset.append(more()),
    "delete": lambda dataset: dataset.delete("station: 7"),
    "delete all": lambda dataset: dataset.delete(""),
    "check": lambda dataset: dataset.check(),
    "check --accurate": lambda dataset: dataset.check(accurate=True),
    "fix": lambda dataset: dataset.fix(),
    "repack": lambda dataset: dataset.repack(),
    "archive": lambda dataset: dataset.archive("2026/11-20.jsonl"),
    "unarchive": lambda dataset: dataset.unarchive("2026/11-21.jsonl"),
}


def error_of(path: Path, verb: Callable[[ondisk.Dataset], object]) -> OndiskError | None:
    try:
        with ondisk.open(path) as dataset:
            verb(dataset)
    except OndiskError as error:
        return error
    return None


def check_named(error: OndiskError, path: Path) -> None:
    """The error names the index and the command."""
    assert isinstance(error, IndexCorrupt), error
    assert str(path / INDEX) in error.message
    assert f"moves {path}/index.sqlite aside" in error.hint
    assert f"`ondisk fix {path} --rebuild --yes`" in error.hint


@pytest.mark.check
@pytest.mark.parametrize("verb", VERBS)
def test_a_damaged_index_is_named_whatever_is_asked(verb: str, template: Path, tmp_path: Path) -> None:
    count = pages(template)
    half = count // 2
    named = 0
    for first, last in [(0, half), (half, count), *((page, page + 1) for page in range(count))]:
        path = Path(shutil.copytree(template, tmp_path / "weather"))
        zero(path, first, last)
        error = error_of(path, VERBS[verb])
        if error is not None:
            named += 1
            check_named(error, path)
        shutil.rmtree(path)
    assert named >= 2


def test_maintain_names_the_damaged_index(template: Path, tmp_path: Path) -> None:
    from ondisk.maintenance.maintain import maintain

    path = Path(shutil.copytree(template, tmp_path / "weather"))
    zero(path, pages(path) // 2, pages(path))
    result = maintain(path)
    assert isinstance(result.error, OndiskError)
    assert result.exit_code == 63
    check_named(result.error, path)


@pytest.mark.parametrize(
    "change",
    ["UPDATE segment SET length = 7", "UPDATE segment SET name = '2026/11-20.xyz'", "UPDATE datum SET size = -1"],
)
def test_rows_that_cannot_be_are_named_by_their_index(change: str, template: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(template, tmp_path / "weather"))
    table = change.split()[1]
    with closing(sqlite3.connect(path / INDEX)) as index, index:
        index.execute(f"{change} WHERE rowid = (SELECT max(rowid) FROM {table})")
    error = error_of(path, VERBS["query"])
    assert error is not None
    check_named(error, path)


def test_the_hint_repairs_what_it_names(template: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(template, tmp_path / "weather"))
    with ondisk.open(path) as dataset:
        count = dataset.summary().count
    zero(path, pages(path) // 2, pages(path))
    ondisk.rebuild(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert dataset.summary().count >= count
        assert dataset.info()["archives"] == ["last"]
