"""Datasets of every variant: what they write is what Beats of that version reads, after each verb, and after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from drawn import up_to
from formats.diskqueue import beats_reader
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import same
from staging.stages import commit

import ondisk
from ondisk import Datum
from ondisk.config import DatasetConfig
from ondisk.errors import StateError
from ondisk.maintenance.states import State

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.seg"
CONFIG = {"format": "seg", "step": "daily", "fields": {"station": "integer"}, "unique": ["reftime", "station"]}
VARIANTS = {
    "version 0": {"version": 0},
    "version 1": {"version": 1},
    "plain": {"compression": "none"},
    "lz4": {},
    "protobuf": {"payload": "protobuf"},
    "protobuf plain": {"payload": "protobuf", "compression": "none"},
}
HEADERS = {"version 0": (0, 0), "version 1": (1, 0), "plain": (2, 0), "lz4": (2, 2), "protobuf": (2, 6),
           "protobuf plain": (2, 4)}  # fmt: skip


def datum(n, **more):
    return Datum(
        T + timedelta(seconds=n), {"station": n, "note": "é\n"}, {"n": n, "x": [1.5, None, {"a": -129}], **more}
    )


def reconfigured(path, variant):
    text = DatasetConfig.from_mapping({**CONFIG, **VARIANTS[variant]}).to_toml()
    (path / "dataset.toml").write_text(text)
    return ondisk.open(path)


def strictly_read(path, name=SEGMENT):
    """Return what a strict reader finds in a segment, and version and options of that."""
    content = (path / name).read_bytes()
    version = int.from_bytes(content[:4], "little")
    options = int.from_bytes(content[8:12], "little") if version == 2 else 0
    return beats_reader.read(content), (version, options)


def contents(dataset):
    return [(each.reftime, dict(each.metadata), each.data) for each in dataset.query()]


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text(max_size=10)
keys = st.text(min_size=1, max_size=5)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
data = st.builds(
    lambda seconds, meta, fields: Datum(T + timedelta(seconds=seconds), {**meta, "station": 1}, fields),
    st.integers(0, 50_000), st.dictionaries(keys, values, max_size=2), st.dictionaries(keys, values, max_size=3),
)  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@given(batches=st.lists(st.lists(data, max_size=4), min_size=1, max_size=3))
@settings(max_examples=up_to(10))
def test_what_is_appended_comes_back_and_beats_reads_it(variant, batches, tmp_path_factory):
    path = tmp_path_factory.mktemp("variants") / "dataset"
    with ondisk.create(path, {**CONFIG, **VARIANTS[variant], "unique": []}) as dataset:
        for batch in batches:
            assert dataset.append(batch).refused == 0
        given_data = sorted((each for batch in batches for each in batch), key=lambda each: each.reftime)
        assert same(contents(dataset), [(each.reftime, dict(each.metadata), each.data) for each in given_data])
        if given_data:
            read, header = strictly_read(path)
            assert (len(read), header) == (len(given_data), HEADERS[variant])
        assert not any(each.state & ~State.DIRTY for each in dataset.check(accurate=True).segments)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_verb_keeps_the_variant(variant, create):
    dataset = create("dataset", **{**CONFIG, **VARIANTS[variant]})
    path = dataset.path
    for begin in (0, 20, 10):
        dataset.append([datum(n) for n in range(begin, begin + 10)])
    dataset.delete(dataset.fields["station"] == 15)
    dataset.repack()
    expected = contents(dataset)
    read, header = strictly_read(path)
    assert (len(read), header) == (29, HEADERS[variant])
    dataset.append([datum(31)])
    dataset.close()
    for left in path.glob("index.sqlite*"):
        left.unlink()
    with ondisk.open(path) as again:
        assert not again.fix().lost
        assert contents(again)[:-1] == expected
        again.append([datum(32)])
        again.archive(SEGMENT)
        again.append([datum(33)])
        again.archive(SEGMENT)
        assert len(contents(again)) == 32
        assert not any(each.state for each in again.check(accurate=True).segments)
    read, header = strictly_read(path, f".archive/last/{SEGMENT}")
    assert (len(read), header) == (32, HEADERS[variant])


@pytest.mark.parametrize("before", VARIANTS)
@pytest.mark.parametrize("after", VARIANTS)
def test_a_segment_is_continued_as_it_began_and_converted_by_rewrite(before, after, create):
    dataset = create("dataset", **{**CONFIG, **VARIANTS[before]})
    path = dataset.path
    dataset.append([datum(n) for n in range(20)])
    dataset.close()
    with reconfigured(path, after) as again:
        assert again.append([datum(n) for n in range(20, 25)]).imported == 5
        read, header = strictly_read(path)
        assert (len(read), header) == (25, HEADERS[before])
        expected = contents(again)
        assert [each.state for each in again.check(rewrite=True).segments] == [
            State.OK if HEADERS[before] == HEADERS[after] else State.DIRTY
        ]
        again.repack(rewrite=True)
        assert same(contents(again), expected)
        read, header = strictly_read(path)
        assert (len(read), header) == (25, HEADERS[after])
        assert [each.state for each in again.check(accurate=True, rewrite=True).segments] == [State.OK]
        again.append([datum(25)])
        assert len(strictly_read(path)[0]) == 26


@pytest.mark.parametrize("after", ["version 0", "protobuf"])
def test_data_that_a_kind_cannot_hold_are_refused_and_keep_a_segment_in_cbor(after, create):
    dataset = create("dataset", **CONFIG)
    path = dataset.path
    dataset.append([datum(1), Datum(T, {"station": 9}, b"bytes")])
    dataset.close()
    with reconfigured(path, after) as again:
        before = contents(again)
        again.repack(rewrite=True)
        assert contents(again) == before
        assert strictly_read(path)[1] in ((2, 0), (2, 2))
        assert again.append([Datum(T + timedelta(seconds=5), {"station": 9}, b"more")]).refused == 1
        again.delete(again.fields["station"] == 9)
        again.repack(rewrite=True)
        assert strictly_read(path)[1] == HEADERS[after]
        result = again.append([datum(7), Datum(T, {"station": 9}, b"bytes")])
        assert (result.imported, result.refused) == (1, 1)


def test_a_segment_without_bytes_refuses_those_of_a_dataset_that_now_writes_cbor(create):
    dataset = create("dataset", **{**CONFIG, "version": 0})
    path = dataset.path
    dataset.append([datum(1)])
    dataset.close()
    with reconfigured(path, "plain") as again:
        result = again.append([datum(2), Datum(T, {"station": 9}, b"bytes"), datum(3)])
        assert (result.imported, [position for position, _ in result.refusals]) == (2, [1])
        assert "bytes" in result.refusals[0][1]
        assert len(strictly_read(path)[0]) == 3


def test_segments_of_two_kinds_are_merged_in_the_archive(create):
    dataset = create("dataset", **{**CONFIG, "version": 0})
    path = dataset.path
    dataset.append([datum(n) for n in (1, 3)])
    dataset.archive(SEGMENT)
    dataset.close()
    with reconfigured(path, "protobuf") as again:
        again.append([datum(2), datum(4)])
        expected = sorted(contents(again))
        again.archive(SEGMENT)
        assert contents(again) == expected
        read, header = strictly_read(path, f".archive/last/{SEGMENT}")
        assert (len(read), header) == (4, HEADERS["protobuf"])
        assert not any(each.state for each in again.check(accurate=True).segments)


def test_a_sequence_begins_a_new_segment_for_another_kind(create):
    dataset = create("queue", format="seg", step="sequence", version=1)
    path = dataset.path
    dataset.append([datum(1)])
    dataset.close()
    text = DatasetConfig.from_mapping({"step": "sequence", "version": 0}).to_toml()
    (path / "dataset.toml").write_text(text)
    with ondisk.open(path) as again:
        again.append([datum(2)])
        assert len(contents(again)) == 2
    assert strictly_read(path, "0.seg")[1] == HEADERS["version 1"]
    assert strictly_read(path, "1.seg")[1] == HEADERS["version 0"]


KILLED = """
import sys, ondisk
from datetime import UTC, datetime, timedelta
with ondisk.open(sys.argv[1]) as dataset:
    print("begun", flush=True)
    while True:
        for n in range(100, 140):
            time = datetime(2026, 11, 20, 6, tzinfo=UTC) + timedelta(seconds=n)
            dataset.append([ondisk.Datum(time, {"station": n}, {"n": n})])
        dataset.repack(rewrite=True)
        dataset.delete(dataset.fields["station"] >= 100)
