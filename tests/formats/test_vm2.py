from __future__ import annotations

import io
import re
import tracemalloc
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest

from ondisk import DatasetConfig, Datum
from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import ConfigError, FrameCorrupt, LimitExceeded, SegmentCorrupt
from ondisk.formats.base import Loaded
from ondisk.formats.vm2 import Vm2
from ondisk.segment import End, Laid

# Files of arkimet's tests with what arkimet says of them; beside the checkout, since they may not be copied into it.
GOLDEN = Path(__file__).resolve().parents[2].parent / "shared" / "golden" / "arkimet"
GOLDEN_FILES = sorted(GOLDEN.glob("*.vm2"))
LINE = b"200707081300,1,227,1.2,,,000000000"
T = datetime(2007, 7, 8, 13, tzinfo=UTC)


def format_of(**values):
    return Vm2(DatasetConfig.from_mapping({"format": "vm2", "step": "daily"} | values))


def refusal(datum):
    """Why a datum is refused."""
    batch = format_of().encode([datum])
    assert batch.payloads == []
    ((position, reason),) = batch.refused
    assert position == 0
    return reason


def scanned(file: Path) -> list[dict[str, str]]:
    """The result of arkimet's scanner for a file: one mapping for each datum."""
    blocks = file.with_name(file.name + ".yaml").read_text().strip().split("\n\n")
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


@pytest.mark.skipif(not GOLDEN_FILES, reason="arkimet's files are not beside the checkout, in ../shared/golden/arkimet")
@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda file: file.name)
def test_arkimets_files_are_read_as_arkimet_reads_them(file):
    content = file.read_bytes()
    (batch,) = format_of().parse(io.BytesIO(content), 1000)
    said = scanned(file)
    assert batch.refused == []
    assert len(batch.payloads) == len(said) == 4
    for reftime, metadata, payload, datum in zip(batch.reftimes, batch.metadata, batch.payloads, said, strict=True):
        offset, size = map(int, re.search(r":(\d+)\+(\d+)\)", datum["Source"]).groups())
        assert content[offset : offset + size] == payload
        assert from_microseconds(reftime).isoformat() == datum["Reftime"].replace("Z", "+00:00")
        # arkimet adds attributes of the station from its own database.
        area, product = (re.match(r"VM2\((\d+)", datum[name])[1] for name in ("Area", "Product"))
        assert metadata == {"area": f"VM2,{area}", "product": f"VM2,{product}"}
        assert payload.decode().split(",", 3)[3] == datum["Value"]


