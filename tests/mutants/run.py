"""Put faults into copies of ondisk, one at a time, and print the share of them that the tests notice.

    python tests/mutants/run.py [WORD …]     only faults whose file or promise contains one of the words

Each fault is put into a copy of the checkout, and the tests that it names run there; they are those of CI. Exits with 1
if fewer than 90 % are noticed, if a test fails without a fault, or if no fault is chosen. The last line is the share.
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
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

from faults import ROOT, Fault, all_faults

WANTED = 0.9
PROCESSES = 2
_TIMEOUT = 600  # seconds; a test that hangs has noticed the fault
_MEMORY = 6 * 1024**3  # bytes of address space, so that a loop without end does not take the whole machine
_COPIED = ("ondisk", "pyspark_ondisk", "migrations", "tests", "docs", "sample_datasets", "benchmarks", "pyproject.toml",
           "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")  # fmt: skip
_PYTEST = ("-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow and not crash")
_FAILED, _NOT_COLLECTED = 1, 2


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

    def failing(self, tests: Sequence[str]) -> str | None:
        """Run tests up to the first one that fails, and return its name; None if all pass.

        Raises:
            RuntimeError: pytest could not run them.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.path), "TMPDIR": str(self._files)}
        command = [sys.executable, *_PYTEST, *tests]
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
                said, _ = process.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"a test that hangs: {tests[0]}"
        shutil.rmtree(self._files, ignore_errors=True)
        self._files.mkdir(exist_ok=True)
        if process.returncode not in (0, _FAILED, _NOT_COLLECTED):
            raise RuntimeError(f"pytest ended with {process.returncode}: {said}")
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
        return None if process.returncode == 0 else failed[0] if failed else said

    def noticing(self, fault: Fault) -> str | None:
        """Return the name of a test that fails with a fault; None if none does."""
        path = self.path / fault.file
        before = path.read_text()
        path.write_text(fault.text(self.path))
        try:
            return self.failing(fault.tests)
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
        survived = _survived(copies, chosen)
    for fault in survived:
        print(f"survived: {fault.file}: {fault.promise}\n    - {_line(fault.old)}\n    + {_line(fault.new)}")
    share = 1 - len(survived) / len(chosen)
    print(f"noticed {len(chosen) - len(survived)} of {len(chosen)} faults: {share:.1%}")
    return int(share < WANTED)


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


def _survived(copies: SimpleQueue[Copy], faults: Sequence[Fault]) -> list[Fault]:
    """Try each fault, and return those that no test notices."""

    def noticing(fault: Fault) -> tuple[str | None, float]:
        copy, begin = copies.get(), time.monotonic()
        try:
            return copy.noticing(fault), time.monotonic() - begin
        finally:
            copies.put(copy)

    survived = []
    with ThreadPoolExecutor(PROCESSES) as pool:
        running = {pool.submit(noticing, fault): fault for fault in faults}
        for number, each in enumerate(as_completed(running), 1):
            fault, (by, seconds) = running[each], each.result()
            result = "SURVIVED" if by is None else f"noticed by {by}"
            print(f"{number}/{len(faults)} {fault.file}: {fault.promise}: {result}, {seconds:.0f} s", flush=True)
            if by is None:
                survived.append(fault)
    return survived


def _line(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
