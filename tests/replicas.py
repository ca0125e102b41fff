"""What the tests of replicas share: data, and what must hold after a pull."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ondisk
from ondisk import Dataset, Datum
from ondisk.maintenance.states import State
from ondisk.replication import Pulled, Replica
from ondisk.replication.feed import Kind
from ondisk.replication.source import Source

FIRST, SECOND = "2026/11-01.jsonl", "2026/11-02.jsonl"


def datum(day: int, a: int, text: str = "x") -> Datum:
    return Datum(datetime(2026, 11, day, tzinfo=UTC), {"a": a}, {"text": text})


def numbered(dataset: Dataset) -> list[tuple[int, datetime, dict[str, Any], Any]]:
    """Return number, reftime, metadata and data of all data, as the feed has them."""
    return [(each.seq, each.datum.reftime, dict(each.datum.metadata), each.datum.data)
            for each in dataset.changes(max_bytes=2**40).changes if each.kind is Kind.APPENDED]  # fmt: skip


def content(dataset: Dataset) -> Counter[str]:
    return Counter(repr((each.reftime, dict(each.metadata), each.data)) for each in dataset.query())


def wrong(dataset: Dataset) -> list[Any]:
    """Return what an accurate check finds, besides deleted data that a repack has not removed yet."""
    found = dataset.check(accurate=True).segments
    return [each for each in found if each.state not in (State.OK, State.DIRTY, State.DELETED)]


def rot(file: Path, before: bytes, after: bytes) -> None:
    """Change bytes of a file as a disk does: nobody has written it, so it keeps its size and its time of change."""
    found, content = file.stat(), file.read_bytes()
    assert len(before) == len(after)
    with file.open("r+b") as opened:
        opened.seek(content.index(before))
        opened.write(after)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def replica_of(path: Path, source: Source | Path) -> Replica:
    """Open a replica, and create it before if there is none."""
    return (Replica.open if path.exists() else Replica.create)(path, source)


def pull(path: Path, source: Dataset | Path, **options: Any) -> Pulled:
    """Pull, and look whether the replica has what the source has."""
    where = source.path if isinstance(source, Dataset) else source
    with replica_of(path, where) as replica:
        pulled = replica.pull(**options)
    with ondisk.open(path, read_only=True) as after, ondisk.open(where, read_only=True) as before:
        assert numbered(after) == numbered(before)
        assert content(after) == content(before)
    return pulled
