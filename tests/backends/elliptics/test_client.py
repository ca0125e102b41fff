"""The client, with a server over loopback."""

from __future__ import annotations

import os
import socket
import threading
from hashlib import sha512

import pytest

from ondisk.backends.elliptics import Client, Limits
from ondisk.backends.elliptics import client as client_module
from ondisk.backends.elliptics.packets import IO, MORE, REPLY, Code, Header, Layout
from ondisk.errors import InvalidInput, NotFound, StorageError

from .test_server import Running


@pytest.fixture
def running(path):
    with Running(path, backend_limits=Limits(reply=1_000_000)) as running:
        yield running


@pytest.fixture
def client(running):
    with Client("127.0.0.1", running.server.port) as client:
        yield client


def test_what_is_put_is_returned(client):
    client.put("text", b"0123456789")
    assert client.get("text") == b"0123456789"
    assert client.get("text", 3) == b"3456789"
    assert client.get("text", 3, 4) == b"3456"
    assert client.get("text", 9, 5) == b"9"
    assert client.get("text", 10) == client.get("text", 300, 5) == b""
    client.put("text", b"xx", 2)
    client.put("text", b"end", append=True)
    assert client.get("text") == b"01xx456789end"
    assert client.get(sha512(b"text").digest()) == b"01xx456789end"


def test_an_object_may_be_empty_or_long(client):
    client.put("empty", b"")
    assert client.get("empty") == b""
    data = os.urandom(9_000_000)
    client.put("long", data)
    assert client.get("long") == data
    assert client.get("long", 100, 8_500_000) == data[100:8_500_100]
    client.put("long", data, append=True)
    assert client.get("long") == data + data


def test_an_object_without_end_is_read_in_parts_only(client, monkeypatch):
    monkeypatch.setattr(client_module, "_MOST", 5 * 1024 * 1024)
    client.put("sparse", b"x", 2**63 - 2)
    with pytest.raises(InvalidInput, match="more than 5,242,880 bytes") as caught:
        client.get("sparse")
    assert "pass offset and size" in caught.value.hint
    assert client.get("sparse", 2**63 - 10, 9) == bytes(8) + b"x"


def test_the_longest_object_that_is_read_whole_has_exactly_the_limit(client, monkeypatch):
    monkeypatch.setattr(client_module, "_MOST", 8 * 1024 * 1024)
    client.put("long", b"x", 8 * 1024 * 1024 - 1)
    assert len(client.get("long")) == 8 * 1024 * 1024
    client.put("long", b"x", append=True)
    with pytest.raises(InvalidInput, match="more than 8,388,608 bytes"):
        client.get("long")


def test_errors_are_raised_and_the_connection_stays(client):
    with pytest.raises(NotFound, match="No such file"):
        client.get("nothing")
    client.put("text", b"abc")
    client.delete("text")
    with pytest.raises(NotFound):
        client.delete("text")
    for offset, size in ((2**63, 1), (-1, 4), (0, -4), (1.5, 2)):
        with pytest.raises(InvalidInput, match="an object has no bytes at offset"):
            client.get("text", offset, size)
    with pytest.raises(InvalidInput, match="an object has no bytes at offset"):
        client.put("text", b"abc", 2**63)
    with pytest.raises(InvalidInput, match="are bytes, not str"):
        client.put("text", "abc")
    with pytest.raises(InvalidInput, match="an id has 64 bytes, not 3"):
        client.get(b"abc")
    client.put("text", b"abc")
    assert client.get("text") == b"abc"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Header(bytes(64), 0, 0, 0, 0, 5, 0), StorageError),
        (Header(bytes(64), 0, 0, 0, 0, 5, 2**50), ConnectionError),
        (None, ConnectionError),
        (Header(bytes(64), 0, 0, 0, -(2**31), 1 | REPLY, 0), ConnectionError),  # no error of Linux
        (Header(bytes(64), 0, 0, 0, 5, 1 | REPLY, 0), ConnectionError),
        (Header(bytes(64), 0, 0, 0, 0, 1 | REPLY, 5), ConnectionError),  # no attribute
    ],
)
def test_a_server_that_speaks_nonsense_is_an_error(answer, error):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as connection:
                connection.recv(1000)
                if answer is not None:
                    connection.sendall(Layout().header.pack(*answer) + bytes(answer.size if answer.size < 10 else 0))

        thread = threading.Thread(target=serve)
        thread.start()
        with Client("127.0.0.1", server.getsockname()[1]) as client, pytest.raises(error):
            client.get("text")
        thread.join()


def test_a_server_cannot_send_more_than_was_asked_for():
    layout = Layout()
    io = layout.io_of(Code.READ, IO(bytes(64), bytes(64), 0, 0, 11), 11) + bytes(11)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(layout.packet(Header(bytes(64), 0, 0, MORE, 0, 1 | REPLY, 0), io))
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        address = server.getsockname()
        with Client(*address, timeout=5) as client, pytest.raises(ConnectionError, match="not a reply"):
            client.get("text", 0, 10)
        thread.join()