@pytest.mark.parametrize(
    ("line", "time", "area", "product"),
    [
        (LINE, T, "VM2,1", "VM2,227"),
        (b"20070708130059,1,227,,,,", T.replace(second=59), "VM2,1", "VM2,227"),
        (b"196912312359,1,2,.5,1.,text,\xff flags", datetime(1969, 12, 31, 23, 59, tzinfo=UTC), "VM2,1", "VM2,2"),
        (b"200707081300,007,0227,-1e-3,+2E5,,", T, "VM2,7", "VM2,227"),
        (b"000101010000,999999999999999999,0,1,1,,", datetime(1, 1, 1, tzinfo=UTC), "VM2,999999999999999999", "VM2,0"),
    ],
)  # fmt: skip
def test_a_line_says_its_reftime_and_metadata_in_arkimets_notation(line, time, area, product):
    format = format_of()
    assert format.describe(line) == (microseconds(time), {"area": area, "product": product})
    assert format.encode([Datum(time, {}, line)]).payloads == [line]
    assert format.decode(line) is line


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "1 part instead of 7"),
        (b"200707081300", "1 part instead of 7: YYYYmmddHHMM"),
        (b"200707081300,1,227,1.2,,", "6 parts instead of 7"),
        (b"200707081300,1,227,1.2,,,0,0", "8 parts instead of 7"),
        (b"20070708,1,227,1.2,,,", "time '20070708' is not written"),
        (b"2007070813000,1,227,1.2,,,", "time '2007070813000' is not written"),
        (b"200702300000,1,227,1.2,,,", "an impossible time"),
        (b"200707082400,1,227,1.2,,,", "an impossible time"),
        (b"20070708130060,1,227,1.2,,,", "an impossible time"),
        (b"000001010000,1,227,1.2,,,", "an impossible time"),
        (b" 200707081300,1,227,1.2,,,", "time ' 200707081300' is not written"),
        (b"200707081300,a,227,1.2,,,", "station 'a' is not a whole number"),
        (b"200707081300,-1,227,1.2,,,", "station '-1' is not a whole number"),
        (b"200707081300,,227,1.2,,,", "station '' is not a whole number"),
        (b"200707081300,1,1234567890123456789,1.2,,,", "variable '1234567890123456789' is not a whole number of up to"),
        (b"200707081300,1,227,abc,,,", "value1 'abc' is not a number"),
        (b"200707081300,1,227,nan,,,", "value1 'nan' is not a number"),
        (b"200707081300,1,227,1.2.3,,,", "value1 '1.2.3' is not a number"),
        (b"200707081300,1,227,.,,,", "value1 '.' is not a number"),
        (b"200707081300,1,227,e5,,,", "value1 'e5' is not a number"),
        ("\u0662007070813,1,227,1.2,,,".encode(), "is not written"),
        (LINE + b"\n", "one line"),
        (LINE + b"\r", "one line"),
        (b"200707081300,1,227,1.2,,a\rb,", "one line"),
        (LINE + b"\n" + LINE, "one line"),
        (b"200707081300,1,227,,low,,", "value2 'low' is not a number"),
        (b"\xef\xbb\xbf" + LINE, "byte order mark"),
        (LINE.decode().encode("utf-16-le"), "not text; decompress it first, or save it as UTF-8"),
    ],
)
def test_what_is_no_line_is_refused_with_what_is_wrong_in_it(line, fault):
    assert fault in refusal(Datum(T, {}, line))
    with pytest.raises(FrameCorrupt, match="not a line of VM2"):
        format_of().describe(line)


@pytest.mark.parametrize("data", [None, LINE.decode(), {"line": LINE}, bytearray(LINE), 5])
def test_data_that_are_not_bytes_are_refused(data):
    assert "the data of vm2 must be a line as bytes" in refusal(Datum(T, {}, data))


def test_metadata_that_agree_with_the_line_are_taken():
    format = format_of()
    for given in ({}, {"area": "VM2,1"}, {"product": "VM2,227"}, {"area": "VM2,1", "product": "VM2,227"}):
        assert format.encode([Datum(T, given, LINE)]).metadata == [{"area": "VM2,1", "product": "VM2,227"}]


@pytest.mark.parametrize(
    ("datum", "reason"),
    [
        (Datum(T, {"area": "VM2,2"}, LINE), "area is 'VM2,2', but 'VM2,1' in the data"),
        (Datum(T, {"station": 1}, LINE), "do not have the metadata 'station'"),
        (Datum(T.replace(microsecond=1), {}, LINE), "reftime is 2007-07-08T13:00:00.000001+00:00"),
        (Datum(T.replace(hour=14), {}, LINE), "reftime is"),
    ],
)
def test_what_the_line_does_not_say_is_refused(datum, reason):
    assert reason in refusal(datum)
    batch = format_of().encode([Datum(T, {}, LINE), datum, Datum(T, {}, LINE)])
    assert [position for position, _ in batch.refused] == [1]
    assert batch.payloads == [LINE, LINE]


