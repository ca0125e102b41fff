"""A reader as strict as the one of Beats, with the same mistakes; it shares no code with ondisk.

Written from the facts that were observed by running Beats (libbeat 7.14 to 9.x): where Beats returns an error or
crashes, `BeatsError` is raised; integers that Beats misreads are misread. Stricter than Beats in what only a writer
can promise: a frame count that is not zero where a restarted Beat would drop the file, and the order of the keys.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import lz4.block
import lz4.frame

from . import beats_payloads
from .beats_payloads import BeatsError, need

__all__ = ["BeatsError", "Event", "event", "frames", "read"]

Event = tuple[int, int, dict[str, Any], dict[str, Any]]


def read(segment: bytes) -> list[Event]:
    """Read a segment of version 0, 1 or 2, not encrypted, as the Beats that wrote its version reads it."""
    (version,) = struct.unpack_from("<I", segment)
    need(version in (0, 1, 2), f"unrecognized schema version {version}")
    size = 4 + 4 * version
    (count,) = struct.unpack_from("<I", segment, 4) if version else (None,)
    (options,) = struct.unpack_from("<I", segment, 8) if version == 2 else (0,)
    need(options in (0, 2, 4, 6), "options that no Beats writes without encryption")
    data = segment[size:]
    if options & 2:
        need(count or not data, "a restarted Beat scans the raw bytes and drops the file")
        data = decompress(data)
    decode = beats_payloads.protobuf_event if options & 4 else event if version else beats_payloads.json_event
    events = [decode(payload) for payload in frames(data)]
    need(count in (None, 0, len(events)), "the frame count is wrong")
    return events


def decompress(data: bytes) -> bytes:
    """Read the first LZ4 frame; an end mark may be missing, everything else must be whole."""
    need(data[:4] == b"\x04\x22\x4d\x18", "lz4: bad magic number")
    info = lz4.frame.get_frame_info(data[:19])
    need(not info["block_checksum"], "lz4: block checksums are refused")
    need(not info["block_linked"] and not info["content_size"], "not what ondisk writes")
    at, out = 7, []
    while at < len(data):
        need(at + 4 <= len(data), "unexpected EOF in a block's size")
        (word,) = struct.unpack_from("<I", data, at)
        at += 4
        if word == 0:
            break
        size = word & 0x7FFF_FFFF
        need(size <= info["block_size"] and at + size <= len(data), "invalid block size")
        stored = data[at : at + size]
        out.append(stored if word >> 31 else lz4.block.decompress(stored, uncompressed_size=info["block_size"]))
        at += size
    return b"".join(out)


def frames(data: bytes) -> list[bytes]:
    payloads, at = [], 0
    while at < len(data):
        need(at + 4 <= len(data), "couldn't read data frame header")
        (length,) = struct.unpack_from("<I", data, at)
        need(length > 12, "data frame with no data")
        need(at + length <= len(data), "couldn't read data frame content")
        payload = data[at + 4 : at + length - 8]
        checksum, again = struct.unpack_from("<II", data, at + length - 8)
        need(crc32(payload, crc32(struct.pack("<I", length))) == checksum, "data frame checksum mismatch")
        need(again == length, "inconsistent data frame length")
        payloads.append(payload)
        at += length
    return payloads


def event(payload: bytes) -> Event:
    content, end = value(payload, 0)
    need(end == len(payload), "bytes after the value")
    need(isinstance(content, dict), "not a map")
    need(list(content) == ["timestamp", "flags", "meta", "fields"], "the keys are not the four, in order")
    timestamp, flags, meta, fields = content.values()
    need(type(timestamp) is int and -(2**63) <= timestamp < 2**63, "timestamp is no int64")
    need(type(flags) is int and 0 <= flags < 256, "flags are cut to 8 bits")
    need(type(meta) is dict and type(fields) is dict, "meta or fields is no map")
    return timestamp, flags, meta, fields


def value(data: bytes, at: int) -> tuple[Any, int]:
    """Return one CBOR value, read as go-structform does, and its end."""
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if major == 7:
        return special(data, at, info)
    need(major != 6, "panic: a tag")
    need(info < 28, "indefinite lengths, which Beats does not write")
    width = 0 if info < 24 else 1 << info - 24
    argument = int.from_bytes(data[at : at + width], "big") if width else info
    at += width
    match major:
        case 0:
            return argument, at
        case 1:
            return -1 - signed(argument, width), at
        case 2 | 3:
            content = data[at : at + argument]
            need(len(content) == argument, "unexpected EOF")
            return content if major == 2 else content.decode(errors="surrogateescape"), at + argument
        case 4:
            return array(data, at, argument)
        case _:
            return mapping(data, at, argument)


def signed(argument: int, width: int) -> int:
    """Cast to the signed type of the same width, a mistake of Beats."""
    return argument - (1 << 8 * width) if width and argument >> (8 * width - 1) else argument


def special(data: bytes, at: int, info: int) -> tuple[Any, int]:
    need(info in (20, 21, 22, 26, 27), f"panic: simple value or half float {info}")
    if info < 23:
        return {20: False, 21: True, 22: None}[info], at
    layout = ">f" if info == 26 else ">d"
    return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)


def array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = value(data, at)
        items.append(item)
    return items, at


def mapping(data: bytes, at: int, count: int) -> tuple[dict[str, Any], int]:
    content: dict[str, Any] = {}
    for _ in range(count):
        key, at = value(data, at)
        need(isinstance(key, str), "a key is no text")
        need(key, "object keys must not be empty")
        need(key not in content, "a key stands twice")
        content[key], at = value(data, at)
    return content, at
