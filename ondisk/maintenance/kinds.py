"""The two kinds of segments in maintenance."""

from __future__ import annotations

from typing import Any

from ondisk.formats import Format
from ondisk.maintenance.concat_segments import ConcatSegments
from ondisk.maintenance.dir_segments import DirSegments
from ondisk.maintenance.segment_kind import SegmentKind

_CONCAT, _DIR = ConcatSegments(), DirSegments()


def kind_of(format: Format) -> SegmentKind[Any]:
    """Return the kind of a format's segments."""
    return _DIR if format.is_dir else _CONCAT
