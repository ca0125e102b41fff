"""ODIM_H5: products of weather radars, one HDF5 file each.

What a file says of itself becomes metadata in arkimet's notation (see `ondisk.items`), and numbers beside them:

    step, period, stat          integer   of sums of precipitation: 0; seconds; 1, the sum, of GRIB's code table 4.10
    north, south, east, west    real      degrees, of images, composites and cross sections

Files of other objects than PVOL, COMP, IMAGE and XSEC have reftime and origin only. Source: EUMETNET OPERA
weather radar information model for implementation with the HDF5 file format, versions 2.0 to 2.2; arkimet 1.66.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ondisk.datum import FieldType, microseconds
from ondisk.errors import InvalidInput, LimitExceeded, shown
from ondisk.formats import hdf5
from ondisk.formats.blob import WholeFile
from ondisk.formats.hdf5 import Group
from ondisk.formats.self_describing import Content, pairs, positions, time_of

_TIME = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2}) ([0-9]{2})([0-9]{2})([0-9]{2})?", re.ASCII)
_DEGREE = 1_000_000
_SUMS, _SUM = "RR", 1  # the product, and the statistic
_ABOVE_GROUND, _LAYER_ABOVE_GROUND = 105, 106  # types of levels of GRIB 1


class OdimH5(WholeFile):
    name: ClassVar[str] = "odimh5"
    items: ClassVar[frozenset[str]] = frozenset(("area", "level", "origin", "product", "quantity", "task", "timerange"))
    numbers: ClassVar[Mapping[str, FieldType]] = {
        **dict.fromkeys(("step", "period", "stat"), FieldType.INTEGER),
        **dict.fromkeys(("north", "south", "east", "west"), FieldType.REAL),
    }

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        return head.startswith(hdf5.MAGIC) and b"ODIM_H5" in head

    def read(self, payload: bytes) -> tuple[int, Content]:
        with hdf5.opened(payload) as file:
            what = _needed(file, "what")
            reftime = _time(what, "date", "time")
            values: dict[str, Any] = {"origin": _origin(_text(what, "source"))}
            object_ = what.attribute("object")
            for read in _READERS.get(str(object_), ()):
                try:
                    values |= read(file)
                except LimitExceeded:
                    raise
                except InvalidInput:  # what a file lacks is left out
                    continue
        return reftime, self.content(values)


def _task(file: Group) -> dict[str, str]:
    return {"task": _text(_needed(file, "how"), "task")}


def _quantities(file: Group) -> dict[str, str]:
    found = {
        str(what.attribute("quantity"))
        for dataset in file.groups("dataset")
        for data in dataset.groups("data")
        if (what := data.group("what")) is not None and what.attribute("quantity") is not None
    }
    return {"quantity": ",".join(sorted(found))} if found else {}


def _elevations(file: Group) -> dict[str, str]:
    scans = [where for each in file.groups("dataset") if (where := each.group("where")) is not None]
    found = [_number(each, "elangle") for each in scans if each.attribute("elangle") is not None]
    return {"level": _between(min(found), max(found))} if found else {}


def _circle(file: Group) -> dict[str, str]:
    """Return the area of a polar volume: its centre, and the radius in m."""
    where = _needed(file, "where")
    radius = max((_radius(each) for each in file.groups("dataset")), default=0.0)
    found = {"lat": _number(where, "lat") * _DEGREE, "lon": _number(where, "lon") * _DEGREE, "radius": radius * 1000}
    return {"area": pairs("ODIMH5", {name: round(each) for name, each in found.items()})}


def _radius(dataset: Group) -> float:
    """Return the radius of a scan, in km; 0 if it is unknown."""
    how, where = dataset.group("how"), dataset.group("where")
    if how is not None and how.attribute("radhoriz") is not None:
        return _number(how, "radhoriz")
    if where is None or where.attribute("nbins") is None or where.attribute("rscale") is None:
        return 0.0
    return _number(where, "nbins") * _number(where, "rscale") / 1000


def _product(file: Group) -> dict[str, str]:
    first = _first(file)
    object_, product = _text(_needed(file, "what"), "object"), _text(first, "product")
    is_known = object_ == "XSEC" or product in _LEVELS or product == _SUMS
    if not is_known and all(_has_product(file, name) for name in ("dataset2", "dataset3")):
        product = "HVMI"
    return {"product": positions("ODIMH5", object_, product)}


def _has_product(file: Group, name: str) -> bool:
    dataset = file.group(name)
    what = None if dataset is None else dataset.group("what")
    return what is not None and what.attribute("product") is not None


def _within(file: Group, *corners: str) -> dict[str, Any]:
    where = _needed(file, "where")
    latitudes = [_number(where, f"{corner}_lat") for corner in corners]
    longitudes = [_number(where, f"{corner}_lon") for corner in corners]
    south, north, west, east = min(latitudes), max(latitudes), min(longitudes), max(longitudes)
    area = _area(south, north, west, east)
    return {"area": area, "north": north, "south": south, "east": east, "west": west}


def _section(file: Group) -> dict[str, Any]:
    """Return the area of a cross section, which goes from its start to its stop."""
    where, ends = _needed(file, "where"), ("start_lat", "stop_lat", "start_lon", "stop_lon")
    return _within(file, "start", "stop") | {"area": _area(*(_number(where, name) for name in ends))}


def _area(*ends: float) -> str:
    found = dict(zip(("latfirst", "latlast", "lonfirst", "lonlast"), ends, strict=True))
    return pairs("GRIB", {name: math.floor(each * _DEGREE) for name, each in found.items()} | {"type": 0})


def _level(file: Group) -> dict[str, str]:
    first = _first(file)
    read = _LEVELS.get(_text(first, "product"))
    return {} if read is None else {"level": read(first)}


def _height(what: Group) -> str:
    return positions("GRIB1", _ABOVE_GROUND, round(_number(what, "prodpar")))


def _layer(what: Group) -> str:
    """Return the level of a sum over a layer, whose bottom and top are in m."""
    text = _text(what, "prodpar")
    numbers = [number for part in text.split(",") if (number := _parsed(part)) is not None]
    if len(numbers) != 2:
        raise InvalidInput(f"prodpar is {shown(text)}, not two numbers")
    bottom, top = numbers
    return positions("GRIB1", _LAYER_ABOVE_GROUND, round(top / 100), round(bottom / 100))


def _sum(file: Group) -> dict[str, Any]:
    first = _first(file)
    if _text(first, "product") != _SUMS:
        return {}
    length = (_time(first, "enddate", "endtime") - _time(first, "startdate", "starttime")) // 1_000_000
    return {"timerange": positions("Timedef", "0s", _SUM, f"{length}s"), "step": 0, "stat": _SUM, "period": length}


_LEVELS: dict[str, Callable[[Group], str]] = {
    **dict.fromkeys(("CAPPI", "PCAPPI"), _height),
    "PPI": lambda what: _between(*[_number(what, "prodpar")] * 2),
    "VIL": _layer,
}
"""How the level of a product of images is read."""

_IMAGE = (_task, _quantities, _product, lambda file: _within(file, "LL", "LR", "UL", "UR"), _level, _sum)
_READERS: dict[str, tuple[Callable[[Group], dict[str, Any]], ...]] = {
    "PVOL": (_task, _quantities, lambda _: {"product": positions("ODIMH5", "PVOL", "SCAN")}, _elevations, _circle),
    "COMP": _IMAGE,
    "IMAGE": _IMAGE,
    "XSEC": (_task, _quantities, _product, _section),
}
"""What is read of a file, by its object."""


def _origin(source: str) -> str:
    """Return the origin of a file from its source: `WMO:16144,RAD:IY46,PLC:itspc`."""
    given = dict(part.split(":", 1) for part in source.split(",") if ":" in part)
    return positions("ODIMH5", given.get("WMO", ""), given.get("RAD", ""), given.get("NOD") or given.get("PLC", ""))


def _between(least: float, most: float) -> str:
    return positions("ODIMH5", f"{least:.5g}", f"{most:.5g}")


def _first(file: Group) -> Group:
    return _needed(_needed(file, "dataset1"), "what")


def _needed(group: Group, name: str) -> Group:
    found = group.group(name)
    if found is None:
        raise InvalidInput(f"it has no group {name}")
    return found


def _text(group: Group, name: str) -> str:
    value = group.attribute(name)
    if not isinstance(value, str):
        raise InvalidInput(f"the attribute {name} is {'missing' if value is None else 'not a text'}")
    return value


def _number(group: Group, name: str) -> float:
    """Return a number, which a text may contain, too."""
    value = group.attribute(name)
    number = _parsed(value) if isinstance(value, int | float | str) else None
    if number is None:
        raise InvalidInput(f"the attribute {name} is {'missing' if value is None else 'not a number'}")
    return number


def _parsed(value: float | str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e12 else None


def _time(group: Group, date: str, time: str) -> int:
    text = f"{_text(group, date)} {_text(group, time)}"
    matched = _TIME.fullmatch(text)
    if matched is None:
        raise InvalidInput(f"{date} and {time}, {shown(text)}, are not a time")
    year, month, day, hour, minute, second = (int(part or 0) for part in matched.groups())
    return microseconds(time_of(year, month, day, hour, minute, second))
