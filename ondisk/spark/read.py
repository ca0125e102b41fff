"""Reading partitions of a plan: rows of the index and their data, as batches of Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.layout import no_dataset, read_config
from ondisk.filesystem import Directory
from ondisk.index import Snapshot
from ondisk.spark.plan import REPLACED, Partition, changed, check_unchanged, condition_of
from ondisk.spark.replaced import Gone, snapshot_of
from ondisk.tables.arrow_values import DataToArrow
from ondisk.tables.columns import DATA
from ondisk.tables.index_to_arrow import PLACE, ROWS, Column, RowsToArrow, arrow_schema, is_plain, with_data


@contextlib.contextmanager
def opened(path: str, connect: Any, prefix: str = "") -> Iterator[Access]:
    """Open a dataset for reading during a block.

    Raises:
        DatasetNotFound, ConfigError, NeedsMigration, VersionTooNew, IndexCorrupt: as `Dataset.open`.
    """
    try:
        directory = Directory.open(path)
    except (FileNotFoundError, NotADirectoryError):
        raise no_dataset(Path(path).absolute()) from None
    with contextlib.ExitStack() as stack:
        stack.callback(directory.close)
        access = Access(directory, read_config(directory), read_only=True, prefix=prefix, connect=connect)
        stack.callback(access.close)
        yield access


def read_later(partition: Partition, columns: Sequence[Column], connect: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, some time after it was planned.

    Raises:
        StateError: some of its data were removed or moved since, and are not kept.
        SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: data are not on disk as the index says.
    """
    state = partition.state
    if not Path(state.path).is_dir():
        raise changed(state, "it no longer exists")
    with opened(state.path, connect, state.prefix) as access:
        current = access.current()
        if current.index.missing:
            raise changed(state, "its index is lost")
        with current.index.snapshot() as snapshot:
            kept = check_unchanged(partition, current, snapshot)
            count = 0
            for batch in chain(
                read(partition, columns, current, snapshot),
                *(_read_kept(partition, columns, current, rows) for rows in kept),
            ):
                count += batch.num_rows
                yield batch
            if partition.count is not None and count != partition.count:
                raise changed(state, "data were deleted or replaced")


def _read_kept(partition: Partition, columns: Sequence[Column], opened: Opened, rows: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in a segment that was replaced since, and kept."""
    try:
        with snapshot_of(rows, opened) as snapshot:
            yield from read(partition, columns, opened, snapshot)
    except Gone:
        raise changed(partition.state, f"{REPLACED}, and what was kept of them is gone or damaged") from None


def read(
    partition: Partition, columns: Sequence[Column], opened: Opened, snapshot: Snapshot
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition from a snapshot, in any order."""
    columns = [column.of(opened.index.config, partition.state.dataset) for column in columns]
    from_index = [column for column in columns if column.name != DATA]
    selected = [each for column in from_index for each in column.sql()]
    data = next((DataToArrow(column.kind) for column in columns if column.name == DATA), None)
    place = [] if data is None else [*PLACE]
    if data is not None and not is_plain(data, opened.reader, snapshot):
        place.append("datum.reftime")
    where, values = condition_of(partition, snapshot)
    positions = {each: number for number, each in enumerate(dict.fromkeys([*place, *selected]))}
    named = ", ".join(f"{each} AS c{number}" for each, number in positions.items())

    def finished(rows: pa.RecordBatch) -> list[pa.Array]:
        return [*rows_to_arrow.convert([rows.columns[positions[each]] for each in selected])]

    rows_to_arrow = RowsToArrow(from_index, snapshot, opened.reader.prefix)
    schema = arrow_schema(columns)
    for batch in _batches(snapshot.connection, f"SELECT {named} FROM datum WHERE {where}", values):
        if data is None:
            yield pa.RecordBatch.from_arrays(finished(batch), schema=schema)
            continue
        for some, contents in with_data(batch, data, opened.reader, snapshot):
            arrays = dict(zip((each.name for each in from_index), finished(some), strict=True))
            arrays[DATA] = contents
            yield pa.RecordBatch.from_arrays([arrays[column.name] for column in columns], schema=schema)


def _batches(connection: Any, sql: str, values: list[Any]) -> Iterator[pa.RecordBatch]:
    if hasattr(connection, "batches"):
        yield from connection.batches(sql, values, ROWS)
        return
    cursor = connection.execute(sql, values)
    while rows := cursor.fetchmany(ROWS):
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, [f"c{number}" for number in range(len(arrays))])
