from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from kit import EVERY_TYPE
from worlds import fail, locked, lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import (
    ConfigError,
    DiskFull,
    DurabilityLost,
    InvalidInput,
    LimitExceeded,
    NotFound,
    SegmentCorrupt,
    StorageError,
)
from ondisk.filesystem import Directory
from ondisk.filesystem.lock import is_locked
from ondisk.formats.vm2 import Vm2
from ondisk.index import INDEX
from ondisk.index.connections import Connections
from ondisk.index.transaction import Transaction

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.jsonl"


def names(path):
    return sorted(each.name for each in path.iterdir())


def numbers(dataset):
    return [datum.data["n"] for datum in dataset.query()]


def data(*given, **metadata):
    """Data of T that are told apart by their number."""
    return [Datum(T, metadata, {"n": n}) for n in given]


def at(hour, n=0, **metadata):
    return Datum(T.replace(hour=hour), metadata, {"n": n})


def statuses(result):
    return [outcome.status for outcome in result.outcomes]


def counts(result):
    return (result.imported, result.duplicates, result.replaced, result.refused)


def segment(dataset, name=SEGMENT):
    return (dataset.path / name).read_bytes()


def line(n, hour=6):
    return json.dumps({"reftime": f"2026-11-20T{hour:02}:00:00Z", "n": n}, separators=(",", ":")).encode() + b"\n"


# What comes in, and what becomes of it


def test_data_are_stored_one_after_the_other_in_the_segment_of_their_time(create):
    dataset = create()
    result = dataset.append([at(6, 1), at(5, 2), Datum(T + timedelta(days=1), {}, {"n": 3})])
    assert segment(dataset) == line(1) + line(2, 5)
    assert segment(dataset, "2026/11-21.jsonl").count(b"\n") == 1
    assert counts(result) == (3, 0, 0, 0)
    assert (result.count, result.segments) == (3, 2)
    assert result.bytes == len(line(1) + line(2, 5) + segment(dataset, "2026/11-21.jsonl")) - 3
    assert result.outcomes is None


def test_every_datum_is_acked_with_what_became_of_it(create):
    dataset = create(fields=EVERY_TYPE, unique=["station"])
    given = [
        *data(1, station=1),
        *data(2, station=2),
        *data(3, station=1),
        Datum(T, {"station": "x"}),
        *data(4, station=3),
    ]
    result = dataset.append(given, outcomes=True)
    assert statuses(result) == ["imported", "imported", "duplicate", "refused", "imported"]
    assert [outcome.reason for outcome in result.outcomes].count(None) == 4
    assert "declared integer" in result.outcomes[3].reason
    assert counts(result) == (3, 1, 0, 1)
    assert result.refusals == [(3, result.outcomes[3].reason)]
    assert numbers(dataset) == [1, 2, 4]


def test_nothing_is_appended_from_nothing(create):
    dataset = create()
    before = names(dataset.path)
    assert dataset.append([], outcomes=True).outcomes == []
    assert dataset.append_file(io.BytesIO(b"\n\n")).count == 0
    assert names(dataset.path) == before


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100])
def test_the_result_is_that_of_all_batches(create, batch_size):
    dataset = create(fields=EVERY_TYPE, unique=["station"])
    given = [Datum(T, {"station": n % 5 if n != 4 else "x"}, {"n": n}) for n in range(20)]
    result = dataset.append(iter(given), outcomes=True, batch_size=batch_size)
    assert statuses(result) == ["imported"] * 4 + ["refused"] + ["duplicate"] * 4 + ["imported"] + ["duplicate"] * 10
    assert counts(result) == (5, 14, 0, 1)
    assert result.refusals == [(4, result.outcomes[4].reason)]
    assert result.segments == 1
    assert numbers(dataset) == [0, 1, 2, 3, 9]


def test_only_the_first_refusals_are_kept_and_all_are_counted(create):
    result = create().append((Datum(T, {"x": 1}) for _ in range(250)), batch_size=70)
    assert result.refused == 250
    assert [position for position, _ in result.refusals] == list(range(100))


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, None, "5"])
def test_a_batch_size_is_a_whole_number(create, batch_size):
    dataset = create()
    with pytest.raises(InvalidInput, match="batch_size"):
        dataset.append([], batch_size=batch_size)
    with pytest.raises(InvalidInput, match="batch_size"):
        dataset.append_file(io.BytesIO(b""), batch_size=batch_size)


def test_a_batch_ends_at_its_bytes_too(create, monkeypatch):
    monkeypatch.setattr("ondisk.dataset.append.BATCH_BYTES", 1000)
    commits = []
    commit = Transaction.commit
    monkeypatch.setattr(Transaction, "commit", lambda self: commits.append(1) or commit(self))
    dataset = create()
    commits.clear()
    dataset.append(Datum(T, {}, {"n": n, "filling": "x" * 900}) for n in range(200))
    assert len(commits) > 1
    assert numbers(dataset) == list(range(200))


# Duplicates


def test_reftime_counts_only_where_it_is_listed(create):
    with_reftime, without = (
        create("a", fields=EVERY_TYPE, unique=["reftime", "station"]),
        create("b", fields=EVERY_TYPE, unique=["station"]),
    )
    given = [at(6, 1, station=1), at(7, 2, station=1)]
    assert counts(with_reftime.append(given)) == (2, 0, 0, 0)
    assert counts(without.append(given)) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("unique", "warnings"),
    [
        (["reftime"], []),
        (
            ["reftime", "station"],
            ["2 duplicates lack station, which `unique` names: only one datum without it is stored for each reftime"],
        ),
        (
            ["station", "product"],
            ["3 duplicates lack station and product, which `unique` names: only one datum without them is stored"],
        ),
    ],
)
@pytest.mark.parametrize("replace", ["no", "yes"])
def test_duplicates_that_no_unique_field_tells_apart_are_warned_about(create, unique, warnings, replace):
    dataset = create(unique=unique, replace=replace, fields={"station": "integer", "product": "text"})
    first, later = data(1, 2, 3), [at(7), at(8, station=5), at(8, station=5)]
    assert dataset.append([*first, *later], batch_size=2).warnings == warnings


