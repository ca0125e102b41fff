"""What is in quarantine: reads items and their records; `ondisk.segments.quarantine` defines both.

Other people can change what is there, so nothing is believed that `quarantine` would not have written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ondisk.errors import InvalidInput, OndiskError, StorageError
from ondisk.filesystem import Directory, Entry, components
from ondisk.segments.places import places
from ondisk.step import ARCHIVE

FOLDER = ".quarantine"
RECORD = ".json"
"""What follows the name of an item in that of its record."""

ITEM = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{6})Z-(.+?)(?:@([0-9]{1,18})-([0-9]{1,18}))?", re.DOTALL)
"""The name of an item: time, file, offset and length."""

UNKNOWN = "unknown: the item has no usable record"

_RECORD_LIMIT = 64 * 1024  # bytes
_TEXTS = ("segment", "file", "verb", "why")
_DEEPEST = 16  # levels of folders that are searched, as for segments


class Item(NamedTuple):
    """A file, a folder or a piece of a file in quarantine.

    Attributes:
        name: of the item, relative to the dataset.
        segment: the segment that the bytes belong to.
        file: the file that was kept, relative to the segment's folder.
        time: when it was kept; None if its name does not say so.
        size: bytes on disk now.
        why: the reason.
        verb: what kept it; empty if that is not known.
        offset: where the piece began in the file; None for a whole file or folder.
        length: bytes of the piece; None for a whole file or folder.
    """

    name: str
    segment: str
    file: str
    time: datetime | None
    size: int
    why: str
    verb: str
    offset: int | None = None
    length: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole segment, or a generation of one."""
        return self.offset is None and "/" not in self.file


class Total(NamedTuple):
    """What is in quarantine: the number of items, and their bytes."""

    items: int
    bytes: int


def items(directory: Directory) -> Iterator[Item]:
    """Yield all items in quarantine, by folder, the oldest first.

    Raises:
        StorageError: a quarantine cannot be read.

    Cost: lists the folders of the dataset, and reads one record for each item.
    """
    for folder in folders(directory):
        for entry in _found(directory, folder):
            yield _item(directory, folder, entry)


def find(directory: Directory, name: str) -> Item | None:
    """Return the item with a name; None without one.

    Raises:
        StorageError: it cannot be read.
    """
    folder, _, last = name.rpartition("/")
    try:
        *above, quarantine = components(folder)
        found = None if any(each.startswith(".") for each in above if each != ARCHIVE) else directory.stat(name)
    except InvalidInput:
        return None
    if found is None or quarantine != FOLDER or not _is_item(last):
        return None
    return _item(directory, folder, Entry.of(last, found))


def total(directory: Directory) -> Total:
    """Return the number of items in quarantine, and their bytes.

    Raises:
        StorageError: a quarantine cannot be read.

    Cost: lists the folders of the dataset; reads no record.
    """
    sizes = [
        size_of(directory, f"{folder}/{entry.name}", entry)
        for folder in folders(directory)
        for entry in _found(directory, folder)
    ]
    return Total(len(sizes), sum(sizes))


def folders(directory: Directory) -> list[str]:
    """Return the folders of all quarantines, in order of names.

    Skips folders that cannot be listed: check reports them.
    """
    found = []
    waiting = ["", *(name.rstrip("/") for name, each in places(directory).items() if each.why_away is None)]
    while waiting:
        parent = waiting.pop()
        try:
            names = [] if _is_dir_segment(directory, parent) else directory.folders(parent)
        except StorageError:
            continue
        for last in names:
            name = below(parent, last)
            if last == FOLDER:
                found.append(name)
            elif not last.startswith(".") and name.count("/") < _DEEPEST:
                waiting.append(name)
    return sorted(found)


def _is_dir_segment(directory: Directory, name: str) -> bool:
    """Return whether a folder holds data: it may contain many files, and no quarantine."""
    if "." not in name.rpartition("/")[2]:
        return False
    from ondisk.segments.metadata_file import METADATA

    return directory.stat(f"{name}/{METADATA}") is not None


def _found(directory: Directory, folder: str) -> Iterator[Entry]:
    """Yield the items in one quarantine, in order of names, and so of times."""
    for entry in directory.entries(folder):
        if _is_item(entry.name):
            yield entry


def _is_item(last: str) -> bool:
    return not last.startswith(".") and not last.endswith(RECORD)


def _item(directory: Directory, folder: str, entry: Entry) -> Item:
    """Describe an item by its record; by its name if the record is not usable."""
    name, parent = f"{folder}/{entry.name}", folder.rpartition("/")[0]
    size = size_of(directory, name, entry)
    time = None
    record: dict[str, Any] = {"segment": entry.name, "file": entry.name, "verb": "", "why": UNKNOWN}
    if matched := ITEM.fullmatch(entry.name):
        record["segment"] = record["file"] = matched[2]
        with contextlib.suppress(ValueError):
            time = datetime.strptime(matched[1], "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
        if matched[3] is not None:
            record |= {"offset": int(matched[3]), "length": int(matched[4])}
    record = _read_record(directory, name + RECORD) or record
    last = record["segment"].rpartition("/")[2]  # the folder is where the item is now: somebody may have renamed it
    file, why, verb = record["file"], record["why"], record["verb"]
    return Item(name, below(parent, last), file, time, size, why, verb, record.get("offset"), record.get("length"))


def _read_record(directory: Directory, name: str) -> dict[str, Any] | None:
    """Return a record; None if it is missing, or cannot be one that ondisk wrote."""
    try:
        record = json.loads(directory.read(name, _RECORD_LIMIT))
    except (OndiskError, OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in _TEXTS):
        return None
    piece = [record[key] for key in ("offset", "length") if record.get(key) is not None]
    if len(piece) == 1 or not all(type(number) is int and 0 <= number < 2**63 for number in piece):
        return None
    try:
        for key in _TEXTS:
            record[key].encode(errors="surrogateescape")
        components(record["file"])
        last = components(record["segment"])[-1]
    except (InvalidInput, UnicodeError):
        return None
    return None if last == "." else record


def size_of(directory: Directory, name: str, entry: Entry) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if entry.kind != "directory":
        return entry.size
    size, waiting = 0, [name]
    while waiting:
        folder = waiting.pop()
        for each in directory.entries(folder):
            if each.kind == "directory":
                waiting.append(f"{folder}/{each.name}")
            else:
                size += each.size
    return size


def below(folder: str, last: str) -> str:
    return f"{folder}/{last}" if folder else last
