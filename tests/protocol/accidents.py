"""What other programs, disks and people do to the files of the model, each of them once.

| accident | what happens |
|---|---|
| over, in the way | a file is put at the dataset's NAME: over another one, or where none is |
| over there, in the way there | the same in the archive |
| hidden | a file is put at the hidden name of the committed generation |
| linked | somebody makes a hard link of NAME, as `cp -al` does |
| lost, older | the index is lost, or replaced by the one of the start |
| changed | a disk changes bytes of a file, whose facts stay |
| moved, brought | somebody moves the file to the archive, or back from there; between two disks without a sync |
| copied | somebody copies the file to the archive |
| moved slowly, brought slowly | `mv` between two disks: a part is there, then the whole, then the source is unlinked |
| linked back | somebody links the archived file to the dataset's NAME, and later unlinks the archived one |
| unmounted | nothing is at the archive's mount point; later all is back |
| older tape | what was on the archive's disk at the start is at its mount point; later all is back |

Nobody links a file back before its move to the archive is closed: that link could not be told from the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.disk import UNDER, Disk, Entries, Inode, Name, above
from protocol.operations import alias, found
from protocol.state import (
    ARCHIVE,
    BACKUP,
    CHANGED,
    DATASET,
    FOREIGN,
    PLACES,
    Copying,
    Index,
    Log,
    State,
    Step,
)


class Accidents:
    """Lets accidents happen.

    Args:
        start: the state at the start.
        jobs: of the writer.
    """

    def __init__(self, start: State, jobs: tuple[Step, ...], *, is_folder: bool, is_other_disk: bool) -> None:
        self._jobs = jobs
        self._is_folder = is_folder
        self._is_other_disk = is_other_disk
        self._older = start.index
        self._tape = frozenset(each for each in start.disk.files if each[0][0] == ARCHIVE), start.mark.inside

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for accident in state.accidents:
            after = self._happened(state, accident)
            if after is not None:
                yield f"accident: {accident}", after

    def _happened(self, state: State, accident: str) -> State | None:
        """Return the state after an accident, or None if it cannot happen now."""
        kind, _, later = accident.partition(": ")
        there, back = (DATASET, ARCHIVE), (ARCHIVE, DATASET)
        act: dict[str, Callable[[State], State | None]] = {
            "over": lambda now: self._put(now, (DATASET, 0), over=True),
            "in the way": lambda now: self._put(now, (DATASET, 0), over=False),
            "over there": lambda now: self._put(now, (ARCHIVE, 0), over=True),
            "in the way there": lambda now: self._put(now, (ARCHIVE, 0), over=False),
            "hidden": self._put_hidden,
            "lost": lambda now: self._exchanged(now, Index(exchanged="lost")),
            "older": self._with_older_index,
            "linked": self._linked,
            "changed": self._change,
            "moved": lambda now: self._moved(now, *there),
            "brought": lambda now: self._moved(now, *back),
            "copied": lambda now: self._copy(now, *there, later),
            "moved slowly": lambda now: self._copy(now, *there, later),
            "brought slowly": lambda now: self._copy(now, *back, later),
            "linked back": lambda now: self._link_back(now, later),
            "unmounted": lambda now: self._unmounted(now, (frozenset(), 0), later),
            "older tape": lambda now: self._unmounted(now, self._tape, later),
        }
        after = act[kind](state)
        if after is None:
            return None
        readers = state.readers
        if accident in ("lost", "older"):
            readers = tuple(each._replace(is_detached=True) if each.at else each for each in readers)
        following = tuple(f"{kind}: {each}" for each in _FOLLOWING.get((kind, later), ()))
        left = (*(each for each in state.accidents if each != accident), *following)
        is_disturbed = state.is_disturbed or kind not in ("linked", "unmounted", "older tape")
        return after._replace(readers=readers, accidents=left, is_disturbed=is_disturbed)

    def _is_between_jobs(self, state: State) -> bool:
        """Return whether no job runs, and no commit is left that may come or go: it may be about another generation."""
        is_settled = state.log.written is None and state.log.synced == len(state.log.commits)
        return is_settled and (not state.program or state.program[0] in self._jobs)

    # Files of other programs

    def _put(self, state: State, name: Name, *, over: bool | None = None) -> State | None:
        """Put a file of another program at a name, and sync it.

        That destroys the data of the file that was there, unless another file has them; in the middle of a job, they
        count as destroyed.
        """
        inode = state.disk.at(name)
        is_between = self._is_between_jobs(state)
        if (over is not None and over != (inode is not None)) or (self._is_folder and not is_between):
            return None
        disk = _with_folder(state.disk, name[0]).unlink(name).create(name, Inode(FOREIGN, (FOREIGN,), (FOREIGN,)))
        disk = disk.sync(name[0]).sync(above(name[0])[0])
        stored = state.stored
        if inode is not None:
            copies = {found(state, place) for place, _ in state.index.rows} if is_between else set()
            left = frozenset().union(*(state.disk.file(each).data for each in copies if each not in (None, inode)))
            stored -= frozenset(state.disk.file(inode).data) - left
        return state._replace(disk=disk, stored=stored | {FOREIGN})

    def _put_hidden(self, state: State) -> State | None:
        """Put a file at the hidden name of the committed generation. At that of another one, it counts as ondisk's."""
        row = state.row(DATASET)
        return self._put(state, alias(DATASET, row)) if row is not None and self._is_between_jobs(state) else None

    def _linked(self, state: State) -> State | None:
        """Make a hard link of NAME, as `cp -al` does, and sync it."""
        inode = state.disk.at((DATASET, 0))
        if inode is None or not self._is_between_jobs(state):
            return None
        disk = state.disk.sync_file(inode).link((BACKUP, len(state.disk.file(inode).data)), inode)
        return state._replace(disk=disk.sync(BACKUP))

    def _change(self, state: State) -> State | None:
        """Change bytes of the file at NAME, as a disk does: its facts stay. What they were is on this disk no more."""
        row, inode = state.row(DATASET), state.disk.at((DATASET, 0))
        if row is None or inode is None or self._is_folder or not self._is_between_jobs(state):
            return None
        file = state.disk.file(inode)
        if not row.describes(file) or file.data[0] >= CHANGED:
            return None
        before, after = file.data[0], file.data[0] + CHANGED
        changed = Inode(file.stamp, (after, *file.data[1:]), (after, *file.synced[1:]) if file.synced else ())
        disk = state.disk.change(inode, changed)
        return state._replace(disk=disk, stored=state.stored - {before} | {after})

    # What people move and copy

    def _moved(self, state: State, source: str, target: str) -> State | None:
        """Move the file. Between two disks, what has not been synced may be lost, and nobody has been promised it."""
        inode = state.disk.at((source, 0))
        if inode is None or state.disk.at((target, 0)) is not None:
            return None
        disk = _ordered(state.disk, target)
        if not self._is_other_disk:
            return state._replace(disk=disk.rename((source, 0), (target, 0)))
        file = state.disk.file(inode)
        disk = disk.create((target, 0), file._replace(synced=())).unlink((source, 0))
        return state._replace(disk=disk, stored=state.stored - {*file.data})

    def _copy(self, state: State, source: str, target: str, later: str) -> State | None:
        """Copy a file step by step, and unlink the source at the end."""
        if later == "unlinked":
            return self._unlinked(state)
        if later == "written":
            assert state.copying is not None
            return self._written(state, state.copying)
        inode, taken, row = state.disk.at((source, 0)), state.disk.at((target, 0)), state.row(source)
        moved_from = None if row is None or row.moved_from is None else row.moved_from.inode
        if inode is None or taken not in (None, moved_from):  # they replace nothing but what is left of a move
            return None
        file = state.disk.file(inode)
        disk = _ordered(state.disk, target).unlink((target, 0))
        disk = disk.create((target, 0), file._replace(data=file.data[:-1], synced=()))
        return state._replace(disk=disk, copying=Copying((source, 0), len(disk.inodes), file.data))

    def _written(self, state: State, copying: Copying) -> State:
        """Write the whole copy, wherever its file is now, over what somebody else has written there; and sync it."""
        before = state.disk.file(copying.inode).data
        data = (*copying.data, *before[len(copying.data) :])
        stamp = state.disk.file(copying.inode).stamp if before == data[: len(before)] else FOREIGN + copying.inode
        disk = state.disk.change(copying.inode, Inode(stamp, data, data))
        for place in PLACES:
            disk = disk.sync(place)
        return state._replace(disk=disk, stored=state.stored - ({*before} - {*data}))

    def _link_back(self, state: State, later: str) -> State | None:
        if later:
            return self._unlinked(state)
        inode = state.disk.at((ARCHIVE, 0))
        is_open = (row := state.row(ARCHIVE)) is not None and row.moved_from is not None
        if inode is None or state.disk.at((DATASET, 0)) is not None or self._is_other_disk or is_open:
            return None
        disk = state.disk.link((DATASET, 0), inode).sync(DATASET)
        return state._replace(disk=disk, copying=Copying((ARCHIVE, 0), inode, state.disk.file(inode).data))

    def _unlinked(self, state: State) -> State | None:
        """Unlink what was copied. What came into it since is destroyed with it, unless another segment has it."""
        assert state.copying is not None
        inode = state.disk.at(state.copying.source)
        if inode is None:
            return None
        disk = state.disk.unlink(state.copying.source)
        after = state._replace(disk=disk)
        places = [place for place, _ in state.index.rows] if self._is_between_jobs(state) else []
        left = {found(after, place) for place in places} - {None}
        kept = {*state.copying.data}.union(*(disk.file(each).data for each in left))
        return after._replace(stored=state.stored - ({*state.disk.file(inode).data} - kept))

    # The index, and the archive's disk

    def _with_older_index(self, state: State) -> State | None:
        if self._older.rows == state.index.rows:
            return None
        counter = max(self._older.counter, state.index.counter)
        return self._exchanged(state, Index(self._older.rows, counter, "older"))

    def _exchanged(self, state: State, index: Index) -> State:
        """Exchange the index. A running job ends, since it cannot commit; but it cleans up."""
        jobs = tuple(each for each in state.program if each in self._jobs)
        clean: tuple[Step, ...] = (("clean", DATASET), ("clean", ARCHIVE)) if state.program != jobs else ()
        return state.with_log(Log(index))._replace(program=(*clean, *jobs))

    def _unmounted(self, state: State, other: tuple[Entries, int], later: str) -> State | None:
        """Mount another disk, or none; `later` the right one again. A running job has the folder open: it cannot be.

        Nobody knows of a disk to which nothing was moved, or tells two disks apart that are the same.
        """
        is_between = self._is_between_jobs(state) or state.program[:1] == (("open",),)
        if not is_between:
            return None
        if later:
            return mounted(state)
        is_same = other[1] >= state.mark.beside and state.disk.at((ARCHIVE, 0)) == dict(other[0]).get((ARCHIVE, 0))
        if not self._is_other_disk or state.mark.beside == 0 or is_same:
            return None
        disk, before = state.disk.swap(ARCHIVE, other[0])
        mark = state.mark._replace(inside=other[1])
        return state._replace(disk=disk, mark=mark, unmounted=(before, state.mark.inside))


