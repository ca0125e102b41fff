"""A pipeline stores each datum of a folder's files once, in the dataset that it belongs to, whatever happens."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli.test_docs import CUT, SHAPES, is_of_type, section
from kit.crashes import Killed
from worlds import lose_index

import ondisk
from ondisk.dataset.append import AppendResult
from ondisk.dataset.commit_staged import OnDuplicate, _Commit
from ondisk.errors import ConfigError, LockError, StateError
from ondisk.maintenance.states import State
from ondisk.pipeline import pipeline
from ondisk.pipeline.run import Pipeline
from ondisk.staging.bulk_insert import Incoming
from ondisk.workers import work
from pipeline.world import CONFIG, DATASET, ENVIRONMENT, KEPT, begin, create, line, put, run

KILLED = """
import os, signal, sys
from ondisk.dataset.dataset import Dataset
from ondisk.pipeline import pipeline
real, moments = Dataset.append_staged, iter(range(100))
def at():
    if next(moments) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
def append_staged(*arguments, **options):
    at()
    result = real(*arguments, **options)
    at()
    return result
Dataset.append_staged = append_staged
pipeline(sys.argv[1])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return create(tmp_path)


def held(place: Path) -> dict[str, Counter[str]]:
    """Return the lines that each dataset holds, and check that it is sound."""
    found = {}
    for name in ("low", "high", "error", "duplicates"):
        with ondisk.open(place / name, read_only=True) as dataset:
            found[name] = Counter(each.decode() for each in dataset.payloads())
            assert not [each for each in dataset.check(accurate=True).findings if each.state & ~State.DIRTY]
            assert not [*dataset.path.glob(".staged/*")]
    return found


def holding(**lines: list[str]) -> dict[str, Counter[str]]:
    return {name: Counter(lines.get(name, ())) for name in ("low", "high", "error", "duplicates")}


def counts(report: Any) -> dict[str, tuple[int, int]]:
    return {name: (each.imported, each.duplicates) for name, each in report.datasets.items()}


def test_data_go_where_they_belong_errors_and_duplicates_to_their_own(place: Path) -> None:
    put(place, "a.jsonl", line(1), line(11), line(10), line("x"))
    put(place, "b/c.jsonl", line(1, note="again"), line(2), line(2, note="twice"), line(12))
    report = pipeline(place / "pipeline.toml")
    assert held(place) == holding(
        low=[line(1), line(2)],
        high=[line(11), line(12)],
        error=[line(10), line("x")],
        duplicates=[line(1, note="again"), line(2, note="twice")],
    )
    assert counts(report) == {"low": (2, 2), "high": (2, 0), "error": (2, 0), "duplicates": (2, 0)}
    assert (report.found, report.known, report.imported, report.exit_code) == (2, 0, 2, 0)


def test_a_file_is_imported_once_and_again_when_it_changed(place: Path) -> None:
    put(place, "a.jsonl", line("x"))
    pipeline(place / "pipeline.toml")
    put(place, "b.jsonl", line("y"))
    report = pipeline(place / "pipeline.toml")
    assert (report.found, report.known, report.imported) == (2, 1, 1)
    with Pipeline.open(place / "pipeline.toml") as run:
        assert run.waiting == []
    put(place, "b.jsonl", line("y"), line("z"))
    pipeline(place / "pipeline.toml")
    assert held(place) == holding(error=[line("x"), line("y"), line("y"), line("z")])


def test_files_are_committed_some_at_a_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_LEAST", 1)
    for number in range(10):
        put(place, f"{number}.jsonl", line(1, note=str(number)), line(2, number), line(20, number))
    sizes = []
    with Pipeline.open(place / "pipeline.toml") as run:
        run.import_files(None, sizes.append)
    assert sum(sizes) == sum(file.stat().st_size for file in (place / "incoming").iterdir())
    found = held(place)
    assert found["low"] == Counter([line(1, note="0"), *(line(2, number) for number in range(10))])
    assert found["duplicates"] == Counter(line(1, note=str(number)) for number in range(1, 10))
    assert found["high"].total() == 10


