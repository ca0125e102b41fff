"""The part of CBOR that Beats writes and reads correctly. It is slow: `payload` uses it where cbor2 does not fit.

Written: text, bytes, integers of 64 bits, floats of 64 bits, booleans, null, arrays, and maps with text as keys, all of
definite length. Beats misreads some negative integers in their shortest form: it casts the argument to a signed type of
the same width, so -129 becomes 127. These are written in the next wider form.
Read: the same, and floats of 16 and 32 bits, `undefined` as null, empty keys, and maps and arrays of indefinite length.
Text that is not valid UTF-8 is kept by `surrogateescape`.

Source: RFC 8949; elastic/go-structform, cborl (0.0.7 to 0.0.12).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from ondisk.errors import FrameCorrupt, InvalidInput, LimitExceeded, shown

_UNSIGNED, _NEGATIVE, BYTES, _TEXT, _ARRAY, MAP, _TAG = range(7)
_INDEFINITE, _BREAK = 31, b"\xff"
_NO_ENTRIES = (0x80, 0xA0)
_CONSTANTS = {0xF4: False, 0xF5: True, 0xF6: None, 0xF7: None}
_FLOATS = {0xF9: struct.Struct(">e"), 0xFA: struct.Struct(">f"), 0xFB: struct.Struct(">d")}
_DOUBLE = struct.Struct(">Bd")
_WIDTHS = [
    # smallest argument that does not fit, additional information, layout
    (1 << 8, 24, struct.Struct(">BB")),
    (1 << 16, 25, struct.Struct(">BH")),
    (1 << 32, 26, struct.Struct(">BI")),
    (1 << 64, 27, struct.Struct(">BQ")),
]


def encode(value: Any, *, max_depth: int, max_items: int) -> bytes:
    """Return the CBOR of a value, from which Beats reads the same; or raise InvalidInput or LimitExceeded."""
    parts: list[bytes] = []
    try:
        for part in _write(value, max_depth):
            parts.append(part)
            if len(parts) > max_items:
                raise LimitExceeded(f"more than {max_items} values and keys", limit=max_items)
    except RecursionError:
        raise too_deep() from None
    return b"".join(parts)


def decode(data: bytes, *, max_depth: int, max_items: int) -> Any:
    """Return the one value in `data`; raise FrameCorrupt, or LimitExceeded as `encode`."""
    decoder = _Decoder(data, max_items)
    try:
        value = decoder.value(max_depth)
    except RecursionError:
        raise too_deep() from None
    if decoder.at < len(data):
        decoder.fail(f"{len(data) - decoder.at} bytes follow the value")
    return value


def _write(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the bytes of a value, one item for each value and key in it."""
    kind = type(value)
    if kind is str:
        yield _text(value)
    elif kind is int:
        yield integer(value)
    elif kind is float:
        yield _DOUBLE.pack(0xFB, value)
    elif value is None:
        yield b"\xf6"
    elif kind is bool:
        yield b"\xf5" if value else b"\xf4"
    elif kind is bytes:
        yield head(BYTES, len(value)) + value
    elif depth <= 0:
        raise too_deep()
    elif kind is list or kind is tuple:
        yield head(_ARRAY, len(value))
        for item in value:
            yield from _write(item, depth - 1)
    elif isinstance(value, Mapping):
        yield head(MAP, len(value))
        for key in value:
            yield _key(key)
            yield from _write(value[key], depth - 1)
    else:
        raise InvalidInput(f"a segment cannot store a value of type {kind.__name__}")


