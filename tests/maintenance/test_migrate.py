"""A migrated dataset is what one made with the new configuration would be; one that cannot be is left as it was."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from drawn import up_to
from formats.grib.build import grib1
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import same, strategies
from worlds import content, lose_index

import ondisk
from ondisk.config import DatasetConfig
from ondisk.datum import Datum
from ondisk.errors import (
    ConfigError,
    DatasetNotFound,
    DuplicateDatum,
    IndexCorrupt,
    LockError,
    NeedsMigration,
    OndiskError,
    SegmentMissing,
    StateError,
    StorageError,
    VersionTooNew,
)
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import RULES, grib
from ondisk.index import INDEX
from ondisk.index.connection import connect_to_read
from ondisk.index.import_log import Mark
from ondisk.staging.stage import Stage
from ondisk.step import Step

T = datetime(2026, 11, 20, tzinfo=UTC)
GOLDEN = Path(__file__).parents[1] / "golden" / "revision-1"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())

SEG = {
    "format": "seg",
    "step": "daily",
    "unique": ["reftime", "station"],
    "index": ["station"],
    "fields": {"station": "integer", "product": "text"},
}
JSONL = {**SEG, "format": "jsonl"}
VM2 = {
    "format": "vm2",
    "step": "daily",
    "unique": ["reftime", "area", "product"],
    "index": ["area"],
    "fields": {"area": "text", "product": "text"},
}
LEVEL = {**SEG, "fields": {"station": "integer", "level": "real"}}
CONFIGS = {"seg": SEG, "seg plain": {**SEG, "compression": "none"}, "jsonl": JSONL, "vm2": VM2}

OF_ANY = {
    "a field is dropped": {"fields": {"product": "text"}, "unique": ["reftime"], "index": []},
    "all fields are dropped": {"fields": {}, "unique": [], "index": []},
    "unique is emptied": {"unique": []},
    "index is emptied": {"index": []},
    "another index": {"index": ["product"]},
    "an index by reftime": {"index": ["reftime"]},
    "unique in another order": "reversed",
}
OF_EVENTS: dict[str, Any] = {
    "a field is added": {"fields": {"station": "integer", "product": "text", "level": "real"}},
    "a text is added": {"fields": {"station": "integer", "product": "text", "note": "text"}},
    "a field that no datum has": {"fields": {"station": "integer", "product": "text", "none": "bytes"}},
    "a field of times is added": {"fields": {"station": "integer", "product": "text", "made": "timestamp"}},
    "a field is retyped": {"fields": {"station": "real", "product": "text"}},
    "all at once": {
        "fields": {"station": "real", "level": "real", "made": "text", "note": "text"},
        "unique": ["level", "reftime", "note"],
        "index": ["note", "made"],
    },
    "a new field in unique": {
        "fields": {"station": "integer", "product": "text", "level": "real"},
        "unique": ["reftime", "station", "level"],
    },
}


def change_of(format: str, change: Any) -> dict[str, Any]:
    """Return the new keys for one format; that which has `station` in the others has `area` in vm2."""
    if change == "reversed":
        return {"unique": CONFIGS[format]["unique"][::-1]}
    if format == "vm2" and change.get("unique") == ["reftime"]:
        change = {**change, "unique": []}
    return dict(change)


CASES = [(format, name) for format in CONFIGS for name in OF_ANY] + [
    (format, name) for format in CONFIGS if format != "vm2" for name in OF_EVENTS
]


def data_of(format: str) -> list[Datum]:
    """Make data of three days, in two formats of metadata; each time only once."""
    if format == "vm2":
        times = [T + timedelta(hours=7 * number) for number in range(10)]
        return [Datum(time, {}, f"{time:%Y%m%d%H%M},{time.hour % 3},1,1.5,,,".encode()) for time in times]
    data = []
    for number in range(40):
        metadata: dict[str, Any] = {"station": number % 7} if number % 5 else {}
        if number % 3:
            metadata["product"] = f"p{number % 4}"
        others = {"level": float(number % 6), "note": f"n{number % 2}"} if number % 4 else {}
        if number % 2:
            others["made"] = "2026-11-20T06:00:00Z"
        if format.startswith("seg"):
            data.append(Datum(T + timedelta(hours=number), {**metadata, **others}, {"n": number}))
        else:
            data.append(Datum(T + timedelta(hours=number), metadata, {"n": number, **others}))
    return data


def write(path: Path, config: dict[str, Any]) -> None:
    (path / "dataset.toml").write_text(DatasetConfig.from_mapping(config).to_toml())


def made(path: Path, format: str) -> Path:
    """Make a dataset, some of whose data were deleted."""
    with ondisk.create(path, CONFIGS[format]) as dataset:
        data = data_of(format)
        assert dataset.append(data[: len(data) // 2]).refused == 0
        assert dataset.append(data[len(data) // 2 :]).refused == 0
        dataset.delete([datum.location for datum in list(dataset.query())[1:9:4] if datum.location])
    return path


def created_anew(path: Path, old: Path, config: DatasetConfig) -> tuple[Path, ondisk.AppendResult]:
    """Create a dataset of the new configuration, and append what a query of the old one gives."""
    with ondisk.open(old, read_only=True) as source, ondisk.create(path, config) as dataset:
        return path, dataset.append_file(io.BytesIO(b"".join(source.payloads())), config.format)


def rows(path: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"file:{path / INDEX}?mode=ro", uri=True)) as index:
        return index.execute(sql).fetchall()


def schema(path: Path) -> dict[str, Any]:
    texts = dict(rows(path, "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    columns = {name: rows(path, f"SELECT * FROM pragma_table_xinfo('{name}')") for name in texts}
    return columns | {name: text for name, text in texts.items() if not re.match("CREATE TABLE", text)}


def files(path: Path) -> dict[str, bytes]:
    """Read every file of a dataset but the lock, and but what readers of the index share."""
    return {
        str(each.relative_to(path)): b"" if each.name.endswith("-shm") else each.read_bytes()
        for each in path.rglob("*")
        if each.is_file() and each.name != ".lock"
    }


def segments(path: Path) -> dict[str, bytes]:
    return {name: held for name, held in files(path).items() if re.match("[0-9]", name)}


KEPT = {
    "dataset": "SELECT uuid, seq, generation, committed_at FROM dataset",
    "segment": "SELECT * FROM segment ORDER BY id",
    "block": "SELECT * FROM block ORDER BY 1, 2",
    "deletion": "SELECT * FROM deletion ORDER BY 1",
    "datum": "SELECT seq, reftime, segment, offset, size FROM datum ORDER BY seq",
}


def kept(path: Path) -> dict[str, list[Any]]:
    return {table: rows(path, sql) for table, sql in KEPT.items()}


# What a migration makes


@pytest.mark.parametrize(("format", "name"), CASES)
def test_a_migrated_dataset_is_as_one_made_with_the_new_configuration(tmp_path, format, name):
    config = {**CONFIGS[format], **change_of(format, {**OF_ANY, **OF_EVENTS}[name])}
    path = made(tmp_path / "dataset", format)
    before, on_disk = kept(path), segments(path)
    write(path, config)
    plan = ondisk.migrate(path, dry_run=True)
    assert plan.is_needed
    assert not plan.done
    done = ondisk.migrate(path)
    assert done.done
    assert replace(done, done=False) == plan
    assert kept(path) == before
    assert before["deletion"]
    assert segments(path) == on_disk
    other, result = created_anew(tmp_path / "other", path, DatasetConfig.from_mapping(config))
    assert result.imported == len(before["datum"]) == result.count
    assert schema(path) == schema(other)
    assert rows(path, "SELECT config FROM dataset") == rows(other, "SELECT config FROM dataset")
    with ondisk.open(path) as dataset, ondisk.open(other) as expected:
        assert same(content(dataset), content(expected))
        assert dataset.summary() == expected.summary()
        again = dataset.append([Datum(T + timedelta(days=9), {}, data_of(format)[0].data)] if format != "vm2" else [])
        assert again.imported == (format != "vm2")
    assert not ondisk.migrate(path).is_needed
    assert sorted(each.name for each in path.iterdir() if each.is_file()) == [
        ".lock", ".tide", "dataset.toml", "index.sqlite", "index.sqlite-shm", "index.sqlite-wal",
    ]  # fmt: skip


def test_metadata_of_a_dropped_field_come_back_with_their_datum(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    with ondisk.open(path) as dataset:
        before = content(dataset)
    write(path, {**SEG, "fields": {}, "unique": [], "index": []})
    assert ondisk.migrate(path).dropped == {"station": "integer", "product": "text"}
    with ondisk.open(path) as dataset:
        assert content(dataset) == before
        assert dataset.info()["fields"] == {}


def test_a_change_of_index_alone_reads_no_segment(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    shutil.rmtree(path / "2026")
    write(path, {**SEG, "index": ["product"]})
    assert ondisk.migrate(path).count == 0
    assert rows(path, "SELECT name FROM sqlite_schema WHERE name LIKE 'datum_by_%'") == [("datum_by_product",)]


def test_what_needs_no_migration_has_none(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    before = files(path)
    config = {**SEG, "replace": "yes", "compression": "none", "delete_age": 90_000, "lock_timeout": 3}
    write(path, config)
    after = {**before, "dataset.toml": (path / "dataset.toml").read_bytes()}
    assert not ondisk.migrate(path, dry_run=True).is_needed
    assert not ondisk.migrate(path).is_needed
    assert files(path) == after


def test_a_dry_run_writes_nothing(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    write(path, {**SEG, **OF_EVENTS["all at once"]})
    before = files(path)
    plan = ondisk.migrate(path, dry_run=True)
    assert (plan.added, plan.dropped) == ({"level": "real", "made": "text", "note": "text"}, {"product": "text"})
    assert plan.retyped == {"station": ("integer", "real")}
    assert plan.count == 38
    assert files(path) == before


def test_without_an_index_there_is_nothing_to_migrate(tmp_path):
    path = made(tmp_path / "dataset", "jsonl")
    lose_index(path)
    assert not ondisk.migrate(path).is_needed
    assert not (path / INDEX).exists()


@pytest.mark.check
def test_a_datum_larger_or_deeper_than_is_taken_now_is_read(tmp_path):
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    with ondisk.create(tmp_path / "dataset", {**JSONL, "unique": []}) as dataset:
        assert dataset.append([Datum(T, {}, {"level": 1.5, "deep": deep, "long": "x" * 500})]).imported == 1
    fields = {**JSONL["fields"], "level": "real"}
    write(dataset.path, {**JSONL, "unique": [], "fields": fields, "max_datum_size": 100, "max_depth": 4})
    assert ondisk.migrate(dataset.path).done
    with ondisk.open(dataset.path) as dataset:
        assert [datum.metadata for datum in dataset.query("level:>1")] == [{"level": 1.5}]


# What cannot be


def refused(path: Path, kind: type[OndiskError]) -> Any:
    """Migrate, which must be refused with nothing changed; gives what is said of it."""
    before = files(path)
    with pytest.raises(kind) as caught:
        ondisk.migrate(path)
    assert files(path) == before
    error = pickle.loads(pickle.dumps(caught.value))
    assert caught.value.hint
    assert not error.context["migration"].done
    return error.context["migration"]


@pytest.mark.parametrize("format", ["seg", "seg plain", "jsonl"])
@pytest.mark.parametrize("unique", [["station"], ["product", "station"], ["level"], ["reftime", "note"], ["made"]])
def test_a_unique_that_data_violate_is_refused_with_the_data_that_do(tmp_path, format, unique):
    path = tmp_path / "dataset"
    kinds = {"station": "integer", "product": "text", "level": "real", "note": "text", "made": "timestamp"}
    data = data_of(format)
    with ondisk.create(path, {**CONFIGS[format], "unique": []}) as dataset:
        dataset.append([*data, *data[:3]])
    config = {**CONFIGS[format], "fields": kinds, "unique": unique}
    write(path, config)
    said = refused(path, DuplicateDatum)
    with ondisk.create(tmp_path / "expected", {**config, "unique": []}) as dataset, ondisk.open(path, True) as source:
        dataset.append_file(io.BytesIO(b"".join(source.payloads())), dataset.config.format)
        keys: dict[Any, list[Any]] = {}
        for datum in dataset.query():
            values = {**datum.metadata, "reftime": datum.reftime}
            keys.setdefault(tuple(values.get(name) for name in unique), []).append(datum.reftime)
    expected = {key: times for key, times in keys.items() if len(times) > 1}
    assert said.offending == sum(map(len, expected.values())) == len(said.offenders)
    for each in said.offenders:
        assert list(each.values) == unique
        with ondisk.open(path, read_only=True) as dataset:
            assert dataset.read(each.location).reftime in expected[tuple(each.values.values())]
    plan = ondisk.migrate(path, dry_run=True)
    assert plan.offending == (said.offending if set(unique) <= {"reftime", "station", "product"} else 0)


def test_of_many_offenders_the_first_hundred_are_named(tmp_path):
    path = tmp_path / "dataset"
    with ondisk.create(path, {**JSONL, "unique": []}) as dataset:
        dataset.append(Datum(T + timedelta(minutes=number), {"station": 1}, {}) for number in range(150))
        first = [datum.location for datum in dataset.query(limit=100)]
    write(path, {**JSONL, "unique": ["station"]})
    for said in (ondisk.migrate(path, dry_run=True), refused(path, DuplicateDatum)):
        assert (said.offending, len(said.offenders)) == (150, 100)
        assert [each.location for each in said.offenders] == first


@pytest.mark.parametrize("format", ["seg", "seg plain", "jsonl"])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"station": "text", "product": "text"}, "station: .* is an integer, the field is declared text"),
        ({"station": "integer", "note": "integer"}, "note: .* is a text, the field is declared integer"),
        ({"station": "integer", "note": "timestamp"}, "note: .* is not a time"),
    ],
)
def test_a_value_that_is_not_of_the_new_type_is_refused(tmp_path, format, fields, reason):
    path = made(tmp_path / "dataset", format)
    write(path, {**CONFIGS[format], "fields": fields})
    said = refused(path, ConfigError)
    name = next(name for name in fields if name in reason)
    with ondisk.open(path, read_only=True) as dataset:
        found = [(d.location, {**(d.data if format == "jsonl" else {}), **d.metadata}) for d in dataset.query()]
    having = {location for location, values in found if name in values}
    assert {each.location for each in said.offenders} == having != set()
    assert len(having) < len(found)
    for each in said.offenders:
        assert re.search(reason, each.reason), each.reason


@pytest.mark.parametrize("format", ["seg", "seg plain", "jsonl"])
@pytest.mark.parametrize("how", ["gone", "cut", "damaged"])
def test_data_that_cannot_be_read_are_refused(tmp_path, format, how):
    path = made(tmp_path / "dataset", format)
    (segment, *_) = sorted(segments(path))
    held = (path / segment).read_bytes()
    if how == "gone":
        (path / segment).unlink()
    else:
        middle = len(held) // 2
        (path / segment).write_bytes(held[:middle] + (b"" if how == "cut" else b"\xff" * 9 + held[middle + 9 :]))
    write(path, {**CONFIGS[format], "fields": {**CONFIGS[format]["fields"], "level": "real"}})
    said = refused(path, ConfigError)
    assert said.offending >= 1
    assert {each.location.segment for each in said.offenders} == {segment}


def test_a_changed_step_stays_an_error_where_there_are_data(tmp_path):
    path = made(tmp_path / "dataset", "jsonl")
    write(path, {**JSONL, "step": "monthly", "index": []})
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="the index was built for 'daily'"):
            ondisk.migrate(path, dry_run=dry_run)


def test_a_changed_step_is_taken_where_there_never_were_data(tmp_path):
    ondisk.create(tmp_path / "dataset", JSONL).close()
    write(tmp_path / "dataset", {**JSONL, "step": "monthly", "index": []})
    assert ondisk.migrate(tmp_path / "dataset").done
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert dataset.info()["step"] == "monthly"


def test_what_is_no_dataset_is_not_found(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DatasetNotFound):
            ondisk.migrate(path)


def test_a_path_that_cannot_be_opened_is_an_error_of_storage(tmp_path):
    path = tmp_path / "loop"
    path.symlink_to(path)
    with pytest.raises(StorageError, match="loop"):
        ondisk.migrate(path)


# A dataset that an ondisk of revision 1 made


@pytest.fixture(params=["wal", "delete"])
def first(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "first"
    path.mkdir()
    shutil.copyfile(GOLDEN / "dataset.toml", path / "dataset.toml")
    shutil.copytree(GOLDEN / "2026", path / "2026")
    with contextlib.closing(sqlite3.connect(path / INDEX)) as index:
        index.execute(f"PRAGMA journal_mode={request.param}")
        index.executescript((GOLDEN / "index.sql").read_text())
    return path


def dump(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as index:
        return list(index.iterdump())


def test_an_index_of_revision_1_is_migrated_with_a_backup(first):
    before = dump(first / INDEX)
    assert ondisk.migrate(first, dry_run=True).revision == ("0001", "0007")
    assert dump(first / INDEX) == before
    done = ondisk.migrate(first)
    assert (done.revision, done.old_index, done.done) == (("0001", "0007"), "index.sqlite.before-0007", True)
    assert dump(first / done.old_index) == before
    with ondisk.open(first) as dataset:
        assert not dataset.needs_check
        assert [each.data.decode() for each in dataset.query()] == [each["data"] for each in EXPECTED]
        assert [dict(each.metadata) for each in dataset.query()] == [each["metadata"] for each in EXPECTED]
    assert ondisk.migrate(first).old_index is None


def test_an_older_backup_is_never_overwritten(first):
    for name in ("index.sqlite.before-0007", "index.sqlite.before-0007.2"):
        (first / name).write_bytes(b"mine")
    assert ondisk.migrate(first).old_index == "index.sqlite.before-0007.3"
    assert (first / "index.sqlite.before-0007").read_bytes() == b"mine"
    assert (first / "index.sqlite.before-0007.2").read_bytes() == b"mine"


def test_revision_and_configuration_change_together(first):
    write(first, {**VM2, "fields": {"product": "text"}, "unique": [], "index": ["product"]})
    done = ondisk.migrate(first)
    assert (done.revision, done.dropped, done.old_index) == (
        ("0001", "0007"), {"area": "text"}, "index.sqlite.before-0007",
    )  # fmt: skip
    with ondisk.open(first) as dataset:
        assert [dict(each.metadata) for each in dataset.query()] == [each["metadata"] for each in EXPECTED]
        assert dataset.summary().fields.keys() == {"product"}


def test_a_refused_migration_of_revision_1_leaves_no_backup(first):
    write(first, {**VM2, "unique": ["product"]})
    before = files(first)
    with pytest.raises(DuplicateDatum):
        ondisk.migrate(first)
    after = files(first)
    assert {name: after[name] for name in after if "-wal" not in name and "-shm" not in name} == {
        name: before[name] for name in before if "-wal" not in name and "-shm" not in name
    }


@pytest.mark.parametrize(("revision", "kind"), [("0000", IndexCorrupt), ("0008", VersionTooNew), ("x", IndexCorrupt)])
def test_a_revision_that_is_not_known_is_refused(first, revision, kind):
    with contextlib.closing(sqlite3.connect(first / INDEX, isolation_level=None)) as index:
        index.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    before = dump(first / INDEX)
    with pytest.raises(kind) as raised:
        ondisk.migrate(first)
    assert str(first / INDEX) in raised.value.message
    assert kind is VersionTooNew or f"fix {first} --rebuild" in raised.value.hint
    assert dump(first / INDEX) == before
    assert not (first / ".index.sqlite.new").exists()


def test_an_index_with_a_trigger_is_not_migrated(first):
    with contextlib.closing(sqlite3.connect(first / INDEX, isolation_level=None)) as index:
        index.execute("CREATE TRIGGER t AFTER UPDATE ON segment BEGIN DELETE FROM datum; END")
    with pytest.raises(IndexCorrupt, match="trigger"):
        ondisk.migrate(first)
    assert len(rows(first, "SELECT seq FROM datum")) == 7


@pytest.mark.parametrize(
    ("damage", "dry_runs"),
    [("DROP TABLE deletion", (True, False)), ("UPDATE datum SET segment = 99", (False,)),
     ("UPDATE dataset SET config = '{}'", (True, False)), ("DELETE FROM dataset", (True, False))],
)  # fmt: skip
def test_a_damaged_index_is_not_migrated(tmp_path, damage, dry_runs):
    path = made(tmp_path / "dataset", "seg")
    with contextlib.closing(sqlite3.connect(path / INDEX, isolation_level=None)) as index:
        index.execute(damage)
    write(path, LEVEL)
    before = dump(path / INDEX)
    for dry_run in dry_runs:
        with pytest.raises(IndexCorrupt):
            ondisk.migrate(path, dry_run=dry_run)
    assert dump(path / INDEX) == before


@pytest.mark.parametrize("path", ["first", "changed"])
def test_what_needs_a_migration_names_the_command(first, tmp_path, path):
    if path == "changed":
        made(tmp_path / path, "seg")
        write(tmp_path / path, {**SEG, "index": []})
    with pytest.raises(NeedsMigration) as caught:
        ondisk.open(tmp_path / path)
    assert f"`ondisk migrate {tmp_path / path}`" in caught.value.hint


# Beside others


def test_a_query_that_runs_goes_on_and_the_next_one_sees_the_new_fields(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    with ondisk.open(path, read_only=True) as reader:
        expected = content(reader)
        running = reader.query()
        first = [next(running) for _ in range(5)]
        write(path, LEVEL)
        assert ondisk.migrate(path).done
        found = [*first, *running]
        assert [(datum.reftime, dict(datum.metadata), datum.data) for datum in found] == expected
        assert {datum.metadata["level"] for datum in reader.query("level:>4")} == {5.0}
        assert reader.info()["fields"] == {"station": "integer", "level": "real"}


def test_who_asks_with_an_index_that_was_replaced_is_reported_or_gets_what_was_there(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    with ondisk.open(path, read_only=True) as reader:
        expected = content(reader)
        first, second = reader.query(), reader.query("station:4")
        write(path, LEVEL)
        assert ondisk.migrate(path).done
        assert [(datum.reftime, dict(datum.metadata), datum.data) for datum in first] == expected
        assert len(list(reader.query("station:4"))) == 5  # opens the new index, and closes the old
        with pytest.raises(StateError, match="replaced"):
            next(second)


def test_who_connects_while_an_index_is_replaced_waits(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    (path / ".index.sqlite.next").touch()  # as between the two renames
    with Directory.open(path) as directory, ThreadPoolExecutor() as threads:
        with directory.exclusive_if_free() as free:
            assert free
            reading = threads.submit(lambda: connect_to_read(directory).close())
            assert wait([reading], 0.1).not_done
        reading.result(10)


@pytest.mark.check
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_who_may_only_read_may_ask_and_not_migrate():
    code = """if True:
        import os, sys, ondisk, ondisk.formats.diskqueue.seg, ondisk.maintenance.migrate
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        print(ondisk.migrate(sys.argv[1], dry_run=True).is_needed)
        try:
            ondisk.migrate(sys.argv[1])
        except ondisk.errors.ReadOnly as error:
            print(error.exit_code)
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = made(Path(folder, "dataset"), "seg")
        write(path, LEVEL)
        before = files(path)
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True", "34"]
        assert files(path) == before