def test_what_cannot_be_imported_is_named_and_the_rest_is(place: Path) -> None:
    put(place, "a.jsonl", line(1), "no line\n", line(2))
    put(place, "b.txt", "what is this\n")
    put(place, "c.jsonl", line(3), '{"n": "' + "x" * 3000 + '"}\n', line(4))
    put(place, "d.blob", "bytes")
    config = place / "error" / "dataset.toml"
    for name in ("error", "duplicates", "low", "high"):
        config = place / name / "dataset.toml"
        config.write_text("max_datum_size = 2000\n" + config.read_text())
    report = pipeline(place / "pipeline.toml")
    assert held(place)["low"] == Counter([line(1), line(2)])
    assert [name for name, _ in report.failed] == ["b.txt", "d.blob"]
    assert "is of a known format" in report.failed[0][1]
    assert [name for name, _ in report.refusals] == ["a.jsonl", "c.jsonl"]
    assert "line 2: " in report.refusals[0][1]
    assert "line 2 is longer than 2000 bytes" in report.refusals[1][1]
    assert report.exit_code == 8
    report = pipeline(place / "pipeline.toml")
    assert [name for name, _ in report.failed] == ["b.txt", "d.blob"]
    assert (report.found, report.known, report.imported) == (4, 2, 0)


def test_compressed_lines_are_read_and_tables_are_named(place: Path) -> None:
    (place / "incoming/a.jsonl.gz").write_bytes(gzip.compress(line(1).encode()) + gzip.compress(line(11).encode()))
    (place / "incoming/b").write_bytes(gzip.compress(line(2).encode()))
    (place / "incoming/cut.jsonl.gz").write_bytes(gzip.compress(line(3).encode() + os.urandom(99).hex().encode())[:-20])
    put(place, "c.csv", "reftime,station\n2026-11-20T06:00:00Z,5\n")
    put(place, "d", "PAR1 and columns")
    report = pipeline(place / "pipeline.toml")
    assert held(place) == holding(low=[line(1), line(2), line(3)], high=[line(11)])
    assert [(name, reason[:21]) for name, reason in report.failed] == [
        ("c.csv", "it is a table (csv), "),
        ("d", "it is a table (parque"),
    ]
    assert [(name, "ends before" in damage.reason) for name, damage in report.damage] == [("cut.jsonl.gz", True)]
    assert report.exit_code == 8


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_run(place: Path) -> None:
    put(place, "a.jsonl", line(1))
    put(place, "b.jsonl", line(2))
    with Pipeline.open(place / "pipeline.toml") as run:
        put(place, "a.jsonl", line(1), line(3))
        run.import_files()
        assert (run.report.changed, run.report.imported, run.report.exit_code) == (["a.jsonl"], 1, 0)
    assert held(place)["low"] == Counter([line(2)])
    pipeline(place / "pipeline.toml")
    assert held(place)["low"] == Counter([line(1), line(2), line(3)])


def test_a_file_that_becomes_a_fifo_is_left(place: Path) -> None:
    put(place, "a.jsonl", line(1))
    with Pipeline.open(place / "pipeline.toml") as run:
        (place / "incoming/a.jsonl").unlink()
        os.mkfifo(place / "incoming/a.jsonl")
        run.import_files()
        assert (run.report.changed, run.report.imported) == (["a.jsonl"], 0)


def test_filters_may_be_longer_than_an_argument_of_a_process(place: Path) -> None:
    stations = " or ".join(map(str, range(8_000)))
    for name in ("low", "high"):
        path = place / name / "dataset.toml"
        path.write_text(re.sub("filter = .*", f'filter = "station: {stations}"', path.read_text()))
    put(place, "a.jsonl", line(1))
    assert counts(pipeline(place / "pipeline.toml"))["error"] == (1, 0)


