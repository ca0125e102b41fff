"""The process that works on segments or files for a task: `python -m ondisk.workers.worker VERB PATH STAGED`.

It reads an option, which may be longer than an argument, and then names from standard input, and writes answers to
standard output, each as a line of JSON. It needs no Spark; in an executor it is a process of its own because Spark's
Python workers read the index with another SQLite library, see `ondisk.spark.adbc`. It exits at once when its standard
input ends, so a killed task leaves no process behind.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from ondisk.dataset.access import Access
from ondisk.dataset.append import AppendResult, Stored, refuse_old
from ondisk.dataset.auxiliary_files import open_directory, read_config
from ondisk.dataset.input_file import parsed
from ondisk.errors import OndiskError
from ondisk.formats.base import BATCH_SIZE
from ondisk.maintenance.check import wrong_with
from ondisk.maintenance.compare import Scanned
from ondisk.maintenance.new_file import Written
from ondisk.staging.jobs import job_of
from ondisk.staging.stage import Stage


def main(verb: str, path: str, staged: str) -> None:
    """Work until standard input ends. `staged`: the beginning of the names of all files that this process stages."""
    names: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(names,), daemon=True).start()
    sink, sys.stdout = sys.stdout.buffer, sys.stderr
    option = names.get()  # the first line
    for answer in answers(verb, path, staged, option, iter(names.get, None)):
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()


def answers(verb: str, path: str, staged: str, option: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield an answer for each segment or file; only one with `error` if the dataset cannot be opened."""
    try:
        directory = open_directory(path)
        access = Access(directory, read_config(directory), read_only=True)
        access.current()
    except OndiskError as error:
        yield {"error": str(error)}
        return
    for number, name in enumerate(names):
        try:
            yield {"segment": name, **VERBS[verb](access, name, f"{staged}{number}", option)}
        except OndiskError as error:
            yield {"segment": name, "failed": str(error)}


def append(access: Access, path: str, staged: str, format: str) -> dict[str, Any]:
    job = job_of(staged)
    result = AppendResult()
    with (
        parsed(access, path, format or None, BATCH_SIZE) as (chosen, batches),
        Stage(access.directory, access.config, job, "file") as stage,
    ):
        for batch in batches:
            refuse_old(batch, access.config)
            stage.add(batch, chosen)
            result.add(batch, Stored(imported=len(batch.payloads)))
        done = stage.finish()
    return {
        "job": job,
        "staged": [done.name, done.count, done.built_for],
        "refused": result.refused,
        "refusals": result.refusals,
        "damage": result.damage,
        "notes": result.notes,
        "format": chosen.name,
    }


def pipeline(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Stage the data of a file for the datasets of a pipeline."""
    from ondisk.pipeline.divide_file import import_file

    return import_file(access, name, staged, option)


VERBS: dict[str, Callable[[Access, str, str, str], dict[str, Any]]] = {
    "append": append,
    "check": lambda access, name, _staged, _option: {"wrong": wrong_with(access, name, apart=True)},
    "fix": lambda access, name, staged, _option: asdict(Scanned.write(access, name, staged)),
    "pipeline": pipeline,
    "repack": lambda access, name, staged, _option: asdict(Written.write(access, name, staged)),
}


def _listen(names: SimpleQueue[str]) -> None:
    for line in sys.stdin.buffer:
        names.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
