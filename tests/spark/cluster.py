"""A cluster of Spark's own on loopback: a master, workers, and drivers, each in a session of processes of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
TIMEOUT = 300  # seconds: for what takes some ten on a machine that has nothing else to do


class Cluster:
    """A master and workers, started through `spark-class` of the package; all that was started ends with the block.

    Attributes:
        master: what a session is given.
        workers: their processes, one core each.
    """

    def __init__(self, folder: Path, java: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self.folder = folder
        self.master = ""
        self.workers: list[subprocess.Popen[str]] = []
        self._class = str(home / "bin/spark-class")
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_TOOL_OPTIONS": java,
            "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._environment.pop("PYSPARK_GATEWAY_PORT", None)
        self._names = iter(range(1_000_000))
        self._hosts = cycle(range(2, 255))
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            stack.callback(self._ends.close)
            place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            _, self.master = self._service("Starting Spark master at (spark://[0-9.:]+)", "master.Master", *place)
            self.heal()
            stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ends.close()

    def heal(self, workers: int = 2) -> None:
        """Start workers until there are so many."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < workers:
            host = f"127.0.0.{next(self._hosts)}"  # each its own: Spark runs no task twice on one
            place = ["--cores", "1", "--memory", "1g", "--host", host, "--webui-port", "0"]
            place += ["--work-dir", str(self.folder / "work"), self.master]
            worker, _ = self._service("(Successfully registered) with master", "worker.Worker", *place)
            self.workers.append(worker)

    def kill_worker_of(self, pid: int) -> None:
        """Kill the worker that a process belongs to, with all its executors and their Python processes."""
        session = os.getsid(pid)
        [worker] = [each for each in self.workers if each.pid == session]
        _end(worker)

    def start(self, name: str, **arguments: Any) -> Driver:
        """Start a driver; its result is that of a function of `driver.py`, called with a session."""
        command = [sys.executable, str(TESTS / "spark/driver.py"), self.master, name, json.dumps(arguments)]
        log = self._log("driver")
        printed = log.with_suffix(".json")
        with log.open("w") as errors, printed.open("w") as output:
            return Driver(self._popen(command, output, errors), printed, log)

    def run(self, name: str, **arguments: Any) -> Any:
        """Run a driver to its end; see `start`."""
        return self.start(name, **arguments).result()

    def _service(self, pattern: str, name: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        """Start a part of Spark's, and wait until it says that it is there."""
        return self._started(pattern, name, [self._class, f"org.apache.spark.deploy.{name}", *arguments])

    def _started(self, pattern: str, name: str, command: list[str]) -> tuple[subprocess.Popen[str], str]:
        log = self._log(name)
        process = self._popen(command, subprocess.PIPE, subprocess.STDOUT)
        assert process.stdout is not None
        patience = threading.Timer(TIMEOUT, _end, [process])
        patience.start()
        try:
            with log.open("w") as file:
                found = None
                while found is None:
                    line = process.stdout.readline()
                    assert line, f"{name} ended:\n{log.read_text()}"
                    file.write(line)
                    found = re.search(pattern, line)
        finally:
            patience.cancel()
        thread = threading.Thread(target=_copy, args=[process.stdout, log], daemon=True)
        thread.start()
        self._ends.callback(thread.join)  # ends with the process, which is ended before it
        self._ends.callback(_end, process)
        return process, found[1]

    def _popen(self, command: list[str], stdout: Any, stderr: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdout=stdout, stderr=stderr, text=True, env=self._environment, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip
        self._ends.callback(_end, process)
        return process

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._names)}.log"


class Driver:
    """A driver that runs."""

    def __init__(self, process: subprocess.Popen[str], printed: Path, log: Path) -> None:
        self.process = process
        self._printed = printed
        self._log = log

    def result(self) -> Any:
        """Wait for its end, and return the result of its function."""
        try:
            assert self.process.wait(TIMEOUT) == 0, self._log.read_text()
        finally:
            self.kill()
        return json.loads(self._printed.read_text().splitlines()[-1])

    def kill(self) -> None:
        """Kill it, its JVM and its Python processes."""
        _end(self.process)


class Gate:
    """Where tasks wait until they are let through, or killed.

    Attributes:
        folder: what `wait_at` is given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Gate:
        os.mkfifo(self.folder / "reached")
        self._reached = os.open(self.folder / "reached", os.O_RDWR)  # so that nobody waits for the other end
        self._gate = (self.folder / "gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        return self

    def __exit__(self, *error: Any) -> None:
        self._gate.close()
        os.close(self._reached)

    def wait(self, driver: Driver) -> int:
        """Wait until a task of a driver arrives, and return its process."""
        driver_ended = os.pidfd_open(driver.process.pid)
        try:
            ready, _, _ = select.select([self._reached, driver_ended], [], [], TIMEOUT)
        finally:
            os.close(driver_ended)
        if self._reached not in ready:
            raise AssertionError(f"no task came to the gate: {driver.result()}")
        return int(os.read(self._reached, 10))

    def open(self) -> None:
        """Let all through, from now on."""
        fcntl.flock(self._gate, fcntl.LOCK_UN)


def wait_at(folder: Path) -> None:
    """Wait at a gate. In a task."""
    descriptor = os.open(folder / "reached", os.O_WRONLY)
    os.write(descriptor, b"%10d" % os.getpid())  # ten bytes are written, and read, at once
    os.close(descriptor)
    with (folder / "gate").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _copy(lines: Any, log: Path) -> None:
    with log.open("a") as file, lines:
        for line in lines:
            file.write(line)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill all processes of a session, and wait for them to be gone."""
    while pids := [*members(process.pid)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def members(session: int) -> Iterator[int]:
    """Return the processes of a session that live; Spark's Python daemons have process groups of their own."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, found, *_ = place.read_text().rpartition(")")[2].split()
            if state not in "ZX" and int(found) == session:
                yield int(place.parent.name)
