"""The language of times in match expressions, as in arkimet: `>=2007-07,<today - 3 days %6h`. See `docs/match.md`.

    times    = term {"," term}                                all must hold
    term     = operator (time | moment) [steps] | steps
    operator = ">=" | "from" | ">" | "<=" | "until" | "<" | "=" | "=="
    moment   = {distance ("before" | "after")} (distance "ago" | "now" | day [time]) {("+" | "-") distance}
    day      = YYYY[-MM[-DD]] | "today" | "yesterday" | "tomorrow" | "easter" YYYY
    time     = HH[:MM[:SS]] ["Z"] | HH:MM[:SS] ("+" | "-") HH[:MM] | "midday" | "noon" | "midnight"
    distance = (N | "a" | "an") unit {["and"] (N | "a" | "an") unit}
    steps    = ["@" time] ("%" | "every") N unit

A moment is a period; its length is the finest unit in its text. Distances after a moment apply before those in front of
it. A time with an offset from UTC needs a day. All times are UTC.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from ondisk.datum import microseconds
from ondisk.errors import MatchError
from ondisk.local_time import offset_of
from ondisk.matcher import Compare, EverySeconds, Expression, OneOf, Operator, TimeOfDay
from ondisk.matcher.fragments import Fragment, all_of

DAY_SECONDS = 86400
_END_OF_TIME = microseconds(datetime.max.replace(tzinfo=UTC)) + 1


class Unit(IntEnum):
    """The precision of a time; a larger number is finer."""

    YEAR = 0
    MONTH = 1
    DAY = 2
    HOUR = 3
    MINUTE = 4
    SECOND = 5


class Distance(NamedTuple):
    """The distance between two times, such as `2 months 3 days`. Months differ in length, so they are counted apart."""

    months: int  # whole months, added before the seconds
    seconds: int  # whole seconds
    unit: Unit  # the finest unit in it

    def __add__(self, other: Distance) -> Distance:  # type: ignore[override]  # not that of tuples
        return Distance(self.months + other.months, self.seconds + other.seconds, max(self.unit, other.unit))

    def __mul__(self, count: int) -> Distance:  # type: ignore[override]
        return Distance(self.months * count, self.seconds * count, self.unit)


_YEAR = Distance(12, 0, Unit.YEAR)
_MONTH = Distance(1, 0, Unit.MONTH)
_WEEK = Distance(0, 7 * DAY_SECONDS, Unit.DAY)  # seven days: no day of the week is defined as the first
_DAY = Distance(0, DAY_SECONDS, Unit.DAY)
_HOUR = Distance(0, 3600, Unit.HOUR)
_MINUTE = Distance(0, 60, Unit.MINUTE)
_SECOND = Distance(0, 1, Unit.SECOND)
_ONE = (_YEAR, _MONTH, _DAY, _HOUR, _MINUTE, _SECOND)

DISTANCES: Mapping[str, Distance] = MappingProxyType(
    {
        **dict.fromkeys(("y", "year", "years"), _YEAR),
        **dict.fromkeys(("month", "months"), _MONTH),
        **dict.fromkeys(("w", "week", "weeks"), _WEEK),
        **dict.fromkeys(("d", "day", "days"), _DAY),
        **dict.fromkeys(("h", "hour", "hours"), _HOUR),
        **dict.fromkeys(("m", "min", "minute", "minutes"), _MINUTE),
        **dict.fromkeys(("s", "sec", "second", "seconds"), _SECOND),
    }
)
"""Every name of a unit → the distance of one."""


class Period(NamedTuple):
    begin: datetime  # its first moment, UTC
    unit: Unit  # its length

    @classmethod
    def of(cls, *numbers: int) -> Period:
        """Return the period of year, month, day …, as precise as they are; raise ValueError without such a date."""
        return cls(_at(*numbers), Unit(len(numbers) - 1))

    @classmethod
    def around(cls, time: datetime, unit: Unit) -> Period:
        """Return the period of this length that contains a UTC time."""
        return cls.of(*time.timetuple()[: unit + 1])

    @property
    def end(self) -> int:
        """The first moment after it, microseconds since 1970; also after the year 9999, the last of `datetime`."""
        try:
            return microseconds(self.moved(_ONE[self.unit]).begin)
        except OverflowError:
            return _END_OF_TIME

    @property
    def time_of_day(self) -> int:
        return self.begin.hour * 3600 + self.begin.minute * 60 + self.begin.second

    def moved(self, distance: Distance) -> Period:
        """Return the period moved by months, then by seconds, with the finer precision of the two.

        A day that does not exist becomes the last of the month: one month after 31 January is the end of February.
        Raises OverflowError outside of the years 1 to 9999.
        """
        year, month = divmod(self.begin.year * 12 + self.begin.month - 1 + distance.months, 12)
        if not 1 <= year <= 9999:
            raise OverflowError("year is out of range")
        day = min(self.begin.day, monthrange(year, month + 1)[1])
        begin = self.begin.replace(year=year, month=month + 1, day=day) + timedelta(seconds=distance.seconds)
        return Period(begin, max(self.unit, distance.unit))


def easter(year: int) -> Period:
    """Return Easter Sunday (Gregorian: Nature, 20 April 1876); raise ValueError outside of 1 to 9999."""
    golden, century, of_century = year % 19, year // 100, year % 100
    moon_correction = (century - (century + 8) // 25 + 1) // 3
    epact = (19 * golden + century - century // 4 - moon_correction + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (of_century // 4) - epact - of_century % 4) % 7
    late = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * late + 114, 31)
    return Period.of(year, month, day + 1)


def _at(year: int, month: int = 1, day: int = 1, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


_OPERATORS: Final[dict[str, Operator]] = {
    ">=": ">=",
    "from": ">=",
    ">": ">",
    "<=": "<=",
    "until": "<=",
    "<": "<",
    "=": "=",
    "==": "=",
}
_DAYS_FROM_TODAY = {"yesterday": -1, "today": 0, "tomorrow": 1}
_LENGTHS = {Unit.HOUR: 3600, Unit.MINUTE: 60, Unit.SECOND: 1}
_NAMED_TIMES = {"midday": "12:00:00", "noon": "12:00:00", "midnight": "00:00:00"}
_TIME = ("time", *_NAMED_TIMES)
_SIGNS = {"before": -1, "-": -1, "after": 1, "+": 1}
_WORDS = frozenset({*_OPERATORS, *_DAYS_FROM_TODAY, *_NAMED_TIMES, *_SIGNS, "now", "ago", "and"})

_OFFSET = r"[+-]\s*\d\d(?::?\d\d)?(?!\s*[\da-z:])"  # what a unit follows is a distance
_TOKEN = re.compile(
    rf"""
    (?:
      (?P<step>     (?:%|every)\s*(?P<period>\d+)\s*(?P<step_unit>[a-z]+) )
    | (?P<distance> (?P<count>\d+\s*|an?\s+)(?P<unit>{"|".join(sorted(DISTANCES, key=len, reverse=True))})(?![a-z]) )
    | (?P<date>     \d{{4}}(?:-\d\d?){{0,2}}(?![\d:])(?:T(?=\d))? )
    | (?P<base>     @\s*\d\d?(?::\d\d){{0,2}}(?![\d:])Z? )
    | (?P<time>     \d\d?(?::\d\d){{0,2}}(?![\d:])(?: Z | (?<=:\d\d)\s*(?P<offset>{_OFFSET}) )? )
    | (?P<easter>   easter\s*(?P<easter_year>\d{{4}})(?!\d) )
    | (?P<word>     [a-z]+ | [<>]=? | ==? | [+-] )
    ) \s*
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
# Far more than the calendar needs, far less than int() refuses to read.
_LONGEST_COUNT = 18
_HINT = (
    "Write dates as YYYY-MM-DD, and steps with h, min or s:"
    " for example `>=2007-07-01`, `=today`, `<2 days ago`, `>=12:00` or `%6h`."
)


