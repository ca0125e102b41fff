"""Times in tables: texts as other programs write them → microseconds since 1970.

Without a format, a time is ISO 8601 with dashes and colons: a date, then nothing (midnight), or `T` or a blank, hours,
minutes, and perhaps seconds with a fraction; then perhaps `Z` or an offset. Digits after the sixth of a fraction are
cut off. `unix` and `unix-ms` are seconds and milliseconds since 1970. Other formats are those of `datetime.strptime`,
except that a number beside another one must have all its digits: strptime reads `202011` by `%Y%m%d` as 1 January.

24:00 is the end of a day, in all forms.

A time without an offset needs a zone. Where the clocks of the zone are put forward, some local times never occur; where
they are put back, some occur twice. Both are refused, the latter as a `Twice`: one time alone does not say which
moment is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import partial
from itertools import pairwise, product

from ondisk.datum import EPOCH, MICROSECOND, microseconds
from ondisk.errors import InvalidInput, shown
from ondisk.formats.base import Kept
from ondisk.local_time import moments_of, not_one, offset_of, zone_of
from ondisk.table_options import TableOptions

_SECOND = 1_000_000
_DAY = 24 * 3600 * _SECOND
_CACHED = 100_000
_EARLIEST, _LATEST = (microseconds(each.replace(tzinfo=UTC)) for each in (datetime.min, datetime.max))
_START = EPOCH.replace(tzinfo=None)
_MIDNIGHT = time()

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = re.compile(
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,12}))?)?)? ?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_NUMBER = re.compile(r"([+-]?)([0-9]{1,15})(?:\.([0-9]+))?")
_UNIX = {"unix": _SECOND, "unix-ms": 1000}
_EXAMPLE = "2026-11-20T06:00:00Z"
# Directives of strptime by what they say. A format of a date and then a time is read in two halves, which are cached.
_OF_DATE, _OF_TIME = frozenset("YymdjbBaAGuV"), frozenset("HMSfIpz")
_OF_YEAR = frozenset("YyGcx")
_DIRECTIVE = re.compile(r"%(.)", re.DOTALL)

_PARTS = re.compile(r"%.|\s+|[0-9]|[^%\s0-9]+|%", re.DOTALL)  # of a format; each digit is one
_HOUR, _FRACTION = "%H", "%f"
_WIDTHS = dict.fromkeys(["%" + letter for letter in "ymdHIMSUWV"], 2) | {"%Y": 4, "%G": 4, "%j": 3, "%u": 1, "%w": 1}
_NUMBERS = frozenset([*_WIDTHS, _FRACTION, "%c", "%x", "%X", *"0123456789"])  # they begin and end with a digit


class Twice(str):
    """Why a local time is refused that occurs twice when clocks are put back."""

    __slots__ = ("moments",)

    moments: tuple[int, int]  # both, microseconds since 1970

    def __new__(cls, text: str, moments: tuple[int, int]) -> Twice:
        self = super().__new__(cls, text)
        self.moments = moments
        return self

    def is_near(self, other: Twice) -> bool:
        return abs(self.moments[0] - other.moments[0]) < self.moments[1] - self.moments[0]


def of_value(value: str, why: str) -> str:
    """Return why a value, as a message shows it, is not a time, after the value; a `Twice` stays one."""
    text = f"{value}: {why}"
    return Twice(text, why.moments) if isinstance(why, Twice) else text


def of_reftime(why: str) -> str:
    """Return why a reftime is refused; if it occurs twice, also which option can help."""
    return why + "; pass ambiguous (--ambiguous infer) if the rows are in the order of time" * isinstance(why, Twice)


class Zone:
    """A time zone: its name in the IANA database such as Europe/Rome, or UTC, or an offset such as +01:00."""

    def __init__(self, name: str) -> None:
        self._zone = zone_of(name)
        self._days = Kept(partial(_offset_of_day, self._zone))

    def utc(self, local: int) -> int | str:
        """Return the moment of a local time, both as microseconds since 1970; or why it is refused, as in `Times`."""
        try:
            offset = self._days[local // _DAY]
            if offset is not None:
                return _moment(local - offset)
            time = _START + local * MICROSECOND
            moments = moments_of(time, self._zone)
        except InvalidInput as error:
            return error.message
        if len(moments) == 1:
            return microseconds(moments[0])
        why = not_one(time, self._zone, moments)
        return Twice(why, (microseconds(moments[0]), microseconds(moments[1]))) if moments else why


class TimeFormat:
    """Reads times as `datetime.strptime` does, but for numbers that lack digits and for 24:00; see the module."""

    def __init__(self, format: str) -> None:
        parts = _PARTS.findall(format)
        self._format = format
        self._pattern = _pattern(parts)
        # By this one, only a text with the hour 24 is a time: at the midnight before.
        self._with_24 = (
            TimeFormat("".join("24" if part == _HOUR else part for part in parts)) if _HOUR in parts else None
        )

    def __call__(self, text: str) -> datetime:
        """Return the time of a text, naive unless the format has an offset; raise ValueError if it has none."""
        try:
            return datetime.strptime(self._whole(text), self._format)
        except ValueError:
            if self._with_24 is None or "24" not in text:
                raise
        day = self._with_24(text)
        if day.time() != _MIDNIGHT or day.date() == date.max:
            raise ValueError(text)
        return day + timedelta(days=1)

    def _whole(self, text: str) -> str:
        """Return a text whose numbers have all their digits where they must: strptime divides them in one way only."""
        if self._pattern is None:
            return text
        matched = self._pattern.fullmatch(text)
        if matched is None:
            raise ValueError(text)
        if not matched.re.groups:
            return text
        return text[: matched.end(1)] + "0" * (6 - len(matched[1])) + text[matched.end(1) :]


def _pattern(parts: list[str]) -> re.Pattern[str] | None:
    """Return what texts match whose numbers have all their digits where they are beside others; None if none are."""
    beside = [False] * len(parts)
    for at, pair in enumerate(pairwise(parts)):
        if _NUMBERS.issuperset(pair) and not "".join(pair).isdigit():
            beside[at] = beside[at + 1] = True
    if not any(beside):
        return None
    return re.compile("".join(map(_pattern_of, parts, beside)), re.IGNORECASE | re.DOTALL)


def _pattern_of(part: str, is_beside: bool) -> str:
    if part in _WIDTHS:
        return rf"\d{{{_WIDTHS[part]}}}" if is_beside else rf" ?\d{{1,{_WIDTHS[part]}}}"
    if part == _FRACTION:
        return r"(\d{1,6})"
    if part.isspace():
        return r"\s+"
    return ".*?" if part.startswith("%") and part != "%%" else re.escape("%" if part == "%%" else part)


def readers(options: TableOptions) -> tuple[Times, Times]:
    """Return what reads the reftime by some options, and what reads other timestamps, if they are not written so."""
    zone = None if options.tz is None else Zone(options.tz)
    times = Times(options.time_format, zone)
    return times, times if options.time_format is None else Times(None, zone)


def timestamp(text: str, times: Times, others: Times) -> int | str:
    """Return the moment of a timestamp by one of two readers; or why the first one refuses it."""
    found = times[text]
    return also if isinstance(found, str) and isinstance(also := others[text], int) else found


class Times(dict[str, int | str]):
    """Texts → microseconds since 1970, or the reason why a text is not a time, perhaps a `Twice`.

    `zone`: of times without an offset; None to refuse them. A format without a year raises InvalidInput.
    """

    def __init__(self, format: str | None = None, zone: Zone | None = None) -> None:
        super().__init__()
        self._format = format
        self._zone = zone
        self._dates, self._clocks = Kept(_midnight), Kept(_clock)
        self._read: Callable[[str], int | str]
        if format is None:
            self._read = self._iso
        elif format in _UNIX:
            self._read = self._unix
        else:
            _check_format(format)
            self._separator = _separator(format)
            self._time_of = TimeFormat(format)
            self._read = self._strptime

    def __missing__(self, text: str) -> int | str:
        try:
            found = self._read(text.strip())
        except InvalidInput as error:
            found = error.message
        if isinstance(found, str):
            found = of_value(shown(text), found)
        if len(self) >= _CACHED:
            self.clear()
        if len(text) <= 64:
            self[text] = found
        return found

    def _iso(self, text: str) -> int | str:
        clock, offset = self._clocks[text[10:]]
        return self._moment(self._dates[text[:10]] + clock, offset)

    def _moment(self, local: int, offset: int | None) -> int | str:
        if offset is None:
            if self._zone is None:
                raise InvalidInput("the time has no offset; pass tz (--tz), such as UTC or Europe/Rome")
            return self._zone.utc(local)
        return _moment(local - offset)

    def _unix(self, text: str) -> int:
        matched = _NUMBER.fullmatch(text)
        if matched is None:
            raise InvalidInput(f"it is not a number, as {self._format} needs it")
        sign, whole, fraction = matched.groups()
        unit = _UNIX[self._format or ""]
        digits = len(str(unit)) - 1
        moment = int(whole) * unit + int((fraction or "").ljust(digits, "0")[:digits])
        if sign == "-":
            moment = -moment
        if not _EARLIEST <= moment <= _LATEST:
            raise InvalidInput("it is outside the years 1 to 9999")
        return moment

    def _strptime(self, text: str) -> int | str:
        day = clock = ""
        halves = text.split(self._separator if self._separator == "T" else None) if self._separator else ()
        if len(halves) == 2:  # else the date and the clock cannot be told apart: "1/ 2/2026 06:00"
            day, clock = halves
            midnight, parts = self._dates.get(day), self._clocks.get(clock)
            if midnight is not None and parts is not None:
                return self._moment(midnight + parts[0], parts[1])
        try:
            found = self._time_of(text)
        except ValueError:
            raise InvalidInput(f"it is not of the format {shown(self._format)}") from None
        offset = found.utcoffset()
        shift = None if offset is None else offset // MICROSECOND
        local = (found.replace(tzinfo=None) - _START) // MICROSECOND
        if day and not (found.time() == _MIDNIGHT and "24" in clock):  # 24:00 is on the next day
            midnight = self._dates.keep(day, local // _DAY * _DAY)
            self._clocks.keep(clock, (local - midnight, shift))
        return self._moment(local, shift)


def _offset_of_day(zone: tzinfo, day: int) -> int | None:
    """Return the offset of a zone on all of a local day, microseconds; None if it changes. `day`: since 1970.

    No zone of the IANA database changes twice on one day, so the beginning and the end of a day show a change.
    """
    try:
        begin = _START + timedelta(days=day)
        times = begin, begin + (timedelta(days=1) - MICROSECOND)
        offsets = {zone.utcoffset(time.replace(fold=fold)) for time, fold in product(times, (0, 1))}
    except OverflowError:  # the zone's own arithmetic, near the years 1 and 9999
        raise InvalidInput("it is outside the years 1 to 9999 in UTC") from None
    offset = offsets.pop()
    return None if offsets or offset is None else offset // MICROSECOND


def _moment(moment: int) -> int:
    if not _EARLIEST <= moment <= _LATEST:
        raise InvalidInput("it is outside the years 1 to 9999 in UTC")
    return moment


def _midnight(text: str) -> int:
    """Return the microseconds since 1970 of a date, as if it were UTC."""
    if _DATE.fullmatch(text) is None:
        raise InvalidInput(f"it is not a time such as {_EXAMPLE}; pass time_format (--time-format) for others")
    try:
        return (date.fromisoformat(text) - _START.date()).days * _DAY
    except ValueError:
        raise InvalidInput("it is an impossible date") from None


def _clock(text: str) -> tuple[int, int | None]:
    """Return the microseconds of what follows a date, and the offset if it has one."""
    matched = _CLOCK.fullmatch(text)
    if matched is None:
        raise InvalidInput(f"it is not a time such as {_EXAMPLE}; pass time_format (--time-format) for others")
    hours, minutes, seconds, fraction, zone = matched.groups(default="")
    whole = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    clock = whole * _SECOND + int(fraction.ljust(6, "0")[:6])
    if clock > _DAY or int(minutes or 0) > 59 or int(seconds or 0) > 59:
        raise InvalidInput("it is an impossible time")
    if not zone:
        return clock, None
    if zone in "Zz":
        return clock, 0
    offset = offset_of(zone)
    if offset is None:
        raise InvalidInput(f"{zone} is not an offset such as +01:00")
    return clock, offset // MICROSECOND


def _check_format(format: str) -> None:
    """Raise unless strptime knows a format, and it says at least the year."""
    problem = ""
    directives = {*_DIRECTIVE.findall(format)}
    try:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        # Without a year, strptime warns from Python 3.13 on.
        if not directives & _OF_YEAR or TimeFormat(format)(moment.strftime(format)).year != moment.year:
            problem = "has no year"
    except (ValueError, re.error):  # the latter for a directive that occurs twice
        problem = "is not a format of strptime"
    if re.search(r"%z(?:%[YGmdHIMSUWVjuwfcxX]|[0-9])", format):  # an offset may have four digits or more
        problem = "has a number directly after %z"
    if "Z" in directives:
        problem = "has %Z, but a zone's abbreviation does not say an offset"
    if problem:
        hint = f"Write for example '%d.%m.%Y %H:%M', or {', '.join(_UNIX)}; %z is an offset."
        raise InvalidInput(f"the time format {shown(format)} {problem}", hint=hint)


def _separator(format: str) -> str:
    """Return what separates the date and the time of a format that consists of these; an empty text for others.

    Names of days and months may have a T.
    """
    for separator in (" ",) if {*_DIRECTIVE.findall(format)} & {*"aAbB"} else (" ", "T"):
        day, _, clock = format.partition(separator)
        days, clocks = {*_DIRECTIVE.findall(day)}, {*_DIRECTIVE.findall(clock)}
        if days and clocks and days <= _OF_DATE and clocks <= _OF_TIME and separator not in clock:
            return separator
    return ""
