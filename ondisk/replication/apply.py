"""Apply the changes of a source to its replica, and record the token that covers them, in one commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ondisk.dataset.access import Access
from ondisk.dataset.append import insert
from ondisk.errors import IntegrityError
from ondisk.formats import Batch
from ondisk.index import changes
from ondisk.index.precedence import LAST
from ondisk.index.transaction import Transaction
from ondisk.replication import source_rows
from ondisk.replication.feed import Kind
from ondisk.replication.records import Group, Records
from ondisk.replication.source_rows import LOST, UNREADABLE, Difference, Followed
from ondisk.segments import quarantine
from ondisk.step import days_ago

_TOO_OLD = "it is older than delete_age of the replica"
COMPARE_VERSIONS = "Compare the versions of ondisk on both sides."
_LAST_COPY = "the source has lost some of its data, and others with the same unique fields have replaced them"


@dataclass(slots=True)
class Applied:
    """How many changes of a source had which outcome."""

    stored: int = 0  # data stored as new, also those in place of others
    deleted: int = 0  # data deleted or replaced
    present: int = 0  # data skipped because the replica has them
    old: int = 0  # data skipped because they are older than `delete_age` of the replica
    lost: int = 0  # data that the source has lost, and that the replica keeps
    unreadable: int = 0  # data that the source cannot read, or that the replica cannot store
    bytes: int = 0  # of the data that were read from the source

    @property
    def count(self) -> int:
        """About how many changes were applied: deletions of data that are not here are not counted."""
        return self.stored + self.deleted + self.present + self.old + self.lost + self.unreadable

    def add(self, other: Applied) -> None:
        for name in Applied.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def apply(
    access: Access,
    records: Records,
    before: Followed,
    after: Followed,
    requested: Sequence[int] | None = None,
    before_commit: Callable[[Transaction, Applied], object] = lambda _transaction, _applied: None,
) -> Applied | None:
    """Apply some changes; return None if another process has pulled meanwhile, so that nothing was applied.

    Args:
        before, after: how far the replica had followed its source when they were requested, and has with them.
        requested: the numbers that were requested from `Source.fetch`; None if these are the next changes.
        before_commit: called when all is written, with the counts.

    Raises MustRewrite, NeedsCheck, IntegrityError if the source sends data in another form, and errors of
    `Dataset.append`.

    Durability: as an append: bytes, synced, then one commit with the rows, the deletions and the token.
    Locks: the writers' lock.
    """
    with access.transaction("replicate") as transaction:
        access.check_trusted()
        if source_rows.followed(transaction) != before:
            return None
        change = _Change(access, transaction)
        if requested is None:
            change.follow(records)
        else:
            change.complete(records, requested)
        source_rows.differ(transaction, change.differences)
        source_rows.follow(transaction, after)
        before_commit(transaction, change.done)
        transaction.check_space()
        transaction.commit()
    return change.done


@dataclass(slots=True)
class _Change:
    """One commit of a replica. The caller must hold the writers' lock."""

    access: Access
    transaction: Transaction
    done: Applied = field(default_factory=Applied)
    differences: list[Difference] = field(default_factory=list)  # data that the replica lacks
    lost: set[int] = field(default_factory=set)  # numbers of its data that the source has lost

    def follow(self, records: Records) -> None:
        transaction = self.transaction
        deleted = [(number, target) for number, target, kind in records.deletions if kind is Kind.DELETED]
        if deleted:
            self.done.deleted = len(deleted) - len(source_rows.delete(transaction, deleted))
        lost = sorted(target for _, target, kind in records.deletions if kind is Kind.LOST)
        self.lost = changes.present(transaction, lost)
        self.done.lost = len(self.lost)
        source_rows.differ(transaction, [Difference(seq, LOST, "the source has lost it") for seq in sorted(self.lost)])
        self._add(records)
        source_rows.note_sessions(self.transaction, records.sessions)

    def complete(self, records: Records, requested: Sequence[int]) -> None:
        """Store data that the replica lacked. Data that the source no longer has are removed from the missing data."""
        source_rows.settle(self.transaction, [seq for seq in requested if seq <= records.token.offset])
        self.transaction.counters.advance(records.token.offset)
        self._add(records)

    def _add(self, records: Records) -> None:
        self.done.bytes = records.size
        for group in records.groups:
            self._store(group)
        self.differences += [Difference(seq, UNREADABLE, reason) for seq, reason in records.unreadable]
        self.done.unreadable = len(self.differences)

    def _store(self, group: Group) -> None:
        """Store the new data of one format, and list those that cannot be stored."""
        access, transaction, done = self.access, self.transaction, self.done
        format = access.incoming(group.format)
        if format.is_dir != (len(group.beside) > 0):
            problem = f"the source does not send data of {group.format} as they are stored"
            raise IntegrityError(problem, hint=COMPARE_VERSIONS)
        if here := changes.present(transaction, group.seqs):
            done.present += len(here)
            group = group.without(here)
        batch = format.received(group.payloads, group.beside)
        self._refuse(batch)
        trusted = not access.has_sentinel()
        into = format, access.config, access.directory, transaction
        stored = insert(batch, *into, trusted=trusted, seqs=group.seqs, precedence=LAST)
        self._keep_last_copies(stored.displaced)
        done.stored += stored.imported + len(stored.replaced)
        done.deleted += len(stored.replaced)
        for position, reason in batch.refused:
            if reason == _TOO_OLD:
                done.old += 1
            else:
                self.differences.append(Difference(group.seqs[position], UNREADABLE, reason))

    def _keep_last_copies(self, displaced: dict[int, int]) -> None:
        """Link the segments of data into quarantine that the source has lost, and that have just been replaced.

        These were perhaps the last copies: after a loss, a fix at the source may find an older version of a datum
        again, which then replaces the newer one. Each segment is linked once, also in later pulls: the first copy has
        all its data that the source has lost. `displaced`: number → id of the segment.
        """
        gone = source_rows.lost_among(self.transaction, displaced) if displaced else {}
        if not gone:
            return
        for id_ in sorted({displaced[seq] for seq, is_kept in gone.items() if not is_kept}):
            with contextlib.suppress(FileNotFoundError):  # it is missing
                name = self.transaction.segment(id_).name
                quarantine.link(self.access.directory, name, verb="replicate", why=_LAST_COPY)
                source_rows.note_kept(self.transaction, id_)
        source_rows.settle(self.transaction, gone)
        self.done.lost -= len(self.lost & gone.keys())
        self.lost -= gone.keys()

    def _refuse(self, batch: Batch) -> None:
        config = self.access.config
        if config.delete_age is not None:
            batch.refuse_before(days_ago(config.delete_age), _TOO_OLD)
        sizes = [*map(len, batch.payloads)]
        if max(sizes, default=0) > config.max_datum_size:
            batch.refuse({
                place: f"{size} bytes are more than max_datum_size of the replica, {config.max_datum_size}"
                for place, size in enumerate(sizes) if size > config.max_datum_size
            })  # fmt: skip
