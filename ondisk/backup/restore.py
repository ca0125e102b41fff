"""Restore a dataset from a point of a backup, into an empty folder; or list the points, and verify them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from ondisk.backup.point import (
    SEGMENTS,
    UNREADABLE,
    USABLE,
    Kept,
    Part,
    Point,
    Problem,
    SegmentCopy,
    holds,
    read_lines,
    reason_of,
    time_of,
    whole,
)
from ondisk.backup.target import BackupLock, Target
from ondisk.dataset.auxiliary_files import CONFIG, check_apart, check_not_in_place
from ondisk.errors import (
    AlreadyExists,
    DatasetExists,
    DiskFull,
    FrameCorrupt,
    IntegrityError,
    InvalidInput,
    NotFound,
    StorageError,
    command,
    shown,
)
from ondisk.filesystem import LOCK, Directory, ReadableFile, WritableFile
from ondisk.index import INDEX
from ondisk.index.connection import NEW, sqlite_errors
from ondisk.index.convert import Placed, put_in_place, record_places, remove_copy
from ondisk.segment import End, Facts
from ondisk.segments import places
from ondisk.segments.dir import METADATA, SEQUENCE, MetadataEntry, MetadataFile, facts_in, file_name, write_sequence
from ondisk.segments.file_facts import NO_TAIL, facts_of
from ondisk.step import place_of

MARK = ".restoring"
"""The file in a folder that is being restored. It names the backup and the point; all other files come from there."""

_LIMIT = 64 * 1024  # bytes of `.restoring`
_LARGEST = 16 * 1024 * 1024  # bytes of `dataset.toml`
_DAMAGED = "its copy is damaged"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has done.

    Attributes:
        dataset, target: the paths.
        point: the time of the point.
        segments, size: how many segments were restored, and their bytes.
        count: how many data are in those that were restored whole.
        problems: the segments that were not restored whole: the backup has only a part of them, or a damaged copy.
        offline: the places that were away when the point was made: it has at most what earlier ones have of them.
    """

    dataset: str
    target: str
    point: datetime
    segments: int
    count: int
    size: int
    problems: list[Problem] = field(default_factory=list)
    offline: list[str] = field(default_factory=list)


