"""The configuration of a pipeline, validated; paths in it count from its own folder.

input = "incoming"                  the folder of the files, with those below it
datasets = ["obs", "radar"]         each has a `filter` in its dataset.toml
error = "error"                     takes what matches no filter, or several
duplicates = "duplicates"           takes what its dataset holds already; else that is left out
name = "weather"                    tells pipelines apart that share datasets; else file name and input
master = "spark://host:7077"        where Spark runs; else what spark-submit says, else here
maintenance = false                 no maintenance behind it; else as the table
[maintenance]
max_duration = 1800                 seconds in which data are read of each dataset
metrics = "ondisk.prom"             a file of metrics for Prometheus
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ondisk.config import Source, read_toml
from ondisk.dataset.input_file import open_source
from ondisk.dataset.layout import CONFIG
from ondisk.errors import ConfigError

_LIMIT = 1024 * 1024  # bytes
KEYS = ("input", "datasets", "error", "duplicates", "name", "master", "maintenance")
MAINTENANCE = ("max_duration", "metrics")
_OTHERS = ("datasets", "maintenance")


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What `maintain` is told."""

    max_duration: float | None = None
    metrics: Path | None = None


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """What the file says; the module's docstring shows every key.

    Attributes:
        path: of the file.
        name: of the pipeline.
        datasets: what they are called in the file, as are `error` and `duplicates`; `place` tells where they are.
        maintenance: None for none.
    """

    path: Path
    name: str
    input: Path
    datasets: tuple[str, ...]
    error: str
    duplicates: str | None = None
    master: str | None = None
    maintenance: Maintenance | None = Maintenance()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PipelineConfig:
        """Read a file.

        Raises:
            NotFound, StorageError: it cannot be read.
            ConfigError: it cannot be understood; names the line.
        """
        name = os.fspath(path)
        with open_source(path) as file:
            content = file.read(_LIMIT + 1)
        if len(content) > _LIMIT:
            raise ConfigError(f"{name} is larger than {_LIMIT} bytes", hint="Is it the right file?")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is no UTF-8: {error}", hint="Save it as UTF-8.") from None
        return _parse(Path(path).absolute(), read_toml(text, name), Source(name, text))

    @property
    def all(self) -> tuple[str, ...]:
        """All datasets, that for errors behind those that data are divided among, that for duplicates last."""
        return (*self.datasets, self.error, *([] if self.duplicates is None else [self.duplicates]))

    def place(self, name: str) -> Path:
        """Give the path of what the file names."""
        return self.path.parent / name


def _parse(path: Path, values: Mapping[str, Any], source: Source) -> PipelineConfig:
    for key in values:
        if key not in KEYS:
            raise source.error(key, "there is no such key", f"The keys are {', '.join(KEYS)}.")
    for key, example in (("input", '"incoming"'), ("datasets", '["weather"]'), ("error", '"error"')):
        if key not in values:
            raise source.error(key, "is required", f"Add a line such as {key} = {example}.")
    datasets = values["datasets"]
    if not isinstance(datasets, list) or not datasets or not all(map(_is_text, datasets)):
        hint = 'Write datasets = ["weather", "…"].'
        raise source.error("datasets", f"must be a list of datasets, not {datasets!r}", hint)
    texts = {key: _text(key, values[key], source) for key in KEYS if key in values and key not in _OTHERS}
    folder = path.parent / texts["input"]
    config = PipelineConfig(
        path,
        texts.get("name", plain(f"{path.name}: {os.path.normpath(folder)}")),
        folder,
        tuple(datasets),
        texts["error"],
        texts.get("duplicates"),
        texts.get("master"),
        _maintenance(path.parent, values.get("maintenance", {}), source),
    )
    _check_places(config, source)
    return config


def _check_places(config: PipelineConfig, source: Source) -> None:
    seen: set[str] = set()
    for key, names in (("datasets", config.datasets), ("error", [config.error]), ("duplicates", [config.duplicates])):
        for name in names:
            real = name and os.path.realpath(config.place(name))
            if real in seen:
                raise source.error(key, f"{name!r} stands twice", "Name each dataset once.")
            seen.update([real] if real else [])
    if holds_dataset(config.input):
        raise source.error("input", "is a dataset", "Name the folder that the files come to.")


def holds_dataset(folder: Path) -> bool:
    """Tell whether a folder is a dataset, as far as one may look."""
    with contextlib.suppress(OSError):
        return (folder / CONFIG).exists()
    return False


def plain(path: str) -> str:
    """Write a path as text, whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _text(key: str, value: Any, source: Source) -> str:
    if not _is_text(value):
        raise source.error(key, f"must be a text, not {value!r}", "Put it in quotes.")
    return str(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _maintenance(folder: Path, value: Any, source: Source) -> Maintenance | None:
    if value is False:
        return None
    if not isinstance(value, Mapping):
        hint = "Write maintenance = false for none, or a line [maintenance] and what it is told below it."
        raise source.error("maintenance", f"must be false or a table, not {value!r}", hint)
    for key in value:
        if key not in MAINTENANCE:
            raise source.error(f"maintenance.{key}", "there is no such key", f"The keys are {', '.join(MAINTENANCE)}.")
    duration, metrics = value.get("max_duration"), value.get("metrics")
    if duration is not None and (type(duration) not in (int, float) or not 0 <= duration < float("inf")):
        hint = "Write max_duration = 1800, without quotes."
        raise source.error("maintenance.max_duration", f"must be a number of seconds, not {duration!r}", hint)
    if metrics is not None:
        metrics = folder / _text("maintenance.metrics", metrics, source)
    return Maintenance(None if duration is None else float(duration), metrics)
