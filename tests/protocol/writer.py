"""The writer of the model, step by step as the code does it; between two steps anything else may happen.

A rule of the protocol can be left out by its name, see `RULES`.
"""

from __future__ import annotations

from protocol.disk import Inode, Name
from protocol.state import ARCHIVE, CHANGED, COPIED, DATASET, FOREIGN, KEPT, Index, KeptRows, Log, Row, State, Step

RULES = {
    "sync files": "a file is synced before the commit",
    "sync directories": "a directory is synced before the commit",
    "sync log": "a commit is synced in the log before it is acknowledged",
    "sync main": "a checkpoint syncs the main file before the log begins again",
    "settle log": "a writer commits in the place of what a killed one has written, before it changes a file",
    "keep tried": "nothing is undone after the sync of a commit failed: a power cut may keep the commit",
    "commit first": "a new generation gets its NAME after the commit",
    "link old": "the old generation has a hidden name before NAME is replaced",
    "no older reader": "old generations go when nobody reads an older snapshot",
    "hide new": "a new segment has a hidden name until the commit",
    "never replace": "a new segment does not get its NAME in the place of another file",
    "sync before unlink": "the NAME of a new segment is durable before its hidden name goes",
    "hide dropped": "a dropped segment is renamed to its hidden name before the commit",
    "sync dropped": "that rename is synced before the commit",
    "verify files": "a hidden file gets NAME only if it agrees with the facts",
    "verify linked": "what was linked or renamed to a hidden name is compared with the facts",
    "keep foreign": "what is in the way at NAME goes to quarantine",
    "keep hidden": "nothing hidden is removed while the index is not trusted",
    "restore": "a fix gives the newest hidden generation its NAME back",
    "sync set aside": "NAME is durable before a fix takes the hidden name of the same file away",
    "new numbers": "an index that replaces a lost one counts on above all hidden names",
    "separate": "an append does not write to a file that has other names",
    "rows first": "the rows of a generation that is kept are written before the commit",
    "bytes first": "the removal of what was kept is synced before its rows go",
    "keep damaged": "a damaged file has a name in quarantine before a heal replaces it",
    "sync given up": "a file is synced before the other index gives up the data that only this file has",
    "give up first": "the other index gives data up before this one has them under new numbers",
    "main waits": "unarchive waits for older readers before it drops the segment from the archive",
}


def alias(place: str, row: Row) -> Name:
    return place, row.generation


