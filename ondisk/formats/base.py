"""The interface of a data format. A format turns bytes into data and metadata, and back; it opens no file.

A format may put a header before its data, and may compress them in blocks. A compressed segment has two kinds of
address: an `offset` counts its decompressed bytes, including the header; a `position` counts the bytes of its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, from_microseconds
from ondisk.errors import RESTORE, ConfigError, FrameCorrupt, InvalidInput, SegmentCorrupt
from ondisk.named_tuple import NamedTuple
from ondisk.segment import Damage, End, Laid, Patch, ScanResult, Sealer, SegmentFile

BATCH_SIZE = 100_000
"""The default number of data in a batch."""

BATCH_BYTES = 64 * 1024 * 1024
"""A batch ends at this many bytes, even if it has fewer data than allowed."""

MOVE = f"{RESTORE}, or move it out of the dataset."
"""What to do about a file that has the name of a segment and is not one."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_HEAD = 64 * 1024
_TOGETHER = 128  # data that are tried together after one of a larger number was refused
_PIECE = 1024 * 1024
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


class Readable(Protocol):
    """The part of a byte stream that a format needs; `read` returns no bytes only at the end."""

    def read(self, size: int, /) -> bytes: ...


def read_fully(stream: Readable, size: int) -> bytes:
    """Return so many bytes of a stream, or fewer if it ends. Memory: no more than it has."""
    pieces, left = [], size
    while left > 0 and (piece := stream.read(min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Chained:
    def __init__(self, begin: bytes, stream: Readable) -> None:
        self._begin = begin
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes. Only an empty result means the end; a short one does not."""
        if not self._begin:
            return self._stream.read(size)
        content, self._begin = self._begin[:size], self._begin[size:]
        return content


class FileStream:
    """A segment's file as a stream, from a position on."""

    def __init__(self, file: SegmentFile, position: int) -> None:
        self._file = file
        self._position = position

    def read(self, size: int, /) -> bytes:
        content = self._file.read(self._position, size)
        self._position += len(content)
        return content

    def readinto(self, buffer: memoryview, /) -> int:
        count = self._file.read_into(self._position, buffer)
        self._position += count
        return count


class Kept(dict[_Key, _Value]):
    """What was made of keys that come again, until there are too many of them; None is not kept."""

    def __init__(self, make: Callable[[_Key], _Value] | None = None, most: int = 100_000) -> None:
        super().__init__()
        self._make, self._most = make, most

    def __missing__(self, key: _Key) -> _Value:
        if self._make is None:
            raise KeyError(key)
        value = self._make(key)
        return value if value is None else self.keep(key, value)

    def keep(self, key: _Key, value: _Value) -> _Value:
        """Keep a value that was made in another way, and return it."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


class Loaded(NamedTuple):
    """The content of several data, in columns: entry i belongs to datum i."""

    data: Sequence[Any]  # as `Datum.data`
    # metadata that are not in the index; None if no datum has any
    undeclared: Sequence[Mapping[str, Any]] | None = None
    # microseconds since 1970; None if the format does not read them from the payload
    reftimes: Sequence[int] | None = None


class Batch:
    """Data in columns: entry i of the first three lists belongs to the i-th datum that was not refused."""

    __slots__ = ("beside", "damage", "metadata", "missing", "notes", "payloads", "reftimes", "refused")

    def __init__(
        self,
        reftimes: list[int] | None = None,
        metadata: list[Mapping[str, Any]] | None = None,
        payloads: list[bytes] | None = None,
        refused: list[tuple[int, str]] | None = None,
        damage: list[Damage] | None = None,
        notes: list[str] | None = None,
        beside: list[bytes] | None = None,
        missing: int = 0,
    ) -> None:
        self.reftimes = [] if reftimes is None else reftimes  # microseconds since 1970
        # canonical values by declared field; data with equal metadata may share one mapping
        self.metadata = [] if metadata is None else metadata
        # the datum's bytes as stored in a segment, without padding
        self.payloads = [] if payloads is None else payloads
        # (position, reason), ascending; positions count all data of the batch, including the refused
        self.refused = [] if refused is None else refused
        self.damage = [] if damage is None else damage  # the parts of the input that could not be read as data
        self.notes = [] if notes is None else notes  # remarks about the input that report no loss
        # the bytes stored next to each payload; only dir segments have them, otherwise the list is empty
        self.beside = [] if beside is None else beside
        self.missing = missing  # as `ScanResult.missing`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and all(getattr(self, each) == getattr(other, each) for each in self.__slots__)

    def __len__(self) -> int:
        return len(self.payloads) + len(self.refused)

    def add(self, reftime: int, metadata: Mapping[str, Any], payload: bytes, beside: bytes | None = None) -> None:
        self.reftimes.append(reftime)
        self.metadata.append(metadata)
        self.payloads.append(payload)
        if beside is not None:
            self.beside.append(beside)

    def extend(self, other: Batch) -> None:
        size = len(self)
        self.reftimes += other.reftimes
        self.metadata += other.metadata
        self.payloads += other.payloads
        self.beside += other.beside
        self.refused += [(size + position, reason) for position, reason in other.refused]
        self.damage += other.damage
        self.notes += other.notes
        self.missing += other.missing

    def refuse_before(self, reftime: int, reason: str) -> None:
        """Move data with an earlier reftime to the refused."""
        if not self.reftimes or min(self.reftimes) >= reftime:
            return
        self.refuse({place: reason for place, each in enumerate(self.reftimes) if each < reftime})

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Move data to the refused: place in `payloads` → reason."""
        positions = self.positions()
        self.refused = sorted([*self.refused, *((positions[place], reason) for place, reason in reasons.items())])
        kept = [place for place in range(len(self.reftimes)) if place not in reasons]
        self.reftimes = [self.reftimes[place] for place in kept]
        self.metadata = [self.metadata[place] for place in kept]
        self.payloads = [self.payloads[place] for place in kept]
        self.beside = [self.beside[place] for place in kept if self.beside]

    def positions(self) -> Sequence[int]:
        """Return the position of each datum that was not refused."""
        if not self.refused:
            return range(len(self.payloads))
        refused = {position for position, _ in self.refused}
        return [position for position in range(len(self)) if position not in refused]


def sifted(make: Callable[[slice], Batch], place: slice, name: Callable[[int], str] = lambda at: "") -> Batch:
    """Return what a function makes of data, without those of which alone it raises FrameCorrupt or InvalidInput.

    They are tried together, then some of them, then each. `name`: returns what the reason for one begins with.
    """
    try:
        return make(place)
    except (FrameCorrupt, InvalidInput) as error:
        if place.stop == place.start + 1:
            return Batch(refused=[(0, f"{name(place.start)}{error.message}")])
    batch, step = Batch(), _TOGETHER if place.stop - place.start > _TOGETHER else 1
    for begin in range(place.start, place.stop, step):
        batch.extend(sifted(make, slice(begin, min(begin + step, place.stop)), name))
    return batch


class JoinsParts(ABC):
    """What a format may be, too: one that, if `joins_parts`, encodes keys and values once, and joins them."""

    joins_parts: bool = True

    @abstractmethod
    def content_part(self, key: str, value: Any) -> bytes:
        """Return the bytes of a key and its value, an integer of 64 bits, a finite real or a text."""

    @abstractmethod
    def encode_parts(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[bytes]]
    ) -> Batch:
        """Return data whose content is joined of parts, as `Format.encode_columns` does; or raise InvalidInput.

        Data with equal metadata should share one mapping, which nobody changes. `parts`: for each key of the content,
        those of all data; no bytes where a datum lacks the key.
        """


class DescribesFiles(ABC):
    """What a format of dir segments may be, too: one whose files say themselves when they are, and what is in them."""

    @abstractmethod
    def beside_of(self, content: bytes) -> bytes:
        """Return the bytes that are stored next to a file; raise InvalidInput if it is not of this format."""


class Format(ABC):
    """One data format, set up for one dataset."""

    name: ClassVar[str]  # as in `dataset.toml`
    padding: ClassVar[bytes] = b""  # bytes after each datum that are not part of it
    # bytes to put before the first datum, so that a stream of data can be parsed as a file of this format
    preamble: bytes = b""
    mutable: ClassVar[range] = range(0)  # positions in a segment's file that `patch` rewrites
    block_size: ClassVar[int] = 0  # maximum number of decompressed bytes in a block
    raw: ClassVar[bool] = False  # a datum's data are its stored bytes, so `decode` need not be called
    # each segment is a directory with one file for each datum. The file contains neither reftime nor metadata:
    # `encode` returns them as `Batch.beside`, and `describe` and `load` expect those bytes as payload. An offset is
    # the number of a file. The methods that take a segment's file are not used.
    is_dir: ClassVar[bool] = False
    unit: ClassVar[str] = "byte"  # what an offset counts
    extra: ClassVar[str | None] = None  # of ondisk, whose packages it needs
    # fields of type integer that are seconds, so that expressions may say `6h`
    durations: ClassVar[frozenset[str]] = frozenset()
    is_text: ClassVar[bool] = False  # its files are lines of text, which are decompressed when they are appended
    encrypts: ClassVar[bool] = False  # its segments are encrypted if the configuration says so
    # each datum has a checksum, which is compared when it is exported. Otherwise only the checksum of the whole
    # segment shows that a datum is the one that was stored.
    has_checksums: ClassVar[bool] = False
    # how a file shows that it once had more data, see `ScanResult.missing`
    shortage: ClassVar[str] = "its header counts more than the file has"

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        if config.segments == "dir" and config.format == self.name and not self.is_dir:
            hint = 'Remove segments = "dir" from dataset.toml, or set format = "blob".'
            raise ConfigError(f"segments: this version of ondisk has no dir segments of {self.name}", hint=hint)

    def check_encrypts(self) -> None:
        """Raise InvalidInput if data of this format would be stored in plain, but should be encrypted."""
        if self.config.encryption != "none" and not self.encrypts:
            hint = "Convert them to events, or append them to a dataset without encryption."
            raise InvalidInput(f"the dataset is encrypted, and data of the format {self.name} cannot be", hint=hint)

    def check_size(self, payload: bytes) -> None:
        """Raise InvalidInput if a datum is larger than the configuration allows."""
        if len(payload) > self.config.max_datum_size:
            raise InvalidInput(f"{len(payload)} bytes are more than max_datum_size, {self.config.max_datum_size}")

    @property
    def extension(self) -> str:
        return self.name

    @classmethod
    @abstractmethod
    def recognises(cls, head: bytes) -> bool:
        """Return whether a file that begins with these bytes is probably of this format."""

    @abstractmethod
    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        """Yield the data of a file of this format, in batches of at most `batch_size` data or `BATCH_BYTES`.

        Raises LimitExceeded if the file contains something larger than the configuration allows.
        """

    def encode(self, data: Sequence[Datum]) -> Batch:
        """Return the data as bytes. Data that the format cannot represent are refused; no error is raised."""
        batch = Batch()
        for position, datum in enumerate(data):
            try:
                batch.add(*self.encoded(datum))
            except InvalidInput as error:
                batch.refused.append((position, error.message))
        return batch

    def encoded(self, datum: Datum) -> tuple[int, Mapping[str, Any], bytes, *tuple[bytes, ...]]:
        """Return what `Batch.add` takes of a datum; raise InvalidInput. For formats that do not override `encode`."""
        raise NotImplementedError

    def encode_columns(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], data: Sequence[Any]
    ) -> Batch:
        """Return data in columns as bytes, as `encode` does, perhaps without objects; reftimes are microseconds."""
        return self.encode(list(map(Datum, map(from_microseconds, reftimes), metadata, data)))

    def decode(self, payload: bytes) -> Any:
        """Return the data of a datum, decoded from its bytes, unless `raw`; raise FrameCorrupt of another format."""
        return payload

    @abstractmethod
    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        """Return reftime and metadata (canonical values) from a datum's bytes; raise FrameCorrupt as `decode`."""

    @property
    @abstractmethod
    def undeclared(self) -> bool:
        """Whether data can have metadata that are not declared as fields and therefore not in the index."""

    def load(self, payloads: Sequence[bytes]) -> Loaded:
        """Return the content of several data: about a megabyte of payloads, or one large one.

        Raises FrameCorrupt, with the `position` of the payload that is not of this format in its context.
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

    def verify(self, payloads: Sequence[bytes]) -> None:
        """Compare the bytes of data with their checksums, if they have any; raise FrameCorrupt, with the `position`."""
        return

    def exported(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """Return the bytes of data of one segment, verified before, as in a file that other programs read."""
        return payloads

    def received(self, payloads: Sequence[bytes], beside: Sequence[bytes]) -> Batch:
        """Return data of another dataset, of which `exported` returned the payloads, as a batch.

        Data that are not of this format are refused. They may be hostile: what is not refused must be one datum to a
        `scan` of the segment that it is written to. `beside` is empty unless `is_dir`.
        """
        batch = Batch()
        for position, payload in enumerate(payloads):
            try:
                if self.padding and self.padding in payload:
                    raise FrameCorrupt("it contains the end of a datum")
                reftime, metadata = self.describe(beside[position] if self.is_dir else payload)
                self.decode(payload)
            except (FrameCorrupt, InvalidInput) as error:
                batch.refused.append((position, error.message))
                continue
            batch.add(reftime, metadata, payload, beside[position] if self.is_dir else None)
        return batch

    @abstractmethod
    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        """Yield the data of a segment's file, from beginning to end, as `ScanResult`s of some of the data each.

        Damage is reported and, if possible, skipped.
        """

    def is_empty(self, file: SegmentFile) -> bool:
        """Return whether a segment's file has no more than a new one. Zeros are more: they may be left of data."""
        return not file.size()

    def is_readable(self, file: SegmentFile) -> bool:
        """Return whether at least part of a segment's file is of this format."""
        return self.recognises(file.read(0, _HEAD))

    def begin(self) -> Laid:
        """Return the first bytes of a new segment."""
        return Laid(b"", End())

    def begin_for_all(self) -> Laid:
        """Return the first bytes of a new segment that can hold any data, if the configured kind cannot."""
        return self.begin()

    @classmethod
    def stored(cls, end: End) -> dict[str, int | str]:
        """Return how the data of a segment that ends at `end` are stored, in the words of `dataset.toml`."""
        return {}

    def why_rewritten(self, end: End) -> str | None:
        """Return why a segment that ends at `end` is converted on request; None if it is stored as new ones are."""
        begun = self.begin().end
        is_same = (end.kind, end.compressed) == (begun.kind, begun.compressed)
        return None if is_same else "it is stored in another way than dataset.toml says"

    def is_exposed(self, end: End) -> bool:
        """Return whether a segment that ends at `end` is not encrypted, although new ones are."""
        return False

    def refit(self, payloads: Sequence[bytes], kind: int) -> tuple[list[bytes], dict[int, str]]:
        """Return the bytes of data as segments of another `End.kind` have them, and position → reason of others.

        These stay as they are. Raises FrameCorrupt, with the `position` of a datum that is not of this format.
        """
        return [*payloads], {}

    def resume(self, file: SegmentFile, end: End) -> Laid:
        """Find where to append in a file with unverified content after `end`; whole data there are kept.

        Returns the content to write before a new datum, the segment's end after that content, and the blocks after the
        given `end` (`End()` if nothing is known). Bytes of the file from where this content begins are a torn datum and
        may be cut off. Some formats read the file from `end` on.

        Raises:
            SegmentCorrupt: whole data follow damage; or nothing in the file is of this format.
            StateError: nothing can be appended to a file of this kind.
        """
        if not end.size and not self.is_empty(file) and not self.is_readable(file):
            reason = "it contains only zeros" if is_zeros(file, 0) else f"nothing in it is of the format {self.name}"
            raise SegmentCorrupt(reason, hint=MOVE)
        size = max(file.size(), end.size)
        is_ended = size == 0 or file.read(size - len(self.padding), len(self.padding)) == self.padding
        content = b"" if is_ended else self.padding
        return Laid(content, End(size + len(content), size + len(content)))

    def lay(self, payloads: Sequence[bytes], end: End) -> Laid:
        """Return the bytes of data to write at the end of a segment, one after the other, each followed by `padding`.

        The order is kept, and the first datum's offset is `end.length`: the index already contains it. The bytes depend
        on `end` only by `end.compressed`, so data may be laid before their final place is known.
        """
        content = self.padding.join([*payloads, b""]) if payloads else b""
        return Laid(content, End(end.size + len(content), end.length + len(content), end.count))

    def patch(self, end: End) -> Patch | None:
        """Return the bytes near the beginning of a segment that ends at `end`, if data are counted there, as a hint."""
        return None

    def extents(self, sizes: Iterable[int]) -> Iterable[int]:
        """Return how much each datum of these sizes adds to the offset of the next one."""
        return map(len(self.padding).__add__, sizes) if self.padding else sizes

    @classmethod
    def extent(cls, count: int, size: int) -> int:
        """Return how much `count` data of `size` bytes add to an offset together."""
        return size + count * len(cls.padding)

    def first_offset(self, end: End) -> int:
        """Return the offset of the first datum in a segment that ends at `end`."""
        return self.begin().end.length

    def holes(self, end: End, count: int, size: int) -> int:
        """Return how many bytes up to the end of a segment do not belong to its `count` data of `size` bytes."""
        return end.length - self.first_offset(end) - self.extent(count, size)

    def ends(self, tail: bytes, size: int) -> bool:
        """Return whether a datum of `size` bytes, including padding, may end with `tail`, its last four bytes.

        A wrong place or size should pass only by chance: this test keeps a rewrite from dropping bytes of a datum when
        the index is damaged.
        """
        return tail.endswith(self.padding)

    def seal(self, end: End) -> bytes:
        """Return the bytes to write after the last datum of a complete segment; a later append overwrites them."""
        return b""

    def sealer(self, file: SegmentFile, name: str | None, end: End | None = None) -> Sealer | None:
        """Return what encrypts and decrypts the bytes of a segment's file; None if they are not encrypted.

        `scan`, `parse` and `resume` decrypt by themselves. All other bytes are decrypted after they were read from the
        file, and encrypted before they are written. What follows the place of a segment in its name counts, if known.

        Raises:
            KeyMissing: its key is not known.
            AuthenticationFailed: no key fits, or the file is that of another segment; or, if data are to be appended at
                `end`, the last datum before it shows that the segment has another key of the number of the one for new
                data.
        """
        return None

    def new_sealer(self, begun: bytes, name: str) -> Sealer | None:
        """Return what encrypts a new segment, after what `begin` returned; None if it is plain; raise KeyMissing."""
        return None

    def begin_staged(self) -> tuple[bytes, Sealer | None]:
        """Return the first bytes of a file of staged data, and what encrypts the others, or None; raise KeyMissing."""
        return b"", None

    def staged_sealer(self, file: SegmentFile) -> Sealer | None:
        """Return what decrypts a file that begins as `begin_staged` says; None if it is plain; raise KeyMissing."""
        return None

    def found(self, end: End) -> End:
        """Return the end to record for a segment that was found on disk, and may once have continued in another way."""
        return end

    def may_continue(self, opened: Callable[[], SegmentFile], end: End, *, is_exact: bool) -> bool:
        """Return whether data may be appended to a segment's file; otherwise the segment must be rewritten first.

        `end` is that in the index, `End()` if it does not know the segment. `is_exact`: the file is as the last commit
        left it, and nothing was written after its end since then.
        """
        return True

    def unpack(self, stored: memoryview) -> bytes:
        """Return the decompressed bytes of one block as stored in the file; raise SegmentCorrupt if it is damaged."""
        raise SegmentCorrupt(f"segments of {self.name} have no blocks")

    def packed(self, data: bytes) -> bytes:
        """Return decompressed bytes as one block is stored, the opposite of `unpack`; as they are without blocks."""
        return data


def compression_of(head: bytes) -> str | None:
    """Return the name of the compression that a file's first bytes show; None for none."""
    return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)


def is_zeros(file: SegmentFile, position: int) -> bool:
    """Return whether the file has only zeros from a position on, which a power cut can leave in place of the bytes."""
    return end_of_blank(file, position) >= file.size()


def end_of_blank(file: SegmentFile, position: int, blank: bytes = b"\0") -> int:
    """Return the position of the first byte from a position on that is not blank; the size of the file without one."""
    while piece := file.read(position, _PIECE):
        if rest := piece.lstrip(blank):
            return position + len(piece) - len(rest)
        position += len(piece)
    return position
