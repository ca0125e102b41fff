"""Plans: every datum that matches is in exactly one partition, whatever changes before that is read.

These tests read with `sqlite3`, in one process; those of `test_read` do so in Spark's workers, by ADBC.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import strategies
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.datum import microseconds
from ondisk.errors import OndiskError, StateError
from ondisk.index.connection import connect_to_read
from ondisk.matcher import Everything
from ondisk.replication import Replica
from ondisk.spark import plan as planning
from ondisk.spark import source
from ondisk.spark.columns import columns_of, schema_of
from ondisk.spark.plan import Limits, index_state
from ondisk.spark.read import later, opened, read
from ondisk.spark.source import plan

T = datetime(2026, 11, 20, tzinfo=UTC)
FORMATS = {
    "blob": {"format": "blob", "extension": "h5"},
    "seg": {"format": "seg"},
    "plain seg": {"format": "seg", "compression": "none"},
    "jsonl": {"format": "jsonl"},
}
BASE = {"step": "daily", "unique": ["reftime", "station"], "fields": {"station": "integer", "name": "text"}}


@pytest.fixture(params=[False, True], ids=["few rows", "many rows"])
def many(request, monkeypatch):
    """Let some rows count as many, so that plans have several partitions, or as many bytes."""
    monkeypatch.setattr(planning, "_BYTES", 400)
    monkeypatch.setattr(planning, "_ROWS", 7)
    if request.param:
        monkeypatch.setattr(planning, "SMALL", 5)
    return request.param


def datum(hour, station, value=0):
    name = {"name": f"é{station}"} if station else {}
    return Datum(T + timedelta(hours=hour), {"station": station, **name}, {"value": value})


def append(dataset, data):
    """Append; to blobs, which have no other content, bytes."""
    if dataset.config.format == "blob":
        data = [Datum(each.reftime, each.metadata, b"%060d" % each.data["value"]) for each in data]
    dataset.append(data)


def planned(dataset, tree=None, data=True):
    with opened(str(dataset.path), connect_to_read) as access:
        return plan(access, Everything() if tree is None else tree, data=data)


def read_later(partition, columns, connect):
    return later(partition, partial(read, columns=columns), connect)


def rows(partitions, config, data=True):
    columns = columns_of(config, schema_of(config, None, data=data))
    return [
        (row.pop("reftime").astimezone(UTC), *row.values())
        for partition in partitions
        for batch in read_later(partition, columns, connect_to_read)
        for row in batch.to_pylist()
    ]


def written(data):
    return data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def expected(dataset, match=None):
    """What reading must give: reftime, fields, segment, offset, size, data."""
    return [
        (each.reftime, *map(each.metadata.get, dataset.config.fields), each.location.segment, each.location.offset,
         each.location.size, written(each.data))
        for each in dataset.query(match)
    ]  # fmt: skip


def contents(some):
    """Return rows without the location, which maintenance changes: a partition returns the present one."""
    return [(*row[:-4], row[-1]) for row in some]


def same(one, other):
    return Counter(map(repr, one)) == Counter(map(repr, other))


@pytest.mark.parametrize("kind", FORMATS)
def test_each_datum_is_in_one_partition(create, kind, many):
    dataset = create(**BASE, **FORMATS[kind])
    append(dataset, [datum(hour, station, hour) for hour in range(60) for station in range(3)])
    partitions = planned(dataset)
    assert len(partitions) > 5
    assert same(rows(partitions, dataset.config), expected(dataset))


@pytest.mark.check
def test_each_datum_is_in_one_partition_although_segments_overlap_in_time(create, many):
    dataset = create(step="sequence", segment_size=700, format="seg", fields={"station": "integer"})
    for first in range(0, 400, 40):
        append(dataset, [datum((37 * hour) % 100, 1, hour) for hour in range(first, first + 40)])
    partitions = planned(dataset)
    assert len(partitions) > 5
    assert same(rows(partitions, dataset.config), expected(dataset))
    tree = dataset.fields.reftime >= T + timedelta(hours=50)
    assert same(rows(planned(dataset, tree), dataset.config), expected(dataset, tree))


def test_many_data_of_one_reftime_are_cut_too(create, many):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, station) for station in range(200)])
    partitions = planned(dataset)
    assert len(partitions) > 5
    assert same(rows(partitions, dataset.config), expected(dataset))


def test_data_that_a_replica_has_numbered_itself_are_in_one_partition_too(create, tmp_path, many):
    source = create(**BASE, format="jsonl")
    source.append([datum(hour, station) for hour in range(40) for station in range(3)])
    with Replica.create(tmp_path / "replica", source.path) as replica:
        replica.pull()
        found = tmp_path / "replica/2027/01-01.jsonl"
        found.parent.mkdir()
        found.write_text("".join(f'{{"reftime": "2027-01-01T00:00:00Z", "station": {each}}}\n' for each in range(50)))
        replica.dataset.fix()
        for tree in (None, replica.dataset.fields.reftime >= T + timedelta(hours=20)):
            assert same(rows(planned(replica.dataset, tree), source.config), expected(replica.dataset, tree))
        assert len(expected(replica.dataset)) == 170
        partitions, then = planned(replica.dataset), expected(replica.dataset)
        source.append([datum(hour, 7) for hour in range(40)])
        replica.pull()
        assert same(rows(partitions, source.config), then), "new numbers are below those of its own"


def test_partitions_are_about_equal(create, many, monkeypatch):
    monkeypatch.setattr(planning, "_ROWS", 100)
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour / 60, 0) for hour in range(1000)])
    partitions = planned(dataset, data=False)
    counts = [len(rows([partition], dataset.config, data=False)) for partition in partitions]
    assert sum(counts) == 1000
    assert not many or (8 <= len(counts) <= 12 and max(counts) < 200)


def test_one_large_segment_is_cut_by_time(create, many, monkeypatch):
    monkeypatch.setattr(planning, "_ROWS", 100)
    dataset = create(**(BASE | {"step": "yearly"}), format="jsonl")
    dataset.append([datum(minute / 60, 0) for minute in range(2000)])
    tree = dataset.fields.reftime >= T + timedelta(minutes=1000)
    partitions = planned(dataset, tree, data=False)
    counts = [len(rows([partition], dataset.config, data=False)) for partition in partitions]
    assert sum(counts) == 1000
    assert not many or (len(counts) >= 3 and max(counts) < 500)


def test_a_small_answer_is_one_partition_that_knows_its_count(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, station) for hour in range(60) for station in range(3)])
    [partition] = planned(dataset, dataset.fields.station == 1)
    assert partition.count == 60


def test_limits_divide_a_small_answer_exactly_and_a_large_one_about(create, monkeypatch):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour / 10, station) for hour in range(200) for station in range(3)])
    with opened(str(dataset.path), connect_to_read) as access:
        by_rows = plan(access, Everything(), data=False, limits=Limits(70, 1))
        assert [each.count for each in by_rows] == [70] * 8 + [40]
        assert planning.size_of(by_rows) == "9 partitions, 600 rows (counted)"
        by_bytes = plan(access, Everything(), data=True, limits=Limits(1000, 1000))
        assert len(by_bytes) == ceil(dataset.summary().size / 1000)
        monkeypatch.setattr(planning, "SMALL", 5)
        large = plan(access, Everything(), data=False, limits=Limits(70, 1))
        assert 7 <= len(large) <= 11
        found = re.fullmatch(r"(\d+) partitions, up to about (\d+) rows \(estimated\)", planning.size_of(large))
        assert 550 <= int(found[2]) <= 650
    for partitions in (by_rows, by_bytes, large):
        assert same(rows(partitions, dataset.config, data=True), expected(dataset))


def test_nothing_is_no_partition(create):
    dataset = create(**BASE, format="jsonl")
    assert planned(dataset) == []
    dataset.append([datum(0, 1)])
    assert planned(dataset, dataset.fields.station == 2) == []


def test_only_segments_of_the_asked_time_are_planned(create, many):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1) for hour in range(24 * 20)])
    f = dataset.fields
    tree = (f.reftime >= T + timedelta(days=3)) & (f.reftime < T + timedelta(days=4))
    partitions = planned(dataset, tree)
    assert len(partitions) <= 10  # those of all 20 days are more than 100
    assert sum(len(rows([partition], dataset.config)) for partition in partitions) == 24


def test_a_partition_of_a_time_that_is_open_on_one_side_looks_at_that_time_only(create):
    dataset = create(**(BASE | {"step": "yearly"}), format="jsonl")
    dataset.append([datum(hour, 1) for hour in range(3000)])
    for tree in (dataset.fields.reftime < T + timedelta(hours=10), dataset.fields.reftime >= T + timedelta(hours=2990)):
        steps = []
        with opened(str(dataset.path), connect_to_read) as access, access.current().index.snapshot() as snapshot:
            partition = planning.Partition.between(index_state(access.current(), snapshot, tree), None, None)
            sql, values = partition.condition()
            snapshot.connection.set_progress_handler(lambda steps=steps: steps.append(1), 10)
            found = snapshot.connection.execute(f"SELECT offset FROM datum WHERE {sql}", values).fetchall()
        assert len(found) == 10
        assert len(steps) < 100


def test_a_partition_looks_at_its_own_rows_only(create):
    """The condition has bounds of its own, wider ones; SQLite must take those of the partition for its index."""
    dataset = create(**(BASE | {"step": "yearly"}), format="jsonl")
    dataset.append([datum(hour, 1) for hour in range(3000)])
    reftime = dataset.fields.reftime
    tree = (reftime >= T - timedelta(days=1000)) & (reftime <= T + timedelta(days=1000))
    begin, end = (microseconds(T + timedelta(hours=hour)) for hour in (1500, 1510))
    steps = []
    with opened(str(dataset.path), connect_to_read) as access, access.current().index.snapshot() as snapshot:
        partition = planning.Partition.between(index_state(access.current(), snapshot, tree), (begin, 0), (end, 0))
        sql, values = partition.condition()
        snapshot.connection.set_progress_handler(lambda: steps.append(1), 10)
        found = snapshot.connection.execute(f"SELECT offset FROM datum WHERE {sql}", values).fetchall()
    assert len(found) == 10
    assert len(steps) < 100


@pytest.mark.check
@given(st.data())
@settings(max_examples=up_to(40))
def test_any_condition_returns_what_a_query_returns(given_data):
    config = given_data.draw(strategies.configs("jsonl"))
    data = given_data.draw(st.lists(strategies.data(config), max_size=15))
    tree = given_data.draw(strategies.expressions(config.fields))
    is_large = given_data.draw(st.booleans())
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        ondisk.create(Path(folder, "it"), config) as dataset,
    ):
        patch.setattr(planning, "SMALL", 2 if is_large else planning.SMALL)
        patch.setattr(planning, "_ROWS", 3)
        dataset.append(data)
        partitions = planned(dataset, tree)
        columns = schema_of(dataset.config, None, data=True)
        got = [
            (row["segment"], row["offset"], row["size"], row["reftime"].astimezone(UTC))
            for partition in partitions
            for batch in read_later(partition, columns_of(dataset.config, columns), connect_to_read)
            for row in batch.to_pylist()
        ]
        wanted = [
            (each.location.segment, each.location.offset, each.location.size, each.reftime)
            for each in dataset.query(tree)
        ]
        assert same(got, wanted)


def what_is_left(partitions, config):
    """Return the rows of the partitions that can still be read, and the errors of the others."""
    got, failed = [], []
    for partition in partitions:
        try:
            got += rows([partition], config)
        except StateError as error:
            failed.append(str(error))
    return got, failed


@contextlib.contextmanager
def in_many_partitions(kind, is_large, **config):
    """Create a dataset with data of three days, whose plans have many partitions for the block."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(planning, "SMALL", 3 if is_large else planning.SMALL)
        patch.setattr(planning, "_ROWS", 10)
        with ondisk.create(Path(folder, "it"), {**BASE, **FORMATS[kind], "replace": "yes", **config}) as dataset:
            append(dataset, [datum(hour, station) for hour in range(0, 72, 6) for station in range(2)])
            yield dataset


