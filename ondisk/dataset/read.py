"""Reading data: turns rows of the index into data, and reads neighbouring data of a segment at once."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.unreadable_data import OnDamage
from ondisk.datum import EPOCH, INTEGER_MAX, NO_METADATA, Datum, Location, from_microseconds
from ondisk.errors import (
    RESTORE,
    AuthenticationFailed,
    DatumNotFound,
    FrameCorrupt,
    IndexCorrupt,
    IntegrityError,
    InvalidInput,
    KeyMissing,
    OndiskError,
    SegmentCorrupt,
    SegmentMissing,
    StorageError,
    command,
    shown,
)
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Format, find, of_extension
from ondisk.formats.base import Loaded
from ondisk.index import Index, Key, Row, Segment, Snapshot, segment_rows
from ondisk.matcher import Expression
from ondisk.segment import Sealer, SegmentFile
from ondisk.segments.concat_reader import ConcatReader
from ondisk.segments.file_facts import Committed, WholeFiles, restore_or_salvage

if TYPE_CHECKING:
    from ondisk.matcher.sort import Sort
    from ondisk.segments.dir import DirReader

_T = TypeVar("_T")
_OTHER_BLOCKS = f"{RESTORE}. The data in its other blocks can still be read."
_SPAN = 1024 * 1024  # bytes of one read: in memory an event may take 70 times its bytes, and all of a read are alive
_GAPS = 256 * 1024  # unwanted bytes in one read, above the wanted ones: cheaper than more reads
TAIL = 4
"""Bytes at the end of a datum that show whether it ends there, see `Format.ends`."""
_segment_of, _offset_of, _size_of = itemgetter(1), itemgetter(2), itemgetter(3)


class DatasetReader:
    """Reads the data of one index from the files of its segments.

    `ignore_ends`: also read a file whose end has changed, if its data have checksums, which show what is damaged.
    """

    def __init__(self, directory: Directory, config: DatasetConfig, *, ignore_ends: bool = False) -> None:
        self._ignore_ends = ignore_ends
        self._directory = directory
        self._files = ConcatReader(directory, self._sealer)
        self._config = config
        self._formats: dict[str, Format] = {}
        self._whole = WholeFiles()

    @cached_property
    def _directories(self) -> DirReader:
        """The reader of dir segments, which most datasets do not have."""
        from ondisk.segments.dir import DirReader

        return DirReader(self._directory)

    def past_damage(self) -> DatasetReader:
        """Return a reader for one query that leaves out damaged data; others must not use the files it has opened."""
        reader = DatasetReader(self._directory, self._config, ignore_ends=True)
        reader.keep_open(self._files.most)
        return reader

    def keep_open(self, most: int) -> None:
        """Keep at most so many files and folders of segments open from now on, each."""
        self._files.keep_open(most)
        self._directories.keep_open(most)

    def close(self) -> None:
        self._files.close()
        if "_directories" in vars(self):
            self._directories.close()

    def query(
        self,
        snapshot: Snapshot,
        tree: Expression,
        sort: Sort | None,
        limit: int | None,
        *,
        with_data: bool,
        on_damage: OnDamage = None,
    ) -> Generator[list[Datum], None, None]:
        """Yield lists of the data that match, in order; with `on_damage` the caller must count up to `limit`."""
        for rows in self._matching(snapshot, tree, sort, limit, on_damage):
            for run in _runs(rows):
                if with_data:
                    yield from self.with_data(snapshot, run, on_damage)
                else:
                    yield _without_data(snapshot, run)

    def _matching(
        self, snapshot: Snapshot, tree: Expression, sort: Sort | None, limit: int | None, on_damage: OnDamage
    ) -> Iterator[list[Row]]:
        if on_damage is None:
            return snapshot.rows(tree, sort, limit)
        snapshot.read_metadata = partial(self._readable_metadata, snapshot, on_damage)
        return snapshot.rows(tree, sort)

    def _readable_metadata(
        self, snapshot: Snapshot, on_damage: Callable[[Location, OndiskError], None], row: Row
    ) -> Mapping[str, Any]:
        """Return the undeclared metadata of a row; none if they cannot be read."""
        try:
            return self.undeclared(snapshot, row)
        except OndiskError as error:
            if not _is_damage(error):
                raise
            on_damage(self._location(snapshot, row), error)
            return NO_METADATA

    def rows(self, snapshot: Snapshot, rows: list[Row]) -> Iterator[list[Datum]]:
        """Yield the data of rows, in their order, in lists."""
        for run in _runs(rows):
            yield from self.with_data(snapshot, run)

    def payloads(
        self, snapshot: Snapshot, tree: Expression, sort: Sort | None, limit: int | None, on_damage: OnDamage = None
    ) -> Iterator[tuple[Format, Row, bytes]]:
        """Yield format, row and bytes, with padding, of each datum that matches, in order; raise at a damaged one."""
        read = partial(self._payloads, is_decoded=on_damage is not None)
        for rows in self._matching(snapshot, tree, sort, limit, on_damage):
            for run in _runs(rows):
                for some in self._readable(snapshot, run, read, on_damage):
                    yield from some

    def _payloads(
        self, snapshot: Snapshot, run: list[Row], *, is_decoded: bool
    ) -> Iterator[tuple[list[tuple[Format, Row, bytes]], int]]:
        """Yield the bytes of rows of one segment, in lists, and how many rows each is for; decode them, too, or not."""
        segment = snapshot.segment(run[0][1])
        format = self._format(segment.format)
        padding = format.padding
        for base, content, part in self._spans(snapshot, run, len(padding)):
            stored = [content[row[2] - base : row[2] - base + row[3]] for row in part]
            if is_decoded and not format.raw and not format.is_dir:
                self._loaded(segment, part, format, stored)
            whole = self._verified(segment, format, part, stored)
            yield [(format, row, each + padding) for row, each in zip(part, whole, strict=True)], len(part)

    def exported(self, snapshot: Snapshot, rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[bytes], list[bytes]]]:
        """Yield format, bytes as other programs read them, and `.metadata` entries, of rows that are verified."""
        for run in _runs(rows):
            segment = snapshot.segment(run[0][1])
            format, known = self._format(segment.format), self._known(snapshot, segment)
            for base, content, part in self._spans(snapshot, run, len(format.padding)):
                stored, beside = [content[row[2] - base : row[2] - base + row[3]] for row in part], list[bytes]()
                if format.is_dir:
                    beside = [self._directories.beside(segment.id, segment.name, known, row[2]) for row in part]
                yield format.name, self._verified(segment, format, part, stored), beside

    def _verified(
        self, segment: Segment, format: Format, rows: Sequence[Row], stored: Sequence[bytes]
    ) -> Sequence[bytes]:
        """Return the bytes of rows of one segment as other programs read them, after comparing their checksums."""
        try:
            format.verify(stored)
            return format.exported(stored)
        except FrameCorrupt as error:
            raise self._located(error, segment, rows[error.context["position"]]) from None

    def contents(
        self, snapshot: Snapshot, rows: list[Row], on_read: Callable[[int, bytes], object] = lambda *_: None
    ) -> Iterator[bytes]:
        """Yield the bytes of rows of one segment, without padding; `on_read` gets position and bytes of plain reads."""
        segment = snapshot.segment(rows[0][1])
        format = self._format(segment.format)
        for base, content, part in self._spans(snapshot, rows, len(format.padding)):
            if not segment.end.compressed and not self._files.is_encrypted(segment.id):
                on_read(base, content)
            payloads = [content[row[2] - base : row[2] - base + row[3]] for row in part]
            if not format.padding:  # else `_spans` has checked it
                for row, each in zip(part, payloads, strict=True):
                    self._check_end(format, segment, row[2], row[3], each[-TAIL:])
            yield from payloads

    def data(self, snapshot: Snapshot, rows: list[Row]) -> Iterator[list[Any]]:
        """Yield the content of rows of one segment as `Datum.data`, several at a time, without declared fields."""
        segment = snapshot.segment(rows[0][1])
        format = self._format(segment.format)
        for base, content, part in self._spans(snapshot, rows, len(format.padding)):
            payloads = [content[row[2] - base : row[2] - base + row[3]] for row in part]
            if format.raw:
                yield payloads
                continue
            yield [*self._loaded(segment, part, format, payloads).data]

    def file_of(self, segment: Segment) -> ReadableFile:
        """Return the open file of a segment; raise SegmentMissing if it is not on disk."""
        return self._files.file_of(segment.id, segment.name, self._committed(segment))

    def check_whole(self, snapshot: Snapshot, id_: int, rows: Sequence[Row] | None = None) -> None:
        """Raise if the bytes of a segment, or of some rows, do not have the recorded checksum.

        Without a recorded checksum, raise if a check has recorded damage.

        Cost: reads the segment; with `rows`, after the first time, only around these data; see `WholeFiles`. Nothing if
            each datum has a checksum.
        """
        segment = snapshot.segment(id_)
        if self._format(segment.format).has_checksums:
            return
        segment = snapshot.fresh(segment)
        committed = self._committed(segment)
        file = self._files.file_of(id_, segment.name, committed)
        if rows is None:
            is_whole = committed.is_whole_in(file)
        else:
            is_whole = self._whole.holds(id_, file, committed, ((row[2], row[2] + row[3]) for row in rows))
        if is_whole is False:
            raise self.wrong_checksum(segment)
        if is_whole is None and (damage := segment_rows.noted_of(snapshot, segment)[0]) is not None:
            hint = restore_or_salvage(self._directory, segment.name)
            raise SegmentCorrupt(f"{segment.name!r} is damaged: {damage.reason}", hint=hint, segment=segment.name)

    def wrong_checksum(self, segment: Segment) -> SegmentCorrupt:
        """Return the error for a segment whose bytes have changed since ondisk wrote them."""
        how = command("check", self._directory.path, "--accurate")
        return SegmentCorrupt(
            f"the first {segment.end.size} bytes of {segment.name!r} do not have their checksum: they have changed",
            hint=f"{RESTORE}. {how} reports the damaged data.",
            segment=segment.name,
        )

    def has_changed(self, snapshot: Snapshot, id_: int) -> bool:
        """Read a concat segment; return whether it lacks the checksum in the index, False without one."""
        segment = snapshot.fresh(snapshot.segment(id_))
        return self._committed(segment).is_whole_in(self.file_of(segment)) is False

    def folder_of(self, segment: Segment) -> Directory:
        """Return the open directory of a dir segment; raise SegmentMissing, or SegmentCorrupt if it is another."""
        return self._directories.folder_of(segment.id, segment.name, partial(self._committed, segment))

    def forget(self, generation: int) -> None:
        """Close the file of a generation that was removed."""
        self._files.forget(generation)

    def look_up(self, index: Index, key: Key) -> list[Datum] | None:
        """Return the datum that a complete unique key names, as a list of one or none; None if only a query can."""
        found = index.look_up(key)
        if found is None:
            return None
        data = []
        for row, segment, metadata in found:
            if segment.end.compressed:
                return None  # only a snapshot knows its blocks
            # Without a snapshot a repack may remove the file before it is opened. An open file stays readable.
            format = self._format(segment.format)
            padding = format.padding
            payload = self._files.read_open(segment.id, row[2], row[3] + len(padding))
            if payload is None:
                return None
            if padding:
                if not payload.endswith(padding):
                    self._check_end(format, segment, row[2], len(payload), payload[row[3] :])
                payload = payload[: row[3]]
            data.append(self._one(segment, metadata, row, payload, partial(self._committed, segment)))
        return data

    def read(self, snapshot: Snapshot, location: Location) -> Datum:
        """Return the datum at a location; raise DatumNotFound if no datum is there; a repack may have moved it."""
        segment, row, payload = self._at(snapshot, location)
        return self._one(segment, snapshot.metadata(row[4:]), row, payload, self._known(snapshot, segment))

    def payload(self, snapshot: Snapshot, location: Location) -> bytes:
        """Return the bytes of the datum at a location, without padding; raise DatumNotFound, or FrameCorrupt."""
        segment, row, payload = self._at(snapshot, location)
        return self._verified(segment, self._format(segment.format), [row], [payload])[0]

    def _at(self, snapshot: Snapshot, location: Location) -> tuple[Segment, Row, bytes]:
        segment = snapshot.segment_named(location.segment)
        if segment is not None and location.generation not in (None, segment.id):
            segment = None  # at its offset is another datum, if any
        if segment is not None and self._format(segment.format).is_dir:
            is_place = 0 <= location.offset < segment.end.length and 0 <= location.size <= INTEGER_MAX
            row = snapshot.row_at(segment, location.offset, location.size) if is_place else None
            if row is not None:
                return segment, row, self._file(segment, self._known(snapshot, segment), row)
        elif (
            segment is not None and location.offset >= 0 and 0 <= location.size <= segment.end.length - location.offset
        ):
            format, place = self._format(segment.format), (location.offset, location.size)
            payload = b""
            try:
                payload = self.content(snapshot, segment, *place)
                row = snapshot.row_at(segment, *place, format.describe(payload))
            except IntegrityError as error:
                row = snapshot.row_at(segment, *place)
                if row is not None and not isinstance(error, FrameCorrupt):
                    raise
            if row is not None:
                return segment, row, payload
        hint = "It was deleted, replaced or moved by a repack: query for it again."
        raise DatumNotFound(f"no datum is at {location}", hint=hint, location=location)

    def undeclared(self, snapshot: Snapshot, row: Row) -> Mapping[str, Any]:
        """Return the metadata of a row (reftime, segment id, offset, size) that no field declares."""
        segment = snapshot.segment(row[1])
        format = self._format(segment.format)
        if not format.undeclared:
            return NO_METADATA
        if format.is_dir:
            known = self._known(snapshot, segment)
            payload = self._directories.beside(segment.id, segment.name, known, row[2])
        else:
            ((_, content, _),) = self._spans(snapshot, [row], len(format.padding))
            payload = content[: row[3]]
        loaded = self._loaded(segment, [row], format, [payload])
        return loaded.undeclared[0] if loaded.undeclared else NO_METADATA

    def with_data(self, snapshot: Snapshot, run: list[Row], on_damage: OnDamage = None) -> Iterator[list[Datum]]:
        """Yield the data of rows of one segment. If some are damaged, yield those that precede them, then raise."""
        return self._readable(snapshot, run, self._data, on_damage)

    def _data(self, snapshot: Snapshot, run: list[Row]) -> Iterator[tuple[list[Datum], int]]:
        segment = snapshot.segment(run[0][1])
        format = self._format(segment.format)
        for base, content, rows in self._spans(snapshot, run, len(format.padding)):
            data = _made(snapshot, rows, content, base)
            if format.undeclared or not format.raw:
                self._decode(segment, data, rows, format, self._known(snapshot, segment))
            yield data, len(rows)

    def _readable(
        self,
        snapshot: Snapshot,
        run: list[Row],
        read: Callable[[Snapshot, list[Row]], Iterator[tuple[list[_T], int]]],
        on_damage: OnDamage,
    ) -> Iterator[list[_T]]:
        """Yield what is read of rows of one segment; halve those that cannot be read together, to find the damage."""
        try:
            for some, count in read(snapshot, run):
                yield some
                run = run[count:]
        except OndiskError as error:
            if not _is_damage(error) or (on_damage is None and isinstance(error, SegmentMissing)):
                raise
            is_gone = isinstance(error, SegmentMissing) and not self._format(snapshot.segment(run[0][1]).format).is_dir
            if len(run) == 1 or is_gone:  # of a file that is missing, nothing more is tried
                if on_damage is None:
                    raise
                for row in run:
                    on_damage(self._location(snapshot, row), error)
                return
            half = len(run) // 2
            yield from self._readable(snapshot, run[:half], read, on_damage)
            yield from self._readable(snapshot, run[half:], read, on_damage)

    def _location(self, snapshot: Snapshot, row: Row) -> Location:
        return Location.of(snapshot.segment(row[1]).name, row)

    def _one(
        self, segment: Segment, metadata: Mapping[str, Any], row: Row, payload: bytes, known: Callable[[], Committed]
    ) -> Datum:
        format = self._format(segment.format)
        datum = Datum.stored(from_microseconds(row[0]), metadata, payload, segment.name, row)
        if format.undeclared or not format.raw:
            self._decode(segment, [datum], [row], format, known)
        return datum

    def _decode(
        self, segment: Segment, data: list[Datum], rows: list[Row], format: Format, known: Callable[[], Committed]
    ) -> None:
        """Decode the bytes of data, and add the metadata that are only in the segment."""
        if format.is_dir:
            payloads = [self._directories.beside(segment.id, segment.name, known, row[2]) for row in rows]
        else:
            payloads = [datum.data for datum in data]
        loaded = self._loaded(segment, rows, format, payloads)
        if not format.raw:
            for datum, content in zip(data, loaded.data, strict=True):
                datum.data = content
        if loaded.undeclared is not None:
            for datum, undeclared in zip(data, loaded.undeclared, strict=True):
                if undeclared:
                    datum.metadata = {**undeclared, **datum.metadata}

    def _loaded(self, segment: Segment, rows: list[Row], format: Format, payloads: list[bytes]) -> Loaded:
        """Decode the payloads of rows of one segment, and compare their reftimes with the index."""
        try:
            loaded = format.load(payloads)
        except FrameCorrupt as error:
            raise self._located(error, segment, rows[error.context["position"]]) from None
        if loaded.reftimes is not None and loaded.reftimes != [row[0] for row in rows]:
            row, reftime = next(pair for pair in zip(rows, loaded.reftimes, strict=True) if pair[0][0] != pair[1])
            problem = f"it is a datum of {from_microseconds(reftime)}, the index says {from_microseconds(row[0])}"
            raise self._located(FrameCorrupt(problem), segment, row)
        return loaded

    def _located(self, error: FrameCorrupt, segment: Segment, row: Row) -> FrameCorrupt:
        location = Location.of(segment.name, row)
        hint = restore_or_salvage(self._directory, segment.name)
        return FrameCorrupt(f"{location}: {error.message}", hint=hint, location=location)

    def _spans(self, snapshot: Snapshot, run: list[Row], padding: int = 0) -> Iterator[tuple[int, bytes, list[Row]]]:
        """Read the bytes of rows, neighbours at once; yield the offset of the first byte, the bytes, and their rows.

        A dir segment has the number of a file in place of an offset, and no padding. Elsewhere `SegmentCorrupt` is
        raised of data that are not followed by `padding` bytes; see `_check_ends`.
        """
        segment = snapshot.segment(run[0][1])
        begin = min(map(_offset_of, run))
        if begin >= 0 and self._format(segment.format).is_dir:
            known = self._known(snapshot, segment)
            for row in run:
                yield row[2], self._file(segment, known, row), [row]
            return
        last = max(run, key=_offset_of)
        size = last[2] + last[3] - begin
        wanted = sum(map(_size_of, run))
        if wanted > size or min(map(_size_of, run)) < 0 or begin < 0 or begin + size > INTEGER_MAX:
            raise misplaced(snapshot, segment, begin)
        if len(run) > 1 and (size > _SPAN or size > 2 * wanted + _GAPS):
            half = len(run) // 2
            yield from self._spans(snapshot, run[:half], padding)
            yield from self._spans(snapshot, run[half:], padding)
            return
        places = [(row[2], row[3]) for row in run] if wanted < size and not padding else ()
        content = self.content(snapshot, segment, begin, size + padding, places)
        if padding:
            self._check_ends(segment, begin, content, run, wanted)
        yield begin, content, run

    def _check_ends(self, segment: Segment, begin: int, content: bytes, rows: list[Row], wanted: int) -> None:
        """Raise `SegmentCorrupt` if a datum is not followed by its padding; of data without gaps, only the last counts.

        The content begins at `begin`. Data have no gaps if their `wanted` bytes and their padding fill it.
        """
        format = self._format(segment.format)
        padding = len(format.padding)
        if content.endswith(format.padding) and wanted + padding * len(rows) == len(content):
            return
        tails = {content[(end := row[2] + row[3] - begin) : end + padding] for row in rows}
        if not all(format.ends(tail, padding) for tail in tails):
            for row in rows:
                end = row[2] + row[3] - begin
                self._check_end(format, segment, row[2], row[3] + padding, content[end : end + padding])

    def _check_end(self, format: Format, segment: Segment, offset: int, size: int, tail: bytes) -> None:
        """Raise `SegmentCorrupt` unless a datum with its padding ends as the index says; else a copy might be cut."""
        if not format.ends(tail, size):
            size -= len(format.padding)
            problem = f"{segment.name!r} has no datum of {size} bytes at byte {offset}, although the index says so"
            rebuild = command("fix", self._directory.path, "--rebuild", "--yes")
            hint = f"{rebuild} moves the index aside, and rebuilds it from the segments, which contain the data."
            raise SegmentCorrupt(problem, hint=hint, segment=segment.name)

    def _known(self, snapshot: Snapshot, segment: Segment) -> Callable[[], Committed]:
        """Return a function that reads what is committed of a segment from the snapshot: appends have changed it."""
        return lambda: self._committed(snapshot.fresh(segment))

    def _file(self, segment: Segment, known: Callable[[], Committed], row: Row) -> bytes:
        """Return the bytes of a file of a dir segment; raise unless it is as the index and its entry say."""
        try:
            return self._directories.read(segment.id, segment.name, known, row[2], row[3])
        except FrameCorrupt as error:
            raise self._located(error, segment, row) from None

    def has_bytes(self, name: str) -> bool:
        """Return whether the data of a format are exactly their bytes in the segment."""
        format = self._format(name)
        return format.raw and not format.is_dir

    def has_undeclared(self, snapshot: Snapshot) -> bool:
        """Return whether data can have metadata that are not in the index."""
        return any(self._format(name).undeclared for name in segment_rows.formats(snapshot))

    def content(
        self, snapshot: Snapshot, segment: Segment, begin: int, size: int, places: Sequence[tuple[int, int]] = ()
    ) -> bytes:
        """Return decompressed bytes of a concat segment, or raise; `places`: the wanted ones, if not all are."""
        if not segment.end.compressed:
            return self._read(snapshot, segment, begin, size, places)
        format = self._format(segment.format)
        blocks = snapshot.blocks(segment.id, begin, begin + size)
        first, last = blocks[0], blocks[-1]
        if begin + size > last.offset + format.block_size:  # before memory is allocated for it
            problem = f"its rows of {segment.name!r} reach past the end of their block near byte {begin + size}"
            raise snapshot.corrupt(problem, segment=segment.name)
        end = last.position + last.stored
        if end > segment.end.size:
            segment = snapshot.fresh(segment)  # an append may have made it longer
            if end > segment.end.size:
                self.file_of(segment)  # raises if the file is another one
                problem = (
                    f"the blocks of {segment.name!r} near byte {begin} of the decompressed bytes reach past its end"
                )
                raise snapshot.corrupt(problem, segment=segment.name)
        position = first.position
        stored = self._read(snapshot, segment, position, last.position + last.stored - position)
        view = memoryview(stored)
        pieces = []
        for block, block_end in zip(blocks, [*(each.offset for each in blocks[1:]), last.end], strict=True):
            at = block.position - position
            piece = _unpacked(format, segment, block.position, view[at : at + block.stored])
            if block_end is not None and block.offset + len(piece) != block_end:
                raise _other_size(segment, block_end)
            pieces.append(piece)
        content = b"".join(pieces)
        content = content[begin - first.offset : begin - first.offset + size]
        if len(content) < size:
            raise _other_size(segment, begin + size)
        return content

    def _read(
        self, snapshot: Snapshot, segment: Segment, position: int, size: int, places: Sequence[tuple[int, int]] = ()
    ) -> bytes:
        def known() -> tuple[str, Committed]:
            now = snapshot.fresh(segment)
            return now.name, self._committed(now)

        return self._files.read(segment.id, known, position, size, places)

    def _sealer(self, file: SegmentFile, name: str) -> Sealer | None:
        format = of_extension(name.rpartition(".")[2], self._config)
        return None if format is None else self._format(format).sealer(file, name)

    def _committed(self, segment: Segment) -> Committed:
        format = self._format(segment.format)
        if self._ignore_ends and format.has_checksums:
            segment = segment._replace(facts=segment.facts._replace(tail=None))
        return segment.committed(format.mutable)

    def _format(self, name: str) -> Format:
        format = self._formats.get(name)
        if format is None:
            format = self._formats[name] = find(name)(self._config)
        return format


def _is_damage(error: OndiskError) -> bool:
    """Return whether an error concerns some data only, which a query may leave out: others can still be read."""
    if isinstance(error, StorageError):
        return error.context.get("errno") == errno.EIO  # a bad sector
    # A flipped bit in a header makes a segment look encrypted, with a key that nobody has.
    return isinstance(error, FrameCorrupt | SegmentCorrupt | SegmentMissing | AuthenticationFailed | KeyMissing)


def _unpacked(format: Format, segment: Segment, position: int, stored: memoryview) -> bytes:
    try:
        return format.unpack(stored)
    except SegmentCorrupt as error:
        message = f"{segment.name}, at byte {position} of the file: {error.message}"
        raise SegmentCorrupt(message, hint=_OTHER_BLOCKS, segment=segment.name, position=position) from None


def misplaced(snapshot: Snapshot, segment: Segment, begin: int) -> IndexCorrupt:
    """Return the error for rows of the index that overlap, or are at an impossible place."""
    problem = f"its rows of {segment.name!r} near byte {begin} overlap or are out of range"
    return snapshot.corrupt(problem, segment=segment.name)


def _other_size(segment: Segment, offset: int) -> SegmentCorrupt:
    """Return the error for a block of another size, as a changed byte may leave: blocks have no checksum."""
    where = f"{segment.name}: the block before byte {offset} of the decompressed bytes"
    return SegmentCorrupt(
        f"{where} does not have the size that the index says", hint=_OTHER_BLOCKS, segment=segment.name
    )


def _runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Cut rows into runs of one segment each. Segments of two formats may alternate, even in order of time."""
    if len(set(map(_segment_of, rows))) == 1:
        yield [*rows]
        return
    for _, run in groupby(rows, _segment_of):
        yield list(run)


