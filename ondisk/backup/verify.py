"""List the points of a backup, and compare its files with their checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from ondisk.backup.point import SEGMENTS, USABLE, Kept, Part, Point, Problem, SegmentCopy, holds, time_of, whole
from ondisk.backup.target import Target
from ondisk.errors import FrameCorrupt, IntegrityError, StorageError
from ondisk.filesystem import Directory
from ondisk.segments.dir import MetadataFile, file_name


@dataclass(frozen=True, slots=True)
class Listed:
    """A point of a backup.

    Attributes:
        time: `restore` takes it.
        segments, size: how many segments it has, and the bytes of their copies.
        incomplete: how many of them it does not have whole, since they were damaged in the dataset.
        count: how many data are in the others.
        offline: the archives that were away when the point was made: it has what earlier ones have of them.
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
            yield Listed(point.at, point.segments, point.total, point.incomplete, point.count, [*point.offline], damage)


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
        root, folder = f"segments/{part.name}", copy.file.rpartition("/")[0]
        problem = self._once(f"{root}/{copy.file}", partial(self._file, f"{root}/{copy.file}", copy))
        if not problem and copy.is_dir:
            place = f"{root}/{folder}"
            with self._target.directory.inside(place) as source:
                entries = MetadataFile.of(source, copy.file.rpartition("/")[2])
                verify = partial(self._file_of, place, source, copy, entries)
                found = [self._once(f"{place}/{number}", partial(verify, number)) for number in copy.files]
                problem = next(filter(None, found), "")
        if problem:
            yield Problem(name, problem, Kept.DAMAGED if copy.kept in USABLE else copy.kept)

    def _once(self, path: str, verify: Callable[[], str]) -> str:
        if path not in self._verified:
            try:
                self._verified[path] = verify()
            except FileNotFoundError:
                self._verified[path] = "its copy is missing"
            except (FrameCorrupt, StorageError) as error:
                self._verified[path] = f"its copy cannot be read: {error.message}"
        return self._verified[path]

    def _file(self, path: str, copy: SegmentCopy) -> str:
        is_whole = copy.is_in(self._target.directory.open_to_read(path))
        if not is_whole:
            self._target.note_damage(path)
        return "" if is_whole else "its copy is damaged"

    def _file_of(
        self, place: str, source: Directory, copy: SegmentCopy, entries: MetadataFile | None, number: int
    ) -> str:
        name = file_name(copy.segment, number)
        if entries is None or number not in entries:
            return f"{name} has no entry"
        entry = entries.get(number)
        kept = f"{name}.{entry.checksum:08x}"
        try:
            if holds(source.open_to_read(kept), entry):
                return ""
        except FileNotFoundError:
            return f"the copy of {name} is missing"
        self._target.note_damage(f"{place}/{kept}")
        return f"the copy of {name} is damaged"
