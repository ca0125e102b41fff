"""`ondisk.files.file_names`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk import Datum
from ondisk.datum import FieldType
from ondisk.errors import InvalidInput
from ondisk.files.file_names import Names, safe

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIELDS = {"site": FieldType.TEXT, "station": FieldType.INTEGER, "made": FieldType.TIMESTAMP}


def name(template, reftime=NOON, **metadata):
    return Names(template, FIELDS)(Datum(reftime, metadata, b""))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{reftime:%Y%m%d_%H%M}_{site}.jpg", "20261120_1200_north.jpg"),
        ("{site}/{reftime:%Y}/{station:04}", "north/2026/0007"),
        ("{reftime}", "20261120T120000Z"),
        ("{reftime:%Y/%m/%d}/{site}", "2026/11/20/north"),
        ("{reftime:%%s%Ys}", "%s2026s"),
        ("{{{site}}}", "{north}"),
        ("{valid}-{key}-{level}-{level:.2f}", "true-00ff-0.5-0.50"),
        ("{made:%H}", "11"),
        ("{site:_>8}", "___north"),
        ("{path}", "a/b.jpg"),
        ("..{site}", "..north"),
        (".{site}", ".north"),
    ],
)
def test_a_template_names_reftime_and_metadata(template, expected):
    made = datetime.fromisoformat("2026-11-20T13:00+02:00")
    values = {"site": "north", "station": 7, "valid": True, "key": b"\0\xff", "level": 0.5, "path": "a/b.jpg"}
    assert name(template, made=made, **values) == expected


def test_a_time_with_a_fraction_shows_it():
    assert name("{reftime}", NOON.replace(microsecond=250)) == "20261120T120000.000250Z"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{site", "expected '}'"),
        ("site}", "Single '}'"),
        ("{}", "'' is not a name of metadata"),
        ("{0}", "'0' is not a name of metadata"),
        ("{site.__class__}", "'site.__class__' is not a name"),
        ("{site[0]}", "'site[0]' is not a name"),
        ("{site!r}", "is not a name"),
        ("{site:{width}}", "is not a name"),
        ("{station:%Y}", "station has the type integer"),
        ("{site:d}", "site has the type text"),
        ("{reftime:%s}", "%s is in the time zone of this machine"),
        ("{made:%Y%-12s}", "%s is in the time zone of this machine"),
        ("./{site}", "its name would be './x'"),
        ("{site}/", "its name would be 'x/'"),
        ("/out/{site}", "its name would be '/out/x'"),
        ("{site}/../{station}", "its name would be 'x/../x'"),
        ("y" * 256 + "{site}", "its name would have 257 bytes"),
        ("{station:99999}", "is too wide"),
        ("photo.jpg", "all files would have one name"),
        ("", "all files would have one name"),
    ],
)
def test_what_is_no_template_is_an_error_with_a_remedy(template, problem):
    with pytest.raises(InvalidInput) as error:
        Names(template, FIELDS)
    assert problem in error.value.message
    assert error.value.hint.startswith("Write for example {reftime:")


def test_a_template_with_metadata_that_are_not_declared_needs_the_data():
    assert Names("{sensor}", FIELDS).needs_data
    assert not Names("{reftime}{site}", FIELDS).needs_data


@pytest.mark.parametrize(
    ("template", "metadata", "problem"),
    [
        ("{site}.jpg", {}, "it has no site"),
        ("{sensor}.jpg", {"sensor": [1]}, "sensor: [1] has no text for a name"),
        ("{sensor:d}.jpg", {"sensor": "x"}, "sensor: Unknown format code 'd'"),
        ("{sensor:99999}", {"sensor": 1}, "too wide"),
        ("{sensor:c}", {"sensor": 2**40}, "sensor: "),
    ],
)
def test_a_datum_without_the_value_is_refused(template, metadata, problem):
    with pytest.raises(InvalidInput) as error:
        name(template, **metadata)
    assert problem in error.value.message


HOSTILE = [
    *("..", ".", "", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "/", "./a", "a/.", "a\0b", "x" * 256),
    *("é" * 128, "/".join(["x" * 200] * 21), "../" * 9 + "etc/passwd"),
]


@pytest.mark.parametrize("site", HOSTILE)
def test_a_name_that_leads_out_of_the_folder_or_that_no_file_can_have_is_refused(site):
    with pytest.raises(InvalidInput, match="its name would "):
        name("{site}", site=site)


@given(st.text(), st.text())
def test_a_safe_name_stays_inside_whatever_the_metadata_are(site, path):
    try:
        found = name("{site}_{path}", site=site, path=path)
    except InvalidInput:
        return
    parts = found.split("/")
    assert safe(found) == found == f"{site}_{path}"
    assert "\0" not in found
    assert all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)
