"""Fix: makes the index agree with the disk. It writes no segment, but for those that cannot stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.dataset.layout import SENTINEL
from ondisk.errors import DurabilityLost, OndiskError, StorageError
from ondisk.formats import End, Format, Found, Patch
from ondisk.index import Segment, Transaction
from ondisk.maintenance.census import diagnoses, examine, interval_of
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.states import FIXED, Diagnosis, Done, Report, State
from ondisk.segments import generations
from ondisk.segments.dir import raise_sequence, scan
from ondisk.step import Interval

_NAMED = 3  # of many reasons of one kind, so many are told


def fix(
    access: Access, archives: Archives, now: float | None = None, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Carry out what `check` says that a fix does; each segment is diagnosed again first, under the lock.

    Args:
        now: seconds since 1970; None for the present.
        progress: is told the name of each segment before it is looked at.

    Raises:
        DurabilityLost, DiskFull: nothing more can be written; what was fixed before is.

    Durability: a commit for each segment; killed between, the next fix goes on. The sentinel goes last.
    Locks: the writers' lock, for each segment anew.
    """
    report = Report(str(access.path))
    for part in archives.maintained():
        report.add(part.prefix, _fix(part, now, progress))
        report.needs_check |= part.needs_check()
    return report


def _fix(access: Access, now: float | None, progress: Callable[[str], None]) -> Iterator[Done]:
    """Fix one dataset, or one archive."""
    is_whole = True
    for before in [*diagnoses(access, now)]:
        if not before.state & FIXED or State.CORRUPTED in before.state:
            yield _left(before)
            continue
        progress(before.segment)
        try:
            yield _fixed(access, before.segment, now)
        except DurabilityLost:
            raise
        except (OndiskError, OSError) as error:
            if isinstance(error, StorageError) and error.exit_code != StorageError.exit_code:
                raise  # no space, or no right to write: it would be the same for the others
            is_whole = False
            reason = f"it could not be fixed: {error}"
            yield Done(before.segment, before.state, (*before.reasons, reason))
    if is_whole:
        _remove_sentinel(access)


def _left(diagnosis: Diagnosis) -> Done:
    return Done(diagnosis.segment, diagnosis.state, diagnosis.reasons)


def _remove_sentinel(access: Access) -> None:
    with access.locked("fix"):
        if access.sentinel_stands():
            access.directory.unlink(SENTINEL)
            access.directory.sync()


def _fixed(access: Access, name: str, now: float | None) -> Done:
    try:
        return _fixed_once(access, name, now, rewriting=False)
    except _Foreign:
        return _fixed_once(access, name, now, rewriting=True)


def _fixed_once(access: Access, name: str, now: float | None, *, rewriting: bool) -> Done:
    with access.transaction("fix") as transaction:
        with access.current().index.snapshot() as snapshot:
            diagnosis, known = examine(access, snapshot, name, None, now)
        if diagnosis is None:
            return Done(name, State.OK, ("it has gone meanwhile",))
        if not diagnosis.state & FIXED or State.CORRUPTED in diagnosis.state:
            return _left(diagnosis)
        if State.MISSING in diagnosis.state:
            assert known is not None
            transaction.remove(known.segment)
            transaction.commit()
            return Done(name, diagnosis.state, diagnosis.reasons, diagnosis.action)
        rescan = _Rescan(access, transaction, name, known)
        if rescan.is_dir:
            rescan.in_directory(trusted=not access.needs_check())
        elif rewriting:
            rescan.rewrite()
        else:
            rescan.in_place()
        return Done(name, diagnosis.state, (*diagnosis.reasons, *rescan.said()), diagnosis.action, 0, rescan.lost)


class _Foreign(Exception):
    """A segment cannot stay as it is; see `Found.foreign`."""


@dataclass(slots=True)
class _Tally:
    """What of one kind was met: how often, how many bytes, and the first few in words."""

    count: int = 0
    size: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, text: str, size: int = 0) -> None:
        self.count += 1
        self.size += size
        if len(self.named) < _NAMED:
            self.named.append(text)