@pytest.mark.parametrize("time", [-70_000_000_000, 400_000_000_000])
def test_a_file_of_a_year_that_no_calendar_has_is_imported(place: Path, time: int) -> None:
    put(place, "a.jsonl", line(1))
    os.utime(place / "incoming/a.jsonl", (0, time))
    if (place / "incoming/a.jsonl").stat().st_mtime != time:
        pytest.skip("this filesystem has no such times")
    pipeline(place / "pipeline.toml")
    assert held(place) == holding(low=[line(1)])


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no file that fails when it is read")
def test_a_file_that_fails_while_it_is_read_keeps_no_other_from_being_imported(place: Path) -> None:
    (place / "incoming/a.jsonl").symlink_to(f"/proc/{os.getpid()}/mem")
    put(place, "b.jsonl", line(1))
    report = pipeline(place / "pipeline.toml")
    assert [name for name, _ in report.failed] == ["a.jsonl"]
    assert report.exit_code == 50
    assert held(place) == holding(low=[line(1)])


def test_a_name_that_is_no_text_is_known_again(place: Path) -> None:
    (place / "incoming" / os.fsdecode(b"\xff.jsonl")).write_text(line(1))
    assert pipeline(place / "pipeline.toml").imported == 1
    assert pipeline(place / "pipeline.toml").known == 1


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(place: Path) -> None:
    put(place, "a.jsonl", line(1), line(1), line(11), line(10), "no line\n")
    before = sorted(str(path) for path in place.rglob("*"))
    report = pipeline(place / "pipeline.toml", dry_run=True)
    assert counts(report) == {"low": (2, 0), "high": (1, 0), "error": (1, 0), "duplicates": (0, 0)}
    assert (report.imported, report.refused) == (1, 1)
    assert sorted(str(path) for path in place.rglob("*")) == before
    assert held(place) == holding()


def test_without_a_dataset_for_duplicates_they_are_left_out(place: Path) -> None:
    (place / "pipeline.toml").write_text(CONFIG.replace('duplicates = "duplicates"\n', ""))
    put(place, "a.jsonl", line(1), line(1))
    report = pipeline(place / "pipeline.toml")
    assert counts(report) == {"low": (1, 1), "high": (0, 0), "error": (0, 0)}
    assert held(place) == holding(low=[line(1)])


def test_duplicates_that_replace_are_none(place: Path) -> None:
    config = place / "low" / "dataset.toml"
    config.write_text('replace = "yes"\n' + config.read_text())
    put(place, "a.jsonl", line(1), line(1, note="new"))
    pipeline(place / "pipeline.toml")
    with ondisk.open(place / "low", read_only=True) as dataset:
        assert [each.data["note"] for each in dataset.query()] == ["new"]
    with ondisk.open(place / "duplicates", read_only=True) as dataset:
        assert dataset.summary().count == 0


def test_today_in_a_filter_is_when_the_file_came(place: Path) -> None:
    config = place / "low" / "dataset.toml"
    config.write_text(config.read_text().replace("station: <=10", "reftime: =today; station: <10"))
    for name, day, hour in (("a.jsonl", 20, 6), ("b.jsonl", 21, 7)):
        put(place, name, line(1, hour))
        os.utime(place / "incoming" / name, (0, datetime(2026, 11, day, 5, tzinfo=UTC).timestamp()))
    pipeline(place / "pipeline.toml")
    assert held(place) == holding(low=[line(1, 6)], error=[line(1, 7)])


def test_maintenance_comes_behind_it(place: Path) -> None:
    (place / "pipeline.toml").write_text(
        CONFIG.replace("maintenance = false", '[maintenance]\nmetrics = "ondisk.prom"\nmax_duration = 5')
    )
    put(place, "a.jsonl", line(1, 7), line(2, 6))
    report = pipeline(place / "pipeline.toml")
    assert [Path(each.dataset).name for each in report.maintained] == ["low", "high", "error", "duplicates"]
    assert [each.action for each in report.maintained[0].done] == ["repack"]
    assert "ondisk_data" in (place / "ondisk.prom").read_text()


