"""`ondisk.files.export`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import fail

import ondisk
from ondisk import files
from ondisk.errors import (
    AlreadyExists,
    DiskFull,
    DurabilityLost,
    InvalidInput,
    MatchError,
    OndiskError,
    ReadOnly,
    SegmentCorrupt,
    SegmentMissing,
    StorageError,
)
from ondisk.filesystem import Directory

from .conftest import photo
from .test_append import TREES, written

NAME = "{reftime:%H}_{site}.jpg"


def counts(result):
    return result.exported, result.present, result.refused


def files_in(folder):
    found = (each for each in Path(folder).rglob("*") if not each.is_dir())
    return {str(each.relative_to(folder)): each.read_bytes() for each in found}


def test_each_datum_that_matches_is_a_file_with_a_name_from_its_metadata(photos, tmp_path):
    result = files.export(photos, "site: north", tmp_path / "new/out", name=NAME)
    assert (counts(result), result.bytes) == ((3, 0, 0), 30)
    assert files_in(tmp_path / "new/out") == {f"{12 + hour}_north.jpg": b"north at %d" % hour for hour in range(3)}


def test_sort_and_limit_are_those_of_a_query(photos, tmp_path):
    files.export(photos, None, tmp_path / "out", name=NAME, sort="-reftime,site", limit=1)
    assert [*files_in(tmp_path / "out")] == ["14_north.jpg"]


def test_an_export_that_is_repeated_writes_only_what_is_missing(photos, tmp_path):
    files.export(photos, "site: north", tmp_path / "out", name=NAME)
    (tmp_path / "out/12_north.jpg").unlink()
    before = (tmp_path / "out/13_north.jpg").stat().st_mtime_ns
    assert counts(files.export(photos, None, tmp_path / "out", name=NAME)) == (4, 2, 0)
    assert (tmp_path / "out/13_north.jpg").stat().st_mtime_ns == before


def test_two_data_with_one_name_are_an_error_before_anything_is_written(photos, tmp_path):
    with pytest.raises(InvalidInput) as error:
        files.export(photos, None, tmp_path / "out", name="{site}.jpg")
    assert error.value.message == (
        "two data would be 'north.jpg': those of 2026-11-20T12:00:00Z and 2026-11-20T13:00:00Z"
    )
    assert not (tmp_path / "out").exists()


def test_a_file_with_other_bytes_is_not_overwritten(photos, tmp_path):
    (tmp_path / "out").mkdir()
    for name, content in {"12_north.jpg": b"mine", "13_north.jpg": b"NORTH at 1"}.items():
        (tmp_path / "out" / name).write_bytes(content)
    (tmp_path / "out/14_north.jpg").mkdir()
    (tmp_path / "out/12_south.jpg").symlink_to("elsewhere")
    result = files.export(photos, None, tmp_path / "out", name=NAME)
    assert counts(result) == (2, 0, 4)
    taken = f"{tmp_path}/out/12_north.jpg exists with other bytes, and is not overwritten"
    assert result.refusals[0] == (0, f"the datum of 2026-11-20T12:00:00Z (2026/11-20.jpg, 0): {taken}")
    assert [position for position, _ in result.refusals] == [0, 1, 2, 4]
    assert (tmp_path / "out/12_north.jpg").read_bytes() == b"mine"
    assert (tmp_path / "out/12_south.jpg").is_symlink()
    assert not (tmp_path / "out/elsewhere").exists()


def test_hostile_metadata_lead_nowhere(create, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/link").symlink_to("../outside")
    hostile = ["../outside/x", "link/x", "/etc/x", "..", "a/../../x", "x\0", "x" * 300, f"{tmp_path}/outside/x", "good"]
    dataset = create("photos", format="blob", fields={"site": "text"})
    dataset.append(photo(hour, site, b"!") for hour, site in enumerate(hostile))
    result = files.export(dataset, None, tmp_path / "out", name="{site}")
    assert counts(result) == (1, 0, 8)
    assert files_in(tmp_path / "out") == {"good": b"!"}
    assert [*(tmp_path / "outside").iterdir()] == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "outside", "photos"]


def test_metadata_make_no_dataset_of_the_folder(create, tmp_path):
    dataset = create("photos", format="blob", fields={"site": "text"})
    sites = ["dataset.toml", "a/dataset.toml", "a/dataset.toml.jpg", "dataset.toml/x"]
    dataset.append(photo(hour, site) for hour, site in enumerate(sites))
    result = files.export(dataset, None, tmp_path / "out", name="{site}")
    assert counts(result) == (1, 0, 3)
    assert "would make its folder a dataset" in result.refusals[0][1]


def test_a_name_that_is_a_folder_of_another_is_refused(create, tmp_path):
    dataset = create("photos", format="blob", fields={"site": "text"})
    dataset.append([photo(0, "a"), photo(1, "a/b")])
    assert counts(files.export(dataset, None, tmp_path / "out", name="{site}")) == (1, 0, 1)


def test_data_that_are_no_bytes_are_refused(create, tmp_path):
    dataset = create("mixed", format="seg", fields={"site": "text"})
    dataset.append([photo(0, "a", b"bytes"), photo(1, "b", {"n": 1})])
    result = files.export(dataset, None, tmp_path / "out", name="{site}")
    assert (counts(result), files_in(tmp_path / "out")) == ((1, 0, 1), {"a": b"bytes"})
    assert "its data are of type dict, not bytes" in result.refusals[0][1]


def test_metadata_that_are_not_declared_may_be_in_a_name(create, tmp_path):
    dataset = create("photos", format="blob")
    dataset.append(photo(hour, f"s{hour}", sensor=hour) for hour in range(3))
    assert files.export(dataset, None, tmp_path / "out", name="{sensor}").exported == 3
    dataset.append([photo(5, "x", sensor=1)])
    with pytest.raises(InvalidInput, match="two data would be '1'"):
        files.export(dataset, None, tmp_path / "out", name="{sensor}")


def test_metadata_that_no_datum_has_are_an_error_before_anything_is_written(create, tmp_path):
    dataset = create("photos", format="blob", fields={"site": "text", "level": "real"})
    dataset.append(photo(hour, f"s{hour}", sensor=hour) for hour in range(3))
    for name, known in {"{sitename}": "reftime, sensor, site", "{level}-{site}": "reftime, site"}.items():
        with pytest.raises(InvalidInput, match="no datum has") as error:
            files.export(dataset, None, tmp_path / "out", name=name)
        assert error.value.hint == f"The data have {known}."
    assert not (tmp_path / "out").exists()
    assert counts(files.export(dataset, "site: x", tmp_path / "out", name="{level}")) == (0, 0, 0)
    dataset.append([photo(3, "s3", level=1.5)])
    assert counts(files.export(dataset, None, tmp_path / "out", name="{level}")) == (1, 0, 3)


def test_a_dataset_is_no_place_to_export_to(photos, tmp_path):
    for place in (photos.path, photos.path / "2026/11-20.jpg", photos.path / "new"):
        with pytest.raises(InvalidInput, match="is in the dataset"):
            files.export(photos, None, place, name=NAME)
    assert not photos.check().findings


def test_a_folder_that_is_a_file_is_an_error(photos, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AlreadyExists, match="is not a folder"):
        files.export(photos, None, tmp_path / "file", name=NAME)
    with pytest.raises(InvalidInput, match="the path of the folder is empty"):
        files.export(photos, None, "", name=NAME)


def test_a_match_that_is_not_valid_creates_nothing(photos, tmp_path):
    with pytest.raises(MatchError):
        files.export(photos, "sitte: north", tmp_path / "out", name=NAME)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"north at X")])
def test_a_datum_that_is_damaged_is_an_error_after_those_before_it(photos, tmp_path, damage):
    damage(photos.path / "2026/11-20.jpg/000002.jpg")
    with pytest.raises((SegmentCorrupt, SegmentMissing, ondisk.OndiskError)) as error:
        files.export(photos, None, tmp_path / "out", name=NAME)
    assert counts(error.value.context["result"]) == (2, 0, 0)
    assert sorted(files_in(tmp_path / "out")) == ["12_north.jpg", "12_south.jpg"]


@pytest.mark.parametrize("together", [True, False])
def test_a_file_appears_whole_or_not_at_all(photos, tmp_path, together):
    """A process that is killed before it gives a file its name leaves only a hidden file, and a repetition works."""
    script = (
        "import os, signal, sys\nimport ondisk\nfrom ondisk import files\nfrom ondisk.filesystem import Directory\n"
        f"Directory.can_sync_together = property(lambda self: {together})\n"
        "os.link = lambda *given, **options: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.export(ondisk.open(sys.argv[1], read_only=True), None, sys.argv[2], name=sys.argv[3])\n"
    )
    command = [sys.executable, "-c", script, str(photos.path), str(tmp_path / "out"), NAME]
    assert subprocess.run(command, check=False).returncode == -9
    assert [name[:8] for name in files_in(tmp_path / "out")] == [".ondisk-"]
    assert files.export(photos, None, tmp_path / "out", name=NAME).exported == 6


@pytest.mark.parametrize("link", [True, False])
def test_exports_to_one_folder_at_the_same_time_do_not_mix_their_files(create, tmp_path, link):
    photos = create("many", format="blob", unique=["reftime", "site"], fields={"site": "text"})
    photos.append(photo(hour, site) for hour in range(150) for site in ("north", "south"))

    def run(site):
        with ondisk.open(photos.path, read_only=True) as reader:
            return files.export(reader, f"site: {site}", tmp_path / "out", name="{reftime:%d%H}_{site}", link=link)

    with ThreadPoolExecutor(2) as threads:
        results = [*threads.map(run, ("north", "south"))]
    assert [counts(each) for each in results] == [(150, 0, 0)] * 2
    first = photo(0, "").reftime
    assert files_in(tmp_path / "out") == {
        f"{first + timedelta(hours=hour):%d%H}_{site}": f"{site} at {hour}".encode()
        for hour in range(150)
        for site in ("north", "south")
    }


@pytest.mark.parametrize("together", [True, False])
def test_files_are_durable_when_the_export_returns(photos, tmp_path, monkeypatch, together):
    synced = []
    monkeypatch.setattr(Directory, "can_sync_together", together)
    monkeypatch.setattr(Directory, "sync_together", lambda *given: synced.append("all") or True)
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink())))
    files.export(photos, "site: north", tmp_path / "out", name="{site}/{reftime:%H}")
    if together:
        assert synced[-1] == "all"
    else:
        assert sum(f"{os.sep}.ondisk-" in each for each in synced) == 3
        assert synced.count(str(tmp_path / "out/north")) == 3
        assert str(tmp_path / "out") in synced


class AtOnce:
    """A pool of threads that does everything at once."""

    def __init__(self, _count):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, work):
        done = Future()
        try:
            done.set_result(work())
        except OndiskError as error:
            done.set_exception(error)
        return done


@pytest.fixture
def syncs(monkeypatch):
    """The results of syncs, which a test appends: an error is raised; then all succeed. A sync follows each file."""
    monkeypatch.setattr(sys.modules["ondisk.files.export"], "_SYNCED", 1)
    monkeypatch.setattr(sys.modules["ondisk.files.export"], "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(Directory, "can_sync_together", True)
    results = []

    def sync(*_):
        result = results.pop(0) if results else True
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(Directory, "sync_together", sync)
    return results


@pytest.mark.each
@pytest.mark.parametrize(("limit", "results", "exported"), [
    (1, [DurabilityLost("it failed")], 1),
    (None, [DurabilityLost("it failed")], 2),
    (None, [True, DurabilityLost("it failed")], 3),
    (None, [True] * 6 + [DurabilityLost("it failed")], 6),
    (None, [True] * 6 + [False], 6),
])  # fmt: skip
def test_a_sync_that_fails_ends_the_export(photos, tmp_path, syncs, limit, results, exported):
    syncs += results
    with pytest.raises(DurabilityLost) as error:
        files.export(photos, None, tmp_path / "out", name=NAME, limit=limit)
    assert "delete what was exported" in error.value.hint
    assert counts(error.value.context["result"]) == (exported, 0, 0)


def test_a_sync_that_failed_is_an_error_also_if_something_else_fails(photos, tmp_path, syncs, monkeypatch):
    """The kernel reports it once: if it was forgotten, the next export would find whole files in memory."""
    syncs += [DurabilityLost("it failed")]
    write, written = os.pwrite, []

    def full(*given):
        written.append(given)
        return write(*given) if len(written) == 1 else fail(errno.ENOSPC)()

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DurabilityLost) as error:
        files.export(photos, None, tmp_path / "out", name=NAME)
    assert counts(error.value.context["result"]) == (1, 0, 0)


def test_the_last_sync_follows_the_last_file(photos, tmp_path, syncs, monkeypatch):
    order, sync, link = [], Directory.sync_together, os.link
    monkeypatch.setattr(Directory, "sync_together", lambda *given: order.append("sync") or sync(*given))
    monkeypatch.setattr(os, "link", lambda *given, **how: order.append("link") or link(*given, **how))
    files.export(photos, None, tmp_path / "out", name=NAME)
    assert order == ["link", "sync"] * 6 + ["sync"]


@pytest.mark.parametrize("link", [False, True])
def test_a_sync_that_fails_where_each_file_is_synced_ends_the_export(photos, tmp_path, monkeypatch, link):
    monkeypatch.setattr(Directory, "can_sync_together", False)
    files.export(photos, None, tmp_path / "out", name=NAME, limit=1, link=link)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(DurabilityLost) as error:
        files.export(photos, None, tmp_path / "out", name=NAME, link=link)
    assert "delete what was exported" in error.value.hint
    assert counts(error.value.context["result"]) == (0, 1, 0)
    with pytest.raises(DurabilityLost) as error:
        files.export(photos, None, tmp_path / "out2", name=NAME, link=link)
    assert "delete what was exported" in error.value.hint


@pytest.mark.parametrize(
    ("call", "code", "kind", "present"), [("mkdir", errno.EACCES, ReadOnly, 0), ("pwrite", errno.ENOSPC, DiskFull, 1)]
)
def test_a_folder_that_cannot_be_written_is_an_error_that_reports_what_is_there(
    photos, tmp_path, monkeypatch, call, code, kind, present
):
    files.export(photos, "site: north", tmp_path / "out", name="{site}/{reftime:%H}", limit=1)
    monkeypatch.setattr(os, call, fail(code))
    with pytest.raises(kind) as error:
        files.export(photos, None, tmp_path / "out", name="{site}/{reftime:%H}", sort="site,reftime")
    assert "dataset" not in error.value.hint
    assert counts(error.value.context["result"]) == (0, present, 0)


def test_names_that_no_temporary_file_can_hold_are_an_error(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsencode", lambda name: {})  # SQLite's errors are of one class
    with pytest.raises(StorageError, match="a temporary file for the names"):
        files.export(photos, None, tmp_path / "out", name=NAME)


@settings(max_examples=up_to(25))
@given(TREES, st.booleans())
def test_a_tree_of_files_that_is_appended_and_exported_is_the_same(tmp_path_factory, tree, declared):
    folder = tmp_path_factory.mktemp("tree")
    paths = written(tree, folder / "in")
    config = {"format": "blob", "step": "yearly", "fields": {"path": "text"} if declared else {}}
    with ondisk.create(folder / "dataset", config) as dataset:
        files.append(dataset, [folder / "in"], time="mtime")
        result = files.export(dataset, None, folder / "out")
        assert counts(result) == (len(paths), 0, 0)
        assert files_in(folder / "out") == files_in(folder / "in")
        dataset.delete("")
        dataset.repack()
        assert files_in(folder / "out") == files_in(folder / "in")
