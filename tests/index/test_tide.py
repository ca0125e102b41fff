from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import struct
import zlib
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kit.crashes import Killed, killed_at
from worlds import START, access_to, lose_index, sql

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import EXIT_FINDINGS, NeedsCheck
from ondisk.filesystem import Directory
from ondisk.index import INDEX, import_log
from ondisk.index.import_log import Mark as Done
from ondisk.index.tide import TIDE, TideMark, announce, read, save
from ondisk.maintenance import fix as fix_module
from ondisk.maintenance.maintain import maintain
from ondisk.step import DAY

CONFIG = {"format": "jsonl", "step": "daily", "fields": {"station": "integer"}, "unique": ["reftime", "station"]}
HOUR = DAY // 24 // 1_000_000


def data(begin, end):
    """One datum an hour."""
    for number in range(begin, end):
        reftime = START.fromtimestamp(START.timestamp() + number * HOUR, START.tzinfo)
        yield Datum(reftime, {"station": number}, {"n": number})


def append(path, begin, end):
    with ondisk.open(path) as dataset:
        result = dataset.append(data(begin, end))
        assert result.count == end - begin
        return result.imported


def numbers(path):
    with ondisk.open(path, read_only=True) as dataset:
        return [datum.metadata["station"] for datum in dataset.query()]


def uuid_of(path):
    with ondisk.open(path, read_only=True) as dataset:
        return dataset.info()["uuid"]


def needs_check(path):
    with ondisk.open(path, read_only=True) as dataset:
        return dataset.needs_check


def counters(path):
    with access_to(path) as access, access.current().index.snapshot() as snapshot:
        known = snapshot.dataset()
        return known["seq"], known["generation"]


def mark_of(path):
    with Directory.open(path) as directory:
        return read(directory)


def fix(path):
    with ondisk.open(path) as dataset:
        report = dataset.fix()
        assert not dataset.needs_check
        return report


def check_all(path, expected):
    """All data are answered, index and disk agree, and nothing is left to do."""
    assert numbers(path) == [*expected]
    with ondisk.open(path) as dataset:
        assert dataset.check(accurate=True).is_clean
        assert [*dataset.repack()] == [] or dataset.check(accurate=True).is_clean
    assert numbers(path) == [*expected]


@pytest.fixture
def path(tmp_path):
    """A dataset with the data 0 to 29."""
    with ondisk.create(tmp_path / "dataset", CONFIG):
        pass
    append(tmp_path / "dataset", 0, 30)
    return tmp_path / "dataset"


@pytest.fixture
def other(tmp_path):
    """Another dataset: the same days, other data."""
    with ondisk.create(tmp_path / "other", CONFIG) as dataset:
        dataset.append(data(5, 11))
        dataset.append(data(40, 45))
    return tmp_path / "other"


def copied(path, *suffixes):
    """Copy the index aside, as a backup does, and return the copy."""
    with closing(sqlite3.connect(path / INDEX)) as source, closing(sqlite3.connect(path.parent / "old.sqlite")) as copy:
        source.backup(copy)
    return path.parent / "old.sqlite"


def put_back(old, path, how):
    """Put an index in the place of the present one."""
    if how == "restore":
        with closing(sqlite3.connect(old)) as source, closing(sqlite3.connect(path / INDEX)) as target:
            source.backup(target)
        return
    if how == "cp":
        (path / INDEX).write_bytes(old.read_bytes())  # in place: the same inode
        return
    if "without log" in how:
        lose_index(path)
    shutil.copy2(old, path / "new")
    (path / "new").rename(path / INDEX)


WAYS = ["cp", "mv", "mv without log", "restore"]


# The record


def test_a_mark_is_read_as_it_was_written():
    mark = TideMark("0" * 36, 2**40, 7, (2**39, 6), "1" * 36)
    assert TideMark.decode(mark.encode()) == mark
    assert TideMark.decode(TideMark("a" * 36, 0, 0).encode()) == TideMark("a" * 36, 0, 0)
    assert len(mark.encode()) == 8 + 36 + 36 + 4 * 8 + 4


