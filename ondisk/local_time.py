"""Local times: time zones by name, and what a local time is in UTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from ondisk.errors import InvalidInput, shown

_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})?")


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database, or by its offset, `+01:00`; or raise InvalidInput."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # here, because few commands need it

    try:
        offset = offset_of(name)
        return ZoneInfo(name) if offset is None else timezone(offset)
    except (KeyError, ValueError, OSError, TypeError):
        hint = "Write a name such as Europe/Rome, or an offset such as +01:00."
        hint += " If no name is known, install the package tzdata."
        raise InvalidInput(f"{shown(name)} is not a time zone", hint=hint) from None


def offset_of(text: str) -> timedelta | None:
    """Return an offset from UTC such as `+01:00`, `+0100` or `+01`; None for another text."""
    matched = _OFFSET.fullmatch(text)
    if matched is None or int(matched[2]) > 23 or int(matched[3] or 0) > 59:
        return None
    offset = timedelta(hours=int(matched[2]), minutes=int(matched[3] or 0))
    return -offset if matched[1] == "-" else offset


def to_utc(local: datetime, zone: tzinfo) -> datetime:
    """Return the UTC time of a local time; raise InvalidInput if the zone's clocks never show it, or twice."""
    moments = moments_of(local, zone)
    if len(moments) == 1:
        return moments[0]
    shown_moments = " or ".join(f"{each:%H:%M}" for each in moments)
    hint = f"It is {shown_moments} in UTC: write times with an offset." if moments else ""
    raise InvalidInput(not_one(local, zone, moments), hint=hint)


def moments_of(local: datetime, zone: tzinfo) -> list[datetime]:
    """Return the UTC times when a zone's clocks show a local time: none, one or two; or raise InvalidInput."""
    try:
        first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise InvalidInput(f"{local} in {zone} is outside the years 1 to 9999 in UTC") from None
    return [first] if first == second else [first, second] if first < second else []


def not_one(local: datetime, zone: tzinfo, moments: Sequence[datetime]) -> str:
    """Return why a local time is not one time in UTC, by what `moments_of` returned."""
    if moments:
        return f"{local} happens twice in {zone}, since clocks are put back then"
    return f"{local} does not exist in {zone}, since clocks are put forward then"
