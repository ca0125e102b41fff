"""`ondisk summary`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ondisk


def test_json_is_the_promised_shape(run, weather):
    assert run("summary", weather, "--json").json == {
        "count": 3,
        "size": 99,
        "begin": "2026-11-20T06:00:00Z",
        "end": "2026-11-21T07:00:00Z",
        "last_change": 3,
        "fields": {
            "area": {
                "values": [{"value": "VM2,5", "count": 2}, {"value": "VM2,7", "count": 1}],
                "distinct": 2,
                "missing": 0,
                "min": None,
                "max": None,
            },
            "product": {
                "values": [{"value": "VM2,227", "count": 2}, {"value": "VM2,1", "count": 1}],
                "distinct": 2,
                "missing": 0,
                "min": None,
                "max": None,
            },
        },
    }


def test_text_is_for_people(run, weather):
    assert run("summary", weather, "area: VM2,5").text.splitlines() == [
        "count    2",
        "size     65",
        "begin    2026-11-20T06:00:00Z",
        "end      2026-11-21T07:00:00Z",
        "area     VM2,5 (2)",
        "product  VM2,1 (1)  VM2,227 (1)",
    ]


def test_20_values_of_a_field_are_listed_and_all_of_them_on_request(run, vm2):
    Path("many.vm2").write_bytes(b"".join(b"202611200600,%d,1,1,,,0\n" % station for station in range(32)))
    with ondisk.open(vm2) as dataset:
        dataset.append_file("many.vm2")
    area = run("summary", vm2, "--json").json["fields"]["area"]
    assert (len(area["values"]), area["distinct"]) == (20, 32)
    assert run("summary", vm2).text.splitlines()[4].endswith("VM2,26 (1)  and 12 more")
    assert len(run("summary", vm2, "--json", "--all-values").json["fields"]["area"]["values"]) == 32
    assert run("summary", vm2, "--all-values").text.splitlines()[4].count("(1)") == 32


def test_fields_are_chosen_and_an_unknown_one_names_the_known(run, weather):
    assert list(run("summary", weather, "--fields", "product", "--json").json["fields"]) == ["product"]
    assert run("summary", weather, "--fields", "").text.count("\n") == 4
    done = run("summary", weather, "--fields", "areo")
    assert (done.code, "areo" in done.err, "reftime, area, product" in done.err) == (4, True, True)


def test_missing_values_are_counted_and_numbers_have_bounds(run, jsonl):
    fields = (b"", b',"integer":5', b',"integer":-7')
    run("append", jsonl, "-", stdin=b"".join(b'{"reftime":"2026-11-20T06:00:00Z"%b}\n' % each for each in fields))
    field = run("summary", jsonl, "--json").json["fields"]["integer"]
    values = [{"value": -7, "count": 1}, {"value": 5, "count": 1}]
    assert field == {"values": values, "distinct": 2, "missing": 1, "min": -7, "max": 5}
    assert "integer    missing (1)  -7 (1)  5 (1); min -7, max 5" in run("summary", jsonl).text.splitlines()


def test_a_summary_of_no_data_has_no_span(run, vm2):
    done = run("summary", vm2, "--json")
    assert (done.json["count"], done.json["begin"], done.json["end"]) == (0, None, None)
    assert run("summary", vm2).code == 0


def test_groups_are_a_table_or_an_object_each(run, weather):
    assert run("summary", weather, "--by", "day").text == (
        "day          count   size\n─────────────────────────\n2026-11-20   2       68\n2026-11-21   1       31\n"
    )
    rows = [("VM2,5", 2, 65, "2026-11-21T07:00:00Z"), ("VM2,7", 1, 34, "2026-11-20T06:00:00Z")]
    assert run("summary", weather, "--by", "area", "--json").lines == [
        {"key": area, "count": count, "size": size, "begin": "2026-11-20T06:00:00Z", "end": end}
        | {"min": None, "mean": None, "max": None}
        for area, count, size, end in rows
    ]
    table = run("summary", weather, "area: VM2,5", "--by", "area").text.splitlines()
    assert table[2] == "VM2,5   2       65     2026-11-20T06:00:00Z   2026-11-21T07:00:00Z"


def test_numbers_have_their_lowest_mean_and_highest_value(run, jsonl):
    rows = "".join(f'{{"reftime":"2026-11-20T0{hour}:00:00Z","real":{hour}.5,"wind":{hour}}}\n' for hour in range(4))
    Path("a.jsonl").write_text(rows)
    run("append", jsonl, "a.jsonl")
    for field, values in {"real": "0.5      2      3.5", "data.wind": "0        1.5    3"}.items():
        assert run("summary", jsonl, "--by", "year", "--min-max", field).text.splitlines()[2].endswith(values)


def test_groups_are_drawn_to_a_file(run, weather):
    done = run("summary", weather, "--by", "day", "--plot", "days.svg")
    assert (done.code, done.text) == (0, "days.svg: 2 groups\n")
    assert Path("days.svg").read_text().count("<title>") == 2
    assert run("summary", weather, "--by", "day", "--plot", "nowhere/days.svg").code == 10


def test_a_plot_replaces_a_file_only_if_that_is_wanted(run, weather):
    Path("days.svg").write_text("drawn by hand")
    done = run("summary", weather, "--by", "day", "--plot", "days.svg")
    assert (done.code, done.text, "--overwrite" in done.err) == (20, "", True)
    assert Path("days.svg").read_text() == "drawn by hand"
    assert run("summary", weather, "--by", "day", "--plot", "days.svg", "--overwrite").text == "days.svg: 2 groups\n"
    assert Path("days.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        ("--by nowhere", 4, "nowhere"),
        ("--min-max area", 2, "--min-max needs --by\nWrite --by, too"),
        ("--plot x.svg", 2, "--plot needs --by"),
        ("--by day --overwrite", 2, "--overwrite needs --plot"),
        ("--by day --plot weather/x.svg", 2, "is in the dataset"),
        ("--by day --fields area", 2, "--by cannot be combined with --fields"),
        ("--by day --all-values", 2, "--by cannot be combined with"),
        ("--by day --plot weather/index.sqlite", 2, "a plot is an SVG file, not weather/index.sqlite"),
        ("--by day --min-max area", 4, "'area' is declared text"),
        ("--by day --min-max reftime --plot x.svg", 2, "reftime is a time, and only numbers are drawn"),
    ],
)
def test_groups_that_are_not_possible_are_an_error(run, weather, options, code, problem):
    done = run("summary", weather, *options.split())
    assert (done.code, done.out) == (code, b"")
    assert problem in done.err


def test_a_group_of_a_mistaken_match_gets_a_note(run, weather):
    assert "case matters" in run("summary", weather, "area: vm2,5", "--by", "day").err


def test_a_field_of_two_types_is_not_counted_and_gets_a_note(run, weather):
    assert run("init", "other", "--step", "daily", "--field", "area=integer").code == 0
    done = run("summary", weather, "--also", "other")
    assert (done.code, "area" in done.text) == (0, False)
    assert done.err == f"ondisk: note: area is text in {weather} and integer in other: its values are not counted\n"
    assert "area is text in" in run("summary", weather, "--also", "other", "--fields", "area").err


def test_several_datasets_are_counted_as_one(run, weather):
    shutil.copytree(weather, "copy")
    one, both = run("summary", weather, "--json").json, run("summary", weather, "--also", "cop*", "--json").json
    assert both["count"] == 2 * one["count"]
    assert both["fields"]["area"]["values"] == [
        {**each, "count": 2 * each["count"]} for each in one["fields"]["area"]["values"]
    ]
