"""Tables as files: whole or not there, and never over another file unless that is wanted."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from ondisk import Datum
from ondisk.errors import AlreadyExists, DiskFull, InvalidInput, NotFound, SegmentMissing
from ondisk.filesystem import space_hint
from ondisk.filesystem.files import WritableFile
from ondisk.tables import arrow_output
from ondisk.tables.arrow_output import write

T = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def dataset(create):
    made = create(fields={"station": "integer"})
    made.append([Datum(T + timedelta(hours=n), {"station": n % 3}, {"n": n, "note": "ä" * n}) for n in range(40)])
    return made


def names(folder):
    return sorted(path.name for path in folder.iterdir())


READ = {"parquet": pq.read_table, "arrow": feather.read_table}


@pytest.mark.parametrize("form", READ)
def test_a_file_has_the_rows_of_the_table(dataset, tmp_path, form, monkeypatch):
    monkeypatch.setattr(arrow_output, "_GROUP_ROWS", 7)
    assert write(dataset.to_arrow(), tmp_path / "file", form) == 40
    assert READ[form](tmp_path / "file").equals(dataset.to_arrow().read_all())
    assert write(dataset.to_arrow("reftime: <2000"), tmp_path / "empty", form) == 0
    assert READ[form](tmp_path / "empty").num_rows == 0
    assert names(tmp_path) == ["dataset", "empty", "file"]


@pytest.mark.parametrize("form", READ)
def test_damage_leaves_no_file_and_the_old_one(dataset, tmp_path, form):
    (dataset.path / "2026/11-21.jsonl").unlink()
    (tmp_path / "old").write_text("old")
    with pytest.raises(SegmentMissing):
        write(dataset.to_arrow(columns=["data.n"]), tmp_path / "new", form)
    with pytest.raises(SegmentMissing):
        write(dataset.to_arrow(columns=["data.n"]), tmp_path / "old", form, overwrite=True)
    assert (tmp_path / "old").read_text() == "old"
    assert names(tmp_path) == ["dataset", "old"]


def test_a_file_is_replaced_only_if_that_is_wanted(dataset, tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(AlreadyExists):
        write(dataset.to_arrow(), tmp_path / "file", "parquet")
    assert (tmp_path / "file").read_text() == "old"
    assert write(dataset.to_arrow(), tmp_path / "file", "parquet", overwrite=True) == 40
    assert pq.read_table(tmp_path / "file").num_rows == 40


def test_a_file_that_appears_meanwhile_is_not_replaced(dataset, tmp_path):
    def rows():
        yield from dataset.to_arrow()
        (tmp_path / "file").write_text("other")

    reader = pa.RecordBatchReader.from_batches(dataset.to_arrow().schema, rows())
    with pytest.raises(AlreadyExists):
        write(reader, tmp_path / "file", "arrow")
    assert (tmp_path / "file").read_text() == "other"
    assert names(tmp_path) == ["dataset", "file"]


def test_what_is_no_regular_file_is_never_replaced(dataset, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "link"):
        with pytest.raises(InvalidInput):
            write(dataset.to_arrow(), tmp_path / name, "parquet", overwrite=True)
    with pytest.raises(NotFound):
        write(dataset.to_arrow(), tmp_path / "none" / "file", "parquet")


def test_a_file_of_a_dataset_is_never_replaced(dataset, tmp_path):
    (tmp_path / "link").symlink_to(dataset.path)
    for path in (dataset.path / "dataset.toml", dataset.path / "2026/11-20.jsonl", tmp_path / "link/new"):
        with pytest.raises(InvalidInput, match="is in the dataset"):
            write(dataset.to_arrow(), path, "parquet", overwrite=True)
    assert dataset.count() == 40
    assert not any(each.state for each in dataset.check().segments)


@pytest.mark.parametrize("name", ["..", "x" * 256, "a\0b"])
def test_a_name_that_no_file_can_have_is_an_error(dataset, tmp_path, name):
    with pytest.raises(InvalidInput, match="no file can have the name"):
        write(dataset.to_arrow(), tmp_path / name, "parquet")
    assert write(dataset.to_arrow(), tmp_path / ("x" * 255), "parquet") == 40


@pytest.mark.parametrize("form", READ)
def test_a_full_disk_is_said_and_leaves_nothing(dataset, tmp_path, form, monkeypatch):
    def full(self, offset, content):
        raise DiskFull(f"{self.path}: no space left", hint=space_hint())

    monkeypatch.setattr(WritableFile, "write", full)
    with pytest.raises(DiskFull) as caught:
        write(dataset.to_arrow(), tmp_path / "file", form)
    assert "repack" not in caught.value.hint, "the file may be on another disk"
    assert names(tmp_path) == ["dataset"]


@pytest.mark.check
def test_memory_does_not_grow_with_the_table(dataset, tmp_path):
    """A table of 400 MB is written by a process that may have 300 MB more than it begins with."""
    code = """if True:
        import resource, sys
        import pyarrow as pa
        from ondisk.tables.arrow_output import write
        batch = pa.record_batch({"x": pa.array([bytes(1000)] * 4000)})
        rows = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(100)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert write(rows, sys.argv[1], sys.argv[2]) == 400_000
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    for form in READ:
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / form, form], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) < 300_000
