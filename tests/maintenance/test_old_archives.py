"""A migration takes the archives of revision 5, which had their own indices, over into the one index of the dataset."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from kit import crashes
from old_datasets import EXPECTED, old
from sums import wrong_sums
from worlds import sql

import ondisk
from ondisk.datum import Datum
from ondisk.errors import AlreadyExists, DataOffline, LockError, NotFound, OndiskError, SegmentMissing, StateError
from ondisk.filesystem import Directory, WritersLock
from ondisk.index import INDEX, Copies
from ondisk.index.tide import TIDE
from ondisk.maintenance import migrate
from ondisk.maintenance.migrate import Migration
from ondisk.maintenance.old_archives import Fault, Known, Summary, away, faults
from ondisk.maintenance.states import State
from ondisk.segments import places
from ondisk.step import Interval


def answers(path: Path) -> list[list[Any]]:
    with ondisk.open(path, read_only=True) as dataset:
        found = [(each, each.location) for each in dataset.query()]
    return [[each.reftime.isoformat(), dict(each.metadata), at.segment] for each, at in found if at is not None]


def unordered(found: list[list[Any]]) -> list[list[Any]]:
    return sorted(found, key=json.dumps)


def data_of(found: list[list[Any]]) -> list[list[Any]]:
    """Return the answers without the names of segments."""
    return unordered([each[:2] for each in found])


def files(path: Path) -> dict[str, bytes]:
    """Return what is on disk, but for locks and SQLite's files for readers."""
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != ".lock" and not each.name.endswith(("-wal", "-shm"))
    }


def check_whole(path: Path) -> None:
    """Check the new index: its rows, sums, files and identities."""
    assert wrong_sums(path) == []
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    with ondisk.open(path) as dataset:
        assert not dataset.needs_check
        found = dataset.check(accurate=True)
        states = [each.state for each in found.segments if "is offline" not in "".join(each.reasons)]
        assert [each for each in states if each not in (State.OK, State.DIRTY)] == []
    for folder in (path / ".archive").iterdir():
        if folder.is_dir() and any(folder.glob("[0-9]*/*")):
            assert not (folder / INDEX).exists()
            assert not (folder / "dataset.toml").exists()
            with Directory.open(path) as directory:
                place = places.place(directory, f".archive/{folder.name}/")
            assert place.why_away is None
            assert place.is_ours
            pattern = f"{place.name}%"
            count = sql(path, "SELECT ifnull(sum(summed), 0) FROM segment WHERE name LIKE ?", pattern)[0][0]
            assert place.identity is not None
            assert place.identity.count == count


def migrated(path: Path, **options: Any) -> Migration:
    """Migrate a dataset, after a dry run that changed nothing and said the same."""
    before = files(path)
    plan = ondisk.migrate(path, dry_run=True, **options)
    assert files(path) == before
    done = ondisk.migrate(path, **options)
    assert plan.is_needed
    assert done.done
    for name in ("superseded", "left_alone", "left_out", "forgotten", "offline"):
        assert getattr(plan, name) == getattr(done, name)
    assert [each.taken for each in plan.archives] == [each.taken for each in done.archives]
    again = ondisk.migrate(path, dry_run=True)
    assert not again.is_needed
    assert again.left_alone == done.left_alone
    check_whole(path)
    return done


