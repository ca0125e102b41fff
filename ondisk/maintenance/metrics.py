"""Metrics of what maintain did, in a file that Prometheus' node_exporter collects.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, text format version 0.0.4.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from ondisk.errors import StorageError
from ondisk.filesystem import Directory
from ondisk.maintenance.maintain import Maintained

Sample: TypeAlias = tuple[str, Mapping[str, str], float]
"""The name of a metric, its labels, and its value."""

HELP = {
    "ondisk_segments": "Segments in each state; a segment may be in several.",
    "ondisk_data": "Data in the dataset.",
    "ondisk_freed_bytes": "Bytes that the last run freed; negative if more are used than before.",
    "ondisk_lost": "Data that the last run found missing or damaged, and removed from the index.",
    "ondisk_lost_data": "Data that are lost, until `ondisk fix --acknowledge`.",
    "ondisk_pending_data": "Data of a queue that its consumer has not acknowledged.",
    "ondisk_pending_bytes": "Bytes of these data.",
    "ondisk_pending_oldest_timestamp_seconds": "The first reftime of these data, seconds since 1970.",
    "ondisk_segments_missing": "Segments that the last run found missing, before its fix.",
    "ondisk_index_rebuilt": "1: the last run rebuilt a lost index; 0: it did not.",
    "ondisk_quarantine_bytes": "Bytes in quarantine: files that stood in the way, kept until somebody drops them.",
    "ondisk_maintain_success": "1: the last run completed; 0: it ended with an error.",
    "ondisk_maintain_exit_code": "The exit code of the last run.",
    "ondisk_maintain_duration_seconds": "How long the last run took.",
    "ondisk_maintain_timestamp_seconds": "When the last run ended, seconds since 1970.",
}
"""Every metric, and what it means."""


def metrics(results: Iterable[Maintained]) -> str:
    """Return the metrics as text for Prometheus, without lines for what could not be counted."""
    samples: list[Sample] = []

    def add(name: str, each: Maintained, value: float, **labels: str) -> None:
        samples.append((name, {"dataset": each.dataset, **labels}, value))

    for each in results:
        if each.left is not None:
            for state, count in each.left.counts.items():
                add("ondisk_segments", each, count, state=state)
            add("ondisk_quarantine_bytes", each, each.left.quarantine.bytes)
        if each.count is not None:
            add("ondisk_data", each, each.count)
        add("ondisk_freed_bytes", each, each.freed)
        if each.missing is not None:
            add("ondisk_lost", each, sum(done.lost for done in each.done))
            add("ondisk_segments_missing", each, each.missing)
        if each.lost is not None:
            add("ondisk_lost_data", each, each.lost)
        if each.pending is not None:
            add("ondisk_pending_data", each, each.pending["count"])
            add("ondisk_pending_bytes", each, each.pending["size"])
            if each.pending["oldest"] is not None:
                add("ondisk_pending_oldest_timestamp_seconds", each, each.pending["oldest"].timestamp())
        add("ondisk_index_rebuilt", each, int(each.rebuilt))
        add("ondisk_maintain_success", each, int(each.error is None))
        add("ondisk_maintain_exit_code", each, each.exit_code)
        add("ondisk_maintain_duration_seconds", each, round(each.duration, 3))
        add("ondisk_maintain_timestamp_seconds", each, round(each.ended, 3))
    return exposition(samples, HELP)


def exposition(samples: Iterable[Sample], help: Mapping[str, str]) -> str:
    """Return samples as text for Prometheus, in the order of `help`. A name that ends with `_total` is a counter."""
    lines: dict[str, list[str]] = {name: [] for name in help}
    for name, labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines[name].append(f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}")
    text = []
    for name, about in help.items():
        if lines[name]:
            kind = "counter" if name.endswith("_total") else "gauge"
            text += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines[name]]
    return "".join(f"{line}\n" for line in text)


def write(file: str | os.PathLike[str], results: Iterable[Maintained]) -> None:
    """Write metrics to a file. At every moment the file is the old one or the new one, complete.

    Raises:
        NotFound: its directory does not exist.
        StorageError: it cannot be written.

    Durability: as `Directory.replace`; no collector reads the hidden file.
    """
    path = Path(file).absolute()
    with Directory.above(path) as directory:
        content = metrics(results).encode(errors="replace")
        try:
            directory.replace(path.name, content, staged=f".{path.name}.{os.getpid()}")  # nobody holds a lock here
        except (FileNotFoundError, FileExistsError) as error:  # as below /proc
            hint = "Choose a directory in which files can be created."
            raise StorageError(f"{path}: {error.strerror}", hint=hint, errno=error.errno) from error


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
