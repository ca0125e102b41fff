"""The sentences about a segment that was read again follow from what was found, without a look at the disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ondisk.dataset.access import Access
from ondisk.errors import REMEDY
from ondisk.formats.jsonl import JsonLines
from ondisk.index.transaction import Transaction
from ondisk.maintenance.compare import Compared, Outcome, Subject, explained
from ondisk.maintenance.duplicates import Settled
from ondisk.maintenance.states import Diagnosis, Done, State, Tally
from ondisk.step import Interval

NAME = "2026/11-20.jsonl"


def reported(compared: Compared, *, replica: bool = False, **values: Any) -> Done:
    access = SimpleNamespace(path=Path("weather"), config=SimpleNamespace(replica=replica))
    subject = Subject(
        cast("Access", access), cast("Transaction", None), NAME, None, cast("Any", JsonLines), Interval(0, 1)
    )
    return explained(
        Outcome(subject, compared, compared.returned, **values), Diagnosis(NAME, State.UNALIGNED, ("why",))
    )


CASES: dict[str, tuple[Compared, dict[str, Any], str, int]] = {
    "gone": (Compared(gone=2), {}, "2 data are gone from the segment", 2),
    "only counted": (Compared(without_row=1), {}, f"1 datum is gone that the index had counted: {REMEDY}", 1),
    "other bytes": (Compared(changed=1), {}, f"some of its data have other bytes than the stored ones: {REMEDY}", 1),
    "deleted ones perhaps": (Compared(returned=3), {}, "if you had deleted any, delete them again", 0),
    "in a replica": (Compared(returned=3), {"replica": True}, "--reconcile --delete-extra`", 0),
    "a copy": (Compared(copied=".archive/last/x"), {}, ".archive/last/x has the same bytes", 0),
    "salvaged": (Compared(), {"original": ".quarantine/x"}, "the original file is now .quarantine/x", 0),
    "emptied": (Compared(), {"moved": ".quarantine/x"}, "it is now .quarantine/x", 0),
    "different": (Compared(settled=Settled(different=1)), {}, "1 datum has the same unique values as other data", 0),
    "skipped": (Compared(settled=Settled(skipped=Tally(1, 0, ["the datum at byte 7"]))), {}, "the datum at byte 7", 0),
    "exposed": (Compared(), {"is_exposed": True}, "it is not encrypted", 0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_found_is_said_after_why_it_was_read(case: str) -> None:
    compared, values, sentence, lost = CASES[case]
    done = reported(compared, **values)
    first, said = done.reasons
    assert first == "why"
    assert sentence in said
    assert (done.lost, done.returned) == (lost, compared.returned)


def test_a_datum_that_is_gone_is_most_likely_what_was_damaged() -> None:
    assert Compared(gone=2, damage=Tally(3, 40, [])).lost == 3
    assert Compared(gone=2, damage=Tally(3, 40, [])).uncounted == 1, "two were counted when they were forgotten"
    assert Compared(gone=2, missing=1).lost == 2
    assert Compared(without_row=2, damage=Tally(1, 4, [])).uncounted == 2
