"""A dataset of photos for the tests of files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ondisk import Datum

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def photos(create):
    dataset = create("photos", format="blob", extension="jpg", unique=["reftime", "site"], fields={"site": "text"})
    dataset.append(photo(hour, site) for hour in range(3) for site in ("north", "south"))
    return dataset


def photo(hour, site, content=None, **metadata):
    data = f"{site} at {hour}".encode() if content is None else content
    return Datum(NOON + timedelta(hours=hour), {"site": site, **metadata}, data)
