from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ondisk.datum import FieldType
from ondisk.matcher import And, Compare, Everything, IsMissing, Not, OneOf, Or, parse, reftime_interval
from ondisk.step import ALWAYS, NEVER, Interval

HOUR = 3600_000_000


def reftime(operator, value):
    return Compare("reftime", operator, value)


@pytest.mark.parametrize(
    ("expression", "interval"),
    [
        (Everything(), ALWAYS),
        (reftime("=", 5), Interval(5, 6)),
        (reftime("<", 5), Interval(end=5)),
        (reftime("<=", 5), Interval(end=6)),
        (reftime(">", 5), Interval(begin=6)),
        (reftime(">=", 5), Interval(begin=5)),
        (Not(reftime("<", 5)), Interval(begin=5)),
        (Not(reftime("<=", 5)), Interval(begin=6)),
        (Not(reftime(">", 5)), Interval(end=6)),
        (Not(reftime(">=", 5)), Interval(end=5)),
        (Not(reftime("=", 5)), ALWAYS),
        (Not(Not(reftime("=", 5))), Interval(5, 6)),
        (Not(Everything()), NEVER),
        (OneOf("reftime", (7, 3, 5)), Interval(3, 8)),
        (Not(OneOf("reftime", (7, 3))), ALWAYS),
        (OneOf("station", (7, 3)), ALWAYS),
        (OneOf("reftime", ()), NEVER),
        (OneOf("station", ()), NEVER),
        (Not(OneOf("station", ())), ALWAYS),
        (IsMissing("reftime"), NEVER),
        (Not(IsMissing("reftime")), ALWAYS),
        (IsMissing("station"), ALWAYS),
        (Compare("station", "=", 5), ALWAYS),
        (Not(Compare("station", "<", 5)), ALWAYS),
        (And((reftime(">=", 3), reftime("<", 9), reftime("<", 7))), Interval(3, 7)),
        (And((reftime(">=", 9), reftime("<", 3))), NEVER),
        (And(()), ALWAYS),
        (Or((reftime("=", 3), reftime("=", 9))), Interval(3, 10)),
        (Or((reftime("=", 3), reftime("<", 9))), Interval(end=9)),
        (Or((reftime("=", 3), Compare("station", "=", 5))), ALWAYS),
        (Or((reftime("=", 3), NEVER_EXPRESSION := OneOf("reftime", ()))), Interval(3, 4)),
        (Or((NEVER_EXPRESSION, NEVER_EXPRESSION)), NEVER),
        (Or(()), NEVER),
        (Not(Or((reftime("<", 3), reftime(">=", 9)))), Interval(3, 9)),
        (Not(And((reftime(">=", 3), reftime("<", 9)))), ALWAYS),
        (Not(And((reftime(">=", 3), reftime(">=", 9)))), Interval(end=9)),
    ],
)
def test_the_interval_holds_what_can_match_and_little_more(expression, interval):
    assert reftime_interval(expression) == interval


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("reftime:=1970-01-01 05", 5 * HOUR, 6 * HOUR),
        ("reftime:=1970-01-01 05, >=12:00, %6h; station:5", 5 * HOUR, 6 * HOUR),
        ("reftime:=1970-01-01 05 or =1970-01-01 08; station:5", 5 * HOUR, 9 * HOUR),
        ("made:=1970-01-01 05", ALWAYS.begin, ALWAYS.end),
        ("", ALWAYS.begin, ALWAYS.end),
    ],
)
def test_only_dates_of_the_reftime_narrow_it(text, begin, end):
    fields = {"station": FieldType.INTEGER, "made": FieldType.TIMESTAMP}
    tree = parse(text, fields, now=datetime(2008, 3, 25, tzinfo=UTC))
    assert reftime_interval(tree) == Interval(begin, end)


@pytest.mark.parametrize(
    ("interval", "empty"),
    [
        (Interval(3, 4), False),
        (Interval(3, 3), True),
        (Interval(4, 3), True),
        (Interval(end=3), False),
        (Interval(begin=3), False),
        (ALWAYS, False),
        (NEVER, True),
    ],
)
def test_an_interval_knows_whether_it_is_empty(interval, empty):
    assert interval.is_empty is empty
