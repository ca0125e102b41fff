"""Accidents in the middle of our own work: a process is killed, and then something else goes wrong as well."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.crashes import CALLS, Killed, killed_at

import ondisk

from .law import check_query, must
from .table import accident
from .tools import cp_p, lose_index
from .victim import ARCHIVED, A, B, Victim, datum, number_of, numbers_of

BATCH = tuple(number_of(day, minute) for day in (5, 6, 7, 8) for minute in (0, 100))
"""The data of one batch, for four new segments."""

Verb = Callable[[Victim], Any]


def kill(victim: Victim, verb: Verb, at: float, before: str = "") -> None:
    """Kill a verb at a part of its way, from 0 to 1: before one of its calls that change the disk.

    Args:
        before: kill it at the next call of this name from there on.
    """
    rehearsal = Victim(victim.path.parent / "rehearsal", victim.kind, victim.place)
    cp_p(victim.path, rehearsal.path)
    calls: list[str] = []
    with recorded(calls):
        verb(rehearsal)
    point = int(at * (len(calls) - 1))
    if before:
        point = next((place for place, call in enumerate(calls) if place >= point and call == before), point)
    with contextlib.suppress(Killed), killed_at(point):
        verb(victim)


def beside(victim: Victim, verb: Verb, at: float, act: Verb) -> None:
    """Let something happen at a part of a verb's way, as `kill` does, while the verb goes on."""
    rehearsal = Victim(victim.path.parent / "rehearsal", victim.kind, victim.place)
    cp_p(victim.path, rehearsal.path)
    calls: list[str] = []
    with recorded(calls):
        verb(rehearsal)
    made: list[str] = []

    def happen() -> None:
        if len(made) == int(at * (len(calls) - 1)) + 1:
            act(victim)

    with recorded(made, happen):
        verb(victim)


