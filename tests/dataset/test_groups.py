"""`Dataset.summary_by`."""

from __future__ import annotations

import shutil
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from math import fsum, inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import sql

import ondisk
from ondisk import Datum, Group
from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import IndexCorrupt, InvalidInput, MatchError
from ondisk.index.groups import Begins
from ondisk.local_time import zone_of

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
FIELDS = {
    "site": "text",
    "station": "integer",
    "level": "real",
    "made": "timestamp",
    "valid": "boolean",
    "key": "bytes",
}
NAMES = {"hour": "%Y%m%d%H", "day": "%Y%m%d", "month": "%Y%m", "year": "%Y"}


@pytest.fixture
def weather(create):
    """Return a dataset with a datum each six hours, of two stations in turns."""
    dataset = create("weather", step="monthly", unique=["reftime", "station"], fields=FIELDS)
    dataset.append(
        Datum(NOON + number * timedelta(hours=6), {"station": number % 2, "level": number / 2}, {"wind": number})
        for number in range(60)
    )
    return dataset


def brief(groups):
    return [(f"{each.key:%m-%d}", each.count, each.min, each.mean, each.max) for each in groups]


def test_data_are_counted_by_day_with_lowest_mean_and_highest_value(weather):
    assert brief(weather.summary_by("day", "reftime: <=2026-11-22", min_max="level")) == [
        ("11-20", 2, 0.0, 0.25, 0.5),
        ("11-21", 4, 1.0, 1.75, 2.5),
        ("11-22", 4, 3.0, 3.75, 4.5),
    ]
    [first, *_] = weather.summary_by("day")
    assert first == Group(NOON.replace(hour=0), 2, first.size, NOON, NOON + timedelta(hours=6))
    assert sum(each.size for each in weather.summary_by("day")) == weather.summary().size


def test_data_are_counted_by_month_year_and_hour(weather):
    assert brief(weather.summary_by("month")) == [("11-01", 42, None, None, None), ("12-01", 18, None, None, None)]
    assert [(each.key, each.count) for each in weather.summary_by("year")] == [(datetime(2026, 1, 1, tzinfo=UTC), 60)]
    assert [each.key for each in weather.summary_by("hour")] == [each.reftime for each in weather.query()]


def test_data_are_counted_by_the_values_of_a_field(weather):
    weather.append([Datum(NOON, {"station": 7}), Datum(NOON, {"level": 2.0})])
    found = [(each.key, each.count, each.min, each.max) for each in weather.summary_by("station", min_max="level")]
    assert found == [(None, 1, 2.0, 2.0), (0, 30, 0.0, 29.0), (1, 30, 0.5, 29.5), (7, 1, None, None)]


def test_times_have_a_first_and_a_last_value_and_no_mean(weather):
    [group] = weather.summary_by("year", min_max="reftime")
    assert (group.min, group.max, group.mean) == (NOON, NOON + timedelta(hours=59 * 6), None)


def test_numbers_in_the_data_themselves_are_summarised(weather):
    weather.append(
        [Datum(NOON, {"station": 5 + at}, {"wind": value}) for at, value in enumerate(["1", None, True, {}])]
    )
    assert brief(weather.summary_by("day", "reftime: <=2026-11-21", min_max="data.wind")) == [
        ("11-20", 6, 0.0, 0.5, 1.0),
        ("11-21", 4, 2.0, 3.5, 5.0),
    ]
    found = [(each.key, each.count, each.max) for each in weather.summary_by("station", min_max="data.wind")]
    assert found == [(0, 30, 58.0), (1, 30, 59.0), *((station, 1, None) for station in range(5, 9))]


def test_data_before_1970_are_in_the_period_that_contains_them(create):
    dataset = create("old", step="yearly")
    last = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    dataset.append(Datum(time, {}, {}) for time in (FIRST, last))
    parts = {"hour": (1969, 12, 31, 23), "day": (1969, 12, 31), "month": (1969, 12, 1), "year": (1969, 1, 1)}
    found = {by: [each.key for each in dataset.summary_by(by)] for by in parts}
    assert found == {by: [FIRST, datetime(*begin, tzinfo=UTC)] for by, begin in parts.items()}


def test_an_infinite_value_has_no_mean(create):
    dataset = create("infinite", fields=FIELDS)
    dataset.append([Datum(NOON, {"level": value}) for value in (inf, -inf, 1.0)])
    [group] = dataset.summary_by("day", min_max="level")
    assert (group.min, group.mean, group.max) == (-inf, None, inf)


