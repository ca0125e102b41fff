"""Accidents around the dataset: clocks, permissions, full disks, and indices that are only partly there."""

from __future__ import annotations

from .law import must
from .strangers import copied_in
from .table import accident
from .victim import A, Victim, clock, number_of

YEARS = 365
AGED = {"config": {"delete_age": 50 * YEARS}}
"""Days. The data are of 2024, so that nothing is old enough before 2074."""


@accident("16-clock-ahead-during-maintain", check=("",), fix=0, repack=0, maintain=0, **AGED)  # type: ignore[arg-type]
def _(victim: Victim) -> None:
    with clock(60 * YEARS):
        must(9, victim.maintain())
        must(9, victim.repack())


@accident("16-clock-ahead-during-appends-and-maintain", **AGED)  # type: ignore[arg-type]
def _(victim: Victim) -> None:
    with clock(60 * YEARS):
        victim.append(number_of(A, 650), number_of(5, 0))
        victim.maintain()


@accident("16-clock-ahead-a-day", check=("",), fix=0, repack=0, maintain=0, **AGED)  # type: ignore[arg-type]
def _(victim: Victim) -> None:
    with clock(1):
        must(0, victim.append(number_of(4, 650)))
        must(0, victim.maintain())


@accident("16-clock-behind-then-unknown-copied-in", check=("UNALIGNED",), fix=0, repack=9, maintain=0, quiet=True)
def _(victim: Victim) -> None:
    with clock(-1):
        must(0, victim.append(number_of(4, 650)))
        copied_in(victim)


@accident("16-clock-was-ahead-then-unknown-copied-in", check=("UNALIGNED",), fix=0, repack=9, maintain=0, quiet=True)
def _(victim: Victim) -> None:
    """The index is newer than every file that is copied in later."""
    with clock(1):
        must(0, victim.append(number_of(4, 650)))
    copied_in(victim)
