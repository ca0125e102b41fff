"""The writer of the model, step by step as the code does it; between two steps anything else may happen.

`protocol.rules` names the rules that it obeys; any of them can be left out. `protocol.operations` has single operations
and what is done when the dataset is opened, `protocol.moves` the moves between two folders.
"""

from __future__ import annotations

from protocol.moves import Moves
from protocol.operations import alias, found, places
from protocol.state import CHANGED, COPIED, DATASET, FOREIGN, KEPT, PLACES, Change, Row, State, Step


class Writer(Moves):
    """Performs the jobs of one folder, and a fix."""

    def _append(self, state: State, datum: int) -> State:
        return state.then(("take_over",), ("settle",), ("complete", DATASET), ("append_now", datum))

    def _append_now(self, state: State, datum: int, is_own: bool = False) -> State:
        row, place = state.row(DATASET), DATASET
        inode = state.disk.at((place, 0))
        if inode is None:
            return state if row is not None and row.data else self._append_new(state, datum)
        file = state.disk.file(inode)
        if row is not None and not row.describes(file):
            return state
        if row is None and state.is_trusted and not is_own and not self._is_folder and self._obeys("copy unknown"):
            return state.then(("keep_linked",), ("separate", place), ("append_now", datum, True))
        if len(state.disk.names(inode)) > 1 and self._obeys("separate"):
            return state.then(("withdraw_synced", place), ("separate", place), ("append_now", datum))
        state = self._with_tail_kept(state, place)
        length = len(file.data)
        if row is not None and state.is_trusted:
            length = row.length
        is_unread = length > (0 if row is None else row.length) or (row is not None and row.is_unread)
        before = Row(state.index.counter + 1, file.stamp, 0, frozenset()) if row is None else row
        new = before._replace(length=length + 1, data=before.data | {datum}, is_unread=is_unread)
        disk = state.disk.change(inode, file._replace(data=(*file.data[:length], datum)))
        return state._replace(disk=disk).then(("sync_inode", inode), ("sync", place), ("commit", ((place, new),)))

    def _sync_inode(self, state: State, inode: int) -> State:
        return state._replace(disk=state.disk.sync_file(inode)) if self._obeys("sync files") else state

    def _withdraw_synced(self, state: State, place: str) -> State:
        row = state.row(place)
        if row is None or state.disk.at(alias(place, row)) != state.disk.at((place, 0)):
            return state
        return state.then(("sync", place), ("withdraw", place))

    def _separate(self, state: State, place: str) -> State:
        """Replace a file that has other names by a copy."""
        inode = state.disk.at((place, 0))
        if inode is None or len(state.disk.names(inode)) == 1:
            return state
        number = state.index.counter + 1
        file = state.disk.file(inode)
        disk = state.disk.unlink((place, number)).create((place, number), file._replace(synced=file.data))
        return state._replace(disk=disk).then(("replace_copied", place, number, inode), ("sync", place))

    def _replace_copied(self, state: State, place: str, number: int, inode: int) -> State:
        if state.disk.at((place, 0)) != inode:
            return self._unlink(state, place, number)
        return self._replace(state, place, number)

    def _append_new(self, state: State, datum: int) -> State:
        number, place = state.index.counter + 1, DATASET
        row = Row(number, len(state.disk.inodes) + 1, 1, frozenset([datum]))
        at = number if self._obeys("hide new") else 0
        return state.then(
            ("unlink", place, number),
            ("create", place, at, row.stamp, datum),
            ("sync_file", place, at),
            ("sync", place),
            ("commit", ((place, row),)),
            ("checkpoint",),
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

    def _repack(self, state: State) -> State:
        steps = (("repack_now", place) for place in PLACES[:2])
        return state.then(("take_over",), ("settle",), ("follow",), *steps)

    def _repack_now(self, state: State, place: str) -> State:
        row = state.row(place)
        if row is None:
            file = state.file((place, 0))
            is_removed = file is not None and not file.data and not self._obeys("keep empty")
            return state._replace(disk=state.disk.unlink((place, 0))) if is_removed else state
        return state.then(("complete", place), ("repack_known", place))

    def _repack_known(self, state: State, place: str) -> State:
        row = state.row(place)
        if row is None or self.is_away(state, place) or not self._is_good(state, place):
            return state
        if row.copies and self._obeys("keep copies"):
            return state
        if not row.data:
            return self._drop_from(state, place)
        return self._replaced(state, place, row, tuple(sorted(row.data)))

    def _heal(self, state: State) -> State:
        return state.then(("take_over",), ("complete", DATASET), ("heal_now",))

    def _heal_now(self, state: State) -> State:
        """Write copies of a replica into a copy of a file whose bytes have changed, and replace it."""
        row, file = state.row(DATASET), state.file((DATASET, 0))
        if row is None or file is None or self._is_folder or not self._is_described(state, DATASET):
            return state
        whole = tuple(datum - CHANGED if CHANGED < datum < FOREIGN else datum for datum in file.data)
        if whole == file.data or not {*whole}.difference(file.data) <= COPIED:
            return state
        keep: tuple[Step, ...] = (("keep_linked",),) if self._obeys("keep damaged") else ()
        return self._replaced(state, DATASET, row, whole, *keep)

    def _keep_linked(self, state: State) -> State:
        """Link the file at NAME to a name in quarantine."""
        inode = state.disk.at((DATASET, 0))
        if inode is None:
            return state
        return self._link(state, DATASET, 0, DATASET, -inode).then(("sync", DATASET))

    def _replaced(self, state: State, place: str, row: Row, content: tuple[int, ...], *before: Step) -> State:
        """Write a new generation with some content, and replace the old one.

        Args:
            before: what to do when it is written.
        """
        number = state.index.counter + 1
        state = self._with_tail_kept(state, place)
        stamp = len(state.disk.inodes) + 1
        new = row._replace(
            generation=number, stamp=stamp, length=len(content), copies=frozenset(), replaces=row.generation
        )
        commit: tuple[Step, ...] = (("commit", ((place, new),)),)
        if self._obeys("mark rewritten"):
            commit = (*self._marks(state, place, has_data=True), *commit)
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

    def _drop(self, state: State) -> State:
        """Delete the data of the dataset's segment, and drop it: they are too old."""
        return state.then(("take_over",), ("settle",), ("complete", DATASET), ("drop_now",))

    def _drop_unkept(self, state: State) -> State:
        """Drop the segment on a full disk."""
        return state._replace(is_over=True).then(
            ("take_over",), ("settle",), ("complete", DATASET), ("drop_now", False)
        )

    def _drop_now(self, state: State, is_kept: bool = True) -> State:
        row = state.row(DATASET)
        return state if row is None else self._drop_from(state, DATASET, *sorted(row.data), is_kept=is_kept)

    def _drop_from(self, state: State, place: str, *deleted: int, is_kept: bool = True) -> State:
        if not self._is_good(state, place):
            return state
        row = state.row(place)
        assert row is not None
        commit: Step = ("commit", ((place, None),), *deleted)
        if not self._obeys("hide dropped"):
            old = alias(place, row)
            return state.then(("link", place, 0, *old), ("sync", place), commit, ("unlink", place, 0), ("clean", place))
        finish: tuple[Step, ...] = (commit,)
        if is_kept and self._keeps and place == DATASET:
            finish = (("keep", row), commit) if self._obeys("rows first") else (commit, ("keep", row))
        return state.then(("set_aside", place, row.generation), ("move_old", place, row, *finish), ("clean", place))

    # What is kept for plans

    def _expire(self, state: State) -> State:
        """Remove what was kept."""
        numbers = [each.generation for each in state.kept_rows]
        steps: tuple[Step, ...] = (
            *(("unlink", KEPT, each) for each in numbers),
            ("sync", KEPT, "bytes first"),
            ("forget_rows", *numbers),
        )
        return state._replace(is_over=True).then(*steps) if numbers else state

    def _forget_rows(self, state: State, *numbers: int) -> State:
        left = tuple(each for each in state.kept_rows if each.generation not in numbers)
        return state._replace(kept_rows=left)

    # Fix

    def _fix(self, state: State) -> State:
        steps = tuple((kind, place) for kind in ("restore", "reread", "forget") for place in places(state))
        clean = tuple(("clean", place) for place in places(state))
        return state.then(("take_over",), ("settle",), ("follow",), *steps, ("trust",), *clean)

    def _restore(self, state: State, place: str) -> State:
        """Give the newest generation NAME back, and move the others to quarantine."""
        if state.is_trusted or not self._obeys("restore") or self.is_away(state, place):
            return state
        hidden, row = state.disk.hidden(place), state.row(place)
        if not hidden:
            return state
        if row is not None and self._is_waiting(state, place, row):
            return state.then(("complete", place), ("restore", place))
        if state.disk.at((place, 0)) is None:
            return state.then(("replace", place, hidden[-1]), ("sync", place), ("restore", place))
        return state.then(("set_aside", place, hidden[-1]), ("restore", place))

    def _reread(self, state: State, place: str) -> State:
        """Let the index agree with the file at NAME."""
        row, file = state.row(place), state.file((place, 0))
        if file is None or self.is_away(state, place) or self._is_left_for_later(state, place):
            return state
        if row is not None and self._is_waiting(state, place, row):
            return state.then(("complete", place), ("reread", place))
        if row is None and not file.data:
            return state  # perhaps somebody has just begun to write it
        changes = self._compared(state, place)
        commits: tuple[Step, ...] = (("commit", changes),)
        if not self._obeys("one commit for both"):
            commits = tuple(("commit", (each,)) for each in changes)
        new = changes[0][1]
        assert new is not None
        if changes == ((place, row),) and self._is_described(state, place):
            return state
        sync: tuple[Step, ...] = (("sync_file", place, 0, "sync taken over"), ("sync", place))
        marks = self._marks(state, place, has_data=True) if self._obeys("mark read") else ()
        return state.then(("set_aside", place, new.generation), *sync, *marks, *commits)

    def _is_left_for_later(self, state: State, place: str) -> bool:
        """Return whether the file at NAME is the source of a move to a disk that is away."""
        return any(
            row.moved_from is not None
            and row.moved_from.place == place
            and self.is_away(state, target)
            and self._is_source(state, row.moved_from)
            for target, row in state.index.rows
        )

    def _compared(self, state: State, place: str) -> tuple[Change, ...]:
        """Return the row that the file at NAME gets, and what it takes over from rows whose files are gone."""
        row, file = state.row(place), state.file((place, 0))
        assert file is not None
        others = {each: its for each, its in state.index.rows if each != place}
        gone = [each for each in others if not self.is_away(state, each) and found(state, each) is None]
        if not self._obeys("take over"):
            gone = []
        having = [its for each, its in others.items() if each not in gone]
        if row is not None and self._is_described(state, place) and len(file.data) <= row.length:
            new, content = row, row.data | row.copies
        else:
            generation = state.index.counter + 1 if row is None else row.generation
            moved_from = None if row is None else row.moved_from
            new = Row(generation, file.stamp, len(file.data), frozenset(), moved_from=moved_from)
            content = frozenset(file.data)
        if not state.is_trusted and not self._obeys("compare data"):
            having = [its for its in having if its.data | its.copies == content]
        elsewhere = frozenset(datum for its in having for datum in its.data)
        data = content - elsewhere
        taken = tuple((each, _without(others[each], data)) for each in gone if others[each].data & data)
        return (place, new._replace(data=data, copies=content & elsewhere)), *taken

    def _forget(self, state: State, place: str) -> State:
        """Forget a segment that has no file."""
        row = state.row(place)
        if row is None or state.file((place, 0)) is not None or self.is_away(state, place):
            return state
        if self._is_waiting(state, place, row):
            return state
        return state.then(("set_aside", place, row.generation), ("commit", ((place, None),)))

    def _trust(self, state: State) -> State:
        return state._replace(is_trusted=True)


def _without(row: Row, data: frozenset[int]) -> Row | None:
    left = row.data - data
    return row._replace(data=left) if left else None
