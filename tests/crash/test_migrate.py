"""A process that migrates is killed, or its disk fails or is full, at every point where it touches the disk."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from old_datasets import EXPECTED, old, with_indices

import ondisk
from ondisk.config import DatasetConfig
from ondisk.datum import Datum
from ondisk.errors import DiskFull, NeedsMigration
from ondisk.maintenance.migrate import Migration

from . import workload
from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .maintenance import check_order
from .recovery import LATER, make
from .workload import CONFIGS, Append, Delete, Story, check_index, datum_of, lines_of, random_lines

pytestmark = needs_strace

GOLDEN = Path(__file__).parents[1] / "golden" / "revision-1"
MARKS = GOLDEN.with_name("revision-6")
STORY = Story([Append(random_lines(1, 40)), Delete(3)], [Append(())])


def configured(path: Path) -> None:
    """Let `dataset.toml` say something else than it did, so that fields are read, and dropped."""
    config = DatasetConfig.from_toml((path / "dataset.toml").read_text())
    fields = {"product": "text", "area": "text"} if "area" not in config.fields else {"product": "text"}
    values = {"format": config.format, "step": "daily", "lock_timeout": 5, "fields": fields, "index": ["product"]}
    if "area" in fields:
        values["unique"] = ["product", "reftime", "area"]
    (path / "dataset.toml").write_text(DatasetConfig.from_mapping(values).to_toml())


def changed(path: Path, format: str) -> Path:
    """Make a dataset whose index lacks a field that `dataset.toml` declares."""
    make(path, STORY, CONFIGS[format])
    configured(path)
    assert ondisk.migrate(path).done
    configured(path)
    return path


def revision_5(path: Path) -> Path:
    """Make a dataset with two archives that have their own indices."""
    return old("archived", path.parent).rename(path)


def revision_1(path: Path) -> Path:
    path.mkdir()
    shutil.copyfile(GOLDEN / "dataset.toml", path / "dataset.toml")
    shutil.copytree(GOLDEN / "2026", path / "2026")
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        index.execute("PRAGMA journal_mode=wal")
        index.executescript((GOLDEN / "index.sql").read_text())
    return path


def revision_6(path: Path) -> Path:
    return with_indices(Path(shutil.copytree(MARKS / "marks", path)))


class Old(NamedTuple):
    """A dataset with an index of an older revision.

    Attributes:
        field: tells its data apart; "": their bytes do.
        end: what these are, before and after.
        later: the metadata of a datum to append.
    """

    revision: str
    make: Callable[[Path], Path]
    field: str
    end: list[bytes]
    later: dict[str, Any]

    def content(self, dataset: ondisk.Dataset) -> list[bytes]:
        found = dataset.query(with_data=False)
        return sorted(str(each.metadata[self.field]).encode() for each in found) if self.field else lines_of(dataset)


def encoded(values: Iterable[Any]) -> list[bytes]:
    return sorted(str(each).encode() for each in values)


LINES = [each["data"] for each in json.loads((GOLDEN / "expected.json").read_text())]
ARCHIVED = [metadata["value"] for _, metadata, _ in EXPECTED["archived"]]
STATIONS = [metadata["station"] for _, metadata, _ in json.loads((MARKS / "expected.json").read_text())["data"]]
OLD = {
    "revision 1": Old("0001", revision_1, "", encoded(LINES), {}),
    "revision 5": Old("0005", revision_5, "value", encoded(ARCHIVED), {"station": "z", "value": 1}),
    "revision 6": Old("0006", revision_6, "station", encoded(STATIONS), {"station": "z"}),
}


def bench(tmp_path: Path, format: str) -> Bench:
    path = tmp_path / "template"
    template = OLD[format].make(path) if format in OLD else changed(path, format)
    return Bench(tmp_path / "runs", template, STORY.steps, target=workload.migrate)


def look(path: Path, format: str) -> Migration | None:
    """Ask a dataset, as readers of every kind do; gives what there is to do still, None where nothing is."""
    plan = ondisk.migrate(path, dry_run=True)
    try:
        with ondisk.open(path, read_only=True) as dataset:
            found = OLD[format].content(dataset) if format in OLD else lines_of(dataset)
    except NeedsMigration:
        assert plan.revision[0] == OLD[format].revision
    else:
        assert found == end(format)
    return plan if plan.is_needed else None


def end(format: str) -> list[bytes]:
    """Return what a dataset holds before and after."""
    return OLD[format].end if format in OLD else STORY.end


def check_migrated(run: Run, format: str) -> None:
    """The index is the old or the new one, whole; migrating again goes on; data come and go."""
    left = look(run.path, format)
    if run.acked:
        assert left is None
    backups = [each for each in run.path.iterdir() if each.name.startswith("index.sqlite.before")]
    if format in OLD and left is None:
        assert backups
    for backup in backups:
        with contextlib.closing(sqlite3.connect(backup)) as index:
            assert index.execute("SELECT version_num FROM alembic_version").fetchall() == [(OLD[format].revision,)]
            assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    again = ondisk.migrate(run.path)
    assert left is not None or not again.is_needed
    assert look(run.path, format) is None
    check_index(run.path)
    with ondisk.open(run.path) as dataset:
        assert not dataset.needs_check
        later = datum_of(LATER, dataset.config.format)
        if format in OLD and OLD[format].field:
            later = Datum(later.reftime, OLD[format].later, {"n": 1})
        assert dataset.append([later]).imported == 1
        assert len(list(dataset.query(with_data=False))) == dataset.summary().count == len(end(format)) + 1
    check_index(run.path)
    for place in (run.path, *run.path.glob(".archive/*/")):
        assert [each.name for each in place.iterdir() if each.name.startswith((".index", ".dataset"))] == []
    assert [*run.path.glob(".archive/*/index.sqlite")] == []


@pytest.mark.parametrize("format", ["seg lz4", "vm2", "revision 1", "revision 5", "revision 6"])
def test_all_new_names_are_after_syncs(format: str, tmp_path: Path) -> None:
    calls = bench(tmp_path, format).recorded().calls
    # The copy of the index of an archive is never anything but a copy.
    assert check_order([each for each in calls if not re.search(r"/\.archive/.*\.index\.sqlite\.new", each)]) >= 2


def test_after_a_kill_the_index_gets_its_name_behind_the_removal_of_the_old_log(tmp_path: Path) -> None:
    path = make(tmp_path / "template", STORY, CONFIGS["vm2"])
    shutil.copyfile(path / "index.sqlite", path / ".index.sqlite.next")
    assert (path / "index.sqlite-wal").exists()
    runs = Bench(tmp_path / "runs", path, [Append(())], target=workload.migrate)
    run = runs.recorded()
    assert check_order(run.calls) >= 1
    assert not (run.path / ".index.sqlite.next").exists()


@pytest.mark.crash
@pytest.mark.parametrize("format", ["seg lz4", "revision 1", "revision 5", "revision 6"])
def test_killed_anywhere_a_migration_leaves_the_old_index_or_the_new(format: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room, format).killed(), lambda run: check_migrated(run, format))


@pytest.mark.check
@pytest.mark.parametrize("format", ["seg lz4", "vm2", "revision 1", "revision 5", "revision 6"])
def test_killed_at_a_few_points_a_migration_leaves_the_old_index_or_the_new(
    format: str, tmp_path: Path, sweep: Sweep
) -> None:
    sweep(bench(tmp_path, format).killed(most=6), lambda run: check_migrated(run, format))


_FAILURES = [
    ("pwrite64", "ENOSPC", (51, 50)), ("pwrite64", "EIO", (50,)), ("fsync", "EIO", (52,)), ("fdatasync", "EIO", (52,)),
    ("renameat", "EIO", (50,)), ("unlinkat", "EIO", (50,)), ("ftruncate", "EIO", (50,)),
]  # fmt: skip


@pytest.mark.crash
@pytest.mark.parametrize(
    ("format", "call", "error", "codes"),
    # Only an index of another revision is kept, under a second name.
    [*((format, *each) for format in ("seg lz4", "revision 1", "revision 5", "revision 6") for each in _FAILURES),
     ("revision 1", "linkat", "ENOSPC", (51,))],
)  # fmt: skip
def test_a_disk_that_fails_is_reported_and_the_migration_can_be_tried_again(
    format: str, call: str, error: str, codes: tuple[int, ...], room: Path, sweep: Sweep
) -> None:
    def look(run: Run) -> None:
        (ack,) = run.acks
        assert ack is None or ack["code"] in codes, ack
        check_migrated(run, format)

    sweep(bench(room, format).failed(error, call), look)


@pytest.mark.root
@pytest.mark.parametrize("room", range(0, 120_000, 20_000))
def test_on_a_full_disk_a_migration_is_refused_and_the_old_index_stays(room: int, tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    try:
        path = changed(place / "dataset", "seg lz4")
        with (place / "filler").open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            file.truncate(file.tell() - room)
        before = {each.name for each in path.iterdir()}
        with pytest.raises(DiskFull):
            ondisk.migrate(path)
        assert {each.name for each in path.iterdir()} == before
        assert look(path, "seg lz4") is not None
        (place / "filler").unlink()
        assert ondisk.migrate(path).done
        assert look(path, "seg lz4") is None
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
