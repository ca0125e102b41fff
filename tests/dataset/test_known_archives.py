"""Archives that a dataset knows: what touches one that is away raises; one of another dataset is not taken for it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from worlds import lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.dataset.known_archives import Fault, Unusable, away, faults, touching
from ondisk.errors import ArchiveOffline, NotFound, StateError
from ondisk.index import INDEX
from ondisk.index.segment_rows import KnownArchive
from ondisk.maintenance.maintain import maintain
from ondisk.step import ALWAYS, NEVER, Interval

A, B = KnownArchive("a", "last", Interval(10, 20)), KnownArchive("b", "2025", None)

AWAY = {
    "none known": ([], set(), [], [], [], []),
    "there": ([A, B], {"a", "b"}, [], [], [], []),
    "there, and others": ([A], {"a", "c"}, [], [], [], []),
    "gone": ([A, B], {"b"}, [], [], [], [A]),
    "gone, but it was empty": ([B], set(), [], [], [], []),
    "another in its place": ([A], {"c"}, [], [], [], [A]),
    "its index was lost": ([A], {"c"}, ["last"], [], [], []),
    "its summary is there": ([A, B], {"b"}, [], ["last"], [], []),
    "renamed, then taken offline": ([A], set(), [], ["2024"], [Interval(12, 20)], []),
    "the summary of another": ([A], set(), [], ["2024"], [Interval(12, 21)], [A]),
}


@pytest.mark.parametrize("case", AWAY)
def test_an_archive_is_away_if_nothing_stands_for_it(case: str) -> None:
    known, uuids, untrusted, offline, spans, expected = AWAY[case]
    assert away(known, uuids, untrusted, offline, lambda: spans) == expected


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(ALWAYS, ["a"]), (NEVER, []), (Interval(0, 10), []), (Interval(0, 11), ["a"]), (Interval(20, 30), [])],
)
def test_an_archive_is_touched_by_times_in_its_interval(interval: Interval, expected: list[str]) -> None:
    missing = [Unusable(each.uuid, each.name, Fault.AWAY, each.interval) for each in (A, B)]
    assert [each.uuid for each in touching(missing, interval)] == expected


LAST = KnownArchive("a", "last", Interval(10, 20), 7, 3)
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
def test_an_archive_is_used_if_it_is_the_one_that_is_recorded(case: str) -> None:
    known, present, expected = FAULTS[case]
    assert faults(known, present, MAIN, lambda _: False, {}) == expected


OTHER, COPY = KnownArchive("b", "last", Interval(10, 20), 9, 4), KnownArchive("a", "copy", Interval(10, 20), 7, 3)
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
    assert faults(known, present, MAIN, lambda _: False, {"": [], "last": [], "copy": [], name: ["a"]}) == expected


def test_an_archive_whose_index_was_lost_may_have_other_numbers() -> None:
    assert faults([LAST], {"last": ("a", 6, 3)}, MAIN, lambda _: True, {}) == {}
    assert faults([LAST], {"last": ("b", 6, 3)}, MAIN, lambda _: True, {}) == {}


def test_a_copy_does_not_take_the_place_of_an_archive_whose_index_was_lost() -> None:
    present = {"copy": ("a", 7, 3)}
    assert faults([LAST], present, MAIN, lambda name: name == "last", {}) == {"copy": Fault.COPY}


T = datetime(2024, 3, 1, 12, tzinfo=UTC)
LATE = T + timedelta(days=10)  # in the dataset itself


def datum(day: int, n: int = 0) -> Datum:
    return Datum(T + timedelta(days=day), {"n": n}, {})


@pytest.fixture
def dataset(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Return a dataset of which three of five segments are archived."""
    return filled(create("dataset", fields={"n": "integer"}, unique=["reftime", "n"]))


def filled(dataset: ondisk.Dataset) -> ondisk.Dataset:
    dataset.append([datum(day) for day in (0, 1, 2, 10, 11)])
    dataset.archive(*(f"2024/03-0{day}.jsonl" for day in (1, 2, 3)))
    return dataset


@pytest.fixture
def archive(dataset: ondisk.Dataset) -> Path:
    return dataset.path / ".archive/last"


