"""Rows of staged data in the index."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from kit import EVERY_TYPE
from staging.stages import CONFIG, check_sound, commit, counts, stage
from worlds import connections, content, datum

import ondisk
from ondisk import Datum

T = datetime(2026, 11, 20, tzinfo=UTC)


def test_the_index_has_the_same_tables_and_indices_whether_few_or_many_rows_come(create):
    dataset = create(**CONFIG, index=["version"], format="jsonl")

    def schema():
        with closing(sqlite3.connect(f"file:{dataset.path}/index.sqlite?mode=ro", uri=True)) as index:
            return sorted(index.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))

    before, expected = schema(), []
    for new, again in ((1, 0), (23, 0), (4, 0), (23, 2), (90, 3)):
        running = dataset.query()
        seen = [(each.reftime, each.data) for each in islice(running, 1)]
        data = [datum(len(expected) + hour) for hour in range(new)]
        staged = [stage(dataset, data + expected[:again], size=100)]
        assert counts(dataset.append_staged("job", staged)) == (new, again, 0)
        seen += [(each.reftime, each.data) for each in running]
        assert seen == [(each.reftime, each.data) for each in expected]
        expected += data
        assert schema() == before
        assert content(dataset) == [(each.reftime, each.metadata, each.data) for each in expected]
        check_sound(dataset)


@pytest.mark.parametrize("count", [9, 20])
def test_many_stages_are_brought_together(create, count):
    dataset = create(**CONFIG | {"fields": {"station": "text", "version": "integer", "key": "bytes", "note": "text"}})
    parts = [
        [
            Datum(
                T + timedelta(hours=at),
                {"station": f"s{at % 3}", "key": b"k" if at % 2 else None, "note": f"s{at}"},
                {},
            )
        ]
        for at in range(count)
    ]
    assert counts(commit(dataset, *parts, [], parts[0])) == (count, 1, 0)
    assert [each.metadata for each in dataset.query()] == [
        {name: value for name, value in part[0].metadata.items() if value is not None} for part in parts
    ]
    check_sound(dataset)


def test_several_stages_are_brought_together_in_a_folder_whose_name_is_not_utf8(tmp_path):
    dataset = ondisk.create(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), {**CONFIG, "format": "jsonl"})
    assert counts(commit(dataset, [datum(0)], [datum(1)])) == (2, 0, 0)
    assert dataset.count() == 2


def test_metadata_of_every_type_arrive(create):
    config = {"format": "seg", "fields": EVERY_TYPE}
    dataset, other = create(**config), create("other", **config)
    data = [
        Datum(
            T, {"station": 2**63 - 1, "level": -0.0, "product": "é", "valid": True, "made": T, "key": b"\xff"}, {"a": 1}
        ),
        Datum(T, {"level": float("inf"), "product": "", "valid": False, "key": b""}, b"bytes"),
        Datum(T, {"undeclared": [1, {"a": None}]}, None),
    ]
    other.append(data)
    commit(dataset, data[:1], data[1:])
    assert [repr(each) for each in dataset.query()] == [repr(each) for each in other.query()]
    assert dataset.query("station: 9223372036854775807").__next__().data == {"a": 1}


@pytest.mark.check
def test_pieces_may_be_more_than_a_statement_can_name(create):
    dataset = create(**CONFIG, format="blob")
    with connections(lambda each: each.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2000), "rw"):  # of 1,000,000
        dataset.append([datum(0, format="blob")])
    part = [datum(at // 99, f"{at}", format="blob") for at in range(1500)]
    assert counts(commit(dataset, part, part[:9])) == (1500, 9, 0)
    check_sound(dataset)
