"""A table as a DataFrame of pandas, whose integers are those of the dataset."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ondisk import Datum
from ondisk.errors import InvalidInput

T = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
pandas = pytest.importorskip("pandas", reason="pandas is not installed")


def test_pandas_reads_a_dataset(create):
    stations = create(format="jsonl", step="monthly", fields={"station": "integer"})
    stations.append(
        [Datum(T, {"station": 1}, {"temperature": 5.7}), Datum(T, {}, {"temperature": 6}), Datum(T, {}, {})]
    )
    frame = stations.to_pandas(columns=["reftime", "station", "data.temperature"])
    assert [*frame.columns] == ["reftime", "station", "data.temperature"]
    assert frame["data.temperature"].mean() == pytest.approx(5.85)
    assert str(frame["reftime"].dtype) == "datetime64[us, UTC]"
    if hasattr(pandas.DataFrame, "from_arrow"):
        assert len(pandas.DataFrame.from_arrow(stations)) == 3


def test_pandas_gets_no_integers_that_it_would_round(create):
    dataset = create(fields={"id": "integer"})
    dataset.append([Datum(T, {"id": 2**53 + 1}), Datum(T + HOUR, {"id": -5})])
    assert [*dataset.to_pandas()["id"]] == [2**53 + 1, -5]
    dataset.append([Datum(T + 2 * HOUR)])
    with pytest.raises(InvalidInput, match="id has missing values and integers that pandas would round") as caught:
        dataset.to_pandas()
    assert caught.value.hint == "Write to_arrow(…).read_all().to_pandas(types_mapper=pandas.ArrowDtype)."
    assert dataset.to_arrow().read_all().to_pandas(types_mapper=pandas.ArrowDtype)["id"][0] == 2**53 + 1
    assert dataset.to_pandas("reftime: >2026-11-20 00:30")["id"].max() == -5
