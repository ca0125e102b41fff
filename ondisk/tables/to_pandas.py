"""A table of Arrow as a DataFrame of pandas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.errors import InvalidInput
from ondisk.tables.arrow_data import EXACT


def to_pandas(reader: pa.RecordBatchReader) -> Any:
    """Return the rows of a table as a DataFrame.

    Raises:
        InvalidInput: pandas would round integers: those of a column with missing values become floats.
        ModuleNotFoundError: pandas is not installed.
    """
    table = reader.read_all()
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if column.null_count and pa.types.is_integer(column.type):
            least, most = pc.min_max(column).as_py().values()
            if least is not None and not -EXACT <= least <= most <= EXACT:
                problem = f"{name} has missing values and integers that pandas would round"
                hint = "Write to_arrow(…).read_all().to_pandas(types_mapper=pandas.ArrowDtype)."
                raise InvalidInput(problem, hint=hint)
    return table.to_pandas()
