"""Compare the bytes of segments with their checksums, and remember the result for a while."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable

from ondisk.segment import SegmentFile
from ondisk.segments.facts import Committed, checksum_of

_BELIEVED = 600.0  # seconds
_REMEMBERED = 10_000  # segments


class WholeFiles:
    """Remembers the checksums of files that were read. Threads may share it.

    A file is read once in ten minutes; in between, only what was appended to it.

    Args:
        now: returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._read: OrderedDict[int, tuple[int, int, float]] = OrderedDict()  # generation → size, checksum, until

    def has_checksum(self, generation: int, file: SegmentFile, committed: Committed) -> bool | None:
        """Return whether the committed bytes of a file have their checksum; None if the index has not recorded it.

        Cost: reads the bytes that were not read before.
        """
        if committed.facts.checksum is None:
            return None
        now = self._now()
        size, checksum, until = self._read.get(generation, (0, 0, 0.0))
        if size > committed.size or until <= now:  # an older snapshot, or long ago
            size, checksum, until = 0, 0, now + _BELIEVED
        checksum = checksum_of(file, committed.size, committed.mutable, size, checksum)
        self._read[generation] = committed.size, checksum, until
        while len(self._read) > _REMEMBERED:
            with contextlib.suppress(KeyError):  # another thread removed it
                self._read.popitem(last=False)
        return checksum == committed.facts.checksum
