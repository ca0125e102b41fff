"""Accidents with what `keep_replaced` keeps: it is removed, copied, taken for a backup, or all that is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from .law import must
from .table import accident
from .tools import cp_p, lose_index, mv, put_index
from .victim import A, B, Victim, number_of

KEEPS = {"config": {"keep_replaced": "6h"}}
GONE = number_of(A, 200)


def keep(victim: Victim) -> Path:
    """Delete a datum, and let a repack keep the generation of its segment; return where that is."""
    victim.delete(GONE)
    must(0, victim.repack())
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


@accident("x-kept-taken-for-a-backup", check=("UNALIGNED", "DIRTY"), fix=0, repack=9, maintain=0, **KEEPS)
def _(victim: Victim) -> None:
    """Somebody copies it over the segment: what was deleted since is back."""
    path = keep(victim)
    if victim.file(A).is_dir():
        shutil.rmtree(victim.file(A))
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


@accident("x-kept-is-all-that-is-left", answered=False, **KEEPS)
def _(victim: Victim) -> None:
    """The segment is removed by somebody; what is kept is no data, so nothing brings it back by itself."""
    path = keep(victim)
    shutil.rmtree(victim.file(A)) if victim.file(A).is_dir() else victim.file(A).unlink()
    victim.destroyed = {each for each in victim.given if each // 1000 == A and each != GONE}
    assert path.exists()
