"""What BUFR messages say of themselves, in arkimet's notation, and as numbers."""

from __future__ import annotations

import io
import json
import random
import time
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from formats.grib.test_grib import GOLDEN, query_notation

from ondisk import DatasetConfig
from ondisk.datum import from_microseconds
from ondisk.errors import FrameCorrupt
from ondisk.formats.bufr import Bufr

from .build import PLACE, STATION, SYNOP, TEMPERATURE, TIME, WHEN, bufr, packed, text

NUMBERS = {name: str(kind) for name, kind in Bufr.numbers.items()}
T = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)
HEADER_ONLY = {"reftime": T, "origin": "BUFR,98,0", "usn": 0}


def format_of(**fields):
    return Bufr(DatasetConfig.from_mapping({"format": "bufr", "step": "daily", "fields": fields}))


def said(message: bytes):
    """What a message says of itself: its items, and all values beside them."""
    reftime, metadata = format_of(**NUMBERS).describe(message)
    return {"reftime": from_microseconds(reftime), **metadata}


@pytest.mark.skipif(not GOLDEN.exists(), reason="arkimet's files are not beside the checkout, in ../shared/golden")
def test_all_messages_of_arkimets_tests_are_read_as_arkimet_reads_them():
    expected = [json.loads(line) for line in (GOLDEN / "expected.jsonl").read_text().splitlines()]
    expected = [each for each in expected if each["file"].endswith(".bufr")]
    assert len(expected) == 31
    for each in expected:
        message = (GOLDEN / each["file"]).read_bytes()[each["offset"] :][: each["size"]]
        wanted = {name: query_notation(item) for name, item in each["items"].items() if name != "reftime"}
        reftime = each["items"].get("reftime")
        if reftime is None:
            with pytest.raises(FrameCorrupt, match="is not a time"):
                said(message)
            continue
        found = said(message)
        assert found["reftime"].strftime("%Y-%m-%dT%H:%M:%SZ") == reftime
        assert found["usn"] == each["usn"]
        assert {name: found[name] for name in found if name in Bufr.items} == wanted, each["file"]


@pytest.mark.parametrize("edition", [2, 3, 4])
def test_a_report_is_read_from_each_edition(edition):
    found = said(bufr(edition=edition, update=3, second=b"local"))
    assert found == {
        "reftime": datetime(2026, 11, 20, 6, tzinfo=UTC),
        "origin": "BUFR,98,0",
        "product": f"BUFR,0,{2 if edition == 4 else 255},1:t=synop",
        "area": "GRIB:lat=4449000,lon=1133000",
        "proddef": "GRIB:blo=16,sta=144",
        "usn": 3,
        "station": 16144,
        "report": "synop",
        "north": 44.49,
        "south": 44.49,
        "east": 11.33,
        "west": 11.33,
    }


@pytest.mark.check
@pytest.mark.parametrize(
    ("year", "edition", "expected"), [(1951, 3, 1951), (2000, 3, 2000), (2050, 2, 2050), (2051, 3, 1951)]
)
def test_years_of_a_century(year, edition, expected):
    message = bufr(STATION, edition=edition, time=(year, *TIME[1:]))
    assert said(message)["reftime"].year == expected


@pytest.mark.check
@pytest.mark.parametrize(
    ("category", "subcategory", "local", "fields", "report"),
    [
        (0, 0, 1, SYNOP, "synop"),
        (0, 10, 1, SYNOP, "metar"),
        (0, 0, 140, SYNOP, "metar"),
        (1, 0, 0, [("001005", 12345, 17), *SYNOP], "buoy"),
        (1, 0, 21, SYNOP, "buoy"),
        (1, 0, 0, SYNOP, "ship"),
        (2, 1, 0, SYNOP, "pilot"),
        (2, 4, 0, SYNOP, "temp"),
        (2, 5, 0, SYNOP, "temp_ship"),
        (2, 255, 91, SYNOP, "pilot"),
        (2, 255, 102, SYNOP, "temp_ship"),
        (2, 255, 0, [("001011", text("SHIP", 9), 72), *SYNOP], "temp_ship"),
        (2, 255, 101, SYNOP, "temp"),
        (4, 0, 142, SYNOP, "airep"),
        (4, 0, 144, SYNOP, "amdar"),
        (4, 0, 145, SYNOP, "acars"),
        (4, 0, 0, [*SYNOP, ("002065", text("BOM", 5), 40)], "acars"),
        (4, 0, 0, SYNOP, "amdar"),
        (6, 1, 0, SYNOP, "temp"),
        (8, 0, 171, SYNOP, "pollution"),
        (31, 0, 0, SYNOP, "generic"),
        (255, 255, 0, [("001194", text("TEMP", 16), 128), *SYNOP], "temp"),
        (255, 255, 0, [("001194", text("rainbow", 16), 128), *SYNOP], "rainbow"),
        (3, 0, 0, SYNOP, None),
    ],
)
def test_kinds_of_reports(category, subcategory, local, fields, report):
    message = bufr(fields, centre=200, category=category, subcategory=subcategory, local=local)
    found = said(message)
    assert found.get("report") == report
    product = None if report is None else f"BUFR,{category},{subcategory},{local}:t={report}"
    assert found.get("product") == product
    is_mobile = report in ("ship", "temp_ship", "amdar", "acars", "airep")
    assert (found.get("area") == "GRIB:type=mob,x=11,y=44") is is_mobile


