"""The facts that the index records about a dir segment, and how they show that another program has changed it.

    mtime, inode    of `.sequence`, which every append and every repack writes
    size, tail      of `.metadata`, to which every append adds, and which every repack replaces
    checksum        of number, size, mtime and inode of every file: compared by what looks at all of them anyway

The tail is compared also if time and inode are as recorded: another directory may get a freed inode, and a clock may be
too coarse to show that a file was written twice.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping

from google_crc32c import extend

from ondisk.datum import INTEGER_MAX
from ondisk.filesystem import Directory, Entry
from ondisk.segment import End, Facts
from ondisk.segments.dir import SEQUENCE, number_of
from ondisk.segments.facts import Committed, Seen, facts_of, tail_of
from ondisk.segments.metadata_file import METADATA

_STAT = struct.Struct("<4q")


def seen_in(folder: Directory, facts: Facts, size: int) -> Seen:
    """Compare the directory of a segment with the facts in the index; read at most the tail of `.metadata`.

    The files of the data are not looked at: who reads one compares its checksum with its entry.

    Args:
        size: bytes of `.metadata` at the last commit.
    """
    sequence = folder.stat(SEQUENCE)
    is_untouched = sequence is not None and Committed(0, facts, range(0)).is_untouched(sequence)
    entries = None
    with contextlib.suppress(FileNotFoundError):
        entries = folder.open_to_read(METADATA)
    if (0 if entries is None else entries.size()) < size:
        return Seen.OTHER
    if facts.tail is None:
        return Seen.UNTOUCHED if is_untouched else Seen.UNKNOWN
    if entries is None or tail_of(entries, size, range(0)) != facts.tail:
        return Seen.OTHER
    return Seen.UNTOUCHED if is_untouched else Seen.SAME_TAIL


def is_refused(folder: Directory, facts: Facts) -> bool:
    """Return whether a fix has found none of the segment's data in the directory with this `.metadata`."""
    entries = folder.stat(METADATA)
    return entries is not None and Committed(0, facts, range(0)).is_refused(entries)


def seen_with_files(folder: Directory, facts: Facts, size: int, stats: int | None) -> Seen:
    """Compare the directory of a segment with the facts in the index, its files included.

    Args:
        size: bytes of `.metadata` at the last commit.
        stats: what `checksum_of_stats` returns.

    Returns:
        SAME_TAIL if a file was touched, exchanged, added or removed: then only reading all of them shows what they are.
    """
    seen = seen_in(folder, facts, size)
    if facts.checksum is None or seen in (Seen.OTHER, Seen.UNKNOWN):
        return seen
    return seen if stats == facts.checksum else Seen.SAME_TAIL


def facts_in(folder: Directory, name: str, end: End) -> Facts:
    """Return the facts of a segment's directory; see `seen_in`."""
    sequence, tail = folder.stat(SEQUENCE), None
    with contextlib.suppress(FileNotFoundError):
        tail = tail_of(folder.open_to_read(METADATA), end.size, range(0))
    files = ((number_of(name, each.name), each) for each in folder.entries() if each.kind == "file")
    stats = checksum_of_stats({number: each for number, each in files if number is not None}, end.length)
    return Facts(tail=tail, checksum=stats) if sequence is None else facts_of(sequence, tail, stats)


def checksum_of_stats(files: Mapping[int, Entry], length: int) -> int:
    """Return the checksum that shows whether somebody has touched, exchanged, added or removed a file of a segment.

    Args:
        files: by their number.
        length: the number after the last one that counts.
    """
    counted = [(number, files[number]) for number in sorted(files) if number < length]
    numbers = [each for number, at in counted for each in (number, at.size, at.mtime, at.inode & INTEGER_MAX)]
    return int(extend(0, struct.pack(f"<{len(numbers)}q", *numbers)))


def stat_of(number: int, size: int, mtime: int, inode: int) -> bytes:
    return _STAT.pack(number, size, mtime, inode & INTEGER_MAX)