@contextlib.contextmanager
def recorded(calls: list[str], before: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Write down the calls that `killed_at` counts.

    Args:
        before: called before each of them, after it was written down.
    """

    def recording(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def record(*arguments: Any, **options: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                calls.append(name)
                before()
            return function(*arguments, **options)

        return record

    with pytest.MonkeyPatch.context() as patch:
        for name in (*CALLS, "open"):
            patch.setattr(os, name, recording(name))
        yield


def append(*numbers: int) -> Verb:
    def run(victim: Victim) -> None:
        with ondisk.open(victim.path) as dataset:
            dataset.append([datum(each, victim.kind) for each in numbers])

    return run


def repack(victim: Victim) -> None:
    with ondisk.open(victim.path) as dataset:
        dataset.repack()


def archive(*days: int) -> Verb:
    def run(victim: Victim) -> None:
        with ondisk.open(victim.path) as dataset:
            dataset.archive(*map(victim.name, days))

    return run


def unarchive(*days: int) -> Verb:
    def run(victim: Victim) -> None:
        with ondisk.open(victim.path) as dataset:
            dataset.unarchive(*map(victim.name, days))

    return run


def rename(victim: Victim) -> None:
    with ondisk.open(victim.path) as dataset:
        dataset.rename_archive("last", "2024")


def set_offline(victim: Victim) -> None:
    with ondisk.open(victim.path) as dataset:
        dataset.set_offline("2024")


def delete(*numbers: int) -> Verb:
    def run(victim: Victim) -> None:
        with ondisk.open(victim.path) as dataset:
            dataset.delete(victim.match(*numbers))

    return run


WAYS = (0.2, 0.5, 0.7, 0.9)
LOST: dict[str, Any] = {"quiet": True, "orders": ("fix", "maintain")}


def killed_append(at: float) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        victim.maybe |= {*BATCH}
        victim.acts.append({*BATCH})
        kill(victim, append(*BATCH), at)

    return happen


def killed_delete(at: float) -> Callable[[Victim], None]:
    """Kill a delete of data in the dataset and in the archive. All of it is done in the end, or nothing."""
    both = {number_of(A, 200), number_of(B, 200), number_of(4, 200)}

    def happen(victim: Victim) -> None:
        victim.acts.append(both)
        kill(victim, delete(*both), at)
        victim.given -= both
        victim.maybe |= both

    return happen


def killed_with_index_lost(
    prepare: Callable[[Victim], None], verb: Verb, at: float, before: str = ""
) -> Callable[..., None]:
    """Kill a verb, and lose the index: what was acknowledged before is all there."""

    def happen(victim: Victim) -> None:
        prepare(victim)
        kill(victim, verb, at, before)
        lose_index(victim.path)
        victim.revives = True

    return happen


def holes(victim: Victim) -> None:
    victim.delete(number_of(A, 200), number_of(B, 0), number_of(B, 200), number_of(B, 400), number_of(B, 600))


def nothing(victim: Victim) -> None:
    """Prepare nothing."""


def new_segment(victim: Victim) -> None:
    """Append to a new segment, so that the append itself is acknowledged and only what follows is killed."""
    victim.maybe |= {*BATCH}


for at in WAYS:
    accident(f"17-append-killed-at-{at}", quiet=True, places=("dataset",))(killed_append(at))
    accident(f"18-delete-killed-at-{at}", quiet=True, places=("archive",))(killed_delete(at))
for at, call in ((0.0, "rename"), (0.5, "rename"), (0.0, "unlink"), (0.5, "unlink"), (0.2, ""), (0.5, ""), (0.8, "")):
    name = f"{call or 'any'}-{at}"
    accident(f"19-repack-killed-index-lost-{name}", **LOST)(killed_with_index_lost(holes, repack, at, call))
for at in WAYS:
    accident(f"19-append-killed-index-lost-{at}", **LOST, places=("dataset",))(
        killed_with_index_lost(new_segment, append(*BATCH), at)
    )
    accident(f"19-archive-killed-index-lost-{at}", **LOST, places=("dataset",))(
        killed_with_index_lost(nothing, archive(A, B), at)
    )
    accident(f"19-unarchive-killed-index-lost-{at}", **LOST, places=("archive",))(
        killed_with_index_lost(nothing, unarchive(A, B), at)
    )


def killed_archive(at: float) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        kill(victim, archive(A, B), at)
        for day in (A, B):
            if (victim.path / victim.name(day)).exists():
                assert victim.run("archive", victim.name(day), "--yes") in (
                    0,
                    13,
                )  # 13: it is archived, and dropped on opening
        must(0, victim.maintain())
        assert not [*victim.path.rglob(".index.sqlite.new*")]

    return happen


for at in WAYS:
    accident(f"20-archive-killed-then-again-{at}", check=("",), fix=0, repack=0, maintain=0, places=("dataset",))(
        killed_archive(at)
    )


def killed_rename(at: float, *, is_lost: bool) -> Callable[[Victim], None]:
    """Kill the rename of a folder of the archive. It is done in the end, or not; queries go on."""

    def happen(victim: Victim) -> None:
        kill(victim, rename, at)
        if (victim.path / ".archive/2024").exists():
            victim.place = ".archive/2024"
        if is_lost:
            lose_index(victim.path)
        else:
            assert {*check_query(victim, complete=True).found} == victim.given

    return happen


def killed_offline(at: float, *, is_lost: bool) -> Callable[[Victim], None]:
    """Kill the verb that sets a folder of the archive offline. It is so in the end, or not, and can be ended."""

    def happen(victim: Victim) -> None:
        rename(victim)
        victim.place = ".archive/2024"
        kill(victim, set_offline, at)
        if is_lost:
            lose_index(victim.path)
        victim.away = numbers_of(*ARCHIVED)
        check_query(victim, complete=not is_lost)
        victim.run("archive", "--online", "2024", "--yes")  # 10: it is not offline
        victim.codes = [each for each in victim.codes if each != ("archive", 10)]
        victim.away = set()

    return happen


for at in (0.0, *WAYS, 1.0):
    for is_lost in (False, True):
        columns: dict[str, Any] = {"fix": 0, "repack": 31, "maintain": 0} if is_lost else {"fix": 0, "maintain": 0}
        columns |= {"places": ("archive",), "quiet": is_lost}
        name = f"{at}-and-the-index-lost" if is_lost else f"{at}"
        accident(f"20-rename-of-the-archive-killed-at-{name}", **columns)(killed_rename(at, is_lost=is_lost))
        accident(f"20-set-offline-killed-at-{name}", **columns)(killed_offline(at, is_lost=is_lost))


def killed_fix(at: float) -> Callable[[Victim], None]:
    """Kill the fix that rebuilds a lost index, and lose that, too."""

    def happen(victim: Victim) -> None:
        lose_index(victim.path)
        kill(victim, lambda each: each.fix(), at)
        lose_index(victim.path)
        (victim.path / "needs-check-do-not-pack").unlink(missing_ok=True)

    return happen


for at in (0.3, 0.6, 0.9):
    accident(f"x-fix-killed-index-lost-again-{at}", fix=0, repack=31, maintain=0)(killed_fix(at))
