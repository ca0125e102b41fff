"""A dry run promises what the real run then does, and ends with the error that this is certain to end with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk import Datum, keys
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.keys import Key, KeyRing

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
RING = KeyRing([Key(1, bytes(range(16))), Key(2, bytes(range(32)))], "a test")
NO_KEYS, WRONG_KEYS = KeyRing(), KeyRing([Key(1, bytes(16)), Key(2, bytes(32))], "another test")


@pytest.fixture(autouse=True)
def ring(folder):
    keys.use(RING)
    yield
    keys.use(None)


def make_queue(encryption="aes-128-ctr", count=3):
    """Create a queue with one datum in each segment, and remove what makes it a dataset."""
    config = {"step": "sequence", "encryption": encryption, "segment_size": 1}
    with ondisk.create("queue", config) as dataset:
        for n in range(count):
            dataset.append([Datum(T + timedelta(seconds=n), {}, {"n": n})])
        path = dataset.path
    for name in ("dataset.toml", "index.sqlite", ".tide"):
        (path / name).unlink()
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
