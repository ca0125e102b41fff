"""Match expressions, configurations and data made by an attacker."""

from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from crash.workload import CONFIG
from worlds import connections

import ondisk
from ondisk.errors import ConfigError, InvalidInput, LimitExceeded, MatchError

from .conftest import LINES

INJECTIONS = [
    "' OR 1=1 --",
    '" OR 1=1 --',
    "'; DROP TABLE datum; --",
    "x'); DELETE FROM datum; --",
    "1 UNION SELECT * FROM value",
    "'||(SELECT config FROM dataset)||'",
    "VM2,1' OR '1'='1",
    "%",
    "_",
    "VM2,_",
    "VM2,%",
    "*",
    "\\",
    "\0",
    "VM2,1\0",
    "?1",
    ":p0",
    "f_area",
    "datum.f_area",
    "segment",
    "\u202e",
    "\U0001f4a9",
    "ifnull(f_area, x'')",
    "NULL",
    "x''",
]

JSONL: dict[str, Any] = {
    "format": "jsonl",
    "step": "daily",
    "unique": ["reftime", "station"],
    "max_depth": 20,
    "max_datum_size": 100_000,
    "fields": {"station": "integer", "name": "text", "level": "real", "raw": "bytes"},
}


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path / 'index.sqlite'}?mode=ro", uri=True)) as index:
        return list(index.iterdump())


@pytest.mark.parametrize("text", INJECTIONS)
def test_sql_in_a_match_is_a_value_or_an_error_and_never_runs(text: str, path: Path) -> None:
    before = dump(path)
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    ran: list[str] = []
    with connections(lambda each: each.set_trace_callback(ran.append)), ondisk.open(path) as dataset:
        for match in (text, f"area:{text}", f'area:"{quoted}"', f"reftime:{text}", f"{text}:1", f"product:1; {text}"):
            for use in (lambda: list(dataset.query(match)), lambda: dataset.summary(match).count):  # noqa: B023
                with suppress(MatchError):
                    assert use() in ([], 0)
        for expression in (dataset.fields.area == text, dataset.fields.area.startswith(text),
                           dataset.fields.area.isin([text, text + "x"])):  # fmt: skip
            assert list(dataset.query(expression)) == []
            assert dataset.delete(expression) == 0
        assert list(dataset.query(area=text)) == []
        with pytest.raises(InvalidInput):
            list(dataset.query(**{text: 1}))  # type: ignore[arg-type]
        with pytest.raises(MatchError):
            list(dataset.query(sort=text))
        assert [each.data for each in dataset.query()] == LINES
    assert any("DELETE" in each for each in ran)
    assert not any("DROP" in each or "UNION" in each for each in map(without_texts, ran))
    assert dump(path) == before


def without_texts(sql: str) -> str:
    """Remove the texts that SQLite writes in place of bound values."""
    return "".join(sql.replace("''", "").split("'")[::2])


