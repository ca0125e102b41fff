"""Standard streams, messages, and input files. `ondisk.filesystem` alone opens the files of a dataset."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ondisk.errors import NotFound, OndiskError, StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDIN = "-"
_ROUND = 1.0  # seconds
_WRITE = 1024 * 1024  # bytes
_NOWHERE = Path(os.devnull)
_REMEDIES = {
    errno.EISDIR: "Name files; those of a folder are FOLDER/*.",
    errno.EACCES: "Ask its owner for the right to read it.",
}


def fill_closed_streams() -> None:
    """Put /dev/null in the place of standard streams that were closed before we began.

    Without it a file of the dataset could get their descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _NOWHERE.open(mode))


def discard_stdout() -> None:
    """Send to nowhere what is yet to be written: nobody reads it, and Python's exit would stumble over it."""
    with _NOWHERE.open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def write_stdout(pieces: Iterable[bytes]) -> None:
    """Write to standard output, much at a time; stops taking pieces when the reader has gone, which is no error.

    Raises:
        StorageError: it cannot be written, for example since the disk is full.
        OndiskError: that of `pieces`; those before it were written.
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
    """Print a message on standard error."""
    with contextlib.suppress(OSError):  # nobody listens there
        # A message may quote what others wrote, as into `.lock`: nothing of that is for the terminal to carry out.
        shown = "\n".join(map(printable, message.split("\n")))
        print(f"ondisk: {kind}: {shown}", file=sys.stderr)


def printable(text: str) -> str:
    """Write as escapes what could move the cursor, or is no text at all."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Input(io.RawIOBase):
    """An input file, or standard input for `-`; its errors are ondisk's.

    Args:
        name: the file's path.
        advance: told of each read how many bytes it gave.

    Attributes:
        name: the file's path, from which `append_file` takes the extension.

    Raises:
        NotFound: there is no such file.
        StorageError: it cannot be opened, or read.
    """

    def __init__(self, name: str, advance: Callable[[int], None] = lambda count: None) -> None:
        self.name = name
        self._advance = advance
        self._stream: io.FileIO | None = None  # `close` comes also where opening fails
        self._stream = io.FileIO(sys.stdin.fileno(), closefd=False) if name == STDIN else _open(name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        assert self._stream is not None
        # A signal that comes just before a read is noticed behind it, which may be never: so we wait in rounds.
        while not select.select([self._stream], [], [], _ROUND)[0]:
            pass
        try:
            count = self._stream.readinto(buffer)
        except OSError as error:
            raise _unreadable(self.name, error) from error
        self._advance(count)
        return count or 0

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super().close()


def _write(content: bytes) -> bool:
    """Write to standard output; tell whether somebody still reads there."""
    try:
        rest = memoryview(content)
        while rest:  # unbuffered (python -u), a write may take only a part
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        return False
    except OSError as error:
        discard_stdout()
        hint = "Is the disk full?"
        raise StorageError(f"standard output: {error.strerror}", hint=hint, errno=error.errno) from error
    return True


def _open(name: str) -> io.FileIO:
    try:
        return Path(name).open("rb", buffering=0)  # it is read in large pieces
    except FileNotFoundError:
        raise NotFound(f"{name}: no such file", hint="Look at the path.") from None
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> StorageError:
    hint = _REMEDIES.get(error.errno or 0, "")
    return StorageError(f"{name}: {error.strerror}", hint=hint, path=name, errno=error.errno)
