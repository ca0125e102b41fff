"""The objects of a dataset: their extents, read from the index when needed, and changed in one commit."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice

from ondisk.backends.elliptics.extents import FIRST, Extent, Extents
from ondisk.backends.elliptics.settings import FIELDS, Limits
from ondisk.dataset.auxiliary_files import untrusted
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.delete import State
from ondisk.dataset.query import Query
from ondisk.datum import Datum, from_microseconds, microseconds
from ondisk.errors import IntegrityError, SegmentCorrupt, SegmentMissing
from ondisk.matcher import And, Compare, Expression, OneOf

_TOGETHER = 500  # extents, or objects, that one query names
_SMALL = 1024 * 1024  # bytes
_NUMBERS = ("flags", "offset", "size", "version")


class Objects:
    """The objects of a dataset, for one thread. Those in memory count while nobody else changes the dataset."""

    def __init__(self, dataset: Dataset, limits: Limits) -> None:
        self._dataset = dataset
        self._limits = limits
        self._state = dataset.state()
        self._trusted: State | None = None
        self._known: OrderedDict[bytes, Extents] = OrderedDict()
        self._counts: dict[bytes, int] = {}
        self._count = 0  # their sum
        self._contents: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._size = 0
        self._listed: tuple[State, bytes, list[bytes]] | None = None

    def refresh(self) -> None:
        """Forget all objects if others have changed the dataset; raise NeedsCheck if the index was lost."""
        state = self._dataset.state()
        if state != self._trusted:  # an index that was lost, or put back, has another state
            if self._dataset.needs_check:
                raise untrusted(self._dataset.path)
            self._trusted = state
        if state != self._state:
            self._state = state
            self.forget([*self._known])
            self._contents.clear()
            self._size = 0

    def __contains__(self, parent: bytes) -> bool:
        return parent in self._known

    def get(self, parent: bytes, *, with_data: bool = False) -> Extents:
        """Return the extents of an object, empty if it does not exist. `with_data`: also read those of a small one."""
        if parent not in self._known:
            self.learn([parent], with_data=with_data)
        self._known.move_to_end(parent)
        return self._known[parent]

    def learn(self, parents: Iterable[bytes], *, with_data: bool = False) -> None:
        """Read objects that are not in memory, many with one query; with their data, until one is large or damaged."""
        unknown = iter([each for each in dict.fromkeys(parents) if each not in self._known])
        while some := [*islice(unknown, _TOGETHER)]:
            stored = self._whole(some) if with_data else None
            if stored is None:
                stored, with_data = {parent: [] for parent in some}, False
                for datum in self._dataset.query(_of(*some), with_data=False):
                    stored[datum.metadata["parent"]].append(_extent(datum))
            for parent, extents in stored.items():
                self._known[parent] = Extents(sorted(extents))  # other segments may have later ones
                self._recount(parent)

    def _whole(self, parents: Sequence[bytes]) -> dict[bytes, list[Extent]] | None:
        """Return the extents of objects, and keep their data in memory; None if they are not small, or damaged."""
        stored: dict[bytes, list[Extent]] = {parent: [] for parent in parents}
        rest = min(_SMALL * len(parents), self._limits.cached // 4)
        with contextlib.closing(self._stored(_of(*parents))) as data:
            try:
                for datum in data:
                    extent, parent = _extent(datum), datum.metadata["parent"]
                    stored[parent].append(extent)
                    rest -= extent.size
                    if rest < 0:
                        return None
                    self._keep(parent, extent.time, _checked(datum, extent))
            except (IntegrityError, SegmentMissing):
                return None
        return stored

    def forget(self, parents: Sequence[bytes]) -> None:
        for parent in parents:
            self._known.pop(parent, None)
            self._count -= self._counts.pop(parent, 0)

    def parents(self, first: bytes) -> list[bytes]:
        """Return the ids of objects in ascending order, from `first` on: as many as a LIST returns. Reads all rows."""
        if self._listed is not None and self._listed[:2] == (self._state, first):
            return self._listed[2]
        found: set[bytes] = set()
        for datum in self._dataset.query(with_data=False):
            parent = datum.metadata.get("parent")
            if isinstance(parent, bytes) and parent >= first:
                found.add(parent)
                if len(found) > 2 * self._limits.listed:
                    found = {*sorted(found)[: self._limits.listed]}
        parents = sorted(found)[: self._limits.listed]
        self._listed = self._state, first, parents
        return parents

    def read(self, parent: bytes, extents: Extents, begin: int, end: int) -> bytes | None:
        """Return bytes of an object, whose `extents` `get` has returned; those that were never written are zeros.

        Return None if somebody else has changed the object since then: it is forgotten, call `get` again.
        """
        only = extents.only(begin, end)
        if only is not None and (content := self._contents.get(key := (parent, only.time))) is not None:
            self._contents.move_to_end(key)
            return content[begin - only.offset : end - only.offset]
        pieces = extents.pieces(begin, end)
        contents = self._read(parent, [*dict.fromkeys(piece.extent for piece in pieces)])
        if contents is None:
            self.forget([parent])
            self.refresh()
            return None
        parts, at = [], begin
        for piece in pieces:
            content, start = contents[piece.extent.time], piece.begin - piece.extent.offset
            parts += [bytes(piece.begin - at), content[start : start + piece.end - piece.begin]]
            at = piece.end
        parts.append(bytes(end - at))
        return b"".join(part for part in parts if part)

    def commit(
        self, delete: Sequence[Expression], store: Sequence[tuple[bytes, Extent, bytes]], parents: Iterable[bytes]
    ) -> bool:
        """Delete and store data of some objects, durably; return False if somebody else has changed the dataset."""
        stored = [
            Datum(from_microseconds(extent.time), dict(zip(FIELDS, (parent, *extent[1:]), strict=True)), data)
            for parent, extent, data in store
        ]
        state = self._dataset.exchange(self._state, delete, stored)
        if state is None:
            return False
        self._state = state
        for parent in parents:
            self._recount(parent)
        for parent, extent, content in store:
            self._keep(parent, extent.time, content)
        return True

    def _recount(self, parent: bytes) -> None:
        """Count the extents of an object again, and forget objects while there are too many."""
        known = self._known.get(parent)
        if known is not None:
            self._count += 1 + len(known) - self._counts.get(parent, 0)
            self._counts[parent] = 1 + len(known)
        while self._count > self._limits.extents and len(self._known) > 1:
            self.forget([next(iter(self._known))])

    def _read(self, parent: bytes, extents: Sequence[Extent]) -> dict[int, bytes] | None:
        """Return time → data of extents; None if some are gone."""
        contents = {each.time: self._contents.get((parent, each.time)) for each in extents}
        for each, content in contents.items():
            if content is not None:
                self._contents.move_to_end((parent, each))
        missing = iter([each for each in extents if contents[each.time] is None])
        while some := {each.time: each for each in islice(missing, _TOGETHER)}:
            for datum in self._stored(_at(parent, some)):
                extent = some.pop(microseconds(datum.reftime), None)
                if extent is None:
                    continue
                contents[extent.time] = content = _checked(datum, extent)
                self._keep(parent, extent.time, content)
            if some:
                return None
        return {each: content for each, content in contents.items() if content is not None}

    def _stored(self, match: Expression) -> Generator[Datum, None, None]:
        """Return extents with their data; those that are offline are missing: without them an object is another."""
        return self._dataset._data(Query(match, complete=True), with_data=True)

    def _keep(self, parent: bytes, at: int, content: bytes) -> None:
        """Keep the data of an extent in memory unless they are large; forget those that were used least recently."""
        if 4 * len(content) > self._limits.cached:
            return
        self._size -= len(self._contents.pop((parent, at), b""))
        self._contents[parent, at] = content
        self._size += len(content)
        while self._size > self._limits.cached:
            self._size -= len(self._contents.popitem(last=False)[1])


class Changes:
    """Collects the writes and deletes of one commit, already seen in memory; call `forget` if it fails."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._extents: dict[bytes, Extents] = {}
        self._before: dict[bytes, int] = {}  # object → number of its stored extents
        self._gone: dict[bytes, list[int]] = {}  # object → times of stored extents that are covered
        self._new: dict[tuple[bytes, int], tuple[Extent, bytes]] = {}
        self._now = time.time_ns() // 1000

    def extents(self, parent: bytes) -> Extents:
        extents = self._extents.get(parent)
        if extents is None:
            extents = self._extents[parent] = self._objects.get(parent)
            # A rebuild of a lost index brings covered extents back.
            self._gone[parent] = [each.time for each in extents.take_covered()]
            self._before[parent] = len(extents) + len(self._gone[parent])
        return extents

    def write(self, parent: bytes, extent: Extent, data: bytes) -> None:
        """Write an extent; its `time` is set here, later than that of the extents before it."""
        extents = self.extents(parent)
        if not extents and not extent.replaces:
            extent = extent._replace(flags=extent.flags | FIRST)
        extent = extent._replace(time=max(self._now, extents.last + 1))
        extents.add(extent)
        self._new[parent, extent.time] = extent, data
        self._take_covered(parent, extents)

    def delete(self, parent: bytes) -> None:
        extents = self.extents(parent)
        extents.clear()
        self._take_covered(parent, extents)

    @property
    def parents(self) -> list[bytes]:
        return [*self._extents]

    def commit(self) -> bool:
        """Make them durable, in one commit; return False if somebody else has changed the dataset."""
        store = [(parent, extent, data) for (parent, _), (extent, data) in self._new.items()]
        delete = [*self._deletes()]
        return not (delete or store) or self._objects.commit(delete, store, self.parents)

    def _deletes(self) -> Iterator[Expression]:
        for parent, gone in self._gone.items():
            if len(gone) >= self._before[parent] > 0:
                yield _of(parent)
            else:
                times = iter(gone)
                while some := {*islice(times, _TOGETHER)}:
                    yield _at(parent, some)

    def _take_covered(self, parent: bytes, extents: Extents) -> None:
        for covered in extents.take_covered():
            if self._new.pop((parent, covered.time), None) is None:
                self._gone[parent].append(covered.time)


def _extent(datum: Datum) -> Extent:
    flags, offset, size, version = (datum.metadata.get(name, 0) for name in _NUMBERS)
    return Extent(microseconds(datum.reftime), datum.metadata.get("id", b""), flags, offset, size, version)


def _checked(datum: Datum, extent: Extent) -> bytes:
    """Return the data of an extent; raise SegmentCorrupt if they are not what the index describes."""
    if type(datum.data) is not bytes or len(datum.data) != extent.size:
        raise SegmentCorrupt(f"{datum.location} is not the extent that the index describes")
    return datum.data


def _of(*parents: bytes) -> Expression:
    return Compare("parent", "=", parents[0]) if len(parents) == 1 else OneOf("parent", parents)


def _at(parent: bytes, times: Sequence[int] | set[int] | dict[int, Extent]) -> Expression:
    return And((_of(parent), OneOf("reftime", tuple(times))))
