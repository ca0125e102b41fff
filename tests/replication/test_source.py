"""A source answers what the change feed has, with the data as bytes."""

from __future__ import annotations

import hashlib
import shutil
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from server.conftest import started
from worlds import change_config, lose_index

import ondisk
from ondisk import Dataset, Datum
from ondisk.errors import DatasetNotFound, InvalidInput, NeedsCheck, TokenForeign
from ondisk.formats import find
from ondisk.replication import source as sources
from ondisk.replication.feed import Kind
from ondisk.replication.http_source import HttpSource
from ondisk.replication.records import Records
from ondisk.replication.source import PathSource
from ondisk.replication.token import Token

FIRST = "2026/11-01.jsonl"


def datum(day: int, a: int, text: str = "x") -> Datum:
    return Datum(datetime(2026, 11, day, tzinfo=UTC), {"a": a}, {"text": text})


@pytest.fixture
def dataset(create) -> Dataset:
    return create(fields={"a": "integer"}, unique=["reftime", "a"], replace="yes")


@pytest.fixture(params=["path", "server"])
def source(dataset, request):
    if request.param == "path":
        with PathSource(dataset.path) as opened:
            yield opened
    else:
        with started(dataset.path) as served, HttpSource(served.url(dataset), pause=0.01) as opened:
            yield opened


def seqs(records: Records) -> list[int]:
    return [seq for group in records.groups for seq in group.seqs]


def test_a_source_says_what_it_is(dataset, source):
    dataset.append([datum(1, 1)])
    about = source.describe()
    assert (about.uuid, about.name, about.seq) == (dataset.info()["uuid"], "dataset", 1)
    assert about.config == dataset.config.to_toml()
    assert about.session == dataset.changes().token.session


def test_the_changes_of_a_source_are_those_of_the_feed(dataset, source):
    dataset.append([datum(1, 1), datum(2, 1)])
    dataset.archive(FIRST)
    token: Token | None = None
    for _ in range(3):
        answer, records = dataset.changes(token), source.changes(token)
        assert (records.token, records.lag, records.count) == (answer.token, answer.lag, len(answer.changes))
        assert sorted(seqs(records)) == [each.seq for each in answer.changes if each.kind is Kind.APPENDED]
        assert [*records.deletions] == [
            (each.seq, each.target, each.kind) for each in answer.changes if each.target is not None]  # fmt: skip
        token = records.token
        dataset.append([datum(1, 1, "new"), datum(3, 1)])
    assert source.changes(source.changes(token).token).count == 0


