"""BUFR: observations, and forecasts for places, of editions 2, 3 and 4; a segment is messages one after the other.

What a message says of itself becomes metadata in arkimet's notation (see `ondisk.items`), and values beside them:

    usn              integer   update sequence number: 0 for the original, more for corrections
    station          integer   WMO's number: block * 1000 + station
    report           text      kind of report, such as synop, temp or generic
    step             integer   seconds from the reference time to the data, of forecasts
    north … west     real      degrees; north = south and east = west are the position

A message is "BUFR", length (3), edition, section 1: identification, [section 2], section 3: descriptors, section 4:
data, "7777". A year of edition 2 or 3 is one of a century: 51 to 100 are 1951 to 2000.

The data are the message, and decoded only as far as it takes to identify the report. A message of several reports, one
that cannot be decoded, and satellite soundings say only their origin and the time of the header, as in arkimet.

Source: WMO no. 306, FM 94-XIV BUFR; arkimet 1.66 for the items; DB-All.e 9.13 for the kinds of reports by category
(WMO's table A), subcategory and local subcategory. A report of no known kind is generic: DB-All.e's own, with
its level and time range in elements of its own, and perhaps the name of another kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, microseconds
from ondisk.errors import InvalidInput
from ondisk.formats import self_describing
from ondisk.formats.base import Kept
from ondisk.formats.bufr.program import Program, Undecodable, Value, Wanted, make, run
from ondisk.formats.bufr.tables import Tables, descriptor
from ondisk.formats.messages import MANY, Messages
from ondisk.formats.self_describing import Content, pairs

Time: TypeAlias = tuple[int, int, int, int, int, int]

_EDITIONS = (2, 3, 4)
_EDITION_AT, _BEGIN = 7, 8
_LEAST_1 = {2: 17, 3: 17, 4: 22}  # octets of section 1
_LEAST_2, _LEAST_3, _LEAST_4 = 4, 7, 4
_HAS_SECTION_2, _IS_COMPRESSED = 0x80, 0x40
_NO_SUBCATEGORY = 255  # before edition 4 there is no international one
_SHORTEST = 28
_CACHED_STEPS = 20_000  # of programs, and bytes of the descriptors that they are made of
_tables = lru_cache(maxsize=100)(Tables)
_METEOROLOGY = 0  # the master table that is known

_BLOCK, _STATION, _FLIGHT, _FLIGHT_ID, _SHIP = (descriptor(f"0010{each}") for each in ("01", "02", "06", "08", "11"))
_BUOY, _LONG_NAME, _MARINE, _GEMS, _REPORT = map(descriptor, ("001005", "001019", "001087", "001214", "001194"))
_ACARS = descriptor("002065")  # the ground receiving station of an automatic report
_TIME = tuple(descriptor(f"00400{each}") for each in range(1, 7))
_LATITUDE, _LONGITUDE, _MINUTE = descriptor("005001"), descriptor("006001"), _TIME[4]
_COARSE = {descriptor("005002"): _LATITUDE, descriptor("006002"): _LONGITUDE}
_CONSTITUENT = descriptor("008043")
_P1, _LEVEL_TYPE = descriptor("004193"), descriptor("007192")
_LAST = frozenset((_MINUTE, _LATITUDE, _LONGITUDE))
_CONTEXT = frozenset(map(descriptor, ("004192", "004193", "004194", "007192", "007193", "007194", "007195")))
_AT_STATION = 257  # type of the level of data about the station itself

_DIGITS = 5  # of a degree in an item
_DEGREE = 10**_DIGITS
WANTED = {
    **{each: Wanted(each) for each in (_BLOCK, _STATION, _FLIGHT, _FLIGHT_ID, _SHIP, _BUOY, _LONG_NAME, _MARINE)},
    **{each: Wanted(each) for each in (_GEMS, _REPORT, _ACARS, _CONSTITUENT, *_TIME)},
    **{each: Wanted(each, _DIGITS) for each in (_LATITUDE, _LONGITUDE)},
    **{each: Wanted(_COARSE[each], _DIGITS) for each in _COARSE},
}
"""The elements that say something of a report, whatever its kind; positions are in 1e-5 degrees."""

_TIMES, _QUALITY = 4, 33  # classes of elements
_EARLY = frozenset((0, 1, 2, 6))  # categories whose reports begin with station, time and position
SATELLITE = 3
"""The category of satellite soundings, which arkimet does not read."""
_SPECIFIC = frozenset((0, 1, 2, 3, 4, 8))
_MOBILE = frozenset(("amdar", "acars", "airep", "ship", "temp_ship"))
_NAMES = _MOBILE | {"buoy", "metar", "pilot", "pollution", "synop", "temp"}
_POLLUTANTS = {0: "O3", 4: "CO", 5: "NO2", 8: "SO2", 26: "PM2.5", 27: "PM10"}
_NUMBERS = range(1000)  # of blocks and stations
_FLIGHTS = 4
_FLIGHT_NAMES = (_FLIGHT_ID, _FLIGHT)
_OTHER_NAMES = (_MARINE, _SHIP, _FLIGHT, _BUOY)


class _Sections(NamedTuple):
    identity: bytes  # edition, and what section 1 says beside time and update sequence number
    descriptors: bytes  # section 3 after its length: number of reports, flags, and descriptors of two bytes each
    update: int  # the update sequence number: 0 for the original message
    time: bytes  # the octets of the typical time of the data
    data: bytes  # section 4 after its length; empty if that is wrong


class Kind(NamedTuple):
    # centre, subcentre: where they are from
    centre: int
    subcentre: int
    # category, subcategory, local_subcategory: what their data are, by WMO's table A and the centre's
    category: int
    subcategory: int
    local_subcategory: int
    master_table: int  # 0 for meteorology
    # version, local_version: of the tables by which they are written
    version: int
    local_version: int
    reports: int  # number of subsets
    is_compressed: bool  # the values of all reports of an element are together
    descriptors: bytes  # two bytes each


def sections(message: bytes) -> _Sections:
    """Return the parts of a message; raise InvalidInput if one of the sections 1 to 3 is too short or too long."""
    edition = message[_EDITION_AT]
    end = _end(message, 1, _BEGIN, _LEAST_1[edition])
    head = message[_EDITION_AT:end]  # octet n of section 1 is here at n
    if edition == 4:
        identity, update, flags, time = head[:1] + head[4:9] + head[11:16], head[9], head[10], head[16:23]
    else:
        identity, update, flags, time = head[:1] + head[4:7] + head[9:13], head[7], head[8], head[13:18]
    if flags & _HAS_SECTION_2:
        end = _end(message, 2, end, _LEAST_2)
    begin, end = end, _end(message, 3, end, _LEAST_3)
    size = int.from_bytes(message[end : end + 3], "big")
    is_whole = _LEAST_4 <= size <= len(message) - end
    data = message[end + _LEAST_4 : end + size] if is_whole else b""
    return _Sections(identity, message[begin + 4 : end], update, time, data)


def reports(message: bytes) -> int:
    """Return the number of reports in a message that `sections` has divided."""
    at = _BEGIN + (message[8] << 16 | message[9] << 8 | message[10])
    if message[17 if message[_EDITION_AT] == 4 else 15] & _HAS_SECTION_2:
        at += int.from_bytes(message[at : at + 3], "big")
    return message[at + 4] << 8 | message[at + 5]


def _end(message: bytes, number: int, begin: int, least: int) -> int:
    size = int.from_bytes(message[begin : begin + 3], "big")
    if not least <= size <= len(message) - begin:
        raise InvalidInput(f"section {number} has {size} octets")
    return begin + size


def kind_of(identity: bytes, descriptors: bytes) -> Kind:
    """Return what sections 1 and 3 say of the kind of a message."""
    if identity[0] == 4:
        centre, subcentre = identity[2] << 8 | identity[3], identity[4] << 8 | identity[5]
        category, subcategory, local, *versions = identity[6:]
    else:
        centre, subcentre = (identity[3], identity[2]) if identity[0] == 3 else (identity[2] << 8 | identity[3], 0)
        category, local, *versions = identity[4:]
        subcategory = _NO_SUBCATEGORY
    return Kind(
        centre=centre,
        subcentre=subcentre,
        category=category,
        subcategory=subcategory,
        local_subcategory=local,
        master_table=identity[1],
        version=versions[0],
        local_version=versions[1],
        reports=descriptors[0] << 8 | descriptors[1],
        is_compressed=bool(descriptors[2] & _IS_COMPRESSED),
        descriptors=descriptors[3 : len(descriptors) - (len(descriptors) - 3) % 2],
    )


def typical_time(octets: bytes) -> Time:
    """Return the typical time of the data of a message; before edition 4 it has no seconds."""
    if len(octets) == 7:
        high, low, month, day, hour, minute, second = octets
        return high << 8 | low, month, day, hour, minute, second
    year, month, day, hour, minute = octets
    return 1900 + year if year > 50 else 2000 + year, month, day, hour, minute, 0


class _Known(NamedTuple):
    kind: Kind
    program: Program | None


class Bufr(Messages):
    name: ClassVar[str] = "bufr"
    magic: ClassVar[bytes] = b"BUFR"
    head: ClassVar[re.Pattern[bytes]] = re.compile(rb"BUFR...[\x02-\x04]", re.DOTALL)
    items: ClassVar[frozenset[str]] = frozenset(("area", "origin", "proddef", "product", "timerange"))
    numbers: ClassVar[Mapping[str, FieldType]] = {
        **dict.fromkeys(("usn", "station", "step"), FieldType.INTEGER),
        **dict.fromkeys(("north", "south", "east", "west"), FieldType.REAL),
        "report": FieldType.TEXT,
    }
    parts: ClassVar[str] = "reports; a message is one datum, with the origin and the time of its header"

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        # Most messages are of few kinds, and many of one place.
        self._kinds: dict[tuple[bytes, bytes], _Known] = {}
        self._steps = 0
        self._contents: Kept[tuple[Any, ...], Content] = Kept(most=MANY)
        self._times: Kept[Time, int] = Kept(lambda time: microseconds(moment(time)), MANY)

    @staticmethod
    def size_of(window: bytes, at: int) -> int:
        if window[at + 7] not in _EDITIONS:
            return 0
        size = int.from_bytes(window[at + 4 : at + 7], "big")
        return size if size >= _SHORTEST else 0

    @staticmethod
    def has_several(message: bytes) -> bool:
        return reports(message) > 1

    def read(self, message: bytes) -> tuple[int, Content]:
        parts = sections(message)
        key = parts.identity, parts.descriptors
        kind, program = self._kinds.get(key) or self._kind(*key)
        if program is not None:
            report = Report(kind)
            try:
                run(program, parts.data, kind.is_compressed, report.take)
            except Undecodable:
                pass
            else:
                return self._read_report(parts, kind, report, program.first)
        content = self.content({"origin": _origin(kind), "usn": parts.update})
        return self._times[typical_time(parts.time)], content

    def _read_report(self, parts: _Sections, kind: Kind, report: Report, first: int) -> tuple[int, Content]:
        time = time_of(report.values) or typical_time(parts.time)
        if report.periods:
            values = items(kind, report, first)
            reftime = microseconds(earlier(moment(time), values.get("step", 0)))
            return reftime, self.content({**values, "origin": _origin(kind), "usn": parts.update})
        key = (parts.identity, first, parts.update, *report.lasting())
        content = self._contents.get(key)
        if content is None:
            values = items(kind, report, first)
            said = self.content({**values, "origin": _origin(kind), "usn": parts.update})
            content = self._contents.keep(key, said)
        return self._times[time], content

    def _kind(self, identity: bytes, descriptors: bytes) -> _Known:
        kind = kind_of(identity, descriptors)
        if kind.reports != 1 or kind.category == SATELLITE or kind.master_table != _METEOROLOGY:
            return _Known(kind, None)
        tables = _tables(kind.centre, kind.version, kind.local_version)
        is_compressed, takes_all = kind.is_compressed, is_generic(kind)
        program = make(kind.descriptors, tables, WANTED, takes_all=takes_all, is_compressed=is_compressed)
        known = _Known(kind, program)
        size = program.size + len(descriptors)
        self._steps += size
        if self._steps > _CACHED_STEPS:
            self._kinds.clear()
            self._steps = size
        if size <= _CACHED_STEPS:
            self._kinds[identity, descriptors] = known
        return known


def _origin(kind: Kind) -> str:
    return f"BUFR,{kind.centre},{kind.subcentre}"


def is_generic(kind: Kind) -> bool:
    """Return whether all values count, and not only those that identify the report."""
    return kind.category not in _SPECIFIC and not (kind.category == 6 and kind.subcategory == 1)


class Report:
    __slots__ = ("_context", "_is_early", "_is_generic", "periods", "values")

    def __init__(self, kind: Kind) -> None:
        self.values: dict[int, Any] = {}  # the last value of each wanted element that is not missing; None if all were
        # P1 in seconds of the values of a generic report; None where it was not said
        self.periods: set[int | None] = set()
        self._is_early = kind.category in _EARLY
        self._is_generic = is_generic(kind)
        self._context: dict[int, Any] = {}

    def take(self, code: int, value: Value) -> bool:
        """Take the value of an element; return whether nothing more is needed."""
        if self._is_generic and not self._take_generic(code, value):
            return False
        values = self.values
        if value is None:
            values.setdefault(code, None)
            return False
        values[code] = value
        return (
            self._is_early
            and code in _LAST
            and None not in (values.get(_MINUTE), values.get(_LATITUDE), values.get(_LONGITUDE))
        )

    def lasting(self) -> Iterator[tuple[int, Any]]:
        """Yield what does not change from one report of a place to the next: the values without those of time."""
        return (each for each in self.values.items() if each[0] not in _TIME)

    def _take_generic(self, code: int, value: Value) -> bool:
        """Note the time range of a value; return whether the value is one of those that identify the report."""
        if code in _CONTEXT:
            self._context[code] = value
            return False
        is_data = value is not None and code != _REPORT and code >> 8 not in (_TIMES, _QUALITY)
        if is_data and self._context.get(_LEVEL_TYPE) not in (None, _AT_STATION):
            self.periods.add(self._context.get(_P1))
        return code in WANTED


def name_of(kind: Kind, first: int, values: Mapping[int, Any]) -> str:
    """Return the name of a kind of report, or `generic`; `first`: descriptor of its first element."""
    sub, local = kind.subcategory, kind.local_subcategory
    match kind.category:
        case 0:
            return "metar" if sub == 10 or local == 140 else "synop"
        case 1:
            return "buoy" if local in (2, 21) or (local == 0 and first == _BUOY) else "ship"
        case 2 if sub == 255:
            if local in (91, 92):
                return "pilot"
            return "temp_ship" if local == 102 or (local == 0 and first == _SHIP) else "temp"
        case 2:
            return "pilot" if sub in (1, 2, 3) else "temp_ship" if sub == 5 else "temp"
        case 6 if sub == 1:
            return "temp"
        case 4:
            known = {142: "airep", 144: "amdar", 145: "acars"}
            return known.get(local) or ("acars" if _ACARS in values else "amdar")
        case 8:
            return "pollution"
        case _:
            name = _said(values).lower()
            return name if name in _NAMES else "generic"


def _said(values: Mapping[int, Any]) -> str:
    """Return the name in a generic report; the tables of some centres have a number there."""
    name = values.get(_REPORT)
    return name if isinstance(name, str) else ""


def items(kind: Kind, report: Report, first: int) -> dict[str, Any]:
    """Return what a report says beside its time, by name; `first`: descriptor of its first element."""
    values = report.values
    name = name_of(kind, first, values)
    said = {"t": (_said(values) or name) if name == "generic" else name, "p": None}
    block: Any = values.get(_BLOCK)
    station: Any = values.get(_STATION)
    identity = {"blo": block, "sta": station}
    ids = _FLIGHT_NAMES if kind.category == _FLIGHTS else _OTHER_NAMES
    identifier = next((values[each] for each in ids if values.get(each) is not None), None)
    identity["id"] = None if identifier == "" else identifier
    if name == "pollution":
        said["p"] = _POLLUTANTS.get(values.get(_CONSTITUENT, -1))
        identity |= {"gems": values.get(_GEMS) or None, "name": values.get(_LONG_NAME) or None}
    found: dict[str, Any] = {"report": said["t"]}
    if any(each is not None for each in identity.values()):
        found["proddef"] = pairs("GRIB", identity)
    if block in _NUMBERS and station in _NUMBERS:
        found["station"] = _NUMBERS.stop * block + station
    found |= _place(values.get(_LATITUDE), values.get(_LONGITUDE), name in _MOBILE)
    if name == "generic" or (name == "temp" and kind.category == kind.subcategory == 255):
        periods = report.periods - {None}
        if len(periods) < 2:
            found["step"] = periods.pop() if periods else 0
            found["timerange"] = f"Timedef,{_duration(found['step'])}"
    codes = f"BUFR,{kind.category},{kind.subcategory},{kind.local_subcategory}"
    return found | {"product": pairs(codes, said)}


def time_of(values: Mapping[int, Any]) -> Time | None:
    """Return the time that a report says; None if it does not say all of it."""
    year, month, day, hour, minute, second = (values.get(each) for each in _TIME)
    if year is None or month is None or day is None or hour is None or minute is None:
        return None
    return year, month, day, hour, minute, second or 0


def moment(time: Time) -> datetime:
    """Return a time as a report says it; 24:00 is the beginning of the next day; or raise InvalidInput."""
    if time[3:] == (24, 0, 0):
        return earlier(self_describing.time_of(*time[:3], 0, 0, 0), -24 * 3600)
    return self_describing.time_of(*time)


def earlier(time: datetime, seconds: int) -> datetime:
    """Return the time so many seconds before another; raise InvalidInput outside of the years 1 to 9999."""
    try:
        return time - timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidInput(f"its time, {seconds} seconds before {time:%Y-%m-%d}, is not a time") from None


def _duration(seconds: int) -> str:
    if not seconds or seconds % 60:
        return f"{seconds}s"
    return f"{seconds // 60}m" if seconds % 3600 else f"{seconds // 3600}h"


def _place(latitude: int | None, longitude: int | None, is_mobile: bool) -> dict[str, Any]:
    """Return the item and the numbers of a position in 1e-5 degrees; whole degrees in the item of one that moves."""
    if latitude is None or longitude is None:
        return {}
    if is_mobile:
        area = f"GRIB:type=mob,x={longitude // _DEGREE},y={latitude // _DEGREE}"
    else:
        area = f"GRIB:lat={latitude},lon={longitude}"
    if abs(latitude) > 90 * _DEGREE or abs(longitude) > 360 * _DEGREE:
        return {"area": area}
    north, east = latitude / _DEGREE, longitude / _DEGREE
    return {"area": area, "north": north, "south": north, "east": east, "west": east}
