"""The figures in docs/limits.md are those of the code."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest

import ondisk
from ondisk import config, datum, frame
from ondisk.cli import append as command
from ondisk.cli import plot
from ondisk.dataset import append, auxiliary_files
from ondisk.files import file_names
from ondisk.files.append import LONGEST
from ondisk.filesystem import directory
from ondisk.formats import base, blob, vm2
from ondisk.formats.diskqueue import blocks, frame_reader, payload
from ondisk.index import where
from ondisk.maintenance import inspect
from ondisk.matcher import parser
from ondisk.pipeline import config as pipeline
from ondisk.tables import arrow_input, columns, csv_reader

PAGE = Path(__file__).parents[1] / "docs" / "limits.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
DEFAULTS = ondisk.DatasetConfig("seg", ondisk.Step.DAILY)
MIB = 1024 * 1024
AGES = {config._RANGES[key][1] for key in ("archive_age", "delete_age", "deletions_kept", "quarantine_age")}
(AGE,) = AGES

FIGURES = {
    "one datum": [DEFAULTS.max_datum_size],
    "a row of CSV": [csv_reader.MAX_RECORD, csv.field_size_limit(), csv_reader.MAX_RECORD],
    "a column of some rows of Parquet": [arrow_input._LARGE, arrow_input._RATIO],
    "data whose keys become columns of a table": [columns.SAMPLE, columns.SAMPLE_BYTES],
    "columns of a table, unless you name them": [columns.MOST_COLUMNS],
    "a frame of `seg`": [frame.MAX_SIZE],
    "nesting of data and metadata": [DEFAULTS.max_depth, config.MAX_DEPTH],
    "values and keys of an event of `seg`": [payload.MAX_ITEMS],
    "reftime and metadata of a file of `blob`": [blob.MAX_METADATA, blob._MAX_ITEMS],
    "an integer in a declared field": [-datum.INTEGER_MIN, datum.INTEGER_MAX],
    "an integer in a line of `jsonl`": [sys.int_info.default_max_str_digits],
    "station and variable of `vm2`": [18],
    "declared fields": [config._MAX_FIELDS],
    "extension of `blob`": [16],
    "`archive_age`, `delete_age`, `deletions_kept`, `quarantine_age`": [AGE],
    "`lock_timeout`": [config._RANGES["lock_timeout"][1]],
    "`dataset.toml`, `pipeline.toml`": [auxiliary_files.CONFIG_LIMIT, config._MAX_DOTS],
    "a match expression": [parser.MAX_LENGTH],
    "parts of a condition": [where._MAX_NODES, where._MAX_DEPTH],
    "values of a condition, as in `.isin(…)`": [where._MAX_VALUES],
    "a component of a path in a dataset": [directory._LONGEST],
    "folders in each other in a dataset": [inspect._DEEPEST],
    "the path of an appended file": [LONGEST],
    "a part of the name of an exported file": [file_names._LONGEST_PART],
    "groups in a plot": [plot.MOST],
    "a batch of an append": [base.BATCH_SIZE, base.BATCH_BYTES],
    "a block of LZ4": [blocks.MAX_BLOCK_SIZE, 4 * MIB],
    "LZ4 frames and blocks of fewer than 32 bytes each": [blocks._MANY],
    "damaged places in a file of `seg`": [frame_reader._PASSED],
    "refused data and damaged places that a report names": [append._REFUSALS],
}
WITHOUT_FIGURES = {"reftime", "data in one summary, query, dataset; segments; archives"}


def rows() -> dict[str, str]:
    return {name: most for name, most, _ in ROW.findall(PAGE.read_text()) if name != "limit" and set(name) != {"-"}}


def test_the_page_has_every_limit_of_this_test():
    assert rows().keys() == FIGURES.keys() | WITHOUT_FIGURES


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_the_page_are_those_of_the_code(name):
    most = re.sub(r"\([^)]*\)", "", rows()[name])
    assert [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", most)] == FIGURES[name]


def test_limits_that_are_written_twice_agree():
    assert DEFAULTS.max_depth == payload.MAX_DEPTH
    assert pipeline._LIMIT == auxiliary_files.CONFIG_LIMIT
    assert command._NAMED == append._REFUSALS
    assert blocks._BYTES_EACH == 32
    assert vm2._IS_WHOLE(b"1" * 18)
    assert not vm2._IS_WHOLE(b"1" * 19)
    assert config.is_extension("a" * 16)
    assert not config.is_extension("a" * 17)
