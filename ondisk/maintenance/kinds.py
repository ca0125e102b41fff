"""The two kinds of segments in maintenance; `ondisk.segments` contains how each is written and read."""

from __future__ import annotations

from typing import TypeAlias

from ondisk.formats import Format
from ondisk.maintenance.concat_segments import ConcatSegments
from ondisk.maintenance.dir_segments import DirSegments

Kind: TypeAlias = ConcatSegments | DirSegments
"""What is done with one segment of a kind. Both have the same methods, which `ConcatSegments` describes."""

_CONCAT, _DIR = ConcatSegments(), DirSegments()


def kind_of(format: Format) -> Kind:
    """Return the kind of a format's segments."""
    return _DIR if format.is_dir else _CONCAT
