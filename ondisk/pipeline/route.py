"""Dividing data among datasets: each datum goes to the dataset whose `filter` it matches.

A datum that matches no filter, or several, goes to the last dataset, the one for errors. Each dataset reads a datum as
in an append of the file: with its own declared fields and limits. A datum that it would refuse does not match.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.dataset.append import refuse_old
from ondisk.errors import StateError
from ondisk.formats import Batch, Format, find
from ondisk.matcher import Expression, Values, matches

_LINE = re.compile(r"line [0-9]+: ")
_Reading: TypeAlias = tuple[tuple[tuple[str, str], ...], int, int]
_Read: TypeAlias = dict[int, tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Route:
    """A dataset that data may go to; `filter` is None for the one for errors."""

    config: DatasetConfig
    filter: Expression | None


@dataclass(slots=True)
class Share:
    """The data of a batch that go to one dataset, and those that it refuses; positions are those in the file."""

    batch: Batch = field(default_factory=Batch)
    positions: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def refuse_old(self, config: DatasetConfig) -> None:
        """Refuse data that are older than the dataset's delete age."""
        refuse_old(self.batch, config)
        self.refused += [(self.positions[place], reason) for place, reason in self.batch.refused]
        self.batch.refused = []


class Division:
    """Divides the data of one file.

    Args:
        routes: to the datasets; the one for errors is last.
        format: the file's format.

    Attributes:
        formats: the file's format, configured for each dataset.
        reader: the format to read the file with.
        position: how many data of the file were divided.

    Raises:
        ConfigError: a dataset cannot hold this format.
    """

    def __init__(self, routes: Sequence[Route], format: str) -> None:
        self._routes = routes
        kind = find(format)
        self.formats = [kind(route.config) for route in routes]
        self._readings = [_reading(route.config) for route in routes]
        self._verdicts: dict[tuple[int, int], bool] = {}
        self.position = 0
        if len(set(self._readings)) == 1:
            self.reader = self.formats[-1]
        else:
            config = routes[-1].config
            self.reader = kind(
                DatasetConfig(
                    config.format,
                    config.step,
                    max_datum_size=max(route.config.max_datum_size for route in routes),
                    max_depth=max(route.config.max_depth for route in routes),
                )
            )

    def divide(self, batch: Batch) -> list[Share]:
        """Return the shares of a batch that `reader` has read, in the order of the datasets."""
        positions = [self.position + position for position in batch.positions()]
        shares = [Share() for _ in self._routes]
        errors = shares[-1]
        errors.refused += [(self.position + position, reason) for position, reason in batch.refused]
        self.position += len(batch)
        read, refused = self._read(batch)
        self._verdicts.clear()  # their keys are ids of the metadata of an earlier batch
        for place, (payload, position) in enumerate(zip(batch.payloads, positions, strict=True)):
            number = self._choose(read, place)
            values = read[number].get(place)
            if values is None:
                errors.refused.append((position, refused[place]))
                continue
            share = shares[number]
            share.positions.append(position)
            share.batch.reftimes.append(values[0])
            share.batch.metadata.append(values[1])
            share.batch.payloads.append(payload)
        errors.refused.sort()
        for route, share in zip(self._routes, shares, strict=True):
            share.refuse_old(route.config)
        return shares

    def _choose(self, read: Sequence[_Read], place: int) -> int:
        """Return the number of the dataset that a datum goes to."""
        chosen = last = len(self._routes) - 1
        for number in range(last):
            values, filter = read[number].get(place), self._routes[number].filter
            if values is not None and filter is not None and self._matches(filter, *values):
                if chosen != last:
                    return last
                chosen = number
        return chosen

    def _matches(self, filter: Expression, reftime: int, metadata: Mapping[str, Any]) -> bool:
        """Return whether a datum matches; evaluates once for data with shared metadata if no reftime matters."""
        key = id(filter), id(metadata)
        if key not in self._verdicts:
            values = Values(reftime, metadata)
            verdict = matches(filter, values)
            if values.reftime_read:
                return verdict
            self._verdicts[key] = verdict
        return self._verdicts[key]

    def _read(self, batch: Batch) -> tuple[list[_Read], Mapping[int, str]]:
        """Read the data as each dataset does: place → reftime and metadata; and why the last dataset refuses some."""
        if self.reader is self.formats[-1]:
            same = dict(enumerate(zip(batch.reftimes, batch.metadata, strict=True)))
            return [same] * len(self._routes), {}
        found: dict[_Reading, tuple[_Read, dict[int, str]]] = {}
        for reading, format in zip(self._readings, self.formats, strict=True):
            if reading not in found:
                again = read_again(batch.payloads, format)
                values = zip(again.reftimes, again.metadata, strict=True)
                found[reading] = dict(zip(again.positions(), values, strict=True)), dict(again.refused)
        return [found[reading][0] for reading in self._readings], found[self._readings[-1]][1]


def read_again(payloads: Sequence[bytes], format: Format) -> Batch:
    """Return payloads as a batch for a dataset; `refused` lists what it would refuse of a file.

    Args:
        format: the format of the data, configured for the dataset.
    """
    limit = format.config.max_datum_size
    large = {place: len(payload) for place, payload in enumerate(payloads) if len(payload) > limit}
    fitting = [place for place in range(len(payloads)) if place not in large]
    content = format.preamble + b"".join(payloads[place] + format.padding for place in fitting)
    found = Batch()
    for batch in format.parse(io.BytesIO(content), len(payloads)) if fitting else ():
        found.extend(batch)
    if len(found) != len(fitting) or found.damage:
        raise StateError(f"consecutive data of {format.name} cannot be read again")
    refused = {fitting[position]: _LINE.sub("", reason, count=1) for position, reason in found.refused}
    refused |= {place: f"{size} bytes are more than max_datum_size, {limit}" for place, size in large.items()}
    found.refused = sorted(refused.items())
    return found


def _reading(config: DatasetConfig) -> _Reading:
    """Return the settings that decide how a file is read."""
    return tuple(config.fields.items()), config.max_datum_size, config.max_depth
