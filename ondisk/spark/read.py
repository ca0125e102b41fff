"""Reading partitions of a plan: rows of the index and their data, as batches of Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.auxiliary_files import open_directory, read_config
from ondisk.index import Snapshot
from ondisk.spark.pinned_state import Gone, changed, kept_rows
from ondisk.spark.plan import IndexState, Partition
from ondisk.tables.arrow_values import DataToArrow
from ondisk.tables.columns import DATA
from ondisk.tables.index_to_arrow import PLACE, ROWS, Column, RowsToArrow, arrow_schema, is_plain, with_data

Read: TypeAlias = Callable[[Partition, Opened, Snapshot], Iterator[pa.RecordBatch]]


@contextlib.contextmanager
def opened(path: str, connect: Any) -> Iterator[Access]:
    """Open a dataset for reading during a block; raise as `Dataset.open`."""
    with open_directory(Path(path).absolute()) as directory:
        access = Access(directory, read_config(directory), read_only=True, connect=connect)
        with contextlib.closing(access):
            yield access


def later(partition: Partition, read: Read, connect: Any) -> Iterator[pa.RecordBatch]:
    """Yield what `read` yields of a partition, some time after it was planned.

    Raises:
        StateError: some data of the state were removed since, and are not kept.
        SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: data are not on disk as the index says.
    """
    state = partition.state
    if not Path(state.path).is_dir():
        raise changed(state.path, "it no longer exists")
    with opened(state.path, connect) as access:
        current = access.current()
        if current.index.missing:
            raise changed(state.path, "its index is lost")
        with current.index.snapshot() as snapshot:
            kept = state.pinned.kept(current, snapshot)
            _check_left_out(state, snapshot)
            yield from read(partition, current, snapshot)
            aged, values = state.pinned.aged()
            of_kept = replace(partition, sql=f"{aged} AND {partition.sql}", values=[*values, *partition.values])
            for name in kept:
                try:
                    with kept_rows(name, current, state.pinned.uuid) as rows:
                        yield from read(of_kept, current, rows)
                except Gone:
                    raise state.pinned.lost(current) from None


def _check_left_out(state: IndexState, snapshot: Snapshot) -> None:
    """Raise if segments of a plan that leaves out some may have been moved to their folders, or from them."""
    if state.segments is not None:
        count, last = state.segments
        ((present,),) = snapshot.fetch("SELECT count(*) FROM segment WHERE id <= ?", (last,))
        if present < count:
            raise changed(state.path, "segments were rewritten, moved or removed, and some are offline")


def read(
    partition: Partition, opened: Opened, snapshot: Snapshot, columns: Sequence[Column], limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition from a snapshot, in any order, or as many as the limit."""
    columns = [column.of(opened.index.config, partition.state.dataset) for column in columns]
    from_index = [column for column in columns if column.name != DATA]
    selected = [each for column in from_index for each in column.sql()]
    data = next((DataToArrow(column.kind) for column in columns if column.name == DATA), None)
    place = [] if data is None else [*PLACE]
    if data is not None and not is_plain(data, opened.reader, snapshot):
        place.append("datum.reftime")
    where, values = partition.condition()
    positions = {each: number for number, each in enumerate(dict.fromkeys([*place, *selected]))}
    named = ", ".join(f"{each} AS c{number}" for each, number in positions.items())

    def finished(rows: pa.RecordBatch) -> list[pa.Array]:
        return [*rows_to_arrow.convert([rows.columns[positions[each]] for each in selected])]

    rows_to_arrow = RowsToArrow(from_index, snapshot)
    schema = arrow_schema(columns)
    few = "" if limit is None else f" LIMIT {limit}"
    for batch in batches(snapshot.connection, f"SELECT {named} FROM datum WHERE {where}{few}", values):
        if data is None:
            yield pa.RecordBatch.from_arrays(finished(batch), schema=schema)
            continue
        for some, contents in with_data(batch, data, opened.reader, snapshot):
            arrays = dict(zip((each.name for each in from_index), finished(some), strict=True))
            arrays[DATA] = contents
            yield pa.RecordBatch.from_arrays([arrays[column.name] for column in columns], schema=schema)


def batches(connection: Any, sql: str, values: list[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query; their columns are c0, c1 and so on."""
    if hasattr(connection, "batches"):
        yield from connection.batches(sql, values, ROWS)
        return
    cursor = connection.execute(sql, values)
    while rows := cursor.fetchmany(ROWS):
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, [f"c{number}" for number in range(len(arrays))])
