"""The commands `backup`, `restore` and `quarantine`: copies of data, and files that are kept."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import ondisk
from ondisk.cli.arguments import add_dataset, check_options, count, path
from ondisk.cli.dataset import open_dataset, segments_progress
from ondisk.cli.streams import Output, complain, values_of
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, InvalidInput, MatchError, command, counted, shown

if TYPE_CHECKING:
    from datetime import datetime

    from ondisk.backup import Backup, Listed, Problem, Restored
    from ondisk.segments.quarantine import Item

_EFFECTS = {
    "whole": "the backup has it whole",
    "older": "an older copy was {}",
    "damaged": "it was {} as it is",
    "partly": "its other files were {}",
    "missing": "nothing of it was {}",
}
_TAKES = {"export": "an item and a file", "restore": "one item", "drop": "one or more items"}
_REST = 999_999  # microseconds


def add_backup(parser: argparse.ArgumentParser) -> None:
    """Add the present state of a dataset to a backup, for `ondisk restore`. The first time, begin it with --create.

    ondisk backup weather /mnt/backup/weather --create
    ondisk backup weather /mnt/backup/weather
    ondisk backup weather /mnt/backup/weather --keep 14
    """
    add_dataset(parser)
    parser.add_argument("target", metavar="TARGET", type=path, help="the backup: a folder of its own")
    parser.add_argument("--create", action="store_true", help="begin the backup, in a folder that is empty or new")
    parser.add_argument("--keep", metavar="N", type=count, help="afterwards keep only the newest N points")


def run_backup(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.datum_as_json import time_text  # here, so that --help does not wait for it

    with ondisk.open(arguments.dataset, read_only=True) as dataset, segments_progress("backup") as progress:
        done = dataset.backup(arguments.target, create=arguments.create, keep=arguments.keep, progress=progress)
        away = [name for name in done.offline if name not in dataset.info()["offline"]]  # else it is on purpose
    point = done.point
    values = {**values_of(done, "dataset", "target", "point", "segments", "count", "size", "copied", "bytes")}
    removed = f"; {counted(len(done.removed), 'older point')} removed" * bool(done.removed)
    line = f"{done.dataset}: point {time_text(point)}: {_amount(done)}; {done.copied} copied, "
    lines = [f"{line}{counted(done.bytes, 'byte')}{removed}"]
    output.show([values | _problems_of(done) | {"removed": done.removed}], _told(done.problems, "kept", lines))
    for name in away:
        complain("warning", f"the folder {name!r} is away: the backup has at most what earlier points have of it")
    return EXIT_DATA_SKIPPED if done.problems or away else EXIT_DONE


def _amount(what: Backup | Restored | Listed) -> str:
    return f"{counted(what.count, 'datum')} in {counted(what.segments, 'segment')} of {counted(what.size, 'byte')}"


def _problems_of(done: Backup | Restored) -> dict[str, Any]:
    names = ("segment", "reason", "kept")
    return {"problems": [values_of(each, *names) for each in done.problems], "offline": done.offline}


def _told(problems: Iterable[Problem], done: str | None, lines: Iterable[str]) -> Iterator[str]:
    """Print what is wrong with segments, and what of them was `done`, such as restored; then yield the lines."""
    for each in problems:
        effect = "" if done is None else f"; {_EFFECTS[each.kept].format(done)}"
        complain("damaged", f"{each.segment}: {each.reason}{effect}")
    yield from lines


def add_restore(parser: argparse.ArgumentParser) -> None:
    """Make a dataset from a point of a backup. Without PATH, list the points, or verify all their files.

    ondisk restore /mnt/backup/weather
    ondisk restore /mnt/backup/weather --verify
    ondisk restore /mnt/backup/weather weather
    ondisk restore /mnt/backup/weather weather --at 2026-11-22
    """
    parser.add_argument("target", metavar="TARGET", type=path, help="the folder of the backup")
    parser.add_argument("path", metavar="PATH", nargs="?", type=path, help="the dataset to make: a new or empty folder")
    parser.add_argument("--at", metavar="TIME", help="restore the newest point up to this date or time, in UTC")
    parser.add_argument("--verify", action="store_true", help="without PATH: compare all files with their checksums")


def run_restore(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.datum_as_json import time_text  # here, so that --help does not wait for it

    check_options(arguments, {"--at": "PATH"}, {"--verify": "PATH"})
    if arguments.path is None:
        return _list(arguments.target, output, verify=arguments.verify)
    at = None if arguments.at is None else _time(arguments.at)
    with segments_progress("restore") as progress:
        done = ondisk.restore(arguments.target, arguments.path, at, progress=progress)
    not_whole = f", {len(done.problems)} not whole" * bool(done.problems)
    line = f"{done.dataset}: restored from the point {time_text(done.point)}: {_amount(done)}{not_whole}"
    values = values_of(done, "dataset", "target", "point", "segments", "count", "size") | _problems_of(done)
    output.show([values], _told(done.problems, "restored", [line]))
    if done.problems and not arguments.json:
        points = f"{command('restore', done.target, '--verify')} shows whether another point is whole"
        fix = f"{command('fix', done.dataset, '--yes')} reads what this one has"
        complain("note", f"{points}; {fix}, and with --salvage SEGMENT keeps what is whole of a damaged one")
    for name in done.offline:
        complain("warning", f"the folder {name!r} was away: the point has at most what earlier points have of it")
    return EXIT_DATA_SKIPPED if done.problems else EXIT_DONE


def _list(target: str, output: Output, *, verify: bool) -> int:
    from ondisk.backup import points

    with segments_progress("verify") as progress:
        found = [*points(target, verify=verify, progress=progress)]
    names = ("segments", "count", "size", "incomplete", "offline")
    values = (
        {"point": each.time, **values_of(each, *names)}
        | {"damage": [values_of(problem, "segment", "reason", "kept") for problem in each.damage]}
        for each in found
    )
    lines = chain.from_iterable(_told(each.damage, None, [_line(each, verified=verify)]) for each in found)
    output.show(values, chain(lines, [f"{target}: {counted(len(found), 'point')}"]))
    if verify and any(each.damage for each in found):
        again = "the next `ondisk backup` copies again what is damaged here and unchanged in the dataset"
        complain("note", f"{again}; run it, then verify again")
    has_findings = any(each.damage or (verify and each.incomplete) for each in found) or (verify and not found)
    return EXIT_FINDINGS if has_findings else EXIT_DONE


def _line(point: Listed, *, verified: bool) -> str:
    from ondisk.dataset.datum_as_json import time_text

    parts = [_amount(point)]
    parts += [f"{point.incomplete} not whole"] * (point.incomplete > 0)
    parts += [f"{counted(len(point.offline), 'folder')} away"] * bool(point.offline)
    if point.damage:
        parts.append(f"{len(point.damage)} damaged")
    elif verified and not point.incomplete:
        parts.append("verified")
    return f"{time_text(point.time)}  {', '.join(parts)}"


def _time(text: str) -> datetime:
    """Return the time that a text names, in RFC 3339 or as a match has it: a day is its end."""
    from ondisk.datum import from_microseconds
    from ondisk.json_values import parse_time
    from ondisk.matcher import Compare
    from ondisk.matcher.parser import parse

    with contextlib.suppress(InvalidInput):
        count = parse_time(text)
        return from_microseconds(count if "." in text else count + _REST)
    with contextlib.suppress(MatchError):
        match parse(f"reftime: <={text}", {}):
            case Compare("reftime", "<", int(end)):
                return from_microseconds(end - 1)
    hint = "Write a date, or a time such as 2026-11-22T02:15:00; both are UTC."
    raise InvalidInput(f"{shown(text)} is not a time", hint=hint)


def add_quarantine(parser: argparse.ArgumentParser) -> None:
    """List the quarantine: files that stood in the way and were kept. Or export, restore or drop items of it.

    ondisk quarantine weather
    ondisk quarantine weather export 2026/.quarantine/20261122T141307.123456Z-11-20.vm2 kept.vm2
    ondisk quarantine weather restore 2026/.quarantine/20261122T141307.123456Z-11-20.vm2
    ondisk quarantine weather drop 2026/.quarantine/20261122T141307.123456Z-11-20.vm2 --yes
    """
    add_dataset(parser)
    parser.add_argument(
        "verb",
        metavar="export|restore|drop",
        nargs="?",
        choices=list(_TAKES),
        help="copy an item to FILE; move a whole segment back; remove items for good, a dry run without --yes",
    )
    parser.add_argument("items", metavar="ITEM", nargs="*", help="an item, as the list names it")


def run_quarantine(arguments: argparse.Namespace, output: Output) -> int:
    verb, items = arguments.verb, arguments.items
    most = {"export": 2, "restore": 1}.get(verb, len(items))
    if verb is not None and (not items or len(items) != most):
        hint = "Run `ondisk quarantine --help` for its arguments."
        raise InvalidInput(f"{verb} takes {_TAKES[verb]}, not {len(items)}", hint=hint)
    dry_run = verb == "drop" and not arguments.yes
    with open_dataset(arguments.dataset, read_only=verb in (None, "export") or dry_run) as dataset:
        quarantine = dataset.quarantine
        if verb is None:
            _list_quarantine(str(dataset.path), quarantine, output)
        elif verb == "export":
            item = quarantine.find(items[0])
            quarantine.export(items[0], path(items[1]))
            line = f"{item.name}: {counted(item.size, 'byte')} copied to {items[1]}"
            output.show([{"exported": item.name, "file": items[1], "size": item.size}], [line])
        elif verb == "restore":
            item = quarantine.find(items[0])
            quarantine.restore(items[0])
            line = f"{item.segment} is back; run {command('fix', dataset.path, '--yes')} to read it"
            output.show([{"restored": item.name, "segment": item.segment}], [line])
        else:
            found = [quarantine.find(name) for name in dict.fromkeys(items)]
            size = sum(item.size for item in found)
            many = counted(len(found), "item")
            if dry_run:
                total = f"{many} would be dropped, {counted(size, 'byte')}; --yes drops"
                lines = [*map(_item_line, found), f"{total} {'it' if len(found) == 1 else 'them'}"]
                output.show([{"would_drop": len(found), "size": size}], lines)
                return EXIT_FINDINGS
            quarantine.drop(*items)
            output.show([{"dropped": len(found), "size": size}], [f"{many} dropped, {counted(size, 'byte')} freed"])
    return EXIT_DONE


def _list_quarantine(dataset: str, items: Iterable[Item], output: Output) -> None:
    count = size = 0

    def counting() -> Iterator[Item]:
        nonlocal count, size
        for item in items:
            count, size = count + 1, size + item.size
            yield item

    def values() -> Iterator[dict[str, Any]]:
        names = "segment", "file", "verb", "why", "time", "size", "offset", "length"
        yield from ({"item": each.name, **values_of(each, *names)} for each in counting())
        yield {"dataset": dataset, "items": count, "size": size}

    def lines() -> Iterator[str]:
        yield from map(_item_line, counting())
        yield f"{dataset}: {counted(count, 'item')} in quarantine, {counted(size, 'byte')}"

    output.show(values(), lines())


def _item_line(item: Item) -> str:
    piece = "" if item.offset is None else f", from byte {item.offset}"
    by = f"{item.verb}: " if item.verb else ""
    return f"{item.name}: {counted(item.size, 'byte')} of {item.segment}{piece}: {by}{item.why}"
