"""Formats of files that are one datum each and say themselves what is in them: ODIM and NetCDF. Segments are dirs.

As for blobs, reftime and items are stored next to each file, so that no query opens it. A fix makes them again from the
file where a segment has lost them, or never had them, as those of arkimet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ondisk.datum import Datum, from_microseconds
from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.formats.base import Batch, DescribesFiles, Readable, read_fully
from ondisk.formats.blob import Blob
from ondisk.formats.described import Content, Described


class WholeFile(Described, Blob, DescribesFiles):
    """A format of whole files; a subclass reads what a file says of itself."""

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
        self.check_given(datum, reftime, content)
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
