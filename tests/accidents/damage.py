"""Accidents that destroy bytes: zeros, cuts, flipped bits, editors, and rows of the index changed by hand."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ondisk import Datum

from .law import must, must_fail
from .table import accident
from .tools import flip, lose_index, mv, overwrite, same_time, tool
from .victim import DIRS, FILES, LINES, SEGS, A, B, Victim, area, datum, number_of, numbers_of, payload

HOLE = (4096, 4096 + 8192)
MANY = [minute for minute in range(1, 390) if minute != 200]
"""Minutes of data that make a segment longer than the hole and the tail that is compared."""
SECOND = number_of(A, 200)
OTHER = number_of(A, 999)


def holed(punch: Callable[[Victim], None], *, lost: bool = False, rot: bool = False) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        if victim.place:
            victim.run("unarchive", victim.name(A), "--yes")
        for some in (MANY[::2], MANY[1::2]):
            must(0, victim.append(*(number_of(A, minute) for minute in some)))
        if victim.place:
            must(0, victim.run("archive", victim.name(A), "--yes"))
        size = victim.file(A).stat().st_size
        assert size > HOLE[1] + 4096, f"the hole and the tail need more than {size} bytes"
        victim.destroyed = victim.within(A, *HOLE)
        if rot:
            with same_time(victim.file(A)):
                punch(victim)
            victim.is_rot = True
        else:
            punch(victim)
        if lost:
            lose_index(victim.path)

    return happen


def zero(victim: Victim) -> None:
    overwrite(victim.file(A), HOLE[0], bytes(HOLE[1] - HOLE[0]))


def punch(victim: Victim) -> None:
    tool("fallocate", "-p", "-o", HOLE[0], "-l", HOLE[1] - HOLE[0], victim.file(A))


for name, how in {"zeroed": zero, "punched": punch}.items():
    accident(f"07-{name}", fix=8, maintain=8, kinds=FILES)(holed(how))
    accident(f"07-{name}-index-lost", fix=8, repack=31, maintain=8, kinds=FILES)(holed(how, lost=True))
accident("07-rot", kinds=FILES)(holed(zero, rot=True))


@accident("07-zeroed-then-delete-and-repack", kinds=FILES)
def _(victim: Victim) -> None:
    holed(zero)(victim)
    victim.delete(number_of(A, 600))
    victim.repack()
    victim.revives = True


@accident("07-rot-then-delete-and-repack", kinds=FILES)
def _(victim: Victim) -> None:
    holed(zero, rot=True)(victim)
    victim.delete(number_of(A, 600))
    victim.repack()
    victim.revives = True


@accident("07-zeroed", kinds=("blob",))
def _(victim: Victim) -> None:
    part = victim.part(SECOND)
    overwrite(part, 0, bytes(part.stat().st_size))
    victim.destroyed = {SECOND}


@accident("07-zeroed-index-lost", kinds=("blob",), fix=8, repack=31, maintain=8)
def _(victim: Victim) -> None:
    part = victim.part(SECOND)
    overwrite(part, 0, bytes(part.stat().st_size))
    lose_index(victim.path)
    victim.destroyed = {SECOND}


@accident("x-file-of-a-datum-removed", kinds=("blob",), check=("CORRUPTED",), fix=9, repack=9, maintain=9)
def _(victim: Victim) -> None:
    victim.part(SECOND).unlink()
    victim.destroyed = {SECOND}


@accident("x-file-of-a-datum-cut", kinds=("blob",))
def _(victim: Victim) -> None:
    os.truncate(victim.part(SECOND), 5)
    victim.destroyed = {SECOND}


@accident("x-files-of-two-data-swapped", kinds=("blob",), answered=False)
def _(victim: Victim) -> None:
    one, other = victim.part(SECOND), victim.part(number_of(A, 400))
    mv(one, one.with_name("other"))
    mv(other, one)
    mv(one.with_name("other"), other)


@accident("x-metadata-of-a-folder-lost", kinds=("blob",), answered=False)
def _(victim: Victim) -> None:
    (victim.file(A) / ".metadata").unlink()


@accident("x-metadata-of-a-folder-lost-and-the-index", kinds=("blob",), answered=False, repack=31)
def _(victim: Victim) -> None:
    (victim.file(A) / ".metadata").unlink()
    lose_index(victim.path)


@accident("x-older-metadata-of-a-folder", kinds=("blob",), places=("dataset",), answered=False)
def _(victim: Victim) -> None:
    backup = victim.backup(victim.file(A) / ".metadata")
    must(0, victim.append(number_of(A, 650)))
    shutil.copy2(backup, victim.file(A) / ".metadata")


@accident("x-older-sequence-of-a-folder", kinds=("blob",), places=("dataset",))
def _(victim: Victim) -> None:
    backup = victim.backup(victim.file(A) / ".sequence")
    must(0, victim.append(number_of(A, 650)))
    shutil.copy2(backup, victim.file(A) / ".sequence")


def cut(victim: Victim, *, lost: bool) -> None:
    """Cut a segment in the middle of its last datum."""
    last = number_of(A, 600)
    size = victim.file(A).stat().st_size
    victim.destroyed = victim.within(A, size - 8, size) | {last}
    os.truncate(victim.file(A), size - 8)
    if lost:
        lose_index(victim.path)


@accident("13-cut", check=("CORRUPTED",), fix=9, repack=9, maintain=9, kinds=FILES, answered=False)
def _(victim: Victim) -> None:
    cut(victim, lost=False)


@accident("13-cut-index-lost", fix=8, repack=31, maintain=8, kinds=(*LINES, *SEGS))
def _(victim: Victim) -> None:
    cut(victim, lost=True)


# An append moves what is left of a message to quarantine, and says so: no later command finds a trace.
@accident("13-cut-index-lost", fix=8, repack=31, maintain=8, kinds=("grib",), orders=("fix", "repack", "maintain"))
def _(victim: Victim) -> None:
    cut(victim, lost=True)


@accident("13-cut-between-data-index-lost", fix=8, repack=31, maintain=8, kinds=SEGS)
def _(victim: Victim) -> None:
    """What is left are whole frames: only the count in the header tells."""
    os.truncate(victim.file(A), after_first_half(victim))
    lose_index(victim.path)
    victim.destroyed = {number_of(A, 400), number_of(A, 600)}


def after_first_half(victim: Victim) -> int:
    """Return where the file ended after the first append, which stored two data."""
    if victim.kind == "lz4":
        return int(victim.sql("SELECT max(position) FROM block WHERE segment = ?", victim.generation(A))[0][0])
    return victim.rows(A)[2][1]


@accident("13-cut-to-nothing-index-lost", fix=(8, 9), repack=31, maintain=(8, 9), kinds=FILES)
def _(victim: Victim) -> None:
    """Nothing tells how much there was."""
    os.truncate(victim.file(A), 0)
    lose_index(victim.path)
    victim.destroyed = victim.untraceable = numbers_of(A)


@accident("13-cut-to-nothing", fix=9, repack=9, maintain=9, kinds=FILES, answered=False)
def _(victim: Victim) -> None:
    os.truncate(victim.file(A), 0)
    victim.destroyed = numbers_of(A)


@accident("x-header-lost-index-lost", kinds=SEGS, answered=False, repack=31)
def _(victim: Victim) -> None:
    overwrite(victim.file(A), 0, bytes(4))
    lose_index(victim.path)
    victim.destroyed = numbers_of(A)


@accident("15-swapped", answered=False)
def _(victim: Victim) -> None:
    aside = victim.path.parent / "aside"
    mv(victim.file(A), aside)
    mv(victim.file(B), victim.file(A))
    mv(aside, victim.file(B))


@accident("15-swapped-and-back", fix=0, repack=(0, 9), maintain=0)
def _(victim: Victim) -> None:
    aside = victim.path.parent / "aside"
    for _ in range(2):
        mv(victim.file(A), aside)
        mv(victim.file(B), victim.file(A))
        mv(aside, victim.file(B))


def digit(victim: Victim) -> None:
    """Change a digit of the second line's value: the line is still one of VM2, or of JSON."""
    content = victim.file(A).read_bytes()
    line = payload(SECOND, victim.kind)
    if victim.kind == "vm2":
        changed = line.replace(b",1.25,", b",1.75,")
        made = Datum(datum(SECOND, "vm2").reftime, datum(SECOND, "vm2").metadata, changed)
    else:
        line, changed = b'"n":1200', b'"n":1700'
        made = Datum(datum(SECOND, "jsonl").reftime, {"area": "VM2,1200"}, datum(SECOND, "jsonl").data | {"n": 1700})
    assert content.count(line) == 1
    overwrite(victim.file(A), content.index(line), changed)
    victim.variants.append(made)
    victim.destroyed = {SECOND}