@pytest.mark.check
@pytest.mark.parametrize(
    ("fields", "given", "item", "expected"),
    [
        ([("001011", text("DBBC", 9), 72), *WHEN, *PLACE], {"category": 1}, "proddef", "GRIB:id=DBBC"),
        ([("001011", text("123", 9), 72), *WHEN, *PLACE], {"category": 1}, "proddef", 'GRIB:id="123"'),
        ([("001011", text("A\0B", 9), 72), *WHEN, *PLACE], {"category": 1}, "proddef", "GRIB:id=A"),
        ([("001011", 2**72 - 1, 72), ("001005", 99, 17), *PLACE], {"category": 1}, "proddef", "GRIB:id=99"),
        ([("001087", 6_000_001, 23), *WHEN, *PLACE], {"category": 1}, "proddef", "GRIB:id=6000001"),
        ([("001006", text("LH1", 8), 64), ("001008", text("D-AB", 8), 64)], {"category": 4}, "proddef", "GRIB:id=D-AB"),
        ([("001008", text(" ", 8), 64)], {"category": 4}, "proddef", None),
        ([("005002", 9000 - 4449, 15), ("006002", 18000 - 1, 16)], {}, "area", "GRIB:lat=-4449000,lon=-1000"),
        ([("005002", 9000 - 4449, 15), ("006002", 18000 - 1, 16)], {"category": 1}, "area", "GRIB:type=mob,x=-1,y=-45"),
        ([("005001", 2**25 - 1, 25), PLACE[1]], {}, "area", None),
        ([("001002", 2**10 - 1, 10)], {}, "station", None),
        ([*WHEN[:4], ("004005", 0, 6), ("004006", 15, 6)], {}, "reftime", datetime(2026, 11, 20, 6, 0, 15, tzinfo=UTC)),
        ([*WHEN[:4], ("004005", 63, 6)], {}, "reftime", T),
        ([*WHEN[:3], ("004004", 24, 5), WHEN[4]], {}, "reftime", datetime(2026, 11, 21, tzinfo=UTC)),
        (
            [*SYNOP, ("001214", text("IT0002", 6), 48), ("001019", text("NO", 32), 256), ("008043", 5, 8)],
            {"category": 8, "local": 171},
            "product",
            "BUFR,8,2,171:p=NO2,t=pollution",
        ),
        ([("001214", text("IT0002", 6), 48)], {"category": 8}, "proddef", "GRIB:gems=IT0002"),
        (SYNOP, {"reports": 2}, "product", None),
        (SYNOP, {"table": 10}, "product", None),
    ],
)
def test_items(fields, given, item, expected):
    assert said(bufr(fields, **given)).get(item) == expected


def generic(*periods, level=100):
    """A generic report with a value for each P1 in seconds."""
    fields = [*STATION, *WHEN, *PLACE, ("007192", level, 10)]
    for period in periods:
        fields += [("004193", period + 2**29, 31), *TEMPERATURE, ("033007", 70, 7)]
    return bufr(fields, centre=200, category=255, subcategory=255, local=0)


@pytest.mark.parametrize(
    ("message", "item", "step"),
    [
        (generic(), "Timedef,0s", 0),
        (generic(21600), "Timedef,6h", 21600),
        (generic(21600, 21600), "Timedef,6h", 21600),
        (generic(5400), "Timedef,90m", 5400),
        (generic(30), "Timedef,30s", 30),
        (generic(0, 21600), None, None),
        (generic(21600, level=257), "Timedef,0s", 0),
    ],
)
def test_a_generic_forecast_is_of_the_time_before_its_data(message, item, step):
    found = said(message)
    assert (found.get("timerange"), found.get("step")) == (item, step)
    assert found["reftime"] == T - timedelta(minutes=30) - timedelta(seconds=step or 0)


