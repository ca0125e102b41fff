"""NetCDF files with the conventions CF: one datum each. Classic ones are read here, those of HDF5 with h5py.

What a file says of itself becomes metadata in arkimet's notation (see `ondisk.items`), and numbers beside them:

    quantity                    item      the names of all variables
    area                        item      where there are the dimensions `lat` and `lon`
    north, south, east, west    real      degrees, of these

The reftime is the attribute `forecast_reference_time`, else `time`, else the first value of the variable `dstart`,
`time` or `ocean_time`. Source: CF conventions, version 1.11; arkimet 1.66; the NetCDF file format specifications of
CDF-1, 2 and 5, https://docs.unidata.ucar.edu/netcdf-c.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, microseconds
from ondisk.errors import ConfigError, InvalidInput, shown
from ondisk.formats import hdf5
from ondisk.formats.blob import WholeFile
from ondisk.formats.self_describing import Content, pairs, positions

MAGIC = (b"CDF\1", b"CDF\2", b"CDF\5")
"""How a file of a classic format begins."""

_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_TEXT = 2
_TYPES = {1: "b", _TEXT: "c", 3: "h", 4: "i", 5: "f", 6: "d", 7: "B", 8: "H", 9: "I", 10: "q", 11: "Q"}
_MOST = 100_000  # names in a file; each list claims a length
_MOST_VALUES = 1024 * 1024  # of a variable
_LONGEST_NAME = 10_000
_TIMES = ("dstart", "time", "ocean_time")
_CALENDARS = (None, "standard", "gregorian", "proleptic_gregorian")
_SINCE = re.compile(
    r"\s*(\w+)\s+since\s+([0-9]{1,4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]\s*([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.0*)?)?)?\s*(?:Z|UTC|\+?0?0:?0?0)?\s*",
    re.ASCII,
)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
_DEGREE = 1_000_000
_UNNAMED = "This is a netCDF dimension but not a netCDF variable"
_Variables: TypeAlias = "_Classic | _Hdf5"
_ARPAE = "Arpae-Simc"  # whose files arkimet gives more metadata


class NetCdf(WholeFile):
    name: ClassVar[str] = "netcdf"
    items: ClassVar[frozenset[str]] = frozenset(("area", "origin", "quantity"))
    numbers: ClassVar[Mapping[str, FieldType]] = dict.fromkeys(("north", "south", "east", "west"), FieldType.REAL)

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if config.extension == self.extension:
            hint = "Remove it from dataset.toml; or choose another one, if the files are blobs."
            raise ConfigError("extension: 'nc' belongs to netcdf", hint=hint, key="extension")

    @property
    def extension(self) -> str:
        return "nc"

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        is_hdf5 = head.startswith(hdf5.MAGIC) and any(each in head for each in (b"_NCProperties", b"_Netcdf4", b"CF-"))
        return head.startswith(MAGIC) or (is_hdf5 and b"ODIM_H5" not in head)

    def read(self, payload: bytes) -> tuple[int, Content]:
        with _opened(payload) as file:
            conventions = file.attribute("Conventions")
            if not isinstance(conventions, str) or not conventions.startswith("CF-"):
                raise InvalidInput(f"the attribute Conventions is {shown(conventions)}, and does not begin with CF-")
            values: dict[str, Any] = {"quantity": ",".join(sorted(set(file.variables())))}
            is_arpae = file.attribute("institution") == _ARPAE
            if is_arpae:
                values["origin"] = positions("GRIB1", 255, 255, 255)
            if is_arpae and file.attribute("region") is not None:
                values["area"] = "GRIB:"
            elif {"lat", "lon"} <= file.dimensions() & set(file.variables()):
                values |= _area(file)
            return _reftime(file), self.content(values)


@contextmanager
def _opened(content: bytes) -> Iterator[_Variables]:
    if content.startswith(MAGIC):
        yield _Classic(content)
        return
    with hdf5.opened(content) as group:
        yield _Hdf5(group)


class _Hdf5:
    """The root group of a NetCDF-4 file. An attribute is None if there is none, or if it has several values."""

    def __init__(self, group: hdf5.Group) -> None:
        self._group = group
        found = {name: dataset for name in group.names() if (dataset := group.dataset(name)) is not None}
        self._dimensions = {name for name, each in found.items() if each.attribute("CLASS") == "DIMENSION_SCALE"}
        self._variables = {
            name: each for name, each in found.items() if not str(each.attribute("NAME")).startswith(_UNNAMED)
        }

    def attribute(self, name: str, variable: str | None = None) -> Any:
        return (self._group if variable is None else self._variables[variable]).attribute(name)

    def dimensions(self) -> set[str]:
        return self._dimensions

    def variables(self) -> list[str]:
        return list(self._variables)

    def first(self, name: str) -> float | None:
        return self._variables[name].first()

    def values(self, name: str) -> Sequence[float]:
        return self._variables[name].values()


class _Raw(NamedTuple):
    type: int
    content: bytes


class _Variable(NamedTuple):
    dimensions: list[int]
    attributes: dict[str, _Raw]
    type: int
    begin: int


class _Classic:
    """A file of a classic format in memory, as `_Hdf5` is for the others; raises InvalidInput."""

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


def _area(file: _Variables) -> dict[str, Any]:
    latitudes, longitudes = file.values("lat"), file.values("lon")
    numbers = [min(latitudes), max(latitudes), min(longitudes), max(longitudes)] if latitudes and longitudes else []
    if not numbers or not all(math.isfinite(each) and abs(each) <= 1000 for each in numbers):
        return {}
    corners = [round(each * _DEGREE) for each in numbers]
    area = dict(zip(("latfirst", "latlast", "lonfirst", "lonlast"), corners, strict=True)) | {"type": 0}
    bounds = dict(zip(("south", "north", "west", "east"), map(float, numbers), strict=True))
    return {"area": pairs("GRIB", area), **bounds}


def _reftime(file: _Variables) -> int:
    text = file.attribute("forecast_reference_time") or file.attribute("time")
    if text:
        try:
            return microseconds(datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC))
        except ValueError:
            raise InvalidInput(f"its reference time, {shown(text)}, is not a time") from None
    for name in _TIMES:
        if name in file.variables() and (value := file.first(name)) is not None:
            return _since(value, file.attribute("units", name), file.attribute("calendar", name))
    raise InvalidInput(f"it has no time: neither an attribute nor a variable {', '.join(_TIMES)}")


def _since(value: float, units: Any, calendar: Any) -> int:
    if calendar not in _CALENDARS:
        raise InvalidInput(f"its calendar is {shown(calendar)}, not one of {', '.join(map(str, _CALENDARS[1:]))}")
    matched = _SINCE.fullmatch(str(units))
    unit = None if matched is None else _SECONDS.get(matched[1].lower())
    if matched is None or unit is None:
        raise InvalidInput(f"the units of its time are {shown(units)}")
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in matched.groups()[1:])
        begin = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        return microseconds(begin + timedelta(microseconds=round(float(value) * unit * 1_000_000)))
    except (OverflowError, ValueError):
        raise InvalidInput(f"its time, {value} {shown(units)}, is not a time") from None
