"""`ondisk.files.append`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st

import ondisk
from ondisk import Datum, files
from ondisk.errors import InvalidInput, NotFound, ReadOnly
from ondisk.files.append import CHANGED
from ondisk.filesystem import ReadableFile

append_module = sys.modules["ondisk.files.append"]
FORM = "name:%Y%m%d_%H%M"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def photos(create):
    return create(
        "photos",
        format="blob",
        extension="jpg",
        unique=["reftime", "site"],
        fields={"site": "text", "path": "text"},
        max_datum_size=1000,
    )


@pytest.fixture
def camera(tmp_path):
    """Return a folder with four photos of two sites, at two times."""
    for site in ("north", "south"):
        for hour in (12, 13):
            write(tmp_path / f"camera/{site}/20261120_{hour}00.jpg", f"{site} at {hour}")
    return tmp_path / "camera"


def write(path, content=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def append(dataset, *paths, **options):
    return files.append(dataset, paths, **{"time": FORM, "fields": {"site": "path:1"}} | options)


def counts(result):
    return result.imported, result.duplicates, result.replaced, result.refused


def stored(dataset):
    return [
        (each.reftime.hour, each.metadata["site"], each.data.decode()) for each in dataset.query(sort="reftime,site")
    ]


def test_files_become_data_with_time_fields_and_path(photos, camera):
    result = append(photos, camera)
    assert counts(result) == (4, 0, 0, 0)
    assert (result.bytes, result.segments) == (44, 1)
    assert stored(photos) == [(hour, site, f"{site} at {hour}") for hour in (12, 13) for site in ("north", "south")]
    assert [*photos.query("site: north", limit=1)] == [
        Datum(NOON, {"site": "north", "path": "north/20261120_1200.jpg"}, b"north at 12")
    ]


def test_a_file_that_is_there_already_is_a_duplicate(photos, camera):
    append(photos, camera / "north", fields={"site": "name:3"})
    write(camera / "north/20261120_1400.jpg", "new")
    assert counts(append(photos, camera / "north", fields={"site": "name:3"})) == (1, 2, 0, 0)
    assert counts(append(photos, camera / "north", camera / "north", fields={"site": "name:3"})) == (0, 6, 0, 0)


def test_what_is_archived_is_a_duplicate_too(photos, camera):
    append(photos, camera)
    photos.archive("2026/11-20.jpg")
    write(camera / "north/20261120_1200.jpg", "other")
    assert counts(append(photos, camera)) == (0, 3, 0, 1)


def test_another_file_with_the_same_unique_fields_is_refused_not_skipped_in_silence(photos, camera):
    append(photos, camera)
    write(camera / "north/20261120_1200.jpg", "other bytes")
    write(camera / "north/20261120_1200 (2).jpg", "north at 12")
    write(camera / "north/b-20261120_1500.jpg", "first")
    write(camera / "north/c-20261120_1500.jpg", "second")
    result = append(photos, camera)
    assert counts(result) == (1, 4, 0, 2)
    first, second = f"{camera}/north/b-20261120_1500.jpg", f"{camera}/north/c-20261120_1500.jpg"
    assert result.refusals == [
        (1, f"{camera}/north/20261120_1200.jpg: it differs from the file that is stored with the same reftime, site"),
        (4, f"{second}: it differs from {first}, which has the same reftime, site"),
    ]
    assert (15, "north", "first") in stored(photos)


def test_with_replace_only_files_that_differ_take_the_place_of_the_stored_ones(create, camera):
    photos = create("replacing", format="blob", unique=["reftime", "site"], fields={"site": "text"}, replace="yes")
    append(photos, camera)
    write(camera / "north/20261120_1200.jpg", "other")
    assert counts(append(photos, camera)) == (0, 3, 1, 0)
    assert stored(photos)[0] == (12, "north", "other")


@pytest.mark.parametrize("batch_size", [10, 1])
def test_with_replace_the_last_file_counts_whatever_was_stored_before_it(create, camera, batch_size):
    photos = create("replacing", format="blob", unique=["reftime", "site"], fields={"site": "text"}, replace="yes")
    for name, content in (("a", "one"), ("b", "two"), ("c", "one")):
        write(camera / f"north/{name}-20261120_1500.jpg", content)
    for _ in range(2):
        append(photos, camera, batch_size=batch_size)
        assert (15, "north", "one") in stored(photos)
    write(camera / "north/d-20261120_1500.jpg", "two")
    append(photos, camera, batch_size=batch_size)
    assert (15, "north", "two") in stored(photos)


def test_what_another_process_stores_meanwhile_is_compared_by_the_next_append(photos, camera, monkeypatch, tmp_path):
    write(tmp_path / "other/north/20261120_1200.jpg", "other bytes")
    real = append_module._known

    def known(*arguments):
        found = real(*arguments)
        monkeypatch.setattr(append_module, "_known", real)
        with ondisk.open(photos.path) as dataset:
            append(dataset, tmp_path / "other")
        return found

    monkeypatch.setattr(append_module, "_known", known)
    result = append(photos, camera)
    assert counts(result) == (3, 0, 0, 1)
    assert "meanwhile; append again" in result.refusals[0][1]
    assert counts(append(photos, camera)) == (0, 3, 0, 1)


def test_what_the_dataset_refuses_is_named_with_what_is_refused_before(photos, camera, tmp_path):
    append(photos, camera)
    shutil.rmtree(photos.path / "2026/11-20.jpg")
    write(camera / "north/20261121_x.jpg")
    write(camera / "north/20261120_1500.jpg")
    result = append(photos, camera)
    assert result.refused == len(result.refusals)


def test_a_path_that_is_too_long_is_not_there(photos):
    with pytest.raises(NotFound, match="no such file or folder"):
        append(photos, "x" * 300)


def test_without_unique_fields_nothing_is_a_duplicate(create, camera):
    photos = create("all", format="blob", fields={"site": "text"})
    assert [counts(append(photos, camera, camera)) for _ in range(2)] == [(8, 0, 0, 0)] * 2


def test_files_are_stored_as_blobs_in_a_dataset_of_another_format(create, camera):
    dataset = create("mixed", format="jsonl", unique=["reftime", "site"], fields={"site": "text"})
    assert counts(append(dataset, camera)) == (4, 0, 0, 0)
    assert counts(append(dataset, camera)) == (0, 4, 0, 0)
    assert stored(dataset)[3] == (13, "south", "south at 13")


def test_what_cannot_be_stored_is_refused_with_path_and_reason_and_the_rest_is_stored(photos, camera):
    os.mkfifo(camera / "fifo")
    (camera / "link").symlink_to("north")
    write(camera / "north/photo.jpg", "no time")
    write(camera / "20261120_1200.jpg", "no site")
    write(camera / "north/20261120_1500.jpg", "x" * 1001)
    (camera / os.fsdecode(b"north/20261120_1600\xff.jpg")).write_text("not UTF-8")
    result = append(photos, camera)
    assert counts(result) == (4, 0, 0, 6)
    reasons = dict(reason.removeprefix(f"{camera}/").split(": ", 1) for _, reason in result.refusals)
    assert reasons == {
        "20261120_1200.jpg": "site: its path has no folder 1; it has 0",
        "fifo": "it is not a regular file; links are not followed",
        "link": "it is not a regular file; links are not followed",
        "north/20261120_1500.jpg": "1001 bytes are more than max_datum_size, 1000",
        os.fsdecode(b"north/20261120_1600\xff.jpg"): "its path is not UTF-8",
        "north/photo.jpg": "its name has no time of the form %Y%m%d_%H%M",
    }
    assert [position for position, _ in result.refusals] == [0, 1, 2, 5, 6, 7]


def test_the_first_hundred_refusals_are_kept_and_all_are_counted(photos, tmp_path):
    for number in range(120):
        write(tmp_path / f"in/{number:03}")
    result = append(photos, tmp_path / "in")
    assert (result.refused, len(result.refusals)) == (120, 100)
    assert result.refusals[-1][0] == 99


def test_a_file_that_changes_while_it_is_read_is_refused(photos, camera, monkeypatch):
    read = ReadableFile.read

    def longer(file, offset, size):
        content = read(file, offset, size)
        if file.path.endswith("north/20261120_1200.jpg"):
            write(Path(file.path), "longer than it was")
        return content

    monkeypatch.setattr(ReadableFile, "read", longer)
    result = append(photos, camera)
    assert (counts(result), [reason for _, reason in result.refusals]) == (
        (3, 0, 0, 1),
        [f"{camera}/north/20261120_1200.jpg: {CHANGED}"],
    )


def test_a_file_that_is_older_than_delete_age_is_refused_by_its_name(create, camera):
    old = write(camera / "north/19990101_0000.jpg", "old")
    new = write(camera / f"north/{datetime.now(UTC):%Y%m%d_%H%M}.jpg", "new")
    photos = create("aging", format="blob", unique=["reftime"], delete_age=30)
    result = append(photos, old, new, fields={})
    assert (counts(result), result.refusals) == (
        (1, 0, 0, 1),
        [(0, f"{old}: it is older than delete_age, 30 days")],
    )


def test_what_is_hidden_is_skipped_with_a_note(photos, camera):
    write(camera / "north/.20261120_1200.jpg", "hidden")
    assert append(photos, camera).notes == [f"{camera}: skipped: 1 hidden, 0 unfinished"]


def test_an_error_reports_what_was_stored_before_it(photos, camera):
    write(camera / "north/photo.jpg")
    with pytest.raises(NotFound) as error:
        append(photos, camera / "north", camera / "nowhere", camera / "south", fields={"site": "name"})
    assert counts(error.value.context["result"]) == (2, 0, 0, 1)
    assert photos.count() == 2


def test_small_batches_store_the_same(photos, camera):
    write(camera / "north/20261120_1200 (2).jpg", "differs")
    assert counts(append(photos, camera, batch_size=1)) == (4, 0, 0, 1)
    assert counts(append(photos, camera, batch_size=2)) == (0, 4, 0, 1)


def test_an_append_that_was_killed_is_repeated_and_stores_the_rest(photos, camera):
    script = (
        "import os, signal, sys\nimport ondisk\nfrom ondisk import files\nread = []\n"
        "def kill(size):\n    read.append(size)\n    len(read) == 4 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "with ondisk.open(sys.argv[1]) as photos:\n"
        "    choice = {'time': sys.argv[3], 'fields': {'site': 'path:1'}, 'batch_size': 1}\n"
        "    files.append(photos, [sys.argv[2]], progress=kill, **choice)"
    )
    command = [sys.executable, "-c", script, str(photos.path), str(camera), FORM]
    assert subprocess.run(command, check=False).returncode == -9
    assert counts(append(photos, camera)) == (1, 3, 0, 0)
    assert len(stored(photos)) == 4


def test_the_size_of_each_file_is_reported_as_progress(photos, camera):
    sizes = []
    append(photos, camera, progress=sizes.append)
    assert sizes == [11] * 4


@pytest.mark.parametrize(
    ("paths", "options", "problem"),
    [
        ("camera", {}, "paths must be a list of files"),
        (["camera"], {"time": "now"}, "does not say where the time of a file is"),
        (["camera"], {"batch_size": 0}, "batch_size must be"),
        (["camera"], {"fields": {"site": "nowhere"}}, "is not a part of a path"),
    ],
)
def test_an_argument_that_is_not_valid_is_an_error_before_anything_is_read(photos, paths, options, problem):
    with pytest.raises(InvalidInput, match=problem):
        files.append(photos, paths, **{"time": FORM} | options)


def test_a_dataset_that_is_open_for_reading_takes_no_files(photos, camera):
    with ondisk.open(photos.path, read_only=True) as dataset, pytest.raises(ReadOnly):
        append(dataset, camera)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: not name.startswith(".") and not name.endswith((".tmp", ".part")) and len(name.encode()) <= 255
)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.binary(max_size=50), max_size=8)


def written(tree, folder):
    """Write a tree of files to a folder; return the paths of those that could be written: no file is also a folder."""
    folder.mkdir()
    paths = []
    for path, content in tree.items():
        place = folder / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        except OSError:
            continue
        paths.append(path)
    return paths


@pytest.mark.check
@settings(max_examples=up_to(25))
@given(TREES)
def test_any_tree_of_files_is_stored_under_its_paths(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("tree")
    kept = {}
    for second, path in enumerate(written(tree, folder / "in")):
        os.utime(folder / "in" / path, ns=(0, second * 10**9))
        kept[path] = (datetime.fromtimestamp(second, UTC), tree[path])
    config = {"format": "blob", "step": "yearly", "unique": ["path"], "fields": {"path": "text"}}
    with ondisk.create(folder / "dataset", config) as dataset:
        assert counts(files.append(dataset, [folder / "in"], time="mtime")) == (len(kept), 0, 0, 0)
        assert {each.metadata["path"]: (each.reftime, each.data) for each in dataset.query()} == kept
        assert counts(files.append(dataset, [folder / "in"], time="mtime")) == (0, len(kept), 0, 0)


@pytest.mark.parametrize("unique", [[], ["reftime", "site"]])
def test_the_file_of_a_stored_datum_is_a_duplicate_under_any_name(create, tmp_path, unique):
    dataset = create("main", format="blob", extension="jpg", unique=unique, fields={"site": "text"})
    dataset.append(Datum(NOON.replace(hour=12 + n), {"site": "north"}, f"{n}".encode()) for n in range(3))
    dataset.delete("reftime:=2026-11-20 13")
    files_of = sorted((dataset.path / "2026" / "11-20.jpg").glob("*.jpg"))
    (tmp_path / "in").mkdir()
    for hour, path in enumerate(files_of):
        os.link(path, tmp_path / "in" / f"20261120_1{hour}.jpg")
    choice = {"time": "name:%Y%m%d_%H", "fields": {"site": "path"}}
    result = files.append(dataset, [tmp_path / "in"], **choice)
    assert (result.imported, result.duplicates) == (1, 2)  # the second one was deleted, so it is new
    result = files.append(dataset, [files_of[0]], time="mtime", fields={"site": "name"})
    assert (result.imported, result.duplicates, result.refused) == (0, 1, 0)


@pytest.mark.parametrize("together", [True, False])
def test_the_newest_version_counts_in_whatever_calls_it_comes(create, tmp_path, together):
    dataset = create(format="blob", unique=["reftime"], replace="newer", version_field="v", fields={"v": "integer"})
    paths = [write(tmp_path / f"in/20261120_{v}.bin", text) for v, text in ((1, "x"), (3, "x"), (2, "y"))]
    for some in [paths] if together else [[each] for each in paths]:
        result = files.append(dataset, some, time="name:%Y%m%d", fields={"v": "name:2"})
    assert [(each.metadata["v"], each.data) for each in dataset.query()] == [(3, b"x")]
    assert result.refused == 1
    assert "20261120_2.bin" in result.refusals[0][1]
