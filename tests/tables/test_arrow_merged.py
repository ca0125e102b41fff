"""Several datasets as one table of Arrow: the rows of a query of them, in its order, with the dataset of each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import ondisk
from ondisk import Datum
from ondisk.errors import InvalidInput, MatchError
from ondisk.tables import arrow_output, columns
from ondisk.tables.csv_output import csv_of

T = datetime(2026, 11, 20, tzinfo=UTC)
FIELDS = {"station": "integer", "made": "timestamp"}


@pytest.fixture
def paths(create):
    """Make a dataset of three stations, and one of the same hours that declares another field."""
    with (
        create("north", fields=FIELDS) as north,
        create("south", fields={"station": "integer", "dataset": "text"}) as south,
    ):
        for hour in range(6):
            time = T + timedelta(hours=hour)
            north.append([Datum(time, {"station": hour % 3, "made": time}, {"wind": hour / 2})])
            south.append([Datum(time, {"station": hour, "dataset": "x"}, {"note": "é"})])
    return [str(north.path), str(south.path)]


@pytest.mark.parametrize("options", [{}, {"match": "station: 1,2"}, {"sort": "-station"}, {"limit": 5}, {"station": 2}])
def test_a_table_has_the_rows_of_a_query_in_its_order(paths, options, monkeypatch):
    monkeypatch.setattr(arrow_output, "ROWS", 4)
    with ondisk.merged(paths) as merged:
        if options.get("match"):
            options = {"match": merged.fields.station.isin([1, 2])}
        found = merged.to_arrow(**options).read_all()
        expected = [
            {"reftime": each.reftime, "station": each.metadata["station"], "made": each.metadata.get("made")}
            | {"f_dataset": each.metadata.get("dataset"), "dataset": each.dataset}
            for each in merged.query(**options)
        ]
    names = [*expected[0]]
    assert found.column_names[:5] == names
    assert found.select(names).to_pylist() == expected
    assert {*found.column_names[5:]} <= {"data.wind", "data.note"}


def test_an_empty_table_has_the_columns_of_all_datasets(paths):
    with ondisk.merged(paths) as merged:
        assert merged.to_arrow("reftime: =2025").schema == merged.to_arrow().schema


def test_columns_are_chosen_by_name_and_type(paths):
    with ondisk.merged(paths) as merged:
        wanted = {"dataset": None, "segment": None, "offset": None, "data.wind": "real", "made": None}
        table = merged.to_arrow(columns=wanted).read_all()
        assert table.schema.types == [pa.string(), pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", "UTC")]
        for row, datum in zip(table.to_pylist(), merged.query(), strict=True):
            assert (row["dataset"], row["segment"]) == (datum.dataset, datum.location.segment)
            assert (row["offset"], row["data.wind"]) == (datum.location.offset, datum.data.get("wind"))
        assert merged.to_arrow(columns=["reftime"]).read_all().num_rows == 12
        with pytest.raises(InvalidInput, match=r"there is no column 'nothing'") as caught:
            merged.to_arrow(columns=["nothing"])
        assert "dataset, segment" in caught.value.hint
        with pytest.raises(InvalidInput, match=r"south: 2026/11-20\.jsonl, offset 0: data"):
            merged.to_arrow(columns={"data.note": "integer"}).read_all()
        with pytest.raises(MatchError, match=r"north.*dataset"):
            merged.to_arrow(dataset="x")
    with ondisk.merged(paths) as merged:
        assert pa.RecordBatchReader.from_stream(merged).read_all().num_rows == 12


def test_fields_of_different_types_and_contents_are_an_error_that_names_the_dataset(create, paths, monkeypatch):
    other = create("other", fields={"station": "text"})
    with ondisk.merged([*paths, other.path]) as merged, pytest.raises(InvalidInput, match=r"north and text in .*other"):
        merged.to_arrow()
    monkeypatch.setattr(arrow_output, "SAMPLE", 1)
    monkeypatch.setattr(columns, "_EACH_END", 0)
    with ondisk.merged(paths) as merged, pytest.raises(InvalidInput, match=r"south: .* has data.note"):
        merged.to_arrow().read_all()


def test_data_that_are_bytes_are_a_column(create, paths):
    with create("bytes", format="seg") as dataset:
        dataset.append([Datum(T, {}, b"image")])
    with ondisk.merged(dataset.path) as merged:
        assert merged.to_arrow().read_all().column("data").to_pylist() == [b"image"]
        with pytest.raises(InvalidInput, match=r"data\.wind"):
            merged.to_arrow(columns=["data.wind"])
    with ondisk.merged([dataset.path, *paths]) as merged:
        assert merged.to_arrow(limit=2).read_all().column("data").to_pylist() == [b"image", b'{"wind":0.0}']


def test_csv_has_the_dataset_of_each_line(paths):
    with ondisk.merged(paths) as merged:
        text = b"".join(csv_of(merged, merged.query(limit=2), None)).decode()
        assert text.splitlines()[0] == "reftime,station,made,f_dataset,dataset,data.wind,data.note"
        assert [line.split(",")[4] for line in text.splitlines()[1:]] == paths
        chosen = [b"".join(csv_of(merged, merged.query(limit=1), ["dataset"]))]
        assert chosen == [f"dataset\n{paths[0]}\n".encode()]
