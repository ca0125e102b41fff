"""What a source has lost returns from its replica; what somebody deleted does not."""

from __future__ import annotations

import io
import random
import shutil

import pytest
from replicas import FIRST, SECOND, content, datum, numbered, pull, rot, wrong

import ondisk
from ondisk import Datum
from ondisk.errors import StateError, TokenExpired
from ondisk.replication import Replica, compare
from ondisk.replication.compare import verify
from ondisk.replication.heal import Healed, heal
from ondisk.replication.reconcile import reconcile


def healed(path, source, *, yes: bool = True) -> Healed:
    with Replica.open(path, source.path) as replica:
        return heal(replica, yes=yes)


def test_what_the_source_has_lost_returns_under_its_number(source, path, tmp_path):
    source.append([datum(1, 1), datum(1, 2), datum(1, 3), datum(2, 1)])
    source.delete("a: =3")
    pull(path, source)
    pull(tmp_path / "other", source)
    before = numbered(source)
    (source.path / FIRST).unlink()
    source.fix(forget=True)
    assert source.info()["count"] == 1
    with Replica.open(path, source.path) as replica:
        assert replica.pull().kept == 2
        assert verify(replica).lost == 2
    assert (healed(path, source, yes=False).lost, source.info()["count"]) == (2, 1)
    done = healed(path, source)
    assert (done.lost, done.unreadable, done.left) == (2, 0, 0)
    assert numbered(source) == before
    pull(path, source)
    with Replica.open(path, source.path) as replica:
        assert replica.pull().kept == 0
        assert verify(replica).count == 0
    with Replica.open(tmp_path / "other", source.path) as replica:
        with pytest.raises(TokenExpired):
            replica.pull()
        assert reconcile(replica, yes=True).fetched == 0
        assert replica.pull().kept == 0
    assert healed(path, source).lost == 0


def test_bytes_that_cannot_be_read_return(create, path):
    source = create("source", format="seg", fields={"a": "integer"}, compression="none")
    source.append([datum(1, a, f"text {a}") for a in range(5)])
    pull(path, source)
    before = numbered(source)
    (name,) = {each.location.segment for each in source.query(with_data=False)}
    rot(source.path / name, b"text 1", b"TEXT 1")
    with Replica.open(path, source.path) as replica:
        assert verify(replica).unreadable == 1
    done = healed(path, source)
    assert (done.lost, done.unreadable, done.left) == (0, 1, 0)
    assert numbered(source) == before
    assert not wrong(source)
    pull(path, source)
    with Replica.open(path, source.path) as replica:
        assert verify(replica).count == 0


@pytest.mark.parametrize("values", [{"compression": "lz4"}, {"encryption": "aes-256-gcm"}, {"compression": "none"}],
                         ids=lambda values: "-".join(values.values()))  # fmt: skip
