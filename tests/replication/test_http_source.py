"""A source on a server: what it sends arrives as it is, or not at all, whatever is between; and within bounds."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from replicas import replica_of
from server.conftest import PATIENCE, started

from ondisk import Dataset, Datum
from ondisk.errors import (
    ConfigError,
    DatasetNotFound,
    IntegrityError,
    InvalidInput,
    LockError,
    NeedsCheck,
    NotFound,
    OndiskError,
    StorageError,
    TokenForeign,
)
from ondisk.replication import http_source
from ondisk.replication.feed import Kind
from ondisk.replication.http_source import HttpSource
from ondisk.replication.records import Records
from ondisk.replication.source import Contents, Description, PathSource, Removed, source_of
from ondisk.replication.token import Token
from ondisk.replication.wire import digest, from_json, to_json
from ondisk.server.admission import Limits

from .links import Fault, Link

TOKEN = "0123456789abcdef"
QUICK = {"pause": 0.001, "timeout": 0.3}


@contextmanager
def asking(port: int) -> Iterator[HttpSource]:
    """Return a source with a new connection, that asks only for what it is told to."""
    with HttpSource(url(port), **QUICK) as source:
        source._largest = 1_000_000
        yield source


def datum(n: int, size: int = 20) -> Datum:
    return Datum(datetime(2026, 11, 1 + n % 9, tzinfo=UTC), {"a": n}, {"text": "x" * size})


@pytest.fixture
def dataset(create) -> Dataset:
    dataset = create(fields={"a": "integer"}, unique=["reftime", "a"])
    dataset.append([datum(n) for n in range(20)])
    dataset.delete("a: 3")
    return dataset


@pytest.fixture
def link(dataset) -> Iterator[Link]:
    """Serve the dataset behind a link."""
    with started(dataset.path, limits=Limits(receiving=0.3, grace=0)) as served, Link(served.port) as link:
        yield link


def url(port: int, name: str = "dataset") -> str:
    return f"http://127.0.0.1:{port}/dataset/{name}"


def same(found: Records, expected: Records) -> bool:
    columns = [([*each.seqs], [*each.payloads]) for each in found.groups]
    return (found.token, columns, [*found.deletions], [*found.unreadable], [*found.sessions]) == (
        expected.token,
        [([*each.seqs], [*each.payloads]) for each in expected.groups],
        [*expected.deletions],
        [*expected.unreadable],
        [*expected.sessions],
    )


def test_a_place_is_a_path_or_the_url_of_a_dataset(dataset):
    with source_of(dataset.path) as source:
        assert isinstance(source, PathSource)
    with pytest.raises(DatasetNotFound, match="https:/x"):
        source_of("https:/x")
    with source_of("https://example.org/dataset/weather/") as source:
        assert source.address == ("example.org", 443)
    with source_of("http://user:secret@[::1]:8787/dataset/weather?x#y") as source:
        assert source.address == ("::1", 8787)
        assert "secret" not in source._url
    for wrong in ("http://", "http://example.org", "http://example.org/weather", "http://x:99999999/dataset/y"):
        with pytest.raises(InvalidInput, match="not the URL of a dataset"):
            source_of(wrong)


@pytest.mark.check
def test_a_connection_that_is_cut_anywhere_is_made_again(dataset, link):
    with PathSource(dataset.path) as path, asking(link.port) as source:
        expected = path.changes(None)
        assert same(source.changes(None), expected)
    size = link.answered
    for cut in [*range(0, size, size // 20), size - 1]:
        link.faults = [Fault(cut=cut)]
        before = link.connections
        with asking(link.port) as source:
            assert same(source.changes(None), expected)
        assert link.connections >= before + 2  # more if the machine is busy


@pytest.mark.check
@pytest.mark.parametrize("what", ["flip", "flip_request"])
def test_a_byte_that_changes_on_its_way_is_noticed(dataset, link, what):
    """Answers have checksums, and so have requests: another offset in a request would skip changes."""
    chosen = random.Random(7)
    with PathSource(dataset.path) as path:
        first = path.changes(None, 300)
        expected = {
            "changes": path.changes(first.token),
            "fetch": path.fetch([2, 5, 9]),
            "contents": path.contents(1, 15, listed=True),
            "describe": path.describe(),
        }
    asked: dict[str, Any] = {
        "changes": lambda source: source.changes(first.token),
        "fetch": lambda source: source.fetch([2, 5, 9]),
        "contents": lambda source: source.contents(1, 15, listed=True),
        "describe": lambda source: source.describe(),
    }
    errors = tries = 0
    for name, ask in asked.items():
        with asking(link.port) as source:
            ask(source)
        size = link.answered if what == "flip" else link.requested
        for place in range(chosen.randrange(23), size, 23):
            link.faults = [Fault(**{what: place}, bit=1 << chosen.randrange(7))]
            tries += 1
            with asking(link.port) as source:
                try:
                    found = ask(source)
                except OndiskError:  # such as another status or path
                    errors += 1
                    continue
            if isinstance(found, Records):
                assert same(found, expected[name])
            else:
                assert found == expected[name]
    assert 2 * errors < tries > 30


def test_a_replica_follows_over_a_bad_link(dataset, link, tmp_path):
    """Cut, changed, and slow: after each error, the next pull continues."""
    chosen = random.Random(3)
    for round_ in range(6):
        dataset.append([datum(100 * round_ + n, 500) for n in range(30)])
        dataset.delete(f"a: {100 * round_ + 7}")
        link.faults = [
            chosen.choice(
                [
                    Fault(cut=chosen.randrange(20_000)),
                    Fault(flip=chosen.randrange(20_000), bit=1 << chosen.randrange(8)),
                    Fault(flip_request=chosen.randrange(3_000), bit=1 << chosen.randrange(7)),
                    Fault(pause=0.005),
                ]
            )
            for _ in range(4)
        ]
        for _ in range(10):
            try:
                with HttpSource(url(link.port), **QUICK) as source, replica_of(tmp_path / "copy", source) as replica:
                    replica.pull(max_bytes=4_000)
                break
            except OndiskError:
                pass
        with Dataset.open(tmp_path / "copy", read_only=True) as copy:
            found = [(each.reftime, each.metadata, each.data) for each in copy.query()]
            assert found == [(each.reftime, each.metadata, each.data) for each in dataset.query()]
            assert copy.check().is_clean


def test_a_slow_link_is_waited_for(dataset, link):
    dataset.append([datum(1000 + n, 1000) for n in range(30)])
    link.faults = [Fault(pause=0.05)]
    with PathSource(dataset.path) as path, asking(link.port) as source:
        begin = time.monotonic()
        assert same(source.changes(None), path.changes(None))
        assert time.monotonic() - begin > 1.0  # longer than the time without a byte


def test_nobody_at_the_address_is_an_error_after_some_tries(dataset):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with HttpSource(url(port), **QUICK) as source, pytest.raises(StorageError, match="refused"):
        source.changes(None)


def test_a_token_is_sent_and_a_wrong_one_refused_at_once(dataset):
    with started(dataset.path, token=TOKEN.encode()) as served:
        with HttpSource(url(served.port), TOKEN, **QUICK) as source:
            assert source.describe().name == "dataset"
        for wrong in (None, "fedcba9876543210"):
            with HttpSource(url(served.port), wrong, pause=1) as source, pytest.raises(ConfigError) as caught:
                source.changes(None)
            assert caught.value.exit_code == 3
            assert "--server-token" in caught.value.hint


def test_errors_of_the_server_are_those_of_the_feed(dataset, link):
    with HttpSource(url(link.port), pause=PATIENCE) as source:
        with pytest.raises(TokenForeign):
            source.changes(Token("another"))
        (dataset.path / "needs-check-do-not-pack").touch()
        with pytest.raises(NeedsCheck, match="dataset") as caught:
            source.changes(None)
        assert caught.value.hint.startswith("On the server: ")
    with HttpSource(url(link.port, "other"), pause=PATIENCE) as source, pytest.raises(NotFound, match="other"):
        source.describe()


def test_a_request_that_is_not_valid_is_an_error_after_some_tries(link):
    with HttpSource(url(link.port), **QUICK) as source:
        with pytest.raises(InvalidInput, match="range of numbers"):
            source.contents(5, 1)
        with pytest.raises(InvalidInput):
            source.changes(None, 0)


@contextmanager
def answering(*answers: bytes, pause: float = 0.0) -> Iterator[int]:
    """Answer each connection with bytes, and with the last of them from then on; yield the port.

    Args:
        pause: seconds after each byte.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        left = [*answers]
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    request = connection.recv(65536)
                    if b"/describe " in request and not request.startswith(b"GET /dataset/hostile/describe HTTP/1.1"):
                        continue
                    content = left.pop(0) if len(left) > 1 else left[0]
                    for begin in range(0, len(content), 1 if pause else len(content) or 1):
                        connection.sendall(content[begin : begin + 1] if pause else content)
                        time.sleep(pause)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                except OSError:
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def answer(content: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(content), *headers, b"connection: close", b"", b""]
    return b"\r\n".join(lines) + content


