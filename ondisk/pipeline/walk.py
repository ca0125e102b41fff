"""Find the files that a pipeline may import."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ondisk.errors import NotFound, StorageError
from ondisk.files.walk import UNFINISHED
from ondisk.pipeline.config import holds_dataset
from ondisk.pipeline.task import InputFile


def input_files(folder: Path, unreadable: Callable[[OSError], None]) -> Iterator[InputFile]:
    """Yield the files in a folder and its subfolders, in a fixed order.

    Skips hidden files and folders, unfinished files (`.tmp`, `.part`), links to folders, and datasets.

    Args:
        unreadable: called with the error when a subfolder cannot be read.

    Raises:
        NotFound, StorageError: the folder itself cannot be read.
    """

    def failed(error: OSError) -> None:
        if error.filename == str(folder):
            if isinstance(error, FileNotFoundError):
                raise NotFound(f"{folder}: no such folder", hint="Create it, or correct `input`.") from None
            raise StorageError(f"{folder}: {error.strerror}", errno=error.errno) from error
        if not isinstance(error, FileNotFoundError):  # it was removed meanwhile
            unreadable(error)

    for parent, folders, names in os.walk(str(folder), onerror=failed):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not holds_dataset(Path(parent, name))
        )
        for name in sorted(names):
            if name.startswith(".") or name.endswith(UNFINISHED):
                continue
            path = Path(parent, name)
            try:
                found = path.stat()
            except OSError:  # it was removed, or is a broken link
                continue
            if stat.S_ISREG(found.st_mode):
                yield InputFile(str(path.relative_to(folder)), found.st_size, found.st_mtime_ns)
