"""The quarantine of a dataset: items are listed, exported, restored and dropped, and nothing takes them for data."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from worlds import lose_index

import ondisk
from ondisk.dataset.auxiliary_files import last_generation
from ondisk.errors import AlreadyExists, InvalidInput, NotFound, ReadOnly, StorageError
from ondisk.maintenance.check import check
from ondisk.maintenance.inspect import found_segments
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.repack import repack
from ondisk.segments import quarantine
from ondisk.segments.generations import left_behind

NAME = "2026/11-20.jsonl"
ARCHIVED = ".archive/last/2026/11-20.jsonl"
WHY = {"verb": "fix", "why": "its checksum is another"}
DAY = 24 * 3600  # seconds


@pytest.fixture
def dataset(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Return a dataset with a segment of two data."""
    dataset = create(fields={"n": "integer"})
    dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"n": n}, {}) for n in (1, 2)])
    return dataset


@pytest.fixture
def archived(dataset):
    """Return the same dataset after its segment was archived."""
    dataset.archive(NAME)
    return dataset


def keep(dataset: ondisk.Dataset, name: str = NAME, **more: str) -> str:
    """Move a file of a dataset or of its archive into quarantine; return the name of the item."""
    with dataset._access.locked("fix"):
        return quarantine.keep(dataset._access.directory, name, **WHY, **more)


def copied(dataset: ondisk.Dataset, name: str) -> str:
    """Put a copy of the segment into quarantine under another name."""
    (dataset.path / name).write_bytes((dataset.path / NAME).read_bytes())
    return keep(dataset, name)


def test_items_of_the_dataset_and_of_the_archive_are_listed_with_names_relative_to_the_dataset(archived):
    item = keep(archived, ARCHIVED)
    (archived.path / "2026/11-21.jsonl").write_text("x")
    other = keep(archived, "2026/11-21.jsonl")
    found = {(each.name, each.segment) for each in archived.quarantine}
    assert found == {(other, "2026/11-21.jsonl"), (item, ARCHIVED)}
    assert archived.quarantine.total() == (2, 1 + (archived.path / item).stat().st_size)


@pytest.mark.parametrize("name", [NAME, ARCHIVED])
def test_a_restored_segment_is_read_by_the_next_fix(dataset, name):
    if name == ARCHIVED:
        dataset.archive(NAME)
    data = [(each.reftime, each.metadata) for each in dataset.query()]
    item = keep(dataset, name)
    dataset.fix()
    assert [*dataset.query()] == []
    assert dataset.quarantine.restore(item) == name
    dataset.fix()
    assert [(each.reftime, each.metadata) for each in dataset.query()] == data
    assert [*dataset.quarantine] == []
    assert dataset.check().is_clean


def test_restoring_never_overwrites(dataset):
    (dataset.path / "2026/11-21.jsonl").write_text("old")
    item = keep(dataset, "2026/11-21.jsonl")
    (dataset.path / "2026/11-21.jsonl").write_text("new")
    with pytest.raises(AlreadyExists, match="exists already") as raised:
        dataset.quarantine.restore(item)
    assert f"ondisk quarantine {dataset.path} export {item} FILE" in raised.value.hint
    assert (dataset.path / "2026/11-21.jsonl").read_text() == "new"
    assert (dataset.path / item).read_text() == "old"


def test_nothing_is_restored_beside_a_hidden_generation(dataset):
    """A process that was killed may have left the committed bytes there; a file at the name would take their place."""
    item = copied(dataset, "2026/11-21.jsonl")
    (dataset.path / "2026/.11-21.jsonl.17").write_text("committed")
    with pytest.raises(AlreadyExists, match=r"\.11-21\.jsonl\.17 exists") as raised:
        dataset.quarantine.restore(item)
    assert f"ondisk fix {dataset.path} --yes" in raised.value.hint
    assert not (dataset.path / "2026/11-21.jsonl").exists()


def test_only_whole_segments_are_restored(dataset):
    directory = dataset._access.directory
    piece = quarantine.keep_piece(directory, NAME, directory.open_to_read(NAME), 0, 3, **WHY)
    hidden = keep(dataset, NAME, of="2026/.11-20.jsonl.17")
    for item in (piece, hidden):
        with pytest.raises(InvalidInput, match="not a whole segment"):
            dataset.quarantine.restore(item)
    assert len([*dataset.quarantine]) == 2