class _Token(NamedTuple):
    """A token; `kind` is a group of `_TOKEN`, or the word or sign itself in lower case."""

    kind: str
    fragment: Fragment
    groups: dict[str, str]


class _Tokens:
    def __init__(self, term: Fragment) -> None:
        self._term = term
        self._tokens = list(_tokens(term))
        self._next = 0

    def take(self, *kinds: str) -> _Token | None:
        if self._next == len(self._tokens) or self._tokens[self._next].kind not in kinds:
            return None
        self._next += 1
        return self._tokens[self._next - 1]

    def unexpected(self, wanted: str, hint: str = _HINT) -> MatchError:
        """Return the error that something else was expected instead of the next token or the end."""
        if self._next < len(self._tokens):
            fragment = self._tokens[self._next].fragment
            return fragment.error(f"expected {wanted}, found {fragment}", hint)
        return self._term.error(f"expected {wanted}" + f" after {self._term}" * bool(self._tokens), hint)

    def finish(self) -> None:
        if self._next < len(self._tokens):
            raise self.unexpected("a comma or the end")


def parse_times(field: str, fragment: Fragment, now: datetime) -> Expression:
    """Return the condition of one alternative of a timestamp field, or raise MatchError; `now`: in UTC, for `today`."""
    return all_of(condition for term in fragment.split(",") for condition in _term(field, term, now))


