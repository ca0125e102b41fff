"""Errors about the files of segments, and their hints."""

from __future__ import annotations

import os

from ondisk.errors import OndiskError, SegmentCorrupt, SegmentMissing, command
from ondisk.filesystem import Directory


def changed(directory: Directory, name: str, *, is_refused: bool = False) -> SegmentCorrupt:
    """Return the error for a file that is not the one that the index describes.

    Args:
        is_refused: a fix has read it, and found none of the segment's data.
    """
    path, how = directory.path / name, "another program has changed or replaced it"
    hint = f"{command('fix', directory.path, '--yes')} reads it into the index, or says why not"
    hint += "; or restore the file from a backup."
    if is_refused:
        how, hint = f"{how}, and none of its data can be read", restore_or_salvage(directory, name)
    return SegmentCorrupt(f"{path} is not the file that the index describes: {how}", hint=hint, segment=name)


def restore_or_salvage(directory: Directory, name: str) -> str:
    """Return the hint of an error about a damaged segment."""
    inner = os.path.relpath(directory.path / name, directory.path)
    whole = command("fix", directory.path, "--salvage", inner, "--yes")
    return f"Restore the file from a backup; or {whole} keeps what is whole of it."


def missing(directory: Directory, name: str) -> SegmentMissing:
    """Return the error for a segment that is not on disk."""
    how = f"{command('fix', directory.path, '--yes')} removes them from the index, or says why not"
    hint = f"Mount its disk, or restore it from a backup. If its data are lost, {how}."
    return SegmentMissing(f"{directory.path / name} is in the index but not on disk", hint=hint, segment=name)


def too_short(directory: Directory, name: str, size: int, wanted: int) -> SegmentCorrupt:
    """Return the error for a file that ends before bytes that the index knows."""
    path = directory.path / name
    return SegmentCorrupt(
        f"{path} ends at byte {size}, but the index has data up to byte {wanted}",
        hint=restore_or_salvage(directory, name),
        segment=name,
        size=size,
        wanted=wanted,
    )


def located(error: OndiskError, place: object) -> OndiskError:
    """Return the same error with the place before its message."""
    return type(error)(f"{place}: {error.message}", hint=error.hint, **error.context)
