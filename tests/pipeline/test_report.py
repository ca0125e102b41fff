"""The report of a run says what is left to do, and its exit code the worst of it."""

from __future__ import annotations

import pytest

from ondisk.dataset.append import AppendResult
from ondisk.pipeline import PipelineReport


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (PipelineReport("it", imported=5, again={"low": 1}), 0),
        (PipelineReport("it", dry_run=True, imported=5), 9),
        (PipelineReport("it", dry_run=True, again={"low": 1}), 9),
        (PipelineReport("it", lacking={"low": 1}), 8),
        (PipelineReport("it", damaged=1), 8),
        (PipelineReport("it", datasets={"low": AppendResult(refused=1)}), 8),
        (PipelineReport("it", datasets={"low": AppendResult(kept=["2026/.quarantine/item"])}), 9),
    ],
)
def test_the_exit_code_says_what_is_left_to_do(report: PipelineReport, code: int) -> None:
    assert report.exit_code == code


def test_a_file_that_was_not_read_counts_with_its_own_exit_code() -> None:
    report = PipelineReport("it", damaged=1)
    report.add("a", {"left": "Input/output error", "code": 50})
    assert (report.failed, report.imported, report.exit_code) == ([("a", "Input/output error")], 0, 50)
