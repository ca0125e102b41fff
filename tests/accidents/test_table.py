"""Every accident of the table ends well: nothing is lost, nothing is wrong, and what is missing is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import damage, kept, killed, names, outdated, places, resources, strangers  # noqa: F401  # enter their accidents
from .law import check_law, check_query
from .table import Accident, Codes, cases
from .victim import A, Victim, number_of

NEW, LATER = number_of(A, 700), number_of(A, 710)
"""Data that are appended to the segment of the accident after it."""


@pytest.mark.parametrize(("accident", "kind", "place", "order"), [*cases()])
def test_nothing_is_lost_and_nothing_is_wrong(
    tmp_path: Path, accident: Accident, kind: str, place: str, order: str
) -> None:
    victim = Victim.make(tmp_path / "dataset", kind, place, **accident.config)
    accident.happen(victim)
    check_query(victim, complete=not (accident.quiet or victim.is_rot))
    check_states(victim, accident)
    mend(victim, accident, order)
    check_law(victim)
    if accident.after is not None:
        accident.after(victim)
        check_law(victim)
    victim.append(LATER)  # what was mended is used again, and rewritten
    victim.repack()
    victim.maintain()
    answered = check_law(victim)
    if accident.answered:
        missing = victim.given - victim.deleted - victim.destroyed - answered
        assert not missing, f"these are not answered: {sorted(missing)}, after {victim.codes}"


def check_states(victim: Victim, accident: Accident) -> None:
    if accident.check is not None:
        states = {name for each in victim.check().findings for name in each.state.names}
        assert "+".join(sorted(states)) in accident.check, f"check reports {sorted(states)}, not {accident.check}"


def mend(victim: Victim, accident: Accident, order: str) -> None:
    """Return the commands of an order. Queries between them return what is there, or an error."""
    if order == "append":
        victim.append(NEW)
        check_query(victim)
    elif order == "fix":
        expect("fix", victim.fix(), accident.fix)
        check_query(victim)
        victim.repack()
    elif order == "repack":
        expect("repack", victim.repack(), accident.repack)
        check_query(victim)
        victim.repack()
        victim.fix()
    code = victim.maintain()
    if order == "maintain":
        expect("maintain", code, accident.maintain)
        check_query(victim)
        victim.maintain()


def expect(verb: str, code: int, allowed: Codes) -> None:
    if allowed is not None:
        codes = allowed if isinstance(allowed, tuple) else (allowed,)
        assert code in codes, f"{verb} ended with {code}, not {allowed}"
