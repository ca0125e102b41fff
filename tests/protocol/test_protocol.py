"""The protocol holds in every interleaving, and each of its rules is needed: without it there is a violation."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from protocol.disk import Disk, Inode
from protocol.explorer import Explored, Violation, explore
from protocol.model import Protocol
from protocol.rules import RULES
from protocol.state import ARCHIVE, DATASET, PLACES, RENAMED, Index, Log, State

ACCIDENTS = ("over", "in the way", "hidden", "linked", "lost", "older", "changed")
THERE = ("over there", "in the way there")
BY_HAND = ("moved slowly", "brought slowly", "linked back", "moved", "brought", "copied")
MOUNTS = ("unmounted", "older tape")

Case: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]

ALONE: list[Case] = [
    (("append", "append", "repack"), {"begin": "empty"}),
    (("repack", "append", "repack"), {}),
    (("append", "drop", "append"), {}),
    (("append", "append", "drop"), {"begin": "empty", "is_folder": True}),
    (("repack", "append", "repack"), {"is_folder": True}),
]
"""Jobs without accidents."""

MOVING: list[Case] = [
    (("archive", "append"), {"begin": "both"}),
    (("archive", "append", "archive"), {}),
    (("archive", "unarchive", "archive"), {}),
    (("archive", "repack"), {"begin": "both"}),
    (("archive", "rename"), {"begin": "both"}),
    (("rename", "unarchive"), {"begin": "both"}),
    (("repack", "rename"), {"begin": "archive", "is_folder": True}),
    (("unarchive", "append"), {"begin": "archive"}),
    (("unarchive",), {"begin": "both"}),
    (("rename", "append"), {"begin": "both"}),
    (("archive",), {"begin": "both", "is_other_disk": True}),
    (("append", "archive"), {"is_other_disk": True}),
    (("unarchive",), {"begin": "archive", "is_other_disk": True}),
    (("archive", "append"), {"is_folder": True}),
    (("archive",), {"begin": "both", "is_folder": True}),
    (("unarchive",), {"begin": "both", "is_folder": True}),
]
"""Moves between two folders, and renames of one."""

KEEPING: list[Case] = [
    (("append", "repack", "drop"), {}),
    (("drop", "append", "drop"), {}),
    (("archive", "unarchive", "drop"), {}),
    (("repack", "expire", "drop"), {}),
    (("repack", "drop_unkept"), {}),
    (("repack", "drop"), {"is_folder": True}),
]
"""Jobs of a dataset that keeps what it drops, beside a plan."""

LARGE: list[Case] = [
    (("append",), {"begin": "empty"}),
    (("append", "repack"), {}),
    (("drop", "append"), {}),
    (("archive",), {}),
    (("archive",), {"begin": "both", "is_other_disk": True}),
    (("unarchive",), {"begin": "archive"}),
    (("rename",), {"begin": "archive"}),
    (("append", "drop"), {"begin": "empty", "is_folder": True}),
    (("append", "repack"), {"is_folder": True}),
]
"""Jobs that are few enough for two readers and two crashes."""

DISTURBED: list[Case] = [
    (("append", "repack"), {}),
    (("append", "append"), {"begin": "empty"}),
    (("append", "drop"), {}),
    (("repack", "append", "fix"), {}),
]
"""Jobs with each accident."""

MOVES: list[Case] = [
    (("archive",), {}),
    (("archive",), {"begin": "both"}),
    (("archive",), {"is_other_disk": True}),
    (("archive",), {"is_folder": True}),
    (("unarchive",), {"begin": "archive"}),
    (("unarchive",), {"begin": "both", "is_other_disk": True}),
    (("rename",), {"begin": "archive"}),
]
"""Moves with each accident, also at the target."""

TOUCHED: list[Case] = [
    (("fix", "repack"), {}),
    (("fix", "repack"), {"begin": "archive"}),
    (("append", "archive"), {}),
    (("append", "archive"), {"begin": "archive"}),
    (("append", "fix"), {"begin": "archive", "is_other_disk": True}),
    (("archive", "append"), {}),
    (("archive", "fix"), {"is_other_disk": True}),
    (("archive",), {"begin": "both"}),
    (("archive",), {"is_folder": True}),
    (("unarchive",), {"begin": "archive"}),
    (("rename",), {"begin": "archive"}),
]
"""Jobs beside somebody who moves or copies the segment by hand."""

AWAY: list[Case] = [
    (("archive", "append", "archive"), {}),
    (("archive", "fix"), {"begin": "both"}),
    (("append", "fix", "repack"), {"begin": "archive"}),
    (("unarchive",), {"begin": "archive"}),
    (("unarchive", "archive"), {"begin": "archive"}),
]
"""Jobs while the archive's disk is away, or an older one is in its place."""

