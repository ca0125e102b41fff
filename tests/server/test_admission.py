"""Who is answered, and what ends a request that takes too much."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from ondisk.server.admission import Limits

from .conftest import PATIENCE, Serving, data, read_all

TOKEN = b"0123456789abcdef0123456789abcdef"
REQUEST = b"POST /dataset/filled/query HTTP/1.1\r\nHost: localhost\r\n"


def assert_soon(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_token_is_needed_and_the_right_one(serving, filled):
    client = serving(filled, token=TOKEN).client
    right = TOKEN.decode()
    for path in ("/metrics", "/dataset/filled/config", "/dataset/other/config", "/nothing", "/health/"):
        for given in (
            None,
            "",
            "Bearer",
            f"Bearer {right[:-1]}",
            f"Bearer {right}0",
            f"Basic {right}",
            right,
            "Bearer ä",
        ):
            headers = {} if given is None else {"Authorization": given.encode()}
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, 3)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert right not in answer.text
            assert "ondisk replicate` has --server-token" in answer.json()["error"]["hint"]
    for kind in ("Bearer", "bearer", "BEARER"):
        answer = client.get("/dataset/filled/config", headers={"Authorization": f"{kind} {right}"})
        assert answer.status_code == 200
    assert client.get("/health").json() == {"status": "ok", "unreadable": 0}


def test_without_a_token_only_names_of_this_machine_are_answered(served):
    """Else a page of another site could ask by a name of its own that leads to this address."""
    for host, status in {
        "localhost": 200,
        "LOCALHOST:80": 200,
        "127.0.0.1": 200,
        "127.9.9.9:1": 200,
        "[::1]:8787": 200,
        "example.org": 421,
        "localhost.example.org": 421,
        "127.0.0.1.example.org:8787": 421,
        "": 421,
    }.items():
        assert served.client.get("/health", headers={"Host": host}).status_code == status, host


def test_a_body_is_not_longer_than_allowed(serving, filled):
    limited = serving(filled, limits=Limits(body=100))
    for body in (b"Content-Length: 101\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b" " * 101 + b"\r\n"):
        with limited.connect(REQUEST + body) as connection:
            found = read_all(connection)
        assert found.startswith(b"HTTP/1.1 413 ")
        assert b'"code":5,' in found
    assert limited.client.post("/dataset/filled/query", content=b" " * 98 + b"{}").status_code == 200


def test_a_body_does_not_take_longer_than_allowed(serving, filled):
    with serving(filled, limits=Limits(receiving=0.3)).connect(REQUEST + b"Content-Length: 10\r\n\r\n{") as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_is_gone_before_its_body_is_complete_is_forgotten(serving, filled):
    limited = serving(filled)
    limited.connect(REQUEST + b"Content-Length: 10\r\n\r\n{").close()
    assert_soon(lambda: 'requests_total{endpoint="none",status="499"} 1' in limited.client.get("/metrics").text)


@pytest.fixture
def large(create):
    """Make a dataset with more than what a connection holds."""
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(400, 100_000))
    return dataset


def asked(served: Serving) -> socket.socket:
    """Ask for everything, and read the first bytes only."""
    connection = served.connect(b"POST /dataset/large/query HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(10)
    return connection


def has_snapshot(dataset) -> bool:
    """Return whether somebody reads an older state of the index."""
    dataset.append(data(1))
    with dataset._access.transaction("append") as transaction:
        transaction.commit()
    return not dataset._access.current().index.connections.checkpoint()


@pytest.mark.check
def test_a_client_that_vanishes_releases_its_snapshot(serving, large):
    served = serving(large.path)
    connection = asked(served)
    assert served.sample("ondisk_server_running") == 2  # and the one that asks
    assert has_snapshot(large)
    connection.close()
    assert_soon(lambda: served.sample("ondisk_server_running") == 1)
    assert not has_snapshot(large)


def test_a_client_that_stops_reading_releases_its_snapshot(serving, large):
    served = serving(large.path, limits=Limits(stalled=0.5))
    with asked(served):
        assert_soon(lambda: served.sample("ondisk_server_running") == 1)
        assert not has_snapshot(large)


def test_an_answer_ends_with_its_time(serving, large):
    served = serving(large.path, limits=Limits(duration=0.5))
    with asked(served) as connection:
        assert_soon(lambda: served.sample("ondisk_server_running") == 1)
        assert not read_all(connection).endswith(b"0\r\n\r\n")
    assert not has_snapshot(large)


@pytest.mark.check
def test_a_query_without_results_ends_with_its_time_and_with_its_client(serving, create):
    """SQLite is at work all the time: it is interrupted."""
    dataset = create("many", format="seg", fields={"n": "integer"})
    dataset.append(data(20_000))
    slow = {"match": "metadata.x: a or b; metadata.y: c"}
    limited = serving(dataset.path, limits=Limits(duration=0.2, requests=1))
    answer = limited.client.post("/dataset/many/query", json=slow)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, 40)
    assert "took longer than 0.2 s" in answer.json()["error"]["message"]
    assert_soon(lambda: limited.sample("ondisk_server_running") == 1)
    assert not has_snapshot(dataset)


def test_requests_wait_for_others_but_not_forever(serving, large):
    served = serving(large.path, limits=Limits(requests=1, patience=0.2))
    with asked(served):
        answer = served.client.get("/dataset/large/config")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, 40)
        assert answer.headers["retry-after"] == "1"
    assert_soon(lambda: served.client.get("/dataset/large/config").status_code == 200)
