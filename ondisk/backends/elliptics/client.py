"""A small client: reads and writes objects over one connection."""

from __future__ import annotations

import errno
import os
import socket
from hashlib import sha512

from ondisk.backends.elliptics.packets import (
    APPEND,
    ERRORS,
    ID_SIZE,
    IO,
    MORE,
    NEED_ACK,
    REPLY,
    Code,
    Header,
    Layout,
    Refused,
)
from ondisk.datum import INTEGER_MAX
from ondisk.errors import InvalidInput, NotFound, OndiskError, StorageError, shown
from ondisk.filesystem import Closing

_PART = 4 * 1024 * 1024  # bytes of one read or write
_LONGEST = 64 * 1024 * 1024  # bytes of a packet of a reply
_MOST = 1024 * 1024 * 1024  # bytes of an object that `get` returns without a size
_LOWEST = -4095  # the errors of Linux
_NONSENSE = "the server has sent what is not a reply"
_ERRORS: dict[int, type[OndiskError]] = {
    errno.ENOENT: NotFound,
    errno.EINVAL: InvalidInput,
    errno.E2BIG: InvalidInput,
    errno.EFBIG: InvalidInput,
    errno.ENOTSUP: InvalidInput,
    **ERRORS,
}


class Client(Closing):
    """Reads and writes objects of a server. Not for several threads.

    The name of an object is its id, or a text, whose SHA-512 is the id.

    Args:
        host, port: of the server.
        id_size: the size of ids in bytes.
        group: the group in the headers of requests.
        timeout: seconds to wait for the server.

    Raises:
        OSError: also from all methods: the server cannot be reached, or has closed the connection.
    """

    def __init__(
        self, host: str, port: int, *, id_size: int = ID_SIZE, group: int = 0, timeout: float | None = 60
    ) -> None:
        self._layout = Layout(id_size)
        self._group = group
        self._trans = 0
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def put(self, name: str | bytes, data: bytes, offset: int = 0, *, append: bool = False) -> None:
        """Write data of an object at an offset. At offset 0 they replace the object, unless `append`.

        Args:
            append: write at the end of the object, whatever the offset.

        Raises:
            InvalidInput: they are too large, or the offset is.
            ReadOnly, DiskFull, LockError, StorageError: they were not stored.

        Durability: when it returns, the data survive power loss. Data of more than 4 MiB are written in several
            transactions, each of them whole.
        """
        if not isinstance(data, bytes):
            raise InvalidInput(f"the data of an object are bytes, not {type(data).__name__}")
        id = self._id(name)
        _check(offset, len(data))
        for begin in range(0, max(1, len(data)), _PART):
            part = data[begin : begin + _PART]
            io = IO(id, id, APPEND if append else 0, offset + begin, len(part))
            self._ask(id, self._layout.io_of(Code.WRITE, io, len(part)), part)

    def get(self, name: str | bytes, offset: int = 0, size: int = 0) -> bytes:
        """Return `size` bytes of an object from an offset on, or fewer at its end; with size 0 all of them.

        Without a size, at most 1 GiB: a write far beyond the end makes an object long, and gaps are zeros.

        Raises:
            InvalidInput: offset and size are not those of bytes of an object; or size is 0, and there are more.
            NotFound: there is no such object.
            IntegrityError, LockError, StorageError: it cannot be read.
        """
        _check(offset, size)
        id, parts, begin, end = self._id(name), [], offset, offset + size
        while True:
            wanted = min(_PART, end - offset) if size else _PART
            parts.append(self._ask(id, self._layout.io_of(Code.READ, IO(id, id, 0, offset, wanted)), most=wanted))
            offset += len(parts[-1])
            if not size and offset - begin > _MOST:
                problem = f"the object has more than {_MOST:,} bytes, and unwritten ones count"
                raise InvalidInput(problem, hint="Read it in parts: pass offset and size.")
            if len(parts[-1]) < wanted or offset == end:
                return b"".join(parts)

    def delete(self, name: str | bytes) -> None:
        """Delete an object.

        Raises:
            NotFound: there is no such object.
            ReadOnly, DiskFull, LockError, StorageError: it was not deleted.
        """
        self._ask(self._id(name), self._layout.attribute_of(Code.DEL, 0))

    def _id(self, name: str | bytes) -> bytes:
        if not isinstance(name, str | bytes):
            raise InvalidInput(f"the name of an object is a text, or its id as bytes, not {type(name).__name__}")
        id = sha512(name.encode()).digest()[: self._layout.id_size] if isinstance(name, str) else name
        self._layout.check_id(id)
        return id

    def _ask(self, id: bytes, *command: bytes, most: int = 0) -> bytes:
        """Send a request, and return the bytes in the replies, `most` at most."""
        self._trans += 1
        self._socket.sendall(self._layout.packet(Header(id, self._group, 0, NEED_ACK, 0, self._trans, 0), *command))
        data: list[bytes] = []
        is_complete = False
        while not is_complete:
            packet = self._receive()
            header = self._layout.read_header(packet)
            assert header is not None
            if header.trans != self._trans | REPLY:
                raise StorageError(f"the server has answered transaction {header.trans & ~REPLY}, not {self._trans}")
            if not _LOWEST <= header.status <= 0:
                raise ConnectionError(_NONSENSE)
            if header.status:
                message = f"object {id.hex()[:16]}…: the server answers: {os.strerror(-header.status)}"
                raise _ERRORS.get(-header.status, StorageError)(message, status=header.status)
            try:
                data += [bytes(self._layout.read_io(each)[1]) for _, each in self._layout.attributes(packet, header)]
            except Refused:
                raise ConnectionError(_NONSENSE) from None
            if sum(map(len, data)) > most:
                raise ConnectionError(_NONSENSE)
            is_complete = not header.flags & MORE
        return b"".join(data)

    def _receive(self) -> bytes:
        head = self._read(self._layout.header.size)
        header = self._layout.read_header(head)
        if header is None or header.size > _LONGEST:
            raise ConnectionError(_NONSENSE)
        return head + self._read(header.size)

    def _read(self, size: int) -> bytes:
        content = self._stream.read(size)
        if len(content) < size:
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed the connection")
        return content


def _check(offset: int, size: int) -> None:
    if type(offset) is not int or type(size) is not int or min(offset, size) < 0 or offset + size > INTEGER_MAX:
        raise InvalidInput(f"an object has no bytes at offset {shown(offset)} with size {shown(size)}")
