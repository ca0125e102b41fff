"""The sums of segments and days are those of the rows, whatever a transaction does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from sums import wrong_sums
from worlds import sql

import ondisk
from ondisk.dataset.query import Query
from ondisk.datum import Datum
from ondisk.index.field_values import FieldSummary, most_frequent_of_sums
from ondisk.index.sums import MOST

START = datetime(2026, 11, 20, tzinfo=UTC)
FIELDS = {"station": "integer", "name": "text", "height": "real", "seen": "timestamp"}
CONFIG: dict[str, Any] = {
    "step": "weekly", "unique": ["reftime", "station"], "replace": "yes", "index": [*FIELDS], "fields": FIELDS,
}  # fmt: skip


def datum(hour: float, station: int | None = None, **values: Any) -> Datum:
    metadata = {"station": station, **values}
    known = {name: value for name, value in metadata.items() if value is not None}
    return Datum(START + timedelta(hours=hour), known, {"value": hour})


def without_sums(path: Path, target: Path) -> ondisk.Dataset:
    """Open a copy of a dataset whose sums nobody uses, since the index says that they are absent."""
    shutil.copytree(path, target)
    sql(target, "UPDATE segment SET summed = NULL")
    return ondisk.open(target, read_only=True)


def answers(dataset: ondisk.Dataset) -> Iterator[Any]:
    for match in (None, "reftime:>=2026-11-21", "reftime:=2026-11-21", "reftime:>=2026-11-21 06:00", "station:1"):
        yield dataset.summary(match, values=None)
        for by in ("day", "month", "year", "hour", "name"):
            with dataset.summary_by(by, match) as groups:
                yield [*groups]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "delete", "repack", "fix", "archive"]),
        st.lists(st.tuples(st.integers(-200, 200), st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=8),
    ),
    max_size=8,
)


@settings(max_examples=up_to(10))
@given(acts=ACTS, format=st.sampled_from(["jsonl", "seg"]))
def test_summaries_from_sums_are_those_from_rows(acts, format, tmp_path_factory):
    path = tmp_path_factory.mktemp("sums") / "dataset"
    with ondisk.create(path, {**CONFIG, "format": format}) as dataset:
        for act, some in acts:
            if act == "append":
                dataset.append(datum(hour, station or None, name=name, height=hour / 4) for hour, station, name in some)
            elif act == "delete":
                for hour, *_ in some[:2]:
                    dataset.delete(f"reftime:>={(START + timedelta(hours=hour)):%Y-%m-%d %H:%M}; station:1 or 2")
            elif act == "archive":
                names = {each.location.segment for each in dataset.query()}
                dataset.archive(*[name for name in names if not name.startswith(".archive")][:1])
            else:
                getattr(dataset, act)()
            assert wrong_sums(path) == [], act
        found = [*answers(dataset)]
    with without_sums(path, path.with_name("copy")) as counting:
        assert found == [*answers(counting)]


def test_what_is_deleted_and_repacked_is_subtracted(create):
    dataset = create(**CONFIG)
    dataset.append(datum(hour, 1, name="a" if hour % 2 else None) for hour in range(100))
    for match in ("reftime:=2026-11-20 00:00", "reftime:=2026-11-20 23:00", "reftime:=2026-11-22"):
        assert dataset.delete(match)
        assert wrong_sums(dataset.path) == [], match
    dataset.repack()
    assert wrong_sums(dataset.path) == []
    assert (dataset.summary().begin, dataset.summary().count) == (START + timedelta(hours=1), 74)


@pytest.mark.parametrize("replace", ["yes", "no"])
def test_rows_in_any_order_over_days_and_segments_are_summed_up(create, replace):
    dataset = create(**CONFIG | {"replace": replace})
    hours = [*range(0, 24 * 30, 5)] * 2
    random.Random(1).shuffle(hours)
    result = dataset.append(datum(hour, hour % 7, name="x" * (hour % 3)) for hour in hours)
    assert result.replaced + result.duplicates == len(hours) // 2
    assert wrong_sums(dataset.path) == []


def test_a_field_with_too_many_values_in_a_day_is_counted_from_its_rows(create):
    dataset = create(**CONFIG | {"unique": []})
    dataset.append(datum(0, at, name=str(at % 5)) for at in range(MOST))
    dataset.append([datum(0, MOST, name="0"), datum(24, 1)])
    dataset.append([datum(0, 1, name="0")])
    fields = dict(sql(dataset.path, "SELECT field, count(*) FROM value_count WHERE day = 20777 GROUP BY field"))
    assert (fields["name"], fields["station"]) == (5, 1), "one row says that there were too many"
    assert wrong_sums(dataset.path) == []
    summary = dataset.summary(fields=["station", "name"])
    assert (summary.fields["station"].distinct, summary.fields["name"].distinct) == (MOST + 1, 5)


def test_sums_alone_answer_only_what_they_have(create):
    dataset = create(**CONFIG | {"unique": []})
    dataset.append(datum(hour, hour % 3 + 1, name="x") for hour in range(48))

    def answer(match: str, name: str) -> FieldSummary | None:
        index = dataset._access.current().index
        with index.snapshot() as snapshot:
            return most_frequent_of_sums(snapshot, Query(match).tree(index), name, 2)

    for match in ("", "reftime: =2026-11-21"):
        assert answer(match, "station") == dataset.summary(match, fields=["station"], values=2).fields["station"]
    assert answer("reftime: >=2026-11-21 06:00", "station") is None
    assert answer("station: 1", "name") is None
    dataset.append(datum(0, at) for at in range(MOST + 1))
    assert answer("", "station") is None


def test_values_are_equal_to_those_of_the_rows_to_the_last_digit(create):
    dataset = create(**CONFIG)
    heights = [0.1 + 0.2, 1e300, -5e-324, 1.0, 123456789.12345679]
    dataset.append(datum(at, 1, height=height, seen=START) for at, height in enumerate(heights))
    found = dataset.summary().fields["height"]
    assert sorted(value for value, _ in found.values) == sorted(heights)
    assert dataset.summary().fields["seen"].values == [(START, len(heights))]


def test_what_an_edit_of_the_index_makes_wrong_the_next_fix_makes_right(create):
    dataset = create(**CONFIG)
    dataset.append(datum(hour, 1) for hour in range(200))
    for edit in (
        "UPDATE segment SET summed = NULL",
        "DELETE FROM day_sum WHERE day = 20778",
        "UPDATE day_sum SET count = count + 1 WHERE day = 20779",
        "DELETE FROM datum WHERE seq % 3 = 0",
        "DELETE FROM datum; DELETE FROM segment",
    ):
        for statement in edit.split("; "):
            sql(dataset.path, statement)
        dataset.fix()
        assert wrong_sums(dataset.path) == [], edit
        assert dataset.summary().count == sum(1 for _ in dataset.query())


@pytest.mark.check
def test_sums_take_little_of_the_index(create):
    dataset = create(**CONFIG | {"index": ["station", "name"]})
    dataset.append(
        datum(at / 200, at % 20, name=str(at % 10), seen=START + timedelta(seconds=at)) for at in range(20_000)
    )
    pages = "SELECT sum(pgsize) FROM dbstat WHERE name {} ('day_sum', 'value_count')"
    ((sums,),), ((rest,),) = sql(dataset.path, pages.format("IN")), sql(dataset.path, pages.format("NOT IN"))
    assert sums <= 0.05 * rest


def test_data_of_one_day_in_several_segments_are_summed_up_apart(create):
    dataset = create(**CONFIG | {"format": "seg", "step": "sequence", "segment_size": 4096})
    for _ in range(2):
        dataset.append(datum(hour % 24, hour, name=f"{hour % 3}") for hour in random.Random(2).sample(range(500), 400))
        assert wrong_sums(dataset.path) == []
    assert dataset.info()["segments"] > 3
