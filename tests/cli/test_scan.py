"""`ondisk scan` and `ondisk formats` need no dataset; what they say is what an append would store."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pytest
from formats.grib.build import grib1, grib2
from formats.hdf5_files import volume

import ondisk
from ondisk import Dataset, Datum, keys
from ondisk.cli import main
from ondisk.dataset.scan import headers


def scanned(capsys, *arguments):
    code = main(["scan", *map(str, arguments), "--json"])
    found = capsys.readouterr()
    return code, [json.loads(line) for line in found.out.splitlines()], found.err


def test_a_scan_prints_what_is_in_a_file_and_where(tmp_path, capsys):
    file = tmp_path / "model.grb"
    one, two = grib1(), grib2()
    file.write_bytes(b"\0" * 10 + one + b"junk" + two)
    code, found, errors = scanned(capsys, file)
    assert code == 8
    assert f"damaged: {file}: at byte {10 + len(one)}: no message; 4 bytes skipped" in errors
    places = [(each["location"]["offset"], each["location"]["size"]) for each in found]
    assert places == [(10, len(one)), (14 + len(one), len(two))]
    assert [(each["reftime"], each["metadata"]["step"]) for each in found] == [("2026-11-20T06:00:00Z", 21600)] * 2


@pytest.mark.check
def test_a_scan_of_files_of_every_kind(tmp_path, capsys, monkeypatch):
    (tmp_path / "radar.h5").write_bytes(volume())
    (tmp_path / "a.vm2").write_bytes(b"202611200600,101,139,12.4,,,000000000\n")
    code, (radar,), errors = scanned(capsys, tmp_path / "radar.h5")
    assert (code, errors, radar["metadata"]["product"]) == (0, "", "ODIMH5,PVOL,SCAN")
    code, (line,), _ = scanned(capsys, tmp_path / "a.vm2")
    assert (code, line["metadata"]) == (0, {"area": "VM2,101", "product": "VM2,139"})
    (tmp_path / "radar.h5").write_bytes(volume()[:2000])
    code, found, errors = scanned(capsys, tmp_path / "radar.h5", "--format", "odimh5")
    assert (code, found) == (8, [])
    assert "it cannot be read as HDF5" in errors
    monkeypatch.setenv("ONDISK_KEYS", f"1 {'ab' * 32}")
    keys.use(None)
    for encryption in ("none", "aes-256-gcm"):
        with Dataset.create(
            tmp_path / encryption, {"step": "daily", "encryption": encryption, "compression": "none"}
        ) as dataset:
            dataset.append([Datum(datetime(2026, 11, 20, tzinfo=UTC), {"host": "a"}, {})])
        code, (event,), errors = scanned(capsys, tmp_path / encryption / "2026/11-20.seg")
        assert (code, event["metadata"], errors) == (0, {"host": "a"}, "")
    (tmp_path / "a.jsonl").write_bytes(b'{"time": "2026-11-20T06:00:00Z"}\n' * 150)
    code, found, errors = scanned(capsys, tmp_path / "a.jsonl")
    assert (code, found, errors.count("\n")) == (8, [], 101)
    assert errors.endswith("damaged: and 50 more places\n")


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "content", "code", "reason"),
    [
        ("a.grib.gz", b"\x1f\x8b\x08", 2, "is compressed"),
        ("a.xyz", b"what?", 2, "neither its extension nor its content is of a known format"),
        ("missing.grib", None, 10, "no such file"),
    ],
)
def test_a_file_that_cannot_be_scanned_is_an_error(tmp_path, capsys, name, content, code, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    found, lines, errors = scanned(capsys, tmp_path / name)
    assert (found, lines) == (code, [])
    assert reason in errors


def test_formats_are_listed_with_extensions_and_what_they_need(capsys):
    assert main(["formats", "--json"]) == 0
    found = {each["format"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["grib"]["extensions"] == ["grib", "grib1", "grib2", "grb", "grb2"]
    assert found["netcdf"] == {
        "format": "netcdf",
        "extensions": ["nc", "nc4", "cdf"],
        "segments": "dir",
        "extra": "hdf5",
    }
    assert main(["formats"]) == 0
    assert "odimh5  odimh5 h5 hdf; dir segments; needs ondisk[hdf5]" in capsys.readouterr().out


@pytest.mark.check
def test_an_index_says_where_the_bytes_of_data_are(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"format": "grib", "step": "daily", "fields": {"level": "item", "step": "integer"}}
    with ondisk.create("model", config) as model:
        model.append_file(io.BytesIO(grib1() + grib2()))
        model.append_file(io.BytesIO(volume()), "odimh5")
    assert main(["query", "model", "--index"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "path": "model/2026/11-20.grib",
        "offset": 0,
        "length": len(grib1()),
        "reftime": "2026-11-20T06:00:00Z",
        "items": {"level": "GRIB1,105,2", "step": 21600},
    }
    contents = []
    for each in lines:
        content = (tmp_path / each["path"]).read_bytes()
        contents.append(content[each["offset"] :][: each["length"]])
    assert contents == [grib1(), grib2(), volume()]


@pytest.mark.check
def test_an_index_of_data_that_are_compressed_is_refused(tmp_path, capsys):
    with ondisk.create(tmp_path / "events", {"format": "seg", "step": "daily"}) as events:
        events.append_file(io.BytesIO(b'{"reftime": "2026-11-20T06:00:00Z"}'), "jsonl")
    assert main(["query", str(tmp_path / "events"), "--index"]) == 2
    assert "data of jsonl are not in files as they were appended" in capsys.readouterr().err


@pytest.mark.check
def test_the_headers_of_a_message_are_what_it_says_of_itself():
    assert headers("2026/11-20.grib", grib1())["level"] == "GRIB1,105,2"
    assert headers("2026/11-20.png", b"GRIB") is None
    assert headers("2026/11-20.jsonl", {"x": 1}) is None
