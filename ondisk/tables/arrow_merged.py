"""A table of Arrow from the data of a query, one by one: of several datasets, or of those data that can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from ondisk.config import DatasetConfig
from ondisk.dataset.query import Results
from ondisk.dataset.skipped import Damaged, warn_of
from ondisk.datum import Datum
from ondisk.formats import find
from ondisk.tables.arrow_bytes import ROWS
from ondisk.tables.arrow_columns import Column
from ondisk.tables.arrow_out import Columns, Table, given, needs_sample
from ondisk.tables.columns import DATASET, SAMPLE, Complete, chosen, default_columns, first_of

_BYTES = 16 * 1024 * 1024  # of data in a batch, or one datum


def to_arrow_readable(
    query: Callable[[bool, Damaged], Results[Datum]],
    config: DatasetConfig,
    columns: Columns,
    damaged: Damaged,
    ends: Callable[[], list[Datum]],
    *,
    several: bool = False,
) -> pa.RecordBatchReader:
    """Return what a query finds as a table; see `Dataset.to_arrow` and `Merged.to_arrow`.

    Args:
        query: begins the query, with the data or without.
        config: with the fields of all datasets.
        damaged: passed to the query.
        ends: returns data from both ends of the dataset, see `ondisk.tables.columns.ends`.
        several: as in `all_columns`.
    """
    batches = _batches(query, config, columns, damaged, ends, several=several)
    schema = next(batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _batches(
    query: Callable[[bool, Damaged], Results[Datum]],
    config: DatasetConfig,
    columns: Columns,
    damaged: Damaged,
    ends: Callable[[], list[Datum]],
    *,
    several: bool,
) -> Iterator[Any]:
    """Yield the schema of a table, then its batches."""
    names, types = given(columns)
    wanted = None if names is None else chosen(names, config, several=several)
    with query(wanted is None or any(each.source != "index" for each in wanted), damaged) as found:
        sample, others = (first_of(found, SAMPLE), ends()) if needs_sample(wanted, types) else ([], [])
        complete = None
        if wanted is None:
            wanted = default_columns(config, sample, others, several=several)
            complete = Complete(wanted, config)
        shown = sample or others
        is_bytes = all(type(datum.data) is bytes for datum in shown) if shown else find(config.format).raw
        table = Table(wanted, types, config, [*others, *sample], is_bytes=is_bytes, several=several)
        yield table.schema
        for some in _some(chain(sample, found)):
            if complete is not None:
                complete.check(some)
            arrays = {column.name: pa.array(_values(column, some), column.kind) for column in table.from_index}
            yield table.batch(arrays | table.from_data(some))
        if damaged == "skip" and found.skipped is not None and found.skipped.count:
            warn_of(found.skipped)


def _some(data: Iterator[Datum]) -> Iterator[list[Datum]]:
    """Yield data in lists of a limited number and of limited bytes."""
    some: list[Datum] = []
    size = 0
    for datum in data:
        size += datum._place[3]
        if some and (len(some) >= ROWS or size > _BYTES):
            yield some
            some, size = [], datum._place[3]
        some.append(datum)
    if some:
        yield some


def _values(column: Column, data: Sequence[Datum]) -> list[Any]:
    """Return the values of a column of the index."""
    if column.field is None:
        if column.name == DATASET:
            return [datum.dataset for datum in data]
        return [getattr(datum.location, column.name) for datum in data]
    name, _ = column.field
    return [datum.reftime for datum in data] if name == "reftime" else [datum.metadata.get(name) for datum in data]
