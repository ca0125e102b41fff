"""`index.sqlite`: tables, snapshots for readers, transactions for the one writer."""

from ondisk.index.connection import INDEX
from ondisk.index.index import Index, Key
from ondisk.index.snapshot import Copies, Row, Segment, Snapshot

__all__ = ["INDEX", "Copies", "Index", "Key", "Row", "Segment", "Snapshot"]
