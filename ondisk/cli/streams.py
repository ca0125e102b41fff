"""Standard streams, messages, and input files; what a command prints, as text or as JSON.

Results go to standard output; refused and damaged input, and messages, to standard error. `ondisk.filesystem` alone
opens the files of a dataset.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ondisk.errors import DiskFull, NotFound, OndiskError, StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ondisk.cli.output import Output as _Output
    from ondisk.segment import Damage

STDIN = "-"
_ROUND = 1.0  # seconds
_WRITE = 1024 * 1024  # bytes
_NOWHERE = Path(os.devnull)
_STREAMS = [("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")]
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_OUTPUT_HINTS = {
    **dict.fromkeys(_NO_SPACE, "Free some space on its disk, or write to another one."),
    errno.EBADF: "It is closed. To discard the output, redirect it to /dev/null.",
}
_REMEDIES = {
    errno.EISDIR: "If each file of this folder is a datum, such as a photo, write --format blob; if it is a Beats disk"
    " queue, --format diskqueue. Else name the files: FOLDER/*.",
    errno.EACCES: "Ask the owner for permission to read it.",
    errno.ENAMETOOLONG: "Check the path.",
}


_quiet = False
_Said: TypeAlias = Sequence[tuple[str, str]]  # of files: name and remark
Output: TypeAlias = "_Output"


@contextlib.contextmanager
def quieted(quiet: bool) -> Iterator[None]:
    """Print only warnings and errors during the block, if `quiet`."""
    global _quiet
    _quiet, before = quiet, _quiet
    try:
        yield
    finally:
        _quiet = before


def shows_progress() -> bool:
    """Whether progress is shown: standard error is a terminal."""
    return sys.stderr.isatty() and not _quiet


def fill_closed_streams() -> None:
    """Open /dev/null for each standard stream that was closed before the program started.

    Otherwise a file of the dataset could get the descriptor of the stream. What a command prints on a closed standard
    output would be lost: writing to it fails.
    """
    for name, flags, mode in _STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def discard_stdout() -> None:
    """Redirect standard output to /dev/null: nobody reads it, and flushing it at exit would fail."""
    with _NOWHERE.open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def write_stdout(pieces: Iterable[bytes]) -> None:
    """Write to standard output in large writes. If the reader has closed the pipe, stop without an error.

    With `quieted`, the pieces are taken and not written. After an error of `pieces`, those before it are written.
    """
    held: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= _WRITE:
                if not _write(b"".join(held)):
                    return
                held, size = [], 0
    except OndiskError:
        _write(b"".join(held))
        raise
    _write(b"".join(held))


def complain(kind: Literal["error", "warning", "refused", "damaged", "note"], message: str) -> None:
    """Print a message on standard error. With `quieted`, notes are not printed."""
    if _quiet and kind == "note":
        return
    with contextlib.suppress(OSError):  # standard error is closed
        # A message may quote what others wrote, for example into `.lock`: the terminal must not execute it.
        shown = "\n".join(map(printable, message.split("\n")))
        print(f"ondisk: {kind}: {shown}", file=sys.stderr)


def printable(text: str) -> str:
    """Return a text with escapes for characters that are not printable, such as those that move the cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Input(io.FileIO):
    """An input file, or standard input for `-`, that raises ondisk's errors. `advance`: takes the size of each read."""

    # Those of FileIO would not read with `readinto`.
    read, readall = io.RawIOBase.read, io.RawIOBase.readall  # type: ignore[assignment]

    def __init__(self, name: str, advance: Callable[[int], None] = lambda count: None) -> None:
        self._advance = advance
        try:
            super().__init__(sys.stdin.fileno() if name == STDIN else name, closefd=name != STDIN)
        except FileNotFoundError:
            raise NotFound(f"{name}: no such file", hint="Check the path.") from None
        except OSError as error:
            raise _unreadable(name, error) from error
        self.name = name  # the file's path; `append_file` reads the extension from it

    def readinto(self, buffer: Buffer) -> int:
        # Python handles a signal that arrives just before a read only after the read, which may be never: so poll.
        while not select.select([self], [], [], _ROUND)[0]:
            pass
        try:
            count = super().readinto(buffer)
        except OSError as error:
            raise _unreadable(self.name, error) from error
        self._advance(count)
        return count or 0


def _write(content: bytes) -> bool:
    """Write to standard output; return False if the reader has closed it."""
    if _quiet:
        return True
    try:
        rest = memoryview(content)
        while rest:  # unbuffered (python -u), a write may be partial
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        return False
    except OSError as error:
        discard_stdout()
        hint = _OUTPUT_HINTS.get(error.errno or 0, "")
        kind = DiskFull if error.errno in _NO_SPACE else StorageError
        raise kind(f"standard output: {error.strerror}", hint=hint, errno=error.errno) from error
    return True


def _unreadable(name: str, error: OSError) -> StorageError:
    hint = _REMEDIES.get(error.errno or 0, "")
    return StorageError(f"{name}: {error.strerror}", hint=hint, path=name, errno=error.errno)


def output_for(arguments: argparse.Namespace) -> Output | None:
    """Return the output that the option `--json` selects; None for a command without it, which prints no results."""
    if "json" not in arguments:
        return None
    from ondisk.cli import output

    return output.Output(as_json=arguments.json)


def values_of(result: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(result, name) for name in names}


def damage_and_notes(damage: Sequence[tuple[str, Damage]], notes: _Said) -> dict[str, Any]:
    """Return what is to be said of input files, for JSON."""
    return {
        "damage": [{"file": name} | values_of(each, "offset", "size", "reason") for name, each in damage],
        "notes": [{"file": name, "note": note} for name, note in notes],
    }


def complain_of_input(
    refusals: _Said, refused: int, damage: Sequence[tuple[str, Damage]], damaged: int, warnings: _Said, notes: _Said
) -> None:
    """Print what was not stored of input files, and why; `refused` and `damaged` are totals, listed or not."""
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
