"""JSON lines that have their time in another key, in another form, or without an offset."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

import ondisk
from ondisk.errors import InvalidInput, LimitExceeded

FIELDS = {"station": "integer", "seen": "timestamp", "raw": "bytes"}


@pytest.fixture
def dataset(create) -> ondisk.Dataset:
    return create(format="seg", fields=FIELDS, max_depth=5)


def append(dataset: ondisk.Dataset, *lines: Any, **options: Any) -> ondisk.AppendResult:
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    return dataset.append_file(io.BytesIO(text.encode()), "jsonl", **options)


def test_a_key_becomes_the_reftime_and_the_line_is_stored_as_jsonl(dataset):
    line = {
        "when": "2026-07-20 06:00",
        "station": 5,
        "seen": "2026-07-20T08:00",
        "raw": {"$bytes": "/w=="},
        "x": [1.50],
    }
    assert append(dataset, line, time="when", tz="Europe/Rome").imported == 1
    (found,) = dataset.query()
    assert found.reftime == datetime(2026, 7, 20, 4, tzinfo=UTC)
    assert found.metadata == {"station": 5, "seen": datetime(2026, 7, 20, 6, tzinfo=UTC), "raw": b"\xff"}
    assert found.data == {"x": [1.5]}
    (segment,) = (dataset.path / "2026").iterdir()
    times = {"reftime": "2026-07-20T04:00:00Z", "seen": "2026-07-20T06:00:00Z"}
    assert json.loads(segment.read_bytes()) == times | {"station": 5, "raw": {"$bytes": "/w=="}, "x": [1.5]}


@pytest.mark.parametrize("when", [1795161600, 1795161600.5, "1795161600"])
def test_a_number_is_a_time_with_a_format(dataset, when):
    assert append(dataset, {"t": when}, time="t", time_format="unix").imported == 1
    (found,) = dataset.query()
    assert found.reftime.replace(microsecond=0) == datetime(2026, 11, 20, 8, tzinfo=UTC)


def test_a_small_fraction_is_a_time_with_a_format_too(dataset):
    assert append(dataset, {"t": 0.00005}, time="t", time_format="unix").imported == 1
    assert [found.reftime for found in dataset.query()] == [datetime(1970, 1, 1, 0, 0, 0, 50, tzinfo=UTC)]


def test_a_zone_is_for_reftime_too(dataset):
    assert append(dataset, {"reftime": "2026-11-20T06:00:00"}, tz="UTC").imported == 1


def test_a_bad_line_is_refused_with_line_key_and_value_and_the_rest_is_stored(dataset):
    good = {"t": "2026-11-20", "station": 5}
    bad: list[Any] = [
        {"station": 5},
        {"t": None},
        {"t": True},
        {"t": ["2026"]},
        {"t": "soon"},
        {"t": "2026-03-29T02:30"},
        {"t": "2026-11-20", "station": "x"},
        {"t": "2026-11-20", "seen": "never"},
        {"t": "2026-11-20", "reftime": "2026-11-20T00:00:00Z"},
        {"t": "2026-11-20", "x": [[[[[[1]]]]]]},
        '{"t": "2026-11-20", "t": "2026-11-21"}',
        '{"t": "2026-11-20", "x": NaN}',
        "[]",
        "x",
    ]
    result = append(dataset, good, "", *bad, good, time="t", tz="Europe/Rome")
    assert (result.imported, result.refused) == (2, len(bad))
    assert [position for position, _ in result.refusals] == [*range(1, len(bad) + 1)]
    reasons = [reason for _, reason in result.refusals]
    assert [reason.split(":")[0] for reason in reasons] == [f"line {line}" for line in range(3, len(bad) + 3)]
    wanted = ["it has no 't'", "it has no 't'", "'t' must be a time, not True", "not ['2026']", "'t': 'soon'"]
    wanted += ["does not exist in Europe/Rome", "station: 'x' is a text", "'seen': 'never'", "reftime", "max_depth"]
    wanted += ["occurs twice", "NaN", "not a JSON object", "not valid JSON"]
    for reason, part in zip(reasons, wanted, strict=True):
        assert part in reason


@pytest.mark.parametrize("options", [{"null": ["NA"]}, {"delimiter": ";"}, {"decimal": ","}])
def test_options_of_csv_are_refused(dataset, options):
    with pytest.raises(InvalidInput, match="is for CSV"):
        append(dataset, {"t": "2026-11-20"}, time="t", **options)


def test_batches_have_the_size_that_was_asked_for(dataset, monkeypatch):
    sizes: list[int] = []
    store = ondisk.Dataset._store

    def counted(self, batch, *rest, **options):
        sizes.append(len(batch))
        return store(self, batch, *rest, **options)

    monkeypatch.setattr(ondisk.Dataset, "_store", counted)
    lines = ["x" if n % 3 == 0 else {"t": f"2026-11-20T06:{n:02}Z"} for n in range(60)]
    assert append(dataset, *lines, time="t", batch_size=7).imported == 40
    assert (sum(sizes), max(sizes)) == (60, 7)


def test_a_line_that_is_too_long_is_an_error(create):
    dataset = create(max_datum_size=100)
    with pytest.raises(LimitExceeded, match="line 1 is longer than 100 bytes"):
        append(dataset, {"t": "x" * 5_000_000}, time="t")
