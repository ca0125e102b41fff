"""docs/seg.md is correct: its reader reads the files of Beats and ondisk, and the codec writes its example."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.formats.diskqueue import blocks, cbor, header
from ondisk.formats.diskqueue.payload import Event

from . import segments
from .test_golden import GOLDEN, expectations, expected_events, same_events

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/seg.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HEX = re.findall(r"^```hex\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
QUEUE = ROOT / "sample_datasets/beats-queue"
SAMPLES = {"0.seg": "v2-plain/15.seg", "1.seg": "v2-lz4/1.seg", "2.seg": "v2-lz4/4.seg"}

WHOLE = [f"{variant}/{n}.seg" for variant in ("v2-plain", "v2-lz4") for n in (0, 1, 2, 4, 15)]
CUT = [f"{variant}/{n}.seg" for variant in ("v2-plain", "v2-lz4") for n in (5, 6, 7, 8)]
FLIPPED = [f"v2-plain/{n}.seg" for n in (10, 11, 13)]
OPTIONS = pytest.mark.parametrize("options", [0, header.LZ4])
EVENT = Event(1_795_154_400_000_000_000, 0, {"station": 101}, {"wind": 3.5})


@pytest.fixture(scope="module")
def read():
    """The page's reader: return the events it reads, and the error it raises, if any."""
    page: dict = {}
    exec(compile(CODE, "docs/seg.md", "exec"), page)

    def read(path):
        events = []
        try:
            for event in page["read"](path):
                events.append(Event(*event))  # noqa: PERF401
        except (ValueError, lz4.block.LZ4BlockError) as error:
            return events, error
        return events, None

    return read


@pytest.fixture(scope="module")
def read_bytes(read, tmp_path_factory):
    path = tmp_path_factory.mktemp("segments") / "0.seg"

    def read_bytes(segment):
        path.write_bytes(segment)
        return read(path)

    return read_bytes


def golden(file):
    variant, _, name = file.partition("/")
    return GOLDEN / file, expected_events(variant, name), expectations(variant)[name]["frames_mode"]["n"]


def described(block):
    """Yield the bytes of each line of a hex block, and its description."""
    for line in block.splitlines():
        digits, text = re.split(r"  +", line, maxsplit=1)
        yield bytes.fromhex(digits), text


