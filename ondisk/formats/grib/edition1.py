"""GRIB edition 1: what identifies a message. The bitmap and the data are not looked at.

    "GRIB", length (3), 1, section 1: product, section 2: grid, section 3: bitmap, section 4: data, "7777"

Source: WMO no. 306, FM 92-IX GRIB; arkimet 1.66 for which values an item has and how time ranges of nudging are read.
A message longer than 0x7fffff bytes has its length in units of 120 bytes, as ECMWF writes it.
"""

from __future__ import annotations

from typing import Any

from ondisk.errors import InvalidInput
from ondisk.formats.grib.octets import MISSING_2, UNITS, bounds, duration, ibm, signed, three, timedef, two
from ondisk.formats.self_describing import pairs

_BEGIN = 8  # of section 1
LARGE = 0x800000
"""A length from which on it may be one in units of 120 bytes."""
_LARGE_UNIT = 120
_HAS_GRID, _HAS_BITMAP = 0x80, 0x40
_LEAST = 40

# Types of levels whose octets 11 and 12 are two values; those of which arkimet shows none or one of the values.
_LAYERS = frozenset((101, 104, 106, 108, 110, 112, 114, 116, 120, 121, 128, 141))
_NO_VALUE = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 102, 200, 201))
_ONE_VALUE = frozenset((20, 100, 103, 105, 107, 109, 111, 113, 115, 117, 118, 121, 122, 160))
# Type of level → what its (first) value is multiplied by to be in the unit that edition 2 has for it.
_SI = {20: 0.01, 100: 100.0, 101: 1000.0, 103: 1.0, 104: 100.0, 105: 1.0, 106: 100.0, 107: 1e-4, 108: 0.01, 109: 1.0,
       110: 1.0, 111: 0.01, 112: 0.01, 113: 1.0, 115: 100.0, 116: 100.0, 117: 1e-9, 119: 1e-4, 120: 0.01, 125: 0.01,
       160: 1.0}  # fmt: skip

_NUDGING, _COSMO = 13, frozenset((78, 80, 200))
_AVERAGE, _SUM, _MOST, _LEAST_OF = 0, 1, 2, 3
# Table → parameter → statistic, of analyses by nudging.
_NUDGED: dict[int, dict[int, int]] = {
    2: {
        **dict.fromkeys((11, 17, 33, 34, 111, 112, 113, 114, 121, 122, 124, 125, 126, 127), _AVERAGE),
        **dict.fromkeys((57, 61, 78, 79, 90, 152, 153), _SUM),
        15: _MOST,
        16: _LEAST_OF,
    },
    201: {
        **dict.fromkeys((5, 22, 23, 24, 25, 26, 27), _AVERAGE),
        **dict.fromkeys((20, 42, 102, 113, 132, 135), _SUM),
        **dict.fromkeys((187, 218, 219), _MOST),
    },
    202: dict.fromkeys((231, 232, 233), _AVERAGE),
}
_INSTANT, _ANALYSIS, _LONG_P1, _ONLY_P2 = 0, 1, 10, frozenset((118, 123, 124))
_SECONDS = 254  # indicator of the unit, which is 13 in edition 2

# Grids with a last point, with the numbers of points in any case, and with a rotated pole.
_WITH_LAST = frozenset((0, 1, 4, 10, 14, 20, 24, 30, 34))
_BY_AXES = frozenset((1, 3, 5, 8, 13))
_ROTATED = frozenset((10, 14, 30, 34))
_GEOGRAPHIC = frozenset((0, 1, 4))
_UTM = 1_000_000  # a latitude of so many thousandths of a degree is one of metres

# ECMWF's local definitions: which are defined, and which have the number of the member in one or two octets.
_ECMWF = 98
_LOCAL = frozenset((*range(1, 22), *range(23, 34), *range(35, 41), 49, 50, 190, 191, 192, 218, 244, 245))
_MEMBER_1 = frozenset((1, 2, 4, 5, 13, 14, 17, 18, 19, *range(26, 33), 36, 37, 40, 49, 50))
_MEMBER_2 = frozenset((12, 15, 16, 23))


def size_of(window: bytes, at: int) -> int:
    size = int.from_bytes(window[at + 4 : at + 7], "big")
    if size < LARGE:
        return size if size >= _LEAST else 0
    place = at + _BEGIN
    if len(window) < place + 8:
        return at - place - 8
    flags = window[place + 7]
    place += int.from_bytes(window[place : place + 3], "big")
    for flag in (_HAS_GRID, _HAS_BITMAP):
        if flags & flag:
            if len(window) < place + 3:
                return at - place - 3
            place += int.from_bytes(window[place : place + 3], "big")
    if len(window) < place + 3:
        return at - place - 3
    data = int.from_bytes(window[place : place + 3], "big")
    return (size - LARGE) * _LARGE_UNIT - data + 4 if data < _LARGE_UNIT else size


def sections(message: bytes) -> tuple[bytes, bytes]:
    """Return the sections 1 and 2, the latter empty if there is none; raise InvalidInput of a wrong length."""
    end = _BEGIN + int.from_bytes(message[_BEGIN : _BEGIN + 3], "big")
    if not _BEGIN + 28 <= end <= len(message):
        raise InvalidInput(f"section 1 has {end - _BEGIN} octets")
    if not message[_BEGIN + 7] & _HAS_GRID:
        return message[_BEGIN:end], b""
    size = int.from_bytes(message[end : end + 3], "big")
    if not 6 <= size <= len(message) - end:
        raise InvalidInput(f"section 2 has {size} octets")
    return message[_BEGIN:end], message[end : end + size]