@accident("15-digit-changed", kinds=LINES, check=("UNALIGNED",), fix=8, maintain=8)
def _(victim: Victim) -> None:
    digit(victim)


@accident("15-digit-changed-by-rot", kinds=LINES)
def _(victim: Victim) -> None:
    with same_time(victim.file(A)):
        digit(victim)
    victim.is_rot = True
    victim.untraceable = {SECOND}  # the bytes on disk are a datum, and nobody wrote them


@accident("15-bit-flipped", kinds=("lz4", "plain", "blob"), fix=(8, 9), maintain=(8, 9))
def _(victim: Victim) -> None:
    bit(victim)


@accident("15-bit-flipped-by-rot", kinds=("lz4", "plain", "blob"))
def _(victim: Victim) -> None:
    with same_time(victim.part(SECOND)):
        bit(victim)
    victim.is_rot = True


@accident("15-bit-flipped-index-lost", kinds=("lz4", "plain", "blob"), fix=8, repack=31, maintain=8)
def _(victim: Victim) -> None:
    bit(victim)
    lose_index(victim.path)


def bit(victim: Victim) -> None:
    part = victim.part(SECOND)
    place = part.read_bytes().index(payload(SECOND, victim.kind)[:20]) + 5
    victim.destroyed = {SECOND} if victim.kind in DIRS else victim.within(A, place, place + 1)
    flip(part, place)


