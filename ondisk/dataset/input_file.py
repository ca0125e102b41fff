"""Input files: the only code that opens files outside datasets. It only reads them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from stat import S_ISREG
from typing import TYPE_CHECKING, BinaryIO, Self

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.decompress import COMPRESSIONS, EXTENSIONS, Decompressed, begin_of
from ondisk.errors import ConfigError, InvalidInput, NotFound, OndiskError, StorageError, shown
from ondisk.formats import Batch, Format, find, recognised
from ondisk.formats.base import Chained, Readable, compression_of
from ondisk.formats.file_kinds import foreign
from ondisk.index import segment_rows
from ondisk.named_tuple import NamedTuple
from ondisk.segments.generations import hidden

if TYPE_CHECKING:
    from ondisk.table_options import TableOptions

CSV = "csv"
"""The format of files that are tables in CSV. Their rows are stored in the dataset's format."""

TABLES = ("parquet", "arrow")
"""The formats of files that are tables with types. Their rows are stored in the dataset's format, too."""

_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"FEA1": "arrow"}
_OF_LINES = ("seg", "jsonl", "vm2")  # of other formats, any file may be a datum
_OF_TIMES = ("time", "time_format", "tz", "ambiguous")  # options that JSON lines have, too
_DELIMITERS = {".csv": None, ".tsv": "\t"}
"""The extensions of tables in CSV, and the delimiters that these say."""

_HEAD, _PACKED_HEAD = 4096, 256 * 1024  # bytes by which a file is recognised; compressed ones that have some of these


@contextlib.contextmanager
def parsed(
    access: Access,
    source: str | os.PathLike[str] | BinaryIO,
    format: str | None,
    batch_size: int,
    options: TableOptions | None = None,
) -> Iterator[tuple[Format, Iterator[Batch]]]:
    """Open a file to append, for the length of the block; yield the format of its data, and these in batches.

    Text may be compressed; its first bytes show it, not its name. A `format` of None is recognised by extension, then
    content. Raises ConfigError without such a format, InvalidInput of its options or a segment of the dataset,
    StateError without what decompresses it, and the errors of `open_source`.
    """
    if format is not None and format != CSV and format not in TABLES:
        _check_known(format)
    with open_source(source) as opened:
        check_not_own(access, opened)
        begun = Begun.of(opened, may_be_packed=format is None or (format not in TABLES and _is_text(format)))
        found = format or _recognised(access, begun)
        if found in TABLES:
            chosen = access.incoming(access.config.format)
            yield chosen, _rows(opened, access.config, chosen, options, batch_size)
            return
        stream = begun.plain() if _is_text(found) else begun.stream
        chosen = access.incoming(access.config.format if found == CSV else found)
        batches = batches_of(access.config, chosen, stream, found, begun.path, batch_size, options)
        yield chosen, and_damage(batches, stream)


class Begun(NamedTuple):
    """A stream whose first bytes were read."""

    stream: Readable  # all of it
    path: PurePath  # of its file, without the extension that says how it is compressed
    head: bytes  # the first bytes, decompressed
    compression: str | None = None  # how it is compressed; None if it is not

    @classmethod
    def of(cls, opened: BinaryIO, *, may_be_packed: bool = True) -> Self:
        """Read the beginning of a stream; a regular file ends where it ends now. Raise StateError without a library."""
        name = getattr(opened, "name", None)
        path = PurePath(name if isinstance(name, str) else "")
        source = _as_it_is(opened)
        stream = Peeked(source)
        compression = compression_of(stream.head)
        if not may_be_packed or compression not in COMPRESSIONS:
            return cls(stream, path, stream.head)
        if path.suffix.lower() in EXTENSIONS:
            path = path.with_suffix("")
        stream = Peeked(source, _PACKED_HEAD, stream.head)
        return cls(stream, path, begin_of(stream.head, compression), compression)

    @property
    def table(self) -> str | None:
        """The format of a file that is a table: `CSV` by its extension, one of `TABLES` by its first bytes; or None."""
        return table_of(self.head) or (CSV if is_csv(self.path) else None)

    def plain(self) -> Readable:
        return self.stream if self.compression is None else Decompressed(self.stream, self.compression)