EAST = "006002"
BEFORE = {
    "replication": (["102002", "012101", "012103"], [(1, 16), (2, 16)] * 2),
    "delayed replication": (["101000", "031001", "012101"], [(3, 8), (1, 16), (2, 16), (3, 16)]),
    "no repetition": (["101000", "031000", "012101"], [(0, 1)]),
    "data repetition": (["101000", "031011", "012101"], [(200, 8), (7, 16)]),
    "nested replication": (["103002", "101000", "031001", "012101"], [(1, 8), (9, 16), (2, 8), (9, 16), (9, 16)]),
    "sequence": (["301021"], [(0, 25), (0, 26)]),
    "201 width": (["201130", "012101", "020003", "201000"], [(1, 18), (1, 9)]),
    "202 scale": (["202129", "012101", "202000"], [(1, 16)]),
    "203 reference": (["203010", "012101", "203255", "012101", "203000", "012101"], [(5, 10), (1, 16), (1, 16)]),
    "204 associated": (["204008", "031021", "012101", "204000"], [(1, 6), (9, 8), (1, 16)]),
    "205 text": (["205003"], [(text("abc", 3), 24)]),
    "206 local": (["206012", "060001", "012101"], [(1, 12), (1, 16)]),
    "207 precision": (["207002", "012101", "020003", "207000"], [(1, 23), (1, 9)]),
    "208 width of text": (["208002", "001019", "208000"], [(text("ab", 2), 16)]),
    "221 not present": (["221002", "012101", "001003", "012101"], [(1, 3), (1, 16)]),
    "missing": (["012101", "001011"], [(2**16 - 1, 16), (2**72 - 1, 72)]),
}


@pytest.mark.parametrize("operator", sorted(BEFORE))
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("category", [4, 255])
def test_what_precedes_a_value_is_passed_over_whatever_the_operators(operator, is_compressed, category):
    codes, bits = BEFORE[operator]
    if is_compressed:
        bits = [part for each in bits for part in (each, (0, 6))]
    fields = [(each[1], each[2]) for each in [*STATION, *PLACE]]
    if is_compressed:
        fields = [part for each in fields for part in (each, (0, 6))]
    codes = [*codes, *(each[0] for each in [*STATION, *PLACE])]
    message = bufr(codes=codes, data=packed(*bits, *fields), category=category, is_compressed=is_compressed)
    found = said(message)
    assert found["station"] == 16144
    assert found["north"] == 44.49


@pytest.mark.check
@pytest.mark.parametrize(
    ("codes", "bits", "name", "expected"),
    [
        (["201132", "202129", "005002", "202000", "201000", EAST], [(53495, 19), (18000, 16)], "north", 44.495),
        (["203020", "005002", "203255", "005002", EAST], [(2**19 | 8000, 20), (9000, 15), (18000, 16)], "north", 10.0),
        (["207002", "005002", "207000", EAST], [(900000 + 444949, 22), (18000, 16)], "north", 44.4949),
        (["208003", "001008", "208000"], [(text("ABC", 3), 24)], "proddef", "GRIB:id=ABC"),
        (["206012", "001002"], [(144, 12)], "proddef", "GRIB:sta=144"),
        (["204008", "031021", "001002", "204000"], [(1, 6), (7, 8), (144, 10)], "proddef", "GRIB:sta=144"),
    ],
)
def test_operators_change_values(codes, bits, name, expected):
    assert said(bufr(codes=codes, data=packed(*bits), category=4))[name] == expected


def test_increments_of_compressed_data_are_added():
    codes = ["001001", "001002", "001008"]
    data = packed((16, 7), (3, 6), (2, 3), (144, 10), (1, 6), (1, 1), (0, 64), (2, 6), (text("LH", 2), 16))
    found = said(bufr(codes=codes, data=data, category=4, is_compressed=True))
    # All bits of an increment set: the value is missing.
    assert found["proddef"] == "GRIB:blo=18,id=LH"


