"""Accidents with files of others: unknown segments, strays under hidden names, indices and archives of elsewhere."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import ondisk

from .law import must
from .table import accident
from .tools import cp, cp_p, lose_index, put_index, tool
from .victim import ARCHIVED, DIRS, FILES, LINES, A, B, C, Victim, number_of, numbers_of, payload, token, variant

NEW_DAY = 9
STRANGE = (number_of(NEW_DAY, 0), number_of(NEW_DAY, 200), number_of(NEW_DAY, 400))
COPIED = {"check": ("UNALIGNED",), "fix": 0, "repack": 9, "maintain": 0, "quiet": True}


def copied_in(victim: Victim, *, old: bool = False) -> None:
    """Copy a segment of another dataset into this one."""
    other = victim.foreign(*STRANGE)
    cp_p(other.file(NEW_DAY), victim.file(NEW_DAY))
    if old:
        tool("find", victim.file(NEW_DAY), "-exec", "touch", "-d", "2020-01-01", "{}", "+")
    victim.given |= other.given


@accident("03-unknown-copied-in", **COPIED)
def _(victim: Victim) -> None:
    copied_in(victim)


@accident("03-unknown-with-an-old-time", **COPIED)
def _(victim: Victim) -> None:
    copied_in(victim, old=True)


@accident("03-unknown-then-repack-twice", **COPIED)
def _(victim: Victim) -> None:
    copied_in(victim, old=True)
    victim.repack()
    victim.repack()


@accident("03-unknown-then-other-commits", **COPIED)
def _(victim: Victim) -> None:
    copied_in(victim, old=True)
    must(0, victim.append(number_of(B, 650)))
    victim.delete(number_of(C, 200))
    victim.repack()


@accident("03-unknown-then-append-there", fix=0, maintain=0, quiet=True)
def _(victim: Victim) -> None:
    copied_in(victim)
    victim.append(number_of(NEW_DAY, 500))


@accident("x-unknown-half-copied", check=("UNALIGNED", "CORRUPTED"), quiet=True)
def _(victim: Victim) -> None:
    """The copy of a segment stopped in its middle."""
    copied_in(victim)
    if victim.kind in DIRS:
        shutil.rmtree(victim.file(NEW_DAY))
        victim.file(NEW_DAY).mkdir()
        (source,) = victim.path.parent.glob("other*/2024/*/000001.*")
        shutil.copy2(source, victim.file(NEW_DAY))
    else:
        os.truncate(victim.file(NEW_DAY), victim.file(NEW_DAY).stat().st_size // 2)
    victim.destroyed = {*STRANGE}
    if victim.kind == "odimh5":
        victim.untraceable = victim.destroyed  # nothing says how many files there were


@accident("x-folder-of-another-dataset-copied-in", **COPIED)
def _(victim: Victim) -> None:
    """Its segments have names that this dataset does not have, and data that it has."""
    other = victim.foreign(*STRANGE, number_of(8, 0))
    tool("cp", "-rpT", other.path / "2024", victim.folder)
    victim.given |= other.given


def stray(content: Callable[[bytes, bytes], bytes], later: int = 0) -> Callable[[Victim], None]:
    """Put a file at the hidden name of the segment's generation, or of a later one."""

    def happen(victim: Victim) -> None:
        good, other = victim.file(A).read_bytes(), victim.file(B).read_bytes()
        name = f".{victim.file(A).name}.{victim.generation(A) + later}"
        victim.file(A).with_name(name).write_bytes(content(good, other))

    return happen


