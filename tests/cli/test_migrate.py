"""`ondisk migrate`: a dry run without --yes, with an exit code that shows whether there is something to do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from old_datasets import old
from worlds import change_config


@pytest.fixture
def change(weather):
    """Change a line of dataset.toml."""
    return partial(change_config, Path(weather))


UNIQUE = 'unique = ["reftime", "area", "product"]'


def test_without_a_change_there_is_nothing_to_do(run, weather):
    for options in ([], ["--yes"]):
        done = run("migrate", weather, *options)
        assert (done.code, done.text) == (0, f"{weather.absolute()}: nothing to do\n")


def test_a_dry_run_ends_with_9_and_changes_nothing(run, weather, change):
    change(UNIQUE, 'index = ["area"]')
    for _ in range(2):
        done = run("migrate", weather, "--json")
        assert (done.code, done.json["needed"], done.json["done"]) == (9, True, False)
    assert done.json["unique"] == [["reftime", "area", "product"], []]
    assert run("append", weather, "obs.vm2").code == 32


def test_with_yes_it_migrates(run, weather, change):
    change(UNIQUE, 'index = ["area"]')
    done = run("migrate", weather, "--yes", "--json")
    assert (done.code, done.json["needed"], done.json["done"]) == (0, True, True)
    assert run("migrate", weather).code == 0
    assert run("append", weather, "obs.vm2").code == 0


def test_conflicting_data_are_named_and_end_with_the_code_of_duplicates(run, weather, change):
    change(UNIQUE, 'unique = ["area"]')
    for options, code in (([], 9), (["--yes"], 22)):
        done = run("migrate", weather, "--json", *options)
        assert (done.code, done.json["offending"], done.json["done"]) == (code, 2, False)
        places = [(each["segment"], each["offset"], each["values"]) for each in done.json["offenders"]]
        assert places == [("2026/11-20.vm2", 0, {"area": "VM2,5"}), ("2026/11-21.vm2", 0, {"area": "VM2,5"})]
    assert "2 data have the same values of unique = ['area']" in done.err
    text = run("migrate", weather, "--yes").text
    assert "2026/11-21.vm2, byte 0: another datum has the same  area=VM2,5" in text


@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_a_path_without_a_dataset_ends_with_11(run, folder, options):
    assert run("migrate", folder, *options).code == 11


def test_a_migration_that_takes_archives_over_says_what_changes_for_who_used_them(run, folder):
    path = old("archived", folder)
    for options, leave_out in (([], True), (["--yes"], False)):
        lines = run("migrate", path, *options).text.splitlines()
        assert "  no folder in .archive is a dataset any more: query the dataset with a condition for reftime" in lines
        assert f"  move none out of .archive: `ondisk archive {path} --rename NAME NEW --yes` renames it" in lines
        assert any("--leave-out NAME" in each for each in lines) == leave_out
