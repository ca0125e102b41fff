"""Open the dataset that a command works on."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import ondisk
from ondisk.cli.streams import complain
from ondisk.errors import ArchiveOffline

_REMEDY = "Run `ondisk fix {} --yes`: it rebuilds the index from the segments."


@contextlib.contextmanager
def open_dataset(path: str, *, read_only: bool = False) -> Iterator[ondisk.Dataset]:
    """Open a dataset, and warn if its index may not know all data or an archive cannot answer."""
    with ondisk.open(path, read_only) as dataset:
        if dataset.needs_check:
            problem = f"{path}: the index was lost and may not know all data: answers may be incomplete"
            complain("warning", f"{problem}\n{_REMEDY.format(path)}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ArchiveOffline)
            try:
                yield dataset
            finally:
                for message in dict.fromkeys(str(each.message) for each in caught):
                    complain("warning", message)
