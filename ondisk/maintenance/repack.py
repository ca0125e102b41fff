"""Repack: rewrites segments without holes and in query order, and removes what is deleted or too old."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.dataset.read import TAIL, Reader, check_end
from ondisk.errors import DiskFull, IntegrityError, OndiskError, SegmentMissing
from ondisk.filesystem import ReadableFile, WritableFile
from ondisk.formats import End, Format, is_dir
from ondisk.index import Row, Segment, Snapshot, Transaction, places
from ondisk.maintenance import dir_segments, staged
from ondisk.maintenance.archive import UNMOVABLE, archived
from ondisk.maintenance.census import check_trusted, diagnoses, examine, why_kept
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.states import FATAL, REPACKED, Diagnosis, Done, Report, State
from ondisk.segments import generations

_PIECE = 4 * 1024 * 1024  # bytes that are laid together
_WORTH_COPYING = 10 * 1024  # bytes of a span; smaller ones are read together and written together

_DROPPED = State.DELETED | State.DELETE_AGE | State.MISSING


def repack(
    access: Access, archives: Archives, now: float | None = None, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Carry out what `check` says that a repack does; each segment is diagnosed again first, under the lock.

    Args:
        now: seconds since 1970; None for the present.
        progress: is told the name of each segment before it is looked at.

    Raises:
        NeedsCheck: the sentinel stands: what the index does not know may be data that it has lost.
        DurabilityLost: nothing more can be written; what was repacked before is.
        OndiskError: the first of what went wrong at single segments, when all others are done; DiskFull: there is no
            space for what is left. `error.context["report"]` tells what was done.

    Durability: see `ondisk.segments.generations`; a crash leaves each segment as it was or as it is to be.
    Locks: the writers' lock, for each segment anew; for one of the archive that of the archive, too. Readers are not
        disturbed.
    """
    parts = archives.maintained()
    for part in parts:
        check_trusted(part)
    report = Report(str(access.path))
    report.segments += staged.removed(access, now)
    errors: list[OndiskError] = []
    for part in parts:
        try:
            report.add(part.prefix, _repack(part, archives, now, progress, errors))
        except DiskFull as error:
            errors.append(error)
    report.sort()
    report.check_done(errors)
    return report


def _repack(
    access: Access,
    archives: Archives,
    now: float | None,
    progress: Callable[[str], None],
    errors: list[OndiskError],
) -> Iterator[Done]:
    """Repack one dataset, or one archive; what goes wrong at one segment is added to `errors`."""
    waiting = []
    for before in [*diagnoses(access, now)]:
        if before.state & REPACKED and State.CORRUPTED not in before.state:
            waiting.append(before)
        else:
            yield Done(before.segment, before.state, before.reasons)
    waiting.sort(key=lambda each: not each.state & _DROPPED)  # what gives space back comes first
    while waiting:
        freed, tried, waiting = 0, waiting, []
        for before in tried:
            progress(before.segment)
            try:
                with archives.counting(access, "repack"):
                    done = repacked(access, before.segment, now)
                if State.ARCHIVE_AGE in done.state and not done.state & UNMOVABLE:
                    moved = archived(access, archives, before.segment)
                    actions = " and ".join(filter(None, (done.action, moved.action)))
                    done = replace(done, action=actions, freed=done.freed + moved.freed)
            except DiskFull as error:  # others may need less, or give space back
                full = error
                waiting.append(before)
                continue
            except FATAL:
                raise
            except OndiskError as error:
                errors.append(error)
                done = before.failed("repacked", error)
            access.check_not_failed()
            freed += done.freed
            yield done
        if waiting and freed <= 0:
            raise full


def repacked(access: Access, name: str, now: float | None = None) -> Done:
    """Repack one segment, or remove it; what turns out to be damaged is left, and remembered."""
    try:
        return _repacked(access, name, now)
    except _Damaged as error:
        with access.transaction("repack") as transaction:
            transaction.note_check(error.segment, error.reason)
            transaction.commit()
        state = error.diagnosis.state | State.CORRUPTED
        return Done(name, state, (*error.diagnosis.reasons, error.reason))


