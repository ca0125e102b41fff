"""Queries of a dataset and its archives, answered from one snapshot of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.archives import Archives
from ondisk.dataset.overlap import leave_out
from ondisk.dataset.read import DatasetReader, check_limit
from ondisk.dataset.skipped import OnDamage, Skipped
from ondisk.datum import METADATA, Datum, from_microseconds
from ondisk.errors import InvalidInput, LockError, MatchError, shown
from ondisk.formats import Format, find
from ondisk.index import Index, Key, Row, Snapshot, segment_rows
from ondisk.matcher import Everything, Expression, reftime_interval, undeclared_in
from ondisk.matcher.tree import And
from ondisk.step import Interval

if TYPE_CHECKING:
    from ondisk.dataset.summaries import Summary
    from ondisk.index.field_values import FieldSummary
    from ondisk.index.totals import Totals
    from ondisk.matcher.sort import Sort

SHOWN = 20
"""The number of values of a field that a summary lists by default."""

Match: TypeAlias = str | Expression | None
Check: TypeAlias = Callable[[Snapshot, Collection[str], Callable[[], Interval]], bool]
"""Raises unless the archives with these UUIDs suffice; returns False to take the snapshots again."""
Stored: TypeAlias = tuple[Snapshot, Format, Row, bytes]
"""The snapshot, the format, the row and the bytes of a datum, with padding."""
_T = TypeVar("_T")
_TRIES = 1000


class Query(NamedTuple):
    """What a caller wants to read.

    Attributes:
        match: a match expression or a condition; None matches all.
        sort: a sort order; None for the order of reftime, then of appending.
        limit: the highest number of data to return.
        equal: field=value, in addition to `match`.
        on_damage: called with each datum that cannot be read, which is left out; None raises the error.
    """

    match: Match = None
    sort: str | None = None
    limit: int | None = None
    equal: Mapping[str, Any] = MappingProxyType({})
    on_damage: OnDamage = None

    def check(self, index: Index) -> None:
        """Raise unless it can be answered.

        Raises:
            MatchError, InvalidInput: match, sort or limit is not valid, or names an unknown field.
        """
        _check_has_metadata(self.tree(index), index)
        self.order(index)
        check_limit(self.limit)

    def tree(self, index: Index) -> Expression:
        """Return one syntax tree for `match` and `equal`."""
        if self.match is None:
            tree: Expression = Everything()
        elif isinstance(self.match, str):
            from ondisk.matcher.parser import parse

            tree = parse(self.match, index.config.fields)
        elif isinstance(self.match, Expression):
            tree = self.match
        else:
            raise _no_match(self.match)
        if self.equal:
            from ondisk.matcher.fields import Fields

            fields = Fields(index.config.fields)
            parts = tuple(fields[name] == value for name, value in self.equal.items())
            tree = And(parts) if self.match is None else And((tree, *parts))
        index.check(tree)
        return tree

    def order(self, index: Index) -> Sort | None:
        if self.sort is None:
            return None
        from ondisk.matcher.sort import parse_sort

        return parse_sort(self.sort, index.config.fields)


class Results(Iterator[_T]):
    """What a query returns: an iterator, which can be closed, and is closed at the end of a `with` block.

    Attributes:
        skipped: the data that were left out so far, with `damaged="skip"`; else None.
    """

    def __init__(self, items: Generator[_T, None, None], skipped: Skipped | None = None) -> None:
        self._items = items
        self.skipped = skipped

    def __iter__(self) -> Iterator[_T]:
        return self._items

    def __next__(self) -> _T:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the query: nothing more is returned, and its snapshot and its files are released."""
        self._items.close()


def _check_has_metadata(tree: Expression, index: Index) -> None:
    """Raise if a condition names undeclared metadata, and no format of the dataset stores any.

    Raises:
        MatchError: it is so; else the condition would silently match nothing.
    """
    names = undeclared_in(tree)
    if not names:
        return
    with index.snapshot() as snapshot:
        formats = {index.config.format, *segment_rows.formats(snapshot)}
    if not any(find(name)(index.config).undeclared for name in formats):
        message = f"{shown(METADATA + names[0])}: {index.config.format} stores no metadata that are not declared"
        hint = f"Declare {shown(names[0])} in dataset.toml and run `ondisk migrate`, if the data have it."
        raise MatchError(message, hint=hint)