def test_a_damaged_mark_says_nothing():
    content = TideMark("0" * 36, 5, 7, (3, 6)).encode()
    for at in range(len(content)):
        assert TideMark.decode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]) is None
        assert TideMark.decode(content[:at]) is None
    assert TideMark.decode(content + b"\0") is None
    for numbers in ((2**62, 0, 0, 0), (0, 2**63 - 1, 0, 0), (0, 0, -1, 0)):
        record = struct.pack("<8s36s36sqqqq", b"ONDTIDE1", b"0" * 36, b"", *numbers)
        assert TideMark.decode(record + struct.pack("<I", zlib.crc32(record))) is None


@pytest.mark.parametrize(
    ("state", "reaches"),
    [
        (("a", 5, 7), True),
        (("a", 6, 7), True),
        (("b", 5, 8), True),
        (("c", 9, 9), False),
        (("a", 4, 9), False),
        (("a", 9, 6), False),
    ],
)
def test_an_index_with_another_uuid_or_lower_numbers_was_exchanged(state, reaches):
    assert TideMark("a", 5, 7, next="b").is_reached_by(state) is reaches


# What writes it


def test_a_new_dataset_has_a_mark_with_the_mode_of_its_index(tmp_path):
    before = os.umask(0o027)
    try:
        ondisk.create(tmp_path / "dataset", CONFIG).close()
    finally:
        os.umask(before)
    path = tmp_path / "dataset"
    assert stat.S_IMODE((path / TIDE).stat().st_mode) == stat.S_IMODE((path / INDEX).stat().st_mode) == 0o640
    assert mark_of(path).uuid == uuid_of(path)


def test_the_mark_follows_every_commit(path):
    for change in (
        lambda dataset: dataset.append(data(30, 32)),
        lambda dataset: dataset.delete("station:0"),
        lambda dataset: dataset.repack(),
        lambda dataset: dataset.check(max_duration=0),
    ):
        with ondisk.open(path) as dataset:
            change(dataset)
        mark = mark_of(path)
        assert (mark.uuid, mark.seq, mark.generation) == (uuid_of(path), *counters(path))
        assert mark.moved == counters(path)
    assert not needs_check(path)


def test_a_commit_that_a_query_keeps_from_the_main_file_does_not_count_as_moved(path):
    with ondisk.open(path, read_only=True) as reader:
        query = reader.query()
        next(query)
        append(path, 30, 31)
        mark = mark_of(path)
        assert mark.moved[0] < mark.seq
        query.close()
    assert not needs_check(path)
    append(path, 31, 32)
    assert not needs_check(path)


def test_an_older_main_file_below_a_log_that_waits_is_noticed(path, tmp_path):
    shutil.copy(path / INDEX, tmp_path / "older")
    with ondisk.open(path) as dataset:
        for number in range(30, 34):
            dataset.append(data(number, number + 1))
        shutil.copytree(path, tmp_path / "killed")  # what a kill would leave
    mark = mark_of(tmp_path / "killed")
    assert mark.moved[0] < mark.seq
    assert not needs_check(tmp_path / "killed")
    assert needs_check(path) is False
    shutil.copy(tmp_path / "older", tmp_path / "killed" / INDEX)
    assert needs_check(tmp_path / "killed")


# What says nothing


@pytest.mark.parametrize("content", [None, b"", b"hello", b"\0" * 116, b"x" * 100_000], ids=lambda each: str(each)[:9])
def test_a_mark_that_cannot_be_read_is_no_alarm_and_the_next_commit_writes_it_again(path, content):
    (path / TIDE).unlink()
    if content is not None:
        (path / TIDE).write_bytes(content)
    assert not needs_check(path)
    append(path, 30, 31)
    assert not needs_check(path)
    assert mark_of(path).seq == counters(path)[0]
    assert (path / TIDE).stat().st_size == 116


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_what_is_no_file_is_left_in_the_place_of_the_mark_and_never_followed(path, kind):
    target = path.parent / "target"
    target.write_bytes(b"mine")
    (path / TIDE).unlink()
    if kind == "symlink":
        (path / TIDE).symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path / TIDE)
    else:
        (path / TIDE).mkdir()
    before = (path / TIDE).lstat()
    assert not needs_check(path)
    append(path, 30, 31)
    assert not needs_check(path)
    assert (path / TIDE).lstat().st_ino == before.st_ino
    assert target.read_bytes() == b"mine"


def test_a_mark_older_than_the_index_is_no_alarm(path):
    """A power cut may lose the last writes."""
    before = (path / TIDE).read_bytes()
    append(path, 30, 40)
    (path / TIDE).write_bytes(before)
    assert not needs_check(path)
    append(path, 40, 41)
    assert not needs_check(path)
    check_all(path, range(41))


