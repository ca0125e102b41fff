"""Data that are encoded in columns become what they become as objects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondisk.config import DatasetConfig
from ondisk.datum import microseconds
from ondisk.formats import find
from ondisk.testing import EVERY_TYPE, strategies

CONFIGS = [
    DatasetConfig.from_mapping({"step": "daily", **each})
    for each in (
        {"format": "vm2", "fields": {"area": "text", "product": "text"}},
        {"format": "jsonl", "fields": EVERY_TYPE},
        {"format": "seg", "fields": EVERY_TYPE},
        {"format": "blob", "fields": EVERY_TYPE},
    )
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.format)
@given(st.data())
@settings(max_examples=40)
def test_columns_are_encoded_as_data_are(config, given_data):
    some = strategies.data(config)
    if given_data.draw(st.booleans(), "with refused ones"):
        some |= strategies.refused_data(config)
    data = given_data.draw(st.lists(some, max_size=8))
    format = find(config.format)(config)
    wanted = format.encode(data)
    columns = (
        [microseconds(each.reftime) for each in data],
        [each.metadata for each in data],
        [each.data for each in data],
    )
    assert repr(format.encode_columns(*columns)) == repr(wanted)
