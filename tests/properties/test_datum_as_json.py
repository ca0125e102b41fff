"""What `query --json` prints is what `json.dumps` makes of each datum, whatever the lines share."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import strategies

import ondisk
from ondisk import Datum
from ondisk.cli import main
from ondisk.cli.output import Output
from ondisk.dataset import datum_as_json

TEXTS = ["\x1b[31m", "\x7f\x9b", "\u202e\u2028", 'quote " and \\', "\U0001f600"]
FLOATS = {inf: "+Inf", -inf: "-Inf"}


class Stdout(io.TextIOWrapper):
    """Standard output that is or is not a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def printed(command: list[str], is_terminal: bool) -> str:
    """Return what a command prints."""
    output = Stdout(is_terminal)
    with contextlib.redirect_stdout(output):
        assert main(command) == 0
    assert isinstance(output.buffer, io.BytesIO)
    return output.buffer.getvalue().decode()


def shape(value: Any) -> Any:
    """Return a value as docs/cli-json.md says that it is printed."""
    match value:
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (f".{value:%f}" if value.microsecond else "") + "Z"
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case float() if value in FLOATS or isnan(value):
            return {"$float": FLOATS.get(value, "NaN")}
        case str() if any("\udc80" <= each <= "\udcff" for each in value):
            return {"$text_bytes": base64.b64encode(value.encode(errors="surrogateescape")).decode()}
        case list() | tuple():
            return [shape(each) for each in value]
        case dict():
            return {key: shape(each) for key, each in value.items()}
    return value


def line(datum: Datum, fields: list[str] | None, is_terminal: bool) -> str:
    assert datum.location is not None
    names = datum.metadata if fields is None else [name for name in fields if name in datum.metadata]
    location = {name: getattr(datum.location, name) for name in ("segment", "offset", "size")}
    metadata = {name: shape(datum.metadata[name]) for name in names}
    shown = {"reftime": shape(datum.reftime), "metadata": metadata, "data": shape(datum.data), "location": location}
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    if is_terminal:
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return text + "\n"


def has_a_line(datum: Datum) -> bool:
    """Return whether the keys of a datum are Unicode: if not, the command ends with an error."""
    try:
        json.dumps(shape([dict(datum.metadata), datum.data]), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def hostile(datum: Datum, text: str) -> Datum:
    """Return the datum with a text that must be escaped, in its data and in its metadata."""
    data = datum.data | {"wind": text} if isinstance(datum.data, dict) else datum.data
    metadata = {**datum.metadata, **{name: text for name in ("product",) if name in datum.metadata}}
    return Datum(datum.reftime, metadata, data)


@pytest.mark.parametrize("format", ["vm2", "jsonl", "seg", "blob"])
@settings(max_examples=up_to(20))
@given(given_data=st.data())
def test_each_datum_is_the_line_that_json_dumps_makes_of_it(format, given_data):
    draw = given_data.draw
    config = draw(strategies.configs(format))
    data = draw(st.lists(strategies.data(config).filter(has_a_line), max_size=6))
    if format in ("jsonl", "seg"):
        data += [hostile(datum, draw(st.sampled_from(TEXTS))) for datum in data]
    fields = draw(st.none() | st.lists(st.sampled_from([*config.fields, "reftime"])))
    fields = None if fields is None else [name for name in fields if name != "reftime"]
    sort = draw(st.none() | st.sampled_from(["-reftime", *config.fields]))
    limit = draw(st.none() | st.integers(0, 8))
    is_terminal = draw(st.booleans())
    options = [] if fields is None else ["--fields", ",".join(fields)]
    options += ([] if sort is None else [f"--sort={sort}"]) + ([] if limit is None else ["--limit", str(limit)])
    with TemporaryDirectory() as folder:
        path = Path(folder, "dataset")
        with ondisk.create(path, config) as dataset:
            dataset.append(data)
            segments = {datum.location.segment for datum in dataset.query(limit=draw(st.integers(0, 1)))}
            dataset.archive(*segments)
            expected = "".join(line(datum, fields, is_terminal) for datum in dataset.query(sort=sort, limit=limit))
        assert printed(["query", str(path), "--json", *options], is_terminal) == expected


def series(count: int, size: int) -> Iterator[Datum]:
    """Yield data of as many series, with metadata of some bytes."""
    for number in range(count):
        time = datetime(2026, 11, 20, tzinfo=UTC) + timedelta(minutes=number)
        metadata = MappingProxyType({"station": number, "note": "x" * size})
        yield Datum.stored(time, metadata, b"1.2", "2026/11-20.vm2", (None, None, number, 3))


@pytest.mark.check
@pytest.mark.parametrize("size", [10, 10_000])
def test_memory_does_not_grow_with_the_number_of_series(monkeypatch, size):
    monkeypatch.setattr(datum_as_json, "_MOST", 50)
    monkeypatch.setattr(sys, "stdout", Stdout(is_terminal=False))
    monkeypatch.setattr("ondisk.cli.output.write_stdout", lambda lines: [None for each in lines if not each])
    tracemalloc.start()
    Output(as_json=True).data(series(2000, size), None)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()
