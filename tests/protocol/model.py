"""The model: the writer of `protocol.writer` beside readers, crashes, power cuts and other programs; its invariants.

One segment is in the dataset, in its archive, or in both. The writer does some jobs one after the other. At any moment

- a reader does its next step: it takes a snapshot of an index, or looks for a file at one name,
- the writer is killed. Then another process goes on: one that opens the dataset and cleans up, or one that has it open,
- the power is cut, with any subset of the directory operations that were not synced, and any part of the bytes and of
  the commits,
- a log is recovered, since nobody had its index open any more: then a commit of a killed writer is seen,
- another program puts a file at NAME or at a hidden name, or the index is lost or replaced by an older one,
- a disk changes bytes of the file at NAME, or somebody brings a copy of an archived segment back, and takes its file
  away.

Not in the model: a plan of a commit that was recovered, and that the power cut takes away again; a file that another
program writes to in place (its facts change, as with one put in its place), and another program that acts between the
writer's look at a name and its rename of it. No system call excludes that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product

from protocol.disk import Disk, Inode, Name
from protocol.explorer import Violation
from protocol.state import ARCHIVE, BACKUP, CHANGED, DATASET, FOREIGN, KEPT, Index, Log, Plan, Reader, Row, State, Step
from protocol.writer import RULES, Writer, acknowledged, alias, found

READER_RULES = {
    "hidden first": "a reader looks at the hidden name before NAME",
    "look again": "a reader looks at the hidden name again after NAME",
    "start again": "a reader that has found nothing looks again from the start",
    "verify": "a reader compares what it has found with the facts",
    "numbers": "who reads a plan takes kept rows only if its numbers are not above theirs",
    "count deleted": "who reads a plan compares what the index has counted as deleted from the segment",
    "kept last": "who reads a plan looks at the hidden name before that of what is kept",
    "dataset first": "a query takes the dataset's snapshot before the archive's",
}
ALL_RULES = RULES | READER_RULES

_DONE = 8


class Protocol:
    """A model to explore.

    Args:
        jobs: what the writer does: append, repack, drop, drop_unkept, archive, unarchive, fix, heal, expire.
        begin: where the segment is at the start: dataset, archive, both, or empty.
        accidents: what other programs do, each once: over, in the way, hidden, linked, lost, older, changed, brought.
        without: rules that are left out; see `ALL_RULES`.
        is_folder: it is a dir segment.
        keeps: what is replaced or dropped is kept, and a plan is made and read.
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
    ) -> None:
        assert ALL_RULES.keys() >= {*without}
        self._begin = begin
        self._readers = (Reader(),) * readers
        # Each append has its own datum.
        self._jobs: tuple[Step, ...] = tuple(
            (job, 10 + number) if job == "append" else (job,) for number, job in enumerate(jobs)
        )
        self._crashes, self._accidents = crashes, tuple(accidents)
        self._without = frozenset(without)
        self._is_folder = is_folder
        self._plan = Plan(0) if keeps else Plan()
        self._writer = Writer(self._without, is_folder=is_folder, keeps=keeps)
        self._older = Index()

    def start(self) -> State:
        disk, indexes, stored = Disk(), [Index(counter=1), Index()], set()
        for number, place in enumerate((DATASET, ARCHIVE), 1):
            if self._begin in (place, "both"):
                disk = disk.create((place, 0), Inode(number, (number,), (number,))).sync(place)
                if len(disk.inodes) < number:  # stamps are the numbers of inodes
                    disk = disk.change(1, Inode(1, (number,), (number,)))
                indexes[number - 1] = Index(Row(1, len(disk.inodes), 1, frozenset([number])), 1)
                stored.add(number)
        self._older = indexes[0]
        return State(
            disk,
            *indexes,
            self._readers,
            self._jobs,
            self._crashes,
            self._accidents,
            (Log(indexes[0]), Log(indexes[1])),
            stored=frozenset(stored),
            plan=self._plan,
        )

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        self._check(state)
        if state.program:
            after = self._writer.step(state)
            if after is not None:
                yield _text(state.program[0]), after
        elif all(each.at in (0, _DONE) for each in state.readers) and state.plan.at in (0, 1, _DONE):
            self._check_at_rest(state)
        if state.plan.at != _DONE:
            yield f"plan from {state.plan.at}", state._replace(plan=self._read_plan(state, state.plan))
        for number, reader in enumerate(state.readers):
            if reader.at != _DONE:
                readers = (*state.readers[:number], self._read(state, reader), *state.readers[number + 1 :])
                yield f"reader {number + 1} from {reader.at}", state._replace(readers=readers)
        if state.crashes:
            yield from self._crashed(state)
        for place in (DATASET, ARCHIVE):
            if state.log(place).written is not None and self._is_closed(state, place):
                yield (
                    f"the log of the {place} is recovered",
                    self._recovered(state, place, state.log(place).published()),
                )
        for accident in state.accidents:
            after = self._happened(state, accident)
            if after is not None:
                yield f"accident: {accident}", after

    # Invariants

    def _check(self, state: State) -> None:
        on_disk = state.on_disk()
        if not state.stored <= on_disk:
            raise Violation(f"lost: {sorted(state.stored - on_disk)}")
        for (place, length), inode in state.disk.files:
            if place == BACKUP and len(state.disk.file(inode).data) != length:
                raise Violation("somebody's backup was changed")

    def _check_at_rest(self, state: State) -> None:
        """Check what is left when the dataset is opened once more, and after accidents fixed."""
        before = state
        state = self._performed(state, ("open",))
        had = [place for place in (DATASET, ARCHIVE) if found(before, place) and not before.index(place).exchanged]
        if not all(found(state, place) for place in had if state.row(place) is not None):
            raise Violation("the committed generation was found before the dataset was opened, and is not now")
        if state.is_disturbed:
            state = self._performed(state, ("fix",), ("open",))
        answered: set[int] = set()
        for place in (DATASET, ARCHIVE):
            row, file = state.row(place), state.file((place, 0))
            if row is None and file is not None:
                raise Violation(f"no row names the file in the {place}, so it would be taken for another program's")
            if row is not None and file is None and state.disk.at((BACKUP, row.length)) is not None:
                continue  # somebody has it
            if row is not None and (file is None or not row.describes(file)):
                raise Violation(f"the committed generation does not have its name in the {place}: {row}, {file}")
            if state.disk.hidden(place):
                raise Violation(f"left over in the {place}: {state.disk.hidden(place)}")
            answered |= set() if row is None else row.data
        main, other = state.dataset.row, state.archive.row
        if main is not None and other is not None and (twice := main.again & other.data):
            raise Violation(f"counted in two indices, under two numbers: {sorted(twice)}")
        if not state.is_disturbed and answered != state.stored:
            raise Violation(f"stored are {sorted(state.stored)}, answered {sorted(answered)}")
        if left := self._performed(state, ("expire",)).disk.hidden(KEPT):
            raise Violation(f"nothing removes what was kept: {left}")

    def _performed(self, state: State, *steps: Step) -> State:
        state = state._replace(program=steps, readers=(), plan=Plan())
        while state.program:
            after = self._writer.step(state)
            assert after is not None, "nobody reads"
            state = after
            self._check(state)
        return state

    # Plans

    def _read_plan(self, state: State, plan: Plan) -> Plan:
        """Make the plan, or read it some time later. A query of the same generation is a reader like the others."""
        made, now = plan.made.row, state.dataset.row
        if plan.at == 0:
            return Plan(_DONE if now is None else 1, state.dataset)
        assert made is not None
        if plan.at == 1:
            if state.is_disturbed or (now is not None and now.generation == made.generation):
                return Plan()
            rows = state.rows_of(made.generation)
            last = max(made.data, default=0)
            if rows is None or (self._obeys("numbers") and (plan.made.counter > rows.counter or last > rows.last)):
                return self._unreadable(state, plan, "rows")
            if self._obeys("count deleted") and _deleted(made) != _deleted(rows.row):
                return Plan()
            if not made.data <= rows.row.data:
                raise Violation(f"a plan of {made} is read without a word from {rows.row}")
            return plan._replace(at=2, now=state.dataset)
        looks = (DATASET, KEPT) if self._obeys("kept last") else (KEPT, DATASET)
        file = state.file((looks[plan.at - 2], made.generation))
        if file is not None and made.describes(file):
            return Plan()
        return plan._replace(at=3) if plan.at == 2 else self._unreadable(state, plan, "bytes")

    def _unreadable(self, state: State, plan: Plan, what: str) -> Plan:
        """End the plan with an error."""
        if not state.is_over and not state.is_disturbed:
            raise Violation(f"a plan of {plan.made.row} does not find its {what}")
        return Plan()

    # Readers

    def _obeys(self, rule: str) -> bool:
        return rule not in self._without

    def _read(self, state: State, reader: Reader) -> Reader:
        if reader.at < 2:
            return self._with_snapshot(state, reader)
        which, look = divmod(reader.at - 2, 3)
        place, row = (DATASET, ARCHIVE)[which], reader.snapshots[which].row
        following = reader._replace(at=reader.at + 3 - look, is_other=False)
        if row is None:
            return following
        name = alias(place, row) if look != 1 else (place, 0)
        file = None if look == 0 and not self._obeys("hidden first") else state.file(name)
        if file is not None:
            if row.describes(file):
                if not state.is_disturbed and not row.data <= {*file.data}:
                    raise Violation(f"a reader of {row} does not find all its data in {file}")
                return following
            if not self._obeys("verify"):
                raise Violation(f"a reader of {row} got the bytes of {file}")
        is_other = reader.is_other or file is not None
        if look < (2 if self._obeys("look again") else 1):
            return reader._replace(at=reader.at + 1, is_other=is_other)
        is_gone = not state.program and state.file((place, 0)) is None
        if is_other or is_gone or not self._obeys("start again"):
            return self._failed(state, place, row)
        return reader._replace(at=reader.at - look, is_other=False)

    def _failed(self, state: State, place: str, row: Row) -> Reader:
        if not state.is_disturbed:
            raise Violation(f"a reader did not find generation {row.generation} in the {place}")
        return Reader(_DONE)

    def _with_snapshot(self, state: State, reader: Reader) -> Reader:
        first, second = (DATASET, ARCHIVE) if self._obeys("dataset first") else (ARCHIVE, DATASET)
        if reader.at == 0:
            expected = frozenset() if state.is_disturbed else state.stored
            return Reader(1, (state.index(first),), expected=expected)
        snapshots = (*reader.snapshots, state.index(second))
        if first is ARCHIVE:
            snapshots = snapshots[::-1]
        answered = frozenset().union(*(each.row.data for each in snapshots if each.row is not None))
        if not state.is_disturbed and not reader.expected & state.stored <= answered:
            raise Violation(f"a query answers {sorted(answered)} instead of {sorted(reader.expected)}")
        # What both contain is answered from the dataset.
        return reader._replace(at=2, snapshots=snapshots, expected=frozenset())

    # Crashes and accidents

    def _crashed(self, state: State) -> Iterator[tuple[str, State]]:
        jobs = tuple(each for each in state.program if each in self._jobs)
        killed = state._replace(crashes=state.crashes - 1)
        made = state.plan._replace(at=1) if state.plan.at in (2, 3) else state.plan  # perhaps on another machine
        if state.program and state.program[0][0] == "publish":
            yield "the sync of the commit fails", self._writer.failed(killed)._replace(program=(("open",), *jobs))
        yield "killed, and opened again", killed._replace(program=(("open",), *jobs))
        if jobs and state.program != jobs:
            yield "killed, and another process goes on", killed._replace(program=jobs)
        if state.log(DATASET).synced < len(state.log(DATASET).commits):
            made = Plan()  # it may be of a commit that is lost
        killed = killed._replace(program=(("open",), *jobs), readers=(Reader(),) * len(state.readers), plan=made)
        for disk, *logs in product(state.disk.after_power_cut(), *(log.after_power_cut() for log in state.logs)):
            after = killed._replace(disk=disk)
            for place, log in zip((DATASET, ARCHIVE), logs, strict=True):
                after = self._recovered(after, place, log)
            yield "power cut", after

    def _recovered(self, state: State, place: str, log: Log) -> State:
        """Recover a log. What a commit deletes may be gone; what it adds is acknowledged when it is synced."""
        before = state.log(place)
        if log.last == before.last and before.synced == len(before.commits):
            return state.with_log(place, log)
        if log.synced == len(log.commits):
            return acknowledged(state, place, log)
        return state.with_log(place, log)._replace(stored=state.stored - log.commits[-1][1])

    def _is_closed(self, state: State, place: str) -> bool:
        """Return whether no process need have an index open."""
        which = (DATASET, ARCHIVE).index(place)
        is_between = not state.program or state.program[0] in (("open",), *self._jobs)
        is_planned = state.plan.at in (2, 3) and place == DATASET
        return (
            is_between
            and not is_planned
            and not any(0 < each.at < _DONE and len(each.snapshots) > which for each in state.readers)
        )

    def _happened(self, state: State, accident: str) -> State | None:
        """Return the state after an accident, or None if it cannot happen now."""
        act: Callable[[State], State | None] = {
            "over": lambda now: self._put(now, (DATASET, 0), over=True),
            "in the way": lambda now: self._put(now, (DATASET, 0), over=False),
            "hidden": self._put_hidden,
            "lost": lambda now: self._exchanged(now, Index(exchanged="lost")),
            "older": self._with_older_index,
            "linked": self._linked,
            "changed": self._change,
            "brought": self._bring,
        }[accident]
        after = act(state)
        if after is None:
            return None
        readers = state.readers
        if accident in ("lost", "older"):
            readers = tuple(each._replace(is_detached=True) if each.at else each for each in readers)
        left = tuple(each for each in state.accidents if each != accident)
        is_disturbed = state.is_disturbed or accident != "linked"
        return after._replace(readers=readers, accidents=left, is_disturbed=is_disturbed)

    def _put(self, state: State, name: Name, *, over: bool | None = None) -> State | None:
        """Put a file of another program at a name, and sync it.

        That destroys the data of the file that was there, unless another file has them; in the middle of a job, they
        count as destroyed.
        """
        inode = state.disk.at(name)
        is_between = self._is_between_jobs(state)
        if (over is not None and over != (inode is not None)) or (self._is_folder and not is_between):
            return None
        disk = state.disk.unlink(name).create(name, Inode(FOREIGN, (FOREIGN,), (FOREIGN,))).sync(name[0])
        stored = state.stored
        if inode is not None:
            copies = {found(state, place) for place in (DATASET, ARCHIVE)} if is_between else set()
            left = frozenset().union(*(state.disk.file(each).data for each in copies if each not in (None, inode)))
            stored -= frozenset(state.disk.file(inode).data) - left
        return state._replace(disk=disk, stored=stored | {FOREIGN})

    def _is_between_jobs(self, state: State) -> bool:
        """Return whether no job runs, and no commit is left that may come or go: it may be about another generation."""
        log = state.log(DATASET)
        is_settled = log.written is None and log.synced == len(log.commits)
        return is_settled and (not state.program or state.program[0] in self._jobs)

    def _put_hidden(self, state: State) -> State | None:
        """Put a file at the hidden name of the committed generation. At that of another one, it counts as ondisk's."""
        row = state.dataset.row
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
        row, inode = state.dataset.row, state.disk.at((DATASET, 0))
        if row is None or inode is None or self._is_folder or not self._is_between_jobs(state):
            return None
        file = state.disk.file(inode)
        if not row.describes(file) or file.data[0] >= CHANGED:
            return None
        before, after = file.data[0], file.data[0] + CHANGED
        changed = Inode(file.stamp, (after, *file.data[1:]), (after, *file.synced[1:]) if file.synced else ())
        disk = state.disk.change(inode, changed)
        return state._replace(disk=disk, stored=state.stored - {before} | {after})

    def _bring(self, state: State) -> State | None:
        """Put a copy of the archived file at NAME, which nobody has synced, and take the archived file away."""
        inode = state.disk.at((ARCHIVE, 0))
        is_free = state.dataset.row is None and state.disk.at((DATASET, 0)) is None
        if inode is None or not is_free or not self._is_between_jobs(state):
            return None
        file = state.disk.file(inode)
        disk = state.disk.rename((ARCHIVE, 0), (BACKUP, len(file.data))).sync(ARCHIVE)
        disk = disk.create((DATASET, 0), Inode(FOREIGN, file.data))
        return state._replace(disk=disk, stored=state.stored - {*file.data})

    def _with_older_index(self, state: State) -> State | None:
        if self._older.row == state.dataset.row:
            return None
        counter = max(self._older.counter, state.dataset.counter)
        return self._exchanged(state, Index(self._older.row, counter, "older"))

    def _exchanged(self, state: State, index: Index) -> State:
        """Exchange the dataset's index. A running job ends, since it cannot commit; but it cleans up."""
        jobs = tuple(each for each in state.program if each in self._jobs)
        clean: tuple[Step, ...] = (("clean", DATASET),) if state.program != jobs else ()
        return state.with_log(DATASET, Log(index))._replace(program=(*clean, *jobs))


def _deleted(row: Row) -> int:
    """Return how many data were deleted from a segment."""
    return row.length - len(row.data)


def _text(step: Step) -> str:
    return " ".join(map(str, step))
