"""The fields and the checksum that token files are made of.

Integers are big-endian and signed. A text, or bytes of any length, follow their length in four bytes. A file ends with
its checksum in eight bytes: the CRC-32 of all bytes before it.

One function for each structure passes through its fields, to read them and to write them.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import NoReturn, TypeVar

from zlib_ng.zlib_ng import crc32

from ondisk.errors import IntegrityError, InvalidInput

LARGEST = 4 * 1024 * 1024  # bytes of a token file, at most: some ten thousand entries
CHECKSUM_SIZE = 8
_E = TypeVar("_E", bound=IntEnum)


class Fields(ABC):
    """Passes through fields, one after the other.

    Each method gets the value of a field, and returns it: a `Writer` writes it, a `Reader` ignores it and returns what
    it reads.

    Raises, in every method:
        IntegrityError: the bytes that are read end before the field does, or its length is negative.
        InvalidInput: the value that is written does not fit.
    """

    position: int = 0  # of the next byte

    @abstractmethod
    def take(self, size: int, value: bytes = b"") -> bytes: ...

    @abstractmethod
    def fail(self, problem: str, hint: str = "") -> NoReturn:
        """Raise the error for fields that make no sense."""

    def integer(self, size: int, value: int = 0) -> int:
        try:
            return int.from_bytes(self.take(size, value.to_bytes(size, signed=True)), signed=True)
        except OverflowError:
            raise InvalidInput(f"{value} does not fit into {size} bytes") from None

    def counted(self, value: bytes = b"") -> bytes:
        return self.take(self.integer(4, len(value)), value)

    def text(self, value: str = "") -> str:
        """A text that follows its length; bytes that are not UTF-8 are escaped."""
        try:
            content = value.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise InvalidInput(f"the text {value!r:.80} is not valid Unicode") from None
        return self.counted(content).decode(errors="surrogateescape")

    def flag(self, *, value: bool = False) -> bool:
        found = self.integer(1, value)
        if found not in (0, 1):
            self.fail(f"a flag is {found}")
        return found == 1

    def kind(self, what: str, value: _E) -> _E:
        number = self.integer(2, value)
        try:
            return type(value)(number)
        except ValueError:
            self.fail(f"{what} has type {number}")


class Writer(Fields):
    """Writes fields. `content`: what was written."""

    def __init__(self) -> None:
        self.content = bytearray()

    def take(self, size: int, value: bytes = b"") -> bytes:
        if len(value) != size:
            self.fail(f"a field has {size} bytes, not {len(value)}")
        self.content += value
        self.position += size
        return value

    def fail(self, problem: str, hint: str = "") -> NoReturn:
        raise InvalidInput(problem, hint=hint)


class Reader(Fields):
    """Reads fields, and never past the end of the bytes. `name`: of the file, for messages.

    A length is compared with the bytes that are left before anything is allocated for it.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        self._name = name

    @classmethod
    def opened(cls, content: bytes, name: str) -> Reader:
        """Return a reader of a token file's content, whose checksum is right; raise IntegrityError if it is not."""
        if len(content) < CHECKSUM_SIZE + 2:
            raise damaged(name, f"it has {len(content)} bytes")
        body, stored = content[:-CHECKSUM_SIZE], int.from_bytes(content[-CHECKSUM_SIZE:])
        if (computed := crc32(body)) != stored:
            raise damaged(name, f"its checksum is {stored:#x}, that of its bytes is {computed:#x}")
        return cls(body, name)

    def __bool__(self) -> bool:
        return self.position < len(self._content)

    def take(self, size: int, value: bytes = b"") -> bytes:
        left = len(self._content) - self.position
        if not 0 <= size <= left:
            self.fail(f"a field of {size} bytes, and {left} are left")
        self.position += size
        return self._content[self.position - size : self.position]

    def fail(self, problem: str, hint: str = "") -> NoReturn:
        raise damaged(self._name, f"near byte {self.position}: {problem}")


def sealed(content: bytes) -> bytes:
    return content + struct.pack(">q", crc32(content))


def damaged(name: str, problem: str) -> IntegrityError:
    hint = "Restore it from a backup, or remove it: the program that wrote it will write it again."
    return IntegrityError(f"{name} is damaged: {problem}", hint=hint, path=name)