def _without_data(snapshot: Snapshot, rows: list[Row]) -> list[Datum]:
    segment = snapshot.segment(rows[0][1]).name
    metadata = snapshot.metadata_of_rows(rows)
    return [
        Datum.stored(from_microseconds(row[0]), each, None, segment, row)
        for row, each in zip(rows, metadata, strict=True)
    ]


def _made(snapshot: Snapshot, rows: list[Row], content: bytes, base: int) -> list[Datum]:
    """Return the data of rows of one segment, from `content` at offset `base`; a million times, so with few calls."""
    segment = snapshot.segment(rows[0][1]).name
    reftime, time = None, EPOCH
    data = [*map(Datum.__new__, repeat(Datum, len(rows)))]
    for datum, row, metadata in zip(data, rows, snapshot.metadata_of_rows(rows), strict=True):
        if row[0] != reftime:
            reftime = row[0]
            time = EPOCH + timedelta(0, 0, reftime)
        datum.reftime = time
        datum.metadata = metadata
        start = row[2] - base
        datum.data = content[start : start + row[3]]
        datum._segment = segment
        datum._place = row
    return data


def check_limit(limit: int | None, name: str = "limit", hint: str = "Pass no limit to get all data.") -> None:
    """Raise InvalidInput unless a limit is None or a whole number of 0 or more."""
    if limit is not None and (type(limit) is not int or not 0 <= limit <= INTEGER_MAX):
        raise InvalidInput(f"{name} must be a whole number of 0 or more, not {shown(limit)}", hint=hint)
