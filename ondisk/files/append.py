"""Append files: each becomes a datum of the format `blob`, with a time and metadata from its path.

An append that was interrupted is repeated. Two files are the same datum if their unique fields are equal, as everywhere
in ondisk. If their bytes are equal, too, the second one is a duplicate. If they differ, it is refused, not skipped in
silence: `unique` lacks a field in which the two differ, or the file has changed since it was stored. With `replace`, it
takes the place of the first one.

A folder is opened component by component, without following symbolic links: neither a link in it nor a folder that is
replaced by one meanwhile can lead out of it. What the caller names itself may be a link.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import AppendResult, checked_batch_size, refuse_old
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.datum import Datum
from ondisk.errors import InvalidInput, NotFound, OndiskError, StorageError, counted, shown
from ondisk.files.file_names import Describe
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Batch, is_dir
from ondisk.formats.base import BATCH_BYTES, BATCH_SIZE, Format
from ondisk.index.precedence import Precedence
from ondisk.index.segment_rows import all_segments
from ondisk.segments.dir import number_of
from ondisk.segments.generations import hidden

if TYPE_CHECKING:
    from ondisk.dataset.dataset import Dataset

STORED = ""
FORMAT = "blob"
CHANGED = "it changed while it was read"
Place: TypeAlias = tuple[int, str]  # the position of a file in the input, and its path for messages
_REFUSALS = 100
UNFINISHED = (".tmp", ".part")  # endings of files that another program still writes
REMOVED = "it was removed meanwhile"
LONGEST = 4096  # bytes of the path of a file, at most: more than a program can open at once


def _files(access: Access) -> Iterator[tuple[tuple[int, int], tuple[str, int]]]:
    with access.current().index.snapshot() as snapshot:
        for segment, *_ in all_segments(snapshot):
            if not is_dir(segment.format):
                continue
            for place in (hidden(segment.name, segment.id), segment.name):
                with contextlib.suppress(FileNotFoundError), access.directory.inside(place) as folder:
                    device = folder.device
                    for entry in folder.entries():
                        number = number_of(segment.name, entry.name)
                        if number is not None:
                            yield (device, entry.inode), (segment.name, number)
                    break


def _known(dataset: Dataset, batch: Batch, names: Sequence[str]) -> dict[int, str]:
    """Return the data of a batch that are not to be stored: position → the reason, `STORED` if it is there already.

    Cost: reads what is stored with the same unique fields. Memory: one such datum.
    """
    unique, precedence = dataset.config.unique, Precedence.of(dataset.config)
    found: dict[int, str] = {}
    seen: dict[tuple[Any, ...], int] = {}
    if not unique:
        return found
    opened, same = dataset._access.current(), f"the same {', '.join(unique)}"
    with opened.index.snapshot() as snapshot:
        rows = zip(batch.reftimes, batch.metadata, batch.payloads, strict=True)
        for position, (reftime, metadata, content) in enumerate(rows):
            is_same, problem, version = False, "", None
            key = tuple(reftime if name == "reftime" else metadata.get(name) for name in unique)
            if (last := seen.get(key)) is not None:  # the batch stores it before this one
                is_same, problem = batch.payloads[last] == content, f"it differs from {names[last]}, which has {same}"
                version = batch.metadata[last].get(precedence.version)
            elif (row := snapshot.of_key(reftime, metadata)) is not None:
                problem = f"it differs from the file that is stored with {same}"
                version = row[precedence.place]
                try:
                    [[datum]] = opened.reader.rows(snapshot, [row[1:]])
                    is_same = datum.data == content
                except OndiskError as error:
                    problem = f"it cannot be compared ({error.message}) with {same}"
            new = metadata.get(precedence.version)
            keeps = precedence.keeps_version(version, new)
            # A file with equal bytes and a higher version is stored: then no version between them replaces it.
            is_same &= precedence.rule != "newer" or keeps or version == new
            if problem and (is_same or keeps):
                found[position] = STORED if is_same else problem
            else:
                seen[key] = position
    return found


def append(
    dataset: Dataset,
    paths: Iterable[str | os.PathLike[str]],
    *,
    time: str,
    fields: Mapping[str, str] | None = None,
    tz: str | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] = lambda size: None,
) -> AppendResult:
    """Store files, each as a datum of the format `blob`, in a fixed order.

    A file that cannot be stored is refused, with its path and the reason: it cannot be read, is not a regular file,
    changed while it was read, has no time, or its path is not UTF-8. The others are stored.

    Args:
        dataset: open for writing.
        paths: files, and folders for all that is in them and in their subfolders. In a folder, hidden names and
            unfinished files (`.tmp`, `.part`) are skipped, and links are refused.
        time: `name:FORM`, `path:FORM` or `mtime`; a FORM has directives of `strptime`, such as `%Y%m%d_%H%M`.
        fields: field → `path`, `path:N`, `name` or `name:N`; see `ondisk.files.file_names`.
        tz: the time zone of times in names, such as `Europe/Rome`; None for UTC.
        batch_size: files in a batch; a batch also ends at 64 MiB.
        progress: called with the size of each file that was read.

    Returns:
        The result; a reason in `refusals` begins with the path of the file.

    Raises:
        InvalidInput: an argument is not valid, or a folder is a dataset.
        NotFound, StorageError: something that was named does not exist or cannot be read. What was found before is
            stored; `error.context["result"]` reports it.
        Also the errors of `Dataset.append`.

    Durability: as `Dataset.append`.
    Locks: the writers' lock, once for each batch; not while files are read.
    Cost: reads each file once, and what is stored for it already. Memory: one batch, and the names of one folder.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise InvalidInput(f"paths must be a list of files, not {shown(paths)}", hint=f"Write [{shown(paths)}].")
    describe = Describe(time, fields or {}, tz, dataset.config.fields)
    reading = _Reading(dataset, describe, checked_batch_size(batch_size), progress)
    format = dataset._access.incoming(FORMAT)
    try:
        result = dataset._append(reading.batches((os.fspath(path) for path in paths), format), format)
    except OndiskError as error:
        reading.complete(error.context.setdefault("result", AppendResult()))
        raise
    return reading.complete(result)


