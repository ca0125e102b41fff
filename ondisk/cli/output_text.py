"""Results of commands as text for people; it may change with every version, so programs read the JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ondisk import json_shapes
from ondisk.cli.streams import complain, printable, write_stdout
from ondisk.dataset.json_lines import json_data, metadata_of, time_text
from ondisk.datum import Datum, Value
from ondisk.errors import command, counted
from ondisk.formats.foreign import kind_of
from ondisk.step import place_of

if TYPE_CHECKING:
    from ondisk import FieldSummary, Group, Summary
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.states import Diagnosis, Done, Report

_PAGE = 1000  # data in a table: a table is laid out in memory, so more data are printed as several tables
_LONGEST = 80  # characters of a datum's data
_NAMED = 10  # segments that one line names, or that maintain names on standard error
_LINES = 100  # segments with a line each
_PERIODS = {"hour": 16, "day": 10, "month": 7, "year": 4}  # and how much of the text of a time names it
_T = TypeVar("_T")
_CONTROLS = frozenset(map(chr, {*range(32), 127} - {*b"\t\n\v\f\r\x1b"}))
_FIXES = ("rescan", "remove from the index", "follow")


class TextOutput:
    """Prints results as text. Each method prints one kind of result; `JsonOutput` has the same methods."""

    def show(self, values: Iterable[Mapping[str, Any]], lines: Iterable[str]) -> None:
        """Print lines. `JsonOutput` prints the values, each as an object, and does not ask for the lines."""
        _print_lines(lines)

    def info(self, info: Mapping[str, Any]) -> None:
        rows = {key.replace("_", " "): _listed(value) for key, value in info.items()}
        _print_rows((rows | {"path": printable(info["path"])}).items())

    def formats(self, found: Iterable[Mapping[str, Any]]) -> None:
        rows = []
        for each in found:
            needs = f"; needs ondisk[{each['extra']}]" if each["extra"] else ""
            rows.append((each["format"], f"{' '.join(each['extensions'])}; {each['segments']} segments{needs}"))
        _print_rows(rows)

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        def line(datum: Datum) -> bytes:
            pairs = [f"{printable(name)}={shown_value(value)}" for name, value in metadata_of(datum, fields)]
            return (
                "  ".join([time_text(datum.reftime), *_source(datum), *pairs, _data_shown(datum.data)])
                .rstrip()
                .encode()
                + b"\n"
            )

        write_stdout(map(line, data))

    def summary(self, summary: Summary) -> None:
        rows = {"count": summary.count, "size": summary.size, "begin": summary.begin, "end": summary.end}
        counts = ((name, _counted(each)) for name, each in summary.fields.items())
        _print_rows([*((key, _listed(value)) for key, value in rows.items()), *counts])

    def groups(self, groups: Iterable[Group], by: Sequence[str], of: str | None) -> None:
        from ondisk.cli.table import table  # here, since it waits for rich

        is_span_known = not _PERIODS.keys().isdisjoint(by) or of is not None  # or there is no room for it

        def cells(group: Group) -> list[str]:
            span = [] if is_span_known else [time_text(group.begin), time_text(group.end)]
            values = [number_text(each) for each in (group.min, group.mean, group.max)] if of else []
            return [*key_texts(group, by), str(group.count), str(group.size), *span, *values]

        header = [*by, "count", "size", *(() if is_span_known else ("begin", "end"))]
        header += ("lowest", "mean", "highest") if of else ()
        write_stdout(table(header, [*map(cells, page)]).encode() for page in _pages(groups))

    def checked(self, report: Report, shown: Sequence[Diagnosis | Done]) -> None:
        space = f"a repack frees {counted(report.freed, 'byte')}"
        is_all = any(not each.state for each in shown)  # --all was given
        lines = map(_found, shown) if is_all else _first(_found, shown)
        notes = [
            *_damaged(report),
            *_touched(report),
            *_consumed(report),
            *_second_copies(report),
            *_deletions(report),
            *_untrusted(report),
            *_quarantine(report),
            *_replaced(report),
        ]
        _print_lines([*lines, f"{_state(report)}; {space}", *notes])

    def would_mend(
        self, report: Report, verb: str, work: Sequence[Diagnosis | Done], left: Sequence[Diagnosis | Done] = ()
    ) -> None:
        how = "; --yes does it" if work or report.needs_check else ""
        is_place = bool(work) and all(place_of(f"{each.segment}/") == f"{each.segment}/" for each in work)
        what = f"{counted(len(work), 'archive' if is_place else 'segment')} to {verb}{how}"
        _print_lines([*_first(_found, [*work, *left]), _state(report), what, *_damaged(report), *_deletions(work)])

    def would_rebuild(self, report: Report) -> None:
        found = report.segments
        total = f"{len(found)} {'index' if len(found) == 1 else 'indices'} to rebuild"
        _print_lines([*map(_done, found), f"{report.dataset}: {total}; --yes does it, and reads the segments"])

    def mended(self, report: Report, left: Report) -> None:
        state = f"{_state(left)}; {_freed(report.freed)}"
        _print_lines([*_first(_done, report.segments), state, *_damaged(left), *_untrusted(left), *_quarantine(left)])

    def maintained(self, result: Maintained, *, dry_run: bool) -> None:
        parts = []
        if result.error is not None:
            parts.append(f"failed with {result.exit_code}")
        if result.left is not None:
            parts.append(_counts(result.left))
        done = Counter(each.action for each in (result.findings if dry_run else result.done) if each.action)
        if done:
            parts.append("would " * dry_run + ", ".join(f"{action} {count}" for action, count in done.items()))
        if result.left is not None and result.left.quarantine.items:
            parts.append(f"{counted(result.left.quarantine.items, 'item')} in quarantine")
        if not dry_run:
            parts.append(f"{_freed(result.freed)} in {result.duration:.1f} s")
        _print(printable(f"{result.dataset}: {'; '.join(parts)}"))
        for line in () if result.left is None else _untrusted(result.left):
            complain("warning", printable(f"{result.dataset}: {line}"))
        _complain_of(result)


def print_table(data: Iterable[Datum], fields: Sequence[str], *, datasets: bool = False) -> None:
    """Print data as tables as wide as the terminal, or wider if a column needs it. `datasets`: name theirs."""
    from ondisk.cli.table import table  # here, since it waits for rich

    def rows(page: Sequence[Datum]) -> Iterator[list[str]]:
        for datum in page:
            values = (shown_value(datum.metadata.get(name)) for name in fields)
            yield [time_text(datum.reftime), *_source(datum), *values, _data_shown(datum.data)]

    header = ["reftime", *["dataset"] * datasets, *fields, "data"]
    write_stdout(table(header, list(rows(page))).encode() for page in _pages(data))


def _source(datum: Datum) -> list[str]:
    """Return the dataset that a datum says it is from, if it says one."""
    return [] if datum.dataset is None else [shown_value(datum.dataset)]


def key_texts(group: Group, by: Sequence[str]) -> list[str]:
    """Return the key of a group, or its keys, as texts."""
    keys = group.key if isinstance(group.key, tuple) else (group.key,)
    return [key_text(*each) for each in zip(keys, by, strict=True)]


def key_text(key: Any, by: str) -> str:
    """Return the key of a group as text: a period as `2026-11-20`, a missing value as `missing`."""
    if key is None:
        return "missing"
    if by in _PERIODS and isinstance(key, datetime):
        # Of the two hours of a clock that is put back, only the offset says which one is meant.
        offset = key.isoformat()[19:] if by == "hour" and key.tzinfo is not UTC else ""
        return key.isoformat(" ")[: _PERIODS[by]] + offset
    return shown_value(key)


def number_text(value: Value | None) -> str:
    """Return a value with six digits, enough for a glance; nothing if it is missing."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else shown_value(value)


