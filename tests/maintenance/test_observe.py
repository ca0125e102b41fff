"""What the index knows of each segment: it sums up rows as the plainest count over them does, whatever their layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import access_to

import ondisk
from ondisk.dataset.access import Access
from ondisk.errors import IndexCorrupt
from ondisk.index import Segment, segment_rows
from ondisk.maintenance.diagnosis import Rows
from ondisk.maintenance.observe import all_known, known_of
from ondisk.segment import End
from ondisk.step import DAY, Interval

_NAMES = ["1970/01-02.vm2", "1970/01-03.vm2", "1970/01-04.seg"]

_IDS = range(1, 4)


@dataclass(frozen=True)
class Place:
    """A row of the index, as far as the census looks at it."""

    segment: int
    offset: int
    size: int
    reftime: int
    is_deleted: bool = False


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    path = tmp_path_factory.mktemp("census") / "dataset"
    ondisk.create(path, {"format": "vm2", "step": "daily"}).close()
    with access_to(path) as access:
        yield access


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """Have rows come in pieces that are smaller than the layouts of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_rows, "_ROWS", 3)
        yield


def store(access: Access, rows: list[Place]) -> None:
    access.current().index.outside = None  # here, rows of wrong times are not there from the begin on
    with access.transaction("test") as transaction:
        for id_, name in zip(_IDS, _NAMES, strict=True):
            segment = Segment(id_, name, name[-3:], End(500, 500))
            transaction.remove(segment)
            transaction.save_segment(segment, Interval(id_ * DAY, (id_ + 1) * DAY))
        seqs = transaction.take_seqs(len(rows))
        kept = [(seq, row) for seq, row in zip(seqs, rows, strict=True) if not row.is_deleted]
        columns = ([getattr(row, name) for _, row in kept] for name in ("reftime", "segment", "offset", "size"))
        transaction.insert([[seq for seq, _ in kept], *columns])
        transaction.commit()


def counted(segment: Segment, rows: list[Place]) -> Rows:
    """Count what the index says of one segment, byte by byte."""
    padding = 1 if segment.format == "vm2" else 0
    mine = [(row, seq) for seq, row in enumerate(rows) if row.segment == segment.id and not row.is_deleted]
    known = Rows(count=len(mine))
    if not mine:
        return known
    known.size = sum(row.size + padding for row, _ in mine)
    known.begin, known.end = min(row.reftime for row, _ in mine), max(row.reftime for row, _ in mine)
    known.first = min(row.offset for row, _ in mine)
    known.data_end = max(row.offset + row.size + padding for row, _ in mine)
    covered = {byte for row, _ in mine for byte in range(row.offset, row.offset + row.size + padding)}
    free = sorted(set(range(known.first, known.data_end)) - covered)
    known.gaps, known.gap_at = len(free), free[0] if free else None
    mine.sort(key=lambda pair: (pair[0].offset, pair[1]))
    for at, (row, seq) in enumerate(mine[1:], 1):
        before = mine[:at]
        if row.offset < max(other.offset + other.size + padding for other, _ in before):
            known.overlaps += 1
            known.overlap_at = row.offset if known.overlap_at is None else known.overlap_at
        if (row.reftime, seq) < max((other.reftime, number) for other, number in before):
            known.misplaced += 1
            known.misplaced_at = row.offset if known.misplaced_at is None else known.misplaced_at
    return known


def check_census(access: Access, rows: list[Place]) -> None:
    store(access, rows)
    with access.current().index.snapshot() as snapshot:
        sums = all_known(access, snapshot)
        assert [each.segment.name for each in sums] == _NAMES
        for each in sums:
            alone = known_of(access, snapshot, each.segment.name, each)
            assert alone is not None
            for found in (each, alone):
                assert found.rows == counted(found.segment, rows)


