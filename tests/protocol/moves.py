"""A move of a segment from one folder, A, to another one, B; g is its generation, h the new one; rules are quoted.

1. Look: A's file is the one that the index describes, no other move of it is open, no disk is away ("identity"), and B
   has either both a file and a row, or neither. Neither file contains a second copy ("keep copies"). Else nothing is
   moved; a fix comes first.
2. Make B's folder. Unlink whatever is at `B/.NAME.h` ("never reuse", "new generation"). Then link A's file to that
   name. Between two disks, and for a dir segment, copy it and sync the copy; if B has the segment, write the data of
   both.
3. Sync B, and the folder above a new one ("sync upwards").
4. Write `.place` inside, then the one beside, of the archive that gets or loses the segment ("mark first", "inside
   first", "mark left").
5. If B has the segment: link B/NAME to the hidden name of its generation, and sync ("link merged"). For a dir segment,
   rename it.
6. Commit: the row at A goes, the one at B comes ("one commit"). It has `moved_from`: A, g, and the facts of A's file
   ("moved from"); and the generation of B that it replaces, if there is one ("only replaced").
7. Rename `B/.NAME.h` to B/NAME; a file there that is not the replaced one goes to quarantine first. Sync.
8. If B's file is there ("target first"), and A/NAME is still the inode that was moved ("same inode"), rename it to
   `A/.NAME.g` ("keep source", "hide source"). Sync ("sync source").
9. Commit: `moved_from` is done ("close"). That may be part of the next segment's commit.
10. When no reader is older, unlink `A/.NAME.g`, and the old generation at B.

Who opens the dataset for writing, and each job before it begins, does 7 to 9 for every row with `moved_from`.

A rename of the archive, with all its segments and hidden names; nothing else is at its new name:

1. Rename the folder ("folder first"). Sync the folder above ("sync renamed").
2. Commit: the rows of the archive are those of the renamed folder; their generations stay.

If a writer was killed before 2, the next job that looks at all segments does that first; it syncs the folder above
before the commit, too ("follow", "sync followed"). Until then nobody removes hidden names there ("leave renamed").
Readers of an older snapshot look in the renamed folder after the one that they know ("look elsewhere").

A mount point cannot be renamed. The identities of the folders are not in the model: they only tell a job what
`is_renamed` returns.
"""

from __future__ import annotations

from protocol.disk import Inode, above
from protocol.operations import Operations, alias, found, is_renamed
from protocol.state import ARCHIVE, DATASET, PLACES, RENAMED, Row, Source, State, Step


