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
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.states import Diagnosis, Done, Report

_NO_STATE = dict.fromkeys(("needs_check", "summary", "quarantine", "replaced"))


class JsonOutput:
    """Prints results as JSON. Its methods are those of `TextOutput`."""

    def show(self, values: Iterable[Mapping[str, Any]], lines: Iterable[str]) -> None:
        _write(map(_line, map(_plain, values)))

    def info(self, info: Mapping[str, Any]) -> None:
        _print(
            {key: _all_as_json(value) if isinstance(value, Mapping) else as_json(value) for key, value in info.items()}
        )

    def formats(self, found: Iterable[Mapping[str, Any]]) -> None:
        for each in found:
            _print(each)

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        _write(lines_of_data(data, fields))

    def summary(self, summary: Summary) -> None:
        _print(json_summary(summary))

    def groups(self, groups: Iterable[Group], by: Sequence[str], of: str | None) -> None:
        _write(lines_of_groups(groups))

    def checked(self, report: Report, shown: Sequence[Diagnosis | Done]) -> None:
        from ondisk.maintenance.last_report import segment_as_json, state_as_json

        _print(
            *map(segment_as_json, shown), {"dataset": as_json(report.dataset), **state_as_json(report, report.freed)}
        )

    def would_mend(
        self, report: Report, verb: str, work: Sequence[Diagnosis | Done], left: Sequence[Diagnosis | Done] = ()
    ) -> None:
        self.checked(report, [*work, *left])

    def would_rebuild(self, report: Report) -> None:
        self.checked(report, report.segments)

    def mended(self, report: Report, left: Report) -> None:
        from ondisk.maintenance.last_report import segment_as_json, state_as_json

        _print(*map(segment_as_json, report), {"dataset": as_json(report.dataset), **state_as_json(left, report.freed)})

    def maintained(self, result: Maintained, *, dry_run: bool) -> None:
        from ondisk.maintenance.last_report import segment_as_json, state_as_json

        left = result.left
        freed = left.freed if dry_run and left is not None else result.freed
        _print(
            {
                "dataset": as_json(result.dataset),
                "exit_code": result.exit_code,
                "error": None if result.error is None else as_json(str(result.error)),
                "done": list(map(segment_as_json, result.done)),
                "findings": list(map(segment_as_json, result.findings)),
                "count": result.count,
                "rebuilt": result.rebuilt,
                "kept": as_json(result.kept),
                "duration": round(result.duration, 3),
                **(state_as_json(left, freed) if left is not None else _NO_STATE),
            }
        )


def _values(result: Any, *keys: str) -> dict[str, Any]:
    return {key: getattr(result, key) for key in keys}


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold. Of a mapping only the values are converted."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return as_json(value.value if isinstance(value, Enum) else value)


def _line(value: Any) -> bytes:
    return json_shapes.dump(value) + b"\n"


def _all_as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: as_json(value) for key, value in values.items()}


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
