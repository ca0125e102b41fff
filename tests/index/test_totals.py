"""Which summaries are answered from sums."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import ondisk
from ondisk.datum import Datum
from ondisk.index.sums import Totals, interval_of_sums, totals
from ondisk.matcher import parse

START = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"step": "weekly", "unique": ["reftime", "station"], "fields": {"station": "integer"}}


def datum(hour: int) -> Datum:
    return Datum(START + timedelta(hours=hour), {"station": 1}, {"value": hour})


def uses_sums(path: Path, match: str) -> bool:
    with ondisk.open(path, read_only=True) as dataset, dataset._access.current().index.snapshot() as snapshot:
        return interval_of_sums(snapshot, parse(match, dataset.config.fields)) is not None


@pytest.mark.parametrize(
    ("match", "wanted"),
    [
        ("reftime:=2026-11-20", True),
        ("reftime:>=2026-11-20,<2026-11-22", True),
        ("reftime:>=2026-11-20 12:00", False),
        ("reftime:>2026-11-21 23:30", True),  # between the last datum of a day and the next day
        ("reftime:=2026-11-20 or =2026-11-22", False),
        ("reftime:=2026-11-20; station:1", False),
    ],
)
def test_whole_days_are_answered_from_sums_and_nothing_else_is(create, match, wanted):
    dataset = create(**CONFIG)
    dataset.append(datum(hour) for hour in range(72))
    assert uses_sums(dataset.path, match) == wanted


def test_totals_of_no_data_have_no_times(create):
    dataset = create(**CONFIG)
    with dataset._access.current().index.snapshot() as snapshot:
        assert totals(snapshot, parse("reftime:=2026", dataset.config.fields)) == Totals(0, 0, None, None)
