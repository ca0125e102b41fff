"""List the quarantine: files that stood in the way and were kept. Or export, restore or drop items of it.

ondisk quarantine weather
ondisk quarantine weather export 2026/.quarantine/20261122T141307.123456Z-11-20.vm2 kept.vm2
ondisk quarantine weather restore 2026/.quarantine/20261122T141307.123456Z-11-20.vm2
ondisk quarantine weather drop 2026/.quarantine/20261122T141307.123456Z-11-20.vm2 --yes
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ondisk.cli.arguments import add_dataset, path
from ondisk.cli.dataset import open_dataset
from ondisk.cli.streams import Output, values_of
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, InvalidInput, command, counted

if TYPE_CHECKING:
    from ondisk.segments.quarantine import Item

_TAKES = {"export": "an item and a file", "restore": "one item", "drop": "one or more items"}


def add(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument(
        "verb",
        metavar="export|restore|drop",
        nargs="?",
        choices=list(_TAKES),
        help="copy an item to FILE; move a whole segment back; remove items for good, a dry run without --yes",
    )
    parser.add_argument("items", metavar="ITEM", nargs="*", help="an item, as the list names it")
    parser.add_argument("--yes", action="store_true", help="drop; without it, only print what would be dropped")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    verb, items = arguments.verb, arguments.items
    if verb is not None:
        _check_count(verb, len(items))
    dry_run = verb == "drop" and not arguments.yes
    with open_dataset(arguments.dataset, read_only=verb in (None, "export") or dry_run) as dataset:
        quarantine = dataset.quarantine
        if verb is None:
            _list(str(dataset.path), quarantine, output)
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
                lines = [*map(_line, found), f"{total} {'it' if len(found) == 1 else 'them'}"]
                output.show([{"would_drop": len(found), "size": size}], lines)
                return EXIT_FINDINGS
            quarantine.drop(*items)
            output.show([{"dropped": len(found), "size": size}], [f"{many} dropped, {counted(size, 'byte')} freed"])
    return EXIT_DONE


def _list(dataset: str, items: Iterable[Item], output: Output) -> None:
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
        yield from map(_line, counting())
        yield f"{dataset}: {counted(count, 'item')} in quarantine, {counted(size, 'byte')}"

    output.show(values(), lines())


def _line(item: Item) -> str:
    piece = "" if item.offset is None else f", from byte {item.offset}"
    by = f"{item.verb}: " if item.verb else ""
    return f"{item.name}: {counted(item.size, 'byte')} of {item.segment}{piece}: {by}{item.why}"


def _check_count(verb: str, count: int) -> None:
    if count == 0 or (verb == "export" and count != 2) or (verb == "restore" and count != 1):
        hint = "Run `ondisk quarantine --help` for its arguments."
        raise InvalidInput(f"{verb} takes {_TAKES[verb]}, not {count}", hint=hint)
