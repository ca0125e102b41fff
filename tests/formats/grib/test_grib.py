"""What GRIB messages say of themselves, in arkimet's notation, and as numbers."""

from __future__ import annotations

import io
import json
import random
import re
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ondisk import DatasetConfig, Datum
from ondisk.datum import from_microseconds
from ondisk.errors import ConfigError, FrameCorrupt
from ondisk.formats.grib import Grib
from ondisk.formats.grib.edition2 import same_unit, templates
from ondisk.formats.grib.octets import bounds, ibm

from .build import grib1, grib2, grid1, grid2, interval, product2, sign, surface

# Messages of arkimet's tests with what they must give; beside the checkout, since they may not be copied into it.
GOLDEN = Path(__file__).resolve().parents[3].parent / "shared" / "golden" / "raw-formats"
NUMBERS = {name: str(kind) for name, kind in Grib.numbers.items()}
ROTATED = "GRIB:Ni=97,Nj=73,latfirst=46000000,latlast=36000000,latp={},lonfirst=6000000,lonlast=18500000,lonp=10000000,"
T = datetime(2026, 11, 20, 6, tzinfo=UTC)


def format_of(**fields):
    return Grib(DatasetConfig.from_mapping({"format": "grib", "step": "daily", "fields": fields}))


def said(message: bytes, **fields):
    """What a message says of itself: its items, and all numbers."""
    reftime, metadata = format_of(**NUMBERS, **fields).describe(message)
    return {"reftime": from_microseconds(reftime), **metadata}


def query_notation(text: str) -> str:
    """Return an item as arkimet displays it in the notation of its queries."""
    style, rest = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
    positions, keys = [], []
    for part in filter(None, map(str.strip, rest.split(","))):
        if "=" in part:
            keys.append(part)
        elif keys:
            keys[-1] += f",{part}"  # a comma of a value
        else:
            positions.append(re.sub(r"^(-?)0+(?=\d)", r"\1", part) if style != "MINUTE" else part)
    return ",".join([style, *positions]) + (":" + ",".join(keys) if keys else "")


def expectations():
    lines = (GOLDEN / "expected.jsonl").read_text().splitlines() if GOLDEN.exists() else []
    found = [each for each in map(json.loads, lines) if ".grib" in each["file"]]
    assert len(found) in (0, 105)
    return found


@pytest.mark.skipif(not GOLDEN.exists(), reason="arkimet's files are not beside the checkout, in ../shared/golden")
def test_all_messages_of_arkimets_tests_are_read_as_arkimet_reads_them():
    for each in expectations():
        content = (GOLDEN / each["file"]).read_bytes()
        reftime, found = format_of().describe(content[each["offset"] :][: each["size"]])
        expected = dict(each["items"])
        assert from_microseconds(reftime).strftime("%Y-%m-%dT%H:%M:%SZ") == expected.pop("reftime")
        for name, text in expected.items():
            wanted = query_notation(text)
            if name == "product" and wanted.startswith("GRIB2"):
                wanted = ",".join([*wanted.split(","), "4", "255"][:7])  # arkimet does not show these
            assert found[name] == wanted, (each["file"], each["offset"], name)
        assert set(found) == set(expected)


def test_edition_1():
    assert said(grib1()) == {
        "reftime": T,
        "run": "MINUTE,06:00",
        "origin": "GRIB1,98,0,145",
        "product": "GRIB1,98,2,11",
        "level": "GRIB1,105,2",
        "timerange": "GRIB1,0,6h",
        "area": "GRIB:Ni=97,Nj=73,latfirst=46000000,latlast=36000000,lonfirst=6000000,lonlast=18500000,type=0",
        "proddef": "GRIB:tod=1",
        "step": 21600,
        "period": 0,
        "stat": 254,
        "level_value": 2.0,
        "north": 46.0,
        "south": 36.0,
        "west": 6.0,
        "east": 18.5,
    }


def test_edition_2():
    assert said(grib2()) == {
        "reftime": T,
        "run": "MINUTE,06:00",
        "origin": "GRIB2,98,0,2,255,145",
        "product": "GRIB2,98,0,0,0,4,255",
        "level": "GRIB2S,103,0,2",
        "timerange": "Timedef,6h,254,0s",
        "area": "GRIB:Ni=97,Nj=73,latfirst=46000000,latlast=36000000,lonfirst=6000000,lonlast=18500000,tn=0",
        "proddef": "GRIB:tod=1",
        "step": 21600,
        "period": 0,
        "stat": 254,
        "level_value": 2.0,
        "north": 46.0,
        "south": 36.0,
        "west": 6.0,
        "east": 18.5,
    }


