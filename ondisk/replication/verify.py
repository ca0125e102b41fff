"""Verify a replica: compare it with its source, datum by datum where digests differ, and change nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from ondisk.errors import TokenForeign
from ondisk.replication.compare import Differences, Differs, OnRange, compared, situation
from ondisk.replication.replica import Replica
from ondisk.replication.source import replicate_command
from ondisk.replication.source_rows import Mode
from ondisk.step import Step, runs_of

_SHOWN = 100
_KINDS = {
    "missing": (Differs.MISSING, Differs.UNREAD),
    "differs": (Differs.CHANGED,),
    "damaged": (Differs.DAMAGED, Differs.NEITHER),
    "lost": (Differs.LOST,),
    "unreadable": (Differs.UNREADABLE,),
    "extra": (Differs.EXTRA, Differs.DELETED, Differs.GONE, Differs.UNKNOWN),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A datum that is not the same on both sides.

    Attributes:
        seq: its number.
        kind: `missing`: the replica lacks it. `extra`: only the replica has it. `differs`: both have other bytes under
            this number. `damaged`: the replica cannot read it. `unreadable`: the source cannot read it, and the replica
            can. `lost`: the source has lost it, and the replica has it.
        reftime: microseconds since 1970.
    """

    seq: int
    kind: str
    reftime: int


@dataclass(slots=True)
class Differing:
    """The findings of one kind in one segment.

    Attributes:
        kind: as of each finding.
        segment: its name without the extension; of a sequence, that of a daily segment.
        count: how many.
        first: the finding with the lowest number.
    """

    kind: str
    segment: str
    count: int
    first: Finding


@dataclass(slots=True)
class Verified:
    """What a comparison of a replica with its source has found.

    Attributes:
        source: the UUID of the source's index.
        offset: the changes up to this number were compared.
        left: how many later changes the source has; a pull fetches them.
        missing, extra, differs, damaged, unreadable, lost: how many findings of each kind, see `Finding`.
        aged: data that one side has removed because of its own `delete_age`. They are no findings.
        findings: the first 100 of each kind.
        segments: all findings, by kind and segment.
    """

    source: str
    offset: int
    left: int
    missing: int = 0
    extra: int = 0
    differs: int = 0
    damaged: int = 0
    unreadable: int = 0
    lost: int = 0
    aged: int = 0
    findings: list[Finding] = field(default_factory=list)
    segments: list[Differing] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many data are not the same."""
        return self.missing + self.extra + self.differs + self.damaged + self.unreadable + self.lost


def verify(replica: Replica, *, on_range: OnRange = lambda _done, _left: None) -> Verified:
    """Compare a replica with its source, up to the last change that the replica has applied.

    Args:
        on_range: called with how many numbers were compared, and how many are left.

    Raises:
        TokenForeign: the same numbers mean different data in source and replica; see `reconcile`.
        NeedsCheck, StateError: as `Dataset.changes`, for both.

    Cost: reads all data of source and replica.
    """
    source, now = replica.source, situation(replica)
    if now.mode is Mode.FOREIGN or now.is_begun:
        what = "is not complete" if now.is_begun else "is needed: their numbers are not those of its source"
        hint = f"Run {replicate_command(source, replica.dataset.path, '--reconcile')}."
        raise TokenForeign(f"{replica.dataset.path}: a comparison of all data {what}", hint=hint)
    config = replica.dataset.config
    verified = Verified(now.uuid, now.offset, max(0, now.last - now.offset))
    with compared(replica, now.uuid, Mode.VALID, 1, now.offset, on_range) as found:
        _add(verified, found, Step.DAILY if config.is_sequence else config.step)
    return verified


def _add(verified: Verified, found: Differences, step: Step) -> None:
    """Add what differs to a result."""
    verified.aged = found.count(Differs.AGED, Differs.OUTDATED)
    segments: dict[tuple[str, str], Differing] = {}
    for name, kinds in _KINDS.items():
        setattr(verified, name, found.count(*kinds))
        for at, some in enumerate(found.of(*kinds)):
            if not at:
                verified.findings += [Finding(each.seq, name, each.reftime) for each in some[:_SHOWN]]
            begin = 0
            for unit, count in runs_of(step.unit, [each.reftime for each in some]):
                first, stem = some[begin], step.stem_of(unit)
                new = Differing(name, stem, 0, Finding(first.seq, name, first.reftime))
                segments.setdefault((name, stem), new).count += count
                begin += count
    verified.segments = [*segments.values()]