def known(dataset: ondisk.Dataset) -> list[tuple[str, int]]:
    return sql(dataset.path, 'SELECT name, ("end" - "begin") / 86400000000 FROM archive ORDER BY name, "begin" DESC')


def test_an_archive_is_recorded_when_data_are_archived_and_when_the_dataset_is_opened(dataset, archive):
    assert known(dataset) == [("last", 3)]
    archive.rename(archive.with_name("2024"))
    assert len([*dataset.query()]) == 5  # it has the same UUID
    ondisk.open(dataset.path).close()
    assert known(dataset) == [("2024", 3)]
    dataset.archive("2024/03-11.jsonl")
    assert known(dataset) == [("2024", 3), ("last", 1)]
    dataset.unarchive("2024/03-11.jsonl")
    assert known(dataset) == [("2024", 3), ("last", None)]
    shutil.rmtree(archive)  # it is empty
    assert len([*dataset.query()]) == 5
    assert dataset.check().is_clean
    dataset.archive("2024/03-11.jsonl")
    assert known(dataset) == [("2024", 3), ("last", 1), ("last", None)]


@pytest.mark.parametrize("place", [".archive", ".archive/last"])
def test_what_touches_an_archive_that_is_away_raises(dataset, tmp_path, place):
    (dataset.path / place).rename(tmp_path / "away")
    for read in (
        lambda: [*dataset.query()],
        lambda: [*dataset.query("reftime: =2024-03-03")],
        lambda: [*dataset.query(reftime=T, n=0)],
        lambda: [*dataset.payloads()],
        lambda: dataset.summary(),
        lambda: dataset.delete("reftime: <2024-03-05"),
        lambda: dataset.append([datum(0)]),
        lambda: dataset.archive("2024/03-11.jsonl"),
    ):
        with pytest.raises(
            StateError, match=r"/\.archive/last with data from 2024-03-01 to 2024-03-04 is missing"
        ) as caught:
            read()
        assert f"`ondisk fix {dataset.path} --forget-archive last --yes`" in caught.value.hint
    assert len([*dataset.query("reftime: >=2024-03-05")]) == 2
    assert len([*dataset.query(reftime=LATE, n=0)]) == 1
    assert dataset.append([datum(10), datum(12)]).imported == 1
    assert dataset.delete("reftime: =2024-03-13") == 1
    with ondisk.open(dataset.path, read_only=True) as reader, pytest.raises(StateError):
        reader.summary()
    result = maintain(dataset.path)
    assert (result.exit_code, result.missing) == (9, 1)
    assert [each.segment for each in result.findings] == [".archive/last"]
    (tmp_path / "away").rename(dataset.path / place)
    assert maintain(dataset.path).exit_code == 0
    assert len([*dataset.query()]) == 5
    assert dataset.append([datum(0)]).duplicates == 1


def test_appends_of_data_that_are_never_duplicates_go_on(create, tmp_path):
    dataset = filled(create("other", fields={"n": "integer"}))
    (dataset.path / ".archive").rename(tmp_path / "away")
    assert dataset.append([datum(0)]).imported == 1


def test_repack_archives_nothing_while_the_archive_is_away_and_does_all_else(dataset, archive, tmp_path):
    archive.rename(tmp_path / "away")
    dataset.delete(f"reftime: >={LATE + timedelta(days=1):%Y-%m-%d}")
    dataset.close()
    toml = dataset.path / "dataset.toml"
    toml.write_text("archive_age = 100\n" + toml.read_text())
    result = maintain(dataset.path)
    assert (result.exit_code, result.error) == (9, None)
    assert [each.action for each in result.done] == ["delete"]
    assert {each.segment: each.action for each in result.findings} == {".archive/last": None, "2024/03-11.jsonl": None}
    assert not archive.exists()
    (tmp_path / "away").rename(archive)
    assert maintain(dataset.path).exit_code == 0
    assert [entry.name for entry in sorted(archive.glob("2024/*"))][-1] == "03-11.jsonl"


