"""Find the datasets to read as one: paths, and patterns such as `archive/*`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from ondisk.dataset.layout import CONFIG, no_dataset
from ondisk.errors import InvalidInput, StorageError, shown


def paths_of(given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of datasets, each dataset once.

    `**` in a pattern matches folders inside each other; its datasets are in the order of their names.

    Raises:
        InvalidInput: a path is empty, or no path is given.
        DatasetNotFound: a path contains no dataset, or a pattern matches none.
        StorageError: a path cannot be looked at.
    """
    each = [given] if isinstance(given, str | os.PathLike) else [*given]
    if not each:
        raise InvalidInput("there are no datasets to read", hint="Pass their paths, or a pattern such as 'archive/*'.")
    found: dict[tuple[int, int], str] = {}
    for path in [os.fspath(one) for one in each]:
        if not isinstance(path, str):
            raise InvalidInput(f"the path of a dataset is a text, not {shown(path)}")
        if not path:
            raise InvalidInput("the path of the dataset is empty", hint='Write "." for the current directory.')
        for name in _datasets_at(path):
            place = Path(name).stat()
            found.setdefault((place.st_dev, place.st_ino), name)
    return [*found.values()]


def _datasets_at(path: str) -> list[str]:
    """Return the datasets at a path, or that match a pattern; raise DatasetNotFound without, or StorageError."""
    found = [path] if not is_pattern(path) else sorted(glob.glob(path, recursive=True))  # noqa: PTH207
    datasets = [name for name in found if _is_dataset(name)]
    if not datasets:
        raise no_dataset(path)
    return datasets


def _is_dataset(path: str) -> bool:
    """Return whether a path is that of a dataset; raise StorageError if it cannot be looked at."""
    try:
        return Path(path, CONFIG).exists()
    except OSError as error:
        hint = "Check the path, and your permission to read there."
        raise StorageError(f"{path}: {error.strerror}", hint=hint, errno=error.errno) from error


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards, and is not itself the name of something."""
    return glob.has_magic(path) and not os.path.lexists(path)
