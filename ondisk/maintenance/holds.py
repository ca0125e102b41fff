"""Holds: what fix and repack leave because too much would go at once; pure functions over a whole dataset.

A disk that is not mounted looks like deleted files, and a wrong clock makes data look old. Both hit many segments at
the same time, so the rules here look at all segments together, while a diagnosis looks at one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ondisk.datum import from_microseconds
from ondisk.step import DAY

FAR = 10 * DAY
"""How far the clock may be ahead of the last commit: longer than a week, so that a weekly maintain is enough."""

COMMIT_AFTER = 3 * DAY // 2
"""If the last commit is older, a repack commits without a change: so data age although nobody writes.

Longer than a day, so that a clock that is a day ahead is not recorded; shorter than two nights, so that of daily
segments never three are deleted at once.
"""

_MANY = 3


def kept(missing: Collection[str], known: Collection[str], absent: Collection[str]) -> dict[str, str]:
    """Return the missing segments that the index must keep, each with the reason.

    Args:
        absent: the folders of missing segments that are not on disk either.
    """
    of_folder, gone = Counter(map(folder_of, known)), Counter(map(folder_of, missing))
    reasons = {}
    for name in missing:
        folder = folder_of(name)
        if folder in absent:
            reasons[name] = f"its folder {folder} does not exist"
        elif gone[folder] >= _MANY and gone[folder] == of_folder[folder]:
            reasons[name] = f"all {gone[folder]} segments in {folder or 'its directory'} are missing"
        elif len(missing) >= _MANY and 2 * len(missing) > len(known):
            reasons[name] = f"{len(missing)} of {len(known)} segments are missing"
    return reasons


def folder_of(name: str) -> str:
    """Return the folder of a segment."""
    return name.rpartition("/")[0]


def counted_from(clock: int, committed_at: int, newest: int | None) -> int | None:
    """Return the time from which ages count; None if the clock cannot be believed. All in microseconds.

    Ages count from the last commit if the clock is ahead of it, so a clock that is a day or a week ahead makes nothing
    old. If the clock is far ahead of the last commit, it is believed only if it is near the newest reftime.

    Args:
        committed_at: when the index was last changed.
        newest: the newest reftime of the data; None without data.
    """
    if clock - committed_at <= FAR:
        return min(clock, committed_at)
    if newest is not None and 0 <= clock - newest <= FAR:
        return newest
    return None


def too_many(expired: int, total: int) -> bool:
    """Return whether so many of all segments are old enough to be deleted that the clock or the age may be wrong."""
    return expired >= _MANY and 2 * expired >= total


def doubt(clock: int, committed_at: int, newest: int | None) -> str:
    """Return why the clock is not believed."""
    last = f"the last change of the index was on {_day(committed_at)}"
    data = "" if newest is None else f", and the newest datum is of {_day(newest)}"
    return f"the clock says {_day(clock)}, but {last}{data}: is the clock wrong?"


def _day(time: int) -> str:
    try:
        return f"{from_microseconds(time):%Y-%m-%d}"
    except OverflowError:  # a damaged index
        return f"{time} µs after 1970"
