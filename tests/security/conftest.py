"""A dataset to attack, and a secret outside it that must not change and must never be returned."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crash.workload import CONFIG, datum_of, line

import ondisk

LINES = [line(0, hour, 1, hour) for hour in range(10)] + [line(1, hour, 2, hour) for hour in range(10)]
SECRET = b"202611200000,666,227,666,,,000000000\n" * 20
SEGMENT, OTHER = "2026/11-20.vm2", "2026/11-21.vm2"

Edit = Callable[..., None]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a closed dataset of two segments."""
    path = tmp_path_factory.mktemp("template") / "dataset"
    with ondisk.create(path, CONFIG) as dataset:
        dataset.append(map(datum_of, LINES))
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """Copy the dataset, to attack it."""
    return Path(shutil.copytree(template, tmp_path / "dataset"))


@pytest.fixture
def edit(path: Path) -> Edit:
    """Run SQL on the index, as an attacker with sqlite3 does."""

    def edit(*statements: str) -> None:
        with closing(sqlite3.connect(path / "index.sqlite")) as index, index:
            for statement in statements:
                index.execute(statement)

    return edit


@pytest.fixture
def treasure(tmp_path: Path) -> Iterator[Path]:
    """Create a directory next to the dataset, and fail a test that changes it."""
    directory = tmp_path / "outside"
    (directory / "2026").mkdir(parents=True)
    (directory / SEGMENT).write_bytes(SECRET)
    (directory / "file").write_bytes(SECRET)
    before = {name: name.stat() for name in sorted(directory.rglob("*"))}
    yield directory
    after = {name: name.stat() for name in sorted(directory.rglob("*"))}
    assert list(after) == list(before)
    for name, stat in before.items():
        now = after[name]
        assert (now.st_size, now.st_mtime_ns, now.st_ino) == (stat.st_size, stat.st_mtime_ns, stat.st_ino), name
    assert (directory / "file").read_bytes() == (directory / SEGMENT).read_bytes() == SECRET


def use(path: Path) -> dict[str, object]:
    """Use a dataset in every way, and return each result or OndiskError; other errors are raised."""
    ways: dict[str, Callable[[ondisk.Dataset], object]] = {
        "query": lambda dataset: [each.data for each in dataset.query()],
        "query without data": lambda dataset: [each.location for each in dataset.query(with_data=False)],
        "query one": lambda dataset: [each.data for each in dataset.query(limit=1, sort="-reftime")],
        "summary": lambda dataset: dataset.summary().count,
        "read": lambda dataset: dataset.read(ondisk.Location(SEGMENT, 0, len(LINES[0]))).data,
        "append": lambda dataset: dataset.append([datum_of(line(0, 12, 5, 1)), datum_of(line(1, 12, 5, 1))]).imported,
        "info": lambda dataset: dataset.info()["count"],
        "delete": lambda dataset: dataset.delete('area:"VM2,5"'),
        "query after": lambda dataset: [each.data for each in dataset.query()],
    }
    gave: dict[str, object] = {}
    for read_only in (True, False):
        for name, way in ways.items():
            if read_only and name in ("append", "delete"):
                continue
            key = f"{name}, read only" if read_only else name
            try:
                with ondisk.open(path, read_only=read_only) as dataset:
                    gave[key] = way(dataset)
            except ondisk.OndiskError as error:
                gave[key] = error
    return gave


def errors(gave: dict[str, object]) -> dict[str, ondisk.OndiskError]:
    return {name: each for name, each in gave.items() if isinstance(each, ondisk.OndiskError)}


def nothing_came_out(gave: dict[str, object]) -> bool:
    """Return whether every returned datum was appended before."""
    known = {*LINES, line(0, 12, 5, 1), line(1, 12, 5, 1)}
    return all(set(each) <= known for name, each in gave.items() if isinstance(each, list) and "without" not in name)