def test_an_archive_that_is_gone_for_good_is_forgotten_on_request(dataset, archive):
    shutil.rmtree(archive)
    with pytest.raises(NotFound, match="no archive '2024' is missing") as caught:
        dataset.fix(forget_archive="2024")
    span = "with data from 2024-03-01 to 2024-03-04"
    assert caught.value.hint == f"Missing archives, by their names at the last write: last {span}."
    assert dataset.info()["missing"] == ["last"]
    (forgotten,) = dataset.fix(forget_archive="last").findings
    assert (forgotten.segment, forgotten.action, forgotten.lost) == (".archive/last", "forget", 3)
    assert dataset.info()["lost"] == 3
    assert dataset.info()["missing"] == []
    assert len([*dataset.query()]) == 2
    assert dataset.check().is_clean
    assert dataset.append([datum(0)]).imported == 1
    dataset.archive("2024/03-01.jsonl")
    assert known(dataset) == [("last", 1)]


@pytest.mark.parametrize("name", ["last", "2024"])
def test_a_summary_stands_for_an_archive_that_is_offline(dataset, archive, tmp_path, name):
    with ondisk.open(archive, read_only=True) as last:
        found = last.summary()
    text = (
        f'{{"count":{found.count},"size":{found.size},"begin":"{found.begin:%Y-%m-%dT%H:%M:%SZ}",'
        f'"end":"{found.end:%Y-%m-%dT%H:%M:%SZ}","fields":{{}}}}'
    )
    (archive.parent / f"{name}.summary").write_text(text)
    archive.rename(tmp_path / "tape")
    with pytest.warns(ArchiveOffline):
        assert len([*dataset.query()]) == 2
    assert dataset.check().is_clean


def test_the_archive_of_another_dataset_is_left_alone(dataset, archive, create, tmp_path):
    other = filled(create("other", fields={"n": "integer"}, unique=["reftime", "n"]))
    other.close()
    archive.rename(tmp_path / "away")
    shutil.copytree(other.path / ".archive/last", archive)
    before = {path: path.read_bytes() for path in archive.glob("2024/*")}
    dataset.close()
    for _ in range(2):
        result = maintain(dataset.path)
        assert (result.exit_code, result.done) == (9, [])
        assert "another archive is in its place" in result.findings[0].reasons[0]
    with ondisk.open(dataset.path) as dataset:
        with pytest.raises(StateError, match="another archive is in its place"):
            dataset.archive("2024/03-11.jsonl")
        with pytest.raises(StateError, match="another archive is in its place"):
            [*dataset.query()]
        assert len([*dataset.query("reftime: >=2024-03-05")]) == 2
    assert {path: path.read_bytes() for path in archive.glob("2024/*")} == before
    shutil.rmtree(archive)
    (tmp_path / "away").rename(archive)
    assert maintain(dataset.path).exit_code == 0


def test_an_archive_whose_index_was_lost_is_still_the_same(dataset, archive):
    dataset.close()
    lose_index(archive)
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert len([*reader.query()]) == 2
    result = maintain(dataset.path)
    assert (result.exit_code, result.error) == (0, None)
    assert known(dataset) == [("last", 3)]
    with ondisk.open(dataset.path) as again:
        assert len([*again.query()]) == 5


@pytest.fixture
def other(dataset, archive):
    """Return an archive that repack does not fill, which the dataset knows."""
    dataset.close()
    archive = archive.rename(archive.with_name("2024"))
    ondisk.open(dataset.path).close()
    assert known(dataset) == [("2024", 3)]
    return archive


def rebuilt(archive):
    ondisk.rebuild(archive)


def exchanged(archive):
    """Put an older state of the index back."""
    with sqlite3.connect(archive / "index.sqlite") as index:
        index.execute("UPDATE dataset SET seq = seq - 1")
    index.close()


