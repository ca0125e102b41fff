"""How a segment begins, and whether it may be continued: new and empty segments, and ends that an append left torn."""

from __future__ import annotations

from dataclasses import replace

from ondisk import frame
from ondisk.config import DatasetConfig
from ondisk.errors import InvalidInput, SegmentCorrupt, StateError
from ondisk.formats.base import MOVE, is_zeros
from ondisk.formats.diskqueue import blocks, encryption, header, json_payload, payload
from ondisk.formats.diskqueue.frame_reader import FrameReader
from ondisk.segment import End, Laid, SegmentFile

LENGTH = 4
"""Bytes of the length of a frame; also those that an LZ4 frame begins with."""

SEARCHED = 64 * 1024
"""Bytes in which a segment of version 0 must have an event."""

NO_JSON = "its header says version 0, but no event in JSON follows"

_FIRST_JSON = b"{" + json_payload.FIRST_KEY
_LONGEST = header.MAX_SIZE + len(blocks.FRAME_HEADER)
_BEGUN = [header.Header(1), *(header.Header(options=each) for each in range(8))]
_BEGUN += [header.Header(header.ONDISK, options=each | header.ENCRYPTION) for each in range(0, 8, 2)]


def chosen(config: DatasetConfig) -> header.Header:
    """Return the header of new segments, without what is random in it."""
    options = header.LZ4 * (config.compression == "lz4")
    if config.format != "seg":  # such a dataset can have segments of seg, too
        return header.Header(options=options)
    options |= header.PROTOBUF * (config.payload == "protobuf") | header.ENCRYPTION * (config.encryption != "none")
    return header.Header(header.ONDISK if config.version is None else config.version, options=options)


def begun(chosen: header.Header) -> Laid:
    if chosen.encrypted:
        digest = encryption.UNKNOWN if chosen.version == header.ONDISK else b""
        chosen = replace(chosen, iv=encryption.new_iv(), digest=digest)
    content = chosen.pack() + blocks.FRAME_HEADER * chosen.compressed
    return Laid(content, End(len(content), chosen.size, 0, chosen.compressed, chosen.kind))


def header_of(file: SegmentFile) -> header.Header:
    """Return the header of a segment in order to append to it."""
    if is_zeros(file, 0):
        raise SegmentCorrupt("it contains only zeros", hint=MOVE)
    head = file.read(0, header.MAX_SIZE + LENGTH)
    try:
        found = header.Header.parse(head)
    except InvalidInput as error:
        raise StateError(error.message, hint=error.hint) from None
    if found.draft:
        raise StateError("nothing can be appended to a draft of version 3", hint="`ondisk fix` rewrites it.")
    if found.version == 0 and not begins_with_json(head):
        raise SegmentCorrupt(NO_JSON, hint=MOVE)
    if not found.compressed and head.startswith(blocks.FRAME_HEADER[:LENGTH], found.size):
        reason = "its header says that it is plain, but LZ4 follows"
        raise SegmentCorrupt(reason, hint=MOVE)
    return found


def begins_with_json(head: bytes) -> bool:
    """Return whether a segment that looks like version 0, as one of zeros does, begins with an event."""
    begin = header.Header(0).size + LENGTH
    return _FIRST_JSON.startswith(head[begin : begin + len(_FIRST_JSON)])


def has_json(file: SegmentFile) -> bool:
    """Return whether a segment of version 0 has an event near its beginning, or nothing at all."""
    head = file.read(0, SEARCHED)
    return begins_with_json(head) or _FIRST_JSON in head


def is_torn(frames: FrameReader, file: SegmentFile, limit: int) -> bool:
    """Return whether damage is only the end of an interrupted append, with no data after it."""
    assert frames.damage is not None
    rest, keys = frames.rest(limit), {*payload.FIRST_KEYS, payload.first_key(frames.header)}
    if rest is None or any(frame.find_whole(rest, key, max_size=limit) is not None for key in keys):
        return False
    if frames.is_plain:
        return True
    position = frames.position()
    if position is None or not frames.damage.torn:
        return False
    if len(rest) % blocks.BLOCK_SIZE:  # only a frame that fills whole blocks can lack the last of them
        return False
    tail = file.read(position, limit + 1)
    return len(tail) <= limit and not any(frame.scan(data, max_size=limit).payloads for data in blocks.find_whole(tail))


def is_begun(file: SegmentFile, own: bytes) -> bool:
    """Return whether a file has no more than (part of) the first bytes of a segment, so that it can be overwritten."""
    head = file.read(0, _LONGEST + 1)
    if len(head) < file.size():
        return False
    if head[:1] != b"\0":  # with any frame count; version 0 has none
        head = head[: header.COUNT_OFFSET] + bytes(len(head[header.COUNT_OFFSET : 8])) + head[8:]
    return own.startswith(head) or any(_is_begun(head, each) for each in _BEGUN)


def _is_begun(head: bytes, begun: header.Header) -> bool:
    begin, after = begun.pack(), blocks.FRAME_HEADER * begun.compressed
    if begun.encrypted:  # its random bytes follow
        return head.startswith(begin) and len(head) <= begun.size + len(after)
    return (begin + after).startswith(head)


def decrypted(file: SegmentFile, max_size: int) -> SegmentFile:
    """Return a segment's file; decrypted, if that is needed to find its frames."""
    try:
        head = header.Header.parse(file.read(0, header.MAX_SIZE))
    except (InvalidInput, SegmentCorrupt):
        return file
    if head.draft:  # `header_of` refuses it
        return file
    return encryption.opened(file, head, max_size=max_size)[0]
