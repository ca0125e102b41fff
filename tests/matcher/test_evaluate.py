from __future__ import annotations

import pytest

from ondisk.matcher import (
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Expression,
    IsMissing,
    Not,
    OneOf,
    Or,
    StartsWith,
    TimeOfDay,
    matches,
)

YES, NO = Everything(), Not(Everything())
SECOND = 1_000_000


@pytest.mark.parametrize(
    ("leaf", "hits", "misses"),
    [
        (Compare("x", "=", 5), [5, 5.0], [4, 6]),
        (Compare("x", "<", 5), [4], [5, 6]),
        (Compare("x", "<=", 5), [4, 5], [6]),
        (Compare("x", ">", 5), [6], [5, 4]),
        (Compare("x", ">=", 5), [6, 5], [4]),
        (Compare("x", "<", "\uffff"), ["a", ""], ["\U00010000"]),
        (OneOf("x", (5, 7)), [5, 7], [6]),
        (OneOf("x", ()), [], [0, ""]),
        (StartsWith("x", "VM2"), ["VM2", "VM2,2", "VM22"], ["vm2", "VM", ""]),
        (StartsWith("x", ""), ["", "a"], []),
        (Components("x", ("VM2", "2")), ["VM2,2", "VM2,2,x", "VM2,2,"], ["VM2", "VM2,227", "VM2, 2", "x,VM2,2"]),
        (Components("x", ("G", None, "5")), ["G,98,5", "G,,5", "G,1,5,9"], ["G,5", "G,98,6", "G,98"]),
        (TimeOfDay("x", 10, 20), [10 * SECOND, 20 * SECOND - 1, 86410 * SECOND], [10 * SECOND - 1, 20 * SECOND]),
        (TimeOfDay("x", 86399, 86400), [-1, -SECOND], [-SECOND - 1, 0]),
        (EverySeconds("x", 3600, 10), [10 * SECOND, 3610 * SECOND, 10 * SECOND + 999_999], [0, 11 * SECOND]),
        (EverySeconds("x", 50_000, 60_000), [10_000 * SECOND, 60_000 * SECOND, 96_400 * SECOND], [110_000 * SECOND]),
    ],
)
def test_a_leaf_looks_at_its_field_only_and_never_matches_where_it_is_missing(leaf, hits, misses):
    assert all(matches(leaf, {"x": value}.get) for value in hits)
    assert not any(matches(leaf, {"x": value}.get) for value in misses)
    assert not matches(leaf, {"y": 5}.get)
    assert matches(Not(leaf), {"y": 5}.get)


def test_missing_is_asked_for_by_name():
    assert matches(IsMissing("x"), {}.get)
    assert not matches(IsMissing("x"), {"x": 0}.get)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (YES, True),
        (NO, False),
        (And(()), True),
        (And((YES, NO)), False),
        (And((YES, YES)), True),
        (Or(()), False),
        (Or((NO, YES)), True),
        (Or((NO, NO)), False),
        (Not(NO), True),
    ],
)
def test_conditions_combine_as_logic_says(expression, expected):
    assert matches(expression, {}.get) is expected


def test_what_is_no_expression_of_the_tree_is_an_error():
    with pytest.raises(TypeError, match="not a match expression"):
        matches(Expression(), {}.get)