_FOLLOWING = {
    ("copied", ""): ("written",),
    ("moved slowly", ""): ("written",),
    ("moved slowly", "written"): ("unlinked",),
    ("brought slowly", ""): ("written",),
    ("brought slowly", "written"): ("unlinked",),
    ("linked back", ""): ("unlinked",),
    ("unmounted", ""): ("back",),
    ("older tape", ""): ("back",),
}
"""What follows an accident, or one of its steps."""


def without_people(state: State) -> State:
    """Return the state after a power cut, which ends what people do step by step."""
    kinds = {kind for kind, _ in _FOLLOWING} - {"unmounted", "older tape"}
    left = tuple(each for each in state.accidents if not (": " in each and each.partition(": ")[0] in kinds))
    return state._replace(accidents=left, copying=None)


def _with_folder(disk: Disk, place: str) -> Disk:
    return disk if place == DATASET else disk.make_folder(place).sync(above(place)[0])


def _ordered(disk: Disk, place: str) -> Disk:
    """Sync a folder in which somebody is about to give a name: a power cut does not mix two files of one name."""
    return _with_folder(disk, place).sync(place)


def mounted(state: State) -> State:
    """Mount the archive's disk again, if it is away. Nobody finds what was written to the mount point."""
    if state.unmounted is None:
        return state
    entries, inside = state.unmounted
    disk, under = state.disk.swap(ARCHIVE, entries)
    hidden = frozenset(((UNDER, number), inode) for number, ((_, _), inode) in enumerate(sorted(under)))
    disk = disk._replace(files=disk.files | hidden, durable=disk.durable | hidden)
    return state._replace(disk=disk, mark=state.mark._replace(inside=inside), unmounted=None)