class Writer:
    """Performs steps.

    Args:
        without: the rules that are left out.
        is_folder: the segment is a dir segment.
        keeps: the dataset keeps what is replaced or dropped.
    """

    def __init__(self, without: frozenset[str], *, is_folder: bool, keeps: bool = False) -> None:
        self._keeps = keeps
        self._without = without
        self._is_folder = is_folder

    def step(self, state: State) -> State | None:
        """Perform the next step; return None if it has to wait."""
        (kind, *arguments), *rest = state.program
        after: State | None = getattr(self, f"_{kind}")(state._replace(program=tuple(rest)), *arguments)
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

    def _sync_file(self, state: State, place: str, number: int) -> State:
        inode = state.disk.at((place, number))
        if inode is None or not self._obeys("sync files"):
            return state
        return state._replace(disk=state.disk.sync_file(inode))

    def _link(self, state: State, place: str, number: int, other: str, another: int) -> State:
        """Link a file to a second name, unless that is taken."""
        inode = state.disk.at((place, number))
        if inode is None or state.disk.at((other, another)) is not None:
            return state
        return state._replace(disk=state.disk.link((other, another), inode))

    def _commit(self, state: State, place: str, row: Row | None, *deleted: int) -> State:
        """Write a commit to the log."""
        counter = max(state.index(place).counter, 0 if row is None else row.generation)
        log = state.log(place)._replace(written=(Index(row, counter), frozenset(deleted)))
        return state.with_log(place, log).then(("publish", place))

    def _publish(self, state: State, place: str) -> State:
        """Sync the log; then everybody sees the commit, and it is acknowledged."""
        log = state.log(place).published()
        return acknowledged(state, place, log.sync() if self._obeys("sync log") else log)

    def _checkpoint(self, state: State, place: str) -> State:
        """Sync the log, move its commits into the main file, and sync that, unless somebody reads an older snapshot."""
        log = state.log(place)
        if is_read(state, place):
            return state
        if not self._obeys("sync main"):  # the next commit begins the log again: then nothing keeps the others
            return state.with_log(place, log._replace(synced=0))
        return state.with_log(place, Log(log.last, written=log.written))

    def _settle_log(self, state: State) -> State:
        """Commit an index as it is: what a killed process has written is gone, and what is seen is synced."""
        for place in (DATASET, ARCHIVE):
            log = state.log(place)
            if (log.written is not None or log.synced < len(log.commits)) and self._obeys("settle log"):
                state = acknowledged(state, place, log.sync()._replace(written=None))
        return state

    def failed(self, state: State) -> State:
        """End the writer after the sync of an append's commit has failed."""
        ((_, place), *_), log = state.program, state.log(state.program[0][1])
        before, after = log.last.row, log.written[0].row if log.written else None
        if self._obeys("keep tried") or after is None:
            return state
        if before is None:
            return state._replace(disk=state.disk.unlink(alias(place, after)))
        inode = found(state, place)
        if inode is None:
            return state
        file = state.disk.file(inode)
        return state._replace(disk=state.disk.change(inode, file._replace(data=file.data[: before.length])))

    def _quarantine(self, state: State, place: str, number: int) -> State:
        inode = state.disk.at((place, number))
        assert inode is not None
        kept = (place, -inode)
        if state.disk.at(kept) is not None:  # a rename to another link of the same file would do nothing
            kept = (place, -inode - FOREIGN)
        return state._replace(disk=state.disk.rename((place, number), kept)).then(("sync", place))

    # What cleans up

    def _open(self, state: State) -> State:
        """Open the dataset for writing."""
        return state.then(("take_over",), ("recover", DATASET), ("recover", ARCHIVE), ("settle",))

    def _take_over(self, state: State) -> State:
        """Settle the logs; notice that the index was exchanged, and create the sentinel."""
        state, index = self._settle_log(state), state.dataset
        if not index.exchanged:
            return state
        row, counter = index.row, index.counter
        if index.exchanged == "lost":
            row = None
            if self._obeys("new numbers"):
                counter = max([counter, *state.disk.hidden(DATASET)])
        elif row is not None and self._has_changed(state, row):
            row = None
        return state.with_log(DATASET, Log(Index(row, counter)))._replace(is_trusted=False)

    def _has_changed(self, state: State, row: Row) -> bool:
        file = state.file((DATASET, 0))
        if file is None:
            return False
        older = state.disk.at(alias(DATASET, row))
        is_superseded = older is not None and older != state.disk.at((DATASET, 0)) and not self._is_folder
        return is_superseded or file.stamp != row.stamp or len(file.data) != row.length

    def _recover(self, state: State, place: str) -> State:
        if not state.disk.hidden(place):
            return state
        return state.then(("sync", place), ("complete", place), ("withdraw", place), ("clean", place))

    def _complete(self, state: State, place: str) -> State:
        """Rename the committed generation to NAME, if that is left to do."""
        row = state.row(place)
        if row is None or not self._is_waiting(state, place, row):
            return state
        taken = state.disk.at((place, 0))
        if taken is not None and self._obeys("keep foreign") and not self._is_superseded(state, taken):
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

    def _is_superseded(self, state: State, inode: int) -> bool:
        return not self._is_folder and any(number > 0 for _, number in state.disk.names(inode))

    def _withdraw(self, state: State, place: str) -> State:
        """Take the hidden name of the committed generation away if that has its NAME."""
        row = state.row(place)
        if row is None or state.disk.at(alias(place, row)) != state.disk.at((place, 0)):
            return state
        return state._replace(disk=state.disk.unlink(alias(place, row)))

    def _clean(self, state: State, place: str) -> State:
        """Remove the generations that nobody needs."""
        state = self._checkpoint(state, place)
        row = state.row(place)
        others = [each for each in state.disk.hidden(place) if row is None or each != row.generation]
        is_trusted = state.is_trusted and not state.index(place).exchanged
        if self._is_read(state, place) or (not is_trusted and self._obeys("keep hidden")):
            return state
        return state.then(*(("retire", place, each) for each in others))

    def _retire(self, state: State, place: str, number: int) -> State:
        """Remove a generation that nobody needs, or keep it."""
        inode = state.disk.at((place, number))
        if inode is None or place != DATASET or state.rows_of(number) is None or state.disk.at((KEPT, number)):
            return state._replace(disk=state.disk.unlink((place, number)))
        return state._replace(disk=state.disk.rename((place, number), (KEPT, number))).then(("sync", KEPT))

    def _keep(self, state: State, place: str, row: Row) -> State:
        """Write the rows of the committed generation, which the next commit replaces or drops."""
        if not self._keeps or place != DATASET:
            return state
        others = tuple(each for each in state.kept_rows if each.row.generation != row.generation)
        return state._replace(kept_rows=(*others, KeptRows(row, state.dataset.counter)))

    def _expire(self, state: State) -> State:
        """Remove what was kept."""
        numbers = [each.row.generation for each in state.kept_rows]
        steps: tuple[Step, ...] = (
            *(("unlink", KEPT, each) for each in numbers),
            ("sync", KEPT, "bytes first"),
            ("forget_rows", *numbers),
        )
        return state._replace(is_over=True).then(*steps) if numbers else state

    def _forget_rows(self, state: State, *numbers: int) -> State:
        left = tuple(each for each in state.kept_rows if each.row.generation not in numbers)
        return state._replace(kept_rows=left)

    def _drop_unkept(self, state: State) -> State:
        """Drop the segment on a full disk."""
        return state._replace(is_over=True).then(
            ("take_over",), ("settle",), ("complete", DATASET), ("drop_now", False)
        )

    def _is_read(self, state: State, place: str) -> bool:
        """Return whether somebody reads an older snapshot, as a checkpoint reports it."""
        return self._obeys("no older reader") and is_read(state, place)

    def _settle(self, state: State) -> State:
        """Finish a move to the archive: drop from the dataset what the archive has."""
        row, other = state.dataset.row, state.archive.row
        if row is None or other is None or not (row.data - row.again) & other.data or not state.is_trusted:
            return state
        if found(state, ARCHIVE) is None or found(state, DATASET) is None:
            return state
        if left := row.data - other.data:
            return state.then(("commit", DATASET, row._replace(data=left)))
        return state.then(("drop_from", DATASET))

    # Jobs

    def _append(self, state: State, datum: int) -> State:
        return state.then(("take_over",), ("complete", DATASET), ("append_now", datum))

    def _append_now(self, state: State, datum: int) -> State:
        row, place = state.dataset.row, DATASET
        inode = state.disk.at((place, 0))
        if inode is None:
            return state if row is not None and row.data else self._append_new(state, datum)
        file = state.disk.file(inode)
        if row is not None and not row.describes(file):
            return state
        if len(state.disk.names(inode)) > 1 and self._obeys("separate"):
            return state.then(("withdraw_synced", place), ("copy", place), ("append_now", datum))
        length = len(file.data)
        if row is not None and state.is_trusted:
            length = row.length
        generation = state.dataset.counter + 1 if row is None else row.generation
        data = frozenset([datum]) | (frozenset() if row is None else row.data)
        disk = state.disk.change(inode, file._replace(data=(*file.data[:length], datum)))
        is_unread = length > (0 if row is None else row.length) or (row is not None and row.is_unread)
        again = frozenset() if row is None else row.again
        new = Row(generation, file.stamp, length + 1, data, is_unread, again)
        return state._replace(disk=disk).then(("sync_inode", inode), ("sync", place), ("commit", place, new))

    def _sync_inode(self, state: State, inode: int) -> State:
        return state._replace(disk=state.disk.sync_file(inode)) if self._obeys("sync files") else state

    def _withdraw_synced(self, state: State, place: str) -> State:
        row = state.row(place)
        if row is None or state.disk.at(alias(place, row)) != state.disk.at((place, 0)):
            return state
        return state.then(("sync", place), ("withdraw", place))

    def _copy(self, state: State, place: str) -> State:
        """Replace a file that has other names by a copy."""
        inode = state.disk.at((place, 0))
        if inode is None or len(state.disk.names(inode)) == 1:
            return state
        number = state.index(place).counter + 1
        file = state.disk.file(inode)
        disk = state.disk.unlink((place, number)).create((place, number), file._replace(synced=file.data))
        return state._replace(disk=disk).then(("replace", place, number), ("sync", place))

    def _replace(self, state: State, place: str, number: int) -> State:
        return state._replace(disk=state.disk.rename((place, number), (place, 0)))

    def _append_new(self, state: State, datum: int) -> State:
        number, place = state.dataset.counter + 1, DATASET
        row = Row(number, len(state.disk.inodes) + 1, 1, frozenset([datum]))
        at = number if self._obeys("hide new") else 0
        return state.then(
            ("unlink", place, number),
            ("create", place, at, row.stamp, datum),
            ("sync_file", place, at),
            ("sync", place),
            ("commit", place, row),
            ("checkpoint", place),
            ("reveal", place, number),
        )

    def _reveal(self, state: State, place: str, number: int) -> State:
        """Give the file of a new segment its NAME."""
        if self._is_folder:
            return state.then(("complete", place))
        inode, taken = state.disk.at((place, number)), state.disk.at((place, 0))
        if inode is None:
            return state
        if taken is not None:
            if self._obeys("never replace"):
                return state
            return state._replace(disk=state.disk.rename((place, number), (place, 0))).then(("sync", place))
        disk = state.disk.link((place, 0), inode)
        return state._replace(disk=disk).then(("sync", place, "sync before unlink"), ("unlink", place, number))

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

    def _repack(self, state: State) -> State:
        return state.then(("take_over",), ("complete", DATASET), ("repack_now",))

    def _repack_now(self, state: State) -> State:
        row = state.dataset.row
        if row is None or not self._is_good(state, DATASET):
            return state
        return self._rewrite(state, DATASET, row, row.data)

    def _heal(self, state: State) -> State:
        return state.then(("take_over",), ("complete", DATASET), ("heal_now",))

    def _heal_now(self, state: State) -> State:
        """Write copies of a replica into a copy of a file whose bytes have changed, and replace it."""
        row, file = state.dataset.row, state.file((DATASET, 0))
        if row is None or file is None or self._is_folder or not self._is_described(state, DATASET):
            return state
        whole = tuple(datum - CHANGED if CHANGED < datum < FOREIGN else datum for datum in file.data)
        if whole == file.data or not {*whole}.difference(file.data) <= COPIED:
            return state
        keep: tuple[Step, ...] = (("keep_damaged",),) if self._obeys("keep damaged") else ()
        return self._replaced(state, DATASET, row, row.data, whole, *keep)

    def _keep_damaged(self, state: State) -> State:
        inode = state.disk.at((DATASET, 0))
        assert inode is not None
        return self._link(state, DATASET, 0, DATASET, -inode).then(("sync", DATASET))

    def _rewrite(self, state: State, place: str, row: Row, data: frozenset[int]) -> State:
        """Write a new generation of a segment, and replace the old one."""
        return self._replaced(state, place, row, data, tuple(sorted(data)))

    def _replaced(
        self, state: State, place: str, row: Row, data: frozenset[int], content: tuple[int, ...], *before: Step
    ) -> State:
        """Write a new generation with some content, and replace the old one.

        Args:
            before: what to do when it is written.
        """
        number = state.index(place).counter + 1
        new = Row(number, len(state.disk.inodes) + 1, len(content), data)
        commit = self._commit_kept(place, row, ("commit", place, new))
        if self._is_folder:  # a directory cannot replace another one
            return state.then(
                ("unlink", place, number),
                ("create", place, number, new.stamp, *content),
                ("sync_file", place, number),
                ("sync", place),
                ("move_old", place, row, *commit),
                ("complete", place),
                ("clean", place),
            )
        finish: tuple[Step, ...] = (*commit, ("complete", place))
        if not self._obeys("commit first"):
            finish = (("replace", place, number), ("sync", place), *commit)
        return state.then(
            ("unlink", place, number),
            ("create", place, number, new.stamp, *content),
            ("sync_file", place, number),
            *before,
            ("link_old", place, row, *finish),
            ("clean", place),
        )

    def _commit_kept(self, place: str, row: Row, commit: Step, *, is_kept: bool = True) -> tuple[Step, ...]:
        """Return the steps of a commit that replaces or drops a generation."""
        if not self._keeps or not is_kept:
            return (commit,)
        keep: Step = ("keep", place, row)
        return (keep, commit) if self._obeys("rows first") else (commit, keep)

    def _link_old(self, state: State, place: str, row: Row, *finish: Step) -> State:
        """Give the current generation its hidden name, and take it away if that was another file."""
        if not self._obeys("link old"):
            return state.then(("sync", place), *finish)
        old = alias(place, row)
        return state.then(("link", place, 0, *old), ("sync", place), ("verify", place, row, *finish))

    def _verify(self, state: State, place: str, row: Row, *finish: Step) -> State:
        file = state.file(alias(place, row))
        if self._obeys("verify linked") and (file is None or not row.describes(file)):
            return state.then(("set_aside", place, row.generation), ("sync", place), *finish)
        return state.then(*finish)

    def _drop(self, state: State) -> State:
        """Delete the data of the segment, and drop it: they are too old. So are second copies in the archive."""
        return state.then(("take_over",), ("settle",), ("complete", DATASET), ("drop_now",))

    def _drop_now(self, state: State, is_kept: bool = True) -> State:
        row = state.dataset.row
        return state if row is None else self._drop_from(state, DATASET, *sorted(row.data), is_kept=is_kept)

    def _drop_from(self, state: State, place: str, *deleted: int, is_kept: bool = True) -> State:
        if not self._is_good(state, place):
            return state
        row = state.row(place)
        assert row is not None
        commit: Step = ("commit", place, None, *deleted)
        if not self._obeys("hide dropped"):
            old = alias(place, row)
            return state.then(("link", place, 0, *old), ("sync", place), commit, ("unlink", place, 0), ("clean", place))
        finish = self._commit_kept(place, row, commit, is_kept=is_kept)
        return state.then(("set_aside", place, row.generation), ("move_old", place, row, *finish), ("clean", place))

    def _move_old(self, state: State, place: str, row: Row, *finish: Step) -> State:
        if state.disk.at((place, 0)) is None or state.disk.at(alias(place, row)) is not None:
            return state
        disk = state.disk.rename((place, 0), alias(place, row))
        return state._replace(disk=disk).then(("sync", place, "sync dropped"), ("verify_moved", place, row, *finish))

    def _verify_moved(self, state: State, place: str, row: Row, *finish: Step) -> State:
        file = state.file(alias(place, row))
        if self._obeys("verify linked") and (file is None or not row.describes(file)):
            return state.then(("set_aside", place, row.generation), *finish)
        return state.then(*finish)

    def _set_aside(self, state: State, place: str, number: int) -> State:
        """Take a hidden name away from whatever has it."""
        inode = state.disk.at((place, number))
        if inode is None:
            return state
        if inode == state.disk.at((place, 0)):
            return state.then(("sync", place, "sync set aside"), ("unlink", place, number))
        return state.then(("quarantine", place, number))

    def _archive(self, state: State) -> State:
        return state.then(("take_over",), ("settle",), ("complete", DATASET), ("archive_now",))

    def _archive_now(self, state: State) -> State:
        row, other = state.dataset.row, state.archive.row
        if row is None or not self._is_good(state, DATASET) or (other is None) != (state.file((ARCHIVE, 0)) is None):
            return state
        copied = self._copied(state, DATASET, ARCHIVE)
        return state if copied is None else copied

    def _copied(self, state: State, source: str, target: str) -> State | None:
        """Copy the segment to the other place, then drop it from the first."""
        row, other = state.row(source), state.row(target)
        assert row is not None
        drop: tuple[Step, ...] = (("drop_from", source),)
        if source == ARCHIVE:
            drop = (("wait",), *drop)
        if other is not None:
            if not self._is_good(state, target):
                return None
            return self._rewrite(state.then(*drop), target, other, row.data | other.data)
        number = state.index(target).counter + 1
        new = row._replace(generation=number)
        return state.then(
            ("unlink", target, number),
            ("link", source, 0, target, number),
            ("sync", target),
            ("verify_copy", target, new, ("commit", target, new), ("complete", target), ("clean", target), *drop),
        )

    def _verify_copy(self, state: State, place: str, row: Row, *finish: Step) -> State:
        file = state.file(alias(place, row))
        if self._obeys("verify linked") and (file is None or not row.describes(file)):
            return state.then(("unlink", *alias(place, row)))
        return state.then(*finish)

    def _unarchive(self, state: State) -> State:
        return state.then(("take_over",), ("complete", ARCHIVE), ("complete", DATASET), ("unarchive_now",))

    def _unarchive_now(self, state: State) -> State:
        row = state.archive.row
        is_free = (state.dataset.row is None) == (state.file((DATASET, 0)) is None)
        if row is None or not is_free or not self._is_good(state, ARCHIVE):
            return state
        return self._copied(state, ARCHIVE, DATASET) or state

    def _wait(self, state: State) -> State | None:
        """Wait until nobody reads an older snapshot of the dataset."""
        return None if self._obeys("main waits") and is_read(state, DATASET) else state

    def _fix(self, state: State) -> State:
        return state.then(("take_over",), ("restore",), ("reread",), ("clean", DATASET))

    def _restore(self, state: State) -> State:
        """Give the newest generation NAME back, and move the others to quarantine."""
        if state.is_trusted or not self._obeys("restore"):
            return state
        hidden, row = state.disk.hidden(DATASET), state.dataset.row
        if not hidden:
            return state
        if row is not None and self._is_waiting(state, DATASET, row):
            return state.then(("complete", DATASET), ("restore",))
        if state.disk.at((DATASET, 0)) is None:
            return state.then(("replace", DATASET, hidden[-1]), ("sync", DATASET), ("restore",))
        return state.then(("set_aside", DATASET, hidden[-1]), ("restore",))

    def _reread(self, state: State) -> State:
        """Let the index agree with the file at NAME, and remove the sentinel."""
        row, file = state.dataset.row, state.file((DATASET, 0))
        steps: tuple[Step, ...] = (("trust",),)
        if row is not None and self._is_waiting(state, DATASET, row):
            return state.then(("complete", DATASET), ("reread",))
        if row is not None and file is None:
            steps = (("set_aside", DATASET, row.generation), ("commit", DATASET, None), *steps)
        elif file is not None and (
            row is None
            or not row.describes(file)
            or len(file.data) > row.length
            or not self._is_described(state, DATASET)
        ):
            number = state.dataset.counter + 1 if row is None else row.generation
            archived = frozenset() if state.archive.row is None else state.archive.row.data
            given_up = archived.intersection(file.data) if found(state, ARCHIVE) is None else frozenset()
            data = frozenset(file.data) - (archived - given_up)
            new = Row(number, file.stamp, len(file.data), data, again=given_up)
            sync: tuple[Step, ...] = (("sync_file", DATASET, 0), ("sync", DATASET))
            give_up: tuple[Step, ...] = (("give_up", *sorted(given_up)),) if given_up else ()
            commit: tuple[Step, ...] = (("commit", DATASET, new),)
            if not self._obeys("sync given up"):
                sync, give_up = give_up, sync
            if not self._obeys("give up first"):
                give_up, commit = commit, give_up
            steps = (("set_aside", DATASET, number), *sync, *give_up, *commit, *steps)
        return state.then(*steps)

    def _give_up(self, state: State, *data: int) -> State:
        """Remove data from the archive's index. From now on, the dataset answers for them."""
        row = state.archive.row
        assert row is not None
        left = row.data - {*data}
        state = state._replace(stored=state.stored | {*data})
        return state.then(("commit", ARCHIVE, row._replace(data=left) if left else None))

    def _trust(self, state: State) -> State:
        return state._replace(is_trusted=True)


