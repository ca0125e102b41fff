"""A state machine mixes accidents with ordinary verbs, and checks the law against a plain model.

The model is `Victim`: sets of numbers. Before and after each accident the machine looks which data are on disk, so it
knows what the accident has destroyed. `judge` maintains, and settles what was lost and reported since the last time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from kit.crashes import Killed, killed_at

from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, SegmentMissing

from . import tools
from .law import check_law, check_query
from .victim import DAYS, KINDS, LAST, Victim, number_of

NUMBERS = [number_of(day, minute) for day in (*DAYS, 5) for minute in (0, 100, 200, 300, 400, 500, 600, 700)]
SENTINEL = "needs-check-do-not-pack"
COPIES = {"cp": tools.cp, "cp -p": tools.cp_p, "mv": tools.mv, "cp --remove-destination": tools.cp_remove}


class Machine(RuleBasedStateMachine):
    """Attacks a dataset of `kind`.

    Attributes:
        victim: the dataset, and its model.
        reported: data that are not answered, but on disk and reported: they must stay on disk.
        backups: copies of segments, with the place of each in the dataset.
        indices: copies of the index.
        away: segments that somebody moved out of the dataset.
        forgot: the index was lost or exchanged since it was judged: what is destroyed may leave no trace.
        quarantined: data in quarantine when it was judged, which was said then, or when the sentinel was removed.
        again: data that were deleted, and appended again: the bytes of the deleted ones may still be on disk.
    """

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.room = Path(tempfile.mkdtemp(prefix="ondisk-"))
        self.victim = Victim.make(self.room / "dataset", self.kind)
        self.reported: set[int] = set()
        self.backups: list[tuple[str, Path]] = []
        self.indices: list[Path] = []
        self.away: list[tuple[str, Path]] = []
        self.forgot = False
        self.quarantined: set[int] = set()
        self.again: set[int] = set()
        self.copies = 0

    def teardown(self) -> None:
        """Judge at the end, too."""
        try:
            self.judge()
        finally:
            shutil.rmtree(self.room)

    # Ordinary verbs

    @rule(numbers=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=6, unique=True))
    def append(self, numbers: list[int]) -> None:
        self.again |= self.victim.deleted & {*numbers}
        self.victim.append(*numbers)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        found = check_query(self.victim).found
        if found:
            chosen = data.draw(st.lists(st.sampled_from(sorted(found)), min_size=1, max_size=4, unique=True))
            code = self.victim.run("delete", self.victim.match(*chosen), "--yes")
            if code == EXIT_DONE:
                self.victim.deleted |= {*chosen}
                self.reported -= {*chosen}
            else:
                self._unsure(chosen)

    @rule(verb=st.sampled_from(["fix", "repack", "maintain", "check"]))
    def mend(self, verb: str) -> None:
        if verb == "check":
            self.victim.run("check")
        else:
            getattr(self.victim, verb)()

    @precondition(lambda self: self._segments(""))
    @rule(data=st.data(), back=st.booleans())
    def archive(self, data: st.DataObject, back: bool) -> None:
        names = self._segments(f"{LAST}/" if back else "")
        if names:
            name = data.draw(st.sampled_from(names)).removeprefix(f"{LAST}/")
            code = self.victim.run("unarchive" if back else "archive", name, "--yes")
            if code == SegmentMissing.exit_code:  # the index does not know it
                self.victim.codes.pop()

    # Accidents

    @rule(data=st.data())
    def back_up(self, data: st.DataObject) -> None:
        """Copy a segment, or the index, for later."""
        name = data.draw(st.sampled_from([*self._segments(), "index.sqlite"]))
        if name == "index.sqlite":
            copy = self._place()
            copy.mkdir()
            tools.put_index(self.victim.path, copy)
            self.indices.append(copy)
        else:
            self.backups.append((name, self.victim.backup(self.victim.path / name)))

    @precondition(lambda self: self.backups)
    @rule(data=st.data(), how=st.sampled_from(sorted(COPIES)))
    def restore(self, data: st.DataObject, how: str) -> None:
        name, backup = data.draw(st.sampled_from(self.backups))
        copy = self._place()
        tools.cp_p(backup, copy)
        with self._accident():
            (self.victim.path / name).parent.mkdir(parents=True, exist_ok=True)
            COPIES[how](copy, self.victim.path / name)

    @precondition(lambda self: self.indices)
    @rule(data=st.data())
    def restore_the_index(self, data: st.DataObject) -> None:
        self.forgot = True
        with self._accident():
            tools.put_index(data.draw(st.sampled_from(self.indices)), self.victim.path)

    @rule()
    def lose_the_index(self) -> None:
        self.forgot = True
        with self._accident():
            tools.lose_index(self.victim.path)

    @rule(exists=st.booleans())
    def change_the_sentinel(self, exists: bool) -> None:
        with self._accident():
            if exists:
                (self.victim.path / SENTINEL).touch()
            else:
                (self.victim.path / SENTINEL).unlink(missing_ok=True)
                self.quarantined |= self._in_quarantine()  # nobody is to report what a killed rebuild has moved there

    @precondition(lambda self: self._segments())
    @rule(data=st.data())
    def move_away(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._segments()))
        place = self._place()
        with self._accident():
            tools.mv(self.victim.path / name, place)
        self.away.append((name, place))

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def move_back(self, data: st.DataObject) -> None:
        name, place = data.draw(st.sampled_from(self.away))
        self.away.remove((name, place))
        with self._accident():
            tools.mv(place, self.victim.path / name)

    @precondition(lambda self: self._segments())
    @rule(data=st.data(), day=st.sampled_from([*DAYS, 5, 8]), copy=st.booleans(), archived=st.booleans())
    def rename(self, data: st.DataObject, day: int, copy: bool, archived: bool) -> None:
        """Rename or copy a segment to another day, over what is there; or into the archive, or out of it."""
        name = data.draw(st.sampled_from(self._segments()))
        target = self.victim.path / (LAST if archived else "") / self.victim.name(day)
        if target != self.victim.path / name:
            with self._accident():
                target.parent.mkdir(parents=True, exist_ok=True)
                (tools.cp if copy else tools.mv)(self.victim.path / name, target)

    @precondition(lambda self: self._segments())
    @rule(data=st.data(), how=st.sampled_from(["zero", "cut", "add"]), at=st.floats(0, 1))
    def damage(self, data: st.DataObject, how: str, at: float) -> None:
        """Damage a segment; of blob the file of a datum."""
        path = self.victim.path / data.draw(st.sampled_from(self._segments()))
        if path.is_dir():
            files = sorted(path.glob("[0-9]*"))
            if not files:
                return
            path = data.draw(st.sampled_from(files))
        size = path.stat().st_size
        if how == "add" and self.kind == "vm2" and not path.read_bytes().endswith(b"\n"):
            return  # a torn line would become the line of another datum, and vm2 has no checksums
        place = int(at * size)
        within = self._within(path)
        with self._accident():
            if how == "zero":
                tools.overwrite(path, place, bytes(min(40, size - place)))
            elif how == "cut":
                os.truncate(path, place)
            else:
                tools.add_to(path, b"something else\n")
        self.victim.destroyed |= within

    @precondition(lambda self: self._segments())
    @rule(data=st.data(), seconds=st.sampled_from([0, 1_700_000_000, 4_000_000_000]))
    def reset_a_time(self, data: st.DataObject, seconds: int) -> None:
        os.utime(self.victim.path / data.draw(st.sampled_from(self._segments())), (seconds, seconds))

    @precondition(lambda self: self.kind != "blob" and self._segments())
    @rule(data=st.data(), number=st.integers(1, 40))
    def put_a_stray(self, data: st.DataObject, number: int) -> None:
        """Put the content of one segment under a hidden name of another."""
        names = self._segments()
        name, other = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
        path = self.victim.path / name
        hidden = path.with_name(f".{path.name}.{number}")
        if not hidden.exists():
            with self._accident():
                shutil.copy2(self.victim.path / other, hidden)

    @rule()
    def copy_the_dataset(self) -> None:
        """Restore it whole at another path, and go on there."""
        place = self._place()
        tools.cp(self.victim.path, place)
        shutil.rmtree(self.victim.path)
        self.victim.path = place

    @rule(verb=st.sampled_from(["append", "repack", "fix", "maintain"]), call=st.integers(0, 50), data=st.data())
    def be_killed(self, verb: str, call: int, data: st.DataObject) -> None:
        new = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=6, unique=True))
        acts: dict[str, Callable[[], object]] = {
            "append": lambda: self.victim.append(*new),
            "repack": self.victim.repack,
            "fix": self.victim.fix,
            "maintain": self.victim.maintain,
        }
        lost = self.victim.lost()
        try:
            with killed_at(call):
                acts[verb]()
        except Killed:
            if self.victim.lost() > lost:  # it has counted them, and was killed before its exit code could say so
                self.victim.codes.append((verb, EXIT_DATA_SKIPPED))
            if verb == "append":
                self.victim.maybe |= {*new}
                again = self.victim.deleted & {*new}
                self.again |= again
                self.victim.given -= again  # nobody has acknowledged that they are back
                self.victim.deleted -= again

    # The law

    @rule()
    def judge(self) -> None:
        """Maintain twice, and check the law; settle what was lost and reported until now."""
        victim = self.victim
        victim.maintain()
        code = victim.maintain()
        victim.untraceable = victim.destroyed | self.quarantined if self.forgot else set()
        answered = check_law(victim)
        on_disk = victim.on_disk(victim.given | self.reported)
        gone = self.reported - victim.deleted - answered - on_disk - victim.destroyed
        assert not gone, f"these were reported, and still on disk; now they are lost: {sorted(gone)}"
        if code == EXIT_DONE:
            assert [*victim.check(accurate=True).findings] == []
            self.again = set()
        missing = victim.given - victim.deleted - answered
        self.reported = (self.reported | missing) & on_disk - answered - victim.deleted
        victim.maybe |= victim.given
        victim.given = {*answered}
        victim.maybe |= victim.deleted & answered
        victim.deleted -= answered
        victim.destroyed, victim.codes, self.forgot = set(), [], False
        self.quarantined = self._in_quarantine()
        victim.revives = bool(self.backups or self.indices or self.away)

    @invariant()
    def nothing_wrong_is_answered(self) -> None:
        check_query(self.victim)

    @contextlib.contextmanager
    def _accident(self) -> Iterator[None]:
        """Note what the block destroys. From now on, deleted data may come back."""
        before = self._counts()
        yield
        after = self._counts()
        fewer = {each for each, count in before.items() if after[each] < count}
        self.victim.destroyed |= {each for each in fewer if not after[each] or each in self.again}
        self.victim.revives = True

    def _counts(self) -> Counter[int]:
        """Return how often each datum is on disk."""
        contents = [each.read_bytes() for each in self.victim.segments_on_disk()]
        known = self.victim.given | self.reported
        return Counter({each: sum(one.count(self.victim.payload(each)) for one in contents) for each in known})

    def _unsure(self, numbers: list[int]) -> None:
        self.victim.maybe |= {*numbers}
        self.victim.given -= {*numbers}

    def _in_quarantine(self) -> set[int]:
        victim = self.victim
        items = [each.read_bytes() for each in victim.segments_on_disk() if ".quarantine" in each.parts]
        return {each for each in NUMBERS if any(victim.payload(each) in content for content in items)}

    def _within(self, path: Path) -> set[int]:
        """Return the data that a file holds."""
        content = path.read_bytes()
        known = self.victim.given | self.reported
        return {each for each in known if self.victim.payload(each) in content}

    def _segments(self, place: str | None = None) -> list[str]:
        """Return the segments on disk: all, or those in the dataset or in the archive."""
        found = [*self.victim.path.glob(f"2024/*.{self.victim.extension}")]
        found += self.victim.path.glob(f"{LAST}/2024/*.{self.victim.extension}")
        names = sorted(str(each.relative_to(self.victim.path)) for each in found)
        return [each for each in names if place is None or each.startswith(LAST) == bool(place)]

    def _place(self) -> Path:
        self.copies += 1
        return self.room / f"copy{self.copies}"


def machine(kind: str) -> type[Machine]:
    return type(f"Machine_{kind}", (Machine,), {"kind": kind})


SEALED = sorted({*KINDS} - {"grib", "odimh5"})
"""Kinds whose data have checksums, or are lines: the bytes of others can be changed so that nothing shows it."""


@pytest.mark.check
@pytest.mark.parametrize("kind", SEALED)
def test_accidents_and_verbs_in_any_order_keep_the_law(kind):
    phases = (Phase.explicit, Phase.generate)  # the long run shrinks what it finds
    run_state_machine_as_test(machine(kind), settings=settings(max_examples=10, stateful_step_count=15, phases=phases))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEALED)
def test_accidents_and_verbs_in_any_order_keep_the_law_in_the_long_run(kind):
    run_state_machine_as_test(machine(kind), settings=settings.get_profile("machines"))
