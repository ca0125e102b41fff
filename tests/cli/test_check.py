"""`ondisk check`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from concurrency.test_readers import mounted_read_only
from crash.killpoints import server
from worlds import lose_index, renew_index

import ondisk
from ondisk.cli import main

from .conftest import LINES

CLEAN = dict.fromkeys(
    (
        "dirty",
        "unaligned",
        "missing",
        "deleted",
        "corrupted",
        "archive_age",
        "delete_age",
        "touched",
        "consumed",
        "freed",
    ),
    0,
)
FIRST, SECOND = "2026/11-20.vm2", "2026/11-21.vm2"
NOBODY = 65534


def test_a_clean_dataset_ends_with_0(run, weather):
    done = run("check", weather)
    assert (done.code, done.err) == (0, "")
    assert done.text == f"{weather.absolute()}: 2 segments OK; a repack frees 0 bytes\n"
    summary = {"ok": 2, **CLEAN}
    assert run("check", weather, "--json").json == {
        "dataset": str(weather.absolute()),
        "needs_check": False,
        "summary": summary,
        "quarantine": {"items": 0, "bytes": 0},
        "replaced": {"segments": 0, "bytes": 0, "until": None},
    }


def test_a_file_that_was_touched_is_named_until_a_fix_has_compared_it(run, weather):
    os.utime(weather / FIRST, ns=(1, 1_000_000_001))
    done = run("check", weather)
    assert (done.code, "2 segments OK" in done.text) == (0, True)
    assert f"touched since they were written: {FIRST}" in done.text
    assert run("check", weather, "--json").json["summary"]["touched"] == 1
    assert run("fix", weather, "--yes").code == 0
    assert "touched since" not in run("check", weather).text


def test_all_names_the_segments_that_are_ok_too(run, weather):
    assert run("check", weather, "--all").text.splitlines()[:2] == [f"{FIRST}: OK", f"{SECOND}: OK"]
    *segments, last = run("check", weather, "--all", "--json").lines
    assert segments[0] == {"segment": FIRST, "states": ["OK"], "reasons": [], "action": None, "freed": 0}
    assert last["summary"]["ok"] == len(segments) == 2


def test_findings_end_with_9_and_have_reasons_and_remedies(run, weather):
    run("delete", weather, "area: VM2,7", "--yes")
    (weather / SECOND).unlink()
    done = run("check", weather)
    assert done.code == 9
    assert done.text.splitlines() == [
        f"{FIRST}: DIRTY: 35 bytes after its last datum belong to no datum -> repack",
        f"{SECOND}: MISSING: it is not on disk; the index has 1 datum of it -> fix: remove from the index",
        f"{weather.absolute()}: 0 segments OK, 1 DIRTY, 1 MISSING; a repack frees 35 bytes",
    ]
    first, second, last = run("check", weather, "--json").lines
    assert (first["states"], first["action"], first["freed"]) == (["DIRTY"], "repack", 35)
    assert (second["states"], second["action"]) == (["MISSING"], "remove from the index")
    assert last["summary"] == {**CLEAN, "ok": 0, "dirty": 1, "missing": 1, "freed": 35}


def test_every_state_and_every_reason_is_printed(run, folder):
    ondisk.create("old", {"format": "vm2", "step": "daily", "archive_age": 5}).close()
    run("append", "old", "-", "--format", "vm2", stdin=LINES.replace(b"2026", b"2020"))
    run("delete", "old", "reftime: =2020-11-20 06:00", "--yes")
    run("append", "old", "-", "--format", "vm2", stdin=LINES.replace(b"2026", b"2020"))
    first, *_ = run("check", "old", "--json").lines
    assert first["states"] == ["DIRTY", "ARCHIVE_AGE"]
    assert len(first["reasons"]) == 2
    assert first["action"] == "repack and archive"


def test_what_the_next_repack_deletes_is_named(run, weather):
    (weather / "2026/11-22.vm2").write_bytes(LINES)
    renew_index(weather)
    done = run("check", weather)
    assert done.code == 9
    assert "2026/11-22.vm2: UNALIGNED: the index does not know it: another program has put it there" in done.text
    assert "DELETES" not in done.text
    delete_unknown(weather)
    done = run("check", weather)
    assert done.code == 9
    assert "\nthe next repack DELETES 1 segment: 2026/11-22.vm2\n" in done.text
    assert f"a repack frees {len(LINES)} bytes" in done.text


def all_but_report(dataset: Path) -> list[Path]:
    """Return all files of a dataset but the only one that a check writes, if it may."""
    return sorted(each for each in dataset.rglob("*") if each.name != ".report.json")


def test_a_lost_index_is_a_finding_and_nothing_is_created(run, weather):
    lose_index(weather)
    before = all_but_report(weather)
    done = run("check", weather)
    assert done.code == 9
    assert "UNALIGNED" in done.text
    last = f"run `ondisk fix {weather.absolute()} --yes`, else nothing is repacked"
    assert done.text.endswith(f"the index was lost and may not know all data: {last}\n")
    assert run("check", weather, "--json").lines[-1]["needs_check"] is True
    assert all_but_report(weather) == before


def test_the_sentinel_alone_is_a_finding(run, weather):
    (weather / "needs-check-do-not-pack").touch()
    assert run("check", weather).code == 9


def delete_unknown(weather):
    """Configure that segments which the index does not know are deleted."""
    config = weather / "dataset.toml"
    config.write_text('unknown_segments = "delete"\n' + config.read_text())


def rot(path, old, new):
    """Change bytes of a file as a bad disk does: nobody wrote it."""
    before = path.stat()
    with path.open("r+b") as file:
        content = file.read().replace(old, new, 1)
        file.seek(0)
        file.write(content)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))


def test_only_an_accurate_check_sees_a_changed_byte_that_nobody_wrote(run, weather):
    rot(weather / FIRST, b"2026112006", b"2026112007")
    assert run("check", weather).code == 0
    done = run("check", weather, "--accurate")
    assert done.code == 9
    assert f"{FIRST}: CORRUPTED: " in done.text
    assert done.text.splitlines()[0].endswith("-> left alone")


@pytest.mark.parametrize("archived", [False, True])
def test_what_an_accurate_check_has_found_fix_repeats_with_the_remedy_until_it_is_gone(archived, run, weather):
    name, path = FIRST, weather / FIRST
    if archived:
        assert run("archive", weather, FIRST, "--yes").code == 0
        name, path = f".archive/last/{FIRST}", weather / ".archive/last" / FIRST
    whole = path.read_bytes()
    rot(path, b"2026112006", b"2026112007")
    assert run("fix", weather).code == 0
    found = run("check", weather, "--accurate").text.splitlines()
    for command in (("fix",), ("fix", "--yes"), ("check",), ("check", "--accurate"), ("maintain",)):
        done = run(command[0], weather, *command[1:])
        assert done.code == 9
        assert found[0] in done.text + done.err
        if command[0] != "maintain":
            remedy = f"damaged: {name}: put the file back from a backup; without one, `ondisk fix {weather.absolute()} "
            assert f"{remedy}--salvage {name} --yes` keeps what is whole" in done.text
    rot(path, path.read_bytes(), whole)
    assert run("fix", weather, "--yes").code == 0
    assert run("check", weather, "--accurate").code == 0


def test_an_accurate_check_that_finds_no_damage_does_not_write(run, weather):
    def times() -> list[tuple[str, int]]:
        return [
            (each.name, each.stat().st_mtime_ns) for each in all_but_report(weather) if not each.name.endswith("-shm")
        ]

    before = times()
    assert run("check", weather, "--accurate").code == 0
    assert times() == before


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_damage_on_a_read_only_mount_is_reported_although_it_cannot_be_recorded(run, weather, tmp_path):
    rot(weather / FIRST, b"2026112006", b"2026112007")
    with mounted_read_only(weather, tmp_path / "mounted") as place:
        done = run("check", place, "--accurate")
    assert (done.code, "CORRUPTED" in done.text) == (9, True)
    assert "note: the damage was not recorded" in done.err


def test_a_check_sees_a_file_that_somebody_changed(run, weather):
    path = weather / FIRST
    path.write_bytes(path.read_bytes().replace(b"2026112006", b"2026112007", 1))
    done = run("check", weather)
    assert done.code == 9
    assert f"{FIRST}: UNALIGNED: it is not the file that the index describes" in done.text


def test_a_check_in_slices_remembers_what_it_found(run, weather):
    rot(weather / SECOND, b"2026112107", b"2026112106")
    for _ in range(2):  # at least one segment each time
        run("check", weather, "--max-duration", "0s")
    done = run("check", weather)
    assert done.code == 9
    assert f"{SECOND}: CORRUPTED: " in done.text


def test_a_segment_restored_from_a_backup_is_ok_after_it_was_read_again(run, weather):
    path = weather / SECOND
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"2026112107", b"2026112106", 1))
    assert run("check", weather, "--max-duration", "10s").code == 9
    path.write_bytes(whole)
    assert run("check", weather, "--max-duration", "10s").code == 0


@pytest.mark.parametrize("text", ["", "m", "10", "ten minutes", "5w", "-1s", "1s1m"])
def test_an_invalid_duration_is_a_usage_error(run, weather, text):
    done = run("check", weather, f"--max-duration={text}")
    assert (done.code, done.out) == (2, b"")
    assert "such as 90s, 1h30m or 7d" in done.err


@pytest.mark.parametrize("text", ["90s", "10m", "1h30m", "1h2m3s"])
def test_durations_are_hours_minutes_and_seconds(run, weather, text):
    assert run("check", weather, "--max-duration", text).code == 0


def check_as(user: int, path: Path, talk) -> None:
    """Check as a user, and return the exit code."""
    os.chdir("/")
    first = main(["check", str(path), "--accurate"])  # imports modules that this user may not read
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    talk.send((first, main(["check", str(path)]), main(["check", str(path), "--accurate", "--json"])))


@pytest.mark.check
@pytest.mark.parametrize("index", ["", "lost"])
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing user and mounting take root")
def test_it_works_without_permission_to_write_and_on_a_read_only_mount(weather, index):
    if index:
        lose_index(weather)
    code = 9 if index else 0
    with tempfile.TemporaryDirectory() as name:  # other users may not enter pytest's folder
        Path(name).chmod(0o755)
        place = Path(name) / "weather"
        shutil.move(weather, place)
        before = all_but_report(place)
        with mounted_read_only(place, Path(name) / "mounted") as mounted:
            for path in (place, mounted):
                for user in (NOBODY, 0):
                    ours, theirs = server().Pipe()
                    process = server().Process(target=check_as, args=(user, path, theirs))
                    process.start()
                    theirs.close()
                    assert ours.recv() == (code, code, code)
                    process.join()
        assert all_but_report(place) == before


@pytest.mark.check
def test_progress_is_shown_on_a_terminal_only_and_never_on_standard_output(watch, weather):
    done, shown = watch("stderr", "check", weather, "--accurate", "--json")
    assert b"check" in shown
    assert done.stdout.startswith(b'{"dataset":')


@pytest.mark.check
def test_text_lists_the_first_of_many_segments_and_json_all(run, weather):
    delete_unknown(weather)
    for day in range(1, 29):
        for month in range(1, 13):
            file = weather / f"2020/{month:02}-{day:02}.vm2"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"")
    for command in ("check", "repack"):
        lines = run(command, weather).text.splitlines()
        assert len(lines) < 110
        assert "and 236 more; --json lists all" in lines
        assert lines[-1].endswith("and 326 more; --json lists all")
        assert max(map(len, lines)) < 400
        assert len(run(command, weather, "--json").lines) == 337
    assert len(run("check", weather, "--all").text.splitlines()) == 340
    assert "and 236 more; --json lists all" in run("repack", weather, "--yes").text.splitlines()


def test_commands_in_hints_can_be_copied_although_the_path_has_a_blank(run, weather, folder):
    weather = weather.rename("my weather")
    lose_index(weather)
    fix = f"`ondisk fix '{folder}/my weather' --yes`"
    assert fix in run("check", weather).text
    assert f"run {fix}, else" in run("maintain", weather, "--dry-run").err
    assert "`ondisk fix 'my weather' --yes`" in run("query", weather).err
    run("fix", weather, "--yes")
    (weather / "2026/11-20.vm2").unlink()
    assert fix in run("query", weather).err
    (weather / "index.sqlite").write_bytes(b"garbage" * 1000)
    assert f"`ondisk fix '{folder}/my weather' --rebuild --yes`" in run("query", weather).err


def test_a_step_that_was_changed_in_the_configuration_is_named(run, weather):
    config = weather / "dataset.toml"
    config.write_text(config.read_text().replace("daily", "monthly"))
    done = run("check", weather)
    assert done.code == 9
    assert done.text.count('does not fit the step monthly; to restore it, write step = "daily" into dataset.toml') == 2
    config.write_text(config.read_text().replace("monthly", "daily"))
    assert run("check", weather).code == 0
