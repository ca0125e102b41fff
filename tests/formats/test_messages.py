"""Messages are found whatever is around them; a segment of them survives what happens to segments."""

from __future__ import annotations

import io
import json
import time
import tracemalloc

import pytest
from formats.bufr.build import STATION, SYNOP, bufr
from formats.grib.build import grib1, grib2, product2, surface
from formats.grib.test_grib import GOLDEN
from formats.test_base import File

import ondisk
from ondisk import DatasetConfig
from ondisk.errors import FrameCorrupt, SegmentCorrupt
from ondisk.formats import find, recognised
from ondisk.formats.self_describing import pairs
from ondisk.segment import End, Laid

ONE, TWO = grib1(), grib2()
HEADING = b"\1\r\r\n123\r\r\nHTIA10 EGRR 201200\r\r\n"
FIELDS = dict.fromkeys(("area", "level", "origin", "proddef", "product", "run", "timerange"), "item")


def format_of(name="grib", **values):
    return find(name)(DatasetConfig.from_mapping({"format": name, "step": "daily"} | values))


def found(content: bytes, piece: int = 1 << 20, **values):
    """The messages and the gaps of a stream that returns pieces of limited size."""
    stream = io.BytesIO(content)
    messages, gaps = [], []
    for frames in format_of(**values).frames(lambda size: stream.read(min(size, piece))):
        messages += [(frames.offset + begin, end - begin) for begin, end in frames.spans]
        gaps += frames.gaps
    return messages, gaps


@pytest.mark.skipif(not GOLDEN.exists(), reason="arkimet's files are not beside the checkout, in ../shared/golden")
@pytest.mark.parametrize("name", ["grib", "bufr"])
def test_messages_are_found_in_padded_and_damaged_files(name):
    cases = [json.loads(line) for line in (GOLDEN / "junk.jsonl").read_text().splitlines()]
    cases = [case for case in cases if ("bufr" in case["file"]) == (name == "bufr")]
    for case in cases:
        stream = io.BytesIO((GOLDEN / case["file"]).read_bytes())
        all_frames = [*format_of(name).frames(stream.read)]
        spans = [[each.offset + begin, end - begin] for each in all_frames for begin, end in each.spans]
        gaps = [[gap.offset, gap.size] for each in all_frames for gap in each.gaps]
        assert (spans, gaps) == (case["messages"], case["junk"]), case["file"]
    assert len(cases) > 4


@pytest.mark.parametrize("piece", [1 << 20, 7, 1])
@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (b"", None),
        (b"\0" * 100, ""),
        (b"\r\n", ""),
        (HEADING, ""),
        (b"NNNN\r\r\n\3" + HEADING, ""),
        (b"0000027400\0\0\r\n" + HEADING, ""),
        (b"ZCZC 123 \r\r\n", ""),
        (b"GRIB", "no message"),
        (b"GRIB\0\1\0\1junk", "no message"),
        (ONE[:-1], "no message"),
        (ONE[:-1] + b"8", "no message"),
        (ONE[:7] + b"\3" + ONE[8:], "no message"),
        (
            TWO[:8] + b"\xff" * 8,
            "no message, or one of 18446744073709551615 bytes: more than max_datum_size, 134217728",
        ),
    ],
)
def test_messages_are_found_behind_padding_headings_and_junk(before, reason, piece):
    messages, gaps = found(before + ONE + before + TWO, piece)
    first = len(before)
    assert messages == [(first, len(ONE)), (2 * first + len(ONE), len(TWO))]
    assert [tuple(gap) for gap in gaps] == (
        [] if reason is None else [(0, first, reason), (first + len(ONE), first, reason)]
    )


def test_a_long_message_of_edition_1_has_its_length_in_units():
    data = bytes(0x800000)
    units = (len(grib1(data=b"")) + len(data) + 119) // 120
    message = bytearray(grib1(data=data, size=0x800000 | units))
    # Section 4 says how many bytes of the last unit are not used.
    at = len(message) - 4 - len(data) - 3
    message[at : at + 3] = (units * 120 - len(message) + 4).to_bytes(3, "big")
    content = bytes(message)
    assert found(content + ONE)[0] == [(0, len(content)), (len(content), len(ONE))]
    assert found(content[:-1] + ONE)[0] == [(len(content) - 1, len(ONE))]


