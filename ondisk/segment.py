"""The layout of a segment: values that formats, the files of segments and the index share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ondisk.named_tuple import NamedTuple


class SegmentFile(Protocol):
    """The part of a segment's file that a format needs."""

    def size(self) -> int: ...

    def read(self, position: int, size: int, /) -> bytes:
        """Return `size` bytes, or fewer at the end of the file."""

    def read_into(self, position: int, buffer: memoryview, /) -> int:
        """Read into a buffer and return the number of bytes read; 0 only at the end of the file."""


class Sealer(Protocol):
    """Encrypts and decrypts the bytes of one segment's file. The results have the same length.

    Attributes:
        is_framed: it works on whole data only. Otherwise on any piece, by XOR with a keystream: nothing may be written
            twice to the same place.
    """

    @property
    def is_framed(self) -> bool: ...

    def seal(self, position: int, content: bytes) -> bytes:
        """Return plain bytes as they are stored at a position of the file."""

    def unseal(self, position: int, content: bytes) -> bytes:
        """Return stored bytes as they were before sealing.

        Raises AuthenticationFailed if they are not what was sealed there with this key; KeyMissing; FrameCorrupt.
        """


class DecryptedFile:
    """A segment's file as if it were not encrypted."""

    def __init__(self, file: SegmentFile, sealer: Sealer) -> None:
        self._file = file
        self._sealer = sealer

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, size: int, /) -> bytes:
        return self._sealer.unseal(position, self._file.read(position, size))

    def read_into(self, position: int, buffer: memoryview, /) -> int:
        content = self.read(position, len(buffer))
        buffer[: len(content)] = content
        return len(content)


class End(NamedTuple):
    """Where a segment ends, with what an append needs to continue there.


    For a dir segment, `size` is the size of its metadata file, and `length` the number of the next data file.
    """

    size: int = 0  # bytes of its file
    # its decompressed bytes, including the header: the offset of the next datum. Equals `size` unless the segment is
    # compressed.
    length: int = 0
    # number of data ever written to it, if the format counts them
    count: int = 0  # type: ignore[assignment]  # not the method of tuples
    compressed: bool = False  # it is stored in blocks
    # how the format stores data in it, a number of the format's own; 0 if it has only one way, or the usual
    kind: int = 0


class Facts(NamedTuple):
    """What the index records about the committed bytes of a segment's file; see `ondisk.segments.file_facts`."""

    # of the file after its last durable change, nanoseconds since 1970; 0 if somebody else had touched the file before
    # that change, so that only the tail can show that the bytes are the same. Negative: of another file at its name, in
    # which a fix has found none of its data, so that nobody reads that file again
    mtime: int = 0
    inode: int | None = None  # of the file; None if unknown
    tail: int | None = None  # CRC-32C of the last committed bytes; None if unknown
    checksum: int | None = None  # CRC-32C of all committed bytes; None if unknown


class Block(NamedTuple):
    """A block of a compressed segment."""

    offset: int  # of its first decompressed byte
    position: int  # of its first byte in the file
    stored: int  # bytes that it occupies in the file


class Patch(NamedTuple):
    """Bytes near the beginning of a segment that change as it grows."""

    position: int  # of the first of them in the file
    content: bytes  # the bytes


class Laid(NamedTuple):
    """Bytes to write at the end of a segment."""

    content: bytes  # the bytes
    end: End  # where the segment ends after they are written
    blocks: Sequence[Block] = ()  # the blocks in `content`, if the segment is compressed


class Start(NamedTuple):
    """Where a batch continues a segment."""

    laid: Laid  # its end, and what to write before new data
    is_new: bool = False  # nothing is at its name, so its file is made under a hidden name
    is_touched: bool = False  # somebody else has touched the file since the index recorded its facts
    has_unknown: bool = False  # the file has data before this end that the index may not know
    # the end is that of the last whole datum in the file; the index, which may have lost some, did not say it
    is_found: bool = False
    checksum: int | None = None  # of the bytes before the end, as in `Facts`; None if unknown


class Damage(NamedTuple):
    """Damaged bytes in an input file or a segment, which were skipped."""

    offset: int  # of the first of them, in the file's decompressed bytes
    size: int  # number of bytes skipped; decompressed bytes if they could be decompressed
    reason: str  # what is wrong there


class NotedDamage(NamedTuple):
    """The damage that was found in a segment, as the index records it."""

    reason: str
    hides_data: bool = False  # the file may contain data that the index has lost: noted until all of it can be read

    @classmethod
    def of(cls, reason: str | None, hides_data: int) -> NotedDamage | None:
        """Return damage; None without a reason."""
        return None if reason is None else cls(reason, bool(hides_data))


class ScanResult:
    """Consecutive data found in a segment's file, in columns: entry i of the first four lists belongs to datum i."""

    __slots__ = ("blocks", "damage", "end", "foreign", "in_place", "metadata", "missing", "offsets", "reftimes",
                 "sizes")  # fmt: skip

    def __init__(
        self,
        offsets: list[int] | None = None,
        sizes: list[int] | None = None,
        reftimes: list[int] | None = None,
        metadata: list[Mapping[str, Any]] | None = None,
        blocks: list[Block] | None = None,
        damage: list[Damage] | None = None,
        end: End | None = None,
        foreign: bool = False,
        in_place: bool = True,
        missing: int = 0,
    ) -> None:
        self.offsets = [] if offsets is None else offsets  # where each datum begins, ascending
        self.sizes = [] if sizes is None else sizes  # bytes of each datum, without padding
        self.reftimes = [] if reftimes is None else reftimes  # microseconds since 1970
        # canonical values by declared field; data with equal metadata may share one mapping
        self.metadata = [] if metadata is None else metadata
        self.blocks = [] if blocks is None else blocks  # the blocks that contain the data, if the segment is compressed
        self.damage = [] if damage is None else damage  # bytes between or after the data that belong to no datum
        # the end of the last whole datum read so far. After the last result of a scan, any further bytes of the file
        # are damage or the rest of an interrupted append.
        self.end = End() if end is None else end
        # the file must be rewritten from the result of `parse`, because its data cannot be read in place or nothing can
        # be appended to it. Only the last result of a scan shows the latter.
        self.foreign = foreign
        # its data can be read in place, so that a foreign file may stay where nothing is appended to it
        self.in_place = in_place
        # data that the file once had and that are neither in it nor reported as damage: it counts them, or its last
        # datum is cut off. Some may be of an interrupted append. Only the last result of a scan can have them.
        self.missing = missing


class Framing(Protocol):
    """How a format frames data in a segment: what `SegmentWriter` needs of an `ondisk.formats.Format`."""

    @property
    def mutable(self) -> range: ...

    def begin(self) -> Laid: ...

    def resume(self, file: SegmentFile, end: End) -> Laid: ...

    def lay(self, payloads: Sequence[bytes], end: End) -> Laid: ...

    def patch(self, end: End) -> Patch | None: ...

    def seal(self, end: End) -> bytes: ...

    def sealer(self, file: SegmentFile, name: str, end: End | None = None) -> Sealer | None: ...

    def new_sealer(self, begun: bytes, name: str) -> Sealer | None: ...

    def may_continue(self, opened: Callable[[], SegmentFile], end: End, *, is_exact: bool) -> bool: ...
