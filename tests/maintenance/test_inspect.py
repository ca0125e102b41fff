"""The segments that a dataset has on disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import ondisk
from ondisk.filesystem import Directory
from ondisk.maintenance.inspect import found_segments


def test_segments_are_found_by_their_extension_wherever_they_are(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", {"format": "vm2", "step": "daily"}) as dataset:
        names = [
            "2026/11-20.vm2",
            "2026/11-20.seg",
            "x.jsonl",
            "a/b/c/d.vm2",
            ".archive/last/2026/11-20.vm2",
            "2026/11-21.vm2",
        ]
        others = ["2026/.11-20.vm2.7", ".archive/.x/2026/11-20.vm2", "2026/11-20.txt", "2026/vm2", "2026/x.damaged"]
        for name in names[:-1] + others:
            (dataset.path / name).parent.mkdir(parents=True, exist_ok=True)
            (dataset.path / name).write_bytes(b"x")
        (dataset.path / names[-1]).mkdir()
        (dataset.path / names[-1] / "inside.vm2").write_bytes(b"x")
        with closing(Directory.open(dataset.path)) as directory:
            found = {name: entry.kind for name, entry in found_segments(directory, dataset.config)}
    assert found == {name: "directory" if name == names[-1] else "file" for name in names}