@pytest.mark.parametrize(
    ("codes", "data"),
    [
        (["001001", "055255"], packed((16, 7))),
        (["001001", "355255"], packed((16, 7))),
        (["001001", "210001"], packed((16, 7))),
        (["001001", "101000"], packed((16, 7))),
        (["001001", "101000", "001001"], packed((16, 7))),
        (["001001", "001002"], packed((16, 7))),
        (["201001", "001001"], packed((16, 7))),
        (["101000", "031001", "201130", "001001"], packed((1, 8), (16, 9))),
        (["001001", *["204255"] * 20], packed((16, 7))),
        (["101000", "031001", "055255"], packed((1, 8))),
    ],
)
def test_data_that_cannot_be_decoded_leave_what_the_header_says(codes, data):
    assert said(bufr(codes=codes, data=data, category=4)) == HEADER_ONLY
    wrong_length = bytearray(bufr(codes=codes, data=b"", category=4))
    wrong_length[-8:-4] = bytes((0, 1, 0, 0))
    assert said(bytes(wrong_length)) == HEADER_ONLY


def test_a_tail_that_cannot_be_decoded_does_no_harm():
    early = bufr(codes=[*(each[0] for each in SYNOP), "055255"], data=packed(*(each[1:] for each in SYNOP)))
    described = bufr(codes=["001001", "001002", "222000", "055255"], data=packed((16, 7), (144, 10)), category=4)
    for message in (early, described):
        assert said(message)["station"] == 16144
    unused = [*(each[0] for each in STATION), "101000", "031001", "055255"]
    message = bufr(codes=unused, data=packed((16, 7), (144, 10), (0, 8)), category=4)
    assert said(message)["station"] == 16144


@pytest.mark.parametrize(
    "message",
    [
        bufr(STATION, time=(2026, 2, 30, 6, 0, 0)),
        bufr(STATION, time=(0, 0, 0, 0, 0, 0)),
        bufr([*WHEN[:1], ("004002", 13, 4), *WHEN[2:]]),
    ],
)
def test_a_message_without_a_possible_time_is_refused(message):
    (batch,) = format_of().parse(io.BytesIO(bufr() + message), 100)
    assert len(batch.payloads) == 1
    ((_, reason),) = batch.refused
    assert "is not a time" in reason
    assert f"byte {len(bufr())}" in reason


def test_a_file_says_how_many_messages_have_several_reports():
    messages = [bufr(reports=3, edition=edition, second=second) for edition in (3, 4) for second in (b"", b"local")]
    (batch,) = format_of().parse(io.BytesIO(bufr() + b"".join(messages)), 100)
    assert batch.notes == [
        "4 messages have several reports; a message is one datum, with the origin and the time of its header"
    ]


def test_a_section_that_is_too_long_is_refused():
    message = bytearray(bufr())
    message[8:11] = b"\1\0\0"
    with pytest.raises(FrameCorrupt, match="section 1 has 65536 octets"):
        said(bytes(message))


def test_messages_of_one_kind_do_not_share_what_differs():
    format = format_of(**NUMBERS, proddef="item")
    other = bufr([STATION[0], ("001002", 145, 10), *SYNOP[2:]], update=1)
    later = bufr([*STATION, *WHEN[:3], ("004004", 7, 5), *SYNOP[6:]])
    found = [format.read(each) for each in (bufr(), other, later, bufr())]
    assert [content.metadata["station"] for _, content in found] == [16144, 16145, 16144, 16144]
    assert [content.metadata["usn"] for _, content in found] == [0, 1, 0, 0]
    assert [from_microseconds(reftime).hour for reftime, _ in found] == [6, 6, 7, 6]


BOMBS = [
    bufr(codes=["163255"] * 2000, data=bytes(1000), category=255),
    bufr(codes=[f"1{63 - 3 * depth:02}255" for depth in range(20)] + ["012101"] * 63, data=bytes(4000), category=255),
    bufr(codes=["101255", "012101"] * 50_000, data=b"", category=255),
    bufr(codes=["101255", "012101"] * 50_000, data=bytes(1000), category=255, is_compressed=True),
    bufr(codes=["012101"] * 150_000, data=bytes(400_000), category=255),
    bufr(codes=["309052"] * 20_000, data=bytes(400_000), category=255),
    bufr(codes=["101000", "031002", "031000"] * 5, data=b"\xff" * 50_000, category=255),
    bufr(codes=["103000", "031002", "101000", "031002", "012101"], data=b"\xff" * 1_000_000, category=255),
    bufr(codes=["103000", "031002", "101000", "031002", "206000", "060001"], data=bytes(100), category=255),
    bufr(codes=["203255"] * 150_000, data=b"", category=255),
    bufr(codes=["207255", "202255"] + ["012101"] * 90_000, data=b"\xfe" * 8_000_000, category=255),
    bufr(codes=["001001"] * 99_990, data=bytes(100_000), category=4),
]


