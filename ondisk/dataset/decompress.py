"""Decompress input files, gzip, zstd, bzip2 or xz, as a stream: memory does not grow with what they decompress to.

A compressed file may have several members or frames one after the other, as `cat a.gz b.gz` makes them. If it is
damaged or cut off, what was decompressed before is read, up to the last whole line: a part of a line could look like
one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from ondisk.errors import InvalidInput, StateError
from ondisk.formats.base import Readable
from ondisk.segment import Damage

if TYPE_CHECKING:
    from bz2 import BZ2Decompressor
    from lzma import LZMADecompressor

_Decompressor: TypeAlias = "_Gzip | BZ2Decompressor | LZMADecompressor"
"""Decompresses one member or frame; that of zstd has this form, too."""

# What decompresses raises at damage, and what it had decompressed in that call is lost: so it gets and returns little.
_GIVEN = 16 * 1024
_PIECE = 64 * 1024
_BEGIN = 4096
_LONGEST = 16 * 1024 * 1024  # bytes of a line that are held back until its end
_GZIP = b"\x1f\x8b"
_PADDED = ("gzip", "xz")
_XZ_MEMORY = 256 * 1024 * 1024  # bytes; four times as many as xz -9 needs


class _Damaged(Exception):
    pass


class Decompressed:
    """The decompressed bytes of a stream; raises StateError if the library for zstd is not installed."""

    def __init__(self, stream: Readable, compression: str) -> None:
        self.damage: Damage | None = None  # what was wrong with it; None until that is known
        self._lines = self._whole_lines(_members(stream, compression, *_kind_of(compression)))
        self._ready = b""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none only at the end; raise InvalidInput at damage in a line that is too long."""
        self._ready = self._ready or next(self._lines, b"")
        content, self._ready = self._ready[:size], self._ready[size:]
        return content

    def _whole_lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        held = list[bytes]()  # a line whose end was not read yet
        size = 0  # of that
        offset = 0  # decompressed bytes that are no longer held
        is_in_line = False  # the last of these is inside of a line
        try:
            for piece in pieces:
                end = piece.rfind(b"\n") + 1
                if end:
                    is_in_line = False
                elif size + len(piece) > _LONGEST:
                    end, is_in_line = len(piece), True
                held.append(piece[:end] if end else piece)
                size += len(held[-1])
                if end:
                    yield b"".join(held)
                    offset, held, size = offset + size, [piece[end:]], len(piece) - end
        except _Damaged as damaged:
            if is_in_line:
                hint = "Get the file again. What precedes the line may have been stored."
                raise InvalidInput(f"{damaged}, inside of a line of more than {_LONGEST} bytes", hint=hint) from None
            self.damage = Damage(offset, size, str(damaged))
        else:
            if size:
                yield b"".join(held)


def _members(
    stream: Readable, compression: str, new: Callable[[], _Decompressor], error: type[Exception]
) -> Iterator[bytes]:
    """Yield the decompressed bytes of the members or frames of a stream; raise _Damaged. `error`: of a damaged one."""
    given = b""  # compressed bytes that no member has taken yet
    while True:
        given = given.lstrip(b"\0") if compression in _PADDED else given  # between members, zeros are padding
        if len(given) < len(_GZIP) and (more := stream.read(_GIVEN)):
            given += more
            continue
        if not given:
            return
        if len(given) < len(_GZIP) or (compression == "gzip" and not given.startswith(_GZIP)):
            raise _Damaged(f"what follows its {compression} is something else")
        member = new()
        while not member.eof:
            data = b""
            if member.needs_input:
                data, given = given or stream.read(_GIVEN), b""
                if not data:
                    raise _Damaged(f"the file ends before its {compression} does: it was cut off")
            try:
                piece = member.decompress(data, _PIECE)
            except error as damaged:
                raise _Damaged(f"its {compression} is damaged: {damaged}") from None
            yield piece
        given = member.unused_data


class _Gzip:
    def __init__(self) -> None:
        from zlib_ng import zlib_ng  # here, as most files are not compressed; it takes half the time of zlib

        self._object = zlib_ng.decompressobj(wbits=16 + zlib_ng.MAX_WBITS)
        self._kind: Any = zlib_ng.error  # its stub says that this is no class
        self._is_full = False
        self._error: Exception | None = None

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def needs_input(self) -> bool:
        return not self._is_full and not self._object.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return what can be decompressed; raise the error of the library at damage, after all that precedes it."""
        if self._error is not None:
            raise self._error
        before = self._object.copy()  # type: ignore[attr-defined]  # its stub lacks it
        data = self._object.unconsumed_tail + data
        try:
            content = self._object.decompress(data, max_length)
        except self._kind as error:
            self._error, self._is_full = error, True
            return b"".join(self._before_damage(before, data))
        self._is_full = len(content) == max_length  # more may be ready, although all input was taken
        return content

    def _before_damage(self, before: Any, data: bytes) -> Iterator[bytes]:
        """Yield what the bytes before the damage become: a wrong checksum at the end is the last of them."""
        with contextlib.suppress(self._kind):
            for at in range(len(data)):
                yield before.decompress(data[at : at + 1])


def begin_of(head: bytes, compression: str) -> bytes:
    """Return the first decompressed bytes of a file, some thousands."""
    new, error = _kind_of(compression)
    try:
        return new().decompress(head, _BEGIN)
    except error:
        return b""


def _kind_of(compression: str) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """Return what begins to decompress a member or frame, and the error of a damaged one."""
    match compression:
        case "gzip":
            from zlib_ng import zlib_ng

            error: Any = zlib_ng.error  # its stub says that this is no class
            return _Gzip, error
        case "bzip2":
            import bz2

            return bz2.BZ2Decompressor, OSError
        case "xz":
            import lzma

            return partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY), lzma.LZMAError
    for name in ("compression.zstd", "backports.zstd"):  # Python has it from 3.14 on
        with contextlib.suppress(ImportError):
            module = import_module(name)
            return module.ZstdDecompressor, module.ZstdError
    raise StateError(
        "zstd is not installed", hint="Install it: pip install 'ondisk[formats]'. Or decompress the file first."
    )


EXTENSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
"""The extensions of compressed files, which follow the extension of what is in them."""
COMPRESSIONS = frozenset(EXTENSIONS.values())
"""What can be decompressed, as `formats.base.compression_of` calls it."""
