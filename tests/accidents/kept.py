"""Accidents with what `keep_replaced` keeps: it is removed, copied, or taken for a backup."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from worlds import delete_by_age

from .table import accident
from .tools import cp_p, lose_index, mv, put_index
from .victim import A, B, Victim, number_of, numbers_of, time_of

KEEPS = {"config": {"keep_replaced": "6h"}}


def keep(victim: Victim) -> Path:
    """Let a repack drop the segment of a day that is old enough, and keep it; return where it is."""
    days = (datetime.now(UTC) - time_of(number_of(B, 0))).days
    delete_by_age(victim.path, days)
    victim.deleted |= numbers_of(A)
    (found,) = kept(victim)
    return found


def kept(victim: Victim) -> Iterator[Path]:
    """Yield what is kept where the accident happens."""
    return (each for each in victim.folder.glob(".replaced/*") if each.suffix != ".rows")


@accident("x-kept-removed", fix=0, repack=0, maintain=0, check=("",), **KEEPS)
def _(victim: Victim) -> None:
    keep(victim)
    shutil.rmtree(victim.folder / ".replaced")


@accident("x-kept-bytes-removed", fix=0, repack=0, maintain=0, check=("",), **KEEPS)
def _(victim: Victim) -> None:
    path = keep(victim)
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@accident("x-kept-copied-elsewhere", fix=0, repack=0, maintain=0, check=("",), **KEEPS)
def _(victim: Victim) -> None:
    keep(victim)
    (victim.here / "2023").mkdir()
    cp_p(victim.folder / ".replaced", victim.here / "2023/.replaced")


@accident("x-kept-taken-for-a-backup", check=("UNALIGNED",), fix=0, repack=9, maintain=0, **KEEPS)
def _(victim: Victim) -> None:
    """Somebody copies it to the name of the segment: what was deleted is back."""
    path = keep(victim)
    cp_p(path, victim.file(A))
    victim.revives = True


@accident("x-kept-given-a-hidden-name", fix=(0, 9), repack=(0, 9), maintain=(0, 9), **KEEPS)
def _(victim: Victim) -> None:
    path = keep(victim)
    mv(path, victim.file(A).with_name(f".{path.name}"))


@accident("x-kept-and-the-index-lost", repack=31, fix=0, maintain=0, **KEEPS)
def _(victim: Victim) -> None:
    """Nothing that is kept comes back, and nothing of it goes to quarantine."""
    keep(victim)
    lose_index(victim.path)


@accident("x-kept-and-an-older-index", fix=None, repack=None, maintain=None, **KEEPS)
def _(victim: Victim) -> None:
    backup = victim.backup(victim.path)
    keep(victim)
    victim.delete(number_of(B, 200))
    put_index(backup, victim.path)
    victim.revives = True
