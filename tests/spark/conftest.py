"""One Spark session for all tests here; what needs it is marked `spark`, and runs in one process."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KEYS = f"1 {bytes(range(16)).hex()};2 {bytes(range(32)).hex()}"
"""The keys of encrypted segments that executors have."""


def pytest_collect_file() -> None:
    """Skip this folder without Spark. Were it skipped where this module is imported, naming the folder would fail."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'ondisk[spark]'")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ()) if item.path.parent == HERE else ()
        if "java" in fixtures:
            item.add_marker(pytest.mark.spark)
        if "spark" in fixtures:
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)  # this group takes longest


@pytest.fixture(scope="session")
def java() -> str:
    """Skip what needs Java where there is none that Spark runs with; give options with which it starts fast."""
    found = shutil.which("java")
    said = "" if found is None else subprocess.run([found, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < 17:
        pytest.skip(f"Spark needs Java 17 or newer, and there is {version[1] if version else 'none'}")
    return "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a session like that of a user."""
    from ondisk.spark import session

    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("ONDISK_KEYS", KEYS)
        started = session(
            "local[2]",
            spark__driver__memory="1g",
            spark__driver__extraJavaOptions=java,
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
    """Let Spark hand its filters to the readers of data sources."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.set(name, "false")


def _lines(spark: Any, since: int) -> list[str]:
    """Return the lines of ondisk that Spark has collected, except the first ones."""
    found = spark.tvf.python_worker_logs().where("logger = 'ondisk.spark'").orderBy("ts").collect()
    return [each.msg for each in found][since:]


@pytest.fixture
def logged(spark: Any) -> Iterator[Callable[[], list[str]]]:
    """Let Spark collect what its workers log."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    before = len(_lines(spark, 0))
    yield lambda: _lines(spark, before)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "false")
