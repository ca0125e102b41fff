"""The backend: answers packets with a dataset.

A packet is a transaction: a header, and commands that are executed in their order, up to the first error. Consecutive
writes and deletes share a commit, also those of packets that are given together. It is made before a command that
reads, at 64 MiB of data, when the replies are as long as the longest read, or at the end of the packets. No reply is
made before the commit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ondisk.backends.elliptics.extents import FIRST, Extent
from ondisk.backends.elliptics.objects import Changes, Objects
from ondisk.backends.elliptics.packets import (
    APPEND,
    DIRECT_TRANSACTION,
    ERRORS,
    HISTORY,
    ID_SIZE,
    IO,
    META,
    MORE,
    NEED_ACK,
    REPLY,
    Attribute,
    Code,
    Header,
    Layout,
    Refused,
    check_get_size,
    stat_of,
)
from ondisk.backends.elliptics.settings import BESIDE, Limits, check
from ondisk.dataset.dataset import Dataset
from ondisk.datum import INTEGER_MAX
from ondisk.errors import ConfigError, IntegrityError, InvalidInput, LockError, OndiskError, StateError

_LOG = logging.getLogger("ondisk.backends.elliptics")
_TRIES = 100
_COLLECTED = 64 * 1024 * 1024  # bytes of writes in one commit
_SECOND = 1_000_000  # microseconds


class Backend:
    """Reads and writes objects in a dataset, as packets say.

    An object is a run of bytes with the name `parent`. Each write of it is an extent, stored as one datum. A read
    overlays the extents in the order of the writes. Threads may share a backend.

    Args:
        dataset: one with the configuration of `ondisk init --backend elliptics`; open for reading, or for writing.
        id_size: the size of ids in bytes.
        limits: of memory; None for the defaults.

    Raises:
        ConfigError: the dataset has another configuration, or ids of another size.
        InvalidInput: `id_size` is not between 1 and 512.
    """

    def __init__(self, dataset: Dataset, *, id_size: int = ID_SIZE, limits: Limits | None = None) -> None:
        check(dataset.config)
        if type(id_size) is not int or not 1 <= id_size <= 512:
            raise InvalidInput(f"id_size must be a whole number from 1 to 512, not {id_size!r}")
        self.dataset = dataset
        self.layout = Layout(id_size)
        self.limits = limits or Limits()
        self._objects = Objects(dataset, self.limits)
        self._collected: list[_Change] = []
        self._weight = 0
        self._is_fresh = False  # whether the dataset was looked at since the packets were given
        self._check_ids()
        self._together: Sequence[bytes] = ()  # the packets, until a read needs what is not in memory
        self._lock = threading.Lock()
        self._commands: dict[int, Callable[[_Transaction, Attribute, memoryview], None]] = {
            Code.WRITE: self._write,
            Code.READ: self._read,
            Code.DEL: self._delete,
            Code.LIST: self._list,
            Code.STAT: self._stat,
        }

    def _check_ids(self) -> None:
        """Raise ConfigError if the objects of the dataset have ids of another size."""
        with contextlib.suppress(StateError, IntegrityError):  # each command says so
            for datum in self.dataset.query(limit=1, with_data=False):
                parent = datum.metadata.get("parent")
                if isinstance(parent, bytes) and len(parent) != self.layout.id_size:
                    message = f"the ids in {self.dataset.path} have {len(parent)} bytes, not {self.layout.id_size}"
                    raise ConfigError(
                        message, hint=f"Pass --id-size {len(parent)}, or id_size={len(parent)} in Python."
                    )

    def process(self, packet: bytes) -> list[bytes]:
        """Execute the commands of a packet, and return the packets of the reply.

        An error becomes the status of a reply. There is no reply to bytes that are not a packet, or are a reply; a
        caller that received them from a connection should close it.

        Durability: what a reply confirms survives power loss.
        """
        return self.process_all([packet])[0]

    def process_all(self, packets: Sequence[bytes]) -> list[list[bytes]]:
        """Execute the commands of several packets in their order, and return the replies to each.

        Consecutive writes and deletes share a commit, which ends at 64 MiB of data, or when the replies are as long as
        the longest read.

        Durability: as `process`.
        """
        replies: list[list[bytes]] = []
        while len(replies) < len(packets):
            replies += self.process_some(packets[len(replies) :])
        return replies

    def process_some(self, packets: Sequence[bytes]) -> list[list[bytes]]:
        """Execute the commands of the first of several packets, until their replies are as long as the longest read.

        Returns:
            The replies to each packet that was executed: at least one.

        Durability: as `process`.
        """
        transactions: list[_Transaction | None] = []
        size = 0
        with self._lock:
            self._is_fresh = False
            self._together = packets
            for packet in packets:
                transaction = self._execute(packet)
                transactions.append(transaction)
                size += 0 if transaction is None else transaction.size
                if size >= self.limits.read:
                    break
            self._commit()
        return [[] if each is None else each.packets(self.limits.reply) for each in transactions]

    def history(self, parent: bytes) -> list[Extent]:
        """Return the writes of an object that its content consists of, in their order; none if it does not exist.

        Args:
            parent: the id of the object; not its name.

        Raises:
            InvalidInput: it is not an id.
        """
        self.layout.check_id(parent)
        with self._lock:
            self._objects.refresh()
            return [*self._objects.get(parent)]

    def _execute(self, packet: bytes) -> _Transaction | None:
        """Execute the commands of a packet, up to the first error."""
        single = self.layout.read_single_read(packet)
        header = self.layout.read_header(packet) if single is None else single[0]
        if header is None or header.trans & REPLY:
            return None
        transaction = _Transaction(self.layout, header)
        try:
            if single is None:
                self._execute_each(transaction, packet)
            else:
                self._read_object(transaction, single[1])
        except Refused as error:
            if self._collected and self._collected[-1].transaction is transaction:
                self._commit()  # a delete before it may fail, which then is the first error
            transaction.fail(error.status)
        except OndiskError as error:
            transaction.fail(self._status_of(error))
        return transaction

    def _execute_each(self, transaction: _Transaction, packet: bytes) -> None:
        for number, (attribute, content) in enumerate(self.layout.attributes(packet, transaction.header)):
            if number == self.limits.commands:
                raise Refused(errno.E2BIG)
            command = self._commands.get(attribute.command)
            if command is None:
                raise Refused(errno.ENOTSUP if attribute.command in set(Code) else errno.EINVAL)
            command(transaction, attribute, content)
            if transaction.status:
                break

    def _write(self, transaction: _Transaction, attribute: Attribute, content: memoryview) -> None:
        io, data = self.layout.read_io(content)
        if io.size != len(data):
            raise Refused(errno.EINVAL)
        if io.flags & (HISTORY | META):
            raise Refused(errno.ENOTSUP)
        if len(data) + BESIDE > self.dataset.config.max_datum_size:
            raise Refused(errno.E2BIG)
        if not io.flags & APPEND and io.offset + io.size > INTEGER_MAX:
            raise Refused(errno.EFBIG)
        self._check_writable()
        id = io.parent if attribute.flags & DIRECT_TRANSACTION else io.id
        extent = Extent(0, id, io.flags & ~FIRST, io.offset, io.size, transaction.header.version)
        self._collect(_Change(transaction, io.parent, extent, bytes(data)), len(data))

    def _delete(self, transaction: _Transaction, attribute: Attribute, content: memoryview) -> None:
        parent = self.layout.read_io(content)[0].parent if content else transaction.header.id
        self._check_writable()
        self._collect(_Change(transaction, parent, None, b""), 0)

    def _read(self, transaction: _Transaction, attribute: Attribute, content: memoryview) -> None:
        io, rest = self.layout.read_io(content)
        if rest:
            raise Refused(errno.EINVAL)
        self._read_object(transaction, io)

    def _read_object(self, transaction: _Transaction, io: IO) -> None:
        """Reply with bytes of an object, or of its history."""
        if io.flags & META:
            raise Refused(errno.ENOTSUP)
        if not self._begin_to_read(transaction):
            return
        if io.parent not in self._objects:
            self._load_together()
        for _ in range(_TRIES):
            data = self._data_of(io, transaction)
            if data is not None:
                transaction.reply(Code.READ, data, io)
                return
        raise LockError("an object changes faster than it can be read", hint="Read it again.")

    def _data_of(self, io: IO, transaction: _Transaction) -> bytes | None:
        """Return the bytes of an object that a command reads, or of its history; None if somebody else has changed it.

        Raises:
            Refused: ENOENT: it does not exist. E2BIG: the reply would be too long.
        """
        extents = self._objects.get(io.parent, with_data=not io.flags & HISTORY)
        if not extents:
            raise Refused(errno.ENOENT)
        history = b"".join(map(self._entry, extents)) if io.flags & HISTORY else None
        size = check_get_size(io, extents.size if history is None else len(history))
        if transaction.size + size > self.limits.read:
            raise Refused(errno.E2BIG)
        end = io.offset + size
        if history is not None:
            return history[io.offset : end]
        return self._objects.read(io.parent, extents, io.offset, end) if size else b""

    def _load_together(self) -> None:
        """Read what the packets that were given together read."""
        packets, self._together = self._together, ()
        if len(packets) > 1:
            with contextlib.suppress(OndiskError):  # each read says what concerns it
                self._objects.learn((each for packet in packets for each in self._parents_read(packet)), with_data=True)

    def _parents_read(self, packet: bytes) -> Iterator[bytes]:
        """Yield the objects whose data a packet reads."""
        single = self.layout.read_single_read(packet)
        for io in self._reads(packet) if single is None else single[1:]:
            if not io.flags & HISTORY:
                yield io.parent

    def _reads(self, packet: bytes) -> Iterator[IO]:
        """Yield the io attributes of the reads of any packet, up to the first error."""
        header = self.layout.read_header(packet)
        with contextlib.suppress(Refused):  # when it is executed
            for attribute, content in self.layout.attributes(packet, header) if header is not None else ():
                if attribute.command == Code.READ:
                    yield self.layout.read_io(content)[0]

    def _entry(self, extent: Extent) -> bytes:
        seconds, rest = divmod(extent.time, _SECOND)
        flags = extent.flags & ~FIRST
        return self.layout.history.pack(extent.id, flags, seconds, 1000 * rest, extent.offset, extent.size)

    def _list(self, transaction: _Transaction, attribute: Attribute, content: memoryview) -> None:
        if self._begin_to_read(transaction):
            self._reply(transaction, Code.LIST, b"".join(self._objects.parents(transaction.header.id)))

    def _stat(self, transaction: _Transaction, attribute: Attribute, content: memoryview) -> None:
        self._reply(transaction, Code.STAT, stat_of(self.dataset.path))

    def _reply(self, transaction: _Transaction, command: int, data: bytes) -> None:
        if transaction.size + len(data) > self.limits.read:
            raise Refused(errno.E2BIG)
        transaction.reply(command, data)

    def _check_writable(self) -> None:
        if self.dataset.read_only or self.dataset.config.replica:
            raise Refused(errno.EROFS)

    def _begin_to_read(self, transaction: _Transaction) -> bool:
        """Commit what was collected; return whether all of it that belongs to the transaction was stored."""
        self._commit()
        if not self._is_fresh:
            self._objects.refresh()
            self._is_fresh = True
        return not transaction.status

    def _collect(self, change: _Change, weight: int) -> None:
        self._collected.append(change)
        self._weight += weight
        if self._weight >= _COLLECTED:
            self._commit()

    def _commit(self) -> None:
        """Make what was collected durable. If that fails, all its transactions fail."""
        if not self._collected:
            return
        collected, self._collected, self._weight = self._collected, [], 0
        try:
            status = self._stored(collected)
        except OndiskError as error:
            status = self._status_of(error)
        if status:
            self._objects.forget([each.parent for each in collected])
            for each in collected:
                each.transaction.fail(status)

    def _stored(self, collected: Sequence[_Change]) -> int:
        """Store changes, and return 0; or a status if others change the dataset all the time."""
        for _ in range(_TRIES):
            self._objects.refresh()
            self._objects.learn(each.parent for each in collected)
            changes = Changes(self._objects)
            statuses = _applied(collected, changes)
            if changes.commit():
                for each, status in zip(collected, statuses, strict=True):
                    each.transaction.fail(status)
                return 0
            self._objects.forget(changes.parents)
        return -errno.EAGAIN

    def _status_of(self, error: OndiskError) -> int:
        """Return the status for an error of the dataset, which is logged: the reply has room for a number only."""
        _LOG.warning("%s", error)
        return next((-number for number, kind in ERRORS.items() if isinstance(error, kind)), -errno.EIO)


def _applied(collected: Sequence[_Change], changes: Changes) -> list[int]:
    """Add changes to those of a commit, up to the first error of each transaction; return their statuses."""
    statuses, failed = [], set[_Transaction]()
    for each in collected:
        status = 0 if each.transaction in failed else each.apply(changes)
        if status:
            failed.add(each.transaction)
        statuses.append(status)
    return statuses


@dataclass(slots=True)
class _Change:
    """A write or a delete of an object, of one transaction; `extent` is None for a delete."""

    transaction: _Transaction
    parent: bytes
    extent: Extent | None
    data: bytes

    def apply(self, changes: Changes) -> int:
        extents = changes.extents(self.parent)
        extent = self.extent
        if extent is None:
            if not extents:
                return -errno.ENOENT
            changes.delete(self.parent)
            return 0
        if extent.flags & APPEND:
            if extents.size + extent.size > INTEGER_MAX:
                return -errno.EFBIG
            extent = extent._replace(offset=extents.size)
        if extent.size or extent.replaces or not extents:  # else nothing is written
            changes.write(self.parent, extent, self.data)
        return 0


class _Transaction:
    __slots__ = ("_is_asked", "_layout", "_replies", "header", "size", "status")

    def __init__(self, layout: Layout, header: Header) -> None:
        self.header = header
        self.status = 0  # the first error, as a negative errno; 0 for none
        self.size = 0  # bytes of data in the reply
        self._layout = layout
        self._replies: list[tuple[int, IO | None, bytes]] = []
        self._is_asked = False  # whether a command asked for data, so that a reply is sent even if there are none

    def fail(self, status: int) -> None:
        self.status = self.status or status

    def reply(self, command: int, data: bytes, io: IO | None = None) -> None:
        """Reply with data; with `io`, those are data of an object, and begin at its offset."""
        self._is_asked = True
        self.size += len(data)
        if data:
            self._replies.append((command, io, data))

    def packets(self, size: int) -> list[bytes]:
        """Return the packets of the reply, each with at most `size` bytes of data; all but the last have MORE."""
        header, layout, packets = self.header, self._layout, []
        left = len(self._replies)
        is_acknowledged = bool(header.flags & NEED_ACK or self.status or (self._is_asked and not left))
        for command, io, data in self._replies:
            left -= 1
            for begin in range(0, len(data), size):
                part = data[begin : begin + size]
                flags = MORE if is_acknowledged or left or begin + size < len(data) else 0
                if io is None:
                    attribute = layout.attribute_of(command, len(part))
                    packets.append(layout.reply(header, header.id, flags, 0, attribute, part))
                else:
                    here = io if begin == 0 else io._replace(offset=io.offset + begin)
                    packets.append(layout.read_reply(header, here, flags, part))
        if is_acknowledged:
            packets.append(layout.reply(header, header.id, header.flags & ~(NEED_ACK | MORE), self.status))
        return packets
