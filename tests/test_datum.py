from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from ondisk import Datum, FieldType, Location
from ondisk.datum import EPOCH, canonical, from_microseconds, microseconds, restored
from ondisk.errors import InvalidInput

T = datetime(2026, 11, 20, 6, 30, 15, 123_456, UTC)


@pytest.mark.parametrize("reftime", [datetime(2026, 11, 20), "2026-11-20", 5, None, T.date()])
def test_a_reftime_without_a_zone_is_refused_with_a_remedy(reftime):
    with pytest.raises(InvalidInput, match="timezone-aware") as caught:
        Datum(reftime)
    assert "timezone.utc" in caught.value.hint


@pytest.mark.parametrize("metadata", [None, [("station", 5)], "station", 5])
def test_metadata_must_be_a_mapping(metadata):
    with pytest.raises(InvalidInput, match="metadata must be a mapping"):
        Datum(T, metadata)


@pytest.mark.parametrize("zone", [timezone(timedelta(hours=5, minutes=30)), ZoneInfo("America/New_York"), UTC])
def test_a_reftime_of_any_zone_is_kept_as_utc(zone):
    datum = Datum(T.astimezone(zone))
    assert datum.reftime == T
    assert datum.reftime.tzinfo is UTC


def test_the_two_times_of_an_autumn_night_are_an_hour_apart():
    night = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Rome"))
    assert Datum(night.replace(fold=1)).reftime - Datum(night).reftime == timedelta(hours=1)


@pytest.mark.parametrize(
    "local",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_a_time_that_utc_cannot_hold_is_refused(local):
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        Datum(local)
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        canonical(local, FieldType.TIMESTAMP)


@pytest.mark.parametrize(
    "time", [datetime.min, datetime.max, datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1970, 1, 1)]
)
def test_microseconds_are_exact_over_all_years(time):
    aware = time.replace(tzinfo=UTC)
    assert EPOCH + timedelta(microseconds=microseconds(aware)) == aware
    assert from_microseconds(microseconds(aware)) == aware


def test_before_1970_microseconds_are_negative():
    assert microseconds(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)) == -1


def test_equality_ignores_the_location():
    stored = Datum.stored(T, {"station": 5}, b"x", "2026/11-20.vm2", (0, 0, 12, 1))
    assert stored == Datum(T, {"station": 5}, b"x")
    assert stored != Datum(T, {"station": 6}, b"x")
    assert stored != Datum(T, {"station": 5}, b"y")
    assert stored != Datum(T + timedelta(microseconds=1), {"station": 5}, b"x")
    assert stored != "a datum"


def test_only_data_read_from_a_dataset_have_a_location():
    assert Datum(T).location is None
    stored = Datum.stored(T, {}, b"x", "2026/11-20.vm2", (0, 0, 12, 1))
    assert stored.location == Location("2026/11-20.vm2", 12, 1)


def test_a_datum_is_not_hashable_since_its_metadata_are_not():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Datum(T))


@pytest.mark.parametrize(
    "datum",
    [
        Datum(T, {"station": 5}, {"wind": 1.5}),
        Datum(T),
        Datum.stored(T, {"station": 5}, b"x", "2026/11-20.vm2", (0, 0, 12, 1)),
    ],
)
def test_a_datum_survives_pickling_with_its_location(datum):
    again = pickle.loads(pickle.dumps(datum))
    assert again == datum
    assert again.location == datum.location


def test_repr_shows_the_beginning_of_a_large_datum():
    large = Datum(T, {"note": "x" * 1_000_000, **dict.fromkeys(map(str, range(1000)))}, b"x" * 100_000_000)
    assert len(repr(large)) < 1000


def test_repr_has_reftime_metadata_and_data():
    assert repr(Datum(T, {"station": 5}, b"x")) == "Datum(2026-11-20T06:30:15.123456+00:00, {'station': 5}, b'x')"


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("integer", 2**63 - 1, 2**63 - 1),
        ("integer", -(2**63), -(2**63)),
        ("real", 1.5, 1.5),
        ("real", 2**53, 2.0**53),
        ("real", float("-inf"), float("-inf")),
        ("text", "", ""),
        ("text", "a\0b\u00e9\U0010ffff", "a\0b\u00e9\U0010ffff"),
        ("boolean", True, 1),
        ("boolean", False, 0),
        ("timestamp", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), -1),
        ("timestamp", datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        ("bytes", b"\0\xff", b"\0\xff"),
    ],
)
def test_a_value_of_the_declared_type_has_one_stored_form(kind, value, stored):
    found = canonical(value, FieldType(kind))
    assert found == stored
    assert type(found) is type(stored)
    assert restored(found, FieldType(kind)) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", 2**63),
        ("integer", -(2**63) - 1),
        ("integer", True),
        ("integer", 1.0),
        ("integer", "1"),
        ("real", float("nan")),
        ("real", 2**53 + 1),
        ("real", 10**400),
        ("real", True),
        ("real", "1.5"),
        ("text", 5),
        ("text", b"a"),
        ("text", "\ud800"),
        ("text", "a\udcff"),
        ("boolean", 1),
        ("boolean", 0.0),
        ("boolean", "true"),
        ("timestamp", datetime(2026, 11, 20)),
        ("timestamp", "2026-11-20T06:00:00Z"),
        ("timestamp", 0),
        ("bytes", "a"),
        ("item", 5),
        ("item", "\ud800"),
        ("bytes", bytearray(b"a")),
        *((kind, None) for kind in FieldType),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(kind, value):
    with pytest.raises(InvalidInput):
        canonical(value, FieldType(kind))


def test_texts_and_bytes_are_those_that_the_index_keeps_once():
    assert {kind for kind in FieldType if kind.interned} == {"text", "item", "bytes"}


def test_a_time_that_cannot_say_its_offset_has_no_time_zone():
    class NaT(datetime):
        def utcoffset(self):
            raise ValueError("NaTType does not support utcoffset")

    with pytest.raises(InvalidInput, match="time zone"):
        Datum(NaT(2026, 11, 20), {}, b"")
    with pytest.raises(InvalidInput, match="time zone"):
        canonical(NaT(2026, 11, 20), FieldType.TIMESTAMP)
