"""The datum: a reftime, metadata and data; its location; the values that metadata can have.

Times are UTC-aware `datetime` outside and integer microseconds since 1970 inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import isnan
from types import MappingProxyType
from typing import Any, TypeAlias

from ondisk.errors import InvalidInput, shown
from ondisk.named_tuple import NamedTuple

Value: TypeAlias = int | float | str | bool | datetime | bytes
"""The value of a metadata field; `dataset.toml` declares which type a field has."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
METADATA = "metadata."
"""What precedes the name of metadata that no field declares, in conditions and as a column."""
CONTENT = "data."
"""What precedes the name of a value in the data themselves, if they are mappings."""
NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class _Location(NamedTuple):
    segment: str
    offset: int
    size: int


class Location(_Location):
    """The location of a stored datum.

    That of a datum that was read is valid until a repack or a move writes its segment again: another datum may be there
    then. One that you make yourself is that of any datum there.

    Attributes:
        segment: name of the segment, relative to the dataset, for example `2026/11-20.vm2`.
        offset: first byte of the datum in the segment's (decompressed) bytes.
        size: length of the datum, bytes.
    """

    generation: int | None = None  # of the segment when the datum was read; it is no part of the tuple

    @classmethod
    def of(cls, segment: str, row: tuple[Any, ...]) -> Location:
        """Return the location of a datum that was read; its row has generation, offset and size at [1:4]."""
        location = cls(segment, row[2], row[3])
        location.generation = row[1]
        return location

    def __str__(self) -> str:
        return f"{self.segment}, offset {self.offset}"


class Datum:
    """Data of one time, with metadata. Do not change a datum after creating it.

    Args:
        reftime: the reference time, timezone-aware; stored as UTC to the microsecond.
        metadata: field → value. Fields declared in `dataset.toml` can be queried.
        data: the value that the format stores; `bytes` for vm2, a mapping for jsonl.

    Attributes:
        location: None for a datum that was not read from a dataset.
        dataset: the path of the dataset whose `location` it is, if several datasets were read as one; else None.

    Raises:
        InvalidInput: reftime is not a datetime or has no time zone, or metadata is not a mapping.
    """

    # `_place` is the row of the index, as for `Location.of`. Few callers read the location of a datum, so it is created
    # only then. `_dataset` is set only where several datasets are read as one.
    __slots__ = ("_dataset", "_place", "_segment", "data", "metadata", "reftime")

    reftime: datetime
    metadata: Mapping[str, Any]
    data: Any

    def __init__(self, reftime: datetime, metadata: Mapping[str, Any] = NO_METADATA, data: Any = None) -> None:
        if not _is_aware(reftime):
            raise InvalidInput(
                f"reftime must be a timezone-aware datetime, not {shown(reftime)}",
                hint="Add a time zone, for example datetime(2026, 11, 20, tzinfo=timezone.utc).",
            )
        if not _is_mapping(metadata):
            raise InvalidInput(f"metadata must be a mapping of field to value, not {type(metadata).__name__}")
        self.reftime = reftime if reftime.tzinfo is UTC else _to_utc(reftime)
        self.metadata = metadata
        self.data = data
        self._segment: str | None = None
        self._place: tuple[Any, ...] = ()

    @classmethod
    def stored(
        cls, reftime: datetime, metadata: Mapping[str, Any], data: Any, segment: str, place: tuple[Any, ...]
    ) -> Datum:
        """Return a datum that a dataset read, without checking it again; `place` is as for `Location.of`."""
        datum = cls.__new__(cls)
        datum.reftime = reftime
        datum.metadata = metadata
        datum.data = data
        datum._segment = segment
        datum._place = place
        return datum

    @property
    def location(self) -> Location | None:
        return None if self._segment is None else Location.of(self._segment, self._place)

    @property
    def dataset(self) -> str | None:
        try:
            return self._dataset
        except AttributeError:
            return None

    def read_from(self, dataset: str) -> Datum:
        """Return this datum, which says from now on that it is from a dataset."""
        self._dataset: str = dataset
        return self

    def __eq__(self, other: object) -> bool:
        """Compare reftime, metadata and data, but not the location."""
        if not isinstance(other, Datum):
            return NotImplemented
        return self.reftime == other.reftime and self.metadata == other.metadata and self.data == other.data

    __hash__ = None  # type: ignore[assignment]  # metadata and data may be mutable

    def __repr__(self) -> str:
        """Return the beginning: a datum may have many megabytes."""
        return f"Datum({self.reftime.isoformat()}, {shown(dict(self.metadata))}, {shown(self.data)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.reftime, dict(self.metadata), self.data, self.location, self.dataset)


def _unpickle(
    reftime: datetime, metadata: Mapping[str, Any], data: Any, location: Location | None, dataset: str | None
) -> Datum:
    datum = Datum(reftime, metadata, data)
    if location is not None:
        place = (None, location.generation, location.offset, location.size)
        datum = Datum.stored(datum.reftime, metadata, data, location.segment, place)
    return datum if dataset is None else datum.read_from(dataset)


