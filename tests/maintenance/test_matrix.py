"""The damage matrix: what check says of every kind of damage, what fix and repack do to it, and what a query gives.

Each case damages a small dataset (see `worlds`), then looks at it: damaged; fixed; fixed and repacked; repacked without
a fix. States are those of segment A, or by name; what is not named must be OK. Content is what a query gives: a letter
a datum, ! where it ends with an error, ? where that depends on the format.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.crashes import killed_in
from worlds import ARCHIVE_AGE, DAY, DELETE_AGE, EARLIER, GRIB, KINDS, START, A, B, C, Kind, World, rot

from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import IndexCorrupt, NeedsCheck
from ondisk.index import INDEX
from ondisk.maintenance.states import FIXED, State
from ondisk.segments import generations

LAST = ".archive/last/"
OK, NEEDS_CHECK = "", "NeedsCheck"


@dataclass(frozen=True)
class Case:
    """A row of the matrix.

    Attributes:
        damage: what happens to the dataset.
        found: states by check, and content.
        fixed: the same behind a fix.
        repacked: the same behind a fix and a repack.
        unfixed: the same behind a repack without a fix; NEEDS_CHECK where it must refuse.
        order: in which the data were appended.
    """

    damage: Callable[[World], None]
    found: tuple[str, str]
    fixed: tuple[str, str]
    repacked: tuple[str, str]
    unfixed: tuple[str, str] | str
    order: str = "0123"


def cut(world: World, size: int) -> None:
    os.truncate(world.file(A), size)


def cut_in_datum(world: World, number: int) -> None:
    cut(world, world.ends[number] + 5)


def write_behind(world: World, content: bytes) -> None:
    with world.file(A).open("ab") as file:
        file.write(content)


def last_datum_again(world: World) -> bytes:
    """Return the bytes of the last datum, whole, as an import that was not committed leaves them behind the others."""
    return world.file(A).read_bytes()[world.ends[3] :]


def in_lost_index(*then: Callable[[World], None]) -> Callable[[World], None]:
    def damage(world: World) -> None:
        world.lose_index()
        for each in then:
            each(world)

    return damage


def with_sentinel(*before: Callable[[World], None]) -> Callable[[World], None]:
    def damage(world: World) -> None:
        for each in before:
            each(world)
        world.sentinel()

    return damage


def deleted(*numbers: int) -> Callable[[World], None]:
    return lambda world: world.delete(*numbers)


def appended(*numbers: int) -> Callable[[World], None]:
    return lambda world: world.append(*numbers)


def aged(days: int, *before: Callable[[World], None]) -> Callable[[World], None]:
    def damage(world: World) -> None:
        for each in before:
            each(world)
        world.now = START.timestamp() + (days + 2) * DAY

    return damage


def unknown(segment: str, content: bytes | None = None, *, newer: bool) -> Callable[[World], None]:
    return lambda world: world.put(segment, world.foreign() if content is None else content, newer=newer)


def put_directory(world: World) -> None:
    world.file(A).unlink()
    world.file(A).mkdir()


def rename(world: World) -> None:
    world.file(A).rename(world.file(C))


def rename_back(world: World) -> None:
    world.file(A).rename(world.file(EARLIER))


def overlap(world: World) -> None:
    world.sql("UPDATE datum SET offset = (SELECT min(offset) FROM datum JOIN segment ON segment.id = segment"
              " WHERE name = ?) WHERE seq = (SELECT min(seq) + 1 FROM datum JOIN segment ON segment.id = segment"
              " WHERE name = ?)", world.name(A), world.name(A))  # fmt: skip


def other_reftime(world: World) -> None:
    """Have the index say that a datum of A is of another day."""
    world.sql("UPDATE datum SET reftime = reftime + 86400000000 WHERE seq = (SELECT min(seq) FROM datum JOIN segment"
              " ON segment.id = segment WHERE name = ?)", world.name(A))  # fmt: skip


def flip(world: World) -> None:
    """Flip the highest bit of a byte in datum 1, in the front part of it."""
    content = bytearray(world.file(A).read_bytes())
    content[world.ends[1] + 10] ^= 0x80
    rot(world.file(A), content)


def duplicate(world: World) -> None:
    """Have a datum of A in B as well, behind a lost index: A's was deleted when B's was stored."""
    world.delete(0)
    again = world.kind.datum(0, world.kind.datum(11).reftime)
    world.opened(lambda dataset: dataset.append([again]))
    world.lose_index()


def touch(world: World) -> None:
    os.utime(world.file(A), (2e9, 2e9))


def repack_killed_before_commit(world: World) -> None:
    world.delete(1)
    os.link(world.file(A), world.hidden(A, generation(world)))
    world.hidden(A, 99).write_bytes(b"half a segm")


def repack_killed_before_rename(world: World) -> None:
    world.delete(1)
    old = world.file(A).read_bytes()
    before = generation(world)
    world.repack()
    world.file(A).rename(world.hidden(A, generation(world)))
    world.file(A).write_bytes(old)
    os.link(world.file(A), world.hidden(A, before))


def repack_killed_behind_rename(world: World) -> None:
    world.delete(1)
    old = world.file(A).read_bytes()
    before = generation(world)
    world.repack()
    world.hidden(A, before).write_bytes(old)


def generation(world: World, place: str = "") -> int:
    return int(world.sql("SELECT id FROM segment WHERE name = ?", f"{place}{world.name(A)}")[0][0])


def archived(world: World) -> None:
    world.opened(lambda dataset: dataset.archive(world.name(A)))


def unarchived(world: World) -> None:
    world.opened(lambda dataset: dataset.unarchive(world.name(A)))


def killed_behind_commit(move: Callable[[World], None], *before: Callable[[World], None]) -> Callable[[World], None]:
    """Have a move killed after its commit, before the old file loses its name."""

    def damage(world: World) -> None:
        for each in before:
            each(world)
        with killed_in(generations, "leave"):
            move(world)

    return damage


def archive_killed_before_commits(world: World) -> None:
    archived(world)
    unarchived(world)  # an archive is there
    os.link(world.file(A), world.hidden(f"{LAST}{A}", 99))


def archive_killed_behind_commits(world: World) -> None:
    """The bytes of the dataset's last generation are still there, under their hidden name."""
    before, old = generation(world), world.file(A).read_bytes()
    archived(world)
    world.hidden(A, before).write_bytes(old)