SIZES = {
    "smaller": lambda good, other: other[: len(good) // 2],
    "equal": lambda good, other: (other * 2)[: len(good)],
    "larger": lambda good, other: other * 2,
    "empty": lambda good, other: b"",
}
for name, content in SIZES.items():
    accident(f"06-stray-generation-{name}", fix=(0, 9), repack=(0, 9), maintain=(0, 9), kinds=FILES)(stray(content))
    accident(f"06-stray-next-generation-{name}", fix=(0, 9), repack=(0, 9), maintain=(0, 9), kinds=FILES)(
        stray(content, later=1)
    )


@accident("06-stray-generation-folder", fix=(0, 9), repack=(0, 9), maintain=(0, 9), kinds=("blob",))
def _(victim: Victim) -> None:
    hidden = victim.file(A).with_name(f".{victim.file(A).name}.{victim.generation(A)}")
    cp_p(victim.file(B), hidden)


@accident("06-stray-generation-and-the-index-lost", repack=31, kinds=FILES)
def _(victim: Victim) -> None:
    stray(SIZES["larger"])(victim)
    for each in victim.path.glob("index.sqlite*"):
        each.unlink()


@accident("09-index-of-another-dataset", repack=31)
def _(victim: Victim) -> None:
    put_index(victim.foreign(number_of(7, 0), number_of(7, 100)).path, victim.path)


@accident("09-index-of-a-dataset-with-the-same-segments", repack=31)
def _(victim: Victim) -> None:
    other = victim.foreign(*(number_of(day, minute) for day in ARCHIVED for minute in (100, 300, 500, 650)))
    put_index(other.path, victim.path)


@accident("09-index-of-an-empty-dataset", repack=31)
def _(victim: Victim) -> None:
    put_index(victim.foreign().path, victim.path)


@accident("x-copied-to-another-day-and-fixed-then-the-original-removed", answered=False)
def _(victim: Victim) -> None:
    cp(victim.file(A), victim.file(NEW_DAY))
    victim.fix()
    remove(victim.file(A))


@accident("x-copied-to-an-earlier-day-and-index-lost", maintain=0)
def _(victim: Victim) -> None:
    """Read first, the copy would make the segment with the right name a second copy."""
    cp(victim.file(B), victim.file(A).with_name(f"02-28.{victim.extension}"))
    lose_index(victim.path)


def remove(segment: Path) -> None:
    tool("rm", "-r", segment)


@accident("14-zeros-unknown", check=("CORRUPTED",), fix=9, repack=9, maintain=9)
def _(victim: Victim) -> None:
    victim.file(NEW_DAY).write_bytes(bytes(49 * 1024))
    victim.kept.append(bytes(49 * 1024))


@accident("14-zeros-over-a-segment", answered=False, kinds=FILES)
def _(victim: Victim) -> None:
    victim.file(A).write_bytes(bytes(49 * 1024))
    victim.destroyed = numbers_of(A)


@accident("14-zeros-over-a-segment-and-the-index-lost", answered=False, kinds=FILES, repack=31)
def _(victim: Victim) -> None:
    victim.file(A).write_bytes(bytes(49 * 1024))
    for each in victim.path.glob("index.sqlite*"):
        each.unlink()
    victim.kept.append(bytes(49 * 1024))
    victim.destroyed = numbers_of(A)


@accident("x-something-else-under-a-name", check=("CORRUPTED",), fix=9, repack=9, maintain=9)
def _(victim: Victim) -> None:
    victim.file(NEW_DAY).write_bytes(b"a shopping list\n" * 100)
    victim.kept.append(b"a shopping list\n" * 100)


@accident("x-something-else-over-a-segment", answered=False, kinds=FILES)
def _(victim: Victim) -> None:
    victim.file(A).write_bytes(b"a shopping list\n" * 100)
    victim.kept.append(b"a shopping list\n" * 100)
    victim.destroyed = numbers_of(A)


@accident("02-lines-inserted-and-sentinel", fix=(0, 9), repack=31, maintain=0, kinds=LINES, quiet=True)
def _(victim: Victim) -> None:
    insert(victim)
    (victim.path / "needs-check-do-not-pack").touch()


@accident("02-lines-inserted", check=("UNALIGNED",), fix=(0, 9), repack=9, maintain=0, kinds=LINES)
def _(victim: Victim) -> None:
    insert(victim)


def insert(victim: Victim) -> None:
    """Insert lines before the others, as an editor does."""
    other = victim.foreign(number_of(A, 100), number_of(A, 300))
    lines = other.file(A).read_bytes()
    victim.file(A).write_bytes(lines + victim.file(A).read_bytes())
    victim.given |= other.given


@accident("22-line-added-by-hand", kinds=LINES, quiet=True, answered=False)
def _(victim: Victim) -> None:
    add_line(victim)


@accident("22-line-added-then-repack", kinds=LINES, quiet=True, answered=False)
def _(victim: Victim) -> None:
    victim.delete(number_of(A, 200))
    add_line(victim)
    victim.repack()
    victim.revives = True


@accident("22-line-added-then-append", kinds=LINES, quiet=True, answered=False)
def _(victim: Victim) -> None:
    add_line(victim)
    victim.append(number_of(A, 655))


def add_line(victim: Victim) -> None:
    number = number_of(A, 650)
    other = victim.foreign(number)
    with victim.file(A).open("ab") as file:
        file.write(other.file(A).read_bytes())
    victim.given.add(number)


@accident("22-file-added-to-a-folder", kinds=("blob",), answered=False, quiet=True)
def _(victim: Victim) -> None:
    """A file is put into the folder by hand: nothing describes it."""
    content = payload(number_of(A, 650), "blob")
    (victim.file(A) / "000009.blob").write_bytes(content)
    victim.kept.append(content)


@accident("22-other-segment-added", kinds=("lz4", "plain"), quiet=True, answered=False)
def _(victim: Victim) -> None:
    """`cat other.seg >> segment`: a header stands in the middle of the file."""
    number = number_of(A, 650)
    other = victim.foreign(number)
    with victim.file(A).open("ab") as file:
        file.write(other.file(A).read_bytes())
    victim.maybe.add(number)


EXPECTED = sorted(numbers_of(B))
"""Data of which somebody has others, with the same unique values."""


def others(victim: Victim, kind: str | None = None) -> Victim:
    """Make another dataset with data that have the unique values of those of a day here, and other contents."""
    other = Victim(victim.path.parent / "other", kind or victim.kind)
    other.create(other.path)
    victim.variants += [variant(each, other.kind) for each in EXPECTED]
    with ondisk.open(other.path) as dataset:
        assert dataset.append(victim.variants).imported == len(EXPECTED)
    return other


def both_are_there(victim: Victim) -> None:
    """Repack, then look for the bytes of both on disk: neither was asked to be removed."""
    victim.repack()
    victim.maintain()
    contents = [each.read_bytes() for each in victim.segments_on_disk()]
    for each in EXPECTED:
        for number in (each, each + 100_000):
            assert any(token(number).encode() in content for content in contents), f"{number} is gone: {victim.codes}"


OTHER_CONTENTS = {"fix": 9, "maintain": 9, "answered": False, "quiet": True, "after": both_are_there}
SOME = ("vm2", "jsonl", "lz4", "blob")


@accident("x-other-contents-under-the-name-before", kinds=SOME, **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    cp_p(others(victim).file(B), victim.file(B).with_name(f"02-29.{victim.extension}"))


@accident("x-other-contents-under-the-name-before-and-the-index-lost", kinds=SOME, repack=31, **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    """Fix reads them first, so they count."""
    cp_p(others(victim).file(B), victim.file(B).with_name(f"02-29.{victim.extension}"))
    lose_index(victim.path)


@accident("x-other-contents-under-the-name-after-and-the-index-lost", kinds=SOME, repack=31, **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    cp_p(others(victim).file(B), victim.file(NEW_DAY))
    lose_index(victim.path)


@accident("x-other-contents-in-another-format", kinds=("vm2", "lz4", "blob"), **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    cp_p(others(victim, "jsonl").file(B), victim.file(B).with_suffix(".jsonl"))


@accident("x-other-contents-in-another-format-and-the-index-lost", kinds=("vm2", "lz4"), repack=31, **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    cp_p(others(victim, "jsonl").file(B), victim.file(B).with_suffix(".jsonl"))
    lose_index(victim.path)


@accident("x-other-contents-inserted", kinds=LINES, **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    victim.file(B).write_bytes(others(victim).file(B).read_bytes() + victim.file(B).read_bytes())


@accident("x-other-contents-appended-after-the-index-was-lost", kinds=SOME, places=("dataset",), **OTHER_CONTENTS)
def _(victim: Victim) -> None:
    """An import goes on; the new index does not know that it stores data which are there already."""
    others(victim)
    lose_index(victim.path)
    with warnings.catch_warnings(), ondisk.open(victim.path) as dataset:
        warnings.simplefilter("ignore")
        assert dataset.append(victim.variants).imported == len(EXPECTED)
