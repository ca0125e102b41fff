"""What `info` says of how data are stored: as configured, and as the segments are. The rest is in test_dataset."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest
from formats.diskqueue.test_golden import GOLDEN
from worlds import lose_index

import ondisk
from ondisk import Datum, keys
from ondisk.keys import Key, KeyRing

T = datetime(2026, 11, 20, tzinfo=UTC)
LZ4 = {"version": 2, "payload": "cbor", "compression": "lz4", "encryption": "none"}
WAYS = [
    ({}, LZ4),
    ({"compression": "none"}, {**LZ4, "compression": "none"}),
    ({"payload": "protobuf"}, {**LZ4, "payload": "protobuf"}),
    ({"version": 1}, {**LZ4, "version": 1, "compression": "none"}),
    ({"version": 0}, {"version": 0, "payload": "json", "compression": "none", "encryption": "none"}),
    ({"encryption": "aes-128-ctr"}, {**LZ4, "encryption": "aes-128-ctr"}),
    ({"encryption": "aes-256-gcm"}, {**LZ4, "version": 256, "compression": "none", "encryption": "aes-256-gcm"}),
]


@pytest.fixture(autouse=True)
def ring():
    keys.use(KeyRing([Key(1, b"keykeykeykeykeyk"), Key(2, bytes(32))], "a test"))
    yield
    keys.use(None)


@pytest.mark.parametrize(
    ("step", "segments"), [("daily", ["2026/11-20"]), ("hourly", ["2026/11-20T06", "2026/11-20T23"])]
)
def test_the_segments_that_reach_an_age_first_are_named_with_the_day(create, step, segments):
    dataset = create(format="jsonl", step=step, archive_age=10_000, delete_age=20_000)
    with dataset:
        assert (dataset.info()["to_archive"], dataset.info()["to_delete"]) == (None, None)
        dataset.append([Datum(T + timedelta(hours=hour)) for hour in (6, 23, 24 + 6)])
        names = [f"{each}.jsonl" for each in segments]
        info = dataset.info()
        assert (info["archive_age"], info["delete_age"]) == (10_000, 20_000)
        assert info["to_archive"] == {"at": T + timedelta(days=10_001), "segments": names}
        assert info["to_delete"] == {"at": T + timedelta(days=20_001), "segments": names}
        dataset.archive(*names)
        (later,) = {*dataset.info()["to_archive"]["segments"]}
        assert later.startswith("2026/11-21")
        assert dataset.info()["to_delete"]["segments"] == [f".archive/last/{name}" for name in names]


def test_an_age_that_no_calendar_reaches_is_never(create):
    with create(format="jsonl", delete_age=4_000_000) as dataset:
        dataset.append([Datum(T)])
        assert (dataset.info()["to_archive"], dataset.info()["to_delete"]) == (None, None)


def how(info):
    return {key: info[key] for key in LZ4}


@pytest.mark.parametrize(("config", "expected"), WAYS)
def test_what_is_configured_and_what_the_segments_are_is_named_without_keys(config, expected, create):
    with create(format="seg", **config) as dataset:
        dataset.append([Datum(T + timedelta(days=n), {}, {"n": n}) for n in range(3)])
        path = dataset.path
    keys.use(KeyRing())
    with ondisk.open(path, read_only=True) as dataset:
        info = dataset.info()
    assert how(info) == expected
    assert info["stored"] == [{"format": "seg", **expected, "segments": 3}]


def test_a_changed_configuration_is_reported_from_what_the_segments_are(create, tmp_path):
    with create(format="seg", encryption="aes-128-ctr") as dataset:
        dataset.append([Datum(T + timedelta(days=n), {}, {"n": n}) for n in range(3)])
        lines = tmp_path / "x.jsonl"
        path = dataset.path
    lose_index(path)  # what a fix has read is marked in the index, but not stored in another way
    with ondisk.open(path) as dataset:
        dataset.fix()
    text = (path / "dataset.toml").read_text()
    (path / "dataset.toml").write_text(text.replace('encryption = "aes-128-ctr"', "version = 1"))
    lines.write_text('{"reftime": "2026-12-01T06:00:00Z"}\n')
    with ondisk.open(path) as dataset:
        dataset.append([Datum(T + timedelta(days=5), {}, {"n": 5})])
        dataset.append_file(lines)
        info = dataset.info()
        dataset.repack(rewrite=True)
        after = dataset.info()["stored"]
    now = {**LZ4, "version": 1, "compression": "none"}
    assert how(info) == now
    assert sorted(info["stored"], key=str) == sorted([
        {"format": "jsonl", "segments": 1},
        {"format": "seg", **now, "segments": 1},
        {"format": "seg", **LZ4, "encryption": "aes-128-ctr", "segments": 3},
    ], key=str)  # fmt: skip
    assert sorted(after, key=str) == sorted([
        {"format": "jsonl", "segments": 1},
        {"format": "seg", **now, "segments": 4},
    ], key=str)  # fmt: skip


def test_a_draft_is_named_as_far_as_it_says_how_it_is_stored(tmp_path):
    shutil.copytree(GOLDEN / "v3draft-lz4stream", tmp_path / "queue")
    ondisk.adopt(tmp_path / "queue")
    with ondisk.open(tmp_path / "queue", read_only=True) as dataset:
        stored = dataset.info()["stored"]
    found = {(each["version"], each["compression"], each["encryption"]) for each in stored}
    assert found == {(3, "lz4", "aes-128-ctr")}
