"""Inspection: compare the segments that the index knows with those on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product

from ondisk import step
from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.place_checks import away_in, missing, unknown_in, unread_places
from ondisk.dataset.segment_layout import Usage, layout_of
from ondisk.errors import IndexCorrupt, InvalidInput, StorageError, command, counted
from ondisk.filesystem import Directory, Entry
from ondisk.formats import of_extension
from ondisk.index import Copies, Segment, Snapshot, segment_rows
from ondisk.maintenance.ages import AgeLimits, Ages, kept
from ondisk.maintenance.diagnosis import Circumstances, Known, diagnose
from ondisk.maintenance.observe import all_known, known_of, observe
from ondisk.maintenance.second_copy import missing_twin, other_copy_lacking, unknown_twin, why_no_copy
from ondisk.maintenance.states import Diagnosis, State
from ondisk.segments.dir import METADATA
from ondisk.segments.file_facts import Committed
from ondisk.segments.generations import parent_of, recorded_stat
from ondisk.segments.places import closed, places
from ondisk.step import Interval, inner_of, place_of

_DEEPEST = 16  # levels of folders that are searched for segments
_SEEN_IN_ROWS = State.DIRTY | State.ARCHIVE_AGE | State.DELETE_AGE
_REMOVING = State.DIRTY | State.DELETED | State.ARCHIVE_AGE | State.DELETE_AGE
SECOND_COPIES = (
    "it has second copies of data in other segments, which `ondisk repack --second-copies` compares and removes"
)
_NOT_MAINTAINED = "nothing in this folder is rewritten, unless maintain_archives in dataset.toml names it"
_SHRINKING, _UNSURE = State.DIRTY | State.DELETED, State.UNALIGNED | State.CORRUPTED | State.MISSING


class Inspection:
    """Compares the index of a dataset with the disk. Only reads. Segments that are away are left out.

    Args:
        ages: from when they count; None if they are not looked at.
        forget: the index may forget missing segments, however many.
    """

    def __init__(
        self,
        access: Access,
        *,
        ages: Ages | None = None,
        forget: bool = False,
        rewrites: bool = False,
        removes_copies: bool = False,
    ) -> None:
        self.access = access
        self._ages = ages
        self._forget = forget
        self._rewrites = rewrites
        self._removes_copies = removes_copies
        self._kept: Mapping[str, str] | None = None  # missing segment → why it is kept; None: not yet known
        self._missing: set[str] = set()

    def circumstances(self, *, needs_check: bool) -> Circumstances:
        """Return what the diagnosis of a segment depends on besides it."""
        config = self.access.config
        built_for = self.access.current().index.config.step
        return Circumstances(
            config.step,
            needs_check,
            AgeLimits.of(self.access, self._ages),
            # What is away may have been moved out of a place whose data the index has lost.
            config.unknown_segments == "delete" and not self.access.ask(unknown_in),
            None if built_for is config.step else built_for,
            self.access.layout,
            self.access.layout.usage(self.access.directory),
        )

    def diagnoses(self, is_examined_later: Callable[[Diagnosis], bool] = lambda _: False) -> Iterator[Diagnosis]:
        """Yield the diagnosis of every segment, in the order of their names.

        A concurrent writer may make a segment look damaged for a moment, so a segment that looks damaged is examined
        again; one that looks dirty, only if somebody changed it meanwhile.

        Args:
            is_examined_later: whether the caller examines a segment again, under the lock; then only one that looks
                damaged is examined again here.

        Memory: some numbers for each segment.
        """
        access, diagnoses = self.access, list[Diagnosis]()
        with access.current().index.snapshot() as snapshot:
            trusted = self.circumstances(needs_check=access.needs_check())
            lacking, unread = replace(trusted, needs_check=True), {*unread_places(access)}
            away = {each.name for each in away_in(snapshot)}
            known = {
                each.segment.name: each
                for each in all_known(access, snapshot)
                if not away or place_of(each.segment.name) not in away
            }
            on_disk = dict(found_segments(access.directory, access.config))
            for _, name, _, size, facts in segment_rows.moved(snapshot):
                there = recorded_stat(access.directory, name)
                if name not in known and there is not None and Committed(size, facts, range(0)).may_be(there):
                    on_disk.pop(name, None)  # the next writer takes the name from it
            for name in sorted(known.keys() | on_disk.keys(), key=step.in_order):
                try:
                    # A folder that cannot be listed has no entries, but its segments are not missing.
                    entry = on_disk.get(name) or entry_of(access.directory, name)
                    at = lacking if place_of(name) in unread else trusted
                    found, _ = self._diagnosed(snapshot, name, known.get(name), entry, at)
                except StorageError as error:
                    found = _unreadable(name, error)
                except (IndexCorrupt, InvalidInput) as error:
                    diagnoses.append(_impossible(name, error))
                    continue
                if State.CORRUPTED in found.state or (found.state and not is_examined_later(found)):
                    again = self._again(name, known.get(name), found)
                    if again is None:
                        continue
                    found = again
                diagnoses.append(found)
        self._missing = {each.segment for each in diagnoses if State.MISSING in each.state}
        folders = {*map(parent_of, self._missing)}
        absent = {folder for folder in folders if folder and access.directory.stat(folder) is None}
        self._kept = _closed_twins(access.directory, self._missing) | kept(self._missing, known.keys(), absent)
        yield from (self._held(each, known.get(each.segment), trusted.usage) for each in diagnoses)

    def examine(
        self, snapshot: Snapshot, name: str, before: Known | None = None
    ) -> tuple[Diagnosis | None, Known | None]:
        """Return the diagnosis of a segment, and what the index knows; None, None if neither index nor disk has it.

        Args:
            before: what the index knew when all segments were examined.
        """
        at = self.circumstances(needs_check=self.access.may_lack(name))
        diagnosis, known = self._examine(snapshot, name, before, at)
        return None if diagnosis is None else self._held(diagnosis, known, at.usage), known

    def _held(self, diagnosis: Diagnosis, known: Known | None, usage: Usage) -> Diagnosis:
        """Return the diagnosis with the hold that it is under."""
        name, state = diagnosis.segment, diagnosis.state
        if (why := usage.why_unread(name)) is not None:
            diagnosis = replace(diagnosis, awaited=why)
        # Of data that were deleted the row keeps that they were: they would come back with the disk.
        is_copy = known is not None and known.segment.copies is not Copies.NONE and not known.rows.count
        if State.MISSING in state and not is_copy and not self._forget and self._kept is not None:
            if name not in self._missing:
                return diagnosis.hold("it was not missing a moment ago: the next fix decides")
            if (reason := self._kept.get(name)) is not None:
                forget = command("fix", self.access.path, "--yes", "--forget")
                remedy = f"if these data are lost for good, run {forget}"
                return diagnosis.hold(f"{reason}: is a disk not mounted? {remedy}")
        if self._ages is not None and (reason := self._ages.why_held(self.access, state)) is not None:
            return diagnosis.hold(reason)
        if state & _REMOVING and not state & _UNSURE and why is not None:
            return diagnosis.hold(why)
        return diagnosis

    def _examine(
        self, snapshot: Snapshot, name: str, before: Known | None, at: Circumstances
    ) -> tuple[Diagnosis | None, Known | None]:
        known = None
        try:
            known = known_of(self.access, snapshot, name, before)
            entry = entry_of(self.access.directory, name)
            if known is None and entry is None:
                return None, None
            return self._diagnosed(snapshot, name, known, entry, at)
        except StorageError as error:
            return _unreadable(name, error), known
        except (IndexCorrupt, InvalidInput) as error:
            return _impossible(name, error), None

    def _again(self, name: str, before: Known | None, found: Diagnosis) -> Diagnosis | None:
        """Diagnose a segment again, from a new snapshot, until nobody changed it meanwhile; None if it has gone."""
        if before is not None and not found.state & ~_SEEN_IN_ROWS:
            with self.access.current().index.snapshot() as snapshot:
                if _row_of(snapshot, name) == before.segment:
                    return found
        diagnosis = None
        for _ in range(3):
            with self.access.current().index.snapshot() as snapshot:
                at = self.circumstances(needs_check=self.access.may_lack(name))
                diagnosis, _ = self._examine(snapshot, name, before, at)
                segment = _row_of(snapshot, name)
            with self.access.current().index.snapshot() as snapshot:
                if segment == _row_of(snapshot, name):
                    break
        return diagnosis

    def _diagnosed(
        self, snapshot: Snapshot, name: str, known: Known | None, entry: Entry | None, at: Circumstances
    ) -> tuple[Diagnosis, Known | None]:
        """Return the diagnosis of a segment, and what is known of it when it was observed."""
        access = self.access
        if entry is not None and entry.kind != "other" and not entry.looks_readable:
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                access.directory.check_readable(name)
        format = access.format(known.segment.format) if known is not None else access.format_of(name)
        if known is not None:
            known = replace(known, interval=segment_rows.interval_of(snapshot, known.segment))
        known, on_disk = observe(access, snapshot, name, known, entry, format, needs_check=at.needs_check)
        start = format.begin().end.length if known is None else format.first_offset(known.segment.end)
        found = diagnose(name, known, on_disk, at, start)
        if known is None:
            return found, None
        is_ok = not (found.state & ~State.ARCHIVE_AGE or found.consumed)
        if self._rewrites and known.rows.count and is_ok:
            why = format.why_rewritten(known.segment.end)
            found = found if why is None else found.rewritten(why)
        return self._with_copies(name, found, known, at), known

    def _with_copies(self, name: str, found: Diagnosis, known: Known, at: Circumstances) -> Diagnosis:
        """Return the diagnosis of a segment, as far as others may be copies of it, or it is one."""
        access = self.access
        if known.segment.copies is not Copies.NONE and found.state & _SHRINKING and not found.state & _UNSURE:
            is_all = known.segment.copies is Copies.ALL
            if (lack := other_copy_lacking(access, known.segment)) is not None:
                return replace(found, state=State.UNALIGNED, reasons=(lack,), freed=0)
            if not self._removes_copies:
                return replace(found, state=found.state & ~_SHRINKING, reasons=(*found.reasons, SECOND_COPIES), freed=0)
            if is_all and (why := why_no_copy(access, name)) is not None:
                return found.hold(why)
        is_wanted = self._removes_copies and known.segment.copies is not Copies.NONE
        if found.state & _SHRINKING and place_of(name) not in at.limits.places and not is_wanted:
            return replace(found, state=found.state & ~_SHRINKING, reasons=(*found.reasons, _NOT_MAINTAINED), freed=0)
        if found.state & _SHRINKING and not found.state & _UNSURE:
            if (twin := missing_twin(access, name)) is not None:
                return found.hold(f"it may have all that is left of {twin}, which is missing: put that back first")
            if (twin := unknown_twin(access, name)) is not None:
                fix = command("fix", access.path, "--yes")
                why = f"{twin} may be a copy of its bytes, and must be compared with them"
                return found.hold(f"{why}: run {fix} first, or move it away if it is empty")
        return found


def places_away(access: Access) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each folder that is away; not of one that is offline on purpose, if the index knows it."""
    with access.current().index.snapshot() as snapshot:
        unread = {each.name: each for each in unknown_in(snapshot)}
        known = {each.name: each for each in away_in(snapshot)}
    lost = {name: each for name, each in closed(access.directory).items() if each.identity and each.identity.count}
    for name, each in (unread | lost | known).items():
        if each.renamed is not None:
            new = each.renamed.removesuffix("/")
            yield Diagnosis(name.removesuffix("/"), State.MISSING, (f"it was renamed to {new}",), moved=new)
        elif not each.is_offline or name not in known or each.is_unread:
            error = missing(access.directory, each)
            count = each.identity.count if each.identity and each.why_away and name not in known else 0
            had = f"; it had {counted(count, 'datum')}, which the index does not know" if count else ""
            end = "" if f"{error.message}{had}".endswith("?") else "."
            reason = f"{error.message}{had}{end} {error.hint}".rstrip()
            yield Diagnosis(name.removesuffix("/"), State.MISSING, (reason,), held=True)


