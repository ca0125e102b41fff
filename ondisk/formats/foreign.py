"""What a file is that is no text in UTF-8, or no table and no lines, and what to do with it."""

from __future__ import annotations

import re

from ondisk.errors import InvalidInput
from ondisk.formats.base import compression_of

_UTF_16 = {b"\xff\xfe": "UTF-16LE", b"\xfe\xff": "UTF-16BE"}
_GUESSED = 200  # bytes by which UTF-16 without a mark is found
_SAVE = "Save it as CSV, and append that."
_AS_BLOB = "ondisk does not read it yet; store whole files with --format blob."
# By the first bytes, with those behind the name: a column of CSV may be called CDF or GRIB.
_OTHERS = {
    re.compile(magic, re.DOTALL): (kind, hint)
    for magic, kind, hint in [
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Excel (xls)", _SAVE),
        (rb"%PDF-", "PDF", "Get the table as CSV."),
        (rb"GRIB.{3}[\x00-\x04]", "GRIB", "Append it without --format, or with --format grib."),
        (rb"BUFR.{3}[\x00-\x04]", "BUFR", "Append it without --format, or with --format bufr."),
        (rb"CDF[\x01\x02\x05]", "NetCDF", _AS_BLOB),
        (rb"\x89HDF", "HDF5", _AS_BLOB),
        (rb"SQLite format 3\0", "SQLite", "Export its table: sqlite3 -csv -header FILE 'SELECT * FROM TABLE'."),
        (rb"\xff\xd8\xff", "JPEG", _AS_BLOB),
        (rb"\x89PNG\r\n", "PNG", _AS_BLOB),
        (rb"GIF8[79]a", "GIF", _AS_BLOB),
        (rb"II\*\0|MM\0\*", "TIFF", _AS_BLOB),
        (rb"RIFF.{4}WEBP", "WebP", _AS_BLOB),
    ]
}
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html|\?xml)", re.IGNORECASE)
_ARRAY = re.compile(rb"\s*\[\s*(?:\{|$)")
_INDENTED = re.compile(rb"\s*\{\s*\n")


def kind_of(head: bytes) -> str | None:
    """Return the kind of a file by its first bytes, such as JPEG or gzip; None if they are of none that is known."""
    kinds = (kind for magic, (kind, _) in _OTHERS.items() if magic.match(head))
    return next(kinds, None) or compression_of(head)


def foreign(head: bytes) -> InvalidInput | None:
    """Return the error for a file whose first bytes, some hundreds, are not text in lines; None for text."""
    for magic, (kind, hint) in _OTHERS.items():
        if magic.match(head):
            return InvalidInput(f"it is {kind}, not text", hint=hint)
    compression = compression_of(head)
    if compression == "zip":
        return _of_zip(head)
    if compression is not None:
        return InvalidInput(f"it is compressed with {compression}, not text", hint="Decompress it first.")
    if encoding := _utf_16(head):
        hint = (
            f"Pass encoding (--encoding {encoding.lower()}) for CSV, or convert it: iconv -f {encoding} -t UTF-8 FILE."
        )
        return InvalidInput("it is UTF-16, not UTF-8", hint=hint)
    if _MARKUP.match(head):
        return InvalidInput(
            "it is HTML or XML, not a table", hint="Is it the page of an error or a login? Get it again."
        )
    if _ARRAY.match(head):
        return InvalidInput("it is a JSON array, not JSON lines", hint="Write a line for each: jq -c '.[]' FILE.")
    if _INDENTED.match(head):
        return InvalidInput("it is JSON on several lines, not JSON lines", hint="Write a line for each: jq -c . FILE.")
    return None


def _of_zip(head: bytes) -> InvalidInput:
    if b"xl/" in head or b"[Content_Types]" in head:
        return InvalidInput("it is a workbook of Excel (xlsx), not text", hint=_SAVE)
    if b"opendocument.spreadsheet" in head:
        return InvalidInput("it is an OpenDocument spreadsheet (ods), not text", hint=_SAVE)
    hint = "Decompress it first: unzip -p FILE | ondisk append DATASET - --format F."
    return InvalidInput("it is compressed with zip, not text", hint=hint)


def _utf_16(head: bytes) -> str:
    """Return the encoding of a text in UTF-16, also without a mark; "" for others."""
    for mark, encoding in _UTF_16.items():
        if head.startswith(mark):
            return encoding
    halves = [head[at:_GUESSED:2] for at in (0, 1)]
    if len(head) < 4 or b"\n" not in head:
        return ""
    zeros = [half.count(0) / len(half) for half in halves]
    if max(zeros) > 0.6 and min(zeros) < 0.1:
        return "UTF-16LE" if zeros[1] > zeros[0] else "UTF-16BE"
    return ""