@pytest.mark.parametrize("replace", ["no", "yes"])
def test_data_of_which_none_has_the_unique_fields_are_warned_about(create, replace):
    dataset = create(unique=["reftime", "station"], replace=replace, fields={"station": "integer"})
    known = "which `unique` names: only one datum without it is stored for each reftime"
    assert dataset.append([]).warnings == []
    assert dataset.append([at(5)]).warnings == [f"the datum has no station, {known}"]
    assert dataset.append([*data(1, 2), at(7)], batch_size=1).warnings == [f"none of the 3 data has station, {known}"]
    assert dataset.append([at(9), at(10, station=5)], batch_size=1).warnings == []


def test_a_duplicate_leaves_no_bytes_in_its_segment(create):
    dataset = create(unique=["reftime"])
    dataset.append([at(6, 1), at(7, 2), at(6, 3), at(8, 4), at(7, 5)])
    expected = line(1) + line(2, 7) + line(4, 8)
    assert segment(dataset) == expected
    result = dataset.append([at(8, 6), at(9, 7), at(6, 8), at(10, 9)])
    assert segment(dataset) == expected + line(7, 9) + line(9, 10)
    assert result.bytes == len(line(7, 9) + line(9, 10)) - 2
    assert [dataset.read(datum.location).data["n"] for datum in dataset.query()] == [1, 2, 4, 7, 9]


def test_a_segment_of_duplicates_only_is_not_touched(create):
    dataset = create(unique=["reftime"])
    dataset.append([at(6, 1)])
    before = (dataset.path / SEGMENT).stat()
    result = dataset.append([at(6, 2), Datum(T + timedelta(days=1), {}, {"n": 3})])
    assert (result.imported, result.duplicates, result.segments) == (1, 1, 1)
    assert dataset.append([at(6, 2)]).segments == 0
    after = (dataset.path / SEGMENT).stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
    with ondisk.open(dataset.path) as again:
        again.append([Datum(T + timedelta(days=5)), Datum(T + timedelta(days=1))])
        assert not list(dataset.path.glob("2026/11-22*"))


# What makes two values equal: pairs of metadata, and whether they are one key.
NFC, NFD = "\u00e9", "e\u0301"
PAIRS = [
    ("station", {}, {}, True),
    ("level", {}, {}, True),
    ("product", {}, {}, True),
    ("valid", {}, {}, True),
    ("made", {}, {}, True),
    ("key", {}, {}, True),
    ("station", {}, {"station": 0}, False),
    ("level", {}, {"level": 0.0}, False),
    ("product", {}, {"product": ""}, False),
    ("valid", {}, {"valid": False}, False),
    ("made", {}, {"made": datetime(1970, 1, 1, tzinfo=UTC)}, False),
    ("key", {}, {"key": b""}, False),
    ("station", {"station": None}, {}, True),
    ("level", {"level": 1}, {"level": 1.0}, True),
    ("level", {"level": 0.0}, {"level": -0.0}, True),
    ("level", {"level": float("inf")}, {"level": float("inf")}, True),
    ("level", {"level": float("inf")}, {"level": float("-inf")}, False),
    ("level", {"level": 0.1}, {"level": 0.1 + 1e-18}, True),
    ("level", {"level": 0.1}, {"level": 0.30000000000000004 - 0.2}, False),
    ("station", {"station": 2**63 - 1}, {"station": 2**63 - 2}, False),
    ("station", {"station": -(2**63)}, {"station": -(2**63)}, True),
    ("product", {"product": NFC}, {"product": NFD}, False),
    ("product", {"product": "a"}, {"product": "A"}, False),
    ("product", {"product": "a\0b"}, {"product": "a\0c"}, False),
    ("product", {"product": "a\0b"}, {"product": "a\0b"}, True),
    ("product", {"product": "a"}, {"product": "a "}, False),
    ("product", {"product": "1"}, {"product": "01"}, False),
    ("key", {"key": b"a\0"}, {"key": b"a"}, False),
    ("valid", {"valid": True}, {"valid": False}, False),
    ("made", {"made": T}, {"made": T.astimezone(timezone(timedelta(hours=5)))}, True),
    ("made", {"made": T}, {"made": T + timedelta(microseconds=1)}, False),
]


@pytest.mark.parametrize(("field", "one", "other", "equal"), PAIRS)
@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "two batches"])
def test_two_data_are_duplicates_where_their_values_are_equal(create, field, one, other, equal, apart):
    dataset = create(fields=EVERY_TYPE, unique=["reftime", field])
    result = dataset.append([Datum(T, one), Datum(T, other)], batch_size=1 if apart else 2)
    assert counts(result) == ((1, 1, 0, 0) if equal else (2, 0, 0, 0))


@pytest.mark.parametrize(
    ("field", "takes", "refuses"),
    [
        ("station", [1], [1.0, True, "1", b"1", 2**63, -(2**63) - 1, T]),
        ("level", [1, 1.0], [True, "1", float("nan"), 2**53 + 1, 10**400]),
        ("product", ["1"], [1, 1.0, True, b"1", "\ud800"]),
        ("valid", [True], [1, 1.0, "1", "true"]),
        ("made", [T], [1, T.isoformat(), T.replace(tzinfo=None)]),
        ("key", [b"1"], ["1", 1, bytearray(b"1"), True]),
    ],
)
def test_one_and_true_and_the_text_one_are_different_things(create, field, takes, refuses):
    dataset = create(fields=EVERY_TYPE, unique=[field])
    result = dataset.append([Datum(T, {field: value}) for value in refuses + takes], outcomes=True)
    assert statuses(result)[: len(refuses)] == ["refused"] * len(refuses)
    assert [datum.metadata for datum in dataset.query()] == [{field: takes[0]}]
    assert type(next(dataset.query()).metadata[field]) is type(takes[-1])


