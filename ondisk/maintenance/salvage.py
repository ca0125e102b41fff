"""Salvage: replace a damaged segment by what is whole in it. People ask for it; maintenance never does it by itself."""

from __future__ import annotations

from ondisk.dataset.access import Access
from ondisk.dataset.place_checks import check_not_away
from ondisk.errors import RESTORE, InvalidInput, SegmentCorrupt, SegmentMissing, command
from ondisk.maintenance import rescan
from ondisk.maintenance.check import with_result, wrong_with
from ondisk.maintenance.compare import Subject, explained
from ondisk.maintenance.diagnosis import Known, misnamed
from ondisk.maintenance.inspect import Inspection, interval_of
from ondisk.maintenance.observe import all_known
from ondisk.maintenance.states import Diagnosis, Done, State

_SALVAGE = "salvage"


def salvaged(access: Access, name: str) -> Done:
    """Keep what is whole of a damaged segment, and return the result; its original file goes to quarantine.

    Data that the index knew and that are not found are counted as lost.

    Raises:
        SegmentMissing: neither the index nor the disk has such a segment, or its folder is away.
        InvalidInput: the segment is not damaged, or its name does not fit the step or the times of its data.
        SegmentCorrupt: its header is damaged, so nothing in it can be read. It stays as it is.

    Durability: the new file is written and synced, then one commit puts it in the place of the old one.
    Locks: the writers' lock.
    """
    with access.transaction("fix") as transaction:
        diagnosis, known = _damaged(access, name)
        try:
            outcome = rescan.salvaged(Subject.of(access, transaction, name, known))
        except InvalidInput as error:  # as for a file of another version
            how = f"run {command('fix', access.path, '--yes')}"
            hint = f"{RESTORE}; or move it away, and {how}."
            message = f"{access.path / name}: nothing in it can be read: {error.message}"
            raise SegmentCorrupt(message, hint=hint, segment=name) from error
    done = explained(outcome, diagnosis)
    return Done(name, done.state, done.reasons, _SALVAGE, 0, done.lost)


def would_salvage(access: Access, name: str) -> Done:
    """Return the result of a salvage without what it finds; raise as `salvaged` if it cannot begin."""
    diagnosis, _ = _damaged(access, name)
    return Done(name, diagnosis.state, diagnosis.reasons, _SALVAGE)


def _damaged(access: Access, name: str) -> tuple[Diagnosis, Known | None]:
    """Return the diagnosis of a segment that can be salvaged, and what the index knows about it.

    Raises:
        SegmentMissing, InvalidInput: as `salvaged`.
    """
    check_not_away(access, name)
    inspection = Inspection(access)
    with access.current().index.snapshot() as snapshot:
        before = next((each for each in all_known(access, snapshot) if each.segment.name == name), None)
        diagnosis, known = inspection.examine(snapshot, name, before)
    if diagnosis is not None and known is not None and not diagnosis.state & (State.CORRUPTED | State.MISSING):
        diagnosis = with_result(diagnosis, wrong_with(access, name))  # only reading it shows bit rot
    if diagnosis is None or State.MISSING in diagnosis.state:
        hint = f"{command('check', access.path, '--all')} lists the segments."
        raise SegmentMissing(f"{access.path} has no file {name!r}", hint=hint, segment=name)
    if State.CORRUPTED not in diagnosis.state or interval_of(access, name) is None:
        states = ", ".join(diagnosis.state.names)
        hint = "Only a damaged segment whose name fits the step can be salvaged; `ondisk check` reports the states."
        raise InvalidInput(f"{access.path / name} cannot be salvaged: it is {states}", hint=hint)
    at = inspection.circumstances(needs_check=access.may_lack(name))
    named = [] if known is None else [*misnamed(known, interval_of(access, name), at)]
    if wrong := [each for each in diagnosis.reasons if each in named]:
        query = command("query", access.path, "MATCH", "--data")
        hint = f"Copy these data with {query}, delete them with the same MATCH, append the copy, and run maintain."
        raise InvalidInput(f"{access.path / name} cannot be salvaged: {wrong[0]}", hint=hint)
    return diagnosis, known
