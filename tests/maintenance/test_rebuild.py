"""A damaged index is moved aside and rebuilt: what can be read of it is kept, and every datum is answered."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from old_datasets import with_indices
from worlds import START, datum, lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import DatasetNotFound, IndexCorrupt, NeedsMigration, StateError, VersionTooNew
from ondisk.index import INDEX
from ondisk.index.import_log import Mark
from ondisk.index.recover import DAMAGED
from ondisk.maintenance.states import State

PAGE = 4096
LAST = ".archive/last"
NAME = "2026/11-21.jsonl"
MARKS = Path(__file__).parents[1] / "golden" / "revision-6" / "marks"
FIELDS = {"station": "integer", "name": "text"}
KEPT = {
    "deletion": "SELECT seq, datum FROM deletion ORDER BY seq",
    "done": "SELECT source, part FROM done ORDER BY source, part",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset with deletions, imports and an archive; its index has no log."""
    path = tmp_path_factory.mktemp("template") / "weather"
    config = {"format": "jsonl", "step": "daily", "fields": FIELDS, "unique": ["reftime", "station"]}
    with ondisk.create(path, config) as dataset:
        for day in range(4):
            dataset.append(
                datum(24 * day + number % 24, number, number, name=f"{day} {number}") for number in range(200)
            )
        dataset.archive("2026/11-20.jsonl")
        dataset.delete("station: 5")
        dataset.repack()
    with contextlib.closing(sqlite3.connect(path / INDEX)) as index, index:
        index.executemany("INSERT INTO done VALUES (?, ?)", [("stream", 17), ("folder", "file.jsonl")])
    moved_into_main(path)
    return path


@pytest.fixture
def weather(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "weather"))


def moved_into_main(path: Path) -> None:
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        (path / f"{INDEX}{suffix}").unlink(missing_ok=True)


def root_of(path: Path, table: str) -> int:
    """Return the page at which a table begins; the first is 0."""
    ((page,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", table)
    return int(page) - 1


def zero(path: Path, *pages: int) -> None:
    with (path / INDEX).open("rb+") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(bytes(PAGE))


def answers(path: Path) -> list[tuple[object, object]]:
    with ondisk.open(path) as dataset:
        return sorted((each.reftime, each.metadata["station"]) for each in dataset.query())


def rebuilt(path: Path) -> list[tuple[str, State]]:
    """Rebuild and fix; return what was rebuilt."""
    report = ondisk.rebuild(path)
    with ondisk.open(path) as dataset:
        assert not report.segments or dataset.needs_check
        assert not dataset.fix().lost
        assert not dataset.needs_check
    return [(each.segment, each.state) for each in report]


def kept(path: Path) -> dict[str, object]:
    return {table: sql(path, select) for table, select in KEPT.items()}


def counters(path: Path) -> tuple[int, int]:
    ((seq, generation),) = sql(path, "SELECT seq, generation FROM dataset")
    return seq, generation


def test_it_keeps_counters_deletions_and_imports_and_reads_all_data(weather: Path) -> None:
    before, stored, given = kept(weather), answers(weather), counters(weather)
    (uuid,) = sql(weather, "SELECT uuid FROM dataset")
    moved_into_main(weather)
    zero(weather, root_of(weather, "datum"))
    damaged = (weather / INDEX).read_bytes()
    with pytest.raises(IndexCorrupt, match="--rebuild"), ondisk.open(weather) as dataset:
        list(dataset.query())
    assert rebuilt(weather) == [(INDEX, State.CORRUPTED)]
    assert (weather / DAMAGED).read_bytes() == damaged
    assert answers(weather) == stored
    assert kept(weather) == before
    assert all(new > old for new, old in zip(counters(weather), given, strict=True))
    assert sql(weather, "SELECT uuid FROM dataset") != [uuid]
    with ondisk.open(weather) as dataset:
        assert dataset.stored([Mark("stream", 17), Mark("folder", "file.jsonl")]) == {
            Mark("stream", 17),
            Mark("folder", "file.jsonl"),
        }
        assert dataset.check().is_clean


@pytest.mark.parametrize("table", sorted(KEPT))
def test_of_a_table_that_is_damaged_itself_the_others_are_kept(table: str, weather: Path) -> None:
    before, stored = kept(weather), answers(weather)
    moved_into_main(weather)
    zero(weather, root_of(weather, table))
    assert rebuilt(weather) == [(INDEX, State.CORRUPTED)]
    assert answers(weather) == stored
    after = kept(weather)
    for name in KEPT.keys() - {table}:
        assert after[name] == before[name], name


def test_rows_on_both_sides_of_a_damaged_page_are_kept(weather: Path) -> None:
    with contextlib.closing(sqlite3.connect(weather / INDEX)) as index, index:
        index.executemany(
            "INSERT INTO done VALUES ('long', ?)", [(f"{number:05} {'x' * 100}",) for number in range(999)]
        )
    moved_into_main(weather)
    page = (weather / INDEX).read_bytes().index(b"00500 xxx") // PAGE
    zero(weather, page)
    rebuilt(weather)
    parts = [part for (part,) in sql(weather, "SELECT part FROM done WHERE source = 'long' ORDER BY part")]
    assert 900 < len(parts) < 999
    assert (parts[0][:5], parts[-1][:5]) == ("00000", "00998")


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, bytes(65536)], ids=["empty", "garbage", "zeros"])
def test_of_an_index_without_anything_readable_the_tide_mark_has_the_counters(content: bytes, weather: Path) -> None:
    stored, given = answers(weather), counters(weather)
    lose_index(weather)
    (weather / INDEX).write_bytes(content)
    assert rebuilt(weather) == [(INDEX, State.CORRUPTED)]
    assert (weather / DAMAGED).read_bytes() == content
    assert answers(weather) == stored
    assert all(new > old for new, old in zip(counters(weather), given, strict=True))
    with ondisk.open(weather) as dataset:
        assert dataset.check().is_clean


