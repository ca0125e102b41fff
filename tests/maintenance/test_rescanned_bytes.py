"""Data in a changed file that have their reftime, metadata and size, but other bytes, are counted as lost."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from worlds import KINDS, START, Kind

import ondisk
from ondisk import Datum
from ondisk.maintenance.states import Done, Report

BY_NAME = {"ids": lambda kind: kind.name}
LINES = [kind for kind in KINDS if kind.extension != "seg"]
SEGS = [kind for kind in KINDS if kind.extension == "seg"]
COUNT = 400
"""Data of a segment: compressed, they fill several blocks."""


def datum(number: int, kind: Kind, edition: int = 1) -> Datum:
    """Make a datum of a number. Editions differ in some digits, and not in size."""
    reftime = START + timedelta(minutes=number)
    if kind.extension == "vm2":
        return Datum(reftime, data=f"{reftime:%Y%m%d%H%M},{number},227,{edition}.25,,,000000000".encode())
    text = random.Random(1000 * edition + number).randbytes(100).hex()
    return Datum(reftime, {"area": f"VM2,{number}"}, {"n": number, "edition": edition, "text": text})


class Case:
    """A dataset of one segment, of two appends."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        ondisk.create(path, kind.config | {"unique": ["reftime", "area"], "replace": "yes"}).close()
        for half in (range(0, COUNT, 2), range(1, COUNT, 2)):
            self.append(*half)
        self.file = path / f"2026/11-20.{kind.extension}"

    def append(self, *numbers: int, edition: int = 1) -> None:
        with ondisk.open(self.path) as dataset:
            dataset.append(datum(number, self.kind, edition) for number in numbers)

    def delete_and_repack(self, number: int) -> None:
        with ondisk.open(self.path) as dataset:
            assert dataset.delete(f'area: "VM2,{number}"') == 1
            dataset.repack()

    def repack(self) -> Report:
        with ondisk.open(self.path) as dataset:
            return dataset.repack()

    def fix(self) -> Done:
        with ondisk.open(self.path) as dataset:
            (done,) = dataset.fix().segments
        assert isinstance(done, Done)
        assert done.action == "rescan"
        return done

    def data(self) -> dict[int, Any]:
        with ondisk.open(self.path, read_only=True) as dataset:
            return {int(str(each.metadata["area"])[4:]): each.data for each in dataset.query()}

    def info(self, name: str) -> Any:
        with ondisk.open(self.path, read_only=True) as dataset:
            return dataset.info()[name]


@pytest.mark.parametrize("kind", LINES, **BY_NAME)
@pytest.mark.parametrize("number", [0, 7, COUNT - 1])
def test_a_digit_that_an_editor_has_changed_is_counted_once(tmp_path: Path, kind: Kind, number: int) -> None:
    case = Case(tmp_path / "d", kind)
    content = case.file.read_bytes()
    line = datum(number, kind).data if kind.extension == "vm2" else b'"n":%d,"edition":1' % number
    changed = line.replace(b"1.25", b"1.75") if kind.extension == "vm2" else line[:-1] + b"7"
    assert content.count(line) == 1
    case.file.write_bytes(content.replace(line, changed))
    done = case.fix()
    assert done.lost == 1
    assert any("some of its data have other bytes than the stored ones" in reason for reason in done.reasons)
    assert case.info("lost") == 1
    case.file.write_bytes(content)
    assert case.fix().lost == 1  # the index describes what was read before
    assert len(case.data()) == COUNT


@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
def test_a_file_from_before_a_datum_was_replaced_is_counted(tmp_path: Path, kind: Kind) -> None:
    case = Case(tmp_path / "d", kind)
    backup = case.file.read_bytes()
    case.append(7, edition=2)
    case.repack()
    assert case.data()[7] == datum(7, kind, 2).data
    case.file.write_bytes(backup)
    assert case.fix().lost == 1
    assert case.data()[7] == datum(7, kind).data


@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
def test_a_file_with_both_editions_of_a_datum_has_lost_nothing(tmp_path: Path, kind: Kind) -> None:
    case = Case(tmp_path / "d", kind)
    case.append(7, edition=2)
    backup = case.file.read_bytes()
    case.repack()
    case.file.write_bytes(backup)
    assert case.fix().lost == 0
    assert case.data()[7] == datum(7, kind, 2).data


@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
def test_a_file_from_before_a_repack_has_lost_nothing(tmp_path: Path, kind: Kind) -> None:
    """The data are in another order and between others; blocks end elsewhere."""
    case = Case(tmp_path / "d", kind)
    backup = case.file.read_bytes()
    case.delete_and_repack(200)
    case.file.write_bytes(backup)
    done = case.fix()
    assert (done.lost, case.info("lost")) == (0, 0)
    assert case.data() == {number: datum(number, kind).data for number in range(COUNT)}


def test_the_same_data_in_a_file_without_compression_have_lost_nothing(tmp_path: Path) -> None:
    lz4, plain = SEGS
    case = Case(tmp_path / "d", lz4)
    case.file.write_bytes(Case(tmp_path / "other", plain).file.read_bytes())
    assert case.fix().lost == 0
    assert case.data() == {number: datum(number, lz4).data for number in range(COUNT)}


@pytest.mark.parametrize("kind", LINES, **BY_NAME)
def test_sorted_lines_have_lost_nothing(tmp_path: Path, kind: Kind) -> None:
    case = Case(tmp_path / "d", kind)
    case.file.write_bytes(b"".join(sorted(case.file.read_bytes().splitlines(keepends=True), reverse=True)))
    assert case.fix().lost == 0


@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
def test_a_backup_in_the_place_of_a_damaged_file_has_lost_nothing(tmp_path: Path, kind: Kind) -> None:
    case = Case(tmp_path / "d", kind)
    backup = case.file.read_bytes()
    case.file.write_bytes(backup[: len(backup) // 2] + bytes(100) + backup[len(backup) // 2 + 100 :])
    assert case.fix().lost > 0
    case.file.write_bytes(backup)
    assert case.fix().lost == 0
    assert case.data() == {number: datum(number, kind).data for number in range(COUNT)}
