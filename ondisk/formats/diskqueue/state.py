"""The file `state.dat` of a queue: where its consumer continues.

    version 0 (20 bytes)    u32 version = 0 | u64 segment | u64 offset
    version 1 (28 bytes)    u32 version = 1 | u64 segment | u64 byte index | u64 frame index

All integers are little-endian. They name the oldest event that the consumer has not acknowledged: a segment, `17` for
`17.seg`, and a place in it. Beats before 7.14 writes version 0, every later Beat version 1.

A byte index is a logical offset, as the index of a dataset has them: the bytes of the header, then those of the frames
before the event, decompressed and decrypted. The IV of an encrypted segment counts in neither.

    segments            the first frame is at
    version 0           4
    version 1           8
    version 2           12, plain, with LZ4 (0x2), encrypted (0x1) and with protobuf (0x4)
    drafts 2 and 3      4: they have nothing but a version before the IV

So the consumer must decompress a segment from its beginning to find a byte index in it. The offset of version 0 counts
the frames only: the first is at 0. A frame index counts the frames before the event. If it is 0, the event is the first
of its segment, whatever the byte index is. Version 0 has no frame index, so a newer Beat that finds a file of version 0
reads its segment from the beginning.

Beats writes the file in place, in four pieces and without a checksum: after a crash, its numbers may be of two
positions. An empty file, as Beats creates it, means the same as none: nothing was acknowledged. With a file that is too
short, or of a newer version, Beats begins at its oldest segment.

Source: elastic/beats, libbeat/publisher/queue/diskqueue/state_file.go (version 0 of 7.10, version 1 of 7.14 to 9.x).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ondisk.errors import InvalidInput
from ondisk.filesystem import Directory

NAME = "state.dat"
"""The name of the file in the folder of a queue."""

VERSION = 1
"""The version that ondisk writes to a queue without the file."""

MAX_NUMBER = 2**64 - 1
"""The largest number that the file can contain."""

_VERSION = struct.Struct("<I")
_LAYOUTS = {0: struct.Struct("<IQQ"), 1: struct.Struct("<IQQQ")}

SIZE = _LAYOUTS[VERSION].size
"""Bytes of the largest version; what follows them means nothing."""


@dataclass(frozen=True, slots=True)
class State:
    """The position of the oldest event that was not acknowledged."""

    segment: int = 0  # the number of its segment
    byte_index: int = 0  # its logical offset; in version 0 without the header
    frame_index: int = 0  # the number of frames before it in the segment; always 0 in version 0
    version: int = VERSION  # of the file

    @classmethod
    def read(cls, queue: Directory) -> State | None:
        """Return the position in the folder of a queue; None if nothing was acknowledged; raise as `parse`."""
        try:
            content = queue.open_to_read(NAME).read(0, SIZE)
        except FileNotFoundError:
            return None
        try:
            return cls.parse(content)
        except InvalidInput as error:
            raise InvalidInput(f"{queue.at(NAME)}: {error.message}", hint=error.hint, **error.context) from None

    def write(self, queue: Directory) -> None:
        """Replace the file of a queue; it keeps its owner and permissions, so that Beats can still write to it.

        Durability: writes `.state.dat.new`, syncs it, renames it, syncs the folder. A crash leaves the old position or
            the new one, and perhaps `.state.dat.new`, which Beats ignores and the next call removes.
        """
        queue.replace(NAME, self.pack(), like=queue.regular_file(NAME))

    @classmethod
    def parse(cls, content: bytes) -> State | None:
        """Return the position in a `state.dat`; None if that is empty; raise InvalidInput of another version."""
        if not content:
            return None
        if len(content) < _VERSION.size:
            raise _unreadable(f"it has {len(content)} bytes")
        (version,) = _VERSION.unpack_from(content)
        layout = _LAYOUTS.get(version)
        if layout is None:
            raise _unreadable(f"it is of version {version}", version=version)
        if len(content) < layout.size:
            raise _unreadable(f"it has {len(content)} of the {layout.size} bytes of version {version}")
        _, segment, byte_index, *frame_index = layout.unpack_from(content)
        return cls(segment, byte_index, frame_index[0] if frame_index else 0, version)

    def pack(self) -> bytes:
        """Return the content of `state.dat`; raise InvalidInput without such a version, or of a large number."""
        layout = _LAYOUTS.get(self.version)
        if layout is None:
            raise InvalidInput(f"state.dat has no version {self.version}")
        numbers = (self.segment, self.byte_index, self.frame_index)[: 3 if self.version else 2]
        if not all(0 <= number <= MAX_NUMBER for number in numbers):
            raise InvalidInput(f"state.dat cannot contain the position {numbers}")
        return layout.pack(self.version, *numbers)

    def offset(self, begin: int) -> int:
        """Return the logical offset of the event in its segment, whose first frame is at `begin`."""
        if self.version == 0:
            return begin + self.byte_index
        return max(begin, self.byte_index) if self.frame_index else begin


def _unreadable(reason: str, **context: int) -> InvalidInput:
    hint = "Beats begins at the oldest segment of such a queue."
    return InvalidInput(f"{NAME} cannot be read: {reason}", hint=hint, reason=reason, **context)
