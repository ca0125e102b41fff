"""Hostile clients of `ondisk serve`: they are refused, or end within limits, and others are answered meanwhile."""

from __future__ import annotations

import contextlib
import json
import resource
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from server.conftest import PATIENCE, Serving, data, read_all, started

import ondisk
from ondisk.server.admission import Limits

pytestmark = pytest.mark.usefixtures("limited_memory")
SECRET = "the content of a file outside"


@pytest.fixture(scope="module")
def limited_memory():
    """Let this process take 2 GiB more than it has, so that a leak shows."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * 1024**3, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve a dataset with a neighbour that is not served, and with an archive."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("weather", "secret"):
        with ondisk.create(folder / name, {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}) as dataset:
            dataset.append(data(20))
            dataset.archive("2026/11-20.jsonl")
            dataset.append([ondisk.Datum(each.reftime.replace(day=25), each.metadata, {}) for each in data(20)])
    (folder / "passwd").write_text(SECRET)
    (folder / "weather/2026/passwd.jsonl").write_text(SECRET)
    with started(folder / "weather", limits=Limits(receiving=5, idle=5)) as served:
        yield served


NAMES = [
    "..",
    ".",
    "../secret",
    "..%2fsecret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "weather/../secret",
    "weather%00",
    "weather%2f",
    "%00",
    "secret",
    "/weather",
    "weather\\..\\secret",
    "%c0%ae%c0%ae",
    "%ff%fe",
    "weather;x",
    "WEATHER",
    "a" * 10_000,
    "%2e" * 4_000,
]


@pytest.mark.parametrize("name", NAMES, ids=[name[:20] for name in NAMES])
@pytest.mark.parametrize("rest", ["config", "summary", "data/2026/11-25.jsonl"])
def test_no_name_leads_to_another_dataset(served, name, rest):
    found = raw(served, f"/dataset/{name}/{rest}")
    assert found.split(b" ", 2)[1] == b"404", found[:200]


SEGMENTS = [
    "../../passwd",
    "..%2f..%2fpasswd",
    "%2e%2e/%2e%2e/passwd",
    "2026/../../passwd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "2026/passwd.jsonl",
    "dataset.toml",
    "index.sqlite",
    ".tide",
    ".lock",
    ".archive/last/index.sqlite",
    ".archive/../index.sqlite",
    ".archive/last/../../index.sqlite",
    ".archive/last/2026/../../../dataset.toml",
    ".archive/none/2026/11-20.jsonl",
    "2026/.11-25.jsonl.1",
    "2026/11-25.jsonl/",
    "2026/11-25.jsonl%00",
    "2026//11-25.jsonl",
    "./2026/11-25.jsonl",
    "%ff",
    "",
    "x" * 12_000,
]


@pytest.mark.parametrize("segment", SEGMENTS, ids=[segment[:40] for segment in SEGMENTS])
@pytest.mark.parametrize("query", ["", "?offset=0&size=5"])
def test_no_segment_leads_to_another_file(served, segment, query):
    found = raw(served, f"/dataset/weather/data/{segment}{query}")
    assert found.split(b" ", 2)[1] == b"404", found[:200]
    assert SECRET.encode() not in found


def test_segments_of_archives_have_their_names(served):
    answer = served.client.get("/dataset/weather/data/.archive/last/2026/11-20.jsonl")
    assert (answer.status_code, answer.content.count(b"\n")) == (200, 20)


def raw(served: Serving, path: str) -> bytes:
    """Ask for a path as it is: clients normalise it."""
    with served.connect(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()) as connection:
        return read_all(connection)


MATCHES = {
    "long": "n: " + " or ".join(map(str, range(20_000))),
    "longest": "n: " + "1" * 200_000,
    "groups": ";".join(["n: 1"] * 20_000),
    "semicolons": ";" * 99_000,
    "quotes": 'n: "' + '""' * 49_000,
    "open quote": 'n: "' + "a" * 90_000,
    "ors": "n: " + "or " * 30_000,
    "blanks": "n:" + " " * 99_000 + "1",
    "colons": ":" * 99_000,
    "digits": "n: " + "9" * 99_000,
    "letters": "a" * 99_000 + ": 1",
    "commas": "n: " + "," * 99_000,
    "names": "n: " + ", a" * 30_000,
    "time": "reftime: " + ">=" * 40_000,
    "times": "reftime: " + ", ".join([">=2026"] * 9_000),
    "metadata": "; ".join(f"metadata.x{n}: a" for n in range(5_000)),
    "NUL": "n: 1\0",
    "surrogate": "n: \ud800",
    "SQL": "n: 1; DROP TABLE datum",
    "SQL quote": "n: 1' OR '1'='1",
}


@pytest.mark.parametrize("name", MATCHES)
@pytest.mark.parametrize("endpoint", ["query", "summary"])
def test_a_match_expression_ends_soon_whatever_it_is(served, endpoint, name):
    """A lone surrogate is sent as JSON writes it."""
    before = time.process_time()
    answer = served.client.post(f"/dataset/weather/{endpoint}", content=json.dumps({"match": MATCHES[name]}).encode())
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["code"] in (2, 4)
        assert len(answer.content) < 10_000
    assert time.process_time() - before < 20
    assert served.client.get("/dataset/weather/summary").json()["count"] == 40


BODIES = [
    b"[" * 500_000,
    b'{"match":' * 100_000,
    b'{"limit": ' + b"9" * 100_000 + b"}",
    b'{"limit": 1e999}',
    b'{"limit": NaN}',
    b'{"fields": [' + b'"n",' * 100_000 + b'"n"]}',
    b'{"fields": ["' + b"x" * 100_000 + b'"]}',
    b'{"sort": "' + b"n," * 100_000 + b'n"}',
    b'{"sort": "' + b"day:" * 100_000 + b'n"}',
    b'{"match": "\xff"}',
    b"\xef\xbb\xbf{}",
    b"\0" * 1000,
    b'{"' + b"k" * 500_000 + b'": 1}',
    b"{" + b",".join(b'"k%d": 1' % n for n in range(50_000)) + b"}",
]


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_a_body_is_answered_or_refused_soon(served, number):
    for endpoint in ("query", "summary"):
        before = time.process_time()
        answer = served.client.post(f"/dataset/weather/{endpoint}", content=BODIES[number])
        assert answer.status_code in (200, 400), answer.text[:200]
        assert len(answer.content) < 10_000
        assert time.process_time() - before < 20


def test_a_huge_body_is_refused_before_it_is_read(served):
    head = b"POST /dataset/weather/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\n"
    with served.connect(head) as connection:
        assert b" 413 " in read_all(connection)[:20]

    def endless():
        while True:
            yield b" " * 65536

    # It is closed while the client sends.
    with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
        assert served.client.post("/dataset/weather/query", content=endless()).status_code == 413


def test_many_slow_clients_do_not_keep_others_out(served):
    """As slow loris does: each opens connections and sends a byte now and then."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
    slow = [served.connect(head) for _ in range(100)]
    slow += [served.connect(b"POST /dataset/weather/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")]
    assert served.client.get("/dataset/weather/summary").status_code == 200
    end = time.monotonic() + PATIENCE
    while served.sample("ondisk_server_connections") > 1:
        assert time.monotonic() < end
        time.sleep(0.2)
    for connection in slow:
        connection.close()


def test_hostile_headers_are_ignored_or_refused(served):
    path = "/dataset/weather/data/2026/11-25.jsonl"
    whole = served.client.get(path).content
    for headers in (
        {"Range": "bytes=" + "0-0," * 3_000},
        {"Range": "bytes=" + "9" * 10_000 + "-"},
        {"If-None-Match": '"' * 10_000},
        {"If-None-Match": 'W/"' * 4_000},
        {"Accept-Encoding": "gzip"},
        {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https", "Forwarded": "for=1.2.3.4"},
        {"Expect": "x"},
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings"},
    ):
        answer = served.client.get(path, headers=headers)
        assert (answer.status_code, answer.content) == (200, whole), headers


def test_a_name_is_not_executed_by_a_terminal_that_shows_a_message(served):
    answer = served.client.get(f"/dataset/{quote(chr(27) + '[2J')}/config")
    assert answer.status_code == 404
    assert b"\x1b" not in answer.content
