"""Rewrite one segment before an append, because nothing may be appended to its file as it is."""

from __future__ import annotations

from ondisk.dataset.access import Access
from ondisk.errors import StateError, command
from ondisk.index import Copies
from ondisk.maintenance.concat_segments import COPIES
from ondisk.maintenance.inspect import Inspection
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.states import State
from ondisk.maintenance.successor import complete
from ondisk.segments import quarantine

_UNREADABLE = State.CORRUPTED | State.UNALIGNED | State.MISSING


def renew(access: Access, name: str) -> None:
    """Rewrite a segment as a repack does, whatever its state, so that data can be appended to it.

    Nothing was appended yet. The keystream of an encrypted file must not be used twice, and the new file has another.

    Raises:
        StateError: the index does not know all data of the segment, or they cannot be read.
        NeedsCheck: the sentinel exists.
        KeyMissing, AuthenticationFailed: the segment cannot be decrypted.

    Durability: a commit of its own, with the steps of a repack; see `ondisk.segments.generations`.
    Locks: the writers' lock, which the append takes again afterwards.
    """
    with access.transaction("rewrite") as transaction:
        access.check_trusted()
        with access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
            if segment is None:
                return
            format = access.format(segment.format)
            kind = kind_of(format)
            complete(access, segment)
            diagnosis, known = Inspection(access).examine(snapshot, name)
            if diagnosis is None or known is None or diagnosis.state & _UNREADABLE:
                hint = f"Run {command('fix', access.path, '--yes')}, then append again."
                reason = "" if diagnosis is None else f": {'; '.join(diagnosis.reasons)}"
                message = f"{access.path / name} must be rewritten before an append, and cannot be read{reason}"
                raise StateError(message, hint=hint, segment=name)
            if segment.copies is not Copies.NONE:  # data without rows are not written
                quarantine.link(access.directory, name, verb="append", why=COPIES)
            rewriting = kind.rewriting(access, transaction, known)
            rewriting.write(snapshot, None)
        rewriting.commit(diagnosis)
