"""Put faults into copies of ondisk, one at a time, and print the share of them that the tests notice.

    python tests/mutants/run.py [WORD …]     only faults whose file or promise contains one of the words

Each fault is put into a copy of the checkout, where these tests run, up to the first one that fails:

1. those that the fault names, as far as `make test` runs them,
2. those of `make test` that execute a line that it changes, the shortest first; one run with coverage finds them,
3. those that it names, all cases of them: then only `make check` notices it.

Prints the share that `make test` notices, and that which either notices. Exits with 1 if the first is below 90 %, if
a test fails without a fault, or if no fault is chosen.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData
from faults import ROOT, Fault, all_faults

WANTED = 0.9
PROCESSES = 2
_TIMEOUT = 600  # seconds; a test that hangs has noticed the fault
_WHOLE = 1800  # seconds, for all tests of `make test` with coverage
_MEMORY = 6 * 1024**3  # bytes of address space, so that a loop without end does not take the whole machine
_COPIED = ("ondisk", "pyspark_ondisk", "migrations", "tests", "docs", "sample_datasets", "benchmarks", "pyproject.toml",
           "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")  # fmt: skip
_PYTEST = ("-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider")
_ALL = ("-x", "-m", "not slow and not crash and not cluster")
_OF_MAKE_TEST = ("-x", "-m", "not slow and not crash and not cluster and not check", "--hypothesis-profile=few")
_COVERAGE = (
    *_OF_MAKE_TEST[1:],
    "--ignore=tests/spark",
    "--numprocesses=2",
    "--cov=ondisk",
    "--cov-context=test",
    "--cov-report=",
)
_FAILED, _NOT_COLLECTED, _NONE = 1, 2, 5
_MOST = 30  # tests that execute a changed line and are tried


class Executing:
    """Which tests of `make test` execute which lines, from one run with coverage."""

    def __init__(self, copy: Copy) -> None:
        copy.failing((), _COVERAGE, _WHOLE)
        self._data = CoverageData(str(copy.path / ".coverage"))
        self._data.read()
        self._root = copy.path
        self._lines: Counter[str] = Counter()
        for file in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(file).values():
                self._lines.update(contexts)

    def tests(self, fault: Fault) -> list[str]:
        """Return those that execute a line that a fault changes; first those that execute few lines."""
        before = (ROOT / fault.file).read_text().partition(fault.old)[0]
        first = before.count("\n") + 1
        by_line = self._data.contexts_by_lineno(str(self._root / fault.file))
        contexts = {each for at in range(first, first + fault.old.count("\n") + 1) for each in by_line.get(at, ())}
        found = {each.rpartition("|")[0]: self._lines[each] for each in contexts if each}
        return sorted(found, key=found.__getitem__)[:_MOST]


class Copy:
    """A copy of the checkout, with its own folder for the files of tests."""

    def __init__(self, room: Path, number: int) -> None:
        self.path = room / f"copy{number}"
        self._files = room / f"files{number}"
        self._files.mkdir(parents=True)
        self.path.mkdir()
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.path / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, self.path / name)
        # Checked by hash: two versions of a file may have the same size and time.
        compiling = ("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "ondisk")
        subprocess.run([sys.executable, *compiling], cwd=self.path, check=True)

    def failing(self, tests: Sequence[str], options: Sequence[str] = _ALL, seconds: float = _TIMEOUT) -> str | None:
        """Run tests up to the first one that fails, and return its name; None if all pass, or none is selected.

        Raises:
            RuntimeError: pytest could not run them.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.path), "TMPDIR": str(self._files)}
        command = [sys.executable, *_PYTEST, *options, *tests]
        with subprocess.Popen(
            command,
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"a test that hangs: {[*tests]}"
        shutil.rmtree(self._files, ignore_errors=True)
        self._files.mkdir(exist_ok=True)
        if process.returncode == _NONE:
            return None
        if process.returncode not in (0, _FAILED, _NOT_COLLECTED):
            raise RuntimeError(f"pytest ended with {process.returncode}: {said}")
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
        return None if process.returncode == 0 else failed[0] if failed else said

    def noticing(self, fault: Fault, tests: Sequence[str], options: Sequence[str]) -> str | None:
        """Return the name of a test that fails with a fault; None if none does."""
        path = self.path / fault.file
        before = path.read_text()
        path.write_text(fault.text(self.path))
        try:
            return self.failing(tests, options) if tests else None
        finally:
            path.write_text(before)


def main(words: Sequence[str]) -> int:
    chosen = [each for each in all_faults() if not words or any(word in each.file + each.promise for word in words)]
    if not chosen:
        print(f"no fault has {' or '.join(words)} in its file or promise")
        return 1
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with tempfile.TemporaryDirectory(prefix="ondisk-mutants-") as room:
        Path(room).chmod(0o755)  # some tests read as another user
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(PROCESSES):
            copies.put(Copy(Path(room), number))
        if failing := _failing(copies, {test for fault in chosen for test in fault.tests}):
            print(f"these fail without a fault: {', '.join(failing)}")
            return 1
        quick = _tried(copies, chosen, lambda fault: fault.tests, _OF_MAKE_TEST)
        if left := [fault for fault in chosen if fault not in quick]:
            executing = Executing(copy := copies.get())
            copies.put(copy)
            quick |= _tried(copies, left, executing.tests, _OF_MAKE_TEST)
        left = [fault for fault in chosen if fault not in quick]
        noticed = quick | _tried(copies, left, lambda fault: fault.tests, _ALL)
    for fault in left:
        who = "only `make check` notices" if fault in noticed else "survived"
        print(f"{who}: {fault.file}: {fault.promise}\n    - {_line(fault.old)}\n    + {_line(fault.new)}")
    for what, found in {"`make test` or `make check`": noticed, "`make test`": quick}.items():
        print(f"noticed by {what}: {len(found)} of {len(chosen)} faults: {len(found) / len(chosen):.1%}")
    return int(len(quick) / len(chosen) < WANTED)


def _failing(copies: SimpleQueue[Copy], tests: Iterable[str]) -> list[str]:
    """Return a test of each file that fails without a fault.

    Args:
        tests: files, and single tests of files.
    """

    def failing(some: Sequence[str]) -> str | None:
        copy = copies.get()
        try:
            return copy.failing(some)
        finally:
            copies.put(copy)

    by_file = [list(some) for _, some in groupby(sorted(tests), key=lambda each: each.partition("::")[0])]
    with ThreadPoolExecutor(PROCESSES) as pool:
        return [each for each in pool.map(failing, by_file) if each is not None]


def _tried(
    copies: SimpleQueue[Copy],
    faults: Sequence[Fault],
    tests_of: Callable[[Fault], Sequence[str]],
    options: Sequence[str],
) -> dict[Fault, str]:
    """Try each fault, and return those that tests notice, with the name of one that does."""

    def noticing(fault: Fault) -> tuple[str | None, float]:
        copy, begin = copies.get(), time.monotonic()
        try:
            return copy.noticing(fault, tests_of(fault), options), time.monotonic() - begin
        finally:
            copies.put(copy)

    noticed = {}
    with ThreadPoolExecutor(PROCESSES) as pool:
        running = {pool.submit(noticing, fault): fault for fault in faults}
        for number, each in enumerate(as_completed(running), 1):
            fault, (by, seconds) = running[each], each.result()
            result = "not noticed" if by is None else f"noticed by {by}"
            print(f"{number}/{len(faults)} {fault.file}: {fault.promise}: {result}, {seconds:.0f} s", flush=True)
            if by is not None:
                noticed[fault] = by
    return noticed


def _line(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
