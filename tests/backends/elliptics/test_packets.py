"""The layout of packets, compared with what the structures of 2010 compile to."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.backends.elliptics import check_get_size
from ondisk.backends.elliptics.packets import IO, Attribute, Code, Header, Layout, Refused

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/elliptics/backend_2010.json").read_text())
LAYOUT = Layout()
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def test_structures_have_the_sizes_of_2010():
    sizes = GOLDEN["sizeof"]
    assert LAYOUT.header.size == sizes["dnet_cmd"]
    assert LAYOUT.attribute.size == sizes["dnet_attr"]
    assert LAYOUT.io.size == sizes["dnet_io_attr"]
    assert LAYOUT.history.size == sizes["dnet_history_entry"]


@pytest.mark.parametrize(
    ("structure", "name", "fields"),
    [
        (LAYOUT.header, "dnet_cmd", {"flags": 3, "status": 4, "trans": 5, "size": 6}),
        (LAYOUT.header, "dnet_id", {"group_id": 1, "version": 2}),
        (LAYOUT.attribute, "dnet_attr", {"size": 0, "cmd": 1, "flags": 2}),
        (LAYOUT.io, "dnet_io_attr", {"flags": 2, "offset": 3, "size": 4}),
        (LAYOUT.history, "dnet_history_entry", {"flags": 1, "tsec": 2, "tnsec": 3, "offset": 4, "size": 5}),
    ],
)
def test_fields_are_at_the_offsets_of_2010(structure, name, fields):
    for field, place in fields.items():
        packed = bytearray(structure.size)
        packed[GOLDEN["offsetof"][f"{name}.{field}"]] = 7
        assert structure.unpack(packed)[place] == 7


def test_a_genuine_request_is_read_field_by_field():
    packet = bytes.fromhex(GOLDEN["steps"][1]["request_hex"])
    header = LAYOUT.read_header(packet)
    assert header == Header(b"\x10" * 64, 2, 0, 1, 0, 7, 182)
    ((attribute, content),) = LAYOUT.attributes(packet, header)
    assert attribute == Attribute(158, Code.WRITE, 0)
    io, data = LAYOUT.read_io(content)
    assert io == IO(b"\x10" * 64, b"\x10" * 64, 0, 0, 10)
    assert data == b"0123456789"


def test_genuine_requests_are_packed_byte_for_byte():
    for step in GOLDEN["steps"]:
        packet = bytes.fromhex(step["request_hex"])
        id = packet[:64]
        io = IO(id, id, step["io_flags"], step["offset"], step["size"])
        data = step["data"].encode()
        command = LAYOUT.io_of(Code[step["op"].upper()], io, len(data))
        assert LAYOUT.packet(Header(id, 2, 0, 1, 0, 7, 0), command, data) == packet


def test_a_read_is_cut_as_in_2010_but_where_64_bits_wrapped():
    wrapped = 0
    for record_size, offset, size, expected in GOLDEN["check_get_size"]:
        found = check_get_size(IO(b"", b"", 0, offset, size), record_size)
        if size + offset < 2**64:
            assert found == expected
        else:
            wrapped += found != expected
        assert found <= max(0, record_size - offset)
    assert wrapped


@given(U64, U64, U64)
def test_a_read_is_cut_to_what_there_is(record_size, offset, size):
    content = range(record_size)
    wanted = content[offset : offset + size] if size else content[offset:]
    assert check_get_size(IO(b"", b"", 0, offset, size), record_size) == max(0, wanted.stop - wanted.start)


@given(st.integers(1, 80), st.data())
def test_what_is_packed_is_read_again(id_size, data):
    layout = Layout(id_size)
    ids = st.binary(min_size=id_size, max_size=id_size)
    values = data.draw(st.lists(st.tuples(U32, U32, st.binary(max_size=300)), max_size=4))
    header = Header(data.draw(ids), *data.draw(st.tuples(U32, U32, U32, st.integers(-(2**31), 2**31 - 1), U64)), 0)
    packet = layout.packet(
        header, *(layout.attribute_of(code, len(content), flags) + content for code, flags, content in values)
    )
    found = layout.read_header(packet)
    assert found is not None
    assert found == header._replace(size=len(packet) - layout.header.size)
    read = [(each.command, each.flags, bytes(content)) for each, content in layout.attributes(packet, found)]
    assert read == values
    entry = (data.draw(ids), data.draw(U32), *data.draw(st.tuples(U64, U64, U64, U64)))
    assert layout.history.unpack(layout.history.pack(*entry)) == entry


@given(st.integers(1, 80), st.sampled_from([*Code, 0, 99]), st.integers(-1, 1), st.integers(-1, 1), st.data())
def test_a_packet_of_one_read_is_read_as_any_other(id_size, code, header_change, attribute_change, data):
    layout = Layout(id_size)
    ids = st.binary(min_size=id_size, max_size=id_size)
    io = IO(data.draw(ids), data.draw(ids), *data.draw(st.tuples(U32, U64, U64)))
    header = Header(data.draw(ids), *data.draw(st.tuples(U32, U32, U32, st.integers(-(2**31), 2**31 - 1), U64)), 0)
    attribute = layout.attribute_of(code, layout.io.size + attribute_change, data.draw(U32))
    size = layout.attribute.size + layout.io.size + header_change
    packet = layout.header.pack(*header[:-1], size) + attribute + layout.io.pack(*io)
    single = layout.read_single_read(packet)
    found = layout.read_header(packet)
    try:
        expected = [(each.command, layout.read_io(part)) for each, part in layout.attributes(packet, found)]
    except Refused:
        assert single is None
        return
    assert expected == [(code, (io, b""))]
    assert single == ((found, io) if code == Code.READ else None)
    assert layout.read_single_read(packet + b"x") is None


@pytest.mark.parametrize("change", [-1, 1, 2**63])
def test_a_size_that_does_not_match_the_packet_is_refused(change):
    packet = bytes.fromhex(GOLDEN["steps"][1]["request_hex"])
    header = LAYOUT.read_header(packet)
    with pytest.raises(Refused) as refused:
        list(LAYOUT.attributes(packet, header._replace(size=header.size + change)))
    assert refused.value.status == -errno.EINVAL
    assert "EINVAL" in str(refused.value)


@given(st.binary(max_size=400))
def test_any_bytes_are_attributes_or_refused(content):
    header = Header(bytes(64), 0, 0, 0, 0, 0, len(content))
    packet = LAYOUT.packet(header, content)
    covered = 0
    try:
        for _, part in LAYOUT.attributes(packet, header):
            covered += LAYOUT.attribute.size + len(part)
    except Refused:
        assert covered < len(content)
    else:
        assert covered == len(content)


def test_bytes_that_are_shorter_than_a_structure_are_none():
    assert LAYOUT.read_header(bytes(95)) is None
    with pytest.raises(Refused):
        LAYOUT.read_io(memoryview(bytes(147)))