def _tokens(term: Fragment) -> Iterator[_Token]:
    position = 0
    while position < len(term.text):
        found = _TOKEN.match(term.text, position)
        if found is None:
            rest = term.part(position)
            raise rest.error(f"{rest} is not a time", _HINT)
        kind, fragment = found.lastgroup, term.part(position, found.end())
        if found["word"]:
            kind = found["word"].lower()
            if kind not in _WORDS:
                raise fragment.error(f"{fragment} is not a word for a time", _HINT)
        groups = {name: text.lower() for name, text in found.groupdict().items() if text is not None}
        yield _Token(str(kind), fragment, groups)
        position = found.end()


def _term(field: str, term: Fragment, now: datetime) -> Iterator[Expression]:
    tokens = _Tokens(term)
    base = 0
    operator = tokens.take(*_OPERATORS)
    if operator is not None:
        sign = _OPERATORS[operator.kind]
        if time := tokens.take(*_TIME):
            if offset := time.groups.get("offset"):
                problem = f"{offset} is an offset from UTC, and {time.fragment} has no date"
                raise time.fragment.error(problem, "Write the date, too; or convert the time to UTC.")
            base, unit = _seconds(time)
            yield _daily(field, sign, base, unit)
        else:
            moment = _moment(tokens, now)
            base = moment.time_of_day
            yield from _compared(field, sign, moment)
    steps = _steps(field, tokens, base)
    if steps is not None:
        yield steps
    elif operator is None:
        hint = f"To match exactly this write `={term.text}`; operators: = >= > <= < from until." if term.text else _HINT
        raise tokens.unexpected("an operator", hint)
    tokens.finish()


def _compared(field: str, operator: Operator, period: Period) -> Iterator[Expression]:
    begin, end = microseconds(period.begin), period.end
    if operator in ("=", ">=", ">"):
        yield Compare(field, ">=", end if operator == ">" else begin)
    if operator in ("=", "<=", "<"):
        yield Compare(field, "<", begin if operator == "<" else end)


def _daily(field: str, operator: Operator, time: int, unit: Unit) -> Expression:
    after = time + _LENGTHS[unit]
    begin = {"=": time, ">=": time, ">": after}.get(operator, 0)
    end = {"=": after, "<=": after, "<": time}.get(operator, DAY_SECONDS)
    begin, end = min(begin, DAY_SECONDS), min(end, DAY_SECONDS)
    return TimeOfDay(field, begin, end) if begin < end else OneOf(field, ())


def _steps(field: str, tokens: _Tokens, base: int) -> Expression | None:
    at = tokens.take("base")
    step = tokens.take("step")
    if step is None:
        if at is not None:
            raise tokens.unexpected(f"a step after {at.fragment}", "Write for example `@04:30%8h`.")
        return None
    if at is not None:
        base, _ = _seconds(at)
    one = DISTANCES.get(step.groups["step_unit"])
    if one is None or one.unit < Unit.HOUR:
        raise step.fragment.error(
            f"{step.fragment} is not a step within a day", "Write the step in hours, minutes or seconds."
        )
    period = _count(step, "period") * one.seconds
    if not 1 <= period <= DAY_SECONDS:
        raise step.fragment.error(f"{step.fragment} is not a step within a day", "A step is 1 second to 24 hours long.")
    # Bases that differ by a whole period are equivalent.
    return EverySeconds(field, period, base % period)


