"""URLs return what commands print, complete or with an error, and say by ETag what has not changed."""

from __future__ import annotations

import io
from random import Random

import httpx
import pytest
from formats.grib.build import grib1

import ondisk
from ondisk.cli import main
from ondisk.errors import EXIT_DONE
from ondisk.tables import arrow_output

from .conftest import BEGIN, data
from .test_admission import assert_soon, has_snapshot


@pytest.fixture
def mixed(create):
    """Make a dataset whose texts need quotes, of several segments."""
    dataset = create("mixed Ä", fields={"n": "integer", "place": "text"})
    texts = ['"a", b', "ü\nv", "", "=1+1", "c"]
    with dataset:
        dataset.append(
            ondisk.Datum(
                each.reftime, {"n": number, "place": texts[number % 5]}, {"x": number / 4, "s": texts[number % 3]}
            )
            for number, each in enumerate(data(2000))
        )
    return dataset.path


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, ["--json"]),
        ({"match": "n: >100; place: c", "sort": "-n", "limit": "7", "fields": "n"},
         ["n: >100; place: c", "--sort=-n", "--limit=7", "--fields=n", "--json"]),
        ({"match": "", "limit": "", "format": "csv"}, ["--csv"]),
        ({"format": "csv", "columns": "place,data.s,reftime,n", "match": "reftime: =2026-11-21"},
         ["reftime: =2026-11-21", "--csv", "--columns=place,data.s,reftime,n"]),
        ({"format": "csv", "match": "n: 5000"}, ["n: 5000", "--csv"]),
        ({"format": "data", "sort": "day:place"}, ["--sort=day:place", "--data"]),
        ({"format": "parquet", "match": "n: <50"}, ["n: <50", "--parquet"]),
        ({"format": "parquet", "columns": "n,data.x=real", "match": "n: 4 or 8"},
         ["n: 4 or 8", "--columns=n,data.x=real", "--parquet"]),
    ],
)  # fmt: skip
def test_a_url_returns_what_the_command_prints(serving, mixed, tmp_path, capfdbinary, asked, options):
    answer = serving(mixed).client.get("/dataset/mixed Ä/query", params=asked)
    file = tmp_path / "file"
    options = [*options, str(file)] if options[-1] == "--parquet" else options
    assert main(["query", str(mixed), *options]) == EXIT_DONE
    printed = capfdbinary.readouterr().out
    assert answer.status_code == 200
    assert answer.content == (file.read_bytes() if file.exists() else printed)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("attachment; filename*=utf-8''mixed%20%C3%84.")


@pytest.mark.check
@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"match": "n: <9", "fields": "n", "values": "3"}, None),
        ({"by": "day,n", "match": "n: <9"}, ["n: <9", "--by=day,n"]),
        (
            {"by": "month", "tz": "Europe/Rome", "min_max": "data.x"},
            ["--by=month", "--tz=Europe/Rome", "--min-max=data.x"],
        ),
    ],
)
def test_a_summary_by_a_url_is_that_of_the_command(serving, mixed, capfdbinary, asked, options):
    client = serving(mixed).client
    answer = client.get("/dataset/mixed Ä/summary", params=asked)
    body = {"match": "n: <9", "fields": ["n"], "values": 3} if options is None else asked
    assert answer.content == client.post("/dataset/mixed Ä/summary", json=body).content
    if options is not None:
        assert main(["summary", str(mixed), *options, "--json"]) == EXIT_DONE
        assert answer.content == capfdbinary.readouterr().out


@pytest.mark.check
def test_a_body_names_columns_in_a_list_or_with_their_types(served):
    for format, columns, text in (("csv", ["n"], "n"), ("parquet", {"n": None, "data.x": "text"}, "n,data.x=text")):
        posted = served.client.post("/dataset/filled/query", json={"format": format, "columns": columns})
        got = served.client.get("/dataset/filled/query", params={"format": format, "columns": text})
        assert (posted.status_code, posted.content) == (200, got.content)


