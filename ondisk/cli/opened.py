"""The dataset that a command works on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ondisk
from ondisk.cli.output import complain


@contextlib.contextmanager
def opened(path: str, *, read_only: bool = False) -> Iterator[ondisk.Dataset]:
    """Open a dataset, and warn where its index may not know all data."""
    with ondisk.open(path, read_only) as dataset:
        if dataset.needs_check:
            complain("warning", f"{path}: the index was lost and may not know all data: answers may be incomplete")
        yield dataset
