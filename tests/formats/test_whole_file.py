"""Files that say themselves what is in them: datasets of them lose nothing that the files say."""

from __future__ import annotations

import io
import struct
from datetime import UTC, datetime

import pytest
from formats.hdf5_files import image, netcdf4, volume
from formats.test_netcdf import GRID
from worlds import lose_index

import ondisk
from ondisk.cli import main
from ondisk.errors import InvalidInput
from ondisk.segments.dir import METADATA, SEQUENCE

FIELDS = dict.fromkeys(("area", "level", "origin", "product", "quantity", "task", "timerange"), "item")
T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.odimh5"
FILES = [volume(), image("CAPPI", prodpar=1500.0), image("MAX")]


@pytest.fixture
def make(tmp_path):
    def make(name="radar", **values):
        config = {"format": "odimh5", "step": "daily", "fields": FIELDS, "unique": ["reftime", "product"]} | values
        return ondisk.create(tmp_path / name, config)

    return make


def products(dataset, match=None):
    return sorted(each.metadata["product"] for each in dataset.query(match))


def states(report):
    return {each.segment: each.reasons for each in report if each.state}


def append(dataset, *contents):
    return dataset.append([ondisk.Datum(T, {}, content) for content in contents])


def test_files_are_appended_queried_deleted_and_repacked(make, tmp_path):
    for place, content in enumerate(FILES):
        (tmp_path / f"{place}.odimh5").write_bytes(content)
    with make() as radar:
        counts = [radar.append_file(tmp_path / f"{place}.odimh5").imported for place in range(len(FILES))]
        assert counts == [1, 1, 1]
        assert radar.append_file(tmp_path / "0.odimh5").duplicates == 1
        assert products(radar, "product: ODIMH5,IMAGE") == ["ODIMH5,IMAGE,CAPPI", "ODIMH5,IMAGE,MAX"]
        assert next(radar.query("level: ODIMH5,0 13 offset 0.5")).data == FILES[0]
        assert radar.delete("product: ODIMH5,PVOL") == 1
        radar.repack()
        assert states(radar.check(accurate=True)) == {}


@pytest.mark.check
def test_what_is_given_must_agree_with_the_file(make):
    with make() as radar:
        datum = ondisk.Datum(T, {"task": "other"}, FILES[0])
        (refused,) = radar.append([datum]).refusals
        assert "task is 'other', but 'ZLR-BB' in the data" in str(refused)


@pytest.mark.parametrize(
    "lost", ["both", *(pytest.param(each, marks=pytest.mark.check) for each in ("index", "metadata", "damaged"))]
)
def test_all_data_come_back_from_the_files_alone(make, tmp_path, lost):
    with make() as radar:
        append(radar, *FILES)
    folder = tmp_path / "radar"
    if lost in ("index", "both"):
        lose_index(folder)
    if lost in ("metadata", "both"):
        (folder / SEGMENT / METADATA).unlink()
    if lost == "damaged":
        entries = folder / SEGMENT / METADATA
        entries.write_bytes(b"\xff" * 40 + entries.read_bytes()[40:])
    with ondisk.open(folder) as radar:
        radar.fix()
        assert states(radar.check(accurate=True)) == {}
        assert products(radar) == ["ODIMH5,IMAGE,CAPPI", "ODIMH5,IMAGE,MAX", "ODIMH5,PVOL,SCAN"]
        assert append(radar, *FILES).duplicates == 3


def test_a_segment_of_arkimet_is_adopted_by_a_fix(make, tmp_path):
    make().close()
    segment = tmp_path / "radar" / SEGMENT
    segment.mkdir(parents=True)
    for place, content in enumerate([*FILES, volume(time="080000")]):
        (segment / f"{place:06}.odimh5").write_bytes(content)
    (segment / SEQUENCE).write_bytes(struct.pack("<Q", 2))  # the last file is of an interrupted import
    with ondisk.open(tmp_path / "radar") as radar:
        radar.fix()
        assert products(radar) == ["ODIMH5,IMAGE,CAPPI", "ODIMH5,IMAGE,MAX", "ODIMH5,PVOL,SCAN"]
        radar.repack()
        assert states(radar.check(accurate=True)) == {}


@pytest.mark.check
@pytest.mark.parametrize("is_index_lost", [True, False])
def test_a_damaged_file_is_reported_and_the_others_are_read(make, tmp_path, is_index_lost):
    with make() as radar:
        append(radar, *FILES)
    segment = tmp_path / "radar" / SEGMENT
    (segment / METADATA).unlink()
    (segment / "000001.odimh5").write_bytes(b"damaged")
    if is_index_lost:
        lose_index(tmp_path / "radar")
    with ondisk.open(tmp_path / "radar") as radar:
        radar.fix(salvage=[] if is_index_lost else [SEGMENT])
        assert products(radar) == ["ODIMH5,IMAGE,MAX", "ODIMH5,PVOL,SCAN"]
        assert is_index_lost is ("000001.odimh5" in str(states(radar.check())))


@pytest.mark.check
def test_netcdf_files_have_segments_of_nc(make, tmp_path):
    fields = {"area": "item", "quantity": "item", "north": "real"}
    with make("sea", format="netcdf", fields=fields, unique=["reftime", "quantity"]) as sea:
        append(sea, netcdf4(GRID))
        (found,) = sea.query("north: >46")
        assert found.location.segment == "2026/11-20.nc"
    (tmp_path / "sea/2026/11-20.nc" / METADATA).unlink()
    lose_index(tmp_path / "sea")
    with ondisk.open(tmp_path / "sea") as sea:
        sea.fix()
        assert [each.metadata["quantity"] for each in sea.query()] == ["lat,lon,time"]


@pytest.mark.check
def test_files_are_not_joined_as_nobody_would_find_their_borders(make, tmp_path):
    with make() as radar:
        append(radar, *FILES)
        assert [*radar.payloads("product: ODIMH5,PVOL")] == FILES[:1]
        with pytest.raises(InvalidInput, match="files of odimh5 cannot be joined"):
            next(iter(radar.payloads()))
        radar.append_file(io.BytesIO(b'{"reftime": "2026-11-20T05:00:00Z"}\n'), "jsonl")
        with pytest.raises(InvalidInput, match="cannot be joined"):
            [*radar.payloads()]
    names = ["--to", str(tmp_path / "out"), "--name", "{product}.h5"]
    assert main(["query", str(tmp_path / "radar"), "product: ODIMH5", *names]) == 0
    assert {each.read_bytes() for each in (tmp_path / "out").iterdir()} == {*FILES}