def test_a_message_larger_than_max_datum_size_is_damage_and_not_read():
    large = grib1(data=bytes(100_000))
    messages, (gap,) = found(large + ONE, max_datum_size=50_000)
    assert messages == [(len(large), len(ONE))]
    assert gap.reason == f"no message, or one of {len(large)} bytes: more than max_datum_size, 50000"


@pytest.mark.check
@pytest.mark.parametrize(
    "junk",
    [
        b"BUFR",
        b"BUFR\0\0\x40\4",
        b"GRIB",
        b"GRIB\0\0\x40\1",
        b"GRIB\0\0\0\2\0\0\0\0\4\0\0\0",
        b"\0",
        b"x7777GRIB\0\0\0\1",
        b"GRIB\x80\0\1\1\0\0\0",
    ],
)
def test_junk_takes_linear_time_and_little_memory(junk):
    name = "bufr" if b"BUFR" in junk else "grib"

    def cost(size):
        content = io.BytesIO(junk * (size // len(junk)))
        begin = time.process_time()
        assert not any(frames.spans for frames in format_of(name).frames(content.read))
        return time.process_time() - begin

    assert cost(1 << 20) < 8 * cost(1 << 18) + 0.1  # linear would be 4
    content = io.BytesIO(junk * ((1 << 18) // len(junk)))
    tracemalloc.start()
    for _ in format_of(name, max_datum_size=1 << 16).frames(content.read):
        pass
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


@pytest.mark.check
def test_a_claim_allocates_nothing():
    claim = TWO[:8] + (100 << 20).to_bytes(8, "big") + bytes(1000)
    tracemalloc.start()
    assert found(claim)[0] == []
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_file_is_recognised_by_its_first_message():
    for content in (ONE, TWO, b"\0" * 1000 + ONE, HEADING + TWO):
        assert (recognised(None, content[:4096], "jsonl") or "jsonl") == "grib"
        assert (recognised("model.grib2", content[:4096], "jsonl") or "jsonl") == "grib"
    for content in (bufr(), b"\0" * 1000 + bufr(edition=2), HEADING + bufr(edition=3)):
        assert (recognised(None, content[:4096], "jsonl") or "jsonl") == "bufr"
    for content in (b"BUFR", b"BUFR;a;b\n1;2;3\n", b"GRIB", b"GRIB;a;b\n1;2;3\n", b'{"GRIB": 1}\n'):
        assert (recognised(None, content, "jsonl") or "jsonl") == "jsonl"


def test_a_segment_is_scanned_with_its_holes_and_its_damage():
    content = b"\0" * 10 + ONE + b"\r\n" + b"junk" + TWO + b"\0" * 5
    results = [*format_of(fields=FIELDS).scan(File(content))]
    offsets = [offset for each in results for offset in each.offsets]
    assert offsets == [10, 10 + len(ONE) + 6]
    assert [size for each in results for size in each.sizes] == [len(ONE), len(TWO)]
    ((damage,),) = [each.damage for each in results if each.damage]
    assert (damage.offset, damage.size) == (10 + len(ONE), 6)
    assert results[-1].end == End(len(content), len(content))
    assert results[-1].missing == 0


@pytest.mark.parametrize("cut", [1, 20, len(TWO) - 1])
def test_the_rest_of_an_interrupted_append_is_cut_off_and_whole_messages_stay(cut):
    content = ONE + TWO + TWO[:-cut]
    last = len(ONE + TWO)
    (result,) = format_of().scan(File(content))
    assert (result.end.size, result.missing, result.damage) == (last, 1, [])
    assert format_of().resume(File(content), End(len(ONE), len(ONE))) == Laid(b"", End(last, last))
    assert format_of().resume(File(ONE + b"\0\0"), End(len(ONE), len(ONE))) == Laid(
        b"", End(len(ONE) + 2, len(ONE) + 2)
    )


def test_nothing_is_appended_to_a_file_of_something_else_nor_behind_damage():
    with pytest.raises(SegmentCorrupt, match=r"nothing in it is of the format grib"):
        format_of().resume(File(b"something else"), End())
    with pytest.raises(SegmentCorrupt, match=f"whole messages follow 4 bytes at {len(ONE)}"):
        format_of().resume(File(ONE + b"junk" + TWO), End(len(ONE), len(ONE)))


def test_data_of_a_segment_end_as_messages_do():
    assert format_of().ends(b"7777", 100)
    assert not format_of().ends(b"777\n", 100)
    with pytest.raises(FrameCorrupt):
        format_of().describe(ONE + TWO)


def test_texts_of_items_are_quoted_where_they_could_be_read_as_something_else():
    assert pairs("GRIB", {"b": "12", "a": 12, "c": None, "d": "x=1", "e": "A 1", "f": "1,2"}) == (
        'GRIB:a=12,b="12",d="x=1",e=A 1,f=1,2'
    )


def test_a_segment_is_a_file_of_messages_through_its_life(create, tmp_path):
    dataset = create(format="grib", fields={**FIELDS, "step": "integer"}, unique=["reftime", *FIELDS])
    levels = [grib2(product=product2(first=surface(100, 0, 100 * each), step=each)) for each in range(500, 1000, 100)]
    source = tmp_path / "source"
    source.write_bytes(b"\0" * 7 + b"\r\n".join(levels) + HEADING + levels[0])
    result = dataset.append_file(source)
    assert (result.imported, result.duplicates, result.refused) == (5, 1, 0)
    segment = tmp_path / "dataset" / "2026" / "11-20.grib"
    assert segment.read_bytes() == b"".join(levels)
    assert [datum.data for datum in dataset.query("level: GRIB2S,100,,70000; timerange: Timedef,700h")] == [levels[2]]
    assert [datum.metadata["step"] // 3600 for datum in dataset.query("step: >=2520000")] == [700, 800, 900]
    assert dataset.delete("level: GRIB2S,100,,60000") == 1
    dataset.close()
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert dataset.repack(dry_run=False)
    assert segment.read_bytes() == b"".join(levels[:1] + levels[2:])
    for each in (tmp_path / "dataset").glob("index.sqlite*"):
        each.unlink()
    with segment.open("ab") as file:
        file.write(levels[1][:50])  # an append that a crash cut off
    with ondisk.open(tmp_path / "dataset") as dataset:
        dataset.fix(dry_run=False)
        assert [datum.data for datum in dataset.query()] == levels[:1] + levels[2:]
        assert dataset.append([ondisk.Datum(next(iter(dataset.query())).reftime, {}, levels[1])]).imported == 1
        assert [datum.data for datum in dataset.query("level: GRIB2S,100,,60000")] == [levels[1]]


def test_items_that_are_not_declared_are_metadata_all_the_same(create, tmp_path):
    dataset = create(format="grib")
    (tmp_path / "x.grib").write_bytes(ONE)
    dataset.append_file(tmp_path / "x.grib")
    (datum,) = dataset.query("metadata.level: GRIB1,105")
    assert datum.metadata["product"] == "GRIB1,98,2,11"
    assert "step" not in datum.metadata


def test_the_report_with_the_highest_update_sequence_number_stays(create, tmp_path):
    fields = {"usn": "integer", "proddef": "item", "north": "real"}
    dataset = create(format="bufr", fields=fields, unique=["reftime", "proddef"], replace="newer", version_field="usn")
    other = [STATION[0], ("001002", 145, 10), *SYNOP[2:]]
    for update in (0, 2, 1):
        path = tmp_path / f"{update}.bufr"
        path.write_bytes(bufr(update=update) + bufr(other))
        dataset.append_file(path)
    assert {datum.metadata["proddef"]: datum.metadata["usn"] for datum in dataset.query()} == {
        "GRIB:blo=16,sta=145": 0,
        "GRIB:blo=16,sta=144": 2,
    }
    assert [datum.data for datum in dataset.query("proddef: GRIB:sta=144; north: >44,<45")] == [bufr(update=2)]
    segment = tmp_path / "dataset" / "2026" / "11-20.bufr"
    dataset.close()
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert dataset.repack(dry_run=False)
    assert segment.stat().st_size == len(bufr()) * 2


def test_junk_before_the_last_message_is_damage_and_not_an_interrupted_append():
    results = [*format_of().scan(File(ONE + b"junk" + TWO))]
    assert [each.offset for result in results for each in result.damage] == [len(ONE)]
    assert sum(result.missing for result in results) == 0
    (cut,) = format_of().scan(File(ONE + TWO[:-1]))
    assert (cut.damage, cut.missing, cut.end.size) == ([], 1, len(ONE))
