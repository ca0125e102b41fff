"""Compare the CPU time of two checkouts of ondisk, in turns, and print the median ratio of each measurement.

    python benchmarks/compare.py BEFORE AFTER [--data 200000] [--rounds 15] [--most 1.05]

BEFORE and AFTER are folders that contain the package `ondisk`. Each has a process of its own, which does one
measurement at a time; which of the two goes first changes from round to round. CPU time counts, as it depends less than
elapsed time on what else runs. Exits with 9 if a median ratio is above `--most`.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count as counter
from itertools import islice
from pathlib import Path
from typing import Any

import observations

LOOK_UPS = 500
CHECKS = 5


class Worker:
    """Does the measurements with the ondisk that it imports, in a folder of its own."""

    def __init__(self, folder: Path, source: Path) -> None:
        import ondisk  # here, as only a worker knows which checkout it measures

        self._ondisk = ondisk
        self._source = source
        self._folder = folder
        self._numbers = counter()
        self._dataset = self._imported()
        self._keys = [(each.reftime, each.metadata) for each in self._dataset.query(limit=LOOK_UPS)]

    def _imported(self) -> Any:
        dataset = self._ondisk.create(self._folder / f"dataset-{next(self._numbers)}", observations.CONFIG)
        dataset.append_file(self._source)
        return dataset

    def import_(self) -> None:
        self._imported().close()

    def query(self) -> None:
        for datum in self._dataset.query():
            _ = datum.data

    def look_up(self) -> None:
        for reftime, metadata in self._keys:
            next(self._dataset.query(reftime=reftime, **metadata))

    def check(self) -> None:
        for _ in range(CHECKS):
            assert self._dataset.check().ok

    def archive_half(self) -> None:
        """Begin a dataset whose first half is archived."""
        self._dataset.close()
        self._dataset = self._imported()
        root = self._dataset.path
        segments = sorted(str(each.relative_to(root)) for each in root.glob("*/*.vm2"))
        self._dataset.archive(*segments[: len(segments) // 2])

    def delete(self) -> None:
        assert self._dataset.delete("area: VM2,105")

    def append_late(self) -> None:
        """Append data of times that are archived."""
        with self._source.open("rb") as lines:
            late = b"".join(line.replace(b",1", b",9", 1) for line in islice(lines, 0, None, 10))
        assert self._dataset.append_file(io.BytesIO(late), format="vm2").imported

    def lose_index(self) -> None:
        self._dataset.close()
        for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
            for each in self._dataset.path.rglob(name):
                each.unlink()

    def rebuild(self) -> None:
        self._dataset = self._ondisk.open(self._dataset.path)
        self._dataset.fix()
        assert not self._dataset.needs_check

    def serve(self) -> None:
        """Do each measurement that is named on standard input, and print its CPU seconds."""
        works: dict[str, tuple[Callable[[], None], ...]] = {  # the last one is measured
            "import": (self.import_,),
            "query of everything": (self.query,),
            "query of one unique key": (self.look_up,),
            "quick check": (self.check,),
            "query, half is archived": (self.archive_half, self.query),
            "delete, half is archived": (self.archive_half, self.delete),
            "late data of archived days": (self.archive_half, self.append_late),
            "rebuild, half is archived": (self.archive_half, self.lose_index, self.rebuild),
        }
        print("\t".join(works), flush=True)
        for line in sys.stdin:
            *before, work = works[line.strip()]
            for each in before:
                each()
            gc.collect()
            begin = time.process_time()
            work()
            print(time.process_time() - begin, flush=True)


def start(checkout: Path, folder: Path, source: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    command = [sys.executable, __file__, "--worker", str(folder), str(source)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        sys.exit(f"a worker ended with status {process.wait()}")
    return line.rstrip("\n")


def measure(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin is not None
    print(name, file=process.stdin, flush=True)
    return float(answer(process))


def compare(workers: list[subprocess.Popen[str]], rounds: int, most: float) -> int:
    """Print one line for each measurement; return how many ratios are above `most`."""
    missed = 0
    names, _ = (answer(worker).split("\t") for worker in workers)
    for name in names:
        ratios = []
        for turn in range(rounds):
            order = workers if turn % 2 else workers[::-1]
            times = {worker.pid: measure(worker, name) for worker in order}
            before, after = (times[worker.pid] for worker in workers)
            ratios.append(after / before)
        middle = statistics.median(ratios)
        missed += middle > most
        mark = "ok    " if middle <= most else "MISSED"
        print(f"{mark} {name:<27} {middle:6.3f} × before, {min(ratios):.3f} to {max(ratios):.3f}", flush=True)
    return missed


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        Worker(Path(sys.argv[2]), Path(sys.argv[3])).serve()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT", help="before and after")
    parser.add_argument("--data", type=int, default=200_000, help="number of data (default: 200,000)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each measurement (default: 15)")
    parser.add_argument("--most", type=float, default=1.05, help="highest median ratio (default: 1.05)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ondisk-bench-") as folder:
        source = Path(folder, "observations.vm2")
        observations.write(source, options.data)
        workers = [start(path, Path(folder, f"side-{side}"), source) for side, path in enumerate(options.checkouts)]
        try:
            return 9 if compare(workers, options.rounds, options.most) else 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


if __name__ == "__main__":
    sys.exit(main())