EDITS = {
    "offset-plus-1": "UPDATE datum SET offset = offset + 1 WHERE {}",
    "offset-minus-1": "UPDATE datum SET offset = offset - 1 WHERE {}",
    "size-plus-1": "UPDATE datum SET size = size + 1 WHERE {}",
    "size-minus-1": "UPDATE datum SET size = size - 1 WHERE {}",
    "reftime": "UPDATE datum SET reftime = reftime + 60000000 WHERE {}",
    "offset-of-the-next": "UPDATE datum SET offset = (SELECT min(offset) FROM datum AS o WHERE o.segment ="
    " datum.segment AND o.offset > datum.offset) WHERE {}",
    "row-deleted": "DELETE FROM datum WHERE {}",
    "fields-of-another": "UPDATE datum SET f_area = (SELECT id FROM value WHERE value = ?2) WHERE {}",
}
ROW = "f_area = (SELECT id FROM value WHERE value = ?1)"


def edited(name: str) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        mine, other = area(SECOND, victim.kind), area(OTHER, victim.kind)
        victim.sql("INSERT INTO value SELECT max(id) + 1, ? FROM value", other)
        victim.sql(EDITS[name].format(ROW), mine, *[other] * ("?2" in EDITS[name]))
        victim.is_rot = True
        victim.variants += as_edited(name, victim.kind)

    return happen


def as_edited(name: str, kind: str) -> list[Datum]:
    """Return what a query may make of the edited row until an accurate check has noticed it.

    No query compares the declared fields with the bytes. None of vm2 or grib compares the reftime: it returns
    their bytes without parsing them, and to look at the times of lines would make it 6 % slower.
    """
    stored = datum(SECOND, kind)
    if name == "fields-of-another":
        return [Datum(stored.reftime, {**stored.metadata, "area": area(OTHER, kind)}, stored.data)]
    if kind in ("vm2", "grib") and name == "reftime":
        return [Datum(stored.reftime + timedelta(minutes=1), stored.metadata, stored.data)]
    if kind in ("vm2", "grib") and name == "offset-of-the-next":
        following = min(number for number in numbers_of(A) if number > SECOND)
        other = datum(following, kind)
        return [Datum(stored.reftime, {**other.metadata, "area": area(SECOND, kind)}, other.data)]
    return []


for name in EDITS:
    accident(f"15-index-{name}", answered=False)(edited(name))


@accident("15-index-without-its-unique-index", answered=False)
def _(victim: Victim) -> None:
    """What is appended again must not be stored twice."""
    victim.sql("DROP INDEX datum_unique")
    victim.append(SECOND)


@accident("15-index-counters-lowered", answered=False)
def _(victim: Victim) -> None:
    victim.sql("UPDATE dataset SET seq = max(0, seq - 5), generation = max(0, generation - 3)")
    victim.append(number_of(A, 650))


@accident("15-index-committed-size-lowered", answered=False)
def _(victim: Victim) -> None:
    victim.sql("UPDATE segment SET size = size - 20, length = length - 20 WHERE name = ?", victim.name(A))
    victim.append(number_of(A, 650))


def rebuilt(victim: Victim) -> None:
    """Rebuild the index, which keeps nothing but the segments."""
    must(0, victim.run("fix", "--rebuild", "--yes"))
    victim.maintain()


@accident("24-half-of-the-index-zeroed", fix=63, repack=63, maintain=63, after=rebuilt)
def _(victim: Victim) -> None:
    lose_half(victim)
    named = must_fail(victim)
    assert f"{victim.path / 'index.sqlite'}" in str(named), f"the error does not name the damaged index: {named}"


