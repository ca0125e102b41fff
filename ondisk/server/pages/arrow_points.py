"""Points of a plot from batches of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_SUMS = [("y", "min"), ("y", "max"), ("y", "sum"), ("y", "count")]
_AGAIN = [("min", "min"), ("max", "max"), ("sum", "sum"), ("n", "sum")]
_NAMES = ["min", "max", "sum", "n"]

Series = dict[Any, dict[str, list[Any]]]
"""The value of the group, or None, and for each point or pixel: `time` (microseconds), `min`, `max`, `sum` and `n`."""


def by_pixel(batches: Iterable[pa.Table], begin: int, pixel: int, most: int) -> Series | None:
    """Return the numbers of each pixel of a plot together; None if there would be more than `most` rows of sums.

    `begin`, `pixel`: where the first pixel begins, and how long each is, in microseconds.
    """
    parts: list[pa.Table] = []
    for batch in batches:
        place = pc.divide(pc.subtract(batch.column("time"), begin), pixel)
        keyed = pa.table({"place": place, "key": batch.column("key"), "y": batch.column("y")})
        part = keyed.group_by(["place", "key"]).aggregate(_SUMS)
        parts.append(part.rename_columns({f"y_{way}": name for (_, way), name in zip(_SUMS, _NAMES, strict=True)}))
        if sum(each.num_rows for each in parts) > most:
            parts = [_joined(parts)]
            if parts[0].num_rows > most // 2:
                return None
    found: Series = {}
    for row in _joined(parts).sort_by("place").to_pylist() if parts else ():
        columns = found.setdefault(row["key"], {"time": [], **{name: [] for name in _NAMES}})
        columns["time"].append(begin + row["place"] * pixel + pixel // 2)
        for name in _NAMES:
            columns[name].append(row[name])
    return found


def _joined(parts: list[pa.Table]) -> pa.Table:
    found = pa.concat_tables(parts).group_by(["place", "key"]).aggregate(_AGAIN)
    return found.rename_columns({f"{name}_{way}": name for name, way in _AGAIN})


def columns(table: pa.RecordBatchReader, y: str, by: str) -> Iterator[pa.Table]:
    """Yield the times (microseconds), the finite numbers and the groups of the batches of a table."""
    for batch in table:
        time = batch.column("reftime").cast(pa.int64())
        number = batch.column(y).cast(pa.float64(), safe=False)  # integers beyond 2**53 are rounded
        key = batch.column(by) if by else pa.nulls(batch.num_rows)
        key = key.dictionary_decode() if pa.types.is_dictionary(key.type) else key
        yield pa.table({"time": time, "y": number, "key": key}).filter(pc.is_finite(number))
