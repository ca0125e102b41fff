"""What a scan found in a segment's file, staged for the process that updates the index and need not scan again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ondisk.dataset.access import Access
from ondisk.errors import StateError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.maintenance.concat_segments import scan
from ondisk.segment import ScanResult
from ondisk.staging.jobs import Changed
from ondisk.staging.rows import StagedFile, StagedRows, scan_results


@dataclass(frozen=True, slots=True)
class Scanned:
    """All that a scan of a segment found.

    Attributes:
        source: the identity of the segment's file when it was scanned.
    """

    source: tuple[int, int, int]
    rows: StagedFile

    @classmethod
    def write(cls, access: Access, name: str, file: str) -> Scanned:
        """Scan a segment's file.

        Args:
            file: name of the file for the results, in the dataset's directory.

        Raises:
            StateError: the segment is not one file, or it must be rewritten; or the directory for `file` was removed.
            StorageError: the segment cannot be read.

        Locks: none; the process that updates the index sees whether the segment has changed meanwhile.
        """
        with access.current().index.snapshot() as snapshot:
            known = snapshot.segment_named(name)
        format = access.format_of(name) if known is None else access.format(known.format)
        source = None if format.is_dir else _opened(access.directory, name)
        if source is None:
            raise StateError(f"the segment {name} is not a file")
        identity = source.identity()
        with StagedRows(access.directory, file, access.config.fields) as rows:
            for found in scan(name, format, source):
                if found.foreign and not (access.layout.keeps_foreign and found.in_place):
                    raise StateError(f"the segment {name} must be rewritten")
                rows.add_result(found)
            rows.finish()
        return cls(identity, StagedFile.of(access.directory, file))

    def results(self, access: Access, source: ReadableFile) -> Iterator[ScanResult]:
        """Yield what the scan found.

        Raises:
            Changed: the segment's file was replaced or written to, or the file with the results is missing or damaged.
        """
        if source.identity() != self.source:
            raise Changed
        self.rows.verify(access.directory)
        yield from scan_results(access.directory, self.rows.name, access.config.fields)


def _opened(directory: Directory, name: str) -> ReadableFile | None:
    try:
        return directory.open_to_read(name)
    except FileNotFoundError:
        return None
