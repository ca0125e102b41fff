"""Input files: the one place that opens files outside of datasets, and only to read them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, NotFound, StorageError
from ondisk.formats import Batch, Format, recognise
from ondisk.formats.base import Chained


@contextlib.contextmanager
def parsed(
    access: Access, source: str | os.PathLike[str] | BinaryIO, format: str | None, batch_size: int
) -> Iterator[tuple[Format, Iterator[Batch]]]:
    """Read a file to append, for the length of the block; gives its format, and its data in batches.

    Args:
        format: the file's format; None to recognise it by extension, then content.

    Raises:
        ConfigError: there is no such format.
        Otherwise as `open_source`.
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


class Peeked(Chained):
    """A stream whose first bytes were looked at, and are read again.

    Attributes:
        head: the first bytes, up to 4096; fewer where the stream gave fewer, none at its end.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.head = stream.read(4096)
        super().__init__(self.head, stream)
