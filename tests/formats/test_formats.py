from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

from ondisk.errors import ConfigError
from ondisk.formats import Format, find, recognise

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
    assert recognise(f"a/b.{name}", b"", "vm2") == name


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
    with pytest.raises(ConfigError, match="unknown format 'grib'") as caught:
        find("grib")
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
    assert recognise(file_name, head, default) == expected


@pytest.mark.usefixtures("installed")
def test_the_extension_of_another_packages_format_is_recognised():
    assert recognise("a.shout", b"{}", "vm2") == "shout"
