"""The rows of a dropped segment in a file of their own: equal to those in the index, and read in their place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ondisk import Datum
from ondisk.index import replaced_rows

T = datetime(2026, 11, 20, tzinfo=UTC)
SQL = "SELECT seq, reftime, segment, offset, size, f_level, (SELECT value FROM value WHERE id = f_area) FROM datum"


@pytest.fixture
def dataset(create):
    dataset = create(format="jsonl", step="daily", fields={"area": "text", "level": "real"})
    levels = [1, 0.5, -0.0, None, 3]
    dataset.append(
        Datum(
            T + timedelta(hours=hour), {"area": f"é{hour}"} | ({} if level is None else {"level": level}), {"x": hour}
        )
        for hour, level in enumerate(levels * 10)
    )
    return dataset


def test_the_rows_are_those_of_the_segment(dataset, tmp_path):
    path = tmp_path / "a file?.rows"  # a name that must be quoted in an address
    path.touch()
    index = dataset._access.current().index
    with index.snapshot() as snapshot:
        segment = snapshot.segment_named("2026/11-20.jsonl")
        uuid = snapshot.dataset()["uuid"]
        expected = snapshot.fetch(f"{SQL} WHERE segment = ? ORDER BY seq", (segment.id,))
    with index.snapshot() as snapshot:
        replaced_rows.copy(snapshot, segment, path)
    dataset.delete("")
    dataset.repack()
    with index.snapshot() as snapshot:
        assert replaced_rows.read(snapshot, path) == uuid
        assert snapshot.fetch(f"{SQL} ORDER BY seq") == expected
        assert [type(row[5]) for row in snapshot.fetch(SQL)] == [type(row[5]) for row in expected]
        assert snapshot.segment_named(segment.name) == segment
    with index.snapshot() as snapshot:
        assert snapshot.fetch(SQL) == [], "another snapshot reads the index"


@pytest.mark.parametrize("content", [None, b"", b"x" * 10_000, b"SQLite format 3\0" + bytes(4080)])
def test_a_file_that_is_not_whole_is_none(dataset, tmp_path, content):
    path = tmp_path / "it.rows"
    if content is not None:
        path.write_bytes(content)
    with dataset._access.current().index.snapshot() as snapshot:
        assert replaced_rows.read(snapshot, path) is None


def test_the_rows_are_found_by_number_and_by_time(dataset, tmp_path):
    """A plan may read them in many partitions."""
    path = tmp_path / "it.rows"
    path.touch()
    index = dataset._access.current().index
    with index.snapshot() as snapshot:
        replaced_rows.copy(snapshot, snapshot.segment_named("2026/11-20.jsonl"), path)
    with index.snapshot() as snapshot:
        replaced_rows.read(snapshot, path)
        for condition in ("datum.seq > 3 AND datum.seq <= 5", "datum.reftime >= 3 AND datum.reftime < 5"):
            (step,) = snapshot.fetch(f"EXPLAIN QUERY PLAN SELECT datum.offset FROM datum WHERE {condition}")
            assert "USING INDEX" in step[3]
