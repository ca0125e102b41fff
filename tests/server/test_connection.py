"""Connections that send nothing, too much, or no HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time

import pytest

from ondisk.server.admission import Limits

from .conftest import PATIENCE, data, read_all

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def test_a_head_that_comes_byte_by_byte_ends_with_its_time(serving, filled):
    served = serving(filled, limits=Limits(idle=0.5))
    with served.connect() as slow, served.connect() as silent:
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(ConnectionError):
            while True:
                slow.sendall(b"x")
                assert time.monotonic() < end
                time.sleep(0.05)
        assert read_all(silent) == b""


def test_a_connection_may_be_used_again_but_not_kept_for_nothing(serving, filled):
    with serving(filled, limits=Limits(idle=0.5)).connect(HEAD + b"\r\n" + HEAD + b"\r\n") as connection:
        assert read_all(connection).count(b"HTTP/1.1 200 OK") == 2


def test_too_many_connections_are_closed_at_once(serving, filled):
    served = serving(filled, limits=Limits(connections=2))
    with served.connect(HEAD) as first, served.connect(HEAD) as second:
        with served.connect(HEAD + b"\r\n") as third:
            assert read_all(third) == b""
        for connection in (first, second):
            connection.sendall(b"\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.each
@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50 + b"\r\n\r\n",  # TLS
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTQ/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HEAD + b"\r\n",
        HEAD + b"transfer-encoding: Chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
        HEAD + b"X: " + b"a" * 20_000,
        HEAD + b"X: 1\r\n" * 5_000,
        b"GET /" + b"a" * 20_000,
    ],
)
def test_what_is_no_request_is_refused(serving, served, content):
    with served.connect(content) as connection:
        found = read_all(connection)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), found
    assert found.count(b"HTTP/1.1 ") == 1
    assert json.loads(body)["error"]["code"] == 2


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first", "second"])
def test_a_head_is_not_longer_than_allowed(serving, filled, before):
    """Also one that arrives in one piece, or together with another request."""
    served = serving(filled, limits=Limits(head=1000, idle=0.5))
    for size, status in ((1000, b"200"), (1001, b"400"), (5_000, b"400")):
        head = HEAD + b"X: " + b"a" * (size - len(HEAD) - 7) + b"\r\n\r\n"
        with served.connect(before + head) as connection:
            found = re.findall(rb"^HTTP/1.1 (\d+)", read_all(connection), re.MULTILINE)
        assert found == [b"200"] * bool(before) + [status], size


def test_a_client_that_ends_a_download_is_no_error(serving, create, caplog):
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(100, 100_000))
    served = serving(dataset.path)
    (name,) = {datum.location.segment for datum in dataset.query()}
    head = f"GET /dataset/large/data/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for linger in (0, 1):
        with served.connect(head) as connection:
            connection.recv(1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", linger, 0))
        end = time.monotonic() + PATIENCE
        while served.sample("ondisk_server_running") > 1 or served.sample("ondisk_server_connections") > 1:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.check
def test_a_client_that_takes_nothing_of_a_file_is_disconnected(serving, create):
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(400, 100_000))
    served = serving(dataset.path, limits=Limits(stalled=0.5))
    (name,) = {datum.location.segment for datum in dataset.query()}
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.connect(("127.0.0.1", served.port))
        connection.settimeout(PATIENCE)
        connection.sendall(f"GET /dataset/large/data/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        end = time.monotonic() + PATIENCE
        while served.sample("ondisk_server_running") != 1 or served.sample("ondisk_server_connections") != 1:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert len(read_all(connection)) < 40_000_000
