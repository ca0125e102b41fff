"""What a data format is: how bytes become data and metadata, and the other way round. It opens no file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from ondisk.config import DatasetConfig
from ondisk.datum import Datum

BATCH_BYTES = 64 * 1024 * 1024
"""A batch ends at this many bytes, whatever its number of data."""


class Readable(Protocol):
    """A stream of bytes, as far as a format needs it: `read` gives none only at the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Batch:
    """Data in columns: entry i of the first three lists belongs to one datum.

    Attributes:
        reftimes: microseconds since 1970.
        metadata: canonical values by declared field; data with equal metadata may share one mapping.
        payloads: the datum's bytes as they stand in a segment, without padding.
        refused: (position, reason), ascending; positions count all data of the batch, the refused ones too.
    """

    reftimes: list[int] = field(default_factory=list)
    metadata: list[Mapping[str, Any]] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.payloads) + len(self.refused)

    def extend(self, other: Batch) -> None:
        """Put another batch behind this one."""
        size = len(self)
        self.reftimes += other.reftimes
        self.metadata += other.metadata
        self.payloads += other.payloads
        self.refused += [(size + position, reason) for position, reason in other.refused]

    def positions(self) -> Sequence[int]:
        """Give the position of each datum that was not refused."""
        if not self.refused:
            return range(len(self.payloads))
        left_out = {position for position, _ in self.refused}
        return [position for position in range(len(self)) if position not in left_out]


class Format(ABC):
    """One data format, set up for one dataset.

    Attributes:
        name: as in `dataset.toml`; also the extension of its segments.
        padding: bytes behind each datum that are not part of it.
        raw: the data are the datum's bytes as they stand; `decode` need not be called.
    """

    name: ClassVar[str]
    padding: ClassVar[bytes] = b""
    raw: ClassVar[bool] = False

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config

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

    def join(self, payloads: Sequence[bytes]) -> bytes:
        """Lay payloads one after the other, as they stand in a segment."""
        return self.padding.join(payloads) + self.padding if payloads else b""

    def separator(self, last: bytes) -> bytes:
        """Give what must stand before a new datum where an unknown file ends with the byte `last`."""
        return b"" if last == self.padding[-1:] else self.padding
