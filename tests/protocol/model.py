"""The model: the writer of `protocol.writer` beside readers, crashes, power cuts and other programs; its invariants.

One segment name is in the dataset, in its archive, or in both; all of it is in one index. The writer does some jobs one
after the other. At any moment

- a reader does its next step: it takes a snapshot of the index, or looks for a file at one name,
- the writer is killed. Then another process goes on: one that opens the dataset and cleans up, or one that has it open,
- the power is cut, with any subset of the directory operations that were not synced, and any part of the bytes and of
  the commits,
- the log is recovered, since nobody had the index open any more: then a commit of a killed writer is seen,
- another program does what `protocol.accidents` has.

Not in the model: a plan of a commit that was recovered, and that the power cut takes away again; and another program
that acts between the writer's look at a name and its rename of it. No system call excludes that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product

from protocol.accidents import Accidents, mounted, without_people
from protocol.disk import Disk, Inode, above
from protocol.explorer import Violation
from protocol.operations import acknowledged, alias, found, is_looking, is_renamed
from protocol.rules import RULES
from protocol.state import (
    ARCHIVE,
    BACKUP,
    DATASET,
    DONE,
    KEPT,
    PLACES,
    RENAMED,
    Index,
    Log,
    Mark,
    Plan,
    Reader,
    Row,
    State,
    Step,
)
from protocol.writer import Writer

_ELSEWHERE = 10
_MISSING = 13
_PLAN_DONE = 8
_SHOWING = {"append", "repack", "archive", "unarchive", "rename"}
"""The jobs that never hide the name of a whole segment."""


class Protocol:
    """A model to explore.

    Args:
        jobs: what the writer does: append, repack, drop, drop_unkept, archive, unarchive, rename, fix, heal,
            expire.
        begin: where the segment is at the start: dataset, archive, both, or empty.
        accidents: what other programs do, each once; see `protocol.accidents`.
        without: rules that are left out; see `protocol.rules`.
        is_folder: it is a dir segment.
        keeps: what is dropped is kept, and a plan is made and read.
        is_other_disk: the archive is on another disk.
    """

    def __init__(
        self,
        *jobs: str,
        begin: str = "dataset",
        readers: int = 1,
        crashes: int = 1,
        accidents: Sequence[str] = (),
        without: Collection[str] = (),
        is_folder: bool = False,
        keeps: bool = False,
        is_other_disk: bool = False,
    ) -> None:
        assert RULES.keys() >= {*without}
        self._begin = begin
        self._readers = (Reader(),) * readers
        # Each append has its own datum.
        self._jobs: tuple[Step, ...] = tuple(
            (job, 10 + number) if job == "append" else (job,) for number, job in enumerate(jobs)
        )
        self._crashes, self._accidents = crashes, tuple(accidents)
        self._without = frozenset(without)
        self._is_other_disk = is_other_disk
        self._is_unmounted = not {"unmounted", "older tape"}.isdisjoint(accidents)
        replaces_folder = is_folder and (begin == "both" or "repack" in jobs)
        self._is_showing = {*jobs} <= _SHOWING and not accidents and not replaces_folder
        self._plan = Plan(0) if keeps else Plan()
        self._writer = Writer(self._without, is_folder=is_folder, keeps=keeps, is_other_disk=is_other_disk)
        self._others = Accidents(self.start(), self._jobs, is_folder=is_folder, is_other_disk=is_other_disk)

    def start(self) -> State:
        disk, rows, stored = Disk(), {}, set()
        for datum, place in enumerate((DATASET, ARCHIVE), 1):
            if self._begin in (place, "both"):
                stamp = len(disk.inodes) + 1
                disk = disk.create((place, 0), Inode(stamp, (datum,), (datum,))).sync(place)
                rows[place] = Row(stamp, stamp, 1, frozenset([datum]))
                stored.add(datum)
        if ARCHIVE in rows:
            disk = disk.make_folder(ARCHIVE).sync(above(ARCHIVE)[0])
        has_others = self._is_unmounted  # other segments than this one are in the archive
        mark = Mark(1, 1, has_data=True) if self._is_other_disk and (ARCHIVE in rows or has_others) else Mark()
        index = Index(frozenset(rows.items()), max(1, len(rows)))
        return State(
            disk,
            index,
            self._readers,
            self._jobs,
            self._crashes,
            self._accidents,
            Log(index),
            stored=frozenset(stored),
            plan=self._plan,
            mark=mark,
        )

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        self._check(state)
        if state.program:
            yield _text(state.program[0]), self._writer.step(state)
        elif all(each.at in (0, DONE) for each in state.readers) and state.plan.at in (0, 1, _PLAN_DONE):
            self._check_at_rest(state)
        if state.plan.at != _PLAN_DONE:
            yield f"plan from {state.plan.at}", state._replace(plan=self._read_plan(state, state.plan))
        for number, reader in enumerate(state.readers):
            if reader.at != DONE:
                readers = (*state.readers[:number], self._read(state, reader), *state.readers[number + 1 :])
                yield f"reader {number + 1} from {reader.at}", state._replace(readers=readers)
        if state.crashes:
            yield from self._crashed(state)
        if state.log.written is not None and self._is_closed(state):
            yield "the log is recovered", self._recovered(state, state.log.published())
        yield from self._others.steps(state)

    # Invariants

    def _check(self, state: State) -> None:
        on_disk = state.on_disk()
        if not state.stored <= on_disk:
            raise Violation(f"lost: {sorted(state.stored - on_disk)}")
        for (place, length), inode in state.disk.files:
            if place == BACKUP and len(state.disk.file(inode).data) != length:
                raise Violation("somebody's backup was changed")
        answered = state.index.answered()
        if sum(len(row.data) for _, row in state.index.rows) > len(answered):
            raise Violation(f"counted in two rows: {sorted(state.index.rows)}")
        if not state.is_disturbed and not state.stored <= answered:
            raise Violation(f"stored are {sorted(state.stored)}, answered {sorted(answered)}")
        if self._is_showing and not {1, 2} & state.stored <= state.visible():
            raise Violation("data that had a NAME have none")

    def _check_at_rest(self, state: State) -> None:
        """Check what is left when the dataset is opened once more, and after accidents fixed."""
        state = mounted(state)
        before = state
        state = self._performed(state, ("open",))
        had = [place for place, _ in before.index.rows if found(before, place) and not before.index.exchanged]
        if not all(found(state, place) for place in had if state.row(place) is not None):
            raise Violation("the committed generation was found before the dataset was opened, and is not now")
        if state.is_disturbed:
            state = self._performed(state, ("fix",), ("open",))
        elif is_renamed(state):
            state = self._performed(state, ("follow",), ("open",))
        for place in PLACES:
            self._check_place(state, place)
        answered = state.index.answered()
        if not state.is_disturbed and answered != state.stored:
            raise Violation(f"stored are {sorted(state.stored)}, answered {sorted(answered)}")
        if self._writer.is_away(state, ARCHIVE):
            raise Violation("the archive is there, and counts as away")
        if left := self._performed(state, ("expire",)).disk.hidden(KEPT):
            raise Violation(f"nothing removes what was kept: {left}")

    def _check_place(self, state: State, place: str) -> None:
        row, file = state.row(place), state.file((place, 0))
        if row is None and file is not None and file.data:
            raise Violation(f"no row names the file in the {place}, so it would be taken for another program's")
        if row is not None and (file is None or not row.describes(file)):
            raise Violation(f"the committed generation does not have its name in the {place}: {row}, {file}")
        if row is not None and row.moved_from is not None:
            raise Violation(f"a move is not finished: {row}")
        if state.disk.hidden(place):
            raise Violation(f"left over in the {place}: {state.disk.hidden(place)}")
        if file is not None and "changed" not in self._accidents:
            hole = {*file.data} - state.index.answered()
            if state.is_disturbed and hole:
                raise Violation(f"nobody answers {sorted(hole)} in the {place}")
            if row is not None and not row.data | row.copies <= {*file.data}:
                raise Violation(f"the index describes another file: {row}, {file}")

    def _performed(self, state: State, *steps: Step) -> State:
        state = state._replace(program=steps, readers=(), plan=Plan())
        while state.program:
            state = self._writer.step(state)
            self._check(state)
        return state

    # Plans

    def _read_plan(self, state: State, plan: Plan) -> Plan:
        """Make the plan, or read it some time later. What is in the index is read as by the other readers."""
        row = plan.made.row(DATASET)
        if row is None:
            return Plan(_PLAN_DONE if state.row(DATASET) is None else 1, state.index)
        gone = row.data - (state.index if plan.at == 1 else plan.now).answered()
        rows = [each for each in state.kept_rows if gone <= each.data]
        if state.is_disturbed or not gone:
            return Plan()
        if not rows:
            return self._unreadable(state, plan, "rows")
        if plan.at == 1:
            return plan._replace(at=2, now=state.index)
        kept = max(rows)  # a killed writer may have left the rows of an older generation
        looks = [(DATASET, kept.generation), (KEPT, kept.generation)]
        if not self._obeys("kept last"):
            looks.reverse()
        file = state.file(looks[plan.at - 2])
        if file is not None and kept.describes(file):
            return Plan()
        return plan._replace(at=plan.at + 1) if plan.at - 1 < len(looks) else self._unreadable(state, plan, "bytes")

    def _unreadable(self, state: State, plan: Plan, what: str) -> Plan:
        """End the plan with an error."""
        if not state.is_over and not state.is_disturbed:
            raise Violation(f"a plan of {plan.made.row(DATASET)} does not find its {what}")
        return Plan()

    # Readers

    def _obeys(self, rule: str) -> bool:
        return rule not in self._without

    def _read(self, state: State, reader: Reader) -> Reader:
        if reader.at == 0:
            return Reader(_MISSING, state.index)
        if reader.at >= _MISSING:
            return self._missing(state, reader)
        which, look = divmod(reader.at - 1, 3)
        is_elsewhere = which == len(PLACES)
        known, place = (ARCHIVE, RENAMED) if is_elsewhere else (PLACES[which],) * 2
        row = reader.snapshot.row(known)
        assert row is not None
        name = alias(place, row) if look != 1 else (place, 0)
        is_first = look == 0 and not is_elsewhere and not self._obeys("hidden first")
        is_skipped = is_first or (look != 1 and is_elsewhere and not self._obeys("hidden elsewhere"))
        file = None if is_skipped else state.file(name)
        if file is not None:
            if row.describes(file):
                if not state.is_disturbed and not row.data <= {*file.data}:
                    raise Violation(f"a reader of {row} does not find all its data in {file}")
                return self._following(reader, PLACES.index(known) + 1)
            if not self._obeys("verify"):
                raise Violation(f"a reader of {row} got the bytes of {file}")
        is_other = reader.is_other or file is not None
        if look < (2 if self._obeys("look again elsewhere" if is_elsewhere else "look again") else 1):
            return reader._replace(at=reader.at + 1, is_other=is_other)
        if place == ARCHIVE and state.disk.at(above(RENAMED)) is not None and self._obeys("look elsewhere"):
            return reader._replace(at=_ELSEWHERE, is_other=False)
        is_gone = not state.program and state.file((place, 0)) is None
        if is_other or is_gone or is_elsewhere or not self._obeys("start again"):
            return self._failed(state, place, row)
        return reader._replace(at=reader.at - look, is_other=False)

    def _missing(self, state: State, reader: Reader) -> Reader:
        """Look whether the archive has data that the snapshot does not know; fail if the index has lost them."""
        is_newest = reader.at == _MISSING + 1
        is_known = (state.index if is_newest else reader.snapshot).row(ARCHIVE) is not None
        if is_known or not (is_newest or (state.mark.has_data and state.file((ARCHIVE, 0)) is not None)):
            return self._following(reader, 0)
        rules = ("newest", "still there")[reader.at - _MISSING :]
        if rules and self._obeys(rules[0]):
            return reader._replace(at=reader.at + 1)
        if not state.is_disturbed:
            raise Violation("a reader misses data of the archive, which the index has not lost")
        return Reader(DONE)

    def _following(self, reader: Reader, which: int) -> Reader:
        """Let a reader look in the next folder from which its answer has data."""
        for number, place in enumerate(PLACES):
            row = reader.snapshot.row(place)
            if number >= which and row is not None and row.data:
                return reader._replace(at=1 + 3 * number, is_other=False)
        return Reader(DONE)

    def _failed(self, state: State, place: str, row: Row) -> Reader:
        was_unmounted = self._is_unmounted and not {"unmounted", "older tape"} <= {*state.accidents}
        if not state.is_disturbed and not was_unmounted:
            raise Violation(f"a reader did not find generation {row.generation} in the {place}")
        return Reader(DONE)

    # Crashes

    def _crashed(self, state: State) -> Iterator[tuple[str, State]]:
        jobs = tuple(each for each in state.program if each in self._jobs)
        killed = state._replace(crashes=state.crashes - 1)
        made = state.plan._replace(at=1) if is_looking(state.plan) else state.plan  # perhaps on another machine
        if state.program and state.program[0][0] == "publish":
            yield "the sync of the commit fails", self._writer.failed(killed)._replace(program=(("open",), *jobs))
        yield "killed, and opened again", killed._replace(program=(("open",), *jobs))
        if jobs and state.program != jobs:
            yield "killed, and another process goes on", killed._replace(program=jobs)
        if state.log.synced < len(state.log.commits):
            made = Plan()  # it may be of a commit that is lost
        killed = without_people(killed)
        killed = killed._replace(program=(("open",), *jobs), readers=(Reader(),) * len(state.readers), plan=made)
        for disk, log in product(state.disk.after_power_cut(), state.log.after_power_cut()):
            yield "power cut", self._recovered(killed._replace(disk=disk), log)

    def _recovered(self, state: State, log: Log) -> State:
        """Recover a log. What a commit deletes may be gone; what it adds is acknowledged when it is synced."""
        before = state.log
        if log.last == before.last and before.synced == len(before.commits):
            return state.with_log(log)
        if log.synced == len(log.commits):
            return acknowledged(state, log)
        return state.with_log(log)._replace(stored=state.stored - log.commits[-1][1])

    def _is_closed(self, state: State) -> bool:
        """Return whether no process need have the index open."""
        is_between = not state.program or state.program[0] in (("open",), *self._jobs)
        is_read = is_looking(state.plan) or any(0 < each.at < DONE for each in state.readers)
        return is_between and not is_read


def _text(step: Step) -> str:
    return " ".join(map(str, step))
