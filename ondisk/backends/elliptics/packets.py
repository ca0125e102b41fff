"""Packets of elliptics, in the layout of 2010: packed structures, little-endian.

    dnet_cmd | dnet_attr | attr.size bytes | dnet_attr | attr.size bytes | …

`dnet_cmd.size` counts all bytes after it. What follows the attribute of a read or a write begins with `dnet_io_attr`.
Ids have 64 bytes, unless an installation was built with another size.

Source: elliptics, include/elliptics/packet.h at c77789e4 (2010-12-03).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from ondisk.errors import DiskFull, IntegrityError, InvalidInput, LockError, OndiskError, ReadOnly, shown

ID_SIZE = 64  # the size of ids in bytes, by default
REPLY = 1 << 63  # this bit of a transaction's number marks a reply
NEED_ACK, MORE = 1, 2
"""Flags of a header: the sender wants an acknowledgement; more packets of the same transaction follow."""

DIRECT_TRANSACTION = 1  # flag of an attribute: the transaction stands alone, so `dnet_io_attr.id` is not used
APPEND, HISTORY, META = 2, 4, 8
"""Flags of `dnet_io_attr`: write at the end of the object; read the object's history; read or write metadata."""


STAT = Struct("<4H16Q256x")
"""`dnet_stat`.

    u16 la[3], in hundredths | u16 namemax
    u64 bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag
    u64 vm_active, vm_inactive, vm_total, vm_free, vm_cached, vm_buffers, in KiB | u64 reserved[32]
"""

_KIB = 1024
_MOST = 2**16 - 1


ERRORS: dict[int, type[OndiskError]] = {
    errno.ENOSPC: DiskFull,
    errno.EAGAIN: LockError,
    errno.EROFS: ReadOnly,
    errno.EILSEQ: IntegrityError,
}
"""The numbers in replies for errors of a dataset; EIO for the others."""


class Code(IntEnum):
    LOOKUP = 1
    REVERSE_LOOKUP = 2
    JOIN = 3
    WRITE = 4
    READ = 5
    LIST = 6
    EXEC = 7
    ROUTE_LIST = 8
    STAT = 9
    NOTIFY = 10
    DEL = 11
    STAT_COUNT = 12


_READ = int(Code.READ)