def test_the_reader_is_short_and_needs_no_ondisk():
    assert sum(bool(line.strip()) for line in CODE.splitlines()) <= 30
    imported = {
        name
        for node in ast.walk(ast.parse(CODE))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert imported == {"zlib", "pathlib", "cbor2", "lz4.block"}


@pytest.mark.parametrize("file", WHOLE)
def test_the_reader_reads_whole_files_of_beats(read, file):
    path, expected, _ = golden(file)
    events, error = read(path)
    assert error is None
    assert same_events(events, expected)


@pytest.mark.parametrize("file", CUT)
def test_the_reader_stops_at_the_torn_tail_of_a_file_of_beats(read, file):
    path, expected, count = golden(file)
    events, error = read(path)
    assert error is None
    assert same_events(events, expected[:count])


@pytest.mark.parametrize("file", FLIPPED)
def test_the_reader_reports_damage(read, file):
    path, expected, count = golden(file)
    events, error = read(path)
    assert isinstance(error, ValueError)
    assert same_events(events, expected[:count])


@pytest.mark.parametrize("variant", ["v0", "v1", "v2-pb", "v2draft-enc", "v3draft-lz4stream"])
def test_the_reader_refuses_other_versions(read, variant):
    events, error = read(GOLDEN / variant / "1.seg")
    assert not events
    assert "version" in str(error)


@OPTIONS
@given(batches=st.lists(st.lists(segments.events, max_size=4), max_size=4))
def test_the_reader_reads_what_ondisk_writes(read_bytes, options, batches):
    events, error = read_bytes(segments.write(batches, options))
    assert error is None
    assert same_events(events, [event for batch in batches for event in batch])


@OPTIONS
def test_the_reader_reads_frames_of_any_size_and_a_sealed_segment(read_bytes, options):
    sizes = [0, 65_000, 65_536, 200_000, 1, 300, 65_400]
    events = [Event(n, 0x80, {}, {"data": bytes(range(256)) * (size // 256)}) for n, size in enumerate(sizes)]
    segment = segments.write([events[:3], events[3:]], options) + (blocks.END_MARK if options else b"")
    assert read_bytes(segment) == (events, None)


@pytest.mark.check
@OPTIONS
@given(batches=st.lists(st.lists(segments.events, min_size=1, max_size=2), max_size=3), left=st.floats(0, 1))
def test_the_reader_yields_the_whole_frames_before_a_torn_tail(read_bytes, options, batches, left):
    segment = segments.write(batches, options)
    size = header.SIZE + round(left * (len(segment) - header.SIZE))
    expected = segments.read(segment[:size]) if size > header.SIZE else segments.Read(header.Header())
    events, error = read_bytes(segment[:size])
    assert error is None
    assert same_events(events, expected.events)
    assert expected.damage is None or expected.damage.startswith(("it ends", "the file ends"))


@OPTIONS
def test_the_reader_yields_every_whole_batch_at_every_cut(read_bytes, options):
    batches = [[EVENT], [EVENT, EVENT], [EVENT]]
    whole = [(len(segments.write(batches[:n], options)), sum(map(len, batches[:n]))) for n in range(4)]
    segment = segments.write(batches, options)
    for size in range(header.SIZE, len(segment) + 1):
        events, error = read_bytes(segment[:size])
        assert error is None
        assert len(events) >= max(count for end, count in whole if end <= size or not count)
        assert events == [EVENT] * len(events)


@OPTIONS
def test_the_reader_treats_zeros_that_a_crash_left_as_the_end(read_bytes, options):
    assert read_bytes(segments.write([[EVENT]], options) + bytes(100)) == ([EVENT], None)


@OPTIONS
def test_the_reader_never_yields_wrong_data_for_a_flip_of_any_bit(read_bytes, options):
    segment = segments.write([[EVENT], [EVENT]], options)
    for bit in range(8 * header.SIZE, 8 * len(segment)):
        flipped = bytearray(segment)
        flipped[bit // 8] ^= 1 << bit % 8
        events, _ = read_bytes(bytes(flipped))
        assert events == [EVENT] * len(events)


def test_the_example_is_what_the_codec_writes():
    plain, compressed = (list(described(block)) for block in HEX)
    example = b"".join(each for each, _ in plain)
    assert example == segments.write([[EVENT]], 0)
    assert segments.write([[EVENT]]) == b"".join(each for each, _ in compressed) + example[header.SIZE :]


def test_the_example_is_annotated_as_it_is():
    for each, text in described(HEX[0]):
        if "key" in text:
            assert each == bytes([0xA0 + int(re.search(r"\d", text)[0])])
        elif re.match(r'["\d]', text):
            assert cbor.decode(each, max_depth=1, max_items=1) == ast.literal_eval(text)
        else:
            assert len(each) == 4
    values = {text: int.from_bytes(each, "little") for each, text in described(HEX[0])}
    assert [values[name] for name in ("version", "frame count", "options: plain")] == [2, 1, 0]
    assert values["length: 77 bytes"] == values["length, again"] == 77


def test_the_integers_that_are_wider_than_their_shortest_form_are_those_of_the_page():
    rows = re.findall(r"^\| (-\d+) to (-\d+) \| (\d) bytes \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for first, last, width in ((int(first), int(last), int(width)) for first, last, width in rows):
        for value in (first, last):
            assert len(cbor.encode(value, max_depth=1, max_items=1)) == 1 + width
        assert len(cbor.encode(first + 1, max_depth=1, max_items=1)) == 1 + width // 2


@pytest.mark.parametrize("name", SAMPLES)
def test_a_segment_of_the_sample_queue_is_of_beats_and_contains_what_its_readme_says(read, name):
    path, expected, _ = golden(SAMPLES[name])
    assert (QUEUE / name).read_bytes() == path.read_bytes()
    readme = (QUEUE.parent / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `beats-queue/{name}` .*\| (\d+) events? \|$", readme, re.MULTILINE)
    events, error = read(QUEUE / name)
    assert error is None
    assert len(events) == len(expected) == int(row[1])
    assert {each.name for each in QUEUE.iterdir()} == set(SAMPLES)
