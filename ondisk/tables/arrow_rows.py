"""Rows of Arrow as data of a dataset: in columns, a batch at a time, without an object for each row where possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.datum import FieldType, from_microseconds, microseconds
from ondisk.errors import InvalidInput
from ondisk.formats import Batch, Format
from ondisk.formats.base import TakesMembers
from ondisk.tables.arrow_json import members
from ondisk.tables.arrow_values import ArrowToData, distinct, values_of

EARLIEST, LATEST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
"""The years 1 to 9999, microseconds since 1970."""


class RowsToData:
    """Turns rows into data.

    Args:
        time: the column of the reftime, a timestamp in microseconds, UTC.
        fields: name, type and column of metadata; None is the type of those that no field declares. The columns have
            the types of fields in `ondisk.tables.index_to_arrow`, or narrower ones.
        data: the column of the content, and what reads it; None if the data have none.
    """

    def __init__(
        self,
        time: str,
        fields: Sequence[tuple[str, FieldType | None, str]],
        data: tuple[str, ArrowToData] | None = None,
    ) -> None:
        self._time = time
        self._fields = fields
        self._data = data

    def encode(self, rows: pa.RecordBatch, format: Format) -> Batch:
        """Return rows as data of a format. Rows that cannot be data are refused.

        Raises:
            InvalidInput: a string is not UTF-8.
        """
        refused = self._impossible(rows)
        if refused:
            kept = [place for place in range(rows.num_rows) if place not in refused]
            rows = rows.take(pa.array(kept, pa.int64()))
            batch = self.encode(rows, format) if kept else Batch()
            return with_refused(batch, kept, refused)
        try:
            return self._encoded(rows, format)
        except UnicodeDecodeError as error:  # a string of Spark may contain any bytes
            raise InvalidInput(f"a string is not UTF-8: {error}", hint="Remove or correct it.") from None

    def _impossible(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return row → reason of those with times that Python does not have, or without a reftime."""
        refused: dict[int, str] = {}
        times = [(self._time, self._time), *((name, label) for name, kind, label in self._fields
                                             if kind is FieldType.TIMESTAMP)]  # fmt: skip
        for name, label in times:
            counts = rows.column(label).cast(pa.int64())
            bounds = pc.min_max(counts)
            if bounds["min"].is_valid and (bounds["min"].as_py() < EARLIEST or bounds["max"].as_py() > LATEST):
                for place, count in enumerate(counts.to_pylist()):
                    if count is not None and not EARLIEST <= count <= LATEST:
                        refused[place] = f"{name} is {count} µs from 1970, which is outside the years 1 to 9999"
        reftimes = rows.column(self._time)
        if reftimes.null_count:
            places = [place for place, is_null in enumerate(reftimes.is_null().to_pylist()) if is_null]
            refused |= dict.fromkeys(places, f"{self._time} is NULL")
        return refused

    def _encoded(self, rows: pa.RecordBatch, format: Format) -> Batch:
        count = rows.num_rows
        reftimes: list[int] = rows.column(self._time).cast(pa.int64()).to_pylist()
        metadata, refused = self._metadata(rows)
        data: list[Any] = [None] * count
        keys = None
        if self._data is not None:
            label, reader = self._data
            column, keys = rows.column(label), reader.keys
            if keys is not None and isinstance(format, TakesMembers) and format.takes_members(keys):
                named = [*zip(keys, column.flatten(), strict=True)]
                texts, wrong = members(named, count, format.config.max_depth - 1)
                refused |= wrong
                return self._without(refused, reftimes, metadata, texts, format.encode_members)
            data, wrong = reader.read(column)
            refused |= wrong
        return self._without(refused, reftimes, metadata, data, format.encode_columns)

    @staticmethod
    def _without(
        refused: Mapping[int, str],
        reftimes: list[int],
        metadata: list[Mapping[str, Any]],
        data: list[Any],
        encode: Any,
    ) -> Batch:
        """Return the batch of the rows that are not refused."""
        if not refused:
            batch: Batch = encode(reftimes, metadata, data)
            return batch
        kept = [place for place in range(len(reftimes)) if place not in refused]
        parts = ([column[place] for place in kept] for column in (reftimes, metadata, data))
        return with_refused(encode(*parts) if kept else Batch(), kept, refused)

    def _metadata(self, rows: pa.RecordBatch) -> tuple[list[Mapping[str, Any]], dict[int, str]]:
        """Return the metadata of rows; those with equal values share a mapping."""
        refused: dict[int, str] = {}
        combined: list[tuple[Any, ...]] = [()]
        codes: pa.Array | None = None
        for name, kind, label in self._fields:
            column = rows.column(label)
            if kind is None:
                values, wrong = values_of(column, name)
                refused |= {place: f"{name}: {reason}" for place, reason in wrong.items()}
                indices = pa.array(range(len(values)), pa.int64())
            else:
                values, indices = _values(column, kind)
            if codes is not None:
                indices = pc.add(pc.multiply(codes, pa.scalar(len(values), pa.int64())), indices)
            encoded = indices.dictionary_encode()
            pairs = (divmod(each, len(values)) for each in encoded.dictionary.to_pylist())
            combined = [(*combined[before], values[each]) for before, each in pairs]
            codes = encoded.indices.cast(pa.int64())
        names = [name for name, _, _ in self._fields]
        mappings = [
            {name: value for name, value in zip(names, each, strict=True) if value is not None} for each in combined
        ]
        if codes is None:
            return mappings * rows.num_rows, refused
        return list(map(mappings.__getitem__, codes.to_pylist())), refused


def _values(column: pa.Array, kind: FieldType) -> tuple[list[Any], pa.Array]:
    """Return the distinct values of a field, and the position of each row's value; that of NULL is that of None."""
    is_time = kind is FieldType.TIMESTAMP
    dictionary, indices = distinct(column.cast(pa.int64()) if is_time else column)
    values: list[Any] = dictionary.to_pylist()
    if is_time:
        values = list(map(from_microseconds, values))
    indices = indices.cast(pa.int64())
    return ([*values, None], indices.fill_null(len(values))) if indices.null_count else (values, indices)


def with_refused(batch: Batch, kept: Sequence[int], refused: Mapping[int, str]) -> Batch:
    """Return a batch of some rows with those that were refused before.

    Args:
        kept: the positions of the rows in the batch.
    """
    others = [(kept[position], reason) for position, reason in batch.refused]
    batch.refused = sorted([*others, *refused.items()])
    return batch
