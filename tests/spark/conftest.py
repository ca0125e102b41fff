"""One Spark session for all tests here; what needs it is marked `spark`, and runs in one process."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'ondisk[spark]'")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give a session as people have it."""
    if shutil.which("java") is None:
        pytest.skip("Java is missing")
    from ondisk.spark import session

    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = session(
            "local[2]",
            spark__driver__memory="1g",
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__host="127.0.0.1",
            spark__ui__enabled="false",
            spark__sql__shuffle__partitions="2",
            spark__sql__warehouse__dir=str(folder / "warehouse"),
            spark__local__dir=str(folder / "local"),
        )
        started.sparkContext.setLogLevel("OFF")
    yield started
    started.stop()


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Let Spark hand its filters to those readers that take them."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.set(name, "false")
