"""Adopt: makes a Beats disk queue a dataset, where it is.

    0.seg, 1.seg …, state.dat     the queue; stays as it is
    dataset.toml, index.sqlite    what makes it a dataset with the step `sequence`

New segments are stored as the newest one of Beats, but not compressed: when a Beat restarts, it does not read all of a
compressed segment. Beats ignores the files of a dataset, so it can continue to write and read there while no process of
ondisk does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, cast

from ondisk.config import DatasetConfig
from ondisk.dataset.auxiliary_files import CONFIG, check_not_in_place, create_files, filter_of
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.segment_layout import Remark
from ondisk.errors import DatasetExists, InvalidInput, NotFound, OndiskError, SegmentCorrupt, command
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import find
from ondisk.formats.diskqueue.begin_and_end import has_json
from ondisk.formats.diskqueue.draft_versions import header_of
from ondisk.formats.diskqueue.header import MAX_SIZE, VERSION, Header
from ondisk.formats.diskqueue.seg import Seg
from ondisk.formats.diskqueue.state import NAME
from ondisk.maintenance.diagnosis import Circumstances, diagnose
from ondisk.maintenance.dry_run import tried
from ondisk.maintenance.inspect import found_segments
from ondisk.maintenance.observe import look_at, scan
from ondisk.maintenance.states import Action, Diagnosis, Report
from ondisk.queue.consumer_position import beats_name, believed, misplaced_in, newer_than
from ondisk.queue.layout import QueueLayout, astray, followed
from ondisk.segments.file_facts import located
from ondisk.step import in_order

SEQUENCE = {"format": "seg", "step": "sequence"}  # the keys of `dataset.toml` that a queue decides


def adopt(
    path: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make a queue a dataset, and read its segments into the index.

    Args:
        config: keys of `dataset.toml`, such as fields and unique; format and step are those of a queue. New segments
            are encrypted as the newest one unless this has `encryption`, and also have its version and payload unless
            this has any of these keys or compression.
        dry_run: change nothing, and report what would be read.
        progress: called with the name of each segment before it is read.

    Returns:
        What the fix did that has read the segments.

    Raises:
        NotFound: the directory does not exist.
        DatasetExists: it is a dataset already.
        InvalidInput: it contains no queue.
        ConfigError: the configuration is not valid, or not one of a queue.
        ReadOnly: this user may not write there.
        KeyMissing, AuthenticationFailed: the newest segment is encrypted, and its key is not known; nothing is written.
            If it has no data yet, the newest encrypted one with data decides.
        OndiskError: segments could not be read. The dataset exists; fix it again.

    Durability: creates the index, then `dataset.toml`, as `create_files`; then reads the segments, as a fix. A crash
        before `dataset.toml` leaves a queue that is no dataset; a crash after it leaves a dataset, and the next fix
        continues. No segment is ever written to, and `state.dat` only if its position cannot be right.
    """
    config = config or {}
    built = _built(config)
    with _queue(path) as directory:
        built = _built(_as_newest(directory, built, config.keys()) | {**config})
        if dry_run:
            return _planned(directory, built)
        with WritersLock(directory, built.lock_timeout).hold("adopt"):
            _check(directory)
            create_files(directory, built)
    with Dataset.open(path) as dataset:
        return dataset.fix(progress=progress)


def _built(config: Mapping[str, Any]) -> DatasetConfig:
    built = DatasetConfig.from_mapping({**SEQUENCE, **config})
    if not built.is_sequence:
        raise InvalidInput("a queue is adopted with the step sequence", hint='Write step = "sequence".')
    find(built.format)(built)
    filter_of(built)
    return built


