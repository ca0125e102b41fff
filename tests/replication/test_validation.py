"""A value has a shape only if it is of the very types that it says."""

from __future__ import annotations

import re

import pytest

from ondisk.replication.validation import COUNT, Shape, fits

CASES: list[tuple[object, Shape, bool]] = [
    (0, COUNT, True),
    (2**63 - 1, COUNT, True),
    (2**63, COUNT, False),
    (-1, COUNT, False),
    (True, COUNT, False),
    (1.0, COUNT, False),
    (True, bool, True),
    (1, bool, False),
    (b"", bytes, True),
    ("ab", re.compile("a"), False),
    ("a\n", re.compile("a"), False),
    (b"a", re.compile("a"), False),
    ("a", frozenset({"a"}), True),
    (["a"], frozenset({"a"}), False),
    ([1, 2], [COUNT], True),
    ([1, "2"], [COUNT], False),
    ((1, 2), [COUNT], False),
    ([1, "a"], (COUNT, str), True),
    ([1], (COUNT, str), False),
    (None, (COUNT, str), False),
]


@pytest.mark.check
@pytest.mark.parametrize(("value", "shape", "expected"), CASES)
def test_a_value_fits_a_shape(value, shape, expected):
    assert fits(value, shape) is expected
