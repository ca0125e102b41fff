"""Decompress input files, gzip, zstd, bzip2 or xz, as a stream: memory does not grow with what they decompress to.

A compressed file may have several members or frames one after the other, as `cat a.gz b.gz` makes them. If it is
damaged or cut off, what was decompressed before is read, up to the last whole line: a part of a line could look like
one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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

_PIECE = 1024 * 1024
_BEGIN = 4096
_LONGEST = 16 * 1024 * 1024  # bytes of a line that are held back until its end
_GZIP = b"\x1f\x8b"
_PADDED = ("gzip", "xz")
_XZ_MEMORY = 256 * 1024 * 1024  # bytes; four times as many as xz -9 needs


class _Members:
    """The members or frames of a compressed stream, one after the other. `error`: what a damaged one raises."""

    def __init__(self, stream: Readable, compression: str) -> None:
        self._stream = stream
        self._compression = compression
        self._new, self.error = _kind_of(compression)
        self._member = self._new()
        self._is_begun = False  # something of the member was read
        self._given = b""  # compressed bytes that no member has taken yet

    def unfinished(self) -> str:
        """Return what is wrong with the end of the stream; nothing if it ends with a member."""
        if self._is_begun:
            return f"the file ends before its {self._compression} does: it was cut off"
        if self._given:
            return f"what follows its {self._compression} is something else"
        return ""

    def read(self) -> bytes | None:
        """Return the next decompressed bytes, perhaps none; None at the end."""
        if self._member.eof:
            self._given = self._member.unused_data
            self._member, self._is_begun = self._new(), False
        if not self._is_begun and not self._begin():
            return None
        data = b""
        if self._member.needs_input:
            data, self._given = self._given or self._stream.read(_PIECE), b""
            if not data:
                return None
        return self._member.decompress(data, _PIECE)

    def _begin(self) -> bool:
        """Return whether another member follows. Zeros after one of gzip or xz are padding."""
        while True:
            if self._compression in _PADDED:
                self._given = self._given.lstrip(b"\0")
            if len(self._given) >= len(_GZIP):
                break
            more = self._stream.read(_PIECE)
            if not more:
                return False
            self._given += more
        self._is_begun = self._compression != "gzip" or self._given.startswith(_GZIP)
        return self._is_begun


class Decompressed:
    """The decompressed bytes of a stream; raises StateError if the library for zstd is not installed."""

    def __init__(self, stream: Readable, compression: str) -> None:
        self.damage: Damage | None = None  # what was wrong with it; None until that is known
        self._members = _Members(stream, compression)
        self._compression = compression
        self._ready = b""
        self._held = b""  # a line whose end was not read yet
        self._offset = 0  # decompressed bytes that are no longer held
        self._is_in_line = False  # the last of these is inside of a line
        self._is_ended = False

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none only at the end; raise InvalidInput at damage in a line that is too long."""
        while not self._ready and not self._is_ended:
            self._fill()
        content, self._ready = self._ready[:size], self._ready[size:]
        return content

    def _fill(self) -> None:
        try:
            piece, problem = self._members.read(), ""
        except self._members.error as error:
            piece, problem = None, f"its {self._compression} is damaged: {error}"
        if piece is None:
            self._end(problem or self._members.unfinished())
            return
        held = self._held + piece
        end = held.rfind(b"\n") + 1
        if not end and len(held) > _LONGEST:
            end = len(held)
        self._release(held[:end], held[end:])

    def _release(self, ready: bytes, held: bytes) -> None:
        if ready:
            self._is_in_line = not ready.endswith(b"\n")
        self._ready, self._held = ready, held
        self._offset += len(ready)

    def _end(self, problem: str) -> None:
        self._is_ended = True
        if not problem:
            self._release(self._held, b"")
            return
        if self._is_in_line:
            hint = "Get the file again. What precedes the line may have been stored."
            raise InvalidInput(f"{problem}, inside of a line of more than {_LONGEST} bytes", hint=hint)
        self.damage = Damage(self._offset, len(self._held), problem)
        self._held = b""


class _Gzip:
    def __init__(self) -> None:
        from zlib_ng import zlib_ng  # here, as most files are not compressed; it takes half the time of zlib

        self._object = zlib_ng.decompressobj(wbits=16 + zlib_ng.MAX_WBITS)
        self._is_full = False

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
        content = self._object.decompress(self._object.unconsumed_tail + data, max_length)
        self._is_full = len(content) == max_length  # more may be ready, although all input was taken
        return content


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
