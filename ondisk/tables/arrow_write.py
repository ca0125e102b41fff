"""Tables as files: Parquet, or Arrow's file format, which is Feather version 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ondisk.dataset.output_file import output_file
from ondisk.filesystem import WritableFile

Form: TypeAlias = Literal["parquet", "arrow"]

# Readers read whole groups of rows of Parquet, and skip whole groups. Memory holds one.
_ROWS, _BYTES = 1_000_000, 64 * 1024 * 1024


def write(reader: pa.RecordBatchReader, path: str | os.PathLike[str], form: Form, *, overwrite: bool = False) -> int:
    """Write a table to a file, and return its number of rows.

    Args:
        overwrite: replace the file if it exists.

    Raises:
        AlreadyExists, InvalidInput, NotFound, DiskFull, StorageError: as `output_file`.
        Also what reading the table raises; then there is no new file.

    Durability: as `output_file`.
    """
    with output_file(path, overwrite=overwrite) as file:
        return (_parquet if form == "parquet" else _arrow)(reader, _Sink(file))


def _parquet(reader: pa.RecordBatchReader, sink: _Sink) -> int:
    count = 0
    with _closing(pq.ParquetWriter(sink, reader.schema)) as writer:
        for table in _groups(reader):
            writer.write_table(table, row_group_size=_ROWS)
            count += table.num_rows
    return count


def _arrow(reader: pa.RecordBatchReader, sink: _Sink) -> int:
    count = 0
    with _closing(pa.ipc.new_file(sink, reader.schema)) as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


@contextlib.contextmanager
def _closing(writer: Any) -> Iterator[Any]:
    """Close a writer, which writes the end of its file, unless there was an error: then that is what is reported."""
    try:
        yield writer
    except BaseException:
        with contextlib.suppress(Exception):
            writer.close()
        raise
    writer.close()


def _groups(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield batches as tables of about the size of a group of rows."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


class _Sink:
    """A file that pyarrow writes to."""

    closed = False

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self._position = 0

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self._file.write(self._position, view)
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the caller syncs the file, then closes it."""
