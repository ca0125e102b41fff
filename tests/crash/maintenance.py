"""What the sweeps over fix and repack share, and those of every verb that changes what is there already.

A verb more is a `Step` of `workload`, told to `Model` and `carry_out`, and a file of stories beside this one's users.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from worlds import lose_index

import ondisk
from ondisk.filesystem.lock import LOCK
from ondisk.index import INDEX
from ondisk.index.tide import TIDE

from .killpoints import SYNCS, Bench, Run, synced_path
from .recovery import check, check_answered, check_maintained, check_rebuilt, check_whole, make
from .workload import ALL_CONFIGS, VERBS, Append, RenameArchive, Step, Story, carry_out, lines_in, lines_of

Stories = Mapping[tuple[str, str], Story]
"""Format and name of a story → the story."""

_CHANGES = ("pwrite64(", "copy_file_range(", "ftruncate(", "link", "rename", "fsync(", "fdatasync(")
_NO_CHANGE = re.compile(r"/\.lock>|/\.index\.sqlite\.new|^fdatasync\([0-9]+<[^>]*/(dataset|last)>")
_TAKEN_BACK = re.compile(r"ftruncate\([0-9]+<[^>]*/\.metadata>")  # entries that a move has appended to a folder
_READ_ONLY, _FULL, _LOST = 34, 51, 52
_FOLDER = re.compile(r"[0-9]+<([^>]*/[0-9]{2,4})>")  # of segments
_QUOTED = re.compile(r'"([^"]*)"')
_OPENED = re.compile(r"[0-9]+<([^>]*)>")
_NAMED = re.compile(r'[0-9]+<([^>]*)>, "([^"]*)"')
_READ = re.compile(r"(?<= = )[0-9]+<(((?!/proc/)[^>]*/[0-9]{2,4})/(?:[^>]*/)?[^.>/][^>/]*)>$")  # data, nothing hidden
_UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WRITES = ("write", "pwrite64", "copy_file_range", "ftruncate")


def bench(stories: Stories, case: tuple[str, str], tmp_path: Path) -> Bench:
    story = stories[case]
    config = ALL_CONFIGS[case[0]] | ({"replace": "yes"} if story.replace else {})
    return Bench(tmp_path / "runs", make(tmp_path / "template", story, config), story.steps)


def killed(stories: Stories, case: tuple[str, str], tmp_path: Path, most: int | None = None) -> int:
    """Kill the process at each call, and look at what it leaves, with its index and without; gives at how many."""
    points, seen = 0, set[bytes]()
    for run in bench(stories, case, tmp_path).killed(most):
        check_without_index(run, run.acked, stories[case], seen)
        check_repeated(run, stories[case])
        check(run.path, run.acked, stories[case])
        points += run.killed
    return points


def failed(stories: Stories, case: tuple[str, str], error: str, tmp_path: Path, most: int | None = None) -> int:
    """Fail each call, and look at what that leaves, with its index and without; gives at how many."""
    points, seen = 0, set[bytes]()
    for run in bench(stories, case, tmp_path).failed(error, most=most):
        check_failed(run, stories[case], seen)
        points += 1
    return points


def ordered(stories: Stories, case: tuple[str, str], tmp_path: Path) -> int:
    """Look at the order of the calls of a story; gives how many had to stand behind others."""
    return check_order(bench(stories, case, tmp_path).recorded().calls)


def check_without_index(run: Run, acked: int, story: Story, seen: set[bytes]) -> None:
    """Lose the index, too.

    Args:
        seen: what was checked before. Most calls of a run change only the index: without it they leave the same.
    """
    state = sha256(repr((acked, story.steps, story.appended, _without_index(run.path))).encode()).digest()
    if state not in seen:
        check_rebuilt(run.path, acked, story)
        seen.add(state)


def _without_index(path: Path) -> list[tuple[str, int, bytes]]:
    """Return name, mode and content of everything but the index and its lock: all that a new index is made from.

    UUIDs are numbered: those of places are drawn anew in each run. Times differ, and nothing is read from them.
    """
    numbers: dict[bytes, bytes] = {}

    def numbered(uuid: re.Match[bytes]) -> bytes:
        return numbers.setdefault(uuid[0], b"UUID %d" % len(numbers))

    found = []
    for each in sorted(path.rglob("*")):
        if not each.name.startswith((INDEX, LOCK)):
            content = _UUID.sub(numbered, each.read_bytes()) if each.is_file() else b""
            found.append((str(each.relative_to(path)), each.lstat().st_mode, content))
    return found


def check_repeated(run: Run, story: Story) -> None:
    """Take the steps again that were not acknowledged, then lose the index: what a killed append left is no loss.

    Other verbs may be refused, and a replaced datum comes back with its segment.
    """
    if not all(isinstance(each, Append) for each in story.steps):
        return
    copy = run.path.with_name("repeated")
    shutil.copytree(run.path, copy, symlinks=True)
    with ondisk.open(copy) as dataset:
        for step in story.steps[run.acked :]:
            carry_out(dataset, step)
    lose_index(copy)
    with ondisk.open(copy) as dataset:
        assert dataset.fix().lost == 0
    check_answered(copy, len(story.steps), story)
    check_maintained(copy)
    check_answered(copy, len(story.steps), story)
    with ondisk.open(copy) as dataset:
        assert dataset.check(accurate=True).is_clean
    shutil.rmtree(copy)


def check_failed(run: Run, story: Story, seen: set[bytes]) -> None:
    """A failure was told by an error of the right type, or did no harm. A step that was refused is done whole, or not.

    Behind a failed sync nothing is written, but to take back what was appended: by an append, or by a move into a
    folder that is there.
    """
    assert run.injected is not None
    call = run.calls[run.injected]
    takes_back = not all(isinstance(each, VERBS) for each in story.steps)
    refused = {place: ack for place, ack in enumerate(run.acks) if ack is not None}
    codes = {ack["code"] for ack in refused.values()}
    # What SQLite cannot open for writing it opens to read.
    allowed = {_READ_ONLY} if call.startswith("openat(") and "index.sqlite" in call else set()
    for ack in refused.values():
        assert 50 <= ack["code"] < 60 or ack["code"] in allowed, ack
        assert ack["next"] in {None, _LOST if ack["code"] == _LOST else 0, *allowed}, ack  # None: not even opened
    if call.partition("(")[0] in SYNCS and not _is_ignored(run):
        later = run.calls[run.injected + 1 :]
        again = [each for each in later if each.partition("(")[0] in SYNCS and synced_path(each) == synced_path(call)]
        changes = [each for each in _changes(later) if not _TAKEN_BACK.match(each)]
        assert (again if takes_back else changes) == [], call
        assert codes <= {_LOST}, run.acks
    if call.startswith("pwrite64(") and "ENOSPC" in call and takes_back:
        assert codes <= {_FULL}, run.acks
        assert len(run.acks) == len(story.steps)
        check_whole(
            run.path, taken_back=True
        )  # the process could take back what it had written, the frame count included
    acked = min(refused, default=len(run.acks))
    if len(run.acks) > acked + len(refused):
        acked, story = len(run.acks), _as_found(run, story, refused)
    check_without_index(run, acked, story, seen)
    if "ENOSPC" in call and isinstance(story.steps[-1], RenameArchive):
        with ondisk.open(run.path) as dataset:
            dataset.fix()  # what a full disk kept from being done after the commit
    check(run.path, acked, story, in_order=False)


def _as_found(run: Run, story: Story, refused: Mapping[int, Mapping[str, Any]]) -> Story:
    """Leave out what was refused and not done: what had been done before stays, and what was done whole."""
    with ondisk.open(run.path, read_only=True) as dataset:
        found = lines_of(dataset)
    left = [line for place in refused for line in lines_in(story.steps[place])]
    stories = []
    for choice in product(*(_outcomes(story.steps[place], ack) for place, ack in refused.items())):
        chosen = dict(zip(refused, choice, strict=True))
        steps = [chosen.get(place, step) for place, step in enumerate(story.steps)]
        stories.append(Story(story.before, steps, replace=story.replace, refused=left))
    return next((each for each in stories if each.end == found), stories[0])


def _outcomes(step: Step, ack: Mapping[str, Any]) -> list[Step]:
    """Return what a step that was refused may have done: what it said, or a batch more."""
    if isinstance(step, Append):
        counts = (ack["done"], ack["done"] + step.batch_size)
        return [Append(step.lines[:count], step.batch_size) for count in counts]
    return [Append(()), step]


def check_order(calls: list[str]) -> int:
    """Look at the order of calls: what a commit, an unlink or a name stands on was synced before; gives how many did.

    Before a commit: files that were made, with their names, and names that were given. Before a file in a folder of
    segments is unlinked: names that were given there; before the first, all names there, which a killed process may
    have given. Before a file gets another name: what was written to it. Before an index gets its name: the removal of
    the logs of the old one, and the tide mark that announces it. On some filesystems a power cut shows none of this.
    """
    given: dict[str, set[str]] = {}
    removed: dict[str, set[str]] = {}
    made: set[str] = set()
    written: set[str] = set()
    synced: set[str] = set()
    looked_at = 0
    for call in calls:
        name, _, rest = call.partition("(")
        folders = _FOLDER.findall(rest)
        quoted = _QUOTED.findall(rest)
        if not rest.endswith(" = 0") and " = -1 " in rest:
            continue
        if name == "openat" and "O_CREAT" in rest and folders:
            given.setdefault(folders[0], set()).add(quoted[0])
            made.add(f"{folders[0]}/{quoted[0]}")
        elif name in _WRITES:
            written.add(_written_path(call))
        elif name in ("linkat", "renameat", "renameat2"):
            before, after = _paths(rest)
            looked_at += bool(folders) or INDEX in after
            assert before not in written, f"{before} is named {after} before it is synced"
            if after.endswith(f"/{INDEX}"):
                gone = removed.get(str(Path(after).parent))
                assert not gone, f"{after} gets its name before the removal of {gone} is synced"
                assert f"{Path(after).parent}/{TIDE}" not in written, f"{after} gets its name before {TIDE} is synced"
            if folders and Path(after).parent.name.isdigit():  # not what is kept: it may have its old name again
                given.setdefault(str(Path(after).parent), set()).add(quoted[-1])
        elif name in ("fsync", "fdatasync"):
            path = synced_path(call)
            written.discard(path)
            if name == "fsync":
                synced.add(path)
                made.discard(path)
                given.pop(path, None)
                removed.pop(path, None)
            elif path.endswith(f"/{INDEX}-wal"):
                looked_at += 1
                assert not made, f"committed before these are synced: {made}"
                assert not given, f"committed before these names are synced: {given}"
        elif name == "unlinkat" and folders:
            looked_at += 1
            assert not given.get(folders[0]), f"{quoted[0]} is removed before {given[folders[0]]} are synced"
            is_file = "AT_REMOVEDIR" not in rest  # a folder never has two names
            assert folders[0] in synced or not is_file, f"{quoted[0]} is removed before {folders[0]} is synced"
        elif name == "unlinkat":
            removed.setdefault(_OPENED.findall(rest)[0], set()).update(
                set(quoted) & {f"{INDEX}-wal", f"{INDEX}-journal"}
            )
    return looked_at


def check_read(calls: list[str]) -> int:
    """Look at the order of calls: files of segments that were read, and their folders, are synced before each commit.

    Where the filesystem can, one call syncs all that is on it.

    Returns:
        How many files and folders were.
    """
    read: set[str] = set()
    synced: set[str] = set()
    for call in calls:
        name = call.partition("(")[0]
        if name == "openat" and "O_DIRECTORY" not in call and (found := _READ.search(call)):
            path, folder = Path(found[1]), Path(found[2])
            read |= {str(each) for each in (path, *path.parents) if each.is_relative_to(folder)}
        elif name in SYNCS:
            synced |= read if name == "syncfs" else {synced_path(call)}
            if synced_path(call).endswith(f"/{INDEX}-wal"):
                assert read <= synced, f"committed before these are synced: {read - synced}"
    return len(read)


def _written_path(call: str) -> str:
    """Return the path of the file that a call writes to: of two descriptors, the second."""
    return str(_OPENED.findall(call)[-1])


def _paths(rest: str) -> tuple[str, str]:
    """Return the old and the new path in a call that names a file."""
    before, after = (f"{folder}/{name}" for folder, name in _NAMED.findall(rest))
    return before, after


def _is_ignored(run: Run) -> bool:
    """Return whether SQLite goes on by itself: where a directory could not be synced, and to roll a new index back."""
    assert run.injected is not None
    call = run.calls[run.injected]
    if not call.startswith("fdatasync("):
        return False
    path, is_index, suffix = synced_path(call).partition("/index.sqlite")
    is_rolled_back = any(f"{path}/index.sqlite-journal" in each for each in run.calls[: run.injected])
    is_part = path == str(run.path) or str(Path(path).parent) == f"{run.path}/.archive"
    return is_part and (not is_index or (is_rolled_back and not suffix))


def _changes(calls: list[str]) -> Iterator[str]:
    """Return the calls that change something, but for who holds the lock, and an index that is not in its place yet."""
    return (call for call in calls if call.startswith(_CHANGES) and not _NO_CHANGE.search(call))