class Refused(Exception):
    """A command fails; `status` is the negative errno that its reply contains."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode.get(number, number))
        self.status = -number


class Header(NamedTuple):
    """`dnet_cmd`: `id`, `group` and `version` are `dnet_id`; `size` counts the bytes after the header."""

    id: bytes
    group: int
    version: int
    flags: int
    status: int
    trans: int
    size: int


class Attribute(NamedTuple):
    """`dnet_attr`: a command; `size` counts the bytes that belong to it."""

    size: int
    command: int
    flags: int


class IO(NamedTuple):
    """`dnet_io_attr`: what to read or write; `parent` is the object, `id` the transaction."""

    parent: bytes
    id: bytes
    flags: int
    offset: int
    size: int


class Layout:
    """The structures, for ids of one size, in bytes."""

    def __init__(self, id_size: int = ID_SIZE) -> None:
        self.id_size = id_size
        self.header = Struct(f"<{id_size}sIIIiQQ")
        self.attribute = Struct("<QII8x")
        self.io = Struct(f"<{id_size}s{id_size}sIQQ")
        # `dnet_history_entry`, one write of an object: id, flags, seconds, nanoseconds, offset, size
        self.history = Struct(f"<{id_size}sI8xQQQQ")
        self._read = Struct(self.header.format + self.attribute.format[1:] + self.io.format[1:])
        self._read_sizes = (self.attribute.size + self.io.size, self.io.size, _READ)

    def check_id(self, id: object) -> None:
        """Raise InvalidInput unless a value is an id: bytes of this size."""
        if not isinstance(id, bytes) or len(id) != self.id_size:
            given = len(id) if isinstance(id, bytes) else shown(id)
            hint = f"The id of a named object is the SHA-512 of its name: its first {self.id_size} bytes."
            raise InvalidInput(f"an id has {self.id_size} bytes, not {given}", hint=hint)

    def read_header(self, packet: bytes) -> Header | None:
        """Return the header at the beginning of some bytes; None if there are too few of them."""
        return Header._make(self.header.unpack_from(packet)) if len(packet) >= self.header.size else None

    def read_single_read(self, packet: bytes) -> tuple[Header, IO] | None:
        """Return header and io attribute of a packet that is one read, in a third of the time; None for another."""
        if len(packet) != self._read.size:
            return None
        values = self._read.unpack(packet)
        return (Header._make(values[:7]), IO._make(values[10:])) if values[6:9] == self._read_sizes else None

    def attributes(self, packet: bytes, header: Header) -> Iterator[tuple[Attribute, memoryview]]:
        """Yield the attributes of a whole packet, each with its bytes; raise Refused if a size is wrong."""
        content, at, end = memoryview(packet), self.header.size, len(packet)
        if header.size != end - at:
            raise Refused(errno.EINVAL)
        while at < end:
            if end - at < self.attribute.size:
                raise Refused(errno.EINVAL)
            attribute = Attribute._make(self.attribute.unpack_from(packet, at))
            at += self.attribute.size
            if attribute.size > end - at:
                raise Refused(errno.EINVAL)
            yield attribute, content[at : at + attribute.size]
            at += attribute.size

    def read_io(self, content: memoryview) -> tuple[IO, memoryview]:
        """Return the io attribute at the beginning, and the bytes after it; raise Refused if there are too few."""
        if len(content) < self.io.size:
            raise Refused(errno.EINVAL)
        return IO._make(self.io.unpack_from(content)), content[self.io.size :]

    def packet(self, header: Header, *parts: bytes) -> bytes:
        return b"".join((self.header.pack(*header[:-1], sum(map(len, parts))), *parts))

    def reply(self, header: Header, id: bytes, flags: int, status: int, *parts: bytes) -> bytes:
        _, group, version, _, _, trans, _ = header
        size = sum(map(len, parts))
        return b"".join((self.header.pack(id, group, version, flags, status, trans | REPLY, size), *parts))

    def read_reply(self, header: Header, io: IO, flags: int, data: bytes) -> bytes:
        """Return a packet of the reply to a read: data of an object, which begin at the offset of `io`."""
        _, group, version, _, _, trans, _ = header
        parent, _, io_flags, offset, _ = io
        rest = self.io.size + len(data)
        size = self.attribute.size + rest
        begin = self._read.pack(
            parent, group, version, flags, 0, trans | REPLY, size,
            rest, _READ, 0,
            parent, b"", io_flags, offset, len(data),
        )  # fmt: skip
        return begin + data

    def attribute_of(self, code: int, size: int, flags: int = 0) -> bytes:
        return self.attribute.pack(size, code, flags)

    def io_of(self, code: int, io: IO, size: int = 0, flags: int = 0) -> bytes:
        """Return the attribute of a read or a write and its io attribute, to be followed by `size` bytes of data."""
        return self.attribute_of(code, self.io.size + size, flags) + self.io.pack(*io)


def check_get_size(io: IO, record_size: int) -> int:
    """Return how many bytes a read returns of an object of `record_size` bytes; 0 if it begins at its end or after it.

    A size of 0 reads from the offset to the end. Unlike `dnet_backend_check_get_size`, no sum wraps at 64 bits.
    """
    rest = max(0, record_size - io.offset)
    return min(io.size, rest) if io.size else rest


def stat_of(path: str | os.PathLike[str]) -> bytes:
    """Return `dnet_stat`, the reply to STAT: load, memory and file system of this machine, and of a path.

    Of the memory only the total and the free part are known without reading files of the kernel; the rest are zeros.
    """
    loads = [min(_MOST, round(100 * load)) for load in os.getloadavg()]
    found = os.statvfs(path)
    system = (found.f_bsize, found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail, found.f_files)
    more = (found.f_ffree, found.f_favail, found.f_fsid % 2**64, found.f_flag)
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (os.sysconf(name) * page // _KIB for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    return STAT.pack(*loads, min(_MOST, found.f_namemax), *system, *more, 0, 0, total, free, 0, 0)
