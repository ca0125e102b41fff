"""Hard links to the files of dir segments: a datum that has a file of its own gets a second name without a copy."""

from __future__ import annotations

import contextlib
import errno
import stat
from pathlib import Path
from typing import Self

from ondisk.config import DatasetConfig
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.merged import Merged
from ondisk.datum import Datum
from ondisk.errors import InvalidInput, ReadOnly, StorageError
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.segments.dir import file_name
from ondisk.segments.generations import hidden, kept

_COPY = "Omit --link (in Python link=False): then the files are copies."
_NOT_PERMITTED = f"Only the owner of a file may link it, and some filesystems have no links. {_COPY}"


class Links:
    """Links the files of data. Use it in one thread, in a `with` block.

    Raises:
        InvalidInput: a dataset stores many data in one file.
    """

    def __init__(self, dataset: Dataset | Merged) -> None:
        self._path = dataset.path if isinstance(dataset, Dataset) else None
        configs = {str(dataset.path): dataset.config} if isinstance(dataset, Dataset) else dataset.configs
        for path, config in configs.items():
            _check(path, config)
        self._open = contextlib.ExitStack()
        self._datasets: dict[Path, Directory] = {}

    def __enter__(self) -> Self:
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
            FileNotFoundError: the folder was removed.
            InvalidInput: the datum has no file of its own, or that was moved or changed since the datum was read.
            StorageError: the folder is on another filesystem, or the file cannot be linked for another reason.
            ReadOnly, DiskFull: the folder cannot be written.
        """
        assert datum.location is not None
        segment, generation = datum.location.segment, datum._place[1]
        # As readers look for a generation.
        places = hidden(segment, generation), segment, kept(segment, generation)
        try:
            if not any(self._link(datum, place, folder, staged) for place in places):
                if folder.is_removed:
                    raise FileNotFoundError(folder.path)
                raise InvalidInput("its file was moved or changed after it was read; export again")
            folder.link(staged, name)
        finally:
            folder.discard(staged)

    def _link(self, datum: Datum, place: str, folder: Directory, staged: str) -> bool:
        """Link the file of a datum, if it is in the directory `place` of its dataset; return whether it is."""
        assert datum.location is not None
        dataset = self._dataset(datum)
        file = f"{place}/{file_name(datum.location.segment, datum.location.offset)}"
        folder.discard(staged)
        try:
            if not dataset.link(file, staged, folder):
                source = dataset.at(file)
                problem = f"{folder.path} is on another filesystem than {source}, so {source} cannot be linked there"
                raise StorageError(problem, hint=_COPY, errno=errno.EXDEV)
        except FileNotFoundError:
            return False
        except ReadOnly as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EPERM:
                problem = f"{dataset.at(file)} cannot be linked to {folder.path}: {error.__cause__.strerror}"
                raise StorageError(problem, hint=_NOT_PERMITTED, errno=errno.EPERM) from error
            raise
        except StorageError as error:
            found = dataset.stat(place)
            if found is not None and stat.S_ISREG(found.st_mode):
                raise InvalidInput("it is in one file with other data, so it cannot be linked") from None
            error.hint = error.hint or _COPY
            raise
        found_file, size = folder.open_to_read(staged), len(datum.data)
        return found_file.size() == size and found_file.read(0, size) == datum.data

    def _dataset(self, datum: Datum) -> Directory:
        path = self._path or Path(datum.dataset or "")
        found = self._datasets.get(path)
        if found is None:
            found = self._datasets[path] = self._open.enter_context(Directory.open(path))
        return found


def _check(path: str, config: DatasetConfig) -> None:
    if not is_dir(config.format):
        message = f"the data of {path} cannot be linked: {config.format} stores many of them in one file"
        raise InvalidInput(message, hint=_COPY)
