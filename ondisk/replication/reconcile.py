"""Reconcile a replica with its source: make what differs equal, when a token is of no use.

    expired    The source has forgotten deletions. Numbers still mean the same data. What the source has deleted is
               deleted here; what it has lost or removed by age stays.
    foreign    The source is another dataset, its index was rebuilt, or an earlier state of it was put back; or the same
               happened to the replica. Numbers mean nothing: data are compared. Those that are equal get the source's
               numbers; data that only the replica has get numbers of its own, and stay.
    valid      Nothing is wrong with the token: data are compared up to the last change that the replica has applied,
               and what differs is fetched again. Later changes are left to a pull.

Nothing that is equal is fetched. What a step removes or replaces stays in quarantine, with its whole segment. While a
comparison runs, it is recorded beside the token, so no pull can run. Each step is a commit, and another run finds what
is left to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from ondisk.dataset.access import Access
from ondisk.errors import IntegrityError, SegmentCorrupt, SegmentMissing, StateError, command
from ondisk.index import Segment, changes, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.durable_steps import complete, withdraw
from ondisk.replication import source_rows
from ondisk.replication.apply import COMPARE_VERSIONS, Applied, apply
from ondisk.replication.compare import WANTED, Differences, Differs, OnRange, Situation, compared, situation
from ondisk.replication.heal import Unmended, damaged_segments, mend
from ondisk.replication.records import Records
from ondisk.replication.replica import ANSWER_BYTES, Replica, check_follows
from ondisk.replication.source import rows_in
from ondisk.replication.source_rows import LOST, Comparison, Difference, Followed, Mode
from ondisk.segments import quarantine
from ondisk.segments.file_facts import SAME_BYTES

_WHY = "some of its data are deleted here, or the source has others in their place"
_TOGETHER = 1_000  # data that are requested at once
_SHOWN = 100
_DELETED = (Differs.DELETED, Differs.GONE)
_EXTRA = (Differs.EXTRA, Differs.UNKNOWN)
_KEPT = (Differs.LOST, Differs.AGED, Differs.UNREADABLE)
_NO_COPY = (*_DELETED, *_EXTRA, *_KEPT, Differs.PENDING, Differs.CHANGED, Differs.NEITHER)
"""The source does not have these data, or has them with other bytes."""


@dataclass(slots=True)
class Reconciled:
    source: str  # the UUID of the source's index
    mode: str  # `expired`, `foreign` or `valid`
    fetched: int = 0  # data that the replica lacked, or had other bytes of
    renumbered: int = 0  # data that were equal, and got the source's numbers
    deleted: int = 0  # data that the source has deleted; and those that only the replica has, with `delete_extra`
    # data that the source has with other bytes, which are fetched, too; and data that only the replica had, and that
    # were replaced by data of the source with the same unique fields. A dry run does not count these
    replaced: int = 0
    kept: int = 0  # data that the source has lost, removed by age or cannot read, and the replica keeps
    extra: int = 0  # data that only the replica has, for an unknown reason; it keeps them
    # data that the source cannot read, and that the replica lacks or cannot read either; and data that could not be
    # stored
    missing: int = 0
    bytes: int = 0  # of the data that were fetched
    offset: int = 0  # pulls go on after this change
    # extras, deletions: number and reftime (microseconds since 1970) of the first 100 of these
    extras: list[tuple[int, int]] = field(default_factory=list)
    deletions: list[tuple[int, int]] = field(default_factory=list)
    # segments of the replica with damaged data that the source could not replace
    unmended: list[str] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return self.mode != Mode.VALID or self.fetched + self.renumbered + self.deleted + self.replaced > 0


def reconcile(
    replicated: Replica, *, yes: bool, delete_extra: bool = False, on_range: OnRange = lambda _done, _left: None
) -> Reconciled:
    """Compare all data of a replica and its source, and make them equal.

    Args:
        yes: do it; else only return what would be done.
        delete_extra: also delete the data that only the replica has, for an unknown reason.

    Raises:
        NeedsCheck: one of the two indices may not know all data.
        StateError: another process compares them; or, with `delete_extra`, the source may be another dataset, or an
            index was rebuilt.
        SegmentMissing: a segment of the replica whose data cannot be read is not on disk; its disk may not be mounted.
        SegmentCorrupt: a segment of the replica is not the file that the index describes, and the source does not have
            all its data; or it is damaged, and numbers mean nothing. In these three cases, nothing has begun.
        Also the errors of `Dataset.append`.

    Durability: each step is one commit in each index that it changes. Another run continues after the last one.
    Locks: the replica's writers' lock, for each commit.
    Memory: that of a pull. What differs is in a temporary file, some 100 bytes for each datum.
    """
    now = situation(replicated)
    if delete_extra and now.mode is Mode.FOREIGN:
        path = replicated.dataset.path
        message = f"{path}: the source may be another dataset, so nobody can say yet what only the replica has"
        hint = "Run it without --delete-extra, and look at the data that it lists. Then run it with --delete-extra."
        raise StateError(message, hint=hint)
    first, resumes, is_valid = 1, now.is_begun and now.offset > 0, now.mode is Mode.VALID and now.offset > 0
    if (before := now.before) is not None and (resumes or is_valid):
        now = replace(now, last=now.offset, session=before.session)
        first += 0 if before.comparison is None else before.comparison.done
    with compared(replicated, now.uuid, now.mode, first, now.last, on_range) as found:
        found.pair()
        _check_readable(replicated.dataset._access, now, found)
        unwanted = (*_DELETED, *_EXTRA) if delete_extra else _DELETED
        result = _planned(now, found, unwanted)
        if yes:
            step = _Steps(replicated, now, found, result)
            if not resumes:
                step.begin()
            changed = found.count(*unwanted, Differs.CHANGED, Differs.MISSING, Differs.UNREAD) + result.renumbered
            # Of mended data, replicas of this one have the same number, or request them again.
            step.run(unwanted, expires=resumes or not is_valid or changed > 0)
    return result


def _check_readable(access: Access, now: Situation, found: Differences) -> None:
    """Raise, as `reconcile` says, if a damaged segment can neither be mended nor be fetched again."""
    is_foreign = now.mode is Mode.FOREIGN
    damaged = Differs.EXTRA if is_foreign else Differs.DAMAGED
    entries = ([each for each in some if not each.digest] for some in found.of(damaged))
    for segment, count in damaged_segments(access, entries):
        reader = access.current().reader
        with access.current().index.snapshot() as snapshot:
            try:
                reader.file_of(segment)
            except SegmentCorrupt:
                if is_foreign or count < sum(map(len, _seqs_of(access, segment))):
                    raise
                continue
            if is_foreign:
                try:
                    reader.check_whole(snapshot, segment.id)
                except SegmentCorrupt as error:
                    hint = f"Run {command('fix', access.path, '--salvage', segment.name, '--yes')}, then this again."
                    raise SegmentCorrupt(error.message, hint=hint, segment=segment.name) from error


def _planned(now: Situation, found: Differences, unwanted: Sequence[Differs]) -> Reconciled:
    kept = [kind for kind in _EXTRA if kind not in unwanted]
    result = Reconciled(now.uuid, now.mode.value, offset=now.last)
    result.fetched = found.count(*WANTED) - found.count(Differs.UNREAD)
    result.renumbered, result.replaced = sum(map(len, found.pairs())), found.count(Differs.CHANGED)
    result.deleted, result.extra = found.count(*unwanted), found.count(*kept)
    result.kept, result.missing = found.count(*_KEPT), found.count(Differs.NEITHER, Differs.UNREAD)
    for shown, which in ((result.deletions, unwanted), (result.extras, kept)):
        shown += [(each.seq, each.reftime) for each in next(found.of(*which), [])[:_SHOWN]]
    return result


class _Steps:
    def __init__(self, replicated: Replica, at: Situation, found: Differences, result: Reconciled) -> None:
        self._replica = replicated
        self._access = replicated.dataset._access
        self._at = at
        self._found, self._result = found, result
        self._now = at.before
        self._kept: set[int] = set()  # ids of segments

    @property
    def _begun(self) -> Followed:
        assert self._now is not None
        return self._now

    def begin(self) -> None:
        """Record that the comparison has begun. Pulls wait until it is complete."""
        at, (host, port) = self._at, self._replica.source.address
        with self._changing() as transaction:
            if at.mode is Mode.FOREIGN:  # the noted numbers now mean other data
                source_rows.forget_history(transaction)
            source_rows.settle_lost(transaction)
            self._note_lost(transaction)  # one that is killed continues after these
            bytes_read = 0 if self._now is None else self._now.bytes_read
            comparison, own = Comparison(at.mode), transaction.counters.uuid
            now = Followed(at.uuid, own, at.session, at.last, -1, comparison, host, port, bytes_read)
            source_rows.follow(transaction, now)

    def run(self, unwanted: Sequence[Differs], *, expires: bool) -> None:
        """Do what is left, delete the data of the replica that are unwanted, and end the comparison."""
        found = self._found
        if self._at.mode is Mode.FOREIGN:
            for seqs in found.not_own():
                with self._changing() as transaction:
                    moved = source_rows.set_apart(transaction, _present(transaction, seqs))
                    transaction.after_commit(partial(found.move, moved))
        for pairs in found.pairs():
            self._place(pairs)
        self._result.fetched, self._result.missing = 0, found.count(Differs.NEITHER)
        for segment, count in damaged_segments(self._access, found.of(Differs.DAMAGED)):
            self._mend(segment, count)
        for some in found.of(*unwanted, Differs.CHANGED, Differs.DAMAGED):
            with self._changing() as transaction:
                transaction.drop_rows(_present(transaction, [entry.seq for entry in some]))
        self._fetch()
        self._end(expires=expires)

    def _mend(self, segment: Segment, count: int) -> None:
        """Replace the `count` damaged data of a segment that the source has.

        If it cannot be mended, and the source has all its data, the segment is removed, and its data are fetched.
        Otherwise, if each datum has a checksum, the damaged ones are fetched one by one. Without checksums the segment
        is left.

        Raises StateError if another process has changed the segment since it was looked up.

        Locks: the replica's writers' lock, also while the data of the segment are fetched.
        """
        access = self._access
        try:
            with self._changing(segment) as transaction:
                size = mend(access, transaction, segment, self._copies)
            self._result.fetched += count
            self._result.bytes += size
        except (Unmended, SegmentCorrupt, SegmentMissing):
            if self._has_copies(segment):
                with self._changing(segment) as transaction:
                    for seqs in _seqs_of(access, segment):
                        self._found.miss(seqs)
                    # `_fetch` counts all its data again, and only the damaged ones are to be counted.
                    self._result.fetched += count - transaction.sums_of(segment)[0]
                    self._remove(transaction, segment)
                return
            if access.format(segment.format).has_checksums:
                return
            self._result.missing += count
            self._result.unmended.append(segment.name)
        for some in self._found.of(Differs.DAMAGED):
            rows = rows_in(access, [each.seq for each in some])
            self._found.drop([row[-1] for snapshot, row in rows if snapshot.segment(row[1]).name == segment.name])

    def _has_copies(self, segment: Segment) -> bool:
        """Return whether the source has all data of a segment, and a run that continues this one compares them."""
        assert self._begun.comparison is not None
        done, chunks = self._begun.comparison.done, _seqs_of(self._access, segment)
        last = self._at.last  # later data have come from a fix, or have numbers of the replica's own
        return not any(seqs[0] <= done or seqs[-1] > last or self._found.has(seqs, *_NO_COPY) for seqs in chunks)

    def _remove(self, transaction: Transaction, segment: Segment) -> None:
        """Remove a segment and its data: nobody knows which are damaged. Its file goes to quarantine."""
        access = self._access
        directory, name, committed = access.directory, segment.name, access.committed(segment)
        complete(access, segment)
        access.clean_up_later(name)
        file = directory.open_to_read(name)
        if committed.seen_in(file, file.stat()) in SAME_BYTES:
            self._keep([segment])
            withdraw(access, transaction, segment)
        else:
            quarantine.keep(directory, name, verb="replicate", why=f"it is another file; {_WHY}")
        transaction.remove(segment)

    def _copies(self, seqs: Sequence[int]) -> Records:
        asked = seqs[:_TOGETHER]
        records = self._replica.source.fetch(asked, ANSWER_BYTES)
        check_follows(records, self._begun._replace(offset=asked[0] - 1))
        if records.token.offset < asked[0]:  # it would be asked for ever
            problem = f"the source has not answered what it was asked for: the datum {asked[0]}"
            raise IntegrityError(problem, hint=COMPARE_VERSIONS)
        return records

    def _keep(self, segments: Iterable[Segment]) -> None:
        """Link segments into quarantine before data of them are removed or replaced, each once."""
        for segment in segments:
            if segment.id not in self._kept:
                self._kept.add(segment.id)
                with contextlib.suppress(FileNotFoundError):  # it is missing
                    quarantine.link(self._access.directory, segment.name, verb="replicate", why=_WHY)

    def _place(self, pairs: Sequence[tuple[int, int]]) -> None:
        new = {mine: theirs for theirs, mine in pairs}
        with self._changing() as transaction:
            placed = [(new.pop(seq), seq) for seq in _present(transaction, [*new])]
            source_rows.renumber(transaction, placed)
            transaction.counters.advance(max((theirs for theirs, _ in placed), default=0))
        self._found.miss(new.values())  # maintenance has removed them meanwhile: they are fetched

    def _fetch(self) -> None:
        result, mode = self._result, self._at.mode
        for some in self._found.of(*WANTED):
            seqs = [entry.seq for entry in some]
            while seqs:
                asked, records = seqs[:_TOGETHER], self._copies(seqs)
                reached = min(records.token.offset, asked[-1])
                comparison, now = Comparison(mode, reached), self._begun
                after = now._replace(comparison=comparison, bytes_read=now.bytes_read + records.size)
                applied = self._apply(records, now, after, asked)
                result.fetched += applied.stored
                result.replaced += applied.deleted
                result.missing += applied.unreadable
                result.bytes += applied.bytes
                seqs = [seq for seq in seqs if seq > reached]
                self._now = self._replica.followed

    def _apply(self, records: Records, now: Followed, after: Followed, asked: Sequence[int]) -> Applied:
        def keep(transaction: Transaction, _applied: Applied) -> None:
            self._keep(transaction.deleted_from())

        applied = self._replica.dataset._renewing(partial(apply, self._access, records, now, after, asked, keep))
        if applied is None:
            raise self._busy()
        return applied

    def _end(self, *, expires: bool) -> None:
        """End the comparison, so that pulls continue. `expires`: the tokens of the replica's own replicas expire."""
        uuid = str(uuid4()) if self._at.mode is Mode.FOREIGN else None
        with self._changing() as transaction:
            self._note_lost(transaction)
            if uuid is not None:
                transaction.identify_as(uuid, seq=self._at.last)
                # Tokens of the replica's own replicas name it, also if nothing that it numbered had to be fetched.
                source_rows.note_sessions(transaction, [(self._at.last, self._at.session)])
            source_rows.follow(transaction, self._begun._replace(comparison=None, replica=uuid or self._begun.replica))
            if expires and uuid is None:
                transaction.expire_tokens()

    def _note_lost(self, transaction: Transaction) -> None:
        lost = (entry.seq for some in self._found.of(Differs.LOST) for entry in some)
        source_rows.differ(transaction, [Difference(seq, LOST, "the source has lost it") for seq in lost])

    @contextlib.contextmanager
    def _changing(self, segment: Segment | None = None) -> Iterator[Transaction]:
        """Hold the lock and a transaction of the index, for the length of the block, and commit it at the end.

        `segment`: what is changed as a whole. Otherwise, the segments of data that the block deletes are kept.
        """
        with self._access.transaction("replicate") as transaction:
            if source_rows.followed(transaction) != self._now:
                raise self._busy()
            if segment is not None and transaction.segments([segment.name]).get(segment.name) != segment:
                message = f"{self._access.path}: {segment.name} was changed meanwhile, as by a fix or a repack"
                raise StateError(
                    message, hint="Run `ondisk replicate --reconcile` again: it compares this segment again."
                )
            yield transaction
            if segment is None:
                self._keep(transaction.deleted_from())
            transaction.check_space()
            transaction.commit()
        self._now = self._replica.followed

    def _busy(self) -> StateError:
        hint = "Wait until it ends, and run it again."
        return StateError(f"{self._access.path}: another process pulls or compares it", hint=hint)


def _seqs_of(access: Access, segment: Segment) -> Iterator[list[int]]:
    with access.current().index.snapshot() as snapshot:
        for rows in segment_rows.in_order_of_seq(snapshot, segment):
            yield [seq for seq, _ in rows]


def _present(transaction: Transaction, seqs: Iterable[int]) -> list[int]:
    return sorted(changes.present(transaction, sorted(seqs)))
