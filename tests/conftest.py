"""Settings of all tests: hypothesis profiles, and fixtures.

pytest                              the profile "ci": the same examples every time
pytest --hypothesis-profile=soak    the long run, with other examples each time; or ONDISK_HYPOTHESIS=soak

`make soak` runs the slow tests and those that draw examples so, within an hour on two idle cores. Its two numbers of
examples are those below. A test with a number of its own keeps that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from worlds import POINTS

import ondisk
from ondisk.filesystem import Directory

_SLOW_STARTS = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, max_examples=100, suppress_health_check=_SLOW_STARTS
)
settings.register_profile(
    "soak", deadline=None, max_examples=1_000, suppress_health_check=_SLOW_STARTS, print_blob=True
)
# For each state machine. There are some 25, and an example of 100 steps takes almost a second.
settings.register_profile("machines", settings.get_profile("soak"), max_examples=40, stateful_step_count=100)
settings.load_profile(os.environ.get("ONDISK_HYPOTHESIS", "ci"))

# A shell that starts the tests in the background makes them ignore SIGINT, and so would the commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end how many points were swept: a sweep that silently became short is no proof."""
    swept: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == POINTS:
                swept[report.nodeid.partition("::")[0]] += value
    for file, points in sorted(swept.items()):
        terminalreporter.write_line(f"{file}: {points} points killed, failed or cut")


@pytest.fixture
def open_files(tmp_path: Path) -> Callable[[], int]:
    """Count the descriptors of this process that are open below tmp_path."""

    def count() -> int:
        found = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the one of this listing
                found += descriptor.readlink().is_relative_to(tmp_path)
        return found

    return count


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """Open tmp_path."""
    with Directory.open(tmp_path) as directory:
        yield directory


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """Make a folder on another filesystem than tmp_path."""
    for place in map(Path, ("/dev/shm", "/tmp", "/var/tmp")):
        if os.access(place, os.W_OK) and place.stat().st_dev != tmp_path.stat().st_dev:
            with tempfile.TemporaryDirectory(prefix="ondisk-", dir=place) as made:
                yield Path(made)
            return
    pytest.skip("only one filesystem can be written to here")


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Callable[..., ondisk.Dataset]]:
    """Make datasets below tmp_path, of jsonl by days unless told otherwise, and close them behind the test."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "dataset", **values: Any) -> ondisk.Dataset:
            config = {"format": "jsonl", "step": "daily"} | values
            return stack.enter_context(ondisk.create(tmp_path / name, config))

        yield make