HEALED: list[Case] = [
    (("heal", "append"), {}),
    (("append", "heal", "repack"), {}),
    (("heal", "drop"), {}),
    (("heal", "fix"), {}),
]
"""Jobs of a segment in which bytes change on disk, and of which a replica has copies."""

FOLDERS: list[Case] = [
    (("append", "drop"), {"begin": "empty", "is_folder": True}),
    (("append", "repack"), {"is_folder": True}),
    (("repack", "append", "fix"), {"is_folder": True}),
]
"""Jobs of a dir segment with accidents."""

NEEDED: dict[str, Case] = {
    "sync files": (("append",), {}),
    "sync directories": (("append",), {"begin": "empty"}),
    "sync log": (("append",), {}),
    "sync main": (("append", "append"), {"begin": "empty"}),
    "settle log": (("append",), {"begin": "empty"}),
    "keep tried": (("append",), {"crashes": 2}),
    "commit first": (("repack",), {}),
    "link old": (("repack",), {}),
    "no older reader": (("drop",), {}),
    "hide new": (("append",), {"begin": "empty"}),
    "never replace": (("append",), {"begin": "empty", "accidents": ("in the way",)}),
    "sync before unlink": (("append",), {"begin": "empty"}),
    "hide dropped": (("drop",), {}),
    "sync dropped": (("drop",), {}),
    "verify files": (("append",), {"accidents": ("hidden",)}),
    "verify linked": (("repack",), {"accidents": ("over",)}),
    "keep foreign": (("drop", "append"), {"accidents": ("in the way",)}),
    "keep hidden": (("append",), {"begin": "empty", "accidents": ("older",)}),
    "restore": (("append",), {"begin": "empty", "accidents": ("lost",)}),
    "sync set aside": (("append", "drop"), {"begin": "empty", "crashes": 2}),
    "new numbers": (("drop", "append"), {"accidents": ("lost",)}),
    "separate": (("append",), {"accidents": ("linked",)}),
    "keep damaged": (("heal",), {"accidents": ("changed",)}),
    "new generation": (("archive", "unarchive", "archive"), {}),
    "never reuse": (("archive", "append", "archive"), {"is_other_disk": True, "readers": 0}),
    "sync upwards": (("archive",), {}),
    "link merged": (("archive",), {"begin": "both"}),
    "one commit": (("archive",), {}),
    "moved from": (("archive",), {}),
    "keep source": (("archive",), {}),
    "target first": (("archive",), {"accidents": ("brought",)}),
    "same inode": (("archive",), {"accidents": ("brought slowly",), "readers": 0}),
    "only replaced": (("archive", "append"), {"accidents": ("brought",), "readers": 0}),
    "hide source": (("archive",), {}),
    "sync source": (("archive",), {}),
    "folder first": (("rename",), {"begin": "archive", "readers": 0}),
    "sync renamed": (("rename",), {"begin": "archive", "readers": 0}),
    "follow": (("rename",), {"begin": "archive", "readers": 0}),
    "sync followed": (("rename", "fix"), {"begin": "archive", "readers": 0, "crashes": 2}),
    "leave renamed": (("repack", "rename"), {"begin": "archive", "readers": 0, "crashes": 2}),
    "close": (("archive",), {}),
    "keep copies": (("fix", "repack"), {"accidents": ("moved slowly",), "readers": 0}),
    "keep empty": (("repack",), {"accidents": ("moved slowly",), "readers": 0}),
    "copy unknown": (("append", "archive"), {"begin": "archive", "accidents": ("brought slowly",), "readers": 0}),
    "keep tail": (
        ("archive", "fix", "append"),
        {"begin": "both", "accidents": ("brought slowly",), "readers": 0, "crashes": 0},
    ),
    "take over": (("fix",), {"accidents": ("moved",)}),
    "one commit for both": (("fix",), {"accidents": ("moved",)}),
    "sync taken over": (("fix",), {"accidents": ("moved",), "is_other_disk": True}),
    "compare data": (("archive",), {"begin": "both", "accidents": ("lost",), "readers": 0}),
    "identity": (("archive",), {"is_other_disk": True, "accidents": ("unmounted",), "readers": 0}),
    "older place": (
        ("archive", "fix"),
        {"begin": "both", "is_other_disk": True, "accidents": ("older tape",), "readers": 0},
    ),
    "beside": (("archive",), {"is_other_disk": True, "accidents": ("unmounted",), "readers": 0}),
    "inside first": (("archive",), {"is_other_disk": True, "readers": 0}),
    "mark first": (("archive",), {"is_other_disk": True, "readers": 0}),
    "mark left": (
        ("unarchive", "archive"),
        {"begin": "archive", "is_other_disk": True, "accidents": ("older tape",), "readers": 0},
    ),
    "mark rewritten": (
        ("repack", "fix"),
        {"begin": "archive", "is_other_disk": True, "accidents": ("older tape",), "readers": 0},
    ),
    "mark read": (("fix",), {"is_other_disk": True, "accidents": ("moved",), "readers": 0}),
    "hidden first": (("repack",), {}),
    "look again": (("drop",), {}),
    "start again": (("drop",), {}),
    "verify": (("repack",), {"accidents": ("over",)}),
    "newest": (("archive",), {"is_other_disk": True}),
    "still there": (("archive", "unarchive"), {"is_other_disk": True, "crashes": 0}),
    "look elsewhere": (("rename",), {"begin": "archive", "crashes": 0}),
    "hidden elsewhere": (("unarchive", "rename"), {"begin": "archive", "crashes": 0}),
    "look again elsewhere": (("rename", "unarchive"), {"begin": "archive", "crashes": 0}),
    "rows first": (("drop",), {"keeps": True, "readers": 0}),
    "bytes first": (("drop", "expire"), {"keeps": True, "readers": 0}),
    "kept last": (("drop",), {"keeps": True, "readers": 0}),
}
"""The jobs that show that a rule is needed."""


