"""Results of commands as text for people; it may change with every version, so programs read the JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ondisk import json_shapes
from ondisk.cli.streams import complain, printable, write_stdout
from ondisk.dataset.json_lines import json_data, metadata_of, time_text
from ondisk.datum import Datum, Value
from ondisk.errors import command, counted
from ondisk.step import place_of

if TYPE_CHECKING:
    from ondisk import AppendResult, FieldSummary, Group, Summary
    from ondisk.backup import Backup, Listed, Problem, Restored
    from ondisk.files import ExportResult
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.migrate import Migration
    from ondisk.maintenance.states import Diagnosis, Done, Report
    from ondisk.pipeline.report import PipelineReport
    from ondisk.queue import Acknowledged
    from ondisk.replication import ambry
    from ondisk.replication.heal import Healed
    from ondisk.replication.reconcile import Reconciled
    from ondisk.replication.replica import Pulled
    from ondisk.replication.token import Entry
    from ondisk.replication.verify import Verified
    from ondisk.segment import Damage
    from ondisk.segments.quarantine import Item

_PAGE = 1000  # data in a table: a table is laid out in memory, so more data are printed as several tables
_LONGEST = 80  # characters of a datum's data
_NAMED = 10  # segments that one line names, or that maintain names on standard error
_LINES = 100  # segments with a line each
_PERIODS = {"hour": 16, "day": 10, "month": 7, "year": 4}  # and how much of the text of a time names it
_T = TypeVar("_T")
_KEPT = {
    "whole": "the backup has it whole",
    "older": "the backup keeps an older copy",
    "damaged": "it was copied as it is",
    "partly": "its other files were copied",
    "missing": "the backup has nothing of it",
}
_RESTORED = {
    "older": "an older copy was restored",
    "damaged": "it was restored as it is",
    "partly": "its other files were restored",
    "missing": "nothing of it was restored",
}
_VERIFIED: dict[str, str] = {}
_CONTROLS = frozenset(map(chr, {*range(32), 127} - {*b"\t\n\v\f\r\x1b"}))
_FIXES = ("rescan", "remove from the index", "follow")


class TextOutput:
    """Prints results as text. Each method prints one kind of result; `JsonOutput` has the same methods."""

    def info(self, info: Mapping[str, Any]) -> None:
        rows = {key.replace("_", " "): _listed(value) for key, value in info.items()}
        _print_rows((rows | {"path": printable(info["path"])}).items())

    def formats(self, found: Iterable[Mapping[str, Any]]) -> None:
        rows = []
        for each in found:
            needs = f"; needs ondisk[{each['extra']}]" if each["extra"] else ""
            rows.append((each["format"], f"{' '.join(each['extensions'])}; {each['segments']} segments{needs}"))
        _print_rows(rows)

    def created(self, info: Mapping[str, Any]) -> None:
        _print(f"made the dataset {printable(info['path'])}")

    def proposed(self, path: str, text: str) -> None:
        _print(text.removesuffix("\n"))
        complain("note", f"{path} was not created; --yes creates it with this configuration")

    def serving(self, dataset: str, host: str, port: int) -> None:
        _print(f"serving {printable(dataset)} on {printable(host)}:{port}")

    def serving_http(self, urls: Mapping[str, str], host: str, port: int) -> None:
        _print_lines(f"serving {name} on {url}" for name, url in urls.items())

    def appended(
        self,
        result: AppendResult,
        damage: Sequence[tuple[str, Damage]],
        warnings: Sequence[tuple[str, str]],
        notes: Sequence[tuple[str, str]],
    ) -> None:
        counts = f"{result.imported} imported, {counted(result.duplicates, 'duplicate')}, "
        counts += f"{result.replaced} replaced, " * bool(result.replaced) + f"{result.refused} refused"
        _print(f"{counts}; {counted(result.bytes, 'byte')} in {counted(result.segments, 'segment')}")

    def imported(self, report: PipelineReport) -> None:
        verb = "to import" if report.dry_run else "imported"
        parts = [f"{counted(report.imported, 'file')} {verb}", f"{report.known} known"]
        parts += [f"{len(files)} {what}" for files, what in ((report.changed, "changed"), (report.failed, "failed"))
                  if files]  # fmt: skip
        _print_lines([f"{report.name}: {', '.join(parts)}", *map(_stored, report.datasets.items())])

    def data(self, data: Iterable[Datum], fields: Sequence[str] | None) -> None:
        def line(datum: Datum) -> bytes:
            pairs = [f"{printable(name)}={_shown(value)}" for name, value in metadata_of(datum, fields)]
            return (
                "  ".join([time_text(datum.reftime), *_source(datum), *pairs, _data_shown(datum.data)])
                .rstrip()
                .encode()
                + b"\n"
            )

        write_stdout(map(line, data))

    def files_exported(self, result: ExportResult, to: str, *, linked: bool) -> None:
        how = "linked" if linked else "written"
        counts = f"{counted(result.exported, 'file')} {how}, {result.present} already there, {result.refused} refused"
        _print_lines([f"{to}: {counts}; {counted(result.bytes, 'byte')}"])

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

    def plotted(self, file: str, count: int) -> None:
        _print_lines([f"{file}: {counted(count, 'group')}"])

    def would_delete(self, found: Summary) -> None:
        how = "; --yes deletes them" if found.count else ""
        _print(f"{counted(found.count, 'datum')} of {counted(found.size, 'byte')} would be deleted{how}")

    def deleted(self, count: int) -> None:
        _print(f"{counted(count, 'datum')} deleted")

    def acknowledged(self, done: Acknowledged, *, dry_run: bool) -> None:
        verb, how = (
            ("would be acknowledged", "; --yes does it" if done.count or done.removed else "")
            if dry_run
            else ("acknowledged", "")
        )
        at = f"the consumer continues at byte {done.position.byte_index} of {done.position.segment}.seg"
        removed = f"{counted(len(done.removed), 'segment')} {'to remove' if dry_run else 'removed'}"
        _print(f"{counted(done.count, 'datum')} {verb}: {at}; {removed}{how}")

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

    def quarantined(self, dataset: str, items: Iterable[Item]) -> None:
        count = size = 0

        def lines() -> Iterator[str]:
            nonlocal count, size
            for item in items:
                count, size = count + 1, size + item.size
                yield _item(item)
            yield f"{dataset}: {counted(count, 'item')} in quarantine, {counted(size, 'byte')}"

        _print_lines(lines())

    def exported(self, item: Item, file: str) -> None:
        _print_lines([f"{item.name}: {counted(item.size, 'byte')} copied to {file}"])

    def restored(self, item: Item, dataset: str) -> None:
        _print_lines([f"{item.segment} is back; run {command('fix', dataset, '--yes')} to read it"])

    def would_drop(self, items: Sequence[Item]) -> None:
        size = sum(item.size for item in items)
        total = f"{counted(len(items), 'item')} would be dropped, {counted(size, 'byte')}; --yes drops"
        _print_lines([*map(_item, items), f"{total} {'it' if len(items) == 1 else 'them'}"])

    def dropped(self, items: Sequence[Item]) -> None:
        size = sum(item.size for item in items)
        _print(f"{counted(len(items), 'item')} dropped, {counted(size, 'byte')} freed")

    def backed_up(self, done: Backup) -> None:
        _complain_of_segments(done.problems, _KEPT)
        removed = f"; {counted(len(done.removed), 'older point')} removed" if done.removed else ""
        what = _kept(done)
        copied = f"{done.copied} copied, {counted(done.bytes, 'byte')}"
        _print(f"{printable(done.dataset)}: point {time_text(done.point)}: {what}; {copied}{removed}")

    def restored_dataset(self, done: Restored) -> None:
        _complain_of_segments(done.problems, _RESTORED)
        not_whole = f", {len(done.problems)} not whole" * bool(done.problems)
        _print(f"{printable(done.dataset)}: restored from the point {time_text(done.point)}: {_kept(done)}{not_whole}")
        if done.problems:
            points = f"{command('restore', done.target, '--verify')} shows whether another point is whole"
            fix = f"{command('fix', done.dataset, '--yes')} reads what this one has"
            complain("note", f"{points}; {fix}, and with --salvage SEGMENT keeps what is whole of a damaged one")

    def points(self, target: str, points: Sequence[Listed], *, verified: bool) -> None:
        for each in points:
            _complain_of_segments(each.damage, _VERIFIED)
            parts = [_kept(each)]
            parts += [f"{each.incomplete} not whole"] * (each.incomplete > 0)
            parts += [f"{counted(len(each.offline), 'archive')} away"] * bool(each.offline)
            if each.damage:
                parts.append(f"{len(each.damage)} damaged")
            elif verified and not each.incomplete:
                parts.append("verified")
            _print(f"{time_text(each.time)}  {', '.join(parts)}")
        _print(f"{printable(target)}: {counted(len(points), 'point')}")

    def pulled(self, path: str, pulled: Pulled) -> None:
        parts = [f"{pulled.stored} stored", f"{pulled.deleted} deleted"]
        counts = ((pulled.present, "already here"), (pulled.old, "too old"), (pulled.missing, "missing"),
                  (pulled.kept, "kept that the source has lost"))  # fmt: skip
        parts += [f"{count} {what}" for count, what in counts if count]
        left = f"{counted(pulled.lag.changes, 'change')} left" if pulled.lag.changes else "nothing left"
        where = f"{printable(path)}: "
        _print(f"{where}{', '.join(parts)}; {counted(pulled.bytes, 'byte')}; change {pulled.offset}, {left}")

    def compared(self, path: str, verified: Verified) -> None:
        counts = ((verified.missing, "missing"), (verified.extra, "only in the replica"), (verified.differs, "differ"),
                  (verified.damaged, "damaged in the replica"), (verified.unreadable, "unreadable at the source"),
                  (verified.lost, "lost at the source"))  # fmt: skip
        for each in verified.segments:
            first = f"datum {each.first.seq} of {json_shapes.format_time(each.first.reftime)}"
            more = f" and {each.count - 1} more" * (each.count > 1)
            _print(f"{each.kind}: {first}{more}, in {each.segment}")
        parts = [f"{count} {what}" for count, what in counts if count] or ["nothing differs"]
        parts += [f"{verified.aged} removed by age on one side"] * (verified.aged > 0)
        left = f"; {counted(verified.left, 'later change')} not compared" if verified.left else ""
        _print(f"{printable(path)}: {', '.join(parts)}; up to change {verified.offset}{left}")

    def reconciled(self, path: str, done: Reconciled, *, dry_run: bool) -> None:
        counts = ((done.renumbered, "renumbered"), (done.replaced, "replaced"), (done.kept, "kept for the source"),
                  (done.extra, "only in the replica, kept without --delete-extra"),
                  (done.missing, "missing"))  # fmt: skip
        parts = [f"{done.fetched} fetched", f"{done.deleted} deleted"]
        parts += [f"{count} {what}" for count, what in counts if count]
        for what, listed, count in (
            ("deleted", done.deletions, done.deleted),
            ("only in the replica", done.extras, done.extra),
        ):
            _print_lines(f"{what}: datum {seq} of {json_shapes.format_time(reftime)}" for seq, reftime in listed)
            if count > len(listed) > 0:
                _print(f"{what}: and {count - len(listed)} more")
        for name in done.unmended:
            problem = f"data of {name} are damaged, and the source does not have all that it needs to mend it"
            complain("warning", f"{problem}: run {command('fix', path, '--salvage', name, '--yes')}, then this again")
        how = "; --yes does it" if dry_run and done.has_work else ""
        _print(f"{printable(path)}: {'would be ' if dry_run else ''}{', '.join(parts)}; change {done.offset}{how}")

    def healed(self, path: str, healed: Healed, *, dry_run: bool) -> None:
        for seq, reason in healed.reasons:
            complain("warning", f"the datum {seq} did not return: {reason}")
        parts = [f"{healed.lost} lost", f"{healed.unreadable} unreadable"] + [f"{healed.left} left"] * (healed.left > 0)
        how = "; --yes does it" if dry_run and healed.has_work else ""
        _print(f"{printable(path)}: {'would return' if dry_run else 'returned'} to the source: {', '.join(parts)}{how}")

    def promoted(self, info: Mapping[str, Any], *, dry_run: bool) -> None:
        path = printable(info["path"])
        if dry_run:
            _print(f"{path} would become an ordinary dataset; --yes does it")
        else:
            _print(f"{path} is an ordinary dataset now, with the UUID {info['uuid']}")

    def tokens(self, entries: Sequence[Entry] | Sequence[ambry.Entry]) -> None:
        rows = ("  ".join(f"{key}={_shown(value)}" for key, value in each.described().items()) for each in entries)
        _print_lines([*rows, counted(len(entries), "token")])

    def verified(self, file: str, layout: str, count: int, superseded: int, size: int) -> None:
        more = f"; {superseded} more are superseded" * bool(superseded)
        _print_lines([f"{file}: {counted(count, 'token')} in {counted(size, 'byte')}; nothing is damaged{more}"])

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

    def migrated(self, migration: Migration) -> None:
        for each in (*migration.archives, migration):
            _print(f"{printable(each.dataset)}: {_migrated(each)}")
            for line in chain(_changes(each), _archives(each)):
                _print(f"  {printable(line)}")
            for offender in each.offenders:
                at = offender.location
                values = "".join(f"  {name}={_shown(value)}" for name, value in offender.values.items())
                _print(f"  {at.segment}, byte {at.offset}: {printable(offender.reason)}{values}")
            if each.offending > len(each.offenders):
                _print(f"  and {each.offending - len(each.offenders)} more")


def print_table(data: Iterable[Datum], fields: Sequence[str], *, datasets: bool = False) -> None:
    """Print data as tables, as wide as the terminal (COLUMNS overrides that), or wider if a column needs it.

    Args:
        datasets: whether the data say which dataset they are from.
    """
    from ondisk.cli.table import table  # here, since it waits for rich

    def rows(page: Sequence[Datum]) -> Iterator[list[str]]:
        for datum in page:
            values = (_shown(datum.metadata.get(name)) for name in fields)
            yield [time_text(datum.reftime), *_source(datum), *values, _data_shown(datum.data)]

    header = ["reftime", *["dataset"] * datasets, *fields, "data"]
    write_stdout(table(header, list(rows(page))).encode() for page in _pages(data))


def _source(datum: Datum) -> list[str]:
    """Return the dataset that a datum says it is from, if it says one."""
    return [] if datum.dataset is None else [_shown(datum.dataset)]


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
    return _shown(key)


def number_text(value: Value | None) -> str:
    """Return a value with six digits, enough for a glance; nothing if it is missing."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else _shown(value)


