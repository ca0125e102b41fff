"""Marks the tests that wait, see `waiting.py`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from .table import Accident
from .waiting import WAITING

HERE = Path(__file__).parent
WAITS = [
    (name, pattern, reason)
    for key, reason in WAITING.items()
    for name, patterns in [key.split("/")]
    for pattern in patterns.split()
]
UNSURE = "other cases of this accident wait, see waiting.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == HERE:
            mark(item)


def mark(item: pytest.Function) -> None:
    """Mark a test that waits: it must fail. Of an accident that waits, nobody has looked at each slow case."""
    name, case = names(item)
    reasons = [reason for waits, pattern, reason in WAITS if waits == name and fnmatchcase(case, pattern)]
    is_slow = item.get_closest_marker("slow") is not None
    if reasons:
        item.add_marker(pytest.mark.xfail(strict=not is_slow, reason=reasons[0]))
    elif is_slow and any(waits == name for waits, _, _ in WAITS):
        item.add_marker(pytest.mark.xfail(strict=False, reason=UNSURE))


def names(item: pytest.Function) -> tuple[str, str]:
    """Return the name of a test's accident, and its case: kind, place and order, or the parameters of another test."""
    case = item.callspec.id if hasattr(item, "callspec") else ""
    accident = item.callspec.params.get("accident") if case else None
    if isinstance(accident, Accident):
        return accident.name, case.removeprefix(f"{accident.name}-")
    return item.originalname, case