def test_who_had_it_open_for_writing_must_open_it_again(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    with ondisk.open(path) as writer:
        write(path, LEVEL)
        assert ondisk.migrate(path).done
        with pytest.raises(NeedsMigration):
            writer.append([Datum(T + timedelta(days=5), {"station": 1}, {})])
    with ondisk.open(path) as writer:
        assert writer.append([Datum(T + timedelta(days=5), {"level": 1.5}, {})]).imported == 1


def test_a_query_older_than_the_last_change_keeps_it_from_being_done(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    with ondisk.open(path, read_only=True) as reader:
        running = reader.query()
        next(running)
        with ondisk.open(path) as writer:
            writer.append([Datum(T + timedelta(days=5), {"station": 1}, {})])
        write(path, {**LEVEL, "lock_timeout": 0})
        with pytest.raises(LockError, match="before the last change"):
            ondisk.migrate(path)
        assert len(list(running)) == 37
        assert len(list(reader.query())) == 39
    assert ondisk.migrate(path).done
    with ondisk.open(path) as dataset:
        assert dataset.summary().count == 39


def test_a_second_writer_is_waited_for(tmp_path):
    path = made(tmp_path / "dataset", "seg")
    write(path, {**LEVEL, "lock_timeout": 0.05})
    with Directory.open(path) as directory, WritersLock(directory, 1).hold("append"):
        with pytest.raises(LockError, match="append"):
            ondisk.migrate(path)
        assert ondisk.migrate(path, dry_run=True).is_needed
    assert ondisk.migrate(path).done


# Archives


def test_what_repack_archived_is_asked_by_the_new_fields(tmp_path):
    path = tmp_path / "dataset"
    old, new = datetime(2007, 7, 8, tzinfo=UTC), datetime.now(UTC).replace(microsecond=0)
    with ondisk.create(path, {**SEG, "archive_age": 10}) as dataset:
        dataset.append(Datum(time, {"station": 1, "level": 1.5}, {}) for time in (old, new))
        dataset.repack()
        assert dataset.info()["archives"] == ["last"]
    write(path, {**LEVEL, "archive_age": 10})
    with pytest.raises(NeedsMigration):
        ondisk.open(path)
    (path / ".archive/last").rename(tmp_path / "disk")
    for dry_run in (True, False):
        with pytest.raises(SegmentMissing, match="is away"):
            ondisk.migrate(path, dry_run=dry_run)
    (tmp_path / "disk").rename(path / ".archive/last")
    assert ondisk.migrate(path).count == 2
    with ondisk.open(path) as dataset:
        assert [datum.reftime for datum in dataset.query("level:1.5", sort="reftime")] == [old, new]
        assert dataset.summary().fields["level"].values == [(1.5, 2)]
        assert dataset.append([Datum(old, {"station": 1, "level": 2.5}, {})]).duplicates == 1


# Whatever the configurations


@st.composite
def changes(draw: st.DrawFn) -> tuple[DatasetConfig, DatasetConfig, list[Datum]]:
    format = draw(st.sampled_from(["seg", "jsonl", "vm2"]))
    before, after = (
        draw(strategies.configs(format, [Step.MONTHLY]))._replace(replace="no", version_field=None) for _ in "ab"
    )
    return before, after, draw(st.lists(strategies.data(before), max_size=6))


def _created(path: Path, config: DatasetConfig) -> ondisk.Dataset | None:
    """Create a dataset, unless the format does not take such a configuration."""
    try:
        return ondisk.create(path, config)
    except ConfigError:
        return None


@pytest.mark.check
@settings(max_examples=up_to(60))
@given(changes())
def test_migrating_does_what_appending_to_a_new_dataset_does(given):
    before, after, data = given
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        old, new = (_created(Path(folder, name), config) for name, config in (("old", before), ("new", after)))
        for dataset in filter(None, (old, new)):
            stack.enter_context(dataset)
        if old is None or new is None:
            return
        old.append(data)
        result = new.append_file(io.BytesIO(b"".join(old.payloads())), after.format)
        old.close()
        (old.path / "dataset.toml").write_text(after.to_toml())
        if result.imported < result.count:
            with pytest.raises((ConfigError, DuplicateDatum)) as caught:
                ondisk.migrate(old.path)
            assert caught.value.context["migration"].offending
            return
        migration = ondisk.migrate(old.path)
        assert migration.done == migration.is_needed
        with ondisk.open(old.path) as migrated:
            assert same(content(migrated), content(new))
            assert migrated.summary() == new.summary()
            if data:
                assert same(
                    [d.data for d in migrated.query(sort="-reftime")], [d.data for d in new.query(sort="-reftime")]
                )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path):
    peaks = []
    for days in (4, 20):
        path = tmp_path / str(days)
        with ondisk.create(path, {**SEG, "unique": []}) as dataset:
            dataset.append(
                Datum(T + timedelta(seconds=8 * number), {"station": number, "level": number / 4}, {"n": number})
                for number in range(days * 10_000)
            )
        write(path, {**LEVEL, "unique": []})
        tracemalloc.start()
        assert ondisk.migrate(path).count == days * 10_000
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]  # five times the data; a cache of metadata has room for 10,000


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A dataset of GRIB, of an ondisk that took an hour for a minute."""
    fields = {"level": "item", "step": "integer"}
    unique = ["reftime", "level", "step"]
    config = {"format": "grib", "step": "daily", "fields": fields, "unique": unique, "index": ["step"]}
    with monkeypatch.context() as before, ondisk.create(tmp_path / "model", config) as dataset:
        before.setattr(grib, "_times_of", lambda _: {"step": 360})
        dataset.append_file(io.BytesIO(grib1()), "grib")
    return tmp_path / "model"


def steps(path):
    with ondisk.open(path) as dataset:
        assert dataset.append_file(io.BytesIO(grib1()), "grib").duplicates == 1
        found = [each.metadata["step"] for each in dataset.query()]
        assert [value for value, _ in dataset.summary().fields["step"].values] == found
        return found


def test_corrected_rules_need_a_migration_which_reads_their_fields_again(model, monkeypatch):
    monkeypatch.setitem(RULES, "grib", RULES["grib"] + 1)
    for read_only in (True, False):
        with pytest.raises(NeedsMigration, match="has data of grib by older rules"):
            ondisk.open(model, read_only)
    plan = ondisk.migrate(model, dry_run=True)
    assert (plan.rules, plan.retyped["step"], plan.count) == (["grib"], ("integer", "integer"), 1)
    assert ondisk.migrate(model).done
    assert steps(model) == [21600]
    assert not ondisk.migrate(model).is_needed


@pytest.mark.check
def test_corrected_rules_of_a_format_without_declared_fields_read_no_segment(model, monkeypatch):
    monkeypatch.setitem(RULES, "bufr", RULES["bufr"] + 1)
    monkeypatch.setitem(RULES, "new", 1)  # of a format that did not exist
    plan = ondisk.migrate(model)
    assert (plan.rules, [*plan.retyped], plan.count, plan.done) == (["bufr"], ["step"], 1, True)
    with ondisk.open(model) as dataset:
        assert dataset.check().is_clean


@pytest.mark.check
def test_newer_rules_are_refused(model, monkeypatch):
    monkeypatch.setitem(RULES, "grib", RULES["grib"] - 1)
    with pytest.raises(VersionTooNew, match="by rules that this ondisk does not know yet"):
        ondisk.open(model)
    with pytest.raises(VersionTooNew):
        ondisk.migrate(model)


def test_an_index_from_before_rules_were_recorded_has_the_first_ones(model):
    with contextlib.closing(sqlite3.connect(model / INDEX)) as index:
        ((text,),) = index.execute("SELECT config FROM dataset")
        values = json.loads(text)
        assert values.pop("rules") == RULES
        index.execute("UPDATE dataset SET config = ?", (json.dumps(values),))
        index.commit()
    assert not ondisk.migrate(model).is_needed
    with ondisk.open(model) as dataset:
        assert [each.metadata["step"] for each in dataset.query()] == [360]


def test_marks_stay_whatever_changes(first):
    ondisk.migrate(first)
    with ondisk.open(first) as dataset, Directory.open(first) as directory:
        with Stage(directory, dataset.config, "job", "0") as stage:
            staged = stage.finish(Mark("folder", "file"))
        dataset.append_staged("job", [staged])
    write(first, {**VM2, "fields": {"product": "text"}, "unique": [], "index": ["product"]})
    ondisk.migrate(first)
    with ondisk.open(first) as dataset:
        assert dataset.parts_of("folder") == {"file"}


def test_an_older_index_that_was_put_back_is_noticed_by_a_migration(create, tmp_path):
    """Its log and its counters are those of the newer one."""
    days = [Datum(datetime(2026, 11, 20, tzinfo=UTC) + timedelta(minutes=n), {"a": n}, {}) for n in range(1403)]
    path = tmp_path / "dataset"
    with create(format="jsonl", fields={"a": "integer"}) as dataset:
        dataset.append(days[:400])
    shutil.copy(path / INDEX, tmp_path / "older")
    for some in (days[400:1400], days[1400:1401], days[1401:1402], days[1402:]):
        with ondisk.open(path) as dataset:
            dataset.append(some)
    shutil.copy(tmp_path / "older", path / INDEX)
    config = path / "dataset.toml"
    config.write_text('index = ["a"]\n' + config.read_text())
    ondisk.migrate(path)
    with ondisk.open(path) as dataset:
        assert dataset.needs_check
        dataset.fix()
        assert dataset.summary().count == len(days)
