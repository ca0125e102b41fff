"""What a file is that is no text in UTF-8, or no table and no lines, and what to do with it."""

from __future__ import annotations

import re

from ondisk.errors import InvalidInput
from ondisk.formats.base import compression_of

_UTF_16 = {b"\xff\xfe": "UTF-16LE", b"\xfe\xff": "UTF-16BE"}
_GUESSED = 200  # bytes by which UTF-16 without a mark is found
_SAVE = "Save it as CSV, and append that."
_AS_BLOB = "ondisk does not read it yet; store whole files with --format blob."
# By the first bytes, and a pattern for those after these: a column of CSV may be called CDF or GRIB.
_OTHERS = [
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"", "Excel (xls)", _SAVE),
    (b"%PDF-", b"", "PDF", "Get the table as CSV."),
    (b"GRIB", rb".{3}[\x00-\x04]", "GRIB", "Append it without --format, or with --format grib."),
    (b"BUFR", rb".{3}[\x00-\x04]", "BUFR", "Append it without --format, or with --format bufr."),
    (b"CDF", rb"[\x01\x02\x05]", "NetCDF", _AS_BLOB),
    (b"\x89HDF", b"", "HDF5", _AS_BLOB),
    (b"SQLite format 3\0", b"", "SQLite", "Export its table: sqlite3 -csv -header FILE 'SELECT * FROM TABLE'."),
    (b"\xff\xd8\xff", b"", "JPEG", _AS_BLOB),
    (b"\x89PNG\r\n", b"", "PNG", _AS_BLOB),
    (b"GIF8", rb"[79]a", "GIF", _AS_BLOB),
    (b"II*\0", b"", "TIFF", _AS_BLOB),
    (b"MM\0*", b"", "TIFF", _AS_BLOB),
    (b"RIFF", rb".{4}WEBP", "WebP", _AS_BLOB),
]
_MARKUP = rb"(?i)\s*<(?:!doctype html|html|\?xml)"
_ARRAY = rb"\s*\[\s*(?:\{|$)"
_INDENTED = rb"\s*\{\s*\n"


def kind_of(head: bytes) -> str | None:
    """Return the kind of a file by its first bytes, such as JPEG or gzip; None if they are of none that is known."""
    known = _known(head)
    return compression_of(head) if known is None else known[0]


def foreign(head: bytes) -> InvalidInput | None:
    """Return the error for a file whose first bytes, some hundreds, are not text in lines; None for text."""
    if (known := _known(head)) is not None:
        return InvalidInput(f"it is {known[0]}, not text", hint=known[1])
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
    first = head.lstrip()[:1]
    if first == b"<" and re.match(_MARKUP, head):
        return InvalidInput(
            "it is HTML or XML, not a table", hint="Is it the page of an error or a login? Get it again."
        )
    if first == b"[" and re.match(_ARRAY, head):
        return InvalidInput("it is a JSON array, not JSON lines", hint="Write a line for each: jq -c '.[]' FILE.")
    if first == b"{" and re.match(_INDENTED, head):
        return InvalidInput("it is JSON on several lines, not JSON lines", hint="Write a line for each: jq -c . FILE.")
    return None


def _known(head: bytes) -> tuple[str, str] | None:
    """Return the kind of a file, and what to do with it."""
    for begin, rest, kind, hint in _OTHERS:  # first without a pattern: to compile them all takes longer than an append
        if head.startswith(begin) and re.match(rest, head[len(begin) :], re.DOTALL):
            return kind, hint
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
