"""What the sweeps over fix and repack share, and those of every verb that changes what is there already.

A verb more is a `Step` of `workload`, told to `Model` and `carry_out`, and a file of stories beside this one's users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .killpoints import CHANGING, CHANGING_SEG, Bench, Run, synced_path
from .recovery import check, make
from .workload import CONFIGS, Story

Stories = Mapping[tuple[str, str], Story]
"""Format and name of a story → the story."""

CALLS = (*CHANGING_SEG, "openat")
FAILING = tuple(call for call in CHANGING_SEG if call not in ("write", "mkdir", "mkdirat"))
"""Calls that are failed. `write` is that of the acknowledgements alone; what SQLite cannot open for writing it opens to
read, and says then that it may only be read."""

_CHANGES = ("pwrite64(", "copy_file_range(", "ftruncate(", "link", "rename", "fsync(", "fdatasync(")
_NO_CHANGE = re.compile(r"/\.lock>|/\.index\.sqlite\.new|^fdatasync\([0-9]+<[^>]*/(dataset|last)>")
_LOST = 52
_FOLDER = re.compile(r"[0-9]+<([^>]*/[0-9]{2,4})>")  # of segments
_QUOTED = re.compile(r'"([^"]*)"')


def bench(stories: Stories, case: tuple[str, str], tmp_path: Path) -> Bench:
    story = stories[case]
    config = CONFIGS[case[0]] | ({"replace": "yes"} if story.replace else {})
    return Bench(tmp_path / "runs", make(tmp_path / "template", story, config), story.steps)


def killed(stories: Stories, case: tuple[str, str], call: str, tmp_path: Path, every: int = 1) -> int:
    """Kill the process at each such call, and look at what it leaves; gives at how many."""
    points = 0
    for run in bench(stories, case, tmp_path).killed_at(call, every):
        check(run.path, run.acked, stories[case])
        points += run.killed
    return points


def failed(stories: Stories, case: tuple[str, str], call: str, error: str, tmp_path: Path, every: int = 1) -> int:
    """Fail each such call, and look at what that leaves; gives at how many."""
    points = 0
    for run in bench(stories, case, tmp_path).failed_at(call, error, every):
        check_failed(run, stories[case], call, error)
        points += 1
    return points


def ordered(stories: Stories, case: tuple[str, str], tmp_path: Path) -> int:
    """Look at the order of the calls of a story; gives how many had to stand behind others."""
    return check_order(bench(stories, case, tmp_path).run("fsync:error=EIO:when=9999", ",".join(CHANGING)).calls)


def check_failed(run: Run, story: Story, call: str, error: str) -> None:
    """A failure was told by an error of the right type, or did no harm; nothing was written behind a failed sync."""
    assert run.injected is not None
    refused = [ack for ack in run.acks if ack is not None]
    first = next((place for place, ack in enumerate(run.acks) if ack is not None), len(run.acks))
    assert run.acks[first:] == refused, "after an error the same is tried again, with the same end"
    for ack in refused:
        assert 50 <= ack["code"] < 60, ack
        assert ack["next"] in (None, _LOST if ack["code"] == _LOST else 0), ack  # None: it was not even opened
    if call in ("fsync", "fdatasync") and not _is_ignored(run):
        assert [*_changes(run.calls[run.injected + 1 :])] == [], run.calls[run.injected]
        assert [ack["code"] for ack in refused] in ([_LOST], []), run.acks
    check(run.path, first, story, in_order=False)


def check_order(calls: list[str]) -> int:
    """Look at the order of calls: what a commit, or an unlink, stands on was synced before; gives how many did.

    Before a commit: files that were made, with their names, and names that were given. Before a file in a folder of
    segments is unlinked: names that were given there. On some filesystems a power cut shows none of this.
    """
    given: dict[str, set[str]] = {}
    written: set[str] = set()
    looked_at = 0
    for call in calls:
        name, _, rest = call.partition("(")
        folders = _FOLDER.findall(rest)
        quoted = _QUOTED.findall(rest)
        if not rest.endswith(" = 0") and " = -1 " in rest:
            continue
        if name == "openat" and "O_CREAT" in rest and folders:
            given.setdefault(folders[0], set()).add(quoted[0])
            written.add(f"{folders[0]}/{quoted[0]}")
        elif name in ("linkat", "renameat", "renameat2") and folders:
            given.setdefault(folders[-1], set()).add(quoted[-1])
        elif name == "fsync":
            written.discard(synced_path(call))
            given.pop(synced_path(call), None)
        elif name == "fdatasync" and synced_path(call).endswith("/index.sqlite-wal"):
            looked_at += 1
            assert not written, f"committed before these are synced: {written}"
            assert not given, f"committed before these names are synced: {given}"
        elif name == "unlinkat" and folders:
            looked_at += 1
            assert not given.get(folders[0]), f"{quoted[0]} is removed before {given[folders[0]]} are synced"
    return looked_at


def _is_ignored(run: Run) -> bool:
    """Tell whether SQLite goes on by itself: where a directory could not be synced, and to roll a new index back."""
    assert run.injected is not None
    call = run.calls[run.injected]
    if not call.startswith("fdatasync("):
        return False
    path, is_index, suffix = synced_path(call).partition("/index.sqlite")
    is_rolled_back = any(f"{path}/index.sqlite-journal" in each for each in run.calls[: run.injected])
    is_part = path == str(run.path) or str(Path(path).parent) == f"{run.path}/.archive"
    return is_part and (not is_index or (is_rolled_back and not suffix))


def _changes(calls: list[str]) -> Iterator[str]:
    """Give the calls that change something, but for who holds the lock, and an index that is not in its place yet."""
    return (call for call in calls if call.startswith(_CHANGES) and not _NO_CHANGE.search(call))