@pytest.mark.parametrize(
    ("level", "other", "value"),
    [
        ((100, 3, 82), surface(100, 0, 85000), 85000.0),
        ((105, 0, 2), surface(103, 1, 20), 2.0),
        ((111, 0, 7), surface(106, 2, 7), 0.07),
        ((107, 38, 246), surface(104, 4, 9974), 0.9974),
        ((109, 0, 90), surface(105, 0, 90), 90.0),
        ((117, 7, 208), surface(109, 9, 2000), 2e-06),
        ((1, 0, 0), surface(1), None),
    ],
)
def test_a_level_has_one_value_in_both_editions(level, other, value):
    assert said(grib1(level=level)).get("level_value") == value
    assert said(grib2(product=product2(first=other))).get("level_value") == value


@pytest.mark.check
@pytest.mark.parametrize(
    ("given", "item", "expected"),
    [
        ({"level": (1, 0, 0)}, "level", "GRIB1,1"),
        ({"level": (112, 0, 10)}, "level", "GRIB1,112,0,10"),
        ({"level": (119, 1, 44)}, "level", "GRIB1,119,44,0"),
        ({"time_range": 1}, "timerange", "GRIB1,1"),
        ({"time_range": 4, "p1": 0, "p2": 12}, "timerange", "GRIB1,4,0h,12h"),
        ({"time_range": 10, "p1": 1, "p2": 2}, "timerange", "GRIB1,10,258h"),
        ({"time_range": 123, "p1": 1, "p2": 2}, "timerange", "GRIB1,123,2h"),
        ({"unit": 99}, "timerange", "GRIB1,0,6u99"),
        ({"unit": 254}, "timerange", "GRIB1,0,6s"),
        ({"centre": 200, "time_range": 13, "p1": 0, "p2": 0}, "timerange", "Timedef,0s,254,0s"),
        ({"centre": 200, "time_range": 13, "p1": 0, "p2": 12, "parameter": 61}, "timerange", "Timedef,0s,1,12h"),
        ({"centre": 200, "time_range": 13, "p1": 0, "p2": 12, "parameter": 1}, "timerange", None),
        ({"centre": 200, "time_range": 13, "p1": 0, "p2": 12, "parameter": 1}, "area", None),
        ({"centre": 200, "time_range": 13, "p1": 0, "p2": 0}, "proddef", "GRIB:tod=0"),
        ({"local": bytes([1, 1, 10, 16, 1]) + b"0001" + bytes([7, 50])}, "proddef", "GRIB:ld=1,mt=10,nn=7,tod=1"),
        ({"local": bytes([1, 1, 10]), "centre": 7, "subcentre": 1}, "proddef", "GRIB:tod=1"),
        ({"grid": b""}, "area", None),
        ({"grid": grid1(50)}, "area", "GRIB:type=50"),
        ({"grid": grid1(points=(65535, 65535))}, "area", "GRIB:latfirst=46000000,lonfirst=6000000,type=0"),
        ({"grid": grid1(5)}, "area", "GRIB:Ni=97,Nj=73,latfirst=46000000,lonfirst=6000000,type=5"),
        (
            {"grid": grid1(first=(4852500, 402500), last=(5107500, 847500))},
            "area",
            "GRIB:Ni=97,Nj=73,latfirst=4852500,latlast=5107500,lonfirst=402500,lonlast=847500,type=0,utm=1",
        ),
        (
            {"grid": grid1(10, rest=sign(-32500, 3) + sign(10000, 3) + b"\x41\x10\x00\x00")},
            "area",
            ROTATED.format(-32500000) + "rot=1000000,type=10",
        ),
    ],
)
def test_items_of_edition_1(given, item, expected):
    assert said(grib1(**given)).get(item) == expected


