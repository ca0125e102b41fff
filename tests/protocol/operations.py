"""Single operations of the model's writer, and what it does when it opens the dataset."""

from __future__ import annotations

from protocol.disk import Inode, Name, above
from protocol.rules import RULES
from protocol.state import (
    ARCHIVE,
    DATASET,
    DONE,
    FOREIGN,
    KEPT,
    PLACES,
    RENAMED,
    Change,
    Index,
    Log,
    Plan,
    Row,
    State,
)


def alias(place: str, row: Row) -> Name:
    return place, row.generation


class Operations:
    """Performs steps.

    Args:
        without: the rules that are left out.
        is_folder: the segment is a dir segment.
        keeps: the dataset keeps what is dropped.
        is_other_disk: the archive is on another disk.
    """

    def __init__(
        self, without: frozenset[str], *, is_folder: bool = False, keeps: bool = False, is_other_disk: bool = False
    ) -> None:
        self._without = without
        self._is_folder = is_folder
        self._keeps = keeps
        self._is_other_disk = is_other_disk

    def step(self, state: State) -> State:
        """Perform the next step."""
        (kind, *arguments), *rest = state.program
        after: State = getattr(self, f"_{kind}")(state._replace(program=tuple(rest)), *arguments)
        return after

    def _obeys(self, rule: str) -> bool:
        assert rule in RULES
        return rule not in self._without

    # Single operations

    def _sync(self, state: State, place: str, rule: str = "sync directories") -> State:
        return state._replace(disk=state.disk.sync(place)) if self._obeys(rule) else state

    def _unlink(self, state: State, *name: str | int) -> State:
        return state._replace(disk=state.disk.unlink(name))

    def _create(self, state: State, place: str, number: int, stamp: int, *data: int) -> State:
        return state._replace(disk=state.disk.create((place, number), Inode(stamp, data)))

    def _sync_file(self, state: State, place: str, number: int, rule: str = "sync files") -> State:
        inode = state.disk.at((place, number))
        if inode is None or not self._obeys(rule):
            return state
        return state._replace(disk=state.disk.sync_file(inode))

    def _link(self, state: State, place: str, number: int, other: str, another: int) -> State:
        """Link a file to a second name, unless that is taken."""
        inode = state.disk.at((place, number))
        if inode is None or state.disk.at((other, another)) is not None:
            return state
        return state._replace(disk=state.disk.link((other, another), inode))

    def _replace(self, state: State, place: str, number: int) -> State:
        return state._replace(disk=state.disk.rename((place, number), (place, 0)))

    def _quarantine(self, state: State, place: str, number: int) -> State:
        inode = state.disk.at((place, number))
        assert inode is not None
        kept = (place, -inode)
        if state.disk.at(kept) is not None:  # a rename to another link of the same file would do nothing
            kept = (place, -inode - FOREIGN)
        return state._replace(disk=state.disk.rename((place, number), kept)).then(("sync", place))

    def _set_aside(self, state: State, place: str, number: int) -> State:
        """Take a hidden name away from whatever has it."""
        inode = state.disk.at((place, number))
        if inode is None:
            return state
        if inode == state.disk.at((place, 0)):
            return state.then(("sync", place, "sync set aside"), ("unlink", place, number))
        return state.then(("quarantine", place, number))

    # Commits

    def _commit(self, state: State, changes: tuple[Change, ...], *deleted: int) -> State:
        """Write a commit to the log."""
        log = state.log._replace(written=(state.index.changed(changes), frozenset(deleted)))
        return state.with_log(log).then(("publish",))

    def _publish(self, state: State) -> State:
        """Sync the log; then everybody sees the commit, and it is acknowledged."""
        log = state.log.published()
        return acknowledged(state, log.sync() if self._obeys("sync log") else log)

    def _checkpoint(self, state: State) -> State:
        """Sync the log, move its commits into the main file, and sync that, unless somebody reads an older snapshot."""
        log = state.log
        if is_read(state):
            return state
        if not self._obeys("sync main"):  # the next commit begins the log again: then nothing keeps the others
            return state.with_log(log._replace(synced=0))
        return state.with_log(Log(log.last, written=log.written))

    def _settle_log(self, state: State) -> State:
        """Commit the index as it is: what a killed process has written is gone, and what is seen is synced."""
        log = state.log
        if (log.written is not None or log.synced < len(log.commits)) and self._obeys("settle log"):
            return acknowledged(state, log.sync()._replace(written=None))
        return state

    def failed(self, state: State) -> State:
        """End the writer after the sync of a commit has failed. Without "keep tried", undo an append."""
        log = state.log
        if self._obeys("keep tried") or log.written is None:
            return state
        before, after = log.last.row(DATASET), log.written[0].row(DATASET)
        if after is None:
            return state
        if before is None:
            return state._replace(disk=state.disk.unlink(alias(DATASET, after)))
        inode = found(state, DATASET)
        if inode is None:
            return state
        file = state.disk.file(inode)
        return state._replace(disk=state.disk.change(inode, file._replace(data=file.data[: before.length])))

    # Opening

    def _open(self, state: State) -> State:
        """Open the dataset for writing."""
        return state.then(("take_over",), ("settle",), *(("recover", place) for place in places(state)))

    def _take_over(self, state: State) -> State:
        """Settle the log; notice that the index was exchanged, and create the sentinel."""
        state = self._settle_log(state)
        index = state.index
        if not index.exchanged:
            return state
        counter = index.counter
        if index.exchanged == "lost" and self._obeys("new numbers"):
            counter = max([counter, *(number for place in PLACES for number in state.disk.hidden(place))])
        rows = frozenset((place, row) for place, row in index.rows if not self._has_changed(state, place, row))
        return state.with_log(Log(Index(rows, counter)))._replace(is_trusted=False)

    def _has_changed(self, state: State, place: str, row: Row) -> bool:
        file = state.file((place, 0))
        if file is None:
            return False
        older = state.disk.at(alias(place, row))
        is_superseded = older is not None and older != state.disk.at((place, 0)) and not self._is_folder
        return is_superseded or file.stamp != row.stamp or len(file.data) != row.length

    def _recover(self, state: State, place: str) -> State:
        is_left = place == RENAMED and is_renamed(state) and self._obeys("leave renamed")
        if is_left or not state.disk.hidden(place):
            return state
        return state.then(("sync", place), ("complete", place), ("withdraw", place), ("clean", place))

    def _complete(self, state: State, place: str) -> State:
        """Rename the committed generation to NAME, if that is left to do."""
        row = state.row(place)
        if row is None or not self._is_waiting(state, place, row):
            return state
        taken = state.disk.at((place, 0))
        if taken is not None and self._obeys("keep foreign") and not self._is_superseded(state, place, row, taken):
            return state.then(("quarantine", place, 0), ("complete", place))
        if taken is None and any(name[0] == place for _, name, *_ in state.disk.pending) and not self._is_folder:
            return state.then(("sync", place), ("complete", place))
        return state._replace(disk=state.disk.rename(alias(place, row), (place, 0))).then(("sync", place))

    def _is_waiting(self, state: State, place: str, row: Row) -> bool:
        """Return whether the committed generation must still be renamed to NAME."""
        inode = state.disk.at(alias(place, row))
        if inode is None or inode == state.disk.at((place, 0)):
            return False
        if not self._obeys("verify files"):
            return True
        is_done = self._is_folder and (named := state.file((place, 0))) is not None and row.describes(named)
        return not is_done and row.describes(state.disk.file(inode))

    def _is_superseded(self, state: State, place: str, row: Row, inode: int) -> bool:
        """Return whether a file at NAME is the generation that a row was written from."""
        if not self._obeys("only replaced"):
            return not self._is_folder and any(its == place and number > 0 for its, number in state.disk.names(inode))
        return row.replaces is not None and not self._is_folder and state.disk.at((place, row.replaces)) == inode

    def _withdraw(self, state: State, place: str) -> State:
        """Take the hidden name of the committed generation away if that has its NAME."""
        row = state.row(place)
        if row is None or state.disk.at(alias(place, row)) != state.disk.at((place, 0)):
            return state
        return state._replace(disk=state.disk.unlink(alias(place, row)))

    # Leftovers

    def _clean(self, state: State, place: str) -> State:
        """Remove the generations that nobody needs."""
        state = self._checkpoint(state)
        row = state.row(place)
        others = [each for each in state.disk.hidden(place) if row is None or each != row.generation]
        is_trusted = state.is_trusted and not state.index.exchanged
        is_needed = self._obeys("no older reader") and is_read(state)
        if is_needed or (not is_trusted and self._obeys("keep hidden")):
            return state
        return state.then(*(("retire", place, each) for each in others))

    def _retire(self, state: State, place: str, number: int) -> State:
        """Remove a generation that nobody needs, or keep it."""
        inode, kept = state.disk.at((place, number)), {each.generation for each in state.kept_rows}
        if inode is None or place != DATASET or number not in kept or state.disk.at((KEPT, number)):
            return state._replace(disk=state.disk.unlink((place, number)))
        return state._replace(disk=state.disk.rename((place, number), (KEPT, number))).then(("sync", KEPT))

    def _keep(self, state: State, row: Row) -> State:
        """Write the rows of the dataset's committed generation, which the next commit drops."""
        others = tuple(each for each in state.kept_rows if each.generation != row.generation)
        return state._replace(kept_rows=(*others, row))

    # What the writer knows of a segment

    def _is_good(self, state: State, place: str) -> bool:
        """Return whether maintenance may touch a segment: it is the file that the index describes, and whole."""
        row, file = state.row(place), state.file((place, 0))
        return self._is_described(state, place) and row is not None and file is not None and row.data <= {*file.data}

    def _is_described(self, state: State, place: str) -> bool:
        """Return whether the file at NAME is the one that the index describes, whatever has happened to its bytes."""
        row, file = state.row(place), state.file((place, 0))
        if row is None or file is None or not row.describes(file) or row.is_unread or not state.is_trusted:
            return False
        hidden = state.disk.at(alias(place, row))
        return hidden is None or hidden == state.disk.at((place, 0))  # else a stray file has its hidden name

    def is_away(self, state: State, place: str) -> bool:
        """Return whether another disk than the archive's is at its folder, or none."""
        if place != ARCHIVE or not self._is_other_disk or not self._obeys("identity"):
            return False
        inside, beside, _ = state.mark
        is_known = state.row(place) is not None or (beside > 0 and self._obeys("beside"))
        return is_known and (inside == 0 or (inside < beside and self._obeys("older place")))