def signed(value: Any) -> bytes:
    content = json.dumps(value).encode()
    return answer(content, b"content-digest: " + digest(content).encode())


def reported(kind: str, message: Any, hint: str, status: bytes) -> bytes:
    content = json.dumps({"error": {"kind": kind, "message": message, "hint": hint}}).encode()
    return answer(content, b"content-digest: " + digest(content).encode(), status=status)


UUID = "5f1c0a11-2222-4333-8444-555555555555"
ABOUT = {"uuid": UUID, "name": "n", "config": 'format = "jsonl"\nstep = "daily"\n', "seq": 1, "session": 1}
HOSTILE = {
    "nothing": b"",
    "no HTTP": b"\x16\x03\x01" * 100,
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200_000,
    "redirect": answer(b"", b"location: file:///etc/passwd", status=b"302 Found"),
    "page": answer(b"<html>" * 1000),
    "no digest": answer(json.dumps(ABOUT).encode()),
    "long": answer(b" " * 20_000_000),
    "promise": b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999\r\n\r\n" + b" " * 1000,
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 200_000,
    "no length": b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(ABOUT).encode(),
    "deep": answer(b"[" * 1_000_000, b"content-digest: " + digest(b"[" * 1_000_000).encode()),
    "gzip": answer(b"\x1f\x8b" + b"\0" * 100, b"content-encoding: gzip"),
    "gzip in gzip": answer(b"\x1f\x8b" + b"\0" * 100, *[b"content-encoding: " + b"gzip," * 12_000] * 20),
    "list": signed([1]),
    "types": signed({**ABOUT, "seq": "1"}),
    "more keys": signed({**ABOUT, "more": 1}),
    "huge number": signed({**ABOUT, "seq": 10**30}),
    "error without an error": answer(b"{}", status=b"500 X"),
    "unknown kind": answer(b'{"error": {"kind": "SystemExit", "message": "x", "hint": ""}}', status=b"404 X"),
    "message that is no text": reported("NotFound", [1], "", b"404 X"),
    "busy": answer(b"", status=b"503 X"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("what", ["describe", "contents", "changes"])
def test_a_hostile_answer_is_an_error_within_bounds(name, what):
    with answering(HOSTILE[name]) as port, HttpSource(url(port, "hostile"), **QUICK) as source:
        source._largest = 1_000_000
        tracemalloc.start()
        asked = {"contents": lambda: source.contents(1, 9), "changes": lambda: source.changes(None)}
        with pytest.raises((StorageError, IntegrityError)):
            asked.get(what, source.describe)()
        assert tracemalloc.get_traced_memory()[1] < 120_000_000
        tracemalloc.stop()


def test_digests_that_an_answer_lacks_are_an_error():
    values = to_json(Contents(UUID, 1, 9, 0, bytes(32), 0))
    del values["digests"]
    damaged = pytest.raises(IntegrityError, match=r"with the keys .*, digests")
    with answering(signed(values)) as port, HttpSource(url(port, "hostile"), **QUICK) as source, damaged:
        source.contents(1, 9)


def test_a_uuid_that_is_none_is_an_error():
    for kind, values in ((Description, ABOUT), (Contents, to_json(Contents(UUID, 1, 9, 0, bytes(32), 0)))):
        with pytest.raises(InvalidInput, match=r"^uuid of .* is '\.\./"):
            from_json(kind, {**values, "uuid": "../" + UUID})


def test_a_proxy_in_the_environment_is_used(monkeypatch):
    asked = "http://archive.example.org/dataset/hostile"
    with answering(reported("NotFound", "asked the proxy", "", b"404 X")) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        with HttpSource(asked, **QUICK) as source, pytest.raises(NotFound, match="asked the proxy"):
            source.contents(1, 9)
        monkeypatch.setenv("no_proxy", "example.org")
        with HttpSource(asked, **QUICK) as source, pytest.raises(StorageError, match=r"archive\.example\.org"):
            source.contents(1, 9)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "all_proxy"])
