"""The check of an overwrite: a batch passes if all of its data match, and else one that does not is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import strategies
from kit.strategies import EVERY_TYPE

from ondisk.config import DatasetConfig
from ondisk.datum import canonical, microseconds
from ondisk.errors import InvalidInput
from ondisk.formats import Batch
from ondisk.matcher import matches
from ondisk.matcher.parser import parse
from ondisk.spark.write import Constraint

CONFIG = DatasetConfig.from_mapping({"format": "seg", "step": "daily", "fields": EVERY_TYPE})


def test_a_row_is_named_by_its_declared_fields():
    batch = Batch([0], [{"sensor": "x", "product": "a"}], [b""])
    with pytest.raises(InvalidInput, match=r"the row with reftime 1970-01-01 00:00:00\+00:00, product 'a' does not"):
        Constraint(parse("product: b", EVERY_TYPE), "product: b", CONFIG).check(batch)


@given(st.data())
def test_a_batch_passes_if_all_of_its_data_match(given_data):
    tree = given_data.draw(strategies.expressions(EVERY_TYPE))
    kinds = given_data.draw(st.lists(strategies.metadata(EVERY_TYPE), min_size=1, max_size=3))
    shared = [{name: canonical(value, EVERY_TYPE[name]) for name, value in each.items()} for each in kinds]
    times = strategies.reftimes().map(microseconds)
    pairs = given_data.draw(st.lists(st.tuples(times, st.sampled_from(shared)), max_size=6))
    batch = Batch([time for time, _ in pairs], [metadata for _, metadata in pairs], [b""] * len(pairs))
    constraint = Constraint(tree, "the match", CONFIG)
    if all(matches(tree, {"reftime": time, **metadata}.get) for time, metadata in pairs):
        constraint.check(batch)
    else:
        with pytest.raises(InvalidInput, match="does not match the match, which the write overwrites"):
            constraint.check(batch)
