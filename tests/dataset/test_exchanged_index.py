"""Accidents with an index: an older one is put back, or that of another dataset. Nothing is lost, nothing is wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from worlds import START, lose_index

import ondisk
from ondisk import Datum
from ondisk.errors import NeedsCheck
from ondisk.index import INDEX
from ondisk.maintenance.maintain import maintain

KINDS = {
    "seg lz4": {"format": "seg"},
    "seg plain": {"format": "seg", "compression": "none"},
    "vm2": {"format": "vm2"},
    "jsonl": {"format": "jsonl"},
    "blob": {"format": "blob"},
}
FIELDS = {"area": "text"}


def datum(number: int, format: str) -> Datum:
    """Make a datum; four make a day."""
    reftime = START + timedelta(hours=6 * number)
    if format == "vm2":
        return Datum(reftime, data=f"{reftime:%Y%m%d%H%M},{number},227,{number},,,000000000".encode())
    if format == "blob":
        return Datum(reftime, {"area": f"VM2,{number}"}, b"content %d" % number * 5)
    return Datum(reftime, {"area": f"VM2,{number}"}, {"n": number, "text": "some text " * 5})


class Case:
    """A dataset with the data 0 to 11, closed between two steps.

    Attributes:
        copy: of its index, as a backup made it.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.values = {"step": "daily", "unique": ["reftime", "area"], "fields": FIELDS, **KINDS[kind]}
        self.format = self.values["format"]
        ondisk.create(path, self.values).close()
        for number in (*range(0, 12, 2), *range(1, 12, 2)):
            self.append(number)

    def append(self, *numbers: int) -> None:
        with ondisk.open(self.path) as dataset:
            assert dataset.append(datum(number, self.format) for number in numbers).imported == len(numbers)

    def delete(self, *numbers: int) -> None:
        match = " or ".join(f'"VM2,{number}"' for number in numbers)
        with ondisk.open(self.path) as dataset:
            assert dataset.delete(f"area: {match}") == len(numbers)

    def repack(self) -> None:
        with ondisk.open(self.path) as dataset:
            dataset.repack()

    def archive(self, day: str) -> None:
        with ondisk.open(self.path) as dataset:
            dataset.archive(f"{day}.{self.format}")

    def back_up(self) -> Path:
        """Copy the index."""
        copy = self.path.parent / "old.sqlite"
        with closing(sqlite3.connect(self.path / INDEX)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return copy

    def numbers(self) -> list[int]:
        """Return the numbers of the data that a query returns, which must be what was appended."""
        with ondisk.open(self.path, read_only=True) as dataset:
            found = []
            for each in dataset.query():
                number = int(str(each.metadata["area"]).removeprefix("VM2,"))
                assert each.data == datum(number, self.format).data
                found.append(number)
        return sorted(found)


def put(index: Path, place: Path, *, with_log: bool) -> None:
    if not with_log:
        lose_index(place)
    (place / INDEX).write_bytes(index.read_bytes())


def repack_first(path: Path) -> None:
    with ondisk.open(path) as dataset:
        with suppress(NeedsCheck):  # not refused after a change that gave out no number
            dataset.repack()
        dataset.fix()
        dataset.repack()


def fix_first(path: Path) -> None:
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.repack()


def only_maintain(path: Path) -> None:
    assert maintain(path).error is None


ORDERS = [fix_first, repack_first, only_maintain]
SINCE: dict[str, Callable[[Case], object]] = {
    "appended": lambda case: case.append(12, 13, 14, 20),
    "appended to its days": lambda case: [case.append(*range(12, 16)), case.append(*range(16, 24))],
    "deleted": lambda case: case.delete(1, 5, 11),
    "deleted and repacked": lambda case: [case.delete(1, 5, 11), case.repack()],
    "repacked": lambda case: case.repack(),
    "repacked and appended": lambda case: [case.repack(), case.append(12, 13)],
    "archived": lambda case: [case.repack(), case.archive("2026/11-20")],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize("order", ORDERS, ids=lambda each: each.__name__)
def test_an_older_index_put_back_loses_nothing(tmp_path, kind, since, order):
    case = Case(tmp_path / "dataset", kind)
    copy = case.back_up()
    SINCE[since](case)
    before = case.numbers()
    put(copy, case.path, with_log=False)
    case.append(30, 31)
    check_whole(case, [*before, 30, 31], order)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS, ids=lambda each: each.__name__)
def test_the_index_of_another_dataset_loses_nothing(tmp_path, kind, order):
    case, other = Case(tmp_path / "dataset", kind), Case(tmp_path / "other", kind)
    case.append(12, 13)
    other.delete(3)
    put(other.back_up(), case.path, with_log=True)
    check_whole(case, [*range(14)], order)
    assert other.numbers() == [number for number in range(12) if number != 3]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blob"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda each: each.__name__)
def test_data_that_a_repack_has_moved_since_keep_their_numbers(tmp_path, kind, order):
    case = Case(tmp_path / "dataset", kind)
    copy, before = case.back_up(), seqs(case)
    case.repack()
    put(copy, case.path, with_log=False)
    order(case.path)
    assert seqs(case) == before
    with ondisk.open(case.path, read_only=True) as dataset:
        assert dataset.info()["lost"] == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blob"])
def test_a_segment_that_has_changed_since_is_not_read_before_a_fix(tmp_path, kind):
    case = Case(tmp_path / "dataset", kind)
    copy = case.back_up()
    case.repack()
    put(copy, case.path, with_log=False)
    with ondisk.open(case.path) as dataset:
        with pytest.raises(ondisk.OndiskError, match="is not the file that the index describes"):
            list(dataset.query())
        dataset.fix()
    assert case.numbers() == [*range(12)]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_not_counted_as_lost_while_their_folder_is_away(tmp_path, kind):
    case = Case(tmp_path / "dataset", kind)
    copy = case.back_up()
    case.append(12, 13)
    (case.path / "2026").rename(tmp_path / "2026")
    put(copy, case.path, with_log=False)
    with ondisk.open(case.path) as dataset:
        assert dataset.fix().lost == 0
    (tmp_path / "2026").rename(case.path / "2026")
    with ondisk.open(case.path) as dataset:
        assert dataset.fix().lost == 0
        assert dataset.info()["lost"] == 0
    check_whole(case, [*range(14)], fix_first)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blob"])
def test_an_older_index_does_not_miss_what_was_archived_since(tmp_path, kind):
    """The dataset has a new segment with the name of the archived one, which the older index describes."""
    case = Case(tmp_path / "dataset", kind)
    case.repack()
    copy = case.back_up()
    case.archive("2026/11-20")
    late = datum(0, case.format)
    data = late.data.replace(b",0,", b",99,") if case.format == "vm2" else late.data
    with ondisk.open(case.path) as dataset:
        dataset.append([Datum(late.reftime, {} if case.format == "vm2" else {"area": "VM2,99"}, data)])
    put(copy, case.path, with_log=False)
    with ondisk.open(case.path) as dataset:
        assert dataset.fix().lost == 0
        assert dataset.info()["lost"] == 0
        assert dataset.summary().count == 13


def seqs(case: Case) -> dict[int, int]:
    """Return reftime → seq of all data."""
    with closing(sqlite3.connect(case.path / INDEX)) as index:
        return dict(index.execute("SELECT reftime, seq FROM datum"))


def check_whole(case: Case, expected: list[int], order: Callable[[Path], None]) -> None:
    """After the exchange a query returns right bytes or an error; after maintenance all data, and nothing is left."""
    with suppress(ondisk.OndiskError):
        case.numbers()
    order(case.path)
    found = case.numbers()
    assert {*expected} <= {*found}  # deleted data that no repack had removed come back
    assert len(found) == len({*found})
    with ondisk.open(case.path) as dataset:
        assert not dataset.needs_check
        assert dataset.check(accurate=True).is_clean
    shutil.rmtree(case.path)


def _empty(path: Path, copy: Path) -> bytes:
    return b""


def _garbage(path: Path, copy: Path) -> bytes:
    return b"no index at all" * 1000


def _cut(path: Path, copy: Path) -> bytes:
    content = (path / INDEX).read_bytes()
    return content[: len(content) // 2]


def _older(path: Path, copy: Path) -> bytes:
    return copy.read_bytes()


def _of_another(path: Path, copy: Path) -> bytes:
    other = Case(path.with_name("other"), "jsonl")
    other.append(*range(12, 40))
    return (other.path / INDEX).read_bytes()


STRAYS: list[Callable[[Path, Path], bytes]] = [_empty, _garbage, _cut, _older, _of_another]


@pytest.mark.parametrize("has_mark", [True, False])
@pytest.mark.parametrize("stray", STRAYS)
def test_a_stray_index_does_not_take_the_place_of_the_index(
    tmp_path: Path, stray: Callable[[Path, Path], bytes], has_mark: bool
) -> None:
    case = Case(tmp_path / "dataset", "jsonl")
    copy = Path(shutil.copy(case.path / INDEX, tmp_path / "older"))
    case.append(20)
    with ondisk.open(case.path) as dataset:
        dataset.delete('area: "VM2,3"')
        uuid = dataset.info()["uuid"]
    (case.path / ".index.sqlite.next").write_bytes(content := stray(case.path, copy))
    if not has_mark:
        (case.path / ".tide").unlink()
    case.append(21)
    with ondisk.open(case.path) as dataset:
        assert (dataset.info()["uuid"], dataset.count(), dataset.needs_check) == (uuid, 13, False)
        assert not [*dataset.query('area: "VM2,3"')]
        (item,) = dataset.quarantine
        assert "would have replaced the index" in item.why
    assert not (case.path / ".index.sqlite.next").exists()
    assert content in [each.read_bytes() for each in (case.path / ".quarantine").iterdir()]


def test_a_successor_of_the_index_takes_its_place(tmp_path: Path) -> None:
    case = Case(tmp_path / "dataset", "jsonl")
    with closing(sqlite3.connect(case.path / INDEX)) as index:
        index.execute(f"VACUUM INTO '{case.path / '.index.sqlite.next'}'")
    inode = (case.path / ".index.sqlite.next").stat().st_ino
    case.append(20)
    assert (case.path / INDEX).stat().st_ino == inode
    with ondisk.open(case.path) as dataset:
        assert (dataset.count(), dataset.needs_check) == (13, False)
        assert [*dataset.quarantine] == []