STATIONS = count(100)  # that no datum had
CHANGES = st.sampled_from(["append", "replace", "delete one", "delete day", "repack", "archive", "unarchive", "reset"])


@pytest.mark.check
@given(
    st.sampled_from(sorted(FORMATS)),
    st.booleans(),
    st.lists(CHANGES, max_size=4),
    st.lists(CHANGES, min_size=1, max_size=3),
)
@settings(max_examples=up_to(60))
def test_a_partition_returns_the_planned_rows_or_fails(kind, is_large, before, after):
    """Whatever happens between planning and reading."""
    with in_many_partitions(kind, is_large) as dataset:
        for change in before:
            apply(change, dataset)
        partitions, then = planned(dataset), expected(dataset)
        for change in after:
            apply(change, dataset)
        got, failed = what_is_left(partitions, dataset.config)
        assert all("has changed since this DataFrame was planned" in each for each in failed)
        assert all("Load the DataFrame again" in each for each in failed)
        assert not Counter(map(repr, contents(got))) - Counter(map(repr, contents(then))), "a row too many"
        assert failed or same(contents(got), contents(then))
        is_replaced = {"replace", "delete one", "delete day"} & {*after} or [*before, *after].count("reset") > 1
        assert not failed or is_replaced, "the others disturb nobody"
        assert same(rows(planned(dataset), dataset.config), expected(dataset)), "planned again it is right"


