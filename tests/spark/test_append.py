"""Files that executors read are stored as those that this process reads: the same data, the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ondisk
from ondisk.errors import InvalidInput, NotFound

LINES = {
    "a.vm2": "202611200600,5,227,1.2,,,000000000\n202611200600,7,227,1.4,,,000000000\n",
    "b.vm2": "202611200600,5,227,1.2,,,000000000\n202611210600,5,227,1.3,,,000000000\nno line\n"
    "199911210600,5,227,1.3,,,000000000\n",
    "c.jsonl": '{"reftime": "2026-11-20T07:00:00Z", "metadata": {"area": "VM2,1"}, "data": {"n": 1}}\n',
    "d.vm2": "202611200500,5,227,1.2,,,000000000\n",
}
CONFIG = {"format": "vm2", "step": "daily", "unique": ["reftime", "area"], "fields": {"area": "text"}}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, text in LINES.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in (*LINES, "a.vm2")]  # one twice


def told(result: Any) -> tuple[Any, ...]:
    counts = (result.imported, result.duplicates, result.replaced, result.refused, result.bytes, result.segments)
    return (*counts, result.refusals, result.damage, result.notes)


@pytest.mark.parametrize("config", [{}, {"replace": "yes"}, {"delete_age": 5000}], ids=str)
def test_results_and_data_are_those_of_one_machine(
    spark: Any, tmp_path: Path, files: list[str], config: dict[str, Any]
) -> None:
    with (
        ondisk.create(tmp_path / "dataset", CONFIG | config) as dataset,
        ondisk.create(tmp_path / "alone", CONFIG | config) as alone,
    ):
        results = [(path, told(result)) for path, result in dataset.append_files(files, spark)]
        assert results == [(path, told(alone.append_file(path))) for path in files]
        assert [*dataset.payloads()] == [*alone.payloads()]
        assert dataset.check(True).segments == alone.check(True).segments
        assert not [*dataset.path.glob(".staged/*")]


def test_what_cannot_be_read_ends_the_append_as_on_one_machine(spark: Any, tmp_path: Path, files: list[str]) -> None:
    with ondisk.create(tmp_path / "dataset", CONFIG) as dataset:
        results = []
        with pytest.raises(NotFound, match="missing"):
            results.extend(dataset.append_files([files[0], str(tmp_path / "missing.vm2"), files[3]], spark))
        assert [result.imported for _, result in results] == [2]
        assert dataset.summary().count == 2
        assert not [*dataset.path.glob(".staged/*")]


def test_one_path_is_no_list_of_files(spark: Any, tmp_path: Path) -> None:
    dataset = ondisk.create(tmp_path / "dataset", {"format": "vm2", "step": "daily"})
    with dataset, pytest.raises(InvalidInput, match="paths must be a list of files"):
        dataset.append_files("a.vm2", spark)


@pytest.mark.check
def test_a_queue_takes_files_from_executors_and_is_read_by_them(spark: Any, tmp_path: Path) -> None:
    queue = Path(__file__).parents[2] / "sample_datasets/beats-queue"
    files = [str(queue / name) for name in ("0.seg", "1.seg", "2.seg")]
    with ondisk.create(tmp_path / "queue", {"step": "sequence", "segment_size": 2000}) as dataset:
        assert sum(result.imported for _, result in dataset.append_files(files, spark)) == 29
        places = [(int(each.location.segment[:-4]), each.location.offset) for each in dataset.query()]
        assert len({number for number, _ in places}) > 3
        assert dataset.check(True, spark=spark).is_clean
    frame = spark.read.format("ondisk").load(str(tmp_path / "queue"))
    assert frame.count() == 29
