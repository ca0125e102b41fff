"""Hard links to the files of dir segments: a datum that has a file of its own gets a second name without a copy."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from ondisk.config import DatasetConfig
from ondisk.dataset import Dataset, Merged
from ondisk.datum import Datum
from ondisk.errors import InvalidInput, StorageError, shown
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.segments.dir import file_name

_COPY = "Export without a link: then the files are copies."


class Links:
    """Links the files of data. Use it in one thread, in a `with` block.

    Raises:
        InvalidInput: data of a dataset have no files of their own.
    """

    def __init__(self, dataset: Dataset | Merged) -> None:
        self._path = dataset.path if isinstance(dataset, Dataset) else None
        configs = {str(dataset.path): dataset.config} if isinstance(dataset, Dataset) else dataset.configs
        for path, config in configs.items():
            _check(path, config)
        self._open = contextlib.ExitStack()
        self._datasets: dict[Path, Directory] = {}

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def add(self, datum: Datum, folder: Directory, name: str, staged: str) -> None:
        """Link the file of a datum to a name in a folder, if the file has the datum's bytes.

        Args:
            staged: the name of a hidden file in the folder, which is linked first.

        Durability: none; the caller syncs the folder. A crash may leave the hidden file.

        Raises:
            FileExistsError: the name is taken.
            InvalidInput: a repack has moved the file since the datum was read.
            StorageError: the folder is on another filesystem, or the file cannot be linked for another reason.
        """
        location = datum.location
        assert location is not None
        file = f"{location.segment}/{file_name(location.segment, location.offset)}"
        folder.discard(staged)
        try:
            if not self._is_linked(datum, self._dataset(datum), file, folder, staged):
                raise InvalidInput("its file was moved by a repack meanwhile; export again")
            folder.link(staged, name)
        finally:
            folder.discard(staged)

    @staticmethod
    def _is_linked(datum: Datum, dataset: Directory, file: str, folder: Directory, staged: str) -> bool:
        """Link a file of a dataset; return whether it exists and has the bytes of a datum."""
        try:
            if not dataset.link(file, staged, folder):
                message = f"{folder.path} is not on the filesystem of {dataset.path}, so no file can be linked"
                raise StorageError(message, hint=_COPY, errno=errno.EXDEV)
        except FileNotFoundError:
            return False
        found, size = folder.open_to_read(staged), len(datum.data)
        return found.size() == size and found.read(0, size) == datum.data

    def _dataset(self, datum: Datum) -> Directory:
        """Return the directory of a datum's dataset."""
        path = self._path or Path(datum.dataset or "")
        found = self._datasets.get(path)
        if found is None:
            found = self._datasets[path] = self._open.enter_context(Directory.open(path))
        return found


def _check(path: str, config: DatasetConfig) -> None:
    if not is_dir(config.format):
        message = f"the data of {shown(path)} cannot be linked: {config.format} stores many of them in one file"
        raise InvalidInput(message, hint=_COPY)
