"""`ondisk summary`."""

from __future__ import annotations

from pathlib import Path

import ondisk


def test_json_is_the_promised_shape(run, weather):
    assert run("summary", weather, "--json").json == {
        "count": 3,
        "size": 99,
        "begin": "2026-11-20T06:00:00Z",
        "end": "2026-11-21T07:00:00Z",
        "fields": {
            "area": [{"value": "VM2,5", "count": 2}, {"value": "VM2,7", "count": 1}],
            "product": [{"value": "VM2,1", "count": 1}, {"value": "VM2,227", "count": 2}],
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


def test_text_names_the_first_of_many_values(run, vm2):
    Path("many.vm2").write_bytes(b"".join(b"202611200600,%d,1,1,,,0\n" % station for station in range(12)))
    with ondisk.open(vm2) as dataset:
        dataset.append_file("many.vm2")
    assert run("summary", vm2).text.splitlines()[4].endswith("VM2,7 (1)  and 2 more")
    assert len(run("summary", vm2, "--json").json["fields"]["area"]) == 12


def test_a_missing_value_is_null_and_comes_first(run, jsonl):
    line = b'{"reftime":"2026-11-20T06:00:00Z"}\n{"reftime":"2026-11-20T06:00:00Z","integer":5}\n'
    run("append", jsonl, "-", stdin=line)
    values = run("summary", jsonl, "--json").json["fields"]["integer"]
    assert values == [{"value": None, "count": 1}, {"value": 5, "count": 1}]
    assert "integer    missing (1)  5 (1)" in run("summary", jsonl).text.splitlines()


def test_a_summary_of_no_data_has_no_span(run, vm2):
    done = run("summary", vm2, "--json")
    assert (done.json["count"], done.json["begin"], done.json["end"]) == (0, None, None)
    assert run("summary", vm2).code == 0