def test_a_file_and_a_folder_are_exported_as_they_are(dataset, tmp_path):
    content = (dataset.path / NAME).read_bytes()
    file = keep(dataset)
    (dataset.path / "2026/11-21.blob/below").mkdir(parents=True)
    (dataset.path / "2026/11-21.blob/below/1").write_bytes(b"one")
    folder = keep(dataset, "2026/11-21.blob")
    dataset.quarantine.export(file, tmp_path / "file")
    dataset.quarantine.export(folder, tmp_path / "folder")
    assert (tmp_path / "file").read_bytes() == content
    assert (tmp_path / "folder/below/1").read_bytes() == b"one"
    for item in (file, folder):
        with pytest.raises(AlreadyExists):
            dataset.quarantine.export(item, tmp_path / "file")
    with pytest.raises(NotFound, match="no such directory"):
        dataset.quarantine.export(file, tmp_path / "nowhere/file")
    assert (tmp_path / "file").read_bytes() == content


def test_an_item_that_cannot_be_copied_leaves_no_export(dataset, tmp_path):
    (dataset.path / "2026/11-21.blob").mkdir(parents=True)
    (dataset.path / "2026/11-21.blob/link").symlink_to("/etc/passwd")
    item = keep(dataset, "2026/11-21.blob")
    with pytest.raises(StorageError, match="symbolic link"):
        dataset.quarantine.export(item, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_items_are_dropped_together_or_not_at_all(dataset):
    one, two = copied(dataset, "2026/11-21.jsonl"), copied(dataset, "2026/11-22.jsonl")
    size = (dataset.path / one).stat().st_size
    with pytest.raises(NotFound, match="has no item 'x' in quarantine"):
        dataset.quarantine.drop(one, "x")
    assert len([*dataset.quarantine]) == 2
    assert dataset.quarantine.drop(one, two, one) == 2 * size
    assert not (dataset.path / "2026/.quarantine").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        NAME,
        "2026/.quarantine",
        "2026/.quarantine/",
        "2026/.quarantine/..",
        "2026/.quarantine/../11-20.jsonl",
        ".archive/last/2026/.quarantine/x",
        "\0",
        "x" * 300,
    ],
)
def test_no_other_file_passes_for_an_item(dataset, name):
    copied(dataset, "2026/11-21.jsonl")
    for verb in (dataset.quarantine.find, dataset.quarantine.restore, dataset.quarantine.drop):
        with pytest.raises(NotFound):
            verb(name)


def test_the_record_of_an_item_is_no_item(dataset):
    item = copied(dataset, "2026/11-21.jsonl")
    with pytest.raises(NotFound):
        dataset.quarantine.drop(f"{item}.json")


def test_of_concurrent_drops_one_succeeds(dataset):
    item = copied(dataset, "2026/11-21.jsonl")
    results = []

    def drop() -> None:
        with ondisk.open(dataset.path) as other:
            try:
                results.append(other.quarantine.drop(item))
            except NotFound:
                results.append(None)

    threads = [Thread(target=drop) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(result is None for result in results) == [False, True, True, True]


def test_a_dataset_that_was_opened_read_only_changes_nothing(dataset):
    item = copied(dataset, "2026/11-21.jsonl")
    with ondisk.open(dataset.path, read_only=True) as reader:
        for verb in (reader.quarantine.restore, reader.quarantine.drop):
            with pytest.raises(ReadOnly):
                verb(item)
        assert [each.name for each in reader.quarantine] == [item]


def test_items_are_taken_for_no_segment_no_generation_and_no_data(dataset):
    content = (dataset.path / NAME).read_bytes()
    for name in ("2026/11-21.jsonl", "2026/.11-20.jsonl.99"):
        (dataset.path / name).write_bytes(content)
        keep(dataset, name)
    directory = dataset._access.directory
    assert [name for name, _ in found_segments(directory, dataset.config)] == [NAME]
    assert left_behind(directory) == {}
    assert last_generation(directory) == 0
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        again.repack()
        assert len([*again.query()]) == 2
        assert len([*again.quarantine]) == 2
        assert again.check().is_clean


def test_check_counts_items_without_a_finding(dataset):
    copied(dataset, "2026/11-21.jsonl")
    report = dataset.check()
    assert (report.is_clean, report.quarantine.items) == (True, 1)
    assert dataset.info()["quarantine"] == {"items": 1, "bytes": report.quarantine.bytes}
    assert report.quarantine.bytes > 0


def aged(dataset: ondisk.Dataset, item: str, days: int) -> str:
    """Make an item look as old as this; return its new name."""
    folder, _, last = item.rpartition("/")
    old = datetime.now(UTC) - timedelta(days=days)
    name = f"{folder}/{old:%Y%m%dT%H%M%S.%f}Z{last.partition('Z')[2]}"
    for end in ("", ".json"):
        (dataset.path / f"{item}{end}").rename(dataset.path / f"{name}{end}")
    return name


def test_without_an_age_items_stay_for_ever(dataset):
    aged(dataset, copied(dataset, "2026/11-21.jsonl"), 10_000)
    dataset.repack()
    assert dataset.check().is_clean
    assert len([*dataset.quarantine]) == 1


@pytest.mark.parametrize("is_archived", [False, True])
def test_repack_removes_items_older_than_the_age(create, is_archived):
    dataset = create(quarantine_age=30)
    dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {})])
    if is_archived:
        dataset.archive(NAME)
    item = aged(dataset, keep(dataset, ARCHIVED if is_archived else NAME), 30)
    dataset.fix()
    assert not dataset.repack().segments
    item = aged(dataset, item, 31)
    (done,) = dataset.repack()
    assert (done.segment, done.action, done.state.names) == (item, "delete", ["DELETE_AGE"])
    assert done.freed > 0
    assert "longer than quarantine_age allows: its checksum is another" in done.reasons[0]
    assert [*dataset.quarantine] == []


