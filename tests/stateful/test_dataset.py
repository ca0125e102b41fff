"""Datasets of every format and step behave as the model, for any operations in any order."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
from formats.diskqueue import beats_reader
from formats.diskqueue.decrypted import decrypted
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from kit import EVERY_TYPE, STEPS_OF_TIME, DatasetMachine, machine_for, same
from kit.model import ModelRow

from ondisk import DatasetConfig, keys
from ondisk.datum import FieldType
from ondisk.formats.diskqueue import blocks, header
from ondisk.json_values import format_time
from ondisk.keys import Key, KeyRing

# Each step and format has another `unique` and `replace`.
CONFIGS: list[dict[str, Any]] = [
    {"format": "vm2", "step": "daily", "unique": ["reftime", "area", "product"], "index": ["area", "product"],
     "fields": {"area": "text", "product": "text"}},
    {"format": "vm2", "step": "weekly", "unique": ["area"], "replace": "yes", "fields": {"area": "text"}},
    {"format": "vm2", "step": "biweekly"},
    {"format": "vm2", "step": "monthly", "unique": ["reftime"], "replace": "yes", "fields": {"product": "text"}},
    {"format": "vm2", "step": "yearly", "unique": ["product", "reftime"], "index": ["reftime"],
     "fields": {"area": "text", "product": "text"}},
    {"format": "vm2", "step": "hourly", "unique": ["reftime", "area"], "index": ["area"], "fields": {"area": "text"}},
    {"format": "jsonl", "step": "daily", "unique": ["product", "key"], "replace": "newer", "version_field": "made",
     "index": ["station", "product"], "fields": EVERY_TYPE},
    {"format": "jsonl", "step": "weekly", "fields": EVERY_TYPE},
    {"format": "jsonl", "step": "biweekly", "unique": ["level", "valid"], "replace": "yes", "index": ["level"],
     "fields": EVERY_TYPE},
    {"format": "jsonl", "step": "monthly", "unique": ["reftime", "station"], "replace": "newer",
     "version_field": "level", "fields": {"station": "integer", "level": "real"}},
    {"format": "jsonl", "step": "yearly", "unique": ["made", "station"], "index": ["made", "valid", "key"],
     "fields": EVERY_TYPE},
    {"format": "jsonl", "step": "hourly", "unique": ["station"], "replace": "yes", "fields": {"station": "integer"}},
    {"format": "seg", "step": "daily", "unique": ["reftime", "product"], "index": ["product"], "fields": EVERY_TYPE},
    {"format": "seg", "step": "weekly", "compression": "none", "unique": ["station", "key"], "replace": "yes",
     "fields": EVERY_TYPE},
    {"format": "seg", "step": "biweekly"},
    {"format": "seg", "step": "monthly", "unique": ["valid", "level"], "replace": "newer", "version_field": "station",
     "index": ["reftime", "valid"], "fields": EVERY_TYPE},
    {"format": "seg", "step": "yearly", "compression": "none", "unique": ["made"], "replace": "newer",
     "version_field": "level", "fields": {"made": "timestamp", "level": "real"}},
    {"format": "seg", "step": "hourly", "unique": ["reftime", "valid"], "index": ["reftime"], "fields": EVERY_TYPE},
    {"format": "seg", "step": "daily", "encryption": "aes-256-gcm", "unique": ["reftime", "key"], "replace": "yes",
     "index": ["product"], "fields": EVERY_TYPE},
    {"format": "seg", "step": "monthly", "encryption": "aes-128-ctr", "unique": ["station"], "fields": EVERY_TYPE},
    {"format": "blob", "step": "daily", "unique": ["reftime", "product"], "index": ["product"], "fields": EVERY_TYPE},
    {"format": "blob", "step": "weekly", "unique": ["station", "key"], "replace": "yes", "fields": EVERY_TYPE},
    {"format": "blob", "step": "biweekly"},
    {"format": "blob", "step": "hourly", "unique": ["key"], "fields": {"key": "bytes"}},
    {"format": "blob", "step": "monthly", "unique": ["valid"], "replace": "newer", "version_field": "station",
     "fields": EVERY_TYPE},
    {"format": "blob", "step": "yearly", "segments": "dir", "index": ["made"], "fields": {"made": "timestamp"}},
]  # fmt: skip


def test_every_step_of_every_format_is_driven():
    assert {(each["format"], each["step"]) for each in CONFIGS} == {
        (f, s.value) for f in ("vm2", "jsonl", "seg", "blob") for s in STEPS_OF_TIME
    }


class SegMachine(DatasetMachine):
    """Reads every segment of the disk queue with a reader as strict as Beats."""

    def check_files(self) -> None:
        events: dict[tuple[str, int], list[Any]] = {}
        counts = {}
        for path in self.path.rglob("[0-9]*/*.seg"):
            place = "".join(f"{part}/" for part in path.relative_to(self.path).parts[:-2])
            segment = path.read_bytes()
            found = beats_reader.read(decrypted(segment, KEYS, f"{path.parent.name}/{path.stem}"))
            sealed = segment[8] == header.LZ4 and segment.endswith(blocks.END_MARK)
            counts[str(path.relative_to(self.path))] = (len(segment) - len(blocks.END_MARK) * sealed, len(found))
            assert struct.unpack_from("<I", segment, 4) == (len(found),)  # all frames ever written to it
            for timestamp, flags, meta, data in found:
                said = {
                    key: item for key, item in meta.items() if item is not None or key not in self.model.config.fields
                }
                events.setdefault((place, timestamp), []).append([flags, said, data])
        index = self.path / "index.sqlite"
        known = self._known(index) if index.exists() else {}  # it may be lost
        assert known == {name: counts[name] for name in known}
        assert self.model.lost or known.keys() == counts.keys()
        for row in self.model:
            wanted = self._event(row)
            assert any(same(wanted, event) for event in events[row.place, row.reftime * 1000])

    def _known(self, path: Path) -> dict[str, tuple[int, int]]:
        """Return size and count of each segment from a copy of an index; opening the index would change it."""
        copy = self.parent / "copy.sqlite"
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        with contextlib.closing(sqlite3.connect(copy)) as index:
            rows = index.execute("SELECT name, size, count FROM segment").fetchall()
        copy.unlink()
        return {name: (size, count) for name, size, count in rows}

    def _event(self, row: ModelRow) -> list[Any]:
        """Return flags, metadata and data as a segment stores them."""
        times = [name for name, kind in self.model.config.fields.items() if kind is FieldType.TIMESTAMP]
        said = {name: format_time(row.fields[name]) for name in times if name in row.fields}
        as_bytes = type(row.data) is bytes
        return [0x80 * as_bytes, {**row.metadata, **said}, {"data": row.data} if as_bytes else row.data]


KEYS = {1: bytes(range(16)), 2: bytes(range(32))}


@pytest.fixture(autouse=True, scope="module")
def keys_of_this_process():
    keys.use(KeyRing(Key(number, secret) for number, secret in KEYS.items()))
    yield
    keys.use(None)


def machine(values: dict[str, Any]) -> type[DatasetMachine]:
    return machine_for(DatasetConfig.from_mapping(values), SegMachine if values["format"] == "seg" else DatasetMachine)


def named(values):
    return "-".join(filter(None, (values["format"], values["step"], values.get("encryption"))))


@pytest.mark.parametrize("values", CONFIGS, ids=named)
def test_a_dataset_behaves_as_the_model(values):
    run_state_machine_as_test(machine(values), settings=settings(max_examples=5, stateful_step_count=20))


@pytest.mark.slow
@pytest.mark.parametrize("values", CONFIGS, ids=named)
def test_a_dataset_behaves_as_the_model_in_the_long_run(values):
    run_state_machine_as_test(machine(values), settings=settings.get_profile("machines"))
