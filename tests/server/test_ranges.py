"""Headers of range requests, as RFC 9110 has them."""

from __future__ import annotations

import pytest

from ondisk.server.byte_ranges import is_known, part_of
from ondisk.server.responses import Refused

TAG = '"a-1-10"'


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 4)),
        ("Bytes= 2-5 ", (2, 4)),
        ("bytes=2-", (2, 8)),
        ("bytes=9-9", (9, 1)),
        ("bytes=2-10", (2, 8)),
        ("bytes=2-99999999999999999999999999", (2, 8)),
        ("bytes=-3", (7, 3)),
        ("bytes=-10", (0, 10)),
        ("bytes=-99999999999999999999999999", (0, 10)),
        ("bytes=5-2", None),
        ("bytes=", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("bytes=1-2,4-5", None),
        ("bytes=٣-", None),
        ("bytes=" + "9" * 5000 + "-", None),
        ("lines=1-2", None),
        ("1-2", None),
    ],
)
def test_a_range_names_a_part_or_is_ignored(header, part):
    assert part_of({"range": header}, 10, TAG) == part


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=99999999999999999999-", "bytes=-0"])
def test_a_range_without_bytes_is_refused_with_the_size(header):
    with pytest.raises(Refused) as caught:
        part_of({"range": header}, 10, TAG)
    assert (caught.value.status, caught.value.headers["content-range"]) == (416, "bytes */10")


def test_nothing_has_no_parts():
    assert part_of({"range": "bytes=-5"}, 0, TAG) is None
    with pytest.raises(Refused):
        part_of({"range": "bytes=0-"}, 0, TAG)


def test_conditions_compare_the_tag():
    part = {"range": "bytes=1-1"}
    assert part_of({**part, "if-range": TAG}, 10, TAG) == (1, 1)
    assert part_of({**part, "if-range": '"other"'}, 10, TAG) is None
    assert part_of({**part, "if-range": f"W/{TAG}"}, 10, TAG) is None
    assert part_of({**part, "if-range": "Mon, 23 Nov 2026 09:00:00 GMT"}, 10, TAG) is None
    assert part_of({**part, "if-match": f'"other", {TAG}'}, 10, TAG) == (1, 1)
    assert part_of({**part, "if-match": "*"}, 10, TAG) == (1, 1)
    for header in ('"other"', f"W/{TAG}"):
        with pytest.raises(Refused) as caught:
            part_of({"if-match": header}, 10, TAG)
        assert caught.value.status == 412
    assert is_known({"if-none-match": f'"other", W/{TAG}'}, TAG)
    assert is_known({"if-none-match": "*"}, TAG)
    assert not is_known({"if-none-match": '"other"'}, TAG)
    assert not is_known({}, TAG)