@pytest.mark.check
def test_the_command_names_what_it_left_out_and_prints_what_is_promised(place: Path) -> None:
    (place / "pipeline.toml").write_text(CONFIG.replace("false", "{}"))
    put(place, "a.jsonl", line(1), line(1), line(11), "no line\n")
    put(place, "b.txt", "what is this\n")
    (place / "incoming/c.seg").write_bytes(CUT[:4] + b"\x15" + CUT[5:])  # and its frame count is too high
    done = run(place, "--json")
    assert done.returncode == 8
    told, *maintained = map(json.loads, done.stdout.splitlines())
    rows = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", section(SHAPES, "pipeline"), re.MULTILINE))
    printed = [*keys(told)]
    assert {field for field, _ in printed} == rows.keys()
    assert [field for field, value in printed if not is_of_type(value, rows[field])] == []
    assert [Path(each["dataset"]).name for each in maintained] == ["low", "high", "error", "duplicates"]
    assert "ondisk: error: b.txt: neither its extension nor its content" in done.stderr
    assert "ondisk: refused: a.jsonl: line 4: " in done.stderr
    assert "ondisk: damaged: c.seg: at byte " in done.stderr
    (place / "incoming/b.txt").unlink()
    assert run(place, "--dry-run").stdout.splitlines() == [
        f"pipeline.toml: {place}/incoming: 0 files to import, 2 known",
        *(f"  {name}: 0 imported" for name in ("low", "high", "error", "duplicates")),
    ]


def test_files_that_the_dataset_for_errors_has_forgotten_are_left_out_by_the_others(place: Path) -> None:
    put(place, "a.jsonl", line(1), line(1), line(11), line("x"))
    pipeline(place / "pipeline.toml")
    lose_index(place / "error")
    report = pipeline(place / "pipeline.toml")
    assert (report.imported, counts(report)["low"], counts(report)["error"]) == (1, (0, 0), (1, 0))
    with ondisk.open(place / "error") as dataset:
        dataset.fix()
    assert held(place) == holding(low=[line(1)], high=[line(11)], error=[line("x")] * 2, duplicates=[line(1)])