@pytest.mark.parametrize("change", ["replace", "delete one", "delete day"])
def test_each_deletion_is_seen(create, many, change):
    dataset = create(**BASE, format="jsonl", replace="yes")
    dataset.append([datum(hour, station) for hour in range(0, 72, 6) for station in range(2)])
    partitions = planned(dataset)
    assert len(partitions) > 3
    apply(change, dataset)
    for partition in partitions:
        with pytest.raises(StateError, match="data were deleted or replaced"):
            rows([partition], dataset.config)


@pytest.mark.parametrize("change", ["repack", "archive", "unarchive"])
@pytest.mark.parametrize("kind", ["seg", "blob"])
def test_maintenance_makes_no_difference(create, kind, many, change):
    dataset = create(**BASE, **FORMATS[kind])
    append(dataset, [datum(hour, station) for hour in range(0, 72, 6) for station in range(2)])
    apply({"repack": "delete one", "unarchive": "archive"}.get(change, "append"), dataset)
    partitions, then = planned(dataset), expected(dataset)
    assert len(partitions) > 3
    apply(change, dataset)
    assert expected(dataset) != then
    assert same(rows(partitions, dataset.config), expected(dataset))
    assert same(contents(expected(dataset)), contents(then))


def apply(change, dataset):
    """Do something with the second day, in which there are data unless they were deleted."""
    with contextlib.suppress(OndiskError):  # as of a segment that is not there
        match change:
            case "append":
                append(dataset, [datum(hour, next(STATIONS), 1) for hour in (25, 26)])
            case "replace":
                append(dataset, [datum(24, 0, 2)])
            case "delete one":
                dataset.delete([each.location for each in dataset.query(limit=9)][-1:])
            case "delete day":
                dataset.delete("reftime: =2026-11-21")
            case "repack":
                dataset.repack()
            case "archive":
                dataset.archive(*sorted({each.location.segment for each in dataset.query("reftime: =2026-11-21")})[-1:])
            case "unarchive":
                dataset.unarchive(
                    f"2026/11-21.{FORMATS[dataset.config.format].get('extension', dataset.config.format)}"
                )
            case "reset":
                append(dataset, [datum(hour, 5, 3) for hour in range(24, 30)])


