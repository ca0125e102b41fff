"""Several datasets as one, for reading: each is opened when it is needed, and the data are merged into one order.

    merged.query ──┬── 2024: its data in order ──┐
                   ├── 2025: its data in order ──┼── heapq.merge ── data, each with the path of its dataset
                   └── 2026: its data in order ──┘

A query first looks at the span of time of each dataset, one after the other. A dataset whose span `match` excludes is
not read. The others are opened when the order reaches their span, and closed after their last datum. So as many are
open at once as have data of one time.
"""

from __future__ import annotations

import contextlib
import glob
import heapq
import os
import resource
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from operator import itemgetter, or_
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.auxiliary_files import CONFIG, check_not_in_place, no_dataset, open_directory, read_config
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.groups import check as check_groups
from ondisk.dataset.groups import joined as joined_groups
from ondisk.dataset.groups import parts_of
from ondisk.dataset.place_checks import unknown_in
from ondisk.dataset.query import Query, Stored, data, described, joined_payloads, stored
from ondisk.dataset.queryable import Queryable
from ondisk.dataset.read import check_limit
from ondisk.dataset.summaries import FieldCounts, Summary, counted_fields
from ondisk.datum import Datum, FieldType
from ondisk.errors import InvalidInput, LimitExceeded, MatchError, OndiskError, StateError, StorageError, shown
from ondisk.index import INDEX, segment_rows
from ondisk.index.field_values import FieldSummary
from ondisk.index.groups import By, Group, Part
from ondisk.matcher import Everything, reftime_interval
from ondisk.matcher.fields import Fields
from ondisk.matcher.sort import Sort, parse_sort
from ondisk.step import ALWAYS, NOTHING, Interval

_T = TypeVar("_T")
_ORDER = "reftime"
_FILES = 4  # of segments, of each dataset: it is read in order of time, so most need one
_MOST = 256  # datasets that are open at once
_SHARE = 32  # files for each: with many places, it may need 20


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    times: Interval
    uuid: str | None  # of its index when the times were looked at; None if it may not know all data


# Yields what a query finds in a dataset of a name.
_Reader: TypeAlias = Callable[[str, Dataset, Query], Generator[_T, None, None]]


