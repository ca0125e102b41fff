"""The configuration of a dataset whose data are extents of objects, and the limits of what is read and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType
from ondisk.errors import ConfigError

FIELDS: Mapping[str, FieldType] = {
    "parent": FieldType.BYTES,  # the object
    "id": FieldType.BYTES,  # the transaction
    "flags": FieldType.INTEGER,
    "offset": FieldType.INTEGER,
    "size": FieldType.INTEGER,
    "version": FieldType.INTEGER,
}
"""The declared fields of an extent: those of `ondisk.backends.elliptics.extents.Extent`, and the object."""

BESIDE = 1024  # bytes of a datum that are not the data of its extent, at most


@dataclass(frozen=True, slots=True)
class Limits:
    # bytes of a request after its header; the original nodes send 10 MiB of data at a time
    packet: int = 16 * 1024 * 1024
    reply: int = 10 * 1024 * 1024  # bytes of data in one packet of a reply; longer ones are divided
    commands: int = 1000  # of a packet
    # bytes that all commands of a packet return together; more must be read in parts, or in several packets
    read: int = 64 * 1024 * 1024
    listed: int = 100_000  # ids that one LIST returns
    cached: int = 64 * 1024 * 1024  # bytes of extents that are kept in memory
    extents: int = 100_000  # extents whose places are kept in memory


def configuration(step: str = "daily", **others: Any) -> DatasetConfig:
    """Return the configuration of a dataset for this backend, with other keys of `dataset.toml`.

    The data are events of `seg`, whose data are bytes: a checksum protects each, and small ones share a file. They are
    not compressed, so that a read decompresses no neighbours. Raises ConfigError if the backend cannot work with it.
    """
    fields = {name: kind.value for name, kind in FIELDS.items()}
    own = {"format": "seg", "step": step, "index": ["parent"], "compression": "none", "fields": fields}
    config = DatasetConfig.from_mapping({**own, **others})
    check(config)
    return config


def check(config: DatasetConfig) -> None:
    """Raise ConfigError unless a dataset with this configuration can store extents."""
    problem = None
    if config.format != "seg":
        problem = f"format is {config.format!r}, not 'seg'"
    elif config.is_sequence:
        problem = "the step is 'sequence': its data are consumed in order"
    elif any(config.fields.get(name) is not kind for name, kind in FIELDS.items()):
        problem = f"the fields must include {', '.join(f'{name} = {kind.value}' for name, kind in FIELDS.items())}"
    elif "parent" not in config.index:
        problem = "index must contain 'parent'"
    elif config.unique:
        problem = "unique must be empty"
    elif config.delete_age is not None:
        problem = "delete_age would remove parts of objects"
    if problem is not None:
        hint = "Create one that can with `ondisk init DATASET --backend elliptics`."
        raise ConfigError(f"the dataset cannot store extents of objects: {problem}", hint=hint)
