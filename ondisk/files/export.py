"""Export data: each becomes a file in a folder, with a name from its metadata.

Nothing is overwritten, and nothing outside of the folder is touched. An export skips a file that exists with the same
bytes, so you can repeat an interrupted export. It copies the bytes, or makes hard links: if you edit one in place, you
change the segment. There are no symbolic links: after a repack, one would lead to another datum.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.datum_as_json import time_text
from ondisk.dataset.merged import Merged
from ondisk.dataset.output_file import check_outside
from ondisk.dataset.unreadable_data import Skipped, skipped_of
from ondisk.datum import Datum
from ondisk.errors import (
    AlreadyExists,
    DiskFull,
    DurabilityLost,
    InvalidInput,
    OndiskError,
    ReadOnly,
    StorageError,
    shown,
)
from ondisk.files.file_names import DEFAULT, Names
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.formats.base import Kept
from ondisk.index.connection import temporary_errors
from ondisk.segments.dir import file_name
from ondisk.segments.generations import names_of

if TYPE_CHECKING:
    from ondisk.dataset.query import Match
    from ondisk.dataset.unreadable_data import Damaged

_COPY = "Omit --link (in Python link=False): then the files are copies."
_NOT_PERMITTED = f"Only the owner of a file may link it, and some filesystems have no links. {_COPY}"
_HINTS: dict[type[OndiskError], str] = {
    # The files look whole until they are read from the disk.
    DurabilityLost: "Check the disk (dmesg), delete what was exported, and export again.",
    DiskFull: "Free some space on this disk, and export again.",
    ReadOnly: "Choose another folder, or a user who may write there.",
}
_REFUSALS = 100
_KNOWN = 20  # names of metadata that an error lists
_OPEN = 64  # folders
_SYNCED = 64 * 1024 * 1024  # bytes of files that are synced while the next ones are written
_NO_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)  # what some filesystems say of names that others take


class Links(contextlib.ExitStack):
    """Links the files of data, in one thread and a `with` block; raises InvalidInput if they have none."""

    def __init__(self, dataset: Dataset | Merged) -> None:
        super().__init__()
        self._path = dataset.path if isinstance(dataset, Dataset) else None
        configs = {str(dataset.path): dataset.config} if isinstance(dataset, Dataset) else dataset.configs
        for path, config in configs.items():
            if not is_dir(config.format):
                message = f"the data of {path} cannot be linked: {config.format} stores many of them in one file"
                raise InvalidInput(message, hint=_COPY)
        self._datasets = Kept[Path, Directory](lambda path: self.enter_context(Directory.open(path)))

    def add(self, datum: Datum, folder: Directory, name: str, staged: str) -> None:
        """Link the file of a datum to a name in a folder, if the file has the datum's bytes.

        Durability: none; the caller syncs the folder. A crash may leave the hidden file `staged`, linked first.
        """
        assert datum.location is not None
        segment, generation = datum.location.segment, datum._place[1]
        dataset = self._datasets[self._path or Path(datum.dataset or "")]
        places = names_of(dataset, segment, generation)
        try:
            if not any(self._link(datum, dataset, place, folder, staged) for place in places):
                if folder.is_removed:
                    raise FileNotFoundError(folder.path)
                raise InvalidInput("its file was moved or changed after it was read; export again")
            folder.link(staged, name)
        finally:
            folder.discard(staged)

    def _link(self, datum: Datum, dataset: Directory, place: str, folder: Directory, staged: str) -> bool:
        """Link the file of a datum, if it is in the directory `place` of its dataset; return whether it is."""
        assert datum.location is not None
        file = f"{place}/{file_name(datum.location.segment, datum.location.offset)}"
        folder.discard(staged)
        try:
            if not dataset.link(file, staged, folder):
                source = dataset.at(file)
                problem = f"{folder.path} is on another filesystem than {source}, so {source} cannot be linked there"
                raise StorageError(problem, hint=_COPY, errno=errno.EXDEV)
        except FileNotFoundError:
            return False
        except ReadOnly as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EPERM:
                problem = f"{dataset.at(file)} cannot be linked to {folder.path}: {error.__cause__.strerror}"
                raise StorageError(problem, hint=_NOT_PERMITTED, errno=errno.EPERM) from error
            raise
        except StorageError as error:
            found = dataset.stat(place)
            if found is not None and stat.S_ISREG(found.st_mode):
                raise InvalidInput("it is in one file with other data, so it cannot be linked") from None
            error.hint = error.hint or _COPY
            raise
        found_file, size = folder.open_to_read(staged), len(datum.data)
        return found_file.size() == size and found_file.read(0, size) == datum.data


@dataclass(slots=True)
class ExportResult:
    """What an export did.

    Attributes:
        exported: files that were written, or linked.
        present: files that were there already, with the same bytes.
        refused: data without a file; `refusals` says why.
        bytes: of the files that were exported.
        refusals: position in the order of the query, counted from 0, and reason, of the first 100 that were refused.
        skipped: the data that cannot be read, with `damaged="skip"`; else None.
    """

    exported: int = 0
    present: int = 0
    refused: int = 0
    bytes: int = 0
    refusals: list[tuple[int, str]] = field(default_factory=list)
    skipped: Skipped | None = None


def export(
    dataset: Dataset | Merged,
    match: Match,
    to: str | os.PathLike[str],
    *,
    name: str = DEFAULT,
    sort: str | None = None,
    limit: int | None = None,
    link: bool = False,
    damaged: Damaged = "raise",
) -> ExportResult:
    """Write the data that match to files in a folder, one for each datum.

    A datum whose name leads out of the folder, or whose file exists with other bytes, is refused; the others are
    written.

    Args:
        match, sort, limit, damaged: as in `Dataset.query`.
        to: the folder; it is created if it does not exist.
        name: a template over reftime and metadata, such as `{reftime:%Y%m%d_%H%M}_{site}.jpg`; a slash makes folders.
        link: make hard links to the files of the dataset, which take no space: each datum must have a file of its own,
            as in a dataset of the format `blob`. If you edit such a file in place, or change its permissions, you
            change the dataset; replace or remove the file instead. A repack or a deletion in the dataset does not
            change the exported file.

    Raises:
        InvalidInput: the template is not valid or names metadata that no datum has, two data would have the same name,
            the path of the folder is empty or inside a dataset, or the data have no files to link: then
            nothing was written.
        AlreadyExists: the folder is a file.
        DiskFull, ReadOnly, DurabilityLost, StorageError: a file cannot be written, synced or linked.
        Also the errors of `Dataset.query`. Once the folder is open, `error.context["result"]` reports what was written
        before the error; before that, it does not exist.

    Durability: if the process is killed, each file is complete or absent, and a hidden file `.ondisk-…` may stay in
        one of the folders. Files survive a power cut once this returns. Before that, or after an error, a power cut may
        leave incomplete files: delete these, and export again.
    Cost: two queries: one to compare the names, one to write the files. The first reads the data only if the template
        names metadata that are not declared. A link also reads the file again. Memory: some MiB, or two data.
    """
    names = Names(name, {each: dataset.fields[each].kind for each in dataset.fields if each != "reftime"})
    skipped = skipped_of(damaged)
    choice: dict[str, Any] = {"sort": sort, "limit": limit, "damaged": "raise" if skipped is None else skipped}
    links = Links(dataset) if link else None
    # Which data are left out, and so which ones the limit returns, shows only when they are read.
    with dataset.query(match, with_data=names.needs_data or skipped is not None, **choice) as data:
        _check_distinct(_with_metadata(data, names), names)
    result = ExportResult(skipped=skipped)
    with _folder(to) as folder, links or contextlib.nullcontext(), ThreadPoolExecutor(1) as thread:
        files = _Files(folder, names, links, result, thread)
        try:
            with dataset.query(match, **choice) as data:
                files.add(data)
            files.sync()
        except OndiskError as error:
            error.hint = _HINTS.get(type(error), error.hint)
            error.context["result"] = result
            raise
    return result


class _Files:
    """Writes files, or makes links, in a folder and folders in it; a thread syncs while others are written."""

    def __init__(
        self, top: Directory, names: Names, links: Links | None, result: ExportResult, thread: Executor
    ) -> None:
        self._top = top
        self._names = names
        self._links = links
        self._result = result
        self._thread = thread
        self._syncing: Future[None] | None = None
        self._started = 0  # bytes of the files before the last sync that was started
        # Another thread, or a process with the same number in another container, may export to the same folder.
        self._staged = f".ondisk-{os.getpid()}-{token_hex(4)}"
        self._together = top.can_sync_together
        self._device = top.device
        self._folders = Kept(self._opened, _OPEN)
        self._count = 0

    def add(self, data: Iterable[Datum]) -> None:
        """Write the files of data that are not there, and count them; raise StorageError if no more can be written."""
        try:
            for datum in data:
                try:
                    self._add(self._names(datum), datum)
                except InvalidInput as error:
                    self._result.refused += 1
                    if len(self._result.refusals) < _REFUSALS:
                        self._result.refusals.append((self._count, f"{_named(datum)}: {error.message}"))
                self._count += 1
                self._sync_behind()
        finally:
            self._wait()  # also after another error: the kernel reports only once that it could not write

    def _add(self, name: str, datum: Datum) -> None:
        """Write or link a file, unless it is there; raise InvalidInput if it cannot have this name or content."""
        content = datum.data
        if type(content) is not bytes:
            raise InvalidInput(f"its data are of type {type(content).__name__}, not bytes")
        above, _, last = name.rpartition("/")
        if CONFIG in name.split("/"):
            raise InvalidInput(f"a file or folder {CONFIG} would make its folder a dataset")
        try:
            folder, is_synced_later = self._folders[above]
            if folder.stat(last) is None:
                with contextlib.suppress(FileExistsError):  # somebody else creates it now
                    self._create(folder, last, datum, is_synced_later=is_synced_later)
                    self._result.exported += 1
                    self._result.bytes += len(content)
                    return
            self._compare(folder, last, content)
        except FileNotFoundError:
            raise InvalidInput(f"{self._top.at(name)} was removed meanwhile") from None
        except StorageError as error:
            is_of_disk = isinstance(error, DurabilityLost | DiskFull)
            if is_of_disk or ("errno" in error.context and error.context["errno"] not in _NO_NAME):
                raise
            raise InvalidInput(error.message) from None

    def _create(self, folder: Directory, name: str, datum: Datum, *, is_synced_later: bool) -> None:
        """Write or link a file; raise FileExistsError if the name is taken."""
        if self._links is not None:
            self._links.add(datum, folder, name, self._staged)
            if not is_synced_later:
                folder.sync()
        elif is_synced_later:
            folder.add(name, datum.data, self._staged)
        else:
            folder.write_new(name, datum.data, staged=self._staged)

    def _compare(self, folder: Directory, name: str, content: bytes) -> None:
        there = folder.open_to_read(name)
        if there.size() != len(content) or there.read(0, len(content)) != content:
            raise InvalidInput(f"{there.path} exists with other bytes, and is not overwritten")
        self._result.present += 1

    def _opened(self, name: str) -> tuple[Directory, bool]:
        """Return a folder in the top one, made if missing, and whether `sync` syncs it: it is of the same device."""
        if not name:
            return self._top, self._together
        folder = self._top.inside(name, make=True, durable=not self._together)
        return folder, self._together and folder.device == self._device

    def _sync_behind(self) -> None:
        """Start to sync the files if they are many bytes; raise DurabilityLost if the sync before has failed."""
        is_much = self._together and self._links is None and self._result.bytes - self._started >= _SYNCED
        if is_much and (self._syncing is None or self._syncing.done()):
            self._wait()
            self._syncing = self._thread.submit(self.sync)
            self._started = self._result.bytes

    def _wait(self) -> None:
        """Wait for the sync that was started; raise DurabilityLost if it failed."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def sync(self) -> None:
        """Make all files durable, if they are not; raise DurabilityLost if the sync failed."""
        if self._together and not self._top.sync_together(()):
            raise DurabilityLost(f"{self._top.path} cannot be synced")