class Merged(Queryable):
    """Several datasets that are read as one. No file is open unless a query runs.

    Its methods are those of `Dataset`. Data of one reftime are in the order of the datasets. `Datum.dataset` is the
    path of the dataset that a datum is from, and `Datum.location` is its location there; a table has the column
    `dataset`. Each dataset must declare the fields that a match expression, an order or a group names; MatchError names
    the one that does not. Otherwise, data of a dataset that does not declare a field lack it. Each dataset is read from
    one snapshot, which begins when the order reaches the span of its data. Threads may share it; a forked child must
    open its own.

    Raises:
        LimitExceeded: by a query of more datasets with data of one time than can be open at once; or of more datasets,
            if `sort` does not begin with reftime.
        StateError: the index of a dataset was lost or exchanged after the query began. While iterating.
        InvalidInput, MatchError: two datasets declare a field, which counts, with different types.

    Cost: opens each dataset to look at its span of time. Memory does not grow with the data; that of summaries grows
        with the number of values or groups. A process that may open too few files raises its own limit (`ulimit -n`).

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

        In a query, a condition on a field that a dataset does not declare raises MatchError, which names the dataset.
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

        return self._found(query, read, lambda datum: datum)

    def _payloads(self, query: Query) -> Generator[bytes, None, None]:
        def read(name: str, dataset: Dataset, query: Query) -> Generator[Stored, None, None]:
            return stored(dataset._access.current(), _naming(query, name))

        return joined_payloads(self._found(query, read, described))

    def _summary(self, query: Query, fields: Sequence[str] | None, values: int | None) -> Summary:
        known = self.fields
        self._check_types(fields or ())
        names = counted_fields(fields, known)
        parts: list[Summary] = []
        counted = {name: FieldCounts() for name in names}
        for dataset in self._matching(query):
            declared = [name for name in names if name == _ORDER or name in dataset.config.fields]
            found = dataset._summary(query, declared, None)
            for name, each in counted.items():
                each.add(found.fields.get(name, FieldSummary([], missing=found.count)))
            parts.append(found)
        return Summary(
            sum(each.count for each in parts),
            sum(each.size for each in parts),
            min((each.begin for each in parts if each.begin is not None), default=None),
            max((each.end for each in parts if each.end is not None), default=None),
            {name: each.summary(values) for name, each in counted.items()},
        )

    def _groups(self, query: Query, by: str, min_max: str | None, tz: str | None) -> Generator[Group, None, None]:
        self._check_types(name.strip() for each in (by, min_max) if isinstance(each, str) for name in each.split(","))
        for name, config in self.configs.items():
            try:
                check_groups(by, min_max, tz, Fields(config.fields))
            except MatchError as error:
                raise named(error, name) from None
        return self._each_group(query, self._candidates(query), check_groups(by, min_max, tz, self.fields))

    def _each_group(self, query: Query, candidates: list[_Candidate], by: By) -> Generator[Group, None, None]:
        found: list[Part] = []
        for candidate in candidates:
            with self._opened_again(candidate) as dataset:
                access = dataset._access
                found = [*joined_groups([found, parts_of(access.current(), query, by)])]
        yield from (each.group(by) for each in found)

    def _each(self) -> Iterator[Dataset]:
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
    def _opened_again(self, candidate: _Candidate) -> Iterator[Dataset]:
        """Open a dataset whose span was looked at; raise StateError if its index was exchanged: times may differ."""
        with self._opened(candidate.name) as dataset:
            if candidate.uuid is not None and candidate.uuid != _uuid(dataset._access):
                message = f"{candidate.name}: its index was lost or exchanged while the datasets were read"
                raise StateError(message, hint="Query again.")
            yield dataset

    def _candidates(self, query: Query) -> list[_Candidate]:
        found = []
        for name in self.paths:
            with self._opened(name) as dataset:
                index, uuid = dataset._access.current().index, _uuid(dataset._access)
                query.check(index)
                times = reftime_interval(query.tree(index)) & _span(dataset._access)
                if not times.is_empty:
                    found.append(_Candidate(name, times, uuid))
        return found

    def _check_types(self, names: Iterable[str]) -> None:
        differing = differing_types(self.configs)
        for name in names:
            if name in differing:
                hint = "Count another field, or the datasets one by one."
                raise MatchError(f"{name} is {differing[name]}, so its values cannot be counted together", hint=hint)

    def _order(self, text: str) -> Sort:
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

    def _found(self, query: Query, read: _Reader[_T], datum_of: Callable[[_T], Datum]) -> Generator[_T, None, None]:
        order = self._order(_ORDER if query.sort is None else query.sort)
        check_limit(query.limit)
        candidates = self._candidates(query)
        _make_room(_most_of_one_time(candidates) if order.is_by_time else len(candidates))
        return self._merged(candidates, query._replace(sort=query.sort or _ORDER), order, read, datum_of)

    def _merged(
        self,
        candidates: Iterable[_Candidate],
        query: Query,
        order: Sort,
        read: _Reader[_T],
        datum_of: Callable[[_T], Datum],
    ) -> Generator[_T, None, None]:
        with contextlib.ExitStack() as stack:
            streams = (self._stream(each, query, order, read, datum_of) for each in candidates)
            running = [stack.enter_context(contextlib.closing(each)) for each in streams]
            found = (item for _, item in heapq.merge(*running, key=itemgetter(0)) if item is not None)
            yield from islice(found, query.limit)

    def _stream(
        self, candidate: _Candidate, query: Query, order: Sort, read: _Reader[_T], datum_of: Callable[[_T], Datum]
    ) -> Generator[tuple[Any, Any], None, None]:
        """Yield what is found, with its sort key; but first None with a key before all others, and only then open."""
        yield order.bound(candidate.times), None
        with self._opened_again(candidate) as dataset:
            tree = query.tree(dataset._access.current().index)
            if order.is_by_time:
                # Data that were stored since the query looked at the span may precede what was returned already.
                since = order.since(order.begin(candidate.times))
                tree = since if tree == Everything() else tree & since
            found = read(candidate.name, dataset, query._replace(match=tree, equal={}))
            with contextlib.closing(found):
                for item in found:
                    yield order.key_of(datum_of(item)), item


def _naming(query: Query, name: str) -> Query:
    return query if query.on_damage is None else query._replace(on_damage=partial(query.on_damage, dataset=name))


def _uuid(access: Access) -> str | None:
    """Return the UUID of the index; None if it may not know all data."""
    return None if access.needs_check() else access.current().index.state()[0]


def _span(access: Access) -> Interval:
    """Return an interval with the reftimes of all data of a dataset; all of time if parts of it cannot be looked at."""
    if access.needs_check():
        return ALWAYS
    with access.current().index.snapshot() as snapshot:
        unknown = [each.identity for each in unknown_in(snapshot)]
        known = segment_rows.span(snapshot) or NOTHING
        return reduce(or_, (Interval(each.begin, each.end) for each in unknown if each), known)


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


def _most_of_one_time(candidates: Iterable[_Candidate]) -> int:
    """Return how many datasets may have data of one time, at most."""
    most, ends = 0, list[int]()
    for begin, end in sorted(each.times for each in candidates):
        while ends and ends[0] <= begin:
            heapq.heappop(ends)
        heapq.heappush(ends, end)
        most = max(most, len(ends))
    return most


def _make_room(number: int) -> None:
    """Let the process open the files of so many datasets; raise LimitExceeded if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = hard if hard != resource.RLIM_INFINITY else _MOST * _SHARE
    most = max(1, min(_MOST, allowed // _SHARE))
    if number > most:
        message = f"{number} datasets have data of one time, or must be sorted together; at most {most} can be open"
        hint = "Query fewer of them, a shorter time, or by reftime; or raise the limit of open files: ulimit -Hn."
        raise LimitExceeded(message, hint=hint)
    if soft != resource.RLIM_INFINITY and soft < number * _SHARE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number * _SHARE, allowed), hard))


