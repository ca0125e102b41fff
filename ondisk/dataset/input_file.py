"""Input files: the only code that opens files outside datasets. It only reads them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, NotFound, StorageError, shown
from ondisk.formats import Batch, Format, recognise
from ondisk.formats.base import Chained


@contextlib.contextmanager
def parsed(
    access: Access, source: str | os.PathLike[str] | BinaryIO, format: str | None, batch_size: int
) -> Iterator[tuple[Format, Iterator[Batch]]]:
    """Open a file to append, for the length of the block; yield its format, and its data in batches.

    Args:
        format: the file's format; None to recognise it by extension, then content.

    Raises:
        ConfigError: the format does not exist.
        Also the errors of `open_source`.
    """
    with open_source(source) as stream:
        if format is not None:
            chosen = access.format(format)
            yield chosen, chosen.parse(stream, batch_size)
            return
        name = getattr(stream, "name", None)
        peeked = Peeked(stream)
        chosen = access.format(recognise(name if isinstance(name, str) else None, peeked.head, access.config.format))
        yield chosen, chosen.parse(peeked, batch_size)


@contextlib.contextmanager
def open_source(source: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open a file to append, for the length of the block; do not close it if it was a stream.

    Raises:
        InvalidInput: it is neither a path nor a stream of bytes.
        NotFound: the file does not exist.
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
            raise NotFound(f"{os.fspath(source)}: no such file", hint="Check the path.") from None
        except OSError as error:
            raise StorageError(f"{os.fspath(source)}: {error.strerror}") from error
        yield stream


def _check_stream(stream: object) -> None:
    if isinstance(stream, io.TextIOBase) or not hasattr(stream, "read"):
        problem = f"append_file takes a path or a stream of bytes, not {shown(stream)}"
        raise InvalidInput(problem, hint='Open it with "rb".')


class Peeked(Chained):
    """A stream with its first bytes read ahead; reading it returns them again.

    Attributes:
        head: the first bytes, up to 4096; fewer if one read of the stream returned fewer, none at its end.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.head = stream.read(4096)
        super().__init__(self.head, stream)
