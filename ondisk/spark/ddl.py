"""Reading a schema as Spark's DDL writes it: `wind double, note string, at struct<x: int, y: int>`.

Spark's own parser runs in Java, which a Python worker does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ondisk.errors import InvalidInput

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>,:]))")
_SIMPLE: dict[str, Callable[[], DataType]] = {
    "string": StringType,
    "binary": BinaryType,
    "boolean": BooleanType,
    "timestamp": TimestampType,
    **dict.fromkeys(("bigint", "long"), LongType),
    **dict.fromkeys(("int", "integer"), IntegerType),
    **dict.fromkeys(("smallint", "short"), ShortType),
    **dict.fromkeys(("tinyint", "byte"), ByteType),
    "double": DoubleType,
    **dict.fromkeys(("float", "real"), FloatType),
}


def parse_struct(text: str) -> StructType:
    """Read the columns of a struct.

    Raises:
        InvalidInput: it is no such schema.
    """
    reader = _Reader(text)
    fields = reader.fields()
    if reader.kind:
        raise reader.error("a comma or the end")
    return StructType(fields)


class _Reader:
    """The tokens of a text: `kind` is that of the present one, `name`, a sign or empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.kind = self._word = ""
        self._next()

    def error(self, wanted: str) -> InvalidInput:
        hint = "Write it as `wind double, note string, at struct<x: int, y: int>, many array<double>`."
        return InvalidInput(
            f"data_schema {self._text!r}: {wanted} is missing near {self._word or 'the end'!r}", hint=hint
        )

    def fields(self) -> list[StructField]:
        fields = [self._field()]
        while self.kind == ",":
            self._next()
            fields.append(self._field())
        return fields

    def _field(self) -> StructField:
        name = self._take("name", "the name of a column")
        if self.kind == ":":
            self._next()
        return StructField(name, self._type())

    def _type(self) -> DataType:
        name = self._take("name", "a type").lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name not in ("struct", "array", "map"):
            raise self.error(f"a type in place of {name!r}")
        self._take("<", "<")
        if name == "struct":
            found: DataType = StructType(self.fields())
        elif name == "array":
            found = ArrayType(self._type())
        else:
            key = self._type()
            self._take(",", "a comma")
            found = MapType(key, self._type())
        self._take(">", ">")
        return found

    def _take(self, kind: str, wanted: str) -> str:
        if self.kind != kind:
            raise self.error(wanted)
        word = self._word
        self._next()
        return word

    def _next(self) -> None:
        matched = _TOKEN.match(self._text, self._at)
        if matched is None:
            rest = self._text[self._at :].strip()
            self.kind, self._word = ("?", rest) if rest else ("", "")
            return
        self._at = matched.end()
        quoted, word, sign = matched.groups()
        self.kind, self._word = (sign, sign) if sign else ("name", quoted.replace("``", "`") if quoted else word)
