"""ecCodes reads the same values: an oracle, where it is installed (`pip install eccodes`); it takes a minute."""

from __future__ import annotations

import random

import pytest

from ondisk.formats.bufr import kind_of, sections, tables
from ondisk.formats.bufr.program import Undecodable, make, run

from .build import bufr

VERSIONS = (13, 14, 16, 18, 20, 25, 29, 33, 36, 38)


def own_values(message: bytes) -> list[int]:
    """All numbers, without their decimal points."""
    parts = sections(message)
    kind = kind_of(parts.identity, parts.descriptors)
    of = tables.Tables(kind.centre, kind.version, kind.local_version)
    program = make(kind.descriptors, of, {}, takes_all=True, is_compressed=kind.is_compressed)
    values = []

    def take(code, value):
        if isinstance(value, int):
            values.append(value)
        return False

    run(program, parts.data, kind.is_compressed, take)
    return values


def is_same(digits: int, value: float) -> bool:
    """Whether a number has these digits, wherever its decimal point is."""
    if not digits:
        return abs(value) < 1e-9
    return any(abs(digits * 10.0**-scale - value) <= 1e-6 * abs(value) for scale in range(-20, 24))


@pytest.mark.slow
def test_all_sequences_of_all_versions_are_read_as_eccodes_reads_them():
    eccodes = pytest.importorskip("eccodes", reason="ecCodes is not installed")
    content = tables._content()
    draw = random.Random(20261122)
    compared = 0
    for code in sorted(content["sequences"]):
        version = draw.choice(VERSIONS)
        data = bytes(draw.choice((0, 0, 0, 0, 1, 2, 16, 64, draw.randrange(256))) for _ in range(3000))
        message = bufr(codes=[code], data=data, category=255, version=version)
        try:
            own = own_values(message)
        except Undecodable:
            continue
        handle = eccodes.codes_new_from_message(message)
        try:
            eccodes.codes_set(handle, "unpack", 1)
            theirs = [float(each) for each in eccodes.codes_get_array(handle, "numericValues")]
        except eccodes.CodesInternalError:
            continue  # this version does not have the sequence, or the data are too short for it
        finally:
            eccodes.codes_release(handle)
        following = iter(theirs)  # which also has factors, and associated fields
        assert all(any(is_same(digits, value) for value in following) for digits in own), (code, version)
        compared += 1
    assert compared > 400
