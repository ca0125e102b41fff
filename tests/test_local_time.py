"""`ondisk.local_time`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ondisk.errors import InvalidInput
from ondisk.local_time import to_utc, zone_of


@pytest.mark.parametrize(
    ("zone", "local", "utc"),
    [
        ("UTC", datetime(2026, 11, 20, 12), datetime(2026, 11, 20, 12)),
        ("+01:00", datetime(2026, 7, 20, 12), datetime(2026, 7, 20, 11)),
        ("-0330", datetime(2026, 7, 20, 12), datetime(2026, 7, 20, 15, 30)),
        ("Europe/Rome", datetime(2026, 11, 20, 12, 30), datetime(2026, 11, 20, 11, 30)),
        ("Europe/Rome", datetime(2026, 7, 20, 0, 0, 0, 250), datetime(2026, 7, 19, 22, 0, 0, 250)),
        ("Asia/Kathmandu", datetime(2026, 1, 1), datetime(2025, 12, 31, 18, 15)),
        ("Europe/Rome", datetime(2026, 3, 29, 1, 59, 59), datetime(2026, 3, 29, 0, 59, 59)),
        ("Europe/Rome", datetime(2026, 3, 29, 3), datetime(2026, 3, 29, 1)),
    ],
)
def test_a_local_time_is_one_time_in_utc(zone, local, utc):
    assert to_utc(local, zone_of(zone)) == utc.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "local", "problem"),
    [
        ("Europe/Rome", datetime(2026, 3, 29, 2, 30), "2026-03-29 02:30:00 does not exist in Europe/Rome"),
        ("Europe/Rome", datetime(2026, 10, 25, 2), "2026-10-25 02:00:00 happens twice in Europe/Rome"),
        ("Asia/Tokyo", datetime(1, 1, 1), "0001-01-01 00:00:00 in Asia/Tokyo is outside the years 1 to 9999"),
    ],
)
def test_a_time_that_a_clock_never_shows_or_shows_twice_is_refused(zone, local, problem):
    with pytest.raises(InvalidInput) as error:
        to_utc(local, zone_of(zone))
    assert error.value.message.startswith(problem)


@pytest.mark.parametrize(
    "name", ["", "Rome", "../../etc/passwd", "/etc/passwd", "Europe", "Europe/Rome\0", 5, "x" * 999]
)
def test_a_name_that_is_no_zone_is_an_error_with_a_remedy(name):
    with pytest.raises(InvalidInput, match="is not a time zone\nWrite a name such as Europe/Rome"):
        zone_of(name)