def lose_half(victim: Victim) -> None:
    """Zero the second half of the index, which has no log then."""
    victim.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (victim.path / name).unlink(missing_ok=True)
    index = victim.path / "index.sqlite"
    half = index.stat().st_size // 2
    overwrite(index, half, bytes(half))


def length(victim: Victim) -> None:
    """Damage the length of the second frame; the frames after it are whole."""
    content = victim.file(A).read_bytes()
    (place,) = (offset for number, offset, _ in victim.rows(A) if number == SECOND)
    assert payload(SECOND, victim.kind) in content[place : place + 200]
    overwrite(victim.file(A), place, b"\x00\x00\x40\x11")
    victim.destroyed = {SECOND}


@accident("26-length-damaged", kinds=("plain",), fix=8, maintain=8)
def _(victim: Victim) -> None:
    length(victim)


@accident("26-length-damaged-index-lost", kinds=("plain",), fix=8, repack=31, maintain=8)
def _(victim: Victim) -> None:
    length(victim)
    lose_index(victim.path)


@accident("26-length-of-the-last-damaged", kinds=("plain",), fix=8, maintain=8, answered=False)
def _(victim: Victim) -> None:
    """A bit of the length behind the last frame: its payload is whole, and must stay on disk."""
    flip(victim.file(A), victim.file(A).stat().st_size - 2)


@accident("26-block-size-flipped-index-lost", kinds=("lz4",), fix=8, repack=31, maintain=8)
def _(victim: Victim) -> None:
    victim.destroyed = {number_of(A, 0), number_of(A, 200)}
    flip(victim.file(A), 12 + 7, bit=3)
    lose_index(victim.path)


@accident("26-block-size-flipped-high-index-lost", kinds=("lz4",), fix=8, repack=31, maintain=8)
def _(victim: Victim) -> None:
    victim.destroyed = {number_of(A, 0), number_of(A, 200)}
    flip(victim.file(A), 12 + 7 + 1, bit=6)
    lose_index(victim.path)


def descriptor(place: int) -> Callable[[Victim], None]:
    def happen(victim: Victim) -> None:
        flip(victim.file(A), 12 + place)
        lose_index(victim.path)

    return happen


for place in range(7):
    accident(f"26-descriptor-byte-{place}-index-lost", kinds=("lz4",), repack=31)(descriptor(place))


@accident("x-line-ends-changed", kinds=LINES, answered=False)
def _(victim: Victim) -> None:
    """An editor of Windows, or `git checkout` with autocrlf."""
    content = victim.file(A).read_bytes().replace(b"\n", b"\r\n")
    victim.file(A).write_bytes(content)
    victim.destroyed = numbers_of(A)
    victim.variants += [
        Datum(each.reftime, each.metadata, each.data + b"\r")
        for each in (datum(number, victim.kind) for number in numbers_of(A))
        if isinstance(each.data, bytes)
    ]


@accident("x-final-newline-added", kinds=LINES, quiet=True)
def _(victim: Victim) -> None:
    with victim.file(A).open("ab") as file:
        file.write(b"\n")


@accident("x-final-newline-removed", kinds=LINES, answered=False)
def _(victim: Victim) -> None:
    os.truncate(victim.file(A), victim.file(A).stat().st_size - 1)
    victim.destroyed = {number_of(A, 600)}


@accident("x-line-removed-by-an-editor", kinds=LINES, fix=(8, 9), maintain=(8, 9), answered=False)
def _(victim: Victim) -> None:
    tool("sed", "-i", "2d", victim.file(A))
    victim.destroyed = {SECOND}


@accident("x-lines-sorted", kinds=LINES)
def _(victim: Victim) -> None:
    """`sort -r -o`: all lines are there, in another order."""
    tool("sort", "-r", "-o", victim.file(A), victim.file(A))


@accident("x-spaces-at-line-ends-removed", kinds=LINES, fix=0, repack=(0, 9), maintain=0)
def _(victim: Victim) -> None:
    """An editor writes the same bytes to a new file, and renames it."""
    tool("sed", "-i", "s/ *$//", victim.file(A))


@accident("x-date-changed-by-an-editor", kinds=("vm2",), answered=False)
def _(victim: Victim) -> None:
    """A line of another day stands in the segment."""
    content = re.sub(rb"20240301(\d{4},1200)", rb"20240305\1", victim.file(A).read_bytes())
    victim.file(A).write_bytes(content)
    line = payload(SECOND, "vm2").replace(b"20240301", b"20240305")
    victim.variants.append(Datum(datetime(2024, 3, 5, 3, 20, tzinfo=UTC), datum(SECOND, "vm2").metadata, line))
    victim.destroyed = {SECOND}
