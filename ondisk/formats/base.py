"""What a data format is: how bytes become data and metadata, and the other way round. It opens no file.

A format may put a header before its data, and may store them compressed, in blocks. Then a datum has two places:
`offset` counts the segment's decompressed bytes, header included, and `position` the bytes of its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, from_microseconds
from ondisk.errors import ConfigError, FrameCorrupt, SegmentCorrupt

BATCH_BYTES = 64 * 1024 * 1024
"""A batch ends at this many bytes, whatever its number of data."""

_HEAD = 64 * 1024
_PIECE = 1024 * 1024


class Readable(Protocol):
    """A stream of bytes, as far as a format needs it: `read` gives none only at the end."""

    def read(self, size: int, /) -> bytes: ...


class Chained:
    """Some bytes, then a stream."""

    def __init__(self, begin: bytes, stream: Readable) -> None:
        self._begin = begin
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; fewer than that is not the end, none is."""
        if not self._begin:
            return self._stream.read(size)
        content, self._begin = self._begin[:size], self._begin[size:]
        return content


class SegmentFile(Protocol):
    """A segment's file, as far as a format needs it."""

    def size(self) -> int: ...

    def read(self, position: int, size: int, /) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def read_into(self, position: int, buffer: memoryview, /) -> int:
        """Read bytes into a buffer; gives how many, none only at the end of the file."""


@dataclass(frozen=True, slots=True)
class End:
    """Where a segment ends, and what going on there needs.

    Attributes:
        size: bytes of its file.
        length: its decompressed bytes, header included: the offset of what comes next; `size` where nothing is
            compressed.
        count: data that were ever laid into it, where the format counts them.
        compressed: it is stored in blocks.

    Of a dir segment, `size` is that of its file of metadata, and `length` the number of the next file.
    """

    size: int = 0
    length: int = 0
    count: int = 0
    compressed: bool = False


