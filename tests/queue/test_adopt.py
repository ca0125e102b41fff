"""Queues of Beats become datasets where they are: no byte of them changes, and Beats can go on with them."""

from __future__ import annotations

import contextlib
import shutil
from datetime import UTC, datetime

import pytest
from formats.diskqueue.beats_queue import Beat
from formats.diskqueue.segments import Event
from formats.diskqueue.test_golden import ALL, GOLDEN, expected_events
from kit import same
from worlds import lose_index

import ondisk
from ondisk import Datum, keys
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.datum import EPOCH, MICROSECOND
from ondisk.errors import (
    AuthenticationFailed,
    ConfigError,
    DatasetExists,
    InvalidInput,
    KeyMissing,
    NotFound,
    StateError,
)
from ondisk.formats.diskqueue import header
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.state import NAME
from ondisk.keys import Key, KeyRing
from ondisk.maintenance.states import State as Is
from ondisk.queue import Consumer

NS = 1_795_154_400_000_000_000
DAMAGED = {"5.seg", "6.seg", "7.seg", "8.seg", "10.seg", "11.seg", "13.seg"}
APART = {"v2draft-enc", "v2draft-enc-lz4block", "v3draft-lz4block"}
"""Variants that are not read in place."""
FIELDS = {"fields": {"n": "integer"}}


def events(*numbers):
    return [Event(NS + 60_000_000_000 * n, 0, {"n": n}, {"text": f"number {n}"}) for n in numbers]


def files(folder):
    """Return what Beats has in a queue."""
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.suffix == ".seg" or each.name == NAME}


@pytest.fixture
def ring():
    keys.use(KeyRing([Key(1, b"keykeykeykeykeyk"), Key(2, b"keykeykeykeykeyk" * 2)], "a test"))
    yield
    keys.use(None)


@pytest.fixture
def queue(tmp_path):
    with Beat(tmp_path / "queue", segment_size=300) as beat:
        beat.publish(*events(*range(12)))
        beat.acknowledge(1)
    return tmp_path / "queue"


def stored(path):
    with ondisk.open(path, read_only=True) as dataset:
        return [datum.metadata["n"] for datum in dataset.query()]


@pytest.mark.check
@pytest.mark.parametrize("variant", sorted({*ALL} - APART))
@pytest.mark.usefixtures("ring")
def test_the_files_of_beats_have_the_data_that_are_expected(variant, tmp_path):
    path = tmp_path / "queue"
    shutil.copytree(GOLDEN / variant, path)
    (path / NAME).write_bytes(b"")
    before = files(path)
    report = ondisk.adopt(path)
    assert files(path) == before
    with ondisk.open(path, read_only=True) as dataset:
        found = {}
        for datum in dataset.query():
            found.setdefault(datum.location.segment, []).append(datum)
        damaged = {each.segment for each in dataset.check(accurate=True).findings}
    for name in before.keys() - {NAME} - DAMAGED:
        expected = expected_events(variant, name)
        data = sorted(found.get(name, []), key=lambda datum: datum.location.offset)
        assert len(data) == len(expected), name
        for datum, event in zip(data, expected, strict=True):
            assert same([datum.data, (datum.reftime - EPOCH) // MICROSECOND], [event.data, event.timestamp // 1000])
    assert damaged - {"0.seg"} <= DAMAGED
    assert report.lost > 0


def last_segments(variant, tmp_path):
    """Return a queue whose consumer has removed the first segment."""
    path = tmp_path / "queue"
    path.mkdir()
    for name in ("1.seg", "2.seg"):
        shutil.copy(GOLDEN / variant / name, path)
    return path


@pytest.mark.parametrize("variant", sorted(APART))
@pytest.mark.usefixtures("ring")
def test_what_cannot_be_read_in_place_is_left_to_its_consumer_and_else_rewritten(variant, tmp_path):
    path = last_segments(variant, tmp_path)
    (path / NAME).write_bytes(b"")
    before = files(path)
    with pytest.raises(StateError, match="cannot be read in place, and is not rewritten"):
        ondisk.adopt(path)
    assert files(path) == before
    (path / NAME).unlink()
    with ondisk.open(path) as dataset:
        assert [each.state for each in dataset.check().findings] == [Is.UNALIGNED] * 2
        assert dataset.fix().lost == 0
        data = [datum.data for datum in dataset.query()]
        assert dataset.check(accurate=True).is_clean
    expected = [event.data for name in ("1.seg", "2.seg") for event in expected_events(variant, name)]
    assert len(data) == len(expected)
    assert all(any(same(one, other) for other in data) for one in expected)


def header_of(path):
    return Header.parse(path.read_bytes()[: header.MAX_SIZE])


def appended_to(path):
    """Append to an adopted queue, and return the header of the new segment."""
    before = {*path.glob("*.seg")}
    with ondisk.open(path) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {"text": "secret"})])
        assert any(datum.data == {"text": "secret"} for datum in dataset.query())
    (new,) = {*path.glob("*.seg")} - before
    assert b"secret" not in new.read_bytes() or not header_of(new).encrypted
    return header_of(new)


