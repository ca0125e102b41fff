"""The power is cut while a process pulls: the token is never ahead of the data that are on the disk."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from pathlib import Path

import pytest

import ondisk
from ondisk.filesystem import Directory
from ondisk.index import tide
from ondisk.replication import Replica

from .conftest import POINTS
from .powercut import Disk, cuts_power
from .test_append import Record
from .test_powercut import writing
from .test_replicate import State, state
from .workload import CONFIGS, LeaveOut, Pull, datum_of, random_lines

pytestmark = cuts_power

_CHANGES = 300


def make_source(room: Path, format: str) -> Path:
    """Create a source with replacements and deletions."""
    with ondisk.create(room / "source", {**CONFIGS[format], "replace": "yes"}) as source:
        number = 0
        while source.changes().token.offset < _CHANGES:
            source.append(datum_of(each, format.partition(" ")[0]) for each in random_lines(number, 9, days=4))
            number += 1
        source.delete('area: "VM2,3"')
    return source.path


def possible(room: Path, source: Path) -> dict[int, State]:
    """Return what a replica has after each answer, by how far it has followed."""
    found: dict[int, State] = {}

    def note() -> None:
        now = state(room / "undisturbed")
        found[now[0]] = now

    with Replica.create(room / "undisturbed", source) as replica:
        replica.pull(1, on_answer=lambda _applied, _lag: note())
    return found


def committed(path: Path) -> int:
    """Return the last change that the process has committed: the tide mark is written after the commit."""
    with closing(Directory.open(path)) as directory:
        mark = tide.read(directory)
    return 0 if mark is None else mark.seq


def check(disk: Disk, states: dict[int, State], reached: int, source: Path) -> None:
    """What was committed is there, with the data that the token covers; the next pull applies the rest."""
    with disk.mounted() as path:
        found = state(path / "dataset")
        assert found[0] >= reached
        assert found == states[found[0]]
        with Replica.open(path / "dataset", source) as replica:
            assert replica.pull().present == 0
            replica.dataset.repack()
            assert not replica.dataset.check(accurate=True).findings
        assert state(path / "dataset") == states[max(states)]


@pytest.mark.parametrize(("format", "seed"), [(format, seed) for format in CONFIGS for seed in range(5)])
def test_after_a_cut_the_replica_has_the_data_that_its_token_covers(
    format: str, seed: int, tmp_path: Path, record_property: Record
) -> None:
    source, disk = make_source(tmp_path, format), Disk.make(tmp_path / "disk")
    states = possible(tmp_path, source)
    at_least = random.Random(seed).randrange(1, len(states) - 50)
    with disk.mounted() as path:
        with Replica.create(path / "dataset", source) as replica:
            replica._begun()
        os.sync()
        with writing(path / "dataset", tmp_path, [Pull(str(source), 1)]) as writer:
            while (reached := committed(path / "dataset")) < at_least:
                time.sleep(0.001)
            disk.cut()
            writer.wait_for_failure()
    check(disk, states, reached, source)
    record_property(POINTS, 1)


def test_without_syncs_a_cut_loses_data_and_this_test_sees_it(tmp_path: Path) -> None:
    source, disk = make_source(tmp_path, "vm2"), Disk.make(tmp_path / "disk")
    states = possible(tmp_path, source)
    with disk.mounted() as path:
        with Replica.create(path / "dataset", source) as replica:
            replica._begun()
        os.sync()
        steps = [LeaveOut("files and directories"), LeaveOut("index"), Pull(str(source), 1)]
        with writing(path / "dataset", tmp_path, steps) as writer:
            while (reached := committed(path / "dataset")) < 40:
                time.sleep(0.001)
            disk.cut()
            writer.wait_for_failure()
    with pytest.raises((AssertionError, ondisk.OndiskError)):
        check(disk, states, reached, source)