def test_a_mark_that_hard_links_share_is_not_written_into(path):
    shutil.copytree(path, path.with_name("copy"), copy_function=os.link)
    other = path.with_name("copy")
    (other / INDEX).unlink()
    shutil.copy2(path / INDEX, other / INDEX)
    append(path, 30, 31)
    assert mark_of(other).seq < mark_of(path).seq
    assert not needs_check(other)


def test_a_mark_of_another_user_is_replaced(path):
    if os.geteuid() == 0:
        os.chown(path / INDEX, 12345, 12345)
        (path / TIDE).unlink()
        append(path, 30, 31)
        assert (path / TIDE).stat().st_uid == 12345
    else:
        (path / TIDE).chmod(0o400)
        append(path, 30, 31)
    assert mark_of(path).seq == counters(path)[0]


def test_a_copy_made_at_rest_is_no_alarm(path):
    shutil.copytree(path, path.with_name("copy"))
    assert not needs_check(path.with_name("copy"))
    check_all(path.with_name("copy"), range(30))
    append(path.with_name("copy"), 30, 31)
    assert not needs_check(path.with_name("copy"))


def test_restoring_the_whole_dataset_with_its_mark_is_no_alarm(path):
    shutil.copytree(path, path.with_name("backup"))
    append(path, 30, 60)
    shutil.rmtree(path)
    shutil.copytree(path.with_name("backup"), path)
    assert not needs_check(path)
    append(path, 30, 31)
    check_all(path, range(31))


# An older index put back


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("count", [10, 2000])
def test_after_an_older_index_is_put_back_nothing_is_lost(path, how, count):
    old, before = copied(path), counters(path)
    append(path, 30, 30 + count)
    now, first = counters(path), uuid_of(path)
    put_back(old, path, how)
    if how != "cp":  # SQLite may read that as a damaged index
        assert needs_check(path)
        assert not (path / SENTINEL).exists()
    assert append(path, 30 + count, 35 + count) == 5
    assert (path / SENTINEL).exists()
    assert uuid_of(path) != first
    after = counters(path)
    assert after[0] >= now[0] + 5 > before[0]
    assert after[1] >= now[1]
    assert needs_check(path)
    with ondisk.open(path) as dataset, pytest.raises(NeedsCheck):
        dataset.repack()
    fix(path)
    check_all(path, range(35 + count))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("verb", ["fix", "append", "delete"])
def test_an_index_that_is_exchanged_under_an_open_dataset_is_noticed_by_the_next_transaction(path, how, verb):
    old = copied(path)
    with ondisk.open(path) as dataset:
        dataset.append(data(30, 60))
        put_back(old, path, how)
        if verb == "append":
            assert dataset.append(data(60, 62)).imported == 2
        elif verb == "delete":
            assert dataset.delete("station:3") == 1
        else:
            dataset.fix()
            assert not dataset.needs_check
        assert (path / SENTINEL).exists() is (verb != "fix")
    fix(path)
    # A deleted datum that no repack has removed comes back, as after the loss of an index.
    check_all(path, range(62 if verb == "append" else 60))


def test_a_reader_that_has_it_open_says_that_it_needs_a_check(path):
    old = copied(path)
    with ondisk.open(path, read_only=True) as reader:
        assert not reader.needs_check
        append(path, 30, 60)
        assert not reader.needs_check
        put_back(old, path, "mv without log")
        assert reader.needs_check
        fix(path)
        assert not reader.needs_check
        assert len([*reader.query()]) == 60


def test_what_streams_have_stored_stays_known_with_an_older_index(path):
    with access_to(path) as access, access.transaction("test") as transaction:
        import_log.save(transaction, [Done("stream", 5)])
        transaction.commit()
    old = copied(path)
    append(path, 30, 31)
    put_back(old, path, "mv without log")
    fix(path)
    with ondisk.open(path) as dataset:
        assert dataset.stored([Done("stream", 5), Done("stream", 6)]) == {Done("stream", 5)}


def test_maintain_alone_has_every_datum_again(path):
    old = copied(path)
    append(path, 30, 300)
    put_back(old, path, "cp")
    result = maintain(path)
    assert result.error is None
    assert result.left.is_clean
    check_all(path, range(300))


