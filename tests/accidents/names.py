"""Accidents with names: renamed segments, disks that are not mounted, links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from .law import check_law, must, must_fail
from .table import accident
from .tools import cp, cp_p, lose_index, mounted_over, mv, put_index, tool
from .victim import DIRS, FILES, A, B, Victim, number_of, numbers_of

LATE = number_of(A, 650)


@accident("11-renamed-to-another-day", fix=(8, 9), repack=(8, 9), maintain=(8, 9), answered=False)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(9))


@accident("11-renamed-over-another-day", answered=False)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(B))
    victim.destroyed = numbers_of(B)


@accident("11-renamed-to-another-day-and-the-index-lost", repack=31, answered=False)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(9))
    lose_index(victim.path)


@accident("11-copied-to-another-day")
def _(victim: Victim) -> None:
    cp(victim.file(A), victim.file(9))


@accident("11-renamed-mended-and-renamed-back", fix=0, repack=(8, 9), maintain=0, quiet=True)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(9))
    victim.repack()
    victim.maintain()
    mv(victim.file(9), victim.file(A))


@accident("11-renamed-to-another-year", answered=False)
def _(victim: Victim) -> None:
    target = victim.here / "2023" / victim.file(A).name
    target.parent.mkdir()
    mv(victim.file(A), target)


@accident("11-two-days-renamed-in-a-circle", answered=False)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(8))
    mv(victim.file(B), victim.file(9))


@accident("x-name-in-other-case", answered=False)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(A).with_suffix(f".{victim.extension.upper()}"))


def case_back(victim: Victim) -> None:
    mv(victim.file(A).with_suffix(f".{victim.extension.upper()}"), victim.file(A))
    victim.maintain()


@accident("x-name-in-other-case-and-back", orders=("fix", "repack", "maintain"), after=case_back)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.file(A).with_suffix(f".{victim.extension.upper()}"))


def unzipped(victim: Victim) -> None:
    tool("gunzip", f"{victim.file(A)}.gz")
    victim.destroyed = set()
    victim.maintain()


@accident("x-gzipped-and-back", kinds=FILES, orders=("fix", "repack", "maintain"), after=unzipped)
def _(victim: Victim) -> None:
    """Somebody saves space, and is told not to. The bytes are there, in another form."""
    tool("gzip", victim.file(A))
    victim.destroyed = numbers_of(A)


@accident("x-copy-of-an-editor-beside-it", fix=(0, 9), repack=(0, 9), maintain=(0, 9))
def _(victim: Victim) -> None:
    """Backup files, as editors and people leave them."""
    for suffix in ("~", ".bak", ".orig", " (copy)"):
        cp(victim.file(A), victim.file(A).with_name(victim.file(A).name + suffix))


def emptied(during: Callable[[Victim], None]) -> Callable[[Victim], None]:
    """Move everything out of the folder, do something, and move it back."""

    def happen(victim: Victim) -> None:
        away = victim.path.parent / "away"
        mv(victim.folder, away)
        victim.folder.mkdir()
        must_fail(victim)
        during(victim)
        tool("cp", "-rpT", away, victim.folder)

    return happen


def maintained(victim: Victim) -> None:
    must(9, victim.maintain())
    must(9, victim.run("fix", "--yes"))
    must(9, victim.maintain())


def maintained_and_appended(victim: Victim) -> None:
    maintained(victim)
    victim.append(LATE)
    victim.append(number_of(5, 0))
    victim.repack()


BACK = {"fix": 0, "repack": (0, 9), "maintain": 0}
accident("05-folder-empty-during-maintain", **BACK)(emptied(maintained))  # type: ignore[arg-type]
accident("05-folder-empty-during-maintain-and-append", maintain=0)(emptied(maintained_and_appended))


@accident("05-not-mounted-during-maintain", check=("",), fix=0, repack=0, maintain=0, root=True)
def _(victim: Victim) -> None:
    with mounted_over(victim.folder):
        must_fail(victim)
        maintained(victim)


@accident("05-not-mounted-during-maintain-and-append", root=True)
def _(victim: Victim) -> None:
    """What is appended under the mount point is away when the disk is back."""
    known = {*victim.given}
    with mounted_over(victim.folder):
        maintained_and_appended(victim)
    if not victim.place:
        victim.destroyed = victim.given - known


@accident("05-whole-dataset-folder-empty-of-segments", check=("MISSING",), fix=9, repack=9, maintain=9, answered=False,
          places=("dataset",))  # fmt: skip
def _(victim: Victim) -> None:
    shutil.rmtree(victim.folder)
    victim.destroyed = numbers_of(*victim.days_here)


def linked_elsewhere_back(victim: Victim) -> None:
    if victim.folder.is_symlink():
        victim.folder.unlink()
        mv(victim.path.parent / "away", victim.folder)
    victim.maintain()
    victim.destroyed = set()


@accident("x-folder-replaced-by-a-symlink", after=linked_elsewhere_back)
def _(victim: Victim) -> None:
    mv(victim.folder, victim.path.parent / "away")
    victim.folder.symlink_to(victim.path.parent / "away")
    victim.destroyed = numbers_of(*victim.days_here)


def segment_back(victim: Victim) -> None:
    if victim.file(A).is_symlink():
        victim.file(A).unlink()
    mv(victim.path.parent / "away", victim.file(A))
    victim.maintain()
    victim.destroyed = set()


@accident("x-segment-replaced-by-a-symlink", after=segment_back, orders=("fix", "repack", "maintain"))
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.path.parent / "away")
    victim.file(A).symlink_to(victim.path.parent / "away")
    victim.destroyed = numbers_of(A)


@accident("x-segment-replaced-by-another-kind-of-file", answered=False)
def _(victim: Victim) -> None:
    """A folder stands where a file was, or a file where a folder was."""
    mv(victim.file(A), victim.path.parent / "away")
    if victim.kind in DIRS:
        victim.file(A).write_bytes(b"something else")
    else:
        victim.file(A).mkdir()
        (victim.file(A) / "something").write_bytes(b"else")
    victim.destroyed = numbers_of(A)


@accident("x-half-copied-dataset", answered=False)
def _(victim: Victim) -> None:
    """A restore stopped: the index is there, a segment is cut, and those after it are missing."""
    copy = victim.path.parent / "copy"
    cp_p(victim.path, copy)
    victim.path = copy
    first, *others = (victim.file(day) for day in victim.days_here)
    for each in others:
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    victim.destroyed = numbers_of(*victim.days_here)
    if victim.kind in FILES:
        os.truncate(first, first.stat().st_size // 2)
    else:
        sorted(first.glob("0*"))[-1].unlink()


@accident("x-half-copied-dataset-without-its-index", answered=False, quiet=True)
def _(victim: Victim) -> None:
    copy = victim.path.parent / "copy"
    cp_p(victim.path, copy)
    victim.path = copy
    last = victim.days_here[-1]
    size = victim.file(last).stat().st_size
    victim.destroyed = numbers_of(last)
    if victim.kind in FILES:
        os.truncate(victim.file(last), size * 2 // 3)
    else:
        sorted(victim.file(last).glob("0*"))[-1].unlink()
    lose_index(victim.path)


def hard_linked(victim: Victim, *, index: bool) -> Victim:
    """Make a backup of hard links, as rsnapshot does; without `index` the index is a real copy."""
    copy = Victim(victim.path.parent / "copy", victim.kind, victim.place)
    tool("cp", "-al", victim.path, copy.path)
    if not index:
        put_index(victim.path, copy.path)
    copy.given, copy.revives = {*victim.given}, victim.revives
    return copy


LINKS = ("segments", "whole")


def linked(into: str, links: str) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        copy = hard_linked(victim, index=links == "whole")
        day = 4 if victim.place else A
        used, other = (copy, victim) if into == "copy" else (victim, copy)
        used.append(number_of(day, 650))
        used.delete(number_of(B, 200))
        used.repack()
        used.append(number_of(day, 655))
        if used is copy:
            victim.maybe |= copy.given - victim.given
            copy.maintain()
        other.append(number_of(day, 660))
        copy.maintain()
        check_law(copy)

    return happen


for into in ("copy", "original"):
    for links in LINKS:
        accident(f"21-hard-linked-{links}-append-into-{into}", orders=("fix", "repack", "maintain"))(
            linked(into, links)
        )