class Block(NamedTuple):
    """A block of a compressed segment.

    Attributes:
        offset: of its first decompressed byte.
        position: of its first byte in the file.
        stored: bytes it takes there.
    """

    offset: int
    position: int
    stored: int


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes at the begin of a segment that change as it grows.

    Attributes:
        position: where they stand in the file.
        content: what they become.
        before: what they are without the new data, to take an append back; they are hints, so a true value will do.
    """

    position: int
    content: bytes
    before: bytes


@dataclass(frozen=True, slots=True)
class Laid:
    """Data as they are to be written at the end of a segment.

    Attributes:
        content: the bytes.
        end: where the segment ends then.
        blocks: those in `content`, where it is compressed.
        patch: what else is to be written.
    """

    content: bytes
    end: End
    blocks: Sequence[Block] = ()
    patch: Patch | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What several data hold; entry i belongs to one datum.

    Attributes:
        data: as `Datum.data`.
        undeclared: metadata that are not in the index; None where no datum has any.
        reftimes: microseconds since 1970; None where the format does not read them again.
    """

    data: Sequence[Any]
    undeclared: Sequence[Mapping[str, Any]] | None = None
    reftimes: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of an input file that are no data.

    Attributes:
        offset: of the first of them, in the file's decompressed bytes.
        size: how many were left out; decompressed, as far as they can be.
        reason: what is wrong there.
    """

    offset: int
    size: int
    reason: str


@dataclass(slots=True)
class Batch:
    """Data in columns: entry i of the first three lists belongs to one datum.

    Attributes:
        reftimes: microseconds since 1970.
        metadata: canonical values by declared field; data with equal metadata may share one mapping.
        payloads: the datum's bytes as they stand in a segment, without padding.
        refused: (position, reason), ascending; positions count all data of the batch, the refused ones too.
        damage: what of the input was no data.
        notes: what else is to be said of the input, though nothing was lost.
        beside: what stands beside the datum's bytes, one for each payload; empty but in dir segments.
    """

    reftimes: list[int] = field(default_factory=list)
    metadata: list[Mapping[str, Any]] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    beside: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.payloads) + len(self.refused)

    def extend(self, other: Batch) -> None:
        """Put another batch behind this one."""
        size = len(self)
        self.reftimes += other.reftimes
        self.metadata += other.metadata
        self.payloads += other.payloads
        self.beside += other.beside
        self.refused += [(size + position, reason) for position, reason in other.refused]
        self.damage += other.damage
        self.notes += other.notes

    def refuse_before(self, reftime: int, reason: str) -> None:
        """Refuse data whose reftime lies before one."""
        if not self.reftimes or min(self.reftimes) >= reftime:
            return
        positions = self.positions()
        old = [place for place, each in enumerate(self.reftimes) if each < reftime]
        self.refused = sorted([*self.refused, *((positions[place], reason) for place in old)])
        kept = sorted(set(range(len(self.reftimes))).difference(old))
        self.reftimes = [self.reftimes[place] for place in kept]
        self.metadata = [self.metadata[place] for place in kept]
        self.payloads = [self.payloads[place] for place in kept]
        self.beside = [self.beside[place] for place in kept if self.beside]

    def positions(self) -> Sequence[int]:
        """Give the position of each datum that was not refused."""
        if not self.refused:
            return range(len(self.payloads))
        left_out = {position for position, _ in self.refused}
        return [position for position in range(len(self)) if position not in left_out]


@dataclass(slots=True)
class ScanResult:
    """Data found in a segment's file, some of many; entry i of the first four lists belongs to one datum.

    Attributes:
        offsets: where each datum begins, ascending.
        sizes: bytes of each, without padding.
        reftimes: microseconds since 1970.
        metadata: canonical values by declared field; data with equal metadata may share one mapping.
        blocks: those that hold the data, where the segment is compressed.
        damage: what stands between the data, or behind them, and is no datum.
        end: where the segment ends, as far as it was read: behind the last whole datum. What of the file lies behind
            it is what a crash left of an append, or damage.
        foreign: the file cannot stay as it is, since data could not be read in place or appended to it; it must be
            written anew, from what `parse` gives.
    """

    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    reftimes: list[int] = field(default_factory=list)
    metadata: list[Mapping[str, Any]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    end: End = field(default_factory=End)
    foreign: bool = False


class Format(ABC):
    """One data format, set up for one dataset.

    Attributes:
        name: as in `dataset.toml`.
        padding: bytes behind each datum that are not part of it.
        block_size: decompressed bytes of a block at most.
        preamble: bytes before the first datum of a stream that is to be read as a file of this format.
        raw: the data are the datum's bytes as they stand; `decode` need not be called.
        is_dir: its segments are directories, each datum a file, whose bytes say nothing of reftime and metadata. These
            stand beside it: `encode` gives them as `Batch.beside`, `describe` and `load` take that for the payload.
            Offsets are the files' numbers then; what is said of a segment's file does not apply.
        unit: what an offset counts.
        extension: of its segments.
    """

    name: ClassVar[str]
    padding: ClassVar[bytes] = b""
    preamble: ClassVar[bytes] = b""
    block_size: ClassVar[int] = 0
    raw: ClassVar[bool] = False
    is_dir: ClassVar[bool] = False
    unit: ClassVar[str] = "byte"

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        if config.segments == "dir" and config.format == self.name and not self.is_dir:
            hint = 'Remove the line, or write format = "blob".'
            raise ConfigError(f"segments: this version of ondisk has no dir segments of {self.name}", hint=hint)

    @property
    def extension(self) -> str:
        return self.name

    @classmethod
    @abstractmethod
    def recognises(cls, head: bytes) -> bool:
        """Tell whether a file that begins with these bytes is likely of this format."""

    @abstractmethod
    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        """Read a file of this format, in batches of at most `batch_size` data or `BATCH_BYTES`.

        Raises:
            LimitExceeded: something in it is larger than the configuration allows.
        """

    @abstractmethod
    def encode(self, data: Sequence[Datum]) -> Batch:
        """Turn data into their bytes; what the format cannot carry is refused, not raised."""

    def encode_columns(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], data: Sequence[Any]
    ) -> Batch:
        """Turn data into their bytes as `encode` does, given in columns: no object is made for each where that can be.

        Args:
            reftimes: microseconds since 1970.
        """
        return self.encode(list(map(Datum, map(from_microseconds, reftimes), metadata, data)))

    @abstractmethod
    def decode(self, payload: bytes) -> Any:
        """Turn a datum's bytes into its data.

        Raises:
            FrameCorrupt: the bytes are not of this format.
        """

    @abstractmethod
    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        """Read reftime and metadata (canonical values) from a datum's bytes.

        Raises:
            FrameCorrupt: the bytes are not of this format.
        """

    @property
    @abstractmethod
    def undeclared(self) -> bool:
        """Whether data can carry metadata that are not declared fields, and so not in the index."""

    def load(self, payloads: Sequence[bytes]) -> Loaded:
        """Turn the bytes of several data, a megabyte or one large datum, into what they hold.

        Raises:
            FrameCorrupt: the bytes of one are not of this format; its context names the `position`.
        """
        data, undeclared = [], []
        for position, payload in enumerate(payloads):
            try:
                if self.undeclared:
                    undeclared.append(self.describe(payload)[1])
                data.append(self.decode(payload))
            except FrameCorrupt as error:
                error.context["position"] = position
                raise
        return Loaded(data, undeclared or None)

    @abstractmethod
    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        """Find the data of a segment's file, from its begin to its end; at least one `ScanResult` is given.

        Damage is passed over where that can be done, and told of.

        Memory: some of the data at a time.
        """

    def is_empty(self, file: SegmentFile) -> bool:
        """Tell whether a segment's file holds no more than a new one does, or than a power cut can leave of one."""
        return is_zeros(file, 0)

    def is_readable(self, file: SegmentFile) -> bool:
        """Tell whether something in a segment's file is of this format."""
        return self.recognises(file.read(0, _HEAD))

    def begin(self) -> Laid:
        """Give what a new segment begins with."""
        return Laid(b"", End())

    def resume(self, file: SegmentFile, end: End) -> Laid:
        """Find where to append in a file that nobody vouches for behind `end`; its data there stay.

        Args:
            end: what is known of it; `End()` where nothing is.

        Returns:
            What must stand before a new datum, where the segment ends behind that, and the blocks behind `end`. What of
            the file lies behind the place for this content is a torn datum, which may be cut off.

        Raises:
            SegmentCorrupt: whole data stand behind damage.
            StateError: nothing can be appended to a file of this kind.

        Cost: a format that must look at its data reads the file behind `end`.
        """
        size = max(file.size(), end.size)
        is_ended = size == 0 or file.read(size - len(self.padding), len(self.padding)) == self.padding
        content = b"" if is_ended else self.padding
        return Laid(content, End(size + len(content), size + len(content)))

    def lay(self, payloads: Sequence[bytes], end: End) -> Laid:
        """Lay data one after the other at the end of a segment, each followed by `padding`.

        Their order stays, and the offset of the first is `end.length`: the index was told so already. The bytes do not
        depend on `end`, but for whether it is compressed: data may be laid before it is known where they will stand.
        """
        content = self.padding.join([*payloads, b""]) if payloads else b""
        return Laid(content, End(end.size + len(content), end.length + len(content), end.count))

    def ends(self, tail: bytes, size: int) -> bool:
        """Tell whether a datum of `size` bytes, its padding included, may end with `tail`, its last four bytes.

        What says so of a wrong place, or a wrong size, but by chance, keeps a damaged index from leading to a rewrite
        that leaves bytes of a datum out.
        """
        return tail.endswith(self.padding)

    def seal(self, end: End) -> bytes:
        """Give what is written behind the last datum of a segment that is complete; a later append cuts it off."""
        return b""

    def unpack(self, stored: memoryview) -> bytes:
        """Decompress one block, as it stands in the file.

        Raises:
            SegmentCorrupt: it is damaged.
        """
        raise SegmentCorrupt(f"segments of {self.name} have no blocks")


def is_zeros(file: SegmentFile, position: int) -> bool:
    """Tell whether there is nothing but zeros from a position on, which a power cut can leave of what was written."""
    size = file.size()
    while position < size:
        piece = file.read(position, _PIECE)
        if not piece or piece.strip(b"\0"):
            return False
        position += len(piece)
    return True
