"""The class `Dataset`: everything that a program does with a dataset goes through it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias, TypeVar, Unpack

from ondisk.config import ConfigDict, DatasetConfig
from ondisk.dataset.access import Access, Opened
from ondisk.dataset.auxiliary_files import (
    CONFIG,
    check_free,
    check_not_in_place,
    check_takes_data,
    configuration_text,
    create_files,
    filter_of,
    open_directory,
    read_config,
)
from ondisk.dataset.query import Match, Query, data, data_of_key, payloads, summary
from ondisk.dataset.queryable import Queryable
from ondisk.datum import Datum, Location
from ondisk.errors import AlreadyExists, InvalidInput, OndiskError, StateError, counted, shown
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import Batch, Format, find
from ondisk.formats.base import BATCH_SIZE
from ondisk.matcher import Expression

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader
    from pyspark.sql import DataFrame, SparkSession

    from ondisk.backup import Backup
    from ondisk.dataset.append import AppendResult, OnCommit, Stored
    from ondisk.dataset.commit_staged import Duplicates, OnDuplicate, Record
    from ondisk.dataset.delete import State
    from ondisk.dataset.segment_bytes import SegmentBytes
    from ondisk.dataset.summaries import Summary
    from ondisk.index.groups import Group
    from ondisk.index.import_log import Mark
    from ondisk.maintenance.quarantine import Quarantine
    from ondisk.maintenance.states import Done, Report
    from ondisk.matcher.fields import Fields
    from ondisk.replication.feed import Answer
    from ondisk.replication.token import Token
    from ondisk.staging.stage import FinishedStage
    from ondisk.table_options import TableArguments
    from ondisk.tables.arrow_output import Columns


class ArrowStream(Protocol):
    """A table of any library that offers it as a stream of Arrow."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


_T = TypeVar("_T")
Progress: TypeAlias = Callable[[str], None]


def _unseen(name: str) -> None: ...


def _executors() -> ModuleType:
    from ondisk.spark import executors

    return executors


