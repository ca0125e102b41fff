"""A staged file with what a scan found in a segment: a CBOR array for each `ScanResult`, after its length.

Nothing is synced: who reads the file verifies its checksum first, see `ondisk.staging.rows.StagedFile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import cbor2

from ondisk.filesystem import Directory
from ondisk.segment import Block, Damage, End, ScanResult
from ondisk.staging.jobs import create_staged

_LENGTH = 8  # bytes


def write_results(directory: Directory, name: str, results: Iterable[ScanResult]) -> None:
    position = 0
    with create_staged(directory, name) as file:
        for each in results:
            shared = {id(metadata): metadata for metadata in each.metadata}  # equal ones are mostly one object
            places = {key: place for place, key in enumerate(shared)}
            content = cbor2.dumps([
                each.offsets,
                each.sizes,
                each.reftimes,
                [dict(metadata) for metadata in shared.values()],
                [places[id(metadata)] for metadata in each.metadata],
                each.blocks,
                each.damage,
                each.end,
                each.missing,
            ])  # fmt: skip
            file.write(position, len(content).to_bytes(_LENGTH) + content)
            position += _LENGTH + len(content)


def read_results(directory: Directory, name: str) -> Iterator[ScanResult]:
    file, position = directory.open_to_read(name), 0
    while length := int.from_bytes(file.read(position, _LENGTH)):
        content = cbor2.loads(file.read(position + _LENGTH, length))
        position += _LENGTH + length
        offsets, sizes, reftimes, shared, places, blocks, damage, end, missing = content
        metadata = [shared[place] for place in places]
        found = [*map(Block._make, blocks)], [*map(Damage._make, damage)], End(*end)
        yield ScanResult(offsets, sizes, reftimes, metadata, *found, missing=missing)
