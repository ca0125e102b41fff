"""Results of commands as JSON, one object a line: docs/cli-json.md defines the keys, and is a promise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from ondisk import json_shapes
from ondisk.cli.streams import write_stdout
from ondisk.dataset.json_lines import as_json, json_summary, lines_of_data, lines_of_groups
from ondisk.datum import Datum

if TYPE_CHECKING:
    from ondisk import Group, Summary


class JsonOutput:
    def show(self, values: Iterable[Mapping[str, Any]], lines: Iterable[str]) -> None:
        _write(map(_line, map(_plain, values)))

    def info(self, info: Mapping[str, Any]) -> None:
        _print(_plain(info))

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        _write(lines_of_data(data, fields))

    def summary(self, summary: Summary) -> None:
        _print(json_summary(summary))

    def groups(self, groups: Iterable[Group], by: Sequence[str], of: str | None) -> None:
        _write(lines_of_groups(groups))


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold. Of a mapping only the values are converted."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return as_json(value.value if isinstance(value, Enum) else value)


def _line(value: Any) -> bytes:
    return json_shapes.dump(value) + b"\n"


def _print(*values: Any) -> None:
    _write(map(_line, values))


def _write(lines: Iterable[bytes]) -> None:
    """Write lines; on a terminal with escapes for characters that JSON does not escape and a terminal may execute."""
    write_stdout(map(_harmless, lines) if sys.stdout.isatty() else lines)


def _harmless(line: bytes) -> bytes:
    text = line.decode().removesuffix("\n")
    if text.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text).encode() + b"\n"
