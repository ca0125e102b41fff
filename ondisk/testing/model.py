"""A dataset as a list of rows: what appending, asking, deleting and mending must give, in the plainest Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from math import isnan
from typing import Any, Literal, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, FieldType, Value, canonical, from_microseconds, microseconds, restored
from ondisk.errors import InvalidInput
from ondisk.json_shapes import format_time
from ondisk.maintenance.states import State
from ondisk.matcher import Expression, Fields, matches, parse, parse_sort

Status: TypeAlias = Literal["imported", "duplicate", "replaced", "refused"]

_CUT = {"year": 4, "month": 7, "day": 10, "hour": 13, "minute": 16}  # characters of an ISO time


@dataclass(frozen=True, slots=True)
class Row:
    """One datum of the model.

    Attributes:
        reftime: microseconds since 1970.
        fields: the declared fields it has, as stored.
        metadata: all its metadata, declared or not, as they come back.
        data: as `Datum.data`, as it comes back.
    """

    reftime: int
    fields: Mapping[str, Any]
    metadata: Mapping[str, Value]
    data: Any

    def datum(self) -> Datum:
        return Datum(from_microseconds(self.reftime), self.metadata, self.data)

    def value_of(self, field: str) -> Any:
        return self.reftime if field == "reftime" else self.fields.get(field)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What `Dataset.summary` must say, but for the size, which depends on how a format writes."""

    count: int
    begin: int | None
    end: int | None
    fields: dict[str, list[tuple[Value | None, int]]]


class Model:
    """What a dataset of a configuration holds.

    Attributes:
        rows: the data in the order of appending.
        laid: segment → all that stands in its file, in order; what was deleted or replaced, too, until a repack.
        lost: the index was lost, or is not trusted, so that what else stands in the files may be data.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        self.rows: list[Row] = []
        self.laid: dict[str, list[Row]] = {}
        self.lost = False

    def append(self, data: Iterable[Datum], batch_size: int = 1000) -> list[Status]:
        """Append data of vm2, jsonl, seg or blob; tells what became of each."""
        statuses: list[Status] = []
        given = iter(data)
        while batch := list(islice(given, batch_size)):
            before = self._living()
            statuses += [self._append(datum) for datum in batch]
            for row in self.rows:  # what is replaced in its own batch is never written
                if id(row) not in before:
                    self.laid.setdefault(self.segment_of(row), []).append(row)
        return statuses

    def query(
        self, match: str | Expression | None = None, sort: str | None = None, limit: int | None = None
    ) -> list[Row]:
        """Give what matches, in order."""
        rows = [row for row in self.rows if self._matches(row, match)]
        rows.sort(key=lambda row: row.reftime)  # stable: then by appending
        if sort is not None:
            order = parse_sort(sort, self.config.fields)
            for key in reversed(order.keys):
                rows.sort(key=_order_of(key.field), reverse=key.descending)
            if order.interval is not None:
                length = _CUT[order.interval]
                rows.sort(key=lambda row: from_microseconds(row.reftime).isoformat()[:length])
        return rows[:limit]

    def delete(self, match: str | Expression) -> int:
        """Delete what matches; returns how many."""
        return self.remove([row for row in self.rows if self._matches(row, match)])

    def remove(self, rows: list[Row]) -> int:
        """Delete these rows; returns how many."""
        gone = {id(row) for row in rows}
        self.rows = [row for row in self.rows if id(row) not in gone]
        return len(gone)

    def segment_of(self, row: Row) -> str:
        return f"{self.config.step.stem(row.reftime)}.{self.config.format}"

    def states(self) -> dict[str, State]:
        """Say in which state each segment is."""
        living, states = self._living(), {}
        for name, laid in self.laid.items():
            here = [row for row in laid if id(row) in living]
            place = {id(row): at for at, row in enumerate(self.rows)}
            ordered = here == sorted(here, key=lambda row: (row.reftime, place[id(row)]))
            if len(here) == len(laid) and (ordered or self.config.format == "blob"):
                states[name] = State.OK
            elif self.lost:
                states[name] = State.UNALIGNED
            else:
                states[name] = State.DIRTY if here else State.DELETED
        return states

    def distrust(self, *, lost: bool) -> None:
        """Trust the index no longer; where it is lost, it knows no data any more."""
        self.lost = True
        if lost:
            self.rows.clear()

    def fix(self) -> None:
        """Know all data in the files again, unless a fix is not needed; of equal ones the last of a segment."""
        if not self.lost:
            return
        for name in sorted(self.laid):
            place = {id(row): at for at, row in enumerate(self.laid[name])}
            for row in self.laid[name]:
                if id(row) in self._living():
                    continue
                other = self._duplicate_of(row)
                if other is None or place.get(id(other), len(place)) < place[id(row)]:
                    self.rows = [*(each for each in self.rows if each is not other), row]
        self.lost = False

    def repack(self) -> None:
        """Leave in the files what is known, in the order of a query; files of blobs are never renumbered."""
        if self.config.format == "blob":
            living = self._living()
            kept = {name: [row for row in laid if id(row) in living] for name, laid in self.laid.items()}
            self.laid = {name: laid for name, laid in kept.items() if laid}
            return
        self.laid.clear()
        for row in self.query():
            self.laid.setdefault(self.segment_of(row), []).append(row)

    def drop(self, name: str) -> None:
        """Forget a segment whose file has gone."""
        self.remove([row for row in self.rows if self.segment_of(row) == name])
        del self.laid[name]

    def _living(self) -> set[int]:
        return {id(row) for row in self.rows}

    def summary(self, match: str | Expression | None = None) -> ModelSummary:
        """Count what matches."""
        rows = self.query(match)
        fields = {}
        for name, kind in self.config.fields.items():
            counts = Counter(row.fields.get(name) for row in rows)
            fields[name] = [
                (None if value is None else restored(value, kind), counts[value])
                for value in sorted(counts, key=_missing_first)
            ]
        return ModelSummary(len(rows), rows[0].reftime if rows else None, rows[-1].reftime if rows else None, fields)

    def _append(self, datum: Datum) -> Status:
        metadata = self._metadata(datum)
        if metadata is None:
            return "refused"
        declared = self.config.fields
        fields = {name: canonical(metadata[name], kind) for name, kind in declared.items() if name in metadata}
        new = Row(microseconds(datum.reftime), fields, metadata, self._data(datum))
        old = self._duplicate_of(new)
        if old is None:
            self.rows.append(new)
            return "imported"
        if self.config.replace == "no" or not self._is_newer(new, old):
            return "duplicate"
        self.rows = [row for row in self.rows if row is not old]
        self.rows.append(new)
        return "replaced"

    def _metadata(self, datum: Datum) -> dict[str, Value] | None:
        """Give all metadata of a datum; None where its format cannot carry them, or its data."""
        if self.config.format == "vm2":
            _, station, variable, *_ = datum.data.split(b",")
            said: dict[str, Value] = {"area": f"VM2,{int(station)}", "product": f"VM2,{int(variable)}"}
            return said if datum.metadata.items() <= said.items() else None
        if self.config.format in ("seg", "blob"):
            try:
                return _metadata_in_cbor(datum, self.config)
            except InvalidInput:
                return None
        if not datum.metadata.keys() <= self.config.fields.keys():
            return None
        return dict(datum.metadata)

    def _data(self, datum: Datum) -> Any:
        """Give the data as they come back."""
        if datum.data is None:
            return {}
        return _as_in_seg(datum.data, self.config.max_depth) if self.config.format == "seg" else datum.data

    def _duplicate_of(self, new: Row) -> Row | None:
        unique = self.config.unique
        key = [new.value_of(name) for name in unique]
        return next((row for row in self.rows if unique and [row.value_of(name) for name in unique] == key), None)

    def _is_newer(self, new: Row, old: Row) -> bool:
        if self.config.replace == "yes":
            return True
        assert self.config.version_field is not None
        version, before = new.value_of(self.config.version_field), old.value_of(self.config.version_field)
        return version is not None and (before is None or bool(version >= before))

    def _matches(self, row: Row, match: str | Expression | None) -> bool:
        if match is None:
            return True
        tree = parse(match, self.config.fields) if isinstance(match, str) else match
        return matches(tree, row.value_of)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def fields(self) -> Fields:
        """The fields to write conditions with, as `Dataset.fields`."""
        return Fields(self.config.fields)


def same(one: Any, other: Any) -> bool:
    """Compare values of JSON or CBOR as `==` does, but types must be equal, and NaN equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isnan(one):
        return isnan(other)
    return bool(one == other)