def _pages(data: Iterable[_T]) -> Iterator[list[_T]]:
    iterator = iter(data)
    while page := list(islice(iterator, _PAGE)):
        yield page


def _first(line: Callable[[Diagnosis | Done], str], segments: Sequence[Diagnosis | Done]) -> Iterator[str]:
    """Yield a line for each of the first segments, and how many more there are."""
    yield from map(line, segments[:_LINES])
    if len(segments) > _LINES:
        yield f"and {len(segments) - _LINES:,} more; --json lists all"


def _states(each: Diagnosis | Done) -> str:
    """Return a segment's name, its states and the reasons."""
    return ": ".join([each.segment, ", ".join(each.state.names), *filter(None, ["; ".join(each.reasons)])])


def _found(each: Diagnosis | Done) -> str:
    if hasattr(each, "lost"):  # a `Done`: the command was named, for example archive
        return _done(each)
    if each.action is None:
        return f"{_states(each)} -> left alone" if each.state else _states(each)
    verb = "fix: " if each.action in _FIXES else "" if "repack" in each.action else "repack: "
    return f"{_states(each)} -> {verb}{each.action}"


def _done(each: Diagnosis | Done) -> str:
    freed = f", {_freed(each.freed)}" if each.freed else ""
    return f"{_states(each)} -> {each.action}{freed}" if each.action else f"{_states(each)} -> left alone"


