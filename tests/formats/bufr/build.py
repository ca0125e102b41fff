"""Builds BUFR messages, so that the tests need no files of others."""

from __future__ import annotations

import struct

TIME = (2026, 11, 20, 6, 30, 0)
STATION = [("001001", 16, 7), ("001002", 144, 10)]
WHEN = [("004001", 2026, 12), ("004002", 11, 4), ("004003", 20, 6), ("004004", 6, 5), ("004005", 0, 6)]
PLACE = [("005001", 9_000_000 + 4_449_000, 25), ("006001", 18_000_000 + 1_133_000, 26)]
TEMPERATURE = [("012101", 28315, 16)]
SYNOP = [*STATION, *WHEN, *PLACE, *TEMPERATURE]


def u3(number: int) -> bytes:
    return number.to_bytes(3, "big")


def text(content: str, octets: int) -> int:
    """The bits of a text, with blanks after it."""
    return int.from_bytes(content.encode("latin-1").ljust(octets), "big")


def packed(*values: tuple[int, int]) -> bytes:
    """Bits, each value with its width, up to a whole byte."""
    bits = "".join(f"{value:0{width}b}" for value, width in values if width)
    return int(bits.ljust((len(bits) + 7) // 8 * 8, "0") or "0", 2).to_bytes((len(bits) + 7) // 8, "big")


def descriptors(*codes: str) -> bytes:
    return b"".join(bytes([int(code[0]) << 6 | int(code[1:3]), int(code[3:])]) for code in codes)


def bufr(
    fields=SYNOP,
    *,
    edition=4,
    centre=98,
    subcentre=0,
    update=0,
    category=0,
    subcategory=2,
    local=1,
    version=29,
    local_version=0,
    time=TIME,
    reports=1,
    is_compressed=False,
    codes=None,
    data=None,
    second=b"",
    table=0,
):
    """A message. Fields are code, bits and width; codes and data say the same in other words."""
    year, month, day, hour, minute, clock = time
    flags = 128 if second else 0
    if edition == 4:
        first = struct.pack(">BHHBBBBB", table, centre, subcentre, update, flags, category, subcategory, local)
        first += struct.pack(">BBHBBBBB", version, local_version, year, month, day, hour, minute, clock)
    else:
        where = bytes([subcentre, centre]) if edition == 3 else struct.pack(">H", centre)
        first = bytes([table]) + where + bytes([update, flags, category, local, version, local_version])
        first += bytes([(year - 1) % 100 + 1 if year else 0, month, day, hour, minute, 0])
    if codes is None:
        codes = [code for code, _, _ in fields]
    if data is None:
        increment = [(0, 6)] if is_compressed else []
        data = packed(*(part for _, value, width in fields for part in [(value, width), *increment]))
    third = struct.pack(">HB", reports, 128 | (64 if is_compressed else 0)) + descriptors(*codes)
    parts = [first, *([b"\0" + second] if second else []), b"\0" + third, b"\0" + data]
    sections = b"".join(u3(len(each) + 3) + each for each in parts)
    return b"BUFR" + u3(len(sections) + 12) + bytes([edition]) + sections + b"7777"
