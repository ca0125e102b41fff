"""The command `ondisk adopt`."""

from __future__ import annotations

import json

import pytest
from formats.diskqueue.beats_queue import Beat
from formats.diskqueue.segments import Event

import ondisk
from ondisk.cli import main

NS = 1_795_154_400_000_000_000


@pytest.fixture
def queue(tmp_path):
    with Beat(tmp_path / "queue", segment_size=300) as beat:
        beat.publish(*(Event(NS + n, 0, {"n": n}, {"text": f"number {n}"}) for n in range(12)))
    return tmp_path / "queue"


def test_without_yes_nothing_is_written(queue, capsys):
    before = sorted(queue.iterdir())
    assert main(["adopt", str(queue), "--field", "n=integer"]) == 9
    assert "3 segments to read; --yes does it" in capsys.readouterr().out
    assert sorted(queue.iterdir()) == before
    assert main(["adopt", str(queue), "--field", "n=integer", "--unique", "n", "--index", "n", "--yes", "--json"]) == 0
    *segments, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["segment"] for each in segments] == ["0.seg", "1.seg", "2.seg"]
    assert summary["summary"]["ok"] == 3
    with ondisk.open(queue) as dataset:
        assert (dataset.config.unique, dataset.config.index) == (("n",), ("n",))


def test_what_beats_has_removed_is_no_finding(queue, capsys):
    assert main(["adopt", str(queue), "--yes"]) == 0
    with Beat(queue) as beat:
        beat.acknowledge(6)
    assert main(["check", str(queue)]) == 0
    assert "1 segment read and removed by the consumer of the queue" in capsys.readouterr().out
    assert main(["fix", str(queue)]) == 9
    assert "1 segment to fix; --yes does it" in capsys.readouterr().out
    assert main(["fix", str(queue), "--yes"]) == 0
    assert "0.seg: OK: the consumer of the queue has read and removed it" in capsys.readouterr().out


def test_a_field_that_is_declared_twice_is_refused(queue, capsys):
    assert main(["adopt", str(queue), "--field", "n=integer", "--field", "n=text"]) == 3
    assert "declared twice" in capsys.readouterr().err
