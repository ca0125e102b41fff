"""GRIB edition 2: what identifies a message, by its first field. The bitmap and the data are not looked at.

    "GRIB", reserved (2), discipline, 2, length (8)
    section 1: centre, time; 2: local; 3: grid; 4: product; 5 to 7: data; "7777"      3 to 7, or 4 to 7, may repeat

Source: WMO no. 306, FM 92-XIV GRIB, templates 4.0 to 4.129 of versions up to 33: each octet was found by setting its
key with ecCodes 2.50, and looking at which octets changed; ECMWF's local section 2 and ARPAE's grid template 32768 as
ecCodes defines them; arkimet 1.66 for which values an item has.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Any, NamedTuple

from ondisk.errors import InvalidInput
from ondisk.formats.grib.octets import MISSING_1, MISSING_4, bounds, duration, four, ieee, signed, three, timedef, two
from ondisk.formats.self_describing import pairs

_HEAD, _LEAST = 16, 60
_DATA = 7  # the last section of a field
_NO_SURFACE = MISSING_1

# How long a unit of time is in the next larger one, and in the next smaller one; see `same_unit`.
_SECONDS, _MONTHS = (13, 0, 1, 10, 11, 12, 2), (3, 4, 5, 6, 7)
_LARGER = {13: (60, 0), 0: (60, 1), 1: (24, 2), 10: (2, 11), 11: (2, 12), 12: (2, 2), 3: (12, 4), 4: (10, 5),
           5: (100, 7)}  # fmt: skip
_SMALLER = {0: (60, 13), 1: (60, 0), 2: (24, 1), 10: (3, 1), 11: (2, 10), 12: (2, 11), 4: (12, 3), 5: (10, 4),
            6: (3, 5), 7: (10, 5)}  # fmt: skip

_INSTANT, _OVER_TIME, _ANALYSIS = range(8), range(8, 15), 0  # templates; type of data
_ENSEMBLES = range(3, 6)  # types of data: control, perturbed, both
_TIGGE = (4, 5)  # production status
_ECMWF = 98
_MARS_CLASSES = {
    **dict(enumerate((
        "od", "rd", "er", "cs", "e4", "dm", "pv", "el", "to", "co", "en", "ti", "me", "ei", "sr", "dt", "la", "yt",
        "mc", "pe", "em", "e2", "ea", "ep", "rm", "nr", "s2", "j5", "ur", "et", "c3", "yp", "l5", "lw", "ce",
    ), 1)),
    **dict(enumerate((
        "te", "at", "be", "hr", "dk", "fi", "fr", "de", "gr", "hu", "is", "ie", "it", "nl", "no", "pt", "si", "es",
        "se", "ch", "tr", "uk", "ms",
    ), 99)),
    199: "ma",
}  # fmt: skip
"""The classes of MARS, as the table `mars/class.table` of ecCodes names them."""

_METEOSAT, _SEVIRI = 333, 207  # series of satellites, instrument
_SATELLITES = {55: "MSG1", 56: "MSG2", 57: "MSG3", 70: "MSG4"}
# Tenths of a micrometre → channel.
_CHANNELS = {6: "VIS006", 7: "HRV", 8: "VIS008", 16: "IR_016", 39: "IR_039", 62: "WV_062", 73: "WV_073", 87: "IR_087",
             97: "IR_097", 108: "IR_108", 120: "IR_120", 134: "IR_134"}  # fmt: skip

_LATITUDES = frozenset((0, 1, 2, 3, 40, 41, 42, 43))  # regular and Gaussian grids
_ROTATED = frozenset((1, 3, 41, 43))
_BY_AXES = {10: True, 20: False, 30: False, 31: False}  # template → it has a last point
_ICON, _UTM = 101, 32768


def size_of(window: bytes, at: int) -> int:
    if len(window) < at + _HEAD:
        return -_HEAD
    size = int.from_bytes(window[at + 8 : at + _HEAD], "big")
    return size if size >= _LEAST else 0


def sections(message: bytes) -> list[bytes]:
    """Return the discipline and the first sections 1 to 4, each at its number; empty at 2 if there is none."""
    found = [message[6:7], b"", b"", b"", b""]
    at, end = _HEAD, len(message) - 4
    while at + 5 <= end:
        size, number = four(message, at + 1), message[at + 4]
        if not 5 <= size <= end - at:
            raise InvalidInput(f"section {number} has {size} octets")
        if 1 <= number <= 4 and not found[number]:
            found[number] = message[at : at + size]
        at += size
        if number >= 4:
            break
    for number, least in ((1, 21), (3, 14), (4, 11)):
        if len(found[number]) < least:
            raise InvalidInput(f"section {number} is missing, or has {len(found[number])} octets")
    return found


def has_several(message: bytes) -> bool:
    """Return whether sections follow the data of the first field."""
    at, end = _HEAD, len(message) - 4
    while at + 5 <= end:
        size = max(four(message, at + 1), 5)
        if message[at + 4] == _DATA:
            return at + size < end
        at += size
    return False


def key_and_time(parts: list[bytes]) -> tuple[bytes, bytes]:
    """Return what identifies a message beside its date, and the octets of its time."""
    discipline, identification, local, grid, product = parts
    begin = discipline + identification[5:12] + identification[16:18] + identification[19:]
    return b"".join((begin, local, grid, product)), identification[12:19]


def date_of(time: bytes) -> tuple[int, int, int, int, int, int]:
    return time[0] << 8 | time[1], time[2], time[3], time[4], time[5], time[6]


def read(parts: list[bytes]) -> dict[str, Any]:
    """Return the items and numbers of a message; raise InvalidInput if section 4 is shorter than its template."""
    [discipline], identification, local, grid, product = parts
    centre, subcentre, kind = two(identification, 6), two(identification, 8), identification[20]
    tables, local_tables = identification[9], identification[10]
    found: dict[str, Any] = {
        "run": f"MINUTE,{identification[16]:02}:{identification[17]:02}",
        "product": f"GRIB2,{centre},{discipline},{product[9]},{product[10]},{tables},{local_tables}",
    }
    definition: dict[str, Any] = {"tod": kind}
    number = two(product, 8)
    template = templates().get(number)
    if template is not None:
        section = _Section(product, template)
        background = MISSING_1 if not template.background else section.value(template.background)
        process = section.value(template.process) if template.process else "-"
        found["origin"] = f"GRIB2,{centre},{subcentre},{section.value(template.type)},{background},{process}"
        found |= _level(section)
        if template.time:
            time_range = _time_range(section, number, kind)
            if time_range is None:
                return found  # arkimet has neither area nor proddef then
            found["timerange"] = time_range
        definition |= _ensemble(section, kind, identification, local) | _satellite(section)
    found |= _area(grid)
    found["proddef"] = pairs("GRIB", definition)
    return found


class Template(NamedTuple):
    """Where one template has its values. All are numbers of octets, which begin with 1; 0 if it has no such value."""

    type: int  # the type of the generating process
    # background, process: its identifiers
    background: int
    process: int
    time: int  # the first octet of the forecast time; its unit precedes it
    time_size: int  # octets of the forecast time
    surface: int  # the first octet of the first of two surfaces
    statistic: int  # the first statistic over a time
    length: int  # the first octet of how long that time is; its unit precedes it
    values: dict[str, tuple[int, int]]  # other values: key → first octet, and number of octets
    # a list that moves all after it: octet of its length, octets of an entry, entries that are counted in here
    list: tuple[int, int, int]
    bands: tuple[int, int]  # octet of the number of a satellite's bands, and octets of a band
    size: int  # octets of section 4 that these values need


@cache
def templates() -> dict[int, Template]:
    """Return the templates in `templates.txt` by their numbers."""
    content = pkgutil.get_data("ondisk.formats.grib", "templates.txt")
    assert content is not None  # it is part of the package
    found: dict[int, Template] = {}
    for line in content.decode().splitlines():
        if not line.startswith("#"):
            numbers, *columns = line.split("|")
            found |= dict.fromkeys(map(int, numbers.split()), _template(*map(str.strip, columns)))
    return found


def _template(first_octet: str, layout: str, others: str = "", moving: str = "", bands: str = "") -> Template:
    first = int(first_octet)
    values: dict[str, tuple[int, int]] = {}
    for each in others.split():
        key = each.rstrip("0123456789:")
        octet, _, size = each[len(key) :].partition(":")
        values[key] = int(octet), int(size or 1)
    has_time = layout in ("-", "short-time", "no-surfaces")
    has_surfaces = layout in ("-", "short-time", "no-time")
    has_process = layout not in ("bare", "process")
    time_size = 2 if layout == "short-time" else 4
    time = first + 7 if has_time else 0
    statistic = values.pop("sp", (0, 1))[0]
    # Without a forecast time there is no type of time increment between the statistic and its length.
    length = statistic + (3 if has_time else 2) if statistic else 0
    surface = (time + time_size if has_time else first + 3) if has_surfaces else 0
    list_at, entry, counted = map(int, moving.split() or (0, 0, 0))
    bands_at, band = map(int, bands.split() or (0, 0))
    ends = [first, time + time_size - 1, surface and surface + 11, length and length + 3, bands_at, list_at]
    ends += [octet + size - 1 + (9 if key == "pt" else 0) for key, (octet, size) in values.items()]
    return Template(
        type=first,
        background=first + 1 if has_process else 0,
        process={"bare": 0, "process": first + 1}.get(layout, first + 2),
        time=time,
        time_size=time_size,
        surface=surface,
        statistic=statistic,
        length=length,
        values=values,
        list=(list_at, entry, counted),
        bands=(bands_at, band),
        size=max(ends),
    )


class _Section:
    """Section 4 with the places of its template; raises InvalidInput if it is shorter."""

    __slots__ = ("content", "moved", "repeated", "template")

    def __init__(self, content: bytes, template: Template) -> None:
        self.content = content
        self.template = template
        self.moved = self.repeated = 0
        size = len(content) - 4 * two(content, 6)  # without the coordinates at the end
        at, entry_size, counted = template.list
        if at:
            if size < at:
                raise self._too_short(size)
            self.moved = entry_size * (content[at - 1] - counted)
        if template.statistic and template.time:
            at = template.statistic - 5 + self.moved  # the number of time ranges, of which the last one counts
            if size < at or at < 1:
                raise self._too_short(size)
            self.repeated = 12 * max(0, content[at - 1] - 1)
        if size < template.size + self.moved + self.repeated:
            raise self._too_short(size)

    def at(self, octet: int) -> int:
        """Return the octet where one of the template is: lists before it move it."""
        if octet > self.template.list[0]:
            octet += self.moved
        if self.template.statistic and octet >= self.template.statistic + self.moved:
            octet += self.repeated
        return octet

    def value(self, octet: int, size: int = 1) -> int:
        at = self.at(octet)
        return int.from_bytes(self.content[at - 1 : at - 1 + size], "big")

    def _too_short(self, size: int) -> InvalidInput:
        return InvalidInput(f"section 4 has {size} octets, fewer than its template")


def _level(section: _Section) -> dict[str, Any]:
    if not section.template.surface:
        return {"level": "GRIB2S,-,-,-"}
    at = section.at(section.template.surface)
    first, second = section.content[at - 1 : at + 5], section.content[at + 5 : at + 11]
    found: dict[str, Any] = {}
    if second[0] == _NO_SURFACE:
        found["level"] = f"GRIB2S,{_surface(first)}"
    else:
        found["level"] = f"GRIB2D,{_surface(first)},{_surface(second)}"
    scale, value = signed(first[1], 1), four(first, 3)
    if first[0] != _NO_SURFACE and first[1] != MISSING_1 and value != MISSING_4:
        value = signed(value, 4)
        found["level_value"] = value / 10**scale if scale >= 0 else float(value * 10**-scale)
    return found


def _surface(surface: bytes) -> str:
    kind = "-" if surface[0] == MISSING_1 else str(surface[0])
    if surface[1] == 0x81:
        return f"{kind},0,0"  # arkimet reads the scale factor -1 so
    scale = "-" if surface[1] == MISSING_1 else str(signed(surface[1], 1))
    value = four(surface, 3)
    return f"{kind},{scale},{'-' if value == MISSING_4 else value}"


def _time_range(section: _Section, number: int, kind: int) -> str | None:
    """Return the time range; None if the units of step and length have nothing in common."""
    template = section.template
    unit = section.value(template.time - 1)
    time = signed(section.value(template.time, template.time_size), template.time_size)
    if number in _INSTANT:
        return timedef(duration(time, unit), 254, "0s")
    if not template.statistic:
        return timedef(duration(time, unit))
    statistic = section.value(template.statistic)
    length_unit, length = section.value(template.length - 1), section.value(template.length, 4)
    if number in _OVER_TIME and kind == _ANALYSIS:
        return timedef("0s", statistic, duration(length, length_unit))
    same = same_unit((time, unit), (length, length_unit))
    if same is None:
        return None
    time, length, unit = same
    return timedef(duration(time + length, unit), statistic, duration(length, unit))


def same_unit(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return two durations in one unit, as large as both are whole in, and its indicator; None if there is none."""
    if first[1] == second[1]:
        return first[0], second[0], first[1]
    order = next((each for each in (_SECONDS, _MONTHS) if first[1] in each and second[1] in each), None)
    if order is None:
        return None
    both = [first, second]
    for steps, is_larger in ((_LARGER, True), (_SMALLER, False)):
        while both[0][1] != both[1][1]:
            at = int((order.index(both[0][1]) < order.index(both[1][1])) != is_larger)
            amount, unit = both[at]
            if unit not in steps:
                break
            factor, following = steps[unit]
            if is_larger and amount % factor:
                break
            both[at] = (amount // factor if is_larger else amount * factor, following)
    (amount, unit), (other, other_unit) = both
    return (amount, other, unit) if unit == other_unit else None


def _ensemble(section: _Section, kind: int, identification: bytes, local: bytes) -> dict[str, Any]:
    values = section.template.values
    found: dict[str, Any] = {}
    if kind in _ENSEMBLES:
        found |= {key: section.value(*values[key]) for key in ("ty", "pf", "tf", "d") if key in values}
        if identification[19] in _TIGGE:
            found |= {"mc": "ti", "mt": 0}
        elif len(local) >= 11 and two(local, 6) and _ECMWF in (two(identification, 6), two(identification, 8)):
            mars_class = two(local, 8)
            found |= {"mc": _MARS_CLASSES.get(mars_class, str(mars_class)), "mt": two(local, 10)}
    if "pv" in values:
        found["pv"] = section.value(*values["pv"])
    if "pt" in values:
        at = section.at(values["pt"][0])
        limits = section.content[at : at + 10]
        found["pt"] = section.content[at - 1]
        found["pl"] = ",".join(
            "None" if number == missing else str(signed(number, size))
            for number, missing, size in (
                (limits[0], MISSING_1, 1),
                (four(limits, 2), MISSING_4, 4),
                (limits[5], MISSING_1, 1),
                (four(limits, 7), MISSING_4, 4),
            )
        )
    return found


def _satellite(section: _Section) -> dict[str, Any]:
    """Return satellite and channel of the last band, if it is one of Meteosat's."""
    (counted_at, size), content = section.template.bands, section.content
    count = content[counted_at - 1] if counted_at else 0
    at = counted_at + size * (count - 1) + 1
    if not count or len(content) < at + size - 1 or two(content, at) != _METEOSAT:
        return {}
    found: dict[str, Any] = {}
    if two(content, at + 2) in _SATELLITES:
        found["sat"] = _SATELLITES[two(content, at + 2)]
    wide = size - 9  # octets of the instrument
    instrument = int.from_bytes(content[at + 3 : at + 3 + wide], "big")
    wave_number = four(content, at + 5 + wide)
    if instrument == _SEVIRI and wave_number:
        channel = _CHANNELS.get(round(10.0 / (wave_number * 0.000001)))
        if channel is not None:
            found["ch"] = channel
    return found


def _area(grid: bytes) -> dict[str, Any]:
    number = two(grid, 13)
    area: dict[str, Any] = {"tn": number}
    corners: list[int] = []
    columns: int | None = None
    if number == _UTM:
        end = len(grid)
        area |= {"utm": 1, "Ni": four(grid, 42), "Nj": four(grid, 46), "fe": three(grid, 36), "fn": three(grid, 39)}
        area |= {"zone": grid[end - 15], "lonfirst": three(grid, end - 13), "lonlast": three(grid, end - 10)}
        area |= {"latfirst": four(grid, end - 7), "latlast": four(grid, end - 3)}
    elif number == _ICON:
        area["uuid"] = _checked(grid, 35)[19:35].hex()
    elif number in _LATITUDES:
        corners = _latitudes(grid)
        area |= {"latfirst": corners[0], "lonfirst": corners[1]}
        points, rows = four(grid, 31), four(grid, 35)
        if points not in (0, MISSING_4):
            columns = points
            area |= {"Ni": points, "Nj": None if rows == MISSING_4 else rows}
            area |= {"latlast": corners[2], "lonlast": corners[3]}
        if number in _ROTATED:
            area |= {"latp": signed(four(grid, 73), 4), "lonp": signed(four(grid, 77), 4)}
            rotation = ieee(grid, 81) * 1e6
            area["rot"] = round(rotation) if abs(rotation) < 1e15 else None  # also of infinity and of no number
    elif number in _BY_AXES:
        at = 39
        area |= {"latfirst": signed(four(grid, at), 4), "lonfirst": signed(four(grid, at + 4), 4)}
        columns = four(grid, 31)
        area |= {"Ni": columns, "Nj": four(grid, 35)}
        if _BY_AXES[number]:
            area |= {"latlast": signed(four(grid, 52), 4), "lonlast": signed(four(grid, 56), 4)}
            corners = [area[key] for key in ("latfirst", "lonfirst", "latlast", "lonlast")]
    found: dict[str, Any] = {"area": pairs("GRIB", area)}
    scanning_mode_at = 60 if number == 10 else 72
    if corners and number in (0, 10, 40) and len(grid) >= scanning_mode_at:
        found |= bounds(corners, grid[scanning_mode_at - 1], columns)
    return found


def _latitudes(grid: bytes) -> list[int]:
    """Return latitude and longitude of the first and the last point, in millionths of a degree."""
    basic, parts = four(grid, 39), four(grid, 43)
    found = [signed(four(grid, octet), 4) for octet in (47, 51, 56, 60)]
    if basic in (0, MISSING_4) or parts in (0, MISSING_4):
        return found
    return [round(each * basic / parts * 1_000_000) for each in found]


def _checked(section: bytes, size: int) -> bytes:
    if len(section) < size:
        raise InvalidInput(f"a section has {len(section)} octets, fewer than its template")
    return section
