"""A source and its replica, for tests that kill what follows, or compares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import ondisk
from ondisk import Dataset
from ondisk.replication import Replica

from .workload import ALL_CONFIGS, DESCRIBED, Line, datum_of

CONFIGS = {
    name: {**values, "replace": "yes"}
    for name, values in ALL_CONFIGS.items()
    if name not in ("seg sequence", *DESCRIBED)
}


@contextlib.contextmanager
def followed(room: Path, config: str, data: Sequence[Line]) -> Iterator[Dataset]:
    """Create `source` with some data, and its replica `template` with one segment in an archive; yield the source."""
    room.mkdir(exist_ok=True)
    with ondisk.create(room / "source", CONFIGS[config]) as source:
        source.append(datum_of(each, source.config.format) for each in data)
        with Replica.create(room / "template", source.path) as replica:
            replica.pull()
            name = next(each.location.segment for each in source.query(with_data=False) if each.location)
            replica.dataset.archive(name)
        yield source