@pytest.mark.filterwarnings("ignore::ondisk.errors.DataOffline")
def test_a_tag_stays_until_an_answer_may_differ(serving, create):
    dataset = create("weather", step="daily", fields={"n": "integer"}, archive_age=1)
    dataset.append(data(3000))
    client = serving(dataset.path).client

    def tag(match="", path="query"):
        answer = client.head(f"/dataset/weather/{path}", params={"match": match})
        assert (answer.status_code, answer.content) == (200, b"")
        return answer.headers["etag"]

    seen = [tag()]
    for path in ("query", "query?format=csv", "summary", "summary?by=day"):
        known = client.get(f"/dataset/weather/{path}", headers={"If-None-Match": f'"x", {seen[0]}'})
        assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", seen[0])
    changes = (
        lambda: dataset.append([ondisk.Datum(BEGIN, {"n": -1}, {})]),
        lambda: dataset.delete("n: 5"),
        dataset.repack,
        lambda: dataset.rename_archive("last", "old"),
        lambda: dataset.unarchive(".archive/old/2026/11-20.jsonl"),
    )
    for change in changes:
        assert tag() == seen[-1]
        change()
        seen.append(tag())
    assert len({*seen}) == len(seen)
    assert client.get("/dataset/weather/query", headers={"If-None-Match": seen[0]}).status_code == 200
    assert tag("reftime: <=today") != tag("reftime: <=now") != tag("n: 1")
    dataset.set_offline("old")
    partial = client.get("/dataset/weather/query", headers={"If-None-Match": "*"})
    assert (partial.status_code, "etag" in partial.headers, "ondisk-warning" in partial.headers) == (
        200,
        False,
        True,
    ), partial.text


@pytest.mark.check
def test_head_answers_as_get_and_sends_nothing(served):
    for path in (
        "query?format=csv",
        "query?format=parquet",
        "query?match=n:-1",
        "summary",
        "query?match=x:5",
        "config",
    ):
        head, get = (served.client.request(method, f"/dataset/filled/{path}") for method in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (get.status_code, b"")
        lengths = {"content-length", "transfer-encoding", "date"}
        assert {*head.headers.items()} - {*get.headers.items()} <= {
            (name, value) for name, value in head.headers.items() if name in lengths
        }
    assert served.client.head("/dataset/filled/query").headers["accept-ranges"] == "none"


def noise(count, size):
    """Return data that Parquet cannot make smaller."""
    values = Random(1)
    return [ondisk.Datum(each.reftime, each.metadata, {"x": values.randbytes(size // 2).hex()}) for each in data(count)]


@pytest.mark.check
@pytest.mark.parametrize("asked", ["format=csv&columns=n,data.x", "format=data", "format=parquet&columns=data.x=text"])
def test_an_answer_that_is_cut_is_an_error_for_its_client(serving, create, monkeypatch, asked):
    for name in ("ROWS", "_GROUP_ROWS"):
        monkeypatch.setattr(arrow_output, name, 500)
    dataset = create("damaged", fields={"n": "integer"})
    dataset.append(noise(3000, 3000))
    (dataset.path / "2026" / "11-21.jsonl").unlink()
    dataset.close()
    served = serving(dataset.path)
    path = f"/dataset/damaged/query?{asked}"
    with served.client.stream("GET", path) as begun:
        assert begun.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            begun.read()
    connection = served.connect(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    with connection, pytest.raises(ConnectionResetError):
        [*iter(lambda: connection.recv(65536), b"")]


@pytest.mark.check
def test_a_client_that_vanishes_ends_the_work_on_its_table(serving, create, monkeypatch):
    for name in ("ROWS", "_GROUP_ROWS"):
        monkeypatch.setattr(arrow_output, name, 10)
    dataset = create("large", fields={"n": "integer"})
    dataset.append(noise(400, 100_000))
    served = serving(dataset.path)
    connection = served.connect(b"GET /dataset/large/query?format=parquet HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(10)
    assert has_snapshot(dataset)
    connection.close()
    assert_soon(lambda: served.sample("ondisk_server_running") == 1)
    assert not has_snapshot(dataset)


@pytest.mark.check
def test_a_url_uses_the_aliases_and_durations_of_a_dataset(serving, create):
    fields = {"level": "item", "step": "integer"}
    dataset = create("model", format="grib", aliases="names.conf", fields=fields)
    names = dataset.path / "names.conf"
    names.write_text("[level]\nground = GRIB1,105,2\n")
    with dataset:
        messages = [grib1(p1=hours, level=level) for hours in (3, 6) for level in ((105, 0, 2), (100, 3, 232))]
        dataset.append_file(io.BytesIO(b"".join(messages)))
    client = serving(dataset.path).client
    asked = {"match": "level: ground; step: 6h"}
    first = client.get("/dataset/model/query", params=asked)
    assert (first.status_code, len(first.text.splitlines())) == (200, 1)
    points = client.get("/dataset/model/points", params={**asked, "y": "step"}, headers={"accept": "text/html"})
    assert points.json()["count"] == 1
    names.write_text("[level]\nground = GRIB1\n")
    second = client.get("/dataset/model/query", params=asked, headers={"if-none-match": first.headers["etag"]})
    assert (second.status_code, len(second.text.splitlines())) == (200, 2)
