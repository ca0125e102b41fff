"""Records: the changes that a source sends to a replica, with the data as bytes, and how they travel.

    magic              4   "ODR1": the layout
    size of the head   4
    head                   CBOR, see `_HEAD`
    columns                numbers of 8 bytes each, one column after the other:
                           the first numbers and the ids of the sessions
                           for each group: the numbers of its data, their sizes; and the sizes of what is beside them
                           the numbers of deletions, their targets, their kinds
                           the numbers of data that cannot be read
    contents               for each group: its data one after the other; what is beside them
    reasons                why data cannot be read, UTF-8, a line for each
    checksum           4   CRC-32C of all bytes before

Integers are little-endian. The data of a group have one format: they are what `Format.exported` returns, so neither
encrypted nor compressed. Reftimes and metadata do not travel: whoever receives the data reads them from their bytes,
and so verifies them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import lt
from typing import Any, NoReturn

from google_crc32c import extend

from ondisk.batched import batched
from ondisk.errors import FrameCorrupt, IntegrityError, InvalidInput
from ondisk.formats.diskqueue import cbor
from ondisk.index.changes import OWN
from ondisk.replication.feed import Kind, Lag
from ondisk.replication.token import NO_COMPARISON, UUID, Token
from ondisk.replication.validation import COUNT, Shape, fits

HIGHEST = OWN  # no change has this number or a higher one
LARGEST = 4 * 1024**3  # bytes of records, at most
_NO_LAG = Lag(0, 0)
_MAGIC = b"ODR1"
_SIZE = struct.Struct("<I")
_NUMBER = 8  # bytes
_ITEMS = 64 * 1024  # values in a head
_PIECE = 1024 * 1024
_KINDS = (Kind.DELETED, Kind.LOST, Kind.AGED)
_HEAD: Mapping[str, Shape] = {
    "token": (UUID, COUNT, range(HIGHEST), range(NO_COMPARISON, HIGHEST), bytes),
    "lag": (COUNT, COUNT),  # changes, bytes
    "groups": [(str, COUNT, COUNT, bool, COUNT)],  # format, data, their bytes; is something beside them, its bytes
    "deletions": COUNT,  # deletions, sessions: how many
    "sessions": COUNT,
    "unreadable": (COUNT, COUNT),  # how many, and bytes of the reasons
}
"""The head, a mapping in CBOR. The token: UUID of the dataset, session, offset, index start, key."""


@dataclass(frozen=True, slots=True)
class Group:
    """New data of one format, in the order of their numbers, in columns."""

    format: str  # its name
    seqs: Sequence[int]  # their numbers
    payloads: Sequence[bytes]  # their bytes
    beside: Sequence[bytes] = ()  # the bytes stored next to each; empty unless the format stores a file for each datum

    def without(self, seqs: Collection[int]) -> Group:
        kept = [place for place, seq in enumerate(self.seqs) if seq not in seqs]
        columns = [[column[place] for place in kept if column] for column in (self.payloads, self.beside)]
        return Group(self.format, [self.seqs[place] for place in kept], *columns)


@dataclass(frozen=True, slots=True)
class Records:
    token: Token  # covers these changes, too
    lag: Lag = _NO_LAG  # what is left
    groups: Sequence[Group] = ()  # new data, by format
    deletions: Sequence[tuple[int, int, Kind]] = ()  # number, number of the datum, and why it is gone
    unreadable: Sequence[tuple[int, str]] = ()  # number and reason of new data that cannot be read at the source
    # those that gave out the numbers that the token covers now and did not before: first number, id
    sessions: Sequence[tuple[int, int]] = ()

    @property
    def count(self) -> int:
        return sum(len(group.seqs) for group in self.groups) + len(self.deletions) + len(self.unreadable)

    @property
    def numbers(self) -> list[Sequence[int]]:
        """The numbers of the changes, which ascend in each of these columns; none is empty."""
        columns = [*(group.seqs for group in self.groups), [seq for seq, _, _ in self.deletions],
                   [seq for seq, _ in self.unreadable]]  # fmt: skip
        return [each for each in columns if each]

    @property
    def size(self) -> int:
        return sum(sum(map(len, column)) for group in self.groups for column in (group.payloads, group.beside))


def encode(records: Records) -> tuple[int, Iterator[bytes]]:
    """Return records as bytes: how many these are, and what yields them, some at a time."""
    token, reasons = records.token, "\n".join(" ".join(reason.split()) for _, reason in records.unreadable)
    told = reasons.encode(errors="replace")
    sizes = [([*map(len, group.payloads)], [*map(len, group.beside)]) for group in records.groups]
    head = {
        "token": [token.dataset, token.session, token.offset, token.index_start, token.key],
        "lag": [*records.lag],
        "groups": [
            [group.format, len(group.seqs), sum(own), len(group.beside) > 0, sum(beside)]
            for group, (own, beside) in zip(records.groups, sizes, strict=True)
        ],
        "deletions": len(records.deletions),
        "sessions": len(records.sessions),
        "unreadable": [len(records.unreadable), len(told)],
    }
    begin = cbor.encode(head, max_depth=4, max_items=_ITEMS)
    columns: list[Iterable[int]] = [*zip(*records.sessions, strict=True)]
    for group, (own, beside) in zip(records.groups, sizes, strict=True):
        columns += [group.seqs, own] + [beside] * (len(beside) > 0)
    columns += zip(*((seq, target, _KINDS.index(kind)) for seq, target, kind in records.deletions), strict=True)
    columns.append(seq for seq, _ in records.unreadable)
    first = b"".join((_MAGIC, _SIZE.pack(len(begin)), begin, *map(packed, columns)))
    contents = (column for group in records.groups for column in (group.payloads, group.beside))
    joined = (b"".join(some) for column in contents for some in batched(column, len, _PIECE))
    pieces = chain((first,), joined, (told,))
    return len(first) + records.size + len(told) + _SIZE.size, _with_checksum(pieces)


def _with_checksum(pieces: Iterable[bytes]) -> Iterator[bytes]:
    checksum = 0
    for piece in filter(None, pieces):  # in HTTP, an empty piece is the end
        checksum = extend(checksum, piece)
        yield piece
    yield _SIZE.pack(checksum)


def decode(content: bytes) -> Records:
    """Return the records that bytes are; raise IntegrityError if they have something else: then nothing counts.

    Memory: as much again. A length that promises more than there is allocates nothing.
    """
    if not content.startswith(_MAGIC):
        _fail("they begin with other bytes: another version of ondisk sent them, or another program")
    end, checksum = len(content) - _SIZE.size, 0
    for begin in range(0, end, _PIECE):
        checksum = extend(checksum, content[begin : min(end, begin + _PIECE)])
    if end < 0 or content[end:] != _SIZE.pack(checksum):
        _fail("their checksum is wrong")
    at = _Cursor(content, len(_MAGIC), end)
    head = _read_head(at.take(*_SIZE.unpack(at.take(_SIZE.size))))
    firsts, ids = at.numbers(head["sessions"]), at.numbers(head["sessions"])
    columns = [[at.numbers(count) for _ in range(2 + is_beside)] for _, count, _, is_beside, _ in head["groups"]]
    deletions = [at.numbers(head["deletions"]) for _ in range(3)]
    unreadable = at.numbers(head["unreadable"][0])
    groups = []
    for (format, _, *totals), (seqs, *sizes) in zip(head["groups"], columns, strict=True):
        parts = [at.contents(total, each) for total, each in zip(totals[::2], sizes, strict=False)]
        groups.append(Group(format, _ascending(seqs, least=1), *parts))
    reasons = at.take(head["unreadable"][1])
    if at.left:
        _fail("bytes follow them")
    records = Records(
        Token(*head["token"]),
        Lag(*head["lag"]),
        groups,
        _deletions(*deletions),
        _unreadable(unreadable, reasons),
        [*zip(_ascending(firsts, least=0), ids, strict=True)],
    )
    _check_numbers(records)
    return records


def packed(numbers: Iterable[int]) -> bytes:
    column = array("q", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpacked(content: bytes) -> array[int]:
    column = array("q")
    column.frombytes(content)
    if sys.byteorder == "big":
        column.byteswap()
    return column


class _Cursor:
    """Reads what a length promises, as far as it is there."""

    def __init__(self, content: bytes, begin: int, end: int) -> None:
        self._content = content
        self._begin = begin
        self._end = end

    @property
    def left(self) -> int:
        return self._end - self._begin

    def _advance(self, size: int) -> int:
        """Return where the next bytes begin, which are taken."""
        if size > self.left:
            _fail(f"they end early: {size} bytes more, and {self.left} are left")
        self._begin += size
        return self._begin - size

    def take(self, size: int) -> bytes:
        begin = self._advance(size)
        return self._content[begin : begin + size]

    def numbers(self, count: int) -> array[int]:
        return unpacked(self.take(_NUMBER * count))

    def contents(self, total: int, sizes: array[int]) -> list[bytes]:
        """Return data with some sizes, which have so many bytes together."""
        if min(sizes, default=0) < 0 or sum(sizes) != total:
            _fail("the sizes of their data are not those of their bytes")
        ends = accumulate(sizes, initial=self._advance(total))
        return [self._content[begin:end] for begin, end in pairwise(ends)]


def _read_head(content: bytes) -> dict[str, Any]:
    try:
        found = cbor.decode(content, max_depth=4, max_items=_ITEMS)
    except (FrameCorrupt, InvalidInput) as error:
        _fail(f"their head is not valid: {error}")
    if not isinstance(found, dict) or found.keys() != _HEAD.keys():
        _fail("their head is not valid")
    for name, shape in _HEAD.items():
        if not fits(found[name], shape):
            _fail(f"{name} in their head is not valid: {found[name]!r:.80}")
    return found


def _deletions(seqs: array[int], targets: array[int], kinds: array[int]) -> list[tuple[int, int, Kind]]:
    if not {*kinds} <= {*range(len(_KINDS))}:
        _fail("a deletion has no known kind")
    if len(targets) and not 0 < min(targets) <= max(targets) < HIGHEST:
        _fail("a deletion is of a datum with an impossible number")
    return [*zip(_ascending(seqs, least=1), targets, map(_KINDS.__getitem__, kinds), strict=True)]


def _unreadable(seqs: array[int], reasons: bytes) -> list[tuple[int, str]]:
    lines = reasons.decode(errors="replace").split("\n") if len(seqs) else []
    if len(lines) != len(seqs):
        _fail("not each datum that cannot be read has a reason")
    return [*zip(_ascending(seqs, least=1), map(_printable, lines), strict=True)]


def _printable(text: str) -> str:
    """Return a text from elsewhere so that it can be printed."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def _ascending(numbers: array[int], *, least: int) -> list[int]:
    values = numbers.tolist()
    if values and (values[0] < least or values[-1] >= HIGHEST or not all(map(lt, values, values[1:]))):
        _fail("the numbers of their changes do not ascend, or are out of range")
    return values


def _check_numbers(records: Records) -> None:
    columns = records.numbers
    if any(each[-1] > records.token.offset for each in columns):
        _fail("they have changes that their token does not cover")
    if len(columns) > 1 and len(set().union(*columns)) != records.count:
        _fail("two changes have the same number")


def _fail(problem: str) -> NoReturn:
    hint = "Run it again. If the error repeats, compare the versions of ondisk on both sides, and check the connection."
    raise IntegrityError(f"the records from the source are damaged: {problem}", hint=hint)
