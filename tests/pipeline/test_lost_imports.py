"""A dataset that was restored, created again or given an older index gets what it lacks, and nothing twice."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from worlds import change_config, locked, lose_index

import ondisk
from ondisk.config import DatasetConfig
from ondisk.errors import ConfigError, LockError, NeedsCheck, StateError
from ondisk.pipeline import pipeline
from pipeline.world import CONFIG, DATASET, ENVIRONMENT, KEPT, create, line, put, run

KILLED = """
import os, signal, sys
from ondisk.dataset.dataset import Dataset
from ondisk.pipeline import pipeline
real, moments = Dataset.append_staged, iter(range(100))
def append_staged(*arguments, **options):
    moment = next(moments)
    if moment == float(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*arguments, **options)
    if moment + 0.5 == float(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return result
Dataset.append_staged = append_staged
pipeline(sys.argv[1])
"""
FIRST, SECOND, THIRD = [line(1), line(11)], [line(2), line(12), line("x")], [line(3), line(3, note="twice"), line(13)]


def imported(place: Path, **files: list[str]) -> None:
    for name, lines in files.items():
        put(place, f"{name}.jsonl", *lines)
    assert pipeline(place / "pipeline.toml").imported == len(files)


def held(place: Path, *names: str) -> Counter[str]:
    """Return the lines in some datasets."""
    found = Counter[str]()
    for name in names or ("low", "high", "error"):
        with ondisk.open(place / name, read_only=True) as dataset:
            found.update(each.decode() for each in dataset.payloads())
    return found


BOTH = pytest.mark.parametrize("place", [True, False], indirect=True, ids=["unique", "not unique"])


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a pipeline that has imported a file, has a backup of this, and has then imported others."""
    place = create(tmp_path)
    if not getattr(request, "param", True):
        for name in ("low", "high"):
            shutil.rmtree(place / name)
            config = {key: value for key, value in DATASET.items() if key != "unique"}
            ondisk.create(place / name, {**config, "filter": "station: <=10" if name == "low" else "station: >10"})
    imported(place, a=FIRST)
    with ondisk.open(place / "low", read_only=True) as low:
        low.backup(place / "saved", create=True)
    shutil.copytree(place / "low", place / "copied")
    imported(place, b=SECOND)
    imported(place, c=THIRD)
    return place


def restore(place: Path) -> None:
    shutil.rmtree(place / "low")
    ondisk.restore(place / "saved", place / "low")


def copy_back(place: Path) -> None:
    shutil.rmtree(place / "low")
    shutil.copytree(place / "copied", place / "low")


def create_again(place: Path, name: str = "low") -> None:
    config = (place / name / "dataset.toml").read_text()
    shutil.rmtree(place / name)
    ondisk.create(place / name, DatasetConfig.from_toml(config)).close()


@pytest.mark.each
@BOTH
@pytest.mark.parametrize("how", [restore, copy_back, create_again])
def test_a_dataset_that_is_not_as_it_was_gets_what_it_lacks_and_no_other_gets_anything(place: Path, how) -> None:
    before = held(place), held(place, "duplicates")
    how(place)
    told = pipeline(place / "pipeline.toml", dry_run=True)
    lacked = 3 if how is create_again else 2
    assert (told.again, told.exit_code) == ({"low": lacked}, 9)
    for again in ({"low": lacked}, {}):
        report = pipeline(place / "pipeline.toml")
        assert (report.again, report.imported, report.known, report.exit_code) == (again, 0, 3, 0)
        assert (held(place), held(place, "duplicates")) == before
    imported(place, d=[line(4), line(14)])
    assert held(place) == before[0] + Counter([line(4), line(14)])


def test_new_files_are_imported_after_what_is_lacking(place: Path) -> None:
    before = held(place)
    restore(place)
    put(place, "Z.jsonl", line(4), line(14), line("y"))
    report = pipeline(place / "pipeline.toml")
    assert (report.again, report.imported) == ({"low": 2}, 1)
    assert held(place) == before + Counter([line(4), line(14), line("y")])


@BOTH
@pytest.mark.crash
@pytest.mark.parametrize("moment", [0.5, 1, 1.5, 2.5, 3.5])
def test_a_kill_while_it_gets_them_loses_nothing_and_doubles_nothing(place: Path, moment: float) -> None:
    """Moments: after the note that it lacks files, before and after their commit, after the next note, after d."""
    before = held(place)
    create_again(place)
    put(place, "d.jsonl", line(4))
    script = [sys.executable, "-c", KILLED, str(place / "pipeline.toml"), str(moment)]
    assert subprocess.run(script, env=ENVIRONMENT, timeout=120).returncode == -signal.SIGKILL
    for _ in range(2):
        pipeline(place / "pipeline.toml")
        assert held(place) == before + Counter([line(4)])


@BOTH
@pytest.mark.parametrize("stopped", ["low", "high"])
def test_two_datasets_get_what_they_lack_although_one_of_them_stops_a_run(place: Path, stopped: str) -> None:
    before = held(place)
    for name in ("low", "high"):
        create_again(place, name)
    change_config(place / stopped, "format =", "lock_timeout = 0\nformat =")
    with locked(place / stopped), pytest.raises(LockError):
        pipeline(place / "pipeline.toml")
    assert pipeline(place / "pipeline.toml").exit_code == 0
    assert held(place) == before


def test_a_dataset_that_has_data_of_its_own_gets_what_it_lacks_although_a_run_is_stopped(place: Path) -> None:
    before = held(place)
    create_again(place)
    with ondisk.open(place / "low") as low:
        low.append_file(io.BytesIO(line(9).encode()), "jsonl")
    change_config(place / "low", "format =", "lock_timeout = 0\nformat =")
    with locked(place / "low"), pytest.raises(LockError):
        pipeline(place / "pipeline.toml")
    assert pipeline(place / "pipeline.toml").again == {"low": 3}
    assert held(place) == before + Counter([line(9)])


@pytest.mark.each
@BOTH
def test_an_older_index_loses_nothing_and_doubles_nothing(place: Path) -> None:
    before, is_unique = held(place), "unique" in (place / "low/dataset.toml").read_text()
    lose_index(place / "low")
    shutil.copy(place / "copied/index.sqlite", place / "low/index.sqlite")
    with pytest.raises(NeedsCheck):
        pipeline(place / "pipeline.toml")
    with ondisk.open(place / "low") as low:
        low.fix()
    if is_unique:
        assert pipeline(place / "pipeline.toml").again == {"low": 2}
    else:
        with pytest.raises(StateError, match=r"low: .* imported: 2, the first is b\.jsonl"):
            pipeline(place / "pipeline.toml")
        for name in ("a", "b", "c"):  # the user knows that it has all of them
            (place / f"incoming/{name}.jsonl").unlink()
    for _ in range(2):
        report = pipeline(place / "pipeline.toml")
        assert (report.again, report.lacking, report.exit_code) == ({}, {}, 0)
        assert held(place) == before


def test_data_that_a_file_would_replace_are_not_replaced_by_older_ones(place: Path) -> None:
    """Nobody knows whether the data of a rebuilt index are newer than those of the file."""
    change_config(place / "low", "format =", 'replace = "yes"\nformat =')
    put(place, "d.jsonl", line(1, note="new"))
    pipeline(place / "pipeline.toml")
    lose_index(place / "low")
    with ondisk.open(place / "low") as low:
        low.fix()
    before = held(place)
    (place / "incoming/d.jsonl").unlink()
    with pytest.raises(StateError, match=r"low: .*: 3, .* older data could replace newer ones"):
        pipeline(place / "pipeline.toml")
    assert held(place) == before


def test_a_lost_index_lacks_nothing_that_the_folder_has_not(place: Path) -> None:
    before = held(place)
    for file in (place / "incoming").iterdir():
        file.unlink()
    lose_index(place / "low")
    assert pipeline(place / "pipeline.toml").exit_code == 0
    with ondisk.open(place / "low") as low:
        low.fix()
    assert pipeline(place / "pipeline.toml").lacking == {}
    assert held(place) == before


def test_what_is_no_longer_in_the_folder_is_reported_once(place: Path) -> None:
    imported(place, d=[line(14)])  # it has no data for the restored dataset, so it takes no other file's place
    restore(place)
    (place / "incoming/b.jsonl").unlink()
    done = run(place)
    assert done.returncode == 8
    assert "ondisk: warning: low: files that were imported before, that it lacks, and that are gone: 1" in done.stderr
    assert held(place, "low") & Counter(FIRST + SECOND + THIRD[:1]) == Counter([line(1), line(3)])
    assert run(place).returncode == 0


@pytest.mark.check
def test_an_empty_folder_whose_disk_may_not_be_mounted_is_reported_until_it_has_files(place: Path) -> None:
    before = held(place)
    restore(place)
    (place / "incoming").rename(place / "mounted")
    (place / "incoming").mkdir()
    for _ in range(2):
        report = pipeline(place / "pipeline.toml")
        assert (report.lacking, report.exit_code) == ({"low": 2}, 8)
    (place / "incoming").rmdir()
    (place / "mounted").rename(place / "incoming")
    assert pipeline(place / "pipeline.toml").again == {"low": 2}
    report = pipeline(place / "pipeline.toml")
    assert (report.again, report.lacking, report.exit_code) == ({}, {}, 0)
    assert held(place) == before


@pytest.mark.check
def test_it_gets_them_by_the_filters_of_then(place: Path) -> None:
    change_config(place / "low", "<=10", "<2")
    change_config(place / "high", ">=10", ">=2")
    imported(place, d=[line(1, 7), line(5, 7)])
    before = held(place, "low"), held(place, "high")
    restore(place)
    change_config(place / "low", "<=10", "<2")
    assert pipeline(place / "pipeline.toml").again == {"low": 3}
    assert (held(place, "low"), held(place, "high")) == before


@pytest.mark.parametrize("how", ["restored", "created again"])
def test_the_dataset_for_errors_gets_its_data_by_the_filters_of_then(place: Path, how: str) -> None:
    with ondisk.open(place / "error") as errors:
        errors.backup(place / "errors", create=True)
    change_config(place / "low", "<=10", "<2")
    imported(place, d=[line(1, 7), line(5, 7)])
    before = held(place)
    assert before[line(5, 7)] == 1
    change_config(place / "low", "<2", "<=10")
    if how == "restored":
        shutil.rmtree(place / "error")
        ondisk.restore(place / "errors", place / "error")
    else:
        create_again(place, "error")
    put(place, "0.jsonl", line(6, 7))
    for _ in range(2):
        pipeline(place / "pipeline.toml")
        assert held(place) == before + Counter([line(6, 7)])


def test_a_dataset_that_had_a_part_of_its_files_may_not_be_missing(place: Path) -> None:
    (place / "pipeline.toml").write_text(CONFIG.replace(', "high"', ""))
    restore(place)
    with pytest.raises(ConfigError, match="'high' is missing"):
        pipeline(place / "pipeline.toml")


@pytest.mark.check
def test_a_dataset_that_joins_later_or_returns_gets_nothing_of_files_before_it(place: Path) -> None:
    fields = {"fields": {"station": "integer"}}
    ondisk.create(place / "all", {**KEPT, **fields, "filter": "station: 99"}).close()
    (place / "pipeline.toml").write_text(CONFIG.replace('"low", ', '"low", "all", '))
    imported(place, d=[line(4)])
    shutil.rmtree(place / "all")
    ondisk.create(place / "all", {**KEPT, **fields, "filter": ""}).close()
    report = pipeline(place / "pipeline.toml")
    assert held(place, "all") == Counter()
    assert report.exit_code == 0


@pytest.mark.check
def test_a_file_that_cannot_be_read_again_is_tried_by_each_run(place: Path) -> None:
    file = place / "incoming/d"
    file.write_text(line(4))
    pipeline(place / "pipeline.toml")
    before, content, status = held(place), file.read_bytes(), file.stat()
    restore(place)
    file.write_bytes(b"?" * len(content))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    put(place, "e.jsonl", *[line(5, hour) for hour in range(9)])
    for _ in range(2):
        report = pipeline(place / "pipeline.toml")
        assert ([name for name, _ in report.failed], report.exit_code) == (["d"], 8)
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    for again in ({"low": 1}, {}):
        assert pipeline(place / "pipeline.toml").again == again
    assert held(place) == before + Counter(line(5, hour) for hour in range(9))


def test_data_that_were_deleted_do_not_return(place: Path) -> None:
    with ondisk.open(place / "low") as low:
        low.delete("station: <=9")
    report = pipeline(place / "pipeline.toml")
    assert (report.again, held(place, "low")) == ({}, Counter())


def test_what_a_restored_dataset_lacks_is_imported_in_the_order_of_time(tmp_path: Path) -> None:
    place = create(tmp_path)
    shutil.rmtree(place / "low")
    ondisk.create(place / "low", {**DATASET, "replace": "yes", "filter": "station: <=10"}).close()
    imported(place, first=[line(2)])
    with ondisk.open(place / "low", read_only=True) as low:
        low.backup(place / "saved", create=True)
    for seconds, name in enumerate(("b", "a")):
        put(place, f"{name}.jsonl", line(1, note=name))
        os.utime(place / "incoming" / f"{name}.jsonl", (seconds, seconds))
        assert pipeline(place / "pipeline.toml").imported == 1
    expected = held(place, "low")
    restore(place)
    assert pipeline(place / "pipeline.toml").again == {"low": 2}
    assert held(place, "low") == expected
