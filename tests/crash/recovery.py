"""What must hold after a crash, whatever it was."""

from __future__ import annotations

import contextlib
import io
import shutil
import struct
import tempfile
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from formats.diskqueue import beats_reader
from formats.diskqueue.decrypted import decrypted, iv_of, repeats_keystream
from worlds import lose_index

import ondisk
from ondisk.cli import main
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, OndiskError
from ondisk.formats.diskqueue import header
from ondisk.formats.diskqueue.blocks import END_MARK
from ondisk.maintenance.states import State
from ondisk.step import inner_of, place_of

from .workload import (
    CONFIG,
    KEYS,
    START,
    VERBS,
    Archive,
    Content,
    Line,
    Repack,
    Story,
    Unarchive,
    carry_out,
    check_index,
    copied_index,
    datum_of,
    day_of,
    file_of,
    kept,
    key,
    left_behind,
    line,
    lines_of,
    segment_of,
)

LATER = line(3650, 0, 1, 1)
"""A datum of a day that no workload touches."""

LAST = ".archive/last"

_LATER_STATION = 99
_COUNT = struct.Struct("<I")
_COUNT_SPAN = slice(4, 8)


def check(path: Path, acked: int, story: Story, *, in_order: bool = True) -> None:
    """Open the dataset after a crash: readers first, then a writer that takes the steps that are left.

    The steps may be taken again, whole or in part as they were done before: `unique` tells what is there, or marks.

    Args:
        in_order: what of the step that was not acknowledged is done was done in its order; else segment by segment.
    """
    possible = story.possible(acked)
    states = states_of(path)
    with ondisk.open(path, read_only=True) as dataset:
        found = lines_of(dataset)
        format = dataset.config.format
    assert found in possible or (not in_order and _is_whole_by_day(found, story.there(acked))), (
        f"{acked} steps were acknowledged, {len(found)} data are there"
    )
    check_index(path)
    check_committed(path)
    with ondisk.open(path) as dataset:
        assert lines_of(dataset) == found
        for step in story.steps[acked:]:
            carry_out(dataset, step)
        assert lines_of(dataset) == story.end
        check_carried_out(dataset, story)
        more = [LATER, *_one_for_each_segment(path)]
        result = dataset.append([datum_of(each, format) for each in more])
        assert result.imported == len(more)
    assert left_behind(path) == []
    check_kept(path)
    check_whole(path)
    with ondisk.open(path) as dataset:
        assert lines_of(dataset) == sorted([*story.end, *more])
        assert dataset.append([datum_of(LATER, format)]).imported == (0 if dataset.config.unique else 1)
    check_index(path)
    assert not any(repeats_keystream(one, other) for one in states for other in states_of(path))


def check_rebuilt(path: Path, acked: int, story: Story) -> None:
    """Lose the index after a crash, too, and fix: every datum is answered, once. Deleted data may come back.

    A batch that was not acknowledged may be there in part. The copy of the dataset that this works on is removed.
    """
    copy = path.with_name("rebuilt")
    shutil.copytree(path, copy, symlinks=True)
    lose_index(copy)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["fix", "--yes", str(copy)])
        assert code in (EXIT_DONE, EXIT_FINDINGS), f"fix ended with {code}: {said.getvalue()}"
        assert len(kept(copy)) == len(kept(path)) or code == EXIT_FINDINGS, "something is in quarantine, unsaid"
    found = check_answered(copy, acked, story, is_rebuilt=True)
    assert "come back" in said.getvalue() or not story.returned(acked, found), "deleted data are back, without a word"
    check_maintained(copy)
    left = check_answered(copy, acked, story, is_rebuilt=True)
    with ondisk.open(copy) as dataset:
        old = {day_of(each) for each in found} - {day_of(each) for each in left} if dataset.config.delete_age else set()
        assert left == [each for each in found if day_of(each) not in old]
        assert dataset.check(accurate=True).is_clean
    assert left_behind(copy) == []
    shutil.rmtree(copy)


def check_maintained(path: Path) -> None:
    """Maintain ends well; it may report, once, what it moved to quarantine, as nobody knows whose it was."""
    before = len(kept(path))
    code = main(["maintain", str(path)])
    if len(kept(path)) > before:
        assert code == EXIT_FINDINGS, f"maintain ended with {code}"
        code = main(["maintain", str(path)])
    assert code == EXIT_DONE, f"maintain ended with {code}"


def check_answered(path: Path, acked: int, story: Story, *, is_rebuilt: bool = False) -> Content:
    """Return what is there. What was acknowledged is, and nothing that nobody appended, nor anything twice.

    Args:
        is_rebuilt: its index was lost, so nobody knew which of two versions is newer: one may be in quarantine.
    """
    with ondisk.open(path, read_only=True) as dataset:
        found, is_unique = lines_of(dataset), bool(dataset.config.unique)
    given = story.given(acked)
    keys = Counter(map(key, found))
    assert [*(Counter(found) - Counter(story.appended))] == [], "nobody appended this, or not as often"
    assert not is_unique or [each for each, count in keys.items() if count > 1] == [], "it is there twice"
    there = {key(each): each for each in found}
    wrong = [lines for name, lines in given.items() if there.get(name) not in lines]
    aside = _in_quarantine(path) if is_rebuilt and wrong else b""
    assert [lines for lines in wrong if not any(line in aside for line in lines)] == [], "lost, or from before"
    return found


def _in_quarantine(path: Path) -> bytes:
    """Return all that is in quarantine, as it is, and the data of whole segments of seg as lines."""
    files = [each for each in path.rglob(".quarantine/*") if each.is_file()]
    found = [each.read_bytes() for each in files]
    with ondisk.open(path, read_only=True) as dataset:
        config = dataset.config
    if config.format == "seg":
        with (
            tempfile.TemporaryDirectory() as folder,
            ondisk.create(f"{folder}/d", config._replace(unique=())) as scratch,
        ):
            for file in files:
                with contextlib.suppress(OndiskError):  # records of items, and pieces
                    scratch.append_file(file)
            found += lines_of(scratch)
    return b"\n".join(found)


