"""`ondisk delete`."""

from __future__ import annotations

import pytest

from .conftest import LINES


def test_without_yes_it_only_prints_what_would_be_deleted(run, weather):
    done = run("delete", weather, "area: VM2,5")
    assert (done.code, done.text) == (9, "2 data of 65 bytes would be deleted; --yes deletes them\n")
    assert run("delete", weather, "area: VM2,5", "--json").json == {"would_delete": 2, "size": 65}
    assert run("query", weather, "--data").out == LINES


def test_without_yes_and_without_work_it_ends_with_0(run, weather):
    done = run("delete", weather, "area: VM2,6")
    assert (done.code, done.text) == (0, "0 data of 0 bytes would be deleted\n")


def test_with_yes_it_deletes(run, weather):
    assert run("delete", "--yes", weather, "area: VM2,5", "--json").json == {"deleted": 2}
    assert run("summary", weather, "--json").json["count"] == 1
    done = run("delete", weather, "area: VM2,5", "--yes")
    assert (done.code, done.text) == (0, "0 data deleted\n")


def test_the_empty_match_deletes_all(run, weather):
    assert run("delete", weather, "", "--yes", "--json").json == {"deleted": 3}


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_an_invalid_match_deletes_nothing(run, weather, yes):
    assert run("delete", weather, "station: 5", *yes).code == 4
    assert run("delete", weather, *yes).code == 2
    assert run("summary", weather, "--json").json["count"] == 3


def test_a_dry_run_on_a_replica_is_refused_as_the_deletion_is(run, weather):
    assert run("replicate", weather, "replica", "--create").code == 0
    one, other = (run("delete", "replica", "", *yes) for yes in ([], ["--yes"]))
    assert (one.code, one.err) == (other.code, other.err)
    assert one.code == 30
