"""Accidents with the archive: folders that are renamed, copied, away or offline, and segments moved by hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

from .killed import Verb, archive, beside, repack, unarchive
from .law import check_law, check_query, must, must_fail
from .table import accident
from .tools import cp, cp_p, lose_index, mounted_over, mv, overwrite, tool
from .victim import ARCHIVED, FILES, LAST, A, B, C, D, Victim, number_of, numbers_of

LATE, NEW_DAY = number_of(A, 650), number_of(5, 0)
GONE = number_of(A, 200)
OTHER = ".archive/2024"
WELL = {"fix": 0, "repack": 0, "maintain": 0}
MOVED = {"check": ("MISSING",), **WELL}
COPIED = {"check": ("UNALIGNED",), "fix": 0, "repack": 9, "maintain": 0}
IN_DATASET, IN_ARCHIVE = {"places": ("dataset",)}, {"places": ("archive",)}
WITHOUT_UNIQUE = {"config": {"unique": []}}
Act = Callable[[Victim], None]


def remove(path: Path) -> None:
    tool("rm", "-r", path)


# Folders of the archive


def followed(victim: Victim) -> None:
    """Go on where the archive is now."""
    victim.place = OTHER


def renamed(victim: Victim) -> None:
    mv(victim.here, victim.path / OTHER)
    followed(victim)


@accident("12-archive-renamed", check=("MISSING",), **WELL, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """Queries go on at once."""
    renamed(victim)
    assert {*check_query(victim, complete=True).found} == victim.given


@accident("12-archive-renamed-and-appended-again", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    renamed(victim)
    victim.append(LATE, NEW_DAY)
    victim.run("archive", victim.name(5), "--yes")


@accident("12-archive-renamed-and-the-index-lost", fix=0, repack=31, maintain=0, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    renamed(victim)
    lose_index(victim.path)


@accident("12-archive-renamed-twice-and-replaced-by-a-new-one", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """Nobody maintains in between, and segments are archived again."""
    mv(victim.here, victim.path / ".archive/first")
    mv(victim.path / ".archive/first", victim.path / OTHER)
    followed(victim)
    victim.run("archive", victim.name(D), "--yes")
    victim.maintain()
    victim.run("archive", victim.name(D), "--yes")


def two_folders(victim: Victim) -> None:
    """Have day B in `.archive/2024`, day C in `.archive/last`, the others in the dataset."""
    must(0, victim.run("archive", victim.name(B), "--yes"))
    must(0, victim.run("archive", "--rename", "last", "2024", "--yes"))
    must(0, victim.run("archive", victim.name(C), "--yes"))


@accident("12-archives-exchanged", **IN_DATASET)
def _(victim: Victim) -> None:
    two_folders(victim)
    archives = victim.path / ".archive"
    mv(archives / "last", archives / "between")
    mv(archives / "2024", archives / "last")
    mv(archives / "between", archives / "2024")


def moved_back(victim: Victim) -> None:
    if (victim.path / OTHER / "last").exists():
        mv(victim.path / OTHER / "last", victim.path / LAST)
    victim.maintain()
    victim.away = set()


@accident("12-archive-moved-into-another-one", check=("CORRUPTED+MISSING",), after=moved_back, **IN_DATASET)
def _(victim: Victim) -> None:
    """`mv .archive/last .archive/2024`, where that exists."""
    two_folders(victim)
    mv(victim.path / LAST, victim.path / OTHER / "last")
    victim.away = numbers_of(C)


@accident("12-archive-renamed-beside-a-maintain", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """The data of two days are deleted in part, so that it rewrites them."""
    victim.delete(GONE, number_of(B, 200))
    beside(victim, lambda each: each.maintain(), 0.5, renamed)


@accident("12-archive-copied-beside-it", check=("UNALIGNED",), fix=0, repack=9, maintain=0, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    cp_p(victim.here, victim.path / ".archive/copy")
    victim.leave_alone(victim.path / ".archive/copy")


@accident("12-archive-copied-beside-it-and-the-index-lost", fix=0, repack=31, maintain=0, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    cp_p(victim.here, victim.path / ".archive/copy")
    lose_index(victim.path)
    victim.leave_alone(victim.path / ".archive/copy")


@accident("12-archive-copied-maintained-and-the-original-removed", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    cp_p(victim.here, victim.path / OTHER)
    must(0, victim.maintain())
    remove(victim.here)
    followed(victim)


def to_another_disk(victim: Victim, between: Act) -> None:
    """Copy the archive file by file, then remove it file by file, as `mv` does."""
    target = victim.path / OTHER
    for day in ARCHIVED:
        copy = target / victim.name(day)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if victim.kind in FILES:  # it has begun, and then copied a part of it
            with copy.open("xb", buffering=0) as file:
                between(victim)
                file.write(victim.file(day).read_bytes()[:100])
                between(victim)
        cp_p(victim.file(day), copy)
        between(victim)
    cp_p(victim.here, target)
    for day in ARCHIVED:
        remove(victim.file(day))
        between(victim)
    remove(victim.here)
    followed(victim)


@accident("12-archive-moved-to-another-disk", **WELL, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    to_another_disk(victim, lambda _: None)


for name, act in {
    "maintains": lambda victim: victim.maintain(),
    "repacks": lambda victim: victim.repack(),
    "deletes-and-maintains": lambda victim: (victim.deleted or victim.delete(GONE, number_of(C, 0)), victim.maintain()),
}.items():

    @accident(f"12-archive-moved-to-another-disk-beside-{name}", **IN_ARCHIVE)
    def _(victim: Victim, act: Act = act) -> None:  # type: ignore[assignment]
        to_another_disk(victim, act)


# Folders that are away


def everything(victim: Victim) -> None:
    """Use the dataset, with each verb, while data are away or offline."""
    inner = victim.name(A)
    name = inner if victim.place == LAST else f"{victim.place}/{inner}"
    victim.append(*numbers_of(A))
    victim.append(LATE, NEW_DAY)
    if not victim.revives:  # else the index does not know it
        victim.delete(GONE)
    for verb in ("check", "fix", "repack"):
        victim.run(verb, *(["--yes"] if verb != "check" else []))
        check_query(victim)
    victim.run("archive", victim.name(D), "--yes")
    victim.run("unarchive", name, "--yes")
    victim.run("archive", "--rename", victim.place.removeprefix(".archive/"), "new", "--yes")
    victim.maintain()
    check_law(victim)


def nothing(victim: Victim) -> None:
    """Do nothing."""


def gone(victim: Victim) -> None:
    mv(victim.here, victim.path.parent / "away")


def empty(victim: Victim) -> None:
    gone(victim)
    victim.here.mkdir()
    victim.leave_alone(victim.here)


def another(victim: Victim) -> None:
    """Put the archive of another dataset in its place."""
    other = victim.foreign(number_of(7, 0), number_of(7, 100), number_of(8, 0))
    must(0, other.run("archive", other.name(7), "--yes"))
    gone(victim)
    cp_p(other.path / LAST, victim.here)
    victim.leave_alone(victim.here)


def older(victim: Victim) -> None:
    """Put an older state of it in its place."""
    backup = victim.backup(victim.here)
    if victim.place == LAST:
        must(0, victim.run("archive", victim.name(D), "--yes"))
        victim.away |= numbers_of(D)
    gone(victim)
    mv(backup, victim.here)
    victim.leave_alone(victim.here)


def back(victim: Victim) -> None:
    """Put the archive back: all its data are there, and none count as lost."""
    if victim.here.exists():
        shutil.rmtree(victim.here)
    mv(victim.path.parent / "away", victim.here)
    victim.away, victim.stays = set(), {}
    victim.maintain()
    assert victim.lost() == 0


AWAY = {"gone": gone, "empty": empty, "another": another, "older": older}


def away(how: Act, during: Act = nothing, *, lost: bool = False) -> Act:
    def happen(victim: Victim) -> None:
        victim.away = numbers_of(*ARCHIVED)
        how(victim)
        if lost:
            lose_index(victim.path)
            victim.revives = True
        else:
            must_fail(victim)
        during(victim)

    return happen


for name, how in AWAY.items():
    states = {"check": ("MISSING",), "fix": 9, "repack": 9, "maintain": 9}
    accident(f"12-archive-away-{name}", **states, after=back, **IN_ARCHIVE)(away(how))  # type: ignore[arg-type]
    accident(f"12-archive-away-{name}-and-each-verb", after=back, **IN_ARCHIVE)(away(how, everything))
    accident(f"12-archive-away-{name}-and-the-index-lost", fix=9, repack=31, maintain=9, after=back, **IN_ARCHIVE)(
        away(how, lost=True)
    )
    accident(f"12-archive-away-{name}-and-the-index-lost-and-each-verb", after=back, **IN_ARCHIVE)(
        away(how, everything, lost=True)
    )


def forgotten(victim: Victim) -> None:
    """The disk is gone for good."""
    victim.destroyed, victim.away = victim.away - victim.deleted, set()
    victim.stays = {}
    must(8, victim.run("fix", "--forget", "last", "--yes"))
    victim.maintain()


for lost in (False, True):
    name = "12-archive-away-and-forgotten" + "-after-the-index-was-lost" * lost
    accident(name, after=forgotten, **IN_ARCHIVE)(away(gone, lost=lost))


def older_used(victim: Victim) -> None:
    """Use the older archive from now on, as the newer one is gone."""
    victim.destroyed, victim.away, victim.stays = numbers_of(D), set(), {}
    must(8, victim.run("fix", "--forget", "last", "--yes"))
    victim.maintain()


accident("12-older-archive-used", after=older_used, **IN_ARCHIVE)(away(older))


@accident("12-archive-not-mounted", **IN_ARCHIVE, root=True)
def _(victim: Victim) -> None:
    with mounted_over(victim.here):
        victim.away = numbers_of(*ARCHIVED)
        victim.leave_alone(victim.here)
        must_fail(victim)
        everything(victim)
    victim.away, victim.stays = set(), {}


@accident("12-all-archives-not-mounted", **IN_ARCHIVE, root=True)
def _(victim: Victim) -> None:
    with mounted_over(victim.path / ".archive"):
        victim.away = numbers_of(*ARCHIVED)
        must_fail(victim)
        everything(victim)
        assert [*(victim.path / ".archive").iterdir()] == []
    victim.away = set()


# Folders that are offline


def offline(how: Act, during: Act = nothing, *, lost: bool = False) -> Act:
    def happen(victim: Victim) -> None:
        must(0, victim.run("archive", "--rename", "last", "2024", "--yes"))
        followed(victim)
        must(0, victim.run("archive", "--offline", "2024", "--yes"))
        victim.away = numbers_of(*ARCHIVED)
        how(victim)
        if lost:
            lose_index(victim.path)
            victim.revives = True
        answer = check_query(victim, complete=True)
        assert answer.warned
        during(victim)

    return happen


def there(victim: Victim) -> None:
    """Leave the folder where it is, although it is called offline."""
    victim.leave_alone(victim.here)


def online(victim: Victim) -> None:
    if (victim.path.parent / "away").exists():
        shutil.rmtree(victim.here, ignore_errors=True)
        mv(victim.path.parent / "away", victim.here)
    must(0, victim.run("archive", "--online", "2024", "--yes"))
    victim.away, victim.stays = set(), {}
    victim.maintain()
    assert victim.lost() == 0


for name, how in {**AWAY, "there": there}.items():
    accident(f"12-archive-offline-{name}", check=("",), **WELL, after=online, **IN_ARCHIVE)(offline(how))
    accident(f"12-archive-offline-{name}-and-each-verb", after=online, **IN_ARCHIVE)(offline(how, everything))
    accident(f"12-archive-offline-{name}-and-the-index-lost", repack=31, after=online, **IN_ARCHIVE)(
        offline(how, lost=True)
    )
    accident(f"12-archive-offline-{name}-and-the-index-lost-and-each-verb", after=online, **IN_ARCHIVE)(
        offline(how, everything, lost=True)
    )


# Segments that people move between the folders


@accident("09-archive-of-another-dataset-put-in", check=("UNALIGNED",), **IN_DATASET, quiet=True)
def _(victim: Victim) -> None:
    """Its files become segments of the dataset, as any files that people put there."""
    other = victim.foreign(number_of(7, 0), number_of(7, 100), number_of(8, 0))
    must(0, other.run("archive", other.name(7), "--yes"))
    cp_p(other.path / ".archive", victim.path / ".archive")
    victim.given |= {number_of(7, 0), number_of(7, 100)}


FOLDERS = {"dataset": (A, ""), "last": (C, LAST), "other": (B, OTHER)}
"""Folder → a day whose segment is there, and its path; see `two_folders`."""


def across(source: str, target: str, how: Callable[[Path, Path], None]) -> Act:
    """Move or copy a segment from one folder to another, beside data that come late."""

    def happen(victim: Victim) -> None:
        two_folders(victim)
        day, here = FOLDERS[source]
        before = victim.path / here / victim.name(day)
        after = victim.path / FOLDERS[target][1] / victim.name(day)
        after.parent.mkdir(parents=True, exist_ok=True)
        how(before, after)
        if before.exists():
            victim.leave_alone(after)

    return happen


def mv_to_disk(source: Path, target: Path) -> None:
    """Move to another disk: another inode, the same time."""
    cp_p(source, target)
    remove(source)


def mv_without_time(source: Path, target: Path) -> None:
    cp(source, target)
    remove(source)


for source, target in permutations(FOLDERS, 2):
    for name, move in {"mv": mv, "mv-to-disk": mv_to_disk, "mv-without-time": mv_without_time}.items():
        accident(f"10-{name}-from-{source}-to-{target}", **MOVED, **IN_DATASET)(across(source, target, move))
    accident(f"10-cp-from-{source}-to-{target}", **COPIED, **IN_DATASET)(across(source, target, cp_p))
    accident(f"10-mv-from-{source}-to-{target}-without-unique", **MOVED, **IN_DATASET, **WITHOUT_UNIQUE)(
        across(source, target, mv_to_disk)
    )
    accident(f"10-cp-from-{source}-to-{target}-without-unique", **COPIED, **IN_DATASET, **WITHOUT_UNIQUE)(
        across(source, target, cp_p)
    )


@accident("10-archived-copied-back-then-append", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """Late data cannot go to a file that nobody knows; they go beside it, or are refused."""
    cp_p(victim.file(A), victim.path / victim.name(A))
    victim.append(LATE)


@accident("10-moved-beside-late-data", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """The dataset has a segment of that name: late data. The archived one is moved to another folder."""
    must(0, victim.append(LATE))
    target = victim.path / OTHER / victim.name(A)
    mv(victim.file(A), target)


@accident("10-moved-over-late-data", **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """The archived one is moved over the segment with the late data, which are lost."""
    must(0, victim.append(LATE))
    mv(victim.file(A), victim.path / victim.name(A))
    victim.destroyed = {LATE}


@accident("x-copied-back-and-fixed-then-the-archived-removed", fix=0, repack=0, maintain=0, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """When the fix compared them, the copy was a second one; whatever comes first follows the data to it."""
    cp(victim.file(A), victim.path / victim.name(A))
    victim.fix()
    remove(victim.file(A))


@accident("x-copied-into-the-archive-and-fixed-then-the-other-removed", fix=0, repack=0, maintain=0, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    cp(victim.path / victim.name(D), victim.file(D))
    victim.fix()
    remove(victim.path / victim.name(D))


@accident("x-copied-back-and-fixed-then-the-archived-overwritten", **IN_ARCHIVE, kinds=FILES, answered=False)
def _(victim: Victim) -> None:
    cp(victim.file(A), victim.path / victim.name(A))
    victim.fix()
    overwrite(victim.file(A), victim.file(A).stat().st_size // 2, b"rotten")


@accident("x-copied-back-and-second-copies-removed", check=("",), **WELL, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    """On demand, repack removes the copy; nothing else does."""
    copy = victim.path / victim.name(A)
    cp(victim.file(A), copy)
    for verb in (victim.fix, victim.repack, victim.maintain):
        must(0, verb())
        assert copy.exists()
    must(0, victim.run("repack", "--second-copies", "--yes"))
    assert not copy.exists()
    assert victim.file(A).exists()


@accident("x-copied-back-the-archived-damaged-and-second-copies-removed", **IN_ARCHIVE, kinds=FILES, answered=False)
def _(victim: Victim) -> None:
    """The copy is all that is left of its bytes."""
    cp(victim.file(A), victim.path / victim.name(A))
    victim.fix()
    os.truncate(victim.file(A), 10)
    victim.run("repack", "--second-copies", "--yes")


@accident("10-moved-into-an-archive-that-is-none", check=("MISSING",), **WELL, **IN_DATASET)
def _(victim: Victim) -> None:
    """There is no archive yet: a folder of that name is made by hand."""
    mv(victim.file(A), victim.path / LAST / victim.name(A))


@accident("10-everything-swapped-with-the-archive", **WELL, **IN_ARCHIVE)
def _(victim: Victim) -> None:
    mv(victim.path / victim.name(D), victim.file(D))
    for day in ARCHIVED:
        mv(victim.file(day), victim.path / victim.name(day))


# A move that is killed, or read meanwhile


def read_during(verb: Verb) -> Act:
    """Move segments while somebody reads, so that their old files stay, hidden; then lose the index."""

    def happen(victim: Victim) -> None:
        import ondisk

        with ondisk.open(victim.path) as dataset:
            query = dataset.query()
            next(query)
            verb(victim)
            copy = victim.path.parent / "as-it-is"
            cp_p(victim.path, copy)
        victim.path = copy
        lose_index(copy)

    return happen


for unique in (True, False):
    suffix, config = ("", {}) if unique else ("-without-unique", WITHOUT_UNIQUE)
    columns = {"fix": (0, 9), "repack": 31, "maintain": (0, 9), "quiet": True, **config}
    accident(f"19-archived-beside-a-reader-index-lost{suffix}", **columns, **IN_DATASET)(  # type: ignore[arg-type]
        read_during(archive(A, B))
    )
    accident(f"19-unarchived-beside-a-reader-index-lost{suffix}", **columns, **IN_ARCHIVE)(  # type: ignore[arg-type]
        read_during(unarchive(A, B))
    )


def then(*verbs: Verb) -> Verb:
    def run(victim: Victim) -> None:
        for verb in verbs:
            verb(victim)

    return run


accident("19-archived-and-repacked-beside-a-reader-index-lost", **IN_DATASET, quiet=True)(
    read_during(then(archive(A, B), lambda victim: victim.delete(GONE), repack))
)
accident("19-archived-back-and-extended-beside-a-reader-index-lost", **IN_DATASET, quiet=True)(
    read_during(then(archive(A), unarchive(A), lambda victim: victim.append(number_of(A, 1)), archive(A)))
)
