"""Conditions on metadata that no field declares select the same data as the model, in a dataset and its archives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY_TYPE, Model, same, strategies

import ondisk
from ondisk import DatasetConfig

CONFIGS = [
    DatasetConfig.from_mapping({"step": "yearly", "fields": EVERY_TYPE, **more})
    for more in ({"format": "seg"}, {"format": "seg", "compression": "none"}, {"format": "blob"})
]


def metadata(data):
    return [[each.reftime, dict(each.metadata)] for each in data]


@pytest.mark.parametrize("config", CONFIGS, ids=["seg lz4", "seg", "blob"])
@settings(max_examples=up_to(8))
@given(st.data())
def test_conditions_select_delete_and_count_the_same_as_the_model(config, data):
    rows = data.draw(st.lists(strategies.data(config), min_size=1, max_size=12))
    conditions = strategies.expressions({"station": config.fields["station"]}, 4, strategies.UNDECLARED)
    model = Model(config)
    with tempfile.TemporaryDirectory() as parent, ondisk.create(Path(parent) / "dataset", config) as dataset:
        assert dataset.append(rows).refused == 0
        model.append(rows)
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted({model.segment_of(row) for row in model.rows})))
            dataset.archive(name)
        for tree in data.draw(st.lists(conditions, min_size=5, max_size=10)):
            found, expected = metadata(dataset.query(tree)), metadata(row.datum() for row in model.query(tree))
            assert same(found, expected), tree
            assert dataset.summary(tree, fields=[]).count == len(expected)
            assert len([*dataset.query(~tree, with_data=False)]) == len(model.rows) - len(expected)
        tree = data.draw(conditions)
        assert dataset.delete(tree) == model.delete(tree)
        assert len([*dataset.query()]) == len(model.rows)
