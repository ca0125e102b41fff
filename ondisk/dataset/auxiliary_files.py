"""The files of a dataset that are neither index nor segments: their names and their content."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ondisk.config import DatasetConfig, Source
from ondisk.datum import METADATA
from ondisk.errors import (
    AlreadyExists,
    ConfigError,
    DatasetExists,
    DatasetNotFound,
    InvalidInput,
    MatchError,
    NeedsCheck,
    StateError,
    command,
    shell_words,
    shown,
)
from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.index import INDEX, Index
from ondisk.step import ARCHIVE

if TYPE_CHECKING:
    from ondisk.matcher import Expression

Identity: TypeAlias = tuple[tuple[int, int], tuple[int, int]] | None

SENTINEL = "needs-check-do-not-pack"
CONFIG = "dataset.toml"
CONFIG_LIMIT = 1024 * 1024  # bytes
SENTINEL_TEXT = (
    b"The index of this dataset was lost and rebuilt empty. It may not know all data."
    b" Run `ondisk fix DATASET --yes`, with the path of this folder.\n"
)
EXCHANGED_TEXT = (
    b"index.sqlite was exchanged for an older one or for that of another dataset. It may not know all data."
    b" Run `ondisk fix DATASET --yes`, with the path of this folder.\n"
)
_OWN = (
    r"(\.maintain|\.pipeline)?\.lock|\.tide|\.?index\.sqlite(-journal|-wal|-shm|\.new|\.new-journal)?"
    r"|\.dataset\.toml\.(new|[0-9]+)"
)


def open_directory(path: str | os.PathLike[str]) -> Directory:
    """Open a dataset's directory; raise DatasetNotFound, StateError if it is in an archive, or StorageError."""
    check_not_in_place(path)
    try:
        return Directory.open(path)
    except (FileNotFoundError, NotADirectoryError):
        raise no_dataset(path) from None


def identity_at(path: str | os.PathLike[str]) -> Identity:
    """Return what changes if another folder gets a path, or its configuration changes; None if there is no dataset."""
    try:
        folder, config = Path(path).stat(), Path(path, CONFIG).stat()
    except OSError:
        return None
    return (folder.st_dev, folder.st_ino), (config.st_ino, config.st_mtime_ns)


def untrusted(path: str | os.PathLike[str]) -> NeedsCheck:
    """Return the error for a command that refuses to run because the index may not know all data."""
    place = os.fspath(path)
    hint = f"Run {command('fix', place, '--yes')} first; it removes {SENTINEL} when the index knows all data again."
    return NeedsCheck(f"{place} needs a check: its index was lost, and may not know all data", hint=hint)


def read_config(directory: Directory) -> DatasetConfig:
    """Read `dataset.toml`; raise DatasetNotFound, or ConfigError if it is not valid."""
    try:
        text = directory.read(CONFIG, CONFIG_LIMIT).decode()
    except FileNotFoundError:
        if directory.inode(INDEX) is None:
            raise no_dataset(directory.path) from None
        message = f"{directory.path} has {INDEX}, but no {CONFIG}, which says how its data are stored"
        hint = f"Put {CONFIG} back, or write the same again. If create, restore or adopt was interrupted, repeat it."
        raise DatasetNotFound(message, hint=hint) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{directory.path / CONFIG} is not UTF-8: {error}", hint="Save it as UTF-8.") from None
    source = Source(str(directory.path / CONFIG), text)
    config = DatasetConfig.from_toml(text, source.name)
    filter_of(config, source=source)
    return config


def filter_of(config: DatasetConfig, now: datetime | None = None, *, source: Source | None = None) -> Expression | None:
    """Return the match expression in `filter`, or None if it is not set; raise ConfigError, which names the line."""
    if config.filter is None:
        return None
    from ondisk.matcher import undeclared_in
    from ondisk.matcher.parser import parse

    try:
        tree = parse(config.filter, config.fields, now=now, durations=find(config.format).durations)
        for name in undeclared_in(tree):
            message = f"{shown(METADATA + name)} cannot be used in a filter, which sees declared fields only"
            raise MatchError(message, hint=f"Declare {shown(name)} in [fields].")
    except MatchError as error:
        source = source or Source("the configuration", None)
        raise source.error("filter", error.message, error.hint) from None
    return tree


def check_not_in_place(path: str | os.PathLike[str]) -> None:
    """Raise `StateError` if a folder is in the archive of a dataset: it is a part of that, and no dataset."""
    for each in Path(path).absolute().parents:
        if each.name == ARCHIVE and (each.parent / CONFIG).exists():
            dataset = each.parent
            hint = f"Use the dataset: {shell_words(dataset)}. Its answers have the archived data, too."
            raise StateError(f"{os.fspath(path)} is a folder of the archive of {dataset}, and no dataset", hint=hint)