def test_no_number_is_used_twice_without_a_tide_mark(weather: Path) -> None:
    given = counters(weather)
    (weather / ".tide").unlink()
    zero(weather, root_of(weather, "done"))
    rebuilt(weather)
    assert all(new > old for new, old in zip(counters(weather), given, strict=True))


def test_archived_data_are_read_again_too_if_nothing_of_the_index_can_be_read(weather: Path) -> None:
    stored = answers(weather)
    lose_index(weather)
    (weather / INDEX).write_bytes(b"garbage" * 1000)
    assert rebuilt(weather) == [(INDEX, State.CORRUPTED)]
    assert set(stored) <= set(answers(weather))


def test_an_index_in_which_no_damage_is_found_is_rebuilt_too_because_somebody_asked(weather: Path) -> None:
    stored = answers(weather)
    assert rebuilt(weather) == [(INDEX, State.OK)]
    assert answers(weather) == stored
    assert rebuilt(weather) == [(INDEX, State.OK)]
    assert (weather / f"{DAMAGED}.2").exists()


def test_what_an_index_without_damage_knows_of_a_missing_segment_is_counted_as_lost(weather: Path) -> None:
    given, stored = counters(weather), answers(weather)
    gone = weather / NAME
    ((count,),) = sql(weather, "SELECT count(*) FROM datum JOIN segment ON segment.id = segment WHERE name = ?", NAME)
    gone.rename(aside := weather.parent / "aside")
    ondisk.rebuild(weather)
    assert all(new >= old for new, old in zip(counters(weather), given, strict=True))
    with ondisk.open(weather) as dataset:
        assert dataset.fix().lost == dataset.info()["lost"] == count > 100
        assert not dataset.needs_check
    aside.rename(gone)
    with ondisk.open(weather) as dataset:
        dataset.fix()
    assert answers(weather) == stored


