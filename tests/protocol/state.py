"""A state of the model: one segment in a dataset and in its archive, their indices, one writer, and some readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from protocol.disk import Disk, Inode, Name

DATASET, ARCHIVE = "dataset", "archive"
BACKUP = "backup"
"""The place of a hard link that somebody made of NAME; its number is the length that the file had."""

KEPT = "kept"
"""The place of generations of the dataset's segment that are kept for plans; its number is the generation."""

FOREIGN = 99
"""The stamp of a file of another program, and the datum in it."""

CHANGED = 50
"""What a disk adds to a datum: its bytes are others then, and the facts of its file are the same."""

COPIED = frozenset({1, 2})
"""The data of which a replica has copies: those that were there at the start."""

Step: TypeAlias = tuple[Any, ...]
"""A step of the writer: the name of a method of `Writer` without `_`, and its arguments."""


class Row(NamedTuple):
    """The segment in an index: its generation, the facts of its file, and its data.

    Attributes:
        is_unread: the file has data that the index may not know.
        again: those of the data that a fix has inserted under new numbers, since the other index could not read them.
    """

    generation: int
    stamp: int
    length: int
    data: frozenset[int]
    is_unread: bool = False
    again: frozenset[int] = frozenset()

    def describes(self, file: Inode) -> bool:
        """Return whether the facts agree with a file."""
        return file.stamp == self.stamp and len(file.data) >= self.length


class Index(NamedTuple):
    """An index.

    Attributes:
        row: None if it does not know the segment.
        counter: the last generation that was given out, by it or as the tide mark says.
        exchanged: "lost" or "older", until a writer has noticed that.
    """

    row: Row | None = None
    counter: int = 0
    exchanged: str = ""


Commit: TypeAlias = tuple[Index, frozenset[int]]
"""An index after a commit, and the data that the commit deleted."""


class Log(NamedTuple):
    """What is on disk of an index: its main file, and the commits in its write-ahead log.

    Attributes:
        main: the index in the main file.
        commits: those in the log that everybody sees, in order.
        synced: how many of them a power cut keeps for certain.
        written: one that is in the log, and that nobody sees: the writer is about to publish it, or was killed. Whoever
            recovers the log will see it, unless another commit is written in its place.
    """

    main: Index
    commits: tuple[Commit, ...] = ()
    synced: int = 0
    written: Commit | None = None

    @property
    def last(self) -> Index:
        """The index as everybody sees it."""
        return self.commits[-1][0] if self.commits else self.main

    def published(self) -> Log:
        """Let everybody see what is written."""
        return self if self.written is None else self._replace(commits=(*self.commits, self.written), written=None)

    def sync(self) -> Log:
        return self._replace(synced=len(self.commits))

    def after_power_cut(self) -> Iterator[Log]:
        """Yield every log that a power cut may leave, recovered."""
        commits = self.published().commits
        for count in range(self.synced, len(commits) + 1):
            yield Log(self.main, commits[:count], count)


class Reader(NamedTuple):
    """A query.

    Attributes:
        at: 0 before it began, 1 with the dataset's snapshot, then the looks for the file: 2 to 4 in the dataset,
            5 to 7 in the archive; 8 when it is done.
        snapshots: of the dataset and of the archive.
        is_other: one of the looks found a file that is not the generation.
        expected: the data that it must find.
        is_detached: the index was exchanged since, so no writer sees that it reads the older one.
    """

    at: int = 0
    snapshots: tuple[Index, ...] = ()
    is_other: bool = False
    expected: frozenset[int] = frozenset()
    is_detached: bool = False


class KeptRows(NamedTuple):
    """What was kept of the rows of a generation; it is synced, and has its name, when anybody else sees it.

    Attributes:
        row: the segment in the index then.
        counter: that of the index then; `last` is the number of the last datum.
    """

    row: Row
    counter: int

    @property
    def last(self) -> int:
        return max(self.row.data, default=0)


class Plan(NamedTuple):
    """A plan of the dataset's segment, which is read later by somebody else.

    Attributes:
        at: 0 before it is made, 1 until it is read, 2 and 3 for the looks for the file, 8 when it is read.
        made: the index that it was made from.
        now: the index when it is read.
    """

    at: int = 8
    made: Index = Index()
    now: Index = Index()


class State(NamedTuple):
    """See the module's docstring.

    Attributes:
        program: what the writer will do.
        crashes, accidents: what may still happen.
        logs: of the dataset's index and of the archive's.
        is_disturbed: another program has changed files, or the index was exchanged.
        is_trusted: the sentinel does not exist.
        stored: data that must not be lost: those acknowledged and not deleted, and those in the files of others.
        plan: it must be readable, unless `is_over`: something was not kept, or not any more.
        kept_rows: of generations that are kept, or will be.
    """

    disk: Disk
    dataset: Index
    archive: Index
    readers: tuple[Reader, ...]
    program: tuple[Step, ...]
    crashes: int
    accidents: tuple[str, ...]
    logs: tuple[Log, Log] = (Log(Index()), Log(Index()))
    is_disturbed: bool = False
    is_trusted: bool = True
    stored: frozenset[int] = frozenset()
    plan: Plan = Plan()
    is_over: bool = False
    kept_rows: tuple[KeptRows, ...] = ()

    def rows_of(self, generation: int) -> KeptRows | None:
        return next((each for each in self.kept_rows if each.row.generation == generation), None)

    def index(self, place: str) -> Index:
        return self.dataset if place == DATASET else self.archive

    def row(self, place: str) -> Row | None:
        return self.index(place).row

    def log(self, place: str) -> Log:
        return self.logs[(DATASET, ARCHIVE).index(place)]

    def with_log(self, place: str, log: Log) -> State:
        """Change a log, and the index with it as everybody sees it."""
        if place == DATASET:
            return self._replace(dataset=log.last, logs=(log, self.logs[1]))
        return self._replace(archive=log.last, logs=(self.logs[0], log))

    def file(self, name: Name) -> Inode | None:
        inode = self.disk.at(name)
        return None if inode is None else self.disk.file(inode)

    def on_disk(self) -> frozenset[int]:
        """Return the data in all files of the dataset and of its archive, but for what is kept for plans."""
        inodes = [inode for (place, _), inode in self.disk.files if place not in (BACKUP, KEPT)]
        return frozenset(datum for inode in inodes for datum in self.disk.file(inode).data)

    def then(self, *steps: Step) -> State:
        """Let the writer do some steps next."""
        return self._replace(program=steps + self.program)
