"""Match expressions that a page puts together mean what it shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.datum import FieldType
from ondisk.matcher import Compare
from ondisk.matcher.parser import parse
from ondisk.server.pages.match import completions, condition, refined, removable

FIELDS = {"area": FieldType.TEXT, "station": FieldType.INTEGER, "level": FieldType.REAL, "ok": FieldType.BOOLEAN,
          "key": FieldType.BYTES}  # fmt: skip
VALUES = {
    "area": st.text(st.characters(exclude_categories=["Cs"])),
    "station": st.integers(-(2**63), 2**63 - 1),
    "level": st.floats(allow_nan=False),
    "ok": st.booleans(),
    "key": st.binary(min_size=1),
}


@given(st.sampled_from([*FIELDS]).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])))
def test_a_value_becomes_a_condition_that_only_it_matches(case):
    name, value = case
    said = condition(name, value, FIELDS)
    assert said is not None
    assert parse(said, FIELDS) == Compare(name, "=", int(value) if name == "ok" else value)
    # … also as a part of an expression, from which it can be removed again.
    whole = refined("reftime: >=2026", said)
    assert removable(whole) == [("reftime: >=2026", said), (said, "reftime: >=2026")]


def test_a_value_that_the_language_cannot_say_is_no_link():
    assert condition("level", float("nan"), FIELDS) is None
    assert condition("area", "\udc80", FIELDS) is None


def test_a_new_condition_replaces_those_on_the_same_field():
    match = 'Reftime: >=2026; area: "a;b"; reftime: <2027'
    assert refined(match, "reftime: =2026-11-18") == 'area: "a;b"; reftime: =2026-11-18'
    assert refined("", "station: 5") == "station: 5"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["reftime: ", "area: ", "station: ", "level: ", "ok: ", "key: "]),
        ("st", ["station: "]),
        ("area: x; St", ["area: x; station: "]),
        ("area: ", ['area: "VM2,1"', 'area: "a ""b"""']),
        ("area: vm", ['area: "VM2,1"']),
        ('station: 5; area: "VM', ['station: 5; area: "VM2,1"']),
        ('area: "VM2,1" or a', ['area: "VM2,1" or "a ""b"""']),
        ("nothing: 5", []),
        ("area: x;", ["area: x; reftime: ", "area: x; area: ", "area: x; station: ", "area: x; level: ",
                      "area: x; ok: ", "area: x; key: "]),
    ],
)  # fmt: skip
def test_what_is_written_is_completed(text, found):
    assert [*completions(text, FIELDS, lambda name: ["VM2,1", 'a "b"'] if name == "area" else [])] == found


@given(st.text())
def test_any_text_can_be_completed(text):
    begin = text[:1].strip().lower()
    assert all(each.lower().startswith(begin) for each in completions(text, FIELDS, lambda _: ["x"]))