def _metadata_in_cbor(datum: Datum, config: DatasetConfig) -> dict[str, Any]:
    """Give metadata as they come back from seg and blob.

    Raises:
        InvalidInput: the datum has no form there.
    """
    if config.format == "blob":
        if not isinstance(datum.data, bytes):
            raise InvalidInput("its data are no bytes")
    elif not -(2**63) <= 1000 * microseconds(datum.reftime) < 2**63:
        raise InvalidInput("its nanoseconds do not fit into 64 bits")
    elif datum.data is not None and not isinstance(datum.data, bytes | Mapping):
        raise InvalidInput("its data are neither a mapping nor bytes")
    _as_in_seg(datum.data, config.max_depth)
    said: dict[str, Any] = {
        key: format_time(int(canonical(value, FieldType.TIMESTAMP))) if isinstance(value, datetime) else value
        for key, value in datum.metadata.items()
    }
    metadata: dict[str, Any] = _as_in_seg(said, config.max_depth)
    for name, kind in config.fields.items():
        if metadata.pop(name, None) is not None:
            metadata[name] = restored(canonical(datum.metadata[name], kind), kind)
    return metadata


def _as_in_seg(value: Any, depth: int) -> Any:
    """Give a value as it comes back from seg: what Beats can read, nested no deeper than `depth`.

    Raises:
        InvalidInput: it has no form there.
    """
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise InvalidInput("nested too deep")
        if not isinstance(value, Mapping):
            return [_as_in_seg(item, depth - 1) for item in value]
        if any(type(key) is not str or not key for key in value):
            raise InvalidInput("a key is no text, or empty")
        return {_as_in_seg(key, 0): _as_in_seg(item, depth - 1) for key, item in value.items()}
    if isinstance(value, str) and not _is_of_bytes(value):
        raise InvalidInput("no text")
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise InvalidInput("more than 64 bits")
    if value is not None and type(value) not in (str, int, float, bool, bytes):
        raise InvalidInput("of no known type")
    return value


def _is_of_bytes(text: str) -> bool:
    """Tell whether a text is what decoding some bytes gives, those that are no UTF-8 escaped."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="surrogateescape") == text
    except UnicodeEncodeError:
        return False


def _order_of(field: str) -> Callable[[Row], tuple[bool, Any]]:
    return lambda row: _missing_first(row.value_of(field))


def _missing_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, 0 if value is None else value)