def test_a_proxy_may_have_a_password_and_no_scheme(monkeypatch, name):
    monkeypatch.setenv(name, "user:pass%20word@127.0.0.1:9")
    with HttpSource("http://archive.example.org/dataset/hostile", **QUICK) as source:
        assert source._client.proxy.url == "http://127.0.0.1:9"
        assert source._client.proxy_headers == {"proxy-authorization": "Basic dXNlcjpwYXNzIHdvcmQ="}
        with pytest.raises(StorageError, match=r"the proxy 127\.0\.0\.1:9: .*refused") as caught:
            source.describe()
    assert "no_proxy" in caught.value.hint
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks5://user:secret@127.0.0.1:1", "http://127.0.0.1:port", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_an_error_that_says_where_it_is(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(InvalidInput, match="the proxy") as caught:
        HttpSource("http://archive.example.org/dataset/hostile")
    assert "http_proxy" in caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1:8787", "[::1]:8787"])
@pytest.mark.parametrize("named", ["127.0.0.1,::1", "127.0.0.1:8787,[::1]:8787"])
def test_a_host_without_a_proxy_is_named_with_or_without_its_port(monkeypatch, host, named):
    monkeypatch.setenv("http_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", named)
    with HttpSource(f"http://{host}/dataset/hostile") as source:
        assert source._client.proxy is None