def test_the_whole_range_of_times_is_stored_to_the_microsecond(create):
    dataset = create(step="yearly", fields=EVERY_TYPE, unique=["reftime"])
    times = [
        datetime.min,
        datetime(1900, 2, 28),
        datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime(1970, 1, 1),
        datetime(2026, 11, 20, 6, 0, 0, 1),
        datetime(2026, 11, 20, 6, 0, 0, 2),
        datetime.max,
    ]
    times = [time.replace(tzinfo=UTC) for time in times]
    assert dataset.append(Datum(time, {"made": time}) for time in reversed(times)).imported == len(times)
    assert [(datum.reftime, datum.metadata["made"]) for datum in dataset.query()] == [(time, time) for time in times]


# Replacing


def test_the_last_of_equal_data_replaces_the_others(create):
    dataset = create(unique=["reftime"], replace="yes")
    result = dataset.append([at(6, 1), at(7, 2), at(6, 3), at(6, 4)], outcomes=True)
    assert statuses(result) == ["imported", "imported", "replaced", "replaced"]
    assert numbers(dataset) == [4, 2]
    assert segment(dataset) == line(2, 7) + line(4), "what one batch itself replaces is never written"
    assert statuses(dataset.append([at(6, 5), at(8, 6)], outcomes=True)) == ["replaced", "imported"]
    assert numbers(dataset) == [5, 2, 6]


def test_replaced_bytes_stay_as_a_hole(create):
    dataset = create(unique=["reftime"], replace="yes")
    dataset.append([at(6, 1), at(7, 2)])
    old = next(dataset.query()).location
    dataset.append([at(6, 3)])
    assert segment(dataset) == line(1) + line(2, 7) + line(3)
    new = next(dataset.query()).location
    assert (new.offset, new.size) == (len(line(1) + line(2, 7)), len(line(3)) - 1)
    with pytest.raises(NotFound):
        dataset.read(old)


def test_a_replacement_is_after_what_was_appended_before_it(create):
    dataset = create(fields=EVERY_TYPE, unique=["station"], replace="yes")
    dataset.append([*data(1, station=1), *data(2, station=2)])
    dataset.append(data(3, station=1))
    assert numbers(dataset) == [2, 3]


def test_a_replacement_of_another_time_moves_to_the_segment_of_its_time(create):
    dataset = create(fields=EVERY_TYPE, unique=["station"], replace="yes")
    dataset.append(data(1, station=1))
    dataset.append([Datum(T + timedelta(days=1), {"station": 1}, {"n": 2})])
    (datum,) = dataset.query()
    assert (datum.data, datum.location.segment) == ({"n": 2}, "2026/11-21.jsonl")


@pytest.mark.parametrize(
    ("versions", "kept", "outcomes"),
    [
        ([1, 2], 1, ["imported", "replaced"]),
        ([2, 1], 0, ["imported", "duplicate"]),
        ([2, 2], 1, ["imported", "replaced"]),
        ([1, 3, 2], 1, ["imported", "replaced", "duplicate"]),
        ([None, 1], 1, ["imported", "replaced"]),
        ([1, None], 0, ["imported", "duplicate"]),
        ([-(2**63), 2**63 - 1], 1, ["imported", "replaced"]),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 10])
def test_newer_replaces_what_is_not_newer(create, versions, kept, outcomes, batch_size):
    dataset = create(fields=EVERY_TYPE, unique=["product"], replace="newer", version_field="station")
    given = [
        Datum(T, {"product": "a"} | ({} if version is None else {"station": version}), {"n": n})
        for n, version in enumerate(versions)
    ]
    assert statuses(dataset.append(given, outcomes=True, batch_size=batch_size)) == outcomes
    assert numbers(dataset) == [kept]


@pytest.mark.parametrize(("field", "old", "new"), [("level", 1.5, 1.75), ("made", T, T + timedelta(microseconds=1))])
def test_versions_may_be_reals_and_times(create, field, old, new):
    dataset = create(fields=EVERY_TYPE, unique=["reftime"], replace="newer", version_field=field)
    dataset.append([Datum(T, {field: new}, {"n": 1})])
    assert dataset.append([Datum(T, {field: old}, {"n": 2})]).duplicates == 1
    assert dataset.append([Datum(T, {field: new}, {"n": 3})]).replaced == 1
    assert numbers(dataset) == [3]


# Errors


def test_an_error_carries_what_the_batches_before_it_did(create):
    dataset = create()
    with pytest.raises(InvalidInput, match="takes Datum objects, not str") as caught:
        dataset.append([*data(1, 2, 3), "no datum"], batch_size=2)
    assert counts(caught.value.context["result"]) == (2, 0, 0, 0)
    assert numbers(dataset) == [1, 2]


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), GeneratorExit()])
def test_data_that_stop_coming_leave_whole_batches_only(create, error):
    def coming():
        yield from data(1, 2, 3, 4, 5)
        raise error

    dataset = create()
    with pytest.raises(type(error)):
        dataset.append(coming(), batch_size=2)
    assert numbers(dataset) == [1, 2, 3, 4]
    assert segment(dataset) == line(1) + line(2) + line(3) + line(4)
    assert dataset.append(data(6)).imported == 1


def test_data_may_come_from_the_dataset_itself(create):
    dataset = create()
    dataset.append(data(*range(5)))
    assert dataset.append(dataset.query(), batch_size=2).imported == 5
    assert numbers(dataset) == [0, 1, 2, 3, 4] * 2


