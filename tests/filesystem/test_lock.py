"""The locks of a directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading

import pytest
from worlds import fail

from ondisk.errors import (
    DurabilityLost,
    LockError,
    UnsupportedFilesystem,
)
from ondisk.filesystem import LOCK, Directory, WritersLock


def test_the_exclusive_lock_is_taken_only_while_nobody_holds_a_shared_one(directory, tmp_path):
    with directory.exclusive_if_free() as free:
        assert free
    with Directory.open(tmp_path) as other:
        lock = other.shared()
        with directory.exclusive_if_free() as free:
            assert not free
        second = other.shared()
        lock.close()
        with directory.exclusive_if_free() as free:
            assert not free
        second.close()
    with directory.exclusive_if_free() as free:
        assert free


HOLD = """
import sys
from ondisk.filesystem import Directory, WritersLock

with Directory.open(sys.argv[1]) as directory, WritersLock(directory, 5).hold("append"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the writers' lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process


def test_waiting_too_long_names_the_holder(directory, holder):
    with pytest.raises(LockError, match=r"waited 0\.05 s") as caught, WritersLock(directory, 0.05).hold("delete"):
        pass
    assert str(holder.pid) in caught.value.message
    assert caught.value.context["holder"]["verb"] == "append"
    assert caught.value.context["holder"]["pid"] == holder.pid
    assert "lock_timeout" in caught.value.hint


def test_the_lock_of_a_killed_process_is_free_at_once(directory, holder):
    holder.kill()
    holder.wait()
    with WritersLock(directory, 0).hold("append"):
        assert json.loads((directory.path / LOCK).read_bytes())["pid"] == os.getpid()


def was_killed(directory, *, settle=False):
    lock = WritersLock(directory, 0)
    with lock.hold("append"):
        found, lock.was_killed = lock.was_killed, lock.was_killed and not settle
    return found


def test_a_killed_holder_is_noticed_until_somebody_has_settled_what_it_left(directory, holder):
    assert not (directory.path / LOCK).read_bytes().isspace()
    holder.kill()
    holder.wait()
    assert was_killed(directory)
    assert was_killed(directory, settle=True)
    assert not was_killed(directory)


def test_a_holder_that_releases_the_lock_leaves_nothing_to_settle(directory):
    lock = WritersLock(directory, 0)
    with lock.hold("append"), lock.hold("delete"):
        pass
    assert (directory.path / LOCK).read_bytes().isspace()
    assert not was_killed(directory)


def test_a_holder_whose_sync_failed_leaves_something_to_settle(directory):
    with pytest.raises(DurabilityLost), WritersLock(directory, 0).hold("append"):
        raise DurabilityLost("a sync failed")
    assert was_killed(directory, settle=True)
    assert not was_killed(directory)


def test_an_interrupt_at_the_end_releases_the_lock(directory, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), WritersLock(directory, 0).hold("append"):
        monkeypatch.setattr(os, "pwrite", interrupted)
    monkeypatch.undo()
    with WritersLock(directory, 0).hold("append"):
        pass


def test_the_lock_file_stays_and_names_its_last_holder(directory, tmp_path):
    lock = WritersLock(directory, 1)
    with lock.hold("append"):
        record = (tmp_path / LOCK).read_bytes()
    inode = (tmp_path / LOCK).stat().st_ino
    assert json.loads(record)["verb"] == "append"
    assert json.loads(record)["pid"] == os.getpid()
    assert len(record) == 256
    with lock.hold("delete"):
        assert (tmp_path / LOCK).stat().st_ino == inode
        assert json.loads((tmp_path / LOCK).read_bytes())["verb"] == "delete"


def is_held(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def test_the_lock_is_flock_and_is_released(directory, tmp_path):
    with WritersLock(directory, 1).hold("append"), (tmp_path / LOCK).open("rb") as file:
        assert is_held(file)
    with (tmp_path / LOCK).open("rb") as file:
        assert not is_held(file)


@pytest.mark.parametrize("record", [b"", b"no json", b"[]", b"\xff" * 256, b"x" * 10_000])
def test_a_holder_without_a_readable_name_is_just_another_process(directory, tmp_path, record):
    (tmp_path / LOCK).write_bytes(record)
    with (tmp_path / LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockError, match="another process"), WritersLock(directory, 0.01).hold("append"):
            pass


def test_threads_wait_for_one_another(directory, tmp_path):
    inside, most = [0], [0]

    def work():
        with Directory.open(tmp_path) as own:
            for _ in range(20):
                with WritersLock(own, 20).hold("append"):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_threads_that_share_a_lock_wait_for_one_another(directory):
    lock, found = WritersLock(directory, 0.01), []

    def work():
        with pytest.raises(LockError), lock.hold("delete"):
            pass
        found.append(json.loads((directory.path / LOCK).read_bytes())["verb"])

    with lock.hold("append"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == ["append"]


FORK = """
import os, sys
from ondisk.filesystem import Directory, WritersLock

with Directory.open(sys.argv[1]) as directory, WritersLock(directory, 5).hold("append"):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    os.kill(os.getpid(), 9)
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(directory, tmp_path):
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"forked\n"
        process.wait()
        with WritersLock(directory, 0).hold("append"):
            pass


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_filesystem_without_locks_is_refused(directory, monkeypatch, code):
    monkeypatch.setattr(fcntl, "flock", fail(code))
    with pytest.raises(UnsupportedFilesystem, match="no locks"), WritersLock(directory, 0.1).hold("append"):
        pass