def paths_of(given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of datasets, each once; those of a pattern in the order of their names.

    Raises InvalidInput of an empty path or none, DatasetNotFound, or StorageError if a path cannot be looked at.
    """
    each = [given] if isinstance(given, str | os.PathLike) else [*given]
    if not each:
        raise InvalidInput("there are no datasets to read", hint="Pass their paths, or a pattern such as 'sites/*'.")
    found: dict[tuple[int, int], str] = {}
    for path in [os.fspath(one) for one in each]:
        if not isinstance(path, str):
            raise InvalidInput(f"the path of a dataset is a text, not {shown(path)}")
        if not path:
            raise InvalidInput("the path of the dataset is empty", hint='Write "." for the current directory.')
        for name in _datasets_at(path):
            place = Path(name).stat()
            found.setdefault((place.st_dev, place.st_ino), name)
    return [*found.values()]


def _datasets_at(path: str) -> list[str]:
    found = [path] if not is_pattern(path) else sorted(glob.glob(path, recursive=True))  # noqa: PTH207
    datasets = [name for name in found if _is_dataset(name)]
    if not datasets:
        for name in found:
            check_not_in_place(name)
        raise no_dataset(path)
    return datasets


def _is_dataset(path: str) -> bool:
    try:
        return any(Path(path, each).exists() for each in (CONFIG, INDEX))
    except OSError as error:
        hint = "Check the path, and your permission to read there."
        raise StorageError(f"{path}: {error.strerror}", hint=hint, errno=error.errno) from error


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards, and is not itself the name of something."""
    return glob.has_magic(path) and not os.path.lexists(path)
