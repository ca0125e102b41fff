"""How work is divided into groups and answered."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ondisk
from ondisk.workers import work
from ondisk.workers.work import WorkLost, answered, grouped, process, spread


def test_groups_hold_all_segments_once_in_their_order_and_in_equal_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_LEAST", 0)
    weights = {"large": 10_000} | {f"{n}": n for n in reversed(range(100))}
    groups = [*grouped([*weights], weights, 8)]
    assert groups[0] == ["large"]
    assert [name for group in groups for name in group] == [*weights]
    assert all(sum(weights[name] for name in group) <= sum(weights.values()) // 8 for group in groups[1:])
    assert [len(group) for group in groups[1:]][-1] > len(groups[1])
    assert [*grouped([], {}, 8)] == []
    assert [*grouped(["empty", "too"], {"empty": 0, "too": 0}, 8)] == [["empty", "too"]]


@pytest.mark.parametrize("in_order", [True, False])
def test_each_segment_is_answered_once(monkeypatch: pytest.MonkeyPatch, in_order: bool) -> None:
    monkeypatch.setattr(work, "_LEAST", 0)
    weights = {f"{n}": n for n in range(100)}
    found = spread(weights, lambda names: [{"segment": each} for each in names], lambda: None, 3, in_order=in_order)
    names = [each["segment"] for each in found]
    assert (names if in_order else sorted(names, key=int)) == [*weights]


def test_nothing_runs_after_the_last_answer_that_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_LEAST", 0)
    is_stopped, running = threading.Event(), set()

    def run(names: list[str]) -> list[work.Answer]:
        running.add(names[0])
        if "0" not in names:
            is_stopped.wait(60)
        running.discard(names[0])
        return [{"segment": each} for each in names]

    found = spread({f"{n}": 1000 for n in range(20)}, run, is_stopped.set, 2, in_order=True)
    assert next(found) == {"segment": "0"}
    found.close()
    assert is_stopped.is_set()
    assert running == set()


def test_an_answer_that_a_kill_has_cut_off_is_none() -> None:
    script = r"""
import os, sys
for answer in (b'{"segment": "a"}\n', b'{"segm'):
    sys.stdin.buffer.readline()
    os.write(1, answer)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        answers = answered(child, ["a", "b"])
        assert next(answers) == {"segment": "a"}
        with pytest.raises(WorkLost, match="b: the process that worked on it was killed") as error:
            next(answers)
        assert error.value.name == "b"


def test_modules_in_the_current_folder_are_no_part_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ondisk.create(tmp_path / "weather", {"format": "jsonl", "step": "daily"}).close()
    (tmp_path / "queue.py").write_text("raise SystemExit('this is not the queue of Python')")
    monkeypatch.chdir(tmp_path)
    with process("check", "weather", "", "") as child:
        assert [*answered(child, ["2026/11-20.jsonl"])] != []
