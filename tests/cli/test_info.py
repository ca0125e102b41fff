"""`ondisk info`."""

from __future__ import annotations

from datetime import UTC, datetime

import ondisk


def test_json_is_what_the_library_returns(run, weather):
    with ondisk.open(weather, read_only=True) as dataset:
        info = dataset.info()
    printed = run("info", weather, "--json").json
    assert (printed.pop("begin"), printed.pop("end")) == ("2026-11-20T06:00:00Z", "2026-11-21T07:00:00Z")
    del info["begin"], info["end"]
    assert printed == info


def test_text_names_everything_too(run, weather):
    lines = run("info", weather).text.splitlines()
    assert "unique       reftime, area, product" in lines
    assert "fields       area=text  product=text" in lines
    assert "needs check  false" in lines
    assert len(lines) == len(run("info", weather, "--json").json)


def test_text_shows_how_data_are_stored(run, folder):
    run("init", "events", "--format", "seg", "--step", "daily")
    with ondisk.open("events") as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {"n": 1})])
    lines = dict(line.split(None, 1) for line in run("info", "events").text.splitlines() if "  " in line)
    assert (lines["version"], lines["payload"], lines["compression"]) == ("2", "cbor", "lz4")
    assert lines["encryption"] == "none"
    assert lines["stored"] == "format=seg  version=2  payload=cbor  compression=lz4  encryption=none  segments=1"


def test_init_and_info_print_a_path_the_same_way(run, folder):
    made = run("init", "my=weather 2", "--format", "vm2", "--step", "daily").text
    assert made == f"made the dataset {folder}/my=weather 2\n"
    assert run("info", "my=weather 2").text.splitlines()[0].split(None, 1) == ["path", f"{folder}/my=weather 2"]


def test_a_path_without_a_dataset_is_an_error_with_a_hint(run):
    done = run("info", "nowhere")
    assert (done.code, done.out) == (11, b"")
    hint = "Check the path, and whether its disk is mounted. `ondisk init` and ondisk.create make a new one."
    assert done.err == f"ondisk: error: nowhere holds no dataset\n{hint}\n"