def _closed_twins(directory: Directory, missing: Collection[str]) -> dict[str, str]:
    """Return why missing segments may not be lost: a folder of the archive is there, but away, and has such a name."""
    found = {}
    for place, name in product(closed(directory) if missing else (), missing):
        with contextlib.suppress(StorageError):  # a link, or nothing that this user may read
            if directory.stat(there := f"{place}{inner_of(name)}") is not None:
                found[name] = f"{there} may be its file"
    return found


def interval_of(access: Access, name: str) -> Interval | None:
    """Return the interval of a segment's name."""
    return step.interval_of(name, access.config.step)


def _unreadable(name: str, error: StorageError) -> Diagnosis:
    """Return the diagnosis of a segment that cannot be read: symbolic links in its path, or missing permissions."""
    return Diagnosis(name, State.CORRUPTED, (f"it cannot be read: {error.message}",), error=error)


def _impossible(name: str, error: IndexCorrupt | InvalidInput) -> Diagnosis:
    """Return the diagnosis of a segment whose row in the index says what cannot be: no file is judged by such a row."""
    return Diagnosis(name, State.CORRUPTED, (f"its row in the index cannot be: {error.message}. {error.hint}",))


def _row_of(snapshot: Snapshot, name: str) -> Segment | None:
    with contextlib.suppress(IndexCorrupt, InvalidInput):
        return snapshot.segment_named(name)
    return None