def test_a_lost_or_removed_dataset_is_a_clear_error(create, tmp_path):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    partitions, config = planned(dataset), dataset.config
    dataset.close()
    (tmp_path / "dataset/index.sqlite").unlink()
    with pytest.raises(StateError, match="its index is lost"):
        rows(partitions, config)
    (tmp_path / "dataset").rename(tmp_path / "other")
    with pytest.raises(StateError, match="no longer exists"):
        rows(partitions, config)


def test_an_index_made_anew_is_another(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    partitions = planned(dataset)
    path = dataset.path
    dataset.close()
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        with pytest.raises(StateError, match="was rebuilt"):
            rows(partitions, dataset.config)


def test_planning_opens_no_segment(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    partitions = None
    next(dataset.path.glob("2026/*.jsonl")).unlink()
    partitions = planned(dataset)
    assert len(rows(partitions, dataset.config, data=False)) == 1


def test_archives_are_planned_with_the_rest(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1) for hour in range(72)])
    dataset.archive("2026/11-20.jsonl")
    got = rows(planned(dataset), dataset.config)
    assert same(got, expected(dataset))
    assert len(got) == 72


def test_conditions_on_several_datasets_mean_the_columns_of_their_table(create, tmp_path):
    """A field `f_size` beside a field `size` gives both other names than they have alone."""
    for name, field in (("a", "size"), ("b", "f_size")):
        with create(name, format="jsonl", fields={field: "integer"}) as dataset:
            dataset.append([Datum(T, {field: size}, {}) for size in (5, 6)])
    options = {"path": f"{tmp_path}/[ab]"}
    columns = source.schema(options)

    def read(*where):
        reader = source.BatchReader({**options, "connector": json.dumps({"where": where})}, columns)
        found = [batch for joined in reader.partitions() for batch in reader.read(joined)]
        return [row[name] for batch in found for row in batch.to_pylist() for name in ("f_size", "f_f_size")]

    assert read({"Compare": ["f_size", "=", 5]}) == [5, None]
    assert read({"Compare": ["f_f_size", "=", 5]}) == [None, 5]
    assert read({"IsMissing": ["f_size"]}) == [None, 5, None, 6]


def test_an_earlier_state_that_was_copied_over_the_files_is_another(create, tmp_path):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    dataset.close()
    shutil.copytree(dataset.path, tmp_path / "older")
    with ondisk.open(dataset.path) as dataset:
        dataset.append([datum(hour, 2) for hour in range(3)])
        partitions = planned(dataset)
    for log in dataset.path.glob("index.sqlite-*"):
        log.unlink()
    for name in ("index.sqlite", ".tide", "2026/11-20.jsonl"):
        (dataset.path / name).write_bytes((tmp_path / "older" / name).read_bytes())  # the inodes stay
    with ondisk.open(dataset.path) as dataset:
        dataset.append([datum(hour, 3) for hour in range(3)])
        with pytest.raises(StateError, match="an earlier state was put back"):
            rows(partitions, dataset.config)
