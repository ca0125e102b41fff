"""What a fix or a repack would do: a check that also tries whether the keys of this process decrypt what is to be read.

Only one datum of a segment is tried, or the beginning of its file, so a dry run stays fast. Others may need other keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.position import where_removed
from ondisk.errors import AuthenticationFailed, IntegrityError, KeyMissing, OndiskError, SegmentMissing, StorageError
from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.formats.diskqueue.state import NAME
from ondisk.formats.diskqueue.state import State as Position
from ondisk.index import segment_rows
from ondisk.maintenance.check import check
from ondisk.maintenance.concat_segments import scan
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.states import Diagnosis, Done, Report, State


def promised(dataset: DatasetAccess, *actions: str, rewrite: bool = False) -> Report:
    """Return the report of a check that holds the segments which cannot be decrypted.

    Args:
        actions: those that read data, and are planned: `rescan` of a fix, `repack` of a repack.
        rewrite: as for `check`.

    Raises:
        StorageError: as `check`.
        KeyMissing, AuthenticationFailed: the error of the first such segment. As from `check`, the error's report has
            all segments.

    Cost: opens each segment with such an action, and reads one datum of those that are encrypted.
    """
    errors: list[OndiskError] = []
    try:
        report = check(dataset, rewrite=rewrite)
    except OndiskError as error:
        if "report" not in error.context:
            raise
        report = error.context["report"]
        errors.append(error)
    with report.attached(errors):
        archive, *_ = [each for each in dataset.archives.maintained() if each.prefix] or [dataset]
        for at, each in enumerate(report.segments):
            if not isinstance(each, Diagnosis) or each.action is None or not {*each.action.split(" and ")} & {*actions}:
                continue
            access = archive if each.segment.startswith(archive.prefix) else dataset
            name = each.segment.removeprefix(access.prefix)
            format = access.format_of(name)
            read = partial(_read_one, access, name) if State.DIRTY in each.state else None
            report.segments[at] = tried(access.directory, name, format, each, errors, read)
        if dataset.config.is_sequence:
            consumed = {each.segment for each in report if isinstance(each, Diagnosis) and each.consumed}
            report.segments += moved_position(where_removed(dataset, consumed))
    return report


def moved_position(at: Position | None) -> Iterator[Done]:
    """Yield what a fix or a repack does to `state.dat` if the segment of its position has gone.

    Args:
        at: the new position; None if it stays.
    """
    if at is not None:
        reason = f"its segment is gone: the consumer begins again with {at.segment}.seg"
        yield Done(NAME, State.OK, (reason,), "begin again")


def tried(
    directory: Directory,
    name: str,
    format: Format,
    diagnosis: Diagnosis,
    errors: list[OndiskError],
    read: Callable[[], object] | None = None,
) -> Diagnosis:
    """Return the diagnosis of a segment that is to be read; if it cannot be decrypted, hold it, and add the error.

    Args:
        read: reads some of its data; None to scan the beginning of the file.
    """
    if not kind_of(format).is_one_file:
        return diagnosis
    try:
        file = directory.open_to_read(name)
        with contextlib.suppress(KeyMissing, AuthenticationFailed):  # whoever reads the data names the file
            if format.sealer(file, name) is None:
                return diagnosis
        next(scan(name, format, file), None) if read is None else read()
    except (KeyMissing, AuthenticationFailed) as error:
        errors.append(error)
        return diagnosis.hold(f"it cannot be decrypted: {error.message}")
    except (FileNotFoundError, IntegrityError, SegmentMissing, StorageError):
        pass  # whoever reads all of it reports that
    return diagnosis


def _read_one(access: Access, name: str) -> None:
    """Read one datum of a segment, which the index knows: of those that were deleted, nobody needs the keys."""
    with access.current().index.snapshot() as snapshot:
        if (segment := snapshot.segment_named(name)) is not None:
            [*access.current().reader.rows(snapshot, segment_rows.following(snapshot, segment, 0, 1))]