def test_archives_are_counted_with_the_dataset_in_one_order(weather):
    expected = {by: [*weather.summary_by(by, min_max="level")] for by in ("day", "month", "station", "made")}
    weather.archive("2026/11.jsonl")
    weather.append([Datum(NOON + timedelta(days=1), {"station": 9, "level": 0.0})])
    days = brief(weather.summary_by("day", min_max="level"))
    assert days[1] == ("11-21", 5, 0.0, 1.4, 2.5)
    assert [each.key for each in weather.summary_by("station")] == [0, 1, 9]
    weather.delete("station: 9")
    assert {by: [*weather.summary_by(by, min_max="level")] for by in expected} == expected


def test_an_archive_that_is_offline_or_away_is_counted(weather):
    days = [*weather.summary_by("day")]
    weather.archive("2026/11.jsonl")
    weather.rename_archive("last", "tape")
    weather.set_offline("tape")
    (weather.path / ".archive/tape").rename(weather.path.parent / "tape")
    assert [*weather.summary_by("day")] == days
    (weather.path.parent / "tape").rename(weather.path / ".archive/tape")
    weather.set_online("tape")
    (weather.path / ".archive/tape").rename(weather.path.parent / "tape")
    assert [*weather.summary_by("day")] == days


def test_a_summary_is_of_one_state_and_can_be_closed(weather):
    with weather.summary_by("day") as groups:
        next(groups)
        weather.append([Datum(NOON + timedelta(days=300), {"station": 1})])
        assert len([*groups]) == 15


def test_the_hint_for_a_number_that_is_no_field_says_how_to_name_one_in_the_data(weather):
    with pytest.raises(MatchError, match=r"A number in the data themselves is written `data\.wind`"):
        weather.summary_by("day", min_max="wind")


@pytest.mark.parametrize(
    ("by", "of", "problem"),
    [
        ("days", None, "days"),
        ("metadata.x", None, "is not declared"),
        ("day", "nowhere", "nowhere"),
        ("day", "site", "'site' is declared text, and has no lowest and highest value"),
        ("day", "valid", "is declared boolean"),
        ("day", "metadata.x", "is not declared"),
    ],
)
def test_what_cannot_be_grouped_is_an_error_before_anything_is_read(weather, by, of, problem):
    with pytest.raises(MatchError) as error:
        weather.summary_by(by, min_max=of)
    assert problem in error.value.message


def test_the_error_for_another_period_names_those_that_exist(weather):
    with pytest.raises(MatchError, match="The periods are hour, day, month, year"):
        weather.summary_by("week")


def hourly(create, begin, hours):
    dataset = create("hourly", step="monthly", fields=FIELDS)
    times = (begin + number * timedelta(hours=1) for number in range(hours))
    dataset.append(Datum(time, {"station": number % 2}, {"wind": 1}) for number, time in enumerate(times))
    return dataset


@pytest.mark.parametrize("of", [None, "data.wind"])
def test_days_of_a_zone_have_23_and_25_hours_when_its_clocks_change(create, of):
    for month, hours in ((3, 23), (10, 25)):
        dataset = hourly(create, datetime(2026, month, 23, 23, tzinfo=UTC), 8 * 24)
        days = {f"{each.key:%d}": each.count for each in dataset.summary_by("day", min_max=of, tz="Europe/Rome")}
        assert days["29" if month == 3 else "25"] == hours
        assert days["27"] == 24
        dataset.close()
        shutil.rmtree(dataset.path)


def test_the_two_hours_of_a_clock_that_is_put_back_are_two_groups(create):
    dataset = hourly(create, datetime(2026, 10, 25, tzinfo=UTC), 3)
    hours = [each.key.isoformat() for each in dataset.summary_by("hour", tz="Europe/Rome")]
    assert hours == ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"]


def test_data_are_counted_by_day_and_field_and_the_keys_are_a_tuple(create):
    dataset = hourly(create, datetime(2026, 10, 24, 22, tzinfo=UTC), 26)
    keys = [
        ((f"{day:%d}", station), each.count)
        for each in dataset.summary_by("day,station", tz="Europe/Rome")
        for day, station in [each.key]
    ]
    assert keys == [(("25", 0), 13), (("25", 1), 12), (("26", 1), 1)]