def test_all_that_a_query_read_is_read_from_one_index(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    seqs = {seq for part in (path, *(path / ".archive").iterdir()) for (seq,) in sql(part, "SELECT seq FROM datum")}
    uuid = sql(path, "SELECT uuid FROM dataset")
    done = migrated(path)
    assert done.revision == ("0005", "0007")
    assert [Path(each.dataset).name for each in done.archives] == ["2024", "last"]
    assert unordered(answers(path)) == unordered(EXPECTED["archived"])
    assert [each[0] for each in answers(path)] == sorted(each[0] for each in EXPECTED["archived"]), "in one order"
    assert {seq for (seq,) in sql(path, "SELECT seq FROM datum")} == seqs
    assert sql(path, "SELECT uuid FROM dataset") == uuid
    names = {each.name for each in (path / ".archive" / "last").iterdir()}
    assert {f"{name}.before-0007" for name in (INDEX, "dataset.toml")} <= names
    assert (path / f"{INDEX}.before-0007").exists()


def test_late_data_are_found_as_duplicates_and_a_repack_merges_them(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    migrated(path)
    metadata, data = {"station": "a", "value": 0}, {"n": 7}
    with ondisk.open(path) as dataset:
        stored = next(iter(dataset.query("reftime:=2026-11-20T00")))
        assert dataset.append([Datum(stored.reftime, metadata, data)]).replaced == 1, "2024 is no place apart"
        dataset.repack()
        assert dataset.check(accurate=True).is_clean


def test_archives_are_taken_over_in_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    path = old("archived", tmp_path).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert ondisk.migrate(path).done
    assert unordered(answers(path)) == unordered(EXPECTED["archived"])


def numbers(path: Path) -> set[tuple[int, int]]:
    return {*sql(path, "SELECT seq, reftime FROM datum")}


@pytest.mark.parametrize(("replace", "kept"), [("no", [10, 10, 10]), ("yes", [20, 5, 10]), ("newer", [20, 10, 10])])
def test_of_data_with_the_same_unique_values_one_counts(tmp_path: Path, replace: str, kept: list[int]) -> None:
    path = old(f"twice-{replace}", tmp_path)
    assert len(EXPECTED[path.name]) == 6, "both were answered"
    done = migrated(path)
    assert done.has_findings
    assert sum(done.superseded.values()) == 2
    found = [value["value"] for _, value, _ in answers(path)]
    assert found == [*kept, 7]
    seq = sql(path, "SELECT seq FROM dataset")[0][0]
    deletions = sql(path, "SELECT seq, datum FROM deletion ORDER BY seq DESC LIMIT 2")
    assert [number for number, _ in deletions] == [seq, seq - 1], "replicas get to know of it"
    assert {datum for _, datum in deletions}.isdisjoint(number for number, _ in numbers(path))
    for segment, count in done.superseded.items():
        (copies, deleted), *_ = sql(path, "SELECT copies, deleted FROM segment WHERE name = ?", segment)
        assert copies == Copies.SOME
        assert (count > 0) == (deleted > 0)
    before = {name: (path / name).read_bytes() for name in done.superseded}
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.repack()
        assert {name: (path / name).read_bytes() for name in before} == before, "no repack rewrites them"
        assert [each.metadata["value"] for each in dataset.query()] == [*kept, 7]
        dataset.repack(second_copies=True)
        assert [each.metadata["value"] for each in dataset.query()] == [*kept, 7]


def test_a_replica_waits_for_the_deletions_of_its_source(tmp_path: Path) -> None:
    path = old("twice-yes", tmp_path)
    for each in (path, path / ".archive/2024"):
        (each / "dataset.toml").write_text("replica = true\n" + (each / "dataset.toml").read_text())
    before = sql(path, "SELECT seq FROM dataset"), sql(path, "SELECT * FROM deletion")
    done = ondisk.migrate(path)
    assert sum(done.superseded.values()) == 2
    assert (sql(path, "SELECT seq FROM dataset"), sql(path, "SELECT * FROM deletion")) == before
    assert sql(path, "SELECT kind, count(*) FROM difference GROUP BY kind") == [(0, 2)], "it may ask for them again"


@pytest.mark.check
def test_a_replica_cannot_give_data_other_numbers(tmp_path: Path) -> None:
    path = old("foreign", tmp_path)
    for each in (path, *(path / ".archive").iterdir()):
        (each / "dataset.toml").write_text("replica = true\n" + (each / "dataset.toml").read_text())
    error = refused(path, match="has data with numbers that the source has used")
    assert "--leave-out old" in str(error.hint)


@pytest.mark.check
def test_tokens_expire_if_the_dataset_did_not_know_an_archive(tmp_path: Path) -> None:
    for name in ("known", "unknown"):
        path = old("archived", tmp_path / name)
        if name == "unknown":
            change(path, "DELETE FROM archive WHERE name = '2024'")
        migrated(path)
        ((expired, seq),) = sql(path, "SELECT expired, seq FROM dataset")
        assert expired == (seq if name == "unknown" else 0)


def test_a_foreign_dataset_that_was_put_in_gets_other_numbers(tmp_path: Path) -> None:
    path = old("foreign", tmp_path)
    uuid = sql(path, "SELECT uuid FROM dataset")
    mine = {*numbers(path), *numbers(path / ".archive/last")}
    done = migrated(path)
    taken = {Path(each.dataset).name: each.taken for each in done.archives}
    assert taken["last"] is not None
    assert taken["last"].renumbered == 0
    assert taken["old"] is not None
    assert taken["old"].renumbered > 0
    found = answers(path)
    assert all(each in found for each in EXPECTED["foreign"])
    assert len(found) == len(mine) + 11, "also those that were taken for data of the dataset, by their numbers"
    assert mine <= numbers(path), "the dataset's own data keep theirs"
    assert sql(path, "SELECT uuid FROM dataset") != uuid
    assert {*uuid} <= {*sql(path, "SELECT uuid FROM former")}
    assert [*sql(path, "SELECT 1 FROM deletion JOIN datum ON datum.seq IN (deletion.seq, deletion.datum)")] == []
    with ondisk.open(path) as dataset:
        assert not dataset.needs_check, "the tide mark knows the new UUID"


def test_the_archive_of_a_replica_keeps_the_numbers_of_the_source(tmp_path: Path) -> None:
    path = old("replica", tmp_path)
    before = {*numbers(path), *numbers(path / ".archive/last")}
    counter = sql(path, "SELECT seq FROM dataset")
    migrated(path)
    assert numbers(path) == before
    assert sql(path, "SELECT seq FROM dataset") == counter
    assert unordered(answers(path)) == unordered(EXPECTED["replica"])


def test_a_datum_that_both_have_after_an_interrupted_move_counts_once(tmp_path: Path) -> None:
    path = old("interrupted", tmp_path)
    done = migrated(path)
    assert [each.taken.twice for each in done.archives if each.taken] == [4]
    assert unordered(answers(path)) == unordered(EXPECTED["interrupted"])
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.repack(second_copies=True)
        assert data_of(answers(path)) == data_of(EXPECTED["interrupted"])
        dataset.archive("2026/11-20.jsonl")
        assert dataset.check(accurate=True).is_clean
    assert data_of(answers(path)) == data_of(EXPECTED["interrupted"])


def test_a_deletion_that_an_archive_has_not_carried_out_is_carried_out(tmp_path: Path) -> None:
    path = old("pending", tmp_path)
    assert len(sql(path / ".archive/last", "SELECT 1 FROM datum")) == 4
    done = migrated(path)
    assert [each.taken.deleted for each in done.archives if each.taken] == [1]
    assert unordered(answers(path)) == unordered(EXPECTED["pending"])
    assert sql(path, "SELECT deleted > 0 FROM segment WHERE name LIKE '.archive/%'") == [(1,)]


def test_an_archive_that_is_offline_becomes_an_offline_place_and_is_taken_over_when_it_returns(tmp_path: Path) -> None:
    path = old("offline", tmp_path)
    (path / "2024.away").rename(tmp_path / "tape")
    done = migrated(path)
    assert done.offline == {"2024": 4}
    with Directory.open(path) as directory:
        place = places.place(directory, ".archive/2024/")
    assert place.is_offline
    assert place.identity is not None
    assert place.identity.count == 4
    assert place.identity.end > place.identity.begin
    assert not (path / ".archive/2024.summary").exists()
    with pytest.warns(DataOffline):
        assert unordered(answers(path)) == unordered(EXPECTED["offline"])
    with ondisk.open(path) as dataset:
        key = {"station": "a", "value": 9}
        stored = [Datum(place_time(place.identity.begin), key, {"n": 9})]
        assert dataset.append(stored).imported == 1, "nobody knows what is there"
    (tmp_path / "tape").rename(path / ".archive/2024")
    with ondisk.open(path) as dataset, pytest.raises(StateError, match="has an index of its own") as caught:
        dataset.set_online("2024")
    assert "migrate" in str(caught.value.hint)
    back = migrated(path)
    assert [each.taken.count for each in back.archives if each.taken] == [4]
    assert sum(back.superseded.values()) == 1, "the key was stored again meanwhile"
    with Directory.open(path) as directory:
        assert places.place(directory, ".archive/2024/").why_away is None
    assert len(answers(path)) == len(EXPECTED["offline"]) + 4


def place_time(microseconds: int) -> Any:
    return ondisk.datum.from_microseconds(microseconds)


# What is refused, and changes nothing


def refused(path: Path, kind: type[OndiskError] = StateError, match: str = "", **options: Any) -> OndiskError:
    before = files(path.parent)
    for dry_run in (True, False):
        with pytest.raises(kind, match=match) as caught:
            ondisk.migrate(path, dry_run=dry_run, **options)
        assert files(path.parent) == before
    assert caught.value.hint
    return caught.value


def test_an_archive_that_is_away_refuses_the_migration(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    (path / ".archive/2024").rename(tmp_path / "tape")
    error = refused(path, match="2024 is missing; nothing was changed")
    assert f"`ondisk migrate {path} --forget 2024 --yes` counts its 7 data as lost" in str(error.hint)
    done = migrated(path, forget=["2024"])
    assert done.forgotten == {"2024": 7}
    with ondisk.open(path) as dataset:
        assert dataset.info()["lost"] == 7
    left = [each for each in EXPECTED["archived"] if not each[2].startswith(".archive/2024/")]
    assert unordered(answers(path)) == unordered(left)


def test_what_is_not_missing_cannot_be_forgotten_or_left_out(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    refused(path, NotFound, "misses no archive 'last'", forget=["last"])
    refused(path, NotFound, "misses no archive 'x'", forget=["x"])
    refused(path, NotFound, "has no archive 'x'", leave_out=["x"])
    refused(path, NotFound, "has no archive", leave_out=["../x"])


UNSETTLED = {
    "a generation with a hidden name": (".archive/last/2026/.11-21.jsonl.17", "needs the generation 17 of 2026/11-21"),
    "a replaced segment": (
        ".archive/last/2026/.replaced/11-21.jsonl.3",
        "contains segments that `keep_replaced` keeps",
    ),
    "a sentinel": (".archive/last/needs-check-do-not-pack", "its index was lost, and may not know all data"),
    "a sentinel of the dataset": ("needs-check-do-not-pack", "its index was lost, and may not know all data"),
    "an index that waits": (".archive/last/.index.sqlite.next", "waits to replace its index"),
}


@pytest.mark.parametrize("case", UNSETTLED)
def test_an_archive_that_is_not_settled_refuses_the_migration(tmp_path: Path, case: str) -> None:
    path = old("archived", tmp_path)
    name, message = UNSETTLED[case]
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_bytes(b"")
    error = refused(path, match=message)
    assert "of the version of ondisk that has written it, then migrate" in str(error.hint)


def test_an_archive_whose_user_is_at_work_is_waited_for(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    config = path / "dataset.toml"
    config.write_text(f"lock_timeout = 0\n{config.read_text()}")
    with (
        Directory.open(path / ".archive/last") as last,
        WritersLock(last, 1).hold("delete"),
        pytest.raises(LockError, match="delete"),
    ):
        ondisk.migrate(path)
    assert ondisk.migrate(path).done


@pytest.mark.parametrize("lost", [".archive/last", "."])
def test_a_lost_index_refuses_the_migration(tmp_path: Path, lost: str) -> None:
    path = old("archived", tmp_path)
    for name in (INDEX, f"{INDEX}-wal", f"{INDEX}-shm"):
        (path / lost / name).unlink(missing_ok=True)
    refused(path, match="its index.sqlite is lost")


def test_an_exchanged_index_of_an_archive_refuses_the_migration(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    uuid = sql(path, "SELECT uuid FROM dataset")[0][0]
    with Directory.open(path / ".archive/last") as archive:
        ondisk.index.tide.save(archive, ondisk.index.tide.TideMark(uuid, 1, 1))
    refused(path, match="its index was exchanged")
    assert (path / ".archive/last" / TIDE).exists()


# Which archives a query read

A, B = Known("a", "last", Interval(10, 20), 7, 3, 5), Known("b", "2025", None, 0, 0, 0)
AWAY: dict[str, tuple[list[Known], set[str], dict[str, Interval], list[Known]]] = {
    "none known": ([], set(), {}, []),
    "there": ([A, B], {"a", "b"}, {}, []),
    "there, and others": ([A], {"a", "c"}, {}, []),
    "gone": ([A, B], {"b"}, {}, [A]),
    "gone, but it was empty": ([B], set(), {}, []),
    "another in its place": ([A], {"c"}, {}, [A]),
    "its summary is there": ([A, B], {"b"}, {"last": Interval(0, 30)}, []),
    "renamed, then taken offline": ([A], set(), {"2024": Interval(12, 20)}, []),
    "the summary of another": ([A], set(), {"2024": Interval(12, 21)}, [A]),
}


@pytest.mark.parametrize("case", AWAY)
def test_an_archive_is_away_if_nothing_stands_for_it(case: str) -> None:
    known, uuids, offline, expected = AWAY[case]
    assert away(known, uuids, {name: Summary(1, span) for name, span in offline.items()}) == expected


LAST = Known("a", "last", Interval(10, 20), 7, 3, 5)
MAIN = ("main", 9, 9)

FAULTS = {
    "as recorded": ([LAST], {"last": ("a", 7, 3)}, {}),
    "changed since": ([LAST], {"last": ("a", 8, 4)}, {}),
    "renamed": ([LAST], {"2024": ("a", 7, 3)}, {}),
    "not known": ([], {"last": ("a", 7, 3)}, {}),
    "of another": ([LAST], {"last": ("b", 7, 3)}, {"last": Fault.FOREIGN}),
    "of another, beside it": ([LAST], {"last": ("a", 7, 3), "2024": ("b", 7, 3)}, {}),
    "renamed, and a new one": ([LAST], {"2024": ("a", 7, 3), "last": ("b", 1, 1)}, {}),
    "fewer changes": ([LAST], {"last": ("a", 6, 3)}, {"last": Fault.OLDER}),
    "fewer generations": ([LAST], {"last": ("a", 8, 2)}, {"last": Fault.OLDER}),
    "a copy beside it": ([LAST], {"last": ("a", 7, 3), "copy": ("a", 7, 3)}, {"copy": Fault.COPY}),
    "an older copy": ([LAST], {"last": ("a", 8, 4), "copy": ("a", 7, 3)}, {"copy": Fault.COPY}),
    "an older copy of an older one": (
        [LAST], {"last": ("a", 6, 3), "copy": ("a", 5, 3)}, {"last": Fault.OLDER, "copy": Fault.COPY}),
    "a newer copy": ([LAST], {"last": ("a", 7, 3), "copy": ("a", 8, 3)}, {"last": Fault.TWIN, "copy": Fault.TWIN}),
    "two copies, renamed": ([LAST], {"one": ("a", 7, 3), "two": ("a", 7, 3)}, {"one": Fault.TWIN, "two": Fault.TWIN}),
    "two copies, not known": ([], {"last": ("a", 7, 3), "two": ("a", 7, 3)}, {"last": Fault.TWIN, "two": Fault.TWIN}),
    "a copy of the dataset": ([LAST], {"last": ("a", 7, 3), "2024": ("main", 9, 8)}, {"2024": Fault.COPY}),
    "a newer state of the dataset": ([], {"2024": ("main", 10, 9)}, {"2024": Fault.TWIN}),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_an_archive_is_taken_over_if_it_is_the_one_that_is_recorded(case: str) -> None:
    known, present, expected = FAULTS[case]
    assert faults(known, present, MAIN, {}) == expected


OTHER, COPY = Known("b", "last", Interval(10, 20), 9, 4, 5), Known("a", "copy", Interval(10, 20), 7, 3, 5)
FORMER = {
    "its index was rebuilt, which is recorded": ([OTHER], "last", {"copy": Fault.COPY}),
    "its index was rebuilt just now": ([LAST], "last", {"copy": Fault.COPY}),
    "the index of the copy was rebuilt": ([COPY], "last", {"last": Fault.COPY}),
    "both are recorded": ([OTHER, COPY], "last", {}),
    "none is recorded": ([], "last", {"last": Fault.TWIN, "copy": Fault.TWIN}),
    "a copy of the dataset, whose index was rebuilt": ([OTHER], "", {"copy": Fault.COPY}),
}


@pytest.mark.parametrize("case", FORMER)
def test_an_archive_is_a_copy_if_another_has_had_its_uuid(case: str) -> None:
    known, name, expected = FORMER[case]
    present = {"last": ("b", 9, 4), "copy": ("a", 7, 3)}
    assert faults(known, present, MAIN, {"": [], "last": [], "copy": [], name: ["a"]}) == expected


def copied(path: Path, name: str) -> None:
    shutil.copytree(path / ".archive/last", path / ".archive" / name)


def change(index: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(index / INDEX)) as connection, connection:
        connection.execute(statement)


def test_a_copy_of_an_archive_is_left_alone_now_and_by_the_next_migration(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    copied(path, "copy")
    before = files(path / ".archive/copy")
    done = ondisk.migrate(path)
    assert done.left_alone == {"copy": str(Fault.COPY)}
    assert done.has_findings
    assert files(path / ".archive/copy") == before
    assert unordered(answers(path)) == unordered(EXPECTED["archived"])
    again = ondisk.migrate(path)
    assert not again.is_needed
    assert again.left_alone == done.left_alone


def test_of_two_twins_neither_is_taken_over_unless_one_is_left_out(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    copied(path, "twin")
    change(path / ".archive/twin", "UPDATE dataset SET seq = seq + 1")
    done = ondisk.migrate(path, dry_run=True)
    assert done.left_alone == {"last": str(Fault.TWIN), "twin": str(Fault.TWIN)}
    done = ondisk.migrate(path, leave_out=["twin"])
    assert done.left_alone == {}
    assert unordered(answers(path)) == unordered(EXPECTED["archived"])


def test_an_older_state_of_an_archive_is_left_alone_until_the_newer_one_is_forgotten(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    change(path / ".archive/last", "UPDATE dataset SET generation = generation - 1")
    change(path, "UPDATE archive SET count = 20 WHERE name = 'last'")
    done = ondisk.migrate(path)
    assert done.left_alone == {"last": str(Fault.OLDER)}
    with pytest.raises(SegmentMissing, match="last is away"):
        answers(path)
    again = ondisk.migrate(path)
    assert not again.is_needed
    assert again.left_alone == done.left_alone
    used = ondisk.migrate(path, forget=["last"])
    assert used.left_alone == {}
    assert list(used.forgotten) == ["last"]
    assert unordered(answers(path)) == unordered(EXPECTED["archived"])
    with ondisk.open(path) as dataset:
        assert dataset.info()["lost"] == used.forgotten["last"] > 0


def test_an_ordinary_dataset_in_a_replica_is_left_alone(tmp_path: Path) -> None:
    path = old("replica", tmp_path)
    other = old("pending", tmp_path)
    shutil.rmtree(other / ".archive")
    other.rename(path / ".archive/other")
    assert ondisk.migrate(path).left_alone == {"other": str(Fault.ORDINARY)}
    assert unordered(answers(path)) == unordered(EXPECTED["replica"])


# An archive that is left out


def test_an_archive_that_is_left_out_becomes_a_dataset_beside(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    done = migrated(path, leave_out=["2024"])
    target = tmp_path / "archived-2024"
    assert done.left_out == {"2024": str(target)}
    assert not (path / ".archive/2024").exists()
    here = [each for each in EXPECTED["archived"] if not each[2].startswith(".archive/2024/")]
    assert unordered(answers(path)) == unordered(here)
    assert data_of(answers(target)) == data_of([each for each in EXPECTED["archived"] if each not in here])
    with ondisk.merged([path, target]) as both:
        assert len([*both.query()]) == len(EXPECTED["archived"])
    assert not ondisk.migrate(path, leave_out=["2024"]).is_needed, "it is done"


def test_a_fix_after_a_killed_migration_reads_nothing_of_an_archive_that_is_left_out(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    with crashes.killed_in(migrate, "_open_once"):
        ondisk.migrate(path, leave_out=["2024"])
    with ondisk.open(path) as dataset:
        dataset.fix()
    here = [each for each in EXPECTED["archived"] if not each[2].startswith(".archive/2024/")]
    assert unordered(answers(path)) == unordered(here)
    ondisk.migrate(path, leave_out=["2024"])
    assert len(answers(tmp_path / "archived-2024")) == 7


def test_an_archive_is_not_left_out_if_a_fix_has_read_its_data_into_the_dataset(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    (path / ".archive/2024").rename(tmp_path / "2024")
    ondisk.migrate(path, forget=["2024"])
    (tmp_path / "2024").rename(path / ".archive/2024")
    with ondisk.open(path) as dataset:
        dataset.fix()
    refused(path, match="the dataset has segments in ", leave_out=["2024"])


def test_a_migration_that_fails_moves_no_archive(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    with patch.object(migrate, "swap_in", side_effect=LockError("somebody reads")), pytest.raises(LockError):
        ondisk.migrate(path, leave_out=["2024"])
    assert not (tmp_path / "archived-2024").exists()
    assert migrated(path, leave_out=["2024"]).done


def test_an_archive_is_not_left_out_if_that_cannot_be(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    (tmp_path / "archived-2024").mkdir()
    refused(path, AlreadyExists, "archived-2024 exists", leave_out=["2024"])
    for name in ("pending", "interrupted"):
        refused(old(name, tmp_path), match="lacks changes of the dataset", leave_out=["last"])


# Fields


def test_fields_that_an_archive_lacks_are_read_and_what_has_another_type_is_missing_there(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    config = (path / "dataset.toml").read_text()
    (path / "dataset.toml").write_text(f"{config}n = 'integer'\n" if "[fields]" in config else config)
    done = ondisk.migrate(path)
    assert all("n" in each.added for each in done.archives)
    with ondisk.open(path, read_only=True) as dataset:
        assert [each.metadata["n"] for each in dataset.query("n:>=0")] == [
            each.metadata["value"] for each in dataset.query()
        ]


def test_a_value_of_another_type_in_an_archive_is_missing_and_reported(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    (path / "dataset.toml").write_text((path / "dataset.toml").read_text() + 'n = "integer"\n')
    segment = path / ".archive/2024/2026/11-20.jsonl"
    times = segment.stat()
    segment.write_bytes(segment.read_bytes().replace(b'"n":12', b'"n":""'))
    os.utime(segment, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = ondisk.migrate(path)
    assert done.has_findings
    offenders = [each.location.segment for archive in done.archives for each in archive.offenders]
    assert offenders == [".archive/2024/2026/11-20.jsonl"] * 2
    assert unordered(answers_without(path, "n")) == unordered(EXPECTED["archived"])


def answers_without(path: Path, field: str) -> list[list[Any]]:
    return [[at, {name: value for name, value in values.items() if name != field}, segment]
            for at, values, segment in answers(path)]  # fmt: skip


# Killed


EVERY = int(os.environ.get("ONDISK_EVERY", "12"))  # 1 for all calls that change the disk
KILLED: dict[str, tuple[str, dict[str, Any]]] = {
    "duplicates": ("twice-yes", {}),
    "other numbers, two archives": ("foreign", {}),
    "offline": ("offline", {}),
    "left out": ("archived", {"leave_out": ["2024"]}),
}


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::ondisk.errors.DataOffline")
@pytest.mark.parametrize("case", KILLED)
def test_a_killed_migration_leaves_the_old_state_or_the_new_and_the_next_one_finishes(
    tmp_path: Path, case: str
) -> None:
    name, options = KILLED[case]
    whole = old(name, tmp_path / "whole")
    ondisk.migrate(whole, **options)
    expected = answers(whole)
    call, is_done = [*KILLED].index(case) % EVERY, False
    while not is_done:
        parent = tmp_path / str(call)
        path = old(name, parent)
        try:
            with crashes.killed_at(call):
                ondisk.migrate(path, **options)
            is_done = True
        except crashes.Killed:
            pass
        if sql(path, "SELECT version_num FROM alembic_version") == [("0005",)]:
            assert ondisk.migrate(path, dry_run=True, **options).is_needed
            assert (path / ".archive").exists()
        else:
            assert unordered(answers(path)) == unordered(expected), "complete before the files have other names"
        ondisk.migrate(path, **options)
        assert answers(path) == expected
        assert not ondisk.migrate(path, dry_run=True, **options).is_needed
        assert {each.name for each in path.rglob("*") if "new" in each.name or "next" in each.name} == set()
        if options:
            assert len(answers(parent / f"{name}-2024")) == 7
        elif name != "offline":
            check_whole(path)
        shutil.rmtree(parent)
        call += EVERY
    assert call > 20


def test_a_migration_that_was_killed_between_two_renames_is_finished_when_all_data_are_deleted(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    rename = migrate._rename

    def killed(directory: Directory, name: str) -> None:
        if (directory.path.name, name) == ("last", INDEX):
            raise crashes.Killed
        rename(directory, name)

    with patch.object(migrate, "_rename", killed), pytest.raises(crashes.Killed):
        ondisk.migrate(path)
    with ondisk.open(path) as dataset:
        dataset.delete("reftime: <=2026")
        dataset.repack()
    assert ondisk.migrate(path).unfinished == ["last"]
    assert not [*path.glob(".archive/*/index.sqlite")]


@pytest.mark.check
def test_a_dry_run_tells_the_plan_of_archives_also_if_data_of_the_dataset_do_not_allow_it(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    config = path / "dataset.toml"
    config.write_text(re.sub(r"unique = .*", 'unique = ["station"]', config.read_text()))
    plan = ondisk.migrate(path, dry_run=True)
    assert plan.offending
    assert {each.revision for each in plan.archives} == {plan.revision}
    assert {each.unique for each in plan.archives} == {plan.unique}
