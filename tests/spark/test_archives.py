"""Folders of the archive that are offline or missing: Spark counts their data, and reads them or raises.

With `archives=available`, data of folders that are offline are left out. A folder that is missing is always an error.
"""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.errors import DataOffline, InvalidInput, SegmentMissing
from ondisk.index.connection import connect_to_read
from ondisk.spark import stream
from ondisk.spark.columns import schema_of
from spark.test_stream import Query

T = datetime(2026, 11, 1, 12, tzinfo=UTC)
FIELDS = {"station": "integer"}
CONFIG = {"format": "jsonl", "step": "daily", "fields": FIELDS}
DAYS = 8
HELD = {"old": (1, 2), "last": (3, 4)}
"""The days in each folder of the archive."""
AWAY = {"offline": "is away: it is offline", "missing": "is away: "}


@pytest.fixture(autouse=True)
def one_library(monkeypatch):
    monkeypatch.setattr(stream, "connect", connect_to_read)


@pytest.fixture
def dataset(create):
    """Store two data of each of eight days, and archive some days."""
    dataset = create(**CONFIG)
    dataset.append(
        [Datum(T + timedelta(days=day), {"station": n}, {"n": 2 * day + n}) for day in range(DAYS) for n in range(2)]
    )
    for name, days in HELD.items():
        dataset.archive(*(f"2026/11-{day + 1:02}.jsonl" for day in days))
        if name == "old":
            dataset.rename_archive("last", "old")
    return dataset


def take(dataset, name, state):
    if state == "offline":
        dataset.set_offline(name)
    (dataset.path / ".archive" / name).rename(dataset.path.parent / f"away-{name}")


def bring(dataset, name, state):
    (dataset.path.parent / f"away-{name}").rename(dataset.path / ".archive" / name)
    if state == "offline":
        dataset.set_online(name)


def load(spark, dataset, **options):
    return spark.read.format("ondisk").options(**{"columns": "reftime,station", **options}).load(str(dataset.path))


def rows(found):
    return Counter((row["reftime"].astimezone(UTC), row["station"]) for row in found.toArrow().to_pylist())


def asked(dataset, match=None):
    return Counter((each.reftime, each.metadata["station"]) for each in dataset.query(match, with_data=False))


def without(found, name):
    gone = {T + timedelta(days=day) for day in HELD[name]}
    return Counter({row: count for row, count in found.items() if row[0] not in gone})


@pytest.mark.check
@pytest.mark.parametrize(("name", "state"), [("old", "offline"), ("last", "missing")])
def test_data_that_are_away_are_an_error_and_their_metadata_are_read(spark, dataset, name, state):
    inside = f"reftime: =2026-11-0{HELD[name][0] + 1}"
    full = {match: asked(dataset, match) for match in (inside, "")}
    take(dataset, name, state)
    for match, found in full.items():
        assert rows(load(spark, dataset, match=match)) == found
        assert rows(dataset.index_frame(spark, match, ["reftime", "station"])) == found
        with pytest.raises(Exception, match=f"{name}.* {AWAY[state]}") as caught:
            load(spark, dataset, match=match, data="true", columns="reftime,station,data").collect()
        assert "Mount its disk" in str(caught.value)
    for match in ("reftime: =2026-11-01", "reftime: >=2026-11-06; station: 1"):
        read = load(spark, dataset, match=match, data="true", columns="reftime,station,data")
        assert rows(read) == asked(dataset, match)


