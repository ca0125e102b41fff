"""Formats with one datum on each line; the newline is padding, not part of the datum."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import accumulate, compress, count, repeat
from operator import attrgetter, not_
from typing import Any, ClassVar

from ondisk.datum import Datum, microseconds
from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.formats.base import BATCH_BYTES, Batch, Format, Readable, end_of_blank
from ondisk.segment import Damage, End, ScanResult, SegmentFile

_SCANNED = 512 * 1024  # bytes of a segment that are read together
_CHUNK = 2 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_MARKS = re.compile(b"^(?:%b)+" % _BOM)
_HEAD = 4096  # bytes by which a file is recognised
_EXPLAINED = 100  # refused lines of those parsed together; a result reports no more reasons


class LineFormat(Format):
    """A format of lines; a subclass reads and writes one line, and may read or write many at once."""

    # matches every line that `read_line` accepts, and few of those that it refuses, in a tenth of the time
    plausible: ClassVar[re.Pattern[bytes]]

    is_text: ClassVar[bool] = True
    padding: ClassVar[bytes] = b"\n"
    shortage: ClassVar[str] = "its last line has no end"

    def ends(self, tail: bytes, size: int) -> bool:
        return tail.endswith((b"\n", b"\r"))  # a line of a CR LF file is stored with its CR

    @abstractmethod
    def read_line(self, line: bytes) -> tuple[int, Mapping[str, Any]]:
        """Return reftime and metadata (canonical values) of a line from outside; or raise InvalidInput."""

    def read_stored_line(self, line: bytes) -> tuple[int, Mapping[str, Any]]:
        """Do what `read_line` does for a line of a segment, which may have been stored when less was refused."""
        return self.read_line(line)

    @abstractmethod
    def write_line(self, datum: Datum) -> tuple[Mapping[str, Any], bytes]:
        """Return metadata (canonical values) and line of a datum; raise InvalidInput if there is none."""

    def whole_after_zeros(self, line: bytes, following: bytes) -> bytes:
        """Return the datum at the end of a line with NUL bytes; nothing if it is torn.

        A lost page or a punched hole of a file reads as zeros. They replace newlines, too: a whole line that follows
        them is in one line with them. What precedes them is torn: nobody knows where it ended. `following` is a whole
        line as an example, if one is known.
        """
        rest = line.rpartition(b"\0")[2] if b"\0" in line else b""
        try:
            self.read_line(rest)
        except InvalidInput:
            return b""
        return rest

    def parse_lines(self, lines: list[bytes], number: int, *, stored: bool = False) -> Batch:
        """Return the data in lines from a file, or `stored` ones; after 100 refused lines, reasons are short."""
        batch, read = Batch(), self.read_stored_line if stored else self.read_line
        for at, line in enumerate(lines, number):
            if len(batch.refused) == _EXPLAINED:
                self._parse_briefly(lines[at - number :], read, batch)
                break
            if not line.strip():
                continue
            try:
                reftime, metadata = read(line)
            except InvalidInput as error:
                if line.startswith(_BOM) and not stored:  # of a file, or of files that were joined
                    batch.extend(self.parse_lines([_MARKS.sub(b"", line)], at))
                    continue
                batch.refused.append((len(batch), f"line {at}: {error.message}"))
                if b"\0" not in line:
                    continue
                line = self.whole_after_zeros(line, _following(lines, at - number))
                if not line:
                    continue
                reftime, metadata = read(line)
            batch.add(reftime, metadata, line)
        return batch

    def _parse_briefly(
        self, lines: list[bytes], read: Callable[[bytes], tuple[int, Mapping[str, Any]]], batch: Batch
    ) -> None:
        """Add the data in lines to a batch as `parse_lines` does, without a loop over most of the refused lines."""
        lines = [*filter(bytes.strip, lines)]
        if b"\0" in b"".join(lines):
            lines = [*self._with_whole(lines)]
        first, plausible = len(batch), [*map(self.plausible.fullmatch, lines)]
        batch.refused += zip(compress(count(first), map(not_, plausible)), repeat(f"not a line of {self.name}"))
        for position, line in compress(enumerate(lines, first), plausible):
            try:
                batch.add(*read(line), line)
            except InvalidInput as error:
                batch.refused.append((position, error.message))
        batch.refused.sort()

    def _with_whole(self, lines: list[bytes]) -> Iterator[bytes]:
        for place, line in enumerate(lines):
            yield line
            if b"\0" in line and self.plausible.fullmatch(line[line.rindex(b"\0") + 1 :]):
                yield from filter(None, [self.whole_after_zeros(line, _following(lines, place))])

    def encoded(self, datum: Datum) -> tuple[int, Mapping[str, Any], bytes]:
        return microseconds(datum.reftime), *self.write_line(datum)

    def received(self, payloads: Sequence[bytes], beside: Sequence[bytes]) -> Batch:
        joined = b"".join(payloads)
        if b"\n" not in joined and b"\0" not in joined:
            batch = self.parse_lines([*payloads], 1, stored=True)
            if len(batch.payloads) == len(payloads):
                return batch
        return super().received(payloads, beside)  # says of each what is wrong

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        from ondisk.formats.file_kinds import foreign  # here, because no query needs it

        number = 1
        for lines in read_lines(stream, batch_size, self.config.max_datum_size):
            if number == 1 and (error := foreign(b"\n".join(lines[:2])[:_HEAD])):
                raise error
            batch = self.parse_lines(lines, number)
            number += len(lines)
            if len(batch):
                yield batch

    def is_readable(self, file: SegmentFile) -> bool:
        position, size = end_of_blank(file, 0, b"\0\r\n"), _SCANNED  # mostly the first line is enough
        content = file.read(position, size)
        while len(content) == size <= self.config.max_datum_size and b"\n" not in content:  # the first line is long
            size *= 4
            content = file.read(position, size)
        return any(self.recognises(line.removesuffix(b"\n")) for line in BytesIO(content))

    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        limit = self.config.max_datum_size
        # `passed` bytes before `position`, `zeros` of them NUL, belong to a line whose end was not read yet.
        position, held, passed, zeros = 0, b"", 0, 0
        while chunk := file.read(position + len(held), _SCANNED):
            content = held + chunk
            whole_end = content.rfind(b"\n") + 1
            if not whole_end:
                gone = content.rfind(b"\0") + 1 or (len(content) if len(content) > limit else 0)
                passed, zeros = passed + gone, zeros + content.count(b"\0", 0, gone)
                position, held = position + gone, content[gone:]
                continue
            found = ScanResult()
            if passed:
                before = file.read(position - 1, 1)
                rest, following = _without_cr(content[:whole_end].split(b"\n", 2)[:2])
                whole = self.whole_after_zeros(before + rest, following)
                begin = len(rest) - len(whole) if whole else content.index(b"\n") + 1
                found.damage.append(_passed(position - passed, passed + begin, zeros + rest.count(b"\0"), limit))
                position, content, whole_end, passed, zeros = position + begin, content[begin:], whole_end - begin, 0, 0
            if whole_end:
                self._find(content[: whole_end - 1], position, found)
            position, held = position + whole_end, content[whole_end:]
            found.end = End(position, position)
            yield found
        # Zeros or a line without end, unless too long, may be what is left of an interrupted append. But somebody may
        # also have cut the file off.
        is_damage = passed - zeros > limit
        damage = [_passed(position - passed, passed, zeros, limit)] if is_damage else []
        end = position if is_damage else position - passed
        is_torn = not is_damage and (passed > zeros or held.strip(b"\0 \t\r") != b"")
        yield ScanResult(damage=damage, end=End(end, end), missing=int(is_torn))

    def _find(self, content: bytes, position: int, found: ScanResult) -> None:
        """Add the data of whole lines, which begin at a position; a CR at the end of a line is not part of a datum."""
        lines = content.split(b"\n")
        offsets = list(accumulate(map((1).__add__, map(len, lines)), initial=position))[:-1]
        if b"\r" in content:
            lines = _without_cr(lines)
        if b"\0" in content:
            self._pass_zeros(lines, offsets, found.damage)
        if not all(map(bytes.strip, lines)):  # skip blank lines
            kept = [place for place, line in enumerate(lines) if line.strip()]
            offsets, lines = [offsets[place] for place in kept], [lines[place] for place in kept]
        batch = self.parse_lines(lines, 1, stored=True)
        for place, reason in batch.refused:
            found.damage.append(Damage(offsets[place], len(lines[place]), f"not a datum: {reason.partition(': ')[2]}"))
        if batch.refused:
            kept = [*batch.positions()]
            offsets, lines = [offsets[place] for place in kept], [lines[place] for place in kept]
            found.damage.sort(key=attrgetter("offset"))
        found.offsets += offsets
        found.sizes += map(len, lines)
        found.reftimes += batch.reftimes
        found.metadata += batch.metadata

    def _pass_zeros(self, lines: list[bytes], offsets: list[int], damage: list[Damage]) -> None:
        """Replace each line with NUL bytes by the datum at its end, or by an empty line."""
        for place, line in enumerate(lines):
            if b"\0" in line:
                lines[place] = whole = self.whole_after_zeros(line, _following(lines, place))
                gone = len(line) - len(whole)
                damage.append(_passed(offsets[place], gone, line.count(b"\0"), 0))
                offsets[place] += gone


def read_lines(stream: Readable, batch_size: int, max_line: int) -> Iterator[list[bytes]]:
    """Yield lists of lines (LF or CR LF); raise LimitExceeded. Memory: one batch, and `max_line` bytes."""
    batch: list[bytes] = []
    weight, number = 0, 1
    for lines in _chunks_of_lines(stream, max_line):
        size = sum(map(len, lines))
        if size > max_line and len(max(lines, key=len)) > max_line:
            lines = [_from_last_zero(line) if len(line) > max_line else line for line in lines]
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
    if b"\0" in line:
        return "it contains NUL bytes: it is damaged, or not text; decompress it first, or save it as UTF-8"
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
            begun = [_from_last_zero(b"".join(begun))]
            length = len(begun[0])
        if length > max_line + 1:
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


def _following(lines: list[bytes], place: int) -> bytes:
    return lines[place + 1] if place + 1 < len(lines) else b""


def _passed(offset: int, size: int, zeros: int, limit: int) -> Damage:
    if not zeros:
        return Damage(offset, size, f"a line longer than {limit} bytes")
    torn = f", and {size - zeros} bytes of torn lines around them" * (size > zeros)
    return Damage(offset, size, f"not a datum: {zeros} NUL bytes{torn}")


def _from_last_zero(line: bytes) -> bytes:
    """Return a line that is too long from its last NUL byte on: nothing before that is a datum."""
    return line[max(line.rfind(b"\0"), 0) :]


def _without_cr(lines: list[bytes]) -> list[bytes]:
    return [line.rstrip(b"\r") for line in lines]


def _too_long(number: int, max_line: int) -> LimitExceeded:
    return LimitExceeded(
        f"line {number} is longer than {max_line} bytes",
        hint="Is it the right file? If so, raise max_datum_size in dataset.toml.",
        line=number,
        limit=max_line,
    )