def test_what_is_stored_is_acknowledged_also_if_its_segment_gets_no_name_on_a_full_disk(create, monkeypatch):
    dataset = create()
    with monkeypatch.context() as patched:
        for name in ("link", "rename"):
            patched.setattr(os, name, fail(errno.ENOSPC))
        assert dataset.append([Datum(T, {}, {"n": 0})]).imported == 1
        assert numbers(dataset) == [0]
    assert dataset.append([Datum(T, {}, {"n": 1})]).imported == 1
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == [0, 1]
        assert names(dataset.path / "2026") == ["11-20.jsonl"]


def test_a_full_disk_takes_the_whole_batch_back(create, monkeypatch):
    dataset = create(unique=["reftime"], fields=EVERY_TYPE)
    dataset.append(data(1))
    before = segment(dataset)
    write = ondisk.filesystem.WritableFile.write

    def full(self, offset, content):
        if "11-21" in self.path:
            write(self, offset, content[:3])
            raise DiskFull("no space left")
        write(self, offset, content)

    with monkeypatch.context() as patched:
        patched.setattr(ondisk.filesystem.WritableFile, "write", full)
        with pytest.raises(DiskFull) as caught:
            dataset.append([at(7, 2, product="new"), Datum(T + timedelta(days=1), {}, {"n": 3})])
    assert caught.value.context["result"].count == 0
    assert segment(dataset) == before
    assert not (dataset.path / "2026/11-21.jsonl").exists()
    assert numbers(dataset) == [1]
    assert dataset.append([at(7, 2, product="new"), Datum(T + timedelta(days=1), {}, {"n": 3})]).imported == 2
    assert numbers(dataset) == [1, 2, 3]
    assert [datum.data["n"] for datum in dataset.query("product:new")] == [2]


def test_after_a_failed_sync_nothing_more_is_written_until_the_dataset_is_opened_again(create, monkeypatch):
    dataset = create()
    dataset.append(data(1))

    def lost(self):
        raise DurabilityLost("fsync failed")

    with monkeypatch.context() as patched:
        patched.setattr(ondisk.filesystem.WritableFile, "sync", lost)
        with pytest.raises(DurabilityLost):
            dataset.append(data(2))
    for change in (lambda: dataset.append(data(3)), lambda: dataset.delete("")):
        with pytest.raises(DurabilityLost, match="nothing more is written after an error of the disk"):
            change()
    assert numbers(dataset) == [1]
    with ondisk.open(dataset.path) as again:
        again.append(data(4))
        assert numbers(again) == [1, 4]


# Files


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_a_file_is_stored_as_it_came(create, tmp_path, ending):
    lines = [b' { "reftime":"2026-11-20T07:00:00+01:00", "n":1 } ', b'{"n":2.50,"reftime":"2026-11-20T06:00:00Z"}']
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\r\n".join(lines) + ending)
    dataset = create()
    for source in (file, str(file)):
        assert dataset.append_file(source).imported == 2
    assert segment(dataset) == b"".join(line + b"\n" for line in lines) * 2


def test_a_stream_is_read_and_left_open(create, tmp_path):
    dataset = create()
    stream = io.BytesIO(line(1) + line(2))
    assert dataset.append_file(stream).imported == 2
    assert not stream.closed
    (tmp_path / "file").write_bytes(line(3))
    with (tmp_path / "file").open("rb") as buffered, (tmp_path / "file").open("rb", buffering=0) as raw:
        assert dataset.append_file(buffered).imported == 1
        assert dataset.append_file(raw).imported == 1
        assert not raw.closed
    read, write = os.pipe()
    os.write(write, line(4))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert dataset.append_file(pipe).imported == 1
    assert numbers(dataset) == [1, 2, 3, 3, 4]


def test_no_more_of_a_file_is_read_than_it_had_when_it_was_opened(create, tmp_path):
    """Another program appends to it while it is read, as a logger does, or the pipeline that reads it."""
    file = tmp_path / "growing.jsonl"
    file.write_bytes(line(0) * 10)
    dataset = create()

    class Growing(io.FileIO):
        def read(self, size=-1):
            with file.open("ab") as more:
                more.write(line(1) * 10)
            assert file.stat().st_size < 100_000, "it is read for ever"
            return super().read(size)

    with Growing(file) as stream:
        stream.seek(2 * len(line(0)))
        assert dataset.append_file(stream, batch_size=3).imported == 8
    assert numbers(dataset) == [0] * 8


def test_a_file_of_another_format_is_recognised_and_kept_in_segments_of_its_own(create, tmp_path):
    dataset = create(fields={"area": "text"})
    vm2 = b"202611200630,1,227,1.2,,,000000000\n"
    (tmp_path / "no-extension").write_bytes(vm2)
    for source, format in ((tmp_path / "no-extension", None), (io.BytesIO(vm2), None), (io.BytesIO(vm2), "vm2")):
        assert dataset.append_file(source, format).imported == 1
    dataset.append(data(1))
    assert segment(dataset, "2026/11-20.vm2") == vm2 * 3
    assert [datum.metadata for datum in dataset.query("area:VM2,1")] == [{"area": "VM2,1", "product": "VM2,227"}] * 3
    assert [datum.location.segment[-5:] for datum in dataset.query()] == ["jsonl", "0.vm2", "0.vm2", "0.vm2"]


def test_bad_lines_of_a_file_are_refused_with_their_number(create):
    dataset = create()
    result = dataset.append_file(io.BytesIO(line(1) + b"no json\n\n" + line(2) + b"[]"), outcomes=True)
    assert statuses(result) == ["imported", "refused", "imported", "refused"]
    assert [reason.split(":")[0] for _, reason in result.refusals] == ["line 2", "line 5"]
    assert numbers(dataset) == [1, 2]


