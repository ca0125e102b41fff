"""A process that appends is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from collections.abc import Callable

from .killpoints import needs_strace
from .workload import Append, Story, line, random_lines

pytestmark = needs_strace
Record = Callable[[str, object], None]

_KNOWN = random_lines(1, 40, days=2)
_MORE = random_lines(2, 60, days=4)

_FEW = random_lines(7, 8, days=2)
_OTHERS = random_lines(8, 6, days=3)
_LARGE = line(1, 5, 8, 3, "x" * 70_000)  # spans blocks

_ON_KNOWN = Story([Append(_FEW)], [Append((*_OTHERS[:4], _FEW[0], _LARGE)), Append((_OTHERS[4], _LARGE))])
_REPLACED = Story([Append(_FEW)], [Append((*random_lines(7, 3, days=2), *_OTHERS[:2]))], replace=True)

# The index is written as for vm2; what differs is how a segment begins, goes on and is counted.
STORIES = {
    ("vm2", "new segments"): Story([], [Append(random_lines(3, 20)), Append(random_lines(4, 20), batch_size=10)]),
    ("vm2", "known and new segments"): Story([Append(_KNOWN)], [Append(_MORE[:20]), Append(_MORE[20:], batch_size=20)]),
    ("vm2", "duplicates"): Story(
        [Append(_KNOWN)], [Append(_KNOWN[:20] + _MORE[:20]), Append(_MORE[:20] * 2 + _KNOWN[20:])]
    ),
    ("vm2", "nothing but duplicates"): Story([Append(_KNOWN)], [Append(_KNOWN), Append(_KNOWN[::-1], batch_size=20)]),
    ("vm2", "replacing"): Story(
        [Append(_KNOWN)],
        [Append(_MORE[:20]), Append(_MORE[:10] + random_lines(5, 30)), Append(random_lines(6, 40))],
        replace=True,
    ),
    ("seg lz4", "known and new segments"): _ON_KNOWN,
    ("seg lz4", "replacing"): _REPLACED,
    ("seg plain", "known and new segments"): _ON_KNOWN,
    ("seg ctr", "known and new segments"): _ON_KNOWN,
    ("grib", "replacing"): _REPLACED,
    ("seg gcm", "known and new segments"): _ON_KNOWN,
    ("seg sequence", "known and new segments"): _ON_KNOWN,
    ("seg sequence", "replacing"): _REPLACED,
    ("blob", "known and new segments"): _ON_KNOWN,
    ("odimh5", "replacing"): _REPLACED,
}
TO_FAIL = [case for case in STORIES if "duplicates" not in case[1]]
_ONE = ("vm2", "known and new segments")


def test_the_stories_of_seg_hold_duplicates_and_replacements() -> None:
    assert len(_ON_KNOWN.end) == len(_FEW) + 6
    assert len(_REPLACED.end) == len(_FEW) + 2
    assert set(_FEW) - set(_REPLACED.end)
