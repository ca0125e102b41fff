"""Selecting by metadata that no field declares, which are only in segments."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk import Datum
from ondisk.errors import ConfigError, FrameCorrupt, MatchError, SegmentMissing
from ondisk.index.where import StoredMetadata, without_functions

T = datetime(2026, 11, 20, tzinfo=UTC)
SEG = {"format": "seg", "step": "daily", "fields": {"station": "integer"}}
VALUES = [7, "7", 7.0, True, None, b"\x07", "a,b", "2026-11-20T06:00:00Z", {"x": 7}, [7]]


@pytest.fixture(params=["seg", "blob"])
def dataset(request, tmp_path):
    with ondisk.create(tmp_path / "dataset", SEG | {"format": request.param}) as made:
        made.append(
            Datum(T + timedelta(hours=each), {"station": each, "sensor": value, "Sensor": each}, b"%d" % each)
            for each, value in enumerate(VALUES)
        )
        yield made


def stations(dataset, match):
    found = [datum.metadata["station"] for datum in dataset.query(match)]
    assert dataset.summary(match, fields=[]).count == len(found) == len([*dataset.query(match, with_data=False)])
    return found


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("metadata.sensor: 7", [0, 1, 2]),
        ('metadata.sensor: "7"', [1]),
        ("metadata.sensor: 07", [0, 2, 5]),
        ("metadata.sensor: >6,<=7.5", [0, 2]),
        ("metadata.sensor: TRUE or a", [3, 6]),
        ("metadata.sensor: a,b; station: >5", [6]),
        ("metadata.sensor: >=2026-11-20 06,<2027", [7]),
        ("Metadata.Sensor: 4", [4]),
        ("metadata.SENSOR: 7", []),
        ("metadata.station: 4 or 5", [4, 5]),
    ],
)
def test_the_type_of_each_value_decides_how_it_is_compared(dataset, match, expected):
    assert stations(dataset, match) == expected


def test_conditions_in_python_compare_values_of_their_own_type(dataset):
    sensor = dataset.fields["metadata.sensor"]
    assert stations(dataset, sensor == 7) == [0, 2]
    assert stations(dataset, sensor != 7) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert stations(dataset, sensor == True) == [3]  # noqa: E712
    assert stations(dataset, sensor.is_null()) == [4]
    assert stations(dataset, sensor.isin([7.0, "7", b"\x07"])) == [0, 1, 2, 5]
    assert stations(dataset, sensor.isin([])) == []
    assert stations(dataset, sensor.startswith("a")) == [6]
    assert stations(dataset, (sensor < T + timedelta(days=1)) | (dataset.fields.station == 1)) == [1, 7]
    assert [datum.metadata["station"] for datum in dataset.query(**{"metadata.sensor": "7"})] == [1]
    for wrong in ([7], float("nan"), None, datetime(2026, 1, 1), "\ud800"):
        with pytest.raises(MatchError, match="sensor"):
            _ = sensor == wrong
    with pytest.raises(MatchError, match="each of its characters"):
        sensor.isin("7")


def test_a_field_can_be_declared_later(dataset):
    f = dataset.fields
    assert f["metadata.station"] is f.station
    assert f["metadata.reftime"] is not f.reftime
    with pytest.raises(MatchError, match=r"'metadata\.station' is declared"):
        [*dataset.query(ondisk.matcher.Fields({})["metadata.station"] == 1)]


def test_a_misspelt_field_is_an_error_that_names_the_prefix(dataset):
    for wrong in (lambda: dataset.query("sensor: 7"), lambda: dataset.fields["sensor"]):
        with pytest.raises(MatchError, match=r"Metadata that are not declared are written `metadata\.NAME`"):
            wrong()
    for wrong in ("metadata.: 7", "metadata.a b: 7", 'metadata."": 7', 'metadata."a: 7'):
        with pytest.raises(MatchError):
            dataset.query(wrong)


HOSTILE = ["a b", 'q"uo""te', "x'; DROP TABLE datum --", "nul\0", "[0]", "a:b;c\nd", "é", "n" * 90_000]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_any_name_is_safe(tmp_path, name):
    with ondisk.create(tmp_path / "dataset", SEG) as dataset:
        dataset.append([Datum(T, {name: 1}), Datum(T, {name + "x": 1})])
        quoted = name.replace('"', '""')
        assert dataset.summary(f'metadata."{quoted}": 1').count == 1
        assert dataset.delete(dataset.fields["metadata." + name] == 1) == 1
        (left,) = dataset.query()
        assert list(left.metadata) == [name + "x"]


def test_archives_and_sort_orders_and_limits(dataset):
    dataset.append([Datum(T + timedelta(days=3), {"station": 30, "sensor": 7}, b"30")])
    (segment, *_) = sorted(each.name for each in dataset.path.glob("2026/11-20.*"))
    dataset.archive(f"2026/{segment}")
    assert stations(dataset, "metadata.sensor: =7") == [0, 2, 30]
    sorted_ = [*dataset.query("metadata.sensor: =7", sort="-station", limit=2)]
    assert [datum.metadata["station"] for datum in sorted_] == [30, 2]
    assert dataset.delete("metadata.sensor: 7") == 4
    assert stations(dataset, "metadata.sensor: 7") == []
    assert dataset.summary(fields=[]).count == 7
    dataset.unarchive(f".archive/last/2026/{segment}")
    assert stations(dataset, "metadata.sensor: true") == [3]


def test_damage_ends_with_its_error_and_deletes_nothing(tmp_path):
    with ondisk.create(tmp_path / "dataset", SEG | {"compression": "none"}) as dataset:
        dataset.append([Datum(T, {"station": each, "sensor": each}, {"text": "x" * 100}) for each in range(5)])
        *_, last = dataset.query()
        file = dataset.path / last.location.segment
        stat, content = file.stat(), bytearray(file.read_bytes())
        content[last.location.offset + 60] ^= 1
        with file.open("r+b") as stream:
            stream.write(content)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with ondisk.open(tmp_path / "dataset") as dataset:
        for use in (lambda match: [*dataset.query(match)], dataset.summary, dataset.delete):
            with pytest.raises(FrameCorrupt, match="checksum"):
                use("metadata.sensor: 1")
        assert dataset.summary("metadata.sensor: 1; station: <4").count == 1
        assert dataset.delete("metadata.sensor: 1; station: <4") == 1
        file.unlink()
    with ondisk.open(tmp_path / "dataset") as dataset:
        for use in (lambda match: [*dataset.query(match)], dataset.summary, dataset.delete):
            with pytest.raises(SegmentMissing):
                use("metadata.sensor: 2")
        assert dataset.summary().count == 4


def test_only_data_that_match_everything_else_are_read(dataset, monkeypatch):
    read = []
    metadata = StoredMetadata._metadata
    monkeypatch.setattr(StoredMetadata, "_metadata", lambda self, row: read.append(row) or metadata(self, row))
    assert stations(dataset, "metadata.sensor: 7; station: 1") == [1]
    assert len(read) == 3  # of a query, a summary and a query of bytes
    assert stations(dataset, "reftime: <2026-11-20 02; metadata.sensor: 7") == [0, 1]
    assert len(read) == 3 + 3 * 2


def test_formats_without_such_metadata_refuse(tmp_path):
    with ondisk.create(tmp_path / "lines", SEG | {"format": "jsonl"}) as dataset:
        dataset.append([Datum(T, {"station": 1}, {"sensor": 7})])
        for use in (dataset.query, dataset.summary, dataset.delete):
            with pytest.raises(MatchError, match=r"'metadata\.sensor': jsonl stores no metadata that are not declared"):
                use("metadata.sensor: 7")
        assert dataset.summary("metadata.station: 1").count == 1


def test_filters_sort_orders_and_the_fields_of_a_summary_refuse(tmp_path, dataset):
    with pytest.raises(ConfigError, match=r"'metadata\.sensor' cannot be used in a filter"):
        ondisk.create(tmp_path / "filtered", SEG | {"filter": "metadata.sensor: 7"})
    with pytest.raises(MatchError, match="only declared fields can be sorted by"):
        dataset.query(sort="metadata.sensor")
    with pytest.raises(MatchError, match="a summary counts declared fields only"):
        dataset.summary(fields=["metadata.sensor"])


def test_spark_refuses(dataset):
    tree = dataset.fields["metadata.sensor"] == 7
    refused = pytest.raises(MatchError, match=r"the index cannot select by 'metadata\.sensor'")
    with dataset._access.current().index.snapshot() as snapshot, refused:
        without_functions(~tree, snapshot.columns, snapshot.connection)


@pytest.mark.check
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_memory_does_not_grow_with_the_data(tmp_path, compression):
    with ondisk.create(tmp_path / "dataset", SEG | {"compression": compression}) as dataset:
        dataset.append([Datum(T, {"sensor": each}, {"text": f"{each}" * 20}) for each in range(3_000)])
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert dataset.summary("metadata.sensor: 1").count == 1
        tracemalloc.start()
        assert dataset.summary("metadata.sensor: >=0").count == 3_000
        assert dataset.delete("metadata.sensor: >=10") == 2_990
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
    shutil.rmtree(tmp_path / "dataset")