def stored_as(variant):
    """Return version and options of the header of a new segment, beside segments that Beats has made."""
    version = {"v0": 0, "v1": 1}.get(variant, 2)
    is_encrypted = "-enc" in variant or "draft" in variant
    return version, header.ENCRYPTION * is_encrypted | header.PROTOBUF * ("-pb" in variant)


@pytest.mark.parametrize("variant", ALL)
@pytest.mark.usefixtures("ring")
def test_new_segments_are_stored_as_the_newest_one_but_not_compressed(variant, tmp_path):
    path = last_segments(variant, tmp_path)
    (path / "3.seg").write_bytes(b"\2\0")  # what a crash has left of a header
    with contextlib.suppress(StateError) if variant in APART else contextlib.nullcontext():
        ondisk.adopt(path)
    new = appended_to(path)
    assert (new.version, new.options) == stored_as(variant)


@pytest.mark.parametrize(("config", "version", "options"), [
    ({"encryption": "none"}, 2, 0),
    ({"encryption": "aes-256-gcm"}, header.ONDISK, header.ENCRYPTION),
    ({"payload": "protobuf"}, 2, header.ENCRYPTION | header.PROTOBUF),
    ({"compression": "lz4"}, 2, header.ENCRYPTION | header.LZ4),
])  # fmt: skip
@pytest.mark.usefixtures("ring")
def test_what_the_caller_configures_counts_more(config, version, options, tmp_path):
    shutil.copytree(GOLDEN / "v2-enc", tmp_path / "queue")
    ondisk.adopt(tmp_path / "queue", config)
    new = appended_to(tmp_path / "queue")
    assert (new.version, new.options) == (version, options)


@pytest.mark.parametrize("kind", ["aes-128-ctr", "aes-256-gcm"])
@pytest.mark.parametrize(
    ("known", "error"),
    [(KeyRing(), KeyMissing), (KeyRing([Key(1, bytes(16)), Key(2, bytes(32))]), AuthenticationFailed)],
    ids=["lost", "wrong"],
)
@pytest.mark.usefixtures("ring")
def test_an_encrypted_queue_is_not_adopted_without_its_key(kind, known, error, create):
    with create("queue", format="seg", step="sequence", encryption=kind) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {"n": 1})])
        path = dataset.path
    for name in (CONFIG, "index.sqlite", ".tide"):
        (path / name).unlink()
    before = {*path.iterdir()}
    ring = keys.current()
    keys.use(known)
    for dry_run in (True, False):
        with pytest.raises(error, match=r"0\.seg"):
            ondisk.adopt(path, dry_run=dry_run)
    assert {*path.iterdir()} == before
    keys.use(ring)
    ondisk.adopt(path)
    assert appended_to(path).encrypted


@pytest.mark.usefixtures("ring")
def test_a_segment_without_events_proves_no_key_so_the_one_before_it_must(tmp_path):
    path = tmp_path / "queue"
    path.mkdir()
    shutil.copy(GOLDEN / "v2-enc/2.seg", path / "0.seg")
    shutil.copy(GOLDEN / "v2-plain/2.seg", path / "1.seg")
    shutil.copy(GOLDEN / "v2-enc/0.seg", path / "2.seg")  # only a header
    ring = keys.current()
    keys.use(KeyRing([Key(1, bytes(16))]))
    for dry_run in (True, False):
        with pytest.raises(AuthenticationFailed, match=r"0\.seg"):
            ondisk.adopt(path, dry_run=dry_run)
    assert not (path / CONFIG).exists()
    keys.use(ring)
    ondisk.adopt(path)
    assert appended_to(path).encrypted


