"""Builds GRIB messages, so that the tests need no files of others."""

from __future__ import annotations

import struct

TIME = (2026, 11, 20, 6, 0)


def u3(number: int) -> bytes:
    return number.to_bytes(3, "big")


def sign(number: int, octets: int) -> bytes:
    """A number whose first bit is the sign."""
    return (abs(number) | (1 << (8 * octets - 1) if number < 0 else 0)).to_bytes(octets, "big")


def grid1(kind=0, first=(46000, 6000), last=(36000, 18500), points=(97, 73), scanning=64, rest=b""):
    """Section 2 of edition 1: latitudes and longitudes in thousandths of a degree."""
    corners = [sign(each, 3) for each in (*first, *last)]
    body = struct.pack(">BBBHH", 0, 255, kind, *points) + corners[0] + corners[1] + b"\x80" + corners[2] + corners[3]
    body += struct.pack(">HHB", 125, 125, scanning) + bytes(4) + rest
    return u3(len(body) + 3) + body


def grib1(
    *,
    time=TIME,
    centre=98,
    subcentre=0,
    process=145,
    table=2,
    parameter=11,
    level=(105, 0, 2),
    unit=1,
    p1=6,
    p2=0,
    time_range=0,
    grid=None,
    local=b"",
    data=b"data",
    size=None,
):
    """A message of edition 1; `local` are the octets of section 1 from 41 on."""
    year, month, day, hour, minute = time
    grid = grid1() if grid is None else grid
    century, of_century = divmod(year - 1, 100)
    product = struct.pack(">BBBBB", table, centre, process, 255, 128 if grid else 0)
    product += struct.pack(">BBBB", parameter, *level)
    product += struct.pack(">BBBBB", of_century + 1, month, day, hour, minute)
    product += struct.pack(">BBBBHBBBH", unit, p1, p2, time_range, 0, 0, century + 1, subcentre, 0)
    product += bytes(12) + local if local else b""
    sections = u3(len(product) + 3) + product + grid + u3(len(data) + 3) + data
    whole = len(sections) + 12 if size is None else size
    return b"GRIB" + u3(whole) + b"\1" + sections + b"7777"


def section(number: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 5, number) + body


def grid2(template=0, first=(46_000_000, 6_000_000), last=(36_000_000, 18_500_000), points=(97, 73), rest=b"", basic=0):
    """Section 3 of edition 2: latitudes and longitudes in millionths of a degree."""
    corners = [sign(each, 4) for each in (*first, *last)]
    body = struct.pack(">BIBBHB", 0, points[0] * points[1] & 0xFFFF, 0, 0, template, 6) + bytes(15)
    body += (
        struct.pack(">IIII", *points, basic, 0xFFFFFFFF) + corners[0] + corners[1] + b"\x30" + corners[2] + corners[3]
    )
    return section(3, body + struct.pack(">IIB", 125000, 125000, 0) + rest)


def surface(kind=255, scale=None, value=None) -> bytes:
    scaled = b"\xff" if scale is None else sign(scale, 1)
    return struct.pack(">B", kind) + scaled + struct.pack(">I", 0xFFFFFFFF if value is None else value)


def product2(template=0, *, category=0, number=0, process=(2, 255, 145), unit=1, step=6, first=None, second=None,
             rest=b""):  # fmt: skip
    """Section 4 of edition 2 for the templates of a point or an interval; `rest` follows the surfaces."""
    body = struct.pack(">HHBB", 0, template, category, number) + bytes(process) + bytes(3) + bytes([unit])
    body += sign(step, 4) + (first or surface(103, 0, 2)) + (second or surface()) + rest
    return section(4, body)


def interval(statistic=1, *, unit=1, length=6, ranges=1) -> bytes:
    """The end of an interval, and its statistic."""
    end = struct.pack(">HBBBBB", 2026, 11, 20, 12, 0, 0) + bytes([ranges]) + bytes(4)
    return end + ranges * (struct.pack(">BBBI", statistic, 2, unit, length) + b"\xff" + bytes(4))


def grib2(
    *,
    time=TIME,
    centre=98,
    subcentre=0,
    discipline=0,
    tables=(4, 255),
    kind=1,
    status=0,
    grid=None,
    product=None,
    local=b"",
    fields=1,
):
    """A message of edition 2."""
    year, month, day, hour, minute = time
    identification = struct.pack(">HHBBB", centre, subcentre, *tables, 1)
    identification += struct.pack(">HBBBBBBB", year, month, day, hour, minute, 0, status, kind)
    field = (grid2() if grid is None else grid) + (product2() if product is None else product)
    field += section(5, bytes(16)) + section(6, b"\xff") + section(7, b"data")
    sections = section(1, identification) + (section(2, local) if local else b"") + field * fields
    return b"GRIB\0\0" + bytes([discipline, 2]) + struct.pack(">Q", len(sections) + 20) + sections + b"7777"