def test_a_zone_is_one_of_periods_and_must_exist(weather):
    with pytest.raises(InvalidInput, match="'Europe/Roma' is not a time zone") as error:
        weather.summary_by("day", tz="Europe/Roma")
    assert "Europe/Rome" in error.value.hint
    with pytest.raises(InvalidInput, match="the zone of periods"):
        weather.summary_by("station", tz="Europe/Rome")
    with pytest.raises(InvalidInput, match="names a key twice"):
        weather.summary_by("day, day")


@given(
    st.lists(st.datetimes(datetime(1880, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)), max_size=20),
    st.sampled_from([*NAMES]),
    st.sampled_from(["Europe/Rome", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "+05:45"]),
)
def test_periods_of_a_zone_are_those_that_its_clocks_show(times, by, zone):
    begins = Begins(by, zone_of(zone))
    for time in times:
        local = time.astimezone(zone_of(zone))
        begin = from_microseconds(begins.of(microseconds(time))).astimezone(zone_of(zone))
        assert f"{begin:{NAMES[by]}}" == f"{local:{NAMES[by]}}"
        assert begin <= local


TIMES = st.one_of(
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23), timezones=st.just(UTC)),
    st.datetimes(datetime(1969, 12, 30), datetime(1970, 1, 3), timezones=st.just(UTC)),
)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "site": st.text("aé\U0001f600\uffff", max_size=2),
        "station": st.integers(-(2**63), 2**63 - 1),
        "level": st.floats(-1e300, 1e300, allow_nan=False),
        "made": TIMES,
        "valid": st.booleans(),
        "key": st.binary(max_size=2),
    },
)


@given(
    st.lists(st.builds(Datum, TIMES, METADATA, st.just({})), max_size=20),
    st.sampled_from([*NAMES, *FIELDS, "reftime"]),
    st.sampled_from(["station", "level"]),
)
def test_groups_are_those_that_python_counts(tmp_path_factory, data, by, of):
    groups = defaultdict(list)
    for each in data:
        key = each.metadata.get(by) if by in FIELDS else each.reftime
        groups[f"{key:{NAMES[by]}}" if by in NAMES else key].append(each)
    path = tmp_path_factory.mktemp("groups") / "dataset"
    with ondisk.create(path, {"format": "jsonl", "step": "yearly", "fields": FIELDS}) as dataset:
        dataset.append(data)
        found = [*dataset.summary_by(by, min_max=of)]
    keys = [each.key.encode() if isinstance(each.key, str) else each.key for each in found]
    assert keys == sorted(keys, key=lambda key: (key is not None, key if key is not None else 0))
    assert len(found) == len(groups)
    for group in found:
        mine = groups[f"{group.key:{NAMES[by]}}" if by in NAMES else group.key]
        values = [each.metadata[of] for each in mine if of in each.metadata]
        assert (group.count, group.begin, group.end) == (
            len(mine),
            min(each.reftime for each in mine),
            max(each.reftime for each in mine),
        )
        assert (group.min, group.max) == (min(values, default=None), max(values, default=None))
        if values and group.mean is not None:
            assert isclose(group.mean, fsum(values) / len(values), rel_tol=1e-9, abs_tol=1e284)
        if by in NAMES:
            assert group.key <= group.begin


@pytest.mark.parametrize(
    ("edit", "ask"),
    [
        ("UPDATE value SET value = -1", lambda dataset: [*dataset.summary_by("site")]),
        ("UPDATE value SET value = -1", lambda dataset: dataset.summary(fields=["site"])),
        ("UPDATE value SET value = x'00'", lambda dataset: dataset.summary(fields=["site"])),
        ("UPDATE day_sum SET first = -9223372036854775808", lambda dataset: [*dataset.summary_by("day")]),
        ("UPDATE datum SET reftime = 9223372036854775807", lambda dataset: [*dataset.summary_by("site")]),
    ],
)
def test_values_that_ondisk_never_writes_are_damage_of_the_index(edit, ask, create):
    dataset = create(fields=FIELDS, index=["site"])
    dataset.append(Datum(NOON, {"site": site}, {"n": 1}) for site in "a")
    dataset.close()
    sql(dataset.path, edit)
    with ondisk.open(dataset.path, read_only=True) as again, pytest.raises(IndexCorrupt, match=r"index\.sqlite"):
        ask(again)


def test_the_first_day_that_there_is_has_no_begin_in_a_zone_west_of_utc(create):
    dataset = create(format="jsonl")
    dataset.append([Datum(datetime(1, 1, 1, tzinfo=UTC), {}, {})])
    assert [each.count for each in dataset.summary_by("day", tz="America/New_York")] == [1]
