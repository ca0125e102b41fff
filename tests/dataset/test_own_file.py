"""`ondisk.dataset.input_file`: a segment of the dataset is no file to append to it."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime

import pytest

from ondisk import Datum
from ondisk.errors import InvalidInput

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


def test_a_segment_of_the_dataset_is_not_appended_to_it_under_any_name(create, tmp_path):
    dataset = create("main", archive_age=1)
    dataset.append([Datum(T, {}, {"n": 1})])
    [name] = [each.segment for each in dataset.check()]
    with contextlib.suppress(OSError):
        os.link(dataset.path / name, tmp_path / "other.jsonl")
    dataset.repack()
    archived = dataset.path / ".archive" / "last" / name
    assert archived.exists()
    dataset.append([Datum(datetime.now(UTC), {}, {"n": 2})])
    [recent] = [each.segment for each in dataset.check() if ".archive" not in each.segment]
    own = dataset.path / recent
    (tmp_path / "link.jsonl").symlink_to(own)
    os.link(own, tmp_path / "hard.jsonl")
    touched = own.read_bytes()
    for source in (own, archived, tmp_path / "other.jsonl", tmp_path / "link.jsonl", tmp_path / "hard.jsonl"):
        with pytest.raises(InvalidInput, match="is the segment"):
            dataset.append_file(source)
        with source.open("rb") as stream, pytest.raises(InvalidInput, match="is the segment"):
            dataset.append_file(stream)
    own.unlink()
    own.write_bytes(touched)  # another inode
    with pytest.raises(InvalidInput, match="is the segment"):
        dataset.append_file(own)
    assert dataset.count() == 2
    assert create("other").append_file(own).imported == 1
