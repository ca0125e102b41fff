"""Move segments to the archive, whatever their age; repack archives by age. A dry run without --yes.

ondisk archive weather 2026/11-17.vm2
ondisk archive weather 2026/11-17.vm2 2026/11-18.vm2 --yes
ondisk archive weather --rename last 2026 --yes
ondisk archive weather --offline 2026 --yes
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_dataset, add_keys
from ondisk.cli.dataset import examined, open_dataset
from ondisk.cli.reports import show_mended, show_would_mend
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, InvalidInput, OndiskError

if TYPE_CHECKING:
    from ondisk import Dataset
    from ondisk.maintenance.states import Diagnosis, Done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_move_arguments(parser, "archive", "*")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--rename", nargs=2, metavar=("NAME", "NEW"), help="rename .archive/NAME")
    others.add_argument("--offline", metavar="NAME", help="say that .archive/NAME is away for long")
    others.add_argument("--online", metavar="NAME", help="say that .archive/NAME, which was offline, is back")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance import archive

    names: list[str] = arguments.rename or [name for name in (arguments.offline, arguments.online) if name]
    if bool(names) == bool(arguments.segments):
        hint = "Name segments, or one of --rename, --offline and --online."
        raise InvalidInput("archive takes either segments or an option", hint=hint)
    if not names:
        return move(arguments, output, "archive", lambda dataset: dataset.archive(*arguments.segments))
    acts: dict[str, tuple[Callable[..., Done], Callable[..., Done]]] = {
        "rename": (archive.rename, archive.would_rename),
        "offline": (archive.set_offline, archive.would_set_offline),
        "online": (archive.set_online, archive.would_set_online),
    }
    act, would = next(both for option, both in acts.items() if getattr(arguments, option))
    chosen = act if arguments.yes else would
    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        done = chosen(dataset._access, *names)
        _show(dataset, output, [done], done.action or "archive", done=arguments.yes)
    return EXIT_DONE if arguments.yes else EXIT_FINDINGS


def add_move_arguments(parser: argparse.ArgumentParser, verb: str, count: str) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("segments", metavar="SEGMENT", nargs=count, help="a segment, as `ondisk check --all` names it")
    parser.add_argument("--yes", action="store_true", help=f"{verb}; without it, only print what would be moved")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def move(arguments: argparse.Namespace, output: Output, verb: str, moved: Callable[[Dataset], list[Done]]) -> int:
    """Move segments to or from the archive, or print what would be moved. Return the exit code."""
    from ondisk.maintenance.archive import planned

    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        try:
            done = moved(dataset) if arguments.yes else planned(dataset._access, arguments.segments, verb)
        except OndiskError as error:
            if (before := error.context.get("report")) is not None and before.segments:
                _show(dataset, output, before.segments, verb, done=arguments.yes)  # those before the error
            raise
        _show(dataset, output, done, verb, done=arguments.yes)
        return EXIT_FINDINGS if dataset.quarantine.kept or not arguments.yes else EXIT_DONE


def _show(dataset: Dataset, output: Output, found: Sequence[Diagnosis | Done], verb: str, *, done: bool) -> None:
    from ondisk.maintenance.states import Report

    left = examined(dataset.check)[0]
    if done:
        show_mended(Report(str(dataset.path), segments=[*found]), left, output)
    else:
        show_would_mend(left, verb, found, (), output)
