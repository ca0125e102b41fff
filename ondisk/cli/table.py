"""Text tables. Cells are wrapped, never cut; a table can be wider than the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console

_GAP = "   "
_NARROWEST = 8  # width of a wrapped column, unless its name is longer


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text. Its first column is not wrapped; wrapped lines joined are the cell's text."""
    widths = _widths(header, rows, Console().width)
    lines = [_line(header, widths), "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))]
    for row in rows:
        cells = [list(_wrapped(text, width)) for text, width in zip(row, widths, strict=True)]
        lines += [_line(parts, widths) for parts in zip_longest(*cells, fillvalue="")]
    return "\n".join(lines) + "\n"


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column, in terminal cells; the widest columns shrink first."""
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
    """Yield lines of at most `width` cells, cut at any character; blanks are kept."""
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
