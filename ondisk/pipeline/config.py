"""The configuration of a pipeline, validated. Its paths are relative to its own folder.

input = "incoming"                  the folder of the files; its subfolders are read, too
datasets = ["obs", "radar"]         each has a `filter` in its dataset.toml
error = "error"                     the dataset for data that match no filter, or several
duplicates = "duplicates"           the dataset for duplicates; without it they are skipped
name = "weather"                    distinguishes pipelines that share datasets; default: file name and input
master = "spark://host:7077"        where Spark reads the files; default: processes of this machine read them
maintenance = false                 no maintenance after the import; default: as in the table
[maintenance]
max_duration = 1800                 seconds in which data of each dataset are read
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
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.dataset.input_file import open_source
from ondisk.errors import ConfigError, shown

_LIMIT = 1024 * 1024  # bytes
KEYS = ("input", "datasets", "error", "duplicates", "name", "master", "maintenance")
MAINTENANCE = ("max_duration", "metrics")
_OTHERS = ("datasets", "maintenance")


@dataclass(frozen=True, slots=True)
class Maintenance:
    max_duration: float | None = None
    metrics: Path | None = None


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """The content of the file; the module's docstring shows every key."""

    path: Path  # the file itself
    name: str  # the pipeline's name
    input: Path
    datasets: tuple[str, ...]  # as written in the file, like `error` and `duplicates`; `resolve` returns their paths
    error: str
    duplicates: str | None = None
    master: str | None = None
    maintenance: Maintenance | None = Maintenance()  # None for no maintenance

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PipelineConfig:
        """Return the configuration in a file; raise ConfigError, which names the line, or an error of the file."""
        name = os.fspath(path)
        with open_source(path) as file:
            content = file.read(_LIMIT + 1)
        if len(content) > _LIMIT:
            raise ConfigError(f"{name} is larger than {_LIMIT} bytes", hint="Is it the right file?")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is not UTF-8: {error}", hint="Save it as UTF-8.") from None
        return _parse(Path(path).absolute(), read_toml(text, name), Source(name, text))

    @property
    def all(self) -> tuple[str, ...]:
        """All datasets: those with filters, then the one for errors, then the one for duplicates, if any."""
        return (*self.datasets, self.error, *([] if self.duplicates is None else [self.duplicates]))

    def resolve(self, name: str) -> Path:
        return self.path.parent / name


def _parse(path: Path, values: Mapping[str, Any], source: Source) -> PipelineConfig:
    for key in values:
        if key not in KEYS:
            raise source.error(key, "unknown key", f"The keys are {', '.join(KEYS)}.")
    for key, example in (("input", '"incoming"'), ("datasets", '["weather"]'), ("error", '"error"')):
        if key not in values:
            raise source.error(key, "is required", f"Add a line such as {key} = {example}.")
    datasets = values["datasets"]
    if not isinstance(datasets, list) or not datasets or not all(map(_is_text, datasets)):
        hint = 'Write datasets = ["weather", "…"].'
        raise source.error("datasets", f"must be a list of datasets, not {shown(datasets)}", hint)
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
    _check_paths(config, source)
    return config


def _check_paths(config: PipelineConfig, source: Source) -> None:
    seen: set[str] = set()
    for key, names in (("datasets", config.datasets), ("error", [config.error]), ("duplicates", [config.duplicates])):
        for name in names:
            real = name and os.path.realpath(config.resolve(name))
            if real in seen:
                raise source.error(key, f"{shown(name)} is named twice", "Name each dataset once.")
            seen.update([real] if real else [])
    if holds_dataset(config.input):
        raise source.error("input", "is a dataset", "Name the folder in which the files arrive.")


def holds_dataset(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return (folder / CONFIG).exists()
    return False


def plain(path: str) -> str:
    """Return a path as text; bytes that are not UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _text(key: str, value: Any, source: Source) -> str:
    if not _is_text(value):
        raise source.error(key, f"must be text, not {shown(value)}", "Put it in quotes.")
    return str(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _maintenance(folder: Path, value: Any, source: Source) -> Maintenance | None:
    if value is False:
        return None
    if not isinstance(value, Mapping):
        hint = "Write maintenance = false, or a line [maintenance] and its keys in the lines below."
        raise source.error("maintenance", f"must be false or a table, not {shown(value)}", hint)
    for key in value:
        if key not in MAINTENANCE:
            raise source.error(f"maintenance.{key}", "unknown key", f"The keys are {', '.join(MAINTENANCE)}.")
    duration, metrics = value.get("max_duration"), value.get("metrics")
    if duration is not None and (type(duration) not in (int, float) or not 0 <= duration < float("inf")):
        hint = "Write max_duration = 1800, without quotes."
        raise source.error("maintenance.max_duration", f"must be a number of seconds, not {shown(duration)}", hint)
    if metrics is not None:
        metrics = folder / _text("maintenance.metrics", metrics, source)
    return Maintenance(None if duration is None else float(duration), metrics)
