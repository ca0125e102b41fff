"""A process that backs up or restores is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from worlds import content

import ondisk
from ondisk.backup import points
from ondisk.errors import DatasetNotFound

from . import workload
from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .workload import (
    ALL_CONFIGS,
    SEG,
    Append,
    Archive,
    BackUp,
    Delete,
    Repack,
    Step,
    carry_out,
    check_index,
    random_lines,
)

pytestmark = needs_strace

BEFORE: list[Step] = [Append(random_lines(1, 12)), Archive((0,))]
FIRST, SECOND = Append(random_lines(2, 12)), Append(random_lines(3, 6))
STEPS: list[Step] = [BackUp("saved"), FIRST, Delete(1), Repack(), BackUp("saved"), SECOND, BackUp("saved", keep=1)]
FORMATS = pytest.mark.parametrize("format", ["vm2", SEG[0], "blob"])


def made(path: Path, format: str) -> Path:
    with ondisk.create(path, ALL_CONFIGS[format]) as dataset:
        for step in BEFORE:
            carry_out(dataset, step)
    return path


def states(path: Path, format: str) -> list[Any]:
    """Return what the dataset has after each of the steps, the state before them first."""
    with ondisk.open(made(path, format)) as dataset:
        found = [content(dataset)]
        for step in STEPS:
            if not isinstance(step, BackUp):
                carry_out(dataset, step)
            found.append(content(dataset))
    return found


def restored(target: Path, at: Any = None) -> Any:
    path = target.with_name("restored")
    assert ondisk.restore(target, path, at).problems == []
    with ondisk.open(path, read_only=True) as dataset:
        assert not dataset.needs_check
        assert not any(finding.state.names != ["DIRTY"] for finding in dataset.check(accurate=True).findings)
        found = content(dataset)
    shutil.rmtree(path)
    return found


def check_backup(run: Run, wanted: list[Any]) -> None:
    """Each point that is there is whole, and a state that the dataset had. The last one that was acknowledged is there,
    or a later one.

    The next run ends well, and leaves nothing behind.
    """
    target = run.path.parent / "saved"
    acked = run.acked
    done = [at for at, step in enumerate(STEPS[:acked], 1) if isinstance(step, BackUp)]
    listed = [*points(target, verify=True)] if (target / "backup.json").exists() else []
    assert [each.damage for each in listed if each.damage] == []
    found = [restored(target, each.time) for each in listed]
    assert all(each in wanted for each in found)
    if done:
        assert found[-1] in wanted[done[-1] :]
    with ondisk.open(run.path) as dataset:
        for step in STEPS[acked:]:
            carry_out(dataset, step)
        carry_out(dataset, BackUp("saved", keep=1))
        assert restored(target) == content(dataset) == wanted[-1]
    (point,) = points(target, verify=True)
    assert not point.damage
    check_swept(target)


def check_swept(target: Path) -> None:
    """No file of the backup is there that no point names."""
    folders = {each.name for each in (target / "points").iterdir()}
    assert not any(name.startswith(".") for name in folders)
    (lines,) = [path.read_text() for path in (target / "points").glob("*/dataset/segments.jsonl")]
    for path in (target / "segments/dataset").rglob("*"):
        name = str(path.relative_to(target / "segments/dataset"))
        is_file_of_folder = path.is_file() and path.name[:1].isdigit() and ".blob." in path.parent.name
        assert path.is_dir() or f'"{name}"' in lines or is_file_of_folder, name


def check_order(calls: list[str], root: str, committing: str) -> int:
    """A file gets its name after it was synced; the last name, after everything else was. Return how many names.

    Args:
        root: of the folder that is looked at.
        committing: a pattern for the last name.
    """
    dirty: set[str] = set()  # files, and folders with new names
    count = 0
    for call in calls:
        if found := re.match(r"p?write(?:64)?\([0-9]+<([^>]*)>", call) or re.match(
            r"copy_file_range\([^>]*>, [^<]*<([^>]*)>", call
        ):
            dirty.add(found[1])
        elif found := re.match(r"f(?:data)?sync\([0-9]+<([^>]*)>", call):
            dirty.discard(found[1])
        elif call.startswith("syncfs("):
            dirty.clear()
        elif found := re.match(r'renameat2?\([0-9]+<([^>]*)>, "([^"]*)", [0-9]+<([^>]*)>, "([^"]*)"', call):
            old, new = f"{found[1]}/{found[2]}", f"{found[3]}/{found[4]}"
            if not new.startswith(root):
                continue
            count += 1
            assert old not in dirty, f"{old} was not synced"
            if re.fullmatch(committing, new.removeprefix(f"{root}/")):
                left = {each for each in dirty if each.startswith(root) and not UNSYNCED.search(each)}
                assert left == set(), f"{left} not synced before {new}"
            dirty.add(found[3])
    return count


UNSYNCED = re.compile(r"/(\.lock|\.tide|index\.sqlite-(wal|shm))$|\.sqlite(\.new)?-journal$")
"""What need not be on the disk."""


@FORMATS
def test_all_new_names_are_after_syncs(format: str, tmp_path: Path) -> None:
    run = bench(tmp_path, format).recorded()
    assert check_order(run.calls, str(run.path.parent / "saved"), "points/2.*") > 10
    run = restoring(tmp_path / "again", format).recorded()
    assert check_order(run.calls, str(run.path), "dataset.toml") >= 3


def bench(place: Path, format: str) -> Bench:
    return Bench(place / "runs", made(place / "template", format), STEPS)


@pytest.mark.crash
@FORMATS
def test_killed_anywhere_each_point_is_whole_and_the_next_run_goes_on(format: str, room: Path, sweep: Sweep) -> None:
    wanted = states(room / "states", format)
    sweep(bench(room, format).killed(), lambda run: check_backup(run, wanted))


@pytest.mark.check
@FORMATS
def test_killed_at_a_few_points_each_point_is_whole(format: str, tmp_path: Path, sweep: Sweep) -> None:
    wanted = states(tmp_path / "states", format)
    sweep(bench(tmp_path, format).killed(most=4), lambda run: check_backup(run, wanted))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("calls", "error", "codes"),
    [(("pwrite64", "copy_file_range"), "ENOSPC", {51}), (("fsync", "syncfs"), "EIO", {50, 52})],
    ids=["full", "failing"],
)
@FORMATS
def test_a_disk_that_fails_meanwhile_is_reported_and_the_points_before_are_whole(
    format: str, calls: tuple[str, ...], error: str, codes: set[int], room: Path, sweep: Sweep
) -> None:
    wanted = states(room / "states", format)

    def check(run: Run) -> None:
        assert run.injected is not None
        failed = [ack["code"] for ack in run.acks if ack is not None]
        if "/saved/" in run.calls[run.injected]:
            assert set(failed) <= codes
            check_points(run, wanted)

    sweep(bench(room, format).failed(error, *calls), check)


def check_points(run: Run, wanted: list[Any]) -> None:
    target = run.path.parent / "saved"
    listed = [*points(target, verify=True)] if (target / "backup.json").exists() else []
    assert [each.damage for each in listed if each.damage] == []
    assert all(restored(target, each.time) in wanted for each in listed)
    with ondisk.open(run.path) as dataset:
        dataset.backup(target, keep=1)
        assert restored(target) == content(dataset)
    check_swept(target)


def restoring(place: Path, format: str) -> Bench:
    """Restore what a run has saved; there is no dataset yet."""
    with ondisk.open(made(place / "template", format)) as dataset:
        for step in (FIRST, Delete(1), BackUp("saved")):
            carry_out(dataset, step)
    return Bench(place / "runs", place / "none", [Append(())], target=workload.restore, beside=place / "saved")


def check_restored(run: Run, template: Path) -> None:
    """There is the dataset, or none: then it is restored by the same command."""
    with ondisk.open(template, read_only=True) as dataset:
        wanted = content(dataset)
    try:
        with ondisk.open(run.path, read_only=True) as dataset:
            assert content(dataset) == wanted
    except DatasetNotFound:
        assert not run.acked
        assert ondisk.restore(run.path.parent / "saved", run.path).problems == []
    check_index(run.path)
    with ondisk.open(run.path) as dataset:
        assert not dataset.needs_check
        assert content(dataset) == wanted
        assert not any(finding.state.names != ["DIRTY"] for finding in dataset.check(accurate=True).findings)
        carry_out(dataset, SECOND)
        assert dataset.count() == len(wanted) + 6


@pytest.mark.crash
@FORMATS
def test_killed_anywhere_a_restore_leaves_the_dataset_or_can_be_repeated(format: str, room: Path, sweep: Sweep) -> None:
    sweep(restoring(room, format).killed(), lambda run: check_restored(run, room / "template"))


@pytest.mark.check
@FORMATS
def test_killed_at_a_few_points_a_restore_can_be_repeated(format: str, tmp_path: Path, sweep: Sweep) -> None:
    sweep(restoring(tmp_path, format).killed(most=4), lambda run: check_restored(run, tmp_path / "template"))


@pytest.mark.crash
@pytest.mark.parametrize(("call", "error"), [("pwrite64", "ENOSPC"), ("fsync", "EIO")])
@FORMATS
def test_a_disk_that_fails_while_restoring_is_reported_and_it_can_be_repeated(
    format: str, call: str, error: str, room: Path, sweep: Sweep
) -> None:
    def check(run: Run) -> None:
        assert run.acks[0] is None or run.acks[0]["code"] in (50, 51, 52)
        check_restored(run, room / "template")

    sweep(restoring(room, format).failed(error, call), check)