def test_an_archive_of_another_name_whose_index_was_lost_is_reported_until_it_is_fixed(dataset, archive):
    lose_index(archive)
    dataset.append([datum(12)])
    dataset.close()
    archive = archive.rename(archive.with_name("2024"))
    with ondisk.open(dataset.path) as again:
        for verb in (again.check, again.fix):
            found, _ = verb().findings  # and the archive is not recognised while its index is empty
            assert (found.segment, found.state.name) == (".archive/2024", "UNALIGNED")
            assert f"run `ondisk fix {archive} --yes`" in found.reasons[0]
    with ondisk.open(archive) as fixed:
        fixed.fix()
    with ondisk.open(dataset.path) as again:
        assert again.check().is_clean
        assert again.summary().count == 6


TIMES = [(lose_index, 1), (rebuilt, 1), (rebuilt, 2), (exchanged, 1), (exchanged, 2)]


@pytest.mark.parametrize(("end", "times"), TIMES)
@pytest.mark.parametrize("name", ["2024", "renamed"])
def test_another_archive_that_was_fixed_by_itself_is_still_the_same(name, times, end, dataset, other):
    for _ in range(times):
        end(other)
        with ondisk.open(other) as fixing:
            fixing.fix()
            assert not fixing.needs_check
    other.rename(other.with_name(name))
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert len([*reader.query()]) == 5
    with ondisk.open(dataset.path) as again:
        assert len([*again.query()]) == 5
        with pytest.raises(NotFound, match="None is missing"):
            again.fix(forget_archive="2024")
        assert again.check().is_clean
        assert again.info()["lost"] == 0
    assert known(dataset) == [(name, 3)]
    assert maintain(dataset.path).exit_code == 0


def test_what_an_older_state_lacks_that_was_rebuilt_is_counted_as_lost(dataset, archive, tmp_path):
    shutil.copytree(archive, tmp_path / "older")
    dataset.archive("2024/03-11.jsonl")
    dataset.close()
    archive = archive.rename(archive.with_name("2024"))
    ondisk.open(dataset.path).close()
    shutil.rmtree(archive)
    (tmp_path / "older").rename(archive)
    ondisk.rebuild(archive)
    with ondisk.open(archive) as fixing:
        fixing.fix()
    with ondisk.open(dataset.path) as again:
        assert len([*again.query()]) == 4
        assert again.info()["lost"] == 1
    assert known(dataset) == [("2024", 3)]


def copied(dataset, archive, name):
    shutil.copytree(archive, archive.with_name(name))
    return archive.with_name(name)


def test_a_copy_of_an_archive_is_not_used(dataset, archive):
    copy = copied(dataset, archive, "copy")
    before = {path: path.read_bytes() for path in copy.glob("2024/*")}
    dataset.archive("2024/03-11.jsonl")
    assert len([*dataset.query()]) == 5
    assert dataset.delete("reftime: =2024-03-02") == 1
    dataset.close()
    for _ in range(2):
        result = maintain(dataset.path)
        assert (result.exit_code, result.error) == (9, None)
        (found,) = result.findings
        assert found.segment == ".archive/copy"
        assert found.reasons[0].startswith(f"the archive {copy} is a copy of {archive}. Move it out of {copy.parent}.")
    assert {path: path.read_bytes() for path in before} == before
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert len([*reader.query()]) == 4
    shutil.rmtree(copy)
    assert maintain(dataset.path).exit_code == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_a_copy_of_an_archive_is_not_used_after_the_index_of_the_archive_was_lost(dataset, archive, tmp_path, is_late):
    """Whether the copy is there already, or comes back later: its data would be the only ones after a repack."""
    copy = copied(dataset, archive, "copy")
    if is_late:
        copy.rename(tmp_path / "away")
    dataset.close()
    lose_index(archive)
    with ondisk.open(dataset.path) as again:
        again.fix()
    if is_late:
        (tmp_path / "away").rename(copy)
    for _ in range(2):
        assert [each.segment for each in maintain(dataset.path).findings] == [".archive/copy"]
    assert (archive / "2024/03-01.jsonl").exists()
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert len([*reader.query()]) == 5