@st.composite
def layouts(draw: st.DrawFn) -> list[Place]:
    """Draw rows: mostly laid one behind the other in order of time, with some of them damaged in any way."""
    ends = dict.fromkeys(_IDS, 0)
    times = {id_: id_ * DAY for id_ in _IDS}
    rows = []
    for _ in range(draw(st.integers(0, 25))):
        id_ = draw(st.sampled_from(_IDS))
        size = draw(st.integers(1, 3))
        times[id_] += draw(st.integers(0, 1))
        rows.append(Place(id_, ends[id_], size, times[id_]))
        ends[id_] += size + (id_ != 3)
    for at in draw(st.lists(st.integers(0, len(rows) - 1), max_size=3)) if rows else []:
        row = rows[at]
        offset = max(0, row.offset + draw(st.integers(-3, 3)))
        reftime = row.reftime + draw(st.sampled_from([0, -2, 2, DAY, -2 * DAY]))
        rows[at] = Place(row.segment, offset, row.size, reftime)
    if draw(st.booleans()):
        rows = draw(st.permutations(rows))
    deleted = draw(st.sets(st.integers(0, 25), max_size=8))
    return [replace(row, is_deleted=at in deleted) for at, row in enumerate(rows)]


@given(rows=layouts(), few=st.sampled_from([0, 1, 10_000]))
def test_both_ways_of_summing_up_return_what_counting_returns(access: Access, rows: list[Place], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ondisk.maintenance.observe._FEW", few)  # else only a slow test would have so many runs
        check_census(access, rows)


def test_the_rows_of_a_segment_are_not_read_because_data_in_it_were_deleted(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Place(1, 10 * at, 9, DAY + at, is_deleted=at % 3 == 1) for at in range(9)]
    store(access, rows)
    monkeypatch.delattr(segment_rows, "places_of")
    with access.current().index.snapshot() as snapshot:
        known, *_ = all_known(access, snapshot)
    assert known.rows == counted(known.segment, rows)


@given(rows=layouts(), changed=layouts())
def test_a_segment_is_summed_up_again_if_its_rows_have_changed(
    access: Access, rows: list[Place], changed: list[Place]
) -> None:
    changed = [row for row in changed if row.reftime // DAY == row.segment]  # others are found by the next pass
    store(access, rows)
    with access.current().index.snapshot() as snapshot:
        before = all_known(access, snapshot)
    store(access, changed)
    with access.current().index.snapshot() as snapshot:
        for each in before:
            found = known_of(access, snapshot, each.segment.name, each)
            expected = counted(each.segment, changed)
            assert found is not None
            mine = found.rows
            assert (mine.count, mine.size, mine.begin, mine.end) == (
                expected.count, expected.size, expected.begin, expected.end)  # fmt: skip


@given(
    rows=st.lists(
        st.builds(
            Place, st.sampled_from(_IDS), st.integers(0, 20), st.integers(1, 4), st.integers(0, 5).map(DAY.__mul__)
        )
    )
)
def test_any_rows_are_summed_up_as_counting_does(access: Access, rows: list[Place]) -> None:
    check_census(access, rows)


@pytest.mark.parametrize("few", [0, 10_000])
@pytest.mark.parametrize("wrong", ["segment = 999", "segment = NULL", "offset = NULL", "size = NULL", "reftime = NULL"])
@pytest.mark.parametrize("deleted", [0, 5])
def test_a_row_that_cannot_be_is_damage_whatever_way_the_others_are_summed_up(
    access: Access, monkeypatch: pytest.MonkeyPatch, few: int, wrong: str, deleted: int
) -> None:
    monkeypatch.setattr("ondisk.maintenance.observe._FEW", few - len(_IDS))
    store(access, [Place(1, 10 * at, 9, DAY + at) for at in range(6)])
    with access.current().index.snapshot() as snapshot:
        snapshot._is_apart = True  # its connection, with these tables, is not used again
        execute = snapshot.connection.execute
        execute("PRAGMA query_only = OFF")
        execute("CREATE TEMP TABLE segment AS SELECT * FROM main.segment")
        execute(f"UPDATE temp.segment SET deleted = {deleted}")
        execute("CREATE TEMP TABLE datum AS SELECT * FROM main.datum")  # without its constraints
        execute(f"UPDATE temp.datum SET {wrong} WHERE seq = (SELECT max(seq) - 2 FROM temp.datum)")
        with pytest.raises(IndexCorrupt, match="segment"):
            all_known(access, snapshot)


def test_the_sum_over_all_counts_every_attribute_of_the_rows_of_a_segment() -> None:
    """`counted` sets them all."""
    said = {each.name for each in fields(Rows)}
    assert said == {"count", "size", "begin", "end", "first", "data_end", "gaps", "gap_at", "overlaps", "overlap_at",
                    "misplaced", "misplaced_at"}  # fmt: skip
