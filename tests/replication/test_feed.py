"""The change feed returns each change once, in order, wherever the bytes are; or an error, never a gap."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from kit import EVERY_TYPE, DatasetMachine, machine_for

import ondisk
from ondisk import Dataset, DatasetConfig, Datum
from ondisk.errors import InvalidInput, NeedsCheck, TokenExpired, TokenForeign
from ondisk.replication.feed import Change, Kind
from ondisk.replication.token import Token

FIELDS = {"a": "integer"}
YEAR = 365 * 86_400_000_000
FIRST, SECOND = "2026/11-01.jsonl", "2026/11-02.jsonl"


class Follower:
    """Applies changes to a plain mapping, number → reftime and data, and checks that each comes once."""

    def __init__(self) -> None:
        self.token: Token | None = None
        self.data: dict[int, tuple[Any, str]] = {}
        self.last = 0

    def follow(self, dataset: Dataset, max_bytes: int = 1024 * 1024, answers: int = 1_000_000) -> list[Change]:
        """Read up to some answers, and return their changes."""
        all_: list[Change] = []
        for _ in range(answers):
            before = self.token
            changes, self.token, lag = dataset.changes(before, max_bytes)
            if not changes:
                assert (lag.changes, lag.bytes) == (0, 0)
                break
            for change in changes:
                self._apply(change)
            assert max(self.token.offset, self.last) == self.token.offset
            all_ += changes
        return all_

    def _apply(self, change: Change) -> None:
        assert change.seq > self.last
        self.last = change.seq
        if change.kind is Kind.APPENDED:
            assert change.datum is not None
            self.data[change.seq] = shown(change.datum)
        else:
            assert change.target is not None
            self.data.pop(change.target, None)  # it may have been deleted between two answers

    def check(self, dataset: Dataset) -> None:
        assert Counter(self.data.values()) == Counter(map(shown, dataset.query()))


def shown(datum: Datum) -> tuple[Any, str]:
    return datum.reftime, repr(datum.data)


class FollowedMachine(DatasetMachine):
    """Follows the dataset of the state machine from several places, some changes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.followers: list[Follower] = [Follower()]

    @precondition(lambda self: len(self.followers) < 4)
    @rule()
    def begin_to_follow(self) -> None:
        self.followers.append(Follower())

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 200, 1024 * 1024]), answers=st.integers(1, 3))
    def follow(self, data: st.DataObject, max_bytes: int, answers: int) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        self._follow(follower, max_bytes, answers)

    @invariant()
    def whoever_follows_to_the_end_has_the_data(self) -> None:
        if self.model.lost:
            with pytest.raises(NeedsCheck):
                self.dataset.changes()
            return
        follower = self.followers[0]
        self._follow(follower)
        follower.check(self.dataset)

    def teardown(self) -> None:
        try:
            if not self.model.lost:
                for follower in self.followers:
                    self._follow(follower)
                    follower.check(self.dataset)
        finally:
            super().teardown()

    def _follow(self, follower: Follower, max_bytes: int = 1024 * 1024, answers: int = 1_000_000) -> None:
        if self.model.lost:
            return
        try:
            follower.follow(self.dataset, max_bytes, answers)
        except TokenForeign:  # the index was rebuilt
            assert follower.token is not None
            assert follower.token.dataset != self.dataset.info()["uuid"]
            self._begin_again(follower, max_bytes, answers)

    def _begin_again(self, follower: Follower, max_bytes: int, answers: int) -> None:
        follower.__init__()  # type: ignore[misc]
        self._follow(follower, max_bytes, answers)


CONFIGS: list[dict[str, Any]] = [
    {"format": "vm2", "step": "daily", "unique": ["reftime", "area", "product"], "replace": "yes",
     "fields": {"area": "text", "product": "text"}},
    {"format": "jsonl", "step": "monthly", "unique": ["reftime", "station"], "replace": "newer",
     "version_field": "level", "fields": {"station": "integer", "level": "real"}},
    {"format": "seg", "step": "weekly", "fields": EVERY_TYPE},
    {"format": "blob", "step": "daily", "unique": ["station"], "replace": "yes", "fields": EVERY_TYPE},
]  # fmt: skip


