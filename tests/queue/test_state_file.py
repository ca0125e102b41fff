"""state.dat on disk: read as Beats leaves it, and written so that a crash never leaves half of it."""

from __future__ import annotations

import pytest

from ondisk.errors import InvalidInput, StorageError
from ondisk.filesystem import Directory
from ondisk.formats.diskqueue.state import State
from ondisk.queue import state_file


@pytest.fixture
def queue(tmp_path):
    with Directory.open(tmp_path) as directory:
        yield directory


def test_no_file_and_an_empty_one_are_no_position(queue, tmp_path):
    assert state_file.read(queue) is None
    (tmp_path / "state.dat").touch()
    assert state_file.read(queue) is None


def test_what_is_written_is_read_and_nothing_else_is_left(queue, tmp_path):
    (tmp_path / ".state.dat.new").write_bytes(b"of a crash")
    for state in (State(3, 400, 5), State(4, 9, version=0)):
        state_file.write(queue, state)
        assert state_file.read(queue) == state
    assert [each.name for each in tmp_path.iterdir()] == ["state.dat"]


def test_the_file_keeps_its_permissions(queue, tmp_path):
    path = tmp_path / "state.dat"
    path.touch(0o600)
    before = path.stat().st_ino
    state_file.write(queue, State(1))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_ino != before  # it was renamed, not overwritten


def test_a_file_that_cannot_be_understood_is_named(queue, tmp_path):
    (tmp_path / "state.dat").write_bytes(b"\x01\0\0\0short")
    with pytest.raises(InvalidInput, match=f"{tmp_path}/state.dat: .*it has 9 of the 28 bytes of version 1"):
        state_file.read(queue)


def test_a_link_in_its_place_is_refused(queue, tmp_path):
    (tmp_path / "other").write_bytes(State(1).pack())
    (tmp_path / "state.dat").symlink_to("other")
    with pytest.raises(StorageError):
        state_file.read(queue)
    with pytest.raises(StorageError):
        state_file.write(queue, State(1))
