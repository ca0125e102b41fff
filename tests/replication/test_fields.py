"""Fields are read only as far as there are bytes."""

from __future__ import annotations

import pytest

from ondisk.errors import IntegrityError, InvalidInput
from ondisk.replication.token import Fields, Reader, Writer, sealed


def values(at: Fields) -> list[object]:
    return [at.integer(2, -2), at.text("ü\udcff"), at.counted(b"\0"), at.flag(value=True), at.flag()]


def test_fields_are_read_as_they_were_written():
    writer = Writer()
    written = values(writer)
    reader = Reader(bytes(writer.content), "it")
    read = [reader.integer(2), reader.text(), reader.counted(), reader.flag(), reader.flag()]
    assert read == written == [-2, "ü\udcff", b"\0", True, False]
    assert not reader


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\2", b"\0\0"])
def test_a_length_beyond_the_bytes_is_refused(size):
    with pytest.raises(IntegrityError, match=r"^it is damaged: near byte "):
        Reader(size + b"x" * (len(size) == 4), "it").counted()


def test_a_flag_is_0_or_1():
    with pytest.raises(IntegrityError, match="a flag is 2"):
        Reader(b"\2", "it").flag()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidInput):
        Writer().integer(4, 2**31)
    with pytest.raises(InvalidInput):
        Writer().text("\ud800")
    with pytest.raises(InvalidInput):
        Writer().take(2, b"x")


def test_the_checksum_covers_all_bytes_and_its_own_upper_half():
    whole = sealed(b"12345")
    assert Reader.opened(whole, "it").take(5) == b"12345"
    assert whole[-8:-4] == bytes(4)
    with pytest.raises(IntegrityError, match="checksum"):
        Reader.opened(whole[:-8] + b"\1" + whole[-7:], "it")
