"""A replica has the data of its source after each pull, each change applied once, whatever happens to both."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from replicas import FIRST, SECOND, datum, numbered, pull, wrong

import ondisk
from ondisk import Datum
from ondisk.errors import (
    ConfigError,
    DatasetExists,
    DatasetNotFound,
    DiskFull,
    InvalidInput,
    NeedsCheck,
    NeedsMigration,
    NotFound,
    StateError,
    StorageError,
    TokenExpired,
    TokenForeign,
)
from ondisk.index.transaction import Transaction
from ondisk.replication import token
from ondisk.replication.compare import verify
from ondisk.replication.feed import Kind
from ondisk.replication.replica import Replica, promote
from ondisk.replication.source import PathSource


def test_a_replica_has_the_data_of_its_source_under_their_numbers(source, path):
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pulled = pull(path, source)
    assert (pulled.stored, pulled.deleted, pulled.offset, pulled.lag) == (3, 0, 3, (0, 0))
    assert pull(path, source).stored == 0
    source.append([datum(1, 1, "new"), datum(3, 1)])
    source.delete("reftime: =2026-11-02")
    pulled = pull(path, source)
    assert (pulled.stored, pulled.deleted, pulled.present) == (2, 2, 0)
    with ondisk.open(path) as replica:
        assert replica.config.replica
        assert replica.info()["count"] == 3
        followed = replica.info()["source"]
        assert datetime.now(UTC) - followed.pop("changed_at") < timedelta(minutes=5)
        assert followed == {"uuid": source.info()["uuid"], "host": None, "offset": pulled.offset}


def test_each_answer_is_a_commit_and_the_next_pull_continues(source, path):
    source.append(datum(1, a) for a in range(10))
    answers = []
    pulled = pull(
        path, source, max_bytes=1, on_answer=lambda applied, lag: answers.append((applied.stored, lag.changes))
    )
    assert answers == [(1, left) for left in range(9, -1, -1)]
    assert pulled.stored == 10


def test_a_pull_ends_with_what_was_there_when_it_began(source, path):
    source.append(datum(1, a) for a in range(3))

    def more(applied: Any, lag: Any) -> None:
        source.append([datum(2, lag.changes + source.info()["count"])])

    with Replica.create(path, source.path) as replica:
        assert replica.pull(max_bytes=1, on_answer=more).stored == 3


def test_a_replica_takes_no_other_writes(source, path):
    source.append([datum(1, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        for write in (
            lambda: replica.append([datum(5, 5)]),
            lambda: replica.delete(""),
            lambda: replica.append_staged("job", []),
            lambda: replica.exchange(replica.state(), [], [datum(5, 5)]),
        ):
            with pytest.raises(StateError, match="is a replica") as caught:
                write()
            assert f"ondisk promote {path}" in caught.value.hint
        replica.check(accurate=True)
        replica.fix()
        replica.repack()
        replica.archive(FIRST)
        replica.unarchive(f".archive/last/{FIRST}")
    pull(path, source)


def test_a_replica_is_created_once_and_never_by_a_pull(source, path):
    with pytest.raises(DatasetNotFound, match="holds no dataset") as caught:
        Replica.open(path, source.path)
    assert not path.exists()
    assert f"`ondisk replicate {source.path} {path} --create`" in caught.value.hint
    Replica.create(path, source.path).close()
    with pytest.raises(DatasetExists):
        Replica.create(path, source.path)
    pull(path, source)


def test_an_ordinary_dataset_is_no_replica(source, create):
    other = create("other")
    with pytest.raises(StateError, match="and no replica"):
        Replica.open(other.path, source.path)


def test_deletions_of_archived_data_are_applied(source, path):
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    source.delete("a: =2")
    source.append([datum(1, 1, "new")])
    assert pull(path, source).deleted == 2
    with ondisk.open(path) as replica:
        replica.repack()
        assert wrong(replica) == []
    pull(path, source)


def test_deletions_reach_data_in_an_archive_that_is_away(source, path, tmp_path):
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    (path / ".archive/last").rename(tmp_path / "away")
    source.delete("a: =2")
    with Replica.open(path, source.path) as replica:
        assert replica.pull().deleted == 1
    (tmp_path / "away").rename(path / ".archive/last")
    pull(path, source)


def test_data_that_the_source_has_lost_are_kept_and_reported(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    (source.path / FIRST).unlink()
    source.fix(forget=True)
    with Replica.open(path, source.path) as replica:
        pulled = replica.pull()
        assert (pulled.lost, pulled.kept, pulled.missing) == (1, 1, 0)
        assert [(each.seq, each.reason) for each in pulled.differences] == [(1, "the source has lost it")]
        assert replica.dataset.info()["count"] == 2
        assert replica.pull().kept == 1


def test_a_segment_with_last_copies_goes_to_quarantine_once(source, path):
    """However many answers and pulls replace them. What is stored later and lost again is not in the first copy."""
    source.append(datum(1, a, "old") for a in range(8))
    pull(path, source)
    for lost, found, copies in (("old", "new", 1), ("new", "newer", 2)):
        (source.path / FIRST).unlink()
        source.fix()
        for a in (0, 4):
            source.append(datum(1, each, found) for each in range(a, a + 4))
            with Replica.open(path, source.path) as replica:
                assert (replica.pull(max_bytes=1).deleted, len(replica.dataset.quarantine.kept)) == (4, int(a == 0))
        items = sorted(path.glob("2026/.quarantine/*.jsonl"), key=lambda each: each.stat().st_mtime_ns)
        assert len(items) == copies
        assert items[-1].read_bytes().count(f'"{lost}"'.encode()) == 8
    with ondisk.open(path) as dataset:
        assert not wrong(dataset)
        assert {each.data["text"] for each in dataset.query()} == {"newer"}


def test_data_that_cannot_be_read_are_listed_and_requested_again(source, path):
    source.append([datum(1, 1), datum(2, 1), datum(3, 1)])
    (source.path / SECOND).rename(source.path / "away")
    with Replica.create(path, source.path) as replica:
        pulled = replica.pull()
        assert (pulled.stored, pulled.unreadable, pulled.missing) == (2, 1, 1)
        assert SECOND in pulled.differences[0].reason
    with Replica.open(path, source.path) as replica, ondisk.open(path, read_only=True) as chained:
        token = chained.changes().token
        assert (replica.pull().unreadable, replica.pull().missing) == (0, 1)
        (source.path / "away").rename(source.path / SECOND)
        assert replica.pull().missing == 1, "it is not requested all the time"
    assert (pulled := pull(path, source)).stored == 1
    assert pulled.missing == 0
    with ondisk.open(path, read_only=True) as chained, pytest.raises(TokenExpired):
        chained.changes(token)


def test_data_that_could_not_be_read_and_are_deleted_are_not_missed(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    (source.path / SECOND).unlink()
    with Replica.create(path, source.path) as replica:
        assert replica.pull().missing == 1
        source.delete("reftime: =2026-11-02")
        assert replica.pull().missing == 0


def test_data_that_the_replica_loses_are_fetched_again(source, path):
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pull(path, source)
    lines = (path / FIRST).read_bytes().splitlines(keepends=True)
    (path / FIRST).write_bytes(lines[0])
    (path / SECOND).unlink()
    with ondisk.open(path) as replica:
        replica.fix(salvage=[FIRST])
        assert replica.info()["lost"] == 2
        assert [seq for seq, *_ in numbered(replica)] == [1]
    assert pull(path, source).stored == 2
    with ondisk.open(path) as replica:
        replica.fix(acknowledge=True)
        assert wrong(replica) == []


def test_a_replica_has_its_own_ages(create, path):
    now = datetime.now(UTC).replace(microsecond=0)
    old, new = now - timedelta(days=40), now - timedelta(days=1)
    source = create("source", fields={"a": "integer"})
    source.append([Datum(old, {"a": 1}, {}), Datum(new, {"a": 2}, {})])
    with Replica.create(path, source.path):
        pass
    config = path / "dataset.toml"
    config.write_text(config.read_text().replace("replica", "delete_age = 30\nreplica"))
    with Replica.open(path, source.path) as replica:
        pulled = replica.pull()
        assert (pulled.stored, pulled.old, pulled.missing) == (1, 1, 0)
    config.write_text(config.read_text().replace("delete_age = 30\n", ""))
    source.append([Datum(old, {"a": 3}, {})])
    with Replica.open(path, source.path) as replica:
        assert replica.pull().stored == 1
    config.write_text(config.read_text().replace("replica", "delete_age = 30\nreplica"))
    with Replica.open(path, source.path) as replica:
        replica.dataset.repack(by_age=True)
        assert replica.dataset.info()["count"] == 1
        assert [each.kind for each in replica.dataset.changes().changes] == [Kind.APPENDED]
        source.delete("a: =3")
        assert replica.pull().deleted == 0


def test_what_is_too_old_at_the_source_stays_at_the_replica(create, path):
    old = datetime.now(UTC) - timedelta(days=40)
    source = create("source", fields={"a": "integer"})
    source.append([Datum(old, {"a": 1}, {})])
    pull(path, source)
    config = source.path / "dataset.toml"
    config.write_text("delete_age = 30\n" + config.read_text())
    with ondisk.open(source.path) as dataset:
        dataset.repack(by_age=True)
        assert dataset.info()["count"] == 0
    with Replica.open(path, source.path) as replica:
        pulled = replica.pull()
        assert (pulled.deleted, pulled.lost) == (0, 0)
        assert replica.dataset.info()["count"] == 1


def test_a_replica_restored_from_an_old_backup_resumes(source, path, tmp_path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    shutil.copytree(path, tmp_path / "backup")
    source.append([datum(1, 1, "new"), datum(3, 1)])
    source.delete("reftime: =2026-11-02")
    pull(path, source)
    shutil.rmtree(path)
    (tmp_path / "backup").rename(path)
    pulled = pull(path, source)
    assert (pulled.stored, pulled.deleted) == (2, 2)


def test_a_source_restored_from_an_old_backup_is_noticed(source, path, tmp_path):
    source.append([datum(1, 1)])
    source.close()
    shutil.copytree(source.path, tmp_path / "backup")
    with ondisk.open(source.path) as again:
        again.append([datum(2, 1)])
    pull(path, source.path)
    shutil.rmtree(source.path)
    (tmp_path / "backup").rename(source.path)
    for _ in range(2):
        with Replica.open(path, source.path) as replica, pytest.raises(TokenForeign, match="earlier state") as caught:
            replica.pull()
        assert f"`ondisk replicate {source.path} {path} --reconcile`" in caught.value.hint
        with ondisk.open(source.path) as again:
            again.append([datum(day, 7) for day in range(3, 9)])


def test_a_source_restored_from_an_old_backup_sends_nothing_in_place_of_unreadable_data(source, path, tmp_path):
    source.append([datum(1, 1)])
    source.close()
    shutil.copytree(source.path, tmp_path / "backup")
    with ondisk.open(source.path) as again:
        again.append([datum(2, 1)])
    (source.path / SECOND).unlink()
    with Replica.create(path, source.path) as replica:
        assert replica.pull().missing == 1
    shutil.rmtree(source.path)
    (tmp_path / "backup").rename(source.path)
    with ondisk.open(source.path) as again:
        again.append([datum(2, 7)])
    with Replica.open(path, source.path) as replica:
        with pytest.raises(TokenForeign):
            replica.pull()
        assert replica.dataset.count() == 1


def test_another_dataset_in_the_place_of_the_source_is_noticed(source, path, create):
    source.append([datum(1, 1)])
    pull(path, source)
    other = create("other", fields={"a": "integer"})
    other.append([datum(1, 1)])
    with Replica.open(path, other.path) as replica, pytest.raises(TokenForeign):
        replica.pull()


def test_an_error_of_the_token_is_reported_also_if_the_source_cannot_say_what_it_is(source, path, create):
    class Mute(PathSource):
        def describe(self):
            raise StorageError("it cannot be reached")

    source.append([datum(1, 1)])
    pull(path, source)
    other = create("other", fields={"a": "integer"})
    other.append([datum(1, 1)])
    with Mute(other.path) as mute, Replica.open(path, mute) as replica, pytest.raises(TokenForeign) as caught:
        replica.pull()
    assert caught.value.hint.startswith("Compare them, and fetch what is missing: ")


def test_deletions_that_were_forgotten_are_noticed(source, path, monkeypatch):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    source.delete("reftime: =2026-11-02")
    with source._access.transaction("repack") as transaction:
        transaction.trim_deletions(3, 100)
        transaction.commit()
    with Replica.open(path, source.path) as replica, pytest.raises(TokenExpired) as caught:
        replica.pull()
    assert "ondisk replicate" in caught.value.hint


def lose(path: Path) -> None:
    (path / "index.sqlite").unlink()


def rebuild(path: Path) -> None:
    (path / "index.sqlite").write_bytes(b"damaged" * 1000)
    ondisk.rebuild(path)


@pytest.mark.parametrize("accident", [lose, rebuild])
def test_a_replica_whose_index_was_lost_does_not_mix_its_numbers_with_those_of_the_source(source, path, accident):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    accident(path)
    with Replica.open(path, source.path) as replica:
        with pytest.raises(NeedsCheck):
            replica.pull()
        replica.dataset.fix()
        assert replica.dataset.changes().changes == [], "its own numbers are not those of the source"
        with pytest.raises(TokenForeign, match="index was lost") as caught:
            replica.pull()
        assert f"`ondisk replicate {source.path} {path} --reconcile`" in caught.value.hint
        assert replica.dataset.info()["count"] == 2
    source.append([datum(3, 1)])
    with promote(path) as dataset:
        assert [seq for seq, *_ in numbered(dataset)] == [3, 4]
        assert not dataset.config.replica
        dataset.append([datum(4, 1)])


def test_an_index_that_has_only_numbers_of_the_replica_is_not_replaced_when_its_configuration_changes(source, path):
    source.append([datum(1, 1)])
    pull(path, source)
    for each in (*path.glob("index.sqlite*"), path / ".tide"):
        each.unlink()
    with ondisk.open(path) as replica:
        replica.fix()
    toml = (path / "dataset.toml").read_text()
    (path / "dataset.toml").write_text('index = ["a"]\n' + toml)
    with pytest.raises(NeedsMigration):
        ondisk.open(path)


def test_an_older_index_that_is_put_back_into_a_replica_is_noticed(source, path, tmp_path):
    source.append([datum(1, 1)])
    pull(path, source)
    shutil.copy(path / "index.sqlite", tmp_path / "older")
    source.append([datum(1, 2), datum(2, 1)])
    pull(path, source)
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "older", path / "index.sqlite")
    with Replica.open(path, source.path) as replica:
        with pytest.raises(NeedsCheck):
            replica.pull()
        replica.dataset.fix()
        with pytest.raises(TokenForeign, match="exchanged"):
            replica.pull()
        assert replica.dataset.info()["count"] == 3


def test_a_replica_of_a_replica_follows_it_and_through_it_the_source(source, path, tmp_path):
    last = tmp_path / "last"
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    pull(last, path)
    source.append([datum(1, 1, "new"), datum(3, 1)])
    with ondisk.open(source.path) as other:
        other.delete("reftime: =2026-11-02")
    with Replica.open(path, source.path) as replica:
        while replica.pull(max_bytes=1).stored:
            pull(last, path)
    pull(last, path)
    with ondisk.open(last, read_only=True) as end:
        assert numbered(end) == numbered(source)
    with ondisk.open(path, read_only=True) as middle:
        assert middle.changes(source.changes().token.__class__(middle.info()["uuid"], source.changes().token.session,
                              source.changes().token.offset)).changes == []  # fmt: skip


def test_several_replicas_follow_one_source(source, path, tmp_path):
    for number in range(3):
        source.append([datum(number + 1, 1)])
        assert pull(path, source).stored == 1
        assert pull(tmp_path / f"replica{number}", source).stored == number + 1


def test_two_processes_that_pull_apply_each_change_once(source, path):
    source.append(datum(1, a) for a in range(6))
    with Replica.create(path, source.path) as one, Replica.open(path, source.path) as two:
        stored = []

        def also(applied: Any, lag: Any) -> None:
            if lag.changes == 3:
                stored.append(two.pull(max_bytes=1).stored)

        stored.append(one.pull(max_bytes=1, on_answer=also).stored)
    assert sum(stored) == 6
    pull(path, source)


def test_the_token_is_exported(source, path, tmp_path):
    source.append([datum(1, 1)])
    with Replica.create(path, source.path) as replica:
        replica.pull()
        assert replica.export(tmp_path / "tokens") is None
        (entry,) = token.read(tmp_path / "tokens")
        assert (entry.token, entry.replica) == (source.changes().token, replica.dataset.info()["uuid"])
        assert (entry.host, entry.port) == ("", 0)
        assert entry.bytes_read > 10


def test_a_replica_follows_a_server_as_well_as_a_path(source, path):
    with PathSource(source.path) as opened:
        opened.address = ("node1", 8080)  # type: ignore[misc]
        with Replica.create(path, opened) as replica:
            replica.pull()
            assert (replica.followed.host, replica.followed.port) == ("node1", 8080)


def test_the_sessions_of_a_replica_are_those_of_its_source(source, path, tmp_path):
    """So that whoever follows the replica notices that the source was put back, as whoever follows the source does."""
    source.append([datum(1, 1)])
    source.close()
    shutil.copytree(source.path, tmp_path / "backup")
    for day in (2, 3):
        with ondisk.open(source.path) as again:
            again.append([datum(day, 1)])
    pull(path, source.path)
    with ondisk.open(path, read_only=True) as replica, ondisk.open(source.path, read_only=True) as followed:
        mine = theirs = None
        for _ in range(4):
            mine, theirs = replica.changes(mine, 1).token, followed.changes(theirs, 1).token
            assert (mine.session, mine.offset) == (theirs.session, theirs.offset)
        assert mine.offset == 3


def test_deletions_that_a_replica_forgets_let_only_older_tokens_expire(source, path, monkeypatch):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    source.delete("reftime: =2026-11-02")
    with ondisk.open(path, read_only=True) as replica:
        before = replica.changes().token
    pull(path, source)
    with ondisk.open(path) as replica:
        after = replica.changes().token
        last = 3
        with replica._access.transaction("repack") as transaction:
            transaction.trim_deletions(last, 100)
            transaction.commit()
        assert replica.changes(after).changes == []
        with pytest.raises(TokenExpired):
            replica.changes(before)
    source.append([datum(5, 1)])
    pull(path, source)


def test_a_segment_of_the_replica_that_is_missing_keeps_no_other_data_from_coming(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    (path / FIRST).rename(path / "away")
    source.append([datum(1, 2), datum(2, 2)])
    with Replica.open(path, source.path) as replica:
        pulled = replica.pull()
        assert (pulled.stored, pulled.missing) == (1, 1)
        assert "is in the index, but not on disk" in pulled.differences[0].reason
    (path / "away").rename(path / FIRST)
    assert pull(path, source).missing == 0


def test_a_replica_can_be_migrated(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    config = path / "dataset.toml"
    config.write_text('index = ["a"]\n' + config.read_text())
    assert ondisk.migrate(path).done
    source.append([datum(1, 1, "new")])
    assert pull(path, source).stored == 1
    with ondisk.open(path) as replica:
        assert replica.info()["index"] == ["a"]


def without_unique(path: Path) -> None:
    config = path / "dataset.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(each for each in lines if not each.startswith(("unique", "replace"))))
    ondisk.migrate(path)


def test_a_source_that_keeps_what_the_replica_would_replace_is_noticed(source, path):
    source.append([datum(1, 1)])
    pull(path, source)
    source.close()
    for each in (source.path, path):
        config = each / "dataset.toml"
        config.write_text(
            config.read_text().replace('unique = ["reftime", "a"]\n', "").replace('replace = "yes"\n', "")
        )
        if each is source.path:
            ondisk.migrate(each)
            with ondisk.open(each) as dataset:
                dataset.append([datum(1, 1, "another")])
            config = path / "dataset.toml"
            with Replica.open(path, source.path) as replica, pytest.raises(ConfigError) as caught:
                replica.pull()
            assert f"ondisk migrate {path} --yes" in caught.value.hint
    ondisk.migrate(path)
    assert pull(path, source.path).stored == 1


def test_a_pull_that_begins_beside_another_does_not_put_the_token_back(source, path, monkeypatch):
    source.append([datum(1, 1), datum(1, 2)])
    with Replica.create(path, source.path) as replica:
        describe = replica.source.describe

        def described():
            monkeypatch.undo()
            pull(path, source)
            return describe()

        monkeypatch.setattr(replica.source, "describe", described)
        replica.pull()
        assert replica.followed.offset == 2


@pytest.mark.parametrize(("of_source", "of_replica"), [("a", "a/b"), ("a/b", "a"), ("a", "a"), ("a", "link/b")])
def test_a_replica_and_its_source_are_not_in_one_another(create, tmp_path, of_source, of_replica):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    source = create(of_source)
    with pytest.raises(InvalidInput, match="its source"):
        Replica.open(tmp_path / of_replica, source.path)
    assert {each.name for each in tmp_path.iterdir()} == {"a", "link"}


def test_beside_a_directory_whose_name_begins_like_that_of_the_source_is_a_place_for_a_replica(create, tmp_path):
    source = create("weather", fields={"a": "integer"})
    source.append([datum(1, 1)])
    assert pull(tmp_path / "weather-copy", source).stored == 1


def test_the_hint_for_a_full_disk_is_no_delete(source, path, monkeypatch):
    def full(_: Transaction) -> None:
        raise DiskFull("no space left", hint="`ondisk delete DATASET MATCH --yes`")

    source.append([datum(1, 1)])
    pull(path, source)
    source.append([datum(1, 2)])
    with Replica.open(path, source.path) as replica:
        monkeypatch.setattr(Transaction, "check_space", full)
        with pytest.raises(DiskFull) as caught:
            replica.pull()
    assert "delete " not in caught.value.hint
    assert f"ondisk repack {path} --yes" in caught.value.hint


def archived(source, path):
    """Return where the archive of a replica is, after its first segment was archived."""
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    return path / ".archive/last"


def test_data_that_the_archive_of_a_replica_has_lost_are_fetched_again(source, path):
    place = archived(source, path)
    (place / FIRST).unlink()
    with ondisk.open(path) as dataset:
        dataset.fix()
    with Replica.open(path, source.path) as replica:
        assert replica.pull().stored == 2
        assert verify(replica).count == 0


def test_data_of_a_forgotten_archive_of_a_replica_are_fetched_again(source, path):
    place = archived(source, path)
    shutil.rmtree(place)
    with ondisk.open(path) as dataset:
        dataset.fix(forget_place="last")
    with Replica.open(path, source.path) as replica:
        assert replica.pull().stored == 2
        assert verify(replica).count == 0


def test_an_archive_that_is_not_missing_cannot_be_forgotten_and_the_replica_goes_on(source, path):
    archived(source, path)
    with ondisk.open(path) as dataset, pytest.raises(NotFound):
        dataset.fix(forget_place="lats")
    source.append([datum(3, 1)])
    with Replica.open(path, source.path) as replica:
        assert replica.pull().stored == 1


def test_a_replica_of_a_replica_that_was_restored_deletes_what_the_middle_never_had(source, path, tmp_path):
    last = tmp_path / "last"
    source.append([datum(1, 1)])
    pull(path, source)
    pull(last, path)
    shutil.copytree(path, tmp_path / "backup")
    source.append([datum(2, 1), datum(2, 2)])
    pull(path, source)
    pull(last, path)
    shutil.rmtree(path)
    (tmp_path / "backup").rename(path)
    source.delete("reftime: =2026-11-02")
    pull(path, source)
    pull(last, path)
    with Replica.open(last, path) as replica:
        assert verify(replica).count == 0


@contextlib.contextmanager
def interrupted(asked, is_interrupted=None):
    """Interrupt the block once the source was asked."""

    def interrupt():
        asked.wait(60)
        time.sleep(0.3)  # until the pull waits
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if is_interrupted is not None:
            is_interrupted.set()

    threading.Thread(target=interrupt).start()
    yield


def test_an_interrupt_does_not_wait_for_the_answer_of_a_server(source, path):
    source.append([datum(1, 1)])
    asked, answered = threading.Event(), threading.Event()

    class Silent(PathSource):
        address = ("server", 1)

        def changes(self, token, max_bytes):
            asked.set()
            answered.wait(60)
            raise StorageError("nobody waits for this")

    with Silent(source.path) as silent, Replica.create(path, silent) as replica:
        with pytest.raises(KeyboardInterrupt), interrupted(asked):
            replica.pull()
        assert not answered.is_set()
        answered.set()


def test_an_interrupt_waits_until_nobody_reads_a_source_at_a_path(source, path):
    source.append([datum(1, 1)])
    asked, is_interrupted, is_read = threading.Event(), threading.Event(), threading.Event()

    class Slow(PathSource):
        def changes(self, token, max_bytes):
            asked.set()
            is_interrupted.wait(60)
            time.sleep(0.2)
            found = super().changes(token, max_bytes)
            is_read.set()
            return found

        def close(self):
            assert is_read.is_set()
            super().close()

    with (
        pytest.raises(KeyboardInterrupt),
        Slow(source.path) as slow,
        Replica.create(path, slow) as replica,
        interrupted(asked, is_interrupted),
    ):
        replica.pull()
    assert is_read.is_set()
