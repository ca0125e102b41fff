"""What a scan found is read as it was written."""

from __future__ import annotations

from pathlib import Path

from ondisk.filesystem import Directory
from ondisk.segment import Block, Damage, End, ScanResult
from ondisk.staging.jobs import STAGED
from ondisk.staging.scan_file import read_results, write_results

SHARED = {"name": "é", "height": 1.5, "code": b"\0\xff", "station": -(2**63)}
RESULTS = [
    ScanResult([0, 10, 30], [9, 19, 5], [-1, 2**62, 0], [SHARED, {}, SHARED], [Block(0, 0, 20)], None, End(35, 40, 3)),
    ScanResult(damage=[Damage(40, 2, "no datum")], end=End(42, 42), missing=7),
    ScanResult(),
]


def columns(result: ScanResult) -> list[object]:
    return [getattr(result, name) for name in ScanResult.__slots__]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    with Directory.open(tmp_path) as directory:
        (tmp_path / STAGED / "job").mkdir(parents=True)
        for results in (RESULTS, []):
            name = f"{STAGED}/job/{len(results)}"
            write_results(directory, name, results)
            found = [*read_results(directory, name)]
            assert [*map(columns, found)] == [*map(columns, results)]
            for each in found[:1]:
                assert each.metadata[0] is each.metadata[2]
                assert (type(each.end), type(each.blocks[0])) == (End, Block)
