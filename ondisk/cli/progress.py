"""How far a command has come, on standard error where that is a terminal."""

from __future__ import annotations

import contextlib
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path


def progress(files: Sequence[str]) -> AbstractContextManager[Callable[[int], None]]:
    """Show how much of the files was read, see `read`."""
    return read("append", _size(files) if sys.stderr.isatty() else None)


@contextlib.contextmanager
def read(verb: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Show how much was read, for the length of the block.

    Args:
        size: bytes that there are to read; None where nobody knows.

    Yields:
        To be called with the number of bytes of each read.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    # Standard output stays as it is: results go there, and it may be a file.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        task = shown.add_task(verb, total=size)
        yield lambda count: shown.advance(task, count)


@contextlib.contextmanager
def segments(verb: str) -> Iterator[Callable[[str], None]]:
    """Show which segment is worked on, and how many were before it, for the length of the block.

    Yields:
        To be called with the name of each.
    """
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.completed:.0f} {task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        task = shown.add_task(escape(verb), total=None)
        yield lambda name: shown.update(task, advance=1, description=escape(name))


def _size(files: Sequence[str]) -> int | None:
    """Add up the sizes of files; None where one has no size beforehand, as a pipe, or does not exist."""
    total = 0
    for name in files:
        try:
            found = Path(name).stat()
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        total += found.st_size
    return total