def found_segments(directory: Directory, config: DatasetConfig) -> Iterator[tuple[str, Entry]]:
    """Yield all names on disk that may be segments: those with the extension of a format, but no hidden ones.

    Also yields a folder that cannot be read: the diagnosis of its name covers everything in it.
    """
    folder, taken_for = Entry("", "directory", 0, 0, 0, 0), layout_of(config.step).taken_for
    archived = [name.removesuffix("/") for name, each in places(directory).items() if each.why_away is None]
    waiting = [("", folder), *((name, folder) for name in archived)]
    while waiting:
        parent, folder = waiting.pop()
        try:
            entries = directory.entries(parent)
        except StorageError:
            yield parent, folder
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{parent}/{entry.name}" if parent else entry.name
            is_format = of_extension(taken_for(name).rpartition(".")[2], config)
            if "." in entry.name and (is_format or _is_directory_of_data(directory, name, entry)):
                yield name, entry
            elif entry.kind == "directory" and name.count("/") < _DEEPEST:
                waiting.append((name, entry))


def _is_directory_of_data(directory: Directory, name: str, entry: Entry) -> bool:
    """Return whether a directory with an unknown extension is a segment, written under another configuration."""
    try:
        return entry.kind == "directory" and directory.stat(f"{name}/{METADATA}") is not None
    except StorageError:
        return True  # the diagnosis then reports this error


def entry_of(directory: Directory, name: str) -> Entry | None:
    """Return what is at the name of a segment; None if nothing is."""
    found = directory.stat(name)
    return None if found is None else Entry.of(name.rpartition("/")[2], found)
