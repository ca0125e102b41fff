"""Datasets of every format and step behave as the model does, whatever is done to them in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ondisk import DatasetConfig, Step
from ondisk.testing import machine_for

TYPES = {
    "station": "integer",
    "level": "real",
    "product": "text",
    "valid": "boolean",
    "made": "timestamp",
    "key": "bytes",
}
# Each step and format meets another way of being unique and of replacing.
CONFIGS: list[dict[str, Any]] = [
    {"format": "vm2", "step": "daily", "unique": ["reftime", "area", "product"], "index": ["area", "product"],
     "fields": {"area": "text", "product": "text"}},
    {"format": "vm2", "step": "weekly", "unique": ["area"], "replace": "yes", "fields": {"area": "text"}},
    {"format": "vm2", "step": "biweekly"},
    {"format": "vm2", "step": "monthly", "unique": ["reftime"], "replace": "yes", "fields": {"product": "text"}},
    {"format": "vm2", "step": "yearly", "unique": ["product", "reftime"], "index": ["reftime"],
     "fields": {"area": "text", "product": "text"}},
    {"format": "jsonl", "step": "daily", "unique": ["product", "key"], "replace": "newer", "version_field": "made",
     "index": ["station", "product"], "fields": TYPES},
    {"format": "jsonl", "step": "weekly", "fields": TYPES},
    {"format": "jsonl", "step": "biweekly", "unique": ["level", "valid"], "replace": "yes", "index": ["level"],
     "fields": TYPES},
    {"format": "jsonl", "step": "monthly", "unique": ["reftime", "station"], "replace": "newer",
     "version_field": "level", "fields": {"station": "integer", "level": "real"}},
    {"format": "jsonl", "step": "yearly", "unique": ["made", "station"], "index": ["made", "valid", "key"],
     "fields": TYPES},
]  # fmt: skip


def test_every_step_of_every_format_is_driven():
    assert {(each["format"], each["step"]) for each in CONFIGS} == {
        (f, s.value) for f in ("vm2", "jsonl") for s in Step
    }


@pytest.mark.parametrize("values", CONFIGS, ids=lambda values: f"{values['format']}-{values['step']}")
def test_a_dataset_behaves_as_the_model(values):
    machine = machine_for(DatasetConfig.from_mapping(values))
    run_state_machine_as_test(machine, settings=settings(max_examples=8, stateful_step_count=20))


@pytest.mark.slow
@pytest.mark.parametrize("values", CONFIGS, ids=lambda values: f"{values['format']}-{values['step']}")
def test_a_dataset_behaves_as_the_model_in_the_long_run(values):
    machine = machine_for(DatasetConfig.from_mapping(values))
    run_state_machine_as_test(machine, settings=settings.get_profile("soak"))