LARGEST = BOMBS[10]


def seconds(work) -> float:
    """Return the least CPU time of three runs: what else a core does makes each of them longer."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


@pytest.mark.check
def test_what_would_expand_without_end_is_cheap():
    format_of(**NUMBERS).describe(bufr(category=255))  # reads the tables
    for number, message in enumerate(BOMBS):
        floor = seconds(lambda: sum(each * each for each in range(500_000)))
        # That is 20 to 30 ms, and the slowest message 0.4 s.
        assert seconds(lambda message=message: format_of(**NUMBERS).describe(message)) < 60 * floor, number


@pytest.mark.slow
def test_the_largest_program_needs_little_memory():
    tracemalloc.start()
    format_of(**NUMBERS).describe(LARGEST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


@pytest.mark.check
def test_kinds_are_forgotten_before_they_use_much_memory():
    format = format_of()
    for centre in range(300):
        format.read(bufr(centre=centre, codes=["012101"] * 100, data=bytes(200), category=255))
        format.read(bufr(centre=centre, codes=["222000"] + ["012101"] * 5000, data=b"", category=255))  # ends at once
    assert sum(known.program.size for known in format._kinds.values()) <= 20_000
    assert sum(len(descriptors) for _, descriptors in format._kinds) <= 20_000


SEEDS = [
    *(bufr(edition=edition, category=category) for edition in (2, 3, 4) for category in (0, 1, 2, 4, 8, 255)),
    *(generic(21600), generic(0, 21600), bufr(second=b"local", is_compressed=True)),
    *(bufr(codes=codes, data=packed(*bits) + bytes(40), category=255) for codes, bits in BEFORE.values()),
    *(bufr(codes=codes, data=packed(*bits) + bytes(40), is_compressed=True) for codes, bits in BEFORE.values()),
    *(bufr(codes=[code], data=bytes(4000), category=6) for code in ("309052", "307080", "307086", "310030", "315009")),
]  # fmt: skip


def mutations(draw, seeds, count):
    """Yield messages that are framed as such, and wrong within."""
    for _ in range(count):
        message = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(8, min(len(message), 200))
            match draw.randrange(5):
                case 0:
                    message[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
                case 1:
                    message[at : at + 3] = draw.choice((bytes(3), b"\xff" * 3, b"\0\0\7"))
                case 2:
                    del message[at : at + draw.randint(1, 9)]
                case 3:
                    message[at:at] = draw.randbytes(draw.randint(1, 9))
                case 4:
                    # Among the descriptors: an operator, a replication, or a sequence.
                    kind = draw.choice((0x80, 0x40, 0xC0))
                    message[at : at + 2] = bytes((kind | draw.randrange(64), draw.randrange(256)))
        message[4:7] = len(message).to_bytes(3, "big")
        message[-4:] = b"7777"
        yield bytes(message)


def read_or_refused(messages):
    """Read messages, and check what is stored of them; return the seconds of the slowest."""
    format = format_of(**NUMBERS, **dict.fromkeys(Bufr.items, "item"))
    slowest = 0.0
    for message in messages:
        begin = time.process_time()
        batches = [*format.parse(io.BytesIO(message + SEEDS[0]), 100)]
        slowest = max(slowest, time.process_time() - begin)
        for metadata in (each for batch in batches for each in batch.metadata):
            assert all(abs(each) < 2**63 for each in metadata.values() if isinstance(each, int))
            assert all("\0" not in each for each in metadata.values() if isinstance(each, str))
    return slowest


@pytest.mark.check
def test_mutated_messages_are_read_or_refused_and_nothing_else():
    tracemalloc.start()
    slowest = read_or_refused(mutations(random.Random(20261121), SEEDS, 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert slowest < 0.5
    assert peak < 64 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.skipif(not GOLDEN.exists(), reason="arkimet's files are not beside the checkout, in ../shared/golden")
def test_mutated_messages_of_arkimets_tests_are_read_or_refused_and_nothing_else():
    seeds = []
    for folder in (GOLDEN / "files", GOLDEN / "hostile", GOLDEN.parent / "arkimet"):
        for path in folder.glob("*.bufr"):
            content = path.read_bytes()
            frames = format_of().frames(io.BytesIO(content).read)
            seeds += [each.window[begin:end] for each in frames for begin, end in each.spans]
    assert len(seeds) > 30
    assert read_or_refused([*seeds, *mutations(random.Random(20261123), seeds, 20_000)]) < 0.5
