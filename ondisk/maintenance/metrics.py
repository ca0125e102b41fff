"""Metrics of what maintain did, as a file that Prometheus' node_exporter collects.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, text format version 0.0.4.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ondisk.errors import NotFound, StorageError
from ondisk.filesystem import Directory
from ondisk.maintenance.maintain import Maintained

HELP = {
    "ondisk_segments": "Segments in each state; a segment may be in several.",
    "ondisk_data": "Data in the dataset, those in its archives not counted.",
    "ondisk_freed_bytes": "Bytes that the last run gave back.",
    "ondisk_lost": "Data that the last run found lost: missing, or no data any more.",
    "ondisk_maintain_success": "1: the last run went through; 0: it ended with an error.",
    "ondisk_maintain_duration_seconds": "How long the last run took.",
    "ondisk_maintain_timestamp_seconds": "When the last run ended, seconds since 1970.",
}
"""Every metric, and what it tells."""


def metrics(results: Iterable[Maintained]) -> str:
    """Write what was done as text for Prometheus; what could not be counted has no line."""
    lines: dict[str, list[str]] = {name: [] for name in HELP}

    def add(name: str, each: Maintained, value: float, **labels: str) -> None:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"dataset": each.dataset, **labels}.items())
        lines[name].append(f"{name}{{{pairs}}} {value}")

    for each in results:
        if each.left is not None:
            for state, count in each.left.counts.items():
                add("ondisk_segments", each, count, state=state)
        if each.count is not None:
            add("ondisk_data", each, each.count)
        add("ondisk_freed_bytes", each, each.freed)
        add("ondisk_lost", each, sum(done.lost for done in each.done))
        add("ondisk_maintain_success", each, int(each.error is None))
        add("ondisk_maintain_duration_seconds", each, round(each.duration, 3))
        add("ondisk_maintain_timestamp_seconds", each, round(each.ended, 3))
    text = []
    for name, about in HELP.items():
        if lines[name]:
            text += [f"# HELP {name} {about}", f"# TYPE {name} gauge", *lines[name]]
    return "".join(f"{line}\n" for line in text)


def write(file: str | os.PathLike[str], results: Iterable[Maintained]) -> None:
    """Write metrics to a file, which is the old one or the new one at every moment.

    Raises:
        NotFound: there is no directory for it.
        StorageError: it cannot be written.

    Durability: staged beside it under a name that no collector reads, synced, renamed, directory synced.
    """
    path = Path(file).absolute()
    try:
        directory = Directory.open(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{path.parent}: no such directory", hint="Make it, or name another file.") from None
    except OSError as error:
        raise StorageError(f"{path.parent}: {error.strerror}", errno=error.errno) from error
    with directory:
        staged = f".{path.name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(staged)
        try:
            with directory.create_file(staged) as written:
                written.write(0, metrics(results).encode(errors="replace"))
                written.sync()
            directory.rename(staged, path.name)
        except (FileNotFoundError, FileExistsError) as error:  # as below /proc
            hint = "Name a file where files can be made."
            raise StorageError(f"{path}: {error.strerror}", hint=hint, errno=error.errno) from error
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(staged)
            raise


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