def acknowledged(state: State, place: str, log: Log) -> State:
    """Change a log: what its last commit deletes may be gone; from now on, what that commit knows must not be lost."""
    state = state.with_log(place, log)
    deleted = log.commits[-1][1] if log.commits else frozenset()
    row, inode = state.row(place), found(state, place)  # None if another program has replaced the file meanwhile
    known = frozenset() if row is None or inode is None else row.data.intersection(state.disk.file(inode).data)
    return state._replace(stored=state.stored - deleted | known)


def is_read(state: State, place: str) -> bool:
    """Return whether somebody reads an older snapshot of an index."""
    which = 0 if place == DATASET else 1
    if place == DATASET and state.plan.at in (2, 3) and state.plan.now != state.dataset:
        return True
    return any(
        0 < each.at < 8
        and len(each.snapshots) > which
        and each.snapshots[which] != state.index(place)
        and not (each.is_detached and place == DATASET)
        for each in state.readers
    )


def found(state: State, place: str) -> int | None:
    """Return the inode of the committed generation, as a writer finds it; None if it has none."""
    row = state.row(place)
    if row is not None:
        for name in (alias(place, row), (place, 0)):
            inode = state.disk.at(name)
            if inode is not None and row.describes(state.disk.file(inode)):
                return inode
    return None
