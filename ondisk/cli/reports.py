"""What check, fix, repack and maintain print of the segments of a dataset, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from ondisk.cli.streams import Output, complain, printable
from ondisk.errors import command, counted

if TYPE_CHECKING:
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.states import Diagnosis, Done, Report

_NAMED = 10  # segments that one line names, or that maintain names on standard error
_LINES = 100  # segments with a line each
_FIXES = ("rescan", "remove from the index", "follow")
_NO_STATE = dict.fromkeys(("needs_check", "summary", "quarantine", "replaced"))


def show_checked(report: Report, shown: Sequence[Diagnosis | Done], output: Output) -> None:
    space = f"a repack frees {counted(report.freed, 'byte')}"
    is_all = any(not each.state for each in shown)  # --all was given
    lines = map(_found, shown) if is_all else _first(_found, shown)
    notes = (_damaged(report), _touched(report), _consumed(report), _second_copies(report), _deletions(report),
             _untrusted(report), _quarantine(report), _replaced(report))  # fmt: skip
    output.show(_values(report, shown), chain(lines, [f"{_state(report)}; {space}"], *notes))


def show_would_mend(
    report: Report, verb: str, work: Sequence[Diagnosis | Done], left: Sequence[Diagnosis | Done], output: Output
) -> None:
    from ondisk.step import place_of

    how = "; --yes does it" if work or report.needs_check else ""
    is_place = bool(work) and all(place_of(f"{each.segment}/") == f"{each.segment}/" for each in work)
    what = f"{counted(len(work), 'archive' if is_place else 'segment')} to {verb}{how}"
    every = [*work, *left]
    lines = chain(_first(_found, every), [_state(report), what], _damaged(report), _deletions(work))
    output.show(_values(report, every), lines)


def show_would_rebuild(report: Report, output: Output) -> None:
    found = report.segments
    total = f"{len(found)} {'index' if len(found) == 1 else 'indices'} to rebuild"
    lines = [*map(_done, found), f"{report.dataset}: {total}; --yes does it, and reads the segments"]
    output.show(_values(report, found), lines)


def show_mended(report: Report, left: Report, output: Output) -> None:
    state = f"{_state(left)}; {_freed(report.freed)}"
    lines = chain(_first(_done, report.segments), [state], _damaged(left), _untrusted(left), _quarantine(left))
    output.show(_values(left, report.segments, report.freed), lines)


def _values(report: Report, segments: Sequence[Diagnosis | Done], freed: int | None = None) -> Iterator[dict[str, Any]]:
    from ondisk.maintenance.last_report import segment_as_json, state_as_json

    yield from map(segment_as_json, segments)
    yield {"dataset": report.dataset, **state_as_json(report, report.freed if freed is None else freed)}


def show_maintained(result: Maintained, output: Output, *, dry_run: bool) -> None:
    """Print what maintain did to a dataset, and on standard error what was lost or is left."""
    as_text: list[Maintained] = []

    def values() -> Iterator[dict[str, Any]]:
        from ondisk.maintenance.last_report import segment_as_json, state_as_json

        left = result.left
        yield {
            "dataset": result.dataset,
            "exit_code": result.exit_code,
            "error": None if result.error is None else str(result.error),
            "done": [*map(segment_as_json, result.done)],
            "findings": [*map(segment_as_json, result.findings)],
            "count": result.count,
            "rebuilt": result.rebuilt,
            "kept": result.kept,
            "duration": round(result.duration, 3),
            **(_NO_STATE if left is None else state_as_json(left, left.freed if dry_run else result.freed)),
        }

    def lines() -> Iterator[str]:
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
        yield f"{result.dataset}: {'; '.join(parts)}"
        as_text.append(result)

    output.show(values(), lines())
    for each in as_text:  # not with --json, which has all of it
        for line in () if each.left is None else _untrusted(each.left):
            complain("warning", printable(f"{each.dataset}: {line}"))
        _complain_of(each)


def _first(line: Callable[[Diagnosis | Done], str], segments: Sequence[Diagnosis | Done]) -> Iterator[str]:
    """Yield a line for each of the first segments, and how many more there are."""
    yield from map(line, segments[:_LINES])
    if len(segments) > _LINES:
        yield f"and {len(segments) - _LINES:,} more; --json lists all"


def _states(each: Diagnosis | Done) -> str:
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
    named = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED:,} more; --json lists all" * (len(names) > _NAMED)
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
    how = f"{command('repack', report.dataset, '--second-copies', '--yes')} compares and removes them"
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
    from ondisk.dataset.json_lines import time_text

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
