from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL

START = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"step": "daily", "unique": ["key"], "replace": "yes", "fields": {"key": "integer"}}
KINDS = [{"format": "jsonl"}, {"format": "seg"}, {"format": "seg", "compression": "none"}, {"format": "blob"}]


def some(kind: dict[str, Any], day: int, version: int, *keys: int) -> list[Datum]:
    texts = [f"{key} {version} ".encode() * 50 for key in keys]
    contents = texts if kind["format"] == "blob" else [{"text": text.decode()} for text in texts]
    return [Datum(START.replace(day=day), {"key": key}, each) for key, each in zip(keys, contents, strict=True)]


def kept(dataset: ondisk.Dataset) -> list[str]:
    return [each.segment.rpartition(".")[0] for each in dataset.quarantine]


@pytest.fixture(params=KINDS, ids=["jsonl", "lz4", "plain", "blob"])
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def path(tmp_path: Path, kind: dict[str, Any]) -> Path:
    with ondisk.create(tmp_path / "dataset", CONFIG | kind) as dataset:
        dataset.append(some(kind, 20, 1, 1, 2, 3))
    return tmp_path / "dataset"


def test_what_was_replaced_through_ondisk_is_not_kept_while_the_index_says_so(path: Path, kind: dict[str, Any]) -> None:
    with ondisk.open(path) as dataset:
        dataset.append(some(kind, 20, 2, 2))
    (path / SENTINEL).touch()
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert kept(dataset) == []


def test_with_a_lost_index_it_is_kept_once(path: Path, kind: dict[str, Any]) -> None:
    with ondisk.open(path) as dataset:
        dataset.append(some(kind, 20, 2, 2))
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert kept(dataset) == ["2026/11-20"]
    (path / SENTINEL).touch()
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.repack()
        assert kept(dataset) == ["2026/11-20"], "the first fix has explained it"


def test_an_equal_datum_stored_twice_is_a_second_copy(path: Path, kind: dict[str, Any]) -> None:
    with ondisk.open(path) as dataset:
        dataset.append(some(kind, 20, 1, 2, 3))
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.repack()
        assert kept(dataset) == []
        assert sorted(each.metadata["key"] for each in dataset.query()) == [1, 2, 3]


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize(("version", "is_kept"), [(1, False), (2, True)])
def test_a_file_of_which_nothing_counts_goes_to_quarantine_if_it_differs(
    path: Path, kind: dict[str, Any], index: str, version: int, is_kept: bool
) -> None:
    with ondisk.create(path.parent / "other", CONFIG | kind) as other:
        other.append(some(kind, 20, version, 1, 2))
    extension = kind["format"]
    (path.parent / f"other/2026/11-20.{extension}").rename(path / f"2026/11-21.{extension}")
    if index == "lost":
        lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert kept(dataset) == ["2026/11-21"] * is_kept
        dataset.repack(second_copies=True)
        assert len(list(dataset.query())) == 3
        assert not (path / f"2026/11-21.{extension}").exists()