def test_beats_goes_on_with_an_adopted_queue(queue):
    before = files(queue)
    ondisk.adopt(queue, FIELDS)
    assert files(queue) == before
    assert stored(queue) == [*range(12)]
    with Beat(queue) as beat:
        assert beat.ids == [0, 1, 2]
        beat.publish(*events(12, 13))
        beat.acknowledge(7)
    with ondisk.open(queue) as dataset:
        for options in ({}, {"accurate": True}, {"max_duration": 60}):
            report = dataset.check(**options)
            assert [each.state for each in report.findings] == [Is.UNALIGNED]
            assert report.consumed == 1
        assert dataset.fix().lost == 0
        assert dataset.check(accurate=True).is_clean
    assert stored(queue) == [*range(4, 14)]


def test_a_queue_can_be_adopted_while_its_last_event_is_cut_short(queue):
    beat = Beat(queue)
    beat.publish(*events(12, 13))
    beat.tear(5)
    assert ondisk.adopt(queue, FIELDS).lost == 0
    assert stored(queue) == [*range(13)]
    with ondisk.open(queue) as dataset:
        assert dataset.check(accurate=True).is_clean


@pytest.mark.parametrize("variant", sorted({*ALL} - APART))
@pytest.mark.usefixtures("ring")
def test_a_segment_that_was_cut_short_is_read_when_it_is_complete(variant, tmp_path):
    whole = (GOLDEN / variant / "1.seg").read_bytes()
    for cut in sorted({header.MAX_SIZE, len(whole) // 4, len(whole) // 2, len(whole) - 20}):
        with ondisk.create(tmp_path / str(cut), {"step": "sequence"}) as dataset:
            (dataset.path / "0.seg").write_bytes(whole[:cut])
            with contextlib.suppress(AuthenticationFailed):  # too few bytes to find its key
                dataset.fix()
            (dataset.path / "0.seg").write_bytes(whole)
            assert [each.state for each in dataset.check().findings] == [Is.UNALIGNED], cut
            assert dataset.fix().lost == 0
            assert dataset.count() == len(expected_events(variant, "1.seg"))
            assert dataset.check(accurate=True).is_clean


@pytest.mark.parametrize("variant", sorted({*ALL} - APART))
@pytest.mark.usefixtures("ring")
def test_what_another_program_wrote_stays_if_no_datum_in_it_can_be_read(variant, tmp_path):
    whole = (GOLDEN / variant / "1.seg").read_bytes()
    cut = header.MAX_SIZE + 12
    with ondisk.create(tmp_path / "queue", {"step": "sequence"}) as dataset:
        file = dataset.path / "0.seg"
        file.write_bytes(whole[:cut])
        for verb in (dataset.fix, dataset.repack) * 2:
            with contextlib.suppress(AuthenticationFailed):  # too few bytes to find its key
                verb()
            assert file.read_bytes() == whole[:cut]
            assert not dataset.check().is_clean
        lost = dataset.info()["lost"]
        with contextlib.suppress(AuthenticationFailed):
            dataset.fix()
        assert dataset.info()["lost"] == lost, "what is lost is counted once"
        file.write_bytes(whole)
        dataset.fix()
        assert dataset.count() == len(expected_events(variant, "1.seg"))
        assert dataset.check(accurate=True).is_clean


def test_another_segment_in_the_place_of_one_without_a_whole_event_is_read(tmp_path):
    path = tmp_path / "queue"
    with Beat(path) as beat:
        beat.publish(*events(0))
        beat.tear(3)
    ondisk.adopt(path)
    assert stored(path) == []
    (path / "0.seg").unlink()  # Beats drops it when it starts, and begins it again
    with Beat(path) as beat:
        beat.publish(*events(1, 2))
    with ondisk.open(path) as dataset:
        assert [each.state for each in dataset.check().findings] == [Is.UNALIGNED]
        assert dataset.fix().lost == 0
        assert [each.metadata["n"] for batch in Consumer(dataset) for each in batch] == [1, 2]


def test_what_is_no_queue_or_a_dataset_already_is_refused(queue, tmp_path):
    with pytest.raises(NotFound, match="is not a directory"):
        ondisk.adopt(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="contains no queue"):
        ondisk.adopt(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(ConfigError, match="only"):
        ondisk.adopt(queue, {"format": "jsonl"})
    with pytest.raises(InvalidInput, match="step sequence"):
        ondisk.adopt(queue, {"step": "daily"})
    ondisk.adopt(queue)
    with pytest.raises(DatasetExists, match="is a dataset already"):
        ondisk.adopt(queue)
    with ondisk.open(queue) as dataset:
        (queue / "state.dat").unlink(missing_ok=True)
        dataset.archive(next(each.name for each in sorted(queue.glob("*.seg"))))
    with pytest.raises(StateError, match="is a folder of the archive"):
        ondisk.adopt(queue / ".archive/last")


def test_a_queue_without_segments_can_be_adopted(tmp_path):
    with Beat(tmp_path / "queue"):
        pass
    assert ondisk.adopt(tmp_path / "queue", FIELDS).is_clean
    with ondisk.open(tmp_path / "queue") as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"n": 1}, {})])
    with Beat(tmp_path / "queue") as beat:
        assert beat.ids == [0]
        beat.acknowledge(1)
        beat.publish(*events(2))
    with ondisk.open(tmp_path / "queue") as dataset:
        dataset.fix()
    assert stored(tmp_path / "queue") == [1, 2]