def key_and_time(parts: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return what identifies a message beside its date, and the octets of its time."""
    product, grid = parts
    return product[3:12] + product[15:24] + product[25:] + grid, product[12:17] + product[24:25]


def date_of(time: bytes) -> tuple[int, int, int, int, int, int]:
    return (time[5] - 1) * 100 + time[0], time[1], time[2], time[3], time[4], 0


def read(parts: tuple[bytes, bytes]) -> dict[str, Any]:
    product, grid = parts
    centre, table, parameter, subcentre = product[4], product[3], product[8], product[25]
    found: dict[str, Any] = {
        "run": f"MINUTE,{product[15]:02}:{product[16]:02}",
        "origin": f"GRIB1,{centre},{subcentre},{product[5]}",
        "product": f"GRIB1,{centre},{table},{parameter}",
    }
    found |= _level(product)
    definition: dict[str, Any] = {"tod": 1}
    if product[20] == _NUDGING and centre in _COSMO:
        definition["tod"] = 0
        time_range = _nudging(product)
        if time_range is None:
            return found  # arkimet has neither area nor proddef then
    else:
        time_range = _time_range(product)
    found["timerange"] = time_range
    if grid:
        found |= _area(grid)
    found["proddef"] = pairs("GRIB", definition | _ensemble(product))
    return found


def _level(product: bytes) -> dict[str, Any]:
    kind = product[9]
    is_layer = kind in _LAYERS
    first, second = (product[10], product[11]) if is_layer else (two(product, 11), 0)
    found: dict[str, Any] = {}
    if kind in _NO_VALUE:
        found["level"] = f"GRIB1,{kind}"
    elif kind in _ONE_VALUE:
        found["level"] = f"GRIB1,{kind},{first}"
    else:
        found["level"] = f"GRIB1,{kind},{first & 0xFF},{second & 0xFF}"
    if kind in _SI:
        found["level_value"] = _scaled(first, _SI[kind])
    return found


def _scaled(value: int, factor: float) -> float:
    # 7 / 10000 is the number that edition 2 has; 7 * 1e-4 is not.
    return value * factor if factor >= 1 else value / round(1 / factor)


def _nudging(product: bytes) -> str | None:
    """Return the time range of an analysis by nudging, which is over some time before it; None if it is not known."""
    unit, begin, end = product[17:20]
    if not begin and not end:
        return timedef("0s", 254, "0s")
    statistic = _NUDGED.get(product[3], {}).get(product[8])
    if begin > end or statistic is None:
        return None
    return timedef("0s", statistic, duration(end - begin, 13 if unit == _SECONDS else unit))


def _time_range(product: bytes) -> str:
    indicator, begin, end, kind = product[17:21]
    unit = "s" if indicator == _SECONDS else UNITS.get(indicator, f"u{indicator}")
    if indicator == 13:
        unit = "u13"
    if kind == _ANALYSIS:
        return "GRIB1,1"
    if kind == _INSTANT:
        return f"GRIB1,0,{begin}{unit}"
    if kind == _LONG_P1:
        return f"GRIB1,10,{begin << 8 | end}{unit}"
    if kind in _ONLY_P2:
        return f"GRIB1,{kind},{end}{unit}"
    return f"GRIB1,{kind},{begin}{unit},{end}{unit}"


def _area(grid: bytes) -> dict[str, Any]:
    kind = grid[5]
    area: dict[str, Any] = {"type": kind}
    if kind not in _WITH_LAST and kind not in _BY_AXES:
        return {"area": pairs("GRIB", area)}
    columns, rows = two(grid, 7), two(grid, 9)
    latitude, longitude = signed(three(grid, 11), 3), signed(three(grid, 14), 3)
    factor = 1 if latitude >= _UTM else 1000
    area |= {"latfirst": latitude * factor, "lonfirst": longitude * factor}
    is_regular = columns not in (0, MISSING_2)
    if is_regular:
        area |= {"Ni": columns, "Nj": None if rows == MISSING_2 and kind not in _BY_AXES else rows}
    if is_regular and kind in _WITH_LAST:
        area |= {"latlast": signed(three(grid, 18), 3) * factor, "lonlast": signed(three(grid, 21), 3) * factor}
    if factor == 1:
        area["utm"] = 1
    elif kind in _ROTATED:
        area |= {"latp": signed(three(grid, 33), 3) * 1000, "lonp": signed(three(grid, 36), 3) * 1000}
        area["rot"] = round(ibm(grid, 39) * 1e6)
    found: dict[str, Any] = {"area": pairs("GRIB", area)}
    if kind in _GEOGRAPHIC and factor != 1 and len(grid) >= 28:
        corners = [signed(three(grid, octet), 3) * 1000 for octet in (11, 14, 18, 21)]
        found |= bounds(corners, grid[27], columns if is_regular else None)
    return found


def _ensemble(product: bytes) -> dict[str, Any]:
    if len(product) <= 40 or _ECMWF not in (product[4], product[25]) or not product[40]:
        return {}
    definition = product[40]
    found: dict[str, Any] = {"ld": definition}
    if definition in _LOCAL:
        found["mt"] = product[42]
    if definition in _MEMBER_1:
        found["nn"] = product[49]
    elif definition in _MEMBER_2:
        found["nn"] = two(product, 50)
    return found
