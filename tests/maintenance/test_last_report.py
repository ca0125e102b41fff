"""The last report about a dataset is in a file, which may contain anything when it is read."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ondisk
from ondisk.cli import main
from ondisk.filesystem import Directory
from ondisk.maintenance import last_report
from ondisk.maintenance.states import Diagnosis, Report, State

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture
def filled(tmp_path) -> Path:
    """Make a dataset of one segment."""
    path = tmp_path / "filled"
    with ondisk.create(path, {"format": "vm2", "step": "daily", "fields": {"area": "text"}}) as dataset:
        dataset.append(
            [ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"area": "VM2,5"}, b"202611200000,5,1,6.3,,,0")]
        )
    return path


def loaded(path) -> last_report.LastReport | None:
    with Directory.open(path) as directory:
        return last_report.load(directory)


@pytest.mark.parametrize(
    ("command", "found"),
    [(["check"], 1), (["fix", "--yes"], 0), (["repack", "--yes"], 0), (["maintain"], 0)],
)
def test_commands_write_what_they_found(filled, capsys, command, found):
    assert loaded(filled) is None
    (segment,) = filled.glob("2026/*.vm2")
    segment.unlink()
    for dry_run in (["fix"], ["repack"], ["maintain", "--dry-run"]):
        main([*dry_run[:1], str(filled), *dry_run[1:]])
    assert loaded(filled) is None
    main([command[0], str(filled), *command[1:]])
    report = loaded(filled)
    assert report.command == command[0]
    assert (len(report.findings), report.counts["missing"], report.is_clean) == (found, found, not found)
    if found:
        capsys.readouterr()
        main(["check", str(filled), "--json"])
        printed = json.loads(capsys.readouterr().out.splitlines()[0])
        assert report.findings[0].items() <= printed.items()
    assert not [*filled.glob(".report.json?*")]


def test_a_command_does_not_depend_on_its_report(filled):
    (filled / ".report.json").mkdir()
    assert main(["check", str(filled)]) == 0
    assert loaded(filled) is None
    assert [each.name for each in filled.glob(".report.json*")] == [".report.json"]


@pytest.mark.check
def test_a_report_has_a_limited_size(filled):
    many = Report(str(filled))
    many.segments = [Diagnosis(f"2026/{n}.vm2", State.DIRTY, ("x" * 100,)) for n in range(20_000)]
    last_report.save(filled, "check", many)
    assert (filled / ".report.json").stat().st_size <= last_report.LARGEST
    report = loaded(filled)
    assert len(report.findings) + report.left_out == 20_000
    assert report.left_out
    assert report.findings[0]["segment"] == "2026/0.vm2"


VALID = {"command": "check", "time": "2026-11-20T00:00:00Z", "error": None, "findings": [], "done": [], "left_out": 0}


@given(JSON)
def test_any_file_is_a_report_or_none(tmp_path_factory, found):
    path = tmp_path_factory.getbasetemp()
    for content in (found, {**VALID, "findings": found}, {**VALID, "summary": found}, {**VALID, "time": found}):
        (path / ".report.json").write_text(json.dumps(content))
        loaded(path)
    for text in (b"", b"{", b"[" * 100_000, b"\xff"):
        (path / ".report.json").write_bytes(text)
        assert loaded(path) is None
    (path / ".report.json").write_text(json.dumps(VALID))
    assert loaded(path).is_clean
    (path / ".report.json").unlink()


@pytest.mark.check
def test_what_a_killed_command_has_left_is_removed_later(filled):
    staged = filled / ".report.json.new"
    staged.write_bytes(b"half of a rep")
    main(["check", str(filled), "--quiet"])
    assert staged.exists()  # another process may be writing it now
    os.utime(staged, (1, 1))
    main(["check", str(filled), "--quiet"])
    assert not staged.exists()
    assert json.loads((filled / ".report.json").read_bytes())["command"] == "check"