@pytest.mark.check
@pytest.mark.parametrize(
    ("product", "item", "expected"),
    [
        (product2(first=surface(1)), "level", "GRIB2S,1,-,-"),
        (product2(first=surface(106, 2, 0), second=surface(106, 2, 10)), "level", "GRIB2D,106,2,0,106,2,10"),
        (product2(first=surface(100, -1, 85)), "level", "GRIB2S,100,0,0"),
        (product2(first=surface(100, -1, 85)), "level_value", 850.0),
        (product2(first=surface(100, -2, 85)), "level", "GRIB2S,100,-2,85"),
        (product2(step=-6), "timerange", "Timedef,-6h,254,0s"),
        (product2(step=0), "timerange", "Timedef,0s,254,0s"),
        (product2(15, step=3), "timerange", "Timedef,3h"),
        (product2(8, step=6, rest=interval()), "timerange", "Timedef,12h,1,6h"),
        (product2(8, step=6, rest=interval()), "step", 43200),
        (product2(8, step=6, rest=interval()), "period", 21600),
        (product2(8, step=1, unit=2, rest=interval(0, length=12)), "timerange", "Timedef,36h,0,12h"),
        (product2(8, step=0, unit=0, rest=interval(0, length=24)), "timerange", "Timedef,24h,0,24h"),
        (product2(8, step=1, unit=3, rest=interval()), "timerange", None),
        (product2(8, step=1, unit=3, rest=interval()), "area", None),
        (product2(8, step=0, rest=interval(2, length=3, ranges=3)), "timerange", "Timedef,3h,2,3h"),
        (product2(8, step=2, unit=3, rest=interval(unit=3, length=1)), "timerange", "Timedef,3mo,1,1mo"),
        (product2(8, step=2, unit=3, rest=interval(unit=3, length=1)), "step", None),
        (product2(1, rest=bytes([3, 7, 20])), "proddef", "GRIB:tod=1"),
        (product2(6, rest=bytes([90])), "proddef", "GRIB:pv=90,tod=1"),
        (
            product2(5, rest=bytes([0, 1, 3]) + surface(0, 1, 5)[1:] + surface()[1:]),
            "proddef",
            "GRIB:pl=1,5,None,None,pt=3,tod=1",
        ),
        (product2(999), "origin", None),
        (product2(999), "level", None),
    ],
)
def test_items_of_edition_2(product, item, expected):
    assert said(grib2(product=product)).get(item) == expected


@pytest.mark.check
@pytest.mark.parametrize(
    ("given", "item", "expected"),
    [
        ({"kind": 4, "product": product2(1, rest=bytes([3, 7, 20]))}, "proddef", "GRIB:pf=7,tf=20,tod=4,ty=3"),
        ({"kind": 4, "status": 4}, "proddef", "GRIB:mc=ti,mt=0,tod=4"),
        ({"kind": 4, "local": b"\0\1\0\1\0\11" + bytes(10)}, "proddef", "GRIB:mc=od,mt=9,tod=4"),
        ({"kind": 4, "local": b"\0\1\0\27\0\11" + bytes(10)}, "proddef", "GRIB:mc=ea,mt=9,tod=4"),
        ({"kind": 4, "local": b"\0\1\0\143\0\11" + bytes(10)}, "proddef", "GRIB:mc=te,mt=9,tod=4"),
        ({"kind": 0, "product": product2(8, step=6, rest=interval())}, "timerange", "Timedef,0s,1,6h"),
        ({"grid": grid2(50)}, "area", "GRIB:tn=50"),
        ({"grid": grid2(40, points=(0xFFFFFFFF, 73))}, "area", "GRIB:latfirst=46000000,lonfirst=6000000,tn=40"),
        ({"grid": grid2(40, points=(0xFFFFFFFF, 73))}, "west", -180.0),
        (
            {"grid": grid2(1, rest=sign(-40_000_000, 4) + sign(10_000_000, 4) + bytes(4))},
            "area",
            ROTATED.format(-40000000) + "rot=0,tn=1",
        ),
        ({"grid": grid2(1, rest=bytes(12))}, "north", None),
        ({"fields": 2}, "level", "GRIB2S,103,0,2"),
    ],
)
def test_items_of_messages_of_edition_2(given, item, expected):
    assert said(grib2(**given)).get(item) == expected


def test_every_template_is_read_and_refused_where_it_is_cut_off():
    assert len(templates()) == 106
    for number, template in templates().items():
        none = surface(0, 0, 0)  # what are lengths of lists in some templates is 0
        body = product2(number, process=(2, 1, 145), first=none, second=none, rest=bytes(120))
        assert said(grib2(product=body))["product"] == "GRIB2,98,0,0,0,4,255"
        short = template.size - 1
        cut = (short).to_bytes(4, "big") + body[4:short]
        with pytest.raises(FrameCorrupt, match=r"fewer than its template|is missing"):
            said(grib2(product=cut))


@pytest.mark.check
def test_bounds_are_the_same_whatever_the_longitudes_are_counted_from():
    assert bounds((1, 350_000_000, -1, 20_000_000), 0, 31)["west"] == -10.0
    assert bounds((1, -10_000_000, -1, 20_000_000), 0, 31) == bounds((1, 350_000_000, -1, 20_000_000), 0, 31)
    assert bounds((1, 170_000_000, -1, 190_000_000), 0, 21)["east"] == 190.0
    assert bounds((1, 20_000_000, -1, 350_000_000), 0x80, 31)["east"] == 20.0
    for last in (359_000_000, 360_000_000, 359_297_000):
        around = bounds((90_000_000, 0, -90_000_000, last), 0, {359_297_000: 512, 360_000_000: 361}.get(last, 360))
        assert around == {"north": 90.0, "south": -90.0, "east": 180.0, "west": -180.0}