@pytest.mark.parametrize("text", INJECTIONS)
def test_sql_in_a_value_is_stored_and_found_as_it_is(text: str, tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", JSONL) as dataset:
        data = {"station": 1, "name": text, text or "x": text}
        line = json.dumps({"reftime": "2026-11-20T00:00:00Z", **data}).encode()
        assert dataset.append_file(io.BytesIO(line)).imported == 1
        (found,) = dataset.query(name=text)
        assert found.metadata["name"] == text
        assert found.data == {text: text}
        assert dataset.summary().fields["name"].values == [(text, 1)]
        assert dataset.delete(dataset.fields.name == text) == 1


@pytest.mark.parametrize("name", [*INJECTIONS, "a b", "a-b", "a.b", "A", "ä", "1a", "a;", 'a"', "a'", ""])
def test_a_field_name_that_is_more_than_a_word_is_refused(name: str, tmp_path: Path) -> None:
    if name in ("f_area", "segment", "_"):
        ondisk.create(tmp_path / "dataset", {**CONFIG, "fields": {**CONFIG["fields"], name: "text"}}).close()
        return
    with pytest.raises(ConfigError):
        ondisk.create(tmp_path / "dataset", {**CONFIG, "fields": {**CONFIG["fields"], name: "text"}})
    assert not (tmp_path / "dataset").exists()


def test_field_names_that_sql_knows_are_names_like_others(tmp_path: Path) -> None:
    names = ["select", "from", "table", "index", "seq", "segment", "offset", "size", "rowid", "order", "value"]
    config = {
        "format": "jsonl",
        "step": "daily",
        "unique": names,
        "index": names,
        "fields": dict.fromkeys(names, "text"),
    }
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        line = json.dumps({"reftime": "2026-11-20T00:00:00Z", **{name: name for name in names}}).encode()
        assert dataset.append_file(io.BytesIO(line + b"\n" + line)).duplicates == 1
        for name in names:
            equal: dict[str, Any] = {name: name}
            assert len(list(dataset.query(**equal, sort=f"-{name}"))) == 1


def test_a_configuration_of_ten_megabytes_is_refused_at_once(path: Path) -> None:
    with (path / "dataset.toml").open("ab") as file:
        file.write(b"#" * 10_000_000)
    begin = time.process_time()
    with pytest.raises(InvalidInput) as caught:
        ondisk.open(path)
    assert time.process_time() - begin < 1
    assert "dataset.toml is larger than" in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "x = " + "{a=" * 100_000, "a." * 100_000 + "b = 1", "x = 1" + "0" * 10_000, "\udcff"],
    ids=["lists", "tables", "dots", "digits", "bytes"],
)
def test_a_configuration_that_nests_without_end_is_refused(text: str, path: Path) -> None:
    (path / "dataset.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError):
        ondisk.open(path)


def jsonl_line(rest: str) -> bytes:
    return b'{"reftime": "2026-11-20T00:00:00Z", "station": 1, ' + rest.encode(errors="surrogatepass") + b"}"


DEEP = 45_000
HOSTILE = {
    "nested lists": '"x": ' + "[" * DEEP + "]" * DEEP,
    "nested lists without end": '"x": ' + "[" * DEEP,
    "nested mappings": '"x": ' + '{"a":' * 12_000 + "1" + "}" * 12_000,
    "one level too deep": '"x": ' + "[" * 20 + "]" * 20,
    "an open string full of quotes": '"x": ' + "[" * 70 + '"' + '\\"' * DEEP,
    "an open string full of backslashes": '"x": ' + "[" * 70 + '"' + "\\" * (2 * DEEP - 1),
    "a huge integer": '"x": ' + "9" * 90_000,
    "an integer of 65 bits in a field": '"name": "n", "station": 18446744073709551616',
    "NaN": '"x": NaN',
    "Infinity": '"x": -Infinity',
    "NaN in a field": '"level": NaN',
    "NaN in a field, as a shape": '"level": {"$float": "NaN"}',
    "a lone surrogate in a field": '"name": "\\ud800"',
    "a lone surrogate in bytes": '"name": "\ud800"',
    "a text of bytes in a field": '"name": {"$text_bytes": "/w=="}',
    "another type in a field": '"name": 5',
    "an impossible time": '"reftime": "2026-02-30T00:00:00Z"',
    "a time that is no text": '"reftime": 5',
    "a time far away": '"reftime": "9999-12-31T23:59:59-23:59"',
    "a control character": '"x": "\n"'.replace("\n", "\x01"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_quickly_and_the_rest_goes_on(name: str, tmp_path: Path) -> None:
    good = b'{"reftime": "2026-11-20T01:00:00Z", "station": 2}'
    with ondisk.create(tmp_path / "dataset", JSONL) as dataset:
        begin = time.process_time()
        result = dataset.append_file(io.BytesIO(jsonl_line(HOSTILE[name]) + b"\n" + good + b"\n"))
        assert time.process_time() - begin < 1
        assert (result.imported, result.refused) == (1, 1)
        assert result.refusals[0][0] == 0
        assert len(result.refusals[0][1]) < 300
        assert [each.metadata for each in dataset.query()] == [{"station": 2}]


def test_values_that_fields_cannot_hold_are_refused_one_by_one(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    def data() -> Iterator[ondisk.Datum]:
        time = datetime(2026, 11, 20, tzinfo=UTC)
        for metadata in (
            {"station": 2**63},
            {"station": True},
            {"station": "1"},
            {"level": float("nan")},
            {"level": 2**60 + 1},
            {"name": "\udc80"},
            {"name": b""},
            {"raw": ""},
            {"other": 1},
        ):
            yield ondisk.Datum(time, metadata)
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        yield ondisk.Datum(time, {}, {"x": deep})
        yield ondisk.Datum(time, {"station": -(2**63)}, {"x": "y" * 200_000})
        yield ondisk.Datum(time, {"station": -(2**63)}, {"x": object()})
        yield ondisk.Datum(time, {"station": -(2**63)}, {"x": 2**70, "y": "\udc80"})

    with ondisk.create(tmp_path / "dataset", JSONL) as dataset:
        result = dataset.append(data())
        assert (result.imported, result.refused) == (1, 12)
        (found,) = dataset.query()
        assert (found.metadata, found.data) == ({"station": -(2**63)}, {"x": 2**70, "y": "\udc80"})


_LONG = 99_000  # just below what a match may have


@pytest.mark.parametrize(
    "match",
    [
        "reftime:" + "(" * _LONG,
        "area:" + "x or " * (_LONG // 5 - 5) + "y",
        "area:" + "x" * 10**6,
        "; ".join(["area:x"] * (_LONG // 8)),
        "area:" + "," * _LONG,
        "reftime:=" + "9" * _LONG,
        "reftime:" + "-" * _LONG,
        "reftime:" + " " * _LONG,
        "reftime:=today" + " + 1 day" * (_LONG // 8 - 2),
        "area:" + '"x\\' * (_LONG // 3 - 9),
        "reftime:=2026-11-20 + 99999999999999999999 days",
        "reftime:" + ">=2026," * (_LONG // 7 - 9) + "<2027",
    ],
    ids=lambda match: match[:24],
)
def test_a_match_without_end_is_refused_or_answered_quickly(match: str, path: Path) -> None:
    begin = time.process_time()
    with ondisk.open(path) as dataset, suppress(MatchError, LimitExceeded):
        assert list(dataset.query(match)) in ([], LINES)
    assert time.process_time() - begin < 5
