"""Creating, opening and closing datasets."""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
from datetime import UTC, datetime

import pytest
from worlds import datum, fail, hours, locked

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.errors import (
    ConfigError,
    DatasetExists,
    DatasetNotFound,
    InvalidInput,
    ReadOnly,
    StateError,
)
from ondisk.filesystem import LOCK
from ondisk.index import INDEX
from ondisk.maintenance.states import State
from ondisk.segments.concat_writer import ConcatWriter

T = datetime(2026, 11, 20, 6, tzinfo=UTC)

VALUES = {"format": "jsonl", "step": "daily"}


def names(path):
    return sorted(each.name for each in path.iterdir())


def test_a_new_dataset_is_empty_and_complete(tmp_path):
    with ondisk.create(tmp_path / "a" / "b", VALUES) as dataset:
        assert names(dataset.path) == sorted([CONFIG, ".lock", ".tide", INDEX, f"{INDEX}-wal", f"{INDEX}-shm"])
        assert list(dataset.query()) == []
        assert dataset.summary().count == 0
        assert not dataset.needs_check
        assert (dataset.path / CONFIG).read_text() == 'format = "jsonl"\nstep = "daily"\n'


def test_without_a_format_a_dataset_is_of_ondisks_own_and_compressed(tmp_path):
    with ondisk.create(tmp_path / "dataset", {"step": "daily"}) as dataset:
        assert (dataset.path / CONFIG).read_text() == 'format = "seg"\nstep = "daily"\n'
        dataset.append([Datum(T, {}, {"n": n, "text": "again and again " * 100}) for n in range(100)])
        assert [datum.data["n"] for datum in dataset.query()] == list(range(100))
        assert (dataset.path / "2026/11-20.seg").stat().st_size < 100_000


def test_a_dataset_is_made_from_a_mapping_or_a_configuration(tmp_path):
    config = ondisk.DatasetConfig.from_mapping(VALUES)
    with ondisk.create(tmp_path / "one", VALUES) as one, ondisk.create(tmp_path / "two", config) as two:
        assert one.config == two.config == config


def test_an_empty_directory_becomes_a_dataset(tmp_path):
    with ondisk.create(tmp_path, VALUES) as dataset:
        assert dataset.path == tmp_path


def test_a_dataset_is_not_made_twice(create, tmp_path):
    create("dataset").append([Datum(T)])
    with pytest.raises(DatasetExists):
        ondisk.create(tmp_path / "dataset", VALUES)
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert hours(dataset) == [6]


@pytest.mark.parametrize(
    "left",
    [".lock", ".tide", INDEX, f"{INDEX}-wal", ".index.sqlite.new", ".index.sqlite.new-journal", f".{CONFIG}.123"],
)
def test_what_a_crash_of_create_leaves_does_not_stand_in_its_way(tmp_path, left):
    (tmp_path / left).write_bytes(b"")
    with ondisk.create(tmp_path, VALUES) as dataset:
        dataset.append([Datum(T)])
        assert hours(dataset) == [6]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"format": "vm2"},
        {"step": "daily", "compression": "gzip"},
        VALUES | {"colour": 1},
        VALUES | {"format": "hologram"},
        VALUES | {"unique": ["area"]},
        {"format": "vm2", "step": "daily", "fields": {"area": "integer"}},
    ],
)
def test_a_configuration_that_cannot_be_makes_nothing(tmp_path, values):
    with pytest.raises(ConfigError):
        ondisk.create(tmp_path / "dataset", values)
    assert names(tmp_path) == []