def machine(values: dict[str, Any]) -> type[DatasetMachine]:
    return machine_for(DatasetConfig.from_mapping(values), FollowedMachine)


@pytest.mark.parametrize("values", CONFIGS, ids=lambda values: values["format"])
def test_whoever_follows_the_feed_has_the_data_of_the_dataset(values):
    run_state_machine_as_test(machine(values), settings=settings(max_examples=5, stateful_step_count=20))


@pytest.mark.slow
@pytest.mark.parametrize("values", CONFIGS, ids=lambda values: values["format"])
def test_whoever_follows_the_feed_has_the_data_of_the_dataset_in_the_long_run(values):
    run_state_machine_as_test(machine(values), settings=settings.get_profile("machines"))


@pytest.fixture
def dataset(create) -> Dataset:
    return create(fields=FIELDS, unique=["reftime", "a"], replace="yes")


def datum(day: int, a: int, text: str = "x") -> Datum:
    return Datum(datetime(2026, 11, day, tzinfo=UTC), {"a": a}, {"text": text})


def kinds(changes: list[Change]) -> list[tuple[Kind, int | None]]:
    return [(each.kind, each.target) for each in changes]


def behind_the_scenes(dataset: Dataset, sql: str) -> list[tuple[Any, ...]]:
    """Execute SQL in the index of a dataset that no process has open."""
    with closing(sqlite3.connect(dataset.path / "index.sqlite", isolation_level=None)) as index:
        return index.execute(sql).fetchall()


def test_an_empty_dataset_has_no_changes(dataset):
    changes, token, lag = dataset.changes()
    assert (changes, token.offset, lag) == ([], 0, (0, 0))
    assert dataset.changes(token) == (changes, token, lag)


def test_appends_replacements_and_deletions_come_in_order(dataset):
    follower = Follower()
    dataset.append([datum(1, 1), datum(2, 1)])
    assert kinds(follower.follow(dataset)) == [(Kind.APPENDED, None)] * 2
    dataset.append([datum(1, 1, "new")])
    dataset.delete("reftime: =2026-11-02")
    dataset.append([datum(3, 1)])
    first, second = sorted(follower.data)
    assert kinds(follower.follow(dataset)) == [
        (Kind.APPENDED, None), (Kind.DELETED, first), (Kind.DELETED, second), (Kind.APPENDED, None)]  # fmt: skip
    follower.check(dataset)


def test_what_was_deleted_before_it_was_read_is_not_in_the_feed(dataset):
    dataset.append([datum(1, 1), datum(2, 1)])
    dataset.delete("reftime: =2026-11-01")
    follower = Follower()
    assert kinds(follower.follow(dataset)) == [(Kind.APPENDED, None)]
    dataset.append([datum(4, 1)])
    dataset.delete("reftime: =2026-11-04")
    assert follower.follow(dataset) == []
    assert (follower.token.offset, follower.token.index_start) == (5, -1)


def test_an_answer_has_one_change_however_large_and_the_lag_says_what_is_left(dataset):
    dataset.append([datum(1, a, "x" * 5000) for a in range(3)])
    changes, token, lag = dataset.changes(max_bytes=1)
    assert len(changes) == 1
    assert lag.changes == 2
    assert lag.bytes > 10_000
    changes, token, lag = dataset.changes(token, max_bytes=11_000)
    assert (len(changes), lag) == (2, (0, 0))


def test_the_lag_of_many_data_is_estimated(dataset):
    dataset.append(datum(1, a, "x" * 100) for a in range(3000))
    size = dataset.summary().size
    lag = dataset.changes(max_bytes=1).lag
    assert lag.changes == 2999
    assert abs(lag.bytes - size) < size / 100


