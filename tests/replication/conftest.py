"""A dataset, and the path of its replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from ondisk import Dataset


@pytest.fixture
def source(create) -> Dataset:
    return create("source", fields={"a": "integer"}, unique=["reftime", "a"], replace="yes")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replica"
