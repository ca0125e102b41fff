"""Measurements of the other variants of `seg` against a loop of the same libraries."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import cbor2
import events
import lz4.frame
from events import EPOCH, FOOTER, HEADER, LENGTH, MICROSECOND, OVERHEAD
from measure import Bench, best
from seg_floor import SegFloor

import ondisk
from ondisk.config import DatasetConfig
from ondisk.formats import find
from ondisk.formats.diskqueue import payload, protobuf

BATCH = 100_000
READS = 2_000
CONFIGS: dict[str, dict[str, Any]] = {
    "version 0": {"version": 0},
    "version 1": {"version": 1},
    "plain": {"compression": "none"},
    "lz4": {},
    "protobuf": {"payload": "protobuf", "compression": "none"},
    "protobuf lz4": {"payload": "protobuf"},
}

Loads = Callable[[bytes], Any]
Dumps = Callable[[int, Any, Any], bytes]


class VariantsBench(Bench):
    """Append, scan and random reads of each variant.

    Args:
        count: events to append and to scan.
    """

    def run(self) -> None:
        data = list(events.data(self.count))
        gc.freeze()  # the garbage collector need not visit the input data
        for name, config in CONFIGS.items():
            dataset = self.append(name, config, data)
            self.scan(name, config, dataset)
            self.random_reads(name, dataset)
            dataset.close()
            shutil.rmtree(dataset.path)

    def append(self, name: str, config: dict[str, Any], data: list[ondisk.Datum]) -> ondisk.Dataset:
        """Time the append to new datasets of one segment for all, and return the last one."""
        datasets: list[ondisk.Dataset] = []
        dumps, _ = codec(config)

        def floor_append() -> None:
            floor = Floor(self.new_path("variant-floor"), dumps, config)
            floor.append(data, BATCH)
            floor.close()

        def append() -> None:
            path = self.new_path("variant")
            datasets.append(ondisk.create(path, {**events.CONFIG, "step": "yearly", **config}))
            assert datasets[-1].append(data, batch_size=BATCH).imported == len(data)

        times = best(self.rounds, floor_append, append)
        self.report.ratio(f"seg {name}: append", *times, 1.3, len(data))
        for each in datasets[:-1]:
            each.close()
            shutil.rmtree(each.path)
        return datasets[-1]

    def scan(self, name: str, config: dict[str, Any], dataset: ondisk.Dataset) -> None:
        (path,) = dataset.path.glob("20/*.seg")
        format: Any = find("seg")(DatasetConfig.from_mapping({"step": "yearly", **config}))
        _, loads = codec(config)

        def floor() -> None:
            assert sum(1 for _ in scan(path, config, loads)) == self.count

        def ours() -> None:
            with path.open("rb") as stream:
                frames = format.frames(stream)
                assert sum(len(payload.decode(found.payloads).timestamps) for found in frames) == self.count

        self.report.ratio(f"seg {name}: scan", *best(self.rounds, floor, ours), 1.3, self.count)

    def random_reads(self, name: str, dataset: ondisk.Dataset) -> None:
        step = max(1, self.count // READS)
        data = islice(dataset.query(with_data=False), 0, step * READS, step)
        locations = [datum.location for datum in data]

        def reads() -> None:
            for location in locations:
                assert location is not None
                dataset.read(location)

        reads()
        (time,) = best(max(9, self.rounds), reads)  # of a tenth of a second
        self.report.line(f"seg {name}: one datum at random", time / len(locations) * 1e6, 60, "µs")


class Floor(SegFloor):
    """A dataset of one variant that is only fast: all data in one segment."""

    def __init__(self, path: Path, dumps: Dumps, config: dict[str, Any]) -> None:
        super().__init__(path)
        self._dumps = dumps
        self._config = config

    def _append_batch(self, data: list[ondisk.Datum]) -> None:
        rows, frames, values = [], [], self.values
        dumps, pack, pack_footer = self._dumps, LENGTH.pack, FOOTER.pack
        offset = 12
        self.db.execute("BEGIN IMMEDIATE")
        for number, datum in enumerate(data, self.next):
            reftime = (datum.reftime - EPOCH) // MICROSECOND
            metadata = datum.metadata
            product = metadata["product"]
            if product not in values:
                self._intern(product)
            content = dumps(reftime * 1000, metadata, datum.data)
            size = len(content) + OVERHEAD
            begin = pack(size) + content
            frames.append(begin + pack_footer(crc32(begin), size))
            rows.append((number, reftime, 1, offset, size, metadata["station"], values[product]))
            offset += size
        self.next += len(data)
        self.db.executemany("INSERT INTO datum VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        content = b"".join(frames)
        if is_compressed(self._config):
            content = lz4.frame.compress(content)
        descriptor = os.open(self.path / "1.seg", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, content)
        os.fsync(descriptor)
        os.close(descriptor)
        self.db.execute("COMMIT")


def codec(config: dict[str, Any]) -> tuple[Dumps, Loads]:
    """Return how a loop by hand writes and reads the payloads of a variant."""
    if config.get("version") == 0:
        encode = json.JSONEncoder(separators=(",", ":")).encode
        return lambda time, meta, data: encode(
            {"timestamp": time, "flags": 0, "meta": meta, "fields": data}
        ).encode(), json.loads
    if config.get("payload") == "protobuf":
        return write_message, read_message
    dumps = cbor2.dumps
    return lambda time, meta, data: dumps({"timestamp": time, "flags": 0, "meta": meta, "fields": data}), cbor2.loads


def is_compressed(config: dict[str, Any]) -> bool:
    return config.get("compression") != "none" and config.get("version", 2) == 2


def write_message(time: int, meta: Any, data: Any) -> bytes:
    message = protobuf._messages().later()
    message.timestamp.seconds, message.timestamp.nanos = divmod(time, 1_000_000_000)
    for struct, content in ((message.metadata.data, meta), (message.fields.data, data)):
        for key, value in content.items():
            name = {int: "int64", float: "float64", str: "string"}[type(value)]
            setattr(struct[key], name, value)
    content: bytes = message.SerializeToString()
    return content


def read_message(content: bytes) -> Any:
    message = protobuf._messages().later.FromString(content)
    return message.timestamp.seconds, *(
        {key: getattr(value, value.WhichOneof("kind")) for key, value in struct.data.items()}
        for struct in (message.metadata, message.fields)
    )


def scan(path: Path, config: dict[str, Any], loads: Loads) -> Iterator[Any]:
    """Yield the events of a segment that ondisk wrote."""
    content = path.read_bytes()
    at = {0: 4, 1: 8}.get(config.get("version", 2), HEADER.size)
    if is_compressed(config):
        content, at = lz4.frame.decompress(content[at:] + bytes(4)), 0
    unpack, unpack_footer = LENGTH.unpack_from, FOOTER.unpack_from
    while at < len(content):
        (size,) = unpack(content, at)
        checked = content[at : at + size - FOOTER.size]
        if unpack_footer(content, at + size - FOOTER.size) != (crc32(checked), size):
            raise ValueError(f"frame at {at}")
        yield loads(checked[LENGTH.size :])
        at += size
