"""Datasets of arkimet become datasets of ondisk where they are: no byte of theirs changes, and the way back is open."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import sqlite3
import struct
import subprocess
import tarfile
import zipfile

import pytest
from formats.grib.build import grib1, grib2
from formats.hdf5_files import image, volume
from kit.crashes import Killed, killed_at

import ondisk
from ondisk.cli import main
from ondisk.dataset.auxiliary_files import CONFIG, SENTINEL
from ondisk.errors import AlreadyExists, ConfigError, DatasetExists, InvalidInput, StateError
from ondisk.index import INDEX
from ondisk.segments.places import PLACE

UNIQUE = "reftime, origin, product, level, timerange, area, proddef, run"
MESSAGES = {
    "2026/11-20.grib": [grib1(), grib1(level=(100, 3, 82)), grib2()],
    "2026/11-21.grib": [grib1(time=(2026, 11, 21, 0, 0))],
    ".archive/last/2025/01-01.grib": [grib1(time=(2025, 1, 1, hour, 0)) for hour in (0, 12)],
}
COUNT = 6
ITEMS = ("product", "area", "proddef", "timerange", "level", "origin", "run", "quantity", "task")


def archive(path, messages=MESSAGES, **keys):
    """Make what arkimet 1.37 leaves on disk, with keys of its configuration; None leaves one out."""
    values = {"type": "ondisk2", "step": "daily", "unique": UNIQUE, "filter": "origin:GRIB1,98 or GRIB2,98"} | keys
    path.mkdir()
    lines = [f"{key.replace('_', ' ')} = {value}" for key, value in values.items() if value is not None]
    (path / "config").write_text("# of arkimet\n\n" + "\n".join(lines) + "\n")
    (path / "lock").touch()
    (path / ".summaries").mkdir()
    (path / ".summaries/all.summary").write_bytes(b"SU")
    for name, contents in messages.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"".join(contents))
        if name.startswith("."):
            for suffix in (".metadata", ".summary"):
                (path / f"{name}{suffix}").write_bytes(b"MD")
            (path / ".archive/last/MANIFEST").write_text("2025/01-01.grib;1735732800;2025-01-01 00:00:00;…\n")
    with contextlib.closing(sqlite3.connect(path / INDEX)) as index:
        index.execute("PRAGMA journal_mode=WAL")
        index.executescript(
            "CREATE TABLE md (id INTEGER PRIMARY KEY, format TEXT NOT NULL, file TEXT NOT NULL, offset INTEGER NOT NULL"
            ", size INTEGER NOT NULL, notes BLOB, reftime TEXT NOT NULL, uniq INTEGER NOT NULL, other INTEGER NOT NULL,"
            " UNIQUE(reftime, uniq)); CREATE TABLE mduniq (id INTEGER PRIMARY KEY, origin INTEGER NOT NULL);"
            " CREATE TABLE mdother (id INTEGER PRIMARY KEY, quantity INTEGER NOT NULL);"
            + "".join(f"CREATE TABLE sub_{name} (id INTEGER PRIMARY KEY, data BLOB UNIQUE);" for name in ITEMS)
        )
        shutil.copyfile(path / f"{INDEX}-wal", path / "wal")  # of a process that was killed
    (path / "wal").rename(path / f"{INDEX}-wal")
    return path


def content(path):
    """Return all files below a folder, but those that only ondisk has."""
    own = (".lock", ".tide", CONFIG, SENTINEL, f".{CONFIG}.new", f".{SENTINEL}.new")
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file()
        and each.name not in own
        and not each.name.startswith((INDEX, f".{INDEX}"))
        and not each.name.endswith((PLACE, f"{PLACE}.new"))
    }


def indices(path):
    """Return the indices and their logs; -shm has nothing that lasts."""
    return {each.name: each.read_bytes() for each in path.glob(f"{INDEX}*") if not each.name.endswith("-shm")}


def aside(found):
    return {name.replace(INDEX, f"{INDEX}.arkimet"): each for name, each in found.items()}


def test_a_dataset_is_adopted_and_answers_as_before(tmp_path):
    path = archive(tmp_path / "model", description="a model", archive_age=36000, locking="no")
    before, index = content(path), indices(path)
    plan = ondisk.adopt(path, dry_run=True)
    assert (content(path), indices(path), (path / CONFIG).exists()) == (before, index, False)
    assert [each.segment for each in plan.findings] == sorted(MESSAGES, reverse=True)[:2][::-1] + sorted(MESSAGES)[:1]
    report = ondisk.adopt(path)
    (told,) = (each.reasons for each in report if each.segment == "config")
    assert told == next(each.reasons for each in plan if each.segment == "config")
    assert told[1:] == (
        'its filter, for the datasets of a pipeline: filter = "origin:GRIB1,98 or GRIB2,98"',
        "ignored: description, locking",
    )
    assert content(path) == before
    assert indices(path).items() >= aside(index).items()
    (path / "aliases").write_text("[level]\nsfc = GRIB1,105,2\n")
    with ondisk.open(path) as model:
        assert len([*model.query()]) == COUNT
        assert model.config.unique == ("reftime", *UNIQUE.split(", ")[1:])
        assert model.config.archive_age == 36000
        assert not model.needs_check
        assert model.check(accurate=True).is_clean
        assert model.append(list(model.query())).duplicates == COUNT
    assert main(["query", str(path), "level: sfc", "--aliases", str(path / "aliases"), "--data"]) == 0
    with pytest.raises(DatasetExists):
        ondisk.adopt(path)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"unique": ""}, {"unique": ("reftime",)}),
        ({"unique": None, "type": "simple"}, {"unique": ()}),
        ({"unique": "Product"}, {"unique": ("reftime", "product")}),
        ({"type": "ISEG", "format": "grib"}, {"format": "grib"}),
        ({"index": "origin, reftime, level"}, {"index": ("origin", "reftime", "level")}),
        ({"replace": "yes"}, {"replace": "yes"}),
        ({"replace": "USN"}, {"replace": "newer", "version_field": "usn"}),
        ({"replace": "never", "delete_age": "36500", "archive_age": "-1"}, {"delete_age": 36500, "archive_age": None}),
    ],
)
def test_the_configuration_of_arkimet_becomes_that_of_ondisk(tmp_path, keys, expected):
    path = archive(tmp_path / "model", **keys)
    ondisk.adopt(path, {"fields": {"step": "integer"}, "unique": ["step"], "index": ["step"]})
    with ondisk.open(path) as model:
        config = model.config
        assert (config.fields["step"], config.fields["run"]) == ("integer", "item")
        assert config.unique[-1] == config.index[-1] == "step"
        found = {name: getattr(config, name) for name in expected}
        assert {**found, **{name: each[:-1] for name, each in found.items() if name in ("unique", "index")}} == expected


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"step": "single"}, ConfigError, "step is 'single', which ondisk cannot adopt"),
        ({"step": None}, ConfigError, "step is ''"),
        ({"type": "remote"}, ConfigError, "type is 'remote', which ondisk cannot adopt"),
        ({"type": "outbound"}, ConfigError, "type is 'outbound'"),
        ({"type": "something"}, InvalidInput, "contains no queue, and is no dataset of arkimet"),
        ({"replace": "perhaps"}, ConfigError, "replace is 'perhaps'"),
        ({"archive_age": "x"}, ConfigError, "archive age is 'x', not a number of days"),
        ({"unique": "bbox"}, ConfigError, "'bbox' is not a name of an item"),
        ({"messages": {}}, InvalidInput, "there are no segments"),
    ],
)
def test_what_cannot_be_adopted_is_refused_and_nothing_is_changed(tmp_path, keys, error, message):
    path = archive(tmp_path / "model", **keys)
    before = content(path), indices(path)
    with pytest.raises(error, match=message):
        ondisk.adopt(path)
    assert (content(path), indices(path)) == before
    assert not (path / CONFIG).exists()


@pytest.mark.check
def test_a_folder_that_is_also_a_queue_or_has_a_damaged_configuration_is_refused(tmp_path):
    path = archive(tmp_path / "model")
    (path / "state.dat").write_bytes(b"")
    with pytest.raises(InvalidInput, match="a configuration of arkimet and a queue"):
        ondisk.adopt(path)
    (path / "state.dat").unlink()
    (path / "config").write_text("type = ondisk2\nstep daily\n")
    with pytest.raises(ConfigError, match="line 2: 'step daily' is not"):
        ondisk.adopt(path)


def radar(path):
    segment = path / "2026/11-20.odimh5"
    segment.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate([volume(), image("MAX")]):
        (segment / f"{number:06}.odimh5").write_bytes(each)
    (segment / ".sequence").write_bytes(struct.pack("<Q", 1))
    return segment


@pytest.mark.check
def test_segments_of_several_formats_are_read(tmp_path):
    path = archive(tmp_path / "mixed", unique="reftime,product,level,area,origin,timerange,proddef,run")
    radar(path)
    (path / "2026/11-20.vm2").write_text("202611200600,104,1,7.5,,,000000000\n")
    ondisk.adopt(path)
    with ondisk.open(path) as mixed:
        assert mixed.config.format == "grib"
        assert {"quantity", "task", "run"} <= mixed.config.fields.keys()
        assert len([*mixed.query("product: ODIMH5 or VM2")]) == 3
        assert mixed.check(accurate=True).is_clean


@pytest.mark.skipif(not all(map(shutil.which, ("tar", "gunzip", "unzip"))), reason="tar, gzip or unzip is missing")
def test_packed_segments_are_listed_with_the_command_that_unpacks_them(tmp_path):
    path = archive(tmp_path / "it's a model")
    plain = path / "2026/11-21.grib"
    (path / "2026/11-21.grib.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (path / "2026/11-21.grib.gz.idx").write_bytes(bytes(16))
    plain.unlink()
    (path / "2026/11-20.grib").rename(path / "2026/11-20.grib1")
    for name in ("11-22.odimh5", "11-23.odimh5"):
        segment = radar(path).rename(path / "2026" / name)
        members = sorted(segment.glob("0*"))
        if name == "11-22.odimh5":
            with tarfile.open(f"{segment}.tar", "w") as tar:
                for each in members:
                    tar.add(each, each.name)
        else:
            with zipfile.ZipFile(f"{segment}.zip", "w") as zipped:
                for each in members:
                    zipped.write(each, f"{int(each.stem) + 1:06}.odimh5")
        shutil.rmtree(segment)
    before = content(path), indices(path)
    for dry_run in (True, False):
        with pytest.raises(StateError, match="4 segments are in a form") as caught:
            ondisk.adopt(path, dry_run=dry_run)
        assert (content(path), indices(path)) == before
    for each in caught.value.context["report"].held:
        subprocess.run(each.reasons[-1].partition("convert it: ")[2], shell=True, check=True)
    ondisk.adopt(path)
    with ondisk.open(path) as model:
        assert len([*model.query("product: GRIB1 or GRIB2")]) == COUNT
        days = [each.segment for each in model.check(accurate=True)]
        assert {"2026/11-22.odimh5", "2026/11-23.odimh5"} <= {*days}


def killed_anywhere(path, template):
    """Yield copies of a folder in which an adoption was killed, once at each of its calls that change the disk."""
    for call in range(1000):
        shutil.copytree(template, path)
        try:
            with killed_at(call):
                ondisk.adopt(path)
        except Killed:
            yield call
        else:
            return
        shutil.rmtree(path)
    raise AssertionError("it does not end")


@pytest.mark.check
def test_killed_anywhere_it_is_still_arkimets_or_a_dataset_that_knows_what_it_lacks(tmp_path):
    template = archive(tmp_path / "template")
    before, index = content(template), indices(template)
    path, calls = tmp_path / "model", 0
    for calls in killed_anywhere(path, template):  # noqa: B007
        assert content(path) == before
        assert {*indices(path).values()} >= {*index.values()}
        if not (path / CONFIG).exists():
            ondisk.adopt(path)
        else:
            with ondisk.open(path) as model:
                assert model.needs_check or len([*model.query()]) == COUNT
                model.fix()
        assert indices(path).items() >= aside(index).items()
        with ondisk.open(path) as model:
            assert not model.needs_check
            assert len([*model.query()]) == COUNT
            assert model.check(accurate=True).is_clean
    assert calls > 20


def test_the_way_back_needs_one_rename(tmp_path):
    path = archive(tmp_path / "model")
    before, index = content(path), indices(path)
    ondisk.adopt(path)
    for name in (CONFIG, ".tide", ".lock", INDEX, f"{INDEX}-wal", f"{INDEX}-shm", f"{INDEX}.arkimet-shm"):
        (path / name).unlink(missing_ok=True)
    for name in aside(index):
        (path / name).rename(path / name.replace(".arkimet", ""))
    assert (content(path), indices(path)) == (before, index)
    ondisk.adopt(path)  # and forth again
    with ondisk.open(path) as model:
        assert len([*model.query()]) == COUNT


@pytest.mark.check
def test_an_index_that_was_set_aside_before_is_never_replaced(tmp_path):
    path = archive(tmp_path / "model")
    (path / f"{INDEX}.arkimet").write_bytes(b"of an earlier adoption")
    before = indices(path)
    with pytest.raises(AlreadyExists, match=r"has index\.sqlite and index\.sqlite\.arkimet"):
        ondisk.adopt(path)
    assert indices(path) == before


def test_the_command_prints_what_becomes_of_the_configuration(tmp_path, capsys):
    path = archive(tmp_path / "model", name="model")
    assert main(["adopt", str(path), "--field", "step=integer", "--json"]) == 9
    *found, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert {each["segment"] for each in found} == {*MESSAGES, "config"}
    assert main(["adopt", str(path), "--field", "step=integer"]) == 9
    told = capsys.readouterr().out
    assert 'config: OK: it becomes format = "grib", step = "daily", unique = ["reftime", "origin"' in told
    assert "3 segments to read; --yes does it" in told
    assert main(["adopt", str(path), "--field", "step=integer", "--yes"]) == 0
    assert "ignored: name -> read" in capsys.readouterr().out
    assert main(["query", str(path), "step: 6h; level: GRIB1,105", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.check
@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_the_command_lists_packed_segments_and_changes_nothing(tmp_path, capsys, options):
    path = archive(tmp_path / "model")
    (path / "2026/11-22.grib.gz").write_bytes(gzip.compress(grib1()))
    before = content(path), indices(path)
    assert main(["adopt", str(path), *options]) == 30
    told = capsys.readouterr()
    assert f"gunzip {path}/2026/11-22.grib.gz -> left alone" in told.out
    assert "1 segment is in a form that ondisk cannot read; nothing was changed" in told.err
    assert (content(path), indices(path)) == before