def test_what_an_index_without_damage_knows_of_a_replaced_segment_is_counted_as_lost(weather: Path) -> None:
    with ondisk.open(weather) as dataset:
        names = sorted(each.segment for each in dataset.check())
    gone = next(each for each in names if each != NAME)
    ((count,),) = sql(weather, "SELECT count(*) FROM datum JOIN segment ON segment.id = segment WHERE name = ?", gone)
    (weather / gone).write_bytes((weather / NAME).read_bytes())
    ondisk.rebuild(weather)
    with ondisk.open(weather) as dataset:
        assert dataset.fix().lost == dataset.info()["lost"] == count


def test_what_an_index_without_damage_knows_of_an_older_folder_is_reported(tmp_path: Path) -> None:
    path, name = tmp_path / "blobs", "2026/11-20.blob"

    def append(*numbers: int) -> None:
        with ondisk.open(path) as dataset:
            dataset.append(Datum(START, {"n": number}, b"%d" % number) for number in numbers)

    ondisk.create(path, {"format": "blob", "step": "daily", "fields": {"n": "integer"}}).close()
    append(0, 1, 2)
    shutil.copytree(path / name, tmp_path / "older")
    append(3, 4, 5)
    (path / name).rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "older", path / name)
    ondisk.rebuild(path)
    with ondisk.open(path) as dataset:
        assert [each.state for each in dataset.fix()] == [State.CORRUPTED]
    shutil.rmtree(path / name)
    (tmp_path / "newer").rename(path / name)
    with ondisk.open(path) as dataset:
        assert dataset.fix().lost == 0
        assert sorted(each.metadata["n"] for each in dataset.query()) == [*range(6)]


def test_a_segment_that_was_cut_is_reported_as_before_by_a_rebuilt_index(weather: Path) -> None:
    stored, content = answers(weather), (weather / NAME).read_bytes()
    (weather / NAME).write_bytes(b"".join(content.splitlines(keepends=True)[:50]))
    ondisk.rebuild(weather)
    with ondisk.open(weather) as dataset:
        assert {each.segment: each.state for each in dataset.fix() if not each.action} == {NAME: State.CORRUPTED}
    (weather / NAME).write_bytes(content)
    with ondisk.open(weather) as dataset:
        dataset.fix()
        assert dataset.check(accurate=True).is_clean
    assert answers(weather) == stored


def test_a_lost_index_needs_no_rebuild(weather: Path) -> None:
    stored = answers(weather)
    lose_index(weather)
    assert rebuilt(weather) == []
    assert answers(weather) == stored


def test_of_the_index_of_another_dataset_nothing_is_kept(weather: Path, template: Path, tmp_path: Path) -> None:
    stored = answers(weather)
    sql(weather, "UPDATE dataset SET uuid = '00000000-0000-0000-0000-000000000000'")
    moved_into_main(weather)
    zero(weather, root_of(weather, "datum"))
    rebuilt(weather)
    assert set(stored) <= set(answers(weather))
    assert kept(weather)["done"] == []


def test_a_dry_run_changes_nothing(weather: Path) -> None:
    zero(weather, root_of(weather, "datum"))
    before = {
        path: path.read_bytes() for path in weather.rglob("*") if path.is_file() and not path.name.endswith("-shm")
    }
    (found,) = ondisk.rebuild(weather, dry_run=True)
    assert (found.segment, found.state, found.action) == (INDEX, State.CORRUPTED, "rebuild")
    for path, content in before.items():
        assert path.read_bytes() == content
    assert not (weather / DAMAGED).exists()
    assert not (weather / SENTINEL).exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_older_index_that_is_not_damaged_is_left_to_a_migration(tmp_path: Path, dry_run: bool) -> None:
    """It knows which data are missing, and a rebuild would forget them."""
    path = with_indices(Path(shutil.copytree(MARKS, tmp_path / "marks")))
    (path / "2026/11-25.jsonl").unlink()
    before = (path / INDEX).read_bytes()
    with pytest.raises(NeedsMigration, match="has revision 0006") as caught:
        ondisk.rebuild(path, dry_run=dry_run)
    assert "ondisk migrate" in caught.value.hint
    assert (path / INDEX).read_bytes() == before
    assert not (path / SENTINEL).exists()
    ondisk.migrate(path)
    ondisk.rebuild(path)
    with ondisk.open(path) as dataset:
        assert [each.lost for each in dataset.fix() if each.segment == "2026/11-25.jsonl"] == [4]


