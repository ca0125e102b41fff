"""Measurements of replication: a pull over loopback HTTP against `cp` of the same segments and a rebuild of the index.

The server is a process of its own; both share the machine with the puller. The floor has no server, does not sync, and
notices no change of the source while it copies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import observations
from measure import Bench, best
from server import started

import ondisk
from ondisk.replication import Replica

MIB = 1024 * 1024


class ReplicateBench(Bench):
    """All measurements of replication, in one directory.

    Args:
        count: number of small data, and kilobytes of the large ones.
    """

    def run(self) -> None:
        source = self.folder / "observations.vm2"
        observations.write(source, self.count)
        with ondisk.create(self.folder / "small", observations.CONFIG) as dataset:
            dataset.append_file(source)
        self.pull("pull of small data", dataset.path, self.count)
        config = {"format": "seg", "step": "yearly", "compression": "none"}
        with ondisk.create(self.folder / "large", config) as dataset:
            piece = os.urandom(4 * MIB)
            dataset.append(
                ondisk.Datum(observations.BEGIN, {}, piece) for _ in range(max(1, self.count * 1000 // len(piece)))
            )
            count = dataset.info()["count"]
        self.pull("pull of large data", dataset.path, count)

    def pull(self, name: str, source: Path, count: int) -> None:
        with started("-m", "ondisk", "serve", str(source), "--bind", "127.0.0.1:0", "--json") as served:
            (url,) = dict(served["datasets"]).values()  # type: ignore[call-overload]

            def floor() -> None:
                target = self.new_path("copy")
                subprocess.run(["cp", "-r", source, target], check=True)
                for each in target.glob("index.sqlite*"):
                    each.unlink()
                with ondisk.open(target) as copy:
                    copy.fix()
                    assert copy.info()["count"] == count
                shutil.rmtree(target)

            def ours() -> None:
                target = self.new_path("replica")
                with Replica.create(target, url) as replica:
                    assert replica.pull().stored == count
                shutil.rmtree(target)

            self.report.ratio(name, *best(self.rounds, floor, ours), 1.5, count)
