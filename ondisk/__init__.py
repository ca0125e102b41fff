"""Datasets on disk: segment files of data by time, with one SQLite index.

with ondisk.create("weather", {"format": "vm2", "step": "daily", "fields": {"area": "text"}}) as dataset:
    dataset.append_file("observations.vm2")
    for datum in dataset.query("reftime:>=2026-11-01; area:VM2,5"):
        print(datum.reftime, datum.metadata, datum.data)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ondisk.errors import OndiskError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from ondisk.backup.restore import restore
    from ondisk.config import ConfigDict, DatasetConfig
    from ondisk.dataset.append import AppendResult, Outcome
    from ondisk.dataset.dataset import Dataset
    from ondisk.dataset.merged import Merged
    from ondisk.dataset.summaries import Summary
    from ondisk.datum import Datum, FieldType, Location
    from ondisk.index.field_values import FieldSummary
    from ondisk.index.groups import Group
    from ondisk.maintenance.damaged_index import rebuild
    from ondisk.maintenance.migrate import migrate
    from ondisk.maintenance.states import Report
    from ondisk.step import Step

__version__ = "0.1.0"
__all__ = [
    "AppendResult",
    "ConfigDict",
    "Dataset",
    "DatasetConfig",
    "Datum",
    "FieldSummary",
    "FieldType",
    "Group",
    "Location",
    "Merged",
    "OndiskError",
    "Outcome",
    "Step",
    "Summary",
    "adopt",
    "create",
    "merged",
    "migrate",
    "open",
    "rebuild",
    "restore",
]

# Each is imported when it is first used, so that `import ondisk` and `ondisk --help` are fast.
_MODULES = {
    "AppendResult": "ondisk.dataset.append",
    "ConfigDict": "ondisk.config",
    "Dataset": "ondisk.dataset.dataset",
    "DatasetConfig": "ondisk.config",
    "Datum": "ondisk.datum",
    "FieldSummary": "ondisk.index.field_values",
    "FieldType": "ondisk.datum",
    "Group": "ondisk.index.groups",
    "Location": "ondisk.datum",
    "Merged": "ondisk.dataset.merged",
    "Outcome": "ondisk.dataset.append",
    "Step": "ondisk.step",
    "Summary": "ondisk.dataset.summaries",
    "migrate": "ondisk.maintenance.migrate",
    "rebuild": "ondisk.maintenance.damaged_index",
    "restore": "ondisk.backup.restore",
}


def create(path: str | os.PathLike[str], config: DatasetConfig | ConfigDict, *, text: str | None = None) -> Dataset:
    """Create an empty dataset and return it, open for writing; see `Dataset.create`."""
    from ondisk.dataset.dataset import Dataset

    return Dataset.create(path, config, text=text)


def open(path: str | os.PathLike[str], read_only: bool = False) -> Dataset:
    """Return a dataset, open for writing unless `read_only`; see `Dataset.open`."""
    from ondisk.dataset.dataset import Dataset

    return Dataset.open(path, read_only)


def merged(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Merged:
    """Return several datasets as one, for reading, in a `with` block; see `ondisk.dataset.merged`.

    Args:
        paths: a path, a pattern such as `sites/*`, or a list of them. A dataset that is named twice is read once.

    Raises:
        DatasetNotFound: a path contains no dataset, or a pattern matches none.
        ConfigError: a `dataset.toml` is not valid.
        InvalidInput: there are no paths.
    """
    from ondisk.dataset.merged import Merged

    return Merged.open(paths)


def adopt(
    path: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make a disk queue of Beats, or a dataset of arkimet, a dataset of ondisk, in place.

    What is there decides: see `ondisk.queue.adopt.adopt` and `ondisk.arkimet.adopt`.
    """
    from ondisk import arkimet
    from ondisk.queue.adopt import adopt

    adopt_it = arkimet.adopt if arkimet.is_dataset(path) else adopt
    return adopt_it(path, config, dry_run=dry_run, progress=progress)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ondisk' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_MODULES[name]), name)  # found without this function from now on
    return found
