"""What a scan gave, and what a rewriting gave, comes back from files as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from operator import attrgetter
from pathlib import Path

import pytest
from worlds import START, access_to

import ondisk
from ondisk import Datum
from ondisk.dataset.access import Access
from ondisk.errors import StateError
from ondisk.maintenance.check import check
from ondisk.maintenance.compare import Scanned
from ondisk.maintenance.inspect import Inspection
from ondisk.maintenance.new_file import Written
from ondisk.maintenance.repack import repacked
from ondisk.segment import ScanResult
from ondisk.staging.jobs import STAGED, Changed

FIELDS = {"i": "integer", "r": "real", "t": "text", "b": "boolean", "at": "timestamp", "raw": "bytes"}
VALUES = [
    {"i": -(2**63), "r": float("inf"), "t": "ä\u2028", "b": True, "at": START, "raw": b"\xff\0"},
    {"i": 2**63 - 1, "r": 5e-324, "t": b"\xff".decode("utf-8", "surrogateescape"), "b": False, "raw": b""},
    {"r": float("-inf"), "t": ""},
    {},
]
NAME = "2026/11-20.seg"


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    with ondisk.create(tmp_path / "dataset", {"format": "seg", "step": "daily", "fields": FIELDS}) as dataset:
        for each in (0, 500):
            dataset.append(
                Datum(START + timedelta(seconds=each + n), VALUES[n % 4], {"text": "x" * n}) for n in range(500)
            )
    with access_to(dataset.path) as access:
        yield access


def test_a_scan_comes_back_as_it_was(access: Access) -> None:
    path = access.path / NAME
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = b"\xff" * 20
    content[4:8] = (5000).to_bytes(4, "little")
    path.write_bytes(content)
    source = access.directory.open_to_read(NAME)
    expected = [*access.format("seg").scan(source)]
    assert any(found.damage for found in expected)
    assert expected[-1].missing
    assert any(found.blocks for found in expected)
    scanned = Scanned.write(access, NAME, "scanned")
    columns = attrgetter(*ScanResult.__slots__)
    assert [*map(columns, scanned.results(access, source))] == [*map(columns, expected)]
    for found, each in zip(scanned.results(access, source), expected, strict=True):
        assert [*map(type, found.metadata[:1])] == [dict] * bool(found.offsets)
        assert len({*map(id, found.metadata)}) == len({*map(id, each.metadata)}), "they are shared as before"


@pytest.mark.check
def test_a_scan_of_another_file_is_refused(access: Access) -> None:
    scanned = Scanned.write(access, NAME, "scanned")
    path = access.path / NAME
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Changed):
        next(scanned.results(access, access.directory.open_to_read(NAME)))
    scanned.rows.discard(access.directory)
    scanned.rows.discard(access.directory)
    assert not (access.path / "scanned").exists()


def test_a_scan_of_a_file_that_was_put_back_with_its_times_is_refused(access: Access) -> None:
    """As by `cp -p`: same inode, same size, same time of writing."""
    scanned = Scanned.write(access, NAME, "scanned")
    path = access.path / NAME
    found, content = path.stat(), path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns)
    with pytest.raises(Changed):
        next(scanned.results(access, access.directory.open_to_read(NAME)))


def test_a_scan_that_came_through_garbled_or_in_part_is_refused(access: Access) -> None:
    scanned = Scanned.write(access, NAME, "scanned")
    source, path = access.directory.open_to_read(NAME), access.path / "scanned"
    whole = path.read_bytes()
    for size in (0, 5, 12, 100, 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Changed):
            [*scanned.results(access, source)]
    for at in (0, 3, 7, 9, 40, len(whole) - 2):
        for value in (0, 0x7F, 0xFF):
            path.write_bytes(whole[:at] + bytes([value ^ whole[at] or 1]) + whole[at + 1 :])
            if path.read_bytes() != whole:
                with pytest.raises(Changed):
                    [*scanned.results(access, source)]
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(Changed):
        [*scanned.results(access, source)]


@pytest.mark.check
def test_a_rewriting_that_came_through_garbled_or_in_part_is_not_taken(access: Access) -> None:
    with access.transaction("test") as transaction:
        transaction.drop_rows([1])
        transaction.note_deletions("SELECT 1 AS seq", ())
        transaction.commit()
    path = access.path / NAME
    before = path.read_bytes()
    for suffix in ("", ".rows"):
        for garble in (len, lambda whole: len(whole) - 1, lambda whole: len(whole) - 24, lambda _: 0):
            written = Written.write(access, NAME, "written")
            staged = access.path / f"written{suffix}"
            whole = staged.read_bytes()
            if garble is not len:
                staged.write_bytes(whole[: garble(whole)])
            elif suffix:
                staged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            else:
                staged.unlink()
            with pytest.raises(Changed):
                repacked(Inspection(access), NAME, written, [])
            written.discard(access.directory)
            assert path.read_bytes() == before
    written = Written.write(access, NAME, "written")
    assert repacked(Inspection(access), NAME, written, []).action == "repack"
    assert not check(access, accurate=True).findings


@pytest.mark.parametrize("kind", [Scanned, Written])
def test_a_task_makes_no_directory_for_a_job_that_was_removed(access: Access, kind: type[Scanned | Written]) -> None:
    with pytest.raises(StateError, match="the job has ended"):
        kind.write(access, NAME, f"{STAGED}/job/0-0")
    assert not (access.path / STAGED).exists()


def test_what_is_no_file_is_neither_scanned_nor_rewritten(access: Access, tmp_path: Path) -> None:
    with pytest.raises(StateError):
        Scanned.write(access, "2026/11-25.seg", "staged")
    with pytest.raises(StateError):
        Written.write(access, "2026/11-25.seg", "staged")
    with ondisk.create(tmp_path / "blobs", {"format": "blob", "step": "daily"}) as blobs:
        blobs.append([Datum(START, {}, b"x")])
        for kind in (Scanned, Written):
            with pytest.raises(StateError), access_to(blobs.path) as access:
                kind.write(access, "2026/11-20.blob", "staged")
        assert not (blobs.path / "staged").exists()