def _pages(data: Iterable[_T]) -> Iterator[list[_T]]:
    iterator = iter(data)
    while page := list(islice(iterator, _PAGE)):
        yield page


def _stored(named: tuple[str, AppendResult]) -> str:
    name, result = named
    counts = {"imported": result.imported} | {
        key: count for key in ("duplicates", "replaced", "refused") if (count := getattr(result, key))
    }
    return f"  {name}: {', '.join(f'{count} {key}' for key, count in counts.items())}"


def _changes(migration: Migration) -> Iterator[str]:
    """Yield a line for each change of a migration."""
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
        yield f"the metadata of {counted(migration.count, 'datum')} are read from the segments"
    if migration.backup:
        yield f"the old index is kept in {migration.backup}"


def _migrated(migration: Migration) -> str:
    """Return what a migration did with a dataset or an archive, in short."""
    if migration.taken is not None:
        count = counted(migration.taken.count, "datum")
        return f"{count} taken over" if migration.done else f"{count} to be taken over"
    if not migration.is_needed:
        return "nothing to do"
    return "migrated" if migration.done else "to be migrated"


def _archives(migration: Migration) -> Iterator[str]:
    """Yield a line for each thing that becomes of the data of archives."""
    if (taken := migration.taken) is not None:
        if taken.renumbered:
            yield f"{counted(taken.renumbered, 'datum', 'has')} another number now: theirs are taken"
        if taken.twice:
            yield f"{counted(taken.twice, 'datum')} of an interrupted move, which the dataset has, too, count once"
        if taken.deleted:
            yield f"{counted(taken.deleted, 'datum')} that the dataset has deleted do not return"
    for segment, count in migration.superseded.items():
        yield f"{counted(count, 'datum')} in {segment} do not count: another datum has the same unique values"
    for name, why in migration.left_alone.items():
        yield f"the archive {name} is left alone: {why}"
    for name, path in migration.left_out.items():
        yield f"the archive {name} is a dataset of its own: {path}"
    for name, count in migration.forgotten.items():
        yield f"{counted(count, 'datum')} of the archive {name} count as lost"
    for name, count in migration.offline.items():
        yield f"the archive {name} with {counted(count, 'datum')} is offline; migrate again when it returns"
    for name in migration.unfinished:
        yield f"the archive {name} was taken over; its files get other names"


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