@pytest.mark.parametrize(
    ("limit", "content"),
    [
        ("LONGEST_HEAD", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        ("LONGEST_HEAD", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000),
        ("LONGEST", answer(b" " * 10_000)),
        ("LONGEST", answer(b"ODR1\x40\0\0\0" + b" " * 10_000)),
    ],
    ids=["no head", "head", "JSON", "records"],
)
@pytest.mark.parametrize("what", ["describe", "changes"])
def test_an_answer_that_comes_byte_by_byte_ends_at_the_limit(monkeypatch, limit, content, what):
    monkeypatch.setattr(http_source, limit, 0.1)
    monkeypatch.setattr(http_source, "_TRIES", 1)
    with answering(content, pause=0.01) as port, HttpSource(url(port, "hostile"), timeout=30) as source:
        source._largest = 1_000_000
        with pytest.raises(StorageError, match=r"longer than 0\.1 seconds"):
            source.changes(None) if what == "changes" else source.describe()


def test_a_connection_that_the_server_closes_is_not_called_an_answer():
    with (
        answering(*[b""] * 9) as port,
        HttpSource(url(port, "hostile"), **QUICK) as source,
        pytest.raises(StorageError, match="closed connection") as caught,
    ):
        source.describe()
    assert "HTTP" not in caught.value.message


def test_what_is_not_http_is_named():
    with (
        answering(*[b"\x01SSH-2.0-OpenSSH\r\n\r\n"] * 9) as port,
        HttpSource(url(port, "hostile"), **QUICK) as source,
        pytest.raises(StorageError, match=r"the answer is not HTTP: it begins with ' SSH-2\.0-OpenSSH"),
    ):
        source.describe()


def test_an_answer_of_json_that_is_cut_is_an_error_of_the_connection():
    with answering(signed(ABOUT)[:-10]) as port, HttpSource(url(port, "hostile"), **QUICK) as source:
        with pytest.raises(StorageError) as caught:
            source.describe()
        assert caught.value.exit_code == 50


def test_records_that_promise_much_take_no_memory():
    hostile = b"ODR1" + b"\xff\xff\xff\xff" + b"x" * 1000
    with answering(answer(hostile)) as port, HttpSource(url(port, "hostile"), **QUICK) as source:
        source._largest = 1_000_000
        tracemalloc.start()
        with pytest.raises(IntegrityError, match="damaged"):
            source.changes(None)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()


def test_a_message_of_a_server_is_shown_without_what_a_terminal_executes():
    hostile = reported("NotFound", "\x1b[2J" + "x" * 9_000, "\r\n\x07", b"404 X")
    with (
        answering(hostile) as port,
        HttpSource(url(port, "hostile"), **QUICK) as source,
        pytest.raises(NotFound) as caught,
    ):
        source.describe()
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 3_000


def test_a_busy_server_is_asked_again(dataset):
    busy = answer(b"", status=b"503 X")
    with answering(busy, busy, signed({**ABOUT})) as port, HttpSource(url(port, "hostile"), **QUICK) as source:
        assert source.describe().uuid == UUID
    with (
        answering(reported("LockError", "busy", "", b"503 X")) as port,
        HttpSource(url(port, "hostile"), **QUICK) as source,
        pytest.raises(LockError, match="busy"),
    ):
        source.describe()


@pytest.mark.parametrize("status", [b"400 X", b"405 X"])
def test_a_request_that_was_changed_on_its_way_is_sent_again(status):
    changed = reported("InvalidInput", "PODT of '/dataset/s': Method Not Allowed", "", status)
    with answering(changed, signed({**ABOUT})) as port, HttpSource(url(port, "hostile"), **QUICK) as source:
        assert source.describe().uuid == UUID


def test_a_token_travels_as_it_is():
    token = Token("uuid", 2**63 - 1, 2**62 - 1, -1, b"\0key")
    assert from_json(Token, json.loads(json.dumps(to_json(token)))) == token
    for change in (
        {"key": "0"},
        {"key": "AB"},
        {"session": -1},
        {"offset": 1.0},
        {"offset": 2**63},
        {"dataset": 5},
        {"x": 1},
    ):
        with pytest.raises(InvalidInput):
            from_json(Token, {**to_json(token), **change})
    good = {"uuid": UUID, "first": 1, "last": 9, "count": 1, "digest": "00", "unreadable": 0,
            "seqs": [3], "reftimes": [0], "digests": ["00" * 16]}  # fmt: skip
    assert [*from_json(Contents, good).seqs] == [3]
    for uuid in ("", "u", UUID.upper(), UUID + "\n", None):
        with pytest.raises(InvalidInput, match="uuid"):
            from_json(Contents, {**good, "uuid": uuid})
    for seqs in ([0], [10], [3, 3], [4, 3], [True], ["3"], None, [1] * 300_000):
        with pytest.raises(InvalidInput, match=r"seqs|outside"):
            from_json(Contents, {**good, "seqs": seqs})


def test_what_is_known_of_removed_data_travels_as_it_is():
    removed = Removed(3, is_partial=True, notes=[(1, 2, Kind.LOST), (3, 4, Kind.AGED)])
    good = json.loads(json.dumps(to_json(removed)))
    assert from_json(Removed, good) == removed
    for note in (None, [1, 2], [0, 2, "lost"], [1, True, "lost"], [1, 2, "appended"], [1, 2, []]):
        with pytest.raises(InvalidInput, match="notes of removed data is"):
            from_json(Removed, {**good, "notes": [note]})
