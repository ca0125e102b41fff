"""All printing: results to standard output, as text for people or as JSON, and what else there is to say to stderr.

What is printed as JSON is a promise, written down in docs/cli-json.md. Everything is UTF-8, whatever the locale.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from ondisk import json_shapes
from ondisk.cli.streams import write_stdout
from ondisk.datum import Datum, microseconds

if TYPE_CHECKING:
    from ondisk import AppendResult, Summary
    from ondisk.formats import Damage
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.migrate import Migration
    from ondisk.maintenance.states import Diagnosis, Done, Report
    from ondisk.pipeline.run import PipelineReport

_PAGE = 1000  # data in a table: more are printed as several, since a table is made in memory
_LONGEST = 80  # characters of a datum's data, in text
_VALUES = 10  # values of a field, in text
_NAMED = 10  # segments that maintain names on stderr, or that stand in one line
_LINES = 100  # segments that are told in text, a line each
_FIXES = ("rescan", "remove from the index")
_ANY_DEPTH = sys.maxsize  # data were checked when they were decoded


def complain(kind: Literal["error", "warning", "refused", "damaged", "note"], message: str) -> None:
    """Print a message on standard error."""
    with contextlib.suppress(OSError):  # nobody listens there
        # A message may quote what others wrote, as into `.lock`: nothing of that is for the terminal to carry out.
        shown = "\n".join(map(_printable, message.split("\n")))
        print(f"ondisk: {kind}: {shown}", file=sys.stderr)


def output_for(arguments: argparse.Namespace) -> Output:
    """Choose how results are printed."""
    return JsonOutput() if arguments.json else TextOutput()


class Output(ABC):
    """Prints the results of commands."""

    @abstractmethod
    def info(self, info: Mapping[str, Any]) -> None:
        """Print what a dataset is."""

    @abstractmethod
    def created(self, info: Mapping[str, Any]) -> None:
        """Print that a dataset was made."""

    @abstractmethod
    def appended(
        self, result: AppendResult, damage: Sequence[tuple[str, Damage]], notes: Sequence[tuple[str, str]]
    ) -> None:
        """Print what an append did; damage and notes with the files they are of."""

    @abstractmethod
    def imported(self, report: PipelineReport) -> None:
        """Print what a pipeline did with files, or would do."""

    @abstractmethod
    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        """Print data, one a line; of their metadata only `fields`, unless that is None."""

    @abstractmethod
    def summary(self, summary: Summary) -> None:
        """Print what matches."""

    @abstractmethod
    def would_delete(self, found: Summary) -> None:
        """Print what a delete would do."""

    @abstractmethod
    def deleted(self, count: int) -> None:
        """Print what a delete did."""

    @abstractmethod
    def checked(self, report: Report, shown: Sequence[Diagnosis | Done]) -> None:
        """Print what a check found; of the segments only those of `shown`."""

    @abstractmethod
    def would_mend(self, report: Report, verb: str, work: Sequence[Diagnosis | Done]) -> None:
        """Print what fix or repack would do."""

    @abstractmethod
    def mended(self, report: Report, left: Report) -> None:
        """Print what fix or repack did, and what a check says behind that."""

    @abstractmethod
    def maintained(self, result: Maintained, *, dry_run: bool) -> None:
        """Print what maintain did to one dataset."""

    @abstractmethod
    def migrated(self, migration: Migration) -> None:
        """Print what a migration did, or would do, with each archive and the dataset."""

    def payloads(self, payloads: Iterable[bytes]) -> None:
        """Print bytes as they are."""
        write_stdout(payloads)

    def table(self, data: Iterable[Datum], fields: Sequence[str]) -> None:
        """Print data as tables, as wide as the terminal, or wider where they do not fit; COLUMNS overrides that."""
        from ondisk.cli.table import table  # here, since it waits for rich

        def rows(page: Sequence[Datum]) -> Iterator[list[str]]:
            for datum in page:
                values = (_shown(datum.metadata.get(name)) for name in fields)
                yield [_time(datum.reftime), *values, _data_shown(datum.data)]

        header = ["reftime", *fields, "data"]
        write_stdout(table(header, list(rows(page))).encode() for page in _pages(data))


class JsonOutput(Output):
    """One JSON object a line; see docs/cli-json.md."""

    def info(self, info: Mapping[str, Any]) -> None:
        _print_json({key: _json(value) for key, value in info.items()})

    def created(self, info: Mapping[str, Any]) -> None:
        self.info(info)

    def appended(
        self, result: AppendResult, damage: Sequence[tuple[str, Damage]], notes: Sequence[tuple[str, str]]
    ) -> None:
        keys = ("imported", "duplicates", "replaced", "refused", "segments", "bytes")
        places = [
            {"file": name, "offset": each.offset, "size": each.size, "reason": each.reason} for name, each in damage
        ]
        said = [{"file": name, "note": note} for name, note in notes]
        _print_json({key: getattr(result, key) for key in keys} | {"damage": places, "notes": said})

    def imported(self, report: PipelineReport) -> None:
        keys = ("imported", "duplicates", "replaced", "refused")
        _print_json(
            {
                "pipeline": report.name,
                "dry_run": report.dry_run,
                "files": {key: getattr(report, key) for key in ("found", "known", "imported")},
                "changed": report.changed,
                "failed": [{"file": name, "reason": reason} for name, reason in report.failed],
                "datasets": [
                    {"dataset": name} | {key: getattr(result, key) for key in keys}
                    for name, result in report.datasets.items()
                ],
                "refused": [{"file": name, "reason": reason} for name, reason in report.refusals],
                "damage": [
                    {"file": name, "offset": each.offset, "size": each.size, "reason": each.reason}
                    for name, each in report.damage
                ],
                "notes": [{"file": name, "note": note} for name, note in report.notes],
            }
        )

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        def line(datum: Datum) -> bytes:
            location = datum.location
            assert location is not None, "it comes from a query"
            return _json_line(
                {
                    "reftime": _time(datum.reftime),
                    "metadata": {name: _json(value) for name, value in _metadata(datum, fields)},
                    "data": _json_data(datum.data),
                    "location": {"segment": location.segment, "offset": location.offset, "size": location.size},
                }
            )

        write_stdout(map(line, data))

    def summary(self, summary: Summary) -> None:
        counts = {
            name: [{"value": _json(value), "count": count} for value, count in values]
            for name, values in summary.fields.items()
        }
        span = {"begin": _json(summary.begin), "end": _json(summary.end)}
        _print_json({"count": summary.count, "size": summary.size, **span, "fields": counts})

    def would_delete(self, found: Summary) -> None:
        _print_json({"would_delete": found.count, "size": found.size})

    def deleted(self, count: int) -> None:
        _print_json({"deleted": count})

    def checked(self, report: Report, shown: Sequence[Diagnosis | Done]) -> None:
        last = {"dataset": _json(report.dataset), **_json_summary(report, report.freed)}
        write_stdout([*(_json_line(_json_segment(each)) for each in shown), _json_line(last)])

    def would_mend(self, report: Report, verb: str, work: Sequence[Diagnosis | Done]) -> None:
        self.checked(report, work)

    def mended(self, report: Report, left: Report) -> None:
        last = {"dataset": _json(report.dataset), **_json_summary(left, report.freed)}
        write_stdout([*(_json_line(_json_segment(each)) for each in report), _json_line(last)])

    def maintained(self, result: Maintained, *, dry_run: bool) -> None:
        left = result.left
        freed = left.freed if dry_run and left is not None else result.freed
        _print_json(
            {
                "dataset": _json(result.dataset),
                "exit_code": result.exit_code,
                "error": None if result.error is None else _json(str(result.error)),
                "done": list(map(_json_segment, result.done)),
                "findings": list(map(_json_segment, result.findings)),
                "count": result.count,
                "rebuilt": result.rebuilt,
                "duration": round(result.duration, 3),
                **(_json_summary(left, freed) if left is not None else {"needs_check": None, "summary": None}),
            }
        )

    def migrated(self, migration: Migration) -> None:
        for each in (*migration.archives, migration):
            _print_json(
                {
                    "dataset": each.dataset,
                    "needed": each.changes_index,
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
                        {
                            "segment": offender.location.segment,
                            "offset": offender.location.offset,
                            "size": offender.location.size,
                            "reason": offender.reason,
                            "values": {name: _json(value) for name, value in offender.values.items()},
                        }
                        for offender in each.offenders
                    ],
                    "backup": each.backup or "",
                }
            )


class TextOutput(Output):
    """Text for people: not for programs, and not the same in every version."""

    def info(self, info: Mapping[str, Any]) -> None:
        rows = {key.replace("_", " "): _listed(value) for key, value in info.items()}
        _print_rows((rows | {"path": _printable(info["path"])}).items())

    def created(self, info: Mapping[str, Any]) -> None:
        _print(f"made the dataset {_printable(info['path'])}")

    def appended(
        self, result: AppendResult, damage: Sequence[tuple[str, Damage]], notes: Sequence[tuple[str, str]]
    ) -> None:
        counts = f"{result.imported} imported, {_many(result.duplicates, 'duplicate')}, "
        counts += f"{result.replaced} replaced, " * bool(result.replaced) + f"{result.refused} refused"
        _print(f"{counts}; {_many(result.bytes, 'byte')} in {_many(result.segments, 'segment')}")

    def imported(self, report: PipelineReport) -> None:
        verb = "to import" if report.dry_run else "imported"
        parts = [f"{_many(report.imported, 'file')} {verb}", f"{report.known} known"]
        parts += [f"{len(files)} {what}" for files, what in ((report.changed, "changed"), (report.failed, "failed"))
                  if files]  # fmt: skip
        _print_lines([f"{report.name}: {', '.join(parts)}", *map(_taken, *zip(*report.datasets.items(), strict=True))])

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        def line(datum: Datum) -> bytes:
            pairs = [f"{_printable(name)}={_shown(value)}" for name, value in _metadata(datum, fields)]
            return "  ".join([_time(datum.reftime), *pairs, _data_shown(datum.data)]).rstrip().encode() + b"\n"

        write_stdout(map(line, data))

    def summary(self, summary: Summary) -> None:
        rows = {"count": summary.count, "size": summary.size, "begin": summary.begin, "end": summary.end}
        counts = ((name, _counted(values)) for name, values in summary.fields.items())
        _print_rows([*((key, _listed(value)) for key, value in rows.items()), *counts])

    def would_delete(self, found: Summary) -> None:
        how = "; --yes deletes them" if found.count else ""
        _print(f"{found.count} data of {_many(found.size, 'byte')} would be deleted{how}")

    def deleted(self, count: int) -> None:
        _print(f"{count} data deleted")

    def checked(self, report: Report, shown: Sequence[Diagnosis | Done]) -> None:
        space = f"a repack frees {_many(report.freed, 'byte')}"
        is_all = any(not each.state for each in shown)  # as was asked for
        lines = map(_found, shown) if is_all else _first(_found, shown)
        _print_lines([*lines, f"{_state(report)}; {space}", *_deletions(report), *_untrusted(report)])

    def would_mend(self, report: Report, verb: str, work: Sequence[Diagnosis | Done]) -> None:
        how = "; --yes does it" if work or report.needs_check else ""
        what = f"{_many(len(work), 'segment')} to {verb}{how}"
        _print_lines([*_first(_found, work), _state(report), what, *_deletions(work)])

    def mended(self, report: Report, left: Report) -> None:
        state = f"{_state(left)}; {_many(report.freed, 'byte')} freed"
        _print_lines([*_first(_done, report.segments), state, *_untrusted(left)])

    def maintained(self, result: Maintained, *, dry_run: bool) -> None:
        parts = []
        if result.error is not None:
            parts.append(f"failed with {result.exit_code}")
        if result.left is not None:
            parts.append(_counts(result.left) + "; the index was lost" * result.left.needs_check)
        done = Counter(each.action for each in (result.findings if dry_run else result.done) if each.action)
        if done:
            parts.append("would " * dry_run + ", ".join(f"{action} {count}" for action, count in done.items()))
        if not dry_run:
            parts.append(f"{_many(result.freed, 'byte')} freed in {result.duration:.1f} s")
        _print(_printable(f"{result.dataset}: {'; '.join(parts)}"))
        if not dry_run:
            _complain_of(result)

    def migrated(self, migration: Migration) -> None:
        for each in (*migration.archives, migration):
            if not each.changes_index:
                _print(f"{_printable(each.dataset)}: nothing to do")
                continue
            _print(f"{_printable(each.dataset)}: " + ("migrated" if each.done else "to be migrated"))
            _print("\n".join(f"  {line}" for line in _changes(each)))
            for offender in each.offenders:
                at = offender.location
                values = "".join(f"  {name}={_shown(value)}" for name, value in offender.values.items())
                _print(f"  {at.segment}, byte {at.offset}: {_printable(offender.reason)}{values}")
            if each.offending > len(each.offenders):
                _print(f"  and {each.offending - len(each.offenders)} more")


def _taken(name: str, result: AppendResult) -> str:
    counts = {"imported": result.imported} | {
        key: count for key in ("duplicates", "replaced", "refused") if (count := getattr(result, key))
    }
    return f"  {name}: {', '.join(f'{count} {key}' for key, count in counts.items())}"


def _changes(migration: Migration) -> Iterator[str]:
    """Say, a line each, what a migration changes."""
    before, after = migration.revision
    if before != after:
        yield f"revision {before} becomes {after}"
    yield from (f"field {name}, {kind}, is added" for name, kind in migration.added.items())
    yield from (
        f"field {name}, {kind}, is dropped; its values stay with the data" for name, kind in migration.dropped.items()
    )
    for name, (was, now) in migration.retyped.items():
        yield f"field {name} is {now} instead of {was}"
    for key, (names, wanted) in (("unique", migration.unique), ("index", migration.index)):
        if names != wanted:
            yield f"{key} is {', '.join(wanted) or 'empty'} instead of {', '.join(names) or 'empty'}"
    if migration.count:
        yield f"the metadata of {migration.count} data are read from the segments"
    if migration.backup:
        yield f"the old index is kept in {migration.backup}"


def _metadata(datum: Datum, fields: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    if fields is None:
        return iter(datum.metadata.items())
    return ((name, datum.metadata[name]) for name in fields if name in datum.metadata)


def _json_segment(each: Diagnosis | Done) -> dict[str, Any]:
    said = {"segment": each.segment, "states": each.state.names, "reasons": list(each.reasons), "action": each.action}
    lost = getattr(each, "lost", None)
    return (
        {key: _json(value) for key, value in said.items()}
        | {"freed": each.freed}
        | ({} if lost is None else {"lost": lost})
    )


def _json_summary(report: Report, freed: int) -> dict[str, Any]:
    return {"needs_check": report.needs_check, "summary": {**report.counts, "freed": freed}}


def _first(told: Callable[[Diagnosis | Done], str], segments: Sequence[Diagnosis | Done]) -> Iterator[str]:
    """Tell of segments a line each, of many only of the first."""
    yield from map(told, segments[:_LINES])
    if len(segments) > _LINES:
        yield f"and {len(segments) - _LINES:,} more; --json has all"


def _told(each: Diagnosis | Done) -> str:
    """Say of a segment what it is in, and why."""
    return ": ".join([each.segment, ", ".join(each.state.names), *filter(None, ["; ".join(each.reasons)])])


def _found(each: Diagnosis | Done) -> str:
    if each.action is None:
        return f"{_told(each)} -> left alone" if each.state else _told(each)
    if hasattr(each, "lost"):  # what a verb will do that was named, as archive
        return _done(each)
    verb = "fix: " if each.action in _FIXES else "" if "repack" in each.action else "repack: "
    return f"{_told(each)} -> {verb}{each.action}"


def _done(each: Diagnosis | Done) -> str:
    freed = f", {_many(each.freed, 'byte')} freed" if each.freed else ""
    return f"{_told(each)} -> {each.action}{freed}" if each.action else f"{_told(each)} -> left alone"


def _state(report: Report) -> str:
    return f"{report.dataset}: {_counts(report)}"


def _counts(report: Report) -> str:
    (_, ok), *others = report.counts.items()
    return ", ".join([f"{_many(ok, 'segment')} OK", *(f"{count} {name.upper()}" for name, count in others if count)])


def _deletions(found: Iterable[Diagnosis | Done]) -> list[str]:
    """Name what a repack deletes: nothing brings that back."""
    names = [each.segment for each in found if each.action == "delete"]
    more = f" and {len(names) - _NAMED:,} more; --json names all" * (len(names) > _NAMED)
    named = ", ".join(names[:_NAMED]) + more
    return [f"the next repack DELETES {_many(len(names), 'segment')}: {named}"] if names else []


def _untrusted(report: Report) -> list[str]:
    how = f"nothing is repacked before `ondisk fix {report.dataset} --yes` went through"
    return [f"the index was lost and may not know all data: {how}"] if report.needs_check else []


def _complain_of(result: Maintained) -> None:
    """Say on standard error what people must know of a run at night: what was lost or deleted, and what is left."""
    if result.rebuilt:
        back = "data that were deleted, and not yet removed by a repack, are back with the others"
        complain("note", f"{result.dataset}: the index was lost and made anew: {back}")
    unknown = [each for each in result.done if each.action == "delete" and "DELETED" in each.state.names]
    lost = [each for each in result.done if each.lost]
    said: list[tuple[Literal["note", "damaged", "warning"], Sequence[Diagnosis | Done]]] = [
        ("note", unknown),
        ("damaged", lost),
        ("warning", result.findings),
    ]
    for kind, segments in said:
        for each in segments[:_NAMED]:
            complain(kind, _printable(f"{result.dataset}: {_found(each) if kind == 'warning' else _done(each)}"))
        if len(segments) > _NAMED:
            complain(kind, f"{result.dataset}: and {len(segments) - _NAMED} segments more")


def _pages(data: Iterable[Datum]) -> Iterator[list[Datum]]:
    iterator = iter(data)
    while page := list(islice(iterator, _PAGE)):
        yield page


def _time(time: datetime) -> str:
    return json_shapes.format_time(microseconds(time))


def _json(value: Any) -> Any:
    return _time(value) if isinstance(value, datetime) else json_shapes.to_json(value, _ANY_DEPTH)


def _json_data(data: Any) -> Any:
    # Of a mapping only the values are turned: with a single key it may look like a shape, as {"$bytes": …} does.
    return {key: _json(value) for key, value in data.items()} if isinstance(data, Mapping) else _json(data)


def _json_line(value: Any) -> bytes:
    return json_shapes.dump(value) + b"\n"


def _print_json(value: Any) -> None:
    write_stdout([_json_line(value)])


def _print(text: str) -> None:
    write_stdout([text.encode() + b"\n"])


def _print_lines(lines: Iterable[str]) -> None:
    write_stdout(_printable(line).encode() + b"\n" for line in lines)


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    known = [(_printable(name), value) for name, value in rows]
    width = max(len(name) for name, _ in known)
    _print("\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in known))


def _listed(value: Any) -> str:
    """Show a value that may be a list or a mapping."""
    if isinstance(value, Mapping):
        return "  ".join(f"{key}={_shown(each)}" for key, each in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list) else _shown(value)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _counted(values: Sequence[tuple[Any, int]]) -> str:
    parts = [f"{'missing' if value is None else _shown(value)} ({count})" for value, count in values[:_VALUES]]
    more = len(values) - _VALUES
    return "  ".join(parts) + f"  and {more} more" * (more > 0)


def _shown(value: Any) -> str:
    """Show one value on one line, in quotes where it would be mistaken for something else."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, bytes):
        return value.hex()
    text = str(value)
    plain = text and text.isprintable() and not set(' "=') & set(text)
    return text if plain else _printable(json.dumps(text, ensure_ascii=False))


def _data_shown(data: Any) -> str:
    if data is None:
        return ""
    if isinstance(data, bytes):
        text = data[: 4 * _LONGEST].decode(errors="backslashreplace")
    else:
        text = json_shapes.dump(_json_data(data)).decode()
    text = _printable(text[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _printable(text: str) -> str:
    """Write as escapes what could move the cursor, or is no text at all."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
