"""Filters of Spark as syntax trees: they match where the filter is true; missing values and NaN are as Spark's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ondisk.datum import FieldType, canonical
from ondisk.matcher import matches
from ondisk.spark.filters import pushed
from ondisk.testing.strategies import EVERY_TYPE, values

FIELDS = {name: (name, FieldType(kind)) for name, kind in EVERY_TYPE.items()}
ORDERED = {LessThan: -1, GreaterThan: 1}
COMPARED = [EqualTo, EqualNullSafe, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]
TEXT = {StringStartsWith: str.startswith, StringEndsWith: str.endswith, StringContains: str.__contains__}


def order(one, other):
    """Compare as Spark does: NaN equals itself, and is greater than all else."""
    one, other = ((value != value, 0 if value != value else value) for value in (one, other))
    return (one > other) - (one < other)


def holds(given, value):
    """Say what a filter is for a value: True, False, or None where it is neither."""
    if isinstance(given, Not):
        inner = holds(given.child, value)
        return None if inner is None else not inner
    if isinstance(given, IsNull | IsNotNull):
        return (value is None) is isinstance(given, IsNull)
    if isinstance(given, EqualNullSafe):
        both = value is not None and given.value is not None
        return order(value, given.value) == 0 if both else value is given.value
    if isinstance(given, In):
        if value is None:
            return None
        found = any(each is not None and order(value, each) == 0 for each in given.value)
        return True if found else None if None in given.value else False
    if value is None or given.value is None:
        return None
    if type(given) in TEXT:
        return TEXT[type(given)](value, given.value)
    found = order(value, given.value)
    match given:
        case EqualTo():
            return found == 0
        case LessThan() | LessThanOrEqual():
            return found < (isinstance(given, LessThanOrEqual))
        case _:
            return found > -(isinstance(given, GreaterThanOrEqual))


@st.composite
def cases(draw):
    """A filter, and a value to ask it of."""
    name = draw(st.sampled_from(sorted(FIELDS)))
    kind = FIELDS[name][1]
    given_values = values(kind) | st.none()
    if kind is FieldType.REAL:
        given_values |= st.just(nan)
    path = st.just((name,))
    leaves = [st.builds(each, path, given_values) for each in COMPARED]
    leaves += [st.builds(each, path) for each in (IsNull, IsNotNull)]
    leaves.append(st.builds(In, path, st.lists(given_values, max_size=3).map(tuple)))
    if kind is FieldType.TEXT:
        leaves += [st.builds(each, path, given_values | st.sampled_from(["a", ",", "\0"])) for each in TEXT]
    filters = st.one_of(leaves)
    return draw(filters | st.builds(Not, filters)), draw(values(kind) | st.none()), name


@given(st.lists(cases(), min_size=1, max_size=3))
def test_a_filter_matches_where_it_is_true(some):
    tree, left = pushed([given for given, _, _ in some], FIELDS)
    some = [each for each in some if each[0] not in left]
    datum = {name: value for _, value, name in some}

    def stored(name):
        return None if datum.get(name) is None else canonical(datum[name], FIELDS[name][1])

    assert matches(tree, stored) == all(holds(given, datum[given_name(given)]) is True for given, _, _ in some)


def given_name(given):
    return (given.child if isinstance(given, Not) else given).attribute[0]


@given(cases())
def test_only_times_of_the_old_calendar_are_left_to_spark(case):
    given, _, _ = case
    asked = given.child if isinstance(given, Not) else given
    wanted = getattr(asked, "value", None)
    times = [each for each in (wanted if isinstance(asked, In) else [wanted]) if isinstance(each, datetime)]
    _, left = pushed([given], FIELDS)
    assert bool(left) == any(each < datetime(1582, 11, 1, tzinfo=UTC) for each in times)


@pytest.mark.parametrize(
    "left",
    [
        EqualTo(("segment",), "2026/11-20.seg"),
        EqualTo(("data", "wind"), 1.0),
        EqualTo(("made",), datetime(2026, 11, 20)),  # no zone: a timestamp_ntz
        GreaterThan(("made",), datetime(1582, 10, 15, tzinfo=UTC)),  # Spark has it from 5 October, too
        In(("made",), (None, datetime(1582, 10, 15, tzinfo=UTC))),
        EqualTo(("station",), 1.5),
        EqualTo(("product",), "\ud800"),
        StringContains(("key",), "a"),
        In(("station",), tuple(range(40_000))),
    ],
)
def test_what_has_no_tree_is_left_to_spark(left):
    taken = IsNotNull(("station",))
    tree, rest = pushed([left, taken], FIELDS)
    assert rest == [left]
    assert matches(tree, {"station": 1}.get)
    assert not matches(tree, {}.get)


def test_a_time_of_any_zone_is_its_moment():
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    tree, _ = pushed([EqualTo(("made",), noon.astimezone(timezone(timedelta(hours=5))))], FIELDS)
    assert matches(tree, {"made": canonical(noon, FieldType.TIMESTAMP)}.get)
