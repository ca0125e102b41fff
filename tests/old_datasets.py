"""Datasets as older versions of ondisk made them: those of `golden/revision-5`, and what all of them need."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

from ondisk.index import INDEX

GOLDEN = Path(__file__).parent / "golden" / "revision-5"
EXPECTED: dict[str, list[list[Any]]] = json.loads((GOLDEN / "expected.json").read_text())
"""What a query returned then: reftime, metadata and segment of each datum."""
_MTIME = 1_800_000_000_123_456_789  # of files; a source archive keeps only the seconds


def old(name: str, tmp_path: Path) -> Path:
    """Put a dataset of revision 5 on the disk."""
    with tarfile.open(GOLDEN / "datasets.tar.xz") as tar:
        members = [each for each in tar.getmembers() if each.name == name or each.name.startswith(f"{name}/")]
        tar.extractall(tmp_path, members, filter="data")
    return with_indices(tmp_path / name)


def with_indices(path: Path) -> Path:
    """Make the indices of a dataset from their SQL, with the facts that its files have here."""
    for text in path.rglob("index.sql"):
        with contextlib.closing(sqlite3.connect(text.parent / INDEX)) as index:
            index.executescript(text.read_text())
            index.execute("PRAGMA journal_mode=wal")
            for (segment,) in index.execute("SELECT name FROM segment").fetchall():
                if (text.parent / segment).exists():
                    os.utime(text.parent / segment, ns=(_MTIME, _MTIME))
                    found = (text.parent / segment).stat()
                    facts = found.st_ino, found.st_mtime_ns, segment
                    index.execute("UPDATE segment SET inode = ?, mtime = ? WHERE name = ?", facts)
            index.commit()
        text.unlink()
    return path
