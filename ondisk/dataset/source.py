"""Input files: the one place that opens files outside of datasets, and only to read them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ondisk.errors import InvalidInput, NotFound, StorageError


@contextlib.contextmanager
def open_source(source: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open a file to append, for the length of the block; a stream is left open.

    Raises:
        InvalidInput: it is neither a path nor a stream of bytes.
        NotFound: there is no such file.
        StorageError: it cannot be opened.
    """
    if not isinstance(source, str | os.PathLike):
        _check_stream(source)
        yield source
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(source).open("rb"))
        except FileNotFoundError:
            raise NotFound(f"{os.fspath(source)}: no such file", hint="Look at the path.") from None
        except OSError as error:
            raise StorageError(f"{os.fspath(source)}: {error.strerror}") from error
        yield stream


def _check_stream(stream: object) -> None:
    if isinstance(stream, io.TextIOBase) or not hasattr(stream, "read"):
        raise InvalidInput(f"append_file takes a path or a stream of bytes, not {stream!r}", hint='Open it with "rb".')


@contextlib.contextmanager
def peekable(stream: BinaryIO) -> Iterator[tuple[BinaryIO, bytes]]:
    """Give a stream and its first bytes, without taking them from it."""
    if hasattr(stream, "peek"):
        yield stream, stream.peek(4096)
        return
    wrapper = io.BufferedReader(stream)  # type: ignore[type-var]
    try:
        yield wrapper, wrapper.peek(4096)
    finally:
        wrapper.detach()  # else it would close the stream, which is not ours