@pytest.mark.check
def test_data_that_are_offline_are_left_out_if_the_option_says_so(spark, dataset):
    full = asked(dataset)
    take(dataset, "old", "offline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataOffline)
        available = load(spark, dataset, data="true", columns="reftime,station,data", archives="available")
        assert rows(available) == without(full, "old")
    take(dataset, "last", "missing")
    with pytest.raises(Exception, match=AWAY["missing"]):
        load(spark, dataset, data="true", columns="reftime,station,data", archives="available").collect()


@pytest.mark.check
def test_another_value_of_the_option_is_an_error(spark, dataset):
    for read in (lambda: dataset.index_frame(spark, archives="some"), load(spark, dataset, archives="some").count):
        with pytest.raises(Exception, match="archives must be all or available, not 'some'"):
            read()
    with pytest.raises(InvalidInput, match="archives must be all or available, not 'some'"):
        Query(dataset, archives="some").reader()


@pytest.mark.parametrize("state", AWAY)
def test_a_stream_does_not_pass_data_of_a_folder_that_is_away(dataset, state):
    query = Query(dataset, maxDataPerTrigger="3")
    assert query.batch()  # one of its data is in the folder
    take(dataset, "old", state)
    for _ in range(2):  # also not when the batch is done again
        with pytest.raises(SegmentMissing, match=f"old {AWAY[state]}"):
            query.drain()
    bring(dataset, "old", state)
    query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS


@pytest.mark.parametrize("state", AWAY)
def test_a_folder_that_goes_away_amid_a_batch_ends_it(dataset, state, monkeypatch):
    monkeypatch.setattr(stream, "_ROWS", 3)
    query = Query(dataset)
    pieces = iter(["first", "second"])
    with pytest.raises(SegmentMissing, match=f"old {AWAY[state]}"):
        query.batch(lambda: take(dataset, "old", state) if next(pieces) == "second" else None)
    bring(dataset, "old", state)
    query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS


@pytest.mark.parametrize("state", AWAY)
def test_a_stream_goes_on_without_a_folder_whose_data_it_has_passed(dataset, state):
    """Also with late data of the times of that folder: they are in the dataset's own."""
    query = Query(dataset, maxDataPerTrigger="6")
    query.batch()
    take(dataset, "old", state)
    dataset.append([Datum(T + timedelta(days=day), {"station": 7}, {"n": f"late {day}"}) for day in (0, 1)])
    query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS + 2
    with pytest.raises(SegmentMissing, match=AWAY[state]):
        Query(dataset).drain()  # a new one needs them


@pytest.mark.parametrize("state", AWAY)
def test_a_stream_goes_on_if_its_match_leaves_the_data_of_a_folder_out(dataset, state):
    take(dataset, "old", state)
    assert len(Query(dataset, match="reftime: >=2026-11-04").drain()) == 2 * DAYS - 6
    reads_no_data = Query(dataset)
    reads_no_data._schema = schema_of(dataset.config, ["station"], data=False)
    start = reads_no_data.reader().initialOffset()
    [piece] = reads_no_data.reader().partitions(start, {**start, "seq": 2 * DAYS})
    assert sum(batch.num_rows for batch in reads_no_data.reader().read(piece)) == 2 * DAYS


def test_a_stream_of_the_archives_that_are_available_passes_the_others(dataset):
    take(dataset, "old", "offline")
    query = Query(dataset, archives="available")
    with pytest.warns(DataOffline, match=r"\.archive/old/ is offline; its data were left out"):
        query.drain()
    assert len(query.given) == 2 * DAYS - 4
    take(dataset, "last", "missing")
    with pytest.raises(SegmentMissing, match=f"last {AWAY['missing']}"):
        Query(dataset, archives="available").drain()


@pytest.mark.check
@pytest.mark.parametrize("state", AWAY)
def test_what_a_lost_index_does_not_know_is_an_error_also_without_data(spark, dataset, state):
    take(dataset, "old", state)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        dataset.fix()
        for match in ("", "reftime: =2026-11-02"):
            with pytest.raises(Exception, match=f"old {AWAY[state]}"):
                load(spark, dataset, match=match).collect()
            with pytest.raises(SegmentMissing, match=f"old {AWAY[state]}"):
                dataset.index_frame(spark, match)
        assert load(spark, dataset, match="reftime: >=2026-11-04").count() == 2 * DAYS - 6
        if state == "offline":
            with pytest.warns(DataOffline):
                assert dataset.index_frame(spark, archives="available").count() == 2 * DAYS - 4


def test_data_that_a_lost_index_does_not_know_come_when_they_are_found(dataset):
    take(dataset, "old", "missing")
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        dataset.fix()
        query = Query(dataset)
        query.drain()
        assert len(query.given) == 2 * DAYS - 4
        with pytest.raises(SegmentMissing, match=f"old {AWAY['missing']}"):  # they would come back beside the others
            dataset.append_staged("job", [], overwrite="reftime: =2026-11-02")
        bring(dataset, "old", "missing")
        dataset.fix()
        query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS


@pytest.mark.parametrize("state", AWAY)
def test_an_overwrite_reaches_data_that_are_away(dataset, state):
    take(dataset, "old", state)
    dataset.append_staged("job", [], overwrite="reftime: =2026-11-02")
    bring(dataset, "old", state)
    assert dataset.summary().count == asked(dataset).total() == 2 * DAYS - 2