NEEDED_BY_FOLDERS: dict[str, Case] = {
    "sync files": (("repack",), {}),
    "sync directories": (("append",), {"begin": "empty"}),
    "no older reader": (("repack",), {}),
    "hide new": (("append",), {"begin": "empty"}),
    "hide dropped": (("drop",), {}),
    "sync dropped": (("drop",), {}),
    "verify files": (("repack",), {"accidents": ("hidden",)}),
    "keep foreign": (("drop", "append"), {"accidents": ("in the way",)}),
    "keep hidden": (("repack",), {"accidents": ("lost",)}),
    "restore": (("repack",), {"accidents": ("lost",)}),
    "new numbers": (("drop", "append"), {"accidents": ("lost",)}),
    "look again": (("repack",), {}),
    "start again": (("repack",), {}),
    "verify": (("repack",), {}),
}
"""The same for a dir segment. The other rules are about hard links of a file, or about the archive."""


NEEDED_BY_HEAL = {
    "sync files": ("changed",),
    "verify linked": ("changed", "over"),
    "keep damaged": ("changed",),
}
"""The accidents that show that a heal needs a rule, too."""


def name(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(f"{key}-{each}" for key, each in value.items()) or "alone"
    return "-".join(value) if isinstance(value, tuple) else str(value)


def reached(protocol: Protocol) -> set[State]:
    """Return all states of a model."""
    found, waiting = {protocol.start()}, [protocol.start()]
    while waiting:
        new = {after for _, after in protocol.steps(waiting.pop())} - found
        found |= new
        waiting += new
    return found


def explored(jobs: tuple[str, ...], options: dict[str, Any], **more: Any) -> Explored:
    return explore(Protocol(*jobs, **{**options, **more}))


@pytest.mark.parametrize(("jobs", "options"), ALONE, ids=name)
def test_nothing_is_lost_and_no_reader_fails(jobs, options):
    found = explored(jobs, options)
    assert found.violation is None, str(found)


@pytest.mark.check
@pytest.mark.parametrize(("jobs", "options"), KEEPING, ids=name)
def test_a_plan_is_read_whatever_is_dropped(jobs, options):
    found = explored(jobs, options, keeps=True, readers=0)
    assert found.violation is None, str(found)


@pytest.mark.check
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_what_is_kept_is_no_data_whatever_others_do(accident):
    found = explored(("repack", "drop", "fix"), {}, keeps=True, accidents=[accident], readers=0)
    assert found.violation is None, str(found)


@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize(("jobs", "options"), DISTURBED, ids=name)
def test_nothing_is_lost_and_no_wrong_bytes_are_read_whatever_others_do(jobs, options, accident):
    found = explored(jobs, options, accidents=[accident])
    assert found.violation is None, str(found)


@pytest.mark.parametrize("accident", ACCIDENTS[:-1])
def test_what_a_heal_replaces_is_not_lost_whatever_others_do(accident):
    found = explored(("heal",), {}, accidents=["changed", accident])
    assert found.violation is None, str(found)


@pytest.mark.parametrize(("jobs", "options"), HEALED, ids=name)
def test_a_heal_loses_nothing(jobs, options):
    found = explored(jobs, options, accidents=["changed"])
    assert found.violation is None, str(found)


def test_a_heal_returns_what_was_changed():
    """Else the tests above would hold for a heal that does nothing."""
    protocol = Protocol("heal", accidents=["changed"], readers=0, crashes=0)
    ends = [state for state in reached(protocol) if not state.program and not state.accidents]
    healed = [state.row(DATASET).data <= {*state.file((DATASET, 0)).data} for state in ends]
    assert {*healed} == {True, False}  # false: it changed after the heal


@pytest.mark.check
@pytest.mark.parametrize(("jobs", "options"), MOVING, ids=name)
def test_a_move_loses_nothing_and_no_reader_fails(jobs, options):
    found = explored(jobs, options)
    assert found.violation is None, str(found)


@pytest.mark.parametrize("accident", [*ACCIDENTS, *THERE])
@pytest.mark.parametrize(("jobs", "options"), MOVES, ids=name)
def test_a_move_loses_nothing_whatever_others_do(jobs, options, accident):
    found = explored(jobs, options, accidents=[accident])
    assert found.violation is None, str(found)


@pytest.mark.check
@pytest.mark.parametrize("accident", BY_HAND)
@pytest.mark.parametrize(("jobs", "options"), TOUCHED, ids=name)
def test_what_people_move_and_copy_is_not_lost_and_is_counted_once(jobs, options, accident):
    """No reader looks on: its query may fail while people move what it reads."""
    found = explored(jobs, options, accidents=[accident], readers=0)
    assert found.violation is None, str(found)


@pytest.mark.parametrize("accident", MOUNTS)
@pytest.mark.parametrize(("jobs", "options"), AWAY, ids=name)
def test_nothing_is_moved_to_or_forgotten_from_a_disk_that_is_away(jobs, options, accident):
    found = explored(jobs, options, accidents=[accident], is_other_disk=True, readers=0)
    assert found.violation is None, str(found)


@pytest.mark.parametrize(
    ("job", "begin", "target"),
    [("archive", "dataset", ARCHIVE), ("unarchive", "archive", DATASET), ("rename", "archive", RENAMED)],
)
@pytest.mark.parametrize("option", [{}, {"is_other_disk": True}, {"is_folder": True}], ids=name)
def test_a_move_ends_at_the_target(job, begin, target, option):
    """Else the tests above would hold for a move that does nothing."""
    protocol = Protocol(job, begin=begin, readers=0, crashes=0, **option)
    (end,) = [state for state in reached(protocol) if not state.program]
    assert {name for name, _ in end.disk.files if name[0] in (begin, target)} == {(target, 0)}
    assert [(place, row.moved_from) for place, row in end.index.rows] == [(target, None)]


@pytest.mark.parametrize("accident", [each for each in ACCIDENTS if each not in ("linked", "changed")])
@pytest.mark.parametrize(("jobs", "options"), FOLDERS, ids=name)
def test_no_folder_is_lost_whatever_others_do(jobs, options, accident):
    found = explored(jobs, options, accidents=[accident])
    assert found.violation is None, str(found)


def test_every_rule_is_shown_to_be_needed():
    assert NEEDED.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_there_is_a_violation(rule):
    jobs, options = NEEDED[rule]
    with_it, without_it = explored(jobs, options), explored(jobs, options, without=[rule])
    assert with_it.violation is None, str(with_it)
    assert without_it.violation is not None


@pytest.mark.parametrize("job", ["append", "repack", "drop", "archive"])
def test_every_job_needs_a_settled_log(job):
    assert explored((job,), {}, without=["settle log"]).violation is not None


@pytest.mark.parametrize("rule", NEEDED_BY_HEAL)
def test_without_this_rule_there_is_a_violation_of_a_heal(rule):
    with_it, without_it = (
        explored(("heal",), {}, accidents=NEEDED_BY_HEAL[rule], without=rules) for rules in ([], [rule])
    )
    assert with_it.violation is None, str(with_it)
    assert without_it.violation is not None


@pytest.mark.parametrize("rule", NEEDED_BY_FOLDERS)
def test_without_this_rule_there_is_a_violation_of_a_folder(rule):
    jobs, options = NEEDED_BY_FOLDERS[rule]
    with_it, without_it = (explored(jobs, options, is_folder=True, without=rules) for rules in ([], [rule]))
    assert with_it.violation is None, str(with_it)
    assert without_it.violation is not None


@pytest.mark.crash
@pytest.mark.parametrize(("jobs", "options"), LARGE, ids=name)
def test_nothing_is_lost_with_two_readers_and_two_crashes(jobs, options):
    found = explored(jobs, options, readers=2, crashes=2)
    assert found.violation is None, str(found)


@pytest.mark.crash
@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize(("jobs", "options"), DISTURBED + MOVES, ids=name)
def test_nothing_is_lost_with_two_crashes_whatever_others_do(jobs, options, accident):
    found = explored(jobs, options, crashes=2, accidents=[accident])
    assert found.violation is None, str(found)


@pytest.mark.crash
@pytest.mark.parametrize(("jobs", "options"), KEEPING, ids=name)
def test_a_plan_is_read_beside_a_query_after_two_crashes(jobs, options):
    found = explored(jobs, options, keeps=True, crashes=2 if len(jobs) < 3 else 1)
    assert found.violation is None, str(found)


class Counter:
    """A model with a violation at 5."""

    def start(self) -> int:
        return 0

    def steps(self, state: int) -> list[tuple[str, int]]:
        if state == 5:
            raise Violation("five")
        return [("one more", state + 1), ("two more", state + 2), ("nothing", state)]


def test_the_path_to_a_violation_is_a_shortest_one():
    found = explore(Counter())
    assert found.violation == "five"
    assert sorted(found.path) == ["one more", "two more", "two more"]
    assert str(found).splitlines()[1:] == [f"  {step}" for step in found.path]


def test_a_model_with_too_many_states_is_an_error():
    with pytest.raises(OverflowError, match="more than 3 states"):
        explore(Counter(), most=3)


def test_a_power_cut_keeps_any_subset_of_what_was_not_synced():
    disk = Disk().create(("dataset", 0), Inode(1, (1,))).sync("dataset").create(("dataset", 2), Inode(2, (2,), (2,)))
    disk = disk.rename(("dataset", 0), ("dataset", 3))
    left = {tuple(sorted(number for (_, number), _ in each.files)) for each in disk.after_power_cut()}
    assert left == {(0,), (3,), (0, 2), (2, 3)}
    assert {each.file(1).data for each in disk.after_power_cut()} == {(), (1,)}
    assert {each.file(2).data for each in disk.after_power_cut()} == {(2,)}


def test_a_power_cut_leaves_a_renamed_folder_at_one_of_its_names_with_all_that_is_in_it():
    disk = (
        Disk().make_folder("archive").sync("above the archive").create(("archive", 0), Inode(1, (1,))).sync("archive")
    )
    disk = disk.create(("archive", 2), Inode(2, (2,))).rename_folder("archive", "renamed").sync("renamed")
    for after, places in ((disk, {"archive", "renamed"}), (disk.sync("above the renamed"), {"renamed"})):
        left = [{name for name, _ in each.files if name[0] in PLACES} for each in after.after_power_cut()]
        assert {*map(frozenset, left)} == {frozenset([(place, 0), (place, 2)]) for place in places}


def test_a_power_cut_keeps_what_was_synced_or_the_beginning_of_what_was_written_since():
    left = Inode(1, (1, 3, 4), (1, 2)).after_power_cut()
    assert {each.data for each in left} == {(1, 2), (1,), (1, 3), (1, 3, 4)}


def test_a_power_cut_keeps_the_synced_commits_of_a_log_and_any_of_the_others():
    main, *after = (Index(counter=number) for number in range(4))
    first, second, third = ((each, frozenset[int]()) for each in after)
    left = {each.last.counter for each in Log(main, (first, second), 1, third).after_power_cut()}
    assert left == {1, 2, 3}