def test_bytes_in_an_archive_that_cannot_be_read_return(create, path, monkeypatch, values):
    monkeypatch.setenv("ONDISK_KEYS", "1 " + bytes(range(32)).hex())
    source = create("source", format="seg", fields={"a": "integer"}, unique=["reftime", "a"], **values)
    source.append([*(datum(1, a, f"text {a}") for a in range(5)), datum(2, 1)])
    pull(path, source)
    before = numbered(source)
    source.archive("2026/11-01.seg")
    archived = source.path / ".archive/last/2026/11-01.seg"
    middle = archived.read_bytes()[archived.stat().st_size // 2 :][:8]
    rot(archived, middle, bytes(each ^ 1 for each in middle))
    promised, done = healed(path, source, yes=False), healed(path, source)
    assert (done.lost, done.unreadable, done.left) == (0, promised.unreadable, 0)
    assert promised.unreadable > 0
    assert numbered(source) == before
    pull(path, source)
    with Replica.open(path, source.path) as replica:
        assert verify(replica).count == 0
    with ondisk.open(source.path) as again:
        assert again.count() == 6
        assert again.append([datum(1, 1)]).duplicates == 1


def test_what_somebody_deleted_or_replaced_meanwhile_stays(source, path):
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pull(path, source)
    (source.path / FIRST).unlink()
    source.fix(forget=True)
    with Replica.open(path, source.path) as replica:
        replica.pull()
    source.append([datum(1, 2, "new")])
    source.delete("reftime: =2026-11-02")
    done = healed(path, source)
    assert (done.lost, done.left) == (1, 1)
    assert "same unique fields" in done.reasons[0][1]
    with ondisk.open(source.path) as dataset:
        assert sorted(each.data["text"] for each in dataset.query()) == ["new", "x"]


@pytest.mark.parametrize("values", [{}, {"encryption": "aes-128-ctr"}], ids=["plain", "ctr"])
def test_data_of_a_block_that_cannot_be_decompressed_return(create, path, monkeypatch, values):
    monkeypatch.setenv("ONDISK_KEYS", "1 000102030405060708090a0b0c0d0e0f")
    source = create("source", format="seg", fields={"a": "integer"}, **values)
    source.append([datum(1, a, "text" * 20) for a in range(20)])
    pull(path, source)
    before = numbered(source)
    source.close()
    stored = (source.path / "2026/11-01.seg").read_bytes()
    middle = stored[len(stored) // 2 :][:8]
    rot(source.path / "2026/11-01.seg", middle, bytes(each ^ 0xFF for each in middle))
    done = healed(path, source)
    assert (done.lost, done.unreadable, done.left) == (0, 20, 0)
    with ondisk.open(source.path) as again:
        assert numbered(again) == before
    pull(path, source.path)


def test_what_is_deleted_during_a_heal_stays_deleted(source, path, monkeypatch):
    source.append([datum(1, 1), datum(1, 2)])
    pull(path, source)
    (source.path / FIRST).unlink()
    source.fix(forget=True)

    find_reasons = compare.find_reasons

    def decided(*arguments):
        find_reasons(*arguments)
        with source._access.transaction("delete") as transaction:
            transaction.connection.execute("UPDATE deletion SET forgotten = 0 WHERE datum = 2")
            transaction.commit()

    monkeypatch.setattr(compare, "find_reasons", decided)
    with Replica.open(path, source.path) as replica:
        replica.pull()
        done = heal(replica, yes=True)
    assert (done.lost, done.left) == (1, 1)
    assert "deleted" in done.reasons[0][1]


def test_an_archived_segment_that_is_not_on_disk_does_not_keep_others_from_returning(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    for each in (FIRST, SECOND):
        (source.path / each).unlink()
    source.fix(forget=True)
    source.append([datum(1, 1, "again")])
    source.archive(FIRST)
    (source.path / ".archive/last" / FIRST).rename(source.path.parent / "away")
    done = healed(path, source)
    assert (done.lost, done.left) == (1, 1)
    assert "another datum with the same unique fields" in done.reasons[0][1]
    with ondisk.open(source.path) as again:
        assert again.count("reftime: =2026-11-02") == 1


def test_a_missing_segment_is_not_touched(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    (source.path / FIRST).rename(source.path / "away")
    done = healed(path, source)
    assert (done.unreadable, done.left) == (0, 1)
    assert FIRST in done.reasons[0][1]
    (source.path / "away").rename(source.path / FIRST)
    pull(path, source)
    assert content(source)


def test_a_replica_in_between_is_not_healed(source, path, tmp_path):
    source.append([datum(1, 1)])
    pull(path, source)
    pull(tmp_path / "last", path)
    with Replica.open(tmp_path / "last", path) as replica, pytest.raises(StateError, match="is a replica"):
        heal(replica, yes=True)


def test_what_the_replica_never_had_keeps_a_damaged_segment_from_healing(source, path):
    source.append([datum(1, 1, "text 1"), datum(1, 2, "text 2")])
    pull(path, source)
    source.append([datum(1, 3, "text 3")])
    rot(source.path / FIRST, b"text 3", b"text 4")
    with Replica.open(path, source.path) as replica:
        assert replica.pull().missing == 1
    done = healed(path, source)
    assert (done.unreadable, done.left) == (0, 2)
    assert "1 of its data have no good copy" in done.reasons[0][1]
    assert len(content(source)) == 3
    rot(source.path / FIRST, b"text 4", b"text 3")
    pull(path, source)


def test_a_damaged_file_of_a_datum_returns(create, path):
    source = create("source", format="blob", extension="h5", fields={"a": "integer"})
    source.append([Datum(datum(1, a).reftime, {"a": a}, f"text {a}".encode()) for a in range(3)])
    pull(path, source)
    before = numbered(source)
    (name,) = {each.location.segment for each in source.query(with_data=False)}
    rot(source.path / name / "000001.h5", b"text 1", b"TEXT 1")
    done = healed(path, source)
    assert (done.lost, done.unreadable, done.left) == (0, 1, 0)
    assert numbered(source) == before
    pull(path, source)


def test_data_whose_segment_takes_no_more_do_not_keep_others_from_returning(create, path, monkeypatch):
    """A copied segment in counter mode is rewritten before anything is appended to it; but its bytes have changed."""
    monkeypatch.setenv("ONDISK_KEYS", "1 000102030405060708090a0b0c0d0e0f")
    source = create("source", format="seg", fields={"a": "integer"}, encryption="aes-128-ctr", compression="none")
    long = random.Random(1).randbytes(9000).hex()
    source.append([datum(1, 1), datum(1, 2, long), datum(2, 1), datum(2, 2, long)])
    pull(path, source)
    names = sorted({each.location.segment for each in source.query(with_data=False)})
    source.close()
    for name in names:
        content = (source.path / name).read_bytes()
        rot(source.path / name, content[70:90], bytes(20))
    copied = source.path / names[0]
    shutil.copy2(copied, source.path / "copy")
    (source.path / "copy").rename(copied)
    done = healed(path, source)
    assert (done.unreadable, done.left) == (1, 1)
    assert names[0] in done.reasons[0][1]


@pytest.mark.parametrize("is_maintained", [True, False])
@pytest.mark.parametrize("format", ["vm2", "jsonl"])
def test_a_text_that_was_altered_in_the_replica_does_not_return(create, path, format, is_maintained):
    source = create("source", format=format, fields={"area": "text"} if format == "vm2" else {"a": "integer"})
    for day in (1, 2, 3):
        if format == "vm2":
            text = "".join(f"202611{day:02}00{minute:02},{minute},1,24,,,000000000\n" for minute in range(3))
        else:
            times = (f"2026-11-{day:02}T00:{minute:02}:00Z" for minute in range(3))
            text = "".join(f'{{"reftime":"{time}","a":1,"n":24}}\n' for time in times)
        source.append_file(io.BytesIO(text.encode()), format)
    pull(path, source)
    stored = numbered(source)
    first, second, _ = sorted(each.segment for each in source.check())
    altered = path / first
    altered.write_bytes(altered.read_bytes().replace(b"24", b"99", 1))  # its last bytes differ, or its time
    if is_maintained:
        with ondisk.open(path) as replica:
            assert replica.fix().lost == 1
            replica.repack()
    for name in (first, second):
        (source.path / name).unlink()
    source.fix(forget=True)
    with Replica.open(path, source.path) as replica:
        replica.pull()
    planned, done = healed(path, source, yes=False), healed(path, source)
    assert (done.lost, done.left) == (3, 3)
    assert (planned.lost, planned.left) == (3, 3) or not is_maintained
    assert all(first in reason for _, reason in done.reasons)
    assert all(each in stored for each in numbered(source))
    assert not wrong(source)
