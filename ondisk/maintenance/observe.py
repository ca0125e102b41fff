"""Observe: what the index knows of a segment, and what is on disk, at one time: all that its diagnosis depends on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from ondisk.dataset.access import Access
from ondisk.errors import AuthenticationFailed, KeyMissing, SegmentCorrupt, StateError, counted
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.formats.base import DescribesFiles, is_zeros
from ondisk.index import Snapshot, segment_rows
from ondisk.maintenance.diagnosis import OTHER_BYTES, Files, Known, OnDisk
from ondisk.maintenance.states import Tally
from ondisk.segment import End, ScanResult
from ondisk.segments import dir
from ondisk.segments.dir import METADATA, NEW_METADATA, SEQUENCE, checksum_of_stats, is_refused, seen_with_files
from ondisk.segments.facts import located
from ondisk.segments.generations import hidden, stray, waiting


def observe(
    access: Access, snapshot: Snapshot, name: str, known: Known | None, entry: Entry | None, format: Format
) -> tuple[Known | None, OnDisk | None]:
    """Look at a segment on disk; return what is known, with what only that tells of the rows, and what is there."""
    directory, path, is_dir = access.directory, name, format.is_dir
    if entry is None and known is not None:  # it may not have its name yet
        path, committed = hidden(name, known.segment.id), access.committed(known.segment)
        if (found := waiting(directory, name, known.segment.id, committed)) is not None:
            entry = Entry.of(path.rpartition("/")[2], found)
    if is_dir and entry is not None and entry.kind == "directory":
        with contextlib.suppress(FileNotFoundError), directory.inside(path) as folder:
            return _look_into(folder, name, known, snapshot, format, needs_check=access.needs_check())
    if is_dir and entry is not None:
        is_empty = entry.kind == "file" and not entry.size
        return known, OnDisk(False, entry.size, is_empty=is_empty, is_dir=True)
    on_disk = None if entry is None else look_at(directory, name, entry, known, format)
    if known is not None and known.deleted is not None and not is_dir:
        start = format.first_offset(known.segment.end)
        left = known.segment.end.length - start - known.rows.size - known.deleted
        known = replace(known, unexplained=left)
    if known is not None and known.rows.count:
        needed = known.rows.data_end
        if known.segment.end.compressed:
            needed = segment_rows.end_of_block_before(snapshot, known.segment, needed)
        known = replace(known, needed=needed)
    return known, on_disk


def scan(name: str, format: Format, source: ReadableFile | Directory) -> Iterator[ScanResult]:
    """Yield the data in the directory of a segment, or in its file after comparing it with the name, if the format can.

    Raises:
        KeyMissing: it is encrypted, and its key is not known.
        AuthenticationFailed: no key fits, or the file is that of another segment.
    """
    if isinstance(source, Directory):
        yield from dir.scan(source, name, format.describe)
        return
    try:
        format.sealer(source, name)
        yield from format.scan(source)
    except (KeyMissing, AuthenticationFailed) as error:
        raise located(error, source.path) from None


def look_at(directory: Directory, name: str, entry: Entry, known: Known | None, format: Format) -> OnDisk:
    """Return what is on disk; a committed generation that waits for its name counts as the segment."""
    if entry.kind != "file":
        return OnDisk(False, entry.size)
    path, size, other = name, entry.size, None
    committed = None
    if known is not None:
        committed = known.segment.committed(format.mutable)
        if directory.stat(hidden(name, known.segment.id)) is not None:
            generation = known.segment.id
            other = stray(directory, name, generation, committed)
            if (found := waiting(directory, name, generation, committed)) is not None:
                path, size = hidden(name, generation), found.st_size
    try:
        file = directory.open_to_read(path)
    except FileNotFoundError:
        return OnDisk(True, size, stray=other)
    stat = file.stat()
    seen = None if committed is None else committed.seen_in(file, stat)
    has_grown = (
        known is not None
        and known.segment.shared
        and size > known.segment.end.size
        and seen not in OTHER_BYTES
        and has_more(file, known.segment.end, format)
    )
    if known is None or committed is None or not known.rows.count:
        is_empty = format.is_empty(file)
        is_readable = is_empty or format.is_readable(file)
        all_zeros = not is_readable and is_zeros(file, 0)
        return OnDisk(True, size, seen, is_empty, is_readable, all_zeros, stray=other, has_grown=has_grown)
    end = known.segment.end
    seal = format.seal(end)
    is_sealed = size == end.size + len(seal) and file.read(end.size, len(seal)) == seal
    is_readable = seen not in OTHER_BYTES or format.is_readable(file)
    sealed, refused = len(seal) if is_sealed else 0, committed.is_refused(stat)
    return OnDisk(True, size, seen, False, is_readable, False, sealed, other, refused, has_grown)


def has_more(file: ReadableFile, end: End, format: Format) -> bool:
    """Return whether a whole datum is after the end of a segment that another program writes."""
    try:
        if end.compressed:  # perhaps in a way that ondisk does not write: then only what precedes tells what follows
            return any(found.offsets and found.offsets[-1] >= end.length for found in format.scan(file))
        laid = format.resume(file, end)
    except (SegmentCorrupt, StateError, AuthenticationFailed):
        return True
    return laid.end.size - len(laid.content) > end.size


def _look_into(
    folder: Directory, name: str, known: Known | None, snapshot: Snapshot, format: Format, *, needs_check: bool
) -> tuple[Known | None, OnDisk]:
    """Compare the files in the directory of a segment with the index. Memory: a few numbers for each file."""
    strangers, own, found_files = Tally(), dict[str, int](), dict[int, Entry]()
    for entry in folder.entries():
        number = dir.number_of(name, entry.name)
        if entry.kind == "file" and not entry.looks_readable:
            folder.check_readable(entry.name)
        if number is not None and entry.kind == "file":
            found_files[number] = entry
        elif entry.name in (METADATA, SEQUENCE, NEW_METADATA) and entry.kind == "file":
            own[entry.name] = entry.size
        else:
            strangers.add(entry.name)
    seen, refused, length = None, False, 0
    if known is not None:
        segment, length = known.segment, known.segment.end.length
        stats = checksum_of_stats(found_files, length)
        seen, refused = (
            seen_with_files(folder, segment.facts, segment.end.size, stats),
            is_refused(folder, segment.facts),
        )
    sizes = {number: each.size for number, each in found_files.items()}
    size, highest = sum(sizes.values()), max(sizes, default=-1)
    missing, resized, repeated, misplaced, removed, unknown = (Tally() for _ in range(6))
    before, last, used = None, None, 0
    for number, wanted, *place in _rows(snapshot, known):
        file = dir.file_name(name, number)
        if number == before:
            repeated.add(file)
            continue
        if last is not None and place < last:
            misplaced.add(file)
        else:
            last = place
        used += 1
        before, found = number, sizes.pop(number, None)
        if found is None:
            missing.add(file)
        elif found != wanted:
            resized.add(f"{file}, which has {found} bytes instead of {wanted}")
    for number in sorted(sizes):
        (removed if number < length else unknown).add(dir.file_name(name, number), sizes[number])
    if known is not None and known.deleted is not None:
        known = replace(known, unexplained=max(0, removed.count - known.deleted))
    corrupted = [
        *_first(repeated, "datum", "has", "the same file as another datum"),
        *_first(missing, "file", "is", "missing"),
        *_first(resized, "file", "has", "another size"),
    ]
    if METADATA not in own and not isinstance(format, DescribesFiles):
        corrupted.append(f"{METADATA} is missing")
    is_deleted = known is not None and known.deleted is not None and not known.unexplained
    without = "of deleted data, not yet repacked" if is_deleted else "without a datum in the index"
    unused = max(0, length - used - removed.count)
    dirty = [
        *_first(removed, "file", "is", without),
        *_first(unknown, "file", "has", "no datum in the index"),
        *[f"{unused} numbers before, between or after its data have no file"] * (unused > 0),
        *_first(misplaced, "datum", "is", "out of time order"),
        *[f"{NEW_METADATA} exists: a repack was interrupted"] * (NEW_METADATA in own),
    ]
    sequence, interrupted = dir.read_sequence(folder), None
    if sequence is None or sequence < highest:
        found_sequence = "is missing or damaged" if sequence is None else f"contains {sequence}"
        interrupted = f"{SEQUENCE} {found_sequence}, but the highest file is {highest}: an append was interrupted"
    others = f"{strangers.count} names do not belong to the segment: {strangers.text()}" if strangers.count else None
    freed = removed.size + unknown.size
    files = Files(len(found_files), tuple(corrupted), tuple(dirty), freed, interrupted, others)
    # If the index may be lost, entries mean that files are lost, too.
    is_lost = needs_check and own.get(METADATA, 0) > 0 and NEW_METADATA not in own
    is_empty = not found_files and not is_lost
    return known, OnDisk(True, size, seen, is_empty, is_refused=refused, is_dir=True, files=files)


def _first(found: Tally, noun: str, verb: str, what: str) -> list[str]:
    return [f"{counted(found.count, noun, verb)} {what}, the first {found.named[0]}"] if found.count else []


def _rows(snapshot: Snapshot, known: Known | None) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, size, reftime and seq of a segment's data, in the order of their numbers."""
    if known is not None and known.rows.count:
        yield from segment_rows.in_order_of_offset(snapshot, known.segment, known.rows.begin, known.rows.end)
