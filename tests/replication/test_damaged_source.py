"""Bytes that have changed on disk are never served as good, and a good copy of them is never lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from replicas import FIRST, content, datum, numbered, pull, rot, wrong
from worlds import lose_index

import ondisk
from ondisk import Dataset, Datum, formats
from ondisk.replication import Replica
from ondisk.replication.compare import verify
from ondisk.replication.feed import Kind
from ondisk.replication.heal import heal
from ondisk.replication.reconcile import reconcile
from ondisk.replication.source import source_of

VALUE, OTHER = b'"text":"2.5"', b'"text":"7.5"'


@pytest.fixture
def damaged(source: Dataset, path: Path) -> Iterator[Dataset]:
    """Yield a source in which a digit of a datum has changed on disk after a pull."""
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(1, 3, "3.5"), datum(2, 1, "4.5")])
    pull(path, source)
    rot(source.path / FIRST, VALUE, OTHER)
    source.close()
    with ondisk.open(source.path) as dataset:
        yield dataset


def held(path: Path) -> Counter[str]:
    with ondisk.open(path, read_only=True) as dataset:
        return content(dataset)


def kinds(dataset: Dataset) -> list[Kind]:
    return [each.kind for each in dataset.changes().changes]


def test_data_of_a_segment_without_its_checksum_are_not_served(damaged, path, tmp_path):
    assert kinds(damaged) == [*[Kind.UNREADABLE] * 3, Kind.APPENDED]
    with Replica.create(tmp_path / "other", damaged.path) as other:
        pulled = other.pull()
        assert (pulled.stored, pulled.missing) == (1, 3)
        assert "do not have their checksum" in pulled.differences[0].reason
    with Replica.open(path, damaged.path) as replica:
        found = verify(replica)
    assert (found.unreadable, found.count) == (3, 3)


def test_bytes_that_change_while_a_source_is_open_are_not_served_either(source, path, tmp_path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(2, 1, "4.5")])
    with source_of(source.path) as opened:  # as in a server
        with Replica.create(path, opened) as replica:
            assert replica.pull().stored == 3
        before = held(path)
        rot(source.path / FIRST, VALUE, OTHER)
        with Replica.create(tmp_path / "other", opened) as other:
            pulled = other.pull()
            assert (pulled.stored, pulled.missing) == (1, 2)
        with Replica.open(path, opened) as replica:
            assert (verify(replica).unreadable, reconcile(replica, yes=True).replaced) == (2, 0)
        source.append([datum(1, 4, "5.5")])
        with Replica.open(path, opened) as replica:
            assert replica.pull().missing == 1
    assert held(path) == before


def test_data_that_neither_side_can_read_are_named(damaged, path):
    rot(path / FIRST, VALUE, OTHER)
    with Replica.open(path, damaged.path) as replica:
        assert verify(replica).damaged == 3
        for yes in (False, True):
            assert (heal(replica, yes=yes).left, reconcile(replica, yes=yes).missing) == (3, 3)
        assert "from a backup" in heal(replica, yes=False).reasons[0][1]


def test_a_good_copy_stays_where_its_source_has_changed(damaged, path):
    before = held(path)
    with Replica.open(path, damaged.path) as replica:
        done = reconcile(replica, yes=True)
        assert (done.kept, done.fetched, done.replaced, done.deleted) == (3, 0, 0, 0)
        assert replica.pull().missing == 0
    assert held(path) == before


def test_a_changed_segment_has_its_bytes_again_after_a_heal(damaged, path, tmp_path):
    with ondisk.open(path) as replica:
        before = numbered(replica)
    with Replica.open(path, damaged.path) as replica:
        assert heal(replica, yes=False).unreadable == 3
        done = heal(replica, yes=True)
        assert (done.unreadable, done.lost, done.left, done.bytes) == (3, 0, 0, 53)
    assert numbered(damaged) == before
    assert not wrong(damaged)
    (item,) = damaged.path.glob("2026/.quarantine/*.jsonl")
    assert OTHER in item.read_bytes()
    with Replica.open(path, damaged.path) as replica:
        assert verify(replica).count == 0
    pull(tmp_path / "other", damaged)


def test_a_copy_that_is_another_datum_is_not_written_into_a_segment(damaged, path):
    with ondisk.open(path) as replica, replica._access.transaction("fix") as transaction:
        for new, old in ((9, 2), (2, 4), (4, 9)):  # the reftimes are others now
            transaction.connection.execute("UPDATE datum SET seq = ? WHERE seq = ?", (new, old))
        transaction.commit()
    before = (damaged.path / FIRST).read_bytes()
    with Replica.open(path, damaged.path) as replica:
        assert heal(replica, yes=True).left > 0
    assert (damaged.path / FIRST).read_bytes() == before


def test_what_cannot_be_parsed_any_more_is_unreadable_and_heals(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5")])
    pull(path, source)
    rot(source.path / FIRST, b'"text":"1.5"}\n', b"]text}[1.5\0\0\0\0")
    with ondisk.open(source.path) as again, Replica.open(path, source.path) as replica:
        assert verify(replica).unreadable == 2
        assert heal(replica, yes=True).unreadable == 2
        assert verify(replica).count == 0
        assert not wrong(again)


def test_a_changed_segment_of_an_archive_is_mended(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5")])
    pull(path, source)
    source.archive(FIRST)
    rot(source.path / ".archive/last" / FIRST, VALUE, OTHER)
    with ondisk.open(source.path) as again, Replica.open(path, source.path) as replica:
        before = held(path)
        assert verify(replica).unreadable == 2
        done = heal(replica, yes=True)
        assert (done.unreadable, done.left) == (2, 0)
        assert verify(replica).count == 0
        assert content(again) == before
        assert not wrong(again)


def test_deleted_bytes_that_have_changed_are_no_reason_to_lose_data(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5"), datum(1, 3, "3.5")])
    source.delete("a: =2")
    pull(path, source)
    rot(source.path / FIRST, VALUE, OTHER)
    with ondisk.open(source.path) as again, Replica.open(path, source.path) as replica:
        assert verify(replica).unreadable == 2
        assert heal(replica, yes=True).unreadable == 2
        assert verify(replica).count == 0
        assert not wrong(again)
        again.append([datum(1, 4)])
        again.repack()
        assert not wrong(again)


@pytest.mark.check
@pytest.mark.parametrize(
    ("deleted", "size"),
    [(1, 3), (2, 3), (3, 3), (1, 600_000)],
    ids=["first", "middle", "last", "more than a scan reads together"],
)
def test_deleted_bytes_that_have_changed_do_not_stop_a_scan_after_a_heal(source, path, deleted, size):
    source.append([datum(1, 1, "x" * size), datum(1, 2, "2.5"), datum(1, 3, "3.5")])
    source.delete(f"a: ={deleted}")
    pull(path, source)
    before = held(path)
    rot(source.path / FIRST, b'"a":%d' % deleted, b'"a":}')
    with Replica.open(path, source.path) as replica:
        heal(replica, yes=True)
    source.close()
    lose_index(source.path)
    with ondisk.open(source.path) as again:
        again.fix()
        assert not wrong(again)
        assert held(source.path) == before
        assert again.append([datum(1, 4)]).imported == 1


def test_a_segment_of_a_format_with_nothing_between_its_data_is_mended(tmp_path, path, monkeypatch):
    monkeypatch.setitem(formats._BUILT_IN, "records", ("record_format", "Records"))
    days = [datetime(2026, 11, 1, hour, tzinfo=UTC) for hour in range(3)]
    with ondisk.create(tmp_path / "records", {"format": "records", "step": "daily"}) as made:
        made.append(Datum(day, {}, b"payload-%d" % day.hour) for day in days)
        made.delete("reftime: =2026-11-01 01:00")
    pull(path, made.path)
    for payload in (b"payload-1", b"payload-2"):
        rot(made.path / "2026/11-01.records", payload, payload.upper())
    with Replica.open(path, made.path) as replica:
        assert heal(replica, yes=True).unreadable == 2
        assert verify(replica).count == 0
    with ondisk.open(made.path) as again:
        assert [datum.data for datum in again.query()] == [b"payload-0", b"payload-2"]
        assert not wrong(again)


def test_data_that_the_replica_lacks_are_proven_by_the_checksum(source, path):
    source.append([datum(1, 1, "1.5"), datum(1, 2, "2.5")])
    pull(path, source)
    source.append([datum(1, 3, "3.5")])
    rot(source.path / FIRST, VALUE, OTHER)
    with Replica.open(path, source.path) as replica:
        assert replica.pull().missing == 1
        assert heal(replica, yes=True).left == 0
        replica._retried = None
        assert (replica.pull().stored, verify(replica).count) == (1, 0)