def test_a_line_that_is_too_long_ends_the_append_after_the_batches_before(create):
    dataset = create(max_datum_size=100)
    with pytest.raises(LimitExceeded, match="line 3 is longer than 100 bytes") as caught:
        dataset.append_file(io.BytesIO(line(1) + line(2) + b"x" * 101), batch_size=1)
    assert caught.value.context["result"].imported == len(numbers(dataset))


@pytest.mark.parametrize(
    ("source", "format", "kind"),
    [
        ("missing.jsonl", None, NotFound),
        (".", None, StorageError),
        (io.StringIO("{}"), None, InvalidInput),
        (5, None, InvalidInput),
        (io.BytesIO(b""), "hologram", ConfigError),
    ],
)
def test_what_cannot_be_read_is_reported(create, tmp_path, monkeypatch, source, format, kind):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind):
        create().append_file(source, format)


# What other programs, crashes and lost indices leave


def test_a_tail_that_was_never_acknowledged_is_cut_off(create):
    dataset = create()
    dataset.append(data(1))
    with (dataset.path / SEGMENT).open("ab") as file:
        file.write(line(99) + b'{"half')
    assert numbers(dataset) == [1]
    dataset.append(data(2))
    assert segment(dataset) == line(1) + line(2)
    assert numbers(dataset) == [1, 2]


@pytest.mark.parametrize("cut", [0, 5])
def test_an_append_that_is_repeated_after_a_kill_keeps_nothing_of_its_own(create, cut):
    dataset = create()
    dataset.append(data(1))
    with (dataset.path / SEGMENT).open("ab") as file:
        file.write((line(2) + line(3))[: -cut or None])
    result = dataset.append(data(2, 3))
    assert (result.imported, result.kept) == (2, [])
    assert segment(dataset) == line(1) + line(2) + line(3)
    assert dataset.append(data(4)).kept == []


@pytest.mark.parametrize("left", [b"", b'{"half'])
def test_behind_a_file_that_the_index_does_not_know_nothing_is_cut(create, left):
    dataset = create()
    (dataset.path / "2026").mkdir()
    (dataset.path / SEGMENT).write_bytes(left)
    dataset.append(data(1))
    dataset.append(data(2))
    separator = b"\n" if left and not left.endswith(b"\n") else b""
    assert segment(dataset) == left + separator + line(1) + line(2)
    assert numbers(dataset) == [1, 2]


@pytest.mark.parametrize("left", [b"unknown", b"unknown\n"])
def test_nothing_is_appended_to_an_unknown_file_with_nothing_of_the_format(create, left):
    """Behind new data it would look like a part of the segment that was damaged."""
    dataset = create()
    (dataset.path / "2026").mkdir()
    (dataset.path / SEGMENT).write_bytes(left)
    with pytest.raises(SegmentCorrupt, match="nothing in it is of the format jsonl"):
        dataset.append(data(1))
    assert segment(dataset) == left
    assert numbers(dataset) == []


@pytest.mark.parametrize("tail", [b"unknown", b"unknown\n"])
def test_while_the_sentinel_exists_nothing_is_cut(create, tail):
    dataset = create()
    dataset.append(data(1))
    with (dataset.path / SEGMENT).open("ab") as file:
        file.write(tail)
    (dataset.path / SENTINEL).touch()
    assert dataset.needs_check
    dataset.append(data(2))
    assert segment(dataset) == line(1) + tail.removesuffix(b"\n") + b"\n" + line(2)
    assert numbers(dataset) == [1, 2]


@pytest.mark.parametrize("sentinel", [False, True])
def test_a_segment_shorter_than_the_index_says_is_corrupt_and_left_alone(create, sentinel):
    dataset = create()
    dataset.append(data(1, 2))
    os.truncate(dataset.path / SEGMENT, len(line(1)) + 3)
    before = segment(dataset)
    if sentinel:
        (dataset.path / SENTINEL).touch()
    with pytest.raises(SegmentCorrupt, match="ends at byte"):
        dataset.append([at(7, 3), Datum(T + timedelta(days=1), {}, {"n": 4})])
    assert segment(dataset) == before
    assert not (dataset.path / "2026/11-21.jsonl").exists()
    assert dataset.append([Datum(T + timedelta(days=1), {}, {"n": 4})]).imported == 1


@pytest.mark.parametrize("sentinel", [False, True])
def test_data_of_a_segment_that_is_gone_are_refused_and_others_stored(create, sentinel):
    dataset = create()
    dataset.append(data(1))
    (dataset.path / SEGMENT).unlink()
    if sentinel:
        (dataset.path / SENTINEL).touch()
    result = dataset.append([at(5, 2), Datum(T + timedelta(days=1), {}, {"n": 4}), at(7, 3)], outcomes=True)
    assert (result.imported, result.refused) == (1, 2)
    assert [each.status for each in result.outcomes] == ["refused", "imported", "refused"]
    assert f"{SEGMENT} is in the index, but not on disk" in result.refusals[0][1]
    assert f"`ondisk fix {dataset.path} --yes`" in result.refusals[0][1]
    assert not (dataset.path / SEGMENT).exists()


def test_no_segment_is_begun_in_an_empty_folder_whose_segments_are_gone(create):
    """As where a disk is not mounted: it would be hidden when the disk is back."""
    dataset = create()
    data = [Datum(T + timedelta(days=days), {}, {"n": days}) for days in (0, 1, 2, 3, 365)]
    dataset.append(data[:3])
    for path in dataset.path.glob("2026/*"):
        path.unlink()
    result = dataset.append(data[3:])
    assert (result.imported, result.refused) == (1, 1)
    assert "the folder 2026 is empty, but the index knows segments in it" in result.refusals[0][1]
    dataset.fix(forget=True)
    assert dataset.append(data[3:4]).imported == 1


