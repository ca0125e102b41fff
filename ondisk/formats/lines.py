"""Formats with one datum on each line; the newline is padding, not part of the datum."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

from ondisk.datum import Datum, microseconds
from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.formats.base import BATCH_BYTES, Batch, Format, Readable
from ondisk.segment import Damage, End, ScanResult, SegmentFile

_SCANNED = 512 * 1024  # bytes of a segment that are read together
_CHUNK = 2 * 1024 * 1024


class LineFormat(Format):
    """A format of lines; a subclass reads and writes one line, and may read or write many at once."""

    padding: ClassVar[bytes] = b"\n"

    def ends(self, tail: bytes, size: int) -> bool:
        return tail.endswith((b"\n", b"\r"))  # a line of a CR LF file is stored with its CR

    @abstractmethod
    def read_line(self, line: bytes) -> tuple[int, Mapping[str, Any]]:
        """Return reftime and metadata (canonical values) of a line from outside.

        Raises:
            InvalidInput: the line is not of this format, or larger than the configuration allows.
        """

    @abstractmethod
    def write_line(self, datum: Datum) -> tuple[Mapping[str, Any], bytes]:
        """Return metadata (canonical values) and line of a datum.

        Raises:
            InvalidInput: the format cannot represent the datum.
        """

    def parse_lines(self, lines: list[bytes], number: int) -> Batch:
        """Return the data in lines, and skip blank lines. The first line is line `number` of its file."""
        batch = Batch()
        for at, line in enumerate(lines, number):
            if not line.strip():
                continue
            try:
                reftime, metadata = self.read_line(line)
            except InvalidInput as error:
                batch.refused.append((len(batch), f"line {at}: {error.message}"))
            else:
                _add(batch, reftime, metadata, line)
        return batch

    def encode(self, data: Sequence[Datum]) -> Batch:
        batch = Batch()
        for position, datum in enumerate(data):
            try:
                metadata, line = self.write_line(datum)
            except InvalidInput as error:
                batch.refused.append((position, error.message))
            else:
                _add(batch, microseconds(datum.reftime), metadata, line)
        return batch

    def check_size(self, line: bytes) -> None:
        """Raise InvalidInput if a line is larger than the configuration allows."""
        if len(line) > self.config.max_datum_size:
            raise InvalidInput(f"{len(line)} bytes are more than max_datum_size, {self.config.max_datum_size}")

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        number = 1
        for lines in read_lines(stream, batch_size, self.config.max_datum_size):
            batch = self.parse_lines(lines, number)
            number += len(lines)
            if len(batch):
                yield batch

    def is_readable(self, file: SegmentFile) -> bool:
        return any(map(self.recognises, file.read(0, _SCANNED).split(b"\n")))

    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        limit = self.config.max_datum_size
        position, held, skipping = 0, b"", 0
        while chunk := file.read(position + len(held), _SCANNED):
            content = held + chunk
            whole_end = content.rfind(b"\n") + 1
            if not whole_end and len(content) <= limit:
                held = content
                continue
            if not whole_end:  # too long for a line: skip its bytes
                skipping += len(content)
                position, held = position + len(content), b""
                continue
            found = ScanResult()
            if skipping:
                first = content.index(b"\n") + 1
                found.damage.append(Damage(position - skipping, skipping + first, f"a line longer than {limit} bytes"))
                position, content, whole_end, skipping = position + first, content[first:], whole_end - first, 0
            if whole_end:
                self._find(content[: whole_end - 1], position, found)
            position, held = position + whole_end, content[whole_end:]
            found.end = End(position, position)
            yield found
        damage = [Damage(position - skipping, skipping, f"a line longer than {limit} bytes")] if skipping else []
        yield ScanResult(damage=damage, end=End(position, position))  # an interrupted append left a line without end

    def _find(self, content: bytes, position: int, found: ScanResult) -> None:
        """Add the data of whole lines, which begin at a position; a CR at the end of a line is not part of a datum."""
        lines = content.split(b"\n")
        offsets = list(accumulate(map((1).__add__, map(len, lines)), initial=position))[:-1]
        if b"\r" in content:
            lines = _without_cr(lines)
        if not all(map(bytes.strip, lines)):  # skip blank lines
            kept = [place for place, line in enumerate(lines) if line.strip()]
            offsets, lines = [offsets[place] for place in kept], [lines[place] for place in kept]
        batch = self.parse_lines(lines, 1)
        for place, reason in batch.refused:
            found.damage.append(Damage(offsets[place], len(lines[place]), f"not a datum: {reason.partition(': ')[2]}"))
        if batch.refused:
            kept = [*batch.positions()]
            offsets, lines = [offsets[place] for place in kept], [lines[place] for place in kept]
        found.offsets += offsets
        found.sizes += map(len, lines)
        found.reftimes += batch.reftimes
        found.metadata += batch.metadata


def read_lines(stream: Readable, batch_size: int, max_line: int) -> Iterator[list[bytes]]:
    """Yield lists of lines from a stream, without their newlines (LF or CR LF).

    Memory: one batch, and at most `max_line` bytes of one line.

    Raises:
        LimitExceeded: a line is longer than `max_line` bytes.
    """
    batch: list[bytes] = []
    weight, number = 0, 1
    for lines in _chunks_of_lines(stream, max_line):
        size = sum(map(len, lines))
        if size > max_line and len(max(lines, key=len)) > max_line:
            first = next(index for index, line in enumerate(lines) if len(line) > max_line)
            raise _too_long(number + first, max_line)
        number += len(lines)
        while len(batch) + len(lines) >= batch_size:
            room = batch_size - len(batch)
            yield batch + lines[:room]
            batch, lines, weight = [], lines[room:], 0
        batch += lines
        weight += size
        if weight >= BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def why_not_text(line: bytes) -> str:
    """Return why a line that could not be read is not plain text; empty if it may be plain text."""
    if line.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark (BOM); save the file as UTF-8 without one"
    if line.startswith(b"\x1f\x8b"):
        return "it is gzip, not text; decompress it first"
    if b"\0" in line:
        return "it contains NUL bytes, so it is not text; decompress it first, or save it as UTF-8"
    return ""


def _chunks_of_lines(stream: Readable, max_line: int) -> Iterator[list[bytes]]:
    """Yield non-empty lists of whole lines, one for each chunk of the stream."""
    begun: list[bytes] = []  # the beginning of a line that continues in the next chunk
    length, number = 0, 1
    while chunk := stream.read(_CHUNK):
        first, newline, rest = chunk.partition(b"\n")
        begun.append(first)
        length += len(first)
        if length > max_line + 1:  # one more for the CR of CR LF
            raise _too_long(number, max_line)
        if not newline:
            continue
        lines = rest.split(b"\n")
        lines.insert(0, b"".join(begun))
        last = lines.pop()
        begun, length = [last], len(last)
        number += len(lines)
        # The CR of the first line may have been the last byte of the chunk before.
        yield _without_cr(lines) if b"\r" in chunk or lines[0].endswith(b"\r") else lines
    if length:
        yield _without_cr([b"".join(begun)])


def _add(batch: Batch, reftime: int, metadata: Mapping[str, Any], line: bytes) -> None:
    batch.reftimes.append(reftime)
    batch.metadata.append(metadata)
    batch.payloads.append(line)


def _without_cr(lines: list[bytes]) -> list[bytes]:
    return [line.removesuffix(b"\r") for line in lines]


def _too_long(number: int, max_line: int) -> LimitExceeded:
    return LimitExceeded(
        f"line {number} is longer than {max_line} bytes",
        hint="Is it the right file? If so, raise max_datum_size in dataset.toml.",
        line=number,
        limit=max_line,
    )
