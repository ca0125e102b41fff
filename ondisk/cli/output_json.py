"""Results of commands as JSON, one object a line: docs/cli-json.md defines the keys, and is a promise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ondisk import json_shapes
from ondisk.cli.streams import write_stdout
from ondisk.dataset.json_lines import as_json, json_summary, lines_of_data, lines_of_groups, time_text
from ondisk.datum import Datum, Location

if TYPE_CHECKING:
    from ondisk import AppendResult, Group, Summary
    from ondisk.backup import Backup, Listed, Problem, Restored
    from ondisk.files import ExportResult
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.migrate import Migration
    from ondisk.maintenance.states import Diagnosis, Done, Report
    from ondisk.pipeline.report import PipelineReport
    from ondisk.queue import Acknowledged
    from ondisk.replication import ambry
    from ondisk.replication.compare import Verified
    from ondisk.replication.heal import Healed
    from ondisk.replication.reconcile import Reconciled
    from ondisk.replication.replica import Pulled
    from ondisk.replication.token import Entry
    from ondisk.segment import Damage
    from ondisk.segments.quarantine import Item

_NO_STATE = dict.fromkeys(("needs_check", "summary", "quarantine", "replaced"))


class JsonOutput:
    """Prints results as JSON. Its methods are those of `TextOutput`."""

    def info(self, info: Mapping[str, Any]) -> None:
        _print(
            {key: _all_as_json(value) if isinstance(value, Mapping) else as_json(value) for key, value in info.items()}
        )

    def formats(self, found: Iterable[Mapping[str, Any]]) -> None:
        for each in found:
            _print(each)

    def created(self, info: Mapping[str, Any]) -> None:
        self.info(info)

    def proposed(self, path: str, text: str) -> None:
        _print({"path": path, "toml": text})

    def serving(self, dataset: str, host: str, port: int) -> None:
        _print({"dataset": dataset, "host": host, "port": port})

    def serving_http(self, urls: Mapping[str, str], host: str, port: int) -> None:
        _print({"datasets": dict(urls), "host": host, "port": port})

    def appended(
        self,
        result: AppendResult,
        damage: Sequence[tuple[str, Damage]],
        warnings: Sequence[tuple[str, str]],
        notes: Sequence[tuple[str, str]],
    ) -> None:
        keys = ("imported", "duplicates", "replaced", "refused", "segments", "bytes")
        warned = {"warnings": [{"file": name, "warning": warning} for name, warning in warnings]}
        _print(_values(result, *keys) | warned | _damage_and_notes(damage, notes) | {"kept": as_json(result.kept)})

    def imported(self, report: PipelineReport) -> None:
        keys = ("imported", "duplicates", "replaced", "refused")
        _print(
            {
                "pipeline": report.name,
                "dry_run": report.dry_run,
                "files": _values(report, "found", "known", "imported"),
                "changed": report.changed,
                "failed": [{"file": name, "reason": reason} for name, reason in report.failed],
                "datasets": [
                    {"dataset": name}
                    | _values(result, *keys)
                    | {"again": report.again.get(name, 0), "lacking": report.lacking.get(name, 0)}
                    for name, result in report.datasets.items()
                ],
                "refused": [{"file": name, "reason": reason} for name, reason in report.refusals],
            }
            | _damage_and_notes(report.damage, report.notes)
        )

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        _write(lines_of_data(data, fields))

    def files_exported(self, result: ExportResult, to: str, *, linked: bool) -> None:
        _print({"to": as_json(to)} | _values(result, "exported", "present", "refused", "bytes"))

    def summary(self, summary: Summary) -> None:
        _print(json_summary(summary))

    def groups(self, groups: Iterable[Group], by: Sequence[str], of: str | None) -> None:
        _write(lines_of_groups(groups))

    def plotted(self, file: str, count: int) -> None:
        _print({"plot": as_json(file), "groups": count})

    def would_delete(self, found: Summary) -> None:
        _print({"would_delete": found.count, "size": found.size})

    def deleted(self, count: int) -> None:
        _print({"deleted": count})

    def acknowledged(self, done: Acknowledged, *, dry_run: bool) -> None:
        at = done.position
        position = {"segment": at.segment, "byte_index": at.byte_index, "frame_index": at.frame_index}
        _print({"would_acknowledge" if dry_run else "acknowledged": done.count, **position, "removed": done.removed})

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

    def quarantined(self, dataset: str, items: Iterable[Item]) -> None:
        count = size = 0

        def lines() -> Iterator[bytes]:
            nonlocal count, size
            for item in items:
                count, size = count + 1, size + item.size
                yield _line(_item(item))
            yield _line({"dataset": as_json(dataset), "items": count, "size": size})

        _write(lines())

    def exported(self, item: Item, file: str) -> None:
        _print({"exported": as_json(item.name), "file": as_json(file), "size": item.size})

    def restored(self, item: Item, dataset: str) -> None:
        _print({"restored": as_json(item.name), "segment": as_json(item.segment)})

    def would_drop(self, items: Sequence[Item]) -> None:
        _print({"would_drop": len(items), "size": sum(item.size for item in items)})

    def dropped(self, items: Sequence[Item]) -> None:
        _print({"dropped": len(items), "size": sum(item.size for item in items)})

    def backed_up(self, done: Backup) -> None:
        _print(
            {
                "dataset": as_json(done.dataset),
                "target": as_json(done.target),
                "point": time_text(done.point),
                **_values(done, "segments", "count", "size", "copied", "bytes"),
                **_left_out(done),
                "removed": [time_text(each) for each in done.removed],
            }
        )

    def restored_dataset(self, done: Restored) -> None:
        paths = {"dataset": as_json(done.dataset), "target": as_json(done.target), "point": time_text(done.point)}
        _print(paths | _values(done, "segments", "count", "size") | _left_out(done))

    def points(self, target: str, points: Sequence[Listed], *, verified: bool) -> None:
        _print(
            *(
                {"point": time_text(each.time), **_values(each, "segments", "count", "size", "incomplete")}
                | {"offline": as_json(each.offline), "damage": [_problem(problem) for problem in each.damage]}
                for each in points
            )
        )

    def pulled(self, path: str, pulled: Pulled) -> None:
        keys = (
            "source",
            "offset",
            "stored",
            "deleted",
            "present",
            "old",
            "lost",
            "unreadable",
            "bytes",
            "missing",
            "kept",
        )
        differences = [
            {"seq": each.seq, "lost": each.is_lost, "reason": as_json(each.reason)} for each in pulled.differences
        ]
        lag = {"changes": pulled.lag.changes, "bytes": pulled.lag.bytes}
        _print({"replica": as_json(path)} | _values(pulled, *keys) | {"lag": lag, "differences": differences})

    def compared(self, path: str, verified: Verified) -> None:
        counts = ("missing", "extra", "differs", "damaged", "unreadable", "lost", "aged")
        findings = [
            {"seq": each.seq, "kind": each.kind, "reftime": json_shapes.format_time(each.reftime)}
            for each in verified.findings
        ]
        values = _values(verified, "source", "offset", "left", *counts)
        _print({"replica": as_json(path), **values, "findings": findings})

    def reconciled(self, path: str, done: Reconciled, *, dry_run: bool) -> None:
        keys = ("source", "mode", "offset", "fetched", "renumbered", "deleted", "replaced", "kept", "extra", "missing",
                "bytes", "unmended")  # fmt: skip
        listed = {name: [seq for seq, _ in getattr(done, name)] for name in ("deletions", "extras")}
        _print({"replica": as_json(path), "dry_run": dry_run, **_values(done, *keys), **listed})

    def healed(self, path: str, healed: Healed, *, dry_run: bool) -> None:
        remaining = [{"seq": seq, "reason": as_json(reason)} for seq, reason in healed.reasons]
        values = _values(healed, "source", "lost", "unreadable", "left", "bytes")
        _print({"replica": as_json(path), "dry_run": dry_run, **values, "remaining": remaining})

    def promoted(self, info: Mapping[str, Any], *, dry_run: bool) -> None:
        _print({"dataset": as_json(info["path"]), "uuid": info["uuid"], "dry_run": dry_run})

    def tokens(self, entries: Sequence[Entry | ambry.Entry]) -> None:
        _print(*({key: as_json(value) for key, value in each.described().items()} for each in entries))

    def verified(self, file: str, layout: str, count: int, superseded: int, size: int) -> None:
        _print({"file": as_json(file), "layout": layout, "tokens": count, "superseded": superseded, "size": size})

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

    def migrated(self, migration: Migration) -> None:
        for each in (*migration.archives, migration):
            _print(
                {
                    "dataset": each.dataset,
                    "needed": each.is_needed or each.taken is not None,
                    "done": each.done,
                    "revision": list(each.revision),
                    "added": each.added,
                    "dropped": each.dropped,
                    "retyped": {name: list(kinds) for name, kinds in each.retyped.items()},
                    "unique": [list(names) for names in each.unique],
                    "index": [list(names) for names in each.index],
                    "count": each.count,
                    "offending": each.offending,
                    "offenders": [
                        _location(offender.location)
                        | {"reason": offender.reason}
                        | {"values": {name: as_json(value) for name, value in offender.values.items()}}
                        for offender in each.offenders
                    ],
                    "backup": each.backup or "",
                    "taken": None
                    if each.taken is None
                    else _values(each.taken, "count", "renumbered", "twice", "deleted"),
                    "superseded": each.superseded,
                    "left_alone": each.left_alone,
                    "left_out": each.left_out,
                    "forgotten": each.forgotten,
                    "offline": each.offline,
                    "unfinished": each.unfinished,
                }
            )


def _values(result: Any, *keys: str) -> dict[str, Any]:
    return {key: getattr(result, key) for key in keys}


def _location(location: Location) -> dict[str, Any]:
    return {"segment": location.segment, "offset": location.offset, "size": location.size}


def _damage_and_notes(damage: Sequence[tuple[str, Damage]], notes: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "damage": [{"file": name} | _values(each, "offset", "size", "reason") for name, each in damage],
        "notes": [{"file": name, "note": note} for name, note in notes],
    }


def _left_out(done: Backup | Restored) -> dict[str, Any]:
    return {"problems": [_problem(each) for each in done.problems], "offline": as_json(done.offline)}


def _problem(problem: Problem) -> dict[str, Any]:
    return {"segment": as_json(problem.segment), "reason": as_json(problem.reason), "kept": problem.kept.value}


def _item(item: Item) -> dict[str, Any]:
    texts = {"item": item.name, "segment": item.segment, "file": item.file, "verb": item.verb, "why": item.why}
    values = {"time": item.time, "size": item.size, "offset": item.offset, "length": item.length}
    return {key: as_json(value) for key, value in (texts | values).items()}


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
