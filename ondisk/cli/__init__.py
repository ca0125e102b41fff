"""The command `ondisk`: options and printing; what is done stands in the library, under the same names.

Results go to standard output, everything else to standard error. Exit codes: `ondisk.errors`.
One module a command, imported when its turn comes: `add_arguments(parser)` and `run(arguments, output) -> exit code`.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from textwrap import dedent, indent
from types import FrameType
from typing import NoReturn

from ondisk import __version__
from ondisk.cli.arguments import decoded
from ondisk.cli.output import output_for
from ondisk.cli.streams import complain, discard_stdout, fill_closed_streams, write_stdout
from ondisk.errors import EXIT_INTERRUPTED, InvalidInput, OndiskError

EXIT_TERMINATED = 128 + signal.SIGTERM

COMMANDS = {
    "init": "make an empty dataset",
    "append": "store the data of files",
    "query": "print the data that match",
    "summary": "count the data that match",
    "delete": "delete the data that match; a dry run without --yes",
    "info": "tell what a dataset is",
    "check": "say what is wrong with a dataset; changes nothing",
    "fix": "make the index agree with the disk; a dry run without --yes",
    "repack": "give space back, apply the ages; a dry run without --yes",
    "archive": "move segments to the archive; a dry run without --yes",
    "unarchive": "move segments back from the archive; a dry run without --yes",
    "maintain": "do all of that for many datasets, for cron",
    "pipeline": "import new files into the datasets they belong to, by Spark",
    "migrate": "move its index to a new version or configuration; a dry run without --yes",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: its name and arguments; None takes them from `sys.argv`.

    Returns:
        The exit code.

    Raises:
        SystemExit: `--help` or `--version` was printed.
    """
    fill_closed_streams()
    try:
        with _terminable():
            return _run(list(map(decoded, sys.argv[1:])) if argv is None else argv)
    except KeyboardInterrupt as interrupt:
        discard_stdout()  # a reader that stopped reading would keep us here
        notes = (note.removeprefix("ondisk: ") for note in getattr(interrupt, "__notes__", ()))
        complain("error", "\n".join([str(interrupt) or "interrupted", *notes]))
        return EXIT_TERMINATED if isinstance(interrupt, _Terminated) else EXIT_INTERRUPTED


def parser_of(command: str) -> argparse.ArgumentParser:
    """Make the parser of a command's arguments.

    The first paragraph of its module's docstring describes it, the rest are examples.
    """
    module = import_module(f"ondisk.cli.{command}")
    description, _, examples = (module.__doc__ or "").partition("\n\n")
    parser = _Parser(
        prog=f"ondisk {command}", description=description, epilog="examples:\n" + indent(dedent(examples), "  ")
    )
    module.add_arguments(parser)
    return parser


def _run(argv: Sequence[str]) -> int:
    try:
        command = _top_parser().parse_args(argv[:1]).command
        # Intermixed: an option may stand between DATASET and MATCH.
        arguments = parser_of(command).parse_intermixed_args(argv[1:])
        code: int = import_module(f"ondisk.cli.{command}").run(arguments, output_for(arguments))
    except OndiskError as error:
        complain("error", str(error))
        return error.exit_code
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ondisk's, and which takes no option by half its name."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise InvalidInput(message, hint=f"`{self.prog} --help` shows how it is used.")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        write_stdout(())  # what argparse printed: nobody would catch what goes wrong with it later
        super().exit(status, message)


def _top_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<9} {purpose}" for name, purpose in COMMANDS.items())
    parser = _Parser(
        prog="ondisk",
        description="Datasets on disk: segments of data by time, one SQLite index; what was stored survives a crash.",
        epilog=f"commands:\n{commands}\n\n`ondisk COMMAND --help` tells more, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"ondisk {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="what to do")
    return parser


class _Terminated(KeyboardInterrupt):
    """SIGTERM came; it ends the command as an interrupt does, with the lock released and the batch taken back."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise, for the length of the block; not where somebody else cares for it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated("terminated")
