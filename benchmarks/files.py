"""Measure an export of files against cp: 5,000 photos of 100 kB."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from measure import Bench, best, silent

import ondisk
from ondisk import files

FILES = 5_000
SIZE = 100_000
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
CONFIG = {
    "format": "blob",
    "extension": "jpg",
    "step": "daily",
    "unique": ["reftime", "site"],
    "fields": {"site": "text", "path": "text"},
}
TIME, FIELDS = "name:%Y%m%d_%H%M", {"site": "path:1"}


class FilesBench(Bench):
    """Export of files; `count` does not matter. Both ways end when the files are on disk.

    Each round writes to a new folder, and nothing is removed in between: for some minutes after files are deleted, ext4
    without a journal does not use their inodes, and passes over all of them for each new file.
    """

    def run(self) -> None:
        source = self.folder / "camera"
        photo = os.urandom(SIZE)
        for number in range(FILES):
            time = BEGIN + timedelta(minutes=10 * (number // 2))
            path = source / ("north", "south")[number % 2] / f"{time:%Y%m%d_%H%M}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(number.to_bytes(4) + photo[4:])
        dataset = ondisk.create(self.folder / "photos", CONFIG)
        files.append(dataset, [source], time=TIME, fields=FIELDS)

        def copy() -> None:
            target = self.new_path("copy")
            silent(["cp", "--recursive", str(source), str(target)])
            silent(["sync", "--file-system", str(target)])

        def export() -> None:
            assert files.export(dataset, None, self.new_path("export")).exported == FILES

        self.report.ratio("export of 5,000 files", *best(self.rounds, copy, export), 2.0, FILES)
        dataset.close()
