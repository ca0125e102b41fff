"""`ondisk replicate` follows a dataset, and `ondisk promote` ends that."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ondisk
from ondisk.cli import replication
from ondisk.errors import (
    ConfigError,
    DiskFull,
    IntegrityError,
    LockError,
    NeedsCheck,
    ReadOnly,
    SegmentCorrupt,
    StorageError,
    TokenForeign,
)
from ondisk.replication import Replica, reconcile, token

from .conftest import PATIENCE

LINE = '{{"reftime": "2026-11-{day:02}T00:00:00Z", "a": 1}}\n'


@pytest.fixture
def source(folder) -> str:
    ondisk.create("source", {"format": "jsonl", "step": "daily", "fields": {"a": "integer"}}).close()
    append(1, 2)
    return "source"


def append(*days: int) -> None:
    with ondisk.open("source") as dataset:
        Path("new.jsonl").write_text("".join(LINE.format(day=day) for day in days))
        dataset.append_file("new.jsonl")


def test_a_replica_is_created_and_follows(run, source):
    done = run("replicate", "source", "copy", "--create")
    assert (done.code, done.err) == (0, "")
    assert done.text == f"{Path('copy').absolute()}: 2 stored, 0 deleted; 86 bytes; change 2, nothing left\n"
    append(3)
    assert run("delete", "source", "reftime: =2026-11-01", "--yes").code == 0
    uuid = run("info", "source", "--json").json["uuid"]
    assert f"\nsource       uuid={uuid}  offset=2  changed_at=20" in run("info", "copy").text
    assert run("replicate", "source", "copy", "--once", "--json").json == {
        "replica": str(Path("copy").absolute()), "source": uuid, "offset": 4, "stored": 1, "deleted": 1, "present": 0,
        "old": 0, "lost": 0, "unreadable": 0, "bytes": 43, "missing": 0, "kept": 0,
        "lag": {"changes": 0, "bytes": 0}, "differences": [],
    }  # fmt: skip


@pytest.mark.parametrize("verb", ["--reconcile", "--heal"])
def test_a_dry_run_without_work_asks_for_nothing(run, source, verb):
    assert run("replicate", source, "copy", "--create").code == 0
    done = run("replicate", source, "copy", verb)
    assert (done.code, done.err, "--yes" in done.text) == (0, "", False)


def test_data_that_are_missing_end_with_8(run, source):
    Path("source/2026/11-01.jsonl").rename("away")
    done = run("replicate", "source", "copy", "--create")
    assert done.code == 8
    assert "1 missing" in done.text
    assert "warning: the datum 1 is missing: " in done.err
    Path("away").rename("source/2026/11-01.jsonl")
    done = run("replicate", "source", "copy", "--json")
    assert (done.code, done.json["stored"], done.json["differences"]) == (0, 1, [])


@pytest.mark.parametrize("days", [1, 2])
def test_each_lost_segment_of_the_source_is_one_line_with_the_remedy(run, source, days):
    append(*[1] * 150, *[2] * 150)
    for day in range(1, days + 1):
        Path(f"source/2026/11-0{day}.jsonl").unlink()
    for options in (["--create"], []):
        done = run("replicate", "source", "copy", *options)
        assert done.code == 8
        assert done.err.count("151 data are missing, the first ") == done.err.count("\n") == days
        assert done.err.count("; if `ondisk check source` finds it there, mend it there") == days


def test_a_comparison_prints_a_line_for_each_segment(run, source):
    append(*[1] * 150, 2)
    assert run("replicate", source, "copy", "--create").code == 0
    with ondisk.open("copy") as copy:
        (copy.path / "2026/11-01.jsonl").unlink()
    assert run("fix", "copy", "--yes").code == 8
    done = run("replicate", source, "copy", "--verify")
    assert done.code == 9
    first, last = done.text.splitlines()
    assert first == "missing: datum 1 of 2026-11-01T00:00:00Z and 150 more, in 2026/11-01"
    assert "151 missing" in last


def test_data_that_the_source_loses_are_kept_and_end_with_8_once(run, source):
    assert run("replicate", "source", "copy", "--create").code == 0
    Path("source/2026/11-01.jsonl").unlink()
    assert run("fix", "source", "--yes").code == 8
    done = run("replicate", "source", "copy", "--json")
    assert (done.code, done.json["lost"], done.json["kept"]) == (8, 1, 1)
    assert done.json["differences"] == [{"seq": 1, "lost": True, "reason": "the source has lost it"}]
    assert "note: the datum 1 is kept" in done.err
    assert run("replicate", "source", "copy").code == 0


def test_the_token_file_is_an_export(run, source):
    assert run("replicate", "source", "copy", "--create", "--token-file", "tokens").code == 0
    (entry,) = token.read("tokens")
    assert entry.token.offset == 2
    Path("tokens").write_bytes(b"damaged\0")
    done = run("replicate", "source", "copy", "--token-file", "tokens")
    assert done.code == 0
    assert "tokens.bad now" in done.err
    assert token.read("tokens") == [entry]
    done = run("replicate", "source", "copy", "--token-file", "nothing/tokens")
    assert (done.code, "the token file was not written" in done.err) == (0, True)


@pytest.mark.check
def test_a_follower_goes_on_until_it_is_terminated(source, environment):
    command = [sys.executable, "-m", "ondisk", "replicate", "source", "copy", "--create", "--follow", "--interval",
               "1s", "--token-file", "tokens", "--json"]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert '"stored":2' in process.stdout.readline()
        append(3)
        assert '"stored":1' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert token.read("tokens")[0].token.offset == 3


@pytest.mark.parametrize(
    ("last", "code"), [(TokenForeign, 72), (DiskFull, 51), (SegmentCorrupt, 62), (ReadOnly, 34), (ConfigError, 3)]
)
def test_a_follower_waits_until_an_error_has_passed_that_may_pass(run, source, monkeypatch, last, code):
    passing = [LockError("busy"), StorageError("away"), IntegrityError("damaged"), NeedsCheck("fixed soon")]
    pull, errors = Replica.pull, [*passing, last("it stays")]

    def failing(self, **options):
        if Path("copy/2026").exists():
            raise errors.pop(0)
        return pull(self, **options)

    monkeypatch.setattr(Replica, "pull", failing)
    monkeypatch.setattr(replication.time, "sleep", lambda seconds: None)
    done = run("replicate", "source", "copy", "--create", "--follow")
    assert done.code == code
    assert all(f"warning: {error.message}" in done.err for error in passing)
    assert "next try is in 10 seconds" in done.err


@pytest.mark.parametrize("text", ["0", "5T", "x", "-1", ""])
def test_a_bandwidth_is_a_number_of_bytes(run, source, text):
    assert run("replicate", "source", "copy", f"--bandwidth={text}").code == 2
    assert not Path("copy").exists()


def test_a_bandwidth_slows_a_pull_down(run, source):
    append(*range(3, 10))
    began = time.monotonic()
    assert run("replicate", "source", "copy", "--create", "--bandwidth", "1K").code == 0
    assert time.monotonic() - began > 9 * 43 / 1024


def test_a_source_that_does_not_exist_creates_no_replica(run, folder):
    done = run("replicate", "nothing", "copy", "--create")
    assert done.code == 11
    assert not Path("copy").exists()


def test_where_no_replica_is_a_disk_may_not_be_mounted(run, source):
    Path("mounted").mkdir()
    for path in ("copy", "mounted", "mounted/copy"):
        done = run("replicate", "source", path)
        assert (done.code, done.out) == (11, b"")
        assert "whether its disk is mounted" in done.err
        assert f"`ondisk replicate source {path} --create`" in done.err
    assert not Path("copy").exists()
    assert not [*Path("mounted").iterdir()]


def test_a_replica_whose_configuration_was_removed_is_not_created_again(run, source):
    assert run("replicate", source, "copy", "--create").code == 0
    Path("copy/dataset.toml").unlink()
    done = run("replicate", source, "copy")
    assert (done.code, "Put dataset.toml back" in done.err, "--create" in done.err) == (11, True, False)


def test_what_exists_is_not_created(run, source):
    assert run("replicate", "source", "copy", "--create").code == 0
    done = run("replicate", "source", "copy", "--create")
    assert (done.code, done.out) == (21, b"")
    assert "omit --create: `ondisk replicate source copy`" in done.err
    assert run("replicate", "source", "copy", "--create", "--verify").code == 2


@pytest.mark.parametrize(
    "options", ["--yes", "--once --interval 5s", "--delete-extra", "--verify --token-file t", "--heal --bandwidth 5M"]
)
def test_options_of_another_mode_are_refused(run, source, options):
    done = run("replicate", source, "copy", "--create", *options.split())
    assert (done.code, done.err.count("needs") + done.err.count("cannot be combined")) == (2, 1)
    assert not Path("copy").exists()


@pytest.mark.parametrize("verb", ["--verify", "--reconcile", "--heal", "--heal --yes"])
def test_a_comparison_creates_no_replica(run, source, verb):
    done = run("replicate", "source", "copy", *verb.split())
    assert (done.code, done.out) == (11, b"")
    assert not Path("copy").exists()


def test_a_replica_is_promoted_with_yes(run, source):
    run("replicate", "source", "copy", "--create")
    assert run("append", "copy", "new.jsonl").code == 30
    done = run("promote", "copy")
    assert (done.code, done.text) == (9, f"{Path('copy').absolute()} would become an ordinary dataset; --yes does it\n")
    done = run("promote", "copy", "--yes", "--json")
    assert (done.code, done.json["dry_run"]) == (0, False)
    assert done.json["uuid"] == run("info", "copy", "--json").json["uuid"]
    assert run("append", "copy", "new.jsonl").code == 0
    assert run("promote", "copy").code == 30
    assert run("replicate", "source", "copy").code == 30


def test_another_dataset_as_source_is_named_and_a_dry_run_says_what_it_would_replace(run, monkeypatch):
    monkeypatch.setattr(reconcile, "_SHOWN", 2)
    for name in ("right", "wrong"):
        run("init", name, "--step", "daily", "--format", "jsonl", "--field", "n=integer", "--unique", "reftime,n")
    lines = [f'{{"reftime":"2026-11-20T0{n}:00:00Z","n":{n}}}\n'.encode() for n in range(4)]
    run("append", "right", "-", stdin=b"".join(lines))
    run("append", "wrong", "-", stdin=b'{"reftime":"2026-11-20T00:00:00Z","n":0,"x":1}\n')
    run("replicate", "right", "copy", "--create")
    right, wrong = (run("info", name, "--json").json["uuid"] for name in ("right", "wrong"))
    error = run("replicate", "wrong", "copy")
    assert error.code == 72
    hint = (
        f"The replica has followed the dataset {right}, and wrong is {wrong}: another one, or its index was rebuilt. "
    )
    assert hint + "Is it the right one? Compare them, and fetch what is missing: `ondisk replicate wrong " in error.err
    dry = run("replicate", "wrong", "copy", "--reconcile")
    assert dry.text.splitlines()[:3] == [
        "extra: datum 1 of 2026-11-20T00:00:00Z",
        "extra: datum 2 of 2026-11-20T01:00:00Z",
        "extra: and 2 more",
    ]
    assert "ondisk: note: data that are fetched replace those with the same unique fields" in dry.err
    assert "Is it the right source?" not in run("replicate", "right", "copy", "--reconcile").err


def test_the_last_copies_of_what_the_source_has_lost_are_kept_when_older_versions_return_there(run):
    config = {"format": "jsonl", "step": "daily", "fields": {"a": "integer"}, "unique": ["reftime"], "replace": "yes"}
    ondisk.create("source", config).close()
    for version in ("first", "corrected"):
        for hour in range(2):
            line = f'{{"reftime":"2026-11-20T0{hour}:00:00Z","a":1,"v":"{version}{hour}"}}\n'
            run("append", "source", "-", stdin=line.encode())
    run("replicate", "source", "copy", "--create")
    file = Path("source/2026/11-20.jsonl")
    for hour in range(2):  # the second time, the segment of the replica has a second name in quarantine
        file.write_bytes(file.read_bytes().replace(b"corrected%d" % hour, b"corr\0cted%d" % hour))
        assert run("maintain", "source").code == 8
        assert f"first{hour}".encode() in run("query", "source", "--data").out
        done = run("replicate", "source", "copy")
        assert done.code == 8
        *_, item, _ = run("quarantine", "copy", "--json").lines
        assert f"warning: {item['item']} was moved or linked to quarantine; `ondisk quarantine " in done.err
        assert "the source has lost some of its data" in item["why"]
        assert f"corrected{hour}".encode() in Path("copy", item["item"]).read_bytes()
        assert run("query", "copy", "--data").out == run("query", "source", "--data").out
        assert (run("replicate", "source", "copy").code, run("replicate", "source", "copy", "--verify").code) == (0, 0)
