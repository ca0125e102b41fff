"""Recognise a file that is a segment of the dataset: its data are stored already, and an append would make it grow."""

from __future__ import annotations

import os
from pathlib import Path

from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, OndiskError
from ondisk.segments.generations import hidden


def check_not_own(access: Access, opened: object) -> None:
    """Raise InvalidInput if an open file is a segment of the dataset, under any name.

    Cost: reads the rows of all segments of the dataset.
    """
    status = status_of(opened)
    if status is None:
        return
    name = getattr(opened, "name", None)
    place = Path(os.fsdecode(name)).resolve() if isinstance(name, str | bytes) else None
    if own := _own(access, status, place):
        problem = f"{place or 'the input'} is the segment {own} of this dataset"
        hint = "Its data are stored already. If the index does not know them, `ondisk fix` reads them."
        raise InvalidInput(problem, hint=hint, segment=own)


def status_of(opened: object) -> os.stat_result | None:
    """Return the status of the file behind a stream; None if it has none."""
    try:
        return os.fstat(opened.fileno())  # type: ignore[attr-defined]  # a stream without a file lacks it
    except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both
        return None


def _own(access: Access, status: os.stat_result, place: Path | None) -> str | None:
    """Return the name of the segment that a file is; None if it is none.

    The index knows the inode of each segment, except of those that another program has replaced: these have their name.
    """
    names = {""}
    if place is not None and place.is_relative_to(folder := access.path.resolve()):
        names.add(place.relative_to(folder).as_posix())
    try:
        with access.current().index.snapshot() as snapshot:
            sql = f"SELECT id, name FROM segment WHERE inode = ? OR name IN ({', '.join('?' * len(names))})"
            rows = snapshot.fetch(sql, (status.st_ino, *names))
        for id_, name in rows:
            for path in (name, hidden(name, id_)):
                found = access.directory.stat(path)
                if found is not None and os.path.samestat(found, status):
                    return str(name)
    except OndiskError:  # an index that cannot be read ends the append by itself
        pass
    return None