def check_kept(path: Path) -> None:
    """Only bytes of an append that was interrupted are in quarantine, and damaged files that a fix has rewritten."""
    for item in kept(path):
        is_tail = item.offset is not None and item.verb in {"append", "repack"}
        is_file = ("/" in item.file or item.segment.endswith(".seg")) and item.verb == "repack"  # of CTR the whole file
        assert is_tail or is_file or (item.is_whole and item.verb == "fix"), item


def _is_whole_by_day(found: Content, states: list[Content]) -> bool:
    """Return whether each day's data are as they were, or as they are to be."""
    days = [*map(_by_day, states)]
    return all(content in [each.get(day, []) for each in days] for day, content in _by_day(found).items())


def _by_day(content: Content) -> dict[bytes, Content]:
    return {day: list(lines) for day, lines in groupby(content, day_of)}


def check_carried_out(dataset: ondisk.Dataset, story: Story) -> None:
    """Fix and repack leave only what is theirs to leave, and doing them again changes nothing."""
    verb = story.steps[-1] if story.steps else None
    if not isinstance(verb, VERBS):
        return
    left = State.OK if isinstance(verb, Repack) else State.DIRTY
    if isinstance(verb, Archive | Unarchive):
        check_moved(dataset, verb)
    report = dataset.check(accurate=True)
    assert [each for each in report if each.state & ~left] == []
    assert not report.needs_check
    if isinstance(verb, Archive | Unarchive):
        carry_out(dataset, verb)
        check_moved(dataset, verb)
    else:
        again = dataset.repack() if isinstance(verb, Repack) else dataset.fix()
        assert [each for each in again if each.action and each.state & ~left] == []
    assert lines_of(dataset) == story.end


def check_moved(dataset: ondisk.Dataset, verb: Archive | Unarchive) -> None:
    """No file of what was moved stands where it was."""
    source = dataset.path if isinstance(verb, Archive) else dataset.path / LAST
    for day in verb.days:
        assert not (source / segment_of(dataset, day).relative_to(dataset.path)).exists()


def check_committed(path: Path) -> None:
    """Beats must be able to read what the index knows of each segment of its disk queue.

    The frame count may be ahead of it: it stands in the header before the commit that it belongs to.
    """
    for name, (generation, size, count) in _committed(path).items():
        file = file_of(path, name, generation)
        if not file.exists():  # it was lost
            continue
        segment = file.read_bytes()
        assert _COUNT.unpack(segment[_COUNT_SPAN]) >= (count,), name
        counted = segment[: _COUNT_SPAN.start] + _COUNT.pack(count) + segment[_COUNT_SPAN.stop : size]
        assert len(beats_reader.read(_decrypted(counted, name))) == count, name


def check_whole(path: Path, *, taken_back: bool = False) -> None:
    """Beats must be able to read each segment to its end, once something was appended to all: nothing else is there.

    Args:
        taken_back: an append was undone. In counter mode a byte shows that a place of the keystream was used.
    """
    committed = _committed(path)
    found = (*path.glob("[0-9]*/*.seg"), *path.glob("[0-9]*.seg"), *path.glob(".archive/*/[0-9]*/*.seg"))
    assert committed.keys() == {str(each.relative_to(path)) for each in found}
    for name, (_, size, count) in committed.items():
        segment = (path / name).read_bytes()
        if "/" not in name:  # of a sequence, of which only the last segment was appended to
            size, count = len(segment), _COUNT.unpack(segment[_COUNT_SPAN])[0]
            assert len(beats_reader.read(segment)) == count, name
            continue
        if place_of(name):  # nothing is appended to it, so what a rewrite has ended it with is still there
            assert segment[size:] in (b"", END_MARK), name
            size = len(segment)
        if taken_back and iv_of(segment) and segment[0] == header.VERSION:
            segment = segment[: max(size, len(segment) - 1)]
        assert len(segment) == size, name
        assert _COUNT.unpack(segment[_COUNT_SPAN]) == (count,), name
        assert len(beats_reader.read(_decrypted(segment, name))) == count, name


def _decrypted(segment: bytes, name: str) -> bytes:
    return decrypted(segment, KEYS, inner_of(name).removesuffix(".seg"))


def states_of(path: Path) -> list[bytes]:
    """Return the content of each file of an encrypted segment, also of those that only a crash has left."""
    contents = [each.read_bytes() for each in path.rglob("*.seg*") if each.is_file()]
    return [each for each in contents if iv_of(each)]


def make(path: Path, story: Story, config: dict[str, object] = CONFIG) -> Path:
    """Make the dataset that a story begins with."""
    with ondisk.create(path, config) as dataset:
        for step in story.before:
            carry_out(dataset, step)
    return path


def _committed(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return what the index has of each segment of seg: generation, size and frame count; nothing if it is lost."""
    with copied_index(path) as connection:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            return {}
        rows = connection.execute("SELECT name, id, size, count FROM segment WHERE format = 'seg'").fetchall()
    return {name: (generation, size, count) for name, generation, size, count in rows}


def _one_for_each_segment(path: Path) -> list[Line]:
    """Return a datum for each segment of seg that is on disk."""
    days = [
        datetime.strptime(f"{each.parent.name}-{each.stem}", "%Y-%m-%d").replace(tzinfo=UTC)
        for each in path.glob("[0-9]*/*.seg")
    ]
    return [line((day - START).days, 0, _LATER_STATION, 1) for day in sorted(days)]