def check_takes_data(path: str | os.PathLike[str], config: DatasetConfig) -> None:
    """Raise StateError if users may not append and delete data: it is a replica."""
    if config.replica:
        hint = (
            "Write to its source. To make it an ordinary dataset, which no longer follows its source:"
            f" {command('promote', path)}"
        )
        raise StateError(f"{os.fspath(path)} is a replica: its data are those of its source", hint=hint)


def hint_about_space(path: str | os.PathLike[str], config: DatasetConfig) -> str:
    """Return what to do about a full disk with a replica, from which nobody can delete data; else an empty text."""
    if not config.replica:
        return ""
    how = f"{command('repack', path, '--yes')} works on a full disk, and removes what its source has deleted"
    return f"Free some space on this disk. {how}, and what is older than `delete_age` in the replica's {CONFIG}."


def no_dataset(path: str | os.PathLike[str]) -> DatasetNotFound:
    """Return the error for a path that contains no dataset."""
    hint = "Check the path, and whether its disk is mounted. `ondisk init` and ondisk.create make a new one."
    return DatasetNotFound(f"{os.fspath(path)} holds no dataset", hint=hint)


def check_apart(what: str, path: str | os.PathLike[str], whose: str, other: str | os.PathLike[str]) -> None:
    """Raise InvalidInput unless two folders are different, and neither is inside of the other."""
    if not os.fspath(path):
        raise InvalidInput(f"the path of the {what} is empty", hint='Write "." for the current directory.')
    mine, theirs = os.path.realpath(path), os.path.realpath(other)
    common = os.path.commonpath((mine, theirs))
    if common in (mine, theirs):
        where = "is" if mine == theirs else "is inside of" if common == theirs else "contains"
        hint = f"Choose another folder for the {what}, on another disk if possible."
        raise InvalidInput(f"the {what} {mine} {where} its {whose} {theirs}", hint=hint)


def check_free(directory: Directory) -> None:
    """Raise unless the directory is empty, apart from files that an interrupted `create` left there."""
    names = directory.names()
    if CONFIG in names:
        raise DatasetExists(f"{directory.path} already contains a dataset", hint="Open it, or choose another path.")
    others = [name for name in names if not re.fullmatch(_OWN, name)]
    if others:
        hint = "Choose a directory that is empty or does not exist."
        raise AlreadyExists(f"{directory.path} is not empty: it contains {sorted(others)[0]!r}", hint=hint)


def configuration_text(config: DatasetConfig, text: str | None) -> bytes:
    """Return the bytes of a new `dataset.toml`, perhaps a text with comments; raise ConfigError if that differs."""
    if text is None:
        return config.to_toml().encode()
    if DatasetConfig.from_toml(text) != config:
        raise ConfigError(
            "the text of dataset.toml is another configuration", hint="Pass the text that it was read from."
        )
    content = text.encode()
    if len(content) > CONFIG_LIMIT:
        problem = f"dataset.toml would be larger than {CONFIG_LIMIT} bytes"
        raise ConfigError(problem, hint="Shorten its comments.")
    return content


def create_files(directory: Directory, config: DatasetConfig, text: str | None = None) -> None:
    """Create the files of an empty dataset. The caller must hold the writers' lock.

    Durability: first the index, then `dataset.toml`, each complete or not at all. What a crash leaves has no
        configuration, so it is not yet a dataset.
    """
    from ondisk.index.transaction import Transaction

    Index.create(directory, config)
    with contextlib.closing(Index.open(directory, config)) as index:
        with Transaction(index) as transaction:
            transaction.commit()  # creates -wal and -shm: readers without permission to write need them
        if transaction.checkpoint_error is not None:
            raise transaction.checkpoint_error
    directory.replace(CONFIG, configuration_text(config, text))


def last_generation(directory: Directory) -> int:
    """Return the highest generation in the names of hidden files, `.NAME.17`, and of places; 0 without any."""
    from ondisk.segments.places import places

    last = max((each.identity.generation for each in places(directory).values() if each.identity), default=0)
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        for name in directory.names(parent):
            path = f"{parent}/{name}" if parent else name
            if hidden := re.fullmatch(r"\..+\.([0-9]{1,18})", name):
                last = max(last, int(hidden[1]))
            elif (name == ARCHIVE and not parent) or parent == ARCHIVE or re.fullmatch(r"[0-9]{2,4}", name):
                found = directory.stat(path)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
    return last