def _no_match(given: object) -> InvalidInput:
    return InvalidInput(f"match must be a match expression or a condition over dataset.fields, not {shown(given)}")


def data(access: Opened, archives: Archives, query: Query, *, with_data: bool) -> Generator[Datum, None, None]:
    """Yield the data that match: those of the archives, then those of the dataset; in one order if `sort` is set."""

    def read(reader: DatasetReader, snapshot: Snapshot, tree: Expression, sort: Sort | None) -> Iterator[list[Datum]]:
        return reader.query(snapshot, tree, sort, query.limit, with_data=with_data, on_damage=query.on_damage)

    with Snapshots(access, archives, query) as snapshots:
        archives.warn_of_offline()
        if snapshots.is_alone and query.on_damage is None:
            for each in snapshots.of(read)[0]:
                yield from each
            return
        lists = [chain.from_iterable(each) for each in snapshots.of(read)]
        yield from snapshots.joined(lists, lambda order, datum: order.key_of(datum))


def data_of_key(access: Opened, archives: Archives, key: Key, equal: Mapping[str, Any]) -> Generator[Datum, None, None]:
    """Yield the data that a complete unique key names: at most one of the dataset, and one of each archive.

    Args:
        equal: the key as field=value.
    """
    found = access.reader.look_up(access.index, key)
    if found is None or (not found and (access.index.knows_archives() or any(archives.online()))):
        yield from data(access, archives, Query(equal=equal), with_data=True)
    else:
        yield from found


def payloads(access: Opened, archives: Archives, query: Query) -> Generator[bytes, None, None]:
    """Yield the bytes of the data that match, in the order of `data`, and a format's file header before its first."""
    with contextlib.closing(stored(access, archives, query)) as found:
        yield from joined_payloads(found)


def joined_payloads(found: Iterable[Stored]) -> Generator[bytes, None, None]:
    """Yield the bytes of data, and a format's file header before its first."""
    begun = set()
    for _, format, _, content in found:
        if format.preamble and format.name not in begun:
            begun.add(format.name)
            yield format.preamble
        yield content


def stored(access: Opened, archives: Archives, query: Query) -> Generator[Stored, None, None]:
    """Yield the data that match as their segments have them, in the order of `data`."""

    def read(reader: DatasetReader, snapshot: Snapshot, tree: Expression, sort: Sort | None) -> Iterator[Stored]:
        for each in reader.payloads(snapshot, tree, sort, query.limit, query.on_damage):
            yield snapshot, *each

    with Snapshots(access, archives, query) as snapshots:
        archives.warn_of_offline()
        yield from snapshots.joined(snapshots.of(read), lambda order, each: order.key_of(described(each)))


def described(stored: Stored) -> Datum:
    """Return the reftime and the declared fields of a datum."""
    snapshot, _, row, _ = stored
    return Datum(from_microseconds(row[0]), snapshot.metadata(row[4:]))


def summary(access: Opened, archives: Archives, query: Query, fields: Sequence[str], values: int | None) -> Summary:
    """Count the data that match, in the archives and in the dataset itself.

    Args:
        fields: whose values to count.
        values: the highest number of values to list of each; None for all.
    """
    from ondisk.dataset.summaries import Summary, joined, with_offline
    from ondisk.index import field_values
    from ondisk.index.totals import totals

    with Snapshots(access, archives, query) as snapshots:
        away: dict[str, Summary] = {}
        if query.match is None:
            away = archives.record.summaries()
        else:
            archives.warn_of_offline()
        parts = [*snapshots.each()]

        def counted(name: str) -> FieldSummary:
            if len(parts) == 1 and not away:
                return field_values.most_frequent(parts[0][1], parts[0][2], name, values)
            each = [field_values.counts(snapshot, tree, name) for _, snapshot, tree in parts]
            return with_offline(each, away, name, field_values.kind_of(parts[-1][1], name), values)

        found = [totals(snapshot, tree) for _, snapshot, tree in parts]
        counts = [Summary(each.count, each.size, *span(each), {}) for each in found]
        is_all = query.match is None and len(parts) == 1 and not away
        last_change = parts[0][1].dataset()["seq"] if is_all else None
        return joined([*counts, *away.values()], {name: counted(name) for name in fields}, last_change)


