"""The command `ondisk`: options and printing. The library does the work, in methods of the same names.

Results go to standard output, everything else to standard error. `ondisk.errors` defines the exit codes.
Each command is two functions in a module that is imported only when it runs: `add(parser)` and
`run(arguments, output) -> exit code`, or `add_NAME` and `run_NAME` where several commands share the module.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

from ondisk import __version__
from ondisk.cli.arguments import decoded, use_key_file
from ondisk.cli.streams import complain, discard_stdout, fill_closed_streams, output_for, quieted, write_stdout
from ondisk.errors import EXIT_INTERRUPTED, EXIT_OUT_OF_MEMORY, EXIT_TERMINATED, InvalidInput, OndiskError, StorageError

_SIMILAR = 0.7  # more than select and delete are
COMMANDS = {
    "init": "create an empty dataset",
    "adopt": "make a disk queue of Beats, or a dataset of arkimet, a dataset, in place; a dry run without --yes",
    "append": "store the data of files",
    "query": "print the data that match",
    "summary": "count the data that match",
    "delete": "delete the data that match; a dry run without --yes",
    "ack": "acknowledge data of a queue, as its consumer; a dry run without --yes",
    "scan": "print what there is in a file, without a dataset",
    "formats": "print the formats of data, their extensions, and what they need",
    "info": "print a dataset's configuration, size and time span",
    "check": "report what is wrong with a dataset; changes no data",
    "fix": "make the index agree with the disk; a dry run without --yes",
    "repack": "free space, apply archive_age and delete_age; a dry run without --yes",
    "archive": "move segments to the archive; a dry run without --yes",
    "unarchive": "move segments back from the archive; a dry run without --yes",
    "quarantine": "list, export, restore or drop files that stood in the way",
    "maintain": "fix and repack many datasets, for cron",
    "backup": "add the present state of a dataset to a backup, beside writers and readers",
    "restore": "make a dataset from a backup; or list and verify what the backup has",
    "serve": "serve datasets over HTTP, or answer commands of elliptics",
    "pipeline": "import new files into the datasets they belong to",
    "replicate": "follow another dataset: fetch its changes and apply them to a replica",
    "promote": "make a replica an ordinary dataset; a dry run without --yes",
    "token": "print or verify a file with the tokens of a replica",
    "migrate": "update the index to a new version or configuration; a dry run without --yes",
    "spark-jar": "print the path of the connector for Spark, for spark-submit --jars",
    "completion": "print a script that makes a shell complete commands, options and paths",
}
_SHARED = {
    **dict.fromkeys(("query", "summary", "delete"), "matching"),
    **dict.fromkeys(("check", "fix", "repack", "archive", "unarchive", "maintain", "adopt", "ack"), "maintenance"),
    **dict.fromkeys(("replicate", "promote", "token"), "replication"),
    **dict.fromkeys(("backup", "restore", "quarantine"), "backups"),
    **dict.fromkeys(("init", "migrate"), "configuration"),
    **dict.fromkeys(("info", "formats", "scan", "completion", "spark-jar"), "about"),
}  # command → module, where that has others, too
_DRY_RUNS = ("delete", "ack", "adopt", "fix", "repack", "archive", "unarchive", "quarantine", "replicate", "promote",
             "migrate")  # fmt: skip
_WITHOUT_RESULTS = ("completion", "spark-jar")
_DASHED = ("--sort", "--tz", "--null")  # options whose values may begin with a dash
_DATASET = "ONDISK_DATASET"
_REPEATED_AFTER = 0.05  # seconds, for a signal
_WIDTH = 80  # of help that is not printed on a terminal
_NO_MEMORY = """there is not enough memory
Raise the limit of memory (`ulimit -v`, the container's), or append with a lower --batch-size; in Python, batch_size.\
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default that of `sys.argv`, and return the exit code; `--help` raises SystemExit."""
    fill_closed_streams()
    gc.set_threshold(20_000)  # a start makes as many objects, none of them garbage
    try:
        with _terminable():
            return _run(list(map(decoded, sys.argv[1:])) if argv is None else argv)
    except KeyboardInterrupt as interrupt:
        discard_stdout()  # else a reader that stopped reading would block the exit
        notes = (note.removeprefix("ondisk: ") for note in getattr(interrupt, "__notes__", ()))
        complain("error", "\n".join([str(interrupt) or "interrupted", *notes]))
        return EXIT_TERMINATED if isinstance(interrupt, _Terminated) else EXIT_INTERRUPTED


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command. The docstring of `add`, or of its module, has the description and examples."""
    module, add = _module(command), _function(command, "add")
    description, _, examples = (add.__doc__ or module.__doc__).replace("\n    ", "\n").partition("\n\n")
    indented = "\n".join(line and f"  {line}" for line in examples.rstrip().split("\n"))
    parser = _Parser(prog=f"ondisk {command}", description=description, epilog=f"examples:\n{indented}")
    add(parser)
    if command in _DRY_RUNS:
        parser.add_argument("--yes", action="store_true", help="do it; without it, only print what would be done")
    if command not in (*_WITHOUT_RESULTS, "query"):  # which has other forms, too
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only warnings and errors")
    return parser


def _module(command: str) -> Any:
    return import_module(f"ondisk.cli.{_SHARED.get(command, command)}")


def _function(command: str, what: str) -> Any:
    return getattr(_module(command), f"{what}_{command.replace('-', '_')}" if command in _SHARED else what)


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser of all commands, from which completion and the man page are made."""
    whole = _top_parser("")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, purpose in COMMANDS.items():
        parser = parser_of(name)
        commands.add_parser(
            name,
            help=purpose,
            description=parser.description,
            epilog=parser.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[parser],
            add_help=False,  # the parent has it
        )
    return whole


def _run(argv: Sequence[str]) -> int:
    try:
        if argv[:1] == ["help"]:
            argv = [*argv[1:], "--help"]
        purposes = "\n".join(f"  {name:<10} {purpose}" for name, purpose in COMMANDS.items())
        help_of_one = "`ondisk help COMMAND` prints the options and examples of a command."
        parser = _top_parser(f"commands:\n{purposes}\n\n{help_of_one}")
        parser.add_argument("command", type=_known, metavar="COMMAND", help="one of the commands below")
        command = parser.parse_args(argv[:1]).command
        arguments = _parsed(parser_of(command), _with_values(argv[1:]))
        if (key_file := getattr(arguments, "key_file", None)) is not None:
            use_key_file(key_file)
        with quieted(arguments.quiet):
            code: int = _function(command, "run")(arguments, output_for(arguments))
    except OndiskError as error:
        complain("error", str(error))
        return error.exit_code
    except MemoryError:
        complain("error", _NO_MEMORY)
        return EXIT_OUT_OF_MEMORY
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        # Python could not open one of its modules.
        complain("error", f"{error.strerror}\nRaise the limit of open files (ulimit -n).")
        return StorageError.exit_code
    return code


def _parsed(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Return the arguments of a command; if they omit DATASET, it is that of the environment.

    They omit it if they are not complete otherwise, or if no dataset is at the path that would be DATASET. A path
    without a colon is never treated as a MATCH: its disk may not be mounted.
    """
    parse = parser.parse_intermixed_args  # options are allowed between DATASET and MATCH
    default = os.environ.get(_DATASET)
    if not default or not any(action.dest in ("dataset", "datasets") for action in parser._actions):
        return parse(argv)
    try:
        given = parse(argv)
    except InvalidInput:
        return parse([default, *argv])
    from ondisk.dataset.auxiliary_files import CONFIG  # here, as no parser needs it

    named = getattr(given, "dataset", None)
    if (
        isinstance(named, str)
        and not os.access(f"{named}/{CONFIG}", os.F_OK)
        and (":" in named or "match" not in given)
    ):
        with contextlib.suppress(InvalidInput):
            return parse([default, *argv])
    return given


def _with_values(arguments: Sequence[str]) -> list[str]:
    """Join options and values that begin with a dash, such as `--sort -reftime`: argparse treats these as options."""
    joined: list[str] = []
    for each in arguments:
        if joined and joined[-1] in _DASHED and each.startswith("-") and not each.startswith("--"):
            joined[-1] += f"={each}"
        else:
            joined.append(each)
    return joined


def _known(command: str) -> str:
    if command not in COMMANDS:
        raise argparse.ArgumentTypeError(f"there is no command {command!r}{_similar(command, COMMANDS)}")
    return command


def _similar(text: str, known: Iterable[str]) -> str:
    import difflib  # here, because only mistakes need it

    found = difflib.get_close_matches(text.lower(), known, 1, _SIMILAR)
    return f"; did you mean {found[0]}?" if found else ""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that knows its width without shutil, whose import takes longer than to parse the arguments."""

    def __init__(self, prog: str) -> None:
        try:
            width = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(sys.stdout.fileno()).columns
        except (OSError, ValueError):
            width = 0
        super().__init__(prog, width=(width or _WIDTH) - 2)


class _Parser(argparse.ArgumentParser):
    """A parser that raises ondisk's errors and refuses abbreviated options."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=_Formatter
        )

    def error(self, message: str) -> NoReturn:
        _, is_unknown, names = message.partition("unrecognized arguments: ")
        if is_unknown:
            message += _similar(names.split(" ")[0].partition("=")[0], self._option_string_actions)
        raise InvalidInput(message, hint=f"Run `{self.prog} --help` for its arguments.")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        write_stdout(())  # flush what argparse printed here, where an error is still reported
        super().exit(status, message)


def _top_parser(epilog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ondisk",
        description="Datasets on disk: data in segment files by time, one SQLite index. Stored data survive a crash.",
        epilog=epilog,
    )
    parser.add_argument("-V", "--version", action="version", version=f"ondisk {__version__}")
    return parser


class _Terminated(KeyboardInterrupt):
    """SIGTERM arrived. The command ends as after an interrupt: the lock is released, the batch is rolled back."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise `_Terminated` during the block, unless the program has its own handler."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    before, again = sys.unraisablehook, list[threading.Timer]()

    def repeat(unraisable: sys.UnraisableHookArgs) -> None:
        """Send a signal again that arrived while Python ran a `__del__`, which swallows what its handler raises."""
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            before(unraisable)
            return
        number = signal.SIGTERM if isinstance(unraisable.exc_value, _Terminated) else signal.SIGINT
        again.append(threading.Timer(_REPEATED_AFTER, signal.pthread_kill, (threading.get_ident(), number)))
        again[-1].daemon = True
        again[-1].start()

    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = repeat
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated("terminated")
