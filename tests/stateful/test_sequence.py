"""ondisk and Beats take turns in one queue: no datum is lost, none comes back, and nothing unread changes."""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from drawn import up_to
from formats.diskqueue import segments
from formats.diskqueue.beats_queue import Beat
from formats.diskqueue.segments import Event
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.datum import microseconds
from ondisk.maintenance.states import State
from ondisk.queue.consumer_position import is_unread, position

T = datetime(2026, 11, 20, tzinfo=UTC)
LAST = ".archive/last"


class QueueMachine(RuleBasedStateMachine):
    """What is in the files decides: ondisk must return that, without what was deleted."""

    @initialize(
        compression=st.sampled_from(["none", "lz4"]), size=st.sampled_from([300, 700]), adopts=st.booleans(),
        unique=st.booleans(),
    )  # fmt: skip
    def begin(self, compression: str, size: int, adopts: bool, unique: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ondisk-"))
        self.path = self.folder / "queue"
        self.number = 0
        self.deleted: set[int] = set()
        config: dict[str, Any] = {"fields": {"n": "integer"}, "compression": compression, "segment_size": size}
        config["unique"] = ["n"] if unique else []
        if adopts:
            with Beat(self.path, segment_size=400) as beat:
                beat.publish(*self.events(7))
            assert ondisk.adopt(self.path, config).lost == 0
            self.dataset = ondisk.open(self.path)
        else:
            self.dataset = ondisk.create(self.path, {"format": "seg", "step": "sequence", **config})

    def teardown(self) -> None:
        if hasattr(self, "dataset"):
            self.dataset.close()
            shutil.rmtree(self.folder)

    def data(self, count: int) -> list[Datum]:
        self.number += count
        return [
            Datum(T + timedelta(minutes=(37 * n) % 1440), {"n": n}, {"text": "x" * (n % 40)})
            for n in range(self.number - count, self.number)
        ]

    def events(self, count: int) -> list[Event]:
        return [Event(1000 * microseconds(each.reftime), 0, each.metadata, each.data) for each in self.data(count)]

    def on_disk(self, folder: Path) -> list[int]:
        files = [each for each in folder.glob("*.seg") if each.name[0].isdigit()]
        return [event.meta["n"] for each in files for event in segments.read(each.read_bytes()).events]

    def unread(self) -> dict[str, bytes]:
        at = position(self.dataset._access.directory)
        return {each.name: each.read_bytes() for each in self.path.glob("*.seg") if is_unread(each.name, at)}

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        assert self.dataset.append(self.data(count)).imported == count

    @rule(publish=st.integers(0, 9), ack=st.integers(0, 15), dies=st.booleans(), reopens=st.booleans())
    def let_beats_run(self, publish: int, ack: int, dies: bool, reopens: bool) -> None:
        if reopens:
            self.dataset.close()
        plain = all(segments.read(each.read_bytes()).header.options == 0 for each in self.path.glob("*.seg"))
        beat = Beat(self.path, segment_size=400)
        beat.publish(*self.events(publish))
        if plain:  # this Beat reads no LZ4
            beat.acknowledge(min(ack, beat.pending()))
        if dies and publish and not (plain and ack):
            beat.tear(3)
        else:
            beat.close()
        if reopens:
            self.dataset = ondisk.open(self.path)
        before = self.unread()
        assert self.dataset.fix().lost == 0
        assert self.unread() == before

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        there = sorted(datum.metadata["n"] for datum in self.dataset.query(with_data=False))
        if there:
            n = data.draw(st.sampled_from(there))
            assert self.dataset.delete(f"n: {n}") == 1
            self.deleted.add(n)

    @rule()
    def repack(self) -> None:
        before = self.unread()
        self.dataset.repack()
        assert self.unread() == before
        report = self.dataset.check()
        assert all(each.held for each in report.findings), report.findings

    @rule(data=st.data())
    def archive(self, data: st.DataObject) -> None:
        at = position(self.dataset._access.directory)
        report = self.dataset.check()
        bad = State.DELETED | State.UNALIGNED | State.MISSING | State.CORRUPTED
        names = [each.segment for each in report if not each.state & bad and not each.segment.startswith(".")]
        names = [name for name in names if not is_unread(name, at) and (self.path / name).exists()]
        if names:
            self.dataset.archive(data.draw(st.sampled_from(names)))

    @rule()
    def forget_the_consumer(self) -> None:
        (self.path / "state.dat").unlink(missing_ok=True)

    @rule()
    def lose_the_index(self) -> None:
        self.dataset.close()
        lose_index(self.path)
        there = {*self.on_disk(self.path), *self.on_disk(self.path / LAST)}
        self.dataset = ondisk.open(self.path)
        assert self.dataset.fix().lost == 0
        back = {datum.metadata["n"] for datum in self.dataset.query(with_data=False)} & self.deleted
        assert back <= there
        self.deleted -= back

    @invariant()
    def what_is_in_the_files_is_in_the_dataset(self) -> None:
        if not hasattr(self, "dataset"):
            return
        expected = [*self.on_disk(self.path), *self.on_disk(self.path / LAST)]
        found = sorted(datum.metadata["n"] for datum in self.dataset.query())
        assert found == sorted({*expected} - self.deleted)
        report = self.dataset.check(accurate=True)
        # Of a segment whose only event is torn, nothing can be read, and a check says so.
        torn = {each.name for each in self.path.glob("*.seg") if not segments.read(each.read_bytes()).events}
        bad = State.CORRUPTED | State.MISSING | State.UNALIGNED
        assert not any(each.state & bad for each in report if each.segment not in torn), report


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    settings.get_profile("ci"), max_examples=up_to(15), stateful_step_count=12, phases=[Phase.generate]
)
