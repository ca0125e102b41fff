"""The fields and the checksum that token files are made of.

Integers are big-endian and signed. A text, or bytes of any length, follow their length in four bytes. A file ends with
its checksum in eight bytes: the CRC-32 of all bytes before it.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from zlib_ng.zlib_ng import crc32

from ondisk.errors import IntegrityError, InvalidInput

LARGEST = 4 * 1024 * 1024
"""Bytes of a token file, at most: some ten thousand entries."""
CHECKSUM_SIZE = 8


class Reader:
    """Reads fields of bytes, one after the other, and never past their end.

    A length is compared with the bytes that are left before anything is allocated for it.

    Attributes:
        position: of the next byte.

    Raises, in every method:
        IntegrityError: the bytes end before the field does, or its length is negative.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        self._name = name
        self.position = 0

    def __bool__(self) -> bool:
        """Return whether bytes are left."""
        return self.position < len(self._content)

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def counted(self) -> bytes:
        """Return bytes that follow their length."""
        return self.take(self.integer(4))

    def text(self) -> str:
        """Return a text that follows its length; bytes that are not UTF-8 are escaped."""
        return self.counted().decode(errors="surrogateescape")

    def flag(self) -> bool:
        value = self.integer(1)
        if value not in (0, 1):
            self.fail(f"a flag is {value}")
        return value == 1

    def take(self, size: int) -> bytes:
        left = len(self._content) - self.position
        if not 0 <= size <= left:
            self.fail(f"a field of {size} bytes, and {left} are left")
        self.position += size
        return self._content[self.position - size : self.position]

    def fail(self, problem: str) -> NoReturn:
        """Raise the error for bytes that make no sense."""
        raise damaged(self._name, f"near byte {self.position}: {problem}")


def damaged(name: str, problem: str) -> IntegrityError:
    """Return the error for a token file that is not as it was written."""
    hint = "Restore it from a backup, or remove it: the program that wrote it will write it again."
    return IntegrityError(f"{name} is damaged: {problem}", hint=hint, path=name)


def integer(value: int, size: int) -> bytes:
    """Return an integer as bytes.

    Raises:
        InvalidInput: it does not fit.
    """
    try:
        return value.to_bytes(size, signed=True)
    except OverflowError:
        raise InvalidInput(f"{value} does not fit into {size} bytes") from None


def counted(value: str | bytes) -> bytes:
    """Return a text or bytes after their length.

    Raises:
        InvalidInput: the text cannot be written as UTF-8.
    """
    try:
        content = value.encode(errors="surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise InvalidInput(f"the text {value!r:.80} is not valid Unicode") from None
    return integer(len(content), 4) + content


def flag(value: bool) -> bytes:
    return bytes([value])


def sealed(content: bytes) -> bytes:
    """Return the content of a token file with its checksum."""
    return content + struct.pack(">q", crc32(content))


def opened(content: bytes, name: str) -> Reader:
    """Return a reader of a token file's content, whose checksum is right.

    Raises:
        IntegrityError: it is not.
    """
    if len(content) < CHECKSUM_SIZE + 2:
        raise damaged(name, f"it has {len(content)} bytes")
    body, stored = content[:-CHECKSUM_SIZE], int.from_bytes(content[-CHECKSUM_SIZE:])
    if (computed := crc32(body)) != stored:
        raise damaged(name, f"its checksum is {stored:#x}, that of its bytes is {computed:#x}")
    return Reader(body, name)