def test_deletions_while_all_data_are_read_for_the_first_time_are_not_missed(dataset):
    dataset.append(datum(1, a) for a in range(6))
    follower = Follower()
    follower.follow(dataset, max_bytes=1, answers=3)
    dataset.delete("a: =0")
    dataset.delete("a: =4")
    follower.follow(dataset, max_bytes=1)
    follower.check(dataset)
    assert len(follower.data) == 4


def test_repack_archive_and_unarchive_are_no_changes(dataset):
    dataset.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    follower = Follower()
    follower.follow(dataset)
    dataset.delete("a: =2")
    assert len(follower.follow(dataset)) == 1
    dataset.repack()
    assert follower.follow(dataset) == []
    dataset.archive(FIRST, SECOND)
    assert follower.follow(dataset) == []
    follower.check(dataset)
    late = Follower()
    late.follow(dataset)
    late.check(dataset)
    dataset.unarchive(f".archive/last/{FIRST}")
    assert (follower.follow(dataset), late.follow(dataset)) == ([], [])


def test_archived_data_that_are_deleted_or_replaced_come_once(dataset):
    dataset.append([datum(1, 1), datum(1, 2)])
    follower = Follower()
    follower.follow(dataset)
    dataset.archive(FIRST)
    dataset.append([datum(1, 1, "new")])
    dataset.delete("a: =2")
    assert [kind for kind, _ in kinds(follower.follow(dataset))].count(Kind.DELETED) == 2
    follower.check(dataset)


@pytest.fixture
def archived(dataset) -> Follower:
    """A dataset of two data, one of which is in the archive, and who has read one of them."""
    follower = Follower()
    dataset.append([datum(1, 1)])
    follower.follow(dataset)
    dataset.append([datum(2, 1)])
    dataset.archive(FIRST, SECOND)
    return follower


def test_data_in_an_archive_that_is_away_are_unreadable_and_nobody_waits_for_them(dataset, archived):
    place = dataset.path / ".archive/last"
    place.rename(dataset.path / "elsewhere")
    dataset.append([datum(3, 3)])
    assert kinds(dataset.changes(archived.token).changes) == [(Kind.UNREADABLE, None), (Kind.APPENDED, None)]
    (dataset.path / "elsewhere").rename(place)
    archived.follow(dataset)
    archived.check(dataset)


