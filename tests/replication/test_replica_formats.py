"""A replica of each format, version and encryption is equal to its source."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from replicas import content, datum, pull, rot

import ondisk
from ondisk import Datum
from ondisk.errors import AuthenticationFailed
from ondisk.replication import Replica, promote
from ondisk.replication.compare import verify
from ondisk.replication.heal import heal
from ondisk.replication.reconcile import reconcile

KEYS = "1 000102030405060708090a0b0c0d0e0f;2 " + bytes(range(32)).hex()
OTHER_KEYS = "1 ff0102030405060708090a0b0c0d0e0f;2 " + bytes(range(1, 33)).hex()
FORMATS: dict[str, dict[str, Any]] = {
    "jsonl": {"format": "jsonl"},
    "seg": {"format": "seg"},
    "seg plain": {"format": "seg", "compression": "none"},
    "seg version 0": {"format": "seg", "version": 0, "compression": "none"},
    "seg version 1": {"format": "seg", "version": 1, "compression": "none"},
    "seg protobuf": {"format": "seg", "payload": "protobuf"},
    "seg ctr": {"format": "seg", "encryption": "aes-128-ctr"},
    "seg gcm": {"format": "seg", "encryption": "aes-256-gcm"},
    "seg sequence": {"format": "seg", "step": "sequence", "segment_size": 400},
    "vm2": {"format": "vm2", "fields": {"area": "text"}, "unique": ["reftime", "area"]},
    "blob": {"format": "blob"},
}


def some(name: str, days: range, text: str = "x") -> list[Datum]:
    """Return data that a format can store."""
    if name == "vm2":
        lines = [f"202611{day:02}0000,1,227,1.2,,{text},000000000".encode() for day in days]
        return [Datum(datetime(2026, 11, day, tzinfo=UTC), {}, line) for day, line in zip(days, lines, strict=True)]
    made = [datum(day, day, text) for day in days]
    if name == "blob":
        return [Datum(each.reftime, {**each.metadata, "more": [1, {"b": text}]}, text.encode()) for each in made]
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_a_replica_of_every_format_is_equal(create, path, name, monkeypatch):
    monkeypatch.setenv("ONDISK_KEYS", KEYS)
    values = {"fields": {"a": "integer"}, "unique": ["reftime", "a"], "replace": "yes", **FORMATS[name]}
    source = create("source", **values)
    for days, text in ((range(1, 5), "x"), (range(3, 7), "new"), (range(8, 9), "y" * 2000)):
        source.append(some(name, days, text))
        pull(path, source, max_bytes=300)
    if name != "seg sequence":
        source.archive(*sorted({each.location.segment for each in source.query(with_data=False)})[:2])
        source.delete("reftime: <=2026-11-01")
    else:
        source.delete("a: =1")
    source.repack()
    pull(path, source)
    with ondisk.open(path) as replica:
        replica.repack()
        assert not replica.check(accurate=True).findings
        assert replica.fix().segments == []
    source.append(some(name, range(1, 3), "again"))
    pull(path, source)
    with promote(path) as promoted:
        assert content(promoted) == content(source)


def test_a_replica_stores_data_as_its_own_configuration_says(create, path, monkeypatch):
    monkeypatch.setenv("ONDISK_KEYS", KEYS)
    source = create("source", format="seg", fields={"a": "integer"})
    source.append(some("seg", range(1, 3)))
    with Replica.create(path, source.path):
        config = path / "dataset.toml"
        config.write_text('encryption = "aes-256-gcm"\ncompression = "none"\n' + config.read_text())
    pull(path, source)
    assert b"2026" not in (path / "2026/11-01.seg").read_bytes()
    source.append(some("seg", range(2, 5)))
    assert pull(path, source).stored == 3


@pytest.mark.parametrize("encryption", ["aes-128-ctr", "aes-256-gcm"])
def test_a_wrong_key_is_an_error_and_no_damage(create, path, encryption, monkeypatch):
    monkeypatch.setenv("ONDISK_KEYS", KEYS)
    source = create("source", format="seg", fields={"a": "integer"}, encryption=encryption)
    source.append(some("seg", range(1, 3)))
    pull(path, source)
    source.append(some("seg", range(3, 5)))
    source.close()
    monkeypatch.setenv("ONDISK_KEYS", OTHER_KEYS)
    with Replica.open(path, source.path) as replica:
        for act in (Replica.pull, verify, partial(reconcile, yes=True), partial(heal, yes=False)):
            with pytest.raises(AuthenticationFailed):
                act(replica)
    monkeypatch.setenv("ONDISK_KEYS", KEYS)
    pull(path, source.path)


@pytest.mark.parametrize("encryption", ["aes-128-ctr", "aes-256-gcm"])
def test_changed_bytes_of_an_encrypted_segment_are_damage(create, path, encryption, monkeypatch):
    monkeypatch.setenv("ONDISK_KEYS", KEYS)
    source = create("source", format="seg", fields={"a": "integer"}, encryption=encryption, compression="none")
    source.append(some("seg", range(1, 3)))
    source.close()
    file = source.path / "2026/11-01.seg"
    begin = file.read_bytes()[32:]
    rot(file, begin, bytes(each ^ 0xFF for each in begin))
    with Replica.create(path, source.path) as replica:
        assert replica.pull().missing == 1


def test_a_plain_segment_whose_header_says_that_it_is_encrypted_is_damage(create, path):
    source = create("source", format="seg", fields={"a": "integer"}, compression="none")
    source.append(some("seg", range(1, 3)))
    source.close()
    file = source.path / "2026/11-01.seg"
    rot(file, b"\x02\x00\x00\x00", b"\x03\x00\x00\x00")
    with Replica.create(path, source.path) as replica:
        assert replica.pull().missing == 1


def test_data_of_several_formats_are_replicated(source, path, tmp_path):
    source.append([datum(1, 1)])
    (tmp_path / "lines.vm2").write_bytes(b"202611010000,1,227,1.2,,,000000000\n202611020000,1,227,1.2,,,000000000\n")
    source.append_file(tmp_path / "lines.vm2")
    source.append([datum(1, 2)])
    assert pull(path, source).stored == 4


def test_data_that_the_replica_cannot_store_are_listed(source, path):
    source.append([datum(1, 1), datum(2, 1, "x" * 100), datum(3, 1)])
    with Replica.create(path, source.path):
        config = path / "dataset.toml"
        config.write_text("max_datum_size = 90\n" + config.read_text())
    with Replica.open(path, source.path) as replica:
        pulled = replica.pull()
        assert (pulled.stored, pulled.missing) == (2, 1)
        assert "max_datum_size of the replica, 90" in pulled.differences[0].reason
    config.write_text(config.read_text().replace("90", "900"))
    assert pull(path, source).missing == 0
