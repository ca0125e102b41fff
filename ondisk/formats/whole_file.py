"""Formats of files that are one datum each and say themselves what is in them: ODIM and NetCDF. Segments are dirs.

As for blobs, reftime and items are stored next to each file, so that no query opens it. A fix makes them again from the
file where a segment has lost them, or never had them, as those of arkimet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ondisk.datum import Datum, from_microseconds
from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.formats.base import Batch, DescribesFiles, Readable
from ondisk.formats.blob import Blob
from ondisk.formats.described import Content, Described

_PIECE = 1024 * 1024


class WholeFile(Described, Blob, DescribesFiles):
    """A format of whole files; a subclass reads what a file says of itself."""

    extra: ClassVar[str | None] = "hdf5"

    @property
    def extension(self) -> str:
        return self.name

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        limit, pieces, size = self.config.max_datum_size, [], 0
        while size <= limit and (piece := stream.read(_PIECE)):
            pieces.append(piece)
            size += len(piece)
        if size > limit:
            raise LimitExceeded(f"the file is larger than max_datum_size, {limit} bytes")
        content, batch = b"".join(pieces), Batch()
        try:
            self._add(batch, content, *self._whole(content))
        except InvalidInput as error:
            batch.refused.append((0, error.message))
        yield batch

    def encode(self, data: Sequence[Datum]) -> Batch:
        batch = Batch()
        for position, datum in enumerate(data):
            try:
                reftime, content = self._whole(datum.data)
                self.check_given(datum, reftime, content)
                self._add(batch, datum.data, reftime, content)
            except InvalidInput as error:
                batch.refused.append((position, error.message))
        return batch

    def beside_of(self, content: bytes) -> bytes:
        batch = Batch()
        self._add(batch, content, *self._whole(content))
        return batch.beside[0]

    def _whole(self, content: Any) -> tuple[int, Content]:
        """Read a file that came alone; raise InvalidInput if it is too large, or cannot be read."""
        if type(content) is not bytes:
            raise InvalidInput(f"the data of {self.name} must be a file as bytes, not {type(content).__name__}")
        if len(content) > self.config.max_datum_size:
            raise InvalidInput(f"{len(content)} bytes are more than max_datum_size, {self.config.max_datum_size}")
        return self.read(content)

    def _add(self, batch: Batch, payload: bytes, reftime: int, content: Content) -> None:
        metadata, beside = self._encoded(Datum(from_microseconds(reftime), self.items_of(content), payload))
        batch.reftimes.append(reftime)
        batch.metadata.append(metadata)
        batch.payloads.append(payload)
        batch.beside.append(beside)
