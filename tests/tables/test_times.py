"""Times in tables: forms, zones, and local times that never occur or occur twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import InvalidInput
from ondisk.tables.times import Times, Twice, Zone


def read(text: str, format: str | None = None, zone: str | None = None) -> str:
    times = Times(format, None if zone is None else Zone(zone))
    found = times[text]
    assert times[text] == found
    if isinstance(found, str):
        raise InvalidInput(found)
    return from_microseconds(found).isoformat()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20T06:00:00Z", "2026-11-20T06:00:00+00:00"),
        ("2026-11-20 06:00:00+00:00", "2026-11-20T06:00:00+00:00"),
        ("2026-11-20 06:00:00 +0100", "2026-11-20T05:00:00+00:00"),
        ("2026-11-20t06:00:00.25-02:30", "2026-11-20T08:30:00.250000+00:00"),
        ("2026-11-20T06:00:00.1234569Z", "2026-11-20T06:00:00.123456+00:00"),
        ("2026-11-20T06:00+01", "2026-11-20T05:00:00+00:00"),
        (" 2026-11-20T06:00Z ", "2026-11-20T06:00:00+00:00"),
        ("1969-12-31T23:59:59.9Z", "1969-12-31T23:59:59.900000+00:00"),
    ],
)
def test_a_time_with_an_offset_needs_no_zone(text, wanted):
    assert read(text) == read(text, None, "Europe/Rome") == wanted


@pytest.mark.parametrize(
    ("text", "zone", "wanted"),
    [
        ("2026-11-20", "UTC", "2026-11-20T00:00:00+00:00"),
        ("2026-11-20 06:00", "UTC", "2026-11-20T06:00:00+00:00"),
        ("2026-11-20T06:00", "Europe/Rome", "2026-11-20T05:00:00+00:00"),
        ("2026-07-20T06:00:00.5", "Europe/Rome", "2026-07-20T04:00:00.500000+00:00"),
        ("2026-11-20T06:00", "+05:45", "2026-11-20T00:15:00+00:00"),
        ("2026-11-20T06:00", "-0330", "2026-11-20T09:30:00+00:00"),
    ],
)
def test_a_time_without_an_offset_is_in_the_zone(text, zone, wanted):
    assert read(text, None, zone) == wanted
    with pytest.raises(InvalidInput, match="has no offset; pass tz"):
        read(text)


OTHERS = [
    "", "x", "2026-11-20T", "2026-13-01", "2026-02-30", "2026-11-20T24:01", "2026-11-20T24:00:00.1",
    "2026-11-20T25:00", "9999-12-31T24:00Z", "2026-11-20T06:60", "2026-11-20T06:00:60",
    "20.11.2026", "2026-11-20T6:00", "1795161600", "2026-11-20T06:00:00+25:00", "2026-11-20T06:00:00+01:99",
    "0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00", "٢٠٢٦-11-20", "2026-11-20T06:00:00Zulu", "2026-11-20\n06:00",
]  # fmt: skip


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_are_refused_and_named(text):
    for zone in (None, "UTC", "Europe/Rome"):
        with pytest.raises(InvalidInput) as caught:
            read(text, None, zone)
        assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("format", "text", "wanted"),
    [
        ("%d.%m.%Y %H:%M", "20.11.2026 06:30", "2026-11-20T05:30:00+00:00"),
        ("%d.%m.%Y %H:%M", "1.7.2026 6:30", "2026-07-01T04:30:00+00:00"),
        ("%m/%d/%y %I:%M %p", "11/20/26 06:30 PM", "2026-11-20T17:30:00+00:00"),
        ("%Y%m%d%H", "2026112006", "2026-11-20T05:00:00+00:00"),
        ("%Y%m%dT%H%M%S", "20261120T063059", "2026-11-20T05:30:59+00:00"),
        ("%Y-%m", "2026-11", "2026-10-31T23:00:00+00:00"),
        ("%Y-%j %H:%M:%S.%f", "2026-324 06:00:00.5", "2026-11-20T05:00:00.500000+00:00"),
        ("%d.%m.%Y %H:%M%z", "20.11.2026 06:30+0200", "2026-11-20T04:30:00+00:00"),
        ("unix", "1795161600", "2026-11-20T08:00:00+00:00"),
        ("unix", "-0.25", "1969-12-31T23:59:59.750000+00:00"),
        ("unix-ms", "1795161600123.4567", "2026-11-20T08:00:00.123456+00:00"),
    ],
)
def test_a_format_says_how_times_are_written(format, text, wanted):
    assert read(text, format, "Europe/Rome") == wanted
    times = Times(format, Zone("Europe/Rome"))
    assert {times.__missing__(text) for _ in range(3)} == {times[text]}  # also of halves that were read


RUNS = [
    ("%Y%m%d%H%M%S", ["202005300440", "2020053004405", "20200530044"]),
    ("%Y%m%d%H%M", ["2020053004", "20205304405"]),
    ("%Y%m%d", ["202011", "2020111", "202011 1", " 2020 11 1"]),
    ("%y%m%d", ["2011", "20115"]),
    ("%d%m%Y", ["112020", "1112020"]),
    ("%Y%j%H", ["2020511", "20203241"]),
    ("%Y-%m-%d %H%M", ["2020-05-30 905", "2020-05-30 95"]),
    ("%d.%m.%Y %I%M%p", ["30.5.2020 905PM"]),
    ("%Y%m%dT%H:%M", ["202051T06:00"]),
    ("%Y-%m-%d %H:%M:%S%f", ["2020-05-30 06:00:5", "2020-05-30 06:00:75123", "2020-05-30 06:00:70000"]),
    ("%Y-%m-%d %H00", ["2020-05-30 900", "2020-05-30 90"]),
    ("20%y%m%d", ["202051"]),
    ("%G%V%u", ["202053", "202052"]),
    ("%Y%m%d%%%H%M", ["20200530%905"]),
]


@pytest.mark.parametrize(("format", "text"), [(format, text) for format, texts in RUNS for text in texts])
def test_a_number_beside_another_one_without_all_its_digits_is_refused(format, text):
    with pytest.raises(InvalidInput, match="it is not of the format"):
        read(text, format, "UTC")


@given(st.datetimes(datetime(1970, 1, 1), datetime(2037, 12, 31)), st.sampled_from(RUNS))
def test_a_number_beside_another_one_with_all_its_digits_is_read(time, run):
    format = run[0]
    text = time.replace(tzinfo=UTC).strftime(format)
    assert read(text, format, "UTC") == datetime.strptime(text, format).replace(tzinfo=UTC).isoformat()


@pytest.mark.parametrize(
    ("format", "text", "wanted"),
    [
        ("%d.%m.%Y %H:%M", "5.3.2026 9:05", "2026-03-05T09:05:00"),
        ("%Y-%m-%d %H:%M:%S.%f", "2026-3-5 9:5:7.25", "2026-03-05T09:05:07.250000"),
        ("%d%b%Y %H%M", "5Mar2026 0905", "2026-03-05T09:05:00"),
        ("%Y-%m-%d %H:%M:%S%f", "2026-03-05 09:05:0725", "2026-03-05T09:05:07.250000"),
        ("%Y-%m-%d %H%M%z", "2026-03-05 0905+01:00", "2026-03-05T08:05:00"),
        ("%z %Y%m%d%H%M", "+0100 202603050905", "2026-03-05T08:05:00"),
        ("%m/%d/%Y %I%p", "3/5/2026 9PM", "2026-03-05T21:00:00"),
    ],
)
def test_numbers_between_signs_may_lack_a_zero_and_fractions_offsets_and_names_are_as_long_as_they_are(
    format, text, wanted
):
    assert read(text, format, "UTC") == f"{wanted}+00:00"


@pytest.mark.parametrize(
    ("format", "text", "wanted"),
    [
        (None, "2026-11-30 24:00", "2026-12-01T00:00:00"),
        (None, "2026-12-31T24:00:00.000+01:00", "2026-12-31T23:00:00"),
        ("%d.%m.%Y %H:%M", "24.11.2026 24:00", "2026-11-25T00:00:00"),
        ("%Y%m%d%H%M", "202611302400", "2026-12-01T00:00:00"),
        ("%H:%M %d.%m.%Y", "24:00 30.11.2026", "2026-12-01T00:00:00"),
        ("%Y-%m-%d %H", "2026-02-28 24", "2026-03-01T00:00:00"),
    ],
)
def test_24_00_is_the_end_of_a_day(format, text, wanted):
    assert read(text, format, "UTC") == f"{wanted}+00:00"
    times = Times(format, Zone("UTC"))
    if format is not None:  # the midnight that begins a day is another one, whichever was read first
        begin = times[text.replace("24:00", "00:00")]
        assert times[text] - begin in (0, 86_400_000_000)
        assert times[text] == Times(format, Zone("UTC"))[text]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("%d.%m.%Y %H:%M", "30.11.2026 24:01"),
        ("%d.%m.%Y %H:%M:%S", "30.11.2026 24:00:01"),
        ("%d.%m.%Y %I:%M", "30.11.2026 24:00"),
        ("%d.%m.%Y %H:%M", "31.12.9999 24:00"),
        ("%Y%m%d%H%M", "202613242400"),
    ],
)
def test_no_other_time_of_day_has_the_hour_24(format, text):
    with pytest.raises(InvalidInput, match="it is not of the format"):
        read(text, format, "UTC")


def test_halves_of_a_format_that_were_seen_apart_mean_the_same_together():
    times = Times("%d.%m.%Y %H:%M%z", None)
    for text in ("20.11.2026 06:30+0200", "21.11.2026 07:30-0100"):
        assert isinstance(times[text], int)
    assert times["21.11.2026 06:30+0200"] == microseconds(datetime(2026, 11, 21, 4, 30, tzinfo=UTC))
    for text in ("20.11.2026", "06:30+0200", "20.11.2026 ", " 06:30+0200", "20.11.2026 06:30+0200 x"):
        assert "it is not of the format" in str(times[text])


@pytest.mark.parametrize("format", ["%d.%m. %H:%M", "%H:%M", "x", "", "%Q", "%Y-%m-%d %H:%M %Z", "%s", "%Y %z%H"])
def test_a_format_without_a_year_or_with_a_directive_that_says_no_offset_is_refused(format):
    with pytest.raises(InvalidInput, match="the time format"):
        Times(format)


@pytest.mark.parametrize(
    "name", ["", "Europe/Roma", "Europe", "../../etc/passwd", "/etc/localtime", "+25:00", "CEST+", "\0"]
)
def test_a_zone_that_is_not_there_is_refused(name):
    with pytest.raises(InvalidInput):
        Zone(name)


def test_an_hour_that_was_skipped_or_repeated_is_refused_and_the_minutes_around_it_are_not():
    assert read("2026-03-29 01:59", None, "Europe/Rome") == "2026-03-29T00:59:00+00:00"
    assert read("2026-03-29 03:00", None, "Europe/Rome") == "2026-03-29T01:00:00+00:00"
    assert read("2026-10-25 01:59", None, "Europe/Rome") == "2026-10-24T23:59:00+00:00"
    assert read("2026-10-25 03:00", None, "Europe/Rome") == "2026-10-25T02:00:00+00:00"
    for text in ("2026-03-29 02:00", "2026-03-29 02:59:59.999999"):
        with pytest.raises(InvalidInput, match="does not exist in Europe/Rome, since clocks are put forward then"):
            read(text, None, "Europe/Rome")
    for text in ("2026-10-25 02:00", "2026-10-25 02:59:59.999999"):
        with pytest.raises(InvalidInput, match="happens twice in Europe/Rome, since clocks are put back then"):
            read(text, None, "Europe/Rome")
    assert read("2026-10-25 02:30+01:00", None, "Europe/Rome") == "2026-10-25T01:30:00+00:00"


ZONES = ["Europe/Rome", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Africa/Monrovia", "Asia/Kathmandu"]


@given(st.sampled_from(ZONES), st.datetimes(datetime(1850, 1, 1), datetime(2100, 1, 1)), st.booleans())
def test_a_moment_is_found_again_from_its_local_time_or_that_occurs_twice(name, moment, near):
    """`near` a change of the offset, which random moments hardly ever are."""
    zone, known = ZoneInfo(name), Zone(name)
    moment = moment.replace(tzinfo=UTC)
    if near:
        day = timedelta(days=1)
        later = (moment + day * n for n in range(400))
        changed = next((each for each in later if offset(zone, each) != offset(zone, each + day)), moment)
        moment = changed + (moment - moment.replace(hour=0, minute=0))
    local = moment.astimezone(zone)
    twice = local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()
    wall = microseconds(local.replace(tzinfo=UTC))
    if twice:
        found = known.utc(wall)
        assert isinstance(found, Twice)
        assert found.moments == tuple(microseconds(local.replace(fold=fold)) for fold in (0, 1))
        assert "happens twice" in found
    else:
        assert known.utc(wall) == microseconds(moment)


def offset(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


@pytest.mark.parametrize(
    ("format", "texts"),
    [
        ("%m/%d/%Y %H:%M", ["11/ 2/2026\xa006:00", "12/ 1/2026\xa006:00", "12/ 2/2026\xa006:00"]),
        ("%d%b%YT%H:%M", ["06OCT2026T09:05", "05OCT2027T09:05", "05OCT2026T09:05"]),
        ("%d%a%YT%H:%M", ["03SAT2026T09:05", "04SUN2027t10:05", "03SAT2026t11:05"]),
        ("%d.%m.%Y %H:%M", ["05.03.2026\xa009:05", "06.03.2026\xa010:05", "05.03.2026\xa009:05 "]),
    ],
)
def test_times_are_read_alone_where_the_date_and_the_clock_cannot_be_told_apart(format, texts):
    times = Times(format, Zone("UTC"))
    expected = [datetime.strptime(text.strip(), format).replace(tzinfo=UTC) for text in texts]
    assert [from_microseconds(times[text]) for text in texts] == expected
