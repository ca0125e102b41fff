"""SQL and Python agree: a query of the index returns the data for which the evaluator is true."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import strategies

import ondisk
from ondisk import DatasetConfig, FieldType
from ondisk.datum import canonical, microseconds
from ondisk.matcher import matches

TYPES = {kind.value: kind for kind in FieldType}
# For each type: one field in the unique index, one with its own index, one without an index.
ITEMS = dict.fromkeys(("area", "timerange", "quantity"), FieldType.ITEM)
FIELDS = ITEMS | {
    f"{role}_{name}": kind for name, kind in TYPES.items() if name != "item" for role in ("unique", "index", "plain")
}
EVERY_TYPE = DatasetConfig.from_mapping(
    {
        "format": "jsonl",
        "step": "yearly",
        "fields": FIELDS,
        "unique": [*(name for name in FIELDS if name.startswith("unique")), "area"],
        "index": [*(name for name in FIELDS if name.startswith("index")), "timerange"],
    }
)
ONE_FIELD = [
    DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": {"level": kind}, "unique": unique})
    for kind in FieldType
    for unique in ([], ["level", "reftime"], ["level"])
]


def check_both_ways(config, data, trees):
    """Check that each condition matches the same data in SQL and in Python."""
    stored = [{"reftime": microseconds(datum.reftime)} | {
        name: canonical(value, config.fields[name]) for name, value in datum.metadata.items()
    } for datum in data]  # fmt: skip
    with tempfile.TemporaryDirectory() as parent, ondisk.create(Path(parent) / "dataset", config) as dataset:
        result = dataset.append(
            ondisk.Datum(datum.reftime, datum.metadata, {"number": number}) for number, datum in enumerate(data)
        )
        assert result.refused == 0
        there = {datum.data["number"] for datum in dataset.query()}
        for tree in trees:
            found = sorted(datum.data["number"] for datum in dataset.query(tree))
            assert found == [number for number in sorted(there) if matches(tree, stored[number].get)], tree
            opposite = sorted(datum.data["number"] for datum in dataset.query(~tree))
            assert sorted(found + opposite) == sorted(there), tree
            assert dataset.summary(tree).count == len(found), tree


@pytest.mark.check
@settings(max_examples=up_to(40))
@given(
    st.lists(strategies.data(EVERY_TYPE), max_size=12),
    st.lists(strategies.expressions(FIELDS), min_size=10, max_size=20),
)
def test_conditions_over_all_types_select_the_same_in_sql_and_in_python(data, trees):
    check_both_ways(EVERY_TYPE, data, trees)


@pytest.mark.parametrize("config", ONE_FIELD, ids=lambda config: f"{config.fields['level']}-{'-'.join(config.unique)}")
@settings(max_examples=up_to(8))
@given(st.data())
def test_conditions_over_one_type_select_the_same_in_sql_and_in_python(config, data):
    rows = data.draw(st.lists(strategies.data(config), min_size=3, max_size=20))
    trees = st.lists(strategies.expressions(config.fields, max_leaves=4), min_size=10, max_size=20)
    check_both_ways(config, rows, data.draw(trees))
