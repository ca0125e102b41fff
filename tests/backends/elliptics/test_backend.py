"""Packets and their replies: those of 2010, and where this backend differs from the code of that time."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import lose_index

import ondisk
from ondisk.backends.elliptics import Backend, Limits, configuration
from ondisk.backends.elliptics.packets import (
    APPEND,
    DIRECT_TRANSACTION,
    HISTORY,
    IO,
    META,
    MORE,
    NEED_ACK,
    REPLY,
    STAT,
    Code,
)
from ondisk.errors import ConfigError, InvalidInput
from ondisk.replication import Replica

from .conftest import LAYOUT, Client, command, content, io_command, name, read, request, status, write

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/elliptics/backend_2010.json").read_text())
A, B, C = name(1), name(2), name(3)

OFFSET_IGNORED = {17, 18, 19, 20}
"""Steps of 2010 where a write at an offset had truncated the object and ignored the offset."""


def replies_of(step):
    """Return the packets that the code of 2010 sent."""
    packets = []
    if step["replies"]:
        packets.append(bytes.fromhex(step["reply_header_hex"]) + step["reply_data"].encode())
    return [*packets, bytes.fromhex(step["ack_hex"])]


def test_the_steps_of_2010_are_answered_byte_for_byte(client):
    differing = {}
    for number, step in enumerate(GOLDEN["steps"]):
        replies = client.backend.process(bytes.fromhex(step["request_hex"]))
        if replies != replies_of(step):
            differing[number] = content(replies)
    assert differing == {18: b"543210", 19: b"210", 20: b"3"}
    assert differing.keys() <= OFFSET_IGNORED


@pytest.mark.parametrize(("change", "expected"), [(b"short", b"short"), (b"longer" * 4, b"longer" * 4), (None, None)])
def test_a_read_returns_one_state_of_an_object_that_another_process_changes_meanwhile(path, change, expected):
    with ondisk.open(path) as dataset, ondisk.open(path) as other:
        backend = Backend(dataset, limits=Limits(cached=0))
        query = dataset._data
        backend.process(write(A, b"0123456789"))

        def query_after_a_change(*arguments, **named):
            dataset._data = query
            packet = command(A, Code.DEL) if change is None else write(A, change)
            assert status(Backend(other).process(packet)) == 0
            return query(*arguments, **named)

        dataset._data = query_after_a_change
        replies = backend.process(read(A))
        assert dataset._data is query
    assert status(replies) == (0 if expected else -errno.ENOENT)
    assert content(replies) == (expected or b"")


def test_a_delete_of_nothing_is_the_first_error_also_before_a_command_that_is_no_command(client):
    wrong = LAYOUT.io_of(Code.WRITE, IO(A, A, 0, 0, 99)) + b"x"  # more bytes than there are
    packet = request(A, Code.DEL, LAYOUT.attribute_of(Code.DEL, 0), wrong)
    assert status(client.backend.process(packet)) == -errno.ENOENT
    client.backend.process(write(A, b"abc"))
    assert status(client.backend.process(packet)) == -errno.EINVAL
    assert status(client.backend.process(read(A))) == -errno.ENOENT


def test_a_refused_packet_does_not_divide_the_commit_of_the_others(client, monkeypatch):
    commits, real = [], ondisk.Dataset.exchange

    def exchange(*arguments):
        commits.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(ondisk.Dataset, "exchange", exchange)
    wrong = request(C, 1, LAYOUT.io_of(Code.WRITE, IO(C, C, 0, 0, 99)) + b"x")
    answers = client.backend.process_all([write(A, b"abc"), wrong, write(B, b"abc")])
    assert [status(each) for each in answers] == [0, -errno.EINVAL, 0]
    assert len(commits) == 1


def test_nothing_after_the_first_error_of_a_packet_is_executed(client):
    write_a, write_b = (io_command(Code.WRITE, IO(each, each, 0, 0, 3), b"abc") for each in (A, B))
    missing = io_command(Code.DEL, IO(C, C, 0, 0, 0))
    replies = client.backend.process_all([request(A, Code.DEL, write_a, missing, write_b), write(C, b"next")])
    assert [*map(status, replies)] == [-errno.ENOENT, 0]
    assert client.read(A) == b"abc"
    assert client.read(B) == -errno.ENOENT
    assert client.read(C) == b"next"


def test_a_packet_has_a_limited_number_of_commands(client):
    listed = LAYOUT.attribute_of(Code.LIST, 0)
    assert status(client.backend.process(request(A, Code.LIST, *[listed] * 1000))) == 0
    assert status(client.backend.process(request(A, Code.LIST, *[listed] * 1001))) == -errno.E2BIG


def test_what_a_packet_lists_is_limited(path):
    with ondisk.open(path) as dataset:
        backend = Backend(dataset, limits=Limits(read=500))
        for number in range(3):
            backend.process(write(name(number), b"abc"))
        listed = LAYOUT.attribute_of(Code.LIST, 0)
        assert status(backend.process(request(bytes(64), Code.LIST, *[listed] * 2))) == 0
        assert status(backend.process(request(bytes(64), Code.LIST, *[listed] * 3))) == -errno.E2BIG
        backend.process(write(name(9), b"abc"))
        assert len(backend.process(request(bytes(64), Code.LIST, listed))[0]) == 120 + 4 * 64


def test_extents_that_are_offline_are_not_answered_with_zeros_nor_written_over(tmp_path):
    path, minute = tmp_path / "objects", 60_000_000_000
    with ondisk.create(path, configuration(step="hourly")) as dataset:
        with mock.patch("time.time_ns", return_value=1_000_000 * minute):
            Backend(dataset).process(write(A, b"0123456789"))
        with mock.patch("time.time_ns", return_value=1_000_100 * minute):
            Backend(dataset).process(write(A, b"XX", 2))
        dataset.archive(next(dataset.query(with_data=False)).location.segment)
        dataset.rename_archive("last", "old")
        dataset.set_offline("old")
    with ondisk.open(path) as dataset:
        offline = Backend(dataset)
        assert status(offline.process(read(A))) == -errno.EIO
        assert status(offline.process(write(A, b"tail", io_flags=APPEND))) == 0
        dataset.set_online("old")
        assert content(offline.process(read(A))) == b"01XX456789tail"


def lose(client, path):
    """Return a client after the index was lost."""
    client.dataset.close()
    lose_index(path)
    return Client(path)


def test_nothing_is_answered_while_the_index_may_not_know_all_objects(client, path):
    client.write(A, b"0123456789")
    again = lose(client, path)
    with again.dataset:
        assert again.read(A) == -errno.EIO
        assert again.delete(A) == -errno.EIO
        assert again.write(A, b"XY", 0, APPEND) == -errno.EIO
        assert status(again.backend.process(command(bytes(64), Code.LIST))) == -errno.EIO
        again.dataset.fix()
        assert again.write(A, b"XY", 0, APPEND) == 0
        assert again.read(A) == b"0123456789XY"


@pytest.mark.check
@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([(b"bb", 0, APPEND)], b"bb"),
        ([(b"x", 5, 0)], b"\0\0\0\0\0x"),
        ([(b"x", 5, 0), (b"yyy", 4, 0)], b"\0\0\0\0yyy"),
        ([(b"x", 5, 0), (b"yyy", 4, 0), (b"zz", 0, 0)], b"zz"),
    ],
)
def test_bytes_of_a_deleted_object_do_not_return_into_its_successor(client, path, writes, expected):
    client.write(A, b"AAAAAAAAAA")
    client.delete(A)
    for data, offset, flags in writes:
        assert client.write(A, data, offset, flags) == 0
    assert client.read(A) == expected
    again = lose(client, path)
    with again.dataset:
        again.dataset.fix()
        assert again.read(A) == expected
        history = content(again.backend.process(read(A, 0, 0, HISTORY)))
        flags = {entry[1] for entry in LAYOUT.history.iter_unpack(history)}
        assert flags <= {0, APPEND}


def test_ids_of_another_size_are_an_error_at_once(client):
    client.write(A, b"abc")
    with pytest.raises(ConfigError, match="have 64 bytes, not 20") as caught:
        Backend(client.dataset, id_size=20)
    assert "--id-size 64" in caught.value.hint


def test_a_replica_takes_no_writes(client, path, tmp_path):
    client.write(A, b"abc")
    with Replica.create(tmp_path / "replica", path) as replica:
        replica.pull()
        backend = Backend(replica.dataset)
        assert status(backend.process(write(A, b"x"))) == -errno.EROFS
        assert content(backend.process(read(A))) == b"abc"


class TestWrite:
    def test_a_write_at_offset_0_replaces_the_object(self, client):
        client.write(A, b"long content")
        assert client.write(A, b"shrt") == 0
        assert client.read(A) == b"shrt"
        assert client.rows(A) == 1

    def test_a_gap_reads_as_zeros(self, client):
        client.write(A, b"abc", 5)
        client.write(A, b"xyz", 10)
        assert client.read(A) == b"\0\0\0\0\0abc\0\0xyz"
        assert client.read(A, 6, 5) == b"bc\0\0x"

    @pytest.mark.check
    def test_an_append_ignores_its_offset(self, client):
        for part in range(100):
            client.write(A, b"test_%d, " % part, 7 * part, APPEND)
        assert client.read(A) == b"".join(b"test_%d, " % part for part in range(100))
        assert client.rows(A) == 100

    def test_a_write_deletes_what_it_covers_in_its_own_commit(self, client):
        client.write(A, b"a" * 10)
        for offset in range(0, 10, 2):
            client.write(A, b"bb", 10 + offset)
        assert client.rows(A) == 6
        seq = client.dataset.state()
        client.write(A, b"c" * 10, 9)
        assert client.rows(A) == 3
        assert client.read(A) == b"a" * 9 + b"c" * 10 + b"b"
        assert client.dataset.state() != seq

    def test_a_write_of_nothing(self, client):
        assert client.write(A, b"") == 0
        assert client.read(A) == b""
        client.write(A, b"abc")
        assert client.write(A, b"", 2) == 0
        assert client.write(A, b"", 9) == 0
        assert client.write(A, b"", 0, APPEND) == 0
        assert client.read(A) == b"abc"
        assert client.rows(A) == 1
        assert client.write(A, b"") == 0
        assert client.read(A) == b""
        assert client.write(B, b"", 5) == 0
        assert client.read(B) == b""

    def test_the_transaction_is_recorded_and_a_stand_alone_one_is_not(self, client):
        client.write(A, b"abc", id=B, version=3)
        client.write(A, b"def", 3, id=B, attribute_flags=DIRECT_TRANSACTION)
        first, second = client.backend.history(A)
        assert (first.id, first.version, first.offset, first.size) == (B, 3, 0, 3)
        assert (second.id, second.version, second.offset, second.size) == (A, 0, 3, 3)
        assert client.read(A) == b"abcdef"
        assert client.backend.history(B) == []

    @pytest.mark.parametrize("name", ["text", b"text", b"", None, bytearray(A)])
    def test_the_history_of_what_is_not_an_id_is_an_error(self, client, name):
        """It is not the empty history of an object that does not exist."""
        with pytest.raises(InvalidInput, match="an id has 64 bytes, not ") as caught:
            client.backend.history(name)
        assert "SHA-512" in caught.value.hint

    @pytest.mark.parametrize("size", [0, 2, 4, 2**64 - 1])
    def test_a_size_that_is_not_that_of_the_data_is_refused(self, client, size):
        assert client.write(A, b"abc", size=size) == -errno.EINVAL
        assert client.read(A) == -errno.ENOENT

    def test_what_cannot_be_stored_is_refused(self, client, tmp_path):
        assert client.write(A, b"x", 2**63 - 1) == -errno.EFBIG
        assert client.write(A, b"x", 2**64 - 1) == -errno.EFBIG
        assert client.write(A, b"x", 0, META) == -errno.ENOTSUP
        assert client.write(A, b"x", 2**63 - 2) == 0
        assert client.write(A, b"x", 0, APPEND) == -errno.EFBIG
        assert client.read(A, 2**63 - 3) == b"\0x"
        assert client.read(A) == -errno.E2BIG
        ondisk.create(tmp_path / "small", configuration(max_datum_size=2000)).close()
        small = Client(tmp_path / "small")
        assert small.write(A, b"x" * 1000) == -errno.E2BIG
        assert small.write(A, b"x" * 900) == 0
        small.dataset.close()

    def test_writes_of_several_packets_share_one_commit(self, client):
        packets = [write(A, b"1"), write(B, b"2"), write(A, b"3", 1), read(A), write(A, b"4"), command(B, Code.DEL)]
        before = client.dataset.state()
        replies = client.backend.process_all(packets)
        assert list(map(status, replies)) == [0] * 6
        assert content(replies[3]) == b"13"
        assert client.read(A) == b"4"
        assert client.read(B) == -errno.ENOENT
        assert client.dataset.state()[1] - before[1] == 3 + 1 + 3  # three extents; one; one and two covered + B

    def test_an_extent_that_is_covered_before_its_commit_is_not_stored(self, client):
        before = client.dataset.state()[1]
        client.backend.process_all([write(A, bytes([n])) for n in range(10)])
        assert client.read(A) == b"\x09"
        assert client.dataset.state()[1] == before + 1


class TestRead:
    def test_bytes_100_to_200_and_nothing_at_300(self, client):
        client.write(A, bytes(range(100)), 100)
        assert client.read(A, 100) == bytes(range(100))
        assert client.read(A, 90, 20) == bytes(10) + bytes(range(10))
        for offset in (200, 300, 2**64 - 1):
            for size in (0, 1, 2**64 - 1):
                (acknowledged,) = client.backend.process(read(A, offset, size))
                (bare,) = client.backend.process(read(A, offset, size, flags=0))
                for reply in (acknowledged, bare):
                    header = LAYOUT.read_header(reply)
                    assert len(reply) == LAYOUT.header.size
                    assert header == (A, 2, 0, 0, 0, 7 | REPLY, 0)

    def test_without_an_acknowledgement_the_data_are_the_last_packet(self, client):
        client.write(A, b"abc")
        (reply,) = client.backend.process(read(A, flags=0))
        header = LAYOUT.read_header(reply)
        assert (header.flags, header.status, header.trans) == (0, 0, 7 | REPLY)
        assert content([reply]) == b"abc"

    @pytest.mark.parametrize("flags", [0, NEED_ACK])
    def test_a_long_reply_is_divided_and_only_the_last_packet_lacks_more(self, path, flags):
        with ondisk.open(path) as dataset:
            backend = Backend(dataset, limits=Limits(reply=10))
            backend.process(write(A, bytes(range(35))))
            replies = backend.process(read(A, 2, 31, flags=flags))
            headers = [LAYOUT.read_header(reply) for reply in replies]
            assert [header.flags for header in headers] == [MORE] * (len(replies) - 1) + [0]
            assert len(replies) == 4 + flags
            places = []
            for reply, header in zip(replies[:4], headers, strict=False):
                ((attribute, part),) = LAYOUT.attributes(reply, header)
                io, data = LAYOUT.read_io(part)
                assert attribute.size == LAYOUT.io.size + io.size == len(part)
                assert data == bytes(range(io.offset, io.offset + io.size))
                places.append((io.offset, io.size))
            assert places == [(2, 10), (12, 10), (22, 10), (32, 1)]

    def test_what_is_longer_than_the_limit_is_read_in_parts(self, path):
        with ondisk.open(path) as dataset:
            backend = Backend(dataset, limits=Limits(read=100))
            backend.process(write(A, bytes(range(150))))
            assert status(backend.process(read(A))) == -errno.E2BIG
            assert content(backend.process(read(A, 50))) == bytes(range(50, 150))

    def test_many_overlaid_extents_are_read_from_disk(self, client, path):
        plain, packets = bytearray(2000), []
        for number in range(600):
            offset = number * 37 % 1900 + 1
            plain[offset : offset + 100] = data = os.urandom(100)
            packets.append(write(A, data, offset))
        for begin in range(0, 600, 100):
            client.backend.process_all(packets[begin : begin + 100])
        end = max(extent.offset + extent.size for extent in client.backend.history(A))
        client.dataset.repack()
        again = Client(path)
        with again.dataset:
            assert again.read(A) == client.read(A) == bytes(plain[:end])

    def test_the_history_of_an_object(self, client):
        client.write(A, b"abc", id=B)
        client.write(A, b"defg", 0, APPEND)
        data = content(client.backend.process(read(A, io_flags=HISTORY)))
        entries = [*LAYOUT.history.iter_unpack(data)]
        assert [(*each[:2], *each[4:]) for each in entries] == [(B, 0, 0, 3), (A, APPEND, 3, 4)]
        times = [1_000_000 * seconds + nanoseconds // 1000 for _, _, seconds, nanoseconds, _, _ in entries]
        assert times == [extent.time for extent in client.backend.history(A)]
        last = content(client.backend.process(read(A, LAYOUT.history.size, 0, HISTORY)))
        assert last == data[LAYOUT.history.size :]
        assert status(client.backend.process(read(B, io_flags=HISTORY))) == -errno.ENOENT

    def test_metadata_are_not_supported(self, client):
        assert status(client.backend.process(read(A, io_flags=META))) == -errno.ENOTSUP


class TestOtherCommands:
    def test_a_deleted_object_does_not_exist(self, client):
        assert client.delete(A) == -errno.ENOENT
        client.write(A, b"abc")
        client.write(A, b"abc", 3)
        assert client.delete(A) == 0
        assert client.read(A) == -errno.ENOENT
        assert client.delete(A) == -errno.ENOENT
        assert client.rows(A) == 0
        client.write(A, b"x", 1)
        assert client.read(A) == b"\0x"

    def test_a_delete_may_name_its_object_in_an_io_attribute(self, client):
        client.write(B, b"abc")
        io = io_command(Code.DEL, IO(B, A, 0, 0, 0))
        assert status(client.backend.process(request(A, Code.DEL, io))) == 0
        assert client.read(B) == -errno.ENOENT

    def test_a_list_has_the_ids_in_order_from_that_of_the_header_on(self, client):
        assert status(client.backend.process(command(bytes(64), Code.LIST))) == 0
        (bare,) = client.backend.process(command(bytes(64), Code.LIST, flags=0))
        assert len(bare) == LAYOUT.header.size
        for number in (3, 1, 2):
            client.write(name(number), b"x")
            client.write(name(number), b"y", 1)

        def listed(first):
            replies = client.backend.process(command(first, Code.LIST))
            ((attribute, ids),) = LAYOUT.attributes(replies[0], LAYOUT.read_header(replies[0]))
            assert attribute.command == Code.LIST
            return bytes(ids)

        assert listed(bytes(64)) == name(1) + name(2) + name(3)
        assert listed(name(2)) == name(2) + name(3)

    def test_a_list_is_limited(self, path):
        with ondisk.open(path) as dataset:
            backend = Backend(dataset, limits=Limits(listed=3))
            backend.process_all([write(name(number), b"x") for number in range(20, 0, -1)])
            first, _ = backend.process(command(bytes(64), Code.LIST))
            assert first.endswith(name(1) + name(2) + name(3))

    def test_the_statistics_have_the_size_of_2010(self, client):
        reply, _ = client.backend.process(command(A, Code.STAT))
        ((attribute, found),) = LAYOUT.attributes(reply, LAYOUT.read_header(reply))
        assert (attribute.command, len(found)) == (Code.STAT, 392)
        values = STAT.unpack(found)
        assert values[3] == 255  # the longest name of a file
        assert values[5] * values[6] > values[5] * values[8] >= 0  # the size of the file system, and what is free
        assert values[16] > values[17] > 0  # memory

    @pytest.mark.parametrize("code", [1, 2, 3, 7, 8, 10, 12])
    def test_commands_of_nodes_are_not_supported(self, client, code):
        assert status(client.backend.process(command(A, code))) == -errno.ENOTSUP

    @pytest.mark.parametrize("code", [0, 13, 2**32 - 1])
    def test_unknown_commands_are_invalid(self, client, code):
        assert status(client.backend.process(command(A, code))) == -errno.EINVAL


class TestTransaction:
    def test_commands_are_executed_in_order_up_to_the_first_error(self, client):
        def io(code, offset, data=b"", size=None):
            return io_command(code, IO(A, A, 0, offset, len(data) if size is None else size), data)

        parts = [io(Code.WRITE, 0, b"abc"), io(Code.READ, 1), io(Code.WRITE, 3, b"def"), io(Code.READ, 0)]
        replies = client.backend.process(request(A, 0, *parts, io(Code.WRITE, 0, b"x", 5), io(Code.WRITE, 0, b"y")))
        assert [content([reply]) for reply in replies] == [b"bc", b"abcdef", b""]
        assert status(replies) == -errno.EINVAL
        assert client.read(A) == b"abcdef"

    def test_an_error_is_reported_without_being_asked(self, client):
        (reply,) = client.backend.process(read(A, flags=0))
        assert LAYOUT.read_header(reply) == (A, 2, 0, 0, -errno.ENOENT, 7 | REPLY, 0)

    def test_a_write_that_asks_for_nothing_gets_nothing(self, client):
        assert client.backend.process(write(A, b"abc", flags=0)) == []
        assert client.read(A) == b"abc"

    def test_a_packet_without_commands_is_acknowledged(self, client):
        (reply,) = client.backend.process(request(A, 0))
        assert LAYOUT.read_header(reply).status == 0
        assert client.backend.process(request(A, 0, flags=0)) == []

    def test_what_is_not_a_request_has_no_reply(self, client):
        assert client.backend.process(b"") == []
        assert client.backend.process(bytes(95)) == []
        assert client.backend.process(read(A, trans=REPLY | 7)) == []

    def test_flags_other_than_those_of_the_reply_are_returned(self, client):
        replies = client.backend.process(write(A, b"abc", flags=NEED_ACK | MORE | 12))
        assert LAYOUT.read_header(replies[-1]).flags == 12


class TestDataset:
    def test_another_process_may_change_the_dataset(self, client, path):
        client.write(A, b"abc")
        with ondisk.open(path) as other:
            backend = Backend(other)
            backend.process(write(A, b"def", 0, APPEND))
            assert client.write(A, b"ghi", 0, APPEND) == 0
            assert content(backend.process(read(A))) == b"abcdefghi"
            other.delete(other.fields.offset == 3)
            assert client.read(A) == b"abc\0\0\0ghi"
            backend.process(command(A, Code.DEL))
            assert client.read(A) == -errno.ENOENT
            assert client.write(A, b"new", 1) == 0
            assert content(backend.process(read(A))) == b"\0new"

    def test_a_repack_between_look_up_and_read_does_no_harm(self, path):
        first = Client(path)
        for number in range(4):
            first.write(A, bytes([number]) * 50, 50 * number)
            first.write(B, bytes([number]) * 50, 50 * number)
        second = Client(path)
        assert second.read(A, 0, 10) == bytes(10)  # it knows all extents now, and the data of the first
        first.delete(B)
        first.dataset.repack()
        assert second.read(A) == b"".join(bytes([number]) * 50 for number in range(4))
        first.dataset.close()
        second.dataset.close()

    def test_a_damaged_extent_is_an_error_and_the_others_are_read(self, client, path):
        client.write(A, b"a" * 1000)
        client.write(B, b"b" * 1000)
        client.dataset.close()
        (segment,) = path.glob("*/*.seg")
        before, place = segment.stat(), segment.read_bytes().index(b"a" * 1000)
        with segment.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        os.utime(segment, ns=(before.st_atime_ns, before.st_mtime_ns))
        with (again := Client(path)).dataset:
            assert again.read(A) == -errno.EILSEQ
            assert again.read(B) == b"b" * 1000
        with (again := Client(path)).dataset:
            replies = again.backend.process_all([read(A), read(B), read(C)])
            assert [*map(status, replies)] == [-errno.EILSEQ, 0, -errno.ENOENT]
            assert content(replies[1]) == b"b" * 1000
            assert "CORRUPTED" in str([each.state for each in again.dataset.check(accurate=True).segments])

    def test_objects_of_any_size_are_read_together(self, client, path):
        contents = {name(number): bytes([number]) * size for number, size in enumerate((3, 2**21, 2**20, 0, 5), 1)}
        client.backend.process_all([write(parent, data) for parent, data in contents.items()])
        packets = [read(parent) for parent in contents]
        client.dataset.close()
        with (again := Client(path)).dataset:
            assert [content(each) for each in again.backend.process_all(packets)] == [*contents.values()]

    def test_objects_may_be_archived_in_parts(self, client, path):
        client.write(A, b"abcdef")
        (segment,) = [each.relative_to(path) for each in path.glob("*/*.seg")]
        client.dataset.archive(str(segment))
        assert client.read(A) == b"abcdef"
        client.write(A, b"xx", 2)
        client.write(A, b"gh", 0, APPEND)
        assert client.read(A) == b"abxxefgh"
        client.write(A, b"new")
        assert client.read(A) == b"new"
        assert client.rows(A) == 1
        again = Client(path)
        with again.dataset:
            assert again.read(A) == b"new"
            assert again.delete(A) == 0
            assert client.read(A) == -errno.ENOENT

    def test_deleted_extents_that_return_with_a_lost_index_stay_covered(self, client, path):
        client.write(A, b"old and long")
        client.write(A, b"abcdef")
        client.write(A, b"xyz", 3)
        client.write(A, b"ABCDEF", 0, APPEND)
        client.write(A, b"uvw", 3)
        expected = client.read(A)
        client.dataset.close()
        for file in path.glob("index.sqlite*"):
            file.unlink()
        again = Client(path)
        with again.dataset:
            again.dataset.fix()
            assert again.read(A) == expected == b"abcuvwABCDEF"
            assert again.rows(A) > 3
            again.write(A, b"!", 0, APPEND)
            assert again.rows(A) == 4
            assert again.read(A) == expected + b"!"

    def test_a_dataset_that_is_open_for_reading_is_not_changed(self, client, path):
        client.write(A, b"abc")
        with ondisk.open(path, read_only=True) as dataset:
            backend = Backend(dataset)
            assert content(backend.process(read(A))) == b"abc"
            assert status(backend.process(write(A, b"x"))) == -errno.EROFS
            assert status(backend.process(command(A, Code.DEL))) == -errno.EROFS

    def test_little_memory_is_enough(self, path):
        with ondisk.open(path) as dataset:
            backend = Backend(dataset, limits=Limits(cached=100, extents=3))
            packets = [write(name(n), bytes([n]) * 20, 0, APPEND) for n in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)]
            assert [status(each) for each in backend.process_all(packets)] == [0] * 10
            for n in (5, 1, 4, 2, 3):
                assert content(backend.process(read(name(n)))) == bytes([n]) * 40

    @pytest.mark.parametrize(
        "change",
        [
            {"format": "jsonl"},
            {"step": "sequence"},
            {"fields": {"parent": "bytes"}},
            {"index": []},
            {"unique": ["id"]},
            {"delete_age": 9},
        ],
    )
    def test_other_configurations_are_refused(self, tmp_path, change):
        keys = {"fields": dict(configuration().fields), "index": ["parent"], "format": "seg", "step": "daily", **change}
        with (
            ondisk.create(tmp_path / "other", keys) as dataset,
            pytest.raises(ConfigError, match="cannot store extents"),
        ):
            Backend(dataset)

    def test_ids_may_have_another_size(self, path):
        with ondisk.open(path) as dataset:
            backend = Backend(dataset, id_size=20)
            assert backend.layout.io.size == 60
            for size in (0, 513, "64"):
                with pytest.raises(InvalidInput, match="id_size"):
                    Backend(dataset, id_size=size)


VALID = [write(A, b"abc"), write(A, b"defg", 2, APPEND), read(A), read(A, 1, 2), command(A, Code.DEL)]


@given(st.data())
def test_any_packet_is_answered_or_ignored(fuzzed, data):
    """Some bytes of a valid packet are changed, cut off or added."""
    packet = bytearray(data.draw(st.sampled_from(VALID)))
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(64, len(packet) - 1), st.integers(0, 255)), max_size=6)
    ):
        packet[place] = byte
    if data.draw(st.booleans()):
        packet = packet[: data.draw(st.integers(0, len(packet)))] + data.draw(st.binary(max_size=200))
    if data.draw(st.booleans()) and len(packet) >= LAYOUT.header.size:
        header = LAYOUT.read_header(bytes(packet))
        packet[:96] = LAYOUT.header.pack(*header[:-1], len(packet) - 96)
    for reply in fuzzed.backend.process(bytes(packet)):
        header = LAYOUT.read_header(reply)
        assert header.trans & REPLY
        assert len(reply) == LAYOUT.header.size + header.size
        assert -200 < header.status <= 0
        list(LAYOUT.attributes(reply, header))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzzed") / "objects"
    ondisk.create(path, configuration()).close()
    made = Client(path)
    with made.dataset:
        yield made
