"""Properties of every match expression."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta

from hypothesis import assume, example, given
from hypothesis import strategies as st

from ondisk.datum import FieldType, from_microseconds, microseconds
from ondisk.errors import MatchError
from ondisk.matcher import (
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Expression,
    Fields,
    IsMissing,
    Not,
    OneOf,
    Or,
    Sort,
    StartsWith,
    TimeOfDay,
    matches,
    parse,
    parse_sort,
    reftime_interval,
)

FIELDS = {
    "station": FieldType.INTEGER,
    "level": FieldType.REAL,
    "product": FieldType.TEXT,
    "valid": FieldType.BOOLEAN,
    "made": FieldType.TIMESTAMP,
    "key": FieldType.BYTES,
}
# Words of the language in any order reach more of the parser than arbitrary text.
TOKENS = [
    *("reftime:", "made:", "station:", "level:", "product:", "valid:", "key:", "colour:", ":", ";", "\n", " or ", "or"),
    *(",", " ", '"', '""', "=", "==", ">=", ">", "<=", "<", "from ", "until ", "%", "every ", "@", "+", "-", " and "),
    *("now", "today", "yesterday", "tomorrow", "midday", "noon", "midnight", "easter", " ago", " before ", " after "),
    *(
        "1",
        "02",
        "12:30",
        "24:00",
        "25:61",
        "2007",
        "2008-02",
        "2007-02-30",
        "9999-12-31",
        "0001",
        "T",
        "Z",
        "a ",
        "an ",
    ),
    *(
        "h",
        " hours",
        " months",
        "years",
        " days",
        " weeks",
        "m",
        "s",
        "1e999",
        "nan",
        "inf",
        "true",
        "0x",
        "ff",
        "9" * 5000,
    ),
    *("\ud800", "é", "\u0663", "\xa0", "\0"),
]
texts = st.text() | st.lists(st.sampled_from(TOKENS)).map("".join)
times = st.datetimes(timezones=st.just(UTC))
# Few values, so that conditions often match data.
instants = st.integers(-3, 3).map(lambda n: n * 43_200_000_000) | st.integers(-(10**14), 10**14)
operators = st.sampled_from(["=", "<", "<=", ">", ">="])
products = st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=3).map(",".join)
leaves = st.one_of(
    st.just(Everything()),
    st.builds(Compare, st.just("reftime"), operators, instants),
    st.builds(Compare, st.just("station"), operators, st.integers(0, 3)),
    st.builds(OneOf, st.just("reftime"), st.lists(instants, max_size=3).map(tuple)),
    st.builds(IsMissing, st.sampled_from(["reftime", "station"])),
    st.builds(StartsWith, st.just("product"), products),
    st.builds(Components, st.just("product"), st.lists(st.sampled_from(["a", "b", None]), min_size=1).map(tuple)),
    st.builds(TimeOfDay, st.just("reftime"), st.integers(0, 43_200), st.integers(43_201, 86_400)),
    st.builds(EverySeconds, st.just("reftime"), st.integers(1, 86_400), st.integers(0, 86_399)),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, max_size=3).map(tuple)),
    ),
)
data = st.fixed_dictionaries({"reftime": instants}, optional={"station": st.integers(0, 3), "product": products})


def outcome(read, *arguments, **options):
    """Return the result of reading, or the MatchError."""
    try:
        return read(*arguments, **options)
    except MatchError as error:
        return error


def hits(text, time, now=None):
    return matches(parse("reftime:" + text, {}, now=now), {"reftime": microseconds(time)}.get)


@given(texts, times)
@example("reftime:=1" + " day before 1" * 500 + " day ago", datetime(1, 1, 1, tzinfo=UTC))
def test_any_text_is_a_tree_or_a_match_error_with_a_remedy(text, now):
    result = outcome(parse, text, FIELDS, now=now)
    if isinstance(result, MatchError):
        assert result.hint
        assert str(result).encode(), "an error can be printed, whatever the text was"
    else:
        assert matches(result, {"reftime": 0}.get) in (True, False)


@given(st.sampled_from([*FIELDS, "reftime"]), texts)
def test_any_value_is_a_tree_or_a_match_error_with_a_remedy(field, text):
    result = outcome(parse, f"{field}:{text}", FIELDS)
    assert isinstance(result, Expression) or result.hint


@given(texts | st.lists(st.sampled_from(["day", ":", "-", ",", "station", "reftime", " "])).map("".join))
def test_any_sort_order_is_read_or_a_match_error(text):
    result = outcome(parse_sort, text, FIELDS)
    assert result.keys if isinstance(result, Sort) else result.hint


@given(expressions, data)
def test_the_interval_holds_every_reftime_that_matches(expression, datum):
    if matches(expression, datum.get):
        interval = reftime_interval(expression)
        assert not interval.is_empty
        assert datum["reftime"] in interval


@given(expressions, data)
def test_the_complement_matches_exactly_what_the_expression_does_not(expression, datum):
    assert matches(~expression, datum.get) is not matches(expression, datum.get)


@given(expressions, expressions, data)
def test_and_and_or_are_those_of_logic(one, other, datum):
    first, second = matches(one, datum.get), matches(other, datum.get)
    assert matches(one & other, datum.get) is (first and second)
    assert matches(one | other, datum.get) is (first or second)


@given(times, times, st.integers(1, 6), st.booleans())
def test_a_partial_date_is_the_interval_of_all_times_that_begin_with_it(date, time, precision, near):
    length = (4, 7, 10, 13, 16, 19)[precision - 1]
    if near:
        time = date.replace(microsecond=time.microsecond)
    # Written out in full, times sort as texts: the model compares the leading characters.
    text = date.strftime("%Y-%m-%d %H:%M:%S").zfill(19)[:length]
    begins = time.strftime("%Y-%m-%d %H:%M:%S").zfill(19)[:length]
    assert hits("=" + text, time) is (begins == text)
    assert hits("<" + text, time) is (begins < text)
    assert hits("<=" + text, time) is (begins <= text)
    assert hits(">" + text, time) is (begins > text)
    assert hits(">=" + text, time) is (begins >= text)


@given(st.times(), times, st.integers(1, 3), st.sampled_from(["=", "<", "<=", ">", ">="]))
def test_a_time_of_day_compares_as_its_leading_digits(clock, time, precision, operator):
    length = (2, 5, 8)[precision - 1]
    text, begins = clock.strftime("%H:%M:%S")[:length], time.strftime("%H:%M:%S")[:length]
    wanted = {"=": begins == text, "<": begins < text, "<=": begins <= text, ">": begins > text, ">=": begins >= text}
    assert hits(operator + text, time) is wanted[operator]


@given(times, st.integers(-1200, 1200))
def test_months_move_one_by_one_to_the_same_day_or_the_last(date, months):
    year, month = date.year, date.month
    for _ in range(abs(months)):
        month += 1 if months > 0 else -1
        year, month = (year + 1, 1) if month > 12 else (year - 1, 12) if month < 1 else (year, month)
    assume(1 <= year <= 9999)
    moved = date.replace(year=year, month=month, day=min(date.day, monthrange(year, month)[1]), microsecond=0)
    text = f"{date:%Y-%m-%d %H:%M:%S}".zfill(19)
    sign = "+-"[months < 0]
    assert parse(f"reftime:>={text} {sign} {abs(months)} months", {}) == Compare("reftime", ">=", microseconds(moved))


@given(times, st.integers(0, 10**6), st.sampled_from(["second", "minute", "hour", "day", "week"]))
def test_ago_is_the_whole_unit_that_long_before_now(now, count, unit):
    length = timedelta(**{unit + "s": 1})
    assume(now - datetime.min.replace(tzinfo=UTC) >= count * length)
    assert hits(f"={count} {unit}s ago", now - count * length, now)
    assert unit == "second" or count == 0 or hits(f"<={count} {unit}s ago", now - count * length, now)
    whole = reftime_interval(parse(f"reftime:={count} {unit}s ago", {}, now=now))
    assert whole.end - whole.begin == min(length, timedelta(days=1)) // timedelta(microseconds=1)


@given(times, st.times(), st.integers(1, 86_400))
def test_a_step_matches_the_whole_seconds_that_stepping_meets(time, base, period):
    start = base.hour * 3600 + base.minute * 60 + base.second
    met = {*range(start, 86_400, period), *range(start, -1, -period)}
    second = time.hour * 3600 + time.minute * 60 + time.second
    assert hits(f"@{base:%H:%M:%S} %{period}s", time) is (second in met)
    assert hits(f"<=9999-12-31 {base:%H:%M:%S}%{period}s", from_microseconds(0).replace(hour=base.hour)) is (
        base.hour * 3600 in met
    )


@given(st.text(), st.text())
def test_a_quoted_text_matches_itself_alone(text, other):
    tree = parse('product:"' + text.replace('"', '""') + '"', FIELDS)
    assert tree == (Fields(FIELDS).product == text)
    assert matches(tree, {"product": text}.get)
    assert matches(tree, {"product": other}.get) is (text == other)


@given(st.lists(st.sampled_from(["a", "bc", ""]), min_size=1, max_size=4), products)
def test_components_compare_from_the_left_and_an_empty_one_is_any(parts, product):
    assume(any(parts))
    own = product.split(",")
    asked = ",".join(parts).rstrip(",").split(",")
    wanted = len(own) >= len(asked) and all(part in ("", mine) for part, mine in zip(asked, own, strict=False))
    assert matches(parse("product:" + ",".join(parts), FIELDS), {"product": product}.get) is wanted
