"""Properties of every line of VM2."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import strategies

from ondisk import DatasetConfig, Datum
from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import FrameCorrupt
from ondisk.formats.vm2 import Vm2
from ondisk.segment import End

CONFIG = DatasetConfig.from_mapping(
    {"format": "vm2", "step": "daily", "fields": {"area": "text", "product": "text"}, "max_datum_size": 200}
)
# Parts of a line in any order reach more of the parser than arbitrary bytes.
PIECES = [
    *(b"200707081300", b"20070708130059", b"200702300000", b"000001010000", b"1", b"227", b"9" * 19, b"000000000"),
    *(b",", b",,", b"1.2", b"-.5e3", b"+", b".", b"e5", b"inf", b"nan", b" ", b"\r", b"\x00", b"\xff"),
]
lines = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")) | st.lists(st.sampled_from(PIECES)).map(
    b"".join
)

any_metadata = st.dictionaries(st.sampled_from(["area", "product", "x"]), st.text(max_size=3), max_size=1)
any_data = st.builds(Datum, strategies.reftimes(), any_metadata, lines | st.none() | st.text() | st.just({}))


@given(st.lists(strategies.vm2_data(), min_size=1))
def test_the_bytes_of_a_line_are_its_data_and_say_reftime_and_metadata(data):
    format = Vm2(CONFIG)
    batch = format.encode(data)
    assert batch.refused == []
    assert batch.payloads == [datum.data for datum in data]
    for datum, reftime, metadata in zip(data, batch.reftimes, batch.metadata, strict=True):
        assert reftime == microseconds(datum.reftime)
        assert datum.metadata.items() <= metadata.items()
        assert format.describe(datum.data) == (reftime, metadata)
        assert format.decode(datum.data) == datum.data


@given(st.lists(strategies.vm2_data(), min_size=1), st.integers(1, 5))
def test_a_file_reads_as_its_lines_whatever_the_batches(data, batch_size):
    format = Vm2(CONFIG)
    whole = format.encode(data)
    batches = list(format.parse(io.BytesIO(format.lay(whole.payloads, End()).content), batch_size))
    assert all(len(batch) <= batch_size for batch in batches)
    joined = batches[0]
    for batch in batches[1:]:
        joined.extend(batch)
    assert joined == whole


@given(st.lists(lines, max_size=6))
@example([b"200707081300,1,227,1.2,,,000000000", b"200702300000,1,227,1.2,,,"])
@example([b"9" * 100_000, b"200707081300,1,227," + b"1" * 100_000 + b"x"])
def test_arbitrary_bytes_are_refused_line_by_line_and_never_raise(lines):
    format = Vm2(CONFIG)
    batch = format.parse_lines(lines, 1)
    assert len(batch) == sum(1 for line in lines if re.sub(b"^(?:\xef\xbb\xbf)+", b"", line).strip())
    for line in lines:
        if line not in batch.payloads:
            with pytest.raises(FrameCorrupt):
                format.describe(line)


@given(st.lists(any_data | strategies.vm2_data(), max_size=6))
def test_a_datum_is_stored_as_given_or_refused_whatever_is_beside_it(data):
    """A batch, which is read at once if all its lines are good, must have the same result as its data one by one."""
    together, alone = Vm2(CONFIG).encode(data), [Vm2(CONFIG).encode([datum]) for datum in data]
    assert [position for position, _ in together.refused] == [at for at, batch in enumerate(alone) if batch.refused]
    assert together.payloads == [payload for batch in alone for payload in batch.payloads]
    stored = [datum for datum, batch in zip(data, alone, strict=True) if batch.payloads]
    assert [from_microseconds(reftime) for reftime in together.reftimes] == [datum.reftime for datum in stored]
