"""Local times: time zones by name, and what a local time is in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from ondisk.errors import InvalidInput, shown


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database, such as `Europe/Rome` or `UTC`.

    Raises:
        InvalidInput: there is no such zone, or this machine has no database.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        hint = "Write a name such as Europe/Rome. If that is unknown, too, install the package tzdata."
        raise InvalidInput(f"{shown(name)} is not a time zone", hint=hint) from None


def to_utc(local: datetime, zone: tzinfo) -> datetime:
    """Return the UTC time of a local time, which has no zone of its own.

    Raises:
        InvalidInput: a clock of this zone never shows the time, or shows it twice: when it is put forward or back. Or
            it is outside the years 1 to 9999 in UTC.
    """
    try:
        first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise InvalidInput(f"{local} in {zone} is outside the years 1 to 9999 in UTC") from None
    if first == second:
        return first
    if first < second:
        hint = f"It is {first:%H:%M} or {second:%H:%M} in UTC: write times with an offset."
        raise InvalidInput(f"{local} happens twice in {zone}, since clocks are put back then", hint=hint)
    raise InvalidInput(f"{local} does not exist in {zone}, since clocks are put forward then")
