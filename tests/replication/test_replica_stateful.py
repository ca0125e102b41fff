"""A replica has the data of its source, whatever happens to both of them, in any order."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from kit import EVERY_TYPE, DatasetMachine, machine_for
from kit.crashes import Killed, killed_at
from replicas import replica_of

import ondisk
from ondisk import Dataset, DatasetConfig, Datum
from ondisk.errors import StateError, TokenExpired, TokenForeign
from ondisk.maintenance.states import State
from ondisk.replication import Replica
from ondisk.replication.compare import verify
from ondisk.replication.heal import heal
from ondisk.replication.reconcile import reconcile

CONFIGS: list[dict[str, Any]] = [
    {"format": "vm2", "step": "daily", "unique": ["reftime", "area", "product"], "replace": "yes",
     "fields": {"area": "text", "product": "text"}},
    {"format": "jsonl", "step": "monthly", "unique": ["reftime", "station"], "replace": "newer",
     "version_field": "level", "fields": {"station": "integer", "level": "real"}},
    {"format": "seg", "step": "weekly", "fields": EVERY_TYPE},
    {"format": "seg", "step": "daily", "compression": "none", "unique": ["reftime", "product"],
     "replace": "yes", "fields": EVERY_TYPE},
    {"format": "blob", "step": "daily", "unique": ["station"], "replace": "yes", "fields": EVERY_TYPE},
]  # fmt: skip


def data_of(dataset: Dataset, fields: Mapping[str, Any] | None = None) -> dict[int, str]:
    """Return all data by their numbers; without metadata, if other fields are declared."""
    changes = dataset.changes(max_bytes=2**40).changes
    is_same = fields is None or fields == dataset.config.fields
    return {each.seq: shown(each.datum, is_same) for each in changes if each.datum is not None}


def keys_of(dataset: Dataset) -> dict[int, str]:
    """Return the values of `unique` of all data by their numbers; empty if there is no `unique`."""
    fields = dataset.config.unique
    data = {each.seq: each.datum for each in dataset.changes(max_bytes=2**40).changes if each.datum is not None}
    return {seq: repr([each.reftime if name == "reftime" else each.metadata.get(name) for name in fields])
            if fields else "" for seq, each in data.items()}  # fmt: skip


def shown(datum: Datum, with_metadata: bool = True) -> str:
    return repr((datum.reftime, sorted(datum.metadata.items(), key=str) if with_metadata else None, datum.data))


def held(path: Path) -> Counter[str]:
    """Return all data of a dataset, without metadata."""
    with ondisk.open(path, read_only=True) as dataset:
        return Counter(shown(each, with_metadata=False) for each in dataset.query())


class Changed:
    """A byte of a file that changes on disk, for the length of a block: nobody writes it, so its mtime stays."""

    def __init__(self, file: Path, position: int, bit: int) -> None:
        self._file = file.open("r+b")
        self._position = position % max(1, file.stat().st_size)
        self._bit = 1 << bit

    def __enter__(self) -> None:
        self._flip()

    def __exit__(self, *_: object) -> None:
        with self._file:  # it may be in quarantine
            self._flip()

    def _flip(self) -> None:
        descriptor = self._file.fileno()
        found = os.fstat(descriptor)
        if byte := os.pread(descriptor, 1, self._position):
            os.pwrite(descriptor, bytes([byte[0] ^ self._bit]), self._position)
        os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))


class ReplicatedMachine(DatasetMachine):
    """Pulls the dataset of the state machine into a replica, some changes at a time, and maintains both.

    Bytes of both change on disk. What one of both has a good copy of is never lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copy = self.parent / "replica"

    @precondition(lambda self: not self.model.lost)
    @rule(max_bytes=st.sampled_from([1, 200, 1024 * 1024]))
    def pull(self, max_bytes: int) -> None:
        self._pull(max_bytes)
        self._compare()

    @precondition(lambda self: not self.model.lost)
    @rule(max_bytes=st.sampled_from([1, 1024 * 1024]), call=st.integers(0, 80))
    def kill_a_pull(self, max_bytes: int, call: int) -> None:
        if not self.copy.exists():
            return
        expected = contextlib.suppress(Killed, TokenExpired, TokenForeign)
        with Replica.open(self.copy, self.path) as replica, expected, killed_at(call):
            replica.pull(max_bytes)
        with ondisk.open(self.copy) as copy:
            expected = {State.OK, State.DIRTY, State.DELETED}
            if copy.config.format == "blob":  # files of a killed append are there, above the highest number it may use
                expected.add(State.UNALIGNED), expected.add(State.DIRTY | State.UNALIGNED)
            assert {each.state for each in copy.check(accurate=True)} <= expected

    @rule(data=st.data(), verb=st.sampled_from(["repack", "fix", "archive", "unarchive"]))
    def maintain_the_replica(self, data: st.DataObject, verb: str) -> None:
        if not self.copy.exists():
            return
        with ondisk.open(self.copy) as copy:
            before = data_of(copy)
            if verb in ("repack", "fix"):
                getattr(copy, verb)()
            else:
                place = ".archive/last/" if verb == "unarchive" else ""
                names = {each.location.segment for each in copy.query(with_data=False) if each.location}
                names = {name for name in names if name.startswith(".archive") == bool(place)}
                if not names:
                    return
                getattr(copy, verb)(data.draw(st.sampled_from(sorted(names))))
            after = data_of(copy)
            gone = before.keys() - after.keys()
            assert after == {seq: each for seq, each in before.items() if seq not in gone}
            if gone:
                raise AssertionError(gone)
            with pytest.raises(StateError, match="is a replica"):
                copy.delete("")

    @precondition(lambda self: not self.model.lost and self.model.rows)
    @rule(data=st.data(), position=st.integers(0, 10_000), bit=st.integers(0, 7), call=st.none() | st.integers(0, 150))
    def change_a_byte_of_the_source(self, data: st.DataObject, position: int, bit: int, call: int | None) -> None:
        """The replica keeps what it has, and the source gets it back, if it has only checksums of segments."""
        self._pull(1024 * 1024)
        before = held(self.copy)
        with Changed(self._file_of_a_datum(data, self.path), position, bit):
            with Replica.open(self.copy, self.path) as replica:
                assert replica.pull().stored == 0
            self._again(reconcile, call)
            with Replica.open(self.copy, self.path) as replica:
                found = verify(replica)
            assert (found.differs, held(self.copy)) == (0, before)
            if self.config.format in ("vm2", "jsonl") and not found.lost:  # the model would not know what returns
                healed = self._again(heal, call)
                with Replica.open(self.copy, self.path) as replica:
                    assert verify(replica).unreadable == healed.left
                if healed.left:  # the segment has a datum that the replica cannot keep: one in an archive has its key
                    assert found.missing
                else:
                    self._check_states(accurate=True)
                    self._check_content()
                    self.repack()  # blank lines may be where bytes of deleted data had changed
        self._pull(1024 * 1024)
        self._compare()

    @precondition(lambda self: not self.model.lost and self.model.rows)
    @rule(data=st.data(), position=st.integers(0, 10_000), bit=st.integers(0, 7), call=st.none() | st.integers(0, 150))
    def change_a_byte_of_the_replica(self, data: st.DataObject, position: int, bit: int, call: int | None) -> None:
        """The source has good copies: the replica is mended, or says what it cannot mend."""
        self._pull(1024 * 1024)
        before = held(self.copy)
        with Changed(self._file_of_a_datum(data, self.copy), position, bit):
            self._again(reconcile, call)
            with Replica.open(self.copy, self.path) as replica:
                found = verify(replica)
            assert found.differs + found.extra == 0
        # A datum whose key another one had may come, if that is in an archive of the replica now.
        assert not before - held(self.copy)
        with ondisk.open(self.copy) as copy:
            is_damaged = any(State.CORRUPTED in each.state for each in copy.check(accurate=True))
        if is_damaged:  # its damaged datum was fetched again, and its segment copied: the old bytes are still in it
            shutil.rmtree(self.copy)
        self._check_content()
        self._pull(1024 * 1024)
        self._compare()

    def teardown(self) -> None:
        try:
            if not self.model.lost:
                self._pull(1024 * 1024)
                self._compare()
        finally:
            super().teardown()

    def _pull(self, max_bytes: int) -> None:
        try:
            with replica_of(self.copy, self.path) as replica:
                pulled = replica.pull(max_bytes)
        except (TokenForeign, TokenExpired):  # an index was rebuilt, or an archive has come from elsewhere
            self._reconcile()
            with replica_of(self.copy, self.path) as replica:
                pulled = replica.pull(max_bytes)
        assert pulled.lag == (0, 0)

    def _reconcile(self) -> None:
        """Reconcile, and look whether a dry run promised it and nothing is gone; begin again if data are left over."""
        before = held(self.copy)
        with Replica.open(self.copy, self.path) as replica:
            promised = reconcile(replica, yes=False)
            assert held(self.copy) == before
            done = reconcile(replica, yes=True)
        for name in ("mode", "fetched", "renumbered", "deleted", "kept", "extra", "missing"):
            assert getattr(promised, name) == getattr(done, name), name
        assert (before - held(self.copy)).total() <= done.replaced + done.deleted
        if done.extra:
            shutil.rmtree(self.copy)

    def _again(self, act: Callable[..., Any], call: int | None) -> Any:
        """Reconcile or heal, and before that kill it at a call; return what the second one has done."""
        if call is not None:
            with Replica.open(self.copy, self.path) as replica, contextlib.suppress(Killed), killed_at(call):
                act(replica, yes=True)
        with Replica.open(self.copy, self.path) as replica:
            return act(replica, yes=True)

    def _file_of_a_datum(self, data: st.DataObject, path: Path) -> Path:
        """Return a file of the dataset at a path that contains data."""
        with ondisk.open(path, read_only=True) as dataset:
            locations = [each.location for each in dataset.query(with_data=False) if each.location is not None]
        location = data.draw(st.sampled_from(locations))
        file = path / location.segment
        return file / f"{location.offset:06}.blob" if file.is_dir() else file

    def _compare(self) -> None:
        with ondisk.open(self.copy) as copy:
            mine, theirs = data_of(copy, self.dataset.config.fields), data_of(self.dataset, copy.config.fields)
            kept = mine.keys() - theirs.keys()
            assert {seq: mine.get(seq) for seq in theirs} == theirs
            assert kept <= self._forgotten(), "the source has deleted them"
            assert {each.state for each in copy.check(accurate=True)} <= {State.OK, State.DIRTY, State.DELETED}
            assert sorted(map(shown, copy.query())) == sorted(data_of(copy).values())

    def _forgotten(self) -> set[int]:
        """Return the data that the source has lost, or removed because of their age."""
        with self.dataset._access.current().index.snapshot() as snapshot:
            return {seq for (seq,) in snapshot.fetch("SELECT datum FROM deletion WHERE forgotten > 0")}


def machine(values: dict[str, Any]) -> type[DatasetMachine]:
    return machine_for(DatasetConfig.from_mapping(values), ReplicatedMachine)


@pytest.mark.parametrize("values", CONFIGS, ids=lambda values: values["format"])
def test_a_replica_has_the_data_of_its_source(values):
    run_state_machine_as_test(machine(values), settings=settings(max_examples=5, stateful_step_count=20))


@pytest.mark.slow
@pytest.mark.parametrize("values", CONFIGS, ids=lambda values: values["format"])
def test_a_replica_has_the_data_of_its_source_in_the_long_run(values):
    run_state_machine_as_test(machine(values), settings=settings.get_profile("machines"))