def test_lost_data_are_not_deletions(dataset):
    dataset.append([datum(1, 1), datum(2, 1), datum(2, 2)])
    follower = Follower()
    follower.follow(dataset)
    (dataset.path / FIRST).unlink()
    whole = (dataset.path / SECOND).read_bytes()
    (dataset.path / SECOND).write_bytes(whole[: len(whole) // 2])
    dataset.fix(forget=True, salvage=[SECOND])
    assert {kind for kind, _ in kinds(follower.follow(dataset))} == {Kind.LOST}
    follower.check(dataset)


def test_data_that_were_too_old_are_not_deletions_by_users(create):
    dataset = create(delete_age=30)
    old = Datum(datetime(1990, 1, 1, tzinfo=UTC), {}, {"text": "x"})
    dataset.close()
    (dataset.path / "dataset.toml").write_text('format = "jsonl"\nstep = "daily"')
    with ondisk.open(dataset.path) as young:
        young.append([old, *(datum(day, 1) for day in (1, 2, 3))])
        follower = Follower()
        follower.follow(young)
    (dataset.path / "dataset.toml").write_text('format = "jsonl"\nstep = "daily"\ndelete_age = 3650')
    with ondisk.open(dataset.path) as aged:
        aged.repack()
        assert [kind for kind, _ in kinds(follower.follow(aged))] == [Kind.AGED]
        follower.check(aged)


@pytest.mark.parametrize(("format", "others"), [("seg", Kind.APPENDED), ("jsonl", Kind.UNREADABLE)])
def test_a_datum_that_cannot_be_read_is_named_and_others_come_if_they_have_checksums(create, format, others):
    dataset = create(format=format, compression="none", fields=FIELDS)
    dataset.append([datum(1, a, "x" * 3000) for a in range(4)])  # the last 4 KiB are compared when a file is opened
    dataset.append([datum(2, 1)])
    path = dataset.path / f"2026/11-01.{format}"
    content = bytearray(path.read_bytes())
    at = content.index(b"xxx", content.index(b"xxx") + 3000)
    content[at : at + 2000] = b"?" * 2000
    with path.open("r+b") as file:
        file.write(content)
    changes, token, _ = dataset.changes()
    assert [each.kind for each in changes] == [others, Kind.UNREADABLE, others, others, Kind.APPENDED]
    assert path.name in str(changes[1].error)
    assert token.offset == 5


def test_a_lost_index_makes_tokens_foreign(dataset):
    dataset.append([datum(1, 1)])
    _, token, _ = dataset.changes()
    dataset.close()
    for index in dataset.path.glob("index.sqlite*"):
        index.unlink()
    with ondisk.open(dataset.path) as again:
        with pytest.raises(NeedsCheck):
            again.changes(token)
        again.fix()
        with pytest.raises(TokenForeign, match="another dataset, or its index was rebuilt"):
            again.changes(token)


@pytest.fixture
def restored(dataset) -> Iterator[Callable[[], Dataset]]:
    """Put back the state that the whole dataset had when the test began to use this, with another writer."""
    dataset.append([datum(1, 1), datum(1, 2)])
    dataset.close()
    backup = shutil.copytree(dataset.path, dataset.path.with_name("backup"))
    opened: list[Dataset] = []

    def restore() -> Dataset:
        shutil.rmtree(dataset.path)
        shutil.copytree(backup, dataset.path)
        opened.append(ondisk.open(dataset.path))
        return opened[-1]

    yield restore
    for each in opened:
        each.close()


@pytest.mark.parametrize("later", [1, 2, 5])
def test_a_dataset_that_was_restored_from_a_backup_is_noticed_also_after_more_changes(dataset, restored, later):
    follower, early = Follower(), Follower()
    with ondisk.open(dataset.path) as before:
        early.follow(before, max_bytes=1, answers=1)
        before.append([datum(2, 1), datum(2, 2)])
        follower.follow(before)
    after = restored()
    for number in range(later):
        after.append([datum(3, number)])
    with pytest.raises(TokenForeign, match="an earlier state of "):
        follower.follow(after)
    early.follow(after)  # its token is older than the backup
    early.check(after)


def test_a_dataset_that_was_restored_is_noticed_also_after_its_deletions_were_forgotten(create):
    dataset = create(fields=FIELDS, deletions_kept=30)
    dataset.append([datum(1, 1)])
    dataset.close()
    backup = shutil.copytree(dataset.path, dataset.path.with_name("backup"))
    with ondisk.open(dataset.path) as before:
        before.append([datum(2, 1), datum(2, 2)])
        token = before.changes()[1]
    shutil.rmtree(dataset.path)
    backup.rename(dataset.path)
    with ondisk.open(dataset.path) as after:
        after.append([datum(3, a) for a in range(5)])
        after.delete("a: =0")
    behind_the_scenes(dataset, f"UPDATE session SET committed_at = committed_at - {YEAR}")
    with ondisk.open(dataset.path) as after:
        after.append([datum(4, 1)])
        after.repack()
        assert behind_the_scenes(dataset, "SELECT expired FROM dataset") == [(7,)]
        with pytest.raises(TokenForeign, match="an earlier state of "):
            after.changes(token)


def test_a_token_of_a_reading_that_began_before_a_restore_is_noticed(dataset, restored):
    follower = Follower()
    with ondisk.open(dataset.path) as before:
        before.append([datum(2, 1), datum(2, 2)])
        follower.follow(before, max_bytes=1, answers=1)
    assert follower.token.offset == 1
    after = restored()
    after.delete("a: =1")
    after.append(datum(5, number) for number in range(5))
    with pytest.raises(TokenForeign):
        follower.follow(after)


def test_each_opening_for_writing_begins_a_session_when_it_changes_something(dataset):
    dataset.append([datum(1, 1)])
    dataset.append([datum(1, 2)])
    sessions = [dataset.changes()[1].session]
    for number in range(2):
        with ondisk.open(dataset.path) as writer:
            assert writer.changes()[1].session == sessions[-1]
            writer.append([datum(2, number)])
            sessions.append(writer.changes()[1].session)
    dataset.append([datum(3, 1)])
    assert dataset.changes()[1].session == sessions[0] != sessions[1]
    assert len({*sessions}) == 3
    dataset.close()
    assert behind_the_scenes(dataset, "SELECT first FROM session ORDER BY first") == [(1,), (3,), (4,), (5,)]


@pytest.fixture
def trimmed(create) -> tuple[Dataset, dict[str, Token]]:
    """A dataset whose older deletions a repack has forgotten, and tokens from before and after."""
    dataset = create(fields=FIELDS, deletions_kept=30)
    dataset.append([datum(1, a) for a in range(6)])
    tokens = {"partial": dataset.changes(max_bytes=1)[1], "before": dataset.changes()[1]}
    dataset.delete("a: =0")
    tokens["after"] = dataset.changes()[1]
    dataset.close()
    behind_the_scenes(dataset, f"UPDATE session SET committed_at = committed_at - {YEAR}")
    with ondisk.open(dataset.path) as writer:
        tokens["reading"] = writer.changes(max_bytes=1)[1]
        writer.delete("a: =1")
        writer.repack()
    return dataset, tokens


def test_trimmed_deletions_expire_the_tokens_that_lack_them_and_no_others(trimmed):
    dataset, tokens = trimmed
    assert behind_the_scenes(dataset, "SELECT seq FROM deletion") == [(8,)]
    with ondisk.open(dataset.path, read_only=True) as reader:
        for name in ("partial", "before"):
            with pytest.raises(TokenExpired, match="not all deletions up to 7 are known any more"):
                reader.changes(tokens[name])
        assert kinds(reader.changes(tokens["after"]).changes) == [(Kind.DELETED, 2)]
        changes = reader.changes(tokens["reading"]).changes
        assert kinds(changes) == [(Kind.APPENDED, None)] * 4 + [(Kind.DELETED, 2)]
        fresh = Follower()
        fresh.follow(reader, max_bytes=1)
        fresh.check(reader)


def test_deletions_of_archived_data_are_trimmed_as_others_are(create):
    dataset = create(fields=FIELDS, deletions_kept=1)
    dataset.append([datum(1, a) for a in range(3)])
    dataset.archive(FIRST)
    dataset.delete("a: =0")
    dataset.append([datum(2, 1)])
    dataset.delete("reftime: =2026-11-02")
    dataset.close()
    behind_the_scenes(dataset, f"UPDATE session SET committed_at = committed_at - {YEAR}")
    with ondisk.open(dataset.path) as writer:
        writer.append([datum(3, 1)])
        writer.repack()
        assert writer.summary().count == 3
    assert behind_the_scenes(dataset, "SELECT datum FROM deletion") == []


def test_a_token_that_no_answer_had_is_foreign(dataset):
    dataset.append([datum(1, 1)])
    token = dataset.changes()[1]
    other = Token("11111111-2222-4333-8444-555555555555", token.session, token.offset)
    numbers = [(token.session, -1, -1), (token.session, 2, -1), (token.session, 1, 2), (0, 1, -1), (1, 0, -1)]
    for wrong in (other, *(Token(token.dataset, *each) for each in numbers)):
        with pytest.raises(TokenForeign):
            dataset.changes(wrong)
    with pytest.raises(InvalidInput, match="a token must be what `changes` returned"):
        dataset.changes("token")


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, None, True])
def test_a_wrong_limit_is_refused(dataset, max_bytes):
    with pytest.raises(InvalidInput, match="max_bytes must be a whole number of 1 or more"):
        dataset.changes(max_bytes=max_bytes)


def test_a_feed_needs_no_right_to_write(dataset):
    dataset.append([datum(1, 1)])
    with ondisk.open(Path(dataset.path), read_only=True) as reader:
        follower = Follower()
        assert len(follower.follow(reader)) == 1
