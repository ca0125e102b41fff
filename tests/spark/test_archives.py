"""Archives that are offline or missing: Spark returns all that matches, or raises, unless `archives=available`."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import ondisk
from ondisk import Datum
from ondisk.errors import ArchiveOffline, InvalidInput, StateError
from ondisk.index.connection import connect_to_read
from ondisk.spark import frame, stream
from spark.test_stream import Query

T = datetime(2026, 11, 1, 12, tzinfo=UTC)
FIELDS = {"station": "integer"}
CONFIG = {"format": "jsonl", "step": "daily", "fields": FIELDS}
DAYS = 8
AWAY = {"offline": "is offline: only its summary is there", "missing": "is missing: it is not in"}
STATES = ("online", *AWAY)


@pytest.fixture(autouse=True)
def one_library(monkeypatch):
    monkeypatch.setattr(stream, "connect", connect_to_read)


@pytest.fixture
def dataset(create):
    return filled(create(**CONFIG), old=(1, 2), last=(3, 4))


def filled(dataset, *, old=(), last=()):
    """Store two data of each of eight days, and archive some days: as `old`, then as `last`."""
    dataset.append(
        [Datum(T + timedelta(days=day), {"station": n}, {"n": 2 * day + n}) for day in range(DAYS) for n in range(2)]
    )
    for name, days in ("old", old), ("last", last):
        if days:
            dataset.archive(*(f"2026/11-{day + 1:02}.jsonl" for day in days))
            if name == "old":
                (dataset.path / ".archive/last").rename(dataset.path / ".archive/old")
    with ondisk.open(dataset.path):
        pass  # records the names
    return dataset


def take(dataset, name, state):
    """Take an archive away, if it exists; with a summary in its place if it is `offline`."""
    archive = dataset.path / ".archive" / name
    if state == "online" or not archive.exists():
        return
    if state == "offline":
        archive.with_name(f"{name}.summary").write_text(summary_of(archive))
    archive.rename(dataset.path.parent / f"away-{name}")


def bring(dataset, name):
    (dataset.path.parent / f"away-{name}").rename(dataset.path / ".archive" / name)


def summary_of(archive):
    """Return the summary of an archive, without its fields."""
    with ondisk.open(archive, read_only=True) as opened:
        found = opened.summary()
    times = {"begin": f"{found.begin:%Y-%m-%dT%H:%M:%SZ}", "end": f"{found.end:%Y-%m-%dT%H:%M:%SZ}"}
    return json.dumps(
        {"count": found.count, "size": found.size, **times, "last_change": found.last_change, "fields": {}}
    )


def load(spark, dataset, **options):
    return spark.read.format("ondisk").options(columns="reftime,station", **options).load(str(dataset.path))


def rows(found):
    return Counter((row["reftime"].astimezone(UTC), row["station"]) for row in found.toArrow().to_pylist())


def asked(dataset, match=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArchiveOffline)
        return Counter((each.reftime, each.metadata["station"]) for each in dataset.query(match))


HELD = {"old": (1, 2), "last": (3, 4)}
"""The days in each archive of `dataset`."""


def without(found, *names, held=HELD):
    """Return rows without those of some archives."""
    gone = {T + timedelta(days=day) for name in names for day in held[name]}
    return Counter({row: count for row, count in found.items() if row[0] not in gone})


@pytest.mark.check
@pytest.mark.parametrize(("name", "state"), [("old", "offline"), ("last", "missing")])
def test_a_read_that_may_touch_an_archive_that_is_away_raises(spark, dataset, name, state):
    begin = f"2026-11-0{HELD[name][0] + 1}"
    touching = ["", f"reftime: ={begin}; station: 1"]
    full = {match: asked(dataset, match) for match in touching}
    take(dataset, name, state)
    message = f"the archive .*/{name} with data from {begin} to .*{AWAY[state]}"
    for match in touching:
        for read in (load(spark, dataset, match=match).count, lambda match=match: dataset.index_frame(spark, match)):
            with pytest.raises(Exception, match=message) as raised:
                read()
            assert "Mount its disk" in str(raised.value)
            assert 'use .option("archives", "available")' in str(raised.value)
        assert rows(load(spark, dataset, match=match, archives="available")) == without(full[match], name)
        with pytest.warns(ArchiveOffline, match=f"{AWAY[state]}.*it was not read"):
            found = dataset.index_frame(spark, match, ["reftime", "station"], archives="available")
        assert rows(found) == without(full[match], name)
    for match in ("reftime: =2026-11-01", "reftime: >=2026-11-06; station: 1"):
        assert rows(load(spark, dataset, match=match)) == asked(dataset, match)
        assert rows(dataset.index_frame(spark, match, ["reftime", "station"])) == asked(dataset, match)


@pytest.mark.check
def test_a_large_frame_takes_the_archives_that_the_call_has_allowed(spark, dataset, monkeypatch):
    full = asked(dataset)
    take(dataset, "old", "missing")
    monkeypatch.setattr(frame, "SMALL", 3)
    with pytest.warns(ArchiveOffline, match="old .*is missing"):
        found = dataset.index_frame(spark, columns=["reftime", "station"], archives="available")
    assert "BatchScan" in found._jdf.queryExecution().toString()
    assert rows(found) == without(full, "old")


def test_an_archive_that_was_renamed_before_it_went_offline_counts_with_all_its_time(dataset):
    """Its summary may be older than its last data: what the index knows of it counts, too."""
    archive = dataset.path / ".archive/last"
    archive.rename(archive.with_name("2026"))
    summary = json.loads(summary_of(archive.with_name("2026"))) | {"end": "2026-11-04T12:00:00Z"}
    archive.with_name("2026.summary").write_text(json.dumps(summary))
    archive.with_name("2026").rename(dataset.path.parent / "away")
    reader = Query(dataset, match="reftime: =2026-11-05").reader()
    with pytest.raises(StateError, match="is offline"):
        reader.initialOffset()


def test_a_summary_that_cannot_be_read_is_an_error(dataset):
    take(dataset, "old", "offline")
    (dataset.path / ".archive/old.summary").write_text("{}")
    with pytest.raises(InvalidInput, match="is not a summary"):
        Query(dataset).reader().initialOffset()


def test_another_value_of_the_option_is_an_error(spark, dataset):
    for read in (lambda: dataset.index_frame(spark, archives="some"), load(spark, dataset, archives="some").count):
        with pytest.raises(Exception, match="archives must be all or available, not 'some'"):
            read()
    with pytest.raises(InvalidInput, match="archives must be all or available, not 'some'"):
        Query(dataset, archives="some").reader()


@pytest.mark.parametrize("state", AWAY)
def test_a_stream_does_not_pass_data_of_an_archive_that_is_away(dataset, state):
    query = Query(dataset, maxDataPerTrigger="3")
    assert query.batch()
    take(dataset, "old", state)
    with pytest.raises(StateError, match=f"the archive .*/old .*{AWAY[state]}"):
        query.batch()
    dataset.append([Datum(T, {"station": 7}, {})])
    with pytest.raises(StateError, match=f"the archive .*/old .*{AWAY[state]}"):
        query.batch()
    bring(dataset, "old")
    query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS + 1


@pytest.mark.parametrize("state", AWAY)
def test_an_archive_that_goes_away_during_a_batch_stops_the_stream(dataset, state):
    query = Query(dataset)
    with pytest.raises(StateError, match=f"the archive .*/old .*{AWAY[state]}"):
        query.batch(between=lambda: take(dataset, "old", state))
    bring(dataset, "old")
    query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS


def test_a_stream_goes_on_without_an_archive_whose_data_it_has_passed(dataset):
    query = Query(dataset)
    query.drain()
    take(dataset, "old", "offline")
    dataset.append([Datum(T, {"station": 7}, {"n": "late"})])
    query.drain()
    assert len(query.given) == len({*query.given}) == 2 * DAYS + 1
    with pytest.raises(StateError, match="is offline"):
        Query(dataset).drain()  # a new one needs them
    summary = dataset.path / ".archive/old.summary"
    summary.write_text(summary.read_text().replace('"count": 4', '"count": 5'))  # of a later state
    with pytest.raises(StateError, match="is offline"):
        query.drain()
    bring(dataset, "old")
    query.drain()
    assert len(query.given) == 2 * DAYS + 1


def test_a_stream_does_not_pass_what_was_changed_in_an_archive_itself(dataset):
    """As many data as before, but not the same ones."""
    query = Query(dataset)
    query.drain()
    with ondisk.open(dataset.path / ".archive/old") as archive:
        archive.delete([next(archive.query()).location])
        archive.append([Datum(T, {"station": 7}, {})])
    take(dataset, "old", "offline")
    with pytest.raises(StateError, match="is offline"):
        query.batch()


def test_a_stream_of_the_archives_that_are_available_passes_the_others(dataset):
    take(dataset, "old", "offline")
    query = Query(dataset, archives="available")
    query.drain()
    assert len(query.given) == 2 * DAYS - 4
    bring(dataset, "old")
    dataset.append([Datum(T, {"station": 7}, {})])
    query.drain()
    assert len(query.given) == 2 * DAYS - 4 + 1


@pytest.mark.check
def test_a_stream_of_spark_says_which_archive_it_needs(spark, dataset, tmp_path):
    take(dataset, "last", "offline")
    loaded = spark.readStream.format("ondisk").load(str(dataset.path))
    writer = loaded.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"the archive .*/last with data from 2026-11-04 to 2026-11-06 is offline"):
        query.awaitTermination()


@pytest.mark.parametrize("state", AWAY)
def test_an_overwrite_of_data_that_would_come_back_fails(dataset, state):
    take(dataset, "old", state)
    with pytest.raises(StateError, match=f"the archive .*/old .*{AWAY[state]}"):
        dataset.append_staged("job", [], overwrite="reftime: =2026-11-02")
    dataset.append_staged("job", [], overwrite="reftime: =2026-11-04")
    bring(dataset, "old")
    assert dataset.summary().count == 2 * DAYS - 2


DAY_SETS = st.sets(st.integers(0, DAYS - 1), max_size=3)


def check_agreement(spark, given_data):
    """Assert that Spark returns what the library does with all archives, or raises if one may have such data."""
    held = {"old": given_data.draw(DAY_SETS, "old")}
    held["last"] = given_data.draw(DAY_SETS, "last") - held["old"]
    states = {name: given_data.draw(st.sampled_from(STATES), name) for name in held if held[name]}
    narrow = st.integers(0, DAYS - 1).map(lambda day: f"reftime: =2026-11-{day + 1:02}")
    match = given_data.draw(narrow | st.just("station: 1") | narrow.map(lambda each: each.replace("=", ">=")), "match")
    with tempfile.TemporaryDirectory() as folder, ondisk.create(Path(folder, "it"), CONFIG) as dataset:
        filled(dataset, **held)
        full, everything = asked(dataset, match), asked(dataset)
        days = {row[0] for row in full}
        for name, state in states.items():
            take(dataset, name, state)
        away = [name for name, state in states.items() if state != "online"]
        rest = without(full, *away, held=held)
        spans = {name: (T + timedelta(days=min(held[name])), T + timedelta(days=max(held[name]))) for name in away}
        touched = any(begin <= day <= end for begin, end in spans.values() for day in days)
        for read in (
            lambda **options: load(spark, dataset, match=match, **options),
            lambda **options: dataset.index_frame(spark, match, ["reftime", "station"], **options),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ArchiveOffline)
                assert rows(read(archives="available")) == rest
            if touched:
                with pytest.raises(Exception, match=r"is offline|is missing"):
                    rows(read())
            else:
                assert rows(read()) == full
        for name in away:
            bring(dataset, name)
        assert rows(load(spark, dataset)) == everything


@pytest.mark.check
@given(st.data())
@settings(max_examples=4, phases=[Phase.generate])
def test_spark_agrees_with_the_library_whatever_is_away(spark, given_data):
    check_agreement(spark, given_data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, phases=[Phase.generate])
def test_spark_agrees_with_the_library_whatever_is_away_at_length(spark, given_data):
    check_agreement(spark, given_data)
