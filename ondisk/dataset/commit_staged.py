"""Commit what many processes have staged; see `ondisk.staging.stage`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import AppendResult
from ondisk.dataset.batch_writer import BatchWriter, DataWriter, Destination
from ondisk.dataset.place_checks import away_segments, check_known
from ondisk.dataset.query import Match, Query
from ondisk.dataset.segment_layout import Roll
from ondisk.datum import FieldType, restored
from ondisk.errors import DuplicateDatum, IndexCorrupt, InvalidInput, SegmentMissing, StateError, StorageError, command
from ondisk.filesystem import ReadableFile
from ondisk.formats import Format
from ondisk.index import import_log
from ondisk.index.import_log import Mark
from ondisk.index.index import dump
from ondisk.index.precedence import FIRST, Precedence
from ondisk.index.transaction import Transaction
from ondisk.matcher import reftime_interval
from ondisk.segments.concat_writer import MustRewrite, SegmentWriter
from ondisk.staging.bulk_insert import Incoming
from ondisk.staging.jobs import STAGED, remove
from ondisk.staging.rows import Piece, damaged, merge
from ondisk.staging.stage import DATA, ROWS, FinishedStage

OnDuplicate: TypeAlias = Literal["skip", "fail"]
Duplicates: TypeAlias = Callable[[Iterator[tuple[str, Format, list[bytes]]]], None]
"""Receives the data that a commit skips as duplicates: name of a stage, format and bytes of some of its data."""

Record: TypeAlias = Callable[[Transaction, AppendResult], None]
"""Receives what a commit does, before it is committed, and can add to the transaction."""

_Opened: TypeAlias = Callable[[str], ReadableFile]
_AGAIN = "Stage the data again."


def commit(
    access: Access,
    job: str,
    staged: Sequence[FinishedStage],
    renew: Callable[[str], None],
    *,
    on_duplicate: OnDuplicate = "skip",
    overwrite: Match = None,
    duplicates: Duplicates | None = None,
    record: Record | None = None,
) -> AppendResult:
    """Store what was staged, in the order of the stages, and remove all files of the job.

    A stage whose mark was stored before is skipped. The marks of the others are stored in the same commit, even if all
    their data are duplicates.

    Args:
        renew: rewrites a segment to which nothing can be appended as it is.
        on_duplicate: skip data that the dataset or an earlier stage has already, or fail and store nothing. Data that
            replace others are not duplicates.
        overwrite: all data that match are replaced by what was staged; None replaces nothing.
        duplicates: called with the skipped data, if there are any, under the lock and before the commit.
        record: called under the lock and before the commit, unless all stages were stored before.

    Raises:
        DuplicateDatum: `on_duplicate` is "fail", and there are duplicates.
        StateError: the staged files are missing or damaged, or the configuration of the dataset has changed since.
        NeedsCheck: data must be overwritten, but an index was lost, and may not know all data.
        SegmentMissing: a duplicate of a datum that is away; or data must be overwritten, and what is away may have some
            that the index does not know.
        InvalidInput: stages with marks must overwrite.
        LockError, StorageError: as `Dataset.append`; nothing is stored, or after DurabilityLost, possibly something.

    Durability: inserts rows and deletes overwritten data (uncommitted) → writes bytes at the ends of segments, then the
        counts in headers → syncs each segment, and the directories of new ones → commits. A crash before the commit
        leaves the staged files of the job, and bytes that nobody reads and the next append cuts off. A crash after it
        leaves the staged files.
    Locks: the writers' lock, but not while the rows of several stages are merged.
    Cost: rows are inserted inside SQLite, and bytes are copied inside the kernel. Only pieces (the data of one stage in
        one segment) that contain duplicates, or are not compressed like their segment, are read and written again.
    """
    access.check_not_failed()  # then the job stays, for a commit after the disk was mended
    try:
        marked = dict.fromkeys(each.mark for each in staged if each.mark is not None)
        if marked and overwrite is not None:
            raise InvalidInput("stages that have marks cannot overwrite", hint="Use either marks or a match.")
        path = _merged_rows(access, job, staged)
        while True:
            try:
                with access.user_transaction("append") as transaction:
                    before = import_log.known(transaction, marked)
                    if before:
                        staged = [each for each in staged if each.mark not in before]
                        path = _merged_rows(access, job, staged)
                    new = marked.keys() - before
                    work = _Commit(access, transaction, job, duplicates, None if before and not staged else record)
                    result = work.run(staged, path, new, on_duplicate, overwrite)
                    result.skipped = [mark for mark in marked if mark in before]
                break
            except MustRewrite as error:
                renew(error.name)
    except (IndexCorrupt, StorageError) as error:
        # SQLite does not report which file is damaged, and the hint for a damaged index would be wrong.
        if type(error) in (IndexCorrupt, StorageError) and (path := damaged(access.directory, _rows(job, staged))):
            raise StateError(f"{path} is damaged: nothing was stored", hint=_AGAIN) from error
        raise
    finally:
        remove(access.directory, job)
    return result


def _merged_rows(access: Access, job: str, staged: Sequence[FinishedStage]) -> str | None:
    """Return the file with the rows of all stages; None if there are none."""
    names = _rows(job, staged)
    for name in names:
        if access.directory.regular_file(name) is None:
            path = access.directory.path / name
            raise StateError(f"{path} does not exist: it was removed, or written on another filesystem", hint=_AGAIN)
    if len(names) > 1:
        merged = f"{STAGED}/{job}/merged-{len(names)}{ROWS}"
        access.directory.discard(merged)  # of an attempt with as many other stages
        merge(access.directory, names, merged, access.config.fields)
        names = [merged]
    return str(access.directory.path / names[0]) if names else None


def _rows(job: str, staged: Sequence[FinishedStage]) -> list[str]:
    return [f"{STAGED}/{job}/{each.name}{ROWS}" for each in staged if each.count]


class _Commit:
    """One commit. The caller must hold the writers' lock."""

    def __init__(
        self, access: Access, transaction: Transaction, job: str, duplicates: Duplicates | None, record: Record | None
    ) -> None:
        self._duplicates = duplicates
        self._record = record
        self._access = access
        self._transaction = transaction
        self._folder = f"{STAGED}/{job}"
        self._config = access.config
        self._segments: dict[str, _Segment] = {}
        self._writer = BatchWriter(access.directory, transaction, trusted=not access.has_sentinel())
        self._roll: Roll | None = None

    def run(
        self,
        staged: Sequence[FinishedStage],
        path: str | None,
        new: Collection[Mark],
        on_duplicate: OnDuplicate,
        overwrite: Match,
    ) -> AppendResult:
        access, transaction = self._access, self._transaction
        if any(each.built_for != dump(access.config) for each in staged):
            raise StateError(f"{access.path} was configured again after the data were staged", hint=_AGAIN)
        removed = 0
        if overwrite is not None:
            index = access.current().index
            tree = Query(overwrite).tree(index)
            access.check_trusted()  # data that are not in the index would come back, beside what replaces them
            with index.snapshot() as snapshot:
                check_known(snapshot, reftime_interval(tree), complete=True)
            removed = transaction.delete(tree)
        result = AppendResult()
        if path is not None:
            with contextlib.closing(Incoming(transaction, path)) as incoming:
                result = self._store(incoming, on_duplicate)
        result.overwritten = removed
        if result.imported or result.replaced or removed or new or self._record is not None:
            import_log.save(transaction, new)
            if self._record is not None:
                self._record(transaction, result)
            transaction.check_space()
            transaction.commit()
        return result

    def _store(self, incoming: Incoming, on_duplicate: OnDuplicate) -> AppendResult:
        self._find_segments(incoming)
        incoming.place(self._placed())
        imported = incoming.insert()
        skipped, replaced = incoming.count - imported, 0
        if skipped and self._duplicates is not None:
            incoming.note_duplicates()
        if skipped and (precedence := Precedence.of(self._config)) != FIRST:
            again = incoming.settle(precedence)
            skipped, replaced = skipped - again, again
        if skipped and (away := away_segments(self._access)) and incoming.has_duplicates_in(away):
            raise SegmentMissing(f"nothing was stored: {next(iter(away.values()))}", hint=_AGAIN)
        if skipped and on_duplicate == "fail":
            raise self._duplicate(incoming, skipped)
        if skipped and self._duplicates is not None:
            self._duplicates(self._skipped(incoming))
        if imported < incoming.count or any(segment.destination.format.is_dir for segment in self._segments.values()):
            self._lay_out_again(incoming)
        incoming.add_to_sums()
        written = {name: segment for name, segment in self._segments.items() if segment.pieces}
        self._write(incoming, written)
        size = sum(segment.size for segment in written.values())
        kept = self._writer.kept
        return AppendResult(imported, skipped, replaced, bytes=size, kept=kept, _segments={*written})

    def _find_segments(self, incoming: Incoming) -> None:
        access, found = self._access, incoming.pieces()
        for format in map(access.format, {piece.format for piece in found}):
            self._roll = access.layout.roll(self._writer, self._config, format)
        if self._roll is not None:
            self._divide(self._roll, found)
            return
        pieces: dict[str, list[Piece]] = {}
        for piece in found:
            pieces.setdefault(piece.name, []).append(piece)
        known = self._transaction.segments(pieces)
        for name, mine in pieces.items():
            interval = self._config.step.interval(name.rpartition(".")[0])
            assert interval is not None, "the stage named it"
            format = access.format(mine[0].format)
            destination = self._writer.destination(known.get(name), name, interval, format)
            if any(piece.kind != destination.start.laid.end.kind for piece in mine) and not format.is_dir:
                path = access.path
                problem = f"{path}: the segment {name} is not stored as dataset.toml says; nothing was stored"
                raise StateError(problem, hint=f"{command('repack', path, '--yes', '--rewrite')} rewrites it.")
            self._segments[name] = _Segment(destination, mine)

    def _divide(self, roll: Roll, pieces: Sequence[Piece]) -> None:
        """Divide pieces among segments by size."""
        if not pieces:
            return
        begin, self._segments = 0, {}
        for destination, number in roll.runs([piece.length for piece in pieces]):
            mine = [*pieces[begin : begin + number]]
            self._segments[destination.segment.name] = _Segment(destination, mine)
            begin += number

    def _placed(self) -> Iterator[tuple[int, int, int, int]]:
        for segment in self._segments.values():
            format, shift = segment.destination.format, segment.destination.start.laid.end.length
            padding = -1 if format.is_dir else len(format.padding)
            for piece in segment.pieces:
                yield piece.id, segment.destination.segment.id, shift, padding
                shift += piece.length

    def _lay_out_again(self, incoming: Incoming) -> None:
        kept = incoming.kept()
        for segment in self._segments.values():
            segment.keep(kept)
        if self._roll is not None:
            self._divide(self._roll, [piece for segment in self._segments.values() for piece in segment.pieces])
        incoming.place(self._placed())
        incoming.move()

    def _skipped(self, incoming: Incoming) -> Iterator[tuple[str, Format, list[bytes]]]:
        pieces = {piece.id: (piece, segment) for segment in self._segments.values() for piece in segment.pieces}
        for number, places in incoming.duplicates():
            piece, segment = pieces[number]
            payloads = segment.payloads(piece, incoming, self._open, places)
            yield piece.part.removesuffix(DATA), segment.destination.format, payloads

    def _duplicate(self, incoming: Incoming, count: int) -> DuplicateDatum:
        message = f"{self._access.path}: {count} of {incoming.count} data are duplicates"
        found = incoming.first_duplicate() if self._config.replace == "no" else None
        if found is not None:
            kinds = {**self._config.fields, "reftime": FieldType.TIMESTAMP}
            values = (f"{name} {restored(value, kinds[name])!s}" for name, value in found.items() if value is not None)
            message += f", the first has {', '.join(values)}"
        return DuplicateDatum(
            f"{message}; nothing was stored", hint="Use on_duplicate=skip to store the others.", count=count
        )

    def _write(self, incoming: Incoming, segments: Mapping[str, _Segment]) -> None:
        if self._roll is not None:
            for segment in segments.values():
                segment.destination.interval = incoming.span_of(segment.destination.segment.id)
        pieces = ((segment, piece) for segment in segments.values() for piece in segment.pieces)
        incoming.keep(piece.id for segment, piece in pieces if not segment.is_copied(piece))

        def fill(destination: Destination, writer: DataWriter) -> None:
            segments[destination.segment.name].write(writer, incoming, self._open)

        def renumber() -> None:
            incoming.place(self._placed())
            incoming.move()

        self._writer.write([segment.destination for segment in segments.values()], fill, renumber)

    def _open(self, part: str) -> ReadableFile:
        try:
            return self._access.directory.open_to_read(f"{self._folder}/{part}")
        except FileNotFoundError:
            path = self._access.directory.path / self._folder / part
            raise StateError(f"{path} does not exist: it was removed", hint=_AGAIN) from None


