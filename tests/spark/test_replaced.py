"""A plan is read to its end after a repack or an archive, and with `keep_replaced` after a deletion by age."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import delete_by_age

from ondisk import Datum
from ondisk.errors import OndiskError, StateError
from ondisk.maintenance.repack import repack
from ondisk.maintenance.states import State
from ondisk.segments.replaced import replaced

from .test_plan import (
    BASE,
    FORMATS,
    append,
    contents,
    expected,
    in_many_partitions,
    many,
    planned,
    rows,
    same,
    what_is_left,
)

__all__ = ["many"]

T = datetime(2015, 11, 20, tzinfo=UTC)
STATIONS = count(100)  # that no datum had


def datum(hour, station, value=0):
    return Datum(T + timedelta(hours=hour), {"station": station, "name": f"é{station}"}, {"value": value})


def make(create, kind="jsonl", **more):
    dataset = create(**BASE, **FORMATS[kind], replace="yes", keep_replaced="6h", **more)
    append(dataset, [datum(hour, station, hour) for hour in range(0, 72, 6) for station in range(3)])
    return dataset


def kept(dataset):
    return [*replaced(dataset._access.directory)]


def change(dataset, how):
    match how:
        case "repack":
            dataset.repack()
        case "archive":
            names = {each.location.segment for each in dataset.query()}
            dataset.archive(*sorted(each for each in names if not each.startswith(".")))
        case "merge":  # with what the archive has of the segments already
            append(dataset, [datum(hour, 7, hour) for hour in (1, 25, 49)])
            change(dataset, "archive")
        case "unarchive":
            change(dataset, "archive")
            dataset.unarchive(
                *sorted({each.location.segment.removeprefix(".archive/last/") for each in dataset.query()})
            )
        case "delete by age":
            delete_by_age(dataset.path)
            assert not expected(dataset)


@pytest.mark.parametrize("how", ["repack", "archive", "unarchive", "delete by age"])
@pytest.mark.parametrize("kind", ["seg", "blob"])
def test_a_plan_is_read_whole_after_maintenance(create, kind, how, many):
    dataset = make(create, kind)
    dataset.delete("station: 2")  # so that a repack has something to do
    partitions, then = planned(dataset), expected(dataset)
    change(dataset, how)
    assert len(kept(dataset)) == (3 if how == "delete by age" else 0)
    assert same(contents(rows(partitions, dataset.config)), contents(then))
    assert same(rows(planned(dataset), dataset.config), expected(dataset)), "planned again it is right, too"
    assert not [each for each in dataset.check().findings if each.state != State.DIRTY]


@pytest.mark.parametrize("how", ["repack", "delete by age", "merge"])
def test_a_plan_of_an_archive_is_read_whole_after_maintenance(create, how, many):
    dataset = make(create, "seg")
    change(dataset, "archive")
    dataset.delete("station: 2")
    partitions, then = planned(dataset), expected(dataset)
    change(dataset, how)
    assert same(contents(rows(partitions, dataset.config)), contents(then))
    assert same(rows(planned(dataset), dataset.config), expected(dataset))


@pytest.mark.check
def test_several_changes_one_after_the_other(create, many):
    dataset = make(create)
    plans = []
    for how in ("repack", "archive", "unarchive", "delete by age"):
        dataset.delete("station: 2") if how == "repack" else None
        plans.append((planned(dataset), expected(dataset)))
        change(dataset, how)
    for partitions, then in plans:
        assert same(contents(rows(partitions, dataset.config)), contents(then))


def test_a_segment_that_was_archived_before_the_plan_is_not_read_twice(create, many):
    dataset = make(create)
    dataset.delete("station: 2")
    dataset.archive("2015/11-20.jsonl")
    partitions, then = planned(dataset), expected(dataset)
    dataset.repack()  # now some segments of the plan are not there any more
    assert same(contents(rows(partitions, dataset.config)), contents(then))


@pytest.mark.parametrize("is_repacked", [False, True], ids=["as it was", "repacked before"])
def test_a_folder_that_was_merged_with_an_archived_one_is_read_once(create, many, is_repacked):
    """The archive's folder stays what it was, so a plan finds the new files in it, too."""
    dataset = make(create, "blob")
    change(dataset, "archive")
    append(dataset, [datum(hour, station, hour) for hour in (1, 25, 49) for station in (7, 8)])
    dataset.delete("station: 8")
    partitions, then = planned(dataset), expected(dataset)
    if is_repacked:
        dataset.repack()
    change(dataset, "archive")
    assert same(contents(rows(partitions, dataset.config)), contents(then))
    assert same(rows(planned(dataset), dataset.config), expected(dataset)), "planned again it is right"


