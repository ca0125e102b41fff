"""The dataset: the one door to segments and index."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Opened
from ondisk.dataset.append import BATCH_SIZE, AppendResult, batches, iterated, refuse_old, store
from ondisk.dataset.archives import Archives, DatasetAccess, merged
from ondisk.dataset.delete import delete
from ondisk.dataset.input_file import parsed
from ondisk.dataset.layout import CONFIG, check_free, filter_of, open_directory, read_config
from ondisk.dataset.query import Match, Question, data, payloads, span, summaries
from ondisk.dataset.read import Summary
from ondisk.datum import Datum, Location
from ondisk.errors import (
    AlreadyExists,
    InvalidInput,
    LockError,
    OndiskError,
    ReadOnly,
)
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import Batch, Format, find
from ondisk.index import INDEX, Index, Key, Transaction
from ondisk.matcher import Everything, Expression, Fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ondisk.dataset.commit_staged import Duplicates, OnDuplicate
    from ondisk.index.import_log import Mark
    from ondisk.maintenance.states import Done, Report
    from ondisk.staging.stage import Staged

Progress: TypeAlias = Callable[[str], None]
# What an append of small batches may leave in the index's log between two checkpoints.
_LAZY_COMMITS, _LAZY_DATA = 10, 10_000


def _unseen(name: str) -> None:
    """Take no notice of the segment that is worked on."""


class Dataset:
    """Data by time, found by metadata.

        dataset.toml               the configuration
        index.sqlite               every datum → segment, offset, size, metadata
        2026/11-20.vm2             a concat segment: data one after the other
        2026/.11-20.vm2.17         a generation of it, see `ondisk.segments.generations`
        2026/11-20.blob/           a dir segment: a file for each datum, see `ondisk.segments.dir`
        needs-check-do-not-pack    present while the index cannot be trusted
        .archive/last/, NAME/      archives, see `ondisk.dataset.archives`
        .staged/JOB/               what others have staged, see `ondisk.staging.stage`
        .lock                      the writers' lock
        .maintain.lock             that of maintain

    One process writes at a time, many read; readers never wait. A dataset may be shared by threads, not by a fork.

    Attributes:
        path: the directory.
        config: what `dataset.toml` says.
        read_only: whether it was opened for reading.
    """

    def __init__(self, access: DatasetAccess) -> None:
        self.path = access.path
        self.config = access.config
        self.read_only = access.read_only
        self._access = access
        self._archives = access.archives

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: DatasetConfig | Mapping[str, Any]) -> Dataset:
        """Make an empty dataset, and open it for writing.

        Args:
            path: a directory that is empty or does not exist.
            config: a `DatasetConfig`, or a mapping with the keys of `dataset.toml`.

        Raises:
            ConfigError: the configuration cannot be.
            DatasetExists: the path holds a dataset.
            AlreadyExists: the directory holds something else.

        Durability: index, then `dataset.toml`, each whole or not at all; what a crash leaves can be created again.
        Locks: the writers' lock; of several that create one path, one succeeds.
        """
        if not isinstance(config, DatasetConfig):
            config = DatasetConfig.from_mapping(config)
        find(config.format)(config)
        filter_of(config)
        _check_path(path)
        try:
            directory = Directory.create(path)
        except FileExistsError:
            raise AlreadyExists(f"{path} is no directory", hint="Choose another path.") from None
        try:
            check_free(directory)  # before the lock, which would leave its file in what is somebody else's
            with WritersLock(directory, config.lock_timeout).hold("create"):
                check_free(directory)
                Index.create(directory, config)
                with contextlib.closing(Index.open(directory, config)) as index, Transaction(index) as transaction:
                    transaction.commit()  # makes -wal and -shm, which readers without the right to write need
                directory.write_new(CONFIG, config.to_toml().encode())
            return cls(DatasetAccess(directory, config, read_only=False))
        except BaseException:
            directory.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], read_only: bool = False) -> Dataset:
        """Open a dataset, for writing unless `read_only`.

        Where the index is lost, opening for writing makes an empty one and the sentinel; reading makes nothing.

        Raises:
            DatasetNotFound: there is none.
            ConfigError: `dataset.toml` cannot be understood, or says another step than the data have.
            NeedsMigration, VersionTooNew: another ondisk or another configuration made the index.
            IndexCorrupt: `index.sqlite` is damaged, or not ours.
            ReadOnly: this user may not write there.
        """
        if type(read_only) is not bool:
            raise InvalidInput(f"read_only must be True or False, not {read_only!r}")
        _check_path(path)
        directory = open_directory(path)
        with contextlib.ExitStack() as undo:
            undo.callback(directory.close)
            config = read_config(directory)
            find(config.format)(config)
            access = DatasetAccess(directory, config, read_only=read_only)
            dataset = cls(access)
            undo.callback(dataset.close)
            if read_only:
                access.current()
            else:
                access.open_to_write()
                dataset._end_moves()
            undo.pop_all()
        return dataset

    def _end_moves(self) -> None:
        """End what a crash interrupted in the archive, or between the dataset and its archive."""
        last = self._archives.last()
        if last is not None:
            from ondisk.maintenance.archive import settle

            with contextlib.suppress(LockError, ReadOnly):  # another writer will, or nobody can
                last.open_to_write()
                self._archives.catch_up()
                settle(self._access)

    def close(self) -> None:
        """Close files and connections; a query that runs ends with an error."""
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset.open, (str(self.path), self.read_only)

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, read_only={self.read_only})"

    @property
    def fields(self) -> Fields:
        """The declared fields, to write conditions with: `(f.station == 5) & (f.reftime >= t)`."""
        return Fields(self._access.current().index.config.fields)

    @property
    def needs_check(self) -> bool:
        """Whether the index may not know all data: it was lost, or the sentinel stands."""
        return self._access.needs_check() or any(part.needs_check() for part in self._archives.maintained())

    def append(self, data: Iterable[Datum], outcomes: bool = False, *, batch_size: int = BATCH_SIZE) -> AppendResult:
        """Store data in the default format.

        What cannot be stored, or is a duplicate, is left out and counted; the rest goes on. Data are cut into
        batches, each of which is stored whole or not at all.

        Args:
            data: consumed batch by batch; memory does not grow with their number.
            outcomes: tell what became of each datum.
            batch_size: data in a batch; a batch also ends at 64 MiB.

        Raises:
            InvalidInput: something among the data is no `Datum`.
            LockError: other writers took too long.
            StorageError: DiskFull, DurabilityLost or another; `error.context["result"]` tells what the batches
                before did.

        Durability: when it returns, everything it counts as imported or replaced survives power loss.
        Locks: the writers' lock, for each batch anew; not while `data` is consumed.
        """
        format = self._access.format(self.config.format)
        given = iterated(data, "append takes an iterable of Datum objects")
        return self._append(batches(given, format, _checked(batch_size)), format, outcomes=outcomes)

    def append_file(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        format: str | None = None,
        outcomes: bool = False,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> AppendResult:
        """Store the data of a file, as they came, byte for byte.

        Args:
            source: a path, or a stream of bytes.
            format: the file's format; None to recognise it by extension, then content.
            outcomes: tell what became of each datum.
            batch_size: data in a batch; a batch also ends at 64 MiB.

        Raises:
            NotFound: there is no such file.
            LimitExceeded: something in it is longer than `max_datum_size`.
            ConfigError: there is no such format.
            Otherwise as `append`, which also tells durability and locks.
        """
        with parsed(self._access, source, format, _checked(batch_size)) as (chosen, read):
            return self._append(read, chosen, outcomes=outcomes)

    def append_files(
        self, paths: Iterable[str | os.PathLike[str]], spark: SparkSession, format: str | None = None
    ) -> Iterator[tuple[str, AppendResult]]:
        """Store the data of many files, which Spark's executors read; gives each path, and what its append did.

        The files are stored in their order, as `append_file` stores them, but each whole or not at all.

        Args:
            paths: the same on every node.
            spark: a session.
            format: the files' format; None to recognise that of each by extension, then content.

        Raises:
            InvalidInput: `paths` is one path.
            StateError: an executor cannot get at the dataset.
            Otherwise as `append_file`, which also tells durability; the files before are stored.

        Locks: the writers' lock, for each file anew; not while files are read.
        """
        from ondisk.spark.append import append_files

        if isinstance(paths, str | bytes):  # which would be files with names of one character
            raise InvalidInput(f"paths is a list of files, not {paths!r}", hint=f"Write [{paths!r}].")
        return append_files(self, [os.fspath(path) for path in paths], spark, format)

    def append_staged(
        self,
        job: str,
        staged: Sequence[Staged],
        *,
        on_duplicate: OnDuplicate = "skip",
        overwrite: Match = None,
        duplicates: Duplicates | None = None,
    ) -> AppendResult:
        """Store what other processes have staged, all of it or nothing; see `ondisk.dataset.commit_staged`."""
        from ondisk.dataset.commit_staged import commit

        return commit(
            self._access,
            job,
            staged,
            on_duplicate=on_duplicate,
            overwrite=overwrite,
            duplicates=duplicates,
        )

    def stored(self, marks: Iterable[Mark]) -> set[Mark]:
        """Find the marks of what `append_staged` has stored."""
        from ondisk.index.import_log import known

        with self._access.current().index.snapshot() as snapshot:
            return known(snapshot, marks)

    def parts_of(self, source: str) -> set[str | int]:
        """Give the parts of a source that `append_staged` has stored; of parts that are numbers the last."""
        from ondisk.index.import_log import parts

        with self._access.current().index.snapshot() as snapshot:
            return parts(snapshot, source)

    def query(
        self,
        match: Match = None,
        *,
        sort: str | None = None,
        limit: int | None = None,
        with_data: bool = True,
        **equal: Any,
    ) -> Iterator[Datum]:
        """Give the data that match, in order of reftime, then of appending.

        Args:
            match: a match expression, or a condition over `fields`; None matches all.
            sort: `[minute|hour|day|month|year:]field,-field…`
            limit: at most so many.
            with_data: False leaves segments alone: `data` is None, and `metadata` has the declared fields only.
            equal: field=value, in addition to `match`.

        Returns:
            An iterator over one snapshot, which begins with the first datum asked for: what others append, delete or
            repack meanwhile does not show. Exhaust or close it: while it is open, space is not given back.

        Raises:
            MatchError: `match` or `sort` cannot be understood, or names an unknown field.
            SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: while iterating; data are not on disk as the
                index says. What stands before them was given.
        """
        opened = self._access.current()
        question = Question(match, sort, limit, equal)
        if equal and match is None and sort is None and limit is None and with_data:
            key = opened.index.whole_key(equal)
            if key is not None:
                return _found(opened, self._archives, key, question)
        question.check(opened.index)
        return data(opened, self._archives, question, with_data=with_data)

    def payloads(
        self, match: Match = None, *, sort: str | None = None, limit: int | None = None, **equal: Any
    ) -> Iterator[bytes]:
        """Give the data's bytes as they stand in their segments, padding included, in the order of `query`.

        Joined they can be appended again, as one file; data of several formats come mixed.

        Args:
            match, sort, limit, equal: as in `query`.

        Returns:
            An iterator over one snapshot, as that of `query`; one item a datum, and before the first of `seg` the
            header that a file of them needs.

        Raises:
            MatchError, SegmentMissing, SegmentCorrupt, IndexCorrupt: as `query`; but what a datum's bytes hold is not
                checked.
        """
        opened = self._access.current()
        question = Question(match, sort, limit, equal)
        question.check(opened.index)
        return payloads(opened, self._archives, question)

    def read(self, location: Location) -> Datum:
        """Read the datum at a location that a query gave.

        Raises:
            DatumNotFound: none stands there any more.
            SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: it is not on disk as the index says.
        """
        opened = self._access.current()
        found = self._archives.of(location.segment)
        if found is not None:
            opened, location = found[0].current(), replace(location, segment=found[1])
        with opened.index.snapshot() as snapshot:
            return opened.reader.read(snapshot, location)

    def summary(self, match: Match = None) -> Summary:
        """Count what matches: data, bytes, span of reftimes, values of the declared fields. Exact.

        Cost: from the index alone; memory grows with the number of distinct values.
        """
        opened = self._access.current()
        question = Question(match)
        question.check(opened.index)
        found = summaries(opened, self._archives, question)
        if match is None:
            found += self._archives.summaries()
        else:
            self._archives.warn_of_offline()
        return found[0] if len(found) == 1 else merged(found)

    def index_frame(
        self, spark: SparkSession, match: Match = None, columns: Sequence[str] | None = None, *, data: bool = False
    ) -> DataFrame:
        """Give the index, or what of it matches, as a DataFrame of Spark; see `ondisk.spark.frame` and docs/spark.md.

        Args:
            spark: a session, as `ondisk.spark.session()` gives one.
            match: a match expression, or a condition over `fields`; None matches all.
            columns: of reftime, the declared fields, segment, offset, size and data; None for all but the data.
            data: what the data hold, too.
        """
        from ondisk.spark.frame import index_frame

        return index_frame(self._access, spark, match, columns, data=data)

    def delete(self, what: str | Expression | Iterable[Location]) -> int:
        """Delete data: what matches, or what stands at locations; `""` matches all.

        Returns:
            How many were deleted; locations at which nothing stands are not counted.

        Durability: one commit; all of it or nothing; of what is archived, one for each archive. The bytes stay until a
            repack.
        Locks: the writers' lock.
        """
        return delete(self._access, what)

    def check(
        self,
        accurate: bool = False,
        *,
        max_duration: float | None = None,
        progress: Progress = _unseen,
        spark: SparkSession | None = None,
    ) -> Report:
        """Say in which states the segments are, and why; see `ondisk.maintenance.check`.

        Args:
            spark: a session whose executors read the data of an accurate check.
        """
        from ondisk.maintenance.check import ReadAll, check, read_here

        if spark is not None and (not accurate or max_duration is not None):
            hint = "Ask for an accurate check without max_duration."
            raise InvalidInput("Spark reads the data of all segments, and nothing else", hint=hint)
        read_all: ReadAll = read_here
        if spark is not None:
            from ondisk.spark.maintenance import reads

            read_all = reads(spark)
        return check(
            self._access,
            accurate=accurate,
            max_duration=max_duration,
            progress=progress,
            read_all=read_all,
        )

    def fix(self, *, progress: Progress = _unseen, spark: SparkSession | None = None) -> Report:
        """Make the index agree with the disk; see `ondisk.maintenance.fix`.

        Args:
            spark: a session whose executors scan the segments; the index is told here.
        """
        from ondisk.maintenance.fix import ScanAll, fix, scan_later

        scan_all: ScanAll = scan_later
        if spark is not None:
            from ondisk.spark.maintenance import scans

            scan_all = scans(spark)
        return fix(self._access, progress=progress, scan_all=scan_all)

    def repack(self, *, progress: Progress = _unseen, spark: SparkSession | None = None) -> Report:
        """Rewrite segments without holes, remove what is deleted or too old; see `ondisk.maintenance.repack`.

        Args:
            spark: a session whose executors write the segments; they are committed here.
        """
        from ondisk.maintenance.repack import WriteAll, repack, write_later

        write_all: WriteAll = write_later
        if spark is not None:
            from ondisk.spark.maintenance import writes

            write_all = writes(spark)
        return repack(self._access, progress=progress, write_all=write_all)

    def archive(self, *segments: str) -> list[Done]:
        """Move segments to the archive, however old they are; see `ondisk.maintenance.archive`."""
        from ondisk.maintenance.archive import archive

        return archive(self._access, segments)

    def unarchive(self, *segments: str) -> list[Done]:
        """Move segments back from the archive; see `ondisk.maintenance.archive`."""
        from ondisk.maintenance.archive import unarchive

        return unarchive(self._access, segments)

    def info(self) -> dict[str, Any]:
        """Tell what the dataset is: path, uuid, format, step, unique, index, fields, segments, count, size …"""
        opened = self._access.current()
        with opened.index.snapshot() as snapshot:
            known = snapshot.dataset()
            totals = snapshot.totals(Everything())
            begin, end = span(totals)
            segments = snapshot.segments()
        config = opened.index.config
        index = self._access.directory.stat(INDEX)
        return {
            "path": str(self.path),
            "uuid": known["uuid"],
            "format": config.format,
            "step": config.step.value,
            "unique": list(config.unique),
            "index": list(config.index),
            "replace": self.config.replace,
            "fields": {name: kind.value for name, kind in config.fields.items()},
            "count": totals.count,
            "size": totals.size,
            "begin": begin,
            "end": end,
            "segments": segments,
            "index_size": 0 if index is None else index.st_size,
            "needs_check": self.needs_check,
            "archives": [archive.path.name for archive in self._archives.online()],
            "offline": self._archives.offline(),
        }

    def _append(self, stream: Iterable[Batch], format: Format, *, outcomes: bool) -> AppendResult:
        access = self._access
        result = AppendResult(outcomes=[] if outcomes else None)
        waiting = 0  # commits, and data, that are durable in the index's log and not yet in its main file
        commits = _LAZY_COMMITS  # the first batch does not wait: most appends have no second one
        try:
            for batch in stream:
                refuse_old(batch, self.config)
                # Of many small batches not each needs a checkpoint of its own, which takes as long as the batch.
                lazy = commits < _LAZY_COMMITS and waiting + len(batch) <= _LAZY_DATA
                commits, waiting = (commits + 1, waiting + len(batch)) if lazy else (0, 0)
                with access.transaction("append", lazy=lazy) as transaction:
                    trusted = not access.has_sentinel()
                    archived = self._archives.of_append(self.config)
                    stored = store(
                        batch, format, self.config, access.directory, transaction, trusted=trusted, archived=archived
                    )
                    result.add(batch, stored)
            if waiting:
                access.checkpoint()
        except OndiskError as error:
            error.context["result"] = result
            raise
        except BaseException as error:  # an interrupt, or what the iterable of data raised
            done = f"{result.imported} data were stored, {result.replaced} replaced"
            error.add_note(f"ondisk: before this, {done} in {self.path}; they are durable")
            raise
        return result


def _found(opened: Opened, archives: Archives, key: Key, question: Question) -> Iterator[Datum]:
    """Give the at most one datum that a whole unique key names."""
    found = opened.reader.look_up(opened.index, key)
    if found is None or (not found and any(archives.online())):
        yield from data(opened, archives, question, with_data=True)
    else:
        yield from found


def _check_path(path: str | os.PathLike[str]) -> None:
    if not os.fspath(path):
        raise InvalidInput("the path of the dataset is empty", hint='Write "." for the directory you are in.')


def _checked(batch_size: int) -> int:
    if type(batch_size) is not int or batch_size < 1:
        raise InvalidInput(f"batch_size must be a whole number of 1 or more, not {batch_size!r}")
    return batch_size