@pytest.mark.parametrize(
    ("values", "data"),
    [
        ({"format": "jsonl"}, [datum(1, 1), datum(2, 2)]),
        ({"format": "seg"}, [datum(1, 1), datum(2, 2)]),
        ({"format": "seg", "payload": "protobuf"}, [datum(1, 1), datum(2, 2)]),
        ({"format": "seg", "version": 0, "payload": "cbor", "compression": "none"}, [datum(1, 1), datum(2, 2)]),
        ({"format": "blob"}, [Datum(datum(1, 1).reftime, {"a": 1, "more": [1, 2]}, b"\0bytes\n")]),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_format_receives_what_the_source_has_read(create, values: dict[str, Any], data: list[Datum]):
    dataset = create(fields={"a": "integer"}, **values)
    dataset.append(data)
    with PathSource(dataset.path) as source:
        (group,) = source.changes(None).groups
    format = find(group.format)(dataset.config)
    batch, expected = format.received(group.payloads, group.beside), format.encode(data)
    assert (batch.reftimes, [*map(dict, batch.metadata)]) == (expected.reftimes, [*map(dict, expected.metadata)])
    assert (batch.payloads, batch.beside, batch.refused) == (expected.payloads, expected.beside, [])


def test_data_of_several_formats_come_in_groups(dataset, source, tmp_path):
    dataset.append([datum(1, 1)])
    (tmp_path / "lines.vm2").write_bytes(b"202611010000,1,227,1.2,,,000000000\n")
    dataset.append_file(tmp_path / "lines.vm2")
    dataset.append([datum(1, 2)])
    groups = source.changes(None).groups
    assert [(group.format, group.seqs) for group in groups] == [("jsonl", [1, 3]), ("vm2", [2])]


def test_damaged_data_are_listed_and_the_others_returned(dataset, source):
    dataset.append([datum(1, 1), datum(2, 1), datum(3, 1)])
    (dataset.path / "2026/11-02.jsonl").unlink()
    records = source.changes(None)
    assert seqs(records) == [1, 3]
    ((seq, reason),) = records.unreadable
    assert seq == 2
    assert "11-02" in reason
    assert records.token.offset == 3


def test_the_sessions_of_the_numbers_come_with_them(dataset, source):
    dataset.append([datum(1, 1)])
    first = source.changes(None)
    with Dataset.open(dataset.path) as other:
        other.append([datum(2, 1), datum(3, 1)])
    dataset.append([datum(4, 1)])
    rest = source.changes(first.token, max_bytes=1)
    assert [number for number, _ in first.sessions] == [1]
    assert [number for number, _ in rest.sessions] == [2]
    rest = source.changes(rest.token)
    assert [number for number, _ in rest.sessions] == [2, 4]
    assert rest.sessions[-1][1] == rest.token.session == first.token.session


def test_data_are_compared_by_digests_of_ranges(dataset, source, monkeypatch):
    dataset.append([datum(1, 1), datum(2, 1), datum(3, 1), datum(3, 2)])
    dataset.archive(FIRST)
    dataset.delete("reftime: =2026-11-02")
    listed = source.contents(1, 100, listed=True)
    assert (listed.first, listed.last, listed.count, listed.seqs, listed.unreadable) == (1, 100, 3, (1, 3, 4), 0)
    assert listed.digest == hashlib.sha256(struct.pack("<qqq", 1, 3, 4) + b"".join(listed.digests)).digest()
    found = source.contents(1, 100)
    assert (found.digest, [*found.seqs]) == (listed.digest, [])
    assert source.contents(2, 3, listed=True).seqs == (3,)
    monkeypatch.setattr(sources, "RANGE_BYTES", 1)
    assert source.contents(1, 100).last == 1
    with pytest.raises(InvalidInput):
        source.contents(3, 1)


def test_some_data_are_fetched_by_their_numbers(dataset, source):
    dataset.append([datum(1, 1), datum(2, 1), datum(3, 1)])
    dataset.archive(FIRST)
    dataset.delete("reftime: =2026-11-02")
    records = source.fetch([1, 2, 3, 77])
    assert (seqs(records), records.token.offset) == ([1, 3], 77)
    records = source.fetch([1, 3], max_bytes=1)
    assert (seqs(records), records.token.offset) == ([1], 1)


def test_a_source_refuses_what_the_feed_refuses(dataset, source, tmp_path):
    with pytest.raises(TokenForeign):
        source.changes(Token("another"))
    (dataset.path / "needs-check-do-not-pack").touch()
    with pytest.raises(NeedsCheck):
        source.changes(None)
    with pytest.raises(DatasetNotFound):
        PathSource(tmp_path / "nothing").describe()


def test_a_source_that_has_lost_its_index_says_so(dataset, source):
    dataset.append([datum(1, 1)])
    dataset.close()
    lose_index(dataset.path)
    with pytest.raises(NeedsCheck):
        source.describe()


def test_a_source_is_what_is_at_its_path_now(dataset, source):
    dataset.append([datum(1, 1)])
    token = source.changes(None).token
    dataset.close()
    shutil.copytree(dataset.path, dataset.path.with_name("copy"))
    dataset.path.rename(dataset.path.with_name("moved"))
    dataset.path.with_name("copy").rename(dataset.path)
    with ondisk.open(dataset.path) as other:
        other.append([datum(2, 1)])
    assert source.changes(token).count == 1
    change_config(dataset.path, 'replace = "yes"', 'replace = "no"')
    assert 'replace = "yes"' not in source.describe().config
