"""The oracle sees each breach of the law: a test that never fails proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .law import check_law, check_query
from .victim import A, Victim, number_of, numbers_of

ONE = number_of(A, 200)


@pytest.fixture(params=["vm2", "jsonl", "lz4", "plain", "blob"])
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Victim:
    return Victim.make(tmp_path / "dataset", request.param)


def breaks(victim: Victim, message: str, check: Callable[[Victim], object] = check_law) -> None:
    victim.codes.append(("maintain", 0))
    with pytest.raises(AssertionError, match=message):
        check(victim)


def test_a_healthy_dataset_keeps_the_law(victim):
    victim.maintain()
    assert check_law(victim) == victim.given


def test_a_datum_that_is_gone_is_lost(victim):
    victim.run("delete", victim.match(ONE), "--yes")
    victim.repack()
    breaks(victim, rf"lost \[{ONE}\]")
    victim.destroyed = {ONE}
    breaks(victim, rf"nothing has counted \[{ONE}\]")
    victim.codes.insert(0, ("maintain", 9))
    breaks(victim, rf"nothing has counted \[{ONE}\]")
    victim.codes.insert(0, ("maintain", 8))
    assert check_law(victim) == victim.given - {ONE}


def test_a_datum_that_is_only_on_disk_must_be_reported(victim):
    victim.run("delete", victim.match(ONE), "--yes")
    breaks(victim, rf"nothing has reported \[{ONE}\]")
    victim.codes.insert(0, ("fix", 9))
    assert check_law(victim) == victim.given - {ONE}


def test_a_datum_in_quarantine_is_on_disk_and_one_under_a_hidden_name_is_not(victim):
    for hidden, there in ((".quarantine", True), (".backup", False)):
        target = victim.folder / hidden / "any"
        target.parent.mkdir(exist_ok=True)
        victim.file(A).rename(target)
        assert victim.on_disk(victim.given) == victim.given - (set() if there else numbers_of(A))
        target.rename(victim.file(A))


def test_a_query_that_is_short_must_say_so(victim):
    victim.run("delete", victim.match(ONE), "--yes")
    breaks(victim, rf"without \[{ONE}\]", lambda each: check_query(each, complete=True))


def test_another_datum_in_the_place_of_one_is_wrong(victim):
    victim.given.remove(ONE)
    breaks(victim, "nobody stored", check_query)


def test_a_deleted_datum_must_not_be_returned(victim):
    victim.deleted.add(ONE)
    breaks(victim, "deleted data", check_query)


def test_one_datum_twice_is_wrong(victim):
    other = Victim(victim.path.parent / "twice", victim.kind)
    other.create(other.path, unique=[])
    other.append(ONE)
    other.append(ONE)
    breaks(other, rf"twice: \[{ONE}\]", check_query)


def test_half_of_one_act_is_wrong(victim):
    victim.maybe.add(number_of(5, 0))
    victim.acts.append({ONE, number_of(5, 0)})
    breaks(victim, "half of one act")


def test_a_file_of_others_must_stay(victim):
    victim.kept.append(b"a shopping list")
    breaks(victim, "a file of others is gone")


@pytest.mark.parametrize("code", [1, 2, 21])
def test_a_command_must_end_well_or_with_a_report(victim, code):
    victim.codes.append(("archive", code))
    breaks(victim, "neither well nor with a report")


def test_a_query_must_not_fail_after_a_maintain_that_was_content(victim):
    victim.destroyed = numbers_of(A)
    victim.codes.append(("maintain", 8))
    victim.file(A).rename(victim.path.parent / "away")
    breaks(victim, "a query ends with SegmentMissing")
