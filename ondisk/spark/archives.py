"""The option `archives`: a read needs all archives that may have matching data, or takes those that are available.

A worker cannot warn the user that rows are missing, as a query of the library does. So the default is an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping

from ondisk.dataset.archives import Archives
from ondisk.dataset.known_archives import touching
from ondisk.dataset.query import Check
from ondisk.errors import ArchiveOffline, InvalidInput, StateError, shown
from ondisk.index import Snapshot
from ondisk.step import Interval

OPTION = "archives"
ALL, AVAILABLE = "all", "available"
_WITHOUT = 'To read the rest without these data, use .option("archives", "available"), or archives="available".'


def choice(options: Mapping[str, str]) -> str:
    """Return the value of the option `archives`, or its default.

    Raises:
        InvalidInput: it has another value.
    """
    text = str(options.get(OPTION, ALL))
    if text.lower() not in (ALL, AVAILABLE):
        raise InvalidInput(f"archives must be {ALL} or {AVAILABLE}, not {shown(text)}", hint=_WITHOUT)
    return text.lower()


def check_of(archives: Archives, choice: str, after: int = 0) -> Check:
    """Return what `Snapshots` calls to check that the archives suffice.

    Args:
        after: data with numbers up to this one are not needed.
    """
    if choice == AVAILABLE:
        return lambda *_: True

    def check(main: Snapshot, uuids: Collection[str], interval: Callable[[], Interval]) -> bool:
        try:
            return archives.record.check_online(main, uuids, interval, after)
        except StateError as error:
            raise StateError(error.message, hint=f"{error.hint} {_WITHOUT}", **error.context) from None

    return check


def warn(archives: Archives, interval: Interval) -> None:
    """Warn of the archives that may have data of an interval and are not read: in the user's own process."""
    for each in touching([*archives.record.unusable(), *archives.record.offline_data()], interval):
        warnings.warn(f"{archives.record.problem(each).message}; it was not read", ArchiveOffline, stacklevel=2)
