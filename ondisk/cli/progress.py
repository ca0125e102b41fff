"""Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ondisk.cli.streams import printable, shows_progress


def files_progress(files: Sequence[str]) -> AbstractContextManager[Callable[[int], None]]:
    """Show how much of the files has been read during the block; see `bytes_progress`."""
    return bytes_progress("append", _size(files))


@contextlib.contextmanager
def bytes_progress(verb: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Show how much has been read, during the block.

    Args:
        size: bytes to read in all; None if unknown.

    Yields:
        A function to call with the number of bytes of each read.
    """
    if not shows_progress():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    # rich must not redirect standard output: results go there, and it may be a file.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(verb, total=size)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def segments_progress(verb: str) -> Iterator[Callable[[str], None]]:
    """Show the current segment, and how many have been started, during the block.

    Yields:
        A function to call with the name of each segment.
    """
    if not shows_progress():
        yield lambda name: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.completed:.0f} {task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(escape(verb), total=None)
        yield lambda name: bar.update(task, advance=1, description=escape(printable(name)))


@contextlib.contextmanager
def changes_progress(verb: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many changes have been applied, and how many are left, during the block.

    Yields:
        A function to call with the number of changes of each answer, and of those that are left.
    """
    if not shows_progress():
        yield lambda count, left: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    done = 0
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(verb, total=None)

        def show(count: int, left: int) -> None:
            nonlocal done
            done += count
            bar.update(task, completed=done, total=done + left)

        yield show


def _size(files: Sequence[str]) -> int | None:
    """Return the total size of files, or None if one is not a regular file or does not exist."""
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