"""


@pytest.mark.check
@pytest.mark.parametrize("variant", ["version 0", "version 1", "protobuf"])
def test_what_a_kill_leaves_is_read_and_continued(variant, create):
    dataset = create("dataset", **{**CONFIG, **VARIANTS[variant]})
    path = dataset.path
    dataset.append([datum(n) for n in range(20)])
    expected = contents(dataset)
    dataset.close()
    for delay in (0.02, 0.1, 0.3):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        with ondisk.open(path) as again:
            assert contents(again)[:20] == expected
            assert again.append([Datum(T + timedelta(hours=1), {"station": 500}, {"n": 500})]).imported == 1
            again.delete(again.fields["station"] >= 100)
            again.repack()
            assert not any(each.state for each in again.check(accurate=True).segments)
        read, header = strictly_read(path)
        assert (len(read), header) == (20, HEADERS[variant])


CONVERTED = """
import sys, ondisk
from pathlib import Path
configs = sys.argv[2:]
print("begun", flush=True)
while True:
    for config in configs:
        Path(sys.argv[1], "dataset.toml").write_text(config)
        with ondisk.open(sys.argv[1]) as dataset:
            dataset.repack(rewrite=True)
"""


@pytest.mark.check
def test_a_kill_during_a_conversion_leaves_the_old_segment_or_the_new_one(create):
    dataset = create("dataset", **CONFIG)
    path = dataset.path
    dataset.append([datum(n) for n in range(200)])
    expected = contents(dataset)
    dataset.close()
    variants = ["version 0", "protobuf", "version 1"]
    configs = [DatasetConfig.from_mapping({**CONFIG, **VARIANTS[variant]}).to_toml() for variant in variants]
    for delay in (0.03, 0.05, 0.08, 0.12, 0.2):
        command = [sys.executable, "-c", CONVERTED, str(path), *configs]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        with reconfigured(path, "version 1") as again:
            assert contents(again) == expected
            assert again.append([datum(200)]).imported == 1
            again.delete(again.fields["station"] == 200)
            again.repack()
            assert not any(each.state for each in again.check(accurate=True).segments)
        assert len(strictly_read(path)[0]) == 200


def test_staged_data_are_not_written_to_a_segment_of_another_kind(create):
    dataset = create("dataset", **{**CONFIG, "fields": {"station": "integer"}})
    path = dataset.path
    dataset.append([datum(1)])
    dataset.close()
    with reconfigured(path, "protobuf") as again:
        with pytest.raises(StateError, match="is not stored as"):
            commit(again, [datum(2)])
        again.repack(rewrite=True)
        assert commit(again, [datum(2)]).imported == 1
        read, header = strictly_read(path)
        assert (len(read), header) == (2, HEADERS["protobuf"])