@dataclass(slots=True)
class _Reading:
    """Reads files into batches, and counts what is in none: refused files, and files that are stored already."""

    dataset: Dataset
    describe: Describe
    batch_size: int
    progress: Callable[[int], None]
    count: int = 0
    refused: int = 0
    stored: int = 0
    refusals: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: dict[tuple[int, int], tuple[str, int]] | None = None  # see `_files`

    def complete(self, result: AppendResult) -> AppendResult:
        if raced := result.duplicates:  # they were not stored when they were looked up, and nobody has compared them
            reason = f"{counted(raced, 'file')}: others were stored with the same unique fields meanwhile; append again"
            result.refusals = [*result.refusals, (self.count, reason)]
        result.refused += self.refused + raced
        result.refusals = [*sorted(self.refusals), *result.refusals][:_REFUSALS]
        result.duplicates = self.stored
        result.notes += self.notes
        return result

    def batches(self, paths: Iterable[str], format: Format) -> Iterator[Batch]:
        """Yield the files that are to be stored, in batches; also those before an error."""
        files = self._encoded(paths, format)
        error = None
        while error is None:
            batch, places, weight = Batch(), list[Place](), 0
            try:
                for place, encoded in files:
                    places.append(place)
                    batch.extend(encoded)
                    weight += len(encoded.payloads[0])
                    if len(batch) >= self.batch_size or weight >= BATCH_BYTES:
                        break
            except OndiskError as raised:
                error = raised
            if not places:
                break
            self._sift(batch, places)
            if batch.payloads:
                yield batch
        if error is not None:
            raise error

    def _encoded(self, paths: Iterable[str], format: Format) -> Iterator[tuple[Place, Batch]]:
        """Yield the files that can be stored, each as a batch of one datum, and refuse the others."""
        for path in paths:
            skipped = Skipped()
            for found in found_in(path, skipped):
                place = self.count, found.shown
                self.count += 1
                try:
                    if (datum := self._read(found)) is None:
                        self.stored += 1
                        continue
                    encoded = format.encode([datum])
                except (InvalidInput, StorageError) as error:
                    self._refuse(place, error.message.removeprefix(f"{found.folder.at(found.name)}: "))
                    continue
                if encoded.refused:
                    self._refuse(place, encoded.refused[0][1])
                    continue
                yield place, encoded
            if note := str(skipped):
                self.notes.append(f"{path}: {note}")

    def _read(self, found: Found) -> Datum | None:
        """Return the datum of a file; None if it is stored, by any name; raise InvalidInput or StorageError."""
        if found.reason is not None:
            raise InvalidInput(found.reason)
        try:
            file = found.folder.open_to_read(found.name)
        except FileNotFoundError:
            raise InvalidInput(REMOVED) from None
        if self._is_own(file):
            return None
        reftime, metadata = self.describe(found.path, file.stat().st_mtime_ns)
        content = _content(file, self.dataset.config.max_datum_size)
        self.progress(len(content))
        return Datum(reftime, metadata, content)

    def _is_own(self, file: ReadableFile) -> bool:
        """Return whether a file is that of a datum of the dataset: under another name it is a duplicate.

        Cost: of a file with several names, or in the dataset: the first time, lists all dir segments. Memory: 200 bytes
            for each file in them.
        """
        status, dataset = file.stat(), self.dataset
        if status.st_nlink == 1 and not Path(file.path).resolve().is_relative_to(dataset.path.resolve()):
            return False
        if self.places is None:
            self.places = dict(_files(dataset._access))
        if (place := self.places.get((status.st_dev, status.st_ino))) is None:
            return False
        with dataset._access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(place[0])
            return segment is not None and snapshot.row_at(segment, place[1], status.st_size) is not None

    def _refuse(self, place: Place, reason: str) -> None:
        self.refused += 1
        if len(self.refusals) < _REFUSALS:
            self.refusals.append((place[0], f"{place[1]}: {reason}"))

    def _sift(self, batch: Batch, places: list[Place]) -> None:
        """Remove from a batch, and `places`, files that are too old, stored, or differ from what is stored."""
        refuse_old(batch, self.dataset.config)
        removed = dict(batch.refused)
        self._remove(batch, places, removed)
        removed = _known(self.dataset, batch, [shown for _, shown in places])
        batch.refuse(removed)
        self._remove(batch, places, removed)

    def _remove(self, batch: Batch, places: list[Place], removed: Mapping[int, str]) -> None:
        """Count what a batch has refused, and forget it."""
        batch.refused = []
        for position, reason in removed.items():
            if reason == STORED:
                self.stored += 1
            else:
                self._refuse(places[position], reason)
        places[:] = [place for position, place in enumerate(places) if position not in removed]


