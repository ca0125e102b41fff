"""CSV out: what Python's reader of CSV reads is what the data have."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st

import ondisk
from ondisk import Datum
from ondisk.errors import InvalidInput, LimitExceeded, SegmentMissing
from ondisk.tables import arrow_output, columns, csv_output
from ondisk.tables.csv_output import csv_of

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
WORDS = st.from_regex(r"[a-z,;\"\n é]{1,6}", fullmatch=True).filter(str.strip)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def text_of(dataset, *columns, **options):
    return b"".join(csv_of(dataset, dataset.query(**options), columns or None)).decode()


def rows_of(dataset, *columns, **options):
    return [*csv.reader(io.StringIO(text_of(dataset, *columns, **options), newline=""), strict=True)]


def test_lines_have_a_header_and_one_line_for_each_datum(create):
    dataset = create(fields={"station": "integer", "name": "text"})
    dataset.append(
        [
            Datum(T, {"station": 5, "name": 'the "old", one'}, {"wind": 3.4, "note": "a\nb", "on": True}),
            Datum(T + timedelta(microseconds=5), {"name": ""}, {"wind": 1e16, "all": {"x": [1, None]}}),
        ]
    )
    assert text_of(dataset) == (
        "reftime,station,name,data.wind,data.note,data.on,data.all\n"
        '2026-11-20T06:00:00Z,5,"the ""old"", one",3.4,"a\nb",true,\n'
        '2026-11-20T06:00:00.000005Z,,"",1e+16,,,"{""x"":[1,null]}"\n'
    )


def test_an_empty_answer_has_the_columns_of_the_dataset(create):
    dataset = create(fields={"station": "integer"})
    assert text_of(dataset) == "reftime,station\n"
    dataset.append([Datum(T, {"station": 5}, {"wind": 3.4}), Datum(T + timedelta(hours=1), {}, {"note": "gusty"})])
    header = "reftime,station,data.wind,data.note\n"
    assert text_of(dataset, match="reftime: =2025") == header
    assert text_of(dataset, match="station: 5") == header + "2026-11-20T06:00:00Z,5,3.4,\n"


def test_columns_are_chosen_by_name(create):
    dataset = create(format="seg", fields={"size": "integer", "key": "bytes"})
    dataset.append([Datum(T, {"size": 5, "key": b"\xff", "by": "me"}, {"a": b"\xff", "b": None})])
    columns = ["data.a", "metadata.by", "f_size", "segment", "size", "key", "data", "data.none", "reftime"]
    location = dataset.first().location
    assert rows_of(dataset, *columns) == [
        columns,
        [
            *('{"$bytes":"/w=="}', "me", "5", location.segment, str(location.size), "/w=="),
            *('{"a":{"$bytes":"/w=="},"b":null}', "", "2026-11-20T06:00:00Z"),
        ],
    ]
    with pytest.raises(InvalidInput, match="there is no column 'nothing'"):
        text_of(dataset, "nothing")


@pytest.mark.parametrize(
    ("content", "cell"),
    [
        (b"1,2", "1,2"),
        ("é".encode(), "é"),
        (b'a "b"', 'a "b"'),
        (b"a\r\nb", "a\r\nb"),
        (b"", ""),
        (b"\xff", '{"$bytes":"/w=="}'),
        (b"a\0", '{"$bytes":"YQA="}'),
        (b'{"$bytes":"YQ=="}', '{"$bytes":"eyIkYnl0ZXMiOiJZUT09In0="}'),
    ],
)
def test_bytes_are_text_if_they_can_be(create, content, cell):
    dataset = create(format="blob")
    dataset.append([Datum(T, {}, content)])
    assert rows_of(dataset) == [["reftime", "data"], ["2026-11-20T06:00:00Z", cell]]


@pytest.mark.check
def test_a_hint_names_only_some_of_many_columns_and_types(create, monkeypatch):
    for module in (csv_output, arrow_output):
        monkeypatch.setattr(module, "SAMPLE", 1)
        monkeypatch.setattr(columns, "_EACH_END", 0)
    dataset = create(format="seg")
    dataset.append([Datum(T, {}, {"a": 1}), Datum(T, {}, {f"{key}": 1 for key in range(9000)})])
    for read in (lambda: text_of(dataset), lambda: dataset.to_arrow().read_all()):
        with pytest.raises(InvalidInput) as caught:
            read()
        assert len(str(caught.value)) < 2000


def test_more_columns_than_anybody_reads_are_refused(create):
    dataset = create(format="seg")
    dataset.append(Datum(T, {}, {f"{datum}-{key}": 1 for key in range(1000)}) for datum in range(11))
    with pytest.raises(LimitExceeded, match="have 11001 columns, more than 10000") as caught:
        text_of(dataset)
    assert "--columns" in caught.value.hint
    with pytest.raises(LimitExceeded):
        dataset.to_arrow()
    assert len(rows_of(dataset, "data")) == 12


def test_a_single_column_without_a_value_is_still_a_line(create):
    dataset = create(fields={"name": "text"})
    dataset.append([Datum(T, {}, {}), Datum(T, {"name": "x"}, {})])
    assert text_of(dataset, "name") == 'name\n""\nx\n'


@pytest.mark.parametrize(("format", "header"), [("vm2", ["area", "data"]), ("jsonl", ["area"])])
def test_nothing_is_a_header(create, format, header):
    assert rows_of(create(format=format, fields={"area": "text"})) == [["reftime", *header]]


def test_damage_ends_the_lines_after_those_before_it(create):
    dataset = create(fields={"n": "integer"})
    dataset.append([Datum(T + timedelta(hours=number), {"n": number}, {}) for number in range(30)])
    (dataset.path / "2026/11-21.jsonl").unlink()
    for wanted in (None, ["n"]):
        found = []
        with pytest.raises(SegmentMissing):
            found.extend(csv_of(dataset, dataset.query(), wanted))
        assert b"".join(found).count(b"\n") == 1 + 18


def test_a_key_that_the_first_data_do_not_have_is_an_error(create, monkeypatch):
    monkeypatch.setattr(csv_output, "SAMPLE", 1)
    monkeypatch.setattr(columns, "_EACH_END", 0)
    dataset = create()
    dataset.append([Datum(T, {}, {"a": 1}), Datum(T, {}, {"a": 2, "b": 3})])
    with pytest.raises(InvalidInput, match=r"has data\.b, for which"):
        text_of(dataset)
    assert rows_of(dataset, "data.a") == [["data.a"], ["1"], ["2"]]


@pytest.mark.check
@given(
    st.lists(
        st.tuples(
            st.datetimes(timezones=st.just(UTC), min_value=datetime(1900, 1, 1)),
            st.dictionaries(st.sampled_from(["name", "kind"]), TEXTS),
            st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=3),
        ),
        max_size=8,
    )
)
@settings(max_examples=up_to(25))
def test_any_text_comes_back(tmp_path_factory, rows):
    config = {"format": "jsonl", "step": "yearly", "fields": {"name": "text", "kind": "text"}}
    with ondisk.create(tmp_path_factory.mktemp("csv") / "it", config) as dataset:
        dataset.append([Datum(*row) for row in rows])
        header, *found = rows_of(dataset)
        data = [*dataset.query()]
    for row, datum in zip(found, data, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert datetime.fromisoformat(cells.pop("reftime")) == datum.reftime
        wanted = {**datum.metadata, **{f"data.{key}": value for key, value in datum.data.items()}}
        assert cells == {name: wanted.get(name, "") for name in cells}


@given(
    st.lists(
        st.tuples(
            st.datetimes(timezones=st.just(UTC), min_value=datetime(1900, 1, 1)),
            st.fixed_dictionaries(
                {}, optional={"n": st.integers(-(2**63), 2**63 - 1), "x": st.floats(allow_nan=False), "name": WORDS}
            ),
            st.fixed_dictionaries(
                {},
                optional={
                    "n": st.integers(-(2**63), 2**63 - 1),
                    "x y": st.floats(allow_nan=False, allow_infinity=False),
                    "t": WORDS,
                },
            ),
        ),
        max_size=8,
    )
)
@settings(max_examples=up_to(25))
def test_what_was_printed_can_be_appended_again(tmp_path_factory, rows):
    fields = {"n": "integer", "x": "real", "name": "text"}
    config = {"format": "seg", "step": "yearly", "fields": fields, "replace": "no"}
    folder = tmp_path_factory.mktemp("csv")
    with ondisk.create(folder / "it", config) as dataset, ondisk.create(folder / "other", config) as other:
        dataset.append([Datum(*row) for row in rows])
        (folder / "it.csv").write_bytes(b"".join(csv_of(dataset, dataset.query(), None)))
        result = other.append_file(folder / "it.csv")
        assert (result.imported, result.refused) == (dataset.count(), 0)
        assert [*other.query()] == [*dataset.query()]
