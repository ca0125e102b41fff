"""Files that are not what was named."""

from __future__ import annotations

import bz2
import io
import lzma
import zipfile

import pytest

from ondisk.errors import InvalidInput
from ondisk.formats.file_kinds import foreign

TEXT = "time,station,t\n2026-11-20 10:00,5,1\n"


def zipped(name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), "x")  # of 1980: the name of a test must not depend on the time
    return packed.getvalue()


FILES = {
    "UTF-16LE": [TEXT.encode("utf-16"), TEXT.encode("utf-16-le")],
    "UTF-16BE": [TEXT.encode("utf-16-be"), b"\xfe\xff" + TEXT.encode("utf-16-be")],
    "unzip -p": [zipped("x.csv")],
    "Save it as CSV": [zipped("xl/workbook.xml"), zipped("[Content_Types].xml"), b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"],
    "jq -c '.[]'": [b'[{"a": 1}]', b'[\n  {"a": 1}\n]', b"["],
    "jq -c . ": [b'{\n  "a": 1\n}'],
    "login": [b"<!DOCTYPE html><html>", b"\n<html>", b"<?xml version='1.0'?>"],
    "Decompress it first": [bz2.compress(b"x"), lzma.compress(b"x")],
    "ondisk does not read": [b"CDF\x01", b"\x89HDF\r\n"],
    "--format grib": [b"GRIB\0\0\x9a\x01"],
    "sqlite3 -csv": [b"SQLite format 3\0"],
}


@pytest.mark.parametrize(("hint", "head"), [(hint, head) for hint, heads in FILES.items() for head in heads])
def test_a_file_that_is_something_else_is_named_with_what_to_do(hint, head):
    assert hint in foreign(head).hint


@pytest.mark.parametrize(
    "head", [TEXT.encode(), b"", b"\n", b'{"a":1}\n', b"\0" * 300 + b"\n", b"[a],b\n", "é,ü\n".encode()]
)
def test_text_is_nothing_else(head):
    assert foreign(head) is None


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.zip", "x"])
@pytest.mark.parametrize("options", [{}, {"time": "time", "tz": "UTC"}])
@pytest.mark.parametrize(
    "head", [zipped("xl/workbook.xml"), TEXT.encode("utf-16-le"), b'[\n{"a": 1}\n]\n', b"\x89HDF\r\n"]
)
def test_an_append_says_so_whatever_the_name_of_the_file_and_the_options(create, tmp_path, name, options, head):
    (tmp_path / name).write_bytes(head)
    with pytest.raises(InvalidInput) as caught:
        create(format="seg").append_file(tmp_path / name, **options)
    assert caught.value.message == foreign(head).message


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("options", [{}, {"time": "reftime"}])
def test_a_byte_order_mark_before_a_line_is_skipped(create, options):
    lines = [MARK + b'{"reftime":"2026-11-16T%02d:00:00Z","t":1}\n' % hour for hour in (6, 7)]
    dataset = create(format="jsonl")
    assert dataset.append_file(io.BytesIO(b"".join(lines)), "jsonl", **options).imported == 2
    assert [datum.data for datum in dataset.query()] == [{"t": 1}] * 2


def test_a_byte_order_mark_in_the_middle_of_a_table_is_skipped(create):
    part = MARK + b"reftime,t\n2026-11-16T06:00Z,1\n"
    result = create(format="seg").append_file(io.BytesIO(part + part.replace(b"06", b"07")), "csv")
    assert (result.imported, result.refused) == (2, 1)
    assert result.refusals[0][1].startswith("line 3: column 'reftime': 'reftime': it is not a time such as")


@pytest.mark.parametrize("head", [b"CDF,reftime\n", b"GRIB;reftime\n", b"BUFR\n1\n", b"CDF\n", b"PDF,%\n", b"[a],b\n"])
def test_a_table_may_have_columns_of_such_names(head: bytes) -> None:
    assert foreign(head) is None
