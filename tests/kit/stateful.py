"""A state machine that drives a real dataset and the model side by side; they must never differ.

It appends (from Python and from files, with duplicates), replaces, deletes by match and by location, queries with
random conditions and orders, reads single data, closes and opens (seg with another compression), loses the index,
checks, fixes and repacks, archives and unarchives, renames archives, takes them away and offline, copies and moves
segments by hand, maintains with ages and migrates. It also kills operations, damages files as a crash does, and keeps
readers open during all this.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import ondisk
from kit import strategies
from kit.crashes import Killed, killed_at
from kit.model import MAINTAINED, Model, ModelRow, Status, same
from ondisk.config import DatasetConfig
from ondisk.dataset.append import AppendResult
from ondisk.dataset.auxiliary_files import CONFIG, SENTINEL
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.summaries import Summary
from ondisk.datum import Datum, from_microseconds, microseconds
from ondisk.errors import DataOffline, DatumNotFound, DuplicateDatum, NeedsCheck, SegmentMissing
from ondisk.formats import find
from ondisk.formats.diskqueue.blocks import END_MARK
from ondisk.index import INDEX
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.migrate import migrate
from ondisk.maintenance.states import Done, State
from ondisk.matcher import And, Expression
from ondisk.segments.dir import METADATA
from ondisk.step import DAY, LAST, days_ago, inner_of, place_of

_READERS = 3


def machine_for(config: DatasetConfig, base: type[DatasetMachine] | None = None) -> type[DatasetMachine]:
    """Return the state machine of one configuration, for `run_state_machine_as_test`.

    Args:
        config: of the dataset.
        base: a machine with more rules or checks than `DatasetMachine`.
    """
    return type(f"DatasetMachine_{config.format}_{config.step}", (base or DatasetMachine,), {"config": config})


class DatasetMachine(RuleBasedStateMachine):
    """Drives a dataset of `config`, which a subclass sets; see `machine_for`.

    A subclass may inspect the files in `check_files`.

    Attributes:
        path: the dataset.
        model: its expected content.
        dataset: the dataset, open except while `check_files` runs.
    """

    config: DatasetConfig

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="ondisk-"))
        self.path = self.parent / "dataset"
        self.model = Model(self.config)
        self.dataset: Dataset = ondisk.create(self.path, self.config)
        self.readers: list[tuple[Iterator[Datum], list[ModelRow]]] = []

    def teardown(self) -> None:
        self.readers.clear()
        try:
            self._close()
        finally:
            shutil.rmtree(self.parent)

    def check_files(self) -> None:
        """Check the files of the dataset; called each time after it was closed."""

    @rule(data=st.data(), batch_size=st.integers(1, 4) | st.just(1000))
    def append(self, data: st.DataObject, batch_size: int) -> None:
        """Append some data in batches, with duplicates of each other and of older data."""
        given = data.draw(st.lists(strategies.data(self.config), max_size=6))
        known = [row.given for row in self.model.rows]
        if known:
            given += data.draw(st.lists(st.sampled_from(known), max_size=2))
        given = self._taken(data.draw(st.permutations(given)))
        self._check_result(
            self.dataset.append(given, outcomes=True, batch_size=batch_size), self.model.append(given, batch_size)
        )

    @rule(data=st.data())
    def append_refused_data(self, data: st.DataObject) -> None:
        """Append two data: the first is refused, the second is stored."""
        refused = data.draw(strategies.refused_data(self.model.config))
        given = [refused, *self._taken([data.draw(strategies.data(self.config))])]
        expected = self.model.append(given)
        assert expected[0] == "refused"
        self._check_result(self.dataset.append(given, outcomes=True), expected)

    @precondition(lambda self: self.config.format != "blob")  # a file of blob does not contain its reftime
    @rule(data=st.data(), batch_size=st.integers(1, 4) | st.just(1000))
    def append_file(self, data: st.DataObject, batch_size: int) -> None:
        given = self._taken(data.draw(st.lists(strategies.data(self.config), min_size=1, max_size=6)))
        if not given:
            return
        content = self._file_of(given, data)
        result = self.dataset.append_file(io.BytesIO(content), self.config.format, outcomes=True, batch_size=batch_size)
        self._check_result(result, self.model.append(given, batch_size))
        assert result.damage == []
        assert result.notes == []
        # The data may have no field of `unique`.
        assert all("which `unique` names" in warning for warning in result.warnings)

    @rule(data=st.data(), limit=st.none() | st.integers(0, 5), with_data=st.booleans())
    def query(self, data: st.DataObject, limit: int | None, with_data: bool) -> None:
        match = data.draw(st.none() | self._conditions())
        sort = data.draw(st.none() | strategies.sort_orders(self.model.config.fields))
        found = list(self.dataset.query(match, sort=sort, limit=limit, with_data=with_data))
        _check_data(found, self.model.query(match, sort, limit), self.model.config, with_data=with_data)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), with_data=st.booleans())
    def query_by_equality(self, data: st.DataObject, with_data: bool) -> None:
        """Query values of one datum: all of its unique fields, or some of its fields."""
        row = data.draw(st.sampled_from(self.model.rows))
        there: dict[str, Any] = {"reftime": from_microseconds(row.reftime)}
        there |= {name: row.metadata[name] for name in row.fields}
        unique = [name for name in self.model.config.unique if name in there]
        names = data.draw(st.just(unique) | st.lists(st.sampled_from(list(there)), unique=True))
        equal = {name: there[name] for name in names}
        fields = self.model.fields
        match = And(tuple(fields[name] == value for name, value in equal.items()))
        found = list(self.dataset.query(**equal, with_data=with_data))
        _check_data(found, self.model.query(match), self.model.config, with_data=with_data)

    @rule(data=st.data())
    def summary(self, data: st.DataObject) -> None:
        match = data.draw(self._conditions())
        values = data.draw(st.sampled_from([None, 0, 1, 2, 20]))
        summary, expected = self.dataset.summary(match, values=values), self.model.summary(match, values)
        times = [None if time is None else microseconds(time) for time in (summary.begin, summary.end)]
        assert (summary.count, *times) == (expected.count, expected.begin, expected.end)
        assert summary.fields == expected.fields
        assert summary.size == sum(_size(datum) for datum in self.dataset.query(match, with_data=False))

    @rule(data=st.data())
    def delete_by_match(self, data: st.DataObject) -> None:
        match = data.draw(self._conditions(max_leaves=3))
        assert self.dataset.delete(match) == self.model.delete(match)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def delete_by_location(self, data: st.DataObject) -> None:
        """Delete some data by their locations, twice: the second time nothing is deleted."""
        there = list(zip(self.dataset.query(with_data=False), self.model.query(), strict=True))
        chosen = data.draw(st.lists(st.sampled_from(there), max_size=3, unique_by=lambda pair: id(pair[1])))
        locations = [datum.location for datum, _ in chosen if datum.location is not None]
        assert self.dataset.delete(locations) == self.model.remove([row for _, row in chosen]) == len(chosen)
        assert self.dataset.delete(locations) == 0
        for location in locations:
            with contextlib.suppress(DatumNotFound):
                raise AssertionError(f"a deleted datum was read: {self.dataset.read(location)!r}")

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        there = list(zip(self.dataset.query(with_data=False), self.model.query(), strict=True))
        datum, row = data.draw(st.sampled_from(there))
        assert datum.location is not None
        found = self.dataset.read(datum.location)
        assert found.location == datum.location
        _check_data([found], [row], self.model.config)

    @precondition(lambda self: self.model.rows and len(self.readers) < _READERS)
    @rule(data=st.data())
    def begin_to_read(self, data: st.DataObject) -> None:
        """Begin a query and leave it open: it must return the data of this moment, whatever follows."""
        match = data.draw(st.none() | self._conditions())
        reader, expected = self.dataset.query(match), self.model.query(match)
        _check_data(list(_first(reader)), expected[:1], self.model.config)
        self.readers.append((reader, expected[1:]))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def continue_to_read(self, data: st.DataObject) -> None:
        reader, expected = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        _check_data(list(reader), expected, self.model.config)

    @precondition(lambda self: not self.readers)
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        """Close and open; the compression of new segments of seg may change, unless each datum is encrypted."""
        self._close()
        if self.config.format == "seg" and self.config.encryption != "aes-256-gcm":
            self.model.config = self.model.config._replace(compression=data.draw(st.sampled_from(["lz4", "none"])))
        self._open()

    @precondition(lambda self: not self.readers and not self.model.lost)
    @rule(reopened=st.booleans())
    def lose_the_index(self, reopened: bool) -> None:
        """Remove the index: its data are unknown until a fix, and none of their bytes may be overwritten."""
        if self.model.repeats_archived() or self._keeps_generations():
            return
        if reopened:
            self._close()
        for name in (INDEX, f"{INDEX}-wal", f"{INDEX}-shm"):
            (self.path / name).unlink()
        self.kept = self._segments()
        if reopened:
            self._open()
        self.model.distrust(lost=True)

    @precondition(lambda self: not self.model.lost)
    @rule()
    def distrust_the_index(self) -> None:
        """Create the sentinel: deleted data that were not repacked may be data that the index has lost."""
        if self.model.repeats_archived() or self._keeps_generations():
            return
        (self.path / SENTINEL).touch()
        self.kept = self._segments()
        self.model.distrust(lost=False)

    @rule(accurate=st.booleans(), max_duration=st.none() | st.sampled_from([0.0, 60.0]))
    def check(self, accurate: bool, max_duration: float | None) -> None:
        self._check_states(accurate=accurate, max_duration=max_duration)

    @rule()
    def fix(self) -> None:
        """Fix, twice: the second time there is nothing to do."""
        self.dataset.fix()
        self.model.fix()
        self._check_states()
        self._check_content()
        report = self.dataset.fix()
        assert not [each for each in report if isinstance(each, Done) and each.action]
        self._check_states()
        self._check_content()

    @rule()
    def repack(self) -> None:
        """Repack, twice: the second time there is nothing to do. Repack is refused while the index is not trusted."""
        if self.model.lost:
            before = self._segments()
            with contextlib.suppress(NeedsCheck):
                raise AssertionError(f"it was repacked: {self.dataset.repack()}")
            assert self._segments() == before
            return
        self.dataset.repack()
        self.model.repack()
        self._check_states(accurate=True)
        self._check_content()
        before = self._segments()
        self.dataset.repack()
        assert self._segments() == before

    @precondition(lambda self: not self.model.lost and self.model.rows and self.config.format != "blob")
    @rule(data=st.data())
    def leave_a_torn_append(self, data: st.DataObject) -> None:
        """Append part of a datum to a file, as a crash leaves it; a repack removes it."""
        row = data.draw(st.sampled_from(self.model.rows))
        name = self.model.segment_of(row)
        if row.place not in MAINTAINED:
            return
        tail = find(self.config.format)(self.model.config).encode([row.given]).payloads[0]
        with (self.path / name).open("ab") as file:
            file.write(tail[: data.draw(st.integers(1, len(tail)))])
        states = {each.segment: each.state for each in self.dataset.check(accurate=True)}
        assert states == self.model.states() | {name: State.DIRTY}
        self.dataset.repack()
        self.model.repack()
        self._check_states()
        self._check_content()

    @precondition(lambda self: not self.model.lost and not self.readers and self.model.laid)
    @rule(data=st.data(), verb=st.sampled_from(["fix", "repack"]))
    def remove_a_segment(self, data: st.DataObject, verb: str) -> None:
        """Remove a file: its data are lost, and a fix or a repack removes them from the index."""
        name = data.draw(st.sampled_from(sorted(self.model.laid)))
        if self._has_twin(name):
            return
        deleted = {inner_of(each) for each, state in self.model.states().items() if state is State.DELETED}
        if inner_of(name) in deleted:  # it stays while it may have what is missing
            return
        if self.config.format == "blob":
            shutil.rmtree(self.path / name)
        else:
            (self.path / name).unlink()
        (missing,) = (each for each in self.dataset.check() if each.segment == name)
        assert missing.state == State.MISSING
        self.model.drop(name)
        if verb == "fix":
            self.dataset.fix()
        else:
            self.dataset.repack()
            self.model.repack()
        self._check_states(accurate=True)
        self._check_content()

    @precondition(lambda self: self._movable(archived=False))
    @rule(data=st.data())
    def archive(self, data: st.DataObject) -> None:
        """Archive a segment; refused while the index is not trusted."""
        self._move("archive", data.draw(st.sampled_from(self._movable(archived=False))))

    @precondition(lambda self: self._movable(archived=True))
    @rule(data=st.data())
    def unarchive(self, data: st.DataObject) -> None:
        """Move a segment back; refused while the index is not trusted."""
        self._move("unarchive", data.draw(st.sampled_from(self._movable(archived=True))))

    def _move(self, verb: str, name: str) -> None:
        if self.model.lost:
            with contextlib.suppress(NeedsCheck):
                raise AssertionError(f"it was moved: {getattr(self.dataset, verb)(name)}")
        else:
            getattr(self.dataset, verb)(name)
            getattr(self.model, verb)(name)
        self._check_states(accurate=True)
        self._check_content()

    @precondition(lambda self: any(name.startswith(LAST) for name in self.model.laid))
    @rule(name=st.sampled_from(["old", "zebra"]), by_hand=st.booleans())
    def rename_the_archive(self, name: str, by_hand: bool) -> None:
        """Rename the archive; the next archived segment begins a new one. Queries go on, also after `mv`."""
        archive = self.path / ".archive" / name
        if archive.exists() or (by_hand and self.model.lost):
            return
        if by_hand:
            (self.path / LAST).rename(archive)
            self._check_content()
            self.dataset.fix()
        else:
            self.dataset.rename_archive("last", name)
        self.model.rename_archive(name)
        self._check_states()
        self._check_content()

    @precondition(lambda self: not self.model.lost and any(row.place for row in self.model.rows))
    @rule(data=st.data(), fixes=st.booleans())
    def take_a_place_away(self, data: st.DataObject, fixes: bool) -> None:
        """Move a folder of the archive away, and back: the index answers without data, and nothing is forgotten."""
        place, there, whole = self._taken_away(data)
        with contextlib.suppress(SegmentMissing):
            raise AssertionError(f"it was read: {list(self.dataset.query())}")
        if fixes:
            assert [each.segment for each in self.dataset.fix() if each.state & State.MISSING] == [place.rstrip("/")]
        assert self.dataset.summary(values=None) == whole
        there.rename(self.path / place)
        self._check_states()
        self._check_content()

    @precondition(lambda self: not self.model.lost and any(row.place not in MAINTAINED for row in self.model.rows))
    @rule(data=st.data(), is_away=st.booleans())
    def take_a_place_offline(self, data: st.DataObject, is_away: bool) -> None:
        """Say that a folder is offline: queries warn, and leave its data out, whether it is there or not."""
        others = sorted({row.place for row in self.model.rows if row.place not in MAINTAINED})
        place = data.draw(st.sampled_from(others))
        self.dataset.set_offline(place.split("/")[1])
        there, whole = self.parent / "offline", self.dataset.summary(values=None)
        if is_away:
            (self.path / place).rename(there)
        expected = {name: state for name, state in self.model.states().items() if place_of(name) != place}
        assert {each.segment: each.state for each in self.dataset.check()} == expected
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = list(self.dataset.query())
        assert [each.category for each in warned] == [DataOffline]
        _check_data(found, [row for row in self.model.query() if row.place != place], self.model.config)
        assert self.dataset.summary(values=None) == whole
        if is_away:
            there.rename(self.path / place)
        self.dataset.set_online(place.split("/")[1])
        self._check_states()
        self._check_content()

    @precondition(lambda self: not self.model.lost and self.model.rows)
    @rule(data=st.data(), moves=st.booleans())
    def copy_a_segment_by_hand(self, data: st.DataObject, moves: bool) -> None:
        """Copy a segment to another folder, as people do: it counts once, and goes on demand. Or move it, and back."""
        name = self.model.segment_of(data.draw(st.sampled_from(self.model.rows)))
        others = [each for each in ("", *self._places()) if not (self.path / each / inner_of(name)).exists()]
        if not others:
            return
        copy = self.path / (data.draw(st.sampled_from(others)) + inner_of(name))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if moves and not self.readers:  # for a reader of an older state, nobody keeps what people move: it may raise
            (self.path / name).rename(copy)
            self.dataset.fix()
            self._check_content()
            copy.rename(self.path / name)
            self.dataset.fix()
        else:
            (shutil.copytree if copy.suffix == ".blob" else shutil.copy2)(self.path / name, copy)
            self.dataset.fix()
            self._check_content()
            assert copy.exists()
            self.dataset.repack(second_copies=True)
            self.model.repack()
            assert not copy.exists()
        self._check_states(accurate=True)
        self._check_content()

    def _taken_away(self, data: st.DataObject) -> tuple[str, Path, Summary]:
        """Move the folder of a place away; return the place, where its folder is, and the summary before."""
        place = data.draw(st.sampled_from(sorted({row.place for row in self.model.rows if row.place})))
        whole = self.dataset.summary(values=None)
        return place, (self.path / place).rename(self.parent / "away"), whole

    def _places(self) -> list[str]:
        return sorted(f".archive/{each.name}/" for each in self.path.glob(".archive/*/"))

    @precondition(lambda self: not self.readers)
    @rule(data=st.data(), max_duration=st.none() | st.just(0.0))
    def maintain(self, data: st.DataObject, max_duration: float | None) -> None:
        """Maintain the dataset, with ages at which existing segments may be archived or deleted."""
        ages = {name: data.draw(st.none() | st.sampled_from(self._ages())) for name in ("archive_age", "delete_age")}
        if None not in ages.values() and ages["delete_age"] <= ages["archive_age"]:  # type: ignore[operator]
            ages["delete_age"] = None
        self._close()
        (self.path / CONFIG).write_text(self.model.config._replace(**ages).to_toml())  # type: ignore[arg-type]
        done = maintain(self.path, max_duration=max_duration)
        assert done.error is None
        assert done.left is not None
        if done.left.held:  # half of all segments are too old at once
            with ondisk.open(self.path) as dataset:
                assert {each.action for each in dataset.repack(by_age=True)} >= {"delete"}
                assert dataset.check().is_clean
        else:
            assert done.left.is_clean
        self.model.fix()
        self.model.repack()
        self.model.age(*(None if age is None else days_ago(age) for age in ages.values()))
        self._open()
        self._check_states(accurate=True)
        self._check_content()

    @precondition(lambda self: not self.readers and not self.model.lost)
    @rule(data=st.data())
    def migrate(self, data: st.DataObject) -> None:
        """Declare other indexes and other fields: fewer, or again some that were dropped."""
        config = self.config
        kept = {*config.unique, config.version_field}
        fields = config.fields
        if config.format != "jsonl":  # there, undeclared keys are data
            fields = {name: kind for name, kind in fields.items() if name in kept or data.draw(st.booleans())}
        index = data.draw(st.lists(st.sampled_from(["reftime", *fields]), unique=True, max_size=3))
        self._close()
        self._migrate(self.model.config._replace(fields=fields, index=tuple(index)))
        self._check_states(accurate=True)
        self._check_content()

    @precondition(lambda self: not self.readers and not self.model.lost and self.model.rows)
    @rule(data=st.data())
    def migrate_to_a_violated_unique(self, data: st.DataObject) -> None:
        """Declare a `unique` in which some data are equal: the migration is refused, and nothing is changed."""
        name = data.draw(st.sampled_from(["reftime", *self.model.config.fields]))
        values = [row.value_of(name) for row in self.model.rows]
        if len({*values}) == len(values):
            return
        self._close()
        (self.path / CONFIG).write_text(self.model.config._replace(unique=(name,)).to_toml())
        with contextlib.suppress(DuplicateDatum):
            raise AssertionError(f"it was migrated: {migrate(self.path)}")
        self._open()
        self._check_states(accurate=True)
        self._check_content()

    @precondition(lambda self: not self.readers)
    @rule(data=st.data(), verb=st.sampled_from(["append", "delete", "archive", "unarchive", "repack", "migrate"]))
    def be_killed(self, data: st.DataObject, verb: str) -> None:
        """Kill an operation: no data are lost or doubled, and after a repetition all is as without the kill."""
        name = ""
        if verb in ("archive", "unarchive"):
            names = self._movable(archived=verb == "unarchive")
            if not names:
                return
            name = data.draw(st.sampled_from(names))
        if self.model.lost:
            verb = "fix"
        given = data.draw(st.lists(strategies.data(self.config), min_size=1, max_size=4)) if verb == "append" else []
        match = data.draw(self._conditions(max_leaves=2)) if verb == "delete" else ""
        fewer = self.model.config._replace(index=data.draw(st.sampled_from([(), ("reftime",)])))
        act: dict[str, Callable[[], object]] = {
            "append": lambda: self.dataset.append(given),
            "delete": lambda: self.dataset.delete(match),
            "archive": lambda: self.dataset.archive(name),
            "unarchive": lambda: self.dataset.unarchive(name),
            "repack": self.dataset.repack,
            "fix": self.dataset.fix,
            "migrate": lambda: self._migrate(fewer),
        }
        before = self._last_change()
        if verb == "migrate":
            self._close()
        with contextlib.suppress(Killed), killed_at(data.draw(st.integers(0, 60))):
            act[verb]()
        self.dataset.close()
        if verb == "migrate":
            self._migrate(fewer)
        else:
            self._open()
        if verb == "append":
            if self._last_change() == before:
                self.dataset.append(given)
            self.model.append(given)
        elif verb == "delete":
            left = self.dataset.summary(match).count
            assert left in (0, self.model.summary(match).count)
            assert self.dataset.delete(match) == left
            self.model.delete(match)
        elif verb == "fix":
            self.dataset.fix()
            self.model.fix()
        elif verb in ("archive", "unarchive"):
            stands = {each.location.segment for each in self.dataset.query(with_data=False) if each.location}
            if name in stands:
                act[verb]()
            getattr(self.model, verb)(name)
        self._check_content()
        self.dataset.repack()
        self.model.repack()
        self._check_states(accurate=True)
        self._check_content()

    @invariant()
    def the_sentinel_exists_only_while_the_index_is_not_trusted(self) -> None:
        assert self.dataset.needs_check is self.model.lost
        assert not (self.path / SENTINEL).exists() or self.model.lost

    @invariant()
    def bytes_stay_while_the_index_is_not_trusted(self) -> None:
        if self.model.lost:
            now = self._segments()
            assert all(now[path].startswith(content) for path, content in self.kept.items())

    def _keeps_generations(self) -> bool:
        """Return whether old generations wait for readers: a fix of an untrusted index gives them back."""
        return any(path.name.startswith(".") and path.suffix[1:].isdigit() for path in self.path.rglob(".*"))

    def _has_twin(self, name: str) -> bool:
        """Return whether a segment of the same name elsewhere begins with the same bytes.

        If one of them goes, it may have been moved over the other.
        """
        inner, file = inner_of(name), METADATA if self.config.format == "blob" else ""
        begin = 8 if self.config.format == "seg" else 0  # the bytes before it say how many frames there are
        mine = (self.path / name / file).read_bytes()[begin:]
        places = (place / inner for place in (self.path, *self.path.glob(".archive/*")))
        others = (place / file for place in places if place != self.path / name and place.exists())
        return any(each.read_bytes()[begin:].startswith(mine) for each in others)

    def _check_states(self, *, accurate: bool = False, max_duration: float | None = None) -> None:
        report = self.dataset.check(accurate, max_duration=max_duration)
        found, expected = {each.segment: each.state for each in report}, self.model.states()
        names = found.keys() | expected.keys()
        assert found == expected, {
            name: (found.get(name), expected.get(name)) for name in names if found.get(name) != expected.get(name)
        }

    def _taken(self, given: list[Datum]) -> list[Datum]:
        """Return the data without those that an index that is not trusted cannot tell from lost ones, or refuses.

        It refuses those of seg for segments that are sealed, and all that are encrypted with a keystream that may have
        been used before.
        """
        given = [each for each in given if not self.model.repeats_lost(each)]
        if self.config.format != "seg" or not self.model.lost:
            return given
        is_stream = self.config.encryption == "aes-128-ctr"
        sealed = {path for path, content in self._segments().items() if is_stream or content.endswith(END_MARK)}
        stem = self.config.step.stem
        return [each for each in given if self.path / f"{stem(microseconds(each.reftime))}.seg" not in sealed]

    def _movable(self, *, archived: bool) -> list[str]:
        """Return the names of the segments that can be archived, or those that can be unarchived."""
        return sorted({self.model.segment_of(row) for row in self.model.rows if bool(row.place) == archived})

    def _ages(self) -> list[int | None]:
        """Return ages of segments, in days."""
        step, today = self.config.step, days_ago(0)
        intervals = [step.interval(step.stem(row.reftime)) for row in self.model.rows]
        return [(today - each.end) // DAY for each in intervals if each is not None and each.end < today] or [None]

    def _migrate(self, config: DatasetConfig) -> None:
        """Migrate the closed dataset, and open it."""
        (self.path / CONFIG).write_text(config.to_toml())
        migrate(self.path)
        self.model.migrate(config)
        self._open()

    def _last_change(self) -> int:
        with self.dataset._access.current().index.snapshot() as snapshot:
            return int(snapshot.dataset()["seq"])

    def _conditions(self, max_leaves: int = 8) -> st.SearchStrategy[Expression]:
        config = self.model.config
        undeclared = strategies.UNDECLARED if config.format in ("seg", "blob") else ()
        return strategies.expressions(config.fields, max_leaves, undeclared)

    def _check_content(self) -> None:
        _check_data(list(self.dataset.query()), self.model.query(), self.model.config)

    def _open(self) -> None:
        (self.path / CONFIG).write_text(self.model.config.to_toml())
        self.dataset = ondisk.open(self.path)

    def _close(self) -> None:
        self.dataset.close()
        self.check_files()

    def _segments(self) -> dict[Path, bytes]:
        """Return the content of all files of segments; for seg without the frame count, which grows with a segment."""
        files = f"*.{self.config.format}/[0-9]*" if self.config.format == "blob" else f"*.{self.config.format}"
        contents = {path: path.read_bytes() for path in self.path.glob(f"[0-9]*/{files}")}
        if self.config.format == "seg":
            return {path: content[:4] + content[8:] for path, content in contents.items()}
        return contents

    def _file_of(self, given: list[Datum], data: st.DataObject) -> bytes:
        """Return a file of the format, laid in two appends; bytes that are optional at its end may be missing.

        It is not encrypted.
        """
        plain = {"version": 2, "encryption": "none"} if self.config.encryption != "none" else {}
        compression = data.draw(st.sampled_from(["lz4", "none"]))
        config = self.model.config._replace(compression=compression, **plain)  # type: ignore[arg-type]
        format = find(config.format)(config)
        payloads = format.encode(given).payloads
        counted, cut = data.draw(st.booleans()), data.draw(st.integers(0, len(payloads)))
        laid = format.begin()
        content = laid.content
        for piece in (payloads[:cut], payloads[cut:]):
            laid = format.lay(piece, laid.end)
            content += laid.content
            patch = format.patch(laid.end)
            if patch is not None and counted:
                after = patch.position + len(patch.content)
                content = content[: patch.position] + patch.content + content[after:]
        if laid.end.compressed:
            return content + data.draw(st.sampled_from([b"", END_MARK]))
        return content.removesuffix(format.padding) if data.draw(st.booleans()) else content

    def _check_result(self, result: AppendResult, expected: list[Status]) -> None:
        assert result.outcomes is not None
        statuses = [outcome.status for outcome in result.outcomes]
        assert statuses == expected, f"{statuses} instead of {expected}"
        counts = {"imported": result.imported, "duplicate": result.duplicates, "replaced": result.replaced}
        assert Counter(expected) == Counter({**counts, "refused": result.refused})


def _size(datum: Datum) -> int:
    assert datum.location is not None
    return datum.location.size


def _first(reader: Iterator[Datum]) -> Iterator[Datum]:
    with contextlib.suppress(StopIteration):
        yield next(reader)


def _check_data(found: list[Datum], expected: list[ModelRow], config: DatasetConfig, *, with_data: bool = True) -> None:
    """Compare the data of a query with rows of the model, in order."""
    wanted = [row.datum() for row in expected]
    if not with_data:
        wanted = [Datum(each.reftime, _declared(each.metadata, config)) for each in wanted]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.reftime == other.reftime
        assert same(dict(one.metadata), other.metadata)
        assert same(one.data, other.data)
        assert one.location is not None


def _declared(metadata: Any, config: DatasetConfig) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name in config.fields}