def _recognised(access: Access, begun: Begun) -> str:
    """Return the format of a file: by its first bytes if it is a table with types, else by its extension first."""
    likely = access.config.format
    found = begun.table or recognised(begun.path.name, begun.head, likely)
    if found is None:  # perhaps it is of a format of the dataset whose package is not installed
        with access.current().index.snapshot() as snapshot:
            for name in segment_rows.formats(snapshot):
                find(name, "the file is not recognised (pass its --format), and the dataset has segments of the ")
    if found is None and likely in _OF_LINES and (error := foreign(begun.head)) is not None:
        raise error
    return found or likely


def is_csv(path: PurePath) -> bool:
    """Return whether the name of a file, which may be compressed, says that it is CSV."""
    plain = path.with_suffix("") if path.suffix.lower() in EXTENSIONS else path
    return plain.suffix.lower() in _DELIMITERS


def table_of(head: bytes) -> str | None:
    """Return the one of `TABLES` whose files have these first bytes, or None."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _check_known(format: str) -> None:
    """Raise ConfigError unless a format exists; name those of files that are not formats of datasets, too."""
    try:
        find(format)
    except ConfigError as error:
        if "format" in error.context:
            from difflib import get_close_matches  # here, because only errors need it

            known = sorted({*error.context["known"], CSV, *TABLES})
            likely = get_close_matches(format.lower(), known, 1)
            meant = f" Did you mean {likely[0]}?" if likely else ""
            error.hint = f"The formats of files are {', '.join(known)}.{meant}"
        raise


def _is_text(format: str) -> bool:
    return format == CSV or find(format).is_text


def notes_of_format(access: Access, format: str) -> list[str]:
    """Return what to note if data of a format are stored now: they may be the first in another than the dataset's."""
    usual = access.config.format
    if format == usual:
        return []
    with access.current().index.snapshot() as snapshot:
        if format in segment_rows.formats(snapshot):
            return []
    what = f"stored as {format}, and not in the dataset's format {usual}: tables of all data have the columns of both"
    return [f"{what}. This is the first file of {format} here; delete its data if it is a mistake"]


def batches_of(
    config: DatasetConfig,
    chosen: Format,
    stream: Readable,
    format: str,
    path: PurePath,
    batch_size: int,
    options: TableOptions | None,
) -> Iterator[Batch]:
    """Return the data of a stream in batches; `options` precede those of the configuration; raise InvalidInput."""
    others = config.csv if format == CSV else {}
    if format == config.format == "jsonl":
        others = {name: value for name, value in config.csv.items() if name in _OF_TIMES}
    if format != CSV and not others and (options is None or not options.given):
        return chosen.parse(stream, batch_size)
    from ondisk.formats.jsonl import JsonLines
    from ondisk.table_options import TableOptions
    from ondisk.tables import csv_input, json_input

    options = (options or TableOptions()).over(others)
    if format == CSV:
        if options.delimiter is None:
            options = replace(options, delimiter=_DELIMITERS.get(path.suffix.lower()))
        return csv_input.parse(stream, config, chosen, options, batch_size)
    if isinstance(chosen, JsonLines):
        return json_input.parse(stream, config, chosen, options, batch_size)
    hint = "Is it CSV? Then pass the format csv (--format csv)."
    given = ", ".join(options.given)
    raise InvalidInput(f"a file of the format {format} is not a table, and has no {given}", hint=hint)


