"""The endpoints return what the library and the commands return."""

from __future__ import annotations

import io
import json

import pytest

import ondisk
from ondisk.cli import main
from ondisk.errors import EXIT_DONE

from .conftest import BEGIN, data


def printed(capfdbinary, *arguments: object) -> bytes:
    """Return what a command prints."""
    assert main([str(each) for each in arguments]) == EXIT_DONE
    return capfdbinary.readouterr().out


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, []),
        ({"match": "n: 5 or 7"}, ["n: 5 or 7"]),
        (
            {"match": "reftime: >=2026-11-21", "sort": "-n", "limit": 3},
            ["reftime: >=2026-11-21", "--sort=-n", "--limit=3"],
        ),
        ({"match": "n: <3", "fields": []}, ["n: <3", "--fields="]),
        ({"match": None, "limit": 1, "fields": ["n"], "style": "json"}, ["--limit=1", "--fields=n"]),
        ({"match": "n: 99999"}, ["n: 99999"]),
    ],
)
def test_a_query_returns_what_the_command_prints(served, filled, capfdbinary, asked, options):
    answer = served.client.post("/dataset/filled/query", json=asked)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.content == printed(capfdbinary, "query", filled, *options, "--json")


def test_stored_bytes_can_be_appended_again(served, filled, create):
    answer = served.client.post("/dataset/filled/query", json={"match": "n: <1500", "style": "data"})
    assert answer.headers["content-type"] == "application/octet-stream"
    again = create("again", fields={"n": "integer"})
    assert again.append_file(io.BytesIO(answer.content), "jsonl").imported == 1500


def test_an_empty_body_asks_for_everything(served):
    assert served.client.post("/dataset/filled/query").content.count(b"\n") == 2000
    assert served.client.post("/dataset/filled/summary").json() == served.client.get("/dataset/filled/summary").json()


def test_a_summary_is_what_the_command_prints(served, filled, capfdbinary):
    everything = served.client.get("/dataset/filled/summary")
    assert everything.json() == json.loads(printed(capfdbinary, "summary", filled, "--json"))
    some = served.client.post("/dataset/filled/summary", json={"match": "n: <5", "fields": ["n"], "values": None})
    assert some.json() == json.loads(printed(capfdbinary, "summary", filled, "n: <5", "--all-values", "--json"))


def test_the_configuration_makes_an_equal_dataset(served, filled, tmp_path):
    found = served.client.get("/dataset/filled/config").json()
    with ondisk.open(filled, read_only=True) as dataset, ondisk.create(tmp_path / "equal", found) as equal:
        assert equal.config == dataset.config


