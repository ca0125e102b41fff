from __future__ import annotations

from contextlib import closing

import pytest

from ondisk.filesystem import Directory, WritableFile
from ondisk.segment import End, Laid
from ondisk.segments.concat_writer import SegmentWriter

MIB = 1024 * 1024


class Plain:
    """A layout of bytes one after the other."""

    mutable = range(0)

    def begin(self):
        return Laid(b"", End())

    def lay(self, payloads, end):
        content = b"".join(payloads)
        size = end.size + len(content)
        return Laid(content, End(size, size, end.count + len(payloads)))

    def new_sealer(self, begun, name):
        return None


@pytest.mark.parametrize("size", [1000, 64 * 1024, 300_000, 2 * MIB])
def test_data_are_written_about_a_mebibyte_at_a_time_and_larger_ones_alone(size, tmp_path, monkeypatch):
    written = []
    write = WritableFile.write

    def note(file, offset, content):
        written.append(len(content))
        write(file, offset, content)

    monkeypatch.setattr(WritableFile, "write", note)
    payloads = [bytes([number % 256]) * size for number in range(8 * MIB // size)]
    with closing(Directory.open(tmp_path)) as directory, directory.create_file("data") as file:
        writer = SegmentWriter(Plain(), file, "data")
        writer.add(payloads)
        writer.add([])
    assert (tmp_path / "data").read_bytes() == b"".join(payloads)
    assert writer.end == End(size * len(payloads), size * len(payloads), len(payloads))
    assert max(written) <= max(MIB, size)
    assert len(written) <= 12
