"""Reads numbers of GRIB sections by the numbers of their octets, which begin with 1 as in WMO's manual.

All that read raise IndexError or struct.error if the section is too short.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

_TWO, _FOUR, _FLOAT = Struct(">H").unpack_from, Struct(">I").unpack_from, Struct(">f").unpack_from
MISSING_1, MISSING_2, MISSING_4 = 0xFF, 0xFFFF, 0xFFFFFFFF
"""Numbers of one, two and four octets with all bits set are missing."""

_DEGREE = 1_000_000
_CIRCLE = 360 * _DEGREE
_NEGATIVE_I = 0x80  # of the scanning mode: points of a row go west

UNITS = {0: "m", 1: "h", 2: "d", 3: "mo", 4: "y", 5: "de", 6: "no", 7: "ce", 10: "h3", 11: "h6", 12: "h12", 13: "s"}
"""Code table 4.4 of GRIB 2: indicator of the unit of a time → unit, as items write it."""


def two(section: bytes, octet: int) -> int:
    number: int = _TWO(section, octet - 1)[0]
    return number


def three(section: bytes, octet: int) -> int:
    return section[octet - 1] << 16 | section[octet] << 8 | section[octet + 1]


def four(section: bytes, octet: int) -> int:
    number: int = _FOUR(section, octet - 1)[0]
    return number


def signed(number: int, octets: int) -> int:
    """Return a number of which the first bit is the sign."""
    sign = 1 << (8 * octets - 1)
    return sign - number if number >= sign else number


def ieee(section: bytes, octet: int) -> float:
    number: float = _FLOAT(section, octet - 1)[0]
    return number


def ibm(section: bytes, octet: int) -> float:
    """Return a floating-point number of IBM's System/360: sign, exponent of 16, 24 bits of fraction."""
    bits = four(section, octet)
    number = (bits & 0xFFFFFF) * 16.0 ** ((bits >> 24 & 0x7F) - 64 - 6)
    return -number if bits >> 31 else number


def duration(amount: int, indicator: int | None) -> str:
    """Return a duration of an item; `u77` stands for a unit that the code table does not have."""
    if indicator is None or indicator == MISSING_1:
        return "-"
    return f"{amount}{UNITS.get(indicator, f'u{indicator}') if amount else 's'}"


def timedef(step: str, statistic: int | None = None, length: str = "-") -> str:
    """Return a time range by its step and perhaps a statistic over some time."""
    if statistic is None or statistic == MISSING_1:
        return f"Timedef,{step}"
    return f"Timedef,{step},{statistic}" if length == "-" else f"Timedef,{step},{statistic},{length}"


def bounds(corners: Sequence[int], scanning_mode: int, columns: int | None) -> dict[str, float]:
    """Return north, south, east and west of a grid from its first and last point, in millionths of a degree.

    West is at least -180 and less than 180; east is not less than west, so more than 180 if the grid crosses the date
    line. A grid around the earth is from -180 to 180; so is a reduced one, which has no number of columns.
    """
    first_latitude, first, last_latitude, last = corners
    west, east = (last, first) if scanning_mode & _NEGATIVE_I else (first, last)
    width = (east - west) % _CIRCLE or (_CIRCLE if east != west else 0)
    # The numbers in a message are rounded.
    if columns is None or (columns > 1 and width + width // (columns - 1) + 2 * columns >= _CIRCLE):
        begin, end = -_CIRCLE // 2, _CIRCLE // 2
    else:
        begin = (west + _CIRCLE // 2) % _CIRCLE - _CIRCLE // 2
        end = begin + width
    return {
        "north": max(first_latitude, last_latitude) / _DEGREE,
        "south": min(first_latitude, last_latitude) / _DEGREE,
        "east": end / _DEGREE,
        "west": begin / _DEGREE,
    }
