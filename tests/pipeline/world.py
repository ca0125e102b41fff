"""A pipeline of four datasets and a folder, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ondisk
from ondisk.pipeline.run import Pipeline

CONFIG = """
input = "incoming"
datasets = ["low", "high"]
error = "error"
duplicates = "duplicates"
maintenance = false
"""
DATASET = {"format": "jsonl", "step": "daily", "unique": ["reftime", "station"], "fields": {"station": "integer"}}
KEPT = {"format": "jsonl", "step": "daily"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(ondisk.__file__).parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}


def line(station: object, hour: int = 6, note: str = "") -> str:
    text = json.dumps(station)
    return f'{{"reftime": "2026-11-20T{hour:02}:00:00Z", "station": {text}, "note": "{note}"}}\n'


def create(folder: Path) -> Path:
    """Create a pipeline in a folder, with no files yet, and return the folder."""
    ondisk.create(folder / "low", {**DATASET, "filter": "station: <=10"}).close()
    ondisk.create(folder / "high", {**DATASET, "filter": "station: >=10"}).close()
    ondisk.create(folder / "error", KEPT).close()
    ondisk.create(folder / "duplicates", KEPT).close()
    (folder / "incoming").mkdir()
    (folder / "pipeline.toml").write_text(CONFIG)
    return folder


def put(place: Path, name: str, *lines: str) -> None:
    path = place / "incoming" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def run(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "ondisk", "pipeline", str(place / "pipeline.toml"), *options]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def begin(config: Path) -> None:
    """Begin a run, and end it at once."""
    with Pipeline.open(config):
        pass