def _rows(
    opened: BinaryIO, config: DatasetConfig, chosen: Format, options: TableOptions | None, batch_size: int
) -> Iterator[Batch]:
    """Return the rows of a file of Parquet or Arrow in batches; raise InvalidInput of a pipe, or StateError."""
    from ondisk.table_options import TableOptions
    from ondisk.tables import installed

    with installed():
        from ondisk.tables import arrow_input

    if not opened.seekable():
        hint = "Write it to a file first, and append that."
        raise InvalidInput("a table of Parquet or Arrow cannot be read from a pipe", hint=hint)
    table = arrow_input.of_file(opened)
    return arrow_input.batches(table, config, chosen, options or TableOptions(), batch_size, "the file")


def and_damage(batches: Iterator[Batch], stream: Readable) -> Iterator[Batch]:
    """Yield the batches of a stream, then the damage that was found when it was decompressed."""
    yield from batches
    if isinstance(stream, Decompressed) and stream.damage is not None:
        yield Batch(damage=[stream.damage])


@contextlib.contextmanager
def open_source(source: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open a path to append, for the length of the block, or pass a stream; raise NotFound, StorageError."""
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


def _as_it_is(stream: BinaryIO) -> Readable:
    """Return a stream that reads no more of a regular file than it has now; pipes, and files of /proc, to their end.

    A stream that decompresses a file has the status of that file, and another length.
    """
    is_file, status = isinstance(getattr(stream, "raw", stream), io.FileIO), status_of(stream)
    if not is_file or status is None or not (S_ISREG(status.st_mode) and status.st_size and stream.seekable()):
        return stream
    return _Limited(stream, status.st_size - stream.tell())


class _Limited:
    """The next `left` bytes of a stream."""

    def __init__(self, stream: Readable, left: int) -> None:
        self._stream = stream
        self._left = max(left, 0)

    def read(self, size: int, /) -> bytes:
        content = self._stream.read(min(size, self._left))
        self._left -= len(content)
        return content


class Peeked(Chained):
    """A stream whose first bytes were read ahead; reading it returns `before`, these bytes, and the rest."""

    def __init__(self, stream: Readable, size: int = _HEAD, before: bytes = b"") -> None:
        # the first bytes; fewer if one read of the stream returned fewer, none at its end
        self.head = before + stream.read(size)
        super().__init__(self.head, stream)


def check_not_own(access: Access, opened: object) -> None:
    """Raise InvalidInput if an open file is a segment of the dataset, by any name. Reads rows of all segments."""
    status = status_of(opened)
    if status is None:
        return
    name = getattr(opened, "name", None)
    place = Path(os.fsdecode(name)).resolve() if isinstance(name, str | bytes) else None
    if own := _own(access, status, place):
        problem = f"{place or 'the input'} is the segment {own} of this dataset"
        hint = "Its data are stored already. If the index does not know them, `ondisk fix` reads them."
        raise InvalidInput(problem, hint=hint, segment=own)


def status_of(opened: object) -> os.stat_result | None:
    """Return the status of the file behind a stream; None if it has none."""
    try:
        return os.fstat(opened.fileno())  # type: ignore[attr-defined]  # a stream without a file lacks it
    except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both
        return None


def _own(access: Access, status: os.stat_result, place: Path | None) -> str | None:
    """Return the name of the segment that a file is: by its inode, or by its name if another program replaced it."""
    names = {""}
    if place is not None and place.is_relative_to(folder := access.path.resolve()):
        names.add(place.relative_to(folder).as_posix())
    try:
        with access.current().index.snapshot() as snapshot:
            sql = f"SELECT id, name FROM segment WHERE inode = ? OR name IN ({', '.join('?' * len(names))})"
            rows = snapshot.fetch(sql, (status.st_ino, *names))
        for id_, name in rows:
            for path in (name, hidden(name, id_)):
                found = access.directory.stat(path)
                if found is not None and os.path.samestat(found, status):
                    return str(name)
    except OndiskError:  # an index that cannot be read ends the append by itself
        pass
    return None
