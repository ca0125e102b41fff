"""Explain: the sentences of a report about a segment that was read again, from what was found; nothing is looked up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ondisk.errors import command, counted
from ondisk.maintenance.compare import Compared, Subject, damaged
from ondisk.maintenance.states import Diagnosis, Done
from ondisk.segment import REMEDY

_DELETE_AGAIN = "delete them again"
_DELETE_EXTRA = "run `ondisk replicate SOURCE REPLICA --reconcile --delete-extra`"
_ENCRYPTED_AGAIN = "its data are encrypted differently from the stored data, so the two cannot be compared"


class Outcome(NamedTuple):
    """What was found in a segment, and what was done with it.

    Attributes:
        returned: data that the index did not have, and that may have been deleted.
        is_emptied: it has no data, and the index may have lost some of it: it goes to quarantine.
        moved: the item in quarantine that it is now.
        original: the item in quarantine that has the original, if only what is whole of it was kept.
        read_again: why another program must read it from its beginning; None if not.
        is_encrypted: it is encrypted, and was compared with the stored bytes.
        is_exposed: it is not encrypted, although new segments are.
    """

    subject: Subject
    compared: Compared
    returned: int
    is_emptied: bool = False
    moved: str | None = None
    original: str | None = None
    read_again: str | None = None
    is_encrypted: bool = False
    is_exposed: bool = False

    @property
    def remedy(self) -> str:
        """What helps against lost data."""
        if self.original is None:
            return REMEDY
        return f"the original {'directory' if self.subject.format.is_dir else 'file'} is now {self.original}"


def explained(outcome: Outcome, diagnosis: Diagnosis, *reasons: str) -> Done:
    """Return the result for a report, with what the segment contains that is not in the index now."""
    compared, all_reasons = outcome.compared, (*diagnosis.reasons, *reasons, *_sentences(outcome))
    return Done(
        outcome.subject.name, diagnosis.state, all_reasons, "rescan", 0, compared.lost, returned=outcome.returned
    )


def _sentences(outcome: Outcome) -> Iterator[str]:
    subject, compared, settled = outcome.subject, outcome.compared, outcome.compared.settled
    if compared.copied is not None:
        yield f"{compared.copied} has the same bytes, so `ondisk repack --second-copies` removes this copy"
    if outcome.moved is not None:
        yield f"it is now {outcome.moved}"
    if outcome.read_again is not None:
        yield outcome.read_again
    if outcome.is_exposed:
        yield "it is not encrypted: whoever wrote it needed no key"
    if (damage := damaged(compared, subject.format, outcome.remedy)) is not None:
        yield damage
    if outcome.returned:
        how = _DELETE_EXTRA if subject.access.config.replica else _DELETE_AGAIN
        read = counted(outcome.returned, "datum", "was")
        yield f"{read} read that the index did not have; if you had deleted any, {how}"
    if compared.gone:
        yield f"{counted(compared.gone, 'datum', 'is')} gone from the segment"
    if compared.without_row:
        yield f"{counted(compared.without_row, 'datum', 'is')} gone that the index had counted: {REMEDY}"
    if compared.changed and outcome.is_encrypted:
        reset = command("fix", subject.access.path, "--acknowledge", "--yes")
        yield f"{_ENCRYPTED_AGAIN}: one counts as lost; if the file is right, {reset} resets that"
    elif compared.changed:
        yield f"some of its data have other bytes than the stored ones: {REMEDY}"
    if settled.replacing:
        unreadable = counted(settled.replacing, "datum", "is")
        yield f"{unreadable} unreadable in another segment, so the copy here is used now"
    if settled.different:
        have = counted(settled.different, "datum", "has")
        different = f"{have} the same unique values as other data but different contents"
        yield f"{different}: its file was linked into quarantine"
    if settled.skipped.count:
        were = counted(settled.skipped.count, "datum", "was")
        yield f"{were} skipped, because other segments have them: {settled.skipped.text()}"
    if compared.missing:
        gone = f"up to {counted(compared.missing, 'datum', 'is')} lost"
        yield f"{gone}: {subject.format.shortage}; {outcome.remedy}"
    if outcome.original is not None and not compared.damage.count and not compared.missing:
        yield outcome.remedy
