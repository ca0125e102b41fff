"""Data of another dataset, which may be hostile, are stored as they are, or refused one by one."""

from __future__ import annotations

import pytest

from ondisk import frame
from ondisk.config import DatasetConfig
from ondisk.formats import find
from ondisk.formats.diskqueue import cbor

LINE = b"202611010000,1,227,1.2,,,000000000"
JSON = b'{"reftime": "2026-11-01T00:00:00Z", "a": 1}'
EVENT = frame.encode([cbor.encode({"timestamp": 5, "flags": 0, "meta": {}, "fields": {}},
                                  max_depth=9, max_items=9)])[0]  # fmt: skip
BESIDE = cbor.encode({"reftime": 5, "metadata": {"a": 1}}, max_depth=9, max_items=9)


def received(name: str, payloads: list[bytes], beside: list[bytes] = []):  # noqa: B006
    config = DatasetConfig.from_mapping({"format": name, "step": "daily", "fields": {"a": "integer"}, "max_depth": 1})
    return find(name)(config).received(payloads, beside)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("vm2", LINE, [b"", b"\n", LINE + b"\n", LINE + b"\n" + LINE, b"\0" + LINE, b"\0\0" + LINE, LINE[:-12]]),
        ("jsonl", JSON, [b"", b" ", b"{}", JSON.replace(b", ", b",\n"), JSON + b"\n" + JSON, b"\0" + JSON, b"\xff"]),
        ("seg", EVENT, [b"", EVENT[:-1], EVENT + EVENT, EVENT[:-6] + b"\0" + EVENT[-5:], *frame.encode([b"\x01x"])]),
    ],
)
def test_what_is_not_exactly_one_datum_is_refused(name, good, bad):
    mixed = [good, *bad, good]
    batch = received(name, mixed)
    assert batch.payloads == [good, good]
    assert [position for position, _ in batch.refused] == [*range(1, len(bad) + 1)]
    assert len(batch.reftimes) == len(batch.metadata) == 2
    for each in bad:
        assert [len(batch.refused) for batch in [received(name, [each])]] == [1]


def test_data_of_a_folder_are_any_bytes_with_their_reftime_beside_them():
    batch = received("blob", [b"any", b"\n", b"x"], [BESIDE, b"", BESIDE])
    assert (batch.payloads, batch.beside, batch.reftimes) == ([b"any", b"x"], [BESIDE] * 2, [5, 5])
    assert [position for position, _ in batch.refused] == [1]
