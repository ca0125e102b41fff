"""A syntax tree comes back from JSON as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from kit import strategies

from ondisk.datum import FieldType
from ondisk.errors import MatchError
from ondisk.spark.match_json import dumps, loads

FIELDS = {name: FieldType(kind) for name, kind in strategies.EVERY_TYPE.items()}


@given(strategies.expressions(FIELDS))
def test_a_tree_comes_back(tree):
    assert loads(dumps(tree)) == tree


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        '{"Compare": 1}',
        '{"Compare": ["a"]}',
        '{"Compare": ["a", "= 1 OR 1 =", 1]}',
        '{"Compare": ["a", ["="], 1]}',
        '{"Compare": ["a", "=", [1]]}',
        '{"Compare": [1, "=", 1]}',
        '{"OneOf": ["a", 5]}',
        '{"TimeOfDay": ["a", "0", 5]}',
        '{"And": [[5]]}',
        '{"os": []}',
        '{"Not": []}',
        '{"Not": [5]}',
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(MatchError, match="contains no condition"):
        loads(text)
