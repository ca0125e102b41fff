from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ondisk.datum import FieldType
from ondisk.errors import MatchError
from ondisk.matcher import And, Compare, Fields, IsMissing, Not, OneOf, Or, StartsWith, matches

DECLARED = {
    "station": FieldType.INTEGER,
    "level": FieldType.REAL,
    "product": FieldType.TEXT,
    "valid": FieldType.BOOLEAN,
    "made": FieldType.TIMESTAMP,
    "key": FieldType.BYTES,
}
f = Fields(DECLARED)


@pytest.mark.parametrize(
    ("condition", "tree"),
    [
        (f.station == 5, Compare("station", "=", 5)),
        (f.station < 5, Compare("station", "<", 5)),
        (f.station <= 5, Compare("station", "<=", 5)),
        (f.station > 5, Compare("station", ">", 5)),
        (f.station >= 5, Compare("station", ">=", 5)),
        (5 < f.station, Compare("station", ">", 5)),  # noqa: SIM300
        (f.station != 5, Not(Compare("station", "=", 5))),
        (f.level == 2, Compare("level", "=", 2.0)),
        (f.valid == True, Compare("valid", "=", 1)),  # noqa: E712
        (f.key == b"\0", Compare("key", "=", b"\0")),
        (f.reftime >= datetime(1970, 1, 2, tzinfo=UTC), Compare("reftime", ">=", 86400_000_000)),
        (f.made < datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), Compare("made", "<", 0)),
        (f.station.isin([5, 7, 5]), OneOf("station", (5, 7))),
        (f.station.isin(iter(())), OneOf("station", ())),
        (f.product.isin({"a": 1}), OneOf("product", ("a",))),
        (f.product.is_null(), IsMissing("product")),
        (f.product.startswith("VM2,"), StartsWith("product", "VM2,")),
        ((f.station == 5) & (f.level < 1.5), And((Compare("station", "=", 5), Compare("level", "<", 1.5)))),
        ((f.station == 5) | ~(f.level < 1), Or((Compare("station", "=", 5), Not(Compare("level", "<", 1.0))))),
    ],
)
def test_an_operator_builds_the_tree_with_stored_values(condition, tree):
    assert condition == tree


def test_stored_values_have_the_type_of_the_field():
    assert type((f.level == 2).value) is float
    assert type((f.valid == True).value) is int  # noqa: E712


@pytest.mark.parametrize(
    "ask",
    [
        lambda: f.station == "5",
        lambda: f.station == 5.0,
        lambda: f.station == True,  # noqa: E712
        lambda: f.station < 2**63,
        lambda: f.level > float("nan"),
        lambda: f.product == 5,
        lambda: f.product == "\ud800",
        lambda: f.valid == 1,
        lambda: f.key == "00",
        lambda: f.reftime >= "2007",
        lambda: f.reftime >= datetime(2007, 1, 1),
        lambda: f.station == f.level,
        lambda: f.station.isin([5, "7"]),
        lambda: f.product.isin("abc"),
        lambda: f.key.isin(b"abc"),
        lambda: f.product.startswith(5),
        lambda: f.station.startswith("5"),
    ],
)
def test_a_value_of_another_type_is_refused_with_a_remedy(ask):
    with pytest.raises(MatchError) as caught:
        ask()
    assert caught.value.hint


@pytest.mark.parametrize("ask", [lambda: f.station == None, lambda: f.station != None, lambda: f.station.isin([None])])  # noqa: E711
def test_none_is_refused_and_is_null_is_reported(ask):
    with pytest.raises(MatchError) as caught:
        ask()
    assert "station.is_null()" in caught.value.hint


def test_unequal_matches_what_lacks_the_field():
    assert matches(f.station != 5, {}.get)
    assert not matches(f.station != 5, {"station": 5}.get)


@pytest.mark.parametrize("ask", [lambda: bool(f.station), lambda: 1 < f.station < 5, lambda: not f.station])
def test_what_would_drop_a_condition_raises(ask):
    with pytest.raises(TypeError, match="no truth value"):
        ask()


def test_a_field_is_found_by_identity_in_sets_and_dicts():
    assert f.station in {f.station, f.level}
    assert {f.station: 1, f.level: 2}[f.level] == 2
    assert len({f.station, Fields(DECLARED).station}) == 2


def test_fields_are_reached_as_attributes_and_as_items():
    assert f.station is f["station"]
    assert f["reftime"].kind is FieldType.TIMESTAMP
    assert list(f) == ["reftime", *DECLARED]
    assert "station" in f
    assert "colour" not in f
    assert {"reftime", "station"} <= set(dir(f))


def test_no_field_is_hidden_by_a_method():
    names = ("values", "items", "keys", "get", "fields", "_fields", "count")
    many = Fields(dict.fromkeys(names, FieldType.INTEGER))
    assert [getattr(many, name).name for name in names] == list(names)


def test_an_unknown_field_is_an_attribute_error_or_a_match_error_and_names_the_known_ones():
    with pytest.raises(AttributeError, match="reftime, station, level"):
        _ = f.statoin
    with pytest.raises(MatchError, match="reftime, station, level"):
        f["statoin"]
    assert not hasattr(f, "statoin")
    assert not hasattr(f, "__array__")


def test_an_unknown_field_names_the_one_that_was_likely_meant_and_ends_with_one_full_stop():
    with pytest.raises(MatchError) as item:
        f["statoin"]
    assert item.value.hint.startswith("Did you mean `station`? The fields are ")
    with pytest.raises(AttributeError) as attribute:
        _ = f.statoin
    # Python appends to the message: ". Did you mean: 'station'?"
    assert not str(attribute.value).endswith(".")
    assert attribute.value.name == "statoin"
    assert attribute.value.obj is f


def test_fields_can_be_copied_and_pickled():
    for other in (copy.copy(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert repr(other) == repr(f)
        assert (other.station == 5) == (f.station == 5)


def test_fields_show_what_they_are():
    assert repr(Fields({"station": FieldType.INTEGER})) == "Fields(reftime: timestamp, station: integer)"
    assert repr(f.station) == "Field('station', integer)"