def _as_newest(directory: Directory, built: DatasetConfig, given: Set[str]) -> dict[str, Any]:
    """Return the keys of `dataset.toml` with which new segments are stored as the newest one that has a valid header.

    `built` is what is configured so far, `given` what the caller has chosen. Raises KeyMissing or
    AuthenticationFailed if it is encrypted, `given` has no `encryption`, and its data cannot be read.
    """
    files = (name for name, entry in found_segments(directory, built) if entry.kind == "file")
    names = (name for name in files if beats_name(name) == name)
    chosen: dict[str, Any] = {}
    for name in sorted(names, key=lambda each: int(each.removesuffix(".seg")), reverse=True):
        try:
            file = directory.open_to_read(name)
            head = header_of(file.read(0, MAX_SIZE), file.read, max_size=built.max_datum_size)
        except FileNotFoundError:  # Beats has read and removed it
            continue
        except (InvalidInput, SegmentCorrupt) as error:
            if error.context.get("version") == VERSION:
                raise located(error, file.path) from None
            continue
        if head.version == 0 and not has_json(file):
            continue
        chosen = chosen or _stored_as(head, given)
        if "encryption" in given or chosen["encryption"] == "none":
            break
        if head.encrypted and (found := next(scan(name, find(built.format)(built), file), None)) and found.offsets:
            break  # else it has no data, and proves no key
    return chosen


def _stored_as(head: Header, given: Set[str]) -> dict[str, Any]:
    """Return the keys of `dataset.toml` with which new segments are stored as one with this header."""
    stored = head.stored
    chosen: dict[str, Any] = {"encryption": stored["encryption"]}
    if not given & stored.keys():
        chosen["payload"] = "protobuf" if stored["payload"] == "protobuf" else "cbor"
        if head.version in (0, 1):
            chosen["version"] = head.version
    return chosen


@contextlib.contextmanager
def _queue(path: str | os.PathLike[str]) -> Iterator[Directory]:
    try:
        directory = Directory.open(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{os.fspath(path)} is not a directory", hint="Check the path of the queue.") from None
    with directory:
        _check(directory)
        yield directory


def _check(directory: Directory) -> None:
    """Raise unless a directory contains a queue, and is no dataset."""
    check_no_dataset(directory)
    if not is_queue(directory):
        hint = (
            "Check the path: a queue has segments such as 0.seg, and state.dat; a dataset of arkimet has a file config."
            " `ondisk init` makes an empty dataset."
        )
        raise InvalidInput(f"{directory.path} contains no queue, and is no dataset of arkimet", hint=hint)


def check_no_dataset(directory: Directory) -> None:
    """Raise if a folder is a dataset already, or a place of one."""
    check_not_in_place(directory.path)
    if CONFIG in directory.names():
        fix = command("fix", directory.path, "--yes")
        raise DatasetExists(f"{directory.path} is a dataset already", hint=f"{fix} reads what is new in it.")


def is_queue(directory: Directory) -> bool:
    names = directory.names()
    return NAME in names or any(map(beats_name, names))


def _planned(directory: Directory, config: DatasetConfig) -> Report:
    """Return what an adoption would read, and raise as `would_do`."""
    report, format, layout = Report(str(directory.path)), find(config.format)(config), QueueLayout()
    at, consumer = Circumstances(config.step, needs_check=False, layout=layout), believed(directory)
    reading = layout.usage(directory)
    errors: list[OndiskError] = []
    with report.attached(errors):
        for name, entry in sorted(found_segments(directory, config), key=lambda each: in_order(each[0])):
            found = diagnose(name, None, look_at(directory, name, entry, None, format), at, 0)
            found = replace(found, awaited=reading.why_unread(name))
            if found.action == Action.RESCAN:
                found = tried(directory, layout, name, format, found, errors)
            report.add([found])
        wrong = [*astray(directory)]
        if not wrong and consumer is not None:
            wrong += [followed(directory, again) for again in newer_than(directory, consumer)[:1]]
        if not wrong and consumer is not None:
            problem = misplaced_in(directory, cast("Seg", format), consumer)
            wrong += [] if problem is None else [Remark(NAME, (problem,))]
        report.add(map(Diagnosis.of, wrong))
    return report
