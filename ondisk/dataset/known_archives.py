"""The archives that a dataset knows, and those that are away: on a disk that is not mounted, moved or deleted.

The dataset's index records each archive: the UUID of the archive's index, its name and its interval. So a query does
not silently return fewer data when an archive is away, and an archive of another dataset is not taken for it.

An archive is not away if

- it had no segments;
- an archive with its UUID is in `.archive/`, under any name;
- the index of the archive with its name was lost, and so has another UUID now;
- the summary of an offline archive has its name, or is of a time in its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ondisk.dataset.layout import ARCHIVE
from ondisk.datum import from_microseconds
from ondisk.errors import StateError
from ondisk.index.segment_rows import KnownArchive
from ondisk.step import Interval


def away(
    known: Iterable[KnownArchive],
    uuids: Collection[str],
    untrusted: Collection[str],
    offline: Collection[str],
    spans: Callable[[], Collection[Interval]],
) -> list[KnownArchive]:
    """Return the archives that the dataset knows and that are away.

    Args:
        known: the archives that the dataset knows.
        uuids: of the archives in `.archive/`.
        untrusted: names of the archives there whose index was lost.
        offline: names of the archives that have only a summary there.
        spans: returns the times of the offline archives whose names are not known; called only if it matters.
    """
    here = {*untrusted, *offline}
    missing = [each for each in known if each.interval is not None and each.uuid not in uuids and each.name not in here]
    if not missing:
        return missing
    others = spans()
    return [each for each in missing if not any(_covers(each, span) for span in others)]


def _covers(known: KnownArchive, span: Interval) -> bool:
    """Return whether data of a time may be those of an archive."""
    mine = known.interval
    return mine is not None and mine.begin <= span.begin and span.end <= mine.end


def touching(missing: Iterable[KnownArchive], interval: Interval) -> Iterator[KnownArchive]:
    """Yield the archives that may have data of an interval."""
    for each in missing:
        if each.interval is not None and not (each.interval & interval).is_empty:
            yield each


def problem(known: KnownArchive, dataset: Path, *, is_foreign: bool) -> StateError:
    """Return the error for work that needs an archive that is away.

    Args:
        dataset: the path of the dataset.
        is_foreign: another archive has its name.
    """
    path = dataset / ARCHIVE / known.name
    where = "another archive is in its place" if is_foreign else f"it is not in {dataset / ARCHIVE}"
    span = (
        "" if known.interval is None else f" with data from {_day(known.interval.begin)} to {_day(known.interval.end)}"
    )
    hint = (
        f"Mount its disk, or move it back; or write its summary to {path}.summary; or, if it is gone for good:"
        f" `ondisk fix {dataset} --forget-archive {known.name} --yes`."
    )
    return StateError(f"the archive {path}{span} is missing: {where}", hint=hint)


def _day(time: int) -> str:
    try:
        return f"{from_microseconds(time):%Y-%m-%d}"
    except OverflowError:  # a damaged index
        return str(time)
