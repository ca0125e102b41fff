"""A backup beside a writer, a repack and moves to the archive has one state of all of it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import pytest

import ondisk
from ondisk import Datum

START = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"step": "daily", "unique": ["reftime", "n"], "fields": {"n": "integer"}}
DAYS = 4


def datum(number: int) -> Datum:
    return Datum(START + timedelta(days=number % DAYS, seconds=number), {"n": number}, {"n": number})


@pytest.mark.check
def test_each_point_has_all_data_up_to_one_and_none_after_it(tmp_path: Path) -> None:
    path, target = tmp_path / "dataset", tmp_path / "backup"
    is_done, stored, errors = Event(), [0], list[BaseException]()
    ondisk.create(path, CONFIG).close()

    def write() -> None:
        try:
            with ondisk.open(path) as dataset:
                while not is_done.is_set():
                    dataset.append([datum(stored[0])])
                    stored[0] += 1
                    if stored[0] % 5 == 0:
                        dataset.repack()
                    if stored[0] % 7 == 0:
                        name = f"{START + timedelta(days=stored[0] % DAYS):%Y/%m-%d}.seg"
                        if (path / name).exists():
                            dataset.archive(name)
        except BaseException as error:
            errors.append(error)

    writer = Thread(target=write)
    writer.start()
    try:
        found = []
        while len(found) < 12 and not errors:
            before = stored[0]
            with ondisk.open(path, read_only=True) as dataset:
                done = dataset.backup(target, create=not found, keep=3)
            assert done.problems == []
            found.append((before, done.point, stored[0] + 1))
            ondisk.restore(target, tmp_path / "restored")
            with ondisk.open(tmp_path / "restored") as restored:
                numbers = sorted(each.metadata["n"] for each in restored.query())
                assert numbers == [*range(len(numbers))]
                assert before <= len(numbers) <= stored[0] + 1
                assert {each.action for each in restored.check(accurate=True).findings} <= {"repack"}
            shutil.rmtree(tmp_path / "restored")
    finally:
        is_done.set()
        writer.join()
    assert errors == []
