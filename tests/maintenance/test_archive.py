"""Archives: moved, merged, asked, deleted from, maintained; nothing is ever lost or there twice."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import warnings
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from kit import STEPS_OF_TIME
from kit.crashes import killed_in
from worlds import access_to, clock, connections, content, datum, lose_index, renew_index, same, sql

import ondisk
from ondisk import Datum
from ondisk.errors import (
    AlreadyExists,
    ArchiveOffline,
    DurabilityLost,
    IndexCorrupt,
    InvalidInput,
    LockError,
    NeedsCheck,
    SegmentMissing,
    StateError,
    StorageError,
)
from ondisk.index import INDEX, Index
from ondisk.index.transaction import Transaction
from ondisk.maintenance import archive as archiving
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.repack import planned
from ondisk.maintenance.states import State

T = datetime(2026, 11, 20, tzinfo=UTC)

DAY = timedelta(days=1)

FIELDS = {"station": "integer", "name": "text", "seen": "timestamp", "good": "boolean", "level": "real", "raw": "bytes"}

BASE = {"step": "daily", "unique": ["reftime", "station"], "index": ["station", "name"], "fields": FIELDS}

KINDS = {
    "seg lz4": {"format": "seg"},
    "seg plain": {"format": "seg", "compression": "none"},
    "jsonl": {"format": "jsonl"},
}


def some(hours=range(72), stations=range(4), value=0):
    """Make data with metadata of every type; those of even stations lack a name."""
    return [
        datum(hour, station, value, seen=T + timedelta(hours=hour), good=station > 1, level=hour / 2,
              raw=bytes([station]), **({"name": f"n{station % 3}"} if station % 2 else {}))
        for hour in hours
        for station in stations
    ]  # fmt: skip


def values(content):
    """Return the values in what a query finds, sorted."""
    return sorted(data["value"] for *_, data in content)


@pytest.fixture(params=KINDS)
def kind(request):
    return {**BASE, **KINDS[request.param]}


@pytest.fixture
def make(tmp_path, kind):
    """Makes the dataset, with three days of data."""
    made = []

    def make(data=None, **config):
        dataset = ondisk.create(tmp_path / "dataset", {**kind, **config})
        made.append(dataset)
        dataset.append(some() if data is None else data)
        return dataset

    yield make
    for dataset in made:
        dataset.close()


def spoil(path, sql):
    """Change an index as damage would."""
    with closing(sqlite3.connect(path / INDEX)) as connection, connection:
        connection.execute(sql)


def segment(dataset, day=0):
    return f"2026/11-{20 + day}.{dataset.config.format}"


def test_what_is_archived_is_asked_counted_and_read_as_before(make):
    dataset = make()
    before, counted, joined = content(dataset), dataset.summary(), dataset.summary("station: 1")
    dataset.archive(segment(dataset), segment(dataset, 1))
    assert content(dataset) == before
    assert dataset.summary() == counted
    assert dataset.summary("station: 1") == joined
    assert dataset.info()["archives"] == ["last"]
    first = next(dataset.query())
    assert first.location.segment == f".archive/last/{segment(dataset)}"
    assert dataset.read(first.location) == first
    assert content(dataset, reftime=first.reftime, station=0) == before[:1]
    assert content(dataset, "station: 2; reftime: =2026-11-20") == [
        each for each in before if each[1]["station"] == 2 and each[0] < T + DAY
    ]
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert content(reader) == before


def test_the_archive_is_a_dataset_of_its_own(make):
    dataset = make()
    data = content(dataset)
    dataset.archive(segment(dataset))
    with ondisk.open(dataset.path / ".archive/last", read_only=True) as last:
        assert content(last) == [each for each in data if each[0] < T + DAY]
        assert all(each.state == State.OK for each in last.check(accurate=True))


@pytest.mark.parametrize("sort", ["-reftime", "station,-reftime", "name", "-name,station", "day:-station", "hour:raw"])
def test_a_sort_order_holds_over_dataset_and_archives(make, sort):
    dataset = make()
    before = content(dataset, sort=sort)
    dataset.archive(segment(dataset), segment(dataset, 2))
    assert content(dataset, sort=sort) == before
    assert content(dataset, sort=sort, limit=10) == before[:10]


def test_without_a_sort_order_archives_come_first(make):
    dataset = make()
    dataset.archive(segment(dataset, 2))
    days = [each[0].day for each in content(dataset)]
    assert days == sorted(days, key=lambda day: (day != 22, day))
    assert content(dataset, limit=5) == content(dataset)[:5]


def test_what_payloads_returns_can_be_appended_again(make, tmp_path, kind):
    dataset = make()
    dataset.archive(segment(dataset))
    copy = tmp_path / "copy"
    copy.write_bytes(b"".join(dataset.payloads(sort="-reftime")))
    with ondisk.create(tmp_path / "other", kind) as other:
        other.append_file(copy, dataset.config.format)
        assert same(content(other), content(dataset))


def test_a_datum_keeps_its_number_and_its_time_in_the_order_of_changes(make):
    dataset = make()

    def numbers(path):
        return {*sql(path, "SELECT seq, reftime, f_station FROM datum")}, *sql(path, "SELECT seq FROM dataset")[0]

    before, last = numbers(dataset.path)
    dataset.archive(segment(dataset))
    here, _ = numbers(dataset.path)
    there, counter = numbers(dataset.path / ".archive/last")
    assert here | there == before
    assert not here & there
    assert counter == last
    dataset.delete("station: 1")
    _, here = numbers(dataset.path)
    _, there = numbers(dataset.path / ".archive/last")
    assert here == there == last + 72


@pytest.mark.parametrize("replace", ["no", "yes"])
def test_data_that_come_late_are_merged_into_the_archived_segment(make, replace):
    dataset = make(replace=replace)
    dataset.archive(segment(dataset))
    late = [datum(hour, 9, 1) for hour in (23, 2, 5)]
    assert dataset.append(late).imported == 3
    before = content(dataset)
    dataset.archive(segment(dataset))
    assert same(content(dataset), before)
    assert content(dataset) == sorted(content(dataset), key=lambda each: each[0])
    report = dataset.check(accurate=True)
    assert [each.state for each in report] == [State.OK] * 3
    assert not [*dataset.path.rglob(".11-20*")]


def test_a_duplicate_of_archived_data_stays_out(make):
    dataset = make()
    dataset.archive(segment(dataset))
    result = dataset.append([datum(1, 1, 7), datum(1, 8, 7), datum(30, 1, 7), datum(1, 8, 8)], outcomes=True)
    assert [each.status for each in result.outcomes] == ["duplicate", "imported", "duplicate", "duplicate"]
    assert (result.imported, result.duplicates) == (1, 3)
    assert values(content(dataset))[-2:] == [0, 7]


def test_a_duplicate_of_archived_data_replaces_them(make):
    dataset = make(replace="yes")
    before = len(content(dataset))
    dataset.archive(segment(dataset))
    result = dataset.append([datum(1, 1, 7), datum(1, 8, 7), datum(30, 1, 7), datum(1, 1, 8)], outcomes=True)
    assert [each.status for each in result.outcomes] == ["replaced", "imported", "replaced", "replaced"]
    found = content(dataset)
    assert len(found) == before + 1
    assert values(found)[-3:] == [7, 7, 8]
    dataset.archive(segment(dataset))
    assert same(content(dataset), found)


def test_only_a_newer_version_replaces_archived_data(make):
    dataset = make([datum(1, 1, 5, version=5), datum(2, 1, 5)], replace="newer", version_field="version",
                   fields={**FIELDS, "version": "integer"})  # fmt: skip
    dataset.archive(segment(dataset))
    new = [datum(1, 1, 4, version=4), datum(2, 1, 1, version=1), datum(1, 1, 0)]
    result = dataset.append(new, outcomes=True)
    assert [each.status for each in result.outcomes] == ["duplicate", "replaced", "duplicate"]
    assert [data["value"] for *_, data in sorted(content(dataset), key=repr)] == [5, 1]


@pytest.mark.parametrize(
    ("versions", "statuses", "last"),
    [
        ([4, 6], ["duplicate", "replaced"], 6),
        ([None, 6, 5], ["duplicate", "replaced", "duplicate"], 6),
        ([7, 6], ["replaced", "duplicate"], 7),
        ([6, 7, 4], ["replaced", "replaced", "duplicate"], 7),
    ],
)
def test_versions_of_an_archived_datum_in_one_batch_replace_it_one_after_another(make, versions, statuses, last):
    dataset = make([datum(1, 1, 5, version=5)], replace="newer", version_field="version",
                   fields={**FIELDS, "version": "integer"})  # fmt: skip
    dataset.archive(segment(dataset))
    batch = [datum(1, 1, each, **({} if each is None else {"version": each})) for each in versions]
    result = dataset.append([datum(2, 1, 1), *batch], outcomes=True)
    assert [each.status for each in result.outcomes] == ["imported", *statuses]
    assert (result.imported, result.replaced) == (1, statuses.count("replaced"))
    dataset.repack()
    assert dataset.check(accurate=True).is_clean
    assert values(content(dataset)) == [1, last]


def test_an_equal_version_replaces_archived_data(make):
    dataset = make([datum(1, 1, 5, version=5)], replace="newer", version_field="version",
                   fields={**FIELDS, "version": "integer"})  # fmt: skip
    dataset.archive(segment(dataset))
    assert dataset.append([datum(1, 1, 6, version=5)]).replaced == 1
    assert values(content(dataset)) == [6]


def test_a_key_without_reftime_is_unique_over_dataset_and_archive(make):
    dataset = make([datum(1, 1)], unique=["station"])
    dataset.archive(segment(dataset))
    assert dataset.append([datum(70, 1), datum(70, 2)]).duplicates == 1


@pytest.mark.check
def test_deleting_works_in_archives(make):
    dataset = make()
    dataset.archive(segment(dataset))
    assert dataset.delete("station: 3") == 72
    assert {each[1]["station"] for each in content(dataset)} == {0, 1, 2}
    location = next(dataset.query()).location
    other = next(dataset.query("reftime: >=2026-11-22")).location
    assert dataset.delete([location, other, location]) == 2
    assert dataset.delete([location, other]) == 0
    states = {each.segment: each.state for each in dataset.check()}
    assert states[f".archive/last/{segment(dataset)}"] == State.DIRTY
    before = content(dataset)
    dataset.repack()
    assert content(dataset) == before
    assert not [each for each in dataset.check() if each.state]


def test_what_is_deleted_in_an_archive_is_no_sign_of_edited_rows(make):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.delete("station: 1")
    states = {each.segment: each.state for each in dataset.check()}
    assert states[f".archive/last/{segment(dataset)}"] == State.DIRTY
    assert [each.action for each in dataset.fix()] == [None] * 3


def test_unarchive_brings_a_segment_back(make):
    dataset = make()
    before = content(dataset)
    dataset.archive(segment(dataset), segment(dataset, 1))
    (done,) = dataset.unarchive(segment(dataset))
    assert done.action == "unarchive"
    assert same(content(dataset), before)
    assert (dataset.path / segment(dataset)).exists()
    assert not (dataset.path / ".archive/last" / segment(dataset)).exists()
    dataset.unarchive(f".archive/last/{segment(dataset, 1)}")
    assert content(dataset) == before
    with pytest.raises(SegmentMissing, match="has no segment"):
        dataset.unarchive(segment(dataset))


def test_unarchive_waits_for_older_queries(make):
    dataset = make(lock_timeout=0.05)
    before = content(dataset)
    dataset.archive(segment(dataset))
    query = dataset.query()
    first = next(query)
    with pytest.raises(LockError, match="did not end in"):
        dataset.unarchive(segment(dataset))
    assert len([first, *query]) == len(before)
    assert same(content(dataset), before)
    dataset.close()
    with ondisk.open(dataset.path) as again:  # what was begun is undone or done, and nothing is there twice
        assert same(content(again), before)


def test_repack_archives_by_age(make):
    dataset = make(archive_age=10)
    before = content(dataset)
    dataset.delete("station: 0; reftime: =2026-11-20")
    with clock((T + 12 * DAY).timestamp()):
        report = dataset.repack()
    done = {each.segment: each.action for each in report.segments}
    assert done == {segment(dataset): "repack and archive", segment(dataset, 1): "archive"}
    assert len(content(dataset)) == len(before) - 24
    with clock((T + 12 * DAY).timestamp()):
        again = dataset.repack()
    assert not again.segments
    assert again.ok == 3


def test_what_is_too_old_is_deleted_from_the_archive(make):
    dataset = make(archive_age=10, delete_age=20)
    dataset.archive(segment(dataset))
    with clock((T + 22 * DAY).timestamp()):
        report = dataset.repack(by_age=True)
    done = {each.segment: each.action for each in report.segments}
    assert done[f".archive/last/{segment(dataset)}"] == "delete"
    assert done[segment(dataset, 1)] == "delete"
    assert {each[0].day for each in content(dataset)} == {22}


@pytest.mark.parametrize("state", ["missing", "corrupted", "unaligned"])
def test_what_is_damaged_is_not_archived(make, state):
    dataset = make()
    path = dataset.path / segment(dataset)
    if state == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    if state == "unaligned":
        (dataset.path / "needs-check-do-not-pack").touch()
    with pytest.raises(NeedsCheck if state == "unaligned" else StateError):
        dataset.archive(segment(dataset))
    assert not (dataset.path / ".archive/last/2026").exists() or not [*(dataset.path / ".archive/last/2026").iterdir()]


def test_a_file_that_nobody_knows_is_not_overwritten(make):
    dataset = make()
    dataset.archive(segment(dataset, 1))
    stray = dataset.path / ".archive/last" / segment(dataset)
    stray.write_bytes(b"somebody's")
    before = content(dataset)
    with pytest.raises(AlreadyExists, match="the index does not know it"):
        dataset.archive(segment(dataset))
    assert stray.read_bytes() == b"somebody's"
    assert content(dataset) == before


def test_other_archives_are_asked_by_name_and_last_at_the_end(make):
    dataset = make()
    before = content(dataset)
    dataset.archive(segment(dataset, 1))
    (dataset.path / ".archive/last").rename(dataset.path / ".archive/2026")
    dataset.archive(segment(dataset))
    assert dataset.info()["archives"] == ["2026", "last"]
    assert [each[0].day for each in content(dataset)][::96] == [21, 20, 22]
    assert same(content(dataset), before)
    (dataset.path / ".archive/2026").rename(dataset.path / ".archive/zebra")
    assert same(content(dataset), before)
    assert dataset.info()["archives"] == ["zebra", "last"]


def test_a_look_up_by_the_whole_key_finds_the_datum_in_a_renamed_archive_too(make):
    dataset = make([datum(1, 1), datum(30, 1)])
    dataset.archive(segment(dataset))
    (dataset.path / ".archive/last").rename(dataset.path / ".archive/2026")
    assert dataset.append([datum(1, 1, 7)]).imported == 1  # no append looks for duplicates there
    key = {"reftime": datum(1, 1).reftime, "station": 1}
    for _ in range(2):  # the first query opens files, the second may do without a snapshot
        assert [each.data["value"] for each in dataset.query(**key)] == [0, 7]
        assert [each.data["value"] for each in dataset.query(None, sort="reftime", **key)] == [0, 7]


def test_an_archive_that_is_offline_counts_by_its_summary(make, tmp_path, capsys):
    from ondisk.cli import main

    dataset = make()
    whole = dataset.summary(values=None)
    dataset.archive(segment(dataset))
    last = dataset.path / ".archive/last"
    assert main(["summary", str(last), "--json", "--all-values"]) == 0
    summary = capsys.readouterr().out
    last.rename(tmp_path / "on tape")
    (dataset.path / ".archive/2026.summary").write_text(summary)
    assert dataset.info()["offline"] == ["2026"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataset.summary(values=None) == whole
    for ask in (lambda: dataset.summary(""), lambda: next(dataset.query()), lambda: next(dataset.payloads())):
        with pytest.warns(ArchiveOffline, match="'2026' is offline"):
            ask()
    with pytest.warns(ArchiveOffline):
        assert dataset.summary("").count == whole.count - 96
    (dataset.path / ".archive/2026.summary").write_text(json.dumps({"count": "many"}))
    with pytest.raises(InvalidInput, match="is not a summary"):
        dataset.summary()


def test_a_summary_of_an_offline_archive_that_lists_some_values_is_named(make, tmp_path):
    dataset = make()
    before = dataset.summary(values=None)
    whole = before.fields["station"]
    dataset.archive(segment(dataset))
    last = dataset.path / ".archive/last"
    with ondisk.open(last, read_only=True) as archive:
        kept = archive.summary(values=None)
    last.rename(tmp_path / "on tape")
    file = dataset.path / ".archive/2026.summary"

    def write(station):
        span = {"begin": kept.begin.isoformat(), "end": kept.end.isoformat()}
        file.write_text(json.dumps({"count": kept.count, "size": kept.size, **span, "fields": station}))

    values = [{"value": value, "count": count} for value, count in kept.fields["station"].values]
    bounds = {"min": kept.fields["station"].min, "max": kept.fields["station"].max}
    write({"station": {"values": values[:2], "distinct": len(values), "missing": 0, **bounds}})
    with pytest.warns(ArchiveOffline, match=f"'2026', which is offline, lists 2 of {len(values)} values of station"):
        found = dataset.summary(fields=["station"], values=None)
    assert found.count == before.count
    assert (found.fields["station"].min, found.fields["station"].max) == (whole.min, whole.max)
    assert found.fields["station"].distinct == len(values)
    write({})
    with pytest.warns(ArchiveOffline, match="lists no values of station"):
        dataset.summary(fields=["station"])
    write({"station": [*values, {"value": None, "count": 3}]})  # as before 0.1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataset.summary(fields=["station"]).fields["station"].missing == 3


def test_a_lost_index_of_the_archive_is_rebuilt(make):
    dataset = make()
    before = content(dataset)
    dataset.archive(segment(dataset))
    dataset.close()
    lose_index(dataset.path / ".archive/last")
    with ondisk.open(dataset.path) as again:
        assert again.needs_check
        with pytest.raises(NeedsCheck):
            again.repack()
        again.fix()
        assert not again.needs_check
        assert same(content(again), before)
        assert not [each for each in again.check(accurate=True) if each.state]


def test_an_unknown_file_in_the_archive_is_never_deleted(make):
    dataset = make()
    dataset.archive(segment(dataset))
    stray = dataset.path / ".archive/last" / segment(dataset, 5)
    stray.write_bytes((dataset.path / segment(dataset, 1)).read_bytes())
    renew_index(dataset.path / ".archive/last")
    (found,) = [each for each in dataset.check() if each.state]
    assert found.state == State.UNALIGNED
    dataset.repack()
    assert stray.exists()


@pytest.mark.parametrize("direction", ["archive", "unarchive"])
def test_while_both_hold_a_segment_every_datum_is_returned_once(make, direction):
    dataset = make()
    before = content(dataset)
    if direction == "unarchive":
        dataset.archive(segment(dataset))

    with killed_in(archiving, "_drop"):
        getattr(dataset, direction)(segment(dataset))
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert same(content(reader), before)
        assert reader.summary().count == len(before)
        assert len([*reader.payloads()]) == len(before) + (reader.config.format == "seg")
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert same(content(again), before)
        assert not (again.path / segment(again)).exists()
        assert again.delete("") == len(before)
        assert not content(again)


def test_a_dataset_without_archives_makes_none(make):
    dataset = make()
    dataset.repack()
    list(dataset.query())
    dataset.unarchive()
    assert not (dataset.path / ".archive").exists()
    with pytest.raises(SegmentMissing, match="no archive"):
        dataset.unarchive(segment(dataset))
    with pytest.raises(SegmentMissing):
        dataset.archive("2026/01-01.seg")


@pytest.mark.check
def test_the_order_of_changes_goes_on_behind_the_archive_when_an_index_was_lost(make):
    dataset = make()
    dataset.archive(segment(dataset))
    late = [datum(hour, 9, 1) for hour in (23, 2, 5)]
    dataset.append(late)
    before = content(dataset)
    dataset.close()
    last = dataset.path / ".archive/last"
    for lost in ([dataset.path], [last], [dataset.path, last], [dataset.path]):
        for path in lost:
            lose_index(path)
        with ondisk.open(dataset.path) as again:
            again.fix()
            assert same(content(again), before)
            assert again.append([datum(3, 1), datum(70, 1), *late]).duplicates == 5
            assert same(content(again), before)
        with ondisk.open(dataset.path) as again:
            assert same(content(again), before)
    with ondisk.open(dataset.path) as again:
        again.archive(segment(again))
        assert same(content(again), before)


@pytest.mark.parametrize("lost", ["", ".archive/last"], ids=["the dataset's", "the archive's"])
def test_data_that_came_late_are_not_taken_for_archived_ones_when_an_index_was_lost(make, lost):
    dataset = make(some(range(6)))
    dataset.archive(segment(dataset))
    dataset.append([datum(hour, 9, 1) for hour in range(24)])
    before = content(dataset)
    dataset.close()
    lose_index(dataset.path / lost)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert same(content(again), before)
        again.append([datum(hour, 10, 1) for hour in range(24)])
        assert len(content(again)) == len(before) + 24
    with ondisk.open(dataset.path) as again:
        assert len(content(again)) == len(before) + 24
        again.archive(segment(again))
        assert len(content(again)) == len(before) + 24
        assert not [each for each in again.check(accurate=True) if each.state]


def test_what_was_replaced_in_an_archive_stays_hidden_until_it_can_be_deleted_there(make):
    dataset = make(replace="yes")
    dataset.archive(segment(dataset))

    with killed_in(Archives, "complete_deletes_later"):
        dataset.append([datum(1, 1, 7)])
    expected = [*some(), datum(1, 1, 7)]
    expected.remove(*some([1], [1]))
    with ondisk.open(dataset.path, read_only=True) as reader:
        for found in (content(reader), content(reader, sort="-station"), content(dataset)):
            assert len(found) == len(expected)
            assert sum(values(found)) == 7
        assert reader.summary().count == len(expected)
        assert dataset.append([datum(1, 1, 8)]).replaced == 1
        assert sum(values(content(reader))) == 8
        assert dataset.delete("station: 1; reftime: =2026-11-20T01") == 1
    dataset.repack()
    assert not [each for each in dataset.check(accurate=True) if each.state]
    with ondisk.open(dataset.path / ".archive/last", read_only=True) as last:
        assert len(content(last)) == 95


def test_a_delete_does_not_count_archived_data_that_were_replaced_before(make):
    dataset = make(replace="yes")
    dataset.archive(segment(dataset))
    with killed_in(Archives, "complete_deletes_later"):
        dataset.append([datum(1, 1, 7)])
    assert dataset.delete("station: 1; reftime: =2026-11-20T01") == 1
    assert dataset.delete("station: 1; reftime: =2026-11-20") == 23


def in_two_archives(make, **config):
    """Make a dataset with a day in `.archive/2025`, one in `.archive/last`, and one outside."""
    dataset = make(**config)
    dataset.archive(segment(dataset))
    (dataset.path / ".archive/last").rename(dataset.path / ".archive/2025")
    dataset.archive(segment(dataset, 1))
    return dataset


@pytest.mark.parametrize("by", ["match", "location"])
def test_a_delete_over_dataset_and_archives_is_whole_when_only_its_first_commit_is_made(make, by):
    dataset = in_two_archives(make)
    before = content(dataset)
    expected = [each for each in before if each[1]["station"] != 1]
    chosen = "station: 1" if by == "match" else [datum.location for datum in dataset.query("station: 1")]
    with killed_in(Archives, "complete_deletes_later"):
        dataset.delete(chosen)
    dataset.close()
    parts = [dataset.path / ".archive" / name for name in ("2025", "last")]

    def count():
        return [sql(part, "SELECT count(*) FROM datum")[0][0] for part in parts]

    assert count() == [96, 96]
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert content(reader) == expected
        assert reader.summary().count == len(expected)
        assert content(reader, "station: 1") == content(reader, reftime=T, station=1) == []
    assert count() == [96, 96]
    with ondisk.open(dataset.path) as again:
        assert count() == [72, 72]
        assert content(again) == expected
        assert again.delete("station: 1") == 0
        assert again.append(some([0], [1])).imported == 1


def test_a_delete_that_ends_before_its_first_commit_deletes_nothing(make):
    dataset = in_two_archives(make)
    before = content(dataset)
    with killed_in(Transaction, "commit"):
        dataset.delete("")
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert content(again) == before


def test_an_archive_that_is_locked_keeps_a_delete_from_everything(make):
    dataset = in_two_archives(make, lock_timeout=0)
    before = content(dataset)
    with ondisk.open(dataset.path / ".archive/2025") as archive, archive._access.locked("append"):
        with pytest.raises(LockError, match=r"\.archive/2025"):
            dataset.delete("station: 1")
        assert content(dataset) == before
        assert dataset.delete("station: 1; reftime: >=2026-11-21") == 48
    assert dataset.delete("station: 1") == 24


def test_what_was_deleted_is_deleted_from_an_archive_that_was_renamed_or_restored_meanwhile(make, tmp_path):
    dataset = in_two_archives(make)
    old = dataset.path / ".archive/2025"
    dataset.delete("station: 0")
    shutil.copytree(old, tmp_path / "backup")
    dataset.delete("station: 1")
    with killed_in(Archives, "complete_deletes_later"):
        dataset.delete("station: 2")
    left = content(dataset)
    dataset.close()
    shutil.rmtree(old)
    (tmp_path / "backup").rename(old.with_name("restored"))
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert same(content(reader), left)
    with ondisk.open(dataset.path) as again:
        assert same(content(again), left)
    assert sql(old.with_name("restored"), "SELECT count(*) FROM datum") == [(24,)]


def test_deletions_say_nothing_about_an_archive_whose_index_was_rebuilt(make):
    """Its numbers are new: those of data that were deleted belong to others now."""
    dataset = make()
    dataset.delete("station: 1")
    dataset.repack()
    dataset.archive(segment(dataset, 2))
    old = (dataset.path / ".archive/last").rename(dataset.path / ".archive/2025")
    before = content(dataset)
    dataset.close()
    lose_index(old)
    with ondisk.open(old) as archive:
        archive.fix()
    with ondisk.open(dataset.path) as again:
        assert same(content(again), before)
        again.delete("station: 2; reftime: <2026-11-22")
        assert len(content(again)) == len(before) - 48


def test_deletions_say_nothing_about_an_archive_of_another_dataset(make, tmp_path):
    dataset = make()
    dataset.delete("station: 1 or 2")
    dataset.archive(segment(dataset))
    with ondisk.create(tmp_path / "other", dataset.config) as other:
        other.append(some(range(100, 124)))
        other.archive(segment(other, 4))
    (tmp_path / "other/.archive/last").rename(dataset.path / ".archive/other")
    before = content(dataset)
    assert len(before) == 72 * 2 + 96 - 16
    dataset.close()
    with ondisk.open(dataset.path) as again:
        again.delete("station: 0; reftime: =2026-11-21")
        assert len(content(again)) == len(before) - 24


def test_data_in_an_archive_that_is_offline_are_not_deleted_and_a_warning_says_so(make, tmp_path):
    dataset = in_two_archives(make)
    old = dataset.path / ".archive/2025"
    ondisk.open(dataset.path).close()  # learns its name
    away = old.rename(tmp_path / "away")
    old.with_name("2025.summary").write_text("{}")
    with pytest.warns(ArchiveOffline, match="'2025' is offline and was left as it is: delete again when it is back"):
        assert dataset.delete("station: 1") == 48
    away.rename(old)
    assert len(content(dataset, "station: 1")) == 24
    assert dataset.delete("station: 1") == 24


def test_what_repack_deletes_from_the_archive_takes_no_numbers_of_the_dataset(make):
    dataset = make(replace="yes", delete_age=1000)
    dataset.archive(segment(dataset), segment(dataset, 1))
    with clock((T + 1001 * DAY + timedelta(hours=1)).timestamp()):
        report = dataset.repack(by_age=True)
    assert [(each.segment, each.action) for each in report.findings] == [
        (f".archive/last/{segment(dataset)}", "delete")
    ]
    dataset.append([datum(24, 0, value=99)])
    assert values(content(dataset, reftime=T + DAY, station=0)) == [99]
    assert len(content(dataset)) == len(some(range(24, 72)))


def test_nobody_appends_while_a_fix_of_the_archive_takes_numbers(make):
    dataset = make(lock_timeout=1)
    dataset.archive(segment(dataset))
    with ondisk.open(dataset.path) as other:
        with access_to(dataset.path) as access:
            last = access.archives.last()
            with access.archives.assigning_seq(last, "fix"), pytest.raises(LockError):
                other.append([datum(80, 1)])
        assert other.append([datum(80, 1)]).imported == 1


def test_a_segment_that_cannot_be_archived_does_not_keep_others_from_it(make):
    dataset = make(archive_age=10)
    before = content(dataset)
    dataset.archive(segment(dataset, 2))
    in_its_place = dataset.path / ".archive/last" / segment(dataset)
    in_its_place.write_bytes(b"somebody's")
    with clock((T + 100 * DAY).timestamp()), pytest.raises(AlreadyExists) as caught:
        dataset.repack()
    done = {each.segment: each for each in caught.value.context["report"]}
    assert done[segment(dataset)].action is None
    assert "could not be repacked" in done[segment(dataset)].reasons[-1]
    assert done[segment(dataset, 1)].action == "archive"
    assert in_its_place.read_bytes() == b"somebody's"
    assert same(content(dataset), before)


def test_a_segment_that_has_data_of_other_times_is_not_moved_without_them(make):
    dataset = make()
    spoil(dataset.path, "UPDATE datum SET reftime = reftime + 864000000000 WHERE seq = 2")
    before = dataset.summary()
    with pytest.raises(StateError, match="data of other times"):
        dataset.archive(segment(dataset))
    assert dataset.summary() == before


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_a_number_that_both_indices_have_given_out_is_damage_of_one_of_them(make, verb):
    dataset = make()
    dataset.archive(segment(dataset))
    if verb == "unarchive":
        dataset.archive(segment(dataset, 1))
    spoil(dataset.path / ".archive/last", "UPDATE datum SET seq = seq + 192 WHERE seq <= 96")
    before = dataset.path / segment(dataset, 2), (dataset.path / segment(dataset, 2)).read_bytes()
    with pytest.raises(IndexCorrupt, match="have different data with the same seqs") as caught:
        dataset.archive(segment(dataset, 2)) if verb == "archive" else dataset.unarchive(segment(dataset))
    assert "--rebuild --yes` moves an index aside" in caught.value.hint
    assert before[0].read_bytes() == before[1]
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert not [each for each in again.check(accurate=True) if each.state]


def test_a_segment_of_the_archive_that_is_damaged_stays_there(make):
    dataset = make()
    dataset.archive(segment(dataset))
    spoil(dataset.path / ".archive/last", "UPDATE segment SET checked = 'its bytes are not what they were'")
    with pytest.raises(StateError, match="not what they were"):
        dataset.unarchive(segment(dataset))
    assert [each.segment for each in dataset.check().findings] == [f".archive/last/{segment(dataset)}"]


@contextmanager
def steps():
    """Collect an item for each hundred steps of SQLite on connections that are opened in the block."""
    counted = []
    with connections(lambda each: each.set_progress_handler(lambda: counted.append(1) and None, 100)):
        yield counted


def steps_of(dataset, match, **options):
    """Count, in hundreds, the steps of SQLite for a query of a dataset that was opened again."""
    with steps() as counted, ondisk.open(dataset.path) as again:
        content(again, limit=1)
        counted.clear()
        content(again, match, **options)
        return len(counted)


def test_what_was_deleted_since_it_was_archived_is_looked_at_once_not_in_each_query(make):
    dataset = make()
    dataset.archive(segment(dataset))
    (dataset.path / ".archive/last").rename(dataset.path / ".archive/2026")
    content(dataset)
    few = steps_of(dataset, "station: 77")
    dataset.append([datum(30 + n / 5000, 10) for n in range(5000)])
    dataset.delete(dataset.fields.station == 10)
    assert len(content(dataset)) == len(some())
    assert steps_of(dataset, "station: 77") < few + 100


def test_a_late_import_into_an_archived_segment_costs_a_query_what_came_late(make):
    dataset = make()
    dataset.append([datum(1 + n / 5000, 10) for n in range(5000)])
    dataset.archive(segment(dataset))
    dataset.append([datum(2, 10)])
    content(dataset)
    assert steps_of(dataset, "station: 77", reftime=T + 60 * DAY) < 100


def test_removing_a_segment_looks_at_its_own_data(make):
    dataset = make()
    dataset.append([datum(30 + n / 10_000, 10) for n in range(10_000)])
    with steps() as counted, access_to(dataset.path) as access:
        for day in (0, 2):
            counted.clear()  # the first one looks for data of other times
            name = segment(dataset, day)
            with access.transaction("fix") as transaction:
                transaction.remove(transaction.segments([name])[name])
                transaction.commit()
    assert len(counted) < 200


@pytest.mark.parametrize("lost", ["", ".archive/last"])
def test_nothing_is_unarchived_while_an_index_may_not_know_all_data(make, lost):
    dataset = make()
    before = content(dataset)
    dataset.archive(segment(dataset))
    dataset.append([datum(hour, 9, 1) for hour in range(24)])
    dataset.close()
    lose_index(dataset.path / lost)
    with ondisk.open(dataset.path) as again:
        again.append([datum(hour, 8, 1) for hour in range(24)])
        with pytest.raises(NeedsCheck):
            again.unarchive(segment(again))
        again.fix()
        again.unarchive(segment(again))
        assert len(content(again)) == len(before) + 48


@pytest.mark.parametrize("direction", ["archive", "unarchive"])
def test_nothing_is_merged_into_a_segment_that_is_damaged(make, direction):
    dataset = make()
    name = segment(dataset)
    dataset.archive(name)
    dataset.append([datum(hour, 9, 1) for hour in range(24)])
    there = dataset.path / (".archive/last" if direction == "archive" else "")
    spoil(there, f"UPDATE segment SET checked = 'its bytes are not what they were' WHERE name = '{name}'")
    bytes_there = (there / name).read_bytes()
    with pytest.raises(StateError, match="not what they were"):
        getattr(dataset, direction)(name)
    assert (there / name).read_bytes() == bytes_there


@pytest.mark.parametrize("step", STEPS_OF_TIME)
def test_the_name_of_an_archived_segment_is_one_of_the_datasets_own_step(make, step):
    """`2026/11-1` stands for another time by weeks than by half months."""
    dataset = make([datum(24 * day, 1) for day in range(-18, 40)], step=step)
    before = content(dataset)
    dataset.archive(*{each.location.segment for each in dataset.query()})
    assert not [each for each in dataset.check(accurate=True) if each.state]
    dataset.close()
    lose_index(dataset.path / ".archive/last")
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert not [each for each in again.check(accurate=True) if each.state]
        assert content(again) == before


def test_who_reads_beside_an_index_that_was_made_anew_keeps_nobody_from_writing(make):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again, closing(again.query()) as query:
        next(query)
        assert again.append([datum(80, 1)]).imported == 1
        again.fix()
        assert len([*query]) == 95


def test_a_delete_age_that_is_set_later_is_that_of_the_archive_too(make):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.close()
    toml = dataset.path / "dataset.toml"
    toml.write_text("delete_age = 1000\n" + toml.read_text())
    with ondisk.open(dataset.path) as again:
        with clock((T + 1001 * DAY + timedelta(hours=1)).timestamp()):
            report = again.repack(by_age=True)
        assert [each.action for each in report if each.action] == ["delete"]
        assert len(content(again)) == len(some(range(24, 72)))


def test_limits_that_are_raised_later_are_those_of_the_archive_too(make):
    dataset = make(max_datum_size=1000, max_depth=8)
    dataset.archive(segment(dataset))
    dataset.close()
    toml = dataset.path / "dataset.toml"
    limits = ("max_datum_size", "max_depth")
    toml.write_text("\n".join(line for line in toml.read_text().splitlines() if not line.startswith(limits)))
    with ondisk.open(dataset.path) as again:
        again.append([Datum(T + DAY, {"station": 9}, {"value": 1, "note": "x" * 2000, "deep": [[[[[[[[[[1]]]]]]]]]]})])
        before = content(again)
        again.archive(segment(again, 1))
        assert same(content(again), before)
        again.repack()
        assert not [each for each in again.check(accurate=True) if each.state]
    lose_index(dataset.path / ".archive/last")
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert same(content(again), before)


@pytest.mark.parametrize("replace", ["no", "yes"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_the_archive_never_met_is_not_taken_for_a_missing_one(make, field, replace):
    value = {"seen": T, "good": True, "raw": b"new", "station": 5, "level": 0.5}.get(field, "new")
    lacking = Datum(T, {}, {"value": 1})
    dataset = make([lacking], unique=["reftime", field], replace=replace)
    dataset.archive(segment(dataset))
    result = dataset.append([Datum(T, {field: value}, {"value": 2})])
    assert (result.imported, result.duplicates, result.replaced) == (1, 0, 0)
    assert values(content(dataset)) == [1, 2]
    assert dataset.append([lacking]).imported == 0


@contextmanager
def failing_checkpoints(path):
    """Let no commit of an index be moved into its main file, as on a disk that fails."""
    checkpoint = Index.checkpoint

    def fail(index):
        if index.directory.path == path:
            raise StorageError("the disk fails")
        return checkpoint(index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "checkpoint", fail)
        yield


def test_what_is_archived_before_the_disk_fails_is_in_the_report(make):
    dataset = make()
    before = content(dataset)
    with failing_checkpoints(dataset.path), pytest.raises(DurabilityLost) as caught:
        dataset.archive(segment(dataset), segment(dataset, 1))
    assert [each.segment for each in caught.value.context["report"]] == [segment(dataset)]
    with pytest.raises(DurabilityLost, match="nothing more is written"):
        dataset.append(some([100]))
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert same(content(again), before)
        assert not any(each.state for each in again.check(accurate=True))


def test_what_is_fixed_before_the_disk_fails_is_in_the_report(make):
    dataset = make()
    names = [segment(dataset, number) for number in range(3)]
    before = content(dataset)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as fixing:
        fixing.append([datum(80, 1)])
        with failing_checkpoints(dataset.path), pytest.raises(DurabilityLost) as caught:
            fixing.fix()
        done = {each.segment for each in caught.value.context["report"]}
    with ondisk.open(dataset.path) as again:
        found = {each.segment for each in again.check(accurate=True) if State.UNALIGNED not in each.state}
        assert done <= found
        again.fix()
        assert len(content(again)) == len(before) + 1
        assert set(names) <= {each.segment for each in again.check()}


def test_no_repack_removes_the_old_bytes_where_the_disk_fails_after_its_commit(make):
    dataset = make()
    dataset.delete("station: 0")
    before = content(dataset)
    with failing_checkpoints(dataset.path), pytest.raises(DurabilityLost):
        dataset.repack()
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert same(content(reader), before)
    with ondisk.open(dataset.path) as again:
        again.repack()
        assert same(content(again), before)
        assert not again.check(accurate=True).findings


def test_no_archive_is_changed_after_a_commit_that_the_disk_kept_out_of_the_main_file(make):
    dataset = make(replace="yes")
    dataset.archive(segment(dataset))
    last = dataset.path / ".archive/last"
    with failing_checkpoints(dataset.path):
        with pytest.raises(DurabilityLost):
            dataset.append([datum(1, 1, 7)])
        assert sql(last, "SELECT count(*) FROM datum") == [(96,)]
        assert sql(last, "SELECT count(*) FROM deletion") == [(0,)]
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert sql(last, "SELECT count(*) FROM datum") == [(95,)]
        assert sum(values(content(again))) == 7


def test_after_both_indices_were_lost_no_number_is_used_twice(make):
    dataset = make()
    dataset.archive(segment(dataset), segment(dataset, 1))
    dataset.close()
    places = (dataset.path, dataset.path / ".archive/last")
    for place in places:
        lose_index(place)
    with ondisk.open(dataset.path) as again:
        again.fix()
        again.delete("station: 0; reftime: =2026-11-20")
        again.append([datum(100, 1)])
    # The deletion of an archived datum has one number, in both indices.
    found = [number for place in places for (number,) in sql(place, "SELECT seq FROM datum")]
    found += [
        number for number, _ in {each for place in places for each in sql(place, "SELECT seq, datum FROM deletion")}
    ]
    assert len(found) == len(set(found)) > 0


def change(path, verb):
    if verb == "maintain" and (error := maintain(path).error) is not None:
        raise error
    with ondisk.open(path) as archive:
        if verb == "archive":
            archive.archive(next(iter(archive.check())).segment)
        else:
            archive.repack()


@pytest.mark.parametrize("verb", ["archive", "repack", "maintain"])
def test_an_archive_opened_as_a_dataset_does_not_archive_into_itself_and_the_error_names_its_dataset(make, verb):
    dataset = in_two_archives(make, archive_age=1)
    before = content(dataset)
    for name in ("last", "2025"):
        path = dataset.path / ".archive" / name
        with pytest.raises(StateError, match=rf"{name} is an archive of {dataset.path}:"):
            change(path, verb)
        with ondisk.open(path) as archive:  # read and mended it can be
            assert len(content(archive)) == 96
            archive.fix()
        assert not (path / ".archive").exists()
    assert content(dataset) == before


def test_a_check_of_an_archive_opened_as_a_dataset_proposes_nothing_that_it_refuses(make):
    dataset = in_two_archives(make, archive_age=1)
    for name in ("last", "2025"):
        with ondisk.open(dataset.path / ".archive" / name) as archive:
            assert archive.config.archive_age == 1
            assert not any(each.state for each in archive.check())
            assert (archive.info()["to_archive"], archive.info()["to_delete"]) == (None, None)
            with pytest.raises(StateError, match=rf"{name} is an archive of {dataset.path}:"):
                planned(archive._access)
