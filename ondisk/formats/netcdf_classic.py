"""The header and small variables of NetCDF files of the classic formats: CDF-1, 2 and 5.

Source: the NetCDF file format specifications, https://docs.unidata.ucar.edu/netcdf-c.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ondisk.errors import InvalidInput, shown

MAGIC = (b"CDF\1", b"CDF\2", b"CDF\5")
"""How such a file begins."""

_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_TEXT = 2
_TYPES = {1: "b", _TEXT: "c", 3: "h", 4: "i", 5: "f", 6: "d", 7: "B", 8: "H", 9: "I", 10: "q", 11: "Q"}
_MOST = 100_000  # names in a file; each list claims a length
_MOST_VALUES = 1024 * 1024  # of a variable
_LONGEST_NAME = 10_000


class _Raw(NamedTuple):
    type: int
    content: bytes


class _Variable(NamedTuple):
    dimensions: list[int]
    attributes: dict[str, _Raw]
    type: int
    begin: int


class Classic:
    """A file of a classic format in memory, see `ondisk.formats.netcdf.Variables`; raises InvalidInput."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 4
        self._left = _MOST
        self._version = content[3]
        self._records = self._count()
        self._dimensions = [(self._name(), self._count()) for _ in range(self._length(_DIMENSION))]
        self._attributes = self._read_attributes()
        self._variables = {}
        for _ in range(self._length(_VARIABLE)):
            name = self._name()
            self._variables[name] = self._read_variable()

    def attribute(self, name: str, variable: str | None = None) -> Any:
        raw = (self._attributes if variable is None else self._variables[variable].attributes).get(name)
        if raw is None:
            return None
        if raw.type == _TEXT:
            return raw.content.rstrip(b"\0").decode(errors="replace")
        values = _numbers(raw)
        return values[0] if len(values) == 1 else None

    def dimensions(self) -> set[str]:
        return {name for name, _ in self._dimensions}

    def variables(self) -> list[str]:
        return list(self._variables)

    def first(self, name: str) -> float | None:
        variable = self._variables[name]
        sizes = (self._dimensions[each][1] for each in variable.dimensions)
        return self._read(name, 1)[0] if all(size or self._records for size in sizes) else None

    def values(self, name: str) -> Sequence[float]:
        count = math.prod(self._dimensions[each][1] for each in self._variables[name].dimensions)
        if not count:
            raise InvalidInput(f"{shown(name)} has one value in each record")  # they do not lie side by side
        if count > _MOST_VALUES:
            raise InvalidInput(f"{shown(name)} has {count} values, more than {_MOST_VALUES}")
        return self._read(name, count)

    def _read(self, name: str, count: int) -> Sequence[float]:
        variable = self._variables[name]
        if variable.type == _TEXT:
            raise InvalidInput(f"{shown(name)} has no numbers")
        size = count * struct.calcsize(_TYPES[variable.type])
        content = self._content[variable.begin : variable.begin + size]
        if len(content) < size:
            raise InvalidInput(f"it ends before the values of {shown(name)}")
        return _numbers(_Raw(variable.type, content))

    def _read_variable(self) -> _Variable:
        dimensions = [self._count() for _ in range(self._counted(self._count()))]
        if any(each >= len(self._dimensions) for each in dimensions):
            raise InvalidInput("a variable has a dimension that there is not")
        attributes, type_ = self._read_attributes(), self._type()
        self._count()  # its size, which says nothing new
        return _Variable(dimensions, attributes, type_, self._unsigned(4 if self._version == 1 else 8))

    def _read_attributes(self) -> dict[str, _Raw]:
        found = {}
        for _ in range(self._length(_ATTRIBUTE)):
            name, type_ = self._name(), self._type()
            found[name] = _Raw(type_, self._padded(self._count() * struct.calcsize(_TYPES[type_])))
        return found

    def _take(self, size: int) -> bytes:
        found = self._content[self._at : self._at + size]
        if len(found) < size:
            raise InvalidInput("it ends before its header does")
        self._at += size
        return found

    def _padded(self, size: int) -> bytes:
        found = self._take(size)
        self._take(-size % 4)
        return found

    def _unsigned(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _count(self) -> int:
        return self._unsigned(8 if self._version == 5 else 4)

    def _type(self) -> int:
        found = self._unsigned(4)
        if found not in _TYPES:
            raise InvalidInput(f"it has values of the unknown type {found}")
        return found

    def _name(self) -> str:
        size = self._count()
        if size > _LONGEST_NAME:
            raise InvalidInput(f"a name has {size} bytes, more than {_LONGEST_NAME}")
        return self._padded(size).decode(errors="replace")

    def _length(self, tag: int) -> int:
        """Return the length of a list, whose tag comes first; an absent list has none."""
        found, length = self._unsigned(4), self._count()
        if found != tag and (found or length):
            raise InvalidInput(f"it has a list of kind {found} where one of kind {tag} should be")
        return self._counted(length)

    def _counted(self, length: int) -> int:
        self._left -= length
        if self._left < 0:
            raise InvalidInput(f"its header has more than {_MOST} names")
        return length


def _numbers(raw: _Raw) -> Sequence[float]:
    letter = _TYPES[raw.type]
    return struct.unpack(f">{len(raw.content) // struct.calcsize(letter)}{letter}", raw.content)
