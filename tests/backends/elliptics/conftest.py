"""A dataset of objects, and requests as a client of 2010 makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk
from ondisk.backends.elliptics import Backend, configuration
from ondisk.backends.elliptics.packets import IO, NEED_ACK, Code, Header, Layout

LAYOUT = Layout()


def name(number: int) -> bytes:
    """Return the id of an object."""
    return bytes([number]) * 64


def request(parent, code, *parts, flags=NEED_ACK, trans=7, version=0):
    return LAYOUT.packet(Header(parent, 2, version, flags, 0, trans, 0), *parts)


def io_command(code, io, data=b"", flags=0):
    return LAYOUT.io_of(code, io, len(data), flags) + data


def write(parent, data, offset=0, io_flags=0, *, id=None, attribute_flags=0, size=None, **header):
    io = IO(parent, parent if id is None else id, io_flags, offset, len(data) if size is None else size)
    return request(parent, Code.WRITE, io_command(Code.WRITE, io, data, attribute_flags), **header)


def read(parent, offset=0, size=0, io_flags=0, **header):
    command = io_command(Code.READ, IO(parent, parent, io_flags, offset, size))
    return request(parent, Code.READ, command, **header)


def command(parent, code, **header):
    return request(parent, code, LAYOUT.attribute_of(code, 0), **header)


def status(replies) -> int:
    """Return the status of the last packet of a reply."""
    return LAYOUT.read_header(replies[-1]).status


def content(replies) -> bytes:
    """Return the data of an object in a reply."""
    found = b""
    for reply in replies:
        for _, part in LAYOUT.attributes(reply, LAYOUT.read_header(reply)):
            found += LAYOUT.read_io(part)[1]
    return found


class Client:
    """Calls a backend as a client does, without a connection."""

    def __init__(self, path: Path) -> None:
        self.dataset = ondisk.open(path)
        self.backend = Backend(self.dataset)

    def write(self, parent, data, offset=0, io_flags=0, **others):
        return status(self.backend.process(write(parent, data, offset, io_flags, **others)))

    def read(self, parent, offset=0, size=0):
        """Return the bytes, or the status of an error."""
        replies = self.backend.process(read(parent, offset, size))
        return status(replies) or content(replies)

    def delete(self, parent):
        return status(self.backend.process(command(parent, Code.DEL)))

    def rows(self, parent):
        return len(list(self.dataset.query(self.dataset.fields.parent == parent, with_data=False)))


@pytest.fixture
def path(tmp_path):
    ondisk.create(tmp_path / "objects", configuration()).close()
    return tmp_path / "objects"


@pytest.fixture
def client(path):
    made = Client(path)
    with made.dataset:
        yield made
