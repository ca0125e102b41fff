"""Files of Parquet and Arrow (with Feather, version 2) as tables, in bounded memory, whatever the files say.

A file is recognised by its first bytes. Its own description of itself is checked before memory is allocated for what
it says: columns that are far larger than their bytes in the file, and texts that many rows share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.tables.arrow_in import errors_of

# Of what a file says about a column of a group of rows.
_LARGE, _RATIO = 256 * 1024 * 1024, 1_000  # bytes; more than this many times its bytes in the file
_TEXTS, _PARTS = 64 * 1024 * 1024, 1_000_000  # bytes of a text, and entries of a list, in the description
_DECODED = 64 * 1024 * 1024  # bytes of rows that are decoded together
_SHARED = 1024 * 1024 * 1024  # bytes of a column, if each row had all of its distinct texts
_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a file: its schema, and its rows, which can be read once."""

    schema: pa.Schema
    rows: Iterator[pa.RecordBatch]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.rows


def opened(file: Any) -> Table:
    """Return the table in a file.

    Args:
        file: a file object of bytes that can seek.

    Raises:
        InvalidInput: it is not a file of Parquet or Arrow, or is damaged.
        LimitExceeded: it says that a column is far larger than the file.
    """
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    with errors_of("the file"):
        if head.startswith(b"PAR1"):
            return _parquet(file)
        if head.startswith(b"ARROW1"):
            found = pa.ipc.open_file(file)
            return Table(found.schema, (found.get_batch(number) for number in range(found.num_record_batches)))
        if head.startswith(b"\xff\xff\xff\xff"):
            reader = pa.ipc.open_stream(file)
            return Table(reader.schema, iter(reader))
    if head.startswith(b"FEA1"):
        hint = "Write it again with version=2, or as Parquet."
        raise InvalidInput("the file is of Feather, version 1, which is not read", hint=hint)
    raise InvalidInput("it is not a file of Parquet or Arrow", hint="Choose another --format, or none.")


def _parquet(file: Any) -> Table:
    limits = {"thrift_string_size_limit": _TEXTS, "thrift_container_size_limit": _PARTS}
    found = pq.ParquetFile(file, pre_buffer=False, **limits)
    largest = _checked(found.metadata)
    weight = 1 + sum(row_bytes for row_bytes, _ in largest.values())
    count = int(max(1, min(_ROWS, _DECODED // weight)))
    shared = [path for path, (_, most) in largest.items() if most * count > _SHARED]
    if shared:  # rows may share texts: read these only once
        file.seek(0)
        found = pq.ParquetFile(file, pre_buffer=False, read_dictionary=shared, **limits)
    return Table(found.schema_arrow, found.iter_batches(batch_size=count))


def _checked(metadata: Any) -> dict[str, tuple[float, int]]:
    """Check what a file of Parquet says about its columns.

    Returns:
        Path of a column → bytes of a row, and the most bytes that one row can have.

    Raises:
        LimitExceeded: a column is far larger than its bytes in the file.
    """
    largest: dict[str, tuple[float, int]] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            stored, size = column.total_compressed_size, column.total_uncompressed_size
            if size > _LARGE and size > _RATIO * max(stored, 1):
                problem = f"the file says that {column.path_in_schema} has {size} bytes, in {stored} bytes of the file"
                hint = "Is it the right file? If so, write it again without compression."
                raise LimitExceeded(problem, hint=hint)
            is_text = column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
            each, most = largest.get(column.path_in_schema, (0.0, 0))
            row = max(size, 0) / max(group.num_rows, 1)
            largest[column.path_in_schema] = max(each, row), max(most, size) if is_text else most
    return largest