def test_data_deleted_or_replaced_by_users_are_an_error_still(create, many):
    dataset = make(create)
    for how in ("delete one", "replace"):
        partitions = planned(dataset)
        act(how, dataset)
        dataset.repack()
        with pytest.raises(StateError, match="deleted or replaced"):
            rows(partitions, dataset.config)


def test_without_the_key_only_a_deletion_by_age_ends_a_plan(create):
    dataset = create(**BASE, format="jsonl")
    append(dataset, [datum(hour, 1, hour) for hour in range(48)])
    dataset.delete("reftime: =2015-11-20T05:00:00Z")
    partitions, then = planned(dataset), expected(dataset)
    dataset.repack()
    dataset.archive("2015/11-21.jsonl")
    assert same(contents(rows(partitions, dataset.config)), contents(then))
    delete_by_age(dataset.path)
    assert not [*dataset.path.rglob(".replaced")]
    with pytest.raises(StateError, match="data were deleted or replaced"):
        rows(partitions, dataset.config)


@pytest.mark.parametrize("kind", ["jsonl", "blob"])
@pytest.mark.parametrize("what", ["bytes", "rows", "all"])
def test_what_somebody_has_removed_is_a_clear_error(create, kind, what, many):
    dataset = make(create, kind)
    dataset.delete("station: 2")
    partitions = planned(dataset)
    delete_by_age(dataset.path)
    for each in kept(dataset):
        for path in (dataset.path / each.name, dataset.path / f"{each.name}.rows"):
            if what == "all" or (path.suffix == ".rows") == (what == "rows"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(StateError, match="segments were removed"):
        rows(partitions, dataset.config)
    assert dataset.check().is_clean


def test_other_bytes_in_their_place_are_never_returned(create, many):
    dataset = make(create)
    dataset.delete("station: 2")
    partitions = planned(dataset)
    delete_by_age(dataset.path)
    for each in kept(dataset):
        path = dataset.path / each.name
        path.write_bytes(path.read_bytes().replace(b"value", b"VALUE"))
    with pytest.raises(StateError, match="gone or damaged"):
        rows(partitions, dataset.config)


@pytest.mark.parametrize("what", ["bytes", "rows"])
def test_what_has_rotten_blames_neither_the_segment_nor_the_index(create, what, many):
    """Their errors advise to restore the segment, to salvage it, or to rebuild the index."""
    dataset = make(create)
    dataset.delete("station: 2")
    partitions = planned(dataset)
    delete_by_age(dataset.path)
    for each in kept(dataset):
        if what == "bytes":
            path = dataset.path / each.name
            modified, content = path.stat().st_mtime_ns, path.read_bytes()
            path.write_bytes(content.replace(b'"reftime":"2015', b'"reftime":"2014'))
            os.utime(path, ns=(modified, modified))
        else:
            zero_data(dataset.path / f"{each.name}.rows")
    with pytest.raises(StateError, match="gone or damaged"):
        rows(partitions, dataset.config)
    assert dataset.check().is_clean


def zero_data(path):
    """Write zeros over the roots of the table of data, and of its indices, in an SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        roots = connection.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'datum'").fetchall()
    with path.open("r+b") as file:
        for (root,) in roots:
            file.seek((root - 1) * size)
            file.write(bytes(size))


def test_copies_of_what_is_kept_change_nothing(create, many):
    """As a file manager makes them, and as a backup of one folder in another."""
    dataset = make(create)
    dataset.delete("station: 2")
    partitions, then = planned(dataset), expected(dataset)
    delete_by_age(dataset.path)
    folder = dataset.path / "2015/.replaced"
    for path in [*folder.iterdir()]:
        content = path.read_bytes()
        folder.joinpath("copy of " + path.name).write_bytes(content)
        folder.joinpath(path.name.replace("11-2", "12-2")).write_bytes(content)
        dataset.path.joinpath("2016/.replaced").mkdir(parents=True, exist_ok=True)
        dataset.path.joinpath("2016/.replaced", path.name).write_bytes(content)
    assert same(contents(rows(partitions, dataset.config)), contents(then))
    assert dataset.check().is_clean


def killed_by_age(dataset, tmp_path):
    """Leave what a repack that is killed before its commits leaves: rows of segments that the index still has."""
    shutil.copytree(dataset.path, tmp_path / "copy")
    delete_by_age(tmp_path / "copy")
    for left in (tmp_path / "copy").rglob("*.rows"):
        path = dataset.path / left.relative_to(tmp_path / "copy")
        path.parent.mkdir(exist_ok=True)
        shutil.copy2(left, path)


def test_rows_that_a_killed_repack_has_left_hide_nothing(create, tmp_path, many):
    dataset = make(create)
    killed_by_age(dataset, tmp_path)
    append(dataset, [datum(hour, 9, hour) for hour in (2, 26, 50)])
    dataset.delete("station: 2")
    dataset.repack()
    partitions, then = planned(dataset), expected(dataset)
    assert same(rows(partitions, dataset.config), then), "the segments are still there"
    delete_by_age(dataset.path)
    assert len(kept(dataset)) == 6
    assert same(contents(rows(partitions, dataset.config)), contents(then))


@pytest.mark.parametrize("kind", ["jsonl", "blob"])
def test_rows_that_a_killed_repack_has_left_hide_no_merged_segment(create, tmp_path, many, kind):
    """A folder into which others are merged keeps its generation, which is lower than theirs."""
    dataset = make(create, kind)
    change(dataset, "archive")
    append(dataset, [datum(hour, 7, hour) for hour in (1, 25, 49)])
    killed_by_age(dataset, tmp_path)
    change(dataset, "archive")
    partitions, then = planned(dataset), expected(dataset)
    delete_by_age(dataset.path)
    assert same(contents(rows(partitions, dataset.config)), contents(then))


NIGHT = st.sampled_from(["append", "replace", "delete one", "delete day", "repack", "archive", "unarchive", "age"])


@pytest.mark.check
@given(
    st.sampled_from(sorted(FORMATS)),
    st.booleans(),
    st.lists(NIGHT, max_size=4),
    st.lists(NIGHT, min_size=1, max_size=4),
)
@settings(max_examples=up_to(25))
def test_a_partition_returns_the_planned_rows_or_fails_for_a_reason(kind, is_large, before, after):
    """It fails only if data of the plan were deleted or replaced by somebody."""
    with in_many_partitions(kind, is_large, keep_replaced="1h") as dataset:
        for each in before:
            act(each, dataset, kind)
        partitions, then = planned(dataset), expected(dataset)
        for each in after:
            act(each, dataset, kind)
        got, failed = what_is_left(partitions, dataset.config)
        assert not Counter(map(repr, contents(got))) - Counter(map(repr, contents(then))), "a row too many"
        assert failed or same(contents(got), contents(then))
        assert not failed or {"replace", "delete one", "delete day"} & {*after}
        assert same(rows(planned(dataset), dataset.config), expected(dataset)), "planned again it is right"


def act(how, dataset, kind="jsonl"):
    """Do something with the second day, in which there are data unless they were deleted."""
    day = f"2015/11-21.{FORMATS[kind].get('extension', dataset.config.format)}"
    with contextlib.suppress(OndiskError):  # as of a segment that is not there
        match how:
            case "append":
                append(dataset, [datum(hour, next(STATIONS), 1) for hour in (25, 26)])
            case "replace":
                append(dataset, [datum(24, 0, 2)])
            case "delete one":
                dataset.delete([each.location for each in dataset.query(limit=9)][-1:])
            case "delete day":
                dataset.delete("reftime: =2015-11-21")
            case "repack":
                dataset.repack()
            case "archive":
                dataset.archive(day)
            case "unarchive":
                dataset.unarchive(day)
            case "age":
                delete_by_age(dataset.path)


@pytest.mark.parametrize("how_many", [45, 12_000], ids=["counted", "not counted"])
@pytest.mark.parametrize("how", ["repack", "archive", "delete by age"])
def test_a_job_that_was_planned_before_a_night_returns_the_same_rows(spark, create, how, how_many):
    """In Spark's workers, which read with another library of SQLite."""
    dataset = create(**BASE, format="seg", keep_replaced="6h")
    dataset.append(datum(number * 72 / how_many, number % 5, number) for number in range(how_many))
    dataset.delete("station: 2")
    frame = spark.read.format("ondisk").option("data", "true").load(str(dataset.path))
    wanted = ["station", "name", "data"]  # the location is the present one

    def collected(frame):
        return sorted(map(repr, frame.select(*wanted).collect()))

    then = collected(frame)
    assert len(then) == how_many * 4 // 5
    if how == "repack" and how_many > 100:
        dataset.repack(spark=spark)  # executors write the new files, and the program replaces the old ones
    else:
        change(dataset, how)
    assert len(kept(dataset)) == (3 if how == "delete by age" else 0)
    assert collected(frame) == then
    again = spark.read.format("ondisk").option("data", "true").load(str(dataset.path))
    assert again.count() == (0 if how == "delete by age" else len(then))
    repack(dataset._access, now=time.time() + 7 * 3600)
    if how != "delete by age":
        assert collected(frame) == then
        return
    with pytest.raises(Exception, match="has changed since this DataFrame was planned: segments were removed"):
        frame.count()
