"""Items: texts in the notation of arkimet's queries, and what an expression on an item means.

    item = STYLE {"," position} [":" key "=" value {"," key "=" value}]      GRIB1,105,2 · GRIB:Ni=97,Nj=73

    origin     GRIB1,centre,subcentre,process · GRIB2,centre,subcentre,type,background,process · BUFR,centre,subcentre
               ODIMH5,wmo,rad,plc
    product    GRIB1,centre,table,parameter · GRIB2,centre,discipline,category,parameter,tables,local tables
               BUFR,category,subcategory,local:t=… · ODIMH5,object,product · VM2,variable
    level      GRIB1,type,l1,l2 · GRIB2S,type,scale,value · GRIB2D,type,scale,value,type,scale,value · ODIMH5,least,most
    timerange  GRIB1,type,p1,p2 · GRIB2,type,unit,p1,p2 · Timedef,step,statistic,length · BUFR,step
    area       GRIB:… · ODIMH5:… · VM2,station              proddef    GRIB:…
    run        MINUTE,hh:mm                                 quantity   name,name,…        task    any text

In a stored item `-` is a missing number, and a text that looks like a number is in double quotes. A duration is a
number and a unit, as in `6h` or `1mo`. An expression is written as an item. It omits what may have any value. Numbers
are compared as numbers, and durations by their length. Source: the documentation of arkimet's matcher (1.66), and what
it answers; types of levels and time ranges of GRIB 1 are those of WMO's code tables 3 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ondisk.errors import InvalidInput, shown

Test: TypeAlias = Callable[[str], bool]

_STYLES: dict[str, tuple[str, ...]] = {
    "origin": ("GRIB1", "GRIB2", "BUFR", "ODIMH5"),
    "product": ("GRIB1", "GRIB2", "BUFR", "ODIMH5", "VM2"),
    "level": ("GRIB1", "GRIB2S", "GRIB2D", "ODIMH5"),
    "timerange": ("GRIB1", "GRIB2", "Timedef", "BUFR"),
    "area": ("GRIB", "ODIMH5", "VM2"),
    "proddef": ("GRIB",),
    "run": ("MINUTE",),
    "quantity": (),
    "task": (),
}
FIELDS = tuple(sorted(_STYLES))
"""The names that a field of type `item` can have: the name says how its expressions are read."""

_ITEM = re.compile(r"([A-Za-z0-9]+)\s*(?:,([^:]*))?(?::(.*))?", re.ASCII | re.DOTALL)
_PAIR = re.compile(
    r'\s*([A-Za-z_]\w*)\s*=\s*("(?:[^"\\]|\\.)*"|(?:[^,]|,(?!\s*[A-Za-z_]\w*\s*=))*)\s*(?:,|$)', re.ASCII
)
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_DURATION = re.compile(r"([+-]?[0-9]{1,15})\s*([a-z]*[0-9]*)", re.ASCII)
_CLOCK = re.compile(r"([0-9]{1,2})(?::([0-9]{1,2}))?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "h3": 10800, "h6": 21600, "h12": 43200, "d": 86400}
_MONTHS = {"mo": 1, "y": 12, "de": 120, "no": 360, "ce": 1200}
_NO_STATISTIC = 254
_INSTANT, _NUDGED, _ONLY_P2 = (0, 1, 10), 13, (118, 123, 124)  # types of time ranges of GRIB 1
_STATISTICS = {2: 205, 3: 0, 4: 1, 5: 4}  # type of a time range of GRIB 1 → statistic of GRIB 2
# What a shorter item stands for.
_OMITTED = {("level", "GRIB1"): ("", "0", "0"), ("product", "GRIB2"): ("", "", "", "", "4", "255")}
_RANGES = "Items have no ranges. Declare a number beside the item, and compare that."
_ANY = ("",)


class Pattern(NamedTuple):
    prefixes: tuple[str, ...]  # a text that matches begins with one of them
    test: Test  # returns whether a text that begins so matches


class Span(NamedTuple):
    """A length of time; zero is always in seconds. Negative ones are before the reference time."""

    amount: int
    is_months: bool = False


_ZERO = Span(0)


@lru_cache(maxsize=1000)
def pattern(field: str, text: str) -> Pattern:
    """Return what one alternative of an expression on the items of a field means; raise InvalidInput if it is none."""
    if field == "task":
        part = text.partition(",")[0].strip().upper()
        return Pattern(_ANY, lambda item: part in item.upper())
    if field == "quantity":
        names = _names(text)
        return Pattern(_ANY, lambda item: names <= _names(item))
    style, rest = _style(field, text)
    if field == "run":
        return Pattern((style,), _run(rest))
    if (field, style) == ("level", "ODIMH5"):
        return Pattern((style,), _elevations(rest))
    found = _ITEM.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"{shown(text)} is not an item", hint="Write for example `GRIB1,105,2`.")
    positions, pairs = _positions(found[2]), _pairs(found[3] or "", is_strict=True)
    if field == "timerange":
        return _time_range(style, positions)
    if style != "ODIMH5":
        _check_numbers(positions)
    omitted = _OMITTED.get((field, style), ())
    wanted = {place: _value(part) for place, part in enumerate(positions) if part}
    return Pattern((style,), lambda item: _has(item, style, wanted, pairs, omitted))


def values_of(field: str, texts: Iterable[str]) -> set[str]:
    """Return the items that expressions name, in lower case; only in `quantity` and `task`, which have no styles."""
    return set() if _STYLES[field] else {name.lower() for text in texts for name in _names(text)}


def is_value(field: str, text: str, known: Collection[str]) -> bool:
    """Return whether a text is an item of a field, in any case, by its style or one of the `known` items."""
    if styles := _STYLES[field]:
        return re.split("[,:]", text, maxsplit=1)[0].strip().lower() in [style.lower() for style in styles]
    return text.lower() in known


def matches(field: str, text: str, item: str) -> bool:
    """Return whether an item matches one alternative of an expression; one that is not understood does not."""
    prefixes, test = pattern(field, text)
    return item.startswith(prefixes) and test(item)


def _style(field: str, text: str) -> tuple[str, str]:
    known = _STYLES.get(field, ())
    found = re.match(r"\s*([A-Za-z0-9]+)\s*(?=[,:]|$),?", text, re.ASCII)
    if found is None or found[1] not in known:
        hint = f"The items of {field} begin with {' or '.join(known)}; write any other text in double quotes."
        raise InvalidInput(f"{shown(text)} begins with no style of {field}", hint=hint)
    return found[1], text[found.end() :]


def _names(text: str) -> set[str]:
    return set(filter(None, map(str.strip, text.split(","))))


def _positions(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _value(text: str) -> int | str:
    return int(text) if _WHOLE.fullmatch(text) else text


def _pairs(text: str, *, is_strict: bool = False) -> dict[str, int | str]:
    """Return the values by key. A comma belongs to a value if no key follows it."""
    found: dict[str, int | str] = {}
    at = 0
    while pair := _PAIR.match(text, at):
        key, value = pair[1], pair[2].strip()
        found[key] = value[1:-1] if value.startswith('"') else _value(value)
        at = pair.end()
    if is_strict and text[at:].strip():
        raise InvalidInput(f"{shown(text[at:])} is not a key and a value", hint="Write them as in `GRIB:Ni=97,Nj=73`.")
    return found


def _check_numbers(positions: Sequence[str]) -> None:
    for part in positions:
        if part not in ("", "-") and not _WHOLE.fullmatch(part):
            raise InvalidInput(f"{shown(part)} is not a number", hint=_RANGES)


def _has(
    item: str, style: str, wanted: Mapping[int, int | str], pairs: Mapping[str, int | str], omitted: Sequence[str]
) -> bool:
    found = _ITEM.fullmatch(item)
    if found is None or found[1] != style:
        return False
    positions = _positions(found[2])
    positions += omitted[len(positions) :]
    for place, value in wanted.items():
        if place >= len(positions) or _value(positions[place]) != value:
            return False
    return not pairs or pairs.items() <= _pairs(found[3] or "").items()


def _run(rest: str) -> Test:
    if not rest.strip(" ,"):
        return lambda item: item.startswith("MINUTE")
    minute = _minute(rest.strip(" ,"))
    if minute is None:
        raise InvalidInput(f"{shown(rest)} is not a time of day", hint="Write `MINUTE,13` or `MINUTE,13:30`.")
    return lambda item: _minute(item[len("MINUTE,") :]) == minute


def _minute(text: str) -> int | None:
    found = _CLOCK.fullmatch(text)
    return None if found is None else 60 * int(found[1]) + int(found[2] or 0)


def _elevations(rest: str) -> Test:
    """Return the test of a range of elevation angles: `range 0 5`, or some angles and perhaps their `offset`."""
    word, *others = rest.replace(",", " ").split() or [""]
    if not word:
        return lambda item: item.startswith("ODIMH5")
    try:
        if word == "range":
            least, most = sorted(map(float, others))
            ranges = [(least, most)]
        else:
            angles = [word, *others]
            offset = float(angles.pop()) if "offset" in angles[:-1] and angles.pop(-2) else 0.0
            ranges = [(float(each) - offset, float(each) + offset) for each in angles]
    except ValueError:
        hint = "Write `ODIMH5,range 0 5`, or `ODIMH5,11 12 offset 0.5`."
        raise InvalidInput(f"{shown(rest)} says no elevations", hint=hint) from None

    def test(item: str) -> bool:
        try:
            least, most = map(float, item.removeprefix("ODIMH5,").split(","))
        except ValueError:
            return False
        return any(least <= end and begin <= most for begin, end in ranges)

    return test


def _span(text: str) -> Span:
    found = _DURATION.fullmatch(text)
    if found is not None:
        amount, unit = int(found[1]), found[2]
        if not amount and (not unit or unit in _SECONDS or unit in _MONTHS):
            return _ZERO
        if unit in _SECONDS:
            return Span(amount * _SECONDS[unit])
        if unit in _MONTHS:
            return Span(amount * _MONTHS[unit], True)
    units = ", ".join([*_SECONDS, *_MONTHS])
    raise InvalidInput(f"{shown(text)} is not a duration", hint=f"Write a number and a unit, as in `6h`: {units}.")


def _time_range(style: str, positions: Sequence[str]) -> Pattern:
    first, second, third = [*positions, "", "", ""][:3]
    if style == "Timedef":
        return Pattern(_STYLES["timerange"], _timedef(first, second, third))
    if style == "BUFR":
        step = _span(first) if first else None
        return Pattern((style,), lambda item: step in (None, time_range(item)[0]))
    if style == "GRIB1":
        return Pattern((style,), _grib1(first, second, third))
    _check_numbers(positions)
    wanted = {place: _value(part) for place, part in enumerate(positions) if part}
    return Pattern((style,), lambda item: _has(item, style, wanted, {}, ()))


def _timedef(first: str, second: str, third: str) -> Test:
    """Return the test by step, statistic and length, which time ranges of GRIB 1 and BUFR have, too."""
    _check_numbers([second])
    step = _span(first) if first not in ("", "-") else None
    statistic = int(second) if second not in ("", "-") else None
    length = _span(third) if third not in ("", "-") else None

    def test(item: str) -> bool:
        own_step, own_statistic, own_length = time_range(item)
        if first and own_step != step:
            return False
        if second == "-":
            return own_statistic is None
        if second and own_statistic != statistic:
            return False
        return not third or own_length == length

    return test


def _grib1(first: str, second: str, third: str) -> Test:
    _check_numbers([first])
    kind = int(first) if first else None
    begin = _span(second) if second else None
    end = _span(third) if third else None

    def test(item: str) -> bool:
        try:
            own, p1, p2 = _of_grib1(_positions(item.partition(",")[2]))
        except InvalidInput:
            return False
        if kind not in (None, own):
            return False
        # What the type of the time range does not have matches anything.
        return (None in (begin, p1) or begin == p1) and (None in (end, p2) or end == p2)

    return test


def _of_grib1(positions: Sequence[str]) -> tuple[int, Span | None, Span | None]:
    """Return the type, P1 and P2 of an item; None for those that the type does not have."""
    if not positions or not _WHOLE.fullmatch(positions[0]):
        raise InvalidInput("a time range without type")
    kind = int(positions[0])
    spans = [*map(_span, positions[1:]), None, None]
    return (kind, None, spans[0]) if kind in _ONLY_P2 else (kind, spans[0], spans[1])


@lru_cache(maxsize=1000)
def time_range(item: str) -> tuple[Span | None, int | None, Span | None]:
    """Return the step, the statistic and its length of a time range; None for what it does not say."""
    try:
        return _timedef_of(item)
    except (InvalidInput, ValueError):
        return None, None, None


def _timedef_of(item: str) -> tuple[Span | None, int | None, Span | None]:
    style, _, rest = item.partition(",")
    positions = _positions(rest)
    if style == "Timedef":
        step, statistic, length = [*positions, "-", "-", "-"][:3]
        has_statistic = statistic != "-"
        return (
            None if step == "-" else _span(step),
            int(statistic) if has_statistic else None,
            _span(length) if has_statistic and length != "-" else None,
        )
    if style == "BUFR":
        return _span(positions[0]) if positions else _ZERO, None, None
    if style == "GRIB1":
        kind, p1, p2 = _of_grib1(positions)
        if kind in _INSTANT:
            return p1 or _ZERO, _NO_STATISTIC, _ZERO
        if kind == _NUDGED:
            return _ZERO, _NO_STATISTIC, _ZERO
        if kind in _STATISTICS and p1 is not None and p2 is not None:
            amount = p2.amount - p1.amount
            return p2, _STATISTICS[kind], Span(amount, p2.is_months and amount != 0)
    return None, None, None
