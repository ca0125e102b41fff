"""Finding the key of an encrypted segment, and its file or a stream of it as if it were not encrypted.

Segments of Beats do not name their key: each key of 16 bytes is tried until something in the file is valid. Frames of
version 256 name theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from ondisk import frame, keys
from ondisk.errors import AuthenticationFailed
from ondisk.formats.base import Chained, Readable
from ondisk.formats.diskqueue.blocks import BEGIN_SIZE, begins_frame
from ondisk.formats.diskqueue.encryption import UNKNOWN, Frames, Stream, check_installed, digest_of
from ondisk.formats.diskqueue.header import ONDISK, Header
from ondisk.keys import AES_128, KeyRing
from ondisk.segment import Sealer, SegmentFile

_KNOWN = (b"\x69timestamp", b'"timestamp"')  # begin an event of CBOR, and of JSON
_PIECE = 64 * 1024  # bytes that show whether a key fits


def sealer_of(
    head: Header, read: Callable[[int, int], bytes], name: str | None, *, max_size: int
) -> Stream | Frames | None:
    """Return what encrypts and decrypts a segment's file, with the keys of this process; None if it is plain.

    `read` returns bytes of the file by position and size; `name`, of the segment, is compared with the header if known.
    Raises AuthenticationFailed if no key fits, or it is another segment's file; ConfigError; or KeyMissing in counter
    mode. With GCM the first frame shows which key is needed.
    """
    if not head.encrypted:
        return None
    check_installed()
    ring = keys.current()
    if head.version != ONDISK:
        return stream_of(ring, head.iv, head.size, read, compressed=head.compressed, max_size=max_size)
    digest = head.digest if name is None else digest_of(name.rpartition(".")[0])
    if digest != head.digest != UNKNOWN:
        hint = "Give the file its name back, or restore the segment from a backup."
        raise AuthenticationFailed("it is the file of another segment, with another name", hint=hint)
    return Frames(ring, head.iv, digest, head.size)


def opened(file: SegmentFile, head: Header, *, max_size: int) -> tuple[SegmentFile, Frames | None]:
    """Return a segment's file as if it were not encrypted in counter mode; and what decrypts each frame, with GCM."""
    sealer = sealer_of(head, file.read, None, max_size=max_size)
    if sealer is None or isinstance(sealer, Frames):
        return file, sealer
    return DecryptedFile(file, sealer), None


def decrypted(stream: Readable, head: Header, *, max_size: int) -> tuple[Readable, Frames | None]:
    """Do the same as `opened` with a stream, which begins after the header. Memory: one frame, to find the key."""
    if not head.encrypted:
        return stream, None
    held = b""

    def read(position: int, size: int) -> bytes:
        nonlocal held
        end = position - head.size + size
        while len(held) < end and (more := stream.read(end - len(held))):
            held += more
        return held[position - head.size : end]

    sealer = sealer_of(head, read, None, max_size=max_size)
    stream = Chained(held, stream)
    if sealer is None or isinstance(sealer, Frames):
        return stream, sealer
    return _DecryptedStream(stream, sealer), None


class DecryptedFile:
    def __init__(self, file: SegmentFile, sealer: Sealer) -> None:
        self._file = file
        self._sealer = sealer

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, size: int, /) -> bytes:
        return self._sealer.unseal(position, self._file.read(position, size))

    def read_into(self, position: int, buffer: memoryview, /) -> int:
        content = self.read(position, len(buffer))
        buffer[: len(content)] = content
        return len(content)


class _DecryptedStream:
    """The bytes of a stream that is encrypted in counter mode, from after the header on."""

    def __init__(self, stream: Readable, key: Stream) -> None:
        self._stream = stream
        self._update = key.running()

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes. Only an empty result means the end."""
        return self._update(self._stream.read(size))


def stream_of(
    ring: KeyRing, iv: bytes, begin: int, read: Callable[[int, int], bytes], *, compressed: bool, max_size: int
) -> Stream:
    """Return the stream of a segment of Beats, which names no key: each is tried; or raise. Memory: one frame."""
    streams = [Stream(key.secret, iv, begin) for key in ring.of_size(AES_128)]
    size, stored = _PIECE, read(begin, _PIECE)
    if not stored:
        return streams[0]
    candidates = streams
    while candidates:
        undecided = []
        for stream in candidates:
            is_right = _fits(stream.unseal(begin, stored), compressed=compressed, max_size=max_size)
            if is_right:
                return stream
            if is_right is None:
                undecided.append(stream)
        if len(stored) < size or size > max_size + frame.OVERHEAD:
            break
        size *= 4
        candidates, stored = undecided, read(begin, size)
    for stream in () if compressed else streams:
        if _has_frame(stream.unseal(begin, stored[:_PIECE])):
            return stream
    number = f"none of the {len(streams)} keys" if len(streams) > 1 else "the only key"
    hint = "Add the right key. A file whose beginning is damaged fails in the same way: restore it from a backup."
    verb = "fits" if len(streams) > 1 else "does not fit"
    raise AuthenticationFailed(f"{number} of {AES_128} bytes in {ring.source} {verb}", hint=hint)


def _fits(plain: bytes, *, compressed: bool, max_size: int) -> bool | None:
    """Return whether bytes can be the beginning of a segment's data; None if more of them are needed."""
    if begins_frame(plain[:BEGIN_SIZE]):
        return True  # a draft does not say that it is compressed
    if compressed:
        return False
    if any(known in plain[:_PIECE] for known in _KNOWN):
        return True
    at = 0
    while frame.OVERHEAD < (size := frame.length(plain[at : at + 4])) <= max_size:
        if at + size > len(plain):
            return None
        if frame.is_whole(plain, at, max_size):
            return True
        if not frame.has_two_lengths(memoryview(plain)[at:], max_size):
            return False
        at += size  # of a damaged frame only the payload is wrong
    return False


def _has_frame(plain: bytes) -> bool:
    """Return whether a whole frame begins anywhere in bytes whose first length is damaged."""
    whole = memoryview(plain)
    places = range(len(plain) - frame.OVERHEAD)
    return any(frame.has_two_lengths(whole[at:], len(plain)) and frame.is_whole(plain, at, len(plain)) for at in places)
