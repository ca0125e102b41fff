"""GRIB: fields of weather models and satellites, editions 1 and 2; a segment is messages one after the other.

What a message says of itself becomes metadata in arkimet's notation (see `ondisk.items`), and numbers beside them:

    step, period     integer   seconds of the time range: how far ahead, and over how long the statistic is
    stat             integer   the statistic, of code table 4.10; 254 for none
    level_value      real      value of the (first) level, in the unit of edition 2 for its type: Pa, m, K …
    north … west     real      degrees, of grids of latitudes and longitudes; see `octets.bounds`

The data are the message. Several fields in a message of edition 2 are one datum, identified by the first. Values that a
message does not have, or whose template is not known, are left out. Times of edition 1 have no seconds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, ClassVar

from ondisk import items
from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, microseconds
from ondisk.errors import InvalidInput
from ondisk.formats.base import Kept
from ondisk.formats.grib import edition1, edition2
from ondisk.formats.messages import MANY, Messages
from ondisk.formats.self_describing import Content, time_of

_SHORTEST = 40
_LONGEST_KEY = 1024  # bytes; grids with a list of points have more


class Grib(Messages):
    name: ClassVar[str] = "grib"
    magic: ClassVar[bytes] = b"GRIB"
    head: ClassVar[re.Pattern[bytes]] = re.compile(rb"GRIB...[\x01\x02]", re.DOTALL)
    items: ClassVar[frozenset[str]] = frozenset(("area", "level", "origin", "proddef", "product", "run", "timerange"))
    numbers: ClassVar[Mapping[str, FieldType]] = {
        **dict.fromkeys(("step", "period", "stat"), FieldType.INTEGER),
        **dict.fromkeys(("level_value", "north", "south", "east", "west"), FieldType.REAL),
    }

    parts: ClassVar[str] = "fields; a message is one datum, with the metadata of the first"

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        # Most messages of a model differ from others in their date only.
        self._contents: Kept[bytes, Content] = Kept(most=MANY)
        self._times: Kept[bytes, int] = Kept(most=MANY)

    @staticmethod
    def size_of(window: bytes, at: int) -> int:
        edition = window[at + 7]
        if edition == 2:
            return edition2.size_of(window, at)
        size = int.from_bytes(window[at + 4 : at + 7], "big")
        if edition == 1:
            return size if _SHORTEST <= size < edition1.LARGE else edition1.size_of(window, at)
        return 0

    @staticmethod
    def has_several(message: bytes) -> bool:
        return message[7] == 2 and edition2.has_several(message)

    def read(self, message: bytes) -> tuple[int, Content]:
        try:
            edition: Any = edition1 if message[7] == 1 else edition2
            parts = edition.sections(message)
            key, time = edition.key_and_time(parts)
            reftime = self._times.get(time)
            if reftime is None:
                reftime = self._times.keep(time, microseconds(time_of(*edition.date_of(time))))
            return reftime, self._contents.get(key) or self._kept(key, edition.read(parts))
        except (IndexError, struct.error):
            raise InvalidInput("a section is too short") from None

    def _kept(self, key: bytes, values: dict[str, Any]) -> Content:
        if "timerange" in values:
            values |= _times_of(values["timerange"])
        content = self.content(values)
        return self._contents.keep(key, content) if len(key) <= _LONGEST_KEY else content


def _times_of(time_range: str) -> dict[str, int]:
    """Return the numbers of a time range; those in months have no seconds."""
    step, statistic, length = items.time_range(time_range)
    found = {}
    if step is not None and not step.is_months:
        found["step"] = step.amount
    if statistic is not None:
        found["stat"] = statistic
    if length is not None and not length.is_months:
        found["period"] = length.amount
    return found
