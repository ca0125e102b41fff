"""A dataset as a list of rows, in simple Python: the expected results of append, query, delete and maintenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from math import isnan
from typing import Any, Literal, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import METADATA, Datum, FieldType, Value, canonical, from_microseconds, microseconds, restored
from ondisk.errors import InvalidInput
from ondisk.index.field_values import FieldSummary
from ondisk.json_values import format_time
from ondisk.maintenance.states import State
from ondisk.matcher import Expression, matches
from ondisk.matcher.fields import Fields
from ondisk.matcher.parser import parse
from ondisk.matcher.sort import parse_sort
from ondisk.step import LAST, in_order, inner_of, place_of

Status: TypeAlias = Literal["imported", "duplicate", "replaced", "refused"]

MAINTAINED = "", LAST
"""The places in which a repack rewrites segments: the dataset's own folders, and the archive that it fills."""

_CUT = {"year": 4, "month": 7, "day": 10, "hour": 13, "minute": 16}  # characters of an ISO time


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One datum of the model.

    Attributes:
        reftime: microseconds since 1970.
        fields: its declared fields, as stored.
        metadata: all its metadata, declared or not, as a query returns them.
        data: `Datum.data`, as a query returns it.
        given: the datum that was appended.
        place: of its segment: `.archive/NAME/`, or empty for the dataset's own folders.
    """

    reftime: int
    fields: Mapping[str, Any]
    metadata: Mapping[str, Value]
    data: Any
    given: Datum
    place: str = ""

    def datum(self) -> Datum:
        return Datum(from_microseconds(self.reftime), self.metadata, self.data)

    def value_of(self, field: str) -> Any:
        if field.startswith(METADATA):
            return self.metadata.get(field.removeprefix(METADATA))
        return self.reftime if field == "reftime" else self.fields.get(field)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """The expected `Dataset.summary`, without the size, which depends on how a format writes."""

    count: int
    begin: int | None
    end: int | None
    fields: dict[str, FieldSummary]


class Model:
    """The expected content of a dataset with a configuration.

    Attributes:
        rows: the data in the order of appending.
        laid: segment → all data in its file, in order, including deleted and replaced data until a repack.
        lost: the index was lost, or is not trusted: other bytes in the files may be data.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        self.rows: list[ModelRow] = []
        self.laid: dict[str, list[ModelRow]] = {}
        self.lost = False

    def append(self, data: Iterable[Datum], batch_size: int = 1000) -> list[Status]:
        """Append data of vm2, jsonl, seg or blob, and return the status of each."""
        statuses: list[Status] = []
        given = iter(data)
        while batch := list(islice(given, batch_size)):
            before = self._living()
            statuses += [self._append(datum) for datum in batch]
            for row in self.rows:  # data replaced in the same batch are never written
                if id(row) not in before:
                    self.laid.setdefault(self.segment_of(row), []).append(row)
        return statuses

    def query(
        self, match: str | Expression | None = None, sort: str | None = None, limit: int | None = None
    ) -> list[ModelRow]:
        """Return the rows that match, in order."""
        rows = [row for row in self.rows if self._matches(row, match)]
        # Every sort is stable; equal rows stay in the order of appending.
        rows.sort(key=lambda row: row.reftime)
        if sort is not None:
            order = parse_sort(sort, self.config.fields)
            for key in reversed(order.keys):
                rows.sort(key=_order_of(key.field), reverse=key.descending)
            if order.interval is not None:
                length = _CUT[order.interval]
                rows.sort(key=lambda row: from_microseconds(row.reftime).isoformat()[:length])
        return rows[:limit]

    def delete(self, match: str | Expression) -> int:
        """Delete the rows that match, and return their number."""
        return self.remove([row for row in self.rows if self._matches(row, match)])

    def remove(self, rows: list[ModelRow]) -> int:
        """Delete these rows, and return their number."""
        gone = {id(row) for row in rows}
        self.rows = [row for row in self.rows if id(row) not in gone]
        return len(gone)

    def segment_of(self, row: ModelRow) -> str:
        return f"{row.place}{self.config.step.stem(row.reftime)}.{self.config.format}"

    def states(self) -> dict[str, State]:
        """Return the expected state of each segment."""
        living, states = self._living(), {}
        for name, laid in self.laid.items():
            here = [row for row in laid if id(row) in living]
            place = {id(row): at for at, row in enumerate(self.rows)}
            order = [(row.reftime, place[id(row)]) for row in here]
            if len(here) == len(laid) and order == sorted(order):
                states[name] = State.OK
            elif self.lost:
                states[name] = State.UNALIGNED
            elif place_of(name) not in MAINTAINED:
                states[name] = State.OK
            else:
                states[name] = State.DIRTY if here else State.DELETED
        return states

    def distrust(self, *, lost: bool) -> None:
        """Stop trusting the index; if it is lost, its rows are unknown until a fix."""
        self.lost = True
        if lost:
            self.rows = []

    def repeats_archived(self) -> bool:
        """Return whether files of several places have data that count once: deleted ones of `unique`, or equal ones.

        If the index is lost, a fix takes some of them for copies made by hand, which no repack removes.
        """
        places: dict[tuple[Any, ...], set[str]] = {}
        for name, laid in self.laid.items():
            for row in laid:
                places.setdefault(self._key(row) or _content(row), set()).add(place_of(name))
        return any(len(each) > 1 for each in places.values())

    def repeats_lost(self, datum: Datum) -> bool:
        """Return whether an archived file that a lost index knew has an equal datum.

        Without `unique`, a fix may count one; with it, the file may be a copy then, which no repack removes.
        """
        new = self._row(datum)
        if not self.lost or new is None:
            return False
        return any(_content(row) == _content(new) for laid in self.laid.values() for row in laid if row.place)

    def fix(self) -> None:
        """Add all data in the files if the index was lost or not trusted; of equal data the last in a segment wins."""
        if not self.lost:
            return
        for name in sorted(self.laid, key=in_order):
            place = {id(row): at for at, row in enumerate(self.laid[name])}
            for row in self.laid[name]:
                if id(row) in self._living():
                    continue
                other = self._duplicate_of(row)
                if other is None or place.get(id(other), len(place)) < place[id(row)]:
                    self.rows = [*(each for each in self.rows if each is not other), row]
        self.lost = False

    def repack(self) -> None:
        """Keep only known data in the files, in the order of a query; not in other places."""
        self.laid = {name: laid for name, laid in self.laid.items() if place_of(name) not in MAINTAINED}
        for row in self.query():
            if row.place in MAINTAINED:
                self.laid.setdefault(self.segment_of(row), []).append(row)

    def archive(self, name: str) -> None:
        """Move a segment of the dataset itself to the archive; merge it with a segment of the same name there."""
        self._move(name, LAST)

    def unarchive(self, name: str) -> None:
        """Move an archived segment back."""
        self._move(name, "")

    def _move(self, name: str, place: str) -> None:
        to = place + inner_of(name)
        moved, there = self.laid.pop(name), self.laid.get(to)
        if self.config.format == "blob":  # its files get numbers above those that are there
            all_moved = {id(row) for row in moved}
            in_order = sorted((row for row in self.rows if id(row) in all_moved), key=lambda row: row.reftime)
            self.laid[to] = [*(there or ()), *in_order]
        elif there is None:
            self.laid[to] = moved
        else:  # a merge rewrites the file
            both = {id(row) for row in (*moved, *there)}
            self.laid[to] = sorted((row for row in self.rows if id(row) in both), key=lambda row: row.reftime)
        gone = {id(row) for row in moved}
        self._exchange(lambda row: replace(row, place=place) if id(row) in gone else row)

    def rename_archive(self, name: str) -> None:
        """Rename the archive that repack fills; repack does not fill it any more."""
        new = f".archive/{name}/"
        self._exchange(lambda row: replace(row, place=new) if row.place == LAST else row)
        self.laid = {
            new + inner_of(segment) if place_of(segment) == LAST else segment: laid
            for segment, laid in self.laid.items()
        }

    def age(self, archive_before: int | None, delete_before: int | None) -> None:
        """Delete or archive segments that end at or before these times, as a repack does; call it after `repack`.

        The archive is repacked last, with what was moved into it.
        """
        there = [name for name in self.laid if place_of(name) in MAINTAINED]
        for name in sorted(there, key=lambda name: not name.startswith(LAST)):
            interval = self.config.step.interval(inner_of(name).rpartition(".")[0])
            assert interval is not None
            if delete_before is not None and interval.end <= delete_before:
                self.drop(name)
            elif archive_before is not None and interval.end <= archive_before and not name.startswith(LAST):
                self.archive(name)
        self.repack()

    def migrate(self, config: DatasetConfig) -> None:
        """Declare other fields or other indexes."""
        self.config = config
        self._exchange(lambda row: self._row(row.given, row.place) or row)

    def _exchange(self, other: Callable[[ModelRow], ModelRow]) -> None:
        """Replace every row."""
        known: dict[int, ModelRow] = {}

        def exchanged(row: ModelRow) -> ModelRow:
            if id(row) not in known:
                known[id(row)] = other(row)
            return known[id(row)]

        self.rows, self.laid = (
            [exchanged(row) for row in self.rows],
            {name: [exchanged(row) for row in laid] for name, laid in self.laid.items()},
        )

    def drop(self, name: str) -> None:
        """Remove a segment and its data."""
        self.remove([row for row in self.rows if self.segment_of(row) == name])
        del self.laid[name]

    def _living(self) -> set[int]:
        return {id(row) for row in self.rows}

    def summary(self, match: str | Expression | None = None, values: int | None = None) -> ModelSummary:
        """Return the summary of the rows that match, with up to `values` values of each field."""
        rows = self.query(match)
        fields = {}
        for name, kind in self.config.fields.items():
            counts = Counter(row.fields[name] for row in rows if name in row.fields)
            ordered = [(restored(value, kind), counts[value]) for value in sorted(counts)]
            ends = kind in (FieldType.INTEGER, FieldType.REAL, FieldType.TIMESTAMP) and bool(ordered)
            fields[name] = FieldSummary(
                sorted(ordered, key=lambda each: -each[1])[:values],
                len(ordered),
                len(rows) - counts.total(),
                ordered[0][0] if ends else None,
                ordered[-1][0] if ends else None,
            )
        times = [row.reftime for row in rows]
        return ModelSummary(len(rows), min(times, default=None), max(times, default=None), fields)

    def _append(self, datum: Datum) -> Status:
        new = self._row(datum)
        if new is None:
            return "refused"
        old = self._duplicate_of(new)
        if old is None:
            self.rows.append(new)
            return "imported"
        if self.config.replace == "no" or not self._is_newer(new, old):
            return "duplicate"
        self.rows = [row for row in self.rows if row is not old]
        self.rows.append(new)
        return "replaced"

    def _row(self, datum: Datum, place: str = "") -> ModelRow | None:
        """Return the row of a datum; None if it is refused."""
        metadata = self._metadata(datum)
        if metadata is None:
            return None
        declared = self.config.fields
        fields = {name: canonical(metadata[name], kind) for name, kind in declared.items() if name in metadata}
        return ModelRow(microseconds(datum.reftime), fields, metadata, self._data(datum), datum, place)

    def _metadata(self, datum: Datum) -> dict[str, Value] | None:
        """Return all metadata of a datum; None if its format cannot store them or its data."""
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
        """Return the data as a query returns them."""
        if datum.data is None:
            return {}
        return _as_in_seg(datum.data, self.config.max_depth) if self.config.format == "seg" else datum.data

    def _duplicate_of(self, new: ModelRow) -> ModelRow | None:
        key = self._key(new)
        return next((row for row in self.rows if key and self._key(row) == key), None)

    def _key(self, row: ModelRow) -> tuple[Any, ...]:
        return tuple(row.value_of(name) for name in self.config.unique)

    def _is_newer(self, new: ModelRow, old: ModelRow) -> bool:
        if self.config.replace == "yes":
            return True
        assert self.config.version_field is not None
        version, before = new.value_of(self.config.version_field), old.value_of(self.config.version_field)
        return version is not None and (before is None or bool(version >= before))

    def _matches(self, row: ModelRow, match: str | Expression | None) -> bool:
        if match is None:
            return True
        tree = parse(match, self.config.fields) if isinstance(match, str) else match
        return matches(tree, row.value_of)

    def __iter__(self) -> Iterator[ModelRow]:
        return iter(self.rows)

    @property
    def fields(self) -> Fields:
        """The fields for conditions, as `Dataset.fields`."""
        return Fields(self.config.fields)


