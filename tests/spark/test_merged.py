"""Several datasets in one DataFrame: the rows of all, planned together, each with the path of its dataset."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StringType

import ondisk
from ondisk import Datum
from ondisk.errors import DatasetNotFound, InvalidInput, MatchError, NeedsCheck, SegmentMissing
from ondisk.index.connection import connect_to_read
from ondisk.spark import source
from ondisk.spark.plan import Joined

T = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def three(create, tmp_path):
    """Make datasets of three days; the last one declares another field. Return their paths."""
    for day in range(3):
        fields = {"station": "integer", "level": "real"} if day == 2 else {"station": "integer"}
        with create(f"archive/{day}", format="seg", fields=fields) as dataset:
            data = [Datum(T + timedelta(days=day, hours=hour), {"station": hour}, {"n": hour}) for hour in range(5)]
            dataset.append([*data, Datum(T + timedelta(days=day, hours=9), {"level": 1.5}, {})])
    return [str(tmp_path / f"archive/{day}") for day in range(3)]


def rows(paths, *names):
    """Return what the library finds, in the form of rows."""
    with ondisk.merged(paths) as merged:
        found = [{"dataset": each.dataset, "reftime": each.reftime, **each.metadata} for each in merged.query()]
    return sorted((tuple(each.get(name) for name in names) for each in found), key=str)


def collected(frame):
    return sorted((tuple(row.values()) for row in frame.toArrow().to_pylist()), key=str)


def test_a_list_and_a_pattern_are_one_dataframe_with_the_dataset_of_each_row(spark, three, tmp_path):
    names = ("reftime", "station", "dataset")
    for given in (three, f"{tmp_path}/archive/*", f"file:{tmp_path}/archive/[0-9]"):
        frame = spark.read.format("ondisk").option("data", "true").load(given)
        assert frame.columns == ["reftime", "station", "level", "dataset", "segment", "offset", "size", "data"]
        assert collected(frame.select(*names)) == rows(three, *names)
        assert frame.where("level = 1.5").select("dataset").collect() == [(three[2],)]
        assert frame.where("data is null").count() == 0
        place = frame.where("station = 4").orderBy("dataset").first()
    with ondisk.open(place.dataset, read_only=True) as dataset:
        found = dataset.read(ondisk.Location(place.segment, place.offset, place.size))
    assert json.loads(place.data) == found.data
    assert frame.select("dataset").distinct().count() == 3


@pytest.fixture
def here(monkeypatch):
    """Plan and read in this process, which has the datasets open with its own SQLite."""
    monkeypatch.setattr(source, "connect", connect_to_read)


def planned(paths, **options):
    options = {"paths": json.dumps(paths), **options}
    reader = source.reader(options, source.schema(options))
    return reader, reader.partitions()


@pytest.mark.usefixtures("here")
def test_small_parts_of_several_datasets_are_one_task_and_large_ones_are_not(three):
    _, [all_of_them] = planned(three)
    assert isinstance(all_of_them, Joined)
    assert [each.count for each in all_of_them.partitions] == [6, 6, 6]
    _, two = planned(three, maxRowsPerPartition="12")
    assert [sum(each.count for each in task.partitions) for task in two] == [12, 6]
    _, many = planned(three, maxRowsPerPartition="4")
    assert [sum(each.count for each in task.partitions) for task in many] == [4, 2, 4, 2, 4, 2]
    _, by_bytes = planned(three, data="true", maxBytesPerPartition="1")
    assert len(by_bytes) == 18


@pytest.mark.usefixtures("here")
def test_no_task_opens_a_dataset_that_the_match_excludes(three):
    reader, [task] = planned(three, match="reftime: >=2026-11-21 12:00")
    assert [each.state.dataset for each in task.partitions] == [three[2]]
    shutil.rmtree(three[0])
    assert sum(batch.num_rows for batch in reader.read(task)) == 6


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("columns", ["dataset", "level", "level,dataset,station"])
def test_columns_that_a_dataset_lacks_are_null(three, columns):
    reader, [task] = planned(three, columns=columns)
    found = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert len(found) == 18
    assert all([*row] == columns.split(",") for row in found)
    if "level" in columns:
        assert sum(row["level"] is not None for row in found) == 1


@pytest.mark.usefixtures("here")
def test_errors_name_the_dataset(three, create):
    with pytest.raises(MatchError, match="archive/0: there is no field 'level'"):
        planned(three, match="level: 1")
    with pytest.raises(DatasetNotFound, match="nowhere"):
        planned([*three, "/nowhere"])
    with pytest.raises(DatasetNotFound, match="none"):
        source.schema({"path": f"{three[0]}/none*"})
    with create("other", fields={"station": "text"}) as other:
        pass
    with pytest.raises(InvalidInput, match=r"station is integer in .*archive/0 and text in .*other"):
        planned([*three, str(other.path)])
    next(Path(three[1]).glob("2026/*.seg")).unlink()
    reader, [task] = planned(three, data="true")
    with pytest.raises(SegmentMissing, match="archive/1"):
        list(reader.read(task))
    Path(three[1], "needs-check-do-not-pack").touch()
    with pytest.raises(NeedsCheck, match="archive/1"):
        planned(three)


@pytest.mark.usefixtures("here")
def test_a_field_named_dataset_becomes_another_column_and_formats_may_differ(three, create):
    with create("other", format="vm2", fields={"dataset": "text"}) as other:
        pass
    schema = source.schema({"paths": json.dumps([three[0], str(other.path)]), "data": "true"})
    assert schema.fieldNames() == ["reftime", "station", "f_dataset", "dataset", "segment", "offset", "size", "data"]
    assert schema["data"].dataType == BinaryType()
    assert source.schema({"path": three[0], "data": "true"})["data"].dataType == StringType()
    assert source.schema({"path": str(other.path)}).fieldNames()[1] == "dataset"


@pytest.mark.usefixtures("here")
def test_a_dataset_that_is_named_twice_is_read_once(three):
    reader, [task] = planned([*three, three[1]])
    assert sum(batch.num_rows for batch in reader.read(task)) == 18
