"""`ondisk.files.file_names`."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.datum import FieldType
from ondisk.errors import InvalidInput
from ondisk.files.file_names import Describe

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def time_of(path, time, tz=None):
    return Describe(time, {}, tz, {})(path, 0)[0]


def field_of(path, source, kind=None):
    return Describe("mtime", {"site": source}, None, {} if kind is None else {"site": kind})(path, 0)[1]["site"]


@pytest.mark.parametrize(
    ("path", "time"),
    [
        ("north/20261120_1200.jpg", "name:%Y%m%d_%H%M"),
        ("IMG-20261120-120000-003.jpg", "name:%Y%m%d-%H%M%S"),
        ("IMG_2026.jpg/IMG_20261120T12Z", "name:IMG_%Y%m%dT%H"),
        ("2026/11/20/1200.jpg", "path:%Y/%m/%d/%H%M"),
        ("2026-324 12:00:00.000000", "name:%Y-%j %H:%M:%S.%f"),
        ("2026-11-20T13:00+0100.jpg", "name:%Y-%m-%dT%H:%M%z"),
        ("100%20261120 12", "name:%%%Y%m%d %H"),
        ("20261120_1200_20261120_1200", "name:%Y%m%d_%H%M"),  # twice the same
        ("12345678-20261120-12", "name:%Y%m%d-%H"),
        ("99999999_20261120_1200", "name:%Y%m%d_%H%M"),
        ("20261120 12é.jpg", "name:%Y%m%d %H"),
        ("(2026)[11]*20+12", "name:(%Y)[%m]*%d+%H"),
        ("20261120T1200000", "name:%Y%m%dT%H%M%S%f"),
    ],
)
def test_a_time_is_found_in_a_name_or_a_path(path, time):
    assert time_of(path, time) == NOON


@pytest.mark.each
@pytest.mark.parametrize(
    ("path", "time", "problem"),
    [
        ("photo.jpg", "name:%Y%m%d", "its name has no time of the form %Y%m%d"),
        ("20261120/photo.jpg", "name:%Y%m%d", "its name has no time of the form %Y%m%d"),
        ("120261120.jpg", "name:%Y%m%d", "its name has no time"),
        ("202611201.jpg", "name:%Y%m%d", "its name has no time"),
        ("20261120_06007512.jpg", "name:%Y%m%d_%H%M%S%f", "'20261120_06007512' in its name is an impossible time"),
        ("20261345.jpg", "name:%Y%m%d", "'20261345' in its name is an impossible time"),
        ("20261120-20261121.jpg", "name:%Y%m%d", "several times of the form %Y%m%d: '20261120', '20261121'"),
        ("２０２６1120.jpg", "name:%Y%m%d", "its name has no time"),  # only ASCII digits
        ("20260329_0230", "name:%Y%m%d_%H%M", "2026-03-29 02:30:00 does not exist in Europe/Rome"),
        (os.fsdecode(b"20261120\xff"), "name:%Y%m%d", "its path is not UTF-8"),
    ],
)
def test_a_name_without_one_possible_time_is_refused(path, time, problem):
    with pytest.raises(InvalidInput) as error:
        time_of(path, time, "Europe/Rome")
    assert problem in error.value.message


def test_times_in_names_are_local_if_a_zone_is_given():
    assert time_of("20261120_1300", "name:%Y%m%d_%H%M", "Europe/Rome") == NOON


def test_mtime_is_the_time_of_the_last_change():
    assert Describe("mtime", {}, None, {})("file", 1_795_176_000_123_456_789)[0] == datetime(
        2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC
    )
    for year in (10**30, -(10**30)):
        with pytest.raises(InvalidInput, match="mtime is not one of 1 to 9999"):
            Describe("mtime", {}, None, {})("file", year)


@pytest.mark.parametrize(
    ("time", "tz", "problem"),
    [
        ("ctime", None, "'ctime' does not say where"),
        ("name", None, "'name' does not say where"),
        ("mtime:%Y", None, "does not say where"),
        ("name:", None, "it needs %Y"),
        ("name:%H%M", None, "it needs %Y"),
        ("name:%Y%Y", None, "each letter once"),
        ("name:%Y%b", None, "%b is not known"),
        ("name:%Y%", None, "% is not known"),
        ("name:%Y", "Rome", "'Rome' is not a time zone"),
        ("name:%Y%z", "UTC", "need no time zone"),
        ("mtime", "UTC", "mtime is in UTC"),
    ],
)
def test_what_is_no_place_of_a_time_is_an_error(time, tz, problem):
    with pytest.raises(InvalidInput) as error:
        Describe(time, {}, tz, {})
    assert problem in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("path", "north/2026/cam-1_20261120 12.jpg"),
        ("path:1", "north"),
        ("path:-1", "2026"),
        ("path:2", "2026"),
        ("name", "cam-1_20261120 12.jpg"),
        ("name:1", "cam"),
        ("name:2", "1"),
        ("name:-1", "jpg"),
        ("name:4", "12"),
    ],
)
def test_a_field_is_a_part_of_the_path(source, value):
    assert field_of("north/2026/cam-1_20261120 12.jpg", source) == value


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("007", FieldType.INTEGER, 7),
        ("-1.5e3", FieldType.REAL, -1500.0),
        ("007", FieldType.TEXT, "007"),
        ("true", FieldType.BOOLEAN, True),
        ("2026-11-20T12:00Z", FieldType.TIMESTAMP, NOON),
    ],
)
def test_a_declared_field_has_a_value_of_its_type(text, kind, value):
    assert field_of(f"{text}/x", "path:1", kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("7a", FieldType.INTEGER, "site: '7a' is not an integer"),
        ("1.5", FieldType.INTEGER, "site: '1.5' is not an integer"),
        ("nan", FieldType.REAL, "site: 'nan' is not a number"),
        ("٧", FieldType.INTEGER, "is not an integer"),
        ("9" * 90, FieldType.INTEGER, "does not fit into 64 bits"),
        ("today", FieldType.TIMESTAMP, "site: 'today'"),
    ],
)
def test_a_text_that_is_no_value_of_the_type_is_refused(text, kind, problem):
    with pytest.raises(InvalidInput) as error:
        field_of(f"{text}/x", "path:1", kind)
    assert problem in error.value.message


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("path:2", "site: its path has no folder 2; it has 1"),
        ("path:-2", "no folder -2"),
        ("name:3", "no part 3; it has 2"),
    ],
)
def test_a_path_without_the_part_is_refused(source, problem):
    with pytest.raises(InvalidInput) as error:
        field_of("north/photo.jpg", source)
    assert problem in error.value.message


@pytest.mark.parametrize("source", ["", "path:0", "path:x", "path:", "name:1.5", "extension", "path:99999", "path:١"])
def test_what_is_no_part_of_a_path_is_an_error(source):
    with pytest.raises(InvalidInput, match="is not a part of a path"):
        field_of("north/photo.jpg", source)


def test_reftime_is_no_field():
    with pytest.raises(InvalidInput, match="reftime is the time of a file"):
        Describe("mtime", {"reftime": "path:1"}, None, {})


def test_a_field_that_differs_by_case_only_is_a_mistake():
    with pytest.raises(InvalidInput, match=r"there is no field .Site") as error:
        Describe("mtime", {"Site": "path:1"}, None, {"site": FieldType.TEXT})
    assert error.value.hint == "Did you mean site?"
    assert Describe("mtime", {"Site": "path:1"}, None, {})("north/x", 0)[1]["Site"] == "north"


def test_the_path_is_kept_unless_a_field_has_its_name():
    assert Describe("mtime", {}, None, {})("north/x", 0)[1] == {"path": "north/x"}
    assert Describe("mtime", {"path": "name"}, None, {})("north/x", 0)[1] == {"path": "x"}


@given(st.datetimes(datetime(1900, 1, 1), datetime(9999, 12, 31)), st.text("abc-_. é", max_size=5))
def test_each_time_in_a_name_is_found_again(time, around):
    name = f"{around}{time:%Y%m%dT%H%M%S}.{time:%f}{around}"
    if time.year >= 1000:
        assert time_of(name, "name:%Y%m%dT%H%M%S.%f") == time.replace(tzinfo=UTC)
