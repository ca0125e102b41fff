"""The order of durable steps in which the file of a segment gets a successor, or goes.

Repack, move, salvage and heal decide what the successor contains; what they do with the files is here:

    1. create   the successor at its hidden name; write and sync it
    2. yield    give the present file its hidden name, too; sync the folder, and with it the name of the successor
    3. commit   the rows; a rollback undoes 1 and 2
    4. rename   the successor to the name of the segment; sync
    5. delete   the old file, when nobody reads an older snapshot

`ondisk.segments.generations` contains the steps themselves, and says what readers find after each of them.
"""

from __future__ import annotations

from ondisk.dataset.access import Access
from ondisk.filesystem import WritableFile
from ondisk.index import Segment
from ondisk.index.transaction import Transaction
from ondisk.segments import generations


class Successor:
    """The next generation of a concat segment, or the first one in another folder.

    Attributes:
        name: of the segment.
        id: the generation.
        path: its hidden name.
    """

    def __init__(self, access: Access, transaction: Transaction, name: str) -> None:
        self.name = name
        self.id = transaction.take_generation()
        self.path = generations.hidden(name, self.id)
        self._access = access
        self._transaction = transaction
        transaction.on_rollback(lambda: access.directory.discard(self.path))
        access.clean_up_later(name)

    def create(self) -> WritableFile:
        """Create its file. The caller writes and syncs it."""
        return generations.stage(self._access.directory, self.name, self.id)

    def adopt(self, file: str) -> None:
        """Take over a file that another process has written and synced."""
        self._access.directory.rename(file, self.path)

    def displace(self, old: Segment) -> None:
        """Give the present generation its hidden name, too."""
        complete(self._access, old)
        generations.link_old(self._access.directory, self.name, old.id, self._access.committed(old))

    def displace_unknown(self, generation: int) -> None:
        """Give whatever is at the name of the segment a hidden name, too. A rollback takes that away again."""
        directory = self._access.directory
        self._transaction.on_rollback(lambda: directory.discard(generations.hidden(self.name, generation)))
        generations.link_old(directory, self.name, generation, None)

    def appear(self, segment: Segment) -> None:
        """Rename it to the name of the segment after the commit."""
        appear(self._access, self._transaction, segment)


def appear(access: Access, transaction: Transaction, segment: Segment) -> None:
    """Rename a generation to the name of its segment, after the commit."""
    transaction.after_commit(lambda: complete(access, segment))


def complete(access: Access, segment: Segment) -> None:
    """Rename the present generation of a segment to its name, if a crash or a rollback has left that to do."""
    generations.complete(access.directory, segment.name, segment.id, access.committed(segment))


def withdraw(access: Access, transaction: Transaction, segment: Segment) -> None:
    """Move a segment that is dropped to its hidden name; a rollback moves it back.

    If that fails, the next opening for writing does it.
    """
    generations.move_old(access.directory, segment.name, segment.id, access.committed(segment))
    transaction.on_rollback(lambda: complete(access, segment))
