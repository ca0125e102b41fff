"""Second copies: segments of one name in several places, with equal bytes.

People make them by hand, and a crash leaves one if a disk was away while it moved a segment. A query
counts the data once. Maintenance removes none, since a copy may be the beginning of a move that is not done yet: they
go by `repack --second-copies`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from ondisk.dataset.access import Access
from ondisk.errors import StorageError
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.index import Copies, Segment, segment_rows
from ondisk.segments import dir
from ondisk.segments.dir import METADATA, NEW_METADATA, MetadataFile
from ondisk.segments.generations import hidden, present_name
from ondisk.segments.places import closed, twins
from ondisk.step import inner_of

_CHUNK = 1024 * 1024  # bytes that are compared together
_OWN = {METADATA, NEW_METADATA, dir.SEQUENCE}


def copy_of(access: Access, name: str) -> str | None:
    """Return the name of the segment of which another one has only bytes that it has, too; None without such a one.

    If the index may have lost data, equal data may have been stored one after the other, unless there is a `unique`;
    and after a delete, even then. In these cases only a copy of the whole segment counts, or of hard links.

    Args:
        name: of the segment; the index has no rows of its data.

    Cost: reads both, unless they are hard links of each other.
    """
    for twin, segment, count in _twins(access, name):
        # All data of one that is no copy itself may have been deleted; an index that was lost does not know that.
        if segment is None or (not count and (segment.copies is Copies.ALL or access.may_lack(name))):
            continue
        may_be_part = not access.may_lack(name) or (bool(access.config.unique) and _has_no_holes(access, segment))
        with contextlib.suppress(FileNotFoundError, StorageError):
            if _is_copy(access, name, segment, may_be_part=may_be_part):
                return twin
    return None


def why_no_copy(access: Access, name: str) -> str | None:
    """Return why a second copy may not be removed; None if all its bytes are in the segment that it is a copy of."""
    if copy_of(access, name) is not None:
        return None
    with access.current().index.snapshot() as snapshot:
        for place in closed(access.directory):
            there = snapshot.segment_named(f"{place}{inner_of(name)}")
            if there is not None and segment_rows.count_of(snapshot, there):
                return f"its other copy is in {place}, which is away"
    differs = "it has bytes that its other copy has not, perhaps of deleted data, or that cannot be read"
    return f"{differs}: compare them with `ondisk scan`, and remove the file if nothing is missing in the other one"


def is_linked_elsewhere(access: Access, name: str) -> bool:
    """Return whether a folder of the same name in another place has all files of a folder, and more: a killed merge."""
    mine = _files_of(access.directory, name)
    for twin in twins(access.directory, name):
        with contextlib.suppress(FileNotFoundError, StorageError):
            if mine and mine < _files_of(access.directory, twin):
                return True
    return False


def other_copy_lacking(access: Access, segment: Segment) -> str | None:
    """Return why second copies must be read, since what they are copies of cannot: it is missing, cut or damaged.

    If the index has none of the data there, they may have been deleted, or be in a place that is away.
    """
    for twin, found, count in _twins(access, segment.name):
        if found is None or found.copies is Copies.ALL or not count:
            continue
        is_folder = is_dir(found.format)
        there = access.directory.stat(twin if is_folder else present_name(access.directory, twin, found.id))
        if there is None or (stat.S_ISREG(there.st_mode) and there.st_size < found.end.size):
            return "the other copy of its data is gone"
        if segment.copies is Copies.ALL and access.ask(segment_rows.noted_of, found)[0] is not None:
            return "the other copy of its data is damaged"
    return None


def copy_left(access: Access, name: str) -> str | None:
    """Return the name of a file that may have the data of a segment that is missing: a fix reads them there.

    A second copy, or a file of another program to which data were appended before it was read.
    """
    for twin, found, _ in _twins(access, name):
        may_have = found is not None and (found.copies is not Copies.NONE or found.has_unknown)
        if may_have and access.directory.stat(twin) is not None:
            return twin
    return None


def unknown_twin(access: Access, name: str) -> str | None:
    """Return the name of a file that may be a copy of a segment: it has its name in another place, and no row."""
    for twin in twins(access.directory, name):
        if access.directory.stat(twin) is not None:  # most often nothing is there, which is cheaper than a snapshot
            with access.current().index.snapshot() as snapshot:
                if snapshot.segment_named(twin) is None:
                    return twin
    return None


def missing_twin(access: Access, name: str) -> str | None:
    """Return the name of a segment in another place whose data the index has, and whose file is missing."""
    for twin, found, count in _twins(access, name):
        places = () if found is None or not count else (twin, hidden(twin, found.id))
        if places and all(access.directory.stat(each) is None for each in places):
            return twin
    return None


def _twins(access: Access, name: str) -> Iterator[tuple[str, Segment | None, int]]:
    """Yield the names that a segment would have in other places, with the row there, and how many data that has."""
    for twin in twins(access.directory, name):
        with access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(twin)
            count = 0 if segment is None else segment_rows.count_of(snapshot, segment)
        yield twin, segment, count


def _is_copy(access: Access, name: str, segment: Segment, *, may_be_part: bool) -> bool:
    directory = access.directory
    if is_dir(segment.format):
        return _has_files(directory, name, segment.name, may_be_part=may_be_part)
    theirs = present_name(directory, segment.name, segment.id)
    found = directory.stat(theirs)
    if found is None or found.st_size < segment.end.size:
        return False
    return _is_same(directory, name, theirs, access.committed(segment).mutable, may_be_part=may_be_part)


def _has_no_holes(access: Access, segment: Segment) -> bool:
    """Return whether each byte, or file, of a segment belongs to a datum."""
    sums = access.ask(segment_rows.sums_of, segment)
    return access.format(segment.format).holes(segment.end, *sums) == 0


def _is_same(directory: Directory, name: str, other: str, mutable: range = range(0), *, may_be_part: bool) -> bool:
    """Return whether two files are one, or have the same bytes.

    Args:
        may_be_part: the second one may have more at its end.
        mutable: positions that are rewritten in place, and are not compared.
    """
    mine, theirs = directory.open_to_read(name), directory.open_to_read(other)
    if os.path.samestat(os.fstat(mine.fileno()), os.fstat(theirs.fileno())):
        return True
    if mine.size() > theirs.size() or (mine.size() < theirs.size() and not may_be_part):
        return False
    at, size = 0, mine.size()
    while at < size:
        chunk = mine.read(at, _CHUNK)
        if not chunk or _masked(chunk, at, mutable) != _masked(theirs.read(at, len(chunk)), at, mutable):
            return False
        at += len(chunk)
    return True


def _masked(content: bytes, at: int, mutable: range) -> bytes:
    """Return bytes at a position of a file with zeros where they are rewritten in place."""
    begin, end = max(mutable.start, at) - at, min(mutable.stop, at + len(content)) - at
    return content[:begin] + bytes(end - begin) + content[end:] if begin < end else content


def _has_files(directory: Directory, name: str, other: str, *, may_be_part: bool) -> bool:
    """Return whether a directory has only files that the other one has, with the same metadata.

    Files with the same number are compared, or hard links.

    Args:
        may_be_part: the other one may have more files.
    """
    with directory.inside(name) as mine, directory.inside(other) as theirs:
        files = {entry.name: entry for entry in theirs.entries() if dir.number_of(other, entry.name) is not None}
        here, there = mine.stat("."), theirs.stat(".")
        assert here is not None
        assert there is not None
        links = {entry.inode: entry for entry in files.values()} if here.st_dev == there.st_dev else {}
        entries = MetadataFile.of(mine), MetadataFile.of(theirs)
        found_all = [entry for entry in mine.entries() if entry.name not in _OWN]
        if not may_be_part and len(found_all) < len(files) and any(each.inode not in links for each in found_all):
            return False
        for entry in found_all:
            if entry.kind != "file":
                return False
            found = links.get(entry.inode) or files.get(entry.name)
            if found is None or found.size != entry.size:
                return False
            if entry.inode not in links and not _is_same(
                directory, f"{name}/{entry.name}", f"{other}/{found.name}", may_be_part=False
            ):
                return False
            if _beside(entries[0], name, entry.name) not in (None, _beside(entries[1], other, found.name)):
                return False
    return True


def _files_of(directory: Directory, name: str) -> set[tuple[int, int]]:
    """Return the device and the inode of each file in the directory of a segment."""
    with directory.inside(name) as folder:
        here = folder.stat(".")
        assert here is not None
        return {(here.st_dev, each.inode) for each in folder.entries() if dir.number_of(name, each.name) is not None}


def _beside(entries: MetadataFile | None, name: str, file: str) -> bytes | None:
    """Return reftime and metadata of a file as they are stored; None if it has none."""
    number = dir.number_of(name, file)
    return entries.get(number).beside if entries is not None and number is not None and number in entries else None
