"""VM2: observations of weather stations, one on each line.

    YYYYmmddHHMM[SS],station,variable,value1,value2,value3,flags
    200707081300,1,227,1.2,,,000000000

Station and variable are whole numbers. value1 and value2 are numbers or empty. value3 and flags are any text without
NUL bytes. Metadata use arkimet's notation: `area = "VM2,<station>"`, `product = "VM2,<variable>"`. The data are the
line's bytes without the newline. Source: ARPAE-SIMC's meteo-vm2, as arkimet 1.66 reads it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, from_microseconds, microseconds
from ondisk.errors import FrameCorrupt, InvalidInput
from ondisk.formats.base import Batch, Kept
from ondisk.formats.lines import LineFormat, why_not_text
from ondisk.formats.self_describing import HasItems
from ondisk.segment import End, Laid, SegmentFile

# Where possible without groups, which saves a third of the time: first a lookahead that refuses a sign or dot without
# digits, and an exponent without digits before it; then the parts. Possessive groups are broken before Python 3.11.5.
_NUMBER = rb"(?![-+.]++(?![0-9])|[eE])[-+]?+[0-9]*+\.?+[0-9]*+(?:(?=,|$)|[eE][-+]?+[0-9]++)"
_TIME, _WHOLE, _TEXT = rb"[0-9]{12}(?:[0-9]{2})?", rb"[0-9]{1,18}+", rb"[^,\r\n\0]*+"
_IS_NUMBER, _IS_TIME, _IS_WHOLE = (re.compile(each).fullmatch for each in (_NUMBER, _TIME, _WHOLE))
_ONE_LINE = re.compile(b"(%b),(%b),(%b),%b,%b,%b,%b" % (_TIME, _WHOLE, _WHOLE, _NUMBER, _NUMBER, _TEXT, _TEXT))
_COUNT = 7  # parts of a line
_LONGEST_TIME = 14  # digits
_TOGETHER = 10_000  # lines; the parts of so many lines are in memory at once
_PARTS = (
    ("time", _IS_TIME, "is not written YYYYmmddHHMM[SS]"),
    ("station", _IS_WHOLE, "is not a whole number of up to 18 digits"),
    ("variable", _IS_WHOLE, "is not a whole number of up to 18 digits"),
    ("value1", _IS_NUMBER, "is not a number"),
    ("value2", _IS_NUMBER, "is not a number"),
)
_SHAPE = "YYYYmmddHHMM[SS],station,variable,value1,value2,value3,flags"
_CUT_OFF = b"\0\n"


class Vm2(HasItems, LineFormat):
    name: ClassVar[str] = "vm2"
    raw: ClassVar[bool] = True
    plausible: ClassVar[re.Pattern[bytes]] = _ONE_LINE
    items: ClassVar[frozenset[str]] = frozenset({"area", "product"})

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        self._times = Kept(_microseconds)
        self._moments = Kept(from_microseconds)
        self._metadata = Kept(_series)  # one mapping for all data of a series

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        return _ONE_LINE.match(head) is not None

    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        try:
            return self.read_line(payload)
        except InvalidInput as error:
            raise FrameCorrupt(f"not a line of VM2: {error.message}") from None

    def parse_lines(self, lines: list[bytes], number: int, *, stored: bool = False) -> Batch:
        batch = Batch()
        for at in range(0, len(lines), _TOGETHER):
            some = lines[at : at + _TOGETHER]
            parsed = self._parse_all(some, b"\n".join(some))
            batch.extend(parsed or super().parse_lines(some, number + at, stored=stored))
        return batch

    def whole_after_zeros(self, line: bytes, following: bytes) -> bytes:
        whole = super().whole_after_zeros(line, following)
        # Without its first two digits, a time with seconds can look like a time without.
        at = whole.find(b",")
        return whole if at == _LONGEST_TIME or at == following.find(b",") else b""

    def resume(self, file: SegmentFile, end: End) -> Laid:
        laid = super().resume(file, end)
        if not laid.content:
            return laid
        # A line that was cut off may look like a whole one. NUL bytes are never part of a line.
        size = laid.end.size - len(laid.content) + len(_CUT_OFF)
        return Laid(_CUT_OFF, End(size, size))

    def encode(self, data: Sequence[Datum]) -> Batch:
        payloads = [datum.data for datum in data]
        if set(map(type, payloads)) == {bytes}:
            batch = self._parse_whole(payloads)
            if batch is not None and self._agree(data, batch):
                return batch
        return super().encode(data)

    def encode_columns(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], data: Sequence[Any]
    ) -> Batch:
        if set(map(type, data)) == {bytes}:
            batch = self._parse_whole([*data])
            if batch is not None and batch.reftimes == reftimes and _are_part_of(metadata, batch.metadata):
                return batch
        return super().encode_columns(reftimes, metadata, data)

    def _parse_whole(self, payloads: list[bytes]) -> Batch | None:
        """Parse data that are bytes; None if one of them is not exactly one line of VM2."""
        whole = Batch()
        most = self.config.max_datum_size
        for at in range(0, len(payloads), _TOGETHER):
            lines = payloads[at : at + _TOGETHER]
            text = b"\n".join(lines)
            if text.count(b"\n") != len(lines) - 1 or (len(text) > most and max(map(len, lines)) > most):
                return None
            batch = self._parse_all(lines, text)
            if batch is None:
                return None
            whole.extend(batch)
        return whole

    def _parse_all(self, lines: list[bytes], text: bytes) -> Batch | None:
        """Parse lines, which joined by newlines are the text; None if one of them is not a line of VM2."""
        # This comes first, because it limits the parts that a hostile line is cut into.
        if text.count(b",") != (_COUNT - 1) * len(lines) or b"\r" in text or b"\0" in text:
            return None
        # Each newline becomes a part. This takes half the time of a regular expression for lines.
        parts = text.replace(b"\n", b",\n,").split(b",")
        each = _COUNT + 1
        if parts[_COUNT::each].count(b"\n") != len(lines) - 1:
            return None
        if not all(map(_IS_NUMBER, {*parts[3::each], *parts[4::each]})):
            return None
        reftimes: list[Any] = [*map(self._times.__getitem__, parts[::each])]
        series: list[Any] = [*map(self._metadata.__getitem__, zip(parts[1::each], parts[2::each], strict=True))]
        return None if None in reftimes or None in series else Batch(reftimes, series, lines)

    def _agree(self, data: Sequence[Datum], batch: Batch) -> bool:
        if [*map(self._moments.__getitem__, batch.reftimes)] != [datum.reftime for datum in data]:
            return False
        return _are_part_of([datum.metadata for datum in data], batch.metadata)

    def write_line(self, datum: Datum) -> tuple[Mapping[str, Any], bytes]:
        reftime, metadata = self.read_line(datum.data)
        self.check_given(datum, reftime, metadata)
        return metadata, datum.data

    def read_line(self, line: Any) -> tuple[int, Mapping[str, Any]]:
        if not isinstance(line, bytes):
            raise InvalidInput(f"the data of vm2 must be a line as bytes, not {type(line).__name__}")
        matched = _ONE_LINE.fullmatch(line)
        if matched is None:
            raise InvalidInput(f"{_excerpt(line)}: {_fault(line)}")
        self.check_size(line)
        reftime, metadata = self._times[matched[1]], self._metadata[matched[2], matched[3]]
        if reftime is None or metadata is None:
            raise InvalidInput(f"{_excerpt(line)} has an impossible time")
        return reftime, metadata


def _microseconds(text: bytes) -> int | None:
    """Return the microseconds of YYYYmmddHHMM[SS]; None if that is not a time."""
    if not _IS_TIME(text):
        return None
    parts = [int(text[:4]), *(int(text[at : at + 2]) for at in range(4, len(text), 2))]
    with contextlib.suppress(ValueError):
        return microseconds(datetime(*parts, tzinfo=UTC))  # type: ignore[misc,arg-type]
    return None


def _series(key: tuple[bytes, bytes]) -> Mapping[str, Any] | None:
    if not all(map(_IS_WHOLE, key)):
        return None
    station, variable = map(int, key)
    return {"area": f"VM2,{station}", "product": f"VM2,{variable}"}


def _are_part_of(given: Sequence[Mapping[str, Any]], metadata: Sequence[Mapping[str, Any]]) -> bool:
    pairs = zip(given, metadata, strict=True)
    return given == metadata or all(not some or some.items() <= every.items() for some, every in pairs)


def _fault(line: bytes) -> str:
    if problem := why_not_text(line):
        return problem
    if b"\n" in line or b"\r" in line:
        return "a datum is one line, without the newline"
    count = line.count(b",") + 1
    if count != _COUNT:
        return f"{count} part{'s' * (count > 1)} instead of {_COUNT}: {_SHAPE}"
    for (name, fits, problem), part in zip(_PARTS, line.split(b","), strict=False):
        if not fits(part):
            return f"{name} {_excerpt(part)} {problem}"
    raise AssertionError(f"{line!r} is a line of VM2")


def _excerpt(line: bytes) -> str:
    return ascii(line[:60].decode("latin-1")) + "…" * (len(line) > 60)
