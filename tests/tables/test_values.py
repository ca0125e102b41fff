"""What a text in a cell means."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.datum import FieldType
from ondisk.errors import InvalidInput
from ondisk.tables.times import Times, Zone
from ondisk.tables.values import Cells, ContentColumn, number_or_text, reader

NUMBERS = {
    "0": 0, "7": 7, "-12": -12, "9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "-0": 0,
    "0.5": 0.5, ".5": 0.5, "-.5": -0.5, "5.": 5.0, "20.0": 20.0, "1.10": 1.1, "-12.25": -12.25, " 7 ": 7, "\t1.5": 1.5,
    "1.5e3": 1500.0, "1.0E10": 1e10, "1e-05": 1e-5, "1e+20": 1e20, "1E-3": 0.001, "0e+0": 0.0,
}  # fmt: skip
TEXTS = [
    "007", "00", "-07", "+5", "+39", "1e5", "12E4", "1234e56", "0x10", "1_000", "1,5", "1 000", "- 5", "--5", ".", "-",
    "e5", "1.2.3", "2026-11-20", "9223372036854775808", "-9223372036854775809", "1.0e999", "1e+99999", "nan", "NaN",
    "inf", "-inf", "Infinity", "true", "٣", "½", " ", "x", "5x", "1e-", "00.5", "5\n", "\u00a05",
]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS)
def test_a_text_that_programs_write_for_a_number_is_one(text):
    found = number_or_text(text)
    assert (found, type(found)) == (NUMBERS[text], type(NUMBERS[text]))


@pytest.mark.parametrize("text", TEXTS)
def test_every_other_text_stays_as_it_is(text):
    assert number_or_text(text) == text


@given(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_writes_for_a_number_is_the_same_number(number):
    found = number_or_text(repr(number))
    assert (repr(found), type(found)) == (repr(number), type(number))


@given(st.text())
def test_a_text_is_a_number_or_itself(text):
    found = number_or_text(text)
    assert found == text if isinstance(found, str) else found == float(text)


def test_values_are_the_same_when_they_are_remembered():
    contents = ContentColumn(0, Cells(["NA"]), None)
    for _ in range(2):
        assert [contents[text] for text in ("", "NA", "na", "7", "x" * 100)] == [None, None, "na", 7, "x" * 100]
        contents.update({str(number): number for number in range(60_000)})
        contents.add([])
        assert len(contents) == 0


TIMES = Times("%d.%m.%Y", Zone("UTC"))
ISO = Times(None, Zone("UTC"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "007", 7),
        ("integer", " +5 ", 5),
        ("integer", "-5.0", -5),
        ("real", "7", 7.0),
        ("real", ".5e3", 500.0),
        ("real", "-inf", float("-inf")),
        ("text", " 007 ", " 007 "),
        ("boolean", "TRUE", True),
        ("boolean", "0", False),
        ("bytes", "/wA=", b"\xff\0"),
        ("timestamp", "20.11.2026", datetime(2026, 11, 20, tzinfo=UTC)),
        ("timestamp", "2026-11-20T06:00:00Z", datetime(2026, 11, 20, 6, tzinfo=UTC)),
    ],
)
def test_a_declared_type_says_how_a_text_is_read(kind, text, value):
    found = reader(FieldType(kind), TIMES, ISO)(text)
    assert (found, type(found)) == (value, type(value))


OTHERS = {
    "integer": ["5.5", "x", "1e3", "1_000", "9" * 19, "9" * 5000, "٣"],
    "real": ["nan", "1e999", "1,5", "0x1p3", "1_0.5"],
    "boolean": ["yes", "2"],
    "bytes": ["/w", "ÿ"],
    "timestamp": ["soon"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in OTHERS.items() for text in texts])
def test_a_text_of_another_type_is_refused_and_named(kind, text):
    with pytest.raises(InvalidInput) as caught:
        reader(FieldType(kind), TIMES, ISO)(text)
    assert repr(text)[:20] in caught.value.message
    assert len(caught.value.message) < 200