def _item(item: Item) -> str:
    """Return the line of an item."""
    piece = "" if item.offset is None else f", from byte {item.offset}"
    by = f"{item.verb}: " if item.verb else ""
    return f"{item.name}: {counted(item.size, 'byte')} of {item.segment}{piece}: {by}{item.why}"


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
    """Print names and values in two columns."""
    known = [(printable(name), value) for name, value in rows]
    width = max(len(name) for name, _ in known)
    _print("\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in known))


def _listed(value: Any) -> str:
    """Return the text of a value that may be a list or a mapping."""
    if isinstance(value, Mapping):
        return "  ".join(f"{key}={_shown(each)}" for key, each in value.items() if each is not None)
    if isinstance(value, list):
        return ", ".join(_listed(each) if isinstance(each, Mapping) else _shown(each) for each in value)
    return _shown(value)


def _counted(field: FieldSummary) -> str:
    parts = [f"missing ({field.missing})"] if field.missing else []
    parts += [f"{_shown(value)} ({count})" for value, count in field.values]
    if (more := field.distinct - len(field.values)) > 0:
        parts.append(f"and {more} more")
    span = f"; min {_shown(field.min)}, max {_shown(field.max)}" if field.min != field.max else ""
    return "  ".join(parts) + span


def _shown(value: Any) -> str:
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
        return ",".join(map(_shown, value))
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
    from ondisk.formats.foreign import kind_of  # here, because most commands print no data

    text = head.decode(errors="replace")
    is_text = _CONTROLS.isdisjoint(text) and 4 * text.count("\ufffd") <= len(head)
    return kind_of(head) or (None if is_text else "binary")


def _beginning(value: Any, room: list[int]) -> Any:
    """Return the beginning of a datum's data, enough for a line of text: all of them may be many megabytes.

    Args:
        room: how many more values fit, one number, which is lowered.
    """
    room[0] -= 1
    if isinstance(value, str | bytes):
        return value[: _LONGEST + 1]
    if isinstance(value, Mapping):
        items = takewhile(lambda _: room[0] > 0, value.items())
        return {_beginning(key, room): _beginning(each, room) for key, each in items}
    if isinstance(value, list | tuple):
        return [_beginning(each, room) for each in takewhile(lambda _: room[0] > 0, value)]
    return value


def _kept(what: Backup | Restored | Listed) -> str:
    """Return how much a point of a backup has, or a dataset that was restored from one."""
    return f"{counted(what.count, 'datum')} in {counted(what.segments, 'segment')} of {counted(what.size, 'byte')}"


def _complain_of_segments(problems: Iterable[Problem], effects: Mapping[str, str]) -> None:
    """Print what is wrong with segments, and what the backup has of them."""
    for each in problems:
        effect = f"; {effects[each.kept]}" if each.kept in effects else ""
        complain("damaged", f"{each.segment}: {each.reason}{effect}")