@contextlib.contextmanager
def _folder(path: str | os.PathLike[str]) -> Iterator[Directory]:
    """Open, or create, a folder to export to, for the block; raise AlreadyExists or InvalidInput if it is none."""
    if not os.fspath(path):
        raise InvalidInput("the path of the folder is empty", hint='Write "." for the current folder.')
    check_outside(path)
    try:
        folder = Directory.create(path)
    except FileExistsError as error:
        raise AlreadyExists(f"{error.filename} is not a folder", hint="Choose another path.") from None
    except DurabilityLost as error:
        error.hint = _HINTS[DurabilityLost]
        raise
    with folder:
        yield folder


def _with_metadata(data: Iterable[Datum], names: Names) -> Iterator[Datum]:
    """Yield data; then raise InvalidInput if none has some metadata that the template names."""
    missing, known, is_any = names.used - {"reftime"}, {"reftime"}, False
    for datum in data:
        is_any = True
        if missing:
            missing -= datum.metadata.keys()
            known.update(islice(datum.metadata, _KNOWN - len(known)))
        yield datum
    if missing and is_any:
        hint = f"The data have {', '.join(sorted(known))}."
        raise InvalidInput(f"no datum has {', '.join(map(shown, sorted(missing)))}", hint=hint)


def _check_distinct(data: Iterable[Datum], names: Names) -> None:
    """Raise InvalidInput if two data would have the same name; the names are in a temporary file."""
    with temporary_errors("the names"), contextlib.closing(sqlite3.connect("")) as known:
        known.execute("CREATE TABLE name (name BLOB PRIMARY KEY, reftime) WITHOUT ROWID")
        for datum in data:
            try:
                name = names(datum)
            except InvalidInput:  # it is refused later
                continue
            row = os.fsencode(name), time_text(datum.reftime)
            if known.execute("INSERT INTO name VALUES (?, ?) ON CONFLICT DO NOTHING", row).rowcount == 0:
                [[other]] = known.execute("SELECT reftime FROM name WHERE name = ?", row[:1])
                hint = "Name more metadata: `--name '{reftime:%Y%m%d_%H%M%S}_{site}.jpg'`, with fields that differ."
                raise InvalidInput(f"two data would be {shown(name)}: those of {other} and {row[1]}", hint=hint)


def _named(datum: Datum) -> str:
    at = datum.location
    place = f" ({at.segment}, {at.offset})" if at is not None else ""
    source = f" in {datum.dataset}" if datum.dataset is not None else ""
    return f"the datum of {time_text(datum.reftime)}{source}{place}"