def test_what_an_older_index_lacks_and_no_file_has_counts_once_also_if_two_fixes_find_it(path, monkeypatch):
    old, third = copied(path), path / "2026/11-22.jsonl"
    append(path, 48, 53)
    put_back(old, path, "mv without log")
    third.unlink()
    closed, others = fix_module.closed, iter([fix])

    def another_fix_first(directory):
        for other in others:
            other(path)
        return closed(directory)

    monkeypatch.setattr(fix_module, "closed", another_fix_first)
    fix(path)
    with ondisk.open(path) as dataset:
        assert dataset.info()["lost"] == 5


def test_what_an_older_index_lacks_and_no_file_has_is_lost_also_while_an_archive_is_offline(path):
    with ondisk.open(path) as dataset:
        dataset.archive("2026/11-20.jsonl")
        dataset.rename_archive("last", "2024")
        dataset.set_offline("2024")
    old, third = copied(path), path / "2026/11-22.jsonl"
    append(path, 48, 53)
    put_back(old, path, "mv without log")
    third.unlink()
    report = fix(path)
    assert report.lost == 5
    assert "up to 5 later changes are lost (data or deletions), unless they are offline in .archive/2024/" in str(
        [*report]
    )


@pytest.mark.parametrize("unique", [["reftime", "station"], []])
def test_deleted_data_that_are_back_do_not_hide_data_that_are_lost(path, tmp_path, unique):
    with ondisk.create(path := tmp_path / "weather", {**CONFIG, "unique": unique}) as dataset:
        dataset.append(data(0, 30))  # two days
        assert dataset.delete("station: <4") == 4
    old, second = copied(path), path / "2026/11-21.jsonl"
    before = second.read_bytes()
    append(path, 30, 34)
    with ondisk.open(path) as dataset:  # one datum more on the first day, so that its file has changed, too
        dataset.append([Datum(START, {"station": 100}, {"n": 100})])
    put_back(old, path, "mv without log")
    second.write_bytes(before)
    with ondisk.open(path) as dataset:
        report = dataset.fix()
        assert report.lost == 4
        assert dataset.info()["lost"] == 4
    assert sorted(numbers(path)) == [*range(30), 100]


# The index of another dataset


@pytest.mark.check
@pytest.mark.parametrize("how", WAYS)
def test_the_index_of_another_dataset_counts_as_lost_and_is_kept(path, other, how):
    with access_to(other) as access, access.transaction("test") as transaction:
        import_log.save(transaction, [Done("stream", 5)])
        transaction.commit()
    foreign, now, first = copied(other), counters(path), uuid_of(path)
    expected = numbers(other)
    put_back(foreign, path, how)
    if how != "cp":
        assert needs_check(path)
    with ondisk.open(path) as dataset:
        assert dataset.needs_check
        assert dataset.info()["uuid"] not in (first, uuid_of(other))
        assert not dataset.stored([Done("stream", 5)])
    append(path, 30, 31)
    assert counters(path) > now
    fix(path)
    check_all(path, range(31))
    with ondisk.open(path, read_only=True) as dataset:
        (kept,) = dataset.quarantine
        assert (kept.segment, kept.verb) == (INDEX, "open")
        lose_index(other)
        (other / TIDE).unlink()
        dataset.quarantine.export(kept.name, other / INDEX)
    assert numbers(other) == expected


def test_each_index_of_another_dataset_is_kept_and_reported(path, other):
    foreign = copied(other)
    for count in 1, 2:
        put_back(foreign, path, "mv without log")
        maintained = maintain(path)
        assert len(maintained.kept) == count
        assert maintained.exit_code == EXIT_FINDINGS
        with ondisk.open(path, read_only=True) as dataset:
            assert dataset.quarantine.total().items == count
    assert maintain(path).exit_code == 0
    check_all(path, range(30))


# A lost index


def test_a_rebuilt_index_continues_after_the_numbers_of_the_lost_one(path):
    with ondisk.open(path) as dataset:
        dataset.delete("station:29")
    now = counters(path)
    lose_index(path)
    append(path, 30, 31)
    assert counters(path) > now
    assert counters(path)[0] >= now[0]
    fix(path)
    assert mark_of(path).uuid == uuid_of(path)
    assert mark_of(path).next == ""


# Crashes


