"""The bounds of a grid of latitudes and longitudes, in degrees."""

from __future__ import annotations

from collections.abc import Sequence

_DEGREE = 1_000_000
_CIRCLE = 360 * _DEGREE
_NEGATIVE_I = 0x80  # of the scanning mode: points of a row go west


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
