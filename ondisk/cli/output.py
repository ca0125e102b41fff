"""How commands print: results as text or as JSON to standard output, refused and damaged input to standard error."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from ondisk.cli.streams import complain, printable

if TYPE_CHECKING:
    from ondisk.cli.output_json import JsonOutput
    from ondisk.cli.output_text import TextOutput
    from ondisk.segment import Damage

Output: TypeAlias = "TextOutput | JsonOutput"


def output_for(arguments: argparse.Namespace) -> Output | None:
    """Return the output that the option `--json` selects; None for a command without it, which prints no results."""
    if "json" not in arguments:
        return None
    if arguments.json:
        from ondisk.cli.output_json import JsonOutput

        return JsonOutput()
    from ondisk.cli.output_text import TextOutput

    return TextOutput()


def complain_of_input(
    refusals: Sequence[tuple[str, str]],
    refused: int,
    damage: Sequence[tuple[str, Damage]],
    damaged: int,
    warnings: Sequence[tuple[str, str]],
    notes: Sequence[tuple[str, str]],
) -> None:
    """Print what was not stored of input files, and why. `refused` and `damaged` are totals, listed or not.

    A name that is empty is in the reason or the note itself.
    """
    # A path or metadata may have a newline: what follows must not look like a message of its own.
    for (name, reason), count in Counter(refusals).items():
        data = f"{count} data: " if count > 1 else ""
        complain("refused", printable(f"{name}: {data}{reason}" if name else f"{data}{reason}"))
    if refused > len(refusals):
        complain("refused", f"and {refused - len(refusals)} more")
    for name, each in damage:
        complain("damaged", printable(f"{name}: at byte {each.offset}: {each.reason}; {each.size} bytes skipped"))
    if damaged > len(damage):
        complain("damaged", f"and {damaged - len(damage)} more places")
    for name, warning in warnings:
        complain("warning", printable(f"{name}: {warning}" if name else warning))
    for name, note in notes:
        complain("note", printable(f"{name}: {note}" if name else note))