def unarchive_killed_before_commits(world: World) -> None:
    archived(world)
    os.link(world.file(f"{LAST}{A}"), world.hidden(A, 99))


def unarchive_killed_behind_commits(world: World) -> None:
    archived(world)
    before, old = generation(world, LAST), world.file(f"{LAST}{A}").read_bytes()
    unarchived(world)
    world.hidden(f"{LAST}{A}", before).write_bytes(old)


def archive_killed_and_damaged(world: World) -> None:
    """Cut the file that the dataset still has; the archive's is another one."""
    killed_behind_commit(archived)(world)
    content = world.file(A).read_bytes()
    world.file(A).unlink()
    world.file(A).write_bytes(content[: world.ends[2]])


# A copy of a dataset has other inodes: there, what a killed move left is a file that a fix compares.
CASES = {
    "clean": Case(lambda world: None, (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
    "index deleted": Case(
        in_lost_index(), (f"{A}=UNALIGNED {B}=UNALIGNED", ""), (OK, "0123"), (OK, "0123"), NEEDS_CHECK),
    "index deleted then imported into": Case(
        in_lost_index(appended(3)), (f"{A}=UNALIGNED {B}=UNALIGNED", "3"), (OK, "0123"), (OK, "0123"), NEEDS_CHECK,
        order="012"),
    "segment removed": Case(
        lambda world: world.file(A).unlink(), ("MISSING", "!"), (OK, ""), (OK, ""), (OK, "")),
    "cut at a datum": Case(
        lambda world: cut(world, world.ends[2]), ("CORRUPTED", "!"), ("CORRUPTED", "!"), ("CORRUPTED", "!"),
        ("CORRUPTED", "!")),
    "cut inside a datum": Case(
        lambda world: cut_in_datum(world, 2), ("CORRUPTED", "!"), ("CORRUPTED", "!"), ("CORRUPTED", "!"),
        ("CORRUPTED", "!")),
    "emptied": Case(
        lambda world: cut(world, 0), ("CORRUPTED", "!"), ("CORRUPTED", "!"), ("CORRUPTED", "!"), ("CORRUPTED", "!")),
    "last datum deleted and cut off": Case(
        lambda world: (world.delete(3), cut(world, world.ends[3]))[1], ("DIRTY|CORRUPTED", "!"),
        ("DIRTY|CORRUPTED", "!"), ("DIRTY|CORRUPTED", "!"), ("DIRTY|CORRUPTED", "!")),
    "one datum deleted": Case(deleted(2), ("DIRTY", "013"), ("DIRTY", "013"), (OK, "013"), (OK, "013")),
    "all deleted": Case(deleted(0, 1, 2, 3), ("DELETED", ""), ("DELETED", ""), (OK, ""), (OK, "")),
    "hole at the start": Case(deleted(0), ("DIRTY", "123"), ("DIRTY", "123"), (OK, "123"), (OK, "123")),
    "hole in the middle": Case(deleted(1), ("DIRTY", "023"), ("DIRTY", "023"), (OK, "023"), (OK, "023")),
    "hole at the end": Case(deleted(3), ("DIRTY", "012"), ("DIRTY", "012"), (OK, "012"), (OK, "012")),
    "out of order": Case(
        lambda world: None, ("DIRTY", "0123"), ("DIRTY", "0123"), (OK, "0123"), (OK, "0123"), order="0213"),
    "overlap": Case(overlap, ("DIRTY|CORRUPTED", "?"), ("DIRTY|CORRUPTED", "?"), ("DIRTY|CORRUPTED", "?"),
                    ("DIRTY|CORRUPTED", "?")),
    "reftime outside the name": Case(
        other_reftime, ("DIRTY|CORRUPTED", "?"), ("DIRTY|CORRUPTED", "?"), ("DIRTY|CORRUPTED", "?"),
        ("DIRTY|CORRUPTED", "?")),
    "unknown file, older than the index": Case(
        unknown(C, newer=False), (f"{C}=UNALIGNED", "0123"), (OK, "0123ab"), (OK, "0123ab"),
        (f"{C}=UNALIGNED", "0123")),
    "unknown file, newer than the index": Case(
        unknown(C, newer=True), (f"{C}=UNALIGNED", "0123"), (OK, "0123ab"), (OK, "0123ab"),
        (f"{C}=UNALIGNED", "0123")),
    "unknown empty file": Case(
        unknown(C, b"", newer=True), (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
    "unknown file of zeros": Case(
        unknown(C, bytes(5000), newer=True), (f"{C}=CORRUPTED", "0123"), (f"{C}=CORRUPTED", "0123"),
        (f"{C}=CORRUPTED", "0123"), (f"{C}=CORRUPTED", "0123")),
    "unknown file of another kind": Case(
        unknown(C, b"\x89PNG\r\n\x1a\n" * 10, newer=False), (f"{C}=CORRUPTED", "0123"), (f"{C}=CORRUPTED", "0123"),
        (f"{C}=CORRUPTED", "0123"), (f"{C}=CORRUPTED", "0123")),
    "name of another step": Case(
        unknown("2026/11", newer=False), ("2026/11=CORRUPTED", "0123"), ("2026/11=CORRUPTED", "0123"),
        ("2026/11=CORRUPTED", "0123"), ("2026/11=CORRUPTED", "0123")),
    "renamed on disk": Case(
        rename, (f"{A}=MISSING {C}=UNALIGNED", "!"), (f"{C}=CORRUPTED", "0123"), (f"{C}=CORRUPTED", "0123"),
        (f"{C}=UNALIGNED", "")),
    "renamed on disk, to an earlier name": Case(
        rename_back, (f"{A}=MISSING {EARLIER}=UNALIGNED", "!"), (f"{EARLIER}=CORRUPTED", "0123"),
        (f"{EARLIER}=CORRUPTED", "0123"), (f"{EARLIER}=UNALIGNED", "")),
    "renamed on disk, sentinel": Case(
        with_sentinel(rename), (f"{A}=MISSING {C}=UNALIGNED", "!"), (f"{C}=CORRUPTED", "0123"),
        (f"{C}=CORRUPTED", "0123"), NEEDS_CHECK),
    "directory in place of a file": Case(put_directory, ("MISSING", "!"), (f"{A}=CORRUPTED", ""),
                                         (f"{A}=CORRUPTED", ""), (f"{A}=CORRUPTED", "")),
    "archive age": Case(
        aged(ARCHIVE_AGE), ("ARCHIVE_AGE", "0123"), ("ARCHIVE_AGE", "0123"), (OK, "0123"), (OK, "0123")),
    "archive age and dirty": Case(
        aged(ARCHIVE_AGE, deleted(1)), ("DIRTY|ARCHIVE_AGE", "023"), ("DIRTY|ARCHIVE_AGE", "023"), (OK, "023"),
        (OK, "023")),
    "delete age": Case(aged(DELETE_AGE), ("DELETE_AGE", "0123"), ("DELETE_AGE", "0123"), (OK, ""), (OK, "")),
    "delete age and dirty": Case(
        aged(DELETE_AGE, deleted(1)), ("DIRTY|DELETE_AGE", "023"), ("DIRTY|DELETE_AGE", "023"), (OK, ""), (OK, "")),
    "delete age and cut": Case(
        aged(DELETE_AGE, lambda world: cut(world, world.ends[2])), ("CORRUPTED|DELETE_AGE", "!"),
        ("CORRUPTED|DELETE_AGE", "!"), ("CORRUPTED|DELETE_AGE", "!"), ("CORRUPTED|DELETE_AGE", "!")),
    "segment newer than the index": Case(touch, (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
    "sentinel on clean": Case(with_sentinel(), (OK, "0123"), (OK, "0123"), (OK, "0123"), NEEDS_CHECK),
    "sentinel on dirty": Case(
        with_sentinel(deleted(1)), ("UNALIGNED", "023"), (OK, "0123"), (OK, "0123"), NEEDS_CHECK),
    "sentinel on all deleted": Case(
        with_sentinel(deleted(0, 1, 2, 3)), ("UNALIGNED", ""), (OK, "0123"), (OK, "0123"), NEEDS_CHECK),
    "sentinel on unknown": Case(
        with_sentinel(unknown(C, newer=False)), (f"{C}=UNALIGNED", "0123"), (OK, "0123ab"), (OK, "0123ab"),
        NEEDS_CHECK),
    "sentinel on cut": Case(
        with_sentinel(lambda world: cut(world, world.ends[2])), ("CORRUPTED", "!"), ("CORRUPTED", "!"),
        ("CORRUPTED", "!"), NEEDS_CHECK),
    "duplicate in rescan": Case(
        duplicate, (f"{A}=UNALIGNED {B}=UNALIGNED", ""), (f"{B}=DIRTY", "0123"), (OK, "0123"), NEEDS_CHECK),
    "flipped byte": Case(  # the copy of the world has other inodes, so the file is read
        flip, ("UNALIGNED", "!"), ("DIRTY|CORRUPTED", "023"), ("DIRTY|CORRUPTED", "023"), ("UNALIGNED", "!")),
    "flipped byte in a lost index": Case(
        in_lost_index(flip), (f"{A}=UNALIGNED {B}=UNALIGNED", ""), ("DIRTY|CORRUPTED", "023"),
        ("DIRTY|CORRUPTED", "023"), NEEDS_CHECK),
    "interrupted import, torn": Case(
        lambda world: write_behind(world, last_datum_again(world)[:-3]), ("DIRTY", "0123"), ("DIRTY", "0123"),
        (OK, "0123"), (OK, "0123")),
    "interrupted import, not committed": Case(
        lambda world: write_behind(world, last_datum_again(world)), ("DIRTY", "0123"), ("DIRTY", "0123"),
        (OK, "0123"), (OK, "0123")),
    "interrupted import in a lost index": Case(
        in_lost_index(lambda world: cut_in_datum(world, 3)), (f"{A}=UNALIGNED {B}=UNALIGNED", ""), ("DIRTY", "012"),
        (OK, "012"), NEEDS_CHECK),
    "repack killed before its commit": Case(
        repack_killed_before_commit, ("DIRTY", "023"), ("DIRTY", "023"), (OK, "023"), (OK, "023")),
    "repack killed before its rename": Case(
        repack_killed_before_rename, (OK, "023"), (OK, "023"), (OK, "023"), (OK, "023")),
    "repack killed behind its rename": Case(
        repack_killed_behind_rename, (OK, "023"), (OK, "023"), (OK, "023"), (OK, "023")),
    "archive killed before its commits": Case(
        archive_killed_before_commits, (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
    "archive killed after its commit": Case(
        killed_behind_commit(archived), (OK, "0123"), (OK, "0123"), (OK, "0123"), ("UNALIGNED", "0123")),
    "archive of a segment with holes killed after its commit": Case(
        killed_behind_commit(archived, deleted(1)), (f"{LAST}{A}=DIRTY", "023"),
        (f"{LAST}{A}=DIRTY", "023"), (OK, "023"),
        (f"{A}=UNALIGNED {LAST}{A}=DIRTY", "023")),
    "archive that merges killed after its commit": Case(
        killed_behind_commit(archived, archived, appended(2)), (OK, "0123"), (OK, "0123"), (OK, "0123"),
        ("UNALIGNED", "0123"), order="013"),
    "archive killed behind its commits": Case(
        archive_killed_behind_commits, (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
    "archive killed after its commit, then cut": Case(
        archive_killed_and_damaged, ("UNALIGNED", "0123"), (OK, "0123"), (OK, "0123"), ("UNALIGNED", "0123")),
    "unarchive killed before its commits": Case(
        unarchive_killed_before_commits, (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
    "unarchive killed after its commit": Case(
        killed_behind_commit(unarchived, archived), (OK, "0123"), (OK, "0123"), (OK, "0123"),
        (f"{LAST}{A}=UNALIGNED", "0123")),
    "unarchive that merges killed after its commit": Case(
        killed_behind_commit(unarchived, archived, appended(2)), (OK, "0123"), (OK, "0123"), (OK, "0123"),
        (f"{LAST}{A}=UNALIGNED", "0123"), order="013"),
    "unarchive killed behind its commits": Case(
        unarchive_killed_behind_commits, (OK, "0123"), (OK, "0123"), (OK, "0123"), (OK, "0123")),
}  # fmt: skip


def states_of(expected: str) -> dict[str, str]:
    if expected == OK:
        return {}
    if "=" not in expected:
        return {A: expected}
    return dict(each.split("=") for each in expected.split())


def look(world: World, expected: tuple[str, str]) -> None:
    """Check that states and content are as they should be."""
    states, content = expected
    assert world.states(world.check()) == states_of(states)
    if content != "?":
        assert world.content() == content


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind, str], World]:
    made: dict[tuple[str, str], World] = {}
    parent = tmp_path_factory.mktemp("templates")

    def template(kind: Kind, order: str) -> World:
        if (kind.name, order) not in made:
            path = parent / f"{kind.name}-{order}".replace(" ", "-")
            made[kind.name, order] = World.make(path, kind, map(int, order))
        return made[kind.name, order]

    return template


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] * (kind.name == "jsonl")) for kind in (*KINDS, GRIB)],
)
@pytest.mark.parametrize("name", CASES)
def test_a_damaged_segment_is_found_fixed_and_repacked_as_the_table_says(
    name: str, kind: Kind, templates: Callable[[Kind, str], World], tmp_path: Path
) -> None:
    case = CASES[name]
    world = templates(kind, case.order).copy(tmp_path / "damaged")
    case.damage(world)
    look(world, case.found)
    look(world, case.found)  # neither a check nor a query changed anything

    fixed = world.copy(tmp_path / "fixed")
    report = fixed.fix()
    look(fixed, case.fixed)
    assert not report.needs_check
    assert not (fixed.path / SENTINEL).exists()
    assert not [each for each in fixed.check() if each.state & FIXED and State.CORRUPTED not in each.state]
    fixed.fix()
    look(fixed, case.fixed)

    repacked = fixed.copy(tmp_path / "repacked")
    repacked.repack()
    look(repacked, case.repacked)
    left = repacked.states(repacked.check()).values()
    assert all("CORRUPTED" in each or each == "UNALIGNED" for each in left)
    repacked.repack()
    look(repacked, case.repacked)

    unfixed = world.copy(tmp_path / "unfixed")
    if isinstance(case.unfixed, str):
        with pytest.raises(NeedsCheck):
            unfixed.repack()
        assert (unfixed.file(A).read_bytes() if unfixed.file(A).is_file() else None) == (
            world.file(A).read_bytes() if world.file(A).is_file() else None
        )
    else:
        unfixed.repack()
        look(unfixed, case.unfixed)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 4080])
def test_garbage_in_place_of_the_index_is_refused_and_once_removed_the_index_is_as_deleted(
    content: bytes, templates: Callable[[Kind, str], World], tmp_path: Path
) -> None:
    world = templates(KINDS[0], "0123").copy(tmp_path / "dataset")
    world.lose_index()
    (world.path / INDEX).write_bytes(content)
    for verb in (world.check, world.fix, world.repack):
        with pytest.raises(IndexCorrupt):
            verb()
    assert (world.path / INDEX).read_bytes() == content
    world.lose_index()
    look(world, CASES["index deleted"].found)
    world.fix()
    look(world, (OK, "0123"))


def test_only_what_a_repack_is_to_remove_goes_from_the_disk(
    templates: Callable[[Kind, str], World], tmp_path: Path
) -> None:
    """Empty files and folders, those of no known format, hidden ones, and what stands in a segment's place, stay."""
    world = templates(KINDS[0], "0123").copy(tmp_path / "dataset")
    put_directory(world)
    (world.file(A) / "note").write_text("mine")
    for name in ("2026/notes.txt", "2026/.hidden.seg", "2026/11-23.damaged", "readme"):
        (world.path / name).write_text("mine")
    world.put(C, b"", newer=False)
    before = {path.relative_to(world.path) for path in world.path.rglob("*")}
    world.fix()
    world.repack()
    after = {path.relative_to(world.path) for path in world.path.rglob("*")}
    assert before <= after
    assert after - before <= {Path(f"{INDEX}-wal"), Path(f"{INDEX}-shm")}
