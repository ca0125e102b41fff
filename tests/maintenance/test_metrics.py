"""What maintain reports to a monitoring system."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

import ondisk
from ondisk.errors import NotFound, StorageError
from ondisk.maintenance.maintain import Maintained, maintain
from ondisk.maintenance.metrics import metrics, write
from ondisk.maintenance.states import Done, State

NOW = datetime.now(UTC)


@pytest.fixture
def dataset(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Give a dataset of a segment with two data."""
    dataset = create(fields={"n": "integer"})
    dataset.append([ondisk.Datum(NOW, {"n": n}, {}) for n in (1, 2)])
    return dataset


def test_metrics_have_help_and_type_once_and_a_sample_for_each_dataset(dataset, create):
    create("other").close()
    text = metrics(map(maintain, [dataset.path, dataset.path.parent / "other", "/nowhere"]))
    samples = dict(re.findall(r"^(\w+\{.*\}) (\S+)$", text, re.MULTILINE))
    label = f'dataset="{dataset.path}"'
    assert samples[f'ondisk_segments{{{label},state="ok"}}'] == "1"
    assert samples[f'ondisk_segments{{{label},state="corrupted"}}'] == "0"
    assert samples[f"ondisk_data{{{label}}}"] == "2"
    assert samples[f"ondisk_quarantine_bytes{{{label}}}"] == "0"
    assert samples[f"ondisk_maintain_success{{{label}}}"] == "1"
    assert samples['ondisk_maintain_success{dataset="/nowhere"}'] == "0"
    assert 'ondisk_data{dataset="/nowhere"}' not in samples
    assert float(samples[f"ondisk_maintain_timestamp_seconds{{{label}}}"]) >= NOW.timestamp()
    names = re.findall(r"^# TYPE (\w+) gauge$", text, re.MULTILINE)
    assert names == re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE)
    assert len(names) == len(set(names)) == 11
    assert {name.partition("{")[0] for name in samples} == set(names)
    assert text.endswith("\n")


def test_metrics_of_a_run_that_freed_and_lost():
    result = Maintained(
        "x", done=[Done("a", State.DIRTY, (), "repack", 35), Done("b", State.UNALIGNED, (), "rescan", 0, 7)]
    )
    text = metrics([result])
    assert 'ondisk_freed_bytes{dataset="x"} 35\n' in text
    assert 'ondisk_lost{dataset="x"} 7\n' in text


def test_labels_are_escaped():
    assert 'ondisk_lost{dataset="a\\"b\\\\c\\nd"} 0\n' in metrics([Maintained('a"b\\c\nd')])


def test_a_metrics_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    file = tmp_path / "ondisk.prom"
    write(file, [Maintained("first")])
    with file.open() as before:
        write(file, [Maintained("second\udcff")])
        assert 'dataset="first"' in before.read()
    assert 'dataset="second?"' in file.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["ondisk.prom"]


def test_metrics_that_cannot_be_written_are_an_error(tmp_path):
    with pytest.raises(NotFound, match="no such directory"):
        write(tmp_path / "nowhere/ondisk.prom", [])
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        write(tmp_path / "folder", [])
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
