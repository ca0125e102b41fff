from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ondisk
from ondisk import FieldType
from ondisk.errors import ConfigError, InvalidInput, MatchError
from ondisk.items import FIELDS, matches, pattern
from ondisk.matcher import Compare, Item, Or, parse

# Assertions of arkimet's tests; beside the checkout, since they may not be copied into it.
CASES = Path(__file__).resolve().parents[2] / "shared" / "golden" / "raw-formats" / "match-cases.json"
ALL = dict.fromkeys(FIELDS, FieldType.ITEM)
REFTIME = datetime(2026, 11, 20, 6, tzinfo=UTC)
LEVELS = ["GRIB1,1", "GRIB1,105,2", "GRIB1,105,10", "GRIB2S,103,0,2", "GRIB2S,1,-,-", "GRIB2D,106,2,0,106,2,10", "odd"]


@pytest.mark.skipif(not CASES.exists(), reason="arkimet's assertions are not beside the checkout, in ../shared/golden")
def test_all_assertions_of_arkimets_matcher_hold():
    cases = json.loads(CASES.read_text())
    for case in cases:
        tree = parse(f"{case['field']}: {case['expression']}", ALL)
        assert isinstance(tree, Item), case
        assert matches(tree.field, tree.pattern, case["item"]) is case["matches"], case
    assert len(cases) == 210


def test_alternatives_and_quoted_texts():
    assert parse('level: GRIB1,1 or "GRIB1,1"', ALL) == Or((Item("level", "GRIB1,1"), Compare("level", "=", "GRIB1,1")))
    assert parse('area: GRIB:id="12"', ALL) == Item("area", 'GRIB:id="12"')


@pytest.mark.check
@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("level: GRIB1,100,>500", "'>500' is not a number"),
        ("level: grib1,100", "begins with no style of level"),
        ("level: GRIB3", "begins with no style of level"),
        ("area: bbox covers POINT(1 2)", "begins with no style of area"),
        ("area: GRIB:Ni", "'Ni' is not a key and a value"),
        ("level: ODIMH5,range 1", "says no elevations"),
        ("level: ODIMH5,range 1 2 3", "says no elevations"),
        ("level: ODIMH5,x", "says no elevations"),
        ("timerange: Timedef,6x", "'6x' is not a duration"),
        ("timerange: Timedef,6", "'6' is not a duration"),
        ("timerange: GRIB1,0,-", "'-' is not a duration"),
        ("timerange: GRIB2,1,2h", "'2h' is not a number"),
        ("run: MINUTE,noon", "is not a time of day"),
        ("run: 13", "begins with no style of run"),
    ],
)
def test_what_is_no_expression_on_items_is_refused_with_a_remedy(expression, problem):
    with pytest.raises(MatchError, match=problem) as caught:
        parse(expression, ALL)
    assert caught.value.hint
    assert "character" in caught.value.message


@pytest.mark.check
@pytest.mark.parametrize(
    ("field", "text", "item", "expected"),
    [
        ("level", "GRIB1,1,0", "GRIB1,1", True),
        ("product", "GRIB2,,,,,4,255", "GRIB2,98,0,1,2", True),
        ("product", "GRIB2,,,,,5", "GRIB2,98,0,1,2", False),
        ("proddef", "GRIB:pl=0,1", "GRIB:pl=0,1,2,tod=4", False),
        ("proddef", "GRIB:pl=0,1,2,tod=4", "GRIB:pl=0,1,2,tod=4", True),
        ("proddef", 'GRIB:id="a, b=c"', 'GRIB:blo=1,id="a, b=c"', True),
        ("proddef", "GRIB:id=12", 'GRIB:id="12"', False),
        ("timerange", "Timedef,0mo", "Timedef,0s", True),
        ("timerange", "Timedef,30d", "Timedef,1mo", False),
        ("timerange", "Timedef,12mo", "Timedef,1y", True),
        ("timerange", "Timedef,-6h", "Timedef,-6h,1,3h", True),
        ("timerange", "Timedef,,4", "GRIB1,5,3h,6h", True),
        ("timerange", "GRIB1,123,,6h", "GRIB1,123,6h", True),
        ("run", "MINUTE", "MINUTE,13:30", True),
        ("level", "ODIMH5", "ODIMH5,1,2", True),
        ("level", "ODIMH5,11 12 offset 0.5", "ODIMH5,12.3,12.4", True),
    ],
)
def test_what_expressions_on_items_mean(field, text, item, expected):
    assert matches(field, text, item) is expected


@pytest.mark.check
@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "GRIB1",
            "GRIB1,",
            "GRIB1,x,y",
            "Timedef,6",
            "Timedef,x,1",
            "BUFR,6x",
            "ODIMH5,x",
            "GRIB:",
            "GRIB:=",
        ),
        *("MINUTE,99", "GRIB1,2,9" + "9" * 5000 + "h", ",,:,=", "\0", "GRIB1:a=1", "GRIB:a=" + "," * 5000),
    ],
)
def test_a_stored_text_that_is_no_item_matches_or_not_but_raises_nothing(text):
    expressions = {
        "level": ["GRIB1,1", "GRIB2S,-", "ODIMH5,1"],
        "timerange": ["Timedef,6h", "GRIB1,2,6h", "BUFR,1h", "GRIB2,1"],
        "area": ["GRIB:a=1", "VM2,1"],
        "run": ["MINUTE,13"],
        "quantity": ["a"],
        "task": ["b"],
    }
    for field, some in expressions.items():
        for each in some:
            assert matches(field, each, text) in (True, False)


def test_a_text_that_matches_begins_as_the_pattern_says():
    assert pattern("level", "GRIB1,105").prefixes == ("GRIB1",)
    assert pattern("timerange", "Timedef,6h").prefixes == ("GRIB1", "GRIB2", "Timedef", "BUFR")
    with pytest.raises(InvalidInput):
        pattern("level", "")


def test_only_the_names_of_items_can_be_declared_as_items():
    with pytest.raises(ConfigError, match=r"fields\.colour: 'colour' is not a name of an item") as caught:
        ondisk.DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": {"colour": "item"}})
    assert "timerange" in caught.value.hint


@pytest.mark.parametrize("format", ["jsonl", "seg", "blob"])
def test_items_are_stored_and_returned_as_text_and_found_by_their_meaning(tmp_path, format):
    config = {"format": format, "step": "daily", "fields": {"level": "item"}, "unique": ["reftime", "level"]}
    with ondisk.create(tmp_path / "d", config) as dataset:
        dataset.append(ondisk.Datum(REFTIME, {"level": each}, b"" if format == "blob" else {}) for each in LEVELS)

        def found(match):
            return sorted(datum.metadata["level"] for datum in dataset.query(match))

        assert found("level: GRIB1") == ["GRIB1,1", "GRIB1,105,10", "GRIB1,105,2"]
        assert found("level: GRIB1,105,002") == ["GRIB1,105,2"]
        assert found("level: GRIB2S,,-") == ["GRIB2S,1,-,-"]
        assert found('level: "odd" or GRIB2D') == ["GRIB2D,106,2,0,106,2,10", "odd"]
        assert found(~parse("level: GRIB1,105 or GRIB2S", dataset.config.fields)) == [
            "GRIB1,1",
            "GRIB2D,106,2,0,106,2,10",
            "odd",
        ]
        assert found(dataset.fields.level.startswith("GRIB1,105,1")) == ["GRIB1,105,10"]
        assert dataset.summary("level: GRIB1").count == 3