@pytest.mark.check
def test_pipelines_of_one_name_leave_alone_what_each_other_has_staged(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_LEAST", 1)
    ondisk.create(place / "mistakes", KEPT).close()
    named = 'name = "it"\n' + CONFIG
    (place / "pipeline.toml").write_text(named)
    (place / "other.toml").write_text(named.replace('error = "error"', 'error = "mistakes"'))
    for number in range(8):
        put(place, f"{number}.jsonl", line(1, number), line("x", number))
    with Pipeline.open(place / "pipeline.toml") as run:
        run.import_files(None, lambda _: begin(place / "other.toml"))
    assert held(place) == holding(low=[line(1, n) for n in range(8)], error=[line("x", n) for n in range(8)])


def keys(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the keys of a printed object as the page names them, with their values."""
    for key, each in value.items():
        yield prefix + key, each
        if isinstance(each, dict):
            yield from keys(each, f"{prefix}{key}.")
        elif isinstance(each, list) and isinstance(each[0] if each else None, dict):
            yield from keys(each[0], f"{prefix}{key}[].")


@pytest.mark.crash
@pytest.mark.parametrize("moment", [1, 3, 4, 5, 8, 10, 11])
def test_a_run_that_was_killed_is_continued_by_the_next(place: Path, moment: int) -> None:
    """Moments: before and after the commit of the filters, of each dataset, and of the duplicates in it; 12 in all."""
    put(place, "a.jsonl", line(1), line(11), line("x"), line(1, note="low"))
    put(place, "b.jsonl", line(2), line(11, note="high"), line(10))
    put(place, "c.txt", "what is this\n")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(place / "pipeline.toml"), str(moment)], env=ENVIRONMENT, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    for _ in range(2):
        report = pipeline(place / "pipeline.toml")
        assert held(place) == holding(
            low=[line(1), line(2)],
            high=[line(11)],
            error=[line("x"), line(10)],
            duplicates=[line(1, note="low"), line(11, note="high")],
        )
    assert (report.found, report.known, report.imported) == (3, 2, 0)


def test_a_duplicate_is_in_a_dataset_also_if_other_data_come_between_a_kill_and_the_next_run(place: Path) -> None:
    put(place, "b", line(1))
    put(place, "c", line(1, note="c"), line(2, note="c"))
    store = _Commit._store

    def killed(self: _Commit, incoming: Incoming, on_duplicate: OnDuplicate) -> AppendResult:
        result = store(self, incoming, on_duplicate)
        if result.duplicates:  # they are stored, and the commit that skips them is not
            raise Killed
        return result

    with pytest.raises(Killed), patch.object(_Commit, "_store", killed):
        pipeline(place / "pipeline.toml")
    put(place, "a", line(2))
    for _ in range(2):
        pipeline(place / "pipeline.toml")
        duplicates = [line(1, note="c"), line(1, note="c"), line(2, note="c")]
        assert held(place) == holding(low=[line(1), line(2)], duplicates=duplicates)


@pytest.fixture
def begun(place: Path) -> Path:
    """Return a pipeline that stored a part of its file and then failed; its filters have changed since."""
    put(place, "a", line(1), line(7), line(12))
    configure(place, "high", "format =", "lock_timeout = 0\nformat =")
    with ondisk.open(place / "high") as dataset, dataset._access.locked("test"), pytest.raises(LockError) as error:
        pipeline(place / "pipeline.toml")
    assert counts(error.value.context["report"])["low"] == (2, 0)
    configure(place, "low", "<=10", "<5")
    configure(place, "high", ">=10", ">=5")
    return place


def configure(place: Path, name: str, before: str, behind: str) -> None:
    config = place / name / "dataset.toml"
    config.write_text(config.read_text().replace(before, behind))


def test_a_file_that_was_begun_is_divided_by_the_filters_of_then(begun: Path) -> None:
    put(begun, "Z.jsonl", line(8), line(3))
    for _ in range(2):
        pipeline(begun / "pipeline.toml")
        assert held(begun) == holding(low=[line(1), line(7), line(3)], high=[line(12), line(8)])


def test_a_dataset_that_is_new_gets_nothing_of_a_file_that_was_begun(begun: Path) -> None:
    ondisk.create(begun / "all", {**DATASET, "filter": ""}).close()
    (begun / "pipeline.toml").write_text(CONFIG.replace('"low", ', '"low", "all", '))
    report = pipeline(begun / "pipeline.toml")
    assert counts(report)["all"] == (0, 0)
    assert held(begun) == holding(low=[line(1), line(7)], high=[line(12)])


def test_of_a_file_that_was_begun_no_dataset_may_be_missing(begun: Path) -> None:
    (begun / "pipeline.toml").write_text(CONFIG.replace('"low", ', ""))
    with pytest.raises(ConfigError, match=r"'low' is missing; an interrupted run .* to divide a among low, high"):
        begin(begun / "pipeline.toml")
    (begun / "incoming/a").unlink()
    begin(begun / "pipeline.toml")


def test_before_a_file_that_was_begun_is_done_no_other_is_divided_by_new_filters(begun: Path) -> None:
    put(begun, "b.jsonl", line(8))
    file = begun / "incoming/a"
    content, status = file.read_bytes(), file.stat()
    file.write_bytes(b"?" * len(content))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(StateError, match=r"a: neither its extension.*; it was partly imported"):
        pipeline(begun / "pipeline.toml")
    assert held(begun) == holding(low=[line(1), line(7)])
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    pipeline(begun / "pipeline.toml")
    assert held(begun) == holding(low=[line(1), line(7)], high=[line(12), line(8)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_does_not_stop_a_file_that_was_begun(begun: Path) -> None:
    (begun / "incoming/folder").mkdir(mode=0)
    report = pipeline(begun / "pipeline.toml")
    assert ([name for name, _ in report.failed], report.imported) == (["folder"], 1)