def test_several_datasets_are_found_by_the_names_of_their_folders(serving, create):
    datasets = [create(name) for name in ("first", "with blank", "ä+%")]
    served = serving(*(dataset.path for dataset in datasets))
    assert served.client.get("/dataset/first/summary").status_code == 200
    assert served.client.get("/dataset/with%20blank/summary").status_code == 200
    assert served.client.get("/dataset/%C3%A4+%25/summary").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/", b"", 404, 10),
        ("GET", "/dataset/filled", b"", 404, 10),
        ("GET", "/dataset/filled/summary/", b"", 404, 10),
        ("GET", "/dataset/other/summary", b"", 404, 10),
        ("PUT", "/dataset/filled/query", b"", 405, 2),
        ("GET", "/dataset/filled/query?mach=n:5", b"", 400, 2),
        ("GET", "/dataset/filled/query?limit=-1", b"", 400, 2),
        ("GET", "/dataset/filled/query?limit=1&limit=2", b"", 400, 2),
        ("GET", "/dataset/filled/query?format=xml", b"", 400, 2),
        ("GET", "/dataset/filled/query?columns=n", b"", 400, 2),
        ("GET", "/dataset/filled/query?format=csv&columns=m", b"", 400, 2),
        ("GET", "/dataset/filled/query?format=csv&columns=n=text", b"", 400, 2),
        ("GET", "/dataset/filled/query?format=csv&columns=n,n", b"", 400, 2),
        ("GET", "/dataset/filled/query?format=parquet&columns=n=word", b"", 400, 2),
        ("GET", "/dataset/filled/query?format=csv&fields=n", b"", 400, 2),
        ("GET", "/dataset/filled/query?match=x:5", b"", 400, 4),
        ("GET", "/dataset/filled/summary?tz=UTC", b"", 400, 2),
        ("GET", "/dataset/filled/summary?by=day&values=5", b"", 400, 2),
        ("GET", "/dataset/filled/summary?by=week", b"", 400, 4),
        ("DELETE", "/dataset/filled/summary", b"", 405, 2),
        ("POST", "/dataset/filled/query", b"{", 400, 2),
        ("POST", "/dataset/filled/query", b"[]", 400, 2),
        ("POST", "/dataset/filled/query", b'{"mach": "n: 5"}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"match": 5}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"limit": -1}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"limit": true}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"fields": "n"}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"style": "xml"}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"style": "data", "fields": []}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"style": "data", "format": "data"}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"format": "csv", "columns": 5}', 400, 2),
        ("POST", "/dataset/filled/query", b'{"match": "x: 5"}', 400, 4),
        ("POST", "/dataset/filled/query", b'{"sort": "x"}', 400, 4),
        ("POST", "/dataset/filled/query", b'{"fields": ["x"]}', 400, 4),
        ("POST", "/dataset/filled/summary", b'{"fields": ["x"]}', 400, 4),
        ("POST", "/dataset/filled/summary", b'{"values": 1.5}', 400, 2),
        ("POST", "/dataset/filled/contents", b'{"first": 1}', 400, 2),
        ("POST", "/dataset/filled/contents", b'{"first": 0, "last": 5}', 400, 2),
        ("POST", "/dataset/filled/contents", b'{"first": 1, "last": 5, "listed": 1}', 400, 2),
        ("POST", "/dataset/filled/fetch", b"", 400, 2),
        ("POST", "/dataset/filled/removed", b'{"seqs": [2, 1]}', 400, 2),
        ("POST", "/dataset/filled/changes", b'{"token": {}}', 400, 2),
        ("POST", "/dataset/filled/changes", b'{"max_bytes": null}', 400, 2),
        ("GET", "/dataset/filled/data/2026/11-25.jsonl", b"", 404, 13),
        ("GET", "/dataset/filled/data/2026/11-20.jsonl?offset=1&size=1", b"", 404, 12),
        ("GET", "/dataset/filled/data/2026/11-20.jsonl?offset=1", b"", 400, 2),
        ("GET", "/dataset/filled/data/2026/11-20.jsonl?offset=x&size=1", b"", 400, 2),
    ],
)
def test_an_error_says_what_is_wrong(served, method, path, body, status, code):
    answer = served.client.request(method, path, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"].keys() == {"code", "kind", "message", "hint"}
    assert answer.json()["error"]["message"]


def test_a_query_reads_one_snapshot_whatever_is_deleted_and_repacked_meanwhile(serving, create):
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(20_000, 500))
    served = serving(dataset.path)
    with served.client.stream("POST", "/dataset/large/query", json={"style": "data"}) as answer:
        pieces = answer.iter_raw()
        found = [next(pieces)]
        assert dataset.delete("") == 20_000
        dataset.append([ondisk.Datum(BEGIN, {"n": -1}, {})])
        dataset.repack()
        found += pieces
    assert b"".join(found).count(b"\n") == 20_000
    assert b'"n":-1' not in b"".join(found)


def test_an_answer_that_cannot_be_continued_is_cut_and_says_why(serving, create):
    dataset = create("damaged", fields={"n": "integer"})
    dataset.append(data(3000, 500))
    (dataset.path / "2026" / "11-21.jsonl").unlink()
    dataset.close()
    served = serving(dataset.path)
    with served.connect(
        b"POST /dataset/damaged/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    ) as connection:
        found = b""
        while piece := connection.recv(65536):
            found += piece
    assert found.startswith(b"HTTP/1.1 200")
    assert not found.endswith(b"0\r\n\r\n")
    last = found.rstrip().rpartition(b"\n")[2]
    assert json.loads(last)["error"]["code"] == 13


def test_an_answer_that_skips_damage_lists_it_in_its_last_line(serving, create):
    dataset = create("damaged", fields={"n": "integer"})
    dataset.append(data(3000, 500))
    (dataset.path / "2026" / "11-21.jsonl").unlink()
    dataset.close()
    client = serving(dataset.path).client
    *lines, last = client.post("/dataset/damaged/query", json={"damaged": "skip"}).text.splitlines()
    skipped = json.loads(last)["skipped"]
    assert (len(lines) + skipped["count"], len(skipped["listed"])) == (3000, 100)
    assert skipped["listed"][0]["location"]["segment"] == "2026/11-21.jsonl"
    refused = client.post("/dataset/damaged/query", json={"damaged": "skip", "style": "data"})
    assert (refused.status_code, refused.json()["error"]["kind"]) == (400, "InvalidInput")
    assert client.post("/dataset/damaged/query", json={"damaged": "no"}).status_code == 400


def test_an_error_before_the_first_datum_has_its_own_status(serving, create):
    dataset = create("damaged", fields={"n": "integer"})
    dataset.append(data(10))
    path = dataset.path / "2026" / "11-20.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    dataset.close()
    answer = serving(dataset.path).client.post("/dataset/damaged/query")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "SegmentCorrupt")
    assert "ondisk fix" in answer.json()["error"]["hint"]