def test_what_is_no_dataset_and_a_newer_index_are_refused(weather: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        ondisk.rebuild(tmp_path / "nothing")
    sql(weather, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(VersionTooNew):
        ondisk.rebuild(weather)
    assert not (weather / DAMAGED).exists()


def damaged_revision_3(path: Path) -> Path:
    golden = Path(__file__).parents[1] / "golden" / "revision-3" / "vm2"
    shutil.copytree(golden, path)
    for part in (path, path / LAST):
        with contextlib.closing(sqlite3.connect(part / INDEX)) as index:
            index.executescript((part / "index.sql").read_text())
        (part / "index.sql").unlink()
    zero(path, root_of(path, "datum"))
    return path


def test_a_damaged_index_of_revision_3_is_rebuilt_as_one_of_this_revision(tmp_path: Path) -> None:
    path = damaged_revision_3(tmp_path / "old")
    shutil.rmtree(path / ".archive")
    deletions = sql(path, KEPT["deletion"])
    ondisk.rebuild(path)
    ondisk.migrate(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert not dataset.needs_check
    assert sql(path, KEPT["deletion"]) == deletions


def test_a_damaged_index_whose_archive_has_one_of_its_own_is_left_to_the_version_that_knows_it(tmp_path: Path) -> None:
    path = damaged_revision_3(tmp_path / "old")
    before = (path / INDEX).read_bytes()
    for dry_run in (True, False):
        with pytest.raises(StateError, match="its archive last has an index of its own"):
            ondisk.rebuild(path, dry_run=dry_run)
    assert (path / INDEX).read_bytes() == before


@pytest.mark.parametrize("step", ["linked", "staged", "next"])
def test_a_rebuild_that_was_killed_is_repeated(step: str, weather: Path) -> None:
    """The damaged index has two names, or the new one waits for its name."""
    stored = answers(weather)
    moved_into_main(weather)
    zero(weather, root_of(weather, "datum"))
    if step == "linked":
        os.link(weather / INDEX, weather / DAMAGED)
    elif step == "staged":
        (weather / ".index.sqlite.new").write_bytes(b"half")
    else:
        done = Path(shutil.copytree(weather, weather.with_name("done")))
        ondisk.rebuild(done)
        os.link(weather / INDEX, weather / DAMAGED)
        (weather / SENTINEL).touch()
        shutil.copy(done / INDEX, weather / ".index.sqlite.next")
        shutil.copy(done / ".tide", weather)
    rebuilt(weather)
    assert answers(weather) == stored
    assert sorted(weather.glob(".index*")) == []


@pytest.mark.check
def test_a_reader_of_the_old_index_goes_on(weather: Path) -> None:
    with contextlib.closing(sqlite3.connect(weather / INDEX)) as reader:
        reader.execute("BEGIN")
        (before,) = reader.execute("SELECT count(*) FROM datum").fetchone()
        rebuilt(weather)
        assert reader.execute("SELECT count(*) FROM datum").fetchone() == (before,)


def test_a_name_of_which_a_bit_is_wrong_is_damage_that_a_rebuild_mends(weather: Path) -> None:
    with ondisk.open(weather) as dataset:
        before = len([*dataset.query()])
        name = dataset.check().segments[0].segment.encode()
    for suffix in ("-wal", "-shm"):
        (weather / f"{INDEX}{suffix}").unlink(missing_ok=True)
    content = bytearray((weather / INDEX).read_bytes())
    at = -1
    while (at := content.find(name, at + 1)) >= 0:
        content[at] ^= 0x80
    (weather / INDEX).write_bytes(content)
    with ondisk.open(weather, read_only=True) as dataset, pytest.raises(IndexCorrupt):
        dataset.check()
    ondisk.rebuild(weather)
    with ondisk.open(weather) as dataset:
        dataset.fix()
        assert len([*dataset.query()]) == before
