"""Data as they stand in segments: bytes in columns are those of a query, whatever lies between them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from ondisk import Datum
from ondisk.errors import IndexCorrupt, SegmentCorrupt
from ondisk.index.connection import connect_to_read
from ondisk.matcher import Everything
from ondisk.spark.columns import columns_of
from ondisk.spark.read import opened
from ondisk.spark.source import plan
from ondisk.tables import index_to_arrow

from .test_plan import read_later

T = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"format": "vm2", "step": "daily", "fields": {"area": "text"}}


@pytest.fixture
def dataset(create):
    """Three days of data that were appended in random order; some are deleted."""
    made = create(**CONFIG)
    times = [T + timedelta(hours=number * 7 % 72) for number in range(60)]
    made.append([line(time, station) for time in times for station in (1, 22, 333)])
    made.delete("area: VM2,22; reftime: >=2026-11-21")
    return made


def line(time, station):
    return Datum(time, {}, f"{time:%Y%m%d%H%M},{station},2,{'3' * (station % 50)},,,000000000".encode())


def read(dataset):
    """Read all data as bytes: (segment, data)."""
    schema = StructType([StructField("data", BinaryType())])
    with opened(str(dataset.path), connect_to_read) as access:
        pieces = plan(access, Everything(), data=True)
    columns = columns_of(dataset.config, schema)
    return [
        data
        for piece in pieces
        for batch in read_later(piece, columns, connect_to_read)
        for data in batch.column("data").to_pylist()
    ]


@pytest.mark.parametrize("limit", ["none", "_GAPS", "_BYTES"])
def test_bytes_are_those_of_a_query(dataset, monkeypatch, limit):
    if limit != "none":
        monkeypatch.setattr(index_to_arrow, limit, 100)
    if limit == "_GAPS":
        dataset.delete("area: VM2,333; reftime: %6h")
    assert Counter(read(dataset)) == Counter(each.data for each in dataset.query())


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("size = size + 1000 WHERE seq = 5", IndexCorrupt),
        ("size = -1 WHERE seq = 5", IndexCorrupt),
        ("size = 1 << 62 WHERE seq = 5", SegmentCorrupt),
        ("size = 1 << 62, offset = 1 << 62", IndexCorrupt),
        ("offset = -1 WHERE seq = 5", IndexCorrupt),
        ("offset = offset + 2 WHERE seq = 5", IndexCorrupt),
        ("offset = offset + 100000 WHERE seq = 5", SegmentCorrupt),
    ],
)
def test_an_index_that_is_damaged_returns_no_other_bytes(dataset, damage, error):
    path = dataset.path
    dataset.close()
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as connection, connection:
        connection.execute(f"UPDATE datum SET {damage}")
    with pytest.raises(error):
        read(dataset)


def test_a_segment_that_is_cut_short_returns_no_other_bytes(dataset):
    path = next(dataset.path.glob("2026/*.vm2"))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(SegmentCorrupt, match="ends at byte"):
        read(dataset)