@dataclass(slots=True)
class _Segment:
    destination: Destination  # where it continues
    pieces: list[Piece]  # those with data to store; their `count`, `length` and `data_size` exclude duplicates

    @property
    def size(self) -> int:
        """Bytes of the data to store, without padding."""
        return sum(piece.data_size for piece in self.pieces)

    def keep(self, kept: Mapping[int, tuple[int, int]]) -> None:
        """Drop all duplicates. `kept`: piece → number and bytes of the data to store."""
        pieces = []
        for piece in self.pieces:
            count, size = kept.get(piece.id, (0, 0))
            if count:
                length = self.destination.format.extent(count, size)
                is_whole = count == piece.count
                pieces.append(replace(piece, count=count, length=length, data_size=size, is_whole=is_whole))
        self.pieces = pieces

    def is_copied(self, piece: Piece) -> bool:
        """Return whether the bytes of a piece can be copied as a whole."""
        is_compressed = self.destination.start.laid.end.compressed
        return piece.is_whole and not self.destination.format.is_dir and piece.compressed == is_compressed

    def write(self, writer: DataWriter, incoming: Incoming, opened: _Opened) -> None:
        for piece in self.pieces:
            if isinstance(writer, SegmentWriter) and self.is_copied(piece):
                blocks = incoming.blocks(piece) if piece.compressed else ()
                place = piece.position, piece.size
                file = _whole(piece, opened)
                sealer = self.destination.format.staged_sealer(file)
                writer.copy(file, *place, count=piece.count, length=piece.length, blocks=blocks, sealer=sealer)
            else:
                kept = [*incoming.kept_of(piece)]
                payloads = self.payloads(piece, incoming, opened, [(at, size) for at, size, _ in kept])
                writer.add(payloads, [beside for _, _, beside in kept])

    def payloads(
        self, piece: Piece, incoming: Incoming, opened: _Opened, places: Sequence[tuple[int, int]]
    ) -> list[bytes]:
        file = _whole(piece, opened)
        content = file.read(piece.position, piece.size)
        if (sealer := self.destination.format.staged_sealer(file)) is not None:
            content = sealer.unseal(piece.position, content)
        if piece.compressed:
            stored = memoryview(content)
            content = b"".join(
                self.destination.format.unpack(stored[block.position : block.position + block.stored])
                for block in incoming.blocks(piece)
            )
        return [content[at : at + size] for at, size in places]


def _whole(piece: Piece, opened: _Opened) -> ReadableFile:
    """Open the file of a piece; raise unless it contains the whole piece."""
    file = opened(piece.part)
    if file.size() < piece.position + piece.size:
        message = f"{file.path} is damaged: it ends before byte {piece.position + piece.size}; nothing was stored"
        raise StateError(message, hint=_AGAIN)
    return file
