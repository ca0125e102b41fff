"""The process that works on segments for a task of Spark: `python -m ondisk.spark.worker VERB PATH STAGED OPTION`.

Names of segments come in, answers on them go out, each a line of JSON. It is a process of its own, since Spark's
Python workers read the index by another SQLite library, see `ondisk.spark.adbc`. When its standard input ends, so does
it, wherever it is: of a task that was killed, nothing is left running.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, astuple
from itertools import count
from queue import SimpleQueue
from typing import IO, Any

from ondisk.dataset.access import Access
from ondisk.dataset.append import BATCH_SIZE, AppendResult, Stored, refuse_old
from ondisk.dataset.archives import Archives
from ondisk.dataset.input_file import parsed
from ondisk.dataset.layout import open_directory, read_config
from ondisk.errors import OndiskError
from ondisk.maintenance.check import wrong_with
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.scanned import Scanned
from ondisk.staging.jobs import STAGED
from ondisk.staging.stage import Stage


def main(verb: str, path: str, staged: str, option: str) -> None:
    """Work until standard input ends.

    Args:
        verb: one of `VERBS`.
        path: of the dataset.
        staged: what the names of the files begin with that are written for the driver to commit.
        option: what else the verb needs.
    """
    names: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(names,), daemon=True).start()
    sink, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        directory = open_directory(path)
        access = Access(directory, read_config(directory), read_only=True)
        access.current()
    except OndiskError as error:
        _answer(sink, error=str(error))
        return
    archives = Archives(access)
    for number in count():
        name = names.get()
        try:
            part, inner = archives.of(name) or (access, name)
            _answer(sink, segment=name, **VERBS[verb](part, inner, f"{staged}{number}", option))
        except OndiskError as error:
            _answer(sink, segment=name, failed=str(error))


def append(access: Access, path: str, staged: str, format: str) -> dict[str, Any]:
    """Stage the data of a file, which is a job of its own."""
    job = staged.removeprefix(f"{STAGED}/").replace("/", "-")
    told = AppendResult()
    with (
        parsed(access, path, format or None, BATCH_SIZE) as (chosen, batches),
        Stage(access.directory, access.config, job, "file") as stage,
    ):
        for batch in batches:
            refuse_old(batch, access.config)
            stage.add(batch, chosen)
            told.add(batch, Stored(imported=len(batch.payloads)))
        done = stage.finish()
    return {
        "job": job,
        "staged": [done.name, done.count, done.built_for],
        "refused": told.refused,
        "refusals": told.refusals,
        "damage": [astuple(each) for each in told.damage],
        "notes": told.notes,
    }


def check(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Read the data of a segment."""
    return {"wrong": wrong_with(access, name, apart=True)}


def fix(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Scan a segment's file."""
    return asdict(Scanned.write(access, name, staged))


def repack(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Write what a segment is to become."""
    written = Written.write(access, name, staged)
    return {**asdict(written), "end": astuple(written.end)}


def pipeline(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Import a file of a pipeline."""
    from ondisk.pipeline.task import import_file

    return import_file(access, name, staged, option)


VERBS: dict[str, Callable[[Access, str, str, str], dict[str, Any]]] = {
    "append": append,
    "check": check,
    "fix": fix,
    "pipeline": pipeline,
    "repack": repack,
}


def _listen(names: SimpleQueue[str]) -> None:
    for line in sys.stdin.buffer:
        names.put(json.loads(line))
    os._exit(0)


def _answer(sink: IO[bytes], **answer: Any) -> None:
    sink.write(json.dumps(answer).encode() + b"\n")
    sink.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
