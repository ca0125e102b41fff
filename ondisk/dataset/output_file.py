"""Files and folders that a caller names for the results of a query: never inside a dataset, and no file by accident."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.errors import AlreadyExists, DiskFull, InvalidInput, OndiskError, StorageError, shown
from ondisk.filesystem import Directory, WritableFile


def check_outside(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInput if a path is in a dataset, which would read it as its own, or lose what it replaces."""
    absolute = Path(path).resolve()
    for each in (absolute, *absolute.parents):
        with contextlib.suppress(OSError):  # it cannot be looked at, so no dataset there can be opened either
            if (each / CONFIG).exists():
                raise InvalidInput(f"{absolute} is in the dataset {each}", hint="Choose a folder outside of it.")


def check_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise AlreadyExists, NotFound without its directory, or InvalidInput unless a file may be written."""
    absolute = Path(path).absolute()
    with Directory.above(absolute) as directory:
        try:
            there = directory.stat(absolute.name)
        except InvalidInput:
            message = f"no file can have the name {shown(os.fspath(path))}"
            raise InvalidInput(message, hint="Choose another name.") from None
        check_outside(absolute.parent)
        if there is None:
            return
        if not overwrite:
            raise _exists(absolute)
        try:
            directory.regular_file(absolute.name)
        except StorageError as error:
            raise InvalidInput(error.message, hint="Choose another file.") from None


@contextlib.contextmanager
def output_file(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[WritableFile]:
    """Return a file to write to. When the block ends, it gets its name; after an error there is no new file.

    Raises as `check_free`; DiskFull or StorageError if the file cannot be written.
    Durability: writes and syncs a hidden file, renames it, and syncs the directory. A crash before that leaves
        the hidden file, `.ondisk-ID.tmp`.
    """
    check_free(path, overwrite=overwrite)
    absolute = Path(path).absolute()
    staged = f".ondisk-{uuid4().hex}.tmp"
    with Directory.above(absolute) as directory:
        try:
            with directory.create_file(staged) as file:
                yield file
                file.sync()
            if overwrite:
                directory.rename(staged, absolute.name)
            else:
                _name(directory, staged, absolute)
        except DiskFull as error:  # its hint is about a dataset
            error.hint = "Free some space on this disk, and write it again."
            raise
        finally:
            directory.discard(staged)


def _name(directory: Directory, staged: str, path: Path) -> None:
    """Rename a file to a path, unless something is there; raise AlreadyExists if something is."""
    try:
        try:
            directory.link(staged, path.name)
        except OndiskError:  # the filesystem has no links
            check_free(path, overwrite=False)
            directory.rename(staged, path.name)
        directory.sync()
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: Path) -> AlreadyExists:
    hint = "Choose another name, or pass --overwrite."
    return AlreadyExists(f"{path} exists already", hint=hint)
