"""Formats of messages that say their own length: GRIB and BUFR. A segment has the messages, and nothing else of ours.

    file    = {message | gap}
    message = magic, length, edition, …, "7777"

A gap is what belongs to no message: padding, a heading of the Global Telecommunication System (WMO no. 386), or else
damage. A message may begin anywhere. What claims to be one is one only if it ends with `7777` where its length says;
otherwise the search continues after its first byte.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from ondisk.datum import Datum
from ondisk.errors import FrameCorrupt, InvalidInput, SegmentCorrupt, shown
from ondisk.formats.base import BATCH_BYTES, MOVE, Batch, FileStream, Readable
from ondisk.formats.self_describing import Content, Described
from ondisk.segment import Damage, End, Laid, ScanResult, SegmentFile

END = b"7777"
"""How a message ends."""
MANY = 10_000
"""What formats keep of messages that have something in common, at most."""

_PIECE = 1024 * 1024  # bytes that are read together
_HEAD = 4096  # bytes in which the first message of a file begins: headings come before it
_LOOKED_AT = 400  # bytes of a gap that are looked at for a heading
_HEAD_SIZE = 8  # bytes that `head` matches
_BLANK = b"\0\t\n\r \x01\x03"
_BLANKS = re.compile(rb"[\0\t\n\r \x01\x03]+")
# The end of a bulletin; its beginning, with the sequence number or the length of the next; the heading TTAAii CCCC.
_HEADING = re.compile(rb"(NNNN )?(ZCZC )?([0-9]{3,10} ){0,2}([A-Z]{4}[0-9]{2} [A-Z]{4} [0-9]{6} ([A-Z]{3} )?)?(NNNN )?")


class Frames(NamedTuple):
    window: bytes  # bytes of the stream
    offset: int  # of the window in the stream
    spans: list[tuple[int, int]]  # where in the window each message begins and ends
    gaps: list[Damage]  # those that ended before or between these messages; no reason: padding and headings
    is_last: bool  # the stream has ended; a gap at its end is the last of the gaps


class Messages(Described):
    """A format of messages; a subclass finds the length of a message, and reads what it says of itself."""

    raw: ClassVar[bool] = True
    shortage: ClassVar[str] = "its last message is cut off"
    magic: ClassVar[bytes]  # how a message begins
    head: ClassVar[re.Pattern[bytes]]  # matches the beginning of a message up to its edition
    parts: ClassVar[str]  # what a message may have several of, although it is one datum, and what it says then

    @staticmethod
    @abstractmethod
    def size_of(window: bytes, at: int) -> int:
        """Return the length that a message with its `magic` at a place of the window claims to have.

        The window has 8 bytes there; the message may continue after it. 0: this is no message. Negative: so many bytes
        are needed to know.
        """

    @staticmethod
    @abstractmethod
    def has_several(message: bytes) -> bool:
        """Return whether a message that was read has several `parts`."""

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        return cls.head.search(head, 0, _HEAD) is not None

    def ends(self, tail: bytes, size: int) -> bool:
        return tail == END

    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        try:
            reftime, content = self._read_alone(payload)
        except InvalidInput as error:
            raise FrameCorrupt(f"not a message of {self.name}: {error.message}") from None
        return reftime, self.items_of(content)

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        batch, weight, several = Batch(), 0, 0
        for frames in self.frames(stream.read):
            batch.damage += [gap for gap in frames.gaps if gap.reason]
            for begin, end in frames.spans:
                message = frames.window[begin:end]
                try:
                    reftime, content = self.read(message)
                except InvalidInput as error:
                    reason = f"the message at byte {frames.offset + begin}: {error.message}"
                    batch.refused.append((len(batch), reason))
                else:
                    batch.add(reftime, content.metadata, message)
                    several += self.has_several(message)
                weight += end - begin
                if len(batch) >= batch_size or weight >= BATCH_BYTES:
                    yield batch
                    batch, weight = Batch(), 0
        if several:
            have = "1 message has" if several == 1 else f"{several} messages have"
            batch.notes.append(f"{have} several {self.parts}")
        if len(batch) or batch.damage or batch.notes:
            yield batch

    def encoded(self, datum: Datum) -> tuple[int, Mapping[str, Any], bytes]:
        reftime, content = self._read_alone(datum.data)
        self.check_given(datum, reftime, content.all)
        return reftime, content.metadata, datum.data

    def is_readable(self, file: SegmentFile) -> bool:
        return any(frames.spans for frames in self.frames(FileStream(file, 0).read))

    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        last = 0
        for frames in self.frames(FileStream(file, 0).read):
            found = ScanResult()
            last_begin = frames.offset + (frames.spans[-1][0] if frames.spans else 0)
            for gap in frames.gaps:
                is_at_end = frames.is_last and gap is frames.gaps[-1] and gap.offset >= last_begin
                if not gap.reason:
                    last = max(last, gap.offset + gap.size)
                elif is_at_end and gap.size <= self.config.max_datum_size:
                    found.missing = 1  # what is left of an interrupted append, or somebody has cut the file off
                    continue
                else:
                    found.damage.append(gap)
                    last = max(last, gap.offset + gap.size)
            for begin, end in frames.spans:
                offset, last = frames.offset + begin, max(last, frames.offset + end)
                try:
                    reftime, content = self.read(frames.window[begin:end])
                except InvalidInput as error:
                    found.damage.append(Damage(offset, end - begin, f"not a datum: {error.message}"))
                    continue
                found.offsets.append(offset)
                found.sizes.append(end - begin)
                found.reftimes.append(reftime)
                found.metadata.append(content.metadata)
            found.damage.sort()
            found.end = End(last, last)
            yield found

    def resume(self, file: SegmentFile, end: End) -> Laid:
        """Keep whole messages after `end`; what follows the last one may be cut off, unless it is padding."""
        if not end.size and not self.is_empty(file) and not self.is_readable(file):
            raise SegmentCorrupt(f"nothing in it is of the format {self.name}", hint=MOVE)
        last = end.size
        torn: Damage | None = None
        for frames in self.frames(FileStream(file, end.size).read):
            for gap in frames.gaps:
                after = end.size + gap.offset + gap.size
                if gap.reason:
                    torn = torn or gap
                elif torn is None:
                    last = max(last, after)
            if frames.spans:
                last = max(last, end.size + frames.offset + frames.spans[-1][1])
            if torn is not None and end.size + torn.offset < last:
                reason = f"whole messages follow {torn.size} bytes at {end.size + torn.offset} that are none"
                raise SegmentCorrupt(reason, hint="Run ondisk check, then ondisk fix.")
        return Laid(b"", End(last, last))

    def frames(self, read: Callable[[int], bytes]) -> Iterator[Frames]:
        """Yield the messages of a stream.

        Cost: linear in the bytes, whatever they claim; what is kept of a window to read on is at most four times as
        large as what is then read.
        Memory: that of two messages of `max_datum_size`, or some megabytes: of what exists, not of what is claimed.
        """
        window, base, is_ended = b"", 0, False
        gap = _OpenGap()
        while not is_ended:
            window, is_ended = _more(read, window, gap.wanted)
            frames = Frames(window, base, [], [], is_ended)
            keep = self._find(frames, gap)
            yield frames
            window, base = window[keep:], base + keep

    def _find(self, frames: Frames, gap: _OpenGap) -> int:
        """Add the messages of a window and the gaps before them; return the place from which it must be kept."""
        window, base, spans, gaps, is_last = frames
        find, magic = window.find, self.magic
        search, size_of, limit = self.head.search, self.size_of, self.config.max_datum_size
        length, is_open = len(window), gap.size > 0
        done = at = gap.wanted = 0
        while 0 <= (begin := find(magic, at)) <= length - _HEAD_SIZE:
            size = size_of(window, begin)
            end = begin + size
            if 0 < size <= limit and end <= length and window.endswith(END, begin, end):
                if is_open or begin > done:
                    gap.add(window[done:begin])
                    gaps.append(gap.closed(base + begin, limit))
                    is_open = False
                spans.append((begin, end))
                done = at = end
                continue
            needed = abs(size)
            if needed <= limit and begin + needed > length and not is_last:
                gap.wanted = needed
                break
            if size > limit:
                gap.claimed = size
            following = search(window, begin + 1)  # slower than `find`, and stops only at what may be a message
            if following is None:
                break
            at = following.start()
        keep = begin if gap.wanted else length if is_last else max(done, length - _HEAD_SIZE)
        gap.add(window[done:keep])
        if is_last and gap.size:
            gaps.append(gap.closed(base + keep, limit))
        return keep

    def _read_alone(self, message: Any) -> tuple[int, Content]:
        """Read a message that came alone; raise InvalidInput unless it is exactly one and can be read."""
        if type(message) is not bytes:
            raise InvalidInput(f"the data of {self.name} must be a message as bytes, not {type(message).__name__}")
        self.check_size(message)
        is_begun = self.head.match(message) is not None
        if not is_begun or self.size_of(message, 0) != len(message) or not message.endswith(END):
            raise InvalidInput(f"{shown(message[:16])} begins no message of {self.name} that ends with the data")
        return self.read(message)


class _OpenGap:
    """A gap that may continue in the next window.

    Attributes:
        size: bytes so far.
        wanted: bytes that the next window must have.
        claimed: the length of something in it that would be a message if it were allowed to be so long.
    """

    __slots__ = ("_head", "_is_blank", "claimed", "size", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self._start()

    def _start(self) -> None:
        self.size = self.claimed = 0
        self._head = b""
        self._is_blank = True

    def add(self, content: bytes) -> None:
        self.size += len(content)
        self._is_blank = self._is_blank and not content.strip(_BLANK)
        if len(self._head) <= _LOOKED_AT:
            self._head += content[: _LOOKED_AT + 1]

    def closed(self, end: int, limit: int) -> Damage:
        reason = ""
        if self.claimed:
            reason = f"no message, or one of {self.claimed} bytes: more than max_datum_size, {limit}"
        elif not self._is_blank:
            words = _BLANKS.sub(b" ", self._head.strip(_BLANK) + b" ")
            reason = "" if self.size <= _LOOKED_AT and _HEADING.fullmatch(words) else "no message"
        gap = Damage(end - self.size, self.size, reason)
        self._start()
        return gap


def _more(read: Callable[[int], bytes], kept: bytes, wanted: int) -> tuple[bytes, bool]:
    """Return a window with more bytes, at least `wanted` if the stream has them, and whether the stream ended."""
    goal = max(wanted, len(kept) + max(_PIECE, len(kept) // 4))
    pieces, size = [kept], len(kept)
    while size < goal and (piece := read(min(goal - size, _PIECE))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), size < goal