def _freed(count: int) -> str:
    """Return how many bytes were freed; or, of a repack that needs more than before, how many more are used."""
    return f"{counted(count, 'byte')} freed" if count >= 0 else f"{counted(-count, 'byte')} more used"


def _state(report: Report) -> str:
    return f"{report.dataset}: {_counts(report)}"


def _counts(report: Report) -> str:
    (_, ok), *others = report.counts.items()
    return ", ".join([f"{counted(ok, 'segment')} OK", *(f"{count} {name.upper()}" for name, count in others if count)])


def _deletions(found: Iterable[Diagnosis | Done]) -> list[str]:
    """Return a warning that names the segments a repack will delete for good."""
    names = [each.segment for each in found if each.action == "delete"]
    more = f" and {len(names) - _NAMED:,} more; --json lists all" * (len(names) > _NAMED)
    named = ", ".join(names[:_NAMED]) + more
    return [f"the next repack DELETES {counted(len(names), 'segment')}: {named}"] if names else []


def _untrusted(report: Report) -> list[str]:
    how = f"run {command('fix', report.dataset, '--yes')}, else nothing is repacked"
    return [f"the index was lost and may not know all data: {how}"] if report.needs_check else []


def _damaged(report: Report) -> list[str]:
    """Return the remedy for segments whose content is damaged."""
    names = [each.segment for each in report if getattr(each, "noted", False)]
    if not names:
        return []
    salvage = command("fix", report.dataset, "--salvage", names[0], "--yes")
    what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    return [f"damaged: {what}: put the file back from a backup; without one, {salvage} keeps what is whole"]


def _touched(report: Report) -> list[str]:
    names = report.touched
    if not names:
        return []
    more = f" and {len(names) - _NAMED:,} more" * (len(names) > _NAMED)
    how = f"{command('fix', report.dataset, '--yes')} compares their bytes"
    return [f"touched since they were written: {', '.join(names[:_NAMED])}{more}; {how}"]


def _second_copies(report: Report) -> list[str]:
    from ondisk.maintenance.inspect import SECOND_COPIES  # here, since a query does not need it

    count = sum(SECOND_COPIES in each.reasons for each in report)
    how = f"{command('repack', report.dataset, '--second-copies', '--yes')} removes them"
    return [f"second copies of data in other segments: {counted(count, 'segment')}; {how}"] * (count > 0)


def _consumed(report: Report) -> list[str]:
    if not report.consumed:
        return []
    how = f"{command('fix', report.dataset, '--yes')} removes them from the index"
    return [f"{counted(report.consumed, 'segment')} read and removed by the consumer of the queue: {how}"]


def _quarantine(report: Report) -> list[str]:
    items, size = report.quarantine
    how = f"{command('quarantine', report.dataset)} lists what was in the way"
    return [f"{counted(items, 'item')} in quarantine, {counted(size, 'byte')}: {how}"] if items else []


def _replaced(report: Report) -> list[str]:
    segments, size, until = report.replaced
    if until is None:
        return []
    time = time_text(datetime.fromtimestamp(until, UTC).replace(microsecond=0))
    how = "the first repack after that removes them"
    return [f"{counted(segments, 'replaced segment')} kept for readers, {counted(size, 'byte')}, until {time}: {how}"]


