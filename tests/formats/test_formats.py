from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import ondisk
from ondisk.config import DatasetConfig
from ondisk.errors import ConfigError, InvalidInput
from ondisk.formats import Format, find, recognised
from ondisk.tables.propose_config import proposed

MODULE = """
from ondisk.formats.base import Format

class Shout(Format):
    name = "shout"
    recognises = classmethod(lambda cls, head: head.isupper())
    parse = encode = decode = describe = None
    undeclared = False

not_a_format = 5
"""
ENTRY_POINTS = """
[ondisk.formats]
shout = shouting:Shout
number = shouting:not_a_format
broken = shouting:missing
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with formats, as installed by pip."""
    (tmp_path / "shouting.py").write_text(MODULE)
    information = tmp_path / "shouting-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("shouting", None)


@pytest.fixture
def no_looking(monkeypatch):
    """Raise an error on every access to entry points."""

    def look(**_):
        raise AssertionError("entry points were looked up")

    monkeypatch.setattr(importlib.metadata, "entry_points", look)


@pytest.mark.parametrize("name", ["vm2", "jsonl"])
@pytest.mark.usefixtures("no_looking")
def test_built_in_formats_are_found_without_looking_at_entry_points(name):
    assert issubclass(find(name), Format)
    assert find(name).name == name
    assert (recognised(f"a/b.{name}", b"", "vm2") or "vm2") == name


@pytest.mark.usefixtures("installed")
def test_a_format_of_another_package_is_found_by_its_entry_point():
    assert find("shout").name == "shout"
    assert issubclass(find("shout"), Format)


@pytest.mark.usefixtures("installed")
def test_an_entry_point_that_is_no_format_is_named():
    with pytest.raises(ConfigError, match=r"'number' of ondisk\.formats is not a subclass"):
        find("number")


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_imported_is_named_with_what_happened():
    with pytest.raises(ConfigError, match=r"'broken' cannot be loaded: .*missing") as caught:
        find("broken")
    assert caught.value.hint


@pytest.mark.usefixtures("installed")
def test_an_unknown_format_is_reported_with_those_there_are():
    with pytest.raises(ConfigError, match="unknown format 'hologram'") as caught:
        find("hologram")
    for name in ("jsonl", "shout", "vm2"):
        assert name in caught.value.hint


@pytest.mark.parametrize("name", ["", "../vm2", "vm2\0", "VM2"])
def test_a_name_is_never_anything_but_a_name(name):
    with pytest.raises(ConfigError, match="unknown format"):
        find(name)


@pytest.mark.parametrize(
    ("file_name", "head", "default", "expected"),
    [
        ("a/b.vm2", b'{"reftime": 1}', "jsonl", "vm2"),
        ("B.JSONL", b"", "vm2", "jsonl"),
        ("a.txt", b"200707081300,1,227,1.2,,,000000000\n", "jsonl", "vm2"),
        ("a.txt", b' \n{"reftime": "2026-11-20T06:00:00Z"}\n', "vm2", "jsonl"),
        (None, b"{}", "vm2", "jsonl"),
        (None, b"200707081300,1,227,1.2,,,", "jsonl", "vm2"),
        (None, b"something else", "vm2", "vm2"),
        (None, b"", "jsonl", "jsonl"),
        ("vm2", b"{}", "vm2", "jsonl"),
        ("a.d/b", b"", "vm2", "vm2"),
    ],
)
def test_a_file_is_recognised_by_extension_then_content_then_the_default(file_name, head, default, expected):
    assert (recognised(file_name, head, default) or default) == expected


@pytest.mark.usefixtures("installed")
def test_the_extension_of_another_packages_format_is_recognised():
    assert (recognised("a.shout", b"{}", "vm2") or "vm2") == "shout"


LINES = "2026-11-20T06:00:00Z ham 21.5\n2026-11-20T07:00:00Z ham 22\nbad\n"


@pytest.fixture
def logger(tmp_path, monkeypatch):
    """The format of docs/formats.md, installed as the page says."""
    page = (Path(__file__).parents[2] / "docs/formats.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (entry,) = re.findall(r"^    (logger = )\"(.+)\"$", page, re.MULTILINE)
    lines = [line[4:] for line in code.splitlines()]
    assert len([*filter(None, lines)]) <= 30
    (tmp_path / "logger.py").write_text("\n".join(lines) + "\n")
    information = tmp_path / "logger-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: logger\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[ondisk.formats]\n{''.join(entry)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"format": "jsonl", "step": "daily", "unique": ["reftime", "station"], "fields": {"station": "text"}}
    yield ondisk.create(tmp_path / "dataset", config)
    sys.modules.pop("logger", None)