class _Rescan:
    """Reads a segment's data back from its file into the index, in one transaction.

    Attributes:
        lost: bytes that are no data, and data that are elsewhere already.
    """

    def __init__(self, access: Access, transaction: Transaction, name: str, known: Known | None) -> None:
        self._directory = access.directory
        self._transaction = transaction
        self._name = name
        self._format: Format = access.format(known.segment.format) if known is not None else access.format_of(name)
        interval = interval_of(access, name)
        assert interval is not None, "a name that does not fit is CORRUPTED"
        self._interval: Interval = interval
        self._known = known
        self._damage, self._duplicates = _Tally(), _Tally()

    @property
    def is_dir(self) -> bool:
        return self._format.is_dir

    @property
    def lost(self) -> int:
        return self._damage.size + self._duplicates.count

    def said(self) -> list[str]:
        """Say what was met that is not in the index now."""
        said = []
        if self._damage.count:
            said.append(self._damaged())
        if self._duplicates.count:
            said.append(
                f"{self._duplicates.count} data stand in other segments already and were left out:"
                f" {', '.join(self._duplicates.named)}{' …' * (self._duplicates.count > _NAMED)}"
            )
        return said

    def in_place(self) -> None:
        """Tell the index of all data in the file, which stays as it is.

        Raises:
            _Foreign: it cannot stay so.
        """
        transaction, known = self._transaction, self._known
        if known is None:
            segment = Segment(transaction.take_generation(), self._name, self._format.name, self._format.begin().end)
        else:
            segment = known.segment
            generations.complete(self._directory, self._name, segment.id)
        generations.clear(self._directory, self._name, segment.id)
        file = self._directory.open_to_read(self._name)
        if known is not None:
            transaction.forget_blocks(segment)
        end = segment.end
        with transaction.known_offsets(segment) as known_offsets:
            first = transaction.take_seqs(0).start
            for found in self._format.scan(file):
                if found.foreign:
                    raise _Foreign
                end = found.end
                self._add(found, segment, first, known_offsets)
                transaction.save_blocks(segment, found.blocks)
                self._note(found)
        self._save(replace(segment, end=end))
        transaction.commit()

    def in_directory(self, *, trusted: bool) -> None:
        """Tell the index of all files of a dir segment that are as their entries say, and mend `.sequence`.

        Where no directory stands, its data are removed from the index.

        Args:
            trusted: no sentinel stands: of a segment that it knows, the index lacks nothing.
        """
        transaction, known = self._transaction, self._known
        try:
            folder = self._directory.inside(self._name)
        except StorageError:
            assert known is not None, "what the index does not know, and is no directory, is CORRUPTED"
            transaction.remove(known.segment)
            transaction.commit()
            return
        with folder:
            if known is None or not trusted:
                self._read_files(known)
                transaction.commit()
            raise_sequence(folder, self._name)

    def _read_files(self, known: Known | None) -> None:
        transaction = self._transaction
        if known is None:
            segment = Segment(transaction.take_generation(), self._name, self._format.name, End())
        else:
            segment = known.segment
        end = segment.end
        with transaction.known_offsets(segment) as known_offsets:
            first = transaction.take_seqs(0).start
            for found in scan(self._directory, self._name, self._format):
                end = found.end
                self._add(found, segment, first, known_offsets)
                self._note(found)
        self._save(replace(segment, end=end))

    def rewrite(self) -> None:
        """Write the data that the file holds to a new generation, in the form that ondisk itself writes."""
        transaction, known = self._transaction, self._known
        if known is not None and known.count:
            raise _Foreign  # ondisk never went on with a file of another kind
        segment = Segment(transaction.take_generation(), self._name, self._format.name, self._format.begin().end)
        source = self._directory.open_to_read(self._name)
        if known is not None:
            transaction.supersede(known.segment)
        old = transaction.take_generation()  # of the file as it is, which no index knew
        first = transaction.take_seqs(0).start
        staged = generations.stage(self._directory, self._name, segment.id)
        try:
            with staged:
                laid = self._format.begin()
                staged.write(0, laid.content)
                patch: Patch | None = None
                for batch in self._format.parse(_Stream(source), 100_000):
                    begin = laid.end
                    sizes = list(map(len, batch.payloads))
                    offsets, at = [], begin.length
                    for size in sizes:
                        offsets.append(at)
                        at += size + len(self._format.padding)
                    laid = self._format.lay(batch.payloads, begin)
                    staged.write(begin.size, laid.content)
                    patch = laid.patch or patch
                    found = Found(offsets, sizes, batch.reftimes, batch.metadata, [*laid.blocks], batch.damage)
                    self._add(found, segment, first, lambda _begin, _end: set())
                    transaction.save_blocks(segment, found.blocks)
                    self._note(found)
                    for _, reason in batch.refused:
                        self._damage.add(reason)
                if patch is not None:
                    staged.write(patch.position, patch.content)
                staged.sync()
            generations.retire(self._directory, self._name, old)
            self._save(replace(segment, end=laid.end))
            transaction.commit()
        except BaseException:
            if not transaction.sealed:
                places = [generations.hidden(self._name, each) for each in (segment.id, old)]
                generations.discard(self._directory, places)
            raise
        if transaction.checkpoint_error is None:  # else nothing more is written
            generations.take_over(self._directory, self._name, segment.id)
        if transaction.unread:
            generations.discard(self._directory, [generations.hidden(self._name, old)])

    def _add(self, found: Found, segment: Segment, first: int, known_offsets: Callable[[int, int], set[int]]) -> None:
        """Insert rows of the data that are new; of equal data in one segment the last wins."""
        if not found.offsets:
            return
        there = known_offsets(found.offsets[0], found.offsets[-1] + 1)
        places: Sequence[int] = range(len(found.offsets))
        if there:
            places = [place for place in places if found.offsets[place] not in there]
            if not places:
                return
        transaction = self._transaction
        seqs = transaction.take_seqs(len(places))
        fields = transaction.columns([found.metadata[place] for place in places])
        rows = list(
            zip(
                seqs,
                [found.reftimes[place] for place in places],
                [segment.id] * len(places),
                [found.offsets[place] for place in places],
                [found.sizes[place] for place in places],
                *fields,
                strict=True,
            )
        )
        if transaction.insert(rows) == len(rows):
            return
        inserted = transaction.seqs_from(seqs.start)
        for row in rows:
            if row[0] in inserted:
                continue
            other = transaction.duplicate_of(row)
            if other is None or other[2] == segment.id:
                if other is None or other[3] < row[3]:
                    transaction.replace(row, first, None)
            else:
                self._duplicates.add(f"the datum at {self._format.unit} {row[3]}")

    def _note(self, found: Found) -> None:
        for damage in found.damage:
            self._damage.add(f"at {self._format.unit} {damage.offset}: {damage.reason}", damage.size)

    def _save(self, segment: Segment) -> None:
        mtime = self._directory.stat(self._name)
        assert mtime is not None
        self._transaction.save_segment(segment, self._interval, mtime.st_mtime_ns)
        self._transaction.note_check(segment, self._damaged() if self._damage.count else None)

    def _damaged(self) -> str:
        return (
            f"{self._damage.size} {self._format.unit}s of it are no data, {'; '.join(self._damage.named)}"
            f"{' …' * (self._damage.count > _NAMED)}; to have them back, put the file back from a backup, make"
            f" {SENTINEL}, and fix again"
        )


class _Stream:
    """A segment's file, read from its begin on."""

    def __init__(self, file: object) -> None:
        self._file = file
        self._position = 0

    def read(self, size: int, /) -> bytes:
        content: bytes = self._file.read(self._position, size)  # type: ignore[attr-defined]
        self._position += len(content)
        return content