@pytest.mark.parametrize("opened", [False, True], ids=["opened again", "still open"])
def test_a_lost_index_is_made_anew_with_the_sentinel_and_no_byte_is_lost(create, opened):
    dataset = create(unique=["reftime"])
    dataset.append([at(6, 1), at(7, 2)])
    before = segment(dataset)
    if not opened:
        dataset.close()
    lose_index(dataset.path)
    if not opened:
        dataset = ondisk.open(dataset.path)
        assert (dataset.path / SENTINEL).exists()
    assert dataset.needs_check
    assert numbers(dataset) == []
    assert counts(dataset.append([at(6, 3)])) == (1, 0, 0, 0)
    assert (dataset.path / SENTINEL).exists()
    assert segment(dataset) == before + line(3)
    assert numbers(dataset) == [3]
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert again.needs_check
        again.append([at(8, 4)])
        assert numbers(again) == [3, 4]
        assert segment(again) == before + line(3) + line(4, 8)


def test_a_lost_index_makes_nothing_where_one_only_reads(create):
    dataset = create()
    dataset.append(data(1))
    dataset.close()
    lose_index(dataset.path)
    before = names(dataset.path)
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert reader.needs_check
        assert numbers(reader) == []
        assert reader.summary().count == 0
        assert reader.info()["count"] == 0
    assert names(dataset.path) == before


def test_deleting_where_the_index_is_lost_makes_the_sentinel_too(create):
    dataset = create()
    dataset.append(data(1))
    lose_index(dataset.path)
    assert dataset.delete("") == 0
    assert (dataset.path / SENTINEL).exists()


def test_a_new_index_counts_its_generations_above_those_on_disk(create):
    """A generation is never given twice, or a reader would find another's bytes."""
    dataset = create()
    dataset.append(data(1))
    (dataset.path / "2026/.11-20.jsonl.17").write_bytes(b"kept for a reader")
    lose_index(dataset.path)
    dataset.append(data(2))
    assert numbers(dataset) == [2]
    assert sql(dataset.path, "SELECT id FROM segment") == [(18,)]


def test_an_index_removed_and_put_back_is_found_again(create, tmp_path):
    dataset = create()
    dataset.append(data(1))
    dataset.close()
    for suffix in ("", "-wal", "-shm"):
        (dataset.path / (INDEX + suffix)).rename(tmp_path / (INDEX + suffix))
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert numbers(reader) == []
        for suffix in ("-shm", "-wal", ""):
            (tmp_path / (INDEX + suffix)).rename(dataset.path / (INDEX + suffix))
        assert numbers(reader) == [1]
        assert not reader.needs_check


MANY = """
import resource, sys
from datetime import UTC, datetime, timedelta
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import ondisk
with ondisk.create(sys.argv[1], {"format": "jsonl", "step": "daily", "unique": ["reftime"]}) as dataset:
    begin = datetime(2000, 1, 1, tzinfo=UTC)
    data = [ondisk.Datum(begin + timedelta(days=n), {}, {"n": n}) for n in range(3000)]
    for _ in range(2):
        result = dataset.append(data)
        print(result.imported, result.duplicates, result.segments)
    print([datum.data["n"] for datum in dataset.query()] == list(range(3000)))
"""


