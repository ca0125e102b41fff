"""Adoption of datasets of arkimet: their segments stay as they are, and get the index of ondisk beside them.

    config                        arkimet's configuration, of type ondisk2, iseg or simple
    2007/07-08.grib, …            the segments; none is changed
    index.sqlite                  arkimet's; becomes index.sqlite.arkimet, with -wal and -shm
    .summaries, lock, MANIFEST, *.metadata, *.summary, *.index    arkimet's; stay
    dataset.toml, index.sqlite    what makes it a dataset of ondisk

Source: what arkimet 1.37 writes and reads.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ondisk import step
from ondisk.config import DatasetConfig, toml
from ondisk.dataset.auxiliary_files import SENTINEL, create_files, filter_of
from ondisk.dataset.dataset import Dataset
from ondisk.errors import (
    AlreadyExists,
    ConfigError,
    IndexCorrupt,
    InvalidInput,
    StateError,
    counted,
    shell_words,
    shown,
)
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import find
from ondisk.formats.self_describing import HasItems
from ondisk.index.connection import INDEX, connect_to_read, sqlite_errors
from ondisk.index.index import revision_of
from ondisk.maintenance.states import Diagnosis, Done, Report, State
from ondisk.queue.adopt import check_no_dataset, is_queue
from ondisk.step import ARCHIVE

CONFIG = "config"
ASIDE = f"{INDEX}.arkimet"
"""The name that arkimet's index gets."""

_LONGEST = 1024 * 1024  # bytes of a configuration
_ADOPTED = ("ondisk2", "iseg", "simple")
_OTHERS = ("error", "duplicates", "outbound", "discard", "remote", "file")
_FORMATS = {"grib": "grib", "bufr": "bufr", "vm2": "vm2", "odimh5": "odimh5", "nc": "netcdf"}
_REPLACE = {
    **dict.fromkeys(("", "no", "never"), "no"),
    **dict.fromkeys(("yes", "true", "always"), "yes"),
    "usn": "newer",
}
_STEPS = {each: each for each in ("daily", "weekly", "biweekly", "monthly", "yearly")}
# Commands that convert a segment to a form that ondisk can read, by the end of its name. Without -i, tar would end
# after a member of a multiple of 512 bytes: arkimet writes a block of zeros there.
_UNPACK = {
    ".gz": "gunzip {0}.gz",
    ".tar": "mkdir -p {0} && tar -xif {0}.tar -C {0} && rm {0}.tar",
    ".zip": "unzip -q {0}.zip -d {0} && rm {0}.zip",
    ".grib1": "cat {0}1 >> {0} && rm {0}1",
    ".grib2": "cat {0}2 >> {0} && rm {0}2",
}
_TYPE = re.compile(rb"^\s*type\s*=\s*(\w+)", re.MULTILINE | re.ASCII)
_SENTINEL_TEXT = (
    b"ondisk adopts this dataset of arkimet. Run `ondisk fix DATASET --yes`, with the path of this folder.\n"
)