@pytest.mark.parametrize("path", ["missing", "file", "empty"])
def test_where_no_dataset_is_none_is_opened_or_made(tmp_path, path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for read_only in (False, True):
        with pytest.raises(DatasetNotFound) as caught:
            ondisk.open(tmp_path / path, read_only)
        assert "ondisk init" in caught.value.hint
    assert names(tmp_path) == ["empty", "file"]
    assert names(tmp_path / "empty") == []


def test_what_was_stored_is_there_after_opening_again(create):
    with create(fields={"station": "integer"}) as dataset:
        dataset.append([Datum(T, {"station": 5}, {"note": "caf\u00e9"})])
    for read_only in (False, True):
        with ondisk.open(dataset.path, read_only) as again:
            assert list(again.query()) == [Datum(T, {"station": 5}, {"note": "caf\u00e9"})]
            assert again.config == dataset.config
            assert again.read_only is read_only


def test_a_dataset_opened_for_reading_refuses_every_change(create):
    dataset = create()
    dataset.append([Datum(T)])
    with ondisk.open(dataset.path, read_only=True) as reader:
        for change in (
            lambda: reader.append([Datum(T)]),
            lambda: reader.append_file(io.BytesIO(b"{}")),
            lambda: reader.delete(""),
        ):
            with pytest.raises(ReadOnly, match="opened read_only"):
                change()
        assert hours(reader) == [6]


def test_a_closed_dataset_says_so(create):
    dataset = create()
    location = next(dataset.query()).location if dataset.append([Datum(T)]) else None
    dataset.close()
    dataset.close()
    for use in (
        lambda: list(dataset.query()),
        lambda: dataset.append([Datum(T)]),
        lambda: dataset.delete(""),
        dataset.summary,
        dataset.info,
        lambda: dataset.read(location),
        lambda: dataset.fields,
        lambda: dataset.needs_check,
    ):
        with pytest.raises(InvalidInput, match="was closed") as caught:
            use()
        assert caught.value.hint


def test_closing_leaves_no_file_open(tmp_path, open_files):
    before = open_files()
    with ondisk.create(tmp_path / "dataset", VALUES) as dataset:
        dataset.append([Datum(T)])
        list(dataset.query())
    with ondisk.open(tmp_path / "dataset") as dataset:
        running = dataset.query()
        next(running)
    running.close()
    assert open_files() == before


def test_a_dataset_that_cannot_be_opened_leaves_no_file_open(create, open_files):
    dataset = create()
    dataset.close()
    (dataset.path / CONFIG).write_text("step = 5")
    before = open_files()
    with pytest.raises(ConfigError):
        ondisk.open(dataset.path)
    assert open_files() == before


def test_a_dataset_is_pickled_as_its_path(create):
    dataset = create()
    dataset.append([Datum(T)])
    with pickle.loads(pickle.dumps(dataset)) as again:
        assert hours(again) == [6]
        again.append([Datum(T.replace(hour=7))])
    assert hours(dataset) == [6, 7]


def test_two_open_datasets_of_one_path_see_each_other(create):
    one = create()
    with ondisk.open(one.path) as other:
        one.append([Datum(T)])
        assert hours(other) == [6]
        other.append([Datum(T.replace(hour=7))])
        assert hours(one) == [6, 7]
        one.delete("reftime:=07:00")
        assert hours(other) == [6]


def test_a_forked_child_is_reported_to_open_the_dataset_itself(create):
    dataset = create()
    dataset.append([Datum(T)])
    child = os.fork()
    if child == 0:
        try:
            dataset.summary()
        except StateError as error:
            os._exit(7 if "Open the dataset in the process" in error.hint else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert hours(dataset) == [6]


FIELDS = {"station": "integer", "product": "text"}


@pytest.fixture
def configured(create):
    return create(fields=FIELDS, unique=["reftime"], index=["station"])


def test_info_says_what_the_dataset_is(configured):
    configured.append([Datum(T), Datum(T.replace(day=21))])
    info = configured.info()
    size = sum(path.stat().st_size - 1 for path in configured.path.glob("2026/*.jsonl"))
    assert len(info.pop("uuid")) == 36
    assert info.pop("index_size") == (configured.path / INDEX).stat().st_size
    assert info == {
        "path": str(configured.path),
        "format": "jsonl",
        "step": "daily",
        "unique": ["reftime"],
        "index": ["station"],
        "replace": "no",
        "fields": FIELDS,
        **dict.fromkeys(["archive_age", "delete_age", "to_archive", "to_delete"]),
        **dict.fromkeys(["version", "payload", "compression", "encryption"]),
        "count": 2,
        "size": size,
        "begin": T,
        "end": T.replace(day=21),
        "segments": 2,
        "stored": [{"format": "jsonl", "segments": 2}],
        "pending": None,
        "source": None,
        "lost": 0,
        "needs_check": False,
        "archives": [],
        "offline": [],
        "missing": [],
        "quarantine": {"items": 0, "bytes": 0},
    }


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_dataset_that_is_removed_while_it_is_open_says_so(create, is_restored):
    dataset = create(fields={"n": "integer"})
    dataset.append([Datum(T, {"n": 1}, {})])
    backup = dataset.path.with_name("backup")
    shutil.copytree(dataset.path, backup)
    shutil.rmtree(dataset.path)
    if is_restored:
        backup.rename(dataset.path)
    for verb in (
        dataset.summary,
        dataset.fix,
        dataset.repack,
        dataset.check,
        lambda: dataset.append([Datum(T, {"n": 1}, {})]),
    ):
        with pytest.raises(DatasetNotFound, match="was removed while it was open") as error:
            verb()
        assert "open it again" in error.value.hint
    with pytest.raises(DatasetNotFound):
        [*dataset.query()]


DAYS = ["2026/11-20.jsonl", "2026/11-21.jsonl"]


def leave_commit(path, change):
    """Leave the log and the lock of a process that was killed while it synced a commit, and return what it has written.

    Another process has the index open, so nobody sees the commit.
    """
    twin = path.with_name("twin")
    shutil.copytree(path, twin, ignore=shutil.ignore_patterns("*-shm"))
    with ondisk.open(twin) as dataset:
        change(dataset)
    shutil.copyfile(twin / f"{INDEX}-wal", path / f"{INDEX}-wal")
    with locked(path):
        record = (path / LOCK).read_bytes()
    (path / LOCK).write_bytes(record)
    return twin


@pytest.fixture
def reader(create):
    """Open a dataset of two data to read, in a process that has its index open until the end."""
    with create(fields={"station": "text"}) as dataset:
        dataset.append([datum(1), datum(2)])
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert hours(reader) == [1, 2]
        yield reader


def hours_after(reader):
    """Return the data when nobody has had the index open for a moment."""
    reader.close()
    with ondisk.open(reader.path) as dataset:
        assert {found.state for found in dataset.check()} == {State.OK}
        return hours(dataset)


def test_a_new_segment_is_removed_with_the_commit_that_a_killed_process_left_in_the_log(reader):
    twin = leave_commit(reader.path, lambda dataset: dataset.append([datum(30)]))
    shutil.copy2(twin / DAYS[1], reader.path / "2026/.11-21.jsonl.2")
    ondisk.open(reader.path).close()
    assert not (reader.path / "2026/.11-21.jsonl.2").exists()
    assert hours_after(reader) == [1, 2]


def test_bytes_are_cut_with_the_commit_that_a_killed_process_left_in_the_log(reader, monkeypatch):
    twin = leave_commit(reader.path, lambda dataset: dataset.append([datum(3)]))
    shutil.copy2(twin / DAYS[0], reader.path / DAYS[0])
    with ondisk.open(reader.path) as dataset, monkeypatch.context() as patch:
        patch.setattr(ConcatWriter, "sync", fail(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            dataset.append([datum(4)])
    assert hours_after(reader) == [1, 2]
