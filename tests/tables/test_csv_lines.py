"""The lines of a CSV file that are no records, and files that are not in UTF-8."""

from __future__ import annotations

import io
import re
import shlex
from argparse import ArgumentParser
from typing import Any

import pytest

import ondisk
from ondisk.cli.arguments import add_table, table_options
from ondisk.config import DatasetConfig
from ondisk.errors import InvalidInput
from ondisk.tables.propose_config import proposed

TABLE = "time,station,t\n2026-11-20 06:00,5,3.5\n2026-11-20 07:00,5,4.5\n"
COMMENTS = "# Station: Hilltop\n# exported 2026-11-20\n"
TITLE = "Export of 2026-11-20\n\n"
ALIGNED = "time              station  t\n2026-11-20T06:00Z 5         3.5\n2026-11-20T07:00Z 5\t  4.5  \n"


@pytest.fixture
def dataset(create) -> ondisk.Dataset:
    return create(format="seg", fields={"station": "integer"})


def stored(dataset: ondisk.Dataset, content: bytes | str, **options: Any) -> tuple[list[Any], list[str]]:
    content = content.encode() if isinstance(content, str) else content
    result = dataset.append_file(io.BytesIO(content), "csv", time="time", tz="UTC", **options)
    data = [(each.reftime.hour, each.metadata["station"], each.data["t"]) for each in dataset.query()]
    return data, [reason for _, reason in result.refusals]


ROWS = [(6, 5, 3.5), (7, 5, 4.5)]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (COMMENTS + TABLE, {"comment": "#"}),
        (COMMENTS + TABLE.replace("\n2026-11-20 07", "\n  # calibrated\n2026-11-20 07"), {"comment": "#"}),
        (COMMENTS + TABLE, {"skip_lines": 2}),
        (TITLE + TABLE, {"skip_lines": 1}),
        (TITLE.replace("Export", '"\xff').encode("latin-1") + TABLE.encode(), {"skip_lines": 2}),
        (f"time,station,t\nUTC,,degC\n{TABLE[15:]}", {"skip_lines": 2, "header": ["time", "station", "t"]}),
        (ALIGNED, {"delimiter": "blanks"}),
        (ALIGNED.replace("station", '"station"').replace("\n", "\r\n"), {"delimiter": "blanks"}),
        (TABLE.encode("utf-16"), {"encoding": "utf-16"}),
        (TABLE.encode("utf-16-le"), {"encoding": "utf-16-le"}),
        (
            TABLE.replace("t\n", "t,ort\n", 1).replace(".5\n", ".5,Forl\xec\n").encode("latin-1"),
            {"encoding": "latin-1"},
        ),
    ],
)
def test_what_precedes_the_names_and_other_encodings_are_read(dataset, content, options):
    assert stored(dataset, content, **options) == (ROWS, [])


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (TABLE + '2026-11-20 08:00,5,"a\n# b"\n2026-11-20 09:00,5,"a\n# b\nc"\n', {"comment": "#"}),
        (ALIGNED + '2026-11-20T08:00Z 5 "a  b\n  c"\n', {"delimiter": "blanks"}),
    ],
)
def test_a_cell_of_several_lines_is_refused_where_lines_are_cleaned(dataset, content, options):
    data, (reason, *_) = stored(dataset, content, **options)
    assert data == ROWS
    assert reason.startswith("line 4: ")


@pytest.mark.parametrize("count", [1, pytest.param(70_000, marks=pytest.mark.check)])
def test_lines_have_the_numbers_of_the_file(dataset, count):
    rows = "".join(f"2026-11-20 06:00,5,{n}\n" for n in range(count))
    content = f"{TITLE}# a\ntime,station,t\n{rows}# b\nx,5,1\n"
    _, (reason,) = stored(dataset, content, skip_lines=2, comment="#")
    assert reason.startswith(f"line {count + 6}: ")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_encoding_is_read_in_pieces_of_any_size(size):
    from ondisk.tables.csv_reader import InUtf8

    stream = InUtf8(io.BytesIO("é€😀".encode("utf-16")), "utf-16")
    assert b"".join(iter(lambda: stream.read(size), b"")).decode() == "é€😀"


def test_a_text_that_is_not_in_its_encoding_is_refused(dataset):
    with pytest.raises(InvalidInput, match="it is not utf-16-le"):
        stored(dataset, TABLE + "x" * (len(TABLE) % 2 == 0), encoding="utf-16-le")


@pytest.mark.parametrize(
    ("content", "options", "hint"),
    [
        (TITLE + TABLE, {}, "The names are in line 3: pass skip_lines (--skip-lines 2)."),
        (COMMENTS + TABLE, {}, "The names are in line 3: pass skip_lines (--skip-lines 2)."),
        (
            (TITLE + TABLE).replace(",", ";"),
            {"delimiter": ";"},
            "The names are in line 3: pass skip_lines (--skip-lines 2).",
        ),
        (
            (TITLE + TABLE).replace(",", ";"),
            {},
            "(--skip-lines 2). Is the delimiter ;? Pass it as delimiter (--delimiter).",
        ),
        (TABLE.replace(",", ";"), {}, "Is the delimiter ;? Pass it as delimiter (--delimiter)."),
        (ALIGNED, {}, "Is the delimiter blanks? Pass it as delimiter (--delimiter)."),
        (TABLE[15:], {}, "The first line is data, not names. Pass the names of the columns as header"),
        (TABLE.replace("time", "Time"), {}, "Pass 'Time' as time (--time): case matters."),
        (COMMENTS, {}, "Line 1 is perhaps a comment: pass comment (--comment '#')."),
        (TABLE.replace("time", "when"), {}, "Pass one of these names as time (--time)"),
    ],
)
def test_the_hint_for_a_file_without_the_column_says_what_is_there(dataset, content, options, hint):
    with pytest.raises(InvalidInput, match="there is no column 'time'") as caught:
        stored(dataset, content, **options)
    assert hint in caught.value.hint


@pytest.mark.parametrize("content", [
    TABLE, COMMENTS + TABLE, TITLE + TABLE, (TITLE + TABLE).replace(",", ";"), ALIGNED, COMMENTS + ALIGNED,
    TABLE.replace(",", "\t"),
])  # fmt: skip
def test_the_options_are_proposed(tmp_path, content):
    toml = proposed(io.BytesIO(content.encode()), tz="UTC")
    words = shlex.split(re.findall(r"ondisk append DATASET (.*)", toml)[0])
    parser = ArgumentParser()
    add_table(parser)
    options = table_options(parser.parse_known_args(words[1:])[0])
    with ondisk.create(tmp_path / "dataset", DatasetConfig.from_toml(toml)) as dataset:
        result = dataset.append_file(io.BytesIO(content.encode()), "csv", **options)
    assert (result.imported, result.refused) == (2, 0)


@pytest.mark.parametrize(
    "options", [{"skip_lines": -1}, {"skip_lines": "2"}, {"comment": ""}, {"encoding": "x"}, {"encoding": "rot13"}]
)
def test_an_option_that_is_not_valid_is_refused(dataset, options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        stored(dataset, TABLE, **options)
