"""Notes about a match that found nothing and looks mistaken."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import ondisk

RULE = "a text is the first components of a value, and case matters; there is"
MISTAKES = {
    "area: VM2,5 and product: VM2,1": "no datum has the area `VM2,5 and product: VM2,1`: write `;` between groups",
    "area: !=VM2": "no datum has the area `!=VM2`: the language has no `!=`; in Python, `~` negates a condition",
    "area: VM2,*": "no datum has the area `VM2,*`: `*` is an ordinary character",
    "area: VM2,5 product: VM2,1": "no datum has the area `VM2,5 product: VM2,1`: write `;` between groups",
    "area: vm2,5": f"no datum has the area `vm2,5`: {RULE} `VM2,5`",
    "area: vm2": f"no datum has the area `vm2`: {RULE} `VM2,5`, `VM2,7`",
    "area: 7": f"no datum has the area `7`: {RULE} `VM2,7`",
    "area: north-5": f"no datum has the area `north-5`: {RULE} `VM2,5`, `VM2,7`",
    'area: "7"': f"no datum has the area `7`: {RULE} `VM2,7`",
    "area: VM2,7 or 9": f"no datum has the area `9`: {RULE}",
}


@pytest.mark.parametrize(
    "command", [("query",), ("query", "--data"), ("query", "--table"), ("query", "--json"), ("summary",), ("delete",)]
)
@pytest.mark.parametrize("match", [each for each in MISTAKES if " or " not in each])
def test_a_match_that_looks_mistaken_gets_a_note(run, weather, command, match):
    name, *options = command
    done = run(name, weather, match, *options)
    assert done.code == 0
    assert done.err.startswith(f"ondisk: note: {MISTAKES[match]}")
    assert "note" not in done.text


def test_each_value_gets_its_note(run, weather):
    done = run("query", weather, "area: vm2,5; product: 227; reftime: >=2026")
    assert done.err.splitlines() == [
        f"ondisk: note: no datum has the product `227`: {RULE} `VM2,227`",
        f"ondisk: note: no datum has the area `vm2,5`: {RULE} `VM2,5`",
    ]


@pytest.mark.parametrize(
    "match", ["area: VM2,9", "area: VM2,5; reftime: =1999", "area: VM2,5; product: VM2,9", "reftime: >2030", ""]
)
def test_an_empty_answer_to_a_plausible_match_gets_none(run, tmp_path, weather, match):
    empty = tmp_path / "empty"
    ondisk.create(empty, {"format": "vm2", "step": "daily", "fields": {"area": "text", "product": "text"}}).close()
    for dataset in (empty, *([weather] if match else [])):
        done = run("query", dataset, match)
        assert (done.code, done.text, done.err) == (0, "", "")


@pytest.fixture
def stations(tmp_path):
    with ondisk.create(tmp_path / "stations", {"format": "jsonl", "step": "daily"}) as dataset:
        for hour, data in enumerate([{"temp": 1, "rain": "0,5"}, {"temp": 2.5, "wind": 3}]):
            dataset.append([ondisk.Datum(datetime(2026, 11, 20, hour, tzinfo=UTC), {}, data)])
    return tmp_path / "stations"


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("Temp", "no datum has a number data.Temp: there is `data.temp`\n"),
        ("tmp", "no datum has a number data.tmp: there is `data.temp`\n"),
        ("x", "no datum has a number data.x: there is `data.temp`, `data.wind`\n"),
        ("rain", "no datum has a number data.rain: there is `data.temp`, `data.wind`\n"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",), ("--plot", "plot.svg"), ("--also", "stations")])
def test_a_number_that_no_datum_has_is_an_error(run, stations, name, note, options):
    done = run("summary", stations, "--by", "day", "--min-max", f"data.{name}", *options)
    assert (done.code, done.err.startswith(f"ondisk: error: {note}Name a number ")) == (2, True)
    assert not Path("plot.svg").exists()


def test_a_number_that_one_datum_has_is_no_error(run, stations):
    assert run("summary", stations, "--by", "hour", "--min-max", "data.wind").err == ""
    assert run("summary", stations, "reftime: =1999", "--by", "day", "--min-max", "data.x").err == ""


def test_the_lowest_number_of_content_without_names_is_an_error(run, weather):
    done = run("summary", weather, "--by", "day", "--min-max", "data.value")
    assert done.code == 2
    assert done.err.startswith("ondisk: error: no datum has a number data.value\nName a number ")


@pytest.mark.parametrize(
    ("match", "note"),
    [
        (
            "site: brigde",
            f"no datum has the site `brigde`: {RULE} `bridge`",
        ),
        (
            "site: bridge-nort",
            f"no datum has the site `bridge-nort`: {RULE} `bridge-north`",
        ),
        ("site: bridge-2", ""),
        ("site: tower", ""),
    ],
)
def test_a_mistyped_text_gets_a_note_with_the_similar_one(run, tmp_path, match, note):
    path = tmp_path / "sites"
    values = ("bridge", "bridge-north", "bridge-1", "dam")
    with ondisk.create(path, {"step": "daily", "fields": {"site": "text"}}) as sites:
        sites.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"site": each}, {}) for each in values])
    assert run("query", path, match).err == (f"ondisk: note: {note}\n" if note else "")


def test_values_with_a_comma_between_them_get_a_note(run, tmp_path):
    path = tmp_path / "sites"
    with ondisk.create(path, {"step": "daily", "fields": {"site": "text"}}) as sites:
        sites.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"site": each}, {}) for each in ("dam", "été")])
    done = run("query", path, "site: dam, été")
    assert done.err.endswith("`dam,été`: commas are part of a value; for one of several write `dam or été`\n")


@pytest.mark.parametrize(("match", "value"), [("Milano, Nord", "Milano, Nord"), ("padded", "  padded ")])
def test_a_value_with_blanks_gets_a_note_that_works(run, tmp_path, match, value):
    path = tmp_path / "sites"
    with ondisk.create(path, {"step": "daily", "fields": {"site": "text"}}) as sites:
        sites.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"site": each}, {}) for each in ("dam", value)])
    note = run("query", path, f"site: {match}").err
    assert "blanks beside a comma or at an end count only in quotes: write `" in note
    assert run("query", path, f"site: {note.split('`')[-2]}").text.count("\n") == 1


def test_an_answer_gets_none(run, tmp_path):
    path = tmp_path / "odd"
    with ondisk.create(path, {"format": "jsonl", "step": "daily", "fields": {"site": "text"}}) as odd:
        (tmp_path / "odd.jsonl").write_text('{"reftime": "2026-11-20T06:00:00Z", "site": "a and b: *", "who": "x"}\n')
        assert odd.append_file(tmp_path / "odd.jsonl").imported == 1
    assert run("query", path, "site: a and b: *").err == ""
    assert run("query", path, "site: a and b: *", "--limit", "0").err == ""
    assert run("query", path, "site: a and b: *; reftime: =1999").err == ""


def test_metadata_that_are_not_declared_get_notes_on_syntax(run, tmp_path):
    path = tmp_path / "events"
    with ondisk.create(path, {"step": "daily"}) as events:
        events.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {"sensor": "a"}, {})])
    assert "write `;` between groups" in run("query", path, "metadata.sensor: a and metadata.sensor: b").err
    assert run("query", path, "metadata.sensor: B").err == ""