@pytest.mark.parametrize("name", ["day.logger", "day.txt"])
def test_a_file_of_a_format_of_the_page_on_plug_ins_is_recognised_by_extension_and_content(logger, tmp_path, name):
    (tmp_path / name).write_text(LINES)
    with logger as dataset:
        result = dataset.append_file(tmp_path / name)
        assert (result.imported, result.refused) == (2, 1)
        assert [(datum.metadata["station"], datum.data) for datum in dataset.query()] == [("ham", 21.5), ("ham", 22.0)]
        assert not any(each.state for each in dataset.check())
        dataset.append([ondisk.Datum(next(dataset.query()).reftime.replace(day=21), {"station": "x"}, {"a": 1})])


@pytest.mark.parametrize("name", ["day.logger", "day.txt", "day.csv"])
def test_a_dataset_is_proposed_for_a_file_of_a_format_of_the_page_on_plug_ins(logger, tmp_path, name):
    lines = [
        f"2026-11-{20 + n // 24}T{n % 24:02}:00:00Z {station} {n}" for n in range(40) for station in ("ham", "fra")
    ]
    (tmp_path / name).write_text("\n".join([*lines, "bad", ""]))
    toml = proposed(tmp_path / name)
    assert f"# Then store them: ondisk append DATASET {name}{' --format logger' * (name == 'day.csv')}\n" in toml
    assert "# 1 row cannot be read: line 81: " in toml
    assert "content" not in toml
    config = DatasetConfig.from_toml(toml)
    assert (config.format, config.unique, [*config.fields]) == ("logger", ("reftime", "station"), ["station"])
    with ondisk.create(tmp_path / "proposed", config, text=toml) as dataset:
        result = dataset.append_file(tmp_path / name, "logger" if name == "day.csv" else None)
        assert (result.imported, result.refused) == (80, 1)
        assert dataset.summary("station: ham").count == 40
    with pytest.raises(InvalidInput, match="a file of the format logger is not a table, and has no tz"):
        proposed(tmp_path / name, tz="UTC")


def test_data_of_a_format_whose_package_is_missing_name_it_with_what_to_do(logger, tmp_path, monkeypatch):
    (tmp_path / "day.logger").write_text(LINES)
    with logger as dataset:
        dataset.append_file(tmp_path / "day.logger")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    with ondisk.open(tmp_path / "dataset") as dataset:
        for use in (lambda: [*dataset.query()], dataset.check, dataset.fix, dataset.repack):
            with pytest.raises(ConfigError, match="unknown format 'logger'") as caught:
                use()
            assert "If a package adds it, install that" in caught.value.hint


@pytest.mark.parametrize("name", ["day.logger", "day.txt"])
def test_a_file_that_may_be_of_a_format_whose_package_is_missing_is_not_read_as_another(
    logger, tmp_path, monkeypatch, name
):
    (tmp_path / name).write_text(LINES)
    with logger as dataset:
        dataset.append_file(tmp_path / name)
    path = tmp_path / "dataset"
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    with ondisk.open(path) as dataset:
        message = r"not recognised \(pass its --format\), and the dataset has segments of the unknown format 'logger'"
        with pytest.raises(ConfigError, match=message) as caught:
            dataset.append_file(tmp_path / name)
        assert "If a package adds it, install that" in caught.value.hint
        (tmp_path / "day.jsonl").write_text('{"reftime": "2026-11-20T06:00:00Z", "station": "x"}\n')
        assert dataset.append_file(tmp_path / "day.jsonl").imported == 1
    (path / "dataset.toml").write_text((path / "dataset.toml").read_text().replace('"jsonl"', '"logger"'))
    with pytest.raises(ConfigError, match=r"dataset\.toml: unknown format 'logger'"):
        ondisk.open(path)


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_loaded_is_named():
    with pytest.raises(ConfigError, match="the package 'shouting' of format 'broken' cannot be loaded"):
        find("broken")


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "head", "likely", "expected"),
    [
        ("a.grb2", b"GRIB\0\0\0\2", "seg", "grib"),
        ("a.grb", b"what is this?", "seg", "grib"),  # its errors say what is wrong
        ("a.nc", b"CDF\1", "seg", "netcdf"),
        ("a.h5", b"\x89HDF\r\n\x1a\n ODIM_H5/V2_2", "seg", "odimh5"),
        ("a.h5", b"\x89HDF\r\n\x1a\n _NCProperties", "seg", "netcdf"),
        ("a.h5", b"\x89HDF\r\n\x1a\n", "blob", "blob"),
        ("a.h5", b"\x89HDF\r\n\x1a\n ODIM_H5/V2_2", "blob", "odimh5"),
    ],
)
def test_content_decides_where_an_extension_does_not(name, head, likely, expected):
    assert (recognised(name, head, likely) or likely) == expected


@pytest.mark.check
def test_segments_of_netcdf_and_blobs_never_have_one_extension():
    with pytest.raises(ConfigError, match="extension: 'nc' belongs to netcdf"):
        find("netcdf")(DatasetConfig.from_mapping({"format": "blob", "step": "daily", "extension": "nc"}))
