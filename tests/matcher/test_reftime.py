"""The times of match expressions; many expected results are from arkimet's own tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ondisk.datum import microseconds
from ondisk.errors import MatchError
from ondisk.matcher import And, Compare, EverySeconds, OneOf, Or, TimeOfDay, matches, parse

NOW = datetime(2008, 3, 25, 1, 2, 3, 999_999, tzinfo=UTC)


def read(text, now=NOW):
    return parse("reftime:" + text, {}, now=now)


def at(text):
    return microseconds(datetime.fromisoformat(text).replace(tzinfo=UTC))


def since(text):
    return Compare("reftime", ">=", at(text))


def before(text):
    return Compare("reftime", "<", at(text))


def within(begin, end):
    return And((since(begin), before(end)))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("=2007", within("2007-01-01", "2008-01-01")),
        ("==2007", within("2007-01-01", "2008-01-01")),
        ("=2007-07", within("2007-07-01", "2007-08-01")),
        ("=2007-12", within("2007-12-01", "2008-01-01")),
        ("=2007-7-7", within("2007-07-07", "2007-07-08")),
        ("=2008-02-29", within("2008-02-29", "2008-03-01")),
        ("=2007-07-07 03", within("2007-07-07T03:00", "2007-07-07T04:00")),
        ("=2007-07-07 03:04", within("2007-07-07T03:04", "2007-07-07T03:05")),
        ("=2007-07-07 03:04:05", within("2007-07-07T03:04:05", "2007-07-07T03:04:06")),
        ("=2007-07-07T03:04:05Z", within("2007-07-07T03:04:05", "2007-07-07T03:04:06")),
        ("=2007-07-07t03z", within("2007-07-07T03:00", "2007-07-07T04:00")),
        (">=2007-07", since("2007-07-01")),
        (">2007-07-07", since("2007-07-08")),
        ("<=2007-07", before("2007-08-01")),
        ("<2007", before("2007-01-01")),
        ("from 2007", since("2007-01-01")),
        ("until 2007", before("2008-01-01")),
        ("UNTIL Tomorrow", before("2008-03-27")),
        ("<=tomorrow 12:00", before("2008-03-26T12:01")),
        ("until tomorrow midday", before("2008-03-26T12:00:01")),
        ("from yesterday midnight", since("2008-03-24")),
        ("from 2006-03-20 midday", since("2006-03-20T12:00")),
        ("=2007-07-07 24:00", within("2007-07-08", "2007-07-08T00:01")),
    ],
)
def test_a_date_is_as_long_as_what_it_leaves_out(text, tree):
    assert read(text) == tree


def test_the_last_year_has_an_end():
    begin, end = read("=9999").children
    assert begin == since("9999-01-01")
    assert end.value == at("9999-12-31T23:59:59") + 1_000_000
    assert read(">9999-12-31 23:59:59").value == end.value


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("=03", "03:00:00", "04:00:00"),
        ("=3", "03:00:00", "04:00:00"),
        ("=12:30", "12:30:00", "12:31:00"),
        ("==12:00:00", "12:00:00", "12:00:01"),
        ("=midday", "12:00:00", "12:00:01"),
        ("=noon", "12:00:00", "12:00:01"),
        ("=midnight", "00:00:00", "00:00:01"),
        (">=12:00:00Z", "12:00:00", "24:00:00"),
        (">12", "13:00:00", "24:00:00"),
        ("<=12", "00:00:00", "13:00:00"),
        ("until 18:30", "00:00:00", "18:31:00"),
        ("<12:00", "00:00:00", "12:00:00"),
        ("<24:00", "00:00:00", "24:00:00"),
    ],
)
def test_a_time_without_a_date_is_meant_for_every_day(text, begin, end):
    seconds = [sum(int(n) * unit for n, unit in zip(t.split(":"), (3600, 60, 1), strict=True)) for t in (begin, end)]
    assert read(text) == TimeOfDay("reftime", *seconds)


@pytest.mark.parametrize("text", ["<00:00", ">23", ">23:59:59", "=24:00", ">=24:00:00"])
def test_a_time_of_day_that_cannot_be_matches_nothing(text):
    assert read(text) == OneOf("reftime", ())


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("=now", within("2008-03-25T01:02:03", "2008-03-25T01:02:04")),
        ("=today", within("2008-03-25", "2008-03-26")),
        ("=yesterday", within("2008-03-24", "2008-03-25")),
        ("=tomorrow", within("2008-03-26", "2008-03-27")),
        (">=yesterday 12:00", since("2008-03-24T12:00")),
        ("=2 days ago", within("2008-03-23", "2008-03-24")),
        ("=0 days ago", within("2008-03-25", "2008-03-26")),
        ("=2 hours ago", within("2008-03-24T23:00", "2008-03-25T00:00")),
        (">=3 seconds ago", since("2008-03-25T01:02:00")),
        (">=3 years ago", since("2005-01-01")),
        ("=1 month ago", within("2008-02-01", "2008-03-01")),
        (">=an hour ago", since("2008-03-25T00:00")),
        ("=a week ago", within("2008-03-18", "2008-03-19")),
        ("=1 month 1 day ago", within("2008-02-24", "2008-02-25")),
        (">=3 days after tomorrow 12:00", since("2008-03-29T12:00")),
        (">=3 months after tomorrow 12:00", since("2008-06-26T12:00")),
        (">=3 years after tomorrow 12:00", since("2011-03-26T12:00")),
        (">=3 weeks before tomorrow 12:00", since("2008-03-05T12:00")),
        (">=3 seconds before tomorrow 12:00", since("2008-03-26T11:59:57")),
        (">=1 month after 2007-02-01 12:00", since("2007-03-01T12:00")),
        (">=3 days 5 hours before tomorrow 12:00", since("2008-03-23T07:00")),
        (">=3d5h and 3min before tomorrow 12:00", since("2008-03-23T06:57")),
        (">=2 months a week 3 days 5 hours and 3 minutes before tomorrow 12:00", since("2008-01-16T06:57")),
        (">=today - 3 days", since("2008-03-22")),
        (">=today-3 days", since("2008-03-22")),
        (">=today + 48 hours", since("2008-03-27")),
        (">=today + 1 month - 2 weeks", since("2008-04-11")),
        ("until 3 years after today", before("2011-03-26")),
        ("=2 days before 3 hours ago", within("2008-03-22T22:00", "2008-03-22T23:00")),
        ("=1 day before 2 days before today", within("2008-03-22", "2008-03-23")),
        ("=1 hour after 2007", within("2007-01-01T01:00", "2007-01-01T02:00")),
        (">=easter 2008", since("2008-03-23")),
        ("=easter 2008 12:00", within("2008-03-23T12:00", "2008-03-23T12:01")),
        (">=5 weeks after easter 2007 - 1 day", since("2007-05-12")),
    ],
)
def test_a_relative_time_is_as_precise_as_its_finest_unit(text, tree):
    assert read(text) == tree


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("1 month after 2007-01-31", "2007-02-28"),
        ("1 month after 2008-01-31", "2008-02-29"),
        ("2008-03-31 - 1 month", "2008-02-29"),
        ("2008-02-29 + 1 year", "2009-02-28"),
        ("2008-02-29 - 100 years", "1908-02-29"),
        ("1 month after 2007-01-31 + 1 month", "2007-03-28"),
        ("1 month after 1 day after 2007-01-30", "2007-02-28"),
        ("1 day after 1 month after 2007-01-30", "2007-03-01"),
        ("1 month before 2 days after 2007-03-29", "2007-02-28"),
        ("2007-01-31 + 2 months", "2007-03-31"),
    ],
)
def test_a_day_that_a_month_does_not_have_becomes_its_last(text, day):
    assert read(">=" + text) == since(day)


def test_an_hour_is_moved_by_months_with_its_day():
    assert read("=1 month ago", datetime(2008, 3, 31, 12, tzinfo=UTC)) == within("2008-02-01", "2008-03-01")


def test_now_is_reported_in_utc():
    rome = timezone(timedelta(hours=2))
    assert read("=today", datetime(2008, 3, 25, 1, 0, tzinfo=rome)) == within("2008-03-24", "2008-03-25")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("%6h", EverySeconds("reftime", 21600, 0)),
        ("% 30 minutes", EverySeconds("reftime", 1800, 0)),
        ("every 3 hours", EverySeconds("reftime", 10800, 0)),
        ("Every3hours", EverySeconds("reftime", 10800, 0)),
        ("%1s", EverySeconds("reftime", 1, 0)),
        ("%24h", EverySeconds("reftime", 86400, 0)),
        ("@04:30%8h", EverySeconds("reftime", 28800, 16200)),
        ("@12:30 every 1h", EverySeconds("reftime", 3600, 1800)),
        (">=12:30%1h", And((TimeOfDay("reftime", 45000, 86400), EverySeconds("reftime", 3600, 1800)))),
        (">=2007-06-05 04:00:30%12h", And((since("2007-06-05T04:00:30"), EverySeconds("reftime", 43200, 14430)))),
        (">2007-01-02 03:04:05 %3h", And((since("2007-01-02T03:04:06"), EverySeconds("reftime", 10800, 245)))),
        ("<2007-01-02 03:04:05%3h", And((before("2007-01-02T03:04:05"), EverySeconds("reftime", 10800, 245)))),
        (">=2007,%6h", And((since("2007-01-01"), EverySeconds("reftime", 21600, 0)))),
        (">=2007-01-01 12:00,%7h", And((since("2007-01-01T12:00"), EverySeconds("reftime", 25200, 0)))),
        ("from a week ago every 3 hours", And((since("2008-03-18"), EverySeconds("reftime", 10800, 0)))),
        ("from yesterday 03:00 every 6 hours", And((since("2008-03-24T03:00"), EverySeconds("reftime", 21600, 10800)))),
        (
            ">=2007-01-01 12:00 @13:00 every 24h",
            And((since("2007-01-01T12:00"), EverySeconds("reftime", 86400, 46800))),
        ),
    ],
)
def test_steps_count_from_midnight_a_base_or_the_date_before_them(text, tree):
    assert read(text) == tree


def test_steps_run_both_ways_restart_at_midnight_and_compare_whole_seconds():
    tree = read(">=2007-06-05 04:00:30%10h")
    hits = ["2007-06-05T04:00:30", "2007-06-05T14:00:30.999999", "2007-06-06T04:00:30", "2007-06-06T14:00:30"]
    misses = ["2007-06-06T00:00:30", "2007-06-05T04:00:31", "2007-06-06T18:00:30", "2007-06-04T14:00:30"]
    assert all(matches(tree, {"reftime": at(text)}.get) for text in hits)
    assert not any(matches(tree, {"reftime": at(text)}.get) for text in misses)


def test_commas_join_what_must_all_hold_and_or_what_may():
    day = ["2008-02-01", "2008-03-01"]
    hours = (TimeOfDay("reftime", 10800, 86400), TimeOfDay("reftime", 0, 66660), EverySeconds("reftime", 3600, 0))
    assert read("=1 month ago, from 03:00, until 18:30, every 1 hour") == And((*within(*day).children, *hours))
    assert read("<2007 or >=2009") == Or((before("2007-01-01"), since("2009-01-01")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2007", "operator"),
        ("today", "operator"),
        ("1 2 3", "operator"),
        ("rusco", "not a word"),
        ("=rusco", "not a word"),
        ("=", "date"),
        (">=2007,", "operator"),
        (",>=2007", "operator"),
        ("=2007 2008", "comma or the end"),
        ("=2007 12:00", "not a day"),
        ("=2007-07T12", "not a day"),
        ("=now 12:00", "comma or the end"),
        ("=12:00 2007", "comma or the end"),
        ("=2007-00-01", "no date"),
        ("=2007-01-00", "no date"),
        ("=2007-13-01", "no date"),
        ("=2007-02-30", "no date"),
        ("=2007-02-29", "no date"),
        ("=0000", "no date"),
        ("=easter 0000", "no date"),
        ("=easter", "not a word"),
        ("=20070707", "not a time"),
        ("=2007-123", "not a time"),
        ("=123", "not a time"),
        ("=12:3", "not a time"),
        ("=25:00", "there is no time"),
        ("=23:60", "there is no time"),
        ("=23:59:60", "there is no time"),
        ("=24:01", "there is no time"),
        ("=2024-02-01 25:00:00", "there is no time"),
        ("=12:00:00.5", "not a time"),
        (">=12:00+01:00", "+01:00 is an offset from UTC"),
        ("=2007-01-01T12:00+25:00", "+25:00 is not an offset"),
        ("=01.10.2026", "'.10.2026' is not a time"),
        ("=1/10/2026", "'/10/2026' is not a time"),
        (">=2026-10-01,=2026/10/01", "'/10/01' is not a time"),
        ("%6", "'%6' is not a time"),
        ("=2007, every 6 ", "'every' is not a word"),
        (">=3 days", "`ago`"),
        (">=3 days today", "`ago`"),
        (">=3 days and", "number of units"),
        (">=3 days before", "date"),
        (">=3 days before 12:00", "date"),
        (">=today -", "number of units"),
        (">=today - 3", "number of units"),
        (">=3 fortnights ago", "not a word"),
        ("=9999 + 1 year", "outside the years"),
        ("=0001 - 1 second", "outside the years"),
        ("=9999-12-31 24:00", "outside the years"),
        ("=99999999999 days ago", "outside the years"),
        ("=999999999999999999 years ago", "outside the years"),
        ("=9999999999999999999 years ago", "too large"),
        ("=" + "9" * 5000 + " days ago", "too large"),
        ("%0h", "not a step"),
        ("%25h", "not a step"),
        ("%86401s", "not a step"),
        ("%2d", "not a step"),
        ("%2parsecs", "not a step"),
        ("%" + "9" * 5000 + "h", "too large"),
        ("%h", "not a time"),
        ("every hour", "not a word"),
        ("@04:30", "a step after"),
        ("=2007 @04:30", "a step after"),
        ("@25:00%1h", "there is no time"),
        ("%1h %2h", "comma or the end"),
        ("=2007-07-07 \u0665", "not a time"),
    ],
)
def test_what_is_no_time_is_refused_with_a_remedy(text, says):
    with pytest.raises(MatchError) as caught:
        read(text)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("=01.10.2026", "YYYY-MM-DD"),
        ("=2026/10/01", "YYYY-MM-DD"),
        ("%6", "h, min or s"),
    ],
)
def test_what_other_languages_write_is_reported_what_to_write_here(text, hint):
    with pytest.raises(MatchError) as caught:
        read(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        (">=2026-10-25T02:30+02:00", "2026-10-25T00:30"),
        (">=2026-10-25T02:30+01:00", "2026-10-25T01:30"),
        (">=2026-10-25T02:30Z", "2026-10-25T02:30"),
        (">=2007-01-01T12:00:00 -0130", "2007-01-01T13:30"),
        (">=2007-01-01T00:30+01", "2006-12-31T23:30"),
        (">=2007-01-01T12:00+01:00 - 2 hours", "2007-01-01T09:00"),
    ],
)
def test_a_time_with_an_offset_is_that_time_in_utc(text, utc):
    assert read(text) == since(utc)


def test_a_distance_behind_a_time_is_no_offset():
    assert read(">=2007-01-01 12:00-1000 minutes") == since("2006-12-31T19:20")
    assert read(">=2007-01-01 12:00+48h") == since("2007-01-03T12:00")


def test_a_bare_date_is_reported_to_write_an_operator():
    with pytest.raises(MatchError) as caught:
        read("2007-07")
    assert "`=2007-07`" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "now"),
    [
        ("=yesterday", datetime.min),
        ("=1 second ago", datetime.min),
        ("=1 month before today", datetime.min),
        ("=tomorrow", datetime.max),
        ("=1 day after now", datetime.max),
        ("=today + 1 year", datetime.max),
    ],
)
def test_what_lies_before_the_first_year_or_after_the_last_is_refused(text, now):
    with pytest.raises(MatchError, match="outside the years 1 to 9999"):
        read(text, now.replace(tzinfo=UTC))


@pytest.mark.parametrize("now", [datetime.min, datetime.max])
@pytest.mark.parametrize("text", ["=now", "=today", "=0 years ago"])
def test_the_first_and_the_last_moment_lie_in_their_periods(text, now):
    now = now.replace(tzinfo=UTC)
    assert matches(read(text, now), {"reftime": microseconds(now)}.get)