def test_a_clock_that_is_far_ahead_removes_no_item(create):
    dataset = create(quarantine_age=30)
    dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {})])
    item = copied(dataset, "2026/11-21.jsonl")
    for days in (9, 100):
        report = repack(dataset._access, now=time.time() + days * DAY)
        assert [each.action for each in report] == [None] * (days == 100)
        assert [each.name for each in dataset.quarantine] == [item]
    report = check(dataset._access, now=time.time() + 100 * DAY)
    assert (
        report.held[0]
        .reasons[-1]
        .endswith(f"is the clock wrong?; to delete it, run `ondisk repack {dataset.path} --yes --by-age`")
    )
    (done,) = repack(dataset._access, now=time.time() + 100 * DAY, by_age=True)
    assert (done.segment, done.action) == (item, "delete")


def test_check_proposes_what_repack_removes(create):
    dataset = create(quarantine_age=0)
    (dataset.path / "2026/.quarantine").mkdir(parents=True)
    (dataset.path / "2026/.quarantine/20200101T000000.000000Z-x").write_text("12345")
    (finding,) = dataset.check().findings
    assert (finding.action, finding.freed, finding.state.names) == ("delete", 5, ["DELETE_AGE"])
    assert maintain(dataset.path).exit_code == 0
    assert dataset.check().is_clean


def test_a_file_that_somebody_put_into_the_quarantine_has_no_age(create):
    dataset = create(quarantine_age=0)
    (dataset.path / "2026/.quarantine").mkdir(parents=True)
    (dataset.path / "2026/.quarantine/notes").write_text("mine")
    assert maintain(dataset.path).exit_code == 0
    assert (dataset.path / "2026/.quarantine/notes").exists()


def test_repack_removes_what_killed_processes_left(dataset):
    folder = dataset.path / "2026/.quarantine"
    folder.mkdir()
    (folder / "20261122T141307.123456Z-11-20.jsonl.json").write_text("{")
    (folder / ".20261122T141307.123456Z-11-20.jsonl@1-2").write_text("half")
    (folder / "mine.json").write_text("of somebody")
    dataset.repack()
    assert [each.name for each in folder.iterdir()] == ["mine.json"]


def test_an_old_folder_is_removed_without_following_its_links(create):
    dataset = create("aged", quarantine_age=0, fields={"n": "integer"})
    dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"n": n}, {}) for n in (1, 2)])
    dataset.delete("n: 1")
    kept = dataset.path / "2026/.quarantine/20200101T000000.000000Z-x"
    (kept / "below").mkdir(parents=True)
    size = (dataset.path / NAME).stat().st_size
    moved = Path(f"{kept}/below/again")
    moved.mkdir()
    (moved / "x").symlink_to("/")
    dataset.repack()
    assert (dataset.path / NAME).stat().st_size < size
    assert [*dataset.quarantine] == []
