"""Data from outside, divided among datasets: each datum goes to the one whose `filter` it matches.

What matches none, or several, goes to the last dataset, which takes errors. A dataset sees a datum as it would if the
file was appended to it: by its own declared fields and limits. What it would refuse it does not match.
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
from ondisk.matcher import Expression, matches

_LINE = re.compile(r"line [0-9]+: ")
_Reading: TypeAlias = tuple[tuple[tuple[str, str], ...], int, int]
_Seen: TypeAlias = dict[int, tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Target:
    """A dataset that data are divided among; `filter` is None for the one that takes errors."""

    config: DatasetConfig
    filter: Expression | None


@dataclass(slots=True)
class Share:
    """What a dataset gets of a batch, and what it refuses of it; positions are those in the file."""

    batch: Batch = field(default_factory=Batch)
    positions: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def refuse_old(self, config: DatasetConfig) -> None:
        """Refuse data that the dataset would delete at once."""
        refuse_old(self.batch, config)
        self.refused += [(self.positions[place], reason) for place, reason in self.batch.refused]
        self.batch.refused = []


class Division:
    """Divides the data of one file.

    Args:
        targets: the datasets, that for errors last.
        format: the file's.

    Attributes:
        formats: the file's format, as each dataset has it.
        reader: the format to read the file with.
        position: so many data of the file were divided.

    Raises:
        ConfigError: a dataset cannot hold this format.
    """

    def __init__(self, targets: Sequence[Target], format: str) -> None:
        self._targets = targets
        kind = find(format)
        self.formats = [kind(target.config) for target in targets]
        self._readings = [_reading(target.config) for target in targets]
        self._verdicts: dict[tuple[int, int], bool] = {}
        self.position = 0
        if len(set(self._readings)) == 1:
            self.reader = self.formats[-1]
        else:
            config = targets[-1].config
            self.reader = kind(
                DatasetConfig(
                    config.format,
                    config.step,
                    max_datum_size=max(target.config.max_datum_size for target in targets),
                    max_depth=max(target.config.max_depth for target in targets),
                )
            )

    def divide(self, batch: Batch) -> list[Share]:
        """Divide a batch that `reader` gave; the shares are in the order of the datasets."""
        positions = [self.position + position for position in batch.positions()]
        shares = [Share() for _ in self._targets]
        errors = shares[-1]
        errors.refused += [(self.position + position, reason) for position, reason in batch.refused]
        self.position += len(batch)
        seen, refused = self._seen(batch)
        self._verdicts.clear()  # of others, whose metadata have gone
        for place, (payload, position) in enumerate(zip(batch.payloads, positions, strict=True)):
            number = self._chosen(seen, place)
            found = seen[number].get(place)
            if found is None:
                errors.refused.append((position, refused[place]))
                continue
            share = shares[number]
            share.positions.append(position)
            share.batch.reftimes.append(found[0])
            share.batch.metadata.append(found[1])
            share.batch.payloads.append(payload)
        errors.refused.sort()
        for target, share in zip(self._targets, shares, strict=True):
            share.refuse_old(target.config)
        return shares

    def _chosen(self, seen: Sequence[_Seen], place: int) -> int:
        """Give the number of the dataset that a datum goes to."""
        last = len(self._targets) - 1
        chosen = last
        for number in range(last):
            found, wanted = seen[number].get(place), self._targets[number].filter
            if found is not None and wanted is not None and self._matches(wanted, *found):
                if chosen != last:
                    return last
                chosen = number
        return chosen

    def _matches(self, wanted: Expression, reftime: int, metadata: Mapping[str, Any]) -> bool:
        """Tell whether a datum matches; for data that share their metadata once, unless reftime was asked for."""
        key = id(wanted), id(metadata)
        if key not in self._verdicts:
            asked = _Asked(reftime, metadata)
            verdict = matches(wanted, asked)
            if asked.reftime_counts:
                return verdict
            self._verdicts[key] = verdict
        return self._verdicts[key]

    def _seen(self, batch: Batch) -> tuple[list[_Seen], Mapping[int, str]]:
        """Read the data as each dataset does: place → reftime and metadata; and why the last one refuses some."""
        if self.reader is self.formats[-1]:
            same = dict(enumerate(zip(batch.reftimes, batch.metadata, strict=True)))
            return [same] * len(self._targets), {}
        found: dict[_Reading, tuple[_Seen, dict[int, str]]] = {}
        for reading, format in zip(self._readings, self.formats, strict=True):
            if reading not in found:
                found[reading] = _read(batch.payloads, format)
        return [found[reading][0] for reading in self._readings], found[self._readings[-1]][1]


def read_again(payloads: Sequence[bytes], format: Format) -> Batch:
    """Make a batch for a dataset, of data that others hold: refused is what it would refuse of a file.

    Args:
        format: the data's, as the dataset has it.
    """
    limit = format.config.max_datum_size
    large = {place: len(payload) for place, payload in enumerate(payloads) if len(payload) > limit}
    fitting = [place for place in range(len(payloads)) if place not in large]
    content = format.preamble + b"".join(payloads[place] + format.padding for place in fitting)
    found = Batch()
    for batch in format.parse(io.BytesIO(content), len(payloads)) if fitting else ():
        found.extend(batch)
    if len(found) != len(fitting) or found.damage:
        raise StateError(f"data of {format.name} cannot be read one behind the other")
    refused = {fitting[position]: _LINE.sub("", reason, count=1) for position, reason in found.refused}
    refused |= {place: f"{size} bytes are more than max_datum_size, {limit}" for place, size in large.items()}
    found.refused = sorted(refused.items())
    return found


def _read(payloads: Sequence[bytes], format: Format) -> tuple[_Seen, dict[int, str]]:
    batch = read_again(payloads, format)
    values = zip(batch.reftimes, batch.metadata, strict=True)
    return dict(zip(batch.positions(), values, strict=True)), dict(batch.refused)


def _reading(config: DatasetConfig) -> _Reading:
    """Give what the reading of a file depends on."""
    return tuple(config.fields.items()), config.max_datum_size, config.max_depth


class _Asked:
    """Gives the values of a datum, and notes whether its reftime was asked for."""

    __slots__ = ("_metadata", "_reftime", "reftime_counts")

    def __init__(self, reftime: int, metadata: Mapping[str, Any]) -> None:
        self._reftime = reftime
        self._metadata = metadata
        self.reftime_counts = False

    def __call__(self, name: str) -> Any:
        if name == "reftime":
            self.reftime_counts = True
            return self._reftime
        return self._metadata.get(name)
