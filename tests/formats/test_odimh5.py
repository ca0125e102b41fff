"""What files of weather radars say of themselves, in arkimet's notation, and as numbers."""

from __future__ import annotations

import io
import json
import random
import time
from datetime import UTC, datetime

import pytest
from formats.grib.test_grib import GOLDEN, query_notation
from formats.hdf5_files import ENDS, h5py, image, odim, volume

from ondisk import DatasetConfig
from ondisk.datum import from_microseconds
from ondisk.errors import InvalidInput
from ondisk.formats import find, recognised
from ondisk.formats.hdf5 import opened

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
ORIGIN = {"reftime": T, "origin": "ODIMH5,16144,IY46,itspc"}
BOUNDS = {"north": 46.75, "south": 42.25, "east": 15.0, "west": 8.25}
SHOWN = {
    **ORIGIN,
    **BOUNDS,
    "task": "ZLR-BB",
    "quantity": "TH",
    "area": "GRIB:latfirst=42250000,latlast=46750000,lonfirst=8250000,lonlast=15000000,type=0",
}


def format_of(name="odimh5", **fields):
    return find(name)(DatasetConfig.from_mapping({"format": name, "step": "daily", "fields": fields}))


def said(content: bytes, name="odimh5"):
    """What a file says of itself: its items, and all numbers."""
    reftime, found = format_of(name).read(content)
    return {"reftime": from_microseconds(reftime), **found.all}


@pytest.mark.skipif(not GOLDEN.exists(), reason="arkimet's files are not beside the checkout, in ../shared/golden")
@pytest.mark.parametrize(("name", "suffix", "count"), [("odimh5", ".h5", 12), ("netcdf", ".nc", 5)])
def test_all_files_of_arkimets_tests_are_read_as_arkimet_reads_them(name, suffix, count):
    lines = map(json.loads, (GOLDEN / "expected.jsonl").read_text().splitlines())
    cases = [each for each in lines if each["file"].endswith(suffix)]
    for case in cases:
        content = (GOLDEN / case["file"]).read_bytes()
        assert (recognised("x", content[:65536], "seg") or "seg") == name
        found = said(content, name)
        items = {key: value for key, value in found.items() if key in format_of(name).items}
        expected = dict(case["items"])
        assert found["reftime"].strftime("%Y-%m-%dT%H:%M:%SZ") == expected.pop("reftime")
        for key, text in expected.items():
            wanted = text.replace(", ", ",") if key in ("quantity", "task") else query_notation(text)
            assert items.pop(key) == wanted, (case["file"], key)
        assert items == {}
    assert len(cases) == count


def test_a_polar_volume_has_elevations_and_a_radius():
    assert said(volume()) == {
        **ORIGIN,
        "task": "ZLR-BB",
        "quantity": "DBZH,VRAD",
        "product": "ODIMH5,PVOL,SCAN",
        "level": "ODIMH5,0.5,12.346",
        "area": "ODIMH5:lat=44500000,lon=11625000,radius=170000",
    }
    assert said(volume(time="0600"))["reftime"] == T


@pytest.mark.check
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (image("CAPPI", prodpar=1500.0), {"product": "ODIMH5,IMAGE,CAPPI", "level": "GRIB1,105,1500"}),
        (image("PPI", prodpar="0.5"), {"product": "ODIMH5,IMAGE,PPI", "level": "ODIMH5,0.5,0.5"}),
        (image("VIL", prodpar="0,10000"), {"product": "ODIMH5,IMAGE,VIL", "level": "GRIB1,106,100,0"}),
        (image("VIL", prodpar="0"), {"product": "ODIMH5,IMAGE,VIL"}),
        (image("MAX", more=2), {"product": "ODIMH5,IMAGE,HVMI"}),
        (image("MAX", object="COMP"), {"product": "ODIMH5,COMP,MAX"}),
        (
            image("RR", object="COMP", startdate="20261120", starttime="050000", enddate="20261120", endtime="060000"),
            {"product": "ODIMH5,COMP,RR", "timerange": "Timedef,0s,1,3600s", "step": 0, "stat": 1, "period": 3600},
        ),
    ],
)
def test_images_by_product(content, expected):
    assert said(content) == SHOWN | expected


@pytest.mark.check
def test_a_section_has_the_area_between_its_ends():
    found = said(image("XSEC", object="XSEC", where=ENDS))
    assert found["area"] == "GRIB:latfirst=44500000,latlast=44250000,lonfirst=11500000,lonlast=12500000,type=0"
    assert found["product"] == "ODIMH5,XSEC,XSEC"


@pytest.mark.check
def test_what_a_file_lacks_is_left_out():
    assert said(odim("VP")) == ORIGIN
    assert said(odim("IMAGE")) == ORIGIN | {"task": "ZLR-BB"}


@pytest.mark.check
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (volume(date="20261320"), "its time, 2026-13-20 06:00:00, is not a time"),
        (volume(source="RAD:a:b"), "'a:b' cannot be part of an item: it has one of the characters , : = \""),
        (volume(source=5), "the attribute source is not a text"),
        (volume()[:3000], "it cannot be read as HDF5: "),
        (b"GRIB", "it does not begin as an HDF5 file"),
    ],
)
def test_a_file_that_says_no_time_or_nonsense_is_refused(content, reason):
    batch = next(format_of().parse(io.BytesIO(content), 10))
    assert len(batch) == 1
    assert batch.refused[0][1].startswith(reason)


@pytest.mark.check
def test_no_link_leads_out_of_the_file(tmp_path):
    (tmp_path / "other.h5").write_bytes(volume())
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["what"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "what")
    with pytest.raises(InvalidInput, match="it has no group what"):
        format_of().read(stream.getvalue())


@pytest.mark.check
def test_hostile_files_are_refused_and_nothing_else():
    """Each byte of a file may be wrong; what is read then may be wrong, but nothing else may happen."""
    chance, content, refused = random.Random(7), volume(), 0
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(chance.choice([1, 3, 30])):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        refused += len(next(format_of().parse(io.BytesIO(changed), 10)).refused)
    assert 0 < refused < 500


@pytest.mark.check
def test_hard_links_that_multiply_are_not_followed_without_end():
    stream = io.BytesIO(volume())
    with h5py.File(stream, "r+") as file:
        dataset = file["dataset1"]
        for number in range(2, 400):
            dataset[f"data{number}"] = dataset["data1"]
            file[f"dataset{number + 1}"] = dataset
    begin = time.process_time()
    (refused,) = next(format_of().parse(io.BytesIO(stream.getvalue()), 10)).refused
    assert refused[1] == "its groups lead to more than 5000 members"
    assert time.process_time() - begin < 20  # hours without a limit


def test_a_heap_whose_objects_do_not_fill_it_is_refused():
    """HDF5 would look for the next object for ever."""
    content = bytearray(odim("PVOL", {"how": {"task": "a text"}}))
    at = content.find(b"GCOL") + 16 + 8  # the size of the first object
    content[at + 1] = 0x80  # beyond the end
    with pytest.raises(InvalidInput, match="the global heap at byte"), opened(bytes(content)):
        pass