@pytest.mark.check
def test_thousands_of_segments_in_one_batch_do_not_exhaust_file_handles(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
    environment = os.environ | {"PYTHONPATH": str(Path(ondisk.__file__).parents[1])}
    command = [sys.executable, "-c", MANY, str(tmp_path / "dataset")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=True)
    assert done.stdout.splitlines() == ["3000 0 3000", "0 3000 0", "True"]


def test_a_segment_without_data_whose_file_is_gone_begins_anew(create):
    line = b"202601010000,1,2,3,,,0"
    with create(format="vm2", step="daily") as dataset:
        dataset.append([Datum(datetime(2026, 1, 1, tzinfo=UTC), {}, line)])
        dataset.delete("")
        (dataset.path / "2026/01-01.vm2").unlink()
        assert dataset.append([Datum(datetime(2026, 1, 1, tzinfo=UTC), {}, line)]).imported == 1
        assert [datum.data for datum in dataset.query()] == [line]


def test_a_stream_needs_nothing_but_read(create):
    class Stream:
        def __init__(self, content):
            self.content = content

        def read(self, size):
            piece, self.content = self.content[:7], self.content[7:]
            return piece

    with create(format="vm2", step="daily") as dataset:
        assert dataset.append_file(Stream(b"202601010000,1,2,3,,,0\n202601010100,1,2,3,,,0\n")).imported == 2


def test_what_was_stored_before_an_interrupt_is_said(create):
    def data():
        yield Datum(datetime(2026, 1, 1, tzinfo=UTC), {}, b"202601010000,1,2,3,,,0")
        raise KeyboardInterrupt

    with create(format="vm2", step="daily") as dataset:
        with pytest.raises(KeyboardInterrupt) as caught:
            dataset.append(data(), batch_size=1)
        assert "1 datum was stored" in caught.value.__notes__[0]


@pytest.mark.parametrize("data", [5, None, Datum(datetime(2026, 1, 1, tzinfo=UTC))])
def test_what_is_no_iterable_is_refused_with_a_remedy(create, data):
    with create(format="vm2", step="daily") as dataset:
        with pytest.raises(InvalidInput, match="in a list"):
            dataset.append(data)
        with pytest.raises(InvalidInput, match="in a list"):
            dataset.delete(data)


def test_a_unique_key_that_no_line_of_vm2_has_is_refused(create):
    with pytest.raises(ConfigError, match="station"):
        create(format="vm2", step="daily", unique=["reftime", "station"], fields={"station": "integer"})


def test_a_batch_of_nothing_but_refused_data_is_no_error(create):
    with create(format="vm2", step="daily", fields={"area": "text"}) as dataset:
        assert dataset.append_file(io.BytesIO(b"nonsense\n2\n"), "vm2").refused == 2


def test_large_data_behind_small_ones_are_taken_a_few_at_a_time(create, monkeypatch):
    pulled = []

    def data():
        for number in range(400):
            pulled.append(number)
            yield Datum(datetime(2026, 1, 1, tzinfo=UTC), {}, bytes(2**20 if number >= 300 else 10))

    seen = []
    encode = Vm2.encode

    def encode_and_count(self, piece):
        seen.append(sum(len(each.data) for each in piece))
        return encode(self, piece)

    monkeypatch.setattr(Vm2, "encode", encode_and_count)
    assert create(format="vm2").append(data()).refused == 400
    assert max(seen) <= 24 * 2**20


def test_what_was_stored_under_larger_limits_is_still_read(create):
    deep = {"a": 1}
    for _ in range(20):
        deep = {"a": deep}
    with create(format="jsonl", step="daily", max_depth=64) as dataset:
        dataset.append([Datum(datetime(2026, 1, 1, tzinfo=UTC), {}, deep)])
        toml = dataset.path / "dataset.toml"
    toml.write_text('format = "jsonl"\nstep = "daily"\nmax_depth = 5\n')
    with ondisk.open(toml.parent, read_only=True) as dataset:
        assert next(dataset.query()).data == deep


def alone(dataset):
    """Count the data in the main file of the index, without the log."""
    with contextlib.closing(sqlite3.connect(f"file:{dataset.path / INDEX}?mode=ro&immutable=1", uri=True)) as main:
        return main.execute("SELECT count(*) FROM datum").fetchone()


@pytest.mark.check
def test_many_small_batches_leave_little_in_the_log_and_none_at_the_end(create):
    dataset = create()
    most = 0

    def given():
        nonlocal most
        for n in range(300):
            yield at(6, n)
            most = max(most, (dataset.path / f"{INDEX}-wal").stat().st_size)

    assert dataset.append(given(), batch_size=1).imported == 300
    assert most < 2 * 1024 * 1024
    dataset.close()
    assert alone(dataset) == (300,)


def test_small_appends_share_a_checkpoint_and_closing_leaves_nothing_in_the_log(create, monkeypatch):
    dataset, calls, checkpoint = create(), [], Connections.checkpoint
    monkeypatch.setattr(Connections, "checkpoint", lambda each: calls.append(each) or checkpoint(each))
    for n in range(40):
        dataset.append([at(6, n)])
        with ondisk.open(dataset.path, read_only=True) as other:
            assert numbers(other) == list(range(n + 1))
    assert len(calls) == 4
    dataset.close()
    assert len(calls) == 5
    assert alone(dataset) == (40,)


@pytest.mark.parametrize("change", ["delete", "a new segment", "much", "little space"])
def test_all_else_is_moved_into_the_main_file_at_once(change, create, monkeypatch):
    dataset = create()
    for n in range(2):
        dataset.append([at(6, n)])
    assert alone(dataset) == (1,)
    if change == "delete":
        assert dataset.delete("") == 2
    elif change == "a new segment":
        dataset.append([Datum(T.replace(year=2001), {}, {"n": 0})])
    elif change == "much":
        dataset.append(at(6, n) for n in range(10_000))
    else:
        monkeypatch.setattr(Directory, "free_space", lambda directory: 64 * 1024 * 1024)
        dataset.append([at(6)])
    assert alone(dataset) == (dataset.summary().count,)


def test_what_waits_is_not_forgotten_because_nothing_was_deleted_meanwhile(create):
    dataset = create()
    for n in range(30):
        dataset.append([at(6, n)])
        assert dataset.delete("reftime: =1999") == 0
    assert alone(dataset) >= (20,)
    dataset.close()
    assert alone(dataset) == (30,)


def test_the_end_of_an_append_of_small_batches_waits_for_nobody(create):
    dataset = create(lock_timeout=30)

    def given():
        for n in range(5):
            yield at(6, n)
        stack.enter_context(locked(dataset.path))

    with contextlib.ExitStack() as stack:
        begin = time.monotonic()
        assert dataset.append(given(), batch_size=1).imported == 5
        assert time.monotonic() - begin < 15
    assert dataset.append([at(7)]).imported == 1


def test_a_dataset_that_is_closed_behind_the_last_batch_has_taken_all(create):
    dataset = create()

    def given():
        for n in range(5):
            yield at(6, n)
        dataset.close()

    assert dataset.append(given(), batch_size=1).imported == 5
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == list(range(5))


HUGE = 10**5000


@pytest.mark.parametrize("format", ["vm2", "jsonl", "seg", "blob"])
@pytest.mark.parametrize("name", [*EVERY_TYPE, "undeclared"])
@pytest.mark.parametrize("value", [HUGE, -HUGE, {"a": [HUGE]}, [HUGE]], ids=["huge", "negative", "mapping", "list"])
def test_an_integer_of_thousands_of_digits_is_refused_as_metadata(tmp_path, format, name, value):
    content = {"vm2": b"202611200600,1,2,3,,,000000000", "blob": b"x"}.get(format, {"n": 1})
    with ondisk.create(tmp_path / "d", {"format": format, "step": "daily", "fields": EVERY_TYPE}) as dataset:
        result = dataset.append([Datum(T, {name: value}, content), Datum(T, {}, content)])
        assert (result.imported, result.refused) == (1, 1)
        if name in dataset.fields:
            with pytest.raises(InvalidInput):
                [*dataset.query(**{name: value})]


@pytest.mark.parametrize("format", ["vm2", "jsonl", "seg", "blob"])
@pytest.mark.parametrize("content", [HUGE, {"a": HUGE}, {"a": [{"b": HUGE}]}, {HUGE: 1}, [HUGE]], ids=range(5))
def test_an_integer_of_thousands_of_digits_is_refused_as_data(tmp_path, format, content):
    with ondisk.create(tmp_path / "d", {"format": format, "step": "daily"}) as dataset:
        assert dataset.append([Datum(T, {}, content)]).refused == 1


@pytest.mark.parametrize("name", ["limit", "batch_size", "match", "sort"])
def test_an_integer_of_thousands_of_digits_is_refused_as_an_argument(tmp_path, name):
    with ondisk.create(tmp_path / "d", {"format": "seg", "step": "daily"}) as dataset, pytest.raises(InvalidInput):
        [*dataset.query(**{name: HUGE})]


@pytest.mark.each
@pytest.mark.parametrize("format", ["jsonl", "vm2", "blob"])
def test_a_datum_of_exactly_the_largest_size_is_stored(create, format):
    def datum(size):
        data = {"jsonl": {"x": "x" * size}, "vm2": b"202611200600,1,227,1.2,,," + b"0" * size, "blob": b"x" * size}
        return Datum(T, {}, data[format])

    limit = create("other", format=format).append([datum(20)]).bytes
    dataset = create(format=format, max_datum_size=limit)
    assert [dataset.append([datum(size)]).imported for size in (19, 20, 21)] == [1, 1, 0]
    if format != "blob":
        stored = b"".join(dataset.payloads())
        assert counts(dataset.append_file(io.BytesIO(stored), format)) == (2, 0, 0, 0)


def test_an_append_changes_no_index_that_has_other_names(create):
    dataset = create()
    dataset.append([Datum(T, {}, {"n": 1})])
    dataset.close()
    backup = dataset.path / "backup"
    backup.hardlink_to(dataset.path / "index.sqlite")
    before = backup.read_bytes()
    with ondisk.open(dataset.path) as again:
        again.append([Datum(T, {}, {"n": 2})])
        assert [each.data["n"] for each in again.query()] == [1, 2]
    assert backup.read_bytes() == before
    assert not backup.samefile(dataset.path / "index.sqlite")


@pytest.mark.parametrize("format", ["jsonl", "seg", "blob"])
@pytest.mark.parametrize("accident", ["no folder", "an empty mount point", "another folder"])
def test_a_duplicate_of_a_datum_in_an_archive_that_is_away_is_refused(create, tmp_path, format, accident):
    dataset = create("weather", step="daily", unique=["reftime"], format=format)
    payload = b"one" if format == "blob" else {"n": 1}
    old, new = Datum(T, data=payload), Datum(T.replace(day=21), data=payload)
    dataset.append([old])
    (name,) = (f"2026/{each}" for each in names(dataset.path / "2026"))
    dataset.archive(name)
    assert counts(dataset.append([old])) == (0, 1, 0, 0)
    place = dataset.path / ".archive/last"
    place.rename(tmp_path / "elsewhere")
    if accident != "no folder":
        place.mkdir()
    if accident == "another folder":
        (place / ".place").write_text((tmp_path / "elsewhere/.place").read_text().replace('"id": "', '"id": "0'))
    result = dataset.append([new, old, new, Datum(T.replace(day=22), data=payload)], outcomes=True)
    assert counts(result) == (2, 1, 0, 1)
    assert [each.status for each in result.outcomes] == ["imported", "refused", "duplicate", "imported"]
    [(position, reason)] = result.refusals
    assert position == 1
    assert ".archive/last is away" in reason
    assert "fix" in reason
    if accident != "no folder":
        shutil.rmtree(place)
    (tmp_path / "elsewhere").rename(place)
    assert counts(dataset.append([old])) == (0, 1, 0, 0)


@pytest.mark.parametrize(("replace", "expected"), [("no", (0, 1, 0, 0)), ("yes", (0, 0, 1, 0))])
def test_a_duplicate_of_a_datum_in_an_offline_archive_is_skipped_or_replaces_it(create, replace, expected):
    dataset = create(unique=["reftime"], replace=replace)
    dataset.append([Datum(T, data={"n": 1})])
    dataset.archive("2026/11-20.jsonl")
    dataset.rename_archive("last", "tape")
    dataset.set_offline("tape")
    shutil.rmtree(dataset.path / ".archive/tape")
    assert counts(dataset.append([Datum(T, data={"n": 2})])) == expected
    assert dataset.summary().count == 1


def test_the_first_file_in_another_format_is_noted_unless_that_format_was_given(create, tmp_path):
    """It is stored as it is, not in the dataset's format, and the columns of tables become those of both."""
    lines = [tmp_path / f"{day}.jsonl" for day in (20, 21)]
    for path in lines:
        path.write_text(f'{{"reftime":"2026-11-{path.stem}T00:00:00Z"}}\n')
    with create("noted", format="seg") as dataset:
        (note,) = dataset.append_file(lines[0]).notes
        assert note.startswith("stored as jsonl, and not in the dataset's format seg: tables of all data have")
        assert dataset.append_file(lines[1]).notes == []
    with create("meant", format="seg") as dataset:
        assert dataset.append_file(lines[0], "jsonl").notes == []
    with create("same", format="jsonl") as dataset:
        assert dataset.append_file(lines[0]).notes == []


def test_an_open_dataset_stays_the_one_that_was_opened_when_its_path_leads_to_another(create, tmp_path):
    for name in ("one", "two"):
        with create(name, format="jsonl", step="daily") as dataset:
            dataset.append([Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {"in": name})])
    path = tmp_path / "current"
    path.symlink_to("one")
    with ondisk.open(path) as dataset:
        path.unlink()
        path.symlink_to("two")
        dataset.append([Datum(datetime(2026, 11, 21, tzinfo=UTC), {}, {"in": "one"})])
        with dataset._access.locked("test"):
            for name, expected in (("one", True), ("two", False)):
                with Directory.open(tmp_path / name) as folder:
                    assert is_locked(folder) == expected
    for name, count in (("one", 2), ("two", 1)):
        with ondisk.open(tmp_path / name) as dataset:
            assert [each.data for each in dataset.query()] == [{"in": name}] * count
            assert dataset.check().is_clean
