"""A state of the model: one segment name in the folders of a dataset, its index, one writer, and some readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from protocol.disk import UNDER, Disk, Entries, Inode, Name

DATASET, ARCHIVE, RENAMED = "dataset", "archive", "renamed"
"""The folders that a segment may be in: of the dataset, `.archive/last`, and `.archive/2024`."""

PLACES = (DATASET, ARCHIVE, RENAMED)
"""In the order in which a fix reads them."""

DONE = 16
"""Where a reader is that has its answer."""

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


class Source(NamedTuple):
    """Where a segment was moved from: its folder, and its generation and the facts of its file there."""

    place: str
    generation: int
    inode: int
    stamp: int


class Row(NamedTuple):
    """The segment of one folder in the index: its generation, the facts of its file, and its data.

    Attributes:
        is_unread: the file has data that the index may not know.
        copies: data in the file that are answered from another folder.
        moved_from: what is left to be removed of a move; None if that is done.
        replaces: the generation of this folder that it was written from; None if there was none.
    """

    generation: int
    stamp: int
    length: int
    data: frozenset[int]
    is_unread: bool = False
    copies: frozenset[int] = frozenset()
    moved_from: Source | None = None
    replaces: int | None = None

    def describes(self, file: Inode) -> bool:
        """Return whether the facts agree with a file."""
        return file.stamp == self.stamp and len(file.data) >= self.length


Change: TypeAlias = tuple[str, Row | None]
"""What a commit does with the row of a folder: None removes it."""


class Index(NamedTuple):
    """An index.

    Attributes:
        rows: at most one for each folder.
        counter: the last generation that was given out, by it or as the tide mark says.
        exchanged: "lost" or "older", until a writer has noticed that.
    """

    rows: frozenset[tuple[str, Row]] = frozenset()
    counter: int = 0
    exchanged: str = ""

    def row(self, place: str) -> Row | None:
        for each, row in self.rows:
            if each == place:
                return row
        return None

    def changed(self, changes: tuple[Change, ...]) -> Index:
        """Return the index after a commit."""
        rows: dict[str, Row | None] = {**dict(self.rows), **dict(changes)}
        left = frozenset((place, row) for place, row in rows.items() if row is not None)
        return Index(left, max([self.counter, *(row.generation for _, row in left)]))

    def answered(self) -> frozenset[int]:
        return frozenset(datum for _, row in self.rows for datum in row.data)


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
        at: 0 before it began, then 13 to 15 while it looks whether the archive has data that the snapshot does not
            know, then the looks for the file, three in each folder: 1 to 3 in the first, and 10 to 12 for a file of the
            archive in the renamed one; `DONE` at the end.
        snapshot: of the index.
        is_other: one of the looks found a file that is not the generation.
        is_detached: the index was exchanged since, so no writer sees that it reads the older one.
    """

    at: int = 0
    snapshot: Index = Index()
    is_other: bool = False
    is_detached: bool = False


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


class Copying(NamedTuple):
    """Somebody copies a file to another folder by hand.

    Attributes:
        data: what the copy will have.
    """

    source: Name
    inode: int
    data: tuple[int, ...]


class Mark(NamedTuple):
    """The identity of the archive: the number of the last move to it.

    Attributes:
        inside: in `.place`, which is on the archive's disk; 0 if that is absent.
        beside: in `.archive/last.place`, which is on the dataset's disk.
        has_data: that says that the archive has data.
    """

    inside: int = 0
    beside: int = 0
    has_data: bool = False


class State(NamedTuple):
    """See the module's docstring.

    Attributes:
        program: what the writer will do.
        crashes, accidents: what may still happen.
        log: of the index.
        is_disturbed: another program has changed files, or the index was exchanged.
        is_trusted: the sentinel does not exist.
        stored: data that must not be lost: those acknowledged and not deleted, and those in the files of others.
        plan: it must be readable, unless `is_over`: something was not kept, or not any more.
        kept_rows: of generations that are kept, or will be; synced when anybody sees them.
        unmounted: what is on the archive's disk, and its `.place`; None if it is mounted.
    """

    disk: Disk
    index: Index
    readers: tuple[Reader, ...]
    program: tuple[Step, ...]
    crashes: int
    accidents: tuple[str, ...]
    log: Log = Log(Index())
    is_disturbed: bool = False
    is_trusted: bool = True
    stored: frozenset[int] = frozenset()
    plan: Plan = Plan()
    is_over: bool = False
    kept_rows: tuple[Row, ...] = ()
    copying: Copying | None = None
    mark: Mark = Mark()
    unmounted: tuple[Entries, int] | None = None

    def row(self, place: str) -> Row | None:
        return self.index.row(place)

    def with_log(self, log: Log) -> State:
        """Change the log, and the index with it as everybody sees it."""
        return self._replace(index=log.last, log=log)

    def file(self, name: Name) -> Inode | None:
        inode = self.disk.at(name)
        return None if inode is None else self.disk.file(inode)

    def on_disk(self) -> frozenset[int]:
        """Return the data in all files of the dataset, but for what is kept for plans."""
        files = self.disk.files if self.unmounted is None else self.disk.files | self.unmounted[0]
        inodes = {inode for (place, _), inode in files if place not in (BACKUP, KEPT, UNDER)}
        return frozenset(datum for inode in inodes for datum in self.disk.file(inode).data)

    def quarantined(self, place: str) -> frozenset[int]:
        inodes = [inode for (its, number), inode in self.disk.files if its == place and number < 0]
        return frozenset(datum for inode in inodes for datum in self.disk.file(inode).data)

    def visible(self) -> frozenset[int]:
        """Return the data in files that have their NAME."""
        files = (self.file((place, 0)) for place in PLACES)
        return frozenset(datum for file in files if file is not None for datum in file.data)

    def then(self, *steps: Step) -> State:
        """Let the writer do some steps next."""
        return self._replace(program=steps + self.program)