def test_a_lost_index_of_an_adopted_queue_is_rebuilt(queue):
    ondisk.adopt(queue, FIELDS)
    before = files(queue)
    lose_index(queue)
    with ondisk.open(queue) as dataset:
        assert dataset.fix().lost == 0
        assert dataset.check(accurate=True).is_clean
    assert files(queue) == before
    assert stored(queue) == [*range(12)]


def test_deleted_events_stay_deleted_when_another_program_appends_to_their_segment(create, tmp_path):
    with create("source", format="seg", step="sequence", compression="none", fields={"n": "integer"}) as source:
        source.append(Datum(datetime(2026, 11, 20, n, tzinfo=UTC), {"n": n}, {}) for n in range(6))
        content = (source.path / "0.seg").read_bytes()
        cut = [each.location.offset for each in source.query()][4]
    segment = tmp_path / "queue/0.seg"
    segment.parent.mkdir()
    segment.write_bytes(content[:cut])
    ondisk.adopt(segment.parent, {"fields": {"n": "integer"}})
    with ondisk.open(segment.parent) as dataset:
        dataset.delete("n: 1")
        segment.write_bytes(content)
        dataset.fix()
        assert [each.metadata["n"] for each in dataset.query()] == [0, 2, 3, 4, 5]


def test_events_that_did_not_fit_the_fields_are_read_when_the_fields_fit_them(create, tmp_path):
    with create("source", format="seg", step="sequence", compression="none", fields={"n": "text"}) as source:
        source.append(Datum(datetime(2026, 11, 20, n, tzinfo=UTC), {"n": f"n{n}"}, {}) for n in range(3))
        content = (source.path / "0.seg").read_bytes()
    path = tmp_path / "queue"
    path.mkdir()
    (path / "0.seg").write_bytes(content)
    ondisk.adopt(path, {"fields": {"n": "integer"}})
    (path / CONFIG).write_text((path / CONFIG).read_text().replace('n = "integer"', 'n = "text"'))
    ondisk.migrate(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        dataset.repack()
        assert [each.metadata["n"] for each in dataset.query()] == ["n0", "n1", "n2"]


def test_a_second_copy_is_read_when_its_segment_grows_and_the_first_is_lost(create, tmp_path):
    path = tmp_path / "queue"
    path.mkdir()
    for number, first in ((0, 1), (1, 2)):
        values = {"format": "seg", "step": "sequence", "compression": "none", "fields": {"n": "integer"}}
        with create(f"source {number}", **values) as source:
            source.append(Datum(datetime(2026, 11, 20, n, tzinfo=UTC), {"n": n}, {}) for n in range(first, first + 3))
            content = (source.path / "0.seg").read_bytes()
            cut = [each.location.offset for each in source.query()][2]
        (path / f"{number}.seg").write_bytes(content[:cut])
    ondisk.adopt(path, {"fields": {"n": "integer"}, "unique": ["n"]})
    (path / "0.seg").unlink()
    with ondisk.open(path) as dataset:
        dataset.fix(forget=True)
        (path / "1.seg").write_bytes(content)
        dataset.fix()
        assert [each.metadata["n"] for each in dataset.query()] == [2, 3, 4]
