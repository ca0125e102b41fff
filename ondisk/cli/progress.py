"""Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from ondisk.cli.streams import printable, shows_progress


@contextlib.contextmanager
def _bar(verb: str, size: int | None, *columns: str) -> Iterator[Callable[..., None]]:
    """Show a bar with columns of rich during the block; yield a function as `Progress.update` of rich."""
    if not shows_progress():
        yield lambda **_values: None
        return
    from rich import progress
    from rich.console import Console

    shown = [progress.TextColumn(each, markup=False) if "{" in each else getattr(progress, each)() for each in columns]
    # rich must not redirect standard output: results go there, and it may be a file.
    with progress.Progress(*shown, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        yield partial(bar.update, bar.add_task(verb, total=size))


def files_progress(files: Sequence[str]) -> AbstractContextManager[Callable[[int], None]]:
    """Show how much of the files has been read during the block; see `bytes_progress`."""
    return bytes_progress("append", _size(files))


@contextlib.contextmanager
def bytes_progress(verb: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Show how much has been read, during the block; yield a function that takes the number of bytes of each read."""
    with _bar(verb, size, "BarColumn", "DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn") as update:
        yield lambda count: update(advance=count)


@contextlib.contextmanager
def segments_progress(verb: str) -> Iterator[Callable[[str], None]]:
    """Show the current segment, and how many have been started; yield a function that takes the name of each."""
    columns = "SpinnerColumn", "TimeElapsedColumn", "{task.completed:.0f} {task.description}"
    with _bar(verb, None, *columns) as update:
        yield lambda name: update(advance=1, description=printable(name))


@contextlib.contextmanager
def changes_progress(verb: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many changes have been applied, and how many are left; yield a function that takes both numbers."""
    done = 0

    def show(count: int, left: int) -> None:
        nonlocal done
        done += count
        update(completed=done, total=done + left)

    with _bar(verb, None, "BarColumn", "MofNCompleteColumn", "TimeRemainingColumn") as update:
        yield show


def _size(files: Sequence[str]) -> int | None:
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