def head(major: int, argument: int) -> bytes:
    """Return the bytes with which a value of a major type begins: `MAP` with a count, or `BYTES` with a length."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    _, info, layout = _WIDTHS[(argument > 0xFF) + (argument > 0xFFFF) + (argument > 0xFFFF_FFFF)]
    return layout.pack(major << 5 | info, argument)


def integer(value: int) -> bytes:
    if not -(2**63) <= value < 2**64:
        raise InvalidInput(f"{shown(value)} does not fit into 64 bits")
    if value >= 0:
        return head(_UNSIGNED, value)
    argument = -1 - value
    if argument < 24:
        return head(_NEGATIVE, argument)
    # Half of each width's range, so that its top bit is never set; see the module's docstring.
    info, layout = next((info, layout) for limit, info, layout in _WIDTHS if argument < limit // 2)
    return layout.pack(_NEGATIVE << 5 | info, argument)


def _text(value: str) -> bytes:
    try:
        raw = value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raw = b""
    # Escaped bytes that form valid UTF-8 together would be read back as a character.
    if raw.decode(errors="surrogateescape") != value:
        raise InvalidInput(f"text {shown(value)} contains a lone surrogate, which is not valid Unicode")
    return head(_TEXT, len(raw)) + raw


def _key(key: Any) -> bytes:
    if type(key) is not str:
        raise InvalidInput(f"a key must be text, not {type(key).__name__}")
    if not key:
        raise InvalidInput("a key is empty, which Beats cannot read")
    return _text(key)


class _Decoder:
    """Reads one value; `at` is the index of the next byte."""

    __slots__ = ("_data", "_left", "_limit", "at")

    def __init__(self, data: bytes, max_items: int) -> None:
        self._data = data
        self._limit = self._left = max_items
        self.at = 0

    def value(self, depth: int) -> Any:
        """Return the next value. Each level of nesting takes one frame of Python's stack, so no comprehension here."""
        self._left -= 1
        if self._left < 0:
            raise self._too_many()
        if self.at == len(self._data):
            self.fail("1 bytes should follow, but only 0 do")
        initial = self._data[self.at]
        self.at += 1
        if initial < 24:  # a shortcut for the values of which most fit into a payload
            return initial
        major, info = initial >> 5, initial & 31
        if initial in _NO_ENTRIES and depth > 0:
            return [] if major == _ARRAY else {}
        if major == _ARRAY:
            items: list[Any] = []
            for _ in self._turns(info, 1, depth):
                items.append(self.value(depth - 1))  # noqa: PERF401
            return items
        if major == MAP:
            content: dict[str, Any] = {}
            for _ in self._turns(info, 2, depth):
                key = self._key(content)
                content[key] = self.value(depth - 1)
            return content
        return self._leaf(initial, major, info)

    def _too_many(self) -> LimitExceeded:
        return LimitExceeded(f"more than {self._limit} values and keys", limit=self._limit)

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        raise FrameCorrupt(f"a payload is not an event: {reason}, at byte {at}", reason=reason, byte=at)

    def _fail_before(self, what: str) -> NoReturn:
        self.fail(f"it contains {what}", self.at - 1)

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            self.fail(f"{size} bytes should follow, but only {len(self._data) - self.at} do")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _argument(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            self._fail_before("an unknown or indefinite length")
        return int.from_bytes(self._take(1 << info - 24))

    def _leaf(self, initial: int, major: int, info: int) -> Any:
        if major > _TAG:
            return self._simple(initial)
        if major == _TAG:
            self._fail_before("a tag, which Beats never writes")
        argument = self._argument(info)
        if major == _UNSIGNED:
            return argument
        if major == _NEGATIVE:
            return -1 - argument
        content = self._take(argument)
        return content if major == BYTES else content.decode(errors="surrogateescape")

    def _simple(self, initial: int) -> Any:
        if initial in _CONSTANTS:
            return _CONSTANTS[initial]
        if initial in _FLOATS:
            layout = _FLOATS[initial]
            return layout.unpack(self._take(layout.size))[0]
        return self._fail_before(f"the simple value {initial:#04x}")

    def _key(self, content: dict[str, Any]) -> str:
        begin = self.at
        key = self.value(0)
        if type(key) is not str:
            self.fail("a key is not text", begin)
        if key in content:
            self.fail(f"the key {shown(key)} occurs twice", begin)
        return key

    def _turns(self, info: int, size: int, depth: int) -> Iterable[object]:
        """Iterate once for each entry of an array or map; an entry has at least `size` bytes."""
        if depth <= 0:
            raise too_deep()
        if info == _INDEFINITE:
            return iter(self._at_break, True)
        count, left = self._argument(info), len(self._data) - self.at
        if count * size > left:
            self.fail(f"{count} entries should follow, but only {left} bytes do")
        if count * size > self._left:
            raise self._too_many()
        return range(count)

    def _at_break(self) -> bool:
        if self._data[self.at : self.at + 1] != _BREAK:
            return False
        self.at += 1
        return True


def too_deep() -> LimitExceeded:
    return LimitExceeded(
        "nested deeper than max_depth allows", hint="Raise max_depth in dataset.toml; 500 is the most."
    )
