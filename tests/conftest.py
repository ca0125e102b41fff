"""Settings of all tests: which `make test` runs, hypothesis profiles, and fixtures.

`make test` runs every test, but in those of `CASES` only some cases of each parametrized test: those that differ
by format or accident find the same faults. Where each case keeps another promise, the test has the mark `each`, and all
of them run. The others, and the longest tests, have the mark `check`, and `make check` runs them: in the folders of
`CHECKED` some of them, and `make soak` the rest.

pytest                              the profile "ci", also of `make check`: the same examples every time
pytest --hypothesis-profile=few     what `make test` draws: some of them
pytest --hypothesis-profile=soak    the long run, with other examples each time; or ONDISK_HYPOTHESIS=soak

`make soak` runs the slow tests and those that draw examples so, within 90 minutes on two cores. Its two numbers of
examples are those below. Costly ones draw at most so many, see `drawn.up_to`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from worlds import POINTS

import ondisk
from ondisk.filesystem import Directory

CASES = {"accidents": 1, "backup": 1, "cli": 1, "concurrency": 1, "crash": 1, "dataset": 1, "files": 1, "formats": 2,
         "index": 2, "maintenance": 1, "pipeline": 1, "properties": 2, "protocol": 1, "queue": 1, "replication": 1,
         "security": 1, "server": 1, "spark": 1, "staging": 1, "stateful": 1, "tables": 2, "test_readme.py": 1,
         "workers": 1}  # fmt: skip
"""Folder or file → how many cases of each parametrized test `make test` runs, spread evenly over all of them."""
CASES_OF = {"test_nothing_is_lost_and_nothing_is_wrong": 12, "test_a_segment_of_the_index_is_diagnosed": 100,
            "test_the_longest_expressions_are_read_or_refused_quickly": 4}  # fmt: skip
"""The same for single tests; those of the second take no time."""
CHECKED = {"accidents": 2, "backup": 3, "concurrency": 2, "crash": 2, "dataset": 3, "formats": 10, "maintenance": 2,
           "protocol": 6, "queue": 6, "replication": 2, "security": 2, "spark": 1, "stateful": 2,
           "tables": 10}  # fmt: skip
"""Folder → how many cases of each parametrized test `make check` runs, if not all."""
CHECKED_OF = {"test_a_match_that_looks_mistaken_gets_a_note": 20,
              "test_accidents_and_verbs_in_any_order_keep_the_law": 1,
              "test_conditions_over_one_type_select_the_same_in_sql_and_in_python": 4,
              "test_nothing_is_lost_and_nothing_is_wrong": 30,
              "test_the_examples_print_what_the_page_says_and_need_no_other_page": 100}  # fmt: skip
"""The same for single tests; those of the pages are all of them."""

LONG = ("slow", "crash", "cluster")
"""The marks of the tests that neither of the two runs."""

_SLOW_STARTS = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, max_examples=15, suppress_health_check=_SLOW_STARTS
)
settings.register_profile("few", settings.get_profile("ci"), max_examples=8)
settings.register_profile("soak", deadline=None, max_examples=400, suppress_health_check=_SLOW_STARTS, print_blob=True)
# For each state machine. There are some 60, and an example of 100 steps takes almost a second.
settings.register_profile("machines", settings.get_profile("soak"), max_examples=20, stateful_step_count=100)
settings.load_profile(os.environ.get("ONDISK_HYPOTHESIS", "ci"))

HERE = Path(__file__).parent

# A shell that starts the tests in the background makes them ignore SIGINT, and so would the commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let collections of garbage leave out the tests themselves: they take longer than what some tests measure."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Mark the cases that only `make check` runs, and drop those that -m does not select.

    Most cases are slow, and pytest would look at each of them a dozen times before it leaves them out.
    """
    made = yield
    if not isinstance(made, list):
        return made
    items = [each for each in made if isinstance(each, pytest.Function)]
    cases = [each for each in items if hasattr(each, "callspec") and each.get_closest_marker("slow") is None]
    if cases:
        name, folder = cases[0].originalname, cases[0].path.relative_to(HERE).parts[0]
        some = len(cases) if cases[0].get_closest_marker("each") else CASES.get(folder, len(cases))
        kept = _spread(CASES_OF.get(name, some), cases)
        checked = _spread(CHECKED_OF.get(name, CHECKED.get(folder, len(cases))), cases)
        for at, item in enumerate(cases):
            if at not in kept:
                item.add_marker(pytest.mark.check if at in checked else pytest.mark.slow)
    config = collector.config
    if any("::" in each for each in config.args):  # pytest must know the name of a test that it does not select
        return made
    dropped = [each for each in LONG if f"not {each}" in config.option.markexpr]
    return [item for item in made if not any(map(item.get_closest_marker, dropped))]


def _spread(wanted: int, cases: list[pytest.Item]) -> set[int]:
    """Return the places of so many cases, the first and the last among them, if there are two."""
    wanted = min(wanted, len(cases))
    return {round(at * (len(cases) - 1) / max(1, wanted - 1)) for at in range(wanted)}


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
