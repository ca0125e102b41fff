"""Access to a dataset: its directory, its lock and its index, for as long as a process has it open."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.auxiliary_files import (
    SENTINEL,
    SENTINEL_TEXT,
    check_takes_data,
    hint_about_space,
    last_generation,
    untrusted,
)
from ondisk.dataset.read import DatasetReader
from ondisk.dataset.segment_layout import Layout, layout_of
from ondisk.errors import DiskFull, DurabilityLost, InvalidInput, LockError, OndiskError, ReadOnly, StateError
from ondisk.filesystem import Directory, WritersLock, removed
from ondisk.formats import Format, find, is_dir, of_extension
from ondisk.index import Index, Segment, Snapshot, segment_rows, tide
from ondisk.index.connection import NEXT, Connection, connect_to_read, state_of
from ondisk.index.connections import has_long_log, is_long
from ondisk.index.swap import has_other_names
from ondisk.index.tables import TOUCHED
from ondisk.index.tide import Exchanged, IndexExchanged, State, Tide
from ondisk.named_tuple import NamedTuple
from ondisk.segments.file_facts import Committed
from ondisk.segments.generations import complete, generations_of, hidden, is_committed, leave, left_behind, recover
from ondisk.segments.places import closed, note_unread, place, places, twins
from ondisk.step import inner_of, place_of

if TYPE_CHECKING:
    from ondisk.index.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")

_WAITING, _LEAST = 10_000, 1_000
"""How many data may wait in the index's log for a checkpoint, and how many each commit counts for at least."""
_PLENTY = 64 * 1024 * 1024
"""Bytes that must be free on the disk, for data to wait."""


class Opened(NamedTuple):
    """An index and the reader of its segments. Both are dropped together when another index file replaces this one."""

    index: Index  # type: ignore[assignment]  # not the method of tuples
    reader: DatasetReader


class Remembered:
    """What is remembered for as long as a dataset is open: for maintenance, and for later commits."""

    def __init__(self, *, keeps_replaced: bool) -> None:
        self.keeps_replaced = keeps_replaced  # what `delete_age` drops stays readable for `keep_replaced`
        # when maintenance read the time of the last commit (monotonic seconds), and what it was
        self.last_commit: tuple[float, int] | None = None
        self.unclean: set[str] = set()  # segments with other generations on disk
        self.waiting: int | None = None  # data in the index's log and not yet in its main file; None: no commit yet


class _Usable:
    """Whether a dataset that is open can be used: not closed, in the process that opened it, without a failed disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self.is_closed = False
        self.failed: OndiskError | None = None  # the error of the disk after which nothing is written

    @property
    def is_writable(self) -> bool:
        """Whether no error of the disk and no fork forbids to write."""
        return self.failed is None and os.getpid() == self._process

    def fail(self, error: OndiskError) -> None:
        """Write nothing more, because of an error of the disk; the first one counts."""
        self.failed = self.failed or error

    def check_not_failed(self) -> None:
        if self.failed is not None:
            raise DurabilityLost(
                f"{self._path}: nothing more is written after an error of the disk: {self.failed.message}",
                hint="Check the disk (`dmesg`), then open the dataset again.",
            )

    def check_open(self) -> None:
        if self.is_closed:
            raise InvalidInput(f"{self._path} was closed", hint="Open the dataset again.")

    def check_may_lock(self) -> None:
        """Raise if it was closed, or in a forked child, before that waits for locks of its parent's threads."""
        self.check_open()
        if os.getpid() != self._process:
            raise StateError(
                f"{self._path} was opened by process {self._process}, and this is its child {os.getpid()}",
                hint="Open the dataset in the process that uses it.",
            )


