"""Fixtures of the tests of pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.world import create


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return create(tmp_path)