class _Damaged(Exception):
    """The data of a segment cannot be read."""

    def __init__(self, diagnosis: Diagnosis, segment: Segment, reason: str) -> None:
        super().__init__(reason)
        self.diagnosis = diagnosis
        self.segment = segment
        self.reason = reason


def _repacked(access: Access, name: str, now: float | None) -> Done:
    with access.transaction("repack") as transaction:
        check_trusted(access)
        transaction.go_on_from(access.seq_elsewhere())
        reader = access.current().reader
        with access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
            if segment is not None and not is_dir(segment.format):
                generations.complete(access.directory, name, segment.id, segment.end.size)
            diagnosis, known = examine(access, snapshot, name, None, now)
            if diagnosis is None:
                return Done(name, State.OK, ("it has gone meanwhile",))
            state, reasons = diagnosis.state, diagnosis.reasons
            if not state & REPACKED or State.CORRUPTED in state:
                return Done(name, state, reasons)
            format = access.format(known.segment.format) if known is not None else access.format_of(name)
            rewrite = None
            if State.DIRTY in state and not state & _DROPPED and not format.is_dir:
                assert known is not None
                rewrite = _Rewrite(access, transaction, known)
                try:
                    rewrite.write(snapshot, reader)
                except (IntegrityError, SegmentMissing) as error:
                    rewrite.take_back()
                    raise _Damaged(diagnosis, known.segment, error.message) from error
                except BaseException:
                    rewrite.take_back()
                    raise
        if format.is_dir:
            return dir_segments.repacked(access, transaction, diagnosis, known)
        if rewrite is not None:
            return Done(name, state, reasons, "repack", rewrite.switch())
        if state & _DROPPED:
            return _dropped(access, transaction, diagnosis, known)
    return Done(name, state, reasons)


