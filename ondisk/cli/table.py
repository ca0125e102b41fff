"""Tables for people: cells are wrapped, and never cut; where the terminal is too narrow, the table is wider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console

_GAP = "   "
_NARROWEST = 8  # cells of a column that is wrapped, unless it has a longer name


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table. Its first column is not wrapped; what is printed of the others joins to what was given."""
    widths = _widths(header, rows, Console().width)
    rule = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    lines = [_line(header, widths), rule]
    for row in rows:
        cells = [list(_wrapped(text, width)) for text, width in zip(row, widths, strict=True)]
        lines += [_line(parts, widths) for parts in zip_longest(*cells, fillvalue="")]
    return "\n".join(lines) + "\n"


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Find the width of each column, in cells of the terminal: the widest give way first."""
    wanted = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    least = [wanted[0], *(max(cell_len(name), _NARROWEST) for name in header[1:])]
    room = width - len(_GAP) * (len(header) - 1)
    widths = wanted
    for widest in range(max(width, 1), -1, -1):
        if sum(widths) <= room:
            break
        widths = [min(want, max(few, widest)) for want, few in zip(wanted, least, strict=True)]
    return widths


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Cut a text into lines of at most `width` cells, wherever that is; blanks stay, too."""
    begin = used = 0
    for at, character in enumerate(text):
        size = cell_len(character)
        if used + size > width and at > begin:
            yield text[begin:at]
            begin, used = at, 0
        used += size
    yield text[begin:]


def _line(parts: Sequence[str], widths: Sequence[int]) -> str:
    *others, last = parts
    padded = (part + " " * (width - cell_len(part)) for part, width in zip(others, widths, strict=False))
    return _GAP.join([*padded, last])
