"""`points` lists what can be restored, and with `verify` names each file that is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from worlds import datum

import ondisk
from ondisk.backup import points


@pytest.fixture
def target(create, tmp_path) -> Path:
    """Return a backup with two points of one dataset that has an archive, and of a folder."""
    dataset = create(fields={"station": "text"})
    dataset.append([datum(0), datum(24)])
    dataset.archive("2026/11-20.jsonl")
    dataset.backup(tmp_path / "backup", create=True)
    dataset.append([datum(48)])
    dataset.backup(tmp_path / "backup")
    return tmp_path / "backup"


def test_points_are_listed_from_the_oldest_on(target):
    first, second = points(target)
    assert first.time < second.time
    assert (first.segments, second.segments) == (2, 3)
    assert [each.damage for each in points(target, verify=True)] == [[], []]


@pytest.mark.parametrize("how", ["damaged", "missing", "cut"])
@pytest.mark.parametrize(
    ("pattern", "named", "count"),
    [
        ("segments/dataset/2026/11-21.*", "2026/11-21.jsonl", 2),
        ("segments/dataset/2026/11-22.*", "2026/11-22.jsonl", 1),
        ("segments/dataset/.archive/last/2026/11-20.*", ".archive/last/2026/11-20.jsonl", 2),
        ("points/*/dataset/index.sqlite", "index.sqlite", 1),
        ("points/*/dataset/segments.jsonl", "segments.jsonl", 1),
        ("points/*/dataset/dataset.toml", "dataset.toml", 1),
    ],
)
def test_each_damaged_file_is_named(pattern, named, count, how, target):
    file = max(target.glob(pattern))
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if how == "cut" else bytes([content[0] ^ 1]) + content[1:])
    found = [[problem.segment for problem in each.damage] for each in points(target, verify=True)]
    assert found == [[named] if count == 2 else [], [named]]
    assert [each.damage for each in points(target)] == [[], []]


def test_a_point_that_cannot_be_read_is_listed(target):
    (target / "points" / max(each.name for each in (target / "points").iterdir()) / "point.json").unlink()
    first, second = points(target)
    assert (first.damage, second.segments, len(second.damage)) == ([], 0, 1)


def test_a_damaged_file_of_a_folder_is_named(create, tmp_path):
    dataset = create(format="blob", fields={"station": "text"})
    dataset.append([datum(hour, format="blob") for hour in range(3)])
    dataset.backup(tmp_path / "backup", create=True)
    (listed,) = points(tmp_path / "backup", verify=True)
    assert listed.damage == []
    (file,) = (tmp_path / "backup/segments/dataset/2026/11-20.blob.1").glob("000001.*")
    file.write_bytes(bytes(file.stat().st_size))
    (listed,) = points(tmp_path / "backup", verify=True)
    assert [each.segment for each in listed.damage] == ["2026/11-20.blob"]
    assert "000001.blob" in listed.damage[0].reason
    shutil.rmtree(file.parent)
    (listed,) = points(tmp_path / "backup", verify=True)
    assert [each.segment for each in listed.damage] == ["2026/11-20.blob"]


def test_files_of_one_number_are_both_verified(create, tmp_path):
    """After an older point was restored, another file gets the number of one that the backup has."""
    dataset, target = create(format="blob", fields={"station": "text"}), tmp_path / "backup"
    dataset.append([datum(0, format="blob")])
    first = dataset.backup(target, create=True).point
    dataset.append([datum(1, format="blob")])
    dataset.backup(target)
    dataset.close()
    shutil.rmtree(tmp_path / "dataset")
    ondisk.restore(target, tmp_path / "dataset", first)
    before = {*target.rglob("000001.*")}
    with ondisk.open(tmp_path / "dataset") as again:
        again.append([datum(2, format="blob")])
        again.backup(target)
    (copy,) = {*target.rglob("000001.*")} - before
    copy.write_bytes(bytes(copy.stat().st_size))
    assert [len(each.damage) for each in points(target, verify=True)] == [0, 0, 1]


def test_segments_that_are_not_whole_are_counted(create, tmp_path):
    dataset = create(fields={"station": "text"})
    dataset.append([datum(0), datum(24)])
    (tmp_path / "dataset/2026/11-20.jsonl").unlink()
    dataset.backup(tmp_path / "backup", create=True)
    (listed,) = points(tmp_path / "backup", verify=True)
    assert (listed.segments, listed.incomplete, listed.damage) == (2, 1, [])
    assert ondisk.restore(tmp_path / "backup", tmp_path / "restored").segments == 2


@pytest.mark.parametrize("finds", ["verify", "restore"])
@pytest.mark.parametrize("format", ["jsonl", "seg", "blob"])
def test_the_next_backup_copies_again_what_is_known_to_be_damaged(create, tmp_path, format, finds):
    dataset, target = create(format=format, fields={"station": "text"}), tmp_path / "backup"
    dataset.append([datum(hour, format=format) for hour in (0, 1, 24)])
    dataset.backup(target, create=True)
    copies = [*target.glob("segments/dataset/2026/11-20*")]
    (copy,) = [*copies[0].glob("000001.*")] if format == "blob" else copies
    content = copy.read_bytes()
    copy.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert dataset.backup(target).copied == 0, "a backup reads no copies"
    if finds == "verify":
        assert [len(each.damage) for each in points(target, verify=True)] == [1, 1]
    else:
        assert ondisk.restore(target, tmp_path / "restored").problems
    assert dataset.backup(target).copied == 1
    assert copy.read_bytes() == content
    assert [each.damage for each in points(target, verify=True)] == [[], [], []]
    assert dataset.backup(target).copied == 0
    assert not [*target.rglob("*.rotten")]
