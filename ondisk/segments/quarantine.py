"""Quarantine: files that stood in the way of ondisk, kept until somebody looks at them.

    2026/11-20.vm2                                                    a segment
    2026/.quarantine/
      20261122T141307.123456Z-11-20.vm2                               an item: a file, or the folder of a dir segment
      20261122T141307.123456Z-11-20.vm2.json                          its record, one line of JSON
      20261122T141309.000127Z-11-20.vm2@40960-1200                    a piece: 1,200 bytes that began at byte 40,960
      20261122T141309.000127Z-11-20.vm2@40960-1200.json

Items are kept in the folder of their segment, so that keeping one is a rename on the same filesystem. Nothing else
reads them: a name that begins with "." is no segment, no generation and no data. No item is ever overwritten. The time
is that of keeping (UTC), raised by microseconds until the name is free.

A record contains, as the values of one JSON object:

    time      when the item was kept
    segment   the segment that the bytes belong to
    file      the file that was kept, from the folder of the segment: 11-20.vm2, .11-20.vm2.17, 11-20.h5/000003.h5
    verb      what kept it: append, fix, repack …
    why       the reason, for people
    size      bytes
    mtime     last change of the file, nanoseconds since 1970
    offset    where a piece began in the file
    length    bytes of a piece

The record is written and synced before the item gets its name, and removed after it. So a crash leaves a record without
an item, or a half-made copy under a hidden name; `remove_leftovers` removes both. Other people can change what is here,
so nothing is believed that ondisk would not have written: an item whose record is missing or unusable is listed with an
unknown reason.

The caller must hold the writers' lock to change anything. Names are relative to the dataset.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from ondisk.errors import InvalidInput, OndiskError, StorageError
from ondisk.filesystem import Directory, Entry, ReadableFile, components
from ondisk.named_tuple import NamedTuple
from ondisk.segments.generations import below, parent_of
from ondisk.segments.places import places
from ondisk.step import inner_of

FOLDER = ".quarantine"
RECORD = ".json"
"""What follows the name of an item in that of its record."""

ITEM = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{6})Z-(.+?)(?:@([0-9]{1,18})-([0-9]{1,18}))?", re.DOTALL)
"""The name of an item: time, file, offset and length."""

EMPTIED = "it is empty, and the index that was lost may have known data of it"
"""Why an empty segment is kept."""

UNKNOWN = "unknown: the item has no usable record"

_LONGEST = 160  # bytes of a segment's name in the name of an item; file names have at most 255
_NO_LINK = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_RECORD_LIMIT = 64 * 1024  # bytes
_TEXTS = ("segment", "file", "verb", "why")
_DEEPEST = 16  # levels of folders that are searched, as for segments


class Item(NamedTuple):
    """A file, a folder or a piece of a file in quarantine."""

    name: str  # of the item, relative to the dataset
    segment: str  # the segment that the bytes belong to
    file: str  # the file that was kept, relative to the segment's folder
    time: datetime | None  # when it was kept; None if its name does not say so
    size: int  # bytes on disk now
    why: str  # the reason
    verb: str  # what kept it; empty if that is not known
    offset: int | None = None  # where the piece began in the file; None for a whole file or folder
    length: int | None = None  # bytes of the piece; None for a whole file or folder

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole segment, or a generation of one."""
        return self.offset is None and "/" not in self.file


class Total(NamedTuple):
    """What is in quarantine: the number of items, and their bytes."""

    items: int
    bytes: int


def keep(directory: Directory, name: str, *, verb: str, why: str, of: str | None = None) -> str:
    """Move a whole file or folder into quarantine, and return the name of the item.

    Args:
        name: what to move; also a hidden name, or a file of a dir segment.
        verb: what moves it: append, fix, repack …
        of: the segment that it belongs to; None for `name` itself.

    Durability: syncs the record, renames, syncs the directory of the item, then the one of `name`. A crash in between
        leaves the file at one of the names, or at both.

    Raises:
        FileNotFoundError: nothing has this name.
    """
    with _reserved(directory, _record_of(directory, name, of, verb, why)) as item:
        directory.rename(name, item)
    directory.sync(parent_of(name))
    return item


def link(directory: Directory, name: str, *, verb: str, why: str, of: str | None = None) -> str:
    """Put a second name of a file or folder into quarantine, and return the name of the item; `name` stays.

    For a file in whose place another one is renamed later. A folder becomes a folder of second names. What cannot have
    a second name is copied; raises StorageError if it cannot be copied either.

    Durability: syncs the record, the copies if there are any, and the directory of the item.
    """
    record = _record_of(directory, name, of, verb, why)
    with _reserved(directory, record) as item, _staged(directory, item) as staged:
        _repeat(directory, name, directory, staged, may_link=True)
    return item


