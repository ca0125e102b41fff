"""Dry runs try the keys that the real run needs, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from worlds import change_config

import ondisk
from ondisk import Datum, keys
from ondisk.errors import AuthenticationFailed, KeyMissing
from ondisk.keys import Key, KeyRing
from ondisk.maintenance.states import State

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
OLD, NEW = Key(1, bytes(32)), Key(2, bytes(range(32)))


@pytest.fixture
def events(tmp_path):
    """Return an encrypted dataset whose first datum has an old key, and was deleted."""
    keys.use(KeyRing([OLD], "a test"))
    with ondisk.create(tmp_path / "events", {"step": "daily", "encryption": "aes-256-gcm"}) as dataset:
        dataset.append([Datum(T, {}, {"n": 0})])
        keys.use(KeyRing([OLD, NEW], "a test"))
    with ondisk.open(tmp_path / "events") as dataset:
        dataset.append(Datum(T + timedelta(seconds=n), {}, {"n": n}) for n in (1, 2))
        dataset.delete("reftime:=2026-11-20 06:00:00")
        yield dataset
    keys.use(None)


def test_the_key_of_deleted_data_is_not_needed(events):
    keys.use(KeyRing([NEW], "a test"))
    assert [each.action for each in events.repack(dry_run=True)] == ["repack"]
    assert [(each.action, each.failed) for each in events.repack()] == [("repack", False)]


@pytest.mark.parametrize(("known", "error"), [(KeyRing(), KeyMissing), (KeyRing([OLD]), KeyMissing),
    (KeyRing([Key(2, bytes(32))]), AuthenticationFailed)])  # fmt: skip
def test_a_segment_of_the_archive_is_tried_too(events, known, error):
    (segment,) = events.check()
    events.archive(segment.segment)
    path = events.path
    keys.use(known)
    with ondisk.open(path) as dataset:
        with pytest.raises(error) as planned:
            dataset.repack(dry_run=True)
        with pytest.raises(error) as real:
            dataset.repack()
    assert str(planned.value) == str(real.value)
    (held,) = planned.value.context["report"]
    assert (held.segment, held.held) == (f".archive/last/{segment.segment}", True)


def test_a_dry_run_reports_that_changed_bytes_are_read_again_after_a_check_has_recorded_them(create):
    with create(format="seg", step="daily", compression="none") as dataset:
        dataset.append(Datum(T + timedelta(seconds=n), {}, {"n": n, "text": "x" * 100}) for n in range(200))
        (segment,) = dataset.check()
        with (dataset.path / segment.segment).open("r+b") as file:
            file.seek(900)
            file.write(b"\x00")
        (recorded,) = dataset.check(max_duration=10)
        assert (recorded.state.names, recorded.action) == (["CORRUPTED"], None)
        (planned,) = dataset.fix(dry_run=True)
        (done,) = dataset.fix()
        assert (planned.state, planned.action) == (done.state, "rescan") == (State.UNALIGNED, done.action)


def test_a_dry_run_reads_the_files_of_a_folder_that_were_touched(create, tmp_path):
    with create(format="blob", step="daily") as dataset:
        dataset.append(Datum(T + timedelta(seconds=n), {}, b"picture %d" % n) for n in range(4))
        next(dataset.path.rglob("000002*")).write_bytes(b"Picture 2")
        assert dataset.check().is_clean
        planned = dataset.fix(dry_run=True)
        assert (planned.ok, [each.action for each in planned.findings]) == (0, ["rescan"])
        (done,) = dataset.fix()
        assert (done.action, done.lost) == ("rescan", 1)


@pytest.mark.parametrize("to", ["", ".archive/last/", ".archive/other/"])
def test_a_dry_run_says_that_what_was_moved_by_hand_is_deleted_where_it_is_now(create, to):
    now = datetime.now(UTC)
    with create(format="jsonl", step="daily") as dataset:
        dataset.append(Datum(now - timedelta(days=days), {}, {"n": days}) for days in (100, 3, 2, 1))
        name = f"{now - timedelta(days=100):%Y/%m-%d}.jsonl"
        dataset.archive(name)
        dataset.rename_archive("last", "kept")
    path = dataset.path
    change_config(path, "step =", "delete_age = 50\nstep =")
    (path / to / name).parent.mkdir(parents=True, exist_ok=True)
    (path / ".archive/kept" / name).rename(path / to / name)
    with ondisk.open(path) as again:
        planned = {each.segment: each.action for each in again.repack(dry_run=True) if each.state}
        done = {each.segment: each.action for each in again.repack() if each.state}
    assert planned == done
    assert done == {f".archive/kept/{name}": "follow"} | ({} if "other" in to else {f"{to}{name}": "delete"})