def _content(file: ReadableFile, limit: int) -> bytes:
    before = file.stat()
    if before.st_size > limit:
        raise InvalidInput(f"{before.st_size} bytes are more than max_datum_size, {limit}")
    content = file.read(0, before.st_size + 1)
    after = file.stat()
    same = all(getattr(before, key) == getattr(after, key) for key in ("st_size", "st_mtime_ns", "st_ctime_ns"))
    if len(content) != before.st_size or not same:
        raise InvalidInput(CHANGED)
    return content


@dataclass(frozen=True, slots=True)
class Found:
    shown: str  # the path for messages: that of the folder that was named, and the path in it
    path: str  # relative to the folder that was named; of a file that was named itself only its name
    folder: Directory  # the folder that contains it, open until the next one is found
    name: str  # its name in there
    reason: str | None = None  # why it cannot be stored; None for a regular file


@dataclass(slots=True)
class Skipped:
    """What was skipped on purpose in a folder that was named: hidden names, and unfinished files."""

    hidden: int = 0
    unfinished: int = 0

    def __str__(self) -> str:
        return f"skipped: {self.hidden} hidden, {self.unfinished} unfinished" if self.hidden or self.unfinished else ""


def found_in(path: str, skipped: Skipped) -> Iterator[Found]:
    """Yield the file at a path, or all that is in the folder there and in its subfolders; count what is skipped.

    Of each folder first the files, then the subfolders, each in the order of their names. Hidden names and unfinished
    files in a folder are skipped.

    Memory: the names of one folder, and of the subfolders that wait.
    """
    if "\0" in path or not os.path.exists(path):  # noqa: PTH110 - Path raises for one that is too long
        raise NotFound(f"{path}: no such file or folder", hint="Check the path.")
    if not Path(path).is_dir():
        yield _named(path)
        return
    with Directory.open(path) as top:
        if top.stat(CONFIG) is not None:
            raise InvalidInput(f"{path} is a dataset", hint="Append what `ondisk query --to` exports of it.")
        waiting = [""]
        while waiting:
            yield from _in_folder(top, path, waiting.pop(), waiting, skipped)


def _named(path: str) -> Found:
    place, name = Path(path).resolve(), Path(path).name
    folder = Directory.above(place)
    found = folder.stat(place.name)
    reason = REMOVED if found is None else _reason(Entry.of(place.name, found), name)
    return Found(path, name, folder, place.name, reason)


def _in_folder(top: Directory, named: str, inner: str, waiting: list[str], skipped: Skipped) -> Iterator[Found]:
    """Yield what is in the folder `inner` of `top`, shown below `named`, and add its subfolders to `waiting`."""

    def of(path: str, folder: Directory, name: str, reason: str | None) -> Found:
        return Found(os.path.join(named, path), path, folder, name, reason)  # noqa: PTH118 - Path drops a leading ./

    try:
        folder = top.inside(inner) if inner else top
        entries = folder.entries()
    except FileNotFoundError:  # it was removed meanwhile
        return
    except StorageError as error:
        if not inner:
            raise
        yield of(inner, top, inner, error.message.removeprefix(f"{top.at(inner)}: "))
        return
    folders = []
    for entry in entries:
        path = f"{inner}/{entry.name}" if inner else entry.name
        if entry.name.startswith("."):
            skipped.hidden += 1
        elif entry.kind == "directory":
            if (reason := _too_long(path) or _dataset(folder, entry.name)) is None:
                folders.append(path)
            else:
                yield of(path, folder, entry.name, reason)
        elif entry.name.endswith(UNFINISHED):
            skipped.unfinished += 1
        else:
            yield of(path, folder, entry.name, _reason(entry, path))
    waiting += reversed(folders)


def _dataset(folder: Directory, name: str) -> str | None:
    """Return why a folder is not entered: it contains a dataset, perhaps the one that is appended to."""
    with contextlib.suppress(StorageError):  # it cannot be listed either, and is refused then
        if folder.stat(f"{name}/{CONFIG}") is not None:
            return "it is a dataset"
    return None


def _reason(entry: Entry, path: str) -> str | None:
    if entry.kind != "file":
        return "it is not a regular file; links are not followed"
    return _too_long(path)


def _too_long(path: str) -> str | None:
    size = len(os.fsencode(path))
    return f"its path has {size} bytes, more than {LONGEST}" if size > LONGEST else None