def keep_piece(
    directory: Directory, name: str, file: ReadableFile, offset: int, length: int, *, verb: str, why: str
) -> str:
    """Copy bytes of a segment's file into quarantine before they are cut off, and return the name of the item.

    Durability: syncs the record and the copy, renames, syncs the directory. The caller may cut the bytes off then.

    Raises:
        EOFError: the file ends before these bytes.
    """
    mtime = os.fstat(file.fileno()).st_mtime_ns
    record = _record(name, name, verb, why, length, mtime) | {"offset": offset, "length": length}
    with _reserved(directory, record) as item, _staged(directory, item) as staged:
        _copy(file, offset, length, directory, staged)
    return item


def drop(directory: Directory, name: str) -> None:
    """Remove an item for good, then its record, and sync; a crash leaves a part of it, or its record."""
    _remove(directory, name)
    directory.discard(name + RECORD)
    directory.sync(parent_of(name))
    directory.remove_directory(parent_of(name))
    directory.kept = [each for each in directory.kept if each != name]


def export(directory: Directory, name: str, target: Directory, alias: str) -> None:
    """Copy an item to a new file or folder in another directory.

    Durability: syncs the copy and its directory. An error removes what was copied; a crash leaves it.

    Raises:
        FileExistsError: the alias is taken.
        StorageError: the item contains something other than regular files and folders.
    """
    if target.stat(alias) is not None:
        raise FileExistsError(alias)
    try:
        _repeat(directory, name, target, alias, may_link=False)
        target.sync()
    except FileExistsError:  # somebody else created it meanwhile
        raise
    except BaseException:
        _remove(target, alias)
        raise


def restore(directory: Directory, item: Item) -> str:
    """Move a whole item back to the name of its segment, and return that name.

    Durability: the file has its name before the item loses its own; syncs both directories.

    Raises:
        FileExistsError: something has this name; it is not overwritten.
        FileNotFoundError: the item does not exist.
    """
    if directory.stat(item.segment) is not None:
        raise FileExistsError(item.segment)
    found = directory.stat(item.name)
    if not (found and stat.S_ISDIR(found.st_mode)) and _linked(directory, item.name, item.segment):
        directory.sync(parent_of(item.segment))
        directory.unlink(item.name)
    else:
        directory.rename(item.name, item.segment)
    directory.discard(item.name + RECORD)
    directory.sync(parent_of(item.name))
    directory.remove_directory(parent_of(item.name))
    return item.segment


def remove_leftovers(directory: Directory) -> None:
    """Remove what killed processes left in quarantine: half-made copies, and records without an item."""
    for folder in folders(directory):
        names = {*directory.names(folder)}
        for name in sorted(names):
            if name.startswith(".") and ITEM.fullmatch(name[1:]):
                _remove(directory, f"{folder}/{name}")
            elif name.endswith(RECORD) and ITEM.fullmatch(name) and name.removesuffix(RECORD) not in names:
                directory.discard(f"{folder}/{name}")


def _record_of(directory: Directory, name: str, of: str | None, verb: str, why: str) -> dict[str, Any]:
    found = directory.stat(name)
    if found is None:
        raise FileNotFoundError(name)
    return _record(of or name, name, verb, why, size_of(directory, name), found.st_mtime_ns)


def _record(segment: str, name: str, verb: str, why: str, size: int, mtime: int) -> dict[str, Any]:
    folder = parent_of(segment)
    file = name.removeprefix(f"{folder}/") if folder else name
    return {"segment": segment, "file": file, "verb": verb, "why": why, "size": size, "mtime": mtime}


