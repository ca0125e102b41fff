"""A format as GRIB and BUFR are: records one after the other, with nothing before, between or after them."""

from __future__ import annotations

import struct
from typing import ClassVar

from ondisk.datum import microseconds
from ondisk.errors import FrameCorrupt
from ondisk.formats.base import Batch, Format
from ondisk.segment import End, ScanResult

HEAD = struct.Struct("<4sqI")  # magic, reftime, bytes of the data


class Records(Format):
    """Records, each with a reftime; to be registered as `records`."""

    name: ClassVar[str] = "records"
    undeclared = False

    @classmethod
    def recognises(cls, head):
        return head.startswith(b"RECD")

    def parse(self, stream, batch_size):
        raise NotImplementedError

    def encode(self, data):
        batch = Batch()
        for datum in data:
            batch.reftimes.append(microseconds(datum.reftime))
            batch.metadata.append({})
            batch.payloads.append(HEAD.pack(b"RECD", batch.reftimes[-1], len(datum.data)) + datum.data)
        return batch

    def describe(self, payload):
        magic, reftime, size = HEAD.unpack_from(payload)
        if magic != b"RECD" or size != len(payload) - HEAD.size:
            raise FrameCorrupt("not a record")
        return reftime, {}

    def decode(self, payload):
        self.describe(payload)
        return payload[HEAD.size :]

    def scan(self, file):
        found, at = ScanResult(), 0
        while len(head := file.read(at, HEAD.size)) == HEAD.size and self.recognises(head):
            _, reftime, size = HEAD.unpack(head)
            found.offsets.append(at)
            found.sizes.append(HEAD.size + size)
            found.reftimes.append(reftime)
            found.metadata.append({})
            at += HEAD.size + size
        found.end = End(at, at)
        yield found
