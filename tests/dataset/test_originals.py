"""Original bytes that are appended again mend damaged data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kit.crashes import Killed, killed_at
from worlds import rot

import ondisk

KINDS = {
    "vm2": ("2026/11-20.vm2", lambda n: f"20261120{n:02}00,1,{n},{n}.5,,,000000000".encode()),
    "jsonl": ("2026/11-20.jsonl", lambda n: {"n": n, "text": f"value {n}"}),
    "seg": ("2026/11-20.seg", lambda n: {"n": n, "text": f"value {n}"}),
}


class Damaged:
    """A dataset of four data, whose one segment a check has found damaged."""

    def __init__(self, path: Path, format: str, *places: int) -> None:
        name, self.content = KINDS[format]
        self.format = format
        config = {"format": format, "step": "daily", "unique": ["reftime"]}
        self.dataset = ondisk.create(path, config | {"compression": "none"} if format == "seg" else config)
        self.file = path / name
        self.dataset.append(map(self.datum, range(4)))
        self.places = [each.location for each in self.dataset.query("")]
        self.whole = self.file.read_bytes()
        content = bytearray(self.whole)
        for place in places:
            content[place] ^= 1
        rot(self.file, bytes(content))
        assert self.states(accurate=True) == ["CORRUPTED"]

    def datum(self, number: int) -> ondisk.Datum:
        return ondisk.Datum(datetime(2026, 11, 20, number, tzinfo=UTC), data=self.content(number))

    def content_of(self, numbers: Iterable[int]) -> Iterator[Any]:
        return map(self.content, numbers)

    def states(self, *, accurate: bool = False) -> list[str]:
        return [name for each in self.dataset.check(accurate) if each.state for name in each.state.names]


@pytest.mark.parametrize("format", KINDS)
@pytest.mark.parametrize("places", [(45,), (-1,), (-4,), (45, -4)], ids=["datum", "end", "digit", "two data"])
def test_an_append_of_the_original_bytes_mends_damaged_data(
    format: str, places: tuple[int, ...], tmp_path: Path
) -> None:
    damaged = Damaged(tmp_path / "dataset", format, *places)
    with damaged.dataset as dataset:
        result = dataset.append(map(damaged.datum, range(5)), outcomes=True)
        assert (result.imported, result.duplicates, result.replaced) == (1, 4 - len(places), len(places))
        assert [each.status for each in result.outcomes or ()][-1] == "imported"
        assert damaged.file.read_bytes()[8:].startswith(damaged.whole[8:])
        assert damaged.states(accurate=True) == []
        found = [*dataset.query("")]
        assert [each.location for each in found][:4] == damaged.places
        assert len(found) == 5


@pytest.mark.parametrize("format", KINDS)
def test_an_append_of_some_of_the_damaged_data_changes_nothing(format: str, tmp_path: Path) -> None:
    damaged = Damaged(tmp_path / "dataset", format, 45, -4)
    before = damaged.file.read_bytes()
    with damaged.dataset as dataset:
        assert dataset.append([damaged.datum(3)]).duplicates == 1
        assert damaged.file.read_bytes() == before
        assert damaged.states() == ["CORRUPTED"]


def test_other_values_of_damaged_data_are_duplicates(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path / "dataset", "vm2", -12)
    with damaged.dataset as dataset:
        datum = damaged.datum(3)
        assert dataset.append([ondisk.Datum(datum.reftime, data=datum.data.replace(b"3.5", b"3.6"))]).duplicates == 1
        assert damaged.states() == ["CORRUPTED"]


@pytest.mark.check
@pytest.mark.parametrize("format", KINDS)
def test_killed_at_each_call_an_append_that_mends_loses_nothing_and_can_be_repeated(
    format: str, tmp_path: Path
) -> None:
    for call in count():
        damaged = Damaged(tmp_path / str(call), format, -4)
        whole = [*damaged.content_of(range(3))]
        try:
            with killed_at(call):
                assert damaged.dataset.append([damaged.datum(3)]).replaced == 1
        except Killed:
            is_killed = True
        else:
            is_killed = False
        with contextlib.suppress(Killed):
            damaged.dataset.close()
        with ondisk.open(damaged.dataset.path) as dataset:
            assert [each.data for each in dataset.query("reftime: <2026-11-20T03:00")] == whole
            dataset.fix()
            dataset.append([damaged.datum(3)])
            assert [each.data for each in dataset.query("")] == [*damaged.content_of(range(4))]
            assert not [each for each in dataset.check(True) if "CORRUPTED" in each.state.names]
        if not is_killed:
            assert call > 3
            return


def test_a_file_with_other_names_keeps_its_bytes_there(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path / "dataset", "vm2", -4)
    os.link(damaged.file, tmp_path / "backup")
    before = damaged.file.read_bytes()
    with damaged.dataset as dataset:
        assert dataset.append([damaged.datum(3)]).replaced == 1
        assert (tmp_path / "backup").read_bytes() == before
        assert damaged.file.read_bytes() == damaged.whole
        assert damaged.states(accurate=True) == []


def test_damage_that_no_check_has_found_is_not_looked_for(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path / "dataset", "vm2", -4)
    with damaged.dataset as dataset:
        dataset.append([damaged.datum(3)])
        rot(damaged.file, damaged.whole.replace(b"3.5", b"9.5"))
        assert dataset.append([damaged.datum(3)]).duplicates == 1