class Dataset(Queryable):
    """Data by time, found by metadata.

        dataset.toml               the configuration
        index.sqlite               every datum → segment, offset, size, metadata
        2026/11-20.vm2             a concat segment: data one after the other
        2026/.11-20.vm2.17         a generation of it, see `ondisk.segments.generations`
        2026/11-20.blob/           a dir segment: a file for each datum, see `ondisk.segments.dir`
        2026/.quarantine/          files that stood in the way, see `ondisk.segments.quarantine`
        needs-check-do-not-pack    the sentinel: exists while the index may not know all data
        .archive/last/2026/…       archived segments: repack moves them there; `.archive/NAME/` are other places
        .staged/JOB/               files of several processes before one commit, see `ondisk.staging.stage`
        .lock                      the writers' lock
        .maintain.lock             the lock of maintain

    One process writes at a time; many read, without waiting for it. Threads may share a dataset; a forked child must
    open its own.

    Attributes:
        path: the directory.
        config: what `dataset.toml` says.
        read_only: whether it was opened for reading.
    """

    def __init__(self, access: Access) -> None:
        self.path = access.path
        self.config = access.config
        self.read_only = access.read_only
        self._access = access

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: DatasetConfig | ConfigDict, *, text: str | None = None
    ) -> Dataset:
        """Create an empty dataset, and open it for writing.

        Args:
            path: a directory that is empty or does not exist.
            config: a `DatasetConfig`, or a mapping with the keys of `dataset.toml`.
            text: the text that the configuration was read from, which becomes `dataset.toml` with its comments.

        Raises:
            ConfigError: the configuration is not valid, or is not that of the text.
            DatasetExists, AlreadyExists: the path contains a dataset, or something else.
            StateError, ReadOnly: it is in the archive of a dataset; or this user may not create it.

        Durability: see `create_files`; after a crash, create the dataset again.
        Locks: the writers' lock. If several processes create the same path, one succeeds.
        """
        if not isinstance(config, DatasetConfig):
            config = DatasetConfig.from_mapping(config)
        find(config.format)(config)
        filter_of(config)
        configuration_text(config, text)  # before anything is created
        _check_path(path)
        check_not_in_place(path)
        try:
            directory = Directory.create(path)
        except FileExistsError as error:
            raise AlreadyExists(f"{error.filename} is not a directory", hint="Choose another path.") from None
        try:
            check_free(directory)  # before the lock, which would create its file in somebody else's directory
            with WritersLock(directory, config.lock_timeout).hold("create"):
                check_free(directory)
                create_files(directory, config, text)
            return cls(Access(directory, config, read_only=False))
        except BaseException:
            directory.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], read_only: bool = False) -> Dataset:
        """Open a dataset, for writing unless `read_only`.

        If the index is lost, opening for writing creates an empty index and the sentinel. Reading creates nothing.

        Raises:
            DatasetNotFound: the path contains no dataset.
            ConfigError: `dataset.toml` is not valid, or its step is not the step of the segments.
            NeedsMigration, VersionTooNew: another ondisk or another configuration made the index.
            IndexCorrupt, ReadOnly: `index.sqlite` is damaged or not one of ondisk; or this user may not write.
        """
        if type(read_only) is not bool:
            raise InvalidInput(f"read_only must be True or False, not {shown(read_only)}")
        _check_path(path)
        directory = open_directory(path)
        with contextlib.ExitStack() as undo:
            undo.callback(directory.close)
            config = read_config(directory)
            find(config.format, f"{directory.path / CONFIG}: ")(config)
            access = Access(directory, config, read_only=read_only)
            dataset = cls(access)
            undo.callback(dataset.close)
            if read_only:
                access.current()
            else:
                access.open_to_write()
            undo.pop_all()
        return dataset

    def close(self) -> None:
        """Close files and connections. A running query ends with an error."""
        self._access.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset.open, (str(self.path), self.read_only)

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, read_only={self.read_only})"

    @property
    def fields(self) -> Fields:
        """The declared fields, for conditions such as `(f.station == 5) & (f.reftime >= t)`."""
        from ondisk.matcher.fields import Fields

        return Fields(self._access.current().index.config.fields)

    @property
    def needs_check(self) -> bool:
        """Whether the index may not know all data: it was lost, or the sentinel exists."""
        return self._access.needs_check()

    def doubts(self, *, offline: bool = True) -> list[str]:
        """Return why answers may lack data: the index was lost, or an archive is offline; empty if they are complete.

        `offline`: whether to report archives that are offline: the index answers counts and summaries alone.
        """
        from ondisk.dataset.place_checks import doubts

        lost = [f"{self.path}: the index was lost and may not know all data"] if self.needs_check else []
        with self._access.current().index.snapshot() as snapshot:
            return [*lost, *doubts(snapshot, offline=offline)]

    def append(self, data: Iterable[Datum], outcomes: bool = False, *, batch_size: int = BATCH_SIZE) -> AppendResult:
        """Store data in the default format.

        A datum that cannot be stored, or is a duplicate, is skipped and counted; the others are stored. The data are
        divided into batches. Each batch is stored completely or not at all.

        Args:
            data: consumed batch by batch; memory does not grow with their number.
            outcomes: whether to report what happened to each datum.
            batch_size: data in a batch; a batch also ends at 64 MiB.

        Raises:
            InvalidInput, LockError: an item is not a `Datum`; or other writers held the lock for too long.
            StorageError: DiskFull, DurabilityLost or another. `error.context["result"]` reports what the batches before
                it did.

        Durability: when it returns, everything it counts as imported or replaced survives power loss.
        Locks: the writers' lock, once for each batch; not while `data` is consumed.
        """
        from ondisk.dataset.append import batches, checked_batch_size, iterated

        format = self._access.incoming(self.config.format)
        given = iterated(data, "append takes an iterable of Datum objects")
        return self._append(batches(given, format, checked_batch_size(batch_size)), format, outcomes=outcomes)

    def append_file(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        format: str | None = None,
        outcomes: bool = False,
        *,
        batch_size: int = BATCH_SIZE,
        **table: Unpack[TableArguments],
    ) -> AppendResult:
        """Store the data of a file: lines and frames byte for byte, rows of tables in the dataset's format.

        Tables are CSV, Parquet and Arrow: docs/csv.md and docs/tables.md say how rows become data. Text may be
        compressed with gzip or zstd.

        Args:
            source: a path, or a stream of bytes, which must be able to seek for Parquet and Arrow.
            format: the file's format, also `csv`, `parquet` or `arrow`; None to recognise it by its extension, then by
                its content.
            outcomes, batch_size: as `append`.
            table: how rows become data, with the names of the options of `ondisk append`, such as `time="when"` or
                `tz="UTC"`; see `TableArguments`. `null` and `header` are lists.

        Raises:
            NotFound, ConfigError: the file, or the format, does not exist.
            InvalidInput: an option is not valid, or not for this format; or the columns of a table do not fit.
            LimitExceeded: a datum is longer than `max_datum_size`, or a row of CSV has no end.
            Also the errors of `append`; durability and locks are those of `append`, too.
        """
        from ondisk.dataset.append import checked_batch_size
        from ondisk.dataset.input_file import notes_of_format, parsed
        from ondisk.table_options import TableOptions

        options = TableOptions(**table)
        with parsed(self._access, source, format, checked_batch_size(batch_size), options) as (chosen, read):
            notes = notes_of_format(self._access, chosen.name) if format is None else []
            result = self._append(read, chosen, outcomes=outcomes)
        result.notes += notes if result.imported else []
        return result

    def append_arrow(
        self,
        table: ArrowStream,
        outcomes: bool = False,
        *,
        time: str | None = None,
        time_format: str | None = None,
        tz: str | None = None,
        ambiguous: str | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> AppendResult:
        """Store the rows of a table, which any library with Arrow has, in the dataset's format; see docs/tables.md.

        Declared fields are found by their names; all other columns are the content.

        Args:
            table: an object with `__arrow_c_stream__`: a table or reader of pyarrow, a DataFrame of pandas or polars, a
                relation of DuckDB, another dataset. Read batch by batch.
            time: the column that is the reftime; None for `reftime`.
            time_format: how texts are written that are times, as `append_file` takes it.
            tz: the zone of times without one, such as Europe/Rome, UTC or +01:00.
            ambiguous: what becomes of local times that occur twice: `raise` (the default) or `infer`; see docs/csv.md.
            outcomes, batch_size: as `append`.

        Raises:
            InvalidInput: a column does not exist, or has a type that cannot be stored; or the table cannot be read.
            LimitExceeded: a text that rows share is longer than `max_datum_size`; or memory does not suffice.
            StateError: pyarrow is not installed.
            Also the errors of `append`; durability and locks are those of `append`, too.

        Cost: that of `append_file` with the same data as vm2, if the format is jsonl or vm2. Other formats need an
            object for each row.
        """
        from ondisk.dataset.append import checked_batch_size
        from ondisk.table_options import TableOptions
        from ondisk.tables import installed

        with installed():
            from ondisk.tables import arrow_input

        format = self._access.incoming(self.config.format)
        options = TableOptions(time, time_format, tz, ambiguous)
        rows = arrow_input.batches(
            arrow_input.opened(table), self.config, format, options, checked_batch_size(batch_size)
        )
        return self._append(rows, format, outcomes=outcomes)

    def append_queue(
        self, path: str | os.PathLike[str], from_start: bool = False, *, batch_size: int = BATCH_SIZE
    ) -> Iterator[tuple[str, AppendResult]]:
        """Store what is new in a queue directory of Beats, which may write to it; see `ondisk.queue.append_queue`.

        Yield the path of each segment that was read, and the result of its append. With `from_start`, the first time
        begins at the oldest event, not at the position in `state.dat`. A batch of `batch_size` data also ends with its
        segment.
        """
        from ondisk.dataset.append import checked_batch_size
        from ondisk.queue.append_queue import append_queue

        return append_queue(
            self._access, self._append, path, from_start=from_start, batch_size=checked_batch_size(batch_size)
        )

    def append_files(
        self, paths: Iterable[str | os.PathLike[str]], spark: SparkSession, format: str | None = None
    ) -> Iterator[tuple[str, AppendResult]]:
        """Store the data of many files, which executors read; yield each path and the result of its append.

        The files are stored in their order, as `append_file` stores them, but each completely or not at all. `paths`
        are the same on every node; a `format` of None recognises that of each file.

        Raises:
            InvalidInput, StateError: `paths` is one path; or an executor cannot reach the dataset.
            Also the errors of `append_file`. The files before the error are stored.

        Durability, Locks: as `append_file`, once for each file; not while files are read.
        """
        if isinstance(paths, str | bytes):  # which would be files with names of one character
            raise InvalidInput(f"paths must be a list of files, not {shown(paths)}", hint=f"Write [{shown(paths)}].")
        from ondisk.spark.executors import append_files

        return append_files(self, [os.fspath(path) for path in paths], spark, format)

    def append_staged(
        self,
        job: str,
        staged: Sequence[FinishedStage],
        *,
        on_duplicate: OnDuplicate = "skip",
        overwrite: Match = None,
        duplicates: Duplicates | None = None,
        record: Record | None = None,
    ) -> AppendResult:
        """Store what other processes have staged, completely or not at all; see `ondisk.dataset.commit_staged`."""
        from ondisk.dataset.commit_staged import commit

        return commit(
            self._access,
            job,
            staged,
            partial(self._renew, renewed=set()),
            on_duplicate=on_duplicate,
            overwrite=overwrite,
            duplicates=duplicates,
            record=record,
        )

    def state(self) -> State:
        """Return a value that every append and every delete changes; see `exchange`."""
        return self._access.current().index.state()

    def last_change(self) -> dict[str, Any]:
        """Return the last change that the index knows: `uuid`, `seq`, `committed_at` (microseconds), `lost` data."""
        with self._access.current().index.snapshot() as snapshot:
            return snapshot.dataset()

    def exchange(self, state: State, delete: Sequence[Expression], data: Sequence[Datum]) -> State | None:
        """Delete the data that match one of some conditions over `fields`, and store others, in one commit.

        Only if nothing has changed since `state` returned that state. Return the new state; None if another one was
        found.

        Raises:
            InvalidInput: a datum cannot be stored, or is a duplicate; nothing was changed.
            LockError, StorageError: as `append`, and so are durability and locks.
        """
        from ondisk.dataset.append import refuse_old
        from ondisk.dataset.delete import exchange

        format = self._access.incoming(self.config.format)
        batch = format.encode(data)
        refuse_old(batch, self.config)
        if batch.refused:
            raise InvalidInput(f"nothing was changed, because a datum cannot be stored: {batch.refused[0][1]}")
        return self._renewing(lambda: exchange(self._access, state, delete, batch, format))

    def stored(self, marks: Iterable[Mark]) -> set[Mark]:
        """Return the given marks that an `append_staged` has recorded."""
        from ondisk.index.import_log import known

        with self._access.current().index.snapshot() as snapshot:
            return known(snapshot, marks)

    def parts_of(self, source: str) -> set[str | int]:
        """Return the parts of a source that `append_staged` has stored; of numbered parts only the last."""
        from ondisk.index.import_log import parts

        with self._access.current().index.snapshot() as snapshot:
            return parts(snapshot, source)

    def count_of_parts(self, source: str) -> int:
        """Return how many parts of a source `append_staged` has stored."""
        from ondisk.index.import_log import count

        with self._access.current().index.snapshot() as snapshot:
            return count(snapshot, source)

    def _of_key(self, equal: Mapping[str, Any]) -> Generator[Datum, None, None] | None:
        opened = self._access.current()
        key = opened.index.whole_key(equal)
        return None if key is None else data_of_key(opened, key, equal)

    def _data(self, query: Query, *, with_data: bool) -> Generator[Datum, None, None]:
        return data(self._checked(query), query, with_data=with_data)

    def _checked(self, query: Query) -> Opened:
        """Return the index, which can answer a query."""
        opened = self._access.current()
        query.check(opened.index)
        return opened

    def _payloads(self, query: Query) -> Generator[bytes, None, None]:
        return payloads(self._checked(query), query)

    def _table(self, query: Query, columns: Columns) -> RecordBatchReader | None:
        from ondisk.tables.arrow_output import from_index

        return from_index(self._checked(query), query, columns)

    def _summary(self, query: Query, fields: Sequence[str] | None, values: int | None) -> Summary:
        from ondisk.dataset.summaries import counted_fields

        names = counted_fields(fields, self.fields) if fields or fields is None else ()
        return summary(self._checked(query), query, names, values)

    def _groups(self, query: Query, by: str, min_max: str | None, tz: str | None) -> Generator[Group, None, None]:
        from ondisk.dataset.groups import by_group, check

        return by_group(self._checked(query), query, check(by, min_max, tz, self.fields))

    def read(self, location: Location) -> Datum:
        """Return the datum at a location that a query returned.

        Raises DatumNotFound if no datum is there any more; SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt.
        """
        opened = self._access.current()
        with opened.index.snapshot() as snapshot:
            return opened.reader.read(snapshot, location)

    def payload(self, location: Location) -> bytes:
        """Return the bytes of the datum at a location that a query returned, without padding; raise as `read`."""
        opened = self._access.current()
        with opened.index.snapshot() as snapshot:
            return opened.reader.payload(snapshot, location)

    def segment_bytes(self, name: str) -> SegmentBytes:
        """Return the committed bytes of a segment's file, as they are on disk: compressed or encrypted, if it is.

        Raises SegmentMissing without the segment, SegmentCorrupt if another program has changed its file, or
        InvalidInput of a dir segment, which has a file for each datum.
        """
        from ondisk.dataset.segment_bytes import segment_bytes

        return segment_bytes(self._access, name)

    def index_frame(
        self,
        spark: SparkSession,
        match: Match = None,
        columns: Sequence[str] | None = None,
        *,
        data: bool = False,
        archives: str = "all",
    ) -> DataFrame:
        """Return the rows of the index that match as a DataFrame of Spark; see docs/spark.md.

        Args:
            spark: a session, such as `ondisk.spark.session()` returns.
            match: a match expression, or a condition over `fields`; None matches all.
            columns: of reftime, the declared fields, segment, offset, size and data; None for all but the data.
            data: whether to read the data, too.
            archives: "all" raises if a folder of the archive with matching data is offline; "available" warns of it,
                and reads the rest. One that is away is always an error, if data are read.
        """
        from ondisk.spark.session import installed

        with installed():
            from ondisk.spark.dataframe import index_frame

        return index_frame(self._access, spark, match, columns, data=data, needed=archives)

    def changes(self, token: Token | None = None, max_bytes: int = 1024 * 1024) -> Answer:
        """Return what was appended and deleted after a token, in the order of changes; see `ondisk.replication.feed`.

        Repack, archive and unarchive are no changes. Call it again with the token of the answer, which covers its
        changes; no changes are left if it has none.

        Args:
            token: of an earlier answer; None for all data that exist.
            max_bytes: where the answer ends: bytes of data, and 64 for each change. It has at least one change.

        Raises:
            TokenForeign: the token is of another dataset, or of a later state of this one; or the index was rebuilt.
            TokenExpired: not all deletions since the token are known any more, see `deletions_kept`. NeedsCheck,
            SegmentMissing: the index may not know all data; or data that were appended after the token are away.

        Cost: without changes, some look-ups, whatever the size of the dataset.
        """
        from ondisk.replication.feed import read

        return read(self._access, token, max_bytes)

    def delete(self, what: str | Expression | Iterable[Location]) -> int:
        """Delete the data that match, or the data at locations; `""` matches all. Return how many there were.

        Durability: one commit: all of it is deleted, or nothing. The bytes stay until a repack. On a disk that is too
            full for one commit, the data are deleted in several; DiskFull says how many if one of these fails.
        Locks: the writers' lock.
        """
        from ondisk.dataset.delete import delete

        return delete(self._access, what)

    def check(
        self,
        accurate: bool = False,
        *,
        max_duration: float | None = None,
        rewrite: bool = False,
        progress: Progress = _unseen,
        spark: SparkSession | None = None,
    ) -> Report:
        """Report the states of the segments, and the reasons; see `ondisk.maintenance.check`.

        With `rewrite`, what `repack(rewrite=True)` would rewrite is DIRTY. Executors can read the data of an accurate
        check.
        """
        from ondisk.maintenance.check import check, read_here

        if spark is not None and (not accurate or max_duration is not None):
            hint = "Pass accurate=True, and no max_duration."
            raise InvalidInput("a check by Spark is accurate, and has no max_duration", hint=hint)
        return check(
            self._access,
            accurate=accurate,
            max_duration=max_duration,
            progress=progress,
            read_all=read_here if spark is None else _executors().reads(spark),
            rewrite=rewrite,
        )

    def fix(
        self,
        *,
        salvage: Sequence[str] = (),
        forget: bool = False,
        acknowledge: bool = False,
        forget_place: str | None = None,
        dry_run: bool = False,
        progress: Progress = _unseen,
        spark: SparkSession | None = None,
    ) -> Report:
        """Make the index agree with the disk; see `ondisk.maintenance.fix`.

        Args:
            salvage: names of damaged segments: keep what is whole of each, and move its file to quarantine.
            forget: remove missing segments from the index, even if many are missing, as when a disk is not mounted.
            acknowledge: first, count no data as lost any more.
            forget_place: first, forget the folder of the archive with this name, which is away, and count its data as
                lost.
            dry_run: change nothing, and report what would be done.
            spark: a session whose executors scan the segments; this process writes the index.
        """
        from ondisk.maintenance.fix import fix, planned, scan_later

        if dry_run:
            return planned(self._access, salvage=salvage, forget=forget, forget_place=forget_place)
        return fix(
            self._access,
            progress=progress,
            scan_all=scan_later if spark is None else _executors().scans(spark),
            salvage=salvage,
            forget=forget,
            acknowledge=acknowledge,
            forget_place=forget_place,
        )

    def repack(
        self,
        *,
        by_age: bool = False,
        rewrite: bool = False,
        second_copies: bool = False,
        dry_run: bool = False,
        progress: Progress = _unseen,
        spark: SparkSession | None = None,
    ) -> Report:
        """Remove holes from segments, and delete what is deleted or too old; see `ondisk.maintenance.repack`.

        Args:
            by_age: delete all segments that are too old by the clock, however many.
            rewrite: also rewrite segments of seg that are not stored as `dataset.toml` says.
            second_copies: also remove second copies of segments that people have made, after comparing them.
            dry_run: change nothing, and report what would be done.
            spark: a session whose executors write the segments; this process commits them.
        """
        from ondisk.maintenance.repack import planned, repack, write_later

        if dry_run:
            return planned(self._access, by_age=by_age, rewrite=rewrite, second_copies=second_copies)
        return repack(
            self._access,
            progress=progress,
            write_all=write_later if spark is None else _executors().writes(spark),
            by_age=by_age,
            rewrite=rewrite,
            second_copies=second_copies,
        )

    def archive(self, *segments: str) -> list[Done]:
        """Move segments to the archive, however old they are; see `ondisk.maintenance.archive`."""
        from ondisk.maintenance.archive import moved

        return moved(self._access, segments, "archive")

    def rename_archive(self, name: str, new: str) -> Done:
        """Rename a folder of the archive with its segments, in one commit; see `ondisk.maintenance.archive`."""
        from ondisk.maintenance.archive import carried_out, renaming

        return carried_out(self._access, renaming, name, new)

    def set_offline(self, name: str) -> Done:
        """Say that a folder of the archive is away for long; see `ondisk.maintenance.archive.going_offline`."""
        from ondisk.maintenance.archive import carried_out, going_offline

        return carried_out(self._access, going_offline, name)

    def set_online(self, name: str) -> Done:
        """Say that a folder of the archive that was offline is back."""
        from ondisk.maintenance.archive import carried_out, coming_online

        return carried_out(self._access, coming_online, name)

    def unarchive(self, *segments: str) -> list[Done]:
        """Move segments back from the archive; see `ondisk.maintenance.archive`."""
        from ondisk.maintenance.archive import moved

        return moved(self._access, segments, "unarchive")

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        create: bool = False,
        keep: int | None = None,
        progress: Progress = _unseen,
    ) -> Backup:
        """Add the present state to a backup, beside writers and readers; see `ondisk.backup.copy.backup`.

        Args:
            target: a folder of its own; `ondisk.restore` makes a dataset of it.
            create: begin the backup, in a folder that is empty or does not exist.
            keep: remove all points but this many, the newest; None to keep all.
        """
        from ondisk.backup import backup

        return backup(self._access, target, create=create, keep=keep, progress=progress)

    @property
    def quarantine(self) -> Quarantine:
        """The files that stood in the way and were kept; see `ondisk.maintenance.quarantine`."""
        from ondisk.maintenance.quarantine import Quarantine

        return Quarantine(self._access)

    def info(self) -> dict[str, Any]:
        """Return what the dataset is: path, uuid, format, step, unique, index, fields, segments, count, size …"""
        from ondisk.dataset.info import info

        return {**info(self._access), "needs_check": self.needs_check, "quarantine": self.quarantine.total()._asdict()}

    def _append(
        self, stream: Iterable[Batch], format: Format, *, outcomes: bool = False, record: OnCommit | None = None
    ) -> AppendResult:
        from ondisk.dataset.append import AppendResult, Unidentified, refuse_old

        access = self._access
        check_takes_data(access.path, access.config)
        result = AppendResult(outcomes=[] if outcomes else None)
        unidentified = Unidentified(self.config.unique)
        try:
            for batch in stream:
                refuse_old(batch, self.config)
                stored = self._renewing(partial(self._store, batch, format, record, result))
                unidentified.add(batch, stored)
            result.warnings += unidentified.warnings
        except OndiskError as error:
            error.context["result"] = result
            raise
        except BaseException as error:  # an interrupt, or what the iterable of data raised
            done = f"{counted(result.imported, 'datum', 'was')} stored, {result.replaced} replaced"
            error.add_note(f"ondisk: before this, {done} in {self.path}; they are durable")
            raise
        return result

    def _store(self, batch: Batch, format: Format, record: OnCommit | None, result: AppendResult) -> Stored:
        """Store a batch in one commit, and add what was done to a result, also if an error follows the commit."""
        from ondisk.dataset.append import insert
        from ondisk.dataset.place_checks import away_segments

        access = self._access
        with access.user_transaction("append", adds=len(batch)) as transaction:
            into, trusted = (access.directory, transaction), not access.has_sentinel()
            away = away_segments(access) if self.config.unique else {}
            stored = insert(batch, format, self.config, *into, trusted=trusted, away=away)
            if record is not None:
                record(transaction)
            if record is not None or stored.imported or stored.replaced:
                transaction.check_space()
                transaction.commit()
            result.add(batch, stored)
        return stored

    def _renewing(self, append: Callable[[], _T]) -> _T:
        """Return what a function returns that appends. It is called again after each segment that must be rewritten."""
        from ondisk.segments.concat_writer import MustRewrite

        renewed: set[str] = set()
        while True:
            try:
                return append()
            except MustRewrite as error:
                self._renew(error.name, renewed)

    def _renew(self, name: str, renewed: set[str]) -> None:
        """Rewrite a segment, so that an append can continue it, unless it is one of those that were `renewed` for it.

        Raises StateError if that was done before, and did not help.
        """
        from ondisk.maintenance.repack import renew

        if name in renewed:
            hint = "Does another program write to the file? Append again."
            raise StateError(f"{self.path / name} was rewritten, and has changed since then", hint=hint)
        renewed.add(name)
        renew(self._access, name)


def _check_path(path: str | os.PathLike[str]) -> None:
    if not os.fspath(path):
        raise InvalidInput("the path of the dataset is empty", hint='Write "." for the current directory.')
