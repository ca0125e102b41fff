"""Several datasets as one, for reading: each is opened when it is needed, and the data are merged into one order.

    merged.query ──┬── 2024: its data in order ──┐
                   ├── 2025: its data in order ──┼── heapq.merge ── data, each with the path of its dataset
                   └── 2026: its data in order ──┘

A query first looks at the span of time of each dataset, one after the other. A dataset whose span `match` excludes is
not read. The others are opened when the order reaches their span, and closed after their last datum. Up to a number of
them, which depends on how many files the process may open, stay open for one snapshot each. Where the spans of more
overlap, the rest are read some data at a time, and opened again for the next ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.groups import check as check_groups
from ondisk.dataset.groups import joined as joined_groups
from ondisk.dataset.groups import kinds_of, parts_of
from ondisk.dataset.layout import open_directory, read_config
from ondisk.dataset.merged_paths import paths_of
from ondisk.dataset.merged_streams import Candidate, Kind, merged, most_open
from ondisk.dataset.query import Query, Stored, data, described, joined_payloads, stored
from ondisk.dataset.queryable import Queryable
from ondisk.dataset.read import check_limit
from ondisk.dataset.summaries import FieldCounts, Summary, counted_fields, joined
from ondisk.datum import Datum, FieldType
from ondisk.errors import InvalidInput, LimitExceeded, MatchError, OndiskError, StateError, shown
from ondisk.index import segment_rows
from ondisk.index.field_values import FieldSummary
from ondisk.index.groups import By, Group, Part
from ondisk.matcher import reftime_interval
from ondisk.matcher.fields import Fields
from ondisk.matcher.sort import Sort, parse_sort
from ondisk.step import ALWAYS, NOTHING, Interval

if TYPE_CHECKING:
    from ondisk.tables.arrow_output import Columns

_T = TypeVar("_T")
_ORDER = "reftime"
_FILES = 4  # of segments, of each dataset: it is read in order of time, so most need one


class Merged(Queryable):
    """Several datasets that are read as one. No file is open unless a query runs.

    Its methods are those of `Dataset`. Data of one reftime are in the order of the datasets. `Datum.dataset` is the
    path of the dataset that a datum is from, and `Datum.location` is its location there; a table has the column
    `dataset`. Each dataset must declare the fields that a match expression, an order or a group names; MatchError names
    the one that does not. Otherwise, data of a dataset that does not declare a field lack it. Each dataset is read from
    one snapshot, which begins when the order reaches the span of its data.

    Threads may share it; a forked child must open its own.

    Raises:
        LimitExceeded: by a query whose `sort` does not begin with reftime, if more datasets match than can be open at
            once.
        StateError: the index of a dataset was lost or exchanged after the query began; or the spans of more datasets
            overlap than can be open at once, and one of those that were opened again was changed meanwhile. Raised
            while iterating.
        InvalidInput, MatchError: two datasets declare a field with different types, and a table has it, or it is
            counted or sorted by.

    Cost: opens each dataset to look at its span of time. Memory does not grow with the data, except with those of one
        reftime in datasets that are not kept open; that of summaries grows with the number of values or groups.

    Attributes:
        paths: of the datasets, in the order in which they were given: `Datum.dataset` is one of them.
        configs: path → what its `dataset.toml` says.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = (*paths,)
        self.configs = {path: _config_of(path) for path in self.paths}
        self._running: set[Dataset] = set()
        self._closed = False

    @classmethod
    def open(cls, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Merged:
        """Return several datasets as one; see `ondisk.merged`."""
        return cls(paths_of(paths))

    def close(self) -> None:
        """Close files and connections. A running query ends with an error."""
        self._closed = True
        for dataset in [*self._running]:
            dataset.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Merged, (self.paths,)

    def __repr__(self) -> str:
        return f"Merged({list(self.paths)!r})"

    @property
    def fields(self) -> Fields:
        """The fields that at least one dataset declares, without those that two declare with different types.

        For conditions: one on a field that a dataset does not declare raises MatchError in a query, which names it.
        """
        differing = differing_types(self.configs)
        declared = {name: kind for config in self.configs.values() for name, kind in config.fields.items()}
        return Fields({name: kind for name, kind in declared.items() if name not in differing})

    @property
    def needs_check(self) -> bool:
        """Whether the index of a dataset may not know all data: it was lost, or the sentinel exists."""
        return any(dataset.needs_check for dataset in self._each())

    def doubts(self, *, offline: bool = True) -> list[str]:
        """Return why answers may lack data, of all datasets; see `Dataset.doubts`."""
        return [each for dataset in self._each() for each in dataset.doubts(offline=offline)]

    def _data(self, query: Query, *, with_data: bool) -> Generator[Datum, None, None]:
        def read(name: str, dataset: Dataset, query: Query) -> Generator[Datum, None, None]:
            access = dataset._access
            found = data(access.current(), _naming(query, name), with_data=with_data)
            with contextlib.closing(found):
                for datum in found:
                    yield datum.read_from(name)

        return self._found(query, Kind(read, _same, _size if with_data else _none))

    def _payloads(self, query: Query) -> Generator[bytes, None, None]:
        def read(name: str, dataset: Dataset, query: Query) -> Generator[Stored, None, None]:
            return stored(dataset._access.current(), _naming(query, name))

        return joined_payloads(self._found(query, Kind(read, described, lambda each: len(each[3]))))

    def _table(self, query: Query, columns: Columns) -> None:
        return None

    def _count(self, query: Query) -> int:
        return sum(dataset.count(query.match, **query.equal) for dataset in self._matching(query))

    def _summary(self, query: Query, fields: Sequence[str] | None, values: int | None) -> Summary:
        known = self.fields
        self._check_types(fields or ())
        names = counted_fields(fields, known)
        parts: list[Summary] = []
        counted = {name: FieldCounts() for name in names}
        for dataset in self._matching(query):
            declared = [name for name in names if name == _ORDER or name in dataset.config.fields]
            found = dataset.summary(query.match, fields=declared, values=None)
            for name, each in counted.items():
                each.add(found.fields.get(name, FieldSummary([], missing=found.count)))
            parts.append(found._replace(fields={}))
        return joined(parts, {name: each.summary(values) for name, each in counted.items()}, None)

    def _groups(self, query: Query, by: str, min_max: str | None, tz: str | None) -> Generator[Group, None, None]:
        self._check_types(name.strip() for each in (by, min_max) if isinstance(each, str) for name in each.split(","))
        for name, config in self.configs.items():
            try:
                check_groups(by, min_max, tz, Fields(config.fields))
            except MatchError as error:
                raise named(error, name) from None
        return self._each_group(query, self._candidates(query), check_groups(by, min_max, tz, self.fields))

    def _each_group(self, query: Query, candidates: list[Candidate], by: By) -> Generator[Group, None, None]:
        found: list[Part] = []
        for candidate in candidates:
            with self._opened_again(candidate) as dataset:
                access = dataset._access
                found = [*joined_groups([found, parts_of(access.current(), query, by)])]
        kinds = kinds_of({name: self.fields[name].kind for name in self.fields}, by)
        yield from (each.group(by, *kinds) for each in found)

    def _each(self) -> Iterator[Dataset]:
        """Open each dataset, one after the other."""
        for path in self.paths:
            with self._opened(path) as dataset:
                yield dataset

    def _matching(self, query: Query) -> Iterator[Dataset]:
        """Open each dataset that `match` does not exclude, one after the other."""
        for each in self._candidates(query):
            with self._opened_again(each) as dataset:
                yield dataset

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[Dataset]:
        if self._closed:
            raise InvalidInput("the datasets were closed", hint="Open them again.")
        try:
            with Dataset.open(name, read_only=True) as dataset:
                dataset._access.current().reader.keep_open(_FILES)
                self._running.add(dataset)
                try:
                    yield dataset
                finally:
                    self._running.discard(dataset)
        except OndiskError as error:
            raise named(error, name)  # noqa: B904

    @contextlib.contextmanager
    def _opened_again(self, candidate: Candidate) -> Iterator[Dataset]:
        """Open a dataset whose span was looked at; raise StateError if its index was exchanged: times may differ."""
        with self._opened(candidate.name) as dataset:
            if candidate.uuid is not None and candidate.uuid != _uuid(dataset._access):
                message = f"{candidate.name}: its index was lost or exchanged while the datasets were read"
                raise StateError(message, hint="Query again.")
            yield dataset

    def _candidates(self, query: Query) -> list[Candidate]:
        """Return the datasets that may have matching data."""
        found = []
        for name in self.paths:
            with self._opened(name) as dataset:
                index, uuid = dataset._access.current().index, _uuid(dataset._access)
                query.check(index)
                times = reftime_interval(query.tree(index)) & _span(dataset._access)
                if not times.is_empty:
                    found.append(Candidate(name, times, uuid))
        return found

    def _check_types(self, names: Iterable[str]) -> None:
        """Raise MatchError if two datasets declare one of some fields with different types."""
        differing = differing_types(self.configs)
        for name in names:
            if name in differing:
                hint = "Count another field, or the datasets one by one."
                raise MatchError(f"{name} is {differing[name]}, so its values cannot be counted together", hint=hint)

    def _order(self, text: str) -> Sort:
        """Return the order of a query; raise MatchError if it is not valid for a dataset."""
        orders = []
        for name, config in self.configs.items():
            try:
                orders.append(parse_sort(text, config.fields))
            except MatchError as error:
                raise named(error, name) from None
        differing = differing_types(self.configs)
        for key in orders[0].keys:
            if key.field in differing:
                message = f"data cannot be sorted by {key.field}: it is {differing[key.field]}"
                raise MatchError(message, hint="Sort by another field, or query the datasets one by one.")
        return orders[0]

    def _found(self, query: Query, kind: Kind[_T]) -> Generator[_T, None, None]:
        """Check a query, and return what it finds."""
        order = self._order(_ORDER if query.sort is None else query.sort)
        check_limit(query.limit)
        candidates, most = self._candidates(query), most_open()
        if len(candidates) > most and not order.is_by_time:
            message = f"{len(candidates)} datasets cannot be sorted by {shown(query.sort)} at once, at most {most} can"
            hint = "Sort by reftime first, or raise the limit of open files: ulimit -n."
            raise LimitExceeded(message, hint=hint)
        return merged(candidates, self._opened_again, query._replace(sort=query.sort or _ORDER), order, kind)


def _naming(query: Query, name: str) -> Query:
    """Return a query of one of several datasets, which names it with the data that it leaves out."""
    return query if query.on_damage is None else query._replace(on_damage=partial(query.on_damage, dataset=name))


def _uuid(access: Access) -> str | None:
    """Return the UUID of the index; None if it may not know all data."""
    return None if access.needs_check() else access.current().index.state()[0]


def _span(access: Access) -> Interval:
    """Return an interval with the reftimes of all data of a dataset; all of time if parts of it cannot be looked at."""
    if access.needs_check():
        return ALWAYS
    with access.current().index.snapshot() as snapshot:
        return segment_rows.span(snapshot) or NOTHING


def differing_types(configs: Mapping[str, DatasetConfig]) -> dict[str, str]:
    """Return the fields that two datasets declare with different types: name → integer in a and text in b."""
    first: dict[str, tuple[FieldType, str]] = {}
    found: dict[str, str] = {}
    for path, config in configs.items():
        for name, kind in config.fields.items():
            before, other = first.setdefault(name, (kind, path))
            if kind is not before:
                found.setdefault(name, f"{before} in {other} and {kind} in {path}")
    return found


def _config_of(path: str) -> DatasetConfig:
    with open_directory(path) as directory:
        return read_config(directory)


def named(error: OndiskError, name: str) -> OndiskError:
    """Return an error whose message names the dataset that it is about."""
    if str(Path(name).absolute()) not in error.message and not error.message.startswith(name):
        error.args = (f"{name}: {error.message}", *error.args[1:])
    return error


def _same(datum: Datum) -> Datum:
    return datum


def _size(datum: Datum) -> int:
    return 0 if datum.location is None else datum.location.size


def _none(_: Datum) -> int:
    return 0