def same(one: Any, other: Any) -> bool:
    """Return whether values of JSON or CBOR are equal, including their types; NaN equals itself."""
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
    """Return metadata as seg and blob return them.

    Raises:
        InvalidInput: they cannot store the datum.
    """
    if config.format == "blob":
        if not isinstance(datum.data, bytes):
            raise InvalidInput("its data are not bytes")
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
    """Return a value as seg returns it.

    Raises:
        InvalidInput: Beats cannot read it, or it is nested deeper than `depth`.
    """
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise InvalidInput("nested too deep")
        if not isinstance(value, Mapping):
            return [_as_in_seg(item, depth - 1) for item in value]
        if any(type(key) is not str or not key for key in value):
            raise InvalidInput("a key is not text, or empty")
        return {_as_in_seg(key, 0): _as_in_seg(item, depth - 1) for key, item in value.items()}
    if isinstance(value, str) and not _is_of_bytes(value):
        raise InvalidInput("not text")
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise InvalidInput("more than 64 bits")
    if value is not None and type(value) not in (str, int, float, bool, bytes):
        raise InvalidInput("of an unknown type")
    return value


def _is_of_bytes(text: str) -> bool:
    """Return whether a text can result from decoding bytes with `surrogateescape`."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="surrogateescape") == text
    except UnicodeEncodeError:
        return False


def _content(row: ModelRow) -> tuple[Any, ...]:
    return row.reftime, repr(row.metadata), repr(row.data)


def _order_of(field: str) -> Callable[[ModelRow], tuple[bool, Any]]:
    return lambda row: _missing_first(row.value_of(field))


def _missing_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, 0 if value is None else value)
