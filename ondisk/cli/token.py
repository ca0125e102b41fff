"""Print the tokens in a token file: how far a replica has followed its sources. Or verify the file.

ondisk token show replica.tokens
ondisk token verify replica.tokens --json
ondisk token show /mnt/u001/replicaTokens --layout ambry
"""

from __future__ import annotations

import argparse
from itertools import chain

from ondisk.cli.arguments import path
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", metavar="show|verify", choices=("show", "verify"), help="print each token; check it")
    parser.add_argument("file", metavar="FILE", type=path, help="a token file")
    parser.add_argument(
        "--layout",
        metavar="ondisk|ambry",
        choices=("ondisk", "ambry"),
        default="ondisk",
        help="who wrote it: a replica of ondisk (default), or Ambry's own code",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.output_text import shown_value
    from ondisk.replication import ambry, token

    content = token.content_of(arguments.file)
    entries: list[token.Entry] | list[ambry.Entry]
    if arguments.layout == "ondisk":
        entries = token.decode(content, arguments.file)
    else:
        entries = ambry.decode(content, arguments.file).entries
    latest = [*{entry.identity: entry for entry in entries}.values()]
    if arguments.verb == "show":
        described = [each.described() for each in latest]
        rows = ("  ".join(f"{key}={shown_value(value)}" for key, value in each.items()) for each in described)
        output.show(described, chain(rows, [counted(len(latest), "token")]))
    else:
        count, superseded, size = len(latest), len(entries) - len(latest), len(content)
        values = {"file": arguments.file, "layout": arguments.layout, "tokens": count, "superseded": superseded}
        more = f"; {superseded} more are superseded" * bool(superseded)
        line = f"{arguments.file}: {counted(count, 'token')} in {counted(size, 'byte')}; nothing is damaged{more}"
        output.show([values | {"size": size}], [line])
    return EXIT_DONE
