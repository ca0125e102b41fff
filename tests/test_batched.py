"""`ondisk.batched`."""

from __future__ import annotations

from ondisk.batched import batched


def test_lists_have_a_limited_weight_and_a_limited_number_of_items():
    assert [*batched([], len, 3)] == []
    assert [*batched(["a", "bb", "ccccc", "", "d", "ee", "f"], len, 3)] == [
        ["a", "bb"],
        ["ccccc"],
        ["", "d", "ee"],
        ["f"],
    ]
    assert [*batched("abcde", lambda _: 0, 3, 2)] == [["a", "b"], ["c", "d"], ["e"]]
