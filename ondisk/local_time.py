"""Local times: time zones by name, and what a local time is in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from ondisk.errors import InvalidInput, shown

_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})?")


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database, such as `Europe/Rome` or `UTC`; or by its offset, `+01:00`.

    Raises:
        InvalidInput: there is no such zone, or this machine has no database.
    """
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
    """Return the UTC time of a local time, which has no zone of its own.

    Raises:
        InvalidInput: a clock of this zone never shows the time, or shows it twice: when it is put forward or back. Or
            it is outside the years 1 to 9999 in UTC. If it is shown twice, the error's context contains both `moments`.
    """
    try:
        first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise InvalidInput(f"{local} in {zone} is outside the years 1 to 9999 in UTC") from None
    if first == second:
        return first
    if first < second:
        hint = f"It is {first:%H:%M} or {second:%H:%M} in UTC: write times with an offset."
        problem = f"{local} happens twice in {zone}, since clocks are put back then"
        raise InvalidInput(problem, hint=hint, moments=(first, second))
    raise InvalidInput(f"{local} does not exist in {zone}, since clocks are put forward then")
