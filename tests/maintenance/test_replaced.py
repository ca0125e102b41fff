"""What a repack deletes by age is kept for as long as `keep_replaced` says, and then removed."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest
from worlds import change_config, delete_by_age, lose_index

import ondisk
from ondisk import Datum
from ondisk.cli import main
from ondisk.errors import StorageError
from ondisk.index.transaction import Transaction
from ondisk.maintenance.repack import repack
from ondisk.maintenance.states import State
from ondisk.segments.replaced import replaced

T = datetime(2015, 11, 20, tzinfo=UTC)
BASE = {"step": "daily", "fields": {"number": "integer"}, "keep_replaced": "6h"}
CONFIGS = {"jsonl": {"format": "jsonl", **BASE}, "blob": {"format": "blob", **BASE}}
MiB = 1024 * 1024


@pytest.fixture(params=CONFIGS)
def dataset(request, create):
    """A dataset with three segments that are too old, and one of today."""
    dataset = create(**CONFIGS[request.param])
    fill(dataset)
    fill(dataset, begin=datetime.now(UTC), count=1)
    return dataset


def fill(dataset, size=60, begin=T, count=36):
    """Append data, twelve for each day."""
    for number in range(count):
        content = (b"%d " % number * size)[:size]
        data = content if dataset.config.format == "blob" else {"x": content.decode()}
        dataset.append([Datum(begin + timedelta(hours=2 * number), {"number": number % 3}, data)])


def kept(dataset):
    return [*replaced(dataset._access.directory)]


def contents(dataset):
    return [(each.reftime, each.metadata, each.data) for each in dataset.query()]


def test_what_is_kept_goes_with_the_first_repack_after_its_time(dataset):
    left = contents(dataset)[-1:]
    done = delete_by_age(dataset.path)
    assert [each.freed for each in done] == [0, 0, 0], "it takes its space still"
    report = dataset.check()
    assert report.is_clean
    assert report.replaced.segments == len(kept(dataset)) == 3
    assert report.replaced.bytes == sum(
        file.stat().st_size for file in dataset.path.rglob(".replaced/**/*") if file.is_file()
    )
    until = report.replaced.until
    assert abs(until - time.time() - 6 * 3600) < 600
    repack(dataset._access, now=until - 60)
    assert len(kept(dataset)) == 3
    repack(dataset._access, now=until + 60)
    assert not [*dataset.path.rglob(".replaced")]
    assert dataset.check().replaced.segments == 0
    assert contents(dataset) == left


def test_what_a_repack_or_a_move_replaces_is_not_kept(dataset):
    """A job finds the data by their numbers, wherever they are."""
    dataset.delete("number: 2")
    names = sorted({each.location.segment for each in dataset.query()})
    dataset.archive(*names[:2])
    dataset.delete("number: 1")
    dataset.repack()
    dataset.delete("")
    assert {each.action for each in dataset.repack()} == {"delete"}
    assert not kept(dataset)


def test_check_says_how_much_is_kept_and_until_when(dataset, capsys):
    delete_by_age(dataset.path)
    assert main(["check", str(dataset.path)]) == 0
    said = capsys.readouterr().out
    assert "3 deleted segments kept for readers, " in said
    assert "the first repack after that removes them" in said
    assert main(["check", str(dataset.path), "--json"]) == 0
    assert '"replaced":{"segments":3,"bytes":' in capsys.readouterr().out.replace(" ", "")


def test_what_is_in_the_archive_is_counted_and_removed_too(dataset):
    names = sorted({each.location.segment for each in dataset.query()})
    dataset.archive(*names[:2])
    delete_by_age(dataset.path)
    assert len(kept(dataset)) == dataset.check().replaced.segments == 3
    repack(dataset._access, now=time.time() + 7 * 3600)
    assert not [*dataset.path.rglob(".replaced")]


def test_what_an_archive_has_kept_before_it_was_renamed_goes_too(dataset):
    names = sorted({each.location.segment for each in dataset.query()})
    dataset.archive(*names[:2], names[3])
    delete_by_age(dataset.path)
    dataset.close()
    (dataset.path / ".archive/last").rename(dataset.path / ".archive/2015")
    with ondisk.open(dataset.path) as dataset:
        assert dataset.check().replaced.segments == 1, "the folder is followed by a repack"
        repack(dataset._access, now=time.time() + 7 * 3600)
        assert dataset.check().replaced.segments == 0
        assert not [*dataset.path.rglob(".replaced")]


def test_what_would_be_kept_longer_than_asked_because_the_clock_was_set_back_goes(dataset):
    delete_by_age(dataset.path)
    for each in kept(dataset):
        os.utime(dataset.path / f"{each.name}.rows", (time.time() + 7 * 3600,) * 2)
    dataset.repack()
    assert not kept(dataset)


def test_without_the_key_a_repack_removes_what_is_kept(dataset):
    delete_by_age(dataset.path)
    path = dataset.path
    dataset.close()
    change_config(path, 'keep_replaced = "6h"\n', "")
    with ondisk.open(path) as dataset:
        assert len(kept(dataset)) == 3
        dataset.repack()
        assert not [*path.rglob(".replaced")]


def test_a_file_of_somebody_else_stays(dataset):
    delete_by_age(dataset.path)
    note = dataset.path / "2015/.replaced/note.17"
    note.write_text("mine")
    repack(dataset._access, now=time.time() + 7 * 3600)
    assert note.read_text() == "mine"
    assert not kept(dataset)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_in_the_place_of_the_folder_is_named_and_stays(dataset, tmp_path, kind):
    before, place = contents(dataset), dataset.path / "2015/.replaced"
    if kind == "link":
        place.symlink_to(tmp_path)
    else:
        place.write_bytes(b"mine")
    with pytest.raises(StorageError, match=r"2015/\.replaced is not a directory"):
        delete_by_age(dataset.path)
    assert contents(dataset) == before
    place.unlink()
    delete_by_age(dataset.path)
    assert len(kept(dataset)) == 3


def test_a_file_of_somebody_else_in_a_kept_folder_goes_to_quarantine(create):
    dataset = create(**CONFIGS["blob"])
    fill(dataset)
    delete_by_age(dataset.path)
    (dataset.path / kept(dataset)[0].name / "note").write_text("mine")
    repack(dataset._access, now=time.time() + 7 * 3600)
    assert not [*dataset.path.rglob(".replaced")]
    (item,) = dataset.quarantine
    assert (dataset.path / item.name / "note").read_text() == "mine"


def test_a_lost_index_is_rebuilt_without_what_is_kept(dataset):
    delete_by_age(dataset.path)
    before = contents(dataset)
    path = dataset.path
    dataset.close()
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert contents(dataset) == before
        dataset.repack()
        assert dataset.check().is_clean
        assert not [*dataset.quarantine]
        assert len(kept(dataset)) == 3, "their time is not over"


def test_a_query_that_began_before_reads_on(dataset):
    """Its generation is moved to `.replaced` after it has ended."""
    before = contents(dataset)
    query = dataset.query()
    found = [next(query)]
    with ondisk.open(dataset.path) as other:
        delete_by_age(other.path)
        assert all(each.entry is None for each in kept(other)), "the query may need them"
        found += query
        assert [(each.reftime, each.metadata, each.data) for each in found] == before
    with ondisk.open(dataset.path) as other:
        assert len([each for each in kept(other) if each.entry is not None]) == 3


def test_a_repack_that_fails_before_its_commit_keeps_nothing(dataset, monkeypatch):
    before = contents(dataset)

    def fail(*_):
        raise StorageError("no access", hint="")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "supersede", fail)
        with pytest.raises(StorageError):
            delete_by_age(dataset.path)
    assert not kept(dataset)
    assert contents(dataset) == before


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    path = tmp_path / "mounted"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={12 * MiB}", "tmpfs", path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.root
def test_on_a_full_disk_what_is_kept_goes_first(small_disk):
    path = small_disk / "dataset"
    with ondisk.create(path, CONFIGS["jsonl"]) as dataset:
        fill(dataset, 100_000)  # 3.6 MB, which are deleted by age
        delete_by_age(dataset.path)
        assert len(kept(dataset)) == 3
        fill(dataset, 100_000, begin=datetime.now(UTC))
        dataset.delete("number: 1")
        before = contents(dataset)
        filler = small_disk / "filler"
        found = os.statvfs(small_disk)
        filler.write_bytes(bytes(found.f_bfree * found.f_frsize - 300_000))
        dataset.repack()
        assert not kept(dataset)
        assert contents(dataset) == before
        assert not [each for each in dataset.check() if State.DIRTY in each.state]
        found = os.statvfs(small_disk)
        assert found.f_bfree * found.f_frsize > 3 * MiB
