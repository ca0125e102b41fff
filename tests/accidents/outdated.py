"""Accidents that put an older state back: of a segment, of the index, or of both at different times."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from .law import must, must_fail
from .table import accident
from .tools import cp, cp_p, cp_remove, lose_index, mv, put_index, rsync, rsync_by_size, tool
from .victim import ARCHIVED, DIRS, FILES, KINDS, LAST, A, B, D, Victim, number_of, numbers_of

GONE = number_of(A, 200)
LATE = number_of(A, 650)
RESTORES = {"cp-p": cp_p, "cp": cp, "mv": mv, "cp-remove": cp_remove, "rsync": rsync}
Restore = Callable[[Path, Path], None]


def before_repack(restore: Restore) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        backup = victim.backup(victim.file(A))
        victim.delete(GONE)
        must(0, victim.repack())
        restore(backup, victim.file(A))
        victim.revives = True

    return happen


for name, restore in RESTORES.items():
    kinds = [kind for kind in KINDS if kind not in DIRS or name != "rsync"]
    accident(f"01-before-repack-{name}", check=("UNALIGNED", "DIRTY"), fix=0, repack=9, maintain=0, kinds=kinds)(
        before_repack(restore)
    )
# Of a folder, rsync leaves each file that has the size and the second of the one in the backup: what the repack has
# renumbered stays under other numbers than the restored metadata say. By size alone, so
# that the test does not depend on the second.
accident("01-before-repack-rsync-folder", answered=False, fix=8, repack=9, maintain=8, kinds=DIRS)(
    before_repack(rsync_by_size)
)


@accident("01-before-repack-and-append", fix=8, maintain=8, places=("dataset",))
def _(victim: Victim) -> None:
    backup = victim.backup(victim.file(A))
    victim.delete(GONE)
    must(0, victim.repack())
    must(0, victim.append(LATE))
    mv(backup, victim.file(A))
    victim.revives = True
    victim.destroyed = {LATE}


@accident(
    "01-before-append-cp-p", answered=False, check=("CORRUPTED",), fix=9, repack=9, maintain=9, places=("dataset",)
)
def _(victim: Victim) -> None:
    backup = victim.backup(victim.file(A))
    must(0, victim.append(LATE))
    mv(backup, victim.file(A))
    victim.destroyed = {LATE}


@accident("x-before-delete", check=("DIRTY",), fix=9, repack=0, maintain=0)
def _(victim: Victim) -> None:
    backup = victim.backup(victim.file(A))
    victim.delete(GONE)
    cp(backup, victim.file(A))


@accident("x-before-delete-sentinel", fix=0, repack=31, maintain=0)
def _(victim: Victim) -> None:
    backup = victim.backup(victim.file(A))
    victim.delete(GONE)
    mv(backup, victim.file(A))
    (victim.path / "needs-check-do-not-pack").touch()
    victim.revives = True


@accident("x-restored-before-repack-twice", fix=0, maintain=0)
def _(victim: Victim) -> None:
    """The backup is put back, mended, and put back again."""
    backup = victim.backup(victim.file(A))
    victim.delete(GONE)
    must(0, victim.repack())
    cp_p(backup, victim.file(A))
    victim.revives = True
    victim.maintain()
    victim.delete(number_of(A, 400))
    victim.repack()
    mv(backup, victim.file(A))


def missing(restore: Restore) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        away = victim.backup(victim.file(A))
        shutil.rmtree(victim.file(A)) if victim.file(A).is_dir() else victim.file(A).unlink()
        must(8, victim.maintain())
        must(0, victim.append(number_of(B, 650)))
        restore(away, victim.file(A))

    return happen


for name, restore in RESTORES.items():
    columns = {"check": ("UNALIGNED",), "fix": 0, "repack": 9, "maintain": 0, "quiet": True}
    accident(f"04-missing-then-restored-{name}", **columns)(missing(restore))  # type: ignore[arg-type]


@accident("04-missing-for-good", check=("MISSING",), fix=8, repack=8, maintain=8)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.path.parent / "away")
    victim.destroyed = numbers_of(A)


@accident("04-missing-restored-before-maintain", fix=0, repack=0, maintain=0)
def _(victim: Victim) -> None:
    mv(victim.file(A), victim.path.parent / "away")
    must_fail(victim)
    mv(victim.path.parent / "away", victim.file(A))


def elsewhere(victim: Victim, day: int) -> Path:
    """Return a path in the archive for a segment of the dataset, and the other way round."""
    if not victim.place:
        must(0, victim.run("archive", victim.name(D), "--yes"))
    return victim.path / ("" if victim.place else LAST) / victim.name(day)


for day, name in ((A, "wrong-place"), (8, "wrong-place-and-name")):

    @accident(f"x-restored-to-the-{name}-then-to-the-right-one")
    def _(victim: Victim, day: int = day) -> None:
        """A fix reads the backup of a damaged segment where it was put by mistake; later it is put where it belongs."""
        backup, other = victim.backup(victim.file(A)), elsewhere(victim, day)
        os.truncate(victim.part(number_of(A, 0)), 10)
        cp(backup, other)
        victim.fix()
        cp_p(backup, victim.file(A))


def with_new_data(victim: Victim) -> None:
    must(0, victim.append(LATE, number_of(5, 0)))
    victim.delete(number_of(B, 200))


def old_index(victim: Victim, then: Callable[[Victim], None]) -> None:
    """Put the index back as it was before `with_new_data`."""
    backup = victim.path.parent / "backup-of-index"
    backup.mkdir()
    put_index(victim.path, backup)
    then(victim)
    put_index(backup, victim.path)
    victim.revives = True


@accident("08-older-index", fix=(0, 8, 9), repack=31, maintain=(0, 8))
def _(victim: Victim) -> None:
    old_index(victim, with_new_data)


@accident("08-older-index-then-repack-and-archive", places=("dataset",), fix=0, repack=31, maintain=0)
def _(victim: Victim) -> None:
    """The archived file is another one than that of which the older index has the rows."""
    must(0, victim.append(number_of(A, 100)))

    def then(victim: Victim) -> None:
        must(0, victim.repack())
        victim.run("archive", victim.name(A), "--yes")

    old_index(victim, then)


@accident("08-older-index-twice-then-archive", places=("dataset",), fix=9, repack=31, maintain=9)
def _(victim: Victim) -> None:
    """The first fix has changed the UUID: the second time the index is foreign, and goes to quarantine, which is 9."""

    def then(victim: Victim) -> None:
        victim.run("archive", victim.name(A), "--yes")

    old_index(victim, then)
    must(0, victim.fix())
    put_index(victim.path.parent / "backup-of-index", victim.path)


@accident("08-older-index-then-append", quiet=True)
def _(victim: Victim) -> None:
    old_index(victim, with_new_data)
    victim.append(number_of(A, 655), number_of(5, 10), number_of(6, 0))


@accident("08-older-index-then-appends-beyond", quiet=True)
def _(victim: Victim) -> None:
    """The older index has more changes than the newer one had, when it is looked at."""
    old_index(victim, with_new_data)
    for minute in range(655, 665):
        victim.append(number_of(A, minute))


@accident("08-older-index-before-repack")
def _(victim: Victim) -> None:
    def then(victim: Victim) -> None:
        victim.delete(GONE)
        must(0, victim.repack())

    old_index(victim, then)


@accident("08-older-index-before-archive", places=("dataset",))
def _(victim: Victim) -> None:
    old_index(victim, lambda victim: must(0, victim.run("archive", victim.name(A), "--yes")))


@accident("08-older-index-before-a-move-by-hand-to-the-archive", places=("dataset",))
def _(victim: Victim) -> None:
    """The file is put back, too: now the dataset and the archive have these data under different numbers."""
    archived = elsewhere(victim, A)

    def then(victim: Victim) -> None:
        mv(victim.file(A), archived)
        must(0, victim.fix())
        cp(archived, victim.file(A))

    old_index(victim, then)


@accident("08-only-the-main-file-of-an-older-index")
def _(victim: Victim) -> None:
    """The log of the newer index stays beside it."""
    backup = victim.path.parent / "old.sqlite"
    shutil.copy2(victim.path / "index.sqlite", backup)
    with_new_data(victim)
    shutil.copy2(backup, victim.path / "index.sqlite")
    victim.revives = True


@accident("x-older-log-beside-the-index")
def _(victim: Victim) -> None:
    """The log is from another time than the index."""
    backup = victim.path.parent / "old-wal"
    shutil.copy2(victim.path / "index.sqlite-wal", backup)
    with_new_data(victim)
    shutil.copy2(backup, victim.path / "index.sqlite-wal")
    (victim.path / "index.sqlite-shm").unlink(missing_ok=True)
    victim.revives = True


@accident("x-log-of-the-index-missing")
def _(victim: Victim) -> None:
    """A reader keeps the commits in the log; the dataset is copied without it."""
    with closing(sqlite3.connect(victim.path / "index.sqlite", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM datum").fetchone()
        with_new_data(victim)
        tool("cp", "-rp", victim.path, victim.path.parent / "copy")
    victim.path = victim.path.parent / "copy"
    (victim.path / "index.sqlite-wal").unlink()
    (victim.path / "index.sqlite-shm").unlink()
    victim.revives = True


@accident("x-index-lost-log-stays", fix=0, repack=31, maintain=0)
def _(victim: Victim) -> None:
    victim.delete(GONE)
    (victim.path / "index.sqlite").unlink()
    victim.revives = True


@accident("x-sentinel-removed-by-hand", quiet=True)
def _(victim: Victim) -> None:
    lose_index(victim.path)
    victim.append(number_of(D, 650))
    (victim.path / "needs-check-do-not-pack").unlink(missing_ok=True)


@accident("x-segments-copied-before-the-index", places=("dataset",), answered=False)
def _(victim: Victim) -> None:
    """A copy is taken while data are appended: the index has data that the copied segments lack."""
    copy = victim.path.parent / "copy"
    cp_p(victim.path, copy)
    must(0, victim.append(LATE, number_of(5, 0)))
    put_index(victim.path, copy)
    shutil.copy2(victim.path / ".tide", copy / ".tide") if (victim.path / ".tide").exists() else None
    victim.path = copy
    victim.destroyed = {LATE, number_of(5, 0)}


@accident("x-index-copied-before-the-segments", places=("dataset",), quiet=True)
def _(victim: Victim) -> None:
    """The other way round: the copied segments have data that the index lacks. Their loss would leave no trace."""
    copy = victim.path.parent / "copy"
    cp_p(victim.path, copy)
    must(0, victim.append(LATE, number_of(5, 0)))
    shutil.rmtree(copy / "2024")
    cp_p(victim.path / "2024", copy / "2024")
    victim.path = copy
    victim.given -= {LATE}
    victim.maybe |= {LATE}


@accident("x-two-machines-one-folder", places=("dataset",), quiet=True)
def _(victim: Victim) -> None:
    """Two copies of a dataset are written, and one is copied over the other, index and all."""
    other = Victim(victim.path.parent / "machine2", victim.kind)
    cp_p(victim.path, other.path)
    must(0, victim.append(LATE, number_of(5, 0)))
    must(0, other.append(number_of(A, 655), number_of(6, 0)))
    tool("cp", "-rpuT", other.path, victim.path)
    victim.given |= other.given
    victim.destroyed = victim.untraceable = {LATE} if victim.kind in FILES else {LATE, number_of(A, 655)}


@accident("x-two-machines-without-the-index", places=("dataset",))
def _(victim: Victim) -> None:
    """The same, but only the segments are copied."""
    other = Victim(victim.path.parent / "machine2", victim.kind)
    cp_p(victim.path, other.path)
    must(0, victim.append(LATE, number_of(5, 0)))
    must(0, other.append(number_of(A, 655), number_of(6, 0)))
    tool("cp", "-rpT", other.path / "2024", victim.path / "2024")
    victim.given |= other.given
    victim.destroyed = {LATE} if victim.kind in FILES else {LATE, number_of(A, 655)}


@accident("x-older-index-and-older-segment", places=("dataset",))
def _(victim: Victim) -> None:
    """Both are from before a repack, of different days."""
    segment = victim.backup(victim.file(A))
    victim.delete(GONE)

    def then(victim: Victim) -> None:
        must(0, victim.append(number_of(A, 650)))
        must(0, victim.repack())
        cp_p(segment, victim.file(A))

    old_index(victim, then)
    victim.destroyed = {LATE}


def old_small_files(victim: Victim, *appended: int) -> None:
    """Append between a backup of the files beside the segments and its return."""
    backup = victim.path.parent / "small-files"
    backup.mkdir()
    small = [each for each in victim.path.iterdir() if each.is_file()]
    for each in small:
        shutil.copy2(each, backup / each.name)
    must(0, victim.append(*appended))
    for each in small:
        shutil.copy2(backup / each.name, each)


@accident("08-older-index-and-tide", quiet=True, places=("dataset",), answered=False)
def _(victim: Victim) -> None:
    """All small files are put back from a backup, and the segments are not: no mark tells that the index is older."""
    old_small_files(victim, LATE, number_of(5, 0))


@accident("08-older-index-and-tide-then-append", quiet=True, places=("dataset",), answered=False)
def _(victim: Victim) -> None:
    """The same, and the next append goes to the end that the older index knows."""
    old_small_files(victim, LATE, number_of(A, 660), number_of(5, 0))
    victim.append(number_of(A, 655), number_of(5, 10))


def older_backup_copied_over(victim: Victim) -> None:
    """`cp -a backup/. dataset/`: what is newer than the backup, and not in it, stays."""
    backup = victim.backup(victim.path)
    must(0, victim.append(LATE, number_of(5, 0)))
    tool("cp", "-rpT", backup, victim.path)
    victim.destroyed = victim.untraceable = {LATE} if victim.kind in FILES else set()


accident("x-older-backup-copied-over", quiet=True, places=("dataset",), kinds=FILES)(older_backup_copied_over)
# The older `.metadata` does not have the metadata of the newer file, so its bytes go to quarantine.
accident("x-older-backup-copied-over", quiet=True, places=("dataset",), kinds=("blob",), answered=False)(
    older_backup_copied_over
)


@accident("x-copied-without-hidden-files", answered=False)
def _(victim: Victim) -> None:
    """`cp -r dataset/* copy/`: the tide mark stays behind, and so does the archive."""
    copy = victim.path.parent / "copy"
    copy.mkdir()
    tool("cp", "-rp", *sorted(victim.path.glob("[!.]*")), copy)
    victim.path = copy
    if victim.place:
        victim.destroyed = numbers_of(*ARCHIVED)
