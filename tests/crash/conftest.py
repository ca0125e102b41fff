"""Says at the end how many points were swept: a sweep that silently became short is no proof."""

from __future__ import annotations

from collections import Counter

import pytest

POINTS = "points"


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    swept: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == POINTS:
                swept[report.nodeid.partition("::")[0]] += value
    for file, points in sorted(swept.items()):
        terminalreporter.write_line(f"{file}: {points} points killed, failed or cut")
