"""Queries of a dataset, answered from one snapshot of its index."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ondisk.dataset.access import Opened
from ondisk.dataset.place_checks import check_past_damage, check_there
from ondisk.dataset.read import DatasetReader, check_limit
from ondisk.dataset.unreadable_data import OnDamage, Skipped
from ondisk.datum import METADATA, Datum, from_microseconds
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.filesystem import Closing
from ondisk.formats import Format, find
from ondisk.formats.base import DescribesFiles
from ondisk.index import Index, Key, Row, Snapshot, segment_rows
from ondisk.matcher import And, Everything, Expression, reftime_interval, undeclared_in
from ondisk.named_tuple import NamedTuple

if TYPE_CHECKING:
    from ondisk.dataset.summaries import Summary
    from ondisk.index.sums import Totals
    from ondisk.matcher.sort import Sort

SHOWN = 20
"""The number of values of a field that a summary lists by default."""

Match: TypeAlias = str | Expression | None
Stored: TypeAlias = tuple[Snapshot, Format, Row, bytes]
"""The snapshot, the format, the row and the bytes of a datum, with padding."""
_T = TypeVar("_T")


class Query(NamedTuple):
    """What a caller wants to read."""

    match: Match = None  # a match expression or a condition; None matches all
    sort: str | None = None  # a sort order; None for the order of reftime, then of appending
    limit: int | None = None  # the highest number of data to return
    equal: Mapping[str, Any] = MappingProxyType({})  # field=value, in addition to `match`
    on_damage: OnDamage = None  # called with each datum that cannot be read, which is left out; None raises the error
    # data in a place that is offline are an error; otherwise a warning says that they are left out
    complete: bool = False

    def check(self, index: Index) -> None:
        """Raise MatchError or InvalidInput if match, sort or limit is not valid, or names an unknown field."""
        _check_has_metadata(self.tree(index), index)
        self.order(index)
        check_limit(self.limit)

    def tree(self, index: Index) -> Expression:
        """Return one syntax tree for `match` and `equal`."""
        if self.match is None:
            tree: Expression = Everything()
        elif isinstance(self.match, str):
            from ondisk.dataset.expression import expression

            tree = expression(self.match, index.config, index.directory.path)
        elif isinstance(self.match, Expression):
            tree = self.match
        else:
            raise InvalidInput(
                f"match must be a match expression or a condition over dataset.fields, not {shown(self.match)}"
            )
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


class Results(Closing, Iterator[_T]):
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

    def close(self) -> None:
        """End the query: nothing more is returned, and its snapshot and its files are released."""
        self._items.close()


def _check_has_metadata(tree: Expression, index: Index) -> None:
    """Raise MatchError if undeclared metadata are named, and no format stores any: nothing would match."""
    names = undeclared_in(tree)
    if not names:
        return
    with index.snapshot() as snapshot:
        formats = {index.config.format, *segment_rows.formats(snapshot)}
    if not any(find(name)(index.config).undeclared for name in formats):
        message = f"{shown(METADATA + names[0])}: {index.config.format} stores no metadata that are not declared"
        hint = f"Declare {shown(names[0])} in dataset.toml and run `ondisk migrate`, if the data have it."
        raise MatchError(message, hint=hint)


def data(access: Opened, query: Query, *, with_data: bool) -> Generator[Datum, None, None]:
    """Yield the data that match, in order."""
    with snapshot_of(access, query, with_data=with_data) as (reader, snapshot, tree):
        sort = query.order(access.index)
        found = reader.query(snapshot, tree, sort, query.limit, with_data=with_data, on_damage=query.on_damage)
        with contextlib.closing(found):
            each = chain.from_iterable(found)
            yield from each if query.on_damage is None else islice(each, query.limit)


def data_of_key(access: Opened, key: Key, equal: Mapping[str, Any]) -> Generator[Datum, None, None]:
    """Yield the datum that a complete unique key names, if there is one. `equal`: the key as field=value."""
    found = access.reader.look_up(access.index, key)
    yield from data(access, Query(equal=equal), with_data=True) if found is None else found


def payloads(access: Opened, query: Query) -> Generator[bytes, None, None]:
    """Yield the bytes of the data that match, in the order of `data`, and a format's file header before its first."""
    with contextlib.closing(stored(access, query)) as found:
        yield from joined_payloads(found)


def joined_payloads(found: Iterable[Stored]) -> Generator[bytes, None, None]:
    """Yield the bytes of data, first a format's header; raise InvalidInput of several that are whole files."""
    begun, before, alone = set(), None, None
    for _, format, _, content in found:
        is_new = format is not before
        is_whole = is_new and isinstance(format, DescribesFiles)
        if alone is not None or (is_whole and before is not None):
            hint = "Write each to a file of its own: --to DIR --name TEMPLATE, or `ondisk.files.export` in Python."
            raise InvalidInput(f"files of {format.name} cannot be joined with other data", hint=hint)
        if is_whole:
            alone = content
            continue
        if is_new:
            if format.preamble and format.name not in begun:
                begun.add(format.name)
                yield format.preamble
            before = format
        yield content
    if alone is not None:
        yield alone


def stored(access: Opened, query: Query) -> Generator[Stored, None, None]:
    """Yield the data that match as their segments have them, in the order of `data`."""
    with snapshot_of(access, query) as (reader, snapshot, tree):
        found = reader.payloads(snapshot, tree, query.order(access.index), query.limit, query.on_damage)
        for each in islice(found, query.limit):
            yield snapshot, *each


def described(stored: Stored) -> Datum:
    """Return the reftime and the declared fields of a datum."""
    snapshot, _, row, _ = stored
    return Datum(from_microseconds(row[0]), snapshot.metadata(row[4:]))


def summary(access: Opened, query: Query, fields: Sequence[str], values: int | None) -> Summary:
    """Count the data that match, also those that are away, and the most frequent `values` of some fields."""
    from ondisk.dataset.summaries import Summary
    from ondisk.index import field_values
    from ondisk.index.sums import totals

    tree = query.tree(access.index)
    with access.index.snapshot() as snapshot:
        found = totals(snapshot, tree)
        counted = {name: field_values.most_frequent(snapshot, tree, name, values) for name in fields}
        last_change = snapshot.dataset()["seq"] if query.match is None else None
        return Summary(found.count, found.size, *span(found), counted, last_change)


def span(totals: Totals) -> tuple[Any, Any]:
    """Return the first and the last reftime of what was counted."""
    begin, end = (None if time is None else from_microseconds(time) for time in (totals.begin, totals.end))
    return begin, end


@contextlib.contextmanager
def snapshot_of(
    opened: Opened, query: Query, *, with_data: bool = True
) -> Iterator[tuple[DatasetReader, Snapshot, Expression]]:
    """Yield what a query reads from, and its condition; raise SegmentMissing first if data that may match are away."""
    tree = query.tree(opened.index)
    with contextlib.ExitStack() as stack:
        snapshot, reader = stack.enter_context(opened.index.snapshot()), opened.reader
        if with_data or undeclared_in(tree):
            check = check_there if query.on_damage is None else check_past_damage
            snapshot.leave_out(check(snapshot, reftime_interval(tree), complete=query.complete))
        if query.on_damage is not None:
            reader = stack.enter_context(contextlib.closing(reader.past_damage()))
        yield reader, snapshot, tree
