"""Data formats, found by name, by a file's extension or by its first bytes.

This module lists the built-in formats. Other packages add formats through entry points of the group `ondisk.formats`
(name → a subclass of `ondisk.formats.base.Format`); they are read only if a name is not built in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ondisk.config import DatasetConfig, is_extension
from ondisk.errors import ConfigError, shown
from ondisk.formats.base import Batch as Batch
from ondisk.formats.base import Format as Format

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_BUILT_IN = {
    "seg": ("ondisk.formats.diskqueue.seg", "Seg"),
    "vm2": ("ondisk.formats.vm2", "Vm2"),
    "jsonl": ("ondisk.formats.jsonl", "JsonLines"),
    "blob": ("ondisk.formats.blob", "Blob"),
    "grib": ("ondisk.formats.grib", "Grib"),
    "bufr": ("ondisk.formats.bufr", "Bufr"),
    "odimh5": ("ondisk.formats.odimh5", "OdimH5"),
    "netcdf": ("ondisk.formats.netcdf", "NetCdf"),
}
_ALSO = {
    **dict.fromkeys(("grib1", "grib2", "grb", "grb2"), "grib"),
    "bfr": "bufr",
    **dict.fromkeys(("h5", "hdf"), "odimh5"),
    **dict.fromkeys(("nc", "nc4", "cdf"), "netcdf"),
}
"""Other extensions of files, and the formats that they may be of; a file of blob may have them, too."""

RULES = {"bufr": 1, "grib": 1, "netcdf": 1, "odimh5": 1}
"""Versions of the rules by which formats read items and numbers from data. An index records by which it was filled.

Raise the number with each correction that gives stored data another value: an index of other rules needs a migration,
which reads the data again. Otherwise old and new data would differ silently, also in `unique`.
"""

_OF_SEGMENTS = {"nc": "netcdf"}  # the formats whose segments do not have their names
# How files of one format can be read, if they must not be read as they look like.
_VARIANTS = {"seg-draft": ("ondisk.formats.diskqueue.seg", "SegDraft")}
_GROUP = "ondisk.formats"


def find(name: str, where: str = "") -> type[Format]:
    """Return the format of this name; raise ConfigError, which begins with `where`, if it cannot be imported."""
    if name in _BUILT_IN or name in _VARIANTS:
        module, attribute = {**_BUILT_IN, **_VARIANTS}[name]
        built_in: type[Format] = getattr(import_module(module), attribute)
        return built_in
    others = _others(tuple(sys.path))
    if name not in others.names:
        known = sorted({*_BUILT_IN, *others.names})
        hint = f"The formats are {', '.join(known)}. If a package adds it, install that."
        raise ConfigError(f"{where}unknown format {shown(name)}", hint=hint, format=name, known=known)
    try:
        loaded = others[name].load()
    except Exception as error:
        package = "" if (dist := others[name].dist) is None else f" {shown(dist.name)}"
        hint = "Install the package again, with what it needs, or remove it."
        raise ConfigError(
            f"the package{package} of format {shown(name)} cannot be loaded: {error!r}", hint=hint
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Format)):
        raise ConfigError(f"the entry point {shown(name)} of {_GROUP} is not a subclass of ondisk.formats.base.Format")
    return loaded


def recognised(file_name: str | None, head: bytes, likely: str) -> str | None:
    """Return the format of a file from outside: by its extension if only it has that, else by its first bytes."""
    extension = PurePath(file_name or "").suffix.removeprefix(".").lower()
    if extension == likely or (extension and is_known(extension)):
        return extension
    hinted = _ALSO.get(extension)
    if hinted is not None and find(likely).is_dir and not find(hinted).recognises(head):
        hinted = None  # whatever it is, it is a file of blob
    first = [likely] if hinted is None else [hinted, likely]
    known = next((name for name in dict.fromkeys([*first, *_BUILT_IN]) if find(name).recognises(head)), None)
    others = sorted(_others(tuple(sys.path)).names)
    return known or next((name for name in others if _has_begun(name, head)), hinted)


def listed() -> Iterator[dict[str, Any]]:
    """Yield what there is to know of each format: its name, the extensions of its files, its segments, its extra."""
    own = {format: extension for extension, format in _OF_SEGMENTS.items()}
    for name in (*_BUILT_IN, *sorted(_others(tuple(sys.path)).names)):
        extensions = dict.fromkeys((own.get(name, name), *(each for each, format in _ALSO.items() if format == name)))
        format = find(name)
        segments = "dir" if format.is_dir else "concat"
        yield {"format": name, "extensions": [*extensions], "segments": segments, "extra": format.extra}


def _has_begun(name: str, head: bytes) -> bool:
    """Return whether a format of another package recognises these bytes; one that cannot be loaded recognises none."""
    try:
        return find(name).recognises(head)
    except ConfigError:
        return False


def is_known(name: str) -> bool:
    return name in _BUILT_IN or name in _others(tuple(sys.path)).names


def is_built_in(name: str) -> bool:
    return name in _BUILT_IN


def is_dir(name: str) -> bool:
    return is_known(name) and find(name).is_dir


def has_extension(name: str, extension: str) -> bool:
    """Return whether segments of a format can have this extension, with any configuration."""
    return extension == name or (is_dir(name) and is_extension(extension) and not is_known(extension))


def of_extension(extension: str, config: DatasetConfig) -> str | None:
    """Return the format of segments with this extension; None if no format has it."""
    return "blob" if extension == config.extension else of_segments(extension)


def of_segments(extension: str) -> str | None:
    """Return the format of segments with this extension; None if it may only be blob."""
    return _OF_SEGMENTS.get(extension) or (extension if is_known(extension) else None)


@lru_cache(maxsize=1)
def _others(path: tuple[str, ...]) -> EntryPoints:
    """Return the formats of other packages; finding them takes milliseconds, and a check needs them for every file."""
    from importlib.metadata import entry_points

    return entry_points(group=_GROUP)