def _is_aware(time: object) -> bool:
    try:
        return isinstance(time, datetime) and time.utcoffset() is not None
    except ValueError:  # of NaT of pandas
        return False


def _is_mapping(metadata: object) -> bool:
    return isinstance(metadata, Mapping)


def _to_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{shown(time)} is outside the years 1 to 9999 in UTC") from None


def microseconds(time: datetime) -> int:
    """Return the microseconds from 1970-01-01T00:00:00Z to an aware time; exact, negative before."""
    return (time - EPOCH) // MICROSECOND


def from_microseconds(count: int) -> datetime:
    """Return the UTC time `count` microseconds after 1970-01-01T00:00:00Z."""
    return EPOCH + timedelta(microseconds=count)


class FieldType(StrEnum):
    """The declared type of a metadata field, as `dataset.toml` names it."""

    INTEGER = "integer"
    REAL = "real"
    TEXT = "text"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    BYTES = "bytes"
    ITEM = "item"

    @property
    def interned(self) -> bool:
        """True if the index stores each value once, in its table of values, and only the value's id in a row."""
        return self.is_text or self is FieldType.BYTES

    @property
    def is_text(self) -> bool:
        """True if its values are texts; what an expression on an item means is in `ondisk.items`."""
        return self in (FieldType.TEXT, FieldType.ITEM)


INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1


def canonical(value: Any, kind: FieldType) -> int | float | str | bytes:
    """Return a metadata value in the form that is stored and compared.

    integer: int of 64 bits · real: float, not NaN (also an int that a float represents exactly) · text: str ·
    boolean: 0 or 1 · timestamp: integer microseconds of an aware datetime · bytes: bytes · item: str.

    Raises:
        InvalidInput: the value does not have the declared type, or is out of its range.
    """
    return _CANONICAL[kind](value)


def converter(kind: FieldType) -> Callable[[Any], int | float | str | bytes]:
    """Return a function that does what `canonical` does for one type, for many calls."""
    return _CANONICAL[kind]


def restored(stored: Any, kind: FieldType) -> Value:
    """Return the metadata value of a stored form: the reverse of `canonical`."""
    match kind:
        case FieldType.BOOLEAN:
            return bool(stored)
        case FieldType.TIMESTAMP:
            return from_microseconds(stored)
        case _:
            value: Value = stored
            return value


# Exact types: bool is an int, and SQLite's STRICT would silently convert "1" to 1.


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise _wrong(value, FieldType.INTEGER)
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    raise InvalidInput(f"{shown(value)} does not fit into 64 bits")


def _text(value: Any, kind: FieldType = FieldType.TEXT) -> str:
    if type(value) is not str:
        raise _wrong(value, kind)
    if value.isascii() or is_unicode(value):
        return value
    raise InvalidInput(f"text {shown(value)} contains a lone surrogate, which is not valid Unicode")


def _item(value: Any) -> str:
    return _text(value, FieldType.ITEM)


def _boolean(value: Any) -> int:
    if type(value) is not bool:
        raise _wrong(value, FieldType.BOOLEAN)
    return int(value)


def _timestamp(value: Any) -> int:
    if not isinstance(value, datetime):
        raise _wrong(value, FieldType.TIMESTAMP)
    if value.tzinfo is UTC:
        return (value - EPOCH) // MICROSECOND
    if not _is_aware(value):
        raise InvalidInput(f"timestamp {shown(value)} has no time zone")
    return microseconds(_to_utc(value))


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _wrong(value, FieldType.BYTES)
    return value


def _real(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _wrong(value, FieldType.REAL)
    try:
        real = float(value)
    except OverflowError:
        real = float("nan")
    # SQLite stores NaN as NULL, which would read back as "missing".
    if isnan(real):
        raise InvalidInput(f"{shown(value)} is not a number that a declared real can contain")
    if real != value:
        raise InvalidInput(f"{shown(value)} has no exact floating-point representation")
    return real


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; a text decoded with surrogateescape may not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(value: object, kind: FieldType) -> InvalidInput:
    actual = _NAMES.get(type(value), f"of type {type(value).__name__}")
    return InvalidInput(f"{shown(value)} is {actual}, the field is declared {kind}")


_NAMES = {int: "an integer", float: "a real", str: "a text", bool: "a boolean", bytes: "bytes", datetime: "a timestamp"}


_CANONICAL: dict[FieldType, Callable[[Any], int | float | str | bytes]] = {
    FieldType.INTEGER: _integer,
    FieldType.REAL: _real,
    FieldType.TEXT: _text,
    FieldType.BOOLEAN: _boolean,
    FieldType.TIMESTAMP: _timestamp,
    FieldType.BYTES: _bytes,
    FieldType.ITEM: _item,
}
