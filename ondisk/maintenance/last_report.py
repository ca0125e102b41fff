"""The last report about a dataset, in `.report.json`: what `check`, `fix`, `repack` or `maintain` found and did.

    {"command": "check", "time": "2026-11-28T06:00:00Z", "dataset": …, "done": […], "findings": […],
     "left_out": 0, "needs_check": false, "summary": {…}, "quarantine": {…}, "replaced": {…}}

It is for people and their pages. Nothing depends on it: it is not synced, and may be deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from ondisk import json_values
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.dataset.datum_as_json import as_json, time_text
from ondisk.datum import from_microseconds
from ondisk.errors import OndiskError
from ondisk.filesystem import Directory
from ondisk.maintenance.states import Diagnosis, Done, Report

T = TypeVar("T")

NAME = ".report.json"
_STAGED = NAME + ".new"
_PATIENCE = 60.0  # seconds that another process may take to write its own
LARGEST = 1024 * 1024
"""Bytes of the file. Segments that do not fit are only counted, in `left_out`."""


class LastReport(NamedTuple):
    """A report that was read."""

    command: str
    time: datetime
    counts: dict[str, int]  # state → number of segments, `ok` among them
    findings: list[dict[str, Any]]  # the segments that are not OK, as `ondisk check --json` prints them
    done: list[dict[str, Any]]
    left_out: int  # the number of segments that the report has no place for
    needs_check: bool
    error: str | None  # what ended the command; None if it completed

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.findings or self.left_out or self.needs_check or self.error)


def save(
    path: str | os.PathLike[str],
    command: str,
    left: Report | None,
    done: Iterable[Diagnosis | Done] = (),
    error: object = None,
) -> None:
    """Write a report, in place of the last one, unless this user may not write to the dataset.

    Args:
        left: what a check found, at the end.
        done: what was changed before that.

    Durability: none. Readers see the old report or the new one, complete.
    """
    now = time_text(datetime.now(UTC).replace(microsecond=0))
    content = {"command": command, "time": now, "error": None if error is None else as_json(str(error))}
    state = (
        {"dataset": os.fspath(path)}
        if left is None
        else {"dataset": as_json(left.dataset), **state_as_json(left, left.freed)}
    )
    text = _within_limit(content | state, left.findings if left is not None else [], [*done])
    with contextlib.suppress(OndiskError, OSError), Directory.open(path) as directory:
        if (config := directory.stat(CONFIG)) is None:
            return
        # Another process is writing its own, unless it was killed before.
        if (other := directory.stat(_STAGED)) is not None and time.time() - other.st_mtime < _PATIENCE:
            return
        directory.discard(_STAGED)
        try:
            with directory.create_file(_STAGED, make=False) as file:
                file.belong_like(config)
                file.write(0, text)
            directory.rename(_STAGED, NAME, durable=False)
        except FileExistsError:
            return
        except BaseException:
            directory.discard(_STAGED)
            raise


def _within_limit(content: dict[str, Any], findings: list[Any], done: list[Any]) -> bytes:
    """Return the JSON of a report, with as many segments as it has place for; findings come first."""
    left = LARGEST - len(json_values.dump(content)) - 200
    listed: dict[str, list[Any]] = {"findings": [], "done": []}
    left_out = 0
    for name, segments in (("findings", findings), ("done", done)):
        for each in map(segment_as_json, segments):
            left -= len(json_values.dump(each)) + 1
            if left < 0:
                left_out += 1
            else:
                listed[name].append(each)
    return json_values.dump({**content, **listed, "left_out": left_out}) + b"\n"


def load(directory: Directory) -> LastReport | None:
    """Return the last report about a dataset; None if there is none, or the file is not one."""
    try:
        found = json.loads(directory.read(NAME, LARGEST))
        return LastReport(
            _is(str, found["command"]),
            from_microseconds(json_values.parse_time(_is(str, found["time"]))),
            {name: _is(int, count) for name, count in (found.get("summary") or {}).items()},
            [_segment(each) for each in found["findings"]],
            [_segment(each) for each in found["done"]],
            _is(int, found["left_out"]),
            found.get("needs_check") is True,
            None if found["error"] is None else _is(str, found["error"]),
        )
    except (OndiskError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # people may write anything there


def _is(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError
    return value


def _segment(value: Any) -> dict[str, Any]:
    return {
        "segment": _is(str, value["segment"]),
        "states": [_is(str, each) for each in value["states"]],
        "reasons": [_is(str, each) for each in value["reasons"]],
        "action": None if value["action"] is None else _is(str, value["action"]),
    }


def segment_as_json(each: Diagnosis | Done) -> dict[str, Any]:
    """Return what was found or done in one segment, in a form that JSON can hold."""
    lost = getattr(each, "lost", None)
    return {
        "segment": as_json(each.segment),
        "states": each.state.names,
        "reasons": as_json(list(each.reasons)),
        "action": each.action,
        "freed": each.freed,
    } | ({} if lost is None else {"lost": lost})


def state_as_json(report: Report, freed: int) -> dict[str, Any]:
    """Return what a check found in a dataset as a whole, in a form that JSON can hold."""
    return {
        "needs_check": report.needs_check,
        "summary": {**report.counts, "touched": len(report.touched), "consumed": report.consumed, "freed": freed},
        "quarantine": report.quarantine._asdict(),
        "replaced": {**report.replaced._asdict(), "until": _until(report)},
    }


def _until(report: Report) -> str | None:
    until = report.replaced.until
    return None if until is None else time_text(datetime.fromtimestamp(until, UTC))
