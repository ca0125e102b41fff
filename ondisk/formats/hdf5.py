"""The attributes and small datasets of HDF5 files; needs h5py. Links that lead out of the file are not followed.

Source: the HDF5 file format specification, version 3; https://docs.h5py.org.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from ondisk.errors import ConfigError, InvalidInput, LimitExceeded, shown

MAGIC = b"\x89HDF\r\n\x1a\n"
"""How such a file begins."""
_HEAP = re.compile(rb"GCOL\x01\x00{3}(.{8})", re.DOTALL)  # a global heap: its size, and then its objects
_HEAD = 16  # bytes before each object

_MOST_VALUES = 1024 * 1024  # of a dataset
_MOST_NAMES = 10_000  # in a group
_MOST_OPENED = 5_000  # groups and datasets of a file, each as often as it is opened: hard links may multiply them
_DEFLATE, _SHUFFLE, _CHECKSUM = 1, 2, 3  # the filters of chunks that are read


class Group:
    """A group of an HDF5 file: its attributes, and what is below it. `left` ends when enough of the file was opened."""

    def __init__(self, group: Any, left: Iterator[int]) -> None:
        self._group = group
        self._left = left

    def names(self) -> list[str]:
        """Return the names of the groups and datasets in it, in alphabetic order."""
        if len(self._group) > _MOST_NAMES:
            raise LimitExceeded(f"a group of it has {len(self._group)} members, more than {_MOST_NAMES}")
        return sorted(self._group)

    def _member(self, name: str) -> Any:
        import h5py

        if next(self._left, None) is None:
            raise LimitExceeded(f"its groups lead to more than {_MOST_OPENED} members")
        link = self._group.get(name, getlink=True)
        return self._group[name] if isinstance(link, h5py.HardLink) else None

    def group(self, name: str) -> Group | None:
        import h5py

        found = self._member(name)
        return Group(found, self._left) if isinstance(found, h5py.Group) else None

    def groups(self, prefix: str) -> Iterator[Group]:
        for name in self.names():
            if name.startswith(prefix) and (found := self.group(name)) is not None:
                yield found

    def dataset(self, name: str) -> Dataset | None:
        import h5py

        found = self._member(name)
        return Dataset(found) if isinstance(found, h5py.Dataset) else None

    def attribute(self, name: str) -> Any:
        """Return an attribute as a text, an integer or a real; None if there is none, or if it has several values."""
        return _attribute(self._group, name)


class Dataset:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def attribute(self, name: str) -> Any:
        return _attribute(self._dataset, name)

    def first(self) -> float | None:
        """Return the first value; None without any; raise InvalidInput as `values`, or of a large chunk."""
        dataset = self._dataset
        self._check_numbers()
        if not dataset.size:
            return None
        if dataset.chunks is not None:
            self._check_chunk((0,) * dataset.ndim)
        value: float = dataset[(0,) * dataset.ndim].item()
        return value

    def values(self) -> Sequence[float]:
        """Return all values; raise InvalidInput if they are not numbers, too many, or not in this very file."""
        dataset = self._dataset
        self._check_numbers()
        if dataset.size > _MOST_VALUES:
            raise InvalidInput(f"{shown(dataset.name)} has {dataset.size} values, more than {_MOST_VALUES}")
        if dataset.chunks is not None:
            places: list[Any] = []
            dataset.id.chunk_iter(lambda chunk: places.append(chunk.chunk_offset))
            for place in places:
                self._check_chunk(place)
        found: list[float] = dataset[...].ravel().tolist()
        return found

    def _check_numbers(self) -> None:
        dataset = self._dataset
        if dataset.external is not None or dataset.is_virtual:
            raise InvalidInput(f"the values of {shown(dataset.name)} are in another file")
        if dataset.shape is None or dataset.dtype.kind not in "iuf":
            raise InvalidInput(f"{shown(dataset.name)} has no numbers")

    def _check_chunk(self, place: Sequence[int]) -> None:
        """Raise unless a chunk is as large as it should be when HDF5 has decompressed it, which has no limit there."""
        dataset, name = self._dataset, shown(self._dataset.name)
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        if not {*filters} <= {_DEFLATE, _SHUFFLE, _CHECKSUM} or filters.count(_DEFLATE) > 1:
            raise InvalidInput(f"{name} is compressed in another way than by deflate")
        size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if size > _MOST_VALUES * dataset.dtype.itemsize:
            raise InvalidInput(f"{name} has chunks of {math.prod(dataset.chunks)} values, more than {_MOST_VALUES}")
        if _DEFLATE in filters and dataset.id.get_chunk_info_by_coord(tuple(place)).size:
            skipped, stored = dataset.id.read_direct_chunk(tuple(place))
            is_deflated = not skipped >> filters.index(_DEFLATE) & 1
            if (
                is_deflated and len(zlib.decompressobj().decompress(stored, size + 5)) > size + 4
            ):  # and perhaps a checksum
                raise InvalidInput(f"a chunk of {name} is larger than it says")


@contextlib.contextmanager
def opened(content: bytes) -> Iterator[Group]:
    """Open a file that is in memory, for the length of the block; raise InvalidInput, or ConfigError without h5py."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError("files of HDF5 need the package h5py", hint="Run `pip install 'ondisk[hdf5]'`.") from error
    if not content.startswith(MAGIC):
        raise InvalidInput("it does not begin as an HDF5 file")
    _check_heaps(content)
    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            yield Group(file, iter(range(_MOST_OPENED)))
    except InvalidInput:
        raise
    except (KeyError, OSError, OverflowError, RuntimeError, TypeError, UnicodeError, ValueError, zlib.error) as error:
        raise InvalidInput(f"it cannot be read as HDF5: {shown(str(error))}") from None


def _check_heaps(content: bytes) -> None:
    """Raise InvalidInput if the objects of a global heap do not fill it: HDF5 would look for the next one for ever."""
    for found in _HEAP.finditer(content):
        place, end = found.end(), found.start() + int.from_bytes(found[1], "little")
        while place + _HEAD <= end <= len(content):
            number, size = content[place : place + 2], int.from_bytes(content[place + 8 : place + _HEAD], "little")
            if number == b"\0\0":  # the free rest; its size contains the head
                place = end if place + size == end else end + 1
            else:
                place += _HEAD + -(-size // 8) * 8
        if place > end:
            raise InvalidInput(f"the global heap at byte {found.start()} is damaged")


def _attribute(holder: Any, name: str) -> Any:
    if name not in holder.attrs:
        return None
    identity = holder.attrs.get_id(name)
    if identity.shape is None or math.prod(identity.shape) != 1:
        return None
    value = holder.attrs[name]
    if hasattr(value, "shape") and value.shape:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return str(value)
    return value.item() if hasattr(value, "item") else None