def test_bad_lines_of_a_file_are_refused_with_their_number_and_the_others_stored():
    content = LINE + b"\n\nno line\r\n   \n" + LINE + b"\r\n200702300000,1,1,,,,"
    (batch,) = format_of().parse(io.BytesIO(content), 1000)
    assert batch.payloads == [LINE, LINE]
    assert [position for position, _ in batch.refused] == [1, 3]
    assert [reason.split(":")[0] for _, reason in batch.refused] == ["line 3", "line 6"]
    assert list(batch.positions()) == [0, 2]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([b"200707081300,1,227,1.2,,", b"200707081300,1,227,1.2,,,0,0"], id="commas that balance"),
        pytest.param([b"200707081300,1,227", b"1.2,,,0", LINE], id="a line in two"),
        pytest.param([b"200707081300,1,227,1.2,,,0,200707081300,1,227,1.2,,,0"], id="two lines in one"),
        pytest.param([b"200707081300,1,227,1.2,,,0\r"], id="a CR of its own"),
        pytest.param([b"2007070813,1,227,1.2,,,0"], id="no time"),
        pytest.param([b"200707081300,1,0x1,1.2,,,0"], id="no variable"),
        pytest.param([b"200707081300,1,227,1.2,.,,0"], id="no number"),
    ],
)
def test_good_lines_are_read_alike_whatever_is_beside_them(others):
    good = [LINE, b"20070708130500,2,227,,-1e3,x,"]
    alone, beside = format_of().parse_lines(good, 1), format_of().parse_lines([*good, *others], 1)
    assert [batch.payloads[:2] for batch in (alone, beside)] == [good, good]
    assert (beside.reftimes[:2], beside.metadata[:2]) == (alone.reftimes, alone.metadata)
    assert len(beside.refused) == len([each for each in others if each != LINE])


def test_lines_that_are_looked_at_together_are_one_batch(monkeypatch):
    lines = [LINE, b"no line", LINE, LINE, LINE, b"", b"nor this", LINE]
    at_once = format_of().parse_lines(lines, 5)
    for count in range(1, len(lines)):
        monkeypatch.setattr("ondisk.formats.vm2._TOGETHER", count)
        assert format_of().parse_lines(lines, 5) == at_once
        assert format_of().encode([Datum(T, {}, LINE)] * 7).payloads == [LINE] * 7
    assert [reason.split(":")[0] for _, reason in at_once.refused] == ["line 6", "line 11"]


def test_a_line_of_nothing_but_commas_takes_no_more_memory_than_another():
    def peak(line):
        tracemalloc.start()
        try:
            assert len(format_of().parse_lines([LINE, line], 1).refused) == 1
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    size = 1_000_000
    assert peak(LINE + b"," * size) < peak(LINE + b"\r" * size) + size


def test_numbers_of_lines_go_on_over_batches():
    batches = list(format_of().parse(io.BytesIO((LINE + b"\n") * 4 + b"no line\n"), 2))
    assert batches[-1].refused[0][1].startswith("line 5: ")


def test_an_excerpt_of_a_long_bad_line_is_short_and_printable():
    reason = refusal(Datum(T, {}, b"\x00\xff\x1b[31m" + b"x" * 100_000))
    assert len(reason) < 300
    assert reason.isprintable()


def test_a_line_longer_than_allowed_is_refused_whichever_way_it_comes():
    format = format_of(max_datum_size=len(LINE))
    longer = LINE + b"0"
    assert format.encode([Datum(T, {}, LINE)]).payloads == [LINE]
    assert f"{len(longer)} bytes are more than max_datum_size" in format.encode([Datum(T, {}, longer)]).refused[0][1]
    with pytest.raises(LimitExceeded, match="line 1"):
        list(format.parse(io.BytesIO(longer), 10))
    with pytest.raises(FrameCorrupt, match="max_datum_size"):
        format.describe(longer)


def test_numbers_are_those_of_the_grammar():
    """All texts of up to five of these characters that a simple grammar accepts."""
    number = re.compile(rb"([-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)?")
    texts = [bytes(each) for size in range(6) for each in product(b"+-.7e", repeat=size)]
    good = [each for each in texts if number.fullmatch(each)]
    lines = {each: [b"200707081300,1,227,%b,,,f" % each, b"200707081300,1,227,,%b,,f" % each] for each in texts}
    of_good = [line for each in good for line in lines[each]]
    format = format_of()
    assert format._parse_all(of_good, b"\n".join(of_good)).payloads == of_good
    for each in set(texts).difference(good):
        for line in lines[each]:
            assert format._parse_all([line], line) is None, line
            assert format.parse_lines([line], 1).payloads == []


def test_hostile_numbers_are_matched_in_linear_time():
    line = b"200707081300,1,227," + b"1" * 200_000 + b"x,,,"
    assert format_of().parse_lines([line] * 5, 1).payloads == []


def test_fields_that_are_not_declared_are_reported_by_the_line():
    assert format_of().undeclared
    assert format_of(fields={"area": "text"}).undeclared
    assert not format_of(fields={"area": "text", "product": "text", "other": "integer"}).undeclared