def restore(
    target: str | os.PathLike[str],
    path: str | os.PathLike[str],
    at: datetime | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Make a dataset from a point of a backup. It is the same dataset as it was: its indices keep their UUIDs.

    Each copy is compared with its checksum while it is written. A segment that is not whole is restored as far as
    possible, and reported: queries of it raise an error until a fix has read it.

    Args:
        target: the backup's folder.
        path: of the dataset: a folder that is empty or does not exist.
        at: restore the newest point up to this time; None for the newest of all.
        progress: called with the name of each segment.

    Raises:
        DatasetNotFound: there is no backup.
        NotFound: it has no point of that time.
        DatasetExists, AlreadyExists: there is something at the path. After a restore that was killed, the same restore
            can be repeated.
        InvalidInput: one folder is inside the other.
        StateError: the path is in a place of another dataset.
        IntegrityError: the index in the point, or its list of segments, is damaged.
        VersionTooNew: a newer ondisk has made the point's index.
        DiskFull: the disk is full.

    Durability: segments, then the index, then `dataset.toml`, each synced before the next. What a killed restore leaves
        has no `dataset.toml`, so it is not a dataset.
    Locks: `.lock` of the new dataset; a shared lock of the backup, so that no run removes what is needed.
    Cost: copies and reads each byte once.
    """
    with Target.open(target) as opened, opened.reading():
        point = _chosen(opened, at)
        check_apart("dataset", path, "backup", opened.path)
        check_not_in_place(path)
        try:
            directory = Directory.create(path)
        except FileExistsError as error:
            raise AlreadyExists(f"{error.filename} is not a directory", hint="Choose another path.") from None
        with directory:
            mark = json.dumps({"target": str(opened.path), "point": point.name}).encode()
            _check_free(directory, mark)  # before the lock, which would create its file in somebody else's folder
            with BackupLock(directory).hold("restore"):
                if _check_free(directory, mark):
                    directory.replace(MARK, mark)
                try:
                    return _Restore(opened, point, directory, progress).run()
                except DiskFull as error:
                    error.hint = "Free some space, and restore again."
                    raise


def _chosen(target: Target, at: datetime | None) -> Point:
    """Return the newest point up to a time; raise NotFound if no point is so old, InvalidInput if it has no zone."""
    names = target.names()
    if not names:
        raise NotFound(f"{target.path} has no points yet", hint="A backup that was interrupted has none: run it again.")
    if at is not None:
        if getattr(at, "tzinfo", None) is None:
            raise InvalidInput(f"at must be a datetime with a zone, not {shown(at)}")
        oldest, names = time_of(names[0]), [name for name in names if time_of(name) <= at]
        if not names:
            message = f"{target.path} has no point up to {at.isoformat()}: its oldest is {oldest.isoformat()}"
            raise NotFound(message, hint=f"{command('restore', target.path)} lists the points.")
    return target.point(names[-1])


def _check_free(directory: Directory, mark: bytes) -> bool:
    """Return whether a folder is empty; raise unless it is, or has what a killed restore of this point left."""
    names = {*directory.names()} - {LOCK, f".{MARK}.new"}
    if CONFIG in names:
        raise DatasetExists(f"{directory.path} already contains a dataset", hint="Choose another path.")
    if not names:
        return True
    if MARK not in names:
        hint = "Choose a folder that is empty or does not exist."
        raise AlreadyExists(f"{directory.path} is not empty: it contains {min(names)!r}", hint=hint)
    if (other := directory.read(MARK, _LIMIT)) != mark:
        message = f"{directory.path} has what an interrupted restore has left: {shown(other.decode(errors='replace'))}"
        raise AlreadyExists(message, hint=f"Repeat that one; or remove the folder: rm -r {directory.path}")
    return False


class _Restore:
    def __init__(self, target: Target, point: Point, directory: Directory, progress: Callable[[str], None]) -> None:
        self._target = target
        self._point = point
        self._directory = directory
        self._progress = progress
        self._segments = self._count = self._size = 0
        self._together = False  # whether all files are synced at once, at last
        self._problems: list[Problem] = []
        self._places: dict[str, tuple[int, int]] = {}  # name → last generation and number of data

    def run(self) -> Restored:
        for part in self._point.parts:  # that of the dataset is the last
            with self._target.directory.inside(f"points/{self._point.name}/{part.name}") as source:
                if part.place:
                    with self._directory.inside(part.place, make=True) as place:
                        self._part(part, source, place)
                else:
                    self._part(part, source, self._directory)
        self._directory.discard(MARK)
        self._directory.sync()
        return Restored(str(self._directory.path), str(self._target.path), self._point.at, self._segments, self._count,
                        self._size, self._problems, [*self._point.offline])  # fmt: skip

    def _part(self, part: Part, source: Directory, place: Directory) -> None:
        for name in part.files:
            if (found := whole(source, name, part)) is not None:
                raise IntegrityError(found, hint="Restore another point: `ondisk restore TARGET` lists them.")
        self._together = place.sync_together(())
        folders: set[str] = set()
        remove_copy(place, NEW)
        _put(source, INDEX, place, NEW)
        with sqlite_errors(place):
            record_places(place, NEW, self._copies(part, source, place, folders))
        if self._together:
            place.sync_together(())
        for each in () if self._together else folders:
            place.sync(each)
        put_in_place(place, NEW)
        for name, (generation, count) in self._places.items():
            places.note_move(place, name, generation, count)
        here = [*map(places.outside, self._places)]  # what says that such a folder is away is not true any more
        others = [name for name in part.files if name not in (INDEX, SEGMENTS, CONFIG, *here)]
        for name in others:
            _put(source, name, place, name)
            place.sync(name.rpartition("/")[0])
        place.replace(CONFIG, source.read(CONFIG, _LARGEST))

    def _copies(self, part: Part, source: Directory, place: Directory, folders: set[str]) -> Iterator[Placed]:
        """Restore the segments; yield what the index records of each, and add to `folders` what must be synced."""
        prefix = f"{part.place}/" if part.place else ""
        for copy in read_lines(source.open_to_read(SEGMENTS)):
            self._progress(prefix + copy.segment)
            facts: Placed | None = None
            kept, reason = copy.kept, copy.problem
            if copy.file or copy.is_dir:
                try:
                    facts, problem = (self._folder if copy.is_dir else self._file)(part, copy, place)
                    folders.add(copy.segment if copy.is_dir else copy.segment.rpartition("/")[0])
                except UNREADABLE as error:
                    is_missing = isinstance(error, FileNotFoundError)
                    problem = "its copy is missing" if is_missing else f"its copy cannot be read: {reason_of(error)}"
                    kept = Kept.MISSING
                if problem:
                    reason, kept = problem, Kept.DAMAGED if kept in USABLE else kept
            if kept in USABLE:
                self._count += copy.count
            else:
                self._problems.append(Problem(prefix + copy.segment, reason, kept))
            self._segments += 1
            if kept is not Kept.MISSING and (name := place_of(copy.segment)):
                generation, count = self._places.get(name, (0, 0))
                self._places[name] = max(generation, copy.generation), count + copy.count
            if facts is not None:
                yield facts

    def _file(self, part: Part, copy: SegmentCopy, place: Directory) -> tuple[Placed | None, str]:
        path = f"segments/{part.name}/{copy.file}"
        source = self._target.directory.open_to_read(path)
        place.discard(copy.segment)
        with place.create_file(copy.segment) as file:
            size = min(copy.stored, source.size())
            file.copy(source, 0, size, 0)
            is_whole = copy.is_in(file)
            if is_whole and copy.kept in USABLE and copy.mark:
                file.write(copy.size, bytes.fromhex(copy.mark))
            self._sync(file)
            found = file.stat()
        self._size += size
        if not is_whole:
            self._target.note_damage(path)
        problem = "" if is_whole else _DAMAGED
        if problem or copy.kept not in USABLE:
            # Nobody believes its rows before a fix has read it.
            return (copy.generation, min(copy.size, size), Facts(tail=NO_TAIL)), problem
        is_proven = copy.kept is Kept.WHOLE and not copy.once
        return (copy.generation, copy.size, facts_of(found, copy.tail, copy.recorded, is_touched=not is_proven)), ""

    def _folder(self, part: Part, copy: SegmentCopy, place: Directory) -> tuple[Placed | None, str]:
        """Restore a dir segment; see `_file`. Each of its files has a checksum, so what is whole is believed."""
        name, problem = copy.file.rpartition("/"), ""
        root = f"segments/{part.name}/{name[0]}"
        with self._target.directory.inside(root) as source, place.inside(copy.segment, make=True) as folder:
            folder.discard(METADATA, SEQUENCE)
            with folder.create_file(METADATA) as file:
                file.copy(source.open_to_read(name[2]), 0, copy.stored, 0)
                if not copy.is_in(file):
                    problem = "the copy of its entries is damaged"
                self._sync(file)
            for each, entry, wrong in _files_of(copy, source):
                if entry is not None and (wrong := self._file_of(each, entry, source, folder)) != "":
                    self._target.note_damage(f"{root}/{_name_of(each, entry)}")
                if wrong:
                    problem = problem or f"{each}: {wrong}"
            write_sequence(folder, copy.length - 1)
            self._size += copy.stored
            facts = facts_in(folder, copy.segment, End(copy.size, copy.length))
        if copy.kept is Kept.UNPROVEN:
            facts = Facts()  # a fix reads it, as it would have there
        return (None if copy.kept is Kept.OLDER else (copy.generation, copy.size, facts)), problem

    def _file_of(self, name: str, entry: MetadataEntry, source: Directory, folder: Directory) -> str:
        """Restore a file of a dir segment; return what is wrong with its copy."""
        try:
            opened = source.open_to_read(_name_of(name, entry))
            folder.discard(name)
            with folder.create_file(name) as file:
                file.copy(opened, 0, entry.size, 0)
                is_whole = holds(file, entry)
                self._sync(file)
        except (FileNotFoundError, EOFError) as error:
            return f"its copy cannot be read: {reason_of(error)}"
        self._size += entry.size
        return "" if is_whole else _DAMAGED

    def _sync(self, file: WritableFile) -> None:
        if not self._together:
            file.sync()


def _files_of(copy: SegmentCopy, source: Directory) -> Iterator[tuple[str, MetadataEntry | None, str]]:
    """Yield the name and the entry of each file of a dir segment; or why it has none. `source`: its copy."""
    entries = MetadataFile.of(source, copy.file.rpartition("/")[2])
    for number in copy.files:
        entry, problem = None, "it has no entry"
        if entries is not None and number in entries:
            try:
                entry, problem = entries.get(number), ""
            except FrameCorrupt as error:
                problem = f"its entry cannot be read: {error.message}"
        yield file_name(copy.segment, number), entry, problem


def _name_of(file: str, entry: MetadataEntry) -> str:
    return f"{file}.{entry.checksum:08x}"


def _put(source: Directory, name: str, place: Directory, new: str) -> None:
    """Copy a file. Durability: synced; the caller syncs the directory."""
    file = source.open_to_read(name)
    place.discard(new)
    with place.create_file(new) as made:
        made.copy(file, 0, file.size(), 0)
        made.sync()


@dataclass(frozen=True, slots=True)
class Listed:
    """A point of a backup.

    Attributes:
        time: `restore` takes it.
        segments, size: how many segments it has, and the bytes of their copies.
        incomplete: how many of them it does not have whole, since they were damaged in the dataset.
        count: how many data are in the others.
        offline: the places that were away when the point was made: it has at most what earlier ones have of them.
        damage: what is wrong with the point's own files: its list of segments, its index; and, if the copies were
            verified, each of them that is damaged or missing.
    """

    time: datetime
    segments: int = 0
    size: int = 0
    incomplete: int = 0
    count: int = 0
    offline: list[str] = field(default_factory=list)
    damage: list[Problem] = field(default_factory=list)


def points(
    target: str | os.PathLike[str], *, verify: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Iterator[Listed]:
    """Yield the points of a backup, the oldest first.

    Args:
        verify: read all files, and compare them with their checksums. Where this user may write, a note beside a copy
            that is damaged lets the next backup copy it again.
        progress: called with the name of each segment that is verified.

    Raises:
        DatasetNotFound: there is no backup.

    Locks: a shared lock of the backup, so that no run removes what is read.
    Cost: with `verify`, reads each file once.
    """
    with Target.open(target) as opened, opened.reading():
        verifier = _Verifier(opened, progress)
        for name in opened.names():
            try:
                point = opened.point(name)
            except (IntegrityError, StorageError) as error:
                yield Listed(time_of(name), damage=[Problem(name, error.message, Kept.MISSING)])
                continue
            damage = [*verifier.damage(point)] if verify else []
            names = ("segments", "incomplete", "count")
            sums: dict[str, Any] = {name: sum(getattr(part, name) for part in point.parts) for name in names}
            size = sum(part.total for part in point.parts)
            yield Listed(point.at, size=size, offline=[*point.offline], damage=damage, **sums)


class _Verifier:
    """Verifies points. A file that several of them need is read once."""

    def __init__(self, target: Target, progress: Callable[[str], None]) -> None:
        self._target = target
        self._progress = progress
        self._verified: dict[str, str] = {}

    def damage(self, point: Point) -> Iterator[Problem]:
        for part in point.parts:
            root = f"points/{point.name}/{part.name}"
            try:
                with self._target.directory.inside(root) as folder:
                    wrong = {name: found for name in part.files if (found := whole(folder, name, part)) is not None}
                for name, found in wrong.items():
                    yield Problem(f"{part.place}/{name}".lstrip("/"), found, Kept.DAMAGED)
                if SEGMENTS not in wrong:
                    for copy in self._target.copies(point, part):
                        yield from self._copy(part, copy)
            except (FileNotFoundError, StorageError, IntegrityError) as error:
                yield Problem(part.place or part.name, getattr(error, "message", str(error)), Kept.MISSING)

    def _copy(self, part: Part, copy: SegmentCopy) -> Iterator[Problem]:
        name = f"{part.place}/{copy.segment}".lstrip("/")
        self._progress(name)
        if not copy.file:
            return
        path = f"segments/{part.name}/{copy.file}"
        problem = self._once(path, copy.is_in)
        if not problem and copy.is_dir:
            folder = path.rpartition("/")[0]
            with self._target.directory.inside(folder) as source:
                for each, entry, wrong in _files_of(copy, source):
                    if entry is not None:
                        wrong = self._once(f"{folder}/{_name_of(each, entry)}", partial(holds, entry=entry))
                    if wrong:
                        problem = problem or f"{each}: {wrong}"
        if problem:
            yield Problem(name, problem, Kept.DAMAGED if copy.kept in USABLE else copy.kept)

    def _once(self, path: str, is_whole: Callable[[ReadableFile], bool]) -> str:
        """Return what is wrong with a file of the backup; read it the first time only."""
        if path not in self._verified:
            problem = ""
            try:
                if not is_whole(self._target.directory.open_to_read(path)):
                    self._target.note_damage(path)
                    problem = _DAMAGED
            except FileNotFoundError:
                problem = "its copy is missing"
            except StorageError as error:
                problem = f"its copy cannot be read: {error.message}"
            self._verified[path] = problem
        return self._verified[path]