class Access:
    """What `Dataset` and maintenance use to read and write. Threads may share it; a forked child may not use it."""

    def __init__(
        self,
        directory: Directory,
        config: DatasetConfig,
        *,
        read_only: bool,
        connect: Callable[[Directory], Connection] = connect_to_read,
    ) -> None:
        self.directory = directory  # the directory, open
        self.config = config  # the configuration in `dataset.toml`
        self.read_only = read_only  # True if nothing may be written
        self.connect = connect  # connects readers to the index
        self.remembered = Remembered(keeps_replaced=config.keep_seconds > 0)
        self._lock = WritersLock(directory, config.lock_timeout)
        self._tide = Tide(directory)
        self._threads = threading.RLock()
        self._opened: Opened | None = None
        self._usable = _Usable(directory.path)
        self._of_stored = config.of_stored()
        self._formats: dict[tuple[int, str], Format] = {}

    @property
    def path(self) -> Path:
        return self.directory.path

    def close(self) -> None:
        """Close files and connections. A running query ends with an error."""
        with self._threads:
            has_written = self.remembered.waiting is not None and self._usable.is_writable
            if has_written and not self._usable.is_closed and (self.remembered.waiting or is_long(self.directory)):
                self._empty_log()
            self._usable.is_closed = True
            self._drop(queries=True)
            self.directory.close()

    def user_transaction(self, verb: str, *, adds: int = 0) -> contextlib.AbstractContextManager[Transaction]:
        """Do the same as `transaction` for users, who append or delete data; raise StateError for a replica."""
        if not self.read_only:
            check_takes_data(self.path, self.config)
        return self.transaction(verb, adds=adds)

    @contextlib.contextmanager
    def transaction(self, verb: str, *, adds: int = 0) -> Iterator[Transaction]:
        """Hold the writers' lock and a transaction of the current index, for the length of the block.

        A checkpoint takes as long as a small append, so several that add data share one; not if the disk has little
        space, since what fills the log could not be moved or deleted later.

        Raises:
            ReadOnly, LockError: the lock cannot be taken.
            DurabilityLost: a sync failed, now or earlier; nothing more is written. It may also be raised at the end of
                the block, after a durable commit, so the block must record its result before it ends.
        """
        with self.locked(verb):
            try:
                waiting = self._waiting_with(adds)
                with contextlib.ExitStack() as stack:
                    transaction = self._begun(stack, lazy=waiting > 0)
                    try:
                        yield transaction
                    finally:
                        if transaction.is_committed:
                            self.remembered.waiting = waiting
            except DiskFull as error:
                if self._opened is not None:
                    self._opened.index.connections.shrink_log()
                error.hint = hint_about_space(self.path, self.config) or error.hint
                raise
            if transaction.checkpoint_error is not None:
                self._usable.failed = transaction.checkpoint_error
            elif transaction.has_no_older_readers:
                self._clean_up_after_commit()
        self.check_not_failed()

    def _begun(self, stack: contextlib.ExitStack, *, lazy: bool) -> Transaction:
        """Begin a transaction of the current index, and end it with the stack. The caller must hold the lock."""

        from ondisk.index.transaction import Transaction  # here, as readers do not need it

        def begin() -> Transaction:
            was_killed = self._lock.was_killed
            index = self._current_to_write()
            transaction = stack.enter_context(Transaction(index, lazy=lazy, tide=self._tide))
            if was_killed:  # perhaps in a move
                self.leave_moved(transaction)
            return transaction

        try:
            return begin()
        except IndexExchanged:
            return begin()  # of the index that is there now

    def _waiting_with(self, adds: int) -> int:
        """Return how many data wait in the log when an append has added some; 0 if they may not, as the first ones."""
        together = (_WAITING if self.remembered.waiting is None else self.remembered.waiting) + max(adds, _LEAST)
        is_little = adds > 0 and together <= _WAITING
        return together if is_little and not self.remembered.unclean and self.directory.free_space() > _PLENTY else 0

    @contextlib.contextmanager
    def locked(self, verb: str, timeout: float | None = None) -> Iterator[None]:
        """Hold the writers' lock without a transaction, for the length of the block."""
        if self.read_only:
            raise ReadOnly(f"{self.path} was opened read_only", hint="Open it for writing.")
        self._usable.check_may_lock()
        with self._threads:
            self.check_not_failed()
            try:
                with self._lock.hold(verb, timeout):
                    yield
            except DurabilityLost as error:
                self._usable.fail(error)
                raise

    def clean_up_later(self, name: str) -> None:
        """Remember that a segment has other generations on disk, until a commit after which nobody needs them."""
        self.remembered.unclean.add(name)

    def needs_check(self) -> bool:
        """Return whether the index may not know all data: it was lost or exchanged, or the sentinel exists."""
        return self.current().index.missing or self.has_sentinel() or self._exchanged() is not None

    def may_lack(self, name: str) -> bool:
        """Return whether the index may not know all data of a segment: it is lost, or a fix must read a place first."""
        return self.needs_check() or (bool(place_of(name)) and place(self.directory, place_of(name)).is_unread)

    def check_trusted(self) -> None:
        """Raise NeedsCheck unless the index knows all data: it was lost or exchanged, or the sentinel exists."""
        if self.needs_check():
            raise untrusted(self.path)

    def _exchanged(self) -> Exchanged | None:
        return self._tide.exchanged(self._state, alone=self.connect is connect_to_read)

    def _state(self) -> State | None:
        index = self.current().index
        if index.missing:
            return None
        with index.snapshot() as snapshot:
            known = snapshot.dataset()
        return state_of(known["uuid"], known["seq"], known["generation"])

    def checkpoint(self) -> None:
        """Move committed rows into the index's main file. If that is not possible now, a later commit does it."""
        with self._threads:
            self._empty_log()
        self.check_not_failed()

    def _empty_log(self) -> None:
        with contextlib.ExitStack() as stack:
            opened = self._opened
            try:
                if opened is None or not opened.index.is_current():
                    return
                stack.enter_context(self._lock.hold("append", timeout=0))
            except OndiskError:
                return
            self.remembered.waiting = 0
            try:
                if self._exchanged() is None and not self._lock.was_killed and opened.index.connections.checkpoint():
                    if (state := self._state()) is not None:
                        self._tide.committed(state, is_moved=True)
                    self._clean_up_after_commit()
                    if is_long(self.directory):
                        opened.index.connections.begin_log()
            except OndiskError as error:
                self._usable.failed = error

    def current(self) -> Opened:
        """Return the index that is in the directory now. It is opened again if another file has replaced it."""
        opened = self._opened
        if opened is not None and opened.index.is_current():
            return opened
        self._usable.check_open()
        with self._threads:
            if self._opened is None or not self._opened.index.is_current():
                self._drop(queries=False)
                index = Index.open(self.directory, self.config, self.connect)
                if index.missing and self.directory.is_removed:
                    raise removed(self.path)
                reader = DatasetReader(self.directory, index.config.of_stored())
                index.read_metadata = reader.undeclared
                self._opened = Opened(index, reader)
            return self._opened

    def _current_to_write(self) -> Index:
        """Return the index to write to; replace a lost or an exchanged one. The caller must hold the lock."""
        self._settle_next()
        if (exchanged := self._exchanged()) is not None:
            from ondisk.dataset.exchanged_index import take_over

            self._drop(queries=False)
            take_over(self.directory, exchanged, self.config.lock_timeout)
        elif has_other_names(self.directory):
            from ondisk.index.convert import separate

            self._drop(queries=False)
            separate(self.directory, self.config)
        index = self.current().index
        if index.missing and not self.has_sentinel():
            self.directory.write_new(SENTINEL, SENTINEL_TEXT)
        if index.missing or not index.is_built_for(self.config):
            with index.snapshot() as snapshot:
                touched = not index.missing and bool(snapshot.fetch(TOUCHED)[0][0])
            if touched:
                raise index.built_for_another(self.config)
            if index.missing:
                note_unread(self.directory, places(self.directory).values())
            generation, mark = last_generation(self.directory), tide.read(self.directory)
            last = (generation, 0) if mark is None else (max(generation, mark.generation), mark.seq)
            Index.create(self.directory, self.config, *last)
            index = self.current().index
        index.connections.writer()  # switches a new index to WAL mode, which is not possible while somebody reads it
        if self._lock.was_killed:  # the log of the index may end with a commit that is not durable
            index.connections.settle_log()
            self._lock.was_killed = False
        return index

    def _settle_next(self) -> None:
        """Finish the replacement of the index that a crash interrupted. The caller must hold the lock."""
        if self.directory.inode(NEXT) is not None:
            from ondisk.dataset.exchanged_index import settle_next

            self._drop(queries=False)
            settle_next(self.directory, self.config.lock_timeout)

    def open_to_write(self) -> None:
        """Replace a lost or exchanged index, and finish what a crash interrupted, under the lock; raise ReadOnly."""
        if not self.directory.is_writable():
            hint = "Open it read_only, or as a user with that permission."
            raise ReadOnly(f"this user has no permission to write to {self.path}", hint=hint)
        if self.directory.inode(NEXT) is not None:
            with self._lock.hold("open"):
                self._settle_next()
        index = self.current().index
        if self._exchanged() is not None or index.missing or not index.is_built_for(self.config):
            with self._lock.hold("open"):
                self._current_to_write()
        self.finish_moves()
        self._clean_up_all()
        if has_long_log(self.directory) is not None:  # a killed process has left it; a running one cuts it itself
            with self._threads, contextlib.suppress(LockError), self._lock.hold("open", timeout=0):
                self._current_to_write().connections.shrink_log()

    def ask(self, question: Callable[Concatenate[Snapshot, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Return what a function reads in a snapshot of its own, which is its first argument."""
        with self.current().index.snapshot() as snapshot:
            return question(snapshot, *args, **options)

    def finish_moves(self) -> None:
        """Take their names away from segments that were moved to another folder; after a crash, or to forget them."""
        with self.current().index.snapshot() as snapshot:
            if all(self._is_elsewhere(snapshot, name) is None for _, name, *_ in segment_rows.moved(snapshot)):
                return  # nothing is left to do, or its disk is away
        with contextlib.suppress(LockError, DiskFull), self.transaction("open") as transaction:
            self.leave_moved(transaction)
            transaction.commit()

    def leave_moved(self, transaction: Transaction) -> int:
        """Take their names away from segments that were moved, and forget them with the commit of the transaction.

        Not if the data were moved back since, also by hand: then the file with this name may be all that has them.
        """
        with self.current().index.snapshot() as snapshot:
            left = segment_rows.moved(snapshot)
            elsewhere = {name: self._is_elsewhere(snapshot, name) for _, name, *_ in left}
        done: list[int] = []
        for generation, name, format, size, facts in left:
            if elsewhere[name] is None:
                continue
            if elsewhere[name]:
                committed = Committed(size, facts, self.format(format).mutable)
                try:
                    leave(self.directory, name, generation, committed)
                except ReadOnly:  # its folder may not be written; the next opening tries again
                    continue
                self.clean_up_later(name)
            done.append(generation)
        transaction.forget_moved(done)
        return len(done)

    def _is_elsewhere(self, snapshot: Snapshot, name: str) -> bool | None:
        """Return whether the index has a segment of this name in other folders only, and one of the files is there.

        None while such a folder is away: nobody knows whether the file is there.
        """
        if snapshot.segment_named(name) is not None:
            return False
        away = closed(self.directory)
        if place_of(name) in away:
            return None
        for segment in map(snapshot.segment_named, twins(self.directory, name)):
            if segment is not None:
                places = hidden(segment.name, segment.id), segment.name
                if any(is_committed(self.directory, each, self.committed(segment)) for each in places):
                    return True
        is_away = any(snapshot.segment_named(f"{each}{inner_of(name)}") is not None for each in away)
        return None if is_away else False

    def shrink_index(self) -> None:
        """Give back the space of rows that were removed; if somebody else writes, a later repack does it."""
        with contextlib.suppress(LockError), self.locked("repack", timeout=0):
            self._current_to_write().connections.shrink()

    def _clean_up_all(self) -> None:
        """Finish what a crash interrupted. Files of a running writer look the same: the next commit cleans up again."""
        left = left_behind(self.directory)
        if not left:
            return
        self.remembered.unclean.update(left)
        with self._threads, contextlib.suppress(LockError, DiskFull, ReadOnly), self._lock.hold("open", timeout=0):
            index = self._current_to_write()  # settles the log: a commit that a crash left there may need these files
            self._clean_up(left_behind(self.directory), has_no_older_readers=index.connections.checkpoint())

    def _clean_up_after_commit(self) -> None:
        """Clean up after a commit. The commit is done, so an error here is raised by the next write."""
        try:
            left = {name: generations_of(self.directory, name) for name in self.remembered.unclean}
            self._clean_up(left, has_no_older_readers=True)
        except DurabilityLost as error:
            self._usable.failed = error
        except OndiskError:
            pass  # the files take space only, and the next commit tries again

    def _clean_up(self, left: Mapping[str, list[int]], *, has_no_older_readers: bool) -> None:
        """Finish what a crash interrupted, and remove generations that nobody needs. The caller must hold the lock."""
        if not left:
            return
        trusted = not self.needs_check()  # no writer may have created the sentinel since the index was lost
        opened = self.current()
        with opened.index.snapshot() as snapshot:
            known = {name: snapshot.segment_named(name) for name in left}
            ids = ", ".join(str(each) for some in left.values() for each in some)
            names: dict[int, str] = dict(snapshot.fetch(f"SELECT id, name FROM segment WHERE id IN ({ids})"))
        # Somebody has renamed the folder of a move or an append that was killed: its file is all that has these data.
        for name, some in left.items() if trusted else ():
            for each in some:
                if names.get(each, name) != name:
                    self._show_moved(opened.index, name, each, names[each])
        left = {name: [each for each in some if names.get(each, name) == name] for name, some in left.items()}
        for name, segment in known.items():
            current = None if segment is None else (segment.id, self.committed(segment))
            where = self.directory, name, left[name], current
            needed = recover(*where, has_no_older_readers=has_no_older_readers, trusted=trusted)
            for generation in set(left[name]).difference(needed):
                opened.reader.forget(generation)
            if needed:
                self.remembered.unclean.add(name)
            else:
                self.remembered.unclean.discard(name)

    def _show_moved(self, index: Index, name: str, generation: int, former: str) -> None:
        """Give a generation that somebody has moved with its hidden name a name there, so that a fix follows it."""
        with index.snapshot() as snapshot:
            segment = snapshot.segment_named(former)
        places = name, former, hidden(former, generation)
        if segment is not None and all(self.directory.stat(each) is None for each in places):
            complete(self.directory, name, generation, self.committed(segment))

    def _drop(self, *, queries: bool) -> None:
        if self._opened is not None:
            self._opened.index.close(queries=queries)
            self._opened.reader.close()
            self._opened = None

    @property
    def layout(self) -> Layout:
        """How its data are divided among segments, and what other programs do with these."""
        return layout_of(self.config.step)

    def has_sentinel(self) -> bool:
        return self.directory.inode(SENTINEL) is not None

    def committed(self, segment: Segment) -> Committed:
        return segment.committed(self.format(segment.format).mutable)

    def is_dir_segment(self, name: str, segment: Segment | None) -> bool:
        """Return whether a segment is a dir segment; by its name, if the index does not know it."""
        return is_dir(segment.format) if segment is not None else self.format_of(name).is_dir

    def format(self, name: str) -> Format:
        """Return a format of stored data."""
        return self._format_with(self._of_stored, name)

    def incoming(self, name: str) -> Format:
        """Return a format of new data."""
        return self._format_with(self.config, name)

    def _format_with(self, config: DatasetConfig, name: str) -> Format:
        key = config.max_datum_size, name
        if key not in self._formats:
            self._formats[key] = find(name)(config)
        return self._formats[key]

    def format_of(self, segment: str) -> Format:
        """Return the format of a segment that is not in the index, by its extension; blob if that is unknown."""
        extension = self.layout.taken_for(segment).rpartition(".")[2]
        return self.format(of_extension(extension, self.config) or "blob")

    def check_not_failed(self) -> None:
        """Raise after an error of the disk: nothing more is written then."""
        self._usable.check_not_failed()
