"""List the quarantine: files that stood in the way and were kept. Or export, restore or drop items of it.

ondisk quarantine weather
ondisk quarantine weather export 2026/.quarantine/20261122T141307.123456Z-11-20.vm2 kept.vm2
ondisk quarantine weather restore 2026/.quarantine/20261122T141307.123456Z-11-20.vm2
ondisk quarantine weather drop 2026/.quarantine/20261122T141307.123456Z-11-20.vm2 --yes
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_dataset, path
from ondisk.cli.dataset import open_dataset
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, InvalidInput

_TAKES = {"export": "an item and a file", "restore": "one item", "drop": "one or more items"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
            output.quarantined(str(dataset.path), quarantine)
        elif verb == "export":
            item = quarantine.find(items[0])
            quarantine.export(items[0], path(items[1]))
            output.exported(item, items[1])
        elif verb == "restore":
            item = quarantine.find(items[0])
            quarantine.restore(items[0])
            output.restored(item, str(dataset.path))
        else:
            found = [quarantine.find(name) for name in dict.fromkeys(items)]
            if dry_run:
                output.would_drop(found)
                return EXIT_FINDINGS
            quarantine.drop(*items)
            output.dropped(found)
    return EXIT_DONE


def _check_count(verb: str, count: int) -> None:
    if count == 0 or (verb == "export" and count != 2) or (verb == "restore" and count != 1):
        hint = "Run `ondisk quarantine --help` for its arguments."
        raise InvalidInput(f"{verb} takes {_TAKES[verb]}, not {count}", hint=hint)