def each_kill(path: Path, action, limit=400):
    """Carry out an action on copies of a dataset, and kill it at each of its calls that change the disk."""
    for call in range(limit):
        copy = path.with_name(f"copy-{call}")
        shutil.copytree(path, copy)
        ended = False
        with suppress(Killed), killed_at(call):
            action(copy)
            ended = True
        yield copy
        shutil.rmtree(copy)
        if ended:
            return
    raise AssertionError("the action does not end")


@pytest.mark.check
@pytest.mark.parametrize("how", ["mv", pytest.param("mv without log", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_kill_at_any_call_while_an_exchanged_index_is_taken_over_loses_nothing(path, other, how, is_foreign):
    old = copied(other if is_foreign else path)
    append(path, 30, 50)
    first = mark_of(path)
    put_back(old, path, how)
    for copy in each_kill(path, lambda copy: append(copy, 50, 51)):
        assert needs_check(copy)
        append(copy, 51, 52)
        assert needs_check(copy)
        assert counters(copy) > (first.seq, first.generation)
        assert uuid_of(copy) not in (first.uuid, mark_of(other).uuid)
        fix(copy)
        with ondisk.open(copy, read_only=True) as dataset:
            found = {datum.metadata["station"] for datum in dataset.query()}
        assert {*range(50), 51} <= found <= {*range(52)}
        assert not needs_check(copy)


@pytest.mark.check
def test_a_kill_at_any_call_of_the_fix_of_an_exchanged_index_loses_nothing(path):
    old = copied(path)
    append(path, 30, 50)
    put_back(old, path, "mv without log")
    for copy in each_kill(path, fix):
        fix(copy)
        check_all(copy, range(50))


def test_a_kill_at_any_call_of_an_append_is_no_alarm(path):
    for copy in each_kill(path, lambda copy: append(copy, 30, 40)):
        assert not needs_check(copy)
        append(copy, 30, 40)
        assert not needs_check(copy)


@pytest.mark.check
def test_a_kill_at_any_call_of_the_creation_of_an_index_is_no_false_alarm(tmp_path):
    (tmp_path / "empty").mkdir()
    for copy in each_kill(tmp_path / "empty", lambda copy: ondisk.create(copy, CONFIG).close()):
        if not (copy / "dataset.toml").exists():
            ondisk.create(copy, CONFIG).close()
        assert not needs_check(copy)
        append(copy, 0, 3)
        assert not needs_check(copy)


def test_a_kill_at_any_call_while_an_unused_index_is_configured_again_is_no_alarm(tmp_path):
    ondisk.create(tmp_path / "dataset", CONFIG).close()
    toml = tmp_path / "dataset/dataset.toml"
    toml.write_text(toml.read_text().replace("daily", "monthly"))
    for copy in each_kill(tmp_path / "dataset", lambda copy: append(copy, 0, 3)):
        append(copy, 0, 3)
        assert not needs_check(copy)
        assert numbers(copy) == [0, 1, 2]


@pytest.mark.check
def test_a_kill_at_any_call_of_a_migration_is_no_alarm(path):
    toml = path / "dataset.toml"
    toml.write_text(toml.read_text().replace('station = "integer"', 'station = "integer"\nlevel = "real"'))
    for copy in each_kill(path, ondisk.migrate):
        ondisk.migrate(copy)
        assert not needs_check(copy)
        append(copy, 30, 31)
        assert not needs_check(copy)
        assert mark_of(copy).seq == counters(copy)[0]


def test_an_index_that_was_lost_may_have_had_each_uuid_of_the_mark(path):
    """Also the one that it had only in its write-ahead log: an index that is put back is recognised by it."""
    had, announced = uuid_of(path), "b" * 36
    with Directory.open(path) as directory:
        announce(directory, announced)
    lose_index(path)
    fix(path)
    assert {each for (each,) in sql(path, "SELECT uuid FROM former")} == {had, announced}


def test_a_new_uuid_is_announced_before_it_appears(path):
    with Directory.open(path) as directory:
        announce(directory, "b" * 36)
    assert mark_of(path).knows(uuid_of(path))
    assert mark_of(path).knows("b" * 36)
    assert not needs_check(path)
    append(path, 30, 31)
    assert not mark_of(path).knows("b" * 36)


def test_an_announcement_is_synced_and_a_mark_after_a_commit_is_not(path, monkeypatch):
    synced = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: synced.append(path))
    with Directory.open(path) as directory:
        save(directory, mark_of(path))
        assert synced == []
        announce(directory, "b" * 36)
    assert synced == [str(path / TIDE), str(path)]
