"""Each datum goes to the one dataset whose filter it matches, all others to the one for errors."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

import ondisk
from ondisk import DatasetConfig, Datum
from ondisk.dataset.auxiliary_files import filter_of
from ondisk.errors import ConfigError, MatchError
from ondisk.formats import find
from ondisk.pipeline.divide_file import Division, Route, read_again

T = datetime(2026, 11, 20, tzinfo=UTC)


def target(filter=None, fields=None, **options):
    config = DatasetConfig.from_mapping(
        {"format": "jsonl", "step": "daily", "fields": fields or {}} | ({} if filter is None else {"filter": filter})
        | options
    )  # fmt: skip
    return Route(config, filter_of(config))


def divided(content, *targets, format="jsonl", size=2):
    """Return the payloads and the refused data of each dataset."""
    division = Division(targets, format)
    got = [[] for _ in targets]
    refused = [[] for _ in targets]
    for batch in division.reader.parse(io.BytesIO(content), size):
        for number, share in enumerate(division.divide(batch)):
            got[number] += share.batch.payloads
            refused[number] += share.refused
    return got, refused


def line(station, hour=6, **more):
    text = "".join(f', "{name}": {value}' for name, value in more.items())
    return f'{{"reftime": "2026-11-20T{hour:02}:00:00Z", "station": {station}{text}}}'.encode()


def test_data_go_to_the_dataset_whose_filter_matches_else_to_that_for_errors():
    fields = {"station": "integer"}
    one, two = target("station: 1 or 3", fields), target("station: >=2", fields)
    lines = [line(station) for station in (1, 2, 3, 4, 0)]
    got, refused = divided(b"\n".join(lines), one, two, target(fields=fields))
    assert got == [[lines[0]], [lines[1], lines[3]], [lines[2], lines[4]]]
    assert refused == [[], [], []]


def test_a_filter_asks_for_reftime_too():
    got, _ = divided(line(1, 6) + b"\n" + line(1, 12), target("reftime: >=2026-11-20 12"), target())
    assert got == [[line(1, 12)], [line(1, 6)]]


def test_data_that_share_their_metadata_are_reported_apart_by_reftime():
    fields = {"area": "text"}
    taker = target("area: VM2,5; reftime: >=2026-11-20 12", fields)
    lines = [f"20261120{hour:02}00,{area},227,1.2,,,0".encode() for hour in (6, 12, 18, 7) for area in (5, 7)]
    got, _ = divided(b"\n".join(lines), taker, target(fields=fields), format="vm2", size=5)
    assert got == [[lines[2], lines[4]], [lines[at] for at in (0, 1, 3, 5, 6, 7)]]


def test_each_dataset_sees_its_own_fields():
    number, text = target("station: 5", {"station": "integer"}), target("station: five", {"station": "text"})
    lines = [line(5), line('"five"'), line('"5"'), line("null")]
    got, refused = divided(b"\n".join(lines), number, text, target())
    assert got == [[lines[0]], [lines[1]], [lines[2], lines[3]]]
    assert refused == [[], [], []]


def test_metadata_are_those_of_the_dataset_that_takes_the_datum():
    division = Division([target("station: 5", {"station": "integer"}), target()], "jsonl")
    (batch,) = division.reader.parse(io.BytesIO(line(5) + b"\n" + line(6)), 10)
    first, errors = division.divide(batch)
    assert [dict(each) for each in first.batch.metadata] == [{"station": 5}]
    assert [dict(each) for each in errors.batch.metadata] == [{}]


def test_what_no_dataset_can_hold_is_refused_with_its_place_and_reason():
    fields = {"station": "integer"}
    content = b"\n".join([line(5), b"no line", line('"x"', 7), line(6)])
    got, refused = divided(content, target("station: 5", fields), target(fields={**fields, "note": "text"}))
    assert got == [[line(5)], [line(6)]]
    assert refused[0] == []
    assert [position for position, _ in refused[1]] == [1, 2]
    assert refused[1][0][1].startswith("line 2: ")
    assert "station" in refused[1][1][1]
    assert not refused[1][1][1].startswith("line")


def test_data_too_large_or_too_old_for_a_dataset_are_not_its_own():
    small = target("station: 1", {"station": "integer"}, max_datum_size=60)
    lines = [line(1), line(1, note=f'"{"x" * 50}"')]
    got, refused = divided(b"\n".join(lines), small, target())
    assert (got, refused) == ([[lines[0]], [lines[1]]], [[], []])
    old = target("station: 1", {"station": "integer"}, delete_age=1)
    got, refused = divided(b"\n".join([line(2), b'{"reftime": "2001-01-01T00:00:00Z", "station": 1}']), old, target())
    assert got == [[], [line(2)]]
    assert refused == [[(1, "it is older than delete_age, 1 days")], []]


@pytest.mark.parametrize("other", [{}, {"note": "text"}])
def test_frames_of_seg_go_as_they_came(tmp_path, other):
    data = [Datum(T, {"station": number, "note": f"n{number}"}, {"n": number}) for number in range(5)]
    with ondisk.create(tmp_path / "seg", {"step": "daily", "fields": {"station": "integer"}}) as dataset:
        dataset.append(data)
        content, frames = b"".join(dataset.payloads()), [*dataset.payloads()][1:]
    targets = [target("station: >=3", {"station": "integer"}), target(fields=other or {"station": "integer"})]
    got, _ = divided(content, *targets, format="seg")
    assert got == [frames[3:], frames[:3]]


@pytest.mark.parametrize("own", [{"version": 0}, {"payload": "protobuf"}, {"encryption": "aes-256-gcm"}])
def test_frames_of_seg_are_of_the_kind_of_the_dataset_that_they_go_to(own):
    plain, other = ({"fields": {"station": "integer"}, "format": "seg", **each} for each in ({}, own))
    data = [Datum(T, {"station": number}, {"n": number}) for number in range(3)]
    format = find("seg")(target(**plain).config)
    content = format.preamble + b"".join(format.encode(data).payloads)
    for first, last in ((other, plain), (plain, other)):
        routes = [target("station: 1", **first), target(**last)]
        got, refused = divided(content, *routes, format="seg")
        assert refused == [[], []]
        formats = [find("seg")(route.config) for route in routes]
        assert got == [formats[0].encode(data[1:2]).payloads, formats[1].encode(data[::2]).payloads]


def test_what_is_read_again_is_what_it_was():
    format = find("jsonl")(target(fields={"station": "integer"}, max_datum_size=60).config)
    payloads = [line(1), line('"x"'), line(1, note='"' + "x" * 60 + '"'), line(2)]
    batch = read_again(payloads, format)
    assert batch.payloads == [payloads[0], payloads[3]]
    assert [*batch.positions()] == [0, 3]
    assert [place for place, _ in batch.refused] == [1, 2]
    assert len(read_again([], format)) == 0


def test_a_filter_is_parsed_when_the_configuration_is_read_and_errors_name_the_line(tmp_path):
    ondisk.create(tmp_path / "d", {"step": "daily", "fields": {"station": "integer"}, "filter": "station: 5"}).close()
    path = tmp_path / "d" / "dataset.toml"
    assert 'filter = "station: 5"' in path.read_text()
    path.write_text('step = "daily"\nfilter = "statoin: 5"\n[fields]\nstation = "integer"\n')
    with pytest.raises(ConfigError, match=r"dataset\.toml, line 2: filter: .*statoin"):
        ondisk.open(tmp_path / "d")
    with pytest.raises(ConfigError, match=r"filter: .*statoin") as raised:
        ondisk.create(tmp_path / "e", {"step": "daily", "filter": "statoin: 5"})
    assert not isinstance(raised.value, MatchError)


@pytest.mark.parametrize("text", ["", "reftime: today", 'note: "é 😀"', "a: 1\nb: \x7f"])
def test_a_filter_is_written_as_it_is_read(text):
    config = DatasetConfig("jsonl", "daily", filter=text)
    assert DatasetConfig.from_toml(config.to_toml()) == config
