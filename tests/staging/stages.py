"""Data that are staged, and committed, by the tests of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

from sums import wrong_sums

from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.maintenance.states import State
from ondisk.staging.jobs import STAGED
from ondisk.staging.stage import Stage

T = datetime(2026, 11, 20, tzinfo=UTC)

CONFIG = {"step": "daily", "unique": ["reftime", "station"], "fields": {"station": "text", "version": "integer"}}

FORMATS = ["jsonl", "seg", "blob"]


def stage(dataset, data, name="0", job="job", format=None, mark=None, size=3):
    """Stage data as a worker does, in small batches."""
    format = find(format or dataset.config.format)(dataset.config)
    with Directory.open(dataset.path) as directory, Stage(directory, dataset.config, job, name) as stage:
        for begin in range(0, len(data), size):
            stage.add(format.encode(data[begin : begin + size]), format)
        return stage.finish(mark)


def commit(dataset, *parts, **options):
    """Stage parts, each by itself, and commit them."""
    return dataset.append_staged("job", [stage(dataset, part, str(at)) for at, part in enumerate(parts)], **options)


def counts(result):
    return result.imported, result.duplicates, result.replaced


def check_sound(dataset):
    """All rows are where they say, numbers are in order, and nothing is left of what was staged."""
    report = dataset.check(accurate=True)
    assert [each for each in report.findings if each.state & ~(State.DIRTY | State.DELETED)] == []
    assert [*dataset.path.glob(f"{STAGED}/*")] == []
    with closing(sqlite3.connect(f"file:{dataset.path}/index.sqlite?mode=ro", uri=True)) as index:
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [(last, highest)] = index.execute("SELECT seq, (SELECT max(seq) FROM datum) FROM dataset").fetchall()
        assert highest is None or highest <= last
    assert wrong_sums(dataset.path) == []
