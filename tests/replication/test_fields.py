"""Fields are read only as far as there are bytes."""

from __future__ import annotations

import pytest

from ondisk.errors import IntegrityError, InvalidInput
from ondisk.replication.fields import Reader, counted, flag, integer, opened, sealed


def test_fields_are_read_as_they_were_written():
    reader = Reader(integer(-2, 2) + counted("ü\udcff") + counted(b"\0") + flag(True) + flag(False), "it")
    assert (reader.integer(2), reader.text(), reader.counted(), reader.flag(), reader.flag()) == (
        -2, "ü\udcff", b"\0", True, False)  # fmt: skip
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
        integer(2**31, 4)
    with pytest.raises(InvalidInput):
        counted("\ud800")


def test_the_checksum_covers_all_bytes_and_its_own_upper_half():
    whole = sealed(b"12345")
    assert opened(whole, "it").take(5) == b"12345"
    assert whole[-8:-4] == bytes(4)
    with pytest.raises(IntegrityError, match="checksum"):
        opened(whole[:-8] + b"\1" + whole[-7:], "it")
