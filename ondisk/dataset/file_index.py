"""Where the bytes of data are in files, for programs that read parts of files: `query --index`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from ondisk import json_shapes
from ondisk.dataset.json_lines import as_json, time_text
from ondisk.datum import Datum
from ondisk.errors import InvalidInput
from ondisk.formats import find, of_segments
from ondisk.segments.dir import file_name


def index_lines(data: Iterable[Datum], dataset: str) -> Iterator[bytes]:
    """Yield a line for each datum of a query, which says where its bytes are in a file of a dataset.

    Raises InvalidInput if the bytes are not in a file as they were appended.
    """
    for datum in data:
        location = datum.location
        assert location is not None, "a query knows where its data are"
        path, offset = f"{datum.dataset or dataset}/{location.segment}", location.offset
        format = find(_format_of(location.segment))
        if not format.raw:
            problem = f"data of {format.name} are not in files as they were appended, so --index cannot say where"
            raise InvalidInput(problem, hint="Write --json.")
        if format.is_dir:
            path, offset = f"{path}/{file_name(location.segment, offset)}", 0
        items = {key: as_json(value) for key, value in datum.metadata.items()}
        place = {"path": path, "offset": offset, "length": location.size, "reftime": time_text(datum.reftime)}
        yield json_shapes.dump(place | {"items": items}) + b"\n"


@cache
def _format_of(segment: str) -> str:
    """Return the format of a segment, which its extension says."""
    extension = segment.rpartition(".")[2]
    return of_segments(extension) or "blob"
