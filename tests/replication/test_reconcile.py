"""A full comparison makes a replica equal to its source again, and throws nothing away that nobody deleted."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from replicas import replica_of, rot

import ondisk
from ondisk import Dataset, Datum
from ondisk.datum import microseconds
from ondisk.errors import (
    IntegrityError,
    SegmentCorrupt,
    SegmentMissing,
    StateError,
    StorageError,
    TokenExpired,
    TokenForeign,
)
from ondisk.index.atomic_change import AtomicChange
from ondisk.index.changes import OWN
from ondisk.replication.compare import Differences, Verified, verify
from ondisk.replication.feed import Kind, Lag
from ondisk.replication.heal import heal
from ondisk.replication.reconcile import Reconciled, _Steps, reconcile
from ondisk.replication.records import Records
from ondisk.replication.replica import Replica
from ondisk.replication.source import PathSource
from ondisk.replication.source_rows import Comparison, Mode, differences, follow, followed, set_apart

FIRST, SECOND = "2026/11-01.jsonl", "2026/11-02.jsonl"


def datum(day: int, a: int, text: str = "x") -> Datum:
    return Datum(datetime(2026, 11, day, tzinfo=UTC), {"a": a}, {"text": text})


@pytest.fixture
def source(create) -> Dataset:
    return create("source", fields={"a": "integer"}, unique=["reftime", "a"], replace="yes", deletions_kept=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replica"


def pull(path: Path, source: Path) -> None:
    with replica_of(path, source) as replica:
        replica.pull()


def numbered(path: Path) -> dict[int, str]:
    with ondisk.open(path, read_only=True) as dataset:
        changes = dataset.changes(max_bytes=2**40).changes
    return {each.seq: shown(each.datum) for each in changes if each.kind is Kind.APPENDED and each.datum is not None}


def shown(datum: Datum) -> str:
    return repr((datum.reftime, dict(datum.metadata), datum.data))


def content(path: Path) -> Counter[str]:
    with ondisk.open(path, read_only=True) as dataset:
        return Counter(map(shown, dataset.query()))


def as_it_is(path: Path) -> tuple[set[bytes], Counter[str] | None]:
    files = {each.read_bytes() for each in path.glob("2026/*") if each.is_file()}
    try:
        return files, content(path)
    except IntegrityError:
        return files, None


def verified(path: Path, source: Path) -> Verified:
    with Replica.open(path, source) as replica:
        return verify(replica)


def kept(path: Path) -> bytes:
    """Return the bytes of the only item in quarantine."""
    (item,) = path.glob("2026/.quarantine/*.jsonl")
    return item.read_bytes()


def reconciled(path: Path, source: Path, *, yes: bool = True) -> Reconciled:
    with Replica.open(path, source) as replica:
        return reconcile(replica, yes=yes)


def mend(path: Path, source: Path) -> Reconciled:
    """Reconcile, and look whether a dry run promised it and changed nothing, and pulls go on."""
    before = as_it_is(path)
    promised = reconciled(path, source, yes=False)
    assert as_it_is(path) == before
    done = reconciled(path, source)
    for name in ("mode", "fetched", "renumbered", "deleted", "kept", "offset"):
        assert getattr(promised, name) == getattr(done, name), name
    pull(path, source)
    mine, theirs = numbered(path), numbered(source)
    assert {seq: mine.get(seq) for seq in theirs} == theirs
    with ondisk.open(path) as dataset:
        dataset.repack()
        assert not [each for each in dataset.check(accurate=True).segments if each.state.name != "OK"]
    return done


def forget_deletions(path: Path) -> None:
    with ondisk.open(path) as dataset, dataset._access.transaction("repack") as transaction:
        transaction.trim_deletions(transaction.counters.seq, 1000)
        transaction.commit()


def test_after_deletions_were_forgotten_what_was_deleted_is_deleted(source, path):
    source.append(datum(day, a) for day in (1, 2, 3) for a in range(5))
    pull(path, source.path)
    source.delete("reftime: =2026-11-02")
    source.append([datum(1, 1, "new"), datum(4, 1)])
    forget_deletions(source.path)
    with Replica.open(path, source.path) as replica, pytest.raises(TokenExpired) as caught:
        replica.pull()
    assert "--reconcile" in caught.value.hint
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.deleted, done.renumbered, done.extra) == ("expired", 2, 6, 0, 0)
    assert content(path) == content(source.path)
    assert verified(path, source.path).count == 0
    source.append([datum(5, 1)])
    pull(path, source.path)
    assert numbered(path) == numbered(source.path)


def test_what_the_source_lost_or_removed_by_age_stays(create, path):
    old = datetime.now(UTC).replace(microsecond=0) - timedelta(days=400)
    source = create("source", fields={"a": "integer"})
    source.append([Datum(old, {"a": 1}, {}), datum(1, 1), datum(2, 1), datum(3, 1)])
    pull(path, source.path)
    (source.path / FIRST).unlink()
    source.fix(forget=True)
    config = source.path / "dataset.toml"
    config.write_text("delete_age = 300\n" + config.read_text())
    with ondisk.open(source.path) as again:
        again.repack(by_age=True)
        again.delete("reftime: =2026-11-02")
    with ondisk.open(source.path) as again, again._access.transaction("repack") as transaction:
        transaction.trim_deletions(transaction.counters.seq, 1000)
        transaction.expire_tokens()
        transaction.commit()
    done = reconciled(path, source.path)
    assert (done.mode, done.deleted, done.kept) == ("expired", 1, 2)
    with Replica.open(path, source.path) as replica:
        assert replica.pull().kept == 1
    assert len(numbered(path)) == 3


def test_a_source_whose_index_was_rebuilt(source, path):
    source.append(datum(day, a) for day in (3, 2, 1) for a in range(5))
    pull(path, source.path)
    before = content(path)
    source.close()
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
        again.append([datum(4, 1)])
    with Replica.open(path, source.path) as replica, pytest.raises(TokenForeign) as caught:
        replica.pull()
    assert "--reconcile" in caught.value.hint
    with pytest.raises(TokenForeign):
        verified(path, source.path)
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.extra, done.deleted) == ("foreign", 1, 0, 0)
    assert done.renumbered >= 10
    assert content(path) - before == Counter([shown(datum(4, 1))])
    assert numbered(path) == numbered(source.path)


def test_a_source_put_back_from_a_backup_keeps_what_only_the_replica_has(source, path, tmp_path):
    source.append(datum(1, a) for a in range(5))
    source.close()
    shutil.copytree(source.path, tmp_path / "backup")
    with ondisk.open(source.path) as again:
        again.append([datum(2, 1), datum(3, 1)])
        again.delete("a: =3")
    pull(path, source.path)
    shutil.rmtree(source.path)
    (tmp_path / "backup").rename(source.path)
    with ondisk.open(source.path) as again:
        again.append([datum(6, 1)])
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.renumbered, done.extra, done.deleted) == ("foreign", 2, 0, 2, 0)
    assert content(path) - content(source.path) == Counter(map(shown, [datum(2, 1), datum(3, 1)]))
    with ondisk.open(source.path) as again:
        again.append([datum(7, 1), datum(2, 1)])
        again.delete("reftime: =2026-11-06")
    pull(path, source.path)
    assert numbered(path) == numbered(source.path)


def test_a_replica_whose_index_was_rebuilt(source, path):
    source.append(datum(day, a) for day in (3, 2, 1) for a in range(5))
    pull(path, source.path)
    (path / "index.sqlite").unlink()
    with ondisk.open(path) as again:
        again.fix()
    source.delete("a: =4")
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.renumbered, done.extra) == ("foreign", 0, 12, 3)
    assert numbered(path) == numbered(source.path)


def test_archives_of_both_sides_are_compared(source, path, tmp_path):
    source.append(datum(day, a) for day in (1, 2, 3) for a in range(5))
    pull(path, source.path)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    source.archive(SECOND)
    source.delete("a: =4")
    forget_deletions(source.path)
    with ondisk.open(source.path) as again, again._access.transaction("repack") as transaction:
        transaction.expire_tokens()
        transaction.commit()
    assert mend(path, source.path).mode == "expired"
    assert numbered(path) == numbered(source.path)
    source.close()
    shutil.rmtree(source.path / ".archive")
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.extra) == ("foreign", 2, 4), "two deleted data returned with the fix"


def test_data_that_an_archive_of_the_source_has_lost_are_not_taken_for_deleted(source, path):
    source.append(datum(day, a) for day in (1, 2, 3) for a in range(5))
    source.archive(FIRST, SECOND)
    source.delete("a: =4")
    pull(path, source.path)
    source.close()
    shutil.rmtree(source.path / ".archive/last")
    with ondisk.open(source.path) as again:
        again.fix(forget_place="last")
        again.fix(acknowledge=True)
        with again._access.transaction("repack") as transaction:
            transaction.expire_tokens()
            transaction.commit()
    forget_deletions(source.path)
    before = content(path)
    done = mend(path, source.path)
    assert (done.mode, done.deleted) == ("expired", 0)
    assert {reftime for _, reftime in done.extras} <= {microseconds(datum(day, 1).reftime) for day in (1, 2, 3)}
    assert not before - content(path)
    assert set(numbered(source.path).items()) <= set(numbered(path).items())


@pytest.mark.parametrize("delete_extra", [False, True])
@pytest.mark.parametrize("fixes", [False, True])
def test_deleted_data_that_a_fix_of_the_replica_reads_again_can_be_deleted(source, path, fixes, delete_extra):
    source.append(datum(day, a, "x" * 50) for day in (1, 2) for a in range(5))
    pull(path, source.path)
    source.delete("a: =1 or 3")
    pull(path, source.path)
    file = path / FIRST
    file.write_bytes(file.read_bytes().replace(b'"a":4', b'"a",4'))
    if fixes:
        with ondisk.open(path) as replica:
            assert "--reconcile --delete-extra" in str(replica.fix())
        pull(path, source.path)
    with replica_of(path, source.path) as replica:
        dry = reconcile(replica, yes=False, delete_extra=delete_extra)
        done = reconcile(replica, yes=True, delete_extra=delete_extra)
        assert (dry.extra, dry.deleted) == (done.extra, done.deleted)
        found = verify(replica)
    extra = 2 if fixes else 0
    assert (done.extra, done.deleted) == ((0, extra) if delete_extra else (extra, 0))
    assert (found.count, found.extra) == (done.extra, done.extra)
    expected = content(source.path) + Counter(shown(datum(1, a, "x" * 50)) for a in (1, 3) if done.extra)
    assert content(path) == expected
    assert not fixes or done.extra or [*(path / "2026/.quarantine").iterdir()]


def test_nothing_is_deleted_because_the_source_is_another_dataset(source, path, create):
    source.append([datum(1, 1)])
    pull(path, source.path)
    other = create("other", fields={"a": "integer"}, unique=["reftime", "a"], replace="yes")
    before = content(path)
    with replica_of(path, other.path) as replica:
        for yes in (False, True):
            with pytest.raises(StateError, match="the source may be another dataset"):
                reconcile(replica, yes=yes, delete_extra=True)
        assert content(path) == before
        assert reconcile(replica, yes=True).extra == 1
        assert reconcile(replica, yes=True, delete_extra=True).deleted == 1


@pytest.fixture
def lower(source, path, create) -> Dataset:
    """Another dataset with the same data under much lower numbers. The replica has archived some of them."""
    for text in map(str, range(9)):
        source.append(datum(day, a, text) for day in (1, 2, 3) for a in range(3))
    pull(path, source.path)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    other = create("other", fields={"a": "integer"}, unique=["reftime", "a"], replace="yes")
    other.append(datum(day, a, "8") for day in (1, 2, 3) for a in range(3))
    return other


def are_ok(path: Path) -> bool:
    with ondisk.open(path) as dataset:
        report = dataset.check(accurate=True)
    return not report.needs_check and {each.state.name for each in report.segments} == {"OK"}


def delete_everywhere(lower: Dataset, path: Path) -> None:
    """Delete at the source, and look whether it arrives: from what was archived before, since, and not at all."""
    with ondisk.open(path) as replica:
        replica.archive(SECOND)
    lower.delete("a: =1")
    with Replica.open(path, lower.path) as replica:
        assert replica.pull().deleted == 3
    assert content(path) == content(lower.path)


def test_deletions_reach_archived_data_after_the_source_became_one_with_lower_numbers(lower, path):
    assert mend(path, lower.path).mode == "foreign"
    delete_everywhere(lower, path)
    with ondisk.open(path) as replica:
        replica.repack()
    assert are_ok(path)


@pytest.mark.parametrize("commit", range(1, 5))
def test_a_comparison_with_lower_numbers_is_killed_before_a_commit(lower, path, monkeypatch, commit):
    commits, real = [], AtomicChange.commit

    def killed(self: AtomicChange) -> None:
        commits.append(self.directory.path)
        if len(commits) == commit:
            raise KeyboardInterrupt
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(AtomicChange, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            reconciled(path, lower.path)
    with ondisk.open(path) as replica:
        replica.archive(SECOND)  # its counter may be the higher one then
    assert reconciled(path, lower.path).mode == "foreign"
    assert are_ok(path)
    with ondisk.open(path) as replica:
        replica.unarchive(f".archive/last/{SECOND}")
    delete_everywhere(lower, path)


def test_the_replica_of_a_replica_whose_source_has_lower_numbers_reconciles_once(lower, path, tmp_path):
    last = tmp_path / "last"
    pull(last, path)
    assert mend(path, lower.path).mode == mend(last, path).mode == "foreign"
    for day in (4, 5):
        lower.append([datum(day, 1)])
        pull(path, lower.path)
        pull(last, path)
        assert numbered(last) == numbered(lower.path)


def test_counters_are_lowered_beside_a_reader(lower, path):
    """The main files of the indices have the former counters until the reader ends."""
    with ondisk.open(path, read_only=True) as reading, reading.query() as query:
        next(query)
        assert reconciled(path, lower.path).mode == "foreign"
        assert content(path) == content(lower.path)
        assert are_ok(path)
    delete_everywhere(lower, path)


def test_a_replica_of_a_replica_reconciles_once_though_the_replica_had_to_fetch_nothing(source, path, tmp_path, create):
    last = tmp_path / "last"
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source.path)
    pull(last, path)
    other = create("other", fields={"a": "integer"}, unique=["reftime", "a"], replace="yes")
    other.append([datum(1, 1), datum(2, 1)])
    assert mend(path, other.path).mode == mend(last, path).mode == "foreign"
    other.append([datum(3, 1)])
    pull(path, other.path)
    pull(last, path)
    assert numbered(last) == numbered(other.path)


def test_a_replica_of_the_replica_notices(source, path, tmp_path):
    last = tmp_path / "last"
    source.append(datum(day, a) for day in (3, 2, 1) for a in range(5))
    pull(path, source.path)
    pull(last, path)
    source.close()
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
    mend(path, source.path)
    with Replica.open(last, path) as replica, pytest.raises(TokenForeign):
        replica.pull()
    mend(last, path)
    assert numbered(last) == numbered(source.path)


def test_a_replica_of_the_replica_goes_on_after_a_damaged_segment_was_mended(source, path, tmp_path):
    """Whether it has the data already, or could not read them."""
    before, after = tmp_path / "before", tmp_path / "after"
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    pull(path, source.path)
    pull(before, path)
    rot(path / FIRST, b'"text":"2.5"', b'"text":"7.5"')
    with Replica.create(after, path) as replica:
        assert replica.pull().missing == 2
    source.append([datum(3, 1)])
    assert reconciled(path, source.path).fetched == 2
    pull(path, source.path)
    for each in (before, after):
        with Replica.open(each, path) as replica:
            assert replica.pull().missing == 0
        assert numbered(each) == numbered(source.path)


def test_a_replica_of_the_replica_notices_data_that_it_has_passed(source, path, tmp_path):
    last = tmp_path / "last"
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source.path)
    with ondisk.open(path) as replica, replica._access.transaction("fix") as transaction:
        transaction.drop_rows([1])
        transaction.commit()
    pull(last, path)
    assert reconciled(path, source.path).fetched == 1
    with Replica.open(last, path) as replica, pytest.raises(TokenExpired):
        replica.pull()
    mend(last, path)
    assert numbered(last) == numbered(source.path)


def test_during_a_comparison_a_replica_of_the_replica_does_not_forget_what_it_lacks(source, path, tmp_path):
    last = tmp_path / "last"
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    pull(path, source.path)
    rot(path / FIRST, b'"text":"2.5"', b'"text":"7.5"')
    with Replica.create(last, path) as replica:
        assert replica.pull().missing == 2
    rot(path / FIRST, b'"text":"7.5"', b'"text":"2.5"')
    with ondisk.open(path) as replica, replica._access.transaction("replicate") as transaction:
        transaction.connection.execute("UPDATE source SET key = ?", (b"contents",))  # as if it were killed
        transaction.drop_rows([1, 2])
        transaction.commit()
    with Replica.open(last, path) as replica:
        with pytest.raises(StateError, match="not complete"):
            replica.pull()
        with replica._snapshot() as snapshot:
            assert [each.seq for each in differences(snapshot)] == [1, 2]
        with pytest.raises(StateError, match="not complete"):  # as if the comparison had begun since its changes came
            replica.source.fetch([1, 2])
    reconciled(path, source.path)
    mend(last, path)
    assert numbered(last) == numbered(source.path)


def test_a_comparison_leaves_later_changes_to_a_pull(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source.path)
    source.append([datum(1, 1, "new"), datum(3, 1)])
    source.delete("reftime: =2026-11-02")
    done = reconciled(path, source.path)
    assert (done.offset, done.fetched, done.deleted, done.extra) == (2, 0, 0, 0)
    with Replica.open(path, source.path) as replica:
        pulled = replica.pull()
    assert (pulled.stored, pulled.deleted) == (2, 2)
    assert content(path) == content(source.path)


@pytest.mark.parametrize("mode", ["valid", "expired"])
def test_what_is_too_old_for_the_replica_is_not_fetched(create, path, mode):
    now = datetime.now(UTC).replace(microsecond=0)
    source = create("source", fields={"a": "integer"})
    source.append([Datum(now - timedelta(days=age), {"a": age}, {"text": "x"}) for age in (40, 39, 1)])
    pull(path, source.path)
    config = path / "dataset.toml"
    config.write_text("delete_age = 30\n" + config.read_text())
    with ondisk.open(path) as replica:
        replica.repack(by_age=True)
        assert replica.info()["count"] == 1
    if mode == "expired":
        source.append([Datum(now - timedelta(days=age), {"a": age}, {"text": "x"}) for age in (38, 2)])
        source.delete("a: =39")
        forget_deletions(source.path)
    for yes in (False, True):
        done = reconciled(path, source.path, yes=yes)
        assert (done.mode, done.fetched, done.missing) == (mode, int(mode == "expired"), 0)


@pytest.mark.parametrize("mode", ["valid", "expired", "foreign"])
def test_a_dry_run_does_not_promise_what_the_source_cannot_read(source, path, mode):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    if mode == "valid":
        rot(source.path / FIRST, b'"text":"2.5"', b'"text":"7.5"')
    pull(path, source.path)
    if mode != "valid":
        source.append([datum(1, 3, "3.5"), datum(3, 1)])
        source.delete("reftime: =2026-11-02")
        forget_deletions(source.path)
        rot(source.path / FIRST, b'"text":"3.5"', b'"text":"7.5"')
    if mode == "foreign":
        with ondisk.open(path) as replica, replica._access.transaction("fix") as transaction:
            transaction.connection.execute("UPDATE source SET uuid = replica")
            transaction.commit()
    promised = reconciled(path, source.path, yes=False)
    done = reconciled(path, source.path)
    assert (promised.mode, done.mode) == (mode, mode)
    found = [(each.fetched, each.missing, each.kept) for each in (promised, done)]
    assert found[0] == found[1]
    assert found[0][:2] == {"valid": (0, 2), "expired": (1, 1), "foreign": (1, 3)}[mode]


def test_what_differs_is_found_and_mended(source, path):
    source.append(datum(day, a) for day in (1, 2, 3) for a in range(3))
    pull(path, source.path)
    assert verified(path, source.path).count == 0
    with ondisk.open(path) as replica, replica._access.transaction("fix") as transaction:
        transaction.drop_rows([1])
        transaction.commit()
    file = path / SECOND
    file.write_bytes(file.read_bytes().replace(b'"text":"x"', b'"text":"y"', 1))
    with ondisk.open(path) as replica:
        replica.fix()
    found = verified(path, source.path)
    assert (found.missing + found.differs, found.count) == (2, found.missing + found.differs + found.extra)
    done = mend(path, source.path)
    assert (done.mode, done.fetched) == ("valid", 2)
    assert numbered(path) == numbered(source.path)
    assert verified(path, source.path).count == 0


def test_a_pull_waits_until_the_comparison_is_complete(source, path, monkeypatch):
    from ondisk.replication import reconcile as module

    source.append(datum(day, a) for day in (3, 2, 1) for a in range(5))
    pull(path, source.path)
    source.close()
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
    with monkeypatch.context() as patched:
        patched.setattr(module._Steps, "_fetch", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reconciled(path, source.path)
    with Replica.open(path, source.path) as replica, pytest.raises(TokenForeign, match="not complete"):
        replica.pull()
    with ondisk.open(path, read_only=True) as chained, pytest.raises(StateError, match="not complete"):
        chained.changes()
    mend(path, source.path)
    assert numbered(path) == numbered(source.path)


@pytest.mark.parametrize(("mode", "key"), [("expired", b"numbers"), ("foreign", b"foreign"), ("valid", b"contents")])
def test_a_comparison_in_progress_is_recorded_as_the_release_before_reads_it(source, path, mode, key):
    pull(path, source.path)
    with ondisk.open(path) as dataset, dataset._access.transaction("replicate") as transaction:
        now = followed(transaction)
        assert now is not None
        follow(transaction, now._replace(comparison=Comparison(Mode(mode), 7)))
        stored = transaction.connection.execute("SELECT key, index_start FROM source").fetchall()
        again = followed(transaction)
    assert stored == [(key, 7)]
    assert again is not None
    assert again.comparison == (mode, 7)


def test_a_comparison_over_a_server_is_that_of_the_path(source, path):
    pytest.importorskip("urllib3")
    from server.conftest import started

    from ondisk.replication.http_source import HttpSource

    def url(port: int) -> str:
        return f"http://127.0.0.1:{port}/dataset/source"

    source.append(datum(day, a) for day in (3, 2, 1) for a in range(5))
    pull(path, source.path)
    source.delete("a: =4")
    forget_deletions(source.path)
    with started(source.path) as served, HttpSource(url(served.port)) as followed:
        direct = PathSource(source.path)
        for is_listed in (True, False):
            assert followed.contents(1, 20, listed=is_listed) == direct.contents(1, 20, listed=is_listed)
        assert followed.removed([5, 10, 11]) == direct.removed([5, 10, 11])
        direct.close()
        with Replica.open(path, followed) as replica:
            assert (reconcile(replica, yes=True).deleted, verify(replica).count) == (3, 0)
    source.close()
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
    with (
        started(source.path) as served,
        HttpSource(url(served.port)) as followed,
        Replica.open(path, followed) as replica,
    ):
        done = reconcile(replica, yes=True)
        assert (done.mode, done.fetched) == ("foreign", 3), "deleted data returned with the fix"
        assert replica.pull().present == 0
        with pytest.raises(StateError, match="on a server"):
            heal(replica, yes=True)
    assert numbered(path) == numbered(source.path)


def test_a_damaged_segment_of_the_replica_gets_its_bytes_again(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    pull(path, source.path)
    rot(path / FIRST, b'"text":"2.5"', b'"text":"7.5"')
    source.append([datum(1, 3)])
    with Replica.open(path, source.path) as replica:
        replica.pull()
    assert verified(path, source.path).damaged == 3
    before = content(source.path)
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.extra, done.unmended) == ("valid", 3, 0, [])
    assert content(path) == before
    assert b'"7.5"' in kept(path)
    assert verified(path, source.path).count == 0


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_another_file_in_the_replica_goes_to_quarantine_and_its_data_are_fetched(source, path, damage):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    pull(path, source.path)
    found = (path / FIRST).read_bytes()[:50] if damage == "cut off" else b"nothing of it"
    (path / FIRST).write_bytes(found)
    done = mend(path, source.path)
    assert (done.mode, done.fetched, done.extra) == ("valid", 2, 0)
    assert kept(path) == found
    assert verified(path, source.path).count == 0


def test_another_file_with_data_that_only_the_replica_has_is_left_to_a_fix(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    pull(path, source.path)
    with ondisk.open(path) as replica, replica._access.transaction("fix") as transaction:
        assert set_apart(transaction, [2]) == [(OWN, 2)]
        transaction.commit()
    (path / FIRST).write_bytes((path / FIRST).read_bytes().replace(b"1.5", b"7.5").replace(b"2.5", b"7.5"))
    for yes in (False, True):
        with pytest.raises(SegmentCorrupt) as caught:
            reconciled(path, source.path, yes=yes)
        assert f"ondisk fix {path} --yes" in caught.value.hint
    with ondisk.open(path) as replica:
        replica.fix()
    mend(path, source.path)
    with Replica.open(path, source.path) as replica:
        replica.pull()


@pytest.mark.parametrize("repacks", [False, True])
def test_a_segment_that_a_fix_or_a_repack_changes_meanwhile_is_left_to_the_next_run(source, path, monkeypatch, repacks):
    source.append([datum(1, 2, "2.5"), datum(1, 1, "1.5")])
    pull(path, source.path)
    changed = (path / FIRST).read_bytes().replace(b'"2.5"', b'"9.5"')
    (path / FIRST).write_bytes(changed + b'{"reftime": "2026-11-01T05:00:00Z", "a": 5, "text": "only here"}\n')
    real = _Steps._mend

    def mend_later(*arguments: Any) -> None:
        with ondisk.open(path) as replica:
            replica.fix()
            if repacks:
                replica.repack()
        real(*arguments)

    monkeypatch.setattr(_Steps, "_mend", mend_later)
    with pytest.raises(StateError, match=f"{FIRST} was changed meanwhile"):
        reconciled(path, source.path)
    monkeypatch.undo()
    assert reconciled(path, source.path).extra == 1
    assert (content(path) - content(source.path)).total() == 1


def test_a_changed_segment_with_data_that_only_the_replica_has_is_proven_or_left(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(1, 3, "3.5")])
    pull(path, source.path)
    (source.path / FIRST).unlink()
    source.fix(forget=True)
    source.append([datum(1, 4, "4.5"), datum(1, 5, "5.5")])
    with Replica.open(path, source.path) as replica:
        assert replica.pull().kept == 3
    rot(path / FIRST, b'"text":"4.5"', b'"text":"9.5"')
    done = reconciled(path, source.path)
    assert (done.fetched, done.missing, done.unmended) == (2, 0, [])
    with Replica.open(path, source.path) as replica:
        assert (verify(replica).lost, verify(replica).count) == (3, 3)
    rot(path / FIRST, b'"text":"1.5"', b'"text":"9.5"')
    done = reconciled(path, source.path)
    assert (done.fetched, done.missing, done.unmended) == (0, 2, [FIRST])
    with Replica.open(path, source.path) as replica:
        assert replica.pull().missing == 0
    with ondisk.open(path) as replica:
        replica.fix(salvage=[FIRST])
    reconciled(path, source.path)
    assert verified(path, source.path).damaged == 0


def test_what_differs_takes_the_place_of_the_datum_and_is_kept_in_quarantine(create, path):
    source = create("source", fields={"a": "integer"})
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1)])
    pull(path, source.path)
    (path / FIRST).write_bytes((path / FIRST).read_bytes().replace(b"2.5", b"7.5"))
    with ondisk.open(path) as replica:
        replica.fix()
    assert verified(path, source.path).differs == 1
    done = mend(path, source.path)
    assert (done.fetched, done.replaced, done.extra, done.deleted) == (1, 1, 0, 0)
    assert b"7.5" in kept(path)
    assert verified(path, source.path).count == 0
    assert content(path) == content(source.path)


def test_what_is_deleted_after_numbers_expired_is_kept_in_quarantine(source, path):
    source.append([datum(1, 1, "1.5"), datum(2, 1)])
    pull(path, source.path)
    source.delete("reftime: =2026-11-01")
    forget_deletions(source.path)
    source.append([datum(3, 1)])
    assert mend(path, source.path).deleted == 1
    assert b"1.5" in kept(path)


def test_what_gives_way_to_a_datum_with_the_same_unique_fields_is_kept_in_quarantine(source, path):
    source.append([datum(1, 1, "1.5"), datum(2, 1)])
    pull(path, source.path)
    source.append([datum(1, 1, "2.5")])
    source.close()
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
    done = reconciled(path, source.path)
    assert (done.mode, done.fetched, done.replaced) == ("foreign", 1, 1)
    assert b"1.5" in kept(path)
    assert content(path) == content(source.path)


def test_numbers_that_mean_nothing_cannot_mend_a_changed_segment(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5")])
    pull(path, source.path)
    rot(path / FIRST, b'"text":"2.5"', b'"text":"7.5"')
    source.close()
    (source.path / "index.sqlite").unlink()
    with ondisk.open(source.path) as again:
        again.fix()
    with pytest.raises(SegmentCorrupt) as caught:
        reconciled(path, source.path)
    assert f"ondisk fix {path} --salvage {FIRST} --yes" in caught.value.hint
    with ondisk.open(path) as replica:
        replica.fix(salvage=[FIRST])
    mend(path, source.path)
    assert verified(path, source.path).count == 0


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_damaged_segment_of_events_in_the_replica_is_whole_again(create, path, compression):
    source = create("source", format="seg", fields={"a": "integer"}, compression=compression)
    source.append([datum(1, a, "text") for a in range(5)])
    pull(path, source.path)
    stored = (path / "2026/11-01.seg").read_bytes()
    middle = stored[len(stored) // 2 :][:8]
    rot(path / "2026/11-01.seg", middle, bytes(each ^ 1 for each in middle))
    done = mend(path, source.path)
    assert (done.fetched > 0, done.missing, done.unmended) == (True, 0, [])
    assert verified(path, source.path).count == 0


def test_a_segment_of_the_replica_that_is_missing_may_be_on_a_disk_that_is_not_mounted(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source.path)
    (path / FIRST).rename(path / "away")
    with pytest.raises(SegmentMissing):
        reconciled(path, source.path)
    pull(path, source.path)
    (path / "away").rename(path / FIRST)
    assert verified(path, source.path).count == 0


def test_a_source_that_does_not_answer_what_it_is_asked_is_not_asked_for_ever(source, path, monkeypatch):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source.path)
    with ondisk.open(path) as replica, replica._access.transaction("replicate") as transaction:
        transaction.drop_rows([1])
        transaction.commit()
    real = PathSource.fetch

    def nothing(self: PathSource, seqs: Sequence[int], max_bytes: int) -> Records:
        return Records(replace(real(self, seqs, max_bytes).token, offset=seqs[0] - 1), Lag(0, 0), (), (), ())

    monkeypatch.setattr(PathSource, "fetch", nothing)
    with pytest.raises(IntegrityError, match="has not answered what it was asked for"):
        reconciled(path, source.path)


def test_a_comparison_that_has_no_room_for_its_temporary_file_is_an_error(source, path, monkeypatch):
    source.append([datum(1, 1)])
    pull(path, source.path)
    monkeypatch.setattr(Differences, "list_data", raised(sqlite3.OperationalError("database or disk is full")))
    with pytest.raises(StorageError, match="a temporary file for what differs: database or disk is full"):
        reconciled(path, source.path)


def raised(error: Exception) -> Callable[..., None]:
    def call(*_: Any) -> None:
        raise error

    return call


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_what_the_source_has_lost_is_known_also_if_the_comparison_was_interrupted(
    source: Dataset, path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    source.append([datum(day, day) for day in (1, 2, 3)])
    with Replica.create(path, source.path) as replica:
        replica.pull()
    next(source.path.glob("2026/11-01.*")).unlink()
    source.fix(forget=True)
    source.append([datum(4, 4)])
    source.delete("reftime: =2026-11-02")
    forget_deletions(source.path)
    if is_interrupted:
        with monkeypatch.context() as patched:
            patched.setattr(_Steps, "_end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reconciled(path, source.path)
    reconciled(path, source.path)
    with Replica.open(path, source.path) as replica:
        assert replica.pull().kept == 1