@contextlib.contextmanager
def _reserved(directory: Directory, record: dict[str, Any]) -> Iterator[str]:
    """Write the record of a new item, and yield its name, which is free; remove it if the block raises."""
    folder = below(parent_of(record["segment"]), FOLDER)
    label = _label(record)
    time = datetime.now(UTC)
    while True:
        item = f"{folder}/{time:%Y%m%dT%H%M%S.%f}Z-{label}"
        if directory.stat(item) is None:
            with contextlib.suppress(FileExistsError):
                file = directory.create_file(item + RECORD)
                break
        time += timedelta(microseconds=1)
    try:
        with file:
            line = json.dumps({"time": f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"} | record)
            file.write(0, line.encode() + b"\n")
            file.sync()
        yield item
    except BaseException:
        if directory.stat(item) is None:
            directory.discard(item + RECORD)
        raise
    directory.kept.append(item)


def _label(record: dict[str, Any]) -> str:
    """Return the part of an item's name that says which file it is; not too long, and unlike the name of a record."""
    last = record["file"].replace("/", "-")
    encoded = last.encode(errors="surrogateescape")
    if len(encoded) > _LONGEST:
        last = encoded[:_LONGEST].decode(errors="ignore")
    if last.endswith(RECORD):
        last += "_"
    return f"{last}@{record['offset']}-{record['length']}" if "offset" in record else last


@contextlib.contextmanager
def _staged(directory: Directory, item: str) -> Iterator[str]:
    """Yield the hidden name of an item that is not complete; rename it to the item after the block."""
    folder, _, last = item.rpartition("/")
    staged = f"{folder}/.{last}"
    try:
        yield staged
        directory.rename(staged, item)
    except BaseException:
        _remove(directory, staged)
        raise


def _repeat(directory: Directory, name: str, target: Directory, alias: str, *, may_link: bool) -> None:
    """Link or copy a file, or a folder and everything in it, to a new one; sync copies and folders."""
    folders = []
    for path, entry in _tree(directory, name):
        to = alias + path.removeprefix(name)
        if entry.kind == "directory":
            target.inside(to, make=True).close()
            folders.append(to)
        elif not (may_link and _linked(directory, path, to)):
            file = directory.open_to_read(path)
            _copy(file, 0, file.size(), target, to)
    for folder in folders:
        target.sync(folder)


def _tree(directory: Directory, name: str) -> Iterator[tuple[str, Entry]]:
    """Yield a file, or a folder before everything in it; nothing if it does not exist."""
    found = directory.stat(name)
    waiting = [] if found is None else [(name, Entry.of(name, found))]
    while waiting:
        path, entry = waiting.pop()
        yield path, entry
        if entry.kind == "directory":
            waiting += ((f"{path}/{each.name}", each) for each in directory.entries(path))


def _linked(directory: Directory, name: str, alias: str) -> bool:
    """Link a file to a second name; return False if that is impossible, and nothing was done.

    Linux refuses a second name to files of other users; a filesystem may have no links at all.
    """
    try:
        return directory.link(name, alias)
    except OndiskError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _NO_LINK:
            raise
        return False


def _copy(file: ReadableFile, offset: int, length: int, target: Directory, alias: str) -> None:
    with target.create_file(alias) as copy:
        copy.copy(file, offset, length, 0)
        copy.sync()


def _remove(directory: Directory, name: str) -> None:
    """Remove a file, or a folder with everything in it; nothing if it does not exist."""
    folders = []
    for path, entry in _tree(directory, name):
        if entry.kind == "directory":
            folders.append(path)
        else:
            directory.discard(path)
    for folder in reversed(folders):
        directory.remove_directory(folder)


def items(directory: Directory) -> Iterator[Item]:
    """Yield all items in quarantine, by folder, the oldest first; raise StorageError if one cannot be read."""
    for folder in folders(directory):
        for entry in directory.entries(folder):  # in order of names, and so of times
            if _is_item(entry.name):
                yield _item(directory, folder, entry)


def find(directory: Directory, name: str) -> Item | None:
    """Return the item with a name; None without one; raise StorageError if it cannot be read."""
    folder, _, last = name.rpartition("/")
    try:
        *above, quarantine = components(inner_of(folder))
        found = None if any(each.startswith(".") for each in above) else directory.stat(name)
    except InvalidInput:
        return None
    if found is None or quarantine != FOLDER or not _is_item(last):
        return None
    return _item(directory, folder, Entry.of(last, found))


def total(directory: Directory) -> Total:
    """Return how many items are in quarantine, and their bytes; raise StorageError if one cannot be read."""
    sizes = [each.size for each in items(directory)]
    return Total(len(sizes), sum(sizes))


def folders(directory: Directory) -> list[str]:
    """Return the folders of all quarantines, in order, without those that cannot be listed: check has these."""
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
    from ondisk.segments.dir import METADATA  # here, as few datasets have dir segments

    return directory.stat(f"{name}/{METADATA}") is not None


def _is_item(last: str) -> bool:
    return not last.startswith(".") and not last.endswith(RECORD)


def _item(directory: Directory, folder: str, entry: Entry) -> Item:
    """Describe an item by its record; by its name if the record is not usable."""
    name, parent = f"{folder}/{entry.name}", folder.rpartition("/")[0]
    size = size_of(directory, name)
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


def size_of(directory: Directory, name: str) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(entry.size for _, entry in _tree(directory, name) if entry.kind != "directory")
