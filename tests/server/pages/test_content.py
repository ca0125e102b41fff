"""A page shows the content of any datum, in a limited size, and no picture but those of four types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.server.pages.content import Node, picture_type, shown

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def nodes(node: Node) -> int:
    return 1 + sum(nodes(item) for _, item in node.items)


@given(VALUES)
def test_any_value_is_shown(value):
    assert nodes(shown(value)) < 300


@pytest.mark.check
def test_a_large_value_is_cut():
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    wide = {str(n): [n] * 1000 for n in range(1000)}
    for value in ([[]] * 10**5, wide, deep, "x" * 10**6, b"\0" * 10**6, 10**5000):
        found = shown(value)
        assert nodes(found) < 300
        assert len(found.text) < 1100


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\nrest", "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", None),
        (b"<html><script>alert(1)</script>", None),
        (b" \x89PNG\r\n\x1a\n", None),
        (b"", None),
    ],
)
def test_a_picture_is_recognised_by_its_first_bytes(content, kind):
    assert picture_type(content) == kind
    assert (shown(content).kind == "picture") == (kind is not None)


def test_bytes_that_are_text_are_a_line_and_others_numbers():
    assert shown(b"202611170000,101,1,6.3,,,000000000\n").text == "202611170000,101,1,6.3,,,000000000"
    assert shown("ä".encode() * 5000).text.startswith("äää")
    assert shown(b"GRIB\x01\xff") == Node("bytes", "6 bytes: 47 52 49 42 01 ff")
    assert shown(b"") == Node("value", "")
