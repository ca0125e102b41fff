"""Columns of Arrow as JSON, without a Python object for each value: equal values are written once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.errors import InvalidInput
from ondisk.json_shapes import dump, to_json
from ondisk.tables.arrow_values import converted, distinct, json_of, plain

_NEWLINE = pa.scalar("\n")
_NOTHING = pa.scalar("")


def members(columns: Sequence[tuple[str, pa.Array]], count: int, depth: int) -> tuple[list[bytes], dict[int, str]]:
    """Return rows as the members of JSON objects, each with a comma before it: `,"wind":3.4,"note":"gusty"`.

    What is NULL is omitted.

    Args:
        columns: keys, and their values.
        count: of rows.
        depth: levels of nesting that are allowed in a value.

    Returns:
        The texts of the rows, and row → reason of those that cannot be written.

    Raises:
        InvalidInput: values of a column cannot be written.
    """
    refused: dict[int, str] = {}
    pieces = []
    for key, array in columns:
        begin = pa.scalar(f",{dump(key).decode()}:")
        pieces.append(pc.binary_join_element_wise(begin, _texts(key, array, depth, refused), _NOTHING))
    if not pieces or not count:
        return [b""] * count, refused
    lines = pc.binary_join_element_wise(*pieces, _NEWLINE, _NOTHING, null_handling="replace", null_replacement="")
    return lines.buffers()[2].to_pybytes().split(b"\n")[:count], refused


def _texts(key: str, array: pa.Array, depth: int, refused: dict[int, str]) -> pa.Array:
    """Return the values of a column as JSON; add those that cannot be written to `refused`."""
    convert = plain(array.type, f"data.{key}")
    if pa.types.is_nested(array.type):
        values, wrong = converted(array, convert)
        texts: list[bytes | None] = []
        for place, value in enumerate(values):
            text = None
            try:
                text = None if value is None else dump(to_json(value, depth))
            except InvalidInput as error:
                wrong[place] = f"data.{key}: {error.message}"
            texts.append(text)
        refused |= wrong
        return pa.array(texts, pa.string())
    dictionary, indices = distinct(array)
    values, wrong = converted(dictionary, convert)
    if wrong:
        places = enumerate(indices.to_pylist())
        refused |= {place: f"data.{key}: {wrong[each]}" for place, each in places if each in wrong}
    return pa.array(json_of(values), pa.string()).take(indices)