def is_dataset(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder has a configuration of arkimet, of whatever type."""
    with contextlib.suppress(OSError, InvalidInput), Directory.open(path) as directory:
        found = _TYPE.search(directory.read(CONFIG, _LONGEST))
        return found is not None and found[1].decode().lower() in (*_ADOPTED, *_OTHERS)
    return False


def adopt(
    path: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make a dataset of arkimet one of ondisk, and read its segments into the index. Stop arkimet first.

    Args:
        config: keys of `dataset.toml`. Fields, unique and index are added to those of arkimet's configuration.
        dry_run: change nothing, and report what would be read.
        progress: called with the name of each segment before it is read.

    Returns:
        What the fix did that has read the segments, and what became of arkimet's configuration.

    Raises:
        NotFound: the folder does not exist.
        DatasetExists: it is a dataset of ondisk already.
        InvalidInput: it is also a queue, or has no segments.
        ConfigError: arkimet's configuration cannot be that of a dataset of ondisk, or `config` does not fit it.
        StateError: segments are compressed, in a .tar or .zip, or named .grib1 or .grib2. Nothing is changed; the
            error's `report` has them.
        AlreadyExists: `index.sqlite.arkimet` is taken.
        OndiskError: segments could not be read. The dataset exists; fix it again.

    Durability: renames arkimet's index; writes the sentinel; creates the index and `dataset.toml`, as `create_files`;
        then reads the segments, as a fix, which removes the sentinel last. A crash before `dataset.toml` leaves what
        can be adopted again; a crash after it leaves a dataset that needs a fix. No segment is ever written to.
    """
    with Directory.open(path) as directory:
        built, told, segments = _plan(directory, config or {})
        planned = Report(str(directory.path), segments=[told, *segments])
        planned.sort()
        if packed := planned.held:
            what = f"{counted(len(packed), 'segment', 'is')} in a form that ondisk cannot read; nothing was changed"
            raise StateError(what, hint=packed[0].reasons[-1], segment=packed[0].segment, report=planned)
        if dry_run:
            return planned
        with WritersLock(directory, built.lock_timeout).hold("adopt"):
            check_no_dataset(directory)
            _put_aside(directory)
            directory.replace(SENTINEL, _SENTINEL_TEXT)
            create_files(directory, built)
    with Dataset.open(path) as dataset:
        report = dataset.fix(progress=progress)
    report.segments.append(told)
    report.sort()
    return report


def _plan(directory: Directory, given: Mapping[str, Any]) -> tuple[DatasetConfig, Done, list[Diagnosis]]:
    """Return the configuration of the dataset, what becomes of arkimet's, and what would be done with each segment."""
    check_no_dataset(directory)
    if is_queue(directory):
        hint = "Move the files of one of them to a folder of their own."
        raise InvalidInput(f"{directory.path} has a configuration of arkimet and a queue of Beats", hint=hint)
    segments, values = [*_segments(directory)], _read_config(directory)
    config, ignored = _configuration(values, str(directory.path / CONFIG), segments, given)
    find(config.format)(config)
    filter_of(config)
    told = ["it becomes " + ", ".join(config.to_toml().partition("\n\n")[0].splitlines())]
    if values.get("filter"):
        told.append(f"its filter, for the datasets of a pipeline: filter = {toml(values['filter'])}")
    if ignored:
        told.append(f"ignored: {', '.join(ignored)}")
    planned = [_planned(directory, name, config) for name in segments]
    return config, Done(CONFIG, State.OK, tuple(told), "read"), planned


def _planned(directory: Directory, name: str, config: DatasetConfig) -> Diagnosis:
    plain, packed = _parted(name)
    if packed:
        how = _UNPACK[packed].format(shell_words(directory.path / plain))
        return Diagnosis(name, State.UNALIGNED, (f"only arkimet reads this form; to convert it: {how}",), held=True)
    if step.interval_of(name, config.step) is None:
        return Diagnosis(name, State.CORRUPTED, (f"its name does not fit the step {config.step}",))
    return Diagnosis(name, State.UNALIGNED, ("the index does not know it: arkimet has written it",))


def _segments(directory: Directory) -> Iterator[str]:
    waiting = ["", *(f"{ARCHIVE}/{name}" for name in directory.folders(ARCHIVE))]
    while waiting:
        parent = waiting.pop()
        for entry in directory.entries(parent):
            name = f"{parent}/{entry.name}" if parent else entry.name
            if entry.name.startswith("."):
                continue
            if _format_of(entry.name) is not None:
                yield name
            elif entry.kind == "directory":
                waiting.append(name)


def _parted(name: str) -> tuple[str, str]:
    """Return the name of a segment when it is plain, and how its present name ends if it is packed."""
    packed = next((each for each in _UNPACK if name.endswith(each)), "")
    return name.removesuffix(packed) + (".grib" if packed.startswith(".grib") else ""), packed


def _format_of(name: str) -> str | None:
    stem, _, extension = _parted(_parted(name)[0])[0].rpartition(".")  # also of .grib1.gz
    return _FORMATS.get(extension) if stem else None


def _read_config(directory: Directory) -> dict[str, str]:
    """Return arkimet's configuration; raise ConfigError if it is not a list of keys and values."""
    path = directory.path / CONFIG
    try:
        text = directory.read(CONFIG, _LONGEST).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}", hint="Save it as UTF-8.") from None
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, value = (each.strip() for each in line.partition("="))
        if key.startswith(("#", ";")) or not line.strip():
            continue
        if not (key and equals):
            raise ConfigError(f"{path}, line {number}: {shown(line)} is not `key = value`", hint="Correct that line.")
        values[key] = value
    return values