def acknowledged(state: State, log: Log) -> State:
    """Let the last commit be acknowledged: what it deletes may be gone, and what it knows must not be lost."""
    state = state.with_log(log)
    deleted = log.commits[-1][1] if log.commits else frozenset()
    known: set[int] = set()
    for place, row in state.index.rows:
        if (inode := found(state, place)) is not None:  # None if another program has replaced the file meanwhile
            known |= row.data.intersection(state.disk.file(inode).data)
    return state._replace(stored=state.stored - deleted | known)


def places(state: State) -> list[str]:
    """Return the folders to look at. Only a rename puts anything into the last one."""
    is_there = state.row(RENAMED) is not None or state.disk.at(above(RENAMED)) is not None
    return [place for place in PLACES if place != RENAMED or is_there]


def is_renamed(state: State) -> bool:
    """Return whether the archive's folder was renamed, and the index does not know that."""
    is_gone = state.disk.at(above(ARCHIVE)) is None and state.disk.at(above(RENAMED)) is not None
    return is_gone and state.row(ARCHIVE) is not None


def is_looking(plan: Plan) -> bool:
    """Return whether somebody has the index open to read a plan."""
    return plan.at in (2, 3)


def is_read(state: State) -> bool:
    """Return whether somebody reads an older snapshot of the index, as a checkpoint reports it."""
    if is_looking(state.plan) and state.plan.now != state.index:
        return True
    return any(0 < each.at < DONE and each.snapshot != state.index and not each.is_detached for each in state.readers)


def found(state: State, place: str) -> int | None:
    """Return the inode of the committed generation, as a writer finds it; None if it has none."""
    row = state.row(place)
    if row is not None:
        for name in (alias(place, row), (place, 0)):
            inode = state.disk.at(name)
            if inode is not None and row.describes(state.disk.file(inode)):
                return inode
    return None
