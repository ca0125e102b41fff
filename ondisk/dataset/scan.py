"""What there is in a file from outside: what an append would store of it, and where it is in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, from_microseconds
from ondisk.errors import InvalidInput, NotFound
from ondisk.filesystem import Directory
from ondisk.formats import Format, find, of_segments, recognised
from ondisk.formats.base import FileStream, compression_of
from ondisk.formats.messages import Messages
from ondisk.formats.self_describing import Described
from ondisk.segment import Damage, DecryptedFile, SegmentFile

_HEAD = 64 * 1024
_Row: TypeAlias = tuple[int, int, int, Mapping[str, Any]]


def scan(path: str, format: str | None, damage: list[Damage]) -> Iterator[Datum]:
    """Yield the data of a file without their content; `location` has the path, and where they are in the file.

    Metadata are all that a datum says of itself, also the numbers that a dataset stores only if they are declared.
    Those that are only in compressed blocks are left out.
    `damage` gets the parts of the file that are no data.

    Raises ConfigError of an unknown format, InvalidInput of none that is known or a compressed file, NotFound,
    StorageError.
    """
    real = Path(path).resolve()
    try:
        with Directory.open(real.parent) as folder:
            file = folder.open_to_read(real.name)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file", hint="Check the path.") from None
    head = file.read(0, _HEAD)
    if compression_of(head) is not None:
        raise InvalidInput(f"{path} is compressed", hint="Decompress it first.")
    name = format or recognised(real.name, head, "seg")
    if name is None:
        raise InvalidInput(f"{path}: neither its extension nor its content is of a known format", hint="Pass --format.")
    chosen = _format(name)
    read = _whole if chosen.is_dir else _data
    for offset, size, reftime, metadata in read(chosen, file, damage):
        yield Datum.stored(from_microseconds(reftime), metadata, None, path, (None, None, offset, size))


def _data(format: Format, file: SegmentFile, damage: list[Damage]) -> Iterator[_Row]:
    sealer = format.sealer(file, None)
    source = file if sealer is None else DecryptedFile(file, sealer)
    for found in format.scan(file):
        damage += found.damage
        rows = zip(found.offsets, found.sizes, found.reftimes, found.metadata, strict=True)
        if not format.undeclared or found.blocks or found.foreign:  # what is in blocks is not at its offset
            yield from rows
            continue
        loaded = format.load([*map(source.read, found.offsets, found.sizes)])
        for row, undeclared in zip(rows, loaded.undeclared or [{}] * len(found.offsets), strict=True):
            yield (*row[:3], {**undeclared, **row[3]})
    if found.missing:
        end, size = found.end.size, file.size()
        damage.append(Damage(end, size - end, format.shortage))


def _whole(format: Format, file: SegmentFile, damage: list[Damage]) -> Iterator[_Row]:
    for batch in format.parse(FileStream(file, 0), 1):
        damage += [Damage(0, file.size(), reason) for _, reason in batch.refused]
        for reftime, payload, beside in zip(batch.reftimes, batch.payloads, batch.beside, strict=True):
            yield 0, len(payload), reftime, format.describe(beside)[1]


def headers(segment: str, content: Any) -> Mapping[str, Any] | None:
    """Return what GRIB or BUFR says of itself; None of other formats; raise FrameCorrupt if it is damaged."""
    name = of_segments(segment.rpartition(".")[2])
    is_message = name is not None and issubclass(find(name), Messages)
    return _format(str(name)).describe(content)[1] if is_message else None


@cache
def _format(name: str) -> Format:
    """Return a format that reads everything that it can read."""
    kind = find(name)
    fields: dict[str, str] = {}
    if issubclass(kind, Described):
        fields = dict.fromkeys(kind.items, "item") | {each: str(of) for each, of in kind.numbers.items()}
    return kind(DatasetConfig.from_mapping({"format": name, "step": "yearly", "fields": fields}))