@pytest.mark.parametrize("name", ["area", "product"])
def test_area_and_product_can_only_be_declared_as_text(name):
    with pytest.raises(ConfigError, match=f"{name} of vm2 is item, not integer"):
        format_of(fields={name: "integer"})


def test_data_of_one_series_share_their_metadata():
    first, second = format_of().encode([Datum(T, {}, LINE)] * 2).metadata
    assert first is second


class File:
    """A segment's file, as a format sees it."""

    def __init__(self, content):
        self.content = content

    def size(self):
        return len(self.content)

    def read(self, position, size):
        assert position >= 0
        return self.content[position : position + size]


def test_newlines_are_padding():
    format = format_of()
    assert format.begin() == Laid(b"", End())
    size = 2 * len(LINE) + 2
    assert format.lay([LINE, LINE], End()) == Laid(LINE + b"\n" + LINE + b"\n", End(size, size))
    assert format.lay([LINE], End(100, 100)) == Laid(LINE + b"\n", End(100 + size // 2, 100 + size // 2))
    assert format.lay([], End(100, 100)) == Laid(b"", End(100, 100))


@pytest.mark.parametrize("known", [0, 4, 9])
@pytest.mark.parametrize(
    ("content", "before"),
    [(b"a\n" + LINE + b"\n", b""), (LINE + b"\n", b""), (LINE, b"\0\n"), (b"\n" + LINE[:-1], b"\0\n")],
)
def test_behind_a_file_that_nobody_vouches_for_a_line_begins_anew_and_nothing_is_cut(content, before, known):
    content = b"known\n\n\n\n"[:known] + content
    end = len(content) + len(before)
    assert format_of().resume(File(content), End(known, known)) == Laid(before, End(end, end))


def test_a_line_that_was_cut_off_never_becomes_a_whole_one():
    """The flags may be any text: without its last digits a line looks as whole as before."""
    content = LINE + b"\n" + LINE[:-2]
    laid = format_of().resume(File(content), End())
    after = content + laid.content + LINE + b"\n"
    first, last = format_of().scan(File(after))
    assert (first.offsets, last.missing) == ([0, len(after) - len(LINE) - 1], 0)
    assert "torn" in first.damage[0].reason


@pytest.mark.parametrize(("end", "missing"), [(b"", 0), (LINE, 1), (LINE[:5], 1), (b" ", 0), (bytes(9), 0)])
def test_a_last_line_without_end_is_missing(end, missing):
    """An interrupted append may have left it, or somebody has cut the file off."""
    results = [*format_of().scan(File(LINE + b"\n" + end))]
    assert [offset for each in results for offset in each.offsets] == [0]
    assert results[-1].missing == missing
    assert results[-1].end.size == len(LINE) + 1


def test_behind_an_empty_file_a_line_begins_at_once():
    assert format_of().resume(File(b""), End()) == Laid(b"", End())


def test_behind_a_file_that_lost_known_bytes_the_known_end_stays_the_end():
    """An append must find the file too short, and must not write a line where the index has another."""
    laid = format_of().resume(File(b"0123"), End(10, 10))
    assert laid.end.size - len(laid.content) == 10


def test_lines_have_no_blocks():
    with pytest.raises(SegmentCorrupt, match="segments of vm2 have no blocks"):
        format_of().unpack(LINE)


def test_lines_are_loaded_with_the_metadata_that_are_not_declared():
    loaded = format_of().load([LINE])
    assert loaded == Loaded([LINE], [{"area": "VM2,1", "product": "VM2,227"}])
    assert format_of(fields={"area": "text", "product": "text"}).load([LINE]) == Loaded([LINE])
    with pytest.raises(FrameCorrupt) as caught:
        format_of().load([LINE, b"no line", LINE])
    assert caught.value.context["position"] == 1


def test_caches_are_dropped_before_they_grow_without_end():
    format = format_of()
    format._times._most = format._metadata._most = 10
    for station in range(100):
        format.parse_lines([b"2007070813%02d,%d,1,,,," % (station % 60, station)], 1)
        assert len(format._times) <= 10
        assert len(format._metadata) <= 10
