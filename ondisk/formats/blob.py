"""Formats with one file for each datum: blobs, which are any bytes; and files that say what is in them.

The caller of append passes reftime and metadata; `ondisk.files` finds them in the names of files. They are stored next
to the file, as CBOR of at most 1 MiB:

    {"reftime": microseconds since 1970, "metadata": {…}}

Metadata can contain the values that `diskqueue.cbor` writes; timestamps are RFC 3339 text. The extension of the files
is `extension` in `dataset.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ondisk.config import MAX_DEPTH, DatasetConfig
from ondisk.datum import INTEGER_MAX, INTEGER_MIN, Datum, from_microseconds, microseconds
from ondisk.errors import ConfigError, FrameCorrupt, InvalidInput, LimitExceeded
from ondisk.formats import is_known
from ondisk.formats.base import Batch, DescribesFiles, Format, Loaded, Readable, read_fully
from ondisk.formats.diskqueue import cbor
from ondisk.formats.metadata import canonical_metadata, times_to_text, without
from ondisk.formats.self_describing import Content, Described
from ondisk.segment import End, Laid, ScanResult, SegmentFile

MAX_METADATA = 1024 * 1024
"""Limit, in bytes, for reftime and metadata of one file."""

_MAX_ITEMS = 64 * 1024  # limit for values and keys in these


class Blob(Format):
    name: ClassVar[str] = "blob"
    raw: ClassVar[bool] = True
    is_dir: ClassVar[bool] = True
    has_checksums: ClassVar[bool] = True
    unit: ClassVar[str] = "file"

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if config.extension != Blob.name and is_known(config.extension):
            hint = "Choose another extension."
            raise ConfigError(f"extension: {config.extension!r} belongs to another format", hint=hint, key="extension")

    @property
    def extension(self) -> str:
        return self.config.extension

    @property
    def undeclared(self) -> bool:
        return True

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        return False

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        raise InvalidInput(
            "a file of the format blob does not contain its reftime and metadata",
            hint="Say where they are: `ondisk append DATASET FILE --format blob --time mtime`, or see docs/files.md.",
        )

    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        reftime, metadata = self._read(payload)
        try:
            return reftime, canonical_metadata(metadata, self.config.fields, times_as_text=True)
        except InvalidInput as error:
            raise FrameCorrupt(f"its metadata are damaged: {error.message}") from None

    def load(self, payloads: Sequence[bytes]) -> Loaded:
        """Return reftimes and undeclared metadata; the data are the content of the files."""
        declared = self.config.fields.keys()
        reftimes, undeclared = [], []
        for position, payload in enumerate(payloads):
            try:
                reftime, metadata = self._read(payload)
            except FrameCorrupt as error:
                error.context["position"] = position
                raise
            reftimes.append(reftime)
            undeclared.append(without(metadata, declared))
        return Loaded([], undeclared, reftimes)

    def lay(self, payloads: Sequence[bytes], end: End) -> Laid:
        """Return the bytes of data one after the other, as a staged file contains them; offsets count data."""
        content = b"".join(payloads)
        return Laid(content, End(end.size + len(content), end.length + len(payloads), end.count))

    def extents(self, sizes: Iterable[int]) -> Iterable[int]:
        return (1 for _ in sizes)

    @classmethod
    def extent(cls, count: int, size: int) -> int:
        return count

    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        raise AssertionError("ondisk.segments.dir finds the data of a directory")

    def encoded(self, datum: Datum) -> tuple[int, Mapping[str, Any], bytes, bytes]:
        if type(datum.data) is not bytes:
            raise InvalidInput(f"the data of blob must be bytes, not {type(datum.data).__name__}")
        self.check_size(datum.data)
        metadata = canonical_metadata(datum.metadata, self.config.fields, times_as_text=False)
        reftime = microseconds(datum.reftime)
        beside = cbor.encode(
            {"reftime": reftime, "metadata": times_to_text(datum.metadata)},
            max_depth=self.config.max_depth + 1,
            max_items=_MAX_ITEMS,
        )
        if len(beside) > MAX_METADATA:
            raise InvalidInput(f"{len(beside)} bytes of metadata are more than {MAX_METADATA}")
        return reftime, metadata, datum.data, beside

    def _read(self, beside: bytes) -> tuple[int, Mapping[str, Any]]:
        try:
            content = cbor.decode(beside, max_depth=MAX_DEPTH + 1, max_items=_MAX_ITEMS)
        except (FrameCorrupt, InvalidInput) as error:
            raise FrameCorrupt(f"its metadata are damaged: {error.message}") from None
        match content:
            case {"reftime": int(reftime), "metadata": dict(metadata)} if INTEGER_MIN <= reftime <= INTEGER_MAX:
                return reftime, metadata
        raise FrameCorrupt("its metadata are damaged: reftime or metadata are missing")


class WholeFile(Described, Blob, DescribesFiles):
    """A format of files that are one datum each and say themselves what is in them; a subclass reads that.

    As for blobs, reftime and items are stored next to each file, so that no query opens it. A fix makes them again from
    the file where a segment has lost them, or never had them, as those of arkimet.
    """

    extra: ClassVar[str | None] = "hdf5"

    @property
    def extension(self) -> str:
        return self.name

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        limit, batch = self.config.max_datum_size, Batch()
        content = read_fully(stream, limit + 1)
        if len(content) > limit:
            raise LimitExceeded(f"the file is larger than max_datum_size, {limit} bytes")
        try:
            batch.add(*self._described(content, *self._whole(content)))
        except InvalidInput as error:
            batch.refused.append((0, error.message))
        yield batch

    def encoded(self, datum: Datum) -> tuple[int, Mapping[str, Any], bytes, bytes]:
        reftime, content = self._whole(datum.data)
        self.check_given(datum, reftime, content.all)
        return self._described(datum.data, reftime, content)

    def beside_of(self, content: bytes) -> bytes:
        return self._described(content, *self._whole(content))[3]

    def _whole(self, content: Any) -> tuple[int, Content]:
        """Read a file that came alone; raise InvalidInput if it is too large, or cannot be read."""
        if type(content) is not bytes:
            raise InvalidInput(f"the data of {self.name} must be a file as bytes, not {type(content).__name__}")
        self.check_size(content)
        return self.read(content)

    def _described(self, payload: bytes, reftime: int, content: Content) -> tuple[int, Mapping[str, Any], bytes, bytes]:
        return super().encoded(Datum(from_microseconds(reftime), self.items_of(content), payload))
