"""A dry run promises what the real run then does, and ends with the error that this is certain to end with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lz4.frame
import pytest
from worlds import lose_index

import ondisk
from ondisk import Datum, keys
from ondisk.formats.diskqueue.header import LZ4, Header
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.keys import Key, KeyRing

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
RING = KeyRing([Key(1, bytes(range(16))), Key(2, bytes(range(32)))], "a test")
WRONG = KeyRing([Key(1, bytes(16)), Key(2, bytes(32))], "another test")
without_keys = pytest.mark.parametrize(("known", "code"), [(KeyRing(), 35), (WRONG, 64)], ids=["lost", "wrong"])


@pytest.fixture(autouse=True)
def ring(folder):
    keys.use(RING)
    yield
    keys.use(None)


def make_queue(encryption="aes-128-ctr", count=3, name="queue"):
    """Create a queue with one datum in each segment, and remove what makes it a dataset."""
    config = {"step": "sequence", "encryption": encryption, "segment_size": 1}
    with ondisk.create(name, config) as dataset:
        for n in range(count):
            dataset.append([Datum(T + timedelta(seconds=n), {}, {"n": n})])
        path = dataset.path
    for each in ("dataset.toml", "index.sqlite", ".tide"):
        (path / each).unlink()
    return path


def test_a_rewrite_of_an_adopted_queue_says_that_it_only_encrypts_again(run):
    ondisk.adopt(make_queue())
    lines = run("repack", "queue", "--rewrite").text.splitlines()
    assert lines[0] == "0.seg: DIRTY: it is encrypted again, with the newest key -> repack"
    assert lines[-1] == "3 segments to repack; --yes does it"


@pytest.mark.parametrize("dry_run", [["fix"], ["repack"], ["maintain", "--dry-run"]], ids=lambda each: each[0])
def test_a_segment_that_the_consumer_has_removed_is_something_to_do(run, dry_run):
    path = make_queue("none")
    ondisk.adopt(path)
    (path / NAME).write_bytes(State(1).pack())
    (path / "0.seg").unlink()
    assert run("check", path).code == 0
    verb, *options = dry_run
    done = run(verb, path, *options)
    assert (done.code, "remove from the index" in done.text + done.err) == (9, True)
    assert run(verb, path, *([] if options else ["--yes"])).code == 0
    done = run(verb, path, *options)
    assert (done.code, done.err, "; --yes does it" in done.text) == (0, "", False)


@without_keys
@pytest.mark.parametrize("options", [[], ["--rewrite"]])
def test_a_repack_does_not_promise_what_it_could_not_decrypt(run, options, known, code):
    with ondisk.create("events", {"step": "daily", "encryption": "aes-256-gcm"}) as dataset:
        dataset.append(Datum(T + timedelta(hours=8 * n), {}, {"n": n}) for n in range(9))
        dataset.delete("reftime:=2026-11-20 06:00")
    assert run("repack", "events", *options).code == run("maintain", "events", "--dry-run").code == 9
    keys.use(known)
    done = run("repack", "events", *options)
    real = run("repack", "events", *options, "--yes")
    assert (done.code, done.err) == (real.code, real.err)
    assert "it cannot be decrypted: " in done.text.splitlines()[0]
    assert done.text.splitlines()[-1] == "0 segments to repack"
    done = run("maintain", "events", "--dry-run")
    assert (done.code, run("maintain", "events").code) == (code, code)
    assert "would" not in done.text


@without_keys
@pytest.mark.parametrize("kind", ["aes-128-ctr", "aes-256-gcm"])
def test_a_fix_does_not_promise_what_it_could_not_decrypt(run, kind, known, code):
    path = make_queue(kind)
    ondisk.adopt(path)
    lose_index(path)
    assert run("fix", path).code == 9
    keys.use(known)
    done = run("fix", path)
    real = run("fix", path, "--yes")
    assert (done.code, real.code) == (code, code)
    assert done.err.splitlines()[-2:] == real.err.splitlines()[-2:]
    assert done.text.splitlines()[0].endswith("-> left alone")
    assert done.text.splitlines()[-1].startswith("0 segments to fix")


@without_keys
def test_an_adoption_does_not_promise_to_read_what_it_could_not_decrypt(run, known, code):
    path = make_queue()
    (make_queue("none", name="other") / "2.seg").replace(path / "2.seg")
    keys.use(known)
    done = run("adopt", path)
    assert not (path / "dataset.toml").exists()
    real = run("adopt", path, "--yes")
    assert (done.code, done.err) == (real.code, real.err)
    assert done.code == code
    assert done.text.splitlines()[-1] == "1 segment to read; --yes does it"


def unknown_to_the_index(adopts):
    """Return a queue, and the command that reads it."""
    path = make_queue("none")
    if adopts:
        return path, "adopt"
    with ondisk.create("dataset", {"step": "sequence"}):
        pass
    for each in path.glob("*.seg"):
        each.replace(f"dataset/{each.name}")
    return Path("dataset"), "fix"


@pytest.mark.parametrize("adopts", [True, False], ids=["adopt", "fix"])
@pytest.mark.parametrize(
    "at", [State(0, 13, 1), State(0, 9999, 1), State(1, 12, 7)], ids=["inside", "past end", "miscounted"]
)
def test_a_wrong_position_in_a_segment_that_is_to_be_read_is_announced(run, at, adopts):
    path, verb = unknown_to_the_index(adopts)
    (path / NAME).write_bytes(at.pack())
    planned, done = run(verb, path), run(verb, path, "--yes")
    (line,) = [each for each in planned.text.splitlines() if each.startswith(NAME)]
    assert done.text.splitlines()[0].startswith(line.removesuffix(" -> fix: rescan"))
    assert (planned.code, done.code) == (9, 0)


@pytest.mark.parametrize("adopts", [True, False], ids=["adopt", "fix"])
def test_a_position_in_a_segment_that_is_to_be_read_is_not_reported_if_it_may_be_right(run, adopts):
    path, verb = unknown_to_the_index(adopts)
    size = (path / "0.seg").stat().st_size
    for at in (State(0, size, 1), State(1), State(0, size - 12, version=0)):
        (path / NAME).write_bytes(at.pack())
        assert NAME not in run(verb, path).text


def test_an_adoption_reports_a_position_that_nobody_can_know(run):
    path = make_queue("none")
    (path / NAME).write_bytes(b"\2" + State(1).pack()[1:])
    for options in ([], ["--yes"]):
        assert f"{NAME}: UNALIGNED: " in run("adopt", path, *options).text


@pytest.mark.parametrize("adopts", [True, False], ids=["adopt", "fix"])
def test_a_segment_that_would_have_to_be_rewritten_is_not_promised(run, adopts):
    path, verb = unknown_to_the_index(adopts)
    events = (path / "1.seg").read_bytes()[12:]
    linked = lz4.frame.compress(events, block_linked=True, block_checksum=True)
    (path / "1.seg").write_bytes(Header(frame_count=1, options=LZ4).pack() + linked)
    (path / NAME).write_bytes(b"")
    planned, done = run(verb, path), run(verb, path, "--yes")
    assert (planned.code, planned.err) == (done.code, done.err)
    assert planned.code == 30
    assert planned.text.splitlines()[-1].startswith("2 segments to ")


def test_an_adoption_does_not_promise_to_delete(run):
    path = make_queue("none")
    (path / "3.seg").write_bytes(b"")
    lines = run("adopt", path).text.splitlines()
    assert lines[-1] == "3 segments to read; --yes does it"
    assert "3.seg" not in run("adopt", path, "--yes").text
    assert (path / "3.seg").exists()


@pytest.mark.parametrize("verb", ["fix", "repack"])
@pytest.mark.parametrize("number", [0, 5], ids=["known", "never known"])
def test_a_position_in_a_segment_that_is_gone_is_something_to_do(run, verb, number):
    path = make_queue("none", 1)
    ondisk.adopt(path)
    run("ack", path, "--count", "1", "--yes")
    at = State.parse((path / NAME).read_bytes())
    (path / NAME).write_bytes(State(number, at.byte_index, 1).pack())
    (path / "0.seg").unlink()
    for options, code in ([], 9), (["--yes"], 0):
        done = run(verb, path, *options)
        assert "state.dat: OK: its segment is gone: the consumer begins again with 0.seg -> begin again" in done.text
        assert done.code == code
    assert State.parse((path / NAME).read_bytes()) == State()
    assert run(verb, path).code == 0


@pytest.mark.parametrize(("at", "first"), [(State(9, 12, 1), 1), (State(2, 9999, 9), 2)], ids=["after all", "past end"])
def test_a_fix_of_a_wrong_position_names_the_segment_that_comes_next(run, at, first):
    path = make_queue("none")
    ondisk.adopt(path)
    (path / "0.seg").unlink()
    run("fix", path, "--yes")
    (path / NAME).write_bytes(at.pack())
    assert run("fix", path).code == 9
    assert f"the consumer begins again with {first}.seg -> " in run("fix", path, "--yes").text
