"""Stored bytes: the whole of a segment, one datum, or a range, whatever happens to the segment meanwhile."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ondisk
from ondisk.datum import Location

from .conftest import BEGIN, data

KINDS: list[dict[str, Any]] = [
    {"format": "jsonl"},
    {"format": "seg"},
    {"format": "seg", "compression": "none"},
    {"format": "seg", "version": 0, "compression": "none"},
    {"format": "blob", "extension": "bin"},
]


def of_kind(create: Callable[..., ondisk.Dataset], kind: dict[str, Any], count: int) -> ondisk.Dataset:
    dataset = create("it", fields={"n": "integer"}, **kind)
    found = data(count, 100)
    if kind["format"] == "blob":
        found = [ondisk.Datum(each.reftime, each.metadata, repr(each.data).encode()) for each in found]
    dataset.append(found)
    return dataset


def url_of(location: Location) -> str:
    return f"/dataset/it/data/{location.segment}?offset={location.offset}&size={location.size}"


@pytest.mark.check
@pytest.mark.parametrize("kind", KINDS)
def test_a_location_of_a_query_leads_to_the_stored_bytes(serving, create, kind):
    dataset = of_kind(create, kind, 30)
    dataset.archive(next(dataset.query()).location.segment)
    dataset.append([ondisk.Datum(BEGIN.replace(day=23), {"n": 1}, b"later" if kind["format"] == "blob" else {"x": 1})])
    client = serving(dataset.path).client
    payloads = dataset.payloads()
    assert all(
        dataset.payload(datum.location) in next(payloads) for datum in dataset.query() if kind["format"] != "seg"
    )
    for datum in dataset.query():
        answer = client.get(url_of(datum.location))
        stored = dataset.payload(datum.location)
        assert (answer.status_code, answer.content) == (200, stored)
        part = client.get(url_of(datum.location), headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, stored[2:5])
        assert part.headers["etag"] == answer.headers["etag"]


def test_a_deleted_datum_is_not_found(serving, create):
    dataset = of_kind(create, KINDS[0], 3)
    first = next(dataset.query())
    dataset.delete([first.location])
    answer = serving(dataset.path).client.get(url_of(first.location))
    assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "DatumNotFound")


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_ranges_of_a_segment_are_those_of_its_file(serving, create, kind):
    dataset = of_kind(create, kind, 1000)
    (name,) = {datum.location.segment for datum in dataset.query()}
    whole = (dataset.path / name).read_bytes()
    client, url = serving(dataset.path).client, f"/dataset/it/data/{name}"
    answer = client.get(url)
    assert (answer.status_code, answer.content) == (200, whole[: len(answer.content)])
    whole = answer.content
    assert answer.headers["accept-ranges"] == "bytes"
    chosen = random.Random(5)
    for _ in range(20):
        begin = chosen.randrange(len(whole))
        end = chosen.choice([begin, min(begin + 7, len(whole) - 1), chosen.randrange(begin, len(whole))])
        part = client.get(url, headers={"Range": f"bytes={begin}-{end}", "If-Range": answer.headers["etag"]})
        assert (part.status_code, part.content) == (206, whole[begin : end + 1])
        assert part.headers["content-range"] == f"bytes {begin}-{end}/{len(whole)}"
    assert client.get(url, headers={"Range": "bytes=-5"}).content == whole[-5:]
    assert client.get(url, headers={"Range": f"bytes={len(whole)}-"}).status_code == 416
    head = client.head(url, headers={"Range": "bytes=1-3"})  # ranges are of GET only
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(whole)), b"")
    known = client.get(url, headers={"If-None-Match": answer.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_segments_that_were_fetched_can_be_appended_again(serving, create, kind):
    dataset = of_kind(create, kind, 1000)
    (name,) = {datum.location.segment for datum in dataset.query()}
    answer = serving(dataset.path).client.get(f"/dataset/it/data/{name}")
    again = create("again", fields={"n": "integer"}, **kind)
    result = again.append_file(io.BytesIO(answer.content), kind["format"])
    assert (result.imported, result.refused, result.damage) == (1000, 0, [])


def test_a_dir_segment_has_no_bytes_of_its_own(serving, create):
    dataset = of_kind(create, KINDS[-1], 2)
    answer = serving(dataset.path).client.get("/dataset/it/data/2026/11-20.bin")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 2)
    assert "locations" in answer.json()["error"]["hint"]


@pytest.mark.parametrize("kind", KINDS[1:4])
def test_an_append_makes_another_version_and_changes_nothing_of_the_one_before(serving, create, kind):
    """The header of seg counts its data in place; what is being sent keeps the count of its own commit."""
    dataset = of_kind(create, kind, 10)
    (name,) = {datum.location.segment for datum in dataset.query()}
    before = dataset.segment_bytes(name)
    content = before.read(0, before.size)
    dataset.append(data(20, 100)[10:])
    after = dataset.segment_bytes(name)
    assert before.version != after.version
    assert before.read(0, before.size + 100) == content
    assert b"".join(before.read(place, 1) for place in range(before.size)) == content
    assert after.read(0, 12) == (dataset.path / name).read_bytes()[:12]


def test_bytes_that_a_fix_takes_over_are_another_version(create):
    dataset = of_kind(create, KINDS[0], 10)
    (name,) = {datum.location.segment for datum in dataset.query()}
    before = dataset.segment_bytes(name).version
    path = dataset.path / name
    path.write_bytes(path.read_bytes().replace(b"y", b"z"))
    dataset.fix()
    assert dataset.segment_bytes(name).version != before


@pytest.mark.check
def test_what_is_being_sent_outlives_a_repack_and_holds_no_snapshot(serving, create):
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(400, 50_000))
    (name,) = {datum.location.segment for datum in dataset.query()}
    expected = hashlib.sha256((dataset.path / name).read_bytes())
    with serving(dataset.path).client.stream("GET", f"/dataset/large/data/{name}") as answer:
        pieces = answer.iter_raw()
        found = hashlib.sha256(next(pieces))
        dataset.delete("n: >0")
        dataset.repack()
        assert (dataset.path / name).stat().st_size < 100_000
        for piece in pieces:
            found.update(piece)
    assert found.hexdigest() == expected.hexdigest()


def test_a_file_that_was_exchanged_is_an_error(serving, create, tmp_path):
    dataset = of_kind(create, KINDS[0], 5)
    dataset.close()
    Path(tmp_path / "it/2026/11-20.jsonl").write_bytes(b"x" * 10_000)
    answer = serving(dataset.path).client.get("/dataset/it/data/2026/11-20.jsonl")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "SegmentCorrupt")
