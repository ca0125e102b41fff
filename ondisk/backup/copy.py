"""Back up a dataset: its state at one time, beside writers and maintenance; see `ondisk.backup`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import chain
from typing import NamedTuple

from ondisk.backup.point import (
    DATASET,
    SEGMENTS,
    UNREADABLE,
    Kept,
    Part,
    Point,
    Problem,
    SegmentCopy,
    holds,
    measured,
    reason_of,
    runs,
    time_of,
    write_lines,
)
from ondisk.backup.target import Target
from ondisk.dataset.access import Access, Opened
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.dataset.place_checks import away_in, check_complete_but_offline
from ondisk.dataset.read import DatasetReader
from ondisk.dataset.segment_layout import Usage
from ondisk.errors import DiskFull, FrameCorrupt, IntegrityError, InvalidInput, LockError, StorageError, shown
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Format, find
from ondisk.formats.diskqueue.state import NAME as STATE
from ondisk.index import INDEX, Segment, Snapshot, segment_rows
from ondisk.index.connection import damaged, sqlite_errors
from ondisk.index.convert import copy_index, sync_copy
from ondisk.segments.dir import METADATA, MetadataEntry, MetadataFile, file_name, files_of, seen_in
from ondisk.segments.file_facts import Committed, Seen, checksum_of, tail_of
from ondisk.segments.places import Place, closed, outside
from ondisk.step import ARCHIVE, inner_of, place_of

_NAME = re.compile(r"(.+?)\.([0-9]+)(?:\.([0-9]+)\.([0-9a-f]{8}))?")  # of a copy; of a dir segment, of its folder
_LOST = "it was offline, and the index had lost its data; until a fix has read it, no point is removed"
_TRIES = 1000
_LIMIT = 16 * 1024 * 1024  # bytes of a file beside the segments


class _Earlier(NamedTuple):
    """What the name of a copy in the backup says."""

    generation: int
    size: int  # -1 for the folder of a dir segment
    checksum: int
    path: str


class SegmentCopies:
    """Copies the segments of a dataset.

    Attributes:
        copied, bytes: how many segments had something to copy, and how many bytes were copied.
        problems: the segments that are damaged or missing.
    """

    def __init__(self, target: Target, opened: Opened, snapshot: Snapshot, usage: Usage) -> None:
        self._target = target
        self._usage = usage
        self._root = f"segments/{DATASET}"
        self._roots = [self._root]  # a segment may have been there; before revision 6, each archive was a part
        for each in (f"{self._root}/{ARCHIVE}", "segments/archive"):
            self._roots += (f"{each}/{name}" for name in sorted(target.directory.folders(each)))
        self._listed = lru_cache(maxsize=2 * len(self._roots))(self._list)
        self._snapshot = snapshot
        self._away = {each.name for each in away_in(snapshot)}  # of these, the copies of earlier points suffice
        self._directory, config = opened.index.directory, opened.index.config
        # Of its own: a file that is removed stays readable for who has it open, and this would hide that it is missing.
        self._reader = DatasetReader(self._directory, config.of_stored())
        self._format = cache(lambda name: find(name)(config))
        self.copied = self.bytes = 0
        self.problems: list[Problem] = []

    def copies(
        self, earlier: Callable[[], Iterator[SegmentCopy]], progress: Callable[[str], None]
    ) -> Iterator[SegmentCopy]:
        """Copy what the backup does not have yet; yield the copy of each segment, in the order of their names.

        `earlier`: yields the copies of the last point, in the order of the names of their segments.
        """
        of_last_point = earlier()
        last = next(of_last_point, None)
        moved = cache(lambda: {inner_of(each.segment): each for each in earlier() if self._has_left(each)})
        for segment, damage, *_ in segment_rows.all_segments(self._snapshot):
            if self._usage.is_consumed(segment.name, segment.end.length) and self._directory.stat(segment.name) is None:
                continue  # whoever has read it has removed it: a check misses nothing either
            progress(segment.name)
            while last is not None and last.segment < segment.name:
                last = next(of_last_point, None)
            before = last if last is not None and last.segment == segment.name else None
            size, problems, format = self.bytes, len(self.problems), self._format(segment.format)
            if before is None and format.is_dir and place_of(segment.name) in self._away:
                before = moved().get(inner_of(segment.name))
            copy = (self._folder if format.is_dir else self._file)(segment, format, before)
            if damage is not None and not format.is_dir and len(self.problems) == problems:
                self._report_known(segment, format, damage.reason)
            self.copied += self.bytes > size
            yield replace(copy, count=segment_rows.count_of(self._snapshot, segment))

    def _has_left(self, copy: SegmentCopy) -> bool:
        """Return whether the index has no segment any more where a dir segment was."""
        return copy.is_dir and self._snapshot.segment_named(copy.segment) is None

    def _report(self, segment: Segment, reason: str, kept: Kept) -> None:
        self.problems.append(Problem(segment.name, reason, kept))

    def _report_known(self, segment: Segment, format: Format, damage: str) -> None:
        """Report the damage that the index knows, of a segment that can be copied.

        If its bytes are those that the index describes, a fix has accepted what is left, and this is what was copied.
        """
        try:
            is_accepted = segment.committed(format.mutable).is_whole_in(self._reader.file_of(segment)) is True
        except UNREADABLE:
            is_accepted = False
        self._report(segment, damage, Kept.DAMAGED if is_accepted else Kept.WHOLE)

    def _file(self, segment: Segment, format: Format, before: SegmentCopy | None) -> SegmentCopy:
        """Copy a concat segment: its committed bytes, with the header that an append has since changed."""
        committed, facts = segment.committed(format.mutable), segment.facts
        file: ReadableFile | None = None
        problem, checksum, kept = "", facts.checksum, Kept.WHOLE
        mark, once = format.seal(segment.end), before is None or before.once
        try:
            file = opened = self._reader.file_of(segment)
            if checksum is None:
                kept = Kept.WHOLE if committed.seen_in(opened, opened.stat()) is Seen.UNTOUCHED else Kept.UNPROVEN
                checksum = checksum_of(opened, committed.size, committed.mutable)
            if segment.shared and opened.read(committed.size, len(mark)) != mark:
                mark = b""  # Beats has not ended it
            once = not format.may_continue(lambda: opened, segment.end, is_exact=False)
        except UNREADABLE as error:
            problem = reason_of(error)
        copy = SegmentCopy(segment.name, segment.id, committed.size, kept, tail=facts.tail, recorded=facts.checksum,
                           zeros=(format.mutable.start, format.mutable.stop), mark=mark.hex(), once=once,
                           stored=committed.size, checksum=checksum or 0, total=committed.size)  # fmt: skip
        copy = replace(copy, file=self._name(copy))
        if checksum is not None and self._has(copy):
            if problem and place_of(segment.name) not in self._away:
                self._report(segment, problem, copy.kept)
            return copy
        if file is not None and (problem := self._copied(segment, format, committed, copy, file)) == "":
            return copy
        return self._doubtful(segment, committed, copy, problem)

    def _has(self, copy: SegmentCopy) -> bool:
        """Return whether the backup has the bytes of a segment; those from when it had another name get this one."""
        path = f"{self._root}/{copy.file}"
        if self._target.has(path, copy.stored):
            return True
        return any(
            (each.size, each.checksum) == (copy.stored, copy.checksum)
            and self._target.has(each.path, each.size)
            and self._is_repeated(each.path, copy.is_in, path)
            for each in self._elsewhere(copy.segment)
        )

    def _is_repeated(self, path: str, is_whole: Callable[[ReadableFile], bool], name: str) -> bool:
        """Give a file in the backup another name, too; return False if it is not whole."""
        try:
            if not is_whole(self._target.directory.open_to_read(path)):
                return False
        except UNREADABLE:
            return False
        self._target.repeat(path, name)
        return True

    def _elsewhere(self, segment: str) -> Iterator[_Earlier]:
        """Yield the copies of a segment in the backup, from wherever it has been."""
        for root in self._roots:
            folder, _, last = f"{root}/{inner_of(segment)}".rpartition("/")
            yield from self._listed(folder).get(last, [])

    def _list(self, folder: str) -> dict[str, list[_Earlier]]:
        found: dict[str, list[_Earlier]] = {}
        for name in self._target.directory.names(folder):
            if matched := _NAME.fullmatch(name):
                size, checksum = int(matched[3] or -1), int(matched[4] or "0", 16)
                found.setdefault(matched[1], []).append(_Earlier(int(matched[2]), size, checksum, f"{folder}/{name}"))
        return found

    def _copied(
        self, segment: Segment, format: Format, committed: Committed, copy: SegmentCopy, source: ReadableFile
    ) -> str:
        """Copy the file of a segment; return what is wrong with it, or an empty text.

        If some of its bytes are damaged, an earlier copy of the same generation may have them: bytes of a generation
        change only at their end.
        """
        path = f"{self._root}/{copy.file}"
        problem = ""
        with self._target.stage(path) as staged:
            try:
                staged.copy(source, 0, committed.size, 0)
            except (EOFError, StorageError) as error:
                problem = reason_of(error)
            is_whole = not problem and copy.is_in(staged)
            if not is_whole:
                problem = problem or "its bytes do not have the checksum that was recorded for them"
                if (other := self._newest(segment, same=True)) is not None:
                    name, size, _ = other
                    earlier = self._target.directory.open_to_read(f"{self._root}/{name}")
                    staged.copy(earlier, 0, min(size, committed.size), 0)
                    is_whole = copy.is_in(staged)
            if (patch := format.patch(segment.end)) is not None:  # an append may have changed it since
                staged.write(patch.position, patch.content)
        if not is_whole:
            self._target.drop(path)
            return problem
        self._keep(path, committed.size)
        if problem:
            self._report(segment, problem, Kept.WHOLE)
        return ""

    def _doubtful(self, segment: Segment, committed: Committed, copy: SegmentCopy, problem: str) -> SegmentCopy:
        """Return what the backup keeps of a segment that is damaged or missing."""
        missing = replace(copy, kept=Kept.MISSING, file="", stored=0, checksum=0, total=0, problem=problem)
        copy = missing
        if (other := self._newest(segment, same=False)) is not None:
            name, size, checksum = other
            copy = replace(copy, kept=Kept.OLDER, file=name, stored=size, checksum=checksum, total=size)
        else:
            path = f"{self._root}/{segment.name}"
            try:
                source = self._directory.open_to_read(segment.name)
                size = min(source.size(), committed.size)
                with self._target.stage(path) as staged:
                    staged.copy(source, 0, size, 0)
                    checksum = checksum_of(staged, size, committed.mutable)
                copy = replace(copy, kept=Kept.DAMAGED, stored=size, checksum=checksum, total=size)
                copy = replace(copy, file=f"{self._name(copy)}.damaged")
                if self._target.has(f"{self._root}/{copy.file}", size):
                    self._target.drop(path)
                else:
                    self._keep(path, size, f"{self._root}/{copy.file}")
            except UNREADABLE as error:
                reason_of(error)  # raises an error of writing
                self._target.drop(path)
                copy = missing
        self._report(segment, problem, copy.kept)
        return copy

    def _newest(self, segment: Segment, *, same: bool) -> tuple[str, int, int] | None:
        zeros = self._format(segment.format).mutable
        folder, _, last = f"{self._root}/{segment.name}".rpartition("/")
        copies = (each for each in self._listed(folder).get(last, []) if each.size >= 0)
        for each in sorted(copies, reverse=True):
            if not same or each.generation == segment.id:
                file = self._target.directory.open_to_read(each.path)
                if file.size() == each.size and checksum_of(file, each.size, zeros) == each.checksum:
                    return each.path.removeprefix(f"{self._root}/"), each.size, each.checksum
        return None

    def _name(self, copy: SegmentCopy) -> str:
        return f"{copy.segment}.{copy.generation}.{copy.stored}.{copy.checksum:08x}"

    def _keep(self, path: str, size: int, name: str | None = None) -> None:
        self._target.keep(path, name)
        self.bytes += size

    def _folder(self, segment: Segment, format: Format, before: SegmentCopy | None) -> SegmentCopy:
        """Copy a dir segment: the files and the entries that it had at the commit."""
        end, facts = segment.end, segment.facts
        copy = SegmentCopy(segment.name, segment.id, end.size, Kept.WHOLE, tail=facts.tail, recorded=facts.checksum,
                           length=end.length)  # fmt: skip
        same = before if before is not None and self._is_same(before, copy) else None
        try:
            folder = self._reader.folder_of(segment)
            entries = folder.open_to_read(METADATA)
        except UNREADABLE as error:
            problem = reason_of(error)
            if same is not None:
                copy = same
            elif before is not None and before.file:
                copy = replace(before, segment=segment.name, generation=segment.id, kept=Kept.OLDER, problem=problem)
            else:
                copy = replace(copy, kept=Kept.MISSING, problem=problem)
            self._report(segment, problem, copy.kept)
            return copy
        if same is not None:
            return same
        if seen_in(folder, facts, end.size) is Seen.UNKNOWN:
            copy = replace(copy, kept=Kept.UNPROVEN)
        return self._files(segment, copy, folder, entries)

    def _is_same(self, copy: SegmentCopy, new: SegmentCopy) -> bool:
        """Return whether a copy of a dir segment is whole, of the same state, and has its files, which are not read."""
        for name in ("generation", "size", "tail", "recorded", "length", "kept"):
            if getattr(copy, name) != getattr(new, name):
                return False
        path = f"{self._root}/{copy.file}"
        folder = path.rpartition("/")[0]
        if self._target.damaged_in(folder):
            return False
        names = {name.rpartition(".")[0] for name in self._target.directory.names(folder)}
        has_all = all(file_name(copy.segment, number) in names for number in copy.files)
        return has_all and copy.is_dir and (not copy.file or self._target.has(path, copy.stored))

    def _files(self, segment: Segment, copy: SegmentCopy, folder: Directory, source: ReadableFile) -> SegmentCopy:
        root = f"{self._root}/{segment.name}.{segment.id}"
        there = {entry.name: entry.size for entry in self._target.directory.entries(root)}
        for name in self._target.damaged_in(root):
            there.pop(name, None)
        earlier = {} if there else self._files_elsewhere(segment.name)
        entries, on_disk = MetadataFile.of(folder), files_of(folder, segment.name)
        kept: list[int] = []
        damaged: dict[int, str] = {}
        total = segment.end.size
        for number in sorted(number for number in entries or () if number < segment.end.length):
            assert entries is not None
            try:
                entry = entries.get(number)
            except FrameCorrupt as error:
                damaged[number] = reason_of(error)
                continue
            file = file_name(segment.name, number)
            name = f"{file}.{entry.checksum:08x}"
            path, is_whole = earlier.get((name, entry.size)), partial(holds, entry=entry)
            if there.get(name) != entry.size and not (path and self._is_repeated(path, is_whole, f"{root}/{name}")):
                if number not in on_disk:
                    continue  # a repack has removed it, unless a datum needs it
                if (problem := self._copied_file(f"{root}/{name}", folder, file, entry)) != "":
                    damaged[number] = problem
                    continue
            kept.append(number)
            total += entry.size
        for number in self._numbers(segment).difference(kept):
            damaged.setdefault(number, "it is not on disk, or has no entry")
        copy = self._with_entries(segment, copy, source, root)
        copy = replace(copy, numbers=runs(kept), total=total)
        if damaged:
            number, reason = min(damaged.items())
            more = f", and {len(damaged) - 1} more files" if len(damaged) > 1 else ""
            problem = f"{file_name(segment.name, number)}: {reason}{more}"
            copy = replace(copy, kept=Kept.PARTLY, problem=problem)
            self._report(segment, problem, Kept.PARTLY)
        return copy

    def _files_elsewhere(self, segment: str) -> dict[tuple[str, int], str]:
        """Return the files of a dir segment that the backup has from when it had another name: name, size → path."""
        found: dict[tuple[str, int], str] = {}
        for folder in (each.path for each in self._elsewhere(segment) if each.size < 0):
            damaged = self._target.damaged_in(folder)
            for file in self._target.directory.entries(folder):
                if file.name not in damaged:
                    found[file.name, file.size] = f"{folder}/{file.name}"
        return found

    def _with_entries(self, segment: Segment, copy: SegmentCopy, source: ReadableFile, root: str) -> SegmentCopy:
        """Copy the committed entries; their end was compared with the index when the folder was opened."""
        size = segment.end.size
        tail, checksum = (read(source, size, range(0)) for read in (tail_of, checksum_of))
        path = f"{root}/metadata.{size}.{checksum:08x}"
        if not self._target.has(path, size):
            with self._target.stage(path) as staged:
                staged.copy(source, 0, size, 0)
            self._keep(path, size)
        name = path.removeprefix(f"{self._root}/")
        return replace(copy, file=name, stored=size, checksum=checksum, tail=tail)

    def _copied_file(self, path: str, folder: Directory, file: str, entry: MetadataEntry) -> str:
        try:
            source = folder.open_to_read(file)
            with self._target.stage(path) as staged:
                staged.copy(source, 0, entry.size, 0)
                is_whole = holds(staged, entry)
            if is_whole and source.size() == entry.size:
                self._keep(path, entry.size)
                return ""
            problem = "it does not have the checksum in its entry"
        except UNREADABLE as error:
            problem = reason_of(error)
        self._target.drop(path)
        return problem

    def _numbers(self, segment: Segment) -> set[int]:
        sql = (
            "SELECT datum.offset FROM datum, segment WHERE segment.id = ?"
            ' AND reftime >= "begin" AND reftime < "end" AND segment = segment.id'
        )
        return {number for rows in self._snapshot.select(sql, (segment.id,)) for (number,) in rows}


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
        problems: the segments that are damaged or missing in the dataset; and the folders of the archive that are
            offline, and whose data the index does not know.
        offline: the folders of the archive that were away: the point has at most what earlier ones have of them.
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
        keep: remove all points but this many, the newest, and the copies that only they need; None to keep all. None
            are removed while the index does not know the data of what is offline: earlier points may have them.
        progress: called with the name of each segment.

    Raises:
        DatasetNotFound: there is no backup, and `create` is false.
        InvalidInput: the backup is inside of the dataset, or contains it.
        AlreadyExists: `create` is true, and there is something at the path: other files, or a backup with a point.
        StateError: it is the backup of another dataset.
        NeedsCheck: the index may not know all data, and not only because a place is offline.
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
    with access.current().index.snapshot() as snapshot:
        unknown = check_complete_but_offline(access, snapshot)
        uuids = [snapshot.dataset()["uuid"], *segment_rows.former_uuids(snapshot)]
    with Target.writing(path, access.path, uuids, create=create) as target:
        try:
            # Else the copies would go that earlier points have of what the index has lost.
            return _added(access, target, None if unknown else keep, unknown, progress)
        except DiskFull as error:
            error.hint = f"Free some space on the disk of {target.path}; --keep removes old points. They are whole."
            raise


def _added(
    access: Access, target: Target, keep: int | None, unknown: Sequence[Place], progress: Callable[[str], None]
) -> Backup:
    before, removed = target.names(), list[str]()
    latest = target.point(before[-1]) if before else None
    must_sweep = target.begin()
    if keep is not None and (removed := target.remove_points(keep)):
        with contextlib.suppress(IntegrityError):  # the sweep at the end reports it, when there is a new point
            target.sweep()  # the disk may be full
    with _snapshot(access) as (snapshot, beside):
        now = time.time_ns() // 1000
        offline = sorted({each.name.split("/")[1] for each in (*away_in(snapshot), *unknown)})
        usage = access.layout.usage(access.directory)
        copies = SegmentCopies(target, access.current(), snapshot, usage)
        earlier = partial(iter, ()) if latest is None else partial(target.copies, latest, latest.parts[-1])
        lost = [SegmentCopy(each.name.rstrip("/"), 0, 0, Kept.MISSING, problem=_LOST) for each in unknown]
        copied = chain(copies.copies(earlier, progress), lost)
        part = _part(target, access.current(), snapshot, copied, beside)
    point = Point(now if latest is None else max(now, latest.time + 1), str(access.path), [part], offline)
    target.commit(point)
    if keep is not None:
        removed += target.remove_points(keep)
    if must_sweep or removed:
        target.sweep()
    problems = [*copies.problems, *(Problem(each.segment, each.problem, each.kept) for each in lost)]
    times = [*map(time_of, removed)]
    return Backup(str(access.path), str(target.path), point.at, part.segments, part.count, part.total,
                  copies.copied, copies.bytes, problems, offline, times)  # fmt: skip


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
    # What says that a folder of the archive is away: without it, a restored dataset would count its segments as lost.
    away = [outside(name) for name, each in closed(directory).items() if each.identity is not None]
    found = dict[str, bytes]()
    for name in (CONFIG, STATE, *away):
        with contextlib.suppress(FileNotFoundError):
            found[name] = directory.read(name, _LIMIT)
    return found


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
    with sqlite_errors(folder), contextlib.closing(copy_index(folder, snapshot.connection, INDEX)) as connection:
        ((found,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise damaged(source, f" is damaged: {found}")
    folder.discard(f"{INDEX}-journal")  # SQLite does not remove it while a file is locked exclusively
    sync_copy(folder, INDEX)
