"""Datasets on a real cluster: a master and two workers of Spark's on loopback, and drivers that are killed or not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections import Counter
from datetime import timedelta

import pytest
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.errors import IntegrityError
from ondisk.maintenance.check import check
from ondisk.maintenance.repack import repack
from ondisk.staging.jobs import ABANDONED, STAGED
from spark.cluster import Cluster, Gate, members
from spark.driver import said
from spark.test_read import CONFIG, T, asked, datum, various

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def started(java, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), java) as cluster:
        yield cluster


@pytest.fixture
def cluster(started):
    """Return a cluster with two workers, also after a test that killed some."""
    started.heal()
    return started


@pytest.fixture
def gate(tmp_path):
    with Gate(tmp_path) as made:
        yield made


@pytest.fixture
def large(create):
    """Return a dataset with 200 MiB of data in several partitions, which compress to almost nothing."""
    dataset = create(**CONFIG)
    dataset.append(
        Datum(T + timedelta(hours=number), {"station": number}, {"text": f"{number % 10}" * 1024 * 1024})
        for number in range(200)
    )
    return dataset


def digests(dataset):
    """Return the rows that `driver.read_past` should return."""
    return Counter(
        (str(each.reftime.replace(tzinfo=None)), each.metadata["station"], _digest(each.data))
        for each in dataset.query()
    )


def _digest(data):
    return hashlib.md5(json.dumps(data, separators=(",", ":")).encode()).hexdigest()


def counted(rows):
    return Counter(map(tuple, rows))


def test_all_that_was_started_ends_whatever_happens(java, tmp_path, gate, large):
    sessions = []

    def fail():
        with Cluster(tmp_path, java) as cluster:
            driver = cluster.start("read_past", path=str(large.path), gate=str(gate.folder))
            sessions.extend([driver.process.pid, *(worker.pid for worker in cluster.workers)])
            assert gate.wait(driver) in {pid for each in sessions for pid in members(each)}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*map(list, map(members, sessions))] == [[], [], []]


def test_every_door_returns_what_a_query_returns(cluster, create):
    dataset = create(**CONFIG)
    dataset.append(various())
    dataset.append([datum(hour, 3) for hour in range(48, 15_000)])  # too many to be read in the driver
    found = cluster.run("doors", path=str(dataset.path), match="station: 3")
    for door, rows in found.items():
        wanted = asked(dataset, "station: 3" if "match" in door else None, data="data" in door)
        assert Counter(rows) == wanted, door


def test_the_index_answers_where_the_connector_is_given_by_spark_jars(cluster, create):
    dataset, copy = create(**CONFIG), create("copy", **CONFIG)
    dataset.append(various())
    found = cluster.run("pushed", path=str(dataset.path), copy=str(copy.path))
    assert "ondisk pushed [station IS NOT NULL, station = 3]" in found.pop("plan")
    groups = Counter(str(each.metadata["station"]) for each in dataset.query())
    three = groups["3"]
    assert found == {
        "all": 48, "three": three, "joined": three, "limited": 5, "groups": groups, "copied": three
    }  # fmt: skip


def test_a_worker_killed_in_the_middle_of_a_read_changes_nothing(cluster, large, gate):
    driver = cluster.start("read_past", path=str(large.path), gate=str(gate.folder))
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    assert counted(driver.result()) == digests(large)


def test_a_worker_killed_in_the_middle_of_a_stream_changes_nothing(cluster, large, gate, tmp_path):
    checkpoint = str(tmp_path / "checkpoint")
    driver = cluster.start("stream_past", path=str(large.path), gate=str(gate.folder), checkpoint=checkpoint)
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    assert counted(driver.result()) == digests(large)


@pytest.fixture
def damaged(tmp_path):
    """Return a dataset in which a check finds something, a fix reads some segments and a repack writes others."""
    return many(tmp_path / "damaged")


def many(path):
    """Make ten segments with holes; the last was cut."""
    with ondisk.create(path, {"format": "seg", "step": "daily", "fields": {"n": "integer"}}) as dataset:
        dataset.append(Datum(T + timedelta(hours=n), {"n": n}, {"text": f"{n}" * 99}) for n in range(240))
        dataset.delete(dataset.fields.n.isin(range(0, 240, 4)))
    last = max(path.rglob("*.seg"))
    last.write_bytes(last.read_bytes()[:-50])
    return path


@pytest.mark.parametrize("verb", ["check", "fix", "repack"])
def test_a_worker_killed_in_the_middle_of_maintenance_changes_nothing(cluster, damaged, gate, verb, tmp_path):
    if verb == "fix":
        lose_index(damaged)
    alone = shutil.copytree(damaged, tmp_path / "alone")
    driver = cluster.start("maintain_past", path=str(damaged), verb=verb, gate=str(gate.folder))
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    with ondisk.open(alone) as other, ondisk.open(damaged) as dataset:
        report = other.check(True) if verb == "check" else getattr(other, verb)()
        assert driver.result() == said(report)
        assert contents(dataset) == contents(other)
        assert said(dataset.check(True)) == said(other.check(True))
    assert {each.name for each in damaged.rglob("*.seg*")} == {each.name for each in alone.rglob("*.seg*")}
    assert not [*damaged.glob(".staged/*")]


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_a_driver_killed_in_the_middle_of_maintenance_leaves_what_the_next_one_ends(
    cluster, damaged, gate, verb, tmp_path
):
    if verb == "fix":
        lose_index(damaged)
    alone = shutil.copytree(damaged, tmp_path / "alone")
    driver = cluster.start("maintain_past", path=str(damaged), verb=verb, gate=str(gate.folder))
    gate.wait(driver)
    driver.kill()
    # The gate stays shut: a task that went on now would write to what the repack removes.
    [left] = damaged.glob(".staged/*")
    with ondisk.open(alone) as other, ondisk.open(damaged) as dataset:
        named = {each.segment: each.action for each in dataset.check()}
        assert named[f".staged/{left.name}"] == "delete"
        for each in (other, dataset):
            each.fix()
            each.repack()
        assert contents(dataset) == contents(other)
        assert said(dataset.check(True)) == said(other.check(True))
    assert not [*damaged.glob(".staged/*")]


def contents(dataset):
    """Return the numbers of the data that can be read."""
    found = []
    with contextlib.suppress(IntegrityError):
        for each in dataset.query():
            assert each.data == {"text": f"{each.metadata['n']}" * 99}
            found.append(each.metadata["n"])
    return found


@pytest.fixture
def written(create):
    """Return a dataset that detects no duplicates, with a datum of a station that no driver writes."""
    dataset = create(**CONFIG | {"unique": []})
    dataset.append([datum(0, 999)])
    return dataset


def stations(dataset):
    return sorted(each.metadata["station"] for each in dataset.query())


def staged(dataset):
    return [each.segment for each in dataset.check() if each.segment.startswith(STAGED)]


def test_tasks_that_fail_and_are_tried_again_write_once(cluster, written):
    cluster.run("write_again", path=str(written.path))
    assert stations(written) == [*range(100), 999]
    assert [*written.path.glob(".staged/*")] == []


def test_a_task_that_spark_runs_twice_at_once_writes_once(cluster, written, tmp_path):
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    cluster.run("write_speculatively", path=str(written.path), gate=str(attempts))
    assert sorted(each.name for each in attempts.iterdir()) == ["attempt-0", "attempt-1"]
    assert stations(written) == [*range(100), 999]
    assert staged(written) == [str(each.relative_to(written.path)) for each in written.path.glob(".staged/*")]


def test_a_worker_killed_in_the_middle_of_a_write_changes_nothing(cluster, written, gate):
    driver = cluster.start("write_past", path=str(written.path), gate=str(gate.folder))
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    driver.result()
    assert stations(written) == [*range(100), 999]
    assert [*written.path.glob(".staged/*")] == []


def test_a_worker_killed_in_the_middle_of_a_written_stream_changes_nothing(cluster, written, gate, tmp_path):
    checkpoint = str(tmp_path / "checkpoint")
    driver = cluster.start("write_stream_past", path=str(written.path), gate=str(gate.folder), checkpoint=checkpoint)
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    driver.result()
    assert stations(written) == [*range(100), 999]
    assert [*written.path.glob(".staged/*")] == []


def test_a_driver_killed_in_the_middle_of_a_write_leaves_only_what_check_names(cluster, written, gate):
    driver = cluster.start("write_past", path=str(written.path), gate=str(gate.folder))
    gate.wait(driver)
    driver.kill()
    gate.open()
    cluster.run("write_again", path=str(written.path))  # when this is done, no task of the other is at work
    assert stations(written) == [*range(100), 999]
    left = [str(each.relative_to(written.path)) for each in written.path.glob(".staged/*")]
    assert len(left) == 1
    assert staged(written) == left
    assert written.check().is_clean
    later = time.time() + ABANDONED + 3600
    assert [each.segment for each in check(written._access, now=later).findings] == left
    repack(written._access, now=later)
    assert staged(written) == []


@pytest.fixture
def files(tmp_path):
    """Return files with two stations each: a new one and, except in the first file, that of the file before."""
    folder = tmp_path / "incoming"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.jsonl").write_text("".join(lines(number, number - 1)))
    return sorted(map(str, folder.iterdir()))


def lines(*stations):
    return [f'{{"reftime": "2026-11-20T06:00:00Z", "station": {station}}}\n' for station in stations]


KEPT = {"format": "jsonl", "step": "daily", "fields": {"station": "integer"}}
UNIQUE = KEPT | {"unique": ["reftime", "station"]}


@pytest.fixture
def divided(files, tmp_path):
    """Return a pipeline, and the expected stations of its datasets."""
    for name, config in {
        "even": UNIQUE | {"filter": "station: 0 or 2 or 4"},
        "odd": UNIQUE | {"filter": "station: 1 or 3 or 5"},
        "error": KEPT,
        "duplicates": KEPT,
    }.items():
        ondisk.create(tmp_path / name, config).close()
    path = tmp_path / "pipeline.toml"
    path.write_text('input = "incoming"\ndatasets = ["even", "odd"]\nerror = "error"\nduplicates = "duplicates"\n')
    return path, {"even": [0, 2, 4], "odd": [1, 3, 5], "error": [-1], "duplicates": [0, 1, 2, 3, 4]}


def imported(path, names):
    """Return the stations of each dataset, and check that it is sound and nothing is left staged."""
    found = {}
    for name in names:
        with ondisk.open(path.parent / name) as dataset:
            found[name] = stations(dataset)
            assert dataset.check(True).is_clean
            assert [*dataset.path.glob(".staged/*")] == []
    return found


def test_a_worker_killed_in_the_middle_of_an_append_of_files_changes_nothing(cluster, files, gate, create):
    dataset = create(**UNIQUE)
    driver = cluster.start("append_past", path=str(dataset.path), files=files, gate=str(gate.folder))
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    assert driver.result() == [2, 1, 1, 1, 1, 1]
    assert stations(dataset) == [*range(-1, 6)]
    assert dataset.check(True).is_clean
    assert [*dataset.path.glob(".staged/*")] == []


def test_a_worker_killed_in_the_middle_of_a_pipeline_changes_nothing(cluster, divided, gate):
    path, wanted = divided
    driver = cluster.start("import_past", config=str(path), gate=str(gate.folder))
    cluster.kill_worker_of(gate.wait(driver))
    gate.open()
    assert driver.result() == {name: len(each) for name, each in wanted.items()}
    assert imported(path, wanted) == wanted


def test_a_driver_killed_in_the_middle_of_a_pipeline_leaves_what_the_next_one_ends(cluster, divided, gate):
    path, wanted = divided
    driver = cluster.start("import_past", config=str(path), gate=str(gate.folder))
    gate.wait(driver)
    driver.kill()
    gate.open()
    assert cluster.run("import_past", config=str(path), gate=str(gate.folder)).keys() == wanted.keys()
    assert imported(path, wanted) == wanted
