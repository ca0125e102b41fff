"""The text of a match expression as a condition on the data of one dataset, with its aliases and durations."""

from __future__ import annotations

import os
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from ondisk.config import DatasetConfig
from ondisk.errors import ConfigError, StorageError
from ondisk.formats import find
from ondisk.matcher import Expression
from ondisk.matcher.aliases import NO_ALIASES, Aliases, WithAliases
from ondisk.matcher.parser import parse

_LIMIT = 1024 * 1024  # bytes


def expression(
    text: str, config: DatasetConfig, folder: str | os.PathLike[str], *, now: datetime | None = None
) -> Expression:
    """Return the syntax tree of a match expression, with its own aliases or else those of the dataset in a folder.

    Raises MatchError; or NotFound, StorageError, ConfigError if the file of aliases cannot be read, or is not one.
    """
    if isinstance(text, WithAliases):
        aliases = text.aliases
    elif config.aliases is not None:
        aliases = read_aliases(Path(folder, config.aliases))
    else:
        aliases = NO_ALIASES
    return parse(text, config.fields, now=now, durations=find(config.format).durations, aliases=aliases)


def read_aliases(path: str | os.PathLike[str]) -> Aliases:
    """Return the aliases in a file, as it is now; raise NotFound, StorageError, or ConfigError if it has none."""
    from ondisk.dataset.input_file import open_source  # here, as few queries need it

    name = os.fspath(path)
    with open_source(name) as file:
        try:
            content = file.read(_LIMIT + 1)
        except OSError as error:
            raise StorageError(f"{name}: {error.strerror}", hint="Check the disk.") from error
    if len(content) > _LIMIT:
        raise ConfigError(f"{name} is larger than {_LIMIT} bytes", hint="Is it the right file?")
    return _parsed(name, content)


@lru_cache(maxsize=16)
def _parsed(path: str, content: bytes) -> Aliases:
    try:
        return Aliases.parse(content.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}", hint="Save it as UTF-8.") from None
