"""Back up a dataset: its state at one time, beside writers and maintenance; see `ondisk.backup`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from ondisk.backup.point import DATASET, SEGMENTS, Part, Point, Problem, SegmentCopy, measured, time_of, write_lines
from ondisk.backup.segment_copies import Counts, SegmentCopies
from ondisk.backup.target import Target
from ondisk.dataset.access import Access, Opened
from ondisk.dataset.away import away_in
from ondisk.dataset.layout import CONFIG
from ondisk.errors import DiskFull, IntegrityError, InvalidInput, LockError, shown
from ondisk.filesystem import Directory
from ondisk.formats.diskqueue.state import NAME as STATE
from ondisk.index import INDEX, Snapshot, copied, segment_rows
from ondisk.index.connection import damaged, sqlite_errors
from ondisk.segments.places import closed, outside

_TRIES = 1000
_LIMIT = 16 * 1024 * 1024  # bytes of a file beside the segments


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup has done.

    Attributes:
        dataset, target: the paths.
        point: the time of the new point: `restore` takes it.
        segments: how many the point has.
        count: how many data are in those that the point has whole.
        size: bytes of the copies of all of them.
        copied: how many segments had something to copy.
        bytes: how many bytes were copied.
        problems: the segments that are damaged or missing in the dataset.
        offline: the folders of the archive that were away: the point has what earlier ones have of them.
        removed: the times of the points that were removed.
    """

    dataset: str
    target: str
    point: datetime
    segments: int
    count: int
    size: int
    copied: int
    bytes: int
    problems: list[Problem] = field(default_factory=list)
    offline: list[str] = field(default_factory=list)
    removed: list[datetime] = field(default_factory=list)


def backup(
    access: Access,
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    keep: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Backup:
    """Add the present state of a dataset to a backup, as a point that can be restored.

    A segment that is damaged or missing does not stop it: the backup keeps the copy that it has, and reports it.

    Args:
        path: of the backup: a folder of its own.
        create: begin the backup, in a folder that is empty or does not exist. Otherwise there must be a backup: a disk
            that is not mounted is an error, and no new backup in the empty folder.
        keep: remove all points but this many, the newest, and the copies that only they need; None to keep all.
        progress: called with the name of each segment.

    Raises:
        DatasetNotFound: there is no backup, and `create` is false.
        InvalidInput: the backup is inside of the dataset, or contains it.
        AlreadyExists: `create` is true, and there is something at the path: other files, or a backup with a point.
        StateError: it is the backup of another dataset.
        NeedsCheck: the index may not know all data.
        IndexCorrupt: it is damaged.
        IntegrityError: a point is damaged. If it is not the last one, the new point was made, but nothing was removed.
        LockError: another run writes to this backup; or the dataset changes faster than it can be read.
        DiskFull: the backup's disk is full.

    Durability: everything is synced before the point appears, with one rename. A run that is killed leaves the points
        before it, and copies that the next run uses.
    Locks: `.lock` of the backup. None of the dataset; but a snapshot is open until the end, so what is removed in the
        dataset meanwhile is freed later, and migrate waits for it.
    Cost: writes what is new, and reads it twice; opens each segment.
    """
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidInput(f"keep must be a whole number of 1 or more, not {shown(keep)}")
    access.check_trusted()
    with access.current().index.snapshot() as snapshot:
        uuids = [snapshot.dataset()["uuid"], *segment_rows.former_uuids(snapshot)]
    with Target.writing(path, access.path, uuids, create=create) as target:
        try:
            return _added(access, target, keep, progress)
        except DiskFull as error:
            error.hint = f"Free some space on the disk of {target.path}; --keep removes old points. They are whole."
            raise


def _added(access: Access, target: Target, keep: int | None, progress: Callable[[str], None]) -> Backup:
    before, removed = target.names(), list[str]()
    latest = target.point(before[-1]) if before else None
    must_sweep = target.begin()
    if keep is not None and (removed := target.remove_points(keep)):
        with contextlib.suppress(IntegrityError):  # the sweep at the end reports it, when there is a new point
            target.sweep()  # the disk may be full
    counts = Counts()
    with _snapshot(access) as (snapshot, beside):
        now = time.time_ns() // 1000
        offline = [each.name.split("/")[1] for each in away_in(snapshot)]
        copies = SegmentCopies(target, DATASET, access.current(), snapshot, _earlier(target, latest), counts)
        part = _part(target, access.current(), snapshot, copies.copies(progress), beside)
    point = Point(now if latest is None else max(now, latest.time + 1), str(access.path), [part], offline)
    target.commit(point)
    if keep is not None:
        removed += target.remove_points(keep)
    if must_sweep or removed:
        target.sweep()
    times = [*map(time_of, removed)]
    return Backup(str(access.path), str(target.path), point.at, point.segments, point.count, point.total,
                  counts.copied, counts.bytes, counts.problems, offline, times)  # fmt: skip


@contextlib.contextmanager
def _snapshot(access: Access) -> Iterator[tuple[Snapshot, dict[str, bytes]]]:
    """Take a snapshot for the block, and yield it with the other files; raise LockError if these change too fast."""
    for _ in range(_TRIES):
        with contextlib.ExitStack() as stack:
            before = _beside(access.directory)
            snapshot = stack.enter_context(access.current().index.snapshot())
            snapshot.dataset()  # begins it
            if _beside(access.directory) == before:
                yield snapshot, before
                return
    hint = "Back it up when fewer data are acknowledged."
    raise LockError(f"{access.path} changes faster than it can be read", hint=hint)


def _beside(directory: Directory) -> dict[str, bytes]:
    """Return the files of a dataset that are neither index nor segments, by their names."""
    names = [name for name in (CONFIG, STATE) if directory.stat(name) is not None]
    # What says that a folder of the archive is away: without it, a restored dataset would count its segments as lost.
    names += [outside(name) for name, each in closed(directory).items() if each.identity is not None]
    return {name: directory.read(name, _LIMIT) for name in names}


def _earlier(target: Target, latest: Point | None) -> Iterator[SegmentCopy]:
    parts = [] if latest is None else [part for part in latest.parts if part.name == DATASET]
    return target.copies(latest, parts[0]) if latest is not None and parts else iter(())


def _part(
    target: Target, opened: Opened, snapshot: Snapshot, copies: Iterator[SegmentCopy], files: dict[str, bytes]
) -> Part:
    with target.part(DATASET) as folder:
        _copy_index(folder, opened.index.directory, snapshot)
        with folder.create_file(SEGMENTS) as file:
            counts = write_lines(file, copies)
            file.sync()
        for path, content in files.items():
            with folder.create_file(path) as file:
                file.write(0, content)
                file.sync()
            folder.sync(path.rpartition("/")[0])
        sizes = {path: measured(folder.open_to_read(path)) for path in (INDEX, SEGMENTS, *files)}
    return Part(DATASET, "", snapshot.dataset()["uuid"], *counts, sizes)


def _copy_index(folder: Directory, source: Directory, snapshot: Snapshot) -> None:
    """Copy the index as the snapshot sees it, durably; raise IndexCorrupt if it is damaged."""
    with sqlite_errors(folder), contextlib.closing(copied.copy(folder, snapshot.connection, INDEX)) as connection:
        ((found,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise damaged(source, f" is damaged: {found}")
    folder.discard(f"{INDEX}-journal")  # SQLite does not remove it while a file is locked exclusively
    copied.sync(folder, INDEX)
