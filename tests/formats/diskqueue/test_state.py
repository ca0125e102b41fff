"""state.dat: both versions, what cannot be read, and what hostile numbers become."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ondisk.errors import InvalidInput, StorageError
from ondisk.filesystem import Directory
from ondisk.formats.diskqueue.state import MAX_NUMBER, SIZE, State

NUMBERS = st.integers(0, MAX_NUMBER)
STATES = st.builds(State, NUMBERS, NUMBERS, NUMBERS) | st.builds(State, NUMBERS, NUMBERS, st.just(0), st.just(0))


def test_each_version_has_the_bytes_of_beats():
    assert State(7, 1234, 5).pack() == struct.pack("<IQQQ", 1, 7, 1234, 5)
    assert State(7, 1234, version=0).pack() == struct.pack("<IQQ", 0, 7, 1234)


@given(STATES, st.binary(max_size=8))
def test_what_is_written_comes_back_whatever_follows_it(state, more):
    assert State.parse(state.pack() + more) == state


@pytest.mark.parametrize("version", [0, 1])
def test_a_short_file_is_refused_with_its_size_and_an_empty_one_is_no_position(version):
    whole = State(1, 2, 3 * version, version).pack()
    assert State.parse(b"") is None
    for size in range(1, len(whole)):
        with pytest.raises(InvalidInput, match=f"it has {size} ") as caught:
            State.parse(whole[:size])
        assert caught.value.hint


@pytest.mark.parametrize("version", [2, 256, 2**32 - 1])
def test_a_newer_version_is_refused_by_its_number(version):
    with pytest.raises(InvalidInput, match=f"it is of version {version}\\b"):
        State.parse(struct.pack("<IQQQ", version, 1, 2, 3))


@given(st.binary(max_size=40))
@example(b"\xff" * SIZE)
def test_any_bytes_are_a_position_or_refused(content):
    try:
        state = State.parse(content)
    except InvalidInput:
        return
    assert content == b"" if state is None else content.startswith(state.pack())


@given(STATES, st.integers(4, 12))
def test_the_event_never_begins_inside_the_header(state, begin):
    offset = state.offset(begin)
    assert offset >= begin
    if state.version == 0:
        assert offset == begin + state.byte_index
    elif state.frame_index == 0:
        assert offset == begin
    elif state.byte_index >= begin:
        assert offset == state.byte_index


@pytest.mark.parametrize("state", [State(-1), State(0, MAX_NUMBER + 1), State(0, 0, -1), State(version=2)])
def test_what_the_file_cannot_contain_is_not_written(state):
    with pytest.raises(InvalidInput):
        state.pack()


@pytest.fixture
def queue(tmp_path):
    with Directory.open(tmp_path) as directory:
        yield directory


def test_no_file_and_an_empty_one_are_no_position(queue, tmp_path):
    assert State.read(queue) is None
    (tmp_path / "state.dat").touch()
    assert State.read(queue) is None


def test_what_is_written_is_read_and_nothing_else_is_left(queue, tmp_path):
    (tmp_path / ".state.dat.new").write_bytes(b"of a crash")
    for state in (State(3, 400, 5), State(4, 9, version=0)):
        state.write(queue)
        assert State.read(queue) == state
    assert [each.name for each in tmp_path.iterdir()] == ["state.dat"]


def test_the_file_keeps_its_permissions(queue, tmp_path):
    path = tmp_path / "state.dat"
    path.touch(0o600)
    before = path.stat().st_ino
    State(1).write(queue)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_ino != before  # it was renamed, not overwritten


def test_a_file_that_cannot_be_understood_is_named(queue, tmp_path):
    (tmp_path / "state.dat").write_bytes(b"\x01\0\0\0short")
    with pytest.raises(InvalidInput, match=f"{tmp_path}/state.dat: .*it has 9 of the 28 bytes of version 1"):
        State.read(queue)


def test_a_link_in_its_place_is_refused(queue, tmp_path):
    (tmp_path / "other").write_bytes(State(1).pack())
    (tmp_path / "state.dat").symlink_to("other")
    with pytest.raises(StorageError):
        State.read(queue)
    with pytest.raises(StorageError):
        State(1).write(queue)
