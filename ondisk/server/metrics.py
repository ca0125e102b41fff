"""Metrics of the server, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ondisk.errors import OndiskError
from ondisk.maintenance.metrics import Sample, exposition
from ondisk.server.datasets import Served

HELP = {
    "ondisk_up": "1: the dataset can be read; 0: it cannot.",
    "ondisk_changes": "The number of the dataset's last change.",
    "ondisk_last_commit_timestamp_seconds": "When it was committed, seconds since 1970.",
    "ondisk_lost_data": "Data that are lost, until `ondisk fix --acknowledge`.",
    "ondisk_server_connections": "Open connections.",
    "ondisk_server_running": "Requests that are being answered.",
    "ondisk_server_requests_total": "Requests, by what was asked and the status of the answer.",
    "ondisk_server_sent_bytes_total": "Bytes of answers.",
}
"""Every metric, and what it means."""


@dataclass(slots=True)
class Counts:
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by endpoint and status
    sent: int = 0  # bytes of bodies
    running: int = 0  # requests that are being answered
    connections: int = 0  # that are open


def metrics(served: Iterable[Served], counts: Counts) -> str:
    """Return the metrics as text for Prometheus. Each dataset costs some look-ups, whatever its size."""
    return exposition(_samples(served, counts), HELP)


def _samples(served: Iterable[Served], counts: Counts) -> Iterator[Sample]:
    for each in served:
        label = {"dataset": each.name}
        try:
            with each.opened() as dataset:
                known = dataset.last_change()
        except OndiskError:
            yield "ondisk_up", label, 0
            continue
        yield "ondisk_up", label, 1
        yield "ondisk_changes", label, known["seq"]
        if known["committed_at"] is not None:
            yield "ondisk_last_commit_timestamp_seconds", label, known["committed_at"] / 1e6
        yield "ondisk_lost_data", label, known["lost"]
    yield "ondisk_server_connections", {}, counts.connections
    yield "ondisk_server_running", {}, counts.running
    for (endpoint, status), count in sorted(counts.requests.items()):
        yield "ondisk_server_requests_total", {"endpoint": endpoint, "status": str(status)}, count
    yield "ondisk_server_sent_bytes_total", {}, counts.sent
