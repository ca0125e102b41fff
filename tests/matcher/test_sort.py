from __future__ import annotations

import pytest

from ondisk.datum import FieldType
from ondisk.errors import MatchError
from ondisk.matcher import Sort, SortKey, parse_sort

FIELDS = {"station": FieldType.INTEGER, "product": FieldType.TEXT}


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("reftime", Sort(None, (SortKey("reftime"),))),
        ("-reftime", Sort(None, (SortKey("reftime", descending=True),))),
        ("station,-product", Sort(None, (SortKey("station"), SortKey("product", descending=True)))),
        (" Station , - PRODUCT ", Sort(None, (SortKey("station"), SortKey("product", descending=True)))),
        ("day:station,reftime", Sort("day", (SortKey("station"), SortKey("reftime")))),
        ("MINUTE : -reftime", Sort("minute", (SortKey("reftime", descending=True),))),
        ("hour:station", Sort("hour", (SortKey("station"),))),
        ("month:station", Sort("month", (SortKey("station"),))),
        ("year:station", Sort("year", (SortKey("station"),))),
    ],
)
def test_a_sort_order_names_an_interval_and_fields(text, sort):
    assert parse_sort(text, FIELDS) == sort


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a field is missing"),
        ("-", "a field is missing"),
        ("station,", "a field is missing"),
        ("day:", "a field is missing"),
        ("day", "no field 'day'"),
        ("colour", "no field 'colour'"),
        ("--station", "no field '-station'"),
        ("week:station", "not an interval"),
        (":station", "not an interval"),
        ("-day:station", "not an interval"),
        ("day:hour:station", "not an interval"),
        ("station,-station", "twice"),
        ("reftime,station,Reftime", "twice"),
    ],
)
def test_what_is_no_sort_order_is_refused_with_a_remedy(text, says):
    with pytest.raises(MatchError) as caught:
        parse_sort(text, FIELDS)
    assert says in caught.value.message
    assert caught.value.hint
