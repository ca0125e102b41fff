"""A process that adopts a dataset of arkimet is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_arkimet import COUNT, aside, content, indices
from test_arkimet import archive as arkimets

import ondisk
from ondisk.dataset.auxiliary_files import CONFIG

from . import workload
from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace

pytestmark = needs_strace


def bench(room: Path) -> Bench:
    return Bench(room / "runs", arkimets(room / "template"), [workload.Fix()], target=workload.adopt)


def check(run: Run, template: Path) -> None:
    """It is still arkimet's and can be adopted, or a dataset that answers all, or asks for a fix."""
    if not (run.path / CONFIG).exists():
        ondisk.adopt(run.path)
    with ondisk.open(run.path) as dataset:
        if not run.acked:
            assert dataset.needs_check or len([*dataset.query()]) == COUNT
            dataset.fix()
        assert not dataset.needs_check
        assert len([*dataset.query()]) == COUNT
        assert dataset.check(accurate=True).is_clean
    assert content(run.path) == content(template)
    assert indices(run.path).items() >= aside(indices(template)).items()


@pytest.mark.crash
def test_killed_anywhere_it_can_be_adopted_or_fixed(room: Path, sweep: Sweep) -> None:
    sweep(bench(room).killed(), lambda run: check(run, room / "template"))


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_on_a_failing_disk_it_can_be_adopted_or_fixed(error: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room).failed(error), lambda run: check(run, room / "template"))