def test_a_copy_of_an_archive_that_may_be_the_newer_one_keeps_both_from_use(dataset, archive, tmp_path):
    copied(dataset, archive, "copy").rename(tmp_path / "copy")
    dataset.archive("2024/03-11.jsonl")
    archive.rename(archive.with_name("newer"))
    (tmp_path / "copy").rename(archive)
    message = r"/\.archive/(last|newer) with data from 2024-03-01 to 2024-03-12 and .* have, or had, the same UUID"
    with pytest.raises(StateError, match=message):
        [*dataset.query()]
    with pytest.raises(StateError, match=message):
        dataset.append([datum(0)])
    with pytest.raises(StateError, match=message):
        dataset.archive("2024/03-12.jsonl")
    with pytest.raises(NotFound, match="no archive 'last' is missing"):
        dataset.fix(forget_archive="last")
    assert len([*dataset.query("reftime: =2024-03-12")]) == 1
    result = maintain(dataset.path)
    assert [each.segment for each in result.findings] == [".archive/last", ".archive/newer"]
    shutil.rmtree(archive)
    assert maintain(dataset.path).exit_code == 0
    assert len([*dataset.query()]) == 5


def test_an_older_state_of_an_archive_is_not_taken_for_it(dataset, archive, tmp_path):
    shutil.copytree(archive, tmp_path / "older")
    dataset.archive("2024/03-11.jsonl")
    dataset.close()
    archive.rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "older", archive)
    for _ in range(2):
        result = maintain(dataset.path)
        assert (result.exit_code, result.done) == (9, [])
        assert "an older state of it is in its place" in result.findings[0].reasons[0]
    with ondisk.open(dataset.path) as again:
        with pytest.raises(StateError, match="with data from 2024-03-01 to 2024-03-12 is missing: an older state of"):
            [*again.query()]
        with pytest.raises(StateError):
            again.unarchive("2024/03-01.jsonl")
        assert len([*again.query("reftime: =2024-03-12")]) == 1
    shutil.rmtree(archive)
    shutil.copytree(tmp_path / "newer", archive)
    assert maintain(dataset.path).exit_code == 0
    shutil.rmtree(archive)
    (tmp_path / "older").rename(archive)
    with ondisk.open(dataset.path) as again:
        assert again.fix(forget_archive="last").lost == 1
        assert again.info()["lost"] == 1
        assert len([*again.query()]) == 4
    shutil.rmtree(archive)  # it is newer than what was recorded when the older one was accepted
    (tmp_path / "newer").rename(archive)
    with ondisk.open(dataset.path) as again:
        assert len([*again.query()]) == 5


def test_deleted_data_do_not_come_back_with_an_older_archive_that_is_used_from_now_on(dataset, archive, tmp_path):
    shutil.copytree(archive, tmp_path / "older")
    assert dataset.delete("reftime: =2024-03-02") == 1
    dataset.archive("2024/03-11.jsonl")
    shutil.rmtree(archive)
    (tmp_path / "older").rename(archive)
    dataset.fix(forget_archive="last")
    assert [each.reftime.day for each in dataset.query()] == [1, 3, 12]


def test_the_record_of_an_archive_counts_its_data(dataset, archive):
    def count() -> list[tuple[int]]:
        return sql(dataset.path, 'SELECT "count" FROM archive')

    assert count() == [(3,)]
    dataset.append([datum(10, 1), datum(10, 2)])
    dataset.archive("2024/03-11.jsonl")
    assert count() == [(6,)]
    dataset.unarchive("2024/03-02.jsonl")
    assert count() == [(5,)]
    dataset.delete("reftime: =2024-03-11; n: 2")
    dataset.close()
    ondisk.open(dataset.path).close()
    assert count() == [(4,)]


def test_the_index_of_another_archive_does_not_make_an_archive_a_copy_of_it(dataset, archive, tmp_path):
    with contextlib.closing(sqlite3.connect(archive / INDEX)) as index:
        index.execute("VACUUM INTO ?", (str(tmp_path / INDEX),))
    archive.rename(archive.with_name("2024"))
    dataset.archive("2024/03-11.jsonl")
    dataset.close()
    lose_index(archive)
    shutil.copy(tmp_path / INDEX, archive)
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert reader.needs_check
    maintain(dataset.path)
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert [each.reftime for each in reader.query()] == [datum(day).reftime for day in (0, 1, 2, 10, 11)]
        assert reader.info()["lost"] == 0