def span(totals: Totals) -> tuple[Any, Any]:
    """Return the first and the last reftime of what was counted."""
    begin, end = (None if time is None else from_microseconds(time) for time in (totals.begin, totals.end))
    return begin, end


class Snapshots:
    """The snapshots that answer a query: those of the archives, then that of the dataset itself.

    They agree with each other: a datum that is in several of them is skipped in the archives.

    Args:
        check: which archives must be among them; None for all but those that are offline.
    """

    def __init__(self, opened: Opened, archives: Archives, query: Query, check: Check | None = None) -> None:
        self._main = opened
        self._archives = archives
        self._check = check or archives.record.check_complete
        self._query = query
        self._order = query.order(opened.index)
        self._stack = contextlib.ExitStack()
        self._snapshots: list[tuple[Opened, Snapshot]] = []

    def __enter__(self) -> Snapshots:
        for _ in range(_TRIES):
            with contextlib.ExitStack() as stack:
                main = stack.enter_context(self._main.index.snapshot())
                state = main.dataset()  # begins the snapshot, which must be older than those of the archives
                archived: list[tuple[Access, Opened, Snapshot]] = []
                uuids: set[str] = set()
                for archive in self._archives.online():
                    opened = archive.current()
                    snapshot = stack.enter_context(opened.index.snapshot())
                    uuids.add(str(snapshot.dataset()["uuid"]))
                    archived.append((archive, opened, snapshot))
                # A change of dataset and archive, such as a replacement of archived data, changes the dataset first. So
                # a snapshot of the dataset from before it does not fit a snapshot of an archive from after it.
                if archived and self._state() != state:
                    continue
                if not self._check(main, uuids, self._interval):
                    continue
                for archive, _, snapshot in archived:
                    leave_out(main, snapshot, archive)
                self._snapshots = [*((opened, snapshot) for _, opened, snapshot in archived), (self._main, main)]
                self._stack = stack.pop_all()
                return self
        hint = "Query again when fewer data are written."
        raise LockError(f"{self._main.index.directory.path} changes faster than it can be read", hint=hint)

    def _interval(self) -> Interval:
        return reftime_interval(self._query.tree(self._main.index))

    def _state(self) -> dict[str, Any]:
        with self._main.index.snapshot() as now:
            return now.dataset()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def is_alone(self) -> bool:
        """Whether there are no archives."""
        return len(self._snapshots) == 1

    def each(self) -> Iterator[tuple[Opened, Snapshot, Expression]]:
        """Yield the index, the snapshot and the syntax tree of each."""
        for opened, snapshot in self._snapshots:
            yield opened, snapshot, self._query.tree(opened.index)

    def of(self, read: Callable[[DatasetReader, Snapshot, Expression, Sort | None], _T]) -> list[_T]:
        """Return what `read` returns for each. Iterators are closed before their snapshots."""
        results = []
        for opened, snapshot, tree in self.each():
            reader = opened.reader
            if self._query.on_damage is not None:
                reader = self._stack.enter_context(contextlib.closing(reader.past_damage()))
            result = read(reader, snapshot, tree, self._order)
            if hasattr(result, "close"):
                self._stack.callback(result.close)
            results.append(result)
        return results

    def joined(self, results: Sequence[Iterable[_T]], key_of: Callable[[Sort, _T], Any]) -> Iterator[_T]:
        """Yield the results one after the other, or merged if `sort` is set; up to the limit."""
        if self._order is None or len(results) == 1:
            joined: Iterator[_T] = chain.from_iterable(results)
        else:
            from heapq import merge  # here, because few queries need it

            joined = merge(*results, key=partial(key_of, self._order))
        return islice(joined, self._query.limit)