class Moves(Operations):
    """Moves a segment, or the folder of the archive."""

    def _archive(self, state: State) -> State:
        return state.then(("take_over",), ("settle",), ("follow",), ("complete", DATASET), ("move", DATASET, ARCHIVE))

    def _unarchive(self, state: State) -> State:
        return state.then(("take_over",), ("settle",), ("follow",), ("move_back",))

    def _move_back(self, state: State) -> State:
        source = ARCHIVE if state.row(RENAMED) is None else RENAMED
        return state.then(("complete", source), ("move", source, DATASET))

    def _rename(self, state: State) -> State:
        return state.then(("take_over",), ("settle",), ("rename_now",))

    def _rename_now(self, state: State) -> State:
        if state.disk.at(above(ARCHIVE)) is None or state.disk.at(above(RENAMED)) is not None:
            return state
        steps: tuple[Step, ...] = (("rename_folder",), ("sync", above(RENAMED)[0], "sync renamed"), ("commit_renamed",))
        return state.then(*(steps if self._obeys("folder first") else (steps[-1], *steps[:-1])))

    def _rename_folder(self, state: State) -> State:
        return state._replace(disk=state.disk.rename_folder(ARCHIVE, RENAMED))

    def _commit_renamed(self, state: State) -> State:
        return state.then(("commit", ((ARCHIVE, None), (RENAMED, state.row(ARCHIVE)))))

    def _follow(self, state: State) -> State:
        if not is_renamed(state) or not self._obeys("follow"):
            return state
        return state.then(("sync", above(RENAMED)[0], "sync followed"), ("commit_renamed",))

    def _settle(self, state: State) -> State:
        """Finish what others have left of a move."""
        places = [place for place in PLACES if (row := state.row(place)) is not None and row.moved_from is not None]
        return state.then(
            *(step for place in places for step in (("sync", place), ("complete", place), ("finish", place)))
        )

    def _move(self, state: State, source: str, target: str) -> State:
        row, other = state.row(source), state.row(target)
        if row is None or not self._may_move(state, source, target):
            return state
        number = state.index.counter + 1 if self._obeys("new generation") else row.generation
        inode = state.disk.at((source, 0))
        assert inode is not None
        moved_from = Source(source, row.generation, inode, row.stamp)
        new = row._replace(
            generation=number, replaces=None, moved_from=moved_from if self._obeys("moved from") else None
        )
        write: Step = ("link", source, 0, target, number)
        if other is not None:
            data = row.data | other.data
            stamp = len(state.disk.inodes) + 1
            new = new._replace(stamp=stamp, length=len(data), data=data, replaces=other.generation)
            write = ("create", target, number, new.stamp, *sorted(data))
        elif self._is_folder or self._is_other_disk:
            write = ("copy", inode, row.length, target, number)
        marks = self._marks(state, target, has_data=True)
        if self._obeys("mark left"):
            marks += self._marks(state, source, has_data=False)
        finish: tuple[Step, ...] = (
            *self._switch(source, target, row, new),
            ("complete", target),
            *(() if self._obeys("mark first") else marks),
            ("finish", target, moved_from),
            ("clean", source),
            ("clean", target),
        )
        if other is not None and self._is_folder:
            finish = (("move_old", target, other, *finish),)
        elif other is not None and self._obeys("link merged"):
            finish = (("link_old", target, other, *finish),)
        unlink: tuple[Step, ...] = (("unlink", target, number),) if self._obeys("never reuse") else ()
        return self._with_tail_kept(state, source).then(
            ("make_folder", target),
            *unlink,
            write,
            *(() if write[0] == "link" else (("sync_file", target, number),)),
            ("sync", target),
            ("sync", above(target)[0], "sync upwards"),
            *(marks if self._obeys("mark first") else ()),
            *finish,
        )

    def _may_move(self, state: State, source: str, target: str) -> bool:
        row, other = state.row(source), state.row(target)
        rows = [each for each in (row, other) if each is not None]
        if self.is_away(state, source) or self.is_away(state, target) or not self._is_good(state, source):
            return False
        if any(each.moved_from is not None for each in rows):
            return False
        if other is None:
            return state.disk.at((target, 0)) is None  # a fix reads it first
        has_copies = any(each.copies for each in rows) and self._obeys("keep copies")
        return self._is_good(state, target) and not has_copies

    def _switch(self, source: str, target: str, row: Row, new: Row) -> tuple[Step, ...]:
        """Return the steps that commit a move."""
        commit: tuple[Step, ...] = (("commit", ((source, None), (target, new))),)
        if not self._obeys("one commit"):
            commit = (("commit", ((target, new),)), ("commit", ((source, None),)))
        return commit if self._obeys("keep source") else (("move_old", source, row, *commit),)

    def _make_folder(self, state: State, place: str) -> State:
        return state if place == DATASET else state._replace(disk=state.disk.make_folder(place))

    def _copy(self, state: State, inode: int, length: int, place: str, number: int) -> State:
        """Copy the committed bytes of a file, unless the name is taken."""
        if state.disk.at((place, number)) is not None:
            return state
        file = state.disk.file(inode)
        return self._create(state, place, number, file.stamp, *file.data[:length])

    def _marks(self, state: State, place: str, *, has_data: bool) -> tuple[Step, ...]:
        if place != ARCHIVE or not self._is_other_disk:
            return ()
        number = max(state.mark.inside, state.mark.beside) + 1
        marks: tuple[Step, ...] = (("mark", "inside", number), ("mark", "beside", number, has_data))
        return marks if self._obeys("inside first") else marks[::-1]

    def _mark(self, state: State, where: str, number: int, *has_data: bool) -> State:
        mark = state.mark._replace(**{where: number})
        return state._replace(mark=mark._replace(has_data=has_data[0]) if has_data else mark)

    def _finish(self, state: State, place: str, moved_from: Source | None = None) -> State:
        """Remove the source of a move to a place.

        Args:
            moved_from: the source, for the writer who has moved the segment; others read it from the row.
        """
        row = state.row(place)
        source = moved_from or (None if row is None else row.moved_from)
        if row is None or source is None or not state.is_trusted or self.is_away(state, source.place):
            return state
        if found(state, place) is None and self._obeys("target first"):
            return state
        close: tuple[Step, ...] = (("sync", source.place, "sync source"), ("close", place))
        name, hidden = (source.place, 0), (source.place, source.generation)
        if state.row(source.place) is not None or not self._is_source(state, source):
            return state.then(*close)
        taken = state.disk.at(hidden)
        if taken == state.disk.at(name) or not self._obeys("hide source"):
            return state._replace(disk=state.disk.unlink(name)).then(*close)
        if taken is not None:
            return state.then(("quarantine", *hidden), ("finish", place, source))
        return state._replace(disk=state.disk.rename(name, hidden)).then(*close)

    def _is_source(self, state: State, source: Source) -> bool:
        """Return whether the file at the source's NAME is the one that was moved."""
        inode, file = state.disk.at((source.place, 0)), state.file((source.place, 0))
        return file is not None and (inode == source.inode if self._obeys("same inode") else file.stamp == source.stamp)

    def _close(self, state: State, place: str) -> State:
        row = state.row(place)
        if row is None or row.moved_from is None or not self._obeys("close"):
            return state
        return state.then(("commit", ((place, row._replace(moved_from=None)),)))

    # What a writer of one folder does, too

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

    def _move_old(self, state: State, place: str, row: Row, *finish: Step) -> State:
        if state.disk.at((place, 0)) is None or state.disk.at(alias(place, row)) is not None:
            return state
        disk = state.disk.rename((place, 0), alias(place, row))
        return state._replace(disk=disk).then(("sync", place, "sync dropped"), ("verify_hidden", place, row, *finish))

    def _verify_hidden(self, state: State, place: str, row: Row, *finish: Step) -> State:
        file = state.file(alias(place, row))
        if self._obeys("verify linked") and (file is None or not row.describes(file)):
            return state.then(("set_aside", place, row.generation), *finish)
        return state.then(*finish)

    def _with_tail_kept(self, state: State, place: str) -> State:
        """Copy what follows the committed bytes to quarantine."""
        row, file = state.row(place), state.file((place, 0))
        if row is None or file is None or not state.is_trusted or not self._obeys("keep tail"):
            return state
        tail = file.data[row.length :]
        if not tail or {*tail} <= state.quarantined(place):
            return state
        disk = state.disk.create((place, -len(state.disk.inodes) - 1), Inode(0, tail, tail)).sync(place)
        return state._replace(disk=disk)