def _configuration(
    values: Mapping[str, str], place: str, segments: Sequence[str], given: Mapping[str, Any]
) -> tuple[DatasetConfig, list[str]]:
    """Return the configuration of the dataset, and the keys of arkimet's that it has not; `given` are the caller's."""
    left = dict(values)

    def take(key: str, choices: Mapping[str, str], hint: str) -> str:
        value = left.pop(key, "")
        if value.lower() not in choices:
            raise ConfigError(f"{place}: {key} is {shown(value)}, which ondisk cannot adopt", hint=hint, key=key)
        return choices[value.lower()]

    append = "Append its files to a dataset that `ondisk init` makes."
    kind = take("type", dict(zip(_ADOPTED, _ADOPTED, strict=True)), append)
    chosen: dict[str, Any] = {"step": take("step", _STEPS, append), "replace": take("replace", _REPLACE, append)}
    for key in ("archive age", "delete age"):
        if (age := left.pop(key, "-1")) != "-1":
            if not (age.isascii() and age.isdecimal()):
                raise ConfigError(f"{place}: {key} is {shown(age)}, not a number of days", hint="Correct it.", key=key)
            chosen[key.replace(" ", "_")] = int(age)
    formats = [name for name, _ in Counter(filter(None, map(_format_of, segments))).most_common()]
    if kind == "iseg" and left.get("format") in _FORMATS:
        formats = [*dict.fromkeys([_FORMATS[left.pop("format")], *formats])]
    if not formats:
        raise InvalidInput(f"{place}: there are no segments beside it", hint="`ondisk init` makes an empty dataset.")
    unique, index = (_names(left.pop(key, "")) for key in ("unique", "index"))
    if unique or kind != "simple":  # where arkimet has no keys, data are no duplicates
        unique = ["reftime", *unique]
    items = {*unique, *index} - {"reftime"}
    for each in map(find, formats):
        items |= each.items if issubclass(each, HasItems) else set()
    fields: dict[str, Any] = dict.fromkeys(sorted(items), "item")
    if chosen["replace"] == "newer":
        chosen["version_field"], fields["usn"] = "usn", "integer"
    lists = {"unique": unique, "index": index}
    added = {key: [*dict.fromkeys([*own, *given.get(key, ())])] for key, own in lists.items()}
    config = {"format": formats[0], **chosen, **given, **added, "fields": fields | {**given.get("fields", {})}}
    return DatasetConfig.from_mapping(config), sorted(left.keys() - {"filter"})


def _names(value: str) -> list[str]:
    return [name.strip().lower() for name in value.split(",") if name.strip()]


def _put_aside(directory: Directory) -> None:
    """Give arkimet's index another name, unless that is done already.

    Durability: each rename is synced: that of the index first, as arkimet ignores a log without it.
    """
    if directory.inode(INDEX) is not None:
        if _is_ours(directory):
            return
        if directory.inode(ASIDE) is not None:
            hint = "Remove the older one of the two, or move it away."
            raise AlreadyExists(f"{directory.path} has {INDEX} and {ASIDE}", hint=hint)
        directory.rename(INDEX, ASIDE)
    for suffix in ("-wal", "-shm"):
        if directory.inode(INDEX + suffix) is not None:
            directory.rename(INDEX + suffix, ASIDE + suffix)


def _is_ours(directory: Directory) -> bool:
    """Return whether an index is that of an adoption that was killed, and not arkimet's."""
    try:
        with contextlib.closing(connect_to_read(directory)) as connection, sqlite_errors(directory):
            revision_of(connection, directory)
            return True
    except IndexCorrupt:
        return False
