"""The tables of BUFR: how each element is written, and what each sequence stands for.

`tables.json.gz` is written by `tools/make_bufr_tables.py`, from ecCodes' tables (Apache License 2.0, see NOTICE):

    {"source": {name, version, sha256},
     "elements": {"014002": [[6, 12, -3, -2048, 0], [14, 17, -3, -65536, 0]], …},
     "sequences": {"301001": [[6, 1001, 1002]], …},
     "centres": {"98": {"elements": …, "sequences": …}, …}}

A list begins with the version of the tables from which on it holds: WMO's, or of a centre the centre's own. Then an
element has its width in bits, scale, reference value and kind; a sequence has its descriptors.
"""

from __future__ import annotations

import gzip
import json
import pkgutil
from functools import cache
from typing import Any, NamedTuple

NUMBER, TEXT, CODE = 0, 1, 2
"""Kinds of elements; operators that change numbers do not change codes and flags."""

_FILE = "tables.json.gz"


class Element(NamedTuple):
    """How an element is written: value = (bits + reference) / 10 ** scale."""

    width: int
    scale: int
    reference: int
    kind: int


def descriptor(code: str) -> int:
    """Return a descriptor as messages have it: F in 2 bits, X in 6, Y in 8; from its six digits."""
    return int(code[0]) << 14 | int(code[1:3]) << 8 | int(code[3:])


# What DB-All.e writes, which arkimet's users have; its centres have no tables of their own for these.
_DBALLE = {
    **{code: Element(10, 0, 0, CODE) for code in ("004192", "007192")},
    **{code: Element(31, 0, -(2**29), NUMBER) for code in ("004193", "004194", "007193", "007194")},
    "007195": Element(31, 0, 0, NUMBER),
    "001194": Element(128, 0, 0, TEXT),
    **{code: Element(56, 0, 0, TEXT) for code in ("001212", "001213")},
    "001214": Element(48, 0, 0, TEXT),
    **{code: Element(3, 0, 0, CODE) for code in ("001215", "001216")},
    "001217": Element(4, 0, 0, CODE),
}


@cache
def _content() -> Any:
    packed = pkgutil.get_data("ondisk.formats.bufr", _FILE)
    assert packed is not None  # it is part of the package
    return json.loads(gzip.decompress(packed))


class Tables:
    """The tables of a message. What their version lacks is taken from the next that has it, or else the last."""

    def __init__(self, centre: int, version: int, local_version: int) -> None:
        content = _content()
        self._elements, self._sequences = content["elements"], content["sequences"]
        own = content["centres"].get(str(centre), {"elements": {}, "sequences": {}})
        self._own_elements, self._own_sequences = own["elements"], own["sequences"]
        self._version, self._local_version = version, local_version
        self._known: dict[int, Element | None] = {}

    def element(self, code: int) -> Element | None:
        """Return how an element is written, by its descriptor; None if it is not known."""
        if code not in self._known:
            digits = _digits(code)
            found = self._find(digits, self._elements, self._own_elements)
            self._known[code] = _DBALLE.get(digits) if found is None else Element(*found)
        return self._known[code]

    def sequence(self, code: int) -> list[int] | None:
        found = self._find(_digits(code), self._sequences, self._own_sequences)
        return None if found is None else [descriptor(f"{each:06}") for each in found]

    def _find(
        self, digits: str, everywhere: dict[str, list[list[int]]], own: dict[str, list[list[int]]]
    ) -> list[int] | None:
        if digits in own:
            return _at(own[digits], self._local_version)
        return _at(everywhere[digits], self._version) if digits in everywhere else None


def _digits(code: int) -> str:
    return f"{code >> 14}{code >> 8 & 0x3F:02}{code & 0xFF:03}"


def _at(runs: list[list[int]], version: int) -> list[int]:
    found = runs[0]
    for each in runs:
        if each[0] <= version:
            found = each
    return found[1:]