def _moment(tokens: _Tokens, now: datetime) -> Period:
    # A list of prefixes, not recursion: a text may contain thousands.
    prefixes: list[tuple[_Token, Distance]] = []
    while (distance := _distance(tokens)) is not None:
        if ago := tokens.take("ago"):
            back = _moved(ago, Period.around(now, Unit.SECOND), distance * -1)
            period = Period.around(back.begin, distance.unit)
            break
        direction = tokens.take("before", "after")
        if direction is None:
            raise tokens.unexpected("`ago`, `before` or `after`")
        prefixes.append((direction, distance * _SIGNS[direction.kind]))
    else:
        period = _day(tokens, now)
    while sign := tokens.take("+", "-"):
        distance = _distance(tokens)
        if distance is None:
            raise tokens.unexpected("a number of units", "Write for example `today - 3 days`.")
        period = _moved(sign, period, distance * _SIGNS[sign.kind])
    for direction, distance in reversed(prefixes):
        period = _moved(direction, period, distance)
    return period


def _distance(tokens: _Tokens) -> Distance | None:
    token = tokens.take("distance")
    if token is None:
        return None
    total = _one_distance(token)
    while True:
        joined = tokens.take("and")
        token = tokens.take("distance")
        if token is None:
            if joined:
                raise tokens.unexpected("a number of units")
            return total
        total += _one_distance(token)


def _one_distance(token: _Token) -> Distance:
    count = 1 if token.groups["count"].startswith("a") else _count(token, "count")
    return DISTANCES[token.groups["unit"]] * count


def _count(token: _Token, group: str) -> int:
    digits = token.groups[group].strip()
    if len(digits) > _LONGEST_COUNT:
        raise token.fragment.error(f"the number in {token.fragment} is too large", "Times are in the years 1 to 9999.")
    return int(digits)


def _moved(token: _Token, period: Period, distance: Distance) -> Period:
    try:
        return period.moved(distance)
    except OverflowError:
        problem = f"the result of {token.fragment} is outside the years 1 to 9999"
        raise token.fragment.error(problem, "Use a date in these years.") from None


def _day(tokens: _Tokens, now: datetime) -> Period:
    if tokens.take("now"):
        return Period.around(now, Unit.SECOND)
    token = tokens.take("date", "easter", *_DAYS_FROM_TODAY)
    if token is None:
        raise tokens.unexpected("a date")
    period = _named_day(token, now)
    time = tokens.take(*_TIME)
    if time is None:
        return period
    if period.unit is not Unit.DAY:
        raise time.fragment.error(
            f"{time.fragment} follows {token.fragment}, which is not a day", "Write year, month, day, then time."
        )
    seconds, unit = _seconds(time)
    return _moved(time, period, Distance(0, seconds - _offset(time), unit))


def _offset(time: _Token) -> int:
    text = "".join(time.groups.get("offset", "").split())
    if not text:
        return 0
    offset = offset_of(text)
    if offset is None:
        raise time.fragment.error(f"{text} is not an offset from UTC", "Offsets are -23:59 to +23:59.")
    return int(offset.total_seconds())


def _named_day(token: _Token, now: datetime) -> Period:
    if token.kind in _DAYS_FROM_TODAY:
        today = Period.around(now, Unit.DAY)
        return _moved(token, today, DISTANCES["day"] * _DAYS_FROM_TODAY[token.kind])
    try:
        if token.kind == "easter":
            return easter(int(token.groups["easter_year"]))
        return Period.of(*map(int, re.findall(r"\d+", token.fragment.text)))
    except ValueError as error:
        raise token.fragment.error(f"there is no date {token.fragment}: {error}", "Dates are YYYY-MM-DD.") from None


def _seconds(token: _Token) -> tuple[int, Unit]:
    """Return a time of day as seconds after midnight, and its precision; `24:00` is the end of the day."""
    text = _NAMED_TIMES.get(token.kind, re.split("[+-]", token.fragment.text)[0])
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    hour, minute, second = (*numbers, 0, 0)[:3]
    if (hour, minute, second) != (24, 0, 0) and not (hour < 24 and minute < 60 and second < 60):
        raise token.fragment.error(f"there is no time {token.fragment}", "Times of day are 00:00:00 to 23:59:59, UTC.")
    return hour * 3600 + minute * 60 + second, Unit(Unit.DAY + len(numbers))
