"""The native format: segments of the Beats disk queue, one datum for each event.

    header | frame | frame | …                                  plain
    header | LZ4 frame header | block | block | …               compressed; in the blocks: frame | frame | …

A datum is one whole frame; its offset counts decompressed bytes, including those of the header. Reftime is the event's
timestamp, metadata is its `meta`, data is its `fields`; `payload` describes their values. Every append updates the
frame count in the header, if there is one. `docs/seg.md` describes each byte.

The configuration chooses version and payloads of new segments. Files from outside may have others, and other kinds of
LZ4. Their frames are stored unchanged if their payloads are of the same kind; otherwise the events are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from ondisk import frame
from ondisk.config import MAX_DEPTH, DatasetConfig
from ondisk.datum import EPOCH, MICROSECOND, Datum
from ondisk.errors import RESTORE, ConfigError, FrameCorrupt, InvalidInput, SegmentCorrupt, StateError
from ondisk.formats.base import (
    BATCH_BYTES,
    MOVE,
    Batch,
    Chained,
    FileStream,
    Format,
    JoinsParts,
    Loaded,
    Readable,
    is_zeros,
    read_fully,
    sifted,
)
from ondisk.formats.diskqueue import begin_and_end, blocks, cbor_payload, draft_versions, encryption, header, payload
from ondisk.formats.diskqueue.frame_reader import FrameReader, Place, batches
from ondisk.formats.diskqueue.payload import Event
from ondisk.formats.metadata import Declared, OncePerMapping, without
from ondisk.frame import Scan
from ondisk.segment import Block, Damage, End, Laid, Patch, ScanResult, Sealer, SegmentFile
from ondisk.step import inner_of

_NANOSECONDS = 1000  # in a microsecond
_NOTHING = None, None
_MAX_COUNT = 2**32 - 1


class Seg(Format, JoinsParts):
    name: ClassVar[str] = "seg"
    encrypts: ClassVar[bool] = True
    has_checksums: ClassVar[bool] = True
    block_size: ClassVar[int] = blocks.LARGEST_BLOCK_SIZE
    mutable: ClassVar[range] = range(header.COUNT_OFFSET, header.COUNT_OFFSET + header.COUNT.size)

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if config.encryption != "none" and config.format == self.name:
            encryption.check_installed()
        self._seals = config.encryption == "aes-256-gcm"
        self._header = begin_and_end.chosen(config)
        self._kind = payload.Kind.of(self._header)
        plain = self._header.version if self._header.version < header.VERSION else header.VERSION
        self.preamble = header.Header(plain, options=self._header.options & header.PROTOBUF).pack()
        self._declared = Declared(config.fields)
        self._described: tuple[bytes | None, Event | None] = _NOTHING
        self._metas = OncePerMapping(self._meta)
        self.joins_parts = self._kind is payload.Kind.CBOR

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        try:
            found = header.Header.parse(head)
        except (InvalidInput, SegmentCorrupt):
            return False
        if found.version == 0:
            return len(head) > found.size + begin_and_end.LENGTH and begin_and_end.begins_with_json(head)
        return found.version == header.VERSION or len(head) > found.size

    @property
    def undeclared(self) -> bool:
        return True

    def parse(self, stream: Readable, batch_size: int) -> Iterator[Batch]:
        """Yield the frames of a segment, unchanged if of the dataset's kind; at least those before damage."""
        try:
            frames = self.frames(stream)
        except SegmentCorrupt as error:
            if error.context["offset"]:
                yield Batch(damage=[Damage(0, error.context["offset"], error.context["reason"])])
            return
        counted = frames.header.frame_count
        for batch, _ in batches(frames, self.add, batch_size, Place(), counted=counted):
            yield batch

    def frames(self, stream: Readable) -> FrameReader:
        """Return a reader of the frames of a segment's file, from its first byte on.

        Raises SegmentCorrupt if it ends inside the header, with its size as `offset`, and a `reason`; or InvalidInput.
        """
        head = read_fully(stream, header.MAX_SIZE)

        def read(position: int, size: int) -> bytes:
            nonlocal head
            head += read_fully(stream, min(position + size, begin_and_end.SEARCHED) - len(head))
            return head[position : position + size]

        found = self._header_in(head, read)
        rest = Chained(head[found.size :], stream)
        plain, opener = encryption.decrypted(rest, found, max_size=self.config.max_datum_size)
        if found.draft:
            begin = read_fully(plain, blocks.BEGIN_SIZE)
            found, plain = draft_versions.with_stream(found, begin), Chained(begin, plain)
        return self.frames_at(plain, found, found.logical_size, opener)

    def _header_in(self, head: bytes, read: Callable[[int, int], bytes]) -> header.Header:
        return draft_versions.header_of(head, read, max_size=self.config.max_datum_size)

    def frames_at(
        self, stream: Readable, found: header.Header, offset: int, opener: encryption.Frames | None = None
    ) -> FrameReader:
        """Return a reader of frames from a logical offset on; of compressed ones, only from the first on."""
        limit, position = self.config.max_datum_size, offset + found.size - found.logical_size
        return FrameReader(stream, found, max_size=limit, position=position, offset=offset, opener=opener)

    def scan(self, file: SegmentFile) -> Iterator[ScanResult]:
        """Yield the frames of a segment; damage is skipped if the beginning of the next frame is known."""
        try:
            head = self._header_in(file.read(0, header.MAX_SIZE), file.read)
        except (InvalidInput, SegmentCorrupt) as error:
            yield ScanResult(damage=[Damage(0, file.size(), error.message)])
            return
        if head.version == 0 and not begin_and_end.has_json(file):
            yield ScanResult(damage=[Damage(0, file.size(), begin_and_end.NO_JSON)])
            return
        limit, most = self.config.max_datum_size, BATCH_BYTES + self.config.max_datum_size
        file, opener = encryption.opened(file, head, max_size=limit)
        head = draft_versions.with_stream(head, file.read(head.size, blocks.BEGIN_SIZE))
        stream, size = FileStream(file, head.size), head.size
        frames = FrameReader(stream, head, max_size=limit, position=size, offset=size, keeps_blocks=True, opener=opener)
        end = End(size, size, 0, head.compressed, head.kind)
        damage: list[Damage] = []
        last, is_whole = 0, True  # if not whole, nothing of the rest is cut off
        kinds: set[payload.Kind | None] = {payload.Kind.of(head)}

        def is_end(fault: frame.Fault) -> bool:
            nonlocal is_whole
            is_whole = file.size() - end.size <= most and begin_and_end.is_torn(frames, file, most)
            return is_whole

        for scanned in frames.with_damage(is_end):
            if isinstance(scanned, Damage):
                damage.append(scanned)
                continue
            read = frames.take_blocks()
            last = max([last, *(block.position for block in read)])
            end = end._replace(size=frames.position() or end.size, length=frames.offset, count=frames.count)
            kinds |= payload.kinds_in(scanned.payloads) - {None}
            found = self._found(scanned, read, damage, end)
            found.in_place = frames.in_place
            found.foreign = not found.in_place
            yield found
            damage = []
        size = frames.sealed_at or frames.position() or end.size
        end = end._replace(size=size if is_whole else file.size(), length=frames.offset, count=frames.count)
        if not head.compressed:
            end = end._replace(length=end.size)
        # An append continues neither the LZ4 frame of another program, nor payloads of a kind that the header denies.
        foreign = (
            head.draft
            or len(kinds) > 1
            or (head.compressed and not (frames.continuable or last < (frames.sealed_at or 0)))
        )
        missing = max(0, head.frame_count - frames.count - frames.passed)
        read, in_place = frames.take_blocks(), frames.in_place
        yield ScanResult(blocks=read, damage=damage, end=end, foreign=foreign, in_place=in_place, missing=missing)

    def is_empty(self, file: SegmentFile) -> bool:
        return begin_and_end.is_begun(file, self.begin().content)

    def is_readable(self, file: SegmentFile) -> bool:
        if super().is_readable(file):
            return True
        try:
            return self._header_in(file.read(0, header.MAX_SIZE), file.read).draft
        except (InvalidInput, SegmentCorrupt):
            return False

    def sealer(self, file: SegmentFile, name: str | None, end: End | None = None) -> Sealer | None:
        limit = self.config.max_datum_size
        try:
            head = draft_versions.header_of(file.read(0, header.MAX_SIZE), file.read, max_size=limit)
        except (InvalidInput, SegmentCorrupt):
            return None  # whoever reads its data reports what is wrong
        sealer = encryption.sealer_of(head, file.read, name and inner_of(name), max_size=limit)
        if end is not None and isinstance(sealer, encryption.Frames):
            sealer.check_key(file.read, end.size, max_size=limit)
        return sealer

    def new_sealer(self, begun: bytes, name: str) -> Sealer | None:
        head = header.Header.parse(begun)
        return encryption.sealer_of(head, lambda _position, _size: b"", inner_of(name), max_size=0)

    def begin_staged(self) -> tuple[bytes, Sealer | None]:
        if self.config.encryption == "none":
            return b"", None
        return encryption.begin_staged(gcm=self._seals)

    def staged_sealer(self, file: SegmentFile) -> Sealer | None:
        if self.config.encryption == "none":
            return None
        return encryption.staged_sealer(file.read(0, encryption.STAGED_SIZE))

    def found(self, end: End) -> End:
        head = header.Header.of_kind(end.kind)
        is_stream = head.encrypted and head.version != header.ONDISK
        return end._replace(kind=end.kind | header.FOUND) if is_stream else end

    def may_continue(self, opened: Callable[[], SegmentFile], end: End, *, is_exact: bool) -> bool:
        """Also false if new data would not be encrypted as the configuration says."""
        try:
            head = header.Header.parse(opened().read(0, header.MAX_SIZE))
        except (InvalidInput, SegmentCorrupt):
            return True  # `resume` reports what is wrong
        if (head.version == header.ONDISK) != self._seals:
            return False
        if head.encrypted and not self._seals:
            return is_exact and not end.kind & header.FOUND
        return head.encrypted or self.config.encryption == "none"

    def first_offset(self, end: End) -> int:
        return header.Header.of_kind(end.kind).size

    def ends(self, tail: bytes, size: int) -> bool:
        return frame.length(tail) == size  # a frame has its length at both ends

    def seal(self, end: End) -> bytes:
        # Encrypted, it would take the place of the next block in the keystream.
        is_ended = end.compressed and not header.Header.of_kind(end.kind).encrypted
        return blocks.END_MARK if is_ended else b""

    def encode(self, data: Sequence[Datum]) -> Batch:
        reftimes = [(datum.reftime - EPOCH) // MICROSECOND for datum in data]
        return self.encode_columns(reftimes, [datum.metadata for datum in data], [datum.data for datum in data])

    def encode_columns(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], data: Sequence[Any]
    ) -> Batch:
        def encoded(some: slice) -> Batch:
            given, times = metadata[some], [*reftimes[some]]
            canonical = self._declared.of(given, from_frame=False)
            stamps, depth = [reftime * _NANOSECONDS for reftime in times], self.config.max_depth
            payloads = payload.encode(stamps, given, data[some], kind=self._kind, max_depth=depth)
            return Batch(times, canonical, self._framed(payloads))

        return sifted(encoded, slice(0, len(data)))

    def content_part(self, key: str, value: Any) -> bytes:
        return cbor_payload.field_part(key, value, self.config.max_depth)

    def encode_parts(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[bytes]]
    ) -> Batch:
        timestamps = [reftime * _NANOSECONDS for reftime in reftimes]
        metas = self._metas.of(metadata)
        payloads = cbor_payload.joined(timestamps, [meta for _, meta in metas], parts)
        return Batch([*reftimes], [canonical for canonical, _ in metas], self._framed(payloads))

    def _meta(self, metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        """Return metadata as canonical values, and as they are in a payload."""
        canonical = self._declared.one(metadata, from_frame=False)
        return canonical, cbor_payload.meta_part(metadata, self.config.max_depth)

    def decode(self, payload: bytes) -> Any:
        return self.load([payload]).data[0]

    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        event = self._event(payload)
        self._described = payload, event
        try:
            return event.timestamp // _NANOSECONDS, self._declared.one(event.meta, from_frame=True)
        except InvalidInput as error:
            raise FrameCorrupt(f"not an event: {error.message}") from None

    def load(self, payloads: Sequence[bytes]) -> Loaded:
        declared = self.config.fields.keys()
        if len(payloads) == 1:
            # A caller that reads one datum calls `describe` first. The pair is set at once, so threads may share it. It
            # is removed here, so that no other caller gets the same mapping.
            (described, event), self._described = self._described, _NOTHING
            if described is not payloads[0] or event is None:
                event = self._event(payloads[0])
            alone = None if event.meta.keys() <= declared else [without(event.meta, declared)]
            return Loaded([event.data], alone, [event.timestamp // _NANOSECONDS])
        try:
            columns = payload.decode(encryption.events_of(frame.decode_many(payloads)), max_depth=MAX_DEPTH)
        except (FrameCorrupt, InvalidInput) as error:
            raise _corrupt(error) from None
        undeclared = None
        if not set().union(*columns.metas) <= declared:
            undeclared = [without(meta, declared) for meta in columns.metas]
        reftimes = [timestamp // _NANOSECONDS for timestamp in columns.timestamps]
        return Loaded(columns.data(), undeclared, reftimes)

    def verify(self, payloads: Sequence[bytes]) -> None:
        frame.decode_many(payloads)

    def exported(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        if not payloads or payloads[0][frame.BEGIN] != encryption.SEALABLE:
            return payloads
        return frame.encode(list(map(bytes, encryption.events_of(frame.decode_many(payloads)))))

    def received(self, payloads: Sequence[bytes], beside: Sequence[bytes]) -> Batch:
        def imported(some: slice) -> Batch:
            frames = [*payloads[some]]
            return self._imported(frames, frame.decode_many(frames), is_new=False, max_depth=MAX_DEPTH)

        return sifted(imported, slice(0, len(payloads)))

    def begin(self) -> Laid:
        return begin_and_end.begun(self._header)

    def begin_for_all(self) -> Laid:
        chosen = self._header
        return begin_and_end.begun(replace(chosen, version=chosen.version or header.VERSION,
                              options=chosen.options & ~header.PROTOBUF))  # fmt: skip

    @classmethod
    def stored(cls, end: End) -> dict[str, int | str]:
        found = header.Header.of_kind(end.kind)
        return replace(found, options=found.options | header.LZ4 * end.compressed).stored

    def why_rewritten(self, end: End) -> str | None:
        is_encrypted = header.Header.of_kind(end.kind).encrypted
        end = end._replace(kind=end.kind & ~header.FOUND)
        return super().why_rewritten(end) or ("it is encrypted again, with the newest key" if is_encrypted else None)

    def is_exposed(self, end: End) -> bool:
        return self._header.encrypted and not header.Header.of_kind(end.kind).encrypted

    def refit(self, payloads: Sequence[bytes], kind: int) -> tuple[list[bytes], dict[int, str]]:
        target = header.Header.of_kind(kind)
        try:
            events = encryption.events_of(frame.decode_many(payloads))
            return _framed(payload.convert(events, payload.Kind.of(target), max_depth=MAX_DEPTH), target), {}
        except InvalidInput as error:
            if len(payloads) == 1:
                return [*payloads], {0: error.message}
        except FrameCorrupt as error:
            raise _corrupt(error) from None
        fitted: list[bytes] = []
        reasons: dict[int, str] = {}
        for begin in range(0, len(payloads), step := -(-len(payloads) // 2)):
            some, refused = self.refit(payloads[begin : begin + step], kind)
            fitted += some
            reasons.update((begin + place, reason) for place, reason in refused.items())
        return fitted, reasons

    def resume(self, file: SegmentFile, end: End) -> Laid:
        """Find the last whole frame after `end`; reads and decompresses all of that."""
        if not end.size and self.is_empty(file):
            return self.begin()
        limit = BATCH_BYTES + self.config.max_datum_size  # no crash leaves more after the last whole frame
        file = begin_and_end.decrypted(file, self.config.max_datum_size)
        if end.size:
            found = header.Header.of_kind(end.kind)
            found = replace(found, options=found.options | header.LZ4 * end.compressed)
            before, position, offset = blocks.FRAME_HEADER * end.compressed, end.size, end.length
        else:
            found = begin_and_end.header_of(file)
            before, position, offset = b"", found.size, found.size
        stream, position = Chained(before, FileStream(file, position)), position - len(before)
        frames = FrameReader(stream, found, max_size=limit, position=position, offset=offset, keeps_blocks=True)
        for _ in frames:
            pass
        sealed = frames.sealed_at
        if sealed is not None and is_zeros(file, sealed):
            # An end mark and nothing else, or zeros that a power cut left in place of blocks not yet written.
            new_end: int | None = sealed if frames.rest(limit) == b"" else None
        elif frames.damage is not None and not begin_and_end.is_torn(frames, file, limit):
            reason = f"damage at byte {frames.damage.offset}: {frames.damage.reason}; it is more than a torn end"
            hint = f"{RESTORE}." if end.size else MOVE
            raise SegmentCorrupt(reason, hint=hint, offset=frames.damage.offset)
        else:
            new_end = frames.position() if frames.continuable else None
        if new_end is None:
            reason = "its LZ4 frame cannot be continued before a repack: it is sealed, or not written by ondisk"
            raise StateError(reason, hint="`ondisk check` reports whether fix or repack rewrites it.")
        # A higher count in the header may prove that frames are lost. A fix reports them; an append must not hide them.
        written = file.read(header.COUNT_OFFSET, header.COUNT.size) if found.counted else b""
        count = max(end.count + frames.count, int.from_bytes(written, "little"))
        return Laid(b"", End(new_end, frames.offset, count, found.compressed, found.kind), frames.take_blocks())

    def lay(self, payloads: Sequence[bytes], end: End) -> Laid:
        laid: list[Block] = []
        pieces = payloads
        if end.compressed:
            packed = blocks.pack(payloads, end.length)
            pieces = [block.stored for block in packed]
            positions = accumulate(map(len, pieces), initial=end.size)
            laid = [Block(block.offset, at, len(block.stored)) for block, at in zip(packed, positions, strict=False)]
        content = b"".join(pieces)
        count = end.count + len(payloads)
        new_end = end._replace(size=end.size + len(content), length=end.length + sum(map(len, payloads)), count=count)
        return Laid(content, new_end, laid)

    def patch(self, end: End) -> Patch | None:
        is_counted = header.Header.of_kind(end.kind).counted
        return Patch(header.COUNT_OFFSET, header.COUNT.pack(min(end.count, _MAX_COUNT))) if is_counted else None

    def unpack(self, stored: memoryview) -> bytes:
        return blocks.unpack(stored, max_size=blocks.LARGEST_BLOCK_SIZE)

    def packed(self, data: bytes) -> bytes:
        return blocks.compress(data)

    def add(self, batch: Batch, scanned: Scan, begin: int, end: int) -> int:
        """Add frames to a batch and return their size in bytes. Only frames without a valid event are refused."""
        frames, payloads = scanned.frames(begin, end), scanned.payloads[begin:end]
        is_new, depth = scanned.decrypted, self.config.max_depth

        def imported(some: slice) -> Batch:
            return self._imported(frames[some], payloads[some], is_new=is_new, max_depth=depth)

        batch.extend(
            sifted(imported, slice(0, len(frames)), lambda at: f"frame at byte {scanned.offsets[begin + at]}: ")
        )
        return sum(map(len, frames))

    def _imported(
        self, frames: list[bytes], payloads: Sequence[payload.Buffer], *, is_new: bool, max_depth: int
    ) -> Batch:
        """Return a batch of frames; those of another kind, or that were encrypted (`is_new`), are written again."""
        if payload.kinds_in(payloads) != {self._kind}:
            payloads = payload.convert(payloads, self._kind, max_depth=max_depth)
            is_new = True
        if is_new or self._seals:
            frames = self._framed(list(map(bytes, payloads)))
        columns = payload.decode(payloads, max_depth=max_depth, data=False)
        metadata = self._declared.of(columns.metas, from_frame=True)
        return Batch([timestamp // _NANOSECONDS for timestamp in columns.timestamps], metadata, frames)

    def _framed(self, payloads: Sequence[bytes]) -> list[bytes]:
        frames = _framed(payloads, self._header)
        self.check_size(max(frames, key=len, default=b""))
        return frames

    def _found(self, scanned: Scan, read: list[Block], damage: list[Damage], end: End) -> ScanResult:
        """Describe frames of a segment. A frame without a valid event is damage."""

        def described(some: slice) -> Batch:
            columns = payload.decode(scanned.payloads[some], max_depth=MAX_DEPTH, data=False)
            metadata = self._declared.of(columns.metas, from_frame=True)
            reftimes = [timestamp // _NANOSECONDS for timestamp in columns.timestamps]
            return Batch(reftimes, metadata, [b""] * len(reftimes))  # the bytes of the data are not wanted

        offsets, batch = scanned.offsets, sifted(described, slice(0, len(scanned.payloads)))
        sizes = [end - begin for begin, end in pairwise((*offsets, scanned.end))]
        if batch.refused:
            damage += [Damage(offsets[at], sizes[at], reason) for at, reason in batch.refused]
            kept = batch.positions()
            offsets, sizes = [offsets[at] for at in kept], [sizes[at] for at in kept]
        return ScanResult(offsets, sizes, batch.reftimes, batch.metadata, read, damage, end)

    def _event(self, stored: bytes) -> Event:
        try:
            return payload.decode_one(frame.decode(stored), max_depth=MAX_DEPTH)
        except (FrameCorrupt, InvalidInput) as error:
            raise _corrupt(error) from None


class SegDraft(Seg):
    """Reads segments of version 2 as the draft of that version, whatever their bytes look like."""

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if config.format != self.name and config.format == "seg-draft":
            raise ConfigError("a dataset cannot have the format seg-draft", hint='Write format = "seg".')

    def _header_in(self, head: bytes, read: Callable[[int, int], bytes]) -> header.Header:
        return header.Header.parse(head, draft=True)


def _framed(payloads: Sequence[bytes], chosen: header.Header) -> list[bytes]:
    return frame.encode(encryption.sealable(payloads) if chosen.version == header.ONDISK else payloads)


def _corrupt(error: FrameCorrupt | InvalidInput) -> FrameCorrupt:
    return FrameCorrupt(error.message, hint=error.hint, position=error.context.get("position", 0))