def _dropped(access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
    """Remove a segment: from the index, then from the disk."""
    directory, name = access.directory, diagnosis.segment
    if State.MISSING in diagnosis.state and (reason := why_kept(access, name)) is not None:
        return Done(name, diagnosis.state, (*diagnosis.reasons, reason))
    access.leave(name)
    found = None if State.MISSING in diagnosis.state else directory.stat(name)
    is_kept, lost = False, 0
    if known is not None:
        if found is not None:
            with contextlib.suppress(DiskFull):  # then its bytes stay in their place until nobody reads them
                generations.retire(directory, name, known.segment.id)
                is_kept = True
        lost = transaction.remove(known.segment)
    transaction.commit()  # of what the index does not know, too: it tells whether older snapshots may know it
    action = diagnosis.action
    if found is None or transaction.checkpoint_error is not None:
        lost = lost if State.MISSING in diagnosis.state else 0
        return Done(name, diagnosis.state, diagnosis.reasons, action, 0, lost)
    if not is_kept and not transaction.unread:
        reason = "a query that began earlier may still read it; a repack after that removes it"
        return Done(name, diagnosis.state, (*diagnosis.reasons, reason), action if known is not None else None)
    generations.discard(directory, [name])
    directory.sync(name.rpartition("/")[0])
    return Done(name, diagnosis.state, diagnosis.reasons, action, found.st_size)


class _Rewrite:
    """The rewriting of one segment to its next generation."""

    def __init__(self, access: Access, transaction: Transaction, known: Known) -> None:
        self._access = access
        self._transaction = transaction
        self._known = known
        self._format: Format = access.format(known.segment.format)
        self._old = known.segment
        self._new = Segment(transaction.take_generation(), self._old.name, self._old.format, End())
        self._size = 0

    def write(self, snapshot: Snapshot, reader: Reader) -> None:
        """Write the data, in query order, beside the segment, and tell the index where they will stand."""
        self._access.leave(self._old.name)
        interval = places.interval_of(snapshot, self._old)
        with generations.stage(self._access.directory, self._old.name, self._new.id) as staged:
            end = self._lay(snapshot, reader, staged)
            staged.write(end.size, self._format.seal(end))
            staged.sync()
            mtime = staged.stat().st_mtime_ns
            self._size = staged.stat().st_size
        self._new = replace(self._new, end=end)
        transaction = self._transaction
        transaction.supersede(self._old)
        transaction.save_segment(self._new, interval, mtime)
        generations.retire(self._access.directory, self._old.name, self._old.id)

    def switch(self) -> int:
        """Commit, and put the new bytes in the place of the old ones; gives how many bytes fewer they are.

        An error behind the commit leaves them beside the segment, where readers and the next opening find them.
        """
        directory, name = self._access.directory, self._old.name
        before = directory.stat(name)
        try:
            self._transaction.commit()
        except BaseException:
            if not self._transaction.sealed:
                self.take_back()
            raise
        if self._transaction.checkpoint_error is None:  # else nothing more is written
            generations.take_over(directory, name, self._new.id)
        return 0 if before is None else before.st_size - self._size

    def take_back(self) -> None:
        """Remove what was written, since nothing was committed. The other name of the segment is settled later."""
        generations.discard(self._access.directory, [generations.hidden(self._old.name, self._new.id)])

    def _lay(self, snapshot: Snapshot, reader: Reader, staged: WritableFile) -> End:
        laid = self._format.begin()
        staged.write(0, laid.content)
        end, patch = laid.end, laid.patch
        source = None if end.compressed or self._old.end.compressed else reader.file_of(self._old)
        for rows in _pieces(snapshot, self._known):
            spans = [] if source is None else self._spans(rows)
            sizes = [row[3] for _, row in rows]
            if source is not None and sum(sizes) > _WORTH_COPYING * len(spans):
                self._check_ends(source, rows, spans)
                end = self._copy(source, staged, spans, end, len(rows))
                patch = self._format.lay([], end).patch
            else:
                payloads = [*reader.contents(snapshot, [row for _, row in rows])]
                begin, laid = end, self._format.lay(payloads, end)
                staged.write(begin.size, laid.content)
                self._transaction.save_blocks(self._new, laid.blocks)
                end, patch = laid.end, laid.patch
            self._place([seq for seq, _ in rows], sizes, end)
        if patch is not None:
            staged.write(patch.position, patch.content)
        return end

    def _spans(self, rows: list[tuple[int, Row]]) -> list[tuple[int, int]]:
        """Join data that stand one behind the other already, padding included: (begin, size)."""
        padding = len(self._format.padding)
        spans: list[tuple[int, int]] = []
        for _, row in rows:
            begin, size = row[2], row[3] + padding
            if spans and sum(spans[-1]) == begin:
                begin, size = spans[-1][0], spans[-1][1] + size
                spans.pop()
            spans.append((begin, size))
        return spans

    def _check_ends(self, source: ReadableFile, rows: list[tuple[int, Row]], spans: list[tuple[int, int]]) -> None:
        """Refuse to copy what does not end with a datum: inside of a span, each ends where the next one begins."""
        padding, ends = len(self._format.padding), {sum(span) for span in spans}
        for _, row in rows:
            size = row[3] + padding
            if row[2] + size in ends:
                length = min(size, TAIL)
                tail = source.read(row[2] + size - length, length)
                check_end(self._format, self._old, row[2], size, tail)

    def _copy(
        self, source: ReadableFile, staged: WritableFile, spans: list[tuple[int, int]], end: End, count: int
    ) -> End:
        at = end.size
        for begin, size in spans:
            try:
                staged.copy(source, begin, size, at)
            except EOFError as error:
                raise SegmentMissing(str(error), segment=self._old.name) from error
            at += size
        return End(at, at, end.count + count)

    def _place(self, seqs: list[int], sizes: list[int], end: End) -> None:
        """Tell the index where data stand that end at `end`, one behind the other."""
        padding = len(self._format.padding)
        offset = end.length - sum(sizes) - padding * len(sizes)
        placed = []
        for seq, size in zip(seqs, sizes, strict=True):
            placed.append((self._new.id, offset, seq))
            offset += size + padding
        self._transaction.place(placed)


def _pieces(snapshot: Snapshot, known: Known) -> Iterator[list[tuple[int, Row]]]:
    """Give a segment's data in query order: seq and row, some MiB at a time."""
    piece: list[tuple[int, Row]] = []
    weight = 0
    for rows in places.in_order_of_query(snapshot, known.segment, known.begin, known.end):
        for each in rows:
            piece.append(each)
            weight += each[1][3]
            if weight >= _PIECE:
                yield piece
                piece, weight = [], 0
    if piece:
        yield piece
