from __future__ import annotations

import pickle
from copy import copy
from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk import Datum, Location
from ondisk.dataset import delete as delete_module
from ondisk.errors import DatumNotFound, DiskFull, InvalidInput, MatchError
from ondisk.index.transaction import Transaction

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.jsonl"


@pytest.fixture
def dataset(create):
    dataset = create(fields={"station": "integer", "product": "text"}, unique=["reftime", "station"])
    dataset.append(
        Datum(T + timedelta(days=n // 5), {"station": n % 5, "product": "ab"[n % 2]}, {"n": n}) for n in range(10)
    )
    return dataset


def numbers(dataset):
    return [datum.data["n"] for datum in dataset.query()]


def test_what_matches_is_deleted_and_counted(dataset):
    assert dataset.delete("station:1 or 2; reftime:=2026-11-20") == 2
    assert numbers(dataset) == [0, 3, 4, 5, 6, 7, 8, 9]
    assert dataset.delete(dataset.fields.product == "b") == 4
    assert numbers(dataset) == [0, 4, 6, 8]
    assert dataset.delete("station:1") == 1
    assert dataset.delete("station:1") == 0


@pytest.mark.parametrize("everything", ["", ";", " "])
def test_the_empty_expression_deletes_everything(dataset, everything):
    assert dataset.delete(everything) == 10
    assert numbers(dataset) == []
    assert dataset.summary().count == 0


def test_bytes_stay_where_they_are(dataset):
    before = (dataset.path / SEGMENT).read_bytes()
    dataset.delete("")
    assert (dataset.path / SEGMENT).read_bytes() == before
    dataset.append([Datum(T, {"station": 1}, {"n": 99})])
    assert (dataset.path / SEGMENT).read_bytes().startswith(before)
    assert numbers(dataset) == [99]


def test_what_was_deleted_can_be_appended_again(dataset):
    gone = list(dataset.query("station:1"))
    dataset.delete("station:1")
    assert dataset.append(gone).imported == 2
    assert numbers(dataset) == [0, 2, 3, 4, 1, 5, 7, 8, 9, 6]


def test_data_are_deleted_by_their_locations(dataset):
    chosen = [datum.location for datum in dataset.query() if datum.data["n"] % 3 == 0]
    assert dataset.delete(iter(chosen)) == 4
    assert numbers(dataset) == [1, 2, 4, 5, 7, 8]
    assert dataset.delete(chosen) == 0


def test_a_location_counts_once_however_often_it_is_given(dataset):
    location = next(dataset.query()).location
    assert dataset.delete([location, location, Location(*[location.segment, location.offset, location.size])]) == 1


@pytest.mark.parametrize("copied", [lambda each: each, copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_after_a_repack_a_location_is_not_that_of_the_datum_that_is_there_now(dataset, copied):
    """The data are of one size, so that each is where another one was."""
    located = copied([*dataset.query()][1]).location
    location = copied(located)
    dataset.delete("station:0; reftime:=2026-11-20")
    dataset.repack()
    with pytest.raises(DatumNotFound, match="no datum is at"):
        dataset.read(location)
    assert dataset.delete([location]) == 0
    assert numbers(dataset) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert dataset.read(Location(*location)).data["n"] == 2


@pytest.mark.parametrize("place", [(0, 5), (1, 10), (-5, 10), (10**9, 1), (2**70, 1), (0, 2**70), (-(2**70), 1)])
def test_where_nothing_is_nothing_is_deleted(dataset, place):
    assert (
        dataset.delete([Location(SEGMENT, *place), Location("2026/12-31.jsonl", *place), Location("../x", *place)]) == 0
    )
    assert len(numbers(dataset)) == 10


def test_no_locations_delete_nothing(dataset):
    assert dataset.delete([]) == 0
    assert dataset.delete(datum.location for datum in dataset.query("station:77")) == 0
    assert len(numbers(dataset)) == 10


def test_deleting_by_the_locations_of_a_running_query(dataset):
    assert dataset.delete(datum.location for datum in dataset.query("product:a")) == 5
    assert numbers(dataset) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    "what", [None, 5, [None], ["station:1"], [("2026/11-20.jsonl", 0, 5)], b"station:1", [Datum(T)]]
)
def test_what_is_neither_match_nor_locations_deletes_nothing(dataset, what):
    with pytest.raises((InvalidInput, TypeError)):
        dataset.delete(what)
    assert len(numbers(dataset)) == 10


@pytest.mark.parametrize("match", ["colour:red", "station:x", "station", "reftime:=2026-13"])
def test_a_match_that_cannot_be_understood_deletes_nothing(dataset, match):
    with pytest.raises(MatchError):
        dataset.delete(match)
    assert len(numbers(dataset)) == 10


def test_an_error_before_the_commit_deletes_nothing(dataset, monkeypatch):
    def fail(self):
        raise RuntimeError("mine")

    locations = [datum.location for datum in dataset.query()]
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", fail)
        for what in ("", locations):
            with pytest.raises(RuntimeError, match="mine"):
                dataset.delete(what)
    assert len(numbers(dataset)) == 10
    assert dataset.delete(locations) == 10


@pytest.mark.parametrize("commits", [0, 2])
def test_on_a_full_disk_a_delete_of_a_part_raises_and_says_how_many(dataset, monkeypatch, commits):
    commit, tried = Transaction.commit, iter([False, *[True] * commits])

    def full(self):
        if not next(tried, False):
            raise DiskFull("no space left", hint="Make space.")
        commit(self)

    monkeypatch.setattr(delete_module, "_SOME", 4)
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", full)
        with pytest.raises(DiskFull, match=f"{4 * commits} data were deleted, the others were not") as caught:
            dataset.delete("")
    assert (caught.value.context["deleted"], caught.value.hint) == (4 * commits, "Make space.")
    assert len(numbers(dataset)) == 10 - 4 * commits


def test_readers_that_began_before_see_what_was_deleted(dataset):
    running = dataset.query()
    first = next(running)
    dataset.delete("")
    assert [datum.data["n"] for datum in [first, *running]] == list(range(10))


def test_deletions_are_there_after_opening_again(dataset):
    dataset.delete("product:a")
    dataset.close()
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == [1, 3, 5, 7, 9]
