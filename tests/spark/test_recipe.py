"""The recipe for a cluster in docs/spark.md is followed as it is written, on this machine, with two workers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_readme import ROOT

from spark.cluster import TIMEOUT, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.xdist_group("cluster")]
INSTALL = "python3 -m venv /opt/ondisk\n/opt/ondisk/bin/pip install 'ondisk[spark]'\n"


class Recipe(Cluster):
    """A folder in which commands of the page are run, with the folders, the host and the port of this test."""

    def __init__(self, folder: Path, java: str) -> None:
        super().__init__(folder, java)
        for name in ("SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_DIRS"):  # as for somebody who only reads the page
            del self._environment[name]
        self._environment |= {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"}
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self._ours = {"/opt/ondisk": sys.prefix, "/data": f"{folder}/data", "/var/tmp/spark": f"{folder}/work"}
        self._ours |= {"node1": "127.0.0.1", "7077": str(port)}
        (folder / "data").mkdir()
        (folder / "sample_datasets").symlink_to(ROOT / "sample_datasets")

    def __enter__(self) -> Recipe:
        return self

    def keep(self, text: str, pattern: str) -> None:
        """Run commands, the last of which does not end, until they print a pattern."""
        self._started(pattern, "recipe", ["bash", "-ec", self.localized(text)])

    def print(self, text: str) -> str:
        """Run commands to their end, and return what they print."""
        command = ["bash", "-ec", self.localized(text)]
        done = subprocess.run(
            command, env=self._environment, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def localized(self, text: str) -> str:
        for theirs, ours in self._ours.items():
            text = text.replace(theirs, ours)
        return text


def test_the_recipe_for_a_cluster_can_be_followed(java, tmp_path):
    if not os.access(Path(sys.prefix, "bin/activate"), os.R_OK):
        pytest.skip("these tests do not run in a venv")
    text = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    section = text[text.index("\n## On a cluster\n") : text.index("\n### What must be the same on all nodes\n")]
    steps = re.findall(r"^```(?:sh|text)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    install, master, worker, job, printed, check, report = steps
    assert install == INSTALL  # that takes minutes and a network; here the venv of the tests is what it makes
    with Recipe(tmp_path, java) as recipe:
        recipe.keep(master, "I have been (elected) leader")
        for _ in range(2):
            recipe.keep(worker, "Successfully (registered) with master")
        assert printed in recipe.print(job)
        assert recipe.print(check).endswith(recipe.localized(report))
