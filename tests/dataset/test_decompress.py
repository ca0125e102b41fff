"""Compressed input: streamed, several members, damaged at every byte; and recognised by its content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

import ondisk
from ondisk.dataset import decompress
from ondisk.dataset.decompress import Decompressed
from ondisk.errors import InvalidInput, LimitExceeded, StateError

LINES = b"".join(b"20261120%02d00,5,227,%d,,,000000000\n" % (number % 24, number) for number in range(500))
TOOLS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstd.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
JSON = b'{"when":"2026-11-20T06:00:00Z","station":5}\n'


@pytest.fixture(params=TOOLS)
def compression(request) -> str:
    return request.param


def pack(compression: str, content: bytes) -> bytes:
    return TOOLS[compression](content)


def unpacked(compression: str, packed: bytes, size: int = 1000) -> tuple[bytes, Any]:
    plain = Decompressed(io.BytesIO(packed), compression)
    content = b"".join(iter(lambda: plain.read(size), b""))
    assert plain.read(size) == b""
    return content, plain.damage


def unfinished(compression: str, content: bytes) -> bytes:
    """Return the beginning of a compressed file, from which all of the content can be read."""
    packer: Any = zlib.compressobj(wbits=31) if compression == "gzip" else zstd.ZstdCompressor()
    return packer.compress(content) + packer.flush(
        zlib.Z_SYNC_FLUSH if compression == "gzip" else zstd.ZstdCompressor.FLUSH_BLOCK
    )


@pytest.mark.parametrize("piece", [1, 10, 1024 * 1024])
def test_several_members_are_read_one_after_the_other(compression, piece, monkeypatch):
    monkeypatch.setattr(decompress, "_PIECE", piece)
    for content in (LINES, b"", b"x", b"\n", b"a\nb"):
        assert unpacked(compression, pack(compression, content)) == (content, None)
        assert unpacked(compression, pack(compression, content) * 3) == (content * 3, None)


@pytest.mark.check
def test_xz_that_needs_too_much_memory_is_damage():
    packed = lzma.compress(LINES, filters=[{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 512 * 1024 * 1024}])
    content, damage = unpacked("xz", packed)
    assert (content, damage.offset) == (b"", 0)
    assert "its xz is damaged: " in damage.reason


def test_zeros_after_gzip_are_padding():
    assert unpacked("gzip", gzip.compress(LINES) + bytes(1000)) == (LINES, None)
    assert unpacked("gzip", gzip.compress(LINES) + bytes(10) + gzip.compress(b"x")) == (LINES + b"x", None)


def test_something_else_after_the_end_is_damage(compression):
    for rest in (b"x", b"something else"):
        content, damage = unpacked(compression, pack(compression, LINES) + rest)
        assert (content, damage.offset) == (LINES, len(LINES))


@given(st.data())
def test_what_was_cut_off_is_damage_and_whole_lines_before_it_are_read(data):
    compression = data.draw(st.sampled_from([*TOOLS]))
    packed = pack(compression, LINES)
    content, damage = unpacked(compression, packed[: data.draw(st.integers(4, len(packed) - 1))])
    assert LINES.startswith(content)
    assert content.endswith(b"\n") or not content
    assert damage.offset == len(content)
    assert "it was cut off" in damage.reason


def test_a_wrong_checksum_is_damage():
    packed = bytearray(gzip.compress(LINES))
    packed[-5] ^= 1
    content, damage = unpacked("gzip", bytes(packed))
    assert (content, damage.offset, damage.size) == (LINES, len(LINES), 0)
    assert damage.reason.startswith("its gzip is damaged: ")


@pytest.mark.parametrize("compression", ["xz", "bzip2"])
def test_most_of_what_precedes_damage_is_read(compression):
    lines = b"".join(b"%d\n" % (number * 7919 % 1_000_003) for number in range(400_000))
    packed = bytearray(pack(compression, lines))
    packed[-200] ^= 1
    content, damage = unpacked(compression, bytes(packed))
    assert damage.offset == len(content) > len(lines) - 1_000_000
    assert lines.startswith(content)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_damage_inside_of_a_line_that_is_too_long_to_hold_is_an_error(compression, monkeypatch):
    monkeypatch.setattr(decompress, "_LONGEST", 1000)
    monkeypatch.setattr(decompress, "_PIECE", 100)
    content = bytes(range(11, 256)) * 100
    assert unpacked(compression, pack(compression, b"a\n" + content)) == (b"a\n" + content, None)
    with pytest.raises(InvalidInput, match="inside of a line of more than 1000 bytes"):
        unpacked(compression, unfinished(compression, b"a\n" + content))


@pytest.mark.check
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_memory_does_not_grow_with_what_it_decompresses_to(compression):
    packer: Any = zlib.compressobj(wbits=31) if compression == "gzip" else zstd.ZstdCompressor()
    line = b"x" * 1023 + b"\n"
    bomb = b"".join([*(packer.compress(line * 1024) for _ in range(200)), packer.flush()])
    plain = Decompressed(io.BytesIO(bomb), compression)
    tracemalloc.start()
    try:
        size = sum(map(len, iter(lambda: plain.read(65536), b"")))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (size, plain.damage) == (200 * 1024 * 1024, None)
    assert peak < 20 * 1024 * 1024


@pytest.mark.parametrize("name", ["obs.vm2.{}", "obs.{}", "obs.vm2", "obs", "OBS.VM2.{}"])
def test_lines_are_recognised_by_their_content_or_the_name_before_the_extension(create, tmp_path, compression, name):
    extension = {"gzip": "gz", "zstd": "zst", "bzip2": "bz2", "xz": "xz"}[compression]
    path = tmp_path / name.format(extension)
    path.write_bytes(pack(compression, LINES))
    dataset = create(format="seg")
    assert dataset.append_file(path).imported == 500
    assert [segment.name for segment in (dataset.path / "2026").iterdir()] == ["11-20.vm2"]


def test_a_long_first_line_is_recognised_too(create, compression):
    import random

    note = random.Random(1).randbytes(50_000).hex()
    line = b'{"reftime":"2026-11-20T06:00:00Z","note":"%b"}\n' % note.encode()
    dataset = create(format="vm2")
    assert dataset.append_file(io.BytesIO(pack(compression, line))).imported == 1


@pytest.mark.parametrize("format", ["vm2", "jsonl", "csv"])
def test_each_format_of_text_may_be_compressed(create, compression, format):
    content = {"vm2": LINES, "jsonl": JSON, "csv": b"when,station\n2026-11-20T06:00:00Z,5\n"}[format]
    dataset = create(format="jsonl", fields={"station": "integer"})
    options = {} if format == "vm2" else {"time": "when"}
    assert dataset.append_file(io.BytesIO(pack(compression, content)), format, **options).imported >= 1


def test_bytes_of_other_formats_stay_as_they_are(create):
    dataset = create(format="seg")
    for format in (None, "seg"):
        with pytest.raises(InvalidInput, match="it is compressed with gzip"):
            dataset.append_file(io.BytesIO(gzip.compress(b"something")), format)


def test_what_precedes_damage_is_stored_and_the_damage_is_reported(create, compression):
    dataset = create(format="vm2")
    packed = pack(compression, LINES)
    result = dataset.append_file(io.BytesIO(packed[:-20]))
    assert result.refused == 0
    assert result.imported == len([*dataset.query()])
    (damage,) = result.damage
    assert damage.offset == sum(len(each.data) + 1 for each in dataset.query())


def test_a_row_that_was_cut_off_inside_of_a_quoted_cell_is_refused(create, compression):
    dataset = create(format="jsonl")
    text = b'reftime,note\n2026-11-20T06:00Z,a\n2026-11-20T07:00Z,"one\ntwo\n'
    result = dataset.append_file(io.BytesIO(unfinished(compression, text)), "csv")
    assert (result.imported, result.refused, len(result.damage)) == (1, 1, 1)


def test_a_bomb_of_one_line_is_refused(create, compression):
    dataset = create(format="jsonl", max_datum_size=1_000_000)
    bomb = pack(compression, b'{"reftime":"' + b"x" * 20_000_000)
    with pytest.raises(LimitExceeded, match="line 1 is longer than 1000000 bytes"):
        dataset.append_file(io.BytesIO(bomb))


def test_without_the_library_zstd_is_an_error_that_says_what_to_install(create, monkeypatch):
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    dataset = create(format="vm2")
    assert dataset.append_file(io.BytesIO(gzip.compress(LINES))).imported == 500
    with pytest.raises(StateError) as caught:
        dataset.append_file(io.BytesIO(zstd.compress(LINES)))
    assert "pip install 'ondisk[formats]'" in caught.value.hint


def test_a_compressed_file_in_it_is_refused(create):
    dataset: ondisk.Dataset = create(format="vm2")
    with pytest.raises(InvalidInput, match="it is compressed with gzip"):
        dataset.append_file(io.BytesIO(gzip.compress(gzip.compress(LINES))), "vm2")


def test_a_stream_that_decompresses_a_file_is_read_to_its_end(create, tmp_path):
    (tmp_path / "lines.gz").write_bytes(gzip.compress(b'{"reftime": "2026-11-20T06:00:00Z"}\n' * 500))
    dataset = create(format="jsonl")
    with gzip.open(tmp_path / "lines.gz", "rb") as stream:
        assert dataset.append_file(stream, "jsonl").imported == 500
