"""`ondisk maintain`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from worlds import lose_index

import ondisk
from ondisk.filesystem import Directory, MaintainLock

from .conftest import PATIENCE
from .test_check import FIRST, SECOND, delete_unknown


@pytest.fixture
def other(folder) -> Path:
    """Return a second, empty dataset."""
    ondisk.create("other", {"step": "daily"}).close()
    return Path("other")


def test_it_acts_and_prints_one_line_for_each_dataset(run, weather, other):
    run("delete", weather, "area: VM2,7", "--yes")
    (weather / SECOND).unlink()
    done = run("maintain", weather, other)
    assert done.code == 8
    assert f"{SECOND}: MISSING" in done.err
    first, second = done.text.splitlines()
    assert first.startswith(
        f"{weather.absolute()}: 1 segment OK; remove from the index 1, repack 1; 35 bytes freed in "
    )
    assert second.startswith(f"{other.absolute()}: 0 segments OK; 0 bytes freed in ")
    assert run("check", weather).code == 0


def test_a_dry_run_only_prints_what_it_would_do(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    (weather / SECOND).unlink()
    done = run("maintain", weather, "--dry-run", "--metrics", "ondisk.prom")
    assert done.code == 9
    first, second = done.err.splitlines()
    assert first.startswith(f"ondisk: warning: {weather.absolute()}: {FIRST}: DIRTY: ")
    assert second.startswith(f"ondisk: warning: {weather.absolute()}: {SECOND}: MISSING: ")
    would = "would repack 1, remove from the index 1"
    assert done.text == f"{weather.absolute()}: 0 segments OK, 1 DIRTY, 1 MISSING; {would}\n"
    assert run("maintain", weather, "--dry-run", "--json").json["summary"]["freed"] == 35
    assert run("check", weather).code == 9
    assert not Path("ondisk.prom").exists()


def test_what_was_moved_to_quarantine_is_named(run, weather):
    with (weather / "2026/11-20.vm2").open("ab") as file:
        file.write(b"202611201200,9,227,1.4,,,000000000\n")
    run("delete", weather, "area: VM2,7", "--yes")
    done = run("maintain", weather, "--json")
    (item,) = (weather / "2026/.quarantine").glob("*Z-11-20.vm2@*[0-9]")
    assert (done.code, done.json["kept"]) == (9, [str(item.relative_to(weather))])
    assert run("maintain", weather, "--json").json["kept"] == []


def test_more_findings_than_are_printed_have_a_command_that_lists_all(run, vm2):
    lines = "".join(f"202611{day:02}0600,5,227,1.2,,,0\n" for day in range(1, 13))
    run("append", vm2, "-", "--format", "vm2", stdin=lines.encode())
    for path in vm2.glob("2026/*.vm2"):
        path.unlink()
    for option in ([], ["--dry-run"]):
        first, *_, last = run("maintain", vm2, *option).err.splitlines()
        assert "is a disk not mounted? " in first
        assert last == (
            f"ondisk: warning: {vm2.absolute()}: and 2 more segments; `ondisk check {vm2.absolute()} --json` lists all"
        )


def test_losses_and_findings_are_printed_on_standard_error(run, weather):
    delete_unknown(weather)
    (weather / "2026/11-22.vm2").touch()
    (weather / SECOND).write_bytes(b"")
    done = run("maintain", weather)
    note, warning = done.err.splitlines()
    assert done.code == 9
    assert note.startswith(f"ondisk: note: {weather.absolute()}: 2026/11-22.vm2: DELETED: ")
    assert warning.startswith(f"ondisk: warning: {weather.absolute()}: {SECOND}: CORRUPTED: ")


def test_lost_data_and_a_rebuilt_index_are_reported(run, weather):
    lose_index(weather)
    (weather / FIRST).write_bytes(b"no datum\n" + (weather / FIRST).read_bytes())
    done = run("maintain", weather)
    assert done.code == 8
    assert f"ondisk: note: {weather.absolute()}: the index was lost and was rebuilt" in done.err
    assert f"ondisk: damaged: {weather.absolute()}: {FIRST}: UNALIGNED: " in done.err


def test_deleted_data_that_come_back_with_a_changed_file_are_reported(run, weather):
    assert run("delete", weather, "reftime: =2026-11-20", "--yes").code == 0
    path = weather / FIRST
    path.write_bytes(path.read_bytes().replace(b",7,227,", b",7,228,"))
    done = run("maintain", weather)
    assert f"ondisk: note: {weather.absolute()}: {FIRST}: UNALIGNED: " in done.err
    assert "read that the index did not have; if you had deleted any, delete them again" in done.err
    assert done.code == 0


def test_deleted_data_that_come_back_with_a_file_that_the_index_does_not_know_are_reported(run, weather):
    before = (weather / FIRST).read_bytes()
    assert run("delete", weather, "reftime: =2026-11-20", "--yes").code == 0
    assert run("repack", weather, "--yes").code == 0
    (weather / FIRST).write_bytes(before)
    done = run("maintain", weather)
    assert f"ondisk: note: {weather.absolute()}: {FIRST}: UNALIGNED: " in done.err
    assert "read that the index did not have; if you had deleted any, delete them again" in done.err
    assert done.code == 0


def test_json_has_one_object_for_each_dataset(run, weather, other):
    run("delete", weather, "area: VM2,7", "--yes")
    first, second, third = run("maintain", weather, "nowhere", other, "--json").lines
    assert [each["action"] for each in first["done"]] == ["repack"]
    assert (first["exit_code"], first["summary"]["ok"], first["summary"]["freed"], first["count"]) == (0, 2, 35, 2)
    assert (second["exit_code"], second["summary"]) == (11, None)
    assert "holds no dataset" in second["error"]
    assert third["exit_code"] == 0


def test_the_worst_exit_code_wins_and_all_are_maintained(run, weather, other):
    run("delete", weather, "area: VM2,7", "--yes")
    done = run("maintain", "nowhere", weather, other)
    assert done.code == 11
    assert len(done.text.splitlines()) == 3
    assert done.text.startswith(f"{Path('nowhere').absolute()}: failed with 11; ")
    assert "holds no dataset" in done.err
    assert run("check", weather).code == 0


def test_a_second_run_skips_a_locked_dataset_with_40_and_maintains_the_others(run, weather, other):
    run("delete", weather, "area: VM2,7", "--yes")
    with Directory.open(other) as directory, MaintainLock(directory).hold("maintain"):
        done = run("maintain", other, weather)
    assert done.code == 40
    assert "Another maintain is running on this dataset" in done.err
    assert run("check", weather).code == 0


def test_a_run_in_another_process_locks_the_dataset_until_it_ends(environment, run, weather):
    hold = (
        "import sys; from ondisk.filesystem import *\n"
        "with MaintainLock(Directory.open('weather')).hold('maintain'): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        done = run("maintain", weather)
        assert done.code == 40
        assert f"held by process {holder.pid} on " in done.err
        holder.kill()
    assert run("maintain", weather).code == 0


@pytest.mark.check
def test_a_bug_in_one_dataset_is_reported_and_the_others_are_maintained(environment, weather, other):
    code = (
        "import sys, ondisk.cli; from ondisk.dataset.dataset import Dataset; fix = Dataset.fix\n"
        "def broken(self, **options): return fix(self, **options) if self.path.name == 'other' else 1 / 0\n"
        "Dataset.fix = broken; sys.exit(ondisk.cli.main(['maintain', 'weather', 'other']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert "other: 0 segments OK" in done.stdout


def test_a_dataset_that_is_named_twice_is_maintained_once(run, weather):
    done = run("maintain", weather, weather.absolute(), f"./{weather}/", "--metrics", "ondisk.prom")
    assert (done.code, len(done.text.splitlines())) == (0, 1)
    assert Path("ondisk.prom").read_text(encoding="utf-8").count("\nondisk_data{") == 1


def test_metrics_are_written_to_the_file(run, weather):
    assert run("maintain", weather, "nowhere", "--metrics", "ondisk.prom").code == 11
    text = Path("ondisk.prom").read_text(encoding="utf-8")
    assert f'ondisk_segments{{dataset="{weather.absolute()}",state="ok"}} 2\n' in text
    assert f'ondisk_maintain_success{{dataset="{Path("nowhere").absolute()}"}} 0\n' in text
    done = run("maintain", weather, "--metrics", "nowhere/ondisk.prom")
    assert done.code == 10
    assert "1 data" not in done.text
    assert done.text.startswith(f"{weather.absolute()}: 2 segments OK")


@pytest.mark.check
def test_progress_is_shown_on_a_terminal_only(watch, weather):
    lose_index(weather)
    done, shown = watch("stderr", "maintain", "weather", "--json")
    assert b"\x1b[" in shown
    assert SECOND.encode() in shown
    assert (done.returncode, done.stdout[:11]) == (0, b'{"dataset":')