def _complain_of(result: Maintained) -> None:
    """Print on standard error what was lost, was deleted or came back, and the findings that are left."""
    if result.rebuilt:
        back = "deleted data that no repack had removed yet are back"
        complain("note", f"{result.dataset}: the index was lost and was rebuilt: {back}")
    if result.kept:
        hint = f"{command('quarantine', result.dataset)} lists it"
        items = counted(len(result.kept), "item")
        complain("warning", printable(f"{result.dataset}: {items} moved to quarantine; {hint}"))
    unknown = [each for each in result.done if each.action == "delete" and "DELETED" in each.state.names]
    lost = [each for each in result.done if each.lost]
    returned = [each for each in result.done if each.returned and not each.lost and not result.rebuilt]
    groups: list[tuple[Literal["note", "damaged", "warning"], Sequence[Diagnosis | Done]]] = [
        ("note", unknown),
        ("note", returned),
        ("damaged", lost),
        ("warning", result.findings),
    ]
    for kind, segments in groups:
        for each in segments[:_NAMED]:
            complain(kind, printable(f"{result.dataset}: {_found(each) if kind == 'warning' else _done(each)}"))
        if len(segments) > _NAMED:
            how = f"; {command('check', result.dataset, '--json')} lists all" if kind == "warning" else ""
            complain(kind, printable(f"{result.dataset}: and {len(segments) - _NAMED} more segments{how}"))


def _print(text: str) -> None:
    write_stdout([text.encode() + b"\n"])


def _print_lines(lines: Iterable[str]) -> None:
    write_stdout(printable(line).encode() + b"\n" for line in lines)


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    known = [(printable(name), value) for name, value in rows]
    width = max(len(name) for name, _ in known)
    _print("\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in known))


def _listed(value: Any) -> str:
    """Return the text of a value that may be a list or a mapping."""
    if isinstance(value, Mapping):
        return "  ".join(f"{key}={shown_value(each)}" for key, each in value.items() if each is not None)
    if isinstance(value, list):
        return ", ".join(_listed(each) if isinstance(each, Mapping) else shown_value(each) for each in value)
    return shown_value(value)


def _counted(field: FieldSummary) -> str:
    parts = [f"missing ({field.missing})"] if field.missing else []
    parts += [f"{shown_value(value)} ({count})" for value, count in field.values]
    if (more := field.distinct - len(field.values)) > 0:
        parts.append(f"and {more} more")
    span = f"; min {shown_value(field.min)}, max {shown_value(field.max)}" if field.min != field.max else ""
    return "  ".join(parts) + span


def shown_value(value: Any) -> str:
    """Return the text of one value on one line, in quotes if it contains a blank, a quote or an equals sign."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return ",".join(map(shown_value, value))
    text = str(value)
    plain = text and text.isprintable() and not set(' "=') & set(text)
    return text if plain else printable(json.dumps(text, ensure_ascii=False))


def _data_shown(data: Any) -> str:
    if data is None:
        return ""
    if isinstance(data, bytes):
        head = data[: 4 * _LONGEST]
        if (kind := _kind_of(head)) is not None:
            return f"{kind}, {counted(len(data), 'byte')}"
        text = head.decode(errors="backslashreplace")
    else:
        text = json_shapes.dump(json_data(_beginning(data, [_LONGEST]))).decode()
    text = printable(text[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _kind_of(head: bytes) -> str | None:
    """Return what data are that begin with these bytes; None for text.

    Text has few control characters. It may be in another encoding than UTF-8, but most of it is still readable then.
    """
    text = head.decode(errors="replace")
    is_text = _CONTROLS.isdisjoint(text) and 4 * text.count("\ufffd") <= len(head)
    return kind_of(head) or (None if is_text else "binary")


def _beginning(value: Any, room: list[int]) -> Any:
    """Return the beginning of data, which may be megabytes, enough for a line. `room`: how many values fit."""
    room[0] -= 1
    if isinstance(value, str | bytes):
        return value[: _LONGEST + 1]
    if isinstance(value, Mapping):
        items = takewhile(lambda _: room[0] > 0, value.items())
        return {_beginning(key, room): _beginning(each, room) for key, each in items}
    if isinstance(value, list | tuple):
        return [_beginning(each, room) for each in takewhile(lambda _: room[0] > 0, value)]
    return value
