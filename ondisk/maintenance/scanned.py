"""What a scan found in a segment's file, in a file of its own: for who tells the index, and need not scan again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from struct import Struct
from typing import Any
from zlib import crc32

from ondisk.dataset.access import Access
from ondisk.errors import StateError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.json_shapes import from_json, to_json
from ondisk.segment import Block, Damage, End, ScanResult
from ondisk.staging.jobs import Changed, create_staged

_HEAD = Struct("<qI")


@dataclass(frozen=True, slots=True)
class Scanned:
    """All that a scan of a segment gave.

        FILE    for each `ScanResult`: its length, 8 bytes, and the CRC-32 of this JSON and all before it, 4 bytes,
                little-endian; then JSON, in which data share their metadata

    Attributes:
        file: its name in the dataset.
        source: the identity of the segment's file, as it was when it was scanned.
        checksum: the last one in the file.
    """

    file: str
    source: tuple[int, int, int]
    checksum: int

    @classmethod
    def write(cls, access: Access, name: str, file: str) -> Scanned:
        """Scan a segment's file.

        Raises:
            StateError: it is none of one file, or cannot stay as it is; or the directory for the file is gone.
            StorageError: it is not there, or cannot be read.

        Locks: none; who tells the index sees whether the file has changed meanwhile.
        """
        with access.current().index.snapshot() as snapshot:
            known = snapshot.segment_named(name)
        format = access.format_of(name) if known is None else access.format(known.format)
        source = None if format.is_dir else _opened(access.directory, name)
        if source is None:
            raise StateError(f"{name} is no file")
        identity = source.identity()
        with create_staged(access.directory, file) as staged:
            at = checksum = 0
            for found in format.scan(source):
                if found.foreign:
                    raise StateError(f"{name} must be written anew")
                text = json.dumps(_to_json(found), separators=(",", ":")).encode()
                checksum = crc32(text, checksum)
                staged.write(at, _HEAD.pack(len(text), checksum) + text)
                at += _HEAD.size + len(text)
        return cls(file, identity, checksum)

    def found(self, directory: Directory, source: ReadableFile) -> Iterator[ScanResult]:
        """Give what the scan gave.

        Args:
            source: the segment's file.

        Raises:
            Changed: it is another one, or was written to; or the file with what was found is not there, or not whole.
        """
        staged = _opened(directory, self.file)
        if staged is None or source.identity() != self.source:
            raise Changed
        at = checksum = 0
        while len(head := staged.read(at, _HEAD.size)) == _HEAD.size:
            length, expected = _HEAD.unpack(head)
            text = staged.read(at + _HEAD.size, length) if 0 < length <= staged.size() else b""
            checksum = crc32(text, checksum)
            if not text or checksum != expected:
                raise Changed
            yield _from_json(json.loads(text))
            at += _HEAD.size + length
        if checksum != self.checksum:
            raise Changed

    def discard(self, directory: Directory) -> None:
        """Remove the file."""
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(self.file)


def _opened(directory: Directory, name: str) -> ReadableFile | None:
    try:
        return directory.open_to_read(name)
    except FileNotFoundError:
        return None


def _to_json(found: ScanResult) -> list[Any]:
    distinct = {id(each): each for each in found.metadata}
    numbers = {each: number for number, each in enumerate(distinct)}
    return [
        found.offsets,
        found.sizes,
        found.reftimes,
        [numbers[id(each)] for each in found.metadata],
        [{name: to_json(value, 1) for name, value in each.items()} for each in distinct.values()],
        found.blocks,
        [astuple(each) for each in found.damage],
        astuple(found.end),
    ]


def _from_json(read: list[Any]) -> ScanResult:
    offsets, sizes, reftimes, numbers, distinct, blocks, damage, end = read
    metadata = [{name: from_json(value) for name, value in each.items()} for each in distinct]
    return ScanResult(
        offsets,
        sizes,
        reftimes,
        [metadata[number] for number in numbers],
        [Block(*each) for each in blocks],
        [Damage(*each) for each in damage],
        End(*end),
    )
