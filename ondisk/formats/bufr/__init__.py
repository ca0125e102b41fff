"""BUFR: observations, and forecasts for places, of editions 2, 3 and 4; a segment is messages one after the other.

What a message says of itself becomes metadata in arkimet's notation (see `ondisk.items`), and values beside them:

    usn              integer   update sequence number: 0 for the original, more for corrections
    station          integer   WMO's number: block * 1000 + station
    report           text      kind of report, such as synop, temp or generic
    step             integer   seconds from the reference time to the data, of forecasts
    north … west     real      degrees; north = south and east = west are the position

The data are the message, and decoded only as far as it takes to identify the report. A message of several reports, one
that cannot be decoded, and satellite soundings say only their origin and the time of the header, as in arkimet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, microseconds
from ondisk.formats.base import Kept
from ondisk.formats.bufr.header import EDITIONS, Kind, Sections, Time, kind_of, reports, sections
from ondisk.formats.bufr.header import time_of as typical_time
from ondisk.formats.bufr.program import Program, Undecodable, make, run
from ondisk.formats.bufr.report import SATELLITE, WANTED, Report, earlier, is_generic, items, moment, time_of
from ondisk.formats.bufr.tables import Tables
from ondisk.formats.described import Content
from ondisk.formats.messages import MANY, Messages

_SHORTEST = 28
_CACHED_STEPS = 20_000  # of programs, and bytes of the descriptors that they are made of
_tables = lru_cache(maxsize=100)(Tables)
_METEOROLOGY = 0  # the master table that is known


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
        if window[at + 7] not in EDITIONS:
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

    def _read_report(self, parts: Sections, kind: Kind, report: Report, first: int) -> tuple[int, Content]:
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