@pytest.mark.check
def test_small_readers():
    assert ibm(bytes.fromhex("c2760000"), 1) == -118.0
    assert same_unit((60, 0), (1, 1)) == (1, 1, 1)
    assert same_unit((90, 0), (1, 1)) == (90, 60, 0)
    assert same_unit((1, 1), (1, 3)) is None
    assert same_unit((1, 77), (1, 1)) is None


@pytest.mark.parametrize(
    "message", [grib1(time=(2026, 2, 30, 6, 0)), grib2(time=(2026, 13, 1, 0, 0)), grib2(time=(0, 1, 1, 0, 0))]
)
def test_a_message_without_a_possible_time_is_refused(message):
    (batch,) = format_of().parse(io.BytesIO(grib1() + message), 100)
    assert len(batch.payloads) == 1
    ((position, reason),) = batch.refused
    assert position == 1
    assert "is not a time" in reason
    assert f"byte {len(grib1())}" in reason


def test_only_declared_values_are_metadata_of_the_index():
    (batch,) = format_of(level="item", step="integer", level_value="real").parse(io.BytesIO(grib1()), 100)
    assert batch.metadata == [{"level": "GRIB1,105,2", "step": 21600, "level_value": 2.0}]
    (batch,) = format_of(stat="real").parse(io.BytesIO(grib1()), 100)
    assert [*map(type, batch.metadata[0].values())] == [float]


def test_data_from_python_must_agree_with_the_message():
    message = grib1()
    everything = said(message)
    reftime = everything.pop("reftime")
    good = [Datum(reftime, {}, message), Datum(reftime, everything, message)]
    bad = [
        Datum(reftime, {"level": "GRIB1,1"}, message),
        Datum(reftime, {"colour": 1}, message),
        Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, message),
        Datum(reftime, {}, message + b"\0"),
        Datum(reftime, {}, message * 2),
        Datum(reftime, {}, message[:-1]),
        Datum(reftime, {}, "GRIB"),
        Datum(reftime, {}, b""),
    ]
    batch = format_of().encode(good + bad)
    assert batch.payloads == [message, message]
    assert [position for position, _ in batch.refused] == [*range(2, 10)]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"fields": {"level": "integer"}}, "level of grib is item, not integer"),
        ({"fields": {"level_value": "integer"}}, "level_value of grib is real, not integer"),
        ({"fields": {"station": "integer"}, "unique": ["reftime", "station"]}, "data of grib do not have station"),
    ],
)
def test_fields_that_messages_cannot_have_are_refused(values, problem):
    with pytest.raises(ConfigError, match=problem):
        Grib(DatasetConfig.from_mapping({"format": "grib", "step": "daily"} | values))


SEEDS = [
    *(grib1(), grib1(local=bytes(20)), grib1(grid=grid1(10, rest=bytes(10)))),
    grib1(centre=200, time_range=13, p1=0, p2=12),
    *(grib2(product=product2(each, rest=bytes(60))) for each in (0, 1, 5, 8, 11, 30, 32, 34, 44, 48, 54, 61, 68, 95)),
    *(grib2(grid=grid2(number, rest=bytes(20))) for number in (1, 10, 40, 101, 32768)),
    grib2(local=bytes(20), kind=4, fields=2),
]  # fmt: skip


@pytest.mark.check
def test_mutated_messages_are_read_or_refused_and_nothing_else():
    draw = random.Random(20261120)
    format = format_of(**NUMBERS)
    tracemalloc.start()
    slowest = 0.0
    for _ in range(400):
        message = bytearray(draw.choice(SEEDS))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(message))
            match draw.randrange(4):
                case 0:
                    message[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
                case 1:
                    message[at : at + 4] = draw.choice((bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff"))
                case 2:
                    del message[at : at + draw.randint(1, 9)]
                case 3:
                    message[at:at] = draw.randbytes(draw.randint(1, 9))
        begin = time.process_time()
        batches = [*format.parse(io.BytesIO(bytes(message) + SEEDS[0]), 100)]
        with_size = bytes(message[:8]) + len(message).to_bytes(8, "big") + bytes(message[16:-4]) + b"7777"
        batches += format.parse(io.BytesIO(with_size), 100)
        slowest = max(slowest, time.process_time() - begin)
        for each in batches:
            assert len(each.payloads) == len(each.metadata) == len(each.reftimes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert slowest < 0.5
    assert peak < 64 * 1024 * 1024
