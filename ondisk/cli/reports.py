"""What check, fix, repack and maintain print of the segments of a dataset, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
_NO_STATE = dict.fromkeys(("needs_check", "summary", "quarantine", "replaced"))


def show_checked(report: Report, shown: Sequence[Diagnosis | Done], output: Output) -> None:
    space = f"a repack frees {counted(report.freed, 'byte')}"
    is_all = any(not each.state for each in shown)  # --all was given
    lines = map(_line, shown) if is_all else _first(shown)
    output.show(
        _values(report, shown), chain(lines, [f"{_state(report)}; {space}"], _notes(report), _deletions(report))
    )


def show_would_mend(
    report: Report, verb: str, work: Sequence[Diagnosis | Done], left: Sequence[Diagnosis | Done], output: Output
) -> None:
    from ondisk.step import is_place

    how = "; --yes does it" if work or report.needs_check else ""
    noun = "folder" if work and all(is_place(each.segment) for each in work) else "segment"
    what = f"{counted(len(work), noun)} to {verb}{how}"
    every = [*work, *left]
    lines = chain(_first(every), [_state(report), what], _damaged(report), _deletions(work))
    output.show(_values(report, every), lines)


def show_would_rebuild(report: Report, output: Output) -> None:
    found = report.segments
    total = f"{len(found)} {'index' if len(found) == 1 else 'indices'} to rebuild"
    lines = [*map(_line, found), f"{report.dataset}: {total}; --yes does it, and reads the segments"]
    output.show(_values(report, found), lines)


def show_mended(report: Report, left: Report, output: Output) -> None:
    lines = chain(_first(report.segments), [f"{_state(left)}; {_freed(report.freed)}"], _notes(left))
    output.show(_values(left, report.segments, report.freed), lines)


def _values(report: Report, segments: Sequence[Diagnosis | Done], freed: int | None = None) -> Iterator[dict[str, Any]]:
    from ondisk.maintenance.last_report import segment_as_json, state_as_json

    yield from map(segment_as_json, segments)
    yield {"dataset": report.dataset, **state_as_json(report, report.freed if freed is None else freed)}


def show_maintained(result: Maintained, output: Output, *, dry_run: bool) -> None:
    """Print what maintain did to a dataset, and on standard error what was lost or is left."""

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

    output.show(values(), lines())
    if not output.as_json:  # which has all of it
        _complain_of(result)


def _first(segments: Sequence[Diagnosis | Done]) -> Iterator[str]:
    """Yield a line for each of the first segments, and how many more there are."""
    yield from map(_line, segments[:_LINES])
    if len(segments) > _LINES:
        yield f"and {len(segments) - _LINES:,} more; --json lists all"


def _line(each: Diagnosis | Done) -> str:
    """Return what is wrong with a segment, and what mends it; of a `Done`, what was done."""
    states = ": ".join([each.segment, ", ".join(each.state.names), *filter(None, ["; ".join(each.reasons)])])
    is_done = hasattr(each, "lost")
    if each.action is None:
        return f"{states} -> left alone" if each.state or is_done else states
    if is_done:
        return f"{states} -> {each.action}" + (f", {_freed(each.freed)}" if each.freed else "")
    from ondisk.maintenance.states import REWRITES, Action  # here, so that --help does not wait for it

    is_fixed = each.action in (Action.RESCAN, Action.REMOVE, Action.FOLLOW)
    verb = "fix: " if is_fixed else "" if each.action in REWRITES else "repack: "
    return f"{states} -> {verb}{each.action}"


def _freed(count: int) -> str:
    """Return how many bytes were freed; or, of a repack that needs more than before, how many more are used."""
    return f"{counted(count, 'byte')} freed" if count >= 0 else f"{counted(-count, 'byte')} more used"


def _state(report: Report) -> str:
    return f"{report.dataset}: {_counts(report)}"


def _counts(report: Report) -> str:
    (_, ok), *others = report.counts.items()
    return ", ".join([f"{counted(ok, 'segment')} OK", *(f"{count} {name.upper()}" for name, count in others if count)])


def _notes(report: Report) -> Iterator[str]:
    """Yield what else there is to say of a dataset, each time with the command that helps."""
    from ondisk.dataset.datum_as_json import time_text
    from ondisk.maintenance.inspect import SECOND_COPIES  # here, since a query does not need them

    dataset = report.dataset
    yield from _damaged(report)
    if report.touched:
        how = f"{command('fix', dataset, '--yes')} compares their bytes"
        yield f"touched since they were written: {_named(report.touched)}; {how}"
    if report.consumed:
        how = f"{command('fix', dataset, '--yes')} removes them from the index"
        yield f"{counted(report.consumed, 'segment')} read and removed by the consumer of the queue: {how}"
    if copies := sum(SECOND_COPIES in each.reasons for each in report):
        how = f"{command('repack', dataset, '--second-copies', '--yes')} compares and removes them"
        yield f"second copies of data in other segments: {counted(copies, 'segment')}; {how}"
    if report.needs_check:
        yield _untrusted(dataset)
    items, size = report.quarantine
    if items:
        how = f"{command('quarantine', dataset)} lists what was in the way"
        yield f"{counted(items, 'item')} in quarantine, {counted(size, 'byte')}: {how}"
    segments, size, until = report.replaced
    if until is not None:
        time = time_text(datetime.fromtimestamp(until, UTC).replace(microsecond=0))
        kept = f"{counted(segments, 'deleted segment')} kept for readers, {counted(size, 'byte')}, until {time}"
        yield f"{kept}: the first repack after that removes them"


def _damaged(report: Report) -> Iterator[str]:
    if names := [each.segment for each in report if getattr(each, "noted", False)]:
        salvage = f"{command('fix', report.dataset, '--salvage', names[0], '--yes')} keeps what is whole"
        yield f"damaged: {_named(names)}: put the file back from a backup; without one, {salvage}"


def _deletions(found: Iterable[Diagnosis | Done]) -> Iterator[str]:
    if names := [each.segment for each in found if each.action == "delete"]:
        yield f"the next repack DELETES {counted(len(names), 'segment')}: {_named(names)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more; --json lists all" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _untrusted(dataset: str) -> str:
    how = f"run {command('fix', dataset, '--yes')}, else nothing is repacked"
    return f"the index was lost and may not know all data: {how}"


def _complain_of(result: Maintained) -> None:
    """Print on standard error what was lost, was deleted or came back, and the findings that are left."""
    dataset, left = result.dataset, result.left
    if left is not None and left.needs_check:
        complain("warning", printable(f"{dataset}: {_untrusted(dataset)}"))
    if result.rebuilt:
        back = "deleted data that no repack had removed yet are back"
        complain("note", f"{dataset}: the index was lost and was rebuilt: {back}")
    if result.kept:
        hint = f"{command('quarantine', dataset)} lists it"
        complain("warning", printable(f"{dataset}: {counted(len(result.kept), 'item')} moved to quarantine; {hint}"))
    lost = [each for each in result.done if each.lost]
    unknown = [each for each in result.done if each.action == "delete" and "DELETED" in each.state.names]
    returned = [each for each in result.done if each.returned and not each.lost and not result.rebuilt]
    _complain_each(dataset, "note", [*unknown, *returned])
    _complain_each(dataset, "damaged", lost)
    _complain_each(dataset, "warning", result.findings)


def _complain_each(
    dataset: str, kind: Literal["note", "damaged", "warning"], segments: Sequence[Diagnosis | Done]
) -> None:
    for each in segments[:_NAMED]:
        complain(kind, printable(f"{dataset}: {_line(each)}"))
    if len(segments) > _NAMED:
        more = f"{len(segments) - _NAMED} more segments; {command('check', dataset, '--json')} lists all"
        complain(kind, printable(f"{dataset}: and {more}"))
