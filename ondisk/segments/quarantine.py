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
an item, or a half-made copy under a hidden name; `remove_leftovers` removes both. Other people can change records, too.
An item whose record is missing or unusable is listed with an unknown reason, see `ondisk.segments.quarantine_items`.

The caller must hold the writers' lock to change anything. Names are relative to the dataset.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from ondisk.errors import OndiskError
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.segments.quarantine_items import FOLDER, ITEM, RECORD, Item, below, folders, size_of

_LONGEST = 160  # bytes of a segment's name in the name of an item; file names have at most 255
_NO_LINK = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


EMPTIED = "it is empty, and the index that was lost may have known data of it"
"""Why an empty segment is kept."""


def keep(directory: Directory, name: str, *, verb: str, why: str, of: str | None = None) -> str:
    """Move a whole file or folder into quarantine, and return the name of the item.

    Args:
        name: what to move; also a hidden name, or a file of a dir segment.
        verb: what moves it: append, fix, repack …
        why: the reason, for people.
        of: the segment that it belongs to; None for `name` itself.

    Durability: syncs the record, renames, syncs the directory of the item, then the one of `name`. A crash in between
        leaves the file at one of the names, or at both.

    Raises:
        FileNotFoundError: nothing has this name.
    """
    with _reserved(directory, _record_of(directory, name, of, verb, why)) as item:
        directory.rename(name, item)
    directory.sync(_parent(name))
    return item


def link(directory: Directory, name: str, *, verb: str, why: str, of: str | None = None) -> str:
    """Put a second name of a file or folder into quarantine, and return the name of the item; `name` stays.

    For a file in whose place another one is renamed later. A folder becomes a folder of second names. What cannot have
    a second name is copied.

    Args:
        name, verb, why, of: as in `keep`.

    Durability: syncs the record, the copies if there are any, and the directory of the item.

    Raises:
        FileNotFoundError: nothing has this name.
        StorageError: something cannot be linked, and is not a regular file that could be copied.
    """
    with _reserved(directory, _record_of(directory, name, of, verb, why)) as item:
        if _kind(directory, name) == "directory":
            with _staged(directory, item) as staged:
                _repeat(directory, name, directory, staged, may_link=True)
        elif _linked(directory, name, item):
            directory.sync(_parent(item))
        else:
            with _staged(directory, item) as staged:
                _copy_file(directory, name, directory, staged)
    return item


def keep_piece(
    directory: Directory, name: str, file: ReadableFile, offset: int, length: int, *, verb: str, why: str
) -> str:
    """Copy bytes of a segment's file into quarantine before they are cut off, and return the name of the item.

    Args:
        name: the segment.
        file: its file, open.
        offset: of the first byte.
        length: number of bytes.
        verb, why: as in `keep`.

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
    """Remove an item for good, then its record.

    Durability: syncs the directory. A crash in between leaves the item, or a part of its folder, or its record.
    """
    _remove(directory, name)
    directory.discard(name + RECORD)
    directory.sync(_parent(name))
    directory.remove_directory(_parent(name))


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
        if _kind(directory, name) == "directory":
            _repeat(directory, name, target, alias, may_link=False)
        else:
            _copy_file(directory, name, target, alias)
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
    if _kind(directory, item.name) != "directory" and _linked(directory, item.name, item.segment):
        directory.sync(_parent(item.segment))
        directory.unlink(item.name)
    else:
        directory.rename(item.name, item.segment)
    directory.discard(item.name + RECORD)
    directory.sync(_parent(item.name))
    directory.remove_directory(_parent(item.name))
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
    """Return the record of a whole file or folder."""
    found = directory.stat(name)
    if found is None:
        raise FileNotFoundError(name)
    size = size_of(directory, name, Entry.of(name, found))
    return _record(of or name, name, verb, why, size, found.st_mtime_ns)


def _record(segment: str, name: str, verb: str, why: str, size: int, mtime: int) -> dict[str, Any]:
    folder = _parent(segment)
    file = name.removeprefix(f"{folder}/") if folder else name
    return {"segment": segment, "file": file, "verb": verb, "why": why, "size": size, "mtime": mtime}


@contextlib.contextmanager
def _reserved(directory: Directory, record: dict[str, Any]) -> Iterator[str]:
    """Write and sync the record of a new item; yield the item's name, which is free.

    Removes the record if the block raises an error before the item exists.
    """
    folder = below(_parent(record["segment"]), FOLDER)
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
    """Link or copy everything in a folder into a new folder, and sync that and all below it."""
    waiting = [(name, alias)]
    while waiting:
        from_, to = waiting.pop()
        target.inside(to, make=True).close()
        for entry in directory.entries(from_):
            before, after = f"{from_}/{entry.name}", f"{to}/{entry.name}"
            if entry.kind == "directory":
                waiting.append((before, after))
            elif not (may_link and _linked(directory, before, after)):
                _copy_file(directory, before, target, after)
        target.sync(to)


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


def _copy_file(directory: Directory, name: str, target: Directory, alias: str) -> None:
    file = directory.open_to_read(name)
    _copy(file, 0, file.size(), target, alias)


def _copy(file: ReadableFile, offset: int, length: int, target: Directory, alias: str) -> None:
    """Copy bytes of a file to a new one, and sync that."""
    with target.create_file(alias) as copy:
        copy.copy(file, offset, length, 0)
        copy.sync()


def _remove(directory: Directory, name: str) -> None:
    """Remove a file, or a folder with everything in it; nothing if it does not exist."""
    if _kind(directory, name) != "directory":
        directory.discard(name)
        return
    found = [name]
    for folder in found:  # grows meanwhile
        for entry in directory.entries(folder):
            if entry.kind == "directory":
                found.append(f"{folder}/{entry.name}")
            else:
                directory.discard(f"{folder}/{entry.name}")
    for folder in reversed(found):
        directory.remove_directory(folder)


def _kind(directory: Directory, name: str) -> str | None:
    found = directory.stat(name)
    return None if found is None else Entry.of(name, found).kind


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
